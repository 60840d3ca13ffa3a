"""CuTe's layout algebra and the derivation of matrix descriptors.

Held against the laws of the algebra, a model of how the tensor core reads an operand, the seeds'
numbers, the NVMMAShared conversion, and NVIDIA's CuTe DSL.
"""

from __future__ import annotations

import itertools
import math
import random
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from triton_ext import LayoutError, LinearLayout, NVMMAShared, nvmma_shared_to_linear_layout
from triton_ext.hardware.operand import derive_operand
from triton_ext.layouts import cute as C
from triton_ext.layouts.atoms import SwizzleAtom
from triton_ext.layouts.cute import Layout, canonical_layout, derive_steps
from triton_ext.layouts.encodings import SWIZZLE_BYTE_WIDTHS
from triton_ext.layouts.gf2 import powers_below
from triton_ext.layouts.nvmma_shared import tma_box_shape

parse = Layout.parse


def values(layout):
    return [layout(i) for i in range(C.size(layout))]


def is_injective(layout):
    return len(set(values(layout))) == C.size(layout)


# --------------------------------------------------------------------------- laws of the algebra

sizes = st.sampled_from([1, 2, 2, 3, 4, 4, 6, 8])
steps = st.sampled_from([0, 1, 1, 2, 3, 4, 6, 8, 16])


@st.composite
def layouts(draw, min_rank=0, max_size=512):
    """Any layout up to depth 3, with overlaps and gaps, or a compact one."""
    budget = max_size

    def shape(depth, least):
        nonlocal budget
        if least == 0 and (depth == 0 or draw(st.booleans())):
            size = min(draw(sizes), budget)
            budget //= size
            return size
        return tuple(shape(depth - 1, 0) for _ in range(draw(st.integers(max(1, least), 3))))

    def strides(part):
        return draw(steps) if isinstance(part, int) else tuple(map(strides, part))

    compact = Layout.compact(shape(3, min_rank))
    return compact if draw(st.booleans()) else Layout(compact.shape, strides(compact.shape))


@st.composite
def compact_layouts(draw, max_rank=3):
    """A bijection onto 0, 1, ..., in any order of modes."""
    shape = draw(st.lists(sizes, min_size=1, max_size=max_rank))
    return C.ordered_layout(shape, draw(st.permutations(range(len(shape)))))


@given(layouts())
def test_size_cosize_rank(layout):
    indices = values(layout)
    assert C.size(layout) == len(indices) == math.prod(C.size(mode) for mode in layout.modes)
    assert C.cosize(layout) == max(indices) + 1
    assert C.rank(layout) == len(layout.modes)


@given(layouts())
def test_integer_coordinates_are_colexicographic(layout):
    """An integer, one integer a mode, and the deepest coordinate are the same place."""

    def deep(index, shape):
        if isinstance(shape, int):
            return index
        place = []
        for part in shape:
            extent = C.size(Layout.compact(part))
            place.append(deep(index % extent, part))
            index //= extent
        return tuple(place)

    modes = layout.modes
    places = itertools.product(*(range(C.size(mode)) for mode in reversed(modes)))
    for index, place in enumerate(places):
        by_mode = place[::-1]
        assert layout(index) == sum(mode(c) for mode, c in zip(modes, by_mode, strict=True))
        assert layout(index) == layout(deep(index, layout.shape))
        if C.rank(layout) > 1:
            assert layout(index) == layout(*by_mode) == layout(by_mode)


@given(layouts())
def test_print_and_parse(layout):
    text = str(layout)
    assert parse(text) == layout
    assert parse(re.sub(r"(\d+)", r" _\1 ", text)) == layout
    assert parse(text.split(":")[0]) == Layout.compact(layout.shape)


@given(layouts())
def test_compact_flatten_coalesce(layout):
    assert values(Layout.compact(layout.shape)) == list(range(C.size(layout)))
    flat, short = C.flatten(layout), C.coalesce(layout)
    assert values(flat) == values(short) == values(layout)
    assert all(isinstance(mode.shape, int) for mode in (*flat.modes, *short.modes))
    assert C.rank(short) <= C.rank(flat)
    assert C.coalesce(short) == short
    assert C.size(layout) == 1 or all(C.size(mode) > 1 for mode in short.modes)


@given(layouts(), layouts(max_size=64))
def test_composition(left, right):
    try:
        result = C.composition(left, right)
    except LayoutError:
        return
    assert values(result) == [left(right(i)) for i in range(C.size(right))]
    if not isinstance(right.shape, int):
        assert [C.size(mode) for mode in result.modes] == [C.size(mode) for mode in right.modes]


