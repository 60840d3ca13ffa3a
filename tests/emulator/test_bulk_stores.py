"""Bulk copies out of shared memory: the memory must stay as it is until they have read it.

One generated kernel: thread 0 copies what all threads wrote out of a buffer, and waits or does not;
then the block ends, or the buffer is written again. Each variant is right or wrong by its
construction, and must be judged so under every schedule.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from triton_ext.emulator import run_ptx
from triton_ext.emulator.errors import LaunchError, SynchronizationFault, UndefinedBehaviour
from triton_ext.hardware.tensor_map import DataType, TensorMap

SCHEDULES = ("eager", "lazy", "random")
BYTES = 2048
STORES = {
    "tensor": "cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%rd2, {%r9}], [%r2];",
    "tensor reduction":
        "cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.tile.bulk_group"
        " [%rd2, {%r9}], [%r2];",
    "bytes": "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 2048;",
    "bytes' reduction":
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%r2], 2048;",
}  # fmt: skip
COMMIT, WAIT = "@%p1 cp.async.bulk.commit_group;", "cp.async.bulk.wait_group"
BARRIER = "bar.sync 0;"
BARRIERS = " ".join(
    f"@%p1 mbarrier.init.shared::cta.b64 [%r1+{offset}], 1;" for offset in range(0, 80, 8)
)
WAITS = {
    "done": f"{COMMIT} @%p1 {WAIT} 0;",
    "read": f"{COMMIT} @%p1 {WAIT}.read 0;",
    "by all threads": f"{COMMIT} {WAIT}.read 0;",
    "an empty group more": f"{COMMIT} {COMMIT} @%p1 {WAIT}.read 1;",
    "none": COMMIT,
    "no commit": f"@%p1 {WAIT} 0;",
    "one group too many": f"{COMMIT} @%p1 {WAIT}.read 1;",
    "more groups than there are": f"{COMMIT} {COMMIT} @%p1 {WAIT}.read 3;",
    "by another thread": f"{COMMIT} @%p2 {WAIT} 0;",
    "commit behind the wait": f"@%p1 {WAIT} 0; {COMMIT}",
}
GOOD = ("done", "read", "by all threads", "an empty group more")
REUSES = {
    "the same thread": "@%p1 st.shared.b32 [%r2+64], %r0;",
    "another thread": f"{BARRIER} @%p2 st.shared.b32 [%r2+64], %r0;",
    "an atomic": f"{BARRIER} @%p2 atom.shared.add.u32 %r8, [%r2+64], 1;",
    "TMA": """
 @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 2048;
 @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
     [%r2], [%rd1], 2048, [%r1];
AGAIN:
 mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1], 0;
 @!%p3 bra AGAIN;""",
    "st.async": """
 bar.sync 0;
 @%p2 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 4;
 @%p2 st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r2], %r0, [%r1];
AGAIN:
 mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1], 0;
 @!%p3 bra AGAIN;""",
    "the same thread, which has waited for many loads": "".join(
        f"""
 @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+{8 + 8 * i}], 16;
 @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
     [%r1+{512 + 16 * i}], [%rd1], 16, [%r1+{8 + 8 * i}];
AGAIN{i}:
 mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1+{8 + 8 * i}], 0;
 @!%p3 bra AGAIN{i};"""
        for i in range(9)
    )
    + "@%p1 st.shared.b32 [%r2+64], %r0;",
    "cp.async": f"""
 {BARRIER}
 @%p2 cp.async.ca.shared.global [%r2], [%rd1], 16;
 cp.async.wait_all;""",
}


def run(store, wait, reuse, schedule, cluster=1, *, strict=False):
    data = np.zeros(BYTES // 4 + 32, np.uint32)
    data = data[-data.ctypes.data % 128 // 4 :][: BYTES // 4]  # aligned to 128 bytes
    tensor_map = TensorMap(
        DataType.UINT32, (BYTES // 4,), (), (256,), global_address=data.ctypes.data
    )
    ptx = f"""
