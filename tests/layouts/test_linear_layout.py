"""The algebra: its laws, and Triton's own binding wherever it has the operation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import (
    IN_NAMES,
    OUT_NAMES,
    invertible_layouts,
    layouts,
    sized_dims,
    surjective_layouts,
)

from triton_ext import LayoutError, LinearLayout


@pytest.fixture(scope="module")
def triton_layouts():
    """Triton's own class."""
    return pytest.importorskip("triton._C.libtriton").linear_layout.LinearLayout


@pytest.fixture(scope="module")
def triton_version():
    return tuple(map(int, pytest.importorskip("triton").__version__.split(".")[:2]))


def to_triton(cls, layout):
    return cls.from_bases(
        [(name, [list(basis) for basis in bases]) for name, bases in layout.bases.items()],
        list(layout.out_dims),
        list(layout.out_dims.values()),
        False,
    )


def from_triton(theirs):
    return LinearLayout(dict(theirs.bases), dict(theirs.out_dims))


def points(dims):
    for values in itertools.product(*(range(size) for size in dims.values())):
        yield dict(zip(dims, values, strict=True))


# --------------------------------------------------------------------------- the laws


@given(layouts())
def test_apply_is_linear(layout):
    every = list(points(layout.in_dims))
    for x, y in zip(every, reversed(every), strict=True):
        both = {name: x[name] ^ y[name] for name in x}
        fx, fy = layout.apply(x), layout.apply(y)
        assert layout.apply(both) == {name: fx[name] ^ fy[name] for name in fx}
    for name, bases in layout.bases.items():
        for bit, basis in enumerate(bases):
            point = dict.fromkeys(layout.in_dims, 0) | {name: 1 << bit}
            assert tuple(layout.apply(point).values()) == basis


@given(layouts())
def test_apply_to_arrays_is_apply_to_each(layout):
    every = list(points(layout.in_dims))
    arrays = {name: np.array([point[name] for point in every]) for name in layout.in_dims}
    found = layout.apply(arrays)
    for i, point in enumerate(every):
        assert {name: int(values[i]) for name, values in found.items()} == layout.apply(point)


def test_apply_broadcasts_arrays():
    layout = LinearLayout.identity_1d(4, "row", "y") * LinearLayout.identity_1d(8, "column", "x")
    found = layout.apply(row=np.arange(4)[:, None], column=np.arange(8, dtype=np.uint8))
    assert found["x"].shape == found["y"].shape == (4, 8)
    assert found["x"].dtype == np.int64
    assert (found["x"] == np.arange(8)).all()
    mixed = layout.apply(row=np.int32(3), column=np.arange(8))
    assert (mixed["y"] == 3).all()


@given(st.data())
def test_composition_is_application_after_application(data):
    first = data.draw(layouts())
    second = data.draw(layouts(in_dims=first.out_dims))
    composed = first.compose(second)
    for point in points(first.in_dims):
        assert composed.apply(point) == second.apply(first.apply(point))


@given(st.data())
def test_composition_is_associative(data):
    f = data.draw(layouts())
    g = data.draw(layouts(in_dims=f.out_dims, out_dims=data.draw(sized_dims(["p", "q"]))))
    h = data.draw(layouts(in_dims=g.out_dims, out_dims=data.draw(sized_dims(["r", "s"]))))
    assert f.compose(g).compose(h) == f.compose(g.compose(h))


@given(layouts(), layouts(), layouts())
def test_product_is_associative_with_a_neutral_element(a, b, c):
    assert (a * b) * c == a * (b * c)
    assert a * LinearLayout.empty() == a == LinearLayout.empty() * a


@given(layouts(), layouts())
def test_product_concatenates_bits(a, b):
    product = a * b
    for x, y in zip(points(a.in_dims), points(b.in_dims), strict=False):
        joined = {
            name: x.get(name, 0) + a.in_dims.get(name, 1) * y.get(name, 0)
            for name in product.in_dims
        }
        fa, fb = a.apply(x), b.apply(y)
        assert product.apply(joined) == {
            name: fa.get(name, 0) + a.out_dims.get(name, 1) * fb.get(name, 0)
            for name in product.out_dims
        }


@given(invertible_layouts())
def test_inverse(layout):
    assert layout.is_invertible()
    inverse = layout.invert()
    assert inverse.invert().transpose_ins(list(layout.in_dims)) == layout
    for point in points(layout.in_dims):
        assert inverse.apply(layout.apply(point)) == point


