"""Kernels that are compiled ahead are those that a product asks for."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner
from sites import ALL, SUPPORT, triton_sites

pytest.importorskip("torch")
pytest.importorskip("triton")

from triton_ext.cli import main
from triton_ext.kernels.precompile import configurations, precompile


@pytest.mark.parametrize("site", triton_sites() if ALL else [None])
def test_a_product_finds_what_was_compiled_ahead(site):
    """Nothing is compiled, by Triton's own account; more kinds and releases by `make oracle`."""
    told = subprocess.run(
        [sys.executable, str(SUPPORT / "precompile_worker.py"), *(["all"] if ALL else [])],
        env={**os.environ, "PYTHONPATH": str(site or "")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(told.stdout)
    assert found
    for kernels, launched, were_there in found.values():
        assert 1 <= kernels == launched == were_there


def test_configurations_are_those_of_the_problems():
    sizes = [(m, 4096, 4096) for m in (1, 2, 4, 16, 4096, 8192)]
    found = configurations(90, "bf16", ("K", "K"), sizes, bias=True)
    assert 2 <= len(found) < len(sizes)
    assert all(config.bias for config in found)
    assert len({*configurations(90, "bf16", ("K", "K"), sizes), *found}) == 2 * len(found)


def test_what_does_not_compile_is_told(monkeypatch, tmp_path):
    """A cache that cannot be written."""
    (tmp_path / "file").touch()
    config = configurations(90, "fp16", ("K", "K"), [(64, 64, 64)])
    (found,) = precompile(config, tmp_path / "file", jobs=1)
    assert not found.was_there
    assert "Error" in found.error


def test_the_command(tmp_path):
    def run(*arguments):
        command = ["precompile", *arguments, "--out", str(tmp_path), "--format", "json"]
        return CliRunner().invoke(main, command)

    done = [run("512x512", "--rows", "16,17", "--jobs", "1") for _ in range(2)]
    assert [each.exit_code for each in done] == [0, 0]
    first, second = (json.loads(each.stdout) for each in done)
    assert first["problems"] == 2
    assert first["kernels"] == first["compiled"] == second["found"] >= 1
    assert second["compiled"] == first["found"] == 0
    for arguments in (("512",), ("64x64", "--rows", "0"), ("64x64", "--types", "bf8")):
        assert run(*arguments).exit_code == 2
