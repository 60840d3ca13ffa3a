"""`triton_ext.matmul` and its kin on the emulated GPU, and what they say without one."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys
import threading
import types
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import plan_launch  # noqa: E402
from covers import in_turn  # noqa: E402
from mutations import some  # noqa: E402
from ops_models import (  # noqa: E402
    MODELS,
    LanguageModel,
    difference_of_all,
    loss_and_gradients,
    relative_difference,
)
from sites import ALL  # noqa: E402

import triton_ext  # noqa: E402
from triton_ext import LayoutError, UnsupportedDeviceError  # noqa: E402
from triton_ext.kernels.choice import candidates  # noqa: E402
from triton_ext.kernels.spec import kernel_spec  # noqa: E402
from triton_ext.ops import checks, launches, overrides, planning, plans  # noqa: E402
from triton_ext.ops import types as ops_types  # noqa: E402
from triton_ext.ops.call import Call  # noqa: E402
from triton_ext.ops.device import Gpu, require_gpu  # noqa: E402
from triton_ext.ops.epilogue import NOTHING, Epilogue, finished  # noqa: E402
from triton_ext.ops.gates import FUNCTIONS  # noqa: E402
from triton_ext.ops.operands import (  # noqa: E402
    TmaView,
    aligned_empty,
    readable,
    readable_copy,
    scale_view,
)

pytestmark = [
    pytest.mark.usefixtures("shallow", "poisoned_memory"),
    # forward_ad's decompositions use torch.jit.script, which torch has deprecated
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),
]
UNIT_ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
TYPES = list(UNIT_ROUNDOFF)


@pytest.fixture(scope="module", autouse=True)
def gpu():
    with triton_ext.emulate("sm_90") as gpu:
        yield gpu


def assert_close(out, a, b):
    """Each element within the rounding of its type, and of an fp32 sum, of the exact one."""
    exact = torch.matmul(a.double(), b.double())
    assert out.shape == exact.shape
    assert out.dtype == a.dtype
    magnitude = torch.matmul(a.double().abs(), b.double().abs())
    bound = UNIT_ROUNDOFF[a.dtype] * exact.abs() + 2.0**-15 * magnitude + 1e-7
    assert ((out.double() - exact).abs() <= bound).all()


# ------------------------------------------------------------------------------- shapes


def shapes():
    """Operands' shapes under the rules of torch.matmul, sizes 0 and 1 among them."""
    size = st.sampled_from([0, 1, 1, 2, 3, 7, 8, 9, 16, 33, 70])
    small = st.sampled_from([0, 1, 1, 2, 3])

    @st.composite
    def draw(draw):
        m, n, k = draw(size), draw(size), draw(size)
        batch = draw(st.lists(small, max_size=2))
        ones = st.sampled_from([True, False])
        left = [1 if draw(ones) else each for each in batch][draw(st.integers(0, 2)) :]
        right = [1 if draw(ones) else each for each in batch][draw(st.integers(0, 2)) :]
        a = draw(st.sampled_from([(k,), (m, k), (*left, m, k)]))
        b = draw(st.sampled_from([(k,), (k, n), (*right, k, n)]))
        return a, b

    return draw()


def arranged(shape, dtype, how, generator):
    """A tensor of a shape, in memory arranged in some way; no two elements share memory."""
    values = torch.randn(shape, generator=generator).to(dtype)
    if how == "transposed" and len(shape) > 1:
        return values.mT.contiguous().mT
    if how == "steps":
        return values.repeat_interleave(2, dim=-1)[..., ::2]
    if how == "offset":
        return torch.cat([values.flatten()[:1], values.flatten()])[1:].view(shape)
    if how == "padded":
        wide = torch.cat([values, torch.full_like(values, torch.nan)], dim=-1)
        return wide[..., : shape[-1]]
    if how == "reversed dimensions":
        return (
            values.permute(*reversed(range(len(shape))))
            .contiguous()
            .permute(*reversed(range(len(shape))))
        )
    return values


HOW = st.sampled_from(["plain", "transposed", "steps", "offset", "padded", "reversed dimensions"])


@settings(max_examples=some(30))
@given(shapes(), st.sampled_from(TYPES), HOW, HOW, st.booleans(), st.integers(0, 99))
@example(((5, 0), (0, 7)), torch.float16, "plain", "plain", True, 0)
@example(((2, 0, 4), (4, 3)), torch.float16, "plain", "plain", False, 0)
@example(((2, 1, 9, 16), (3, 16, 8)), torch.bfloat16, "padded", "transposed", True, 0)
def test_random_problems(problem, dtype, how_a, how_b, with_out, seed):
    generator = torch.Generator().manual_seed(seed)
    a = arranged(problem[0], dtype, how_a, generator)
    b = arranged(problem[1], dtype, how_b, generator)
    if with_out:
        out = torch.full(torch.matmul(a.float(), b.float()).shape, torch.nan).to(dtype)
        assert triton_ext.matmul(a, b, out=out) is out
    else:
        out = triton_ext.matmul(a, b)
        assert out.is_contiguous()
    assert_close(out, a, b)


@pytest.mark.parametrize(
    ("shape_a", "shape_b"),
    [((4, 5), (4, 5)), ((5,), (4,)), ((2, 4, 5), (3, 5, 6)), ((2, 4, 5), (4, 6)), ((), (5,)),
     ((5,), (2, 4, 5)), ((0, 4), (3, 0))],
)  # fmt: skip
def test_shapes_that_torch_refuses(shape_a, shape_b):
    a, b = torch.ones(shape_a).half(), torch.ones(shape_b).half()
    with pytest.raises(RuntimeError):
        torch.matmul(a, b)
    with pytest.raises(LayoutError):
        triton_ext.matmul(a, b)


def test_one_kernel_where_one_is_enough(gpu):
    def launched(a, b):
        before = gpu.launches
        triton_ext.matmul(a, b)
        return gpu.launches - before

    weight = torch.ones((16, 24)).half()
    assert launched(torch.ones((2, 3, 8, 16)).half(), weight) == 1
    assert launched(torch.ones((3, 8, 16)).half(), weight.expand(3, 16, 24)) == 1
    batches = torch.ones((3, 8, 16)).half(), torch.ones((3, 16, 24)).half()
    assert launched(*batches) == 1
    assert launched(batches[0][0], batches[1]) == 1
    assert launched(batches[0].expand(2, 3, 8, 16), batches[1]) == 1
    assert launched(batches[0][:1].expand(3, 8, 16), weight.expand(3, 16, 24)) == 1


def blackwell_cases():
    """What is asked for of sm_100: each function, type, output, and operation in the kernel."""
    x, w, bias = (torch.randn(s).bfloat16() for s in ((9, 48), (48, 24), (24,)))
    product, y = x.double() @ w.double(), torch.randn(9, 24).bfloat16()
    yield lambda: triton_ext.matmul(x, w), product, 2.0**-8
    yield lambda: triton_ext.matmul(x.half(), w.half(), out_dtype=torch.float32), product, 1e-3
    gelu = torch.nn.functional.gelu(product + bias.double())
    yield lambda: triton_ext.linear(x, w.t(), bias, activation="gelu"), gelu, 2.0**-8
    total = exact_sum(y, x, w, 0.5, 2)
    yield lambda: triton_ext.addmm(y, x, w, beta=0.5, alpha=2), total, 2.0**-8
    in_place = y.clone()
    yield lambda: in_place.addmm_(x, w, beta=0.5, alpha=2), total, 2.0**-8  # drop_in
    stack = torch.randn(3, 9, 48).bfloat16()
    yield lambda: triton_ext.bmm(stack, w.expand(3, 48, 24)), stack.double() @ w.double(), 2.0**-8
    stacks = torch.randn(3, 48, 24).bfloat16()
    yield lambda: torch.bmm(stack, stacks), stack.double() @ stacks.double(), 2.0**-8
    for dtype in EIGHT_BITS:
        a, b = eight_bit_operands(dtype, 9, 24, 48)
        exact = a.double() @ b.double()
        yield lambda a=a, b=b: triton_ext.matmul(a, b), exact, 1e-6
    scale_a, scale_b = torch.rand(9, 1) + 1, torch.rand(1, 24) + 1
    scaled = exact * scale_a.double() * scale_b.double() + bias.double()
    yield lambda: triton_ext.scaled_mm(a, b, scale_a, scale_b, bias=bias), scaled, 2.0**-8
    yield from block_scaled_cases()
    wide = torch.randn(9, 48), torch.randn(48, 24)
    yield lambda: triton_ext.matmul(*wide), wide[0].double() @ wide[1].double(), 2.0**-9
    of_weight = x.double().t() @ y.double()
    yield lambda: gradient(lambda w: triton_ext.matmul(x, w), w, y), of_weight, 2.0**-8
    compiled = torch.compile(triton_ext.linear, fullgraph=True, backend="aot_eager")
    of_weight = y.double().t() @ x.double()
    yield lambda: gradient(lambda w: compiled(x, w), w.t(), y), of_weight, 2.0**-8


def block_scaled_cases():
    """mxfp4 with scales of the whole, K divided by none of the kernel's numbers; to fp8."""
    (a, blocks_a, x), (b, blocks_b, y) = (
        plan_launch.block_scaled("mxfp4", rows, 176, torch.Generator().manual_seed(rows))
        for rows in (9, 24)
    )
    a, b = a.view(torch.float4_e2m1fn_x2), b.view(torch.float4_e2m1fn_x2).t()
    scales = (blocks_a, torch.full((1,), 0.5)), (blocks_b, torch.full((1,), 2.0))
    bias = torch.randn(24).bfloat16()
    exact = (x @ y.t() + bias.double()).clamp(-448, 448).to(torch.float8_e4m3fn).double()
    compiled = torch.compile(triton_ext.scaled_mm, fullgraph=True, backend="aot_eager")
    for function in (triton_ext.scaled_mm, compiled):
        yield (
            lambda f=function: f(a, b, *scales, bias=bias, out_dtype=torch.float8_e4m3fn),
            exact,
            1e-9,
        )


def gradient(function, x, weights):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(function(x), x, weights)[0]


def test_every_kind_of_product_on_blackwell():
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    try:
        with triton_ext.emulate("sm_100", schedule="random") as gpu, triton_ext.drop_in():
            for number, (call, exact, bound) in enumerate(blackwell_cases()):
                before = gpu.launches
                assert relative_difference(call(), exact) < bound, number
                assert gpu.launches > before
    finally:
        torch.set_float32_matmul_precision("highest")


def test_integers_are_exact():
    a = torch.randint(-4, 5, (70, 129)).half()
    b = torch.randint(-4, 5, (129, 65)).half()
    assert torch.equal(triton_ext.matmul(a, b).double(), a.double() @ b.double())


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_nan_and_infinity(value):
    a, b = torch.ones((20, 40)).half(), torch.ones((40, 24)).half()
    a[3, 39] = value
    ours, exact = triton_ext.matmul(a, b), a.float() @ b.float()
    assert torch.equal(ours.isnan(), exact.isnan())
    assert torch.equal(ours.isposinf(), exact.isposinf())
    assert torch.equal(ours.isneginf(), exact.isneginf())


