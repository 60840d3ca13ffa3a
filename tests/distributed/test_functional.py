"""`triton_ext.distributed` on 3 processes without GPUs: values, gradients, compilation, and what is
refused. The parts come one after the other there; the kernels are tested on emulated GPUs.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from sites import ROOT

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.distributed.is_available():
    pytest.skip("torch has no torch.distributed", allow_module_level=True)


@pytest.fixture(scope="module")
def ranks():
    """What the worker found."""
    command = [sys.executable, ROOT / "tests/support/ranks_worker.py", "divided"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stderr
    _, found = json.loads(done.stdout)
    assert "error" not in found["divided_products"], found["divided_products"]["error"]
    return found["divided_products"]


def test_values_and_gradients(ranks):
    assert len(ranks["errors"]) == 3 * (3 + 1) + 2
    for name, found in ranks["errors"].items():
        assert max(found) < 0.02, name


def test_bad_input_is_refused_before_anything_is_sent(ranks):
    names = ["b.shape", "a.shape", "bias", "scale_a", "activation", "out_dtype"]
    assert ranks["refused"] == names


def test_without_a_group():
    from triton_ext import LayoutError, distributed

    with pytest.raises(LayoutError, match="init_process_group"):
        distributed.all_gather_matmul(torch.ones(8, 8).half(), torch.ones(8, 8).half())


def test_flops_are_those_of_torchs_product_of_all_rows():
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils.flop_counter import FlopCounterMode

    from triton_ext import distributed

    def counted(function, *operands):
        fake = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
        with fake, FlopCounterMode(display=False) as counter:
            function(*operands)
        return counter.get_total_flops()

    a, b = torch.ones(8, 32).half(), torch.ones(32, 16).half()
    torch.distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    try:
        assert counted(distributed.all_gather_matmul, a, b) == 4 * counted(torch.mm, a, b) > 0
        assert counted(distributed.matmul_reduce_scatter, a, b) == counted(torch.mm, a, b)
    finally:
        torch.distributed.destroy_process_group()
