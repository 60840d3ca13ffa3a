"""``triton-ext diff``: the first difference of layouts, descriptors, kernels and traces."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from sites import DATA, ROOT
from strategies import surjective_layouts

from triton_ext import LinearLayout, NVMMAShared
from triton_ext.cli import main
from triton_ext.hardware.smem_descriptor import FIELDS
from triton_ext.layouts.dump import LayoutDump, dump_encoding, to_json
from triton_ext.render.difference import compare_layouts, compare_listings

PTX = (ROOT / "examples/cute_copy.ptx").read_text()
TTGIR = (DATA / "memory_flow.ttgir").read_text()


def run(*arguments, status):
    result = CliRunner().invoke(main, ["diff", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result.output


def first(*arguments):
    """The first difference, as the JSON has it."""
    found = json.loads(run(*arguments, "--format", "json", status=1))
    assert not found["same"]
    assert found["first"].items() >= next(row for row in found["rows"] if not row["same"]).items()
    return found["first"]


# ------------------------------------------------------------------------ layouts


@given(surjective_layouts(), st.data())
@settings(max_examples=60, deadline=None)
def test_the_first_basis_that_differs(layout, data):
    """Of a layout and itself with one basis changed."""
    bases = {name: list(vectors) for name, vectors in layout.bases.items()}
    places = [(name, bit) for name, vectors in bases.items() for bit in range(len(vectors))]
    same = LayoutDump("tile", "#a", layout)
    assert compare_layouts(same, LayoutDump("tile", "#b", layout)).first is None
    if not places:
        return
    name, bit = data.draw(st.sampled_from(places))
    sizes = layout.out_dims
    pairs = zip(bases[name][bit], sizes.values(), strict=True)
    changed = tuple(value ^ (size > 1) for value, size in pairs)
    if changed == tuple(bases[name][bit]):
        return
    bases[name][bit] = changed
    other = LayoutDump("tile", "#b", LinearLayout(bases, sizes))
    found = compare_layouts(same, other)
    assert [row.name for row in found.rows if not row.same] == [f"{name}={1 << bit}"]
    assert str(tuple(map(int, changed))) in (found.first.right, found.first.right[:-1] + ",)")


def test_layouts_are_compared_by_their_bases(tmp_path):
    """The attribute and a dump of it are the same; another swizzle is not."""
    encoding = NVMMAShared(128, 16)
    path = tmp_path / "a.json"
    path.write_text(to_json([dump_encoding(encoding, (64, 64))]))
    shape = ("--shape", "64x64")
    assert run(encoding, path, *shape, status=0) == "the same layout\n"
    found = first(NVMMAShared(64, 16), path, *shape)
    assert (found["name"], found["left"], found["right"]) == ("offset=32", "(1, 0)", "(0, 32)")
    assert first(encoding, path, "--shape", "32x64")["name"] == "sizes"


def test_each_side_has_24_columns_at_least(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    text = run(NVMMAShared(128, 16), NVMMAShared(64, 16), "--shape", "64x64", status=1)
    assert text.split("\n")[1].split() == 2 * ["#ttg.nvmma_shared<{swizz"]


# ------------------------------------------------------------------------ descriptors


@pytest.mark.parametrize("arch", [90, 100])
def test_a_bit_is_in_its_field(arch):
    value = 0x4000404000010000 if arch == 100 else 0x4000004000010000
    at = ("--arch", f"sm_{arch}")
    assert run(value, hex(value), *at, status=0) == "the same descriptor\n"
    for low, bits in FIELDS[arch].values():
        found = first(value, value ^ 1 << low, *at)
        assert re.search(rf"\(bits? {low}(-{low + bits - 1})?\)", found["name"])
        assert int(found["left"].split()[0], 0) ^ int(found["right"].split()[0], 0) == 1


def test_instruction_descriptors():
    found = first("0x08200490", "0x08200410", "--kind", "f16")
    assert found["name"] == "A type (bits 7-9)"
    assert "bf16" in found["left"]


# ------------------------------------------------------------------------ listings


def renamed(text):
    """The same kernel with other names, locations and comments."""
    text = re.sub(r"%(r|rd|p)(\d+)", r"%other_\1\2", text).replace("$L__", "$M__")
    return "// another compiler\n" + re.sub(r"\.loc\t1 (\d+)", r".loc\t1 1\1", text)


def test_names_and_locations_make_no_difference():
    assert compare_listings(PTX, renamed(PTX), "ptx").first is None
    other = re.sub(r"#shared\b", "#layout", re.sub(r"%(\w+)", r"%x_\1", TTGIR))
    assert compare_listings(TTGIR, re.sub(r"loc\(#\w+\)", "", other), "mlir").first is None


@pytest.mark.parametrize(("text", "kind"), [(PTX, "ptx"), (TTGIR, "mlir")], ids=["ptx", "ttgir"])
@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_the_first_line_that_differs(text, kind, part):
    """Of a kernel and itself with one of its instructions left out."""
    lines = text.splitlines()
    code = [i for i, line in enumerate(lines) if re.match(r"\s+(\w+(\.\w+)+|%\w+ = )", line)]
    gone = code[int(len(code) * part)]
    found = compare_listings(text, "\n".join(lines[:gone] + lines[gone + 1 :]), kind)
    assert found.first.name.split("/")[0] == str(gone + 1)
    assert len(found.rows) <= 10


def test_a_name_that_is_swapped_is_a_difference():
    swapped = PTX.replace("ld.shared.b32 \t%r20, [%r19]", "ld.shared.b32 \t%r20, [%r18]")
    assert swapped != PTX
    assert "[%r19]" in compare_listings(PTX, swapped, "ptx").first.left


TRACE = """\
     15  block (0, 0, 0), warp 0: mbarrier.init.shared::cta.b64 [%r5], 1  [a.py:48]
     24  block (0, 0, 0), warp 0: mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], 16384  [a.py:5]
