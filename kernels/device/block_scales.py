"""Products whose operands have a scale for each 16 or 32 elements along K (sm_100).

The scales lie in global memory as torch and cuBLAS store them, in blocks of 128 rows and 4 columns
(`tiles.scale_layouts`). A tile's blocks come by TMA with the tile; `tcgen05.cp` puts them into
tensor memory, all 4 columns of 32 rows to a lane, four times, so that each warp's lanes have them;
`tcgen05.mma` multiplies with them. Copies and products of a thread are done in the order in which
it issues them (PTX ISA, "Pipelined tcgen05 Instructions"): one place in tensor memory is enough.
"""

# Gluon functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    allocate_tensor_memory,
    tcgen05_copy,
    tcgen05_mma_scaled,
    tensor_memory_descriptor,
)
from triton.experimental.gluon.language.nvidia.hopper import tma

from triton_ext.compat import aggregate, async_load, reinterpret, scales_layout, tma_view
from triton_ext.kernels.element_types import SCALE_BLOCK

ROWS = gl.constexpr(SCALE_BLOCK[0])


@gluon.jit
def load_scales(desc, block, k, barrier, tile):
    """Start the copy of the scales of K tile k, from a block of 128 rows or columns on."""
    BLOCKS: gl.constexpr = desc.block_type.shape[1]
    async_load(desc, [block, k * BLOCKS, 0, 0], barrier, tma_view(tile, desc),
               multicast=gl.num_ctas() > 1)  # fmt: skip


@aggregate
class BlockScales:
    """The scales of the tiles of A and B.

    Attributes:
        a_desc, b_desc: TMA descriptors of (rows of blocks, columns of blocks, 2, 256).
        a_tiles, b_tiles: the buffers of the pipeline.
        a, b: tensor memory.
        FORMAT: the type of the elements.
        GROUPED: whether the tiles are of groups.
    """

    a_desc: tma.tensor_descriptor
    b_desc: tma.tensor_descriptor
    a_tiles: gl.shared_memory_descriptor
    b_tiles: gl.shared_memory_descriptor
    a: tensor_memory_descriptor
    b: tensor_memory_descriptor
    FORMAT: gl.constexpr
    GROUPED: gl.constexpr

    @gluon.jit
    def fill(self, index, work, k, barrier):
        """Start the copies of the scales of K tile k to a buffer."""
        if self.GROUPED:
            block_m, block_n = work.block_m, work.block_n
        else:
            block_m, block_n = work.off_m // ROWS, work.off_n // ROWS
        load_scales(self.a_desc, block_m, k, barrier, self.a_tiles.index(index))
        load_scales(self.b_desc, block_n, k, barrier, self.b_tiles.index(index))

    @gluon.jit
    def multiply(self, index, a_tile, b_tile, sums, use_acc, free):
        """Issue the products of a buffer's tiles, which free it."""
        tcgen05_copy(self.a_tiles.index(index), self.a)
        tcgen05_copy(self.b_tiles.index(index), self.b)
        tcgen05_mma_scaled(
            a_tile, b_tile, sums, self.a, self.b, self.FORMAT, self.FORMAT, use_acc=use_acc,
            multicast=gl.num_ctas() > 1, mbarriers=[free],
        )  # fmt: skip


@gluon.jit
def block_scales_of(a_desc, b_desc, memory, PLAN: gl.constexpr):
    """The scales of a kernel's pipeline; see `BlockScales`.

    Args:
        memory: all of tensor memory, if they are in it behind the sums; else None.
    """
    STAGES: gl.constexpr = PLAN.tile.stages
    FIRST: gl.constexpr = 2 * PLAN.block_n - PLAN.shared_sums
    A: gl.constexpr = ROWS * a_desc.block_type.shape[0]
    B: gl.constexpr = ROWS * b_desc.block_type.shape[0]
    COLUMNS: gl.constexpr = 4 * a_desc.block_type.shape[1]
    A_SCALES: gl.constexpr = scales_layout(gl.num_ctas(), True)
    B_SCALES: gl.constexpr = scales_layout(gl.num_ctas(), False)
    a_tiles = gl.allocate_shared_memory(a_desc.dtype, [STAGES, A, COLUMNS], PLAN.scales[0])
    b_tiles = gl.allocate_shared_memory(b_desc.dtype, [STAGES, B, COLUMNS], PLAN.scales[1])
    if memory is None:
        a = allocate_tensor_memory(a_desc.dtype, [A, COLUMNS], A_SCALES)
        b = allocate_tensor_memory(b_desc.dtype, [B, COLUMNS], B_SCALES)
    else:
        TAKEN: gl.constexpr = A // gl.num_ctas() // ROWS * COLUMNS
        a = reinterpret(memory.slice(FIRST, TAKEN), a_desc.dtype, [A, COLUMNS], A_SCALES)
        b = reinterpret(
            memory.slice(FIRST + TAKEN, B // ROWS * COLUMNS), b_desc.dtype, [B, COLUMNS], B_SCALES
        )
    return BlockScales(a_desc, b_desc, a_tiles, b_tiles, a, b, PLAN.element,
                       PLAN.groups is not None)  # fmt: skip
