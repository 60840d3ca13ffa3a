"""A of a pipelined wgmma is overwritten in registers while the tensor core may still read it.

A is converted, so wgmma reads it from registers, which may not be written before the group is
waited for (PTX ISA, "wgmma.mma_async"). The PTX leaves one group pending at the end of an
iteration. ptxas before CUDA 13.3, which releases bring along for Hopper, gives the next operand
the same registers, and writes them before the next wait (triton#9433, triton#11781).
"""

import triton.language as tl
from reproduce import hopper, triton

from triton_ext.ptx.cubin import disassembled
from triton_ext.ptx.sass import overwritten_operands

triton.knobs.runtime.add_stages_inspection_hook = None  # `reproduce` stops at the PTX


@triton.jit
def multiply(
    a_ptr, b_ptr, c_ptr, K, stride_a, stride_b, stride_c,
    M: tl.constexpr, N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, BLOCK_K)
    a_at = a_ptr + m[:, None] * stride_a + k[None, :]
    b_at = b_ptr + k[:, None] * stride_b + n[None, :]
    sums = tl.zeros((M, N), tl.float32)
    for _ in tl.range(0, K, BLOCK_K, num_stages=3):
        sums = tl.dot(tl.load(a_at).to(tl.bfloat16), tl.load(b_at), sums)
        a_at += BLOCK_K
        b_at += BLOCK_K * stride_b
    tl.store(c_ptr + m[:, None] * stride_c + n[None, :], sums)


types = ["*fp16", "*bf16", "*fp32", "i32", "i32", "i32", "i32"] + ["constexpr"] * 3
signature = dict(zip(multiply.arg_names, types, strict=True))
compiled = hopper(multiply, signature, {"M": 128, "N": 128, "BLOCK_K": 32}, 7, warps=8)
listing = disassembled(compiled["cubin"], triton.knobs.nvidia.nvdisasm.path)
found = overwritten_operands(listing)
print(f"wrong: {found[0]}" if found else "right: A is not written before it is waited for")
