"""Which tile of C a thread block makes when: the order of tiles, and their division along K.

Blocks run through `GROUP_M` rows of tiles at a time, column by column, so that the tiles of A and B
that are read at the same time fit the L2 cache.

With `MAX_SPLITS` above 1, the tiles of a last wave that would leave blocks idle are cut along K
into parts (`epilogue.Parts` adds them up). All blocks of the wave walk through K at the same pace
and find each other's tiles of A and B in the L2 cache. (A finer division, "stream-K", was measured:
where blocks are at different positions in K, B comes from memory several times, and a product of
512x6144x4096 took 2.3 times as long.)
"""

# Gluon functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from triton_ext.compat import aggregate


@gluon.jit
def tile_position(tile, tiles_m, tiles_n, GROUP_M: gl.constexpr):
    """Row and column, in tiles, of a tile of C, given its number in the order above."""
    group = tile // (GROUP_M * tiles_n)
    rows_in_group = gl.minimum(tiles_m - group * GROUP_M, GROUP_M)
    inside = tile % (GROUP_M * tiles_n)
    return group * GROUP_M + inside % rows_in_group, inside // rows_in_group


@aggregate
class Work:
    """What a block does in one step: a tile of C over a range of K.

    Attributes:
        matrix: which of the batch the tile belongs to.
        off_m, off_n: the tile's first row and column.
        k_first, k_end: the range of K, in tiles.
        splits: into how many parts the tile is cut along K.
        split: which of them this is.
        distance: how far apart the program numbers of the blocks are that make successive parts.
    """

    matrix: gl.tensor
    off_m: gl.tensor
    off_n: gl.tensor
    k_first: gl.tensor
    k_end: gl.tensor
    splits: gl.tensor
    split: gl.tensor
    distance: gl.tensor


@aggregate
class Tiling:
    """The problem in tiles, and the order in which the blocks make them.

    Attributes:
        tiles_m, tiles_n: tiles of C, of one matrix.
        num_k: tiles along K.
        BLOCK_M, BLOCK_N: rows and columns of a tile.
        GROUP_M: how many rows of tiles run together.
        MAX_SPLITS: into how many parts along K a tile of an incomplete wave may be cut.
    """

    tiles_m: gl.tensor
    tiles_n: gl.tensor
    num_k: gl.tensor
    BLOCK_M: gl.constexpr
    BLOCK_N: gl.constexpr
    GROUP_M: gl.constexpr
    MAX_SPLITS: gl.constexpr

    @gluon.jit
    def last_wave(self, tiles):
        """How the tiles that do not fill a wave are divided: (whole waves, tiles left, parts).

        A part has at least 4 products of tiles.
        """
        programs = gl.num_programs(0)
        waves = tiles // programs
        left = tiles - waves * programs
        splits = gl.minimum(
            programs // gl.maximum(left, 1), gl.minimum(self.MAX_SPLITS, self.num_k // 4)
        )
        return waves, left, gl.maximum(splits, 1)

    @gluon.jit
    def steps(self, tiles):
        """How many tiles, or parts of tiles, this block makes of all `tiles` of the batch."""
        if self.MAX_SPLITS > 1:
            waves, left, splits = self.last_wave(tiles)
            steps = waves + gl.where(gl.program_id(0) < left * splits, 1, 0)
        else:
            steps = gl.cdiv(gl.maximum(tiles - gl.program_id(0), 0), gl.num_programs(0))
        return steps

    @gluon.jit
    def work(self, step, tiles, BATCHED: gl.constexpr, ROW: gl.constexpr = 0, program=None):
        """The `Work` of a block (this one, if no other is given) in a step; off_m is that of row
        ROW of the tile.
        """
        if program is None:
            program = gl.program_id(0)
        tile = program + step * gl.num_programs(0)
        k_first = 0
        k_end = self.num_k
        splits = 1
        split = 0
        distance = 1
        if self.MAX_SPLITS > 1:
            waves, left, parts = self.last_wave(tiles)
            distance = gl.maximum(left, 1)
            whole = (step < waves) | (parts == 1)
            splits = gl.where(whole, 1, parts)
            split = gl.where(whole, 0, program // distance)
            tile = gl.where(whole, tile, waves * gl.num_programs(0) + program % distance)
            k_first = split * self.num_k // splits
            k_end = (split + 1) * self.num_k // splits
        matrix = 0
        if BATCHED:
            matrix = tile // (self.tiles_m * self.tiles_n)
            tile = tile % (self.tiles_m * self.tiles_n)
        tile_m, tile_n = tile_position(tile, self.tiles_m, self.tiles_n, self.GROUP_M)
        off_m = tile_m * self.BLOCK_M + ROW
        off_n = tile_n * self.BLOCK_N
        return Work(matrix, off_m, off_n, k_first, k_end, splits, split, distance)