"""  # noqa: E501


def test_traces(tmp_path):
    """Steps and source lines may differ; what is done may not."""
    elsewhere = TRACE.replace("a.py:48", "b.py:1").replace(" 15 ", " 16 ")
    paths = []
    for number, text in enumerate((TRACE, elsewhere, TRACE.replace("16384", "8192"))):
        paths.append(tmp_path / f"{number}.trace")
        paths[-1].write_text(text)
    assert run(*paths[:2], status=0) == "the same trace\n"
    said = run(paths[0], paths[2], status=1)
    assert said.startswith("not the same trace, first line 2/2\n")
    assert "16384" in said
    assert "8192" in said


# ------------------------------------------------------------------------ usage


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["0x1", "#ttg.nvmma_shared<>"], "swizzlingByteWidth"),
        (["0x1", "examples/cute_copy.ptx"], "is of kind descriptor"),
        (["0x1", "no-such-file"], "no readable file"),
        (["README.md", "README.md"], "is neither PTX"),
        (["0x1", str(1 << 64)], "descriptor"),
        (["examples/cute_copy.ptx", "examples/cute_copy.ptx", "--kind", "f16"], "for descriptors"),
        ([str(NVMMAShared(128, 16))] * 2, "shape"),
    ],
)
def test_usage(arguments, problem, monkeypatch):
    monkeypatch.chdir(ROOT)
    said = run(*arguments, status=2)
    assert problem in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "line", ["damaged", "[]", "3", '{"event": "x"}', '{"event":' + "[" * 5000, '{"event": null}']
)
def test_damaged_traces(tmp_path, line):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"event": "waits", "step": 1, "block": [0, 0, 0], "warps": [0], "threads": 32,'
                    f' "instruction": "bar.sync 0", "source": null}}\n{line}\n')  # fmt: skip
    result = CliRunner().invoke(main, ["diff", str(path), str(path)])
    assert result.exit_code == 2
    assert "line 2: is no event of a trace" in result.output
