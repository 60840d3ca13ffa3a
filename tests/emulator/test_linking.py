"""Relocatable device code: the PTX of several files as one module, run."""

from __future__ import annotations

import struct
import subprocess

import numpy as np
import pytest
from ptx_samples import fatbin

from triton_ext.emulator.host.cuda.device import Device
from triton_ext.emulator.host.cuda.library import build
from triton_ext.emulator.host.cuda.nvcc import compiler
from triton_ext.emulator.host.cuda.server import run_program
from triton_ext.emulator.host.cuda.status import CudaError
from triton_ext.emulator.host.emulate import emulated_gpus
from triton_ext.errors import LayoutError

HEAD = ".version {}\n.target sm_90\n.address_size 64\n"
FIRST = """
.extern .func (.param .b32 result) scaled(.param .b32 x);
.extern .global .align 4 .u32 table[4];
.global .u32 own = 5;
.weak .func (.param .b32 result) doubled(.param .b32 x)
{ .reg .b32 %r1; ld.param.u32 %r1, [x]; shl.b32 %r1, %r1, 1; st.param.u32 [result], %r1; ret; }
.visible .entry k(.param .u64 out)
{
  .reg .b32 %r<9>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %tid.x;
  { .param .b32 p; st.param.b32 [p], %r1; .param .b32 q;
    call.uni (q), scaled, (p); ld.param.b32 %r2, [q]; }
  { .param .b32 p; st.param.b32 [p], %r2; .param .b32 q;
    call.uni (q), doubled, (p); ld.param.b32 %r2, [q]; }
  and.b32 %r3, %r1, 3;
  mul.wide.u32 %rd2, %r3, 4;
  mov.u64 %rd3, table;
  add.s64 %rd3, %rd3, %rd2;
  ld.global.u32 %r4, [%rd3];
  add.u32 %r2, %r2, %r4;
  ld.global.u32 %r5, [own];
  add.u32 %r2, %r2, %r5;
  mul.wide.u32 %rd2, %r1, 4;
  add.s64 %rd1, %rd1, %rd2;
  st.global.u32 [%rd1], %r2;
  ret;
}
"""
SECOND = """
.visible .global .align 4 .u32 table[4] = {10, 20, 30, 40};
.global .u32 own = 7000;
.weak .func (.param .b32 result) doubled(.param .b32 x)
{ .reg .b32 %r1; ld.param.u32 %r1, [x]; shl.b32 %r1, %r1, 1; st.param.u32 [result], %r1; ret; }
.visible .func (.param .b32 result) scaled(.param .b32 x)
{
  .reg .b32 %r<4>;
  ld.param.u32 %r1, [x];
  ld.global.u32 %r2, [own];
  mad.lo.u32 %r1, %r1, 3, %r2;
  st.param.u32 [result], %r1;
  ret;
}
"""


def image(*texts):
    """Fatbins in a row, one of them without PTX for this GPU, as NVIDIA's device library is."""
    units = [
        HEAD.format(version) + text for text, version in zip(texts, ("8.0", "8.7"), strict=False)
    ]
    other = HEAD.format("8.7").replace("sm_90", "sm_100a")
    return b"".join(fatbin((1, each.encode(), 0, 0, 0)) for each in (*units, other))


def executed(*texts):
    (gpu,) = emulated_gpus(90)
    device = Device(gpu)
    data = image(*texts)
    (module,) = device.load(data, len(data))
    (function,) = device.cuModuleGetFunction(module, "k")
    (out,) = device.cuMemAlloc(128)[:1]
    device.launch(function, struct.pack("<3I3II3II", 1, 1, 1, 32, 1, 1, 0, 0, 0, 0, 0),
                  struct.pack("<Q", out))  # fmt: skip
    return device.heap.data(device._room(out))[:128].view(np.uint32).tolist()


def test_modules_are_linked():
    expected = [2 * (3 * i + 7000) + 10 * (i % 4 + 1) + 5 for i in range(32)]
    assert executed(FIRST, SECOND) == expected
    assert executed(SECOND, FIRST) == expected


def test_what_cannot_be_linked():
    with pytest.raises(CudaError, match=r"table.*no module defines it"):
        executed(FIRST)
    with pytest.raises(CudaError, match=r"scaled.*is defined by two modules"):
        executed(SECOND, SECOND.replace(" table", " other"))
    with pytest.raises(CudaError, match="which sm_90 does not run"):
        executed()


def test_a_program_of_two_files(tmp_path, capfd):
    """As nvcc compiles it, where there is one."""
    try:
        nvcc = compiler()
    except LayoutError:
        pytest.skip("no nvcc")
    (tmp_path / "a.cu").write_text(
        "#include <cstdio>\nextern __device__ int scaled(int), table[4];\n"
        "__global__ void k(int *out) { out[threadIdx.x] = scaled(threadIdx.x) + table[1]; }\n"
        "int main() { int *p; cudaMallocManaged(&p, 128); k<<<1, 32>>>(p);\n"
        'cudaDeviceSynchronize(); printf("%d\\n", p[31]); }\n'
    )
    (tmp_path / "b.cu").write_text(
        "__device__ int table[4] = {10, 20, 30, 40};\n"
        "__device__ int scaled(int x) { return 3 * x; }\n"
    )
    subprocess.run(
        [nvcc, "-rdc=true", "-cudart", "shared", "-gencode", "arch=compute_90,code=compute_90",
         f"-L{build()}", "-o", tmp_path / "k", tmp_path / "a.cu", tmp_path / "b.cu"], check=True,
    )  # fmt: skip
    (gpu,) = emulated_gpus(90)
    assert run_program([str(tmp_path / "k")], gpu, print, print) == 0
    assert capfd.readouterr().out == "113\n"
