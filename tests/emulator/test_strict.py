"""What is undefined by the letter: a fault if strict, else run as hardware runs it, and said."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from click.testing import CliRunner
from silicon.copy_cases import INIT, module

from triton_ext.cli import main
from triton_ext.emulator import run_ptx
from triton_ext.emulator.errors import (
    BarrierFault,
    DescriptorFault,
    EmulationError,
    MemoryFault,
    SynchronizationFault,
    TensorMemoryFault,
    UndefinedBehaviour,
)
from triton_ext.emulator.state.leniencies import LENIENCIES

SCHEDULES = ("eager", "lazy", "random")
ONE_CTA = "cta_group::1.sync.aligned"
ALLOCATE = f"""
 setp.lt.u32 %p2, %r0, 32;
 @%p2 tcgen05.alloc.{ONE_CTA}.shared::cta.b32 [%r1], 32;
 bar.sync 0;
 ld.shared.u32 %r9, [%r1];
"""
FREE = f"""
 bar.sync 0;
 @%p2 tcgen05.dealloc.{ONE_CTA}.b32 %r9, 32;
"""
OUT = """
 mul.wide.u32 %rd3, %r0, 4;
 add.u64 %rd3, %rd3, %rd1;
 st.global.u32 [%rd3], %r20;
"""
QUARTER = f"""{ALLOCATE}
 tcgen05.st.sync.aligned.32x32b.x1.b32 [%r9], {{{{%r0}}}};
 tcgen05.wait::st.sync.aligned;
 shr.u32 %r10, %r0, 5;
 shl.b32 %r10, %r10, 21;
 add.u32 %r10, %r10, %r9;
 tcgen05.ld.sync.aligned.32x32b.x1.b32 {{{{%r20}}}}, [%r10];
 tcgen05.wait::ld.sync.aligned;
{FREE}{OUT}"""
"""Stores to lane 0 in all warps, and loads from where each warp's quarter is."""
OWN_LANES = """
 shr.u32 %r10, %r0, 5;
 shl.b32 %r10, %r10, 21;
 add.u32 %r10, %r10, %r9;
 tcgen05.st"""
