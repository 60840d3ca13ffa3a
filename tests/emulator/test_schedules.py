"""One run, all schedules: litmus tests by brute force, witnesses that come true, the doors."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter

import numpy as np
import pytest
from litmus_programs import PROGRAMS, drawn, drawn_commits
from schedule_litmus import Program, ptx, run, safe, said

from triton_ext.emulator import run_ptx
from triton_ext.emulator.clients.schedules.guide import Plan
from triton_ext.emulator.clients.schedules.peeks import peeks
from triton_ext.emulator.clients.schedules.skeleton import divided
from triton_ext.emulator.clients.schedules.timing import repeats
from triton_ext.emulator.clients.statistics import Statistics
from triton_ext.emulator.errors import EmulationError, LaunchError, SynchronizationFault
from triton_ext.emulator.instructions import decode
from triton_ext.ptx.parse import parse_ptx

BENIGN = {"3 laps, waits for (0,)"}
"""Litmus tests with several matchings, all of which are right: not decided."""
LOST = Program(
    "a phase that a waiter may miss",
    ((("T", "b", 1), ("W", "x", 1)), (("A", "b"),)),
    {"b": 1},
)
"""Only who comes before the arrival passes."""


def test_litmus_tests_are_judged_as_by_brute_force():
    assert len(PROGRAMS) >= 100
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS)
    outcomes = set()
    for program in PROGRAMS:
        outcome, verdict = said(program)
        outcomes.add(outcome)
        expected = {"not decided"} if program.name in BENIGN else {"proven"}
        if not safe(program):
            expected = {"fault", "witness"}
        assert outcome in expected, (program.name, outcome, str(verdict))
    assert outcomes == {"proven", "fault", "witness", "not decided"}


def test_drawn_programs_are_never_misjudged():
    """What is proven is safe, and what has a witness or a fault is not."""
    counts = {"proven": 0, "witness": 0, "fault": 0, "not decided": 0}
    for seed in range(1000, 1300):
        program = drawn(seed)
        outcome, verdict = said(program)
        counts[outcome] += 1
        if outcome != "not decided":
            assert (outcome == "proven") == safe(program), (seed, program, outcome, str(verdict))
    assert counts["proven"] > 20
    assert counts["not decided"] < 10


def test_drawn_commits_are_never_misjudged():
    """The emulator asks one thing more: a commit that may count for the phase before must know what
    that says, whether or not anybody relies on it."""
    counts = {"proven": 0, "witness": 0, "fault": 0, "not decided": 0}
    stood_in = 0
    for seed in [*range(5000, 5060), *range(480901, 480931)]:
        program = drawn_commits(seed, own=seed > 6000)
        outcome, verdict = said(program)
        if "it could count for that one" in str(verdict):
            continue
        counts[outcome] += 1
        stood_in += outcome == "proven" and verdict.counted["loose"] > 0
        if outcome != "not decided":
            assert (outcome == "proven") == safe(program), (seed, program, outcome, str(verdict))
    assert counts["proven"] > 10
    assert counts["fault"] > 10
    assert stood_in > 2
    assert counts["not decided"] == 0


def test_a_witness_comes_true_again(tmp_path):
    outcome, verdict = said(LOST)
    assert not safe(LOST)
    assert outcome == "witness"
    assert len(verdict.witness.plan.steps) <= 20
    assert "may miss its phase" in "\n".join(verdict.lines())
    file = tmp_path / "witness.json"
    file.write_text(json.dumps(verdict.as_object()["witness"]["schedule"]))
    assert Plan.read(file) == verdict.witness.plan
    run(LOST)  # under the eager schedule nothing happens
    with pytest.raises(EmulationError) as found:
        run(LOST, schedule=file)
    assert type(found.value) is type(verdict.witness.fault)


def waits(program):
    """The waits for mbarriers, as thread and number, each with its line of the PTX."""
    numbers = [
        (thread, number)
        for thread, ops in enumerate(program.threads)
        for number, op in enumerate(ops)
        if op[0] == "T"
    ]
    lines = enumerate(ptx(program).splitlines(), 1)
    return dict(zip(numbers, (n for n, text in lines if "try_wait" in text), strict=True))


def without(program, thread, number):
    """The program without one of its operations."""
    ops = program.threads[thread]
    threads = list(program.threads)
    threads[thread] = ops[:number] + ops[number + 1 :]
    return dataclasses.replace(program, threads=tuple(threads))


def test_a_redundant_wait_and_a_needed_one():
    program = Program(
        "two waits",
        ((("W", "x", 1), ("A", "b"), ("W", "y", 2), ("A", "c")),
         (("T", "b", 0), ("T", "c", 0), ("R", "x"), ("R", "y"))),
        {"b": 1, "c": 1},
    )  # fmt: skip
    at = waits(program)
    machine, out = run(program, schedules="all", explain_wait=str(at[1, 1]))
    assert (out == run(program)[1]).all()
    assert machine.verdict.outcome == "proven"
    explained = machine.verdict.explained
    [told] = explained.told
    assert told.waiters == ["warp 1"]
    assert [text.split(" at ")[0] for text in told.writes] == ["st.shared::cta.b32"]
    found = {each.what.rpartition(" ")[2]: each for each in explained.without}
    assert found[str(at[1, 0])].outcome == "redundant"
    assert found[str(at[1, 1])].outcome == "needed"
    assert found[str(at[1, 1])].here
    assert "SynchronizationFault" in found[str(at[1, 1])].ends
    text = "\n".join(machine.verdict.lines())
    assert f"redundant: mbarrier.try_wait.parity.shared::cta.b64 at PTX line {at[1, 0]}" in text
    assert machine.verdict.as_object()["explained"]["told"][0]["times"] == 1


def test_waits_are_redundant_as_by_brute_force():
    outcomes = Counter()
    for program in PROGRAMS:
        at = waits(program)
        if len(program.threads) > 3 or not 1 <= len(at) <= 3 or not safe(program):
            continue
        machine, _ = run(program, schedules="all", explain_wait=str(next(iter(at.values()))))
        found = {each.what.rpartition(" ")[2]: each for each in machine.verdict.explained.without}
        for (thread, number), line in at.items():
            outcome = found[str(line)].outcome
            outcomes[outcome] += 1
            expected = "redundant" if safe(without(program, thread, number)) else "needed"
            assert outcome in (expected, "not decided"), (program.name, thread, number)
    assert outcomes["redundant"] > 2
    assert outcomes["needed"] > 20
    assert outcomes["not decided"] < 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"schedules": "all", "explain_wait": "kernel.py"}, "a file and a line"),
        ({"schedules": "all", "explain_wait": "3"}, "'3': nothing that waits"),
        ({"explain_wait": "kernel.py:3"}, "needs schedules='all'"),
    ],
)
def test_no_wait_to_explain(options, words):
    with pytest.raises(LaunchError, match=words):
        run(PROGRAMS[0], **options)


def test_a_race_of_the_first_run_is_raised():
    [program] = [each for each in PROGRAMS if each.name == "message passing without a wait"]
    assert not safe(program)
    with pytest.raises(SynchronizationFault, match="nothing orders the two"):
        run(program, schedules="all")


def test_memory_is_as_the_first_run_leaves_it():
    program = Program("safe, with a doubt", PROGRAMS[0].threads, {"b": 1})
    machine, out = run(program, schedules="all")
    _, once = run(program)
    assert (out == once).all()
    assert machine.verdict.outcome == "proven"
    found = next(each for each in PROGRAMS if each.name in BENIGN)
    machine, out = run(found, schedules="all")
    _, once = run(found)
    assert machine.verdict.counted["runs"] > 0
    assert (out == once).all()


def test_another_observer_is_told_too():
    counted = Statistics()
    program = next(each for each in PROGRAMS if each.name == "a ring of 2, 5 tiles")
    machine, _ = run(program, schedules="all", observer=counted)
    assert machine.verdict.outcome == "proven"
    assert counted.done["cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"] == 5


def test_another_observer_is_told_of_commits():
    counted = Statistics()
    program = next(each for each in PROGRAMS if each.name == "multicast commits, 2 laps")
    machine, _ = run(program, schedules="all", observer=counted)
    assert machine.verdict.outcome == "proven"
    assert sum(n for opcode, n in counted.done.items() if opcode.startswith("tcgen05.commit")) == 4


def test_lanes_that_are_not_in_step_prove_nothing():
    """All lanes store, and one arrives for them: with bar.warp.sync between, and without."""
    text = """
