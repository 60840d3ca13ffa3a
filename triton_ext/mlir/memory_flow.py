"""Which memory a value of a module may be: from allocations through views, loops and branches.

A value of type ``!ttg.memdesc`` or ``!tt.tensordesc`` is an allocation (or an argument of the
function), a view of another one, or one that control flow forwards: an argument of a loop, of a
block or of a partition, or the result of an ``if``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

from triton_ext.mlir.ir import Block, Operation, Value
from triton_ext.mlir.module import MlirModule
from triton_ext.mlir.operations import CONTROL_FLOW

VIEWS = (
    "ttg.memdesc_index", "ttg.memdesc_subslice", "ttg.memdesc_trans", "ttg.memdesc_reshape",
    "ttg.memdesc_reinterpret", "ttng.tmem_subslice", "ttng.reinterpret_tensor_descriptor",
)  # fmt: skip
"""Operations whose result is the same memory as their first operand, seen otherwise."""
FORWARDING = frozenset(
    (
        *VIEWS, *CONTROL_FLOW, "tt.call", "tt.return", "ttng.warp_group_dot_wait",
        "ttg.local_dealloc",
    )
)  # fmt: skip
"""Operations that touch no element of the memory that they take."""


def _terminators(operation: Operation, region: int, name: str) -> Iterator[Operation]:
    if region < len(operation.regions):
        for block in operation.regions[region].blocks:
            if block.operations and block.operations[-1].name == name:
                yield block.operations[-1]


def _pairs(sources: list[Value], targets: list[Value]) -> Iterator[tuple[Value, Value]]:
    yield from zip(sources, targets, strict=False)


def _loop(operation: Operation) -> Iterator[tuple[Value, Value]]:
    """scf.for: lower bound, upper bound, step, then the initial values."""
    initial, carried = operation.operands[3:], operation.regions[0].entry.arguments[1:]
    yield from _pairs(initial, carried)
    yield from _pairs(initial, operation.results)
    for end in _terminators(operation, 0, "scf.yield"):
        yield from _pairs(end.operands, carried)
        yield from _pairs(end.operands, operation.results)


def _while(operation: Operation) -> Iterator[tuple[Value, Value]]:
    before = operation.regions[0].entry.arguments
    yield from _pairs(operation.operands, before)
    for end in _terminators(operation, 0, "scf.condition"):
        yield from _pairs(end.operands[1:], operation.results)
        if len(operation.regions) > 1:
            yield from _pairs(end.operands[1:], operation.regions[1].entry.arguments)
    for end in _terminators(operation, 1, "scf.yield"):
        yield from _pairs(end.operands, before)


def _if(operation: Operation) -> Iterator[tuple[Value, Value]]:
    for region in range(len(operation.regions)):
        for end in _terminators(operation, region, "scf.yield"):
            yield from _pairs(end.operands, operation.results)


def _partitions(operation: Operation) -> Iterator[tuple[Value, Value]]:
    for region in operation.regions[1:]:
        yield from _pairs(operation.operands, region.entry.arguments)
    for end in _terminators(operation, 0, "ttg.warp_yield"):
        yield from _pairs(end.operands, operation.results)


def _branch(operation: Operation) -> Iterator[tuple[Value, Value]]:
    """cf.br, cf.cond_br: a block's label stands in front of what it is given."""
    if operation.block is None:
        return
    blocks = {block.label: block for block in operation.block.region.blocks}
    target: Block | None = None
    position = index = 0
    for token in operation.tokens:
        if token.kind == "block":
            target, position = blocks.get(token.text), 0
        elif index < len(operation.operand_tokens) and token is operation.operand_tokens[index]:
            if target and position < len(target.arguments):
                yield operation.operands[index], target.arguments[position]
                position += 1
            index += 1


