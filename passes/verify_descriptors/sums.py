"""Integers as sums of what is not known: how far apart are two of them, whatever that is?

``%r7 = %r2 + 4 * %r3 + 16`` and ``%r9 = %r2 + 4 * %r3 + 48`` differ by 32. `SUMS` is the domain of
`triton_ext.integers` that such sums form. Integers are taken not to overflow, as the compiler takes
them (Triton's arithmetic on ``i32`` is signed; its index computations carry ``nsw``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from triton_ext.integers import IntegerOperation, signed

Term = TypeVar("Term")
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class LinearSum(Generic[Term]):
    """A constant, and multiples of what is not known; modulo 2**64.

    Attributes:
        terms: (what is not known, its factor), in order of the names.
        constant: added to them.
    """

    terms: tuple[tuple[Term, int], ...] = ()
    constant: int = 0

    def __add__(self, other: LinearSum[Term]) -> LinearSum[Term]:
        factors = dict(self.terms)
        for term, factor in other.terms:
            factors[term] = factors.get(term, 0) + factor
        return LinearSum.of(factors, self.constant + other.constant)

    def __sub__(self, other: LinearSum[Term]) -> LinearSum[Term]:
        return self + other.times(-1)

    def times(self, factor: int) -> LinearSum[Term]:
        """A multiple."""
        return LinearSum.of(
            {term: value * factor for term, value in self.terms}, self.constant * factor
        )

    @classmethod
    def of(cls, factors: Mapping[Term, int], constant: int) -> LinearSum[Term]:
        """A sum without the terms whose factor is 0."""
        kept = {term: factor & _MASK for term, factor in factors.items() if factor & _MASK}
        return cls(tuple(sorted(kept.items(), key=_name)), constant & _MASK)

    @property
    def is_constant(self) -> bool:
        """Whether nothing is unknown."""
        return not self.terms

    @property
    def number(self) -> int | None:
        """The sum as a signed integer, if nothing is unknown."""
        return None if self.terms else signed(self.constant, 64)


def _name(item: tuple[object, int]) -> str:
    return str(item[0])


AnySum = LinearSum[Term] | None
"""A sum, or None for what is not one of few terms."""


def _scaled(_: IntegerOperation, left: LinearSum[Term], right: LinearSum[Term]) -> AnySum[Term]:
    """A product with a number on either side."""
    if right.is_constant:
        return left.times(right.constant)
    return right.times(left.constant) if left.is_constant else None


def _scaled_and_added(
    of: IntegerOperation, left: LinearSum[Term], right: LinearSum[Term], addend: LinearSum[Term]
) -> AnySum[Term]:
    product = _scaled(of, left, right)
    return None if product is None else product + addend


def _shifted(_: IntegerOperation, source: LinearSum[Term], by: LinearSum[Term]) -> AnySum[Term]:
    return source.times(1 << min(by.constant, 64)) if by.is_constant else None


class SumDomain(Generic[Term]):
    """Sums of unknown terms, as a `triton_ext.integers.Domain`."""

    unknown: AnySum[Term] = None
    rules: Mapping[str, Callable[..., AnySum[Term]]] = {
        "copy": lambda of, source: source,
        "add": lambda of, left, right: left + right,
        "sub": lambda of, left, right: left - right,
        "mul": _scaled, "mad": _scaled_and_added, "shl": _shifted,
    }  # fmt: skip

    def number(self, value: AnySum[Term], width: int) -> int | None:
        """The integer, if nothing of it is unknown."""
        return None if value is None else value.number

    def constant(self, value: int, width: int) -> AnySum[Term]:
        """A signed integer; a condition is 0 or 1."""
        return LinearSum.of({}, signed(value, width) if width > 1 else value & 1)
