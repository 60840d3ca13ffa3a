"""Which configuration to use for a problem: the one with the shortest predicted time.

The model knows these limits, and what a launch costs besides:

- the tensor cores of the SMs that have a thread block, and what the power limit leaves of all;
- what an SM can load from the L2 cache: a tile of ROWS x COLUMNS needs (ROWS + COLUMNS) * K
  elements, less what a cluster shares;
- what all SMs can load from the L2 cache, in lines of 128 bytes. Where rows do not begin at lines,
  the 128 bytes of a tile's row are in two of them; and rows of a tile outside of the matrix take
  the time of several inside;
- what all SMs can load from memory: A, B and C once; and what the two SMs of a TPC can, together;
- the waves: tiles come in groups of as many as there are SMs, and the last group takes as long as a
  full one, unless its tiles are cut along K.

What these leave unexplained is learnt (`corrections`). What is minimised is the time of a product
in a stream of others, on an otherwise idle GPU. The constants are fitted by
``python -m benchmarks.fit``. All formulas are over many configurations at a time (`Table`), so that
a choice among a thousand takes a few milliseconds.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from triton_ext.hardware.architecture import SHARED_MEMORY_PER_BLOCK as SHARED_BYTES
from triton_ext.hardware.architecture import resident_clusters
from triton_ext.hardware.operand import INSTRUCTION_K_BYTES
from triton_ext.kernels.choice import corrections
from triton_ext.kernels.choice.candidates import (
    ALL_ROWS,
    candidates,
    copied_rows,
    unchecked_candidates,
)
from triton_ext.kernels.choice.gpus import MODELS, GpuModel
from triton_ext.kernels.config import (
    DEFAULTS,
    LEAST_K,
    LINE_BYTES,
    MOST_K,
    PROMOTED_RUN,
    SECTOR_BYTES,
    MatmulConfig,
)
from triton_ext.kernels.element_types import C_BYTES, Major
from triton_ext.kernels.order import loaded, rows_together

Array: TypeAlias = Any
"""A numpy array of numbers or truth values, one of each configuration."""


class Problem(NamedTuple):
    """A product C (M, N) = A (M, K) @ B (K, N), or a batch of them, on a GPU with so many SMs.

    Attributes:
        gpu: whose constants and correction count.
    """

    m: int
    n: int
    k: int
    multiprocessors: int
    batch: int = 1
    gpu: GpuModel = "h200"


@dataclass(frozen=True)
class Constants:
    """What is fitted; seconds, and quantities a second.

    Attributes:
        tensor_flops: operations of an SM's tensor cores, with 16-bit operands.
        power_flops: of all SMs, as far as the power limit lets them.
        power_flops_8: the same with 8-bit operands.
        step: what a product of tiles takes longer than its operations.
        load_bytes: that an SM loads from the L2 cache, by TMA.
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
        launch: from the end of the kernel before to the first product, and from the last product to
            the end.
        zero_bytes: of tiles whose rows are not all copied, that an SM fills with zeros at first.
        full: what it takes longer if not all blocks fit beside those of the kernel before.
        tile: from the last product of a tile to the first of the next, if consumers share it and it
            has 128x128 elements at least.
        store_bytes: that an SM stores, for the last tile, whose store nothing hides.
        half: what each sector takes besides of which it writes a part.
        cluster: what a launch takes longer if its blocks form clusters.
        part: what it takes to tell that a part of a tile is there, and to find out.
        part_bytes: of parts of a tile, that an SM writes and reads.
        exchange: what it takes until the blocks of a cluster that divide K have each other's sums.
        exchange_bytes: of a tile's sums, that an SM sends and adds up then.
    """

    tensor_flops: float = 6.5e12
    power_flops: float = 8.2e14
    power_flops_8: float = 1.7e15
    step: float = 4.73e-08
    load_bytes: float = 1.18e11
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
    launch: float = 8.62e-07
    zero_bytes: float = 2.69e11
    full: float = 6.43e-07
    tile: float = 3.18e-06
    store_bytes: float = 4.54e10
    half: float = 1.17e-09
    cluster: float = 6.3e-07
    part: float = 3.21e-06
    part_bytes: float = 7.73e10
    exchange: float = 1.01e-09
    exchange_bytes: float = 3.01e10


FITTED: Mapping[GpuModel, Constants] = {
    "h200": Constants(),
    "h100": Constants(
        memory_bytes=3.17e12, power_flops=9.37e14, power_flops_8=2.14e15, cache_bytes=1.21e13,
        reread=0.0703, load_bytes=1.03e11, store_bytes=3.49e10,
    ),
}  # fmt: skip
"""To an H200, and, what differs, to an H100."""
NEAR = 1.2
"""The correction decides among configurations that take so many times as long as the best by the
limits alone, at most."""
PROMOTION_CYCLES, CLOCK = 240, 1.75e9
"""What a warpgroup that adds up sums waits for them, besides its own instructions, and the clock of
that, Hz: by ``benchmarks.fit --promoted``."""
SHARED_ROWS = 128
"""Of a tile that two consumers may share."""
PINGPONG_K = {1: 6144, 2: 2048, 4: 2048}
PINGPONG_FLOPS = 2.5e12
"""The largest K (by the size of a cluster) and product for which two consumers take turns, where
there is more than one wave. In longer products the blocks drift apart, and do not find each other's
tiles in the L2 cache any more: 0.55 to 0.95 of the speed of a shared tile."""


@dataclass(frozen=True)
class Table:
    """Configurations of sm_90, and what the model asks of each, as arrays.

    Attributes:
        configs: the configurations.
        a_k_major, b_k_major, left_k_major, right_k_major: whether K is the contiguous dimension.
        right_copies: the tiles along K of which the right operand's tile consists.
        right_row_bytes: of a row of these, as it lies in memory; a line at most.
        left_rows: those of the left operand's tile that are copied.
        c_bytes: of an element of C.
        c_pieces: of a tile of C.
        others: the fields and properties of `MatmulConfig`.
    """

    configs: tuple[MatmulConfig, ...]
    a_k_major: Array
    b_k_major: Array
    left_k_major: Array
    right_k_major: Array
    right_copies: Array
    right_row_bytes: Array
    left_rows: Array
    c_bytes: Array
    c_pieces: Array
    half_sectors: Array
    rows: Array
    columns: Array
    block_m: Array
    block_n: Array
    block_k: Array
    element_bytes: Array
    stages: Array
    consumers: Array
    shares: Array
    edge: Array
    units: Array
    loaded_rows: Array
    pingpong: Array
    swap: Array
    residual: Array
    cluster: Array
    cluster_columns: Array
    k_blocks: Array
    blocks: Array
    max_splits: Array
    partial_sums: Array
    shared_memory_bytes: Array

    @classmethod
    def of(cls, configs: Sequence[MatmulConfig]) -> Table:
        """The table of these configurations."""
        derived = {
            "a_k_major": [config.a_major == "K" for config in configs],
            "b_k_major": [config.b_major == "K" for config in configs],
            "left_k_major": [config.left_major == "K" for config in configs],
            "right_k_major": [config.right_major == "K" for config in configs],
            "right_copies": [config.block_k // config.right_unit[0] for config in configs],
            "right_row_bytes": [_right_row_bytes(config) for config in configs],
            "left_rows": [config.loaded_rows or config.rows for config in configs],
            "c_bytes": [C_BYTES[config.c_type] for config in configs],
            "c_pieces": [config.columns // config.c_columns for config in configs],
        }
        own = [each.name for each in fields(cls) if each.name not in ("configs", *derived)]
        values = {name: [getattr(config, name) for config in configs] for name in own}
        arrays = {name: np.array(found) for name, found in (derived | values).items()}
        return cls(tuple(configs), **arrays)

    def __getitem__(self, chosen: Array) -> Table:
        """Those at such positions."""
        configs = tuple(self.configs[i] for i in chosen)
        arrays = {
            name: value[chosen] for name, value in vars(self).items() if name != "configs"
        }  # fmt: skip
        return Table(configs, **arrays)


def _right_row_bytes(config: MatmulConfig) -> int:
    """The bytes of a row of the right operand's tile in memory; a line at most."""
    if config.right_major == "K":
        elements = config.right_unit[0]
    else:
        elements = min(config.right_unit[1], config.columns)
    return min(LINE_BYTES, elements * config.element_bytes)


