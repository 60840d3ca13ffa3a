"""Who accesses global memory at an instruction: threads, their copies, or an asynchronous unit."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.clocks import SYSTEM, WIDEST, Agents, Clock, Clocks, Foreign
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.lockstep import Lockstep
from triton_ext.emulator.state.memory import Allocation, Offsets
from triton_ext.emulator.units.history import Order
from triton_ext.emulator.units.shadows import (
    AGENT_BITS,
    AGENT_SHIFT,
    CLUSTER_SHIFT,
    EVENT_BITS,
    SCOPE_BITS,
    Codes,
)
from triton_ext.ptx.parse import Instruction


@dataclass(frozen=True)
class By:
    """Who accesses global memory, at one instruction.

    Attributes:
        order: that of the launch.
        cluster: its number, among those of all GPUs.
        clocks: those of the cluster.
        rank: of the block in it.
        agents: that of each lane; or of an asynchronous unit, alone.
        event: the number of the access.
        scope: of an atomic access; 0 for an ordinary one.
        line: of the PTX instruction.
        clock: what a unit has seen. (A thread's is the cluster's.)
        noted: whether a read is to be remembered.
        proxy: whether the access is one of the asynchronous proxy.
    """

    order: Order
    cluster: int
    clocks: Clocks
    rank: int
    agents: Agents
    event: int
    scope: int
    line: int
    clock: Clock | None = None
    noted: bool = True
    proxy: bool = False

    def lanes(self, chosen: Any) -> By:
        """Some of the lanes."""
        if len(self.agents) == 1 or isinstance(chosen, slice):  # a slice is all of them
            return self
        return replace(self, agents=self.agents[chosen])

    def read(self, of: Allocation, first: int, offsets: Offsets, size: int) -> None:
        """See `GlobalOrder.read`."""
        self.order.read(of, first, offsets, size, self)

    def write(
        self, of: Allocation, first: int, offsets: Offsets, values: NDArray[np.uint8]
    ) -> None:
        """See `GlobalOrder.write`."""
        self.order.write(of, first, offsets, values, self)

    def codes(self) -> Codes:
        """(lanes,)"""
        whose = (self.cluster << AGENT_BITS) + self.agents.astype(np.int64)
        return (whose << AGENT_SHIFT) + (self.event << SCOPE_BITS) + self.scope

    def unordered(self, codes: Codes, agents: Agents, agents_each: int) -> NDArray[np.bool_]:
        """Which accesses, (lanes, bytes), nothing orders before this one of each lane's agent.
        `agents_each`: agents of a block."""
        cluster, agent = codes >> CLUSTER_SHIFT, codes >> AGENT_SHIFT & (1 << AGENT_BITS) - 1
        event = codes >> SCOPE_BITS & (1 << EVENT_BITS) - 1
        clocks, history = self.clocks, self.order.history
        here = cluster == self.cluster
        if history is not None:  # another launch may have more agents
            agent_there, agent = agent, np.where(here, agent, 0)
        seen = clocks.seen[agents[:, None], agent] if self.clock is None else self.clock.seen[agent]
        late: NDArray[np.bool_] = (codes != 0) & ~(here & (event <= seen))
        if self.scope and late.any():
            scope = codes & (1 << SCOPE_BITS) - 1
            near = np.where(agent // agents_each == self.rank, 1, 2)
            needed = np.where(here, near, WIDEST)
            if history is not None:
                here_device = history.own_device(cluster, self.order.device)
                needed = np.where(here_device, needed, SYSTEM)
            late &= (scope == 0) | (np.minimum(scope, self.scope) < needed)
        rest = late & ~here
        if not rest.any() or not (
            clocks.peers.foreign if self.clock is None else self.clock.foreign
        ):
            return late
        if history is not None:
            agent = agent_there
        for who in np.unique(agents).tolist():
            foreign = (
                clocks.peers.foreign.get(who, {}) if self.clock is None else self.clock.foreign
            )
            mine = rest & (agents == who)[:, None]
            for number in np.unique(cluster[mine]).tolist():
                those = mine & (cluster == number)
                late[those] = self._unseen(foreign, number, agent[those], event[those])
        return late

    def _unseen(
        self, seen: Foreign, number: int, agents: Agents, events: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Which events of agents of a cluster are not among those that were seen."""
        history, known = self.order.history, seen.get(number)
        if history is not None and ~history.first(number) in seen:  # the whole launch was
            return np.zeros(len(events), np.bool_)
        return np.ones(len(events), np.bool_) if known is None else events > known[agents]

    def unfenced(self, codes: Codes) -> NDArray[np.bool_]:
        """Which writes, (lanes, bytes), are of threads, and no proxy fence lies between them and
        this access of the asynchronous proxy.
        """
        history, clock = self.order.history, self.clock
        late: NDArray[np.bool_] = np.zeros(codes.shape, np.bool_)
        if history is None or clock is None or not self.proxy:
            return late
        cluster, agent = codes >> CLUSTER_SHIFT, codes >> AGENT_SHIFT & (1 << AGENT_BITS) - 1
        event = codes >> SCOPE_BITS & (1 << EVENT_BITS) - 1
        for number in np.unique(cluster[codes != 0]).tolist():
            party = history.party(number)
            those = (codes != 0) & (cluster == number) & (agent % party.agents_each < party.warps)
            late[those] = self._unseen(clock.proxied, number, agent[those], event[those])
        return late