.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 data, .param .align 64 .b8 map[128])
{{
 .reg .pred %p<4>;
 .reg .b32 %r<12>;
 .reg .b64 %rd<4>;
 .shared .align 128 .b8 smem[4096];
 ld.param.u64 %rd1, [data];
 mov.b64 %rd3, map;
 cvta.param.u64 %rd2, %rd3;
 mov.u32 %r0, %tid.x;
 mov.u32 %r1, smem;
 add.u32 %r2, %r1, 1024;
 mov.u32 %r9, 0;
 setp.eq.u32 %p1, %r0, 0;
 setp.eq.u32 %p2, %r0, 40;
 {BARRIERS}
 shl.b32 %r3, %r0, 4;
 add.u32 %r3, %r2, %r3;
 st.shared.v4.b32 [%r3], {{%r0, %r0, %r0, %r0}};
 fence.proxy.async;
 {BARRIER}
 @%p1 {STORES[store]}
 {WAITS[wait]}
 {REUSES.get(reuse, "")}
 ret;
}}"""
    run_ptx(
        ptx, grid=1, block=BYTES // 16, args=[data, tensor_map], cluster=cluster,
        schedule=schedule, seed=5,
        check_races=False,  # in global memory: what is stored is loaded again
        max_steps=100_000, strict=strict,
    )  # fmt: skip
    return data


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_end_of_the_block(store, schedule):
    for wait in WAITS:
        if wait in GOOD:
            data = run(store, wait, "", schedule)
            # a box of the tensor has 256 of the 512 elements
            written = 256 if "tensor" in store else 512
            assert (data[:written] == np.arange(written) // 4).all()
            continue
        with pytest.raises(SynchronizationFault, match="has not waited for it") as caught:
            run(store, wait, "", schedule, strict=True)
        assert caught.value.instruction.opcode == STORES[store].split()[0]
        assert caught.value.where == "block (0, 0, 0), warp 0, lane 0"
        assert ("nor committed" in caught.value.message) == (wait == "no commit")


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_end_of_the_block_on_hardware(store, schedule):
    """It is written all the same, committed or not."""
    for wait in WAITS:
        if wait not in GOOD:
            with pytest.warns(UndefinedBehaviour, match="last-store"):
                data = run(store, wait, "", schedule)
            written = 256 if "tensor" in store else 512
            assert (data[:written] == np.arange(written) // 4).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("reuse", REUSES)
def test_a_buffer_that_is_written_again(reuse, schedule):
    for store, wait in itertools.product(("tensor", "bytes"), WAITS):
        if wait in GOOD:
            run(store, wait, reuse, schedule)
            continue
        with pytest.raises(SynchronizationFault) as caught:
            run(store, wait, reuse, schedule)
        told = str(caught.value)
        assert "the tma unit, for warp 0" in told or "TMA reads" in told, (store, wait, told)


def test_a_launch_without_clusters():
    """As on an H200, for which st.async is an illegal instruction then."""
    with pytest.raises(LaunchError, match="in a launch without clusters"):
        run("bytes", "done", "st.async", "eager", cluster=None)
    run("bytes", "done", "TMA", "eager", cluster=None)


POLLED = """
.version 8.6
.target sm_90a
.address_size 64
.extern .shared .align 128 .b8 smem[];
.visible .entry k(.param .u64 out, .param .u64 flag) {
 .reg .pred %p<5>;
 .reg .b32 %r<5>;
 .reg .b64 %rd<6>;
 ld.param.u64 %rd1, [out];
 ld.param.u64 %rd2, [flag];
 mov.u32 %r1, %tid.x;
 mov.u32 %r2, smem;
 setp.eq.u32 %p1, %r1, 0;
 setp.ge.u32 %p2, %r1, 32;
 @%p2 bra POLL;
 @!%p1 bra END;
 st.shared.v4.b32 [%r2], {7, 7, 7, 7};
 fence.proxy.async.shared::cta;
 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 16;
 cp.async.bulk.commit_group;
 cp.async.bulk.wait_group 0;
 st.release.gpu.global.b32 [%rd2], 1;
 bra END;
POLL:
 mov.u64 %rd3, %globaltimer;
 ld.acquire.gpu.global.b32 %r3, [%rd2];
 setp.eq.u32 %p3, %r3, 0;
 @%p3 bra POLL;
END:
 ret;
}
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_poll_that_looks_at_a_clock_does_not_hold_up_what_it_waits_for(schedule):
    """Its state never repeats; that nothing else goes on shows in what it polls."""
    out, flag = np.zeros(4, np.int32), np.zeros(1, np.int32)
    asked = {"dynamic_smem_bytes": 128, "schedule": schedule, "max_steps": 10_000}
    run_ptx(POLLED, grid=1, block=64, args=[out, flag], **asked)
    assert out.tolist() == [7] * 4
    assert flag[0] == 1
