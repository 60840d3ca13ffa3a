"""docs/guide/cuda.md: its commands, its Python, and the kernel that it shows."""

from __future__ import annotations

import re
import shutil
import subprocess

import numpy as np
import pytest
from installed import environment, interpreter
from pages import assert_shows
from sites import ROOT

from triton_ext.emulator.state.tensor_map_memory import decode

PAGE = (ROOT / "docs/guide/cuda.md").read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_the_commands_print_what_is_shown(tmp_path):
    variables = environment(interpreter(tmp_path / "installed"))
    blocks = re.findall(r"```\n\$ ([^\n]*)\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    for command, printed in blocks:
        done = subprocess.run(
            command, shell=True, cwd=ROOT, env=variables,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert_shows(printed, done.stdout)


def test_the_kernel_is_that_of_the_example():
    (kernel,) = re.findall(r"```cuda\n(.*?)```", PAGE, re.DOTALL)
    assert kernel in (ROOT / "examples/scaled_copy.cu").read_text(encoding="utf-8")


def test_a_map_in_memory():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    maps = names["maps"]
    assert isinstance(maps, np.ndarray)
    assert decode(maps.tobytes()) == names["tensor"]
