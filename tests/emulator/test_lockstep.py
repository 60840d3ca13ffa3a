"""Blocks that run in lock-step do what they do one by one: memory, steps, and faults."""

from __future__ import annotations

import numpy as np
import pytest

from triton_ext.emulator import run_ptx
from triton_ext.emulator.errors import (
    EmulationError,
    LimitReached,
    MemoryFault,
    SynchronizationFault,
    UninitializedRead,
)
from triton_ext.emulator.schedule import batches, parallel

_MODULE = """\
.version 8.0
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 smem[];
.visible .entry kernel(.param .u64 out, .param .u64 in)
{{
  .local .align 16 .b8 stack[64];
  .reg .pred %p<8>;
  .reg .b32 %r<32>, %thread, %block, %at, %base;
  .reg .f32 %f<8>;
  .reg .b64 %rd<8>, %out, %in, %mine;
  ld.param.u64 %out, [out];
  ld.param.u64 %in, [in];
  mov.u32 %thread, %tid.x;
  mov.u32 %block, %ctaid.x;
  mov.u32 %r0, %ntid.x;
  mad.lo.u32 %at, %block, %r0, %thread;
  mul.wide.u32 %mine, %at, 16;
  add.u64 %mine, %mine, %out;
  mul.wide.u32 %rd0, %at, 16;
  add.u64 %in, %in, %rd0;
  mov.u32 %base, smem;
  shl.b32 %r1, %thread, 4;
  add.u32 %base, %base, %r1;
  setp.eq.u32 %p0, %block, 5;
{body}
  ret;
}}
"""
_NEIGHBOUR = """\
  st.shared.b32 [%base], %at;
  bar.sync 0;
  xor.b32 %r2, %r1, 16;
  mov.u32 %r3, smem;
  add.u32 %r3, %r3, %r2;
  ld.shared.b32 %r4, [%r3];
  shfl.sync.bfly.b32 %r5, %r4, 2, 31, -1;
  st.global.v2.b32 [%mine], {%r4, %r5};"""
_LOOPS = """\
  mov.u32 %r2, %block;
  mov.u32 %r3, 0;
OUTER:
  bar.sync 0;
  and.b32 %r4, %thread, 3;
INNER:
  add.u32 %r3, %r3, %r2;
  st.local.b32 [stack], %r3;
  setp.gt.u32 %p1, %r4, 0;
  sub.u32 %r4, %r4, 1;
  @%p1 bra INNER;
  ld.local.b32 %r3, [stack];
  setp.gt.u32 %p2, %r2, 0;
  sub.u32 %r2, %r2, 1;
  @%p2 bra OUTER;
  mov.u32 %r5, %warpid;
  mov.u32 %r6, %nwarpid;
  mov.u32 %r7, %smid;
  st.global.v4.b32 [%mine], {%r3, %r5, %r6, %r7};"""
_COPIES = """\
  cp.async.cg.shared.global [%base], [%in], 16;
  cp.async.commit_group;
  cp.async.wait_group 0;
  bar.sync 0;
  and.b32 %r2, %thread, 31;
  sub.u32 %r3, %thread, %r2;
  and.b32 %r2, %thread, 15;
  add.u32 %r2, %r2, %r3;
  shl.b32 %r2, %r2, 4;
  mov.u32 %r3, smem;
  add.u32 %r3, %r3, %r2;
  ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r4, %r5}, [%r3];
  ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r6}, [%r3];
  mov.f32 %f0, 0f00000000;
  mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r4, %r5}, {%r6},
    {%f0, %f0, %f0, %f0};
  st.global.v4.f32 [%mine], {%f1, %f2, %f3, %f4};"""
_UNWRITTEN = """\
  @!%p0 st.shared.b32 [%base], %at;
  ld.shared.b32 %r2, [%base];
  selp.b32 %r2, 7, %r2, %p0;
  st.global.b32 [%mine], %r2;"""
PROGRAMS = {
    "neighbour": _NEIGHBOUR, "loops": _LOOPS, "copies": _COPIES, "unwritten": _UNWRITTEN,
}  # fmt: skip
BLOCKS = 13


def _inputs(threads):
    random = np.random.default_rng(48)
    numbers = random.integers(-4, 5, (BLOCKS * threads, 8)).astype(np.float16)
    return np.zeros((BLOCKS * threads, 4), np.uint32), numbers


@pytest.fixture
def run(monkeypatch):
    """Runs a body in forks: with so many lanes in lock-step; 0: block by block.

    It returns how many blocks ran in lock-step at once, and the machine.
    """
    monkeypatch.setattr(parallel, "WORTH_FORKING", -1)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    chosen = []
    monkeypatch.setattr(
        parallel, "in_lockstep",
        lambda *given: chosen.append(batches.in_lockstep(*given)) or chosen[-1],
    )  # fmt: skip

    def run(body, out, numbers, *, lanes=2048, **options):
        monkeypatch.setattr(batches, "LANES", lanes)
        threads = len(out) // BLOCKS
        text = _MODULE.format(body=body)
        machine = run_ptx(
            text, grid=BLOCKS, block=threads, args=[out, numbers], dynamic_smem_bytes=16 * threads,
            **options,
        )  # fmt: skip
        return chosen[-1], machine

    return run


@pytest.mark.parametrize("schedule", ["eager", "lazy"])
@pytest.mark.parametrize("threads", [32, 96])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_memory_and_steps(name, threads, schedule, run):
    together, numbers = _inputs(threads)
    apart = together.copy()
    blocks, machine = run(PROGRAMS[name], together, numbers, schedule=schedule)
    assert blocks == 6  # two cores have 12 blocks after the first
    blocks, alone = run(PROGRAMS[name], apart, numbers, schedule=schedule, lanes=0)
    assert blocks == 1
    assert (together == apart).all()
    assert together.any()
    assert machine.steps == alone.steps


