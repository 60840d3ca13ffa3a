"""Logic and shifts (PTX ISA 9.7.8, and "prmt" of 9.7.9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from triton_ext.emulator.decode.evidence import SILICON
from triton_ext.emulator.instructions.elementwise import Array, Function, Row, Variant

# ---------------------------------------------------------------------------- shifts


def _shift(form: Variant) -> Function:
    """Counts are clamped to the width: all bits go, or all become the sign."""
    dtype, bits = form.dtype, form.bits
    move: Function = np.left_shift if form.opcode == "shl" else np.right_shift
    constant = form.constants[1]
    if constant is not None and 0 <= constant < bits:
        by = dtype.type(constant)
        return lambda value, count: move(value, by)
    last = np.uint32(bits - 1)

    def function(value: Array, count: Array) -> Array:
        shifted = move(value, np.minimum(count, last).astype(dtype))
        if form.opcode == "shr" and dtype.kind == "i":
            return np.asarray(shifted)
        return np.where(count > last, dtype.type(0), shifted)

    return function


def _funnel_shift(form: Variant) -> Function:
    """``shf``: the upper (left) or lower (right) 32 bits of ``{b, a}``, shifted."""
    word, left = np.uint64(32), "l" in form

    def function(low: Array, high: Array, count: Array) -> Array:
        amount = np.minimum(count, np.uint32(32)) if "clamp" in form else count & np.uint32(31)
        both = high.astype(np.uint64) << word | low.astype(np.uint64)
        wide = amount.astype(np.uint64)
        return ((both << wide) >> word if left else both >> wide).astype(np.uint32)

    return function


# ------------------------------------------------------------- any function of three bits


_OF_TWO: tuple[Callable[[Array, Array], Any], ...] = (
    lambda b, c: np.uint32(0),
    lambda b, c: ~(b | c),
    lambda b, c: ~b & c,
    lambda b, c: ~b,
    lambda b, c: b & ~c,
    lambda b, c: ~c,
    lambda b, c: b ^ c,
    lambda b, c: ~(b & c),
    lambda b, c: b & c,
    lambda b, c: ~(b ^ c),
    lambda b, c: c,
    lambda b, c: ~b | c,
    lambda b, c: b,
    lambda b, c: b | ~c,
    lambda b, c: b | c,
    lambda b, c: np.uint32(0xFFFFFFFF),
)
"""The functions of two bits; bit 2 * b + c of the number is the result."""


def _of_three(table: int) -> Callable[[Array, Array, Array], Array]:
    """The function of three bits with that table: by what it is of b and c where a is 1, and 0."""
    with_a, without = table >> 4, table & 15
    one, zero = _OF_TWO[with_a], _OF_TWO[without]
    if with_a == without:
        return lambda a, b, c: np.asarray(one(b, c))
    if with_a == without ^ 15:
        return lambda a, b, c: np.asarray(a ^ zero(b, c))
    if without == 0:
        return lambda a, b, c: np.asarray(a & one(b, c))
    if with_a == 15:
        return lambda a, b, c: np.asarray(a | zero(b, c))
    if with_a == 0:
        return lambda a, b, c: np.asarray(~a & zero(b, c))
    if without == 15:
        return lambda a, b, c: np.asarray(~a | one(b, c))
    return lambda a, b, c: np.asarray((a & one(b, c)) | (~a & zero(b, c)))


def _lookup(form: Variant) -> Function:
    """``lop3``: any function of three bits, as a table of 8; or its test against zero, too."""
    number = form.constants[3]
    if number is None:
        raise ValueError("the table must be a constant")
    function = _of_three(number & 0xFF)
    if not form.one_of(("and", "or")):
        return lambda a, b, c, _: function(a, b, c)
    join = np.logical_or if "or" in form else np.logical_and

    def combined(a: Array, b: Array, c: Array, _: Array, other: Array) -> tuple[Array, Array]:
        value = function(a, b, c)
        return value, join(value != 0, other)

    return combined


# ------------------------------------------------------------------------ bytes


_PRMT_MODES: dict[str, Callable[[int], list[int]]] = {
    "f4e": lambda i: [i, i + 1, i + 2, i + 3],
    "b4e": lambda i: [i, i - 1, i - 2, i - 3],
    "rc8": lambda i: [i, i, i, i],
    "ecl": lambda i: [max(i, position) for position in range(4)],
    "ecr": lambda i: [min(i, position) for position in range(4)],
    "rc16": lambda i: [i % 2 * 2, i % 2 * 2 + 1] * 2,
}


def _permute(form: Variant) -> Function:
    """``prmt``: four of the eight bytes of ``{b, a}``; bit 3 of a selector takes its sign."""
    mode, selector = form.one_of(_PRMT_MODES), form.constants[2]
    if selector is not None and not mode:
        return lambda low, high, _: _fixed_bytes(low, high, selector)
    byte, sign, eight = np.uint64(0xFF), np.uint32(0x80), np.uint64(8)
    rows = [_PRMT_MODES[mode](i) for i in range(4)] if mode else []
    table = np.array(
        [sum((each & 7) << 4 * nibble for nibble, each in enumerate(row)) for row in rows],
        np.uint32,
    )

    def function(low: Array, high: Array, selectors: Array) -> Array:
        both = high.astype(np.uint64) << np.uint64(32) | low.astype(np.uint64)
        if mode:
            selectors = table[selectors & np.uint32(3)]
        result: Any = np.uint32(0)
        for position in range(4):
            nibble = selectors >> np.uint32(4 * position)
            value = both >> (nibble & np.uint32(7)).astype(np.uint64) * eight & byte
            value = value.astype(np.uint32)
            replicated = np.where(value & sign, np.uint32(0xFF), np.uint32(0))
            value = np.where(nibble & np.uint32(8), replicated, value)
            result = result | value << np.uint32(8 * position)
        return np.asarray(result)

    return function


def _fixed_bytes(low: Array, high: Array, selector: int) -> Array:
    """``prmt`` with a constant selector, as almost always."""
    number = max(np.size(low), np.size(high))
    wide = [each if each.size == number else np.full(number, each) for each in (low, high)]
    halves = selector & 0xFF, selector >> 8 & 0xFF
    if all(half in (0x10, 0x32, 0x54, 0x76) for half in halves):
        pairs = np.empty((number, 2), np.uint16)
        for position, half in enumerate(halves):
            first = half & 15
            source = np.ascontiguousarray(wide[first >> 2]).view(np.uint16).reshape(number, 2)
            pairs[:, position] = source[:, first >> 1 & 1]
        joined: Array = pairs.view(np.uint32)[:, 0]
        return joined
    sources = [np.ascontiguousarray(each).view(np.uint8).reshape(number, 4) for each in wide]
    result = np.empty((number, 4), np.uint8)
    for position in range(4):
        nibble = selector >> 4 * position & 15
        byte = sources[nibble >> 2 & 1][:, nibble & 3]
        result[:, position] = byte if nibble < 8 else byte.view(np.int8) >> np.int8(7)
    whole: Array = result.view(np.uint32)[:, 0]
    return whole


_BITS = "b16 b32 b64"
_NUMBERS = "u16 u32 u64 s16 s32 s64"

ROWS = (
    # PTX ISA 9.7.8, "Logic and Shift Instructions"
    Row(SILICON, "and", "", f"pred {_BITS}", "t = t, t", np.bitwise_and),
    Row(SILICON, "or", "", f"pred {_BITS}", "t = t, t", np.bitwise_or),
    Row(SILICON, "xor", "", f"pred {_BITS}", "t = t, t", np.bitwise_xor),
    Row(SILICON, "not", "", f"pred {_BITS}", "t = t", np.invert),
    Row(SILICON, "cnot", "", _BITS, "t = t", lambda a: (a == 0).astype(a.dtype)),
    Row(SILICON, "lop3", "", "b32", "t = t, t, t, u32", make=_lookup),
    Row(SILICON, "lop3", "and|or", "b32", "t|pred = t, t, t, u32, pred", make=_lookup),
    Row(SILICON, "shf", "l|r clamp|wrap", "b32", "t = t, t, u32", make=_funnel_shift),
    Row(SILICON, "shl", "", _BITS, "t = t, u32", make=_shift),
    Row(SILICON, "shr", "", f"{_BITS} {_NUMBERS}", "t = t, u32", make=_shift),
    # PTX ISA 9.7.9, "Data Movement and Conversion Instructions"
    Row(SILICON, "prmt", "f4e|b4e|rc8|ecl|ecr|rc16?", "b32", "t = t, t, t", make=_permute),
)  # fmt: skip
