"""Products of groups in one launch: of the rows of A, the columns of B, or the elements of K.

Where groups end is read from memory by the kernel. All their tiles are one queue: a block makes
every so-manieth, and finds the group of each by going on from the one before. Nothing is made for
a group, no tensor map either: a tile of a group that is shorter than a tile is read as if it were
whole, which brings elements of the next group, and its rows of the group alone are stored, by plain
stores. In a longer group, the last tile ends where the group does, and overlaps the one before; it
is stored by TMA, as are all others. But not where rows are scattered, or have block scales: these
lie in blocks of 128 rows, the first of which begins with its group.

Where groups divide K, what a tile has of the next group is overwritten with zeros in shared memory,
of both operands: it might be no number.

Ends beyond the matrix count as its end, and an end before the one before as an empty group: nothing
is read or written out of bounds. Rows (columns) behind the last end are one more group, whose
tiles are zeros: nothing is multiplied, and no scale is read.
"""

# Gluon functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from triton_ext.compat import aggregate
from triton_ext.kernels.device.pieces_of_c import piece_at
from triton_ext.kernels.device.row_scatter import RowScatter
from triton_ext.kernels.device.scheduler import Tiling, tile_position
from triton_ext.kernels.device.values import value
from triton_ext.kernels.element_types import SCALE_BLOCK

ROWS, COLUMNS, ALONG_K = gl.constexpr(0), gl.constexpr(1), gl.constexpr(2)
"""What groups divide, of what a kernel computes."""
SCALE_ROWS = gl.constexpr(SCALE_BLOCK[0])
"""Rows of a block of scales."""


@aggregate
class Turn:
    """A tile that is this block's to make.

    Attributes:
        tile: its number among those of all groups.
        group: its group.
        start, end: that group's rows, columns, or elements of K.
        first, last: the numbers of that group's first tile, and of the next group's.
        block: how many blocks of scales the groups before it have.
        more: whether there is one; else all else here means nothing.
    """

    tile: gl.tensor
    group: gl.tensor
    start: gl.tensor
    end: gl.tensor
    first: gl.tensor
    last: gl.tensor
    block: gl.tensor
    more: gl.tensor


@aggregate
class GroupWork:
    """What a block does in one step; what `Work` is without groups.

    Attributes:
        matrix: the group.
        off_m, off_n: the tile's first row and column.
        k_first, k_end: the range of K, in tiles; of a group of K, counted from its first element.
        off_k: that element.
        k_left: how many elements of the last K tile are the group's; 0 if all are.
        end: the first row or column behind the group's.
        whole: whether TMA may store the tile.
        block_m, block_n: the first blocks of scales of the tile's rows and columns, if it has such.
    """

    matrix: gl.tensor
    off_m: gl.tensor
    off_n: gl.tensor
    k_first: gl.tensor
    k_end: gl.tensor
    off_k: gl.tensor
    k_left: gl.tensor
    end: gl.tensor
    whole: gl.tensor
    block_m: gl.tensor
    block_n: gl.tensor


