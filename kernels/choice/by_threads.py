"""Which tile a product gets whose operands threads load, and how long it takes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from triton_ext.kernels.choice.gemv import MOST_VECTORS, GemvTile, gemv_divisions, gemv_seconds
from triton_ext.kernels.choice.problem import Problem
from triton_ext.kernels.element_types import Major

UNIT = 8
"""Elements of 16 bits in 16 bytes."""
UNITS = UNIT, 2, 1
"""How many of them threads load at a time."""
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
    ThreadTile(16, 16, 256), ThreadTile(16, 32, 256), ThreadTile(16, 128, 128, 8),
    ThreadTile(128, 128, 64, 8),
)  # fmt: skip
NARROW = tuple(replace(tile, block_k=tile.block_k // 2) for tile in TILES)
"""Those where an operand comes through registers: with twice as much at a time, threads spilled."""


class ThreadDivision(NamedTuple):
    """A tile, and into how many parts along K those of a problem are cut."""

    tile: ThreadTile | GemvTile
    splits: int


class ThreadAccess(NamedTuple):
    """How threads read the operands and write C.

    Attributes:
        a_unit, b_unit, c_unit: elements that are read and written at a time, at most.
        a_k_major, b_k_major: whether K is an operand's contiguous dimension.
        matrix: which operand is the matrix of a `gemv`; None if none can be.
    """

    a_unit: int
    b_unit: int
    c_unit: int
    a_k_major: bool
    b_k_major: bool
    matrix: Literal["a", "b"] | None = None

    @property
    def matrix_k_major(self) -> bool:
        """Whether K is the contiguous dimension of a gemv's matrix."""
        return self.a_k_major if self.matrix == "a" else self.b_k_major

    @property
    def is_narrow(self) -> bool:
        """Whether an operand is loaded through registers, by one or two elements."""
        return min(self.a_unit, self.b_unit) < UNIT


def divisions(problem: Problem, access: ThreadAccess) -> Iterator[ThreadDivision]:
    """Those that are considered: whole tiles, and as many parts as the SMs have room for."""
    for tile in NARROW if access.is_narrow else TILES:
        tiles = tiles_of(tile, problem)
        steps = math.ceil(problem.k / tile.block_k)
        yield ThreadDivision(tile, 1)
        for blocks in (1, 2):
            splits = min(steps, blocks * problem.multiprocessors // tiles)
            if splits > 1 and tiles <= MOST_TILES:
                yield ThreadDivision(tile, math.ceil(steps / math.ceil(steps / splits)))
    if access.matrix is not None:
        for each in gemv_divisions(problem, access.matrix_k_major):
            yield ThreadDivision(*each)


def tiles_of(tile: ThreadTile, problem: Problem) -> int:
    """How many tiles all matrices of C have."""
    down, across = math.ceil(problem.m / tile.block_m), math.ceil(problem.n / tile.block_n)
    return problem.batch * down * across


@dataclass(frozen=True)
class ThreadConstants:
    """What is fitted; seconds, and bytes a second.

    Attributes:
        launch: what a launch takes at least.
        turn: what waits in each turn of a block along K, however little it loads.
        load, copy: what a warp's load takes of its SM, through registers, and asynchronously.
        store: what 4096 elements of C take of an SM where they are stored one by one.
        parts, part: what it takes to add up parts of tiles, and for each 4096 elements of a part.
        memory_bytes: that the GPU reads and writes.
        beyond: elements that are read with each run of contiguous ones of a tile, besides them.
    """

    launch: float = 1.06e-6
    turn: float = 4.96e-7
    load: float = 2.3e-9
    copy: float = 9.68e-9
    store: float = 5.88e-7
    parts: float = 2.5e-6
    part: float = 4.87e-7
    memory_bytes: float = 3.38e12
    beyond: int = 16


FITTED = ThreadConstants()
"""To one H200 (seeds 5201 to 5204 and 5211 to 5214 of the class "off 8" of
``benchmarks.problems``)."""


def thread_seconds(
    problem: Problem, access: ThreadAccess, division: ThreadDivision,
    constants: ThreadConstants = FITTED,
) -> float:  # fmt: skip
    """The seconds that a product of 16 bits is predicted to take."""
    tile, splits = division
    if isinstance(tile, GemvTile):
        return gemv_seconds(problem, access.matrix_k_major, tile, splits)
    m, n, k = problem.m, problem.n, problem.k
    turns = math.ceil(math.ceil(k / tile.block_k) / splits)
    blocks = math.ceil(tiles_of(tile, problem) * splits / problem.multiprocessors)
    loads = tile.block_m / access.a_unit + tile.block_n / access.b_unit
    loads *= tile.block_k / 32 * (constants.load if access.is_narrow else constants.copy)
    size = tile.block_m * tile.block_n / 4096
    stores = blocks * size * constants.store / min(access.c_unit, 4)
    a_run = tile.block_k if access.a_k_major else tile.block_m
    b_run = tile.block_k if access.b_k_major else tile.block_n
    read = m * k * (1 + constants.beyond / a_run) + k * n * (1 + constants.beyond / b_run)
    moved = 2 * problem.batch * (read + m * n) / constants.memory_bytes
    adding = constants.parts + constants.part * splits * size if splits > 1 else 0.0
    made = max(turns * (constants.turn + blocks * loads) + stores, moved)
    return constants.launch + made + adding


def best_division(problem: Problem, access: ThreadAccess) -> tuple[ThreadDivision, float]:
    """That which is predicted to be the fastest, and its seconds."""
    found = {each: thread_seconds(problem, access, each) for each in divisions(problem, access)}
    best = min(found, key=found.__getitem__)
    return best, found[best]


COPY_SECONDS, COPIED_BYTES_PER_SECOND = 1.1e-6, 1.75e12
"""What a launch of `copy_rows` takes, and how fast it reads and writes (the same problems)."""


def copying_seconds(problem: Problem, a: bool, b: bool, c: bool) -> float:
    """About how long the copies take that TMA needs of a product of 16 bits: of its operands in one
    launch, and of C, out of longer rows, in another."""
    m, n, k = problem.m, problem.n, problem.k
    elements = problem.batch * (m * k * a + k * n * b + m * n * c)
    return ((a or b) + c) * COPY_SECONDS + 2 * elements / COPIED_BYTES_PER_SECOND


def division_by_threads(
    problem: Problem, access: ThreadAccess, otherwise: float
) -> ThreadDivision | None:
    """The division of a product, if it is predicted to be faster than what else makes it."""
    division, seconds = best_division(problem, access)
    return division if seconds < otherwise else None


def access_of_contiguous(
    problem: Problem, majors: tuple[Major, Major], c_bytes: int
) -> ThreadAccess:
    """How threads read operands of 16 bits, and write C, that lie in contiguous memory."""
    m, n, k = problem.m, problem.n, problem.k
    a_k_major, b_k_major = (each == "K" for each in majors)
    inner = k if a_k_major else m, k if b_k_major else n
    a_unit, b_unit = (next(unit for unit in UNITS if each % unit == 0) for each in inner)
    c_unit = math.gcd(2 * UNIT // c_bytes, n)
    matrix: Literal["a", "b"] | None = None
    if m <= MOST_VECTORS and inner[1] >= UNIT:
        matrix = "b"
    elif m > MOST_VECTORS >= n and inner[0] >= UNIT:
        matrix = "a"
    return ThreadAccess(a_unit, b_unit, c_unit, a_k_major, b_k_major, matrix)
