"""The page to explore: its data, what its scripts compute, and what Chromium shows of it.

What the scripts compute is compared with the Python conversion over sweeps, a call a sweep.
"""

from __future__ import annotations

import itertools
import json
import operator
import random
import re

import pytest
from click.testing import CliRunner
from documented_atoms import CHUNK_PICTURES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import nvmma_encodings, shapes, surjective_layouts

from triton_ext import LayoutError, LinearLayout, NVMMAShared
from triton_ext.cli import main
from triton_ext.hardware.banks import chunk_access, matrix_access, thread_layout, warp_access
from triton_ext.hardware.operand import derive_operand
from triton_ext.hardware.register_access import register_access
from triton_ext.hardware.smem_descriptor import FIELDS, problems, raw_fields
from triton_ext.hardware.tensor_memory import TmemAddress, accumulator_layout
from triton_ext.hardware.tensor_memory_access import plan_transfer
from triton_ext.hardware.tma_tile import tile_copies
from triton_ext.layouts.atoms import SwizzleAtom
from triton_ext.layouts.dump import LayoutDump, dump_encoding
from triton_ext.layouts.encodings import SharedLinear
from triton_ext.render.html import (
    VIEWS,
    descriptor_html,
    dump_html,
    explore_html,
    operand_html,
    stacked_atoms,
)
from triton_ext.render.scene import DARK, LIGHT

PAGE = explore_html()


def embedded(page):
    return json.loads(re.search(r'type="application/json" id="data">(.*?)</script>', page, re.S)[1])


DATA = embedded(PAGE)


def described(encoding, shape=None, **more):
    """The page's state for an encoding at a shape."""
    fp4 = encoding.fp4_padded
    return {
        "shape": "x".join(map(str, shape or (128, 128))),
        "type": "fp4-padded" if fp4 else str(encoding.element_bitwidth),
        "swizzle": str(encoding.swizzle_byte_width or "rows"),
        "major": "MN" if encoding.transposed else "K",
        "part": "tile",
        "cga": json.dumps(encoding.cga_layout) if encoding.cga_layout else "",
        **more,
    }


# ------------------------------------------------------------------ without a browser


def test_embedded_atoms_are_the_documented_ones():
    seen = 0
    for name, bases in DATA["atoms"].items():
        if name == DATA["fp4"]:
            continue
        bits, width = map(int, name.split(","))
        atom = SwizzleAtom("K", width, bits)
        layout = LinearLayout({"offset": bases}, ["row", "column"])
        for row, column in itertools.product(*map(range, atom.shape)):
            offset = layout.invert().apply(row=row, column=column)["offset"]
            assert offset * bits // 8 == atom.address(row, column)
            seen += 1
    assert seen > 3000


def test_embedded_fields_are_those_of_the_descriptors():
    for arch, described_ in DATA["descriptor"].items():
        fields = {one["key"]: (one["first"], one["bits"]) for one in described_["fields"]}
        assert fields == FIELDS[int(arch)]


