"""``docs/guide/layouts.md`` and ``docs/reference/sources.md`` hold what they claim."""

from __future__ import annotations

import ast
import doctest
import json
import re
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from kernel_configurations import compiled_configurations
from pages import assert_prints, console_blocks
from sites import ROOT, triton_sites

from triton_ext import LayoutError
from triton_ext.commands.ptx import list_instructions
from triton_ext.commands.tma import tma
from triton_ext.hardware.tensor_memory import accumulator_layout
from triton_ext.hardware.tensor_memory_access import plan_transfer
from triton_ext.ptx.parse import parse_ptx

DOCS = ROOT / "docs"
PAGE = (DOCS / "guide" / "layouts.md").read_text(encoding="utf-8")
SOURCES = (DOCS / "reference" / "sources.md").read_text(encoding="utf-8")
BLOCKS = console_blocks(PAGE)


def test_pictures_are_what_make_docs_generates(generate):
    drawn = {f"{name}.svg": draw() for name, draw in generate.pictures().items()}
    committed = {path.name for path in (DOCS / "pictures").iterdir()}
    assert committed == set(drawn)
    for name, svg in drawn.items():
        assert (DOCS / "pictures" / name).read_text(encoding="utf-8") == svg, name
        ElementTree.fromstring(svg)


def test_page_is_what_make_docs_writes(generate):
    assert generate.refreshed(PAGE) == PAGE
    assert len(BLOCKS) >= 15


def test_a_stale_page_is_refreshed(generate):
    """The test above can fail: `make docs` mends what a command no longer prints."""
    _, output = BLOCKS[0]
    stale = PAGE.replace(output, "something else\n", 1)
    assert stale != PAGE
    assert generate.refreshed(stale) == PAGE
    with pytest.raises(RuntimeError, match="no shape"):
        generate.command_output("layout --shape ax3")


@pytest.mark.parametrize("index", [0, -1])
def test_blocks_by_the_installed_command(index):
    """`make docs` runs the commands in its own process; the first and the last in one of theirs."""
    assert_prints(*BLOCKS[index])


def test_every_picture_is_shown_with_a_text():
    """On this page; the picture of the layers is on the page on architecture."""
    pages = PAGE + (DOCS / "architecture.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"!\[([^\]]*)\]\((?:\.\./)?pictures/([\w-]+)\.svg\)", pages))
    assert sorted(shown.values()) == sorted(path.stem for path in (DOCS / "pictures").iterdir())
    assert all(len(text) > 8 for text in shown)


def test_named_picture_commands_draw_the_picture_above(generate):
    """``*`triton-ext ... --format svg`*`` under a picture is the command that drew it."""
    pairs = re.findall(r"\(\.\./pictures/([\w-]+)\.svg\)\n\n\*`(triton-ext [^`]*)`", PAGE)
    assert len(pairs) >= 8
    for name, command in pairs:
        drawn = generate.command_output(command.partition(" ")[2])
        kept = (DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8")
        if name.startswith("atom"):  # the last of several; the command draws one of them
            kept = (DOCS / "pictures" / "atom-k-64.svg").read_text(encoding="utf-8") + "\n"
        assert drawn == kept, name


def test_examples():
    examples = "\n\n".join(re.findall(r"```pycon\n(.*?)```", PAGE, re.DOTALL))
    parsed = doctest.DocTestParser().get_doctest(examples, {}, "layouts.md", "layouts.md", 0)
    result = doctest.DocTestRunner(verbose=False).run(parsed)
    assert result.failed == 0
    assert result.attempted >= 14


def test_named_tests_exist():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", SOURCES)
    assert len(named) >= 18
    for file, function in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert function in {node.name for node in tree.body if hasattr(node, "name")}, function


# --------------------------------------------- evidence for sources.md that no other test has


def test_thread_6_has_vector_1_2():
    """Row-major 8x4 threads of 2 elements: thread 6 is (1, 2), elements (1, 4) and (1, 5)."""
    load = plan_transfer(accumulator_layout(64, 64), "16x256b")
    first = {"slot": 0, "thread": 6, "warp": 0}
    assert [load.elements.apply({**first, "register": i}) for i in range(2)] == [
        {"dim0": 1, "dim1": 2 * 2},
        {"dim0": 1, "dim1": 2 * 2 + 1},
    ]
    assert divmod(6, 4) == (1, 2)


def test_innermost_coordinate():
    def run(column):
        arguments = f"--shape 4096x4096 --bits 16 --block 64x64 --at 0,{column}".split()
        return CliRunner().invoke(tma, arguments)

    assert run(8).exit_code == 0
    refused = run(4).exception
    assert isinstance(refused, LayoutError)
    assert "the innermost coordinate must be a multiple of 8 elements (16 bytes)" in str(refused)


def test_recorded_wavefronts():
    """An H100's counters: 2-byte accesses as predicted; pairs of lanes at half of it."""
    path = ROOT / "benchmarks" / "results" / "bank_conflicts_h100.json"
    rows = {row["case"]: row for row in json.loads(path.read_text(encoding="utf-8"))["rows"]}
    narrow = rows["fp16 swizzled by 2 B: columns -> columns"]
    for access in (narrow["st"], narrow["ld"]):
        assert access["instruction"].endswith("shared 2 B")
        assert access["measured_wavefronts"] == access["wavefronts"]
        assert access["measured_conflicts"] == access["wavefronts"] - access["ideal_wavefronts"] > 0
    for width in (8, 16):
        pairs = rows[f"fp32 row-major: rows of 16 B -> {width} B, by pairs of lanes"]["ld"]
        assert 2 * pairs["measured_wavefronts"] == pairs["wavefronts"]
    narrow_pairs = rows["fp32 row-major: rows of 16 B -> 4 B, by pairs of lanes"]["ld"]
    assert narrow_pairs["measured_wavefronts"] == narrow_pairs["wavefronts"]


@pytest.mark.parametrize("site", triton_sites())
@pytest.mark.parametrize("arch", [90, 100])
def test_triton_writes_0_where_lbo_is_unused(arch, site):
    """K-major operands with a swizzle, in the PTX of each release."""
    result = next(
        result
        for fields, result in compiled_configurations(arch, site)
        if (fields["a_major"], fields["b_major"]) == ("K", "K")
    )
    notes = [
        note
        for instruction in list_instructions(parse_ptx(result["ptx"]))
        for note in instruction.notes
        if note.startswith(("A:", "B:"))
    ]
    assert len(notes) >= 2
    assert all("LBO 0 (not read), SBO 1024, swizzle 128B" in note for note in notes)
