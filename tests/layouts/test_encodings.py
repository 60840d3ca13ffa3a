"""Encodings: spellings, defaults, errors, and Gluon's objects."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sites import triton_sites
from strategies import cga_layouts, nvmma_encodings, shapes, surjective_layouts

from triton_ext import (
    LayoutError,
    LinearLayout,
    NVMMAShared,
    SharedLinear,
    SwizzledShared,
    nvmma_shared_to_linear_layout,
    parse_encoding,
)
from triton_ext.layouts.cluster import cluster_layout, shape_per_cta
from triton_ext.layouts.encodings import ELEMENT_BITWIDTHS
from triton_ext.layouts.padded_shared import PaddedShared

SEED = "#ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>"


@st.composite
def swizzled_encodings(draw):
    powers = st.integers(0, 3).map(lambda bits: 1 << bits)
    order = tuple(draw(st.permutations(range(draw(st.integers(1, 4))))))
    cga_layout = draw(cga_layouts(len(order)))
    return SwizzledShared(draw(powers), draw(powers), draw(powers), order, cga_layout)


@st.composite
def linear_encodings(draw):
    layout = draw(surjective_layouts(out_dims={"dim0": 8, "dim1": 16}))
    assume(layout.bases["offset"])
    return SharedLinear.from_linear_layout(layout, alignment=1 << draw(st.integers(4, 10)))


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (SEED, NVMMAShared(128, 16)),
        (
            "#ttg.nvmma_shared<{swizzlingByteWidth = 64, elementBitWidth = 8}>",
            NVMMAShared(64, 8),
        ),
        (
            "  #ttg.nvmma_shared<{ elementBitWidth=8:i32, fp4Padded = true, transposed=true,"
            "\n swizzlingByteWidth = 128 }>",
            NVMMAShared(128, 8, transposed=True, fp4_padded=True),
        ),
        (
            "#ttg.nvmma_shared<{swizzlingByteWidth = 0, transposed = false, elementBitWidth = 32,"
            " rank = 1}>",
            NVMMAShared(0, 32, rank=1),
        ),
        (
            "#ttg.nvmma_shared<{swizzlingByteWidth = 32, transposed = false, elementBitWidth = 16,"
            " CGALayout = [[0, 1, 0], [0, 0, 0]]}>",
            NVMMAShared(32, 16, rank=3, cga_layout=((0, 1, 0), (0, 0, 0))),
        ),
        (
            "#triton_gpu.nvmma_shared<{swizzlingByteWidth = 32, transposed = false,"
            " elementBitWidth = 16, CTAsPerCGA = [4, 2], CTASplitNum = [2, 2], CTAOrder = [1, 0]}>",
            NVMMAShared(32, 16, cga_layout=((0, 1), (1, 0), (0, 0))),
        ),
    ],
)
def test_spellings(text, encoding):
    assert NVMMAShared.parse(text) == encoding
    assert parse_encoding(text) == encoding


def test_seed_001_attribute_prints_as_in_the_seed():
    """Seed 001, "Triton": the attribute."""
    assert str(NVMMAShared.parse(SEED)) == SEED


@given(st.one_of(nvmma_encodings(), swizzled_encodings(), linear_encodings()))
def test_printing_and_parsing_are_inverse(encoding):
    assert parse_encoding(str(encoding)) == encoding
    assert type(encoding).parse(str(encoding)) == encoding


PRINT_WITH_TRITON = """
import sys
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend

