"""What ran without a word once, and is wrong: found under every schedule, beside what mends it."""

from __future__ import annotations

import numpy as np
import pytest
from silicon.copy_cases import INIT, aligned, module
from tcgen05_operands import instruction_descriptor

from triton_ext.emulator import run_ptx
from triton_ext.emulator.errors import (
    BarrierFault,
    Deadlock,
    LayoutFault,
    MemoryFault,
    SynchronizationFault,
    UndefinedBehaviour,
    UnreadCopy,
)
from triton_ext.emulator.schedule.observers import Observer
from triton_ext.hardware.tensor_map import DataType, TensorMap, TensorSwizzle
from triton_ext.ptx.parse import parse_ptx

SCHEDULES = ("eager", "lazy", "random")
PARAMETERS = ".param .u64 out"


def run(body, *, args=(), parameters=PARAMETERS, target="sm_100a", block=128, grid=1, **options):
    out = aligned(1024, np.uint32)
    text = module(parameters, f"{INIT} ld.param.u64 %rd1, [out];\n{body}", target)
    run_ptx(text, grid=grid, block=block, args=[out, *args], dynamic_smem_bytes=40 << 10, **options)
    return out


# ------------------------------------------------------- a proxy fence of some lanes

FENCE = "fence.proxy.async.shared::cta;"
COPY_OUT = """
 shl.b32 %r3, %r0, 4;
 add.u32 %r4, %r2, %r3;
 st.shared.v4.b32 [%r4], {{%r0, %r0, %r0, %r0}};
 {before}
 {meet}
 {after}
 @%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 512;
 @%p1 cp.async.bulk.commit_group;
 @%p1 cp.async.bulk.wait_group 0;
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("before", "meet", "after", "right"),
    [
        (FENCE, "bar.warp.sync -1;", "", True),
        ("", "bar.warp.sync -1;", f"@%p1 {FENCE}", True),
        (f"@%p1 {FENCE}\n @!%p1 {FENCE}", "bar.warp.sync -1;", "", True),  # in two parts
        (f"@%p1 {FENCE}", "bar.warp.sync -1;", "", False),
        (f"@%p1 {FENCE}", "bar.sync 0;", "", False),
        (f"@!%p1 {FENCE}", "bar.sync 0;", "", False),
        (f"elect.sync _|%p4, -1;\n @%p4 {FENCE}", "bar.warp.sync -1;", "", False),
    ],
)
def test_a_proxy_fence_of_some_lanes(before, meet, after, right, schedule):
    body = COPY_OUT.format(before=before, meet=meet, after=after)
    if right:
        assert (run(body, block=32, schedule=schedule)[:128] == np.repeat(range(32), 4)).all()
        return
    message = r"proxy fence .* is missing; some lanes of the warp alone execute the one at PTX line"
    with pytest.raises(SynchronizationFault, match=message):
        run(body, block=32, schedule=schedule)


def test_a_lane_fences_what_it_wrote_itself():
    """What the others wrote before is not copied."""
    body = COPY_OUT.replace("512", "16").format(before=f"@%p1 {FENCE}", meet="", after="")
    assert not run(body, block=32)[:4].any()


# ------------------------------------------- an arrival that nobody waits for at the end

ARRIVES = """
 @%p1 mbarrier.init.shared.b64 [%r1], 128;
 bar.sync 0;
 shl.b32 %r3, %r0, 2;
 add.u32 %r4, %r2, %r3;
 cvt.u64.u32 %rd2, %r3;
 add.u64 %rd3, %rd1, %rd2;
 cp.async.ca.shared.global [%r4], [%rd3], 4;
 cp.async.mbarrier.arrive.noinc.shared.b64 [%r1];
 cp.async.wait_all;
"""
WAITS = """
WAIT:
 mbarrier.try_wait.parity.shared.b64 %p3, [%r1], 0;
 @!%p3 bra WAIT;
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_block_ends_before_its_copies_have_arrived(schedule):
    """That a thread's copies are done does not say that they have arrived at the mbarrier."""
    run(ARRIVES + WAITS, schedule=schedule)
    with pytest.raises(SynchronizationFault, match=r"the block ends, and|which has ended"):
        run(ARRIVES, schedule=schedule)


