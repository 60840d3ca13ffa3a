"""mbarriers, and the numbered barriers of a block and of a cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.errors import BarrierFault, SynchronizationFault
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.clocks import Agents, Clock, Clocks, RemoteArrival
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.ptx.parse import Instruction

TX_LIMIT = (1 << 20) - 1
COUNT_LIMIT = (1 << 20) - 1
"""PTX ISA, "Contents of the mbarrier object": ranges of the tx-count and the arrival count."""


class NamedBarrier:
    """One of a block's 16 barriers (PTX ISA, "bar").

    Args:
        number: 0 to 15.
        live: (threads,): which threads of the block have not exited; kept up to date.
        clocks: the cluster's.
        exited: what the threads that have exited had seen; kept up to date.

    Attributes:
        expected: threads, or None for all of the block.
        generation: how often it has completed.
        released: what the threads of the last generation had seen together.
    """

    def __init__(self, number: int, live: NDArray[np.bool_], clocks: Clocks, exited: Clock) -> None:
        self.number, self._live, self._clocks, self._exited = number, live, clocks, exited
        self.expected: int | None = None
        self.arrived = np.zeros(len(live), np.bool_)
        self._again = 0  # threads that have arrived once more
        self.generation = 0
        self.clock = clocks.empty()
        self.released = self.clock
        self._left: dict[int, int] = {}  # warps that did not wait, and for which generation

    def arrive(
        self, lanes: Lanes, agents: Agents, expected: int | None, *, waits: bool,
        twice: Callable[[], bool],
    ) -> int:  # fmt: skip
        """Count the lanes in; the generation that they are part of.

        Args:
            agents: those of the lanes.
            waits: whether they wait for the others.
            twice: whether threads that are in already may be counted again.

        Raises:
            BarrierFault: another count than the others', or a thread that is in already, or could
                be.
        """
        everyone = expected or int(np.count_nonzero(self._live))
        first = not np.count_nonzero(self.arrived)
        if not first and expected != self.expected:
            raise BarrierFault(
                f"barrier {self.number} is used with {expected or 'all'} threads, while others"
                f" arrived with {self.expected or 'all'}"
            )
        if not first and (again := int(np.count_nonzero(self.arrived[lanes]))):
            if expected is None or not twice():
                raise BarrierFault(f"a thread arrives twice at barrier {self.number}")
            self._again += again
        if self._left:
            self._check_left(agents)
        if not waits:
            self._left.update(dict.fromkeys(agents.tolist(), self.generation))
        self._clocks.tick(agents)
        self.expected = expected
        if first and lane_sets.count(lanes) == everyone:  # all at once, as mostly
            self.generation += 1
            self.released = self._clocks.snapshot(agents)
            if expected is None:
                self.released.absorb(self._exited)
            return self.generation - 1
        self.arrived[lanes] = True
        self.clock.absorb(self._clocks.snapshot(agents))
        generation = self.generation
        self._complete()
        return generation

    def _check_left(self, agents: Agents) -> None:
        """Raise BarrierFault if a warp that did not wait has not seen the others arrive since."""
        for agent in agents.tolist():
            last = self._left.pop(agent, -1)
            if not 0 <= last == self.generation - 1:
                continue
            if (self.released.seen > self._clocks.seen[agent]).any():
                raise BarrierFault(
                    f"a warp arrives at barrier {self.number} again, did not wait there before"
                    " (bar.arrive), and nothing tells it that the others have come: both arrivals"
                    " could count for one phase"
                )

    def _complete(self) -> None:
        arrived = int(np.count_nonzero(self.arrived)) + self._again
        if self.expected is None:
            full = arrived and not (self._live & ~self.arrived).any()
        else:
            if arrived > self.expected:
                raise BarrierFault(
                    f"{arrived} threads arrive at barrier {self.number}, which expects"
                    f" {self.expected}"
                )
            full = arrived == self.expected
        if full:
            if self.expected is None:  # it has waited for those, too
                self.clock.absorb(self._exited)
            self.generation += 1
            self.arrived[:], self._again = False, 0
            self.released, self.clock = self.clock, self._clocks.empty()

    def threads_left(self) -> None:
        """Threads of the block have exited: those that wait for all wait for fewer."""
        if self.expected is None and self.arrived.any():
            self._complete()

    def why(self) -> str:
        """Who is missing, in words."""
        missing = np.flatnonzero(self._live & ~self.arrived)
        wanted = self.expected or len(self._live)
        text = (
            f"barrier {self.number}: {np.count_nonzero(self.arrived) + self._again} of {wanted}"
            " threads arrived"
        )
        if self.expected is None and len(missing):
            text += f"; missing: warps {', '.join(map(str, lane_sets.warps(missing)))}"
        return text


class ClusterBarrier:
    """The barrier of a cluster (PTX ISA, "barrier.cluster").

    Args:
        live: for each block, (threads,): which threads have not exited; kept up to date.
        clocks: the cluster's.
        exited: for each block, what the threads that have exited had seen; kept up to date.

    Attributes:
        owes_wait: for each block, which threads have arrived, and not waited since.
        generation: how often it has completed.
        released: what the threads of the last generation had seen together.
        happened: what those of them had seen whose arrivals were relaxed; None if none was.
    """

    def __init__(
        self, live: Sequence[NDArray[np.bool_]], clocks: Clocks, exited: Sequence[Clock]
    ) -> None:
        self._live, self._clocks, self._exited = live, clocks, exited
        self.generation = 0
        self.arrived = [np.zeros(len(each), np.bool_) for each in live]
        self.owes_wait = [np.zeros(len(each), np.bool_) for each in live]
        self.clock = clocks.empty()
        self.released = self.clock
        self.happened: NDArray[np.int64] | None = None
        self._happening: NDArray[np.int64] | None = None

    def arrive(
        self, rank: int, lanes: Lanes, clock: Clock, withheld: NDArray[np.int64] | None
    ) -> None:
        """Count threads of the block of that rank in.

        Args:
            clock: what they release.
            withheld: what they had seen, if they do not release it.

        Raises:
            BarrierFault: one of them has not waited since it arrived last.
        """
        if self.owes_wait[rank][lanes].any():
            raise BarrierFault("barrier.cluster.arrive twice without barrier.cluster.wait between")
        self.arrived[rank][lanes] = True
        self.owes_wait[rank][lanes] = True
        self.clock.absorb(clock)
        if withheld is not None:
            before = self._happening
            self._happening = withheld if before is None else np.maximum(before, withheld)
        self.threads_left()

    def threads_left(self) -> None:
        """Complete, if all threads that have not exited have arrived.

        An exit releases as an arrival does: the barrier waits for all threads that have not exited
        (PTX ISA, "barrier.cluster"), and so it has waited for this one.
        """
        pairs = list(zip(self._live, self.arrived, strict=True))
        if any((live & ~arrived).any() for live, arrived in pairs):
            return
        if not any(arrived.any() for arrived in self.arrived):
            return
        for exited in self._exited:
            self.clock.absorb(exited)
        self.generation += 1
        for arrived in self.arrived:
            arrived[:] = False
        self.released, self.clock = self.clock, self._clocks.empty()
        self.happened, self._happening = self._happening, None

    def wait(self, rank: int, lanes: Lanes) -> int:
        """The generation that threads of the block of that rank wait for. Raises BarrierFault: one
        of them has not arrived."""
        if not self.owes_wait[rank][lanes].all():
            raise BarrierFault("barrier.cluster.wait without a barrier.cluster.arrive before")
        pending = self.arrived[rank][lanes]
        return self.generation + 1 if pending.any() else self.generation

    def why(self) -> str:
        """Who is missing, in words."""
        missing = [
            f"block {rank}, warps {', '.join(map(str, lane_sets.warps(threads)))}"
            for rank, (live, arrived) in enumerate(zip(self._live, self.arrived, strict=True))
            if len(threads := np.flatnonzero(live & ~arrived))
        ]
        return "the cluster's barrier; missing: " + "; ".join(missing)


ARRIVALS, EXPECTED, BROUGHT = "arrivals", "bytes expected", "bytes brought"
Counts = dict[int, int]
"""Arrivals or bytes, by the line of the PTX instruction."""


def _number(number: int, what: str) -> str:
    return "1 arrival" if (number, what) == (1, ARRIVALS) else f"{number} {what}"


class History:
    """What happened at an mbarrier, for errors: in its last two phases, and at all."""

    def __init__(self) -> None:
        self._phases: dict[int, dict[str, Counts]] = {}
        self._latest: dict[str, Counts] = {EXPECTED: {}, BROUGHT: {}}
        self._totals = {EXPECTED: 0, BROUGHT: 0}
        self._instructions: dict[int, Instruction] = {}

    def note(self, phase: int, what: str, number: int, at: Instruction) -> None:
        """So many arrivals, or bytes that are expected or brought, by an instruction."""
        if phase not in self._phases:
            before = {n: kept for n, kept in self._phases.items() if n == phase - 1}
            self._phases = {**before, phase: {}}
        counts = self._phases[phase].setdefault(what, {})
        counts[at.line] = counts.get(at.line, 0) + number
        self._instructions[at.line] = at
        if what in self._totals:
            self._totals[what] += number
            self._latest[what][at.line] = number

    def _places(self, counts: Counts) -> str:
        found = []
        for line in counts:
            source = self._instructions[line].source
            found.append(f"PTX line {line}" if source is None else str(source))
        found = list(dict.fromkeys(found))
        return " and ".join([", ".join(found[:-1]), found[-1]] if found[1:] else found)

    def expected(self, phase: int) -> int:
        """The bytes that are expected so far in a phase that is not complete."""
        return sum(self._phases.get(phase, {}).get(EXPECTED, {}).values())

    def lines(self, phase: int) -> list[str]:
        """What happened in a phase that is not complete, and in the one before."""
        found = []
        for number in range(phase, max(phase - 2, -1), -1):
            parts = [
                f"{_number(sum(counts.values()), what)} ({self._places(counts)})"
                for what, counts in self._phases.get(number, {}).items()
            ]
            found.append(f"phase {number}: {'; '.join(parts) or 'nobody has come'}")
        return found

    def mismatch(self, *, more: bool = False) -> str:
        """Says that copies bring another number of bytes than is expected; "" if they do not.
        `more`: only if they bring more. (Others may be still to come.)"""
        expected, brought = self._latest[EXPECTED], self._latest[BROUGHT]
        wanted, given = sum(expected.values()), sum(brought.values())
        if not wanted or not given or wanted == given or (more and given < wanted):
            return ""
        if self._totals[EXPECTED] == self._totals[BROUGHT]:
            return ""
        copies = "copies" if len(brought) > 1 else "copy"
        return (
            f"; {self._places(expected)} expects {wanted} bytes; the {copies} at"
            f" {self._places(brought)} bring{'' if len(brought) > 1 else 's'} {given}"
        )


class MBarrier:
    """An mbarrier object (PTX ISA, "mbarrier"): arrivals and transaction bytes, phase by phase.

    Attributes:
        count: arrivals that a phase expects.
        pending: arrivals that are still missing.
        tx: bytes that are expected and did not arrive yet; negative if they came first.
        phase: how many phases have completed.
        remote: the last arrival of each agent of another block.
        signals: the last signal of each asynchronous unit: its event, and the phase.
        brought: by the memory and the address of a box, the last phases in which it came.
        awaited: how many phases the threads of its block know to have completed, by a wait.
        name: how errors name it, with its address.
        makers: the agents that initialised it, and the event of each.
        threads: the same, by thread.
        history: what happened at it.
    """

    def __init__(
        self,
        count: int,
        clock: Clock,
        name: str = "",
        makers: dict[int, int] | None = None,
        threads: set[int] | None = None,
    ) -> None:
        if not 1 <= count <= COUNT_LIMIT:
            raise BarrierFault(f"mbarrier.init with count {count}: must be in [1, {COUNT_LIMIT}]")
        self.count = self.pending = count
        self.tx = 0
        self.phase = 0
        self.clock = clock
        self.released = clock.copy()
        self.remote: dict[int, RemoteArrival] = {}
        self.signals: dict[int, tuple[int, int]] = {}
        self.brought: dict[tuple[int, int], deque[int]] = {}
        self.awaited = 0
        self.name, self.makers, self.threads = name, makers or {}, threads or set()
        self.history = History()

    def note(self, what: str, number: int, at: Instruction) -> None:
        """Remember what happens in this phase, for errors."""
        self.history.note(self.phase, what, number, at)

    def is_as_made(self, count: int, thread: int) -> bool:
        """Whether its initialisation by another thread would change nothing."""
        new = not self.phase and not self.tx and self.pending == self.count == count
        return new and thread not in self.threads

    def expect_tx(self, size: int) -> None:
        """The phase completes only after `size` more bytes."""
        self.tx += size
        if abs(self.tx) > TX_LIMIT:
            raise BarrierFault(
                f"{self.name or 'the mbarrier'}: its transaction count becomes {self.tx}: at most"
                f" {TX_LIMIT}"
            )

    def complete_tx(self, size: int, clock: Clock) -> None:
        """`size` bytes arrived."""
        self.clock.absorb(clock)
        self.expect_tx(-size)
        self.advance()

    def check_turn(self, known: NDArray[np.int64], who: str) -> None:
        """Raise SynchronizationFault unless an arrival must belong to the current phase.

        Args:
            known: of all agents, what who arrives knows to have happened.
            who: in words.
        """
        if (self.released.seen > known).any():
            raise SynchronizationFault(
                f"an arrival of {who} at {self.name}, in phase {self.phase}, and nothing tells it"
                f" that phase {self.phase - 1} is complete: it could count for that one (a wait at"
                f" the mbarrier is missing, or its count of {self.count} is too small)"
            )

    def arrive(self, number: int, clock: Clock) -> int:
        """Count arrivals in; the phase that they belong to."""
        if number > self.pending:
            raise BarrierFault(
                f"{number} arrivals at {self.name or 'an mbarrier'} that expects {self.pending}"
                f" more in phase {self.phase} (of {self.count}; {self.tx} bytes outstanding)"
            )
        phase = self.phase
        self.clock.absorb(clock)
        self.pending -= number
        self.advance()
        return phase

    def drop(self, number: int) -> None:
        """Later phases expect fewer arrivals (``arrive_drop``)."""
        if number > self.count:
            raise BarrierFault(f"{number} arrivals are dropped from {self.name}, of {self.count}")
        self.count -= number

    def expect_arrivals(self, number: int) -> None:
        """The current phase expects `number` more (``cp.async.mbarrier.arrive``)."""
        self.pending += number
        if self.pending > COUNT_LIMIT:
            why = f"{self.name} expects {self.pending} arrivals: at most {COUNT_LIMIT}"
            raise BarrierFault(why)

    def advance(self) -> None:
        """Complete the phase, if nothing is missing."""
        if self.pending == 0 and self.tx == 0:
            self.phase += 1
            self.pending = self.count
            self.released = self.clock.copy()

    def __str__(self) -> str:
        return (
            f"phase {self.phase} (parity {self.phase & 1}), {self.pending} of {self.count} arrivals"
            f" missing, {self.tx} bytes outstanding"
        )
