"""The Python examples of the guide do what they show."""

from __future__ import annotations

import re

import pytest
from sites import ROOT


def python_blocks(page):
    """The Python blocks of a page of the guide."""
    text = (ROOT / "docs/guide" / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.usefixtures("no_binaries", "shallow")
def test_matmul():
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    block, _models = python_blocks("matmul.md")
    names: dict[str, object] = {}
    exec(block, names)
    assert names["c"].isfinite().all()


@pytest.mark.usefixtures("no_binaries", "shallow")
def test_experts():
    pytest.importorskip("torch")
    pytest.importorskip("triton", minversion="3.9", reason="promoted sums need it")
    scales, groups, any_order, gated, drop_in = python_blocks("moe.md")
    names: dict[str, object] = {}
    exec(scales, names)
    exec(groups, names)
    ours = names["y"]
    layer = dict(names)
    exec(any_order, layer)
    assert layer["mixed"].shape == (24, 64)
    assert layer["mixed"].isfinite().all()
    exec(gated, names)
    assert names["inner"].shape == (50, 36)
    exec(drop_in, names)
    assert (ours == names["y"]).all()
    assert names["gradient"].shape == (3, 64, 72)


def test_run_ptx():
    pytest.importorskip("ml_dtypes")
    (block,) = [each for each in python_blocks("emulator.md") if "PTX" in each]
    names: dict[str, object] = {}
    exec(block, names)
    assert list(names["x"]) == [0, 2, 4, 6]


def test_all_schedules(capsys):
    pytest.importorskip("ml_dtypes")
    (block,) = python_blocks("schedules.md")
    exec(block, {})
    text = (ROOT / "docs/guide/schedules.md").read_text(encoding="utf-8")
    assert f"```\n{capsys.readouterr().out}```" in text
