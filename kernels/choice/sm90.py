"""Which kernel to use for a problem on Hopper: the one with the shortest predicted time.

What is minimized is the time of a product in a stream of others, on an otherwise idle GPU: what
`limits` says, and what these leave unexplained, which is learnt (`corrections`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from triton_ext.hardware.operand import INSTRUCTION_K_BYTES
from triton_ext.kernels.choice.candidates import ALL_ROWS, copied_rows, unchecked_candidates
from triton_ext.kernels.choice.corrections import learnt
from triton_ext.kernels.choice.features import features
from triton_ext.kernels.choice.limits import FITTED, limited_seconds
from triton_ext.kernels.choice.overheads import turn_seconds
from triton_ext.kernels.choice.problem import Problem
from triton_ext.kernels.choice.table import Array, Table, ceil, divided
from triton_ext.kernels.element_types import FP32_SCALE_BLOCK
from triton_ext.kernels.product import ProductSpec
from triton_ext.kernels.registers import FP32_RUN, may_accumulate_in_fp32
from triton_ext.kernels.shared_memory import segments
from triton_ext.kernels.spec import KernelSpec
from triton_ext.kernels.tile import Sm90Tile

NEAR = 1.2
"""The correction decides among configurations that take so many times as long as the best by the
limits alone, at most."""
FP32_CYCLES, CLOCK = 240, 1.75e9
"""What a warpgroup that adds up sums waits for them, besides its own instructions, and the clock of
that, Hz: with 240 the choice costs least of 144 problems (benchmarks/notes/performance.md)."""
MOST_SEGMENTS = 3
"""Parts of a tile's columns with one fp32 scale each, where one consumer makes it."""
SHARED_ROWS = 128
"""Rows of a tile that two consumers may share."""
PINGPONG_K = {1: 6144, 2: 2048, 4: 2048}
PINGPONG_FLOPS = 2.5e12
"""The largest K (by the size of a cluster) and product for which two consumers take turns, where
there is more than one wave. In longer products the blocks drift apart, and do not find each other's
tiles in the L2 cache any more: 0.55 to 0.95 of the speed of a shared tile."""


@functools.lru_cache(maxsize=256)
def _table(product: ProductSpec, rows: tuple[int, int]) -> Table:
    specs = unchecked_candidates(replace(product, fp32_accumulation=False), *rows)
    return Table.of([*_in_fp32(specs)] if product.fp32_accumulation else specs)


def _in_fp32(specs: Iterable[KernelSpec]) -> Iterator[KernelSpec]:
    """Those that may be accumulated in fp32; and of their tiles divided between two consumers, who
    have room for more sums than one, or than two that take turns.
    """
    found: dict[KernelSpec, None] = {}
    for spec in specs:
        product, tile = replace(spec.product, fp32_accumulation=True), spec.tile
        if isinstance(tile, Sm90Tile):
            whole = tile.rows == SHARED_ROWS
            shared = replace(tile, consumers=2, pingpong=False) if whole else tile
            for each in (tile, shared):
                if may_accumulate_in_fp32(product, each) and _suits_scales(product, each):
                    found[KernelSpec.unchecked(product, spec.epilogue, each)] = None
    return iter(found)


def _suits_scales(product: ProductSpec, tile: Sm90Tile) -> bool:
    """Whether a tile is one that is worth its fp32 scales, if there are any.

    Where a scale is that of 128 columns, those of a tile should be one block: each further part,
    and each column with a scale of its own, is a product for each sum. Of eight tiles, the one of
    128 x 128 that two consumers share was the fastest in four of four problems of 4096 rows; those
    that the model preferred took up to 1.7 times as long (H100, benchmarks/notes/performance.md).
    """
    right = product.scale_rows[0 if tile.swap_ab else 1]
    if max(product.scale_rows) < FP32_SCALE_BLOCK or tile.consumers == 1:
        return right < FP32_SCALE_BLOCK or segments(product, tile) <= MOST_SEGMENTS
    whole = (tile.rows, tile.columns) == (SHARED_ROWS, FP32_SCALE_BLOCK)
    return right == FP32_SCALE_BLOCK and whole and not tile.pingpong