# -------------------------------------------------------- an mbarrier that ends early

INVAL = """
 setp.lt.u32 %p2, %r0, 32;
 @%p2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+32], 32;
 @%p1 mbarrier.init.shared.b64 [%r1], 1;
 @%p1 mbarrier.init.shared.b64 [%r1+8], 1;
 mov.u32 %r20, 0;
 shl.b32 %r11, %r0, 4;
 add.u32 %r11, %r11, %r2;
{fill}
 fence.proxy.async.shared::cta;
 bar.sync 0;
 ld.shared.u32 %r9, [%r1+32];
 shr.u32 %r12, %r2, 4;
 cvt.u64.u32 %rd5, %r12;
 or.b64 %rd5, %rd5, 0x4000404000010000;
 mov.b32 %r13, 0x08040010;
 setp.ne.u32 %p6, 0, 0;
 @%p1 tcgen05.mma.cta_group::1.kind::f16 [%r9], %rd5, %rd5, %r13, %p6;
 @%p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1];
 @%p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+8];
 {early}
WAIT:
 mbarrier.try_wait.parity.shared.b64 %p3, [%r1+8], 0;
 @!%p3 bra WAIT;
 {late}
 bar.sync 0;
 @%p2 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r9, 32;
"""
FILL = "".join(
    f" st.shared.v4.b32 [%r11+{at}], {{%r20, %r20, %r20, %r20}};\n" for at in range(0, 16384, 2048)
)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_mbarrier_that_is_invalidated_under_a_commit(schedule):
    """Who has waited for a later commit of the thread knows of the earlier one."""
    inval = "@%p1 mbarrier.inval.shared.b64 [%r1];"
    run(INVAL.format(fill=FILL, early="", late=inval), schedule=schedule)
    with pytest.raises(BarrierFault, match=r"may still signal it|no mbarrier is"):
        run(INVAL.format(fill=FILL, early=inval, late=""), schedule=schedule)


# ------------------------------------------------------------- the order of threads

ORDER = """
 setp.lt.u32 %p2, %r0, 32;
 @%p2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;
 bar.sync 0;
 ld.shared.u32 %r9, [%r1];
 shr.u32 %r10, %r0, 5;
 shl.b32 %r10, %r10, 21;
 add.u32 %r10, %r10, %r9;
 setp.lt.u32 %p3, %r0, 128;
 @!%p3 bra MEET;
 tcgen05.st.sync.aligned.32x32b.x1.b32 [%r10], {{%r0}};
 tcgen05.wait::st.sync.aligned;
 tcgen05.fence::before_thread_sync;
MEET:
 bar.sync 0;
 @%p3 bra END;
 {after}
 sub.u32 %r10, %r10, 8388608;
 tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r20}}, [%r10];
 tcgen05.wait::ld.sync.aligned;
 sub.u32 %r11, %r0, 128;
 mul.wide.u32 %rd3, %r11, 4;
 add.u64 %rd3, %rd3, %rd1;
 st.global.u32 [%rd3], %r20;
END:
 bar.sync 0;
 @%p2 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r9, 32;
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_fence_behind_a_barrier_is_left_out(schedule, recwarn):
    """Warps 4 to 7 load what warps 0 to 3 stored."""
    options = {"block": 256, "schedule": schedule}
    good = run(ORDER.format(after="tcgen05.fence::after_thread_sync;"), strict=True, **options)
    assert (good[:128] == np.arange(128)).all()
    assert not recwarn
    without = ORDER.format(after="")
    with pytest.raises(SynchronizationFault, match="after_thread_sync is missing"):
        run(without, strict=True, **options)
    with pytest.warns(UndefinedBehaviour, match="thread-sync-fence"):
        assert (run(without, **options)[:128] == np.arange(128)).all()
    # compilers that emit no such fence are taken at their word, and CUDA C++ is not
    neither = without.replace(" tcgen05.fence::before_thread_sync;\n", "")
    run(neither, strict=True, **options)
    with pytest.raises(SynchronizationFault, match="after_thread_sync is missing"):
        run(f"\n// Generated by NVIDIA NVVM Compiler\n{neither}", strict=True, **options)


# ------------------------------------------------------------------ boxes and stages

BOXES = """
 mov.b64 %rd2, map;
 cvta.param.u64 %rd2, %rd2;
 setp.lt.u32 %p2, %r0, 32;
 @%p2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+32], 32;
 @%p1 mbarrier.init.shared.b64 [%r1], 1;
 @%p1 mbarrier.init.shared.b64 [%r1+8], 1;
 fence.proxy.async.shared::cta;
 bar.sync 0;
 ld.shared.u32 %r9, [%r1+32];
 mov.u32 %r20, 0;
 mov.u32 %r21, 64;
 add.u32 %r22, %r2, 8192;
 add.u32 %r23, %r2, 16384;
 mov.u32 %r13, {idesc};
 shr.u32 %r12, %r2, 4;
 cvt.u64.u32 %rd5, %r12;
 or.b64 %rd5, %rd5, 0x4000404000010000;
 setp.ne.u32 %p6, 0, 0;
