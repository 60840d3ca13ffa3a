"""The emulator's engine: fibers, memory, clocks, barriers, schedules, launches."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest

from triton_ext.emulator import run_ptx
from triton_ext.emulator.clients.statistics import Statistics
from triton_ext.emulator.clients.trace import Trace, as_text
from triton_ext.emulator.decode.decoder import instruction, opcodes_of
from triton_ext.emulator.errors import (
    BarrierFault,
    ConvergenceFault,
    Deadlock,
    EmulationError,
    LaunchError,
    MemoryFault,
    SynchronizationFault,
    UninitializedRead,
    UnsupportedInstruction,
)

SCHEDULES = ("eager", "lazy", "random")


def ptx(body, parameters=".param .u64 a, .param .u64 b", shared="", directives=""):
    """A kernel with registers of every kind."""
    return f"""
.version 8.7
.target sm_100a
.address_size 64
.extern .shared .align 16 .b8 smem[];
{shared}
.visible .entry k({parameters})
{directives}
{{
 .reg .b16 %rs<20>;
 .reg .b32 %r<40>;
 .reg .b64 %rd<40>;
 .reg .pred %p<20>;
{body}
}}
"""


COPY = """
 ld.param.u64 %rd1, [a];
 ld.param.u64 %rd2, [b];
 mov.u32 %r1, %tid.x;
 cvt.u64.u32 %rd3, %r1;
 shl.b64 %rd4, %rd3, 2;
 add.s64 %rd5, %rd1, %rd4;
 add.s64 %rd6, %rd2, %rd4;
"""


def run(body, args, *, block=64, smem=256, schedule="eager", seed=0, **launch):
    keys = {key: launch.pop(key) for key in ("parameters", "shared", "directives") if key in launch}
    return run_ptx(
        ptx(body, **keys), grid=launch.pop("grid", 1), block=block, args=args,
        dynamic_smem_bytes=smem, schedule=schedule, seed=seed, **launch,
    )  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_divergent_threads_meet_again(schedule):
    """Odd threads take one way, even ones another, each lane its own number of loop rounds."""
    a, b = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    run(
        COPY
        + """
 and.b32 %r2, %r1, 1;
 setp.eq.u32 %p1, %r2, 0;
 mov.u32 %r5, 0;
 @%p1 bra EVEN;
 mov.u32 %r3, 1000;
 bra.uni JOIN;
EVEN:
 mov.u32 %r3, 2000;
JOIN:
 setp.ge.u32 %p2, %r5, %r1;
 @%p2 bra DONE;
 add.u32 %r5, %r5, 1;
 bra JOIN;
DONE:
 bar.sync 0;
 add.u32 %r3, %r3, %r5;
 st.global.u32 [%rd6], %r3;
 ret;""",
        [a, b],
        schedule=schedule,
    )
    assert b.tolist() == [(1000 if n % 2 else 2000) + n for n in range(64)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warps_that_exchange_through_named_barriers(schedule):
    """Warp 0 produces, warp 1 consumes: bar.arrive and bar.sync on two barriers, in a loop."""
    b = np.zeros(64, np.uint32)
    body = (
        COPY
        + """
 mov.u32 %r10, smem;
 and.b32 %r11, %r1, 31;
 shl.b32 %r12, %r11, 2;
 add.u32 %r13, %r10, %r12;
 mov.u32 %r5, 0;
 mov.u32 %r7, 0;
 setp.ge.u32 %p1, %r1, 32;
 @%p1 bra CONSUMER;
PRODUCER:
 add.u32 %r6, %r5, %r11;
 st.shared.u32 [%r13], %r6;
 bar.arrive 1, 64;
 bar.sync 2, 64;
 add.u32 %r5, %r5, 1;
 setp.lt.u32 %p2, %r5, 5;
 @%p2 bra PRODUCER;
 ret;
CONSUMER:
 bar.sync 1, 64;
 ld.shared.u32 %r6, [%r13];
 add.u32 %r7, %r7, %r6;
 bar.arrive 2, 64;
 add.u32 %r5, %r5, 1;
 setp.lt.u32 %p2, %r5, 5;
 @%p2 bra CONSUMER;
 st.global.u32 [%rd6], %r7;
 ret;
