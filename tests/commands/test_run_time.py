"""``triton-ext run --time`` and ``--timeline``."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner
from sites import ROOT

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
    assert "us on an H200 (predicted; mean error of softmax 11.5 %" in result.stderr
    assert "what binds: launch" in result.stderr
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
    ("example", "gpu", "error"),
    [
        ("hopper_matmul", "an H200", "mean error of matmuls"),
        ("blackwell_matmul", "a B200", "no B200"),
    ],
)
def test_the_gpu_follows_the_architecture(example, gpu, error):
    """Whoever waits is told the barrier's name, as a fault would name it."""
    script = str(ROOT / f"examples/{example}.py")
    result = CliRunner().invoke(main, ["run", "--time", script])
    assert result.exit_code == 0
    assert f"us on {gpu} (predicted; {error}" in result.stderr
    assert re.search(r"waits for the mbarrier at 0x\w+ \(full\[0\]\)$", result.stderr, re.MULTILINE)
    assert "global_smem" not in result.stderr


def test_two_runs_side_by_side(run, tmp_path):
    """The kernel that asks for more, and waits for it, is the slower one."""
    paths = [str(tmp_path / name) for name in ("cold.json", "warm.json")]
    run("--timeline", paths[0])
    run("--timeline", paths[1], "--warm")
    compared = CliRunner().invoke(main, ["diff", *paths])
    assert compared.exit_code == 1
    assert re.match(r"B is faster: (\S+) us and (\S+) us, 1\.\d\d to 1; most of it: it waits at"
                    r" script\.py:8 for a load, \S+ us less", compared.output)  # fmt: skip
    turned = CliRunner().invoke(main, ["diff", *paths[::-1], "--format", "json"])
    assert turned.exit_code == 1
    found = json.loads(turned.output)
    assert found["kind"] == "timeline"
    assert found["verdict"].startswith("A is faster")
    assert next(row for row in found["rows"] if row["name"] == "time")["same"] is False
    same = CliRunner().invoke(main, ["diff", paths[0], paths[0]])
    assert (same.exit_code, same.output) == (0, "the same timeline\n")


def test_what_is_no_timeline(run, tmp_path):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    run("--timeline", str(good))
    summary = '{"traceEvents": [], "otherData": {"seconds": "1"}}'
    for text in ('{"traceEvents": []}', summary, '{"what_if": {}}'):
        bad.write_text(text)
        compared = CliRunner().invoke(main, ["diff", str(good), str(bad)])
        assert compared.exit_code == 2
        assert "timeline" in compared.output
        assert "Traceback" not in compared.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--timeline", "out.png"], "must end in .html or .json"),
        (["--time", "--gpu", "A100"], "H200, H100, B200"),
        (["--no-values"], "give --time, too"),
        (["--warm"], "give --time, too"),
        (["--gpu", "H100"], "give --time, too"),
        (
            ["--time", "--gpu", "B200"],
            "--gpu = 'B200': is an sm_100, and the kernel runs on sm_90: must be H200 or H100",
        ),
        (["--time", "--schedule", "lazy"], "eager"),
    ],
)
def test_what_is_refused(run, options, words):
    result = run(*options)
    assert result.exit_code == 2
    assert words in result.output
