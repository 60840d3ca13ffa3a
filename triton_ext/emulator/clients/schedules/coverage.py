"""What the emulator's checks of order do not cover: there one run proves nothing."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator

from triton_ext.emulator.clients.schedules.record import Doubts
from triton_ext.emulator.clients.schedules.timing import FENCES, ORDERING, unordered
from triton_ext.emulator.clients.schedules.verdict import Reason, location
from triton_ext.emulator.schedule.machine import Machine
from triton_ext.emulator.state.agents import TMA_CHANNELS
from triton_ext.emulator.state.block import Cluster
from triton_ext.emulator.units.shadows import MOST_BYTES

FREE_ORDER = "orders memory, and its own order is free"
"""The reason that is none once every order was run."""


def gaps(machine: Machine, doubts: Doubts) -> Iterator[Reason]:
    """Where the vector clocks of a launch are too weak to hold for all schedules; after its end."""
    for at, times in doubts.apart.items():
        yield Reason(
            "relies on other lanes of its warp, with which it need not be in step (a bar.warp.sync"
            " is missing, or the emulator does not see what stands for it)", at, times,
        )  # fmt: skip
    for at, times in doubts.together.items():
        yield Reason("arrives for several phases at once", at, times)
    for at, times in doubts.overtaken.items():
        yield Reason("is passed after it has completed again: one clock stands for both", at, times)
    yield from _atomics(machine)
    yield from _memory(machine, doubts)
    for key, masks in doubts.storing.items():
        all_lanes = functools.reduce(operator.or_, masks)
        alone = len(masks) == 1 and all(all_lanes & ~each == 0 for each in doubts.grouping[key])
        if not alone:
            yield Reason("some lanes of a warp wait for others' copies out of shared memory")


def _atomics(machine: Machine) -> Iterator[Reason]:
    """Atomic operations from which a fence may make an order that only this run has."""
    steps = zip(machine.program.steps, machine.counts, strict=True)
    executed = [step.instruction for step, count in steps if count]
    fences = any(at.opcode.startswith(FENCES) for at in executed)
    for at in unordered(machine.program, machine.counts):
        opcode = at.opcode
        if not opcode.startswith(("atom.", "red.")) or opcode.startswith("red.async"):
            continue
        if ".global" not in opcode:
            yield Reason("is a flag in shared memory, where one clock stands for all flags", at)
        elif fences or any(part in opcode for part in ORDERING):
            yield Reason(FREE_ORDER, at)


def _memory(machine: Machine, doubts: Doubts) -> Iterator[Reason]:
    """Global memory with more readers than the two that are remembered of each byte."""
    order = machine.global_order
    if order is None:
        yield Reason("races in global memory are not checked")
        return
    for of in machine.launch.memory.allocations:
        name = of.name or f"the allocation at {of.start:#x}"
        if of.size > MOST_BYTES:
            yield Reason(f"{name} is too large for its accesses to be checked")
            continue
        shadow = order.shadow(of)
        if not shadow.written:
            continue
        if any(of.start <= address < of.start + of.size for address in doubts.multicast):
            yield Reason(f"{name} is written, and read by multicast copies")
            continue
        shadow.enter()
        if ((shadow.writer != 0) & (shadow.readers[1] != 0)).any():
            yield Reason(f"{name} is written where more than one warp or unit reads it")


def units(cluster: Cluster) -> Iterator[Reason]:
    """Copies of a cluster's blocks that share a clock."""
    most = max(len(cta.agents.channels) for cta in cluster.ctas)
    if most > TMA_CHANNELS:
        yield Reason(
            f"a block has copies that {most} mbarriers track: of more than {TMA_CHANNELS} some"
            " share a clock"
        )


def assumed(cluster: Cluster) -> Iterator[str]:
    """What a proof rests on because of what this kernel does, besides `verdict.ASSUMED`."""
    for at in dict.fromkeys(at for cta in cluster.ctas for at in cta.under_way.unawaited):
        yield (
            f"{location(at)}: {at.opcode} may use what tcgen05.ld loads without tcgen05.wait::ld,"
            " as compilers rely on"
        )
