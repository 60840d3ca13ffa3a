"""How the tiles of a kernel lie in shared memory, which follows from the product and the tile."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from triton_ext.errors import LayoutError
from triton_ext.hardware.tensor_map import SMEM_ALIGNMENT
from triton_ext.kernels.last_tile import LINE_BYTES, last_tile
from triton_ext.kernels.product import ProductSpec
from triton_ext.kernels.right_operand import edge_columns, right_unit
from triton_ext.kernels.tile import PersistentTile, SimpleTile, Sm90Tile, Sm100Tile, Tile
from triton_ext.kernels.tiles import Boxes, TileLayouts, scale_layouts, tile_layouts
from triton_ext.layouts.encodings import NVMMAShared, SharedLinear
from triton_ext.layouts.nvmma_shared import ATOM_ROWS

Bases = Sequence[Sequence[int]]


@dataclass(frozen=True)
class KernelLayouts:
    """The layouts of a kernel's tiles.

    Attributes:
        left: the tile of the left operand that one consumer reads: (rows, along K), over all blocks
            of a cluster.
        right: the tile of the right operand, or a unit of it: (along K, columns).
        c: the piece of C that is stored at a time; in memory C is N-major.
        swap_ab: whether A is the right operand.
        edge: the last columns of the right operand's tile, whose boxes have a descriptor of their
            own; or None.
        scales: the block scales of the left and the right operand's tiles; or None.
        last: the piece of C that is stored at a time of a block's last tile, if that is another
            one: its rows are lines; what is copied of them, `last_tile` says.
        exchanged: where blocks divide K: what one of them has of a piece of C, of 32 bits an
            element, as they divide it when they add it up; else None.
    """

    left: TileLayouts
    right: TileLayouts
    c: TileLayouts
    swap_ab: bool = False
    edge: TileLayouts | None = None
    scales: tuple[TileLayouts, TileLayouts] | None = None
    last: TileLayouts | None = None
    exchanged: TileLayouts | None = None

    @property
    def a(self) -> TileLayouts:
        """The tile of A; (block_m, block_k) if there is one consumer, no cluster and one unit."""
        return self.right if self.swap_ab else self.left

    @property
    def b(self) -> TileLayouts:
        """The tile of B; (block_k, block_n), or its transpose if they are swapped; one unit."""
        return self.left if self.swap_ab else self.right

    @property
    def boxes(self) -> tuple[Boxes | None, Boxes | None, Boxes | None]:
        """Those of the left operand, the right one and its edge; None if not copied so."""
        return self.left.boxes, self.right.boxes, self.edge.boxes if self.edge else None

    @property
    def exchange(self) -> SharedLinear | None:
        """What all blocks have of `exchanged`, one after the other: (blocks, rows, columns)."""
        if self.exchanged is None:
            return None
        one = self.exchanged.linear
        bases = [(0, *basis) for basis in one.offset_bases]
        bases += [(1 << i, 0, 0) for i in range(len(one.block_bases))]
        split = tuple((0, *basis) for basis in one.block_bases)
        return SharedLinear(tuple(bases), split, one.alignment)


@functools.lru_cache(maxsize=4096)
def layouts_of(product: ProductSpec, tile: Tile) -> KernelLayouts:
    """The layouts of a product's kernel. Raises LayoutError: a swizzle that does not fit the tile,
    or boxes that TMA does not copy."""
    if isinstance(tile, SimpleTile):
        return _simple_layouts(product, tile)
    c_bits = 8 * product.c_bytes
    c_rows = tile.cluster_m * tile.rows // tile.sharing_consumers
    c_shape = (c_rows, tile.cluster_n * tile.c_columns)
    bases = _c_bases(tile)
    scales = last = exchanged = None
    if product.scaling is not None:
        number = product.scales(tile.block_k)
        left = scale_layouts(tile.cluster_m * tile.rows, number, _row_bases(tile))
        # All blocks of a cluster have the scales of all columns.
        scales = left, scale_layouts(tile.columns, number, [[0, 0] for _ in _row_bases(tile)])
    if tile.last_through_pipeline and isinstance(tile, Sm90Tile):
        shape = (c_rows, tile.cluster_n * last_tile(product, tile).line)
        last = tile_layouts(shape, 1, c_bits, LINE_BYTES, bases, product.batched)
    if tile.cluster_k > 1:
        exchanged = tile_layouts(
            (tile.rows // tile.sharing_consumers, tile.c_columns), 1, 32, None, bases
        )
    right = _right(product, tile)
    return KernelLayouts(
        _left(product, tile),
        right,
        tile_layouts(c_shape, 0 if tile.swap_ab else 1, c_bits, None, bases, product.batched),
        tile.swap_ab,
        _edge(product, tile, right) if isinstance(tile, Sm90Tile) else None,
        scales,
        last,
        exchanged,
    )


def _simple_layouts(product: ProductSpec, tile: SimpleTile) -> KernelLayouts:
    bits = 8 * product.element_bytes
    a_dim, b_dim = int(product.a_major == "K"), int(product.b_major != "K")
    return KernelLayouts(
        tile_layouts((tile.block_m, tile.block_k), a_dim, bits, tile.a_swizzle),
        tile_layouts((tile.block_k, tile.block_n), b_dim, bits, tile.b_swizzle),
        tile_layouts((tile.block_m, tile.block_n), 1, 8 * product.c_bytes),
    )


def _swizzles(tile: PersistentTile) -> tuple[int | None, int | None]:
    """Those that the left and the right operand are to have."""
    if not isinstance(tile, Sm90Tile):
        return None, None
    both = tile.a_swizzle, tile.b_swizzle
    return both[::-1] if tile.swap_ab else both


def _left(product: ProductSpec, tile: PersistentTile) -> TileLayouts:
    rows = tile.rows // tile.sharing_consumers
    k_major = product.majors(tile.swap_ab)[0] == "K"
    dim, bits = 1 if k_major else 0, 8 * product.element_bytes
    blocks = tile.cluster_m * tile.cluster_k
    made = tile_layouts(
        (blocks * rows, tile.block_k), dim, bits, _swizzles(tile)[0], _row_bases(tile),
        product.batched,
    )  # fmt: skip
    if isinstance(tile, Sm90Tile) and (tile.cluster_n > 1 or tile.loaded_rows):
        return _in_boxes(
            product, tile, made, 0, rows, k_major, tile.cluster_n, tile.cluster_m,
            tile.sharing_consumers, tile.loaded_rows,
        )  # fmt: skip
    if product.gathered and not tile.swap_ab:
        made = _row_by_row(product, tile, made, 0)
    return _along_k(product, tile, made, (rows, tile.block_k), 1, dim)


def _right(product: ProductSpec, tile: PersistentTile) -> TileLayouts:
    shape = right_unit(product, tile)
    k_major = product.majors(tile.swap_ab)[1] == "K"
    dim, bits = 0 if k_major else 1, 8 * product.element_bytes
    bases = _column_bases(tile)
    if tile.cta_group == 2:
        bases[0] = [0, 1]
    all_blocks = (shape[0], tile.cluster_n * shape[1])
    width = _swizzles(tile)[1]
    half = shape[0], shape[1] // product.parts_of_b
    if product.parts_of_b > 1:
        width = tile_layouts(half, dim, bits, width, bases).encoding.swizzle_byte_width
    made = tile_layouts(all_blocks, dim, bits, width, bases, product.batched)
    if isinstance(tile, Sm90Tile) and (
        tile.shares_tiles or tile.units > 1 or product.parts_of_b > 1
    ):
        return _in_boxes(
            product, tile, made, 1, tile.columns // product.parts_of_b, k_major, tile.cluster_m, 1,
            product.parts_of_b, matrices=product.parts_of_b,
        )  # fmt: skip
    if product.parts_of_b > 1:
        seen = tile_layouts(half, dim, bits, width, bases, product.batched)
        return replace(made, tma_shape=seen.tma_shape, tma_encoding=seen.tma_encoding)
    if product.gathered and tile.swap_ab:
        made = _row_by_row(product, tile, made, 1)
    return _along_k(product, tile, made, shape, 0, dim)


def _row_by_row(
    product: ProductSpec, tile: PersistentTile, made: TileLayouts, position: int
) -> TileLayouts:
    """The tile of A, the operand of that position, whose rows TMA copies one by one (sm_100); it
    sees a matrix then, also where the other operand is a batch.
    """
    width = made.encoding.swizzle_byte_width
    if not (isinstance(tile, Sm100Tile) and width):
        return made
    wide = width // product.element_bytes
    lines = tile.block_k // wide
    boxes = Boxes(
        position, 1, wide, wide, tile.block_m, lines, 0, lines, 1, 0, 1, tile.block_m, 1, 1, True,
        product.element_bytes,
    )  # fmt: skip
    encoding = NVMMAShared(width, 8 * product.element_bytes)
    return replace(made, tma_shape=(ATOM_ROWS, wide), tma_encoding=encoding, boxes=boxes)


def _edge(product: ProductSpec, tile: Sm90Tile, right: TileLayouts) -> TileLayouts | None:
    """The last columns of the right operand's tile, given its layouts."""
    if not edge_columns(product, tile) or right.boxes is None:
        return None
    panels = right.boxes.panels, right.boxes.panels + 1
    return _in_boxes(
        product, tile, right, 3, tile.columns, False, tile.cluster_m, 1, panels=panels
    )  # fmt: skip


