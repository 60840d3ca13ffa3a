"""``triton-ext run``: what it refuses, and streams that are closed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner
from sites import ROOT

pytest.importorskip("triton")

from triton_ext.cli import main

SCRIPT = """
import torch, triton
import triton.language as tl

@triton.jit
def count(x, n):
    for _ in range(n):
        tl.store(x + tl.program_id(0), tl.load(x + tl.program_id(0)) + 1)

@triton.jit
def tell(x):
    tl.device_print("counted", tl.load(x))

x = torch.zeros(64, device="cuda")
count[(64,)](x, 300, num_warps=1)
tell[(1,)](x)
assert (x == 300).all()
"""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--block", "1x2x3x4"], "'1x2x3x4' is no block"),
        (["--block", "-1x0x0"], "'-1x0x0' is no block"),
        (["--timeout", "nan"], "'nan' is no number of seconds"),
        (["--timeline", "none/out.html"], "there is no folder none"),
        (["--schedule", "none.json"], "'none.json' is no schedule"),
        (["--witness", "w.json"], "--witness cannot be used without --all-schedules"),
        (["--explain-wait", "k.py:3"], "--explain-wait cannot be used without --all-schedules"),
        (["--all-schedules", "--explain-wait", "k.py"], "must be a file and a line"),
        (["--all-schedules", "--time"], "--time cannot be used with --all-schedules"),
        (["--all-schedules", "--schedule", "lazy"], "--schedule lazy cannot be used with"),
        (["--trace-file", "none/out.jsonl"], "none/out.jsonl: No such file or directory"),
    ],
)
def test_what_is_refused_before_the_script_runs(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("print('ran')")
    done = CliRunner().invoke(main, ["run", *options, "script.py"])
    assert done.exit_code == 2
    assert message in done.stderr
    assert not done.stdout


def test_all_schedules_are_judged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT.partition("tell[(1,)]")[0].replace("x, 300", "x, 3"))
    done = CliRunner().invoke(main, ["run", "--all-schedules", "script.py"])
    assert done.exit_code == 0
    assert "count: proven for all schedules" in done.stderr


def test_what_is_not_judged_is_said(tmp_path, monkeypatch):
    """A script that emulates for itself has a GPU of its own, which nobody judges."""
    monkeypatch.chdir(tmp_path)
    lines = SCRIPT.partition("x = torch")[0].splitlines()
    lines += ["import triton_ext", "with triton_ext.emulate('sm_90'):"]
    lines += ["    count[(1,)](torch.zeros(64), 3, num_warps=1)"]
    (tmp_path / "script.py").write_text("\n".join(lines))
    done = CliRunner().invoke(main, ["run", "--all-schedules", "script.py"])
    assert done.exit_code == 0
    assert "nothing is judged: no kernel ran" in done.stderr


def test_a_wait_is_explained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    text = (ROOT / "examples/blackwell_matmul.py").read_text(encoding="utf-8")
    (tmp_path / "matmul.py").write_text(text)
    line = text[: text.index("mbarrier.wait(full")].count("\n") + 1
    command = ["run", "--all-schedules", "--explain-wait", f"matmul.py:{line}", "matmul.py"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0
    assert "it makes visible: cp.async.bulk.tensor.2d" in done.stderr
    assert f"needed: mbarrier.try_wait.parity.shared::cta.b64 at matmul.py:{line}" in done.stderr
    assert "redundant: bar.sync" in done.stderr
    command[3] = "matmul.py:1"
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0
    assert "'matmul.py:1': nothing that waits" in done.stderr


def test_a_pipe_is_no_script(tmp_path):
    """It can be read once, and Python and Triton read it again."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = CliRunner().invoke(main, ["run", str(pipe)])
    assert done.exit_code == 2
    assert "is no regular file" in done.stderr


def test_a_locale_without_unicode(tmp_path):
    """Its encoding is not that of what is read and written."""
    script, page, trace = (tmp_path / name for name in ("script.py", "page.html", "trace.txt"))
    script.write_text(SCRIPT.replace("300", "3"))
    command = [sys.executable, "-m", "triton_ext", "run", "--emulate", "sm_90"]
    command += ["--trace-file", str(trace), "--only", "st.global", "--block", "0x0x0"]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = subprocess.run(
        [*command, "--timeline", str(page), str(script)],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert page.read_text(encoding="utf-8")
    assert trace.read_text(encoding="utf-8")


def test_a_pass_that_does_not_exist(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "triton_ext", "run", str(script)],
        capture_output=True, text=True, env={**os.environ, "TRITON_EXT_PASSES": "none"},
    )  # fmt: skip
    assert done.returncode == 1
    assert "pass = 'none': no such pass" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_closed_streams_stop_no_kernel(tmp_path, monkeypatch, closed):
    """Nor its prints, nor blocks on several cores, nor a pass's report."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    monkeypatch.setenv("TRITON_EXT_PASSES", "report-layouts")
    command = f"{sys.executable} -m triton_ext run {script} {closed}"
    assert subprocess.run(command, shell=True).returncode == 0
