"""Release and acquire by flags in memory (PTX ISA, "Release and Acquire Patterns").

Each shared memory of a cluster, and global memory as a whole, has one clock of what was released
through it: a thread that acquires from any flag there has seen all of it. That is more than the
memory model promises (a reader may look at the wrong flag unnoticed), and never less.
"""

from __future__ import annotations

from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.clocks import Agents

GLOBAL = "global"

STRONG = ("relaxed", "acquire", "release", "acq_rel", "volatile", "mmio")
"""Accesses that may race with each other. The last two order as relaxed ones do."""


def read(cta: Cta, memory: int | str, agents: Agents, order: str) -> None:
    """A strong read by `agents`: acquires now, or at their next fence.

    Args:
        memory: GLOBAL, or the rank of the block whose shared memory it is.
        order: one of STRONG.
    """
    released = cta.cluster.released.get(memory)
    if released is None:
        return
    if order in ("acquire", "acq_rel"):
        cta.cluster.clocks.acquire(agents, released)
    else:
        cta.cluster.clocks.observe(agents, released)


def write(cta: Cta, memory: int | str, agents: Agents, order: str) -> None:
    """A strong write by `agents`: releases what they did, or did before their last fence."""
    clocks = cta.cluster.clocks
    releases = order in ("release", "acq_rel")
    clock = clocks.snapshot(agents) if releases else clocks.published(agents)
    kept = cta.cluster.released
    if memory in kept:
        kept[memory].absorb(clock)
    elif clock.seen.any():
        kept[memory] = clock
