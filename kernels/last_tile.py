"""A block's last tile, which may leave through the buffers of the operands (sm_90): in pieces whose
rows are lines of the L2 cache, where those of other tiles are less than a sector.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from triton_ext.kernels.element_types import C_BYTES
from triton_ext.kernels.epilogue import EpilogueSpec
from triton_ext.kernels.product import ProductSpec
from triton_ext.kernels.tile import PersistentTile, Sm90Tile

LINE_BYTES, SECTOR_BYTES, LEAST_BYTES = 128, 32, 16
"""A line of the L2 cache, which a row of a piece of C has at most; a sector, which takes twice as
long if it is not written as a whole; and what TMA copies a multiple of."""


@dataclass(frozen=True)
class LastTile:
    """The pieces of a tile of C that leaves through the operands' buffers, as a consumer has them.

    Attributes:
        line: elements of a row in shared memory.
        columns: elements of a row that are stored.
        starts: the columns at which they begin: the last one ends where the tile does.
        slots: for each consumer that shares a tile, where they lie, counted in such pieces from
            the begin of the buffers on: in the rows of the left operand that it alone reads.
    """

    line: int
    columns: int
    starts: tuple[int, ...]
    slots: tuple[tuple[int, ...], ...]


@functools.lru_cache(maxsize=4096)
def last_tile(product: ProductSpec, tile: Sm90Tile) -> LastTile:
    """The pieces in which a block's last tile would leave."""
    size = product.c_bytes
    line = LINE_BYTES // size
    number = -(-tile.columns // line)
    step = max(8, LEAST_BYTES // size)
    columns = -(-tile.columns // (number * step)) * step
    pieces = tile.block_k * product.element_bytes // LINE_BYTES  # of as many rows as a tile
    consumers = tile.sharing_consumers
    own = [
        [
            (stage * consumers + which) * pieces + i
            for stage in range(tile.stages)
            for i in range(pieces)
        ]
        for which in range(consumers)
    ]
    starts = tuple(min(i * columns, tile.columns - columns) for i in range(number))
    return LastTile(line, columns, starts, tuple(tuple(each[:number]) for each in own))


def may_leave_through_pipeline(
    product: ProductSpec, epilogue: EpilogueSpec, tile: Sm90Tile
) -> bool:
    """Whether the last tile of a block may leave through the operands' buffers: that helps if the
    rows of its other pieces are less than a sector.
    """
    if tile.swap_ab or epilogue.residual or tile.cluster_k > 1 or product.collective:
        return False
    if product.groups is not None:
        return False
    if product.c_type not in C_BYTES or tile.c_columns * product.c_bytes >= SECTOR_BYTES:
        return False
    pieces = last_tile(product, tile)
    fit = all(len(slots) == len(pieces.starts) for slots in pieces.slots)
    return fit and pieces.columns > tile.c_columns


def half_sectors(product: ProductSpec, tile: PersistentTile) -> int:
    """Sectors of the L2 cache that are written in part, of a row of a block's last tile of C,
    if the row begins with a sector: where pieces begin or end within one.
    """
    if tile.swap_ab:
        return 0  # a row of C has 64 elements
    width: int = tile.c_columns
    starts = tuple(range(0, tile.columns, width))
    if isinstance(tile, Sm90Tile) and tile.last_through_pipeline:
        pieces = last_tile(product, tile)
        width, starts = pieces.columns, pieces.starts
    edges = [
        product.c_bytes * edge % SECTOR_BYTES for start in starts for edge in (start, start + width)
    ]
    return sum(edge > 0 for edge in edges)
