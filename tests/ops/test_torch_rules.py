"""torch's rules, each argument in turn: shapes, factors of zero, NaN and infinity, gradients."""

from __future__ import annotations

import itertools
import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from covers import pairwise  # noqa: E402
from shallow_rings import two_stages  # noqa: E402

import triton_ext  # noqa: E402
from triton_ext import LayoutError  # noqa: E402
from triton_ext.ops import eager, flops  # noqa: E402
from triton_ext.ops.call import Call  # noqa: E402
from triton_ext.ops.epilogue import epilogue_of, finished  # noqa: E402
from triton_ext.ops.shapes import one_matrix  # noqa: E402

NAN, INF = torch.nan, torch.inf


@pytest.fixture(scope="module", autouse=True)
def gpu():
    with triton_ext.emulate("sm_90") as gpu, two_stages():
        yield gpu


def integers(*shape, seed=0):
    """Small enough that sums of products, rounded nowhere, are exact in fp16."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(-3, 4, shape, generator=generator).half()


# ------------------------------------------------------------------------------------- shapes


@pytest.fixture
def by_torch(monkeypatch):
    """Kernels that are torch's operations: what becomes of shapes is asked, thousands of times."""
    calls = []

    def product(call):
        assert call.b.dim() in (2, 3)
        assert call.b.dim() == 2 or call.a.dim() == 3
        assert call.epilogue.bias is None or call.epilogue.bias.shape == call.b.shape[-1:]
        calls.append(call)
        return finished(torch.matmul(call.a.float(), call.b.float()), wide(call.epilogue)).half()

    def wide(epilogue):
        addends = {name: each.float() for name, each in epilogue.tensors.items()}
        return epilogue._replace(**addends) if addends else epilogue

    monkeypatch.setattr(eager, "product", product)
    return calls


LEFT = [(5,), (1,), (4, 5), (1, 5), (2, 4, 5), (1, 4, 5), (3, 2, 4, 5), (3, 1, 1, 5), (2, 0, 5)]
RIGHT = [(5,), (5, 6), (5, 1), (2, 5, 6), (1, 5, 6), (2, 5, 1), (3, 2, 5, 6), (3, 1, 5, 6),
         (3, 1, 5, 1), (2, 5, 0)]  # fmt: skip


def addends(shape):
    """Shapes that can be broadcast to one: all of it, ones in place of some, fewer dimensions."""
    yield shape
    for start in range(1, len(shape) + 1):
        yield shape[start:]
    for ones in itertools.product([False, True], repeat=len(shape)):
        yield tuple(1 if one else size for one, size in zip(ones, shape, strict=True))


