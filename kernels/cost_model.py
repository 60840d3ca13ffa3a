"""Which configuration to use for a problem: the one with the shortest predicted time.

The model knows four limits, of which it takes the longest, and what a launch costs besides:

- the tensor cores, which a thread block can use one of its SM's share of;
- what an SM can load from the L2 cache: a tile of ROWS x COLUMNS needs (ROWS + COLUMNS) * K
  elements, less what a cluster shares;
- what all SMs can load from memory: A, B and C once;
- the waves: tiles come in groups of as many as there are SMs, and the last group takes as long as a
  full one, unless its tiles are cut along K.

What is minimised is the time of a product in a stream of others, on an otherwise idle GPU. The
constants were fitted, within what was measured for each alone, to 2,000 timings on an H100 SXM (132
SMs, 700 W; configurations x shapes): what the model chooses is 1.2% slower than the best candidate
in the mean. They are no data-sheet values: the tensor cores of a busy H100 are slowed by its power
limit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

from triton_ext.kernels.config import C_BYTES, ELEMENT_BYTES, Major, MatmulConfig

from triton_ext.errors import LayoutError

TENSOR_FLOPS = 4.8e12
"""Of an SM, a second, 16-bit operands: what is left of 7.5e12 at the power limit."""
LOAD_BYTES = 75e9
"""What an SM loads from the L2 cache in a second, by TMA."""
CACHE_BYTES = 10.6e12
"""What all SMs together load from the L2 cache in a second."""
OVERLAP_LOSS = 0.21
"""Of the shorter limits, what they add to the longest."""
MEMORY_BYTES = 3.05e12
"""What the GPU reads from memory in a second, when enough is in flight."""
FLIGHT_BYTES = 2.07e6
"""In flight, of all SMs, at which 1 - 1/e of that is reached; it approaches it exponentially."""
CROWDED_BYTES = 8.9e6
"""In flight beyond which more takes longer, where some SMs have no tile and the others wait."""
LAUNCH_SECONDS = 2.3e-6
"""From the end of the kernel before to the first product, and from the last product to the end."""
TILE_SECONDS = 1.3e-6
"""From the last product of a tile of 64 rows to the first of the next; half of it with more."""
STORE_BYTES = 72e9
"""What an SM stores in a second, of the last tile, which nothing hides."""
PART_BYTES = 10e9
"""What an SM writes in a second of a part of a tile that others add up, and they read it back."""
PART_SECONDS = 3.9e-6
"""To tell that a part is there, and to find out."""


def predicted_seconds(
    config: MatmulConfig, m: int, n: int, k: int, multiprocessors: int, batch: int = 1
) -> float:
    """How long the product, or a batch of them, takes on a GPU with that many SMs."""
    rows, columns = (n, m) if config.swap else (m, n)
    tile_rows = config.rows * config.cluster
    tiles = batch * -(-rows // tile_rows) * -(-columns // config.columns)
    resident = multiprocessors // config.cluster
    k_tiles = -(-k // config.block_k)
    limits = (
        _compute_seconds(config, tiles, resident, k_tiles),
        _memory_seconds(config, m, n, k, min(tiles, resident), resident, batch),
        tiles * k_tiles * _tile_bytes(config) * config.cluster / CACHE_BYTES,
    )
    return (
        LAUNCH_SECONDS
        + max(limits)
        + OVERLAP_LOSS * (sum(limits) - max(limits))
        + config.rows * config.columns * C_BYTES[config.c_type] / STORE_BYTES
    )


def _tile_bytes(config: MatmulConfig) -> float:
    """What a block loads for one product of tiles, of which a cluster shares the right one."""
    sides = config.rows + config.columns / config.cluster
    return config.block_k * sides * config.element_bytes


def _compute_seconds(config: MatmulConfig, tiles: int, resident: int, k_tiles: int) -> float:
    """The waves, of which each tile takes what its SM's tensor cores or loads take."""
    flops = 2 * config.rows * max(config.columns, 16) * config.block_k
    rate = TENSOR_FLOPS * 2 / config.element_bytes
    tile = k_tiles * max(flops / rate, _tile_bytes(config) / LOAD_BYTES)
    waves, left = divmod(tiles, resident)
    seconds = waves * tile + (waves + bool(left) - 1) * TILE_SECONDS / min(config.rows // 64, 2)
    if left:
        splits = max(1, min(resident // left, config.max_splits, k_tiles // 4))
        seconds += tile / splits
        if splits > 1:
            seconds += PART_SECONDS + 2 * 4 * config.rows * config.columns / PART_BYTES
    return seconds


def _memory_seconds(
    config: MatmulConfig, m: int, n: int, k: int, working: int, resident: int, batch: int
) -> float:
    """A, B and C once, at the rate that the loads in flight allow."""
    rows, columns = (n, m) if config.swap else (m, n)
    tile_bytes = min(rows, config.rows) + min(columns, config.columns)
    flight = working * config.stages * config.block_k * tile_bytes * config.element_bytes
    rate = MEMORY_BYTES * (1 - math.exp(-flight / FLIGHT_BYTES))
    read = batch * config.element_bytes * (m * k + k * n)
    seconds = (read + batch * C_BYTES[config.c_type] * m * n) / rate
    if working < 0.8 * resident:
        seconds += max(0.0, flight - CROWDED_BYTES) / MEMORY_BYTES
    return seconds


def _shapes() -> Iterator[dict[str, int | bool]]:
    """Tiles worth considering; block_k in units of 128 bytes; the better of equals first."""
    for swap in (False, True):
        for max_splits in (1, 8):
            yield {"rows": 128, "columns": 256, "consumers": 2, "c_parts": 2, "stages": 4,
                   "swap": swap, "max_splits": max_splits}  # fmt: skip
        yield {"rows": 256, "columns": 128, "consumers": 2, "c_parts": 2, "stages": 4, "swap": swap}
        # One consumer of 128 rows was 0 to 5% faster than two of 64, but not where it adds parts.
        for consumers, max_splits in ((1, 1), (2, 8)):
            yield {"rows": 128, "columns": 128, "consumers": consumers, "stages": 6, "swap": swap,
                   "max_splits": max_splits}  # fmt: skip
        yield {"rows": 192, "columns": 128, "consumers": 3, "stages": 4, "swap": swap}
        yield {"rows": 64, "columns": 128, "consumers": 1, "stages": 4, "block_k": 2,
               "swap": swap}  # fmt: skip
        for columns, depths in ((64, (5, 6)), (32, (5, 8)), (16, (5, 7, 9)), (8, (5, 7, 9))):
            for stages in depths:
                for max_splits in (1, 8):
                    yield {"rows": 64, "columns": columns, "consumers": 1, "stages": stages,
                           "block_k": 2, "swap": swap, "max_splits": max_splits}  # fmt: skip


@functools.lru_cache(maxsize=64)
def candidates(
    element_type: str, a_major: Major, b_major: Major, out_type: str | None = None
) -> tuple[MatmulConfig, ...]:
    """The configurations that are considered for sm_90, the better of equals first."""
    found = []
    for shape in _shapes():
        rows, columns = shape.pop("rows"), shape.pop("columns")
        shape["block_m"], shape["block_n"] = (columns, rows) if shape["swap"] else (rows, columns)
        shape["block_k"] = shape.get("block_k", 1) * 128 // ELEMENT_BYTES[element_type]
        for more_parts in (1, 2):  # a wider C may have to be stored in smaller pieces
            fields: dict[str, Any] = shape | {"c_parts": shape.get("c_parts", 1) * more_parts}
            try:
                found.append(
                    MatmulConfig(90, element_type, a_major, b_major, out_type=out_type, **fields)
                )
                break
            except LayoutError:  # also where a swizzle does not fit a narrow MN-major tile
                continue
    return tuple(found)


def best_config(
    element_type: str,
    a_major: Major,
    b_major: Major,
    m: int,
    n: int,
    k: int,
    multiprocessors: int,
    out_type: str | None = None,
    batch: int = 1,
) -> MatmulConfig:
    """The candidate with the shortest predicted time; of equals a swapped one for a wide C."""
    return ranked_configs(
        element_type, a_major, b_major, m, n, k, multiprocessors, out_type, batch
    )[0]


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
    """The candidates, those with the shortest predicted time first."""
    return sorted(
        candidates(element_type, a_major, b_major, out_type),
        key=lambda config: (
            predicted_seconds(config, m, n, k, multiprocessors, batch),
            config.swap != (n >= 2 * m and config.rows == 64),
        ),
    )
