"""Integer arithmetic and bit fields (PTX ISA 9.7.1, 9.7.2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from triton_ext.emulator.decode.evidence import DOCUMENT, SILICON
from triton_ext.emulator.instructions.elementwise import Array, Function, Row, Variant


def _clamp(value: Array, dtype: np.dtype[Any]) -> Array:
    """Wide signed values, saturated to a type."""
    info = np.iinfo(dtype)
    return np.clip(value, info.min, info.max).astype(dtype)


def _saturated_sum(form: Variant) -> Function:
    plain: Function = np.subtract if form.opcode == "sub" else np.add
    return lambda a, b: _clamp(plain(a.astype(np.int64), b.astype(np.int64)), form.dtype)


# --------------------------------------------------------------------------- products


def _high_product(a: Array, b: Array) -> Array:
    """The upper half of the product of two arrays of one type."""
    bits = a.dtype.itemsize * 8
    if bits < 64:
        wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
        product = a.astype(wide) * b.astype(wide)
        return np.asarray((product >> wide.type(bits)).astype(a.dtype))
    word, low_half = np.uint64(32), np.uint64(0xFFFFFFFF)
    left, right = a.astype(np.uint64), b.astype(np.uint64)
    left_high, left_low = left >> word, left & low_half
    right_high, right_low = right >> word, right & low_half
    middle = left_high * right_low + (left_low * right_low >> word)
    cross = left_low * right_high + (middle & low_half)
    high = left_high * right_high + (middle >> word) + (cross >> word)
    if a.dtype.kind == "i":
        high = high - np.where(a < 0, right, np.uint64(0)) - np.where(b < 0, left, np.uint64(0))
    return np.asarray(high.astype(a.dtype))


def _product(form: Variant) -> Function:
    if "wide" in form:
        wide = np.dtype(f"{form.dtype.kind}{2 * form.dtype.itemsize}")
        return lambda a, b: a.astype(wide) * b.astype(wide)
    return _high_product if "hi" in form else np.multiply


def _low_product(form: Variant) -> Function:
    """``mul24``: bits 0 to 31 (lo) or 16 to 47 (hi) of the product of the low 24 bits."""
    dtype, up, down = form.dtype, np.int64(40), np.int64(16 if "hi" in form else 0)

    def low24(value: Array) -> Array:
        if dtype.kind == "i":
            return value.astype(np.int64) << up >> up
        return value.astype(np.int64) & 0xFFFFFF

    return lambda a, b: (low24(a) * low24(b) >> down).astype(dtype)


def _multiply_add(form: Variant) -> Function:
    product = (_low_product if form.opcode == "mad24" else _product)(form)
    if "sat" in form:
        wide = np.int64
        return lambda a, b, c: _clamp(product(a, b).astype(wide) + c.astype(wide), form.dtype)
    return lambda a, b, c: product(a, b) + c


def _parts(value: Array, kind: str) -> Array:
    """The bytes or halves of words, in a last dimension, as int64."""
    raw = np.ascontiguousarray(value).reshape(-1, 1).view(kind).astype(np.int64)
    parts: Array = raw.reshape(*np.shape(value), -1)
    return parts


def _dot_product(form: Variant) -> Function:
    """c + the dot product of four bytes and four (``dp4a``), or two halves and two (``dp2a``)."""
    signed = {"s32": "i", "u32": "u"}
    wide = signed[form.type] + ("1" if form.opcode == "dp4a" else "2")
    narrow = signed[form.second] + "1"
    chosen = {"lo": slice(0, 2), "hi": slice(2, 4)}.get(form.one_of(("lo", "hi")), slice(0, 4))

    def function(a: Array, b: Array, c: Array) -> Array:
        products = _parts(a, wide) * _parts(b, narrow)[..., chosen]
        return np.asarray((products.sum(axis=-1) + c.astype(np.int64)).astype(c.dtype))

    return function


def _differences(form: Variant) -> Function:
    """|a - b| of each byte (``vabsdiff4``) or half (``vabsdiff2``), or c + the sum of them. (No
    mask is read, so that c is used in sums alone.)"""
    kind = "u1" if form.opcode == "vabsdiff4" else "u2"

    def function(a: Array, b: Array, c: Array) -> Array:
        each = np.abs(_parts(a, kind) - _parts(b, kind))
        if "add" in form:
            return np.asarray((each.sum(axis=-1) + c.astype(np.int64)).astype(c.dtype))
        return np.asarray(each.astype(kind).view(c.dtype)[..., 0])

    return function


# --------------------------------------------------------------------------- quotients


def _quotient(a: Array, b: Array) -> Array:
    """Truncated; the hardware's division by zero gives all ones."""
    if a.dtype.kind == "u":
        safe = np.where(b == 0, a.dtype.type(1), b)
        return np.where(b == 0, ~a.dtype.type(0), a // safe)
    least = np.iinfo(a.dtype).min
    special = (b == 0) | ((b == -1) & (a == least))
    safe = np.where(special, a.dtype.type(1), b)
    floor = a // safe
    inexact = floor * safe != a
    truncated = floor + (inexact & ((a < 0) != (safe < 0))).astype(a.dtype)
    return np.where(special, np.where(b == 0, a.dtype.type(-1), a), truncated)


def _remainder(a: Array, b: Array) -> Array:
    """It has the dividend's sign; the hardware's division by zero gives all ones."""
    rest = a - _quotient(a, b) * b
    return np.where(b == 0, ~np.zeros_like(rest), rest)


# ----------------------------------------------------------------------------- carries


_NO_CARRY = np.asarray(False)


def _sum_with_carry(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    """a + b + carry of an unsigned type, and the new carry."""
    first = a + b
    total = first + carry.astype(first.dtype)
    return total, (first < a) | (total < first)


def _carrying(form: Variant) -> Function:
    """Sums with the carry flag; a subtraction's flag is set when it does not borrow."""
    subtract = form.opcode.startswith("sub")
    initial = np.asarray(subtract)

    def function(a: Array, b: Array, carry: Array = initial) -> Any:
        results = _sum_with_carry(a, ~b if subtract else b, carry)
        return results if form.pair else results[0]

    return function


def _multiply_add_carrying(form: Variant) -> Function:
    raw, product = np.dtype(f"u{form.dtype.itemsize}"), _product(form)

    def function(a: Array, b: Array, c: Array, carry: Array = _NO_CARRY) -> Any:
        total, out = _sum_with_carry(product(a, b).astype(raw), c.astype(raw), carry)
        total = total.view(form.dtype)
        return (total, out) if form.pair else total

    return function


# -------------------------------------------------------------------- bits and bit fields


def _popcount(value: Array) -> Array:
    raw = np.ascontiguousarray(value).reshape(-1, 1).view(np.uint8)
    counts: Array = np.unpackbits(raw, axis=1).sum(axis=1, dtype=np.uint32)
    return counts.reshape(np.shape(value))


def _reverse(value: Array) -> Array:
    raw = np.ascontiguousarray(value).reshape(-1, 1).view(np.uint8)
    turned = np.packbits(np.unpackbits(raw, axis=1)[:, ::-1], axis=1)
    return turned.view(value.dtype).reshape(np.shape(value))


def _highest(value: Array) -> Array:
    """The position of the highest bit that is set, as int64; -1 if none is."""
    wide = value.astype(np.uint64)
    _, high = np.frexp((wide >> np.uint64(32)).astype(np.float64))
    _, low = np.frexp((wide & np.uint64(0xFFFFFFFF)).astype(np.float64))
    return np.where(high > 0, high + 31, low - 1).astype(np.int64)


def _leading_zeros(value: Array) -> Array:
    return (value.dtype.itemsize * 8 - 1 - _highest(value)).astype(np.uint32)


def _find_highest(form: Variant) -> Function:
    """``bfind``: the highest bit that differs from the sign; 0xffffffff if there is none."""
    unsigned = np.dtype(f"u{form.dtype.itemsize}")

    def function(value: Array) -> Array:
        if form.dtype.kind == "i":
            value = np.where(value < 0, ~value, value)
        position = _highest(value.astype(unsigned))
        if "shiftamt" in form:
            position = np.where(position < 0, -1, form.bits - 1 - position)
        return (position & 0xFFFFFFFF).astype(np.uint32)

    return function


def _find_nth(mask: Array, base: Array, number: Array) -> Array:
    """``fns``: the n-th set bit from a base on, up (n > 0) or down (n < 0); n = 0: the base's own.

    0xffffffff if there is none.
    """
    mask, base, number = np.broadcast_arrays(mask, base, number)
    positions = np.arange(32)
    isset = (mask[..., None] >> positions.astype(np.uint32) & np.uint32(1)).astype(bool)
    start = base.astype(np.int64)[..., None]
    wanted = number[..., None]
    up = isset & (positions >= start)
    down = isset & (positions <= start)
    found = np.where(
        wanted > 0,
        up & (np.cumsum(up, axis=-1) == wanted),
        np.where(
            wanted < 0,
            down & (np.cumsum(down[..., ::-1], axis=-1)[..., ::-1] == -wanted),
            isset & (positions == start),
        ),
    )
    return np.where(found.any(axis=-1), found.argmax(axis=-1), 0xFFFFFFFF).astype(np.uint32)


def _ones(count: Array, dtype: np.dtype[Any]) -> Array:
    """As many low ones as `count` says, which is at most the width."""
    bits = np.uint64(dtype.itemsize * 8)
    every = np.uint64((1 << int(bits)) - 1)
    count = count.astype(np.uint64)
    short = np.where(count > 0, bits - count, np.uint64(0))
    return np.where(count > 0, every >> short, np.uint64(0)).astype(dtype)


def _field(value: Array, bits: int) -> Array:
    """A position or length: PTX takes its low 8 bits; for 64-bit fields, an H100 clamps it."""
    return value & np.uint32(0xFF) if bits == 32 else np.minimum(value, np.uint32(0xFF))


def _extract(form: Variant) -> Function:
    """``bfe``: `length` bits from `position` on; beyond the top come zeros, or the sign."""
    dtype, bits = form.dtype, form.bits
    _, start, size = form.constants
    if start is not None and size is not None and start + size <= bits and start >= 0 < size:
        up, down = dtype.type(bits - start - size), dtype.type(bits - size)
        return lambda value, position, length: value << up >> down
    unsigned, last = np.dtype(f"u{dtype.itemsize}"), np.uint32(bits - 1)

    def function(value: Array, position: Array, length: Array) -> Array:
        position, length = _field(position, bits), _field(length, bits)
        start = np.minimum(position, last)
        beyond = position > last
        size = np.minimum(length, np.uint32(bits))
        ones = _ones(size, unsigned)
        shifted = np.right_shift(value, start.astype(dtype)).view(unsigned)
        if dtype.kind != "i":
            return np.where(beyond, unsigned.type(0), shifted & ones)
        # The sign is that of the field's top bit, or the value's if the field reaches beyond it.
        top = np.minimum(position + np.maximum(size, np.uint32(1)) - np.uint32(1), last)
        sign = (np.right_shift(value, top.astype(dtype)) & dtype.type(1)).astype(np.bool_)
        filled = np.where(sign, unsigned.type((1 << bits) - 1), unsigned.type(0))
        field = np.where(beyond, filled, shifted) & ones | filled & ~ones
        return np.where(size == 0, unsigned.type(0), field).view(dtype)

    return function


def _insert(form: Variant) -> Function:
    """``bfi``: the low `length` bits of a, put into b from `position` on."""
    dtype, bits = form.dtype, form.bits

    def function(a: Array, b: Array, position: Array, length: Array) -> Array:
        start = _field(position, bits)
        size = np.minimum(_field(length, bits), np.uint32(bits))
        amount = np.minimum(start, np.uint32(bits - 1)).astype(dtype)
        mask = np.where(start > bits - 1, dtype.type(0), _ones(size, dtype) << amount)
        return np.asarray((a << amount) & mask | b & ~mask)

    return function


def _limited(value: Array, form: Variant) -> Array:
    """A position or length, clamped to 32 or taken modulo 32."""
    return np.minimum(value, np.uint32(32)) if "clamp" in form else value & np.uint32(31)


def _mask(form: Variant) -> Function:
    """``bmsk``: `length` ones from `position` on."""

    def function(position: Array, length: Array) -> Array:
        ones = _ones(_limited(length, form), np.dtype(np.uint64))
        return (ones << _limited(position, form).astype(np.uint64)).astype(np.uint32)

    return function


def _extend(form: Variant) -> Function:
    """``szext``: the low b bits of a, extended by their sign or by zeros."""

    def function(value: Array, count: Array) -> Array:
        size = _limited(count, form)
        ones = _ones(size, np.dtype(np.uint32))
        low = value.view(np.uint32) & ones
        if form.dtype.kind == "i":
            top = np.maximum(size, np.uint32(1)) - np.uint32(1)
            negative = (low >> top & np.uint32(1)).astype(np.bool_)
            low = np.where(negative, low | ~ones, low)
        return low.view(form.dtype)

    return function


_SIGNED = "s16 s32 s64"
_INTEGERS = f"u16 u32 u64 {_SIGNED}"
_WORDS = "u32 u64 s32 s64"
_PAIRS = "u16x2 s16x2"

ROWS = (
    # PTX ISA 9.7.1, "Integer Arithmetic Instructions"
    Row(SILICON, "add", "", f"{_INTEGERS} {_PAIRS}", "t = t, t", np.add),
    Row(SILICON, "sub", "", f"{_INTEGERS} {_PAIRS}", "t = t, t", np.subtract),
    Row(SILICON, "add sub", "sat", "s32", "t = t, t", make=_saturated_sum),
    Row(DOCUMENT, "add", "sat", f"u32 {_PAIRS}", "t = t, t", make=_saturated_sum),
    Row(SILICON, "mul", "lo|hi", _INTEGERS, "t = t, t", make=_product),
    Row(SILICON, "mul", "wide", "u16 u32 s16 s32", "w = t, t", make=_product),
    Row(SILICON, "mad", "lo|hi", _INTEGERS, "t = t, t, t", make=_multiply_add),
    Row(SILICON, "mad", "hi sat", "s32", "t = t, t, t", make=_multiply_add),
    Row(SILICON, "mad", "wide", "u16 u32 s16 s32", "w = t, t, w", make=_multiply_add),
    Row(SILICON, "mul24", "lo|hi", "u32 s32", "t = t, t", make=_low_product),
    Row(SILICON, "mad24", "lo|hi", "u32 s32", "t = t, t, t", make=_multiply_add),
    Row(SILICON, "mad24", "hi sat", "s32", "t = t, t, t", make=_multiply_add),
    Row(SILICON, "sad", "", _INTEGERS, "t = t, t, t",
        lambda a, b, c: c + (np.maximum(a, b) - np.minimum(a, b))),
    Row(SILICON, "div", "", _INTEGERS, "t = t, t", _quotient),
    Row(SILICON, "rem", "", _INTEGERS, "t = t, t", _remainder),
    Row(SILICON, "abs", "", _SIGNED, "t = t", np.abs),
    Row(SILICON, "neg", "", _SIGNED, "t = t", np.negative),
    Row(SILICON, "min", "", f"{_INTEGERS} {_PAIRS}", "t = t, t", np.minimum),
    Row(SILICON, "max", "", f"{_INTEGERS} {_PAIRS}", "t = t, t", np.maximum),
    Row(SILICON, "min", "relu", "s32 s16x2", "t = t, t",
        lambda a, b: np.maximum(np.minimum(a, b), 0)),
    Row(SILICON, "max", "relu", "s32 s16x2", "t = t, t",
        lambda a, b: np.maximum(np.maximum(a, b), 0)),
    Row(SILICON, "popc", "", "b32 b64", "u32 = t", _popcount),
    Row(SILICON, "clz", "", "b32 b64", "u32 = t", _leading_zeros),
    Row(SILICON, "bfind", "shiftamt?", _WORDS, "u32 = t", make=_find_highest),
    Row(SILICON, "fns", "", "b32", "t = t, u32, s32", _find_nth),
    Row(SILICON, "brev", "", "b32 b64", "t = t", _reverse),
    Row(SILICON, "bfe", "", _WORDS, "t = t, u32, u32", make=_extract),
    Row(SILICON, "bfi", "", "b32 b64", "t = t, t, u32, u32", make=_insert),
    Row(SILICON, "szext", "clamp|wrap", "u32 s32", "t = t, u32", make=_extend),
    Row(SILICON, "bmsk", "clamp|wrap", "b32", "t = t, t", make=_mask),
    Row(SILICON, "dp4a", "", "u32", "u32 = b32, b32, u32", second="u32", make=_dot_product),
    Row(SILICON, "dp4a", "", "u32 s32", "s32 = b32, b32, s32", second="u32 s32", make=_dot_product),
    Row(SILICON, "dp2a", "lo|hi", "u32", "u32 = b32, b32, u32", second="u32", make=_dot_product),
    Row(SILICON, "dp2a", "lo|hi", "u32 s32", "s32 = b32, b32, s32", second="u32 s32",
        make=_dot_product),
    Row(DOCUMENT, "vabsdiff2 vabsdiff4", "u32 add?", "u32", "u32 = u32, u32, u32", second="u32",
        make=_differences),
    # PTX ISA 9.7.2, "Extended-Precision Integer Arithmetic Instructions"
    Row(SILICON, "add sub", "cc", _WORDS, "b|cc = b, b", make=_carrying),
    Row(SILICON, "addc subc", "cc?", f"u16 s16 {_WORDS}", "b|cc = b, b, cc", make=_carrying),
    Row(SILICON, "mad", "lo|hi cc", _WORDS, "t|cc = t, t, t", make=_multiply_add_carrying),
    Row(SILICON, "madc", "lo|hi cc?", f"u16 s16 {_WORDS}", "t|cc = t, t, t, cc",
        make=_multiply_add_carrying),
)  # fmt: skip
