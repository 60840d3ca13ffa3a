"""From the accumulators to C: the parts of a tile are added up, what follows the product is
applied (`operations`), and the tile is stored, a few columns (a *piece*) at a time.

In a C whose `N_MAJOR` is false, the caller has swapped A and B: C comes out transposed, and the
pieces are stored with their first dimension contiguous. Rows and columns here are those of what the
kernel computes.
"""

# Gluon functions: their arguments are values of the compiler, not of Python, and a tuple that grows
# is one of another type.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from triton_ext.compat import aggregate, tma_view
from triton_ext.kernels.device.clusters import own_column
from triton_ext.kernels.device.exchange import Exchange
from triton_ext.kernels.device.groups import ROWS as ROWS_OF_GROUPS
from triton_ext.kernels.device.groups import GroupStores
from triton_ext.kernels.device.last_tile import LastPieces
from triton_ext.kernels.device.matrices import store_block
from triton_ext.kernels.device.operations import (
    Found,
    Operations,
    Region,
    apply_each,
    operations_of,
)
from triton_ext.kernels.device.peers import Peers
from triton_ext.kernels.device.pieces import piece_layout
from triton_ext.kernels.device.pieces_of_c import (
    Pieces,
    Residual,
    gate_of,
    last_read,
    piece_at,
    pieces_together,
    stores_since,
    up_of,
)
from triton_ext.kernels.device.row_scatter import row_scatter_of
from triton_ext.kernels.device.split_k import Parts, words_of
from triton_ext.kernels.device.values import value


