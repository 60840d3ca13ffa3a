"""How `kernels.device.gemv` cuts a product of one to four vectors, and how long it takes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from triton_ext.kernels.choice.problem import Problem

MOST_VECTORS = 4
"""How many rows of A, or columns of B, it takes at most."""
CHUNK = 8
"""Elements of 16 bits in 16 bytes, and warps of a block."""


@dataclass(frozen=True)
class GemvTile:
    """What a block of `gemv` loads at a time.

    Attributes:
        rows: in the matrix's memory, of each warp.
        chunks: of 8 elements, of each row; a multiple of 32.
    """

    rows: int
    chunks: int
    num_warps: int = CHUNK

    def outputs(self, k_major: bool) -> int:
        """How many a block makes of each vector. `k_major`: whether K is the matrix's contiguous
        dimension."""
        return CHUNK * (self.rows if k_major else self.chunks - 1)

    def depth(self, k_major: bool) -> int:
        """How many elements of K it loads at a time."""
        return CHUNK * (self.chunks if k_major else self.rows)

    def sums(self, vectors: int, k_major: bool) -> int:
        """How many it keeps where K is cut."""
        return padded(vectors) * CHUNK * (self.rows if k_major else self.chunks)


K_MAJOR_TILES = tuple(
    GemvTile(*each) for each in ((1, 64), (1, 128), (1, 256), (2, 64), (4, 32), (4, 64), (8, 32))
)
OTHER_TILES = tuple(GemvTile(*each) for each in ((4, 32), (8, 32), (16, 32), (4, 64)))
MOST_FACTORS = 256
"""Chunks of vectors in registers at a time, where K is contiguous: with more, threads spill."""


def padded(vectors: int) -> int:
    """The power of two that they are padded to."""
    return 1 << (vectors - 1).bit_length()


@dataclass(frozen=True)
class GemvConstants:
    """What is guessed; seconds, and bytes a second.

    Attributes:
        launch: what a launch takes at least.
        turn: what a block waits for what it loads.
        parts, part: what it takes to add up parts of sums, and each of them.
        memory_bytes: that the GPU reads.
        resident: how many blocks an SM runs at a time.
    """

    launch: float = 1.3e-6
    turn: float = 0.8e-6
    parts: float = 1.4e-6
    part: float = 5e-8
    memory_bytes: float = 3.8e12
    resident: int = 2


FITTED = GemvConstants()


def gemv_divisions(problem: Problem, k_major: bool) -> Iterator[tuple[GemvTile, int]]:
    """Tiles that are considered, and into how many parts K is cut."""
    outputs = max(problem.m, problem.n)
    room = FITTED.resident * problem.multiprocessors
    vectors = padded(min(problem.m, problem.n))
    for tile in K_MAJOR_TILES if k_major else OTHER_TILES:
        if k_major and vectors * tile.chunks > MOST_FACTORS:
            continue
        blocks = problem.batch * math.ceil(outputs / tile.outputs(k_major))
        turns = math.ceil((problem.k + CHUNK - 1) / tile.depth(k_major))
        for splits in dict.fromkeys((1, room // blocks // 2, room // blocks)):
            if 1 <= splits <= turns:
                yield tile, math.ceil(turns / math.ceil(turns / splits))


def gemv_seconds(
    problem: Problem, k_major: bool, tile: GemvTile, splits: int,
    constants: GemvConstants = FITTED,
) -> float:  # fmt: skip
    """The seconds that a product of 16 bits is predicted to take."""
    outputs, k = max(problem.m, problem.n), problem.k
    vectors = min(problem.m, problem.n)
    blocks = problem.batch * math.ceil(outputs / tile.outputs(k_major)) * splits
    turns = math.ceil(math.ceil((k + CHUNK - 1) / tile.depth(k_major)) / splits)
    waits = math.ceil(blocks / (constants.resident * problem.multiprocessors)) * turns
    moved = 2 * problem.batch * (outputs * k + vectors * (outputs + k)) / constants.memory_bytes
    adding = constants.parts + constants.part * splits if splits > 1 else 0.0
    return constants.launch + max(waits * constants.turn, moved) + adding
