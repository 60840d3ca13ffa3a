"""Triton kernels as its tutorials have them, not of this project: products of matrices by pointers,
attention, softmax, layer norm, transposition, dropout.

`benchmarks.timeline` measures and predicts them; the tests compile them with all compiler passes.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = 1.4426950408889634


@triton.jit
def tile_of(program, m, n, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """The tile of a program: GROUP rows of tiles at a time, so that they share columns in L2."""
    rows, columns = tl.cdiv(m, BM), tl.cdiv(n, BN)
    group = program // (GROUP * columns)
    height = min(rows - group * GROUP, GROUP)
    return group * GROUP + program % height, program % (GROUP * columns) // height


@triton.jit
def pointer_matmul(
    a_ptr, b_ptr, c_ptr, bias_ptr, m, n, k, a_m, a_k, b_k, b_n, c_m,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr,
    PRECISION: tl.constexpr, A_IN_REGISTERS: tl.constexpr, EPILOGUE: tl.constexpr,
):  # fmt: skip
    row, column = tile_of(tl.program_id(0), m, n, BM, BN, 4)
    rows, columns = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    a_tile = a_ptr + (rows % m)[:, None] * a_m + inner[None, :] * a_k
    b_tile = b_ptr + inner[:, None] * b_k + (columns % n)[None, :] * b_n
    acc = tl.zeros((BM, BN), ACC)
    for i in range(tl.cdiv(k, BK)):
        a = tl.load(a_tile, mask=inner[None, :] < k - i * BK, other=0.0)
        b = tl.load(b_tile, mask=inner[:, None] < k - i * BK, other=0.0)
        if A_IN_REGISTERS:
            a = (a.to(tl.float32) * 0.5).to(a.dtype)
        if a.dtype != b.dtype:
            b = b.to(a.dtype)
        acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=ACC)
        a_tile += BK * a_k
        b_tile += BK * b_k
    c_tile = c_ptr + rows[:, None] * c_m + columns[None, :]
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    if EPILOGUE == "bias":
        acc += tl.load(bias_ptr + columns, mask=columns < n, other=0)[None, :]
        acc = tl.where(acc > 0, acc, 0.01 * acc)
    if EPILOGUE == "split":
        tl.atomic_add(c_tile, acc, mask=inside)
    else:
        tl.store(c_tile, acc.to(c_ptr.dtype.element_ty), mask=inside)


@triton.jit
def attention_step(
    q, k, v, start, rows, highest, total, acc, scale, BN: tl.constexpr, MASKED: tl.constexpr
):
    scores = tl.dot(q, k) * scale
    if MASKED:
        keys = start + tl.arange(0, BN)
        scores = tl.where(rows[:, None] >= keys[None, :], scores, float("-inf"))
    new = tl.maximum(highest, tl.max(scores, 1))
    p = tl.exp2(scores - new[:, None])
    shrink = tl.exp2(highest - new)
    acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None])
    return new, total * shrink + tl.sum(p, 1), acc


@triton.jit
def attention_by_pointers_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, length, scale,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    rows, d, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D), tl.arange(0, BN)
    head = tl.program_id(1).to(tl.int64) * length * D
    q = tl.load(q_ptr + head + rows[:, None] * D + d[None, :])
    highest = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * BM if CAUSAL else length, BN):
        k = tl.load(k_ptr + head + (start + n)[None, :] * D + d[:, None])
        v = tl.load(v_ptr + head + (start + n)[:, None] * D + d[None, :])
        highest, total, acc = attention_step(
            q, k, v, start, rows, highest, total, acc, scale, BN, CAUSAL
        )
    o = acc / total[:, None]
    tl.store(o_ptr + head + rows[:, None] * D + d[None, :], o.to(o_ptr.dtype.element_ty))


@triton.jit
def softmax_kernel(x_ptr, o_ptr, rows, columns, N: tl.constexpr, STAGES: tl.constexpr):
    at = tl.arange(0, N)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        x = tl.load(x_ptr + row * columns + at, mask=at < columns, other=-float("inf"))
        x = tl.exp((x - tl.max(x, 0)).to(tl.float32))
        tl.store(o_ptr + row * columns + at, x / tl.sum(x, 0), mask=at < columns)


@triton.jit
def layer_norm_kernel(x_ptr, w_ptr, b_ptr, o_ptr, columns, eps, N: tl.constexpr):
    row = tl.program_id(0)
    mean = tl.zeros((N,), tl.float32)
    for start in range(0, columns, N):
        at = start + tl.arange(0, N)
        mean += tl.load(x_ptr + row * columns + at, mask=at < columns, other=0).to(tl.float32)
    mean = tl.sum(mean, 0) / columns
    variance = tl.zeros((N,), tl.float32)
    for start in range(0, columns, N):
        at = start + tl.arange(0, N)
        x = tl.load(x_ptr + row * columns + at, mask=at < columns, other=0).to(tl.float32)
        x = tl.where(at < columns, x - mean, 0.0)
        variance += x * x
    scale = tl.rsqrt(tl.sum(variance, 0) / columns + eps)
    for start in range(0, columns, N):
        at = start + tl.arange(0, N)
        inside = at < columns
        x = tl.load(x_ptr + row * columns + at, mask=inside, other=0).to(tl.float32)
        w, b = tl.load(w_ptr + at, mask=inside), tl.load(b_ptr + at, mask=inside)
        tl.store(o_ptr + row * columns + at, (x - mean) * scale * w + b, mask=inside)


@triton.jit
def transpose_kernel(x_ptr, o_ptr, m, n, BM: tl.constexpr, BN: tl.constexpr):
    """Coalesced loads and stores: the transposition is a layout conversion in shared memory."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    tile = tl.load(x_ptr + rows[:, None] * n + columns[None, :])
    tl.store(o_ptr + columns[:, None] * m + rows[None, :], tile.T)


@triton.jit
def dropout_kernel(x_ptr, o_ptr, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(o_ptr + at, tl.where(tl.rand(seed, at) > p, x / (1 - p), 0.0), mask=at < n)
