"""Layout dumps that are damaged or hostile: read as the schema says, or refused; nothing else."""

from __future__ import annotations

import copy
import functools
import json
import random

import pytest
from click.testing import CliRunner
from mutations import mutated, some

from triton_ext import LayoutError, NVMMAShared, SharedLinear, SwizzledShared
from triton_ext.cli import main
from triton_ext.layouts.attributes import MAX_DEPTH, parse_value
from triton_ext.layouts.dump import SCHEMA, LayoutDump, dump_encoding, from_json, to_json
from triton_ext.layouts.schema import MAX_BYTES, check
from triton_ext.render.grid import MAX_CELLS, draw_grid
from triton_ext.render.html import dump_html
from triton_ext.render.svg import dump_svg
from triton_ext.render.text import dump_text, explain

jsonschema = pytest.importorskip("jsonschema")

CLUSTER = ((1, 0), (0, 1))
DUMPS = [
    dump_encoding(NVMMAShared(128, 16), (16, 64)),
    dump_encoding(NVMMAShared(128, 16), (16, 64), disable_swizzle=True),
    dump_encoding(NVMMAShared(64, 8, transposed=True), core=True),
    dump_encoding(NVMMAShared(32, 16, cga_layout=CLUSTER), (64, 64)),
    dump_encoding(NVMMAShared(0, 32, rank=3), (2, 8, 16)),
    dump_encoding(SwizzledShared(4, 2, 4, (1, 0)), (8, 32), element_bitwidth=16),
    dump_encoding(SharedLinear(((0, 1), (1, 0)), ((0, 2),))),
    LayoutDump("tile", "#ttg.other<{}>", None, (4,), None, "#shared", "is not supported"),
]
DOCUMENTS = [json.loads(to_json([dump])) for dump in DUMPS] + [json.loads(to_json(DUMPS[:3]))]


@functools.cache
def by_jsonschema():
    """The same schema for the package jsonschema, where 1.0 is no integer either."""
    whole = jsonschema.Draft202012Validator
    types = whole.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    kind = jsonschema.validators.extend(whole, type_checker=types)
    return kind(json.loads(SCHEMA.read_text()))


def is_legal(document):
    try:
        check(document, json.loads(SCHEMA.read_text()), "json")
    except LayoutError:
        return False
    return True


def test_every_dump_is_read_again():
    for dump in DUMPS:
        assert from_json(to_json([dump])) == [dump]


def test_mutated_documents():
    """The package jsonschema agrees; what is accepted can be shown in every form, or is refused."""
    generator = random.Random(13)
    legal = accepted = 0
    for _ in range(some(250)):
        document = mutated(generator.choice(DOCUMENTS), generator)
        legal += is_legal(document)
        assert is_legal(document) == by_jsonschema().is_valid(document), document
        try:
            dumps = from_json(json.dumps(document))
        except LayoutError:
            continue
        accepted += 1
        for dump in dumps:
            pictures = (dump_svg, dump_html) if accepted % 8 == 0 else ()
            for shown in (dump_text, explain, in_a_grid, *pictures):
                try:
                    shown(dump)
                except LayoutError:
                    assert shown in (dump_svg, dump_html, in_a_grid)
    assert accepted > some(8)
    assert legal > accepted + some(4), "what the schema cannot say is refused, too"


def in_a_grid(dump):
    return dump.layout and draw_grid(dump.layout, dump.element_bitwidth)


def broken(change):
    document = copy.deepcopy(DOCUMENTS[0])
    change(document["layouts"][0])
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "is no JSON document"),
        ('{"version": ' + "[" * 5000 + "]" * 5000 + "}", "is no JSON document|must be 1"),
        ('{"version": ' + "9" * 5000 + "}", "is no JSON document"),
        (" " * (MAX_BYTES + 1), "must have at most"),
        ("\x00", "is no JSON document"),
        (broken(lambda one: one["layout"]["in_dims"][0].update(size=2)), "size = 2: must be 1024"),
        (broken(lambda one: one["layout"]["out_dims"].append(one["layout"]["out_dims"][0])),
         "names must be distinct"),
        (broken(lambda one: one["layout"]["in_dims"].append(one["layout"]["in_dims"][0])),
         "names must be distinct"),
        (broken(lambda one: one.update(shape=[16, 128])), "shape = .16, 128.: must be that of"),
        (broken(lambda one: one["layout"]["in_dims"][0]["bases"].reverse()),
         "is not that of its encoding"),
        (broken(lambda one: one.update(alias="\x1b[2J")), r"layouts\[0\].alias = .*must match"),
        (broken(lambda one: one.update(what="tree")), "what = 'tree': must be"),
    ],
)  # fmt: skip
def test_what_is_refused(text, message, tmp_path):
    file = tmp_path / "dump.json"
    file.write_text(text)
    with pytest.raises(LayoutError, match=message):
        from_json(text)
    finished = CliRunner().invoke(main, ["layout", str(file)])
    assert finished.exit_code == 2
    assert finished.output.startswith("triton-ext: ")
    assert len(finished.output) < 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["#ttg.shared_linear<{offset = " + "[" * 3000 + "}>"], "must nest at most"),
        (["#a<b = #a<b = " * 40], "must nest at most"),
        ([f"#ttg.swizzled_shared<{{vec = {'9' * 5000}}}>"], "an integer of at most"),
        (["#" + "a" * (1 << 20)], "must have at most"),
        (["--bits", "16", "--shape", "9" * 5000 + "x8"], "'999"),
        (["--bits", "16", "--shape", "64x64", "--cga", "[[" + "1" * 5000 + ", 0]]"], "no list"),
        (["--bits", "16", "--shape", "65536x65536", "--full", "--format", "grid"], "--full"),
        (["--bits", "16", "--shape", "64x64", "--timeout", "1e-6", "--format", "html"], "timeout"),
    ],
)
def test_limits_of_the_command(arguments, message):
    finished = CliRunner().invoke(main, ["layout", *arguments])
    assert finished.exit_code == 2, finished.output
    assert message in finished.output
    assert len(finished.output) < 1000


def test_lists_as_deep_as_is_legal():
    deep = parse_value("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    for _ in range(MAX_DEPTH - 1):
        (deep,) = deep
    assert deep == []
    with pytest.raises(LayoutError, match=f"must nest at most {MAX_DEPTH} deep"):
        parse_value("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))


def test_the_largest_grid():
    layout = dump_encoding(NVMMAShared(128, 16), (1024, 1024)).layout
    cells = 1024 * 1024 // 8
    assert cells < MAX_CELLS
    table = draw_grid(layout, max_rows=None, max_width=None)
    rows = [line.split()[1:] for line in table.splitlines()[1:1025]]
    assert sum(map(len, rows)) == cells
    place = layout.invert()
    for row, column in ((0, 0), (1, 8), (513, 1016), (1023, 512)):
        assert int(rows[row][column // 8]) == place.apply(dim0=row, dim1=column)["offset"]
