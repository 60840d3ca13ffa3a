"""Release and acquire by flags in memory (PTX ISA, "Release and Acquire Patterns").

Each shared memory of a cluster has one clock of what was released through it: a thread that
acquires from any flag there has seen all of it. That is more than the memory model promises (a
reader may look at the wrong flag unnoticed), and never less. In global memory each address has its
own, and scopes count: who releases must include who acquires, and the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.clocks import CLUSTER, SYSTEM, WIDEST, Agents, Clock, Foreign, merged
from triton_ext.emulator.state.memory import Addresses
from triton_ext.emulator.units.history import Miss

STRONG = ("relaxed", "acquire", "release", "acq_rel", "volatile", "mmio")
"""Accesses that may race with each other. The last two order as relaxed ones do."""
SCOPES = {"": WIDEST, "cta": 1, "cluster": 2, "gpu": 3, "gl": 3, "sys": SYSTEM}
"""How far a strong access or a fence reaches: the block, the cluster, the GPU, or all of them."""
_MANY = 8
"""Releases through one address that are told apart; beyond, those of the widest scope are not."""


def read(cta: Cta, rank: int, agents: Agents, order: str) -> None:
    """A strong read by `agents`: acquires now, or at their next fence.

    Args:
        rank: of the block whose shared memory it is.
        order: one of STRONG.
    """
    released = cta.cluster.released.get(rank)
    if released is None:
        return
    if order in ("acquire", "acq_rel"):
        cta.cluster.clocks.acquire(agents, released)
    else:
        cta.cluster.clocks.relaxed.observe(agents, released)


def write(cta: Cta, rank: int, agents: Agents, order: str) -> None:
    """A strong write by `agents`: releases what they did, or did before their last fence."""
    clocks = cta.cluster.clocks
    releases = order in ("release", "acq_rel")
    if releases:
        clocks.release_remote(agents)
    clock = clocks.snapshot(agents) if releases else clocks.relaxed.published(agents)
    kept = cta.cluster.released
    if rank in kept:
        kept[rank].absorb(clock)
    elif clock.seen.any():
        kept[rank] = clock


# ---------------------------------------------------------------------- global memory


@dataclass(frozen=True, eq=False)
class Released:
    """What was released through an address in global memory.

    Attributes:
        scope: whom the release includes.
        device: the GPU that did it.
        cluster, rank: the block; -1 if there were several.
        line: of its PTX.
        seen: by cluster.
        fenced: by cluster, too.
        proxied: see `Clock`.
    """

    scope: int
    device: int
    cluster: int
    rank: int
    line: int
    seen: Foreign
    fenced: Foreign
    proxied: Foreign

    def needs(self, cta: Cta) -> int:
        """How wide the scopes must be for a block to acquire it."""
        if self.device != cta.launch.device:
            return SYSTEM
        if self.cluster != cta.cluster.identity:
            return WIDEST
        return 1 if self.rank == cta.rank else 2

    def joined(self, other: Released) -> Released:
        """Both, of one GPU; of no block, if they are of two."""
        same = (self.cluster, self.rank) == (other.cluster, other.rank)
        return Released(
            self.scope,
            self.device,
            self.cluster if same else -1,
            self.rank if same else -1,
            other.line,
            merged(self.seen, other.seen),
            merged(self.fenced, other.fenced),
            merged(self.proxied, other.proxied),
        )

    def clock(self, cta: Cta) -> Clock:
        """As an agent of the block sees it."""
        number, clock = cta.cluster.identity, cta.cluster.clocks.empty()
        np.maximum(clock.seen, self.seen.get(number, 0), out=clock.seen)
        np.maximum(clock.fenced, self.fenced.get(number, 0), out=clock.fenced)
        clock.foreign = {other: seen for other, seen in self.seen.items() if other != number}
        clock.proxied = self.proxied
        return clock


def _by_agent(agents: Agents, addresses: Addresses) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for agent, address in zip(agents.tolist(), addresses.tolist(), strict=True):
        found.setdefault(agent, []).append(address)
    return found


def read_global(cta: Cta, agents: Agents, addresses: Addresses, order: str, scope: int) -> None:
    """A strong read of each address by the agent beside it; the rest is as of `read`."""
    released, clocks = cta.launch.memory.released, cta.cluster.clocks
    if not released:
        return
    for agent, those in _by_agent(agents, addresses).items():
        found = {each for address in those for each in released.get(address, ())}
        for each in found:
            needed = each.needs(cta)
            acquires = order in ("acquire", "acq_rel")
            enough = needed <= min(scope, each.scope)
            if cta.launch.history is not None:
                _note(cta, each, addresses, scope if acquires else 0, enough and acquires)
            if enough and acquires:
                clocks.acquire(np.array([agent]), each.clock(cta))
            elif enough:
                clocks.relaxed.observe(np.array([agent]), each.clock(cta), needed)


def _note(cta: Cta, each: Released, addresses: Addresses, scope: int, acquired: bool) -> None:
    """Remember for errors that a flag of another block was read, and ordered nothing."""
    misses, key = cta.launch.history.misses, (cta.cluster.identity, each.cluster)
    if acquired or each.cluster in (-1, cta.cluster.identity):
        misses.pop(key, None)
        return
    line = cta.instruction.line if cta.instruction is not None else 0
    at = int(addresses[0])
    misses[key] = Miss(each.needs(cta), at, each.scope, each.line, scope, line)


def write_global(cta: Cta, agents: Agents, addresses: Addresses, order: str, scope: int) -> None:
    """A strong write of each address by the agent beside it; the rest is as of `write`."""
    released, number = cta.launch.memory.released, cta.cluster.identity
    line = cta.instruction.line if cta.instruction is not None else 0
    for agent, those in _by_agent(agents, addresses).items():
        for width, clock in _releases(cta, np.array([agent]), order, scope):
            seen = merged(clock.foreign, {number: clock.seen})
            new = Released(
                width, cta.launch.device, number, cta.rank, line, seen, {number: clock.fenced},
                clock.proxied,
            )  # fmt: skip
            for address in those:
                before = released.get(address, ())
                if order == "acq_rel":  # what it has acquired there, it has released with this
                    before = tuple(e for e in before if e.needs(cta) > min(scope, e.scope))
                released[address] = kept(before, new)


def _releases(cta: Cta, agent: Agents, order: str, scope: int) -> list[tuple[int, Clock]]:
    """What a strong write releases, and how far: as far as the access and the fence before it."""
    clocks = cta.cluster.clocks
    if order in ("release", "acq_rel"):
        if scope >= CLUSTER:
            clocks.release_remote(agent)
        return [(scope, clocks.snapshot(agent))]
    return [
        (min(scope, width), clocks.relaxed.published(agent, width))
        for width in clocks.relaxed.scopes(int(agent[0]))
    ]


def kept(before: tuple[Released, ...], new: Released) -> tuple[Released, ...]:
    """What was released through an address, with another release."""
    for at, each in enumerate(before):
        same = (each.scope, each.device) == (new.scope, new.device)
        own = (each.cluster, each.rank) == (new.cluster, new.rank)
        if same and (own or (len(before) >= _MANY and new.scope >= WIDEST)):
            return (*before[:at], each.joined(new), *before[at + 1 :])
    return (*before, new)
