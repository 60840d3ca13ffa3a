"""Rows of C that go where indices say: where each of a tile goes, and what it is multiplied with.

Both are copied to shared memory while the tile is multiplied (``cp.async``), a vector of each for
every consumer. A thread has no registers for them beside its sums, and to ask memory at each piece
of a tile is to wait for it as often as there are pieces.
"""

# Gluon functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from triton_ext.compat import aggregate, load_by_threads
from triton_ext.kernels.device.values import value


@gluon.constexpr_function
def blocks_of_vectors(blocks, divided):
    """How the blocks of a cluster divide a vector, or that each has all of it."""
    return [[(1 << i) if divided else 0] for i in range(blocks.bit_length() - 1)]


@gluon.constexpr_function
def power_of_two(size):
    """The least one that is not less."""
    return 1 << (size - 1).bit_length()


@aggregate
class RowScatter:
    """The places of a tile's rows, of each consumer.

    Attributes:
        indices: the address of where each row goes, int32.
        factors: the address of what each is multiplied with, fp32; or None.
        places, weights: the buffers of these, (consumers, rows of a tile); or None.
        OF_ROWS: whether rows of C are those of what a kernel computes, else its columns.
    """

    indices: gl.tensor
    factors: gl.tensor | gl.constexpr
    places: gl.shared_memory_descriptor
    weights: gl.shared_memory_descriptor | gl.constexpr
    OF_ROWS: gl.constexpr

    @gluon.jit
    def begin(self, work, WHICH: gl.constexpr):
        """Start the copies of a tile's. Behind its group's end, those of the last row are again."""
        SIZE: gl.constexpr = self.places.shape[1]
        BLOCKS: gl.constexpr = blocks_of_vectors(gl.num_ctas(), self.OF_ROWS)
        LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0], BLOCKS)
        first = work.off_m if self.OF_ROWS else work.off_n
        row = gl.minimum(first + gl.arange(0, SIZE, LAYOUT), work.end - 1)
        load_by_threads(self.places.index(WHICH), self.indices + row)
        if self.factors is not None:
            load_by_threads(self.weights.index(WHICH), self.factors + row)
        async_copy.commit_group()

    @gluon.jit
    def wait(self):
        """Wait until they are there."""
        async_copy.wait_group(0)

    @gluon.jit
    def along(self, vectors, START: gl.constexpr, PART: gl.constexpr, LAYOUT: gl.constexpr,
              WHICH: gl.constexpr):  # fmt: skip
        """Those of `places` or `weights` that are for a piece of a consumer's tile.

        Args:
            START, PART: the piece's first column in the tile, and how many it has.
            LAYOUT: the piece's in registers.
        """
        vector = vectors.index(WHICH)
        if not self.OF_ROWS:
            vector = vector.slice(START, PART)
        return vector.load(gl.SliceLayout(1 if self.OF_ROWS else 0, LAYOUT))


@gluon.jit
def row_scatter_of(values, ROWS: gl.constexpr, WITH_FACTORS: gl.constexpr, PLAN: gl.constexpr):
    """Where the rows of a kernel's tiles go; None if they go in order.

    Args:
        ROWS: of what a consumer computes, of all blocks of a cluster.
        WITH_FACTORS: whether factors are copied, if there are any; else threads hold them.
    """
    if not PLAN.scatters_rows:
        scatter: gl.constexpr = None
    else:
        OF_ROWS: gl.constexpr = not PLAN.tile.swap_ab
        SIZE: gl.constexpr = ROWS if OF_ROWS else power_of_two(PLAN.block_n)
        LAYOUT: gl.constexpr = gl.SwizzledSharedLayout(
            1, 1, 1, [0], cga_layout=blocks_of_vectors(gl.num_ctas(), OF_ROWS)
        )
        CONSUMERS: gl.constexpr = PLAN.tile.consumers
        places = gl.allocate_shared_memory(gl.int32, [CONSUMERS, SIZE], LAYOUT)
        if not (WITH_FACTORS and PLAN.epilogue.factors):
            factors: gl.constexpr = None
            weights: gl.constexpr = None
        else:
            factors = value(values, "factors", PLAN)
            weights = gl.allocate_shared_memory(gl.float32, [CONSUMERS, SIZE], LAYOUT)
        indices = value(values, "out_rows", PLAN)
        scatter = RowScatter(indices, factors, places, weights, OF_ROWS)
    return scatter