@given(surjective_layouts())
def test_pseudoinverse_is_a_right_inverse(layout):
    inverse = layout.pseudoinvert()
    for point in points(layout.out_dims):
        assert layout.apply(inverse.apply(point)) == point


@given(st.data())
def test_invert_and_compose(data):
    outer = data.draw(surjective_layouts())
    inner = data.draw(layouts(out_dims=outer.out_dims))
    answer = inner.invert_and_compose(outer)
    assert answer.out_dims == outer.in_dims
    for point in points(inner.in_dims):
        assert outer.apply(answer.apply(point)) == inner.apply(point)


def test_invert_and_compose_where_an_agreeing_dim_is_needed_elsewhere():
    # Both agree on "block", but offset 1 is only to be had with its help.
    outer = LinearLayout({"offset": [(1,)], "block": [(2,)]}, {"x": 4})
    inner = LinearLayout({"offset": [(2,)], "block": [(2,)]}, {"x": 4})
    answer = inner.invert_and_compose(outer)
    for point in points(inner.in_dims):
        assert outer.apply(answer.apply(point)) == inner.apply(point)


@given(layouts())
def test_rank_counts_images_and_kernel(layout):
    images = [tuple(layout.apply(point).values()) for point in points(layout.in_dims)]
    assert len(set(images)) == 1 << layout.rank
    assert layout.is_injective() == (len(set(images)) == len(images))
    assert layout.is_surjective() == (len(set(images)) == layout.total_out_size)


@given(layouts())
def test_free_variables_leave_the_image_as_it_is(layout):
    masks = layout.free_variable_masks()
    fixed = LinearLayout(
        {
            name: [b for bit, b in enumerate(bases) if not masks[name] >> bit & 1]
            for name, bases in layout.bases.items()
        },
        layout.out_dims,
    )
    assert fixed.is_injective()
    assert fixed.rank == layout.rank
    zero = {
        name: [bit for bit, b in enumerate(v) if not any(b)] for name, v in layout.bases.items()
    }
    assert all(masks[name] >> bit & 1 for name, bits in zero.items() for bit in bits)


@given(layouts())
def test_reshaping_and_transposing_keep_the_flat_map(layout):
    ins, outs = layout.flatten_ins(), layout.flatten_outs()
    assert ins.reshape_ins(layout.in_dims) == layout
    assert outs.reshape_outs(layout.out_dims) == layout
    backwards = list(reversed(layout.out_dims))
    assert layout.transpose_outs(backwards).transpose_outs(list(layout.out_dims)) == layout
    swapped = layout.transpose_ins(list(reversed(layout.in_dims))).transpose_outs(backwards)
    for point in points(layout.in_dims):
        assert swapped.apply(point) == layout.apply(point)
    for number, point in enumerate(
        dict(zip(layout.in_dims, reversed(values), strict=True))
        for values in itertools.product(*(range(s) for s in reversed(layout.in_dims.values())))
    ):
        flat = ins.apply(dict.fromkeys(ins.in_dims, number))
        assert flat == layout.apply(point)


@given(layouts())
def test_sublayout(layout):
    ins, outs = list(layout.in_dims)[:2], list(layout.out_dims)[-2:]
    part = layout.sublayout(ins, outs)
    for point in points(part.in_dims):
        whole = layout.apply(dict.fromkeys(layout.in_dims, 0) | point)
        assert part.apply(point) == {name: whole[name] for name in part.out_dims}
    assert layout.sublayout_is_zero(ins, outs) == all(
        not any(part.apply(point).values()) for point in points(part.in_dims)
    )


@given(layouts())
def test_remove_zero_bases(layout):
    name = next(iter(layout.in_dims))
    kept = layout.remove_zero_bases(name)
    assert kept.rank == layout.rank
    assert all(any(basis) for basis in kept.bases[name])


@given(layouts(), layouts())
def test_equality_hash_and_repr(a, b):
    again = eval(repr(a), {"LinearLayout": LinearLayout})
    assert again == a
    assert hash(again) == hash(a)
    assert (a == b) == (repr(a) == repr(b))
    assert a != "a layout"


def test_what_is_handed_out_does_not_change_the_layout():
    layout = LinearLayout.identity_1d(4, "offset", "dim0")
    layout.bases["offset"].append((9,))
    layout.out_dims["dim0"] = 1
    assert layout == LinearLayout.identity_1d(4, "offset", "dim0")


