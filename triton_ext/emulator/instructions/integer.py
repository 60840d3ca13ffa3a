"""Integer arithmetic (PTX ISA, "Integer Arithmetic Instructions", "Extended-Precision ...")."""

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
    data_type,
    element,
    elementwise,
    reader,
    writer,
)
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.types import DTYPES
from triton_ext.ptx.parse import Instruction

Array = NDArray[Any]


def _wider(type_name: str) -> str:
    """The type of twice the width."""
    return f"{type_name[0]}{2 * int(type_name[1:])}"


def _clamp(value: Array, dtype: np.dtype[Any]) -> Array:
    """Wide signed values, saturated to a type."""
    info = np.iinfo(dtype)
    return np.clip(value, info.min, info.max).astype(dtype)


def add_sub(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    carry_out = modifiers.flag("cc")
    saturate = modifiers.flag("sat")
    type_name = data_type(at, modifiers)
    if carry_out:
        return _with_carry(at, type_name, operands, carry_in=False, carry_out=True)
    subtract = at.opcode.startswith("sub")
    plain: Callable[..., Any] = np.subtract if subtract else np.add
    if not saturate:
        return elementwise(at, operands, type_name, [type_name] * 2, plain)
    dtype = DTYPES[element(type_name)]

    def function(a: Array, b: Array) -> Array:
        return _clamp(plain(a.astype(np.int64), b.astype(np.int64)), dtype)

    return elementwise(at, operands, type_name, [type_name] * 2, function)


def high_product(a: Array, b: Array) -> Array:
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


_PRODUCTS: dict[str, Callable[..., Any]] = {"lo": np.multiply, "hi": high_product}


def multiply(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    half = modifiers.one_of(("lo", "hi", "wide"))
    type_name = modifiers.type()
    if half == "wide":
        wide = DTYPES[_wider(type_name)]
        return elementwise(
            at,
            operands,
            _wider(type_name),
            [type_name] * 2,
            lambda a, b: a.astype(wide) * b.astype(wide),
        )
    function = _PRODUCTS.get(half)
    if function is None:
        raise UnsupportedInstruction(".lo, .hi or .wide is missing", at)
    return elementwise(at, operands, type_name, [type_name] * 2, function)


def multiply_add(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    half = modifiers.one_of(("lo", "hi", "wide"))
    saturate, carry_out = modifiers.flag("sat"), modifiers.flag("cc")
    type_name = modifiers.type()
    if carry_out:
        return _multiply_add_carry(at, half, type_name, operands, carry_in=False, carry_out=True)
    if half == "wide":
        wide = DTYPES[_wider(type_name)]
        return elementwise(
            at,
            operands,
            _wider(type_name),
            [type_name, type_name, _wider(type_name)],
            lambda a, b, c: a.astype(wide) * b.astype(wide) + c,
        )
    product = _PRODUCTS.get(half)
    if product is None:
        raise UnsupportedInstruction(".lo, .hi or .wide is missing", at)
    multiplied = product
    if saturate:
        if half != "hi" or type_name != "s32":
            raise UnsupportedInstruction(".sat goes with .hi.s32", at)
        dtype = DTYPES[type_name]
        return elementwise(
            at,
            operands,
            type_name,
            [type_name] * 3,
            lambda a, b, c: _clamp(multiplied(a, b).astype(np.int64) + c.astype(np.int64), dtype),
        )
    return elementwise(
        at, operands, type_name, [type_name] * 3, lambda a, b, c: multiplied(a, b) + c
    )


@instruction("mul24", "mad24")
def narrow_multiply(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """The low 24 bits of both factors: bits 0 to 31 (lo) or 16 to 47 (hi) of the product."""
    half = modifiers.one_of(("lo", "hi"))
    saturate = modifiers.flag("sat")
    type_name = modifiers.type()
    dtype = DTYPES[type_name]
    up = np.int64(40)
    down = np.int64(16 if half == "hi" else 0)
    adds = at.opcode.startswith("mad24")

    def low24(value: Array) -> Array:
        if dtype.kind == "i":
            return value.astype(np.int64) << up >> up
        return value.astype(np.int64) & 0xFFFFFF

    def function(a: Array, b: Array, *more: Array) -> Array:
        product = (low24(a) * low24(b) >> down).astype(dtype)
        if not more:
            return product
        if saturate:
            return _clamp(product.astype(np.int64) + more[0].astype(np.int64), dtype)
        return product + more[0]

    return elementwise(at, operands, type_name, [type_name] * (3 if adds else 2), function)


@instruction("sad")
def absolute_difference(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``sad``: c + |a - b|, modulo the width."""
    type_name = modifiers.type()
    return elementwise(
        at,
        operands,
        type_name,
        [type_name] * 3,
        lambda a, b, c: c + (np.maximum(a, b) - np.minimum(a, b)),
    )


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


def divide(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    type_name = modifiers.type()
    return elementwise(at, operands, type_name, [type_name] * 2, _quotient)


@instruction("rem")
def remainder(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``rem``: has the dividend's sign; of a division by zero, the hardware gives all ones."""
    type_name = modifiers.type()

    def function(a: Array, b: Array) -> Array:
        rest = a - _quotient(a, b) * b
        return np.where(b == 0, ~np.zeros_like(rest), rest)

    return elementwise(at, operands, type_name, [type_name] * 2, function)


def absolute(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    type_name = data_type(at, modifiers)
    return elementwise(at, operands, type_name, [type_name], np.abs)


def negate(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    type_name = data_type(at, modifiers)
    return elementwise(at, operands, type_name, [type_name], np.negative)


def extremum(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    relu = modifiers.flag("relu")
    type_name = data_type(at, modifiers)
    choose: Callable[..., Any] = np.minimum if at.opcode.startswith("min") else np.maximum
    zero = DTYPES[element(type_name)].type(0)
    if relu:
        return elementwise(
            at,
            operands,
            type_name,
            [type_name] * 2,
            lambda a, b: np.maximum(choose(a, b), zero),
        )
    return elementwise(at, operands, type_name, [type_name] * 2, choose)


@instruction("dp4a", "dp2a")
def dot_product(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``dp4a``: c + the dot product of four bytes; ``dp2a``: of two halves and two bytes."""
    quarter = at.opcode.startswith("dp4a")
    half = "" if quarter else modifiers.one_of(("lo", "hi"))
    left, right = modifiers.type(), modifiers.type()
    result = "u32" if left == right == "u32" else "s32"
    signed = {"s32": "i", "u32": "u"}
    wide = signed[left] + ("1" if quarter else "2")
    narrow = signed[right] + "1"
    chosen = slice(0, 4) if quarter else slice(0, 2) if half == "lo" else slice(2, 4)

    def parts(value: Array, kind: str) -> Any:
        shape = np.shape(value)
        raw = np.ascontiguousarray(value).reshape(-1, 1).view(kind).astype(np.int64)
        return raw.reshape(*shape, -1)

    def function(a: Array, b: Array, c: Array) -> Array:
        products = parts(a, wide) * parts(b, narrow)[..., chosen]
        return np.asarray((products.sum(axis=-1) + c.astype(np.int64)).astype(DTYPES[result]))

    return elementwise(at, operands, result, ["b32", "b32", result], function)


# ----------------------------------------------------------- carries, kept by each thread


def _sum3(a: Array, b: Array, extra: Array) -> tuple[Array, Array]:
    """a + b + extra (0 or 1) of an unsigned type, and the carry."""
    first = a + b
    total = first + extra.astype(first.dtype)
    return total, (first < a) | (total < first)


def _with_carry(
    at: Instruction, type_name: str, operands: Operands, *, carry_in: bool, carry_out: bool
) -> Run:
    """``add``, ``sub`` with the carry flag; a subtraction's flag is set when it does not borrow."""
    subtract = at.opcode.startswith("sub")
    raw = f"b{type_name[1:]}"
    read_a, read_b = (reader(text, raw, at, operands) for text in at.operands[1:3])
    write = writer(at.operands[0], raw, at, operands)

    def run(cta: Cta, lanes: Lanes) -> None:
        flags = cta.carry
        a, b = read_a(cta, lanes), read_b(cta, lanes)
        extra = flags[lanes] if carry_in else np.asarray(subtract)
        total, carry = _sum3(a, ~b if subtract else b, extra)
        write(cta, lanes, total)
        if carry_out:
            flags[lanes] = carry

    return run


@instruction("addc", "subc")
def add_sub_carry(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    carry_out = modifiers.flag("cc")
    return _with_carry(at, modifiers.type(), operands, carry_in=True, carry_out=carry_out)


@instruction("madc")
def multiply_add_with_carry(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    half = modifiers.one_of(("lo", "hi"))
    carry_out = modifiers.flag("cc")
    type_name = modifiers.type()
    return _multiply_add_carry(at, half, type_name, operands, carry_in=True, carry_out=carry_out)


def _multiply_add_carry(
    at: Instruction,
    half: str,
    type_name: str,
    operands: Operands,
    *,
    carry_in: bool,
    carry_out: bool,
) -> Run:
    raw = np.dtype(f"u{DTYPES[type_name].itemsize}")
    product = _PRODUCTS[half]
    reads = [operands.reader(text, type_name, at) for text in at.operands[1:4]]
    write = operands.writer(at.operands[0], type_name, at)

    def run(cta: Cta, lanes: Lanes) -> None:
        flags = cta.carry
        a, b, c = (read(cta, lanes) for read in reads)
        extra = flags[lanes] if carry_in else np.asarray(False)
        total, carry = _sum3(product(a, b).astype(raw), c.astype(raw), extra)
        write(cta, lanes, total.view(DTYPES[type_name]))
        if carry_out:
            flags[lanes] = carry

    return run
