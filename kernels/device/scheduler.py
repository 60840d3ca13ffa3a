"""Which tile of C a thread block makes when: the order of tiles, and their division along K.

Blocks run through `group` rows of tiles at a time, column by column, so that the tiles of A and B
that are read at the same time fit the L2 cache.

With `MAX_SPLITS` above 1, the tiles of a last wave that would leave blocks idle are cut along K
(`epilogue.Parts` adds the parts up). There are two ways:

- *evenly*: every tile into as many parts as there are blocks for. All blocks walk through K at the
  same pace and find each other's tiles of A and B in the L2 cache.
- *end to end* ("stream-K"), where there is but one row or column of tiles: their products lie one
  after the other, and every block takes as many of them, beginning in one tile and ending in the
  next. No block is idle, but the blocks are at different positions in K; where several need the
  same tile of A or B, it comes from memory several times then. (1028x1280x5120 took 1.6 times as
  long as with whole tiles, 512x6144x4096 2.3 times.)

The last row and the last column of tiles end where the matrix does, and overlap those before: what
lies outside of a matrix comes about ten times slower from the TMA unit than what lies inside.
Elements that two tiles share are written twice with the same bits; where that would not be so (a
residual that is C itself, parts along K of some tiles alone), the last tiles do not overlap others.
"""

# Gluon functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from triton_ext.compat import aggregate
from triton_ext.kernels.tile import LEAST_K, MOST_K

SHORTEST = gl.constexpr(LEAST_K)
LONGEST = gl.constexpr(MOST_K)


@gluon.jit
def tile_position(tile, tiles_m, tiles_n, group):
    """Row and column, in tiles, of a tile of C, given its number in the order above; of one behind
    the last, something.
    """
    first = tile // (group * tiles_n) * group
    rows = gl.maximum(gl.minimum(tiles_m - first, group), 1)
    inside = tile % (group * tiles_n)
    return first + inside % rows, inside // rows


@aggregate
class Work:
    """What a block does in one step: a tile of C over a range of K.

    Attributes:
        matrix: which of the batch the tile belongs to.
        off_m, off_n: the tile's first row and column.
        k_first, k_end: the range of K, in tiles.
        splits: into how many parts the tile is cut along K, made by successive blocks.
        split: which of them this is.
        tail: the tile's number among those of the last wave, if it is cut.
        even: whether all tiles are cut into as many parts, so that this is the block's last step.
    """

    matrix: gl.tensor
    off_m: gl.tensor
    off_n: gl.tensor
    k_first: gl.tensor
    k_end: gl.tensor
    splits: gl.tensor
    split: gl.tensor
    tail: gl.tensor
    even: gl.tensor