@pytest.mark.parametrize("left", LEFT, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("right", RIGHT, ids=lambda s: "x".join(map(str, s)))
def test_corner_shapes(by_torch, left, right):
    """Vectors, matrices and batches of every kind by each other, with and without addends."""
    a, b = integers(*left), integers(*right)
    try:
        exact = torch.matmul(a.double(), b.double())
    except RuntimeError:
        with pytest.raises(LayoutError):
            triton_ext.matmul(a, b)
        return
    found = triton_ext.matmul(a, b)
    assert found.shape == exact.shape
    assert torch.equal(found.double(), exact)
    out = torch.empty(0).half()
    assert triton_ext.matmul(a, b, out=out) is out
    assert torch.equal(out.double(), exact)
    for shape in dict.fromkeys(addends(tuple(exact.shape))):
        bias, residual = integers(*shape, seed=1), integers(*shape, seed=2)
        for options, wanted in (
            ({"bias": bias}, exact + bias),
            ({"residual": residual, "beta": 2}, exact + 2 * residual),
            ({"bias": bias, "residual": residual}, exact + bias + residual),
        ):
            found = triton_ext.matmul(a, b, **options, activation="relu")
            assert found.shape == exact.shape
            assert torch.equal(found.double(), wanted.relu()), (shape, [*options])
    for shape in ((*exact.shape, 7), (9, *exact.shape)):
        for name in ("bias", "residual"):
            with pytest.raises(LayoutError, match=rf"{name}\.shape"):
                triton_ext.matmul(a, b, **{name: integers(*shape)})


def test_a_batch_with_a_bias_and_a_residual_is_one_launch(gpu):
    a, b = integers(3, 9, 16), integers(3, 16, 24)
    bias, residual = integers(24), integers(3, 9, 24, seed=1)
    for y in (b, b[:1].expand(3, 16, 24)):
        for x in (a, a[:1].expand(3, 9, 16)):
            exact = torch.relu(x.double() @ y.double() + bias + 0.5 * residual)
            before = gpu.launches
            options = {"bias": bias, "residual": residual, "beta": 0.5, "activation": "relu"}
            assert torch.equal(triton_ext.matmul(x, y, **options).double(), exact)
            assert gpu.launches == before + 1


def test_one_matrix_of_a_batch():
    """Where b is the same for all, but for residuals of a sum that is the same, too."""
    a, b, residual = integers(3, 4, 8), integers(1, 8, 6).expand(3, 8, 6), integers(3, 4, 6)
    rows = one_matrix(Call(a, b, epilogue_of(residual=residual)))
    assert rows.a.shape == (12, 8)
    assert torch.equal(rows.epilogue.residual, residual.flatten(0, 1))
    same = a[:1].expand(3, 4, 8)
    assert one_matrix(Call(same, b)).a.shape == (4, 8)
    assert one_matrix(Call(same, b, epilogue_of(residual=residual))).a.shape == (12, 8)
    assert one_matrix(Call(same, b, epilogue_of(residual=residual[:1]))).a.shape == (4, 8)
    assert one_matrix(Call(a, integers(3, 8, 6))) is None


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_a_batch_is_rounded_once(arch):
    """2,049 + 1 is 2,050 in fp16; 2,049 alone is 2,048, and so is 2,048 + 1."""
    a = torch.zeros(2, 8, 16).half()
    a[..., 0], a[..., 1] = 2048, 1
    b, one = torch.ones(2, 16, 8).half(), torch.ones(8).half()
    with triton_ext.emulate(arch):
        for make in (
            lambda: triton_ext.matmul(a, b, bias=one),
            lambda: triton_ext.matmul(a, b, residual=one),
            lambda: triton_ext.matmul(a, b, residual=one.expand(2, 8, 8), activation="relu"),
            lambda: triton_ext.matmul(a[:, 0], b[0], bias=one),
            lambda: triton_ext.matmul(a, b, bias=one.clone().requires_grad_()),
        ):
            assert (make() == 2050).all()


def test_gradients_of_a_batch_with_addends():
    tensors = [torch.randn(s).half() for s in ((3, 9, 16), (3, 16, 8), (8,), (9, 1))]
    tensors = [each.requires_grad_() for each in tensors]
    exact = [each.detach().double().requires_grad_() for each in tensors]
    a, b, bias, residual = tensors
    options = {"bias": bias, "residual": residual, "beta": 0.5, "activation": "silu"}
    triton_ext.matmul(a, b, **options).sum().backward()
    a, b, bias, residual = exact
    torch.nn.functional.silu(a @ b + bias + 0.5 * residual).sum().backward()
    for ours, theirs in zip(tensors, exact, strict=True):
        error = (ours.grad.double() - theirs.grad).norm() / theirs.grad.norm()
        assert error < 4e-3


def test_vmap_of_batches_with_addends():
    """The new dimension in each argument of the operator of batches, and in several."""
    a, b = integers(2, 3, 4, 8), integers(2, 3, 8, 6)
    bias, residual = integers(2, 6), integers(2, 3, 1, 6)
    operator = torch.ops.triton_ext.bmm

    def ours(a, b, bias, residual):
        return operator(a, b, bias, None, None, residual, 0.5, 1.0)

    def theirs(a, b, bias, residual):
        return a @ b + bias + 0.5 * residual

    for batched in ((1, 1, 1, 1), (1, 0, 0, 0), (0, 0, 1, 0), (0, 1, 0, 1)):
        given = [x if yes else x[0] for x, yes in zip((a, b, bias, residual), batched, strict=True)]
        in_dims = tuple(0 if yes else None for yes in batched)
        exact = torch.vmap(theirs, in_dims)(*(x.double() for x in given))
        assert torch.equal(torch.vmap(ours, in_dims)(*given).double(), exact)


# ----------------------------------------------------------------------------- factors of zero


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize(("beta", "alpha"), [(1, 0), (2, 0), (0, 0), (0, 2), (1, 2)])
def test_addmm_reads_what_its_factors_are_not_zero_of(which, value, beta, alpha):
    """As torch does on the CPU in fp32, argument by argument."""
    tensors = [integers(*s) for s in ((8, 24), (8, 16), (16, 24))]
    tensors[which][3, 4] = value
    exact = torch.addmm(*(each.float() for each in tensors), beta=beta, alpha=alpha).half()
    for make in (
        lambda: triton_ext.addmm(*tensors, beta=beta, alpha=alpha),
        lambda: triton_ext.addmm(*tensors, beta=beta, alpha=alpha, out=torch.empty(8, 24).half()),
        lambda: torch.ops.triton_ext.mm(
            *tensors[1:], None, None, None, tensors[0], float(beta), float(alpha)
        ),
    ):
        torch.testing.assert_close(make(), exact, rtol=0, atol=0, equal_nan=True)


def test_alpha_of_zero_launches_nothing(gpu):
    before = gpu.launches
    a, b, addend = integers(8, 16), integers(16, 24), integers(24)
    made = triton_ext.addmm(addend, a, b, alpha=0)
    assert torch.equal(made, addend.expand(8, 24))
    assert gpu.launches == before
    assert torch.equal(triton_ext.addmm(addend, a, b, alpha=2), (addend + 2 * (a @ b)))


@pytest.mark.parametrize(("beta", "alpha"), [(0, 1), (1, 0), (0, 0), (0, 2)])
@pytest.mark.parametrize("shape", [(8, 24), (24,), (8, 1)])
@pytest.mark.parametrize("wanted", [(0,), (0, 1, 2), (1,)])
def test_gradients_of_factors_of_zero(beta, alpha, shape, wanted):
    """Zeros, not None; and a result of an addend alone has a gradient, too."""
    tensors = [integers(*s) for s in (shape, (8, 16), (16, 24))]
    if beta == 0:
        tensors[0].fill_(NAN)
    ours, exact = ([each.clone().to(t) for each in tensors] for t in (torch.half, torch.float))
    for each in (ours, exact):
        for number in wanted:
            each[number].requires_grad_()
    made = triton_ext.addmm(*ours, beta=beta, alpha=alpha)
    theirs = torch.addmm(*exact, beta=beta, alpha=alpha)
    assert made.requires_grad
    assert torch.equal(made.float(), theirs)
    made.float().sum().backward()
    theirs.sum().backward()
    for one, other in zip(ours, exact, strict=True):
        if other.grad is None:
            assert one.grad is None
        else:
            assert torch.equal(one.grad.float(), other.grad)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "shapes", [((8, 16), (16, 24)), ((2, 8, 16), (2, 16, 24)), ((16,), (16, 24))]
)
def test_a_residual_with_beta_zero(shapes, compiled):
    """It is not read, whatever is multiplied, and has a gradient of zeros."""
    a, b = (integers(*shape) for shape in shapes)
    residual = torch.full((24,), NAN).half().requires_grad_()

    def product(a, b, residual):
        return triton_ext.matmul(a, b, residual=residual, beta=0, activation="relu")

    call = torch.compile(product, backend="aot_eager", fullgraph=True) if compiled else product
    made = call(a, b, residual)
    assert torch.equal(made.double(), torch.relu(a.double() @ b.double()))
    made.sum().backward()
    assert torch.equal(residual.grad, torch.zeros(24).half())
    with torch.no_grad():
        assert torch.equal(call(a, b, residual), made)