@dataclass(frozen=True)
class LockstepBy(By):
    """Threads of blocks in lock-step, or their copies.

    Attributes:
        blocks: the blocks, which have numbers of their own, and so have their agents there.
    """

    blocks: Lockstep = field(kw_only=True)

    def codes(self) -> Codes:
        blocks = self.blocks
        whose = (blocks.numbers[blocks.block_of(self.agents)] << AGENT_BITS) + blocks.own(
            self.agents
        )
        return (whose << AGENT_SHIFT) + (self.event << SCOPE_BITS)

    def unordered(self, codes: Codes, agents: Agents, agents_each: int) -> NDArray[np.bool_]:
        blocks = self.blocks
        cluster, agent = codes >> CLUSTER_SHIFT, codes >> AGENT_SHIFT & (1 << AGENT_BITS) - 1
        event = codes >> SCOPE_BITS & (1 << EVENT_BITS) - 1
        here = cluster == blocks.numbers[blocks.block_of(agents)][:, None]
        there = blocks.agent(np.where(here, agent, 0), agents)
        seen = self.clocks.seen[agents[:, None], there]
        late: NDArray[np.bool_] = (codes != 0) & ~(here & (event <= seen))
        return late


def _by(cta: Cta, agents: Agents, event: int, scope: int, line: int) -> By | None:
    """The agent of each lane, that accesses global memory as an event."""
    order, cluster = cta.machine.global_order, cta.cluster
    if order is None:
        return None
    common = order, cluster.identity, cluster.clocks, cta.rank, agents, event, scope, line
    if isinstance(cluster, Lockstep):
        return LockstepBy(*common, blocks=cluster)
    return By(*common)


def threads(cta: Cta, lanes: Lanes, scope: int = 0) -> By | None:
    """Threads that access global memory now; None if its order is not checked. `scope`: of an
    atomic access."""
    if cta.machine.global_order is None:
        return None
    event = cta.cluster.clocks.tick(cta.agents(lanes))
    line = cta.instruction.line if cta.instruction is not None else 0
    return _by(cta, cta.agents.of_lanes(lanes), event, scope, line)


def copies(cta: Cta, agents: Agents, event: int, line: int) -> By | None:
    """The copies of each lane's warp (``cp.async``) that access global memory as an event."""
    return _by(cta, agents, event, 0, line)


def unit(
    cta: Cta, agent: int, clock: Clock, instruction: Instruction | None, *, scope: int = 0,
    noted: bool = True,
) -> By | None:  # fmt: skip
    """An asynchronous unit that accesses global memory now.

    Args:
        clock: what the thread that issued the operation had seen.
        scope: of a reduction.
        noted: whether a read is to be remembered.
    """
    order = cta.machine.global_order
    if order is None:
        return None
    cluster, line = cta.cluster, instruction.line if instruction is not None else 0
    event = cluster.clocks.unit_event(agent)
    return By(
        order, cluster.identity, cluster.clocks, cta.rank, np.array([agent]), event, scope, line,
        clock, noted, proxy=True,
    )  # fmt: skip