"""
    )
    run(body, [b.copy(), b], schedule=schedule)
    assert b[32:].tolist() == [10 + 5 * lane for lane in range(32)]


def fault(kind, body, *, match, **launch):
    a, b = np.zeros(64, np.uint32), np.zeros(64, np.uint32)
    with pytest.raises(kind, match=match) as caught:
        run(COPY + body, [a, b], **launch)
    return caught.value


def test_what_nothing_wrote_is_not_read():
    error = fault(
        UninitializedRead,
        " mov.u32 %r2, smem;\n ld.shared.u32 %r3, [%r2+64];\n st.global.u32 [%rd6], %r3;\n ret;",
        match=r"0x440 is read, and nothing wrote it",
    )  # fmt: skip
    assert error.instruction.opcode == "ld.shared.u32"
    assert error.use.opcode == "st.global.u32"
    assert str(error).count("block (0, 0, 0), warp 0, lane 0") == 2


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("at", [0, 4, 12])
def test_a_store_over_what_another_warp_may_still_read(at, schedule):
    """Of each 16 bytes warp 0 reads one word, which warp 1 then writes."""
    body = f"""
 mov.u32 %r2, smem;
 shl.b32 %r3, %r1, 4;
 add.u32 %r4, %r2, %r3;
 st.shared.v4.u32 [%r4], {{%r1, %r1, %r1, %r1}};
 bar.sync 1, 64;
 setp.lt.u32 %p1, %r1, 32;
 @%p1 ld.shared.u32 %r5, [%r4+{at}];
 @%p1 st.global.u32 [%rd6], %r5;
 barrier
 @!%p1 st.shared.u32 [%r4+{at - 512}], %r1;
 ret;"""
    b = np.zeros(64, np.uint32)
    with pytest.raises(SynchronizationFault, match=r"was read by|and nothing orders the two"):
        run(COPY + body.replace("barrier", ""), [b, b], smem=1024, schedule=schedule)
    run(COPY + body.replace("barrier", "bar.sync 0;"), [b, b], smem=1024, schedule=schedule)
    assert b[:32].tolist() == list(range(32))


def test_a_missing_barrier_between_warps():
    """Each thread reads what a thread of the other warp wrote."""
    body = """
 mov.u32 %r2, smem;
 shl.b32 %r3, %r1, 2;
 add.u32 %r4, %r2, %r3;
 st.shared.u32 [%r4], %r1;
 {barrier}
 xor.b32 %r5, %r3, 128;
 add.u32 %r6, %r2, %r5;
 ld.shared.u32 %r7, [%r6];
 st.global.u32 [%rd6], %r7;
 ret;"""
    fault(
        SynchronizationFault, body.replace("{barrier}", ""),
        match="is read, and was written by warp 1, and nothing orders the two",
    )  # fmt: skip
    b = np.zeros(64, np.uint32)
    run(COPY + body.replace("{barrier}", "bar.sync 0;"), [b.copy(), b])
    assert b.tolist() == [n ^ 32 for n in range(64)]


def test_memory_faults():
    fault(MemoryFault, " ld.global.u32 %r3, [%rd1+256];\n ret;", match="0 bytes past the end")
    fault(MemoryFault, " ld.global.u32 %r3, [%rd1+2];\n ret;", match="not a multiple of .* 4 bytes")
    fault(
        MemoryFault, " mov.u32 %r2, smem;\n st.shared.u32 [%r2+256], %r1;\n ret;",
        match="outside of the block's 256 bytes",
    )  # fmt: skip
    fault(MemoryFault, " mov.u32 %r2, 8;\n st.shared.u32 [%r2], %r1;\n ret;", match="outside")


def test_deadlock_says_who_waits():
    """Warp 1 never comes to the barrier: it waits at another one."""
    error = fault(
        Deadlock,
        """
 setp.ge.u32 %p1, %r1, 32;
 @%p1 bra OTHER;
 bar.sync 1, 64;
 ret;
