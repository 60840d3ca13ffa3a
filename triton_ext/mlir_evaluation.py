"""The integers of a module for given arguments, the first time that control comes to them.

For one block of a launch: loops are in their first iteration, and what hangs on tensors or on
memory is not known. The PTX is folded in the same way (`triton_ext.ptx_folding`), so that both can
be compared.
"""

from __future__ import annotations

import re

from triton_ext.memory_flow import forwarded
from triton_ext.mlir_module import MlirModule, Operation, Value
from triton_ext.ptx_sums import Launch

_WIDTHS = re.compile(r"i(\d+)")
_MAX_DEPTH = 200
_CASTS = ("arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast")
_AXES = {"x": 0, "y": 1, "z": 2}


def plausible_launch(module: MlirModule) -> Launch:
    """Arguments with which most loops run, all different, so that none stands for another."""
    arguments = {}
    for operation in module.operations:
        if operation.name == "tt.func" and "public" in {token.text for token in operation.tokens}:
            for value in operation.regions[0].entry.arguments:
                if value.type in ("i32", "i64"):
                    arguments[value.index] = 16 * (257 + 6 * value.index)
    return Launch(arguments, (37, 3, 2), (61, 7, 5))


class Evaluation:
    """The integers of a module in one block of a launch."""

    def __init__(self, module: MlirModule, launch: Launch) -> None:
        self.module, self.launch = module, launch
        self._known: dict[Value, int | None] = {}
        self._handed: dict[Value, list[Value]] = {}
        for source, target in forwarded(module):
            self._handed.setdefault(target, []).append(source)

    def value(self, value: Value, depth: int = 0) -> int | None:
        """An integer or a condition; None if it is not known."""
        if value not in self._known:
            self._known[value] = None
            if depth < _MAX_DEPTH:
                self._known[value] = self._value(value, depth + 1)
        return self._known[value]

    def _value(self, value: Value, depth: int) -> int | None:
        operation = value.definition
        if operation is None:
            return self._argument(value, depth)
        name = operation.name
        if name == "arith.constant":
            match = re.search(r"arith\.constant\s+(-?\d+|true|false)\b(?!\.)", operation.text)
            if match is None:
                return None
            return {"true": 1, "false": 0}.get(match[1]) if match[1][0] in "tf" else int(match[1])
        if name in ("tt.get_program_id", "tt.get_num_programs"):
            axis = next((t.text for t in operation.tokens if t.text in _AXES), "x")
            of = self.launch.program if name.endswith("id") else self.launch.programs
            return of[_AXES[axis]]
        if name == "scf.if":
            return self._chosen(operation, value, depth)
        if not name.startswith("arith.") or value.type is None or "<" in value.type:
            return None
        sources = [self.value(operand, depth) for operand in operation.operands]
        if name == "arith.select":
            if sources[0] is None:
                return None
            return sources[1 if sources[0] else 2]
        known = [source for source in sources if source is not None]
        if len(known) != len(sources):
            return None
        result = _result(operation, known)
        return None if result is None else _wrapped(result, value.type)

    def _argument(self, value: Value, depth: int) -> int | None:
        if value.block is None:
            return None
        parent = value.block.region.parent
        if parent.name == "tt.func":
            if "public" in {token.text for token in parent.tokens}:
                return self.launch.arguments.get(value.index)
            return None
        if parent.name == "scf.for" and value.index == 0:
            return self.value(parent.operands[0], depth)
        if parent.name in ("scf.for", "ttg.warp_specialize") and self._handed.get(value):
            return self.value(self._handed[value][0], depth)  # first what it begins with
        return None

    def _chosen(self, operation: Operation, value: Value, depth: int) -> int | None:
        condition = self.value(operation.operands[0], depth)
        if condition is None or len(operation.regions) < 2:
            return None
        end = operation.regions[0 if condition else 1].blocks[-1].operations[-1]
        if end.name != "scf.yield" or value.index >= len(end.operands):
            return None
        return self.value(end.operands[value.index], depth)

    def is_executed(self, operation: Operation) -> bool | None:
        """Whether control comes to an operation in the first iterations; None if unknown."""
        inner, around = operation, operation.parent
        while around is not None:
            if around.name == "scf.if":
                known = self.value(around.operands[0])
                if known is None:
                    return None
                region = around.regions.index(inner.block.region) if inner.block else 0
                if bool(known) == bool(region):
                    return False
            elif around.name == "scf.for":
                lower, upper = (self.value(operand) for operand in around.operands[:2])
                if lower is None or upper is None:
                    return None
                if lower >= upper:
                    return False
            elif around.name not in (
                "builtin.module", "tt.func", "ttg.warp_specialize", "ttg.warp_specialize.partitions"
            ):  # fmt: skip
                return None
            if around.name == "tt.func" and "public" not in {t.text for t in around.tokens}:
                return None
            inner, around = around, around.parent
        return True if inner.block is None or len(inner.block.region.blocks) == 1 else None


def _wrapped(number: int, kind: str) -> int:
    """As a signed integer of a type's width; a condition as 0 or 1."""
    match = _WIDTHS.fullmatch(kind)
    if match is None:
        return number
    width = int(match[1])
    number &= (1 << width) - 1
    return number - (1 << width) if width > 1 and number >> (width - 1) else number


def _result(operation: Operation, sources: list[int]) -> int | None:
    name = operation.name.removeprefix("arith.")
    if operation.name in _CASTS:
        (source,) = sources
        match = _WIDTHS.fullmatch(operation.operands[0].type or "")
        if name == "extui" and match:
            source &= (1 << int(match[1])) - 1
        return source
    if len(sources) != 2:
        return None
    a, b = sources
    if name == "cmpi":
        words = [token.text for token in operation.tokens if token.kind == "word"]
        return _compared(words[1] if len(words) > 1 else "", a, b)
    if name in ("divsi", "remsi", "divui", "remui"):
        if not b or (name.endswith("ui") and (a < 0 or b < 0)):
            return None
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return quotient if name.startswith("div") else a - quotient * b
    simple = {
        "addi": a + b, "subi": a - b, "muli": a * b, "andi": a & b, "ori": a | b, "xori": a ^ b,
        "minsi": min(a, b), "maxsi": max(a, b),
    }  # fmt: skip
    if name in simple:
        return simple[name]
    if name in ("shli", "shrsi") and 0 <= b < 64:
        return a << b if name == "shli" else a >> b
    if name == "shrui" and a >= 0 and 0 <= b < 64:
        return a >> b
    return None


def _compared(predicate: str, a: int, b: int) -> int | None:
    if predicate.startswith("u") and (a < 0 or b < 0):
        return None
    results = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    found = results.get(predicate if predicate in results else predicate[1:])
    return None if found is None else int(found)
