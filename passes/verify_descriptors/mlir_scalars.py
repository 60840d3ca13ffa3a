"""Integers of a module as sums of what is not known: which conditions never hold.

The compiler folds a condition such as ``first + 192 < first + 128``, or one that no iteration of a
loop fulfils, and leaves out what hangs on it. Integers are taken not to overflow, as the compiler
takes them (Triton's arithmetic on ``i32`` is signed; its index computations carry ``nsw``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from triton_ext.mlir.memory_flow import forwarded
from triton_ext.mlir.module import MlirModule, Operation, Value

_CASTS = ("arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast")
_MAX_DEPTH = 64


@dataclass(frozen=True)
class Linear:
    """A constant, and multiples of values that are not known."""

    terms: Mapping[Value, int]
    constant: int

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """The sum with a multiple of another one."""
        terms = dict(self.terms)
        for value, count in other.terms.items():
            terms[value] = terms.get(value, 0) + factor * count
        kept = {value: count for value, count in terms.items() if count}
        return Linear(kept, self.constant + factor * other.constant)


class Scalars:
    """The integers and conditions of a module."""

    def __init__(self, module: MlirModule) -> None:
        self.module = module
        self._known: dict[Value, Linear] = {}
        self._handed: dict[Value, list[Value]] = {}
        for source, target in forwarded(module):
            self._handed.setdefault(target, []).append(source)

    def constant(self, value: Value) -> int | None:
        """An integer that is always the same, or None."""
        found = self.linear(value)
        return None if found.terms else found.constant

    def linear(self, value: Value, depth: int = 0) -> Linear:
        """An integer as a sum."""
        if value not in self._known:
            own = Linear({value: 1}, 0)
            self._known[value] = own
            if depth < _MAX_DEPTH:
                found = self._linear(value, depth + 1)
                self._known[value] = own if found is None else found
        return self._known[value]

    def _linear(self, value: Value, depth: int) -> Linear | None:
        operation = value.definition
        if operation is None:
            sources = self._handed.get(value, [])
            # What a partition captures is one value; what a loop carries is several.
            return self.linear(sources[0], depth) if len(sources) == 1 else None
        operands, name = operation.operands, operation.name
        if name == "arith.constant":
            number = _constant(operation)
            return None if number is None else Linear({}, number)
        if name in _CASTS:
            return self.linear(operands[0], depth)
        if name in ("arith.addi", "arith.subi"):
            left, right = (self.linear(operand, depth) for operand in operands[:2])
            return left.plus(right, 1 if name == "arith.addi" else -1)
        if name in ("arith.muli", "arith.remsi", "arith.divsi", "arith.andi", "arith.xori"):
            return self._binary(name, *(self.linear(operand, depth) for operand in operands[:2]))
        if name == "arith.cmpi":
            known = self.condition(value)
            return None if known is None else Linear({}, int(known))
        if name == "arith.select" and (chosen := self.condition(operands[0])) is not None:
            return self.linear(operands[1 if chosen else 2], depth)
        return None

    @staticmethod
    def _binary(name: str, left: Linear, right: Linear) -> Linear | None:
        if name == "arith.muli":
            for one, other in ((left, right), (right, left)):
                if not other.terms:
                    return Linear({}, 0).plus(one, other.constant)
            return None
        if left.terms or right.terms:
            return None
        a, b = left.constant, right.constant
        if name == "arith.andi":
            return Linear({}, a & b)
        if name == "arith.xori":
            return Linear({}, a ^ b)
        if not b:
            return None
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return Linear({}, quotient if name == "arith.divsi" else a - quotient * b)

    # -------------------------------------------------------------------------- conditions

    def condition(self, value: Value) -> bool | None:
        """Whether a condition always holds (True), never (False), or one cannot tell (None)."""
        operation = value.definition
        if operation is None:
            sources = self._handed.get(value, [])
            return self.condition(sources[0]) if len(sources) == 1 else None
        if operation.name == "arith.constant":
            number = _constant(operation)
            return None if number is None else bool(number)
        if operation.name in ("arith.andi", "arith.ori"):
            decisive = operation.name == "arith.ori"
            sides = [self.condition(operand) for operand in operation.operands[:2]]
            if decisive in sides:
                return decisive
            return None if None in sides else not decisive
        if operation.name == "arith.cmpi":
            return self._compared(operation)
        return None

    def _compared(self, operation: Operation) -> bool | None:
        words = [token.text for token in operation.tokens if token.kind == "word"]
        predicate = words[1] if len(words) > 1 else ""
        left, right = (self.linear(operand) for operand in operation.operands[:2])
        if predicate in ("sgt", "sge"):
            left, right, predicate = right, left, {"sgt": "slt", "sge": "sle"}[predicate]
        if predicate not in ("slt", "sle", "eq", "ne"):
            return None
        least, most = self._bounds(right.plus(left, -1))
        if predicate in ("slt", "sle"):
            limit = 1 if predicate == "slt" else 0
            if least is not None and least >= limit:
                return True
            return False if most is not None and most < limit else None
        if least is not None and least == most == 0:
            return predicate == "eq"
        if (least is not None and least > 0) or (most is not None and most < 0):
            return predicate == "ne"
        return None

    def _bounds(self, difference: Linear) -> tuple[int | None, int | None]:
        """(least, most) of a sum, counters of loops between their bounds."""
        if not difference.terms:
            return difference.constant, difference.constant
        ends: list[int | None] = []
        for want_most in (False, True):
            bound = difference
            for _ in range(4):
                counters = [value for value in bound.terms if _loop_of(value) is not None]
                if not counters:
                    break
                value = counters[0]
                loop, factor = _loop_of(value), bound.terms[value]
                assert loop is not None
                lower, upper, step = (self.linear(operand) for operand in loop.operands[:3])
                if step.terms or step.constant <= 0:
                    break
                reached = upper.plus(Linear({}, -1)) if (factor > 0) == want_most else lower
                if not upper.plus(lower, -1).terms and (factor > 0) == want_most:
                    count = -(-(upper.plus(lower, -1).constant) // step.constant)
                    reached = lower.plus(Linear({}, (count - 1) * step.constant))
                bound = bound.plus(Linear({value: 1}, 0), -factor).plus(reached, factor)
            ends.append(None if bound.terms else bound.constant)
        return ends[0], ends[1]

    def is_executed(self, operation: Operation) -> bool | None:
        """Whether control flow comes to an operation: False if never, None if one cannot tell."""
        certain: bool | None = True
        inner, around = operation, operation.parent
        while around is not None:
            if around.name == "scf.if":
                known = self.condition(around.operands[0])
                if inner.block is not None and around.regions.index(inner.block.region) == 1:
                    known = None if known is None else not known
                if known is False:
                    return False
                certain = certain if known else None
            elif around.name == "scf.for":
                lower, upper = (self.linear(operand) for operand in around.operands[:2])
                _, most = self._bounds(upper.plus(lower, -1))
                if most is not None and most <= 0:
                    return False
                certain = None
            elif around.name == "scf.while":
                certain = None
            inner, around = around, around.parent
        return certain


def _loop_of(value: Value) -> Operation | None:
    """The ``scf.for`` whose counter a value is."""
    if value.definition is not None or value.index != 0 or value.block is None:
        return None
    parent = value.block.region.parent
    return parent if parent.name == "scf.for" else None


def _constant(operation: Operation) -> int | None:
    match = re.search(
        r"arith\.constant\s+(?:\{.*?\}\s+)?(-?\d+|true|false)\b(?!\.)", operation.text
    )
    if match is None:
        return None
    return {"true": 1, "false": 0}.get(match[1]) if match[1][0] in "tf" else int(match[1])