.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 y)
{
  .reg .b32 %r<9>; .reg .b64 %rd<5>; .reg .pred %p<5>;
  .shared .align 128 .b8 buffer[256]; .shared .align 8 .b8 bar[8];
  ld.param.u64 %rd1, [y];
  mov.u32 %r0, %tid.x; and.b32 %r1, %r0, 31; shl.b32 %r2, %r1, 2;
  mov.u32 %r3, buffer; add.u32 %r3, %r3, %r2;
  setp.eq.u32 %p1, %r0, 0; setp.ge.u32 %p2, %r0, 32;
  @%p1 mbarrier.init.shared::cta.b64 [bar], 1;
  bar.sync 0;
  @%p2 bra READ;
  st.shared.b32 [%r3], %r0;
  SYNC
  @%p1 mbarrier.arrive.shared::cta.b64 _, [bar];
  ret;
READ:
  mbarrier.try_wait.parity.shared::cta.b64 %p3, [bar], 0;
  @!%p3 bra READ;
  ld.shared.b32 %r4, [%r3];
  cvt.u64.u32 %rd2, %r2; add.u64 %rd2, %rd2, %rd1; st.global.b32 [%rd2], %r4;
  ret;
}
"""
    outcomes = []
    for sync in ("bar.warp.sync 0xffffffff;", ""):
        out = np.zeros(32, np.int32)
        ptx = text.replace("SYNC", sync)
        verdict = run_ptx(ptx, grid=1, block=64, args=[out], schedules="all").verdict
        assert (out == np.arange(32)).all()
        outcomes.append(verdict.outcome)
    assert outcomes == ["proven", "not decided"]
    assert "bar.warp.sync is missing" in "\n".join(verdict.lines())


WAIT = "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], %r2;"


@pytest.mark.parametrize(
    ("loop", "found"),
    [
        (f"AGAIN: {WAIT} @!%p1 bra AGAIN;", True),
        (f"AGAIN: {WAIT} @%p1 bra DONE; bra AGAIN; DONE:", True),
        (f"AGAIN: {WAIT} selp.b32 %r3, 1, 0, %p1; setp.eq.s32 %p2, %r3, 0; @%p2 bra AGAIN;", True),
        (f"{WAIT} @%p1 bra DONE; AGAIN: {WAIT} @!%p1 bra AGAIN; DONE:", True),
        (f"AGAIN: {WAIT} nanosleep.u32 20; @!%p1 bra AGAIN;", True),
        (WAIT, False),
        (f"AGAIN: {WAIT} add.u32 %r2, %r2, 1; @!%p1 bra AGAIN;", False),
        (f"AGAIN: {WAIT} st.shared.b32 [%r4], %r2; @!%p1 bra AGAIN;", False),
        (f"AGAIN: {WAIT} @%p1 bra AGAIN;", False),
        (f"AGAIN: {WAIT} @!%p2 bra AGAIN;", False),
    ],
)
def test_a_wait_that_is_asked_until_it_is_over(loop, found):
    program = decode(parse_ptx(
        ".version 8.7\n.target sm_90a\n.address_size 64\n.visible .entry k() {\n.reg .b32 %r<9>;\n"
        f".reg .pred %p<5>;\n{loop}\nst.shared.b32 [%r4], %r2;\nret;\n}}"
    ))  # fmt: skip
    [number, *_] = [
        number
        for number, step in enumerate(program.steps)
        if step.instruction.opcode.startswith("mbarrier.try_wait")
    ]
    assert repeats(program, number) is found


PEEK = f"""
{WAIT}
st.shared.b32 [%r4], %r2;
@%p1 bra SKIP;
{{ .reg .pred P; AGAIN: {WAIT.replace("%p1", "P")} @P bra DONE; bra AGAIN; DONE: }}
SKIP:
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (PEEK, True),
        (PEEK.replace("@%p1 bra", "@!%p1 bra"), True),
        (PEEK.replace("DONE: }", "DONE: add.u32 %r4, %r4, 8; }"), False),
        (PEEK.replace("DONE: }", "DONE: st.shared.b32 [%r4], %r5; }"), False),
        (PEEK.replace("st.shared", "selp.u32 %r4, 1, 2, %p1; st.shared"), False),
        (PEEK.replace("AGAIN:", "").replace("bra AGAIN", "bra DONE"), False),
    ],
)
def test_a_wait_that_may_be_skipped(text, found):
    program = decode(parse_ptx(
        ".version 8.7\n.target sm_90a\n.address_size 64\n.visible .entry k() {\n.reg .b32 %r<9>;\n"
        f".reg .pred %p<5>;\n{text}\nst.shared.b32 [%r4], %r2;\nret;\n}}"
    ))  # fmt: skip
    first = program.steps[0].instruction
    assert first.opcode.startswith("mbarrier.try_wait")
    assert (first.line in peeks(program)) is found


