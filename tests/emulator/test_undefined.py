"""Values that come from memory that nothing wrote: dropped, they are none of the emulator's
business; used, they are a fault that names the load and the use."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tcgen05_ptx import (
    STATE,
    allocate,
    commit_and_wait,
    descriptor,
    fill_shared,
    free,
    kernel,
    registers,
    write_out,
)

from triton_ext.emulator import run_ptx
from triton_ext.emulator.errors import SynchronizationFault, UninitializedRead

SCHEDULES = ("eager", "lazy", "random")
HEAD = """
.version 8.7
.target sm_100a
.address_size 64
.extern .shared .align 16 .b8 smem[];
.visible .entry k(.param .u64 out)
{
 .reg .b16 %h<8>;
 .reg .b32 %r<40>;
 .reg .b64 %rd<20>;
 .reg .f32 %f<8>;
 .reg .pred %p<8>;
 ld.param.u64 %rd1, [out];
 mov.u32 %r1, %tid.x;
 shl.b32 %r2, %r1, 4;
 cvt.u64.u32 %rd2, %r2;
 add.s64 %rd1, %rd1, %rd2;
 mov.u32 %r3, smem;
 add.u32 %r3, %r3, %r2;
 setp.lt.u32 %p1, %r1, 32;
 setp.eq.u32 %p7, %r1, %r1;
"""
LOAD = " ld.shared.u32 %r4, [%r3];\n"
WRITE = " st.shared.u32 [%r3], %r1;\n"
STORE = " st.global.u32 [%rd1], %r5;\n"


def run(body, schedule="eager", threads=64, clusters=1):
    """The words that a kernel stores: four of each thread."""
    out = np.zeros(4 * threads * clusters, np.uint32)
    text = HEAD + body + " ret;\n}\n"
    run_ptx(text, grid=clusters, cluster=clusters, block=threads, args=[out], schedule=schedule,
            dynamic_smem_bytes=4096)  # fmt: skip
    return out


def used(body, *, by="st.global", **options):
    """The fault of a kernel that uses what nothing wrote; it names both places."""
    with pytest.raises(UninitializedRead, match="is read, and nothing wrote it") as caught:
        run(body, **options)
    error = caught.value
    assert error.instruction.opcode.startswith("ld.")
    assert error.use.opcode.startswith(by)
    text = str(error)
    assert f"(PTX line {error.instruction.line})" in text
    assert f"used by: {error.use}"[:30] in text
    assert f"(PTX line {error.use.line})" in text
    return error


# ------------------------------------------------- the two kernels that this came from


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_loop_without_iterations_drops_its_accumulator(schedule):
    """As Triton's attention does: loaded before the loop, zeros selected behind it."""

    def body(selected):
        return (
            allocate(32)
            + f"  tcgen05.ld.sync.aligned.32x32b.x2.b32 {registers(2)}, [%r5];\n"
            + "  tcgen05.wait::ld.sync.aligned;\n"
            + "  add.u32 %v1, %v1, 1;\n"
            + f"  setp.{selected}.u32 %p7, %r4, %r4;\n"
            + "  selp.b32 %v0, %v1, 7, %p7;\n"
            + "  mov.b32 %v1, 8;\n"
            + write_out(2) + free(32)
        )  # fmt: skip

    out = np.zeros(256, np.uint32)

    def launch(text):
        run_ptx(kernel(text), grid=1, block=128, args=[out.copy(), out],
                dynamic_smem_bytes=STATE, schedule=schedule)  # fmt: skip

    launch(body("ne"))
    assert sorted(out.tolist()) == [7] * 128 + [8] * 128
    with pytest.raises(UninitializedRead, match="tensor memory lane 0, column 0 is read") as caught:
        launch(body("eq"))
    assert caught.value.instruction.opcode.startswith("tcgen05.ld")
    assert caught.value.use.opcode.startswith("st.global")


HALF = """
 {guard} st.shared.v2.b32 [%r3], {{%r1, %r1}};
 bar.sync 0;
 ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [%r3];
 mov.b64 %rd4, {{%r4, %r6}};
 mov.b64 {{%r8, %r9}}, %rd4;
 st.global.v2.b32 [%rd1], {{%r8, %r5}};
 {stored} st.global.v2.b32 [%rd1+8], {{%r9, %r7}};
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_half_of_a_row_is_not_stored(schedule):
    """As in triton_kernels: what LLVM found undefined is not stored, loaded, and masked."""
    out = run(HALF.format(guard="", stored="@!%p7"), schedule).reshape(64, 4)
    assert (out[:, :2] == np.arange(64)[:, None]).all()
    assert not out[:, 2:].any()
    error = used(HALF.format(guard="", stored="@%p1"), schedule=schedule)
    assert "shared address 0x408 is read" in error.message
    assert "%r9" in str(error.use)


# ------------------------------------------------------------------ where it is used

USES = {
    "stored": (" st.global.u32 [%rd1], %r4;\n", "st.global", "stored to global memory"),
    "branch": (" setp.eq.u32 %p2, %r4, 3;\n @%p2 bra END;\nEND:\n", "bra", "decides a branch"),
    "guard": (" setp.eq.u32 %p2, %r4, 3;\n @%p2 st.global.u32 [%rd1], %r1;\n", "st.global",
              "the predicate, of st"),
    "address": (" cvt.u64.u32 %rd4, %r4;\n add.s64 %rd4, %rd4, %rd1;\n"
                " st.global.u32 [%rd4], %r1;\n", "st.global", "is an address"),
    "atomic": (" atom.global.add.u32 %r6, [%rd1], %r4;\n", "atom", "operand"),
    "barrier": (" and.b32 %r6, %r4, 15;\n bar.sync %r6;\n", "bar.sync", "operand"),
    "lane": (" shfl.sync.idx.b32 %r6, %r1, %r4, 31, -1;\n", "shfl.sync", "which lane"),
    "carry": (" add.cc.u32 %r6, %r4, %r1;\n", "add.cc", "operand"),
    "released": (" st.release.cta.shared.u32 [%r3+2048], %r4;\n", "st.release", "other threads"),
    "product": (
        " mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f0, %f1, %f2, %f3},"
        " {%r4, %r4, %r4, %r4}, {%r1, %r1}, {%f4, %f4, %f4, %f4};\n", "mma.sync", "operand"),
    "sum": (
        " mov.b32 %f0, %r4;\n"
        " mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f0, %f1, %f2, %f3},"
        " {%r1, %r1, %r1, %r1}, {%r1, %r1}, {%f0, %f4, %f4, %f4};\n", "mma.sync", "operand"),
}  # fmt: skip
"""What uses %r4, the opcode, and what the value is there."""


@pytest.mark.parametrize("name", USES)
def test_a_use_is_a_fault(name):
    body, opcode, role = USES[name]
    error = used(LOAD + body, by=opcode)
    assert role in error.role
    assert "0x400" in error.message
    run(WRITE + " and.b32 %r9, %r1, 0;\n" + LOAD + " mov.b32 %r4, 0;\n" + body)


@pytest.mark.parametrize("name", USES)
def test_what_is_overwritten_is_defined_again(name):
    run(LOAD + " mov.b32 %r4, 0;\n" + USES[name][0])


def test_a_copy_out_of_shared_memory_uses_what_it_reads():
    copy = """
 {store}
 fence.proxy.async;
 bar.sync 0;
 setp.eq.u32 %p2, %r1, 0;
 mov.u32 %r8, smem;
 @%p2 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r8], 1024;
 @%p2 cp.async.bulk.commit_group;
 @%p2 cp.async.bulk.wait_group 0;
