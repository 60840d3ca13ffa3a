"""Races in global memory: each kernel is written with the order that it needs, and without."""

from __future__ import annotations

import numpy as np
import pytest

from triton_ext.emulator import run_ptx
from triton_ext.emulator.errors import SynchronizationFault

_MODULE = """\
.version 8.7
.target sm_90a
.address_size 64
.file 1 "kernel.py"
.shared .align 128 .b8 smem[1024];
.visible .entry kernel(.param .u64 out, .param .u64 flag)
{{
  .reg .pred %p<8>, %first;
  .reg .b32 %r<16>, %thread, %block, %got;
  .reg .b64 %rd<8>, %out, %flag, %mine, %next;
  ld.param.u64 %out, [out];
  ld.param.u64 %flag, [flag];
  mov.u32 %thread, %tid.x;
  mov.u32 %block, %ctaid.x;
  setp.eq.u32 %first, %thread, 0;
  mul.wide.u32 %mine, %thread, 4;
  add.u64 %mine, %mine, %out;
  xor.b32 %r0, %thread, 32;
  mul.wide.u32 %next, %r0, 4;
  add.u64 %next, %next, %out;
  add.u32 %r1, %thread, 7;
  setp.eq.u32 %p1, %block, 0;
{body}
  ret;
}}
"""
_PRODUCE = "  @%p1 st.global.b32 [%mine], %r1;"
_CONSUME = "DONE:\n  @!%p1 ld.global.b32 %got, [%next];\n  @!%p1 st.global.b32 [%next+1024], %got;"


def _handover(release: str, acquire: str, sync: str = "  bar.sync 0;", fence: str = "") -> str:
    """Block 0 writes, and raises a flag; block 1 waits for it, and reads."""
    return "\n".join((
        _PRODUCE, sync, "  @!%p1 bra WAIT;", "  @!%first bra DONE;", release, "  bra DONE;",
        "WAIT:", f"  {acquire}", "  setp.eq.u32 %p2, %r3, 0;", "  @%p2 bra WAIT;", fence, sync,
        _CONSUME,
    ))  # fmt: skip


RELEASE = "  st.release.gpu.global.b32 [%flag], 1;"
ACQUIRE = "ld.acquire.gpu.global.b32 %r3, [%flag];"
RELAXED = "  red.relaxed.gpu.global.add.u32 [%flag], 1;"
POLL = "ld.relaxed.gpu.global.b32 %r3, [%flag];"
FENCE = "  fence.acq_rel.gpu;"
CAS = "atom.acquire.gpu.global.cas.b32 %r3, [%flag], 1, 1;"


def _update(take: str, give: str) -> str:
    """Each block adds its number to one sum, of which thread 0 takes care."""
    return f"""\
  @!%first bra DONE;
SPIN:
{take}
  ld.global.b32 %got, [%out];
  add.u32 %got, %got, %block;
  st.global.b32 [%out], %got;
{give}
DONE:"""


TAKE = """\
  atom.acquire.gpu.global.cas.b32 %r3, [%flag], 0, 1;
  setp.ne.u32 %p2, %r3, 0;
  @%p2 bra SPIN;"""
GIVE = "  st.release.gpu.global.b32 [%flag], 0;"
_WARPS = "  st.global.b32 [%mine], %r1;\n{sync}\n  ld.global.b32 %got, [%next];"
_REUSE = "  ld.global.b32 %got, [%next];\n{sync}\n  st.global.b32 [%mine], %r1;"
_BULK = """\
  shl.b32 %r2, %thread, 2;
  mov.u32 %r3, smem;
  add.u32 %r2, %r2, %r3;
  st.shared.b32 [%r2], %r1;
  fence.proxy.async.shared::cta;
  bar.sync 0;
  @%first cp.async.bulk.global.shared::cta.bulk_group [%out], [%r3], 256;
  @%first cp.async.bulk.commit_group;
  @%first cp.async.bulk.wait_group{read} 0;
  bar.sync 0;
  ld.global.b32 %got, [%next];
  bar.sync 0;"""

_ADD_ONE = """\
  {line}
  ld.global.b32 %got, [%out];
  add.u32 %got, %got, 1;
  @%first st.global.b32 [%out], %got;
"""