context = ir.context()
ir.load_dialects(context)
make_backend(GPUTarget("cuda", 100, 32)).load_dialects(context)
print(str(ir.parse_mlir_module(sys.argv[1], context)))
"""


@pytest.mark.parametrize("site", triton_sites())
def test_triton_prints_encodings_as_we_do(site, monkeypatch):
    """What Triton parses from our text and prints again is our text."""
    encodings = [
        ("128x64xf16", NVMMAShared(128, 16)),
        ("128x64xf16", NVMMAShared(64, 16, transposed=True)),
        ("128x64xi8", NVMMAShared(128, 8, fp4_padded=True)),
        ("64xi8", NVMMAShared(0, 8, rank=1)),
        ("2x64x32xf32", NVMMAShared(128, 32, rank=3)),
        ("128x64xf16", NVMMAShared(128, 16, cga_layout=((1, 0), (0, 0)))),
        ("128x64xf16", SwizzledShared(8, 1, 8, (1, 0))),
        ("128x64xf16", SwizzledShared(4, 2, 4, (0, 1), ((0, 1), (0, 0)))),
        ("4x4xf16", SharedLinear(((0, 1), (0, 2), (1, 2), (2, 0)), (), 16)),
        ("4x16xf16", SharedLinear(((0, 1), (0, 2), (1, 2), (2, 0)), ((0, 4), (0, 8)), 1024)),
    ]
    monkeypatch.setenv("PYTHONPATH", str(site or ""))
    for shape, encoding in encodings:
        blocks = 4 if "CGA" in str(encoding) or "block" in str(encoding) else 1
        module = (
            f"#shared = {encoding}\n#smem = #ttg.shared_memory\n"
            f'module attributes {{"ttg.num-ctas" = {blocks} : i32, "ttg.num-warps" = 4 : i32}} {{\n'
            f"tt.func @f(%a: !ttg.memdesc<{shape}, #shared, #smem>) {{ tt.return }} }}"
        )
        with tempfile.NamedTemporaryFile("w", suffix=".mlir") as file:
            file.write(module)
            file.flush()
            command = [sys.executable, "-c", PRINT_WITH_TRITON, file.name]
            printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        line = next(line for line in printed.splitlines() if line.startswith("#shared ="))
        assert line == f"#shared = {encoding}"


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"swizzle_byte_width": 16}, "swizzle_byte_width"),
        ({"swizzle_byte_width": None}, "swizzle_byte_width"),
        ({"swizzle_byte_width": True}, "swizzle_byte_width"),
        ({"element_bitwidth": 4}, "element_bitwidth"),
        ({"element_bitwidth": "16"}, "element_bitwidth"),
        ({"transposed": 1}, "transposed"),
        ({"fp4_padded": "no"}, "fp4_padded"),
        ({"rank": 0}, "rank"),
        ({"rank": 6}, "rank"),
        ({"rank": 1}, "rank"),
        ({"fp4_padded": True}, "element_bitwidth"),
        (
            {"fp4_padded": True, "element_bitwidth": 8, "swizzle_byte_width": 64},
            "swizzle_byte_width",
        ),
        ({"cga_layout": [[1, 0, 0]]}, "cga_layout"),
        ({"cga_layout": [[1, 1]]}, "cga_layout"),
        ({"cga_layout": [[2, 0]]}, "cga_layout"),
        ({"cga_layout": [[1, 0], [1, 0]]}, "cga_layout"),
        ({"cga_layout": [[0, 0]] * 5}, "cga_layout"),
        ({"cga_layout": [[-1, 0]]}, "cga_layout"),
        ({"cga_layout": 3}, "cga_layout"),
        ({"cga_layout": [["a", 0]]}, "cga_layout"),
    ],
)
def test_illegal_nvmma_arguments(arguments, argument):
    with pytest.raises(LayoutError) as caught:
        NVMMAShared(**({"swizzle_byte_width": 128, "element_bitwidth": 16} | arguments))
    assert caught.value.argument == argument


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected an attribute"),
        ("nvmma_shared<{}>", "must start with '#'"),
        ("#ttg.nvmma_shared", "expected '<'"),
        ("#ttg.nvmma_shared<{}>", "'swizzlingByteWidth' is missing"),
        ("#ttg.nvmma_shared<{swizzlingByteWidth = 128}>", "'elementBitWidth' is missing"),
        (SEED[:-2], "expected ','"),
        (SEED + "x", "expected the end, found 'x'"),
        (SEED.replace("transposed", "order"), "unknown key 'order'"),
        (SEED.replace("= 128", "128"), "expected '='"),
        (SEED.replace("128", "64, swizzlingByteWidth = 32"), "given twice"),
        (SEED.replace("128", "48"), "must be one of 0, 32, 64, 128"),
        (SEED.replace("128", "[128]"), "must be one of 0, 32, 64, 128"),
        (SEED.replace("false", "maybe"), "must be True or False"),
        (SEED.replace("}>", ", CTAOrder = [1, 0]}>"), "must be three lists of one length"),
        (SEED.replace("}>", ", CGALayout = [1, 0]}>"), "must be a sequence of integer vectors"),
        ("#ttg.padded_shared<[32:+4] {order = [1, 0]}>", "expected"),
        ("#ttg.amd_rotating_shared<{vec = 1}>", "must be one of #ttg.nvmma_shared"),
        ("#ttg.swizzled_shared<{vec = 3, perPhase = 1, maxPhase = 1, order = [0]}>", "power of"),
        ("#ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [2]}>", "permutation"),
        ("#ttg.shared_linear<{offset = []}, alignment = 16>", "at least one basis"),
        ("#ttg.shared_linear<{offset = [[3, 0]]}, alignment = 16>", "reach every coordinate"),
        ("#ttg.shared_linear<{offset = [[1]]}, alignment = 24>", "power of two, in bytes"),
        ("#ttg.shared_linear<{offset = [[1]], block = [[0, 1]]}, alignment = 16>", "same number"),
    ],
)
def test_illegal_attributes(text, message):
    with pytest.raises(LayoutError) as caught:
        parse_encoding(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#ttg.padded_shared<[32:+4] {order = [1, 0]}>", "an order and a shape, or offset bases"),
        ("#ttg.padded_shared<[32:+4] {order = [2, 0], shape = [4, 4]}>", "permutation"),
        (
            "#ttg.padded_shared<[32:+4] {order = [1, 0], shape = [4, 4], CGALayout = [[1, 0]]}>",
            "unknown key 'CGALayout'; legal: ['order', 'shape']",
        ),
        (
            "#ttg.padded_shared<[32:+4] {offset = [[0, 1]], block = [], order = [1, 0]}>",
            "unknown key 'order'; legal: ['offset', 'block']",
        ),
        ("#ttg.padded_shared<[32:+4] {order = [1, x], shape = [4, 4]}>", "permutation"),
        ("#ttg.padded_shared<[32:+4] {order = [1, 0], shape = [4, 3]}>", "power of two"),
        ("#ttg.padded_shared<[32:+4] {order = [0], shape = [1]}>", "at least one basis"),
        ("#ttg.padded_shared<[32:+4] {offset = [[3, 0]]}>", "reach every coordinate"),
        (f"#ttg.padded_shared<[{'1' * 5000}:+4] {{offset = [[1]]}}>", "of powers of two"),
    ],
)
def test_illegal_padded_attributes(text, message):
    with pytest.raises(LayoutError) as caught:
        PaddedShared.parse(text)
    assert message in str(caught.value)


@given(st.text(alphabet="#ttg.nvma_shredswizlBW{}<>[]=, 0123true", max_size=80))
def test_any_text_parses_or_raises_layout_error(text):
    for candidate in (text, SEED[: len(text)] + text, SEED.replace("128", text)):
        with contextlib.suppress(LayoutError):
            parse_encoding(candidate)


@given(st.data())
def test_cluster_layout_covers_the_tensor(data):
    rank = data.draw(st.integers(1, 4))
    cga_layout = data.draw(cga_layouts(rank))
    shape = data.draw(shapes(rank, max_bits=4))
    layout = cluster_layout(cga_layout, shape)
    assert layout.is_surjective()
    per_cta = shape_per_cta(cga_layout, shape)
    for size, part, blocks in zip(shape, per_cta, layout.out_dims.values(), strict=True):
        assert size == part * blocks


# ----------------------------------------------------------------------- Gluon's objects


@pytest.fixture(scope="module")
def interop():
    pytest.importorskip("triton")
    from triton_ext.layouts.triton import gluon as interop

    return interop


@given(encoding=st.one_of(nvmma_encodings(), swizzled_encodings(), linear_encodings()))
def test_gluon_round_trip(interop, encoding):
    assert interop.from_gluon(interop.to_gluon(encoding)) == encoding


def test_gluon_round_trip_of_others(interop):
    with pytest.raises(LayoutError, match="at least one offset basis"):
        interop.to_gluon(SharedLinear((), ((1, 0),)))
    with pytest.raises(LayoutError, match="must be a Gluon"):
        interop.from_gluon("layout")
    with pytest.raises(LayoutError, match="must be an NVMMAShared"):
        interop.to_gluon("encoding")


@given(data=st.data())
def test_default_for_is_gluons(interop, data):
    from triton.experimental.gluon import language as gl

    dtypes = {8: gl.int8, 16: gl.float16, 32: gl.float32, 64: gl.int64}
    rank = data.draw(st.integers(1, 5))
    shape = data.draw(shapes(rank))
    bits = data.draw(st.sampled_from(ELEMENT_BITWIDTHS))
    transposed, fp4_padded = data.draw(st.booleans()), bits == 8 and data.draw(st.booleans())
    cga_layout = [list(basis) for basis in data.draw(cga_layouts(rank))]
    arguments = (list(shape), dtypes[bits], transposed, fp4_padded, cga_layout)
    try:
        theirs = gl.NVMMASharedLayout.get_default_for(*arguments)
    except AssertionError:  # fp4_padded where 128 bytes do not fit, more blocks than elements
        with pytest.raises(LayoutError):
            NVMMAShared.default_for(shape, bits, transposed, fp4_padded, cga_layout)
        return
    ours = NVMMAShared.default_for(shape, bits, transposed, fp4_padded, cga_layout)
    assert ours == interop.from_gluon(theirs)


# --------------------------------------------------------------------- what every encoding knows


def test_every_encoding_knows_its_layout():
    nvmma = NVMMAShared(128, 16, cga_layout=((1, 0),))
    layout = nvmma_shared_to_linear_layout((128, 64), nvmma)
    linear = SharedLinear.from_linear_layout(layout, 1024)
    rows = SwizzledShared(1, 1, 1, (1, 0))
    padded = PaddedShared.parse("#ttg.padded_shared<[64:+4] {order = [1, 0], shape = [128, 64]}>")
    for encoding, expected, stored, alignment in (
        (nvmma, layout, 64 * 64, 1024),
        (linear, layout, 64 * 64, 1024),
        (rows, rows.to_linear_layout((128, 64)), 128 * 64, 16),
        (padded, rows.to_linear_layout((128, 64)), 128 * 64 + 127 * 4, 16),
    ):
        assert encoding.rank == 2
        assert encoding.to_linear_layout((128, 64)) == expected
        assert encoding.stored_elements((128, 64)) == stored
        assert encoding.alignment == alignment
    assert NVMMAShared(128, 8, fp4_padded=True).stored_elements((8, 64)) == 2 * 8 * 64


def test_a_layout_needs_a_shape_of_its_own():
    for encoding in (NVMMAShared(128, 16), SwizzledShared(1, 1, 1, (1, 0))):
        with pytest.raises(LayoutError, match="is needed, with 2 dimensions"):
            encoding.to_linear_layout(None)
    linear = SharedLinear(((0, 1), (1, 0)))
    assert linear.to_linear_layout() == linear.to_linear_layout((2, 2))
    with pytest.raises(LayoutError, match=r"must be \(2, 2\), what the bases span"):
        linear.to_linear_layout((4, 1))


def test_a_box_counts_its_points():
    layout = LinearLayout.box("offset", {"dim1": 4, "dim0": 2})
    points = [tuple(layout.apply(offset=offset).values()) for offset in range(8)]
    assert points == [(column, row) for row in range(2) for column in range(4)]
    with pytest.raises(LayoutError, match="power of two"):
        LinearLayout.box("offset", {"dim0": 3})
