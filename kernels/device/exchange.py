"""The sums of a tile of which every block of a cluster has a part along K, added up by the cluster.

Each block writes what it has into the shared memory of the others: of a piece of the tile, every
block gets its columns from all (``st.async``, distributed shared memory). A barrier of each piece
completes when they have come; then the block adds them in the order of the blocks, so that the
result is the same in every run. A buffer is used once in a launch: nobody waits until it is free.
"""

# Gluon functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from triton_ext.compat import aggregate, reinterpret, store_to_cluster


@gluon.constexpr_function
def columns_layout(accumulator, columns):
    """The layout in registers of a piece of so many columns that the blocks divide among them,
    given that of an accumulator, of which they divide the rows.
    """
    bases = [list(reversed(basis)) for basis in accumulator.cga_layout]
    return gl.NVMMADistributedLayout(
        version=accumulator.version,
        warps_per_cta=accumulator.warps_per_cta,
        instr_shape=[accumulator.instr_shape[0], columns >> len(bases), accumulator.instr_shape[2]],
        cga_layout=bases,
    )


@aggregate
class Exchange:
    """The buffers of all consumers' pieces.

    Attributes:
        buffers: (pieces, blocks, rows, columns): what comes from each block; a block has its
            columns of it.
        ready: a barrier for each piece.
        LAYOUT: of one block's rows and columns in shared memory.
    """

    buffers: gl.shared_memory_descriptor
    ready: gl.shared_memory_descriptor
    LAYOUT: gl.constexpr

    @gluon.jit
    def send(self, piece, which: gl.constexpr):
        """Send the columns of a piece, (blocks * rows, columns), to the blocks that add them up."""
        buffer = self.buffers.index(which)
        ready = self.ready.index(which)
        BYTES: gl.constexpr = (
            buffer.shape[1] * buffer.shape[2] * buffer.dtype.primitive_bitwidth // 8
        )
        mbarrier.expect(ready, BYTES)
        parts = piece.reshape(buffer.shape[0], buffer.shape[1], buffer.shape[2])
        store_to_cluster(buffer, parts, ready)

    @gluon.jit
    def sum(self, ACCUMULATOR: gl.constexpr, which: gl.constexpr):
        """A piece, (rows, columns), added up, given the layout of an accumulator."""
        buffer = self.buffers.index(which)
        LAYOUT: gl.constexpr = columns_layout(ACCUMULATOR, buffer.shape[2])
        mbarrier.wait(self.ready.index(which), 0)
        parts = reinterpret(buffer, buffer.dtype, buffer.shape, self.LAYOUT)
        total = parts.index(0).load(LAYOUT)
        BLOCKS: gl.constexpr = buffer.shape[0]
        for block in gl.static_range(1, BLOCKS):
            total += parts.index(block).load(LAYOUT)
        return total
