"""Gluon kernels of asynchronous copies: a ring, reductions, gathers, cp.async, multicast."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.blackwell import clc
from triton.experimental.gluon.language.nvidia.blackwell import tma as gather_tma
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


def descriptor(tensor, block, **layout):
    element = getattr(gl, str(tensor.dtype).removeprefix("torch."))
    return TensorDescriptor.from_tensor(
        tensor, block, gl.NVMMASharedLayout.get_default_for(block, element, **layout)
    )


@gluon.jit
def ring_kernel(source, target, STEPS: gl.constexpr, STAGES: gl.constexpr):
    """Rows through a ring of buffers: loads ahead, a store of each."""
    buffers = gl.allocate_shared_memory(
        source.dtype,
        [STAGES] + source.block_type.shape,  # noqa: RUF005 (Gluon has no unpacking)
        source.layout,
    )
    bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(bars.index(i), count=1)
    for i in gl.static_range(STAGES - 1):
        mbarrier.expect(bars.index(i), source.nbytes_per_cta)
        tma.async_load(source, [i * source.block_type.shape[0], 0], bars.index(i), buffers.index(i))
    for step in range(STEPS):
        stage = step % STAGES
        ahead = step + STAGES - 1
        tma.store_wait(pendings=0)
        mbarrier.expect(bars.index(ahead % STAGES), source.nbytes_per_cta, pred=ahead < STEPS)
        tma.async_load(
            source,
            [ahead * source.block_type.shape[0], 0],
            bars.index(ahead % STAGES),
            buffers.index(ahead % STAGES),
            pred=ahead < STEPS,
        )
        mbarrier.wait(bars.index(stage), (step // STAGES) & 1)
        tma.async_store(target, [step * source.block_type.shape[0], 0], buffers.index(stage))
    tma.store_wait(pendings=0)
    for i in gl.static_range(STAGES):
        mbarrier.invalidate(bars.index(i))


@gluon.jit
def reduce_kernel(target, source, KIND: gl.constexpr, LAYOUT: gl.constexpr):
    rows: gl.constexpr = target.block_type.shape[0]
    columns: gl.constexpr = target.block_type.shape[1]
    i = gl.arange(0, rows, gl.SliceLayout(1, LAYOUT))[:, None]
    j = gl.arange(0, columns, gl.SliceLayout(0, LAYOUT))[None, :]
    shared = gl.allocate_shared_memory(target.dtype, [rows, columns], target.layout)
    shared.store(gl.load(source + i * columns + j))
    fence_async_shared()
    start = gl.program_id(0) * 8
    if KIND == "add":
        tma.async_atomic_add(target, [start, 0], shared)
    if KIND == "min":
        tma.async_atomic_min(target, [start, 0], shared)
    if KIND == "max":
        tma.async_atomic_max(target, [start, 0], shared)
    if KIND == "and":
        tma.async_atomic_and(target, [start, 0], shared)
    if KIND == "or":
        tma.async_atomic_or(target, [start, 0], shared)
    if KIND == "xor":
        tma.async_atomic_xor(target, [start, 0], shared)
    tma.store_wait(pendings=0)


@gluon.jit
def gather_kernel(source, target, rows_ptr, column, ROWS: gl.constexpr, WIDTH: gl.constexpr):
    offsets: gl.constexpr = gl.SliceLayout(
        0, gl.BlockedLayout([1, 4], [32, 1], [1, gl.num_warps()], [1, 0])
    )
    rows = gl.load(rows_ptr + gl.arange(0, ROWS, layout=offsets))
    shared = gl.allocate_shared_memory(source.dtype, [ROWS, WIDTH], source.layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    mbarrier.expect(bar, ROWS * source.nbytes_per_cta)
    gather_tma.async_gather(source, rows, column, bar, shared)
    mbarrier.wait(bar, phase=0)
    gather_tma.async_scatter(target, gl.maximum(rows, 0), column, shared)
    tma.store_wait(pendings=0)
    mbarrier.invalidate(bar)


@gluon.jit
def async_load_kernel(source, target, N, SIZE: gl.constexpr, BARRIER: gl.constexpr):
    """Two masked loads by cp.async; either groups or an mbarrier say when they are done."""
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0])
    shared = gl.allocate_shared_memory(gl.float32, [2, SIZE], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    at = gl.arange(0, SIZE, layout)
    if BARRIER:
        mbarrier.init(bar, count=1)
        gl.barrier()
    for i in gl.static_range(2):
        async_copy.async_load(shared.index(i), source + i * SIZE + at, mask=i * SIZE + at < N)
        if not BARRIER:
            async_copy.commit_group()
    if BARRIER:
        async_copy.mbarrier_arrive(bar)
        mbarrier.arrive(bar)
        mbarrier.wait(bar, 0)
    for i in gl.static_range(2):
        if not BARRIER:
            async_copy.wait_group(1 - i)
        gl.store(target + i * SIZE + at, shared.index(i).load(layout), mask=i * SIZE + at < N)


@gluon.jit
def multicast_kernel(source, target):
    shared = gl.allocate_shared_memory(source.dtype, source.block_shape, source.layout)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    mbarrier.expect(bar, source.nbytes_per_cta)
    tma.async_load(source, [0, 0], bar, shared, multicast=True)
    mbarrier.wait(bar, phase=0, deps=[shared])
    tma.async_store(target, [0, 0], shared)
    tma.store_wait(pendings=0)


@gluon.jit
def stealing_kernel(counts, done):
    response = gl.allocate_shared_memory(gl.int64, [2], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    tile = gl.program_id(0)
    has_work = gl.to_tensor(True)
    phase = gl.to_tensor(0)
    while has_work:
        clc.try_cancel(response, bar)
        mbarrier.expect(bar, 16)
        gl.atomic_add(counts + tile, 1)
        mbarrier.wait(bar, phase)
        answer = clc.load_result(response)
        has_work = answer.is_canceled()
        tile = answer.program_id(0)
        phase ^= 1
    gl.atomic_add(done, 1)
