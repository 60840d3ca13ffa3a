"""``docs/reference/instructions.md``: every instruction of the emulator, with its evidence."""

from __future__ import annotations

import pytest
from sites import ROOT

pytest.importorskip("ml_dtypes")

from triton_ext.emulator.decode.evidence import EVIDENCE
from triton_ext.emulator.instructions import OPCODES

PAGE = ROOT / "docs/reference/instructions.md"


def test_the_page_is_what_make_docs_writes(generate):
    assert generate.instructions() == PAGE.read_text(encoding="utf-8")


def test_the_page_of_targets_is_what_make_docs_writes(generate):
    page = ROOT / "docs/reference/targets.md"
    assert generate.targets() == page.read_text(encoding="utf-8")


def test_the_page_names_every_opcode_and_every_kind_of_evidence():
    tables = PAGE.read_text(encoding="utf-8").partition("| family |")[2]
    assert {name for name in OPCODES if f"`{name}`" not in tables} == set()
    assert {each for each in EVIDENCE if f"| {each.label} |" not in tables} == set()
