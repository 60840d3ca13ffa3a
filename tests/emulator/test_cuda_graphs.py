"""CUDA graphs of unmodified programs: what is captured is done at each launch."""

from __future__ import annotations

import shutil
import sys

import pytest
from sites import DATA

from triton_ext.emulator.host.cuda.nvcc import compile_source
from triton_ext.emulator.host.cuda.server import run_program
from triton_ext.emulator.host.emulate import emulated_gpus

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")


@needs_nvcc
def test_graphs_of_the_runtime_library(tmp_path, capfd):
    """One is built of nodes. Of the other: two streams; copies read the host's memory at each
    launch; what must not be is refused."""
    program = compile_source(DATA / "programs/graphs.cu", 90, tmp_path)
    (gpu,) = emulated_gpus(90)
    assert run_program([str(program)], gpu, print, print) == 0
    assert capfd.readouterr().out.splitlines() == [
        "cudaSuccess 6 8 1 cudaSuccess 6 cudaSuccess",
        "cudaErrorStreamCaptureUnsupported",
        "cudaSuccess 1",
        "42 43 44 4 cudaErrorStreamCaptureUnsupported",
    ]
    assert gpu.launches == 9


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_graph_is_built_of_nodes(capfd):
    """A kernel that adds 3 to ones, twice; then to twos; then 3 and 4; then as it was built."""
    programs = DATA / "programs"
    command = [sys.executable, str(programs / "graph_nodes.py"), str(programs / "saxpy.ptx")]
    (gpu,) = emulated_gpus(90)
    assert run_program(command, gpu, print, print) == 0
    assert capfd.readouterr().out.splitlines() == [
        "0 1 2 4 5", "6.0 6.0", "12.0 12.0", "14.0 14.0", "2", "6.0 6.0",
    ]  # fmt: skip