def test_embedded_fragments_are_those_of_the_isa():
    """PTX ISA: a row of ldmatrix in 4 lanes; D of wgmma in pairs; a lane of 32x32b in a thread."""
    fragments = {one["name"]: one for one in DATA["fragments"]}

    def element(name, part, register, thread):
        one = fragments[name]
        layout = LinearLayout(
            {dim: one[dim] for dim in ("part", "register", "thread")}, ["row", "column"]
        )
        return tuple(layout.apply(part=part, register=register, thread=thread).values())

    for lane, part in itertools.product(range(32), range(2)):
        row, pair = lane // 4, 2 * (lane % 4)
        assert element("ldmatrix.x1", part, 0, lane) == (row, pair + part)
        assert element("stmatrix.x1.trans", part, 0, lane) == (pair + part, row)
        for matrix in range(4):
            found = element("ldmatrix.x4", part, matrix, lane)
            assert found == (row + 8 * (matrix % 2), pair + part + 8 * (matrix // 2))
        for register in range(16):
            found = element("wgmma D, m64n32, f32", 0, register, lane)
            column = pair + register % 2 + 8 * (register // 4)
            assert found == (row + 8 * (register // 2 % 2), column)
        assert element("tcgen05.ld.32x32b.x4", 0, part, lane) == (lane, part)
    assert len(fragments) == len(DATA["fragments"])
    assert {one["group"] for one in fragments.values()} == {
        "ldmatrix", "stmatrix", "wgmma", "mma", "tcgen05.ld",
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [PAGE, dump_html(dump_encoding(NVMMAShared(128, 16), (64, 64)))],
    ids=["explore", "dump"],
)
def test_no_external_references(text):
    addresses = set(re.findall(r"[a-z]+://[^\s\"'<>)]*", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, which nothing loads
    assert re.findall(r"(?:src|href|action|data)=\"([^\"]*)\"", text) in ([], ["data:,"])
    loading = ("@import", "url(", "fetch(", "XMLHttpRequest", "import(", "WebSocket")
    for word in (*loading, '<link rel="s'):
        assert word not in text


COMMANDS = {
    "layout --bits 16 --shape 128x64": {"view": "layout", "swizzle": "128", "shape": "128x64"},
    "layout --swizzle 64 --bits 8 --transposed --core": {"part": "atom", "major": "MN"},
    "layout --swizzle 32 --bits 16 --shape 2x64x64 --cga [[0,1,0]]": {"cga": "[[0, 1, 0]]"},
    "banks --swizzle 0 --bits 16 --shape 8x64 --at 0,8": {"view": "banks", "at": "0,8"},
    "banks --swizzle 64 --bits 16 --shape 64x64 --access ldmatrix": {"access": "ldmatrix.x1"},
    "banks --offsets 0,128,- --width 16": {"offsets": "0,128,-", "width": "16"},
    "descriptor 0x4000404000010000": {"view": "descriptor", "value": "0x4000404000010000"},
    "descriptor 0x08200490 --kind f16": {"value": "0x08200490"},
    "descriptor --swizzle 64 --bits 8 --shape 128x128 --transposed --operand b": {"arch": "100"},
    "tma --shape 512x512 --bits 16 --block 128x256 --at 64,0": {"view": "tma", "start_at": "64,0"},
    "tma --shape 256x256 --bits 16 --block 64x64 --swizzle 0 --core-matrices": {"swizzle": "0"},
    "tma --shape 512x512 --bits 8 --block 128x128 --fp4-padded": {"type": "fp4-padded"},
    "tma --shape 512x512 --bits 16 --block 128x64 --cga [[1,0]] --cta 1 --strides 520,1"
    " --address 0x400": {"cga": "[[1, 0]]", "cta": "1", "strides": "520,1", "address": "0x400"},
    "tmem --m 128 --n 32 --load 32x32b": {"view": "tmem", "load": "32x32b", "matrix": "given"},
    "tmem --scales --shape 128x16": {"view": "tmem", "matrix": "given"},
    "explore": {"view": "layout", "shape": "128x128"},
}  # fmt: skip


def page_of(command):
    arguments = command.split()
    form = [] if arguments[0] == "explore" else ["--format", "html"]
    result = CliRunner().invoke(main, [*arguments, *form])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(("command", "state"), COMMANDS.items(), ids=COMMANDS)
def test_commands_write_pages(command, state):
    found = embedded(page_of(command))["state"]
    assert {name: found[name] for name in state} == state


def test_explore_writes_a_file(tmp_path):
    path = tmp_path / "explore.html"
    assert CliRunner().invoke(main, ["explore", str(path)]).exit_code == 0
    assert embedded(path.read_text())["state"] == DATA["state"]
    failed = CliRunner().invoke(main, ["explore", str(tmp_path / "no" / "such.html")])
    assert failed.exit_code == 2
    assert "no/such.html" in failed.output


def test_names_are_escaped():
    name = '<script>alert("&")</script>'
    layout = LinearLayout({"offset": [(0, 1), (0, 2), (1, 0)]}, {name: 2, "dim1": 4})
    page = dump_html(LayoutDump("tile", name, layout, None, 16, alias=name))
    assert page.count("<script") == 2  # the data and the scripts
    assert embedded(page)["given"][0]["names"] == [name, "dim1"]


def test_bad_arguments_of_pages():
    for draw, argument in (
        (lambda: dump_html(LayoutDump("tile", "#x", None, error="no such encoding")), "layout"),
        (lambda: explore_html("everything"), "view"),
        (lambda: explore_html(state={"colour": "red"}), "state"),
        (lambda: descriptor_html(1 << 64, 90), "descriptor"),
    ):
        with pytest.raises(LayoutError) as caught:
            draw()
        assert caught.value.argument == argument


def test_seed_004_core_matrices_without_a_swizzle():
    """Seed 004's numbers without a swizzle: SBO 128 and, with 64 rows, LBO 1024 bytes."""
    layout = stacked_atoms(SwizzleAtom("K", 0, 16), (64, 16)).invert()
    assert layout.apply(dim0=8, dim1=0) == {"offset": 64}  # 128 bytes
    assert layout.apply(dim0=0, dim1=8) == {"offset": 512}  # 1024 bytes


# ------------------------------------------------------------- what the scripts compute


@pytest.fixture(scope="module")
def scripts(browser):
    """Evaluates a function of the page's scripts on each of some arguments; errors as {error}."""
    page = browser.new_page()
    page.set_content(PAGE)

    def each(function, arguments):
        return page.evaluate(
            "(all) => all.map((one) => { try { return (" + function + ")(...one); }"
            " catch (problem) { if (problem.constructor !== Error) throw problem;"
            " return {error: problem.message}; } })",
            arguments,
        )

    yield each
    page.close()


def tuples(value):
    return tuple(map(tuples, value)) if isinstance(value, (list, tuple)) else value


def assert_same_tiles(scripts, cases):
    """Attribute and bases of described tiles, legal or not, are those of the conversion."""
    found = scripts("describedTile", [[described(encoding, shape)] for encoding, shape in cases])
    legal = 0
    for (encoding, shape), tile in zip(cases, found, strict=True):
        try:
            layout = encoding.to_linear_layout(shape)
        except LayoutError:
            assert "error" in tile, (encoding, shape)
            continue
        assert tile["attribute"] == str(encoding)
        assert tuples(tile["offset"]) == tuples(layout.bases["offset"]), (encoding, shape)
        assert tuples(tile["block"]) == tuples(layout.bases.get("block", ()))
        assert tile["sizes"] == list(shape)
        legal += 1
    return legal


def test_described_tiles_are_those_of_the_conversion(scripts):
    cases = [
        (NVMMAShared(swizzle, bits, transposed, rank=len(shape)), shape)
        for swizzle, bits, transposed, shape in itertools.product(
            (0, 32, 64, 128), (8, 16, 32, 64), (False, True),
            [(rows, columns) for rows in (4, 8, 64, 512) for columns in (8, 64, 128, 512)]
            + [(2, 64, 64), (64, 2, 128), (2, 4, 8, 64), (1, 2, 2, 16, 64)],
        )
    ]  # fmt: skip
    assert assert_same_tiles(scripts, cases) > 300


@given(st.data())
@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_random_tiles_are_those_of_the_conversion(scripts, data):
    """All ranks, clusters and padded fp4: 40 at a time."""
    cases = []
    for _ in range(40):
        encoding = data.draw(nvmma_encodings())
        cases.append((encoding, data.draw(shapes(encoding.rank, 17 // encoding.rank))))
    assert_same_tiles(scripts, cases)


def test_widest_swizzle_and_core_matrices(scripts):
    cases = list(itertools.product((8, 16, 32), (False, True), ((64, 64), (16, 8), (8, 256))))
    widest = scripts("describedTile", [
        [described(NVMMAShared(0, bits, transposed), shape, swizzle="auto")]
        for bits, transposed, shape in cases
    ])  # fmt: skip
    for (bits, transposed, shape), tile in zip(cases, widest, strict=True):
        assert tile["attribute"] == str(NVMMAShared.default_for(shape, bits, transposed))
    cores = scripts("describedTile", [
        [described(NVMMAShared(0, bits, transposed), shape, swizzle="0")]
        for bits, transposed, shape in cases
    ])  # fmt: skip
    compared = 0
    for (bits, transposed, shape), tile in zip(cases, cores, strict=True):
        atom = SwizzleAtom("MN" if transposed else "K", 0, bits)
        if any(size % part for size, part in zip(shape, atom.shape, strict=True)):
            assert "error" in tile
            continue
        layout = stacked_atoms(atom, shape)
        assert tuples(tile["offset"]) == tuples(layout.bases["offset"])
        assert SharedLinear.parse(tile["attribute"]).to_linear_layout() == layout
        compared += 1
    assert compared > 12


@given(st.lists(surjective_layouts(), min_size=30, max_size=30))
@settings(
    max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_inverses_of_random_layouts(scripts, layouts):
    inputs = [
        [[layout.bases[dim] for dim in layout.in_dims], list(layout.out_dims.values())]
        for layout in layouts
    ]
    for layout, inverse in zip(layouts, scripts("invert", inputs), strict=True):
        found = LinearLayout(dict(zip(layout.out_dims, inverse, strict=True)), layout.in_dims)
        assert found == layout.pseudoinvert()


def test_banks_are_those_of_the_model(scripts):
    draw = random.Random(5)
    cases = []
    for size in (1, 2, 4, 8, 16):
        for _ in range(20):
            spread = draw.choice((64, 1024, 16384)) // size
            lanes = [size * draw.randrange(spread) for _ in range(draw.randint(1, 32))]
            if len(lanes) > 2:
                lanes[1] = None
            cases.append([lanes, size])
    words = "(...given) => { const {wavefronts, ideal, degree, collide} = warpAccess(...given);"
    found = scripts(words + " return [wavefronts, ideal, degree, [...collide]]; }", cases)
    for case, (wavefronts, ideal, degree, collide) in zip(cases, found, strict=True):
        report = warp_access(*case)
        assert (wavefronts, ideal, degree) == (
            report.wavefronts, report.ideal_wavefronts, report.degree,
        )  # fmt: skip
        assert {4 * word for word in collide} == {
            word for conflict in report.conflicts for word in conflict.words
        }


ACCESS = """(state, kind, at) => {
  const plane = planeOf(describedTile(state));
  const {elements, bytes} = laneElements(plane, kind, at), zero = plane.sizes.map(() => 0);
  return elements.map((pair) => plane.byte(plane.place(plane.at(pair, zero)).offset));
}"""


def test_accesses_are_those_of_the_model(scripts):
    kinds = ("chunk", "ldmatrix.x1", "stmatrix.x2", "ldmatrix.x4", "ld.shared 16", "st.shared 4")
    cases = [
        (kind, NVMMAShared(swizzle, bits, transposed), at)
        for kind, swizzle, bits, transposed, at in itertools.product(
            kinds, (0, 32, 64, 128), (8, 16), (False, True), ((32, 64),)
        )
    ]
    found = scripts(ACCESS, [[described(one), kind, at] for kind, one, at in cases])
    for (kind, encoding, at), offsets in zip(cases, found, strict=True):
        layout, bits = encoding.to_linear_layout((128, 128)), encoding.element_bitwidth
        major, chunk = ("MN" if encoding.transposed else "K"), 128 // bits
        if kind == "chunk":
            wanted = chunk_access(layout, bits, at, major).offsets
        elif "matrix" in kind:
            steps = [(0, 0), (8, 0), (0, chunk), (8, chunk)][: int(kind[-1])]
            corners = [
                (at[0] + step[encoding.transposed], at[1] + step[1 - encoding.transposed])
                for step in steps
            ]
            if encoding.transposed and bits != 16:  # there is no such .trans, but the same chunks
                wanted = tuple(
                    byte
                    for one in corners
                    for byte in chunk_access(layout, bits, one, major).offsets
                )
            else:
                wanted = matrix_access(layout, bits, corners, encoding.transposed).offsets
        else:
            size = int(kind.split()[1])
            threads = thread_layout((128, 128), bits, size, 1, 0 if encoding.transposed else 1)
            wanted = register_access(threads, layout, bits, size).requests[0].offsets
        assert tuple(offsets) == wanted, (kind, encoding, at)


DERIVE = """(mn, k, bytes, tile, instruction, arch, start) => {
  const found = deriveOperand(mn, k, bytes, tile, instruction, arch, start);
  const {major, advances, usesLeading, usesStride} = found;
  return [`${found.encoded(start)}`, major, advances, usesLeading, usesStride];
}"""


def test_descriptors_are_the_derived_ones(scripts):
    cases = [
        (stacked_atoms(SwizzleAtom(major, width, bits), tile, order), bits, instruction, arch)
        for major, width, bits, tile, order, instruction, arch in itertools.product(
            ("K", "MN"), (0, 32, 64, 128), (8, 16, 32), ((128, 128), (64, 256)), ((0, 1), (1, 0)),
            ((64, 16), (64, 32), (128, 8)), (90, 100),
        )
        if not any(size % part for size, part in zip(tile, SwizzleAtom(major, width, bits).shape,
                                                     strict=True))
    ]  # fmt: skip
    cases += [
        (NVMMAShared(0, 16).to_linear_layout((64, 64)), 16, (64, 16), arch) for arch in (90, 100)
    ]
    arguments = []
    for layout, bits, instruction, arch in cases:
        inverse = layout.invert().bases
        mn, k = ([offset * bits // 8 for (offset,) in inverse[dim]] for dim in ("dim0", "dim1"))
        tile = list(layout.out_dims.values())
        arguments.append([mn, k, bits // 8, tile, instruction, arch, 512 * (len(arguments) % 3)])
    derived = 0
    for case, given_, found in zip(cases, arguments, scripts(DERIVE, arguments), strict=True):
        layout, bits, instruction, arch = case
        try:
            own = derive_operand(layout, bits, instruction, arch=arch, base_address=given_[-1])
        except LayoutError:
            assert "error" in found, case
            continue
        assert tuples(found) == (
            str(own.descriptor.encode()),
            own.major,
            own.advances,
            own.uses_leading,
            own.uses_stride,
        ), case
        derived += 1
    assert 100 < derived < len(cases)


def test_descriptors_are_decoded(scripts):
    draw = random.Random(2)
    cases = [(draw.getrandbits(64), arch) for arch in (90, 100) for _ in range(60)]
    cases += [(0x4000404000010000, 100), (0x4000004000010000, 90)]
    decode = "(value, arch) => decodeFields(BigInt(value), arch).map((one) => [one.key,"
    decode += " `${one.raw}`, one.problem])"
    for (value, arch), fields in zip(
        cases, scripts(decode, [[str(value), arch] for value, arch in cases]), strict=True
    ):
        raw = {key: int(number) for key, number, _ in fields}
        assert raw == raw_fields(value, arch)
        assert sum(1 for *_, problem in fields if problem) == len(problems(value, arch))


def test_tma_copies_are_those_of_the_conversion(scripts):
    cases = [
        (layout, block, (1000, 520), at)
        for major, width, bits, block, at in itertools.product(
            ("K", "MN"), (0, 32, 64, 128), (8, 16, 32), ((128, 128), (64, 256), (256, 16)),
            ((0, 0), (960, 512), (-16, 32)),
        )
        for layout in (
            NVMMAShared(width, bits, major == "MN"), *([SwizzleAtom(major, 0, bits)] * (not width))
        )
    ]  # fmt: skip
    cases.append((NVMMAShared(128, 16, rank=3), (2, 64, 128), (8, 256, 256), (6, 0, 64)))
    cases += [
        (NVMMAShared(128, 8, transposed, fp4_padded=True), (128, 128), tensor, at)
        for transposed, tensor, at in itertools.product(
            (False, True), ((1024, 512), (1000, 520)), ((0, 0), (64, 64), (-64, 128), (32, 0))
        )
    ]
    copies = "(state, tensor, at, strides) => tmaBoxes(describedTile(state), tensor, at, strides)"
    arguments = []
    for layout, block, tensor, at in cases:
        if isinstance(layout, SwizzleAtom):
            encoding = NVMMAShared(0, layout.element_bitwidth, layout.major == "MN")
            state = described(encoding, block, swizzle="0")
        else:
            state = described(layout, block)
        rows = 1088 * 8 // layout.element_bitwidth  # strides of whole 32 bytes
        transposed = layout.major == "MN" if isinstance(layout, SwizzleAtom) else layout.transposed
        strides = ((1, rows) if transposed else (rows, 1)) if len(block) == 2 else None
        arguments.append([state, tensor, at, strides])
    compared = 0
    for case, given_, found in zip(cases, arguments, scripts(copies, arguments), strict=True):
        layout, block, tensor, at = case
        try:
            wanted = tile_copies(tensor, block, layout, at=at, strides=given_[3])
        except LayoutError:
            assert "error" in found, case
            continue
        for box, own in zip(found, wanted.boxes, strict=True):
            assert tuples((box["first"], box["shape"], box["coordinates"], box["inside"])) == (
                own.start, own.shape, own.coordinates, own.inside,
            )  # fmt: skip
            assert (box["offset"], box["bytes"]) == (own.smem_offset, own.transaction_bytes)
        compared += 1
    assert compared > 155


def test_each_block_of_a_cluster_copies_its_part(scripts):
    """And the strides and address that no tensor map takes are refused."""
    part = """(state, tensor, at, cta, strides, address) => {
      const {own, first} = partOf(describedTile(state), state, cta);
      return tmaBoxes(own, tensor, at.map((value, dim) => value + first[dim]), strides, address)
        .map((box) => [box.first, box.offset, box.globalAt(box.first)]);
    }"""
    cases = [
        (NVMMAShared(128, 16, major, cga_layout=cga), cta, strides, address)
        for major, cga, cta, strides, address in itertools.product(
            (False, True),
            ([(1, 0)], [(0, 1), (1, 0)], [(0, 0), (0, 1)]),
            range(5),
            (None, (520, 1), (1, 520), (516, 1)),
            (0, 1 << 20, 24),
        )
    ]
    tensor, block, at = (512, 512), (256, 256), (64, -64)
    arguments = [[described(encoding, block), tensor, at, *others] for encoding, *others in cases]
    legal = 0
    for (encoding, cta, strides, address), found in zip(
        cases, scripts(part, arguments), strict=True
    ):
        try:
            wanted = tile_copies(
                tensor, block, encoding, at=at, cta=cta, strides=strides, global_address=address
            )
        except LayoutError:
            assert "error" in found
            continue
        steps = strides or ((1, 512) if encoding.transposed else (512, 1))
        assert tuples(found) == tuple(
            (box.start, box.smem_offset, address + 2 * sum(map(operator.mul, box.start, steps)))
            for box in wanted.boxes
        )
        legal += 1
    assert 50 < legal < len(cases) / 2


# ------------------------------------------------------------------- what the page shows


def field(page, name, root="#layout"):
    return page.locator(f'{root} [data-field="{name}"]').first.text_content()


def heading(page):
    return page.locator("h1").text_content()


def status(page):
    return page.locator('[data-field="status"]').text_content()


def attribute(page):
    return page.locator('[data-field="copied-text"]').text_content()


def fields(page, root="#layout"):
    return page.evaluate(
        "(root) => Object.fromEntries([...document.querySelectorAll(root + ' dd[data-field]')]"
        ".map((node) => [node.dataset.field, node.textContent]))",
        root,
    )


def choose(page, **choices):
    for name, value in choices.items():
        control = page.locator(f'[data-state="{name}"]')
        if control.first.get_attribute("type") == "radio":
            page.locator(f'label:has(input[name="{name}"][value="{value}"])').click()
        elif control.evaluate("(node) => node.tagName") == "SELECT":
            control.select_option(str(value))
        else:
            control.fill(str(value))
            control.press("Enter")


def view(name, root="#layout"):
    return f'{root} [data-view="{name}"]'


def cell(name, row, column, root="#layout"):
    return f'{view(name, root)} .cell[data-row="{row}"][data-column="{column}"]'


def hover(page, name, point, atom):
    """Points at the middle of an element in a view, where its chunk is wide enough for that."""
    chunk = 128 // atom.element_bitwidth
    along = 1 if atom.major == "K" else 0
    start = list(point)
    start[along] -= start[along] % chunk
    place = page.locator(cell(name, *start)).first
    box = place.bounding_box()
    share = (point[along] - start[along] + 0.5) / chunk
    shares = (share, 0.5) if name == "memory" or atom.major == "K" else (0.5, share)
    place.hover(position={"x": box["width"] * shares[0], "y": box["height"] * shares[1]})


def memory_numbers(page):
    """The chunk numbers in the view of shared memory, line by line, as they are drawn."""
    drawn = page.evaluate(
        "[...document.querySelectorAll('#layout [data-view=memory] .cell')].map((r) =>"
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
        (128, 16, "K", [(0, 0), (77, 40)]),
        (64, 16, "MN", [(8, 1), (104, 77)]),
        (32, 8, "K", [(66, 112)]),
        (128, 32, "MN", [(124, 90)]),
        (0, 16, "K", [(9, 24)]),
    ],
)
def test_hover_says_what_python_computes(open_page, swizzle, bits, major, points):
    """In the tile, then in each of the detailed views, at the middle of a chunk."""
    page = open_page(PAGE)
    choose(page, swizzle=swizzle, type=bits, major=major)
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
        for name in ("tile", "atom", "memory", "banks"):
            ring = page.locator(view(name) + " .cursor").bounding_box()
            parts = [part.bounding_box() for part in page.locator(cell(name, row, column)).all()]
            assert ring["x"] == pytest.approx(parts[0]["x"], abs=4)
            assert ring["y"] == pytest.approx(parts[0]["y"], abs=4)
            total = sum(part["width"] for part in parts)
            assert ring["width"] == pytest.approx(total, abs=8)
        assert page.locator(view("atom") + " .peer").count() == 8
        assert page.locator(view("memory") + " .peer").count() == 8
        for name, index in itertools.product(("atom", "memory"), (0, chunk - 1)):
            element = (row, column + index) if major == "K" else (row + index, column)
            hover(page, name, element, atom)
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
        page.locator("#layout .chunk-elements button").nth(index).hover()
        along = [row, column]
        along[1 if major == "K" else 0] += index
        assert fields(page) == expected_fields(layout, atom, tuple(along), instruction)
        offset = int(field(page, "offset"))
        marked = page.locator("#layout .bases-list li.on").evaluate_all(
            "(items) => items.map((item) => Number(item.dataset.bit))"
        )
        assert marked == [bit for bit in range(offset.bit_length()) if offset >> bit & 1]


def test_a_switch_changes_heading_attribute_and_address(open_page):
    """Every swizzle, width and major-ness: all that the page says is of what it shows."""
    page = open_page(PAGE)
    choose(page, shape="64x256")
    seen = set()
    for major, bits, swizzle in itertools.product(("K", "MN"), (8, 16), (0, 128)):
        choose(page, major=major, type=bits, swizzle=swizzle)
        atom = SwizzleAtom(major, swizzle, bits)
        if 64 % atom.shape[0]:
            assert status(page).startswith("A row of the 128-byte swizzle atom has 128 elements")
            assert page.locator("#layout.stale").count() == 1
            continue
        name = f"{swizzle}-byte swizzle" if swizzle else "no swizzle"
        assert heading(page) == f"64x256, {major}-major, {name}, {bits}-bit elements"
        assert page.title() == f"{heading(page)} - Layout"
        assert status(page) == ""
        layout = stacked_atoms(atom, (64, 256))
        encoding = NVMMAShared(swizzle, bits, major == "MN")
        wanted = encoding if swizzle else SharedLinear.from_linear_layout(layout, 128)
        assert attribute(page) == str(wanted)
        assert memory_numbers(page) == atom.chunk_table() == CHUNK_PICTURES[swizzle]
        bases = page.locator("#layout .bases-list li").all_text_contents()
        assert bases == [
            f"offset={1 << bit} → ({row}, {column})"
            for bit, (row, column) in enumerate(layout.bases["offset"])
        ]
        assert f"swizzle={swizzle}" in page.url or swizzle == 128
        seen.add(heading(page))
    assert len(seen) == 7  # all but 8 bits, MN-major, 128 B: an atom is 128 x 8
    choose(page, swizzle=64, major="K")
    page.locator(cell("tile", 5, 16)).hover()
    before = (heading(page), attribute(page), fields(page))
    page.reload()  # the address has it all
    assert (heading(page), attribute(page), fields(page)) == before
    assert before[2]["coordinate"].startswith("(5, ")


def test_copy_button(open_page):
    page = open_page(PAGE)
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    page.locator(".copy").click()
    assert page.evaluate("window.copied") == str(NVMMAShared(128, 16))
    assert page.locator(".copy").text_content() == "Copied"


def test_plain_rows_claim_no_swizzle(open_page):
    """Seed 003, Sec. 4: rows as they come. At 128 bytes a row, 8 chunks share a bank group."""
    page = open_page(PAGE, state="swizzle=rows&shape=64x64&type=16")
    page.locator(cell("tile", 5, 24)).hover()
    assert fields(page)["wavefronts"] == "8: 8-way conflict"
    assert fields(page)["atom"] == "none"
    assert "There is no swizzle atom in this layout" in field(page, "tile-legend")
    choose(page, type="fp8")  # 64 bytes a row
    assert fields(page)["wavefronts"] == "4: 4-way conflict"
    choose(page, swizzle=64)
    assert fields(page)["wavefronts"] == "1: no conflict"
    assert "a swizzle puts its 8 chunks" in field(page, "tile-legend")


def test_clusters_and_ranks_have_all_switches(open_page):
    encoding = NVMMAShared(64, 16, rank=3, cga_layout=((0, 1, 0),))
    dump = dump_encoding(encoding, (2, 64, 64))
    page = open_page(dump_html(dump))
    assert attribute(page) == str(encoding)
    assert page.locator(".controls").is_visible()
    inverse = dump.layout.invert()
    page.locator(".leading input").fill("1")
    for row, column in ((0, 0), (3, 40), (33, 16)):
        page.locator(cell("tile", row, column)).hover()
        page.locator("#layout .chunk-elements button").nth(5).hover()
        place = inverse.apply(dim0=1, dim1=row, dim2=column + 5)
        shown = fields(page)
        assert shown["coordinate"] == f"(1, {row}, {column + 5})"
        assert shown["offset"] == f"{place['offset']} (block {place['block']})"
        assert shown["bank"] == str(place["offset"] * 2 % 128 // 4)
    tags = page.locator("#layout .block-tag").all_text_contents()
    assert tags == ["block 0", "block 1"]
    choose(page, swizzle=128, cga="[[0, 0, 0]]", major="MN", shape="64x2x64")
    assert attribute(page) == str(NVMMAShared(128, 16, True, rank=3, cga_layout=((0, 0, 0),)))
    choose(page, part="atom")
    assert heading(page) == "64x8 atom, MN-major, 128-byte swizzle, 16-bit elements"


def test_a_layout_that_no_control_makes(open_page):
    """Shown as it is, until a control is used; the picture of several has them all."""
    linear = SharedLinear(((0, 1), (0, 2), (1, 0), (0, 4), (2, 0)))
    dump = dump_encoding(linear, element_bitwidth=16)
    page = open_page(dump_html(dump, dump_encoding(NVMMAShared(128, 16), (64, 64))))
    assert attribute(page) == str(linear)
    page.locator(cell("tile", 1, 4)).hover()
    assert fields(page)["offset"].startswith(
        str(dump.layout.invert().apply(dim0=1, dim1=4)["offset"] & ~1)[:1]
    )
    page.locator('[data-state="given"]').select_option(index=2)
    assert attribute(page) == str(NVMMAShared(128, 16))
    choose(page, swizzle=64)
    assert attribute(page) == str(NVMMAShared(64, 16))


def test_banks_view(open_page):
    """`triton-ext banks` of docs/guide/layouts.md, Sec. 1, as a page; then with a swizzle."""
    page = open_page(page_of("banks --swizzle 0 --bits 16 --shape 8x64 --at 0,8"))
    report = '#banks [data-field="access-report"]'
    assert page.locator(report).text_content() == "8 wavefronts instead of 1: 8-way bank conflict"
    words = page.locator(view("access", "#banks") + " .cell")
    words.nth(4 * 3 + 2).hover()
    assert fields(page, "#banks") | {"lane": "3", "lane-byte": "408 (0x198)", "lane-bank": "6",
        "lane-element": "(3, 8)", "lane-start": "400"} == fields(page, "#banks")  # fmt: skip
    choose(page, swizzle=128)
    assert page.locator(report).text_content() == "1 wavefront, no bank conflict"
    choose(page, offsets="0,128,256,-", width=16)
    assert page.locator(report).text_content() == "3 wavefronts instead of 1: 3-way bank conflict"
    choose(page, offsets="1,2")
    assert "multiples of 16" in status(page)


def test_descriptor_view(open_page):
    """The bits are of the subtile that is pointed at; a field marks its bits."""
    layout = stacked_atoms(SwizzleAtom("MN", 64, 16), (128, 128))
    derived = derive_operand(layout, 16, (64, 16), arch=100)
    page = open_page(operand_html(layout, derived))
    rows = page.locator("#descriptor .subtiles tbody tr td:last-child").all_text_contents()
    wanted = [f"{one.encode():#018x}" for row in derived.descriptors() for one in row]
    assert rows == wanted
    page.locator(cell("tile", 72, 50, "#descriptor")).hover()
    assert field(page, "value", "#descriptor") == wanted[8 + 3]
    bits = page.locator(view("bits", "#descriptor") + " .bit")
    digits = page.locator(view("bits", "#descriptor") + " .inside").all_text_contents()
    assert int("".join(digits), 2) == int(wanted[11], 16)
    page.locator('tr[data-key="stride_byte_offset"]').hover()
    marked = page.locator(view("bits", "#descriptor") + " .bit.on")
    assert marked.evaluate_all("(all) => all.map((one) => Number(one.dataset.bit))") == list(
        range(45, 31, -1)
    )
    bits.nth(1).hover()
    assert page.locator("#descriptor .fields tr.on").get_attribute("data-key") == "swizzle"
    choose(page, value="0xffffffffffffffff")
    assert page.locator("#descriptor td.wrong").count() == 3  # swizzle, version, reserved
    choose(page, value="0x0", arch=90)
    assert "no illegal field" in field(page, "value-note", "#descriptor")
    instruction = open_page(page_of("descriptor 0x08200490 --kind f16"))
    shown = instruction.locator("#descriptor .fields").inner_text()
    assert "M = 128: 8 x 16" in shown
    assert "N = 256" in shown or "N = 64" in shown or "N = " in shown


def test_what_is_not_drawn_is_said(open_page):
    page = open_page(PAGE)
    for state, said in (
        ("view=tma&strides=1,128", "1 along dim1"),
        ("view=tma&strides=100,1", "multiples of 16 bytes"),
        ("view=tma&address=0x8", "multiple of 16"),
        ("view=descriptor&type=fp4-padded", "for 8, 16 or 32 bits"),
        ("view=descriptor&shape=2x64x64", "for two dimensions"),
        ("view=tma&cga=[[1,0]]&cta=2", "0 to 1"),
        ("view=tmem&matrix=no", "No no has 64 columns"),
        ("view=banks&swizzle=rows&offsets=3", "multiples of 4"),
        ("shape=64x63", "powers of two"),
        ("type=f12", "one of 8, 16"),
        ("shape=4x128", "8 rows"),
        ("cga=[[3,0]]", "each once"),
        ("shape=65536x65536", "at most"),
    ):
        go(page, state)
        assert said in status(page), state
    choose(page, shape="64x64")
    assert heading(page).startswith("64x64, K-major")


def test_registers_view(open_page):
    page = open_page(PAGE, state="view=fragments")
    page.locator(cell("fragment", 9, 11, "#fragments")).hover()
    assert fields(page, "#fragments") == {
        "held-element": "(9, 11)",
        "held-lane": "5",
        "held-register": "3 of 4",
        "held-part": "1 of 2",
    }
    page.locator(view("lanes", "#fragments") + ' .cell[data-lane="31"]').hover()
    held = page.locator("#fragments .registers td:last-child").all_text_contents()
    assert held == ["(7, 6) (7, 7)", "(15, 6) (15, 7)", "(7, 14) (7, 15)", "(15, 14) (15, 15)"]
    for name in [one["name"] for one in DATA["fragments"]][::5]:
        choose(page, fragment=name)
        one = next(one for one in DATA["fragments"] if one["name"] == name)
        count = one["shape"][0] * one["shape"][1]
        assert page.locator(view("fragment", "#fragments") + " .cell").count() == count
        assert heading(page) == f"Registers of {name}"


def test_tensor_memory_view(open_page):
    """Cells of the layout F, which has holes, and who loads them."""
    state = "view=tmem&n=64&load=16x256b&matrix=" + "D, M = 64, f32".replace(" ", "+")
    page = open_page(PAGE, state=state)
    layout = accumulator_layout(64, 64)
    transfer = plan_transfer(layout, "16x256b")
    for lane, column in ((0, 0), (40, 8), (96, 56)):
        box = page.locator(
            f'{view("tensor-memory", "#tmem")} .cell[data-lane="{lane}"][data-column="{column}"]'
        )
        box.hover(position={"x": 1, "y": 1})
        shown = fields(page, "#tmem")
        element = layout.apply(lane=lane, column=column, slot=0)
        assert shown["tmem-element"] == f"({element['dim0']}, {element['dim1']})"
        assert shown["tmem-address"] == f"{TmemAddress(lane, column).encode():#010x}"
        found = re.fullmatch(r"thread (\d+), register (\d+)", shown["tmem-held"])
        thread, register = map(int, found.groups())
        held = transfer.elements.apply(slot=0, register=register, thread=thread, warp=lane // 32)
        assert held == element
    page.locator(f'{view("tensor-memory", "#tmem")} .cell[data-lane="16"]').first.hover()
    assert fields(page, "#tmem")["tmem-element"] == "none"
    given_page = open_page(page_of("tmem --m 128 --n 32 --load 32x32b"))
    assert heading(given_page).startswith("Accumulator of M = 128, N = 32")


def test_tma_view(open_page):
    """The copies of `triton-ext tma`, played: at each step the cells that have arrived."""
    page = open_page(page_of("tma --shape 4096x4096 --bits 16 --block 64x128 --at 4064,0"))
    copies = tile_copies((4096, 4096), (64, 128), NVMMAShared(128, 16), at=(4064, 0))
    rows = page.locator("#tma .boxes tbody tr").all_text_contents()
    assert rows == [
        f"{i}{{{', '.join(map(str, box.coordinates))}}}+{box.smem_offset}{box.transaction_bytes}"
        for i, box in enumerate(copies.boxes)
    ]
    assert f"expects {copies.transaction_bytes} bytes; 4096 elements" in field(
        page, "tma-note", "#tma"
    )
    page.locator(cell("tensor", 9, 72, "#tma")).hover()
    layout = NVMMAShared(128, 16).to_linear_layout((64, 128)).invert()
    byte = 2 * layout.apply(dim0=9, dim1=72)["offset"]
    assert fields(page, "#tma") == {
        "moved-element": "(9, 72)", "moved-global": "(4073, 72)", "moved-box": "1",
        "moved-address": hex(2 * (4073 * 4096 + 72)),
        "moved-byte": f"{byte} ({byte:#x})", "moved-bank": str(byte % 128 // 4),
    }  # fmt: skip
    slider = page.locator("#tma .steps")
    waiting = view("filled", "#tma") + " .cell.waiting"
    for step, left in ((0, 1024), (1, 960), (8, 512), (16, 0)):
        slider.fill(str(step))
        assert page.locator(waiting).count() == left
        assert page.locator(view("tensor", "#tma") + " .cell.waiting").count() == left
    page.locator("#tma .play").click()  # from the start, by itself
    page.wait_for_function("Number(document.querySelector('#tma .steps').value) >= 2")
    assert page.locator("#tma .play").text_content() == "Pause"
    page.locator("#tma .play").click()


def test_side_by_side(open_page):
    """An element that is pointed at on one side is shown on the other."""
    page = open_page(PAGE, state="view=compare&shape=64x64&type=16&swizzle2=rows")
    page.locator(cell("memory", 3, 16, "#compare .left")).hover()
    left, right = (fields(page, f"#compare .{side}") for side in ("left", "right"))
    assert left["coordinate"] == right["coordinate"]
    assert left["wavefronts"] == "1: no conflict"
    assert right["wavefronts"] == "8: 8-way conflict"
    plain = NVMMAShared(0, 16).to_linear_layout((64, 64)).invert()
    at = json.loads(left["coordinate"].replace("(", "[").replace(")", "]"))
    assert right["offset"] == str(plain.apply(dim0=at[0], dim1=at[1])["offset"])
    choose(page, shape2="32x64", type2="fp8")
    assert "32x64, K-major" in heading(page)


# ---------------------------------------------------------------- screens and keys

FAULTS = """() => {
  const seen = (node) => node.getClientRects().length > 0;
  const texts = [...document.querySelectorAll("svg text")].filter(seen);
  const drawnSize = (text) => text.getScreenCTM().a * parseFloat(getComputedStyle(text).fontSize);
  const named = (text) => `${text.ownerSVGElement.dataset.view}: ${text.textContent}`;
  const over = [];
  for (const svg of new Set(texts.map((text) => text.ownerSVGElement))) {
    const boxes = texts.filter((text) => text.ownerSVGElement === svg)
      .filter((text) => text.matches(".axis, .field"))
      .map((text) => [text, text.getBBox()]).sort((a, b) => a[1].y - b[1].y);
    boxes.forEach(([text, a], i) => {
      for (const [other, b] of boxes.slice(i + 1)) {
        if (b.y > a.y + 0.6 * a.height) break;
        const apart = a.x + a.width < b.x + 0.5 || b.x + b.width < a.x + 0.5;
        if (!apart) over.push(`${named(text)} | ${named(other)}`);
      }
    });
  }
  const values = [...document.querySelectorAll("dd")].filter(seen);
  const controls = [...document.querySelectorAll("svg, button, input, select")].filter(seen);
  return {
    wide: Math.max(0, document.documentElement.scrollWidth - innerWidth),
    small: texts.filter((text) => text.textContent && drawnSize(text) < 7.5).map(named),
    over,
    cut: values.filter((dd) => dd.scrollWidth > dd.clientWidth + 1).map((dd) => dd.dataset.field),
    unnamed: controls.filter((node) => !node.ariaLabel && !node.textContent.trim())
      .filter((node) => !node.closest("label")).map((node) => node.outerHTML),
  };
}"""


def rgb(colour):
    return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"


INKS = """() => [...document.querySelectorAll("svg .inside, svg .tag, dd, td, h2")]
  .filter((node) => node.getClientRects().length)
  .map((node) => getComputedStyle(node)[node.matches("svg *") ? "fill" : "color"])"""


def go(page, state):
    """Shows another state, as an address that is followed does."""
    page.evaluate(
        "(state) => new Promise((done) => { addEventListener('hashchange', () => done(),"
        " {once: true}); location.hash = state; })",
        state,
    )


@pytest.mark.parametrize("width", [400, 1200, 2500])
def test_every_view_on_every_screen(open_page, width):
    """No view is wider than the screen, has tiny or overlapping texts, or says half of a value."""
    page = open_page(PAGE, width=width)
    states = [f"view={name}" for name in VIEWS]
    states += ["view=layout&major=MN", "view=layout&shape=128x128&cga=[[1,0],[0,1]]",
               "view=layout&shape=2x2x64x64&swizzle=64", "view=descriptor&major=MN&swizzle=64",
               "view=tma&tensor=104x100&swizzle=32&start_at=-8,0&major=MN",
               "view=tma&type=fp4-padded", "view=tma&cga=[[1,0]]&cta=1&strides=136,1",
               "view=tmem&matrix=Scale+factors,+128+rows",
               "view=banks&access=ldmatrix.x4&swizzle=rows"]  # fmt: skip
    for state in states:
        go(page, state)
        assert status(page) == ""
        faults = {kind: found for kind, found in page.evaluate(FAULTS).items() if found}
        assert not faults, state
        for scheme, theme in (("light", LIGHT), ("dark", DARK)):
            page.emulate_media(color_scheme=scheme)
            assert set(page.evaluate(INKS)) <= {rgb(theme.ink), rgb(theme.ground)}, state


@pytest.mark.parametrize(("scheme", "theme"), [("light", LIGHT), ("dark", DARK)])
def test_colour_schemes(open_page, scheme, theme):
    page = open_page(PAGE, scheme=scheme)
    style = "(node) => [getComputedStyle(node).backgroundColor, getComputedStyle(node).color]"
    assert page.locator("html").evaluate(style) == [rgb(theme.ground), rgb(theme.ink)]
    section = page.locator("#layout section.tile")
    assert section.evaluate(style) == [rgb(theme.panel), rgb(theme.ink)]
    fill_of = "(node) => getComputedStyle(node).fill"
    assert page.locator(cell("atom", 0, 8)).evaluate(fill_of) == rgb(theme.fills[1])


@pytest.mark.parametrize("width", [400, 1600])
def test_hovering_moves_nothing(open_page, width):
    page = open_page(PAGE, width=width)
    page.evaluate(
        "window.shifts = 0; new PerformanceObserver((list) => list.getEntries().forEach("
        "(entry) => { window.shifts += entry.value; })).observe({type: 'layout-shift'})"
    )
    boxes = "[...document.querySelectorAll('#layout :is(section, .chunk-elements, dd, li, svg)')]"
    boxes += ".map((node) => { const b = node.getBoundingClientRect(); return"
    boxes += " [b.x + scrollX, b.width, b.height, node.closest('.info') ? 0 : b.y + scrollY]; })"
    before = page.evaluate(boxes)
    for name, row, column in (
        ("tile", 0, 0), ("tile", 40, 96), ("atom", 44, 72), ("memory", 45, 64),
        ("banks", 47, 120), ("tile", 17, 8), ("elements", 0, 0),
    ):  # fmt: skip
        last = "#layout .chunk-elements button:last-child"
        page.locator(last if name == "elements" else cell(name, row, column)).first.hover()
        assert page.evaluate(boxes) == before, name
    assert page.evaluate("window.shifts") == 0


def test_keyboard(open_page):
    page = open_page(PAGE)
    page.locator('[data-state="cga"]').focus()
    focused = "document.activeElement.ownerSVGElement?.dataset.view"
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "tile"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert fields(page)["coordinate"] == "(1, 8)"
    spoken = page.locator("#spoken")
    assert spoken.text_content() == "element (1, 8), offset 64, byte 128 (0x80), bank 0"
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
    page.locator('[role="tab"][aria-selected="true"]').focus()
    for name in [*list(VIEWS)[1:], "layout"]:
        page.keyboard.press("ArrowRight")
        assert page.locator(f"#{name}").is_visible()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.locator(cell("fragment", 0, 0, "#fragments")).focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert fields(page, "#fragments")["held-element"] == "(1, 1)"
    assert spoken.text_content() == "lane 4, register 0: rows 1, columns 1"
