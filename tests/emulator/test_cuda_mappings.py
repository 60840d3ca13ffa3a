"""Virtual memory of the driver's stand-in, and what processes of the program load before all."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from sites import DATA

from triton_ext.emulator.host.cuda.server import run_program
from triton_ext.emulator.host.emulate import emulated_gpus

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def _run(command, capfd):
    told, faults = [], []
    (gpu,) = emulated_gpus(90)
    status = run_program(command, gpu, told.append, faults.append)
    out, err = capfd.readouterr()
    return status, out, "\n".join(told) + err, faults


def _mapped(mode, capfd):
    programs = DATA / "programs"
    command = [sys.executable, str(programs / "mapped_memory.py"), mode]
    return _run([*command, str(programs / "saxpy.ptx")], capfd)


def test_memory_that_is_mapped(capfd):
    status, out, told, faults = _mapped("plain", capfd)
    assert (status, out) == (0, "117.0 120.0 297.0 40.0\n1\n"), told
    assert "is not a multiple of the granularity" in told
    assert "something is mapped there" in told
    assert not faults


@pytest.mark.parametrize(
    ("mode", "said"),
    [("unmapped", "(2097152 bytes), which was freed"), ("no access", "is in no allocation")],
)
def test_memory_that_is_not_mapped(capfd, mode, said):
    status, _, _, (fault,) = _mapped(mode, capfd)
    assert status == 1
    assert type(fault).__name__ == "MemoryFault"
    assert said in str(fault)


def test_files_of_the_gpu_are_seen(capfd):
    asked = "import os; print([os.path.exists(f'/dev/nvidia{n}') for n in ('0', 'ctl', '77')])"
    assert _run([sys.executable, "-c", asked], capfd)[:2] == (0, "[True, True, False]\n")


def test_libraries_that_compile_within_the_program_do_not_start(capfd, monkeypatch):
    """XLA's flags stay, with ours before them."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_theirs")
    asked = (
        "import ctypes, os; linker = ctypes.CDLL('libnvJitLink.so.13'); number = ctypes.c_uint();"
        "print(linker.nvJitLinkVersion(ctypes.byref(number), ctypes.byref(number)));"
        "print(os.environ['XLA_FLAGS'])"
    )
    expected = "6\n--xla_gpu_autotune_level=0 --xla_theirs\n"
    assert _run([sys.executable, "-c", asked], capfd)[:2] == (0, expected)


@pytest.mark.parametrize("given", [[], ["-lineinfo"], ["-g"]])
def test_the_assembler_keeps_the_ptx(tmp_path, capfd, given):
    """A program of that name gets the option, once."""
    source = tmp_path / "echo.c"
    source.write_text(
        "#include <stdio.h>\n"
        "int main(int n, char **v) { for (int i = 1; i < n; i++) puts(v[i]); return 3; }\n"
    )
    for name in ("ptxas", "other"):
        subprocess.run(["cc", "-o", str(tmp_path / name), str(source)], check=True)
    command = [str(tmp_path / "ptxas"), "a.ptx", *given]
    assert _run(command, capfd)[:2] == (3, "\n".join(["a.ptx", *(given or ["-lineinfo"]), ""]))
    assert _run([str(tmp_path / "other"), "a.ptx"], capfd)[:2] == (3, "a.ptx\n")
