"""Products of groups whose rows come from, and go to, where indices say, on the emulated GPUs:
exact, race-free, in bounds.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from mutations import some  # noqa: E402

import triton_ext  # noqa: E402
from triton_ext import LayoutError  # noqa: E402
from triton_ext.kernels.choice import candidates  # noqa: E402
from triton_ext.kernels.spec import kernel_spec  # noqa: E402
from triton_ext.ops import checks  # noqa: E402
from triton_ext.ops.call import Call  # noqa: E402
from triton_ext.ops.epilogue import Epilogue  # noqa: E402
from triton_ext.ops.products import product  # noqa: E402

needs_new = pytest.mark.skipif(not candidates.is_new(), reason="needs Triton 3.9")
pytestmark = [pytest.mark.usefixtures("no_binaries", "shallow", "poisoned_memory"), needs_new]
SCHEDULES = ("eager", "lazy", "random")


def integers(generator, *shape, dtype=torch.bfloat16):
    return torch.randint(-3, 4, shape, generator=generator).float().to(dtype)


def orders(generator, count, tokens):
    """Indices of rows to read, some of which are none, and to write, none twice; and factors."""
    rows = torch.randint(-2, tokens + 2, (count,), generator=generator).int()
    out_rows = torch.randperm(count, generator=generator).int()
    nowhere = torch.tensor([-1, count, 2**31 - 1, -(2**31)])[: count // 2]
    out_rows[torch.randperm(count, generator=generator)[: len(nowhere)]] = nowhere.int()
    return rows, out_rows, torch.randint(-2, 3, (count,), generator=generator).float()


def by_definition(
    a, b, offs, rows=None, out_rows=None, factors=None, bias=None, activation=None
):  # fmt: skip
    """The result in float64, by torch's own indexing; NaN where nothing is written."""
    a, b = a.double(), b.double()
    if rows is not None:
        known = (rows >= 0) & (rows < len(a))
        a = torch.cat([a, a.new_zeros(1, a.shape[1])])[rows.where(known, len(a)).long()]
    made = a.new_zeros(len(a), b.shape[-1])
    first = 0
    for group, end in enumerate(offs.tolist()):
        added = 0 if bias is None else bias[group]
        made[first:end] = a[first:end] @ b[group] + added
        first = end
    if activation is not None:  # "reglu_interleaved"
        made = made[:, ::2].relu() * made[:, 1::2]
    if factors is not None:
        made *= factors.double()[:, None]
    if out_rows is None:
        return made
    written = (out_rows >= 0) & (out_rows < len(made))
    result = torch.full_like(made, torch.nan)
    result[out_rows[written].long()] = made[written]
    return result


def assert_same(found, expected):
    written = ~expected.isnan()
    assert torch.equal(found[written].double(), expected[written].to(found.dtype).double())


# A tile, K, and which of rows, out_rows and factors there are.
TILES = [
    (90, {"consumers": 2, "block_n": 96, "c_parts": 3, "block_k": 128}, 72, "rof"),
    (90, {"consumers": 3, "block_m": 192, "block_n": 64}, 72, "r"),
    (90, {"consumers": 2, "block_m": 24, "swap_ab": True, "c_parts": 3, "block_n": 128}, 72, "rof"),
    (90, {"consumers": 2, "pingpong": True, "block_m": 64, "block_n": 64}, 200, "rf"),
    (90, {"consumers": 1, "block_m": 64, "block_n": 64, "cluster_m": 2}, 72, "of"),
    (100, {"consumers": 1, "block_n": 64, "c_parts": 2}, 72, "rof"),
    (100, {"consumers": 1, "block_m": 64, "block_n": 32, "block_k": 128}, 200, "rf"),
    (100, {"consumers": 1, "block_m": 16, "swap_ab": True, "block_n": 128, "block_k": 32}, 72,
     "ro"),
    (100, {"consumers": 1, "block_n": 32, "cluster_m": 2, "cta_group": 2}, 72, "of"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(TILES)))
