"""``triton-ext compile``: scripts and single kernels, compiled and not run, with passes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

pytest.importorskip("triton")

from triton import knobs

from triton_ext.cli import main

SCRIPT = """
import sys
import torch, triton, triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

TILE = gl.BlockedLayout([1], [32], [4], [0])

@triton.jit
def product(a, b, c, N: tl.constexpr):
    r = tl.arange(0, N)
    x = tl.load(a + r[:, None] * N + r[None, :])
    y = tl.load(b + r[:, None] * N + r[None, :])
    tl.store(c + r[:, None] * N + r[None, :], tl.dot(x, y))

@gluon.jit
def copy(source, target, LAYOUT: gl.constexpr, SCALE: gl.constexpr):
    i = gl.arange(0, 128, LAYOUT)
    gl.store(target + i, gl.load(source + i) * SCALE)

if __name__ == "__main__":
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    a = torch.ones(n, n, dtype=torch.float16, device="cuda")
    c = torch.zeros(n, n, device="cuda")
    product[(1,)](a, a, c, n, enable_fp_fusion=True)
    assert c[0, 0] == n, "wrong product"
"""


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)

    def run(*arguments, status=0):
        result = CliRunner().invoke(main, ["compile", *arguments])
        assert result.exit_code == status, result.output
        return result

    return run


@pytest.mark.parametrize(("target", "instruction"), [("sm_90", "wgmma"), ("sm_100", "tcgen05.mma")])
def test_a_script(invoke, target, instruction):
    result = invoke("script.py", "--target", target, "--emit", "ptx")
    assert instruction in result.stdout
    assert f"product: {target}, 4 warps, " in result.stderr
    # Nothing ran, so the script finds its result wrong; that is said, and is no failure.
    assert "script.py stopped, as no kernel ran and there were no results: Asser" in result.stderr


SPOKEN = """
import os
import torch, triton, triton.language as tl
print("from the script")
os.system("echo from a child")

@triton.jit
def add(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, tl.load(x + i) + 1)

x = torch.zeros(64, device="cuda")
add[(1,)](x, 64)
torch.testing.assert_close(x, torch.ones(64))
add[(1,)](x, 32)
"""


def test_stdout_has_what_is_asked_for_alone(invoke, tmp_path):
    """PTX that ptxas takes, a report that is JSON; what the script prints is on stderr."""
    (tmp_path / "spoken.py").write_text(SPOKEN)

    def run(*arguments):
        command = [sys.executable, "-m", "triton_ext", "compile", "spoken.py", *arguments]
        finished = subprocess.run(command, capture_output=True, text=True)
        assert finished.returncode == 0, finished.stderr
        assert "from the script" in finished.stderr
        assert "from a child" in finished.stderr
        assert "not compiled" not in finished.stderr  # the comparison stops no script
        return finished

    ptx = run("--emit", "ptx")
    kernels = ptx.stdout.count("\n.version")
    assert kernels == 2
    assert "several kernels in one output: add (2 x); SCRIPT::KERNEL picks one" in ptx.stderr
    [first, second] = [".version" + each for each in ptx.stdout.split("\n.version")[1:]]
    for text in (first, second):
        (tmp_path / "k.ptx").write_text(text)
        ptxas = [knobs.nvidia.ptxas_blackwell.path, "-arch=sm_100a", "k.ptx", "-o", "k.cubin"]
        subprocess.run(ptxas, check=True, capture_output=True)
    report = run("--passes", "report-layouts{format=json}").stdout
    decoder, at = json.JSONDecoder(), 0
    for _ in range(2):
        one, at = decoder.raw_decode(report, at)
        assert one["kernel"] == "add"
        at += len(report[at:]) - len(report[at:].lstrip())
    assert at == len(report)
    both = run("--emit", "ttgir", "--passes", "report-layouts{format=json}")
    assert "report" not in both.stdout
    assert '"kernel": "add"' in both.stderr
    assert run().stdout.splitlines() == 2 * ["add: sm_100, 4 warps, 0 bytes of shared memory"]


def test_arguments_of_the_script(invoke):
    assert "64x64xf16" in invoke("script.py", "--emit", "ttgir").stdout
    assert "32x32xf16" in invoke("script.py", "--emit", "ttgir", "32").stdout


@pytest.mark.parametrize(
    ("kernel", "signature", "words"),
    [
        ("product", "*fp16:16, *fp16:16, *fp32, 64", "wgmma"),
        ("copy", "*fp32, *fp32, =TILE, 2.5", ".visible .entry copy"),
        ("copy", "*fp32, *fp32, =gl.BlockedLayout([2], [32], [2], [0]), =4 // 2", "copy"),
    ],
)
def test_one_kernel(invoke, kernel, signature, words):
    arguments = ["--target", "sm_90", "--signature", signature, "--emit", "ptx"]
    if "[2], [32], [2]" in signature:
        arguments += ["--num-warps", "2"]
    result = invoke(f"script.py::{kernel}", *arguments)
    assert words in result.stdout
    assert f"{kernel}: sm_90" in result.stderr


def test_passes(invoke):
    passes = "report-layouts{format=json},verify-descriptors{output=none},check-conversion"
    result = invoke("script.py::product", "--target", "sm_90", "--passes", passes)
    report = json.loads(result.stdout)
    assert "product" in json.dumps(report)


def test_the_list(invoke):
    text = invoke("--list").stdout
    for name in ("verify-descriptors", "widen-swizzle", "nvmma-to-linear", "lint-shared"):
        assert f"\n{name} (after " in "\n" + text
    assert "    output=-" in text


CHECKS = """
from triton_ext import passes

