"""A matmul with tcgen05 on Blackwell, and six ways to break it.

    triton-ext run --emulate sm_100 examples/blackwell_matmul.py              # right
    triton-ext run --emulate sm_100 examples/blackwell_matmul.py no-commit    # broken on purpose

One block computes a 128x64 tile of C, which stays in tensor memory; TMA fills a ring of two buffers
with tiles of A and B. Each name in FAULTS leaves out, or changes, one line. Needs Triton 3.8.
"""

from __future__ import annotations

import sys

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    tcgen05_commit,
    tcgen05_mma,
)
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from triton_ext.compat import reinterpret

M, N, K, BLOCK_K = 128, 64, 256, 64
FAULTS = {
    "wrong-swizzle": "tcgen05.mma reads A with a 64-byte swizzle, and TMA wrote it with 128",
    "no-wait": "the product reads a tile before its TMA copy has arrived",
    "no-mma-wait": "TMA overwrites a tile that the product may still be reading",
    "no-commit": "nothing tells the barrier that a product is done",
    "old-sum": "the first product adds to what happens to be in tensor memory",
    "early-load": "the accumulator is loaded before the last product is done",
}


@gluon.jit
def matmul(a_desc, b_desc, c_ptr, steps, FAULT: gl.constexpr):
    M: gl.constexpr = a_desc.block_type.shape[0]
    K: gl.constexpr = a_desc.block_type.shape[1]
    N: gl.constexpr = b_desc.block_type.shape[1]
    a = gl.allocate_shared_memory(a_desc.dtype, [2, M, K], a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, [2, K, N], b_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(done, count=1)
    for i in gl.static_range(2):
        mbarrier.init(full.index(i), count=1)
    fence_async_shared()
    size: gl.constexpr = a_desc.block_type.nbytes + b_desc.block_type.nbytes
    accumulator = allocate_tensor_memory(gl.float32, [M, N], TensorMemoryLayout((M, N), 1))

    mbarrier.expect(full.index(0), size)
    tma.async_load(a_desc, [0, 0], full.index(0), a.index(0))
    tma.async_load(b_desc, [0, 0], full.index(0), b.index(0))
    for i in range(steps):
        if FAULT != "no-mma-wait":  # the product before read the buffer that is filled next
            mbarrier.wait(done, (i + 1) & 1, pred=i > 0)
        more = i + 1 < steps
        later = (i + 1) % 2
        mbarrier.expect(full.index(later), size, pred=more)
        tma.async_load(a_desc, [0, (i + 1) * K], full.index(later), a.index(later), pred=more)
        tma.async_load(b_desc, [(i + 1) * K, 0], full.index(later), b.index(later), pred=more)
        if FAULT != "no-wait":
            mbarrier.wait(full.index(i % 2), (i // 2) & 1)
        use_sum = i > 0
        if FAULT == "old-sum":
            use_sum = i >= 0
        tile = a.index(i % 2)
        if FAULT == "wrong-swizzle":
            narrow: gl.constexpr = gl.NVMMASharedLayout(64, 16, rank=2)
            tile = reinterpret(tile, a_desc.dtype, [M, K], narrow)
        tcgen05_mma(tile, b.index(i % 2), accumulator, use_acc=use_sum)
        if FAULT != "no-commit":
            tcgen05_commit(done)
    if FAULT != "early-load":
        mbarrier.wait(done, (steps + 1) & 1)

    values = accumulator.load(accumulator.get_reg_layout())
    LAYOUT: gl.constexpr = values.type.layout
    row = gl.arange(0, M, gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, N, gl.SliceLayout(0, LAYOUT))
    gl.store(c_ptr + row[:, None] * N + column[None, :], values)


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
