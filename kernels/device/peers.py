"""What a product does with the other GPUs of a group, while it runs.

The rows of one matrix are divided among the ranks in *chunks*; the product is a batch of one
product a chunk, each in its *turn*. There are two kinds:

- *gather*: A's chunks are those of all ranks. The first turn reads this rank's own, where it lies;
  the others come from their ranks into a buffer here.
- *scatter*: every rank has a part of the sum (its columns of A, rows of B) for all chunks of C. A
  chunk goes around: the rank after its owner begins, each rank adds its part to what it got and
  passes it on, and the owner is last.

Chunks travel in *pieces* of some rows of tiles; a flag of each piece says that it is there. Copy
engines carry those of a gather. A scatter stores its tiles in the next rank's memory by TMA, and
counts them in its flags; or in memory here, and in counters here, for which a copy engine waits.
Nothing here knows which of the two it is.

Nobody waits for ever. All ranks make the tiles of all turns in one order, and a block in its own
part of that order. A gather's block waits for copies alone, which need no kernel. In a scatter a
block waits for tiles of the turn before its tile's, and counts what it has stored before it waits
again: of all tiles that are not made yet, nothing keeps the first one of any rank. That holds only
if each tile's block runs, or will without another's end: all blocks of a launch must be resident,
and take their tiles in order, so that tiles are not asked for (`launch_control`).

Flags and counters are 0 between launches: a launch that is replayed from a graph finds what the
first one found. All are raised and read at system scope (PTX ISA, "Scope"). Who waits for longer
than `TIMEOUT` says for whom, in memory of the host, and stops the kernel. (An assertion of Triton's
is a call: with one, kernels took 1.5 to 5 times as long on an H200.)
"""

# Gluon functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from triton_ext.compat import aggregate
from triton_ext.kernels.device.values import value

TIMEOUT = 30
"""After how many seconds a rank gives up waiting for another."""
WAIT = gl.constexpr(
    """{
    .reg .pred again;
    .reg .b64 now, end;
    mov.u64 end, %globaltimer;
    add.u64 end, end, NANOSECONDS;
    poll:
    ld.acquire.sys.global.b32 $0, [$1];
    setp.lt.s32 again, $0, $4;
    @!again bra done;
    mov.u64 now, %globaltimer;
    setp.lt.u64 again, now, end;
    @again bra poll;
    st.relaxed.sys.global.b32 [$2], $3;
    fence.acq_rel.sys;
    trap;
    done:
    fence.proxy.async.global;
    }""".replace("NANOSECONDS", str(TIMEOUT * 10**9))
)
"""Wait until a flag is at least $4; then TMA may read what was written before."""

END = gl.constexpr("""{
    .reg .pred first, last, more;
    .reg .b32 lane, others, words, before;
    .reg .b64 at, end;
    mov.b64 {others, words}, $2;
    bar.warp.sync 0xffffffff;
    mov.u32 lane, %laneid;
    setp.eq.u32 first, lane, 0;
    mov.b32 before, 0;
    @first atom.acq_rel.gpu.global.inc.u32 before, [$1], others;
    setp.eq.and.u32 last, before, others, first;
    @!last bra over;
    add.u64 at, $1, 4;
    mad.wide.u32 end, words, 4, at;
    next:
    st.relaxed.sys.global.b32 [at], 0;
    add.u64 at, at, 4;
    setp.lt.u64 more, at, end;
    @more bra next;
    over:
    mov.b32 $0, 0;
    }""")
"""A warp waits for nothing more; the last of 1 + the lower word of $2 warps sets so many flags as
the upper word says to 0. They lie behind the count."""

ADD = gl.constexpr("""{
    .reg .pred first;
    .reg .b32 thread;
    mov.u32 thread, %tid.x;
    and.b32 thread, thread, 127;
    setp.eq.u32 first, thread, 0;
    @first red.release.sys.global.add.u32 [$1], 1;
    mov.b32 $0, 0;
    }""")
"""The first thread of a warpgroup adds 1 to a counter."""

STORED = gl.constexpr("cp.async.bulk.wait_group 0; mov.b32 $0, 0;")
"""Wait until what this thread has stored by TMA is there, not just read."""


