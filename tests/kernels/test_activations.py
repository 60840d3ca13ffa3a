"""What is applied to a tile after its product, on the emulated GPU, against float64."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("triton")
torch = pytest.importorskip("torch")

from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402

import triton_ext  # noqa: E402
from triton_ext.kernels.device.activations import activated  # noqa: E402


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


NEAR, FAR = torch.linspace(-4, 4, 2048), torch.linspace(-13, -4, 2048)


@pytest.mark.parametrize(("bits", "allowed"), [(32, 2e-6), (16, 4e-5)])
def test_gelu(bits, allowed):
    error = on_the_emulated_gpu(NEAR, "gelu", bits).double() / gelu(NEAR) - 1
    assert error.abs().max() < allowed


def test_gelu_is_exact_in_its_tail():
    error = on_the_emulated_gpu(FAR, "gelu").double() / gelu(FAR) - 1
    assert error.abs().max() < 3e-5


def test_what_is_rounded_to_16_bits_is_close_to_gelu_in_its_tail():
    x = torch.cat([FAR, torch.linspace(4, 200, 1024), torch.linspace(-200, -13, 1024)])
    error = on_the_emulated_gpu(x, "gelu", 16).double() - gelu(x)
    assert error[:2048].abs().max() < 4e-9
    assert (error / x)[2048:].abs().max() < 1e-7  # as exact as x is


def test_silu():
    x = torch.linspace(-20, 20, 4096)
    error = (on_the_emulated_gpu(x, "silu") / torch.nn.functional.silu(x.double()) - 1).abs()
    assert error.max() < 3e-6


def gelu_tanh(x):
    return torch.nn.functional.gelu(x.double(), approximate="tanh")


def test_gelu_by_the_tangent():
    error = on_the_emulated_gpu(NEAR, "gelu_tanh").double() / gelu_tanh(NEAR) - 1
    assert error.abs().max() < 5e-6
    assert (on_the_emulated_gpu(FAR, "gelu_tanh").double() - gelu_tanh(FAR)).abs().max() < 1e-9


SPECIAL = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 3e38, -3e38, 1e-30] * 64)


@pytest.mark.parametrize(
    ("activation", "expected"),
    # (gelu of -infinity is NaN by its formula; torch's of infinity is, too, on some CPUs)
    [
        ("relu", torch.relu(SPECIAL)),
        ("gelu", torch.where(-math.inf == SPECIAL, math.nan, gelu(SPECIAL).float())),
        ("gelu_tanh", gelu_tanh(SPECIAL).float()),
        ("quick_gelu", SPECIAL * torch.sigmoid(1.702 * SPECIAL)),
        ("silu", torch.nn.functional.silu(SPECIAL)),
    ],
)
@pytest.mark.parametrize("bits", [16, 32])
def test_special_values(activation, expected, bits):
    found = on_the_emulated_gpu(SPECIAL, activation, bits)
    torch.testing.assert_close(found, expected, equal_nan=True)
