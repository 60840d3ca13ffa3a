"""``docs/reference/instructions.md``: every instruction of the emulator, with its evidence."""

from __future__ import annotations

from collections import Counter

import pytest
from sites import ROOT

pytest.importorskip("ml_dtypes")

from triton_ext.emulator.instructions import OPCODES
from triton_ext.emulator.instructions.evidence import EVIDENCE, MEANINGS

PAGE = ROOT / "docs/reference/instructions.md"


def test_the_page_is_what_make_docs_writes(generate):
    assert generate.instructions() == PAGE.read_text(encoding="utf-8")


def test_every_opcode_has_its_evidence_named_once():
    """By its name, not by the beginning of it: a new ``st.bulk`` has no evidence of ``st``."""
    named = Counter(name for each in EVIDENCE for name in each.names)
    assert set(named) == set(OPCODES)
    assert set(named.values()) == {1}


def test_every_kind_of_evidence_is_explained():
    assert {each.kind for each in EVIDENCE} == set(MEANINGS)