@pytest.mark.parametrize(("early", "outcome"), [(False, "proven"), (True, "not decided")])
def test_a_wait_that_fails_proves_the_one_that_passes(early, outcome):
    """A producer peeks before it waits; too early, its peek could pass one lap too soon."""
    text = """
.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 y)
{
  .reg .b32 %r<9>; .reg .b64 %rd<5>; .reg .pred %p<6>;
  .shared .align 8 .b8 bar[8];
  ld.param.u64 %rd1, [y];
  mov.u32 %r0, %tid.x; and.b32 %r6, %r0, 31; mov.u32 %r1, bar;
  setp.eq.u32 %p0, %r0, 0; setp.eq.u32 %p2, %r6, 0; setp.lt.u32 %p3, %r0, 32;
  @%p0 mbarrier.init.shared::cta.b64 [%r1], 1;
  bar.sync 0;
  @%p3 bra WAITS;
  bar.warp.sync -1;
  @%p2 mbarrier.arrive.shared::cta.b64 _, [%r1];
  bar.sync 1, 64;
  @%p2 mbarrier.arrive.shared::cta.b64 _, [%r1];
  ret;
WAITS:
  EARLY
FIRST:
  mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r1], 0;
  @!%p4 bra FIRST;
  bar.sync 1, 64;
  LATE
  @%p1 bra SKIP;
SECOND:
  mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r1], 1;
  @!%p5 bra SECOND;
SKIP:
  ret;
}
"""
    peek = "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 1;"
    for place, here in (("EARLY", early), ("LATE", not early)):
        text = text.replace(place, peek if here else "")
    machine = run_ptx(text, grid=1, block=64, args=[np.zeros(1)], schedules="all")
    assert machine.verdict.outcome == outcome
    assert "one lap early" in "\n".join(machine.verdict.lines()) or not early


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ld.acquire.gpu.global.b32 %r1, [%rd1];", "flag"),
        ("mov.u32 %r1, %clock; st.global.b32 [%rd1], %r1;", "clock"),
        ("atom.global.gpu.relaxed.add.u32 %r1, [%rd1], 1; st.global.b32 [%rd2], %r1;", "atomic"),
        ("atom.shared.add.u32 %r1, [memory], 1;", "shared memory"),
    ],
)
def test_what_depends_on_time_is_not_decided(text, why):
    ptx = (
        ".version 8.7\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 x) {\n"
        ".reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n.shared .align 4 .b8 memory[4];\n"
        "ld.param.u64 %rd1, [x];\nadd.u64 %rd2, %rd1, 4;\nmov.u32 %r2, 0;\n"
        f"st.shared.b32 [memory], %r2;\n{text}\nret;\n}}"
    )
    machine = run_ptx(ptx, grid=1, block=1, args=[np.zeros(2, np.int32)], schedules="all")
    assert machine.verdict.outcome == "not decided"
    assert why in "\n".join(machine.verdict.lines())


