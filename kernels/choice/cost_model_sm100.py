"""Which configuration to use for a problem on Blackwell: the one with the shortest predicted time.

No Blackwell has measured this. The rates are those that NVIDIA documents for a B200; what nobody
documents is taken over from Hopper, and says so. It is meant to be right about what is large: waves
of tiles, how often an operand is loaded, how much of a tile is padding. An SM's limits are

- its tensor cores, which read A and B from shared memory at 128 bytes a cycle while they multiply:
  a narrow tile takes as long as one of 64 columns, since its A has to be read all the same;
- what it loads from the L2 cache, less what a pair or a cluster shares;

and those of the GPU the memory, which A, B and C cross once, and the waves: tiles come in groups of
as many as there are SMs. Of these, the longest counts. The epilogue of a tile runs under the
products of the next; of the last tile it adds to the time.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.kernels.choice.candidates import is_new
from triton_ext.kernels.config import MatmulConfig
from triton_ext.kernels.element_types import C_BYTES, ELEMENT_BYTES, ELEMENT_TYPES, Major

MMA_ROWS = 128
"""A product of 64 rows takes as long as one of 128 (PTX ISA, "Data path layout": it uses half of
the lanes)."""
SHARED_BYTES = 128
"""Bytes of shared memory that an SM reads in a cycle (CUDA programming guide: 32 banks)."""


@dataclass(frozen=True)
class Constants:
    """What nobody has measured; ``python -m benchmarks.fit`` fits it to a survey.

    Attributes:
        clock: cycles a second under load: what the rates of NVIDIA's data sheet of the HGX B200
            (2.25e15 dense operations of 16 bits a second for 148 SMs) come to at `mma_flops`.
        mma_flops: operations of an SM's tensor cores in a cycle, with 16-bit operands; with 8-bit
            ones twice that, with tf32 half, with 4-bit ones, two of which count as one, four times
            as many (the same data sheet: 4.5e15, 1.1e15, 9e15).
        memory_bytes: from memory in a second (the same data sheet).
        load_bytes: that an SM loads from the L2 cache in a cycle. An assumption: that of the A100
            (its white paper), which Hopper's SMs were measured not to exceed.
        launch: seconds from the kernel before to the first product, and from the last one to the
            end: as on Hopper.
        cluster: what a launch takes longer if its blocks form clusters: as on Hopper.
        tile: from the last product of a tile to the first of the next: an assumption. (The next
            tile's operands are there; its tensor memory has been read.)
        store_bytes: that an SM stores in a second: as on Hopper.
        part_bytes: of a part of a tile that an SM writes in a second, and reads back: as on Hopper.
        part: what it takes to tell that a part is there, and to find out: as on Hopper.
    """

    clock: float = 1.85e9
    mma_flops: float = 8192
    memory_bytes: float = 7.7e12
    load_bytes: float = 64
    launch: float = 2e-6
    cluster: float = 1.3e-6
    tile: float = 0.2e-6
    store_bytes: float = 524e9
    part_bytes: float = 24.6e9
    part: float = 1.15e-6


FITTED = Constants()
"""Not fitted yet: documented, or taken over from Hopper."""


def predicted_seconds(
    config: MatmulConfig,
    m: int,
    n: int,
    k: int,
    multiprocessors: int,
    batch: int = 1,
    *,
    constants: Constants = FITTED,
) -> float:
    """The seconds that the product, or a batch of them, takes on a GPU with that many SMs."""
    rows, columns = (n, m) if config.swap else (m, n)
    tiles = batch * -(-rows // (config.cluster * config.rows)) * -(-columns // config.columns)
    resident = multiprocessors // config.cluster
    k_tiles = -(-k // config.block_k)
    cycles = _multiply_cycles(config, constants.mma_flops)
    tile = k_tiles * max(cycles, _load_bytes(config) / constants.load_bytes) / constants.clock
    waves, left = divmod(tiles, resident)
    stored: float = config.rows * config.columns * C_BYTES[config.c_type]
    stored /= constants.store_bytes
    early = 2 * -(-config.shared_sums // config.c_columns)  # pieces: see kernels/device/epilogue.py
    between = constants.tile + stored * min(1.0, early / config.c_parts)
    seconds = waves * tile + (waves + bool(left) - 1) * between
    if left:
        splits = max(1, min(resident // left, config.max_splits, k_tiles // 4))
        seconds += tile / splits
        if splits > 1:
            part_bytes = 2 * 4 * config.rows * config.columns
            seconds += constants.part + part_bytes / constants.part_bytes
    operands = config.element_bytes * (m * k + k * n)
    moved = batch * (operands + C_BYTES[config.c_type] * m * n)
    return (
        constants.launch
        + constants.cluster * (config.cluster > 1)
        + max(seconds, moved / constants.memory_bytes)
        + stored
    )


def _multiply_cycles(config: MatmulConfig, mma_flops: float) -> float:
    """Cycles of an SM's tensor cores for the product of a tile of A and one of B."""
    flops = 2 * MMA_ROWS * config.columns * config.block_k
    rate = mma_flops * 2 / config.element_bytes
    read = (config.rows + config.columns / (1 + config.pair)) * config.block_k
    return max(flops / rate, read * config.element_bytes / SHARED_BYTES)


def _load_bytes(config: MatmulConfig) -> float:
    """Bytes that a block loads for that; the blocks of a cluster share the right tile."""
    length = config.rows + config.columns / config.cluster
    return (config.block_k * config.element_bytes + config.scales) * length


def _tile(rows: int, columns: int, stages: int, **more: Any) -> dict[str, Any]:
    """A tile of `_TILES`."""
    return {"rows": rows, "columns": columns, "stages": stages, **more}


_TILES = [
    *(
        _tile(128, columns, stages, cluster=2, pair=True, **parts)
        for columns, stages in ((256, 6), (128, 8))
        for parts in ({}, {"max_splits": 8})
    ),
    *(
        _tile(128, columns, stages, max_splits=splits)
        for columns, stages in ((256, 4), (128, 6), (64, 8))
        for splits in (1, 8)
    ),
    *(
        _tile(128, columns, 5, block_k=2, max_splits=splits)
        for columns in (32, 16)
        for splits in (1, 8)
    ),
]
"""Tiles worth considering, as they are and swapped: rows and columns of what is computed, and
fields of `MatmulConfig`; block_k in units of 128 bytes; the better of equals first."""
C_ROW_BYTES = 128
"""Bytes of a row of the pieces in which a tile is stored: the widest swizzle."""


@functools.lru_cache(maxsize=64)
def candidates(
    element_type: str, a_major: Major, b_major: Major, out_type: str | None = None
) -> tuple[MatmulConfig, ...]:
    """The configurations that are considered for sm_100, the better of equals first."""
    c_bytes = C_BYTES[out_type or (element_type if element_type in ELEMENT_TYPES else "fp32")]
    found = []
    for swap in (False, True):
        for tile in _TILES:
            if {"cluster", "max_splits"} <= tile.keys() and not is_new():
                continue
            pieces = max(1, tile["columns"] * c_bytes // C_ROW_BYTES)
            fields: dict[str, Any] = {"block_k": 1, **tile}
            left, right = ("block_n", "block_m") if swap else ("block_m", "block_n")
            fields[left], fields[right] = fields.pop("rows"), fields.pop("columns")
            fields["block_k"] *= 128 // ELEMENT_BYTES[element_type]
            most = fields.pop("stages")
            # As many stages as there is room for, and be it with narrower pieces of C.
            for stages, (parts, buffers) in itertools.product(
                range(most, 1, -1), ((pieces, min(pieces, 2)), (2 * pieces, 3))
            ):
                fields |= {"stages": stages, "c_parts": parts, "c_buffers": buffers}
                try:
                    config = MatmulConfig(
                        100, element_type, a_major, b_major, out_type=out_type, consumers=1,
                        swap=swap, **fields,
                    )  # fmt: skip
                except LayoutError as error:
                    if parts == pieces and error.argument != "stages":
                        break  # a swizzle does not fit a narrow MN-major tile of 8 bits
                else:
                    found.append(config)
                    break
    return tuple(found)


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
    """The candidates, those with the shortest predicted time first; of equals one that is not
    swapped.
    """
    return sorted(
        candidates(element_type, a_major, b_major, out_type),
        key=lambda config: predicted_seconds(config, m, n, k, multiprocessors, batch),
    )