@aggregate
class Epilogue:
    """What becomes of a tile that has been multiplied.

    Attributes:
        pieces: those in which it leaves. In a scatter, their C is what goes to the next rank, a
            matrix a turn.
        parts, operations, residual: what is done on the way.
        exchange: with the other blocks of the cluster, which have sums of the same tile; or None.
        peers: the ranks among which the rows of C are divided, or None.
        last: how the last tile of a block leaves; None if it does so like the others.
        stores: how tiles of groups are stored; None if there are no groups.
        PIECE: the layout of a piece in registers, if what operations need is asked for while the
            tile is multiplied; None if each piece asks for its own.
        PLAN: of the kernel.
    """

    pieces: Pieces
    parts: Parts
    operations: Operations
    residual: Residual
    exchange: Exchange | gl.constexpr
    peers: Peers | gl.constexpr
    last: LastPieces | gl.constexpr
    stores: GroupStores | gl.constexpr
    PIECE: gl.constexpr
    PLAN: gl.constexpr

    @gluon.jit
    def receive(self, seen, work, tiling, WHICH: gl.constexpr):
        """In a scatter: wait for what the rank before has of a tile (`Peers.wait_for`), and start
        its copies.
        """
        seen = self.peers.wait_for(seen, work, tiling)
        if work.matrix > 0:
            self.residual.begin(work, 0, self.pieces.BUFFERS, WHICH)
        return seen

    @gluon.jit
    def begin(self, work, WHICH: gl.constexpr):
        """While a tile is multiplied: start the copies of its residual, or say that a part of it is
        begun, of which it is not known yet who stores it.

        Returns:
            What the operations have asked for.
        """
        if self.residual.desc is not None and not self.PLAN.scatters:  # noqa: SIM102 (known early)
            if work.splits == 1:
                self.residual.begin(work, 0, self.pieces.BUFFERS, WHICH)
        if self.parts.workspace is not None:  # noqa: SIM102
            if work.splits > 1:
                self.parts.begin(work, WHICH)
        if self.PLAN.scatters_rows:
            self.stores.scatter.begin(work, WHICH)
        if self.PIECE is None:
            found = Found((), (), (), ())
        else:
            found = self.ask_pieces(work, 0, self.pieces.NUMBER, self.PIECE, WHICH)
        return found

    @gluon.jit
    def ask_pieces(self, work, FIRST: gl.constexpr, END: gl.constexpr, LAYOUT: gl.constexpr,
                   WHICH: gl.constexpr):  # fmt: skip
        """Begin the operations on pieces FIRST to END, which have LAYOUT."""
        columns = ()
        for i in gl.static_range(FIRST, END):
            columns += (self.pieces.column(work, i),)
        PART: gl.constexpr = self.pieces.tiles.shape[2]
        START: gl.constexpr = piece_at(FIRST, self.pieces.NUMBER, self.pieces.SHARED) * PART
        return self.ask(work, columns, PART, LAYOUT, WHICH, START)

    @gluon.jit
    def ask(self, work, columns, PART: gl.constexpr, LAYOUT: gl.constexpr, WHICH: gl.constexpr,
            START: gl.constexpr = 0):  # fmt: skip
        """Begin the operations on pieces of PART columns that begin at these, and have LAYOUT."""
        size = self.pieces.size()
        if self.PLAN.gated:
            size = (size[0], 2 * size[1])
        before = 0
        before_n = 0
        if self.peers is not None:
            before = self.peers.chunk(work.matrix) * size[0].to(gl.int32)
        elif self.stores is not None:  # scales of what is not divided follow each other
            matrix_size = size
            nothing = work.k_end == 0  # its scales might be no numbers
            size = (gl.where(nothing, 0, size[0]), gl.where(nothing, 0, size[1]))
            if self.stores.DIM == ROWS_OF_GROUPS:
                other = matrix_size[1].to(gl.int32) * work.matrix
            else:
                other = matrix_size[0].to(gl.int32) * work.matrix
            if (self.stores.DIM == ROWS_OF_GROUPS) == self.pieces.N_MAJOR:
                before_n = other
            else:
                before = other
        ROWS: gl.constexpr = self.pieces.tiles.shape[1]
        region = Region(work.off_m, columns, size, before, before_n, ROWS, PART, START, WHICH,
                        LAYOUT)  # fmt: skip
        return self.operations.begin(region)

    @gluon.jit
    def finish(self, acc, work, found, phase, is_last, WHICH: gl.constexpr):
        """Store a tile that has been multiplied, or a part of one, and do not wait.

        Args:
            acc: a consumer's accumulators.
            found: what `begin` has returned.
            phase: the phase of the residual's barriers.
            is_last: the pipeline will not be filled any more, and the consumer has read all of it.

        Returns:
            Their next phase.
        """
        if self.parts.workspace is not None:
            if work.splits > 1:
                phase = self.store_parts(acc, work, found, phase, WHICH)
            else:
                phase = self.store_whole(acc, work, found, phase, is_last, WHICH)
        else:
            phase = self.store_whole(acc, work, found, phase, is_last, WHICH)
        return phase

    @gluon.jit
    def store_whole(self, acc, work, found, phase, is_last, WHICH: gl.constexpr):
        """The same, of a whole tile."""
        if self.last is None:
            phase = self.store(acc, work, found, phase, WHICH)
        else:
            if is_last:
                self.store_last(acc, work, WHICH)
            else:
                phase = self.store(acc, work, found, phase, WHICH)
        return phase

    @gluon.jit
    def store_last(self, acc, work, WHICH: gl.constexpr):
        """Store a tile by `last`. Its pieces are others: nothing has been asked for them."""
        ACROSS: gl.constexpr = self.pieces.CLUSTER_COLUMNS
        STARTS: gl.constexpr = self.last.SIZES.starts
        PART: gl.constexpr = self.last.SIZES.line * ACROSS
        LAYOUT: gl.constexpr = piece_layout(acc.sums[0].type.layout, PART)
        off = own_column(work.off_n, self.last.OWN * ACROSS, PART, ACROSS)
        columns = ()
        for i in gl.static_range(len(STARTS)):
            columns += (off + STARTS[i],)
        found = self.ask(work, columns, PART, LAYOUT, WHICH)
        gl.barrier()  # all warps of this consumer have read the buffers
        for i in gl.static_range(len(STARTS)):
            piece = acc.read(self.last.piece(acc, i))
            self.fill(piece, self.last.buffer(i, WHICH), work, found, i)
            fence_async_shared()
            view = tma_view(self.last.buffer(i, WHICH), self.last.desc)
            store_block(self.last.desc, work.matrix, work.off_m, columns[i], view)

    @gluon.jit
    def store(self, acc, work, found, phase, WHICH: gl.constexpr):
        """Registers -> swizzled shared memory -> C, a piece at a time; see `finish`."""
        pieces = acc.pieces(self.pieces.tiles.shape[2] * (2 if self.PLAN.interleaved else 1))
        NUMBER: gl.constexpr = self.pieces.NUMBER
        if self.exchange is not None:
            for i in gl.static_range(NUMBER):
                self.exchange.send(acc.read(pieces[i]), WHICH * NUMBER + i)
        BY_THREADS: gl.constexpr = self.PLAN.scatters_rows
        if BY_THREADS:
            self.stores.scatter.wait()
        TOGETHER: gl.constexpr = pieces_together(NUMBER, self.pieces.BUFFERS, BY_THREADS)
        for first in gl.static_range(0, NUMBER, TOGETHER):
            self.store_pieces(acc, pieces, work, found, phase, first, TOGETHER, WHICH)
        return self.residual.end(phase, work)

    @gluon.jit
    def store_pieces(self, acc, pieces, work, found, phase, FIRST: gl.constexpr,
                     TOGETHER: gl.constexpr, WHICH: gl.constexpr):  # fmt: skip
        """Store so many pieces, from FIRST on, as there are."""
        NUMBER: gl.constexpr = self.pieces.NUMBER
        BUFFERS: gl.constexpr = self.pieces.BUFFERS
        SHARED: gl.constexpr = self.pieces.SHARED
        END: gl.constexpr = min(FIRST + TOGETHER, NUMBER)
        if self.residual.exists(work):
            if END > BUFFERS:
                self.residual.begin(work, max(FIRST, BUFFERS), END, WHICH)
        elif not self.PLAN.scatters_rows:
            tma.store_wait(stores_since(FIRST, END, NUMBER, BUFFERS))
        for i in gl.static_range(FIRST, END):
            if self.exchange is not None:
                piece = self.exchange.sum(acc.sums[0].type.layout, WHICH * NUMBER + i)
            elif self.PLAN.gated and not self.PLAN.interleaved:
                piece = acc.read(pieces[gate_of(i, NUMBER, self.PLAN.tile.cta_group)])
            else:
                piece = acc.read(pieces[piece_at(i, NUMBER, SHARED)])
            if self.PLAN.gated and not self.PLAN.interleaved:
                up = acc.read(pieces[up_of(i, NUMBER, self.PLAN.tile.cta_group)])
            if i == last_read(NUMBER, SHARED):
                acc.release()
            if self.PLAN.interleaved:
                self.fill_interleaved(piece, i, work, WHICH)
            elif self.PLAN.gated:
                self.fill_gated(piece, up, i, work, WHICH)
            else:
                self.fill_piece(piece, i, work, found, phase, WHICH)
        self.send(work, FIRST, END, WHICH)

    @gluon.jit
    def store_parts(self, acc, work, found, phase, WHICH: gl.constexpr):
        """The same for a part of a tile: with the other blocks' parts, as far as it is this block
        that adds them up.
        """
        COLUMNS: gl.constexpr = self.pieces.tiles.shape[2]
        NUMBER: gl.constexpr = self.pieces.NUMBER
        first, among, stays = self.parts.arrive(acc, work, WHICH, COLUMNS)
        if stays:
            tma.store_wait(0)
            for i in gl.static_range(NUMBER):
                if i % among == first:
                    if self.residual.desc is not None:
                        self.residual.begin(work, i, i + 1, WHICH)
                    elif i >= self.pieces.BUFFERS:  # which were stored before is not known here
                        tma.store_wait(0)
                    piece = self.parts.sum(
                        acc.zeros(COLUMNS), work, WHICH,
                        piece_at(i, NUMBER, self.pieces.SHARED) * COLUMNS,
                    )  # fmt: skip
                    self.fill_piece(piece, i, work, found, phase, WHICH)
                    self.send(work, i, i + 1, WHICH)
            self.parts.end(work, among, WHICH)
            phase = self.residual.end(phase, work)
        return phase

    @gluon.jit
    def fill_piece(self, piece, i: gl.constexpr, work, found, phase, WHICH: gl.constexpr):
        """What follows the product in piece i of a tile; into its buffer, which is free."""
        if self.PIECE is None:
            found = self.ask_pieces(work, i, i + 1, piece.type.layout, WHICH)
        WHICH_OF: gl.constexpr = 0 if self.PIECE is None else i
        self.residual.wait(work, i, phase, WHICH)
        self.fill(piece, self.pieces.buffer(i, WHICH), work, found, WHICH_OF)

    @gluon.jit
    def fill(self, piece, buffer, work, found, WHICH_OF: gl.constexpr):
        """What follows the product in a piece of a tile; into a buffer, which is free, and where
        the residual is, if there is one.

        Args:
            found: what was asked for some pieces, of which this one is number WHICH_OF.
        """
        done = self.operations
        piece = apply_each(done.of_part, piece, found.of_part, WHICH_OF)
        if not self.PLAN.scatters:
            piece = apply_each(done.before, piece, found.before, WHICH_OF)
        piece = self.residual.piece(piece, buffer, work)
        if not self.PLAN.scatters:
            piece = apply_each(done.after, piece, found.after, WHICH_OF)
        elif work.matrix == self.peers.ranks - 1:
            piece = apply_each(done.before, piece, found.before, WHICH_OF)
            piece = apply_each(done.after, piece, found.after, WHICH_OF)
        self.pieces.fill(buffer, piece)

    @gluon.jit
    def fill_gated(self, gate, up, i: gl.constexpr, work, WHICH: gl.constexpr):
        """Piece i of a tile, made of its two sums; into its buffer, which is free."""
        LAYOUT: gl.constexpr = gate.type.layout
        PART: gl.constexpr = self.pieces.tiles.shape[2]
        done = self.operations
        column = self.pieces.column(work, i)
        found = self.ask(work, (column + self.pieces.size()[1].to(gl.int32),), PART, LAYOUT, WHICH)
        up = apply_each(done.of_part, up, found.of_part, 0)
        up = apply_each(done.before, up, found.before, 0)
        up = apply_each(done.of_up, up, found.of_up, 0)
        found = self.ask(work, (column,), PART, LAYOUT, WHICH)
        gate = apply_each(done.of_part, gate, found.of_part, 0)
        gate = apply_each(done.before, gate, found.before, 0)
        gate = apply_each(done.after, gate, found.after, 0)
        self.pieces.fill(self.pieces.buffer(i, WHICH), gate.to(gl.float32) * up.to(gl.float32))

    @gluon.jit
    def fill_interleaved(self, piece, i: gl.constexpr, work, WHICH: gl.constexpr):
        """Piece i of a tile, made of twice as many columns; into its buffer, which is free."""
        PART: gl.constexpr = self.pieces.tiles.shape[2]
        done = self.operations
        column = self.pieces.column(work, i)
        found = self.ask(work, (2 * column,), 2 * PART, piece.type.layout, WHICH)
        piece = apply_each(done.of_part, piece, found.of_part, 0)
        piece = apply_each(done.before, piece, found.before, 0)
        gate, up = piece.reshape(piece.shape[0], PART, 2).split()
        found = self.ask(work, (column,), PART, gate.type.layout, WHICH)
        up = apply_each(done.of_up, up, found.of_up, 0)
        gate = apply_each(done.after, gate, found.after, 0)
        self.pieces.fill(self.pieces.buffer(i, WHICH), gate.to(gl.float32) * up.to(gl.float32))

    @gluon.jit
    def send(self, work, FIRST: gl.constexpr, END: gl.constexpr, WHICH: gl.constexpr):
        """Start to store pieces FIRST to END, which lie in their buffers."""
        if not self.PLAN.scatters_rows:  # threads wait at the fence for all that they have stored
            fence_async_shared()
        desc = self.pieces.desc
        for i in gl.static_range(FIRST, END):
            if self.stores is not None:
                self.stores.store(self.pieces, work, i, WHICH)
            elif self.peers is None:
                self.pieces.store(desc, work.matrix, work, i, WHICH)
            elif not self.peers.SCATTER:
                self.pieces.store(desc, self.peers.chunk(work.matrix), work, i, WHICH)
            elif work.matrix < self.peers.ranks - 1:
                self.pieces.store(desc, work.matrix, work, i, WHICH)
            else:
                self.pieces.store(self.peers.own, 0, work, i, WHICH)


