"""Triton's ``tl.dot_scaled`` on the emulated Blackwell: tcgen05.mma with block scales.

The scale factors' layout in tensor memory is Triton's here, of the operands too.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

import triton_ext  # noqa: E402

TYPES = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m1": ml_dtypes.float4_e2m1fn,
}


@triton.jit
def scaled_dot(
    a, b, a_scale, b_scale, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    A_TYPE: tl.constexpr, B_TYPE: tl.constexpr, A_K: tl.constexpr, B_K: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    m, n, scales = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K // BLOCK)
    a_tile = tl.load(a + m[:, None] * A_K + tl.arange(0, A_K)[None, :])
    b_tile = tl.load(b + n[None, :] * B_K + tl.arange(0, B_K)[:, None])
    a_factors = tl.load(a_scale + m[:, None] * (K // BLOCK) + scales[None, :])
    b_factors = tl.load(b_scale + n[:, None] * (K // BLOCK) + scales[None, :])
    product = tl.dot_scaled(a_tile, a_factors, A_TYPE, b_tile, b_factors, B_TYPE)
    tl.store(c + m[:, None] * N + n[None, :], product)


def operand(rows: int, k: int, name: str, seed: int) -> tuple[torch.Tensor, np.ndarray]:
    """An operand as Triton takes it, two elements of 4 bits a byte; and its values."""
    values = np.random.default_rng(seed).integers(-4, 5, (rows, k)).astype(TYPES[name])
    codes = values.view(np.uint8)
    if name == "e2m1":
        return torch.from_numpy(codes[:, ::2] | codes[:, 1::2] << 4), values.astype(np.float64)
    dtype = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[name]
    return torch.from_numpy(codes).view(dtype), values.astype(np.float64)


def factors(rows: int, count: int, block: int, seed: int) -> tuple[torch.Tensor, np.ndarray]:
    """Scale factors: powers of two for blocks of 32, e4m3 for blocks of 16."""
    numbers = np.random.default_rng(seed).integers(-2, 3, (rows, count))
    if block == 32:
        return torch.from_numpy((numbers + 127).astype(np.uint8)), 2.0**numbers
    values = (numbers + 4) / 2
    codes = values.astype(TYPES["e4m3"]).view(np.uint8)
    return torch.from_numpy(codes).view(torch.float8_e4m3fn), values


CASES = [
    ("e4m3", "e4m3", 128, 32, "mxf8f6f4"), ("e5m2", "e4m3", 256, 32, "mxf8f6f4"),
    ("e2m1", "e4m3", 128, 32, "mxf8f6f4"), ("e2m1", "e2m1", 128, 32, "mxf4"),
    ("e2m1", "e2m1", 64, 16, "mxf4nvf4"),
]  # fmt: skip


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
@pytest.mark.parametrize(("a_type", "b_type", "n", "block", "kind"), CASES)
def test_scaled_dot(a_type: str, b_type: str, n: int, block: int, kind: str, schedule: str) -> None:
    m, k = 128, 128
    a, a_values = operand(m, k, a_type, 1)
    b, b_values = operand(n, k, b_type, 2)
    a_scale, a_factors = factors(m, k // block, block, 3)
    b_scale, b_factors = factors(n, k // block, block, 4)
    c = torch.zeros(m, n)
    with triton_ext.emulate("sm_100", schedule=schedule, seed=3):
        compiled = scaled_dot[(1,)](
            a, b, a_scale, b_scale, c, m, n, k, a_type, b_type, a.shape[1], b.shape[1], block
        )
    assert f"tcgen05.mma.cta_group::1.kind::{kind}.block_scale" in compiled.asm["ptx"]
    a_values = a_values * np.repeat(a_factors, block, axis=1)
    b_values = b_values * np.repeat(b_factors, block, axis=1)
    assert (c.numpy() == a_values @ b_values.T).all()
