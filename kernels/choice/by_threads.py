"""Which tile a product gets whose operands threads load, and how long it takes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from triton_ext.kernels.choice.problem import Problem

MOST_TILES = 1024
"""How many tiles may be cut along K: each has a counter."""


@dataclass(frozen=True)
class ThreadTile:
    """What a block of `matmul_by_threads` computes.

    Attributes:
        block_m, block_n: rows and columns of C.
        block_k: elements of K that are loaded at a time.
        num_warps: of the block.
        stages: how many such loads are on their way, where they are asynchronous.
    """

    block_m: int
    block_n: int
    block_k: int
    num_warps: int = 4
    stages: int = 3

    @property
    def loads(self) -> int:
        """How many parts of a tile are asked for at a time, in 64 registers of a thread."""
        return max(1, min(16, 64 * 32 * self.num_warps // (self.block_m * self.block_n)))


TILES = (
    ThreadTile(16, 16, 256), ThreadTile(16, 32, 256), ThreadTile(64, 16, 128),
    ThreadTile(16, 128, 128, 8), ThreadTile(64, 32, 128), ThreadTile(64, 64, 64),
    ThreadTile(128, 64, 64, 8), ThreadTile(128, 128, 64, 8),
)  # fmt: skip
NARROW = tuple(replace(tile, block_k=tile.block_k // 2) for tile in TILES)
"""Those where elements are loaded one by one: with twice as many at a time, threads spilled."""


class ThreadDivision(NamedTuple):
    """A tile, and into how many parts along K those of a problem are cut."""

    tile: ThreadTile
    splits: int


def divisions(problem: Problem, units: tuple[int, int]) -> Iterator[ThreadDivision]:
    """Those that are considered: whole tiles, and as many parts as the SMs have room for.

    Args:
        units: A's and B's, in elements.
    """
    for tile in NARROW if 1 in units else TILES:
        tiles = tiles_of(tile, problem)
        steps = math.ceil(problem.k / tile.block_k)
        yield ThreadDivision(tile, 1)
        for blocks in (1, 2):
            splits = min(steps, blocks * problem.multiprocessors // tiles)
            if splits > 1 and tiles <= MOST_TILES:
                yield ThreadDivision(tile, math.ceil(steps / math.ceil(steps / splits)))


def tiles_of(tile: ThreadTile, problem: Problem) -> int:
    """How many tiles all matrices of C have."""
    down, across = math.ceil(problem.m / tile.block_m), math.ceil(problem.n / tile.block_n)
    return problem.batch * down * across


@dataclass(frozen=True)
class ThreadConstants:
    """What is fitted; seconds, and bytes a second.

    Attributes:
        launch: what a launch takes at least.
        step: what waits in each turn of a block, however little it loads.
        load: what a warp's load takes of its SM.
        parts: what it takes to add up parts of tiles.
        memory_bytes: that the GPU reads and writes.
    """

    launch: float = 1.8e-6
    step: float = 0.6e-6
    load: float = 1.2e-9
    parts: float = 1.5e-6
    memory_bytes: float = 2.5e12


FITTED = ThreadConstants()


def thread_seconds(
    problem: Problem, units: tuple[int, int], division: ThreadDivision,
    constants: ThreadConstants = FITTED,
) -> float:  # fmt: skip
    """The seconds that a product of 16 bits is predicted to take.

    Args:
        units: A's and B's, in elements.
    """
    tile, splits = division
    turns = math.ceil(math.ceil(problem.k / tile.block_k) / splits)
    blocks = math.ceil(tiles_of(tile, problem) * splits / problem.multiprocessors)
    rows = tile.block_m / units[0] + tile.block_n / units[1]
    loads = blocks * rows * tile.block_k / 32
    m, n, k = problem.m, problem.n, problem.k
    elements = problem.batch * (m * k + k * n + m * n)
    return (
        constants.launch
        + turns * (constants.step + loads * constants.load)
        + constants.parts * (splits > 1)
        + 2 * elements / constants.memory_bytes
    )


def best_division(problem: Problem, units: tuple[int, int]) -> tuple[ThreadDivision, float]:
    """That which is predicted to be the fastest, and its seconds."""
    found = {each: thread_seconds(problem, units, each) for each in divisions(problem, units)}
    best = min(found, key=found.__getitem__)
    return best, found[best]
