"""``docs/architecture.md``: every file and every definition that it names is there."""

from __future__ import annotations

import ast
import re

import pytest
from sites import CHECKOUT, ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(triton_ext/[\w/]+\.py)(?:::(\w+))?`", PAGE)
WORDS = re.findall(r"^\| ([^|]+?) \| [^|]+ \| `triton_ext/[\w/:.]+` \|$", PAGE, re.MULTILINE)
GONE = {
    "k_blocks": "cluster_k", "cluster_columns": "cluster_n", "max_splits": "split_k",
    "strange": "poison", "narrow_desc": "edge_desc", "last_through_ring": "last_through_pipeline",
    "place_of": "piece_at", "compare_places": "compare_regions", "scale_words": "scale_counts",
}  # fmt: skip
"""Names that the product had, and the word that each became."""


def defined(file):
    """What a module defines or imports at its top level."""
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {each.id for each in targets if isinstance(each, ast.Name)}
    return names


def test_enough_is_named():
    assert len(NAMED) >= 25
    assert PAGE.count("\n## ") == 4
    assert len(WORDS) >= 40
    assert sorted(WORDS, key=str.lower) == WORDS


@pytest.mark.parametrize(("path", "name"), sorted(set(NAMED)))
def test_it_is_there(path, name):
    package = path.partition("/")[2]
    file = CHECKOUT / (package if package.startswith(("kernels/", "passes/")) else path)
    assert file.is_file()
    assert not name or name in defined(file)


@pytest.mark.parametrize("old", GONE)
def test_words_that_are_gone(old):
    """But where files of earlier releases are read, and in the names of the fitted trees' data."""
    found = [
        str(path.relative_to(CHECKOUT))
        for package in ("triton_ext", "kernels", "passes")
        for path in (CHECKOUT / package).rglob("*.py")
        if re.search(rf"\b{old}\b", path.read_text(encoding="utf-8"))
    ]
    assert set(found) <= {"kernels/spec.py", "kernels/choice/features.py"}
