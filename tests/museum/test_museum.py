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
PAGE = (ROOT / "docs/reference/museum.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=TITLES)
def test_the_mended_kernel_is_clean(exhibit):
    for schedule in SCHEDULES:
        exhibit.run(exhibit.right, schedule)


def test_the_mended_kernels_assemble():
    assemble(exhibit.right for exhibit in EXHIBITS)


def ends(exhibit, schedule, kernel=str):
    """What the broken kernel ends in."""
    try:
        exhibit.run(kernel(exhibit.wrong), schedule)
    except WrongResult:
        return WrongResult
    except EmulationError:
        return EmulationError
    return None


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=TITLES)
def test_the_broken_kernel_ends_as_the_museum_says(exhibit):
    """Under each schedule in a fault, if it is found at all; under one, in that which is shown."""
    found = {ends(exhibit, schedule) for schedule in SCHEDULES}
    named = exhibit.fault not in (None, WrongResult)
    assert found == ({EmulationError} if named else {exhibit.fault})
    said = exhibit.message()
    assert said.startswith(exhibit.fault.__name__ if named else "no fault" if exhibit.fault else "")
    assert exhibit.says in said


@pytest.mark.parametrize(
    "exhibit", [pytest.param(each, id=each.title) for each in EXHIBITS if each.is_of_both]
)
def test_hopper_and_blackwell_end_alike(exhibit):
    def on_blackwell(kernel):
        assert ".target sm_90a" in kernel
        return kernel.replace(".target sm_90a", ".target sm_100a")

    exhibit.run(on_blackwell(exhibit.right), exhibit.schedule)
    schedule = exhibit.schedule
    assert ends(exhibit, schedule, on_blackwell) == ends(exhibit, schedule)


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
        assert all(
            re.fullmatch(r"[\w.-]+/[\w.-]+(#\d+|:[\w./]+)", source) for source in exhibit.sources
        )