def table_of(specs: Iterable[KernelSpec], product: ProductSpec) -> Table:
    """The table of kernels for a product: of those that may be, where it is accumulated in fp32."""
    return Table.of([*_in_fp32(specs)] if product.fp32_accumulation else [*specs])


def candidates(product: ProductSpec, problem: Problem) -> Table:
    """The kernels that are considered for a problem, the better of equals first; some may be
    illegal.
    """
    return _table(product, (copied_rows(problem.m), copied_rows(problem.n)))


def limits(table: Table, problem: Problem) -> Array:
    """The seconds that each kernel takes by its limits alone, without what is learnt."""
    seconds = limited_seconds(table, problem)
    return fp32_seconds(table, problem, seconds) if _is_fp32(table) else seconds


def seconds(table: Table, problem: Problem) -> Array:
    """The seconds that each kernel takes, with what is learnt, if there is such."""
    rows, trees = features(table, problem), learnt()
    found: Array = np.exp(rows[:, 0] if trees is None else rows[:, 0] + trees(rows))
    return fp32_seconds(table, problem, found) if _is_fp32(table) else found


def _is_fp32(table: Table) -> bool:
    """Whether sums are added up in fp32: those of all kernels of a table, or of none."""
    return bool(table.specs) and table.specs[0].product.fp32_accumulation


def compare(table: Table, problem: Problem, every: bool = False) -> Iterator[KernelSpec]:
    """The legal kernels of a table, those with the shortest predicted time first; every one, or
    those that suit. Each is checked when its turn comes.

    Of equals one that loads the larger operand fewer times, then a swapped one for a wide C.
    """
    m, n = problem.m, problem.n
    limited = limits(table, problem)
    order = np.argsort(limited, kind="stable")
    if not every:
        order = order[suits(table, problem)[order]]
    first = next((i for i in order if table.specs[i].is_legal), None)
    if first is None:
        return
    number = int(np.searchsorted(limited[order], NEAR * limited[first], side="right"))
    near = table[order[:number]]
    predicted = seconds(near, problem)
    loads = ceil(m, near.block_m) if n >= m else ceil(n, near.block_n)
    is_wide = np.where(near.rows == ALL_ROWS, n >= 2 * m, m >= 4 * n)
    best = np.lexsort((near.swap_ab != is_wide, loads, predicted))
    for i in (*order[:number][best], *order[number:]):
        if table.specs[i].is_legal:
            yield table.specs[i]


def suits(table: Table, problem: Problem) -> Array:
    """Whether the limits above are what each configuration's time for a problem depends on.

    Not if a ping-pong kernel's blocks drift apart, or if clusters that divide K wait for others to
    end (they make one tile each, and nothing hides its end). In products larger than any that was
    surveyed, consumers share a tile, as what was measured there does.
    """
    work = divided(table, problem)
    is_huge = 2.0 * problem.batch * problem.m * problem.n * problem.k > PINGPONG_FLOPS
    longest = np.select([table.cluster_m == size for size in PINGPONG_K], [*PINGPONG_K.values()])
    in_turns = (problem.k <= longest) & (not is_huge)
    shared = (table.consumers > 1) | (not is_huge)
    return (work.tiles <= work.programs) | (
        (table.cluster_k == 1) & np.where(table.pingpong, in_turns, shared)
    )


def fp32_seconds(table: Table, problem: Problem, without: Array) -> Array:
    """The seconds if sums are added up in fp32: a consumer multiplies, waits, and adds in turn,
    while others may multiply, or the next of a run of products runs; together with the other
    limits, as these with each other.

    Args:
        without: the seconds if they are not.
    """
    work, constants = divided(table, problem), FITTED[problem.gpu]
    registers = table.rows / table.sharing_consumers * table.columns / 128
    product = registers * table.block_k * table.element_bytes / INSTRUCTION_K_BYTES
    added = registers + FP32_CYCLES
    in_run = np.maximum(product, (product + added) / 2) + added / FP32_RUN
    alone = np.where(table.partial_sums > 1, in_run, product + added)
    seconds = (work.waves + work.part) * work.k_tiles * alone / CLOCK
    overheads = constants.overheads
    taken = overheads.launch + seconds + turn_seconds(table, work, overheads)
    norm = constants.norm
    return (without**norm + taken**norm) ** (1 / norm)
