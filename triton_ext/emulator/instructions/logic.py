"""Logic, shifts and bit fields (PTX ISA, "Logic and Shift Instructions", "Integer Arithmetic")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.operands import Operands
from triton_ext.emulator.decode.step import Run
from triton_ext.emulator.errors import UnsupportedInstruction
from triton_ext.emulator.instructions.common import elementwise
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.types import DTYPES, bits_of
from triton_ext.ptx.parse import Instruction, immediate

Array = NDArray[Any]

_LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@instruction(*_LOGIC)
def logic(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    type_name = modifiers.type()
    return elementwise(at, operands, type_name, [type_name] * 2, _LOGIC[at.opcode.split(".")[0]])


@instruction("not")
def invert(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    type_name = modifiers.type()
    return elementwise(at, operands, type_name, [type_name], np.invert)


@instruction("cnot")
def logical_not(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """1 where the source is 0, else 0."""
    type_name = modifiers.type()
    return elementwise(
        at, operands, type_name, [type_name], lambda a: (a == 0).astype(DTYPES[type_name])
    )


@instruction("shl", "shr")
def shift(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """Counts are clamped to the width: all bits go, or all become the sign."""
    type_name = modifiers.type()
    dtype = DTYPES[type_name]
    bits = dtype.itemsize * 8
    left = at.opcode.startswith("shl")
    last = np.uint32(bits - 1)

    def function(value: Array, count: Array) -> Array:
        amount = np.minimum(count, last).astype(dtype)
        shifted = np.left_shift(value, amount) if left else np.right_shift(value, amount)
        if not left and dtype.kind == "i":
            return np.asarray(shifted)
        return np.where(count > last, dtype.type(0), shifted)

    constant = immediate(at.operands[2])
    if constant is not None and 0 <= constant < bits:
        by, move = dtype.type(constant), np.left_shift if left else np.right_shift
        return elementwise(
            at, operands, type_name, [type_name, "u32"], lambda value, count: move(value, by)
        )
    return elementwise(at, operands, type_name, [type_name, "u32"], function)


@instruction("shf")
def funnel_shift(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``shf``: of the 64 bits ``{b, a}``, the upper (left) or lower (right) 32 of the shifted."""
    left = modifiers.one_of(("l", "r")) == "l"
    clamp = modifiers.one_of(("clamp", "wrap")) == "clamp"
    modifiers.type()
    word = np.uint64(32)

    def function(low: Array, high: Array, count: Array) -> Array:
        amount = np.minimum(count, np.uint32(32)) if clamp else count & np.uint32(31)
        both = high.astype(np.uint64) << word | low.astype(np.uint64)
        wide = amount.astype(np.uint64)
        if left:
            return ((both << wide) >> word).astype(np.uint32)
        return (both >> wide).astype(np.uint32)

    return elementwise(at, operands, "b32", ["b32"] * 3, function)


