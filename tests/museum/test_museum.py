"""Every exhibit of the museum, broken and mended, and the page that shows them."""

from __future__ import annotations

import re

import pytest
from museum.exhibit import SCHEDULES, WrongResult
from museum.exhibits import EXHIBITS, page
from sites import ROOT
from tcgen05_ptx import assemble

from triton_ext.emulator.errors import EmulationError

TITLES = [exhibit.title for exhibit in EXHIBITS]
PAGE = (ROOT / "docs/museum.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=TITLES)
def test_the_mended_kernel_is_clean(exhibit):
    for schedule in SCHEDULES:
        exhibit.run(exhibit.right, schedule)


def test_the_mended_kernels_assemble():
    assemble(exhibit.right for exhibit in EXHIBITS)


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=TITLES)
def test_the_broken_kernel_ends_as_the_museum_says(exhibit):
    """Under each schedule in a fault, if it is found at all; under one, in that which is shown."""
    ends = set()
    for schedule in SCHEDULES:
        try:
            exhibit.run(exhibit.wrong, schedule)
            ends.add(None)
        except WrongResult:
            ends.add(WrongResult)
        except EmulationError:
            ends.add(EmulationError)
    named = exhibit.fault not in (None, WrongResult)
    assert ends == ({EmulationError} if named else {exhibit.fault})
    said = exhibit.message()
    assert said.startswith(exhibit.fault.__name__ if named else "no fault" if exhibit.fault else "")
    assert exhibit.says in said


def test_the_page_shows_what_happens():
    """`make docs` writes it."""
    assert page() == PAGE


def test_exhibits_are_distinct():
    assert len(set(TITLES)) == len(EXHIBITS) >= 40
    assert len({exhibit.wrong for exhibit in EXHIBITS}) == len(EXHIBITS)
    first = [exhibit.sources[0] for exhibit in EXHIBITS]
    assert len(set(first)) == len(first)
    for exhibit in EXHIBITS:
        assert exhibit.wrong != exhibit.right
        assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", source) for source in exhibit.sources)
