"""mbarriers (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier")."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.evidence import COMPILED, SILICON
from triton_ext.emulator.decode.operands import Operands, Reader
from triton_ext.emulator.decode.step import Outcome, Run, Split, Wait
from triton_ext.emulator.errors import BarrierFault
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.barriers import ARRIVALS, BROUGHT, COUNT_LIMIT, EXPECTED, MBarrier
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.clocks import Clock
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.leniencies import REMOTE_SCOPE
from triton_ext.emulator.state.memory import RANK_SHIFT, Addresses
from triton_ext.emulator.units.mbarriers import (
    arrives_from_afar,
    by_address,
    find,
    initialise,
    invalidate,
    shared_addresses,
)
from triton_ext.ptx.forms import MbarrierOperation
from triton_ext.ptx.parse import Instruction

SHARED_SPACES = ("shared::cta", "shared::cluster", "shared")
_PENDING_BITS = 20
"""Bits of a state token (the emulator's own) that hold the missing arrivals; the phase is above."""


def _address(
    at: Instruction, form: MbarrierOperation, operands: Operands
) -> Callable[[Cta, Lanes], Addresses]:
    """Reads the barrier's address."""
    read = operands.address(form.barrier, at)
    return lambda cta, lanes: shared_addresses(cta, form.space, read(cta, lanes))


def _numbers(read: Reader | None, cta: Cta, lanes: Lanes) -> NDArray[np.int64]:
    """An operand's values as int64, one a lane; 1 if it is left out."""
    if read is None:
        return np.ones(lane_sets.count(lanes), np.int64)
    return lane_sets.each(read(cta, lanes), lanes).astype(np.int64)


def _tell(cta: Cta, lanes: Lanes, lane: int, address: int, what: str) -> None:
    """Tell the observer what one of the lanes does to an mbarrier."""
    thread = int(lane_sets.indices(lanes)[lane])
    barrier = find(cta, address)
    cta.machine.observer.counts(barrier, what, slice(thread, thread + 1))


@instruction("mbarrier.init", evidence=SILICON)
def init(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    form = modifiers.form(MbarrierOperation)
    address, count = _address(at, form, operands), operands.reader(form.count, "u32", at)

    def run(cta: Cta, lanes: Lanes) -> None:
        counts = _numbers(count, cta, lanes)
        agents = cta.agents.of_lanes(lanes)
        threads = lane_sets.indices(lanes)
        for lane, where in enumerate(address(cta, lanes)):
            initialise(cta, int(where), int(counts[lane]), int(agents[lane]), int(threads[lane]))
            _tell(cta, lanes, lane, int(where), "init")
        cta.machine.progress += 1

    return run


@instruction("mbarrier.inval", evidence=COMPILED)
def inval(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    address = _address(at, modifiers.form(MbarrierOperation), operands)

    def run(cta: Cta, lanes: Lanes) -> None:
        agents = cta.agents.of_lanes(lanes)
        for lane, where in enumerate(address(cta, lanes)):
            find(cta, int(where), int(agents[lane]))
            _tell(cta, lanes, lane, int(where), "inval")
            invalidate(cta, int(where), int(agents[lane]))

    return run


def _arrive(barrier: MBarrier, counts: NDArray[np.int64], clock: Clock) -> NDArray[np.uint64]:
    """Count lanes in, one after the other; the state before each arrival."""
    total = int(counts.sum())
    if total <= barrier.pending:
        before = barrier.pending - np.cumsum(counts) + counts
        states = ((barrier.phase << _PENDING_BITS) + before).astype(np.uint64)
        barrier.arrive(total, clock)
        return states
    states = np.empty(len(counts), np.uint64)
    for lane, count in enumerate(counts.tolist()):
        states[lane] = (barrier.phase << _PENDING_BITS) + barrier.pending
        barrier.arrive(count, clock)
    return states


@instruction("mbarrier.arrive mbarrier.arrive_drop", evidence=SILICON)
def arrive(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """All forms: with a count or bytes to expect, not completing, dropping, remote."""
    form = modifiers.form(MbarrierOperation)
    drops, expects = form.operation == "arrive_drop", form.expects
    may_not_complete, relaxed = form.may_not_complete, form.semantics == "relaxed"
    address, text = _address(at, form, operands), form.bytes or form.count
    write = operands.writer(form.result or "_", "u64", at)
    number = operands.reader(text, "u32", at) if text else None

    def run(cta: Cta, lanes: Lanes) -> None:
        numbers = _numbers(number, cta, lanes)
        clocks = cta.cluster.clocks
        states = np.empty(lane_sets.count(lanes), np.uint64)
        for where, group, chosen in by_address(address(cta, lanes), lanes):
            agents = cta.agents(group)
            barrier = _found(cta, where, agents)
            if where >> RANK_SHIFT == cta.rank:  # others' copies tell of phases there, too
                for agent in agents.tolist():
                    barrier.check_turn(clocks.knows(agent), cta.cluster.agent_name(agent))
            far = where >> RANK_SHIFT != cta.rank
            # .cta, the default, releases nothing to another block
            narrow = form.scope != "cluster" and far
            narrow = narrow and (relaxed or not cta.takes(REMOTE_SCOPE, group))
            if not narrow and not relaxed and (far or form.scope == "cluster"):
                clocks.release_remote(agents)
            event = clocks.tick(agents)
            if far:
                for agent in agents.tolist():
                    arrives_from_afar(cta, where, agent, event)
            clock = clocks.relaxed.published(agents) if relaxed else clocks.snapshot(agents)
            if narrow:
                why = "releases at .cta scope: .release.cluster"
                clocks.missing.withhold(clocks.snapshot(agents).seen, at, why)
                clock = clocks.empty()
            mine = numbers[chosen]
            counts = np.ones_like(mine) if expects else mine
            observer = cta.machine.observer
            if expects:
                barrier.note(EXPECTED, int(mine.sum()), at)
                observer.counts(barrier, "expect", group, mine)
                barrier.expect_tx(int(mine.sum()))
            elif (mine < 1).any() or (mine > COUNT_LIMIT).any():
                raise BarrierFault(f"a count of {int(mine.min())} must be in [1, {COUNT_LIMIT}]")
            if may_not_complete and int(counts.sum()) >= barrier.pending:
                raise BarrierFault(
                    f".noComplete: {int(counts.sum())} arrivals complete the phase of"
                    f" {barrier.name}, {barrier}"
                )
            if drops:
                barrier.drop(int(counts.sum()))
            barrier.note(ARRIVALS, int(counts.sum()), at)
            observer.arrives(cta, group, barrier, barrier.phase, far)
            observer.counts(barrier, "arrive", group, counts)
            states[chosen] = _arrive(barrier, counts, clock)
        write(cta, lanes, states)
        cta.machine.progress += 1

    return run


def _found(cta: Cta, address: int, agents: NDArray[np.intp]) -> MBarrier:
    """The barrier, whose initialisation each of `agents` must have seen."""
    for agent in agents.tolist():
        barrier = find(cta, address, agent)
    return barrier


@instruction("mbarrier.expect_tx mbarrier.complete_tx", evidence=SILICON)
def transaction(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    form = modifiers.form(MbarrierOperation)
    expects = form.operation == "expect_tx"
    address, size = _address(at, form, operands), operands.reader(form.bytes, "u32", at)

    def run(cta: Cta, lanes: Lanes) -> None:
        sizes = _numbers(size, cta, lanes)
        for where, group, chosen in by_address(address(cta, lanes), lanes):
            barrier = _found(cta, where, cta.agents(group))
            total = int(sizes[chosen].sum())
            what = "expect" if expects else "complete"
            cta.machine.observer.counts(barrier, what, group, sizes[chosen])
            if expects:
                barrier.note(EXPECTED, total, at)
                barrier.expect_tx(total)
                barrier.advance()
            else:
                barrier.note(BROUGHT, total, at)
                barrier.complete_tx(total, cta.cluster.clocks.empty())
        cta.machine.progress += 1

    return run


@instruction("mbarrier.pending_count", evidence=SILICON)
def pending_count(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    form = modifiers.form(MbarrierOperation)
    write = operands.writer(form.result, "u32", at)
    state = operands.reader(form.phase, "u64", at)
    mask = np.uint64((1 << _PENDING_BITS) - 1)
    return lambda cta, lanes: write(cta, lanes, (state(cta, lanes) & mask).astype(np.uint32))


def _completed(barrier: MBarrier, token: int, by_parity: bool) -> bool:
    """Whether the phase that a wait names has completed. Raises BarrierFault: a state older than
    the phase before the current one."""
    if by_parity:
        return barrier.phase & 1 != token & 1  # the current one's differs from it
    phase = token >> _PENDING_BITS
    if not barrier.phase - 1 <= phase <= barrier.phase:
        raise BarrierFault(
            f"a wait at {barrier.name} names phase {phase}; only the current phase and the one"
            f" before it may be named: {barrier}"
        )
    return phase < barrier.phase


def _why(barrier: MBarrier, token: int, by_parity: bool) -> str:
    phase = f"parity {token & 1}" if by_parity else f"phase {token >> _PENDING_BITS}"
    history = "".join(f"\n    {line}" for line in barrier.history.lines(barrier.phase))
    wrong = barrier.history.mismatch()
    return f"waits for {phase} of {barrier.name}, which is in {barrier}{wrong}{history}"


@instruction("mbarrier.test_wait mbarrier.try_wait", evidence=SILICON)
def wait(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``try_wait`` blocks until the phase completes, or nothing else can go on."""
    form = modifiers.form(MbarrierOperation)
    by_parity, relaxed = form.by_parity, form.semantics == "relaxed"
    write, address = operands.writer(form.result, "pred", at), _address(at, form, operands)
    token = operands.reader(form.phase, "u32" if by_parity else "u64", at)
    if form.time_limit:
        operands.reader(form.time_limit, "u32", at)  # a hint

    def acquire(cta: Cta, lanes: Lanes, barrier: MBarrier, token: int) -> None:
        clocks = cta.cluster.clocks
        phase = barrier.phase - 1 if by_parity else token >> _PENDING_BITS
        barrier.awaited = max(barrier.awaited, phase + 1)
        let_through = clocks.missing.let_through
        for agent in cta.agents(lanes).tolist() if phase < 0 or let_through else ():
            let_through.pop(agent, None)
            if phase < 0:
                let_through[agent] = at, barrier.name
        cta.machine.observer.awaits(cta, lanes, barrier, phase, at)
        if relaxed:
            clocks.relaxed.observe(cta.agents(lanes), barrier.released)
        else:
            clocks.acquire(cta.agents(lanes), barrier.released)

    def test(cta: Cta, lanes: Lanes) -> Outcome:
        if at.line in cta.machine.options.passing:
            write(cta, lanes, np.asarray(True))
            return None
        wheres = address(cta, lanes)
        tokens = lane_sets.each(token(cta, lanes), lanes)
        if by_parity:
            tokens = tokens & 1
        done = np.zeros(lane_sets.count(lanes), np.bool_)
        for where, group, chosen in by_address(wheres, lanes):
            barrier = _found(cta, where, cta.agents(group))
            named = tokens[chosen]
            passed = {int(each): _completed(barrier, int(each), by_parity) for each in set(named)}
            done[chosen] = [passed[int(each)] for each in named]
            if any(passed.values()):
                acquire(cta, lane_sets.select(group, done[chosen]), barrier, int(named[0]))
            for warp in lane_sets.warps(group).tolist():
                if all(passed.values()):
                    cta.under_way.polled.pop(warp, None)
                else:
                    cta.under_way.polled[warp] = _why(barrier, int(named[0]), by_parity)
        write(cta, lanes, done)
        return None

    def block(cta: Cta, lanes: Lanes) -> Outcome:
        wheres = address(cta, lanes)
        tokens = lane_sets.each(token(cta, lanes), lanes)
        where, named = int(wheres[0]), int(tokens[0])
        same = (wheres == where) & (tokens == named)
        if not same.all():
            return Split([lane_sets.select(lanes, same), lane_sets.select(lanes, ~same)])
        barrier = _found(cta, where, cta.agents(lanes))

        if at.line in cta.machine.options.passing:
            write(cta, lanes, np.asarray(True))
            return None
        if at.line in cta.machine.options.failing:
            cta.machine.observer.asks(cta, lanes, barrier, named)
            write(cta, lanes, np.asarray(False))
            return None

        def resume() -> None:
            acquire(cta, lanes, barrier, named)
            write(cta, lanes, np.asarray(True))

        return Wait(
            lambda: _completed(barrier, named, by_parity),
            lambda: _why(barrier, named, by_parity),
            resume,
            lambda: write(cta, lanes, np.asarray(False)),
        )

    return block if form.operation == "try_wait" else test
