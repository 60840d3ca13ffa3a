"""How a tile lies in shared memory: for the TMA unit that copies it, and for the tensor cores.

A TMA descriptor's last dimension is contiguous, so the TMA view of a tile has its dimensions
reversed where the first one is contiguous; in shared memory both views are the same bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from triton_ext.kernels.element_types import SCALE_BLOCK
from triton_ext.layouts.encodings import NVMMAShared, SharedLinear
from triton_ext.layouts.nvmma_shared import nvmma_shared_to_linear_layout


@dataclass(frozen=True)
class Boxes:
    """How an operand's tile is copied in boxes of any number of rows (`kernels/device/boxes.py`).

    Each part of the tile, and each *panel* of a part, is contiguous in shared memory; a panel's
    rows are as far apart as its swizzle is wide, also where the box is narrower.

    Attributes:
        position: that of the operand's descriptor among the kernel's.
        rows, copied: elements of a box, `copied` along the contiguous dimension.
        wide: elements of a panel's row in shared memory.
        across: rows of a panel.
        panels: how many of a part are copied, from panel `first` on.
        first, all_panels: see there; of a part, how many panels there are.
        parts: of what one block has of the tile.
        step: rows of the matrix from a part's first to that of the next.
        matrices: among how many matrices, one after the other, the parts are divided: 1, or
            `parts`.
        pieces: boxes of a panel.
        among: how many blocks of a cluster share the tile; each copies some boxes to all.
        apart: how far apart these are in the cluster.
        k_major: whether K is the contiguous dimension.
        element_bytes: bytes of an element.
    """

    position: int
    rows: int
    copied: int
    wide: int
    across: int
    panels: int
    first: int
    all_panels: int
    parts: int
    step: int
    matrices: int
    pieces: int
    among: int
    apart: int
    k_major: bool
    element_bytes: int

    @property
    def number(self) -> int:
        """How many boxes a block copies."""
        return self.parts * self.panels * self.pieces // self.among

    @property
    def bytes(self) -> int:
        """How many bytes arrive at each block, from all that share the tile."""
        return self.number * self.among * self.rows * self.copied * self.element_bytes


@dataclass(frozen=True)
class TileLayouts:
    """How one tile lies in shared memory, for those who read or write it.

    Attributes:
        encoding: the NVMMA encoding of the tile as the kernel sees it.
        linear: the same as bases, from this project's conversion: what the kernel allocates.
        tma_shape: the tile as the TMA unit sees it, the contiguous dimension last; of a batch,
            with a first dimension of 1.
        tma_encoding: the NVMMA encoding of that view.
    """

    encoding: NVMMAShared
    linear: SharedLinear
    tma_shape: tuple[int, ...]
    tma_encoding: NVMMAShared
    boxes: Boxes | None = None


def tile_layouts(
    shape: Sequence[int],
    contiguous_dim: int,
    element_bitwidth: int,
    swizzle: int | None = None,
    cga_layout: Sequence[Sequence[int]] = (),
    batched: bool = False,
) -> TileLayouts:
    """The layouts of a 2-D tile.

    Args:
        shape: the tile's, as the kernel sees it; over all blocks of a cluster.
        contiguous_dim: 0 or 1, which of its dimensions is contiguous in global memory.
        swizzle: the swizzle width in bytes; None for the widest that fits.
        cga_layout: how the tile is divided among the blocks of a cluster, as in `NVMMAShared`.
        batched: the TMA unit takes it from, or puts it into, a batch of matrices.

    Raises:
        LayoutError: the swizzle is unknown, or does not fit.
    """
    bases = tuple(tuple(basis) for basis in cga_layout)
    return _tile_layouts(tuple(shape), contiguous_dim, element_bitwidth, swizzle, bases, batched)


@functools.lru_cache(maxsize=4096)  # candidates for a problem share most of their tiles
def _tile_layouts(
    shape: tuple[int, ...],
    contiguous_dim: int,
    element_bitwidth: int,
    swizzle: int | None,
    cga_layout: tuple[tuple[int, ...], ...],
    batched: bool,
) -> TileLayouts:
    transposed = contiguous_dim == 0
    lead = (1,) if batched else ()
    tma_shape = (*lead, *(reversed(shape) if transposed else shape))
    if swizzle is None:
        split = [max([1, *(2 * basis[dim] for basis in cga_layout)]) for dim in (0, 1)]
        per_block = [size // parts for size, parts in zip(shape, split, strict=True)]
        if transposed:
            per_block.reverse()
        swizzle = NVMMAShared.default_for(per_block, element_bitwidth).swizzle_byte_width
    encoding = NVMMAShared(swizzle, element_bitwidth, transposed=transposed, cga_layout=cga_layout)
    tma_encoding = NVMMAShared(
        swizzle,
        element_bitwidth,
        rank=len(tma_shape),
        cga_layout=tuple(
            (*(0 for _ in lead), *(reversed(basis) if transposed else basis))
            for basis in cga_layout
        ),
    )
    linear = SharedLinear.from_linear_layout(
        nvmma_shared_to_linear_layout(shape, encoding), alignment=max(encoding.alignment, 128)
    )
    return TileLayouts(encoding, linear, tma_shape, tma_encoding)


def scale_layouts(rows: int, columns: int, cga_layout: Sequence[Sequence[int]] = ()) -> TileLayouts:
    """The layouts of the scales of a tile, (row, scale), in whole blocks of `SCALE_BLOCK`.

    In a block, the 4 bytes of row r begin at byte 16 * (r % 32) + 4 * (r // 32). The `encoding` is
    that of the TMA view, (row of blocks, column of blocks, 2, 256 bytes).

    Args:
        rows, columns: over all blocks of a cluster.
        cga_layout: as for `tile_layouts`.
    """
    own_rows = rows // max([1, *(2 * basis[0] for basis in cga_layout)])
    powers = [1 << i for i in range(max(own_rows, columns).bit_length())]
    bases = [(0, 1), (0, 2), (32, 0), (64, 0), *((power, 0) for power in powers[:5])]
    bases += [(0, power) for power in powers if SCALE_BLOCK[1] <= power < columns]
    bases += [(power, 0) for power in powers if SCALE_BLOCK[0] <= power < own_rows]
    shares = tuple((own_rows * basis[0], 0) for basis in cga_layout)
    tma_shape = (rows // SCALE_BLOCK[0], columns // SCALE_BLOCK[1], 2, 256)
    encoding = NVMMAShared(0, 8, rank=4, cga_layout=tuple((b[0], 0, 0, 0) for b in cga_layout))
    linear = SharedLinear(tuple(bases), shares, encoding.alignment)
    return TileLayouts(encoding, linear, tma_shape, encoding)
