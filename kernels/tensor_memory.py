"""What the sums of a tile, and its scales, take of tensor memory (sm_100)."""

from __future__ import annotations

from triton_ext.hardware.tensor_memory import TMEM_COLUMNS
from triton_ext.kernels.element_types import SCALE_BLOCK
from triton_ext.kernels.product import ProductSpec
from triton_ext.kernels.tile import PersistentTile


def shared_sums(product: ProductSpec, tile: PersistentTile) -> int:
    """How many columns of tensor memory the sums of one tile share with those of the next, where
    scales leave no room for two.
    """
    scales = product.scales(tile.block_k) * (tile.rows + tile.columns) // SCALE_BLOCK[0]
    return max(0, 2 * tile.columns + scales - TMEM_COLUMNS)
