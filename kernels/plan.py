"""What the code of a kernel is made of: one compile-time value, with all layouts as Gluon's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from triton_ext.compat import SUMS_MAY_OVERLAP
from triton_ext.kernels.device.wgmma import Product, product_of
from triton_ext.kernels.element_types import FP32_SCALE_BLOCK
from triton_ext.kernels.epilogue import EpilogueSpec
from triton_ext.kernels.last_tile import LastTile, last_tile
from triton_ext.kernels.product import ProductSpec
from triton_ext.kernels.registers import asks_early, warp_registers
from triton_ext.kernels.right_operand import right_unit
from triton_ext.kernels.shared_memory import scale_counts
from triton_ext.kernels.spec import KernelSpec
from triton_ext.kernels.tensor_memory import shared_sums
from triton_ext.kernels.tile import PersistentTile, SimpleTile, Sm90Tile, Sm100Tile, Tile
from triton_ext.kernels.tiles import Boxes, TileLayouts
from triton_ext.layouts.triton.gluon import to_gluon

TMA_BYTES = 16
"""At multiples of how many bytes TMA stores (``cuTensorMapEncodeTiled``, globalStrides)."""


@dataclass(frozen=True)
class KernelPlan:
    """What all kernels are made of.

    Attributes:
        tile: the kernel's tile.
        left, right, c: the layouts in shared memory of the tiles of the left and the right operand,
            and of a piece of C.
        left_k_major, right_k_major: whether K is the operand's contiguous dimension in memory.
    """

    tile: Tile
    left: Any
    right: Any
    c: Any
    left_k_major: bool
    right_k_major: bool


@dataclass(frozen=True)
class ScalesInMemory:
    """How the fp32 scales of the blocks of the left and the right operand lie in memory.

    Attributes:
        left_each, right_each: whether each row (each column) has its own.
        left_k_major, right_k_major: whether those along K are contiguous.
        several: whether each matrix of a batch has its own scales, of the left operand and of the
            right one.
    """

    left_each: bool
    right_each: bool
    left_k_major: bool
    right_k_major: bool
    several: tuple[bool, bool]


def _scales_in_memory(product: ProductSpec, swap_ab: bool) -> ScalesInMemory | None:
    """How a product's scales lie in memory."""
    if not product.has_fp32_blocks:
        return None
    order = -1 if swap_ab else 1
    rows = product.scale_rows[::order]
    majors = (product.a_scale_major, product.b_scale_major)[::order]
    of_a, of_b = product.groups == "N", product.groups in ("M", "rows")
    several = (of_b, of_a) if swap_ab else (of_a, of_b)
    return ScalesInMemory(
        rows[0] == 1, rows[1] == 1, majors[0] == "K", majors[1] == "K", several
    )  # fmt: skip


@dataclass(frozen=True)
class GroupsOfTiles:
    """What groups divide.

    Attributes:
        dim: 0 for the rows of what a kernel computes, 1 for its columns, 2 for K.
        even: whether all have as many rows of C in memory.
        aligned: at multiples of how many of its rows or columns a tile that TMA stores begins.
        gathered, scattered: as in `ProductSpec`.
        scaled: whether operands are block-scaled: each group has whole blocks of scales.
    """

    dim: int
    even: bool
    aligned: int
    gathered: bool
    scattered: bool
    scaled: bool

    @property
    def apart(self) -> bool:
        """Whether no two tiles of a group overlap."""
        return self.scattered or self.scaled


@dataclass(frozen=True)
class GatheredRows:
    """Where rows of A lie in the buffers of a pipeline, to which they are copied one by one.

    Attributes:
        rows: of a block's tile.
        unit: how many of them are one tile to the tensor cores.
        line, lines: bytes of a row that lie together, as wide as the swizzle, and how many such a
            row has; those of a unit's rows lie one after the other.
        stage: bytes from a buffer to the next one.
        swizzle: which bytes of a line bits 0, 1, ... of a row's number exchange, by the generated
            layout.
    """

    rows: int
    unit: int
    line: int
    lines: int
    stage: int
    swizzle: tuple[int, ...]