def forwarded(module: MlirModule) -> Iterator[tuple[Value, Value]]:
    """Pairs (from, to) of values of which the second is, in some execution, the first.

    Control flow (``scf``, ``cf``, ``ttg.warp_specialize``), calls, and ``arith.select``.
    """
    functions = {
        operation.tokens[i].text: operation
        for operation in module.operations
        if operation.name == "tt.func"
        for i in range(len(operation.tokens))
        if operation.tokens[i].kind == "symbol"
    }
    rules = {
        "scf.for": _loop, "scf.while": _while, "scf.if": _if, "ttg.warp_specialize": _partitions,
        "cf.br": _branch, "cf.cond_br": _branch,
    }  # fmt: skip
    for operation in module.operations:
        if operation.name in rules:
            yield from rules[operation.name](operation)
        elif operation.name == "ttng.warp_group_dot_wait":
            yield from _pairs(operation.operands, operation.results)
        elif operation.name == "arith.select":
            for value in operation.operands[1:]:
                yield value, operation.results[0]
        elif operation.name == "tt.call":
            symbol = next(token.text for token in operation.tokens if token.kind == "symbol")
            if symbol in functions:
                called = functions[symbol]
                yield from _pairs(operation.operands, called.regions[0].entry.arguments)
                for end in _terminators(called, 0, "tt.return"):
                    yield from _pairs(end.operands, operation.results)


def components(
    starts: Iterable[Value], edges: Iterable[tuple[Value, Value]]
) -> Iterator[list[Value]]:
    """The values that edges connect with each start, start first; no value twice."""
    neighbours: dict[Value, list[Value]] = {}
    for first, second in edges:
        neighbours.setdefault(first, []).append(second)
        neighbours.setdefault(second, []).append(first)
    seen: set[Value] = set()
    for start in starts:
        if start not in seen:
            reached = _reached(start, neighbours)
            seen.update(reached)
            yield list(reached)


def _reached(start: Value, edges: dict[Value, list[Value]]) -> dict[Value, None]:
    seen, pending = {start: None}, [start]
    while pending:
        for other in edges.get(pending.pop(), ()):
            if other not in seen:
                seen[other] = None
                pending.append(other)
    return seen


def forwarded_sources(
    module: MlirModule, is_wanted: Callable[[Value], object] = lambda value: True
) -> dict[Value, list[Value]]:
    """The sources of each wanted value to which control flow forwards any (`forwarded`)."""
    found: dict[Value, list[Value]] = {}
    for source, target in forwarded(module):
        if is_wanted(target):
            found.setdefault(target, []).append(source)
    return found


class MemoryFlow:
    """The sources of every memory value of a module.

    A source is the result of an allocation, an argument of the kernel, or whatever else makes
    memory out of nothing that is seen here.
    """

    def __init__(self, module: MlirModule) -> None:
        self.module = module
        self._before: dict[Value, list[Value]] = {}
        self._after: dict[Value, list[Value]] = {}
        for source, target in self._edges():
            self._before.setdefault(target, []).append(source)
            self._after.setdefault(source, []).append(target)

    def _edges(self) -> Iterator[tuple[Value, Value]]:
        for source, target in forwarded(self.module):
            if self.module.memory(source) is not None:
                yield source, target
        for operation in self.module.operations:
            if operation.name in VIEWS and operation.results:
                yield operation.operands[0], operation.results[0]

    def sources(self, value: Value) -> list[Value]:
        """The allocations and arguments that a value may be, or be a part of."""
        return [each for each in _reached(value, self._before) if not self._before.get(each)]

    def uses(self, source: Value) -> list[tuple[Operation, int]]:
        """The operations that touch the memory of a value, or of what is made from it.

        Views and control flow, which only forward it, are among them.
        """
        return [use for value in _reached(source, self._after) for use in value.uses]

    def views(self, source: Value) -> list[Value]:
        """A value, and all values that may be the same memory, or a part of it."""
        return list(_reached(source, self._after))

    @cached_property
    def shared_sources(self) -> list[Value]:
        """The values that shared memory begins with: allocations, and what is not known."""
        found = []
        for value in self.module.values:
            kind = self.module.memory(value)
            is_shared = kind and kind.kind == "memdesc" and kind.space == "shared"
            if is_shared and not self._before.get(value):
                found.append(value)
        return found
