"""Integers of which some bits are known, and what that makes known of sums and the like.

`KNOWN_BITS` is the domain of `triton_ext.integers` that they form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from triton_ext.integers import IntegerOperation, by_numbers


@dataclass(frozen=True)
class Bits:
    """An integer of which some bits are known: `value` has zeros where `known` has."""

    value: int
    known: int

    @classmethod
    def constant(cls, value: int, width: int) -> Bits:
        """All `width` bits known."""
        mask = (1 << width) - 1
        return cls(value & mask, mask)

    @classmethod
    def unknown(cls) -> Bits:
        """Nothing known."""
        return cls(0, 0)

    def is_constant(self, width: int) -> bool:
        """Whether the low `width` bits are all known."""
        mask = (1 << width) - 1
        return self.known & mask == mask

    def field(self, start: int, width: int) -> int | None:
        """A field of the integer, or None unless all of it is known."""
        mask = ((1 << width) - 1) << start
        return (self.value & mask) >> start if self.known & mask == mask else None


def add(left: Bits, right: Bits, width: int) -> Bits:
    """The known bits of a sum: below the first doubt, and above where no carry can reach."""
    mask = (1 << width) - 1
    smallest = left.value + right.value
    largest = smallest + (mask & ~left.known) + (mask & ~right.known)
    both = left.known & right.known & mask
    low = (both ^ (both + 1)) & both  # the run of known bits from bit 0
    doubt = (smallest ^ largest) & mask if largest <= mask else mask
    high = mask & ~((1 << doubt.bit_length()) - 1)
    known = low | high
    return Bits(smallest & known, known)


def complement(bits: Bits, width: int) -> Bits:
    """Bitwise not."""
    mask = (1 << width) - 1
    return Bits(~bits.value & bits.known & mask, bits.known & mask)


def agreed(left: Bits, right: Bits) -> Bits:
    """What is known of a value that is one or the other."""
    known = left.known & right.known & ~(left.value ^ right.value)
    return Bits(left.value & known, known)


def joined(parts: list[Bits], width: int) -> Bits:
    """An integer from its parts of `width` bits each, the lowest first."""
    mask, value, known = (1 << width) - 1, 0, 0
    for i, part in enumerate(parts):
        value |= (part.value & mask) << width * i
        known |= (part.known & mask) << width * i
    return Bits(value, known)


# ---------------------------------------------------------------------- rules of the domain


def _and(_: IntegerOperation, left: Bits, right: Bits) -> Bits:
    ones = left.value & right.value
    zeros = (left.known & ~left.value) | (right.known & ~right.value)
    return Bits(ones, ones | zeros)


def _or(_: IntegerOperation, left: Bits, right: Bits) -> Bits:
    ones = left.value | right.value
    zeros = (left.known & ~left.value) & (right.known & ~right.value)
    return Bits(ones, ones | zeros)


def _xor(_: IntegerOperation, left: Bits, right: Bits) -> Bits:
    known = left.known & right.known
    return Bits((left.value ^ right.value) & known, known)


def _sub(of: IntegerOperation, left: Bits, right: Bits) -> Bits:
    """The sum with a negative number, if that is known."""
    if not right.is_constant(of.width):
        return Bits.unknown()
    return add(left, Bits.constant(-right.value, of.width), of.width)


def _mad(of: IntegerOperation, left: Bits, right: Bits, addend: Bits) -> Bits:
    """A product that is known, and an addend."""
    product = replace(of, name=of.name.replace("mad", "mul"))
    return add(by_numbers(KNOWN_BITS, product, [left, right]), addend, of.result)


def _copy(of: IntegerOperation, source: Bits) -> Bits:
    """Cut, or extended with zeros or the sign."""
    kept = (1 << min(of.result, of.width)) - 1
    value, known = source.value & kept, source.known & kept
    extension = ((1 << of.result) - 1) & ~kept
    sign = 1 << (of.width - 1)
    if not of.is_signed:
        known |= extension
    elif known & sign:
        known |= extension
        value |= extension if value & sign else 0
    return Bits(value, known)


def _shl(of: IntegerOperation, source: Bits, by: Bits) -> Bits:
    if not by.is_constant(32):
        return Bits.unknown()
    mask, count = (1 << of.width) - 1, min(by.value, of.width)
    filled = (1 << count) - 1
    return Bits(source.value << count & mask, (source.known << count | filled) & mask)


def _shr(of: IntegerOperation, source: Bits, by: Bits) -> Bits:
    if not by.is_constant(32):
        return Bits.unknown()
    mask, count = (1 << of.width) - 1, min(by.value, of.width)
    top = mask & ~(mask >> count)
    if not of.is_signed:
        return Bits(source.value >> count, (source.known & mask) >> count | top)
    sign = 1 << (of.width - 1)
    if not source.known & sign:
        return Bits(source.value >> count, source.known >> count & ~top)
    high = top if source.value & sign else 0
    return Bits(source.value >> count | high, source.known >> count | top)


def _equality(of: IntegerOperation, left: Bits, right: Bits) -> Bits:
    """Different if one bit is."""
    if (left.value ^ right.value) & left.known & right.known:
        return Bits(int(of.name == "ne"), 1)
    return by_numbers(KNOWN_BITS, of, [left, right])


def _select(_: IntegerOperation, left: Bits, right: Bits, choice: Bits) -> Bits:
    if choice.is_constant(1):
        return left if choice.value else right
    return agreed(left, right)


def _bfe(of: IntegerOperation, source: Bits, start: Bits, length: Bits) -> Bits:
    if not (start.is_constant(8) and length.is_constant(8)):
        return Bits.unknown()
    first = min(start.value & 0xFF, of.width)
    mask = (1 << min(length.value & 0xFF, of.width - first)) - 1
    rest = ((1 << of.width) - 1) & ~mask
    return Bits(source.value >> first & mask, source.known >> first & mask | rest)


def _bfi(of: IntegerOperation, inserted: Bits, into: Bits, start: Bits, length: Bits) -> Bits:
    if not (start.is_constant(8) and length.is_constant(8)):
        return Bits.unknown()
    first = min(start.value & 0xFF, of.width)
    mask = (1 << min(length.value & 0xFF, of.width - first)) - 1
    hole = mask << first
    return Bits(
        into.value & ~hole | (inserted.value & mask) << first,
        into.known & ~hole | (inserted.known & mask) << first,
    )


def _lop3(of: IntegerOperation, *sources: Bits) -> Bits:
    """A bit is known if each row of the table that it may be in says the same."""
    *inputs, table = sources
    if not table.is_constant(8):
        return Bits.unknown()
    value = known = 0
    for bit in range(of.width):
        rows = [0]
        for source in inputs:
            choices = [source.value >> bit & 1] if source.known >> bit & 1 else [0, 1]
            rows = [row << 1 | choice for row in rows for choice in choices]
        results = {table.value >> row & 1 for row in rows}
        if len(results) == 1:
            known |= 1 << bit
            value |= results.pop() << bit
    return Bits(value, known)


class KnownBits:
    """Integers of which some bits are known, as a `triton_ext.integers.Domain`."""

    unknown = Bits.unknown()
    rules: Mapping[str, Callable[..., Bits]] = {
        "add": lambda of, left, right: add(left, right, of.width),
        "sub": _sub, "mad": _mad, "madhi": _mad, "not": lambda of, bits: complement(bits, of.width),
        "and": _and, "or": _or, "xor": _xor, "copy": _copy, "shl": _shl, "shr": _shr,
        "eq": _equality, "ne": _equality, "select": _select, "bfe": _bfe, "bfi": _bfi,
        "lop3": _lop3,
    }  # fmt: skip

    def number(self, value: Bits, width: int) -> int | None:
        """The low `width` bits, if all of them are known."""
        return value.field(0, width)

    def constant(self, value: int, width: int) -> Bits:
        """A number of `width` bits."""
        return Bits.constant(value, width)


KNOWN_BITS = KnownBits()
