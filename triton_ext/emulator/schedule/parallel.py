"""Runs clusters that do not depend on each other on all cores.

Worker processes are forks. They see the global memory through shared copies, which replace the
original contents only when all of them are done: whatever goes wrong in a worker leaves no trace.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import pickle
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.program import Program
from triton_ext.emulator.errors import EmulationError, LimitReached, MemoryFault
from triton_ext.emulator.schedule.batches import in_lockstep
from triton_ext.emulator.schedule.machine import Machine
from triton_ext.emulator.schedule.observers import SILENT
from triton_ext.emulator.state.leniencies import Taken
from triton_ext.emulator.units.global_order import Kept

WORTH_FORKING = 0.05
"""Seconds of work below which forks cost more than they gain (10 to 20 ms with torch)."""
MOST_COPIED = 1 << 30
"""Bytes of global memory above which it is not copied for forks: copies would take longer, and the
host's memory, where a program has allocated much and uses little of it."""
_TALKING = ("atom", "red", "griddepcontrol", "clusterlaunchcontrol", "multimem", "ld.volatile",
            "ld.acquire", "ld.relaxed", "cp.reduce", "call")  # fmt: skip


def independent(program: Program, ignored: str = "-") -> bool:
    """Whether blocks of different clusters cannot see each other's work.

    Args:
        ignored: instructions that begin so count for nothing.

    They could through atomics, flags in global memory, or a queue of blocks; a kernel that has an
    instruction of that kind outside of shared memory is taken to do so.
    """
    return not any(
        step.instruction.opcode.startswith(_TALKING)
        and not step.instruction.opcode.startswith(ignored)
        and (".shared" not in step.instruction.opcode or ".global" in step.instruction.opcode)
        for step in program.steps
    )


