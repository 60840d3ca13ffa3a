"""Where lanes of a warp that part at a branch meet again.

PTX lets each lane go its own way for ever. ptxas has the lanes that part at a branch wait for each
other at the branch's immediate post-dominator, and kernels rely on it: LLVM copies a loop of waits
into both sides of a branch on lane 0, which else could leave it alone, and complete a phase that
its siblings have yet to see. So lanes wait there here, too; but not for ever, as they could in a
program that is right by the letter of PTX: when nothing in the machine can go on, they do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.program import Program
from triton_ext.emulator.decode.step import Wait
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.hardware.architecture import WARP_THREADS


class _Meeting:
    """Threads that are to come to an instruction.

    Attributes:
        coming: which of the block's they are, (warps, 32).
        missed: the warps of which some are, (warps,).
    """

    __slots__ = ("coming", "missed")

    def __init__(self, warps: int) -> None:
        self.coming = np.zeros((warps, WARP_THREADS), np.bool_)
        self.missed = np.zeros(warps, np.bool_)

    def without(self, lanes: Lanes) -> None:
        """Threads have come, or will not."""
        self.coming.ravel()[lanes] = False
        self.coming.any(axis=1, out=self.missed)


class Meetings:
    """Those of one block.

    Args:
        program: what they run; None: lanes do not meet.
        threads: of the block.

    Attributes:
        open: those at which some have yet to come, by the number of the instruction.
    """

    def __init__(self, program: Program | None, threads: int) -> None:
        self.open: dict[int, _Meeting] = {}
        self._program, self._warps = program, -(-threads // WARP_THREADS)

    def part(self, branch: int, lanes: Lanes, sides: NDArray[Any]) -> None:
        """Lanes go different ways at a branch: those of one warp are to meet again.

        Args:
            branch: its number.
            sides: the way of each lane, (lanes,).
        """
        at = None if self._program is None else self._program.meeting_points.get(branch)
        if at is None:
            return
        threads = lane_sets.indices(lanes)
        warps = threads // WARP_THREADS
        if warps[0] != warps[-1]:
            starts = np.flatnonzero(np.diff(warps, prepend=-1))
            parted = np.minimum.reduceat(sides, starts) != np.maximum.reduceat(sides, starts)
            if not parted.any():
                return
            if not parted.all():
                threads = threads[np.repeat(parted, np.diff(starts, append=len(threads)))]
            warps = warps[starts[parted]]
        meeting = self.open.get(at)
        if meeting is None:
            meeting = self.open[at] = _Meeting(self._warps)
        meeting.coming.ravel()[threads] = True
        meeting.missed[warps] = True

    def arrive(self, at: int, lanes: Lanes) -> list[tuple[Lanes, Wait | None]] | None:
        """Lanes come to an instruction at which some are to meet.

        Returns:
            Which of them wait for others of their warps, warp by warp, and the rest, if any have
            to; [] if the last ones of their warps have come; None if none of them was to come.
        """
        meeting = self.open[at]
        came: NDArray[np.bool_] = meeting.coming.ravel()[lanes].copy()
        if not came.any():
            return None
        self._without(at, meeting, lanes)
        threads = lane_sets.indices(lanes)
        warps = threads // WARP_THREADS
        staying = came & meeting.missed[warps]
        found: list[tuple[Lanes, Wait | None]] = [
            (lane_sets.pack(threads[staying & (warps == warp)]), self._wait(meeting, warp))
            for warp in np.unique(warps[staying]).tolist()
        ]
        if found and not staying.all():
            found.append((lane_sets.pack(threads[~staying]), None))
        return found

    def awaits(self, lanes: Lanes) -> bool:
        """Whether some of the lanes are to come somewhere."""
        return any(each.coming.ravel()[lanes].any() for each in self.open.values())

    def leave(self, lanes: Lanes) -> None:
        """Lanes have ended."""
        for at, meeting in [*self.open.items()]:
            self._without(at, meeting, lanes)

    def _without(self, at: int, meeting: _Meeting, lanes: Lanes) -> None:
        meeting.without(lanes)
        if not meeting.missed.any():
            del self.open[at]

    @staticmethod
    def _wait(meeting: _Meeting, warp: int) -> Wait:
        return Wait(
            lambda: not meeting.missed[warp],
            lambda: "waits for the rest of its warp, at the end of a branch",
            again=True,
            patient=True,
        )
