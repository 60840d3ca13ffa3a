"""Derivatives of functions and operators: ``torch.func``, both modes, activations."""

import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap  # noqa: E402

import triton_ext  # noqa: E402
from triton_ext import LayoutError  # noqa: E402
from triton_ext.ops.epilogue import ACTIVATION_FUNCTIONS  # noqa: E402
from triton_ext.ops.gates import GATES  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")


@pytest.fixture(scope="module", autouse=True)
def gpu():
    with triton_ext.emulate("sm_90") as gpu:
        yield gpu


def drawn(*shape, seed=0, dtype=torch.float16):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(shape, generator=generator) / 2).to(dtype)


def energy(product):
    """A number made of a product."""
    return lambda *operands: product(*operands).float().square().sum() / 16


def pulled(product, a, b):
    made, pull = vjp(product, a, b)
    return made, *pull(torch.ones_like(made))


TRANSFORMATIONS = {
    "grad": lambda f, a, b: grad(energy(f), (0, 1))(a, b),
    "vjp": pulled,
    "jvp": lambda f, a, b: jvp(f, (a, b), (a, b)),
    "jvp of grad": lambda f, a, b: jvp(grad(energy(f)), (a, b), (a, b)),
    "grad of jvp": lambda f, a, b: grad(lambda x: energy(lambda: jvp(f, (x, b), (a, b))[1])())(a),
    "grad of grad": lambda f, a, b: grad(energy(grad(energy(f))))(a, b),
    "hessian": lambda f, a, b: hessian(energy(f))(a[:1], b),
    "jacobians": lambda f, a, b: (jacrev(f)(a[:1], b), jacfwd(f)(a[:1], b)),
    "gradients of samples": lambda f, a, b: vmap(grad(energy(f), (0, 1)), (0, None))(
        a.view(2, -1, a.shape[1]), b
    ),
    "grad of vmap": lambda f, a, b: grad(energy(vmap(f, (0, None))))(a.view(2, -1, a.shape[1]), b),
    "jvp of vmap": lambda f, a, b: jvp(vmap(f, (0, None)), (a[:, None], b), (a[:, None], b)),
    "linearized": lambda f, a, b: torch.func.linearize(lambda x: f(x, b), a)[1](a),
    "vectorized jacobian": lambda f, a, b: torch.autograd.functional.jacobian(
        lambda x: f(x, b), a[:1], vectorize=True, create_graph=True
    ),
    "compiled grad": lambda f, a, b: torch.compile(grad(energy(f)), backend="aot_eager")(a, b),
}


def flat(made):
    return [made] if isinstance(made, torch.Tensor) else [x for each in made for x in flat(each)]


def differences(found, exact):
    """Relative to all of each tensor."""
    for one, other in zip(flat(found), flat(exact), strict=True):
        assert one.shape == other.shape
        yield float((one.double() - other).detach().norm() / (other.detach().norm() + 1e-6))


@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("activation", [None, "swiglu"])
def test_transformations(transformation, activation):
    transformed, a, b = TRANSFORMATIONS[transformation], drawn(4, 16), drawn(16, 8)

    def exact(a, b):
        return a @ b if activation is None else ACTIVATION_FUNCTIONS[activation](a @ b)

    found = transformed(lambda a, b: triton_ext.matmul(a, b, activation=activation), a, b)
    assert max(differences(found, transformed(exact, a.double(), b.double()))) < 1e-2


def grouped(a, b, bias, offs, activation):
    parts = [
        rows @ weight + added
        for rows, weight, added in zip(a.tensor_split(offs[:-1].tolist()), b, bias, strict=True)
    ]
    made = torch.cat(parts)
    return made if activation is None else ACTIVATION_FUNCTIONS[activation](made)


def operators(activation, dtype):
    """Each operator, the same in torch, and their arguments."""
    residual = () if activation in GATES else (drawn(6, 16, seed=4, dtype=dtype),)
    offs = torch.tensor([2, 6], dtype=torch.int32)

    def summed(a, b, bias, residual=0):
        made = 2 * (a @ b) + bias + 0.5 * residual
        return made if activation is None else ACTIVATION_FUNCTIONS[activation](made)

    def ours(operator):
        return lambda a, b, bias, residual=None: operator(
            a, b, bias, None, activation, residual, 0.5, 2
        )

    a, b, bias = (drawn(*s, dtype=dtype) for s in ((6, 16), (16, 16), (16,)))
    batch = drawn(2, 6, 16, dtype=dtype), drawn(2, 16, 16, dtype=dtype)
    biases = drawn(2, 16, seed=9, dtype=dtype)
    ops = torch.ops.triton_ext
    yield ours(ops.mm), summed, (a, b, bias, *residual)
    yield ours(ops.bmm), summed, (*batch, bias, *residual)
    yield (
        lambda a, b, bias: ops.grouped_mm(a, b, offs, None, activation, bias=bias),
        lambda a, b, bias: grouped(a, b, bias, offs, activation),
        (a, batch[1], biases),
    )


def twice(function, tensors):
    """The result, its gradients, and those of the gradients."""
    tensors = [each.clone().requires_grad_() for each in tensors]
    made = function(*tensors)
    first = torch.autograd.grad(made.double().square().mean(), tensors, create_graph=True)
    total = sum(each.double().square().sum() for each in first)
    return made, first, torch.autograd.grad(total, tensors)


@pytest.mark.parametrize("activation", [None, "silu", "swigluoai_interleaved"])
def test_operators(activation):
    """Called as ``torch.ops.triton_ext``, with any activation; types drawn."""
    dtype = random.Random(str(activation)).choice([torch.float16, torch.bfloat16])
    for ours, theirs, tensors in operators(activation, dtype):
        wide = [each.double() for each in tensors]
        found, exact = twice(ours, tensors), twice(theirs, wide)
        assert max(differences(found, exact)) < (1e-2 if dtype == torch.float16 else 6e-2)
        tangents = tuple(drawn(*each.shape, seed=1, dtype=dtype) for each in tensors)
        if activation is None:
            found = jvp(ours, tensors, tangents)
            exact = jvp(theirs, tuple(wide), tuple(each.double() for each in tangents))
            assert max(differences(found, exact)) < (2e-3 if dtype == torch.float16 else 1e-2)
        else:
            with pytest.raises(LayoutError, match="forward-mode"):
                jvp(ours, tensors, tangents)


def test_operators_without_derivatives_say_so():
    a = drawn(16, 16).to(torch.float8_e4m3fn)
    one = torch.ones(1)
    scaled = torch.ops.triton_ext.scaled_mm
    with pytest.raises(LayoutError, match="scaled_mm has no gradient"):
        scaled(a, a.T, one.clone().requires_grad_(), one, None, torch.float16)
    with pytest.raises(LayoutError, match="scaled_mm has no forward-mode derivative"):
        jvp(lambda s: scaled(a, a.T, s, one, None, torch.float16), (one,), (one,))
