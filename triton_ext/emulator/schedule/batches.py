"""Which launches run several blocks in lock-step, and how many: see `state.lockstep`.

An instruction takes the emulator about as long for the lanes of one warp as for a thousand. Blocks
that cannot see each other's work, of a kernel whose instructions all may be executed for several
blocks at once, run as one. A fault is not told of from there: the launch then begins again, block
by block.
"""

from __future__ import annotations

import math

from triton_ext.emulator.schedule.machine import Machine
from triton_ext.emulator.units.memory_order import STRONG
from triton_ext.hardware.architecture import WARP_THREADS

LANES = 2048
"""Threads that run in lock-step at most: with more, an instruction takes as much longer."""
_BYTES = 1 << 26
"""Registers, local and shared memory of blocks that run in lock-step, at most."""


def in_lockstep(machine: Machine, blocks: int) -> int:
    """How many of so many blocks run in lock-step; 1: none do."""
    launch, schedule = machine.launch, machine.schedule
    threads, storage = launch.threads, launch.storage
    apart = schedule.name == "random" or schedule.held is not None or threads % WARP_THREADS
    if apart or math.prod(launch.cluster) > 1:
        return 1
    for step in machine.program.steps:
        opcode, operands = step.instruction.opcode, step.instruction.operands
        counted = opcode.startswith("bar") and "warp" not in opcode and len(operands) > 1
        if not step.lockstep or counted or not set(STRONG).isdisjoint(opcode.split(".")):
            return 1
    registers = sum(max(8, width) // 8 * number for width, number in storage.counts.items())
    size = threads * (registers + storage.local_bytes) + launch.shared_bytes
    return max(1, min(blocks, LANES // threads, _BYTES // max(1, size)))
