"""Runs clusters that do not depend on each other on all cores.

Worker processes are forks. They see the global memory through shared copies, which replace the
original contents only when all of them are done: whatever goes wrong in a worker leaves no trace.
"""

from __future__ import annotations

import mmap
import os
import pickle
import select
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.program import Program
from triton_ext.emulator.errors import EmulationError, MemoryFault
from triton_ext.emulator.schedule.machine import Machine, clusters_of
from triton_ext.emulator.state.block import Index

WORTH_FORKING = 0.05
"""Seconds of work below which forks cost more than they gain (10 to 20 ms with torch)."""
_TALKING = ("atom", "red", "griddepcontrol", "clusterlaunchcontrol", "multimem", "ld.volatile",
            "ld.acquire", "ld.relaxed", "cp.reduce", "call")  # fmt: skip


def independent(program: Program) -> bool:
    """Whether blocks of different clusters cannot see each other's work.

    They could through atomics, flags in global memory, or a queue of blocks; a kernel that has an
    instruction of that kind outside of shared memory is taken to do so.
    """
    return not any(
        step.instruction.opcode.startswith(_TALKING)
        and (".shared" not in step.instruction.opcode or ".global" in step.instruction.opcode)
        for step in program.steps
    )


def execute(machine: Machine) -> None:
    """Run a launch: its first cluster here, the rest in parallel if that is worth it.

    Raises:
        EmulationError: what the kernel does wrong.
    """
    clusters = clusters_of(machine.launch.grid, machine.launch.cluster)
    progress = _Progress(machine.program.kernel.name, len(clusters))
    machine.on_cluster = progress.advance
    workers = min(len(os.sched_getaffinity(0)), len(clusters) - 1)
    try:
        if (
            workers < 2
            or not hasattr(os, "fork")
            or machine.observer is not None
            or not independent(machine.program)
        ):
            machine.run(clusters)
            return
        began = time.perf_counter()
        machine.run(clusters[:1])
        rest = clusters[1:]
        worth = (time.perf_counter() - began) * len(rest) >= WORTH_FORKING
        if not worth or not _fork(machine, rest, workers, progress):
            machine.run(rest, first=1)
    finally:
        progress.close()


class _Progress:
    """Says on a terminal how far a launch is, if it takes long. Forks share the count."""

    def __init__(self, name: str, total: int) -> None:
        self._name, self._total = name, total
        self._shown = sys.stderr.isatty() and total > 1
        self._began = self._last = time.monotonic()
        self._done = np.frombuffer(mmap.mmap(-1, 8), np.int64)
        self.advances: NDArray[np.int64] = self._done  # of this process

    def advance(self) -> None:
        """Another cluster is done; a fork only counts it."""
        self.advances[0] += 1
        if self.advances is self._done:
            self.show(int(self._done[0]))

    def here(self) -> None:
        """What follows is done by this process again."""
        self.advances = self._done

    def show(self, done: int) -> None:
        """Rewrite the line, now and then."""
        now = time.monotonic()
        if self._shown and now - self._began > 2 and now - self._last > 0.2:
            self._last = now
            sys.stderr.write(f"\r{self._name}: {done} of {self._total} clusters")
            sys.stderr.flush()

    def close(self) -> None:
        if self._last != self._began:
            sys.stderr.write("\r\033[K")


@dataclass
class _Answer:
    """What became of a worker; if it is not complete, the work is to be done without forks."""

    complete: bool = False
    steps: int = 0
    error: EmulationError | None = None


def _fork(
    machine: Machine, clusters: Sequence[list[Index]], workers: int, progress: _Progress
) -> bool:
    """Run clusters in forks; False if that cannot be done, with nothing changed."""
    memory = machine.launch.memory
    originals = memory.replace([_shared_copy(data) for data in memory.arrays])
    sys.stdout.flush()
    finished = np.frombuffer(mmap.mmap(-1, 8 * workers), np.int64)
    children = {}
    for number in range(workers):
        progress.advances = finished[number : number + 1]
        process, reader = _start(machine, clusters[number::workers])
        children[reader] = process
    progress.here()
    answers = []
    while children:
        for reader in select.select(list(children), [], [], 0.5)[0]:
            answers.append(_answer(children.pop(reader), reader))
        progress.show(1 + int(finished.sum()))
    copies = memory.replace(originals)
    if not all(answer.complete for answer in answers):
        return False
    for original, copy in zip(originals, copies, strict=True):
        if original.flags.writeable:
            original[:] = copy
    machine.steps += sum(answer.steps for answer in answers)
    for answer in answers:
        if answer.error is not None:
            raise answer.error
    return True


def _shared_copy(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if not len(data):
        return data
    copy = np.frombuffer(mmap.mmap(-1, len(data)), np.uint8)
    copy[:] = data
    return copy


def _start(machine: Machine, clusters: Sequence[list[Index]]) -> tuple[int, int]:
    """Fork a worker; its process and the pipe on which it answers."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns in a process with threads, such as torch's: a fork must not wait for
        # one of them. This one calls numpy alone, and leaves by os._exit.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process:
        os.close(writer)
        return process, reader
    os.close(reader)
    before = machine.steps
    answer = _Answer()
    memory = machine.launch.memory
    try:
        memory.find = None  # what a worker finds by itself would not be shared
        machine.run(clusters)
        answer = _Answer(True, machine.steps - before)
    except EmulationError as error:
        unknown = isinstance(error, MemoryFault) and memory.may_find
        answer = _Answer(not unknown, machine.steps - before, error)
    finally:
        sys.stdout.flush()
        with os.fdopen(writer, "wb") as out:
            pickle.dump(answer, out)
        os._exit(0)


def _answer(process: int, reader: int) -> _Answer:
    with os.fdopen(reader, "rb") as source:
        data = source.read()
    os.waitpid(process, 0)
    answer = pickle.loads(data) if data else _Answer()
    assert isinstance(answer, _Answer)
    return answer