def _in_boxes(
    product: ProductSpec, tile: Sm90Tile, made: TileLayouts, position: int, size: int,
    k_major: bool, among: int, apart: int, parts: int = 1, copied: int = 0,
    panels: tuple[int, int] | None = None, matrices: int = 1,
) -> TileLayouts:  # fmt: skip
    """A tile that is copied in boxes.

    Args:
        made: as the tensor cores see it.
        position, among, apart, parts, matrices: see `Boxes`.
        size: rows or columns of what one block has of it, or of one of its parts.
        copied: how many rows are copied, if not all.
        panels: which panels of a part are copied, from the first to before the second; by
            default all whole ones, or the only one.
    """
    width = made.encoding.swizzle_byte_width
    if not width:
        return made  # not legal
    wide = width // product.element_bytes
    along, across = (tile.block_k, size) if k_major else (size, tile.block_k)
    first, end = panels or (0, max(1, along // wide))
    pieces, copies = 1, parts * (end - first)
    if copies % among:  # so that all blocks copy as many
        pieces = among // copies if among % copies == 0 else among
    rows = (copied or across) // pieces
    if rows * width % SMEM_ALIGNMENT:
        raise LayoutError(
            "cluster_m",
            among,
            f"must be less: boxes of {rows} rows of {width} bytes are no multiple of"
            f" {SMEM_ALIGNMENT} bytes",
        )
    step = size * (tile.cluster_m if position == 0 else tile.cluster_n)
    step = 0 if matrices > 1 else step
    boxes = Boxes(
        position, rows, min(along - first * wide, wide), wide, across, end - first, first,
        -(-along // wide), parts, step, matrices, pieces, among, apart, k_major,
        product.element_bytes,
    )  # fmt: skip
    shape = (*((1,) if product.batched else ()), ATOM_ROWS, wide)
    everywhere = ((0,) * len(shape),) * len(_row_bases(tile))
    encoding = replace(made.tma_encoding, cga_layout=everywhere)
    return replace(made, tma_shape=shape, tma_encoding=encoding, boxes=boxes)


def _along_k(
    product: ProductSpec, tile: PersistentTile, made: TileLayouts, shape: tuple[int, int],
    k_dim: int, dim: int,
) -> TileLayouts:  # fmt: skip
    """An operand's tile as the TMA unit sees it where the blocks of a cluster divide K: theirs
    are one tile; for the tensor cores, each has its own.

    Args:
        made: as the tensor cores see it.
        shape: of what one block reads.
        k_dim: which of its dimensions is K.
        dim: the one that is contiguous in memory.
    """
    if tile.cluster_k == 1:
        return made
    all_blocks = [size * (tile.cluster_k if i == k_dim else 1) for i, size in enumerate(shape)]
    bases = [[step * (i == k_dim) for i in (0, 1)] for step, _ in _row_bases(tile)]
    width, bits = made.encoding.swizzle_byte_width, 8 * product.element_bytes
    seen = tile_layouts(tuple(all_blocks), dim, bits, width, bases, product.batched)
    return replace(made, tma_shape=seen.tma_shape, tma_encoding=seen.tma_encoding)


def _row_bases(tile: PersistentTile) -> list[list[int]]:
    """How the blocks of a cluster divide the rows of what they multiply; those side by side
    have the same.
    """
    below = tile.cluster_m * tile.cluster_k
    return [[(1 << i) % below, 0] for i in range(tile.cluster_size.bit_length() - 1)]


def _column_bases(tile: PersistentTile) -> list[list[int]]:
    """How they divide the columns."""
    below = tile.cluster_m * tile.cluster_k
    return [[0, (1 << i) // below] for i in range(tile.cluster_size.bit_length() - 1)]


def _c_bases(tile: PersistentTile) -> list[list[int]]:
    """How they divide a piece of C: by columns, where they have added it up."""
    if tile.cluster_k > 1:
        return [list(reversed(basis)) for basis in _row_bases(tile)]
    both = zip(_row_bases(tile), _column_bases(tile), strict=True)
    return [[row[0], column[1]] for row, column in both]
