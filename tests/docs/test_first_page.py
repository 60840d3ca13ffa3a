"""``docs/guide/index.md``: each command of "I have X: what do I type?" does what its row says."""

from __future__ import annotations

import re
import shlex

import pytest
from click.testing import CliRunner
from sites import ROOT

pytest.importorskip("torch")
pytest.importorskip("triton", minversion="3.8")

from triton_ext.cli import main

PAGE = (ROOT / "docs/guide/index.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.*?) \| (.*?) \| `(triton-ext .*)` \|$", PAGE, re.MULTILINE)
FINDS = {"diff": "first at SBO", "few-bytes": "SynchronizationFault", "wrong-phase": "Deadlock"}
"""What a command that ends with status 1 finds, by a word of it."""


def test_there_are_rows():
    assert len(ROWS) == 22
    assert len({command for *_, command in ROWS}) == 22
    assert all(sum(word in shlex.split(row[2]) for row in ROWS) == 1 for word in FINDS)


@pytest.mark.parametrize("command", [row[2] for row in ROWS])
def test_the_command(command, monkeypatch):
    """In the root of the checkout; a bar hands what one prints to the next."""
    monkeypatch.chdir(ROOT)
    printed = ""
    for part in command.split(r" \| "):
        arguments = shlex.split(part)[1:]
        done = CliRunner().invoke(main, arguments, input=printed)
        printed = done.stdout
        found = next((FINDS[word] for word in arguments if word in FINDS), None)
        assert done.exit_code == (0 if found is None else 1), done.output
        assert found is None or found in done.output
    assert done.output
