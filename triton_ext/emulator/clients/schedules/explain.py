"""What a wait tells, by the clocks of a run; and the kernel without each wait and fence."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.clients.schedules.decide import Memory, decide
from triton_ext.emulator.clients.schedules.explanation import (
    NEEDED,
    REDUNDANT,
    UNKNOWN,
    Explanation,
    Place,
    Told,
    Without,
)
from triton_ext.emulator.clients.schedules.timing import WAITS
from triton_ext.emulator.clients.schedules.verdict import PROVEN, WITNESS, Verdict, location
from triton_ext.emulator.decode.program import Program
from triton_ext.emulator.decode.register_fences import check_fences
from triton_ext.emulator.decode.step import Step
from triton_ext.emulator.errors import EmulationError, LimitReached
from triton_ext.emulator.schedule.limits import Limits
from triton_ext.emulator.schedule.machine import Machine
from triton_ext.emulator.schedule.observers import Observer
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.barriers import MBarrier, NamedBarrier
from triton_ext.emulator.state.block import AsyncOperation, Cluster, Cta, Options
from triton_ext.emulator.state.buffers import named
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.ptx.parse import Instruction

SYNCHRONIZES = (
    *WAITS, "bar.sync", "bar.warp.sync", "barrier.sync", "barrier.cta.sync", "barrier.cluster.wait",
    "barrier.warp.sync", "fence", "membar", "tcgen05.wait", "tcgen05.fence", "wgmma.wait_group",
    "wgmma.fence", "cp.async.wait", "cp.async.bulk.wait_group",
)  # fmt: skip
"""Waits and fences that are left out, to see what comes of it."""
_ARRIVES = ("mbarrier.arrive", "cp.async.mbarrier.arrive", "tcgen05.commit", "bar.", "barrier.")
_WRITES = (
    "st.", "stmatrix", "cp.", "tcgen05.mma", "tcgen05.cp", "tcgen05.st", "tcgen05.shift",
    "wgmma.mma", "red.", "atom.", "multimem.", "mbarrier.init",
)  # fmt: skip
_NOT_ASKED_FOR = ("fence.proxy", "fence.mbarrier_init", "tcgen05.wait::ld", "tcgen05.fence")
SECONDS = 120.0
"""How long kernels without a wait or a fence are tried; those that are left are counted."""


def explained(
    machine: Machine, run: Callable[[Machine], None], launch: int, asked: Place
) -> Verdict:
    """As `decide`, with an explanation of the waits and fences at a line, if any is executed.
    Raises EmulationError: a fault of the kernel."""
    memory, find = Memory(machine.launch.memory), machine.launch.memory.find
    verdict = decide(machine, run, launch)
    groups = _synchronization(machine)
    if verdict.outcome == WITNESS or not any(asked.has(_at(machine, each)) for each in groups):
        return verdict
    result = memory.now()
    teller = _Teller(asked)
    deadline = time.monotonic() + SECONDS
    found: list[Without] = []
    try:
        memory.restore()
        _again(machine, machine.program, teller).run()
        for group in sorted(groups, key=lambda each: not asked.has(_at(machine, each))):
            if time.monotonic() < deadline:
                memory.restore()
                found.append(_without(machine, verdict, group, launch, asked, memory, result))
    finally:
        memory.put(result)
        machine.launch.memory.find = find
    explanation = Explanation(list(teller.told()), found, len(groups) - len(found))
    return dataclasses.replace(verdict, explained=explanation)


def _at(machine: Machine, group: Sequence[int]) -> Instruction:
    return machine.program.steps[group[0]].instruction


def _again(
    machine: Machine,
    program: Program,
    observer: Observer | None = None,
    passing: Collection[int] = (),
) -> Machine:
    """Run a launch once more, with another program."""
    machine.launch.memory.released.clear()
    limits = Limits(4 * machine.steps + 100_000, machine.limits.timeout)
    options = Options(chosen=machine.options.chosen, passing=frozenset(passing))
    return Machine(program, machine.launch, None, observer, limits, options)


# ------------------------------------------------------------------------------- without it


def _synchronization(machine: Machine) -> list[list[int]]:
    """The numbers of the executed waits and fences, grouped by opcode and source line."""
    groups: defaultdict[object, list[int]] = defaultdict(list)
    for number, step in enumerate(machine.program.steps):
        at = step.instruction
        if machine.counts[number] and at.opcode.startswith(SYNCHRONIZES):
            groups[at.source or at.line, at.opcode].append(number)
    return list(groups.values())


def _without(
    machine: Machine,
    base: Verdict,
    group: Sequence[int],
    launch: int,
    asked: Place,
    memory: Memory,
    result: object,
) -> Without:
    at = _at(machine, group)
    what, here = f"{at.opcode} at {location(at)}", asked.has(at)
    program, passing = _left_out(machine.program, group)
    other = _again(machine, program, passing=passing)
    try:
        verdict = decide(other, Machine.run, launch)
    except LimitReached:
        return Without(what, NEEDED, "it does not end", here)
    except EmulationError as error:
        first = str(error).splitlines()[0]
        return Without(what, NEEDED, f"{type(error).__name__}: {first}", here)
    if verdict.witness is not None:
        return Without(what, NEEDED, verdict.witness.ends.splitlines()[0], here)
    if not verdict.unordered and memory.now() != result:
        return Without(what, NEEDED, "the result is another one", here)
    more = [each for each in verdict.assumed if each not in base.assumed]
    more += [each.rule.undefined for name, each in other.taken.items() if name not in machine.taken]
    if at.opcode.startswith(_NOT_ASKED_FOR):
        more.append("not all of these are asked for")
    if verdict.outcome == PROVEN and more:
        return Without(what, UNKNOWN, f"the kernel is proven but for this: {more[0]}", here)
    if verdict.outcome == PROVEN:
        return Without(what, REDUNDANT, "the kernel is proven, too", here)
    return Without(what, UNKNOWN, str(verdict.reasons[0]), here)


def _left_out(program: Program, group: Sequence[int]) -> tuple[Program, set[int]]:
    """A program without some waits and fences, and the PTX lines of the waits for mbarriers among
    them: these stay, and pass at once.
    """
    steps, instructions = list(program.steps), list(program.kernel.instructions)
    passing = set()
    for number in group:
        step = steps[number]
        if step.instruction.opcode.startswith(WAITS):
            passing.add(step.instruction.line)
            continue
        gone = dataclasses.replace(step.instruction, opcode="nop", operands=())
        nothing = frozenset[Any]()
        steps[number] = Step(
            gone, lambda cta, lanes: None, step.guard, step.negated, 0, False, False, nothing
        )
        instructions[number] = gone
    kernel = dataclasses.replace(program.kernel, instructions=tuple(instructions))
    checked = check_fences(kernel, tuple(steps))
    return dataclasses.replace(program, kernel=kernel, steps=checked), passing


# ------------------------------------------------------------------------------ what it tells


class _Known:
    """Which instruction each event of a cluster comes from."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.last = cluster.clocks.seen.diagonal().copy()
        self.running: Instruction | None = None
        self.events: defaultdict[int, list[tuple[int, Instruction]]] = defaultdict(list)

    def note(self, running: Instruction | None) -> None:
        """Attribute the events since the last call to the instruction that was named then."""
        now = self.cluster.clocks.seen.diagonal()
        if self.running is not None:
            for agent in np.flatnonzero(now != self.last).tolist():
                self.events[agent].append((int(now[agent]), self.running))
        self.last, self.running = now.copy(), running

    def between(self, agent: int, first: int, last: int) -> Iterator[Instruction]:
        """The instructions of an agent after one event, up to another one."""
        for event, at in self.events[agent]:
            if first < event <= last:
                yield at