"""
LOADS = """
 @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 16384;
 @%p1 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
      [%r2], [%rd2, {{%r20, %r20}}], [%r1];
 @%p1 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
      [{second}], [%rd2, {{%r20, %r21}}], [%r1];
W{n}:
 mbarrier.try_wait.parity.shared.b64 %p3, [%r1], {n};
 @!%p3 bra W{n};
 {product}
"""
SLICES = "".join(
    f" add.u64 %rd6, %rd5, {2 * number};\n"
    " @%p1 tcgen05.mma.cta_group::1.kind::f16 [%r9], %rd6, %rd6, %r13, %p6;\n"
    " setp.eq.u32 %p6, 0, 0;\n"
    for number in range(4)
)
PRODUCT = f"""
{SLICES}
 @%p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+8];
V{{n}}:
 mbarrier.try_wait.parity.shared.b64 %p3, [%r1+8], {{n}};
 @!%p3 bra V{{n}};
"""
BOXES_END = """
 bar.sync 0;
 @%p2 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r9, 32;
"""
MAPPED = f"{PARAMETERS}, .param .align 64 .b8 map[128]"


def boxes(*rounds, kind=DataType.FLOAT16, type_name="f16", **options):
    """Two boxes of 64 rows for each round, and perhaps a product of 128 rows of them.

    Args:
        rounds: where the second box goes, and whether there is a product.
    """
    data = aligned(128 * 64, np.uint16)
    tensor = TensorMap(
        kind, (64, 128), (128,), (64, 64), swizzle=TensorSwizzle.BYTES_128,
        global_address=data.ctypes.data,
    )  # fmt: skip
    idesc = instruction_descriptor("f16", 128, 16, type_name, type_name, "f32", "K", "K")
    body = BOXES.format(idesc=idesc)
    products = 0
    for number, (second, multiplies) in enumerate(rounds):
        product = PRODUCT.format(n=products) if multiplies else ""
        products += multiplies
        body += LOADS.format(n=number, second=second, product=product)
    run(body + BOXES_END, parameters=MAPPED, args=[tensor], buffers=[data], **options)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_part_of_a_stage_that_a_phase_left_out(schedule):
    """In the second phase as many bytes come, half of them elsewhere."""
    boxes(("%r22", True), ("%r22", True), schedule=schedule)
    with pytest.raises(SynchronizationFault, match="nothing wrote the first in phase 1"):
        boxes(("%r22", True), ("%r23", True), schedule=schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("kind", "type_name", "right"),
    [
        (DataType.FLOAT16, "f16", True),
        (DataType.BFLOAT16, "bf16", True),
        (DataType.UINT16, "bf16", True),
        (DataType.FLOAT16, "bf16", False),
        (DataType.BFLOAT16, "f16", False),
    ],
)
def test_the_type_of_a_map_and_of_a_product(kind, type_name, right, schedule):
    case = {"kind": kind, "type_name": type_name, "schedule": schedule}
    if right:
        boxes(("%r22", True), **case)
        return
    message = f"is read as {type_name}; the TMA copy .* brought elements of b?f16"
    with pytest.raises(LayoutFault, match=message):
        boxes(("%r22", True), **case)
    boxes(("%r22", True), **case, check_layouts=False)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_bytes_that_nobody_read(schedule):
    """Reported on request alone."""
    boxes(("%r22", True), ("%r22", True), schedule=schedule, check_unread=True)
    boxes(("%r22", False), ("%r22", True), schedule=schedule)
    with pytest.raises(UnreadCopy, match=r"nobody has read it since; there lies row 0, byte 0"):
        boxes(("%r22", False), ("%r22", True), schedule=schedule, check_unread=True)


# --------------------------------------------------------------------- second tiles

TILES = """
 @%p1 mbarrier.init.shared.b64 [%r1], 1;
 fence.proxy.async.shared::cta;
 bar.sync 0;
 mov.u32 %r5, %ctaid.x;
 mov.u32 %r6, 0;
 mov.u32 %r7, %ctaid.x;