"""
    junk = " ld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%r3+1024];\n"
    whole = "st.shared.v4.b32 [%r3], {{%r1, {}, %r1, %r1}};"
    out = run(junk + copy.format(store=whole.format("%r1")))
    assert (out.reshape(64, 4) == np.arange(64)[:, None]).all()
    error = used(junk + copy.format(store=whole.format("%r5")), by="cp.async.bulk")
    place = int(error.message.split()[2], 16)
    assert 0x800 <= place < 0xC00


@pytest.mark.parametrize("accumulate", [False, True])
def test_operands_of_tensor_memory(accumulate):
    """Junk that was copied through tensor memory is junk there, if a product reads it."""
    sums = "eq" if accumulate else "ne"
    idesc = (1 << 4) | (4 << 17) | (8 << 24)  # f16, to f32; N = 32, M = 128
    text = kernel(
        allocate(64) + fill_shared(8192)
        + f"  tcgen05.ld.sync.aligned.32x32b.x1.b32 {registers(1)}, [%r5];\n"
        + "  tcgen05.wait::ld.sync.aligned;\n"
        + "".join(
            f"  add.u32 %r7, %r5, {n};\n"
            f"  tcgen05.st.sync.aligned.32x32b.x1.b32 [%r7], {registers(1)};\n"
            for n in range(32)
        )
        + "  tcgen05.wait::st.sync.aligned;\n  tcgen05.fence::before_thread_sync;\n  bar.sync 0;\n"
        "  tcgen05.fence::after_thread_sync;\n"
        f"  mov.u64 %rd3, {descriptor(2048, 128, 256)};\n"
        f"  mov.u64 %rd4, {descriptor(2048 + 4096, 128, 256)};\n"
        f"  mov.u32 %r12, {idesc};\n  setp.{sums}.u32 %p5, %r12, %r12;\n"
        "  @%p1 tcgen05.mma.cta_group::1.kind::f16 [%r4], %rd3, %rd4, %r12, %p5;\n"
        + commit_and_wait(0) + free(64)
    )  # fmt: skip
    nothing = np.zeros(4096, np.uint32)

    def launch():
        run_ptx(text, grid=1, block=128, args=[nothing, nothing.copy()],
                dynamic_smem_bytes=STATE + 16384)  # fmt: skip

    if not accumulate:
        launch()
        return
    with pytest.raises(
        UninitializedRead, match=r"lane \d+, column 0 is read by tcgen05.ld"
    ) as caught:
        launch()
    assert caught.value.instruction.opcode.startswith("tcgen05.ld")
    assert caught.value.use.opcode.startswith("tcgen05.mma")


# -------------------------------------------------------------- which way values go

PASSED_ON = {
    "bytes": " mov.b32 {%h1, %h2}, %r4;\n cvt.u32.u16 %r5, %h1;\n",
    "sum": " add.u32 %r5, %r4, %r1;\n",
    "zero": " mul.lo.u32 %r5, %r4, 0;\n",
    "and": " and.b32 %r5, %r4, 256;\n",
    "or": " or.b32 %r5, %r4, 1;\n",
    "chosen": " selp.b32 %r5, %r4, %r1, %p7;\n",
    "choice": " setp.eq.u32 %p2, %r4, 0;\n selp.b32 %r5, 1, 2, %p2;\n",
    "guarded": " mov.b32 %r5, 0;\n setp.eq.u32 %p2, %r4, 0;\n @%p2 mov.b32 %r5, 1;\n",
    "guarded, in some": " mov.b32 %r5, %r4;\n @%p1 mov.b32 %r5, 1;\n",
    "voted": " setp.eq.u32 %p2, %r4, 0;\n vote.sync.ballot.b32 %r5, %p2, -1;\n",
    "reduced": " redux.sync.add.u32 %r5, %r4, -1;\n",
    "shuffled": " shfl.sync.bfly.b32 %r5, %r4, 1, 31, -1;\n",
    "through shared memory": " st.shared.u32 [%r3], %r4;\n bar.sync 0;\n"
                             " ld.shared.u32 %r5, [%r3];\n",
    "through a byte": " st.shared.u8 [%r3+2], %r4;\n st.shared.u8 [%r3+3], 0;\n"
                      " st.shared.u16 [%r3], 0;\n ld.shared.u32 %r5, [%r3];\n",
    "through matrices": " stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r3], {%r4};\n"
                        " bar.warp.sync -1;\n"
                        " ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r5}, [%r3];\n",
    "generic": " cvt.u64.u32 %rd4, %r3;\n cvta.shared.u64 %rd4, %rd4;\n ld.u32 %r5, [%rd4];\n",
}  # fmt: skip
"""What makes %r5 of %r4, which is undefined."""
DROPPED = {
    "not used": " mov.b32 %r5, 1;\n",
    "other bytes": " mov.b32 %r6, {%h3, %h4};\n mov.b64 %rd4, {%r6, %r4};\n"
                   " mov.b64 {%r5, %r7}, %rd4;\n",
    "and": " and.b32 %r5, %r4, 0;\n",
    "or": " or.b32 %r5, %r4, -1;\n",
    "predicate": " setp.eq.u32 %p2, %r4, 0;\n setp.ne.u32 %p3, %r1, %r1;\n"
                 " and.pred %p4, %p2, %p3;\n mov.b32 %r5, 1;\n @%p4 st.global.u32 [%rd1], %r4;\n",
    "not chosen": " selp.b32 %r5, %r1, %r4, %p7;\n",
    "masked": " mov.b32 %r5, 1;\n @!%p7 st.global.u32 [%rd1], %r4;\n",
    "another lane's": " @%p7 mov.b32 %r6, %r1;\n and.b32 %r8, %r1, 1;\n"
                      " setp.eq.u32 %p2, %r8, 0;\n selp.b32 %r6, %r1, %r4, %p2;\n"
                      " shfl.sync.idx.b32 %r5, %r6, 2, 31, -1;\n",
    "written again": " st.shared.u32 [%r3], %r4;\n st.shared.u32 [%r3], %r1;\n"
                     " ld.shared.u32 %r5, [%r3];\n",
    "another matrix": " stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r3], {%r4, %r1};\n"
                      " bar.warp.sync -1;\n"
                      " ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r7, %r5}, [%r3];\n",
}  # fmt: skip
"""What makes a defined %r5, although %r4 is not."""


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", PASSED_ON)
def test_what_a_value_reaches(name, schedule):
    used(LOAD + PASSED_ON[name] + STORE, schedule=schedule)
    run(WRITE + " bar.sync 0;\n" + LOAD + PASSED_ON[name] + STORE, schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", DROPPED)
def test_what_a_value_does_not_reach(name, schedule):
    run(LOAD + DROPPED[name] + STORE, schedule)


def test_a_shuffle_names_the_thread_that_loaded():
    error = used(
        WRITE.replace(" st", " setp.ne.u32 %p2, %r1, 5;\n @%p2 st") + " mov.b32 %r5, 0;\n"
        + LOAD + " shfl.sync.idx.b32 %r5, %r4, 5, 31, -1;\n setp.eq.u32 %p3, %r1, 9;\n @%p3"
        + STORE
    )  # fmt: skip
    assert "shared address 0x450" in error.message
    assert error.where.endswith("warp 0, lane 5")
    assert error.used_where.endswith("warp 0, lane 9")


def test_a_value_that_another_block_sent():
    """Through the shared memory of a neighbour."""
    body = """
 mov.u32 %r10, %cluster_ctarank;
 xor.b32 %r11, %r10, 1;
 mapa.shared::cluster.u32 %r12, %r3, %r11;
 {load}
 barrier.cluster.arrive.aligned;
 barrier.cluster.wait.aligned;
 st.shared::cluster.u32 [%r12+2048], %r4;
 barrier.cluster.arrive.aligned;
 barrier.cluster.wait.aligned;
 ld.shared.u32 %r5, [%r3+2048];
 st.global.u32 [%rd1], %r5;
