"""Gated activations on a Hopper GPU: against float64; gradients, the compiler, graphs, groups."""

from __future__ import annotations

import functools
import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", minversion="3.9")

from torch.nn import functional  # noqa: E402

import triton_ext  # noqa: E402

pytestmark = pytest.mark.sm90
FUNCTIONS = {
    "swiglu": functional.silu,
    "geglu": functional.gelu,
    "geglu_tanh": functools.partial(functional.gelu, approximate="tanh"),
    "reglu": torch.relu,
}


def gated(sums, activation):
    name, _, interleaved = activation.partition("_")
    halves = (sums[..., ::2], sums[..., 1::2]) if interleaved else sums.chunk(2, -1)
    return FUNCTIONS[name](halves[0]) * halves[1]


def close(found, expected, bound=6e-3):
    return (found.double() - expected.double()).norm() <= bound * expected.double().norm()


def sizes(seed, count):
    drawn = random.Random(seed)
    return [
        (drawn.choice([1, 9, 64, 700]) * drawn.randint(1, 5), drawn.randint(1, 1500),
         drawn.randint(1, 3000)) for _ in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize(("m", "f", "k"), [*sizes(3, 8), (4096, 4096, 2048), (1, 14336, 4096)])
@pytest.mark.parametrize("activation", ["swiglu", "geglu_interleaved"])
def test_any_size(m, f, k, activation):
    torch.manual_seed(0)
    x = torch.randn(m, k, device="cuda").bfloat16()
    w = (torch.randn(2 * f, k, device="cuda") * k**-0.5).bfloat16()
    bias = torch.randn(2 * f, device="cuda").bfloat16()
    made = triton_ext.linear(x, w, bias, activation=activation)
    assert close(made, gated(x.double() @ w.double().t() + bias.double(), activation))


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients(compiled):
    torch.manual_seed(0)
    x = torch.randn(300, 264, device="cuda").bfloat16().requires_grad_()
    w = (torch.randn(272, 264, device="cuda") / 16).bfloat16().requires_grad_()
    linear = torch.compile(triton_ext.linear) if compiled else triton_ext.linear
    made = linear(x, w, activation="swiglu")
    grad = torch.randn_like(made)
    made.backward(grad)
    wide = [each.detach().double().requires_grad_() for each in (x, w)]
    expected = gated(wide[0] @ wide[1].t(), "swiglu")
    expected.backward(grad.double())
    assert close(made, expected)
    assert all(close(each.grad, other.grad, 1e-2) for each, other in zip((x, w), wide, strict=True))


@pytest.mark.parametrize(("m", "f", "k"), [(9, 256, 512), (700, 1024, 1111)])
def test_scales_of_blocks(m, f, k):
    torch.manual_seed(0)
    x, w = torch.randn(m, k, device="cuda"), torch.randn(2 * f, k, device="cuda") * k**-0.5
    a, scale_a = triton_ext.quantize_1x128(x)
    b, scale_b = triton_ext.quantize_128x128(w)
    made = triton_ext.scaled_mm(a, b.t(), scale_a, scale_b.t(), activation="swiglu")
    wide = []
    for each, scales, rows in ((a, scale_a, 1), (b, scale_b, 128)):
        factors = scales.repeat_interleave(rows, 0)[: len(each)].repeat_interleave(128, 1)
        wide.append(each.double() * factors[:, :k])
    assert close(made, gated(wide[0] @ wide[1].t(), "swiglu"))


def test_groups_in_a_graph():
    torch.manual_seed(0)
    x = torch.randn(900, 256, device="cuda").bfloat16()
    w = (torch.randn(6, 400, 256, device="cuda") / 16).bfloat16()
    offs = torch.tensor([100, 100, 105, 400, 640, 900], device="cuda").int()
    triton_ext.grouped_mm(x, w.mT, offs, activation="swiglu")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = triton_ext.grouped_mm(x, w.mT, offs, activation="swiglu")
    offs.copy_(torch.tensor([1, 300, 300, 428, 430, 800]))
    graph.replay()
    expected = torch.zeros(900, 400, dtype=torch.float64, device="cuda")
    for g, (first, end) in enumerate(zip([0, *offs.tolist()], offs.tolist(), strict=False)):
        expected[first:end] = x[first:end].double() @ w[g].double().t()
    assert close(made, gated(expected, "swiglu"))