ORDERED = {
    "barrier": _WARPS.format(sync="  bar.sync 0;"),
    "barrier, then overwritten": _REUSE.format(sync="  bar.sync 0;"),
    "release, acquire": _handover(RELEASE, ACQUIRE),
    "fences around relaxed accesses": _handover(f"{FENCE}\n{RELAXED}", POLL, fence=FENCE),
    "volatile": _handover(
        "  membar.gl;\n  st.volatile.global.b32 [%flag], 1;",
        "ld.volatile.global.b32 %r3, [%flag];", fence="  membar.gl;",
    ),
    "semaphore": _handover("  red.release.gpu.global.add.u32 [%flag], 1;", CAS),
    "lock": _update(TAKE, GIVE),
    "atomic sum": "  red.relaxed.gpu.global.add.u32 [%mine], %r1;",
    "all write one value": "  st.global.b32 [%out], 5;",
    "all store what is there": "  ld.global.b32 %got, [%mine];\n  st.global.b32 [%mine], %got;",
    "a loop, unrolled": 3 * _ADD_ONE.format(line=".loc 1 5 3"),
    "copy and full wait": _BULK.format(read=""),
}  # fmt: skip
RACES = {
    "no barrier": (_WARPS.format(sync=""), "is read by block (0, 0, 0), warp"),
    "no barrier before it is overwritten": (_REUSE.format(sync=""), "was read by block (0, 0, 0)"),
    "lost update": (_update("", ""), "only a release by the one and an acquire by the other"),
    "two blocks store": ("  st.global.b32 [%mine], %block;", "was written by block"),
    "blocks read and write": (
        "  @%p1 ld.global.b32 %got, [%mine];\n" + _PRODUCE.replace("@%p1", "@!%p1"),
        "only a release",
    ),
    "two lines": (
        _ADD_ONE.format(line=".loc 1 5 3") + _ADD_ONE.format(line=".loc 1 6 3"),
        "is read by block (0, 0, 0), warp 1",
    ),
    "what one block has changed, the other stores again": (
        "  setp.eq.and.u32 %p2, %thread, 0, %p1;\n  @%p2 st.global.b32 [%out], 5;\n  bar.sync 0;\n"
        "  ld.global.b32 %got, [%out];\n  st.global.b32 [%out], %got;", "only a release",
    ),
    "relaxed flag": (_handover(RELAXED, POLL), "only a release"),
    "relaxed release": (_handover(RELAXED, ACQUIRE), "only a release"),
    "relaxed acquire": (_handover(RELEASE, POLL), "only a release"),
    "only the writer fences": (_handover(f"{FENCE}\n{RELAXED}", POLL), "only a release"),
    "narrow release": (_handover(RELEASE.replace("gpu", "cta"), ACQUIRE), "scope"),
    "narrow acquire": (_handover(RELEASE, ACQUIRE.replace("gpu", "cta")), "scope"),
    "narrow fence": (
        _handover(f"{FENCE.replace('gpu', 'cta')}\n{RELAXED}", POLL, fence=FENCE), "only a release",
    ),
    "no barrier before the release": (_handover(RELEASE, ACQUIRE, sync=""), "only a release"),
    "narrow atomics": (
        "  red.relaxed.cta.global.add.u32 [%mine], %r1;", "scope of one of them is too narrow",
    ),
    "lock that is given back too early": (
        _update(TAKE + "\n" + GIVE, ""), "only a release",
    ),
    "another flag": (
        _handover(RELEASE.replace("flag", "flag+4") + "\n" + RELAXED, ACQUIRE), "only a release",
    ),
    "atomic and ordinary": (
        "  @%p1 red.relaxed.gpu.global.add.u32 [%out], 1;\n  @!%p1 st.global.b32 [%out], %r1;",
        "the one is atomic, the other is not",
    ),
    "wait for the source alone": (_BULK.format(read=".read"), "the tma unit, for warp 0"),
}  # fmt: skip


