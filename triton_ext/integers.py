"""What integer operations mean: one table for PTX and MLIR, over numbers and over what is known.

`MEANINGS` says what each operation makes of Python integers. A `Domain` stands for integers that
are known in part, such as some of their bits (`triton_ext.ptx.known_bits`) or a sum with unknown
terms: it has rules for the operations that keep such knowledge; for all others, `evaluate` falls
back on the table where every source is a number.

Sources: PTX ISA, "Integer Arithmetic Instructions", "Comparison and Selection Instructions", "Logic
and Shift Instructions"; MLIR, "'arith' Dialect".
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Protocol, TypeVar

T = TypeVar("T")
Number = int | None
"""An integer, or None if it is not known."""


def signed(value: int, width: int) -> int:
    """The low `width` bits of an integer, as two's complement."""
    value &= (1 << width) - 1
    return value - (1 << width) if width and value >> (width - 1) else value


# ---------------------------------------------------------------------------------- meanings


@dataclass(frozen=True)
class Meaning:
    """What an operation makes of integers.

    Attributes:
        sources: how each source is read. ``x``: with the operation's width and sign; ``r``: with
            the width of the result; ``c``: a count of 32 bits; ``f``: a field of 8 bits; ``p``: a
            predicate.
        function: the result, of which the operation keeps the low bits; None if there is none.
        wraps: the low bits of the result depend only on as many low bits of the sources.
        takes_width: the function's first argument is the operation's width.
    """

    sources: str
    function: Callable[..., Number]
    wraps: bool = False
    takes_width: bool = False


def _quotient(a: int, b: int) -> Number:
    """Rounded towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else None


def _remainder(a: int, b: int) -> Number:
    """With the sign of the dividend."""
    quotient = _quotient(a, b)
    return None if quotient is None else a - quotient * b


def _extracted(a: int, start: int, length: int) -> int:
    """A field; behind the last bit of a signed number its sign goes on."""
    return a >> start & ((1 << length) - 1)


def _inserted(field: int, into: int, start: int, length: int) -> int:
    mask = ((1 << length) - 1) << start
    return into & ~mask | field << start & mask


def _table_lookup(a: int, b: int, c: int, table: int) -> int:
    """lop3: each bit of the result is the table's bit a * 4 + b * 2 + c."""
    found = 0
    for row in range(8):
        if table >> row & 1:
            found |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return found


def _permuted(a: int, b: int, selector: int) -> int:
    """prmt: each nibble of the selector chooses a byte; its highest bit, that byte's sign."""
    whole, found = a | b << 32, 0
    for i in range(4):
        nibble = selector >> 4 * i & 0xF
        byte = whole >> 8 * (nibble & 7) & 0xFF
        if nibble & 8:
            byte = 0xFF if byte & 0x80 else 0
        found |= byte << 8 * i
    return found


