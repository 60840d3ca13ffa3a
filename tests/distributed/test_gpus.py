"""The kernels that communicate, on the GPUs of this machine, a process each; of one GPU, two
processes take turns.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from sites import ROOT

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.sm90
WORKER = ROOT / "tests/support/gpus_worker.py"


@pytest.fixture(scope="module")
def found():
    """What the worker found."""
    done = subprocess.run([sys.executable, WORKER], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    errors = [each["error"] for each in found.values() if "error" in each]
    assert not errors, errors[0]
    return found


def test_random_products(found):
    for row, error in found["random_products"]:
        assert error < 0.02, row


def test_graphs_and_streams(found):
    assert found["graphs_and_streams"] == [True] * 150


def test_gradients(found):
    assert max(found["gradients"]) < 0.02


def test_distributed_tensors(found):
    rows = found["distributed_tensors"]
    assert [place for _, _, place, _ in rows] == ["S(0)", "S(1)", "P(sum)"]
    for *placements, error in rows:
        assert error < 0.01, placements


def test_a_rank_that_leaves_is_an_error_and_no_hang():
    done = subprocess.run(
        [sys.executable, WORKER, "TIMEOUT"], capture_output=True, text=True, timeout=200
    )
    assert "PeerError: rank 0 of 2 waited 30 s for rank 1" in done.stderr
