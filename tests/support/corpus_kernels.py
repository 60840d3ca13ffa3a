"""Small Triton kernels of the kinds that compiler passes meet, each with its launch.

A function without a decorator launches one kernel on inputs of which only the types and the shapes
count: `corpus_worker.py` compiles the kernels and runs none. Its arguments are plain JSON data;
`options` are Triton's, such as ``num_stages``. The Gluon kernels are in `corpus_gluon_kernels.py`.
"""

from __future__ import annotations

import sys

import torch
import triton
import triton.language as tl
from sites import ROOT
from triton.tools.tensor_descriptor import TensorDescriptor

from triton_ext.compat import LAUNCH_OPTIONS

sys.path.append(str(ROOT))  # `benchmarks` is not installed

from benchmarks.triton_kernels import (
    LOG2E,
    attention_by_pointers_kernel,
    attention_step,
    dropout_kernel,
    layer_norm_kernel,
    pointer_matmul,
    softmax_kernel,
    tile_of,
    transpose_kernel,
)


def tensor(dtype: str, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype))


def blocks(dtype: str, shape: tuple[int, ...], block: tuple[int, ...]) -> TensorDescriptor:
    """A host-made TMA descriptor."""
    return TensorDescriptor.from_tensor(tensor(dtype, *shape), list(block))


def accumulator_type(dtype: str) -> str:
    return "int32" if dtype == "int8" else "float32"


@triton.jit
def square(x, n: tl.constexpr):
    i, j = tl.arange(0, n)[:, None], tl.arange(0, n)[None, :]
    tile = tl.load(x + i * n + j)
    tl.store(x + i * n + j, tl.dot(tile, tile).to(tile.dtype))


def warm_up():
    """A kernel that no job compiles."""
    square[(1,)](tensor("float16", 32, 32), 32, **LAUNCH_OPTIONS)


# ----------------------------------------------------------------------------- products of matrices


def matmul_by_pointers(
    dtype, block=(64, 64, 32), a_major="K", b_major="N", precision="tf32", a_in_registers=False,
    epilogue="", b_dtype=None, **options,
):  # fmt: skip
    m, n, k = 512, 512, 512
    a, b = tensor(dtype, m, k), tensor(b_dtype or dtype, k, n)
    a_strides = (k, 1) if a_major == "K" else (1, m)
    b_strides = (n, 1) if b_major == "N" else (1, k)
    acc = accumulator_type(dtype)
    c = tensor("float32" if epilogue == "split" else acc if dtype == "int8" else "float16", m, n)
    pointer_matmul[(64,)](
        a, b, c, tensor("float32", n), m, n, k, *a_strides, *b_strides, n, *block,
        getattr(tl, acc), precision, a_in_registers, epilogue, **options, **LAUNCH_OPTIONS,
    )  # fmt: skip


@triton.jit
def descriptor_matmul(
    a_desc, b_desc, c_desc, m, n, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr,
    A_MAJOR: tl.constexpr, B_MAJOR: tl.constexpr, PRECISION: tl.constexpr,
    WARP_SPECIALIZE: tl.constexpr,
):  # fmt: skip
    row, column = tile_of(tl.program_id(0), m, n, BM, BN, 4)
    acc = tl.zeros((BM, BN), ACC)
    for i in tl.range(0, tl.cdiv(k, BK), warp_specialize=WARP_SPECIALIZE):
        if A_MAJOR == "K":  # noqa: SIM108
            a = a_desc.load([row * BM, i * BK])
        else:
            a = a_desc.load([i * BK, row * BM]).T
        if B_MAJOR == "N":
            b = b_desc.load([i * BK, column * BN])
        else:
            b = b_desc.load([column * BN, i * BK]).T
        acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=ACC)
    c_desc.store([row * BM, column * BN], acc.to(c_desc.dtype))


