"""Where a thread block lies in its cluster.

Blocks are numbered down the columns: those of a column have different rows of what the cluster
multiplies, and share the tile of B; those of a row have different columns, and share the tile of A.
"""

# Gluon functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def block_of_cluster():
    """Which block of its cluster this one is."""
    if gl.num_ctas() == 1:
        block = 0
    else:
        block = gl.inline_asm_elementwise(
            "mov.u32 $0, %cluster_ctarank;", "=r", [], gl.int32, is_pure=True, pack=1
        )
    return block


@gluon.jit
def own_column(off, TILE: gl.constexpr, PART: gl.constexpr, COLUMNS: gl.constexpr):
    """Where this block's part of a tensor's columns begins, less what Triton adds for the columns
    of blocks before it.

    Args:
        off: where the first block's part begins.
        TILE: the columns of all blocks' tiles.
        PART: those of their parts, which Triton takes to be side by side.
        COLUMNS: how many columns of blocks there are.
    """
    if COLUMNS > 1:
        column = block_of_cluster() // (gl.num_ctas() // COLUMNS)
        off += column * ((TILE - PART) // COLUMNS)
    return off
