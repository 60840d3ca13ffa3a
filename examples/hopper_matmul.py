"""A matmul with wgmma on Hopper, and six ways to break it.

    triton-ext run --emulate sm_90 examples/hopper_matmul.py              # right
    triton-ext run --emulate sm_90 examples/hopper_matmul.py no-wait      # broken on purpose

One block computes a 64x64 tile of C; TMA fills a ring of two buffers with tiles of A and B. Each
name in FAULTS leaves out, or changes, one line. On a GPU most of them give wrong numbers now and
then, or hang; the emulator says which instruction of which warp is to blame. Needs Triton 3.8.
"""

from __future__ import annotations

import sys

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from triton_ext.compat import reinterpret

M, N, K, BLOCK_K = 64, 64, 256, 64
FAULTS = {
    "wrong-swizzle": "wgmma reads A with a 64-byte swizzle, and TMA wrote it with 128",
    "no-wait": "wgmma reads a tile before its TMA copy has arrived",
    "no-wgmma-wait": "TMA overwrites a tile that wgmma may still be reading",
    "few-bytes": "the barrier expects the bytes of A alone",
    "same-phase": "each wait is for the barrier's first phase",
    "wrong-phase": "each wait is for the phase after the one that comes",
}


@gluon.jit
def matmul(a_desc, b_desc, c_ptr, steps, FAULT: gl.constexpr):
    M: gl.constexpr = a_desc.block_type.shape[0]
    K: gl.constexpr = a_desc.block_type.shape[1]
    N: gl.constexpr = b_desc.block_type.shape[1]
    ACCUMULATOR: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    a = gl.allocate_shared_memory(a_desc.dtype, [2, M, K], a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, [2, K, N], b_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(full.index(i), count=1)
    fence_async_shared()
    both: gl.constexpr = a_desc.block_type.nbytes + b_desc.block_type.nbytes
    size: gl.constexpr = a_desc.block_type.nbytes if FAULT == "few-bytes" else both

    mbarrier.expect(full.index(0), size)
    tma.async_load(a_desc, [0, 0], full.index(0), a.index(0))
    tma.async_load(b_desc, [0, 0], full.index(0), b.index(0))
    accumulator = warpgroup_mma_init(gl.zeros((M, N), gl.float32, ACCUMULATOR))
    for i in range(steps):
        if FAULT != "no-wgmma-wait":  # the product before read the buffer that is filled next
            accumulator = warpgroup_mma_wait(0, deps=(accumulator,))
        more = i + 1 < steps
        later = (i + 1) % 2
        mbarrier.expect(full.index(later), size, pred=more)
        tma.async_load(a_desc, [0, (i + 1) * K], full.index(later), a.index(later), pred=more)
        tma.async_load(b_desc, [(i + 1) * K, 0], full.index(later), b.index(later), pred=more)
        phase = (i // 2) & 1
        if FAULT == "same-phase":
            phase = 0
        if FAULT == "wrong-phase":
            phase = phase ^ 1
        if FAULT != "no-wait":
            mbarrier.wait(full.index(i % 2), phase)
        tile = a.index(i % 2)
        if FAULT == "wrong-swizzle":
            narrow: gl.constexpr = gl.NVMMASharedLayout(64, 16, rank=2)
            tile = reinterpret(tile, a_desc.dtype, [M, K], narrow)
        accumulator = warpgroup_mma(tile, b.index(i % 2), accumulator, is_async=True)
    accumulator = warpgroup_mma_wait(0, deps=(accumulator,))

    row = gl.arange(0, M, gl.SliceLayout(1, ACCUMULATOR))
    column = gl.arange(0, N, gl.SliceLayout(0, ACCUMULATOR))
    gl.store(c_ptr + row[:, None] * N + column[None, :], accumulator)


def main(fault: str) -> None:
    torch.manual_seed(0)
    a = torch.randn(M, K, device="cuda", dtype=torch.float16)
    b = torch.randn(K, N, device="cuda", dtype=torch.float16)
    c = torch.empty(M, N, device="cuda")
    tiles = []
    for matrix, block in ((a, [M, BLOCK_K]), (b, [BLOCK_K, N])):
        layout = gl.NVMMASharedLayout.get_default_for(block, gl.float16)
        tiles.append(TensorDescriptor.from_tensor(matrix, block, layout))
    matmul[(1,)](*tiles, c, K // BLOCK_K, fault, enable_fp_fusion=True)
    torch.testing.assert_close(c, a.float() @ b.float(), atol=1e-2, rtol=1e-2)
    print("right")


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else ""
    if chosen and chosen not in FAULTS:
        sys.exit(f"there is no fault {chosen!r}, but {', '.join(FAULTS)}")
    main(chosen)
