"""Pictures: what the SVGs hold, and the HTML pages in a real browser (headless Chromium)."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from documented_atoms import ATOMS, CHUNK_PICTURES, atom_id
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import layouts, surjective_layouts

from triton_ext import (
    LayoutError,
    LinearLayout,
    NVMMAShared,
    nvmma_shared_to_linear_layout,
    parse_encoding,
)
from triton_ext.commands.banks import banks
from triton_ext.commands.descriptor import descriptor
from triton_ext.commands.tmem import tmem
from triton_ext.hardware.banks import warp_access
from triton_ext.hardware.instruction_descriptor import DENSE_FIELDS, KINDS, InstructionDescriptor
from triton_ext.hardware.operand import derive_operand
from triton_ext.hardware.smem_descriptor import FIELDS, SmemDescriptor, problems
from triton_ext.hardware.tensor_memory import accumulator_layout, operand_a_layout
from triton_ext.hardware.tensor_memory_access import ACCESS_SHAPES, plan_transfer
from triton_ext.layouts.atoms import SwizzleAtom
from triton_ext.layouts.dump import LayoutDump, dump_encoding
from triton_ext.layouts.encodings import SharedLinear, SwizzledShared
from triton_ext.render.descriptor_page import (
    descriptor_html,
    instruction_descriptor_html,
    operand_html,
)
from triton_ext.render.grid import draw_grid
from triton_ext.render.html import configurations, dump_html, explorer_html, stacked_atoms
from triton_ext.render.scene import DARK, LIGHT
from triton_ext.render.svg import (
    atom_svg,
    bank_access_svg,
    banks_svg,
    descriptor_svg,
    dump_svg,
    instruction_descriptor_svg,
    operand_svg,
    tensor_memory_svg,
    tile_svg,
    transfer_svg,
)

NAMESPACE = "{http://www.w3.org/2000/svg}"


class Picture:
    """A parsed SVG: its boxes as dictionaries, with numbers as integers where they are."""

    def __init__(self, svg):
        self.root = ElementTree.fromstring(svg)
        assert self.root.tag == NAMESPACE + "svg"
        self.boxes = []
        for group in self.root.iter(NAMESPACE + "g"):
            rect = group.find(NAMESPACE + "rect")
            box = {name: float(rect.get(name)) for name in ("x", "y", "width", "height")}
            box["kind"] = group.get("class").split()
            for name, value in group.attrib.items():
                if name.startswith("data-"):
                    box[name[5:]] = int(value) if value.isdigit() else value
            box["label"] = group.findtext(NAMESPACE + "text", "")
            box["title"] = group.findtext(NAMESPACE + "title", "")
            self.boxes.append(box)
        self.texts = [text.text for text in self.root.iter(NAMESPACE + "text")]

    def of(self, kind, **data):
        return [
            box
            for box in self.boxes
            if kind in box["kind"] and all(box.get(name) == value for name, value in data.items())
        ]


def grid(boxes):
    """The boxes as rows, from where they are drawn; they fill a rectangle without gaps."""
    rows = {}
    for box in boxes:
        rows.setdefault(box["y"], {})[box["x"]] = box
    table = [[row[x] for x in sorted(row)] for _, row in sorted(rows.items())]
    for row in table:
        for left, right in itertools.pairwise(row):
            assert right["x"] == pytest.approx(left["x"] + left["width"])
    for above, below in itertools.pairwise(table):
        assert below[0]["y"] == pytest.approx(above[0]["y"] + above[0]["height"])
    return table


def fill(box):
    return next(kind for kind in box["kind"] if kind.startswith("fill"))


# --------------------------------------------------------------------- atoms


@pytest.mark.parametrize("atom", ATOMS, ids=atom_id)
def test_atom_picture(atom):
    """Seed 003, Sec. 3: the chunks in logical order, and in the lines of shared memory."""
    picture = Picture(atom_svg(atom))
    physical = grid(picture.of("chunk", view="physical"))
    numbers = [[int(box["label"]) for box in row] for row in physical]
    assert numbers == CHUNK_PICTURES[atom.swizzle_byte_width] == atom.chunk_table()

    logical = grid(picture.of("chunk", view="logical"))
    chunk = 128 // atom.element_bitwidth
    step = (1, chunk) if atom.major == "K" else (chunk, 1)
    rows, columns = atom.shape
    assert (len(logical), len(logical[0])) == (rows // step[0], columns // step[1])
    layout = atom.to_linear_layout()
    for i, row in enumerate(logical):
        for j, box in enumerate(row):
            assert (box["row"], box["column"]) == (i * step[0], j * step[1])
            place = layout.apply(offset=box["slot"] * chunk)
            assert place == {"dim0": box["row"], "dim1": box["column"]}
            assert atom.address(box["row"], box["column"]) == 16 * box["slot"]
            line, slot = divmod(box["slot"], 8)
            assert physical[line][slot]["label"] == box["label"]
            assert physical[line][slot]["title"] == box["title"]
    along = logical if atom.major == "K" else list(zip(*logical, strict=True))
    assert [int(box["label"]) for row in along for box in row] == list(range(len(physical) * 8))


@pytest.mark.parametrize("atom", ATOMS, ids=atom_id)
def test_each_colour_of_an_atom_touches_each_bank_group_once(atom):
    """Seed 003, Sec. 3: an 8x16B subtile, in one colour, is read without bank conflicts."""
    picture = Picture(atom_svg(atom))
    slots, places = {}, {}
    for row in grid(picture.of("chunk", view="physical")):
        for position, box in enumerate(row):
            slots.setdefault(fill(box), []).append(position)
            places.setdefault(fill(box), set()).add(box["column" if atom.major == "K" else "row"])
    assert len(slots) == atom.row_bytes // 16
    assert all(sorted(found) == list(range(8)) for found in slots.values())
    assert all(len(found) == 1 for found in places.values())  # one column (row) of chunks


# --------------------------------------------------------------------- tiles


def operand(swizzle, bits, major, shape):
    encoding = NVMMAShared(swizzle, bits, transposed=major == "MN")
    return nvmma_shared_to_linear_layout(shape, encoding)


def test_tile_picture_of_seed_002_k_major():
    """Seed 002, Sec. 2, 3.1 and 3.4: 16x2 atoms, 2x8 MMA subtiles and their start addresses."""
    atom = SwizzleAtom("K", 128, 16)
    layout = operand(128, 16, "K", (128, 128))
    picture = Picture(tile_svg(layout, 16, atom=atom, instruction=(64, 16)))
    inset = 1.5  # the outlines of neighbours stand apart
    atoms = grid(
        {
            **box,
            "x": box["x"] - inset,
            "y": box["y"] - inset,
            "width": box["width"] + 2 * inset,
            "height": box["height"] + 2 * inset,
        }
        for box in picture.of("outline")
        if "atom-row" in box
    )
    assert (len(atoms), len(atoms[0])) == (16, 2)
    for m, k in itertools.product(range(16), range(2)):
        assert atoms[m][k]["label"] == str(m * 1024 + k * 16384)
    subtiles = grid(picture.of("subtile", **{"subtile-row": 0})) + grid(
        picture.of("subtile", **{"subtile-row": 1})
    )
    assert [[box["byte"] for box in row] for row in subtiles] == [
        [0, 32, 64, 96, 16384, 16416, 16448, 16480],
        [8192, 8224, 8256, 8288, 24576, 24608, 24640, 24672],
    ]
    assert "(1,7) +24672" in picture.texts
    chunks = grid(box for box in picture.of("chunk") if "row" in box)
    assert (len(chunks), len(chunks[0])) == (16, 16)
    # An MMA subtile is 8x2 chunks of 8x16 bytes (Sec. 3.3), and spans 8 atoms along M.
    assert subtiles[0][0]["height"] == pytest.approx(8 * chunks[0][0]["height"])
    assert subtiles[0][0]["width"] == pytest.approx(2 * chunks[0][0]["width"])


def test_tile_picture_of_seed_002_mn_major():
    """Seed 002, Sec. 4.1 and 4.4: 4x16 atoms and the start addresses of the MMA subtiles."""
    atom = SwizzleAtom("MN", 64, 16)
    layout = operand(64, 16, "MN", (128, 128))
    picture = Picture(tile_svg(layout, 16, atom=atom, instruction=(64, 16)))
    atoms = [box for box in picture.of("outline") if "atom-row" in box]
    assert len(atoms) == 64
    for box in atoms:
        m, k = box["atom-row"] // 32, box["atom-column"] // 8
        assert int(box["label"]) == m * 8192 + k * 512
    bytes_of = {
        (box["subtile-row"], box["subtile-column"]): box["byte"]
        for box in picture.of("subtile")
        if "byte" in box
    }
    table = [
        [0, 1024, 2048, 3072, 4096, 5120, 6144, 7168],
        [16384, 17408, 18432, 19456, 20480, 21504, 22528, 23552],
    ]
    assert bytes_of == {(m, k): table[m][k] for m in range(2) for k in range(8)}


TILES = {
    "swizzle 0": (operand(0, 16, "K", (64, 64)), 16),
    "fp32 MN-major": (operand(32, 32, "MN", (32, 64)), 32),
    "rank 1": (nvmma_shared_to_linear_layout((256,), NVMMAShared(0, 8, rank=1)), 8),
    "rank 3": (nvmma_shared_to_linear_layout((2, 16, 64), NVMMAShared(64, 16, rank=3)), 16),
    "two blocks": (
        nvmma_shared_to_linear_layout((32, 64), NVMMAShared(128, 16, cga_layout=((1, 0),))),
        16,
    ),
    "fp4, padded": (nvmma_shared_to_linear_layout((8, 64), NVMMAShared(128, 8, False, True)), 8),
    "swizzled_shared": (SwizzledShared(4, 1, 4, (1, 0)).to_linear_layout((16, 32)), 16),
    "by columns": (SharedLinear(((4, 0), (0, 1), (2, 0), (1, 0), (0, 2))).to_linear_layout(), 16),
}


CELLS = dict(zip((layout for layout, _ in TILES.values()), (8, 4, 16, 8, 8, 8, 4, 1), strict=True))


def assert_places(boxes, layout):
    """Each box stands at the coordinates that its offset has."""
    for box in boxes:
        point = {"offset": box["offset"]}
        if "block" in layout.in_dims:
            point["block"] = box.get("block", 0)
        place = list(layout.apply(point).values())
        assert (0, *place)[-2:] == (box["row"], box["column"])
        assert not any(place[:-2])


@pytest.mark.parametrize(("layout", "bits"), TILES.values(), ids=TILES)
def test_tile_picture_of_any_layout(layout, bits):
    picture = Picture(tile_svg(layout, bits))
    boxes = [box for box in picture.of("chunk") if "offset" in box]
    assert_places(boxes, layout)
    sizes = (1, *layout.out_dims.values())[-2:]
    table = grid(boxes)
    step = [
        min((box[name] for box in boxes if box[name]), default=size)
        for name, size in zip(("row", "column"), sizes, strict=True)
    ]
    shown = [min(32, size // cell) for size, cell in zip(sizes, step, strict=True)]
    assert [len(table), len(table[0])] == shown
    cut = any(count * cell < size for count, cell, size in zip(shown, step, sizes, strict=True))
    assert cut == ("Cut" in " ".join(picture.texts))
    assert step[0] * step[1] == CELLS[layout]
    for box in boxes:  # the elements of a cell lie in order
        for i, j in itertools.product(range(step[0]), range(step[1])):
            place = [0] * (len(layout.out_dims) - 2) + [box["row"] + i, box["column"] + j]
            point = dict(zip(layout.out_dims, place[-len(layout.out_dims) :], strict=True))
            found = layout.pseudoinvert().apply(point)
            assert found["offset"] == box["offset"] + i + j
    for row in table:
        for box in row:
            assert fill(box) == f"fill{box['offset'] * bits // 8 % 128 // 16}"
            expected = str(box["offset"])
            assert box["label"] in (expected, f"{box.get('block')}:{expected}")


@given(surjective_layouts(), st.sampled_from((8, 16, 32)))
@settings(max_examples=60)
def test_tiles_of_random_layouts(layout, bits):
    """Whatever reaches every coordinate can be drawn, with each element at its place."""
    inverse = layout.pseudoinvert()
    for box in Picture(tile_svg(layout, bits)).of("chunk"):
        if "offset" in box:
            place = [0] * 3 + [box["row"], box["column"]]
            names = list(layout.out_dims)
            found = inverse.apply(dict(zip(names, place[-len(names) :], strict=True)))
            assert (found["offset"], found["block"]) == (box["offset"], box.get("block", 0))
    Picture(banks_svg(layout, bits))
    assert "<svg" in dump_html(LayoutDump("tile", "#random", layout, None, bits))


@given(layouts(), st.sampled_from((8, 16, 32)))
@settings(max_examples=60)
def test_random_layouts_raise_only_layout_errors(layout, bits):
    for draw in (lambda: tile_svg(layout, bits), lambda: tensor_memory_svg(layout)):
        with contextlib.suppress(LayoutError):
            Picture(draw())


def test_a_cell_stays_in_one_block():
    """Two blocks of 2 elements each: no cell has elements of both, in a picture or on a page."""
    layout = LinearLayout({"offset": [(0, 1)], "block": [(0, 2)]}, {"dim0": 1, "dim1": 4})
    boxes = [box for box in Picture(tile_svg(layout, 8)).of("chunk") if "offset" in box]
    assert [(box["column"], box["block"]) for box in boxes] == [(0, 0), (2, 1)]
    assert "of the first of 2 along dim1" in draw_grid(layout, 8)
    # A basis of the block that moves by less than a run permutes the elements of some runs.
    mixed = LinearLayout({"offset": [(1, 0), (2, 0)], "block": [(1, 1)]}, {"dim0": 4, "dim1": 2})
    assert "of the first" not in draw_grid(mixed, 8)


def test_large_tile_is_cut_with_a_note():
    layout = operand(128, 16, "K", (1024, 512))
    svg = tile_svg(layout, 16, atom=SwizzleAtom("K", 128, 16), instruction=(64, 16))
    picture = Picture(svg)
    assert "Cut: the first 256x256 of 1024x512 are drawn." in picture.texts
    assert len([box for box in picture.of("chunk") if "offset" in box]) == 32 * 32
    assert len(svg) < 600_000
    assert "Cut: 5 of 8192 lines are drawn." in Picture(banks_svg(layout, 16, max_lines=5)).texts


# --------------------------------------------------------------------- banks


@pytest.mark.parametrize(("layout", "bits"), TILES.values(), ids=TILES)
def test_bank_picture(layout, bits):
    picture = Picture(banks_svg(layout, bits, max_lines=4))
    boxes = picture.of("chunk")
    assert_places(boxes, layout)
    left = min(box["x"] for box in boxes)
    top = min(box["y"] for box in boxes)
    for box in boxes:
        byte = box["offset"] * bits // 8
        assert box["bank"] == byte % 128 // 4
        bank_width = 20
        assert box["x"] - left == pytest.approx(byte % 128 * bank_width / 4)
        assert (box["y"] - top) / box["height"] == pytest.approx(byte // 128)


def test_seed_003_linear_layout_has_2_way_conflicts():
    """Seed 003, Sec. 4: M=8, K=32B; the linear layout keeps a subtile in half of the banks."""
    linear = operand(0, 16, "K", (8, 16))
    swizzled = operand(32, 16, "K", (8, 16))
    for layout, count in ((linear, 4), (swizzled, 8)):
        found = {}
        for box in Picture(banks_svg(layout, 16, colour_by="column")).of("chunk"):
            found.setdefault(fill(box), []).append(box["bank"])
        assert len(found) == 2  # grey and red
        for used in found.values():
            assert len(used) == 8
            assert len(set(used)) == count
            assert max(map(used.count, used)) == 8 // count


# ------------------------------------------------------------- tensor memory

TENSOR_MEMORY = {
    "M=128": accumulator_layout(128, 256),
    "M=64": accumulator_layout(64, 128),
    "M=128, 16 bits, packed": accumulator_layout(128, 64, 16, packed=True),
    "A, 16 bits": operand_a_layout(128, 64, 16),
    "two CTAs": accumulator_layout(256, 128, cta_group=2),
    "32 lanes": LinearLayout(
        {
            "lane": [(1 << bit, 0) for bit in range(5)],
            "column": [(0, 1 << bit) for bit in range(6)],
        },
        {"dim0": 32, "dim1": 64},
    ),
    "by columns": LinearLayout(
        {
            "lane": [(0, 1 << bit) for bit in range(7)],
            "column": [(1 << bit, 0) for bit in range(4)],
        },
        {"dim0": 16, "dim1": 128},
    ),
}


@pytest.mark.parametrize("layout", TENSOR_MEMORY.values(), ids=TENSOR_MEMORY)
def test_tensor_memory_picture(layout):
    picture = Picture(tensor_memory_svg(layout))
    boxes = [box for box in picture.of("chunk") if "lane" in box]
    left, top = min(box["x"] for box in boxes), min(box["y"] for box in boxes)
    seen = {}
    for box in boxes:
        point = dict.fromkeys(layout.in_dims, 0) | {"lane": box["lane"], "column": box["column"]}
        place = tuple(layout.apply(point).values())
        assert box["first"] == ",".join(map(str, place))
        assert (box["y"] - top) / 5 == box["lane"]
        seen.setdefault(place, []).append("unused" in box["kind"])
    assert left < 100
    # What is not dashed holds each part of the tensor once.
    assert all(flags.count(False) == 1 for flags in seen.values())
    lanes = sum(box["height"] for box in boxes if box["column"] == 0) / 5
    assert lanes == layout.in_dims["lane"]
    if layout.in_dims["lane"] < 128:
        (rest,) = [box for box in picture.of("unused") if "lane" not in box]
        assert rest["title"] == f"lanes {layout.in_dims['lane']} to 127 are not used"
        assert rest["y"] + rest["height"] == top + 128 * 5


def test_tensor_memory_picture_shows_ranges():
    layout = TENSOR_MEMORY["M=128"]
    picture = Picture(tensor_memory_svg(layout))
    (box,) = [box for box in picture.of("chunk") if (box["lane"], box["column"]) == (32, 64)]
    assert box["label"] == "32-63, 64-95"


def test_irregular_tensor_memory_is_cut():
    layout = LinearLayout(
        {
            "lane": [(0, 1 << (6 - bit)) for bit in range(7)],
            "column": [(1 << (8 - bit), 0) for bit in range(9)],
        },
        {"dim0": 512, "dim1": 128},
    )
    picture = Picture(tensor_memory_svg(layout))
    assert len(picture.of("chunk")) == 1024
    assert "Cut: the first 8 of 512 columns are drawn." in picture.texts


# ------------------------------------------------------------------ descriptors


def bits_of(picture, width):
    """The digits as they are read, the highest bit first; checks that they stand in that order."""
    boxes = sorted(
        (box for box in picture.of("bit") if "bit" in box), key=lambda box: (box["y"], box["x"])
    )
    assert [box["bit"] for box in boxes] == list(reversed(range(width)))
    return int("".join(box["label"] for box in boxes), 2)


def outlined_bits(picture):
    """The bits inside a red outline."""
    found = set()
    for mark in picture.of("bad"):
        for box in picture.of("bit"):
            if "bit" in box and (box["x"] + 1, box["y"] + 1) == (mark["x"], mark["y"]):
                found.add(box["bit"])
    return found


@given(st.integers(0, (1 << 64) - 1), st.sampled_from([90, 100]))
@settings(max_examples=60)
def test_descriptor_picture_of_any_number(value, arch):
    """Every bit at its place and with its field; whatever is illegal is outlined and said."""
    picture = Picture(descriptor_svg(value, arch))
    assert bits_of(picture, 64) == value
    for box in picture.of("bit"):
        if "bit" not in box:
            continue
        first, bits = FIELDS[arch].get(box["field"], (box["bit"], 1))
        assert first <= box["bit"] < first + bits
        assert (box["field"] == "reserved") == all(
            not first <= box["bit"] < first + bits for first, bits in FIELDS[arch].values()
        )
    wrong = problems(value, arch)
    said = " ".join(picture.texts)
    assert all(problem in said for problem in wrong)
    assert bool(outlined_bits(picture)) == bool(wrong)
    for first, bits in FIELDS[arch].values():
        marked = outlined_bits(picture) & set(range(first, first + bits))
        assert len(marked) in (0, bits)


def test_descriptor_picture_explains_the_fields():
    picture = Picture(descriptor_svg(0x4000404000010000, "sm_100"))
    for text in (
        "start address: 0 x 16 = 0x0",
        "leading dimension byte offset (LBO): 1 x 16 = 16 bytes",
        "stride dimension byte offset (SBO): 64 x 16 = 1024 bytes",
        "version: 1, a constant",
        "LBO mode: the LBO is relative to the start address",
        "swizzle: 128 bytes wide, 16 bytes move as a whole",
    ):
        assert text in picture.texts
    assert not picture.of("bad")
    wrong = Picture(descriptor_svg(0x7000404000014000, "sm_100"))
    assert outlined_bits(wrong) == {61, 62, 63, 60, 14}
    shifted = SmemDescriptor(90, 128, 0, 0, 64, base_offset=1).encode()
    texts = Picture(descriptor_svg(shifted, 90)).texts
    assert "base offset: the pattern starts 1 x 128 bytes after a multiple of its size" in texts


@pytest.mark.parametrize("kind", KINDS)
def test_instruction_descriptor_picture(kind):
    found = KINDS[kind]
    legal = {"m": 128, "n": 64, "a_type": next(iter(found.operands)), "b_major": "K"}
    own = InstructionDescriptor(
        kind, legal["m"], legal["n"], legal["a_type"], legal["a_type"],
        "f32" if found.block_scaled or "f32" in found.accumulators else "s32",
        **({"scale_type": next(iter(found.scales))} if found.scales else {}),
    )  # fmt: skip
    value = own.encode()
    picture = Picture(instruction_descriptor_svg(value, kind))
    assert bits_of(picture, 32) == value
    assert {"M = 128: 8 x 16", "N = 64: 8 x 8", f"type of A: {own.a_type}"} <= set(picture.texts)
    if kind == "f16":
        named = {box["field"] for box in picture.of("bit") if "field" in box}
        assert named == {*DENSE_FIELDS, "reserved"}


OPERANDS = {
    "K-major, 128B": (SwizzleAtom("K", 128, 16), (128, 128), (64, 16)),
    "MN-major, 64B": (SwizzleAtom("MN", 64, 16), (128, 128), (64, 16)),
    "K-major, none": (SwizzleAtom("K", 0, 16), (64, 64), (64, 16)),
    "MN-major, none": (SwizzleAtom("MN", 0, 16), (128, 32), (64, 16)),
    "K-major, 8 bits": (SwizzleAtom("K", 64, 8), (256, 64), (256, 32)),
    "K-major, 32 bits": (SwizzleAtom("K", 32, 32), (64, 16), (64, 8)),
}


def arrows(svg):
    """(from, to, kind) of each arrow, without the heads."""
    root = ElementTree.fromstring(svg)
    found = []
    for path in root.iter(NAMESPACE + "path"):
        kind = path.get("class").split()
        match = re.fullmatch(r"M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)", path.get("d"))
        if "arrow" in kind and match:
            x, y, to_x, to_y = map(float, match.groups())
            found.append(((x, y), (to_x, to_y), "unused" in kind))
    return found


@pytest.mark.parametrize(("atom", "tile", "instruction"), OPERANDS.values(), ids=OPERANDS)
def test_operand_picture(atom, tile, instruction):
    """Four levels, each box with the byte that the layout has; LBO and SBO from part to part."""
    layout = stacked_atoms(atom, tile)
    derived = derive_operand(layout, atom.element_bitwidth, instruction, arch=100)
    own = derived.descriptor
    svg = operand_svg(layout, derived)
    picture = Picture(svg)
    assert bits_of(picture, 64) == own.encode()
    inverse = layout.invert()
    for level, count in (
        ("element", 1024 // atom.element_bitwidth),
        ("atom", 8 * atom.row_bytes // 16),
    ):
        boxes = picture.of("chunk", level=level)
        assert len(boxes) == count
        grid(boxes)
    for box in picture.of("chunk"):
        if box.get("level") is not None:
            offset = inverse.apply(dim0=box["row"], dim1=box["column"])["offset"]
            assert box["byte"] == offset * atom.element_bitwidth // 8
    parts = {(box["row"], box["column"]): box for box in picture.of("chunk", level="subtile")}
    rows = sorted({row for row, _ in parts})
    columns = sorted({column for _, column in parts})
    assert rows[-1] < instruction[0]
    assert columns[-1] < instruction[1]
    # The arrows lead from the first part to the next; the distance is written beside them.
    drawn = arrows(svg)
    assert len(drawn) == (len(rows) > 1) + (len(columns) > 1)
    for (x, y), (to_x, _), unused in drawn:
        down = x == to_x
        steps = [
            one for one in parts.values()
            if (one["y"] <= y < one["y"] + one["height"] if down
                else one["x"] <= x < one["x"] + one["width"])
            and not (one["column"] if down else one["row"])
        ]  # fmt: skip
        assert min(step["byte"] for step in steps) == 0
        second = parts[(rows[1], 0) if down else (0, columns[1])]
        name = {True: "SBO", False: "LBO"}[down == (atom.major == "K" or not atom.row_bytes > 16)]
        assert f"{name} {second['byte']}" in picture.texts
        assert unused == (name == "LBO" and not derived.uses_leading)
        value = own.stride_byte_offset if name == "SBO" else own.leading_byte_offset
        assert value == second["byte"]
    subtiles = {
        (box["subtile-row"], box["subtile-column"]): box["byte"]
        for box in picture.of("subtile")
        if "byte" in box
    }
    assert subtiles == {
        (i, j): advance for i, row in enumerate(derived.advances) for j, advance in enumerate(row)
    }


@given(
    st.sampled_from([atom for atom in ATOMS if atom.element_bitwidth <= 32]),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.integers(2, 8), st.integers(2, 6)),
    st.sampled_from([(0, 1), (1, 0)]),
    st.sampled_from([90, 100]),
)
@settings(max_examples=80)
def test_any_operand_is_drawn_or_refused(atom, repeats, instruction, order, arch):
    """Nothing but LayoutError; and what is drawn has every advance, where it is not cut."""
    rows, columns = (size << more for size, more in zip(atom.shape, repeats, strict=True))
    layout = stacked_atoms(atom, (rows, columns), order)
    shape = (1 << instruction[0], 1 << instruction[1])
    with contextlib.suppress(LayoutError):
        derived = derive_operand(layout, atom.element_bitwidth, shape, arch=arch)
        picture = Picture(operand_svg(layout, derived))
        drawn = {box["byte"] for box in picture.of("subtile") if "byte" in box}
        advances = {advance for row in derived.advances for advance in row}
        assert drawn <= advances
        assert drawn == advances or any(text.startswith("Cut") for text in picture.texts)


def test_operand_b_is_drawn_with_n_down():
    """B as (K, N): its second dimension is N."""
    layout = operand(128, 16, "MN", (64, 128))  # dim0 (K) contiguous: K-major
    derived = derive_operand(layout, 16, (64, 16), arch=90, mn_dim=1)
    picture = Picture(operand_svg(layout, derived, mn_dim=1))
    assert derived.major == "K"
    assert "dim1 down, dim0 across" in picture.texts
    advances = [box["byte"] for box in picture.of("subtile", **{"subtile-row": 0})]
    assert advances == list(derived.advances[0])


def test_operand_with_32_byte_atomicity_is_refused():
    own = SmemDescriptor(100, 0, 0, 512, 128, 32)
    layout = LinearLayout(
        {"offset": [tuple(basis) for basis in _wide_atom_bases(own)]}, {"dim0": 32, "dim1": 8}
    )
    derived = derive_operand(layout, 32, (32, 8), arch=100)
    assert derived.descriptor.atomicity == 32
    with pytest.raises(LayoutError, match="only 16-byte atomicity is drawn"):
        operand_svg(layout, derived)


def _wide_atom_bases(own):
    """The bases of 32 x 8 fp32 elements, MN-major, as the descriptor says that they lie."""
    addresses = {
        (mn, k): own.element_address(mn, k, 32, "MN") // 4 for mn in range(32) for k in range(8)
    }
    places = {offset: place for place, offset in addresses.items()}
    return [places[1 << bit] for bit in range(8)]


# ----------------------------------------------------------------- accesses


@given(
    st.lists(st.one_of(st.none(), st.integers(0, 63)), min_size=1, max_size=32).filter(any),
    st.sampled_from([2, 4, 8, 16]),
)
@settings(max_examples=60)
def test_bank_access_picture(units, access_bytes):
    """Each word that is touched, once, at its bank, with its lanes; outlined where they collide."""
    report = warp_access(
        [None if unit is None else unit * access_bytes for unit in units], access_bytes
    )
    picture = Picture(bank_access_svg("access", report))
    boxes = picture.of("chunk")
    words = {
        (offset + at) // 4
        for offset in report.offsets
        if offset is not None
        for at in range(0, access_bytes, 2)
    }
    assert sorted(32 * box["line"] + box["bank"] for box in boxes) == sorted(words)
    for box in boxes:
        word = 4 * (32 * box["line"] + box["bank"])
        lanes = [int(lane) for lane in str(box["lanes"]).split(", ")]
        assert sorted(lanes) == [
            lane
            for lane, offset in enumerate(report.offsets)
            if offset is not None and offset < word + 4 and offset + access_bytes > word
        ]
    collide = {word for conflict in report.conflicts for word in conflict.words}
    assert len(picture.of("bad")) == len(collide)
    assert f"{str(report).capitalize()}." in " ".join(picture.texts)


@pytest.mark.parametrize("name", [name for name in ACCESS_SHAPES if name != "16x32bx2"])
def test_transfer_picture(name):
    """Every thread and register of warp 0, at the lane and column that the transfer says."""
    layout = accumulator_layout(64 if name.startswith("16") else 128, 32)
    transfer = plan_transfer(layout, name)
    picture = Picture(transfer_svg(layout, transfer))
    boxes = [box for box in picture.of("chunk") if "thread" in box]
    grid(boxes)
    assert {box["thread"] for box in boxes} == set(range(32))
    for box in boxes:
        point = {"slot": 0, "register": box["register"], "thread": box["thread"], "warp": 0}
        cell = transfer.layout.apply(point)
        assert (cell["lane"], cell["column"]) == (box["lane"], box["column"])
        assert box["label"] == f"T{box['thread']} r{box['register']}"
        element = transfer.elements.apply(point)
        assert box["title"].endswith(f"dim0 {element['dim0']}, dim1 {element['dim1']}")


def test_holes_of_tensor_memory_have_no_numbers():
    """M = 64: lanes 16 to 31 of each warp hold nothing; a copy has numbers."""
    picture = Picture(tensor_memory_svg(TENSOR_MEMORY["M=64"]))
    holes = picture.of("unused")
    assert {box["lane"] for box in holes} == {16, 48, 80, 112}
    assert not any(box["label"] for box in holes)
    assert "Dashed, without numbers: nothing." in picture.texts
    copied = LinearLayout(
        {"lane": [(1 << bit, 0) for bit in range(6)] + [(0, 0)],
         "column": [(0, 1 << bit) for bit in range(3)]},
        {"dim0": 64, "dim1": 8},
    )  # fmt: skip
    copies = Picture(tensor_memory_svg(copied))
    assert all(box["label"] for box in copies.of("unused") if box["height"] >= 12)
    assert "Dashed, with numbers: a copy of other cells." in copies.texts


# ----------------------------------------------------------------- the commands


@pytest.mark.parametrize(
    ("command", "arguments", "title"),
    [
        (descriptor, "0x4000404000010000", "Matrix descriptor 0x4000404000010000 on sm_100"),
        (descriptor, "0x08200490 --kind f16", "Instruction descriptor 0x08200490, kind::f16"),
        (
            descriptor,
            "--swizzle 128 --bits 16 --shape 64x64",
            "Matrix descriptor 0x4000404000010000 on sm_100; 1. Chunk; 2. Atom; 3. MMA subtile;"
            " 4. Tile of 64x64: K-major, 128B swizzle (Swizzle<3, 4, 3>), 16-bit elements",
        ),
        (tmem, "--m 128 --n 32", "Tensor memory: 128x32 over 128 lanes x 32 columns"),
        (
            tmem,
            "--m 128 --n 32 --load 32x32b",
            "Tensor memory: 128x32 over 128 lanes x 32 columns;"
            " tcgen05.ld.sync.aligned.32x32b.x32.b32 by warp 0",
        ),
        (banks, "--swizzle 0 --bits 16 --shape 8x64", "K-major chunk at (0, 0) of a tile of 8x64"),
        (
            banks,
            "--swizzle 64 --bits 16 --shape 64x64 --access st.shared --width 4",
            "st.shared of 4 bytes a lane of a tile of 64x64",
        ),
        (
            banks,
            "--swizzle 64 --bits 16 --shape 16x32 --access fill",
            "Banks of shared memory, coloured by row",
        ),
        (banks, "--offsets 0,128,256,384 --width 16", "a warp's access"),
    ],
)
def test_commands_draw(command, arguments, title):
    result = CliRunner().invoke(command, [*arguments.split(), "--format", "svg"])
    assert result.exit_code == 0, result.output
    assert Picture(result.output).root.get("aria-label") == title


def test_descriptor_command_writes_pages():
    for arguments in (
        "0x7000404000014000",
        "0x08200490 --kind f16",
        "--swizzle 64 --bits 8 --shape 128x128 --transposed --operand b",
    ):
        result = CliRunner().invoke(descriptor, [*arguments.split(), "--format", "html"])
        assert result.exit_code == 0, result.output
        assert result.output.startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        (tmem, "--address 0x00200010", "draws a matrix, not an --address alone"),
        (descriptor, "0x0 --kind tf32", "a_type = 0: must be one of [2]"),
        (descriptor, "--bits 16 --shape 64x64 --kind f16", "--kind is for a value to decode"),
        (descriptor, "0x1ffffffffffffffff", "descriptor"),
        (descriptor, "twelve --kind f16", "must be a number"),
    ],
)
def test_commands_that_cannot_draw(command, arguments, said):
    result = CliRunner().invoke(command, [*arguments.split(), "--format", "svg"])
    assert result.exit_code != 0
    assert said in result.output + str(result.exception)


# --------------------------------------------------------------------- dumps


def test_dump_pictures():
    atom = Picture(dump_svg(dump_encoding(NVMMAShared(64, 8, transposed=True), core=True)))
    assert atom.root.get("aria-label") == "MN-major atom, 64-byte swizzle, 8-bit elements"
    tile = Picture(dump_svg(dump_encoding(NVMMAShared(128, 16), (128, 128))))
    assert len([box for box in tile.of("subtile") if "byte" in box]) == 16
    assert len([box for box in tile.of("outline") if "atom-row" in box]) == 32
    assert "Banks of shared memory, coloured by row" in tile.texts
    disabled = dump_encoding(NVMMAShared(128, 16), (64, 64), disable_swizzle=True)
    assert not Picture(dump_svg(disabled)).of("outline")  # not the documented atom
    linear = SharedLinear(((0, 1), (0, 2), (0, 4), (1, 0), (2, 0)))
    given_width = Picture(dump_svg(dump_encoding(linear, element_bitwidth=16)))
    assert len([box for box in given_width.of("chunk") if "byte" in box]) == 4
    wider = dump_svg(dump_encoding(NVMMAShared(128, 16), (128, 128)), instruction=(128, 16))
    assert len([box for box in Picture(wider).of("subtile") if "byte" in box]) == 8


def test_dump_of_several_ranks_and_blocks():
    for encoding, shape in (
        (NVMMAShared(0, 8, rank=1), (64,)),
        (NVMMAShared(128, 16, rank=3, cga_layout=((0, 1, 0),)), (2, 32, 64)),
        (NVMMAShared(128, 8, fp4_padded=True), (128, 64)),
        (NVMMAShared(128, 16), (64, 64)),
    ):
        dump = dump_encoding(encoding, shape)
        Picture(dump_svg(dump))
        assert "explorer" not in dump_html(dump)


def test_names_are_escaped():
    name = '<script>alert("&")</script>'
    layout = LinearLayout({"offset": [(0, 1), (0, 2), (1, 0)]}, {name: 2, "dim1": 4})
    svg = tile_svg(layout, 16)
    assert "<script" not in svg
    assert any(name in text for text in Picture(svg).texts)
    page = dump_html(LayoutDump("tile", name, layout, None, 16, alias=name))
    assert page.count("<script") == 2  # the data and the script
    assert embedded(page)["configurations"][0]["names"] == [name, "dim1"]


@pytest.mark.parametrize(
    ("draw", "argument"),
    [
        (lambda: atom_svg("K"), "atom"),
        (lambda: tile_svg(None, 16), "layout"),
        (lambda: tile_svg(LinearLayout.empty(), 16), "layout"),
        (lambda: tile_svg(LinearLayout.identity_1d(8, "lane", "dim0"), 16), "layout"),
        (lambda: tile_svg(LinearLayout.identity_1d(8, "offset", "dim0"), 12), "element_bitwidth"),
        (lambda: tile_svg(LinearLayout.strided_1d(8, 2, "offset", "dim0"), 8), "outer"),
        (lambda: tile_svg(TILES["swizzle 0"][0], 16, atom=SwizzleAtom("K", 128, 16)), "atom"),
        (lambda: tile_svg(TILES["rank 1"][0], 8, atom=SwizzleAtom("K", 0, 8)), "atom"),
        (lambda: tile_svg(TILES["swizzle 0"][0], 16, instruction=(64,)), "instruction"),
        (lambda: tile_svg(TILES["swizzle 0"][0], 16, instruction=(128, 16)), "instruction"),
        (lambda: tile_svg(TILES["swizzle 0"][0], 16, instruction=(64, 4)), "instruction"),
        (lambda: tile_svg(TILES["swizzle 0"][0], 16, instruction=(48, 16)), "instruction"),
        (lambda: banks_svg(TILES["swizzle 0"][0], 16, colour_by="bank"), "colour_by"),
        (lambda: banks_svg(TILES["swizzle 0"][0], 16, max_lines=0), "max_lines"),
        (lambda: tensor_memory_svg(TILES["swizzle 0"][0]), "layout"),
        (lambda: tensor_memory_svg("M=128"), "layout"),
        (lambda: dump_svg(LayoutDump("tile", "#x", None, error="no such encoding")), "layout"),
        (lambda: dump_html(LayoutDump("tile", "#x", None, error="no such encoding")), "layout"),
        (
            lambda: dump_svg(dump_encoding(SwizzledShared(8, 1, 8, (1, 0)), (8, 64))),
            "element_bitwidth",
        ),
        (lambda: explorer_html([(64, 48)]), "shape[1]"),
        (lambda: explorer_html(shape=(32, 32)), "selected"),
        (lambda: explorer_html(element_bitwidth=64), "selected"),
    ],
)
def test_errors(draw, argument):
    with pytest.raises(LayoutError) as caught:
        draw()
    assert caught.value.argument == argument


# ------------------------------------------------------- style, without a browser


def luminance(colour):
    """WCAG 2.2, "relative luminance"."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_contrast(theme):
    """WCAG 2.2: 4.5 for text, 3 for outlines."""
    for ground in (*theme.fills, theme.ground, theme.panel):
        assert contrast(theme.ink, ground) >= 4.5, ground
    for text in (theme.faint, theme.subtile):
        assert contrast(text, theme.ground) >= 4.5
    assert contrast(theme.faint, theme.panel) >= 4.5
    for line in (theme.atom, theme.other_atom, theme.subtile):
        assert contrast(line, theme.ground) >= 3
    assert len(set(theme.fills)) == 8