@instruction("lop3")
def lookup_logic(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``lop3``: any function of three bits, as a table of 8; or its test against zero, too."""
    combine = modifiers.one_of(("or", "and"))
    modifiers.type()
    target, predicate = at.operands[0], ""
    if combine:
        target, _, predicate = (part.strip() for part in target.partition("|"))
    table = immediate(at.operands[4])
    if table is None:
        raise UnsupportedInstruction("the table must be a constant", at)
    readers = [operands.reader(text, "b32", at) for text in at.operands[1:4]]
    write = operands.writer(target, "b32", at)
    function = _of_three(table & 0xFF)

    if not combine:
        return lambda cta, lanes: write(
            cta, lanes, function(*(read(cta, lanes) for read in readers))
        )
    source = operands.reader(at.operands[5], "pred", at)
    write_predicate = operands.writer(predicate, "pred", at)
    join = np.logical_or if combine == "or" else np.logical_and

    def run(cta: Cta, lanes: Lanes) -> None:
        value = function(*(read(cta, lanes) for read in readers))
        test = join(value != 0, source(cta, lanes))
        write(cta, lanes, value)
        write_predicate(cta, lanes, test)

    return run


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


_PRMT_MODES = {
    "f4e": lambda i: [i, i + 1, i + 2, i + 3],
    "b4e": lambda i: [i, i - 1, i - 2, i - 3],
    "rc8": lambda i: [i, i, i, i],
    "ecl": lambda i: [max(i, position) for position in range(4)],
    "ecr": lambda i: [min(i, position) for position in range(4)],
    "rc16": lambda i: [i % 2 * 2, i % 2 * 2 + 1] * 2,
}


@instruction("prmt")
def permute(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``prmt``: four of the eight bytes of ``{b, a}``; bit 3 of a selector takes its sign."""
    modifiers.type()
    mode = modifiers.one_of(_PRMT_MODES)
    selector = immediate(at.operands[3])
    byte, sign, eight = np.uint64(0xFF), np.uint32(0x80), np.uint64(8)
    if mode:
        table = np.array(
            [
                sum(
                    (each & 7) << 4 * position for position, each in enumerate(_PRMT_MODES[mode](i))
                )
                for i in range(4)
            ],
            np.uint32,
        )

    def pick(both: Array, selectors: Array) -> Array:
        result: Any = np.uint32(0)
        for position in range(4):
            nibble = selectors >> np.uint32(4 * position)
            value = (both >> (nibble & np.uint32(7)).astype(np.uint64) * eight & byte).astype(
                np.uint32
            )
            replicated = np.where(value & sign, np.uint32(0xFF), np.uint32(0))
            value = np.where(nibble & np.uint32(8), replicated, value)
            result = result | value << np.uint32(8 * position)
        return np.asarray(result)

    def function(low: Array, high: Array, selectors: Array) -> Array:
        both = high.astype(np.uint64) << np.uint64(32) | low.astype(np.uint64)
        return pick(both, table[selectors & np.uint32(3)] if mode else selectors)

    if selector is not None and not mode:
        return elementwise(
            at, operands, "b32", ["b32"] * 3, lambda low, high, _: _fixed_bytes(low, high, selector)
        )
    return elementwise(at, operands, "b32", ["b32"] * 3, function)


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


def _popcount(value: Array) -> Array:
    raw = np.ascontiguousarray(value).reshape(-1, 1).view(np.uint8)
    counts: Array = np.unpackbits(raw, axis=1).sum(axis=1, dtype=np.uint32)
    return counts.reshape(np.shape(value))


def _highest(value: Array) -> Array:
    """The position of the highest bit that is set, as int64; -1 if none is."""
    wide = value.astype(np.uint64)
    _, high = np.frexp((wide >> np.uint64(32)).astype(np.float64))
    _, low = np.frexp((wide & np.uint64(0xFFFFFFFF)).astype(np.float64))
    return np.where(high > 0, high + 31, low - 1).astype(np.int64)


@instruction("popc")
def population(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    return elementwise(at, operands, "u32", [modifiers.type()], _popcount)


@instruction("clz")
def leading_zeros(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    type_name = modifiers.type()
    last = bits_of(type_name) - 1
    return elementwise(
        at, operands, "u32", [type_name], lambda a: (last - _highest(a)).astype(np.uint32)
    )


@instruction("bfind")
def find_highest(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``bfind``: the highest bit that differs from the sign; 0xffffffff if there is none."""
    amount = modifiers.flag("shiftamt")
    type_name = modifiers.type()
    dtype = DTYPES[type_name]
    bits = dtype.itemsize * 8

    def function(value: Array) -> Array:
        if dtype.kind == "i":
            value = np.where(value < 0, ~value, value)
        position = _highest(value.astype(f"u{bits // 8}"))
        if amount:
            position = np.where(position < 0, -1, bits - 1 - position)
        return (position & 0xFFFFFFFF).astype(np.uint32)

    return elementwise(at, operands, "u32", [type_name], function)


@instruction("fns")
def find_nth(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``fns``: the n-th set bit from a base on, up (n > 0) or down (n < 0); n = 0: the base's own.

    0xffffffff if there is none.
    """
    modifiers.type()

    def function(mask: Array, base: Array, number: Array) -> Array:
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

    return elementwise(at, operands, "b32", ["b32", "u32", "s32"], function)


@instruction("brev")
def reverse(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    type_name = modifiers.type()
    size = bits_of(type_name) // 8

    def function(value: Array) -> Array:
        raw = np.ascontiguousarray(value).reshape(-1, 1).view(np.uint8)
        turned = np.packbits(np.unpackbits(raw, axis=1)[:, ::-1], axis=1)
        return turned.view(f"u{size}").reshape(np.shape(value))

    return elementwise(at, operands, type_name, [type_name], function)


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


@instruction("bfe")
def extract_field(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``bfe``: `length` bits from `position` on; beyond the top come zeros, or the sign."""
    type_name = modifiers.type()
    dtype = DTYPES[type_name]
    bits = dtype.itemsize * 8
    unsigned = np.dtype(f"u{dtype.itemsize}")

    def function(value: Array, position: Array, length: Array) -> Array:
        position, length = _field(position, bits), _field(length, bits)
        start = np.minimum(position, np.uint32(bits - 1))
        beyond = position > np.uint32(bits - 1)
        size = np.minimum(length, np.uint32(bits))
        ones = _ones(size, unsigned)
        shifted = np.right_shift(value, start.astype(dtype)).view(unsigned)
        if dtype.kind != "i":
            return np.where(beyond, unsigned.type(0), shifted & ones)
        # The sign is that of the field's top bit, or the value's if the field reaches beyond it.
        top = np.minimum(
            position + np.maximum(size, np.uint32(1)) - np.uint32(1), np.uint32(bits - 1)
        )
        sign = (np.right_shift(value, top.astype(dtype)) & dtype.type(1)).astype(np.bool_)
        filled = np.where(sign, unsigned.type((1 << bits) - 1), unsigned.type(0))
        field = np.where(beyond, filled, shifted) & ones | filled & ~ones
        return np.where(size == 0, unsigned.type(0), field).view(dtype)

    start, size = (immediate(text) for text in at.operands[2:4])
    if start is not None and size is not None and start + size <= bits and start >= 0 < size:
        up, down = dtype.type(bits - start - size), dtype.type(bits - size)
        return elementwise(
            at, operands, type_name, [type_name, "u32", "u32"],
            lambda value, position, length: value << up >> down,
        )  # fmt: skip
    return elementwise(at, operands, type_name, [type_name, "u32", "u32"], function)


@instruction("bfi")
def insert_field(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``bfi``: the low `length` bits of a, put into b from `position` on."""
    type_name = modifiers.type()
    dtype = DTYPES[type_name]
    bits = dtype.itemsize * 8

    def function(a: Array, b: Array, position: Array, length: Array) -> Array:
        start = _field(position, bits)
        size = np.minimum(_field(length, bits), np.uint32(bits))
        amount = np.minimum(start, np.uint32(bits - 1)).astype(dtype)
        mask = np.where(start > bits - 1, dtype.type(0), _ones(size, dtype) << amount)
        return np.asarray((a << amount) & mask | b & ~mask)

    return elementwise(at, operands, type_name, [type_name, type_name, "u32", "u32"], function)


@instruction("bmsk")
def bit_mask(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``bmsk``: `length` ones from `position` on; both clamped to 32, or taken modulo 32."""
    clamp = modifiers.one_of(("clamp", "wrap")) == "clamp"
    modifiers.type()
    most = np.uint32(32)

    def function(position: Array, length: Array) -> Array:
        if clamp:
            position, length = np.minimum(position, most), np.minimum(length, most)
        else:
            position, length = position & np.uint32(31), length & np.uint32(31)
        ones = _ones(length, np.dtype(np.uint32)).astype(np.uint64)
        return (ones << position.astype(np.uint64)).astype(np.uint32)

    return elementwise(at, operands, "b32", ["b32", "b32"], function)


@instruction("szext")
def extend_sign(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``szext``: the low b bits of a, extended by their sign or by zeros."""
    clamp = modifiers.one_of(("clamp", "wrap")) == "clamp"
    type_name = modifiers.type()
    signed = DTYPES[type_name].kind == "i"

    def function(value: Array, count: Array) -> Array:
        size = np.minimum(count, np.uint32(32)) if clamp else count & np.uint32(31)
        ones = _ones(size, np.dtype(np.uint32))
        raw = value.view(np.uint32)
        low = raw & ones
        if signed:
            top = np.maximum(size, np.uint32(1)) - np.uint32(1)
            negative = (low >> top & np.uint32(1)).astype(np.bool_)
            low = np.where(negative, low | ~ones, low)
        return low.view(DTYPES[type_name])

    return elementwise(at, operands, type_name, [type_name, "u32"], function)


@instruction("selp")
def select(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``selp``: a where the predicate holds, else b."""
    type_name = modifiers.one_of((*DTYPES, "b128"))
    read_a, read_b = (operands.reader(text, type_name, at) for text in at.operands[1:3])
    read_p = operands.reader(at.operands[3], "pred", at)
    write = operands.writer(at.operands[0], type_name, at)
    return lambda cta, lanes: write(
        cta, lanes, np.where(read_p(cta, lanes), read_a(cta, lanes), read_b(cta, lanes))
    )


@instruction("slct")
def select_by_sign(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``slct``: a where c >= 0, else b; a NaN counts as negative, -0 does not."""
    ftz = modifiers.flag("ftz")
    type_name, control = modifiers.type(), modifiers.type()
    if control not in ("s32", "f32"):
        raise UnsupportedInstruction("the control must be .s32 or .f32", at)
    tiny = np.float32(2.0**-126)

    def function(a: Array, b: Array, c: Array) -> Array:
        chosen = c >= 0
        if ftz:
            chosen = chosen | (np.abs(c) < tiny)
        return np.where(chosen, a, b)

    raw = f"b{bits_of(type_name)}"
    return elementwise(at, operands, raw, [raw, raw, control], function)
