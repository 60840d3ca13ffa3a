"""Everything ends, and in a typed error: limits, interruptions, arguments and texts of any kind."""

from __future__ import annotations

import math
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from sites import ROOT

from triton_ext.emulator import run_ptx
from triton_ext.emulator.errors import (
    Deadlock,
    EmulationError,
    LaunchError,
    LimitReached,
    MemoryFault,
    UnsupportedInstruction,
)
from triton_ext.emulator.schedule import limits
from triton_ext.emulator.schedule.observers import Observer
from triton_ext.errors import LayoutError

SCHEDULES = ("eager", "lazy", "random")


def ptx(body, parameters=".param .u64 x", before="", target="sm_100a"):
    return f"""
.version 8.7
.target {target}
.address_size 64
.extern .shared .align 16 .b8 smem[];
{before}
.visible .entry k({parameters})
{{
 .reg .b32 %r<10>;
 .reg .b64 %rd<10>;
 .reg .pred %p<10>;
 ld.param.u64 %rd1, [x];
 mov.u32 %r1, %tid.x;
{body}
 ret;
}}
"""


def run(body, x=None, *, grid=1, block=64, smem=64, **options):
    keys = {key: options.pop(key) for key in ("before", "target") if key in options}
    x = np.zeros(64, np.uint32) if x is None else x
    text = ptx(body, **keys)
    options = {"check_races": False} | options  # many bodies let all threads store to one place
    return run_ptx(text, grid=grid, block=block, args=[x], dynamic_smem_bytes=smem, **options)


def in_forks(monkeypatch):
    """Also small launches are spread over two cores."""
    monkeypatch.setattr("triton_ext.emulator.schedule.parallel.WORTH_FORKING", -1)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})


# ------------------------------------------------------------------------------ loops and waits

BARRIER = """
 mov.u32 %r9, smem;
 setp.ne.u32 %p3, %r1, 0;
 @%p3 bra MADE;
 mbarrier.init.shared.b64 [%r9], 1;
MADE:
 bar.sync 0;
 setp.ge.u32 %p1, %r1, 32;
 @%p1 bra OTHER;
"""
FLAG = "ld.volatile.global.u32 %r2, [%rd1]; setp.ne.u32 %p2, %r2, 0;"
PHASE = "mbarrier.test_wait.parity.shared.b64 %p2, [%r9], 0;"
SET_FLAG = "mov.u32 %r3, 1; st.volatile.global.u32 [%rd1], %r3;"
ARRIVE = "setp.ne.u32 %p4, %r1, 32; @%p4 bra END; mbarrier.arrive.shared.b64 _, [%r9];"
ONE_ASKS = "setp.ne.u32 %p5, %r1, 0; @%p5 bra MEET; {asks} MEET: bar.warp.sync -1;"


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("asks", "answers"), [(FLAG, SET_FLAG), (PHASE, ARRIVE)], ids=["flag", "mbarrier"]
)
@pytest.mark.parametrize("other_first", [False, True])
def test_who_waits_in_a_loop_lets_the_others_go_on(asks, answers, other_first, schedule):
    """Wherever in the text the waiting loop is."""
    loop = f"SPIN: {asks} @!%p2 bra SPIN; bra END;"
    work = f"{answers} bra END;"
    both = f"{work} OTHER: {loop}" if other_first else f"{loop} OTHER: {work}"
    if other_first:
        both = both.replace("%r1, 32;", "%r1, 0;")
    run(BARRIER + both + "END:", schedule=schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "loop",
    [
        "L: bra L;",
        f"L: {FLAG} @!%p2 bra L;",
        f"L: {PHASE} @!%p2 bra L;",
        "L: xor.b32 %r4, %r4, 1; nanosleep.u32 100; bra L;",
        "L: setp.ne.u32 %p5, %r1, 0; @%p5 bra M; ld.global.u32 %r2, [%rd1]; M: bra L;",
    ],
    ids=["empty", "flag", "mbarrier", "two-states", "one-asks"],
)
@pytest.mark.parametrize("other", ["", "W: mbarrier.try_wait.parity.shared.b64 %p6, [%r9], 0;"
                         " @!%p6 bra W;", "V: bra V;"], ids=["ends", "waits", "spins"])  # fmt: skip