def test_svg_is_accessible_and_follows_the_colour_scheme():
    svg = atom_svg(SwizzleAtom("K", 128, 16))
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    assert root.get("aria-label") == "K-major atom, 128-byte swizzle, 16-bit elements"
    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"
    assert "9 8 11 10 13 12 15 14" in root.findtext(NAMESPACE + "desc")
    assert "prefers-color-scheme: dark" in svg
    assert all(colour in svg for colour in (*LIGHT.fills, *DARK.fills))


def embedded(page):
    return json.loads(re.search(r'type="application/json" id="data">(.*?)</script>', page, re.S)[1])


@pytest.mark.parametrize(
    "text",
    [explorer_html(), dump_html(dump_encoding(NVMMAShared(128, 16), (64, 64))),
     atom_svg(SwizzleAtom("K", 128, 16)), descriptor_html(0x4000404000010000, 100)],
    ids=["explorer", "dump", "svg", "descriptor"],
)  # fmt: skip
def test_no_external_references(text):
    addresses = set(re.findall(r"[a-z]+://[^\s\"'<>)]*", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, which nothing loads
    assert re.findall(r"(?:src|href|action|data)=\"([^\"]*)\"", text) in ([], ["data:,"])
    for word in (
        "@import",
        "url(",
        "fetch(",
        "XMLHttpRequest",
        "import(",
        "WebSocket",
        '<link rel="s',
    ):
        assert word not in text


def test_embedded_bases_are_those_of_the_conversion():
    """Every configuration of the page, swizzled, equals Triton's layout; its inverse is one."""
    data = embedded(explorer_html())
    legal = sum(
        not (contiguous * bits) % (8 * max(16, swizzle))
        for swizzle in (0, 32, 64, 128)
        for bits in (8, 16, 32)
        for rows, columns in ((64, 64), (128, 64), (128, 128), (64, 256))
        for contiguous in (rows, columns)
    )
    atoms, plain = 4 * 3 * 2, 3 * 2 * 4
    assert len(data["configurations"]) == legal + atoms + plain
    compared = 0
    for one in data["configurations"]:
        choices = one["choices"]
        rows, columns = one["shape"]
        layout = LinearLayout({"offset": one["offset"]}, {"dim0": rows, "dim1": columns})
        bits = int(choices["bits"])
        inverse = LinearLayout(
            {"dim0": [basis[:1] for basis in one["rows"]],
             "dim1": [basis[:1] for basis in one["columns"]]},
            {"offset": rows * columns},
        )  # fmt: skip
        assert layout.invert() == inverse
        swizzle = 0 if choices["swizzle"] == "rows" else int(choices["swizzle"])
        if swizzle or choices["swizzle"] == "rows":
            assert layout == operand(swizzle, bits, choices["major"], (rows, columns))
            compared += 1
        else:
            atom = SwizzleAtom(choices["major"], 0, bits)
            assert layout == stacked_atoms(atom, (rows, columns))
    assert compared > 100


def test_seed_004_core_matrices_without_a_swizzle():
    """Seed 004's numbers without a swizzle: SBO 128 and, with 64 rows, LBO 1024 bytes."""
    layout = stacked_atoms(SwizzleAtom("K", 0, 16), (64, 16)).invert()
    assert layout.apply(dim0=8, dim1=0) == {"offset": 64}  # 128 bytes
    assert layout.apply(dim0=0, dim1=8) == {"offset": 512}  # 1024 bytes


# ----------------------------------------------------------------- the browser


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    program = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    if program is None:
        pytest.skip("needs Chromium")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync"]
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=flags)
        yield started
        started.close()


@pytest.fixture(scope="module")
def explorer():
    return explorer_html()


@pytest.fixture
def open_page(browser, tmp_path):
    """Opens a page or picture offline; afterwards: no network was asked, no script failed."""
    contexts, requests, problems = [], [], []

    def open_text(text, width=1280, scheme="light"):
        path = tmp_path / f"{len(contexts)}.{'svg' if text.startswith('<svg') else 'html'}"
        path.write_text(text, encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
        )
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text))
        page.goto(path.as_uri())
        return page

    yield open_text
    for context in contexts:
        context.close()
    assert all(url.startswith(("file://", "data:")) for url in requests)
    assert not problems