@aggregate
class Tiling:
    """The problem in tiles, and the order in which the blocks make them.

    Attributes:
        size_m, size_n: rows and columns of C.
        tiles_m, tiles_n: tiles of C, of one matrix.
        num_k: tiles along K.
        group: how many rows of tiles run together.
        BLOCK_M, BLOCK_N: rows and columns of a tile.
        MAX_SPLITS: into how many parts along K a tile of an incomplete wave may be cut evenly.
        OVERLAP_M, OVERLAP_N: at multiples of how many rows and columns the last tiles begin, to
            overlap others; 0 if they must not.
    """

    size_m: gl.tensor
    size_n: gl.tensor
    tiles_m: gl.tensor
    tiles_n: gl.tensor
    num_k: gl.tensor
    group: gl.tensor
    BLOCK_M: gl.constexpr
    BLOCK_N: gl.constexpr
    MAX_SPLITS: gl.constexpr
    OVERLAP_M: gl.constexpr
    OVERLAP_N: gl.constexpr

    @gluon.jit
    def last_wave(self, tiles):
        """How the tiles that do not fill a wave are divided among the blocks.

        `kernels.choice.table` computes the same.

        Returns:
            The whole waves; the blocks that share the tiles left; whether evenly; and two numbers:
            block p makes the products p * products // among to (p + 1) * products // among of all
            that are left, where each tile has num_k.
        """
        programs = gl.num_programs(0)
        waves = tiles // programs
        left = gl.maximum(tiles - waves * programs, 1)
        most = gl.maximum(gl.minimum(self.MAX_SPLITS, self.num_k // SHORTEST), 1)
        splits = gl.minimum(programs // left, most)
        streams = gl.minimum(self.tiles_m, self.tiles_n) == 1
        streams &= self.num_k < LONGEST
        blocks = gl.minimum(programs, left * most)
        streams &= 8 * left * splits < 7 * blocks
        blocks = gl.where(streams, blocks, left * splits)
        products = gl.where(streams, left * self.num_k, self.num_k)
        among = gl.where(streams, blocks, splits)
        return waves, gl.where(tiles > waves * programs, blocks, 0), products, among, ~streams

    @gluon.jit
    def steps(self, tiles):
        """How many tiles, or parts of tiles, this block makes of all `tiles` of the batch."""
        if self.MAX_SPLITS > 1:
            program = gl.program_id(0)
            waves, blocks, products, among, _ = self.last_wave(tiles)
            first = program * products // among
            last = (program + 1) * products // among - 1
            parts = last // self.num_k - first // self.num_k + 1
            steps = waves + gl.where(program < blocks, parts, 0)
        else:
            steps = gl.cdiv(gl.maximum(tiles - gl.program_id(0), 0), gl.num_programs(0))
        return steps

    @gluon.jit
    def work(self, step, tiles, BATCHED: gl.constexpr, ROW: gl.constexpr = 0, program=None):
        """The `Work` of a block (this one, if no other is given) in a step; its offsets are those
        of row ROW of the tile.
        """
        if program is None:
            program = gl.program_id(0)
        tile = program + step * gl.num_programs(0)
        k_first = 0
        k_end = self.num_k
        splits = 1
        split = 0
        tail = 0
        even = gl.to_tensor(True)
        overlap = gl.to_tensor(True)
        if self.MAX_SPLITS > 1:
            waves, blocks, products, among, even = self.last_wave(tiles)
            whole = step < waves
            first = program * products // among
            tail = first // self.num_k + step - waves
            start = tail * self.num_k
            end = (program + 1) * products // among
            k_first = gl.where(whole, 0, gl.maximum(first - start, 0))
            k_end = gl.where(whole, self.num_k, gl.minimum(end - start, self.num_k))
            # Product x is that of block ((x + 1) * among - 1) // products.
            first_block = ((start + 1) * among - 1) // products
            last_block = ((start + self.num_k) * among - 1) // products
            splits = gl.where(whole, 1, last_block - first_block + 1)
            split = gl.where(whole, 0, program - first_block)
            tile = gl.where(whole, tile, waves * gl.num_programs(0) + tail)
            overlap = (blocks == 0) | (waves == 0) & even  # every tile is made in the same way
        matrix = 0
        if BATCHED:
            matrix = tile // (self.tiles_m * self.tiles_n)
            tile = tile % (self.tiles_m * self.tiles_n)
        tile_m, tile_n = tile_position(tile, self.tiles_m, self.tiles_n, self.group)
        off_m = tile_m * self.BLOCK_M
        off_n = tile_n * self.BLOCK_N
        if self.OVERLAP_M > 0:
            last_m = gl.cdiv(gl.maximum(self.size_m - self.BLOCK_M, 0), self.OVERLAP_M)
            last_n = gl.cdiv(gl.maximum(self.size_n - self.BLOCK_N, 0), self.OVERLAP_N)
            off_m = gl.minimum(off_m, gl.where(overlap, last_m * self.OVERLAP_M, off_m))
            off_n = gl.minimum(off_n, gl.where(overlap, last_n * self.OVERLAP_N, off_n))
        off_m += ROW
        return Work(matrix, off_m, off_n, k_first, k_end, splits, split, tail, even)