@passes.compiler_pass("no-stores", after="ttgir")
def no_stores(compilation, options):
    '''Forbids stores.'''
    stores = [each for each in compilation.ttgir.operations if each.name == "tt.store"]
    return passes.Outcome(diagnostics=[
        passes.Diagnostic("error", "a store", "keep it", each.location) for each in stores
    ])

@passes.compiler_pass("fails", after="ttgir")
def fails(compilation, options):
    '''Fails.'''
    return len(options.depth)
"""


def test_a_pass_of_a_file(invoke, tmp_path):
    """What it finds, with the line and the caret, and how it fails, are said once."""
    (tmp_path / "checks.py").write_text(CHECKS)
    found = invoke("script.py", "--passes", "checks.py::no-stores", status=1).stderr
    lines = found[found.index("triton-ext: ") :].splitlines()
    assert lines[0] == "triton-ext: no-stores: product"
    assert lines[1].startswith("script.py:14:")
    assert lines[1].endswith(": error: a store")
    assert lines[2].strip().startswith("tl.store(c + ")
    assert (lines[3].strip(), lines[4:]) == ("^", ["  help: keep it"])
    failed = invoke("script.py", "--passes", "checks.py::fails", status=1).stderr
    assert failed.count("AttributeError: 'NoOptions' object has no attribute 'depth'") == 1
    assert "triton-ext: the pass fails failed on product after ttgir: AttributeError" in failed
    assert "in fails\n    return len(options.depth)" in failed
    listed = invoke("--list", "--passes", "checks.py::no_stores").stdout
    assert "\nno-stores (after ttgir)\n    Forbids stores.\n" in listed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "a script is needed"),
        (["none.py"], "there is no file none.py"),
        (["script.py", "--signature", "i32"], "needs SCRIPT::KERNEL"),
        (["script.py::other"], "launches no kernel other"),
        (["script.py", "--passes", "no-such"], "no such pass; there are"),
        (["script.py", "--passes", "none.py::x"], "pass = 'none.py::x': there is no file none.py"),
        (["--list", "--passes", "script.py::x"], "pass = 'script.py::x': it has no pass"),
        (["script.py", "--target", "sm_75"], "must be one of sm_80"),
        (
            ["script.py::other", "--signature", "i32"],
            "must be a kernel of script.py: product, copy",
        ),
        (["script.py::copy", "--signature", "*fp32"], "an item for each of source, target, LAYOUT"),
        (["script.py::copy", "--signature", "*fp32, *fp32, =NONE, 1"], "is no expression"),
        (["script.py::copy", "--signature", "*fp32:8, *fp32, =TILE, 1"], "there may be 16"),
        (["script.py::copy", "--signature", "**fp32, *fp32, =TILE, 1"], "is no type"),
        (["script.py::copy", "--signature", "*k*kfp32, *fp32, =TILE, 1"], "is no type"),
        (
            ["script.py::copy", "--signature", "*fp32, *fp32, =TILE, 1", "--num-warps", "8"],
            "the kernel does not compile",  # the layout has 4 warps
        ),
        (["script.py", "--num-stages", "65"], "not in the range 1<=x<=64"),
        (["script.py", "--passes", "report-layouts{output=none/x}"], "report-layouts.output = 'no"),
        (["s" * 300], "File name too long"),
    ],
)
def test_errors(invoke, arguments, words):
    result = CliRunner().invoke(main, ["compile", *arguments])
    assert result.exit_code != 0
    assert words in result.output + str(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_a_script_that_stops_early(invoke, tmp_path):
    (tmp_path / "broken.py").write_text("import none_such_module")
    for arguments in (["broken.py"], ["broken.py::kernel", "--signature", "i32"]):
        output = invoke(*arguments, status=1).output
        assert "ModuleNotFoundError" in output
        assert [line for line in output.splitlines() if line.startswith("  File ")] == [
            '  File "broken.py", line 1, in <module>'
        ]
