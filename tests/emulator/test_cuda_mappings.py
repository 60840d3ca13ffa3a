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

PROGRAM = """
import ctypes, struct, sys
cuda = ctypes.CDLL("libcuda.so.1")
word, piece = ctypes.c_uint64, 2 << 20

def call(name, *arguments, expected=0):
    status = getattr(cuda, name)(*arguments)
    assert status == expected, (name, status)

def made(name, *arguments):
    result = word()
    call(name, ctypes.byref(result), *arguments)
    return result.value

mode, ptx = sys.argv[1:]
call("cuInit", 0)
call("cuCtxSetCurrent", ctypes.c_void_p(made("cuDevicePrimaryCtxRetain", 0)))
kind = struct.pack("<4i16x", 1, 0, 1, 0)
assert made("cuMemGetAllocationGranularity", kind, 0) == piece
start = made("cuMemAddressReserve", word(2 * piece), word(0), word(0), word(0))
other = made("cuMemAddressReserve", word(piece), word(0), word(0), word(0))
handles = [made("cuMemCreate", word(piece), kind, word(0)) for _ in range(2)]
for number, handle in enumerate(handles):
    call("cuMemMap", word(start + number * piece), word(piece), word(0), word(handle), word(0))
call("cuMemMap", word(other), word(piece), word(0), word(handles[1]), word(0))
call("cuMemMap", word(other), word(piece), word(0), word(handles[1]), word(0), expected=1)
call("cuMemCreate", ctypes.byref(word()), word(piece + 1), kind, word(0), expected=1)
call("cuMemFree_v2", word(start), expected=1)
both = struct.pack("<3i", 1, 0, 3)
if mode != "no access":
    call("cuMemSetAccess", word(start), word(2 * piece), both, word(1))
call("cuMemSetAccess", word(other), word(piece), both, word(1))

# 100 numbers, of which 40 lie in the first piece and 60 in the second
at = start + piece - 40 * 4
numbers = (ctypes.c_float * 100)(*range(100))
if mode == "no access":
    call("cuMemcpyHtoD_v2", word(at), numbers, word(400), expected=1)
else:
    call("cuMemcpyHtoD_v2", word(at), numbers, word(400))
    out = made("cuMemAlloc_v2", word(400))
    call("cuMemsetD32_v2", word(out), 0, word(100))
module = made("cuModuleLoadData", open(ptx, "rb").read())
function = made("cuModuleGetFunction", word(module), b"saxpy")
if mode == "unmapped":
    call("cuMemUnmap", word(start + piece), word(piece))
values = word(start if mode == "no access" else out), word(at), ctypes.c_float(3), ctypes.c_int(100)
pointers = (ctypes.c_void_p * 4)(*(ctypes.addressof(each) for each in values))
call("cuLaunchKernel", word(function), 1, 1, 1, 128, 1, 1, 0, None, pointers, None)
call("cuMemcpyDtoH_v2", numbers, word(out), word(400))
print([numbers[i] / numbers[1] for i in (39, 40, 99)])
call("cuMemcpyDtoH_v2", numbers, word(other), word(4))  # the second piece, by its other address
print(numbers[0])
for handle in handles:
    call("cuMemRelease", word(handle))
free = word(), word()
call("cuMemUnmap", word(start), word(2 * piece))
call("cuMemGetInfo_v2", *map(ctypes.byref, free))
call("cuMemUnmap", word(other), word(piece))
before = free[0].value
call("cuMemGetInfo_v2", *map(ctypes.byref, free))
print((free[0].value - before) // piece)  # what was mapped twice lived until now
call("cuMemAddressFree", word(start), word(piece), expected=1)
call("cuMemAddressFree", word(start), word(2 * piece))
"""


def _run(command, capfd):
    told, faults = [], []
    (gpu,) = emulated_gpus(90)
    status = run_program(command, gpu, told.append, faults.append)
    out, err = capfd.readouterr()
    return status, out, "\n".join(told) + err, faults


def _mapped(mode, capfd):
    file = str(DATA / "programs/saxpy.ptx")
    return _run([sys.executable, "-c", PROGRAM, mode, file], capfd)


def test_memory_that_is_mapped(capfd):
    status, out, told, faults = _mapped("plain", capfd)
    assert (status, out) == (0, "[39.0, 40.0, 99.0]\n40.0\n1\n"), told
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
