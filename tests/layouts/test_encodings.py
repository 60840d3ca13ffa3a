"""Encodings: spellings, defaults, errors, and Gluon's objects."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import subprocess
import sys
import tempfile

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sites import triton_sites
from strategies import cga_layouts, invertible_layouts, nvmma_encodings, shapes, surjective_layouts

from triton_ext import (
    LayoutError,
    LinearLayout,
    NVMMAShared,
    SharedLinear,
    SwizzledShared,
    core_matrix_linear_layout,
    nvmma_shared_to_linear_layout,
    parse_encoding,
)
from triton_ext.hardware.banks import chunk_access
from triton_ext.hardware.tma_tile import tile_copies
from triton_ext.layouts.cluster import add_cluster, cluster_layout, shape_per_cta
from triton_ext.layouts.dump import dump_encoding
from triton_ext.layouts.encodings import (
    ELEMENT_BITWIDTHS,
    ENCODINGS,
    PaddedShared,
    SharedEncoding,
)
from triton_ext.layouts.triton.converted import Converted
from triton_ext.layouts.triton.oracle import TritonOracle

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


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("NVMMASharedLayout(128, 16)", NVMMAShared(128, 16)),
        ("ttgl.NVMMASharedLayout(32, 8, 3, True)", NVMMAShared(32, 8, rank=3, transposed=True)),
        (
            "gl.SwizzledSharedLayout(8, 1, max_phase=8, order=[1, 0])",
            SwizzledShared(8, 1, 8, (1, 0)),
        ),
        ("#shared1 = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false,"
         " elementBitWidth = 16}>", NVMMAShared(128, 16)),
    ],
)  # fmt: skip
def test_a_line_of_a_script_or_of_a_dump(text, encoding):
    assert parse_encoding(text) == encoding


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("BlockedLayout([1], [32], [4], [0])", "must be one of NVMMASharedLayout, Swizzled"),
        ("NVMMASharedLayout(128)", "element_bitwidth must be given"),
        ("NVMMASharedLayout(128, 16, swizzle=2)", "the arguments of NVMMASharedLayout are"),
        ("NVMMASharedLayout(128, BITS)", "must be one call with literal arguments"),
        ("NVMMASharedLayout(128, 16", "must be one call with literal arguments"),
        ("NVMMASharedLayout(96, 16)", "must be one of 0, 32, 64, 128"),
    ],
)
def test_a_line_of_a_script_that_is_wrong(text, rule):
    with pytest.raises(LayoutError, match=re.escape(rule)):
        parse_encoding(text)


def test_seed_001_attribute_prints_as_in_the_seed():
    """Seed 001, "Triton": the attribute."""
    assert str(NVMMAShared.parse(SEED)) == SEED


@st.composite
def padded_encodings(draw):
    powers = st.integers(0, 6).map(lambda bits: 1 << bits)
    pairs = draw(st.dictionaries(powers, powers, min_size=1, max_size=3))
    cga_layout = draw(cga_layouts(2))
    shape = tuple(size * 16 for size in cluster_layout(cga_layout, (16, 16)).out_dims.values())
    part = draw(invertible_layouts({"dim0": 16, "dim1": 16}))
    part = LinearLayout({"offset": [*part.bases["offset"], *part.bases["block"]]}, part.out_dims)
    layout = add_cluster(part, cga_layout, shape)
    return PaddedShared(tuple(pairs.items()), SharedLinear.from_linear_layout(layout))


def all_encodings():
    return st.one_of(
        nvmma_encodings(), swizzled_encodings(), linear_encodings(), padded_encodings()
    )


@given(all_encodings())
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
        ("4x4xf16", PaddedShared(((4, 2),), SharedLinear(((0, 1), (0, 2), (1, 0), (2, 0))))),
        ("4x4xf16", PaddedShared(((4, 2),), SharedLinear(((1, 0), (2, 0), (0, 1), (0, 2))))),
        ("4x4xf16", PaddedShared(((4, 2), (8, 1)), SharedLinear(((0, 1), (1, 0), (0, 2), (2, 0))))),
        ("1x4x1xf16", PaddedShared(((2, 2),), SharedLinear(((0, 1, 0), (0, 2, 0))))),
        (
            "4x8xf16",
            PaddedShared(((4, 8),), SharedLinear(((0, 1), (0, 2), (1, 0)), ((2, 0), (0, 4)))),
        ),
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
        ("#ttg.padded_shared<{order = [1, 0], shape = [4, 4]}>", "must start with a list"),
        ("#ttg.padded_shared<[32:+] {order = [1, 0], shape = [4, 4]}>", "expected"),
        ("#ttg.nvmma_shared<[32:+4] {swizzlingByteWidth = 0}>", "must not start with a list"),
        ("#ttng.tensor_memory_encoding<blockM = 64>", "see `triton-ext tmem`"),
        ("#ttg.blocked<{order = [0]}>", "see `triton-ext layout --convert`"),
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
        (f"#ttg.padded_shared<[{'1' * 5000}:+4] {{offset = [[1]]}}>", "at most 19 characters"),
        ("#ttg.padded_shared<[24:+4] {offset = [[1]]}>", "of powers of two"),
        ("#ttg.padded_shared<[8:+4, 8:+2] {offset = [[1]]}>", "one padding"),
        ("#ttg.padded_shared<[] {offset = [[1]]}>", "at least one pair"),
        ("#ttg.padded_shared<[32] {offset = [[1]]}>", "of powers of two"),
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


@given(encoding=all_encodings())
def test_gluon_round_trip(interop, encoding):
    assert interop.from_gluon(interop.to_gluon(encoding)) == encoding


@given(all_encodings())
def test_gluons_own_text(interop, encoding):
    """What Gluon prints of a layout, and what a script has, which names its module."""
    try:
        text = repr(interop.to_gluon(encoding))
    except LayoutError:  # one that Gluon has not
        return
    assert parse_encoding(text) == encoding
    assert parse_encoding(f" gl.{text}\n") == encoding


def test_gluon_builds_the_attribute_that_we_print(interop):
    """The type that Gluon makes with a layout has our attribute; of clusters, too."""
    rows = ((0, 1), (0, 2), (0, 4), (1, 0), (2, 0))
    columns = ((1, 0), (2, 0), (0, 1), (0, 2), (0, 4))
    encodings = [
        PaddedShared(((8, 4), (16, 1)), SharedLinear(rows)),
        PaddedShared(((4, 2),), SharedLinear(columns)),
        PaddedShared(((8, 4),), SharedLinear(rows, ((4, 0), (0, 0), (0, 8)))),
        PaddedShared(((8, 4),), SharedLinear(rows, ((0, 8), (8, 0), (4, 0)))),
        NVMMAShared(32, 16, cga_layout=((1, 0),)),
        SwizzledShared(4, 2, 4, (0, 1), ((0, 1), (0, 0))),
        SharedLinear(rows, ((4, 0),), 32),
    ]
    builder = interop.op_builder(context := interop.mlir_context())
    for encoding in encodings:
        bases = isinstance(encoding, (PaddedShared, SharedLinear))
        own = encoding.to_linear_layout(None if bases else (32, 64))
        shape = list(own.out_dims.values())
        made = interop.to_gluon(encoding)._to_ir(builder)
        text = str(builder.get_shared_mem_desc_ty(builder.get_half_ty(), shape, made, shape))
        assert f", {encoding}, #ttg.shared_memory" in text
    del builder, context


def test_gluon_round_trip_of_others(interop):
    with pytest.raises(LayoutError, match="at least one offset basis"):
        interop.to_gluon(SharedLinear((), ((1, 0),)))
    halves = SharedLinear(((0, 2), (1, 0)), ((0, 1),))  # a block holds every other column
    with pytest.raises(LayoutError, match="whole boxes"):
        interop.to_gluon(PaddedShared(((2, 2),), halves))
    with pytest.raises(LayoutError, match="must be a Gluon"):
        interop.from_gluon("layout")
    with pytest.raises(LayoutError, match=r"must be a shared-memory encoding$"):
        interop.to_gluon("encoding")


def test_a_gluon_layout_where_an_encoding_is_due_names_from_gluon(interop):
    layout = interop.to_gluon(NVMMAShared(128, 16))
    calls = (
        lambda given: nvmma_shared_to_linear_layout((64, 64), given),
        lambda given: core_matrix_linear_layout(given),
        lambda given: dump_encoding(given, (64, 64)),
        lambda given: interop.to_gluon(given),
        lambda given: tile_copies((64, 64), (64, 64), given),
        lambda given: chunk_access(given, 16),
        lambda given: SharedLinear.from_linear_layout(given),
    )
    for call in calls:
        with pytest.raises(LayoutError, match=r"triton_ext\.interop\.from_gluon\(layout\)"):
            call(layout)
        with pytest.raises(LayoutError, match=r"triton_ext\.parse_encoding\(text\)"):
            call(SEED)
    with pytest.raises(LayoutError, match=r"encoding\.to_linear_layout\(shape\) makes one"):
        chunk_access(NVMMAShared(128, 16), 16)


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


def subclasses(kind):
    return {kind, *(each for one in kind.__subclasses__() for each in subclasses(one))}


def test_the_registry_has_every_encoding():
    assert set(ENCODINGS.values()) == subclasses(SharedEncoding) - {SharedEncoding}
    for mnemonic, kind in ENCODINGS.items():
        assert f"ttg.{mnemonic}" == kind.NAME


@pytest.mark.parametrize(
    ("paddings", "bases", "memory"),
    [
        # The examples of Gluon's PaddedSharedLayout, elements by number, "." for padding.
        ([(2, 1), (4, 2)], [(1,), (2,), (4,)], "0 1 . 2 3 . . . 4 5 . 6 7"),
        ([(2, 2)], [(2,), (1,)], "0 2 . . 1 3"),
        (
            [(8, 1)],
            [(0, 1), (0, 2), (2, 0), (4, 0), (1, 0)],
            "00 01 02 03 20 21 22 23 . 40 41 42 43 60 61 62 63 ."
            " 10 11 12 13 30 31 32 33 . 50 51 52 53 70 71 72 73",
        ),
    ],
)
def test_padded_addresses_are_those_of_gluons_examples(paddings, bases, memory):
    encoding = PaddedShared(tuple(paddings), SharedLinear(tuple(bases)))
    layout, words = encoding.to_linear_layout(), memory.split()
    assert encoding.stored_elements() == len(words)
    places = {}
    for offset in range(layout.in_dims["offset"]):
        element = "".join(str(at) for at in layout.apply(offset=offset).values())
        places[encoding.address(offset)] = element
        assert encoding.offset_at(encoding.address(offset), layout.in_dims["offset"]) == offset
    assert [places.get(address, ".") for address in range(len(words))] == words
    for address, word in enumerate(words):
        if word == ".":
            assert encoding.offset_at(address, layout.in_dims["offset"]) is None


@given(encoding=all_encodings(), offset=st.integers(0, 1 << 20))
def test_only_padding_moves_an_offset(encoding, offset):
    address = encoding.address(offset)
    assert address == int(encoding.address(np.array([offset]))[0])
    if not isinstance(encoding, PaddedShared):
        assert address == offset
        assert not encoding.paddings
    else:  # padding is inserted element by element
        assert encoding.address(0) == 0
        ends = [(n, extra) for n, extra in encoding.paddings if (offset + 1) % n == 0]
        assert encoding.address(offset + 1) - address == 1 + sum(extra for _, extra in ends)


def test_a_layout_needs_a_shape_of_its_own():
    for encoding in (NVMMAShared(128, 16), SwizzledShared(1, 1, 1, (1, 0))):
        with pytest.raises(LayoutError, match="is needed, with 2 dimensions"):
            encoding.to_linear_layout(None)
    linear = SharedLinear(((0, 1), (1, 0)))
    assert linear.to_linear_layout() == linear.to_linear_layout((2, 2))
    with pytest.raises(LayoutError, match=r"must be \(2, 2\), what the bases span"):
        linear.to_linear_layout((4, 1))


POWERS = (1, 2, 4, 8)
NARROW_SWIZZLED = [
    (SwizzledShared(vec, per_phase, max_phase, order), shape)
    for vec, per_phase, max_phase in itertools.product(POWERS, repeat=3)
    for order in ((1, 0), (0, 1))
    for shape in itertools.product((1, 2, 8), (1, 4, 16))
    if math.prod(shape) > 1  # Gluon has no layout without bases
] + [
    (SwizzledShared(4, 1, 8, (0,)), (2,)),
    (SwizzledShared(2, 1, 8, (2, 1, 0)), (2, 8, 4)),
    (SwizzledShared(2, 1, 8, (0, 2, 1)), (4, 2, 8)),
    (SwizzledShared(4, 1, 8, (1, 0), ((0, 1), (1, 0))), (16, 16)),
]  # fmt: skip
"""Tiles of swizzled rows: of fewer chunks than there are phases, narrower than a chunk, of one row,
of one column; higher ranks, and a tile that is narrow only in each block of a cluster."""


def test_swizzled_tiles_wrap_their_phase_within_the_row():
    """By the definition: chunk c of row r is stored as chunk ``c ^ phase`` of as many as fit; the
    matrices of higher ranks follow each other."""
    for encoding, shape in NARROW_SWIZZLED:
        if len(shape) == 1 or encoding.cga_layout:
            continue
        fast, slow, *others = encoding.order
        width, vec = shape[fast], encoding.vec
        layout = encoding.to_linear_layout(shape)
        for offset in range(math.prod(shape)):
            row, column = divmod(offset, width)
            rest, row = divmod(row, shape[slow])
            phase = row // encoding.per_phase % encoding.max_phase
            chunk = (column // vec ^ phase) % max(width // vec, 1)
            element = {f"dim{slow}": row, f"dim{fast}": chunk * vec + column % vec}
            for dim in others:
                rest, element[f"dim{dim}"] = divmod(rest, shape[dim])
            assert layout.apply(offset=offset) == element, (encoding, shape, offset)


@pytest.mark.parametrize("site", triton_sites())
def test_narrow_swizzled_tiles_are_tritons(site):
    answers = TritonOracle(site).convert((shape, each) for each, shape in NARROW_SWIZZLED)
    for (encoding, shape), theirs in zip(NARROW_SWIZZLED, answers, strict=True):
        assert isinstance(theirs, Converted), theirs
        assert theirs.has_bases_of(encoding.to_linear_layout(shape)), (encoding, shape)


def test_a_box_counts_its_points():
    layout = LinearLayout.box("offset", {"dim1": 4, "dim0": 2})
    points = [tuple(layout.apply(offset=offset).values()) for offset in range(8)]
    assert points == [(column, row) for row in range(2) for column in range(4)]
    with pytest.raises(LayoutError, match="power of two"):
        LinearLayout.box("offset", {"dim0": 3})