@triton.jit
def device_descriptor_matmul(
    a_ptr, b_ptr, c_ptr, m, n, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr,
    WARP_SPECIALIZE: tl.constexpr,
):  # fmt: skip
    a_desc = tl.make_tensor_descriptor(a_ptr, [m, k], [k, 1], [BM, BK])
    b_desc = tl.make_tensor_descriptor(b_ptr, [n, k], [k, 1], [BN, BK])
    c_desc = tl.make_tensor_descriptor(c_ptr, [m, n], [n, 1], [BM, BN])
    descriptor_matmul(
        a_desc, b_desc, c_desc, m, n, k, BM, BN, BK, ACC, "K", "K", "tf32", WARP_SPECIALIZE
    )


def matmul_by_descriptors(
    dtype, block=(64, 64, 32), a_major="K", b_major="N", precision="tf32", warp_specialize=False,
    out=None, **options,
):  # fmt: skip
    m, n, k = 512, 512, 512
    bm, bn, bk = block
    a = blocks(dtype, (m, k), (bm, bk)) if a_major == "K" else blocks(dtype, (k, m), (bk, bm))
    b = blocks(dtype, (k, n), (bk, bn)) if b_major == "N" else blocks(dtype, (n, k), (bn, bk))
    acc = accumulator_type(dtype)
    c = blocks(out or ("int32" if dtype == "int8" else "float16"), (m, n), (bm, bn))
    descriptor_matmul[(64,)](
        a, b, c, m, n, k, *block, getattr(tl, acc), a_major, b_major, precision, warp_specialize,
        **options, **LAUNCH_OPTIONS,
    )  # fmt: skip


def matmul_by_device_descriptors(
    dtype, block=(64, 64, 32), warp_specialize=False, **options
):  # fmt: skip
    m, n, k = 512, 512, 512
    device_descriptor_matmul[(64,)](
        tensor(dtype, m, k), tensor(dtype, n, k), tensor("float16", m, n), m, n, k, *block,
        getattr(tl, accumulator_type(dtype)), warp_specialize, **options, **LAUNCH_OPTIONS,
    )  # fmt: skip


@triton.jit
def late_descriptor_kernel(x_ptr, o_ptr, rows, columns, M: tl.constexpr, N: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [rows, columns], [columns, 1], [M, N])
    tile = x.load([tl.program_id(0) * M, 0])
    o = tl.make_tensor_descriptor(o_ptr, [rows, columns], [columns, 1], [M, N])
    o.store([tl.program_id(0) * M, 0], tile * 2)
    if rows > 2000:  # not with the first arguments that verify-descriptors chooses
        o.store([tl.program_id(1) * M, 0], tile * 3)


def late_descriptor(dtype, **options):
    """The descriptor of the result is made just before it is stored."""
    x, o = tensor(dtype, 128, 128), tensor(dtype, 128, 128)
    late_descriptor_kernel[(2,)](x, o, 128, 128, 64, 128, **options, **LAUNCH_OPTIONS)


@triton.jit
def merged_branches_kernel(x, o, n, M: tl.constexpr, N: tl.constexpr):
    if n > 3:  # noqa: SIM108
        tile = x.load([0, N])
    else:
        tile = x.load([M, 0])
    i = 0
    while i < n:
        tile += x.load([i, i])
        i += M
    o.store([0, 0], tile)


def merged_branches(dtype, **options):
    """LLVM makes one copy of the two in the branches of the ``if``."""
    x, o = (blocks(dtype, (64, 128), (32, 64)) for _ in range(2))
    merged_branches_kernel[(1,)](x, o, 64, 32, 64, **options, **LAUNCH_OPTIONS)


@triton.jit
def short_matmul_kernel(a_desc, b_desc, c_desc, n, K: tl.constexpr, B: tl.constexpr):
    column = tl.program_id(0) * B
    while column < n:
        acc = tl.zeros((B, B), tl.float32)
        for i in range(0, K, B):
            acc = tl.dot(a_desc.load([0, i]), b_desc.load([column, i]).T, acc)
        c_desc.store([0, column], acc.to(c_desc.dtype))
        column += B * tl.num_programs(0)


def short_matmul(dtype, k=128, **options):
    """As few steps as are begun before the loop: LLVM knows that nothing is copied within it."""
    tiles = (blocks(dtype, shape, (64, 64)) for shape in ((64, k), (256, k), (64, 256)))
    short_matmul_kernel[(2,)](*tiles, 256, k, 64, **options, **LAUNCH_OPTIONS)


