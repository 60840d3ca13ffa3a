"""How a block's last tile leaves: through the pipeline.

A tile of 168 columns has 21 pieces, in rows of 16 bytes, as 8 is the largest power of two that
divides them; and where the pipeline takes most of shared memory there is no room for wider ones.
The L2 cache takes half a sector in 4.7 cycles, if all SMs store, and whole ones in 2.5 (measured):
such a tile is stored in three times as long as another, and behind the last tile of a block, for
many problems its only one, nothing hides that. But no copy fills the pipeline then: so the last
tile leaves through it, in pieces as wide as a line of the L2 cache or, so that they are equal, a
little less. The last one ends where the tile does, and may store columns of the one before again.

A piece's rows are a line apart in shared memory, as the swizzle is wide, also where its box is
narrower.
"""

# Gluon functions: their arguments are values of the compiler, not of Python, and a tuple that grows
# is one of another type.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment"

from __future__ import annotations

import math

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from triton_ext.compat import aggregate, reinterpret
from triton_ext.kernels.device.pieces import join_columns


@gluon.constexpr_function
def common_width(unit, columns):
    """The widest parts of which a tile's tensors, so wide each, and its pieces consist."""
    return math.gcd(unit, columns)


@aggregate
class LastPieces:
    """The pieces in which a block's last tile leaves, and where they lie.

    Each consumer uses what it alone has read, its rows of the left operand's tiles.

    Attributes:
        desc: the TMA descriptor of C whose box is such a piece.
        tiles: the pipeline's buffers of the left operand.
        LAYOUT: of a piece in shared memory.
        OWN: columns of a block's tile.
        SIZES: a `LastTile`.
        ACROSS: how many columns of blocks there are.
    """

    desc: tma.tensor_descriptor
    tiles: gl.shared_memory_descriptor
    LAYOUT: gl.constexpr
    OWN: gl.constexpr
    SIZES: gl.constexpr
    ACROSS: gl.constexpr

    @gluon.jit
    def buffer(self, i: gl.constexpr, WHICH: gl.constexpr):
        """Where a piece of a consumer lies."""
        SHAPE: gl.constexpr = self.desc.block_type.shape
        SLOTS: gl.constexpr = self.SIZES.slots
        SLOT: gl.constexpr = SLOTS[WHICH % len(SLOTS)][i]
        UP_TO: gl.constexpr = [SLOT + 1, SHAPE[len(SHAPE) - 2], SHAPE[len(SHAPE) - 1]]
        return reinterpret(self.tiles, self.desc.dtype, UP_TO, self.LAYOUT).index(SLOT)

    @gluon.jit
    def piece(self, acc, i: gl.constexpr):
        """A piece of an accumulator as wide as a line; behind it come any of its own columns."""
        COLUMNS: gl.constexpr = self.SIZES.columns
        WIDTH: gl.constexpr = common_width(acc.sums[0].shape[1] // self.ACROSS, COLUMNS)
        FIRST: gl.constexpr = self.SIZES.starts[i] // WIDTH
        NUMBER: gl.constexpr = COLUMNS // WIDTH
        parts = acc.pieces(WIDTH * self.ACROSS)
        some = ()
        for j in gl.static_range(self.SIZES.line // WIDTH):
            some += (parts[FIRST + j % NUMBER],)
        return join_columns(some, self.ACROSS)
