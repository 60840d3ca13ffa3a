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
    assert len(COMMANDS) == 9
    assert len(console_blocks(README)) == 1
    assert len(PYTHON) == 4


def test_links_lead_somewhere():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\((?!http)([^)#]+)", text):
            assert (page.parent / target).exists(), target


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


@pytest.mark.parametrize("words", ["triton_ext.emulate(", "triton_ext.passes.enabled("])
def test_matmul_blocks(words):
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    import triton_ext

    a = torch.randint(-3, 4, (40, 24)).half()
    names = {"triton_ext": triton_ext, "a": a, "b": a.T}
    exec(python_block(words), names)
    assert torch.equal(names["c"], a @ a.T)


def test_every_instruction_of_the_emulator_has_its_evidence_named():
    """docs/emulator.md: the table has what is registered, and nothing else."""
    pytest.importorskip("ml_dtypes")
    from triton_ext.emulator.instructions import OPCODES

    page = (ROOT / "docs/emulator.md").read_text(encoding="utf-8")
    table = page.split("| instructions | evidence |")[1].split("\n\n")[0]
    named = {
        name
        for row in table.splitlines()
        if row.count("|") == 3
        for name in re.findall(r"`([\w.:]+)`", row.split("|")[1])
    }
    unnamed = {
        name
        for name in OPCODES
        if not any(name == known or name.startswith(known + ".") for known in named)
        and not any(name.startswith(known + "::") for known in named)
    }
    assert not unnamed
    unknown = {
        name
        for name in named
        if not any(each == name or each.startswith((name + ".", name + "::")) for each in OPCODES)
    }
    assert not unknown


def test_docs_matmul_example():
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    page = (ROOT / "docs/matmul.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, object] = {}
    exec(block, names)
    assert names["c"].isfinite().all()


def test_docs_emulator_example():
    pytest.importorskip("ml_dtypes")
    page = (ROOT / "docs/emulator.md").read_text(encoding="utf-8")
    (block,) = [
        each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "PTX" in each
    ]
    names: dict[str, object] = {}
    exec(block, names)
    assert list(names["x"]) == [0, 2, 4, 6]
