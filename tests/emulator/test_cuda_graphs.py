"""CUDA graphs of unmodified programs: what is captured is done at each launch."""

from __future__ import annotations

import shutil

import pytest
from sites import DATA

from triton_ext.emulator.host.cuda.nvcc import compile_source
from triton_ext.emulator.host.cuda.server import run_program
from triton_ext.emulator.host.emulate import emulated_gpus

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")


@needs_nvcc
def test_a_graph_is_captured_and_launched(tmp_path, capfd):
    """Two streams; copies read the host's memory at each launch; what must not be is refused."""
    program = compile_source(DATA / "programs/graphs.cu", 90, tmp_path)
    (gpu,) = emulated_gpus(90)
    assert run_program([str(program)], gpu, print, print) == 0
    assert capfd.readouterr().out.splitlines() == [
        "cudaErrorStreamCaptureUnsupported",
        "cudaSuccess 1",
        "42 43 44 4 cudaErrorStreamCaptureUnsupported",
    ]
    assert gpu.launches == 6