OTHER:
 bar.sync 2, 64;
 ret;""",
        match="no thread can go on",
    )
    assert "warp 0 at PTX line" in str(error)
    assert "barrier 2: 32 of 64 threads arrived" in str(error)


def test_barrier_misuse():
    fault(BarrierFault, " bar.sync 16;\n ret;", match="a block has 16")
    fault(BarrierFault, " bar.sync 1, 33;\n ret;", match="not whole warps")
    fault(BarrierFault, " bar.sync 1, 32;\n ret;", match="64 threads arrive .* expects 32")


def test_an_endless_loop_is_found():
    error = fault(Deadlock, "L: bra L;", match="no memory or barrier changes any more")
    assert "runs without end" in str(error)


def test_half_a_warp_at_a_barrier():
    fault(
        ConvergenceFault,
        """
 setp.lt.u32 %p1, %r1, 16;
 @%p1 bra HALF;
 bar.sync 1, 64;
 ret;
HALF:
 bar.sync 2, 64;
 ret;""",
        match="must execute this instruction together",
    )


def test_unsupported_is_said_before_anything_runs():
    b = np.zeros(64, np.uint32)
    for body, match in (
        (" frob.u32 %r1, %r2;", "does not model this instruction"),
        (" ld.global.frob.u32 %r1, [%rd1];", "modifier .frob"),
        (" st.global.u32 [%rd1], %q7;", "'%q7' is not understood"),
        (" bra NOWHERE;", "no label 'NOWHERE'"),
    ):
        with pytest.raises(UnsupportedInstruction, match=match) as caught:
            run(COPY + " st.global.u32 [%rd6], 1;\n" + body + "\n ret;", [b, b])
        assert caught.value.instruction.line > 0
    assert not b.any()


def test_launch_rules():
    b = np.zeros(64, np.uint32)
    for arguments, match in (
        ({"block": 1025}, r"at most \(1024, 1024, 64\)"),
        ({"block": 0}, "positive integers"),
        ({"block": 64, "directives": ".reqntid 128, 1, 1"}, "reqntid"),
        ({"smem": 1 << 20}, "dynamic_smem_bytes"),
        ({"cluster": 32}, "at most 16"),
        ({"grid": 3, "cluster": 2}, "not a multiple"),
        ({"schedule": "sometimes"}, "eager"),
    ):
        with pytest.raises(LaunchError, match=match):
            run(COPY + " ret;", [b, b], **arguments)
    for args, match in (
        ([b], "1 arguments for the 2"),
        ([b, "text"], "str for a parameter"),
        ([b, b[::2]], "contiguous"),
        ([b, bytes(4)], "4 bytes for a parameter of 8"),
    ):
        with pytest.raises(LaunchError, match=match):
            run(COPY + " ret;", args)


def test_grid_cluster_and_special_registers():
    out = np.zeros(24, np.uint32)
    body = """
 ld.param.u64 %rd1, [a];
 mov.u32 %r1, %ctaid.x;
 mov.u32 %r2, %ctaid.y;
 mov.u32 %r3, %nctaid.x;
 mov.u32 %r4, %cluster_ctarank;
 mov.u32 %r5, %clusterid.x;
 mul.lo.u32 %r6, %r2, %r3;
 add.u32 %r6, %r6, %r1;
 mul.wide.u32 %rd2, %r6, 4;
 add.s64 %rd3, %rd1, %rd2;
 shl.b32 %r7, %r5, 8;
 or.b32 %r7, %r7, %r4;
 mov.u32 %r8, %smid;
 shl.b32 %r8, %r8, 16;
 or.b32 %r7, %r7, %r8;
 st.global.u32 [%rd3], %r7;
 ret;"""
    run(body, [out], grid=(8, 3), cluster=2, block=1, parameters=".param .u64 a")
    assert (out & 0xFFFF).reshape(3, 8).tolist() == [[(x // 2) << 8 | x % 2 for x in range(8)]] * 3
    assert (out >> 16).tolist() == list(
        range(24)
    )  # the blocks of a cluster are on SMs of their own


def test_arguments_and_module_variables():
    out = np.zeros(6, np.uint32)
    body = """
 ld.param.u64 %rd1, [a];
 ld.param.u32 %r1, [n];
 ld.param.f32 %r2, [x];
 ld.param.v2.u32 {%r3, %r4}, [s+8];
 ld.global.u32 %r5, [table+4];
 st.global.v4.u32 [%rd1], {%r1, %r2, %r3, %r4};
 st.global.u32 [%rd1+16], %r5;
 mov.b64 %rd2, {%r3, %r4};
 mov.b64 {%r6, _}, %rd2;
 st.global.u32 [%rd1+20], %r6;
 ret;"""
    run(
        body, [np.concatenate([out, out])[:6], -5, 1.5, bytes(range(16))], block=1,
        parameters=".param .u64 a, .param .u32 n, .param .f32 x, .param .align 8 .b8 s[16]",
        shared=".global .align 4 .u32 table[3] = {7, 0x1F, 9};",
    )  # fmt: skip
    data = np.zeros(6, np.uint32)
    run(
        body, [data, -5, 1.5, bytes(range(16))], block=1,
        parameters=".param .u64 a, .param .u32 n, .param .f32 x, .param .align 8 .b8 s[16]",
        shared=".global .align 4 .u32 table[3] = {7, 0x1F, 9};",
    )  # fmt: skip
    assert data.view(np.int32)[0] == -5
    assert data.view(np.float32)[1] == 1.5
    assert data[2:].tolist() == [0x0B0A0908, 0x0F0E0D0C, 31, 0x0B0A0908]


def test_a_pointer_in_a_structure():
    """As CuTe's kernels have them: passed by value, with the address of a buffer in it."""
    body = """
 ld.param.u64 %rd1, [s+8];
 ld.global.u32 %r1, [%rd1];
 add.u32 %r1, %r1, 1;
 st.global.u32 [%rd1], %r1;
 ret;"""
    data = np.array([41], np.uint32)
    structure = bytes(8) + int(data.ctypes.data).to_bytes(8, "little")
    parameters = ".param .align 8 .b8 s[16]"
    with pytest.raises(MemoryFault, match="is in no allocation"):
        run(body, [structure], block=1, parameters=parameters)
    with pytest.raises(MemoryFault, match=r"of this launch; it is a null pointer, and 8 bytes\n"):
        run(body, [bytes(8) + (8).to_bytes(8, "little")], block=1, parameters=parameters)
    run(body, [structure], block=1, parameters=parameters, buffers=[data])
    assert data[0] == 42
    with pytest.raises(LaunchError, match="buffers: int is no array"):
        run(body, [structure], block=1, parameters=parameters, buffers=[7])