class _Teller(Observer):
    """Finds which writes and arrivals the waits at a line make known to those who pass."""

    def __init__(self, asked: Place) -> None:
        self._asked = asked
        self._known: dict[int, _Known] = {}
        self._outer: list[Instruction | None] = []
        self._times: Counter[Instruction] = Counter()
        self._who: defaultdict[Instruction, dict[str, None]] = defaultdict(dict)
        self._barriers: defaultdict[Instruction, dict[str, list[int]]] = defaultdict(dict)
        self._seen: defaultdict[Instruction, dict[tuple[str, str], dict[str, None]]]
        self._seen = defaultdict(dict)

    def _of(self, cta: Cta) -> _Known:
        known = self._known.get(cta.cluster.number)
        if known is None or known.cluster is not cta.cluster:
            known = self._known[cta.cluster.number] = _Known(cta.cluster)
        return known

    def instruction(self, cta: Cta, step: Step, lanes: Lanes) -> None:
        self._of(cta).note(step.instruction)

    def performs(self, operation: AsyncOperation) -> None:
        known = self._of(operation.cta)
        self._outer.append(known.running)
        known.note(operation.instruction)

    def completed(self, operation: AsyncOperation) -> None:
        self._of(operation.cta).note(self._outer.pop())

    def awaits(self, cta: Cta, lanes: Lanes, barrier: Any, phase: int, at: Instruction) -> None:
        if not self._asked.has(at):
            return
        known, cluster = self._of(cta), cta.cluster
        known.note(known.running)
        warps = lane_sets.warps(lanes).tolist()
        self._times[at] += len(warps)
        phases = self._barriers[at].setdefault(_called(cta, barrier), [phase, phase])
        phases[:] = min(phases[0], phase), max(phases[1], phase)
        released: NDArray[np.int64] = barrier.released.seen
        for agent in cta.agents(lanes).tolist():
            self._who[at][cluster.agent_name(agent)] = None
            before = cluster.clocks.seen[agent]
            for other in np.flatnonzero(released > before).tolist():
                for each in known.between(other, int(before[other]), int(released[other])):
                    key = each.opcode, location(each)
                    self._seen[at].setdefault(key, {})[cluster.agent_name(other)] = None

    def told(self) -> Iterator[Told]:
        """What each wait at the line tells."""
        for at, times in self._times.items():
            parts: dict[bool, list[str]] = {True: [], False: []}
            for (opcode, where), who in self._seen[at].items():
                text = f"{opcode} at {where} (by {_few(list(who))})"
                if opcode.startswith(_WRITES):
                    parts[True].append(text)
                elif opcode.startswith(_ARRIVES):
                    parts[False].append(text)
            barriers = [
                f"phase{'s' if first != last else ''} {_range(first, last)} of {name}"
                for name, (first, last) in self._barriers[at].items()
            ]
            waiters = list(self._who[at])
            yield Told(f"{at.opcode} at {location(at)}", waiters, barriers, times, parts[True],
                       parts[False])  # fmt: skip


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def _few(names: list[str]) -> str:
    """The first four names, and how many follow."""
    more = len(names) - 4
    return ", ".join(names[:4]) + (f" and {more} more" if more > 0 else "")


def _called(cta: Cta, barrier: Any) -> str:
    if isinstance(barrier, MBarrier):
        return named(barrier.name, cta.launch.buffers, cta.launch.buffers_start)
    if isinstance(barrier, NamedBarrier):
        return f"barrier {barrier.number}"
    return "the cluster's barrier"
