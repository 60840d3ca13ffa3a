"""``triton-ext run``: what it refuses, and streams that are closed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

pytest.importorskip("triton")

from triton_ext.cli import main

SCRIPT = """
import torch, triton
import triton.language as tl

@triton.jit
def count(x, n):
    for _ in range(n):
        tl.store(x + tl.program_id(0), tl.load(x + tl.program_id(0)) + 1)
    tl.device_print("done")

x = torch.zeros(64, device="cuda")
count[(64,)](x, 300)
assert (x == 300).all()
"""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--block", "1x2x3x4"], "'1x2x3x4' is no block"),
        (["--block", "-1x0x0"], "'-1x0x0' is no block"),
        (["--timeout", "nan"], "'nan' is no number of seconds"),
        (["--timeline", "none/out.html"], "there is no folder none"),
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


def test_a_pipe_is_no_script(tmp_path):
    """It can be read once, and Python and Triton read it again."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = CliRunner().invoke(main, ["run", str(pipe)])
    assert done.exit_code == 2
    assert "is no regular file" in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_stop_no_kernel(tmp_path, monkeypatch, closed):
    """Nor its prints, nor blocks on several cores, nor a pass's report."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    monkeypatch.setenv("TRITON_EXT_PASSES", "report-layouts")
    command = f"{sys.executable} -m triton_ext run {script} {closed}"
    assert subprocess.run(command, shell=True).returncode == 0