def test_local_and_generic_memory():
    """A generic pointer into each thread's own memory, and one into shared memory."""
    b = np.zeros(64, np.uint32)
    body = (
        COPY
        + """
 .local .align 8 .b8 depot[16];
 mov.u64 %rd10, depot;
 cvta.local.u64 %rd11, %rd10;
 st.u32 [%rd11+4], %r1;
 ld.local.u32 %r2, [depot+4];
 mov.u32 %r3, smem;
 cvt.u64.u32 %rd12, %r3;
 cvta.shared.u64 %rd13, %rd12;
 add.s64 %rd13, %rd13, %rd4;
 st.u32 [%rd13], %r2;
 cvta.to.shared.u64 %rd14, %rd13;
 cvt.u32.u64 %r4, %rd14;
 ld.shared.u32 %r5, [%r4];
 add.u32 %r5, %r5, %r2;
 st.u32 [%rd6], %r5;
 ret;"""
    )
    run(body, [b.copy(), b])
    assert b.tolist() == [2 * n for n in range(64)]


def test_traces_and_statistics():
    lines, statistics = [], Statistics()
    b = np.zeros(64, np.uint32)
    body = (
        COPY
        + """
 mov.u32 %r2, smem;
 shl.b32 %r3, %r1, 3;
 add.u32 %r4, %r2, %r3;
 st.shared.u32 [%r4], %r1;
 st.global.u32 [%rd6], %r1;
 ret;"""
    )
    trace = Trace(lines.append, r"st\.(global|shared)")
    run(body, [b, b], smem=512, observer=trace)
    trace.close()
    assert len(lines) == 2
    (shared,), (stored,) = lines[0]["accesses"], lines[1]["accesses"]
    assert shared["addresses"] == [1024 + 8 * lane for lane in range(64)]
    assert stored["addresses"] == [b.ctypes.data + 4 * lane for lane in range(64)]
    first, second = as_text(lines[1])
    assert "warps 0, 1 (64 threads): st.global.u32 [%rd6], %r1" in first
    assert "writes 64 x 4 bytes, global: byte 0 of b" in second
    run(body, [b, b], smem=512, observer=statistics)
    found = statistics.as_object()
    assert found["by_opcode"]["st.shared.u32"] == 2
    assert found["bytes"] == {"global store": 256, "param load": 1024, "shared store": 256}
    # a stride of 8 bytes: 32 lanes use every second bank twice
    assert found["shared_memory"] == {"wavefronts": 4, "ideal_wavefronts": 2}