OWN = QUARTER.format().replace(" tcgen05.st", OWN_LANES, 1).replace("[%r9], {", "[%r10], {")
LANE = OWN.replace("tcgen05.ld", "or.b32 %r10, %r10, 0x800000;\n tcgen05.ld")
"""Loads from lanes 128 to 255."""
ADDRESS = f"""
 setp.lt.u32 %p2, %r0, 32;
 cvt.u64.u32 %rd4, %r1;
 add.u64 %rd5, %rd4, 16;
 {{convert}}
 @%p1 mbarrier.init.shared.b64 [%r1+16], 1;
 bar.sync 0;
 @%p2 tcgen05.alloc.{ONE_CTA}{{alloc}}.b32 [%rd4], 32;
 @%p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one{{commit}}.b64 [%rd5];
 bar.sync 0;
WAIT:
 mbarrier.try_wait.parity.shared.b64 %p3, [%r1+16], 0;
 @!%p3 bra WAIT;
 ld.shared.u32 %r9, [%r1];
 mov.u32 %r20, %r0;
{FREE}{OUT}"""
GENERIC = ADDRESS.format(
    convert="cvta.shared.u64 %rd4, %rd4; cvta.shared.u64 %rd5, %rd5;",
    alloc=".shared::cta", commit=".shared::cluster",
)  # fmt: skip
BARE = ADDRESS.format(convert="", alloc="", commit="")
LEGAL = ADDRESS.format(convert="", alloc=".shared::cta", commit=".shared::cluster")
REMOTE = """
 mov.u32 %r50, %cluster_ctarank;
 setp.eq.u32 %p4, %r50, 0;
 and.pred %p5, %p4, %p1;
 @%p1 mbarrier.init.shared.b64 [%r1], 1;
 fence.mbarrier_init.release.cluster;
 barrier.cluster.arrive.aligned;
 barrier.cluster.wait.aligned;
 mapa.shared::cluster.u32 %r10, %r1, 1;
 @%p5 st.shared::cluster.u32 [%r10+64], 7;
 @%p5 mbarrier.arrive{}.shared::cluster.b64 _, [%r10];
 @%p4 bra DONE;
WAIT:
 mbarrier.try_wait.parity.shared.b64 %p3, [%r1], 0;
 @!%p3 bra WAIT;
 ld.shared.u32 %r20, [%r1+64];
 add.u32 %r20, %r20, %r0;
 sub.u32 %r20, %r20, 7;
""" + OUT + """
DONE:
 barrier.cluster.arrive.aligned;
 barrier.cluster.wait.aligned;
"""  # fmt: skip
FILL = "".join(
    f" st.shared.v4.b32 [%r11+{at}], {{{{%r20, %r20, %r20, %r20}}}};\n"
    for at in range(0, 16384, 2048)
)
VERSION_0 = f"""{ALLOCATE}
 @%p1 mbarrier.init.shared.b64 [%r1+16], 1;
 mov.u32 %r20, 0;
 shl.b32 %r11, %r0, 4;
 add.u32 %r11, %r11, %r2;
{FILL} fence.proxy.async.shared::cta;
 bar.sync 0;
 shr.u32 %r12, %r2, 4;
 cvt.u64.u32 %rd5, %r12;
 or.b64 %rd5, %rd5, {{descriptor}};
 mov.b32 %r13, 0x08040010;
 setp.ne.u32 %p6, 0, 0;
 @%p1 tcgen05.mma.cta_group::1.kind::f16 [%r9], %rd5, %rd5, %r13, %p6;
 @%p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+16];
WAIT:
 mbarrier.try_wait.parity.shared.b64 %p3, [%r1+16], 0;
 @!%p3 bra WAIT;
 shr.u32 %r10, %r0, 5;
 shl.b32 %r10, %r10, 21;
 add.u32 %r10, %r10, %r9;
 tcgen05.ld.sync.aligned.32x32b.x1.b32 {{{{%r20}}}}, [%r10];
 tcgen05.wait::ld.sync.aligned;
 add.u32 %r20, %r20, %r0;
{FREE}{OUT}"""
RELAXED = (
    """
 xor.b32 %r11, %r0, 127;
 shl.b32 %r12, %r0, 2;
 add.u32 %r12, %r12, %r2;
 st.shared.u32 [%r12], %r0;
 barrier.cluster.arrive.relaxed.aligned;
 barrier.cluster.wait.aligned;
 shl.b32 %r12, %r11, 2;
 add.u32 %r12, %r12, %r2;
 ld.shared.u32 %r20, [%r12];
 sub.u32 %r20, 127, %r20;
"""
    + OUT
)
LAST_STORE = """
 st.shared.u32 [%r2], %r0;
 shl.b32 %r11, %r0, 2;
 add.u32 %r11, %r11, %r2;
 st.shared.u32 [%r11], %r0;
 fence.proxy.async.shared::cta;
 bar.sync 0;
 @%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 512;
 @%p1 cp.async.bulk.commit_group;
"""
LAST_STORE = LAST_STORE.replace(" st.shared.u32 [%r2], %r0;\n", "", 1)
EVERYBODY = (
    """
 mbarrier.init.shared.b64 [%r1], {count};
 {rendezvous}
 @%p1 mbarrier.arrive.shared.b64 _, [%r1];
WAIT:
 mbarrier.try_wait.parity.shared.b64 %p3, [%r1], 0;
 @!%p3 bra WAIT;
 mov.u32 %r20, %r0;
"""
    + OUT
)
"""All threads initialise one mbarrier."""
TWICE = (
    """
 mov.u32 %r20, 0;
 shl.b32 %r11, %r0, 2;
 add.u32 %r11, %r11, %r2;
 st.shared.u32 [%r11], %r0;
 setp.lt.u32 %p2, %r0, 32;
 @%p2 bar.arrive 1, 160;
 bar.sync 1, 160;
 xor.b32 %r12, %r0, 96;
 shl.b32 %r11, %r12, 2;
 add.u32 %r11, %r11, %r2;
 ld.shared.u32 %r20, [%r11];
 xor.b32 %r20, %r20, 96;
"""
    + OUT
)
"""Warp 0 arrives twice, and all read what another warp wrote."""
SWAPS = (
    """
 mov.u32 %r20, 0;
 @%p1 st.shared.u32 [%r2], %r20;
 bar.sync 0;
 LOAD.shared.u32 %r20, [%r2];
TURN:
 add.u32 %r21, %r20, 1;
 mov.u32 %r22, %r20;
 atom.shared.cas.b32 %r20, [%r2], %r22, %r21;
 setp.ne.u32 %p2, %r20, %r22;
 @%p2 bra TURN;
 bar.sync 0;
 ld.shared.u32 %r20, [%r2];
 sub.u32 %r20, %r20, 128;
 add.u32 %r20, %r20, %r0;
"""
    + OUT
)
"""All threads count by compare-and-swap."""
ZERO, ONE = "0x4000004000010000", "0x4000404000010000"
# rule, kernel, blocks, what it is if strict, part of the message
CASES = [
    ("tensor-memory-quarter", QUARTER.format(), 1, TensorMemoryFault, "may access lanes 32 to 63"),
    ("tensor-memory-lane", LANE, 1, TensorMemoryFault, "at lane 128 by warp 0, which may access"),
    ("relaxed-barrier", RELAXED, 1, SynchronizationFault, r"arrive\.relaxed.* releases nothing"),
    ("alloc-commit-address", GENERIC, 1, MemoryFault, "generic address, where a shared one"),
    ("alloc-commit-address", BARE, 1, MemoryFault, "a generic one is due"),
    ("descriptor-version", VERSION_0.format(descriptor=ZERO), 1, DescriptorFault, "must be 1"),
    ("last-store", LAST_STORE, 1, SynchronizationFault, "has not waited"),
    (
        "mbarrier-init-again",
        EVERYBODY.format(count=1, rendezvous="bar.sync 0;"),
        1,
        BarrierFault,
        "where one is live",
    ),
    ("barrier-twice", TWICE, 1, BarrierFault, "a thread arrives twice at barrier 1"),
    ("swap-loop", SWAPS.replace("LOAD", "ld"), 1, SynchronizationFault, "was read by|written by"),
    ("remote-scope", REMOTE.format(""), 2, SynchronizationFault, r"at \.cta scope"),
    ("remote-scope", REMOTE.format(".release.cta"), 2, SynchronizationFault, r"at \.cta scope"),
]
GOOD = [
    (LEGAL, 1),
    (OWN, 1),
    (RELAXED.replace(".relaxed", ""), 1),
    (VERSION_0.format(descriptor=ONE), 1),
    (LAST_STORE + " @%p1 cp.async.bulk.wait_group.read 0;", 1),
    (REMOTE.format(".release.cluster"), 2),
    (SWAPS.replace("LOAD", "ld.relaxed.cta"), 1),
]


