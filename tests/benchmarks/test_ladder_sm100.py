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

SIZE, K = 4096, 2048
"""M and N as published, and a part of K."""


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
        2 * SIZE * SIZE * K / ladder_sm100.timeline(step.launch, SIZE, SIZE, K).seconds
        for step in ladder_sm100.steps()
    ]


def test_each_step_is_faster_than_the_one_before(rates):
    assert all(before < after for before, after in itertools.pairwise(rates)), rates


def test_the_swizzle_gains_what_was_published(rates):
    assert 0.5 < (rates[1] / rates[0] - 1) / (721 / 256 - 1) < 2


def test_what_comes_from_tensor_memory_is_awaited_before_it_is_stored():
    found = ladder_sm100.timeline(ladder_sm100.steps()[3].launch, 256, 256, 128)
    cluster = next(iter(found.trace.clusters.values()))
    warp = next(warp for warp in cluster.warps[0] if any(item[0] == TMEM for item in warp))
    loaded = next(item[3] for item in warp if item[0] == TMEM)
    stored = next(number for number, item in enumerate(warp) if item[0] == GLOBAL)
    assert (WAIT, loaded) in {item[:3:2] for item in warp[:stored]}
