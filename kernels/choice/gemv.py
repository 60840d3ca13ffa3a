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
    """What is fitted; seconds, and bytes a second.

    Attributes:
        launch: what a launch takes at least.
        k_major_turn, turn: what a block waits for what it loads, where K is the matrix's contiguous
            dimension, and where it is not.
        chunk, product: what a warp's chunk takes of its SM, and its product with each vector.
        k_major_product: how many times as much that is where K is contiguous.
        parts, part: what it takes to add up parts of sums, and each of them.
        k_major_bytes, memory_bytes: that the GPU reads.
    """

    launch: float = 1.53e-6
    k_major_turn: float = 4.32e-7
    turn: float = 5.91e-7
    chunk: float = 7.59e-9
    product: float = 9.89e-10
    k_major_product: float = 3.7
    parts: float = 1.06e-6
    part: float = 3.06e-8
    k_major_bytes: float = 4.6e12
    memory_bytes: float = 3.12e12


FITTED = GemvConstants()
"""To one H200 (seeds 5211 to 5214, at most 4 rows, of the class "off 8" of
``benchmarks.problems``)."""


def gemv_divisions(problem: Problem, k_major: bool) -> Iterator[tuple[GemvTile, int]]:
    """Tiles that are considered, and into how many parts K is cut: for as many blocks as SMs run at
    a time, or a part of these."""
    outputs, vectors = max(problem.m, problem.n), min(problem.m, problem.n)
    for tile in K_MAJOR_TILES if k_major else OTHER_TILES:
        if k_major and padded(vectors) * tile.chunks > MOST_FACTORS:
            continue
        blocks = problem.batch * math.ceil(outputs / tile.outputs(k_major))
        turns = math.ceil((problem.k + CHUNK - 1) / tile.depth(k_major))
        rooms = (
            problem.multiprocessors * each
            for each in range(1, resident(tile, vectors, k_major) + 1)
        )
        found = {
            math.ceil(turns / math.ceil(turns / min(turns, max(1, room // blocks))))
            for room in rooms
        }
        for splits in sorted({1, *found}):
            yield tile, splits


def resident(tile: GemvTile, vectors: int, k_major: bool) -> int:
    """About how many blocks an SM runs at a time, by the registers of their threads."""
    each = tile.chunks // 32
    factors = tile.rows * padded(vectors)
    if k_major:
        registers = 30 + 1.3 * each * (4 * tile.rows + 8 * padded(vectors) + factors)
    else:
        registers = 24 + each * (4 * tile.rows + 8 * padded(vectors)) + factors
    return max(1, int(65536 / (32 * tile.num_warps * registers)))


def gemv_seconds(
    problem: Problem, k_major: bool, tile: GemvTile, splits: int,
    constants: GemvConstants = FITTED,
) -> float:  # fmt: skip
    """The seconds that a product of 16 bits is predicted to take."""
    outputs, k = max(problem.m, problem.n), problem.k
    vectors = min(problem.m, problem.n)
    blocks = problem.batch * math.ceil(outputs / tile.outputs(k_major)) * splits
    turns = math.ceil(math.ceil((k + CHUNK - 1) / tile.depth(k_major)) / splits)
    on_each = math.ceil(blocks / problem.multiprocessors)
    at_a_time = min(on_each, resident(tile, vectors, k_major))
    turn, product, memory = constants.turn, constants.product, constants.memory_bytes
    if k_major:
        turn, memory = constants.k_major_turn, constants.k_major_bytes
        product *= constants.k_major_product
    work = tile.rows * tile.chunks / 32 * tile.num_warps
    work *= constants.chunk + product * padded(vectors)
    made = turns * (on_each / at_a_time * turn + on_each * work)
    moved = 2 * problem.batch * (outputs * k + vectors * (outputs + k)) / memory
    adding = constants.parts + constants.part * splits if splits > 1 else 0.0
    about_the_larger = math.sqrt(math.hypot(made**2, moved**2))
    return constants.launch + about_the_larger + adding
