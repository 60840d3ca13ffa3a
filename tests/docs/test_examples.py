"""The examples run as they say, and each fault that is built into one is found."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys

import pytest
from click.testing import CliRunner
from sites import ROOT

pytest.importorskip("torch")
pytest.importorskip("triton", minversion="3.8")

from triton_ext.cli import main

pytestmark = pytest.mark.usefixtures("no_binaries", "shallow")
PARALLEL = ROOT / "examples/parallel_training.py"
PLUGIN = ROOT / "examples/vllm_linear.py"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
COMMAND = re.compile(r"^ *triton-ext (.*?)(?:  +#.*)?$", re.MULTILINE)


def commands(text):
    return [match[1] for match in COMMAND.finditer(text)]


def faults(path):
    """The names in FAULTS, without importing the example."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FAULTS":
            return list(ast.literal_eval(node.value))
    return []


@pytest.fixture
def run(monkeypatch):
    """A command, in this process and from the root of the checkout."""
    monkeypatch.chdir(ROOT)
    return lambda command: CliRunner().invoke(main, shlex.split(command))


SHOWN = [
    (path, line)
    for path in EXAMPLES
    for line in commands(ast.get_docstring(ast.parse(path.read_text())))
]
BROKEN = [(path, name) for path in EXAMPLES for name in faults(path)]
EXPECTED = {
    "no-wait": "SynchronizationFault", "no-wgmma-wait": "SynchronizationFault",
    "few-bytes": "SynchronizationFault", "same-phase": "Deadlock", "wrong-phase": "Deadlock",
    "no-mma-wait": "SynchronizationFault", "no-commit": "Deadlock", "old-sum": "UninitializedRead",
    "early-load": "SynchronizationFault", "wrong-swizzle": "LayoutFault",
}  # fmt: skip


def test_there_are_examples():
    assert {path.stem for path in EXAMPLES} == {
        "blackwell_matmul", "cute_dsl", "drop_in", "hopper_matmul", "mixture_of_experts",
        "models_experts", "own_pass", PARALLEL.stem, PLUGIN.stem,
    }  # fmt: skip
    assert len(BROKEN) == 13
    run_otherwise = {PARALLEL, PLUGIN}  # by Python; by vLLM
    assert {path for path, _ in SHOWN} == set(EXAMPLES) - run_otherwise, "each says how to run it"


@pytest.mark.parametrize(("path", "command"), SHOWN, ids=[line for _, line in SHOWN])
def test_commands_of_the_examples(run, path, command):
    """Without an error, but for the faults; these are tested below."""
    assert path.name in command
    if command.split()[-1] in faults(path):
        return
    if path.stem == "cute_dsl" and not command.endswith(".ptx"):
        pytest.importorskip("cutlass", reason="needs the extra 'oracle'")
    if path.stem == "mixture_of_experts":
        pytest.importorskip("triton", minversion="3.9", reason="promoted sums need it")
    finished = run(command)
    assert finished.exit_code == 0, finished.stderr
    assert finished.stdout or "own_pass" in command


@pytest.mark.parametrize(("path", "fault"), BROKEN, ids=[f"{p.stem}-{name}" for p, name in BROKEN])
def test_faults_are_found(run, path, fault):
    """By the emulator, in the example's own lines; nothing else is said."""
    if path.stem == "cute_dsl":
        pytest.importorskip("cutlass", reason="needs the extra 'oracle'")
    arch = "sm_100" if "blackwell" in path.name else "sm_90"
    finished = run(f"run --emulate {arch} examples/{path.name} {fault}")
    assert finished.exit_code == 1
    assert not finished.stdout
    assert finished.stderr.startswith(f"triton-ext: {EXPECTED[fault]}: ")
    assert f"source: examples/{path.name}:" in finished.stderr


@pytest.mark.parametrize(("way", "package", "products"), [
    ("fsdp", "transformers", "72"), ("tensor", "transformers", "72"), ("float8", "torchao", "30"),
])  # fmt: skip
def test_parallel_training(way, package, products):
    """The losses of both are printed; that they are the same, the example sees to. Of layers in
    fp8, PyTorch keeps the products of gradients for itself, as it adds them with more bits.
    """
    for each in ("transformers", package):
        pytest.importorskip(each, reason="needs the extra 'oracle'")
    done = subprocess.run([sys.executable, PARALLEL, way], capture_output=True, text=True)
    assert not done.returncode, done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == ["torch", "triton_ext", products]


def test_cute_dsl_without_the_dsl(run, monkeypatch, tmp_path):
    """It says what to install; PTX that was compiled elsewhere runs, and its faults are found."""
    monkeypatch.setitem(sys.modules, "cutlass", None)
    script = "run examples/cute_dsl.py"
    missing = run(script)
    assert missing.exit_code == 1
    assert "pip install nvidia-cutlass-dsl" in missing.output
    assert run(f"{script} examples/cute_copy.ptx").stdout == "right\n"
    text = (ROOT / "examples/cute_copy.ptx").read_text()
    waiting = re.compile(r"LAB_WAIT:.*?DONE: *\n", re.DOTALL)
    broken = tmp_path / "broken.ptx"
    broken.write_text(waiting.sub("\n", text))
    found = run(f"{script} {broken}")
    assert found.exit_code == 1
    assert "written by the tma unit, and nothing orders the two" in found.stderr


def test_a_process_ends_without_noise():
    """Nothing behind the last line of ours: no list of what a binding leaked."""
    command = "run --emulate sm_100 examples/blackwell_matmul.py early-load"
    finished = subprocess.run(
        [sys.executable, "-m", "triton_ext", *command.split()],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    printed = finished.stdout + finished.stderr
    assert printed.count("\n") == 6, printed
    assert printed.splitlines()[-1].startswith("  at: ")


WALK = (ROOT / "docs/guide/debugging.md").read_text(encoding="utf-8")


def test_the_walk_shows_what_happens(run):
    """docs/guide/debugging.md: each command prints what stands below it; `...` leaves some out."""
    blocks = re.findall(r"```\n\$ triton-ext (.*)\n((?:(?!```).*\n)*)```", WALK)
    assert len(blocks) >= 4
    for command, shown in blocks:
        finished = run(command)
        printed = finished.stdout + finished.stderr
        parts = [re.escape(part) for part in shown.strip().split("...")]
        assert re.fullmatch(r"[\s\S]*?".join(parts), printed.strip()), (command, printed)