def execute(machine: Machine) -> None:
    """Run a launch: its first cluster here, the rest in parallel if that is worth it. Raises
    EmulationError: what the kernel does wrong."""
    clusters = range(machine.launch.clusters)
    progress = _Progress(machine.program.kernel.name, len(clusters))
    machine.options.on_cluster = progress.advance
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 0
    workers = min(cores, len(clusters) - 1)
    try:
        size = sum(len(each.data) for each in machine.launch.memory.allocations)
        alone = workers < 1 or size > MOST_COPIED or machine.observer is not SILENT
        if alone or not independent(machine.program):
            machine.run()
            return
        blocks = in_lockstep(machine, -(-(len(clusters) - 1) // workers))
        suspects = _first_and_rest(machine, clusters, workers, progress, blocks)
        if suspects:
            order = [*suspects, *(each for each in clusters if each not in set(suspects))]
            progress.again()
            machine.begin()
            _first_and_rest(machine, order, workers, progress)
    finally:
        progress.close()


def _first_and_rest(
    machine: Machine, clusters: Sequence[int], workers: int, progress: _Progress, blocks: int = 1
) -> list[int]:
    """Run clusters: the first one here, the rest in parallel if that is worth it.

    Args:
        blocks: how many run in lock-step.

    Returns:
        Those of which some may do something wrong, which only a run block by block can tell.
        Nothing has run then. It is empty unless they run in lock-step.
    """
    memory = machine.launch.memory
    memory.replaced = [] if blocks > 1 else None
    began = time.perf_counter()
    machine.run(clusters[:1])
    rest = clusters[1:]
    worth = (time.perf_counter() - began) * len(rest) >= WORTH_FORKING
    machine.options.lockstep = blocks if worth else 1
    forked = None
    if worth and (workers > 1 or blocks > 1):
        forked = _fork(machine, rest, workers, progress)
    suspects = list(rest if forked is None and machine.options.lockstep > 1 else forked or ())
    if suspects:
        memory.put_back()
    elif forked is None:
        machine.run(rest)
    memory.replaced, machine.options.lockstep = None, 1
    return suspects


class _Progress:
    """Says on a terminal how far a launch is, if it takes long. Forks share the count."""

    def __init__(self, name: str, total: int) -> None:
        self._name, self._total = name, total
        self._shown = sys.stderr is not None and sys.stderr.isatty() and total > 1
        self._began = self._last = time.monotonic()
        self._done = np.frombuffer(mmap.mmap(-1, 8), np.int64)
        self.advances: NDArray[np.int64] = self._done  # of this process

    def advance(self) -> None:
        """Another cluster is done; a fork only counts it."""
        self.advances[0] += 1
        if self.advances is self._done:
            self.show(int(self._done[0]))

    def again(self) -> None:
        """All begins again."""
        self._done[0] = 0

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
    """What became of a worker; if it is not complete, the work is to be done without forks.

    Attributes:
        suspects: the clusters that ran in lock-step as something went wrong.
    """

    complete: bool = False
    steps: int = 0
    error: EmulationError | None = None
    order: list[Kept] = field(default_factory=list)
    taken: dict[str, Taken] = field(default_factory=dict)
    suspects: list[int] = field(default_factory=list)


def _fork(
    machine: Machine, clusters: Sequence[int], workers: int, progress: _Progress
) -> list[int] | None:
    """Run clusters in forks, the first of which that finds a fault ends the others.

    Returns:
        An empty list; or, with nothing changed in memory, None if they cannot run in forks, and
        those that ran in lock-step as something went wrong.
    """
    finished = np.frombuffer(mmap.mmap(-1, 8 * workers), np.int64)
    children: dict[int, int] = {}
    answers: list[_Answer] = []
    print(end="", flush=True)
    with _shared(machine) as write_back, _reaped(children):
        for number in range(workers):
            progress.advances = finished[number : number + 1]
            process, reader = _start(machine, clusters[number::workers])
            children[reader] = process
        progress.here()
        while children and all(each.complete and each.error is None for each in answers):
            for reader in select.select(list(children), [], [], 0.5)[0]:
                answers.append(_answer(reader))
                _end(children, reader)
            progress.show(1 + int(finished.sum()))
        complete = all(answer.complete for answer in answers)
        if complete:
            write_back()
    suspects = [number for answer in answers for number in answer.suspects]
    if not complete:
        return suspects or None
    machine.steps += sum(answer.steps for answer in answers)
    for answer in answers:
        machine.taken = answer.taken | machine.taken
    for answer in answers:
        if answer.error is not None:
            raise answer.error
    if machine.global_order is not None:
        machine.global_order.join(
            [answer.order for answer in answers], machine.launch.memory.allocations
        )
    return []


@contextlib.contextmanager
def _shared(machine: Machine) -> Iterator[Callable[[], None]]:
    """Global memory in copies that forks share, but for what is read-only; yields what puts the
    copies' contents back."""
    originals = [each for each in machine.launch.memory.allocations if each.writable]
    kept = [each.data for each in originals]
    for each in originals:
        copy = np.frombuffer(mmap.mmap(-1, len(each.data)), np.uint8)
        copy[:] = each.data
        each.data = copy
    if machine.global_order is not None:
        machine.global_order.share(originals)

    def write_back() -> None:
        for each, data in zip(originals, kept, strict=True):
            data[:] = each.data

    try:
        yield write_back
    finally:
        for each, data in zip(originals, kept, strict=True):
            each.data = data


@contextlib.contextmanager
def _reaped(children: dict[int, int]) -> Iterator[None]:
    """Whatever happens, no child is left: those that still run are killed."""
    try:
        yield
    finally:
        for reader, process in list(children.items()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            _end(children, reader)


def _end(children: dict[int, int], reader: int) -> None:
    """Wait for a child that has answered, or was killed."""
    with contextlib.suppress(ChildProcessError):  # a handler of the program was faster
        os.waitpid(children[reader], 0)
    del children[reader]
    os.close(reader)


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def _start(machine: Machine, clusters: Sequence[int]) -> tuple[int, int]:
    """Fork a worker; its process and the pipe on which it answers."""
    reader, writer = os.pipe()
    parent = os.getpid()
    with warnings.catch_warnings():
        # Python 3.12 warns in a process with threads, such as torch's: a fork must not wait for
        # one of them. This one calls numpy alone, and leaves by os._exit.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process:
        os.close(writer)
        return process, reader
    try:
        # It dies with its parent, and leaves the terminal's Ctrl-C to that.
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getppid() == parent:
            gc.freeze()  # a collection would copy all that the two have in common
            os.close(reader)
            _work(machine, clusters, writer)
    finally:
        os._exit(0)


def _work(machine: Machine, clusters: Sequence[int], writer: int) -> None:
    """What a worker does: run clusters, and answer."""
    before = machine.steps
    answer = _Answer()
    memory = machine.launch.memory
    may_find, memory.find = memory.find is not None, None  # what it finds would not be shared
    order = machine.global_order
    if order is not None:
        order.forked()
    try:
        machine.run(clusters)
        kept = [] if order is None else order.answer()
        answer = _Answer(True, machine.steps - before, order=kept, taken=machine.taken)
    except EmulationError as error:
        unknown = isinstance(error, MemoryFault) and may_find
        answer = _Answer(not unknown, machine.steps - before, error, taken=machine.taken)
        if machine.options.lockstep > 1 and not isinstance(error, LimitReached):
            answer = _Answer(suspects=machine.residents.numbers)
    finally:
        print(end="", flush=True)
        with os.fdopen(writer, "wb") as out:
            out.write(pickle.dumps(answer))  # all of it, or nothing


def _answer(reader: int) -> _Answer:
    with os.fdopen(reader, "rb", closefd=False) as source:
        data = source.read()
    answer = pickle.loads(data) if data else _Answer()
    assert isinstance(answer, _Answer)
    return answer
