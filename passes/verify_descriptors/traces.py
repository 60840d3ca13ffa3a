"""What the PTX executes, operation after operation, against what the TTGIR does.

For one choice of arguments, in which loops run a few times, both are run (`mlir_trace`,
`ptx_trace`): each partition's first thread must execute the instructions of exactly the
operations that the TTGIR executes there, in that order, each time with the coordinates, the slots
of buffers, the barriers and the tensor memory that the operation names this time. Where allocations
begin is not said in the TTGIR: the first instruction that names one says it, and all others must
agree.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from triton_ext.hardware.architecture import CTA_ADDRESS_MASK, WARP_THREADS
from triton_ext.hardware.smem_descriptor import START_ADDRESS_MASK
from triton_ext.layouts.encodings import CHUNK_BYTES, NVMMAShared, shape_per_cta
from triton_ext.mlir.module import MlirModule, Operation, Value
from triton_ext.passes.verify_descriptors import mlir_trace, ptx_trace
from triton_ext.passes.verify_descriptors.addresses import Views, buffer_stride
from triton_ext.passes.verify_descriptors.bytes import expected_bytes
from triton_ext.passes.verify_descriptors.comparison import Difference
from triton_ext.passes.verify_descriptors.expected import (
    Expected,
    ExpectedMma,
    ModuleExpectations,
    predicate_of,
    shared_encoding,
)
from triton_ext.passes.verify_descriptors.groups import Function, Group, kind_of
from triton_ext.passes.verify_descriptors.launches import launches
from triton_ext.passes.verify_descriptors.matching import Matching
from triton_ext.passes.verify_descriptors.mlir_trace import RunValue
from triton_ext.passes.verify_descriptors.moves import (
    Move,
    Stored,
    Touched,
    is_counted,
    moves,
    needed,
    observed,
    stored,
    target_of,
    touched,
)
from triton_ext.passes.verify_descriptors.tensormaps import CREATE, fields_of, is_part, written
from triton_ext.passes.verify_descriptors.trace_end import Why
from triton_ext.ptx.parse import Instruction

_PER_OPERATION = 30
"""Executions that are looked at, on average."""
_LOW = (1 << 32) - 1


@dataclass
class Traces:
    """The outcome.

    Attributes:
        differences: where the two differ, with the operation.
        proven: how many executions, and what of them, are as they must be.
        unproven: what is not known.
        not_looked_at: what the PTX executes of which the TTGIR says nothing.
        starts: where allocations begin, as the PTX has it.
    """

    differences: list[tuple[Operation | None, Difference]] = field(default_factory=list)
    proven: Counter[str] = field(default_factory=Counter)
    unproven: Counter[str] = field(default_factory=Counter)
    not_looked_at: Counter[str] = field(default_factory=Counter)
    starts: dict[Value, tuple[int, Instruction]] = field(default_factory=dict)

    def __iadd__(self, other: Traces) -> Traces:
        self.differences += other.differences
        self.proven += other.proven
        self.unproven += other.unproven
        self.not_looked_at += other.not_looked_at
        return self


def compare_traces(
    module: MlirModule,
    expectations: ModuleExpectations,
    function: Function,
    matching: Matching,
    ctas: int,
) -> Traces:
    """Run both, and compare.

    Args:
        module: the TTGIR.
        expectations: of it.
        function: the kernel in the PTX.
        matching: of its groups of instructions with operations, without a fault.
        ctas: blocks of a cluster.
    """
    return _Comparison(module, expectations, function, matching, ctas).run()


class _Comparison:
    def __init__(
        self,
        module: MlirModule,
        expectations: ModuleExpectations,
        function: Function,
        matching: Matching,
        ctas: int,
    ) -> None:
        self.module, self.function, self.ctas = module, function, ctas
        self.views, self.addresses = Views(module), matching.addresses
        self.expected = {id(one.operation): one for one in expectations.found}
        self.allowed = {
            id(group): {id(one.expected) for one in found} for group, found in matching.candidates
        }
        self.place: dict[int, tuple[Group, int]] = {}
        for group, _ in matching.candidates:
            for index, instruction in enumerate(group.instructions):
                self.place[id(instruction)] = group, index
        self.result = Traces()
        self.launch = launches(module)[0]
        self.moves = {id(operation): operation for operation in moves(module)}
        self.done: list[tuple[list[Move], ptx_trace.ThreadTrace]] = []
        self.is_trial = False
        self.rank = 0
        self.unseen = set(self.allowed)
        self.tracers: dict[bool, ptx_trace.Tracer] = {}

    def run(self) -> Traces:
        result = self.result
        wanted = [one.operation for one in self.expected.values()]
        limit = max(60, _PER_OPERATION * len(wanted))
        makers = [each for each in self.module.operations if each.name == CREATE]
        wanted += [*self.moves.values(), *makers]
        limit += len(makers) * _PER_OPERATION
        limit += _PER_OPERATION * len(self.moves)
        chosen = [each for each in self.function.kernel.instructions if is_part(each.opcode)]
        chosen += self.function.wanted
        stores = list(observed(self.function.kernel)) if self.moves else []
        traces = self.traced(wanted, limit)
        if any(trace.end.why is Why.LONG for trace in traces):
            short, self.launch = self.launch, launches(self.module)[1]
            others = self.traced(wanted, limit)
            if _variety(others) > _variety(traces):
                traces = others
            else:
                self.launch = short
        self.of_launch(traces, chosen, stores)
        for launch in launches(self.module)[1:]:
            # Another choice of arguments, if with these some instructions are not executed.
            if result.differences or not self.unseen or launch == self.launch:
                continue
            self.launch, self.done = launch, []
            self.of_launch(self.traced(wanted, limit), chosen, stores)
        if self.unseen and not result.differences:
            result.unproven["executions: never, for all choices of arguments"] += len(self.unseen)
        return result

    def of_launch(
        self,
        traces: Sequence[mlir_trace.PartitionTrace],
        chosen: Sequence[Instruction],
        stores: Sequence[tuple[Instruction, str]],
    ) -> None:
        """All blocks of a cluster, for one choice of arguments."""
        result, self.rank = self.result, 0
        self.block(traces, chosen, stores)
        if not result.differences:
            for executed, trace in self.done:
                self.unseen.difference_update(
                    id(self.place[id(event.instruction)][0])
                    for event in trace.events
                    if id(event.instruction) in self.place
                )
                self.stores(executed, trace)
            self.bytes(traces)
        for rank in range(1, self.ctas):
            self.rank = rank
            if not result.differences:
                self.block(traces, [one for one in chosen if kind_of(one) == "tma"], [])

    def traced(self, wanted: Sequence[Operation], limit: int) -> list[mlir_trace.PartitionTrace]:
        """What each partition of the module executes."""
        modules = mlir_trace.ModuleTracer(self.module, self.launch, wanted, self.offset, limit)
        return [modules.main(), *modules.others()]

    def block(
        self,
        traces: Sequence[mlir_trace.PartitionTrace],
        chosen: Sequence[Instruction],
        stores: Sequence[tuple[Instruction, str]],
    ) -> None:
        """One block of a cluster: of all but the first one, what it copies by TMA."""
        if bool(self.rank) not in self.tracers:
            self.tracers[bool(self.rank)] = ptx_trace.Tracer(
                self.function.kernel, chosen, {}, self.function.module.variables, stores,
                self.function.operands,
            )  # fmt: skip
        tracer = self.tracers[bool(self.rank)].with_given(self.given())
        self.partition(traces[0], tracer.run(0, self.instructions(traces[0])))
        if len(traces) > 1:
            self.partitions(traces[1:], tracer)

    def is_compared(self, one: Expected | None) -> bool:
        """Whether an operation is looked at in this block.

        Which blocks issue an MMA, or a copy of what several hold, is not said in the TTGIR.
        """
        if one is None or not self.rank:
            return one is not None
        if one.kind != "tma" or "multicast" in one.operation.attributes:
            return False
        memory = self.module.memory(one.tile) if one.tile and one.barrier is None else None
        encoding = shared_encoding(memory.encoding) if memory else None
        # Of what several blocks hold alike, one of them stores it.
        return encoding is None or all(map(any, getattr(encoding, "cga_layout", ())))

    def followed(self, instruction: Instruction) -> bool:
        """Whether an instruction is looked at in this block."""
        if is_part(instruction.opcode):
            return not self.rank
        if id(instruction) not in self.place:
            return False
        allowed = self.allowed[id(self.place[id(instruction)][0])]
        return not self.rank or all(
            self.is_compared(one) for one in self.expected.values() if id(one) in allowed
        )

    def bytes(self, traces: Sequence[mlir_trace.PartitionTrace]) -> None:
        """What a barrier is told to expect is what the copies then bring it, or nothing at all.

        (A pipeline may leave out its last copies, but tell the barrier, which nobody waits for.)
        """
        facts = expected_bytes(traces, self.expected)
        if facts is None:
            self.result.unproven["bytes that barriers expect"] += 1
            return
        for fact in facts:
            if fact.is_sum:
                kind = "proven" if fact.expected == fact.brought else "unproven"
                getattr(self.result, kind)["bytes that barriers expect"] += 1
            elif fact.expected == fact.brought:
                self.result.proven["bytes that barriers expect"] += 1
            elif self.ctas > 1 or not fact.brought or fact.told is None:
                # Other blocks, or other means than TMA, may take their part.
                self.result.unproven["bytes that barriers expect"] += 1
            else:
                self.differ(
                    fact.told, self.first_of(fact.told),
                    "what the mbarrier expects, in one execution for one choice of arguments,",
                    f"{fact.brought} bytes, as its copies bring", str(fact.expected),
                )  # fmt: skip
                return

    def first_of(self, operation: Operation) -> Instruction:
        """An instruction that an operation may have become."""
        one = id(self.expected[id(operation)])
        return next(
            group.first for group, _ in self.place.values() if one in self.allowed[id(group)]
        )

    def instructions(self, trace: mlir_trace.PartitionTrace) -> int:
        """At most how many instructions the events of a trace are."""
        return 64 + sum(
            max(len(one.instructions), len(one.boxes), 1)
            if (one := self.expected.get(id(event.operation))) is not None
            else 40
            for event in trace.events
            if id(event.operation) not in self.moves
        )

    def partitions(
        self, traces: Sequence[mlir_trace.PartitionTrace], tracer: ptx_trace.Tracer
    ) -> None:
        """The other partitions: the first thread of each is found by what it executes."""
        left = [trace for trace in traces if any(self.is_followed(each) for each in trace.events)]
        limit = max(map(self.instructions, left), default=0)
        thread = WARP_THREADS * int(self.module.attributes.get("ttg.num-warps", 4))
        while left and thread < self.function.threads:
            found = tracer.run(thread, limit)
            chosen = self.chosen(left, found)
            thread += WARP_THREADS
            if chosen is not None:
                warps = self.warps(chosen)
                self.partition(chosen, found)
                left.remove(chosen)
                thread += WARP_THREADS * (warps - 1)
        if left:
            self.result.unproven["partitions whose threads are not found"] += len(left)

    def chosen(
        self, left: Sequence[mlir_trace.PartitionTrace], found: ptx_trace.ThreadTrace
    ) -> mlir_trace.PartitionTrace | None:
        """The partition that a thread is of: one that agrees, or at least begins as the thread."""
        first = next((each for each in found.events if self.followed(each.instruction)), None)
        if first is None:
            return None
        allowed = self.allowed[id(self.place[id(first.instruction)][0])]
        fitting = [
            trace
            for trace in left
            if any(id(self.expected.get(id(each.operation))) in allowed for each in trace.events)
        ]
        kept = self.result
        self.is_trial = True
        chosen = fitting[0] if fitting else None
        for trace in fitting:
            self.result = Traces(starts=dict(kept.starts))
            self.partition(trace, found)
            if not self.result.differences:
                chosen = trace
                break
        self.result, self.is_trial = kept, False
        return chosen

    def is_followed(self, event: mlir_trace.ExecutedOperation) -> bool:
        return self.is_compared(self.expected.get(id(event.operation)))

    def warps(self, trace: mlir_trace.PartitionTrace) -> int:
        """Of a partition."""
        followed = (self.expected.get(id(each.operation)) for each in trace.events)
        return max(1, *(one.warps for one in followed if one))

    def given(self) -> dict[str, int]:
        """What stands in the PTX for what the kernel is given."""
        kernel, rank = self.function.kernel, self.rank
        numbers = self.launch.numbers(kernel)
        for index, name in enumerate(kernel.parameters):
            numbers.setdefault(f"[{name}]", (index + 1) << 40)
        if self.ctas > 1:
            for axis, program in zip("xyz", self.launch.program, strict=True):
                numbers[f"%clusterid.{axis}"] = program
                numbers[f"%cluster_ctaid.{axis}"] = rank if axis == "x" else 0
                numbers[f"%cluster_nctaid.{axis}"] = self.ctas if axis == "x" else 1
                numbers[f"%nclusterid.{axis}"] = numbers[f"%nctaid.{axis}"]
            numbers["%ctaid.x"] = numbers["%ctaid.x"] * self.ctas + rank
            numbers["%nctaid.x"] *= self.ctas
        numbers["%cluster_ctarank"] = rank
        numbers["%cluster_nctarank"] = self.ctas
        return numbers

    # ----------------------------------------------------------------------------- addresses

    def offset(self, operation: Operation, operands: Sequence[RunValue]) -> int | None:
        """By how much a view is further than what it is a view of."""
        if operation.name == "ttg.memdesc_index":
            kind = self.module.memory(operation.results[0])
            stride = buffer_stride(kind) if kind else None
            index = operands[1]
            return stride * index if stride is not None and isinstance(index, int) else None
        offsets = self.views.offsets(operation)
        return offsets[0] if offsets and len(offsets) == 1 else None

    # ------------------------------------------------------------------------------ sequences

    def partition(self, expected: mlir_trace.PartitionTrace, found: ptx_trace.ThreadTrace) -> None:
        """One partition's operations, one after the other."""
        result = self.result
        places = [i for i, each in enumerate(found.events) if self.followed(each.instruction)]
        events = [found.events[i] for i in places]
        at = 0
        executed: list[Move] = []
        pending: list[Move] = []
        if not self.is_trial and not self.rank:
            accesses = [
                (instruction, address, bisect_left(places, when))
                for instruction, address, when in found.accesses
            ]
            self.done.append((executed, ptx_trace.ThreadTrace(events, accesses, found.end)))
        for event in expected.events:
            one = self.expected.get(id(event.operation))
            if event.operation.name == CREATE and self.rank:
                continue
            if event.operation.name == CREATE:
                count = self.descriptor(event, events[at:])
                if not count:
                    return
                at += count
                continue
            if one is None:
                pending.append(Move(event.operation, self.target(event), at))
                continue
            if not self.is_compared(one):
                continue
            values = dict(zip(event.operation.operands, event.operands, strict=True))
            predicate = predicate_of(event.operation)
            if predicate is not None:
                holds = values.get(predicate)
                if not isinstance(holds, int):
                    result.unproven["executions: a predicate is not known"] += 1
                    return
                if not holds:
                    continue
            if at >= len(events):
                self.stopped(found, event, one)
                return
            if is_part(events[at].instruction.opcode):
                self.differ(
                    one.operation, events[at].instruction,
                    "the operation that is executed here, for one choice of arguments,",
                    one.operation.name, CREATE,
                )  # fmt: skip
                return
            instance = self.instance(events, at)
            at += len(instance)
            group = self.place[id(instance[0].instruction)][0]
            if id(one) not in self.allowed[id(group)]:
                self.differ(
                    one.operation, instance[0].instruction,
                    "the operation that is executed here, for one choice of arguments,",
                    one.operation.name, "another one",
                )  # fmt: skip
                return
            before = len(result.differences)
            self.compare(one, values, group, instance)
            if len(result.differences) > before:
                return
            result.proven["executions"] += 1
            executed += pending
            pending = []
        if not expected.end.is_early and not found.end.is_early:
            executed += pending
            pending = []
        if pending:
            result.unproven["stores: executed after the end of the trace"] += len(pending)
        if expected.end.is_early:
            result.unproven[f"executions after the first ones: {expected.end.words}"] += 1
        elif at < len(events):
            self.result.differences.append(
                (
                    None,
                    Difference(
                        events[at].instruction,
                        "how often it is executed, for one choice of arguments,",
                        "as often as its operation", "more often",
                    ),
                )
            )  # fmt: skip
        elif found.end.is_early:
            result.unproven[f"the end of the PTX: {found.end.words}"] += 1

    @staticmethod
    def target(event: mlir_trace.ExecutedOperation) -> RunValue:
        """The place of what a move writes."""
        if event.operation.name == "ttg.local_alloc":
            return event.operation.results[0], 0
        return event.operands[1]

    def stores(self, executed: Sequence[Move], trace: ptx_trace.ThreadTrace) -> None:
        """The bytes that a thread stores: all of those that the operations store."""
        result = self.result
        moves_ = [(move, touched(move.operation, self.module)) for move in executed]
        unknown = sum(what is None or not isinstance(move.place, tuple) for move, what in moves_)
        if unknown:
            result.unproven["stores: layouts that are not predicted"] += unknown
        kinds = (self.module.memory(target_of(move.operation)) for move in executed)
        unit = min((max(1, kind.element_bitwidth // 8) for kind in kinds if kind), default=1)
        found = stored(trace.accesses, unit)
        counts = Stored(unit)
        if found.unknown:
            result.unproven["stores: an address that is not known"] += len(moves_) - unknown
            return
        known = [
            (move, move.place, what)
            for move, what in moves_
            if what is not None and isinstance(move.place, tuple)
        ]
        unplaced: dict[Value, list[tuple[Move, int, Touched]]] = {}
        for move, (root, at), what in known:
            start = self.start_of(root)
            if start is None:
                unplaced.setdefault(root, []).append((move, at, what))
            elif not self.is_stored(move, start + at, what, trace, found, counts):
                return
        for root, ones in unplaced.items():
            possible = [self.possible_starts(*one, found, counts) for one in ones]
            starts = possible[0].intersection(*possible)
            if len(starts) > 1:
                result.unproven["stores: to one of several places"] += len(ones)
                continue
            (start,) = starts or {0}
            for move, at, what in ones:
                if not self.is_stored(move, start + at, what, trace, found, counts):
                    return
            result.starts[root] = start, self.odd(trace, counts)
        others = sum(not is_counted(access, counts) for access in trace.accesses)
        if others:
            result.not_looked_at["stores into scratch memory"] += others

    def is_stored(
        self,
        move: Move,
        start: int,
        what: Touched,
        trace: ptx_trace.ThreadTrace,
        found: Stored,
        counts: Stored,
    ) -> bool:
        """Whether the thread stores all that it must of a tile that begins at an address."""
        lacking = 0
        for required, counted, there in needed(move, start, what, found, counts):
            lacking = next((k for k, n in required.items() if there[k] < counted[k] + n), -1)
            if lacking < 0:
                counted.update(required)
                self.result.proven["stores"] += 1
                return True
        self.differ(
            move.operation, self.odd(trace, counts),
            "what the first thread stores, in one execution for one choice of arguments,",
            f"its elements of the tile, with {lacking & _LOW:#x} among their addresses",
            "something else",
        )  # fmt: skip
        return False

    @staticmethod
    def possible_starts(
        move: Move, at: int, what: Touched, found: Stored, counts: Stored
    ) -> set[int]:
        """Where an allocation may begin of which nothing else is known: all that it needs fits."""
        starts = set()
        for required, counted, there in needed(move, 0, what, found, counts):
            first = min(required)
            for place in (k for k in there if k >> 40 == move.when):
                by = place - first
                if by >= at and all(
                    there[k + by] >= counted[k + by] + n for k, n in required.items()
                ):
                    starts.add(by - at)
        return starts

    def odd(self, trace: ptx_trace.ThreadTrace, counts: Stored) -> Instruction:
        """The first store to a place that no operation stores to; else the last one."""
        accesses = trace.accesses or [(self.function.kernel.instructions[-1], None, 0)]
        odd = (access[0] for access in accesses if not is_counted(access, counts))
        return next(odd, accesses[-1][0])

    def descriptor(
        self, event: mlir_trace.ExecutedOperation, events: Sequence[ptx_trace.ExecutedInstruction]
    ) -> int:
        """A TMA descriptor that the kernel makes: how many instructions do so; 0 if it is wrong."""
        count = next(
            (i for i, each in enumerate(events) if not is_part(each.instruction.opcode)),
            len(events),
        )
        ends = (
            i
            for i, each in enumerate(events[:count])
            if each.instruction.opcode.startswith("tensormap.cp")
        )
        count = next(ends, -1) + 1
        if not count:
            self.result.unproven["descriptors that the kernel makes"] += 1
            return 0
        operation, last = event.operation, events[count - 1].instruction
        found, fields = written(events[:count]), fields_of(operation)
        values = dict(zip(operation.operands, event.operands, strict=True))
        expected: dict[tuple[str, int], RunValue] = {
            name: values.get(value) for name, value in fields.values.items()
        }
        expected.update(fields.numbers)
        expected["global_address", 0] = values.get(fields.address)
        # ptxas of CUDA 12.5 and before takes strides in units of 16 bytes (Triton).
        shifted = tuple(map(int, self.function.module.version.split(".")[:2])) <= (8, 5)
        for entry in dict.fromkeys([*expected, *found]):
            if entry == ("global", 0):
                continue
            must, is_ = expected.get(entry, 0), found.get(entry, 0)
            if not isinstance(must, int) or is_ is None:
                self.result.unproven["fields of descriptors that the kernel makes"] += 1
                continue
            mask = (1 << 64) - 1 if entry[0] in ("global_address", "global_stride") else _LOW
            if shifted and entry[0] == "global_stride":
                must >>= 4
            if must & mask != is_ & mask:
                self.differ(
                    operation, self.writer(events[:count], entry[0]) or last,
                    f"{entry[0]} {entry[1]} of the TMA descriptor, for one choice of arguments,",
                    str(must & mask), str(is_ & mask),
                )  # fmt: skip
                return 0
            self.result.proven["fields of descriptors that the kernel makes"] += 1
        self.address(
            operation, event.operands[0], found.get(("global", 0)), 0, last, "a TMA descriptor"
        )
        return count

    @staticmethod
    def writer(events: Sequence[ptx_trace.ExecutedInstruction], field_: str) -> Instruction | None:
        found = (each.instruction for each in events if f".{field_}." in each.instruction.opcode)
        return next(found, None)

    def stopped(
        self, found: ptx_trace.ThreadTrace, event: mlir_trace.ExecutedOperation, one: Expected
    ) -> None:
        """The PTX executes no more, but the module does."""
        end = found.end.words
        if not end and any(each.name == "tt.assert" for each in self.module.operations):
            end = "an assertion may fail"
        if end:
            self.result.unproven[f"executions after the first ones: {end}"] += 1
            return
        instruction = self.first_of(one.operation)
        self.differ(
            one.operation, instruction, "how often it is executed, for one choice of arguments,",
            "as often as its operation", "less often",
        )  # fmt: skip

    def instance(
        self, events: Sequence[ptx_trace.ExecutedInstruction], at: int
    ) -> list[ptx_trace.ExecutedInstruction]:
        """The events of one execution of a group."""
        group, index = self.place[id(events[at].instruction)]
        found = [events[at]]
        for event in events[at + 1 :]:
            other, place = self.place.get(id(event.instruction), (None, 0))
            if other is not group or place <= index:
                break
            found.append(event)
            index = place
        return found

    # --------------------------------------------------------------------------- one execution

    def differ(
        self, operation: Operation, instruction: Instruction, what: str, expected: str, found: str
    ) -> None:
        self.result.differences.append((operation, Difference(instruction, what, expected, found)))

    def compare(
        self,
        one: Expected,
        values: Mapping[Value, RunValue],
        group: Group,
        instance: Sequence[ptx_trace.ExecutedInstruction],
    ) -> None:
        """One execution of an operation."""
        if one.kind == "tma":
            self.copy(one, values, instance)
        elif one.kind == "expect":
            place = next((v for v in instance[0].operands[:2] if isinstance(v, int)), None)
            self.address(
                one.operation, values.get(one.operation.operands[0]), place, 0,
                instance[0].instruction, "the mbarrier",
            )  # fmt: skip
        else:
            if len(instance) != len(group.instructions):
                self.differ(
                    one.operation, instance[0].instruction,
                    "the number of instructions that are executed",
                    str(len(group.instructions)), str(len(instance)),
                )  # fmt: skip
                return
            self.product(one, values, group, instance)

    def product(
        self,
        one: Expected,
        values: Mapping[Value, RunValue],
        group: Group,
        instance: Sequence[ptx_trace.ExecutedInstruction],
    ) -> None:
        """The first instruction of a product; the others are as far from it as they must be."""
        first = _in_order(one, instance)
        event = instance[0]
        for place, matrix in first.matrices.items():
            bits = event.operands[place] if place < len(event.operands) else None
            start = None
            if isinstance(bits, int):
                start = (bits & START_ADDRESS_MASK) * CHUNK_BYTES
            self.address(
                one.operation, values.get(matrix.value), start, matrix.advance, event.instruction,
                f"operand {matrix.name}",
            )  # fmt: skip
        for place, (value, offset) in first.tensor.items():
            found = event.operands[place] if place < len(event.operands) else None
            self.address(
                one.operation, values.get(value), found if isinstance(found, int) else None, offset,
                event.instruction, "the tensor memory of an operand",
            )  # fmt: skip

    def copy(
        self,
        one: Expected,
        values: Mapping[Value, RunValue],
        instance: Sequence[ptx_trace.ExecutedInstruction],
    ) -> None:
        """A TMA copy."""
        warps = max(1, one.warps)
        for event in instance:
            _, index = self.place[id(event.instruction)]
            shared, descriptor, coordinates, barrier = _parts(event)
            self.address(
                one.operation, values.get(one.operation.operands[0]), descriptor, 0,
                event.instruction, "a TMA descriptor",
            )  # fmt: skip
            if one.barrier is not None:
                self.address(
                    one.operation, values.get(one.barrier), barrier, 0, event.instruction,
                    "the mbarrier",
                )  # fmt: skip
            if one.rows:
                self.gathered(one, values, event, shared, coordinates)
                continue
            box = one.boxes[index * warps]
            if one.tile is not None:
                self.address(
                    one.operation, values.get(one.tile), shared, box.smem_offset, event.instruction,
                    "the shared memory of a TMA copy",
                )  # fmt: skip
            for dim, value in enumerate(one.coordinates[::-1]):
                known = values.get(value)
                found = coordinates[dim] if dim < len(coordinates) else None
                if not isinstance(known, int) or not isinstance(found, int):
                    self.result.unproven["coordinates"] += 1
                    continue
                factor = 2 if dim == 0 and one.is_padded else 1
                must = known * factor + box.coordinates[dim]
                must = must + self.of_block(one, dim) & _LOW
                if must == found & _LOW:
                    self.result.proven["coordinates"] += 1
                else:
                    self.differ(
                        one.operation, event.instruction,
                        f"coordinate {dim}, in one execution for one choice of arguments,",
                        str(must), str(found & _LOW),
                    )  # fmt: skip

    def gathered(
        self,
        one: Expected,
        values: Mapping[Value, RunValue],
        event: ptx_trace.ExecutedInstruction,
        shared: int | None,
        coordinates: Sequence[int | None],
    ) -> None:
        """One instruction of a gather or scatter: a column, and four rows by their indices."""
        unproven = self.result.unproven
        place = values.get(one.tile) if one.tile else None
        start = self.start_of(place[0]) if isinstance(place, tuple) else None
        if not isinstance(place, tuple) or start is None or shared is None or self.ctas > 1:
            unproven["coordinates"] += len(coordinates)
            return
        offset = (shared & CTA_ADDRESS_MASK) - start - place[1]
        box = next((box for box in one.boxes if box.smem_offset == offset), None)
        if box is None:
            self.differ(
                one.operation, event.instruction,
                "the shared memory of a TMA copy, from the start of its tile,",
                "that of four rows", f"{offset:#x}",
            )  # fmt: skip
            return
        indices = next((each for each in values.values() if isinstance(each, list)), [])
        column, row = values.get(one.coordinates[-1]), box.coordinates[1]
        factor = 2 if one.is_padded else 1
        expected = [
            column * factor + box.coordinates[0] if isinstance(column, int) else None,
            *indices[row : row + one.rows],
        ]
        for dim, found in enumerate(coordinates):
            must = expected[dim] if dim < len(expected) else None
            if must is None or found is None:
                unproven["coordinates"] += 1
            elif must & _LOW == found & _LOW:
                self.result.proven["coordinates"] += 1
            else:
                self.differ(
                    one.operation, event.instruction,
                    f"coordinate {dim}, in one execution for one choice of arguments,",
                    str(must & _LOW), str(found & _LOW),
                )  # fmt: skip

    def start_of(self, root: Value) -> int | None:
        """Where an allocation begins, if that is known."""
        if root in self.result.starts:
            return self.result.starts[root][0]
        known = self.addresses.known.get(root) if self.addresses else None
        if known is None or len(known.starts) != 1:
            return None
        ((terms, start),) = known.starts
        return None if terms else start

    def of_block(self, one: Expected, dim: int) -> int:
        """By how much a block's part of a tile is further along a coordinate."""
        memory = self.module.memory(one.tile) if one.tile else None
        if not self.rank or memory is None:
            return 0
        encoding = shared_encoding(memory.encoding)
        if not isinstance(encoding, NVMMAShared):
            return 0
        axis = encoding.rank - 1 - dim
        part = shape_per_cta(encoding.cga_layout, memory.shape[-encoding.rank :])[axis]
        bits = enumerate(encoding.cga_layout)
        return sum(basis[axis] * part for bit, basis in bits if self.rank >> bit & 1)

    def address(
        self,
        operation: Operation,
        place: RunValue,
        found: int | None,
        offset: int,
        instruction: Instruction,
        what: str,
    ) -> None:
        """An address, against where its allocation begins."""
        if not isinstance(place, tuple) or found is None:
            self.result.unproven["addresses"] += 1
            return
        root, at = place
        if what.endswith("descriptor"):  # in global memory, or a parameter
            pass
        elif "tensor memory" in what:
            found &= _LOW
        else:
            found &= CTA_ADDRESS_MASK
        start = found - at - offset
        if root not in self.result.starts:
            self.result.starts[root] = start, instruction
        elif self.result.starts[root][0] == start:
            self.result.proven["addresses"] += 1
        else:
            known, first = self.result.starts[root]
            self.differ(
                operation, instruction,
                f"the address of {what}, in one execution for one choice of arguments,",
                f"{known + at + offset:#x}, as PTX line {first.line} has its allocation",
                f"{found:#x}",
            )  # fmt: skip


def _in_order(one: Expected, instance: Sequence[ptx_trace.ExecutedInstruction]) -> ExpectedMma:
    """What the first instruction is, in an order with which all addresses fit together."""
    for order in (range(len(one.instructions)), *one.orders):
        places: dict[tuple[str, int], set[int]] = {}
        for index, event in zip(order, instance, strict=False):
            expected = one.instructions[index]
            for place, matrix in expected.matrices.items():
                bits = event.operands[place]
                if isinstance(bits, int):
                    start = (bits - matrix.advance // CHUNK_BYTES) & START_ADDRESS_MASK
                    places.setdefault(("shared", place), set()).add(start)
            for place, (_, offset) in expected.tensor.items():
                address = event.operands[place]
                if isinstance(address, int):
                    places.setdefault(("tensor", place), set()).add(address - offset)
        if all(len(found) == 1 for found in places.values()):
            return one.instructions[order[0]]
    return one.instructions[0]


def _variety(traces: Sequence[mlir_trace.PartitionTrace]) -> tuple[int, int]:
    """(how many operations are executed, how many partitions end)."""
    executed = {event.operation for trace in traces for event in trace.events}
    return len(executed), sum(not trace.end.is_early for trace in traces)


def _parts(
    event: ptx_trace.ExecutedInstruction,
) -> tuple[int | None, int | None, tuple[int | None, ...], int | None]:
    """(shared address, descriptor, coordinates, mbarrier) of a TMA copy."""
    operands = event.operands
    tensor = next((i for i in (0, 1) if i < len(operands) and isinstance(operands[i], tuple)), None)
    if tensor is None:
        return None, None, (), None
    inside = operands[tensor]
    listed = inside[1] if isinstance(inside, tuple) and len(inside) > 1 else ()
    coordinates = listed if isinstance(listed, tuple) else (listed,)
    others = [value for i, value in enumerate(operands) if i != tensor]
    numbers = [value if isinstance(value, int) else None for value in others]
    barrier = numbers[1] if len(numbers) > 1 else None
    descriptor = inside[0] if isinstance(inside, tuple) and inside else None
    return (
        numbers[0] if numbers else None,
        descriptor if isinstance(descriptor, int) else None,
        tuple(value if isinstance(value, int) else None for value in coordinates),
        barrier,
    )


__all__ = ["Traces", "compare_traces"]
