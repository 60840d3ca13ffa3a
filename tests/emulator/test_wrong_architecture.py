"""Kernels of one architecture on the other: a typed error that names the operation and its line."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest
from sites import ROOT

from triton_ext.emulator.errors import WrongArchitecture
from triton_ext.emulator.host.run import run_ptx

DATA = ROOT / "tests" / "data"


def instructions_of(family):
    lines = (DATA / "triton_instructions.txt").read_text().splitlines()
    return [line for line in lines if re.match(rf"(@\S+ )?{family}\.", line)]


@pytest.mark.parametrize(
    ("family", "own", "other"),
    [("wgmma", "90", "100"), ("tcgen05", "100", "90")],
)
def test_ptx_of_another_target(family, own, other):
    """Each instruction of the family that Triton emits."""
    lines = instructions_of(family)
    assert lines
    for line in lines:
        ptx = f"""
            .version 8.7
            .target sm_{other}a
            .address_size 64
            .visible .entry k() {{ {line.rstrip(";")}; ret; }}
        """
        with pytest.raises(
            WrongArchitecture, match=rf"{family}\S*: .* is of sm_{own}[af]\b"
        ) as caught:
            run_ptx(ptx, grid=1, block=128, args=[])
        assert caught.value.instruction.opcode.startswith(family)


LAUNCHES = [
    ("carried_buffers", {"arch": 90}),
    ("warp_specialized", {"arch": 90}),
    ("attention", {"arch": 90, "p": "registers"}),
    ("cluster_wgmma", {}),
    ("carried_buffers", {"arch": 100}),
    ("warp_specialized", {"arch": 100}),
    ("tensor_memory_views", {"view": "slice"}),
    ("tensor_memory_copy", {"swizzle": 128}),
    ("block_scaled", {"a_format": "e4m3", "b_format": "e4m3"}),
    ("pair_matmul", {}),
]


@functools.cache
def gluon_calls(path):
    """line -> the names that are called there."""
    found = {}
    for node in ast.walk(ast.parse(Path(path).read_text())):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", None) or getattr(node.func, "attr", "")
            found.setdefault(node.lineno, set()).add(name)
    return found


@pytest.mark.parametrize(("kernel", "arguments"), LAUNCHES, ids=str)
def test_gluon_kernels_of_another_architecture(kernel, arguments, capfd):
    """Nothing aborts; the line that is named calls what the other architecture has."""
    pytest.importorskip("triton")
    import corpus_gluon_kernels

    import triton_ext

    hopper = arguments.get("arch") == 90 or kernel == "cluster_wgmma"
    own, other = (90, 100) if hopper else (100, 90)
    with (
        triton_ext.emulate(f"sm_{other}", cuda_on_host=True, idle=True),
        pytest.raises(WrongArchitecture, match=rf"operation of sm_{own}") as caught,
    ):
        getattr(corpus_gluon_kernels, kernel)(**arguments)
    assert f'use emulate("sm_{own}")' in str(caught.value)
    path, line = re.search(r"source: (.*):(\d+):\d+$", str(caught.value)).groups()
    names = "".join(gluon_calls(path)[int(line)])
    assert ("warpgroup_mma" in names) if hopper else re.search("tcgen05|tensor_memory|tmem", names)


SCRIPT = """
import sys
from triton_ext.emulator.host.entered import current_gpu
def never():
    {never}
print("emulated:", current_gpu().arch)
"""


@pytest.mark.parametrize(
    ("named", "arch"),
    [
        ("hopper.warpgroup_mma(a, b, c)", 90),
        ("from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma", 90),
        ("tcgen05_mma(a, b, c)", 100),
        ("warpgroup_mma(a, b, c) or blackwell.tcgen05_mma(a, b, c)", 100),
        ("tl.dot(a, b)", 100),
    ],
)
def test_auto_goes_by_what_the_script_names(named, arch, tmp_path):
    pytest.importorskip("triton")
    from click.testing import CliRunner

    from triton_ext.cli import main

    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(never=named))
    done = CliRunner().invoke(main, ["run", str(script)])
    assert f"emulated: {arch}" in done.output, done.output
