"""``docs/reference/seeds.md``: every section of every seed, its tests, and no others."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import dataclass

import pytest
from sites import ROOT

TESTS = ROOT / "tests"
# The headings of the documents, in order. Seed 003's text came without: the titles are ours.
HEADINGS = {
    "000": [
        "Overview", "Code references", "PTX Documentation", "Convention", "MMA atom tiles",
        "Core matrix", "Swizzle atom", "Smem Descriptor", "Example 1", "Example 2", "Example 3",
        "Conclusion",
    ],
    "001": [
        "Introduction", "Core Matrix", "Swizzle Atom", "Triton",
        "SMEM Layouts for an MMA instruction", "MN major", "K major", "References",
    ],
    "002": [
        "0. Introduction", "1. The SMEM Descriptor", "2. Four Nested Levels",
        "3.1 The SMEM tile and the swizzle atom", "3.2 The MMA subtile",
        "3.3 The first descriptor", "3.4 The other 15", "3.5 How CuTe Implements This",
        "3.5.1 Original layout", "3.5.2 MMA partition", "3.5.3 Recast", "3.5.4 Canonical layout",
        "3.5.5 Descriptor advance", "4.1 The SMEM tile and the swizzle atom",
        "4.2 The MMA subtile", "4.3 The first descriptor", "4.4 The other 15",
        "4.5 How CuTe Implements This", "4.5.1 Original layout", "4.5.2 MMA partition",
        "4.5.3 Recast", "4.5.4 Canonical layout", "4.5.5 Descriptor advance",
        "5. Other instruction shapes", "6. Summary",
    ],
    "003": [
        "Introduction", "2. The MMA's operands", "3. Swizzle layouts", "3.1.1 K-major, none",
        "3.1.2 K-major, 32B", "3.1.3 K-major, 64B", "3.1.4 K-major, 128B", "3.2.1 MN-major, none",
        "3.2.2 MN-major, 32B", "3.2.3 MN-major, 64B", "3.2.4 MN-major, 128B", "4. Why swizzle",
        "5. Which swizzle", "6. Transposes", "7. Layout of atoms", "8. Hopper and Blackwell",
        "Summary",
    ],
    "004": [
        "Introduction", "Shared memory", "Kernel 2: TMA and tensor cores",
        "1 - Loading tiles into shared memory", "The need for a TMA barrier", "Core matrices",
        "2 - Issuing the MMA instructions", "What is Tensor Memory?", "3 - TMEM → registers",
        "4 - Registers → GMEM", "5 - Setup shared memory", "Kernel 3: swizzling",
        "Shared Memory Banks", "Bank conflicts", "Swizzling", "128 byte swizzling",
        "The updated kernel", "Kernel 4: Packing output", "Pack output in shared memory",
        "TMA store", "Performance", "Appendix: Descriptors", "Appendix: Swizzling mathematics",
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A line of the list: a section, what it states, and the tests of that, or why none."""

    section: str
    statement: str
    cell: str

    @property
    def tests(self):
        return re.findall(r"`(\w+/test_\w+\.py::test_\w+)`", self.cell)


@pytest.fixture(scope="module")
def rows():
    """The rows of each seed, in order."""
    found = {}
    page = (ROOT / "docs/reference/seeds.md").read_text(encoding="utf-8")
    for part in re.split(r"^## Seed ", page, flags=re.M)[1:]:
        lines = [line for line in part.splitlines() if line.startswith("|")][2:]
        cells = [re.split(r"\s*\|\s*", line.strip("|").strip()) for line in lines]
        assert all(len(row) == 3 for row in cells), cells
        found[part[:3]] = [Row(*row) for row in cells]
    return found


def all_rows(rows):
    return [row for of_seed in rows.values() for row in of_seed]


def docstrings():
    """The docstring of every test function, under its name in the list."""
    return {
        f"{path.relative_to(TESTS)}::{node.name}": ast.get_docstring(node) or ""
        for path in sorted(TESTS.glob("*/test_*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def seeds_named(docstring):
    """``Seeds 000 and 001`` -> 000, 001."""
    return {
        number
        for names in re.findall(r"\bseeds? ((?:00\d(?:, | and )?)+)", docstring, flags=re.I)
        for number in re.findall(r"00\d", names)
    }


@pytest.mark.parametrize("seed", HEADINGS)
def test_every_section_is_in_the_list(rows, seed):
    sections = list(dict.fromkeys(row.section for row in rows[seed]))
    assert sections == HEADINGS[seed]


def test_every_row_has_a_test_or_a_reason(rows):
    assert list(rows) == list(HEADINGS)
    for row in all_rows(rows):
        if row.tests:
            assert row.cell == ", ".join(f"`{test}`" for test in row.tests), row
            assert row.statement, row
        else:
            assert re.fullmatch(r"none: \w[^`]+", row.cell), row


def test_every_named_test_is_collected(rows, request):
    """By pytest itself: no dead names. Here, or where not all is run, in a process of its own."""
    named = {test for row in all_rows(rows) for test in row.tests}
    here = "\n".join(item.nodeid for item in request.session.items)
    name = re.compile(r"^tests/(\w+/test_\w+\.py::test_\w+)", flags=re.M)
    found = set(name.findall(here))
    if files := sorted({str(TESTS / test.partition("::")[0]) for test in named - found}):
        collected = subprocess.run(
            [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider",
             *files],
            cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
        assert collected.returncode == 0, collected.stdout[-2000:]
        found |= set(name.findall(collected.stdout))
    assert len(named) > 80
    assert named <= found, named - found


def test_a_test_is_listed_under_the_seeds_that_its_docstring_names(rows):
    said = {test: seeds_named(docstring) for test, docstring in docstrings().items()}
    listed: dict[str, set[str]] = {}
    for seed, of_seed in rows.items():
        for row in of_seed:
            for test in row.tests:
                listed.setdefault(test, set()).add(seed)
    for test in listed | said:
        assert said[test] == listed.get(test, set()), test
