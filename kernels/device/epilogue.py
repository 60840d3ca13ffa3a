"""From the accumulators to C: the parts of a tile are added up, what follows the product is
applied, and the tile is stored, a few columns (a *piece*) at a time.

Each consumer (a warpgroup) has buffers of its own in shared memory, through which its pieces go: a
residual matrix comes into them by TMA, and C leaves from them.

In a C whose `N_MAJOR` is false, the caller has swapped A and B: C comes out transposed, and the
pieces are stored with their first dimension contiguous. Rows and columns here are those of what the
kernel computes.
"""

# Gluon functions: their arguments are values of the compiler, not of Python, and a tuple that grows
# is one of another type.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment"

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from triton_ext.compat import aggregate, tma_view
from triton_ext.kernels.device.clusters import add_in_block, block_of_cluster, own_column
from triton_ext.kernels.device.exchange import Exchange
from triton_ext.kernels.device.last_tile import RingPieces
from triton_ext.kernels.device.matrices import load_block, matrix_size, store_block
from triton_ext.kernels.device.peers import Peers
from triton_ext.kernels.device.pieces import piece_layout

COUNTER_BYTES = gl.constexpr(8192)
"""The size of the workspace's first section, a counter for each consumer of each tile that several
blocks share (of each block's, in clusters); the partial tiles follow, two for each block."""


@gluon.constexpr_function
def parts_at_a_time(rows, columns):
    """How many parts of a piece a consumer reads at a time: 128 registers of a thread, or one."""
    return 4 if rows * columns <= 32 * 128 else 1


TAIL = gl.constexpr((
    -2.82530352, 1.43290684, 0.630840247, -0.327658643, 1.1950848, -2.51450526, 2.07395385,
    -0.77246533, 0.107146687,
))  # fmt: skip
"""Coefficients of a polynomial in t = 1 / (1 + z / 2), that of t^0 first: the binary logarithm of
erfc(z) exp(z^2) / (2 t) for z from 0 to 10, where what it is the logarithm of is off by 2.3e-7 at
most (fitted by weighted least squares in float64, against ``math.erfc``)."""
SHORT_TAIL = gl.constexpr((
    -1.00004339, -1.15043378, -0.46081984, -0.0514006726, 0.00719563244, -0.000592958182,
    2.03176878e-05,
))  # fmt: skip
"""The same of one in z: the binary logarithm of erfc(z / sqrt 2) / 2, off by 3.1e-5 up to z = 4 (a
tenth of what is lost by rounding to fp16); from there on what it is the logarithm of, times z, is
off by 3.8e-9 at most."""
FARTHEST = gl.constexpr(14.0)
"""Where the tail is no normal number any more, and taken to be 0."""
KEEPS_NAN = gl.constexpr(tl.PropagateNan.ALL)
ROOT_OF_HALF = gl.constexpr(0.7071067811865476)
LOG2_E = gl.constexpr(1.4426950408889634)


@gluon.jit
def reciprocal(x):
    """1 / x, within one unit in the last place; 0 of infinity."""
    return gl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def power_of_2(x):
    """2^x, within two units in the last place."""
    return gl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def polynomial(x, COEFFICIENTS: gl.constexpr):
    """Its value at x; that of x^0 is the first coefficient."""
    LAST: gl.constexpr = len(COEFFICIENTS) - 1
    value = gl.full_like(x, COEFFICIENTS[LAST])
    for i in gl.static_range(LAST):
        value = value * x + COEFFICIENTS[LAST - 1 - i]
    return value


@gluon.jit
def normal_tail(z, BITS: gl.constexpr):
    """The integral of the normal distribution from z >= 0 on, for what has so many bits."""
    if BITS <= 16:
        tail = power_of_2(polynomial(z, SHORT_TAIL))
    else:
        t = reciprocal(1.0 + (0.5 * ROOT_OF_HALF) * z)
        tail = t * power_of_2(polynomial(t, TAIL) - z * z * (LOG2_E / 2))
    return tail


@gluon.jit
def relu(x):
    """The greater of x and 0; NaN of NaN."""
    return gl.maximum(x, 0.0, propagate_nan=KEEPS_NAN)