@triton.jit
def persistent_matmul_kernel(
    a_desc, b_desc, c_desc, m, n, k, PROGRAMS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    FLATTEN: tl.constexpr, WARP_SPECIALIZE: tl.constexpr, HALVES: tl.constexpr,
):  # fmt: skip
    """Each program makes every PROGRAMS-th tile of C = A @ B.T."""
    tiles = tl.cdiv(m, BM) * tl.cdiv(n, BN)
    for tile in tl.range(
        tl.program_id(0), tiles, PROGRAMS, flatten=FLATTEN, warp_specialize=WARP_SPECIALIZE
    ):
        row, column = tile_of(tile, m, n, BM, BN, 4)
        acc = tl.zeros((BM, BN), tl.float32)
        for i in range(tl.cdiv(k, BK)):
            a = a_desc.load([row * BM, i * BK])
            b = b_desc.load([column * BN, i * BK])
            acc = tl.dot(a, b.T, acc)
        if HALVES:
            left, right = acc.reshape(BM, 2, BN // 2).permute(0, 2, 1).split()
            c_desc.store([row * BM, column * BN], left.to(c_desc.dtype))
            c_desc.store([row * BM, column * BN + BN // 2], right.to(c_desc.dtype))
        else:
            c_desc.store([row * BM, column * BN], acc.to(c_desc.dtype))


def persistent_matmul(
    dtype, block=(128, 64, 64), flatten=False, warp_specialize=False, halves=False, **options
):
    m, n, k = 512, 512, 512
    bm, bn, bk = block
    persistent_matmul_kernel[(4,)](
        blocks(dtype, (m, k), (bm, bk)), blocks(dtype, (n, k), (bn, bk)),
        blocks(dtype, (m, n), (bm, bn // 2 if halves else bn)), m, n, k, 4, *block,
        flatten, warp_specialize, halves, **options, **LAUNCH_OPTIONS,
    )  # fmt: skip


@triton.jit
def batched_dot_kernel(a_ptr, b_ptr, c_ptr, B: tl.constexpr, M: tl.constexpr, K: tl.constexpr):
    i = tl.arange(0, B)[:, None, None] * M * K
    m, k = tl.arange(0, M), tl.arange(0, K)
    a = tl.load(a_ptr + i + m[None, :, None] * K + k[None, None, :])
    b = tl.load(b_ptr + i + k[None, :, None] * M + m[None, None, :])
    out = tl.arange(0, B)[:, None, None] * M * M + m[None, :, None] * M + m[None, None, :]
    tl.store(c_ptr + out, tl.dot(a, b))


def batched_dot(dtype, **options):
    b, m, k = 4, 32, 32
    batched_dot_kernel[(1,)](
        tensor(dtype, b, m, k), tensor(dtype, b, k, m), tensor("float32", b, m, m), b, m, k,
        **options, **LAUNCH_OPTIONS,
    )  # fmt: skip


# ---------------------------------------------------------------------------- block-scaled products


FORMATS = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "e2m1": "uint8", "bf16": "bfloat16"}


@triton.jit
def scaled_matmul(
    a_ptr, b_ptr, a_scale_ptr, b_scale_ptr, c_ptr, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    A_FORMAT: tl.constexpr, B_FORMAT: tl.constexpr, A_PACK: tl.constexpr, B_PACK: tl.constexpr,
    BLOCK: tl.constexpr, A_SCALED: tl.constexpr,
):  # fmt: skip
    """One tile of A @ B.T, with scale factors of blocks of BLOCK elements along K."""
    m, n, s = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK // BLOCK)
    a_k, b_k = tl.arange(0, BK // A_PACK), tl.arange(0, BK // B_PACK)
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(tl.cdiv(k, BK)):
        a = tl.load(a_ptr + m[:, None] * (k // A_PACK) + (i * BK // A_PACK + a_k)[None, :])
        b = tl.load(b_ptr + n[None, :] * (k // B_PACK) + (i * BK // B_PACK + b_k)[:, None])
        at = (i * BK // BLOCK + s)[None, :]
        b_scale = tl.load(b_scale_ptr + n[:, None] * (k // BLOCK) + at)
        if A_SCALED:
            a_scale = tl.load(a_scale_ptr + m[:, None] * (k // BLOCK) + at)
            acc = tl.dot_scaled(a, a_scale, A_FORMAT, b, b_scale, B_FORMAT, acc)
        else:
            acc = tl.dot_scaled(a, None, A_FORMAT, b, b_scale, B_FORMAT, acc)
    tl.store(c_ptr + m[:, None] * BN + n[None, :], acc)


def scaled_matmul_by_pointers(a_format, b_format, scale_block=32, block=(128, 64, 128), **options):
    (bm, bn, bk), k = block, 512
    scale = "uint8" if scale_block == 32 else "float8_e4m3fn"
    packs = [2 if name == "e2m1" else 1 for name in (a_format, b_format)]
    scaled_matmul[(1,)](
        tensor(FORMATS[a_format], bm, k // packs[0]), tensor(FORMATS[b_format], bn, k // packs[1]),
        tensor(scale, bm, k // scale_block), tensor(scale, bn, k // scale_block),
        tensor("float32", bm, bn), k, bm, bn, bk, a_format, b_format, *packs, scale_block,
        a_format != "bf16", **options, **LAUNCH_OPTIONS,
    )  # fmt: skip


@triton.jit
def tma_scaled_matmul(
    a_desc, b_desc, a_scale_desc, b_scale_desc, c_desc, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, FORMAT: tl.constexpr,
    PACK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Scale factors in the order in which tensor memory takes them: blocks of 32 x 4 x 4 bytes."""
    row, column = tl.program_id(0), tl.program_id(1)
    REST: tl.constexpr = BK // BLOCK // 4
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(tl.cdiv(k, BK)):
        a = a_desc.load([row * BM, i * BK // PACK])
        b = b_desc.load([column * BN, i * BK // PACK])
        a_scale = a_scale_desc.load([0, row * (BM // 128), i * REST, 0, 0])
        b_scale = b_scale_desc.load([0, column * (BN // 128), i * REST, 0, 0])
        a_scale = a_scale.reshape(BM // 128, REST, 32, 4, 4)
        a_scale = a_scale.trans(0, 3, 2, 1, 4).reshape(BM, BK // BLOCK)
        b_scale = b_scale.reshape(BN // 128, REST, 32, 4, 4)
        b_scale = b_scale.trans(0, 3, 2, 1, 4).reshape(BN, BK // BLOCK)
        acc = tl.dot_scaled(a, a_scale, FORMAT, b.T, b_scale, FORMAT, acc)
    c_desc.store([row * BM, column * BN], acc.to(c_desc.dtype))


def scaled_matmul_by_descriptors(name, scale_block=32, block=(128, 128, 128), **options):
    (bm, bn, bk), m, n, k = block, 256, 256, 512
    pack = 2 if name == "e2m1" else 1
    scale = "uint8" if scale_block == 32 else "float8_e4m3fn"
    steps, all_steps = bk // scale_block // 4, k // scale_block // 4
    tma_scaled_matmul[(m // bm, n // bn)](
        blocks(FORMATS[name], (m, k // pack), (bm, bk // pack)),
        blocks(FORMATS[name], (n, k // pack), (bn, bk // pack)),
        blocks(scale, (1, m // 128, all_steps, 2, 256), (1, bm // 128, steps, 2, 256)),
        blocks(scale, (1, n // 128, all_steps, 2, 256), (1, bn // 128, steps, 2, 256)),
        blocks("float16", (m, n), (bm, bn)), k, bm, bn, bk, name, pack, scale_block,
        **options, **LAUNCH_OPTIONS,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------- attention


@triton.jit
def attention_by_descriptors_kernel(
    q_desc, k_desc, v_desc, o_desc, length, scale,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
    WARP_SPECIALIZE: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * BM
    rows = first + tl.arange(0, BM)
    q = q_desc.load([first, 0])
    highest = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for start in tl.range(0, first if CAUSAL else length, BN, warp_specialize=WARP_SPECIALIZE):
        k = k_desc.load([start, 0]).T
        v = v_desc.load([start, 0])
        highest, total, acc = attention_step(
            q, k, v, start, rows, highest, total, acc, scale, BN, False
        )
    if CAUSAL:
        for start in tl.range(first, first + BM, BN):
            k = k_desc.load([start, 0]).T
            v = v_desc.load([start, 0])
            highest, total, acc = attention_step(
                q, k, v, start, rows, highest, total, acc, scale, BN, True
            )
    o_desc.store([first, 0], (acc / total[:, None]).to(o_desc.dtype))


def attention_by_descriptors(
    dtype, head=64, block=(128, 64), causal=False, warp_specialize=False, **options
):
    length, (bm, bn) = 512, block
    attention_by_descriptors_kernel[(length // bm,)](
        blocks(dtype, (length, head), (bm, head)), blocks(dtype, (length, head), (bn, head)),
        blocks(dtype, (length, head), (bn, head)), blocks("float16", (length, head), (bm, head)),
        length, LOG2E / head**0.5, bm, bn, head, causal, warp_specialize,
        **options, **LAUNCH_OPTIONS,
    )  # fmt: skip


def attention_by_pointers(dtype, head=64, block=(64, 64), causal=False, **options):
    length, (bm, bn) = 512, block
    attention_by_pointers_kernel[(length // bm, 2)](
        *(tensor(dtype, 2, length, head) for _ in range(4)), length, LOG2E / head**0.5,
        bm, bn, head, causal, **options, **LAUNCH_OPTIONS,
    )  # fmt: skip


@triton.jit
def attention_gradient_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, dk_ptr, dv_ptr, lse_ptr, delta_ptr, length, scale,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """The gradients of K and V: four products, two of them with a transposed operand."""
    keys, d, m = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, D), tl.arange(0, BM)
    k = tl.load(k_ptr + keys[:, None] * D + d[None, :])
    v = tl.load(v_ptr + keys[:, None] * D + d[None, :])
    dk = tl.zeros((BN, D), tl.float32)
    dv = tl.zeros((BN, D), tl.float32)
    for start in range(0, length, BM):
        rows = start + m
        q = tl.load(q_ptr + rows[:, None] * D + d[None, :])
        do = tl.load(do_ptr + rows[:, None] * D + d[None, :])
        p = tl.exp2(tl.dot(k, tl.trans(q)) * scale - tl.load(lse_ptr + rows)[None, :])
        dv = tl.dot(p.to(do.dtype), do, dv)
        dp = tl.dot(v, tl.trans(do)) - tl.load(delta_ptr + rows)[None, :]
        dk = tl.dot((p * dp).to(q.dtype), q, dk)
    tl.store(dk_ptr + keys[:, None] * D + d[None, :], dk.to(dk_ptr.dtype.element_ty))
    tl.store(dv_ptr + keys[:, None] * D + d[None, :], dv.to(dv_ptr.dtype.element_ty))


def attention_gradient(dtype, head=64, block=(64, 64), **options):
    length, (bm, bn) = 512, block
    attention_gradient_kernel[(length // bn,)](
        *(tensor(dtype, length, head) for _ in range(6)), *(tensor("float32", length),) * 2,
        length, 1.0, bm, bn, head, **options, **LAUNCH_OPTIONS,
    )  # fmt: skip


# ------------------------------------------------------------------- tensor descriptors with no MMA


@triton.jit
def gather_scatter_kernel(x_desc, o_desc, rows_ptr, ROWS: tl.constexpr, COLUMN: tl.constexpr):
    rows = tl.load(rows_ptr + tl.arange(0, ROWS))
    tile = x_desc.gather(rows, COLUMN)
    o_desc.scatter(tile + tile, rows, COLUMN)


def gather_scatter(dtype, rows=32, columns=32, **options):
    x, o = (blocks(dtype, (256, 256), (1, columns)) for _ in range(2))
    gather_scatter_kernel[(1,)](x, o, tensor("int32", rows), rows, 16, **options, **LAUNCH_OPTIONS)


@triton.jit
def gather_matmul_kernel(
    a_desc, b_desc, c_ptr, rows_ptr, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """Rows of A by their numbers, as in a mixture of experts."""
    m, n = tl.arange(0, BM), tl.arange(0, BN)
    rows = tl.load(rows_ptr + m)
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(tl.cdiv(k, BK)):
        acc = tl.dot(a_desc.gather(rows, i * BK), b_desc.load([i * BK, 0]), acc)
    tl.store(c_ptr + m[:, None] * BN + n[None, :], acc)


def gather_matmul(dtype, block=(128, 64, 64), **options):
    bm, bn, bk = block
    gather_matmul_kernel[(1,)](
        blocks(dtype, (512, 512), (1, bk)), blocks(dtype, (512, bn), (bk, bn)),
        tensor("float32", bm, bn), tensor("int32", bm), 512, *block, **options, **LAUNCH_OPTIONS,
    )  # fmt: skip


@triton.jit
def reduce_kernel(x_desc, o_desc, KIND: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at = [tl.program_id(0) * ROWS, 0]
    tile = x_desc.load(at)
    if KIND == "add":
        o_desc.atomic_add(at, tile)
    elif KIND == "max":
        o_desc.atomic_max(at, tile)
    elif KIND == "and":
        o_desc.atomic_and(at, tile)


def descriptor_reduce(dtype, kind="add", block=(32, 64), **options):
    x, o = (blocks(dtype, (128, 64), block) for _ in range(2))
    reduce_kernel[(4,)](x, o, kind, *block, **options, **LAUNCH_OPTIONS)


@triton.jit
def tiles_of_rank_kernel(x_desc, o_desc, RANK: tl.constexpr):
    i = tl.program_id(0)
    if RANK == 1:
        o_desc.store([i * 64], x_desc.load([i * 64]) + 1)
    elif RANK == 3:
        o_desc.store([i, 0, 0], x_desc.load([i, 0, 0]) + 1)
    elif RANK == 4:
        o_desc.store([i, 0, 0, 0], x_desc.load([i, 0, 0, 0]) + 1)
    else:
        o_desc.store([i, 0, 0, 0, 0], x_desc.load([i, 0, 0, 0, 0]) + 1)


def descriptor_of_rank(dtype, block, **options):
    x, o = (blocks(dtype, tuple(2 * n for n in block), tuple(block)) for _ in range(2))
    tiles_of_rank_kernel[(2,)](x, o, len(block), **options, **LAUNCH_OPTIONS)


# ----------------------------------------------------------------------------------- no tensor core


def softmax(dtype, n=1024, stages=2, **options):
    softmax_kernel[(8,)](
        tensor(dtype, 64, n - 3), tensor(dtype, 64, n - 3), 64, n - 3, n, stages,
        **options, **LAUNCH_OPTIONS,
    )  # fmt: skip


def layer_norm(dtype, n=256, **options):
    layer_norm_kernel[(8,)](
        tensor(dtype, 8, 1000), tensor("float32", 1000), tensor("float32", 1000),
        tensor(dtype, 8, 1000), 1000, 1e-5, n, **options, **LAUNCH_OPTIONS,
    )  # fmt: skip


def transpose(dtype, block=(64, 64), **options):
    transpose_kernel[(4, 4)](
        tensor(dtype, 256, 256), tensor(dtype, 256, 256), 256, 256, *block,
        **options, **LAUNCH_OPTIONS,
    )  # fmt: skip


@triton.jit
def reduce_tile_kernel(x_ptr, o_ptr, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr,
                       SCAN: tl.constexpr):  # fmt: skip
    m, n = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + m[:, None] * N + n[None, :])
    if SCAN:
        tl.store(o_ptr + m[:, None] * N + n[None, :], tl.cumsum(x, AXIS))
    elif AXIS == 0:
        tl.store(o_ptr + n, tl.sum(x, 0))
    else:
        tl.store(o_ptr + m, tl.max(x, 1))


def reduce_tile(dtype, axis, scan=False, shape=(64, 128), **options):
    reduce_tile_kernel[(1,)](
        tensor(dtype, *shape), tensor(dtype, *shape), *shape, axis, scan,
        **options, **LAUNCH_OPTIONS,
    )  # fmt: skip


def dropout(dtype, **options):
    dropout_kernel[(4,)](
        tensor(dtype, 1000), tensor(dtype, 1000), 1000, 0.5, 7, 256, **options, **LAUNCH_OPTIONS
    )