@aggregate
class Groups:
    """All tiles of a block, in order.

    Attributes:
        ends: the address of the groups' ends, int32; if EVEN, of how many rows of each count.
        number: how many groups there are.
        extent: how long they are together at most; if EVEN, each.
        tiling: the problem in tiles, as if it had one group.
        DIM: what they divide: `ROWS`, `COLUMNS` or `ALONG_K`.
        EVEN: whether all have as many rows in memory.
        APART: whether no two tiles of a group overlap.
        SCALED: whether operands have block scales.
        BLOCK_K: elements of a K tile.
        ALIGNED: at multiples of how many elements along the groups a tile that TMA stores begins.
    """

    ends: gl.tensor
    number: gl.tensor
    extent: gl.tensor
    tiling: Tiling
    DIM: gl.constexpr
    EVEN: gl.constexpr
    APART: gl.constexpr
    SCALED: gl.constexpr
    BLOCK_K: gl.constexpr
    ALIGNED: gl.constexpr

    @gluon.jit
    def first(self):
        """The block's first tile. What is behind `ends` must have been written."""
        zero = gl.to_tensor(0)
        return self.found(Turn(gl.program_id(0), zero - 1, zero, zero, zero, zero, zero, zero == 0))

    @gluon.jit
    def next(self, turn):
        """The one after this."""
        tile = turn.tile + gl.num_programs(0)
        return self.found(
            Turn(tile, turn.group, turn.start, turn.end, turn.first, turn.last, turn.block,
                 turn.more)
        )  # fmt: skip

    @gluon.jit
    def found(self, turn):
        """The turn of a tile, given the group of one before it."""
        group, start, end, first, last = turn.group, turn.start, turn.end, turn.first, turn.last
        block = turn.block
        all_groups = self.number
        if not (self.EVEN or self.DIM == ALONG_K):
            all_groups += 1  # with what is behind the last one
        while (turn.tile >= last) & (group + 1 < all_groups):
            group += 1
            if self.SCALED:
                length = self.extent if self.EVEN else end - start
                block += gl.where(group > 0, gl.cdiv(length, SCALE_ROWS), 0)
            given = gl.load(self.ends + group, mask=group < self.number, other=self.extent)
            if self.EVEN:
                start = group * self.extent
                end = start + gl.minimum(gl.maximum(given, 0), self.extent)
            else:
                start = end
                end = gl.maximum(gl.minimum(given, self.extent), start)
            first = last
            last = first + self.tiles(end - start)
        return Turn(turn.tile, group, start, end, first, last, block, turn.tile < last)

    @gluon.jit
    def tiles(self, length):
        """How many tiles a group of some length has."""
        down, across = self.tiling.tiles_m, self.tiling.tiles_n
        if self.DIM == ROWS:
            down = gl.cdiv(length, self.tiling.BLOCK_M)
        elif self.DIM == COLUMNS:
            across = gl.cdiv(length, self.tiling.BLOCK_N)
        return down * across

    @gluon.jit
    def work(self, turn, ROW: gl.constexpr = 0):
        """What a turn is for; its offsets are those of row ROW of the tile."""
        tiling = self.tiling
        length = turn.end - turn.start
        down, across = tiling.tiles_m, tiling.tiles_n
        k_end = tiling.num_k
        zero = gl.to_tensor(0)
        off_k, k_left, whole = zero, zero, zero == 0
        if self.DIM == ROWS:
            down = gl.maximum(gl.cdiv(length, tiling.BLOCK_M), 1)
        elif self.DIM == COLUMNS:
            across = gl.maximum(gl.cdiv(length, tiling.BLOCK_N), 1)
        if self.DIM != ALONG_K:
            k_end = gl.where(turn.group < self.number, k_end, 0)
        else:
            k_end = gl.cdiv(length, self.BLOCK_K)
            off_k = turn.start
            k_left = length % self.BLOCK_K
        tile_m, tile_n = tile_position(turn.tile - turn.first, down, across, tiling.group)
        off_m, off_n = tile_m * tiling.BLOCK_M, tile_n * tiling.BLOCK_N
        matrix = gl.minimum(turn.group, self.number - 1)
        block_m, block_n = zero, zero
        if self.SCALED:
            block_m, block_n = off_m // SCALE_ROWS, off_n // SCALE_ROWS
            if self.DIM == ROWS:
                block_m += turn.block
                block_n += matrix * gl.cdiv(tiling.size_n, SCALE_ROWS)
            else:
                block_n += turn.block
                block_m += matrix * gl.cdiv(tiling.size_m, SCALE_ROWS)
        if self.DIM == ROWS:
            last = length - tiling.BLOCK_M
            whole = off_m <= last if self.APART else last >= 0
            off_m = self.tile_start(turn, off_m, last)
            whole &= off_m % self.ALIGNED == 0
        elif self.DIM == COLUMNS:
            last = length - tiling.BLOCK_N
            whole = off_n <= last if self.APART else last >= 0
            off_n = self.tile_start(turn, off_n, last)
            whole &= off_n % self.ALIGNED == 0
        return GroupWork(
            matrix,
            off_m + ROW,
            off_n,
            zero,
            k_end,
            off_k,
            k_left,
            turn.end,
            whole,
            block_m,
            block_n,
        )

    @gluon.jit
    def tile_start(self, turn, off, last):
        """Where a tile begins along its group, whose last one begins at `last` if it is as long."""
        if not self.APART:
            off = gl.minimum(off, gl.maximum(last, 0))
        return turn.start + off


@gluon.jit
def groups_of(values, tiling, a_desc, b_desc, c_desc, k_extent, PLAN: gl.constexpr):
    """The tiles of a kernel's groups; see `Groups`.

    Args:
        a_desc, b_desc, c_desc: the kernel's descriptors, one of which has a matrix for each group.
    """
    of_b = b_desc.shape[0] // PLAN.parts_of_b
    if PLAN.gathered is None:
        number = gl.maximum(gl.maximum(a_desc.shape[0], of_b), c_desc.shape[0])
    else:  # A may be no batch
        number = a_desc.shape[0] if PLAN.tile.swap_ab else of_b
    number = number.to(gl.int32)
    DIM: gl.constexpr = PLAN.groups.dim
    if DIM == ROWS:
        extent = tiling.size_m
    elif DIM == COLUMNS:
        extent = tiling.size_n
    else:
        extent = k_extent.to(gl.int32)
    if PLAN.groups.even:
        extent = extent // number
    return Groups(
        value(values, "offs", PLAN), number, extent, tiling, DIM, PLAN.groups.even,
        PLAN.groups.apart, PLAN.groups.scaled, PLAN.tile.block_k, PLAN.groups.aligned,
    )  # fmt: skip


