"""The published steps to a fast matmul on Blackwell: predicted, in that order."""

from __future__ import annotations

import itertools
import sys

import pytest
import torch
from sites import ROOT

sys.path.insert(0, str(ROOT))  # `benchmarks` is not installed

import triton_ext
from benchmarks import ladder_sm100
from triton_ext.timeline.trace import GLOBAL, TMEM, WAIT

SIZE = 4096
"""M, N and K, as published."""


@pytest.mark.parametrize("step", ladder_sm100.steps(), ids=lambda step: step.name)
def test_each_step_is_a_matmul(step):
    a, b = (torch.randint(-4, 5, (512, 512)).to(torch.bfloat16) for _ in "ab")
    c = torch.zeros(512, 512, dtype=torch.bfloat16)
    with triton_ext.emulate("sm_100"):
        step.launch(a, b.T, c)
    assert torch.equal(c, (a.double() @ b.double().T).to(torch.bfloat16))


@pytest.fixture(scope="module")
def rates():
    return [
        2 * SIZE**3 / ladder_sm100.timeline(step.launch, SIZE, SIZE, SIZE).seconds
        for step in ladder_sm100.steps()
    ]


def test_each_step_is_faster_than_the_one_before(rates):
    assert all(before < after for before, after in itertools.pairwise(rates)), rates


def test_each_step_gains_what_was_published_within_a_factor_of_two(rates):
    published = [step.published for step in ladder_sm100.steps()]
    for (slow, fast), (before, after) in zip(
        itertools.pairwise(rates), itertools.pairwise(published), strict=True
    ):
        assert 0.5 < (fast / slow - 1) / (after / before - 1) < 2, rates


def test_main_loops_are_as_much_faster_with_more_stages_as_published():
    found = {row["published"]: row["nanoseconds"] for row in ladder_sm100.loops()}
    shortest = min(found)
    for published, predicted in found.items():
        assert predicted / found[shortest] == pytest.approx(published / shortest, rel=0.05)


def test_what_comes_from_tensor_memory_is_awaited_before_it_is_stored():
    found = ladder_sm100.timeline(ladder_sm100.steps()[3].launch, 256, 256, 128)
    cluster = next(iter(found.trace.clusters.values()))
    warp = next(warp for warp in cluster.warps[0] if any(item[0] == TMEM for item in warp))
    loaded = next(item[3] for item in warp if item[0] == TMEM)
    stored = next(number for number, item in enumerate(warp) if item[0] == GLOBAL)
    assert (WAIT, loaded) in {item[:3:2] for item in warp[:stored]}