def test_the_order_of_atomic_operations_is_told():
    ptx = (
        ".version 8.7\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 x) {\n"
        ".reg .b64 %rd<9>;\nld.param.u64 %rd1, [x];\nred.global.gpu.relaxed.add.u32 [%rd1], 1;\n"
        "ret;\n}"
    )
    x = np.zeros(1, np.int32)
    machine = run_ptx(ptx, grid=4, block=32, args=[x], schedules="all")
    assert x[0] == 128
    assert machine.verdict.outcome == "proven"
    assert [each.opcode for each in machine.verdict.unordered] == ["red.global.gpu.relaxed.add.u32"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"schedules": "most"}, "must be 'all'"),
        ({"schedules": "all", "schedule": "lazy"}, "leave it out"),
    ],
)
def test_what_does_not_go_together(options, words):
    with pytest.raises(LaunchError, match=words):
        run(PROGRAMS[0], **options)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version": 2}', '{"version": 1}'])
def test_a_file_that_is_no_schedule(tmp_path, content):
    file = tmp_path / "schedule.json"
    file.write_text(content)
    with pytest.raises(LaunchError, match=r"schedule\.json: (must be|version)"):
        run(PROGRAMS[0], schedule=file)


def test_a_partition_of_lanes():
    assert divided([]) == []
    assert divided([0xFF]) == [0xFF]
    assert sorted(divided([1, (1 << 32) - 1])) == [1, (1 << 32) - 2]
    assert sorted(divided([0b0110, 0b1100])) == [0b0010, 0b0100, 0b1000]