# ------------------------------------------------------------------------ other arguments


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "quick_gelu", "silu"])
@pytest.mark.parametrize("shape", [(24,), (8, 1), (8, 24), ()])
def test_bias_and_activation(activation, shape):
    a, b = torch.randn(8, 16).bfloat16(), torch.randn(16, 24).bfloat16()
    bias = torch.randn(shape).bfloat16()
    functional = torch.nn.functional
    expected = {
        None: lambda x: x,
        "relu": torch.relu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "quick_gelu": lambda x: x / (1 + torch.exp(-1.702 * x)),
        "silu": functional.silu,
    }[activation](a.double() @ b.double() + bias.double())
    out = triton_ext.matmul(a, b, bias=bias, activation=activation)
    assert relative_difference(out, expected) < 2.0**-7


@pytest.mark.parametrize("input_shape", [(16,), (5, 16), (2, 3, 16)])
@pytest.mark.parametrize("weight_shape", [(16,), (24, 16)])
def test_linear(input_shape, weight_shape):
    x, w = torch.randn(input_shape).half(), torch.randn(weight_shape).half()
    bias = torch.randn(weight_shape[:-1]).half()
    expected = x.double() @ w.double().t() + bias.double()
    for _ in range(2):
        out = triton_ext.linear(x, w, bias)
        assert out.shape == expected.shape
        assert torch.allclose(out.double(), expected, rtol=2e-3, atol=2e-2)
    assert_close(triton_ext.linear(x, w), x, w.t())


@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0, 1), (0.5, 2), (0, 3), (1, 0)])
def test_addmm(beta, alpha):
    a, b = torch.randn(9, 16).half(), torch.randn(16, 24).half()
    addend = torch.full((24,), torch.nan).half() if beta == 0 else torch.randn(24).half()
    exact = alpha * (a.double() @ b.double()) + (0 if beta == 0 else beta * addend.double())
    out = torch.empty(0).half()
    for result in (
        triton_ext.addmm(addend, a, b, beta=beta, alpha=alpha),
        triton_ext.addmm(addend, a, b, beta=beta, alpha=alpha, out=out),
    ):
        assert torch.allclose(result.double(), exact, rtol=4e-3, atol=2e-2)
    assert result is out


def exact_sum(addend, a, b, beta, alpha):
    return beta * addend.double() + alpha * (a.double() @ b.double())


@pytest.mark.parametrize(
    "shape", [(9, 24), (24,), (1, 24), (9, 1), (1,), ()], ids=lambda s: "x".join(map(str, s))
)
@pytest.mark.parametrize(("m", "n"), [(9, 24), (9, 13)])
def test_addmm_of_every_shape(shape, m, n, gpu):
    """One launch, whatever the input is; an output whose rows TMA can write, or not."""
    a, b = torch.randn(m, 16).bfloat16(), torch.randn(16, n).bfloat16()
    addend = torch.randn(tuple(n if size == 24 else size for size in shape)).bfloat16()
    before = gpu.launches
    found = triton_ext.addmm(addend, a, b, beta=0.5, alpha=-2)
    assert gpu.launches == before + 1
    assert relative_difference(found, exact_sum(addend, a, b, 0.5, -2)) < 2.0**-8


def test_the_input_of_addmm_may_lie_anywhere():
    a, b = torch.randn(9, 16).half(), torch.randn(16, 24).half()
    base = torch.randn(40, 60).half()
    for addend in (
        base[:9, :24], base[1:19:2, 8:32], base[:9, 3:27], base[:9, 1:49:2], base[:24, :9].T,
    ):  # fmt: skip
        exact = exact_sum(addend, a, b, 3, 1)
        assert relative_difference(triton_ext.addmm(addend, a, b, beta=3), exact) < 2.0**-10


@pytest.mark.parametrize("n", [24, 13])
def test_addmm_in_place(n):
    """The input is overwritten: the whole of it, a view of it, one that it overlaps."""
    a, b = torch.randn(16, 16).half(), torch.randn(16, n).half()
    base = torch.randn(40, 64).half()
    for addend, out in (
        (base[:16, :n], base[:16, :n]),
        (base[:16, :n], base[1:17, :n]),
        (base[0, :n], base[:16, :n]),
    ):
        exact = exact_sum(addend, a, b, 1.5, 0.5)
        version = out._version
        assert triton_ext.addmm(addend, a, b, beta=1.5, alpha=0.5, out=out) is out
        assert relative_difference(out, exact) < 2.0**-10
        assert out._version > version
    square = base[:16, :16]
    exact = exact_sum(square, square, square, 1, 1)
    triton_ext.addmm(square, square, square, out=square)
    assert relative_difference(square, exact) < 2.0**-10


def test_a_residual():
    a, b = torch.randn(9, 16).bfloat16(), torch.randn(16, 24).bfloat16()
    bias, residual = torch.randn(24).bfloat16(), torch.randn(9, 24).bfloat16()
    exact = a.double() @ b.double()
    for activation in ("relu", "gelu_tanh", None):
        found = triton_ext.matmul(
            a, b, bias=bias, residual=residual, beta=0.5, activation=activation
        )
        sum_of_all = exact + bias.double() + 0.5 * residual.double()
        if activation == "relu":
            sum_of_all = sum_of_all.relu()
        if activation == "gelu_tanh":
            sum_of_all = torch.nn.functional.gelu(sum_of_all, approximate="tanh")
        assert relative_difference(found, sum_of_all) < 2.0**-7
    stack = torch.randn(2, 3, 16).bfloat16()
    for x, y, z in (
        (stack, b, torch.randn(2, 3, 24)),
        (stack, b, torch.randn(3, 1)),
        (stack[:, 0], stack.mT, torch.randn(2, 2, 3)),
        (a[0], b, torch.randn(24)),
        (a, b[:, 0], torch.randn(9)),
    ):
        z = z.bfloat16()
        out = torch.empty(0).bfloat16()
        found = triton_ext.matmul(x, y, residual=z, out=out)
        assert found is out
        assert relative_difference(found, x.double() @ y.double() + z.double()) < 2.0**-7
    wide = triton_ext.matmul(a, b, residual=residual.float(), out_dtype=torch.float32)
    assert relative_difference(wide, exact + residual.double()) < 1e-6
    nan = torch.full((9, 24), torch.nan).bfloat16()
    assert torch.equal(triton_ext.matmul(a, b, residual=nan, beta=0), triton_ext.matmul(a, b))
    empty = triton_ext.matmul(a[:, :0], b[:0], residual=residual, beta=2)
    assert torch.equal(empty, 2 * residual)


def test_products_in_a_batch_share_operands_and_take_strides(gpu):
    base = torch.randn(5, 9, 4, 16).bfloat16()
    for a, b in (
        (base[:, :, 0], base[:, :, 1].mT),  # rows 64 elements apart
        (base.transpose(1, 2)[0], base[0].permute(1, 2, 0)[:, :, :5].contiguous()),
        (base[0].transpose(0, 1), base[1, :, 0].T.expand(4, 16, 9)),
        (base[0, :, 0].expand(4, 9, 16), base[1].permute(1, 2, 0)),
        (base[0, :4], base[1, :4].mT),
    ):
        before = gpu.launches
        out = triton_ext.matmul(a, b)
        assert gpu.launches == before + 1
        assert_close(out, a, b)
    with torch.no_grad():
        out = torch.full((4, 16, 32), torch.nan).bfloat16()[:, ::2, :24]
        a, b = torch.randn(4, 8, 16).bfloat16(), torch.randn(4, 16, 24).bfloat16()
        triton_ext.bmm(a, b, out=out)
        assert_close(out, a, b)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8], ids=str)
def test_batches_of_8_bit_types(dtype):
    a, b = torch.randn(3, 9, 32) * 3, torch.randn(3, 32, 16) * 3
    a, b = a.to(dtype), b.to(dtype)
    for other in (b, b.mT.contiguous().mT, b[:1].expand(3, 32, 16)):
        out = triton_ext.matmul(a, other, out_dtype=torch.float32)
        assert relative_difference(out, a.double() @ other.double()) < 2.0**-10


def test_bmm():
    a, b = torch.randn(3, 9, 16).half(), torch.randn(3, 16, 24).half()
    assert_close(triton_ext.bmm(a, b), a, b)
    out = torch.empty(3, 9, 24).half()
    assert triton_ext.bmm(a, b, out=out) is out
    assert_close(out, a, b)


@pytest.mark.parametrize("shape_a", [(), (1,), (9, 1)])
@pytest.mark.parametrize("shape_b", [(1, 1), (1, 24)])
def test_scaled_mm(shape_a, shape_b):
    a, b = torch.randn(9, 16).bfloat16(), torch.randn(16, 24).bfloat16()
    scale_a, scale_b = torch.rand(shape_a) + 1, torch.rand(shape_b) + 1
    bias = torch.randn(24).bfloat16()
    exact = (a.double() @ b.double()) * scale_a.double() * scale_b.double() + bias.double()
    out = triton_ext.scaled_mm(a, b, scale_a, scale_b, bias=bias, out_dtype=torch.float32)
    assert out.dtype == torch.float32
    assert relative_difference(out, exact) < 2.0**-8


EIGHT_BITS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8]
FP8_PAIRS = [
    pair
    for pair in itertools.product(EIGHT_BITS[:2], repeat=2)
    if pair[0] == pair[1] or candidates.is_new()
]


def eight_bit_operands(dtype, m, n, k):
    a, b = torch.randn(m, k) * 3, torch.randn(k, n) * 3
    return a.to(dtype), b.to(dtype)


@pytest.mark.parametrize("dtype", EIGHT_BITS, ids=str)
@pytest.mark.parametrize("b_k_major", [True, False])
def test_types_of_8_bits(dtype, b_k_major):
    a, b = eight_bit_operands(dtype, 40, 24, 72)
    b = b.t().contiguous().t() if b_k_major else b
    exact = a.double() @ b.double()
    out = triton_ext.matmul(a, b)
    assert out.dtype == (torch.int32 if dtype == torch.int8 else torch.float32)
    assert relative_difference(out, exact) < (1e-9 if dtype == torch.int8 else 2.0**-10)
    half = triton_ext.matmul(a, b, out_dtype=torch.bfloat16, activation="relu")
    assert relative_difference(half, exact.relu()) < 2.0**-8


@pytest.mark.parametrize("dtype", EIGHT_BITS, ids=str)
def test_scaled_mm_of_8_bit_types(dtype):
    a, b = eight_bit_operands(dtype, 16, 32, 48)
    scale_a, scale_b = torch.rand(16, 1) + 1, torch.rand(1, 32) + 1
    bias = torch.randn(32).bfloat16()
    exact = (a.double() @ b.double()) * scale_a.double() * scale_b.double() + bias.double()
    out = triton_ext.scaled_mm(a, b, scale_a, scale_b, bias=bias)
    assert out.dtype == torch.bfloat16
    assert relative_difference(out, exact) < 2.0**-8


def test_fast_accum_before_triton_3_9(monkeypatch):
    """As in an older release: an error that says so, and a drop-in leaves it to PyTorch."""
    monkeypatch.setattr(ops_types, "is_new", lambda: False)
    a, one = torch.ones(32, 64).to(torch.float8_e4m3fn), torch.ones(())
    with triton_ext.emulate("sm_90") as gpu:
        with pytest.raises(LayoutError, match="use_fast_accum = False: must be True on Hopper"):
            triton_ext.scaled_mm(a, a.t(), one, one, use_fast_accum=False)
        before = gpu.launches
        with triton_ext.drop_in():
            torch._scaled_mm(a, a.t(), one, one, out_dtype=torch.bfloat16)
        assert gpu.launches == before
    with triton_ext.emulate("sm_100"):
        assert triton_ext.scaled_mm(a, a.t(), one, one, use_fast_accum=False)[0, 0] == 64


