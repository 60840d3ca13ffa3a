"""Seeded synchronization bugs: a sample. ``make oracle`` judges hundreds (`sync_faults.py`)."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton", minversion="3.8")

from ptx_faults import in_fork
from sync_faults import KERNELS, judged, missed, outcome_of, seeds

SILENT = {
    "bar.sync dropped", "bar.warp.sync dropped", "proxy fence dropped", "tcgen05.wait::ld dropped",
}  # fmt: skip
"""Of the sample, what changes nothing: see `sync_faults.REDUNDANT`."""


def test_seeds_are_found_under_every_schedule(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    [job] = [each for each in KERNELS if each["name"] == "warp_specialized-sm100"]
    faults = in_fork(lambda: judged(job, 1, 0))
    assert not [each for each in faults if missed(each)]
    found = {each["kind"] for each in faults if outcome_of(each["told"]) == "found"}
    assert len(found) >= 7
    assert found >= {"mbarrier wait dropped", "wrong phase", "byte count", "arrival dropped"}
    assert {each["kind"] for each in faults} - found <= SILENT


def test_a_seed_is_one_change_of_the_text():
    ptx = """
.version 8.7
.target sm_90a
.address_size 64
.visible .entry k()
{
  .reg .b32 %r<4>;
  .reg .pred %p<2>;
  mov.u32 %r1, 1024;
  @%p1 mbarrier.init.shared::cta.b64 [%r1], 1;
  mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], %r2;
  ld.shared.b32 %r3, [%r1];
  mbarrier.arrive.shared::cta.b64 _, [%r1];
  cp.async.bulk.wait_group.read 0;
  ret;
}
"""
    changed = {each.kind: each.of(ptx) for each in seeds(ptx)}
    assert set(changed) == {
        "arrival count", "mbarrier wait dropped", "wrong phase", "arrival dropped",
        "stage freed early", "constant phase", "cp.async.bulk.wait_group dropped",
        "wait_group one too many",
    }  # fmt: skip
    assert "@%p1 mbarrier.init.shared::cta.b64 [%r1], 2;" in changed["arrival count"]
    assert "wait_group.read 1;" in changed["wait_group one too many"]
    early = changed["stage freed early"]
    assert early.index("mbarrier.arrive") < early.index("ld.shared")
    assert "xor.b32 %flipped11, %r2, 1;" in changed["wrong phase"]