NEXT:
 mul.wide.u32 %rd3, %r5, 4;
 add.u64 %rd3, %rd3, %rd1;
 add.u32 %r8, %r7, 1;
 @%p1 st.global.u32 [%rd3], %r8;
 fence.proxy.async.shared::cta;
 bar.sync 0;
 @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 16;
 @%p1 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128
      [%r1+16], [%r1];
W:
 mbarrier.try_wait.parity.shared.b64 %p3, [%r1], %r6;
 @!%p3 bra W;
 xor.b32 %r6, %r6, 1;
 ld.shared.b128 %q, [%r1+16];
 clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p4, %q;
 @!%p4 bra DONE;
 clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r5, %q;
 bra NEXT;
DONE:
"""


class Blocks(Observer):
    """Which clusters have started."""

    def __init__(self):
        self.seen = set()

    def instruction(self, cta, step, lanes):
        self.seen.add(cta.index[0])


@pytest.mark.parametrize("tiles", [1, 2, 3, 5, 8, 11])
@pytest.mark.parametrize("seed", range(4))
def test_every_block_has_a_second_tile_if_there_are_as_many(tiles, seed):
    text = module(PARAMETERS, f"{INIT} .reg .b128 %q;\n ld.param.u64 %rd1, [out];\n{TILES}",
                  "sm_100a")  # fmt: skip
    out, blocks = np.zeros(16, np.uint32), Blocks()
    run_ptx(
        text, grid=tiles, block=32, args=[out], dynamic_smem_bytes=4096, schedule="random",
        seed=seed, observer=blocks,
    )  # fmt: skip
    assert (out[:tiles] > 0).all()  # by whom each tile was done
    done = np.bincount(out[:tiles] - 1, minlength=tiles)
    first = sorted(blocks.seen)[: max(1, min(4, tiles // 2))]
    assert (done[first] >= min(2, tiles)).all(), (out, blocks.seen)


COUNTER = """
 mov.u32 %r5, %ctaid.x;
 add.u32 %r8, %r5, 1;
NEXT:
 atom.global.add.u32 %r6, [%rd1], 1;
 setp.ge.u32 %p3, %r6, 8;
 @%p3 bra DONE;
 mul.wide.u32 %rd3, %r6, 4;
 add.u64 %rd3, %rd3, %rd1;
 st.global.u32 [%rd3+4], %r8;
 bra NEXT;