def test_errors_are_one_family():
    for kind in (MemoryFault, Deadlock, LaunchError, UnsupportedInstruction):
        assert issubclass(kind, EmulationError)


# ------------------------------------------------------------------- the package


@pytest.mark.parametrize("module", ["errors", "host.pytest_plugin"])
def test_what_every_process_imports_does_not_load_the_emulator(module):
    script = f"""
import sys
import triton_ext.emulator.{module}
print(*(name for name in sys.modules if name.startswith("triton_ext.emulator.")))
"""
    command = [sys.executable, "-c", script]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    rooms = {name.split(".")[2] for name in loaded}
    assert rooms == {"errors", module.split(".")[0]}


def test_an_opcode_has_one_decoder():
    module = ModuleType("a module with two decoders")

    def decode(at, modifiers, operands):
        raise AssertionError("not called")

    decode.__module__ = module.__name__
    instruction("frob.once", evidence="document")(decode)
    assert set(opcodes_of([module])) == {"frob.once"}
    instruction("frob.once", evidence="document", convergent=True)(decode)
    with pytest.raises(ValueError, match=r"frob\.once has two decoders"):
        opcodes_of([module])


@pytest.mark.parametrize("wrong", [512, 2, 1 << 22], ids=["one past the end", "misaligned", "far"])
@pytest.mark.parametrize("space", ["global", "shared", ""], ids=["global", "shared", "generic"])
def test_the_thread_whose_access_is_wrong_is_named(space, wrong):
    """One thread of a block reads or writes where it must not; the others do what is right."""
    for number, access in enumerate(("ld.{}u32 %r9, [{}];", "st.{}u32 [{}], %r1;")):
        thread = 5 + 37 * number
        wide = space != "shared"
        where = access.format(space and f"{space}.", "%rd2" if wide else "%r4")
        base = "add.u64 %rd2, %rd1, %rd3;" if wide else "mov.u32 %r5, smem; add.u32 %r4, %r5, %r3;"
        text = ptx(f"""
 ld.param.u64 %rd1, [a];
 mov.u32 %r1, %tid.x;
 mov.u32 %r7, smem;
 shl.b32 %r3, %r1, 2;
 add.u32 %r7, %r7, %r3;
 st.shared.u32 [%r7], %r1;
 bar.sync 0;
 setp.eq.u32 %p1, %r1, {thread};
 @%p1 mov.u32 %r3, {wrong};
 cvt.u64.u32 %rd3, %r3;
 {base}
 {where}
 ret;
""")
        a = np.zeros(128, np.uint32)
        with pytest.raises(MemoryFault) as caught:
            run_ptx(text, grid=1, block=128, args=[a, a], dynamic_smem_bytes=512)
        assert caught.value.where == f"block (0, 0, 0), warp {thread // 32}, lane {thread % 32}"
