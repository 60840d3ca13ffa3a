"""Who has seen what: vector clocks over the agents of a cluster.

An agent is a warp, or an asynchronous unit of a block. Every write is an event of its agent, with
a number that grows over the whole cluster. ``seen[a, b]`` is the last event of agent b that is
ordered before what agent a does next; ``fenced[a, b]`` is the same for the asynchronous proxy,
which sees a write of the generic proxy only across a proxy fence (PTX ISA, "Memory Consistency
Model" and "Proxies").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Agents = NDArray[np.intp]


@dataclass
class Clock:
    """What an agent had seen at one moment; barriers carry it from agent to agent."""

    seen: NDArray[np.int64]
    fenced: NDArray[np.int64]

    def absorb(self, other: Clock) -> None:
        """Whoever acquires this clock has seen what the other had, too."""
        np.maximum(self.seen, other.seen, out=self.seen)
        np.maximum(self.fenced, other.fenced, out=self.fenced)

    def copy(self) -> Clock:
        return Clock(self.seen.copy(), self.fenced.copy())


class Clocks:
    """The clocks of all agents of a cluster."""

    def __init__(self, agents: int) -> None:
        self.seen = np.zeros((agents, agents), np.int64)
        self.fenced = np.zeros((agents, agents), np.int64)
        self.events = 0

    def tick(self, agents: Agents) -> int:
        """A new event, of all of `agents`."""
        self.events += 1
        self.seen[agents, agents] = self.events
        return self.events

    def unit_event(self, agent: int) -> int:
        """A new event of an asynchronous unit: its own proxy needs no fence to see it."""
        self.events += 1
        self.seen[agent, agent] = self.fenced[agent, agent] = self.events
        return self.events

    def empty(self) -> Clock:
        """The clock of a barrier at which nobody has arrived."""
        agents = len(self.seen)
        return Clock(np.zeros(agents, np.int64), np.zeros(agents, np.int64))

    def snapshot(self, agents: Agents) -> Clock:
        """What `agents` have seen, together."""
        return Clock(self.seen[agents].max(axis=0), self.fenced[agents].max(axis=0))

    def acquire(self, agents: Agents, clock: Clock) -> None:
        """From now on `agents` have seen what the clock has."""
        self.seen[agents] = np.maximum(self.seen[agents], clock.seen)
        self.fenced[agents] = np.maximum(self.fenced[agents], clock.fenced)

    def proxy_fence(self, agents: Agents) -> None:
        """What `agents` have seen is visible to the asynchronous proxy, for who acquires it."""
        self.fenced[agents] = np.maximum(self.fenced[agents], self.seen[agents])
