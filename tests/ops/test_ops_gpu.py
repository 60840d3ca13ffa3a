"""`triton_ext.ops` on a Hopper GPU: against float64; streams, graphs, memory, real models."""

from __future__ import annotations

import gc
import json
import random
import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from ops_models import (  # noqa: E402
    MODELS,
    LanguageModel,
    difference_of_all,
    loss_and_gradients,
    relative_difference,
)

import triton_ext  # noqa: E402
from triton_ext import compat  # noqa: E402
from triton_ext.capture import follows  # noqa: E402
from triton_ext.ops import launches, planning, plans, rule, tuned  # noqa: E402
from triton_ext.ops.call import Call  # noqa: E402
from triton_ext.ops.types import output_type  # noqa: E402

pytestmark = [pytest.mark.sm90, pytest.mark.usefixtures("poisoned_memory")]
HALF_TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
TYPES = [pytest.param(dtype, id=name) for name, dtype in HALF_TYPES.items()]
ROUNDING = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 0.0, torch.int32: 0.0}
"""The error of an output, relative to it."""
SUMMING = {
    torch.float16: 2.0**-15,
    torch.bfloat16: 2.0**-15,
    torch.float8_e4m3fn: 2.0**-9,  # 13 fraction bits are kept when a tensor core adds
    torch.float8_e5m2: 2.0**-9,
    torch.float32: 2.0**-8,  # tf32: 10 fraction bits of each operand
    torch.int8: 0.0,
}
"""The error of a sum, relative to the sum of the products' magnitudes."""
ALL_TYPES = [pytest.param(dtype, id=str(dtype).removeprefix("torch.")) for dtype in SUMMING]
PROBLEMS, PARTS = 500, 5
MAX_ELEMENTS, MAX_FLOPS = 2**26, 2**34


def assert_close(out, a, b, out_dtype=None):
    """Each element within the rounding of its type, and of the sum, of the exact one."""
    exact = a.double() @ b.double()
    assert out.shape == exact.shape
    assert out.dtype == (out_dtype or a.dtype)
    magnitude = (a.float().abs() @ b.float().abs()).double()
    bound = ROUNDING[out.dtype] * exact.abs() + SUMMING[a.dtype] * magnitude + 1e-7
    excess = ((out.double() - exact).abs() / bound).max() if out.numel() else 0
    assert excess <= 1, f"error is {float(excess):.2f} of what is allowed (NaN: not written)"


