"""What a module executes, with numbers in place of what the kernel is given.

`trace` runs the integers and the memory views of a module, through loops, branches and partitions,
and says which of some chosen operations are executed, in order, and with what. Integers that are
loaded from global memory are `contents`. Tensors are not run; a loop or a branch that hangs on them
ends the trace. The rows that a TMA gather or scatter moves are worked out when it is executed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from triton_ext.mlir.module import Block, MlirModule, Operation, Value
from triton_ext.passes.verify_descriptors.mlir_evaluation import contents, element_type, evaluated
from triton_ext.passes.verify_descriptors.ptx_sums import Launch

Place: TypeAlias = "tuple[Value, int]"
"""An allocation, and how far from its start (bytes; in tensor memory, lane << 16 | column)."""
Known: TypeAlias = "int | Place | list[int | None] | None"
"""A number, a place in memory, or the elements of a tensor."""
_GATHERS = ("ttng.async_tma_gather", "ttng.async_tma_scatter")
_MAX_DEPTH = 100
_SAME_ELEMENTS = ("ttg.convert_layout", "tt.bitcast")
_MAX_VISITS = 12_000
_AXES = {"x": 0, "y": 1, "z": 2}
_ALLOCATIONS = ("ttg.local_alloc", "ttng.tmem_alloc", "ttg.global_scratch_alloc")
_SAME = ("ttng.reinterpret_tensor_descriptor", "tt.bitcast")
_INTEGER = re.compile(r"i(\d+)")
_LENGTH = re.compile(r"tensor<(\d+)x(?!\d+x)")
_POINTER = re.compile(r"!tt\.ptr<[a-z]+(\d+)\w*(?:, \d+)?>")


@dataclass(frozen=True)
class Executed:
    """One execution of one of the chosen operations.

    Attributes:
        operation: which.
        operands: what it takes: integers, places in memory, or None for what is not known.
    """

    operation: Operation
    operands: tuple[Known, ...]


@dataclass
class Trace:
    """What the warps of a partition execute.

    Attributes:
        events: in order.
        end: why there are no more: "" if the partition ends, else in words.
    """

    events: list[Executed] = field(default_factory=list)
    end: str = ""

    @property
    def is_cut(self) -> bool:
        """Whether it ended only because it is long."""
        return self.end.startswith("after enough")


class _Ended(Exception):
    """The trace cannot go on; says why."""


@dataclass(frozen=True)
class _Partition:
    """A region of ``ttg.warp_specialize``, with what it is given."""

    block: Block
    captured: tuple[Known, ...]


class ModuleTracer:
    """Runs a module: first the partition with which it begins, then the others.

    Args:
        module: to run.
        launch: what the kernel is given.
        wanted: the operations whose executions are recorded.
        offset: by how much a view is further than what it is a view of, given the values of its
            operands; None if that is not known.
        limit: of events, in each partition.
    """

    def __init__(
        self,
        module: MlirModule,
        launch: Launch,
        wanted: Collection[Operation],
        offset: Callable[[Operation, Sequence[Known]], int | None],
        limit: int,
    ) -> None:
        self.module, self.launch, self.offset, self.limit = module, launch, offset, limit
        self.wanted = {id(operation) for operation in wanted}
        self.partitions: list[_Partition] = []
        self._visits = 0
        self._constants: dict[Operation, Known] = {}
        self._loops: dict[Operation, bool] = {}

    def main(self) -> Trace:
        """What the warps execute with which the kernel begins."""
        for operation in self.module.operations:
            if operation.name == "tt.func" and "public" in (t.text for t in operation.tokens):
                if len(operation.regions[0].blocks) != 1:
                    return Trace(end="the function has several blocks")
                block = operation.regions[0].entry
                given = self.launch.arguments
                return self._trace(
                    block,
                    [
                        (value, 0) if "tensordesc" in (value.type or "") else given.get(i)
                        for i, value in enumerate(block.arguments)
                    ],
                )
        return Trace(end="there is no kernel")

    def others(self) -> list[Trace]:
        """The other partitions, in the order of the text; after `main`."""
        return [self._trace(each.block, each.captured) for each in self.partitions]

    def _trace(self, block: Block, arguments: Sequence[Known]) -> Trace:
        found = Trace()
        environment: dict[Value, Known] = dict(zip(block.arguments, arguments, strict=False))
        self._visits = 0
        try:
            for event in self._block(block, environment):
                found.events.append(event)
                if len(found.events) >= self.limit:
                    found.end = "after enough of them"
                    break
        except _Ended as reason:
            found.end = str(reason)
        return found

    def _block(self, block: Block, known: dict[Value, Known]) -> Iterator[Executed]:
        for operation in block.operations:
            self._visits += 1
            if self._visits > _MAX_VISITS:
                raise _Ended("after enough operations")
            if id(operation) in self.wanted:
                operands = tuple(known.get(value) for value in operation.operands)
                if operation.name in _GATHERS:
                    operands = tuple(
                        self._elements(value, known) if _is_list(value) else number
                        for value, number in zip(operation.operands, operands, strict=True)
                    )
                yield Executed(operation, operands)
            if operation.regions:
                yield from self._regions(operation, known)
            elif operation.results:
                self._results(operation, known)
            elif operation.name in ("tt.call", "cf.br", "cf.cond_br"):
                raise _Ended(f"{operation.name} is not followed")

    # ------------------------------------------------------------------------ control flow

    def _regions(self, operation: Operation, known: dict[Value, Known]) -> Iterator[Executed]:
        if operation.name == "scf.for":
            yield from self._loop(operation, known)
        elif operation.name == "scf.if":
            yield from self._branch(operation, known)
        elif operation.name == "scf.while":
            yield from self._while(operation, known)
        elif operation.name == "ttg.warp_specialize":
            captured = tuple(known.get(value) for value in operation.operands)
            for region in operation.regions[1:]:
                self.partitions.append(_Partition(region.entry, captured))
            yield from self._block(operation.regions[0].entry, known)
            _bind(operation.results, _yielded(operation.regions[0].entry, known), known)
        elif any(id(inner) in self.wanted for inner in operation.walk()):
            raise _Ended(f"{operation.name} is not followed")

    def _loop(self, operation: Operation, known: dict[Value, Known]) -> Iterator[Executed]:
        lower, upper, step = (known.get(value) for value in operation.operands[:3])
        block = operation.regions[0].entry
        carried = tuple(known.get(value) for value in operation.operands[3:])
        if not (isinstance(lower, int) and isinstance(upper, int) and isinstance(step, int)):
            if self._matters(operation):
                raise _Ended("how often a loop runs is not known")
            return
        if step <= 0:
            raise _Ended("a loop with a step that is not positive")
        if not self._matters(operation):
            return
        for counter in range(lower, upper, step):
            known[block.arguments[0]] = counter
            _bind(block.arguments[1:], carried, known)
            yield from self._block(block, known)
            carried = _yielded(block, known)
        _bind(operation.results, carried, known)

    def _matters(self, operation: Operation) -> bool:
        """Whether a loop holds anything but tensors."""
        if operation not in self._loops:
            self._loops[operation] = any(
                id(inner) in self.wanted or inner.name == "ttg.warp_specialize"
                for inner in operation.walk()
            ) or any(
                not (value.type or "tensor").startswith("tensor") for value in operation.results
            )
        return self._loops[operation]

    def _branch(self, operation: Operation, known: dict[Value, Known]) -> Iterator[Executed]:
        condition = known.get(operation.operands[0])
        if not isinstance(condition, int):
            if any(id(inner) in self.wanted for inner in operation.walk()):
                raise _Ended("a condition is not known")
            return
        index = 0 if condition else 1
        if index < len(operation.regions):
            block = operation.regions[index].entry
            yield from self._block(block, known)
            _bind(operation.results, _yielded(block, known), known)

    def _while(self, operation: Operation, known: dict[Value, Known]) -> Iterator[Executed]:
        before, after = (region.entry for region in operation.regions)
        carried = tuple(known.get(value) for value in operation.operands)
        while True:
            _bind(before.arguments, carried, known)
            yield from self._block(before, known)
            end = before.operations[-1]
            condition, *handed = (known.get(value) for value in end.operands)
            if not isinstance(condition, int):
                raise _Ended("how often a loop runs is not known")
            if not condition:
                _bind(operation.results, handed, known)
                return
            _bind(after.arguments, handed, known)
            yield from self._block(after, known)
            carried = _yielded(after, known)

    # ------------------------------------------------------------------- single operations

    def _results(self, operation: Operation, known: dict[Value, Known]) -> None:
        result = operation.results[0]
        kind = result.type
        if kind is not None and kind.startswith("tensor<"):
            return
        name = operation.name
        if name in _ALLOCATIONS:
            known[result] = result, 0
        elif name in _SAME:
            known[result] = known.get(operation.operands[0])
        elif name == "tt.addptr":
            known[result] = _moved(operation, [known.get(v) for v in operation.operands])
        elif name == "tt.load":
            known[result] = _loaded(operation, [known.get(v) for v in operation.operands])
        elif name in ("tt.get_program_id", "tt.get_num_programs"):
            axis = next((t.text for t in operation.tokens if t.text in _AXES), "x")
            of = self.launch.program if name.endswith("id") else self.launch.programs
            known[result] = of[_AXES[axis]]
        elif name.startswith("arith."):
            known[result] = self._arithmetic(operation, known)
        elif kind is not None and kind.startswith("!ttg.memdesc") and operation.operands:
            operands = [known.get(value) for value in operation.operands]
            by = self.offset(operation, operands)
            source = operands[0]
            if by is not None and isinstance(source, tuple):
                known[result] = source[0], source[1] + by
            else:
                known[result] = None

    def _elements(self, value: Value, known: Mapping[Value, Known]) -> list[int | None]:
        """The elements of a one-dimensional tensor of integers."""
        length = _length(value) or 0
        seen: dict[tuple[Value, int], Known] = {}
        found = (self._element(value, i, known, seen, 0) for i in range(length))
        return [number if isinstance(number, int) else None for number in found]

    def _element(
        self,
        value: Value,
        index: int,
        known: Mapping[Value, Known],
        seen: dict[tuple[Value, int], Known],
        depth: int,
    ) -> Known:
        """One element, from the operations that it comes from."""
        if not (value.type or "").startswith("tensor<"):
            return known.get(value)
        operation = value.definition
        if operation is None or not _is_list(value) or depth > _MAX_DEPTH:
            return None
        if (value, index) not in seen:
            seen[value, index] = None
            seen[value, index] = self._computed(operation, index, known, seen, depth + 1)
        return seen[value, index]

    def _computed(
        self,
        operation: Operation,
        index: int,
        known: Mapping[Value, Known],
        seen: dict[tuple[Value, int], Known],
        depth: int,
    ) -> Known:
        name = operation.name
        if name == "tt.make_range":
            return int(operation.attributes.get("start", 0)) + index
        if name == "arith.constant":
            same = re.search(r"dense<(-?\d+)>", operation.text)
            return int(same[1]) if same else None
        operands = [self._element(each, index, known, seen, depth) for each in operation.operands]
        if name == "tt.splat" or name in _SAME_ELEMENTS:
            return operands[0]
        if name == "tt.addptr":
            return _moved(operation, operands)
        if name == "tt.load":
            return _loaded(operation, operands)
        if not name.startswith("arith."):
            return None
        if name == "arith.select":
            choice = operands[0]
            return operands[1 if choice else 2] if isinstance(choice, int) else None
        numbers = [number for number in operands if isinstance(number, int)]
        return evaluated(operation, numbers) if len(numbers) == len(operands) else None

    def _arithmetic(self, operation: Operation, known: Mapping[Value, Known]) -> Known:
        if operation.name == "arith.constant":
            if operation not in self._constants:
                self._constants[operation] = _constant(operation)
            return self._constants[operation]
        operands = [known.get(value) for value in operation.operands]
        if operation.name == "arith.select":
            choice = operands[0]
            return operands[1 if choice else 2] if isinstance(choice, int) else None
        if operation.name in ("arith.andi", "arith.ori") and len(operands) == 2:
            decisive = _decisive(operation, operands)
            if decisive is not None:
                return decisive
        numbers = [value for value in operands if isinstance(value, int)]
        return evaluated(operation, numbers) if len(numbers) == len(operands) else None


def _moved(operation: Operation, operands: Sequence[Known]) -> Known:
    """A pointer, so many elements further."""
    pointer, by = operands
    bits = _POINTER.fullmatch(element_type(operation.results[0].type) or "")
    if bits is None or not isinstance(by, int):
        return None
    step = by * max(1, int(bits[1]) // 8)
    if isinstance(pointer, tuple):
        return pointer[0], pointer[1] + step
    return pointer + step if isinstance(pointer, int) else None


def _loaded(operation: Operation, operands: Sequence[Known]) -> int | None:
    """An integer in global memory: of a load with a mask, whose condition is known."""
    width = _INTEGER.fullmatch(element_type(operation.results[0].type) or "")
    pointer, *rest = operands
    if width is None or not isinstance(pointer, int):
        return None
    if rest and not isinstance(rest[0], int):
        return None
    if rest and not rest[0]:
        return rest[1] if len(rest) > 1 and isinstance(rest[1], int) else None
    bits = int(width[1])
    number = contents(pointer, max(1, bits // 8))
    return number - (1 << bits) if bits > 1 and number >> (bits - 1) else number


def _length(value: Value) -> int | None:
    """Of a tensor of one dimension; None if it is none."""
    found = _LENGTH.match(value.type or "")
    return int(found[1]) if found else None


def _is_list(value: Value) -> bool:
    """Whether it is a tensor of one dimension."""
    return _length(value) is not None


def _decisive(operation: Operation, operands: Sequence[Known]) -> int | None:
    """A condition that one operand decides."""
    if operation.results[0].type != "i1":
        return None
    found = 0 if operation.name == "arith.andi" else 1
    return found if found in operands else None


def _constant(operation: Operation) -> int | None:
    match = re.search(
        r"arith\.constant\s+(?:\{.*?\}\s+)?(-?\d+|true|false)\b(?!\.)", operation.text
    )
    if match is None:
        return None
    return {"true": 1, "false": 0}.get(match[1]) if match[1][0] in "tf" else int(match[1])


def _yielded(block: Block, known: Mapping[Value, Known]) -> tuple[Known, ...]:
    end = block.operations[-1:]  # an else without operations has none
    return tuple(known.get(value) for operation in end for value in operation.operands)


def _bind(values: Sequence[Value], numbers: Sequence[Known], known: dict[Value, Known]) -> None:
    for value, number in zip(values, numbers, strict=False):
        known[value] = number


__all__ = ["Executed", "Known", "ModuleTracer", "Place", "Trace"]
