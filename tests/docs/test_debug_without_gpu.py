"""docs/guide/debug-without-gpu.md, run from top to bottom: commands and Python cells."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess

import pytest
from installed import environment, interpreter
from pages import assert_shows
from sites import ROOT

pytest.importorskip("torch")
pytest.importorskip("triton", minversion="3.8")

PAGE = (ROOT / "docs/guide/debug-without-gpu.md").read_text(encoding="utf-8")
CELL = re.compile(
    r"```\n\$ ([^\n]*)\n((?:(?!```)[^\n]*\n)*)```"
    r"|```python\n((?:(?!```)[^\n]*\n)*)```\n\n```text\n((?:(?!```)[^\n]*\n)*)```"
)


def test_the_page_is_what_happens(tmp_path):
    python = interpreter(tmp_path / "installed")
    variables = environment(python)
    cells = CELL.findall(PAGE)
    assert [bool(command) for command, *_ in cells].count(True) == 7
    assert len(cells) == 9 == PAGE.count("```\n$ ") + PAGE.count("```python\n")
    names: dict[str, object] = {}
    for command, printed, code, shown in cells:
        if command:
            done = subprocess.run(
                command, shell=True, cwd=ROOT, env=variables,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
            assert_shows(printed, done.stdout)
        else:
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(code, names)
            assert out.getvalue() == shown
