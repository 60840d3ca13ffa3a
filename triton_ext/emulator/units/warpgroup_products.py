"""The products (wgmma) that each warp has started: their groups, and the registers in flight."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from triton_ext.emulator.errors import ConvergenceFault
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.in_flight import Product
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.storage import Register
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.hardware.tensor_memory import WARPGROUP_WARPS

WARPGROUP_THREADS = WARPGROUP_WARPS * WARP_THREADS


@lru_cache(1024)
def shared(registers: frozenset[Register]) -> frozenset[Register]:
    """The same set, and the same object for equal sets."""
    return registers


def warpgroups(lanes: Lanes) -> list[slice]:
    """The threads of each warpgroup. Raises ConvergenceFault: a thread of one is missing."""
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
    """Note that a warpgroup has started a product: its registers are in flight. Raises
    SynchronizationFault: it shares registers with a product in flight, and may not."""
    first = lanes.start // WARP_THREADS
    latest = cta.under_way.products[first].latest
    if latest is not None and not latest.is_like(product):
        for earlier in cta.under_way.products[first].outstanding():
            earlier.check_before(product)
    for warp in range(first, first + WARPGROUP_WARPS):
        queue = cta.under_way.products[warp]
        busy = cta.under_way.registers.setdefault(warp, set())
        latest = queue.latest
        if latest is None or not latest.is_like(product):
            busy |= product.accumulators
            busy |= product.inputs
        queue.uncommitted.append(product)


def commit(cta: Cta, warp: int) -> None:
    """The products that the warp has started and not committed become a group."""
    queue = cta.under_way.products[warp]
    queue.groups.append(queue.uncommitted)
    queue.uncommitted = []


def groups_before(cta: Cta, warp: int, keep: int) -> list[list[Product]]:
    """All groups of a warp but the latest `keep`."""
    groups = list(cta.under_way.products[warp].groups)
    return groups[: max(0, len(groups) - keep)]


def release(cta: Cta, warp: int, groups: list[list[Product]]) -> None:
    """The warp has waited for its first groups: it has seen their results, in registers too."""
    if not groups:
        return
    queue = cta.under_way.products[warp]
    for _ in groups:
        queue.groups.popleft()
    clocks = cta.cluster.clocks
    clock, agent = clocks.empty(), cta.agents.warpgroup(warp)
    event = max((product.event for group in groups for product in group), default=0)
    clock.seen[agent] = clock.fenced[agent] = event
    clocks.acquire(np.array([cta.agents.first + warp]), clock)
    busy: set[Register] = set()
    for registers in {
        each for product in queue.outstanding() for each in (product.accumulators, product.inputs)
    }:
        busy |= registers
    if busy:
        cta.under_way.registers[warp] = busy
    else:
        cta.under_way.registers.pop(warp, None)