@gluon.constexpr_function
def store_layout(warps, n_major, elements, blocks=1):
    """Registers of a piece of C that is stored from them: so many elements of a row of C a thread;
    the blocks of a cluster divide the rows of the piece.
    """
    rows = [[1 << i, 0] for i in range(blocks.bit_length() - 1)]
    if n_major:
        return gl.BlockedLayout([1, elements], [4, 8], [warps, 1], [1, 0], rows)
    return gl.BlockedLayout([elements, 1], [8, 4], [1, warps], [0, 1], rows)


@aggregate
class GroupStores:
    """How tiles of groups are stored.

    Attributes:
        pointer: C's address.
        scatter: to which row of C each row goes; None if they go in order. One that is no row of C
            is not stored.
        DIM: what groups divide.
    """

    pointer: gl.tensor
    scatter: RowScatter | gl.constexpr
    DIM: gl.constexpr

    @gluon.jit
    def scatters(self):
        """Whether threads store all of a tile; known when the kernel is compiled."""
        return self.scatter is not None

    @gluon.jit
    def store(self, pieces, work, piece: gl.constexpr, WHICH: gl.constexpr):
        """Store a piece, which lies in its buffer."""
        desc = pieces.desc
        if self.scatters():
            self.store_some(pieces, work, piece, WHICH)
        elif work.whole:
            matrix = gl.minimum(work.matrix, desc.shape[0] - 1).to(gl.int32)
            pieces.store(desc, matrix, work, piece, WHICH)
        else:
            tma.store_wait(0)  # later waits count the stores since then alone
            if self.DIM != ALONG_K:
                self.store_some(pieces, work, piece, WHICH)

    @gluon.jit
    def store_some(self, pieces, work, piece: gl.constexpr, WHICH: gl.constexpr):
        """Store what a piece has of its group."""
        buffer = pieces.buffer(piece, WHICH)
        WIDE: gl.constexpr = 16 // (buffer.dtype.primitive_bitwidth // 8)
        LAYOUT: gl.constexpr = store_layout(gl.num_warps(), pieces.N_MAJOR, WIDE, gl.num_ctas())
        row = work.off_m + gl.arange(0, buffer.shape[0], gl.SliceLayout(1, LAYOUT))
        column = pieces.column(work, piece) + gl.arange(
            0, buffer.shape[1], gl.SliceLayout(0, LAYOUT)
        )
        size_m, size_n = pieces.size()
        row_end, column_end = size_m.to(gl.int32), size_n.to(gl.int32)
        if self.DIM == ROWS:
            row_end = work.end
        else:
            column_end = work.end
        row_known, column_known = row < row_end, column < column_end
        # Whole units of 16 bytes, as TMA stores them, unless groups begin anywhere in one.
        UNITS: gl.constexpr = (self.DIM == ROWS) == pieces.N_MAJOR
        if UNITS:
            if pieces.N_MAJOR:
                column_known = column // WIDE * WIDE < column_end
            else:
                row_known = row // WIDE * WIDE < row_end
        if self.scatters():
            PART: gl.constexpr = buffer.shape[1]
            START: gl.constexpr = piece_at(piece, pieces.NUMBER, pieces.SHARED) * PART
            place = self.scatter.along(self.scatter.places, START, PART, LAYOUT, WHICH)
            if self.DIM == ROWS:
                row = place
                row_known &= (row >= 0) & (row < size_m)
            else:
                column = place
                column_known &= (column >= 0) & (column < size_n)
        row_step = pieces.desc.strides[1]
        offsets = gl.expand_dims(row.to(gl.int64), 1) * row_step + gl.expand_dims(column, 0)
        if not pieces.N_MAJOR:
            offsets = gl.expand_dims(column.to(gl.int64), 0) * row_step + gl.expand_dims(row, 1)
        places = self.pointer + offsets
        inside = gl.expand_dims(row_known, 1) & gl.expand_dims(column_known, 0)
        if UNITS:  # which the compiler cannot know
            UNIT: gl.constexpr = [1, WIDE] if pieces.N_MAJOR else [WIDE, 1]
            BYTES: gl.constexpr = [1, 16] if pieces.N_MAJOR else [16, 1]
            places = gl.max_contiguous(gl.multiple_of(places, BYTES), UNIT)
            inside = gl.max_constancy(inside, UNIT)
        gl.store(places, buffer.load(LAYOUT), mask=inside)


@gluon.jit
def clear_behind(tile, left, DIM: gl.constexpr, PART: gl.constexpr):
    """Overwrite a tile's elements along K from `left` on, its dimension DIM, with zeros, so many at
    a time; the tensor cores see it once all warps have done so.
    """
    SIZE: gl.constexpr = tile.shape[DIM]
    LAYOUT: gl.constexpr = store_layout(gl.num_warps(), DIM == 0, 1)
    for first in gl.static_range(0, SIZE, PART):
        if left < first + PART:
            some = tile.slice(first, PART, dim=DIM)
            k = first + gl.arange(0, PART, gl.SliceLayout(1 - DIM, LAYOUT))
            values = some.load(LAYOUT)
            values = gl.where(gl.expand_dims(k < left, 1 - DIM), values, 0.0)
            some.store(values.to(tile.dtype))
    fence_async_shared()
