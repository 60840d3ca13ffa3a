"""Distributed tensors: what DTensor makes of the operators' rules, on 2 and 4 ranks.

Each number comes from a process in which the ranks are forked (tests/support/ranks_worker.py).
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
    """What each function of the worker found, by the number of ranks."""
    command = [sys.executable, ROOT / "tests/support/ranks_worker.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    errors = [each["error"] for _, found in rows for each in found.values() if "error" in each]
    assert done.returncode == 0, done.stderr
    assert not errors, errors[0]
    return dict(rows)


EXPECTED = {
    ("S(0)", "R"): ("S(0)", "S(0)"),
    ("R", "S(1)"): ("S(1)", "S(1)"),
    ("R", "R"): ("R", "R"),
    ("S(1)", "S(0)"): ("P(sum)", "R"),
    ("S(1)", "R"): ("P(sum)", "R"),
    ("R", "S(0)"): ("P(sum)", "R"),
}
"""Placements of a and b -> of the product, and of the product with an activation; a replicated
operand is cut without a word. What is missing has to be communicated.
"""


def test_placements_of_a_product(ranks):
    rows = ranks["2"]["placements_of_a_product"]
    assert len(rows) == 2 * 9
    for activation, a, b, found, communications, error in rows:
        assert error < 0.004
        if (a, b) in EXPECTED:
            placement = EXPECTED[a, b][activation is not None]
            partial = EXPECTED[a, b][0] == "P(sum)"
            assert found == placement
            assert (communications > 0) == (partial and activation is not None), (a, b)
        else:
            assert communications == 1


def test_placements_of_groups(ranks):
    """Columns and K are cut, rows and the columns of gate and up are not."""
    rows = {tuple(row[:3]): row[3:] for row in ranks["2"]["groups"]}
    assert all(error < 0.004 for *_, error in rows.values())
    assert rows[None, "R", "S(2)"][:2] == ["S(1)", 0]
    assert rows[None, "S(1)", "S(1)"][:2] == ["P(sum)", 0]
    communicated = {key for key, (_, count, _) in rows.items() if count}
    assert communicated == {
        (None, "S(0)", "R"), ("swiglu", "R", "S(2)"), ("swiglu", "S(1)", "S(1)"),
        ("swiglu", "S(0)", "R"),
    }  # fmt: skip


def test_placements_of_groups_in_any_order(ranks):
    columns, along_k = ranks["2"]["groups_in_any_order"]
    assert columns[:2] == ["S(1)", 0]
    assert along_k[:2] == ["P(sum)", 0]
    assert max(columns[2], along_k[2]) < 0.004


def test_scales_of_blocks(ranks):
    whole, others = ranks["2"]["scales_of_blocks"]
    assert whole == ["S(0)", 0, True]
    assert others == "Invalid scalar type", "pieces of two ranks are never multiplied apart"


@pytest.mark.parametrize("number", ["2", "4"])
def test_random_products(ranks, number):
    error, placements = ranks[number]["random_products"]
    assert error < 0.004
    assert {each.split()[1] for each in placements} >= {"Shard", "Partial"}


@pytest.mark.parametrize("number", ["2", "4"])
def test_parallel_models(ranks, number):
    models = ranks[number]["models"]
    assert set(models) == (
        {"tensor", "sequence", "compiled"} if number == "2" else {"hsdp", "fsdp and tensor"}
    )
    for differences in models.values():
        assert max(differences.values()) < 0.02


def test_products_of_plain_and_distributed_tensors_are_refused():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    import triton_ext

    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        mesh, x = init_device_mesh("cpu", (2,)), torch.ones(16, 16).half()
        for place in (Shard(0), Replicate()):
            part = distribute_tensor(x, mesh, [place])
            with pytest.raises(RuntimeError, match=r"mixed torch.Tensor and DTensor"):
                triton_ext.matmul(part, x)
        with pytest.raises(triton_ext.LayoutError, match=r"b.shape"):
            triton_ext.matmul(part, part[:8])
    finally:
        torch.distributed.destroy_process_group()
