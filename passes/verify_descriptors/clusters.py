"""All blocks of a cluster for one launch: what their threads execute, against the TTGIR."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.passes.verify_descriptors.compared import ALLOCATION, Compared
from triton_ext.passes.verify_descriptors.meaning.kinds import kind_of
from triton_ext.passes.verify_descriptors.memory.allocations import compare_regions
from triton_ext.passes.verify_descriptors.memory.bytes import compare_bytes
from triton_ext.passes.verify_descriptors.memory.stores import Stores, observed
from triton_ext.passes.verify_descriptors.memory.transfers import compare_lanes, compare_transfers
from triton_ext.passes.verify_descriptors.running.executions import Block
from triton_ext.passes.verify_descriptors.running.findings import Findings
from triton_ext.passes.verify_descriptors.running.launches import (
    BASES,
    MOVED,
    TrialLaunch,
    parameter,
)
from triton_ext.passes.verify_descriptors.running.legality import check_legality
from triton_ext.passes.verify_descriptors.running.mlir_trace import Life, PartitionTrace
from triton_ext.passes.verify_descriptors.running.moved import compare_moved
from triton_ext.passes.verify_descriptors.running.ptx_trace import Tracer
from triton_ext.passes.verify_descriptors.running.tensormaps import is_part
from triton_ext.passes.verify_descriptors.running.thread_trace import ThreadTrace
from triton_ext.passes.verify_descriptors.running.turns import Turns
from triton_ext.passes.verify_descriptors.sequences import Partition, Sequences

SHORTER = 3
"""How much less is looked at of what most other threads do, of the same one with memory elsewhere,
and with further arguments."""
_OF_STORES = ("store commit", "store wait")
ENDS = ("executions after the first ones", "the end of the PTX", "stores: executed after")
CUT_OFF = tuple(f"{name}: after enough" for name in ENDS[:2]) + ENDS[2:]
"""Facts of traces that end before the kernel does, and of those that are long enough."""
_OF_ASSEMBLY = 16
"""How much longer a trace may be where inline assembly issues instructions that are looked at."""
_MOST_THREADS, _BLOCKS_ASKED = 1024, 256
_MOST_BOUNDS, _MOST_BLOCKS = 12, 6


@dataclass(frozen=True)
class Effort:
    """How much of a launch is looked at.

    Attributes:
        shorter: the part of the executions, as a divisor.
        is_first: whether it is the first launch: further threads, and memory elsewhere.
        all_threads: whether all threads are run that the code tells apart.
    """

    shorter: int = 1
    is_first: bool = True
    all_threads: bool = False


class ClusterComparison(Sequences):
    """Runs the threads of a cluster, launch after launch, and compares what they execute.

    Attributes:
        unseen: the `id` of the groups of which no instruction was executed so far.
    """

    def __init__(self, compared: Compared, result: Findings, launch: TrialLaunch) -> None:
        self.compared, self.result = compared, result
        self.launch, self.effort = launch, Effort()
        self.block = Block(
            compared.module, compared.ctas, 0, compared.function.module.version,
            lambda instruction: compared.position[id(instruction)][1],
        )  # fmt: skip
        self.unseen = set(compared.allowed)
        self.tracers: dict[bool, Tracer] = {}

    def run(
        self,
        launch: TrialLaunch,
        effort: Effort,
        traces: Sequence[PartitionTrace],
        lives: Sequence[Life],
    ) -> None:
        """One choice of arguments.

        Args:
            traces: what each partition of the module executes.
            lives: the allocations of the module, and when they are alive.
        """
        self.launch, self.effort = launch, effort
        result, last = self.result, self.compared.kernel.instructions[-1]
        result.blocks.add(self.launch.program)
        for rank in range(self.compared.ctas):
            self.block = replace(self.block, rank=rank, scratch=self.scratch(rank))
            partitions = [] if result.differences else self.partitions(traces)
            if rank or result.differences:
                continue
            for each in partitions:
                self.unseen.difference_update(
                    id(self.compared.position[id(event.instruction)][0])
                    for event in each.thread.events
                    if id(event.instruction) in self.compared.position
                )
                if not result.differences:
                    moves, thread, whole = each.moves, each.thread, each.is_whole
                    Stores(each.block, result, moves, thread, whole, last).compare()
                if not result.differences and not each.block.lane:
                    compare_transfers(each.block, result, each.transfers, each.thread, last)
            if not result.differences:
                sizes = self.compared.launched.shared, self.compared.launched.scratch
                compare_regions(self.compared.module, result, lives, result.starts, *sizes)
            if not self.result.of_the_kernel:
                compared, unpredicted = self.compared, self.compared.expectations.open
                is_open = compared.ctas > 1 or any(kind == "tma" for kind, _ in unpredicted)
                compare_bytes(result, traces, compared.expected, is_open=is_open)

    def partitions(self, traces: Sequence[PartitionTrace]) -> list[Partition]:
        """One block: the first thread of each partition is found by what it executes.

        Of all blocks but the first one, what they copy by TMA.
        """
        is_other = self.block.rank > 0
        if is_other not in self.tracers:
            compared, function = self.compared, self.compared.function
            chosen = [one for one in compared.chosen if not is_other or kind_of(one) == "tma"]
            stores = [] if is_other else list(observed(function.kernel))
            self.tracers[is_other] = Tracer(
                function.kernel, chosen, {}, function.module.variables, stores, function.operands
            )
        tracer = self.tracers[is_other]
        tracer.give(self.given())
        done = self.threads(tracer, 0, traces[0])
        left = [
            trace
            for trace in traces[1:]
            if any(
                self.is_compared(self.compared.expected.get(id(each.operation)))
                for each in trace.events
            )
        ]
        limit = max(map(self.most_instructions, left), default=0)
        thread = WARP_THREADS * int(self.compared.module.attributes.get("ttg.num-warps", 4))
        while left and thread < self.compared.function.threads:
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
        limit, warps = self.most_instructions(trace), self.warps(trace)
        limit //= self.effort.shorter
        thread = tracer.run(first, limit)
        self.result.threads.add(first)
        self.allocation(first, thread)
        check_legality(self.result, thread, self.compared.by_elements)
        leader = self.partition(trace, thread)
        self.result += leader.found
        if not self.result.differences and self.effort.is_first:
            compare_moved(self.result, thread, tracer.run(first, limit // SHORTER, MOVED))
        done, together = [leader], thread
        for warp, lane in self.others_of(first, warps):
            if self.result.differences:
                break
            self.block = replace(self.block, warp=warp, lane=lane)
            number = first + WARP_THREADS * warp + lane
            is_cut = self.effort.is_first and warp + lane != 1
            found = tracer.run(number, limit // SHORTER if is_cut else limit, stores=False)
            self.allocation(first, found)
            check_legality(self.result, found, self.compared.by_elements)
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
                        if not name.startswith(CUT_OFF) and name not in leader.found.unproven
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
            lanes = (1, 2, 4, 8, 16) if self.compared.moves else (1,)
            chosen = [*((0, lane) for lane in lanes), (0, last[1]), (1, 0), (2, 0), (4, 0)]
            chosen += [(warps - 1, 0), *([last] if self.compared.moves else [])]
        elif self.effort.all_threads:
            turns = Turns(self.tracers[False].kernel, self.given())
            bounds = turns.of("%tid.x", min(self.compared.function.threads, _MOST_THREADS))
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
        if self.block.rank or not any(
            each.opcode.startswith(ALLOCATION) for each in self.compared.chosen
        ):
            return
        if found.end.is_early:
            must = must[: max(len(events), 1)]
        is_ = [next(name for name in ALLOCATION if each.instruction.opcode.startswith(name))
               for each in events]  # fmt: skip
        columns = {each.operands[-1] for each in events}
        if self.compared.launched.columns is not None:
            columns |= {self.compared.launched.columns} if events else set()
        addresses = [each.operands[0] for each in events if each.operands and must[1:] == is_[1:]]
        if is_ != must or len(columns) > 1 or (len(is_) > 1 and addresses[-1] != BASES.tensor):
            last = events[-1].instruction if events else self.compared.kernel.instructions[-1]
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
        groups = (
            self.compared.position[id(each)][0] for each in followed if not is_part(each.opcode)
        )
        # A partition may begin with a descriptor, whose bytes are waited for like those of a store.
        group = next((each for each in groups if each.kind not in _OF_STORES), None)
        if group is None:
            return None
        allowed = self.compared.allowed[id(group)]
        begins: PartitionTrace | None = None
        for trace in left:
            if any(
                id(self.compared.expected.get(id(each.operation))) in allowed
                for each in trace.events
            ):
                if not self.partition(trace, found).found.differences:
                    return trace
                begins = begins or trace
        return begins

    def warps(self, trace: PartitionTrace) -> int:
        """The number of warps of a partition."""
        followed = (self.compared.expected.get(id(each.operation)) for each in trace.events)
        return max((one.warps for one in followed if one), default=1)

    def most_instructions(self, trace: PartitionTrace) -> int:
        """At most how many instructions the events of a trace are.

        Those that inline assembly issues are no events; a launch that is run to its end has room
        for them.
        """
        accesses = self.compared.moves.keys() | self.compared.transfers.keys()
        is_open = bool(self.compared.expectations.open) and not self.effort.is_first
        return (_OF_ASSEMBLY if is_open else 1) * 64 + sum(
            max(len(one.instructions), len(one.boxes), 1) + len(one.after)
            if (one := self.compared.expected.get(id(event.operation))) is not None
            else 40
            for event in trace.events
            if id(event.operation) not in accesses
        )

    def scratch(self, rank: int) -> int | None:
        """Where the global scratch memory of a block of the cluster begins: after those of the
        blocks before it, at the kernel's first parameter that is no argument."""
        size, entry = self.compared.launched.scratch, self.compared.module.kernel
        if size is None or entry is None:
            return None
        (x, y, z), (width, height, _) = self.launch.program, self.launch.programs
        block = ((z * height + y) * width + x) * self.compared.ctas + rank
        return parameter(len(entry.regions[0].entry.arguments)) + block * size

    def given(self) -> dict[str, int]:
        """Numbers for the special registers and parameters in the PTX."""
        kernel, rank = self.compared.kernel, self.block.rank
        numbers = self.launch.numbers(kernel)
        for index, name in enumerate(kernel.parameters):
            numbers.setdefault(f"[{name}]", parameter(index))
        if self.compared.ctas > 1:
            for axis, program in zip("xyz", self.launch.program, strict=True):
                numbers[f"%clusterid.{axis}"] = program
                numbers[f"%cluster_ctaid.{axis}"] = rank if axis == "x" else 0
                numbers[f"%cluster_nctaid.{axis}"] = self.compared.ctas if axis == "x" else 1
                numbers[f"%nclusterid.{axis}"] = numbers[f"%nctaid.{axis}"]
            numbers["%ctaid.x"] = numbers["%ctaid.x"] * self.compared.ctas + rank
            numbers["%nctaid.x"] *= self.compared.ctas
        numbers["%cluster_ctarank"] = rank
        numbers["%cluster_nctarank"] = self.compared.ctas
        return numbers

    def further_blocks(self) -> list[TrialLaunch]:
        """The last launch, of the blocks that the code tells apart."""
        turns, found = Turns(self.tracers[False].kernel, self.given()), []
        for axis, name in enumerate(("%ctaid.x", "%ctaid.y", "%ctaid.z")):
            for at in turns.of(name, _BLOCKS_ASKED)[:_MOST_BLOCKS]:
                found.append(self.launch.at_block(axis, at if axis else at // self.compared.ctas))
        return found
