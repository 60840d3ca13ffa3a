"""Opcodes that exist for integers and for floats: their type says which module decodes them."""

from __future__ import annotations

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.operands import Operands
from triton_ext.emulator.decode.step import Run
from triton_ext.emulator.instructions import floating, integer
from triton_ext.emulator.instructions.common import is_float
from triton_ext.ptx.parse import Instruction

_BOTH = {
    "add": (integer.add_sub, floating.binary),
    "sub": (integer.add_sub, floating.binary),
    "mul": (integer.multiply, floating.binary),
    "mad": (integer.multiply_add, floating.multiply_add),
    "div": (integer.divide, floating.divide),
    "abs": (integer.absolute, floating.absolute),
    "neg": (integer.negate, floating.negate),
    "min": (integer.extremum, floating.extremum),
    "max": (integer.extremum, floating.extremum),
}


@instruction(*_BOTH)
def arithmetic(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    of_integers, of_floats = _BOTH[at.opcode.split(".")[0]]
    return (of_floats if is_float(at) else of_integers)(at, modifiers, operands)
