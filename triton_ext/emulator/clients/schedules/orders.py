"""Every order of what depends on time: atomic operations, flags, tiles that are taken.

`Choosing` holds each of them until nothing else can go on, and then lets one go. Where all else has
one matching, that is no restriction: what it runs first would be the same later. `explore` runs
the orders one after the other by dynamic partial-order reduction: two that follow each other are
exchanged if they access the same memory, and one of them writes (Flanagan, Godefroid, "Dynamic
partial-order reduction for model checking software", POPL 2005).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from triton_ext.emulator.decode.step import Split, Step, Wait
from triton_ext.emulator.schedule.observers import Observer
from triton_ext.emulator.schedule.schedule import Schedule
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.memory import Addresses
from triton_ext.ptx.parse import Instruction

Thread = tuple[int, int, int]
"""The number of a cluster, the rank of a block in it, and a thread of the block."""
MOST_ORDERS = 64
"""Orders that are run, at most."""
MOST_CLUSTERS = 8
"""Clusters that run side by side, at most."""
TILES = ("clusterlaunchcontrol.try_cancel",)
READS = ("ld.volatile", "ld.relaxed", "ld.acquire", "ld.mmio")
WRITES = ("st.volatile", "st.relaxed", "st.release", "st.mmio", "red.", "atom.")


def ordered(instructions: Iterable[Instruction]) -> frozenset[int]:
    """The PTX lines of the instructions that are put into every order."""
    kinds = (*TILES, *READS, *WRITES)
    return frozenset(
        each.line
        for each in instructions
        if each.opcode.startswith(kinds) and not each.opcode.startswith("red.async")
    )


@dataclass
class Decision:
    """Which of several threads goes on.

    Attributes:
        among: the threads that could go on.
        chosen: the thread that did.
        at: the instruction that it executes.
        touched: the memory that the instruction accesses, as space and address.
        writes: whether it may write there.
    """

    among: tuple[Thread, ...]
    chosen: Thread
    at: Instruction
    touched: set[object] = field(default_factory=set)
    writes: bool = True

    def depends(self, other: Decision) -> bool:
        """Whether the order of the two matters."""
        both = self.touched & other.touched
        return bool(both) and (self.writes or other.writes)


class Choosing(Schedule):
    """A schedule that lets the instructions of some lines go on one by one, and all else at once.

    A thread that would read the same memory again at the same line waits until it is written.

    Args:
        lines: those of the PTX.
        choices: the threads to choose, one after the other; then the first that can go on.

    Attributes:
        decisions: those that were made so far.
    """

    meets = False  # an order in which a lane leaves a branch before its siblings is one, too

    def __init__(self, lines: Collection[int], choices: Sequence[Thread]) -> None:
        super().__init__("eager")
        self.lines, self.choices = lines, choices
        self.decisions: list[Decision] = []
        self._pending: dict[Thread, Instruction] = {}
        self._free: Thread | None = None
        self._read: dict[Thread, tuple[int, set[object]]] = {}

    @property
    def clusters(self) -> int:
        """How many clusters run side by side."""
        return MOST_CLUSTERS

    def held(self, cta: Cta, step: Step, lanes: Lanes) -> Wait | Split | None:
        """The wait of lanes for their turns; each lane has one of its own."""
        at = step.instruction
        if at.line not in self.lines:
            return None
        threads = lane_sets.indices(lanes).tolist()
        if len(threads) > 1:
            return Split([slice(each, each + 1) for each in threads])
        thread = cta.cluster.number, cta.rank, threads[0]
        if self._free == thread:
            self._free = None
            return None
        self._pending[thread] = at
        return Wait(lambda: self._free == thread, lambda: "waits for its turn", again=True)

    def let_go(self) -> bool:
        """Choose the thread that goes on, as nothing else can."""
        among = tuple(
            sorted(
                thread
                for thread, at in self._pending.items()
                if self._read.get(thread, (0, set()))[0] != at.line
            )
        )
        if not among or self._free is not None:
            return False
        number = len(self.decisions)
        wanted = self.choices[number] if number < len(self.choices) else among[0]
        chosen = wanted if wanted in among else among[0]
        at = self._pending.pop(chosen)
        decision = Decision(among, chosen, at, writes=not at.opcode.startswith(READS))
        if at.opcode.startswith(TILES):
            decision.touched.add("tiles")
        self.decisions.append(decision)
        self._read.pop(chosen, None)
        self._free = chosen
        return True

    def accesses(self, space: str, addresses: Sequence[int], writes: bool) -> None:
        """Note an access: threads that have read memory may read it again once it is written."""
        here = {(space, address) for address in addresses}
        if writes:
            for thread, (_, read) in list(self._read.items()):
                if here & read:
                    del self._read[thread]

    def took(self, cta: Cta, at: Instruction, lanes: Lanes, here: Iterable[object]) -> None:
        """Note what memory the thread has accessed that was let go."""
        thread = cta.cluster.number, cta.rank, int(lane_sets.indices(lanes)[0])
        for decision in reversed(self.decisions):
            if decision.chosen == thread:
                decision.touched.update(here)
                if not decision.writes:
                    self._read[thread] = at.line, decision.touched
                return


class Accesses(Observer):
    """Tells a `Choosing` what its instructions access."""

    def __init__(self, schedule: Choosing) -> None:
        self._schedule = schedule

    def access(
        self, cta: Cta, lanes: Lanes, space: str, addresses: Addresses, width: int, kind: str
    ) -> None:
        if space not in ("global", "shared"):
            return
        where = [int(each) // 4 * 4 for each in np.ravel(addresses)]
        if space == "shared":
            where = [each + (cta.cluster.number * 16 + cta.rank << 32) for each in where]
        self._schedule.accesses(space, where, writes=kind != "load")
        at = cta.instruction
        if at is not None and at.line in self._schedule.lines:
            self._schedule.took(cta, at, lanes, [(space, each) for each in where])


@dataclass
class _Node:
    """A decision of which others are to be tried.

    Attributes:
        among: the threads that could be chosen.
        current: the one that is chosen now.
        wanted, done: the threads that are to be tried, and those that were.
    """

    among: tuple[Thread, ...]
    current: Thread
    wanted: set[Thread] = field(default_factory=set)
    done: set[Thread] = field(default_factory=set)


@dataclass
class Explored:
    """What running the orders has shown.

    Attributes:
        orders: how many were run.
        decisions: how many the longest of them had.
        complete: whether these are all, but for exchanges of independent instructions.
        addresses: how many addresses the ordered instructions accessed.
        broken: the order that ends badly, and how it ends.
    """

    orders: int = 0
    decisions: int = 0
    complete: bool = False
    addresses: int = 0
    broken: tuple[tuple[Decision, ...], Any] | None = None

    def __str__(self) -> str:
        many = "every order" if self.complete else f"the first {self.orders} orders"
        return (
            f"{many} of what depends on time (runs: {self.orders}; operations: at most"
            f" {self.decisions}); none ends in a fault or another result"
        )


def explore(
    run: Callable[[Choosing], Any], lines: Collection[int], over: Callable[[], bool]
) -> Explored:
    """Run every order of some instructions.

    Args:
        run: runs the launch under a schedule, and returns how it ends if that is wrong, else None.
        lines: the PTX lines of these instructions.
        over: whether time is up.
    """
    found, path = Explored(), list[_Node]()
    addresses: set[object] = set()
    while found.orders < MOST_ORDERS and not over():
        schedule = Choosing(lines, [node.current for node in path])
        ends = run(schedule)
        found.orders += 1
        decisions = schedule.decisions
        found.decisions = max(found.decisions, len(decisions))
        addresses.update(*(each.touched for each in decisions))
        found.addresses = len(addresses)
        if ends is not None:
            found.broken = tuple(decisions), ends
            return found
        path += [_Node(each.among, each.chosen) for each in decisions[len(path) :]]
        _reverse(path, decisions)
        while path:
            node = path[-1]
            node.done.add(node.current)
            left = sorted(node.wanted - node.done)
            if left:
                node.current = left[0]
                break
            path.pop()
        if not path:
            found.complete = True
            break
    return found


def _reverse(path: list[_Node], decisions: Sequence[Decision]) -> None:
    """For each decision that depends on an earlier one, mark the other way round to be tried."""
    for number, each in enumerate(decisions):
        for before in range(number - 1, -1, -1):
            other = decisions[before]
            if other.chosen != each.chosen and other.depends(each):
                node = path[before]
                can = each.chosen in node.among
                node.wanted |= {each.chosen} if can else set(node.among)
                break
