"""What a tile takes of shared memory, in bytes."""

from __future__ import annotations

import math

from triton_ext.hardware.architecture import SHARED_MEMORY_PER_BLOCK
from triton_ext.kernels.element_types import FP32_SCALE_BLOCK
from triton_ext.kernels.product import ProductSpec
from triton_ext.kernels.right_operand import right_columns
from triton_ext.kernels.tile import PersistentTile, SimpleTile, Sm90Tile, Tile

BARRIERS = 1024
"""The bytes that are left for barriers."""


def stage_bytes(product: ProductSpec, tile: PersistentTile) -> int:
    """What the tiles of A and B, and their scales, take for one product."""
    rows_of_both = tile.rows + right_columns(product, tile) // tile.cta_group
    operands = rows_of_both * tile.block_k * product.element_bytes
    scales = (tile.rows + tile.columns) * product.scales(tile.block_k)
    if isinstance(tile, Sm90Tile):
        scales += -(-sum(scale_counts(product, tile)) // 4) * 16
    return operands + scales


def scale_counts(product: ProductSpec, tile: Sm90Tile) -> tuple[int, int]:
    """How many fp32 scales a block's tile has for one product, of rows and of columns."""
    left, right = product.scale_rows[:: -1 if tile.swap_ab else 1]
    if not left:
        return 0, 0
    return (
        tile.rows if left == 1 else tile.rows // 64,
        tile.columns if right == 1 else segments(product, tile),
    )


def segments(product: ProductSpec, tile: Sm90Tile) -> int:
    """Into how many equal parts a tile's columns are divided, of which each lies in one block of
    128.
    """
    return tile.columns // math.gcd(tile.columns // product.parts_of_b, FP32_SCALE_BLOCK)


def buffer_bytes(product: ProductSpec, tile: PersistentTile) -> int:
    """What a buffer for a piece of C takes, of all consumers."""
    rows = tile.rows * tile.consumers // tile.sharing_consumers
    return rows * tile.c_columns * product.c_bytes // tile.cluster_k


def scatter_bytes(product: ProductSpec, tile: PersistentTile) -> int:
    """What it takes to know where the rows of a tile go, and their factors (`row_scatter`)."""
    if not product.scattered:
        return 0
    rows = tile.rows // tile.sharing_consumers
    if tile.swap_ab:
        rows = 1 << (tile.columns - 1).bit_length()
    return 2 * 4 * tile.consumers * rows


def shared_memory_bytes(product: ProductSpec, tile: Tile) -> int:
    """What the tiles of A, B and C take, all stages, with `BARRIERS`.

    In the simple kernel, the tile of C reuses the memory of the others when they are not needed.
    """
    if isinstance(tile, SimpleTile):
        rows_of_both = tile.block_m + tile.block_n
        operands = tile.stages * rows_of_both * tile.block_k * product.element_bytes
        return max(operands, tile.block_m * tile.block_n * product.c_bytes) + BARRIERS
    c = tile.c_buffers * buffer_bytes(product, tile)
    exchanged = 4 * tile.rows * tile.columns if tile.cluster_k > 1 else 0
    others = exchanged + scatter_bytes(product, tile) + BARRIERS
    return tile.stages * stage_bytes(product, tile) + c + others


def most_stages(product: ProductSpec, tile: PersistentTile) -> int:
    """How many stages there is room for."""
    left = SHARED_MEMORY_PER_BLOCK - shared_memory_bytes(product, tile)
    return tile.stages + left // stage_bytes(product, tile)