"""
    error = used(body.format(load=LOAD), clusters=2)
    assert "0x400" in error.message
    run(body.format(load=" mov.b32 %r4, 3;"), clusters=2)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_load_that_comes_too_early_is_still_a_race(schedule):
    """Its value is dropped, and yet nothing orders it before the store of the other warp."""
    body = """
 mov.b32 %r4, smem;
 @%p1 ld.shared.v4.b32 {%r5, %r6, %r7, %r8}, [%r4];
 @!%p1 st.shared.u32 [%r4], %r3;
"""
    with pytest.raises(SynchronizationFault, match="nothing orders"):
        run(body, schedule)


# --------------------------------------------------------------------------- laws

STEPS = {
    "add.u32 {d}, {a}, {b};": "all",
    "xor.b32 {d}, {a}, {b};": "all",
    "mad.lo.u32 {d}, {a}, {b}, {a};": "all",
    "mov.b32 {d}, {a};": "first",
    "selp.b32 {d}, {a}, {b}, %p7;": "first",
    "selp.b32 {d}, {b}, {a}, !%p7;": None,
    "st.shared.b32 [%r3+1024], {a};\n ld.shared.b32 {d}, [%r3+1024];": "first",
    "shfl.sync.bfly.b32 {d}, {a}, 3, 31, -1;": "first",
}
NAMES = [f"%r{n}" for n in range(20, 26)]
PROGRAMS = st.lists(
    st.tuples(
        st.sampled_from([text for text, reads in STEPS.items() if reads]),
        *[st.integers(0, 5)] * 3,
    ),
    max_size=12,
)


@given(PROGRAMS, st.integers(0, 5), st.sampled_from(SCHEDULES))
def test_a_value_raises_where_it_is_used_and_nowhere_else(program, stored, schedule):
    """Beside a model: a set of the registers that the first load reaches."""
    lines, undefined = [LOAD, " mov.b32 %r20, %r4;\n"], {0}
    lines += [f" mov.b32 {name}, {number};\n" for number, name in enumerate(NAMES) if number]
    for text, target, first, second in program:
        lines.append(" " + text.format(d=NAMES[target], a=NAMES[first], b=NAMES[second]) + "\n")
        read = {first, second} if STEPS[text] == "all" else {first}
        undefined = undefined | {target} if read & undefined else undefined - {target}
    body = "".join(lines)
    run(body, schedule, threads=32)
    kept = body + f" st.global.u32 [%rd1], {NAMES[stored]};\n"
    if stored in undefined:
        used(kept, schedule=schedule, threads=32)
    else:
        run(kept, schedule, threads=32)
    run(WRITE + kept, schedule, threads=32)