def test_what_repeats_itself_is_a_deadlock_at_once(loop, other, schedule):
    """Long before `max_steps`: registers that come again while no memory changes."""
    with pytest.raises(Deadlock, match="no memory or barrier changes any more") as caught:
        run(f"{BARRIER} {loop} bra END; OTHER: {other} END:", schedule=schedule, max_steps=200_000)
    assert "warp 0" in str(caught.value)
    assert "runs without end" in str(caught.value)


GRID_BARRIER = """
 setp.ne.u32 %p1, %r1, 0;
 mov.u32 %r9, smem;
 @!%p1 red.release.gpu.global.add.u32 [%rd1], 1;
L:
 bar.sync 0;
 @!%p1 ld.acquire.gpu.global.u32 %r2, [%rd1];
 @!%p1 st.shared.u32 [%r9], %r2;
 bar.sync 0;
 ld.shared.u32 %r3, [%r9];
 setp.lt.u32 %p2, %r3, {arrivals};
 @%p2 bra L;
"""
"""As Triton compiles a loop that waits: one thread asks, and tells the others."""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_blocks_that_wait_for_each_other_run_at_the_same_time(schedule):
    x = np.zeros(64, np.uint32)
    run(GRID_BARRIER.format(arrivals=8), x, grid=8, schedule=schedule, max_steps=50_000)
    assert x[0] == 8


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_blocks_that_wait_for_one_more_than_there_are(schedule):
    x = np.zeros(64, np.uint32)
    with pytest.raises(Deadlock) as caught:
        run(GRID_BARRIER.format(arrivals=4), x, grid=3, schedule=schedule, max_steps=500_000)
    for block in range(3):
        assert f"block ({block}, 0, 0), warps 0, 1 at PTX line" in str(caught.value)
    assert str(caught.value).count("it last read 3 at global address") == 3
    assert "(x[0])" in str(caught.value)


def test_a_long_loop_is_no_deadlock():
    """It changes registers alone, for many rounds; and one of them is back where it was."""
    x = np.zeros(64, np.uint32)
    run("""
 mov.u32 %r2, 0;
L:
 add.u32 %r2, %r2, 1;
 and.b32 %r3, %r2, 1;
 setp.lt.u32 %p1, %r2, 9000;
 @%p1 bra L;
 st.global.u32 [%rd1], %r2;
""", x, block=1)  # fmt: skip
    assert x[0] == 9000


STORES = """
 .loc 1 7 0
L: st.global.u32 [%rd1], %r1;
 .loc 1 8 0
 bra L;
"""
FILE = '.file 1 "kernel.py"'


class Clock:
    """In place of `time` in the limits: so many hours pass with each look."""

    def __init__(self, hours):
        self.hours, self.now = hours, 0.0

    def monotonic(self):
        self.now += 3600 * self.hours
        return self.now


@pytest.mark.parametrize("forked", [False, True])
@pytest.mark.parametrize(
    ("limit", "match"),
    [
        ({"max_steps": 5000}, "max_steps = 5000 instructions"),
        ({"timeout": 7200.0}, r"timeout = 7200\.0"),
    ],
    ids=["max_steps", "timeout"],
)
def test_a_limit_says_where_the_time_went(limit, match, forked, monkeypatch):
    if "timeout" in limit:
        monkeypatch.setattr(limits, "time", Clock(1))
    grid = 1
    body = STORES
    if forked:
        in_forks(monkeypatch)
        grid, body = 4, "mov.u32 %r4, %ctaid.x; setp.eq.u32 %p1, %r4, 0; @%p1 ret;" + STORES
    with pytest.raises(LimitReached, match=match) as caught:
        run(body, grid=grid, before=FILE, **limit)
    message = str(caught.value)
    assert re.search(r"50%  kernel\.py:7 \(\d+ instructions\)", message)
    assert re.search(r"(50|49)%  kernel\.py:8", message)
    assert re.search(r"now:\n  block \(\d, 0, 0\), warps 0, 1 at PTX line \d+", message)
    if not forked and "max_steps" in limit:
        counts = [int(number) for number in re.findall(r"\((\d+) instructions\)", message)]
        assert sum(counts) == 5000


def test_a_launch_whose_blocks_do_not_end_ends_by_default(monkeypatch):
    """However long its instructions take: the limit of steps is far."""
    monkeypatch.setattr(limits, "time", Clock(1))
    with pytest.raises(LimitReached, match="no block has ended for 600 s") as caught:
        run(STORES, before=FILE)
    assert "kernel.py:7" in str(caught.value)


