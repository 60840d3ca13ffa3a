"""The TMA copies that fill a tile: how many boxes and why, their addresses, what is out of bounds.

A box is at most 256 elements along each dimension and, swizzled, one swizzle width along the
contiguous one; so a tile may take several copies (seed 002, Sec. 3.1 and 4.1; seed 004, "1 -
Loading tiles into shared memory": "8 fetches").
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import SHARED_MEMORY_PER_BLOCK
from triton_ext.hardware.tensor_map import DataType, L2Promotion, OobFill, TensorMap, TensorSwizzle
from triton_ext.layouts.arguments import integers
from triton_ext.layouts.atoms import SwizzleAtom
from triton_ext.layouts.cluster import checked_shape, cluster_layout, shape_per_cta
from triton_ext.layouts.encodings import CHUNK_BYTES, NVMMAShared
from triton_ext.layouts.nvmma_shared import (
    TMA_BOX_LIMIT,
    nvmma_shared_to_linear_layout,
    tma_box_shape,
)
from triton_ext.layouts.shared_encoding import way_out

MAX_TILE_BYTES = 1 << (SHARED_MEMORY_PER_BLOCK.bit_length() - 1)
"""The largest power of two that fits the shared memory of a block."""

_COORDINATES = range(-(1 << 31), 1 << 31)


@dataclass(frozen=True)
class TmaBox:
    """One TMA copy of a tile. Dimensions are the tensor's, in the tensor's own order.

    Attributes:
        start: the tensor's coordinates of the box's first element; may be negative.
        shape: the box's extents, in elements.
        coordinates: `start` as the instruction takes it: innermost first, in elements of the
            tensor map (4-bit ones for fp4_padded, else the same).
        smem_offset: where the box lies in the tile's shared memory, in bytes.
        transaction_bytes: what the copy adds to the mbarrier, wherever the box lies.
        inside: for each dimension, the part [first, end) of the box that lies in the tensor.
    """

    start: tuple[int, ...]
    shape: tuple[int, ...]
    coordinates: tuple[int, ...]
    smem_offset: int
    transaction_bytes: int
    inside: tuple[tuple[int, int], ...]

    @property
    def elements_inside(self) -> int:
        """How many elements are read from the tensor."""
        return math.prod(end - first for first, end in self.inside)

    @property
    def elements_filled(self) -> int:
        """How many elements lie out of bounds: zeros (or NaN) in shared memory."""
        return math.prod(self.shape) - self.elements_inside


@dataclass(frozen=True)
class TileCopies:
    """The TMA copies that fill one tile.

    Attributes:
        tensor_map: shared by all of them.
        layout: the tile's layout in shared memory.
        tile_shape: what one block of the cluster copies, in the tensor's order.
        start: the tensor's coordinates of the tile's first element.
        boxes: the copies in the order in which Triton issues them, the first dimension fastest.
    """

    tensor_map: TensorMap
    layout: NVMMAShared | SwizzleAtom
    tile_shape: tuple[int, ...]
    start: tuple[int, ...]
    boxes: tuple[TmaBox, ...]

    @property
    def box_shape(self) -> tuple[int, ...]:
        """The extents of a box, in the tensor's order and elements."""
        return self.boxes[0].shape

    @property
    def transaction_bytes(self) -> int:
        """For the mbarrier's expect-tx: all boxes, out-of-bounds elements included."""
        return sum(box.transaction_bytes for box in self.boxes)

    @property
    def smem_bytes(self) -> int:
        """The shared memory that the tile takes, in bytes."""
        return self.tensor_map.smem_bytes * len(self.boxes)

    @property
    def reasons(self) -> tuple[str, ...]:
        """For each dimension, how many boxes it takes and what bounds a box."""
        contiguous = _contiguous_dim(self.layout)
        swizzle = self.tensor_map.swizzle
        said = []
        for i, (size, box) in enumerate(zip(self.tile_shape, self.box_shape, strict=True)):
            count = size // box
            if i == contiguous and swizzle:
                bound = f"{box} elements are the {swizzle.span} bytes of the swizzle"
            elif i == contiguous and isinstance(self.layout, SwizzleAtom):
                bound = (
                    f"{box} elements are the {self.layout.row_bytes} bytes of a core matrix's row,"
                    " and core matrices are stored one below the other"
                )
            elif count > 1:
                bound = f"a box has at most {TMA_BOX_LIMIT} elements along a dimension"
            else:
                bound = f"a box may have up to {TMA_BOX_LIMIT} elements along a dimension"
            plural = "" if count == 1 else "es"
            said.append(f"dim{i}: {size} elements take {count} box{plural}: {bound}")
        return tuple(said)


def _contiguous_dim(layout: NVMMAShared | SwizzleAtom) -> int:
    if isinstance(layout, NVMMAShared):
        return layout.contiguous_dim
    return 1 if layout.major == "K" else 0


