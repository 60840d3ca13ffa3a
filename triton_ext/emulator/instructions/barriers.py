"""Numbered barriers of a block (PTX ISA, "bar", "barrier")."""

from __future__ import annotations

import numpy as np

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.evidence import COMPILED
from triton_ext.emulator.decode.operands import Operands
from triton_ext.emulator.decode.step import Outcome, Run, Split, Wait
from triton_ext.emulator.errors import BarrierFault
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.barriers import NamedBarrier
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.leniencies import TWICE
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.ptx.parse import Instruction

NUMBERED_BARRIERS = 16


@instruction(
    "bar.sync barrier.sync bar.cta.sync barrier.cta.sync",
    convergent=True,
    evidence=COMPILED,
    lockstep=True,
)
@instruction(
    "bar.arrive barrier.arrive bar.cta.arrive barrier.cta.arrive",
    convergent=True,
    evidence=COMPILED,
)
def numbered_barrier(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    modifiers.flag("aligned")
    waits = ".sync" in at.opcode
    number = operands.reader(at.operands[0], "u32", at)
    threads = operands.reader(at.operands[1], "u32", at) if len(at.operands) > 1 else None

    def run(cta: Cta, lanes: Lanes) -> Outcome:
        which = number(cta, lanes)
        if which.ndim and (which != which[0]).any():
            return Split([lane_sets.select(lanes, which == each) for each in np.unique(which)])
        chosen = int(which.flat[0])
        if chosen >= NUMBERED_BARRIERS:
            raise BarrierFault(f"barrier {chosen}: a block has {NUMBERED_BARRIERS}")
        expected = None
        if threads is not None:
            expected = int(np.max(threads(cta, lanes)))
            if expected == 0 or expected % WARP_THREADS:
                raise BarrierFault(f"barrier {chosen}: {expected} threads are not whole warps")
        barrier = cta.barriers.get(chosen)
        if barrier is None:
            barrier = NamedBarrier(chosen, cta.live, cta.cluster.clocks, cta.exited)
            cta.barriers[chosen] = barrier
        agents = cta.agents(lanes)
        cta.machine.observer.arrives(cta, lanes, barrier, barrier.generation, False)
        generation = barrier.arrive(
            lanes, agents, expected, waits=waits, twice=lambda: cta.takes(TWICE, lanes)
        )
        if barrier.generation > generation:
            cta.machine.progress += 1
        if not waits:
            return None

        def resume() -> None:
            cta.cluster.clocks.acquire(agents, barrier.released)
            cta.machine.observer.awaits(cta, lanes, barrier, generation, at)

        return Wait(lambda: barrier.generation > generation, barrier.why, resume)

    return run