def test_no_gradient_of_a_scale_is_lost():
    a, b = torch.ones(16, 32).to(torch.int8), torch.ones(32, 16).to(torch.int8)
    given = {"scale_a": torch.ones(16, 1), "scale_b": torch.ones(1), "bias": torch.ones(16).half()}
    for name in given:
        wanting = {**given, name: given[name].clone().requires_grad_()}
        with pytest.raises(LayoutError, match="scaled_mm has no gradient"):
            triton_ext.scaled_mm(a, b, **wanting, out_dtype=torch.float16)
        with torch.no_grad():
            assert (triton_ext.scaled_mm(a, b, **wanting, out_dtype=torch.float16) == 33).all()


# ----------------------------------------------------------------------- NaN and infinity


@pytest.mark.parametrize(
    ("activation", "dtype", "arch"),
    pairwise(
        ["relu", "gelu", "gelu_tanh", "silu"],
        [torch.float16, torch.bfloat16, torch.float32],
        ["sm_90", "sm_100"],
    ),
    ids=str,
)
def test_activations_of_what_is_no_number(arch, dtype, activation):
    """In the kernel, and in torch's operation behind it, as torch's on the CPU."""
    functions = {
        "relu": torch.relu,
        # by its formula, as torch's on a GPU: on some CPUs torch's of infinity is NaN
        "gelu": lambda x: x.double() / 2 * (1 + torch.erf(x.double() / math.sqrt(2))),
        "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        "silu": torch.nn.functional.silu,
    }
    large = 6e4 if dtype == torch.float16 else 3e38
    operand = torch.float16 if dtype == torch.float16 else torch.bfloat16
    x = torch.tensor([-INF, INF, NAN, -large, large, 0.0, -1.0, 1.0]).to(operand)[:, None]
    with triton_ext.emulate(arch):
        found = triton_ext.linear(x, torch.ones(8, 1).to(operand), activation=activation,
                                  out_dtype=dtype)  # fmt: skip
    exact = functions[activation](x.float()).to(dtype).expand(8, 8)
    torch.testing.assert_close(found, exact, rtol=2.0**-7, atol=1e-3, equal_nan=True)


