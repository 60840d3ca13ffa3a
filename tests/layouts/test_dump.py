"""Dumps: modules, JSON, text, grids."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sites import installed_folder
from strategies import nvmma_encodings, shapes

from triton_ext import (
    LayoutError,
    NVMMAShared,
    SharedLinear,
    SwizzledShared,
    nvmma_shared_to_linear_layout,
    parse_encoding,
)
from triton_ext.layouts.atoms import SwizzleAtom
from triton_ext.layouts.dump import LayoutDump, dump_encoding, from_json, to_json
from triton_ext.layouts.encodings import PaddedShared
from triton_ext.mlir.module_layouts import dump_module
from triton_ext.render.grid import draw_grid
from triton_ext.render.html import dump_html
from triton_ext.render.svg import dump_svg
from triton_ext.render.text import dump_text, explain

jsonschema = pytest.importorskip("jsonschema")
SCHEMA = json.loads(
    (installed_folder("triton_ext.layouts") / "layout_dump.schema.json").read_text(encoding="utf-8")
)

MODULE = """
// #commented = #ttg.nvmma_shared<{swizzlingByteWidth = 32}>
#blocked = #ttg.blocked<{sizePerThread = [1, 8], order = [1, 0]}>
#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#shared1 = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#shared2 = #ttg.shared_linear<{offset = [[0, 1], [0, 2], [1, 2]]}, alignment = 16>
#shared3 = #ttg.padded_shared<[32:+4] {order = [1, 0], shape = [16, 32]}>
#smem = #ttg.shared_memory
#tmem = #ttng.tensor_memory_encoding<blockM = 128, blockN = 64, colStride = 1>
module attributes {"ttg.target" = "cuda:100", note = "!ttg.memdesc<8x8xf16, #shared>"} {
  tt.func @f(%arg0: !tt.tensordesc<128x64xf16, #shared>, %old: !tt.tensordesc<tensor<64x64xf16, #shared>>) {
    %0 = ttg.local_alloc : () -> !ttg.memdesc<3x128x64xf16, #shared, #smem, mutable>
    %1 = ttg.memdesc_index %0 : !ttg.memdesc<3x128x64xf16, #shared, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    %2 = ttg.memdesc_subslice %1 : !ttg.memdesc<128x64xf16, #shared, #smem> -> !ttg.memdesc<64x64xf16, #shared, #smem, mutable, 256x64>
    %3 = ttg.local_alloc : () -> !ttg.memdesc<2xi64, #shared1, #smem, mutable>
    %4 = ttg.local_alloc : () -> !ttg.memdesc<2x4xf8E4M3FN, #shared2, #smem>
    %5 = ttg.local_alloc : () -> !ttg.memdesc<16x32xbf16, #shared3, #smem>
    %6 = ttg.local_alloc : () -> !ttg.memdesc<16x96xf16, #shared, #smem>
    %7 = ttg.local_alloc : () -> !ttg.memdesc<64x32xf32, #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 32}>, #smem>
    %8 = ttng.tmem_alloc : () -> !ttg.memdesc<128x64xf32, #tmem, #ttng.tensor_memory, mutable>
  }
}
"""  # noqa: E501


def test_every_shared_encoding_of_a_module():
    dumps = dump_module(MODULE)
    found = [(dump.alias, dump.shape, dump.element_bitwidth, bool(dump.error)) for dump in dumps]
    assert found == [
        ("#shared", (128, 64), 16, False),
        ("#shared", (64, 64), 16, False),
        ("#shared", (256, 64), 16, False),
        ("#shared1", (2,), 64, False),
        ("#shared2", (2, 4), 8, False),
        ("#shared3", (16, 32), 16, False),
        ("#shared", (16, 96), 16, True),
        ("", (64, 32), 32, False),
    ]
    assert dumps[0].layout == nvmma_shared_to_linear_layout((128, 64), NVMMAShared(128, 16))
    assert [dump.paddings for dump in dumps if dump.paddings] == [((32, 4),)]
    assert "power of two" in dumps[6].error


def test_a_real_module_of_the_compiler():
    """The TTGIR of a compiled kernel: every encoding in it is converted."""
    pytest.importorskip("triton")
    from triton_ext.kernels.launch import compile_matmul, kernel_constants
    from triton_ext.kernels.spec import kernel_spec

    config = kernel_spec(100, "fp16", a_major="MN")
    for generated in (True, False):
        kernel = compile_matmul(config, kernel_constants(config, generated_layouts=generated))
        dumps = dump_module(kernel.asm["ttgir"])
        assert not [dump.error for dump in dumps if dump.error]
        shapes_seen = {dump.shape for dump in dumps}
        assert {(128, 64), (64, 128), (128, 128)} <= shapes_seen
        kinds = {dump.encoding.split("<")[0] for dump in dumps}
        assert ("#ttg.shared_linear" in kinds) == generated
        for dump in dumps:
            if (dump.encoding, dump.shape) == (str(config.layouts.a.encoding), (128, 64)):
                assert dump.layout == config.layouts.a.linear.to_linear_layout()


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("!ttg.memdesc<128x64xf16, #s", "never closed"),
        ("!ttg.memdesc<f16, #shared>", "expected a shape"),
    ],
)
def test_unreadable_modules(module, message):
    with pytest.raises(LayoutError, match=message):
        dump_module(module)


# ---------------------------------------------------------------------------------- JSON


PADDED = parse_encoding("#ttg.padded_shared<[32:+4] {order = [1, 0], shape = [16, 32]}>")


@st.composite
def dumps(draw):
    """What an encoding is converted to, or why it cannot be."""
    if draw(st.integers(0, 3)) == 0:
        paddings = draw(st.sampled_from([((16, 8),), ((4, 2), (32, 1))]))
        encoding = PaddedShared(paddings, SharedLinear(((0, 1), (1, 0), (0, 2), (2, 0))))
        return dump_encoding(encoding, element_bitwidth=draw(st.sampled_from([None, 16])))
    encoding = draw(nvmma_encodings())
    alias = draw(st.sampled_from(["", "#shared"]))
    shape = draw(shapes(encoding.rank))
    try:
        return replace(dump_encoding(encoding, shape), alias=alias)
    except LayoutError as error:
        return LayoutDump("tile", str(encoding), None, shape, 16, alias, error.rule)


@given(st.lists(dumps(), max_size=3))
def test_json_round_trip_and_schema(some):
    text = to_json(some)
    jsonschema.validate(json.loads(text), SCHEMA)
    assert from_json(text) == some


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no JSON document"),
        ("[]", "must be of type object"),
        ("{}", "must have 'version'"),
        ('{"version": 2, "layouts": []}', "version = 2: must be 1"),
        ('{"version": 1, "layouts": [{}]}', "json.layouts[0] = {}: must have 'what'"),
    ],
)
def test_what_is_no_json_dump(text, message):
    with pytest.raises(LayoutError) as caught:
        from_json(text)
    assert message in str(caught.value)


def test_a_padding_that_its_encoding_does_not_have_is_refused():
    dump = dump_encoding(PADDED)
    for wrong in (((32, 8),), ()):
        with pytest.raises(LayoutError, match="are not those of its encoding"):
            from_json(to_json([replace(dump, paddings=wrong)]))
    whole = json.loads(to_json([dump]))
    [entry] = whole["layouts"]
    assert entry["paddings"] == [[32, 4]]
    for illegal in ("[[3, 1]]", "[[4]]", "[4]", '[["a", 1]]'):
        with pytest.raises(LayoutError):
            from_json(json.dumps(whole | {"layouts": [entry | {"paddings": json.loads(illegal)}]}))


# ------------------------------------------------------------------------- text and grids


def test_padding_is_in_the_text_the_grid_and_the_pictures():
    """Each cell has the address: 36 elements from row to row, by hand."""
    dump = dump_encoding(PADDED, element_bitwidth=16)
    text = dump_text(dump)
    said = "Padding: 4 unused elements behind each 32; offset o lies at o + o / 32 * 4, in elements"
    assert text.endswith(said)
    assert "A block holds 512 elements of 16 bits: 1144 bytes, with the padding" in explain(dump)
    assert "  offset 64 (144 bytes): dim0 ^ 2" in explain(dump)
    grid = draw_grid(dump.layout, paddings=dump.paddings).splitlines()
    cells = [[int(cell) for cell in line.split()] for line in grid[1:17]]
    assert cells == [[row, *(36 * row + column for column in range(0, 32, 4))] for row in range(16)]
    picture = dump_svg(dump)
    assert "Tile: 16x32 elements, 1144 bytes" in picture
    for row in range(16):
        at = f"element ({row}, 4): offset {36 * row + 4} elements, {2 * (36 * row + 4)} bytes"
        assert at in picture
    with pytest.raises(LayoutError, match="is padded, which the page does not draw"):
        dump_html(dump)


def test_text_of_seed_001():
    """Seed 001, "Triton": the block that it prints, whole; its page lost the indentation."""
    seed = """\