@pytest.mark.skipif(not candidates.is_new(), reason="releases before 3.9 have no promoted sums")
@pytest.mark.parametrize("types", FP8_PAIRS if ALL else FP8_PAIRS[1:3], ids=str)
def test_scaled_mm_without_fast_accum(types):
    """On Hopper, sums of 128 elements of K are exact to 13 bits, and are added in fp32. Those of
    equal types by `make oracle`.
    """
    a, b = torch.randn(24, 1300).to(types[0]), torch.randn(40, 1300).to(types[1]).T
    one, exact = torch.ones(()), a.double() @ b.double()

    def error(function, fast):
        made = function(a, b, one, one, out_dtype=torch.float32, use_fast_accum=fast)
        return relative_difference(made, exact)

    with triton_ext.emulate("sm_90"):
        fast, promoted = (error(triton_ext.scaled_mm, each) for each in (True, False))
        assert promoted < fast / 2
        if types[0] == torch.float8_e4m3fn:
            torch.compiler.reset()  # which allows one function eight compilations
            traced = torch.compile(triton_ext.scaled_mm, fullgraph=True, backend="aot_eager")
            assert (error(traced, True), error(traced, False)) == (fast, promoted)
    with triton_ext.emulate("sm_100"):
        assert error(triton_ext.scaled_mm, False) == error(triton_ext.scaled_mm, True) < promoted
    with pytest.raises(LayoutError, match=r"use_fast_accum = .int.: "):
        triton_ext.scaled_mm(a, b, one, one, use_fast_accum=1)


@pytest.mark.parametrize("given", [
    {"alpha": 0.5}, {"scale_a": torch.rand(3)}, {"scale_b": torch.rand(4)},
    {"scale_a": torch.rand(3), "scale_b": torch.rand(4), "alpha": 3.0},
])  # fmt: skip
def test_factors_by_torch(given):
    """What torch's operators make of a product that no kernel takes."""
    made = torch.randn(3, 4)
    rows, columns = given.get("scale_a", torch.ones(3)), given.get("scale_b", torch.ones(4))
    expected = given.get("alpha", 1.0) * torch.outer(rows, columns) * made
    torch.testing.assert_close(finished(made, NOTHING._replace(**given)), expected)


@pytest.mark.parametrize(("dtype", "made", "residual", "expected"), [
    (torch.float8_e4m3fn, [1.0, 448.0, -448.0], [0.125, 448.0, -32.0], [1.125, 448.0, -448.0]),
    (torch.float8_e5m2, [1.0, 57344.0, -2.0], [0.25, 57344.0, 2.0], [1.25, 57344.0, 0.0]),
    (torch.int32, [2**24 + 1, -5, 7], [2, 5, -9], [2**24 + 3, 0, -2]),
], ids=str)  # fmt: skip
def test_sums_by_torch_of_types_that_have_none(dtype, made, residual, expected):
    """They are made in a wider type; those of fp8 saturate, those of integers are exact."""
    made, residual, expected = (
        torch.tensor([each]).to(dtype) for each in (made, residual, expected)
    )
    found = finished(made, NOTHING._replace(residual=residual))
    assert found.dtype == dtype
    assert found.double().tolist() == expected.double().tolist()


def test_two_types_of_fp8_before_triton_3_9(monkeypatch):
    """On Hopper an error that says so, unless PyTorch's may be taken; a drop-in takes that."""
    monkeypatch.setattr(ops_types, "is_new", lambda: False)
    a, b = torch.randn(16, 32).to(torch.float8_e4m3fn), torch.randn(16, 32)
    b, one = b.to(torch.float8_e5m2).t(), torch.ones(())
    exact = a.double() @ b.double()
    with triton_ext.emulate("sm_90") as gpu:
        with pytest.raises(LayoutError, match=r"b\.dtype = .*: .* on Hopper before Triton 3\.9"):
            triton_ext.scaled_mm(a, b, one, 2 * one)
        out = triton_ext.scaled_mm(a, b, one, 2 * one, fallback="torch")
        assert relative_difference(out, 2 * exact) < 2.0**-7
        with triton_ext.drop_in():
            out = torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
        assert relative_difference(out, exact) < 2.0**-7
        assert gpu.launches == 0
    with triton_ext.emulate("sm_100"):
        assert relative_difference(triton_ext.scaled_mm(a, b, one, one), exact) < 2.0**-7


def test_what_torch_adds_to_an_output_of_8_bits():
    a, b, bias = of(3, 0), of(0, 16), torch.randn(16).bfloat16()
    residual = torch.randn(3, 16).to(torch.float8_e5m2)
    out = triton_ext.matmul(
        a, b, bias=bias, activation="relu", residual=residual, out_dtype=residual.dtype
    )
    exact = torch.relu(bias.float() + residual.float())
    assert torch.equal(out.float(), exact.to(residual.dtype).float())
    large = torch.full((16,), 1e6).bfloat16()
    out = triton_ext.matmul(a, b, bias=large, out_dtype=residual.dtype)
    assert (out.float() == 57344).all(), "saturated, as what the kernels add"


def test_what_torch_adds_to_an_output_of_integers():
    a, b = (torch.randint(-9, 10, shape).to(torch.int8) for shape in ((2, 5, 16), (2, 16, 16)))
    exact = a.int() @ b.int()
    bias = torch.randint(-9, 10, (5, 1)).int()
    assert torch.equal(triton_ext.matmul(a, b, bias=bias), exact + bias)
    out = triton_ext.matmul(a, b, residual=bias, beta=0.5, activation="relu")
    assert torch.equal(out, torch.relu(exact + 0.5 * bias).int())
    large = torch.tensor(2**30 + 1).int()
    assert torch.equal(triton_ext.matmul(a, b, bias=large), exact + large)


def test_fp32_is_multiplied_where_tf32_is_allowed():
    a, b = torch.randn(40, 72), torch.randn(72, 24)
    with pytest.raises(LayoutError, match="set_float32_matmul_precision"):
        triton_ext.matmul(a, b)
    torch.set_float32_matmul_precision("high")
    try:
        out = triton_ext.matmul(a, b)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert out.dtype == torch.float32
    assert 2.0**-16 < relative_difference(out, a.double() @ b.double()) < 2.0**-9


@pytest.mark.parametrize("dtype", TYPES)
def test_output_in_fp32(dtype):
    a, b = torch.randn(9, 200).to(dtype), torch.randn(200, 24).to(dtype)
    out = triton_ext.matmul(a, b, out_dtype=torch.float32)
    assert out.dtype == torch.float32
    assert relative_difference(out, a.double() @ b.double()) < 1e-6
    batch = triton_ext.matmul(a.expand(2, 9, 200), b.expand(2, 200, 24), out_dtype=torch.float32)
    assert torch.equal(batch, out.expand(2, 9, 24))


def test_the_epilogue_is_fused(gpu):
    """It sees the product before that is rounded."""
    a, b = torch.full((8, 64), 32.0).half(), torch.full((64, 8), 32.0).half()
    bias = torch.full((8,), -65504.0).half()
    assert (triton_ext.matmul(a, b, bias=bias) == 32).all()
    assert (triton_ext.addmm(bias, a, b, alpha=0.5) == 32768 - 65504).all()
    assert (triton_ext.addmm(bias.expand(8, 8).clone(), a, b, beta=0.5) == 65536 - 32752).all()
    out = torch.empty(8, 8).half()
    triton_ext.matmul(a, b, bias=bias, out=out, activation="relu")
    assert (out == 32).all()
    with triton_ext.emulate("sm_100"):
        assert (triton_ext.matmul(a, b, bias=bias) == 32).all()


def test_one_row_has_no_padding():
    a, b = torch.randn(1, 40).half(), torch.randn(40, 13).half()
    out = triton_ext.matmul(a, b)
    assert out.stride() == (13, 1)
    assert_close(out, a, b)


def test_out_may_be_any_view():
    a, b = torch.randn(20, 40).half(), torch.randn(40, 24).half()
    base = torch.full((50, 80), torch.nan).half()
    for out in (
        base[:20, :24], base[10:30, 8:32], base[:20, 3:27], base[::2, ::2][:20, :24],
        torch.full((24, 20), torch.nan).half().T,
    ):  # fmt: skip
        assert triton_ext.matmul(a, b, out=out) is out
        assert_close(out, a, b)
    assert base[40:].isnan().all()
    version = base._version
    triton_ext.matmul(a, b, out=base[:20, :24])
    assert base._version > version, "autograd must notice the write"
    bias = torch.ones(1).half()  # which is broadcast
    triton_ext.matmul(a, b, bias=bias, out=out)
    assert torch.equal(out, triton_ext.matmul(a, b) + bias)


def test_out_may_be_an_operand():
    a = torch.randn(32, 32).half()
    before = a.clone()
    triton_ext.matmul(a, a, out=a)
    assert_close(a, before, before)
    bias = before[0].clone()
    out = torch.cat([bias[None], torch.empty(31, 32).half()])
    triton_ext.matmul(before, before, bias=out[0], out=out)
    exact = before.double() @ before.double() + bias.double()
    assert relative_difference(out, exact) < 2e-3


def test_a_given_configuration():
    a, b = torch.randn(64, 64).half(), torch.randn(64, 32).half()
    config = kernel_spec(90, "fp16", "K", "MN", block_m=64, block_n=32, block_k=32)
    assert_close(triton_ext.matmul(a, b, config=config), a, b)
    with pytest.raises(LayoutError, match="config"):
        triton_ext.matmul(a, b.T.contiguous().T, config=config)
    other = kernel_spec(90, "fp16", "K", "MN", block_m=64, block_n=64, consumers=1, bias=True)
    with pytest.raises(LayoutError, match="for a product alone"):
        triton_ext.matmul(a, b, config=other)
    with pytest.raises(LayoutError, match="an output in fp32"):
        triton_ext.matmul(a, b, config=config, out_dtype=torch.float32)


BLOCKS = torch.zeros(128, 4, dtype=torch.uint8).view(torch.float8_e8m0fnu)


def scaled_by_blocks(a=BLOCKS, b=BLOCKS):
    operand = torch.zeros(8, 128, dtype=torch.float8_e4m3fn)
    return triton_ext.scaled_mm(operand, operand.t(), a, b)


