"""TRITON_EXT_EMULATE: programs and tests that do not know of this project, on an emulated GPU."""

from __future__ import annotations

import inspect
import subprocess

import pytest
from installed import environment, interpreter

pytest.importorskip("torch")
pytest.importorskip("triton")

from triton_ext.emulator.host.emulate import emulate
from triton_ext.emulator.host.environment import Emulation
from triton_ext.errors import LayoutError

KERNEL = """
import triton, triton.language as tl

@triton.jit
def copy(a, b, SHIFT: tl.constexpr):
    r = tl.arange(0, 64)
    tl.store(b + r, tl.load(a + r + SHIFT))
"""
USE = """
def launch(shift):
    x = torch.arange(64., device="cuda")
    y = torch.empty_like(x)
    copy[(1,)](x, y, shift)
    return torch.equal(x, y) and y.is_cuda and torch.cuda.get_device_capability()
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return interpreter(tmp_path_factory.mktemp("installed"))


@pytest.fixture
def run(python, tmp_path):
    """Run a program that stands in a folder of its own, beside the kernel."""
    (tmp_path / "kernel.py").write_text(KERNEL)

    def run(program, emulated="sm_90", *, name="program.py", command=(), **variables):
        (tmp_path / name).write_text(program)
        variables = {"TRITON_EXT_EMULATE": emulated, **variables}
        return subprocess.run(
            [str(python), *command, name], cwd=tmp_path, env=environment(python, **variables),
            capture_output=True, text=True,
        )  # fmt: skip

    return run


# ------------------------------------------------------------------------ the variable


def test_the_notation():
    assert Emulation.parse("sm_100") == Emulation(100)
    found = Emulation.parse(" sm_90{schedule=random seed=7 check-races=false timeout=2.5} ")
    assert found == Emulation(90, "random", 7, timeout=2.5, check_races=False)
    assert Emulation.parse("sm_90{max_steps=9 check_empty=TRUE}") == Emulation(
        90, max_steps=9, check_empty=True
    )


def test_the_options_are_those_of_emulate():
    parameters = inspect.signature(emulate).parameters
    for name, default in vars(Emulation(100)).items():
        if name != "arch":
            assert parameters[name].default == default, name


@pytest.mark.parametrize(("text", "rule"), [
    ("1", "must name one of sm_80, "), ("sm_75", "must name one of sm_80, "),
    ("sm_90{", "must be a GPU, perhaps with options"), ("sm_90 sm_100", "must be a GPU"),
    ("sm_90{schedule=never}", "must be 'eager', 'lazy' or 'random'"),
    ("sm_90{seed=x}", "an integer"), ("sm_90{seed=true}", "an integer"), ("sm_90{seed}", "an int"),
    ("sm_90{check_races=1}", "true or false"), ("sm_90{timeout=-1}", "a positive number"),
    ("sm_90{timeout=soon}", "a number"), ("sm_90{max_steps=0}", "a positive number"),
    ("sm_90{arch=100}", "NAME of schedule, seed"), ("sm_90{devices=2}", "NAME of schedule, seed"),
])  # fmt: skip
def test_what_it_refuses(text, rule):
    with pytest.raises(LayoutError, match="TRITON_EXT_EMULATE") as raised:
        Emulation.parse(text)
    assert rule in raised.value.rule


@pytest.mark.parametrize("first", ["import torch", "import triton"])
def test_an_illegal_value_ends_the_program(run, first):
    """As a command ends; a program that can do without Triton does not miss it."""
    done = run(f"try:\n    {first}\nexcept ImportError:\n    pass\nprint('went on')", "sm_75")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        "triton-ext: TRITON_EXT_EMULATE = 'sm_75': must name one of sm_80, "
    )
    assert done.stderr.count("\n") == 1


def test_a_program_without_either_is_left_alone(run):
    done = run("import sys; print('torch' in sys.modules)", "sm_75")
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


# ------------------------------------------------------------------------ programs


@pytest.mark.parametrize(("imports", "emulated", "capability"), [
    ("import torch, triton", "sm_90", (9, 0)),
    ("import triton, torch", "sm_100{schedule=lazy}", (10, 0)),
    ("import triton.language", "sm_90", (9, 0)),
])  # fmt: skip
def test_imports_in_any_order(run, imports, emulated, capability):
    program = f"{imports}\nfrom kernel import copy\nimport torch\n{USE}\nprint(launch(0))"
    done = run(program, emulated)
    assert (done.returncode, done.stdout) == (0, f"{capability}\n"), done.stderr


def test_a_fault(run):
    """The program's own lines above it, and on GitHub an annotation of the kernel's."""
    program = f"import torch\nfrom kernel import copy\n{USE}\nlaunch(0)\nprint('right')\nlaunch(1)"
    done = run(program, GITHUB_ACTIONS="true")
    assert (done.returncode, done.stdout) == (1, "right\n")
    own, _, message = done.stderr.partition("triton_ext.emulator.errors.MemoryFault: ")
    files = [line.split('"')[1] for line in own.splitlines() if line.startswith("  File ")]
    assert [each.rpartition("/")[2] for each in files] == ["program.py"] * 2
    assert "copy[(1,)](x, y, shift)" in own
    (annotation,) = [line for line in message.splitlines() if line.startswith("::")]
    start = "::error title=MemoryFault,file=kernel.py,line=7,col=21::global address 0x"
    assert annotation.startswith(start)


ELSEWHERE = f"""
import multiprocessing, os, subprocess, sys, threading
import torch
from kernel import copy
{USE}
if __name__ == "__main__":
    for method in ("spawn", "fork"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(method, pool.map(launch, [0, 0]), flush=True)
    thread = threading.Thread(target=lambda: print("thread", launch(0), flush=True))
    thread.start()
    thread.join()
    subprocess.run([sys.executable, "-c", "from program import launch; print(launch(0))"])
"""


def test_other_processes_and_threads(run):
    done = run(ELSEWHERE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "spawn [(9, 0), (9, 0)]", "fork [(9, 0), (9, 0)]", "thread (9, 0)", "(9, 0)"
    ]  # fmt: skip


def test_a_fault_in_a_thread(run):
    program = f"""
import threading, torch
from kernel import copy
{USE}
threading.Thread(target=launch, args=(1,)).start()
"""
    done = run(program, GITHUB_ACTIONS="true")
    assert "/triton" not in done.stderr.partition("MemoryFault")[0], done.stderr
    assert done.stderr.count("::error title=MemoryFault,file=kernel.py,line=7") == 1


TESTS = f"""
import pytest, torch
from kernel import copy
{USE}
def test_right():
    assert launch(0) == (10, 0)

def test_wrong():
    launch(1)

@pytest.mark.xfail
def test_known():
    launch(1)

def test_expected():
    with pytest.raises(RuntimeError, match="in no allocation"):
        launch(1)
"""


@pytest.mark.parametrize("more", [[], ["-n1"]], ids=["one process", "xdist"])
def test_pytest(run, more):
    """Without the fixture; the failure alone is annotated."""
    done = run(
        TESTS, "sm_100", name="test_program.py", GITHUB_ACTIONS="true",
        command=["-m", "pytest", "-q", "-p", "no:cacheprovider", *more],
    )  # fmt: skip
    assert done.returncode == 1
    assert "1 failed, 2 passed, 1 xfailed" in done.stdout, done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith("::")]
    assert len(lines) == 1, done.stdout
    assert lines[0].startswith("::error title=MemoryFault,file=kernel.py,line=7,col=21::")
    assert "triton_ext/emulator" not in done.stdout
