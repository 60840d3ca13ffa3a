"""Small kernels of Triton and Gluon for any target: products, a copy by TMA, a reduction."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
)

import triton_ext

M, N, K = 64, 64, 128


@triton.jit
def _product(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STEP: tl.constexpr,
             KIND: tl.constexpr):  # fmt: skip
    rows, columns, along = tl.arange(0, M), tl.arange(0, N), tl.arange(0, STEP)
    total = tl.zeros((M, N), KIND)
    for k in range(0, K, STEP):
        left = tl.load(a + rows[:, None] * K + (k + along)[None, :])
        right = tl.load(b + (k + along)[:, None] * N + columns[None, :])
        total = tl.dot(left, right, total, out_dtype=KIND)
    tl.store(c + rows[:, None] * N + columns[None, :], total)


def product(arch, name, schedule):
    """(found, expected, PTX) of integers in a type of torch."""
    generator = torch.Generator().manual_seed(7)
    kind = getattr(torch, name)
    a, b = (torch.randint(-4, 5, shape, generator=generator).float().to(kind)
            for shape in ((M, K), (K, N)))  # fmt: skip
    whole = kind == torch.int8
    c = torch.zeros(M, N, dtype=torch.int32 if whole else torch.float32)
    with triton_ext.emulate(arch, schedule=schedule):
        compiled = _product[(1,)](a, b, c, M, N, K, 64, tl.int32 if whole else tl.float32)
    return c.double().numpy(), (a.double() @ b.double()).numpy(), compiled.asm["ptx"]


@triton.jit
def _scaled(a, sa, b, sb, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, A: tl.constexpr,
            B: tl.constexpr, PACK: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    rows, columns = tl.arange(0, M), tl.arange(0, N)
    along, blocks = tl.arange(0, K // PACK), tl.arange(0, K // BLOCK)
    left = tl.load(a + rows[:, None] * (K // PACK) + along[None, :])
    right = tl.load(b + columns[None, :] * (K // PACK) + along[:, None])
    of_left = tl.load(sa + rows[:, None] * (K // BLOCK) + blocks[None, :])
    of_right = tl.load(sb + columns[:, None] * (K // BLOCK) + blocks[None, :])
    total = tl.dot_scaled(left, of_left, A, right, of_right, B)
    tl.store(c + rows[:, None] * N + columns[None, :], total)


def _operand(rng, name, rows):
    if name == "e2m1":
        codes = rng.integers(0, 16, (rows, K)).astype(np.uint8)
        values = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
        return torch.tensor(codes[:, ::2] | codes[:, 1::2] << 4), values
    values = rng.integers(-4, 5, (rows, K)).astype(np.float64)
    kind = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[name]
    return torch.tensor(values).to(kind), values


def scaled_product(arch, a_name, b_name, block, schedule):
    """(found, expected, PTX); scale factors are ue8m0, of 16 elements ue4m3."""
    rng = np.random.default_rng(block)
    (a, of_a), (b, of_b) = _operand(rng, a_name, M), _operand(rng, b_name, N)
    scales, values = [], []
    for rows in (M, N):
        if block == 16:
            chosen = rng.choice([0.5, 1.5, 2], (rows, K // block))
            codes = torch.tensor(chosen.astype(ml_dtypes.float8_e4m3fn).view(np.uint8))
            scales.append(codes.view(torch.float8_e4m3fn))
            values.append(chosen)
        else:
            codes = rng.integers(124, 131, (rows, K // block)).astype(np.uint8)
            scales.append(torch.tensor(codes))
            values.append(2.0 ** (codes.astype(int) - 127))
    c = torch.zeros(M, N)
    pack = 2 if a_name == "e2m1" else 1
    with triton_ext.emulate(arch, schedule=schedule):
        compiled = _scaled[(1,)](
            a, scales[0], b, scales[1], c, M, N, K, a_name, b_name, pack, block
        )
    of_a, of_b = (each * np.repeat(scale, block, axis=1)
                  for each, scale in zip((of_a, of_b), values, strict=True))  # fmt: skip
    return c.double().numpy(), of_a @ of_b.T, compiled.asm["ptx"]


@triton.jit
def _copy(source, target, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    tile = source.load([0, COLUMNS])
    target.store([0, 0], tile + 1)


def copied(arch):
    """(found, expected, PTX): a tile of a tensor, read and written by TMA."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    a, c = torch.arange(32.0 * 128).reshape(32, 128), torch.zeros(32, 64)
    with triton_ext.emulate(arch, schedule="lazy"):
        maps = (TensorDescriptor.from_tensor(each, [32, 64]) for each in (a, c))
        compiled = _copy[(1,)](*maps, 32, 64)
    return c.numpy(), (a[:, 64:] + 1).numpy(), compiled.asm["ptx"]


@gluon.jit
def _largest(source, target, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, COLUMNS], [32, 1], [4, 1], [1, 0])
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
    values = gl.load(source + rows[:, None] * COLUMNS + columns[None, :])
    memory = allocate_tensor_memory(
        gl.float32, [ROWS, COLUMNS], TensorMemoryLayout([ROWS, COLUMNS], 1)
    )
    memory.store(gl.convert_layout(values, memory.get_reg_layout()))
    _, found = memory.load_max()
    out = gl.convert_layout(found, gl.SliceLayout(1, layout))
    gl.store(target + rows, out)


def largest_of_rows(arch):
    """(found, expected, PTX): the largest of each row, by a load that reduces."""
    a = torch.randn(128, 32, generator=torch.Generator().manual_seed(2))
    found = torch.zeros(128)
    with triton_ext.emulate(arch):
        compiled = _largest[(1,)](a, found, 128, 32, num_warps=4)
    return found.numpy(), a.amax(dim=1).numpy(), compiled.asm["ptx"]
