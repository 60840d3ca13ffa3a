"""Who has seen what: vector clocks over the agents of a cluster.

An agent is a warp, or an asynchronous unit of a block. Every write is an event of its agent, with
a number that grows over the whole cluster. ``seen[a, b]`` is the last event of agent b that is
ordered before what agent a does next; ``fenced[a, b]`` is the same for the asynchronous proxy,
which sees a write of the generic proxy only across a proxy fence (PTX ISA, "Memory Consistency
Model" and "Proxies").
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.state.missing_orders import MissingOrders

Agents = NDArray[np.intp]
Foreign = dict[int, NDArray[np.int64]]
"""By the numbers of other clusters: what was seen of their agents. Neither it nor they change."""


def merged(one: Foreign, other: Foreign) -> Foreign:
    """What both have seen, together."""
    if not other or one is other:
        return one
    found = dict(one)
    for number, seen in other.items():
        mine = found.get(number)
        if mine is not seen:
            found[number] = seen if mine is None else np.maximum(mine, seen)
    return found


CLUSTER, WIDEST, SYSTEM = 2, 3, 4
"""Scopes: 1 is the block, 2 the cluster, 3 the GPU, 4 all of them."""


@dataclass
class Clock:
    """What an agent had seen at one moment; barriers carry it from agent to agent.

    Attributes:
        seen, fenced: see the module.
        foreign: what it has seen of other clusters, which flags in global memory tell.
        proxied: what the asynchronous proxy has seen of the writes of all clusters to memory that
            several GPUs share.
    """

    seen: NDArray[np.int64]
    fenced: NDArray[np.int64]
    foreign: Foreign = field(default_factory=dict)
    proxied: Foreign = field(default_factory=dict)

    def absorb(self, other: Clock) -> None:
        """From now on this clock includes what the other has seen."""
        np.maximum(self.seen, other.seen, out=self.seen)
        np.maximum(self.fenced, other.fenced, out=self.fenced)
        self.foreign = merged(self.foreign, other.foreign)
        self.proxied = merged(self.proxied, other.proxied)

    def includes(self, other: Clock) -> bool:
        """Whether it has seen all that the other has."""
        both = self.copy()
        both.absorb(other)
        kept = (both.foreign, self.foreign), (both.proxied, self.proxied)
        return (
            np.array_equal(both.seen, self.seen)
            and np.array_equal(both.fenced, self.fenced)
            and all(
                np.array_equal(seen, mine.get(number, ()))
                for all_, mine in kept
                for number, seen in all_.items()
            )
        )

    def copy(self) -> Clock:
        return Clock(self.seen.copy(), self.fenced.copy(), self.foreign, self.proxied)


@dataclass(frozen=True)
class Rows:
    """What each of several agents had seen at one moment.

    Attributes:
        seen, fenced: (agents, all agents of the cluster): see the module.
        foreign, proxied: see `Clock`; of each agent, or empty if none has seen any.
    """

    seen: NDArray[np.int64]
    fenced: NDArray[np.int64]
    foreign: Sequence[Foreign]
    proxied: Sequence[Foreign]


class Peers:
    """What the agents of a cluster have seen of other clusters.

    Args:
        agents: their number.
        number: the cluster's, among those of all GPUs.
        known: what they all have seen at first; None if there is one GPU.

    Attributes:
        foreign: by agent, what it has seen.
        proxied: see `Clock`.
    """

    def __init__(self, agents: int, number: int, known: Foreign | None) -> None:
        self._number, self._several = number, known is not None
        self.foreign: dict[int, Foreign] = dict.fromkeys(range(agents), known) if known else {}
        self.proxied: dict[int, Foreign] = dict(self.foreign)

    def join(self, clock: Clock, agents: Agents) -> None:
        """Let a clock include what some agents have seen."""
        for agent in agents.tolist():
            clock.foreign = merged(clock.foreign, self.foreign.get(agent, {}))
            clock.proxied = merged(clock.proxied, self.proxied.get(agent, {}))

    def of(self, agents: Agents) -> tuple[Sequence[Foreign], Sequence[Foreign]]:
        """`foreign` and `proxied` of each of some agents; empty if nobody has seen any."""
        foreign, proxied = (
            [known.get(agent, {}) for agent in agents.tolist()] if known else ()
            for known in (self.foreign, self.proxied)
        )
        return foreign, proxied

    def acquire(
        self, agents: Agents, foreign: Sequence[Foreign], proxied: Sequence[Foreign]
    ) -> None:
        """From now on each agent has seen what stands beside it."""
        for known, more in ((self.foreign, foreign), (self.proxied, proxied)):
            for agent, each in zip(agents.tolist(), more, strict=False):
                if each:
                    known[agent] = merged(known.get(agent, {}), each)

    def proxy_fence(self, agents: Agents, seen: NDArray[np.int64]) -> None:
        """The asynchronous proxy sees what agents have seen in the memory that GPUs share. `seen`:
        of their own cluster, a row for each agent of it."""
        for agent in agents.tolist() if self._several else ():
            known = {**self.foreign.get(agent, {}), self._number: seen[agent].copy()}
            self.proxied[agent] = merged(self.proxied.get(agent, {}), known)

    def learned(self) -> Foreign:
        """What all agents have seen of other clusters."""
        return functools.reduce(merged, self.foreign.values(), {})


@dataclass(eq=False)
class RemoteArrival:
    """An arrival at an mbarrier of another block: nothing says by itself when it gets there.

    A wait for its phase does; so does what comes after it and is seen: a later arrival of the same
    agent in that block, or a release at the scope of the cluster, or a wider one.

    Attributes:
        agent, event: who arrives, and when.
        phase: the one that it counts for.
        released: the first of these of each agent, as its event.
    """

    agent: int
    event: int
    phase: int
    released: dict[int, int] = field(default_factory=dict)


class Relaxed:
    """Fences with relaxed accesses (PTX ISA, "Release and Acquire Patterns"): one before a relaxed
    arrival releases what was done before the fence; one after a relaxed wait acquires what the wait
    observed.

    Attributes:
        observed: by agent and scope, what its relaxed waits have read since its last fence.
    """

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._published: dict[int, dict[int, Clock]] = {}
        self.observed: dict[int, dict[int, Clock]] = {}

    def fence(self, agents: Agents, scope: int = WIDEST) -> None:
        """A memory fence of `agents`, that orders accesses for all that are within its scope."""
        for agent in agents.tolist():
            observed = self.observed.get(agent, {})
            for needed in [each for each in observed if each <= scope]:
                self._clocks.acquire(np.array([agent]), observed.pop(needed))
            self._published.setdefault(agent, {})[scope] = self._clocks.snapshot(np.array([agent]))

    def scopes(self, agent: int) -> list[int]:
        """The scopes of the fences that an agent has executed."""
        return list(self._published.get(agent, ()))

    def published(self, agents: Agents, scope: int = 0) -> Clock:
        """What a relaxed arrival of `agents` releases: what was done before their last fence.
        `scope`: only fences at least that wide count."""
        clock = self._clocks.empty()
        for agent in agents.tolist():
            for width, each in self._published.get(agent, {}).items():
                if width >= scope:
                    clock.absorb(each)
        return clock

    def observe(self, agents: Agents, clock: Clock, scope: int = 0) -> None:
        """A relaxed wait of `agents` read this clock; their next fence acquires it. `scope`: how
        wide that fence must be."""
        for agent in agents.tolist():
            observed = self.observed.setdefault(agent, {})
            observed.setdefault(scope, self._clocks.empty()).absorb(clock)


def _rows(agents: Agents) -> Any:
    """Agents, as a slice where they follow each other: numpy is faster with it."""
    first, number = int(agents[0]), len(agents)
    return slice(first, first + number) if agents[-1] - first == number - 1 else agents


class Clocks:
    """The clocks of all agents of a cluster.

    Args:
        agents: their number.
        number: the cluster's, among those of all GPUs.
        known: what they all have seen of other clusters; None if there is one GPU.

    Attributes:
        seen, fenced: see the module.
        events: how many there were.
        met: of each warp, the last event before its lanes met (``bar.warp.sync`` and its like).
        joined: the last event before they met and were ordered by it.
        happened: of each agent, what relaxed arrivals at barriers told it to have happened.
        tensor: of each agent, what it had seen at its last ``tcgen05.fence::after_thread_sync``.
        peers: what the agents have seen of other clusters.
        remote: the last arrival of each agent at each mbarrier of another block.
        relaxed: fences, and relaxed accesses before or after them.
        missing: what would have ordered events, and does not: for errors.
    """

    def __init__(self, agents: int, number: int = 0, known: Foreign | None = None) -> None:
        self.agents, self.events = agents, 0
        self.seen = np.zeros((agents, agents), np.int64)
        self.fenced = np.zeros((agents, agents), np.int64)
        self.met: NDArray[np.int64] = np.zeros(agents, np.int64)
        self.joined: NDArray[np.int64] = np.zeros(agents, np.int64)
        self.happened: dict[int, NDArray[np.int64]] = {}
        self.tensor: dict[int, NDArray[np.int64]] = {}
        self.peers = Peers(agents, number, known)
        self.remote: dict[tuple[int, int], RemoteArrival] = {}
        self.relaxed = Relaxed(self)
        self.missing = MissingOrders()

    def tick(self, agents: Agents) -> int:
        """A new event, the same for all of `agents`; its number."""
        self.events += 1
        self.seen[agents, agents] = self.events
        return self.events

    def release_remote(self, agents: Agents) -> None:
        """`agents` release at the scope of the cluster, or a wider one, before they go on: who sees
        it knows that the arrivals which they have seen are over.
        """
        if not self.remote:
            return
        event = self.tick(agents)
        for agent in agents.tolist():
            for arrival in self.remote.values():
                if self.seen[agent, arrival.agent] >= arrival.event:
                    arrival.released.setdefault(agent, event)

    def lanes_meet(self, agents: Agents, ordered: bool) -> None:
        """The lanes of these warps are in step: what one of them has done, the others see.
        `ordered`: by an instruction that orders it, too."""
        self.met[agents] = self.events
        if ordered:
            self.joined[agents] = self.events

    def unit_event(self, agent: int) -> int:
        """A new event of an asynchronous unit, whose proxy needs no fence to see it; its number."""
        self.events += 1
        self.seen[agent, agent] = self.fenced[agent, agent] = self.events
        return self.events

    def of_event(self, agents: Agents | int, event: int, *, fenced: bool = True) -> Clock:
        """The clock of a thread that has waited for one event of `agents`, and for nothing else.
        `fenced`: the asynchronous proxy has seen the event, too."""
        clock = self.empty()
        clock.seen[agents] = event
        if fenced:
            clock.fenced[agents] = event
        return clock

    def empty(self) -> Clock:
        """The clock of a barrier at which nobody has arrived."""
        agents = len(self.seen)
        return Clock(np.zeros(agents, np.int64), np.zeros(agents, np.int64))

    def snapshot(self, agents: Agents) -> Clock:
        """What `agents` have seen, together."""
        rows = _rows(agents)
        if len(agents) == 1:
            clock = Clock(self.seen[rows.start].copy(), self.fenced[rows.start].copy())
        else:
            seen, fenced = self.seen[rows], self.fenced[rows]
            clock = Clock(np.maximum.reduce(seen), np.maximum.reduce(fenced))
        if self.peers.foreign or self.peers.proxied:
            self.peers.join(clock, agents)
        return clock

    def rows(self, agents: Agents) -> Rows:
        """What each of `agents` has seen."""
        return Rows(self.seen[agents], self.fenced[agents], *self.peers.of(agents))

    def acquire_rows(self, agents: Agents, rows: Rows) -> None:
        """From now on each of `agents` has seen what is in its row."""
        self.seen[agents] = np.maximum(self.seen[agents], rows.seen)
        self.fenced[agents] = np.maximum(self.fenced[agents], rows.fenced)
        self.peers.acquire(agents, rows.foreign, rows.proxied)

    def knows(self, agent: int) -> NDArray[np.int64]:
        """What an agent has seen, or observed by relaxed waits: it knows that this has happened."""
        known: NDArray[np.int64] = self.seen[agent]
        for clock in self.relaxed.observed.get(agent, {}).values():
            known = np.maximum(known, clock.seen)
        return known

    def acquire(self, agents: Agents, clock: Clock) -> None:
        """From now on `agents` have seen what the clock has."""
        rows = _rows(agents)
        self.seen[rows] = np.maximum(self.seen[rows], clock.seen)
        self.fenced[rows] = np.maximum(self.fenced[rows], clock.fenced)
        if clock.foreign or clock.proxied:
            number = len(agents)
            self.peers.acquire(agents, [clock.foreign] * number, [clock.proxied] * number)

    def proxy_fence(self, agents: Agents) -> None:
        """The asynchronous proxy sees what `agents` have seen, once it acquires their clock."""
        self.fenced[agents] = np.maximum(self.fenced[agents], self.seen[agents])