def run(body: str, blocks: int, **options) -> np.ndarray:
    out = np.zeros(128, np.uint32)
    text = module(".param .u64 out", f"{INIT} ld.param.u64 %rd1, [out];\n{body}", "sm_100a")
    run_ptx(
        text, grid=blocks, cluster=blocks, block=128, args=[out], dynamic_smem_bytes=17408,
        **options,
    )  # fmt: skip
    return out


def test_every_rule_has_a_case():
    elsewhere = {"thread-sync-fence"}  # tests/emulator/test_missed_faults.py
    assert {name for name, *_ in CASES} | elsewhere == {rule.name for rule in LENIENCIES}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("rule", "body", "blocks", "fault", "message"), CASES)
def test_what_hardware_runs(rule, body, blocks, fault, message, schedule):
    with pytest.warns(UndefinedBehaviour) as said:
        out = run(body, blocks, schedule=schedule)
    assert (out == np.arange(128)).all()
    assert [f"undefined [{rule}]" in str(each.message) for each in said] == [True]
    with pytest.raises(fault, match=message):
        run(body, blocks, schedule=schedule, strict=True)


@pytest.mark.parametrize(("body", "blocks"), GOOD)
def test_what_is_defined_is_not_spoken_of(body, blocks):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for strict in (False, True):
            assert (run(body, blocks, strict=strict) == np.arange(128)).all()