def test_makers():
    assert LinearLayout.identity_1d(8, "i", "o").apply(i=5) == {"o": 5}
    assert LinearLayout.strided_1d(8, 4, "i", "o").apply(i=5) == {"o": 20}
    assert LinearLayout.strided_1d(8, 4, "i", "o").out_dims == {"o": 32}
    zeros = LinearLayout.zeros_1d(8, "i", "o", 2)
    assert zeros.apply(i=5) == {"o": 0}
    assert zeros.out_dims == {"o": 2}
    assert zeros.free_variable_masks() == {"i": 7}
    inferred = LinearLayout({"i": [(1, 0), (0, 5)]}, ["x", "y"])
    assert inferred.out_dims == {"x": 2, "y": 8}


# --------------------------------------------------------------------------- errors


IDENTITY = LinearLayout.identity_1d(4, "i", "o")


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: LinearLayout({"i": [(1,)]}, {"o": 3}), "out_dims['o']"),
        (lambda: LinearLayout({"i": [(1, 2)]}, {"o": 4}), "bases['i']"),
        (lambda: LinearLayout({"i": [(4,)]}, {"o": 4}), "bases['i']"),
        (lambda: LinearLayout({"i": [(-1,)]}, {"o": 4}), "bases['i']"),
        (lambda: LinearLayout({"i": [("x",)]}, {"o": 4}), "bases"),
        (lambda: LinearLayout("i", {"o": 4}), "bases"),
        (lambda: LinearLayout({"i": []}, ["o", "o"]), "out_dims"),
        (lambda: LinearLayout.from_bases({"i": [(2,)]}, ["o"], [4]), "bases"),
        (lambda: LinearLayout.from_bases({"i": [(2,)]}, ["o"], [4, 2]), "out_dim_sizes"),
        (lambda: LinearLayout.identity_1d(0, "i", "o"), "size"),
        (lambda: LinearLayout.strided_1d(4, 3, "i", "o"), "stride"),
        (lambda: LinearLayout.zeros_1d(4, "i", "o", 6), "out_dim_size"),
        (lambda: IDENTITY.apply(i=4), "i"),
        (lambda: IDENTITY.apply(i=-1), "i"),
        (lambda: IDENTITY.apply(i=1.0), "i"),
        (lambda: IDENTITY.apply(i=np.array([0, 4])), "i"),
        (lambda: IDENTITY.apply(i=np.array([0.5])), "i"),
        (lambda: IDENTITY.apply(j=0), "ins"),
        (lambda: IDENTITY.apply(), "ins"),
        (lambda: IDENTITY.compose(IDENTITY), "outer"),
        (lambda: IDENTITY.compose(LinearLayout.identity_1d(2, "o", "p")), "outer"),
        (lambda: IDENTITY.invert_and_compose(LinearLayout.identity_1d(4, "i", "p")), "outer"),
        (lambda: IDENTITY.invert_and_compose(LinearLayout.identity_1d(2, "i", "o")), "outer"),
        (lambda: IDENTITY.invert_and_compose(LinearLayout.zeros_1d(4, "i", "o", 4)), "outer"),
        (lambda: LinearLayout.zeros_1d(4, "i", "o", 4).invert(), "self"),
        (lambda: IDENTITY.transpose_ins(["j"]), "names"),
        (lambda: IDENTITY.transpose_outs(["o", "o"]), "names"),
        (lambda: IDENTITY.reshape_ins({"a": 2, "b": 4}), "dims"),
        (lambda: IDENTITY.reshape_outs({"a": 3}), "dims['a']"),
        (lambda: IDENTITY.sublayout(["j"], ["o"]), "in_dims"),
        (lambda: IDENTITY.sublayout(["i"], ["p"]), "out_dims"),
        (lambda: IDENTITY.remove_zero_bases("j"), "in_dim"),
    ],
)
def test_errors_name_the_argument(call, argument):
    with pytest.raises(LayoutError) as caught:
        call()
    assert caught.value.argument == argument
    assert str(caught.value).startswith(f"{argument} = ")


def test_product_of_contradicting_orders():
    ab = LinearLayout.identity_1d(2, "a", "x") * LinearLayout.identity_1d(2, "b", "y")
    with pytest.raises(LayoutError, match="contradicting orders"):
        ab * ab.transpose_ins(["b", "a"])


# ----------------------------------------------------------------- Triton's own class


