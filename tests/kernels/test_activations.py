"""What is applied to a tile after its product, on the emulated GPU, against float64."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("triton")
torch = pytest.importorskip("torch")

from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402

import triton_ext  # noqa: E402
from triton_ext.kernels.epilogue import activated  # noqa: E402


@gluon.jit
def apply(x, y, SIZE: gl.constexpr, ACTIVATION: gl.constexpr, BITS: gl.constexpr,
          LAYOUT: gl.constexpr):  # fmt: skip
    """One activation of SIZE elements."""
    indices = gl.arange(0, SIZE, LAYOUT)
    gl.store(y + indices, activated(gl.load(x + indices), ACTIVATION, BITS))


def on_the_emulated_gpu(x, activation, bits=32):
    y = torch.empty_like(x)
    layout = gl.BlockedLayout([4], [32], [4], [0])
    with triton_ext.emulate("sm_90"):
        apply[(1,)](x, y, x.numel(), activation, bits, layout, num_warps=4)
    return y


def gelu(x):
    values = [value / 2 * math.erfc(-value / math.sqrt(2)) for value in x.double().tolist()]
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(("bits", "near", "far"), [(32, 2e-6, 3e-5), (16, 4e-5, 7e-5)])
def test_gelu_is_exact_in_its_tail_too(bits, near, far):
    x = torch.cat([torch.linspace(-4, 4, 2048), torch.linspace(-13, -4, 2048)])
    found = on_the_emulated_gpu(x, "gelu", bits).double()
    expected = gelu(x)
    error = (found / expected - 1).abs()
    assert error[:2048].max() < near
    assert error.max() < far


def test_silu():
    x = torch.linspace(-20, 20, 4096)
    error = (on_the_emulated_gpu(x, "silu") / torch.nn.functional.silu(x.double()) - 1).abs()
    assert error.max() < 3e-6


SPECIAL = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 3e38, -3e38, 1e-30] * 64)


@pytest.mark.parametrize(
    ("activation", "expected"),
    # (torch's own gelu of infinity is NaN on a CPU)
    [
        ("relu", torch.relu(SPECIAL)),
        ("gelu", gelu(SPECIAL).float()),
        ("silu", torch.nn.functional.silu(SPECIAL)),
    ],
)
@pytest.mark.parametrize("bits", [16, 32])
def test_special_values(activation, expected, bits):
    found = on_the_emulated_gpu(SPECIAL, activation, bits)
    torch.testing.assert_close(found, expected, equal_nan=True)