@gluon.jit
def epilogue_of(desc, tiles, c0_desc, c0_ready, values, exchange, peers, last, PIECE: gl.constexpr,
                SHARED: gl.constexpr, PLAN: gl.constexpr):  # fmt: skip
    """The epilogue of a kernel; see `Epilogue`."""
    TILE: gl.constexpr = PLAN.tile
    workspace = value(values, "workspace", PLAN)
    pieces = Pieces(
        desc, tiles, PLAN.c_pieces, TILE.c_buffers, TILE.cluster_n, not TILE.swap_ab, SHARED
    )
    parts = Parts(workspace, words_of(workspace, TILE.consumers), TILE.sharing_consumers,
                  PLAN.block_n)  # fmt: skip
    beta = value(values, "beta", PLAN)
    residual = Residual(c0_desc, beta, c0_ready, pieces, PLAN.scatters)
    scatter = row_scatter_of(values, tiles.shape[1], PIECE is None, PLAN)
    operations = operations_of(values, scatter, desc.dtype.primitive_bitwidth, PLAN)
    if PLAN.groups is None:
        stores: gl.constexpr = None
    else:
        stores = GroupStores(value(values, "c", PLAN), scatter, PLAN.groups.dim)
    return Epilogue(pieces, parts, operations, residual, exchange, peers, last, stores, PIECE, PLAN)
