"""mbarriers, cp.async, proxy fences and clusters on the emulated GPU: hand-written kernels."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest
from silicon.copy_cases import INIT, SMEM, aligned, module

from triton_ext.emulator import UnsupportedInstruction, run_ptx
from triton_ext.emulator.clients.trace import Trace
from triton_ext.emulator.errors import (
    BarrierFault,
    Deadlock,
    MemoryFault,
    SynchronizationFault,
    UninitializedRead,
)
from triton_ext.emulator.schedule import liveness

SCHEDULES = ("eager", "lazy", "random")
PARAMETERS = ".param .u64 out"


@functools.cache
def check_legal(text: str, target: str) -> None:
    """NVIDIA's assembler must take the kernel, where it is at hand."""
    if shutil.which("ptxas"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.ptx"
            path.write_text(text)
            command = ["ptxas", f"-arch={target}", "-o", f"{folder}/kernel.cubin", path]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr + text


def run(body, *, block=128, out=None, target="sm_90a", parameters=PARAMETERS, args=(), legal=True,
        **options):  # fmt: skip
    """Run a kernel that writes words to %rd1; the words."""
    out = np.zeros(1024, np.uint32) if out is None else out
    text = module(parameters, f"{INIT} ld.param.u64 %rd1, [out];\n{body}", target)
    if legal:
        check_legal(text, target)
    options.setdefault("grid", 1)
    run_ptx(text, block=block, args=[out, *args], dynamic_smem_bytes=SMEM, **options)
    return out


STORE_EACH = """
 mul.wide.u32 %rd30, %r0, 4;
 add.u64 %rd30, %rd30, %rd1;
 st.global.b32 [%rd30], %r20;
"""
"""%r20 of each thread."""


# --------------------------------------------------------------------- mbarriers


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_producers_and_consumers_over_two_stages(schedule):
    """Warp 0 fills a ring of two buffers; warps 1 to 3 add up what they find."""
    total = run(
        """
 @%p1 mbarrier.init.shared.b64 [%r1], 32;
 @%p1 mbarrier.init.shared.b64 [%r1+8], 32;
 @%p1 mbarrier.init.shared.b64 [%r1+16], 96;
 @%p1 mbarrier.init.shared.b64 [%r1+24], 96;
 bar.sync 0;
 setp.lt.u32 %p2, %r0, 32;
 mov.u32 %r10, 0;
 mov.u32 %r20, 0;
LOOP:
 and.b32 %r11, %r10, 1;
 shr.u32 %r12, %r10, 1;
 and.b32 %r12, %r12, 1;
 xor.b32 %r13, %r12, 1;
 shl.b32 %r14, %r11, 3;
 add.u32 %r15, %r1, %r14;
 shl.b32 %r16, %r11, 7;
 add.u32 %r16, %r16, %r2;
 and.b32 %r17, %r0, 31;
 shl.b32 %r17, %r17, 2;
 add.u32 %r16, %r16, %r17;
 @!%p2 bra CONSUME;
EMPTY:
 mbarrier.try_wait.parity.shared.b64 %p3, [%r15+16], %r13;
 @!%p3 bra EMPTY;
 mad.lo.u32 %r18, %r10, 1000, %r0;
 st.shared.b32 [%r16], %r18;
 mbarrier.arrive.shared.b64 _, [%r15];
 bra NEXT;
CONSUME:
 mbarrier.try_wait.parity.shared.b64 %p3, [%r15], %r12;
 @!%p3 bra CONSUME;
 ld.shared.b32 %r18, [%r16];
 add.u32 %r20, %r20, %r18;
 mbarrier.arrive.shared.b64 _, [%r15+16];
NEXT:
 add.u32 %r10, %r10, 1;
 setp.lt.u32 %p4, %r10, 6;
 @%p4 bra LOOP;
"""
        + STORE_EACH,
        schedule=schedule,
        seed=5,
    )
    lanes = np.arange(128) % 32
    expected = np.where(np.arange(128) < 32, 0, 15 * 1000 + 6 * lanes)
    np.testing.assert_array_equal(total[:128], expected)


def test_lanes_of_a_warp_may_name_different_barriers():
    """Lane i arrives at, and waits for, barrier i; each takes one arrival."""
    passed = run(
        """
 shl.b32 %r10, %r0, 3;
 add.u32 %r10, %r10, %r1;
 mbarrier.init.shared.b64 [%r10], 1;
 bar.sync 0;
 mbarrier.arrive.shared.b64 %rd5, [%r10];
 mbarrier.pending_count.b64 %r11, %rd5;
 mbarrier.test_wait.shared.b64 %p3, [%r10], %rd5;
 selp.u32 %r12, 2, 0, %p3;
 add.u32 %r20, %r11, %r12;
 mbarrier.try_wait.shared.b64 %p4, [%r10], %rd5;
 @%p4 add.u32 %r20, %r20, 4;
"""
        + STORE_EACH
    )
    assert (passed[:128] == 7).all()


def test_a_try_wait_splits_over_barriers_that_complete_one_after_the_other():
    """Lanes wait for two barriers; the first one's waiters complete the second one."""
    order = run(
        """
 @%p1 mbarrier.init.shared.b64 [%r1], 64;
 @%p1 mbarrier.init.shared.b64 [%r1+8], 32;
 bar.sync 0;
 setp.ge.u32 %p2, %r0, 64;
 @%p2 mbarrier.arrive.shared.b64 _, [%r1];
 and.b32 %r10, %r0, 1;
 shl.b32 %r10, %r10, 3;
 add.u32 %r10, %r10, %r1;
 @%p2 bra DONE;
WAIT:
 mbarrier.try_wait.parity.shared.b64 %p3, [%r10], 0;
 @!%p3 bra WAIT;
 setp.eq.u32 %p4, %r10, %r1;
 @%p4 mbarrier.arrive.shared.b64 _, [%r1+8];
DONE:
 mov.u32 %r20, 1;
"""
        + STORE_EACH
    )
    assert (order[:128] == 1).all()


def test_test_wait_does_not_block_and_try_wait_times_out():
    """Nobody ever arrives: both say no, and the kernel goes on."""
    values = run(
        """
 @%p1 mbarrier.init.shared.b64 [%r1], 1;
 bar.sync 0;
 mbarrier.test_wait.parity.shared.b64 %p3, [%r1], 0;
 selp.u32 %r20, 1, 0, %p3;
 mbarrier.try_wait.parity.shared.b64 %p3, [%r1], 0, 1000;
 @%p3 add.u32 %r20, %r20, 2;
 mbarrier.try_wait.parity.shared.b64 %p3, [%r1], 1;
 @%p3 add.u32 %r20, %r20, 4;
"""
        + STORE_EACH
    )
    assert (values[:128] == 4).all()


def test_generic_addresses_and_both_scopes():
    values = run(
        """
 cvt.u64.u32 %rd5, %r1;
 cvta.shared.u64 %rd5, %rd5;
 @%p1 mbarrier.init.b64 [%rd5], 128;
 bar.sync 0;
 mbarrier.arrive.release.cluster.b64 %rd6, [%rd5];
WAIT:
 mbarrier.try_wait.acquire.cluster.b64 %p3, [%rd5], %rd6;
 @!%p3 bra WAIT;
 mov.u32 %r20, 1;
"""
        + STORE_EACH
    )
    assert (values[:128] == 1).all()


RELAXED = """
 mov.b32 %r20, 0;
 @%p1 mbarrier.init.shared.b64 [%r1], 32;
 bar.sync 0;
 setp.lt.u32 %p2, %r0, 32;
 shl.b32 %r10, %r0, 2;
 add.u32 %r10, %r10, %r2;
 @!%p2 bra WAIT;
 st.shared.b32 [%r10], %r0;
 {release}
 mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [%r1];
 bra DONE;
WAIT:
 mbarrier.try_wait.parity.relaxed.cta.shared::cta.b64 %p3, [%r1], 0;
 @!%p3 bra WAIT;
 {acquire}
 and.b32 %r11, %r0, 31;
 shl.b32 %r11, %r11, 2;
 add.u32 %r11, %r11, %r2;
 ld.shared.b32 %r20, [%r11];
DONE:
"""


def test_fences_make_relaxed_arrivals_and_waits_order():
    fence = "fence.acq_rel.cta;"
    values = run(RELAXED.format(release=fence, acquire=fence) + STORE_EACH)
    np.testing.assert_array_equal(values[32:128], np.tile(np.arange(32), 3))


@pytest.mark.parametrize(("release", "acquire"), [("", ""), ("fence.acq_rel.cta;", ""),
                                                  ("", "fence.acq_rel.cta;")])  # fmt: skip
def test_relaxed_arrivals_and_waits_alone_order_nothing(release, acquire):
    with pytest.raises(SynchronizationFault, match="was written by warp 0, and nothing orders"):
        run(RELAXED.format(release=release, acquire=acquire) + STORE_EACH)


@pytest.mark.parametrize(
    ("body", "fault", "message"),
    [
        (" mbarrier.arrive.shared.b64 _, [%r1];", BarrierFault,
         r"no mbarrier is initialised at shared address 0x400 \(smem \+ 0\)"),
        (" @%p1 mbarrier.init.shared.b64 [%r1], 1;\n mbarrier.arrive.shared.b64 _, [%r1];",
         SynchronizationFault, "was initialised by warp 0, and nothing orders that before its use"),
        (" @%p1 mbarrier.init.shared.b64 [%r1], 0;", BarrierFault, "count 0: must be in"),
        (" @%p1 mbarrier.init.shared.b64 [%r1+4], 1;", MemoryFault, "not a multiple of"),
        (" @%p1 mbarrier.init.shared.b64 [%r1], 1;\n @%p1 mbarrier.init.shared.b64 [%r1], 1;",
         BarrierFault, "where one is live: mbarrier.inval must come first"),
        (" @%p1 mbarrier.init.shared.b64 [%r1], 1;\n @%p1 st.shared.b32 [%r1+4], %r0;",
         BarrierFault, "0x404 is written, and holds a live mbarrier"),
        (" @%p1 mbarrier.init.shared.b64 [%r1], 1;\n @%p1 mbarrier.inval.shared.b64 [%r1];\n"
         " @%p1 mbarrier.arrive.shared.b64 _, [%r1];", BarrierFault, "no mbarrier is initialised"),
        (" @%p1 mbarrier.init.shared.b64 [%r1], 1;\n @%p1 mbarrier.inval.shared.b64 [%r1];\n"
         " @%p1 ld.shared.b32 %r9, [%r1];\n @%p1 st.global.b32 [%rd1], %r9;", UninitializedRead,
         "0x400 is read, and nothing wrote it"),
        (" @%p1 mbarrier.init.shared.b64 [%r1], 2;\n"
         " @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 16;\n"
         " @%p1 mbarrier.arrive.shared.b64 _, [%r1], 2;", BarrierFault,
         r"2 arrivals at the mbarrier at 0x400 \(smem \+ 0\) that expects 1 more in phase 0"),
        (" @%p1 mbarrier.init.shared.b64 [%r1], 2;\n"
         " @%p1 mbarrier.arrive.noComplete.shared.b64 %rd5, [%r1], 2;", BarrierFault,
         ".noComplete: 2 arrivals complete the phase"),
        (" @%p1 mbarrier.init.shared.b64 [%r1], 1;\n"
         " @%p1 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 1048575;\n"
         " @%p1 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 1;", BarrierFault,
         "transaction count becomes 1048576"),
        (" @%p1 mbarrier.init.shared.b64 [%r1], 1;\n"
         " @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 64;\n"
         " @%p1 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], 16;", BarrierFault,
         "has 48 bytes outstanding: bytes are expected that never arrived"),
        (" @%p1 mbarrier.init.shared.b64 [%r1], 1;\n"
         " @%p1 mbarrier.arrive.shared.b64 %rd5, [%r1];\n"
         " @%p1 mbarrier.arrive.shared.b64 _, [%r1];\n"
         " @%p1 mbarrier.test_wait.shared.b64 %p3, [%r1], %rd5;", BarrierFault,
         "names phase 0; only the current phase and the one before it"),
        (" mov.u32 %r9, 0x1000400;\n @%p1 mbarrier.init.shared.b64 [%r9], 1;", MemoryFault,
         "is not of this block"),
    ],
)  # fmt: skip
def test_misused_barriers(body, fault, message):
    with pytest.raises(fault, match=message) as caught:
        run(body)
    if "block" not in message and "outstanding: bytes are" not in message:
        assert "mbarrier" in str(caught.value.instruction) or "shared" in str(
            caught.value.instruction
        )
        if isinstance(caught.value, UninitializedRead):
            assert caught.value.use.opcode == "st.global.b32"
        assert "warp 0" in caught.value.where or "warps 0" in caught.value.where


def test_a_block_may_end_while_bytes_are_expected_and_no_copy_was_issued():
    run("""
 @%p1 mbarrier.init.shared.b64 [%r1], 1;
 @%p1 mbarrier.arrive.expect_tx.shared.b64 %rd5, [%r1], 64;
 @%p1 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], 64;
 @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 64;
""")


def test_a_deadlock_says_who_waits_for_what():
    """Warps 0 and 1 wait for a barrier that lacks an arrival, 2 and 3 at the block's barrier."""
    with pytest.raises(Deadlock) as caught:
        run("""
 @%p1 mbarrier.init.shared.b64 [%r1+8], 65;
 bar.sync 0;
 setp.lt.u32 %p2, %r0, 64;
 @%p2 mbarrier.arrive.shared.b64 %rd5, [%r1+8];
 @!%p2 bra OTHERS;
WAIT:
 mbarrier.try_wait.shared.b64 %p3, [%r1+8], %rd5;
 @!%p3 bra WAIT;
OTHERS:
 bar.sync 0;
""")
    message = str(caught.value)
    assert "warps 0, 1" in message
    assert "waits for phase 0 of the mbarrier at 0x408 (smem + 8)" in message
    assert "1 of 65 arrivals missing, 0 bytes outstanding" in message
    assert "warps 2, 3" in message
    assert "barrier 0: 64 of 128 threads arrived" in message


def test_a_loop_that_polls_is_called_hung_and_says_for_what(monkeypatch):
    monkeypatch.setattr(liveness, "NO_PROGRESS_LIMIT", 50_000)
    with pytest.raises(Deadlock) as caught:
        run("""
 @%p1 mbarrier.init.shared.b64 [%r1], 2;
 bar.sync 0;
 @%p1 mbarrier.arrive.shared.b64 _, [%r1];
WAIT:
 mbarrier.test_wait.parity.shared.b64 %p3, [%r1], 0;
 @!%p3 bra WAIT;
""")
    message = str(caught.value)
    assert "no memory or barrier changes any more" in message
    assert "runs without end; it waits for parity 0 of the mbarrier at 0x400" in message
    assert "1 of 2 arrivals missing" in message


ARRIVE_TWICE = """
 setp.lt.u32 %p2, %r0, 32;
 @!%p2 bra OTHER;
 bar.arrive 1, 64;
 {told}
 bar.arrive 1, 64;
 bra END;
OTHER:
 bar.sync 1, 64;
 {told}
 bar.sync 1, 64;
END:
"""


@pytest.mark.parametrize("seed", range(4))
def test_a_second_arrival_must_know_of_the_end_of_the_first_phase(seed):
    """Whether the other warp happens to come between the two, or not: then they are counted in one
    phase, as the hardware does, and nobody comes for the second one.
    """
    found = r"at barrier 1( again|\n)|barrier 1: 32 of 64 threads arrived"
    for schedule in SCHEDULES:
        chosen = {"block": 64, "schedule": schedule, "seed": seed}
        run(ARRIVE_TWICE.format(told="bar.sync 2, 64;"), **chosen)
        with pytest.raises((BarrierFault, Deadlock), match=found):
            run(ARRIVE_TWICE.format(told=""), **chosen)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stores_of_two_warps_in_one_place(schedule):
    """They must be ordered, unless they write the same."""
    body = " and.b32 %r10, %r0, 31;\n shl.b32 %r10, %r10, 2;\n add.u32 %r10, %r10, %r2;\n"
    body += " setp.lt.u32 %p2, %r0, 32;\n @%p2 st.shared.b32 [%r10], {first};\n {between}\n"
    body += " @!%p2 st.shared.b32 [%r10], 2;\n"
    run(body.format(first="1", between="bar.sync 0;"), block=64, schedule=schedule)
    run(body.format(first="2", between=""), block=64, schedule=schedule)
    with pytest.raises(SynchronizationFault, match="is written, and was written by warp"):
        run(body.format(first="1", between=""), block=64, schedule=schedule)


# ---------------------------------------------------------------------- cp.async

COPY = """
 ld.param.u64 %rd2, [data];
 shl.b32 %r10, %r0, 4;
 cvt.u64.u32 %rd3, %r10;
 add.u64 %rd2, %rd2, %rd3;
 add.u32 %r11, %r10, %r2;
 cp.async.cg.shared.global [%r11], [%rd2], 16;
 cp.async.commit_group;
 cp.async.cg.shared.global [%r11+2048], [%rd2+2048], 16;
 cp.async.commit_group;
"""


def copy(body, schedule="eager"):
    data = aligned(1024, np.uint32)
    data[:] = np.arange(1, 1025)
    return data, run(
        COPY + body + STORE_EACH,
        parameters=PARAMETERS + ", .param .u64 data",
        args=[data],
        schedule=schedule,
        seed=2,
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_own_copies_are_there_after_wait_group(schedule):
    data, out = copy(" cp.async.wait_group 1;\n ld.shared.b32 %r20, [%r11];", schedule)
    np.testing.assert_array_equal(out[:128], data[:512:4])


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "body",
    [
        " ld.shared.b32 %r20, [%r11];",
        " cp.async.wait_group 1;\n ld.shared.b32 %r20, [%r11+2048];",
        " cp.async.wait_group 0;\n xor.b32 %r12, %r11, 1024;\n ld.shared.b32 %r20, [%r12];",
    ],
    ids=["no wait", "one group too few", "another warp's, without a barrier"],
)
def test_copies_that_nobody_waited_for(body, schedule):
    with pytest.raises((SynchronizationFault, UninitializedRead)) as caught:
        copy(body, schedule)
    if schedule == "eager":
        assert "was written by the asynchronous copies of warp" in str(caught.value)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_copy_into_a_buffer_that_an_earlier_one_may_still_write(schedule):
    again = " cp.async.cg.shared.global [%r11], [%rd2+2048], 16;\n cp.async.wait_all;\n"
    read = " ld.shared.b32 %r20, [%r11];"
    data, out = copy(" cp.async.wait_group 1;\n" + again + read, schedule)
    np.testing.assert_array_equal(out[:128], data[512::4])
    with pytest.raises(SynchronizationFault, match="written by the asynchronous copies"):
        copy(" cp.async.wait_group 2;\n" + again + read, schedule)
    with pytest.raises(SynchronizationFault, match="written by the asynchronous copies"):
        copy(again.replace("+2048", "") + read, schedule)  # the same values


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_copies_of_other_warps_after_a_barrier(schedule):
    data, out = copy(
        " cp.async.wait_all;\n bar.sync 0;\n xor.b32 %r12, %r11, 1024;\n"
        " ld.shared.b32 %r20, [%r12];",
        schedule,
    )
    np.testing.assert_array_equal(out[:128], data[:512].reshape(2, 64, 4)[::-1, :, 0].reshape(-1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" cp.async.ca.shared.global [%r2], [%rd2], 3;", "a copy of 3 bytes"),
        (" cp.async.cg.shared.global [%r2], [%rd2], 8;", "a copy of 8 bytes"),
        (" cp.async.wait_group 64;", "number of groups"),
    ],
)
def test_illegal_copies_are_refused(text, message):
    with pytest.raises(UnsupportedInstruction, match=message):
        run(text, legal=False)


