"""Asynchronous copies of single threads: ``cp.async``, ``st.async``, ``red.async`` (PTX ISA).

They belong to the generic proxy; each warp's copies are an agent of their own, so that nobody has
seen them who has not waited for them. The copies of a block are done in the order of their issue.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.evidence import SILICON
from triton_ext.emulator.decode.operands import Operands, Reader
from triton_ext.emulator.decode.step import Outcome, Run, Split, Wait
from triton_ext.emulator.decode.values import vector_reader
from triton_ext.emulator.errors import (
    BarrierFault,
    LaunchError,
    MemoryFault,
    UnsupportedInstruction,
)
from triton_ext.emulator.instructions.mbarriers import SHARED_SPACES
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.barriers import ARRIVALS
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.clocks import Agents, Rows
from triton_ext.emulator.state.in_flight import RING, AsyncArrival
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.memory import RANK_SHIFT, Bytes
from triton_ext.emulator.state.types import DTYPES, bits_of
from triton_ext.emulator.units import accessors
from triton_ext.emulator.units.accessors import By
from triton_ext.emulator.units.mbarriers import (
    OFFSET_MASK,
    brings,
    by_address,
    find,
    owner,
    shared_addresses,
    signal,
)
from triton_ext.emulator.units.reductions import OPERATIONS, combiner
from triton_ext.ptx.parse import Instruction, immediate


def _queue(cta: Cta) -> tuple[object, ...]:
    return ("cp.async", cta)


def _begin(cta: Cta, agents: Agents, then: Rows) -> Agents:
    """The agents of the warps' copies, which have seen what the warps had at the issue."""
    copies = cta.agents.copies(agents)
    cta.cluster.clocks.acquire_rows(copies, then)
    return copies


