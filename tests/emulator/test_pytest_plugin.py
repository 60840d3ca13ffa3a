"""What a test or a script that fails on the emulated GPU shows: its own lines, and the fault."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

FAILING = """
import torch, triton, triton.language as tl

@triton.jit
def copy(a, b, N: tl.constexpr):
    r = tl.arange(0, N)
    tl.store(b + r, tl.load(a + r + 1))

def launch(x, y):
    copy[(1,)](x, y, 64)

def test_copy(emulated_gpu):
    launch(torch.zeros(64), torch.zeros(64))

def test_of_its_own(emulated_gpu):
    raise ValueError("not the emulator's")
"""


def test_the_frames_of_the_emulator_are_hidden(tmp_path):
    (tmp_path / "test_failing.py").write_text(FAILING)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_failing.py"]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    shown = finished.stdout
    assert "2 failed" in shown, shown
    assert "MemoryFault" in shown
    assert "copy[(1,)](x, y, 64)" in shown
    assert "not the emulator's" in shown
    for hidden in ("triton_ext/emulator", "triton/runtime"):
        assert hidden not in shown


RIGHT = FAILING.replace("a + r + 1", "a + r").partition("def test_of_its_own")[0]


def test_the_summary_tells_of_all_schedules(tmp_path):
    (tmp_path / "test_right.py").write_text(RIGHT)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_right.py",
               "--emulate-schedules", "all"]  # fmt: skip
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    assert "1 passed" in shown, shown
    assert re.search(r"all schedules.*\n1 proven\n", shown), shown


SCRIPT = """
import torch, triton, triton.language as tl, triton_ext

@triton.jit
def copy(a, b, N: tl.constexpr):
    r = tl.arange(0, N)
    tl.store(b + r, tl.load(a + r + 1))

def launch(x, y):
    copy[(1,)](x, y, 64)

with triton_ext.emulate("sm_90"):
    launch(torch.zeros(64), torch.zeros(64))
"""


def test_a_plain_script_shows_its_own_frames_alone(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    finished = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert finished.returncode == 1
    _, _, shown = finished.stderr.partition("Traceback (most recent call last):")
    frames = re.findall(r'File "(.*)", line (\d+)', shown)
    assert frames == [(str(path), "13"), (str(path), "10")]
    assert "MemoryFault: global address" in shown