def test_a_launch_may_take_long_if_its_blocks_end(monkeypatch):
    clock = Clock(0.1)  # six minutes with each look, of which each block has one or two
    monkeypatch.setattr(limits, "time", clock)
    monkeypatch.setattr(limits, "PATIENCE", 1500.0)
    options = {"grid": 50, "observer": Observer()}  # with an observer, all blocks run here
    run("st.global.u32 [%rd1], %r1;", **options)
    assert clock.now > 10 * limits.PATIENCE
    with pytest.raises(LimitReached, match=r"timeout = 1500\.0"):
        run("st.global.u32 [%rd1], %r1;", timeout=1500.0, **options)
    run("st.global.u32 [%rd1], %r1;", timeout=math.inf, **options)


@pytest.mark.parametrize("wrong", [1, 2])
def test_the_first_fault_of_a_fork_ends_the_others(wrong, monkeypatch):
    """They would go on for ever."""
    in_forks(monkeypatch)
    body = (
        f"""
 mov.u32 %r4, %ctaid.x; setp.eq.u32 %p1, %r4, 0; @%p1 ret;
 setp.eq.u32 %p1, %r4, {wrong};
 @!%p1 bra L;
 st.global.u32 [%rd1+1024], %r1;
"""
        + STORES
    )
    before = children_of(os.getpid())  # of other tests: multiprocessing's tracker of resources
    with pytest.raises(MemoryFault, match=rf"past the end of argument x(.|\n)*block \({wrong}, "):
        run(body, grid=3, max_steps=1 << 62, timeout=math.inf)
    assert children_of(os.getpid()) == before


def test_illegal_limits():
    steps, seconds = (0, -1, 1.5, None, True, "9"), (0, -1.0, "1", float("nan"))
    for limit in [{"max_steps": n} for n in steps] + [{"timeout": n} for n in seconds]:
        with pytest.raises(LaunchError, match=f"{next(iter(limit))} = .* must be a positive"):
            run("", **limit)


def test_huge_grids():
    """Legal ones begin at once; others are refused."""
    for grid in ((1 << 31) - 1, (1 << 31) - 1, (1, 65535, 65535)):
        with pytest.raises(LimitReached):
            run("", grid=grid, block=1, max_steps=1000)
    for grid in (1 << 31, 1 << 70, (1, 65536), (1, 1, 65536), (1, 1, 1, 1), ()):
        with pytest.raises(LaunchError, match="grid"):
            run("", grid=grid, block=1)
    for block in ((1, 1, 65), (1, 1025), (32, 33), 1 << 70):
        with pytest.raises(LaunchError, match="block"):
            run("", block=block)
    for cluster in (17, (4, 5), 0):
        with pytest.raises(LaunchError, match="cluster"):
            run("", cluster=cluster, grid=(340, 20))


def calls(functions, each):
    """A chain of functions, of which each calls the next one `each` times."""
    texts = [".func f0() { ret; }"]
    for number in range(1, functions):
        body = f" call.uni f{number - 1};" * each
        texts.append(f".func f{number}() {{ {body} ret; }}")
    return "\n".join(texts), f"call.uni f{functions - 1};"


def test_calls_upon_calls():
    before, body = calls(60, 2)  # written out, it would fit no memory
    with pytest.raises(UnsupportedInstruction, match="calls"):
        run(body, before=before)
    before, body = calls(3000, 1)
    with pytest.raises(UnsupportedInstruction, match="calls"):
        run(body, before=before)
    before, body = calls(8, 2)
    run(body, before=before)


# ------------------------------------------------------------------------------ memory


