"""Branches and ends (PTX ISA, "Control Flow Instructions")."""

from __future__ import annotations

import numpy as np

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.evidence import COMPILED
from triton_ext.emulator.decode.operands import Operands
from triton_ext.emulator.decode.step import Jump, Outcome, Run
from triton_ext.emulator.errors import EmulationError, UnsupportedInstruction
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.ptx.parse import Instruction


def _target(label: str, at: Instruction, operands: Operands) -> int:
    target = operands.kernel.target(label, at.scope)
    if target is None:
        raise UnsupportedInstruction(f"there is no label {label!r}", at)
    return target


@instruction("bra", in_flight=True, evidence=COMPILED, lockstep=True)
def branch(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    modifiers.flag("uni")
    (label,) = at.operands
    jump = Jump(_target(label, at, operands))
    return lambda cta, lanes: jump


@instruction("brx.idx", in_flight=True, evidence=COMPILED, lockstep=True)
def indexed_branch(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    modifiers.flag("uni")
    index, name = at.operands
    read = operands.reader(index, "u32", at)
    targets = np.array(
        [_target(label, at, operands) for label in operands.kernel.branch_targets[name]]
    )

    def run(cta: Cta, lanes: Lanes) -> Outcome:
        chosen = np.broadcast_to(read(cta, lanes), lane_sets.count(lanes))
        if (chosen >= len(targets)).any():
            raise EmulationError(f"brx.idx: index {chosen.max()} of {len(targets)} targets")
        return Jump(targets[chosen])

    return run


@instruction("ret exit", evidence=COMPILED, lockstep=True)
def leave(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    modifiers.flag("uni")
    end = Jump(-1)
    return lambda cta, lanes: end


@instruction("trap", evidence=COMPILED, lockstep=True)
def trap(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    def run(cta: Cta, lanes: Lanes) -> Outcome:
        raise EmulationError("the kernel executed a trap")

    return run