def test_another_wrong_quarter_is_a_fault_in_both_modes():
    """Warp 2 names the lanes of warp 1, and the others their own."""
    own = "shr.u32 %r11, %r0, 5;\n setp.eq.u32 %p7, %r11, 2;\n @%p7 sub.u32 %r11, %r11, 1;\n"
    own += " shl.b32 %r11, %r11, 21;\n add.u32 %r9, %r9, %r11;\n"
    shifted = QUARTER.format().replace("tcgen05.st", own + " tcgen05.st", 1)
    for strict in (False, True):
        with pytest.raises(TensorMemoryFault, match="at lane 32 by warp 2, which may access"):
            run(shifted, 1, strict=strict)


@pytest.mark.parametrize(
    ("count", "rendezvous", "fault"),
    [
        ("1", "", SynchronizationFault),  # used before the last thread has initialised it
        ("%r0", "bar.sync 0;", BarrierFault),  # as many counts as threads
    ],
)
def test_an_mbarrier_initialised_again_in_another_way_is_a_fault(count, rendezvous, fault):
    text = EVERYBODY.format(count=count, rendezvous=rendezvous).replace("[%r1], %r0", "[%r1], %r9")
    text = " add.u32 %r9, %r0, 1;\n" + text
    for schedule in SCHEDULES:
        with pytest.raises((fault, BarrierFault)):
            run(text, 1, schedule=schedule)


def test_tensor_memory_that_is_freed_behind_a_relaxed_barrier():
    barrier = (
        " barrier.cluster.arrive{}.aligned;\n barrier.cluster.wait.aligned;\n @%p2 tcgen05.dealloc"
    )
    body = OWN.replace("bar.sync 0;\n @%p2 tcgen05.dealloc", barrier)
    assert (run(body.replace("{}", ""), 1) == np.arange(128)).all()
    with pytest.raises(SynchronizationFault, match=r"is freed.*arrive\.relaxed.* releases nothing"):
        run(body.replace("{}", ".relaxed"), 1)


def test_a_race_is_one_in_both_modes():
    for strict in (False, True):
        with pytest.raises(EmulationError):
            run(LAST_STORE.replace(" bar.sync 0;", ""), 1, strict=strict)


# ------------------------------------------------------------------- every door

SCRIPT = """
import warnings
import numpy as np
import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma, fence_async_shared
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global

@gluon.jit
def kernel(desc):
    shared = gl.allocate_shared_memory(desc.dtype, desc.block_type.shape, desc.layout)
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    shared.store(gl.full([16, 64], 3.0, gl.float16, layout))
    fence_async_shared()
    store(desc, [0, 0], shared)

x = torch.zeros(16, 64, dtype=torch.float16)
layout = gl.NVMMASharedLayout.get_default_for([16, 64], gl.float16)
for _ in range(2):
    kernel[(1,)](TensorDescriptor.from_tensor(x, [16, 64], layout), num_warps=4)
print((x == 3).all().item())
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("strict") / "last_store.py"
    path.write_text(SCRIPT)
    return str(path)


def command(*arguments):
    return CliRunner().invoke(main, ["run", "--emulate", "sm_90", *arguments])


def test_the_command(script):
    with pytest.warns(UndefinedBehaviour, match="last-store") as said:
        found = command(script)
    assert (found.exit_code, found.stdout) == (0, "True\n")
    (warning,) = (each for each in said if each.category is UndefinedBehaviour)  # of two launches
    assert warning.filename == script
    strict = command("--strict", script)
    assert strict.exit_code == 1
    assert "SynchronizationFault: the block ends" in strict.stderr


def test_a_machine_reads_what_was_taken_and_what_is_a_fault(script):
    found = command("--format", "json", script)
    told = json.loads(found.stderr)
    assert (found.exit_code, told["version"], told["launches"], told["faults"]) == (0, 1, 2, {})
    assert list(told["undefined"]) == ["last-store"]
    assert set(told["undefined"]["last-store"]) >= {"undefined", "document", "evidence"}
    strict = command("--strict", "--format", "json", script)
    told = json.loads(strict.stderr[strict.stderr.index("{\n") :])
    assert (told["faults"], told["undefined"]) == ({"SynchronizationFault": 1}, {})
    log = json.loads(command("--format", "sarif", script).stdout)
    (result,) = log["runs"][0]["results"]
    assert (result["ruleId"], result["level"]) == ("undefined/last-store", "warning")
