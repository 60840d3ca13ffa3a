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

from triton_ext.mlir.ir import Value
from triton_ext.passes.verify_descriptors.clusters import (
    CUT_OFF,
    ENDS,
    SHORTER,
    ClusterComparison,
    Effort,
)
from triton_ext.passes.verify_descriptors.compared import Compared
from triton_ext.passes.verify_descriptors.meaning.tiles import view_offset
from triton_ext.passes.verify_descriptors.memory.stores import DATA_OF_STORES, observed, unclaimed
from triton_ext.passes.verify_descriptors.running.findings import Findings
from triton_ext.passes.verify_descriptors.running.launches import TrialLaunch, launches, others
from triton_ext.passes.verify_descriptors.running.mlir_trace import (
    Life,
    ModuleTracer,
    PartitionTrace,
)
from triton_ext.passes.verify_descriptors.running.register_functions import generic_address
from triton_ext.passes.verify_descriptors.running.tensormaps import is_part
from triton_ext.passes.verify_descriptors.running.trace_end import Why
from triton_ext.passes.verify_descriptors.running.trips import short_launches, whole_launches

_TO_THE_END = 4
"""How many times as much is looked at where loops are to come to their end."""
_OTHERS = (
    "cp.async.bulk", "mbarrier.", "tcgen05.shift", "st.async", "red.async", "tensormap.",
    "clusterlaunchcontrol", "atom.shared", "red.shared",
)  # fmt: skip
_CTA_GROUP = re.compile(r"cta_group::\d")
_WHICH_BLOCKS = "which blocks of a cluster an instruction is about"
_Traced = tuple[list[PartitionTrace], list[Life]]
"""What each partition of the module executes, and its allocations."""


class TraceComparison:
    """Runs both, with several choices of arguments, and compares."""

    def __init__(self, compared: Compared) -> None:
        self.compared, self.result = compared, Findings()
        first = compared.kernel.instructions[0]
        for value, start in _given_descriptors(compared):
            self.result.starts[value] = start, first
        self.launches = launches(compared.module)
        self.clusters = ClusterComparison(compared, self.result, self.launches[0])

    def cta_groups(self) -> None:
        """All tcgen05 instructions of a kernel have one ``.cta_group`` (PTX ISA, "tcgen05")."""
        first = ""
        for each in self.compared.kernel.instructions:
            group = _CTA_GROUP.search(each.opcode) if each.opcode.startswith("tcgen05.") else None
            if group is not None and group[0] != (first := first or group[0]):
                self.result.differ(None, each, "its CTA group", first, group[0])

    def run(self) -> Findings:
        """What is found, for all choices of arguments."""
        result, clusters = self.result, self.clusters
        launch, second, *_ = self.launches
        traced = self.traced(launch, Effort())
        self.cta_groups()
        if any(trace.end.why is Why.LONG for trace in traced[0]):
            shorter = self.traced(second, Effort())
            if _variety(shorter[0]) > _variety(traced[0]):
                launch, traced = second, shorter
        clusters.run(launch, Effort(), *traced)
        self.again()
        self.to_the_end()
        before = result.unproven.copy()
        for each in self.launches[1:]:
            # Another choice of arguments, if with these some instructions are not executed.
            if clusters.unseen and not result.differences and each != launch:
                self.relaunch(each, Effort(is_first=False))
        # What is cut off here came to its end before, but for what nothing else executes.
        result.unproven = before | _not_cut_off(result)
        if clusters.unseen and not result.differences:
            result.unproven["executions: never, for all choices of arguments"] += len(
                clusters.unseen
            )
        self.leave_out()
        return result

    def again(self) -> None:
        """The first threads once more, with other arguments: a coincidence does not happen twice.

        What is not proven was counted the first time.
        """
        before = self.result.unproven.copy()
        for each in others(self.compared.module):
            if not self.result.differences:
                self.relaunch(each, Effort(shorter=SHORTER, is_first=False))
        self.result.unproven = before

    def to_the_end(self) -> None:
        """With few trips of each loop, to the end of all threads that the code tells apart.

        What ended early in launches with many trips is known where these come to the end.
        """
        result, module = self.result, self.compared.module
        counted = _not_cut_off(result)
        ends: Counter[str] = Counter()
        launched = [*whole_launches(module), *short_launches(module)]
        for number, each in enumerate(launched):
            if result.differences:
                break
            result.unproven = Counter()
            self.relaunch(each, Effort(is_first=False, all_threads=not number))
            if not number:
                launched += self.clusters.further_blocks()
            for name, count in result.unproven.items():
                if name.startswith(ENDS) or (not number and name not in counted):
                    ends[name] = max(ends[name], count)
        result.unproven = counted | ends

    def relaunch(self, launch: TrialLaunch, effort: Effort) -> None:
        """With other arguments."""
        self.clusters.run(launch, effort, *self.traced(launch, effort))

    def leave_out(self) -> None:
        """List the instructions that are not compared with an operation."""
        compared, left = self.compared, self.result.left_out
        for group, _ in compared.position.values():
            if id(group) in self.clusters.unseen:
                left.update((each.line, "instructions that are never executed")
                            for each in group.instructions)  # fmt: skip
            elif compared.ctas > 1:
                left.update((each.line, _WHICH_BLOCKS) for each in group.instructions)
        transfers_left = self.result.unproven["transfers of tensor memory"]
        for instruction, _ in observed(compared.kernel):
            is_transfer = instruction.opcode.startswith("tcgen05.")
            if transfers_left if is_transfer else instruction.line not in self.result.compared:
                left[instruction.line] = unclaimed(instruction)
            elif not is_transfer:
                left[instruction.line] = DATA_OF_STORES
        if compared.ctas > 1:
            made = (each.line for each in compared.chosen if is_part(each.opcode))
            left.update(dict.fromkeys(made, _WHICH_BLOCKS))
        known = {each.line for each in compared.instructions} | left.keys()
        for each in compared.kernel.instructions:
            if each.opcode.startswith(_OTHERS) and each.line not in known:
                left[each.line] = f"other instructions: {each.opcode.partition('::')[0]}"

    def traced(self, launch: TrialLaunch, effort: Effort) -> _Traced:
        """What the module executes."""
        module = self.compared.module
        limit = self.compared.limit * (1 if effort.is_first else _TO_THE_END)
        tracer = ModuleTracer(
            module, launch, self.compared.operations,
            lambda view, operands: view_offset(module, view, operands[1] if operands[1:] else None),
            limit,
        )  # fmt: skip
        return [tracer.main(), *tracer.others()], tracer.lifetimes.found


def _given_descriptors(compared: Compared) -> Iterator[tuple[Value, int]]:
    """The TMA descriptors that the kernel is given by value, and their addresses."""
    kernel, entry = compared.kernel, compared.module.kernel
    for value in entry.regions[0].entry.arguments if entry else ():
        is_given = "tensordesc" in (value.type or "") and value.index < len(kernel.parameters)
        if is_given and kernel.variables[value.index].bytes > 8:
            yield value, generic_address(value.index)


def _not_cut_off(result: Findings) -> Counter[str]:
    """What is not proven, but for traces that are long enough."""
    left = {name: n for name, n in result.unproven.items() if not name.startswith(CUT_OFF)}
    return Counter(left)


def _variety(traces: Sequence[PartitionTrace]) -> tuple[int, int]:
    """(how many operations are executed, how many partitions end)."""
    executed = {event.operation for trace in traces for event in trace.events}
    return len(executed), sum(not trace.end.is_early for trace in traces)