def test_source_sizes():
    with pytest.raises(MemoryFault, match="src-size 17 is more than 16"):
        copy(" mov.u32 %r13, 17;\n cp.async.ca.shared.global [%r11], [%rd2], 16, %r13;")


# ---------------------------------------------------------------------- clusters

CLUSTER_INIT = """
 mov.u32 %r50, %cluster_ctarank;
 mul.wide.u32 %rd30, %r50, 512;
 add.u64 %rd1, %rd1, %rd30;
 xor.b32 %r51, %r50, 1;
"""
SYNC = "\n barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;\n"
NEIGHBOUR = """
 shl.b32 %r10, %r0, 2;
 add.u32 %r11, %r10, %r2;
 mad.lo.u32 %r12, %r50, 1000, %r0;
 st.shared.b32 [%r11], %r12;
 {before}
 mapa.shared::cluster.u32 %r13, %r11, %r51;
 ld.shared::cluster.b32 %r20, [%r13];
 {after}
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_blocks_of_a_cluster_read_each_others_memory(schedule):
    out = run(
        CLUSTER_INIT + NEIGHBOUR.format(before=SYNC, after=SYNC) + STORE_EACH,
        grid=2, cluster=2, schedule=schedule, seed=1,
    )  # fmt: skip
    np.testing.assert_array_equal(out[:128], 1000 + np.arange(128))
    np.testing.assert_array_equal(out[128:256], np.arange(128))


def test_a_relaxed_arrival_releases_only_what_a_fence_did():
    relaxed = SYNC.replace("arrive", "arrive.relaxed")
    body = CLUSTER_INIT + NEIGHBOUR.format(before=relaxed, after=SYNC) + STORE_EACH
    with pytest.raises((SynchronizationFault, UninitializedRead)):
        run(body, grid=2, cluster=2)
    fenced = "fence.acq_rel.cluster;" + relaxed
    body = CLUSTER_INIT + NEIGHBOUR.format(before=fenced, after=SYNC) + STORE_EACH
    run(body, grid=2, cluster=2)


def test_a_trace_of_the_clusters_barrier():
    events = []
    run(CLUSTER_INIT + SYNC, grid=2, cluster=2, observer=Trace(events.append, "barrier.cluster"))
    found = [barrier["barrier"] for each in events for barrier in each.get("barriers", ())]
    assert "barrier of the cluster" in found


def test_a_neighbours_memory_without_a_barrier():
    body = CLUSTER_INIT + NEIGHBOUR.format(before="", after=SYNC) + STORE_EACH
    with pytest.raises((SynchronizationFault, UninitializedRead)):
        run(body, grid=2, cluster=2)


@pytest.mark.parametrize(
    ("body", "fault", "message"),
    [
        ("\n barrier.cluster.wait.aligned;", BarrierFault, "without a barrier.cluster.arrive"),
        ("\n barrier.cluster.arrive.aligned;\n barrier.cluster.arrive.aligned;", BarrierFault,
         "twice without barrier.cluster.wait"),
        (" mov.u32 %r9, 31;\n mapa.shared::cluster.u32 %r10, %r1, %r9;\n" + SYNC, None, ""),
        (" mov.u32 %r9, 31;\n mapa.shared::cluster.u32 %r10, %r1, %r9;\n"
         " ld.shared::cluster.u32 %r9, [%r10];", MemoryFault, "block 31 of a cluster of 2"),
        (" setp.eq.u32 %p2, %r50, 0;\n @%p2 bra.uni END;\n barrier.cluster.arrive;\nEND:\n"
         " @!%p2 bra.uni OUT;\n mapa.shared::cluster.u32 %r9, %r1, 1;\n" + SYNC + "OUT:\n",
         None, ""),
        (" mapa.shared::cluster.u32 %r9, %r1, %r51;\n" + SYNC +
         " @%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r9];", BarrierFault,
         "no mbarrier is initialised at shared address"),
    ],
)  # fmt: skip
def test_misused_clusters(body, fault, message):
    if fault is None:  # an address that nobody uses; threads that have exited are not waited for
        run(CLUSTER_INIT + body, grid=2, cluster=2)
        return
    with pytest.raises(fault, match=message):
        run(CLUSTER_INIT + body, grid=2, cluster=2)


def test_a_cluster_barrier_that_a_block_never_reaches():
    with pytest.raises(Deadlock) as caught:
        run(
            CLUSTER_INIT
            + " setp.eq.u32 %p2, %r50, 0;\n @%p2 bra.uni FIRST;\n"
            + " @%p1 mbarrier.init.shared.b64 [%r1], 1;\n bar.sync 0;\n"
            + "W:\n mbarrier.try_wait.parity.shared.b64 %p3, [%r1], 0;\n @!%p3 bra W;\n"
            + "FIRST:"
            + SYNC,
            grid=2,
            cluster=2,
        )
    message = str(caught.value)
    assert "the cluster's barrier; missing: block 1, warps 0, 1, 2, 3" in message
    assert "block (1, 0, 0), warps 0, 1, 2, 3" in message


def test_a_remote_arrival_at_a_block_that_has_ended():
    body = (
        " @%p1 mbarrier.init.shared.b64 [%r1], 1;\n fence.mbarrier_init.release.cluster;\n" + SYNC
        + """ setp.eq.u32 %p2, %r50, 1;
 @%p2 bra.uni END;
 mov.u32 %r9, 0;
