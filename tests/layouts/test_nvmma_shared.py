"""The conversion: the seed's example, Triton's own answer over a sweep, and illegal input."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import some
from sites import ALL, triton_sites
from strategies import nvmma_encodings, shapes

from triton_ext import (
    LayoutError,
    LinearLayout,
    NVMMAShared,
    core_matrix_linear_layout,
    nvmma_shared_to_linear_layout,
)
from triton_ext.layouts.cluster import shape_per_cta
from triton_ext.layouts.encodings import ELEMENT_BITWIDTHS, SWIZZLE_BYTE_WIDTHS
from triton_ext.layouts.nvmma_shared import tma_box_shape
from triton_ext.layouts.triton.converted import Converted
from triton_ext.layouts.triton.known_faults import KNOWN_FAULTS, expected_from_triton
from triton_ext.layouts.triton.oracle import TritonOracle

SWEEP_SIZES = {
    1: (1, 2, 8, 64, 256, 512, 4096),
    2: (1, 2, 8, 16, 32, 64, 128, 256, 512, 1024),
    3: (1, 2, 4, 16, 64, 512),
    4: (1, 2, 8, 64),
    5: (1, 2, 16),
}


def sweep_cga_layouts(rank):
    """Splits of each dimension, broadcasts, permuted bases, up to 16 blocks."""

    def unit(dim, value):
        return tuple(value if i == dim else 0 for i in range(rank))

    last, zero = rank - 1, (0,) * rank
    yield ()
    yield from (((unit(dim, 1),)) for dim in range(rank))
    yield (zero,)
    yield (zero, unit(last, 2), unit(last, 1))
    if rank > 1:
        yield (unit(0, 1), unit(1, 1))
        yield (unit(1, 1), unit(0, 1), unit(0, 2))
        yield (unit(last, 1), zero)
        yield (unit(0, 1), unit(0, 2), unit(1, 1), unit(1, 2))


def sweep_encodings(rank):
    for swizzle, bits, transposed in itertools.product(
        SWIZZLE_BYTE_WIDTHS if rank > 1 else (0,), ELEMENT_BITWIDTHS, (False, True)
    ):
        for fp4 in (False, True) if (swizzle, bits) == (128, 8) else (False,):
            for cga_layout in sweep_cga_layouts(rank):
                yield NVMMAShared(swizzle, bits, transposed, fp4, rank, cga_layout)


def sweep(share=1, every=1):
    """Every legal case of the product, with our layout; every `share`-th where clusters multiply
    them. Of those, one in `every`.
    """
    number = 0
    for rank, sizes in SWEEP_SIZES.items():
        encodings = list(sweep_encodings(rank))
        for shape in itertools.product(sizes, repeat=rank):
            for encoding in encodings:
                number += 1
                if (rank > 2 and number % share) or number % every:
                    continue
                with contextlib.suppress(LayoutError):
                    yield (shape, encoding), nvmma_shared_to_linear_layout(shape, encoding)


@pytest.mark.parametrize("site", triton_sites())
def test_equal_to_tritons_own_conversion(site):
    """At least 3,000 legal cases, 40,000 by `make oracle`; where the release is wrong, it is wrong
    as the table says. One in seven of a sweep: 7 divides no number of encodings of a rank, so that
    all of them meet many shapes.
    """
    least = 40_000 if ALL else 3_000
    cases, layouts = zip(*sweep(*((3, 1) if ALL else (11, 7))), strict=True)
    assert len(cases) >= least
    oracle = TritonOracle(site)
    major, minor = map(int, oracle.version.split(".")[:2])
    seen = Counter()
    for (shape, encoding), right, answer in zip(cases, layouts, oracle.convert(cases), strict=True):
        expected, fault = right, None
        if any(each.applies(encoding) for each in KNOWN_FAULTS):
            expected, fault = expected_from_triton((major, minor), shape, encoding)
        case = f"{shape} {encoding}"
        assert isinstance(answer, Converted), f"{case}: {answer}"
        assert answer.has_bases_of(expected), f"{case}: {answer} {expected.bases}"
        assert answer.alignment == encoding.alignment, case
        seen[fault.title if fault else "equal"] += 1
    faults = {fault.title for fault in KNOWN_FAULTS if (major, minor) in fault.versions}
    assert set(seen) == {"equal", *faults}
    assert seen["equal"] > 0.8 * least


@pytest.mark.parametrize("fault", KNOWN_FAULTS, ids=lambda fault: fault.title)
def test_known_faults_are_wrong(fault):
    shape, encoding = fault.example
    assert fault.applies(encoding)
    returned = fault.returns(shape, encoding)
    assert returned != nvmma_shared_to_linear_layout(shape, encoding)
    # `transposed` says that the first dimension is contiguous, and they do not have it so.
    assert returned.bases["offset"][0][0] != 1
    assert nvmma_shared_to_linear_layout(shape, encoding).bases["offset"][0][0] == 1


def test_the_known_fault_of_the_design_document():
    """18 offset bases, five of them zero, for 13 bits of elements."""
    fault = KNOWN_FAULTS[1]
    bases = fault.returns((2, 64, 64), NVMMAShared(0, 16, transposed=True, rank=3)).bases["offset"]
    assert len(bases) == 18
    assert sum(not any(basis) for basis in bases) == 5


def test_seed_001_core_matrix():
    """Seed 001, "Triton": the bases of getCoreMatrixLinearLayout; strided dimension first."""
    encoding = NVMMAShared.parse(
        "#ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>"
    )
    layout = core_matrix_linear_layout(encoding)
    assert layout.bases == {
        "offset": [(0, 1), (0, 2), (0, 4), (0, 8), (0, 16), (0, 32), (1, 8), (2, 16), (4, 32)]
    }
    assert layout.out_dims == {"dim0": 8, "dim1": 64}
    tile = nvmma_shared_to_linear_layout((128, 256), encoding)
    assert tile.bases["offset"][:9] == layout.bases["offset"]
    # "strided dim first up to a TMA block": rows to 128, then columns in steps of the atom
    assert tile.bases["offset"][9:] == [(8, 0), (16, 0), (32, 0), (64, 0), (0, 64), (0, 128)]
    assert list(tile.bases) == ["offset"]


def test_strided_dimension_stops_at_a_tma_box():
    """Seed 001, "MN major" and "K major": atoms along the strided dimension up to a TMA block.

    512 rows are two boxes of 256: the next column of boxes comes after the second box.
    """
    tile = nvmma_shared_to_linear_layout((512, 128), NVMMAShared(128, 16))
    assert tile.bases["offset"][9:] == [(8 << i, 0) for i in range(6)] + [(0, 64)]
    transposed = nvmma_shared_to_linear_layout((128, 512), NVMMAShared(128, 16, transposed=True))
    assert transposed.bases["offset"][9:] == [(0, 8 << i) for i in range(5)] + [(64, 0), (0, 256)]


def test_blocks_hold_parts_of_the_tensor():
    encoding = NVMMAShared(128, 16, cga_layout=((1, 0), (0, 0), (0, 1)))
    tile = nvmma_shared_to_linear_layout((256, 128), encoding)
    assert tile.bases["block"] == [(128, 0), (0, 0), (0, 64)]
    alone = nvmma_shared_to_linear_layout((128, 64), NVMMAShared(128, 16))
    assert tile.bases["offset"] == alone.bases["offset"]


@given(nvmma_encodings(), st.data())
def test_laws_of_every_legal_case(encoding, data):
    shape = data.draw(shapes(encoding.rank))
    try:
        layout = nvmma_shared_to_linear_layout(shape, encoding)
    except LayoutError:
        return
    assert tuple(layout.out_dims.values()) == shape
    assert layout.is_surjective()
    assert list(layout.bases) == (["offset", "block"] if encoding.cga_layout else ["offset"])
    per_cta = shape_per_cta(encoding.cga_layout, shape)
    elements = 1
    for size in per_cta:
        elements *= size
    assert layout.in_dims["offset"] == elements * (2 if encoding.fp4_padded else 1)
    first = layout.bases["offset"][0] if layout.bases["offset"] else None
    if first and per_cta[encoding.contiguous_dim] > 1:
        assert first[encoding.contiguous_dim] == 1
    plain = nvmma_shared_to_linear_layout(shape, encoding, disable_swizzle=True)
    assert plain.out_dims == layout.out_dims
    assert all(sum(map(bool, basis)) <= 1 for basis in plain.bases["offset"])


@given(nvmma_encodings(max_rank=2), st.data())
def test_transposition_is_a_relabelling(encoding, data):
    """For rank 2, the transposed encoding of the transposed shape is the same memory."""
    if encoding.rank < 2 or encoding.cga_layout:
        return
    rows, columns = data.draw(shapes(2))
    flipped = NVMMAShared(
        encoding.swizzle_byte_width,
        encoding.element_bitwidth,
        not encoding.transposed,
        encoding.fp4_padded,
    )
    try:
        layout = nvmma_shared_to_linear_layout((rows, columns), encoding)
    except LayoutError:
        with pytest.raises(LayoutError):
            nvmma_shared_to_linear_layout((columns, rows), flipped)
        return
    box = tma_box_shape((rows, columns), encoding)
    if (rows, columns) == box or 1 in (rows // box[0], columns // box[1]):
        other = nvmma_shared_to_linear_layout((columns, rows), flipped)
        swapped = [(b, a) for a, b in other.bases["offset"]]
        assert swapped == layout.bases["offset"]


# ------------------------------------------------------------------------- illegal input

JUNK = st.one_of(
    st.integers(-3, 300),
    st.sampled_from([None, True, 1.5, "128", [], (), {}, [[1, 0]], [[0, 1], [1]], 2**40, b"x"]),
)


@settings(max_examples=some(300))
@given(st.data())
def test_nothing_but_layout_error_is_raised(data):
    """Random inputs, legal and not."""

    def mostly(legal):
        return st.one_of(legal, legal, legal, JUNK)

    arguments = [
        data.draw(mostly(st.sampled_from(SWIZZLE_BYTE_WIDTHS))),
        data.draw(mostly(st.sampled_from(ELEMENT_BITWIDTHS))),
        data.draw(mostly(st.booleans())),
        data.draw(mostly(st.just(False))),
        data.draw(mostly(st.integers(1, 5))),
        data.draw(mostly(st.just(()))),
    ]
    shape = data.draw(mostly(st.lists(mostly(st.sampled_from([1, 8, 64, 256])), max_size=5)))
    try:
        encoding = NVMMAShared(*arguments)
        layout = nvmma_shared_to_linear_layout(shape, encoding)
    except LayoutError as error:
        refused = error
    else:
        refused = None
        assert isinstance(layout, LinearLayout)
        assert layout.is_surjective()
    assert refused is None or (refused.argument and refused.rule)


@pytest.mark.parametrize(
    ("shape", "encoding", "argument", "rule"),
    [
        ((100, 64), NVMMAShared(128, 16), "shape[0]", "power of two"),
        ((0, 64), NVMMAShared(128, 16), "shape[0]", "power of two"),
        ((128,), NVMMAShared(128, 16), "shape", "2 dimensions"),
        ((1, 128, 64), NVMMAShared(128, 16), "shape", "2 dimensions"),
        (128, NVMMAShared(128, 16), "shape", "sequence of integers"),
        ((128.0, 64), NVMMAShared(128, 16), "shape", "sequence of integers"),
        ((2**31, 64), NVMMAShared(0, 16), "shape[0]", "less than 2**31"),
        ((128, 32), NVMMAShared(128, 16), "shape[1]", "at least 64 elements"),
        ((32, 128), NVMMAShared(128, 16, transposed=True), "shape[0]", "at least 64 elements"),
        ((4, 64), NVMMAShared(128, 16), "product of shape[:-1]", "8 rows"),
        ((64, 4), NVMMAShared(128, 16, transposed=True), "shape[1]", "8 rows"),
        (
            (128, 64),
            NVMMAShared(128, 16, cga_layout=((0, 1),)),
            "shape[1]",
            "a block must hold at least 64",
        ),
        ((128, 64), "#ttg.nvmma_shared", "encoding", "NVMMAShared"),
    ],
)
def test_errors_name_the_argument_and_the_rule(shape, encoding, argument, rule):
    with pytest.raises(LayoutError) as caught:
        nvmma_shared_to_linear_layout(shape, encoding)
    assert caught.value.argument == argument
    assert rule in str(caught.value)


def test_what_we_refuse_triton_cannot_convert():
    """A shape of powers of two that we refuse makes Triton abort, or return nonsense."""
    pytest.importorskip("triton")
    generator = random.Random(0)
    cases = []
    while len(cases) < 150:
        rank = generator.randint(2, 4)
        shape = tuple(1 << generator.randint(0, 7) for _ in range(rank))
        encoding = generator.choice(list(sweep_encodings(rank)))
        try:
            nvmma_shared_to_linear_layout(shape, encoding)
        except LayoutError:
            cases.append((shape, encoding))
    answers = TritonOracle().convert(cases)
    for (shape, encoding), answer in zip(cases, answers, strict=True):
        assert str(answer).startswith("aborted"), f"{shape} {encoding} {answer}"


def test_oracle_survives_an_abort():
    pytest.importorskip("triton")
    legal, illegal = ((128, 64), NVMMAShared(128, 16)), ((4, 64), NVMMAShared(128, 16))
    answers = TritonOracle().convert([legal, illegal, legal, illegal])
    assert [isinstance(answer, str) for answer in answers] == [False, True, False, True]
    assert answers[0] == answers[2]
    assert "Illegal shared layout" in answers[1]
