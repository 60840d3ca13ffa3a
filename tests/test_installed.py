"""The installed command and package, used as a person would, away from the checkout.

`make pytest` runs this (as all tests) with the wheel, in an environment that does not see the
sources; and asks for the layouts in ``build/bare``, which has neither Triton nor torch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sites import CHECKOUT, ROOT

from triton_ext.cli import main
from triton_ext.passes import all_passes

BIN = Path(sys.executable).parent
BARE = CHECKOUT / "build" / "bare" / "bin"
COMMANDS = sorted(main.list_commands(None))
PASSES = ",".join(each.name for each in all_passes())  # before a test adds one of its own
ENCODING = "#ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>"
DESCRIPTOR = ("descriptor", "0x4000404000010000", "--arch", "sm_100")


@pytest.fixture
def away(tmp_path):
    """Runs a command in an empty folder, with nothing of this project in its environment."""
    for name in ("blackwell_matmul.py", "hopper_matmul.py"):
        shutil.copy(ROOT / "examples" / name, tmp_path)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name != "PYTHONPATH" and not name.startswith("TRITON_EXT")
    }

    def run(*command, folder=BIN, status=0, **variables):
        done = subprocess.run(
            [str(folder / command[0]), *command[1:]],
            cwd=tmp_path, env={**environment, **variables}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == status, done.stdout[-3000:] + done.stderr[-3000:]
        return done

    run.folder = tmp_path
    return run


@pytest.fixture
def bare(away):
    """The same with the environment that has neither Triton nor torch."""
    if not BARE.exists():
        pytest.skip("`make installed` makes an environment without Triton and torch")
    return lambda *command, **options: away(*command, folder=BARE, **options)


# ------------------------------------------------------------------ layouts alone


HELP = """if 1:
    import contextlib, triton_ext.cli
    for name in triton_ext.cli.main.list_commands(None):
        with contextlib.suppress(SystemExit):
            triton_ext.cli.main([name, "--help"], "triton-ext")
"""


def check_help(run):
    """One process shows the help of all commands, and the installed script is the same command."""
    shown = run("python", "-c", HELP).stdout
    assert [f"Usage: triton-ext {name}" in shown for name in COMMANDS] == [True] * len(COMMANDS)
    assert run("triton-ext", COMMANDS[0], "--help").stdout.startswith("Usage: triton-ext")


def test_help_without_triton(bare):
    check_help(bare)


def test_layouts_without_triton(bare):
    words = "import sys, triton_ext, triton_ext.hardware, triton_ext.ptx; triton_ext.cute"
    bare("python", "-c", f"{words}; assert not {{'triton', 'torch'}} & set(sys.modules)")
    shown = bare("triton-ext", "layout", ENCODING, "--shape", "128x256")
    assert "- offset=1 -> (0, 1)" in shown.stdout
    assert bare("triton-ext", "layout", ENCODING, "--shape", "8x64", "--format", "svg").stdout
    assert "128" in bare("triton-ext", *DESCRIPTOR).stdout
    assert bare("triton-ext", "tmem", "--m", "128", "--n", "256").stdout
    assert bare("triton-ext", "ptx", str(ROOT / "tests/data/cute_sm100.ptx")).stdout
    bare("triton-ext", "explore", "page.html")


@pytest.mark.parametrize(
    "command",
    [("run", "--emulate", "sm_100", "blackwell_matmul.py"), ("compile", "blackwell_matmul.py"),
     ("demo",)],
)  # fmt: skip
def test_what_needs_triton_says_so(bare, command):
    said = bare("triton-ext", *command, status=2).stderr
    assert "needs Triton and torch" in said
    assert "pip install" in said


# ------------------------------------------------------------------ with Triton and torch


@pytest.fixture
def product(away):
    pytest.importorskip("torch")
    pytest.importorskip("triton", minversion="3.8")
    return away


def test_help(away):
    check_help(away)


def test_every_module_can_be_imported(product):
    """All that the package holds, but what plugs into packages that are not here."""
    program = """if 1:
        import importlib, pkgutil, triton_ext
        for found in pkgutil.walk_packages(triton_ext.__path__, "triton_ext."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)
                print(found.name)
    """
    names = product("python", "-c", program).stdout.split()
    assert {"triton_ext.distributed", "triton_ext.timeline", "triton_ext.ptx.forms"} <= set(names)


def test_ptx(away):
    shown = away("triton-ext", "ptx", str(ROOT / "tests/data/cute_sm100.ptx")).stdout
    assert "tcgen05.mma" in shown


def test_compile_with_all_passes(product):
    arguments = ("blackwell_matmul.py", "--target", "sm_100", "--passes", PASSES, "--emit", "ptx")
    done = product("triton-ext", "compile", *arguments)
    assert "tcgen05.mma" in done.stdout
    assert "nvmma-to-linear: matmul: 2 converted" in done.stderr
    assert "atom: 8 rows of 128 bytes" in done.stderr


@pytest.mark.parametrize(("arch", "script"), [("sm_90", "hopper"), ("sm_100", "blackwell")])
def test_run(product, arch, script):
    product("triton-ext", "run", "--emulate", arch, f"{script}_matmul.py")


def test_run_with_time(product):
    said = product("triton-ext", "run", "--emulate", "sm_90", "--time", "hopper_matmul.py")
    assert "predicted" in (said.stdout + said.stderr)


def test_demo(product):
    said = product("triton-ext", "demo").stdout
    assert "tcgen05" in said


def test_emulated_gpu_in_pytest(product):
    (product.folder / "test_kernel.py").write_text("""if 1:
        import torch, triton, triton.language as tl

        @triton.jit
        def double(x, y):
            i = tl.arange(0, 128)
            tl.store(y + i, 2 * tl.load(x + i))

        def test_double(emulated_gpu):
            x = torch.arange(128)
            y = torch.zeros_like(x)
            double[1,](x, y)
            assert torch.equal(y, 2 * x)
    """)
    done = product("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_kernel.py")
    assert "1 passed" in done.stdout


PROGRAM = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget

@triton.jit
def copy(x, y):
    tl.store(y, tl.load(x))

source = triton.compiler.ASTSource(copy, {"x": "*fp16", "y": "*fp16"}, constexprs={})
triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": True})
"""


def test_passes_of_the_environment(product):
    """TRITON_EXT_PASSES, in a program that does not import this project."""
    (product.folder / "program.py").write_text(PROGRAM)
    command = ("python", "program.py")
    cache = {"TRITON_CACHE_DIR": str(product.folder / "cache")}
    assert not product(*command, **cache).stdout
    said = product(*command, **cache, TRITON_EXT_PASSES="report-layouts")
    assert said.stdout.startswith("copy: sm_90")
    failed = product(*command, **cache, TRITON_EXT_PASSES="no-such-pass", status=1)
    assert "no such pass" in failed.stderr


def test_distributed(product):
    program = "import triton_ext.distributed as d; print(d.all_gather_matmul, d.__file__)"
    assert "all_gather_matmul" in product("python", "-c", program).stdout
