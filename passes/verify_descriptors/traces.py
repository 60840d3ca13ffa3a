"""What the PTX executes, operation after operation, against what the TTGIR does.

For one choice of arguments, in which loops run a few times, both are run (`mlir_trace`,
`ptx_trace`): each partition's first thread must execute the instructions of exactly the
operations that the TTGIR executes there, in that order, each time with the coordinates, the slots
of buffers, the barriers and the tensor memory that the operation names this time (`executions`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.mlir.ir import Operation, Value
from triton_ext.passes.verify_descriptors.meaning.expectations import ModuleExpectations
from triton_ext.passes.verify_descriptors.meaning.expected import Expected
from triton_ext.passes.verify_descriptors.meaning.kinds import kind_of
from triton_ext.passes.verify_descriptors.meaning.tiles import view_offset
from triton_ext.passes.verify_descriptors.memory.allocations import compare_regions
from triton_ext.passes.verify_descriptors.memory.bytes import compare_bytes
from triton_ext.passes.verify_descriptors.memory.stores import (
    DATA_OF_STORES,
    Stores,
    moves,
    observed,
    unclaimed,
)
from triton_ext.passes.verify_descriptors.memory.transfers import (
    compare_lanes,
    compare_transfers,
    transfers,
)
from triton_ext.passes.verify_descriptors.running.executions import Block
from triton_ext.passes.verify_descriptors.running.findings import Findings
from triton_ext.passes.verify_descriptors.running.launches import (
    BASES,
    MOVED,
    TrialLaunch,
    launches,
    others,
    parameter,
)
from triton_ext.passes.verify_descriptors.running.legality import (
    BOUND_TO_RULES,
    BY_ELEMENTS,
    check_legality,
)
from triton_ext.passes.verify_descriptors.running.mlir_trace import (
    Life,
    ModuleTracer,
    PartitionTrace,
    RunValue,
)
from triton_ext.passes.verify_descriptors.running.moved import compare_moved
from triton_ext.passes.verify_descriptors.running.ptx_trace import Tracer
from triton_ext.passes.verify_descriptors.running.register_functions import generic_address
from triton_ext.passes.verify_descriptors.running.tensormaps import (
    ACQUIRE,
    CREATE,
    LaunchedWith,
    is_part,
)
from triton_ext.passes.verify_descriptors.running.thread_trace import ThreadTrace
from triton_ext.passes.verify_descriptors.running.trace_end import Why
from triton_ext.passes.verify_descriptors.running.trips import short_launches, whole_launches
from triton_ext.passes.verify_descriptors.running.turns import Turns
from triton_ext.passes.verify_descriptors.sequences import Partition, Sequences
from triton_ext.passes.verify_descriptors.text.groups import Function, Group
from triton_ext.passes.verify_descriptors.text.matching import Matching, is_open

_PER_OPERATION = 16
"""Executions that are looked at, on average."""
_TO_THE_END = 4
"""How many times as much is looked at where loops are to come to their end."""
_SHORTER = 3
"""How much less is looked at of what most other threads do, of the same one with memory elsewhere,
and with further arguments."""
ALLOCATION = ("tcgen05.alloc", "tcgen05.dealloc")
_OTHERS = (
    "cp.async.bulk", "mbarrier.", "tcgen05.shift", "st.async", "red.async", "tensormap.",
    "clusterlaunchcontrol", "atom.shared", "red.shared",
)  # fmt: skip
_CTA_GROUP = re.compile(r"cta_group::\d")
_OF_STORES = ("store commit", "store wait")
_ENDS = ("executions after the first ones", "the end of the PTX", "stores: executed after")
_CUT_OFF = tuple(f"{name}: after enough" for name in _ENDS[:2]) + _ENDS[2:]
"""Facts of traces that end before the kernel does, and of those that are long enough."""
_WHICH_BLOCKS = "which blocks of a cluster an instruction is about"
_MOST_THREADS, _BLOCKS_ASKED = 1024, 256
_MOST_BOUNDS, _MOST_BLOCKS = 12, 6


@dataclass(frozen=True)
class _Effort:
    """How much of a launch is looked at.

    Attributes:
        shorter: the part of the executions, as a divisor.
        is_first: whether it is the first launch: further threads, and memory elsewhere.
        all_threads: whether all threads are run that the code tells apart.
    """

    shorter: int = 1
    is_first: bool = True
    all_threads: bool = False


class TraceComparison(Sequences):
    """Runs both, and compares.

    Args:
        matching: of the groups that are compared in the text, with the operations, without a fault.
    """

    def __init__(
        self,
        expectations: ModuleExpectations,
        function: Function,
        groups: Sequence[Group],
        matching: Matching,
        launched: LaunchedWith,
    ) -> None:
        module = expectations.module
        self.module, self.function, self.ctas = module, function, launched.ctas
        self.by_elements = any(each.name in BY_ELEMENTS for each in module.operations)
        self.launched = launched
        self.expected = {id(one.operation): one for one in expectations.found}
        self.copied_besides = any(kind == "tma" for kind, _ in expectations.open)
        self.allowed = {
            id(group): {id(one.expected) for one in found} for group, found in matching.candidates
        }
        self.position: dict[int, tuple[Group, int]] = {
            id(instruction): (group, index)
            for group, _ in matching.candidates
            for index, instruction in enumerate(group.instructions)
        }
        for group in groups:
            among = [one for one in expectations.found if group.kind in _kinds_of(one)]
            if group.is_in_order and not is_open(group, among, expectations.open):
                self.position[id(group.first)] = group, 0
                self.allowed[id(group)] = {id(one) for one in among}
        self.result = Findings()
        first = function.kernel.instructions[0]
        for value, start in self.parameters():
            self.result.starts[value] = start, first
        self.launches = launches(module)
        self.launch = self.launches[0]
        self.lives: list[Life] = []
        self.moves = {id(operation): operation for operation in moves(module)}
        makers = [each for each in module.operations if each.name in (CREATE, ACQUIRE)]
        operations = [one.operation for one in expectations.found]
        self.transfers = {id(operation): operation for operation in transfers(module)}
        self.wanted = [*operations, *self.moves.values(), *makers, *self.transfers.values()]
        self.limit = max(60, _PER_OPERATION * len(operations))
        self.limit += _PER_OPERATION * (len(self.moves) + len(self.transfers) + len(makers))
        self.chosen = [each for each in function.kernel.instructions if is_part(each.opcode)]
        self.chosen += function.wanted
        self.chosen += [
            each for each in function.kernel.instructions if each.opcode.startswith(ALLOCATION)
        ]
        self.compared_lines = {each.line for each in self.chosen}
        known = set(map(id, self.chosen))
        self.chosen += [
            each
            for each in function.kernel.instructions
            if each.opcode.startswith(BOUND_TO_RULES) and id(each) not in known
        ]
        self.block = Block(
            module, self.ctas, 0, function.module.version,
            lambda instruction: self.position[id(instruction)][1],
        )  # fmt: skip
        self.unseen, self.effort = set(self.allowed), _Effort()
        self.tracers: dict[bool, Tracer] = {}

    def cta_groups(self) -> None:
        """All tcgen05 instructions of a kernel have one ``.cta_group`` (PTX ISA, "tcgen05")."""
        first = ""
        for each in self.function.kernel.instructions:
            group = _CTA_GROUP.search(each.opcode) if each.opcode.startswith("tcgen05.") else None
            if group is not None and group[0] != (first := first or group[0]):
                self.result.differ(None, each, "its CTA group", first, group[0])

    def run(self) -> Findings:
        """What is found, for all choices of arguments."""
        result, traces = self.result, self.traced()
        self.cta_groups()
        if any(trace.end.why is Why.LONG for trace in traces):
            first, lives = self.launch, self.lives
            self.launch = self.launches[1]
            second = self.traced()
            if _variety(second) > _variety(traces):
                traces = second
            else:
                self.launch, self.lives = first, lives
        self.cluster(traces)
        self.again()
        self.to_the_end()
        self.effort, before = _Effort(is_first=False), result.unproven.copy()
        for launch in self.launches[1:]:
            # Another choice of arguments, if with these some instructions are not executed.
            if self.unseen and not result.differences and launch != self.launch:
                self.relaunch(launch)
        # What is cut off here came to its end before, but for what nothing else executes.
        result.unproven = before | Counter(
            {name: n for name, n in result.unproven.items() if not name.startswith(_CUT_OFF)}
        )
        if self.unseen and not result.differences:
            result.unproven["executions: never, for all choices of arguments"] += len(self.unseen)
        self.leave_out()
        return result

    def again(self) -> None:
        """The first threads once more, with other arguments: a coincidence does not happen twice.

        What is not proven was counted the first time.
        """
        result, before, launch = self.result, self.result.unproven.copy(), self.launch
        self.effort = _Effort(shorter=_SHORTER, is_first=False)
        for each in others(self.module):
            if not result.differences:
                self.relaunch(each)
        self.launch, self.effort, result.unproven = launch, _Effort(), before

    def to_the_end(self) -> None:
        """With few trips of each loop, to the end of all threads that the code tells apart.

        What ended early in launches with many trips is known where these come to the end.
        """
        result, launch = self.result, self.launch
        counted = Counter(
            {name: n for name, n in result.unproven.items() if not name.startswith(_CUT_OFF)}
        )
        ends: Counter[str] = Counter()
        launched = [*whole_launches(self.module), *short_launches(self.module)]
        for number, each in enumerate(launched):
            if result.differences:
                break
            result.unproven = Counter()
            self.effort = _Effort(is_first=False, all_threads=not number)
            self.relaunch(each)
            if not number:
                launched += self.further_blocks(each)
            for name, count in result.unproven.items():
                if name.startswith(_ENDS) or (not number and name not in counted):
                    ends[name] = max(ends[name], count)
        result.unproven = counted | ends
        self.launch, self.effort = launch, _Effort()

    def further_blocks(self, launch: TrialLaunch) -> list[TrialLaunch]:
        """The same launch of the blocks that the code tells apart."""
        turns, found = Turns(self.tracers[False].kernel, self.given()), []
        for axis, name in enumerate(("%ctaid.x", "%ctaid.y", "%ctaid.z")):
            for number in turns.of(name, _BLOCKS_ASKED)[:_MOST_BLOCKS]:
                found.append(launch.at_block(axis, number if axis else number // self.ctas))
        return found

    def relaunch(self, launch: TrialLaunch) -> None:
        """With other arguments."""
        self.launch = launch
        self.cluster(self.traced())

    def leave_out(self) -> None:
        """List the instructions that are not compared with an operation."""
        left = self.result.left_out
        for group, _ in self.position.values():
            if id(group) in self.unseen:
                left.update((each.line, "instructions that are never executed")
                            for each in group.instructions)  # fmt: skip
            elif self.ctas > 1:
                left.update((each.line, _WHICH_BLOCKS) for each in group.instructions)
        transfers_left = self.result.unproven["transfers of tensor memory"]
        for instruction, _ in observed(self.function.kernel):
            is_transfer = instruction.opcode.startswith("tcgen05.")
            if transfers_left if is_transfer else instruction.line not in self.result.compared:
                left[instruction.line] = unclaimed(instruction)
            elif not is_transfer:
                left[instruction.line] = DATA_OF_STORES
        if self.ctas > 1:
            made = (each.line for each in self.chosen if is_part(each.opcode))
            left.update(dict.fromkeys(made, _WHICH_BLOCKS))
        known = self.compared_lines | left.keys()
        for each in self.function.kernel.instructions:
            if each.opcode.startswith(_OTHERS) and each.line not in known:
                left[each.line] = f"other instructions: {each.opcode.partition('::')[0]}"

    def traced(self) -> list[PartitionTrace]:
        """What each partition of the module executes."""
        limit = self.limit if self.effort.is_first else _TO_THE_END * self.limit
        tracer = ModuleTracer(self.module, self.launch, self.wanted, self.offset, limit)
        found = [tracer.main(), *tracer.others()]
        self.lives = tracer.lives
        return found

    def parameters(self) -> Iterator[tuple[Value, int]]:
        """The TMA descriptors that the kernel is given by value, and their addresses."""
        kernel, entry = self.function.kernel, self.module.kernel
        for value in entry.regions[0].entry.arguments if entry else ():
            is_given = "tensordesc" in (value.type or "") and value.index < len(kernel.parameters)
            if is_given and kernel.variables[value.index].bytes > 8:
                yield value, generic_address(value.index)

    def offset(self, operation: Operation, operands: Sequence[RunValue]) -> int | None:
        """By how much a view is further than what it is a view of."""
        return view_offset(self.module, operation, operands[1] if operands[1:] else None)

    def scratch(self, rank: int) -> int | None:
        """Where the global scratch memory of a block of the cluster begins: after those of the
        blocks before it, at the kernel's first parameter that is no argument."""
        size, entry = self.launched.scratch, self.module.kernel
        if size is None or entry is None:
            return None
        (x, y, z), (width, height, _) = self.launch.program, self.launch.programs
        block = ((z * height + y) * width + x) * self.ctas + rank
        return parameter(len(entry.regions[0].entry.arguments)) + block * size

    # ------------------------------------------------------------------- blocks and partitions

    def cluster(self, traces: Sequence[PartitionTrace]) -> None:
        """All blocks of a cluster, for one choice of arguments."""
        result, last = self.result, self.function.kernel.instructions[-1]
        result.blocks.add(self.launch.program)
        for rank in range(self.ctas):
            self.block = replace(self.block, rank=rank, scratch=self.scratch(rank))
            partitions = [] if result.differences else self.partitions(traces)
            if rank or result.differences:
                continue
            for each in partitions:
                self.unseen.difference_update(
                    id(self.position[id(event.instruction)][0])
                    for event in each.thread.events
                    if id(event.instruction) in self.position
                )
                if not result.differences:
                    moves, thread, whole = each.moves, each.thread, each.is_whole
                    Stores(each.block, result, moves, thread, whole, last).compare()
                if not result.differences and not each.block.lane:
                    compare_transfers(each.block, result, each.transfers, each.thread, last)
            if not result.differences:
                sizes = self.launched.shared, self.launched.scratch
                compare_regions(self.module, result, self.lives, result.starts, *sizes)
            if not self.result.of_the_kernel:
                is_open = self.ctas > 1 or self.copied_besides
                compare_bytes(self.result, traces, self.expected, is_open=is_open)

    def partitions(self, traces: Sequence[PartitionTrace]) -> list[Partition]:
        """One block: the first thread of each partition is found by what it executes.

        Of all blocks but the first one, what they copy by TMA.
        """
        is_other = self.block.rank > 0
        if is_other not in self.tracers:
            chosen = [one for one in self.chosen if not is_other or kind_of(one) == "tma"]
            stores = [] if is_other else list(observed(self.function.kernel))
            self.tracers[is_other] = Tracer(
                self.function.kernel, chosen, {}, self.function.module.variables, stores,
                self.function.operands,
            )  # fmt: skip
        tracer = self.tracers[is_other]
        tracer.give(self.given())
        done = self.threads(tracer, 0, traces[0])
        left = [
            trace
            for trace in traces[1:]
            if any(self.is_compared(self.expected.get(id(each.operation))) for each in trace.events)
        ]
        limit = max(map(self.instructions, left), default=0)
        thread = WARP_THREADS * int(self.module.attributes.get("ttg.num-warps", 4))
        while left and thread < self.function.threads:
            trace = self.choose(left, tracer.run(thread, limit))
            if trace is not None:
                done += self.threads(tracer, thread, trace)
                left.remove(trace)
            thread += WARP_THREADS * (self.warps(trace) if trace else 1)
        if left:
            self.result.unproven["partitions whose threads are not found"] += len(left)
        return done

    def threads(self, tracer: Tracer, first: int, trace: PartitionTrace) -> list[Partition]:
        """Some threads of a partition, the first of which is the leader."""
        limit, warps = self.instructions(trace), self.warps(trace)
        limit //= self.effort.shorter
        thread = tracer.run(first, limit)
        self.result.threads.add(first)
        self.allocation(first, thread)
        check_legality(self.result, thread, self.by_elements)
        leader = self.partition(trace, thread)
        self.result += leader.found
        if not self.result.differences and self.effort.is_first:
            compare_moved(self.result, thread, tracer.run(first, limit // _SHORTER, MOVED))
        done, together = [leader], thread
        for warp, lane in self.others_of(first, warps):
            if self.result.differences:
                break
            self.block = replace(self.block, warp=warp, lane=lane)
            number = first + WARP_THREADS * warp + lane
            is_cut = self.effort.is_first and warp + lane != 1
            found = tracer.run(number, limit // _SHORTER if is_cut else limit, stores=False)
            self.allocation(first, found)
            check_legality(self.result, found, self.by_elements)
            if lane:
                compare_lanes(self.result, together, found)
            else:
                together = found
            done.append(self.partition(trace, found))
            if self.effort.is_first:  # of which the end was not waited for
                done[-1].found.unproven = Counter(
                    {
                        name: count
                        for name, count in done[-1].found.unproven.items()
                        if not name.startswith(_CUT_OFF) and name not in leader.found.unproven
                    }
                )
            else:
                done[-1].found.unproven -= leader.found.unproven
            self.result.threads.add(number)
            self.result += done[-1].found
        self.block = replace(self.block, warp=0, lane=0)
        return done

    def others_of(self, first: int, warps: int) -> list[tuple[int, int]]:
        """The (warp, lane) of further threads of a partition that are run.

        Each bit of a thread's number has its part in the addresses of a tile. A warp's other lanes
        follow its first one, which tells them what it shuffles.
        """
        last = (warps - 1, WARP_THREADS - 1)
        if self.effort.is_first:
            lanes = (1, 2, 4, 8, 16) if self.moves else (1,)
            chosen = [*((0, lane) for lane in lanes), (0, last[1]), (1, 0), (2, 0), (4, 0)]
            chosen += [(warps - 1, 0), *([last] if self.moves else [])]
        elif self.effort.all_threads:
            turns = Turns(self.tracers[False].kernel, self.given())
            bounds = turns.of("%tid.x", min(self.function.threads, _MOST_THREADS))
            here = [at - first for at in bounds if 0 <= at - first < WARP_THREADS * warps]
            chosen = [divmod(at, WARP_THREADS) for at in here[:_MOST_BOUNDS]]
            chosen += [(0, last[1]), last]
        else:
            chosen = []
        wanted = {each for each in chosen if each[0] < warps and each != (0, 0)}
        return sorted(wanted | {(warp, 0) for warp, _ in wanted if warp})

    def allocation(self, first: int, found: ThreadTrace) -> None:
        """Tensor memory is allocated and freed once, by all threads of the first warp."""
        events = [each for each in found.events if each.instruction.opcode.startswith(ALLOCATION)]
        must = [] if first or self.block.warp else list(ALLOCATION)
        if self.block.rank or not any(each.opcode.startswith(ALLOCATION) for each in self.chosen):
            return
        if found.end.is_early:
            must = must[: max(len(events), 1)]
        is_ = [next(name for name in ALLOCATION if each.instruction.opcode.startswith(name))
               for each in events]  # fmt: skip
        columns = {each.operands[-1] for each in events}
        if self.launched.columns is not None:
            columns |= {self.launched.columns} if events else set()
        addresses = [each.operands[0] for each in events if each.operands and must[1:] == is_[1:]]
        if is_ != must or len(columns) > 1 or (len(is_) > 1 and addresses[-1] != BASES.tensor):
            last = events[-1].instruction if events else self.function.kernel.instructions[-1]
            sizes = ", ".join(map(str, columns))
            self.result.differ(
                None, last, "the allocation of tensor memory", " and ".join(must) or "none",
                f"{' and '.join(is_) or 'none'} ({sizes} columns)",
            )  # fmt: skip
        elif events:
            self.result.proven["allocations of tensor memory"] += 1

    def choose(self, left: Sequence[PartitionTrace], found: ThreadTrace) -> PartitionTrace | None:
        """The partition that a thread is of: one that agrees, or at least begins as the thread."""
        followed = (each.instruction for each in found.events if self.is_followed(each.instruction))
        groups = (self.position[id(each)][0] for each in followed if not is_part(each.opcode))
        # A partition may begin with a descriptor, whose bytes are waited for like those of a store.
        group = next((each for each in groups if each.kind not in _OF_STORES), None)
        if group is None:
            return None
        allowed = self.allowed[id(group)]
        begins: PartitionTrace | None = None
        for trace in left:
            if any(id(self.expected.get(id(each.operation))) in allowed for each in trace.events):
                if not self.partition(trace, found).found.differences:
                    return trace
                begins = begins or trace
        return begins

    def warps(self, trace: PartitionTrace) -> int:
        """The number of warps of a partition."""
        followed = (self.expected.get(id(each.operation)) for each in trace.events)
        return max((one.warps for one in followed if one), default=1)

    def instructions(self, trace: PartitionTrace) -> int:
        """At most how many instructions the events of a trace are."""
        return 64 + sum(
            max(len(one.instructions), len(one.boxes), 1) + len(one.after)
            if (one := self.expected.get(id(event.operation))) is not None
            else 40
            for event in trace.events
            if id(event.operation) not in self.moves and id(event.operation) not in self.transfers
        )

    def given(self) -> dict[str, int]:
        """Numbers for the special registers and parameters in the PTX."""
        kernel, rank = self.function.kernel, self.block.rank
        numbers = self.launch.numbers(kernel)
        for index, name in enumerate(kernel.parameters):
            numbers.setdefault(f"[{name}]", parameter(index))
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


def _kinds_of(one: Expected) -> set[str]:
    """The kinds of instruction that an operation becomes."""
    return {one.kind, *(kind for kind, *_ in one.after)}


def _variety(traces: Sequence[PartitionTrace]) -> tuple[int, int]:
    """(how many operations are executed, how many partitions end)."""
    executed = {event.operation for trace in traces for event in trace.events}
    return len(executed), sum(not trace.end.is_early for trace in traces)