def field(page, name):
    return page.locator(f'[data-field="{name}"]').text_content()


def fields(page):
    return page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('dd[data-field]')]"
        ".map((node) => [node.dataset.field, node.textContent]))"
    )


def choose(page, **choices):
    for name, value in choices.items():
        page.locator(f'label:has(input[name="{name}"][value="{value}"])').click()


def hover(page, view, point, atom):
    """Points at the middle of an element in a view, where its chunk is wide enough for that."""
    chunk = 128 // atom.element_bitwidth
    row, column = point
    along = 1 if atom.major == "K" else 0
    start = [row, column]
    start[along] -= start[along] % chunk
    place = page.locator(cell(view, *start)).first
    box = place.bounding_box()
    share = (point[along] - start[along] + 0.5) / chunk
    across = view == "memory" or atom.major == "K"
    shares = (share, 0.5) if across else (0.5, share)
    place.hover(position={"x": box["width"] * shares[0], "y": box["height"] * shares[1]})


def cell(view, row, column):
    return f'#{view} .cell[data-row="{row}"][data-column="{column}"]'


def memory_numbers(page):
    """The chunk numbers in the view of shared memory, line by line, as they are drawn."""
    drawn = page.evaluate(
        "[...document.querySelectorAll('#memory .cell')].map((r) =>"
        " [Number(r.getAttribute('y')), Number(r.getAttribute('x')), Number(r.dataset.chunk)])"
    )
    lines = {}
    for y, x, number in drawn:
        lines.setdefault(y, []).append((x, number))
    return [[number for _, number in sorted(line)] for _, line in sorted(lines.items())]


