"""C = A @ B on the tensor cores of Hopper (wgmma) and Blackwell (tcgen05), in Gluon.

Both kernels tell the same story. A thread block makes one tile of C. TMA copies tiles of A and B
into a pipeline of buffers, one a stage; an mbarrier a stage says when its tile has arrived. The
tensor cores consume them in order, and a stage is refilled when the product that read it is done.
The tile of C leaves by a TMA store. What does not exist outside of A and B is filled with zeros,
and what would be written outside of C is dropped, by the TMA unit.

The operands are allocated as shared *linear* layouts: bases that `triton_ext` generated. The
compiler derives the matrix descriptors from them. The TMA copies need an NVMMA layout, so they
see the same bytes through a reinterpretation.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    tcgen05_commit,
    tcgen05_mma,
)
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from triton_ext.compat import async_store, load_accumulator, tma_view
from triton_ext.kernels.device.matrices import load_tile
from triton_ext.kernels.device.scheduler import tile_position


@gluon.jit
def tile_origin(m, n, group, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    """The first row and column of this block's tile of C."""
    program = gl.program_id(axis=0)
    tiles_m = gl.cdiv(m, BLOCK_M)
    tiles_n = gl.cdiv(n, BLOCK_N)
    tile_m, tile_n = tile_position(program, tiles_m, tiles_n, group)
    return tile_m * BLOCK_M, tile_n * BLOCK_N


@gluon.jit
def load_stage(a_desc, b_desc, a_tile, b_tile, barrier, off_m, off_n, k, pred, PLAN: gl.constexpr):
    """Start the copies of A's and B's tiles at k; `barrier` completes when both have arrived."""
    bytes_expected: gl.constexpr = a_desc.block_type.nbytes + b_desc.block_type.nbytes
    mbarrier.expect(barrier, bytes_expected, pred=pred)
    load_tile(a_desc, 0, off_m, k, barrier, a_tile, PLAN.left_k_major, pred)
    load_tile(b_desc, 0, off_n, k, barrier, b_tile, PLAN.right_k_major, pred)


@gluon.jit
def store_tile(c_desc, off_m, off_n, c, c_layout: gl.constexpr):
    """Registers -> swizzled shared memory -> C, and wait until shared memory has been read."""
    c_tile = gl.allocate_shared_memory(c_desc.dtype, c_desc.block_type.shape, c_layout)
    c_tile.store(c.to(c_desc.dtype))
    fence_async_shared()
    async_store(c_desc, [off_m, off_n], tma_view(c_tile, c_desc))
    tma.store_wait(0)


