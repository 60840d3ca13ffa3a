"""The reader of printed modules: against Triton's own walk; locations, memory flow, edits."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys

import pytest
from mutations import some
from pass_corpus import corpus
from sites import DATA, SUPPORT, triton_sites

from triton_ext import LayoutError
from triton_ext.mlir.attributes import attribute_aliases
from triton_ext.mlir.edits import Edits
from triton_ext.mlir.memory_flow import MemoryFlow, forwarded
from triton_ext.mlir.module import MlirModule
from triton_ext.mlir.types import memory_type

WORKER = SUPPORT / "mlir_worker.py"

MODULE = (DATA / "memory_flow.ttgir").read_text()


@pytest.fixture
def module():
    return MlirModule(MODULE)


def named(module, name):
    return next(value for value in module.values if value.name == name)


def operation(module, name):
    return next(each for each in module.operations if each.name == name)


# ---------------------------------------------------------------------------- against Triton


def flattened(text, aliases):
    """A type with all aliases resolved, as Triton's bindings print it."""
    while (resolved := re.sub(r"#\w+(?![\w.])", lambda m: aliases.get(m[0], m[0]), text)) != text:
        text = resolved
    return text


@pytest.mark.parametrize("site", triton_sites())
def test_as_triton_walks_it(site):
    """Every operation, its number of operands, and every result's type, of all corpus kernels."""
    pytest.importorskip("triton")
    kernels = corpus(site, tier=1 if site else 2).kernels
    assert len(kernels) >= (25 if site else 120)
    path = f"{site}{os.pathsep}" if site else ""
    run = subprocess.run(
        [sys.executable, str(WORKER)],
        input=json.dumps([kernel.ttgir for kernel in kernels]),
        env={**os.environ, "PYTHONPATH": f"{path}{SUPPORT}"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    unknown = []
    for kernel, line in zip(kernels, run.stdout.splitlines(), strict=True):
        theirs = json.loads(line)
        assert theirs is not None, kernel.name
        module = MlirModule(kernel.ttgir)
        # The printed form leaves out terminators that say nothing, and the operation around the
        # partitions of warp_specialize.
        silent = ("ttg.warp_specialize.partitions", "scf.yield")
        theirs = [each for each in theirs if each[0] not in silent or each[1]]
        ours = [each for each in module.operations if each.name not in silent or each.operands]
        theirs = [each for each in theirs if each[0] != silent[0]]
        assert [each.name for each in ours] == [each[0] for each in theirs], kernel.name
        for mine, (_, operands, types) in zip(ours, theirs, strict=True):
            if mine.name != "ttg.warp_specialize":  # prints those of the operation within
                assert len(mine.operands) == operands, mine.text
            assert len(mine.results) == len(types), mine.text
            for value, type_ in zip(mine.results, types, strict=True):
                if value.type is None:
                    unknown.append((mine.name, type_))
                else:
                    assert flattened(value.type, module.aliases) == type_, mine.text
    assert not [type_ for _, type_ in unknown if "memdesc" in type_ or "tensordesc" in type_]
    assert {name for name, _ in unknown} <= {"tt.elementwise_inline_asm"}


# -------------------------------------------------------------------------------- what is read


def test_structure(module):
    loop = operation(module, "scf.for")
    assert [value.name for value in loop.results] == ["%loop#0", "%loop#1"]
    assert [value.name for value in loop.operands] == [
        "%c0_i32", "%n", "%c1_i32", "%first", "%c0_i32",
    ]  # fmt: skip
    arguments = loop.regions[0].entry.arguments
    assert [(value.name, value.type) for value in arguments][::2] == [
        ("%i", "i32"),
        ("%sum", "i32"),
    ]
    assert module.memory(arguments[1]).shape == (64, 64)
    assert operation(module, "scf.yield").parent.name == "scf.if"
    special = operation(module, "ttg.warp_specialize")
    assert len(special.regions) == 2
    # A partition sees nothing from outside: its %first is another one.
    (inner,) = [value for value in module.values if value.name == "%first" and value.type == "i32"]
    assert inner.uses[0][0].results[0].name == "%w"
    function = operation(module, "tt.func")
    assert [block.label for block in function.regions[0].blocks] == ["", "^bb1", "^bb2"]


def test_attributes(module):
    assert module.attributes == {"ttg.num-warps": 4, "ttg.target": "cuda:90"}
    load = operation(module, "ttg.local_load")
    assert load.attributes == {"ttg.partition": [1, 2], "word": 'a, \\"b\\" = c'}
    special = operation(module, "ttg.warp_specialize")
    assert special.attributes == {"requestedRegisters": [24]}


def test_locations(module):
    assert str(named(module, "%a").definition.location) == "kernel.py:10:4"
    inlined = named(module, "%half").definition.location
    assert (inlined.file, inlined.line, inlined.column) == ("library.py", 20, 8)
    assert [str(caller) for caller in inlined.callers] == ["kernel.py:10:4"]
    assert MlirModule("module {\n}").root.location is None


def test_memory_types():
    aliases = {"#shared": "#ttg.nvmma_shared<{}>", "#tmem": "#ttng.tensor_memory"}
    view = memory_type("!ttg.memdesc<64x32xf16, #shared, #smem, mutable, 64x64>", aliases)
    assert (view.shape, view.allocated, view.is_mutable) == ((64, 32), (64, 64), True)
    assert (view.element_bitwidth, view.mnemonic, view.alias) == (16, "nvmma_shared", "#shared")
    tensor = memory_type(
        "!ttg.memdesc<128x64xf32, #ttng.tensor_memory_encoding<a = 1>, #tmem>", aliases
    )
    assert (tensor.space, tensor.is_mutable) == ("tensor", False)
    assert memory_type("!tt.tensordesc<8x64xf8E4M3FN, #shared>", aliases).element_bitwidth == 8
    assert memory_type("tensor<64xf16>", aliases) is None
    with pytest.raises(LayoutError, match="expected a shape"):
        memory_type("!ttg.memdesc<f16, #shared>", aliases)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "no 'module'"),
        ("module {", "ends too early"),
        ("module {\n  %a = \n}", "expected an operation"),
        ("module {\n  %a b = x.y\n}", "names of results"),
        ("module {\n  %a:b = x.y\n}", "how many results"),
        ("module {\n  x.y %a\n}", "takes a value that is not defined"),
        ("module {\n  x.y {\n ^bb0(%a: i32\n}", "ends too early"),
    ],
)
def test_unreadable(text, rule):
    with pytest.raises(LayoutError, match=re.escape(rule)):
        MlirModule(text)