@pytest.mark.parametrize("forked", [False, True])
@pytest.mark.parametrize(
    "writes",
    ["st.global.u32 [%rd1], %r1;", "atom.global.add.u32 %r2, [%rd1], 1;",
     "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r3], 16;"],
    ids=["st", "atom", "bulk"],
)  # fmt: skip
def test_a_read_only_array_is_not_written(writes, forked, monkeypatch):
    if forked:
        in_forks(monkeypatch)
    x = np.zeros(64, np.uint32)
    x.flags.writeable = False
    body = f"""
 mov.u32 %r3, smem;
 st.shared.u32 [%r3], %r1; st.shared.u32 [%r3+4], %r1;
 st.shared.u32 [%r3+8], %r1; st.shared.u32 [%r3+12], %r1;
 fence.proxy.async;
 mov.u32 %r4, %ctaid.x; setp.eq.u32 %p1, %r4, 0; @%p1 ret;
 {writes}
"""
    run(body.replace(writes, "ld.global.u32 %r2, [%rd1];"), x, grid=4, block=1)
    with pytest.raises(MemoryFault, match="argument x is a read-only array"):
        run(body, x, grid=4, block=1)
    assert not x.any()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_lanes_that_wrap_around(schedule):
    """Addresses near 2^63 and 2^64, in every space, among good ones."""
    for space, base in (("global", "%rd1"), ("local", "0"), ("param", "0"), ("shared", "%rd8")):
        for top in ("0x7ffffffffffffff8", "0xfffffffffffffffc", "0x8000000000000000"):
            kind = "ld" if space != "local" else "st"
            what = "%r2, [%rd3]" if kind == "ld" else "[%rd3], %r2"
            body = f"""
 mov.u64 %rd8, smem;
 mov.u64 %rd3, {base};
 setp.gt.u32 %p1, %r1, 3;
 @%p1 mov.u64 %rd3, {top};
 {kind}.{space}.u32 {what};
"""
            with pytest.raises(EmulationError):
                run(body, schedule=schedule, before="")


@pytest.mark.parametrize(
    ("before", "inside", "match"),
    [
        ("", ".local .b8 huge[1000000000000];", "local variables of a thread"),
        (".global .b8 huge[1000000000000];", "", "variables of the module"),
        (".const .b8 huge[1000000000000];", "", "variables of the module"),
        ("", ".shared .b8 huge[1000000000000];", "static bytes"),
        (".global .b32 short[2] = {1, 2, 3};", "", "3 initial values for 8 bytes"),
        (".global .b32 odd[2] = {f};", "", "neither a number nor a variable"),
        ("", ".reg .b64 %many<2000000000>;", "registers"),
    ],
)
def test_memory_that_no_gpu_has(before, inside, match):
    with pytest.raises((LaunchError, UnsupportedInstruction), match=match):
        run(inside, before=before)


def test_parameters_that_no_gpu_has():
    text = ptx("", ".param .u64 x, .param .b8 y[1000000000000]")
    with pytest.raises(LaunchError, match="the parameters take"):
        run_ptx(text, grid=1, block=1, args=[0, b""])