Full tensor shape: 128, 256
Layout encoding: #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
getCoreMatrixLinearLayout output:
- offset=1 -> (0, 1)
offset=2 -> (0, 2)
offset=4 -> (0, 4)
offset=8 -> (0, 8)
offset=16 -> (0, 16)
offset=32 -> (0, 32)
offset=64 -> (1, 8)
offset=128 -> (2, 16)
offset=256 -> (4, 32)
where out dims are: [dim0 (size 8), dim1 (size 64)]"""  # noqa: E501
    text = dump_text(dump_encoding(NVMMAShared(128, 16), (128, 256), core=True))
    lines = text.splitlines()
    assert [line.removeprefix("  ") for line in lines] == seed.splitlines()
    assert [line for line in lines if line.startswith(" ")] == lines[4:12]


def test_explanation():
    text = explain(dump_encoding(NVMMAShared(128, 16), (512, 128)))
    for expected in (
        "A block holds 65536 elements of 16 bits: 131072 bytes.",
        "Its address must be a multiple of 1024 bytes.",
        "Swizzle atom: 8 rows of 128 bytes in one piece; 128 of them."
        " Row r has its 16-byte chunks XORed with r mod 8.",
        "TMA box: 256x64 elements; 4 fill the tile.",
        "  offset 4 (8 bytes): dim1 ^ 4: inside a 16-byte chunk",
        "  offset 16 (32 bytes): dim1 ^ 16: chunk 2 of the row",
        "  offset 128 (256 bytes): dim0 ^ 2, dim1 ^ 16: row 2 of the atom, chunks XOR 2",
        "  offset 512 (1024 bytes): dim0 ^ 8: atom 1",
    ):
        assert expected in text.splitlines()
    cluster = explain(dump_encoding(NVMMAShared(64, 16, cga_layout=((1, 0), (0, 0))), (128, 64)))
    assert "  block 1: dim0 ^ 64: another part of the tensor" in cluster
    assert "  block 2: nothing: a block with the same part (broadcast)" in cluster
    assert "r / 2 mod 4" in cluster
    padded = explain(dump_encoding(NVMMAShared(128, 8, fp4_padded=True), (8, 64)))
    assert "offset 8 (8 bytes): nothing (padding, or a copy): inside a 16-byte chunk" in padded
    assert "No swizzle" in explain(dump_encoding(NVMMAShared(0, 16), (8, 8)))
    straight = explain(dump_encoding(NVMMAShared(128, 16), (8, 64), disable_swizzle=True))
    assert "Row r has its 16-byte chunks where they are." in straight
    assert "  offset 64 (128 bytes): dim0 ^ 1: row 1 of the atom\n" in straight
    linear = explain(dump_encoding(SharedLinear(((0, 1), (1, 0)))))
    assert linear.splitlines() == [
        "What each bit does to the coordinates (^ is XOR):",
        "  offset 1: dim1 ^ 1",
        "  offset 2: dim0 ^ 1",
    ]


def uncoloured(text):
    import click

    return click.unstyle(text)


def test_grid_of_the_atom_is_the_documented_picture():
    atom = SwizzleAtom("K", 128, 16)
    text = uncoloured(draw_grid(atom.to_linear_layout(), 16))
    rows = [line.split() for line in text.splitlines()[1:9]]
    for row, (label, *cells) in enumerate(rows):
        assert label == str(row)
        assert [int(cell) for cell in cells] == [
            atom.address(row, 8 * chunk) // 2 for chunk in range(8)
        ]


def test_grid_colours_are_bank_groups():
    """In the 128-byte atom each column of chunks shows all eight colours: no bank conflict."""
    text = draw_grid(SwizzleAtom("K", 128, 16).to_linear_layout(), 16)
    lines = [line for line in text.splitlines() if "\x1b" in line]
    columns = [[cell.split("m")[0] for cell in line.split("\x1b[")[1::2]] for line in lines]
    assert len(columns) == 8
    for column in zip(*columns, strict=True):
        assert len(set(column)) == 8


@given(nvmma_encodings(), st.data())
def test_grid_cells_are_the_offsets(encoding, data):
    shape = data.draw(shapes(encoding.rank, max_bits=7))
    try:
        layout = encoding.to_linear_layout(shape)
    except LayoutError:
        return
    text = uncoloured(draw_grid(layout, encoding.element_bitwidth, max_rows=None, max_width=None))
    header, *rows = text.splitlines()
    columns = [int(label) for label in header.split()[1:]]
    inverse = layout.pseudoinvert()
    rows = [row for row in rows if row.split()[0].isdigit()]
    for row in rows:
        label, *cells = row.split()
        point = dict.fromkeys(layout.out_dims, 0)
        if encoding.rank > 1:
            point[f"dim{encoding.rank - 2}"] = int(label)
        for column, cell in zip(columns, cells, strict=True):
            point[f"dim{encoding.rank - 1}"] = column
            place = inverse.apply(point)
            assert int(cell.split(":")[-1]) == place["offset"]
            if ":" in cell:
                assert int(cell.split(":")[0]) == place["block"]


@pytest.mark.parametrize(
    ("encoding", "run"),
    [
        (SwizzledShared(4, 1, 4, (1, 0)), 4),  # chunks of 4 elements trade places
        (SwizzledShared(1, 1, 8, (1, 0)), 1),
        (SwizzledShared(8, 1, 8, (1, 0)), 8),
        (NVMMAShared(128, 16), 8),
    ],
)
def test_grid_cells_stand_for_consecutive_offsets(encoding, run):
    layout = encoding.to_linear_layout((8, 64))
    text = uncoloured(draw_grid(layout, 16, max_width=None))
    assert (f"of the first of {run} along dim1" in text) == (run > 1)
    inverse = layout.pseudoinvert()
    for row, line in enumerate(text.splitlines()[1:9]):
        for cell, offset in enumerate(line.split()[1:]):
            found = [inverse.apply(dim0=row, dim1=cell * run + i)["offset"] for i in range(run)]
            assert found == list(range(int(offset), int(offset) + run))


def test_grid_is_cut():
    layout = nvmma_shared_to_linear_layout((128, 1024), NVMMAShared(128, 16))
    text = uncoloured(draw_grid(layout, 16, max_rows=4, max_width=60))
    assert all(len(line) <= 100 for line in text.splitlines())
    table, notes = text.splitlines()[:5], text.splitlines()[5:]
    assert all(len(line) <= 60 for line in table)
    assert notes[-2] == "... dim0 0 to 3 of 128 (--full shows all)"
    assert notes[-1].startswith("... dim1 0 to ")
    deep = uncoloured(draw_grid(NVMMAShared(0, 8, rank=3).to_linear_layout((4, 2, 8)), 8))
    assert "at dim0 = 0" in deep


def test_dump_errors():
    with pytest.raises(LayoutError, match="shape = None: is needed, with 2 dimensions"):
        dump_encoding(NVMMAShared(128, 16))
    with pytest.raises(LayoutError, match="shape = None: is needed"):
        dump_encoding(NVMMAShared(128, 16), disable_swizzle=True)
    linear = SharedLinear(((0, 1), (1, 0)))
    with pytest.raises(LayoutError, match="only an nvmma_shared has a swizzle atom"):
        dump_encoding(linear, core=True)
    with pytest.raises(LayoutError, match="what the bases span"):
        dump_encoding(linear, (4, 4))
    assert dump_encoding(linear).shape == (2, 2)
