"""Threads of a block that stand at one instruction."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.step import Wait
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes

MANY_JUMPS = 256
"""Rounds of a loop without a change of memory after which a fiber is taken to wait for others."""


class Fiber:
    """Threads of a block that stand at the same instruction.

    Attributes:
        pc: the number of the instruction.
        lanes: the threads.
        wait: what they wait for, or None.
        parked: they wait for the rest of their warps.
        apart: they must execute the instruction without others that stand there.
        backward_jumps: how often they went back in the text since memory or barriers changed
            last, which was the machine's change number `since`.
    """

    __slots__ = ("apart", "backward_jumps", "lanes", "parked", "pc", "since", "wait")

    def __init__(self, pc: int, lanes: Lanes) -> None:
        self.pc, self.lanes = pc, lanes
        self.wait: Wait | None = None
        self.parked = self.apart = False
        self.backward_jumps, self.since = 0, -1

    def part(self, pc: int, lanes: Lanes) -> Fiber:
        """A fiber of some of its threads, or of some more, which has gone round as often."""
        part = Fiber(pc, lanes)
        part.backward_jumps, part.since = self.backward_jumps, self.since
        return part

    def go_on(self, then: Callable[[], None]) -> None:
        """End a wait: do `then`, and go to the next instruction."""
        again = self.wait is not None and self.wait.again
        self.wait = None
        then()
        self.pc += not again


def converged(cta: Cta, fiber: Fiber, size: int) -> NDArray[np.bool_] | None:
    """Which groups of threads the fiber has with all of their living threads.

    Args:
        size: threads of a group: 32 for warps, 128 for warpgroups.

    Returns:
        (groups of the block,); None if the fiber has no other groups.
    """
    lanes = fiber.lanes
    if isinstance(lanes, slice):
        whole = not lanes.stop % size or lanes.stop == cta.threads
        if whole and not lanes.start % size:
            return None
    number = -(-cta.threads // size)
    ours = np.bincount(lane_sets.indices(lanes) // size, minlength=number)
    all_of = np.bincount(np.flatnonzero(cta.live) // size, minlength=number)
    complete: NDArray[np.bool_] = ours == all_of
    return None if complete[ours > 0].all() else complete & (ours > 0)