def of(*shape, dtype=torch.float16, **options):
    return torch.ones(shape, dtype=dtype, **options)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: triton_ext.matmul([[1.0]], of(1, 1)), "a"),
        (lambda: triton_ext.matmul(of(2, 2), 3), "b"),
        (lambda: triton_ext.matmul(of(2, 2).to_sparse(), of(2, 2)), "a.layout"),
        (lambda: triton_ext.matmul(of(2, 2, dtype=torch.float32), of(2, 2)), "a.dtype"),
        (lambda: triton_ext.matmul(of(2, 2), of(2, 2, dtype=torch.bfloat16)), "b.dtype"),
        (lambda: triton_ext.matmul(of(2, 2), of(2, 2, device="meta")), "b.device"),
        (lambda: triton_ext.matmul(of(2, 2), of(3, 2)), "b.shape"),
        (lambda: triton_ext.matmul(of(2, 2), of(2, 2), activation="tanh"), "activation"),
        (lambda: triton_ext.matmul(of(2, 2), of(2, 2), fallback="numpy"), "fallback"),
        (lambda: triton_ext.matmul(of(2, 2), of(2, 2), bias=of(3)), "bias.shape"),
        (lambda: triton_ext.matmul(of(2, 2), of(2, 2), bias=of(1, 2, 2)), "bias.shape"),
        (
            lambda: triton_ext.matmul(of(2, 2), of(2, 2), bias=of(2, dtype=torch.float32)),
            "bias.dtype",
        ),
        (
            lambda: triton_ext.matmul(of(2, 2), of(2, 2), out=of(2, 2, dtype=torch.float32)),
            "out.dtype",
        ),
        (lambda: triton_ext.matmul(of(2, 2), of(2, 2), out=of(3, 2)), "out.shape"),
        (
            lambda: triton_ext.matmul(of(2, 2, requires_grad=True), of(2, 2), out=of(2, 2)),
            "a.requires_grad",
        ),
        (lambda: triton_ext.matmul(of(2, 2), of(2, 2), bias=of(2, device="meta")), "bias.device"),
        (lambda: triton_ext.matmul(of(2, 2), of(2, 2), bias=[1, 2]), "bias"),
        (lambda: triton_ext.matmul(of(2, 2), of(2, 2), out=of(2, 2, device="meta")), "out.device"),
        (lambda: triton_ext.linear(of(2, 2), of(2, 2, 2)), "weight.shape"),
        (lambda: triton_ext.linear(of(2, 2), None), "weight"),
        (lambda: triton_ext.addmm(of(3), of(2, 2), of(2, 2)), "input.shape"),
        (lambda: triton_ext.addmm(of(2), of(1, 2, 2), of(2, 2)), "a.shape"),
        (lambda: triton_ext.matmul(of(2, 2), of(2, 2), residual=of(3)), "residual.shape"),
        (lambda: triton_ext.matmul(of(2, 2), of(2), residual=of(2, 2)), "residual.shape"),
        (lambda: triton_ext.matmul(of(2, 2), of(2, 2), residual=2.0), "residual"),
        (
            lambda: triton_ext.matmul(of(2, 2), of(2, 2), residual=of(2, dtype=torch.float32)),
            "residual.dtype",
        ),
        (lambda: triton_ext.bmm(of(2, 2), of(2, 2)), "a.shape"),
        (lambda: triton_ext.scaled_mm(of(2, 2), of(2, 2), of(1), 1.0), "scale_a.dtype"),
        (lambda: triton_ext.scaled_mm(of(2, 2), of(2, 2), of(1).float(), 1.0), "scale_b"),
        (
            lambda: triton_ext.scaled_mm(of(2, 2), of(2, 2), of(2).float(), of(1).float()),
            "scale_a.shape",
        ),
        (
            lambda: triton_ext.scaled_mm(
                of(2, 2), of(2, 2), of(1, dtype=torch.float32, device="meta"), of(1).float()
            ),
            "scale_a.device",
        ),
        (lambda: triton_ext.bmm(of(1, 2, 2), of(2, 2, 2)), "b.shape"),
        (lambda: scaled_by_blocks(), "scale_a.dtype"),  # on Hopper
        (lambda: scaled_by_blocks(a=BLOCKS[:64]), "scale_a.shape"),
        (lambda: scaled_by_blocks(b=BLOCKS[::2]), "scale_b.shape"),
        (lambda: scaled_by_blocks(a=(BLOCKS,)), "scale_a"),
        (lambda: scaled_by_blocks(a=(BLOCKS, of(8, 1).float())), "scale_a.shape"),
        (lambda: scaled_by_blocks(a=(of(1), of(1).float())), "scale_a.dtype"),
        (lambda: scaled_by_blocks(a=of(1).float()), "scale_a.dtype"),
        (lambda: scaled_by_blocks(b=BLOCKS.view(torch.float8_e4m3fn)), "scale_b.dtype"),
    ],
)
def test_the_wrong_argument_is_named(call, argument):
    with pytest.raises(LayoutError) as caught:
        call()
    assert caught.value.argument == argument


def test_types_without_a_kernel():
    a = torch.randn(4, 5)
    with pytest.raises(LayoutError, match=r'fallback="torch"'):
        triton_ext.matmul(a, a.T)
    with pytest.raises(LayoutError, match=r"torch\.bfloat16"):
        triton_ext.matmul(a.double(), a.T.double())
    assert torch.equal(triton_ext.matmul(a, a.T, fallback="torch"), a @ a.T)
    assert torch.equal(
        triton_ext.linear(a, a, a[:, 0], activation="relu", fallback="torch"),
        torch.relu(torch.nn.functional.linear(a, a, a[:, 0])),
    )
    wide = a.double()
    assert torch.equal(
        triton_ext.linear(wide, wide, wide[:, 0], fallback="torch"),
        torch.nn.functional.linear(wide, wide, wide[:, 0]),
    )
    half = a.half()
    with pytest.raises(LayoutError, match="out_dtype"):
        triton_ext.matmul(half, half.T, out_dtype=torch.float64)
    out = triton_ext.matmul(half, half.T, out_dtype=torch.float64, fallback="torch")
    assert out.dtype == torch.float64


def test_a_device_without_a_kernel():
    with pytest.raises(UnsupportedDeviceError) as caught:
        require_gpu(torch.device("mps"))
    for words in ("Hopper", "Blackwell", "the tensors are on mps", "Use torch.matmul", "emulate"):
        assert words in str(caught.value)
    a = of(8, 8, device="meta")
    for fallback in (None, "torch"):
        assert triton_ext.matmul(a, a, fallback=fallback).shape == (8, 8)


def test_which_operands_tma_can_read():
    """Strides that TMA takes are used as they are; others cost a copy."""
    base = torch.arange(64 * 64, dtype=torch.float16).reshape(64, 64)
    for matrix, major, copied in (
        (base, "K", False),
        (base.T, "MN", False),
        (base[:, :40], "K", False),
        (base[:1, 8:24], "K", False),
        (base[::2], "K", False),
        (base[:, 1:33], "K", True),
        (base[::2, ::2], "K", True),
        (base[:1].expand(16, 64), "K", True),
        (torch.ones((7, 13), dtype=torch.float16), "K", True),
        (torch.ones((16, 1), dtype=torch.float16), "MN", False),
    ):
        view = readable(matrix, k_dim=1)
        assert (view is None) == copied
        if view is None:
            copy = readable_copy(matrix, 1)
            assert torch.equal(copy, matrix)
            view = readable(copy, k_dim=1)
        assert view.major == major
        assert view.shape == tuple(matrix.shape if major == "K" else matrix.T.shape)
        assert view.strides[1] == 1
        assert view.strides[0] % 8 == 0
        assert view.strides[0] >= view.shape[1]


@pytest.mark.parametrize("k_dim", [0, 1])
def test_elements_of_4_bits_are_copied(k_dim):
    stored = torch.randint(256, (40, 35)).to(torch.uint8)
    matrix = stored.view(torch.float4_e2m1fn_x2)
    assert readable(matrix, k_dim) is None
    copy = readable_copy(matrix, k_dim)
    assert readable(copy, k_dim).major == "K"
    assert torch.equal(copy.view(torch.uint8), stored)


def test_rows_of_new_memory_are_aligned():
    for rows, columns in ((3, 5), (1, 1), (4, 16)):
        matrix = aligned_empty(torch.empty(0).half(), (rows, columns))
        assert matrix.shape == (rows, columns)
        assert readable(matrix, k_dim=1) is not None


# --------------------------------------------------------- autograd, tracing, compilation


@pytest.mark.parametrize(
    ("shape_a", "shape_b"), [((9, 16), (16, 5)), ((2, 9, 16), (16, 8)), ((2, 3, 8), (2, 8, 4)),
                             ((16,), (16, 5)), ((3, 1, 4, 8), (2, 8, 4))],
)  # fmt: skip
def test_gradients(shape_a, shape_b):
    a, b = torch.randn(shape_a).half().requires_grad_(), torch.randn(shape_b).half()
    b.requires_grad_()
    exact_a, exact_b = (x.detach().double().requires_grad_() for x in (a, b))
    weights = torch.randn(torch.matmul(exact_a, exact_b).shape).half()
    (triton_ext.matmul(a, b) * weights).sum().backward()
    (torch.matmul(exact_a, exact_b) * weights.double()).sum().backward()
    for ours, exact in ((a, exact_a), (b, exact_b)):
        assert ours.grad.dtype == ours.dtype
        assert relative_difference(ours.grad, exact.grad) < 2e-3


@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0.5, 2), (0, 3)])
@pytest.mark.parametrize("shape", [(9, 8), (8,), (9, 1)])
def test_gradients_of_addmm(beta, alpha, shape):
    tensors = [torch.randn(s).half().requires_grad_() for s in (shape, (9, 16), (16, 8))]
    exact = [x.detach().double().requires_grad_() for x in tensors]
    weights = torch.randn(9, 8).half()
    (triton_ext.addmm(*tensors, beta=beta, alpha=alpha) * weights).sum().backward()
    (torch.addmm(*exact, beta=beta, alpha=alpha) * weights.double()).sum().backward()
    for ours, theirs in zip(tensors, exact, strict=True):
        if theirs.grad is None or not theirs.grad.any():
            assert ours.grad is None or not ours.grad.any()
        else:
            assert relative_difference(ours.grad, theirs.grad) < 2e-3


def test_gradients_of_a_residual():
    a, b, residual = (torch.randn(s).half() for s in ((2, 9, 16), (16, 8), (9, 8)))
    tensors = [x.requires_grad_() for x in (a, b, residual)]
    exact = [x.detach().double().requires_grad_() for x in tensors]
    ours = triton_ext.matmul(a, b, residual=residual, beta=0.5, activation="silu")
    theirs = torch.nn.functional.silu(exact[0] @ exact[1] + 0.5 * exact[2])
    ours.sum().backward()
    theirs.sum().backward()
    for one, other in zip(tensors, exact, strict=True):
        assert relative_difference(one.grad, other.grad) < 4e-3
    x, y, z = (torch.randn(8, 8).half().requires_grad_() for _ in range(3))
    (grad,) = torch.autograd.grad(
        triton_ext.addmm(z, x, y, alpha=2).square().sum(), x, create_graph=True
    )
    grad.sum().backward()
    exact = [t.detach().double().requires_grad_() for t in (x, y, z)]
    made = torch.addmm(exact[2], exact[0], exact[1], alpha=2)
    (grad,) = torch.autograd.grad(made.square().sum(), exact[0], create_graph=True)
    grad.sum().backward()
    assert relative_difference(y.grad, exact[1].grad) < 1e-2
    assert relative_difference(z.grad, exact[2].grad) < 1e-2


def forward_mode_cases():
    """Ours, PyTorch's, and tensors that have tangents each."""
    functional = torch.nn.functional
    a, b, bias, square = (torch.randn(s).bfloat16() for s in ((9, 16), (16, 8), (8,), (9, 8)))
    batch = torch.randn(3, 16, 8).bfloat16()
    return {
        "matmul": (triton_ext.matmul, torch.matmul, (a, b)),
        "vector": (triton_ext.matmul, torch.matmul, (a[0], b)),
        "batch": (triton_ext.matmul, torch.matmul, (a, batch)),
        "bmm": (triton_ext.bmm, torch.bmm, (batch.mT, batch)),
        "linear": (triton_ext.linear, functional.linear, (a, b.mT, bias)),
        "addmm": (
            lambda *x: triton_ext.addmm(*x, beta=0.5, alpha=2),
            lambda *x: torch.addmm(*x, beta=0.5, alpha=2),
            (square, a, b),
        ),
        "residual and gelu": (
            lambda a, b, c: triton_ext.matmul(a, b, residual=c, beta=3, activation="gelu"),
            lambda a, b, c: functional.gelu(a @ b + 3 * c),
            (a, b, bias),
        ),
    }