@gluon.jit
def run(ASM: gl.constexpr, address, argument=0):
    """Run one of the above in every thread, given an address and a number."""
    return gl.inline_asm_elementwise(
        ASM, "=&r,l,l", [address, gl.to_tensor(argument).to(gl.int64)], gl.int32,
        is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def wait_for(flag, value, late, rank):
    """Wait, in every thread, until a flag is as large as that; if a rank takes too long to raise
    it, write 1 + the rank to `late`.
    """
    gl.inline_asm_elementwise(
        WAIT, "=&r,l,l,r,r", [flag, late, rank + 1, value], gl.int32, is_pure=False, pack=1
    )


@aggregate
class Peers:
    """The other ranks, as a launch sees them.

    Attributes:
        own: the TMA descriptor of this rank's own chunk of A (gather) or C (scatter), a batch of
            one.
        flags: the address of a count of the warps that wait for nothing more; behind it are this
            rank's flags, one a piece: a gather's in the order of the ranks, a scatter's of the
            turns.
        counters: of a scatter, the address of the first of as many words, which count what this
            rank has stored of each piece.
        late: the address of an int32, which says for which rank this one has waited in vain.
        first: the chunk of the first turn.
        ranks: how many there are.
        piece_rows: rows of tiles of a piece.
        PARTS: how many warpgroups of a cluster store a part of each tile.
        WARPS: how many warps of a cluster wait.
        SCATTER: which of the two it is.
    """

    own: tma.tensor_descriptor
    flags: gl.tensor
    counters: gl.tensor | gl.constexpr
    late: gl.tensor
    first: gl.tensor
    ranks: gl.tensor
    piece_rows: gl.tensor
    PARTS: gl.constexpr
    WARPS: gl.constexpr
    SCATTER: gl.constexpr

    @gluon.jit
    def chunk(self, turn):
        """The chunk of a turn."""
        return (self.first + self.ranks - turn) % self.ranks

    @gluon.jit
    def pieces(self, tiling):
        """How many pieces a chunk has."""
        return gl.cdiv(tiling.tiles_m, self.piece_rows)

    @gluon.jit
    def wait_for(self, seen, work, tiling):
        """Wait until what a tile needs of other ranks is here.

        Args:
            seen: which piece was waited for last; -1 at the beginning.

        Returns:
            The next `seen`.
        """
        before = (work.matrix - 1) * self.pieces(tiling)
        first = work.off_m // tiling.BLOCK_M // self.piece_rows
        last = first
        if not self.SCATTER:  # the last tiles may overlap those before
            last = gl.cdiv(work.off_m, tiling.BLOCK_M) // self.piece_rows
        needed = gl.where(work.matrix > 0, before + last, seen)
        if needed != seen:
            for each in range(before + first, needed + 1):
                self.wait_for_piece(each, tiling)
        return needed

    @gluon.jit
    def wait_for_piece(self, which, tiling):
        """Wait for one of the pieces of all turns."""
        pieces = self.pieces(tiling)
        if self.SCATTER:
            flag = which
            rank = self.first  # the rank before
            rows = gl.minimum(self.piece_rows, tiling.tiles_m - which % pieces * self.piece_rows)
            value = rows * tiling.tiles_n * self.PARTS
        else:
            rank = self.chunk(which // pieces + 1)
            flag = rank * pieces + which % pieces
            value = 1
        wait_for(self.flags + 1 + flag, value, self.late, rank)

    @gluon.jit
    def end(self, tiling):
        """This warp waits for nothing more."""
        others = gl.num_programs(0) * self.WARPS - 1
        words = self.ranks * self.pieces(tiling)
        run(END, self.flags, others.to(gl.int64) | words.to(gl.int64) << 32)

    @gluon.jit
    def hand_over(self, work, tiling):
        """In a scatter: what a warpgroup has stored of a tile that the next rank gets is there."""
        if work.matrix < self.ranks - 1:
            piece = work.off_m // tiling.BLOCK_M // self.piece_rows
            run(STORED, self.counters)
            gl.barrier()
            run(ADD, self.counters + work.matrix * self.pieces(tiling) + piece)


@gluon.jit
def peers_of(own, values, first, ranks, piece_rows, PARTS: gl.constexpr, WARPS: gl.constexpr,
             PLAN: gl.constexpr):  # fmt: skip
    """The `Peers` of a launch; None if it has none."""
    if own is None:
        peers: gl.constexpr = None
    else:
        flags, late = value(values, "flags", PLAN), value(values, "late", PLAN)
        counters = value(values, "counters", PLAN)
        peers = Peers(
            own, flags, counters, late, first, ranks, piece_rows, PARTS, WARPS, PLAN.scatters
        )  # fmt: skip
    return peers


@gluon.jit
def products_of(desc, peers):
    """How many products there are of a batch whose C has this descriptor."""
    return desc.shape[0] if peers is None else peers.ranks