@pytest.mark.filterwarnings("ignore:.*remote-scope.*")
def test_tiles(number):
    """Groups that are empty, shorter and longer than a tile; rows behind the last one."""
    arch, tile, k, given = TILES[number]
    generator = torch.Generator().manual_seed(number)
    offs = torch.tensor([5, 0, 141, 1, 64]).cumsum(0).int()
    count, tokens = int(offs[-1]) + 9, 50
    rows, out_rows, factors = (
        each if letter in given else None
        for letter, each in zip("rof", orders(generator, count, tokens), strict=True)
    )
    a = integers(generator, tokens if rows is not None else count, k)
    b = integers(generator, len(offs), k, 136)
    config = kernel_spec(
        arch, "bf16", "K", "MN", out_type="fp32", stages=2, batched=True, groups="M", **tile
    )
    epilogue = Epilogue(offs=offs, rows=rows, out_rows=out_rows, factors=factors)
    with triton_ext.emulate(f"sm_{arch}", schedule=SCHEDULES[number % 3]):
        made = product(Call(a, b, epilogue, torch.float32, config=config))
    assert_same(made, by_definition(a, b, offs, rows, out_rows, factors))


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
@settings(max_examples=some(3))
@given(
    st.lists(st.sampled_from([0, 1, 7, 33, 130]), min_size=1, max_size=4), st.integers(0, 5),
    st.sampled_from([1, 5, 40]), st.sampled_from([8, 33, 100]), st.sampled_from([1, 8, 70]),
    st.integers(0, 99),
)  # fmt: skip
def test_as_torch_indexes(arch, lengths, behind, tokens, k, n, seed):
    generator = torch.Generator().manual_seed(seed)
    offs = torch.tensor(lengths).cumsum(0).int()
    count = int(offs[-1]) + behind
    a, b = integers(generator, tokens, k), integers(generator, len(lengths), k, n)
    rows, out_rows, factors = orders(generator, count, tokens)
    with triton_ext.emulate(arch):
        made = triton_ext.grouped_mm(a, b, offs, rows=rows, out_rows=out_rows, factors=factors)
    assert made.shape == (count, n)
    assert_same(made, by_definition(a, b, offs, rows, out_rows, factors))


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_a_layer_in_three_launches(arch):
    """Tokens read by two experts each, gate and up in one product, and a row for each of both."""
    generator = torch.Generator().manual_seed(1)
    tokens, hidden, inner, chosen = 20, 64, 40, 2
    x = integers(generator, tokens, hidden)
    up, down = integers(generator, 3, hidden, 2 * inner), integers(generator, 3, inner, hidden)
    experts = torch.randint(0, 3, (tokens, chosen), generator=generator)
    weights = torch.rand(tokens, chosen, generator=generator)
    order = experts.flatten().argsort(stable=True).int()
    offs = torch.bincount(experts.flatten(), minlength=3).cumsum(0).int()
    with triton_ext.emulate(arch) as gpu:
        before = gpu.launches
        middle = triton_ext.grouped_mm(x, up, offs, rows=order // chosen, activation="reglu")
        each = triton_ext.grouped_mm(
            middle, down, offs, out_rows=order, factors=weights.flatten()[order],
            out_dtype=torch.float32,
        )  # fmt: skip
        assert gpu.launches == before + 2
    expected = torch.zeros(tokens, hidden, dtype=torch.float64)
    for token in range(tokens):
        for expert, weight in zip(experts[token].tolist(), weights[token].double(), strict=True):
            gate, value = (x[token].double() @ up[expert].double()).chunk(2)
            half = (gate.relu() * value).bfloat16().double()
            expected[token] += weight * (half @ down[expert].double())
    found = each.view(tokens, chosen, hidden).sum(1)
    assert (found.double() - expected).abs().max() < 1e-6 * expected.abs().max()


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
@pytest.mark.parametrize("blocks", [False, True])
def test_with_scales(arch, blocks):
    generator = torch.Generator().manual_seed(2)
    k, n, tokens = 200, 72, 30
    offs = torch.tensor([30, 30, 71]).int()
    a = integers(generator, tokens, k, dtype=torch.float8_e4m3fn)
    b = integers(generator, 3, n, k, dtype=torch.float8_e4m3fn)
    along = (2,) if blocks else ()
    scale_a = 2.0 ** torch.randint(-2, 3, (tokens, *along), generator=generator)
    scale_b = 2.0 ** torch.randint(-2, 3, (3, n, *along), generator=generator)
    rows, out_rows, factors = orders(generator, 75, tokens)
    wide = [each.repeat_interleave(128, -1)[..., :k] if blocks else each[..., None]
            for each in (scale_a, scale_b)]  # fmt: skip
    values = a.double() * wide[0].double(), (b.double() * wide[1].double()).mT
    with triton_ext.emulate(arch):
        made = triton_ext.scaled_grouped_mm(
            a, b.mT, scale_a, scale_b.mT if blocks else scale_b, offs, rows=rows,
            out_rows=out_rows, factors=factors, out_dtype=torch.float32,
        )  # fmt: skip
    assert_same(made, by_definition(*values, offs, rows, out_rows, factors))


@pytest.mark.parametrize("blocks", [(), (2,)])
def test_rows_of_no_tokens_are_zeros_whatever_their_scales(blocks):
    a, b = (
        torch.zeros(0, 200).to(torch.float8_e4m3fn),
        torch.ones(2, 200, 8).to(torch.float8_e4m3fn),
    )
    scale_a = torch.zeros(0, *blocks)
    scale_b = torch.ones(2, *blocks, 8)
    rows, offs = torch.arange(5).int(), torch.tensor([3, 5]).int()
    with triton_ext.emulate("sm_90"):
        made = triton_ext.scaled_grouped_mm(a, b, scale_a, scale_b, offs, rows=rows)
    assert torch.equal(made, torch.zeros(5, 8).bfloat16())


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_the_compiler_passes_find_nothing(arch):
    generator = torch.Generator().manual_seed(5)
    a, b = integers(generator, 20, 64), integers(generator, 2, 64, 72)
    rows, out_rows, factors = orders(generator, 40, 20)
    offs = torch.tensor([9, 40]).int()
    passes = triton_ext.passes.enabled("verify-descriptors", "lint-shared")  # errors are raised
    with passes, triton_ext.emulate(arch):
        made = triton_ext.grouped_mm(a, b, offs, rows=rows, out_rows=out_rows, factors=factors)
    assert_same(made, by_definition(a, b, offs, rows, out_rows, factors))


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
@settings(max_examples=some(2))
@given(
    st.lists(st.sampled_from([0, 1, 7, 33, 130]), min_size=1, max_size=4), st.integers(1, 5),
    st.sampled_from([1, 9]), st.sampled_from([8, 24, 33]), st.sampled_from([8, 26, 72]),
    st.sampled_from(["r", "rofb", "rfg", "rof", "ob", "rofbg"]), st.integers(0, 99),
)  # fmt: skip
def test_gradients(arch, lengths, behind, tokens, k, n, which, seed):
    """With a bias (b), and a gate (g): exact but for the gate, whose sums' gradient is rounded."""
    generator = torch.Generator().manual_seed(seed)
    count, offs = sum(lengths) + behind, torch.tensor(lengths).cumsum(0).int()
    a = integers(generator, tokens if "r" in which else count, k)
    b, activation = integers(generator, len(lengths), k, n), None
    if "g" in which:
        activation = "reglu_interleaved"
    rows, out_rows, factors = (
        each if letter in which else None
        for letter, each in zip("rof", orders(generator, count, tokens), strict=True)
    )
    bias = integers(generator, len(lengths), n) if "b" in which else None
    leaves = [each.requires_grad_() for each in (a, b, factors, bias) if each is not None]
    exact = [each.detach().double().requires_grad_() for each in leaves]
    wide = iter(exact)
    of_a, of_b, of_factors, of_bias = (
        None if each is None else next(wide) for each in (a, b, factors, bias)
    )
    expected = by_definition(of_a, of_b, offs, rows, out_rows, of_factors, of_bias, activation)
    written = ~expected.isnan()
    found = []
    with triton_ext.emulate(arch):
        for _ in range(2):
            made = triton_ext.grouped_mm(
                a, b, offs, rows=rows, out_rows=out_rows, factors=factors, bias=bias,
                activation=activation,
            )  # fmt: skip
            grad = integers(torch.Generator().manual_seed(4), *made.shape)
            found.append(torch.autograd.grad(made, leaves, grad))
    assert torch.equal(made[written].double(), expected[written].bfloat16().double())
    wanted = torch.autograd.grad(expected[written], exact, grad.double()[written])
    bound = 2.0**-7 if activation else 0
    for one, again, other in zip(*found, wanted, strict=True):
        other = other if activation else other.to(one.dtype).double()
        assert (one.double() - other).abs().max() <= bound * other.abs().max()
        assert torch.equal(one, again)


def test_gradients_of_gradients():
    generator = torch.Generator().manual_seed(3)
    rows, out_rows, factors = orders(generator, 20, 9)
    offs, found = torch.tensor([9, 20]).int(), []
    tensors = integers(generator, 9, 16), integers(generator, 2, 16, 24), factors
    with triton_ext.emulate("sm_90"):
        for kind in (torch.bfloat16, torch.float64):
            a, b = (each.to(kind).requires_grad_() for each in tensors[:2])
            f = factors.to(torch.promote_types(kind, torch.float32)).requires_grad_()
            given = {"rows": rows, "out_rows": out_rows, "factors": f}
            make = triton_ext.grouped_mm if kind == torch.bfloat16 else by_definition
            made = make(a, b, offs, **given)
            known = out_rows[(out_rows >= 0) & (out_rows < 20)].long()
            first = torch.autograd.grad(made[known].sum(), (a, b), create_graph=True)
            total = sum((each.double() ** 2).sum() for each in first)
            found.append(torch.autograd.grad(total, (a, b, f)))
    for one, other in zip(*found, strict=True):
        assert (one.double() - other).abs().max() <= 2.0**-6 * other.abs().max()


@pytest.mark.parametrize("given", ["r", "rof"])
def test_it_is_traced(given):
    generator = torch.Generator().manual_seed(4)
    a, b, offs = integers(generator, 9, 64), integers(generator, 2, 64, 72), [9, 40]
    every = zip(("rows", "out_rows", "factors"), orders(generator, 40, 9), strict=True)
    ordered = dict(list(every)[: len(given)])
    offs = torch.tensor(offs).int()

    def made(*given):
        return triton_ext.grouped_mm(*given, **ordered) * 2

    compiled = torch.compile(made, backend="aot_eager", fullgraph=True)
    with triton_ext.emulate("sm_90"):
        found = compiled(a, b, offs)
    assert found.shape == (40, 72)
    assert_same(found, 2 * by_definition(a, b, offs, **ordered))


def test_what_does_not_fit():
    a, b, offs = torch.zeros(8, 16).half(), torch.zeros(2, 16, 8).half(), torch.zeros(2).int()
    index, wrong_size = torch.zeros(8).int(), torch.zeros(7).int()
    with triton_ext.emulate("sm_90"):
        for given, argument in (
            ({"rows": index.long()}, "rows"),
            ({"rows": index[None]}, "rows"),
            ({"rows": [0]}, "rows"),
            ({"out_rows": wrong_size}, "out_rows"),
            ({"rows": wrong_size, "out_rows": index}, "out_rows"),
            ({"factors": index}, "factors"),
            ({"factors": wrong_size.float()}, "factors"),
        ):
            with pytest.raises(LayoutError, match=f"^{argument}"):
                triton_ext.grouped_mm(a, b, offs, **given)
        for counts in (offs[:1], offs.to("meta")):
            with pytest.raises(LayoutError, match=r"counts"):
                triton_ext.grouped_mm(b.mT, b, counts=counts)
        with pytest.raises(LayoutError, match=r"rows.*must be None"):
            triton_ext.grouped_mm(b.mT, b, rows=index)
        with pytest.raises(LayoutError, match=r"rows.*must be None"):
            triton_ext.grouped_mm(b.mT, b, counts=offs, rows=index)
        with pytest.raises(LayoutError, match=r"rows.*must be None"):
            triton_ext.grouped_mm(b.mT, a.t(), offs, rows=index)


def test_rows_lie_within_reach():
    """A kernel counts the chunks of a row of A in 31 bits."""
    for rows, wide, fits in ((2**20, 2**14, True), (2**20, 2**14 + 8, False)):
        a = torch.empty(rows, wide, dtype=torch.bfloat16, device="meta")
        b, offs = a.new_empty(2, wide, 8), torch.empty(2, dtype=torch.int32, device="meta")
        call = Call(a, b, Epilogue(offs=offs, rows=offs), None)
        if fits:
            checks.check_groups(call)
        else:
            with pytest.raises(LayoutError, match=r"a\.shape.*must lie within 32 GiB"):
                checks.check_groups(call)


CHANGES = {
    "a list": lambda each: each.tolist(),
    "another type": lambda each: each.to(torch.float64),
    "a dimension more": lambda each: each.unsqueeze(-1),
    "one less": lambda each: each[1:],
    "sparse": lambda each: each.float().to_sparse(),
    "on no device": lambda each: each.to("meta"),
}
ARGUMENTS = ["offs", "rows", "out_rows", "factors", "bias", "scale_a", "scale_b"]


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
@settings(max_examples=some(25))
@given(
    st.integers(1, 30), st.integers(1, 4), st.sampled_from([1, 40, 130]), st.sampled_from([1, 24]),
    st.sampled_from(ARGUMENTS), st.sampled_from(sorted(CHANGES)), st.sampled_from([0, 1, 2]),
)  # fmt: skip
def test_what_is_wrong_is_named_before_a_launch(arch, m, groups, k, n, name, change, kind):
    """Without scales, with fp32 ones of blocks, and with powers of two."""
    along = -(-k // 128)
    dtype = torch.float8_e8m0fnu if kind == 2 else torch.float32
    given = {
        "offs": torch.full((groups,), m).int(), "rows": torch.zeros(m).int(),
        "out_rows": torch.arange(m).int(), "factors": torch.ones(m),
        "bias": torch.zeros(groups, n).bfloat16(),
    }  # fmt: skip
    a, b = torch.zeros(9, k).bfloat16(), torch.zeros(groups, k, n).bfloat16()
    if kind:
        a, b = a.to(torch.float8_e4m3fn), b.mT.contiguous().to(torch.float8_e4m3fn).mT
        given |= {
            "scale_a": torch.ones(9, along).to(dtype), "scale_b": torch.ones(groups, along, n)
        }  # fmt: skip
        given["scale_b"] = given["scale_b"].to(dtype)
    elif name.startswith("scale"):
        return
    given[name] = CHANGES[change](given[name])
    # Indices say how many rows there are, ends how many groups.
    named = {"rows": "rows|out_rows|factors", "offs": r"offs|a\.shape|b\.shape|scale_a|bias"}
    function = triton_ext.scaled_grouped_mm if kind else triton_ext.grouped_mm
    with triton_ext.emulate(arch) as gpu:
        before = gpu.launches
        with pytest.raises(LayoutError, match=f"^({named.get(name, name)})"):
            function(a, b, **given)
        assert gpu.launches == before


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_routes(dtype):
    """By a loop over the choices; what is no expert comes last, and its rows are zeros."""
    generator = torch.Generator().manual_seed(8)
    chosen = torch.randint(-1, 6, (12, 3), generator=generator).to(dtype)
    weights = torch.rand(12, 3, generator=generator).bfloat16().requires_grad_()
    found = triton_ext.route(chosen, 5, weights)
    pairs = [(int(e), t, c) for t, row in enumerate(chosen) for c, e in enumerate(row)]
    known = sorted(pair for pair in pairs if 0 <= pair[0] < 5)
    assert found.offs.tolist() == [sum(e <= g for e, _, _ in known) for g in range(5)]
    assert found.rows[: len(known)].tolist() == [t for _, t, _ in known]
    assert found.order[: len(known)].tolist() == [3 * t + c for _, t, c in known]
    assert sorted(found.order.tolist()) == list(range(36))
    assert torch.equal(found.factors, weights.flatten()[found.order.long()].float())
    found.factors.sum().backward()
    assert torch.equal(weights.grad, torch.ones_like(weights))
    assert {each.dtype for each in found[:3]} == {torch.int32}
    nothing = triton_ext.route(chosen[:0], 5)
    assert (nothing.offs.tolist(), nothing.factors) == ([0] * 5, None)
    for arguments, name in (
        ((chosen[0], 5), "chosen"), ((chosen.float(), 5), "chosen"), (([[1]], 5), "chosen"),
        ((chosen, 0), "experts"), ((chosen, 5.0), "experts"), ((chosen, 5, chosen), "weights"),
        ((chosen, 5, weights[1:]), "weights"), ((chosen, 5, weights.to("meta")), "weights"),
    ):  # fmt: skip
        with pytest.raises(LayoutError, match=f"^{name}"):
            triton_ext.route(*arguments)