@instruction("cp.async", evidence=SILICON, lockstep=True)
def copy(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``cp.async.ca`` and ``.cg``; bytes past src-size, or all with ignore-src, become zeros."""
    level = modifiers.one_of(("ca", "cg"))
    space = modifiers.one_of(("shared", "shared::cta"))
    if not level or not space or not modifiers.flag("global"):
        raise UnsupportedInstruction("its cache level or state spaces are not understood", at)
    rest = list(at.operands)
    if modifiers.flag("L2::cache_hint"):
        operands.reader(rest.pop(), "b64", at)
    while modifiers.starting("L2::"):
        pass
    target, source, size_text, *sizes = rest
    size = immediate(size_text)
    if size not in ((16,) if level == "cg" else (4, 8, 16)) or len(sizes) > 1:
        raise UnsupportedInstruction(f"a copy of {size_text} bytes, or its operands", at)
    width = int(size or 0)
    to, origin = operands.address(target, at), operands.address(source, at)
    length = _length(at, sizes, width, operands)

    def run(cta: Cta, lanes: Lanes) -> None:
        number = lane_sets.count(lanes)
        targets = shared_addresses(cta, space, to(cta, lanes)) & OFFSET_MASK
        sources = np.broadcast_to(origin(cta, lanes), number)
        lengths = np.broadcast_to(length(cta, lanes), number).astype(np.int64)
        if (lengths > width).any():
            raise MemoryFault(f"cp.async: src-size {int(lengths.max())} is more than {width}")
        copies = cta.under_way.thread_copies
        copies.issued += 1
        copies.last[lanes] = copies.issued
        agents = cta.agents(lanes)
        if lengths.any():
            given = sources[lengths > 0], lane_sets.select(lanes, lengths > 0)
            cta.machine.observer.access(cta, given[1], "global", given[0], width, "copy")
        then, line = cta.cluster.clocks.rows(agents), at.line

        def perform() -> None:
            mine = _begin(cta, agents, then)
            event = cta.cluster.clocks.tick(mine)
            by_lane = cta.agents.copies(cta.agents.of_lanes(lanes))
            by = accessors.copies(cta, by_lane, event, line)
            values = _source(cta, sources, lengths, width, by)
            # Of one warp's copies, too, the later one comes after those alone that it waited for.
            issuers = np.searchsorted(agents, cta.agents.of_lanes(lanes))
            cta.shared.store(targets, values, by_lane, event, seen=then.seen[issuers])
            copies.done += 1
            copies.events.append(event)

        cta.issue(lanes, _queue(cta), perform)

    return run


def _length(at: Instruction, sizes: list[str], width: int, operands: Operands) -> Reader:
    """How many bytes each lane reads."""
    if not sizes:
        return lambda cta, lanes: np.asarray(width)
    register = operands.find(sizes[0].lstrip("!"), at.scope)
    if register is not None and register.width == 1:
        ignore = operands.reader(sizes[0], "pred", at)
        return lambda cta, lanes: np.where(ignore(cta, lanes), 0, width)
    return operands.reader(sizes[0], "u32", at)


def _source(
    cta: Cta, sources: NDArray[np.int64], lengths: NDArray[np.int64], width: int, by: By | None
) -> Bytes:
    """What the lanes copy: global memory, and zeros."""
    memory = cta.launch.memory
    if (lengths == width).all():
        return memory.load(sources, width, by)
    values: Bytes = np.zeros((len(sources), width), np.uint8)
    if ((sources % width != 0) & (lengths > 0)).any():
        raise MemoryFault(f"cp.async: a source address is no multiple of {width}")
    for length in np.unique(lengths[lengths > 0]).tolist():
        chosen = lengths == length
        for found, group in memory.groups(sources[chosen], length):
            first = (sources[chosen] - found.start)[group]
            rows = np.flatnonzero(chosen)[group]
            if by is not None:
                by.lanes(rows).read(found, 0, first, length)
            values[rows, :length] = found.data[first[:, None] + np.arange(length)]
    return values


@instruction("cp.async.commit_group", evidence=SILICON, lockstep=True)
def commit_group(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    def run(cta: Cta, lanes: Lanes) -> None:
        copies = cta.under_way.thread_copies
        threads = lane_sets.indices(lanes)
        copies.ends[threads, copies.groups[threads] % RING] = copies.last[threads]
        copies.groups[threads] += 1

    return run


def _await(cta: Cta, lanes: Lanes, targets: NDArray[np.int64]) -> Outcome:
    """Wait until the operation of that number, of each lane, is done (0: none)."""
    copies = cta.under_way.thread_copies
    latest = int(targets.max())
    if not latest:
        return None
    if copies.done < latest and (targets <= copies.done).any():
        ready = targets <= copies.done
        return Split([lane_sets.select(lanes, ready), lane_sets.select(lanes, ~ready)])

    def resume() -> None:
        agents = cta.agents(lanes)
        last = np.zeros(len(agents), np.int64)
        np.maximum.at(last, np.searchsorted(agents, cta.agents.of_lanes(lanes)), targets)
        events = np.array([copies.events[each] for each in last.tolist()])
        seen, others = cta.cluster.clocks.seen, cta.agents.copies(agents)
        seen[agents, others] = np.maximum(seen[agents, others], events)

    return Wait(
        lambda: copies.done >= latest,
        lambda: f"waits for {latest - copies.done} cp.async operations",
        resume,
    )


@instruction("cp.async.wait_group", evidence=SILICON, lockstep=True)
def wait_group(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    number = immediate(at.operands[0])
    if number is None or not 0 <= number < RING:
        raise UnsupportedInstruction(f"the number of groups must be in [0, {RING})", at)
    pending = number

    def run(cta: Cta, lanes: Lanes) -> Outcome:
        copies = cta.under_way.thread_copies
        threads = lane_sets.indices(lanes)
        group = copies.groups[threads] - 1 - pending
        targets = np.where(group >= 0, copies.ends[threads, group % RING], 0)
        return _await(cta, lanes, targets)

    return run


@instruction("cp.async.wait_all", evidence=SILICON, lockstep=True)
def wait_all(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    return lambda cta, lanes: _await(cta, lanes, cta.under_way.thread_copies.last[lanes])


@instruction("cp.async.mbarrier.arrive", evidence=SILICON)
def arrive(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """An arrival of each lane, once its copies so far are done; counted beforehand or not."""
    counted = modifiers.flag("noinc")
    space = modifiers.one_of(("shared", "shared::cta"))
    modifiers.flag("b64")
    address = operands.address(at.operands[0], at)

    def run(cta: Cta, lanes: Lanes) -> None:
        addresses = shared_addresses(cta, space, address(cta, lanes))
        agents = cta.agents(lanes)
        groups = by_address(addresses, lanes)
        for where, group, _ in groups:
            for agent in cta.agents(group).tolist():
                barrier = find(cta, where, agent)
            if not counted:
                cta.machine.observer.counts(barrier, "pend", group)
                barrier.expect_arrivals(lane_sets.count(group))
        copies = cta.under_way.thread_copies
        before = copies.issued

        def perform() -> None:
            clocks = cta.cluster.clocks
            for where, group, _ in groups:
                clock = clocks.empty()
                if before:
                    own = cta.agents.copies(cta.agents(group))
                    clock = clocks.of_event(own, copies.events[before], fenced=False)
                barrier = find(cta, where)
                barrier.note(ARRIVALS, lane_sets.count(group), at)
                cta.machine.observer.counts(barrier, "arrive", group)
                last = AsyncArrival(group, at, [(barrier, barrier.phase)])
                cta.under_way.arrivals["cp.async"] = last
                barrier.arrive(lane_sets.count(group), clock)

        if agents.size:
            cta.issue(lanes, _queue(cta), perform)

    return run


# -------------------------------------------------- stores and reductions with a barrier


@instruction(
    "st.async red.async",
    evidence=SILICON,
    but="refused in a launch that asks for no clusters, where an H200 says illegal instruction of"
    " `st.async`",
)
def store(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """Each lane's value goes to another block, whose mbarrier is told of its bytes.

    An H200 calls ``st.async`` an illegal instruction where the launch asks for no clusters; one of
    a single block will do.
    """
    modifiers.flag("weak")
    modifiers.flag("relaxed")
    modifiers.flag("cluster")
    space = modifiers.one_of(SHARED_SPACES)
    if not modifiers.flag("mbarrier::complete_tx::bytes"):
        raise UnsupportedInstruction("its completion must be an mbarrier's", at)
    operation = modifiers.one_of(OPERATIONS) if at.opcode.startswith("red") else ""
    vector = int((modifiers.one_of(("v2", "v4")) or "v1")[1:])
    type_name = modifiers.type()
    to, barrier = operands.address(at.operands[0], at), operands.address(at.operands[2], at)
    texts = operands.vector(at.operands[1])
    if len(texts) != vector or (at.opcode.startswith("red") and not operation):
        raise UnsupportedInstruction("its operands are not understood", at)
    read, dtype = vector_reader(texts, type_name, at, operands), DTYPES[type_name]
    width = vector * bits_of(type_name) // 8
    combine = combiner(operation, dtype) if operation else None

    def run(cta: Cta, lanes: Lanes) -> None:
        if not cta.launch.in_clusters:
            raise LaunchError(f"{at.opcode} in a launch without clusters: ask for one of a block")
        values = read(cta, lanes).view(dtype)
        targets = shared_addresses(cta, space, to(cta, lanes))
        barriers = shared_addresses(cta, space, barrier(cta, lanes))
        if (targets >> RANK_SHIFT != barriers >> RANK_SHIFT).any():
            raise BarrierFault("the data and the mbarrier must be of one block")
        agents = cta.agents(lanes)
        then = cta.cluster.clocks.rows(agents)
        cta.machine.observer.sends(cta, lanes, width)

        def perform() -> None:
            clocks = cta.cluster.clocks
            mine = _begin(cta, agents, then)
            event = clocks.tick(mine)
            by_lane = cta.agents.copies(cta.agents.of_lanes(lanes))
            raw = values.view(np.uint8)
            for rank in np.unique(targets >> RANK_SHIFT).tolist():
                here = targets >> RANK_SHIFT == rank
                shared = owner(cta, rank << RANK_SHIFT).shared
                offsets = targets[here] & OFFSET_MASK
                if combine is None:
                    shared.store(offsets, raw[here], by_lane[here], event)
                    continue
                for offset, new, agent in zip(offsets, values[here], by_lane[here], strict=True):
                    where, who = np.array([offset]), np.array([agent])
                    old = shared.load(where, width, who)[0].view(dtype)
                    both = combine(old, new).view(np.uint8)[None]
                    shared.store(where, both, who, event)
            event = clocks.tick(mine)  # after the reads of a reduction
            for barrier_at, group, chosen in by_address(barriers, lanes):
                own = cta.agents.copies(cta.agents(group))
                clock = clocks.of_event(own, event, fenced=False)
                size = width * int(chosen.sum())
                brings(cta, barrier_at, size, at)
                signal(cta, barrier_at, size, clock, int(own[0]))

        cta.issue(lanes, None, perform)

    return run
