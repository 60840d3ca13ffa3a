"""``triton-ext run --time`` and ``--timeline``."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from triton_ext.cli import main

SCRIPT = """
import torch, triton
import triton.language as tl

@triton.jit
def add(x, y, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + at, tl.load(x + at, at < n) + 1, at < n)

x = torch.zeros(4096, device="cuda")
add[(4,)](x, x, 4096, 1024)
assert (x == 1).all()
"""


@pytest.fixture
def run(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    arguments = ["run", "--emulate", "sm_90"]
    return lambda *options: CliRunner().invoke(main, [*arguments, *options, str(script)])


def test_time_in_words(run):
    result = run("--time")
    assert result.exit_code == 0
    assert "add: " in result.stderr
    assert "us on an H200 (predicted); what binds: launch" in result.stderr
    assert "script.py:8" in result.stderr  # who waits for the load


def test_time_as_json_and_a_trace_file(run, tmp_path):
    path = tmp_path / "out.json"
    result = run("--time", "--gpu", "H100", "--timeline", str(path), "--format", "json")
    assert result.exit_code == 0
    found, _ = json.JSONDecoder().raw_decode(result.stderr)
    assert found["gpu"] == "H100"
    assert 0 < found["seconds"] < 1e-4
    assert any(
        event["name"] == "global memory" for event in json.loads(path.read_text())["traceEvents"]
    )


def test_warm_caches_take_less_time(run):
    def seconds(*options):
        result = run("--time", "--format", "json", *options)
        assert result.exit_code == 0
        return json.JSONDecoder().raw_decode(result.stderr)[0]["seconds"]

    assert seconds("--warm") < seconds()


def test_the_page_is_written(run, tmp_path):
    path = tmp_path / "out.html"
    assert run("--timeline", str(path)).exit_code == 0
    assert "http" not in path.read_text().split("<script>")[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--timeline", "out.png"], "must end in .html or .json"),
        (["--time", "--gpu", "A100"], "H200, H100, B200"),
        (["--no-values"], "give --time, too"),
        (["--warm"], "give --time, too"),
        (["--time", "--schedule", "lazy"], "eager"),
    ],
)
def test_what_is_refused(run, options, words):
    result = run(*options)
    assert result.exit_code == 2
    assert words in result.output