def test_the_values_of_each_block(run):
    out, numbers = _inputs(64)
    run(_NEIGHBOUR, out, numbers)
    number = np.arange(BLOCKS * 64)
    assert (out[:, 0] == number ^ 1).all()
    assert (out[:, 1] == number ^ 3).all()
    run(_COPIES, out, numbers)
    rows = numbers.astype(np.float32).reshape(BLOCKS * 2, 32, 8)[:, :16]
    expected = rows @ rows[:, :8]  # (blocks and warps, 16, 8)
    found = out.view(np.float32).reshape(
        BLOCKS * 2, 8, 4, 2, 2
    )  # group, thread in it, half, column
    assert (found.transpose(0, 3, 1, 2, 4).reshape(-1, 16, 8) == expected).all()


@pytest.mark.parametrize(
    "body",
    [
        _NEIGHBOUR.replace("bar.sync 0", "bar.sync 0, 64"),
        _NEIGHBOUR.replace("st.global", "st.volatile.global"),
        _NEIGHBOUR + "\n  red.shared.add.u32 [%base], 1;",
        _NEIGHBOUR + "\n  mbarrier.init.shared.b64 [%base], 1;",
    ],
)
def test_what_does_not_run_in_lockstep(body, run):
    out, numbers = _inputs(64)
    try:
        blocks, _ = run(body, out, numbers)
    except EmulationError:  # two threads initialise no mbarrier twice
        blocks = 1
    assert blocks == 1


def test_the_random_schedule_keeps_its_meaning(run):
    out, numbers = _inputs(32)
    assert run(_NEIGHBOUR, out, numbers, schedule="random", seed=3)[0] == 1


FAULTS = {
    "no barrier": (
        _NEIGHBOUR.replace("bar.sync", "@!%p0 bar.sync").replace("%r1, 16", "%r1, 512"),
        SynchronizationFault,
    ),
    "no wait": (
        _COPIES.replace("cp.async.wait_group 0", "@!%p0 cp.async.wait_group 0"),
        SynchronizationFault,
    ),
    "out of bounds": ("  @%p0 ld.global.b32 %r2, [%mine+65536];", MemoryFault),
    "out of its shared memory": ("  @%p0 ld.shared.b32 %r2, [%base+2048];", MemoryFault),
    "unwritten": (_UNWRITTEN.replace("%r2, 7, %r2", "%r2, %r2, 7"), UninitializedRead),
    "trap": ("  @%p0 trap;", EmulationError),
    "two barriers": (
        "  setp.lt.u32 %p1, %thread, 32;\n  and.pred %p1, %p1, %p0;\n"
        "  selp.b32 %r2, 1, 0, %p1;\n  bar.sync %r2;",
        EmulationError,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_one_block(name, run):
    """It is told of as without lock-step."""
    body, kind = FAULTS[name]
    out, numbers = _inputs(64)
    told = []
    for lanes in (2048, 0):
        with pytest.raises(kind) as caught:
            run(body, out, numbers, lanes=lanes)
        told.append((str(caught.value), caught.value.where))
    assert told[0] == told[1]
    assert "block (5, 0, 0)" in "".join(told[0])


def test_blocks_that_lockstep_cannot_run(run):
    """They wait at different barriers: all begins again, and each block adds once."""
    out, numbers = _inputs(64)
    body = """\
  ld.global.b32 %r2, [%mine];
  add.u32 %r2, %r2, 1;
  st.global.b32 [%mine], %r2;
  selp.b32 %r3, 1, 0, %p0;
  bar.sync %r3;"""
    blocks, machine = run(body, out, numbers)
    assert blocks == 6
    assert (out[:, 0] == 1).all()
    assert machine.steps == BLOCKS * len(machine.program.steps)


@pytest.mark.parametrize(
    "body",
    [
        "  st.global.b32 [%out], %block;",
        "  @%p0 st.global.b32 [%out], %at;\n  @!%p0 ld.global.b32 %r2, [%out];",
        "  @!%p0 ld.global.b32 %r2, [%out];\n  @%p0 st.global.b32 [%out], %at;",
        "  ld.global.b32 %r2, [%out];\n  @%p0 st.global.b32 [%out], %at;",
        "  setp.gt.u32 %p1, %block, 2;\n  @%p1 bra LATER;\n  st.global.b32 [%out], %block;\n"
        "LATER:\n  @%p0 st.global.b32 [%out], %block;",
    ],
)
@pytest.mark.parametrize("threads", [32, 64])
def test_races_of_blocks(body, threads, run):
    out, numbers = _inputs(threads)
    body = "  setp.eq.u32 %p3, %thread, 0;\n" + body
    with pytest.raises(SynchronizationFault, match="nothing orders the two") as caught:
        run(body, out, numbers)
    assert caught.value.message.count("block (") == 2


def test_blocks_that_store_the_same_value(run):
    out, numbers = _inputs(32)
    assert run("  st.global.b32 [%out], 7;", out, numbers)[0] == 6
    assert out[0, 0] == 7


def test_a_limit_is_reached_once(run):
    """What runs without end is not run again block by block."""
    out, numbers = _inputs(32)
    with pytest.raises(LimitReached, match=r"block \(\d+, 0, 0\), warp 0") as caught:
        run(
            "AGAIN:\n  add.u32 %r2, %r2, 1;\n  @%p0 st.global.b32 [%mine], %r2;\n"
            "  @%p0 bra AGAIN;", out, numbers, max_steps=5000,
        )  # fmt: skip
    assert "block (5, 0, 0)" in caught.value.message