SPIN:
 add.u32 %r9, %r9, 1;
 setp.lt.u32 %p3, %r9, 5000;
 @%p3 bra SPIN;
 mapa.shared::cluster.u32 %r10, %r1, %r51;
 @%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r10];
END:
"""
    )  # fmt: skip
    with pytest.raises(SynchronizationFault, match=r"of block \(1, 0, 0\), which has ended"):
        run(CLUSTER_INIT + body, grid=2, cluster=2)


RELAXED_SYNC = SYNC.replace("arrive", "arrive.relaxed")
TWO_BARRIERS = (
    CLUSTER_INIT
    + """
 setp.eq.u32 %p5, %r50, 0;
 and.pred %p6, %p5, %p1;
 @%p1 mbarrier.init.shared.b64 [%r1], 1;
 @%p1 mbarrier.init.shared.b64 [%r1+8], 1;
 fence.mbarrier_init.release.cluster;
"""
    + SYNC
    + " mapa.shared::cluster.u32 %r9, %r1, %r51;\n"
)
AFAR = " @%p6 mbarrier.arrive{}.shared::cluster.b64 _, [%r9+{}];\n"
FIRST, FIRST_RELAXED = AFAR.format("", 0), AFAR.format(".relaxed.cluster", 0)
SECOND, SECOND_FAR = AFAR.format("", 8), AFAR.format(".release.cluster", 8)
FENCE = " fence.acq_rel.cluster;\n"


def waits(*offsets):
    """Block 1 waits for these barriers."""
    found = "".join(
        f"W{at}:\n mbarrier.try_wait.parity.shared.b64 %p3, [%r1+{at}], 0;\n @!%p3 bra W{at};\n"
        for at in offsets
    )
    return f" @%p5 bra ON;\n{found}ON:\n"


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("body", "legal"),
    [
        (FIRST + SYNC, True),
        (FIRST_RELAXED + SYNC, True),
        (FIRST + FENCE + RELAXED_SYNC, True),
        (FIRST + waits(0) + RELAXED_SYNC, True),
        (FIRST_RELAXED + waits(0) + RELAXED_SYNC, True),
        (FIRST + SECOND + waits(0, 8) + RELAXED_SYNC, True),
        (FIRST + SECOND_FAR + waits(8) + RELAXED_SYNC, True),
        (FIRST + FENCE + SECOND + waits(8) + RELAXED_SYNC, True),
        (FIRST + RELAXED_SYNC, False),
        (FIRST_RELAXED + RELAXED_SYNC, False),
        (FENCE + FIRST + RELAXED_SYNC, False),
        (FIRST + SECOND + waits(8) + RELAXED_SYNC, True),  # those of a thread come in order
        (SECOND + FIRST + waits(8) + RELAXED_SYNC, False),
        (FIRST + SECOND_FAR + waits(0) + RELAXED_SYNC, False),
        (AFAR.format(".release.cluster", 0) + RELAXED_SYNC, False),
    ],
)
def test_an_arrival_that_may_come_after_its_block_has_ended(body, legal, schedule):
    """Block 0 arrives at block 1; a relaxed barrier at the end does not say that it has come."""
    if legal:
        run(TWO_BARRIERS + body, grid=2, cluster=2, schedule=schedule)
        return
    message = r"block \(1, 0, 0\) may end before an arrival of warp 0 of block 0"
    with pytest.raises(SynchronizationFault, match=message):
        run(TWO_BARRIERS + body, grid=2, cluster=2, schedule=schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "access", ["st.shared::cluster.b32 [%r9+16], %r0", "ld.shared::cluster.b32 %r10, [%r9+16]"]
)
def test_an_access_that_may_come_after_its_block_has_ended(access, schedule):
    start = TWO_BARRIERS.replace(SYNC, " @%p1 st.shared.b32 [%r1+16], %r0;\n" + SYNC)
    body = f"{start} @%p6 {access};\n"
    run(body + SYNC, grid=2, cluster=2, schedule=schedule)
    run(body + FENCE + RELAXED_SYNC, grid=2, cluster=2, schedule=schedule)
    with pytest.raises(SynchronizationFault, match=r"block \(1, 0, 0\) may end before warp 0"):
        run(body + RELAXED_SYNC, grid=2, cluster=2, schedule=schedule)


def test_addresses_of_blocks():
    out = run(
        CLUSTER_INIT
        + """
 cvt.u64.u32 %rd5, %r1;
 cvta.shared.u64 %rd5, %rd5;
 mapa.u64 %rd6, %rd5, %r51;
 getctarank.u64 %r20, %rd6;
 mapa.shared::cluster.u32 %r10, %r1, %r51;
 getctarank.shared::cluster.u32 %r11, %r10;
 shl.b32 %r11, %r11, 4;
 or.b32 %r20, %r20, %r11;
