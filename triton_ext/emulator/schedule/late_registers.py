"""Registers that asynchronous instructions still read or write when another one names them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from triton_ext.emulator.decode.step import Step
from triton_ext.emulator.errors import SynchronizationFault
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes

_ASYNCHRONOUS = ("wgmma.mma_async", "tcgen05.ld")
"""Whose registers others must wait for."""


def settle(cta: Cta, step: Step, lanes: Lanes) -> None:
    """Complete the loads whose values, or what is computed of them, the step stores."""
    arriving = cta.under_way.arriving
    for warp in lane_sets.warps(lanes).tolist():
        loads = arriving.get(warp, [])
        used = [load for load in loads if not step.touched.isdisjoint(load.registers)]
        for load in used:
            if step.written:
                load.registers.update(step.written)
            else:
                load.complete()
                loads.remove(load)
                cta.under_way.unawaited.add(step.instruction)
        if used and not loads:
            del arriving[warp]


def check_free(
    cta: Cta,
    steps: Sequence[Step],
    step: Step,
    lanes: Lanes,
    complete: Callable[[Cta, Lanes], None],
) -> None:
    """Raise SynchronizationFault if a step names registers that an asynchronous one still uses.

    Args:
        steps: the program's.
        complete: performs at once what lanes have issued.
    """
    for warp in lane_sets.warps(lanes):
        busy = cta.under_way.registers.get(int(warp))
        if not busy or step.touched.isdisjoint(busy):
            continue
        if step.copies and step.written.isdisjoint(busy):
            # Triton copies an accumulator that is in flight (tests/emulator/test_kernels.py):
            # ptxas gives both one register, or waits; so the copy has the final value.
            complete(cta, lanes)
            continue
        users = [
            each.instruction.source or f"PTX line {each.instruction.line}"
            for each in steps
            if each.instruction.opcode.startswith(_ASYNCHRONOUS)
            and not each.touched.isdisjoint(step.touched & busy)
        ]
        raise SynchronizationFault(
            "names a register that an asynchronous instruction still reads or writes"
            f" ({' or '.join(dict.fromkeys(map(str, users)))}); wait for it first"
            " (wgmma.wait_group, tcgen05.wait)"
        )
