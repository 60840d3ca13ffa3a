"""The tile of a reduce-scatter, beside times of two H100s (results/scatter_h100.json)."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sites import ROOT

from triton_ext.distributed import launches
from triton_ext.kernels.choice.choose import predicted_seconds
from triton_ext.kernels.config import MatmulConfig

RANKS, SMS = 2, 132


def measured():
    """Logarithms of each configuration's predicted seconds on one GPU, and of those measured beside
    the link; and its loads. A triple for each problem whose tiles copy engines carry.
    """
    document = json.loads((ROOT / "benchmarks/results/scatter_h100.json").read_text())
    for row in document["rows"]:
        configs = [MatmulConfig(**each["config"]) for each in row["configs"]]
        assert {config.collective for config in configs} == {"scatter"}
        sizes = row["m"] // RANKS, row["n"], row["k"], SMS, RANKS, "h100"
        predicted = np.array([predicted_seconds(config, *sizes) for config in configs])
        if predicted.min() > launches.STAGED:
            seconds = np.log([each["seconds"] for each in row["configs"]])
            yield np.log(predicted), seconds, np.array([launches.loads(each) for each in configs])


def coefficient(timed):
    """Least squares of what takes longer than predicted, over the loads; a constant a problem."""
    loads = np.concatenate([loads - loads.mean() for _, _, loads in timed])
    longer = [seconds - predicted for predicted, seconds, _ in timed]
    centred = np.concatenate([each - each.mean() for each in longer])
    return np.linalg.lstsq(loads[:, None], centred, rcond=None)[0][0]


def cost(problem, weight):
    """How much longer than the best one the configuration takes that is chosen."""
    predicted, seconds, loads = problem
    return np.exp(seconds[np.argmin(predicted + weight * loads)] - seconds.min())


def test_a_scatters_tile_is_chosen_by_what_was_measured():
    """Each problem's, by a coefficient fitted to the others: within 3 % of the best."""
    timed = list(measured())
    assert len(timed) > 10
    assert coefficient(timed) == pytest.approx(launches.LOADS, abs=6e-4)
    others = [coefficient(timed[:i] + timed[i + 1 :]) for i in range(len(timed))]
    found = np.mean([cost(each, weight) for each, weight in zip(timed, others, strict=True)])
    as_on_one_gpu = np.mean([cost(each, 0) for each in timed])
    assert found < 1.03 < as_on_one_gpu - 0.02