@pytest.mark.parametrize("name", forward_mode_cases())
def test_forward_mode(name):
    ours, theirs, tensors = forward_mode_cases()[name]
    tangents = tuple(torch.randn_like(x) for x in tensors)
    exact = torch.func.jvp(
        theirs, tuple(x.double() for x in tensors), tuple(x.double() for x in tangents)
    )
    found = torch.func.jvp(ours, tensors, tangents)
    for one, other in zip(found, exact, strict=True):
        assert relative_difference(one, other) < 2.0**-7
    forward_ad = torch.autograd.forward_ad
    for which in range(len(tensors)):
        with forward_ad.dual_level():
            duals, wide = list(tensors), [x.double() for x in tensors]
            duals[which] = forward_ad.make_dual(tensors[which], tangents[which])
            wide[which] = forward_ad.make_dual(wide[which], tangents[which].double())
            for one, other in zip(
                forward_ad.unpack_dual(ours(*duals)),
                forward_ad.unpack_dual(theirs(*wide)),
                strict=True,
            ):
                assert relative_difference(one, other) < 2.0**-7


def test_forward_mode_over_vmap_and_in_a_drop_in():
    a, b = torch.randn(3, 4).half(), torch.randn(4, 2).half()
    a[0] = b[:, 0]  # so that relu leaves something, whatever was drawn
    exact = torch.func.jacfwd(lambda x: torch.relu(x @ b.double()))(a.double())
    for function in (
        lambda x: triton_ext.matmul(x, b, activation="relu"),
        lambda x: torch.relu(x @ b),
    ):
        with triton_ext.drop_in():
            assert relative_difference(torch.func.jacfwd(function)(a), exact) < 2.0**-9


def test_no_tangent_is_lost():
    forward_ad = torch.autograd.forward_ad
    a, scale = torch.randn(16, 16).bfloat16(), torch.ones(1)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(a, a)
        for call in (
            lambda: triton_ext.matmul(dual, a, out=torch.empty(0).bfloat16()),
            lambda: triton_ext.addmm(dual, a, a, out=torch.empty(0).bfloat16()),
            lambda: triton_ext.scaled_mm(a, dual, scale, scale),
            lambda: torch.ops.triton_ext.mm(dual, a, activation="relu"),
        ):
            with pytest.raises(LayoutError, match="forward-mode"):
                call()
        assert forward_ad.unpack_dual(triton_ext.matmul(a, a)).tangent is None
        made = triton_ext.matmul(dual.float(), a.float(), fallback="torch")
        assert relative_difference(forward_ad.unpack_dual(made).tangent, a.float() @ a.float()) == 0


def test_gradient_of_the_gradient():
    a, b = (torch.randn(8, 8).half().requires_grad_() for _ in range(2))
    (grad,) = torch.autograd.grad(triton_ext.matmul(a, b).square().sum(), a, create_graph=True)
    grad.sum().backward()
    exact_a, exact_b = (x.detach().double().requires_grad_() for x in (a, b))
    (grad,) = torch.autograd.grad((exact_a @ exact_b).square().sum(), exact_a, create_graph=True)
    grad.sum().backward()
    assert relative_difference(b.grad, exact_b.grad) < 1e-2


def test_a_bias_alone_may_need_a_gradient():
    a, b = torch.randn(8, 8).half(), torch.randn(8, 8).half()
    bias = torch.zeros(8).half().requires_grad_()
    triton_ext.linear(a, b, bias, activation="gelu").sum().backward()
    assert bias.grad.abs().sum() > 0


@pytest.mark.parametrize("name", ["mm", "bmm"])
def test_opcheck(name):
    lead = (2,) if name == "bmm" else ()
    for shape_a, shape_b in (((7, 5), (5, 3)),):
        a = torch.randn((*lead, *shape_a)).bfloat16().requires_grad_()
        b = torch.randn((*lead, *shape_b)).bfloat16().requires_grad_()
        operator = getattr(torch.ops.triton_ext, name).default
        torch.library.opcheck(operator, (a, b), atol=0.1, rtol=0.05)
    if name == "mm":
        bias = torch.randn(3).bfloat16().requires_grad_()
        torch.library.opcheck(operator, (a, b, bias), atol=0.1, rtol=0.05)
        residual = torch.randn(7, 1).bfloat16().requires_grad_()
        arguments = (a, b, bias, None, None, residual, 0.5, 2.0)
        torch.library.opcheck(operator, arguments, atol=0.1, rtol=0.05)


def test_opcheck_of_scaled_mm():
    a, b = torch.randn(16, 32).to(torch.int8), torch.randn(32, 8).to(torch.int8)
    scales = torch.rand(16, 1), torch.rand(1)
    operator = torch.ops.triton_ext.scaled_mm.default
    torch.library.opcheck(operator, (a, b, *scales, None, torch.float32), atol=0.1, rtol=0.05)


def layer(x, w, bias):
    y = triton_ext.matmul(x, w, bias=bias, activation="gelu")
    y = triton_ext.linear(y, w, fallback="torch")
    y = triton_ext.matmul(y.unsqueeze(0), w.expand(2, *w.shape))
    y = triton_ext.addmm(bias, y[0], w.T @ w)
    return triton_ext.addmm(y, y, w, beta=0.5, alpha=0.25).float().square().sum()


@pytest.mark.parametrize("dynamic", [False, True])
def test_compilation_without_graph_breaks(dynamic, gpu):
    tensors = [torch.randn(s).bfloat16().requires_grad_() for s in ((12, 16), (16, 16), (16,))]
    expected = torch.autograd.grad(layer(*tensors), tensors)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    before = gpu.launches
    found = torch.autograd.grad(compiled(*tensors), tensors)
    assert gpu.launches > before
    for one, other in zip(found, expected, strict=True):
        assert relative_difference(one, other) < 0.03


def test_fallback_is_compiled_too():
    a = torch.randn(4, 4)
    compiled = torch.compile(
        lambda x: triton_ext.matmul(x, x, fallback="torch"), fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(a), a @ a)


def test_tracing_sees_the_operator():
    from torch.fx.experimental.proxy_tensor import make_fx

    a = torch.randn(16, 16).half()
    graph = make_fx(lambda x: triton_ext.matmul(x, x))(a).graph
    assert torch.ops.triton_ext.mm.default in {node.target for node in graph.nodes}
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = mode.from_tensor(a)
        assert triton_ext.matmul(fake, fake).shape == (16, 16)


def test_vmap():
    a, b = torch.randn(3, 9, 16).half(), torch.randn(3, 16, 8).half()
    stacks = torch.randn(2, 3, 9, 16).half()
    for in_dims, args in (
        ((0, 0), (a, b)),
        ((0, None), (a, b[0])),
        ((None, 0), (a[0], b)),
        ((1, 2), (a.movedim(0, 1), b.movedim(0, 2))),
        ((0, None), (stacks, b)),
        ((0, 0), (stacks, b[:2])),
    ):
        ours = torch.vmap(triton_ext.matmul, in_dims)(*args)
        exact = torch.vmap(torch.matmul, in_dims)(*(x.double() for x in args))
        assert torch.allclose(ours.double(), exact, rtol=2e-3, atol=2e-3)


def test_vmap_of_addmm():
    z, a, b = torch.randn(3, 9, 8).half(), torch.randn(3, 9, 16).half(), torch.randn(16, 8).half()

    def ours(*tensors):
        return triton_ext.addmm(*tensors, beta=0.5, alpha=2)

    for in_dims, args in (
        ((0, 0, None), (z, a, b)),
        ((None, 0, None), (z[0], a, b)),
        ((2, 0, None), (z[:, 0].T.expand(9, 8, 3), a, b)),
        ((0, None, None), (z[:, 0], a[0], b)),
        ((0, 0, 0), (z, a, b.expand(3, 16, 8))),
    ):
        exact = torch.vmap(lambda *t: torch.addmm(*t, beta=0.5, alpha=2), in_dims)(
            *(x.double() for x in args)
        )
        assert relative_difference(torch.vmap(ours, in_dims)(*args), exact) < 2e-3


def test_vmap_of_an_addend_that_torch_adds():
    a, b, biases = torch.randn(9, 16).half(), torch.randn(16, 8).half(), torch.randn(3, 9, 1).half()
    out = torch.vmap(lambda bias: triton_ext.matmul(a, b, bias=bias))(biases)
    assert torch.equal(out, triton_ext.matmul(a, b) + biases)


def test_autocast():
    a, b = torch.randn(8, 16), torch.randn(16, 8)
    with torch.autocast("cpu", torch.bfloat16):
        out = triton_ext.matmul(a, b)
        assert out.dtype == (a @ b).dtype == torch.bfloat16
        with_bias = triton_ext.linear(a, b.t(), a[0, :8])
        assert triton_ext.addmm(a[0, :8], a, b).dtype == with_bias.dtype == torch.bfloat16
    assert_close(out, a.bfloat16(), b.bfloat16())


# ----------------------------------------------------------------------------- drop_in


@pytest.fixture
def launched(gpu):
    """How many kernels ran since the last call."""
    before = gpu.launches

    def since():
        nonlocal before
        before, count = gpu.launches, gpu.launches - before
        return count

    return since


def test_drop_in_takes_pytorchs_products(launched):
    a, b = torch.randn(8, 16).half(), torch.randn(16, 24).half()
    bias, out = torch.randn(24).half(), torch.empty(8, 24).half()
    batch_a, batch_b = torch.randn(2, 8, 16).half(), torch.randn(2, 16, 8).half()
    for call, kernels in (
        (lambda: torch.mm(a, b), 1),
        (lambda: a @ b, 1),
        (lambda: torch.mm(a, b, out=out), 1),
        (lambda: torch.addmm(bias, a, b), 1),
        (lambda: torch.addmm(bias, a, b, beta=0.5, out=out), 1),
        (lambda: torch.addmm(bias, a, b, alpha=0.5), 1),
        (lambda: torch.addmm(out, a, b), 1),
        (lambda: torch.nn.functional.linear(a, b.T, bias), 1),
        (lambda: torch.nn.functional.linear(batch_a, b.T), 1),
        (lambda: torch.nn.functional.linear(batch_a, b.T, bias), 1),
        (lambda: torch.addmm(out, a, b, beta=0.5, alpha=2), 1),
        (lambda: out.clone().addmm_(a, b, beta=0.5, alpha=2), 1),
        (lambda: out.T.contiguous().T.addmm_(a, b), 1),
        (lambda: torch.addmm(out.T.contiguous().T, a, b, beta=2), 1),
        (lambda: torch.addmm(torch.full_like(out, torch.nan), a, b, beta=0), 1),
        (lambda: torch.bmm(batch_a, batch_b), 1),
        (lambda: torch.bmm(batch_a.expand(4, 2, 8, 16)[:, 1], batch_b[:1].expand(4, 16, 8)), 1),
        (lambda: torch.matmul(batch_a, batch_b), 1),
        (lambda: torch.bmm(batch_a, batch_b, out=torch.empty(2, 8, 8).half()), 1),
    ):
        with triton_ext.drop_in():
            ours = call()
        assert launched() == kernels
        theirs = call()
        assert launched() == 0
        assert torch.allclose(ours, theirs, rtol=2e-3, atol=2e-3)


