"""What the README shows is what happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import assert_prints, console_blocks
from sites import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize(("command", "output"), console_blocks(README))
def test_console_blocks(command, output):
    assert_prints(command, output)


COMMANDS = re.findall(r"^(triton-ext .*?)(?:  +#.*)?$", README, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run_as_written(command):
    """From the root of the checkout, in a shell, without an error."""
    if "compile" in command:
        pytest.importorskip("triton", minversion="3.8")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    finished = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout or finished.stderr.startswith("wrote ")
    assert "Traceback" not in finished.stderr
    assert "nanobind" not in finished.stderr


def test_there_are_blocks():
    assert len(COMMANDS) == 3
    assert len(console_blocks(README)) == 1
    assert len(PYTHON) == 3


def python_block(words):
    """The one Python block that has these words."""
    (found,) = [block for block in PYTHON if words in block]
    return found


def test_python_block():
    names: dict[str, object] = {}
    checked = 0
    for line in python_block("registers.invert_and_compose").splitlines():
        code, _, comment = line.partition("  # ")
        if comment.startswith(("(", "{")):
            shown = comment.split(";")[0]
            assert eval(code, names) == eval(shown)
            checked += 1
        else:
            exec(code, names)
    assert checked == 3
    assert names["registers"].invert_and_compose(names["tile"]).apply(lane=1) == {"offset": 72}


def test_matmul_block():
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    import triton_ext

    a = torch.randint(-3, 4, (40, 24)).half()
    names = {"triton_ext": triton_ext, "a": a, "b": a.T}
    for block in python_block("triton_ext.emulate(").split("with ")[1:]:
        names["c"] = None
        exec(f"with {block}", names)
        assert torch.equal(names["c"], a @ a.T)
