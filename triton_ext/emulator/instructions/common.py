"""What the decoders of elementwise instructions share: operands of packed types, and results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.decoder import Modifiers
from triton_ext.emulator.decode.operands import Operands, Reader, Writer
from triton_ext.emulator.decode.step import Run
from triton_ext.emulator.errors import UnsupportedInstruction
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

FLOATS = ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2", "f32x2", "tf32")


def element(type_name: str) -> str:
    """The type of an element: ``f16x2`` -> ``f16``."""
    return PACKED[type_name][1] if type_name in PACKED else type_name


def data_type(at: Instruction, modifiers: Modifiers) -> str:
    """Take the next scalar or packed type."""
    found = modifiers.one_of((*DTYPES, *PACKED))
    if not found:
        raise UnsupportedInstruction("the opcode has no type that is known", at)
    return found


def is_float(at: Instruction) -> bool:
    """Whether the opcode computes on floating-point numbers."""
    return any(part in FLOATS for part in at.opcode.split("."))


def _raw(type_name: str) -> str:
    """bf16 is read and written as its bits: numpy has no arithmetic on it."""
    return "b16" if type_name == "bf16" else type_name


def reader(text: str, type_name: str, at: Instruction, operands: Operands) -> Reader:
    """Reads an operand of a scalar or packed type; the elements of a packed one side by side.

    bf16 comes as its bits.
    """
    if type_name not in PACKED:
        if type_name == "bf16":
            return _bf16_reader(text, at, operands)
        return operands.reader(text, type_name, at)
    register, each = PACKED[type_name]
    read = operands.reader(text, register, at)
    dtype = DTYPES[_raw(each)]

    def elements(cta: Cta, lanes: Lanes) -> Array:
        value = read(cta, lanes)
        if value.ndim == 0:
            value = np.full(lane_sets.count(lanes), value)
        return value.view(dtype)

    return elements


def _bf16_reader(text: str, at: Instruction, operands: Operands) -> Reader:
    if operands.find(text, at.scope) is not None:
        return operands.reader(text, "b16", at)
    read = operands.reader(text, "bf16", at)  # a constant
    return lambda cta, lanes: read(cta, lanes).view(np.uint16)


def writer(text: str, type_name: str, at: Instruction, operands: Operands) -> Writer:
    """Writes what `reader` reads."""
    if type_name not in PACKED:
        return operands.writer(text, _raw(type_name), at)
    register, _ = PACKED[type_name]
    write = operands.writer(text, register, at)
    dtype = DTYPES[register]

    def elements(cta: Cta, lanes: Lanes, value: Any) -> None:
        write(cta, lanes, np.ascontiguousarray(value).view(dtype))

    return elements


def elementwise(
    at: Instruction,
    operands: Operands,
    to: str,
    sources: Sequence[str],
    function: Callable[..., Any],
) -> Run:
    """The destination first, of type `to`; then as many sources as there are types in `sources`.

    Raises:
        UnsupportedInstruction: another number of operands.
    """
    if len(at.operands) != 1 + len(sources):
        raise UnsupportedInstruction(f"{1 + len(sources)} operands are expected", at)
    write = writer(at.operands[0], to, at, operands)
    reads = [
        reader(text, each, at, operands)
        for text, each in zip(at.operands[1:], sources, strict=True)
    ]
    if len(reads) == 1:
        (one,) = reads
        return lambda cta, lanes: write(cta, lanes, function(one(cta, lanes)))
    if len(reads) == 2:
        first, second = reads
        return lambda cta, lanes: write(cta, lanes, function(first(cta, lanes), second(cta, lanes)))

    def run(cta: Cta, lanes: Lanes) -> None:
        write(cta, lanes, function(*(read(cta, lanes) for read in reads)))

    return run