def test_drop_in_leaves_the_rest_alone(launched):
    a, b = torch.randn(8, 16), torch.randn(16, 24)
    half = a.half()
    with triton_ext.drop_in():
        assert torch.equal(a @ b, torch.mm(a, b))
        torch.addmm(a[:, 0, None], a, a.T, alpha=0.5)
        torch.mm(half.to_sparse(), half.T)
        with pytest.raises(RuntimeError):
            torch.mm(half, half)
        with pytest.raises(RuntimeError):
            torch.addmm(torch.ones(5).half(), half, half.T)
        with pytest.raises(RuntimeError):
            torch.mm(half, half.T, out=torch.empty(8, 8))
        out = torch.empty(0).half()
        torch.mm(half, half.T, out=out)
        assert out.shape == (8, 8)
    assert launched() == 0


def test_drop_in_takes_products_of_fp8(launched):
    """Each way to ask, with the pairs of types in turn; by `make oracle` each way with each."""
    one, rows, columns = torch.tensor(0.5), torch.rand(32, 1) + 0.5, torch.rand(1, 48) + 0.5
    bias, out = torch.randn(48).bfloat16(), torch.empty(32, 48).bfloat16()
    fast = {"out_dtype": torch.bfloat16, "use_fast_accum": True}
    ways = (
        ((one, one), {}), ((rows, columns), {}), ((one, one), {"bias": bias}),
        ((rows, columns), {"out": out}), ((one, one[None]), {"out_dtype": torch.float32}),
        ((one, one), {"use_fast_accum": False}),
    )  # fmt: skip
    for (scales, more), (left, right) in in_turn(ways, FP8_PAIRS):
        a, b = torch.randn(32, 64).to(left), torch.randn(48, 64).to(right).T
        with triton_ext.drop_in():
            made = torch._scaled_mm(a, b, *scales, **fast | more)
        assert launched() == 1
        exact = (a.double() * scales[0]) @ (b.double() * scales[1]) + more.get("bias", 0.0)
        assert made.dtype == (fast | more)["out_dtype"]
        assert relative_difference(made, exact) < 2.0**-8
        assert "out" not in more or made is out


def test_drop_in_leaves_products_of_fp8_alone_that_it_must_not_change(launched):
    """Those with scales, outputs and biases that there is no kernel for."""
    a, b = torch.randn(32, 64).to(torch.float8_e4m3fn), torch.randn(48, 64).to(torch.float8_e4m3fn)
    one, fast = torch.tensor(0.5), {"out_dtype": torch.bfloat16, "use_fast_accum": True}
    left_alone = [
        lambda: torch._scaled_mm(a, b.T, one, one, scale_result=one, **fast),
        lambda: torch._scaled_mm(a, b.T, one, one, use_fast_accum=True),
        lambda: torch._scaled_mm(a, b.T, one, one, bias=torch.ones(48), **fast),
        lambda: torch._scaled_mm(a, b.T, one.double(), one, **fast),
        lambda: torch._scaled_mm(a, b.T, torch.ones(32, 2)[:, :1], torch.ones(1, 48), **fast),
        lambda: torch._scaled_mm(a, b[:, :32].T, one, one, **fast),
    ]
    with triton_ext.drop_in():
        for call in left_alone:
            with suppress(RuntimeError, ValueError):  # of this PyTorch, on the host
                call()
    assert launched() == 0


def test_drop_in_without_an_emulated_gpu(launched):
    a = torch.randn(8, 8).half()
    with triton_ext.drop_in():
        active = triton.runtime.driver._active
        triton.runtime.driver.set_active(None)
        try:
            expected = a @ a
        finally:
            triton.runtime.driver.set_active(active)
    assert launched() == 0
    assert torch.equal(expected, a @ a)


def test_drop_in_nests_and_ends(launched):
    a = torch.randn(8, 8).half()
    with triton_ext.drop_in():
        with triton_ext.drop_in() as inner:
            a @ a
            inner.close()
            inner.close()
        a @ a
        assert launched() == 2
    a @ a
    assert launched() == 0
    with pytest.raises(ZeroDivisionError), triton_ext.drop_in():
        _ = a @ a, 1 / 0
    a @ a
    assert launched() == 1
    for_good = triton_ext.drop_in()
    a @ a
    assert launched() == 1
    for_good.close()
    a @ a
    assert launched() == 0


def test_a_drop_in_may_be_entered_again(launched):
    a = torch.randn(8, 8).half()

    def taken():
        a @ a
        return launched() == 1

    again = triton_ext.drop_in()
    assert taken(), "from the start"
    for _ in range(3):
        with again:
            assert taken()
            with again as same:
                assert taken()
            assert taken(), "the outer block goes on"
        assert same is again
        assert not taken()
    with again:
        again.close()
        assert not taken()
        with again, triton_ext.drop_in():
            assert taken()
    assert not taken()


def test_drop_in_holds_for_all_threads(launched):
    a = torch.randn(8, 8).half()
    entered, leave = threading.Event(), threading.Event()

    def hold():
        with triton_ext.drop_in():
            entered.set()
            leave.wait()

    other = threading.Thread(target=hold)
    other.start()
    entered.wait()
    with triton_ext.drop_in():
        a @ a
    a @ a
    assert launched() == 2
    leave.set()
    other.join()
    a @ a
    assert launched() == 0


def test_a_drop_in_that_lasted_leaves_the_dispatcher_as_it_was(launched, monkeypatch):
    def kernels():
        return torch._C._dispatch_dump_table("aten::mm")

    frames, others = sys._current_frames, sys._current_frames().keys() - {threading.get_ident()}
    without = {"_current_frames": lambda: frames().keys() - others}  # those of pytest's plugins
    monkeypatch.setattr(overrides, "sys", types.SimpleNamespace(**without))
    monkeypatch.setattr(overrides, "PAYS_AFTER", 0)
    triton_ext.drop_in().close()  # what another test's may have left
    before = kernels()
    a = torch.randn(8, 8).half()
    for _ in range(2):
        with triton_ext.drop_in(), triton_ext.drop_in():
            assert kernels() != before
            a @ a
        assert launched() == 1
        assert kernels() == before
        a @ a
        assert launched() == 0
    leave = threading.Event()
    other = threading.Thread(target=leave.wait)
    other.start()
    triton_ext.drop_in().close()
    assert kernels() != before, "the other thread might be within one"
    a @ a
    assert launched() == 0
    leave.set()
    other.join()
    monkeypatch.setattr(overrides, "PAYS_AFTER", 1e9)
    triton_ext.drop_in().close()
    assert kernels() != before


@pytest.mark.parametrize("name", sorted(MODELS))
def test_models_in_a_drop_in(name, launched):
    torch.manual_seed(0)
    model = LanguageModel(MODELS[name], vocabulary=32, width=32, heads=2, layers=1).bfloat16()
    tokens = torch.randint(32, (2, 8))
    loss, gradients = loss_and_gradients(model, tokens)
    with triton_ext.drop_in():
        ours, found = loss_and_gradients(model, tokens)
    assert launched() >= 3 * 6
    assert abs(ours - loss) < 0.01 * loss
    assert difference_of_all(found, gradients) < 0.05


# --------------------------------------------------------------------- the direct launch


class Recorder:
    """Stands in for a kernel's direct launch, and notes the launches."""

    def __init__(self):
        self.maps, self.starts = [], []

    def current_stream(self, index):
        return 77

    def tensor_map(self, operand, address, shape, strides):
        self.maps.append((operand, address, tuple(shape), tuple(strides)))
        return self.maps[-1]

    def __call__(self, grid, stream, arguments):
        self.starts.append((grid, stream, arguments))


def recorded(config, views, k):
    """A prepared launch on an imagined GPU, and its recorder."""
    gpu = Gpu(90, types.SimpleNamespace(multi_processor_count=132), 5)
    launch = launches.PreparedLaunch(gpu, config, views, k)
    launch.direct = Recorder()
    return launch, launch.direct


@pytest.fixture
def direct():
    """A prepared launch of (40, 48) @ (48, 24) whose B is column-major, and its recorder."""
    views = (
        TmaView((40, 48), (48, 1), "K"),
        TmaView((24, 48), (48, 1), "K"),
        TmaView((40, 24), (24, 1), "MN"),
    )
    config = kernel_spec(90, "fp16", "K", "K", block_m=64, block_n=32, stages=4, consumers=1)
    return recorded(config, views, 48)


def three_matrices():
    a, b = torch.empty(40, 48).half(), torch.empty(24, 48).half().T
    return a, b, torch.empty(40, 24).half()


def test_a_kept_kernel_is_launched_without_the_jit(direct, monkeypatch):
    """And is looked for once."""
    launch, recorder = direct
    launch.direct = None
    looked = []
    monkeypatch.setattr(
        launches.compiled_cache, "find", lambda config: looked.append(config) or "compiled"
    )
    monkeypatch.setattr(launches, "DirectLaunch", {"compiled": recorder}.get)
    monkeypatch.setattr(launches, "_direct_launches", {})
    launch(*three_matrices())
    launch(*three_matrices())
    assert looked == [launch.config]
    assert len(recorder.starts) == 2


def test_the_direct_launch_passes_what_the_kernel_takes(direct):
    launch, recorder = direct
    a, b, c = three_matrices()
    launch(a, b, c)
    launch(a, b, c)
    assert recorder.maps == [
        (0, a.data_ptr(), (40, 48), (48, 1)),
        (1, b.data_ptr(), (24, 48), (48, 1)),
        (2, c.data_ptr(), (40, 24), (24, 1)),
    ]
    first, second = recorder.starts
    assert first == second
    grid, stream, arguments = first
    assert (grid, stream) == (launch.plan.grid, 77)
    maps = [x for m in recorder.maps for x in (m, *m[2], *m[3])]
    assert arguments == [*maps, launch.plan.group]


def described(tensors):
    """What a direct launch passes for descriptors of these tensors."""
    return [
        [(i, x.data_ptr(), tuple(x.shape), x.stride()), *x.shape, *x.stride()]
        for i, x in enumerate(tensors)
    ]


@pytest.mark.parametrize("swap", [False, True])
def test_the_direct_launch_with_an_edge(swap):
    """A second map of the right operand, before what is not a descriptor."""
    block = {"block_m": 72, "block_n": 64} if swap else {"block_m": 64, "block_n": 72}
    major = {"a_major" if swap else "b_major": "MN"}
    config = kernel_spec(
        90, "fp16", **block, **major, c_parts=9, consumers=1, swap_ab=swap, alpha=True
    )
    tensors = [torch.empty(s).half() for s in ((40, 48), (24, 48), (40, 24))]
    views = tuple(TmaView(tuple(x.shape), x.stride(), "K") for x in tensors)
    launch, recorder = recorded(config, views, 48)
    for _ in range(2):
        launch(*tensors, Epilogue(alpha=2.0))
    a, b, c = tensors
    left, right = (b, a) if swap else (a, b)
    expected = described((left, right, c, right))
    maps = itertools.chain.from_iterable(expected)
    assert recorder.starts[0][-1] == [*maps, launch.plan.group, 2.0]
    assert recorder.starts[0] == recorder.starts[1]
    assert len(recorder.maps) == 4


