"""Instructions that change no result: hints, waits that need not wait, and limits.

``setmaxnreg`` is checked; ``griddepcontrol`` finds the grids that it waits for done.
"""

from __future__ import annotations

import numpy as np

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.evidence import NO_EFFECT
from triton_ext.emulator.decode.operands import Operands
from triton_ext.emulator.decode.step import Outcome, Run
from triton_ext.emulator.errors import EmulationError, UnsupportedInstruction
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.ptx.parse import Instruction, immediate

_LEVELS = ("L1", "L2", "L1::evict_normal", "L2::evict_last", "L2::evict_normal")
_SPACES = ("global", "local", "param", "const")
REGISTER_RANGE = range(24, 257, 8)
"""PTX ISA, "setmaxnreg": 24 to 256, in steps of 8."""


def _nothing(cta: Cta, lanes: Lanes) -> None:
    return None


@instruction("prefetch prefetchu applypriority discard", evidence=NO_EFFECT, lockstep=True)
def cache_hint(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """Caches are not modelled. (A discarded line may hold anything: also what it held.)"""
    modifiers.one_of(_SPACES)
    if not modifiers.one_of(_LEVELS):
        raise UnsupportedInstruction("the cache level is not known", at)
    operands.address(at.operands[0], at)
    return _nothing


@instruction(
    "createpolicy.fractional createpolicy.range createpolicy.cvt", evidence=NO_EFFECT, lockstep=True
)
def cache_policy(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """A cache policy: an opaque value, of use for hints alone."""
    while modifiers.starting("L2::"):
        pass
    modifiers.flag("global")
    modifiers.flag("L2")
    modifiers.type()
    write = operands.writer(at.operands[0], "b64", at)
    return lambda cta, lanes: write(cta, lanes, np.uint64(0))


@instruction("griddepcontrol.launch_dependents griddepcontrol.wait", evidence=NO_EFFECT)
def grid_dependency(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """Launches are run one after the other: what a grid depends on is complete and visible."""
    return _nothing


@instruction("setmaxnreg.inc.sync setmaxnreg.dec.sync", convergent=True, evidence=NO_EFFECT)
def maximum_registers(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """Registers are not scarce here: only the legal range is checked.

    PTX asks all warps of a warpgroup to execute the same one; Triton gives warps of different
    partitions copies of it, and that works.
    """
    modifiers.flag("aligned")
    modifiers.flag("u32")
    number = immediate(at.operands[0])
    if number is None or number not in REGISTER_RANGE:
        raise UnsupportedInstruction(
            f"the register count must be a constant from {REGISTER_RANGE.start} to"
            f" {REGISTER_RANGE[-1]}, a multiple of {REGISTER_RANGE.step}",
            at,
        )
    return _nothing


@instruction("pmevent", evidence=NO_EFFECT, lockstep=True)
def performance_event(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    modifiers.flag("mask")
    return _nothing


@instruction("brkpt", evidence=NO_EFFECT, lockstep=True)
def breakpoint_(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    def run(cta: Cta, lanes: Lanes) -> Outcome:
        raise EmulationError("the kernel reached a breakpoint")

    return run


@instruction("nanosleep", evidence=NO_EFFECT, lockstep=True)
def sleep(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """For no time at all, which PTX allows: a loop lets the other threads run anyway."""
    modifiers.type()
    operands.reader(at.operands[0], "u32", at)
    return _nothing
