"""Gated activations on the emulated GPUs: against float64, exact where relu is the gate's."""

from __future__ import annotations

import functools

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from mutations import some  # noqa: E402
from torch.nn import functional  # noqa: E402

import triton_ext  # noqa: E402
from triton_ext import LayoutError  # noqa: E402
from triton_ext.kernels.choice import candidates  # noqa: E402
from triton_ext.kernels.spec import kernel_spec  # noqa: E402
from triton_ext.ops.call import Call  # noqa: E402
from triton_ext.ops.device import require_gpu  # noqa: E402
from triton_ext.ops.epilogue import Epilogue, epilogue_of  # noqa: E402
from triton_ext.ops.plans import find  # noqa: E402
from triton_ext.ops.products import product  # noqa: E402

needs_new = pytest.mark.skipif(not candidates.is_new(), reason="needs Triton 3.9")
pytestmark = [pytest.mark.usefixtures("no_binaries", "shallow", "poisoned_memory"), needs_new]
FUNCTIONS = {
    "swiglu": functional.silu,
    "geglu": functional.gelu,
    "geglu_tanh": functools.partial(functional.gelu, approximate="tanh"),
    "reglu": torch.relu,
}
EVERY = [f"{name}{order}" for name in (*FUNCTIONS, "swigluoai") for order in ("", "_interleaved")]
SCHEDULES = ("eager", "lazy", "random")


def integers(generator, *shape, dtype=torch.bfloat16):
    return torch.randint(-3, 4, shape, generator=generator).float().to(dtype)


def gated(sums, activation):
    """By definition, of (..., 2 F)."""
    name, _, interleaved = activation.partition("_")
    halves = (sums[..., ::2], sums[..., 1::2]) if interleaved else sums.chunk(2, -1)
    if name == "swigluoai":  # GPT-OSS
        gate, up = halves[0].clamp(max=7), halves[1].clamp(-7, 7)
        return gate * torch.sigmoid(1.702 * gate) * (up + 1)
    return FUNCTIONS[name](halves[0]) * halves[1]


def close(found, expected, bound=4e-3):
    return (found.double() - expected).norm() <= bound * expected.norm()


# A tile, and how B lies in memory.
TILES = [
    (90, {"consumers": 2, "block_n": 64, "c_parts": 4, "c_buffers": 2}, "K"),
    (90, {"consumers": 2, "pingpong": True, "block_m": 64, "block_n": 128, "c_parts": 2}, "MN"),
    (90, {"consumers": 1, "block_m": 64, "block_n": 16, "c_parts": 2, "loaded_rows": 48}, "K"),
    (90, {"consumers": 3, "block_m": 192, "block_n": 64, "c_parts": 2, "cluster_m": 2}, "K"),
    (100, {"consumers": 1, "block_n": 128, "c_parts": 4, "cluster_m": 2}, "MN"),
    (100, {"consumers": 1, "block_n": 128, "c_parts": 8, "cluster_m": 2, "cta_group": 2}, "K"),
    (100, {"consumers": 1, "block_n": 32, "c_parts": 2, "cluster_launch_control": True}, "K"),
]
# The same of gate and up in turn.
IN_TURN = [
    (90, {"consumers": 2, "block_n": 64, "c_parts": 4, "c_buffers": 2, "block_k": 128}, "K"),
    (90, {"consumers": 2, "pingpong": True, "block_m": 64, "block_n": 128, "c_parts": 2}, "MN"),
    (90, {"consumers": 3, "block_m": 192, "block_n": 64, "c_parts": 2, "cluster_m": 2}, "MN"),
    (100, {"consumers": 1, "block_n": 128, "c_parts": 4, "cluster_m": 2, "cta_group": 2}, "MN"),
    (100, {"consumers": 1, "block_n": 32, "c_parts": 2, "cluster_launch_control": True}, "K"),
]


