"""What a product does with the other GPUs of a group, while it runs.

The rows of one matrix are divided among the ranks in *chunks*; the product is a batch of one
product a chunk, each in its *turn*. There are two kinds:

- *gather*: A's chunks are those of all ranks. The first turn reads this rank's own, where it lies;
  the others come from their ranks into a buffer here, and a flag of each chunk says when.
- *scatter*: every rank has a part of the sum (its columns of A, rows of B) for all chunks of C. A
  chunk goes around: the rank after its owner begins, each rank adds its part to what it got and
  passes it on, tile by tile, and the owner is last. Tiles are stored in the next rank's memory by
  TMA; a flag of each tile and consumer says that they are there.

Nobody waits for ever. All ranks make the tiles of all turns in one order, and a block in its own
part of that order. A gather's block waits for copies alone, which need no kernel. In a scatter a
block waits for a tile that comes before its own in that order, and hands over what it made before
it waits again: of all tiles that are not made yet, nothing keeps the first one of any rank. That
holds only if each tile's block runs, or will without another's end: all blocks of a launch must be
resident, and take their tiles in order, so that tiles are not asked for (`launch_control`).

A flag is 1 from when it is raised until it was waited for, and 0 between launches: a launch that is
replayed from a graph finds what the first one found. All flags are raised and read at system scope
(PTX ISA, "Scope"). Who waits for longer than `TIMEOUT` says for whom, in memory of the host, and
stops the kernel. (An assertion of Triton's is a call: with one, kernels took 1.5 to 5 times as long
on an H200.)
"""

# Gluon functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from triton_ext.compat import aggregate

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
    setp.ne.b32 again, $0, 0;
    @again bra done;
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
"""Wait until a flag is raised; then TMA may read what was written before."""

COUNT = gl.constexpr("""{
    .reg .pred first, last;
    .reg .b32 lane, others, before;
    cvt.u32.u64 others, $2;
    bar.warp.sync 0xffffffff;
    mov.u32 lane, %laneid;
    setp.eq.u32 first, lane, 0;
    mov.b32 before, 0;
    @first atom.acq_rel.gpu.global.inc.u32 before, [$1 + 4], others;
    setp.eq.and.u32 last, before, others, first;
    @last st.relaxed.sys.global.b32 [$1], 0;
    mov.b32 $0, 0;
    }""")
"""A warp has seen a flag, whose counter is behind it; the last of 1 + $2 warps takes it back."""

_SET = """{
    .reg .pred first;
    .reg .b32 thread;
    mov.u32 thread, %tid.x;
    and.b32 thread, thread, 127;
    setp.eq.u32 first, thread, 0;
    @first st.ORDER.sys.global.b32 [$1], VALUE;
    mov.b32 $0, 0;
    }"""
RAISE = gl.constexpr(_SET.replace("ORDER", "release").replace("VALUE", "1"))
"""The first thread of a warpgroup raises a flag."""
TAKE_BACK = gl.constexpr(_SET.replace("ORDER", "relaxed").replace("VALUE", "0"))
"""The first thread of a warpgroup takes a flag back."""

STORED = gl.constexpr("cp.async.bulk.wait_group 0; mov.b32 $0, 0;")
"""Wait until what this thread has stored by TMA is there, not just read."""


@gluon.jit
def run(ASM: gl.constexpr, flag, argument=0):
    """Run one of the above in every thread, given the address of a flag and a number."""
    return gl.inline_asm_elementwise(
        ASM, "=&r,l,l", [flag, gl.to_tensor(argument).to(gl.int64)], gl.int32,
        is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def wait_for(flag, late, rank):
    """Wait until a rank raises a flag, in every thread; if it takes too long, write 1 + the rank to
    `late`.
    """
    gl.inline_asm_elementwise(
        WAIT, "=&r,l,l,r", [flag, late, rank + 1], gl.int32, is_pure=False, pack=1
    )


@aggregate
class Peers:
    """The other ranks, as a launch sees them.

    Attributes:
        own: the TMA descriptor of this rank's own chunk of A (gather) or C (scatter), a batch of
            one.
        flags: addresses of this rank's flags. Of a gather, two words for each chunk: the flag, and
            how many warps have seen it.
        next_flags: those of the next rank, if it is a scatter.
        late: the address of an int32, which says for which rank this one has waited in vain.
        first: the chunk of the first turn.
        ranks: how many there are.
        SCATTER: which of the two it is.
    """

    own: tma.tensor_descriptor
    flags: gl.tensor
    next_flags: gl.tensor | gl.constexpr
    late: gl.tensor
    first: gl.tensor
    ranks: gl.tensor
    SCATTER: gl.constexpr

    @gluon.jit
    def chunk(self, turn):
        """The chunk of a turn."""
        return (self.first + self.ranks - turn) % self.ranks

    @gluon.jit
    def wait_for_chunks(self, arrived, turn):
        """In a gather: wait until the chunks of all turns up to this one are here.

        Args:
            arrived: the last turn whose chunk is known to be; 0 at the beginning.

        Returns:
            The next `arrived`.
        """
        WARPS: gl.constexpr = gl.num_ctas()
        for each in range(arrived + 1, turn + 1):
            chunk = self.chunk(each)
            flag = self.flags + 2 * chunk
            wait_for(flag, self.late, chunk)
            run(COUNT, flag, gl.num_programs(0) * WARPS - 1)
        return gl.maximum(arrived, turn)


@gluon.jit
def peers_of(own, flags, next_flags, late, first, ranks, SCATTER: gl.constexpr):
    """The `Peers` of a launch; None if it has none."""
    if own is None:
        peers: gl.constexpr = None
    else:
        peers = Peers(own, flags, next_flags, late, first, ranks, SCATTER)
    return peers


@gluon.jit
def products_of(desc, peers):
    """How many products there are of a batch whose C has this descriptor."""
    return desc.shape[0] if peers is None else peers.ranks
