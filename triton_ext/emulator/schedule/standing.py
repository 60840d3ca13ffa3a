"""Where the threads of a block stand, and why they do not go on: for errors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from triton_ext.emulator.decode.step import Step
from triton_ext.emulator.errors import ConvergenceFault
from triton_ext.emulator.schedule.fiber import Fiber, converged
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.ptx.parse import Instruction

TOLD_BLOCKS = 4
"""How many blocks are told of, of those whose threads stand at one place for one reason."""
_ADDRESS = re.compile(r"0x[0-9a-f]+")


@dataclass(frozen=True)
class Standing:
    """Threads that stand at one instruction, for one reason.

    Attributes:
        instruction: that one.
        who: they, in words.
        why: they do not go on.
    """

    instruction: Instruction
    who: str
    why: str


def told(standing: Sequence[Standing]) -> list[str]:
    """Who stands where, and why: a line each; but one of more than `TOLD_BLOCKS` that are alike, as
    they differ in addresses alone.
    """
    alike: dict[tuple[int, str], list[Standing]] = {}
    for each in standing:
        key = each.instruction.line, _ADDRESS.sub("", each.why)
        alike.setdefault(key, []).append(each)
    lines = []
    for several in alike.values():
        at, whos = several[0].instruction, [each.who for each in several]
        if len(whos) > TOLD_BLOCKS:
            more = f"and {len(whos) - TOLD_BLOCKS} blocks more"
            whos = ["; ".join([*whos[:TOLD_BLOCKS], more])]
        source = f" [{at.source}]" if at.source else ""
        whys = [each.why for each in several]
        lines += [
            f"{who} at PTX line {at.line}{source}: {why}"
            for who, why in zip(whos, whys, strict=False)
        ]
    return lines


def standing(cta: Cta, steps: Sequence[Step], fibers: Sequence[Fiber]) -> list[Standing]:
    """Where threads stand, and what they wait for: those together that do the same."""
    found: dict[tuple[int, str], list[Fiber]] = {}
    for fiber in fibers:
        why = fiber.wait.why() if fiber.wait else "runs without end"
        if fiber.wait is None:
            asked = {_asked(cta, int(warp)) for warp in lane_sets.warps(fiber.lanes)}
            why += "".join(f"; it {each}" for each in sorted(asked - {""}))
        found.setdefault((fiber.pc, why), []).append(fiber)
    standing = []
    for (pc, why), fibers in found.items():
        threads = np.sort(np.concatenate([lane_sets.indices(each.lanes) for each in fibers]))
        at = steps[min(pc, len(steps) - 1)].instruction
        standing.append(Standing(at, cta.describe(lane_sets.pack(threads)), why))
    return standing


def _asked(cta: Cta, warp: int) -> str:
    """What a warp has asked for, and not got, in words; "" if nothing."""
    found = cta.under_way.polled.get(warp, "")
    if isinstance(found, str):
        return found
    address, value = found
    of = cta.launch.memory.locate(address)
    number = int.from_bytes(value, "little")
    return f"last read {number} at global address {address:#x} ({of.describe(address - of.start)})"


def check_parked(cta: Cta, steps: Sequence[Step], fibers: Sequence[Fiber]) -> None:
    """Raise ConvergenceFault if threads stand at a convergent instruction, and the rest never
    comes."""
    for fiber in fibers:
        if not fiber.parked or fiber.wait is not None:
            continue
        step = steps[fiber.pc]
        if converged(cta, fiber, step.convergent or WARP_THREADS) is not None:
            size = max(step.convergent, WARP_THREADS)
            group = "warpgroup" if size > WARP_THREADS else "warp"
            mine = set((lane_sets.indices(fiber.lanes) // size).tolist())
            elsewhere = [
                each
                for each in fibers
                if each.pc != fiber.pc
                and mine & set((lane_sets.indices(each.lanes) // size).tolist())
            ]
            raise ConvergenceFault(
                f"a {group}'s threads must execute this instruction together; some of them are"
                " elsewhere"
                + "".join(f"\n  {line}" for line in told(standing(cta, steps, elsewhere))),
                step.instruction,
                cta.describe(fiber.lanes),
            )