MEANINGS: dict[str, Meaning] = {
    "copy": Meaning("x", lambda a: a, wraps=True),
    "add": Meaning("xx", operator.add, wraps=True),
    "sub": Meaning("xx", operator.sub, wraps=True),
    "neg": Meaning("x", operator.neg, wraps=True),
    "not": Meaning("x", operator.invert, wraps=True),
    "and": Meaning("xx", operator.and_, wraps=True),
    "or": Meaning("xx", operator.or_, wraps=True),
    "xor": Meaning("xx", operator.xor, wraps=True),
    "abs": Meaning("x", abs),
    "min": Meaning("xx", min),
    "max": Meaning("xx", max),
    "mul": Meaning("xx", operator.mul, wraps=True),
    "mulhi": Meaning("xx", lambda width, a, b: a * b >> width, takes_width=True),
    "mad": Meaning("xxr", lambda a, b, c: a * b + c, wraps=True),
    "madhi": Meaning("xxr", lambda width, a, b, c: (a * b >> width) + c, takes_width=True),
    "div": Meaning("xx", _quotient),
    "rem": Meaning("xx", _remainder),
    "ceildiv": Meaning("xx", lambda a, b: -(-a // b) if b else None),
    "shl": Meaning("xc", lambda a, by: a << min(by, 64)),
    "shr": Meaning("xc", lambda a, by: a >> min(by, 64)),
    "eq": Meaning("xx", operator.eq),
    "ne": Meaning("xx", operator.ne),
    "lt": Meaning("xx", operator.lt),
    "le": Meaning("xx", operator.le),
    "gt": Meaning("xx", operator.gt),
    "ge": Meaning("xx", operator.ge),
    "select": Meaning("xxp", lambda a, b, choice: a if choice else b),
    "bfe": Meaning("xff", _extracted),
    "bfes": Meaning("xff", lambda a, start, n: signed(_extracted(a, start, n), n)),
    "bfi": Meaning("xxff", _inserted),
    "lop3": Meaning("xxxf", _table_lookup, wraps=True),
    "prmt": Meaning("xxc", _permuted),
}
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


@dataclass(frozen=True)
class IntegerOperation:
    """An operation of `MEANINGS` on integers of some width.

    Attributes:
        name: in the table.
        width: bits of a source.
        is_signed: whether sources are two's complement; where a wider result shows it.
        result: bits of the result.
    """

    name: str
    width: int
    is_signed: bool
    result: int

    @cached_property
    def source_widths(self) -> tuple[int, ...]:
        """Bits of each source."""
        widths = {"x": self.width, "r": self.result, "c": 32, "f": 8, "p": 1}
        return tuple(widths[kind] for kind in MEANINGS[self.name].sources)

    @cached_property
    def function(self) -> Callable[..., Number]:
        """What it makes of integers, of each of which it reads as many bits as it takes."""
        meaning = MEANINGS[self.name]
        function = meaning.function
        if meaning.takes_width:
            function = partial(function, self.width)
        if meaning.wraps and self.result <= self.width:
            return function
        if self.name in COMPARISONS:  # with its sign flipped, two's complement is in order
            mask, sign = (1 << self.width) - 1, 1 << self.width >> 1 if self.is_signed else 0
            return lambda a, b: function((a & mask) ^ sign, (b & mask) ^ sign)
        readers = [
            _reader(width, self.is_signed and kind == "x")
            for kind, width in zip(meaning.sources, self.source_widths, strict=True)
        ]
        if len(readers) == 2:
            first, second = readers
            return lambda a, b: function(first(a), second(b))
        return lambda *values: function(
            *[read(value) for read, value in zip(readers, values, strict=True)]
        )


def _reader(width: int, is_signed: bool) -> Callable[[int], int]:
    mask = (1 << width) - 1
    return (lambda value: signed(value, width)) if is_signed else (lambda value: value & mask)


# ----------------------------------------------------------------------------------- domains


class Domain(Protocol[T]):
    """What may be known of integers, in the form `T`.

    Attributes:
        unknown: says nothing of an integer.
        rules: for operations on sources that are not all numbers, by the name of the operation:
            (operation, sources) -> the result. Each result holds whatever the sources are.
    """

    @property
    def unknown(self) -> T: ...

    @property
    def rules(self) -> Mapping[str, Callable[..., T]]: ...

    def number(self, value: T, width: int) -> Number:
        """The low `width` bits, as a number, if all of them are known."""

    def constant(self, value: int, width: int) -> T:
        """A number of `width` bits."""


def evaluate(domain: Domain[T], operation: IntegerOperation, sources: Sequence[T]) -> T:
    """What is known of an operation's result, from what is known of its sources."""
    rule = domain.rules.get(operation.name)
    return by_numbers(domain, operation, sources) if rule is None else rule(operation, *sources)


def by_numbers(domain: Domain[T], operation: IntegerOperation, sources: Sequence[T]) -> T:
    """The result of an operation on numbers; unknown if a source is not known as a whole."""
    widths = operation.source_widths
    numbers = [domain.number(value, width) for value, width in zip(sources, widths, strict=True)]
    found = None if None in numbers else operation.function(*numbers)
    return domain.unknown if found is None else domain.constant(found, operation.result)


@lru_cache(maxsize=4096)
def on_numbers(operation: IntegerOperation) -> Callable[..., Number]:
    """An operation on numbers, of which some may be None; the result counts from 0 up.

    For a program that is run: the same as `evaluate`, prepared.
    """
    function, mask = operation.function, (1 << operation.result) - 1

    def all_known(*values: Number) -> Number:
        if None in values:
            return None
        found = function(*values)
        return None if found is None else found & mask

    def both_known(a: Number, b: Number) -> Number:
        if a is None or b is None:
            return None
        found = function(a, b)
        return None if found is None else found & mask

    def bitwise(a: Number, b: Number) -> Number:
        """``and``, ``or``: one source may decide."""
        if a is not None and b is not None:
            return both_known(a, b)
        decisive = 0 if operation.name == "and" else mask
        known = b if a is None else a
        return decisive if known is not None and known & mask == decisive else None

    def select(a: Number, b: Number, choice: Number) -> Number:
        if choice is None and a != b:
            return None
        found = b if choice == 0 else a
        return None if found is None else found & mask

    if operation.name == "select":
        return select
    if operation.name in ("and", "or"):
        return bitwise
    return both_known if len(operation.source_widths) == 2 else all_known