"""
        + STORE_EACH,
        grid=2,
        cluster=2,
    )
    assert (out[:128] == 0x11).all()
    assert (out[128:256] == 0).all()


# --------------------------------------------------------- cluster launch control

WORK = """
 ld.param.u64 %rd1, [out];
 mov.u32 %r20, %ctaid.x;
 @%p1 mbarrier.init.shared.b64 [%r1], 1;
 fence.proxy.async;
 bar.sync 0;
 mov.u32 %r30, 0;
LOOP:
 mul.wide.u32 %rd2, %r20, 4;
 add.u64 %rd2, %rd2, %rd1;
 @%p1 atom.global.add.u32 %r9, [%rd2], 1;
 @%p1 atom.global.add.u32 %r9, [%rd1+400], 1;
 @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 16;
 @%p1 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128
     [%r1+16], [%r1];
WAIT:
 mbarrier.try_wait.parity.shared.b64 %p3, [%r1], %r30;
 @!%p3 bra WAIT;
 xor.b32 %r30, %r30, 1;
 ld.shared.b128 %rq1, [%r1+16];
 clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p4, %rq1;
 @!%p4 bra DONE;
 clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r20, %rq1;
 clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r21, %r22, %r23, _}, %rq1;
 sub.u32 %r21, %r21, %r20;
 add.u32 %r20, %r20, %r21;
 bar.sync 0;
 fence.proxy.async.shared::cta;
 bra LOOP;