@pytest.mark.parametrize(
    ("access", "sm_90", "sm_100"),
    [
        ("ld.global.v8.b32 {%r1,%r2,%r3,%r4,%r5,%r6,%r7,%r8}, [%rd1];", False, True),
        ("ld.global.v4.b64 {%rd2,%rd3,%rd4,%rd5}, [%rd1];", False, True),
        ("st.global.v8.b32 [%rd1], {%r1,%r2,%r3,%r4,%r5,%r6,%r7,%r8};", False, True),
        ("ld.shared.v8.b32 {%r1,%r2,%r3,%r4,%r5,%r6,%r7,%r8}, [%r9];", False, False),
        ("ld.shared.v4.b64 {%rd2,%rd3,%rd4,%rd5}, [%r9];", False, False),
        ("ld.global.v4.b32 {%r1,%r2,%r3,%r4}, [%rd1];", True, True),
        ("ld.global.v2.b64 {%rd2,%rd3}, [%rd1];", True, True),
    ],
)
def test_vector_widths(access, sm_90, sm_100):
    """256 bits at once: sm_100 and later, global memory alone (PTX ISA, "ld" and "st")."""
    x = np.zeros(64, np.uint32)
    x = x[-(x.ctypes.data // 4) % 8 :][:32]
    for target, legal in (("sm_90a", sm_90), ("sm_100a", sm_100)):
        if legal:
            run(access, x, target=target)
        else:
            with pytest.raises(UnsupportedInstruction, match="256 bits"):
                run(access, x, target=target)


# ------------------------------------------------------------------------------ interruptions

PROGRAM = """
import os, signal, sys
import numpy as np
from triton_ext.emulator import run_ptx
from triton_ext.emulator.schedule import parallel
parallel.WORTH_FORKING = -1
os.sched_getaffinity = lambda pid: {0, 1}
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
print("ready", flush=True)
x = np.zeros(64, np.uint32)
run_ptx(sys.stdin.read(), grid=4, block=32, args=[x], check_races=False)  # all store to one place
"""


def children_of(process):
    try:
        return Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return []


def gone(process):
    """Ended, and not left as a zombie."""
    return not Path(f"/proc/{process}").exists()


HANG = 300
"""Seconds after which what should be a matter of milliseconds is taken for a hang."""


def until(condition):
    end = time.monotonic() + HANG
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_parent(sent):
    """Whatever ends the parent alone, its forks are soon gone, and say nothing."""
    body = "mov.u32 %r4, %ctaid.x; setp.eq.u32 %p1, %r4, 0; @%p1 ret;" + STORES
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, cwd=ROOT,
    ) as parent:  # fmt: skip
        try:
            parent.stdin.write(ptx(body))
            parent.stdin.close()
            assert until(lambda: len(children_of(parent.pid)) == 2)
            workers = children_of(parent.pid)
            parent.send_signal(sent)
            assert until(lambda: all(gone(worker) for worker in workers))
            parent.wait(timeout=HANG)
            said = parent.stderr.read()
        finally:
            parent.kill()
    assert "BrokenPipe" not in said
    assert ("KeyboardInterrupt" in said) == (sent == signal.SIGINT)


def test_an_interruption_leaves_everything_as_it_was(monkeypatch):
    """A handler that raises, here an alarm's: memory is as before, and no child is left."""
    in_forks(monkeypatch)
    body = "mov.u32 %r4, %ctaid.x; setp.eq.u32 %p1, %r4, 0; @%p1 ret;" + STORES
    x = np.full(64, 7, np.uint32)

    def ring(number, frame):
        raise InterruptedError

    children = children_of(os.getpid())  # of other tests
    before = signal.signal(signal.SIGALRM, ring)
    # Again after 5 s: what a handler raises in a finalizer is lost.
    signal.setitimer(signal.ITIMER_REAL, 0.5, 5)
    try:
        with pytest.raises(InterruptedError):
            run(body, x, grid=4)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert (x == 7).all()
    assert children_of(os.getpid()) == children


# ------------------------------------------------------------------------------ several at once


def test_emulated_gpus_that_overlap():
    """Two threads, entered and left in every order: each has its own, and the last leaves none."""
    pytest.importorskip("triton")
    torch = pytest.importorskip("torch")
    from triton_ext import emulate
    from triton_ext.emulator.host.driver import active_gpu

    available = torch.cuda.is_available
    for order in ("AaBb", "ABab", "ABba", "AABaab", "ABabAa"):
        inside, seen = {}, []
        for step in order:
            arch = {"A": "sm_90", "B": "sm_100"}[step.upper()]
            if step.isupper():
                gate, done = threading.Event(), threading.Event()

                def hold(arch=arch, gate=gate, done=done, seen=seen):
                    with emulate(arch, cuda_on_host=True) as gpu:
                        done.set()
                        gate.wait(HANG)
                        seen.append(active_gpu() is gpu)
                        seen.append(torch.cuda.get_device_capability() == divmod(gpu.arch, 10))

                thread = threading.Thread(target=hold)
                thread.start()
                assert done.wait(HANG)
                inside.setdefault(step, []).append((thread, gate))
            else:
                thread, gate = inside[step.upper()].pop(0)
                gate.set()
                thread.join(HANG)
            living = [each for each in inside.values() if each]
            assert (active_gpu() is not None) == bool(living)
            assert (torch.cuda.is_available is available) != bool(living)
        assert seen == [True] * len(order)


# ------------------------------------------------------------------------------ fuzzing

SAMPLE = ptx(
    """
 .local .align 8 .b8 depot[16];
 mov.u32 %r9, smem;
 mov.u32 %r4, %ctaid.x;
 setp.gt.u32 %p1, %r1, 3;
 @%p1 bra NEXT;
 mad.wide.u32 %rd3, %r1, 4, %rd1;
 ld.global.v2.u32 {%r2, %r3}, [table];
 st.global.u32 [%rd3+4], %r2;
 st.local.v2.u32 [depot], {%r2, %r3};
 atom.global.add.u32 %r5, [%rd1], %r3;
NEXT:
 setp.eq.u32 %p3, %r1, 0;
 @%p3 mbarrier.init.shared.b64 [%r9], 64;
 shfl.sync.bfly.b32 %r6|%p2, %r2, 1, 31, -1;
 cvt.rn.f32.u32 %r7, %r6;
 bar.sync 0;
 mbarrier.arrive.shared.b64 %rd4, [%r9];
 call.uni (%r8), twice, (%r6);
 selp.b32 %r8, %r8, %r7, %p2;
 cp.async.bulk.commit_group;
 fence.proxy.async;
""",
    before="""
.global .align 8 .u32 table[4] = {1, 2, 3};
.func (.reg .b32 %out) twice(.reg .b32 %in) { add.u32 %out, %in, %in; ret; }
""",
)
ODD_VALUES = (
    0, 1, -1, 2, 3, 17, 64, 1 << 31, 1 << 63, 1 << 64, 1 << 70, -(1 << 70), 1.5, float("nan"),
    float("inf"), None, True, "", "text", b"", b"\0" * 8, (), [], (1, 2), (1, 2, 3, 4), {}, {1},
    object(), 1j, np.int64(3), np.float32(2), np.bool_(True), np.zeros(0, np.uint8),
    np.zeros(64, np.uint32), np.zeros((4, 4))[:, 1], np.zeros(4, object), np.array(["a"]),
    np.array(3), np.zeros(3, "V0"), np.zeros(64, "datetime64[s]"), [np.zeros(64)], range(3),
)  # fmt: skip
NUMBERS = ("0", "1", "-1", "7", "31", "32", "64", "255", "4096", "65536", "0x7fffffff",
           "4294967295", "4294967296", "0x7fffffffffffffff", "18446744073709551615",
           "99999999999999999999")  # fmt: skip
TYPED = (EmulationError, LayoutError)


def mutated(text, random):
    """A PTX text with a few of its tokens replaced, moved, repeated or lost."""
    tokens = re.findall(r"\w+|\s+|.", text)
    for _ in range(random.randrange(1, 4)):
        at, other = random.randrange(40, len(tokens)), random.randrange(40, len(tokens))
        change = random.randrange(6)
        if change == 0:
            del tokens[at]
        elif change == 1:
            tokens[at], tokens[other] = tokens[other], tokens[at]
        elif change == 2:
            tokens.insert(at, tokens[other])
        elif change == 3:
            tokens[at] = random.choice(NUMBERS)
        elif change == 4:
            tokens[at] = tokens[other]
        else:
            numbers = [i for i, token in enumerate(tokens) if token.isdigit()]
            tokens[random.choice(numbers)] = random.choice(NUMBERS)
    return "".join(tokens)


def fuzz_text(seed, text=SAMPLE):
    """Run a mutated text: None, or the typed error that it ended in."""
    rng = random.Random(seed)
    changed = mutated(text, rng)
    try:
        run_ptx(
            changed, grid=rng.choice((1, 3)), block=64, args=[np.zeros(64, np.uint32)],
            dynamic_smem_bytes=64, schedule=rng.choice(SCHEDULES), max_steps=3000,
        )  # fmt: skip
    except TYPED as error:
        return error
    except Exception as error:
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}\n{changed}") from error