@gluon.jit
def gelu(x, BITS: gl.constexpr):
    """x times the integral of the normal distribution up to x, to be rounded to so many bits:
    within 2e-6 of it where |x| < 4; if they are 16 or fewer, within 4e-5, and from there on within
    4e-9 in all. Of -infinity it is NaN, as PyTorch's.

    By the tail: half of the instructions that erf takes, and nothing cancels where x is negative.
    """
    z, half = gl.minimum(gl.abs(x), FARTHEST), 0.5 * x
    return half + gl.abs(half) - z * normal_tail(z, BITS)  # relu(x), but for -infinity


@gluon.jit
def activated(x, ACTIVATION: gl.constexpr, BITS: gl.constexpr):
    """The activation function of that name, as PyTorch defines it by default, of what will be
    rounded to so many bits.
    """
    if ACTIVATION == "relu":
        x = relu(x)
    elif ACTIVATION == "gelu":
        x = gelu(x, BITS)
    elif ACTIVATION == "silu":
        x *= reciprocal(1.0 + power_of_2(x * -LOG2_E))
    return x


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
        place = state // 256 % 256
        first = 0
        among = 1
        stays = place == work.splits - 1
        if work.even:
            stays = state % 256 == work.splits
            if stays:
                while (state // 256 % 256 < work.splits) | (state // 65536 % 256 == 0):
                    state = self.add(0, work, WHICH, "acquire")
                left = state // 65536 % 256 - 1
                first = place - left
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


@gluon.constexpr_function
def dimension(across, each):
    """Along which dimension of a piece a vector lies; one value for all is as good in each row."""
    return 1 if across and each else 0


@aggregate
class Vectors:
    """What the pieces of a tile are combined with, as it lies in memory; empty if there is none.

    They are asked for while the tile is multiplied: each piece would wait for its own.

    Attributes:
        bias, a_scale, b_scale: values along the rows, or along the columns of each piece.
    """

    bias: gl.tuple
    a_scale: gl.tuple
    b_scale: gl.tuple


@aggregate
class Scaling:
    """x * alpha * scales of A * scales of B + bias, as far as these are given.

    Attributes:
        bias, a_scale, b_scale: addresses of vectors along N, M and N of C, or None.
        alpha: a number, or None.
        A_SCALES, B_SCALES: 1 if every row of A, or column of B, has its own scale, 0 if they share
            one.
        N_IS_COLUMN: whether dimension 1 of x is N of C; else it is M.
    """

    bias: gl.tensor | gl.constexpr
    a_scale: gl.tensor | gl.constexpr
    b_scale: gl.tensor | gl.constexpr
    alpha: gl.tensor | gl.constexpr
    A_SCALES: gl.constexpr
    B_SCALES: gl.constexpr
    N_IS_COLUMN: gl.constexpr

    @gluon.jit
    def values(self, pointer, off, size, LENGTH: gl.constexpr, LAYOUT: gl.constexpr,
               DIM: gl.constexpr, EACH: gl.constexpr):  # fmt: skip
        """So many values of a vector from `off` on, to be combined with a piece that has LAYOUT.

        Args:
            DIM: of the piece, along which they lie.
            EACH: 1 if every row or column has its own, 0 if they share one.
        """
        indices = off + gl.arange(0, LENGTH, gl.SliceLayout(1 - DIM, LAYOUT))
        return gl.load(pointer + indices * EACH, mask=indices < size, other=0.0)

    @gluon.jit
    def asked(self, pointer, row, columns, size, ROWS: gl.constexpr, PART: gl.constexpr,
              LAYOUT: gl.constexpr, OF_N: gl.constexpr, EACH: gl.constexpr):  # fmt: skip
        """The values of a vector, if there is one, for pieces that begin at these columns: along
        their rows, which all have in common, or of each.
        """
        found = ()
        if pointer is not None:
            DIM: gl.constexpr = dimension(OF_N == self.N_IS_COLUMN, EACH)
            if DIM == 0:
                found += (self.values(pointer, row, size[0], ROWS, LAYOUT, 0, EACH),)
            else:
                for i in gl.static_range(len(columns)):
                    found += (self.values(pointer, columns[i], size[1], PART, LAYOUT, 1, EACH),)
        return found

    @gluon.jit
    def ask(self, row, columns, size, before, ROWS: gl.constexpr, PART: gl.constexpr,
            LAYOUT: gl.constexpr):  # fmt: skip
        """Ask for the vectors of a tile's pieces, (ROWS, PART) each.

        Args:
            row, columns: where they begin, in a C of that `size`: (rows, columns).
            before: how many rows of A come before this C's.
        """
        a_scale = self.a_scale
        if self.a_scale is not None:
            a_scale = self.a_scale + before * self.A_SCALES
        return Vectors(
            self.asked(self.bias, row, columns, size, ROWS, PART, LAYOUT, True, 1),
            self.asked(a_scale, row, columns, size, ROWS, PART, LAYOUT, False, self.A_SCALES),
            self.asked(self.b_scale, row, columns, size, ROWS, PART, LAYOUT, True, self.B_SCALES),
        )

    @gluon.jit
    def along(self, values, i: gl.constexpr, OF_N: gl.constexpr, EACH: gl.constexpr):
        """A vector's values for piece i, fp32, as a row or a column."""
        DIM: gl.constexpr = dimension(OF_N == self.N_IS_COLUMN, EACH)
        return gl.expand_dims(values[i if DIM else 0].to(gl.float32), 1 - DIM)

    @gluon.jit
    def scale(self, x, vectors, i: gl.constexpr):
        """Piece i, x, scaled; no bias yet."""
        if self.alpha is not None:
            x = x.to(gl.float32) * self.alpha
        if self.a_scale is not None:
            x = x.to(gl.float32) * self.along(vectors.a_scale, i, False, self.A_SCALES)
        if self.b_scale is not None:
            x = x.to(gl.float32) * self.along(vectors.b_scale, i, True, self.B_SCALES)
        return x

    @gluon.jit
    def add_bias(self, x, vectors, i: gl.constexpr):
        """Piece i, x, with its bias."""
        if self.bias is not None:
            x = x.to(gl.float32) + self.along(vectors.bias, i, True, 1)
        return x


@aggregate
class Residual:
    """A matrix of the shape and type of C, of which `beta` times is added before the activation.

    Attributes:
        desc, beta: its TMA descriptor and the factor; None if there is no residual. Of a scatter,
            what the rank before has sent, a matrix a turn, and no factor.
        ready: a barrier for each piece of each consumer, which completes when the residual's piece
            is in the piece's buffer; or None.
    """

    desc: tma.tensor_descriptor | gl.constexpr
    beta: gl.tensor | gl.constexpr
    ready: gl.shared_memory_descriptor | gl.constexpr


@gluon.constexpr_function
def pieces_together(pieces, buffers):
    """How many pieces of a tile are stored at a time: all if there is room; else half of the
    buffers are filled while the others are stored.
    """
    return pieces if pieces <= buffers else max(1, buffers // 2)


@gluon.constexpr_function
def place_of(turn, pieces, shared):
    """Which piece of a tile is stored at its turn: the last ones first if they are shared."""
    return (turn - shared) % pieces


@gluon.constexpr_function
def last_read(pieces, shared):
    """The turn after which a tile's place may be overwritten."""
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
class Epilogue:
    """What becomes of a tile that has been multiplied.

    Attributes:
        desc: the TMA descriptor of C.
        tiles: the buffers of the pieces, BUFFERS for each consumer.
        parts, scaling, residual: what is done on the way.
        exchange: with the other blocks of the cluster, which have sums of the same tile; or None.
        ACTIVATION: "relu", "gelu", "silu" or None.
        PIECES: how many pieces a consumer stores of a tile.
        CLUSTER_COLUMNS: how many columns of blocks a cluster has; each stores pieces of its own.
        PIECE: the layout of a piece in registers, if its vectors are asked for while the tile is
            multiplied; None if each piece asks for its own.
        N_MAJOR: whether C is not transposed.
        peers: the ranks among which the rows of C are divided, or None. In a scatter, `desc` is of
            what goes to the next rank, a matrix a turn.
        SHARED: how many of a tile's last pieces, and as many of its first, lie where the next
            tile's sums will: these are read first. 0 if the next tile's have a place of their own.
        last: how the last tile of a block leaves; None if it does so like the others.
    """

    desc: tma.tensor_descriptor
    tiles: gl.shared_memory_descriptor
    parts: Parts
    scaling: Scaling
    residual: Residual
    exchange: Exchange | gl.constexpr
    ACTIVATION: gl.constexpr
    PIECES: gl.constexpr
    BUFFERS: gl.constexpr
    CLUSTER_COLUMNS: gl.constexpr
    PIECE: gl.constexpr
    N_MAJOR: gl.constexpr
    peers: Peers | gl.constexpr
    SHARED: gl.constexpr
    last: RingPieces | gl.constexpr

    @gluon.jit
    def buffer(self, piece: gl.constexpr, WHICH: gl.constexpr):
        """The buffer through which a piece of a consumer goes."""
        return self.tiles.index(WHICH * self.BUFFERS + piece % self.BUFFERS)

    @gluon.jit
    def column(self, work, piece: gl.constexpr):
        """Where the piece of a turn begins, in columns of C."""
        PART: gl.constexpr = self.tiles.shape[2]
        PLACE: gl.constexpr = place_of(piece, self.PIECES, self.SHARED)
        off = own_column(work.off_n, self.PIECES * PART, PART, self.CLUSTER_COLUMNS)
        return off + PLACE * (PART // self.CLUSTER_COLUMNS)

    @gluon.jit
    def load_residual(self, work, FIRST: gl.constexpr, END: gl.constexpr, WHICH: gl.constexpr):
        """Start the copies of a consumer's pieces FIRST to END of the residual into their buffers,
        once these were read.
        """
        desc = self.residual.desc
        matrix = work.matrix
        if self.scatters():
            matrix -= 1
        tma.store_wait(0)
        for i in gl.static_range(FIRST, END):
            barrier = self.residual.ready.index(WHICH * self.PIECES + i)
            mbarrier.expect(barrier, desc.nbytes_per_cta)
            target = tma_view(self.buffer(i, WHICH), desc)
            off_n = self.column(work, i)
            if self.N_MAJOR:
                load_block(desc, matrix, work.off_m, off_n, barrier, target, False)
            else:
                load_block(desc, matrix, off_n, work.off_m, barrier, target, False)

    @gluon.jit
    def scatters(self):
        """Whether tiles go on to the next rank; known when the kernel is compiled."""
        return False if self.peers is None else self.peers.SCATTER

    @gluon.jit
    def hand_over(self, work, tiling):
        """In a scatter: count a tile that the next rank will get, if it is one."""
        if work.matrix < self.peers.ranks - 1:
            self.peers.count(work, tiling)

    @gluon.jit
    def receive(self, seen, work, tiling, WHICH: gl.constexpr):
        """In a scatter: wait for what the rank before has of a tile (`Peers.wait_for`), and start
        its copies.
        """
        seen = self.peers.wait_for(seen, work, tiling)
        if work.matrix > 0:
            self.load_residual(work, 0, self.BUFFERS, WHICH)
        return seen

    @gluon.jit
    def begin(self, work, WHICH: gl.constexpr):
        """While a tile is multiplied: start the copies of its residual, or say that a part of it is
        begun, of which it is not known yet who stores it.

        Returns:
            The `Vectors` of its pieces, which were asked for.
        """
        if self.residual.desc is not None and not self.scatters():  # noqa: SIM102 (known early)
            if work.splits == 1:
                self.load_residual(work, 0, self.BUFFERS, WHICH)
        if self.parts.workspace is not None:  # noqa: SIM102
            if work.splits > 1:
                self.parts.begin(work, WHICH)
        if self.PIECE is None:
            vectors = Vectors((), (), ())
        else:
            vectors = self.ask_pieces(work, 0, self.PIECES, self.PIECE)
        return vectors

    @gluon.jit
    def ask_pieces(self, work, FIRST: gl.constexpr, END: gl.constexpr, LAYOUT: gl.constexpr):
        """Ask for the vectors of pieces FIRST to END, which have LAYOUT."""
        columns = ()
        for i in gl.static_range(FIRST, END):
            columns += (self.column(work, i),)
        return self.ask(work, columns, self.tiles.shape[2], LAYOUT)

    @gluon.jit
    def ask(self, work, columns, PART: gl.constexpr, LAYOUT: gl.constexpr):
        """Ask for the vectors of pieces of PART columns that begin at these, and have LAYOUT."""
        before = 0
        if self.peers is not None:
            before = self.peers.chunk(work.matrix) * self.size()[0].to(gl.int32)
        ROWS: gl.constexpr = self.tiles.shape[1]
        return self.scaling.ask(work.off_m, columns, self.size(), before, ROWS, PART, LAYOUT)

    @gluon.jit
    def size(self):
        """Rows and columns of C."""
        M: gl.constexpr = 0 if self.N_MAJOR else 1
        return matrix_size(self.desc, M), matrix_size(self.desc, 1 - M)

    @gluon.jit
    def finish(self, acc, work, vectors, phase, is_last, WHICH: gl.constexpr):
        """Store a tile that has been multiplied, or a part of one, and do not wait.

        Args:
            acc: a consumer's accumulators.
            vectors: what `begin` has returned.
            phase: the phase of the residual's barriers.
            is_last: the ring will not be filled any more, and the consumer has read all of it.

        Returns:
            Their next phase.
        """
        if self.parts.workspace is not None:
            if work.splits > 1:
                phase = self.store_parts(acc, work, vectors, phase, WHICH)
            else:
                phase = self.store_whole(acc, work, vectors, phase, is_last, WHICH)
        else:
            phase = self.store_whole(acc, work, vectors, phase, is_last, WHICH)
        return phase

    @gluon.jit
    def store_whole(self, acc, work, vectors, phase, is_last, WHICH: gl.constexpr):
        """The same, of a whole tile."""
        if self.last is None:
            phase = self.store(acc, work, vectors, phase, WHICH)
        else:
            if is_last:
                self.store_last(acc, work, WHICH)
            else:
                phase = self.store(acc, work, vectors, phase, WHICH)
        return phase

    @gluon.jit
    def store_last(self, acc, work, WHICH: gl.constexpr):
        """Store a tile by `last`. Its pieces are others: their vectors have not been asked for."""
        STARTS: gl.constexpr = self.last.SIZES.starts
        PART: gl.constexpr = self.last.SIZES.line * self.CLUSTER_COLUMNS
        LAYOUT: gl.constexpr = piece_layout(acc.sums[0].type.layout, PART)
        off = own_column(
            work.off_n, self.last.OWN * self.CLUSTER_COLUMNS, PART, self.CLUSTER_COLUMNS
        )
        columns = ()
        for i in gl.static_range(len(STARTS)):
            columns += (off + STARTS[i],)
        vectors = self.ask(work, columns, PART, LAYOUT)
        self.last.wait()
        for i in gl.static_range(len(STARTS)):
            piece = acc.read(self.last.piece(acc, i))
            self.fill(piece, self.last.buffer(i, WHICH), work, vectors, i)
            fence_async_shared()
            view = tma_view(self.last.buffer(i, WHICH), self.last.desc)
            store_block(self.last.desc, work.matrix, work.off_m, columns[i], view)

    @gluon.jit
    def store(self, acc, work, vectors, phase, WHICH: gl.constexpr):
        """Registers -> swizzled shared memory -> C, a piece at a time; see `finish`."""
        pieces = acc.pieces(self.tiles.shape[2])
        if self.exchange is not None:
            for i in gl.static_range(self.PIECES):
                self.exchange.send(acc.read(pieces[i]), WHICH * self.PIECES + i)
        TOGETHER: gl.constexpr = pieces_together(self.PIECES, self.BUFFERS)
        for first in gl.static_range(0, self.PIECES, TOGETHER):
            self.store_pieces(acc, pieces, work, vectors, phase, first, TOGETHER, WHICH)
        return self.next_phase(phase, work)

    @gluon.jit
    def store_pieces(self, acc, pieces, work, vectors, phase, FIRST: gl.constexpr,
                     TOGETHER: gl.constexpr, WHICH: gl.constexpr):  # fmt: skip
        """Store so many pieces, from FIRST on, as there are."""
        END: gl.constexpr = min(FIRST + TOGETHER, self.PIECES)
        if self.adds(work):
            if END > self.BUFFERS:
                self.load_residual(work, max(FIRST, self.BUFFERS), END, WHICH)
        else:
            tma.store_wait(stores_since(FIRST, END, self.PIECES, self.BUFFERS))
        for i in gl.static_range(FIRST, END):
            if self.exchange is None:
                piece = acc.read(pieces[place_of(i, self.PIECES, self.SHARED)])
            else:
                piece = self.exchange.sum(acc.sums[0].type.layout, WHICH * self.PIECES + i)
            if i == last_read(self.PIECES, self.SHARED):
                acc.release()
            self.fill_piece(piece, i, work, vectors, phase, WHICH)
        self.send(work, FIRST, END, WHICH)

    @gluon.jit
    def adds(self, work):
        """Whether a residual is added to a tile."""
        return work.matrix > 0 if self.scatters() else self.residual.desc is not None

    @gluon.jit
    def store_parts(self, acc, work, vectors, phase, WHICH: gl.constexpr):
        """The same for a part of a tile: with the other blocks' parts, as far as it is this block
        that adds them up.
        """
        COLUMNS: gl.constexpr = self.tiles.shape[2]
        first, among, stays = self.parts.arrive(acc, work, WHICH, COLUMNS)
        if stays:
            tma.store_wait(0)
            for i in gl.static_range(self.PIECES):
                if i % among == first:
                    if self.residual.desc is not None:
                        self.load_residual(work, i, i + 1, WHICH)
                    elif i >= self.BUFFERS:  # which were stored before is not known here
                        tma.store_wait(0)
                    piece = self.parts.sum(
                        acc.zeros(COLUMNS), work, WHICH,
                        place_of(i, self.PIECES, self.SHARED) * COLUMNS,
                    )  # fmt: skip
                    self.fill_piece(piece, i, work, vectors, phase, WHICH)
                    self.send(work, i, i + 1, WHICH)
            self.parts.end(work, among, WHICH)
            phase = self.next_phase(phase, work)
        return phase

    @gluon.jit
    def next_phase(self, phase, work):
        """That of the residual's barriers, once its pieces were read."""
        if self.adds(work):
            phase ^= 1
        return phase

    @gluon.jit
    def fill_piece(self, piece, i: gl.constexpr, work, vectors, phase, WHICH: gl.constexpr):
        """What follows the product in piece i of a tile; into its buffer, which is free."""
        if self.PIECE is None:
            vectors = self.ask_pieces(work, i, i + 1, piece.type.layout)
        WHICH_OF: gl.constexpr = 0 if self.PIECE is None else i
        if self.adds(work):
            mbarrier.wait(self.residual.ready.index(WHICH * self.PIECES + i), phase)
        self.fill(piece, self.buffer(i, WHICH), work, vectors, WHICH_OF)

    @gluon.jit
    def fill(self, piece, buffer, work, vectors, WHICH_OF: gl.constexpr):
        """What follows the product in a piece of a tile; into a buffer, which is free, and where
        the residual is, if there is one.

        Args:
            vectors: those of some pieces, of which this one is number WHICH_OF.
        """
        piece = self.scaling.scale(piece, vectors, WHICH_OF)
        if not self.scatters():
            piece = self.scaling.add_bias(piece, vectors, WHICH_OF)
        if self.adds(work):
            added = buffer.load(piece.type.layout).to(gl.float32)
            if self.residual.beta is not None:
                added *= self.residual.beta
            piece = piece.to(gl.float32) + added
        BITS: gl.constexpr = self.desc.dtype.primitive_bitwidth
        if not self.scatters():
            piece = activated(piece, self.ACTIVATION, BITS)
        elif work.matrix == self.peers.ranks - 1:
            piece = self.scaling.add_bias(piece, vectors, WHICH_OF)
            piece = activated(piece, self.ACTIVATION, BITS)
        if BITS == 8:  # Triton converts no integers to fp8
            piece = piece.to(gl.float32)
        buffer.store(piece.to(self.desc.dtype))

    @gluon.jit
    def send(self, work, FIRST: gl.constexpr, END: gl.constexpr, WHICH: gl.constexpr):
        """Start to store pieces FIRST to END, which lie in their buffers."""
        fence_async_shared()
        for i in gl.static_range(FIRST, END):
            first, second = work.off_m, self.column(work, i)
            if not self.N_MAJOR:
                first, second = second, first
            view = tma_view(self.buffer(i, WHICH), self.desc)
            if self.peers is None:
                store_block(self.desc, work.matrix, first, second, view)
            elif not self.peers.SCATTER:
                store_block(self.desc, self.peers.chunk(work.matrix), first, second, view)
            elif work.matrix < self.peers.ranks - 1:
                store_block(self.desc, work.matrix, first, second, view)
            else:
                store_block(self.peers.own, 0, first, second, view)