def _gathered_rows(spec: KernelSpec) -> GatheredRows | None:
    """Where a kernel's rows of A lie, if they are gathered."""
    product, tile = spec.product, spec.tile
    if not product.gathered or isinstance(tile, SimpleTile):
        return None
    layout, size = spec.layouts.a, product.element_bytes
    line = layout.encoding.swizzle_byte_width
    rows, unit = tile.block_m, tile.block_m // tile.sharing_consumers
    stage = rows * tile.block_k * size
    if tile.swap_ab:
        unit = rows
        if isinstance(tile, Sm90Tile):
            depth, columns = right_unit(product, tile)
            stage = -(-rows // columns) * columns * tile.block_k * size
            assert tile.block_k % depth == 0
    of_row = int(tile.swap_ab)
    bases = [basis for basis in layout.linear.offset_bases if basis[of_row] in (1, 2, 4)]
    swizzle = tuple(basis[1 - of_row] * size for basis in bases)
    return GatheredRows(rows, unit, line, tile.block_k * size // line, stage, swizzle)


def _groups_of(product: ProductSpec, swap_ab: bool) -> GroupsOfTiles | None:
    """What a product's groups divide."""
    if product.groups is None:
        return None
    dim = {"M": 0, "rows": 0, "N": 1, "K": 2}[product.groups]
    along_rows_of_c = product.groups == "N"
    return GroupsOfTiles(
        1 - dim if swap_ab and dim < 2 else dim,
        product.groups == "rows",
        TMA_BYTES // product.c_bytes if along_rows_of_c else 1,
        product.gathered,
        product.scattered,
        product.scaling is not None,
    )


@dataclass(frozen=True)
class SpecializedPlan(KernelPlan):
    """What both specialized kernels are made of.

    Attributes:
        epilogue: what follows the product.
        collective: "gather", "scatter" or None.
        values: the names of the kernel's `values`, in their order.
        boxes: how the tiles of the left operand, of the right one and of its edge are copied by
            boxes of their own; None where Triton copies them.
        product: the instructions of a product; None where they are Triton's.
        groups: what groups divide; None if there are none.
        gathered: where rows of A lie that are copied one by one; None if they are not.
        gated: whether an element of C is made of two sums.
        interleaved: whether these are neighbours, else of two matrices.
        fp32_scales: how the fp32 scales of blocks lie in memory; None if there are none.
    """

    tile: PersistentTile
    epilogue: EpilogueSpec
    collective: str | None
    values: tuple[str, ...]
    boxes: tuple[Boxes | None, Boxes | None, Boxes | None]
    product: Product | None
    groups: GroupsOfTiles | None
    gathered: GatheredRows | None
    gated: bool
    interleaved: bool
    fp32_scales: ScalesInMemory | None

    @property
    def scaled_together(self) -> tuple[int, int]:
        """How many rows, and columns, of what a consumer multiplies have one fp32 scale."""
        if self.fp32_scales is None:
            return 1, 1
        segment = math.gcd(self.tile.columns // self.parts_of_b, FP32_SCALE_BLOCK)
        return (
            1 if self.fp32_scales.left_each else 64,
            1 if self.fp32_scales.right_each else segment,
        )

    @property
    def parts_of_b(self) -> int:
        """As `ProductSpec.parts_of_b`."""
        return 2 if self.gated and not self.interleaved else 1

    @property
    def block_m(self) -> int:
        """Rows of the tile that a cluster computes."""
        return self.tile.cluster_m * self.tile.rows

    @property
    def block_n(self) -> int:
        """Columns of the sums that a cluster computes."""
        return self.tile.cluster_n * self.tile.columns

    @property
    def c_columns(self) -> int:
        """Columns of C that a cluster computes."""
        return self.block_n // (2 if self.gated else 1)

    @property
    def c_pieces(self) -> int:
        """In how many pieces of C a consumer's part of a tile leaves."""
        return self.tile.c_parts // (2 if self.gated else 1)

    @property
    def scatters(self) -> bool:
        """Whether tiles go on to the next rank."""
        return self.collective == "scatter"

    @property
    def scatters_rows(self) -> bool:
        """Whether each row of C goes where an index says."""
        return self.groups is not None and self.groups.scattered


@dataclass(frozen=True)
class Sm90Plan(SpecializedPlan):
    """What Hopper's kernel is made of.

    Attributes:
        unit: elements along K, and columns, of a unit of the right operand's tile, of all blocks
            side by side.
        registers: of a thread of a consumer, and of the warps that copy.
        scale_counts: how many fp32 scales a block's tile has, of rows and of columns.
        asks_early: whether a tile's bias and scales are asked for while it is multiplied.
        last, last_layout: a block's last tile, if it leaves through the buffers of the operands,
            and the layout of its pieces; else None.
        exchange, exchanged: where blocks divide K: the layouts of what all of them have of a piece
            of C, and of what one has; else None.
    """

    unit: tuple[int, int]
    registers: tuple[int, int]
    scale_counts: tuple[int, int]
    asks_early: bool
    last: LastTile | None
    last_layout: Any
    exchange: Any
    exchanged: Any


@dataclass(frozen=True)
class Sm100Plan(SpecializedPlan):
    """What Blackwell's kernel is made of.

    Attributes:
        accumulators: for how many tiles there is tensor memory.
        shared_sums: how many columns of it two tiles share.
        scales: the layouts in shared memory of the left and the right operand's block scales; None
            if there are none.
        element: the type of block-scaled elements, or None.
    """

    accumulators: int
    shared_sums: int
    scales: tuple[Any, Any]
    element: str | None


def plan_of(spec: KernelSpec, *, generated_layouts: bool = True) -> KernelPlan:
    """What a kernel's code is made of.

    Args:
        generated_layouts: allocate shared memory with the linear layouts that this project
            generates; else with the NVMMA encodings that Triton converts itself.
    """

    def layout(tile: TileLayouts | None) -> Any:
        return tile and to_gluon(tile.linear if generated_layouts else tile.encoding)

    product, tile, layouts = spec.product, spec.tile, spec.layouts
    majors = product.majors(tile.swap_ab)
    common = {
        "tile": tile,
        "left": layout(layouts.left),
        "right": layout(layouts.right),
        "c": layout(layouts.c),
        "left_k_major": majors[0] == "K",
        "right_k_major": majors[1] == "K",
    }
    if isinstance(tile, SimpleTile):
        return KernelPlan(**common)
    common |= {
        "epilogue": spec.epilogue,
        "collective": product.collective,
        "values": value_names(spec),
        "boxes": layouts.boxes,
        "product": product_of(spec) if spec.has_own_products else None,
        "groups": _groups_of(product, tile.swap_ab),
        "gathered": _gathered_rows(spec),
        "gated": product.gated,
        "interleaved": product.interleaved,
        "fp32_scales": _scales_in_memory(product, tile.swap_ab),
    }
    if isinstance(tile, Sm90Tile):
        depth, columns = right_unit(product, tile)
        return Sm90Plan(
            **common,
            unit=(depth, tile.cluster_n * columns),
            registers=warp_registers(product, tile),
            scale_counts=scale_counts(product, tile),
            asks_early=asks_early(product, spec.epilogue, tile) and not product.gated,
            last=last_tile(product, tile) if tile.last_through_pipeline else None,
            last_layout=layout(layouts.last),
            exchange=layouts.exchange and to_gluon(layouts.exchange),
            exchanged=layout(layouts.exchanged),
        )
    assert isinstance(tile, Sm100Tile)
    shared = shared_sums(product, tile)
    left, right = (each and to_gluon(each.linear) for each in layouts.scales or (None, None))
    return Sm100Plan(
        **common,
        accumulators=1 if shared and not SUMS_MAY_OVERLAP else 2,
        shared_sums=shared if SUMS_MAY_OVERLAP else 0,
        scales=(left, right),
        element=product.scaling.element if product.scaling else None,
    )


def value_names(spec: KernelSpec) -> tuple[str, ...]:
    """The pointers and numbers that a specialized kernel takes, by name and in their order: the
    workspace, what the epilogue reads, and what ranks share.
    """
    epilogue, collective = spec.epilogue, spec.product.collective
    named = {
        "c": spec.product.groups is not None,
        "offs": spec.product.groups is not None,
        "a": spec.product.gathered,
        "rows": spec.product.gathered,
        "out_rows": spec.product.scattered,
        "factors": epilogue.factors,
        "workspace": not isinstance(spec.tile, SimpleTile) and spec.tile.split_k > 1,
        "bias": epilogue.bias,
        "a_scale": epilogue.a_scales is not None,
        "b_scale": epilogue.b_scales is not None,
        "a_blocks": spec.product.has_fp32_blocks,
        "b_blocks": spec.product.has_fp32_blocks,
        "alpha": epilogue.alpha,
        "beta": epilogue.residual,
        "flags": collective is not None,
        "counters": collective == "scatter",
        "late": collective is not None,
    }
    return tuple(name for name, present in named.items() if present)
