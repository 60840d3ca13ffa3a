"""Blocks in lock-step: blocks of one launch that run as if their warps were those of one block.

They know nothing of each other, each has a shared memory of its own, and instructions are executed
for all of them at once. Their warps, and the copies of these, are agents of one table of clocks;
what that says of agents of two blocks is never asked for. A barrier of the block holds all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cluster, Cta, Gpu
from triton_ext.emulator.state.clocks import Agents
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.loads import LastLoads
from triton_ext.emulator.state.memory import SHARED_BASE, Offsets
from triton_ext.emulator.state.place import Index, Place
from triton_ext.emulator.state.shared import SharedMemory
from triton_ext.emulator.state.stamps import GRANULE
from triton_ext.hardware.architecture import WARP_THREADS


class Lockstep(Cluster):
    """Blocks that run in lock-step, each a cluster of its own, as one block.

    Args:
        machine: what they run on.
        numbers: of the clusters.

    Attributes:
        warps: of each block.
    """

    def __init__(self, machine: Gpu, numbers: Sequence[int]) -> None:
        self.warps = machine.launch.threads // WARP_THREADS
        super().__init__(machine, *numbers)

    def _blocks(self) -> list[Cta]:
        size = SHARED_BASE + self.machine.launch.shared_bytes
        return [Cta(self, 0, LockstepPlace(self), LockstepShared(size, self))]

    def block_of(self, agents: Agents) -> NDArray[np.intp]:
        """Which of the blocks the agents, warps or their copies, are of."""
        found: NDArray[np.intp] = agents % (len(self.numbers) * self.warps) // self.warps
        return found

    def own(self, agents: Agents) -> NDArray[np.intp]:
        """What numbers the agents have in their blocks."""
        copies = agents >= len(self.numbers) * self.warps
        found: NDArray[np.intp] = agents % self.warps + copies * self.warps
        return found

    def agent(self, own: NDArray[np.int64], agents: Agents) -> NDArray[np.int64]:
        """The agents that have the numbers `own`, (agents, n), in the blocks of `agents`."""
        copies = own // self.warps * (len(self.numbers) * self.warps)
        return copies + own % self.warps + (self.block_of(agents) * self.warps)[:, None]


class LockstepPlace(Place):
    """The place of a `Lockstep`'s blocks: their threads follow each other, block by block."""

    def __init__(self, cluster: Lockstep) -> None:
        launch, numbers = cluster.machine.launch, cluster.numbers
        processors = np.repeat(
            numbers % cluster.machine.target.capability.multiprocessors, launch.threads
        )
        super().__init__(cluster.indices[0], launch.block, processors, len(numbers))
        self._each = launch.threads
        self._indices: list[Index] = [launch.blocks(n)[0] for n in numbers.tolist()]
        self._along = np.repeat(np.array(self._indices), self._each, axis=0).T

    def along(self, axis: int, lanes: Lanes) -> Any:
        return self._along[axis][lanes]

    def processor(self, lanes: Lanes) -> Any:
        return self._processor[lanes]

    def blocks(self, lanes: Lanes) -> int:
        if isinstance(lanes, slice):
            return int((lanes.stop - 1) // self._each - lanes.start // self._each + 1)
        return len(np.unique(lanes // self._each))

    def describe(self, lanes: Lanes) -> str:
        """The first block of the lanes, and its warps."""
        threads, each = lane_sets.indices(lanes), self._each
        block = int(threads[0]) // each
        warps = np.unique(threads[threads // each == block] % each // WARP_THREADS)
        return f"block {self._indices[block]}, warp{'s' * (len(warps) > 1)} " + ", ".join(
            map(str, warps)
        )


class LockstepShared(SharedMemory):
    """The shared memories of blocks in lock-step, one after the other.

    Args:
        size: that of one block's.
        blocks: they.
    """

    def __init__(self, size: int, blocks: Lockstep) -> None:
        super().__init__(size, blocks.clocks, len(blocks.numbers))
        self._blocks = blocks
        self._window = self.granules // len(blocks.numbers) * GRANULE
        self._loads = LockstepLoads(self.granules, blocks)

    def _placed(self, offsets: Offsets, width: int, agents: Agents) -> Offsets:
        self._check(offsets, width)
        return offsets + self._blocks.block_of(agents) * self._window


class LockstepLoads(LastLoads):
    """A row for each warp of a block: each block has its own part of it."""

    def __init__(self, granules: int, blocks: Lockstep) -> None:
        super().__init__(granules, blocks.clocks.agents)
        self._blocks = blocks
        self._add(np.arange(blocks.warps))
        self.warps = np.arange(blocks.warps)

    def _rows(self, agents: Agents) -> NDArray[np.intp]:
        return self._blocks.own(agents)

    def readers(self, agents: Agents) -> NDArray[np.intp]:
        return (self._blocks.block_of(agents) * self._blocks.warps)[:, None] + self.warps
