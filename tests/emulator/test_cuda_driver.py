"""The stand-in for CUDA's driver: a program in C that calls it, and its parts."""

from __future__ import annotations

import functools
import itertools
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sites import DATA

from triton_ext.emulator import run_ptx
from triton_ext.emulator.errors import LaunchError
from triton_ext.emulator.host.cuda import interface
from triton_ext.emulator.host.cuda.answers import ANSWERS
from triton_ext.emulator.host.cuda.attributes import device_attribute
from triton_ext.emulator.host.cuda.device import Device
from triton_ext.emulator.host.cuda.heap import ALIGNMENT, Heap
from triton_ext.emulator.host.cuda.library import build
from triton_ext.emulator.host.cuda.modules import chosen
from triton_ext.emulator.host.cuda.nvcc import compiler
from triton_ext.emulator.host.cuda.server import run_program
from triton_ext.emulator.host.cuda.status import CudaError
from triton_ext.emulator.host.emulate import emulated_gpus
from triton_ext.emulator.state.memory import OF_MALLOC
from triton_ext.errors import LayoutError

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The program of tests/data, compiled."""
    made = tmp_path_factory.mktemp("driver") / "program"
    source = DATA / "programs/driver_program.c"
    subprocess.run(["cc", "-w", "-o", str(made), str(source), "-ldl"], check=True)
    return str(made)


@pytest.fixture
def run(program, capfd):
    """Runs it in a mode: its exit status, what it prints, what is told, and the faults."""

    def call(mode, file=DATA / "programs/saxpy.ptx", **options):
        told, faults = [], []
        (gpu,) = emulated_gpus(90, **options)
        status = run_program([program, mode, str(file)], gpu, told.append, faults.append)
        out, err = capfd.readouterr()
        return status, out, "\n".join(told) + err, faults

    return call


@needs_cc
def test_a_program(run):
    status, out, told, faults = run("plain")
    assert (status, out) == (0, "launching\n1 595 132\n")
    assert not told
    assert not faults


@needs_cc
def test_its_time_is_predicted(program):
    command = [sys.executable, "-m", "triton_ext", "run", "--emulate", "sm_90", "--time", "--"]
    done = subprocess.run(
        [*command, program, "plain", str(DATA / "programs/saxpy.ptx")],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "launching\n1 595 132\n")
    assert re.search(r"^saxpy: [\d.]+ us on an H200", done.stderr)


@needs_cc
def test_memory_of_the_program_is_reached_once_it_is_registered(run):
    assert run("registered")[:2] == (0, "launching\n1 595 132\n")


@needs_cc
@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("past", "0 bytes past the end of allocation 2"),
        ("freed", "was in allocation 2 (400 bytes), which was freed"),
        ("host", "one of the program's own memory?"),
    ],
)
def test_a_fault_ends_the_program(run, mode, said):
    status, out, _, (fault,) = run(mode)
    assert (status, out) == (1, "launching\n")  # what it had printed is not lost
    assert type(fault).__name__ == "MemoryFault"
    assert said in str(fault)
    assert "warp" in str(fault)


@needs_cc
@pytest.mark.parametrize(
    ("mode", "out", "said"),
    [
        ("threads", "1\n", "cuLaunchKernel: saxpy: block = (2048, 1, 1): must be at most"),
        ("missing", "801\n500 1\n1 595 132\n", "cuTexRefCreate: the emulated GPU's stand-in"),
        ("copy", "1\n1 595 132\n", "cuMemcpy: a read of 404 bytes at"),
        ("twice", "1\n1 595 132\n", "cuMemFree_v2: 0x"),
        ("table", "500\n1 595 132\n", "-cudart shared"),
    ],
)
def test_what_is_refused_has_its_error_and_a_reason(run, mode, out, said):
    _, printed, told, faults = run(mode)
    assert printed == f"launching\n{out}"
    assert said in told
    assert not faults


@needs_cc
@pytest.mark.parametrize(
    ("image", "status", "said"),
    [
        (b"\x7fELF" + bytes(60), 209, "-gencode arch=compute_90a,code=compute_90a"),
        (b".version 8.7\n.target sm_100a\n.address_size 64\n", 209, "which sm_90 does not run"),
        (
            b".version 8.0\n.target sm_90\n.global .u64 at = nothing;\n",
            218,
            "initializer 'nothing'",
        ),
    ],
)
def test_an_image_that_cannot_run(run, tmp_path, image, status, said):
    if image.startswith(b"\x7fELF"):  # with no sections: 64 bits, little-endian
        image = image[:4] + b"\x02\x01" + image[6:]
    file = tmp_path / "image"
    file.write_bytes(image)
    assert run("image", file)[1] == f"{status}\n"
    assert said in run("image", file)[2]


_NVRTC = """
int nvrtcCompileProgram(void *program, int count, const char *const *options) {
    while (count--) puts(*options++);
    return 0;
}
int nvrtcGetCUBINSize(void *program, size_t *size) { return *size = 99, 0; }
int nvrtcGetCUBIN(void *program, char *code) { return strcpy(code, "machine code"), 0; }
int nvrtcGetPTXSize(void *program, size_t *size) { return *size = 5, 0; }
int nvrtcGetPTX(void *program, char *code) { return strcpy(code, "PTX!"), 0; }
"""
_ASKS_FOR_MACHINE_CODE = """
int main(void) {
    const char *options[] = {"-arch=sm_90"};
    char code[100];
    size_t size;
    nvrtcCompileProgram(0, 1, options), nvrtcGetCUBINSize(0, &size), nvrtcGetCUBIN(0, code);
    printf("%d %s\\n", (int)size, code);
}
"""


@needs_cc
def test_a_program_that_compiles_while_it_runs_gets_ptx_for_machine_code(tmp_path, capfd):
    """The library is a stand-in with NVRTC's functions."""
    head = "#include <stdio.h>\n#include <string.h>\n"
    for name, text in (("nvrtc.c", _NVRTC), ("user.c", _ASKS_FOR_MACHINE_CODE)):
        (tmp_path / name).write_text(head + text)
    options = ["cc", "-w", f"-Wl,-rpath,{tmp_path}", "-o"]
    for more in (["libnvrtc.so", "nvrtc.c", "-shared", "-fPIC"], ["user", "user.c", "libnvrtc.so"]):
        subprocess.run([*options, *more], check=True, cwd=tmp_path)
    (gpu,) = emulated_gpus(90)
    assert run_program([str(tmp_path / "user")], gpu, print, print) == 0
    assert capfd.readouterr().out == "-lineinfo\n-arch=sm_90\n5 PTX!\n"