@gluon.jit(do_not_specialize=("group",))
def matmul_sm90(a_desc, b_desc, c_desc, group, PLAN: gl.constexpr):
    """C = A @ B with wgmma: both operands in shared memory, the accumulator in registers.

    A product runs while the next one is issued: at most one is outstanding when a stage is
    refilled, and that one reads another stage.
    """
    BLOCK_M: gl.constexpr = PLAN.tile.block_m
    BLOCK_N: gl.constexpr = PLAN.tile.block_n
    BLOCK_K: gl.constexpr = PLAN.tile.block_k
    STAGES: gl.constexpr = PLAN.tile.stages
    off_m, off_n = tile_origin(c_desc.shape[0], c_desc.shape[1], group, BLOCK_M, BLOCK_N)
    num_k = gl.cdiv(a_desc.shape[1 if PLAN.left_k_major else 0], BLOCK_K)

    a_tiles = gl.allocate_shared_memory(a_desc.dtype, [STAGES, BLOCK_M, BLOCK_K], PLAN.left)
    b_tiles = gl.allocate_shared_memory(b_desc.dtype, [STAGES, BLOCK_K, BLOCK_N], PLAN.right)
    arrived = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for each in gl.static_range(STAGES):
        mbarrier.init(arrived.index(each), count=1)
    fence_async_shared()
    for first in gl.static_range(STAGES):
        load_stage(
            a_desc, b_desc, a_tiles.index(first), b_tiles.index(first), arrived.index(first),
            off_m, off_n, first * BLOCK_K, first < num_k, PLAN,
        )  # fmt: skip

    mma_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[PLAN.tile.num_warps, 1], instr_shape=[16, BLOCK_N, 16]
    )
    acc = gl.zeros((BLOCK_M, BLOCK_N), gl.float32, mma_layout)
    for i in range(num_k):
        stage = i % STAGES
        mbarrier.wait(arrived.index(stage), (i // STAGES) & 1)
        acc = warpgroup_mma(a_tiles.index(stage), b_tiles.index(stage), acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=(acc,))
        done = i - 1  # the product that has just finished; its stage is free
        refill = done + STAGES
        if (done >= 0) & (refill < num_k):
            free = done % STAGES
            load_stage(a_desc, b_desc, a_tiles.index(free), b_tiles.index(free),
                       arrived.index(free), off_m, off_n, refill * BLOCK_K, True, PLAN)  # fmt: skip
    acc = warpgroup_mma_wait(0, deps=(acc,))
    for each in gl.static_range(STAGES):
        mbarrier.invalidate(arrived.index(each))
    store_tile(c_desc, off_m, off_n, acc, PLAN.c)


@gluon.jit(do_not_specialize=("group",))
def matmul_sm100(a_desc, b_desc, c_desc, group, PLAN: gl.constexpr):
    """C = A @ B with tcgen05.mma: operands in shared memory, the accumulator in tensor memory.

    One thread issues the products; they run in order, and a commit after each lets an mbarrier
    say when its stage has been read.
    """
    BLOCK_M: gl.constexpr = PLAN.tile.block_m
    BLOCK_N: gl.constexpr = PLAN.tile.block_n
    BLOCK_K: gl.constexpr = PLAN.tile.block_k
    STAGES: gl.constexpr = PLAN.tile.stages
    off_m, off_n = tile_origin(c_desc.shape[0], c_desc.shape[1], group, BLOCK_M, BLOCK_N)
    num_k = gl.cdiv(a_desc.shape[1 if PLAN.left_k_major else 0], BLOCK_K)

    a_tiles = gl.allocate_shared_memory(a_desc.dtype, [STAGES, BLOCK_M, BLOCK_K], PLAN.left)
    b_tiles = gl.allocate_shared_memory(b_desc.dtype, [STAGES, BLOCK_K, BLOCK_N], PLAN.right)
    arrived = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    consumed = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for each in gl.static_range(STAGES):
        mbarrier.init(arrived.index(each), count=1)
        mbarrier.init(consumed.index(each), count=1)
    fence_async_shared()
    for first in gl.static_range(STAGES):
        load_stage(
            a_desc, b_desc, a_tiles.index(first), b_tiles.index(first), arrived.index(first),
            off_m, off_n, first * BLOCK_K, first < num_k, PLAN,
        )  # fmt: skip

    acc_layout: gl.constexpr = TensorMemoryLayout([BLOCK_M, BLOCK_N], col_stride=1)
    acc = allocate_tensor_memory(gl.float32, [BLOCK_M, BLOCK_N], acc_layout)
    for i in range(num_k):
        stage = i % STAGES
        mbarrier.wait(arrived.index(stage), (i // STAGES) & 1)
        tcgen05_mma(a_tiles.index(stage), b_tiles.index(stage), acc, use_acc=i > 0)
        tcgen05_commit(consumed.index(stage))
        previous = i - 1  # refill its stage while product i runs
        refill = previous + STAGES
        if (previous >= 0) & (refill < num_k):
            free = previous % STAGES
            mbarrier.wait(consumed.index(free), (previous // STAGES) & 1)
            load_stage(a_desc, b_desc, a_tiles.index(free), b_tiles.index(free),
                       arrived.index(free), off_m, off_n, refill * BLOCK_K, True, PLAN)  # fmt: skip
    last = num_k - 1
    mbarrier.wait(consumed.index(last % STAGES), (last // STAGES) & 1)
    for each in gl.static_range(STAGES):
        mbarrier.invalidate(arrived.index(each))
        mbarrier.invalidate(consumed.index(each))
    store_tile(c_desc, off_m, off_n, load_accumulator(acc), PLAN.c)