@given(layouts(), st.data())
def test_composition_with_what_always_divides(left, data):
    """With itself, its modes, and every leading part that divides it."""
    assert values(C.composition(left, C.size(left))) == values(left)
    flat = C.coalesce(left)
    extents = [mode.shape for mode in flat.modes]
    keep = data.draw(st.integers(0, len(extents) - 1))
    prefix = math.prod(extents[:keep])
    part = data.draw(st.sampled_from([d for d in range(1, 9) if extents[keep] % d == 0]))
    assert values(C.composition(left, prefix * part)) == values(left)[: prefix * part]
    strided = Layout(extents[keep] // part, prefix * part)
    assert values(C.composition(left, strided)) == [left(strided(i)) for i in range(strided.shape)]


@given(layouts(min_rank=2), st.data())
def test_by_mode_tilers(layout, data):
    divisors = [
        data.draw(st.sampled_from([d for d in (1, 2, 3, 4, 8) if C.size(mode) % d == 0]))
        for mode in layout.modes
    ]
    tiler = tuple(divisors)
    try:
        divided, zipped = C.logical_divide(layout, tiler), C.zipped_divide(layout, tiler)
        tile = C.composition(layout, tiler)
    except LayoutError:
        return
    assert [C.size(mode) for mode in tile.modes] == divisors
    assert values(tile) == values(zipped.modes[0])
    assert sorted(values(divided)) == sorted(values(zipped)) == sorted(values(layout))
    for place in itertools.product(*(range(C.size(mode)) for mode in layout.modes)):
        inner = tuple(c % d for c, d in zip(place, divisors, strict=True))
        outer = tuple(c // d for c, d in zip(place, divisors, strict=True))
        assert zipped(inner, outer) == layout(place)
        assert divided(tuple(zip(inner, outer, strict=True))) == layout(place)


def test_tilers_shorter_than_the_layout():
    """Modes beyond the tiler stay, after the rests."""
    layout = parse("(8,4,6):(1,8,32)")
    assert str(C.logical_divide(layout, (2,))) == "((2,4),4,6):((1,2),8,32)"
    assert str(C.zipped_divide(layout, (2,))) == "((2),(4,4,6)):((1),(2,8,32))"
    assert str(C.zipped_divide(layout, 2)) == "(2,96):(1,2)"


@given(layouts(max_size=64), st.integers(1, 300))
def test_complement(layout, cotarget):
    try:
        rest = C.complement(layout, cotarget)
    except LayoutError:
        return
    indices = values(rest)
    assert indices == sorted(set(indices))
    assert not set(indices[1:]) & set(values(layout))
    filtered = Layout(
        tuple(1 if d == 0 else s for s, d in C.flat_modes(layout)), tuple(C.leaves(layout.stride))
    )
    both = C.concatenate(filtered, rest)
    assert is_injective(both)
    assert C.cosize(both) >= cotarget


@given(compact_layouts(), st.integers(1, 5))
def test_complement_of_a_compact_layout(layout, copies):
    """Nothing but its copies, one after the other."""
    rest = C.complement(layout, C.size(layout) * copies)
    assert values(rest) == [C.size(layout) * i for i in range(copies)]


@given(layouts(), layouts(max_size=32))
def test_logical_divide(layout, tiler):
    try:
        divided = C.logical_divide(layout, tiler)
    except LayoutError:
        return
    rest = C.complement(tiler, C.size(layout))
    assert [C.size(mode) for mode in divided.modes] == [C.size(tiler), C.size(rest)]
    for i, j in itertools.product(range(C.size(tiler)), range(C.size(rest))):
        assert divided(i, j) == layout(tiler(i) + rest(j))


@given(layouts(max_size=64), layouts(max_size=16))
def test_logical_product(block, tiler):
    try:
        product = C.logical_product(block, tiler)
    except LayoutError:
        return
    copies = C.complement(block, C.size(block) * C.cosize(tiler))
    for i, j in itertools.product(range(C.size(block)), range(C.size(tiler))):
        assert product(i, j) == block(i) + copies(tiler(j))


@given(layouts(min_rank=2, max_size=64), layouts(max_size=8))
def test_blocked_product(block, tiler):
    try:
        product = C.logical_product(block, tiler)
        blocked = C.blocked_product(block, tiler)
    except LayoutError:
        return
    pairs = list(itertools.zip_longest(block.modes, tiler.modes, fillvalue=Layout(1, 0)))
    assert [C.size(mode) for mode in blocked.modes] == [C.size(b) * C.size(t) for b, t in pairs]
    assert sorted(values(blocked)) == sorted(values(product))
    for place in itertools.product(*(range(C.size(mode)) for mode in block.modes)):
        assert blocked(place + (0,) * (len(pairs) - len(place))) == block(place)


@given(st.data())
def test_tile_to_shape(data):
    atom = data.draw(compact_layouts())
    copies = [data.draw(st.integers(1, 4)) for _ in atom.modes]
    order = data.draw(st.permutations(range(len(copies))))
    shape = [size * n for size, n in zip(atom.shape, copies, strict=True)]
    tile = C.tile_to_shape(atom, shape, order)
    assert [C.size(mode) for mode in tile.modes] == shape
    assert sorted(values(tile)) == list(range(math.prod(shape)))
    stacked = C.ordered_layout(copies, order)
    for place in itertools.product(*map(range, shape)):
        inside = tuple(c % s for c, s in zip(place, atom.shape, strict=True))
        which = tuple(c // s for c, s in zip(place, atom.shape, strict=True))
        assert tile(place) == atom(inside) + C.size(atom) * stacked(which)
    assert C.tile_to_shape(atom, shape) == C.tile_to_shape(atom, shape, range(len(shape)))


def test_tile_to_shape_adds_modes():
    """A stage count beyond the atom's rank, as pipelined kernels use."""
    tile = C.tile_to_shape(parse("(8,8):(8,1)"), (16, 8, 3))
    assert str(tile) == "((8,2),(8,1),(1,3)):((8,64),(1,0),(0,128))"


@given(layouts(), st.sampled_from([8, 16, 32, 64, 128]))
def test_recast(layout, bits):
    """The wide elements that are touched are those of the result."""
    ratio = 128 // bits
    strides = [d for s, d in C.flat_modes(layout)]
    if any(d % ratio and ratio % d for d in strides if d):
        with pytest.raises(LayoutError, match=r"must divide .* or be multiples of it"):
            C.recast(layout, bits, 128)
        return
    wide = C.recast(layout, bits, 128)
    assert C.rank(wide) == C.rank(layout)
    if is_injective(layout):
        assert set(values(wide)) == {index // ratio for index in values(layout)}
    if bits == 128:
        assert wide == layout


@given(layouts(), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]))
def test_recast_in_two_steps(layout, first, second):
    try:
        once = C.recast(layout, 8, 8 * first * second)
        twice = C.recast(C.recast(layout, 8, 8 * first), 8 * first, 8 * first * second)
    except LayoutError:
        return
    assert once == twice


def test_examples_of_the_cute_documentation():
    """CUTLASS, media/docs/cpp/cute/02_layout_algebra.md: composition, complement, division."""
    for left, right, result in (
        ("(6,2):(8,2)", "(4,3):(3,1)", "((2,2),3):((24,2),8)"),
        ("20:2", "(5,4):(4,1)", "(5,4):(8,2)"),
        ("(10,2):(16,4)", "(5,4):(1,5)", "(5,(2,2)):(16,(80,4))"),
    ):
        assert str(C.composition(parse(left), parse(right))) == result
    by_mode = C.composition(parse("(12,(4,8)):(59,(13,1))"), (parse("3:4"), parse("8:2")))
    assert str(by_mode) == "(3,(2,4)):(236,(26,1))"
    assert str(C.composition(parse("(12,(4,8)):(59,(13,1))"), (3, 8))) == "(3,(4,2)):(59,(13,1))"
    for layout, rest in (
        ("4:1", "6:4"),
        ("6:4", "4:1"),
        ("(4,6):(1,4)", "1:0"),
        ("4:2", "(2,3):(1,8)"),
        ("(2,4):(1,6)", "3:2"),
        ("(2,2):(1,6)", "(3,2):(2,12)"),
    ):
        assert str(C.complement(parse(layout), 24)) == rest
    divided = C.logical_divide(parse("(4,2,3):(2,1,8)"), parse("4:2"))
    assert str(divided) == "((2,2),(2,3)):((4,1),(2,8))"
    assert str(C.coalesce(parse("(2,(1,6)):(1,(6,2))"))) == "12:1"


def test_modes_of_stride_zero():
    """They merge with each other, and take no place in a complement."""
    assert str(C.coalesce(parse("(2,(3,4)):(0,(0,1))"))) == "(6,4):(0,1)"
    assert str(C.complement(parse("(4,2):(0,3)"), 12)) == "(3,2):(1,6)"
    assert str(C.complement(parse("4:0"), 6)) == "6:1"
    assert str(C.composition(parse("(4,2):(1,8)"), parse("(3,2):(0,4)"))) == "(3,2):(0,8)"


# --------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Layout((4, 0), (1, 4)), "shape = 0: must be integers >= 1"),
        (lambda: Layout(4, -1), "stride = -1: must be integers >= 0"),
        (lambda: Layout(True, 1), "shape = True"),
        (lambda: Layout(4.0, 1), "shape = 4.0"),
        (lambda: Layout((), ()), r"shape = \(\): tuples must have an entry"),
        (lambda: Layout((4, 2), 1), "stride = 1: must have the structure of the shape"),
        (lambda: Layout((4, 2), ((1,), 4)), "must have the structure of the shape"),
        (lambda: parse("(4,2):(1,4"), "layout = .*: must read shape:stride"),
        (lambda: parse("(4,2):(1,4))"), "must read shape:stride"),
        (lambda: parse("4:1:1"), "must read shape:stride"),
        (lambda: parse("4;1"), "must read shape:stride"),
        (lambda: parse(""), "must read shape:stride"),
        (lambda: parse(None), "must read shape:stride"),
        (lambda: parse("9" * 5000), "must read shape:stride"),
        (lambda: parse("(" * 5000), "must read shape:stride"),
        (lambda: parse("4:(1)"), "must have the structure"),
        (lambda: parse("(4,2):(1,4)")(1, 2, 3), "coordinate = .*: must have the 2 modes"),
        (lambda: parse("(4,2):(1,4)")((1, 2), 1), "coordinate = .*: must be an integer for mode 4"),
        (lambda: parse("(4,2):(1,4)")(-1), "coordinate = -1"),
        (lambda: C.composition(parse("(6,2):(1,10)"), parse("3:4")), "must divide the left layout"),
        (lambda: C.composition(parse("(6,2):(1,10)"), parse("4:4")), "must divide the left layout"),
        (lambda: C.composition(parse("(6,2):(1,10)"), parse("2:9")), "9 is none of 6"),
        (
            lambda: C.composition(parse("(4,2):(1,100)"), parse("(2,2):(3,1)")),
            "must not carry .* they add up to 4, and the extent is 4",
        ),
        (lambda: C.composition(parse("(4,2):(1,4)"), (2,)), "right = .*: must have the 2 modes"),
        (lambda: C.composition(parse("(4,2):(1,4)"), "2"), "must be a Layout, an integer"),
        (lambda: C.complement(parse("(4,2):(1,2)"), 8), "must neither overlap nor interleave"),
        (lambda: C.complement(parse("4:1"), 0), "cotarget = 0"),
        (lambda: C.logical_divide(parse("8:1"), (2, 2)), "must have at most the 1 modes of 8:1"),
        (lambda: C.zipped_divide(parse("(8,4):(1,8)"), ()), "tiler = "),
        (lambda: C.ordered_layout((4, 2), (0, 2)), r"order = \(0, 2\): must be a permutation"),
        (lambda: C.ordered_layout((4, 2), 1), "order = 1: must be a sequence of integers"),
        (lambda: C.tile_to_shape(parse("(8,8):(8,1)"), (12, 8)), r"multiples of .* \(8, 8\)"),
        (lambda: C.tile_to_shape(parse("(8,8):(8,1)"), (8,)), r"multiples of .* \(8, 8\)"),
        (lambda: C.tile_to_shape(parse("(8,8):(8,1)"), "ab"), "shape = 'ab'"),
        (lambda: C.recast(parse("8:1"), 16, 24), "new_bits = 24: must be a multiple of old_bits"),
        (lambda: C.recast(parse("8:1"), 0, 8), "new_bits = 8"),
        (lambda: C.recast(parse("8:3"), 16, 128), "must divide 8 or be multiples of it"),
    ],
)  # fmt: skip
def test_algebra_errors(call, message):
    with pytest.raises(LayoutError, match=message):
        call()


