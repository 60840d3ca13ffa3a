"""What the learnt correction of Hopper's cost model looks at."""

from __future__ import annotations

import functools
import math

import numpy as np

from triton_ext.kernels.choice.gpus import MODELS
from triton_ext.kernels.choice.limits import (
    FITTED,
    LIMITS,
    aligned,
    limited_seconds,
    limits_of,
    of_operands,
)
from triton_ext.kernels.choice.overheads import parts_seconds, store_seconds
from triton_ext.kernels.choice.problem import Problem
from triton_ext.kernels.choice.table import Array, Division, Table, ceil, divided
from triton_ext.kernels.last_tile import SECTOR_BYTES
from triton_ext.kernels.rasterization import loaded, rows_together

FEATURES = (
    "seconds", *LIMITS, "longest", "m", "n", "k", "rows", "columns", "block_k", "stages",
    "consumers", "pingpong", "swap", "cluster", "cluster_columns", "k_blocks", "splits", "units",
    "loaded_rows", "element_bytes", "left_k_major", "right_k_major", "waves", "part", "parts",
    "tiles", "k_tiles", "store", "adding_up", "filled_rows", "filled_columns", "filled_k",
    "left_aligned", "right_aligned", "right_row_bytes", "blocks", "all_blocks", "turns", "overlap",
    "shape", "tiles_m", "tiles_n", "wave_bytes", "wave_rate", "wave_rows", "wave_columns",
    "shared", "left_ragged", "right_ragged", "edge", "gpu",
)  # fmt: skip
"""What the learnt correction looks at: times and sizes as logarithms, each limit over the longest,
what follows the products over the whole; fields of the kernel; how it divides the problem;
how much of the tiles lies inside; how rows in memory are aligned (and `_ragged`); how often a tile
goes round the pipeline; what the tiles that run together read, and share (`_wave`); which columns
are copied by themselves; which of `MODELS` the GPU is."""


def features(table: Table, problem: Problem) -> Array:
    """The values of `FEATURES`: (kernels, features)."""
    work = divided(table, problem)
    constants = FITTED[problem.gpu]
    limits = limits_of(table, work, problem, constants)
    seconds = limited_seconds(table, problem)
    longest = functools.reduce(np.maximum, limits)
    size = np.ones_like(seconds)
    columns: list[Array] = [
        np.log(seconds), *(np.log(np.maximum(each, 1e-9) / longest) for each in limits),
        np.log(longest / seconds), *(math.log2(each) * size for each in problem[:3]),
        table.rows, table.columns, table.block_k * table.element_bytes, table.stages,
        table.consumers, table.pingpong, table.swap_ab, table.cluster_m, table.cluster_n,
        table.cluster_k, table.split_k > 1, table.units, table.loaded_rows,
        table.element_bytes, table.left_k_major, table.right_k_major,
        work.waves, work.part, work.parts, np.log2(work.tiles), work.k_tiles,
        store_seconds(table, constants.overheads) / seconds,
        parts_seconds(table, work, constants.overheads) / seconds,
        work.rows / (table.rows * ceil(work.rows, table.rows)),
        work.columns / (table.columns * ceil(work.columns, table.columns)),
        problem.k / (work.k_tiles * table.cluster_k * table.block_k),
        *aligned(table, problem), table.right_row_bytes, table.cluster_size,
        np.log2(work.tiles * table.cluster_size * np.maximum(1, abs(work.parts))),
        work.k_tiles / table.stages, work.overlap, np.log2(work.rows / work.columns),
        np.log2(work.tiles_m), np.log2(work.tiles_n), *_wave(table, problem, work),
        *_ragged(table, problem), table.edge,
        MODELS.index(problem.gpu) * size,
    ]  # fmt: skip
    return np.stack(columns, axis=1)


def _wave(table: Table, problem: Problem, work: Division) -> list[Array]:
    """What the tiles that run together read: the bytes of A and B; these over the elements of C, as
    logarithms, too; in how many rows and columns they lie; and how much of what each needs by
    itself half of them need together, as a logarithm.
    """
    together = np.minimum(work.programs, work.tiles)
    tile = table.rows * table.cluster_m, table.columns * table.cluster_n
    grid = work.tiles_m, work.tiles_n
    order = rows_together(
        table.cluster_m, table.cluster_size, work.programs, work.tiles, *grid, *tile
    )
    group = np.minimum(order, work.tiles_m)
    rows = np.minimum(group * np.ceil(together / (group * work.tiles_n)), work.tiles_m)
    columns = np.minimum(work.tiles_n, np.ceil(together / group))
    read = rows * tile[0] + columns * tile[1]
    size = read * problem.k * table.element_bytes
    half = np.maximum(together / 2, 1)
    local = loaded(group, np.minimum(half, work.tiles_m * work.tiles_n), *grid, *tile)
    return [
        np.log2(size), np.log2(read / (together * tile[0] * tile[1])), rows, columns,
        np.log2(local / (half * (tile[0] + tile[1]))),
    ]  # fmt: skip


def _ragged(table: Table, problem: Problem) -> tuple[Array, Array]:
    """The fraction of the left and the right operand's tiles whose rows in memory end with the
    matrix, within a sector of 32 bytes: each takes the L2 cache the time of several lines.
    """

    def fraction(k_major: Array, size: int, tile: Array) -> Array:
        ends = ~k_major & (size * table.element_bytes % SECTOR_BYTES > 0)
        return np.where(ends, 1 / ceil(size, tile), 0.0)

    return of_operands(table, problem, fraction)
