"""``docs/reference/undefined.md``: what published kernels rely on, from the emulator's table."""

from __future__ import annotations

import pytest
from sites import ROOT

pytest.importorskip("ml_dtypes")

from triton_ext.emulator.state.leniencies import LENIENCIES


def test_the_page_is_what_make_docs_writes(generate):
    page = (ROOT / "docs/reference/undefined.md").read_text(encoding="utf-8")
    assert generate.undefined() == page
    for rule in LENIENCIES:
        assert page.count(f"## {rule.name}\n") == 1
        assert rule.evidence
        assert rule.document.startswith("PTX ISA")
