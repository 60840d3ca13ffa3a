"""Where a thread block lies in its cluster.

Blocks are numbered down the columns: those of a column have different rows of what the cluster
multiplies, and share the tile of B; those of a row have different columns, and share the tile of A.
"""

# Gluon functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

OWN = gl.constexpr("mapa.shared::cluster.u32 $0, $1, $2;")
"""An address of this block: Triton leaves out the block's number, as a multicast takes it."""


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


@gluon.constexpr_function
def _add(order):
    """Add $2 to [$1] in the first thread of a warpgroup, which leaves what was there in [$3]."""
    return f"""{{
    .reg .pred first;
    .reg .b32 thread;
    mov.u32 thread, %tid.x;
    and.b32 thread, thread, 127;
    setp.eq.u32 first, thread, 0;
    mov.b32 $0, 0;
    @first atom.{order}.gpu.global.add.u32 $0, [$1], $2;
    @first st.shared::cta.b32 [$3], $0;
    }}"""


@gluon.jit
def add_in_block(counter, number, word, ORDER: gl.constexpr):
    """Add to a counter in memory, once for this warpgroup of this block, and return what was there
    before. Triton takes a number to be the same in all blocks of a cluster: there, one block alone
    would add.

    Args:
        word: in a cluster: an int32 in shared memory of each block, for this warpgroup alone.
        ORDER: "relaxed", "acquire" or "acq_rel".
    """
    if gl.num_ctas() == 1:
        before = gl.atomic_add(counter, number, sem=ORDER, scope="gpu")
    else:
        address = gl.inline_asm(OWN, "=r,r,r", (word, block_of_cluster()), gl.int32)
        gl.inline_asm_elementwise(
            _add(ORDER), "=&r,l,r,r", [counter.to(gl.int64), gl.to_tensor(number), address],
            gl.int32, is_pure=False, pack=1,
        )  # fmt: skip
        gl.barrier()
        before = gl.inline_asm_elementwise(
            "ld.shared::cta.b32 $0, [$1];", "=r,r", [address], gl.int32, is_pure=False, pack=1
        )
        gl.barrier()  # all have read it
    return before


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
