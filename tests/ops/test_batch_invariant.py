"""`triton_ext.batch_invariant`: a row's bits do not depend on the rows beside it."""

from __future__ import annotations

import functools
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from shallow_rings import two_stages  # noqa: E402

import triton_ext  # noqa: E402
from triton_ext import LayoutError  # noqa: E402
from triton_ext.kernels.choice import candidates  # noqa: E402
from triton_ext.kernels.choice.choose import choose_config  # noqa: E402
from triton_ext.kernels.choice.problem import Problem  # noqa: E402
from triton_ext.kernels.product import ProductSpec  # noqa: E402
from triton_ext.kernels.spec import kernel_spec  # noqa: E402
from triton_ext.ops import planning, plans  # noqa: E402
from triton_ext.ops.rule import is_batch_invariant  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_binaries")
ROWS = [1, 2, 7, 8, 16, 33, 64, 100, 128, 200, 512, 1000, 4096, 16384]
PRODUCTS = [
    (90, ProductSpec("bf16", b_major="K")),
    (90, ProductSpec("fp16", "MN", "MN", out_type="fp32")),
    (90, ProductSpec("e4m3", out_type="bf16")),
    (90, ProductSpec("tf32")),
    (90, ProductSpec("int8")),
    (100, ProductSpec("bf16", b_major="K")),
    (100, ProductSpec("e5m2", out_type="bf16")),
]
if candidates.is_new():
    blocks = {"a_scale_rows": 1, "b_scale_rows": 128, "out_type": "bf16"}
    PRODUCTS += [
        (90, ProductSpec("e4m3", fp32_accumulation=True, out_type="bf16")),
        (90, ProductSpec("e4m3", fp32_accumulation=True, **blocks)),
        (100, ProductSpec("e4m3", **blocks)),
    ]


@pytest.mark.parametrize(("arch", "product"), PRODUCTS)
def test_no_chosen_kernel_divides_k(arch, product):
    """For any number of rows; the free choice does divide it. The depth of what is added in fp32 is
    the same for all.
    """
    sizes = [Problem(m, n, k) for m in ROWS for n, k in ((256, 8192), (4096, 1024))]
    chosen = [choose_config(arch, product, size, in_order=True) for size in sizes]
    assert all(config.adds_in_order for config in chosen)
    assert all(config.tile.split_k == config.tile.cluster_k == 1 for config in chosen)
    if product.fp32_accumulation or product.has_fp32_blocks:
        assert {config.tile.block_k for config in chosen} == {128}
    assert not all(choose_config(arch, product, size).adds_in_order for size in sizes)


def rows_of(make, counts):
    """The first row of products with so many rows."""
    return [make(count)[0] for count in counts]


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_a_row_has_the_same_bits_in_every_batch(arch):
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(72, 2048, generator=generator).bfloat16()
    b = torch.randn(16, 2048, generator=generator).bfloat16().t()
    counts = [1, 72]

    def matmul(count, **options):
        return triton_ext.matmul(a[:count], b, out_dtype=torch.float32, **options)

    with triton_ext.emulate(arch), two_stages():
        free = rows_of(matmul, counts)
        asked = rows_of(functools.partial(matmul, batch_invariant=True), counts)
        with triton_ext.batch_invariant():
            made = rows_of(matmul, counts) + asked
            if candidates.is_new():
                offs = torch.tensor([1, 9]).int()
                groups = torch.stack([b, b])
                made += [triton_ext.grouped_mm(a[:9], groups, offs, out_dtype=torch.float32)[0]]
    assert all(torch.equal(made[0], each) for each in made)
    assert not all(torch.equal(made[0], each) for each in free)  # or nothing would be shown


@pytest.mark.skipif(not candidates.is_new(), reason="needs Triton 3.9")
@pytest.mark.parametrize("promoted", [False, True])
def test_rows_of_fp8(promoted):
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(n, 768, generator=generator).to(torch.float8_e4m3fn) for n in (130, 16))
    one = torch.ones(())

    def scaled_mm(count):
        return triton_ext.scaled_mm(
            a[:count], b.t(), one, one, out_dtype=torch.float32, use_fast_accum=not promoted
        )

    with triton_ext.emulate("sm_90"), two_stages(), triton_ext.batch_invariant():
        made = rows_of(scaled_mm, [1, 130])
    assert all(torch.equal(made[0], each) for each in made)


@pytest.fixture
def asked_for():
    """What of the order of K each configuration was chosen for."""
    found = []

    def choose(*problem, **options):
        found.append(options["in_order"])
        return choose_config(*problem, **options)

    with mock.patch.object(planning, "choose_config", choose), triton_ext.emulate("sm_90"):
        plans.clear_cache()
        yield found


A, B = torch.ones(8, 16).bfloat16(), torch.ones(16, 24).bfloat16()