def _run(body: str, schedule: str, grid: int) -> np.ndarray:
    out, flag = np.zeros(1024, np.uint32), np.zeros(4, np.uint32)
    run_ptx(
        _MODULE.format(body=body), grid=grid, block=64, args=[out, flag], schedule=schedule,
        max_steps=100_000,
    )  # fmt: skip
    return out


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
@pytest.mark.parametrize("name", ORDERED)
def test_what_is_ordered_is_no_race(name, schedule):
    alone = "barrier", "barrier, then overwritten", "copy and full wait", "a loop, unrolled"
    blocks = 1 if name in alone else 2
    out = _run(ORDERED[name], schedule, blocks)
    if "%got" in ORDERED[name] and "WAIT:" in ORDERED[name]:
        assert (out[256:320] == np.arange(64) + 7).all()


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
@pytest.mark.parametrize("name", RACES)
def test_a_race_is_named_under_every_schedule(name, schedule):
    body, says = RACES[name]
    blocks = 1 if "(0, 0, 0)" in says or "tma" in says else 2
    with pytest.raises(SynchronizationFault) as caught:
        _run(body, schedule, blocks)
    assert says in caught.value.message, caught.value.message


@pytest.mark.parametrize("writer", [0, 1, 6, 7])
@pytest.mark.parametrize("delay", [0, 4000])
def test_races_of_blocks_in_several_processes(monkeypatch, writer, delay):
    """Whichever fork has the block that writes, and whichever of them comes first."""
    monkeypatch.setattr("triton_ext.emulator.schedule.parallel.WORTH_FORKING", -1)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    body = f"""\
  setp.eq.u32 %p1, %block, {writer};
  mov.u32 %r5, {delay};
LATER:
  sub.u32 %r5, %r5, 1;
  setp.gt.s32 %p2, %r5, 0;
  and.pred %p2, %p1, %p2;
  @%p2 bra LATER;
  @%p1 st.global.b32 [%out+2048], %r1;
  @!%p1 ld.global.b32 %got, [%out+2048];"""
    with pytest.raises(
        SynchronizationFault, match=r"block \(\d, 0, 0\), warp 0, and was"
    ) as caught:
        _run(body, "eager", 8)
    assert f"block ({writer}, 0, 0)" in caught.value.message
    assert str(caught.value.instruction).startswith("@")


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
@pytest.mark.parametrize("width", ["u32", "u8"])
def test_warps_that_store_to_one_place_by_one_instruction(schedule, width):
    """The warps are at it together: neither store comes before the other. The same value is fine,
    and so are several lanes of one warp, of which one is the last."""
    store = f"  st.global.{width} [%out], "
    with pytest.raises(SynchronizationFault, match="and was written by block"):
        _run(store + "%thread;", schedule, 1)
    assert _run(store + "7;", schedule, 1)[0] == 7
    _run("  setp.lt.u32 %p2, %thread, 32;\n  @%p2" + store + "%thread;", schedule, 1)


def test_blocks_in_several_processes_that_do_not_meet(monkeypatch):
    monkeypatch.setattr("triton_ext.emulator.schedule.parallel.WORTH_FORKING", -1)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    out = _run(
        "  mul.wide.u32 %rd1, %block, 256;\n  add.u64 %mine, %mine, %rd1;\n"
        "  ld.global.b32 %got, [%mine];\n  add.u32 %got, %got, %r1;\n"
        "  st.global.b32 [%mine], %got;",
        "eager", 8,
    )  # fmt: skip
    assert (out[:512] == np.tile(np.arange(64) + 7, 8)).all()


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
@pytest.mark.parametrize(("size", "warps"), [(1, 4), (16, 4), (32, 8), (64, 4), (256, 4), (40, 2)])
def test_warps_that_load_the_same_elements_to_store_them_once(size, warps, schedule):
    """Where a tensor has fewer elements than a block has threads, several warps load each."""
    pytest.importorskip("triton")
    torch = pytest.importorskip("torch")
    from kernel_cases import add_one_in_place

    import triton_ext

    x = torch.arange(2.0 * size)
    with triton_ext.emulate("sm_90", schedule=schedule, check_races=True):
        for _ in range(2):
            add_one_in_place[(2,)](x, size, 64 if size == 40 else size, num_warps=warps)
    assert torch.equal(x, torch.arange(2.0 * size) + 2)
