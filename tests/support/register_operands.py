"""A matmul whose A is converted, so that wgmma reads it from registers, in pipelined loops."""

from __future__ import annotations

import triton
import triton.language as tl


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