DONE:
 @%p1 atom.global.add.u32 %r9, [%rd1+404], 1;
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_canceled_blocks_are_done_by_who_canceled_them(schedule):
    out = run(" .reg .b128 %rq<2>;\n" + WORK, grid=9, target="sm_100a", schedule=schedule)
    assert (out[:9] == 1).all()
    assert out[100] == 9
    assert 1 <= out[101] <= 9


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_request_over_an_answer_that_was_read_needs_a_proxy_fence(schedule):
    text = WORK.replace(" fence.proxy.async.shared::cta;\n bra LOOP;", " bra LOOP;")
    assert text != WORK
    with pytest.raises(SynchronizationFault, match=r"was read by warp .*; .* a proxy fence"):
        run(" .reg .b128 %rq<2>;\n" + text, grid=9, target="sm_100a", schedule=schedule)


def test_the_answer_of_a_refused_cancellation_names_no_block():
    text = WORK.replace(" @!%p4 bra DONE;\n", "")
    with pytest.raises(MemoryFault, match="in no allocation"):
        run(" .reg .b128 %rq<2>;\n" + text, grid=1, target="sm_100a")


# -------------------------------------------------------------------- proxy fences

BULK = """
 shl.b32 %r10, %r0, 4;
 add.u32 %r11, %r10, %r2;
 st.shared.v4.b32 [%r11], {%r0, %r0, %r0, %r0};
"""
BULK_OUT = """
 mov.u32 %r12, 2048;
 @%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], %r12;
 @%p1 cp.async.bulk.commit_group;
 @%p1 cp.async.bulk.wait_group 0;
"""