@given(a=layouts(), b=layouts())
def test_triton_agrees_on_products_and_properties(triton_layouts, a, b):
    ta, tb = to_triton(triton_layouts, a), to_triton(triton_layouts, b)
    assert from_triton(ta) == a
    assert from_triton(ta * tb) == a * b
    assert (ta == tb) == (a == b)
    assert ta.is_surjective() == a.is_surjective()
    assert ta.is_injective() == a.is_injective()
    assert ta.is_invertible() == a.is_invertible()
    for point in itertools.islice(points(a.in_dims), 16):
        assert dict(ta.apply(point)) == a.apply(point)


@given(names=st.lists(st.permutations(IN_NAMES), min_size=2, max_size=2))
def test_triton_agrees_on_the_order_of_dims_in_a_product(triton_layouts, names):
    first, second = (list(order)[:2] for order in names)
    shared = [name for name in first if name in second]
    assume(shared == [name for name in second if name in first])  # else Triton dies

    def make(order):
        layout = LinearLayout.empty()
        for name in order:
            layout = layout * LinearLayout.identity_1d(2, name, name.upper())
        return layout

    a, b = make(first), make(second)
    theirs = from_triton(to_triton(triton_layouts, a) * to_triton(triton_layouts, b))
    assert theirs == a * b


@given(data=st.data())
def test_triton_agrees_on_composition(triton_layouts, data):
    first = data.draw(layouts())
    second = data.draw(layouts(in_dims=first.out_dims, out_dims=data.draw(sized_dims(["p", "q"]))))
    theirs = to_triton(triton_layouts, first).compose(to_triton(triton_layouts, second))
    assert from_triton(theirs) == first.compose(second)


@given(layout=invertible_layouts())
def test_triton_agrees_on_inverses(triton_layouts, layout):
    assert from_triton(to_triton(triton_layouts, layout).invert()) == layout.invert()


@given(layout=surjective_layouts())
def test_triton_agrees_on_pseudoinverses(triton_layouts, layout):
    assert from_triton(to_triton(triton_layouts, layout).pseudoinvert()) == layout.pseudoinvert()


@given(data=st.data())
def test_triton_agrees_on_invert_and_compose(triton_layouts, triton_version, data):
    outer = data.draw(surjective_layouts())
    inner = data.draw(layouts(out_dims=outer.out_dims))
    if data.draw(st.booleans()):  # give them a dimension on which they agree
        shared = data.draw(layouts(in_dims={"warp": 4}, out_dims=outer.out_dims))
        bases = {"warp": shared.bases["warp"]}
        outer = LinearLayout(outer.bases | bases, outer.out_dims)
        inner = LinearLayout(inner.bases | bases, inner.out_dims)
    if triton_version < (3, 9):
        # Earlier releases map every agreeing dimension to itself, and die where that cannot be.
        assume(not any(inner.bases.get(n) == outer.bases[n] for n in outer.bases))
    theirs = to_triton(triton_layouts, inner).invert_and_compose(to_triton(triton_layouts, outer))
    assert from_triton(theirs) == inner.invert_and_compose(outer)


@given(layout=layouts())
def test_triton_prints_the_same_text(triton_layouts, layout):
    theirs = str(to_triton(triton_layouts, layout)).removeprefix("\n")
    assert str(layout) == "\n".join(line.removeprefix(" ") for line in theirs.splitlines())


def test_triton_makers(triton_layouts):
    for size, stride in itertools.product((1, 2, 8), (1, 4)):
        theirs = triton_layouts.strided_1d(size, stride, "i", "o")
        assert from_triton(theirs) == LinearLayout.strided_1d(size, stride, "i", "o")
        theirs = triton_layouts.zeros_1d(size, "i", "o", stride)
        assert from_triton(theirs) == LinearLayout.zeros_1d(size, "i", "o", stride)
    theirs = triton_layouts.identity_1d(16, "i", "o")
    assert from_triton(theirs) == LinearLayout.identity_1d(16, "i", "o")


def test_text_of_the_issue():
    assert OUT_NAMES[:2] == ["dim0", "dim1"]
    layout = LinearLayout({"offset": [(0, 1), (0, 2)], "block": []}, ["dim0", "dim1"])
    assert str(layout) == (
        "- offset=1 -> (0, 1)\n"
        "  offset=2 -> (0, 2)\n"
        "- block is a size 1 dimension\n"
        "where out dims are: [dim0 (size 1), dim1 (size 4)]"
    )
    assert str(LinearLayout.empty()) == "(empty layout)"
    assert str(LinearLayout({}, {"o": 2})) == "(empty layout with out-dims [o (size 2)])"