NOT_PROVEN = {
    "Both blocks of a pair ask for the next tile, and both answers go to both": "not decided",
    "One thread says for its warpgroup that the answer has been read": "not decided",
    "A multicast answers both blocks, and one of them expects it": "not decided",
    "A tensor map is changed under a copy that still reads it": "not decided",
}
"""Mended exhibits of the museum: which tile is left, and two readers of a tensor map."""
RIGHT_ON_ITS_OWN = {
    "A store writes past the tensor, up to 16 bytes": "proven, wrong result",
    "A swizzled tile begins in the middle of the pattern": "proven, wrong result",
    "TMA overwrites what threads have read, without a proxy fence": "proven",
    "All lanes store, and one arrives for them": "not decided",
}
"""Broken exhibits that are not found by running them: wrong under every schedule, a proxy fence
that is not asked for, and lanes that are not in step."""


def test_exhibits_of_the_museum():
    pytest.importorskip("torch")
    from all_schedules import exhibits

    found = {each["name"].removeprefix("museum, "): each["outcome"] for each in exhibits()}
    mended = {name[8:]: said for name, said in found.items() if name.startswith("mended: ")}
    broken = {name[8:]: said for name, said in found.items() if name.startswith("broken: ")}
    assert len(mended) == len(broken) >= 46
    assert {name: said for name, said in mended.items() if said != "proven"} == NOT_PROVEN
    assert {name: said for name, said in broken.items() if said != "fault"} == RIGHT_ON_ITS_OWN


def test_a_warp_specialized_kernel_is_proven(monkeypatch, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("triton", minversion="3.8")
    from all_schedules import jobs, judged
    from ptx_faults import in_fork

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    [job] = [each for each in jobs(None) if each["name"] == "warp_specialized-sm90"]
    [verdict] = in_fork(lambda: judged(job))
    assert verdict["outcome"] == "proven"
    assert verdict["counted"]["operations"] > 100
    assert not verdict["reasons"]
