"""Bugs as new users of CUDA C++ write them: what the emulated GPU says, and of which line."""

from __future__ import annotations

import re
import shutil

import pytest
from sites import DATA

from triton_ext.emulator.host.cuda.nvcc import compile_source, compiler
from triton_ext.emulator.host.cuda.server import run_program
from triton_ext.emulator.host.emulate import emulated_gpus
from triton_ext.errors import LayoutError

SOURCE = DATA / "programs/bugs.cu"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    try:
        compiler()
    except LayoutError as error:
        pytest.skip(error.rule)
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    return compile_source(SOURCE, 90, tmp_path_factory.mktemp("bugs"))


@pytest.mark.parametrize(
    ("name", "kind", "said", "line"),
    [
        (
            "barrier",
            "SynchronizationFault",
            "(part + 512) is read, and was written by",
            "part[t] +=",
        ),
        ("bounds", "MemoryFault", "it is 0 bytes past the end of allocation", "out[i] = in[i]"),
        ("halo", "UninitializedRead", "(tile + 0) is read, and nothing wrote it", "tile[t + 2]"),
        ("histogram", "SynchronizationFault", "or the accesses must be atomic", "] += 1"),
        ("shuffle", "UninitializedRead", "asks for the value of lane 31, which does not", "shfl"),
        ("host", "MemoryFault", "one of the program's own memory?", "= in[threadIdx.x]"),
    ],
)
def test_a_bug_is_explained(program, name, kind, said, line):
    (gpu,) = emulated_gpus(90)
    faults = []
    assert run_program([str(program), name], gpu, print, faults.append) == 1
    (fault,) = faults
    assert type(fault).__name__ == kind
    assert said in fault.message
    lines = SOURCE.read_text().splitlines()
    assert line in lines[fault.instruction.source.line - 1]
    if name == "barrier":  # the other access has its line, too
        other = re.search(r"was written by warp \d \[\S+bugs\.cu:(\d+)\]", fault.message)
        assert "part[t] = in[t]" in lines[int(other[1]) - 1]
