"""Integers of which some bits are known, and what that makes known of sums and the like."""

from __future__ import annotations

from dataclasses import dataclass


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


def conjunction(left: Bits, right: Bits) -> Bits:
    """Bitwise and."""
    ones = left.value & right.value
    zeros = (left.known & ~left.value) | (right.known & ~right.value)
    return Bits(ones, ones | zeros)


def disjunction(left: Bits, right: Bits) -> Bits:
    """Bitwise or."""
    ones = left.value | right.value
    zeros = (left.known & ~left.value) & (right.known & ~right.value)
    return Bits(ones, ones | zeros)


def complement(bits: Bits, width: int) -> Bits:
    """Bitwise not."""
    mask = (1 << width) - 1
    return Bits(~bits.value & bits.known & mask, bits.known & mask)


def truth_table(sources: list[Bits], width: int) -> Bits:
    """PTX's lop3: a bit is known if each row of the table that it may be in says the same."""
    *inputs, table = sources
    if not table.is_constant(8):
        return Bits.unknown()
    value = known = 0
    for bit in range(width):
        rows = [0]
        for source in inputs:
            choices = [source.value >> bit & 1] if source.known >> bit & 1 else [0, 1]
            rows = [row << 1 | choice for row in rows for choice in choices]
        results = {table.value >> row & 1 for row in rows}
        if len(results) == 1:
            known |= 1 << bit
            value |= results.pop() << bit
    return Bits(value, known)


def agreed(left: Bits, right: Bits) -> Bits:
    """What is known of a value that is one or the other."""
    known = left.known & right.known & ~(left.value ^ right.value)
    return Bits(left.value & known, known)
