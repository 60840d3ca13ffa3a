"""Integers of a module as sums of what is not known: which conditions never hold.

``%r7 = %r2 + 4 * %r3 + 16`` and ``%r9 = %r2 + 4 * %r3 + 48`` differ by 32. `SumDomain` is the
domain of `triton_ext.integers` that such sums form. Integers are taken not to overflow, as the
compiler takes them (Triton's arithmetic on ``i32`` is signed; its index computations carry
``nsw``). The compiler folds a condition such as ``first + 192 < first + 128``, or one that no
iteration of a loop fulfils, and leaves out what depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from triton_ext.integers import IntegerOperation, evaluate, signed
from triton_ext.mlir.arith import integer_constant, integer_operation
from triton_ext.mlir.ir import Operation, Value
from triton_ext.mlir.memory_flow import forwarded_sources
from triton_ext.mlir.module import MlirModule

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


Sum = LinearSum[Value]
_SUMS: SumDomain[Value] = SumDomain()
_MAX_DEPTH = 64


class Scalars:
    """The integers and conditions of a module."""

    def __init__(self, module: MlirModule) -> None:
        self._known: dict[Value, Sum] = {}
        self._sources = forwarded_sources(module)

    def sum(self, value: Value, depth: int = 0) -> Sum:
        """An integer as a sum."""
        if value not in self._known:
            self._known[value] = own = LinearSum(((value, 1),))  # while its sources are looked at
            if depth < _MAX_DEPTH:
                found = self._sum(value, depth + 1)
                self._known[value] = own if found is None else found
        return self._known[value]

    def _sum(self, value: Value, depth: int) -> AnySum[Value]:
        operation = value.definition
        if operation is None:
            sources = self._sources.get(value, [])
            # What a partition captures is one value; what a loop carries is several.
            return self.sum(sources[0], depth) if len(sources) == 1 else None
        if operation.name == "arith.constant":
            number = integer_constant(value)
            return None if number is None else Sum.of({}, number)
        if operation.name == "arith.cmpi":
            known = self.condition(value)
            return None if known is None else Sum.of({}, known)
        if operation.name == "arith.select":
            chosen = self.condition(operation.operands[0])
            return None if chosen is None else self.sum(operation.operands[2 - chosen], depth)
        integer = integer_operation(operation)
        if integer is None:
            return None
        return evaluate(_SUMS, integer, [self.sum(each, depth) for each in operation.operands])

    # -------------------------------------------------------------------------- conditions

    def condition(self, value: Value) -> bool | None:
        """Whether a condition always holds (True), never (False), or one cannot tell (None)."""
        operation = value.definition
        if operation is None:
            sources = self._sources.get(value, [])
            return self.condition(sources[0]) if len(sources) == 1 else None
        if operation.name == "arith.constant":
            number = integer_constant(value)
            return None if number is None else bool(number)
        if operation.name in ("arith.andi", "arith.ori"):
            decisive = operation.name == "arith.ori"
            sides = [self.condition(operand) for operand in operation.operands[:2]]
            if decisive in sides:
                return decisive
            return None if None in sides else not decisive
        integer = integer_operation(operation) if operation.name == "arith.cmpi" else None
        return None if integer is None else self._compared(integer, *operation.operands)

    def _compared(self, of: IntegerOperation, left: Value, right: Value) -> bool | None:
        if not of.is_signed and of.name not in ("eq", "ne"):
            return None
        difference = self.sum(right) - self.sum(left)
        least = self._bound(difference, want_most=False)
        most = self._bound(difference, want_most=True)
        if of.name in ("lt", "ge"):
            known = _decided(least is not None and least > 0, most is not None and most <= 0)
        elif of.name in ("le", "gt"):
            known = _decided(least is not None and least >= 0, most is not None and most < 0)
        else:
            apart = (least is not None and least > 0) or (most is not None and most < 0)
            known = _decided(least == most == 0, apart)
        return known if known is None or of.name in ("lt", "le", "eq") else not known

    def _bound(self, bound: Sum, *, want_most: bool) -> int | None:
        """The least or most of a sum, loop counters being in their bounds; None if not known."""
        for _ in range(4):  # counters of nested loops
            found = next((item for item in bound.terms if _loop_of(item[0])), None)
            if found is None:
                break
            counter, factor = found
            loop = _loop_of(counter)
            assert loop is not None
            lower, upper, step = (self.sum(operand) for operand in loop.operands[:3])
            step_number, extent = step.number, (upper - lower).number
            if step_number is None or step_number <= 0:
                break
            if (signed(factor, 64) > 0) != want_most:
                reached = lower
            elif extent is None:
                reached = upper - Sum.of({}, 1)
            else:
                reached = lower + Sum.of({}, (-(-extent // step_number) - 1) * step_number)
            bound += (reached - LinearSum(((counter, 1),))).times(factor)
        return bound.number

    def is_executed(self, operation: Operation) -> bool:
        """Whether control flow may come to an operation; False if it never does."""
        inner, around = operation, operation.parent
        while around is not None:
            if around.name == "scf.if":
                is_else = inner.block is not None and around.regions.index(inner.block.region) == 1
                if self.condition(around.operands[0]) is is_else:
                    return False
            elif around.name == "scf.for":
                lower, upper = (self.sum(operand) for operand in around.operands[:2])
                most = self._bound(upper - lower, want_most=True)
                if most is not None and most <= 0:
                    return False
            inner, around = around, around.parent
        return True


def _loop_of(value: Value) -> Operation | None:
    """The ``scf.for`` whose counter a value is."""
    if value.definition is not None or value.index != 0 or value.block is None:
        return None
    parent = value.block.region.parent
    return parent if parent.name == "scf.for" else None


def _decided(holds: bool, fails: bool) -> bool | None:
    return True if holds else False if fails else None
