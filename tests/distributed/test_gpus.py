"""The kernels that communicate, on two GPUs or more of this machine, a process each."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from sites import ROOT

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.sm90
WORKER = ROOT / "tests/support/gpus_worker.py"

if torch.cuda.device_count() < 2:
    pytest.skip("needs two GPUs", allow_module_level=True)


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
    assert found["graphs_and_streams"] == [True] * 50


def test_gradients(found):
    assert max(found["gradients"]) < 0.02


def test_a_rank_that_leaves_is_an_error_and_no_hang():
    done = subprocess.run(
        [sys.executable, WORKER, "TIMEOUT"], capture_output=True, text=True, timeout=200
    )
    assert "PeerError: rank 0 of 2 waited 30 s for rank 1" in done.stderr
