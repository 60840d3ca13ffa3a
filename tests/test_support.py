"""``tests/support``: its map names each file, and none is left that nobody uses."""

from __future__ import annotations

import re

from sites import ROOT

SUPPORT = ROOT / "tests" / "support"
NAMES = {
    each.stem
    for each in SUPPORT.iterdir()
    if each.suffix == ".py" or (each / "__init__.py").exists()
}


def test_the_map_names_every_file_once():
    rows = (SUPPORT / "README.md").read_text(encoding="utf-8").partition("| --- |")[2]
    named = [
        name
        for row in rows.splitlines()[1:]
        for name in re.findall(r"`(\w+)/?`", row.split("|")[1])
    ]
    assert sorted(named) == sorted(NAMES)


def test_every_file_is_used():
    """By another one, a test, or a rule of the Makefile: imported, or run by its name."""
    used = set(re.findall(r"(\w+)\.py\b", (ROOT / "Makefile").read_text(encoding="utf-8")))
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        imports = " ".join(re.findall(r"^ *(?:from|import) .*", text, re.MULTILINE))
        words = {*re.findall(r"\w+", imports), *re.findall(r"(\w+)(?=\.py\b|\")", text)}
        own = path.relative_to(SUPPORT).parts[0] if path.is_relative_to(SUPPORT) else ""
        used |= words - {own.removesuffix(".py")}
    assert set() == NAMES - used
