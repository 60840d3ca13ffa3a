"""Scales by blocks and products of groups on the emulated GPUs: exact, race-free, in bounds."""

from __future__ import annotations

import itertools
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import plan_launch  # noqa: E402
from covers import in_turn, pairwise  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from mutations import some  # noqa: E402

import triton_ext  # noqa: E402
from triton_ext import LayoutError  # noqa: E402
from triton_ext.kernels.choice import candidates  # noqa: E402
from triton_ext.kernels.spec import kernel_spec  # noqa: E402
from triton_ext.ops.call import Call  # noqa: E402
from triton_ext.ops.epilogue import Epilogue  # noqa: E402
from triton_ext.ops.grouped import _applied  # noqa: E402
from triton_ext.ops.launches import PreparedLaunch  # noqa: E402
from triton_ext.ops.products import product  # noqa: E402

needs_new = pytest.mark.skipif(not candidates.is_new(), reason="needs Triton 3.9")
pytestmark = [pytest.mark.usefixtures("no_binaries", "shallow", "poisoned_memory"), needs_new]
E4M3, E5M2, E8M0 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu


def integers(generator, *shape, dtype=torch.bfloat16):
    return torch.randint(-3, 4, shape, generator=generator).float().to(dtype)


def scaled(generator, rows, k, together, dtype=E4M3):
    """An operand (rows, K), its scales, and its values: all products' sums are exact in fp32."""
    stored = integers(generator, rows, k, dtype=dtype)
    shape = -(-rows // together), -(-k // 128)
    mantissas = 1 + torch.randint(0, 4, shape, generator=generator) / 4
    scales = mantissas * 2.0 ** torch.randint(-2, 3, shape, generator=generator)
    each = scales.repeat_interleave(together, 0)[:rows].repeat_interleave(128, 1)[:, :k]
    return stored, scales, stored.double() * each.double()


# --------------------------------------------------------------------------- scales by blocks

# A tile, M, N, K, and how many rows of A and of B have one scale.
TILES = [
    (90, {"consumers": 2, "block_n": 64, "split_k": 2}, 136, 72, 592, 1, 128),
    (90, {"consumers": 2, "cluster_m": 2, "block_n": 96, "c_parts": 3}, 200, 104, 304, 1, 128),
    (90, {"consumers": 2, "pingpong": True, "block_m": 64, "block_n": 64}, 136, 136, 460, 1, 1),
    (90, {"consumers": 3, "block_m": 192, "block_n": 56, "c_parts": 7}, 200, 130, 304, 128, 1),
    (90, {"consumers": 2, "block_m": 24, "block_n": 256, "swap_ab": True, "cluster_m": 2,
          "c_parts": 3}, 40, 520, 300, 1, 128),
    (100, {"consumers": 1, "block_n": 64, "c_parts": 2, "split_k": 2}, 200, 136, 592, 1, 128),
    (100, {"consumers": 1, "cluster_m": 2, "cta_group": 2, "block_n": 32}, 300, 72, 304, 1, 1),
    (100, {"consumers": 1, "block_m": 16, "swap_ab": True, "cluster_m": 2}, 24, 264, 304, 1, 128),
    (100, {"consumers": 1, "block_n": 32, "cluster_launch_control": True}, 200, 72, 304, 128, 1),
]  # fmt: skip
SCHEDULES = ("eager", "lazy", "random")


@pytest.mark.parametrize("number", range(len(TILES)))
def test_tiles_with_scales_of_blocks(number):
    arch, tile, m, n, k, rows, columns = TILES[number]
    generator = torch.Generator().manual_seed(number)
    a, scale_a, a_values = scaled(generator, m, k, rows)
    b, scale_b, b_values = scaled(generator, n, k, columns, E5M2 if number % 2 else E4M3)
    kind = {(E4M3, E4M3): "e4m3", (E4M3, E5M2): "e4m3_e5m2"}[a.dtype, b.dtype]
    config = kernel_spec(arch, kind, out_type="fp32", block_k=128, stages=2, **tile)
    epilogue = Epilogue(
        blocks_a=scale_a.t().contiguous().t(), blocks_b=scale_b.t(), fp32_accumulation=True
    )
    call = Call(a, b.t(), epilogue, torch.float32, config=config)
    with triton_ext.emulate(f"sm_{arch}", schedule=SCHEDULES[number % 3]):
        made = product(call)
    assert torch.equal(made.double(), a_values @ b_values.t())


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
@settings(max_examples=some(4))
@given(
    st.sampled_from([1, 2, 9, 40, 70]), st.sampled_from([1, 8, 72, 130]),
    st.sampled_from([1, 100, 128, 260]), st.sampled_from([(1, 128), (1, 1), (128, 1)]),
    st.sampled_from(["K", "MN", "steps"]), st.integers(0, 99),
)  # fmt: skip
def test_any_size_and_memory(arch, m, n, k, together, memory, seed):
    generator = torch.Generator().manual_seed(seed)
    a, scale_a, a_values = scaled(generator, m, k, together[0])
    b, scale_b, b_values = scaled(generator, n, k, together[1])
    if memory == "MN":
        scale_a, scale_b = scale_a.t().contiguous().t(), scale_b.t().contiguous().t()
    elif memory == "steps":  # which the kernel cannot read
        scale_a = scale_a.repeat_interleave(2, 1)[:, ::2].repeat_interleave(2, 0)[::2]
    bias = torch.randint(-9, 9, (n,), generator=generator).float()
    with triton_ext.emulate(arch):
        made = triton_ext.scaled_mm(
            a, b.t(), scale_a, scale_b.t(), bias=bias, out_dtype=torch.float32
        )
    assert torch.equal(made.double(), a_values @ b_values.t() + bias.double())


@pytest.mark.parametrize(
    ("arch", "problem", "together"),
    pairwise(["sm_90", "sm_100"], [(40, 136, 300), (300, 264, 64)], [(1, 128), (128, 1), (1, 1)]),
)
def test_scales_that_are_powers_of_two(arch, problem, together):
    """On Blackwell the tensor cores apply them, or mixed types would not fit."""
    m, n, k = problem
    generator = torch.Generator().manual_seed(m + k)
    found = []
    for rows, of in ((m, together[0]), (n, together[1])):
        stored = integers(generator, rows, k, dtype=E4M3)
        shape = -(-rows // of), -(-k // 128)
        scales = 2.0 ** torch.randint(-3, 4, shape, generator=generator)
        each = scales.repeat_interleave(of, 0)[:rows].repeat_interleave(128, 1)[:, :k]
        found.append((stored, scales.to(torch.float8_e8m0fnu), stored.double() * each.double()))
    (a, scale_a, a_values), (b, scale_b, b_values) = found
    kinds = []

    def launch(self, *given, **others):
        kinds.append(self.config.product.element_type)
        return prepared(self, *given, **others)

    prepared = PreparedLaunch.__call__
    with triton_ext.emulate(arch), mock.patch.object(PreparedLaunch, "__call__", launch):
        made = triton_ext.scaled_mm(a, b.t(), scale_a, scale_b.t(), out_dtype=torch.float32)
    assert kinds == ["mxfp8" if arch == "sm_100" else "e4m3"]
    assert torch.equal(made.double(), a_values @ b_values.t())


def test_powers_of_two_of_two_types_or_of_128_rows_twice():
    a, b = torch.ones(130, 256).to(E4M3), torch.ones(72, 256).to(E5M2)
    powers = torch.full((130, 2), 2.0).to(torch.float8_e8m0fnu)
    with triton_ext.emulate("sm_100"):
        made = triton_ext.scaled_mm(a, b.t(), powers, powers[:1].t())
        assert torch.equal(made, torch.full((130, 72), 1024.0).bfloat16())
        with pytest.raises(LayoutError, match=r"scale_b\.shape"):
            triton_ext.scaled_mm(a, a.t(), powers[:2], powers[:2].t())


def test_scales_that_do_not_fit():
    a, b = torch.zeros(130, 256).to(E4M3), torch.zeros(72, 256).to(E4M3)
    good, of_rows = torch.ones(1, 2), torch.ones(130, 2)
    with triton_ext.emulate("sm_90"):
        for scale_a, scale_b, argument in (
            (torch.ones(129, 2), good, "scale_a.shape"),
            (of_rows, torch.ones(3, 2), "scale_b.shape"),
            (torch.ones(2, 2), good, "scale_b.shape"),  # 128 for both
            (of_rows, torch.ones(()), "scale_b.dtype"),
        ):
            with pytest.raises(LayoutError, match=argument):
                triton_ext.scaled_mm(a, b.t(), scale_a, scale_b.t())
        with pytest.raises(LayoutError, match=r"a\.dtype"):
            triton_ext.scaled_mm(a.bfloat16(), b.bfloat16().t(), of_rows, good.t())


# ------------------------------------------------------------------------------------- groups


def by_definition(a, b, offs):
    """The product of each group, in float64; rows and columns behind the last one are zero."""
    a, b = a.double(), b.double()
    ends = [0, *offs.tolist()]
    groups = list(itertools.pairwise(ends))
    if a.dim() == b.dim() == 2:
        return torch.stack([a[:, first:end] @ b[first:end] for first, end in groups])
    if a.dim() == 2:
        made = torch.zeros(len(a), b.shape[-1], dtype=torch.float64)
        for g, (first, end) in enumerate(groups):
            made[first:end] = a[first:end] @ b[g]
        return made
    return by_definition(b.t(), a.mT, offs).t()


def operands(generator, form, lengths, size, other, behind, rows=0):
    """A, B and the ends of groups; what no group has is NaN, and must not be read."""
    offs = torch.tensor(lengths).cumsum(0).int()
    total, count = int(offs[-1]) + behind, len(lengths)
    if form == "M":
        a, b = integers(generator, total, size), integers(generator, count, size, other)
        a[int(offs[-1]) :] = torch.nan
    elif form == "N":
        a, b = integers(generator, count, other, size), integers(generator, size, total)
        b[:, int(offs[-1]) :] = torch.nan
    else:
        a, b = integers(generator, rows or size, total), integers(generator, total, other)
        a[:, int(offs[-1]) :] = torch.nan
    return a, b, offs


GROUPED = [
    (90, "M", {"consumers": 2, "block_n": 96, "c_parts": 3}, "KMN"),
    (90, "M", {"consumers": 3, "block_m": 192, "block_n": 64, "swap_ab": False}, "KK"),
    (90, "M", {"consumers": 2, "block_m": 24, "swap_ab": True, "c_parts": 3, "block_n": 128}, "KK"),
    (90, "M", {"consumers": 2, "cluster_m": 2, "block_n": 64}, "KMN"),
    (
        90,
        "M",
        {
            "consumers": 1,
            "block_m": 24,
            "swap_ab": True,
            "c_parts": 3,
            "block_n": 64,
            "cluster_m": 2,
        },
        "KK",
    ),
    (90, "N", {"consumers": 2, "pingpong": True, "block_m": 64, "block_n": 64}, "MNK"),
    (90, "K", {"consumers": 2, "pingpong": True, "block_m": 64, "block_n": 64}, "MNMN"),
    (100, "M", {"consumers": 1, "block_n": 64, "c_parts": 2}, "KMN"),
    (100, "N", {"consumers": 1, "block_m": 32, "block_n": 64, "swap_ab": True}, "KK"),
    (100, "M", {"consumers": 1, "block_n": 32, "cluster_m": 2, "cta_group": 2}, "KK"),
    (100, "K", {"consumers": 1, "block_m": 128, "block_n": 64, "c_parts": 2}, "MNMN"),
]


@pytest.mark.parametrize("number", range(len(GROUPED)))
def test_tiles_of_groups(number):
    """Empty groups, of one element, shorter and longer than a tile, of no multiple of anything;
    under a schedule that finds races, and with memory around that must not be read.
    """
    arch, form, tile, majors = GROUPED[number]
    generator = torch.Generator().manual_seed(number)
    a, b, offs = operands(generator, form, [5, 0, 141, 64, 1, 200], 72, 136, 9)
    majors = {"KMN": ("K", "MN"), "KK": ("K", "K"), "MNK": ("MN", "K"), "MNMN": ("MN", "MN")}[
        majors
    ]
    a = a if majors[0] == "K" else a.mT.contiguous().mT
    b = b if majors[1] == "MN" else b.mT.contiguous().mT
    config = kernel_spec(arch, "bf16", *majors, out_type="fp32", stages=2, batched=True, **tile)
    call = Call(a, b, Epilogue(offs=offs), torch.float32, config=config)
    with triton_ext.emulate(f"sm_{arch}", schedule=SCHEDULES[number % 3]):
        made = product(call)
    assert torch.equal(made.double(), by_definition(a, b, offs))


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
@settings(max_examples=some(3))
@given(
    st.sampled_from(["M", "N", "K"]),
    st.lists(st.sampled_from([0, 1, 7, 8, 33, 64, 130]), min_size=1, max_size=4),
    st.sampled_from([8, 33, 100]), st.sampled_from([1, 8, 70]), st.sampled_from([0, 5]),
    st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_groups_as_torch_defines_them(arch, form, lengths, size, other, behind, turned, seed):
    generator = torch.Generator().manual_seed(seed)
    a, b, offs = operands(generator, form, lengths, size, other, behind)
    if turned:
        a, b = a.mT.contiguous().mT, b.mT.contiguous().mT
    with triton_ext.emulate(arch):
        made = triton_ext.grouped_mm(a, b, offs, out_dtype=torch.float32)
    assert torch.equal(made.double(), by_definition(a, b, offs))


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_ends_that_are_none(arch):
    """Beyond the matrix, and before the end before: nothing is read or written out of bounds."""
    generator = torch.Generator().manual_seed(0)
    a, b = integers(generator, 50, 64), integers(generator, 3, 64, 72)
    with triton_ext.emulate(arch):
        made = triton_ext.grouped_mm(a, b, torch.tensor([20, -7, 4000]).int())
    expected = by_definition(a, b, torch.tensor([20, 20, 50]))
    assert torch.equal(made.double(), expected.to(made.dtype).double())


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_rows_that_count(arch):
    generator = torch.Generator().manual_seed(0)
    a, b = integers(generator, 4, 12, 64), integers(generator, 4, 64, 72)
    counts = torch.tensor([3, 0, 12, 99]).int()
    with triton_ext.emulate(arch):
        made = triton_ext.grouped_mm(a, b, counts=counts)
    expected = torch.bmm(a.double(), b.double()).bfloat16()
    for group, count in enumerate(counts):
        assert torch.equal(made[group, :count], expected[group, :count])
    with pytest.raises(LayoutError, match="no gradient"):
        triton_ext.grouped_mm(a.requires_grad_(), b, counts=counts)


def test_rows_that_count_with_scales():
    generator = torch.Generator().manual_seed(0)
    counts = torch.tensor([3, 0, 12]).int()
    of_a = [scaled(generator, 12, 200, 1) for _ in counts]
    of_b = [scaled(generator, 136, 200, 128) for _ in counts]
    a, scale_a, a_values = (torch.stack(each) for each in zip(*of_a, strict=True))
    b, scale_b, b_values = (torch.stack(each) for each in zip(*of_b, strict=True))
    with triton_ext.emulate("sm_90"):
        made = triton_ext.scaled_grouped_mm(
            a, b.mT, scale_a, scale_b.mT, counts=counts, out_dtype=torch.float32
        )
    expected = torch.bmm(a_values, b_values.mT)
    for group, count in enumerate(counts):
        assert torch.equal(made[group, :count].double(), expected[group, :count])


@pytest.mark.parametrize(("arch", "columns"), in_turn(["sm_90", "sm_100"], [128, 1]))
def test_groups_with_scales_of_blocks(arch, columns):
    generator = torch.Generator().manual_seed(columns)
    lengths, n, k = [5, 0, 131], 136, 200
    offs = torch.tensor(lengths).cumsum(0).int()
    a, scale_a, a_values = scaled(generator, 140, k, 1)
    of_b = [scaled(generator, n, k, columns) for _ in lengths]
    b, scale_b, b_values = (torch.stack(each) for each in zip(*of_b, strict=True))
    scale_a[136:] = torch.nan
    with triton_ext.emulate(arch):
        made = triton_ext.scaled_grouped_mm(
            a, b.mT, scale_a, scale_b.mT, offs, out_dtype=torch.float32
        )
    assert torch.equal(made.double(), by_definition(a_values, b_values.mT, offs))


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_groups_with_scales_of_rows(arch):
    generator = torch.Generator().manual_seed(0)
    offs = torch.tensor([30, 30, 41]).int()
    a, b = integers(generator, 50, 96, dtype=E4M3), integers(generator, 3, 72, 96, dtype=E4M3)
    scale_a, scale_b = 2.0 ** torch.randint(-3, 4, (50,)), 2.0 ** torch.randint(-3, 4, (3, 72))
    a_values, b_values = a.double() * scale_a[:, None], b.double() * scale_b[..., None]
    scale_a[41:] = torch.nan  # of rows that no group has
    with triton_ext.emulate(arch):
        made = triton_ext.scaled_grouped_mm(
            a, b.mT, scale_a, scale_b, offs, out_dtype=torch.float32
        )
        turned = triton_ext.scaled_grouped_mm(  # the columns of b in groups
            b, a.t(), scale_b, scale_a, offs, out_dtype=torch.float32
        )
    expected = by_definition(a_values, b_values.mT, offs)
    assert torch.equal(made.double(), expected)
    assert torch.equal(turned.double(), expected.t())


@pytest.mark.parametrize("form", ["M", "N", "K"])
def test_gradients_of_groups(form):
    generator = torch.Generator().manual_seed(1)
    a, b, offs = operands(generator, form, [9, 0, 40], 24, 32, 0)
    a, b = a.requires_grad_(), b.requires_grad_()
    with triton_ext.emulate("sm_90"):
        made = triton_ext.grouped_mm(a, b, offs)
        direction = integers(generator, *made.shape)
        found = torch.autograd.grad(made, (a, b), direction)
    exact = [each.detach().double().requires_grad_() for each in (a, b)]
    wanted = torch.autograd.grad(by_definition(*exact, offs), exact, direction.double())
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one.double(), other.to(one.dtype).double())


def test_groups_that_do_not_fit():
    a, b, offs = torch.zeros(8, 16).half(), torch.zeros(2, 16, 8).half(), torch.zeros(2).int()
    with triton_ext.emulate("sm_90"):
        for wrong, argument in (
            ((a, b, offs.long()), "offs"),
            ((a, b, offs[:1]), "b.shape"),
            ((a[:, :8], b, offs), r"b\.shape = .*: its dimension 1 must be K = 8, as in a"),
            ((a, b, None), "offs"),
            ((a[0], b, offs), "a.shape"),
            ((a.float(), b.float(), offs), "dtype"),
            ((torch.stack([a, a]), b, offs), "offs"),
        ):
            with pytest.raises(LayoutError, match=argument):
                triton_ext.grouped_mm(*wrong)
        with pytest.raises(LayoutError, match="counts"):
            triton_ext.grouped_mm(a, b, offs, counts=offs)


# --------------------------------------------------------------------------- PyTorch's operators


def test_what_the_drop_in_takes():
    """torch's own operator, on the host, is the oracle; ours is the one that ran."""
    functional = torch.nn.functional
    generator = torch.Generator().manual_seed(2)
    a, b, offs = operands(generator, "M", [9, 0, 40], 64, 72, 0)
    a, b = a.requires_grad_(), b.requires_grad_()
    direction = integers(generator, 49, 72)

    def made():
        result = functional.grouped_mm(a, b, offs=offs)
        return result, *torch.autograd.grad(result, (a, b), direction)

    expected = made()
    launched = []

    def launch(self, *given, **others):
        launched.append(self.config.product.groups)
        return prepared(self, *given, **others)

    prepared = PreparedLaunch.__call__
    ours = mock.patch.object(PreparedLaunch, "__call__", launch)
    with triton_ext.emulate("sm_90"), triton_ext.drop_in(), ours:
        found = made()
    assert sorted(launched) == ["K", "M", "M"]
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


# A tile, and what groups divide.
SCALED_TILES = [
    ({"block_n": 256, "c_parts": 2}, "M"),
    ({"block_n": 128, "cluster_m": 2, "cta_group": 2}, "M"),
    ({"block_n": 128, "block_m": 256, "swap_ab": True, "c_parts": 2}, "M"),
    ({"block_n": 128}, "rows"),
    ({"block_n": 256, "cluster_m": 2, "c_parts": 2}, "N"),
]


@pytest.mark.filterwarnings("ignore:.*remote-scope.*")
@pytest.mark.parametrize("number", range(len(SCALED_TILES)))
def test_tiles_of_groups_with_block_scales(number):
    """Blocks of scales begin with each group: empty, shorter and longer than a tile."""
    tile, groups = SCALED_TILES[number]
    generator = torch.Generator().manual_seed(number)
    lengths, k, other = [5, 0, 300, 1, 128], 200, 136
    many = 310 if groups == "rows" else sum(lengths) + 9

    def powers(*shape):
        return (2.0 ** torch.randint(-3, 4, shape, generator=generator)).to(E8M0)

    def operand(batch, rows):
        lead = (len(lengths),) if batch else ()
        stored, scales = integers(generator, *lead, rows, k, dtype=E4M3), powers(*lead, rows, 2)
        each = scales.double().repeat_interleave(128, -1)[..., :k]
        return stored, scales, stored.double() * each

    a, scale_a, a_values = operand(groups != "M", other if groups == "N" else many)
    b, scale_b, b_values = operand(groups != "N", many if groups == "N" else other)
    counts = torch.tensor(lengths).int()
    ends = counts if groups == "rows" else counts.cumsum(0).int()
    config = kernel_spec(
        100, "mxfp8", block_k=128, consumers=1, stages=2, out_type="fp32", batched=True,
        groups=groups, **tile,
    )  # fmt: skip
    with triton_ext.emulate("sm_100", schedule=SCHEDULES[number % 3]):
        scales = _applied(a, b.mT, ends, scale_a, scale_b.mT)
        epilogue = Epilogue(offs=ends, blocks_a=scales[0], blocks_b=scales[1])
        made = product(Call(a, b.mT, epilogue, torch.float32, config=config))
    first, b_values = 0, b_values.mT
    for group, length in enumerate(lengths):
        end = first + length
        if groups == "M":
            found, expected = made[first:end], a_values[first:end] @ b_values[group]
        elif groups == "N":
            found, expected = made[:, first:end], a_values[group] @ b_values[:, first:end]
        else:
            found, expected = made[group, :length], a_values[group, :length] @ b_values[group]
        assert torch.equal(found.double(), expected)
        first = end


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
@settings(max_examples=some(3))
@given(
    st.lists(st.sampled_from([0, 1, 60, 128, 131]), min_size=1, max_size=4), st.integers(0, 5),
    st.sampled_from([32, 130, 256]), st.sampled_from([8, 72, 136]), st.sampled_from([1, 128]),
    st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_groups_with_powers_of_two(arch, lengths, behind, k, n, together, gathered, seed):
    """fp32 sums of them on Hopper, the tensor cores' own scales on Blackwell."""
    generator = torch.Generator().manual_seed(seed)
    m, along = sum(lengths) + behind, -(-k // 128)
    tokens = 20 if gathered else m
    a, b = (integers(generator, *size, k, dtype=E4M3) for size in ((tokens,), (len(lengths), n)))
    rows = torch.randint(-1, 22, (m,), generator=generator).int() if gathered else None
    scales = [
        2.0 ** torch.randint(-3, 4, shape, generator=generator)
        for shape in ((tokens, along), (len(lengths), -(-n // together), along))
    ]
    offs = torch.tensor(lengths).cumsum(0).int()
    with triton_ext.emulate(arch):
        made = triton_ext.scaled_grouped_mm(
            a, b.mT, scales[0].to(E8M0), scales[1].mT.to(E8M0), offs, rows=rows,
            out_dtype=torch.float32,
        )  # fmt: skip
    wide = [each.double().repeat_interleave(128, -1)[..., :k] for each in scales]
    a, b = a.double() * wide[0], b.double() * wide[1].repeat_interleave(together, 1)[:, :n]
    if gathered:
        known = (rows >= 0) & (rows < tokens)
        a = a[rows.where(known, 0).long()].where(known[:, None], 0)
    expected, first = torch.zeros(m, n, dtype=torch.float64), 0
    for group, length in enumerate(lengths):
        expected[first : first + length] = a[first : first + length] @ b[group].mT
        first += length
    assert torch.equal(made.double(), expected)


@pytest.mark.skipif(
    not hasattr(torch.nn.functional, "scaled_grouped_mm"), reason="torch has no scaled_grouped_mm"
)
def test_torchs_mxfp8_of_groups():
    """Scales of 32 elements as torchao writes them out, by torch's recipes and without."""
    generator = torch.Generator().manual_seed(6)
    lengths, k, n = [5, 0, 141], 160, 136
    offs = torch.tensor(lengths).cumsum(0).int()

    def blocked(scales):
        """Blocks of 128 x 4, each as 32 x 16 (``torchao/prototype/mx_formats/utils.py``)."""
        rows, columns = scales.shape
        padded = torch.zeros(-(-rows // 128) * 128, -(-columns // 4) * 4, dtype=torch.uint8)
        padded[:rows, :columns] = scales.view(torch.uint8)
        tiles = padded.view(len(padded) // 128, 128, -1, 4).transpose(1, 2).reshape(-1, 4, 32, 4)
        return tiles.transpose(1, 2).flatten().view(E8M0)

    def stored(sizes):
        found = [integers(generator, size, k, dtype=E4M3) for size in sizes]
        exponents = [torch.randint(-3, 4, (size, k // 32), generator=generator) for size in sizes]
        scales = [2.0**each for each in exponents]
        values = [
            each.double() * scale.double().repeat_interleave(32, 1)
            for each, scale in zip(found, scales, strict=True)
        ]
        return found, [blocked(each.to(E8M0)) for each in scales], values

    (a, a_scales, a_values) = stored([size for size in lengths if size])
    (b, b_scales, b_values) = stored([n] * len(lengths))
    a, b = torch.cat(a), torch.stack(b)
    scale_a, scale_b = torch.cat(a_scales).view(-1, 8), torch.stack(b_scales)
    expected = torch.cat([a_values[0] @ b_values[0].t(), a_values[1] @ b_values[2].t()])
    functional, kind = torch.nn.functional, torch.nn.functional.ScalingType.BlockWise1x32
    swizzle = torch.nn.functional.SwizzleType.SWIZZLE_32_4_4
    with triton_ext.emulate("sm_100"):
        made = triton_ext.scaled_grouped_mm(a, b.mT, scale_a, scale_b, offs)
        with triton_ext.drop_in():
            older = torch._scaled_grouped_mm(a, b.mT, scale_a, scale_b, offs=offs)
            newer = functional.scaled_grouped_mm(
                a, b.mT, scale_a, kind, scale_b, kind, swizzle, swizzle, offs=offs
            )
        for wrong in (scale_b[:, :-1], scale_b[:2], scale_b.t().contiguous().t()):
            with pytest.raises(LayoutError, match=r"scale_b\.shape.*of each 32 elements"):
                triton_ext.scaled_grouped_mm(a, b.mT, scale_a, wrong, offs)
        with pytest.raises(LayoutError, match=r"scale_a\.shape.*multiple of 1024"):
            triton_ext.scaled_grouped_mm(a, b.mT, scale_a[:5], scale_b, offs)
        with pytest.raises(LayoutError, match=r"scale_b\.dtype.*as that of the other"):
            triton_ext.scaled_grouped_mm(a, b.mT, scale_a, torch.ones(1), offs)
    assert torch.equal(made, expected.bfloat16())
    assert torch.equal(older, made)
    assert torch.equal(newer, made)
    with triton_ext.emulate("sm_90"), pytest.raises(LayoutError, match="need Blackwell"):
        triton_ext.scaled_grouped_mm(a, b.mT, scale_a, scale_b, offs)


@pytest.mark.skipif(
    not hasattr(torch.nn.functional, "scaled_grouped_mm"), reason="torch has no scaled_grouped_mm"
)
@pytest.mark.parametrize("name", ["mxfp4", "nvfp4"])
def test_groups_of_four_bits(name):
    """As torch has them, nvfp4 with two scales; rows in any order, and those that count, too."""
    functional, generator = torch.nn.functional, torch.Generator().manual_seed(7)
    lengths, k, n = [5, 0, 141], 160, 48
    counts = torch.tensor(lengths).int()
    made = [plan_launch.block_scaled(name, size, k, generator) for size in lengths if size]
    a, scale_a, of_a = (torch.cat([each[part].view(torch.uint8) if part < 2 else each[part]
                                   for each in made]) for part in range(3))  # fmt: skip
    made = [plan_launch.block_scaled(name, n, k, generator) for _ in lengths]
    b, scale_b, of_b = (torch.stack([each[part].view(torch.uint8) if part < 2 else each[part]
                                     for each in made]) for part in range(3))  # fmt: skip
    kind = E4M3 if name == "nvfp4" else E8M0
    a, b = a.view(torch.float4_e2m1fn_x2), b.view(torch.float4_e2m1fn_x2).mT
    scale_a, scale_b = scale_a.view(kind).view(-1, 512), scale_b.view(kind).view(3, -1)
    expected = torch.cat([of_a[:5] @ of_b[0].t(), of_a[5:] @ of_b[2].t()])
    recipe, whole = functional.ScalingType.BlockWise1x32, functional.ScalingType.TensorWise
    swizzles = [functional.SwizzleType.SWIZZLE_32_4_4]
    recipes, wholes = [recipe], ()
    if name == "nvfp4":
        recipes, wholes = [functional.ScalingType.BlockWise1x16, whole], (torch.full((1,), 0.5),)
        swizzles.append(functional.SwizzleType.NO_SWIZZLE)
        expected = expected * 0.25
    scales = [scale_a, *wholes], [scale_b, *(each.clone() for each in wholes)]
    offs = counts.cumsum(0).int()
    order = torch.randperm(len(a), generator=generator).int()
    with triton_ext.emulate("sm_100"):
        with triton_ext.drop_in():
            for _ in range(3):  # the third is a shortcut
                found = functional.scaled_grouped_mm(
                    a, b, scales[0], recipes, scales[1], recipes, swizzles, swizzles, offs=offs
                )
                assert torch.equal(found, expected.bfloat16())
        pairs = [tuple(each) if wholes else each[0] for each in scales]
        bytes_of = a.view(torch.uint8)
        turned = torch.empty_like(bytes_of).index_copy(0, order.long(), bytes_of)
        gathered = triton_ext.scaled_grouped_mm(
            turned.view(torch.float4_e2m1fn_x2), b, *pairs, offs, rows=order
        )
        assert torch.equal(gathered, expected.bfloat16())
        wrong = scales[1][0], torch.ones(2)
        with pytest.raises(LayoutError, match=r"scale_b.*an fp32 of one element"):
            triton_ext.scaled_grouped_mm(a, b, pairs[0], wrong, offs)
        with pytest.raises(LayoutError, match=r"scale_a\.dtype.*must be"):
            triton_ext.scaled_grouped_mm(a, b, torch.ones(1), torch.ones(1), offs)


@pytest.mark.skipif(
    not hasattr(torch, "_scaled_grouped_mm"), reason="torch has no _scaled_grouped_mm"
)
def test_the_drop_in_takes_two_batches_with_scales_of_rows():
    generator = torch.Generator().manual_seed(10)
    a, b = (integers(generator, 3, size, 64, dtype=E4M3) for size in (20, 48))
    scales = [2.0 ** torch.randint(-2, 3, (3, size), generator=generator) for size in (20, 48)]
    x, y = (
        each.double() * scale[..., None] for each, scale in zip((a, b), scales, strict=True)
    )  # fmt: skip
    with triton_ext.emulate("sm_90"), triton_ext.drop_in():
        made = torch._scaled_grouped_mm(a, b.mT, *scales, out_dtype=torch.bfloat16)
    assert torch.equal(made, (x @ y.mT).bfloat16())


@pytest.mark.skipif(
    not hasattr(torch.nn.functional, "scaled_grouped_mm"), reason="torch has no scaled_grouped_mm"
)
def test_the_drop_in_takes_recipes_of_groups():
    generator = torch.Generator().manual_seed(8)
    lengths, k, n = [3, 0, 18], 64, 32
    offs = torch.tensor(lengths).cumsum(0).int()
    a, b = (
        integers(generator, sum(lengths), k, dtype=E4M3),
        [integers(generator, n, k, dtype=E4M3) for _ in lengths],
    )
    scale_a, scale_b = (
        2.0 ** torch.randint(-2, 3, shape, generator=generator)
        for shape in ((sum(lengths),), (len(lengths), n))
    )
    rows = a.double() * scale_a[:, None]
    expected = torch.cat(
        [
            part @ (each.double() * scale[:, None]).t()
            for part, each, scale in zip(rows.split(lengths), b, scale_b, strict=True)
        ]
    )
    functional, kind = torch.nn.functional, torch.nn.functional.ScalingType.RowWise
    with triton_ext.emulate("sm_90"), triton_ext.drop_in():
        made = functional.scaled_grouped_mm(
            a, torch.stack(b).mT, scale_a, kind, scale_b, kind, offs=offs
        )
    assert torch.equal(made, expected.bfloat16())


@pytest.mark.skipif(not hasattr(torch.nn.functional, "scaled_mm"), reason="torch has no scaled_mm")
def test_the_drop_in_takes_recipes():
    kind, functional = torch.nn.functional.ScalingType, torch.nn.functional
    generator = torch.Generator().manual_seed(3)
    a, scale_a, a_values = scaled(generator, 40, 256, 1)
    b, scale_b, b_values = scaled(generator, 136, 256, 128)
    scale_a = scale_a.t().contiguous().t()
    recipes = kind.BlockWise1x128, kind.BlockWise128x128
    expected = (a_values @ b_values.t()).float()
    with triton_ext.emulate("sm_90"), triton_ext.drop_in():
        made = functional.scaled_mm(
            a, b.t(), scale_a, recipes[0], scale_b.t(), recipes[1], output_dtype=torch.float32
        )
        older = torch._scaled_mm(
            a, b.t(), scale_a=scale_a, scale_b=scale_b.t(), out_dtype=torch.float32
        )
    assert torch.equal(made, expected)
    assert torch.equal(older, expected)


@pytest.mark.skipif(not hasattr(torch.nn.functional, "scaled_mm"), reason="torch has no scaled_mm")
@pytest.mark.parametrize(
    ("m", "n", "k", "rows", "columns"),
    [(8, 48, 600, 1, 1), (256, 48, 600, 128, 1), (7, 16, 96, 1, 1)],
)
def test_recipes_as_torch_has_their_scales(m, n, k, rows, columns):
    """Those of 1 x 128 along K second for b, too; of 128 x 128 first, padded to a multiple of 4."""
    kind, functional = torch.nn.functional.ScalingType, torch.nn.functional
    recipes = {1: kind.BlockWise1x128, 128: kind.BlockWise128x128}
    generator = torch.Generator().manual_seed(k)

    def as_torch_has_them(scales, together):
        if together == 1:
            return scales.t().contiguous().t()
        padded = torch.full((len(scales), -(-scales.shape[1] // 4) * 4), float("nan"))
        padded[:, : scales.shape[1]] = scales
        return padded.t()

    (a, scale_a, x), (b, scale_b, y) = (
        scaled(generator, size, k, together) for size, together in ((m, rows), (n, columns))
    )
    scale_a, scale_b = as_torch_has_them(scale_a, rows), as_torch_has_them(scale_b, columns)
    with triton_ext.emulate("sm_90"), triton_ext.drop_in():
        made = functional.scaled_mm(
            a, b.t(), scale_a, recipes[rows], scale_b, recipes[columns],
            output_dtype=torch.float32,
        )  # fmt: skip
    assert torch.equal(made, (x @ y.t()).float())


@pytest.mark.skipif(not hasattr(torch.nn.functional, "scaled_mm"), reason="torch has no scaled_mm")
@pytest.mark.parametrize(("name", "rows"), [("mxfp8", 1), ("mxfp4", 7), ("nvfp4", 130)])
def test_the_drop_in_takes_what_blackwell_scales(name, rows):
    """As torchao and vLLM call them, by recipes and without; nvfp4 with two scales, too."""
    kind, swizzle = torch.nn.functional.ScalingType, torch.nn.functional.SwizzleType
    generator = torch.Generator().manual_seed(rows)
    (a, scale_a, x), (b, scale_b, y) = (
        plan_launch.block_scaled(name, size, 160, generator) for size in (rows, 48)
    )
    if name != "mxfp8":
        a, b = a.view(torch.float4_e2m1fn_x2), b.view(torch.float4_e2m1fn_x2)
    bias = integers(generator, 48)
    exact = x @ y.t()
    recipe = kind.BlockWise1x16 if name == "nvfp4" else kind.BlockWise1x32
    wholes = torch.tensor(0.5), torch.full((1,), 0.25)
    pair, swizzled = [recipe, kind.TensorWise], swizzle.SWIZZLE_32_4_4
    with triton_ext.emulate("sm_100"), triton_ext.drop_in():
        older = torch._scaled_mm(a, b.t(), scale_a, scale_b, bias=bias, out_dtype=torch.bfloat16)
        newer = torch.nn.functional.scaled_mm(
            a, b.t(), scale_a, recipe, scale_b, recipe, swizzled, swizzled,
            output_dtype=torch.float32,
        )  # fmt: skip
        if name == "nvfp4":
            both = [swizzled, swizzle.NO_SWIZZLE]
            for _ in range(3):  # the third is a shortcut
                two = torch.nn.functional.scaled_mm(
                    a, b.t(), [scale_a, wholes[0]], pair, [scale_b, wholes[1]], pair, both, both,
                    output_dtype=torch.float32,
                )  # fmt: skip
                assert torch.equal(two, (exact / 8).float())
    assert torch.equal(older, (exact + bias.double()).bfloat16())
    assert torch.equal(newer, exact.float())


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_the_drop_in_takes_products_of_int8(arch):
    generator = torch.Generator().manual_seed(9)
    a, b = (
        torch.randint(-128, 128, s, generator=generator).to(torch.int8) for s in ((3, 96), (72, 96))
    )
    out = torch.empty(3, 72, dtype=torch.int32)
    with triton_ext.emulate(arch) as gpu, triton_ext.drop_in():
        made = torch._int_mm(a, b.t())
        torch._int_mm(a, b.t(), out=out)
        assert gpu.launches == 2
    assert torch.equal(made.double(), a.double() @ b.double().t())
    assert torch.equal(out, made)


def test_groups_are_traced():
    generator = torch.Generator().manual_seed(4)
    a, b, offs = operands(generator, "M", [9, 40], 64, 72, 0)
    compiled = torch.compile(
        lambda *given: triton_ext.grouped_mm(*given) * 2, backend="aot_eager", fullgraph=True
    )
    with triton_ext.emulate("sm_90"):
        made = compiled(a, b, offs)
    assert torch.equal(made, (by_definition(a, b, offs) * 2).bfloat16())


# --------------------------------------------------------------------------------- quantization


@pytest.mark.parametrize("powers_of_two", [False, True])
def test_quantization_is_deepseeks_rule(powers_of_two):
    """The largest magnitude over 448, bit for bit, over the range of bf16; zeros stay zeros."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(40, 300, generator=generator) * torch.logspace(-25, 25, 40)[:, None]
    x = x.bfloat16()
    x[3] = 0
    for rows, quantize in ((1, triton_ext.quantize_1x128), (128, triton_ext.quantize_128x128)):
        blocks = -(-40 // rows)
        padded = torch.zeros(blocks * rows, 384)
        padded[:40, :300] = x.float()
        tiles = padded.view(blocks, rows, 3, 128)
        scales = tiles.abs().amax((1, 3)) / 448
        if powers_of_two:
            scales = torch.where(scales > 0, torch.exp2(torch.ceil(torch.log2(scales))), scales)
        divisors = torch.where(scales > 0, scales, 1.0)[:, None, :, None]
        expected = (tiles / divisors).view(padded.shape)[:40, :300].to(E4M3)
        with triton_ext.emulate("sm_90"):
            made, found = quantize(x, powers_of_two=powers_of_two)
        assert torch.equal(found, scales)
        assert torch.equal(made.view(torch.uint8), expected.view(torch.uint8))


def test_quantization_is_traced():
    """As it is in memory: scales of rows have rows contiguous."""
    for x, quantize in (
        (torch.ones(40, 300), triton_ext.quantize_1x128),
        (torch.ones(2, 5, 130), triton_ext.quantize_1x128),
        (torch.ones(2, 140, 130), triton_ext.quantize_128x128),
    ):
        with triton_ext.emulate("sm_90"):
            made = quantize(x)
        with torch._subclasses.FakeTensorMode() as mode:
            fake = quantize(mode.from_tensor(x))
        described = [
            [(each.shape, each.stride(), each.dtype) for each in two] for two in (made, fake)
        ]
        assert described[0] == described[1]
