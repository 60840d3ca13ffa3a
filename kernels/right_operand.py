"""How the tile of the right operand lies in *units*: tiles side by side, of which one instruction
reads all, so that their columns need not be a power of two (`kernels/device/wgmma.py`).
"""

from __future__ import annotations

from triton_ext.kernels.product import ProductSpec
from triton_ext.kernels.tile import PersistentTile, Sm90Tile


def _line(product: ProductSpec, tile: Sm90Tile) -> int:
    """Elements of a row of a tile of units in shared memory."""
    return ((tile.a_swizzle if tile.swap_ab else tile.b_swizzle) or 128) // product.element_bytes


def panels_along_k(product: ProductSpec, tile: PersistentTile) -> int:
    """Into how many tiles along K a tile of units is divided: those of a K-major operand are as
    wide as its swizzle, so that the columns of all units follow one another.
    """
    if isinstance(tile, Sm90Tile) and tile.units > 1 and product.majors(tile.swap_ab)[1] == "K":
        return max(1, tile.block_k // _line(product, tile))
    return 1


def right_unit(product: ProductSpec, tile: PersistentTile) -> tuple[int, int]:
    """The size of a unit: (elements along K, columns). Those of an MN-major operand are as wide as
    its swizzle; of the last one some columns alone may be copied and read.
    """
    if not isinstance(tile, Sm90Tile):
        return tile.block_k, tile.columns
    in_lines = tile.units > 1 and product.majors(tile.swap_ab)[1] == "MN"
    columns = _line(product, tile) if in_lines else tile.unit
    return tile.block_k // panels_along_k(product, tile), columns


def right_columns(product: ProductSpec, tile: PersistentTile) -> int:
    """Columns of the tile in shared memory."""
    if tile.units == 1:
        return tile.columns
    _, columns = right_unit(product, tile)
    return -(-tile.columns // columns) * columns


def edge_columns(product: ProductSpec, tile: PersistentTile) -> int:
    """Columns of an MN-major tile of units that are no whole line, if there are others: they are
    copied by themselves.
    """
    if not isinstance(tile, Sm90Tile) or tile.units == 1:
        return 0
    line = _line(product, tile)
    in_lines = product.majors(tile.swap_ab)[1] == "MN"
    return tile.columns % line if in_lines and tile.columns >= line else 0
