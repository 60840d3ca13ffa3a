"""One run, all schedules: proven, a witness, or not decided and why."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from triton_ext.emulator.clients.schedules.causality import Causality
from triton_ext.emulator.clients.schedules.coverage import FREE_ORDER, assumed, gaps, units
from triton_ext.emulator.clients.schedules.guide import Guided, Plan, Point
from triton_ext.emulator.clients.schedules.matching import Doubt, judged
from triton_ext.emulator.clients.schedules.orders import (
    MOST_CLUSTERS,
    Accesses,
    Choosing,
    Explored,
    explore,
    ordered,
)
from triton_ext.emulator.clients.schedules.peeks import peeks
from triton_ext.emulator.clients.schedules.record import Recorder
from triton_ext.emulator.clients.schedules.recorded import Recorded
from triton_ext.emulator.clients.schedules.skeleton import Operation, Skeleton
from triton_ext.emulator.clients.schedules.timing import reasons, unordered
from triton_ext.emulator.clients.schedules.verdict import (
    ASSUMED,
    PROVEN,
    UNDECIDED,
    WITNESS,
    Reason,
    Verdict,
    Witness,
    location,
)
from triton_ext.emulator.errors import EmulationError, LimitReached
from triton_ext.emulator.schedule.limits import Limits
from triton_ext.emulator.schedule.machine import Machine
from triton_ext.emulator.schedule.observers import Observer, combined
from triton_ext.emulator.state.block import Options
from triton_ext.emulator.state.memory import Allocation, Bytes, GlobalMemory
from triton_ext.hardware.architecture import WARP_THREADS

MOST_RUNS = 24
"""Runs that follow a doubt, at most; each of one instruction and kind is followed once or twice."""
SHORTEST = 12
"""Runs that make a witness shorter, at most."""
PATIENCE = 9.0
"""How many times as long as the first run those that follow a doubt may take; or 5 seconds."""


class Memory:
    """A copy of what a launch finds in global memory, with which it can be run again.

    Args:
        memory: global memory before the launch runs.
    """

    def __init__(self, memory: GlobalMemory) -> None:
        self._memory = memory
        self._first: dict[tuple[int, int], Bytes] = {}
        for each in memory.allocations:
            self._keep(each)
        find = memory.find
        if find is not None:

            def finds(of: GlobalMemory, address: int) -> Iterator[Allocation]:
                for each in find(of, address):
                    self._keep(each)
                    yield each

            memory.find = finds

    def _keep(self, of: Allocation) -> None:
        if of.writable:
            self._first[of.start, len(of.data)] = of.data.copy()

    def now(self) -> list[tuple[int, bytes]]:
        """The start and the contents of each writable allocation."""
        return [
            (each.start, each.data.tobytes()) for each in self._memory.allocations if each.writable
        ]

    def restore(self) -> None:
        """Write back what the launch found."""
        for (start, size), data in self._first.items():
            of = self._memory.locate(start)
            of.data[start - of.start : start - of.start + size] = data

    def put(self, contents: list[tuple[int, bytes]]) -> None:
        """Write contents that `now` returned."""
        kept = dict(contents)
        for each in self._memory.allocations:
            if each.writable and each.start in kept:
                each.data[:] = bytearray(kept[each.start])


@dataclass
class _Question:
    """A launch that has run once, and is run again to follow doubts.

    Attributes:
        machine: the launch, as the first run left it.
        memory: what it found in global memory.
        result: what the first run left in global memory.
        launch: the number of launches of the program before it.
        exact: whether a run with another result is a fault.
        deadline: the time after which no doubt is followed.
        runs: the number of doubts that were followed.
    """

    machine: Machine
    memory: Memory
    result: list[tuple[int, bytes]]
    launch: int
    exact: bool
    deadline: float
    runs: int = 0

    @property
    def over(self) -> bool:
        return self.runs >= MOST_RUNS or time.monotonic() > self.deadline

    def _again(self, schedule: Choosing | Guided, observer: Observer) -> Machine:
        """The launch under another schedule, with the memory as it was before."""
        first = self.machine
        self.memory.restore()
        first.launch.memory.released.clear()
        self.runs += 1
        limits = Limits(4 * first.steps + 100_000, first.limits.timeout)
        options = Options(chosen=first.options.chosen, failing=first.options.failing)
        return Machine(first.program, first.launch, schedule, observer, limits, options)

    def order(self, schedule: Choosing) -> tuple[str, EmulationError | None] | str | None:
        """Run the kernel in one order of the instructions that depend on time.

        Returns:
            How the run ends if it is wrong; the doubt that it leaves, if it leaves one; None if its
            result is that of the first run.
        """
        judged = _Judged()
        recorder = Recorder(judged.cluster)
        machine = self._again(schedule, combined([recorder, Accesses(schedule)]))
        try:
            machine.run()
        except LimitReached:
            return "an order did not end"
        except EmulationError as error:
            return f"{type(error).__name__}: {error}", error
        for each in recorder.clusters.values():
            judged.cluster(each)
        if self.memory.now() != self.result:
            return "the result depends on the order"
        inside = [each for each in gaps(machine, recorder.doubts) if each.text != FREE_ORDER]
        if judged.doubts or judged.reasons or inside:
            return "in another order, more is in doubt"
        return None

    def follow(self, plan: Plan) -> tuple[str, EmulationError | None] | None:
        """Run the kernel as a plan says. Returns how it ends; None if its result is the same."""
        guided = Guided(plan)
        machine = self._again(guided, guided.recorder)
        try:
            machine.run()
        except LimitReached:
            return None
        except EmulationError as error:
            return f"{type(error).__name__}: {error}", error
        if self.exact and self.memory.now() != self.result:
            return "another result", None
        return None


def decide(machine: Machine, run: Callable[[Machine], None], launch: int = 0) -> Verdict:
    """Run a launch under the eager schedule, and say what it tells of all schedules.

    Args:
        machine: the launch, before it runs.
        run: runs it to its end.
        launch: the number of launches of the program before it, for a witness's file.

    Returns:
        The verdict. Global memory is left as the first run left it.

    Raises:
        EmulationError: a fault of the kernel under the eager schedule.
    """
    began = time.monotonic()
    judged = _Judged()
    recorder, memory = Recorder(judged.cluster), Memory(machine.launch.memory)
    machine.observer = combined([machine.observer, recorder])
    machine.options.failing = peeks(machine.program)
    run(machine)
    for each in recorder.clusters.values():
        judged.cluster(each)
    took = time.monotonic() - began
    found = reasons(machine.program, machine.counts, machine.options.failing)
    chance = [Reason(why, at) for at, why in found]
    missing = _distinct([*chance, *gaps(machine, recorder.doubts), *judged.reasons])
    free = unordered(machine.program, machine.counts)
    deadline = began + took + max(5, PATIENCE * took)
    exact = not (chance or free)
    question = _Question(machine, memory, memory.now(), launch, exact, deadline)
    witness, explored = None, None
    lines = ordered(step.instruction for step in machine.program.steps)
    try:
        witness = _witness(question, judged.doubts)
        if witness is None and _is_of_order(chance, missing):
            explored = explore(question.order, lines, lambda: time.monotonic() > deadline)
            witness = _worst(question, lines, explored)
    finally:
        memory.put(question.result)
    if explored is not None and witness is None and _proves(machine, explored, chance):
        missing = []
    if witness is None:
        every = [doubt for doubt, _ in judged.doubts]
        counts = Counter((each.kind, each.operation.event.instruction) for each in every)
        missing += [Reason(kind, at, times) for (kind, at), times in counts.items()]
    outcome = WITNESS if witness else UNDECIDED if missing else PROVEN
    return Verdict(
        machine.program.kernel.name,
        outcome,
        missing,
        witness,
        free,
        [*ASSUMED, *dict.fromkeys(judged.assumed)],
        {**judged.sizes, "doubts": len(judged.doubts), "runs": question.runs},
        (took, time.monotonic() - began),
        "" if explored is None or witness is not None else _told(explored),
    )


def _is_of_order(chance: list[Reason], missing: list[Reason]) -> bool:
    """Whether all reasons against a proof are settled by running every order."""
    lines = [each.at for each in chance if each.at is not None]
    others = [each for each in missing if each.text not in {one.text for one in chance}]
    return (
        bool(chance)
        and len(ordered(lines)) == len({each.line for each in lines})
        and all(each.text == FREE_ORDER for each in others)
    )


def _worst(question: _Question, lines: frozenset[int], explored: Explored) -> Witness | None:
    """A witness of the order that ends in a fault, if one does."""
    if explored.broken is None or isinstance(explored.broken[1], str):
        return None
    decisions, ends = explored.broken
    steps = tuple(
        f"cluster {each.chosen[0]}, block of rank {each.chosen[1]}, thread {each.chosen[2]}:"
        f" {each.at.opcode} at {location(each.at)} goes on"
        for each in decisions
    )
    name, choices = question.machine.program.kernel.name, tuple(each.chosen for each in decisions)
    plan = Plan(name, question.launch, (), None, steps, tuple(sorted(lines)), choices)
    return Witness(plan, *ends)


def _told(explored: Explored) -> str:
    if explored.broken is not None:
        return f"{explored.broken[1]} (in run {explored.orders})"
    return str(explored)


def _proves(machine: Machine, explored: Explored, chance: list[Reason]) -> bool:
    """Whether the orders that were run are all that a GPU can choose.

    They are not if several addresses are accessed (relaxed operations have one order for each
    address), if reads may see older values, or if the GPU chooses which clusters run side by side.
    """
    atomics = all(each.at is not None and each.at.opcode.startswith("atom.") for each in chance)
    return (
        explored.complete
        and explored.broken is None
        and explored.addresses <= 1
        and atomics
        and machine.launch.clusters <= MOST_CLUSTERS
    )


def _distinct(all_: list[Reason]) -> list[Reason]:
    counts = Counter((each.text, each.at) for each in all_)
    first = {(each.text, each.at): each for each in all_}
    return [Reason(text, at, max(first[text, at].times, n)) for (text, at), n in counts.items()]


@dataclass
class _Judged:
    """What is known of the clusters that have ended.

    Attributes:
        doubts: the doubts of all clusters, each with the `Causality` of its cluster.
        reasons, assumed: what `coverage` says of them.
        sizes: the sizes that `Verdict.counted` reports.
    """

    doubts: list[tuple[Doubt, Causality]] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("clusters", "parties", "operations", "barriers", "loose"), 0
        )
    )

    def cluster(self, recorded: Recorded) -> None:
        """Add a cluster that has ended."""
        skeleton = recorded.skeleton()
        order, found = judged(skeleton)
        self.doubts += [(doubt, order) for doubt in found]
        self.reasons += units(recorded.cluster)
        self.assumed += assumed(recorded.cluster)
        self.sizes["clusters"] += 1
        self.sizes["parties"] += len(skeleton.parties)
        self.sizes["operations"] += len(skeleton.operations)
        self.sizes["barriers"] += len(skeleton.barriers)
        self.sizes["loose"] += len(order.loose)


def _witness(question: _Question, found: list[tuple[Doubt, Causality]]) -> Witness | None:
    """Follow the doubts, some of each instruction and kind, until one run ends badly."""
    groups: dict[object, list[tuple[Doubt, Causality]]] = {}
    for doubt, order in found:
        key = doubt.kind, doubt.operation.event.instruction
        groups.setdefault(key, []).append((doubt, order))
    chosen = [those[0] for those in groups.values()]
    chosen += [those[-1] for those in groups.values() if len(those) > 1]
    for doubt, order in chosen:
        holds = doubt.holds(order)
        for until in dict.fromkeys((doubt.until, None)):
            if question.over:
                return None
            plan = _plan(question, order.skeleton, doubt, holds, until)
            ends = question.follow(plan)
            if ends is not None:
                return _shortest(question, order.skeleton, doubt, holds, until, ends)
    return None


def _plan(
    question: _Question,
    skeleton: Skeleton,
    doubt: Doubt,
    holds: list[Operation],
    until: Operation | None,
) -> Plan:
    return Plan(
        question.machine.program.kernel.name,
        question.launch,
        tuple(Point.of(skeleton, each) for each in holds),
        None if until is None else Point.of(skeleton, until),
        tuple(_steps(question, skeleton, doubt, holds, until)),
    )


def _shortest(
    question: _Question,
    skeleton: Skeleton,
    doubt: Doubt,
    holds: list[Operation],
    until: Operation | None,
    ends: tuple[str, EmulationError | None],
) -> Witness:
    """The same witness, with as few warps held back as still break the kernel."""
    of_event: dict[int, list[Operation]] = {}
    for each in holds:
        of_event.setdefault(id(each.event), []).append(each)
    groups, runs = list(of_event.values()), question.runs
    size = max(1, len(groups) // 2)
    start = 0
    while len(groups) > 1 and question.runs - runs < SHORTEST:
        fewer = groups[:start] + groups[start + size :]
        other = None
        if fewer:
            plan = _plan(question, skeleton, doubt, list(chain(*fewer)), until)
            other = question.follow(plan)
        if other is not None and type(other[1]) is type(ends[1]):
            groups, ends = fewer, other
        else:
            start += size
        if start >= len(groups):
            if size == 1:
                break
            start, size = 0, max(1, size // 2)
    return Witness(_plan(question, skeleton, doubt, list(chain(*groups)), until), *ends)


def _steps(
    question: _Question,
    skeleton: Skeleton,
    doubt: Doubt,
    holds: list[Operation],
    until: Operation | None,
) -> Iterator[str]:
    """The steps of a plan, in words."""
    groups: dict[tuple[object, ...], list[Operation]] = {}
    for each in holds:
        at = each.event.instruction
        key = each.event.warp[0], each.party < 0, at, each.event.barrier
        groups.setdefault(key, []).append(each)
    for those in groups.values():
        yield f"held back: {_who(question, skeleton, those)}, before {_what(skeleton, those[0])}"
    if until is not None:
        who = _who(question, skeleton, [until])
        yield f"{who} goes on to {_what(skeleton, until)}; then all others go on"
    else:
        yield "all others go on as far as they can"
    yield f"{doubt.kind}: {_what(skeleton, doubt.operation)}"


def _who(question: _Question, skeleton: Skeleton, those: list[Operation]) -> str:
    rank = those[0].event.warp[0]
    index = question.machine.launch.blocks(skeleton.cluster)[rank]
    warps = sorted({each.event.warp[1] for each in those})
    words = f"warp {warps[0]}" if len(warps) == 1 else f"warps {', '.join(map(str, warps))}"
    masks = {skeleton.parties[each.party].mask for each in those if each.party >= 0}
    if len(masks) == 1 and not masks & {(1 << WARP_THREADS) - 1}:
        words += f", {_lanes(masks.pop())}"
    if those[0].party < 0:
        return f"block {index}, what a unit does for {words}"
    return f"block {index}, {words}"


def _lanes(mask: int) -> str:
    """Lanes in words: ``lane 0``, ``lanes 1 to 31``, or the first one and their number."""
    first, last = (mask & -mask).bit_length() - 1, mask.bit_length() - 1
    if mask.bit_count() == last - first + 1:
        return f"lane {first}" if first == last else f"lanes {first} to {last}"
    return f"lane {first} and {mask.bit_count() - 1} more"


def _what(skeleton: Skeleton, operation: Operation) -> str:
    event = operation.event
    at = event.instruction
    text = f"{at.opcode} at {location(at)}" if at is not None else event.kind
    if event.barrier < 0:
        return text
    name = skeleton.barriers[event.barrier].name
    return f"{text} ({event.kind}, phase {event.phase} of {name} in the run as it was)"
