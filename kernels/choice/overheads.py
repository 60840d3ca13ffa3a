"""What a launch on Hopper costs besides what limits it (`limits`), in seconds: its begin and end,
what happens between the tiles of a block, and the way of the sums to C.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from triton_ext.hardware.architecture import SHARED_MEMORY_PER_BLOCK as SHARED_BYTES
from triton_ext.kernels.choice.table import Array, Division, Table, ceil


@dataclass(frozen=True)
class Overheads:
    """What is fitted; seconds, and quantities a second.

    Attributes:
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


def launch_seconds(
    table: Table, work: Division, multiprocessors: int, overheads: Overheads
) -> Array:
    """The seconds of all that is here, but those between a block's tiles."""
    return (
        overheads.launch
        + _zeroed(table, work) / overheads.zero_bytes
        + overheads.full * _crowded(table, work, multiprocessors)
        + overheads.cluster * (table.cluster_size > 1)
        + store_seconds(table, overheads)
        + parts_seconds(table, work, overheads)
        + _exchange_seconds(table, overheads)
    )


def turn_seconds(table: Table, work: Division, overheads: Overheads) -> Array:
    """The seconds between the tiles of a block, if its consumers share them."""
    turns = work.waves + (work.part > 0) + (work.parts < 0) - 1
    size = np.minimum(1.0, table.columns * np.minimum(table.rows, 128) / (128 * 128))
    return np.where(table.pingpong, 0, turns * overheads.tile * size)


def store_seconds(table: Table, overheads: Overheads) -> Array:
    """The seconds of storing a tile of C: its bytes, and sectors that are written in part."""
    size = table.rows * table.columns / table.cluster_k
    stored = size * table.c_bytes / overheads.store_bytes
    return stored + table.rows * table.half_sectors * overheads.half


def parts_seconds(table: Table, work: Division, overheads: Overheads) -> Array:
    """The seconds of adding up the parts of a tile."""
    tile_bytes = 4.0 * table.rows * table.columns
    share = ceil(table.c_pieces, np.maximum(work.parts, 1)) / table.c_pieces
    read = np.where(work.parts > 0, work.parts * share, -work.parts)
    seconds = overheads.part + (1 + read) * tile_bytes / overheads.part_bytes
    return np.where(work.parts != 0, seconds, 0.0)


def _crowded(table: Table, work: Division, multiprocessors: int) -> Array:
    """The fraction of the blocks that wait for one of the kernel before to end."""
    resident = np.clip(SHARED_BYTES // table.shared_memory_bytes, 1, 4)
    blocks = work.tiles * table.cluster_size * np.maximum(1, work.parts)
    everywhere = (work.parts < 0) | ((work.parts != 0) & (work.waves > 0))
    blocks = np.where(everywhere, multiprocessors, np.minimum(blocks, multiprocessors))
    return np.clip((2 * blocks - multiprocessors * resident) / blocks, 0.0, 1.0)


def _zeroed(table: Table, work: Division) -> Array:
    """The bytes of tiles of which some rows are not copied, as far as they are used."""
    stages = np.minimum(table.stages, work.k_tiles * np.ceil(work.waves + work.part))
    tile = table.rows * table.block_k * table.element_bytes
    return np.where(table.loaded_rows > 0, stages * tile, 0.0)


def _exchange_seconds(table: Table, overheads: Overheads) -> Array:
    """The seconds in which the blocks of a cluster add up what each has of a tile."""
    seconds = overheads.exchange + 4.0 * table.rows * table.columns / overheads.exchange_bytes
    return np.where(table.cluster_k > 1, seconds, 0.0)