def test_the_direct_launch_of_a_batch_with_a_residual():
    """Three dimensions, a fourth tensor map, and numbers behind the descriptors."""
    config = kernel_spec(
        90, "fp16", block_m=64, block_n=64, consumers=1, batched=True, residual=True, alpha=True
    )
    tensors = [torch.empty(s).half() for s in ((3, 40, 48), (1, 24, 48), (3, 40, 24), (3, 40, 24))]
    views = tuple(TmaView(tuple(x.shape), x.stride(), "K") for x in tensors)
    launch, recorder = recorded(config, views, 48)
    a, b, c, residual = tensors
    for alpha in (2.0, 3.0):
        launch(a, b, c, Epilogue(residual=residual, beta=0.5, alpha=alpha))
        a_map, b_map, c_map, residual_map = described(tensors)
        numbers = (launch.plan.group, alpha, 0.5)
        expected = [*a_map, *b_map, *c_map, *residual_map, *numbers]
        assert recorder.starts[-1][-1] == expected
    assert len(recorder.maps) == 4
    assert recorder.starts[0][0][0] >= 3


@pytest.mark.parametrize("added", ["bias", "residual"])
def test_the_launch_by_addresses_is_that_of_the_tensors(added):
    """With one tensor that is added; and it is none where a number must be told."""
    config = kernel_spec(90, "fp16", block_m=64, block_n=64, consumers=1, **{added: True})
    tensors = [torch.empty(s).half() for s in ((40, 48), (24, 48), (40, 24), (40, 24))]
    addend = torch.empty(24).half() if added == "bias" else tensors[3]
    views = tuple(TmaView(tuple(x.shape), x.stride(), "K") for x in tensors)
    launch, recorder = recorded(config, views[: 3 + (added == "residual")], 48)
    launch(*tensors[:3], Epilogue(**{added: addend}))
    assert launch.at(*(each.data_ptr() for each in (*tensors[:3], addend)))
    assert recorder.starts[0] == recorder.starts[1]
    scaled, recorder = recorded(config.with_fields(alpha=True), launch.views, 48)
    assert not scaled.at(*(each.data_ptr() for each in (*tensors[:3], addend)))
    assert not recorder.starts


def test_the_direct_launch_with_bias_and_scales():
    config = kernel_spec(
        90, "e4m3", out_type="bf16", block_k=128, consumers=1, block_m=64,
        bias=True, a_scales="each", b_scales="one",
    )  # fmt: skip
    tensors = [torch.empty(s).bfloat16() for s in ((40, 48), (24, 48), (40, 24))]
    views = tuple(TmaView(tuple(x.shape), x.stride(), "K") for x in tensors)
    launch, recorder = recorded(config, views, 48)
    bias, scale_a, scale_b = torch.ones(24).bfloat16(), torch.ones(40), torch.ones(())
    launch(*tensors, Epilogue(bias, scale_a=scale_a, scale_b=scale_b))
    maps = itertools.chain.from_iterable(described(tensors))
    pointers = [x.data_ptr() for x in (bias, scale_a, scale_b)]
    assert recorder.starts[-1][-1] == [*maps, launch.plan.group, *pointers]


@pytest.mark.parametrize("swap", [False, True])
def test_the_direct_launch_with_scales_of_blocks(swap):
    """Their maps are the last ones; those of the left operand first."""
    config = kernel_spec(100, "mxfp8", block_k=128, consumers=1, stages=2, swap_ab=swap, alpha=True)
    tensors = [torch.empty(s).to(torch.float8_e4m3fn) for s in ((140, 160), (24, 160))]
    tensors.append(torch.empty(140, 24))
    blocks = [torch.empty(s, dtype=torch.float8_e8m0fnu) for s in ((2, 2, 2, 256), (1, 2, 2, 256))]
    views = [TmaView(tuple(x.shape), x.stride(), "K") for x in tensors]
    views += [None, *(scale_view(each.flatten(), along=2) for each in blocks)]
    launch, recorder = recorded(config, tuple(views), 160)
    launch(*tensors, Epilogue(alpha=0.5, blocks_a=blocks[0], blocks_b=blocks[1]))
    (a, b, c), order = tensors, (1, 0) if swap else (0, 1)
    maps = described([(a, b)[order[0]], (a, b)[order[1]], c, *(blocks[i] for i in order)])
    numbers = (launch.plan.group, 0.5)
    assert recorder.starts[-1][-1] == [*itertools.chain.from_iterable(maps), *numbers]


def test_tensor_maps_follow_the_addresses_and_are_forgotten(direct, monkeypatch):
    launch, recorder = direct
    monkeypatch.setattr(launches, "MAX_TENSOR_MAPS", 7)
    kept = [three_matrices() for _ in range(5)]
    for matrices in kept:
        launch(*matrices)
        arguments = recorder.starts[-1][-1]
        for position, matrix in zip((0, 5, 10), matrices, strict=True):
            assert arguments[position][1] == matrix.data_ptr()
    assert len(recorder.maps) == 15
    launch(*kept[-1])
    launch(*kept[-2])
    assert len(recorder.maps) == 15
    launch(*kept[0])
    assert len(recorder.maps) == 18


def test_installed_hooks_send_a_launch_through_triton(direct, monkeypatch):
    """To the kernel of its plan."""
    launch, recorder = direct
    seen = []

    class Kernel:
        arg_names = launch.plan.kernel.arg_names

        def __getitem__(self, grid):
            return lambda **given: seen.append(given)

    launch.plan = dataclasses.replace(launch.plan, kernel=Kernel())
    hook = lambda metadata: None  # noqa: E731
    runtime = triton.knobs.runtime
    for chain in (runtime.launch_enter_hook, runtime.launch_exit_hook):
        chain.add(hook)
        launch(*three_matrices())
        chain.remove(hook)
    assert len(seen) == 2
    monkeypatch.setattr(runtime, "launch_enter_hook", hook)
    launch(*three_matrices())
    assert len(seen) == 3
    monkeypatch.setattr(runtime, "launch_enter_hook", None)
    launch(*three_matrices())
    assert len(seen) == 3
    assert len(recorder.starts) == 1
    monkeypatch.setattr(runtime, "add_stages_inspection_hook", lambda *args: ("key", "hash"))
    launch(*three_matrices())
    assert len(seen) == 4
    assert all({"a_desc", "b_desc", "c_desc", "PLAN"} <= given.keys() for given in seen)


# ------------------------------------------------------------------------ repeated calls


class ImaginedGpu:
    """A Hopper whose memory is the host's, and whose kernels are torch's operations.

    Attributes:
        prepared: the launches that were prepared.
        launched: the launches that were made, in order.
        poisoned: tensors that no launch may be given.
    """

    def __init__(self):
        self.prepared, self.launched, self.poisoned = [], [], []

    def launch(self, launch, a, b, c, epilogue):
        """What the kernel of a launch does: it looks at addresses, and sees what the views say."""
        self.launched.append(launch)
        fields = launch.config.epilogue
        read = {"bias": fields.bias, "residual": fields.residual,
                "scale_a": fields.a_scales, "scale_b": fields.b_scales}  # fmt: skip
        tensors = [getattr(epilogue, name) for name, asked in read.items() if asked]
        for tensor in (a, b, c, *tensors):
            assert tensor.data_ptr() % 16 == 0
            assert all(tensor.data_ptr() != other.data_ptr() for other in self.poisoned)
        matrices = []
        for tensor, view in zip((a, b, c, epilogue.residual), launch.views, strict=False):
            seen = tensor.as_strided(view.shape, view.strides)
            matrices.append(seen.mT if view.major == "MN" and len(matrices) == 0 else seen)
        a, b, c, *residual = matrices
        b = b.mT if launch.views[1].major == "K" else b
        made = a.double() @ b.double() * (epilogue.alpha if fields.alpha else 1)
        made = made * epilogue.scale_a.view(-1, 1) if fields.a_scales else made
        made = made * epilogue.scale_b.view(1, -1) if fields.b_scales else made
        made = made + epilogue.bias if fields.bias else made
        made = made + epilogue.beta * residual[0] if fields.residual else made
        activation = fields.activation
        c.copy_(made if activation is None else FUNCTIONS[activation](made))


@pytest.fixture
def imagined(monkeypatch):
    """An imagined GPU that all tensors are on."""
    gpu = ImaginedGpu()
    properties = types.SimpleNamespace(multi_processor_count=132)

    class Launch(launches.PreparedLaunch):
        def __init__(self, *args):
            super().__init__(*args)
            gpu.prepared.append(self)

        def __call__(self, a, b, c, epilogue=NOTHING):
            gpu.launch(self, a, b, c, epilogue)

    monkeypatch.setattr(planning, "PreparedLaunch", Launch)
    monkeypatch.setattr(planning, "threads_of", lambda *_: None)  # it has the kernels of TMA alone
    monkeypatch.setattr(checks, "require_gpu", lambda device: Gpu(90, properties, -1))
    monkeypatch.setattr(plans, "_current_gpu", lambda: -1)
    monkeypatch.setattr(plans, "_new_on_gpu", plans._new_on_host)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    plans.clear_cache()
    yield gpu
    plans.clear_cache()


def made_again(gpu, call):
    """What the second call returns; it prepares nothing, and launches once, as the first does."""
    first, prepared, before = call().clone(), len(gpu.prepared), len(gpu.launched)
    second = call()
    assert torch.equal(first, second)
    assert len(gpu.prepared) == prepared
    assert len(gpu.launched) == before + 1
    return second


@pytest.mark.parametrize("n", [24, 13])
def test_a_repeated_product_takes_new_memory(imagined, n):
    a, b = torch.randn(9, 16).half(), torch.randn(16, 24).half()[:, :n]
    first, second = triton_ext.matmul(a, b), triton_ext.matmul(a, b)
    assert len(imagined.launched) == 2
    assert first.data_ptr() != second.data_ptr()
    assert first.is_contiguous()
    assert_close(first, a, b)
    other = torch.randn(9, 16).half()
    assert_close(triton_ext.matmul(other, b), other, b)
    assert len(imagined.prepared) == 1
    for count, (x, y, options) in enumerate((
        (a[:8], b, {}), (a.bfloat16(), b.bfloat16(), {}), (a.t().contiguous().t(), b, {}),
        (torch.randn(9 * 16 + 1).half()[1:].view(9, 16), b, {}),
        (a, b, {"bias": torch.zeros(n).half()}), (a, b, {"activation": "relu"}),
        (a, b, {"out_dtype": torch.float32}), (a, b, {"residual": torch.zeros(9, n).half()}),
    ), 2):  # fmt: skip
        triton_ext.matmul(x, y, **options)
        assert len(imagined.prepared) == count


def test_a_repeated_product_copies_what_tma_cannot_read(imagined):
    a, b = torch.randn(9, 17).half()[:, 1:], torch.randn(16, 13).half()
    assert_close(made_again(imagined, lambda: triton_ext.matmul(a, b)), a, b)
    stack = torch.randn(2, 9, 17).half()
    assert_close(made_again(imagined, lambda: triton_ext.matmul(stack, b[:1].expand(17, 13))),
                 stack, b[:1].expand(17, 13))  # fmt: skip
    apart = torch.randn(3, 2, 9, 16).half().transpose(0, 2)  # rows that do not follow each other
    assert_close(made_again(imagined, lambda: triton_ext.matmul(apart, b)), apart, b)
    w = torch.randn(13, 15).half()[:, :11]
    found = made_again(imagined, lambda: triton_ext.linear(a[:, :11], w))
    assert_close(found, a[:, :11], w.t())