def fuzz_arguments(seed):
    rng = random.Random(seed)
    options = {"grid": 1, "block": 64, "args": [np.zeros(64, np.uint32)], "max_steps": 3000,
               "dynamic_smem_bytes": 64}  # fmt: skip
    names = ("grid", "block", "args", "buffers", "cluster", "dynamic_smem_bytes", "schedule",
             "seed", "kernel", "max_steps", "timeout", "ptx")  # fmt: skip
    for name in rng.sample(names, rng.randrange(1, 3)):
        value = rng.choice(ODD_VALUES)
        options[name] = [value] if name in ("args", "buffers") and rng.random() < 0.7 else value
    text = options.pop("ptx", SAMPLE)
    try:
        run_ptx(text, **options)
    except TYPED as error:
        return error
    except Exception as error:
        raise AssertionError(f"seed {seed}: {options}: {type(error).__name__}: {error}") from error


@pytest.mark.parametrize("fuzz", [fuzz_arguments, fuzz_text])
def test_only_typed_errors_leave(fuzz):
    """A sample; `FUZZ` in the environment is the number of them, from a seed that is printed."""
    number, first = int(os.environ.get("FUZZ", 0)), 0
    if number:
        first = random.SystemRandom().randrange(1 << 32)
        print("seeds", first, "to", first + number)
    found = {type(fuzz(seed)).__name__ for seed in range(first, first + (number or 300))}
    assert {"NoneType", "LaunchError"} <= found
