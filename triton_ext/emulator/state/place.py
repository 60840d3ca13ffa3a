"""Where the threads of a block are: in the grid, on a multiprocessor, and in words."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.hardware.architecture import WARP_THREADS

Index = tuple[int, int, int]
"""(x, y, z) of a block in its grid, or their number along each axis."""


class Place:
    """Where the threads of a block are.

    Args:
        index: its own, in the grid.
        block: threads of a block along each axis.
        processor: the number of its multiprocessor.
        blocks: that run as one.

    Attributes:
        number, threads: (threads,): 0, 1, ... in the block; and (x, y, z) of these arrays.
    """

    def __init__(self, index: Index, block: Index, processor: Any, blocks: int = 1) -> None:
        self.index, self._processor = index, processor
        self.number: NDArray[np.intp] = np.tile(np.arange(math.prod(block)), blocks)
        x, y, _ = block
        self.threads = self.number % x, self.number // x % y, self.number // (x * y)

    def along(self, axis: int, lanes: Lanes) -> Any:
        """The x, y or z of the lanes' block: one for all, or (lanes,)."""
        return self.index[axis]

    def processor(self, lanes: Lanes) -> Any:
        """The number of the multiprocessor that the lanes run on, likewise."""
        return self._processor

    def blocks(self, lanes: Lanes) -> int:
        """The number of blocks that have a lane in the set."""
        return 1

    def describe(self, lanes: Lanes) -> str:
        """The block of lanes, and their warps."""
        warps = lane_sets.warps(lanes)
        text = f"block {self.index}, "
        if len(warps) == 1:
            text += f"warp {warps[0]}"
            if lane_sets.count(lanes) == 1:
                text += f", lane {int(lane_sets.indices(lanes)[0]) % WARP_THREADS}"
            return text
        return text + f"warps {', '.join(map(str, warps))}"
