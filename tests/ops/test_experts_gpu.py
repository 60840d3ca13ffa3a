"""Scales by blocks and products of groups on a Hopper GPU: against float64; graphs, the drop-in."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", minversion="3.9")

import triton_ext  # noqa: E402

pytestmark = [pytest.mark.sm90, pytest.mark.usefixtures("poisoned_memory")]
E4M3 = torch.float8_e4m3fn


def wide(stored, scales, together):
    """The values of a quantized matrix, in float64."""
    each = scales.repeat_interleave(together, 0)[: len(stored)].repeat_interleave(128, 1)
    return stored.double() * each[:, : stored.shape[1]].double()


def assert_close(found, expected, magnitude):
    """Within the rounding of bf16 and of sums of 128 products of fp8 with 13 fraction bits."""
    bound = 2.0**-8 * expected.abs() + 2.0**-9 * magnitude + 1e-6
    assert ((found.double() - expected).abs() <= bound).all()


def sizes(seed, count, most=3000):
    drawn = random.Random(seed)
    return [
        tuple(drawn.choice([drawn.randint(1, 200), drawn.randint(1, most)]) for _ in range(3))
        for _ in range(count)
    ]


@pytest.mark.parametrize(("m", "n", "k"), [*sizes(1, 16), (4096, 4096, 7168), (1, 7168, 2048)])
@pytest.mark.parametrize("together", [(1, 128), (1, 1), (128, 1)])
def test_scales_by_blocks(m, n, k, together):
    quantize = {1: triton_ext.quantize_1x128, 128: triton_ext.quantize_128x128}
    a, scale_a = quantize[together[0]](torch.randn(m, k, device="cuda"))
    b, scale_b = quantize[together[1]](torch.randn(n, k, device="cuda").bfloat16())
    made = triton_ext.scaled_mm(a, b.t(), scale_a, scale_b.t())
    values = wide(a, scale_a, together[0]), wide(b, scale_b, together[1])
    assert_close(made, values[0] @ values[1].t(), values[0].abs() @ values[1].abs().t())


def by_definition(a, b, offs):
    """The product of each group, in float64."""
    a, b = a.double(), b.double()
    groups = list(enumerate(zip([0, *offs[:-1].tolist()], offs.tolist(), strict=True)))
    if a.dim() == b.dim() == 2:
        return torch.stack([a[:, first:end] @ b[first:end] for _, (first, end) in groups])
    if a.dim() == 3:
        return by_definition(b.t(), a.mT, offs).t()
    made = torch.zeros(len(a), b.shape[-1], dtype=torch.float64, device="cuda")
    for g, (first, end) in groups:
        made[first:end] = a[first:end] @ b[g]
    return made


def lengths(seed):
    drawn = random.Random(seed)
    kinds = (0, 1, drawn.randint(1, 64), drawn.randint(1, 700), 128)
    return [drawn.choice(kinds) for _ in range(drawn.choice([1, 4, 33]))]


@pytest.mark.parametrize("form", ["M", "N", "K"])
@pytest.mark.parametrize("seed", range(8))
def test_groups(form, seed):
    """Exact, as all sums of these are; and what no group has is not read."""
    drawn = random.Random(seed)
    offs = torch.tensor(lengths(seed), device="cuda").cumsum(0).int()
    total, count, size, other = (
        int(offs[-1]) + 70, len(offs), drawn.randint(1, 300), drawn.randint(1, 500)
    )  # fmt: skip
    shapes = {
        "M": ((total, size), (count, size, other)), "N": ((count, other, size), (size, total)),
        "K": ((size, total), (total, other)),
    }[form]  # fmt: skip
    a, b = (torch.randint(-3, 4, shape, device="cuda").bfloat16() for shape in shapes)
    if form != "N":
        (a if form == "M" else a.t())[int(offs[-1]) :] = torch.nan
    if seed % 2:
        a, b = a.mT.contiguous().mT, b.mT.contiguous().mT
    made = triton_ext.grouped_mm(a, b, offs, out_dtype=torch.float32)
    assert torch.equal(made.double(), by_definition(a, b, offs))


@pytest.mark.parametrize("seed", range(4))
def test_groups_with_scales_of_blocks(seed):
    offs = torch.tensor(lengths(seed), device="cuda").cumsum(0).int()
    total, n, k = int(offs[-1]), 264, 400
    a, scale_a = triton_ext.quantize_1x128(torch.randn(total, k, device="cuda"))
    b, scale_b = triton_ext.quantize_128x128(torch.randn(len(offs), n, k, device="cuda"))
    made = triton_ext.scaled_grouped_mm(a, b.mT, scale_a, scale_b.mT, offs)
    values = wide(a, scale_a, 1), torch.stack([wide(*each, 128) for each in zip(b, scale_b)])  # noqa: B905
    expected = by_definition(values[0], values[1].mT, offs)
    assert_close(made, expected, by_definition(values[0].abs(), values[1].abs().mT, offs))


def test_a_graph_reads_where_groups_end():
    a = torch.randint(-3, 4, (300, 128), device="cuda").bfloat16()
    b = torch.randint(-3, 4, (3, 128, 264), device="cuda").bfloat16()
    offs = torch.tensor([100, 200, 300], device="cuda").int()
    triton_ext.grouped_mm(a, b, offs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = triton_ext.grouped_mm(a, b, offs, out_dtype=torch.float32)
    for ends in ([100, 200, 300], [0, 7, 300], [250, 250, 251], [300, -4, 10**6]):
        offs.copy_(torch.tensor(ends))
        graph.replay()
        limited = torch.tensor(ends).clamp(0, 300).cummax(0).values
        assert torch.equal(made.double(), by_definition(a, b, limited))


def test_pytorchs_own_calls():
    """As PyTorch's kernels make them, which keep as many bits."""
    functional = torch.nn.functional
    grouped_mm = getattr(functional, "grouped_mm", None) or torch._grouped_mm
    x = torch.randn(520, 256, device="cuda").bfloat16().requires_grad_()
    w = torch.randn(3, 256, 384, device="cuda").bfloat16().requires_grad_()
    offs = torch.tensor([128, 384, 520], device="cuda").int()
    direction = torch.randn(520, 384, device="cuda").bfloat16()

    def made():
        result = grouped_mm(x, w, offs=offs)
        return result, *torch.autograd.grad(result, (x, w), direction)

    theirs = made()
    with triton_ext.drop_in():
        ours = made()
        compiled = torch.compile(lambda: grouped_mm(x, w, offs=offs))()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=2.0**-7, atol=2.0**-6)
    torch.testing.assert_close(compiled, theirs[0], rtol=2.0**-7, atol=2.0**-6)

    a, scale_a = triton_ext.quantize_1x128(x.detach())
    b, scale_b = triton_ext.quantize_128x128(w[0].detach().t())
    columns = scale_a, scale_b.t()
    with triton_ext.drop_in():
        ours = torch._scaled_mm(a, b.t(), *columns, out_dtype=torch.bfloat16)
    values = wide(a, scale_a, 1), wide(b, scale_b, 128)
    assert_close(ours, values[0] @ values[1].t(), values[0].abs() @ values[1].abs().t())