@dataclass(frozen=True)
class _Work:
    """A problem as each configuration divides it; rows and columns of what is computed.

    Attributes:
        rows, columns: of C, or of its transpose.
        tiles_m, tiles_n, tiles: of C, and of the batch; each of a cluster.
        k_tiles: of a tile of C; of each block, if those of a cluster divide K.
        programs: how many clusters run at a time.
        waves: of whole tiles.
        part: of a tile, that a block makes after them; 0 if nothing is left.
        parts: how many parts the blocks of a tile wait for: 0 if it is whole, negative if the last
            block adds up all.
        overlap: whether the last tiles overlap others.
    """

    rows: Array
    columns: Array
    tiles_m: Array
    tiles_n: Array
    tiles: Array
    k_tiles: Array
    programs: Array
    waves: Array
    part: Array
    parts: Array
    overlap: Array


def _divided(table: Table, problem: Problem) -> _Work:
    """As `kernels.device.scheduler` does it."""
    m, n, k, multiprocessors, batch, _ = problem
    rows, columns = np.where(table.swap, n, m), np.where(table.swap, m, n)
    tiles_m = _ceil(rows, table.rows * table.cluster)
    tiles_n = _ceil(columns, table.columns * table.cluster_columns)
    tiles = batch * tiles_m * tiles_n
    sizes = sorted(set(table.blocks.tolist()))  # `np.unique` imports 50 ms of numpy first
    room = [resident_clusters(multiprocessors, size) for size in sizes]
    programs = np.array(room)[np.searchsorted(sizes, table.blocks)]
    k_tiles = _ceil(k, table.k_blocks * table.block_k)
    waves, left = np.divmod(tiles, programs)
    is_cut = (left > 0) & (table.max_splits > 1)
    some = np.maximum(left, 1)
    most = np.maximum(np.minimum(table.max_splits, k_tiles // LEAST_K), 1)
    splits = np.minimum(programs // some, most)
    blocks = np.minimum(programs, some * most)
    uneven = is_cut & (np.minimum(tiles_m, tiles_n) == 1) & (k_tiles < MOST_K)
    uneven &= 8 * left * splits < 7 * blocks
    part = np.where(uneven, left / blocks, np.where(is_cut, 1 / splits, left > 0))
    parts = np.where(uneven, -_ceil(blocks, some) - 1, np.where(is_cut & (splits > 1), splits, 0))
    overlap = (table.max_splits == 1) | (left == 0) | ((waves == 0) & ~uneven)
    overlap &= ~table.residual
    return _Work(
        rows, columns, tiles_m, tiles_n, tiles, k_tiles, programs, waves, part, parts, overlap
    )


def _ceil(size: Array, step: Array) -> Array:
    """How many steps a size takes."""
    return -(-size // step)


def predicted_seconds(config: MatmulConfig, *problem: Any) -> float:
    """The seconds that a configuration takes for a `Problem`."""
    return float(corrected_seconds(Table.of([config]), Problem(*problem))[0])


def corrected_seconds(table: Table, problem: Problem) -> Array:
    """The seconds that each configuration takes, with what is learnt."""
    rows = features(table, problem)
    return np.exp(rows[:, 0] + corrections.learnt()(rows))


def promoted_seconds(
    table: Table, problem: Problem, without: Array, waited: float = PROMOTION_CYCLES
) -> Array:
    """The seconds if sums are promoted: a consumer multiplies, waits, and adds in turn, while
    others may multiply, or the next of a run of products runs; together with the other limits, as
    these with each other.

    Args:
        without: the seconds if they are not.
        waited: cycles, see `PROMOTION_CYCLES`.
    """
    work, constants = _divided(table, problem), FITTED[problem.gpu]
    registers = table.rows / table.shares * table.columns / 128
    product = registers * table.block_k * table.element_bytes / INSTRUCTION_K_BYTES
    added = registers + waited
    in_run = np.maximum(product, (product + added) / 2) + added / PROMOTED_RUN
    alone = np.where(table.partial_sums > 1, in_run, product + added)
    seconds = (work.waves + work.part) * work.k_tiles * alone / CLOCK
    taken = constants.launch + seconds + _turn_seconds(table, work, constants)
    norm = constants.norm
    return (without**norm + taken**norm) ** (1 / norm)


def _limits(table: Table, work: _Work, problem: Problem, constants: Constants) -> list[Array]:
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
what follows the products over the whole; fields of the configuration; how it divides the problem;
how much of the tiles lies inside; how rows in memory are aligned (and `_ragged`); how often a tile
goes round the ring; what the tiles that run together read, and share (`_wave`); which columns are
copied by themselves; which of `MODELS` the GPU is."""


def features(table: Table, problem: Problem) -> Array:
    """The values of `FEATURES`: (configurations, features)."""
    work = _divided(table, problem)
    constants = FITTED[problem.gpu]
    limits = _limits(table, work, problem, constants)
    seconds = limited_seconds(table, problem)
    longest = functools.reduce(np.maximum, limits)
    size = np.ones_like(seconds)
    columns: list[Array] = [
        np.log(seconds), *(np.log(np.maximum(each, 1e-9) / longest) for each in limits),
        np.log(longest / seconds), *(math.log2(each) * size for each in problem[:3]),
        table.rows, table.columns, table.block_k * table.element_bytes, table.stages,
        table.consumers, table.pingpong, table.swap, table.cluster, table.cluster_columns,
        table.k_blocks, table.max_splits > 1, table.units, table.loaded_rows,
        table.element_bytes, table.left_k_major, table.right_k_major,
        work.waves, work.part, work.parts, np.log2(work.tiles), work.k_tiles,
        _store_seconds(table, constants) / seconds,
        _parts_seconds(table, work, constants) / seconds,
        work.rows / (table.rows * _ceil(work.rows, table.rows)),
        work.columns / (table.columns * _ceil(work.columns, table.columns)),
        problem.k / (work.k_tiles * table.k_blocks * table.block_k),
        *_aligned(table, problem), table.right_row_bytes, table.blocks,
        np.log2(work.tiles * table.blocks * np.maximum(1, abs(work.parts))),
        work.k_tiles / table.stages, work.overlap, np.log2(work.rows / work.columns),
        np.log2(work.tiles_m), np.log2(work.tiles_n), *_wave(table, problem, work),
        *_ragged(table, problem), table.edge,
        MODELS.index(problem.gpu) * size,
    ]  # fmt: skip
    return np.stack(columns, axis=1)


def _wave(table: Table, problem: Problem, work: _Work) -> list[Array]:
    """Of the tiles that run together: the bytes of A and B that they read; these over the elements
    of C, as logarithms, too; in how many rows and columns they lie; and of half of them how much of
    what each needs by itself they need together, as a logarithm.
    """
    together = np.minimum(work.programs, work.tiles)
    tile = table.rows * table.cluster, table.columns * table.cluster_columns
    grid = work.tiles_m, work.tiles_n
    order = rows_together(table.cluster, table.blocks, work.programs, work.tiles, *grid, *tile)
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


def limited_seconds(table: Table, problem: Problem, constants: Constants | None = None) -> Array:
    """The seconds that each configuration takes by the limits alone, without what is learnt; by
    default with the constants of the problem's GPU.
    """
    constants = constants or FITTED[problem.gpu]
    work = _divided(table, problem)
    limits = _limits(table, work, problem, constants)
    whole, partial = _beyond_k(table, problem, work.k_tiles)
    turns = np.ceil(work.waves + work.part)
    longest = functools.reduce(np.maximum, limits)
    together = sum((limit / longest) ** constants.norm for limit in limits)
    return (
        constants.launch
        + _zeroed(table, work) / constants.zero_bytes
        + constants.full * _crowded(table, work, problem.multiprocessors)
        + constants.cluster * (table.blocks > 1)
        + longest * together ** (1 / constants.norm)
        + turns * (whole * constants.k_outside + partial * constants.k_partial)
        + _store_seconds(table, constants)
        + _parts_seconds(table, work, constants)
        + _exchange_seconds(table, constants)
    )


def suits(table: Table, problem: Problem) -> Array:
    """Whether the limits above are what each configuration's time for a problem depends on.

    Not if a ping-pong kernel's blocks drift apart, or if clusters that divide K wait for others to
    end (they make one tile each, and nothing hides its end). In products larger than any that was
    surveyed, consumers share a tile, as what was measured there does.
    """
    work = _divided(table, problem)
    is_huge = 2.0 * problem.batch * problem.m * problem.n * problem.k > PINGPONG_FLOPS
    longest = np.select([table.cluster == size for size in PINGPONG_K], [*PINGPONG_K.values()])
    in_turns = (problem.k <= longest) & (not is_huge)
    shared = (table.consumers > 1) | (not is_huge)
    return (work.tiles <= work.programs) | (
        (table.k_blocks == 1) & np.where(table.pingpong, in_turns, shared)
    )


def _lines(table: Table, problem: Problem, constants: Constants) -> Array:
    """The rows of both tiles that a block loads, each as many times as it takes longer for lying in
    two lines, or for being less than a line; a cluster shares them. In memory, the operands' rows
    follow one another.
    """

    left, right = (1 + constants.misaligned * (1 - each) for each in _aligned(table, problem))
    narrow = 1 + constants.narrow * (LINE_BYTES / table.right_row_bytes - 1)
    rows = table.left_rows / table.cluster_columns * left
    return rows + table.columns / table.cluster * right * narrow


def _aligned(table: Table, problem: Problem) -> tuple[Array, Array]:
    """The fraction of the rows of the left and the right operand's tile that lie in one line: by
    how far apart rows are in memory, and where tiles begin in them.
    """

    def fraction(k_major: Array, size: int, tile: Array) -> Array:
        elements = np.where(tile < size, np.gcd(size, tile), size)
        stride = np.where(k_major, problem.k, elements) * table.element_bytes
        return np.gcd(stride, LINE_BYTES) / LINE_BYTES

    return _of_operands(table, problem, fraction)


def _ragged(table: Table, problem: Problem) -> tuple[Array, Array]:
    """The fraction of the left and the right operand's tiles whose rows in memory end with the
    matrix, within a sector of 32 bytes: each takes the L2 cache the time of several lines.
    """

    def fraction(k_major: Array, size: int, tile: Array) -> Array:
        ends = ~k_major & (size * table.element_bytes % SECTOR_BYTES > 0)
        return np.where(ends, 1 / _ceil(size, tile), 0.0)

    return _of_operands(table, problem, fraction)


def _of_operands(
    table: Table, problem: Problem, value: Callable[[Array, int, Array], Array]
) -> tuple[Array, Array]:
    """A value of the left and of the right operand, given whether K is contiguous, and of M or N
    the size and the tile's.
    """
    a = value(table.a_k_major, problem.m, table.block_m)
    b = value(table.b_k_major, problem.n, table.block_n)
    return np.where(table.swap, b, a), np.where(table.swap, a, b)


def _beyond_k(table: Table, problem: Problem, k_tiles: Array) -> tuple[Array, Array]:
    """Of a tile's last product: how many rows of 128 bytes lie beyond K, and how many partly do, in
    the block that has most of them.
    """
    k = problem.k
    end = np.minimum(k_tiles * table.k_blocks * table.block_k, k + table.block_k)
    elements = LINE_BYTES // table.element_bytes
    whole = partial = np.zeros_like(end)
    for k_major, rows in (
        (table.a_k_major, np.minimum(table.block_m, problem.m)),
        (table.b_k_major, np.minimum(table.block_n, problem.n)),
    ):
        beyond = (end // elements - _ceil(k, elements)) * rows
        whole = whole + np.where(k_major, beyond, (end - k) * _ceil(rows, elements))
        partial = partial + np.where(k_major, rows * (k % elements > 0), 0)
    return whole, partial


def _crowded(table: Table, work: _Work, multiprocessors: int) -> Array:
    """The fraction of the blocks that wait for one of the kernel before to end."""
    resident = np.clip(SHARED_BYTES // table.shared_memory_bytes, 1, 4)
    blocks = work.tiles * table.blocks * np.maximum(1, work.parts)
    everywhere = (work.parts < 0) | ((work.parts != 0) & (work.waves > 0))
    blocks = np.where(everywhere, multiprocessors, np.minimum(blocks, multiprocessors))
    return np.clip((2 * blocks - multiprocessors * resident) / blocks, 0.0, 1.0)


def _zeroed(table: Table, work: _Work) -> Array:
    """The bytes of tiles of which some rows are not copied, as far as they are used."""
    stages = np.minimum(table.stages, work.k_tiles * np.ceil(work.waves + work.part))
    tile = table.rows * table.block_k * table.element_bytes
    return np.where(table.loaded_rows > 0, stages * tile, 0.0)


def _compute_seconds(table: Table, work: _Work, loaded: Array, constants: Constants) -> Array:
    """The seconds of the waves; a tile takes what its SM's tensor cores or its loads take.

    A wgmma reads 64 rows of the left operand for however few columns: 128 bytes a cycle.
    """
    width = np.maximum(table.columns, (64 + table.columns) / 2)
    flops = 2 * table.rows * width * table.block_k
    rate = constants.tensor_flops * 2 / table.element_bytes
    step = flops / rate + constants.step
    copies = table.shares + table.right_copies
    load = loaded / constants.load_bytes + (copies - 1) * constants.copy
    seconds = (work.waves + work.part) * work.k_tiles * np.maximum(step, load)
    return seconds + _turn_seconds(table, work, constants)


def _turn_seconds(table: Table, work: _Work, constants: Constants) -> Array:
    """The seconds between the tiles of a block, if its consumers share them."""
    turns = work.waves + (work.part > 0) + (work.parts < 0) - 1
    size = np.minimum(1.0, table.columns * np.minimum(table.rows, 128) / (128 * 128))
    return np.where(table.pingpong, 0, turns * constants.tile * size)


def _power_seconds(table: Table, work: _Work, constants: Constants) -> Array:
    """The seconds that the operations take at the clock that the power limit leaves."""
    size = table.rows * table.blocks * table.columns * table.block_k * table.element_bytes
    rate = np.where(table.element_bytes == 1, constants.power_flops_8, 2 * constants.power_flops)
    return 2.0 * size * work.tiles * work.k_tiles / rate


def _memory_seconds(table: Table, work: _Work, problem: Problem, constants: Constants) -> Array:
    """The seconds of moving A, B and C once, at the rate that the loads in flight allow."""
    m, n, k = problem[:3]
    blocks = work.programs * table.blocks
    asked = work.tiles * table.blocks * np.maximum(1, work.parts)
    is_short = (work.parts >= 0) & (work.waves == 0)
    blocks = np.where(is_short, np.minimum(blocks, asked), blocks)
    tile_bytes = np.minimum(work.rows, table.rows) + np.minimum(work.columns, table.columns)
    flight = blocks * table.stages * table.block_k * tile_bytes * table.element_bytes
    rate = constants.memory_bytes * (1 - np.exp(-flight / constants.flight_bytes))
    again = (_ceil(m, table.block_m) if n >= m else _ceil(n, table.block_n)) > 1
    read = (m + n) * float(k) + constants.reread * max(m, n) * k * again
    moved = table.element_bytes * read + table.c_bytes * (float(m) * n)
    return problem.batch * moved / rate


def _fetch_seconds(table: Table, work: _Work, problem: Problem, constants: Constants) -> Array:
    """The seconds in which the busiest TPC reads its part of the larger operand from memory: of 67
    blocks, two share a TPC, and take twice as long as the others. Blocks that need the same part
    share what is read.
    """
    m, n, k, multiprocessors, *_ = problem
    tile = table.block_n if n >= m else table.block_m
    others = _ceil(m, table.block_m) if n >= m else _ceil(n, table.block_n)
    blocks = np.minimum(work.tiles * table.blocks * np.maximum(1, work.parts), multiprocessors)
    read = np.where(
        (work.waves == 0) & (work.parts >= 0),
        _ceil(blocks, max(1, multiprocessors // 2)) * work.part,
        2 * (work.waves + work.part),
    )
    is_left = (n >= m) == table.swap  # the operand that is larger
    together = table.k_blocks * np.where(is_left, table.cluster_columns, table.cluster)
    size = tile * k * table.element_bytes
    return read * size / together / others / constants.fetch_bytes


def _cache_seconds(table: Table, work: _Work, loaded: Array, constants: Constants) -> Array:
    """The seconds of all loads from the L2 cache, and of what lies outside of the matrix."""
    rows = table.left_rows * table.cluster
    columns = table.columns * table.cluster_columns
    tiles_m, tiles_n = _ceil(work.rows, rows), _ceil(work.columns, columns)
    outside = np.zeros(len(table.configs))
    for along, across, size, inside in (
        (tiles_m, tiles_n, rows, work.rows),
        (tiles_n, tiles_m, columns, work.columns),
    ):
        beyond = (along * size - inside) * across
        outside += np.where(~work.overlap | (along == 1), beyond, 0)
    outside *= work.tiles / (tiles_m * tiles_n) * table.k_blocks
    outside *= _ceil(table.block_k * table.element_bytes, LINE_BYTES)
    inside = work.tiles * loaded * table.blocks / constants.cache_bytes
    return work.k_tiles * (inside + outside * constants.outside)


def _store_seconds(table: Table, constants: Constants) -> Array:
    """The seconds of storing a tile of C: its bytes, and sectors that are written in part."""
    size = table.rows * table.columns / table.k_blocks
    stored = size * table.c_bytes / constants.store_bytes
    return stored + table.rows * table.half_sectors * constants.half


def _parts_seconds(table: Table, work: _Work, constants: Constants) -> Array:
    """The seconds of adding up the parts of a tile."""
    tile_bytes = 4.0 * table.rows * table.columns
    share = _ceil(table.c_pieces, np.maximum(work.parts, 1)) / table.c_pieces
    read = np.where(work.parts > 0, work.parts * share, -work.parts)
    seconds = constants.part + (1 + read) * tile_bytes / constants.part_bytes
    return np.where(work.parts != 0, seconds, 0.0)


def _exchange_seconds(table: Table, constants: Constants) -> Array:
    """The seconds in which the blocks of a cluster add up what each has of a tile."""
    seconds = constants.exchange + 4.0 * table.rows * table.columns / constants.exchange_bytes
    return np.where(table.k_blocks > 1, seconds, 0.0)


@functools.lru_cache(maxsize=256)
def _table(*asked: Any) -> Table:
    """Of the `unchecked_candidates` for what is asked."""
    return Table.of(unchecked_candidates(*asked))


def considered(
    element_type: str, a_major: Major, b_major: Major, out_type: str | None, problem: Problem
) -> Table:
    """The table of the candidates for a problem."""
    sizes = copied_rows(problem.m), copied_rows(problem.n)
    return Table.of(candidates(element_type, a_major, b_major, out_type, *sizes))


def ranked(
    element_type: str,
    a_major: Major,
    b_major: Major,
    m: int,
    n: int,
    k: int,
    multiprocessors: int,
    out_type: str | None = None,
    batch: int = 1,
    gpu: GpuModel = "h200",
    every: bool = False,
) -> Iterator[MatmulConfig]:
    """The candidates, those with the shortest predicted time first; every one, or those that suit.
    Each is checked when its turn comes.
    """
    table = _table(element_type, a_major, b_major, out_type, copied_rows(m), copied_rows(n))
    return ranked_in(table, Problem(m, n, k, multiprocessors, batch, gpu), every)


def ranked_in(table: Table, problem: Problem, every: bool = False) -> Iterator[MatmulConfig]:
    """`ranked`, among the configurations of a table.

    Of equals one that loads the larger operand fewer times, then a swapped one for a wide C.
    """
    m, n = problem.m, problem.n
    seconds = limited_seconds(table, problem)
    order = np.argsort(seconds, kind="stable")
    if not every:
        order = order[suits(table, problem)[order]]
    first = next(i for i in order if table.configs[i].is_legal)
    number = int(np.searchsorted(seconds[order], NEAR * seconds[first], side="right"))
    near = table[order[:number]]
    corrected = corrected_seconds(near, problem)
    loads = _ceil(m, near.block_m) if n >= m else _ceil(n, near.block_n)
    is_wide = np.where(near.rows == ALL_ROWS, n >= 2 * m, m >= 4 * n)
    best = np.lexsort((near.swap != is_wide, loads, corrected))
    for i in (*order[:number][best], *order[number:]):
        if table.configs[i].is_legal:
            yield table.configs[i]


def promoted(configs: Iterable[MatmulConfig]) -> Table:
    """The table of those that may be promoted; and of their tiles divided between two consumers,
    who have room for more sums than one, or than two that take turns.
    """
    found: dict[MatmulConfig, None] = {}
    for config in configs:
        values = {name: getattr(config, name) for name in DEFAULTS} | {"promoted": True}
        shared = {"consumers": 2, "pingpong": False} if config.rows == SHARED_ROWS else {}
        for changes in ({}, shared):
            made = MatmulConfig.unchecked(**values | changes)
            if made.may_be_promoted:
                found[made] = None
    return Table.of([*found])


@functools.lru_cache(maxsize=64)
def promoted_table(
    element_type: str, a_major: Major, b_major: Major, out_type: str | None, m: int, n: int
) -> Table:
    """That of the candidates for a problem with M and N."""
    return promoted(unchecked_candidates(element_type, a_major, b_major, out_type, m, n))


def ranked_promoted(table: Table, problem: Problem) -> Iterator[MatmulConfig]:
    """The legal configurations of a table of promoted ones that suit, the fastest first, as far as
    they are near the first by the limits alone.
    """
    seconds = promoted_seconds(table, problem, limited_seconds(table, problem))
    order = np.argsort(seconds, kind="stable")
    order = order[suits(table, problem)[order]]
    first = next(i for i in order if table.configs[i].is_legal)
    near = table[order[: np.searchsorted(seconds[order], NEAR * seconds[first], side="right")]]
    corrected = promoted_seconds(near, problem, corrected_seconds(near, problem))
    for i in np.argsort(corrected, kind="stable"):
        if near.configs[i].is_legal:
            yield near.configs[i]


def ranked_configs(*asked: Any, **more: Any) -> list[MatmulConfig]:
    """All of `ranked`."""
    return list(ranked(*asked, **more))