def gradients(function):
    a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
    return torch.autograd.grad(function(a, b).sum(), (a, b))


def compiled(function):
    torch.compiler.reset()  # which allows one function eight compilations
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def of_groups(a, b, **options):
    return triton_ext.grouped_mm(a, b[None], torch.tensor([8]).int(), **options)


def fp8(a, b, function=triton_ext.scaled_mm, offs=None, **options):
    a, b, one = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn), torch.ones(())
    if offs is None:
        return function(a, b, one, one, **options)
    return function(a, b[None], one, one, offs, **options)


WAYS = {
    "matmul": (1, lambda **how: triton_ext.matmul(A, B, **how)),
    "a batch": (1, lambda **how: triton_ext.bmm(A[None], B[None], **how)),
    "addmm": (1, lambda **how: triton_ext.addmm(B[0], A, B, **how)),
    "linear's gradients": (
        3, lambda **how: gradients(lambda a, b: triton_ext.linear(a, b.t(), **how))
    ),
    "a gate's gradients": (
        4, lambda **how: gradients(lambda a, b: triton_ext.matmul(a, b, activation="reglu", **how))
    ),
    "a batch's gradients": (
        3,
        lambda **how: gradients(
            lambda a, b: triton_ext.matmul(a.expand(2, 8, 16), b.expand(2, 16, 24), **how)
        ),
    ),
    "a compiled layer's gradients": (
        3,
        lambda **how: gradients(compiled(lambda a, b: triton_ext.matmul(a, b, **how))),
    ),
    "vmap": (
        1,
        lambda **how: torch.func.vmap(lambda a: triton_ext.matmul(a, B, **how))(A.expand(2, 8, 16)),
    ),
    "a tangent": (
        2,
        lambda **how: torch.func.jvp(
            lambda a: triton_ext.matmul(a, B, bias=B[0], **how), (A,), (A,)
        ),
    ),
}  # fmt: skip
"""How many products a call makes, and the call."""
if candidates.is_new():
    ends = torch.tensor([8]).int()
    WAYS |= {
        "groups' gradients": (3, lambda **how: gradients(functools.partial(of_groups, **how))),
        "scaled_mm": (1, lambda **how: fp8(A, B, **how)),
        "a compiled scaled_mm": (1, lambda **how: compiled(fp8)(A, B, **how)),
        "scaled groups": (
            1, lambda **how: fp8(A, B, triton_ext.scaled_grouped_mm, ends, **how)
        ),
    }  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_every_way_asks_for_what_its_keyword_says(way, asked_for):
    """Not for what the context says; in the backward, too."""
    count, call = WAYS[way]
    call(batch_invariant=True)
    assert asked_for == [True] * count
    with triton_ext.batch_invariant():
        call(batch_invariant=False)
    assert asked_for[count:] == [False] * count


def test_fake_tensors():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode() as mode:
        a, b = mode.from_tensor(A), mode.from_tensor(B)
        a.requires_grad_()
        made = triton_ext.matmul(a, b, batch_invariant=True)
        assert torch.autograd.grad(made.sum(), a)[0].shape == A.shape
        if candidates.is_new():
            assert of_groups(a, b, batch_invariant=True).shape == (8, 24)
            assert fp8(a.detach(), b, batch_invariant=True).shape == (8, 24)


def test_what_cannot_be_asked_for():
    with triton_ext.emulate("sm_90"):
        with pytest.raises(LayoutError, match="batch_invariant"):
            triton_ext.matmul(A, B, batch_invariant="yes")
        divided = kernel_spec(arch=90, element_type="bf16", consumers=1, split_k=2)
        with pytest.raises(LayoutError, match="must not divide K"):
            triton_ext.matmul(A, B, config=divided, batch_invariant=True)
        if candidates.is_new():
            for function in (fp8, of_groups):
                with pytest.raises(LayoutError, match="batch_invariant"):
                    function(A, B, batch_invariant="yes")


def test_blocks_end():
    assert not is_batch_invariant()
    with triton_ext.batch_invariant():
        with triton_ext.batch_invariant(False):
            assert not is_batch_invariant()
        assert is_batch_invariant()
    assert not is_batch_invariant()
    held = triton_ext.batch_invariant()
    assert is_batch_invariant()
    held.close()
    assert not is_batch_invariant()


def test_the_environment(monkeypatch):
    for value, expected in (("1", True), ("0", False)):
        monkeypatch.setenv("TRITON_EXT_BATCH_INVARIANT", value)
        assert is_batch_invariant() == expected
    monkeypatch.setenv("TRITON_EXT_BATCH_INVARIANT", "yes")
    with pytest.raises(LayoutError, match="must be 0 or 1"):
        is_batch_invariant()
