"""The products (wgmma) that each warp has started: their groups, and the registers in flight."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from triton_ext.emulator.decode.operands import Register
from triton_ext.emulator.errors import ConvergenceFault, SynchronizationFault
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.hardware.tensor_memory import WARPGROUP_WARPS

if TYPE_CHECKING:
    from triton_ext.emulator.schedule.cta import Cta

WARPGROUP_THREADS = WARPGROUP_WARPS * WARP_THREADS


@lru_cache(1024)
def shared(registers: frozenset[Register]) -> frozenset[Register]:
    """The same set, and the same object for equal sets."""
    return registers


@dataclass
class Product:
    """One wgmma.mma_async of a warpgroup.

    Attributes:
        accumulators, inputs: the registers of D, and of A; `shared` sets.
        opcode: products of one shape and type may share an accumulator without a wait.
        event: of the warpgroup's tensor cores, when it is done; 0 before.
    """

    accumulators: frozenset[Register]
    inputs: frozenset[Register]
    opcode: str
    event: int = 0

    def is_like(self, other: Product) -> bool:
        """Whether the two use the same registers in the same way (`shared` sets, so it is fast)."""
        return (
            self.accumulators is other.accumulators
            and self.inputs is other.inputs
            and self.opcode == other.opcode
        )

    def check_before(self, later: Product) -> None:
        """Raise SynchronizationFault unless `later` may start while this one is running."""
        same = self.opcode == later.opcode and self.accumulators is later.accumulators
        if (
            (same or self.accumulators.isdisjoint(later.accumulators))
            and self.accumulators.isdisjoint(later.inputs)
            and self.inputs.isdisjoint(later.accumulators)
        ):
            return
        raise SynchronizationFault(
            "uses registers of an earlier wgmma.mma_async that may still be running; only"
            " products of the same shape and types may follow each other in one accumulator"
            " without wgmma.wait_group"
        )


@dataclass
class WarpQueue:
    """The products of a warp that no wait_group has covered."""

    uncommitted: list[Product] = field(default_factory=list)
    groups: deque[list[Product]] = field(default_factory=deque)

    @property
    def latest(self) -> Product | None:
        """The one that was issued last, if no wait has covered it."""
        for group in (self.uncommitted, *reversed(self.groups)):
            if group:
                return group[-1]
        return None

    def outstanding(self) -> list[Product]:
        """In the order in which they were issued."""
        return [product for group in (*self.groups, self.uncommitted) for product in group]


def queue_of(cta: Cta, warp: int) -> WarpQueue:
    """A warp's products."""
    queues: dict[int, WarpQueue] = cta.units.setdefault("wgmma", {})
    return queues.setdefault(warp, WarpQueue())


def warpgroups(lanes: Lanes) -> list[slice]:
    """The threads of each warpgroup.

    Raises:
        ConvergenceFault: a thread of one is missing.
    """
    groups, counts = np.unique(lane_sets.indices(lanes) // WARPGROUP_THREADS, return_counts=True)
    if (counts != WARPGROUP_THREADS).any():
        short = int(groups[counts != WARPGROUP_THREADS][0])
        raise ConvergenceFault(
            f"the four warps of warpgroup {short} (threads {short * WARPGROUP_THREADS} to"
            f" {(short + 1) * WARPGROUP_THREADS - 1}) must execute this instruction together; some"
            " of their threads have exited, or their guard is false"
        )
    return [slice(int(g) * WARPGROUP_THREADS, (int(g) + 1) * WARPGROUP_THREADS) for g in groups]


def start(cta: Cta, lanes: slice, product: Product) -> None:
    """A warpgroup has started a product: its registers are in flight.

    Raises:
        SynchronizationFault: it shares registers with a product in flight, and may not.
    """
    first = lanes.start // WARP_THREADS
    latest = queue_of(cta, first).latest
    if latest is not None and not latest.is_like(product):
        for earlier in queue_of(cta, first).outstanding():
            earlier.check_before(product)
    for warp in range(first, first + WARPGROUP_WARPS):
        queue = queue_of(cta, warp)
        busy = cta.in_flight.setdefault(warp, set())
        latest = queue.latest
        if latest is None or not latest.is_like(product):
            busy |= product.accumulators
            busy |= product.inputs
        queue.uncommitted.append(product)


def commit(cta: Cta, warp: int) -> None:
    """What the warp has started and not committed becomes a group."""
    queue = queue_of(cta, warp)
    queue.groups.append(queue.uncommitted)
    queue.uncommitted = []


def groups_before(cta: Cta, warp: int, keep: int) -> list[list[Product]]:
    """All groups of a warp but the latest `keep`."""
    groups = list(queue_of(cta, warp).groups)
    return groups[: max(0, len(groups) - keep)]


def release(cta: Cta, warp: int, groups: list[list[Product]]) -> None:
    """The warp has waited for its first groups: it has seen what they did, registers included."""
    if not groups:
        return
    queue = queue_of(cta, warp)
    for _ in groups:
        queue.groups.popleft()
    clocks = cta.cluster.clocks
    clock, agent = clocks.empty(), cta.warpgroup_agent(warp)
    event = max((product.event for group in groups for product in group), default=0)
    clock.seen[agent] = clock.fenced[agent] = event
    clocks.acquire(np.array([cta.first_agent + warp]), clock)
    busy: set[Register] = set()
    for registers in {
        each for product in queue.outstanding() for each in (product.accumulators, product.inputs)
    }:
        busy |= registers
    if busy:
        cta.in_flight[warp] = busy
    else:
        cta.in_flight.pop(warp, None)