@pytest.mark.parametrize(
    "fence",
    [
        " fence.proxy.async;\n bar.sync 0;",
        " fence.proxy.async.shared::cta;\n bar.sync 0;",
        " fence.proxy.async.shared::cluster;\n bar.sync 0;",
        " bar.sync 0;\n @%p1 fence.proxy.async;",
    ],
)
def test_proxy_fences_before_a_bulk_copy(fence):
    out = run(BULK + fence + BULK_OUT)
    np.testing.assert_array_equal(out[:512], np.repeat(np.arange(128), 4))


@pytest.mark.parametrize(
    ("fence", "missing"),
    [
        ("", "fence.proxy.async|a barrier or wait"),
        (" bar.sync 0;", "fence.proxy.async"),
        (" fence.proxy.async.global;\n bar.sync 0;", "fence.proxy.async"),
        (" fence.acq_rel.cta;\n bar.sync 0;", "fence.proxy.async"),
        (" fence.proxy.async;", "a barrier or wait"),
    ],
)
def test_missing_proxy_fences_and_barriers(fence, missing):
    with pytest.raises(SynchronizationFault, match=missing):
        run(BULK + fence + BULK_OUT)


def test_bulk_copies_are_checked():
    for text, message in (
        (" @%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], %r12;", "size 0x18"),
        (" @%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1+8], [%r2], 16;", "destination"),
        (" @%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2+8], 16;", "source"),
    ):
        with pytest.raises(MemoryFault, match=f"bulk copy: {message}"):
            run(BULK + " mov.u32 %r12, 24;" + " fence.proxy.async;\n bar.sync 0;\n" + text)


