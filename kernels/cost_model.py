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
``python -m benchmarks.fit``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import SHARED_MEMORY_PER_BLOCK as SHARED_BYTES
from triton_ext.hardware.architecture import resident_clusters
from triton_ext.kernels import corrections
from triton_ext.kernels.config import (
    C_BYTES,
    ELEMENT_BYTES,
    LEAST_K,
    MOST_K,
    Major,
    MatmulConfig,
)

LINE_BYTES = 128
"""Of the L2 cache; and what a row of a tile in shared memory has at most."""


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
        segment: what each of the rows of its pieces takes besides, for every SM.
        cluster: what a launch takes longer if its blocks form clusters.
        part: what it takes to tell that a part of a tile is there, and to find out.
        part_bytes: of parts of a tile, that an SM writes and reads.
        exchange: what it takes until the blocks of a cluster that divide K have each other's sums.
        exchange_bytes: of a tile's sums, that an SM sends and adds up then.
    """

    tensor_flops: float = 6.5e12
    power_flops: float = 8.2e14
    power_flops_8: float = 1.7e15
    step: float = 4.35e-08
    load_bytes: float = 1.18e11
    copy: float = 3.41e-08
    cache_bytes: float = 2.19e13
    misaligned: float = 1.17
    outside: float = 7.71e-11
    k_outside: float = 2.67e-09
    k_partial: float = 2.43e-09
    fetch_bytes: float = 8.17e10
    memory_bytes: float = 4.8e12
    reread: float = 0.299
    flight_bytes: float = 3.51e06
    norm: float = 5.62
    launch: float = 7.54e-07
    zero_bytes: float = 6.15e11
    full: float = 5.83e-07
    tile: float = 4.81e-06
    store_bytes: float = 4.38e10
    segment: float = 1.03e-09
    cluster: float = 5.51e-07
    part: float = 3.37e-06
    part_bytes: float = 5.37e10
    exchange: float = 1.01e-09
    exchange_bytes: float = 3.84e10


FITTED = Constants()
"""To an H200."""
LOADED_ROWS = (8, 16, 32, 48)
"""How many rows of the left operand are copied where it has no more."""
NEAR = 1.2
"""The correction decides among configurations that take so many times as long as the best by the
limits alone, at most."""
PINGPONG_K = {1: 6144, 2: 2048, 4: 2048}
PINGPONG_FLOPS = 2.5e12
"""The largest K (by the size of a cluster) and product for which two consumers take turns, where
there is more than one wave. In longer products the blocks drift apart, and do not find each other's
tiles in the L2 cache any more: 0.55 to 0.95 of the speed of a shared tile."""


@dataclass(frozen=True)
class _Work:
    """A problem as a configuration divides it; rows and columns of what is computed.

    Attributes:
        rows, columns: of C, or of its transpose.
        tiles: of all clusters.
        k_tiles: of a tile of C; of each block, if those of a cluster divide K.
        programs: how many clusters run at a time.
        waves: of whole tiles.
        part: of a tile, that a block makes after them; 0 if nothing is left.
        parts: how many parts the blocks of a tile wait for: 0 if it is whole, negative if the last
            block adds up all.
        overlap: whether the last tiles overlap others.
    """

    rows: int
    columns: int
    tiles: int
    k_tiles: int
    programs: int
    waves: int
    part: float
    parts: int
    overlap: bool


def _divided(
    config: MatmulConfig, m: int, n: int, k: int, multiprocessors: int, batch: int
) -> _Work:
    """As `kernels.scheduler` does it."""
    rows, columns = (n, m) if config.swap else (m, n)
    tiles_m = -(-rows // (config.rows * config.cluster))
    tiles_n = -(-columns // (config.columns * config.cluster_columns))
    tiles = batch * tiles_m * tiles_n
    programs = resident_clusters(multiprocessors, config.blocks)
    k_tiles = -(-k // (config.k_blocks * config.block_k))
    waves, left = divmod(tiles, programs)
    part, parts, even = float(left > 0), 0, True
    if left and config.max_splits > 1:
        most = max(min(config.max_splits, k_tiles // LEAST_K), 1)
        splits = min(programs // left, most)
        blocks = min(programs, left * most)
        if min(tiles_m, tiles_n) == 1 and k_tiles < MOST_K and 8 * left * splits < 7 * blocks:
            part, parts, even = left / blocks, -math.ceil(blocks / left) - 1, False
        else:
            part, parts = 1 / splits, splits if splits > 1 else 0
    overlap = config.max_splits == 1 or not left or (not waves and even)
    overlap = overlap and not config.residual
    return _Work(rows, columns, tiles, k_tiles, programs, waves, part, parts, overlap)


def predicted_seconds(
    config: MatmulConfig, m: int, n: int, k: int, multiprocessors: int, batch: int = 1
) -> float:
    """The seconds that the product, or a batch of them, takes on a GPU with that many SMs."""
    asked = config, m, n, k, multiprocessors, batch
    (correction,) = corrections.learnt()([features(*asked)])
    return limited_seconds(*asked) * math.exp(correction)


def _limits(
    config: MatmulConfig,
    work: _Work,
    m: int,
    n: int,
    k: int,
    multiprocessors: int,
    batch: int,
    constants: Constants,
) -> tuple[float, ...]:
    """The seconds that each limit asks for, in the order of `LIMITS`."""
    loaded = config.block_k * config.element_bytes * sum(_lines(config, m, n, k, constants))
    return (
        _compute_seconds(config, work, loaded, constants),
        _power_seconds(config, work, constants),
        _memory_seconds(config, work, m, n, k, batch, constants),
        _fetch_seconds(config, work, m, n, k, multiprocessors, constants),
        _cache_seconds(config, work, loaded, constants),
    )


LIMITS = ("compute", "power", "memory", "fetch", "cache")
FEATURES = (
    "seconds", *LIMITS, "longest", "m", "n", "k", "rows", "columns", "block_k", "stages",
    "consumers", "pingpong", "swap", "cluster", "cluster_columns", "k_blocks", "splits", "units",
    "loaded_rows", "element_bytes", "left_k_major", "right_k_major", "waves", "part", "parts",
    "tiles", "k_tiles", "store", "adding_up", "filled_rows", "filled_columns",
)  # fmt: skip
"""What the learnt correction looks at: times and sizes as logarithms, each limit over the longest,
what follows the products over the whole; fields of the configuration; how it divides the problem;
and how much of the tiles lies inside."""


def features(
    config: MatmulConfig, m: int, n: int, k: int, multiprocessors: int, batch: int = 1
) -> list[float]:
    """The values of `FEATURES`."""
    work = _divided(config, m, n, k, multiprocessors, batch)
    limits = _limits(config, work, m, n, k, multiprocessors, batch, FITTED)
    seconds = limited_seconds(config, m, n, k, multiprocessors, batch)
    longest = max(limits)
    return [
        math.log(seconds), *(math.log(max(each, 1e-9) / longest) for each in limits),
        math.log(longest / seconds), math.log2(m), math.log2(n), math.log2(k),
        config.rows, config.columns, config.block_k * config.element_bytes, config.stages,
        config.consumers, config.pingpong, config.swap, config.cluster, config.cluster_columns,
        config.k_blocks, config.max_splits > 1, config.units, config.loaded_rows,
        config.element_bytes, config.left_major == "K", config.right_major == "K",
        work.waves, work.part, work.parts, math.log2(work.tiles), work.k_tiles,
        _store_seconds(config, FITTED) / seconds, _parts_seconds(config, work, FITTED) / seconds,
        work.rows / (config.rows * math.ceil(work.rows / config.rows)),
        work.columns / (config.columns * math.ceil(work.columns / config.columns)),
    ]  # fmt: skip


def limited_seconds(
    config: MatmulConfig,
    m: int,
    n: int,
    k: int,
    multiprocessors: int,
    batch: int = 1,
    constants: Constants = FITTED,
) -> float:
    """The same by the limits alone, without what is learnt."""
    work = _divided(config, m, n, k, multiprocessors, batch)
    limits = _limits(config, work, m, n, k, multiprocessors, batch, constants)
    whole, partial = _beyond_k(config, m, n, k, work.k_tiles)
    turns = math.ceil(work.waves + work.part)
    longest = max(limits)
    together = sum((limit / longest) ** constants.norm for limit in limits)
    return float(
        constants.launch
        + _zeroed(config, work) / constants.zero_bytes
        + constants.full * _crowded(config, work, multiprocessors)
        + constants.cluster * (config.blocks > 1)
        + longest * together ** (1 / constants.norm)
        + turns * (whole * constants.k_outside + partial * constants.k_partial)
        + _store_seconds(config, constants)
        + _parts_seconds(config, work, constants)
        + _exchange_seconds(config, constants)
    )


def suits(
    config: MatmulConfig, m: int, n: int, k: int, multiprocessors: int, batch: int = 1
) -> bool:
    """Whether the limits above are what a configuration's time for a problem depends on.

    Not if a ping-pong kernel's blocks drift apart, or if clusters that divide K wait for others to
    end (they make one tile each, and nothing hides its end); and tiles of more than 256 columns
    were 6 to 30 % slower than predicted wherever there was more than one wave of them. In products
    larger than any that was surveyed, consumers share a tile, as what was measured there does.
    """
    work = _divided(config, m, n, k, multiprocessors, batch)
    if work.tiles <= work.programs:
        return True
    if config.k_blocks > 1:
        return False
    is_huge = 2.0 * batch * m * n * k > PINGPONG_FLOPS
    if config.pingpong:
        return k <= PINGPONG_K[config.cluster] and not is_huge
    return config.columns <= 256 and (config.consumers > 1 or not is_huge)


def _lines(
    config: MatmulConfig, m: int, n: int, k: int, constants: Constants
) -> tuple[float, float]:
    """The rows of the left and of the right tile that a block loads, each as many times as it takes
    longer for lying in two lines; a cluster shares them. In memory, the operands' rows follow one
    another.
    """

    def factor(major: Major, size: int) -> float:
        stride = (k if major == "K" else size) * config.element_bytes
        aligned = math.gcd(stride, LINE_BYTES) / LINE_BYTES  # the fraction of rows in one line
        return 1 + constants.misaligned * (1 - aligned)

    factors = [factor(config.a_major, m), factor(config.b_major, n)]
    if config.swap:
        factors.reverse()
    rows = config.loaded_rows or config.rows
    return (
        rows / config.cluster_columns * factors[0], config.columns / config.cluster * factors[1]
    )  # fmt: skip


def _beyond_k(config: MatmulConfig, m: int, n: int, k: int, k_tiles: int) -> tuple[float, float]:
    """Of a tile's last product: how many rows of 128 bytes lie beyond K, and how many partly do, in
    the block that has most of them.
    """
    end = min(k_tiles * config.k_blocks * config.block_k, k + config.block_k)
    elements = LINE_BYTES // config.element_bytes
    whole = partial = 0.0
    for major, rows in ((config.a_major, min(config.block_m, m)),
                        (config.b_major, min(config.block_n, n))):  # fmt: skip
        if major == "K":
            whole += (end // elements - -(-k // elements)) * rows
            partial += rows * (k % elements > 0)
        else:
            whole += (end - k) * math.ceil(rows / elements)
    return whole, partial


def _crowded(config: MatmulConfig, work: _Work, multiprocessors: int) -> float:
    """The fraction of the blocks that wait for one of the kernel before to end."""
    slots = multiprocessors * min(4, max(1, SHARED_BYTES // config.shared_memory_bytes))
    blocks = min(work.tiles * config.blocks * max(1, work.parts), multiprocessors)
    if work.parts < 0 or (work.parts and work.waves):
        blocks = multiprocessors
    return min(1.0, max(0.0, (2 * blocks - slots) / blocks))


def _zeroed(config: MatmulConfig, work: _Work) -> float:
    """The bytes of tiles of which some rows are not copied, as far as they are used."""
    if not config.loaded_rows:
        return 0.0
    stages = min(config.stages, work.k_tiles * math.ceil(work.waves + work.part))
    return stages * config.rows * config.block_k * config.element_bytes


def _compute_seconds(
    config: MatmulConfig, work: _Work, loaded: float, constants: Constants
) -> float:
    """The seconds of the waves; a tile takes what its SM's tensor cores or its loads take.

    A wgmma reads 64 rows of the left operand for however few columns: 128 bytes a cycle.
    """
    columns = (config.columns - config.side, config.side)
    width = sum(max(n, (64 + n) / 2) for n in columns if n)
    flops = 2 * config.rows * width * config.block_k
    rate = constants.tensor_flops * 2 / config.element_bytes
    step = flops / rate + constants.step
    copies = config.shares + config.block_k // config.right_unit[0]
    load = loaded / constants.load_bytes + (copies - 1) * constants.copy
    tile = work.k_tiles * max(step, load)
    seconds = (work.waves + work.part) * tile
    if not config.pingpong:
        turns = work.waves + (work.part > 0) + (work.parts < 0) - 1
        size = min(1.0, config.columns * min(config.rows, 128) / (128 * 128))
        seconds += turns * constants.tile * size
    return seconds


def _power_seconds(config: MatmulConfig, work: _Work, constants: Constants) -> float:
    """The seconds that the operations take at the clock that the power limit leaves."""
    size = config.rows * config.blocks * config.columns * config.block_k * config.element_bytes
    rate = constants.power_flops_8 if config.element_bytes == 1 else 2 * constants.power_flops
    return 2.0 * size * work.tiles * work.k_tiles / rate


def _memory_seconds(
    config: MatmulConfig, work: _Work, m: int, n: int, k: int, batch: int, constants: Constants
) -> float:
    """The seconds of moving A, B and C once, at the rate that the loads in flight allow."""
    blocks = work.programs * config.blocks
    if work.parts >= 0 and not work.waves:
        blocks = min(blocks, work.tiles * config.blocks * max(1, work.parts))
    tile_bytes = min(work.rows, config.rows) + min(work.columns, config.columns)
    flight = blocks * config.stages * config.block_k * tile_bytes * config.element_bytes
    rate = constants.memory_bytes * (1 - math.exp(-flight / constants.flight_bytes))
    read = float(m * k + k * n)
    if (-(-m // config.block_m) if n >= m else -(-n // config.block_n)) > 1:
        read += constants.reread * max(m, n) * k
    moved = config.element_bytes * read + C_BYTES[config.c_type] * m * n
    return batch * moved / rate


def _fetch_seconds(
    config: MatmulConfig,
    work: _Work,
    m: int,
    n: int,
    k: int,
    multiprocessors: int,
    constants: Constants,
) -> float:
    """The seconds in which the busiest TPC reads its part of the larger operand from memory: of 67
    blocks, two share a TPC, and take twice as long as the others. Blocks that need the same part
    share what is read.
    """
    tile = config.block_n if n >= m else config.block_m
    others = -(-m // config.block_m) if n >= m else -(-n // config.block_n)
    blocks = work.tiles * config.blocks * max(1, work.parts)
    if not work.waves and work.parts >= 0:
        read = math.ceil(min(blocks, multiprocessors) / (multiprocessors // 2)) * work.part
    else:
        read = 2 * (work.waves + work.part)
    is_left = (n >= m) == config.swap  # the operand that is larger
    together = config.k_blocks * (config.cluster_columns if is_left else config.cluster)
    return read * tile * k * config.element_bytes / together / others / constants.fetch_bytes


def _cache_seconds(config: MatmulConfig, work: _Work, loaded: float, constants: Constants) -> float:
    """The seconds of all loads from the L2 cache, and of what lies outside of the matrix."""
    rows = (config.loaded_rows or config.rows) * config.cluster
    columns = config.columns * config.cluster_columns
    tiles_m, tiles_n = -(-work.rows // rows), -(-work.columns // columns)
    outside = 0.0
    if not work.overlap or tiles_m == 1:
        outside += (tiles_m * rows - work.rows) * tiles_n
    if not work.overlap or tiles_n == 1:
        outside += (tiles_n * columns - work.columns) * tiles_m
    outside *= work.tiles / (tiles_m * tiles_n)
    outside *= math.ceil(config.block_k * config.element_bytes / LINE_BYTES)
    inside = work.tiles * loaded * config.blocks / constants.cache_bytes
    outside *= config.k_blocks
    return work.k_tiles * (inside + outside * constants.outside)


def _store_seconds(config: MatmulConfig, constants: Constants) -> float:
    """The seconds of storing a tile of C: its bytes, and rows of pieces in memory."""
    size = config.rows * config.columns / config.k_blocks
    segments = size / (config.rows // config.shares if config.swap else config.c_columns)
    return size * C_BYTES[config.c_type] / constants.store_bytes + segments * constants.segment


def _parts_seconds(config: MatmulConfig, work: _Work, constants: Constants) -> float:
    """The seconds of adding up the parts of a tile."""
    if not work.parts:
        return 0.0
    tile_bytes = 4.0 * config.rows * config.columns
    pieces = config.columns // config.c_columns
    read = float(-work.parts)
    if work.parts > 0:
        read = work.parts * math.ceil(pieces / work.parts) / pieces
    return constants.part + (1 + read) * tile_bytes / constants.part_bytes


def _exchange_seconds(config: MatmulConfig, constants: Constants) -> float:
    """The seconds in which the blocks of a cluster add up what each has of a tile."""
    if config.k_blocks == 1:
        return 0.0
    return constants.exchange + 4.0 * config.rows * config.columns / constants.exchange_bytes


def _tile(rows: int, columns: int, consumers: int, stages: int, **more: Any) -> dict[str, Any]:
    """A tile of `_TILES`, as it is and swapped if `swaps` does not say otherwise."""
    sizes = {"rows": rows, "columns": columns, "consumers": consumers, "stages": stages}
    return {"swaps": (False, True), **sizes, **more}


_AS_IS, _SWAPPED = (False,), (True,)
_SIDES = {48: 16, 80: 16, 96: 32, 160: 32, 192: 64, 320: 64}
_TILES = [
    *(
        _tile(64, columns, 1, stages, block_k=2, swaps=swaps)
        for columns, stages, swaps in (
            (8, 7, (False, True)),
            (16, 6, _SWAPPED),
            (32, 8, (False, True)),
            (48, 5, (False, True)),
            (64, 6, (False, True)),
            (80, 5, (False, True)),
            (96, 5, _SWAPPED),
        )
    ),
    _tile(64, 8, 1, 7, block_k=2, max_splits=16),
    _tile(64, 16, 1, 6, block_k=2, max_splits=16, swaps=_SWAPPED),
    _tile(64, 96, 1, 5, block_k=2, max_splits=16, c_parts=2, swaps=_AS_IS),
    _tile(64, 160, 1, 7, c_parts=4, swaps=_AS_IS),
    _tile(64, 128, 2, 7, pingpong=True, c_parts=2),
    _tile(64, 192, 2, 6, pingpong=True, c_parts=2),
    _tile(64, 256, 2, 5, pingpong=True, c_parts=4, swaps=_AS_IS),
    _tile(128, 128, 1, 6),
    _tile(128, 128, 2, 6, pingpong=True, c_parts=2, group=4),
    _tile(128, 160, 2, 6, c_parts=4, cluster=2, swaps=_SWAPPED),
    _tile(128, 192, 2, 5, c_parts=2, cluster=2),
    _tile(128, 192, 2, 5, c_parts=4, max_splits=16, swaps=_SWAPPED),
    _tile(128, 256, 2, 4, c_parts=2, swaps=_AS_IS),
    _tile(128, 256, 2, 4, c_parts=2, cluster=2),
    _tile(256, 128, 2, 4, c_parts=2, swaps=_AS_IS),
    _tile(64, 32, 1, 8, block_k=2, k_blocks=4),
    _tile(64, 64, 1, 6, block_k=2, k_blocks=4, swaps=_AS_IS),
    _tile(128, 96, 2, 5, k_blocks=4, c_parts=2),
]
"""Tiles worth considering: rows and columns of what is computed, and fields of `MatmulConfig`;
block_k in units of 128 bytes; the better of equals first. They are all that releases before 3.9
have, but for clusters and divided K."""


_WIDTHS: list[tuple[dict[str, Any], Sequence[int]]] = [
    ({"rows": 64, "consumers": 1, "block_k": 2}, range(24, 121, 8)),
    ({"rows": 64, "consumers": 1, "block_k": 2, "max_splits": 16}, (48, 96)),
    ({"rows": 64, "consumers": 1}, range(96, 257, 8)),
    ({"rows": 64, "consumers": 1, "max_splits": 16}, (128, 160, 224)),
    ({"rows": 64, "consumers": 1, "cluster": 2, "group": 2}, range(56, 201, 16)),
    ({"rows": 64, "consumers": 1, "cluster": 4, "group": 2},
     (*range(40, 129, 8), 144, 176, 208)),
    ({"rows": 64, "consumers": 1, "cluster": 2, "cluster_columns": 2, "group": 4},
     (64, 80, 96, 112, 128, 144, 176, 208)),
    ({"rows": 64, "consumers": 1, "cluster": 4, "cluster_columns": 2, "group": 4},
     (56, 72, 88, 104, 128)),
    ({"rows": 64, "consumers": 1, "k_blocks": 2}, (64, 96, 128)),
    ({"rows": 64, "consumers": 1, "k_blocks": 4}, (48, 96)),
    ({"rows": 64, "consumers": 2, "pingpong": True}, range(80, 257, 16)),
    ({"rows": 128, "consumers": 1}, range(64, 161, 16)),
    ({"rows": 128, "consumers": 2}, (48, 64, 80, *range(96, 257, 8))),
    ({"rows": 128, "consumers": 2, "max_splits": 16}, (96, 128, 160, 192, 224)),
    ({"rows": 128, "consumers": 2, "cluster": 2}, (64, 96, 128, 144, 160, 176, 192, 208, 224)),
    ({"rows": 128, "consumers": 2, "cluster": 4, "group": 2},
     (48, 56, 64, 72, 80, 96, 112, 128, 160, 192)),
    ({"rows": 128, "consumers": 2, "cluster": 4, "cluster_columns": 2, "group": 4},
     (72, 96, 144, 200)),
    ({"rows": 128, "consumers": 2, "cluster": 2, "cluster_columns": 2, "group": 4},
     (64, 96, 128, 160, 176, 192, 208, 256)),
    ({"rows": 128, "consumers": 2, "k_blocks": 2}, (64, 80, 96)),
    ({"rows": 128, "consumers": 2, "k_blocks": 4}, (96,)),
    ({"rows": 128, "consumers": 2, "pingpong": True}, range(64, 161, 16)),
    ({"rows": 128, "consumers": 2, "pingpong": True, "cluster": 2, "group": 2}, (96, 128, 160)),
    ({"rows": 128, "consumers": 2, "pingpong": True, "cluster": 2, "cluster_columns": 2,
      "group": 2}, (64, 96, 128, 160)),
    ({"rows": 256, "consumers": 2}, (152,)),
    ({"rows": 256, "consumers": 2, "cluster": 2}, (96, 104, 112, 128, 136, 144, 152, 160)),
    ({"rows": 256, "consumers": 2, "max_splits": 16}, (96, 160)),
]  # fmt: skip
"""The same for tiles of many widths, of one instruction where that can be: how many columns there
may be."""


def _wide_tiles() -> Iterator[dict[str, Any]]:
    """The tiles of `_WIDTHS`, as they are and swapped; C leaves through 64 columns of buffers."""
    for fields, widths in _WIDTHS:
        for columns in widths:
            piece = min(columns & -columns, 64)
            parts = columns // piece
            yield {"swaps": (False, True), "columns": columns, "c_parts": parts,
                   "c_buffers": min(parts, 64 // piece), **fields}  # fmt: skip


def _is_new() -> bool:
    """Whether Triton can do what needs 3.9: clusters, tiles of units, copying fewer rows."""
    from triton_ext.compat import TRITON_VERSION

    return TRITON_VERSION >= (3, 9)


@functools.lru_cache(maxsize=64)
def candidates(
    element_type: str, a_major: Major, b_major: Major, out_type: str | None = None
) -> tuple[MatmulConfig, ...]:
    """The configurations that are considered for sm_90, the better of equals first."""
    tiles = [tile for tile in _TILES if _is_new() or not {"cluster", "k_blocks"} & tile.keys()]
    if _is_new():
        tiles += _wide_tiles()
    found = []
    for tile, swap in ((each, swap) for each in tiles for swap in each["swaps"]):
        fields: dict[str, Any] = {"block_k": 1, "c_parts": 1, **tile, "swap": swap}
        del fields["swaps"]
        if "stages" in tile:
            fields["side"] = _SIDES.get(tile["columns"], 0)
        left, right = ("block_n", "block_m") if swap else ("block_m", "block_n")
        fields[left], fields[right] = fields.pop("rows"), fields.pop("columns")
        fields["block_k"] *= 128 // ELEMENT_BYTES[element_type]
        config = _fitting(fields, element_type, a_major, b_major, out_type)
        if config is not None and _one_instruction(config):
            found.append(config)
    return tuple(dict.fromkeys(found))


def _one_instruction(config: MatmulConfig) -> bool:
    """Whether a tile whose columns are no power of two is one of units, if its right operand has
    units that are wide enough; else it has a side. The rows of an MN-major operand's units are no
    less than half a line.
    """
    unit = config.columns & -config.columns
    if unit == config.columns or config.columns > 256 or not _is_new():
        return config.units == 1
    row = LINE_BYTES if config.right_major == "K" else unit * config.element_bytes
    return row >= LINE_BYTES // 2 if config.units > 1 else row < LINE_BYTES


def _fitting(
    fields: dict[str, Any], element_type: str, a_major: Major, b_major: Major, out_type: str | None
) -> MatmulConfig | None:
    """The configuration with these fields, as many stages as fit, and C in pieces that fit."""
    for stages in [fields["stages"]] if "stages" in fields else range(12, 2, -1):
        for finer in range(3):
            more = {"stages": stages, "c_parts": fields["c_parts"] << finer}
            try:
                return MatmulConfig(
                    90, element_type, a_major, b_major, out_type=out_type, **(fields | more)
                )
            except LayoutError as error:  # also where a swizzle does not fit a narrow MN-major tile
                if error.argument == "stages" and "stages" not in fields:
                    break
    return None


@functools.lru_cache(maxsize=4096)
def _adapted(config: MatmulConfig, rows: int) -> MatmulConfig:
    """A tile of 64 rows for a problem whose left operand has so many: rows that there are not are
    not copied.
    """
    if not (_is_new() and rows <= LOADED_ROWS[-1] and config.may_load_less):
        return config
    return replace(config, loaded_rows=next(size for size in LOADED_ROWS if size >= rows))


def ranked_configs(
    element_type: str,
    a_major: Major,
    b_major: Major,
    m: int,
    n: int,
    k: int,
    multiprocessors: int,
    out_type: str | None = None,
    batch: int = 1,
    every: bool = False,
) -> list[MatmulConfig]:
    """The candidates, those with the shortest predicted time first; every one, or those that suit.

    Of equals one that loads the larger operand fewer times, then a swapped one for a wide C.
    """
    sizes = m, n, k, multiprocessors, batch
    found = [
        _adapted(config, min(n if config.swap else m, 64)) if config.rows == 64 else config
        for config in candidates(element_type, a_major, b_major, out_type)
        if every or suits(config, *sizes)
    ]
    limited = sorted(
        ((limited_seconds(config, *sizes), config) for config in found), key=lambda pair: pair[0]
    )
    near = [pair for pair in limited if pair[0] <= NEAR * limited[0][0]]
    corrected = corrections.learnt()([features(config, *sizes) for _, config in near])
    best = sorted(
        zip(near, corrected, strict=True),
        key=lambda pair: (
            pair[0][0] * math.exp(pair[1]),
            -(-m // pair[0][1].block_m) if n >= m else -(-n // pair[0][1].block_n),
            pair[0][1].swap != (n >= 2 * m if pair[0][1].rows == 64 else m >= 4 * n),
        ),
    )
    return [config for (_, config), _ in best] + [config for _, config in limited[len(near) :]]
