"""``docs/architecture.md``: every file and every definition that it names is there."""

from __future__ import annotations

import ast
import re

import pytest
from sites import CHECKOUT, ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(triton_ext/[\w/]+\.py)(?:::(\w+))?`", PAGE)


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
    assert PAGE.count("\n## ") == 3


@pytest.mark.parametrize(("path", "name"), sorted(set(NAMED)))
def test_it_is_there(path, name):
    package = path.partition("/")[2]
    file = CHECKOUT / (package if package.startswith(("kernels/", "passes/")) else path)
    assert file.is_file()
    assert not name or name in defined(file)
