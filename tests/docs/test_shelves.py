"""The three shelves (guide, reference, notes): their sizes, their links, and captions."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import re

import pytest
from sites import CHECKOUT
from sites import CHECKOUT as ROOT

README = ROOT / "README.md"
GUIDE = sorted((*(ROOT / "docs/guide").glob("*.md"), ROOT / "docs/architecture.md"))
NOTES = sorted((ROOT / "benchmarks/notes").glob("*.md"))
PAGES = sorted((README, ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *NOTES))
PACKAGES = ("triton_ext", "passes", "kernels", "benchmarks")


def words(*pages):
    """How many words the pages have, as ``wc`` counts."""
    return sum(len(page.read_text(encoding="utf-8").split()) for page in pages)


def test_the_readme_is_short():
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert words(README) <= 1200
    (numbers,) = re.findall(r"^## Numbers\n(.*?)^No Blackwell", text, re.DOTALL | re.MULTILINE)
    _, _, *rows = re.findall(r"^\|.*\|$", numbers, re.MULTILINE)
    assert len(rows) == 5
    assert all("](" in row for row in rows)


def test_the_guide_is_short():
    assert len(GUIDE) >= 10
    assert words(README, *GUIDE) <= 28_000
    assert words(ROOT / "docs/guide/emulator.md") <= 2_000


def test_every_page_is_on_a_shelf():
    """Nothing lies beside guide and reference but the front page and the architecture."""
    beside = {page.name for page in (ROOT / "docs").glob("*.md")}
    assert beside == {"index.md", "architecture.md"}
    listed = {
        page.parent / f"{line}.md"
        for page in (ROOT / "docs/index.md", ROOT / "docs/reference/api.md")
        for line in page.read_text(encoding="utf-8").splitlines()
    }
    assert {*GUIDE, *(ROOT / "docs/reference").glob("*.md")} <= listed
    notes = (ROOT / "benchmarks/notes/README.md").read_text(encoding="utf-8")
    assert all(f"]({page.name})" in notes for page in NOTES if page.name != "README.md")


def prose(page):
    """A page without its code."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(page):
    """What a link may have behind ``#``: headings as GitHub and the site write them, and ids."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain} | set(
        re.findall(r'id="([^"]+)"', text)
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)", prose(page)):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), link


def test_a_link_into_nothing_is_seen(tmp_path):
    """The test above can fail: for a file, and for a heading."""
    page = tmp_path / "page.md"
    page.write_text("# Of what\n[a](b.md) [c](#of-what) `[d](e.md)`\n")
    assert anchors(page) == {"of-what"}
    assert re.findall(r"\]\(([^)]+)", prose(page)) == ["b.md", "#of-what"]


def test_the_reference_names_modules_that_are_there():
    pages = (ROOT / "docs/reference").glob("api*.md")
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    modules = re.findall(r"^\.\. automodule:: ([\w.]+)$", text, re.MULTILINE)
    assert len(modules) >= 35
    assert [each for each in modules if importlib.util.find_spec(each) is None] == []


def captions(path):
    """The docstrings of a module's and its classes' constants: (line, text)."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for owner in ast.walk(tree):
        body = getattr(owner, "body", [])
        for before, after in itertools.pairwise(body) if isinstance(body, list) else ():
            assigns = isinstance(before, (ast.Assign, ast.AnnAssign))
            if assigns and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                yield after.lineno, after.value.value


def test_no_caption_begins_with_of():
    """A caption names the thing: it is a noun phrase."""
    found, seen = [], 0
    for path in sorted(each for package in PACKAGES for each in (CHECKOUT / package).rglob("*.py")):
        name = str(path.relative_to(CHECKOUT))
        for line, text in captions(path):
            seen += 1
            if str(text).startswith("Of "):
                found.append(f"{name}:{line}: {text}")
    assert seen > 300
    assert not found, "\n".join(found)