SW128, SW32 = SwizzleAtom("K", 128, 16), SwizzleAtom("K", 32, 16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, (128, 128), (64, 16)), "atom = None: must be a SwizzleAtom"),
        ((SwizzleAtom("K", 128, 64), (128, 16), (64, 4)), "must have 8, 16 or 32 bits"),
        ((SW128, (128, 96), (64, 16)), r"tile = \(128, 96\): .* atom's shape \(8, 64\)"),
        ((SW128, (128,), (64, 16)), r"tile = \(128,\): must have 2 values, \(M or N, K\)"),
        ((SW128, 128, (64, 16)), "tile = 128: must be a sequence of integers"),
        ((SW128, (128, 64), (0, 16)), "instruction = .*: must be two integers"),
        ((SW128, (128, 64), (48, 16)), "instruction = .*: must divide the tile"),
        ((SW128, (128, 64), (4, 16)), r"whole chunks .* multiples of \(8, 8\)"),
        ((SW128, (128, 64), (64, 4)), r"whole chunks .* multiples of \(8, 8\)"),
        ((SW32, (128, 64), (64, 32)), "must divide the 16 elements in a row of the atom"),
        ((SW128, (128, 192), (64, 24)), "must divide the 64 elements in a row of the atom"),
        ((SwizzleAtom("MN", 64, 16), (128, 64), (16, 16)), r"whole atoms: multiples of \(32, 8\)"),
        ((SwizzleAtom("MN", 64, 16), (128, 64), (64, 4)), r"whole atoms: multiples of \(32, 8\)"),
        ((SW128, (128, 64), (64, 16), (1, 1)), "order = .*: must be a permutation"),
        ((SW128, (128, 64), (64, 16), "MN"), "order = 'MN'"),
    ],
)
def test_derivation_errors(arguments, message):
    with pytest.raises(LayoutError, match=message):
        derive_steps(*arguments)


@pytest.mark.parametrize(
    ("operand", "atom", "message"),
    [
        ("16:1", SW128, "must have two modes"),
        ("(12,2):(8,1)", SW128, "its M or N must be a multiple of 8 uint128"),
        ("(64,2):(16,1)", SW128, r"lie as \(8,1\):\(8,0\), in uint128.*lie as \(8,1\):\(16,0\)"),
        ("((4,2,2),2):((8,64,128),1)", SW128, "they lie as"),
        ("((8,2,2),2):((8,64,4096),1)", SW128, "one stride between its parts along M or N"),
        ("(64,2):(8,64)", SW128, "side by side in one row"),
        ("(64,(2,2)):(2,(1,128))", SW32, r"one stride .* along K; they lie as \(2,2\):\(1,128\)"),
        ("(8,16):(4,1)", SwizzleAtom("MN", 128, 16), "they lie as"),
        ("(8,12):(1,8)", SwizzleAtom("MN", 128, 16), "its K must be a multiple of 8"),
        ("(8,(8,2,2)):(1,(8,64,512))", SwizzleAtom("MN", 128, 16), "one stride .* along K"),
    ],
)
def test_no_canonical_layout(operand, atom, message):
    """``make_umma_desc``'s profile and stride checks, with a rule that says which."""
    with pytest.raises(LayoutError, match=message):
        canonical_layout(parse(operand), atom)


@given(st.text(alphabet="0123456789(),:_ x", max_size=30))
def test_any_text_parses_or_is_a_layout_error(text):
    try:
        layout = parse(text)
    except LayoutError:
        return
    assert parse(str(layout)) == layout


@given(
    st.sampled_from(["K", "MN"]),
    st.sampled_from(SWIZZLE_BYTE_WIDTHS),
    st.sampled_from([8, 16, 32, 64]),
    st.tuples(st.integers(-1, 300), st.integers(-1, 300)),
    st.tuples(st.integers(-1, 300), st.integers(-1, 300)),
    st.sampled_from([None, (0, 1), (1, 0), (1, 1), 7, (0,)]),
)
def test_any_derivation_works_or_is_a_layout_error(major, width, bits, tile, instruction, order):
    arguments = set()
    try:
        derive_steps(SwizzleAtom(major, width, bits), tile, instruction, order)
    except LayoutError as error:
        arguments.add(error.argument)
    assert arguments <= {"atom", "tile", "instruction", "order"}


# ------------------------------------------------- the derivation, against what the hardware does


