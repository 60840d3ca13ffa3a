"""The pieces in which a tile of C leaves, a few columns at a time, and the residual that comes into
their buffers.

Each consumer (a warpgroup) has buffers of its own in shared memory, through which its pieces go: a
residual matrix comes into them by TMA, and C leaves from them.
"""

# Gluon functions: their arguments are values of the compiler, not of Python, and a tuple that grows
# is one of another type.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from triton_ext.compat import aggregate, tma_view
from triton_ext.kernels.device.clusters import own_column
from triton_ext.kernels.device.matrices import load_block, matrix_size, store_block


@gluon.constexpr_function
def pieces_together(pieces, buffers, by_threads):
    """How many pieces of a tile are stored at a time: as many as there is room for, if threads
    store them or these are all; else half of the buffers are filled while the others are stored.
    """
    together = buffers if by_threads or pieces <= buffers else max(1, buffers // 2)
    return min(pieces, together)


@gluon.constexpr_function
def piece_at(turn, pieces, shared):
    """Which piece of a tile is stored at its turn: the last ones first if they are shared."""
    return (turn - shared) % pieces


@gluon.constexpr_function
def gate_of(piece, pieces, paired):
    """Which piece of the sums has the gate of a piece of C, of so many: each of the blocks that
    multiply together has columns of the gate, then as many of up.
    """
    own = pieces // paired
    return piece // own * 2 * own + piece % own


@gluon.constexpr_function
def up_of(piece, pieces, paired):
    """Which one has what the gate is multiplied with."""
    return gate_of(piece, pieces, paired) + pieces // paired


@gluon.constexpr_function
def last_read(pieces, shared):
    """The turn after which a tile's columns may be overwritten."""
    return min(2 * shared or pieces, pieces) - 1


@gluon.constexpr_function
def stores_since(first, end, pieces, buffers):
    """How many of the pieces stored last may still lie in their buffers when pieces `first` to
    `end` take theirs: a tile is stored in so many pieces, and begins with the first buffer.
    """

    def since(piece):
        if piece >= buffers:
            return piece - buffers
        return piece + (pieces - 1 - piece) // buffers * buffers - pieces  # of the tile before

    return first - 1 - max(since(piece) for piece in range(first, end))


@aggregate
class Pieces:
    """The pieces of the tiles, and their buffers.

    Attributes:
        desc: the TMA descriptor of C.
        tiles: the buffers, BUFFERS for each consumer.
        NUMBER: how many pieces a consumer stores of a tile.
        CLUSTER_COLUMNS: how many columns of blocks a cluster has; each stores pieces of its own.
        N_MAJOR: whether C is not transposed.
        SHARED: how many of a tile's last pieces, and as many of its first, lie where the next
            tile's sums will: these are read first. 0 if the next tile's have columns of their own.
    """

    desc: tma.tensor_descriptor
    tiles: gl.shared_memory_descriptor
    NUMBER: gl.constexpr
    BUFFERS: gl.constexpr
    CLUSTER_COLUMNS: gl.constexpr
    N_MAJOR: gl.constexpr
    SHARED: gl.constexpr

    @gluon.jit
    def buffer(self, piece: gl.constexpr, WHICH: gl.constexpr):
        """The buffer through which a piece of a consumer goes."""
        return self.tiles.index(WHICH * self.BUFFERS + piece % self.BUFFERS)

    @gluon.jit
    def column(self, work, piece: gl.constexpr):
        """Where the piece of a turn begins, in columns of C."""
        PART: gl.constexpr = self.tiles.shape[2]
        INDEX: gl.constexpr = piece_at(piece, self.NUMBER, self.SHARED)
        off = own_column(work.off_n, self.NUMBER * PART, PART, self.CLUSTER_COLUMNS)
        return off + INDEX * (PART // self.CLUSTER_COLUMNS)

    @gluon.jit
    def size(self):
        """Rows and columns of C."""
        M: gl.constexpr = 0 if self.N_MAJOR else 1
        return matrix_size(self.desc, M), matrix_size(self.desc, 1 - M)

    @gluon.jit
    def fill(self, buffer, piece):
        """A piece in C's type, into a buffer."""
        if self.desc.dtype.primitive_bitwidth == 8:  # Triton converts no integers to fp8
            piece = piece.to(gl.float32)
        buffer.store(piece.to(self.desc.dtype))

    @gluon.jit
    def store(self, desc, matrix, work, piece: gl.constexpr, WHICH: gl.constexpr):
        """Start to store a piece, which lies in its buffer, to a matrix."""
        first, second = work.off_m, self.column(work, piece)
        if not self.N_MAJOR:
            first, second = second, first
        store_block(desc, matrix, first, second, tma_view(self.buffer(piece, WHICH), self.desc))


@aggregate
class Residual:
    """A matrix of the shape and type of C, of which `beta` times is added before the activation.

    Attributes:
        desc, beta: its TMA descriptor and the factor; None if there is no residual. Of a scatter,
            what the rank before has sent, a matrix a turn, and no factor.
        ready: a barrier for each piece of each consumer, which completes when the residual's piece
            is in the piece's buffer; or None.
        pieces: those of C.
        SCATTER: whether it is what the rank before has sent.
    """

    desc: tma.tensor_descriptor | gl.constexpr
    beta: gl.tensor | gl.constexpr
    ready: gl.shared_memory_descriptor | gl.constexpr
    pieces: Pieces
    SCATTER: gl.constexpr

    @gluon.jit
    def exists(self, work):
        """Whether it is added to a tile."""
        return work.matrix > 0 if self.SCATTER else self.desc is not None

    @gluon.jit
    def begin(self, work, FIRST: gl.constexpr, END: gl.constexpr, WHICH: gl.constexpr):
        """Start the copies of a consumer's pieces FIRST to END into their buffers, once these were
        read.
        """
        matrix = work.matrix
        if self.SCATTER:
            matrix -= 1
        tma.store_wait(0)
        for i in gl.static_range(FIRST, END):
            barrier = self.ready.index(WHICH * self.pieces.NUMBER + i)
            mbarrier.expect(barrier, self.desc.nbytes_per_cta)
            target = tma_view(self.pieces.buffer(i, WHICH), self.desc)
            off_n = self.pieces.column(work, i)
            if self.pieces.N_MAJOR:
                load_block(self.desc, matrix, work.off_m, off_n, barrier, target, False)
            else:
                load_block(self.desc, matrix, off_n, work.off_m, barrier, target, False)

    @gluon.jit
    def wait(self, work, i: gl.constexpr, phase, WHICH: gl.constexpr):
        """Wait until piece i is in its buffer."""
        if self.exists(work):
            mbarrier.wait(self.ready.index(WHICH * self.pieces.NUMBER + i), phase)

    @gluon.jit
    def piece(self, x, buffer, work):
        """x plus what is in its buffer."""
        if self.exists(work):
            added = buffer.load(x.type.layout).to(gl.float32)
            if self.beta is not None:
                added *= self.beta
            x = x.to(gl.float32) + added
        return x

    @gluon.jit
    def end(self, phase, work):
        """The next phase of the barriers, once its pieces were read."""
        if self.exists(work):
            phase ^= 1
        return phase