def expected_fields(layout, atom, point, instruction):
    """What the page must say of an element, from Python."""
    inverse = layout.invert()

    def byte(row, column):
        return inverse.apply(dim0=row, dim1=column)["offset"] * atom.element_bitwidth // 8

    def part(extent):
        index = [at // size for at, size in zip(point, extent, strict=True)]
        start = [i * size for i, size in zip(index, extent, strict=True)]
        return f"({index[0]}, {index[1]}) at {byte(*start)} B"

    chunk = 128 // atom.element_bitwidth
    inside = [at % size for at, size in zip(point, atom.shape, strict=True)]
    strided, contiguous = inside if atom.major == "K" else reversed(inside)
    address = byte(*point)
    return {
        "coordinate": f"({point[0]}, {point[1]})",
        "offset": str(inverse.apply(dim0=point[0], dim1=point[1])["offset"]),
        "byte": f"{address} ({address:#x})",
        "bank": str(address % 128 // 4),
        "chunk": str(strided * (atom.row_bytes // 16) + contiguous // chunk),
        "slot": f"{address // 16}, line {address // 128}",
        "atom": part(atom.shape),
        "unit": part((8, chunk) if atom.major == "K" else (chunk, 8)),
        "instruction": part(instruction),
        "wavefronts": "1: no conflict",
    }


@pytest.mark.parametrize(
    ("swizzle", "bits", "major", "points"),
    [
        (128, 16, "K", [(0, 0), (1, 8), (77, 40), (127, 120)]),
        (64, 16, "MN", [(0, 0), (8, 1), (104, 77), (120, 127)]),
        (32, 8, "K", [(3, 16), (66, 112)]),
        (128, 32, "MN", [(12, 5), (124, 90)]),
        (0, 16, "K", [(9, 24), (100, 64)]),
    ],
)
def test_hover_says_what_python_computes(open_page, explorer, swizzle, bits, major, points):
    """In the tile, then in each of the detailed views, at the middle of a chunk."""
    page = open_page(explorer)
    choose(page, swizzle=swizzle, bits=bits, major=major)
    atom = SwizzleAtom(major, swizzle, bits)
    layout = stacked_atoms(atom, (128, 128))
    chunk = 128 // bits
    instruction = (64, 256 // bits)
    for row, column in points:
        # In the tile a chunk is small: some element of it.
        page.locator(cell("tile", row, column)).hover()
        element = json.loads(field(page, "coordinate").replace("(", "[").replace(")", "]"))
        assert 0 <= element[0] - row < (1 if major == "K" else chunk)
        assert 0 <= element[1] - column < (chunk if major == "K" else 1)
        wanted = expected_fields(layout, atom, element, instruction)
        assert fields(page) == wanted
        page.mouse.move(2, 2)
        assert fields(page) == wanted  # it stays
        # The same chunk is ringed in every view, where that view draws it.
        for view in ("tile", "atom", "memory", "banks"):
            ring = page.locator(f"#{view} .cursor").bounding_box()
            parts = [part.bounding_box() for part in page.locator(cell(view, row, column)).all()]
            assert ring["x"] == pytest.approx(parts[0]["x"], abs=2)
            assert ring["y"] == pytest.approx(parts[0]["y"], abs=2)
            total = sum(part["width"] for part in parts)
            assert ring["width"] == pytest.approx(total, abs=4)
        assert page.locator("#atom .peer").count() == page.locator("#memory .peer").count() == 8
        for view, index in itertools.product(("atom", "memory"), (0, chunk // 2, chunk - 1)):
            element = (row, column + index) if major == "K" else (row + index, column)
            hover(page, view, element, atom)
            assert fields(page) == expected_fields(layout, atom, element, instruction)
    # A bank of the last chunk: its first element.
    bank = page.locator(cell("banks", row, column)).nth(2)
    bank.hover(position={"x": 1, "y": 2})
    per_bank = 32 // bits
    along = [row, column]
    along[1 if major == "K" else 0] += 2 * per_bank
    wanted = expected_fields(layout, atom, tuple(along), instruction)
    assert fields(page) == wanted
    assert bank.get_attribute("data-bank") == wanted["bank"]
    # Each element of the chunk.
    for index in range(chunk):
        page.locator("#elements button").nth(index).hover()
        along = [row, column]
        along[1 if major == "K" else 0] += index
        assert fields(page) == expected_fields(layout, atom, tuple(along), instruction)
        offset = int(field(page, "offset"))
        marked = page.locator("#bases li.on").evaluate_all(
            "(items) => items.map((item) => Number(item.dataset.bit))"
        )
        assert marked == [bit for bit in range(offset.bit_length()) if offset >> bit & 1]


def test_switching_shows_what_python_computes(open_page, explorer):
    """Every swizzle, width and major-ness: the picture of shared memory is the documented one."""
    page = open_page(explorer)
    choose(page, shape="64x256")
    pictures = set()
    for major, bits, swizzle in itertools.product(("K", "MN"), (8, 16, 32), (0, 32, 64, 128)):
        choose(page, major=major, bits=bits, swizzle=swizzle)
        atom = SwizzleAtom(major, swizzle, bits)
        shape = page.locator('input[name="shape"][value="64x256"]')
        if 64 % atom.shape[0]:
            assert field(page, "title") == "128x8, MN-major, 128-byte swizzle, 8-bit elements"
            assert shape.is_disabled()
            assert memory_numbers(page) == atom.chunk_table()
            continue
        if not shape.is_checked():  # it did not fit the choice before
            choose(page, shape="64x256")
        name = f"{swizzle}-byte swizzle" if swizzle else "no swizzle"
        assert field(page, "title") == f"64x256, {major}-major, {name}, {bits}-bit elements"
        assert field(page, "status") == ""
        assert memory_numbers(page) == atom.chunk_table() == CHUNK_PICTURES[swizzle]
        assert page.locator("#tile .cell").count() == 64 * 256 * bits // 128
        per_row = atom.row_bytes // 16
        fills = page.locator("#memory .cell").evaluate_all(
            "(all) => all.map((rect) => [Number(rect.dataset.chunk), rect.classList[1]])"
        )
        assert all(kind == f"fill{number % per_row}" for number, kind in fills)
        bases = page.locator("#bases li").all_text_contents()
        layout = stacked_atoms(atom, (64, 256))
        assert bases == [
            f"offset={1 << bit} → ({row}, {column})"
            for bit, (row, column) in enumerate(layout.bases["offset"])
        ]
        pictures.add(tuple(bases))
    assert len(pictures) == 23  # all but 8 bits, MN-major, 128 B: an atom is 128 x 8


def test_a_tile_that_does_not_fit_is_said(open_page, explorer):
    """64 columns of 8 bits are no row of a 128-byte atom: one atom is shown, and why."""
    page = open_page(explorer)
    choose(page, shape="64x64", bits=8)
    assert field(page, "title") == "8x128, K-major, 128-byte swizzle, 8-bit elements"
    assert field(page, "status").startswith("A tile of 64x64 does not hold whole atoms")
    assert page.locator('input[name="shape"][value="64x64"]').is_disabled()
    assert page.locator('input[name="shape"][value="atom"]').is_checked()
    choose(page, swizzle=64)
    assert field(page, "status") == ""
    assert page.locator('input[name="shape"][value="64x64"]').is_enabled()


def test_plain_rows_conflict(open_page, explorer):
    """Seed 003, Sec. 4: rows as they come. At 128 bytes a row, 8 chunks share a bank group."""
    page = open_page(explorer)
    choose(page, swizzle="rows", shape="64x64")
    page.locator(cell("tile", 5, 24)).hover()
    assert field(page, "wavefronts") == "8: 8-way conflict"
    assert field(page, "atom") == "none"
    choose(page, bits=8)  # 64 bytes a row
    assert field(page, "wavefronts") == "4: 4-way conflict"
    choose(page, swizzle=64)
    assert field(page, "wavefronts") == "1: no conflict"


@pytest.mark.parametrize("width", [400, 900, 1600])
def test_hovering_moves_nothing(open_page, explorer, width):
    page = open_page(explorer, width=width)
    page.evaluate(
        "window.shifts = 0; new PerformanceObserver((list) => list.getEntries().forEach("
        "(entry) => { window.shifts += entry.value; })).observe({type: 'layout-shift'})"
    )
    boxes = "[...document.querySelectorAll('section, #elements, dd, li, svg')].map((node) =>"
    boxes += " { const b = node.getBoundingClientRect(); return"
    boxes += " [b.x + scrollX, b.width, b.height, node.closest('.info') ? 0 : b.y + scrollY]; })"
    before = page.evaluate(boxes)
    for view, row, column in (
        ("tile", 0, 0), ("tile", 40, 96), ("atom", 44, 72), ("memory", 45, 64),
        ("banks", 47, 120), ("tile", 17, 8), ("elements", 0, 0),
    ):  # fmt: skip
        target = "#elements button:last-child" if view == "elements" else cell(view, row, column)
        page.locator(target).first.hover()
        assert page.evaluate(boxes) == before, view
    assert page.evaluate("window.shifts") == 0
    # Nothing sticks out of the page, and what the panel says is not cut off.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cut = "[...document.querySelectorAll('dd')].filter((dd) => dd.scrollWidth > dd.clientWidth)"
    assert page.evaluate(cut + ".length") == 0


def test_keyboard(open_page, explorer):
    page = open_page(explorer)
    page.locator('input[name="shape"][value="128x128"]').focus()
    page.keyboard.press("Tab")
    focused = "document.activeElement.ownerSVGElement?.id"
    assert page.evaluate(focused) == "tile"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert fields(page)["coordinate"] == "(1, 8)"
    assert (
        page.locator("#spoken").text_content()
        == "element (1, 8), offset 64, byte 128 (0x80), bank 0"
    )
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")  # the edge
    assert fields(page)["coordinate"] == "(0, 8)"
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "atom"
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "memory"
    page.keyboard.press("ArrowDown")  # the next line of 128 bytes, the same banks
    assert fields(page)["slot"] == "9, line 1"
    assert fields(page)["coordinate"] == "(1, 0)"
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "banks"
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert fields(page)["coordinate"] == "(1, 1)"
    assert page.evaluate("document.activeElement.className") == "on"


def rgb(colour):
    return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"


@pytest.mark.parametrize(("scheme", "theme"), [("light", LIGHT), ("dark", DARK)])
def test_colour_schemes(open_page, explorer, scheme, theme):
    page = open_page(explorer, scheme=scheme)
    style = "(node) => [getComputedStyle(node).backgroundColor, getComputedStyle(node).color]"
    assert page.locator("html").evaluate(style) == [rgb(theme.ground), rgb(theme.ink)]
    assert page.locator("section.tile").evaluate(style) == [rgb(theme.panel), rgb(theme.ink)]
    fill_of = "(node) => getComputedStyle(node).fill"
    page.locator(cell("tile", 0, 8)).hover()
    assert page.locator(cell("atom", 0, 8)).evaluate(fill_of) == rgb(theme.fills[1])
    picture = open_page(atom_svg(SwizzleAtom("K", 128, 16)), scheme=scheme)
    assert picture.locator(".ground").evaluate(fill_of) == rgb(theme.ground)
    chunk = picture.locator('[data-view="physical"][data-chunk="9"]')
    assert chunk.locator("rect").evaluate(fill_of) == rgb(theme.fills[1])
    assert chunk.locator("text").evaluate(fill_of) == rgb(theme.ink)


def operand_pictures(draw):
    """The picture or page of each of `OPERANDS`."""
    for atom, tile, instruction in OPERANDS.values():
        layout = stacked_atoms(atom, tile)
        yield draw(layout, derive_operand(layout, atom.element_bitwidth, instruction, arch=100))


def access_pictures():
    yield bank_access_svg("Conflicts", warp_access([128 * lane for lane in range(32)], 16))
    yield bank_access_svg("Pairs of 8 bytes", warp_access([8 * lane for lane in range(32)], 8))
    yield bank_access_svg("Broadcast", warp_access([0] * 32, 2))
    for m, name in ((64, "16x256b"), (128, "32x32b"), (64, "16x64b")):
        layout = accumulator_layout(m, 64)
        yield transfer_svg(layout, plan_transfer(layout, name))


@pytest.mark.parametrize(
    "svg",
    [
        *(atom_svg(atom) for atom in ATOMS if atom.element_bitwidth == 16),
        tile_svg(
            operand(0, 16, "K", (64, 8)), 16, atom=SwizzleAtom("K", 0, 16), instruction=(64, 8)
        ),
        tile_svg(operand(64, 16, "MN", (128, 128)), 16, atom=SwizzleAtom("MN", 64, 16)),
        tile_svg(*TILES["two blocks"]),
        tile_svg(*TILES["swizzle 0"], instruction=(64, 16)),
        banks_svg(*TILES["fp32 MN-major"]),
        tensor_memory_svg(TENSOR_MEMORY["M=64"]),
        dump_svg(dump_encoding(NVMMAShared(0, 16), (64, 64))),
        descriptor_svg(0x4000404000010000, 100),
        descriptor_svg((1 << 64) - 1, 100),
        descriptor_svg((1 << 64) - 1, 90),
        instruction_descriptor_svg(0x8200490, "f16"),
        *operand_pictures(operand_svg),
        *access_pictures(),
    ],
)
def test_texts_stay_inside_and_apart(open_page, svg):
    """No text leaves the picture or its box, and none lies over another."""
    page = open_page(svg)
    outside, over = page.evaluate(
        """() => {
          const view = document.documentElement.viewBox.baseVal;
          const out = (b) => b.x < 0 || b.y < 0 || b.x + b.width > view.width
            || b.y + b.height > view.height;
          const texts = [...document.querySelectorAll('text')];
          const boxes = texts.map((text) => text.getBBox());
          const labels = [...document.querySelectorAll('.chunk')].filter((g) => {
            const text = g.querySelector('text');
            return text && text.getBBox().width > g.querySelector('rect').getBBox().width;
          });
          const left = [...texts.filter((text, i) => out(boxes[i])), ...labels];
          const over = [];
          const order = boxes.map((box, i) => i).sort((i, j) => boxes[i].y - boxes[j].y);
          order.forEach((i, at) => {
            for (let next = at + 1; next < order.length; next += 1) {
              const j = order[next], a = boxes[i], b = boxes[j];
              if (b.y > a.y + 0.6 * a.height) break;  // glyphs do not fill the height of a line
              if (a.x + a.width > b.x + 0.5 && b.x + b.width > a.x + 0.5)
                over.push(`${texts[i].textContent} | ${texts[j].textContent}`);
            }
          });
          return [left.map((node) => node.textContent), over];
        }"""
    )
    assert outside == []
    assert over == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_descriptor_page(open_page, scheme):
    """Pointing at a field marks its bits, and at a bit its field; likewise subtiles."""
    atom, tile, instruction = OPERANDS["MN-major, 64B"]
    layout = stacked_atoms(atom, tile)
    derived = derive_operand(layout, 16, instruction, arch=100)
    page = open_page(operand_html(layout, derived), scheme=scheme)

    def marked(kind):
        return page.locator(kind).evaluate_all("(all) => all.map((one) => ({...one.dataset}))")

    page.locator('tr[data-field="stride_byte_offset"]').hover()
    assert [int(one["bit"]) for one in marked("g.bit.on")] == list(range(45, 31, -1))
    page.locator('g.bit[data-bit="62"]').hover()
    assert [one["field"] for one in marked("tr.on")] == ["swizzle"]
    page.locator('td[data-subtile="1,3"]').hover()
    (subtile,) = marked("g.subtile.on")
    assert (subtile["subtileRow"], subtile["subtileColumn"]) == ("1", "3")
    assert int(subtile["byte"]) == derived.advances[1][3]
    assert not marked("tr.on, g.bit.on")
    page.mouse.move(2, 2)
    assert not marked(".on")
    values = page.locator("td[data-subtile]").evaluate_all(
        "(all) => all.map((one) => BigInt(one.firstChild.textContent).toString())"
    )
    wanted = [one.encode() for row in derived.descriptors() for one in row]
    assert [int(value) for value in values] == wanted
    page.locator('tr[data-field="swizzle"]').focus()  # by keyboard
    assert len(marked("g.bit.on")) == 3


@pytest.mark.parametrize(
    "text",
    [
        descriptor_html((1 << 64) - 1, 100),
        instruction_descriptor_html(0x8200490, "f16"),
        *operand_pictures(operand_html),
    ],
)
def test_descriptor_pages_fit(open_page, text):
    page = open_page(text)
    for width in (1280, 400):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_dump_page_of_a_cluster(open_page):
    """A layout that the explorer does not know: no controls, all dimensions and blocks said."""
    encoding = NVMMAShared(64, 16, rank=3, cga_layout=((0, 1, 0),))
    dump = dump_encoding(encoding, (2, 64, 64))
    page = open_page(dump_html(dump))
    assert page.locator("h1").text_content() == str(encoding)
    assert page.locator(".controls").is_hidden()
    inverse = dump.layout.invert()
    for row, column in ((0, 0), (3, 40), (33, 16)):
        page.locator(cell("tile", row, column)).hover()
        page.locator("#elements button").nth(5).hover()
        place = inverse.apply(dim0=0, dim1=row, dim2=column + 5)
        shown = fields(page)
        assert shown["coordinate"] == f"(0, {row}, {column + 5})"
        assert shown["offset"] == f"{place['offset']} (block {place['block']})"
        assert shown["bank"] == str(place["offset"] * 2 % 128 // 4)


def test_dump_page_compares_with_other_swizzles(open_page):
    dump = dump_encoding(NVMMAShared(32, 16, transposed=True), (64, 64))
    page = open_page(dump_html(dump))
    assert field(page, "title") == "64x64, MN-major, 32-byte swizzle, 16-bit elements"
    assert memory_numbers(page) == CHUNK_PICTURES[32]
    choose(page, swizzle=128)
    assert memory_numbers(page) == CHUNK_PICTURES[128]


def test_page_says_what_it_shows(open_page, tmp_path):
    """Heading, tab and attribute follow a switch; the address brings the same state back."""
    encoding = NVMMAShared(32, 16, transposed=True)
    page = open_page(dump_html(dump_encoding(encoding, (64, 64))))
    assert page.title() == page.locator("h1").text_content() == str(encoding)
    assert field(page, "attribute") == str(encoding)
    for choices, attribute in (
        ({"swizzle": 128}, str(NVMMAShared(128, 16, transposed=True))),
        ({"swizzle": "rows", "major": "K"}, str(NVMMAShared(0, 16))),
        ({"bits": 8}, str(NVMMAShared(0, 8))),
    ):
        choose(page, **choices)
        assert field(page, "attribute") == attribute
        assert page.title() == page.locator("h1").text_content() == field(page, "title")
    choose(page, swizzle=0)
    shown = parse_encoding(field(page, "attribute"))
    assert shown == SharedLinear.from_linear_layout(stacked_atoms(SwizzleAtom("K", 0, 8), (64, 64)))
    page.locator(cell("tile", 9, 16)).hover()
    page.wait_for_function("location.hash.includes('at=9')")
    assert page.url.split("#")[1].startswith("bits=8&major=K&shape=64x64&swizzle=0&at=9%2C")
    before = (field(page, "title"), fields(page))
    page.reload()
    assert (field(page, "title"), fields(page)) == before
    page.evaluate("location.hash = '#swizzle=7&at=x'")
    assert (field(page, "title"), fields(page)) == before, "an address that is not legal"
    page.locator("#copy").click()
    assert page.evaluate("getSelection().toString()") == field(page, "attribute")


def test_every_configuration_has_one_set_of_choices():
    seen = [one.choices for one in configurations([(64, 64), (128, 128)])]
    assert len(seen) == len(set(seen))
