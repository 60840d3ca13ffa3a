"""The fifth-generation tensor core of a block or pair: its state, and the order of its work.

tcgen05.mma, cp, shift and commit of one block (or pair, with ``cta_group::2``) are done in the
order of issue, as one queue. PTX promises less: only some pairs of these instructions are a
pipeline (PTX ISA, "Pipelined tcgen05 Instructions").
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.errors import (
    ConvergenceFault,
    LaunchError,
    SynchronizationFault,
    TensorMemoryFault,
)
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.clocks import Clock
from triton_ext.emulator.state.in_flight import TensorCore
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.leniencies import THREAD_SYNC
from triton_ext.emulator.state.tensor_memory import Cells, Names, TensorMemory
from triton_ext.hardware.architecture import WARP_THREADS

UNIT = "tensor core"


def tensor_core(cta: Cta) -> TensorCore:
    """The block's tensor core, with its tensor memory."""
    if cta.under_way.tensor_core is None:
        cluster, columns = cta.cluster, cta.machine.target.capability.tensor_memory_columns
        names = Names(
            cluster.agent_name, cluster.clocks.missing.culprit, cluster.unwritten_loads.fault
        )
        cta.under_way.tensor_core = TensorCore(TensorMemory(columns, names))
    return cta.under_way.tensor_core


def check_freed(cta: Cta) -> None:
    """Raise TensorMemoryFault if a block that has ended still holds columns."""
    if cta.under_way.tensor_core is None:
        return
    for allocation in cta.under_way.tensor_core.memory.columns.allocations.values():
        raise TensorMemoryFault(
            f"the block exits without tcgen05.dealloc of its {allocation.columns} columns at"
            f" column {allocation.column}",
            allocation.instruction,
            f"block {cta.index}",
        )


def use_group(cta: Cta, group: int) -> TensorCore:
    """The block's tensor core, for an instruction of that ``cta_group``.

    Raises:
        TensorMemoryFault: the block has used the other one before.
        LaunchError: a pair, and the cluster has no pairs.
    """
    core = tensor_core(cta)
    if core.group != group:
        if core.group:
            raise TensorMemoryFault(
                f"cta_group::{group}, after an instruction with cta_group::{core.group}: all"
                " tcgen05 instructions of a kernel must have the same"
            )
        if group == 2 and len(cta.cluster.ctas) % 2:
            why = f"cta_group::2 needs pairs of blocks; the cluster has {len(cta.cluster.ctas)}"
            raise LaunchError(why)
        core.group = group
    return core


def blocks_of(cta: Cta, group: int) -> list[Cta]:
    """The block alone, or its pair, the even one first."""
    if group == 1:
        return [cta]
    even = cta.rank & ~1
    return cta.cluster.ctas[even : even + 2]


def same_in_warp(values: NDArray[Any], warps: int, what: str) -> NDArray[Any]:
    """The value of each warp, (warps,), whose threads must agree. Raises ConvergenceFault: they do
    not."""
    rows = np.broadcast_to(values, warps * WARP_THREADS).reshape(warps, WARP_THREADS)
    first = rows[:, 0]
    if (rows != first[:, None]).any():
        raise ConvergenceFault(f"the threads of a warp give different values for {what}")
    return first


def _queue(cta: Cta, group: int) -> tuple[object, ...]:
    return ("tcgen05", cta.cluster.number, cta.rank // group)


def issue(cta: Cta, thread: int, group: int, work: Callable[[Clock], None]) -> None:
    """Hand work of the instruction that is being executed to the tensor core.

    Args:
        thread: the one that issues it.
        work: does it; takes what the thread had seen at the issue, with all earlier work of the
            unit.
    """
    core = use_group(cta, group)
    clocks = cta.cluster.clocks
    unit = cta.agents.unit(UNIT)
    lanes = slice(thread, thread + 1)
    clock = clocks.snapshot(cta.agents(lanes))

    def perform() -> None:
        clock.seen[unit] = clock.fenced[unit] = clocks.seen[unit, unit]
        work(clock)
        core.done[thread] = int(clocks.seen[unit, unit])
        if cta.machine.fenced:
            core.issued.append((core.done[thread], cta.agents.first + thread // WARP_THREADS))

    cta.issue(lanes, _queue(cta, group), perform)


def check_thread_sync(
    cta: Cta, lanes: Lanes, agent: int, cells: Cells, what: str, *, writes: bool
) -> None:
    """Raise SynchronizationFault if a warp uses cells after another thread has, and has executed no
    ``tcgen05.fence::after_thread_sync`` since a barrier told it; unless that is taken as ordered.

    For a program that has no tcgen05.fence, nothing is checked.

    Args:
        agent: the warp.
        what: it does with them.
        writes: whether their last readers count, too.
    """
    if not cta.machine.fenced:
        return
    clocks, core = cta.cluster.clocks, tensor_core(cta)
    fenced = clocks.tensor.get(agent)
    fenced = np.zeros_like(clocks.seen[agent]) if fenced is None else fenced.copy()
    fenced[agent] = clocks.events
    unit = cta.agents.unit(UNIT)
    for number, event in core.memory.users(cells, fenced, writes=writes):
        if event > clocks.seen[agent, number]:
            continue  # nothing orders it at all
        if number == unit:
            at = bisect_left(core.issued, (event, 0))
            if at == len(core.issued) or core.issued[at][1] == agent:
                continue  # its own
        if not cta.takes(THREAD_SYNC, lanes):
            raise SynchronizationFault(
                f"{what}, which {cta.cluster.agent_name(number)} has used before; a barrier orders"
                " the two, and behind it tcgen05.fence::after_thread_sync is missing"
            )


def issue_commit(cta: Cta, thread: int, group: int, arrive: Callable[[Clock], None]) -> None:
    """Call `arrive` when all earlier work that the thread issued is done.

    `arrive` takes the clock that an arrival of the thread would release, with the work that the
    thread issued. Work that other threads issued is not in it.
    """
    core = use_group(cta, group)
    unit = cta.agents.unit(UNIT)
    lanes = slice(thread, thread + 1)
    clock = cta.cluster.clocks.snapshot(cta.agents(lanes))

    def perform() -> None:
        done = core.done.get(thread, 0)
        clock.seen[unit] = max(int(clock.seen[unit]), done)
        clock.fenced[unit] = max(int(clock.fenced[unit]), done)
        arrive(clock)

    cta.issue(lanes, _queue(cta, group), perform)