DONE:
"""


def test_blocks_that_count_their_tiles_get_second_ones():
    """Eight blocks share as many tiles: each number of blocks side by side is drawn."""
    text = module(PARAMETERS, f"{INIT} ld.param.u64 %rd1, [out];\n{COUNTER}", "sm_90a")
    shares = set()
    for seed in range(12):
        out = np.zeros(16, np.uint32)
        run_ptx(
            text, grid=8, block=1, args=[out], dynamic_smem_bytes=4096, schedule="random", seed=seed
        )
        shares.add(tuple(sorted(np.bincount(out[1:9] - 1, minlength=8))[::-1]))
    assert (8, 0, 0, 0, 0, 0, 0, 0) in shares  # one took them all
    assert any(each[1] > 1 for each in shares)  # two had a second tile


# ------------------------------------------------------------------------- messages

SCATTERED = """
 setp.eq.u32 %p2, %r0, 0;
 @%p1 mbarrier.init.shared.b64 [%r1], 1;
 bar.sync 0;
 and.b32 %r3, %r0, 7;
 mov.u32 %r4, 0;
STAIRS:
 setp.ge.u32 %p3, %r4, %r3;
 add.u32 %r4, %r4, 1;
 @!%p3 bra STAIRS;
W:
 mbarrier.test_wait.parity.shared.b64 %p3, [%r1], 0;
 @!%p3 bra W;
"""


def test_a_deadlock_tells_of_all_lanes_at_one_place_together():
    with pytest.raises(Deadlock) as caught:
        run(SCATTERED, grid=8, block=64, cluster=8)
    lines = caught.value.message.splitlines()
    assert len(lines) < 8
    assert any("blocks more at PTX line" in line for line in lines)


def test_a_relaxed_cluster_barrier_is_named():
    """The other block stores, and the barrier between orders nothing."""
    body = """
 mov.u32 %r50, %cluster_ctarank;
 xor.b32 %r51, %r50, 1;
 mapa.shared::cluster.u32 %r9, %r2, %r51;
 @%p1 st.shared::cluster.u32 [%r9], %r0;
 barrier.cluster.arrive{}.aligned;
 barrier.cluster.wait.aligned;
 ld.shared.u32 %r20, [%r2];
 barrier.cluster.arrive.aligned;
 barrier.cluster.wait.aligned;
"""
    run(body.format(""), grid=2, cluster=2)
    with pytest.raises(SynchronizationFault) as caught:
        run(body.format(".relaxed"), grid=2, cluster=2)
    assert "barrier.cluster.arrive.relaxed.aligned at PTX line" in caught.value.message
    assert "releases nothing: .release, or fence.acq_rel.cluster" in caught.value.message


def test_a_generic_address_is_called_one():
    body = " cvt.u64.u32 %rd3, %r1;\n cvta.shared.u64 %rd3, %rd3;\n ld.shared.u32 %r9, [%rd3];"
    with pytest.raises(MemoryFault, match="a generic address, where a shared one is due"):
        run(body)
    body = " cvt.u64.u32 %rd3, %r1;\n ld.u32 %r9, [%rd3];"
    with pytest.raises(MemoryFault, match="if it is a shared address: a generic one is due"):
        run(body)
    body = " cvt.u64.u32 %rd3, %r1;\n cvta.shared.u64 %rd3, %rd3;\n"
    with pytest.raises(MemoryFault, match=r"generic address .*, where \.shared needs a shared one"):
        run(body + " mbarrier.init.shared.b64 [%rd3], 1;")


def test_the_line_of_an_inlined_function():
    """A library's is the kernel's that calls it, through as many calls as there are."""
    text = module("", " mov.u32 %r1, 0;\n st.global.u32 [%rd1], %r1;").replace(
        " mov.u32 %r1, 0;",
        " .loc 1 30 5\n .loc 2 70 1, function_name L, inlined_at 1 30 5\n"
        " .loc 3 90 2, function_name L, inlined_at 2 70 1\n mov.u32 %r1, 0;\n"
        " .loc 1 12 3, function_name L, inlined_at 1 31 5",
    )
    names = ("/home/u/kernel.cu", "/usr/include/a.h", "/usr/include/b.h")
    text += "".join(f'\n.file {n} "{name}"' for n, name in enumerate(names, 1))
    first, second = parse_ptx(text).kernels[0].instructions[:2]
    assert (str(first.source), str(second.source)) == (
        "/home/u/kernel.cu:30",
        "/home/u/kernel.cu:12",
    )