def random_size(generator):
    """From 1 to 20,000, small ones and multiples of powers of two more often."""
    size = int(2 ** generator.uniform(0, 14.29))
    step = generator.choice([1, 1, 1, 8, 16, 64])
    return max(1, min(20000, size // step * step))


def random_values(shape, dtype):
    if dtype == torch.int8:
        return torch.randint(-128, 128, shape, device="cuda", dtype=dtype)
    return torch.randn(shape, device="cuda").to(dtype)


def random_matrix(generator, batch, rows, columns, dtype):
    """A matrix, or a batch of them, as it might come: offset, strided, transposed, a view."""
    kind = generator.choice(["plain", "plain", "transposed", "offset", "padded", "steps", "odd"])
    lead = [batch] if batch else []
    if kind in ("offset", "padded", "odd"):
        skip_r, skip_c = generator.randrange(3), generator.choice([0, 1, 3, 8, 16])
        more = generator.choice([0, 1, 8, 24]) if kind == "padded" else 0
        base = random_values((*lead, rows + skip_r, columns + skip_c + more), dtype)
        return base[..., skip_r:, skip_c : skip_c + columns]
    if kind == "transposed":
        return random_values((*lead, columns, rows), dtype).mT
    if kind == "steps" and rows * columns < 2**22:
        step_r, step_c = generator.choice([(1, 2), (2, 1), (3, 2)])
        base = random_values((*lead, rows * step_r, columns * step_c), dtype)
        return base[..., ::step_r, ::step_c]
    return random_values((*lead, rows, columns), dtype)


@pytest.mark.parametrize("dtype", ALL_TYPES)
@pytest.mark.parametrize("part", range(PARTS))
def test_random_problems(dtype, part):
    generator = random.Random(f"{dtype} {part}")
    torch.manual_seed(part)
    default = output_type(dtype)
    done = 0
    while done < PROBLEMS // PARTS:
        m, n, k = (random_size(generator) for _ in range(3))
        batch = generator.choice([0, 0, 0, 0, 1, 2, 5])
        count = max(batch, 1)
        if 2 * m * n * k * count > MAX_FLOPS or count * max(m * n, m * k, n * k) > MAX_ELEMENTS:
            continue
        a = random_matrix(generator, batch, m, k, dtype)
        b = random_matrix(generator, batch if generator.random() < 0.7 else 0, k, n, dtype)
        out = None
        if generator.random() < 0.2:
            out = torch.full((*a.shape[:-2], m, n), 77, device="cuda", dtype=default)
        wanted = default
        if out is None and generator.random() < 0.2 and dtype != torch.int8:
            wanted = torch.float32
        # fp32 operands only where tf32 is allowed; the reference must not use it
        if dtype == torch.float32:
            torch.set_float32_matmul_precision("high")
        try:
            found = triton_ext.matmul(a, b, out=out, out_dtype=None if out is not None else wanted)
        finally:
            torch.set_float32_matmul_precision("highest")
        assert out is None or found is out
        try:
            assert_close(found, a, b, wanted)
        except AssertionError as error:
            raise AssertionError(
                f"a {tuple(a.shape)} {a.stride()}, b {tuple(b.shape)} {b.stride()}: {error}"
            ) from error
        done += 1


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu"])
def test_epilogues(dtype, activation):
    gelu = torch.nn.functional.gelu
    exactly = {
        None: lambda x: x,
        "relu": torch.relu,
        "gelu": gelu,
        "gelu_tanh": lambda x: gelu(x, approximate="tanh"),
        "silu": torch.nn.functional.silu,
    }[activation]
    for m, n, k in ((1, 4096, 512), (300, 520, 72), (1000, 33, 200), (4096, 1024, 256)):
        x, w = random_values((m, k), dtype), random_values((n, k), dtype) / k**0.5
        for bias in (random_values((n,), dtype), random_values((n + 1,), dtype)[1:]):
            expected = exactly(x.double() @ w.double().T + bias.double())
            for _ in range(2):
                out = triton_ext.linear(x, w, bias, activation=activation)
                assert relative_difference(out, expected) < 2 * ROUNDING[dtype]
        out = triton_ext.addmm(bias, x, w.T, alpha=0.25)
        expected = 0.25 * (x.double() @ w.double().T) + bias.double()
        assert relative_difference(out, expected) < 2 * ROUNDING[dtype]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("part", range(2))
def test_random_sums(dtype, part):
    """addmm of every kind of input, with and without out, which may be the input."""
    generator = random.Random(f"sums {dtype} {part}")
    torch.manual_seed(part)
    done = 0
    while done < 100:
        m, n, k = (random_size(generator) for _ in range(3))
        if 2 * m * n * k > MAX_FLOPS or max(m * n, m * k, n * k) > MAX_ELEMENTS:
            continue
        a = random_matrix(generator, 0, m, k, dtype)
        b = random_matrix(generator, 0, k, n, dtype)
        rows, columns = generator.choice([(m, n), (m, n), (m, n), (1, n), (m, 1)])
        addend = random_matrix(generator, 0, rows, columns, dtype)
        beta, alpha = generator.choice([1, 0.5, -3]), generator.choice([1, 1, 0.25])
        exact = beta * addend.double() + alpha * (a.double() @ b.double())
        magnitude = abs(alpha) * (a.float().abs() @ b.float().abs())
        bound = ROUNDING[dtype] * exact.abs() + SUMMING[dtype] * magnitude
        bound = bound + 2.0**-22 * abs(beta) * addend.double().abs() + 1e-7
        out = None
        if addend.shape == (m, n):
            out = generator.choice([None, addend, torch.full_like(addend, torch.nan)])
        for _ in range(1 if out is addend else 2):  # the second call repeats the first
            found = triton_ext.addmm(addend, a, b, beta=beta, alpha=alpha, out=out)
            assert out is None or found is out
            excess = float(((found.double() - exact).abs() / bound).max())
            assert excess <= 1, (m, n, k, a.stride(), b.stride(), addend.stride(), excess)
        done += 1


@pytest.mark.parametrize("dtype", TYPES)
def test_residuals(dtype):
    for m, n, k in ((1, 4096, 512), (300, 520, 72), (1000, 33, 200), (4096, 1024, 256)):
        x, w = random_values((m, k), dtype), random_values((n, k), dtype) / k**0.5
        bias, residual = random_values((n,), dtype), random_values((m, n), dtype)
        exact = x.double() @ w.double().T + bias.double() + 0.5 * residual.double()
        for activation in (None, "relu"):
            out = triton_ext.matmul(
                x, w.T, bias=bias, residual=residual, beta=0.5, activation=activation
            )
            expected = exact if activation is None else exact.relu()
            assert relative_difference(out, expected) < 2 * ROUNDING[dtype]
    nan = torch.full_like(residual, torch.nan)
    assert triton_ext.addmm(nan, x, w.T, beta=0, alpha=0.5).isfinite().all()


@pytest.mark.parametrize("dtype", TYPES)
def test_batches(dtype):
    """Strides, operands that are shared, and many matrices; the same bits in every call."""
    for batch, m, n, k in (
        (300, 8, 24, 16),
        (64, 128, 128, 64),
        (7, 1000, 136, 520),
        (2, 1, 64, 8),
    ):
        a, b = random_values((batch, m, k), dtype), random_values((batch, k, n), dtype)
        middle = random_values((m, batch, k), dtype).transpose(0, 1)
        for x, y in ((a, b), (middle, b), (a, b[:1].expand_as(b)), (a[:1].expand_as(a), b)):
            found = triton_ext.bmm(x, y)
            for _ in range(2):
                assert torch.equal(triton_ext.bmm(x, y), found)
            assert_close(found, x, y)
    heads = random_values((2, 5, 64, 72), dtype)
    assert_close(triton_ext.matmul(heads, heads.mT), heads, heads.mT)


@pytest.mark.parametrize("types", [
    *((dtype, dtype) for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)),
    (torch.float8_e5m2, torch.float8_e4m3fn), (torch.float8_e4m3fn, torch.float8_e5m2),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("each", [False, True])
def test_scaled_mm(types, each):
    for m, n, k in ((16, 4096, 4096), (512, 1024, 2048), (33, 48, 80)):
        a, b = random_values((m, k), types[0]), random_values((n, k), types[1]).t()
        scale_a = torch.rand((m, 1) if each else (), device="cuda") + 0.5
        scale_b = torch.rand((1, n) if each else (1,), device="cuda") + 0.5
        bias = random_values((n,), torch.bfloat16)
        exact = (a.double() @ b.double()) * scale_a.double() * scale_b.double() + bias.double()
        out = triton_ext.scaled_mm(a, b, scale_a, scale_b, bias=bias)
        assert out.dtype == torch.bfloat16
        assert relative_difference(out, exact) < 2.0**-7


def operands(m, n, k, dtype=torch.bfloat16):
    return (
        torch.randn((m, k), device="cuda").to(dtype),
        torch.randn((k, n), device="cuda").to(dtype),
    )


def test_the_direct_launch_is_the_launch_by_triton(monkeypatch):
    a, b = operands(304, 520, 712)
    first = triton_ext.matmul(a, b)
    second = triton_ext.matmul(a, b)
    assert plans.find(Call(a, b)).launch.direct is not None
    monkeypatch.setattr(launches, "needs_the_jit", lambda: True)
    assert torch.equal(first, second)
    assert torch.equal(first, triton_ext.matmul(a, b))
    assert_close(first, a, b)


def test_the_direct_launch_follows_the_addresses():
    products_made = []
    for _ in range(50):
        a, b = operands(128, 256, 192)
        products_made.append((a, b, triton_ext.matmul(a, b)))
    for a, b, c in products_made:
        assert_close(c, a, b)


def test_tensor_maps_are_forgotten(monkeypatch):
    """And made again, for the right addresses."""
    monkeypatch.setattr(launches, "MAX_TENSOR_MAPS", 2)
    monkeypatch.setattr(launches, "_tensor_maps", {})  # addresses come again after other tests
    made = []
    tensor_map = compat.DirectLaunch.tensor_map
    monkeypatch.setattr(
        compat.DirectLaunch, "tensor_map", lambda *args: made.append(1) or tensor_map(*args)
    )
    test_the_direct_launch_follows_the_addresses()
    a, b = operands(128, 256, 192)
    other = operands(128, 256, 192)
    for _ in range(3):
        for x, y in ((a, b), other):
            before = len(made)
            c = triton_ext.matmul(x, y)
            assert_close(c, x, y)
            assert len(made) > before


def test_launch_hooks_are_called():
    a, b = operands(128, 128, 128)
    triton_ext.matmul(a, b)
    seen = []
    runtime = triton.knobs.runtime

    def before(metadata):
        seen.append(("before", metadata.get()["name"]))

    def after(metadata):
        seen.append(("after", metadata.get()["name"]))

    runtime.launch_enter_hook.add(before)
    runtime.launch_exit_hook.add(after)
    try:
        c = triton_ext.matmul(a, b)
    finally:
        runtime.launch_enter_hook.remove(before)
        runtime.launch_exit_hook.remove(after)
    assert [when for when, _ in seen] == ["before", "after"]
    assert "matmul" in seen[0][1]
    triton_ext.matmul(a, b)
    assert len(seen) == 2
    assert_close(c, a, b)


@pytest.mark.parametrize("shape", [(256, 256, 256), (1, 4096, 4096), (64, 64, 8192), (65, 67, 63)])
def test_cuda_graphs(shape):
    a, b = operands(*shape)
    triton_ext.matmul(a, b)
    gc.collect()  # a graph of another test that is destroyed meanwhile ends the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = triton_ext.matmul(a, b)
        d = triton_ext.matmul(c.t(), c)
    for _ in range(3):
        a.copy_(torch.randn_like(a))
        b.copy_(torch.randn_like(b) / shape[2] ** 0.5)
        graph.replay()
        assert_close(c, a, b)
        assert_close(d, c.t(), c)


def test_in_a_graph_a_product_begins_early_after_another_one_alone(monkeypatch):
    a, b = operands(256, 256, 256)
    triton_ext.matmul(a, b)
    found = []
    monkeypatch.setattr(compat, "follows", lambda *args: found.append(follows(*args)) or found[-1])
    gc.collect()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = triton_ext.matmul(a, b)
        d = triton_ext.matmul(c.mul_(2), b)
        e = triton_ext.matmul(d, b)
    assert found == [False, False, True]
    with torch.cuda.stream(torch.cuda.Stream()):
        triton_ext.matmul(a, b)
    assert found[3:] == [True]
    torch.cuda.synchronize()
    for _ in range(3):
        a.copy_(torch.randn_like(a))
        graph.replay()
        assert_close(e, d, b)
        assert_close(d, c, b)


def test_sums_and_batches_in_cuda_graphs():
    z, a, b = (torch.randn((3, 128, 128), device="cuda").bfloat16() for _ in range(3))
    triton_ext.addmm(z[0], a[0], b[0])
    triton_ext.bmm(a, b)
    gc.collect()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = triton_ext.bmm(a, b)
        triton_ext.addmm(z[0], a[0], b[0], beta=0.5, out=z[0])
    for _ in range(3):
        exact = 0.5 * z[0].double() + a[0].double() @ b[0].double()
        graph.replay()
        assert_close(c, a, b)
        assert relative_difference(z[0], exact) < 2.0**-8


def test_two_streams_at_once():
    problems = [operands(128, 128, 8192), operands(512, 512, 2048), operands(1, 4096, 4096)]
    expected = [triton_ext.matmul(a, b) for a, b in problems]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    results = []
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append([triton_ext.matmul(a, b) for a, b in problems])
    torch.cuda.synchronize()
    for result in results:
        for one, other in zip(result, expected, strict=True):
            assert torch.equal(one, other)


def test_threads():
    torch.cuda.synchronize()
    failures = []

    def work(seed):
        try:
            generator = torch.Generator("cuda").manual_seed(seed)
            with torch.cuda.stream(torch.cuda.Stream()):
                for size in (64, 72, 256, 1000):
                    a = torch.randn((size, 512), device="cuda", generator=generator).half()
                    b = torch.randn((512, size), device="cuda", generator=generator).half()
                    for _ in range(10):
                        assert_close(triton_ext.matmul(a, b), a, b)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("shape", [(512, 512, 512), (16, 4096, 4096), (255, 257, 129)])
def test_the_host_does_not_wait(shape):
    a, b = operands(*shape)
    triton_ext.matmul(a, b)
    torch.cuda.synchronize()
    awake = torch.cuda.Event()
    torch.cuda._sleep(4_000_000_000)  # about 2 s
    awake.record()
    triton_ext.matmul(a, b)
    assert not awake.query()
    torch.cuda.synchronize()


def extra_bytes(function, *tensors):
    """The peak of memory asked for during a call, beyond what it returns."""
    function(*tensors)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    result = function(*tensors)
    peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    return peak - before - result.untyped_storage().nbytes()


def test_extra_memory():
    m, n, k = 1024, 2048, 512
    a, b = operands(m, n, k)
    assert extra_bytes(triton_ext.matmul, a, b) == 0
    assert extra_bytes(triton_ext.matmul, a.T.contiguous().T, b.T.contiguous().T) == 0
    odd = torch.randn((m, k + 1), device="cuda").bfloat16()[:, 1:]
    assert extra_bytes(triton_ext.matmul, odd, b) <= m * k * 2 + 512
    narrow = b[:, : n - 1].clone()
    copies = (k + m) * n * 2 + 1024  # of b, whose rows are no multiple of 16 bytes, and of c
    assert extra_bytes(triton_ext.matmul, a, narrow) <= copies


@pytest.mark.parametrize("dtype", TYPES)
def test_deterministic(dtype):
    for shape in ((64, 64, 20000), (1, 4096, 4096), (1000, 1000, 1000), (4096, 8, 12288)):
        a, b = operands(*shape, dtype)
        first = triton_ext.matmul(a, b)
        for _ in range(10):
            assert torch.equal(triton_ext.matmul(a, b), first)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_nan_and_infinity_go_where_those_of_torch_go(dtype, value):
    for m, n, k in ((96, 136, 200), (3, 1000, 4096)):
        a, b = (x.abs() for x in operands(m, n, k, dtype))
        a[m // 2, k - 1] = value
        b[0, n // 3] = -value
        ours, theirs = triton_ext.matmul(a, b), a @ b
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert torch.equal(ours.isposinf(), theirs.isposinf())
        assert torch.equal(ours.isneginf(), theirs.isneginf())


def test_overflow_is_infinite():
    a = torch.full((64, 64), 300.0, device="cuda", dtype=torch.float16)
    assert triton_ext.matmul(a, a).isposinf().all()


def test_out_may_be_any_view():
    a, b = operands(200, 120, 64)
    base = torch.full((400, 300), torch.nan, device="cuda", dtype=a.dtype)
    for out in (
        base[:200, :120],
        base[100:300, 8:128],
        base[:200, 3:123],
        base[::2, ::2][:, :120],
        torch.full((120, 200), torch.nan, device="cuda", dtype=a.dtype).T,
    ):
        assert triton_ext.matmul(a, b, out=out) is out
        assert_close(out, a, b)
    assert base[300:, 128:].isnan().any()
    square = torch.randn((128, 128), device="cuda").bfloat16()
    exact = square.clone()
    triton_ext.matmul(square, square, out=square)
    assert_close(square, exact, exact)


@pytest.mark.parametrize("name", ["mm", "bmm"])
def test_opcheck(name):
    lead = (2,) if name == "bmm" else ()
    for shape_a, shape_b in (((16, 24), (24, 8)), ((17, 5), (5, 3))):
        a = torch.randn((*lead, *shape_a), device="cuda").bfloat16().requires_grad_()
        b = torch.randn((*lead, *shape_b), device="cuda").bfloat16().requires_grad_()
        operator = getattr(torch.ops.triton_ext, name).default
        torch.library.opcheck(operator, (a, b), atol=0.05, rtol=0.05)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compile(mode):
    x, w = (y.requires_grad_() for y in operands(96, 160, 128))
    bias = torch.randn(160, device="cuda").bfloat16().requires_grad_()

    def layer(x, w, bias):
        y = triton_ext.matmul(x, w, bias=bias, activation="gelu")
        return triton_ext.linear(y, w, fallback="torch").float().square().sum()

    expected = torch.autograd.grad(layer(x, w, bias), (x, w, bias))
    compiled = torch.compile(layer, fullgraph=True, mode=mode)
    for _ in range(3):
        loss = compiled(x, w, bias)
        found = torch.autograd.grad(loss, (x, w, bias))
        for one, other in zip(found, expected, strict=True):
            assert relative_difference(one, other) < 0.02


def test_gradients():
    def step(multiply, *tensors):
        for tensor in tensors:
            tensor.grad = None
        multiply(*tensors).float().square().sum().backward()
        return [tensor.grad for tensor in tensors]

    a, b = (torch.randn(s, device="cuda").half().requires_grad_() for s in ((3, 40, 72), (72, 56)))
    w, bias = (torch.randn(s, device="cuda").half().requires_grad_() for s in ((56, 72), (56,)))
    batch = torch.randn((3, 72, 8), device="cuda").half().requires_grad_()
    square, a0, w0 = (
        torch.randn(s, device="cuda").half().requires_grad_()
        for s in ((40, 56), (40, 72), (72, 56))
    )
    for ours, theirs, tensors in (
        (triton_ext.matmul, torch.matmul, (a, b)),
        (triton_ext.matmul, torch.matmul, (a, batch)),
        (triton_ext.linear, torch.nn.functional.linear, (a, w)),
        (triton_ext.linear, torch.nn.functional.linear, (a, w, bias)),
        (triton_ext.addmm, torch.addmm, (square, a0, w0)),
    ):
        expected = step(theirs, *tensors)
        for _ in range(3):
            for one, other in zip(step(ours, *tensors), expected, strict=True):
                assert relative_difference(one, other) < 2e-3


def test_repeated_calls_of_every_kind(monkeypatch):
    """The second call finds what the first one prepared, and does the same."""
    x = torch.randn((2, 5, 64), device="cuda").bfloat16()
    w, bias = (torch.randn(s, device="cuda").bfloat16() for s in ((40, 64), (40,)))
    odd, rows = torch.randn((64, 13), device="cuda").bfloat16(), x.flatten(0, 1)
    narrow = torch.randn((13, 64), device="cuda").bfloat16()
    stack = torch.randn((2, 64, 40), device="cuda").bfloat16()
    out = torch.zeros((10, 40), device="cuda", dtype=x.dtype)
    batches = torch.empty((2, 5, 40), device="cuda", dtype=x.dtype)
    fp8, fp8_w = rows.repeat(2, 1)[:16].to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn)
    one = torch.ones((), device="cuda")
    linear, product = triton_ext.linear, triton_ext.matmul
    prepared = []

    class Prepared(launches.PreparedLaunch):
        def __init__(self, *args):
            super().__init__(*args)
            prepared.append(self)

    monkeypatch.setattr(planning, "PreparedLaunch", Prepared)
    plans.clear_cache()
    for call in (
        lambda: product(x, w.t()),
        lambda: product(rows, w.t()),
        lambda: product(rows, w.t(), bias=bias, activation="relu"),
        lambda: product(x[0, 0], w.t()),
        lambda: product(x[0, 0], w[0]),
        lambda: product(x, odd),  # b is copied for TMA
        lambda: product(rows, odd),
        lambda: product(rows[:, 1:], odd[1:]),
        lambda: linear(x, w),
        lambda: linear(x, w, bias),
        lambda: linear(x, w, bias, activation="silu"),
        lambda: linear(x, w, bias, activation="gelu_tanh"),
        lambda: linear(x, narrow),
        lambda: linear(x, odd.t()),
        lambda: product(rows, w.t(), out=out),
        lambda: triton_ext.addmm(bias, rows, w.t()),
        lambda: triton_ext.addmm(out, rows, w.t(), beta=0.5),
        lambda: triton_ext.addmm(out, rows, w.t(), beta=0.5, alpha=2),
        lambda: triton_ext.addmm(out.t().contiguous().t(), rows, w.t()),
        lambda: product(x, stack),
        lambda: product(x, stack[:, :, :13]),
        lambda: triton_ext.bmm(x[:1].expand(2, 5, 64), stack),
        lambda: product(x, stack, out=batches),
        lambda: triton_ext.scaled_mm(fp8, fp8_w.t(), one, one, bias=bias),
    ):
        first = call().clone()
        assert first.isfinite().all()
        count = len(prepared)
        for _ in range(3):
            assert torch.equal(call(), first)
        assert len(prepared) == count
    assert prepared


def test_autotune(tmp_path, monkeypatch):
    """The fastest is measured, kept, used at once, and by a later process."""
    monkeypatch.setenv(tuned.FOLDER_VARIABLE, str(tmp_path))
    tuned.clear_cache()
    batch = tuple(x.expand(3, -1, -1).clone() for x in operands(64, 96, 128))
    used = launched_with(monkeypatch)
    try:
        for a, b in (operands(512, 1024, 4096), batch):
            triton_ext.matmul(a, b)
            found = triton_ext.autotune(a, b, candidates=5)
            times = [row.seconds for row in found.measured]
            assert len(times) == 5
            assert times == sorted(times)
            assert 1e8 < 2 * a.numel() * b.shape[-1] / times[0] < 1e15
            used.clear()
            assert_close(triton_ext.matmul(a, b), a, b)
            assert used == [found.config]
            assert found.file == tuned.path()
            code = f"from triton_ext.ops.tuned import *; print(lookup({found.problem!r}))"
            later = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
            assert later.stdout.strip() == str(found.kept)
    finally:
        tuned.clear_cache()
        plans.clear_cache()


def launched_with(monkeypatch):
    """The configurations of what our kernels launch from now on, by shortcuts too."""
    found = []
    launch, at = launches.PreparedLaunch.__call__, launches.PreparedLaunch.at

    def launched(self, *args):
        found.append(self.config)
        return launch(self, *args)

    def launched_at(self, *args):
        made = at(self, *args)
        if made:
            found.append(self.config)
        return made

    monkeypatch.setattr(launches.PreparedLaunch, "__call__", launched)
    monkeypatch.setattr(launches.PreparedLaunch, "at", launched_at)
    return found


def test_every_product_is_measured(tmp_path, monkeypatch):
    """At its first call, but not while a graph is captured; what torch makes faster, a drop-in
    leaves to it.
    """
    monkeypatch.setenv(tuned.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(rule, "_given", None)
    tuned.clear_cache()
    launched = launched_with(monkeypatch)
    try:
        triton_ext.measured_kernels()
        a, b = operands(200, 1024, 512)
        assert_close(triton_ext.matmul(a, b), a, b)
        entries = json.loads(tuned.path().read_text())["tuned"]
        (entry,) = entries.values()
        assert 1e-7 < entry["seconds"] < 1e-3
        assert 1e-7 < entry["torch_seconds"] < 1e-3
        launched.clear()
        triton_ext.matmul(a, b)
        assert len(launched) == 1
        with monkeypatch.context() as patch:
            patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
            triton_ext.matmul(a[:100], b)
        assert len(json.loads(tuned.path().read_text())["tuned"]) == 1
        for seconds, ours in ((1.0, 0), (1e-9, 1)):  # as if ours, or torch's, had been slow
            entry["seconds"] = seconds
            tuned.path().write_text(json.dumps({"format": tuned.FORMAT, "tuned": entries}))
            tuned.clear_cache()
            plans.clear_cache()
            with triton_ext.drop_in():
                for _ in range(3):
                    launched.clear()
                    assert_close(a @ b, a, b)
                    assert len(launched) == ours
    finally:
        tuned.clear_cache()
        plans.clear_cache()


# --------------------------------------------------------------------------- drop_in


@pytest.fixture
def counted(monkeypatch):
    """A list that grows with each launch by our kernels."""
    return launched_with(monkeypatch)


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_models_in_a_drop_in(name, compiled, counted):
    torch.manual_seed(0)
    model = LanguageModel(MODELS[name], width=256, layers=2).cuda().bfloat16()
    tokens = torch.randint(256, (4, 64), device="cuda")
    loss, gradients = loss_and_gradients(model, tokens)
    assert not counted
    run = torch.compile(model) if compiled else model
    with triton_ext.drop_in():
        model.zero_grad(set_to_none=True)
        ours = run(tokens)
        ours.backward()
        found = {name: p.grad.clone() for name, p in model.named_parameters()}
    assert len(counted) >= 2 * 3 * 6 - 4  # forward, and both gradients, of the linear layers
    assert abs(ours.item() - loss) < 0.01 * loss
    assert difference_of_all(found, gradients) < 0.06
    before = len(counted)
    loss_and_gradients(model, tokens)
    assert len(counted) == before


def test_autocast_in_a_drop_in(counted):
    model = LanguageModel(MODELS["bert"], width=128).cuda()
    tokens = torch.randint(256, (2, 32), device="cuda")

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens)
        loss.backward()
        return loss.item()

    expected = step()
    with triton_ext.drop_in():
        assert abs(step() - expected) < 0.01 * expected
    assert counted


@pytest.mark.parametrize("rowwise", [False, True])
def test_fp8_in_a_drop_in(rowwise, counted):
    a, b = (torch.randn(size, 512, device="cuda").to(torch.float8_e4m3fn) for size in (256, 768))
    scales = [torch.tensor(0.5, device="cuda")] * 2
    if rowwise:
        scales = [torch.rand(shape, device="cuda") + 0.5 for shape in ((256, 1), (1, 768))]
    exact = (a.double() * scales[0]) @ (b.T.double() * scales[1])
    for fast in (True, False):
        counted.clear()
        with triton_ext.drop_in():
            made = torch._scaled_mm(a, b.T, *scales, out_dtype=torch.bfloat16, use_fast_accum=fast)
        assert len(counted) == 1
        assert (made.double() - exact).norm() < 2.0**-8 * exact.norm()


@pytest.mark.parametrize("sizes", [(16, 256, 8192), (300, 528, 4096), (1000, 2048, 16384)])
def test_fp8_is_as_exact_as_torchs_without_fast_accum(sizes):
    m, n, k = sizes
    a, b = (torch.randn(size, k, device="cuda").to(torch.float8_e4m3fn) for size in (m, n))
    one = torch.ones((), device="cuda")
    exact = a.double() @ b.T.double()

    def error(multiply, fast):
        c = multiply(a, b.T, one, one, out_dtype=torch.float32, use_fast_accum=fast)
        return float((c.double() - exact).norm() / exact.norm())

    ours, theirs = error(triton_ext.scaled_mm, False), error(torch._scaled_mm, False)
    assert ours < 1.5 * theirs
    assert ours < error(triton_ext.scaled_mm, True) / 2


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_transformers_in_a_drop_in(name, counted):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 1000, "hidden_size": 512, "intermediate_size": 1536,
        "num_hidden_layers": 4, "num_attention_heads": 8,
    }  # fmt: skip
    if name == "llama":
        config = transformers.LlamaConfig(**sizes, num_key_value_heads=4)
        model = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.BertConfig(
            **sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
        )
        model = transformers.BertForMaskedLM(config)
    model = model.cuda().bfloat16().train()
    tokens = torch.randint(1000, (2, 128), device="cuda")

    def step():
        model.zero_grad(set_to_none=True)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        gradients = {
            name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None
        }
        return loss.item(), gradients

    loss, gradients = step()
    with triton_ext.drop_in():
        ours, found = step()
    assert len(counted) >= 3 * 4 * 5
    assert abs(ours - loss) < 0.01 * loss
    assert difference_of_all(found, gradients) < 0.06