def _canonical_box_shape(tile_shape: tuple[int, ...], atom: SwizzleAtom) -> tuple[int, ...]:
    """The largest box that leaves a tile of stacked swizzle atoms: one atom wide."""
    contiguous = _contiguous_dim(atom)
    for i, (size, unit) in enumerate(zip(tile_shape, atom.shape, strict=True)):
        if size < unit:
            rule = f"must be at least {unit}, the extent of the swizzle atom"
            raise LayoutError(f"block[{i}]", size, rule)
    box = [min(size, TMA_BOX_LIMIT) for size in tile_shape]
    box[contiguous] = atom.shape[contiguous]
    return tuple(box)


def _box_starts(tile: Sequence[int], box: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The coordinates in the tile of each box's first element, the first dimension fastest."""
    ranges = [range(0, size, step) for size, step in zip(tile, box, strict=True)]
    for reversed_start in itertools.product(*reversed(ranges)):
        yield reversed_start[::-1]


def _stacking_order(layout: NVMMAShared | SwizzleAtom, rank: int) -> list[int]:
    """Along which dimension boxes follow each other in shared memory: the closest one first.

    An NVMMA tile as in `nvmma_shared_to_linear_layout`: the first dimension first. (Without a
    swizzle it would be the last, but no tile that fits is split along two dimensions.) Swizzle
    atoms are stacked along the strided dimension first (seed 002, Sec. 3.1 and 4.1).
    """
    if isinstance(layout, SwizzleAtom):
        return [1 - _contiguous_dim(layout), _contiguous_dim(layout)]
    return list(range(rank))


def _cuda_order(layout: NVMMAShared | SwizzleAtom, rank: int) -> list[int]:
    """The tensor's dimensions as the tensor map has them: the contiguous one first."""
    contiguous = _contiguous_dim(layout)
    return [contiguous, *(dim for dim in reversed(range(rank)) if dim != contiguous)]


def _row_major(shape: Sequence[int], cuda_order: Sequence[int]) -> tuple[int, ...]:
    strides, unit = [0] * len(shape), 1
    for dim in cuda_order:
        strides[dim] = unit
        unit *= shape[dim]
    return tuple(strides)


def tile_copies(
    shape: Sequence[int],
    block: Sequence[int],
    layout: NVMMAShared | SwizzleAtom,
    *,
    at: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    data_type: DataType | None = None,
    cta: int = 0,
    l2_promotion: L2Promotion = L2Promotion.NONE,
    oob_fill: OobFill = OobFill.NONE,
    global_address: int = 0,
) -> TileCopies:
    """The tensor map of a tensor, and the copies that fill one tile of it.

    Args:
        shape: the tensor's extents, in elements. With fp4_padded, elements are packed bytes.
        block: the tile's extents, powers of two, over all blocks of the cluster.
        layout: how the tile lies in shared memory: an NVMMA encoding; or a swizzle atom, stacked
            along its strided dimension first (dimensions: M or N, then K). They differ without a
            swizzle: an NVMMA tile is then stored row by row, stacked atoms are core matrices.
        at: the tensor's coordinates of the tile's first element; left out: zeros.
        strides: the tensor's strides, in elements; left out: a dense tensor, contiguous along the
            layout's contiguous dimension.
        data_type: left out: the unsigned integer of the layout's element width.
        cta: which block of the cluster copies its part.
        l2_promotion, oob_fill, global_address: of the tensor map.

    Raises:
        LayoutError: what cuTensorMapEncodeTiled or the layout does not allow; a tile that no block
            has the shared memory for; a swizzled, transposed tile of rank 3 or more, which no TMA
            copy writes; an innermost coordinate that is no multiple of 16 bytes, or with
            fp4_padded of 64 (PTX ISA, "Bounding Box"; Gluon tutorial 04; on an H100 the copy was
            seen to end in an illegal instruction).

    Source: Triton's ``getTMABlockShape``, and its lowering of ``async_tma_copy_global_to_local``
    for the order of the copies.
    """
    fp4 = isinstance(layout, NVMMAShared) and layout.fp4_padded
    tile, box, part = _tile_and_box(block, layout, cta)
    rank = len(tile)
    sizes = integers("shape", shape, rank, "one a dimension of the block")
    start = integers("at", at if at is not None else (0,) * rank, rank, "one a dimension")
    start = tuple(first + offset for first, offset in zip(start, part, strict=True))
    order = _cuda_order(layout, rank)
    contiguous = order[0]
    steps = integers(
        "strides", _row_major(sizes, order) if strides is None else strides, rank, "one a dimension"
    )
    if steps[contiguous] != 1:
        rule = "must be 1: TMA reads the innermost dimension contiguously"
        raise LayoutError(f"strides[{contiguous}]", steps[contiguous], rule)
    bits = layout.element_bitwidth
    packing = 2 if fp4 else 1
    if data_type is None:
        data_type = DataType.U4X16_ALIGN16B if fp4 else DataType.unsigned(bits)
    elif not isinstance(data_type, DataType):
        raise LayoutError("data_type", data_type, "must be a DataType")
    elif fp4 != (data_type == DataType.U4X16_ALIGN16B) or data_type.bits * packing != bits:
        rule = f"must be {'U4X16_ALIGN16B' if fp4 else f'a type of {bits} bits'}, as the layout has"
        raise LayoutError("data_type", data_type.name, rule)

    def in_map(values: Sequence[int]) -> tuple[int, ...]:
        """Coordinates or extents in CUDA's order, in elements of the tensor map."""
        return tuple(values[dim] * (packing if dim == contiguous else 1) for dim in order)

    tensor_map = TensorMap(
        data_type=data_type,
        global_dims=in_map(sizes),
        global_strides=tuple(steps[dim] * bits // 8 for dim in order[1:]),
        box_dims=in_map(box),
        swizzle=TensorSwizzle.of_width(layout.swizzle_byte_width),
        l2_promotion=l2_promotion,
        oob_fill=oob_fill,
        global_address=global_address,
    )
    box_strides, unit = [0] * rank, tensor_map.smem_bytes
    for dim in _stacking_order(layout, rank):
        box_strides[dim] = unit
        unit *= tile[dim] // box[dim]
    boxes = []
    for offset in _box_starts(tile, box):
        first = tuple(base + step for base, step in zip(start, offset, strict=True))
        coordinates = in_map(first)
        _check_coordinates(coordinates, start, contiguous, tensor_map)
        boxes.append(
            TmaBox(
                start=first,
                shape=box,
                coordinates=coordinates,
                smem_offset=sum(
                    step // extent * stride
                    for step, extent, stride in zip(offset, box, box_strides, strict=True)
                ),
                transaction_bytes=tensor_map.transaction_bytes,
                inside=tuple(map(_inside, first, box, sizes)),
            )
        )
    return TileCopies(tensor_map, layout, tile, start, tuple(boxes))


def _check_coordinates(
    coordinates: Sequence[int], start: Sequence[int], contiguous: int, tensor_map: TensorMap
) -> None:
    if any(value not in _COORDINATES for value in coordinates):
        raise LayoutError("at", start, "each coordinate of a box must fit 32 bits, signed")
    kind = tensor_map.data_type
    multiple = tensor_map.coordinate_multiple
    if coordinates[0] % multiple:
        multiple //= 2 if kind.is_padded else 1  # in packed bytes, as `start`
        raise LayoutError(
            f"at[{contiguous}]",
            start[contiguous],
            f"the innermost coordinate must be a multiple of {multiple} elements"
            f" ({64 if kind.is_padded else CHUNK_BYTES} bytes): else the copy stops the kernel with"
            " an illegal instruction",
        )


def _inside(first: int, extent: int, size: int) -> tuple[int, int]:
    """The part [begin, end) of `extent` elements from `first` on that lies in [0, size)."""
    begin = min(max(0, -first), extent)
    return begin, max(begin, min(extent, size - first))


def _tile_and_box(
    block: Sequence[int], layout: NVMMAShared | SwizzleAtom, cta: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """What one block of the cluster holds, the boxes that fill it, and where its part begins."""
    part: tuple[int, ...]
    if isinstance(layout, SwizzleAtom):
        tile = checked_shape(block, 2)
        box = _canonical_box_shape(tile, layout)
        part, blocks = (0, 0), 1
    elif isinstance(layout, NVMMAShared):
        whole = checked_shape(block, layout.rank)
        tile = shape_per_cta(layout.cga_layout, whole)
        nvmma_shared_to_linear_layout(tile, replace(layout, cga_layout=()))  # or LayoutError
        if layout.transposed and layout.swizzle_byte_width and layout.rank > 2:
            raise LayoutError(
                "layout",
                str(layout),
                "no TMA copy writes a swizzled, transposed tile of rank 3 or more;"
                " use rank 2 or swizzle_byte_width = 0",
            )
        box = tma_box_shape(tile, layout)
        cluster = cluster_layout(layout.cga_layout, whole)
        blocks = cluster.total_in_size
    else:
        raise LayoutError(
            "layout", layout, "must be an NVMMAShared or a SwizzleAtom" + way_out(layout)
        )
    if not isinstance(cta, int) or not 0 <= cta < blocks:
        raise LayoutError("cta", cta, f"must lie in [0, {blocks}), the blocks of the cluster")
    if isinstance(layout, NVMMAShared):
        index = cluster.apply(block=cta).values()
        part = tuple(i * size for i, size in zip(index, tile, strict=True))
    packing = 2 if isinstance(layout, NVMMAShared) and layout.fp4_padded else 1
    smem_bytes = math.prod(tile) * packing * layout.element_bitwidth // 8
    if smem_bytes > MAX_TILE_BYTES:
        rule = f"takes {smem_bytes} bytes, more than the shared memory of a thread block"
        raise LayoutError("block", tuple(block), rule)
    return tile, box, part
