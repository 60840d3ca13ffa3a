"""The table of what each target has, against ptxas, which refuses what a target lacks."""

from __future__ import annotations

import pytest
from target_samples import RELEASE, SAMPLES, TARGETS, module, refused_by_ptxas

from triton_ext.emulator.decode.program import find
from triton_ext.emulator.errors import UnsupportedInstruction, WrongArchitecture
from triton_ext.emulator.instructions import OPCODES, decode
from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import CAPABILITIES, Target, architecture
from triton_ext.ptx.new_forms import NEW_FORMS, new_form
from triton_ext.ptx.parse import parse_ptx
from triton_ext.ptx.targets import ROWS, lacking, owners

SMALL = {"sm_80", "sm_86", "sm_89", "sm_120", "sm_121"}
"""Targets whose tensor cores read registers."""
NOT_SAMPLED = {"bra", "brx.idx", "call", "ret"}
"""What needs a label or a function, and every target has."""


@pytest.fixture(scope="module")
def ptxas():
    triton = pytest.importorskip("triton")
    tool = triton.knobs.nvidia.ptxas_blackwell
    if tool.version != RELEASE:
        pytest.skip(f"this Triton's ptxas is {tool.version}, and not {RELEASE}")
    return tool.path


def instruction(line):
    """(opcode, operands) of a sample."""
    parsed = parse_ptx(module("100a", [line])).kernels[0].instructions[0]
    return parsed.opcode, parsed.operands


INSTRUCTIONS = {line: instruction(line) for line in SAMPLES}


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_lacks_what_ptxas_refuses(name, ptxas):
    refused = refused_by_ptxas(ptxas, name, SAMPLES)
    target = Target.parse(name)
    for line, (opcode, operands) in INSTRUCTIONS.items():
        row = lacking(target, opcode, operands)
        assert (row is not None) == (line in refused), (line, row, refused.get(line))


def test_every_opcode_has_a_sample_and_every_row_too():
    bases = {found.base for each in INSTRUCTIONS.values() if (found := find(each[0], OPCODES))}
    forms = {"barrier.warp.sync", "prefetch.param.tensormap", "mma.sp", "mma.sync.sp"}
    assert set(OPCODES) - bases <= NOT_SAMPLED | forms
    for row in ROWS:
        assert any(
            row.pattern.search(f"{opcode} {', '.join(operands)}")
            for opcode, operands in INSTRUCTIONS.values()
        ), row.what


@pytest.mark.parametrize(
    "name", ["90a", "100a", "103a", "107a", "110a", "120a", "80", "100", "103f"]
)
def test_the_emulator_refuses_by_name_what_a_target_lacks(name):
    """Nothing else is a `WrongArchitecture`, and what is not modelled is said to be that."""
    target = Target.parse(name)
    for line, (opcode, operands) in INSTRUCTIONS.items():
        try:
            decode(parse_ptx(module(name, [line])))
            found = None
        except UnsupportedInstruction as error:
            found = error
        row = lacking(target, opcode, operands)
        assert isinstance(found, WrongArchitecture) == (row is not None), (line, found)
        if row is not None:
            assert str(target) in str(found)
            assert owners(row.needs) in str(found)


@pytest.mark.parametrize("line", [line for line in SAMPLES if new_form(*INSTRUCTIONS[line])])
def test_new_forms_are_executed_or_refused_with_their_version(line):
    form = new_form(*INSTRUCTIONS[line])
    text = module("107a", [line])
    if form.executed:
        decode(parse_ptx(text))
        return
    with pytest.raises(UnsupportedInstruction, match=rf"PTX ISA {form.version}\): it is not"):
        decode(parse_ptx(text))


@pytest.mark.parametrize(
    ("opcode", "operand", "version"),
    [
        ("sin.approx.ftz.2pi.f32", "%f0", "9.5"),
        ("fence.alias.sync_restrict::read.release.sys", "", "9.5"),
        ("cp.async.bulk.wait_group.sync_restrict::proxy::async", "0", "9.5"),
        ("tensormap.query.alloc_class_large.global.b1024", "%p0", "9.5"),
        ("mov.u32", "%locality_domain_id", "9.5"),
        ("spcompress.sp::2:4.f32", "%r0", "9.4"),
        ("fabric.submit", "", "9.3"),
    ],
)
def test_forms_that_this_ptxas_does_not_read(opcode, operand, version):
    assert new_form(opcode, [operand]).version == version


def test_versions_are_in_order():
    versions = [form.version for form in NEW_FORMS]
    assert versions == sorted(versions)
    assert set(versions) == {"9.3", "9.4", "9.5"}


def test_names_of_targets():
    for text, found in {
        90: "sm_90", "sm90": "sm_90", "SM_100A": "sm_100a", "compute_103f": "sm_103f",
        " sm_121 ": "sm_121",
    }.items():  # fmt: skip
        assert str(Target.parse(text)) == found
    for text in ("sm_75", "sm_95", "100b", "sm", "", "1000", "sm_100aa", None):
        with pytest.raises(LayoutError, match="must be one of sm_80, "):
            Target.parse(text)


def test_families():
    """As ptxas takes ``.target sm_100f`` for the GPUs of its family."""
    assert owners(["100f"]) == "sm_100f, sm_103f and sm_107f"
    assert owners(["120f"]) == "sm_120f and sm_121f"
    assert owners(["90a"]) == "sm_90a alone"
    assert owners(["100"]) == "sm_100 and later"
    assert not Target.parse("110f").meets("100f")
    assert Target.parse("103a").meets("100f")
    assert not Target.parse("100a").meets("103f")


def test_who_has_descriptors():
    for number in CAPABILITIES:
        if f"sm_{number}" in SMALL:
            with pytest.raises(LayoutError, match=r"tensor cores of an .* read registers"):
                architecture(number)
        else:
            assert architecture(f"sm_{number}a") == (90 if number == 90 else 100)
