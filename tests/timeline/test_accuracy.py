"""The figures of `triton_ext.timeline.accuracy`, from the measurements in the checkout."""

from __future__ import annotations

import json
from statistics import fmean

import pytest
from sites import ROOT

from triton_ext.timeline.accuracy import MEASURED, in_words, known_errors
from triton_ext.timeline.gpus import GPUS

FAMILIES = {
    ("matmuls", "H100"): {"seeded matmul"},
    ("matmuls", "H200"): {"latest matmul", "later matmul", "present matmul", "tutorial matmul"},
    ("attention", "H200"): {"attention"},
    ("softmax", "H200"): {"softmax"},
    ("other kernels without products", "H200"): {"dropout", "launch", "layer norm", "transpose"},
}
"""What is meant by the rows of ``benchmarks/results``."""


@pytest.mark.parametrize("known", MEASURED, ids=lambda each: f"{each.gpu}-{each.kernels}")
def test_what_was_measured(known):
    path = ROOT / f"benchmarks/results/timeline_{known.gpu.lower()}.json"
    errors = [
        abs(row["predicted"] / row["seconds"] - 1)
        for row in json.loads(path.read_text())["rows"]
        if row["split"] == "test" and row["family"] in FAMILIES[known.kernels, known.gpu]
    ]
    assert len(errors) == known.number
    assert round(fmean(errors), 3) == known.mean


def test_every_family_is_known():
    """A family of kernels that is measured later must get its figure, or be left out here."""
    for gpu in ("H100", "H200"):
        rows = json.loads((ROOT / f"benchmarks/results/timeline_{gpu.lower()}.json").read_text())
        found = {row["family"] for row in rows["rows"] if row["split"] == "test"}
        known = set().union(*(families for (_, on), families in FAMILIES.items() if on == gpu))
        assert found - known <= {"ladder", "present matmul"}  # the ladder's steps are no matmuls


@pytest.mark.parametrize(
    ("gpu", "products", "words"),
    [
        (GPUS["H100"], True, "matmuls 5.9 %, attention 25.6 % (on an H200)"),
        (GPUS["H200"], True, "matmuls 6.3 %, attention 25.6 %"),
        (GPUS["H200"].but(warm=True), False, "softmax 11.5 %"),
        (GPUS["B200"], True, "no B200 was measured"),
        (GPUS["H100"].but(memory_bytes=8e12), True, "changed parameters"),
    ],
)
def test_in_words(gpu, products, words):
    assert words in in_words(gpu, products)
    assert bool(known_errors(gpu, products)) == ("%" in words)
