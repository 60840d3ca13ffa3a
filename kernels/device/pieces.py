"""A tile of registers in pieces, side by side: no data moves, each thread has the same elements.

In a cluster, its blocks divide the rows of each tile and piece, and its columns.
"""

# Gluon functions: their arguments are values of the compiler, not of Python, and a tuple that grows
# is one of another type.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.constexpr_function
def columns_of_blocks(layout):
    """How many columns of blocks divide a tensor with this layout of an accumulator."""
    return 1 << sum(basis[1] > 0 for basis in layout.cga_layout)


@gluon.jit
def halves_of(x, ACROSS: gl.constexpr):
    """The left and the right half of what each column of blocks has of a tile."""
    ROWS: gl.constexpr = x.shape[0]
    HALF: gl.constexpr = x.shape[1] // 2
    if ACROSS == 1:
        halves = x.reshape(ROWS, 2, HALF).permute(0, 2, 1).split()
    else:
        split = x.reshape(ROWS, ACROSS, 2, HALF // ACROSS).permute(0, 1, 3, 2).split()
        halves = (split[0].reshape(ROWS, HALF), split[1].reshape(ROWS, HALF))
    return halves


@gluon.jit
def split_columns(x, COLUMNS: gl.constexpr, ACROSS: gl.constexpr = 1):
    """A tile of registers as tiles of so many columns, side by side; no data moves.

    Args:
        ACROSS: how many columns of blocks divide it, and each of these tiles.
    """
    parts = (x,)
    for _ in gl.static_range((x.shape[1] // COLUMNS).bit_length() - 1):
        halves = ()
        for i in gl.static_range(len(parts)):
            halves += halves_of(parts[i], ACROSS)
        parts = halves
    return parts


@gluon.jit
def joined(left, right, ACROSS: gl.constexpr):
    """Two tiles side by side as one, in each column of blocks."""
    ROWS: gl.constexpr = left.shape[0]
    COLUMNS: gl.constexpr = left.shape[1]
    if ACROSS == 1:
        both = gl.join(left, right).permute(0, 2, 1)
    else:
        left = left.reshape(ROWS, ACROSS, COLUMNS // ACROSS)
        right = right.reshape(ROWS, ACROSS, COLUMNS // ACROSS)
        both = gl.join(left, right).permute(0, 1, 3, 2)
    return both.reshape(ROWS, 2 * COLUMNS)


@gluon.jit
def join_columns(parts, ACROSS: gl.constexpr = 1):
    """Tiles side by side as one, a power of two of them: `split_columns` in reverse."""
    for _ in gl.static_range(len(parts).bit_length() - 1):
        pairs = ()
        for i in gl.static_range(len(parts) // 2):
            pairs += (joined(parts[2 * i], parts[2 * i + 1], ACROSS),)
        parts = pairs
    return parts[0]


@gluon.constexpr_function
def piece_layout(accumulator, columns):
    """The layout in registers of a piece of so many columns, given that of an accumulator."""
    return gl.NVMMADistributedLayout(
        version=accumulator.version,
        warps_per_cta=accumulator.warps_per_cta,
        instr_shape=[
            accumulator.instr_shape[0],
            columns // columns_of_blocks(accumulator),
            accumulator.instr_shape[2],
        ],
        cga_layout=accumulator.cga_layout,
    )
