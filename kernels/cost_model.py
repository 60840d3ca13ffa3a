"""Which configuration to use for a problem: the one with the shortest predicted time.

The model knows these limits, of which it takes the longest, and what a launch costs besides:

- the tensor cores of the SMs that have a thread block;
- what an SM can load from the L2 cache: a tile of ROWS x COLUMNS needs (ROWS + COLUMNS) * K
  elements, less what a cluster shares;
- what all SMs can load from the L2 cache, and from memory: A, B and C once;
- the turns of the ring of tiles, where the TMA unit fills in much that is outside of the matrix;
- the waves: tiles come in groups of as many as there are SMs, and the last group takes as long as a
  full one, unless its tiles are cut along K.

What is minimised is the time of a product in a stream of others, on an otherwise idle GPU. The
constants were fitted, within what was measured for each alone, to 1,200 timings (a problem with a
configuration) of 103 problems on H100 SXMs (132 SMs, 700 W): what the model chooses is 1.0% slower
than the best candidate in the mean. They are no data-sheet values: the tensor cores of a busy H100
are slowed by its power limit.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.kernels.config import C_BYTES, ELEMENT_BYTES, Major, MatmulConfig

TENSOR_FLOPS = 5.54e12
"""Operations of an SM in a second, with 16-bit operands: what the power limit leaves of 7.5e12."""
LOAD_BYTES = 110e9
"""Bytes that an SM loads from the L2 cache in a second, by TMA."""
CACHE_BYTES = 13.1e12
"""Bytes that all SMs together load from the L2 cache in a second."""
OVERLAP_LOSS = 0.064
"""The fraction of the shorter limits that adds to the longest."""
PINGPONG_LOSS = 0.064
"""The same where two consumers take turns."""
MEMORY_BYTES = 3.12e12
"""Bytes that the GPU reads from memory in a second, when enough is in flight."""
REREAD = 0.089
"""The fraction by which reading the larger operand takes longer if several blocks load the same of
it, from the L2 cache."""
FLIGHT_BYTES = 1.57e6
"""Bytes in flight, of all SMs, at which 1 - 1/e of that rate is reached; it is approached
exponentially."""
CROWDED_BYTES = 7.7e6
"""Bytes in flight beyond which more takes longer, where some SMs have no tile and the others
wait."""
LAUNCH_SECONDS = 2.01e-6
"""From the end of the kernel before to the first product, and from the last product to the end."""
TILE_SECONDS = 1.79e-6
"""From the last product of a tile of 64 rows to the first of the next; half of it with more."""
STORE_BYTES = 524e9
"""Bytes that an SM stores in a second, for the last tile, whose store nothing hides."""
OUTSIDE_SECONDS = 30e-9
"""What a row of 128 bytes outside the matrix adds to the time until a TMA copy arrives: zeros come
slower than data."""
PINGPONG_K = {1: 8192, 2: 2048}
PINGPONG_FLOPS = 2.5e12
"""The largest K (by the size of a cluster) and product for which two consumers take turns. In
longer products the blocks drift apart, and do not find each other's tiles in the L2 cache any more:
0.55 to 0.95 of the speed of a shared tile."""
CLUSTER_SECONDS = 1.31e-6
"""What a launch takes longer if its blocks form clusters."""
PART_BYTES = 24.6e9
"""Bytes of a part of a tile that an SM writes in a second for others to add up, and that they read
back."""
PART_SECONDS = 1.15e-6
"""What it takes to tell that a part is there, and to find out."""


def predicted_seconds(
    config: MatmulConfig, m: int, n: int, k: int, multiprocessors: int, batch: int = 1
) -> float:
    """The seconds that the product, or a batch of them, takes on a GPU with that many SMs."""
    rows, columns = (n, m) if config.swap else (m, n)
    tile_rows = config.rows * config.cluster
    tiles = batch * -(-rows // tile_rows) * -(-columns // config.columns)
    resident = multiprocessors // config.cluster
    k_tiles = -(-k // config.block_k)
    limits = (
        _compute_seconds(config, tiles, resident, k_tiles),
        _memory_seconds(config, m, n, k, min(tiles, resident), resident, batch),
        tiles * k_tiles * _tile_bytes(config) * config.cluster / CACHE_BYTES,
        _ring_seconds(config, rows, columns, k_tiles * -(-tiles // resident)),
    )
    return (
        LAUNCH_SECONDS
        + CLUSTER_SECONDS * (config.cluster > 1)
        + max(limits)
        + (PINGPONG_LOSS if config.pingpong else OVERLAP_LOSS) * (sum(limits) - max(limits))
        + config.rows * config.columns * C_BYTES[config.c_type] / STORE_BYTES
    )


def _suits(
    config: MatmulConfig, m: int, n: int, k: int, multiprocessors: int, batch: int = 1
) -> bool:
    """Whether the limits above are what a configuration's time for a problem depends on.

    Not if a ping-pong kernel's blocks drift apart; and tiles of more than 256 columns were slower
    than all others wherever there was more than one wave of them.
    """
    if config.pingpong:
        return k <= PINGPONG_K[config.cluster] and 2.0 * batch * m * n * k <= PINGPONG_FLOPS
    tiles = batch * -(-m // config.block_m) * -(-n // config.block_n)
    return config.columns <= 256 or tiles <= multiprocessors


def _ring_seconds(config: MatmulConfig, rows: int, columns: int, fills: int) -> float:
    """The seconds of the ring's turns, if each copy takes what its rows outside the matrix take."""
    outside = max(0, config.rows - rows) + max(0, config.columns - columns)
    boxes = config.block_k * config.element_bytes // 128
    return fills / config.stages * outside * boxes * OUTSIDE_SECONDS