# ------------------------------------------------------------------------------------- operations


def test_flops_are_counted_as_torch_counts_its_own():
    """What compilers weigh by: a product that costs nothing would be made again in the backward."""
    from torch.utils.flop_counter import FlopCounterMode

    def counted(function):
        with FlopCounterMode(display=False) as counter:
            function()
        return counter.get_total_flops()

    operators = torch.ops.triton_ext
    a, b, experts = integers(6, 32), integers(32, 16), integers(2, 32, 16)
    ends, rows = torch.tensor([2, 6]).int(), torch.tensor([0, 1, 1]).int()
    batch = a.expand(2, 6, 32).contiguous()
    scaled = [each.to(torch.float8_e4m3fn) for each in (a, experts)]
    cases = [
        (lambda: operators.mm(a, b), lambda: a @ b),
        (lambda: operators.mm(a, b, activation="swiglu"), lambda: a @ b),
        (lambda: operators.bmm(batch, experts), lambda: batch @ experts),
        (lambda: operators.grouped_mm(a, experts, ends), lambda: a @ b),
        (lambda: operators.grouped_mm(a, experts, ends // 2, rows=rows), lambda: a[rows] @ b),
        (lambda: operators.grouped_mm(a.t(), integers(6, 16), ends), lambda: a.t() @ a[:, :16]),
    ]
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        for ours, theirs in cases:
            assert counted(ours) == counted(theirs) > 0
        scales = torch.ones(6, 1), torch.ones(2, 16), None, None
        made = lambda: operators.scaled_grouped_mm(  # noqa: E731
            *scaled, ends // 2, *scales, torch.bfloat16, True, rows=rows
        )
        assert counted(made) == counted(lambda: a[rows] @ b)


def test_counters_that_are_already_entered_count_operators_that_come_later():
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as outer, FlopCounterMode(display=False) as counter:
        late = torch.library.custom_op("triton_ext::late", lambda a: a.clone(), mutates_args=(),
                                       schema="(Tensor a) -> Tensor")  # fmt: skip
        flops.counted_by("late", lambda shape, **_: 7 * shape[0])
        late(torch.ones(3))
    assert counter.get_total_flops() == outer.get_total_flops() == 21


# ------------------------------------------------------------------------------------- out


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("adds", [False, True])
def test_an_out_that_is_a_transpose_is_written_where_it_lies(batch, adds):
    """As the gradients of weights that a program keeps transposed: torch makes no copy either."""
    a, b = integers(*batch, 40, 64), integers(*batch, 64, 24)
    out = integers(*batch, 24, 40, seed=1).mT
    residual = out if adds else None
    wanted = a.float() @ b.float() + (2 * out.float() if adds else 0)
    memory = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with memory as seen:
        made = triton_ext.matmul(a, b, residual=residual, beta=2 if adds else 1, out=out)
    assert made is out
    assert torch.equal(out, wanted.half())
    assert "aten::copy_" not in {each.key for each in seen.key_averages()}


# ------------------------------------------------------------------------------------- meta


@pytest.mark.parametrize("warm", [False, True])
def test_tensors_on_meta_have_the_shapes_and_types_of_real_ones(warm, gpu):
    a, b, experts = integers(6, 32), integers(32, 16), integers(2, 32, 16)
    ends = torch.tensor([2, 6]).int()

    def made(a, b, experts, ends):
        scaled = a.to(torch.float8_e4m3fn), experts.to(torch.float8_e4m3fn)
        scales = torch.ones(6, device=a.device), torch.ones(2, 16, device=a.device)
        yield triton_ext.matmul(a, b)
        yield triton_ext.linear(a.detach().requires_grad_(), b.t(), activation="swiglu")
        yield triton_ext.bmm(a.view(2, 3, 32), experts, out_dtype=torch.float32)
        yield triton_ext.grouped_mm(a, experts, ends)
        yield triton_ext.scaled_grouped_mm(*scaled, *scales, ends)

    real = [(each.shape, each.dtype) for each in made(a, b, experts, ends)] if warm else None
    launches = gpu.launches
    found = list(made(*(each.to("meta") for each in (a, b, experts, ends))))
    assert gpu.launches == launches
    assert all(each.is_meta for each in found)
    if real is not None:
        assert [(each.shape, each.dtype) for each in found] == real
    with pytest.raises((LayoutError, RuntimeError)):
        triton_ext.matmul(a.to("meta"), b)
