"""The evidence that each instruction claims, against the cases that an H100 ran."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator

import pytest
from silicon import copy_cases, record_matrix
from silicon.check import kinds
from silicon.scalar_cases import scalar_cases
from sites import ROOT

from triton_ext.emulator.decode.decoder import instruction
from triton_ext.emulator.decode.evidence import BOUNDED, EVIDENCE, SILICON
from triton_ext.emulator.decode.program import find
from triton_ext.emulator.instructions import FAMILIES, OPCODES, TABLES
from triton_ext.emulator.instructions.elementwise import Row
from triton_ext.ptx.parse import Instruction, parse_ptx

RESULTS = ROOT / "benchmarks" / "results"


def record(name):
    return json.loads((RESULTS / f"emulator_{name}_h100.json").read_text())


@pytest.fixture(scope="module")
def scalar():
    return scalar_cases(0)


def test_the_scalar_cases_are_those_that_the_gpu_ran(scalar):
    """It ran as many of each, and none differed."""
    ran = record("scalar")
    assert (ran["cases"], ran["differences"]) == (len(ran["seeds"]) * len(scalar), 0)
    assert ran["cases_by_opcode"] == {
        kind: len(ran["seeds"]) * number for kind, number in kinds(scalar).items()
    }


def instructions_of(ptx: str) -> Iterator[tuple[str, Instruction]]:
    for kernel in parse_ptx(ptx).kernels:
        for each in kernel.instructions:
            yield find(each.opcode, OPCODES).base, each


def test_rows_claim_what_the_gpu_ran(scalar):
    """A row is of silicon if each of its opcodes was in a case; bit by bit, if one was compared so.

    This holds for what is claimed too much and too little.
    """
    rows: dict[str, list[Row]] = defaultdict(list)
    for row in (row for table in TABLES for row in table.ROWS):
        for name in row.opcodes.split():
            rows[name].append(row)
    exact, bounded, seen = set(), set(), set()
    for case in scalar:
        for base, each in instructions_of(case.ptx):
            form = (each.opcode, len(each.operands), case.bound is None)
            if base not in rows or form in seen:
                continue
            seen.add(form)
            parts = each.opcode[len(base) + 1 :].split(".") if each.opcode != base else []
            row = next(row for row in rows[base] if row.form(base, parts, len(each.operands)))
            (exact if case.bound is None else bounded).add((id(row), base))
    for row in (row for table in TABLES for row in table.ROWS):
        names = [(id(row), name) for name in row.opcodes.split()]
        if all(name in exact for name in names):
            assert row.evidence == SILICON, row
        elif all(name in exact | bounded for name in names):
            assert row.evidence == BOUNDED, row
        else:
            assert row.evidence not in (SILICON, BOUNDED), row


def test_other_instructions_of_silicon_are_in_a_case_that_the_gpu_ran(scalar):
    ran = {case.ptx for case in scalar}
    kept = record("copies")["digests"]
    ran |= {case.ptx for case in copy_cases.all_cases() if case.key in kept}
    ran |= {case.ptx for case in record_matrix.all_cases()}
    seen = {base for ptx in ran for base, _ in instructions_of(ptx)}
    claimed = {each.base for each in OPCODES.values() if each.evidence in (SILICON, BOUNDED)}
    assert claimed
    assert claimed - seen == set()


def test_every_instruction_says_what_it_rests_on():
    with pytest.raises(TypeError, match="evidence"):
        instruction("st.bulk")
    with pytest.raises(TypeError):
        Row("add", "", "u32", "t = t, t")
    elementwise = {name for table in TABLES for row in table.ROWS for name in row.opcodes.split()}
    for each in OPCODES.values():
        assert (each.evidence is None) == (each.base in elementwise)
    assert {each.evidence for each in OPCODES.values()} - {None} <= set(EVIDENCE)
    assert len(FAMILIES) + len(TABLES) == len({*FAMILIES, *TABLES}) + 1  # moves has both
