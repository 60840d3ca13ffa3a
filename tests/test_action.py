"""The composite action: its schema, and what its steps do."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from installed import environment, interpreter
from sites import ROOT

yaml = pytest.importorskip("ruamel.yaml")
pytest.importorskip("check_jsonschema")

PATH = ROOT / ".github/actions/emulate/action.yml"
ACTION = yaml.YAML(typ="safe").load(PATH.read_text())


def test_the_schema():
    command = [sys.executable, "-m", "check_jsonschema"]
    command += ["--builtin-schema", "vendor.github-actions", str(PATH)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_inputs_are_no_part_of_scripts():
    """They come as variables of the environment, so that none of them can be a command."""
    for step in ACTION["runs"]["steps"]:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"]


def step_run(name, folder, path, **inputs):
    """Run a step as the runner does, with inputs besides the defaults."""
    defaults = {key: each.get("default", "") for key, each in ACTION["inputs"].items()}
    values = {f"inputs.{key}": value for key, value in (defaults | inputs).items()}
    values["github.action_path"] = str(PATH.parent)
    (step,) = [each for each in ACTION["runs"]["steps"] if each["name"] == name]
    filled = {
        key: re.sub(r"\$\{\{ *([\w.-]+) *\}\}", lambda found: values[found[1]], text)
        for key, text in step["env"].items()
    }
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    variables = environment(path, GITHUB_ACTIONS="true", GITHUB_WORKSPACE=str(ROOT), **filled)
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return interpreter(tmp_path_factory.mktemp("installed"))


def test_a_broken_example_is_annotated(python):
    """And a right one, under another schedule, is not."""
    pytest.importorskip("torch")
    pytest.importorskip("triton", minversion="3.8")
    example = "examples/blackwell_matmul.py"
    commands = f"python {example}\npython {example} no-commit\necho not here"
    done = step_run("Run", ROOT, python, arch="sm_100", run=commands, schedule="lazy")
    assert (done.returncode, done.stdout) == (1, "right\n"), done.stderr
    (line,) = [each for each in done.stderr.splitlines() if each.startswith("::")]
    assert line.startswith(f"::error title=Deadlock,file={example},line=")


def test_illegal_inputs(python, tmp_path):
    """They end the step before its commands."""
    for inputs, reason in (
        ({"arch": "sm_75"}, "must name one of sm_80, "),
        ({"arch": "sm_90", "schedule": "late"}, "'eager', 'lazy' or 'random'"),
        ({"arch": "sm_90", "timeout": "0"}, "a positive number"),
    ):
        done = step_run("Run", tmp_path, python, run="echo not here", **inputs)
        assert (done.returncode, done.stdout) == (2, ""), inputs
        assert reason in done.stderr


@pytest.mark.parametrize(("requirement", "installed"), [
    ("self", f"{ROOT}[kernels]"), ("triton-layouts[kernels]==0.1", "triton-layouts[kernels]==0.1"),
])  # fmt: skip
def test_what_is_installed(tmp_path, requirement, installed):
    """By a pip that says what it was given."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nfor each; do echo "$each"; done\n')
    python.chmod(0o755)
    done = step_run("Install", tmp_path, python, requirement=requirement)
    assert done.stdout.splitlines()[-1] == installed
