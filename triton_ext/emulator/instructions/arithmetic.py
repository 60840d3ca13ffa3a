"""Integer arithmetic, logic and comparison (PTX ISA, "Integer Arithmetic Instructions" ...)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from triton_ext.emulator.cta import Cta
from triton_ext.emulator.lanes import Lanes
from triton_ext.emulator.operands import Operands
from triton_ext.emulator.program import Modifiers, Run, instruction
from triton_ext.ptx import Instruction


def _elementwise(
    at: Instruction, operands: Operands, type_name: str, function: Callable[..., Any]
) -> Run:
    """Destination first, sources after it, all of one type."""
    write = operands.writer(at.operands[0], type_name, at)
    readers = [operands.reader(source, type_name, at) for source in at.operands[1:]]

    def run(cta: Cta, lanes: Lanes) -> None:
        write(cta, lanes, function(*(read(cta, lanes) for read in readers)))

    return run


_LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert}


@instruction(*_LOGIC)
def logic(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    function = _LOGIC[at.opcode.split(".")[0]]
    return _elementwise(at, operands, modifiers.type(), function)