def test_bytes_of_a_mask():
    """cp_mask: of each 16 bytes, those whose bit is set (sm_100)."""
    out = run(
        BULK
        + " fence.proxy.async;\n bar.sync 0;\n"
        + BULK_OUT.replace("bulk_group [", "bulk_group.cp_mask [").replace(
            "%r12;\n @%p1 cp.async.bulk.commit", "%r12, %h1;\n @%p1 cp.async.bulk.commit"
        ).replace(" mov.u32 %r12", " mov.u16 %h1, 0xF00F;\n mov.u32 %r12"),
        target="sm_100a",
        out=np.full(1024, 0xFFFFFFFF, np.uint32),
    )  # fmt: skip
    words = out[:512].reshape(128, 4)
    assert (words[:, 1:3] == 0xFFFFFFFF).all()
    assert (words[:, 0] == np.arange(128)).all()
    assert (words[:, 3] == np.arange(128)).all()


# ------------------------------------------------- what seeded bugs showed to be missed before

EXCHANGE = """
 shl.b32 %r10, %r0, 2;
 add.u32 %r11, %r10, %r2;
 st.shared.b32 [%r11], %r0;
 {written}
 xor.b32 %r12, %r10, {other};
 add.u32 %r13, %r12, %r2;
 ld.shared.b32 %r20, [%r13];
 {read}
 st.shared.b32 [%r11], 7;
"""
"""Each thread takes what another one stored, and stores again."""


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("other", "written", "read", "message"),
    [
        (512 // 2, "bar.sync 0;", "bar.sync 0;", ""),
        (512 // 2, "bar.sync 0;", "", "nothing orders that read before"),
        (512 // 2, "", "bar.sync 0;", "nothing orders the two|nothing wrote it"),
        (4, "bar.warp.sync -1;", "", ""),
        (4, "", "", "the lanes of a warp need not be in step"),
        (0, "", "", ""),
    ],
)
def test_threads_exchange_through_shared_memory(other, written, read, message, schedule):
    body = EXCHANGE.format(other=other, written=written, read=read) + STORE_EACH
    if not message:
        np.testing.assert_array_equal(
            run(body, schedule=schedule)[:128], np.arange(128) ^ other // 4
        )
        return
    with pytest.raises((SynchronizationFault, UninitializedRead), match=message):
        run(body, schedule=schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("waits", [True, False])
def test_an_arrival_must_know_its_phase(schedule, waits):
    """Two warps arrive in each of two phases; else an arrival could count for the first phase."""
    wait = "\nL1:\n mbarrier.try_wait.parity.shared.b64 %p3, [%r1], 0;\n @!%p3 bra L1;\n"
    arrive = "\n setp.eq.u32 %p4, %r40, 0;\n @%p4 mbarrier.arrive.shared.b64 _, [%r1];\n"
    body = (
        "\n @%p1 mbarrier.init.shared.b64 [%r1], 2;\n bar.sync 0;\n and.b32 %r40, %r0, 31;"
        + arrive + (wait if waits else "") + arrive
        + wait.replace("L1", "L2").replace(", 0;", ", 1;")
    )  # fmt: skip
    if waits:
        run(body, block=64, schedule=schedule)
        return
    with pytest.raises((SynchronizationFault, BarrierFault, Deadlock)) as caught:
        run(body, block=64, schedule=schedule)
    assert schedule != "eager" or "it could count for that one" in str(caught.value)


@pytest.mark.parametrize("parity", [0, 1])
def test_a_read_behind_a_wait_that_a_fresh_mbarrier_lets_through(parity):
    """It is named as what may be behind the read, and only where it let the reader through."""
    body = f"""
 @%p1 mbarrier.init.shared.b64 [%r1], 1;
 bar.sync 0;
 setp.ge.u32 %p2, %r0, 32;
 @%p2 bra ARRIVE;
L1:
 mbarrier.try_wait.parity.shared.b64 %p3, [%r1], {parity};
 @!%p3 bra L1;
 ld.shared.b32 %r20, [%r1+64];
 {STORE_EACH}
 ret;
ARRIVE:
 setp.eq.u32 %p4, %r0, 32;
 @%p4 mbarrier.arrive.shared.b64 _, [%r1];
 ret;
"""
    with pytest.raises(UninitializedRead) as caught:
        run(body, block=64)
    assert ("was for parity 1 of the mbarrier at" in str(caught.value)) == bool(parity)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "access", ["", " @%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r9];\n"]
)
def test_a_block_must_not_end_before_others_last_access(access, schedule):
    """The cluster's barrier at the end, with and without the wait."""
    init = " @%p1 mbarrier.init.shared.b64 [%r1], 1;\n"
    reach = " mapa.shared::cluster.u32 %r9, %r1, %r51;\n" + access
    end = SYNC if access else ""
    start = CLUSTER_INIT + init + SYNC
    read = "" if access else NEIGHBOUR.format(before=SYNC, after=SYNC)
    run(start + reach + read + end, grid=2, cluster=2, schedule=schedule, seed=1)
    without = start + reach + (end if access else NEIGHBOUR.format(before=SYNC, after="{SYNC}"))
    arrive = "\n barrier.cluster.arrive.aligned;\n"
    broken = (start + reach + arrive) if access else without.replace("{SYNC}", arrive)
    with pytest.raises(SynchronizationFault, match=r"may end before|which has ended"):
        run(broken, grid=2, cluster=2, schedule=schedule, seed=1)
