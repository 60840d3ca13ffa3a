"""Kernels of several GPUs: pushes, rings, reductions. Each takes the mistakes to be made in it."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma


@triton.jit
def push_gather(
    mine, own, peer, own_flags, peer_flags, out, rank, epoch, BLOCK: tl.constexpr,
    RELEASE: tl.constexpr = "release", ACQUIRE: tl.constexpr = "acquire",
    GIVE: tl.constexpr = "sys", TAKE: tl.constexpr = "sys", AWAITED: tl.constexpr = 0,
):  # fmt: skip
    """Of two GPUs: push my part to the peer, raise its flag, wait for mine, and read all.

    Args:
        AWAITED: the chunk whose flag is awaited, relative to the one that is read.
    """
    at = tl.program_id(0)
    lanes = at * BLOCK + tl.arange(0, BLOCK)
    chunks = tl.num_programs(0)
    x = tl.load(mine + lanes)
    tl.store(peer + rank * chunks * BLOCK + lanes, x)
    tl.store(own + rank * chunks * BLOCK + lanes, x)
    tl.debug_barrier()
    tl.atomic_add(peer_flags + at, 1, sem=RELEASE, scope=GIVE)
    awaited = own_flags + (at + AWAITED) % chunks
    while tl.atomic_add(awaited, 0, sem=ACQUIRE, scope=TAKE) < epoch:
        pass
    tl.debug_barrier()
    for part in range(2):
        y = tl.load(own + part * chunks * BLOCK + lanes)
        tl.store(out + part * chunks * BLOCK + lanes, y)


@triton.jit
def ring_sum(
    x, own, right, own_flags, right_flags, out, epoch, RANKS: tl.constexpr, SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The sum of all GPUs' rows: each row goes round, through `SLOTS` buffers of each GPU."""
    lanes = tl.arange(0, BLOCK)
    row = tl.load(x + lanes)
    total = row
    for step in range(RANKS - 1):
        tl.store(right + step % SLOTS * BLOCK + lanes, row)
        tl.debug_barrier()
        tl.atomic_xchg(right_flags + step, epoch, sem="release", scope="sys")
        while tl.atomic_add(own_flags + step, 0, sem="acquire", scope="sys") < epoch:
            pass
        tl.debug_barrier()
        row = tl.load(own + step % SLOTS * BLOCK + lanes)
        total += row
    tl.store(out + lanes, total)


@gluon.jit
def _assembly(text: gl.constexpr):
    """An instruction without operands, by all threads."""
    gl.inline_asm_elementwise(
        text + "\nmov.b32 $0, 0;", "=r,r", [0], gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _await(flag, number):
    """Poll until a flag is at least `number`."""
    found = 0
    while found < number:
        found = gl.inline_asm_elementwise(
            "ld.acquire.sys.global.b32 $0, [$1];", "=r,l", [flag], gl.int32, is_pure=False, pack=1
        )


@gluon.jit
def scatter_sum(
    own, peers, x, out, own_flags, peer_flags, source, number, RANKS: gl.constexpr,
    LAYOUT: gl.constexpr, WAIT: gl.constexpr, REDUCED: gl.constexpr,
):  # fmt: skip
    """Reduce-scatter: block d sends its tile to GPU d by TMA; block 0 sums what has come.

    Args:
        own: a descriptor of a slot for each GPU, or of one to which all add.
        peers: the same of each GPU.
        source: the number of this GPU.
        number: what the flag is when all have come.
        WAIT: ``cp.async.bulk.wait_group``, in one of its forms.
        REDUCED: the tiles are added where they go.
    """
    rows: gl.constexpr = own.block_type.shape[0]
    columns: gl.constexpr = own.block_type.shape[1]
    i = gl.arange(0, rows, gl.SliceLayout(1, LAYOUT))[:, None]
    j = gl.arange(0, columns, gl.SliceLayout(0, LAYOUT))[None, :]
    shared = gl.allocate_shared_memory(own.dtype, [rows, columns], own.layout)
    goal = gl.program_id(0)
    shared.store(gl.load(x + (goal * rows + i) * columns + j))
    fence_async_shared()
    gl.barrier()
    for d in gl.static_range(RANKS):
        if goal == d:
            if REDUCED:
                tma.async_atomic_add(peers[d], [0, 0], shared)
            else:
                tma.async_store(peers[d], [source * rows, 0], shared)
    _assembly(WAIT)
    gl.barrier()
    for d in gl.static_range(RANKS):
        if goal == d:
            gl.atomic_add(peer_flags[d], 1, sem="release", scope="sys")
    if goal == 0:
        bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
        mbarrier.init(bar, count=1)
        _await(own_flags, number)
        gl.barrier()
        total = gl.zeros([rows, columns], own.dtype, LAYOUT)
        slots: gl.constexpr = 1 if REDUCED else RANKS
        for slot in gl.static_range(slots):
            mbarrier.expect(bar, own.nbytes_per_cta)
            tma.async_load(own, [slot * rows, 0], bar, shared)
            mbarrier.wait(bar, slot & 1)
            total += shared.load(LAYOUT)
            gl.barrier()
        mbarrier.invalidate(bar)
        gl.store(out + i * columns + j, total)


@gluon.jit
def push_and_load(
    x, peer, own, own_flags, peer_flags, out, epoch, LAYOUT: gl.constexpr, BEFORE: gl.constexpr,
    AFTER: gl.constexpr, PUSHES: gl.constexpr,
):  # fmt: skip
    """Threads push a tile to the peer (or a copy engine does), which loads it by TMA.

    Args:
        BEFORE, AFTER: instructions before the flag is raised, and after it was awaited.
    """
    rows: gl.constexpr = own.block_type.shape[0]
    columns: gl.constexpr = own.block_type.shape[1]
    i = gl.arange(0, rows, gl.SliceLayout(1, LAYOUT))[:, None]
    j = gl.arange(0, columns, gl.SliceLayout(0, LAYOUT))[None, :]
    if PUSHES:
        gl.store(peer + i * columns + j, gl.load(x + i * columns + j))
        _assembly(BEFORE)
        gl.barrier()
        gl.atomic_add(peer_flags, 1, sem="release", scope="sys")
    shared = gl.allocate_shared_memory(own.dtype, [rows, columns], own.layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    _await(own_flags, epoch)
    _assembly(AFTER)
    gl.barrier()
    mbarrier.expect(bar, own.nbytes_per_cta)
    tma.async_load(own, [0, 0], bar, shared)
    mbarrier.wait(bar, 0)
    gl.store(out + i * columns + j, shared.load(LAYOUT))
    mbarrier.invalidate(bar)
