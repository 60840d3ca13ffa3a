"""The mbarriers of a cluster, by their addresses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.errors import BarrierFault, MemoryFault, SynchronizationFault
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.barriers import BROUGHT, MBarrier
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.clocks import Clock, RemoteArrival
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.leniencies import ADDRESS, INIT_AGAIN
from triton_ext.emulator.state.memory import (
    RANK_SHIFT,
    SHARED_BASE,
    SHARED_WINDOW,
    WINDOW_SHIFT,
    Addresses,
)
from triton_ext.hardware.alignments import MBARRIER
from triton_ext.ptx.parse import Instruction

OFFSET_MASK = (1 << RANK_SHIFT) - 1
MBARRIER_BYTES = MBARRIER.multiple
_WORD = (1 << 32) - 1


def shared_addresses(cta: Cta, space: str, addresses: Addresses) -> Addresses:
    """Addresses of an operand as shared addresses, whose upper bits are a block's rank.

    Args:
        space: "shared", "shared::cta", "shared::cluster", or "" for generic addresses.

    Raises:
        MemoryFault: one of them is in another space, or of a block that the operand may not name.
    """
    if not space:
        if (addresses >> WINDOW_SHIFT != SHARED_WINDOW >> WINDOW_SHIFT).any():
            first = int(addresses[addresses >> WINDOW_SHIFT != SHARED_WINDOW >> WINDOW_SHIFT][0])
            due = ""
            if SHARED_BASE <= first <= _WORD:
                due = ": a shared address, where a generic one is due (cvta.shared, or .shared)"
            raise MemoryFault(f"generic address {first:#x} is not in shared memory{due}")
        addresses = addresses - SHARED_WINDOW
    elif (addresses >> WINDOW_SHIFT).any():
        generic = addresses[addresses >> WINDOW_SHIFT != 0]
        raise MemoryFault(
            f"generic address {int(generic[0]):#x}, where .{space} needs a shared one"
            " (cvta.to.shared)"
        )
    ranks = addresses >> RANK_SHIFT
    if space in ("shared", "shared::cta"):
        if (ranks != cta.rank).any():
            raise MemoryFault(
                f"shared address {int(addresses[0]):#x} is not of this block (rank {cta.rank}):"
                " .shared::cluster names other blocks'"
            )
    elif ((ranks < 0) | (ranks >= len(cta.cluster.ctas))).any():
        raise MemoryFault(
            f"shared address {int(addresses[0]):#x} is of block {int(ranks.max())} of a cluster of"
            f" {len(cta.cluster.ctas)}"
        )
    return addresses


def low_words(cta: Cta, lanes: Lanes, space: str, addresses: Addresses) -> Addresses:
    """Addresses of an instruction that reads their lower 32 bits alone, in the form of `space`:
    where they have the other one, and the launch is not strict.
    """
    if space:
        other = addresses >> WINDOW_SHIFT == SHARED_WINDOW >> WINDOW_SHIFT
    else:
        other = (addresses >= SHARED_BASE) & (addresses <= _WORD)
    if not other.any() or not cta.takes(ADDRESS, lanes):
        return addresses
    return np.where(other, addresses ^ SHARED_WINDOW, addresses)


def owner(cta: Cta, address: int) -> Cta:
    """The block whose shared memory has the address; it must not have ended."""
    found = cta.cluster.ctas[address >> RANK_SHIFT]
    if found.finished:
        raise SynchronizationFault(
            f"shared address {address:#x} is of block {found.index}, which has ended: its cluster"
            " must not let it end before the last access (barrier.cluster)"
        )
    return found


def name_of(cta: Cta, offset: int) -> str:
    """An address in shared memory, in words: ``0x420 (smem + 32)``."""
    text = f"{(cta.rank << RANK_SHIFT) + offset:#x}"
    place = cta.launch.storage.shared_place(offset - SHARED_BASE)
    return f"{text} ({place})" if place else text


def find(cta: Cta, address: int, agent: int | None = None, clock: Clock | None = None) -> MBarrier:
    """The mbarrier at a shared address.

    Args:
        agent: that of the thread that uses it, which must have seen its initialisation.
        clock: what the thread had seen that issued the asynchronous work which uses it.

    Raises:
        BarrierFault: there is none.
        SynchronizationFault: nothing orders its initialisation before.
    """
    target = owner(cta, address)
    barrier = target.mbarriers.get(address & OFFSET_MASK)
    if barrier is None:
        aligned = f", which is no multiple of {MBARRIER.multiple}"
        aligned = aligned if MBARRIER.broken(address) else ""
        raise BarrierFault(
            f"no mbarrier is initialised at shared address"
            f" {name_of(target, address & OFFSET_MASK)}{aligned}"
        )
    seen = clock.seen if clock else None if agent is None else cta.cluster.clocks.seen[agent]
    if seen is None:
        return barrier
    for maker, event in barrier.makers.items():
        if seen[maker] < event:
            where = " of the cluster (fence.mbarrier_init and barrier.cluster)"
            raise SynchronizationFault(
                f"{barrier.name} was initialised by {cta.cluster.agent_name(maker)}, and nothing"
                f" orders that before its use: a barrier{where if target is not cta else ''} is"
                " missing"
            )
    return barrier


def initialise(cta: Cta, address: int, count: int, agent: int, thread: int) -> None:
    """Make an mbarrier (``mbarrier.init``).

    Args:
        thread: of the block, and of `agent`, which may be a warp.

    Raises:
        BarrierFault: there is an mbarrier already, or the count is out of range.
        MemoryFault: the address is misaligned, or outside of the block's memory.
    """
    offset = address & OFFSET_MASK
    event = cta.cluster.clocks.tick(np.array([agent]))
    barriers = cta.mbarriers
    made = barriers.get(offset)
    if (
        made is not None
        and made.is_as_made(count, thread)
        and cta.takes(INIT_AGAIN, slice(thread, thread + 1))
    ):
        made.makers[agent] = event
        made.threads.add(thread)
        return
    for other in (offset - 4, offset, offset + 4):
        if other in barriers:
            raise BarrierFault(
                f"mbarrier.init at {name_of(cta, offset)}, where one is live: mbarrier.inval must"
                " come first"
            )
    name = f"the mbarrier at {name_of(cta, offset)}"
    barrier = MBarrier(count, cta.cluster.clocks.empty(), name, {agent: event}, {thread})
    cta.shared.hold(offset, agent, event)
    barriers[offset] = barrier


def invalidate(cta: Cta, address: int, agent: int) -> None:
    """Unmake an mbarrier (``mbarrier.inval``).

    Raises:
        BarrierFault: there is none, or a copy or commit may still signal it.
        SynchronizationFault: nothing orders its initialisation before.
    """
    barrier = find(cta, address, agent)
    offset = address & OFFSET_MASK
    for unit, (event, phase) in barrier.signals.items():
        if phase >= barrier.awaited and cta.cluster.clocks.seen[agent, unit] < event:
            raise BarrierFault(
                f"mbarrier.inval of {barrier.name}, and {cta.cluster.agent_name(unit)} may still"
                f" signal it, in phase {phase}: nothing has waited for that phase, and the thread"
                " knows by no other barrier that the work is done"
            )
    del cta.mbarriers[offset]
    cta.shared.give_up(offset)


def arrives_from_afar(cta: Cta, address: int, agent: int, event: int) -> RemoteArrival:
    """Remember the arrival of an agent at an mbarrier of another block, in its current phase.

    It tells of the agent's earlier ones in that block: they get there in this order, on which
    CUTLASS relies at the end of its kernels (`PipelineUmmaAsync.producer_tail`).
    """
    barrier, arrivals = find(cta, address), cta.cluster.clocks.remote
    for (other, who), earlier in arrivals.items():
        if who == agent and other >> RANK_SHIFT == address >> RANK_SHIFT:
            earlier.released.setdefault(agent, event)
    arrival = RemoteArrival(agent, event, barrier.phase)
    barrier.remote[agent] = arrivals[address, agent] = arrival
    return arrival


def check_complete(cta: Cta) -> None:
    """Raise BarrierFault if a barrier of a block that has ended got some bytes of a phase, but not
    those that it expects.

    To expect bytes and issue no copy is no error: producers do so when they wait, at their end, for
    a stage to be empty (FlashAttention-4).
    """
    for barrier in cta.mbarriers.values():
        if barrier.tx and barrier.tx != barrier.history.expected(barrier.phase):
            late = "bytes are expected that never arrived"
            extra = "bytes arrived that nothing expected (mbarrier.expect_tx)"
            raise BarrierFault(
                f"at the end of the block, {barrier.name} has {abs(barrier.tx)} bytes outstanding:"
                f" {late if barrier.tx > 0 else extra}; {barrier}"
                f"{barrier.history.mismatch()}"
            )


def check_others(cta: Cta) -> None:
    """Raise SynchronizationFault if a block could have ended while others still use its memory."""
    cluster, own = cta.cluster, range(cta.agents.first, cta.agents.first + cta.agents.each)
    if len(cluster.ctas) == 1:
        return
    seen = cluster.clocks.seen[own.start : own.start + cta.warps].max(axis=0)
    for barrier in cta.mbarriers.values():
        for arrival in barrier.remote.values():
            known = (seen[agent] >= event for agent, event in arrival.released.items())
            if arrival.phase >= barrier.awaited and not any(known):
                raise SynchronizationFault(
                    f"block {cta.index} may end before an arrival of"
                    f" {cluster.agent_name(arrival.agent)} gets to {barrier.name}, in phase"
                    f" {arrival.phase}: neither a wait for that phase tells it, nor one for a later"
                    " arrival there, nor for what was released after it at the scope of the cluster"
                    " (barrier.cluster.arrive, but not .relaxed)"
                    f"{cluster.clocks.missing.culprit(arrival.agent, arrival.event)}"
                )
    for agent, event in cta.shared.last_accesses(own).items():
        if int(seen[agent]) < event:
            raise SynchronizationFault(
                f"block {cta.index} may end before {cluster.agent_name(agent)} has accessed its"
                f" shared memory for the last time{cluster.clocks.missing.line(event)}, and"
                " nothing orders the two: a wait for the other blocks (barrier.cluster) is missing"
                " at its end"
                f"{cluster.clocks.missing.culprit(agent, event)}"
            )


def causes(cta: Cta, lanes: Lanes, *, unwritten: bool) -> str:
    """What may be behind an access that is too early, in words; "" if that is not known.
    `unwritten`: lanes read what nothing has written yet."""
    if unwritten:
        for agent in cta.agents(lanes).tolist():
            if passed := cta.cluster.clocks.missing.passed(agent):
                return f"; the last wait of {cta.cluster.agent_name(agent)}, {passed}"
    return mismatches(cta)


def mismatches(cta: Cta) -> str:
    """Says which barrier of a cluster is brought more bytes than it expects; "" if none is."""
    found = (
        barrier.history.mismatch(more=True)
        for block in cta.cluster.ctas
        for barrier in block.mbarriers.values()
    )
    return next((each for each in found if each), "")


def brings(cta: Cta, address: int, size: int, at: Instruction | None) -> None:
    """A copy that will signal the barrier at a shared address, if there is one, is issued."""
    barrier = cta.cluster.ctas[address >> RANK_SHIFT].mbarriers.get(address & OFFSET_MASK)
    if barrier is not None and at is not None:
        barrier.note(BROUGHT, size, at)


def signal(cta: Cta, address: int, size: int, clock: Clock, unit: int) -> None:
    """An asynchronous unit has copied `size` bytes (``complete_tx``).

    Args:
        cta: the block of the unit.
        unit: its agent.
        clock: what a thread that waits for the copy has seen afterwards.
    """
    barrier = find(cta, address)
    cta.machine.observer.brings(cta, address >> RANK_SHIFT, barrier, barrier.phase)
    cta.machine.observer.counts(barrier, "complete", None, size)
    barrier.signals[unit] = int(clock.seen[unit]), barrier.phase
    barrier.complete_tx(size, clock)
    cta.machine.progress += 1


def by_address(addresses: Addresses, lanes: Lanes) -> list[tuple[int, Lanes, NDArray[np.bool_]]]:
    """The distinct addresses; for each, the lanes that name it, and which of all lanes they are."""
    first = int(addresses[0])
    same = addresses == first
    if same.all():
        return [(first, lanes, same)]
    return [
        (int(address), lane_sets.select(lanes, addresses == address), addresses == address)
        for address in np.unique(addresses)
    ]