@needs_cc
def test_a_signal_is_told_as_a_shell_does():
    (gpu,) = emulated_gpus(90)
    assert run_program(["sh", "-c", "kill -SEGV $$"], gpu, print, print) == 128 + 11


def test_without_a_compiler_the_error_says_so(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv("CC", "nothing")
    with pytest.raises(LayoutError, match="CC = 'nothing': there is no such C compiler"):
        build.__wrapped__()


# ------------------------------------------------------------------------------- parts


def test_every_function_has_an_answer():
    for function in interface.functions():
        assert hasattr(Device, function.handler) or function.handler in ANSWERS, function.name


@functools.cache
def header():
    """The text of cuda.h, of whichever toolkit there is."""
    try:
        return (compiler().resolve().parent / "../include/cuda.h").read_text(encoding="utf-8")
    except (LayoutError, OSError):
        found = shutil.which("nvcc")
        return "" if found is None else _include(found)


def _include(nvcc):
    """cuda.h of an nvcc that is a script."""
    said = subprocess.run([nvcc, "--dryrun", "-c", "x.cu"], capture_output=True, text=True)
    top = re.search(r"TOP=(\S+)", said.stderr)
    with open(f"{top[1]}/include/cuda.h", encoding="utf-8") as file:
        return file.read()


def test_parameters_are_those_of_the_header():
    """A place for a result, an array or a text is a pointer there, and a number is none."""
    if not header():
        pytest.skip("no cuda.h")
    macros = dict(re.findall(r"#define (cu\w+)\s+(?:__CUDA_API_PT\w+\()?(cu\w+_v\d+)\b", header()))
    found = {}
    for name, text in re.findall(r"CUDAAPI\s+(cu\w+)\s*\(([^;]*?)\)\s*;", header(), re.DOTALL):
        parts = [each for each in text.split(",") if each.strip() not in ("", "void")]
        found.setdefault(macros.get(name, name), ["*" in each for each in parts])
    compared = 0
    for function in interface.functions():
        pointers = found.get(function.name)
        if pointers is None or function.name in ("cuMemAdvise", "cuMemPrefetchAsync"):
            continue
        kinds = [each.kind for each in function.parameters]
        assert len(kinds) == len(pointers), function.name
        for kind, pointer in zip(kinds, pointers, strict=True):
            assert pointer or kind in "iuq", function.name
            assert not pointer or kind not in "iu", function.name
        compared += 1
    assert compared > 80


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MULTIPROCESSOR_COUNT", 132),
        ("COMPUTE_CAPABILITY_MAJOR", 9),
        ("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", 227 << 10),
        ("CLUSTER_LAUNCH", 1),
        ("TENSOR_MAP_ACCESS_SUPPORTED", 1),
        ("PAGEABLE_MEMORY_ACCESS", 0),
    ],
)
def test_attributes_have_the_header_s_numbers(name, value):
    if not header():
        pytest.skip("no cuda.h")
    (number,) = re.findall(rf"CU_DEVICE_ATTRIBUTE_{name}\s*=\s*(\d+)", header())
    assert device_attribute(int(number), 90) == value


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5000)), max_size=30))
def test_allocations_are_apart(steps):
    heap = Heap()
    try:
        rooms = []
        for frees, size in steps:
            if frees and rooms:
                gone = rooms.pop(size % len(rooms))
                heap.free(gone.start)
                assert heap.rooms.find(gone.start) is None
                assert heap.rooms.freed(gone.start).name == gone.name
            else:
                rooms.append(heap.allocate(size))
        ordered = sorted(rooms, key=lambda room: room.start)
        for room, after in itertools.pairwise(ordered):
            assert room.end + ALIGNMENT <= after.start
        for room in rooms:
            assert heap.rooms.find(room.end - 1) is room
            assert heap.rooms.find(room.end) is None
        assert heap.used == sum(room.size for room in rooms)
    finally:
        heap.close()


