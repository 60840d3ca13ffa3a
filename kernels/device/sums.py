"""The sums of a tile on Hopper, in the registers of a consumer warpgroup, and how they are made."""

# Gluon functions: their arguments are values of the compiler, not of Python, and a tuple that grows
# is one of another type.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from triton_ext.compat import aggregate
from triton_ext.kernels.device import wgmma
from triton_ext.kernels.device.exchange import columns_layout
from triton_ext.kernels.device.groups import clear_behind
from triton_ext.kernels.device.pieces import columns_of_blocks, piece_layout, split_columns
from triton_ext.kernels.registers import FP32_RUN

RUN = gl.constexpr(FP32_RUN)
CLEARED = gl.constexpr(16)
"""Elements along K that are read, cleared and written back at a time."""


@gluon.constexpr_function
def accumulator_layout(columns, element_type, blocks, across):
    """Registers of a wgmma's accumulator of so many columns, in one warpgroup of each block of a
    cluster, which divide it among them.

    Args:
        element_type: the operands' type.
        across: how many columns of blocks there are.
    """
    below = blocks // across
    return gl.NVMMADistributedLayout(
        version=[3, 0],
        warps_per_cta=[4, 1],
        instr_shape=[16, columns // across, 256 // element_type.primitive_bitwidth],
        cga_layout=[[(1 << i) % below, (1 << i) // below] for i in range(blocks.bit_length() - 1)],
    )


@gluon.constexpr_function
def piece_of(columns, element_type, blocks, across, cluster_k):
    """The layout in registers of a piece of C of so many columns when it is stored."""
    layout = accumulator_layout(columns, element_type, blocks, across)
    return columns_layout(layout, columns) if cluster_k > 1 else layout


@aggregate
class Accumulator:
    """A consumer's part of a tile of C, in registers.

    Attributes:
        sums: tensors of its columns, from the left to the right: all as wide as the largest power
            of two that divides the tile's. Until it is awaited, behind them the partial sums of
            `wgmma.Product`.
    """

    sums: gl.tuple

    @gluon.jit
    def multiply(
        self, pipeline, slot, scales, WHICH: gl.constexpr, STEP: gl.constexpr, STEPS: gl.constexpr
    ):
        """Start the product of a slot's tiles, and wait for the one before it; if there are partial
        sums, as `wgmma.steps_of` says, with the scales of those that are added.
        """
        a_tile = pipeline.left_tile(slot, WHICH)
        if pipeline.PLAN.product is not None:
            b_unit = pipeline.right_unit(slot)
            sums = wgmma.multiply(
                self.sums, a_tile, b_unit, scales, pipeline.PLAN.product, STEP, STEPS
            )
        else:
            b_tile = pipeline.b_tiles.index(slot.index)
            product = warpgroup_mma(a_tile, b_tile, self.sums[0], is_async=True)
            sums = (warpgroup_mma_wait(1, deps=(product,)),)
        return Accumulator(sums)

    @gluon.jit
    def wait(self, PRODUCT: gl.constexpr):
        """Wait for the last product."""
        if PRODUCT is not None:
            sums = wgmma.wait(self.sums, PRODUCT)
        else:
            sums = (warpgroup_mma_wait(0, deps=self.sums),)
        return Accumulator(sums)

    @gluon.jit
    def pieces(self, COLUMNS: gl.constexpr):
        """It, so many columns at a time; see `read`."""
        ACROSS: gl.constexpr = columns_of_blocks(self.sums[0].type.layout)
        pieces = ()
        for i in gl.static_range(len(self.sums)):
            pieces += split_columns(self.sums[i], COLUMNS, ACROSS)
        return pieces

    @gluon.jit
    def read(self, piece):
        """One of its pieces, in a layout that all have in common."""
        LAYOUT: gl.constexpr = piece_layout(self.sums[0].type.layout, piece.shape[1])
        return gl.convert_layout(piece, LAYOUT)

    @gluon.jit
    def zeros(self, COLUMNS: gl.constexpr):
        """Zeros in the place of a piece that was read."""
        LAYOUT: gl.constexpr = piece_layout(self.sums[0].type.layout, COLUMNS)
        return gl.zeros((self.sums[0].shape[0], COLUMNS), self.sums[0].dtype, LAYOUT)

    @gluon.jit
    def release(self):
        """It has been read: registers need no more."""


@gluon.jit
def zero_sums(pipeline):
    """Registers for the sums of the products of a pipeline's tiles."""
    WIDE: gl.constexpr = pipeline.PLAN.tile.cluster_n * pipeline.PLAN.tile.unit
    sums = ()
    for _ in gl.static_range((1 + partial_sums(pipeline.PLAN.product)) * pipeline.PLAN.tile.units):
        sums += zeros(pipeline, WIDE)
    return Accumulator(sums)


@gluon.jit
def zeros(pipeline, COLUMNS: gl.constexpr):
    """Registers for the sums of products with so many columns of B: a tuple of one tensor."""
    a_tiles = pipeline.a_tiles
    TYPE: gl.constexpr = gl.int32 if a_tiles.dtype.is_int() else gl.float32
    ROWS: gl.constexpr = a_tiles.shape[1]
    LAYOUT: gl.constexpr = accumulator_layout(
        COLUMNS, a_tiles.dtype, gl.num_ctas(), pipeline.PLAN.tile.cluster_n
    )
    return (gl.zeros((ROWS, COLUMNS), TYPE, LAYOUT),)


@gluon.constexpr_function
def partial_sums(product):
    """How many sums a thread has of one product of tiles alone."""
    return 0 if product is None else product.partials


@gluon.jit
def multiply_range(acc, reader, work, slot, k_first, k_end, first, WHICH: gl.constexpr):
    """The products of a tile over a range of K, which begins with `first`; each is issued while
    the one before it runs, or, if there is one partial sum, while the other consumer's runs.
    """
    PARTIALS: gl.constexpr = partial_sums(reader.pipeline.PLAN.product)
    if PARTIALS > 1:
        runs = k_end - (k_end - k_first) % RUN
        for k in range(k_first, runs, RUN):
            acc, slot = multiply_run(acc, reader, work, slot, k, False, WHICH, RUN)
        k_first = gl.maximum(runs, k_first)
    for k in range(k_first, k_end):
        acc, slot = multiply_run(acc, reader, work, slot, k, k > first, WHICH, 1)
    return acc, slot


@gluon.jit
def scales_of(acc, reader, slot, WHICH: gl.constexpr):
    """The scales of a slot's rows and columns: a tuple, empty if there are none."""
    found = ()
    pipeline = reader.pipeline
    scales = pipeline.staged
    if scales is not None:
        address = reader.scales + slot.index * scales.BYTES
        TILE: gl.constexpr = acc.sums[0].type
        PARTS: gl.constexpr = pipeline.PLAN.tile.sharing_consumers
        UNITS: gl.constexpr = len(acc.sums) // (1 + partial_sums(pipeline.PLAN.product))
        found += scales.of_rows(
            address, WHICH % PARTS, PARTS, TILE.shape[0], gl.SliceLayout(1, TILE.layout)
        )
        found += scales.of_columns(address, TILE.shape[1], UNITS, gl.SliceLayout(0, TILE.layout))
    return found


@gluon.jit
def clear_tail(pipeline, slot, work, k, WHICH: gl.constexpr):
    """Clear what tiles of K tile k, which have arrived, have of the next group along K."""
    if pipeline.PLAN.groups is not None and pipeline.PLAN.groups.dim == 2:  # noqa: SIM102 (known early)
        if (k + 1 == work.k_end) & (work.k_left > 0):
            clear_behind(pipeline.left_tile(slot, WHICH), work.k_left, 1, CLEARED)
            clear_behind(pipeline.b_tiles.index(slot.index), work.k_left, 0, CLEARED)
            gl.barrier()


@gluon.jit
def multiply_run(acc, reader, work, slot, k, is_later, WHICH: gl.constexpr,
                 STEPS: gl.constexpr):  # fmt: skip
    """So many products from K tile k on, and whether the one before is still under way."""
    PARTIALS: gl.constexpr = partial_sums(reader.pipeline.PLAN.product)
    before = ()
    for i in gl.static_range(STEPS):
        reader.wait(slot)
        if reader.pipeline.rows is not None:
            fence_async_shared()  # what threads have copied
        own = scales_of(acc, reader, slot, WHICH)
        added = before
        if i == STEPS - 1:
            added += own
        before = own
        clear_tail(reader.pipeline, slot, work, k + i, WHICH)
        acc = acc.multiply(reader.pipeline, slot, added, WHICH, i, STEPS)
        if PARTIALS == 0:
            reader.release(slot.previous(), is_later)
        elif i > 0:
            reader.release(slot.previous(), True)
        slot = slot.next()
    if PARTIALS > 0:
        reader.release(slot.previous(), True)
    return acc, slot
