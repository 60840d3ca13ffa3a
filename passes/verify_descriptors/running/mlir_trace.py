"""What a module executes, with numbers in place of what the kernel is given.

`trace` runs the integers and the memory views of a module, through loops, branches and partitions,
and says which of some chosen operations are executed, in order, and with what. Integers that are
loaded from global memory are `contents`. Tensors are not run; a loop or a branch that depends on
one ends the trace. The rows that a TMA gather or scatter moves are computed when it is executed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from triton_ext.integers import Number, on_numbers, signed
from triton_ext.mlir.arith import element_type, integer_constant, integer_operation, integer_width
from triton_ext.mlir.ir import Block, Operation, Value
from triton_ext.mlir.module import MlirModule
from triton_ext.passes.verify_descriptors.running.launches import TrialLaunch
from triton_ext.passes.verify_descriptors.running.trace_end import End, Stopped, Why, long

Address: TypeAlias = "tuple[Value, int]"
"""An allocation, and the offset from its start (bytes; in tensor memory, lane << 16 | column)."""
RunValue: TypeAlias = "int | Address | list[Number] | None"
"""What a value is when it is used: a number, an address, or the elements of a tensor; None if that
is not known."""
Values: TypeAlias = "dict[Value, RunValue]"
_GATHERS = ("ttng.async_tma_gather", "ttng.async_tma_scatter")
_MAX_DEPTH = 100
_NO_USES = frozenset(
    (
        "ttg.memdesc_index", "ttg.memdesc_subslice", "ttg.memdesc_trans", "ttg.memdesc_reshape",
        "ttg.memdesc_reinterpret", "ttng.tmem_subslice", "ttg.local_dealloc", "arith.select",
        "scf.yield", "ttg.warp_specialize", "scf.for", "scf.if", "scf.while", "scf.condition",
    )
)  # fmt: skip
"""Operations that name memory, and leave it alone."""
_SAME_ELEMENTS = ("tt.splat", "ttg.convert_layout", "tt.bitcast")
_MAX_VISITS = 12_000
_AXES = {"x": 0, "y": 1, "z": 2}
SCRATCH = "ttg.global_scratch_alloc"
_ALLOCATIONS = ("ttg.local_alloc", "ttng.tmem_alloc", SCRATCH)
_SAME = ("ttng.reinterpret_tensor_descriptor", "tt.bitcast")
_LENGTH = re.compile(r"tensor<(\d+)x(?!\d+x)")
_POINTER = re.compile(r"!tt\.ptr<[a-z]+(\d+)\w*(?:, \d+)?>")


def contents(address: int, size: int) -> int:
    """What some bytes of global memory hold: small numbers, another one in each of 61 words."""
    found = 0
    for i in range(-address % 4, size, 4):
        found |= ((address + i) // 4 * 37 + 11) % 61 << 8 * i
    return found


@dataclass(frozen=True)
class ExecutedOperation:
    """One execution of one of the chosen operations.

    Attributes:
        operands: their values, in printed order.
    """

    operation: Operation
    operands: tuple[RunValue, ...]


@dataclass
class PartitionTrace:
    """What the warps of a partition execute."""

    events: list[ExecutedOperation] = field(default_factory=list)
    end: End = field(default_factory=End)


@dataclass
class Life:
    """When the memory of one execution of an allocation is used.

    Attributes:
        root: the allocation.
        first, last: the numbers of the first and the last operation that use it; `last` is less
            than `first` if none does.
    """

    root: Value
    first: int = 1 << 40
    last: int = -1


class Lifetimes:
    """Which operations use the memory of which allocation.

    Attributes:
        found: the life of each execution of an allocation.
        now: the number of the operation that is run.
        window: while partitions are run that execute side by side, the numbers of the first and the
            last operation of that time; else None.
    """

    def __init__(self) -> None:
        self.found: list[Life] = []
        self.now = 0
        self.window: list[int] | None = None
        self._current: dict[Value, Life] = {}

    def begin(self, root: Value, *, is_used: bool) -> None:
        """Note an allocation. `is_used`: it stores a tensor, too."""
        if self.window is None:
            life = Life(root, self.now, self.now) if is_used else Life(root)
            self._current[root] = life
            self.found.append(life)

    def use(self, operation: Operation, known: Values) -> None:
        """Note that an operation uses the memory that it names."""
        for value in operation.operands:
            address = known.get(value)
            life = self._current.get(address[0]) if isinstance(address, tuple) else None
            if life is not None:
                first, last = self.window or (self.now, self.now)
                life.first, life.last = min(life.first, first), max(life.last, last)


@dataclass(frozen=True)
class _Partition:
    """A region of ``ttg.warp_specialize``, the values that it captures, and the numbers of the
    first and the last operation that execute beside it."""

    block: Block
    captured: tuple[RunValue, ...]
    window: list[int]


class ModuleTracer:
    """Runs a module: first the partition with which it begins, then the others.

    Args:
        launch: the block, and the kernel's arguments.
        wanted: the operations whose executions are recorded.
        offset: how far a view begins behind what it is a view of, given the values of its operands;
            None if that is not known.
        limit: the largest number of events of a partition.
    """

    def __init__(
        self,
        module: MlirModule,
        launch: TrialLaunch,
        wanted: Collection[Operation],
        offset: Callable[[Operation, Sequence[RunValue]], int | None],
        limit: int,
    ) -> None:
        self.module, self.launch, self.offset, self.limit = module, launch, offset, limit
        self.wanted = {id(operation) for operation in wanted}
        self.partitions: list[_Partition] = []
        self._visits = 0
        self._functions: dict[Operation, Callable[..., Number]] = {}
        self._loops: dict[Operation, bool] = {}
        self.lifetimes = Lifetimes()

    def main(self) -> PartitionTrace:
        """What the warps of the first partition execute, with which the kernel begins."""
        kernel = self.module.kernel
        if kernel is None:
            return PartitionTrace(end=End(Why.UNKNOWN, "there is no kernel"))
        if len(kernel.regions[0].blocks) != 1:
            return PartitionTrace(end=End(Why.UNKNOWN, "the function has several blocks"))
        block, given = kernel.regions[0].entry, self.launch.arguments
        return self._trace(
            block,
            [
                (value, 0) if "tensordesc" in (value.type or "") else given.get(i)
                for i, value in enumerate(block.arguments)
            ],
        )

    def others(self) -> list[PartitionTrace]:
        """The other partitions, in the order of the text; after `main`."""
        found = []
        for each in self.partitions:
            self.lifetimes.window = each.window
            found.append(self._trace(each.block, each.captured))
        return found

    def _trace(self, block: Block, arguments: Sequence[RunValue]) -> PartitionTrace:
        found = PartitionTrace()
        environment: Values = dict(zip(block.arguments, arguments, strict=False))
        self._visits = 0
        try:
            for event in self._block(block, environment):
                found.events.append(event)
                if len(found.events) >= self.limit:
                    found.end = long("of them", _location(event.operation))
                    break
        except Stopped as reason:
            found.end = reason.end
        return found

    def _block(self, block: Block, known: Values) -> Iterator[ExecutedOperation]:
        for operation in block.operations:
            self._visits += 1
            self.lifetimes.now += 1
            if operation.name not in _NO_USES:
                self.lifetimes.use(operation, known)
            if self._visits > _MAX_VISITS:
                end = long("operations", _location(operation))
                raise Stopped(end.reason, end.why)
            if id(operation) in self.wanted:
                operands = tuple(known.get(value) for value in operation.operands)
                if operation.name in _GATHERS:
                    operands = tuple(
                        self._elements(value, known) if _is_list(value) else number
                        for value, number in zip(operation.operands, operands, strict=True)
                    )
                yield ExecutedOperation(operation, operands)
            if operation.regions:
                yield from self._regions(operation, known)
            elif operation.results:
                self._results(operation, known)
            elif operation.name in ("tt.call", "cf.br", "cf.cond_br"):
                raise Stopped(f"{operation.name} is not followed")

    # ------------------------------------------------------------------------ control flow

    def _regions(self, operation: Operation, known: Values) -> Iterator[ExecutedOperation]:
        if operation.name == "scf.for":
            yield from self._loop(operation, known)
        elif operation.name == "scf.if":
            yield from self._branch(operation, known)
        elif operation.name == "scf.while":
            yield from self._while(operation, known)
        elif operation.name == "ttg.warp_specialize":
            captured = tuple(known.get(value) for value in operation.operands)
            window = [self.lifetimes.now, _MAX_VISITS]
            for region in operation.regions[1:]:
                self.partitions.append(_Partition(region.entry, captured, window))
            yield from self._block(operation.regions[0].entry, known)
            window[1] = self.lifetimes.now
            _bind(operation.results, _yielded(operation.regions[0].entry, known), known)
        elif any(id(inner) in self.wanted for inner in operation.walk()):
            raise Stopped(f"{operation.name} is not followed")

    def _loop(self, operation: Operation, known: Values) -> Iterator[ExecutedOperation]:
        lower, upper, step = (known.get(value) for value in operation.operands[:3])
        block = operation.regions[0].entry
        carried = tuple(known.get(value) for value in operation.operands[3:])
        if not (isinstance(lower, int) and isinstance(upper, int) and isinstance(step, int)):
            if self._matters(operation):
                raise Stopped("how often a loop runs is not known")
            return
        if step <= 0:
            raise Stopped("a loop with a step that is not positive")
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

    def _branch(self, operation: Operation, known: Values) -> Iterator[ExecutedOperation]:
        condition = known.get(operation.operands[0])
        if not isinstance(condition, int):
            if any(id(inner) in self.wanted for inner in operation.walk()):
                raise Stopped("a condition is not known")
            return
        index = 0 if condition else 1
        if index < len(operation.regions):
            block = operation.regions[index].entry
            yield from self._block(block, known)
            _bind(operation.results, _yielded(block, known), known)

    def _while(self, operation: Operation, known: Values) -> Iterator[ExecutedOperation]:
        before, after = (region.entry for region in operation.regions)
        carried = tuple(known.get(value) for value in operation.operands)
        while True:
            _bind(before.arguments, carried, known)
            yield from self._block(before, known)
            end = before.operations[-1]
            condition, *forwarded = (known.get(value) for value in end.operands)
            if not isinstance(condition, int):
                raise Stopped("how often a loop runs is not known")
            if not condition:
                _bind(operation.results, forwarded, known)
                return
            _bind(after.arguments, forwarded, known)
            yield from self._block(after, known)
            carried = _yielded(after, known)

    # ------------------------------------------------------------------- single operations

    def _results(self, operation: Operation, known: Values) -> None:
        result, name = operation.results[0], operation.name
        kind = result.type or ""
        operands = [known.get(value) for value in operation.operands]
        if kind.startswith("tensor<"):
            return
        if name in _ALLOCATIONS:
            known[result] = result, 0
            if name != SCRATCH:
                self.lifetimes.begin(result, is_used=bool(operation.operands))
        elif name in _SAME:
            known[result] = operands[0]
        elif name in ("tt.get_program_id", "tt.get_num_programs"):
            axis = next((t.text for t in operation.tokens if t.text in _AXES), "x")
            indices = self.launch.program if name.endswith("id") else self.launch.programs
            known[result] = indices[_AXES[axis]]
        elif kind.startswith("!ttg.memdesc") and operands and name != "arith.select":
            offset, source = self.offset(operation, operands), operands[0]
            if offset is None or not isinstance(source, tuple):
                known[result] = None
            else:
                known[result] = source[0], source[1] + offset
        elif name == "arith.constant":
            known[result] = integer_constant(result)
        else:
            known[result] = self._computed(operation, operands)

    def _elements(self, tensor: Value, known: Mapping[Value, RunValue]) -> list[int | None]:
        """The elements of a one-dimensional tensor of integers."""
        seen: dict[tuple[Value, int], RunValue] = {}

        def element(value: Value, index: int, depth: int) -> RunValue:
            """One element, from the operations that it comes from."""
            if not (value.type or "").startswith("tensor<"):
                return known.get(value)
            operation = value.definition
            if operation is None or not _is_list(value) or depth > _MAX_DEPTH:
                return None
            if (value, index) not in seen:
                seen[value, index] = None
                seen[value, index] = result(operation, index, depth + 1)
            return seen[value, index]

        def result(operation: Operation, index: int, depth: int) -> RunValue:
            if operation.name == "tt.make_range":
                return int(operation.attributes.get("start", 0)) + index
            if operation.name == "arith.constant":
                return integer_constant(operation.results[0])
            operands = [element(each, index, depth) for each in operation.operands]
            if operation.name in _SAME_ELEMENTS:
                return operands[0]
            return self._computed(operation, operands)

        found = (element(tensor, i, 0) for i in range(_length(tensor) or 0))
        return [number if isinstance(number, int) else None for number in found]

    def _computed(self, operation: Operation, operands: Sequence[RunValue]) -> RunValue:
        """The result of an operation on scalars, or on one element of each tensor."""
        if operation.name == "tt.addptr":
            return _moved(operation, operands)
        if operation.name == "tt.load":
            return _loaded(operation, operands)
        if operation.name == "arith.select":
            choice = operands[0]
            return operands[1 if choice else 2] if isinstance(choice, int) else None
        if operation not in self._functions:
            self._functions[operation] = _function(operation)
        numbers = [value if isinstance(value, int) else None for value in operands]
        return self._functions[operation](*numbers)


def _location(operation: Operation) -> str:
    location = operation.location
    return f"line {location.line} of the kernel" if location else operation.name


def _function(operation: Operation) -> Callable[..., Number]:
    """What an operation on integers makes of signed numbers; a condition is 0 or 1."""
    integer = integer_operation(operation)
    if integer is None:
        return lambda *values: None
    function, width = on_numbers(integer), integer.result

    def run(*values: Number) -> Number:
        found = function(*values)
        return found if found is None or width == 1 else signed(found, width)

    return run


def _moved(operation: Operation, operands: Sequence[RunValue]) -> RunValue:
    """A pointer, moved by a number of elements."""
    pointer, by = operands
    bits = _POINTER.fullmatch(element_type(operation.results[0].type) or "")
    if bits is None or not isinstance(by, int):
        return None
    step = by * max(1, int(bits[1]) // 8)
    if isinstance(pointer, tuple):
        return pointer[0], pointer[1] + step
    return pointer + step if isinstance(pointer, int) else None


def _loaded(operation: Operation, operands: Sequence[RunValue]) -> int | None:
    """An integer in global memory; with a mask, if the condition is known."""
    width = integer_width(operation.results[0].type)
    pointer, *rest = operands
    if width is None or not isinstance(pointer, int):
        return None
    if rest and not isinstance(rest[0], int):
        return None
    if rest and not rest[0]:
        return rest[1] if len(rest) > 1 and isinstance(rest[1], int) else None
    number = contents(pointer, max(1, width // 8))
    return number if width == 1 else signed(number, width)


def _length(value: Value) -> int | None:
    """The length of a tensor of one dimension; None for another type."""
    found = _LENGTH.match(value.type or "")
    return int(found[1]) if found else None


def _is_list(value: Value) -> bool:
    """Whether it is a tensor of one dimension."""
    return _length(value) is not None


def _yielded(block: Block, known: Mapping[Value, RunValue]) -> tuple[RunValue, ...]:
    end = block.operations[-1:]  # an else without operations has none
    return tuple(known.get(value) for operation in end for value in operation.operands)


def _bind(values: Sequence[Value], numbers: Sequence[RunValue], known: Values) -> None:
    for value, number in zip(values, numbers, strict=False):
        known[value] = number