def stacked_address(atom, tile, order, mn, k):
    """The byte address of an element of a tile, from the atom's own and where the atom lies."""
    rows, columns = (extent // part for extent, part in zip(tile, atom.shape, strict=True))
    row, column = mn // atom.shape[0], k // atom.shape[1]
    number = row + rows * column if order == (0, 1) else column + columns * row
    atom_bytes = 8 * atom.row_bytes
    return number * atom_bytes + atom.address(mn % atom.shape[0], k % atom.shape[1])


def hardware_address(atom, derivation, start, mn, k):
    """Where the tensor core looks for an element of an operand, given its descriptor.

    PTX ISA, "Strides" and "Canonical layouts": steps of LBO and SBO over chunks or atoms; the
    swizzle is one of address bits.
    """
    leading, strided = derivation.leading_byte_offset, derivation.stride_byte_offset
    element = atom.element_bitwidth // 8
    if atom.major == "K":
        row, inside = k * element // 16, k * element % 16
        linear = mn % 8 * atom.row_bytes + mn // 8 * strided + row * leading + inside
    else:
        part, inside = divmod(mn * element, atom.row_bytes)
        along_mn, along_k = (leading, strided) if atom.swizzle_byte_width else (strided, leading)
        linear = inside + part * along_mn + k % 8 * atom.row_bytes + k // 8 * along_k
    return atom.swizzle(start + linear)


@st.composite
def derivations(draw, powers_of_two=False):
    """A legal (atom, tile, instruction, order)."""
    major = draw(st.sampled_from(["K", "MN"]))
    atom = SwizzleAtom(
        major, draw(st.sampled_from(SWIZZLE_BYTE_WIDTHS)), draw(st.sampled_from([8, 16, 32]))
    )
    counts = [1, 2, 4] if powers_of_two else [1, 2, 3, 4, 6]
    unit = list(atom.shape)
    if major == "K":
        chunk = 128 // atom.element_bitwidth
        unit[1] = chunk * draw(st.sampled_from([n for n in (1, 2, 4, 8) if n * chunk <= unit[1]]))
    inner = [draw(st.sampled_from(counts)) for _ in unit]
    if major == "K" and atom.swizzle_byte_width:
        inner[1] = 1
    instruction = tuple(u * n for u, n in zip(unit, inner, strict=True))
    tile = tuple(
        math.lcm(extent * draw(st.sampled_from([1, 2, 3] if not powers_of_two else [1, 2])), part)
        for extent, part in zip(instruction, atom.shape, strict=True)
    )
    return atom, tile, instruction, draw(st.sampled_from([(0, 1), (1, 0)]))


@given(derivations(), st.randoms(use_true_random=False))
def test_the_hardware_finds_every_element(case, rng):
    """LBO, SBO, advance and swizzle lead to where the tile's atoms have the element."""
    atom, tile, instruction, order = case
    derivation = derive_steps(*case)
    starts = derivation.subtile_byte_offsets()
    assert len(starts) == tile[0] // instruction[0]
    assert len(starts[0]) == tile[1] // instruction[1]
    corners = itertools.product((0, tile[0] - 1), (0, tile[1] - 1))
    places = [(rng.randrange(tile[0]), rng.randrange(tile[1])) for _ in range(60)]
    for mn, k in [*corners, *places]:
        start = starts[mn // instruction[0]][k // instruction[1]]
        inside = mn % instruction[0], k % instruction[1]
        assert hardware_address(atom, derivation, start, *inside) == stacked_address(
            atom, tile, order, mn, k
        )


@given(derivations(), st.randoms(use_true_random=False))
def test_every_step_is_the_same_tile(case, rng):
    """Each step's layout gives the same address before swizzling; order and defaults agree."""
    atom, tile, instruction, order = case
    derivation = derive_steps(*case)
    stacked, operands, wide, canonical, advance = (step.layout for step in derivation.steps)
    element = atom.element_bitwidth // 8
    assert advance == derivation.advance == wide.modes[1]
    for _ in range(40):
        mn, k = rng.randrange(tile[0]), rng.randrange(tile[1])
        linear = atom.swizzle(stacked_address(atom, tile, order, mn, k))
        assert stacked(mn, k) * element == linear
        inside = mn % instruction[0], k % instruction[1]
        which = mn // instruction[0], k // instruction[1]
        assert operands(inside, which) * element == linear
        scale = 16 // element
        chunk = (
            (inside[0], inside[1] // scale)
            if atom.major == "K"
            else (inside[0] // scale, inside[1])
        )
        assert wide(chunk, which) == canonical(chunk) + advance(which) == linear // 16
    default = (0, 1) if atom.major == "K" else (1, 0)
    assert derive_steps(atom, tile, instruction) == derive_steps(atom, tile, instruction, default)


@given(derivations(powers_of_two=True))
def test_subtiles_start_where_triton_puts_them(case):
    """The NVMMAShared conversion, an independent road to where an operand starts."""
    atom, tile, instruction, _ = case
    assume(atom.swizzle_byte_width and max(tile) <= 256)
    encoding = NVMMAShared(
        atom.swizzle_byte_width, atom.element_bitwidth, transposed=atom.major == "MN"
    )
    inverse = nvmma_shared_to_linear_layout(tile, encoding).invert()
    element = atom.element_bitwidth // 8
    for row, offsets in enumerate(derive_steps(atom, tile, instruction).subtile_byte_offsets()):
        for column, offset in enumerate(offsets):
            place = {"dim0": row * instruction[0], "dim1": column * instruction[1]}
            assert inverse.apply(**place)["offset"] * element == offset


def stacked_linear_layout(atom, tile, order):
    """The same tile as a linear layout: ``offset`` -> (``dim0``: M or N, ``dim1``: K)."""
    element = atom.element_bitwidth // 8
    offsets = {
        "dim0": [
            (stacked_address(atom, tile, order, mn, 0) // element,) for mn in powers_below(tile[0])
        ],
        "dim1": [
            (stacked_address(atom, tile, order, 0, k) // element,) for k in powers_below(tile[1])
        ],
    }
    return LinearLayout(offsets, {"offset": tile[0] * tile[1]}).invert()


@given(derivations(powers_of_two=True))
def test_both_roads_give_the_same_descriptor(case):
    """`derive_operand` reads the strides off the bases of a linear layout, with no CuTe algebra."""
    atom, tile, instruction, order = case
    assume(atom.major == "K" or atom.element_bitwidth < 32)  # tf32 is K-major
    derivation = derive_steps(*case)
    layout = stacked_linear_layout(atom, tile, order)
    operand = derive_operand(layout, atom.element_bitwidth, instruction, arch=100)
    read = operand.descriptor
    assert (operand.major, read.swizzle_byte_width) == (atom.major, atom.swizzle_byte_width)
    assert [list(row) for row in operand.advances] == derivation.subtile_byte_offsets()
    if operand.uses_leading:
        assert read.leading_byte_offset == derivation.leading_byte_offset
    if operand.uses_stride:
        assert read.stride_byte_offset == derivation.stride_byte_offset


# --------------------------------------------------------------------------- seed 002

K_MAJOR = derive_steps(SwizzleAtom("K", 128, 16), (128, 128), (64, 16))
MN_MAJOR = derive_steps(SwizzleAtom("MN", 64, 16), (128, 128), (64, 16))


def test_seed_002_2_four_nested_levels():
    """Seed 002, Sec. 2: tile 128 x 256 B, atom 8 x 128 B, subtile 64 x 32 B, chunk 8 x 16 B."""
    stacked, operands, _, canonical, _ = (step.layout for step in K_MAJOR.steps)
    assert C.size(stacked) * 2 == 128 * 256 == 32 * 1024
    assert K_MAJOR.atom.shape == (8, 64)
    assert K_MAJOR.atom.row_bytes == 128
    assert [C.size(mode.modes[1]) for mode in stacked.modes] == [16, 2]  # a 16 x 2 grid of atoms
    operand, subtiles = operands.modes
    assert [C.size(mode) for mode in operand.modes] == [64, 16]
    assert [C.size(mode) for mode in subtiles.modes] == [2, 8]
    assert C.size(subtiles) == 16
    chunk, chunks = C.zipped_divide(K_MAJOR.steps[2].layout.modes[0], (8, 1)).modes
    assert C.size(chunk) * 16 == 8 * 16  # bytes
    assert C.size(chunks) == 8 * 2 == 16 == C.size(canonical) // 8
    assert 8 * K_MAJOR.atom.row_bytes // C.size(chunk) // 16 == 8  # chunks in one atom


def test_seed_002_3_1_and_3_2_k_major_tile():
    """Seed 002, Sec. 3.1 and 3.2: 32 atoms, along M first; 2 TMA boxes of 128 x 64."""
    stacked = K_MAJOR.steps[0].layout
    atoms = C.concatenate(*(mode.modes[1] for mode in stacked.modes))
    assert C.size(atoms) == 32
    assert atoms == Layout((16, 2), (512, 8192))  # elements
    assert C.ordered_layout((16, 2), (0, 1)) == parse("(16,2):(1,16)")
    for m, k in itertools.product(range(16), range(2)):
        assert 2 * atoms(m, k) == m * 1024 + k * 16384
        assert atoms(m, k) == 512 * C.ordered_layout((16, 2), (0, 1))(m, k)
    box = tma_box_shape((128, 128), NVMMAShared(128, 16))
    assert box == (128, 64)
    assert 128 * 128 // math.prod(box) == 2
    shape = K_MAJOR.steps[1].layout.shape
    assert shape[0] == (64, 16)
    assert [C.size(Layout.compact(s)) for s in shape[1]] == [2, 8]
    assert 16 / K_MAJOR.atom.shape[1] == 1 / 4  # of an atom, along K
    assert 64 // K_MAJOR.atom.shape[0] == 8  # atoms along M


def test_seed_002_3_3_first_k_major_descriptor():
    """Seed 002, Sec. 3.3: SBO = 64 and LBO = 1, in units of 16 bytes; 1024 and 16 bytes."""
    assert (K_MAJOR.stride_byte_offset, K_MAJOR.leading_byte_offset) == (1024, 16)
    assert (K_MAJOR.stride_byte_offset // 16, K_MAJOR.leading_byte_offset // 16) == (64, 1)
    assert K_MAJOR.atom.row_bytes * 8 == K_MAJOR.stride_byte_offset  # one atom
    atom = K_MAJOR.atom
    assert {atom.address(row + 1, 0) - atom.address(row, 0) for row in range(7)} != {128}
    for chunk in range(2):  # the rows of a chunk lie in eight different groups of banks
        assert {atom.address(row, 8 * chunk) // 16 % 8 for row in range(8)} == set(range(8))


def test_seed_002_3_4_k_major_advance():
    """Seed 002, Sec. 3.4: the byte offsets of all 16 subtiles."""
    assert K_MAJOR.subtile_byte_offsets() == [
        [0, 32, 64, 96, 16384, 16416, 16448, 16480],
        [8192, 8224, 8256, 8288, 24576, 24608, 24640, 24672],
    ]


def test_seed_002_3_5_k_major_steps():
    """Seed 002, Sec. 3.5.1 to 3.5.5: the layout after each step."""
    assert [(str(step.layout), step.unit) for step in K_MAJOR.steps] == [
        ("((8,16),(64,2)):((64,512),(1,8192))", "16-bit elements"),
        ("((64,16),(2,(4,2))):((64,1),(4096,(16,8192)))", "16-bit elements"),
        ("((64,2),(2,(4,2))):((8,1),(512,(2,1024)))", "uint128"),
        ("((8,8),(1,2)):((8,64),(0,1))", "uint128"),
        ("(2,(4,2)):(512,(2,1024))", "uint128"),
    ]
    # 3.5: ((8,m),(T,2k)):((8T,SBO),(1,T)) with T = 8, m = 8, k = 1
    canonical = parse("((8,8),(8,2)):((64,512),(1,8))")
    operand = K_MAJOR.steps[1].layout.modes[0]
    assert values(canonical) == values(operand)
    # 3.5.2 and 3.5.3: strides in bytes
    advance = K_MAJOR.steps[1].layout.modes[1]
    assert [2 * d for d in C.leaves(advance.stride)] == [8192, 32, 16384]
    assert [16 * d for d in C.leaves(K_MAJOR.advance.stride)] == [8192, 32, 16384]
    # 3.5.4: SBO is stride_01, LBO stride_11; CuTe C++ divides by (8, 2), and LBO is stride_10
    strides = K_MAJOR.steps[3].layout.stride
    assert (16 * strides[0][1], 16 * strides[1][1]) == (1024, 16)
    cpp = C.logical_divide(K_MAJOR.steps[2].layout.modes[0], (8, 2))
    assert str(cpp) == "((8,8),(2,1)):((8,64),(1,0))"


def test_seed_002_4_1_and_4_2_mn_major_tile():
    """Seed 002, Sec. 4.1 and 4.2: 64 atoms of 32 x 8, along K first; 4 TMA boxes of 32 x 128."""
    assert MN_MAJOR.atom.shape == (32, 8)
    stacked = MN_MAJOR.steps[0].layout
    atoms = C.concatenate(*(mode.modes[1] for mode in stacked.modes))
    assert [C.size(mode) for mode in atoms.modes] == [4, 16]
    assert C.size(atoms) == 64
    assert C.ordered_layout((4, 16), (1, 0)) == parse("(4,16):(16,1)")
    for m, k in itertools.product(range(4), range(16)):
        assert 2 * atoms(m, k) == m * 8192 + k * 512
    box = tma_box_shape((128, 128), NVMMAShared(64, 16, transposed=True))
    assert box == (32, 128)
    assert 128 * 128 // math.prod(box) == 4
    assert [C.size(mode) for mode in MN_MAJOR.steps[1].layout.modes[1].modes] == [2, 8]
    assert (64 // 32, 16 // 8) == (2, 2)
    assert [C.size(mode.modes[1]) for mode in MN_MAJOR.steps[3].layout.modes] == [2, 2]


def test_seed_002_4_3_first_mn_major_descriptor():
    """Seed 002, Sec. 4.3: SBO = 32 and LBO = 512, in units of 16 bytes; 512 and 8192 bytes."""
    assert (MN_MAJOR.stride_byte_offset, MN_MAJOR.leading_byte_offset) == (512, 8192)
    assert (MN_MAJOR.stride_byte_offset // 16, MN_MAJOR.leading_byte_offset // 16) == (32, 512)
    for m, k in itertools.product(range(2), range(2)):  # atom_addr = start + m LBO + k SBO
        address = stacked_address(MN_MAJOR.atom, (128, 128), (1, 0), 32 * m, 8 * k)
        assert address == m * 8192 + k * 512


def test_seed_002_4_4_mn_major_advance():
    """Seed 002, Sec. 4.4: the byte offsets of all 16 subtiles."""
    assert MN_MAJOR.subtile_byte_offsets() == [
        [0, 1024, 2048, 3072, 4096, 5120, 6144, 7168],
        [16384, 17408, 18432, 19456, 20480, 21504, 22528, 23552],
    ]


def test_seed_002_4_5_mn_major_steps():
    """Seed 002, Sec. 4.5.1 to 4.5.5: the layout after each step."""
    assert [(str(step.layout), step.unit) for step in MN_MAJOR.steps] == [
        ("((32,4),(8,16)):((1,4096),(32,256))", "16-bit elements"),
        ("(((32,2),16),(2,8)):(((1,4096),32),(8192,512))", "16-bit elements"),
        ("(((4,2),16),(2,8)):(((1,512),4),(1024,64))", "uint128"),
        ("((4,2),(8,2)):((1,512),(4,32))", "uint128"),
        ("(2,8):(1024,64)", "uint128"),
    ]
    # 4.5: ((T,SW,m),(8,k)):((1,T,LBO),(T SW,SBO)) with T = 8, SW = 4, m = k = 2
    canonical = parse("((8,4,2),(8,2)):((1,8,4096),(32,256))")
    assert values(canonical) == values(MN_MAJOR.steps[1].layout.modes[0])
    assert [16 * d for d in C.leaves(MN_MAJOR.advance.stride)] == [16384, 1024]
    strides = MN_MAJOR.steps[3].layout.stride
    assert (16 * strides[0][1], 16 * strides[1][1]) == (8192, 512)


@pytest.mark.parametrize(
    "instruction", [(8, 16), (16, 16), (64, 16), (128, 16), (64, 32), (32, 64)]
)
def test_seed_002_5_a_descriptor_does_not_say_where_to_stop(instruction):
    """Seed 002, Sec. 5: LBO and SBO are the tile's; the operand's shape is the instruction's.

    SBO is unused by an operand of 8 rows. tcgen05.cp.128x256b reads 128 rows of 32 bytes.
    """
    derivation = derive_steps(SwizzleAtom("K", 128, 16), (128, 128), instruction)
    assert derivation.leading_byte_offset == 16
    assert derivation.stride_byte_offset == (1024 if instruction[0] > 8 else 0)
    canonical = derivation.steps[3].layout
    chunks = C.size(canonical) // 8
    assert chunks == instruction[0] // 8 * instruction[1] // 8
    if instruction == (64, 16):
        assert chunks == 16
    copied = derive_steps(SwizzleAtom("K", 128, 8), (128, 256), (128, 32))
    assert copied.stride_byte_offset == 1024
    assert copied.advance == parse("(1,(4,2)):(0,(2,1024))")


@pytest.mark.parametrize("instruction", [(32, 8), (64, 16), (128, 16), (64, 32)])
def test_seed_002_5_mn_major_likewise(instruction):
    """Seed 002, Sec. 5, with swizzle atoms in place of chunks."""
    derivation = derive_steps(SwizzleAtom("MN", 64, 16), (128, 128), instruction)
    assert derivation.leading_byte_offset == (8192 if instruction[0] > 32 else 0)
    assert derivation.stride_byte_offset == (512 if instruction[1] > 8 else 0)
    atoms = C.size(derivation.steps[3].layout) // 4 // 8
    assert atoms == instruction[0] // 32 * instruction[1] // 8


@pytest.mark.parametrize("width", [32, 64, 128])
@pytest.mark.parametrize("chunks", [1, 2, 4, 8])
def test_lbo_of_swizzled_k_major_operands(width, chunks):
    """PTX: "not used, assumed 1" (seed 001, "Swizzle Atom"); 1 in 16-byte units, whatever K is."""
    if 16 * chunks <= width:
        derivation = derive_steps(SwizzleAtom("K", width, 16), (64, 128), (64, 8 * chunks))
        assert derivation.leading_byte_offset == 16
    else:
        with pytest.raises(LayoutError, match="there is no LBO"):
            derive_steps(SwizzleAtom("K", width, 16), (64, 128), (64, 8 * chunks))


def test_a_descriptor_that_triton_emits():
    """0x4000404000010000 (SBO 64, LBO 1): A of 128 x 64 fp16; K advances by 2 (PTX of Triton)."""
    derivation = derive_steps(SwizzleAtom("K", 128, 16), (128, 64), (128, 16))
    assert derivation.stride_byte_offset >> 4 == 0x4000404000010000 >> 32 & 0x3FFF
    assert derivation.leading_byte_offset >> 4 == 0x4000404000010000 >> 16 & 0x3FFF
    assert derivation.advance == parse("(1,4):(0,2)")


def test_text_of_a_derivation():
    assert str(K_MAJOR).splitlines() == [
        "1. tile_to_shape: 8x64 atoms to 128x128, along M or N first, in 16-bit elements:"
        " ((8,16),(64,2)):((64,512),(1,8192))",
        "2. zipped_divide into operands of 64x16, in 16-bit elements:"
        " ((64,16),(2,(4,2))):((64,1),(4096,(16,8192)))",
        "3. recast to uint128, in uint128: ((64,2),(2,(4,2))):((8,1),(512,(2,1024)))",
        "4. logical_divide of one operand into 8x16-byte chunks, in uint128:"
        " ((8,8),(1,2)):((8,64),(0,1))",
        "5. advance of the start address for each operand, in uint128: (2,(4,2)):(512,(2,1024))",
        "LBO = 16 bytes (not read), SBO = 1024 bytes",
    ]


# --------------------------------------------------------------------------- seeds 001, 000, 004

SEED_001_TABLE = {
    ("MN", 0): "((T,1,m),(8,k)):((1,T,SBO),(1T,LBO))",
    ("MN", 32): "((T,2,m),(8,k)):((1,T,LBO),(2T,SBO))",
    ("MN", 64): "((T,4,m),(8,k)):((1,T,LBO),(4T,SBO))",
    ("MN", 128): "((T,8,m),(8,k)):((1,T,LBO),(8T,SBO))",
    ("K", 0): "((8,m),(T,2k)):((1T,SBO),(1,LBO))",
    ("K", 32): "((8,m),(T,2k)):((2T,SBO),(1,T))",
    ("K", 64): "((8,m),(T,2k)):((4T,SBO),(1,T))",
    ("K", 128): "((8,m),(T,2k)):((8T,SBO),(1,T))",
}


def instance(form, **symbols):
    """A row of the table with numbers for its symbols, products such as 8T multiplied out."""

    def product(match):
        names = re.findall(r"[A-Za-z]+|\d+", match[0])
        return str(math.prod(symbols[n] if n.isalpha() else int(n) for n in names))

    return parse(re.sub(r"\d*[A-Za-z]+", product, form))


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize(("major", "width"), SEED_001_TABLE)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_seed_001_table_of_canonical_layouts(major, width, bits, order):
    """Seed 001, "SMEM Layouts for an MMA instruction": every row, and "k should be dropped".

    An operand of 32 bytes along K; LBO and SBO are the derivation's, in elements.
    """
    atom = SwizzleAtom(major, width, bits)
    form = SEED_001_TABLE[major, width]
    assert C.canonical_form(atom) == form.replace("2k", "2")
    scale = 128 // bits
    instruction = (128, 2 * scale)
    derivation = derive_steps(atom, (256, 128), instruction, order)
    assert derivation.canonical_form == form.replace("2k", "2")
    symbols = {
        "T": scale,
        "LBO": derivation.leading_byte_offset * 8 // bits,
        "SBO": derivation.stride_byte_offset * 8 // bits,
        "m": 128 // atom.shape[0],
        "k": 1 if major == "K" else instruction[1] // 8,
    }
    operand = derivation.steps[1].layout.modes[0]
    assert values(instance(form, **symbols)) == values(operand)
    for name in ("LBO", "SBO"):  # a test that can fail: another stride is another layout
        step = {"m": "LBO" if width else "SBO", "k": "SBO" if width else "LBO"}
        used = name in form and (
            major == "K" or any(symbols[r] > 1 for r in step if step[r] == name)
        )
        other = instance(form, **{**symbols, name: symbols[name] + 128})
        assert (values(other) == values(operand)) is not used


@pytest.mark.parametrize(("width", "holds"), [(0, True), (32, False), (64, True), (128, True)])
def test_seed_001_factor_k(width, holds):
    """Seed 001, "K major": the factor k of the table's K-major rows.

    With k = 2 (64 bytes along K, which no dense MMA reads) the 32-byte row already fails: its
    second half is in another atom, and there is no LBO to say where.
    """
    atom, tile, instruction = SwizzleAtom("K", width, 16), (64, 64), (64, 32)
    if holds:
        derivation = derive_steps(atom, tile, instruction)
        form = SEED_001_TABLE["K", width]
        strides = {
            "LBO": derivation.leading_byte_offset // 2,
            "SBO": derivation.stride_byte_offset // 2,
        }
        canonical = instance(form, T=8, m=8, k=2, **strides)
        assert values(canonical) == values(derivation.steps[1].layout.modes[0])
    else:
        with pytest.raises(LayoutError, match="there is no LBO to lead from one atom to the next"):
            derive_steps(atom, tile, instruction)


def seed_000_strides(swizzle_bytes, bm, element_bytes=2):
    """(LBO, SBO) by the C++ of seed 000, "Smem Descriptor": M-major, atoms along M first."""
    width = max(16, swizzle_bytes)
    atom_bytes = 8 * width
    atoms_along_m = bm // (width // element_bytes)
    if swizzle_bytes == 0:
        return atom_bytes * atoms_along_m, atom_bytes
    return atom_bytes, atom_bytes * atoms_along_m


@pytest.mark.parametrize("swizzle", SWIZZLE_BYTE_WIDTHS)
@pytest.mark.parametrize("bm", [128, 256, 512])
def test_seed_000_formulas(swizzle, bm):
    """Seed 000, "Smem Descriptor": LBO and SBO of M-major A, atoms along M first."""
    derivation = derive_steps(SwizzleAtom("MN", swizzle, 16), (bm, 64), (128, 16), (0, 1))
    strides = derivation.leading_byte_offset, derivation.stride_byte_offset
    assert strides == seed_000_strides(swizzle, bm)


def test_seed_000_example_1():
    """Seed 000, Example 1: M-major, 128B; 2 x 4 MMA tiles of (2, 2) atoms of (64, 8)."""
    atom = SwizzleAtom("MN", 128, 16)
    derivation = derive_steps(atom, (256, 64), (128, 16), (0, 1))
    assert atom.shape == (64, 8)
    assert [C.size(mode) for mode in derivation.advance.modes] == [2, 4]
    assert [C.size(mode.modes[1]) for mode in derivation.steps[3].layout.modes] == [2, 2]
    strides = derivation.leading_byte_offset, derivation.stride_byte_offset
    assert strides == (1024, 4096) == seed_000_strides(128, 256)


def test_seed_000_example_2():
    """Seed 000, Example 2: K-major, no swizzle; (16, 2) atoms of (8, 8), along K first.

    LBO: to the next atom along K; SBO: past the 8 atoms along K.
    """
    atom = SwizzleAtom("K", 0, 16)
    derivation = derive_steps(atom, (256, 64), (128, 16), (1, 0))
    assert atom.shape == (8, 8)
    assert [C.size(mode) for mode in derivation.advance.modes] == [2, 4]
    assert [C.size(mode.modes[1]) for mode in derivation.steps[3].layout.modes] == [16, 2]
    assert (derivation.leading_byte_offset, derivation.stride_byte_offset) == (128, 8 * 128)


def test_seed_000_example_3():
    """Seed 000, Example 3: K-major, 32B; (16, 1) atoms an MMA tile, along K first.

    The seed says "each with a shape of (16,8)"; by its own rule, 8 rows of 32 bytes, it is (8, 16).
    """
    atom = SwizzleAtom("K", 32, 16)
    derivation = derive_steps(atom, (256, 64), (128, 16), (1, 0))
    assert atom.shape == (8, 16)
    assert (128 // atom.shape[0], 16 // atom.shape[1]) == (16, 1)
    assert [C.size(mode) for mode in derivation.advance.modes] == [2, 4]
    assert derivation.stride_byte_offset == 256 * (64 // 16) == 1024
    assert derivation.leading_byte_offset == 16  # not used


def test_seed_004_no_swizzle():
    """Seed 004, Appendix, "Descriptors": LBO 1024 and SBO 128, of the 64 x 64 bf16 tile of A.

    Kernel 2's tile is filled by 8 copies of 64 x 8 ("Core matrices"): columns of core matrices, so
    that two of them lie BM * 16 bytes apart.
    """
    bm = bk = 64
    derivation = derive_steps(SwizzleAtom("K", 0, 16), (bm, bk), (64, 16))
    assert (derivation.leading_byte_offset, derivation.stride_byte_offset) == (1024, 128)
    assert derivation.leading_byte_offset == bm * 16
    column = derivation.steps[0].layout.modes[1]
    assert C.size(column.modes[1]) == 8  # copies
    assert derivation.subtile_byte_offsets() == [[0, 2048, 4096, 6144]]


# -------------------------------------------------- NVIDIA's CuTe DSL (extra "oracle")

ROUNDS = 250


def random_layout(rng, depth, ranks=(1, 2, 3)):
    def shape(depth):
        if depth == 0 or rng.random() < 0.5:
            return rng.choice([1, 2, 2, 3, 4, 4, 6, 8])
        return tuple(shape(depth - 1) for _ in range(rng.choice(ranks)))

    compact = Layout.compact(shape(depth))
    if rng.random() < 0.4:
        return compact

    def strides(part):
        if isinstance(part, int):
            return rng.choice([0, 1, 1, 2, 3, 4, 6, 8, 16])
        return tuple(map(strides, part))

    return Layout(compact.shape, strides(compact.shape))


def random_cases(rng):
    """(operation, arguments), for operations that the DSL and we have under one name."""
    for _ in range(ROUNDS):
        layout, other = random_layout(rng, 2), random_layout(rng, 1)
        for unary in ("size", "cosize", "rank", "coalesce", "flatten"):
            yield unary, (layout,)
        yield "composition", (layout, other)
        yield "complement", (other, rng.choice([1, 2, 8, 24, 36, 64, 100]))
        yield "logical_divide", (layout, other)
        tiler = tuple(
            rng.choice([1, 2, 3, 4, 8]) if rng.random() < 0.6 else random_layout(rng, 0)
            for _ in range(rng.randint(1, C.rank(layout)))
        )
        yield "logical_divide", (layout, tiler)
        yield "zipped_divide", (layout, tiler)
        yield "logical_product", (other, random_layout(rng, 1))
        pairs = [Layout.compact((2, 2)), Layout.compact((3, 1, 2))]
        wide = [random_layout(rng, 1, (2, 3)) for _ in range(2)]
        wide = [x if C.rank(x) > 1 else y for x, y in zip(wide, pairs, strict=True)]
        yield "blocked_product", tuple(wide)
        yield "recast", (layout, rng.choice([8, 16, 32]), 128)
        dims = rng.randint(1, 3)
        shape = [rng.choice([1, 2, 3, 4, 8]) for _ in range(dims)]
        atom = C.ordered_layout(shape, rng.sample(range(dims), dims))
        if rng.random() < 0.3:
            atom = Layout(atom.shape, tuple(rng.choice([1, 2, 4, 8, 16]) for _ in shape))
        target = tuple(extent * rng.choice([1, 2, 3, 4]) for extent in shape)
        order = tuple(rng.sample(range(dims), dims))
        yield "tile_to_shape", (atom, target, order)
        yield "ordered_layout", (target, order)


def breaks_its_law(operation, arguments, result):
    """What the DSL returned where we refuse breaks the operation's post-condition."""
    if operation == "composition":
        left, right = arguments
        return values(result) != [left(right(i)) for i in range(C.size(right))]
    if operation in ("logical_divide", "zipped_divide"):  # not just the elements in another order
        return sorted(values(result)) != sorted(values(arguments[0]))
    if operation == "recast":  # CUTLASS asserts this condition (upcast); the DSL does not
        layout, old, new = arguments
        ratio = new // old
        return any(d % ratio and ratio % d for d in C.leaves(layout.stride) if d)
    if operation == "logical_product":
        block, tiler = arguments
        copies = C.complement(block, C.size(block) * C.cosize(tiler))
        grid = itertools.product(range(C.size(block)), range(C.size(tiler)))
        return any(result(i, j) != block(i) + copies(tiler(j)) for i, j in grid)
    blocks = values(arguments[0])  # blocked_product, tile_to_shape: copies overlap, or
    count = C.size(result) // len(blocks)  # a copy of the block is not one
    return not is_injective(result) or len(set(values(result))) != count * len(set(blocks))


def ours(operation, arguments):
    try:
        return str(getattr(C, operation)(*arguments))
    except LayoutError as error:
        return error


@pytest.fixture(scope="module")
def cute_results():
    """(operation, arguments, the DSL's result as text or None where it refuses)."""
    pytest.importorskip("cutlass", reason="needs the extra 'oracle'")
    cute = pytest.importorskip("cutlass.cute")

    def convert(argument):
        if isinstance(argument, Layout):
            return cute.make_layout(argument.shape, stride=argument.stride)
        return tuple(map(convert, argument)) if isinstance(argument, tuple) else argument

    calls = {
        "recast": lambda layout, old, new: cute.recast_layout(new, old, layout),
        "ordered_layout": lambda shape, order: cute.make_ordered_layout(shape, order=order),
    }
    results = []

    def fill():
        for operation, arguments in random_cases(random.Random(3)):
            error = ours(operation, arguments)
            if isinstance(error, LayoutError) and "overlap" in error.rule:
                continue  # the DSL divides by zero, and the process dies
            call = calls.get(operation) or getattr(cute, operation)
            try:
                theirs = str(call(*map(convert, arguments)))
            except Exception:  # an MLIR error, or an AssertionError of its Python
                theirs = None
            results.append((operation, arguments, theirs))

    @cute.jit
    def evaluate():
        fill()

    evaluate()
    return results


OPERATIONS = (
    "size cosize rank coalesce flatten composition complement logical_divide zipped_divide"
    " logical_product blocked_product recast tile_to_shape ordered_layout"
)


@pytest.mark.parametrize("operation", OPERATIONS.split())
def test_nvidia_cute_dsl_agrees(cute_results, operation):
    """The same text; where we refuse, it refuses too or returns what breaks the law."""
    agreed = 0
    for name, arguments, theirs in cute_results:
        if name != operation:
            continue
        result = ours(operation, arguments)
        case = f"{operation}({', '.join(map(str, arguments))})"
        if not isinstance(result, LayoutError):
            assert result == theirs, case
            agreed += 1
        elif theirs is not None:
            assert breaks_its_law(operation, arguments, parse(theirs)), f"{case}: {theirs}"
    assert agreed > ROUNDS // 2


@pytest.fixture(scope="module")
def cute_derivations():
    """The steps of seed 002 by the DSL, from its own swizzle atoms."""
    cutlass = pytest.importorskip("cutlass", reason="needs the extra 'oracle'")
    cute = pytest.importorskip("cutlass.cute")
    from cutlass.cute.nvgpu import tcgen05

    types = {8: cutlass.Int8, 16: cutlass.BFloat16, 32: cutlass.Float32}
    steps = {}

    def fill():
        for case in oracle_derivations():
            atom, tile, instruction, order = case
            width = atom.row_bytes // 16
            name = f"SW{atom.swizzle_byte_width}" if atom.swizzle_byte_width else "INTER"
            kind = getattr(tcgen05.SmemLayoutAtomKind, f"{atom.major}_{name}")
            theirs = tcgen05.make_smem_layout_atom(kind, types[atom.element_bitwidth]).outer
            stacked = cute.tile_to_shape(theirs, tile, order=order)
            operands = cute.zipped_divide(stacked, instruction)
            wide = cute.recast_layout(128, atom.element_bitwidth, operands)
            tiler = (8, 1) if atom.major == "K" else (width, 8)
            canonical = cute.logical_divide(cute.get(wide, mode=[0]), tiler)
            advance = cute.get(wide, mode=[1])
            steps[case] = [str(x) for x in (stacked, operands, wide, canonical, advance)]

    @cute.jit
    def evaluate():
        fill()

    evaluate()
    return steps


def oracle_derivations():
    """Every atom, three tiles, each legal operand of 16, 32 and 64 bytes along K, both orders."""
    for major, width, bits in itertools.product(("K", "MN"), SWIZZLE_BYTE_WIDTHS, (8, 16, 32)):
        atom = SwizzleAtom(major, width, bits)
        for tile, mn, k_bytes, order in itertools.product(
            ((128, 128), (256, 128), (384, 256)), (8, 64, 128), (16, 32, 64), ((0, 1), (1, 0))
        ):
            case = (atom, tile, (mn, 8 * k_bytes // bits), order)
            try:
                derive_steps(*case)
            except LayoutError:
                continue
            yield case


def test_nvidia_cute_dsl_derives_the_same_steps(cute_derivations):
    """All five layouts, as text, of every legal case."""
    cases = list(oracle_derivations())
    assert len(cases) > 400
    for case in cases:
        mine = [str(step.layout) for step in derive_steps(*case).steps]
        assert mine == cute_derivations[case], case


# A tile at this address, so that a start address that is lost would show.
START = 7 * 1024


@pytest.fixture(scope="module")
def cute_descriptors(tmp_path_factory):
    """The first descriptor of each case as the DSL's ``make_umma_smem_desc`` compiles it to PTX."""
    cutlass = pytest.importorskip("cutlass", reason="needs the extra 'oracle'")
    cute = pytest.importorskip("cutlass.cute")
    from cutlass.cute.nvgpu import tcgen05
    from cutlass.cute.nvgpu.tcgen05.helpers import smem_descriptor_to_int
    from cutlass.cute.runtime import make_ptr

    types = {8: cutlass.Int8, 16: cutlass.BFloat16, 32: cutlass.Float32}
    cases = [case for case in oracle_derivations() if case[2][1] * case[0].element_bitwidth == 256]

    def fill(out):
        for i, (atom, tile, instruction, order) in enumerate(cases):
            stacked = C.tile_to_shape(C.atom_layout(atom), tile, order)
            operands = C.zipped_divide(stacked, instruction)
            theirs = cute.make_layout(operands.shape, stride=operands.stride)
            element = types[atom.element_bitwidth]
            pointer = cute.make_ptr(element, START, cute.AddressSpace.smem, assumed_align=1024)
            swizzle = cute.make_swizzle(atom.swizzle.bits, atom.swizzle.base, atom.swizzle.shift)
            pointer = cute.recast_ptr(pointer, swizzle, dtype=element)
            descriptor = tcgen05.make_umma_smem_desc(pointer, theirs, atom.major.lower())
            out[i] = smem_descriptor_to_int(descriptor)

    @cute.kernel
    def kernel(out):
        fill(out)

    @cute.jit
    def host(pointer):
        out = cute.make_tensor(pointer, cute.make_layout(len(cases)))
        kernel(out).launch(grid=(1, 1, 1), block=(32, 1, 1))

    folder = tmp_path_factory.mktemp("ptx")
    pointer = make_ptr(cutlass.Int64, 0, cute.AddressSpace.gmem, assumed_align=16)
    cute.compile(host, pointer, options=f"--gpu-arch sm_100a --keep-ptx --dump-dir {folder}")
    (ptx,) = (path.read_text() for path in folder.glob("*.ptx"))
    found = {}
    for offset, stored in re.findall(r"st\.global\S*\s+\[%rd\d+(?:\+(\d+))?\], (.*);", ptx):
        for i, value in enumerate(re.findall(r"-?\d+", stored)):
            found[cases[int(offset or 0) // 8 + i]] = int(value) % 2**64
    assert len(found) == len(cases)
    return found


def test_nvidia_cute_dsl_makes_the_same_descriptors(cute_descriptors):
    """LBO, SBO and start address, in its PTX, also where an operand does not use them."""
    assert len(cute_descriptors) > 150
    for case, descriptor in cute_descriptors.items():
        derivation = derive_steps(*case)
        expected = [START, derivation.leading_byte_offset, derivation.stride_byte_offset]
        assert [16 * (descriptor >> at & 0x3FFF) for at in (0, 16, 32)] == expected, case
