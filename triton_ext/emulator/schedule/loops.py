"""Warps that go round in a loop while nothing changes: do they only repeat themselves?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.schedule.fiber import Fiber
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.hardware.architecture import WARP_THREADS

WATCHED_JUMPS = 1024
"""Rounds after which a fiber's warps are watched."""
COMPARED_LAPS = 16
"""How many states in a row are compared with an earlier one."""
_FILES = ("pred", "b16", "b32", "b64", "b128")


@dataclass
class _Watch:
    """Warps in a loop, and what their state was once."""

    progress: int
    backward_jumps: int = 0
    state: int = 0


class Loops:
    """Those of one block.

    Attributes:
        repeating: warps that repeat themselves, and since which change of memory.
    """

    def __init__(self, cta: Cta) -> None:
        self._cta = cta
        self._watched: dict[tuple[int, ...], _Watch] = {}
        self.repeating: dict[int, int] = {}

    def lap(self, fiber: Fiber, fibers: Sequence[Fiber]) -> None:
        """A fiber went back in the text: a loop.

        While memory and barriers stay, what its warps do next follows from where their threads
        stand and from their registers: if those are as they were once, all further rounds are the
        same.
        """
        progress = self._cta.machine.progress
        if fiber.since != progress:
            fiber.since, fiber.backward_jumps = progress, 0
            repeating = self.repeating.items()
            self.repeating = {warp: since for warp, since in repeating if since == progress}
        fiber.backward_jumps += 1
        if fiber.backward_jumps < WATCHED_JUMPS:
            return
        warps = tuple(lane_sets.warps(fiber.lanes).tolist())
        watch = self._watched.get(warps)
        if watch is None or watch.progress != progress:
            watch = self._watched[warps] = _Watch(progress)
        watch.backward_jumps += 1
        past = watch.backward_jumps - (1 << watch.backward_jumps.bit_length() - 1)
        if past > COMPARED_LAPS:
            return
        state = _state(self._cta, warps, _standing_at(self._cta, fibers))
        if not past:
            watch.state = state
        elif state == watch.state:
            self.repeating.update(dict.fromkeys(warps, progress))

    def endless(self, runnable: Sequence[Fiber]) -> bool:
        """Whether each of these does again and again the same."""
        progress, repeating = self._cta.machine.progress, self.repeating
        return all(
            repeating.get(warp) == progress
            for fiber in runnable
            for warp in lane_sets.warps(fiber.lanes).tolist()
        )


def _state(cta: Cta, warps: tuple[int, ...], where: NDArray[np.intp]) -> int:
    """A number for where the threads of some warps stand, and what their registers hold."""
    of_warps = [slice(WARP_THREADS * warp, WARP_THREADS * (warp + 1)) for warp in warps]
    files = [cta.files[name] for name in _FILES]
    return hash(tuple(each[..., one].tobytes() for one in of_warps for each in (where, *files)))


def _standing_at(cta: Cta, fibers: Sequence[Fiber]) -> NDArray[np.intp]:
    """For each thread the instruction that it stands at, and whether it waits there."""
    where = np.full(cta.threads, -1)
    for fiber in fibers:
        where[fiber.lanes] = 2 * fiber.pc + (fiber.wait is not None)
    return where


def states(cta: Cta, fibers: Sequence[Fiber]) -> list[tuple[int, int]]:
    """A number for the state of each warp, and of the block's shared memory."""
    where = _standing_at(cta, fibers)
    warps = [(warp, _state(cta, (warp,), where)) for warp in range(cta.warps)]
    return [*warps, (-1, hash(cta.shared.data.tobytes()))]
