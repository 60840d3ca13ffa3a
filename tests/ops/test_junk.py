"""What is no tensor, no number or no name of an activation; and tensors that are negated views."""

from __future__ import annotations

import random

import pytest
from mutations import junk, some

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import triton_ext  # noqa: E402
from triton_ext import LayoutError, UnsupportedDeviceError  # noqa: E402
from triton_ext.kernels.spec import kernel_spec  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def gpu():
    with triton_ext.emulate("sm_90") as gpu:
        yield gpu


A = torch.arange(-32, 32).reshape(8, 8).half()
B = A.T.contiguous()
ROW, ONE = torch.arange(8).half(), torch.ones(1)
CALLS = {
    "matmul": {"a": A, "b": B, "bias": ROW, "activation": "relu", "residual": A, "beta": 2,
               "out": None, "out_dtype": None, "config": None, "fallback": None},
    "linear": {"input": A, "weight": B, "bias": ROW, "activation": "silu", "out_dtype": None,
               "fallback": None},
    "addmm": {"input": A, "a": A, "b": B, "beta": 1, "alpha": 1, "out": None, "fallback": None},
    "bmm": {"a": A[None], "b": B[None], "out": None, "out_dtype": None, "fallback": None},
    "scaled_mm": {"a": A, "b": B, "scale_a": ONE, "scale_b": ONE, "bias": ROW,
                  "out_dtype": torch.float16, "fallback": None},
}  # fmt: skip
TENSORS = [A[0], A[None], ROW, A.float(), A.bool(), A.cfloat(), A.to_sparse(), A.to("meta"), A[:0],
           torch.tensor(2.0), torch.empty(0), A.requires_grad_(False), [A], {"a": A}, "relu",
           ["relu"], torch.float16, torch.int64, "torch", kernel_spec(90, "fp16"), 0.5, "x", b"x",
           object(), lambda: 0, range(3)]  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_arguments_of_any_type(name):
    generator = random.Random(name)
    function, legal = getattr(triton_ext, name), CALLS[name]
    made = refused = 0
    for _ in range(some(30)):
        changed = generator.choice(list(legal))
        value = generator.choice(TENSORS) if generator.random() < 0.7 else junk(generator)
        if isinstance(value, torch.Tensor) and changed == "out":
            value = value.clone()
        try:
            made += isinstance(function(**{**legal, changed: value}), torch.Tensor)
        except (LayoutError, UnsupportedDeviceError):
            refused += 1
    assert made
    assert refused > some(8)


NEGATED = torch._neg_view


@pytest.mark.parametrize(
    ("which", "requires_grad"),
    [
        (which, requires_grad)
        for which in (("a",), ("b",), ("bias",), ("residual",), ("a", "bias"), ("out",))
        for requires_grad in (False, True)
        if which != ("out",) or not requires_grad  # no gradient flows into it
    ],
)
def test_negated_views(which, requires_grad):
    """Whichever argument is a view with the negative bit, the product is that of its values."""
    given = {"a": A, "b": B / 8, "bias": ROW, "residual": A.T, "out": torch.empty(8, 8).half()}
    if which != ("out",):
        del given["out"]
    for name in which:
        given[name] = NEGATED(given[name].clone())
    copies = {name: tensor.resolve_neg().clone() for name, tensor in given.items()}
    if requires_grad:
        given["a"] = given["a"].detach().requires_grad_()
    out = triton_ext.matmul(**given, activation="relu" if not requires_grad else None)
    expected = copies["a"].float() @ copies["b"].float() + copies["bias"] + copies["residual"]
    if not requires_grad:
        expected = expected.relu()
    torch.testing.assert_close(out.float(), expected, rtol=1e-3, atol=1e-3)
    if requires_grad:
        out.backward(NEGATED(torch.ones(8, 8).half()))
        gradient = -torch.ones(8, 8) @ copies["b"].float().T
        torch.testing.assert_close(given["a"].grad.float(), gradient, rtol=1e-3, atol=1e-3)


def test_other_functions_of_negated_views():
    negated = NEGATED(A)
    with torch.no_grad():
        expected = (-(A.float() @ B.float())).half()
        assert torch.equal(triton_ext.linear(negated, A), expected)
        assert torch.equal(triton_ext.bmm(negated[None], B[None])[0], expected)
        assert torch.equal(triton_ext.addmm(negated, A, B), (-A.float() - expected.float()).half())
        assert torch.equal(triton_ext.scaled_mm(negated, B, ONE, ONE, out_dtype=A.dtype), expected)
        minus = torch.complex(torch.zeros(1), ONE).conj().imag  # -1, by the bit alone
        assert minus.is_neg()
        assert torch.equal(triton_ext.scaled_mm(A, B, minus, ONE, out_dtype=A.dtype), expected)
        config = kernel_spec(90, "fp16", block_m=64, block_n=16, block_k=16)
        assert torch.equal(triton_ext.matmul(negated, A.T, config=config), expected)
        with triton_ext.drop_in():
            assert torch.equal(negated @ B, expected)
            assert torch.equal(torch.addmm(negated, A, B), triton_ext.addmm(-A, A, B))
