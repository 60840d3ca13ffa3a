"""Comparisons (PTX ISA, "Comparison and Selection Instructions")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.operands import Operands
from triton_ext.emulator.decode.step import Run
from triton_ext.emulator.errors import UnsupportedInstruction
from triton_ext.emulator.instructions.common import (
    PACKED,
    data_type,
    element,
    reader,
    writer,
)
from triton_ext.emulator.instructions.floating import flush, is_nan, widen
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.types import DTYPES, bits_of
from triton_ext.ptx.parse import Instruction

Array = NDArray[Any]
Compare = Callable[[Any, Any], Any]

_ORDERED: dict[str, Compare] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_UNORDERED = {f"{name}u": name for name in _ORDERED}
_NAMES = (*_ORDERED, *_UNSIGNED, *_UNORDERED, "num", "nan")
_JOINS: dict[str, Compare] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


def _float_comparison(name: str, kind: str) -> Compare:
    if name in ("num", "nan"):

        def unordered(a: Any, b: Any) -> Any:
            found = is_nan(a, kind) | is_nan(b, kind)
            return found if name == "nan" else ~found

        return unordered
    accept_nan = name in _UNORDERED
    compare = _ORDERED[_UNORDERED.get(name, name)]

    def ordered(a: Any, b: Any) -> Any:
        if kind == "bf16":
            a, b = widen(a, kind), widen(b, kind)
        result = compare(a, b)
        if name == "neu":
            return result  # numpy's != holds for NaN
        if accept_nan:
            return result | is_nan(a, "f64") | is_nan(b, "f64")
        if name == "ne":
            return result & ~is_nan(a, "f64") & ~is_nan(b, "f64")
        return result

    return ordered


def _comparison(at: Instruction, modifiers: Modifiers) -> tuple[str, bool, str]:
    """The comparison's name, whether it flushes, and the boolean operator, if any."""
    name = modifiers.one_of(_NAMES)
    if not name:
        raise UnsupportedInstruction("the comparison is missing", at)
    join = modifiers.one_of(_JOINS)
    ftz = modifiers.flag("ftz")
    return name, ftz, join


def _function(name: str, type_name: str, ftz: bool, at: Instruction) -> Compare:
    kind = element(type_name)
    if kind not in ("f16", "bf16", "f32", "f64"):
        found = _ORDERED.get(_UNSIGNED.get(name, name))
        if found is None:
            raise UnsupportedInstruction(f".{name} does not go with .{type_name}", at)
        return found
    compare = _float_comparison(name, kind)
    if not ftz:
        return compare
    return lambda a, b: compare(flush(a, kind), flush(b, kind))


@instruction("setp")
def set_predicate(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``setp``: p = compare [op c], and q = !compare [op c]; packed: p and q are the halves'."""
    name, ftz, join = _comparison(at, modifiers)
    type_name = data_type(at, modifiers)
    compare = _function(name, type_name, ftz, at)
    first, _, second = (part.strip() for part in at.operands[0].partition("|"))
    read_a, read_b = (reader(text, type_name, at, operands) for text in at.operands[1:3])
    write = operands.writer(first, "pred", at)
    write_other = operands.writer(second, "pred", at) if second else None
    if bool(join) != (len(at.operands) == 4):
        raise UnsupportedInstruction("a boolean operator goes with a third source", at)
    combine = _JOINS.get(join)
    read_c = operands.reader(at.operands[3], "pred", at) if join else None
    packed = type_name in PACKED

    def run(cta: Cta, lanes: Lanes) -> None:
        result = compare(read_a(cta, lanes), read_b(cta, lanes))
        if packed:
            pairs = np.asarray(result).reshape(-1, 2)
            result, other = pairs[:, 0], pairs[:, 1]
        else:
            other = np.logical_not(result)
        if combine is not None and read_c is not None:
            third = read_c(cta, lanes)
            result, other = combine(result, third), combine(other, third)
        write(cta, lanes, result)
        if write_other is not None:
            write_other(cta, lanes, other)

    return run


@instruction("set")
def set_value(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``set``: all ones, or 1.0 of a float type, where the comparison holds; else 0."""
    name, ftz, join = _comparison(at, modifiers)
    to, type_name = data_type(at, modifiers), data_type(at, modifiers)
    compare = _function(name, type_name, ftz, at)
    read_a, read_b = (reader(text, type_name, at, operands) for text in at.operands[1:3])
    write = writer(at.operands[0], to, at, operands)
    combine = _JOINS.get(join)
    read_c = operands.reader(at.operands[3], "pred", at) if join else None
    kind = element(to)
    yes: Any
    if kind == "bf16":
        yes = np.uint16(0x3F80)
    elif kind in ("f16", "f32", "f64"):
        yes = DTYPES[kind].type(1.0)
    else:
        yes = np.asarray((1 << bits_of(kind)) - 1, f"u{bits_of(kind) // 8}").view(DTYPES[kind])[()]
    if element(type_name) != type_name and to not in PACKED:  # a mask for each half
        yes = np.uint16(0xFFFF)
        write_bits = operands.writer(at.operands[0], "b32", at)

        def write(cta: Cta, lanes: Lanes, value: Any) -> None:
            write_bits(cta, lanes, np.ascontiguousarray(value).view(np.uint32))

    def run(cta: Cta, lanes: Lanes) -> None:
        result = compare(read_a(cta, lanes), read_b(cta, lanes))
        if combine is not None and read_c is not None:
            third = read_c(cta, lanes)
            if type_name in PACKED:
                third = np.repeat(third, 2)
            result = combine(result, third)
        write(cta, lanes, np.where(result, yes, yes.dtype.type(0)))

    return run