def _tile_bytes(config: MatmulConfig) -> float:
    """Bytes that a block loads for one product of tiles; a cluster shares the right tile."""
    length = config.rows + config.columns / config.cluster
    return config.block_k * length * config.element_bytes


def _compute_seconds(config: MatmulConfig, tiles: int, resident: int, k_tiles: int) -> float:
    """The seconds of the waves; a tile takes what its SM's tensor cores or its loads take."""
    # A wgmma reads 64 rows of the left operand for however few columns: 128 bytes a cycle.
    parts = (config.columns - config.side, config.side)
    width = sum(max(n, (64 + n) / 2) for n in parts if n)
    flops = 2 * config.rows * width * config.block_k
    rate = TENSOR_FLOPS * 2 / config.element_bytes
    tile = k_tiles * max(flops / rate, _tile_bytes(config) / LOAD_BYTES)
    waves, left = divmod(tiles, resident)
    seconds = waves * tile
    if not config.pingpong:
        seconds += (waves + bool(left) - 1) * TILE_SECONDS / min(config.rows // 64, 2)
    if left:
        splits = max(1, min(resident // left, config.max_splits, k_tiles // 4))
        seconds += tile / splits
        if splits > 1:
            seconds += PART_SECONDS + 2 * 4 * config.rows * config.columns / PART_BYTES
    return seconds


def _memory_seconds(
    config: MatmulConfig, m: int, n: int, k: int, working: int, resident: int, batch: int
) -> float:
    """The seconds of moving A, B and C once, at the rate that the loads in flight allow."""
    rows, columns = (n, m) if config.swap else (m, n)
    tile_bytes = min(rows, config.rows) + min(columns, config.columns)
    flight = working * config.stages * config.block_k * tile_bytes * config.element_bytes
    rate = MEMORY_BYTES * (1 - math.exp(-flight / FLIGHT_BYTES))
    read = float(m * k + k * n)
    if (-(-m // config.block_m) if n >= m else -(-n // config.block_n)) > 1:
        read += REREAD * max(m, n) * k
    moved = config.element_bytes * read + C_BYTES[config.c_type] * m * n
    seconds = batch * moved / rate
    if working < 0.8 * resident:
        seconds += max(0.0, flight - CROWDED_BYTES) / MEMORY_BYTES
    return seconds


def _tile(rows: int, columns: int, consumers: int, stages: int, **more: int) -> dict[str, int]:
    """A tile of `_TILES`."""
    return {"rows": rows, "columns": columns, "consumers": consumers, "stages": stages, **more}


_TILES = [
    *(_tile(128, 256, 2, 4, c_parts=2, max_splits=splits) for splits in (1, 8)),
    _tile(256, 128, 2, 4, c_parts=2),
    # One consumer of 128 rows was 0 to 5% faster than two of 64, but not where it adds parts.
    _tile(128, 128, 1, 6),
    _tile(128, 128, 2, 6, max_splits=8),
    *(
        _tile(128, 128, 2, 6, pingpong=True, c_parts=2, cluster=cluster, group=4 // cluster)
        for cluster in (1, 2)
    ),
    _tile(192, 128, 3, 4),
    _tile(128, 192, 2, 5, side=64, c_parts=2),
    _tile(128, 96, 2, 6, side=32, c_parts=2),
    _tile(128, 320, 2, 3, side=64, c_parts=4),
    _tile(64, 128, 1, 4, block_k=2),
    *(
        _tile(64, columns, 1, stages, block_k=2, max_splits=splits)
        for columns, depths in ((64, (5, 6)), (32, (5, 8)), (16, (5, 6, 7)), (8, (5, 6, 7)))
        for stages in depths
        for splits in (1, 8)
    ),
    *(
        _tile(64, columns, 1, 5, side=side, block_k=2, c_parts=(columns - side) // side)
        for columns, side in ((48, 16), (80, 16), (96, 32))
    ),
]
"""Tiles worth considering, as they are and swapped: rows and columns of what is computed, and
fields of `MatmulConfig`; block_k in units of 128 bytes; the better of equals first."""


@functools.lru_cache(maxsize=64)
def candidates(
    element_type: str, a_major: Major, b_major: Major, out_type: str | None = None
) -> tuple[MatmulConfig, ...]:
    """The configurations that are considered for sm_90, the better of equals first."""
    found = []
    tiles = [(tile, swap) for swap in (False, True) for tile in _TILES]
    # The cluster shares the tile of A, which is the taller one.
    tiles.append((_tile(128, 256, 2, 4, c_parts=2, cluster=2), True))
    for tile, swap in tiles:
        fields: dict[str, Any] = {"block_k": 1, "c_parts": 1, **tile, "swap": swap}
        left, right = ("block_n", "block_m") if swap else ("block_m", "block_n")
        fields[left], fields[right] = fields.pop("rows"), fields.pop("columns")
        fields["block_k"] *= 128 // ELEMENT_BYTES[element_type]
        for _ in range(2):
            try:
                found.append(
                    MatmulConfig(90, element_type, a_major, b_major, out_type=out_type, **fields)
                )
                break
            except LayoutError:  # also where a swizzle does not fit a narrow MN-major tile
                fields["c_parts"] *= 2  # a wider C may have to be stored in smaller pieces
    return tuple(found)


def _prefetching(config: MatmulConfig, m: int, n: int) -> MatmulConfig:
    """The same; what reads from memory most of the time prefetches the larger operand."""
    larger, major = ("b", config.b_major) if n >= m else ("a", config.a_major)
    if config.rows == 64 and config.columns < 128 and major == "K":
        return replace(config, prefetch=larger)
    return config


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
) -> list[MatmulConfig]:
    """The candidates, those with the shortest predicted time first.

    Of equals one that loads the larger operand fewer times, then a swapped one for a wide C.
    """
    found = sorted(
        (
            config
            for config in candidates(element_type, a_major, b_major, out_type)
            if _suits(config, m, n, k, multiprocessors, batch)
        ),
        key=lambda config: (
            predicted_seconds(config, m, n, k, multiprocessors, batch),
            -(-m // config.block_m) if n >= m else -(-n // config.block_n),
            config.swap != (n >= 2 * m if config.rows == 64 else m >= 4 * n),
        ),
    )
    return [_prefetching(config, m, n) for config in found]
