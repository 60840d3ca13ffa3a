"""tcgen05.commit and tcgen05.fence (PTX ISA, "TensorCore 5th Generation Async Synchronization
Operations" and "Specialized Synchronization Operations")."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.evidence import KERNELS
from triton_ext.emulator.decode.operands import Operands
from triton_ext.emulator.decode.step import Run
from triton_ext.emulator.errors import BarrierFault
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.barriers import ARRIVALS
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.clocks import Clock
from triton_ext.emulator.state.in_flight import AsyncArrival
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.memory import RANK_SHIFT
from triton_ext.emulator.units.mbarriers import (
    OFFSET_MASK,
    arrives_from_afar,
    find,
    low_words,
    shared_addresses,
)
from triton_ext.emulator.units.tensor_core import UNIT, issue_commit, tensor_core
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.ptx.forms import Tcgen05Order, TensorCoreCommit
from triton_ext.ptx.parse import Instruction


@instruction("tcgen05.commit", evidence=KERNELS)
def commit(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """An arrival at an mbarrier, or at those of several blocks, after the thread's earlier work.

    An address of ``.shared::cluster`` that has no rank names the executing block's own barrier, as
    every shared address does here.
    """
    form = modifiers.form(TensorCoreCommit)
    group, space = form.cta_group, form.space
    address = operands.address(form.mbarrier, at)
    mask = operands.reader(form.cta_mask, "u16", at) if form.multicast else None

    def run(cta: Cta, lanes: Lanes) -> None:
        number = lane_sets.count(lanes)
        named = np.broadcast_to(address(cta, lanes), number)
        targets = shared_addresses(cta, space, low_words(cta, lanes, space, named))
        masks = lane_sets.numbers(mask(cta, lanes), lanes) if mask else [None] * number
        for thread, target, chosen in zip(
            lane_sets.indices(lanes).tolist(), targets.tolist(), masks, strict=True
        ):
            agent = cta.agents.first + thread // WARP_THREADS
            cta.cluster.clocks.tick(np.array([agent]))
            arrival = _arrival(cta, thread, _barriers(cta, target, chosen), at)
            issue_commit(cta, thread, group, arrival)

    return run


def _barriers(cta: Cta, address: int, mask: int | None) -> list[int]:
    """The barrier's address, or those at the same offset in each block of a mask."""
    if mask is None:
        return [address]
    ranks = [rank for rank in range(16) if mask >> rank & 1]
    if not ranks or ranks[-1] >= len(cta.cluster.ctas):
        raise BarrierFault(
            f"ctaMask {mask:#x} names blocks {ranks} of a cluster of {len(cta.cluster.ctas)}"
        )
    return [rank << RANK_SHIFT | address & OFFSET_MASK for rank in ranks]


def _arrival(
    cta: Cta, thread: int, addresses: list[int], at: Instruction
) -> Callable[[Clock], None]:
    unit, far = cta.agents.unit(UNIT), any(each >> RANK_SHIFT != cta.rank for each in addresses)

    def arrive(clock: Clock) -> None:
        event = int(clock.seen[unit])
        if far and not event:  # there was no work
            event = cta.cluster.clocks.unit_event(unit)
            clock.seen[unit] = tensor_core(cta).done[thread] = event
        for address in addresses:
            barrier = find(cta, address, clock=clock)
            if address >> RANK_SHIFT == cta.rank:
                barrier.check_turn(clock.seen, "a tcgen05.commit")
                lanes = slice(thread, thread + 1)
                _remember(cta, AsyncArrival(lanes, at, [(barrier, barrier.phase)]), far)
            else:
                # Who knows, by any commit, that the same work or later work is done, knows of this.
                arrival = arrives_from_afar(cta, address, unit, event)
                arrival.released[unit] = event
            barrier.signals[unit] = event, barrier.phase
            barrier.note(ARRIVALS, 1, at)
            rank = address >> RANK_SHIFT
            cta.machine.observer.brings(cta, rank, barrier, barrier.phase)
            cta.machine.observer.counts(barrier, "arrive", None, 1, clock)
            barrier.arrive(1, clock)
        cta.machine.progress += 1

    return arrive


def _remember(cta: Cta, new: AsyncArrival, far: bool) -> None:
    """For the end of the block, in which its commits arrive in the order of issue."""
    arrivals = cta.under_way.arrivals
    if not far:
        arrivals["tcgen05.commit"] = new
    elif "tcgen05.commit" in arrivals:
        arrivals["tcgen05.commit"].phases += new.phases


@instruction("tcgen05.fence::before_thread_sync tcgen05.fence::after_thread_sync", evidence=KERNELS)
def fence(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """Order tcgen05 work with what synchronizes threads.

    Barriers that release and acquire order it by themselves here: compiled kernels leave the fence
    out (Triton always, CUTLASS at times). It matters to relaxed arrivals and waits, like ``fence``,
    and to the rule `THREAD_SYNC`.
    """
    modifiers.form(Tcgen05Order)
    after = at.opcode.endswith("after_thread_sync")

    def run(cta: Cta, lanes: Lanes) -> None:
        clocks, agents = cta.cluster.clocks, cta.agents(lanes)
        clocks.relaxed.fence(agents)
        if after:
            clocks.tensor.update((each, clocks.seen[each].copy()) for each in agents.tolist())

    return run
