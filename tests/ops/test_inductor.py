"""Our kernels among the candidates of Inductor, on the emulated GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import triton_ext  # noqa: E402
from triton_ext.kernels.choice.candidates import is_new  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_binaries")


@pytest.fixture
def candidates(monkeypatch, tmp_path):
    """The names of the candidates for each product; the last one is taken, unmeasured."""
    from torch._inductor import config, select_algorithm

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    seen = []

    def take_the_last(choices):
        seen.append([choice.name for choice in choices])
        return choices[-1:]

    functions = select_algorithm.get_algorithm_selector_cache().preprocessing_fns
    before = list(functions)
    settings = {"max_autotune": True, "max_autotune_gemm_backends": "ATEN"}
    with config.patch(force_disable_caches=True, **settings), triton_ext.inductor.enabled():
        functions.append(take_the_last)
        yield seen
        functions.remove(take_the_last)
    assert functions == before
    torch._dynamo.reset()


def products(a, b, bias, *stacks):
    return a @ b, torch.nn.functional.linear(a, b.t(), bias), torch.bmm(*stacks)


def operands(dtype):
    shapes = (32, 16), (16, 32), (32,), (2, 32, 16), (2, 16, 32)
    return [torch.randn(shape).to(dtype) for shape in shapes]


def test_they_are_offered_for_each_product(candidates):
    inputs = operands(torch.float16)
    with triton_ext.emulate("sm_90") as gpu:
        before = gpu.launches
        found = torch.compile(products)(*inputs)
        assert gpu.launches == before + 3
    assert sorted(candidates) == [[name, f"triton_ext_{name}"] for name in ("addmm", "bmm", "mm")]
    for one, other in zip(found, products(*inputs), strict=True):
        torch.testing.assert_close(one, other, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_not_for_other_types_and_devices(candidates, dtype):
    """The host without an emulated GPU is one."""
    inputs = operands(dtype)
    found = torch.compile(products)(*inputs)
    assert sorted(candidates) == [["addmm"], ["bmm"], ["mm"]]
    torch.testing.assert_close(found[0], inputs[0] @ inputs[1], atol=1e-2, rtol=1e-2)


def test_scaled_products(candidates):
    """Row-wise and whole scales, whether or not the tensor cores may add up all of K."""
    a, b = (torch.randn(32, 32).to(torch.float8_e4m3fn) for _ in range(2))
    shapes = ((1,), (1,)), ((32, 1), (1, 32))

    def scaled(a, b, scale_a, scale_b, fast):
        return torch._scaled_mm(
            a, b.t(), scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=fast
        )

    for sizes in shapes:
        each = [torch.rand(size) for size in sizes]
        with triton_ext.emulate("sm_90") as gpu:
            before = gpu.launches
            found = torch.compile(scaled)(a, b, *each, True)
            assert gpu.launches == before + 1
            torch.compile(scaled)(a, b, *each, False)
            assert gpu.launches == before + 2
        expected = (a.float() * each[0]) @ (b.float().t() * each[1])
        torch.testing.assert_close(found.float(), expected, atol=0.05, rtol=0.02)
    assert candidates == [["_scaled_mm", "triton_ext_scaled_mm"]] * 4


@pytest.mark.skipif(not is_new(), reason="needs Triton 3.9")
@pytest.mark.parametrize("columns", [64, 36])
def test_products_of_groups(candidates, columns):
    """Where the library would pad rows of the output, the product is left to it."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(-3, 4, (40, 32), generator=generator).bfloat16()
    b = torch.randint(-3, 4, (3, columns, 32), generator=generator).bfloat16()
    offs = torch.tensor([10, 10, 40]).int()

    def made(a, b, offs):
        return torch._grouped_mm(a, b.mT, offs)

    with triton_ext.emulate("sm_90") as gpu:
        before = gpu.launches
        found = torch.compile(made)(a, b, offs)
        launches = gpu.launches - before
    ours = ["triton_ext_grouped_mm"] * (columns == 64)
    assert candidates == [["_grouped_mm", *ours]]
    assert launches == len(ours)
    sums = torch.cat([a[:10].float() @ b[0].float().t(), a[10:].float() @ b[2].float().t()])
    assert torch.equal(found, sums.bfloat16())


@pytest.mark.skipif(not is_new(), reason="needs Triton 3.9")
def test_scaled_products_of_groups(candidates):
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(-3, 4, (40, 32), generator=generator).to(torch.float8_e4m3fn)
    b = torch.randint(-3, 4, (3, 64, 32), generator=generator).to(torch.float8_e4m3fn)
    scale_a, scale_b = 2.0 ** torch.randint(-2, 3, (40,)), 2.0 ** torch.randint(-2, 3, (3, 64))
    offs = torch.tensor([10, 10, 40]).int()

    def made(a, b, *others):
        return torch._scaled_grouped_mm(a, b.mT, *others, out_dtype=torch.bfloat16)

    with triton_ext.emulate("sm_90") as gpu:
        before = gpu.launches
        found = torch.compile(made)(a, b, scale_a, scale_b, offs)
        assert gpu.launches == before + 1
    assert candidates == [["_scaled_grouped_mm", "triton_ext_scaled_grouped_mm"]]
    wide_a, wide_b = a.float() * scale_a[:, None], b.float() * scale_b[..., None]
    sums = torch.cat([wide_a[:10] @ wide_b[0].t(), wide_a[10:] @ wide_b[2].t()])
    assert torch.equal(found, sums.bfloat16())


def test_only_with_max_autotune_and_while_enabled(candidates):
    from torch._inductor import config

    a = torch.randn(16, 16).half()
    with triton_ext.emulate("sm_90"):
        with config.patch(max_autotune=False):
            torch.compile(lambda a: a @ a)(a)
        triton_ext.inductor.disable()
        torch.compile(lambda a: a @ a @ a)(a)
    assert candidates == [["mm"]] * 3
