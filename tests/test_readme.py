"""What the README shows is what happens."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest
from conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def console_blocks(page):
    """(command, output) of every block of a page that shows a command and what it prints."""
    return re.findall(r"```\n\$ (triton-ext[^\n]*)\n(.*?)```", page, re.DOTALL)


def assert_prints(command, output):
    """The installed command, in a process of its own."""
    arguments = [sys.executable, "-m", "triton_ext", *shlex.split(command)[1:]]
    finished = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert finished.stdout == output


@pytest.mark.parametrize(("command", "output"), console_blocks(README))
def test_console_blocks(command, output):
    assert_prints(command, output)


def test_there_are_blocks():
    assert len(console_blocks(README)) == 3
    assert len(PYTHON) == 2


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (ROOT / target).exists(), target


def test_python_block():
    names: dict[str, object] = {}
    checked = 0
    for line in PYTHON[0].splitlines():
        code, _, comment = line.partition("  # ")
        if comment.startswith(("(", "{")):
            shown = comment.split(";")[0]
            assert eval(code, names) == eval(shown)
            checked += 1
        else:
            exec(code, names)
    assert checked == 3
    assert names["registers"].invert_and_compose(names["tile"]).apply(lane=1) == {"offset": 72}