def test_new_memory_is_marked_if_that_is_checked():
    heap = Heap(marked=True)
    for name in ("", OF_MALLOC):
        assert np.isnan(heap.data(heap.allocate(8, name=name)).view(np.float32)).all()
    heap.close()


@pytest.mark.parametrize(
    ("targets", "arch", "taken"),
    [
        (["sm_80", "sm_90"], 100, "sm_90"),
        (["sm_80", "sm_90a"], 100, "sm_80"),
        (["sm_90", "sm_90a"], 90, "sm_90a"),
        (["sm_100f", "sm_90"], 103, "sm_100f"),
    ],
)
def test_the_newest_ptx_that_runs_is_taken(targets, arch, taken):
    texts = [f".version 9.0\n.target {target}\n// {target}\n" for target in targets]
    assert f"// {taken}\n" in chosen(texts, arch)
    assert f".target sm_{arch}a" in chosen(texts, arch)


def test_ptx_of_a_later_gpu_does_not_run():
    with pytest.raises(CudaError, match="its PTX is for sm_100a, which sm_90 does not run"):
        chosen([".target sm_100a"], 90)


POINTERS = """
.version 8.0
.target sm_90
.address_size 64
.global .align 8 .u64 where[2] = {{generic({name}), generic(values)+4}};
.global .align 4 .u32 values[2] = {{7, 9}};
.visible .entry k(.param .u64 out)
{{
  .reg .b32 %r<2>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [out];
  ld.global.u64 %rd2, [where+8];
  ld.global.u32 %r1, [%rd2];
  st.global.u32 [%rd1], %r1;
  ret;
}}
"""


def test_variables_may_hold_addresses_of_others():
    out = np.zeros(1, np.uint32)
    run_ptx(POINTERS.format(name="values"), grid=1, block=1, args=[out])
    assert out[0] == 9
    with pytest.raises(LaunchError, match="variable where: initializer"):
        run_ptx(POINTERS.format(name="nothing"), grid=1, block=1, args=[out])
