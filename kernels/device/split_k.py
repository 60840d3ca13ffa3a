"""The parts along K of a tile that several blocks make, added up through memory."""

# Gluon functions: their arguments are values of the compiler, not of Python, and a tuple that grows
# is one of another type.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from triton_ext.compat import aggregate
from triton_ext.kernels.device.clusters import add_in_block, block_of_cluster

COUNTER_BYTES = gl.constexpr(8192)
"""The size of the workspace's first section, a counter for each consumer of each tile that several
blocks share (of each block's, in clusters); the partial tiles follow, two for each block."""


@gluon.constexpr_function
def parts_at_a_time(rows, columns):
    """How many parts of a piece a consumer reads at a time: 128 registers of a thread, or one."""
    return 4 if rows * columns <= 32 * 128 else 1


@aggregate
class Parts:
    """The workspace through which blocks add up the parts of a tile that is cut along K.

    Every block leaves its part there; one of a cluster what it has of the cluster's tile, with a
    counter of its own. Where all tiles are cut evenly, the blocks of a tile then wait for each
    other, and each adds up some pieces of it; but they wait only if all have begun: then all run,
    so that none waits for ever. Those that come earlier leave their pieces to the others.
    Where blocks have another tile to make, the last that comes adds up all pieces. In either case
    the parts are added in the order of K: the result is the same in every run.

    A consumer's counter has four fields of 8 bits: how many blocks have begun a part of the tile;
    how many have left one; 1 + how many had left one when the last began; how many have done their
    pieces. It is zero between launches.

    Attributes:
        workspace: its address; None if no tile is cut.
        words: in a cluster: an int32 of shared memory for each consumer of each block.
        SHARES: how many consumers share a tile; each is on its own here.
        COLUMNS: columns of a tile, or of what one of those who share it has.
    """

    workspace: gl.tensor | gl.constexpr
    words: gl.shared_memory_descriptor | gl.constexpr
    SHARES: gl.constexpr
    COLUMNS: gl.constexpr

    @gluon.jit
    def add(self, number, work, WHICH: gl.constexpr, ORDER: gl.constexpr):
        """Add to this consumer's counter of a tile, and return what was there before."""
        tile = work.tail * gl.num_ctas() + block_of_cluster()
        counter = self.workspace.to(gl.pointer_type(gl.int32)) + tile * self.SHARES
        word: gl.constexpr = None
        if gl.num_ctas() > 1:
            word = self.words.index(WHICH)
        return add_in_block(counter + WHICH % self.SHARES, number, word, ORDER)

    @gluon.jit
    def addresses(self, x, work, split, WHICH: gl.constexpr, column):
        """The addresses of a part of a tile, at the columns of x, which begin at `column`.

        Each 8x8 block of the tile is contiguous: a warp writes and reads one at a time. A block has
        two parts at most, of which one begins its tile.
        """
        program = gl.program_id(0) + split - work.split
        slot = (2 * program + (split == 0).to(gl.int32)) * self.SHARES + WHICH % self.SHARES
        LAYOUT: gl.constexpr = x.type.layout
        rows = gl.arange(0, x.shape[0], gl.SliceLayout(1, LAYOUT))
        columns = column + gl.arange(0, x.shape[1], gl.SliceLayout(0, LAYOUT))
        parts = self.workspace.to(gl.pointer_type(gl.int32)) + COUNTER_BYTES // 4
        start = parts + slot.to(gl.int64) * (x.shape[0] * self.COLUMNS)
        by_row = rows // 8 * (8 * self.COLUMNS) + rows % 8 * 8
        by_column = columns // 8 * 64 + columns % 8
        return start + by_row[:, None] + by_column[None, :]

    @gluon.jit
    def begin(self, work, WHICH: gl.constexpr):
        """Say that a part is begun."""
        if work.even:
            before = self.add(1, work, WHICH, "relaxed")
            if before % 256 == work.splits - 1:
                left = before // 256 % 256
                self.add((left + 1) << 16, work, WHICH, "relaxed")

    @gluon.jit
    def arrive(self, acc, work, WHICH: gl.constexpr, COLUMNS: gl.constexpr):
        """Leave this consumer's part in the workspace, so many columns at a time, and find out
        which pieces to add up.

        Returns:
            The number of the first piece, how many blocks divide the pieces among them, and whether
            this block is one of them; all parts are there then.
        """
        pieces = acc.pieces(COLUMNS)
        for i in gl.static_range(len(pieces)):
            piece = acc.read(pieces[i])
            addresses = self.addresses(piece, work, work.split, WHICH, i * COLUMNS)
            gl.store(addresses, piece.to(gl.int32, bitcast=True))
        acc.release()
        gl.barrier()  # all threads have written before one of them says so
        state = self.add(256, work, WHICH, "acq_rel")
        arrived = state // 256 % 256
        first = 0
        among = 1
        stays = arrived == work.splits - 1
        if work.even:
            stays = state % 256 == work.splits
            if stays:
                while (state // 256 % 256 < work.splits) | (state // 65536 % 256 == 0):
                    state = self.add(0, work, WHICH, "acquire")
                left = state // 65536 % 256 - 1
                first = arrived - left
                among = work.splits - left
        return first, among, stays

    @gluon.jit
    def end(self, work, among, WHICH: gl.constexpr):
        """The pieces are done; the last block leaves the counter zero for the next launch."""
        state = self.add(1 << 24, work, WHICH, "relaxed")
        if state // (1 << 24) == among - 1:
            self.add(-state - (1 << 24), work, WHICH, "relaxed")

    @gluon.jit
    def sum(self, total, work, WHICH: gl.constexpr, column):
        """The sum of all parts, in the order of K; total is zero, and as wide as what is added."""
        LOADS: gl.constexpr = parts_at_a_time(total.shape[0] // gl.num_ctas(), total.shape[1])
        for some in range(0, work.splits, LOADS):
            parts = ()
            for i in gl.static_range(LOADS):  # all are asked for before one is added
                addresses = self.addresses(total, work, some + i, WHICH, column)
                mask = gl.full(total.shape, 1, gl.int1, total.type.layout) & (
                    some + i < work.splits
                )
                parts += (gl.load(addresses, mask, 0, cache_modifier=".cg"),)
            for i in gl.static_range(LOADS):
                total += parts[i].to(total.dtype, bitcast=True)
        return total


@gluon.constexpr_function
def words_layout(blocks):
    """One element for each block of a cluster."""
    bases = [[1 << i] for i in range(blocks.bit_length() - 1)]
    return gl.SwizzledSharedLayout(1, 1, 1, [0], cga_layout=bases)


@gluon.jit
def words_of(workspace, CONSUMERS: gl.constexpr):
    """The `words` of `Parts`; None if none are needed."""
    if workspace is None or gl.num_ctas() == 1:
        words: gl.constexpr = None
    else:
        words = gl.allocate_shared_memory(
            gl.int32, [CONSUMERS, gl.num_ctas()], words_layout(gl.num_ctas())
        )
    return words