def test_an_open_bracket_is_shown_with_what_surrounds_it():
    with pytest.raises(LayoutError, match=re.escape("#tile = #ttg.shared_linear<{offset")):
        attribute_aliases("#tile = #ttg.shared_linear<{offset")


def test_mangled_modules_raise_typed_errors():
    draw = random.Random(5)
    pieces = [
        "{",
        "}",
        "(",
        ")",
        "<",
        ">",
        "\n",
        "%a",
        "%",
        ":",
        "->",
        "loc(",
        '"',
        "^bb1",
        "=",
        ",",
    ]
    for _ in range(some(400)):
        text = MODULE
        for _ in range(draw.randint(1, 3)):
            start = draw.randrange(len(text))
            stop = min(len(text), start + draw.choice((0, 1, 5, 200)))
            text = text[:start] + draw.choice(["", *pieces]) + text[stop:]
        try:
            found = MlirModule(text)
            for each in found.operations:
                _ = each.attributes, each.location, each.signature
            for value in found.values:
                found.memory(value)
            list(forwarded(found))
        except LayoutError:
            pass


# -------------------------------------------------------------------------------- memory flow


def sources(module, name):
    return {value.name for value in MemoryFlow(module).sources(named(module, name))}


def test_memory_flow(module):
    assert sources(module, "%first") == {"%a"}
    assert sources(module, "%now") == sources(module, "%half") == {"%a", "%b"}
    assert sources(module, "%loop#0") == sources(module, "%next") == {"%a", "%b"}
    assert sources(module, "%w") == {"%a"}
    assert sources(module, "%d") == {"%b"}
    assert sources(module, "%m") == {"%a"}
    flow = MemoryFlow(module)
    assert [value.name for value in flow.shared_sources] == ["%a", "%b"]
    touched = {use.name for use, _ in flow.uses(named(module, "%b"))}
    assert {"ttg.local_load", "ttg.local_dealloc", "ttng.async_tma_copy_local_to_global"} <= touched
    assert {value.name for value in flow.views(named(module, "%first"))} == {
        "%first", "%now", "%half", "%next", "%loop#0", "%m",
    }  # fmt: skip


def test_flow_through_calls():
    module = MlirModule((DATA / "calls.ttgir").read_text())
    assert sources(module, "%r") == {"%a", "%b"}
    assert sources(module, "%w") == sources(module, "%u") == {"%a", "%b"}


# -------------------------------------------------------------------------------------- edits


def test_edits(module):
    edits = Edits(module)
    assert not edits
    assert edits.apply() == MODULE
    copy = operation(module, "ttng.async_tma_copy_local_to_global")
    alias = edits.alias("#ttg.new<{}>")
    assert edits.alias("#ttg.new<{}>") == alias
    assert edits.alias(module.aliases["#shared"]) == "#shared"
    name = edits.fresh_name("view")
    assert edits.fresh_name("view") != name
    edits.insert_before(copy, f"{name} = x.view %loop#0 : {alias}")
    edits.replace_operand(copy, 2, name)
    assert edits
    changed = MlirModule(edits.apply())
    copy = operation(changed, "ttng.async_tma_copy_local_to_global")
    assert copy.operands[2].definition.name == "x.view"
    assert copy.operands[2].definition.operands[0].name == "%loop#0"
    assert len(changed.operations) == len(module.operations) + 1
    assert changed.aliases[alias] == "#ttg.new<{}>"


def test_overlapping_edits(module):
    edits = Edits(module)
    edits.replace(10, 20, "x")
    edits.replace(15, 25, "y")
    with pytest.raises(LayoutError, match="overlap"):
        edits.apply()


def test_adjacent_edits(module):
    """Where one change ends another may begin, and two new lines may stand at one place."""
    edits = Edits(module)
    edits.replace(20, 25, "y")
    edits.replace(10, 20, "x")
    assert edits.apply() == f"{MODULE[:10]}xy{MODULE[25:]}"
    edits = Edits(module)
    copy = operation(module, "ttng.async_tma_copy_local_to_global")
    edits.insert_before(copy, "%first = x.first : i32")
    edits.insert_before(copy, "%second = x.second : i32")
    changed = MlirModule(edits.apply())
    names = [each.name for each in changed.operations]
    at = names.index("x.first")
    assert names[at : at + 3] == ["x.first", "x.second", copy.name]
