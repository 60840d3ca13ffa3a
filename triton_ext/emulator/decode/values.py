"""Values of operands of every type: packed ones, bf16, and vectors of registers.

A packed type's elements lie side by side. bf16 is read and written as its bits: numpy has no
arithmetic on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.operands import Operands, Reader, Writer
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.types import DTYPES
from triton_ext.ptx.parse import Instruction

Array = NDArray[Any]

PACKED = {
    "f16x2": ("b32", "f16"),
    "bf16x2": ("b32", "bf16"),
    "f32x2": ("b64", "f32"),
    "u16x2": ("b32", "u16"),
    "s16x2": ("b32", "s16"),
}
"""Packed types: the register that holds them, and the type of an element."""


def element(type_name: str) -> str:
    """The type of an element: ``f16x2`` -> ``f16``."""
    return PACKED[type_name][1] if type_name in PACKED else type_name


def dtype_of(type_name: str) -> np.dtype[Any]:
    """numpy's type of the elements as they are read; those of b128 are its two halves."""
    return DTYPES[{"bf16": "b16", "b128": "b64"}.get(element(type_name), element(type_name))]


def reader(text: str, type_name: str, at: Instruction, operands: Operands) -> Reader:
    """Reads an operand of a scalar or packed type: (lanes * elements,), or one for all lanes."""
    if type_name == "bf16":
        if operands.find(text, at.scope) is not None:
            return operands.reader(text, "b16", at)
        constant = operands.reader(text, "bf16", at)
        return lambda cta, lanes: constant(cta, lanes).view(np.uint16)
    if type_name not in PACKED:
        return operands.reader(text, type_name, at)
    read, dtype = operands.reader(text, PACKED[type_name][0], at), dtype_of(type_name)

    def elements(cta: Cta, lanes: Lanes) -> Array:
        value = read(cta, lanes)
        if value.ndim == 0:
            value = np.full(lane_sets.count(lanes), value)
        return value.view(dtype)

    return elements


def writer(text: str, type_name: str, at: Instruction, operands: Operands) -> Writer:
    """Writes what `reader` reads."""
    if type_name not in PACKED:
        return operands.writer(text, "b16" if type_name == "bf16" else type_name, at)
    register, _ = PACKED[type_name]
    write, dtype = operands.writer(text, register, at), DTYPES[register]
    return lambda cta, lanes, value: write(cta, lanes, np.ascontiguousarray(value).view(dtype))


def vector_reader(
    texts: Sequence[str], type_name: str, at: Instruction, operands: Operands
) -> Reader:
    """Reads several operands of a type, or one of b128: (lanes, elements)."""
    if type_name == "b128":
        (text,) = texts
        return operands.reader(text, "b128", at)
    register, dtype = PACKED.get(type_name, (type_name, ""))[0], dtype_of(type_name)
    reads = [reader(text, register, at, operands) for text in texts]
    whole, scalar = dtype_of(register), register == type_name

    def values(cta: Cta, lanes: Lanes) -> Array:
        result = np.empty((lane_sets.count(lanes), len(reads)), whole)
        for position, read in enumerate(reads):
            result[:, position] = read(cta, lanes)
        return result if scalar else result.view(dtype)

    return values


def vector_writer(
    texts: Sequence[str], type_name: str, at: Instruction, operands: Operands
) -> Writer:
    """Writes what `vector_reader` reads."""
    if type_name == "b128":
        (text,) = texts
        return operands.writer(text, "b128", at)
    register = PACKED.get(type_name, (type_name, ""))[0]
    writes = [writer(text, register, at, operands) for text in texts]
    whole, packed = dtype_of(register), register != type_name

    def write_all(cta: Cta, lanes: Lanes, values: Any) -> None:
        if packed:
            values = values.view(whole)
        for position, write in enumerate(writes):
            write(cta, lanes, values[:, position])

    return write_all