@pytest.mark.parametrize("number", range(len(TILES) + len(IN_TURN)))
def test_tiles(number):
    """Sizes that are no multiples of a tile, with scales and a bias, exact: relu of integers."""
    arch, tile, major = [*TILES, *IN_TURN][number]
    activation = "reglu" if number < len(TILES) else "reglu_interleaved"
    m, f, k = 48 if tile.get("loaded_rows") else 200, 40, 136
    generator = torch.Generator().manual_seed(number)
    a, w = integers(generator, m, k), integers(generator, 2 * f, k)
    b = w.t() if major == "K" else w.t().contiguous()
    bias = integers(generator, 2 * f, dtype=torch.float32)
    config = kernel_spec(arch, "bf16", "K", major, out_type="fp32", stages=2, **tile)
    epilogue = epilogue_of(bias, activation, alpha=0.5)
    call = Call(a, b, epilogue, torch.float32, config=config)
    with triton_ext.emulate(f"sm_{arch}", schedule=SCHEDULES[number % 3]):
        made = product(call)
    assert torch.equal(made.double(), gated(0.5 * a.double() @ w.double().t() + bias, activation))


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
@settings(max_examples=some(3))
@given(
    st.sampled_from(EVERY),
    st.sampled_from([1, 9, 70]), st.sampled_from([1, 7, 8, 33, 64, 100]),
    st.sampled_from([1, 64, 100]), st.booleans(), st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_any_size_and_memory(arch, activation, m, f, k, with_bias, turned, seed):
    generator = torch.Generator().manual_seed(seed)
    x, w = integers(generator, m, k), integers(generator, 2 * f, k) / 8
    w = w.t().contiguous().t() if turned else w
    bias = integers(generator, 2 * f) if with_bias else None
    with triton_ext.emulate(arch):
        made = triton_ext.linear(x, w, bias, activation=activation)
    assert made.shape == (m, f)
    sums = x.double() @ w.double().t() + (0 if bias is None else bias.double())
    assert close(made, gated(sums, activation))


def test_shapes_of_torch():
    generator = torch.Generator().manual_seed(0)
    x, w = integers(generator, 2, 3, 24), integers(generator, 24, 32) / 8
    expected = gated(x.double() @ w.double(), "swiglu")
    with triton_ext.emulate("sm_90"):
        out = torch.empty(2, 3, 16, dtype=torch.bfloat16)
        assert triton_ext.matmul(x, w, activation="swiglu", out=out) is out
        assert close(out, expected)
        assert close(triton_ext.matmul(x[0, 0], w, activation="swiglu"), expected[0, 0])
        batch = triton_ext.matmul(x, torch.stack([w, w]), activation="swiglu")
        assert close(batch, expected)
        nothing = triton_ext.matmul(x[..., :0], w[:0], activation="swiglu")
        assert torch.equal(nothing, torch.zeros(2, 3, 16, dtype=torch.bfloat16))
    left = triton_ext.matmul(x.double(), w.double(), activation="swiglu", fallback="torch")
    assert torch.equal(left, expected)


@pytest.mark.parametrize("activation", ["swiglu", "geglu_interleaved", "swigluoai_interleaved"])
def test_gradients(activation):
    """As by torch in float64; GPT-OSS's activation with sums on both sides of its limits."""
    generator = torch.Generator().manual_seed(0)
    divisor = 2 if "oai" in activation else 8
    tensors = [integers(generator, 20, 40), integers(generator, 48, 40) / divisor]
    tensors += [integers(generator, 48)] if "interleaved" in activation else []
    ours = [each.clone().requires_grad_() for each in tensors]
    wide = [each.double().requires_grad_() for each in tensors]
    expected = gated(functional.linear(*wide), activation)
    grad = integers(generator, 20, 24)
    with triton_ext.emulate("sm_90"):
        for _ in range(2):  # the second time by the plan that was kept
            made = triton_ext.linear(*ours, activation=activation)
            assert close(made, expected)
            found = torch.autograd.grad(made, ours, grad)
    for own, other in zip(found, torch.autograd.grad(expected, wide, grad.double()), strict=True):
        assert close(own, other, 1e-2)


def test_gradients_of_gradients():
    generator = torch.Generator().manual_seed(0)
    tensors = [integers(generator, 8, 16) / 4, integers(generator, 32, 16) / 8]
    found = []
    with triton_ext.emulate("sm_90"):
        for kind in (torch.bfloat16, torch.float64):
            x, w = (each.to(kind).requires_grad_() for each in tensors)
            made = (
                triton_ext.linear(x, w, activation="swiglu")
                if kind == torch.bfloat16
                else gated(x @ w.t(), "swiglu")
            )
            (first,) = torch.autograd.grad(made.sum(), x, create_graph=True)
            found.append(torch.autograd.grad(first.square().sum(), (x, w)))
    for own, other in zip(*found, strict=True):
        assert close(own, other, 2e-2)


def test_the_operator_has_a_gradient():
    """What the compiler traces: fake tensors, and a backward of the same operators."""
    generator = torch.Generator().manual_seed(0)
    x, b = integers(generator, 20, 40), integers(generator, 40, 48) / 8
    with torch._subclasses.FakeTensorMode() as mode:
        fake = [mode.from_tensor(each) for each in (x, b)]
        assert torch.ops.triton_ext.mm(*fake, activation="swiglu").shape == (20, 24)
    ours, wide = x.clone().requires_grad_(), x.double().requires_grad_()
    grad = integers(generator, 20, 24)
    with triton_ext.emulate("sm_90"):
        torch.ops.triton_ext.mm(ours, b, activation="swiglu").backward(grad)
    gated(wide @ b.double(), "swiglu").backward(grad.double())
    assert close(ours.grad, wide.grad, 1e-2)


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_groups(arch):
    """Experts' first products: empty and short groups, rows behind them; with biases."""
    generator = torch.Generator().manual_seed(0)
    offs = torch.tensor([5, 5, 141, 150]).int()
    x, w = integers(generator, 160, 72), integers(generator, 4, 48, 72)
    x[150:] = torch.nan
    sums = torch.zeros(160, 48, dtype=torch.float64)
    for g, (first, end) in enumerate(zip([0, *offs.tolist()], offs.tolist(), strict=False)):
        sums[first:end] = x[first:end].double() @ w[g].double().t()
    with triton_ext.emulate(arch):
        made = triton_ext.grouped_mm(x, w.mT, offs, activation="reglu", out_dtype=torch.float32)
        assert torch.equal(made.double(), gated(sums, "reglu"))
        bias, turned = integers(generator, 4, 48), w.mT.contiguous()
        for g, (first, end) in enumerate(zip([0, *offs.tolist()], offs.tolist(), strict=False)):
            sums[first:end] += bias[g]
        for b in (turned, w.mT):
            activation = "swigluoai_interleaved"
            made = triton_ext.grouped_mm(x, b, offs, bias=bias, activation=activation)
            assert close(made, gated(sums, activation))
            call = Call(x, b, Epilogue(bias, activation, offs=offs))
            assert not find(call, require_gpu(x.device)).copies


def scaled(generator, rows, k, together):
    """fp8 (rows, K), its scales of blocks, and its values."""
    stored = integers(generator, rows, k, dtype=torch.float8_e4m3fn)
    scales = 2.0 ** torch.randint(-2, 3, (-(-rows // together), -(-k // 128)), generator=generator)
    each = scales.repeat_interleave(together, 0)[:rows].repeat_interleave(128, 1)[:, :k]
    return stored, scales, stored.double() * each.double()


@pytest.mark.parametrize(("arch", "together"), [("sm_90", 128), ("sm_90", 1), ("sm_100", 128)])
def test_scales_of_blocks(arch, together):
    """The gate's columns have others than up's; of one product, and of groups."""
    generator = torch.Generator().manual_seed(together)
    a, scale_a, a_values = scaled(generator, 40, 200, 1)
    of_b = [scaled(generator, 256, 200, together) for _ in range(2)]
    b, scale_b, b_values = (torch.stack(each) for each in zip(*of_b, strict=True))
    offs = torch.tensor([9, 40]).int()
    wide = {"activation": "reglu", "out_dtype": torch.float32}
    with triton_ext.emulate(arch):
        one = triton_ext.scaled_mm(a, b[0].t(), scale_a, scale_b[0].t(), **wide)
        made = triton_ext.scaled_grouped_mm(a, b.mT, scale_a, scale_b.mT, offs, **wide)
    assert close(one, gated(a_values @ b_values[0].t(), "reglu"), 1e-6)
    sums = [a_values[:9] @ b_values[0].t(), a_values[9:] @ b_values[1].t()]
    assert close(made, gated(torch.cat(sums), "reglu"), 1e-6)


def test_scales_of_rows():
    generator = torch.Generator().manual_seed(0)
    a, b = (integers(generator, rows, 64, dtype=torch.float8_e4m3fn) for rows in (40, 48))
    scale_a, scale_b = torch.rand(40, 1, generator=generator), torch.rand(1, 48) - 0.5
    sums = (a.double() * scale_a) @ (b.double().t() * scale_b)
    with triton_ext.emulate("sm_90"):
        made = triton_ext.scaled_mm(a, b.t(), scale_a, scale_b, activation="geglu_interleaved")
    assert close(made, gated(sums, "geglu_interleaved"))


def test_gradients_of_groups():
    generator = torch.Generator().manual_seed(0)
    offs = torch.tensor([5, 5, 30]).int()
    x, w = integers(generator, 40, 24), integers(generator, 3, 32, 24) / 8
    ours = [each.clone().requires_grad_() for each in (x, w)]
    wide = [each.double().requires_grad_() for each in (x, w)]
    behind = torch.zeros(10, 32, dtype=torch.float64)
    rows = [wide[0][:5] @ wide[1][0].t(), wide[0][5:30] @ wide[1][2].t(), behind]
    grad = integers(generator, 40, 16)
    expected = torch.autograd.grad(gated(torch.cat(rows), "swiglu"), wide, grad.double())
    with triton_ext.emulate("sm_90"):
        made = triton_ext.grouped_mm(ours[0], ours[1].mT, offs, activation="swiglu")
        found = torch.autograd.grad(made, ours, grad)
    assert all(close(own, other, 1e-2) for own, other in zip(found, expected, strict=True))


def test_rows_that_count():
    generator = torch.Generator().manual_seed(0)
    a, b = integers(generator, 3, 12, 64), integers(generator, 3, 64, 48)
    counts = torch.tensor([3, 0, 12]).int()
    with triton_ext.emulate("sm_90"):
        made = triton_ext.grouped_mm(a, b, counts=counts, activation="reglu")
    expected = gated(torch.bmm(a.double(), b.double()), "reglu").bfloat16()
    for group, count in enumerate(counts):
        assert torch.equal(made[group, :count], expected[group, :count])


def test_what_is_not_legal():
    x, w = torch.zeros(8, 16).bfloat16(), torch.zeros(32, 16).bfloat16()
    offs = torch.tensor([4, 8]).int()
    with triton_ext.emulate("sm_90"):
        with pytest.raises(LayoutError, match="even number of columns"):
            triton_ext.linear(x, w[:31], activation="swiglu")
        with pytest.raises(LayoutError, match="even number of columns"):
            triton_ext.matmul(x, w[0], activation="swiglu")  # a vector has none
        with pytest.raises(LayoutError, match="residual"):
            triton_ext.matmul(x, w.t(), activation="swiglu", residual=torch.zeros(8, 16).bfloat16())
        with pytest.raises(LayoutError, match="activation"):
            triton_ext.grouped_mm(x, w.t().expand(2, 16, 32), offs, activation="silu")
        for bias in (torch.zeros(32).bfloat16(), torch.zeros(2, 32), torch.zeros(2, 31).bfloat16()):
            with pytest.raises(LayoutError, match=r"bias.*must be \(2, 32\) of torch.bfloat16"):
                triton_ext.grouped_mm(x, w.t().expand(2, 16, 32), offs, bias=bias)
        with pytest.raises(LayoutError, match=r"bias.*unless b is \(G, K, N\)"):
            triton_ext.grouped_mm(x, w.t()[:16], offs, bias=torch.zeros(32).bfloat16())
        with pytest.raises(LayoutError, match="activation"):  # the columns are in groups
            triton_ext.grouped_mm(x.expand(2, 8, 16), w.t()[:, :8], offs, activation="swiglu")
        scales = torch.ones(8, 2), torch.ones(2, 1)
        a, b = (torch.zeros(rows, 256).to(torch.float8_e4m3fn) for rows in (8, 128))
        with pytest.raises(LayoutError, match="multiple of 256"):
            triton_ext.scaled_mm(a, b.t(), *scales, activation="swiglu")
    gated_tile = {"gated": True, "batched": True, "consumers": 2}
    for fields, argument in (
        ({"c_parts": 1}, "c_parts"),
        ({"c_parts": 2, "c_buffers": 2}, "c_buffers"),
        ({"c_parts": 6, "block_n": 96}, "units"),
        ({"c_parts": 2, "block_k": 128, "stages": 2}, "block_k"),
        ({"c_parts": 2, "block_n": 8}, "c_parts"),
        ({"c_parts": 2, "b_major": "MN", "block_n": 64, "b_swizzle": 128}, "shape"),
        ({"c_parts": 2, "split_k": 2}, "split_k"),
        ({"c_parts": 2, "residual": True}, "residual"),
    ):
        with pytest.raises(LayoutError, match=argument):
            kernel_spec(90, "bf16", **{**gated_tile, **fields})
