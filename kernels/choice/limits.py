"""What limits a kernel on Hopper, in seconds; what a launch costs besides is in `overheads`:

- the tensor cores of the SMs that have a thread block, and what the power limit leaves of all;
- what an SM can load from the L2 cache: a tile of ROWS x COLUMNS needs (ROWS + COLUMNS) * K
  elements, less what a cluster shares;
- what all SMs can load from the L2 cache, in lines of 128 bytes. Where rows do not begin at lines,
  the 128 bytes of a tile's row are in two of them; and rows of a tile outside of the matrix take
  the time of several inside;
- what all SMs can load from memory: A, B and C once; and what the two SMs of a TPC can, together;
- the waves: tiles come in groups of as many as there are SMs, and the last group takes as long as a
  full one, unless its tiles are cut along K.

The constants are fitted by ``python -m benchmarks.fit``, but for the rates of gathered rows, which
are those of one product in three tiles (``benchmarks/notes``). All formulas are over many kernels
at a time (`Table`), so that a choice among a thousand takes a few milliseconds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from triton_ext.kernels.choice.gpus import GpuModel
from triton_ext.kernels.choice.overheads import Overheads, launch_seconds, turn_seconds
from triton_ext.kernels.choice.problem import Problem
from triton_ext.kernels.choice.table import Array, Division, Table, ceil, divided
from triton_ext.kernels.last_tile import LINE_BYTES


@dataclass(frozen=True)
class Constants:
    """What is fitted; seconds, and quantities a second.

    Attributes:
        tensor_flops: operations of an SM's tensor cores, with 16-bit operands.
        power_flops: of all SMs, as far as the power limit lets them.
        power_flops_8: the same with 8-bit operands.
        step: what a product of tiles takes longer than its operations.
        load_bytes: that an SM loads from the L2 cache, by TMA.
        gathering_bytes: the same if its warps copy rows of A one by one.
        gather_bytes: of such rows.
        copy: what each further copy of a product's tiles takes, where the loads are the limit.
        cache_bytes: that all SMs together load from the L2 cache.
        misaligned: the fraction by which a row of a tile in two lines takes longer.
        narrow: the part of a line's time that a row of a tile takes for what it is less than one.
        outside: what 128 bytes of a tile outside of the matrix add to the time of all SMs.
        k_outside: what 128 bytes beyond the end of K add to the time of a tile.
        k_partial: the same of a row that ends within 128 bytes.
        fetch_bytes: that the two SMs of a TPC together read from memory.
        memory_bytes: that the GPU reads from memory, when enough is in flight.
        reread: the fraction by which reading the larger operand takes longer if several blocks load
            the same of it, from the L2 cache.
        flight_bytes: in flight, of all SMs, at which 1 - 1/e of the memory's rate is reached.
        norm: the limits' power mean of so high a power is what they take together.
        overheads: what a launch costs besides.
    """

    tensor_flops: float = 6.5e12
    power_flops: float = 8.2e14
    power_flops_8: float = 1.7e15
    step: float = 4.73e-08
    load_bytes: float = 1.18e11
    gathering_bytes: float = 7.4e10
    gather_bytes: float = 3.5e10
    copy: float = 1.95e-08
    cache_bytes: float = 1.74e13
    misaligned: float = 1.01
    narrow: float = 0.507
    outside: float = 8.81e-11
    k_outside: float = 1.64e-09
    k_partial: float = 2.24e-09
    fetch_bytes: float = 8.58e10
    memory_bytes: float = 4.8e12
    reread: float = 0.372
    flight_bytes: float = 3.64e06
    norm: float = 6.42
    overheads: Overheads = field(default_factory=Overheads)


FITTED: Mapping[GpuModel, Constants] = {
    "h200": Constants(),
    "h100": Constants(
        memory_bytes=3.17e12, power_flops=9.37e14, power_flops_8=2.14e15, cache_bytes=1.21e13,
        reread=0.0703, load_bytes=1.03e11, overheads=Overheads(store_bytes=3.49e10),
    ),
}  # fmt: skip
"""To an H200, and, what differs, to an H100."""


def limits_of(table: Table, work: Division, problem: Problem, constants: Constants) -> list[Array]:
    """The seconds that each limit asks for, in the order of `LIMITS`."""
    loaded = table.block_k * table.element_bytes * _lines(table, problem, constants)
    return [
        _compute_seconds(table, work, loaded, constants),
        _power_seconds(table, work, constants),
        _memory_seconds(table, work, problem, constants),
        _fetch_seconds(table, work, problem, constants),
        _cache_seconds(table, work, loaded, constants),
    ]


LIMITS = ("compute", "power", "memory", "fetch", "cache")
"""The names of `limits_of`, in their order."""


def limited_seconds(table: Table, problem: Problem, constants: Constants | None = None) -> Array:
    """The seconds that each kernel takes by the limits alone, without what is learnt; by
    default with the constants of the problem's GPU.
    """
    constants = constants or FITTED[problem.gpu]
    work = divided(table, problem)
    limits = limits_of(table, work, problem, constants)
    whole, partial = _beyond_k(table, problem, work.k_tiles)
    turns = np.ceil(work.waves + work.part)
    longest = functools.reduce(np.maximum, limits)
    together = sum((limit / longest) ** constants.norm for limit in limits)
    return (
        longest * together ** (1 / constants.norm)
        + turns * (whole * constants.k_outside + partial * constants.k_partial)
        + launch_seconds(table, work, problem.multiprocessors, constants.overheads)
    )


def _lines(table: Table, problem: Problem, constants: Constants) -> Array:
    """The rows of both tiles that a block loads, each as many times as it takes longer for lying in
    two lines, or for being less than a line; a cluster shares them. In memory, the operands' rows
    follow one another.
    """

    left, right = (1 + constants.misaligned * (1 - each) for each in aligned(table, problem))
    narrow = 1 + constants.narrow * (LINE_BYTES / table.right_row_bytes - 1)
    rows = table.left_rows / table.cluster_n * left
    return rows + table.columns / table.cluster_m * right * narrow


def aligned(table: Table, problem: Problem) -> tuple[Array, Array]:
    """The fraction of the rows of the left and the right operand's tile that lie in one line: by
    how far apart rows are in memory, and where tiles begin in them.
    """

    def fraction(k_major: Array, size: int, tile: Array) -> Array:
        elements = np.where(tile < size, np.gcd(size, tile), size)
        stride = np.where(k_major, problem.k, elements) * table.element_bytes
        return np.gcd(stride, LINE_BYTES) / LINE_BYTES

    return of_operands(table, problem, fraction)


def of_operands(
    table: Table, problem: Problem, value: Callable[[Array, int, Array], Array]
) -> tuple[Array, Array]:
    """A value of the left and of the right operand, given whether K is contiguous, and of M or N
    the size and the tile's.
    """
    a = value(table.a_k_major, problem.m, table.block_m)
    b = value(table.b_k_major, problem.n, table.block_n)
    return np.where(table.swap_ab, b, a), np.where(table.swap_ab, a, b)


def _beyond_k(table: Table, problem: Problem, k_tiles: Array) -> tuple[Array, Array]:
    """How many rows of 128 bytes of a tile's last product lie beyond K, and how many partly do, in
    the block that has most of them.
    """
    k = problem.k
    end = np.minimum(k_tiles * table.cluster_k * table.block_k, k + table.block_k)
    elements = LINE_BYTES // table.element_bytes
    whole = partial = np.zeros_like(end)
    for k_major, rows in (
        (table.a_k_major, np.minimum(table.block_m, problem.m)),
        (table.b_k_major, np.minimum(table.block_n, problem.n)),
    ):
        beyond = (end // elements - ceil(k, elements)) * rows
        whole = whole + np.where(k_major, beyond, (end - k) * ceil(rows, elements))
        partial = partial + np.where(k_major, rows * (k % elements > 0), 0)
    return whole, partial


def _compute_seconds(table: Table, work: Division, loaded: Array, constants: Constants) -> Array:
    """The seconds of the waves; a tile takes what its SM's tensor cores or its loads take.

    A wgmma reads 64 rows of the left operand for however few columns: 128 bytes a cycle.
    """
    width = np.maximum(table.columns, (64 + table.columns) / 2)
    flops = 2 * table.rows * width * table.block_k
    rate = constants.tensor_flops * 2 / table.element_bytes
    step = flops / rate + constants.step
    copies = table.sharing_consumers + table.right_copies
    gathers = table.gathered_rows > 0
    loads = np.where(gathers, constants.gathering_bytes, constants.load_bytes)
    load = loaded / loads + (copies - 1) * constants.copy
    gathered = table.gathered_rows * table.block_k * table.element_bytes / constants.gather_bytes
    slowest = np.maximum(np.maximum(step, load), gathered)
    seconds = (work.waves + work.part) * work.k_tiles * slowest
    return seconds + turn_seconds(table, work, constants.overheads)


def _power_seconds(table: Table, work: Division, constants: Constants) -> Array:
    """The seconds that the operations take at the clock that the power limit leaves."""
    size = table.rows * table.cluster_size * table.columns * table.block_k * table.element_bytes
    rate = np.where(table.element_bytes == 1, constants.power_flops_8, 2 * constants.power_flops)
    return 2.0 * size * work.tiles * work.k_tiles / rate


def _memory_seconds(table: Table, work: Division, problem: Problem, constants: Constants) -> Array:
    """The seconds of moving A, B and C once, at the rate that the loads in flight allow."""
    m, n, k = problem[:3]
    blocks = work.programs * table.cluster_size
    needed = work.tiles * table.cluster_size * np.maximum(1, work.parts)
    is_short = (work.parts >= 0) & (work.waves == 0)
    blocks = np.where(is_short, np.minimum(blocks, needed), blocks)
    tile_bytes = np.minimum(work.rows, table.rows) + np.minimum(work.columns, table.columns)
    flight = blocks * table.stages * table.block_k * tile_bytes * table.element_bytes
    rate = constants.memory_bytes * (1 - np.exp(-flight / constants.flight_bytes))
    again = (ceil(m, table.block_m) if n >= m else ceil(n, table.block_n)) > 1
    read = (m + n) * float(k) + constants.reread * max(m, n) * k * again
    moved = table.element_bytes * read + table.c_bytes * (float(m) * n)
    return problem.batch * moved / rate


def _fetch_seconds(table: Table, work: Division, problem: Problem, constants: Constants) -> Array:
    """The seconds in which the busiest TPC reads its part of the larger operand from memory: of 67
    blocks, two share a TPC, and take twice as long as the others. Blocks that need the same part
    share what is read.
    """
    m, n, k, multiprocessors, *_ = problem
    tile = table.block_n if n >= m else table.block_m
    others = ceil(m, table.block_m) if n >= m else ceil(n, table.block_n)
    blocks = np.minimum(
        work.tiles * table.cluster_size * np.maximum(1, work.parts), multiprocessors
    )
    read = np.where(
        (work.waves == 0) & (work.parts >= 0),
        ceil(blocks, max(1, multiprocessors // 2)) * work.part,
        2 * (work.waves + work.part),
    )
    is_left = (n >= m) == table.swap_ab  # the operand that is larger
    together = table.cluster_k * np.where(is_left, table.cluster_n, table.cluster_m)
    size = tile * k * table.element_bytes
    return read * size / together / others / constants.fetch_bytes


def _cache_seconds(table: Table, work: Division, loaded: Array, constants: Constants) -> Array:
    """The seconds of all loads from the L2 cache, and of what lies outside of the matrix."""
    rows = table.left_rows * table.cluster_m
    columns = table.columns * table.cluster_n
    tiles_m, tiles_n = ceil(work.rows, rows), ceil(work.columns, columns)
    outside = np.zeros(len(table.specs))
    for along, across, size, inside in (
        (tiles_m, tiles_n, rows, work.rows),
        (tiles_n, tiles_m, columns, work.columns),
    ):
        beyond = (along * size - inside) * across
        outside += np.where(~work.overlap | (along == 1), beyond, 0)
    outside *= work.tiles / (tiles_m * tiles_n) * table.cluster_k
    outside *= ceil(table.block_k * table.element_bytes, LINE_BYTES)
    inside = work.tiles * loaded * table.cluster_size / constants.cache_bytes
    return work.k_tiles * (inside + outside * constants.outside)
