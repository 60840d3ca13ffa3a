"""Blocks that do not talk to each other, on all cores.

Worker processes are forks. They see the global memory through shared copies, which replace the
original contents only when all of them are done: whatever goes wrong in a worker leaves no trace.
"""

from __future__ import annotations

import mmap
import os
import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from triton_ext.emulator.errors import EmulationError, MemoryFault
from triton_ext.emulator.machine import Machine
from triton_ext.emulator.program import Program

Index = tuple[int, int, int]

WORTH_FORKING = 20_000
"""Instructions; below, a fork costs more than it gains (about 10 ms)."""
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


def execute(machine: Machine, clusters: Sequence[list[Index]]) -> None:
    """Run a launch's clusters: the first one here, the rest in parallel if that is worth it.

    Raises:
        EmulationError: what the kernel does wrong.
    """
    workers = min(len(os.sched_getaffinity(0)), len(clusters) - 1)
    if (
        workers < 2
        or not hasattr(os, "fork")
        or machine.observer is not None
        or not independent(machine.launch.program)
    ):
        machine.run(clusters)
        return
    machine.run(clusters[:1])
    rest = clusters[1:]
    if machine.steps * len(rest) < WORTH_FORKING or not _fork(machine, rest, workers):
        machine.run(rest, first=1)


@dataclass
class _Answer:
    steps: int
    error: EmulationError | None
    unknown_memory: bool


def _fork(machine: Machine, clusters: Sequence[list[Index]], workers: int) -> bool:
    """Run clusters in forks; False if that cannot be done, with nothing changed."""
    memory = machine.launch.memory
    originals = memory.replace([_shared_copy(data) for data in memory.arrays])
    shares = [clusters[number::workers] for number in range(workers)]
    sys.stdout.flush()
    children = [_start(machine, share) for share in shares]
    answers = [_answer(*child) for child in children]
    copies = memory.replace(originals)
    if any(answer.unknown_memory for answer in answers):
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
    process = os.fork()
    if process:
        os.close(writer)
        return process, reader
    os.close(reader)
    before = machine.steps
    answer = _Answer(0, None, False)
    memory = machine.launch.memory
    try:
        memory.find = None  # what a worker finds by itself would not be shared
        machine.run(clusters)
        answer.steps = machine.steps - before
    except MemoryFault as error:
        answer = _Answer(0, error, memory.may_find)
    except EmulationError as error:
        answer = _Answer(0, error, False)
    finally:
        sys.stdout.flush()
        with os.fdopen(writer, "wb") as out:
            pickle.dump(answer, out)
        os._exit(0)


def _answer(process: int, reader: int) -> _Answer:
    with os.fdopen(reader, "rb") as source:
        data = source.read()
    os.waitpid(process, 0)
    if not data:
        return _Answer(0, None, True)  # it died: try again without forks, and see
    answer = pickle.loads(data)
    assert isinstance(answer, _Answer)
    return answer