def test_repeated_products_of_stacks_and_transposed_weights(imagined):
    a, w, bias = torch.randn(2, 5, 16).half(), torch.randn(24, 16).half(), torch.randn(24).half()
    expected = torch.nn.functional.linear(a.double(), w.double(), bias.double())
    for call in (
        lambda: triton_ext.matmul(a, w.t(), bias=bias),
        lambda: triton_ext.linear(a, w, bias),
    ):
        out = made_again(imagined, call)
        assert out.shape == (2, 5, 24)
        assert torch.allclose(out.double(), expected, rtol=2e-3, atol=2e-3)
    assert len(imagined.prepared) == 1  # linear is the product with the transpose
    assert triton_ext.linear(a, w, bias, activation="gelu_tanh").shape == (2, 5, 24)
    made_again(imagined, lambda: triton_ext.linear(a, w, bias, activation="gelu_tanh"))
    made_again(imagined, lambda: triton_ext.matmul(a, w.t(), residual=a[0, 0, :1]))
    made_again(imagined, lambda: triton_ext.matmul(a, w.t(), residual=expected.half()))
    assert triton_ext.linear(a, a[0, 0]).shape == (2, 5)


def test_repeated_scaled_products(imagined):
    a, b = torch.ones(16, 32).to(torch.int8), torch.ones(24, 32).to(torch.int8).t()
    scales = torch.rand(16, 1), torch.rand(())
    bias = torch.randn(24).bfloat16()
    out = made_again(imagined, lambda: triton_ext.scaled_mm(a, b, *scales))
    assert out.dtype == torch.bfloat16
    exact = 32 * scales[0].double() * scales[1].double()
    assert relative_difference(out, exact.expand(16, 24)) < 2.0**-8
    count = len(imagined.prepared)
    for arguments, options in (
        ((scales[0], torch.rand(1, 24)), {}),
        ((scales[1], scales[1]), {}),
        (scales, {"bias": bias}),
        (scales, {"out_dtype": torch.float16}),
    ):
        made_again(imagined, lambda s=arguments, o=options: triton_ext.scaled_mm(a, b, *s, **o))
        count += 1
        assert len(imagined.prepared) == count
    for bad in (scales[0].double(), 1.0, None):
        with pytest.raises(LayoutError):
            triton_ext.scaled_mm(a, b, bad, scales[1])


def test_repeated_sums(imagined):
    a, b = torch.randn(9, 16).half(), torch.randn(16, 13).half()
    wide, unaligned = torch.randn(9, 16).half(), torch.randn(1 + 9 * 16).half()[1:].view(9, 16)
    addends = wide[:, :13], wide[0, :13], wide[:, :1], unaligned[:, :13]
    for count, addend in enumerate(addends, 1):
        for beta, alpha in ((2, 1), (-1, 1), (2, 0.5), (3, 2)):
            found = made_again(
                imagined,
                lambda x=addend, y=beta, z=alpha: triton_ext.addmm(x, a, b, beta=y, alpha=z),
            )
            assert relative_difference(found, exact_sum(addend, a, b, beta, alpha)) < 2.0**-10
        assert len(imagined.prepared) == 2 * count  # with and without alpha


def calls_of_the_host(function):
    """How many functions, of Python and of C, this project's code calls or is called by."""
    count = 0

    def seen(frame, event, argument):
        nonlocal count
        ours = "triton_ext" in frame.f_code.co_filename
        count += ours and event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def test_a_repeated_product_in_a_drop_in_takes_few_calls_of_the_host(imagined, monkeypatch):
    """The launch apart. Small products take the host longer than the GPU."""
    a, w, bias = torch.randn(2, 5, 16).half(), torch.randn(24, 16).half(), torch.randn(24).half()
    addend = torch.randn(10, 24).half()
    launched = []

    def launched_by_addresses(self, *addresses):
        return launched.append(addresses) or True

    with triton_ext.drop_in():
        for most, call in (
            (12, lambda: torch.mm(a[0], w.t())),
            (13, lambda: torch.nn.functional.linear(a, w, bias)),
            (14, lambda: torch.addmm(addend, a.view(10, 16), w.t())),
        ):
            made_again(imagined, call)
            with monkeypatch.context() as patch:
                patch.setattr(launches.PreparedLaunch, "at", launched_by_addresses)
                before = len(launched)
                assert calls_of_the_host(call) <= most
                assert len(launched) == before + 1


def test_repeated_batches(imagined):
    a, b = torch.randn(3, 9, 16).half(), torch.randn(3, 16, 13).half()
    for x, y in ((a, b), (a[:, :1], b), (a, b[:1].expand(3, 16, 13)), (a[:1], b[:1]),
                 (a[:1].expand(3, 9, 16), b[:1].expand(3, 16, 13))):  # fmt: skip
        found = made_again(imagined, lambda x=x, y=y: triton_ext.bmm(x, y))
        assert found.is_contiguous()
        assert_close(found, x, y)
    out = torch.empty(3, 9, 13).half()
    made_again(imagined, lambda: triton_ext.bmm(a, b, out=out))
    assert_close(out, a, b)


def test_repeated_products_with_gradients(imagined):
    a, w = torch.randn(2, 5, 16).half(), torch.randn(24, 16).half()
    bias, addend = torch.randn(24).half(), torch.randn(5, 24).half()
    for ours, theirs, tensors in (
        (triton_ext.linear, torch.nn.functional.linear, (a, w, bias)),
        (
            lambda *x: triton_ext.linear(*x, activation="relu"),
            lambda *x: torch.relu(torch.nn.functional.linear(*x)),
            (a, w, bias),
        ),
        (triton_ext.matmul, torch.matmul, (a, w.t().contiguous())),
        (
            lambda *x: triton_ext.addmm(*x, beta=2, alpha=0.5),
            lambda *x: torch.addmm(*x, beta=2, alpha=0.5),
            (addend, a[0], w.t().contiguous()),
        ),
    ):
        tensors = [x.detach().clone().requires_grad_() for x in tensors]
        exact = [x.detach().double().requires_grad_() for x in tensors]
        theirs(*exact).square().sum().backward()
        for attempt in range(3):
            count = len(imagined.prepared)
            found = torch.autograd.grad(ours(*tensors).square().sum(), tensors)
            for one, other in zip(found, exact, strict=True):
                assert relative_difference(one, other.grad) < 4e-3
            assert attempt < 2 or len(imagined.prepared) == count  # linear begins as matmul


def test_unaligned_extras_are_copied(imagined):
    a, b = torch.randn(9, 16).half(), torch.randn(16, 24).half()
    for bias in (torch.randn(25).half()[1:], torch.randn(48).half()[::2]):
        found = made_again(imagined, lambda x=bias: triton_ext.matmul(a, b, bias=x))
        assert relative_difference(found, a.double() @ b.double() + bias.double()) < 2.0**-10


def test_a_repeated_product_into_memory_that_overlaps_no_operand(imagined):
    base = torch.randn(64, 32).half()
    a, b, out = base[:16], base[16:48], base[48:64]
    exact = a.double() @ b.double()

    def written_directly(x, y, out, exact):
        """Whether the kernel wrote the output itself."""
        before = len(imagined.launched)
        assert triton_ext.matmul(x, y, out=out) is out
        assert relative_difference(out, exact) < 2.0**-10
        (launch,) = imagined.launched[before:]
        return launch

    direct = written_directly(a, b, out, exact)
    assert written_directly(a, b, out, exact) is direct
    assert written_directly(a, b, torch.empty(16, 32).half(), exact) is direct
    for x, y, z in ((out, b, out), (a, base[:32], base[16:32]), (a, b, base[47:63])):
        assert written_directly(x, y, z, x.double() @ y.double()) is not direct


def test_a_sum_in_place(imagined):
    """One launch reads and writes the residual; memory that overlaps it otherwise is not shared."""
    a, b = torch.randn(16, 16).half(), torch.randn(16, 32).half()
    base = torch.randn(40, 32).half()
    for addend, out, shared in (
        (base[:16], base[:16], True), (base[:16], base[:16], True), (base[:16], base[1:17], False),
        (base[:16], base[16:32], True), (base[0], base[:16], False),
    ):  # fmt: skip
        exact = exact_sum(addend, a, b, 0.5, 1)
        triton_ext.addmm(addend, a, b, beta=0.5, out=out)
        assert relative_difference(out, exact) < 2.0**-10
        assert (imagined.launched[-1] is imagined.prepared[0]) == shared


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("alpha", [1, 0.5])
def test_with_beta_zero_the_input_is_not_read(imagined, dtype, alpha):
    """Nor does its shape make another launch; those that cannot be broadcast are still refused."""
    a, b = torch.randn(9, 16).to(dtype), torch.randn(16, 24).to(dtype)
    exact = alpha * (a.double() @ b.double())
    triton_ext.addmm(torch.ones(9, 24).to(dtype), a, b, beta=2, alpha=alpha)
    for shape in ((9, 24), (24,), (1, 24), (9, 1), (1,), ()):
        for arranged_as in ("plain", "transposed", "offset"):
            nan = torch.full(shape, torch.nan).to(dtype)
            nan = arranged(shape, dtype, arranged_as, None).copy_(nan)
            imagined.poisoned = [nan]
            before = len(imagined.launched)
            for options in ({}, {}, {"out": torch.empty(9, 24).to(dtype)}):
                found = triton_ext.addmm(nan, a, b, beta=0, alpha=alpha, **options)
                assert relative_difference(found, exact) < 2 * UNIT_ROUNDOFF[dtype]
            in_place = torch.full((9, 24), torch.nan).to(dtype)
            triton_ext.addmm(in_place, a, b, beta=0, alpha=alpha, out=in_place)
            assert relative_difference(in_place, exact) < 2 * UNIT_ROUNDOFF[dtype]
            triton_ext.matmul(a, b, residual=nan, beta=0)
            assert len(imagined.launched) == before + 5
    for bad in (torch.ones(5), torch.ones(2, 9, 24)):
        with pytest.raises(LayoutError, match=r"input\.shape"):
            triton_ext.addmm(bad.to(dtype), a, b, beta=0, alpha=alpha)
    with pytest.raises(LayoutError, match=r"input\.dtype"):
        triton_ext.addmm(torch.ones(24).double(), a, b, beta=0, alpha=alpha)


def test_tf32_is_checked_each_time(imagined):
    a, b = torch.randn(8, 16), torch.randn(24, 16).t()
    torch.set_float32_matmul_precision("high")
    try:
        triton_ext.matmul(a, b)
        made_again(imagined, lambda: triton_ext.matmul(a, b))
        assert len(imagined.prepared) == 1
    finally:
        torch.set_float32_matmul_precision("highest")
    with pytest.raises(LayoutError, match="set_float32_matmul_precision"):
        triton_ext.matmul(a, b)


def test_what_is_kept_is_bounded(imagined, monkeypatch):
    monkeypatch.setattr(plans, "MAX_PLANS", 3)
    b = torch.randn(16, 24).half()
    for m in range(8, 18):
        triton_ext.matmul(torch.randn(m, 16).half(), b)
    assert len(imagined.prepared) == 10
    for m, found in ((17, True), (16, True), (15, True), (14, False), (8, False)):
        plan = plans.find(Call(torch.randn(m, 16).half(), b))
        assert (plan is not None) == found


def test_importing_the_package_imports_no_torch():
    code = "import sys, triton_ext; assert not {'torch', 'triton'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_names():
    with pytest.raises(AttributeError):
        _ = triton_ext.matmal