def test_rows_have_the_same_bits_in_every_batch():
    x = torch.randn(4096, 8192, device="cuda").bfloat16()
    w = torch.randn(1024, 8192, device="cuda").bfloat16()
    with triton_ext.batch_invariant():
        whole = triton_ext.linear(x, w, out_dtype=torch.float32)
        for rows in (1, 2, 7, 8, 9, 31, 64, 100, 128, 200, 320, 1000, 2048):
            some = triton_ext.linear(x[:rows], w, out_dtype=torch.float32)
            assert torch.equal(some, whole[:rows]), rows


@pytest.mark.parametrize("powers_of_two", [False, True])
def test_quantization(powers_of_two):
    x = torch.randn(1000, 4000, device="cuda").bfloat16()
    made, scales = (
        each.cpu() for each in triton_ext.quantize_1x128(x, powers_of_two=powers_of_two)
    )
    x = x.cpu()  # where torch divides by a number, and does not multiply with its reciprocal
    padded = torch.nn.functional.pad(x.float(), (0, -x.shape[1] % 128)).view(1000, -1, 128)
    expected = padded.abs().amax(-1) / 448
    if powers_of_two:
        expected = torch.exp2(torch.ceil(torch.log2(expected)))
    values = (padded / expected[..., None]).flatten(1)[:, :4000].to(E4M3)
    assert torch.equal(scales, expected)
    assert torch.equal(made.view(torch.uint8), values.view(torch.uint8))


@pytest.mark.parametrize("seed", range(6))
def test_rows_in_any_order(seed):
    """By torch's indexing in float64: indices that are none give zeros, and are not stored."""
    drawn = random.Random(seed)
    torch.manual_seed(seed)
    offs = torch.tensor(lengths(seed), device="cuda").cumsum(0).int()
    count, tokens = int(offs[-1]) + drawn.choice([0, 5]), drawn.randint(1, 900)
    k, n = 8 * drawn.randint(1, 200), 8 * drawn.randint(1, 200)
    a = torch.randn(tokens, k, device="cuda").bfloat16()
    b = torch.randn(len(offs), k, n, device="cuda").bfloat16()
    rows = torch.randint(-2, tokens + 2, (count,), device="cuda").int()
    out_rows = torch.randperm(count, device="cuda").int()
    out_rows[: min(2, count)] = -1
    factors = torch.rand(count, device="cuda")
    made = triton_ext.grouped_mm(a, b, offs, rows=rows, out_rows=out_rows, factors=factors)
    known = (rows >= 0) & (rows < tokens)
    taken = torch.cat([a, a.new_zeros(1, k)])[torch.where(known, rows, tokens).long()]
    expected = by_definition(taken, b, offs) * factors[:, None].double()
    magnitude = by_definition(taken.abs(), b.abs(), offs) * factors[:, None].double()
    written = out_rows >= 0
    assert_close(made[out_rows[written].long()], expected[written], magnitude[written])
