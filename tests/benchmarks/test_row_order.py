"""The layer of experts that is timed, and the measure of how far tokens agree, without a GPU."""

from __future__ import annotations

import sys

import pytest
from sites import ROOT

torch = pytest.importorskip("torch")
pytest.importorskip("triton", minversion="3.9")
sys.path.insert(0, str(ROOT))  # `benchmarks` is not installed

import triton_ext  # noqa: E402
from benchmarks import row_order  # noqa: E402
from benchmarks.experts_models import agreement, in_fp32  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_binaries", "shallow", "poisoned_memory")


def test_all_sides_make_the_layer():
    generator = torch.Generator().manual_seed(0)
    new = lambda *shape: torch.randn(shape, generator=generator).bfloat16()  # noqa: E731
    gate_up, down = new(3, 80, 64) / 8, new(3, 64, 40) / 6
    chosen = torch.rand(12, 3, generator=generator).topk(2).indices
    weights = torch.rand(12, 2, generator=generator)
    layer = row_order.routed(new(12, 64), gate_up.mT, down.mT, chosen, weights)
    expected = row_order.in_float64(layer, torch.arange(12))
    for token in range(12):  # by the router's own tables, not by the sorted ones
        exact = torch.zeros(64, dtype=torch.float64)
        for expert, weight in zip(chosen[token], weights[token], strict=True):
            gate, up = (gate_up[expert].double() @ layer.x[token].double()).chunk(2)
            inner = torch.nn.functional.silu(gate) * up
            exact += weight.double() * (down[expert].double() @ inner)
        torch.testing.assert_close(expected[token], exact)
    with triton_ext.emulate("sm_90"):
        made = [row_order.in_three_launches(layer), row_order.with_copies(layer)]
    for found in (*made, row_order.by_torch(layer)):
        assert (found.double() - expected).norm() < 0.01 * expected.norm()


def test_agreement():
    """One of four tokens differs, where the reference is of two minds; another one, where not."""
    reference = torch.tensor([[[0.0, 1.0, 5.0], [4.0, 0.0, 3.99], [9.0, 0, 0], [0, 9.0, 0]]])
    found = reference.clone()
    assert agreement(found, reference) == (1, 1)
    found[0, 1] = torch.tensor([3.99, 0.0, 4.0])
    assert agreement(found, reference) == (0.75, 1)
    found[0, 2] = torch.tensor([0.0, 9.0, 0.0])
    assert agreement(found, reference) == (0.5, pytest.approx(2 / 3))


def test_a_reference_has_the_values_of_weights_in_fp8():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(130, 200).to(torch.float8_e4m3fn), False)
            scales = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
            self.weight_scale_inv = torch.nn.Parameter(scales, False)
            self.bias = None

    model = torch.nn.Sequential(Scaled(), torch.nn.Linear(130, 3).bfloat16())
    exact = in_fp32(model)
    assert all(each.dtype == torch.float32 for each in exact.parameters())
    weight = exact[0].weight
    assert [weight[row, column].item() for row in (0, 129) for column in (127, 128)] == [1, 2, 3, 4]
    assert model[0].weight.dtype == torch.float8_e4m3fn, "the model stays as it is"
