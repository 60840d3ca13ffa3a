"""What depends on the order of atomic operations and flags: every order, beside brute force."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter

import numpy as np
import pytest

from triton_ext.emulator import run_ptx
from triton_ext.emulator.errors import SynchronizationFault

Program = list[list[tuple[int, int]]]
"""By block, what it adds to which counter, one after the other."""

HEAD = """
.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y) {
  .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<5>;
  ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y];
  mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x;
  setp.ne.u32 %p1, %r0, 0;
  @%p1 ret;
  mul.wide.u32 %rd3, %r1, 4; add.u64 %rd3, %rd3, %rd2;
"""


def judged(body, grid, size=8, **options):
    """The verdict on a kernel, and what it leaves in x and y."""
    x, y = np.zeros(size, np.int32), np.zeros(size, np.int32)
    machine = run_ptx(f"{HEAD}{body}ret;\n}}", grid=grid, block=32, args=[x, y], **options)
    return machine.verdict, x, y


def drawn(seed: int) -> tuple[Program, int]:
    """Blocks that add to one counter or two; how far what they got is shifted before it is kept."""
    pick = random.Random(seed)
    counters = pick.choice((1, 1, 2))
    blocks = [
        [(pick.randrange(counters), pick.choice((0, 1, 1, 2))) for _ in range(pick.choice((1, 2)))]
        for _ in range(pick.choice((2, 2, 3)))
    ]
    return blocks, pick.choice((0, 1, 2, 3))


def text(blocks: Program, shift: int) -> str:
    """Each block adds, and keeps the shifted sum of what it got."""
    lines = []
    for number, adds in enumerate(blocks):
        lines += [f"setp.ne.u32 %p2, %r1, {number}; @%p2 bra NEXT{number};", "mov.u32 %r3, 0;"]
        for counter, amount in adds:
            lines.append(f"atom.global.gpu.relaxed.add.u32 %r2, [%rd1+{4 * counter}], {amount};")
            lines.append("add.u32 %r3, %r3, %r2;")
        lines += [f"shr.u32 %r3, %r3, {shift};", "st.global.b32 [%rd3], %r3;", f"NEXT{number}:"]
    return "\n".join(lines)


def results(blocks: Program, shift: int) -> set[tuple[int, ...]]:
    """What may be kept, by brute force."""
    turns = [number for number, adds in enumerate(blocks) for _ in adds]
    found = set()
    for order in set(itertools.permutations(turns)):
        counters, got, at = [0, 0], [0] * len(blocks), [0] * len(blocks)
        for block in order:
            counter, amount = blocks[block][at[block]]
            got[block] += counters[counter]
            counters[counter] += amount
            at[block] += 1
        found.add(tuple(each >> shift for each in got))
    return found


def test_orders_of_atomic_operations_are_those_of_brute_force():
    outcomes: Counter[tuple[str, bool]] = Counter()
    for seed in range(300, 340):
        blocks, shift = drawn(seed)
        verdict, _, y = judged(text(blocks, shift), len(blocks), schedules="all")
        possible = results(blocks, shift)
        assert tuple(y[: len(blocks)]) in possible
        same, one_place = len(possible) == 1, len({c for adds in blocks for c, _ in adds}) == 1
        outcomes[verdict.outcome, same] += 1
        if verdict.outcome == "proven":
            assert same, (seed, blocks, shift)
        else:
            assert verdict.outcome == "not decided"
            assert ("depends on the order" in verdict.explored) is not same, (seed, blocks, shift)
            assert not (same and one_place), (seed, blocks, shift)
    assert outcomes["proven", True] > 5
    assert outcomes["not decided", False] > 5


QUEUE = """
AGAIN:
  atom.global.gpu.relaxed.add.u32 %r2, [%rd1], 1;
  setp.ge.u32 %p2, %r2, TILES;
  @%p2 ret;
  mul.wide.u32 %rd3, %r2, 4; add.u64 %rd4, %rd2, %rd3;
  st.global.b32 [%rd4], %r2;
  bra AGAIN;
"""


def test_a_queue_of_tiles():
    """Each of three tiles is taken by either of two blocks, and then one of them ends first."""
    verdict, x, y = judged(QUEUE.replace("TILES", "3"), 2, schedules="all")
    assert verdict.outcome == "proven"
    assert verdict.counted["runs"] == 2**3 * 2
    assert x[0] == 3 + 2
    assert y[:3].tolist() == [0, 1, 2]
    assert (
        "every order of what depends on time (runs: 16; operations: at most 5)" in verdict.explored
    )


def test_the_bound_is_named():
    verdict, _, _ = judged(QUEUE.replace("TILES", "6"), 3, schedules="all")
    assert verdict.outcome == "not decided"
    assert "the first 64 orders" in "\n".join(verdict.lines())
    assert verdict.as_object()["explored"] == verdict.explored


TILES = """
  .reg .b128 %q0; .reg .b32 %r5, %r6, %r7;
  .shared .align 16 .b8 answer[16]; .shared .align 8 .b8 bar[8];
  mbarrier.init.shared::cta.b64 [bar], 1;
  fence.mbarrier_init.release.cluster;
  fence.proxy.async.shared::cta;
  mov.u32 %r5, 0;
NEXT:
  mul.wide.u32 %rd3, %r1, 4; add.u64 %rd3, %rd3, %rd2;
  st.global.b32 [%rd3], VALUE;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 16;
  clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128
      [answer], [bar];
ANSWER:
  mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], %r5;
  @!%p2 bra ANSWER;
  xor.b32 %r5, %r5, 1;
  ld.shared.b128 %q0, [answer];
  fence.proxy.async.shared::cta;
  clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p3, %q0;
  @!%p3 ret;
  clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r1, %q0;
  bra NEXT;
"""


@pytest.mark.parametrize(
    ("value", "said"), [("%r1", "every order"), ("%ctaid.x", "the result depends on the order")]
)
def test_tiles_that_are_taken_are_explored(monkeypatch, value, said):
    """What a block stores is the tile, or who took it."""
    monkeypatch.setattr(f"{__name__}.HEAD", HEAD.replace("sm_90a", "sm_100a"))
    if value != "%r1":
        value, move = "%r6", "  mov.u32 %r6, %ctaid.x;\nNEXT:"
    else:
        move = "NEXT:"
    text = TILES.replace("NEXT:", move, 1).replace("VALUE", value)
    verdict, _, y = judged(text, 4, schedules="all")
    assert y[3] in (0, 3)
    assert verdict.outcome == "not decided"
    assert "whichever tile is left" in str(verdict.reasons[0])
    assert said in verdict.explored


COMES_SECOND = """
  setp.ne.u32 %p2, %r1, 0; @%p2 bra READER;
  mov.u32 %r4, 7; st.global.b32 [%rd2+16], %r4;
  atom.global.gpu.acq_rel.add.u32 %r2, [%rd1], 1;
  ret;
READER:
  atom.global.gpu.acq_rel.add.u32 %r2, [%rd1], 1;
  setp.ne.u32 %p3, %r2, WHEN; @%p3 ret;
  ld.global.b32 %r3, [%rd2+16];
  st.global.b32 [%rd2+20], %r3;
"""


def test_an_order_that_races_is_a_witness(tmp_path):
    verdict, _, _ = judged(COMES_SECOND.replace("WHEN", "1"), 2, schedules="all")
    assert verdict.outcome == "not decided"  # no order races, and not all store
    assert "the result depends on the order" in verdict.explored
    broken = COMES_SECOND.replace("WHEN", "0")  # it reads if it comes first
    judged(broken, 2)
    verdict, _, _ = judged(broken, 2, schedules="all")
    assert verdict.outcome == "witness"
    assert len(verdict.witness.plan.steps) <= 4
    file = tmp_path / "witness.json"
    file.write_text(json.dumps(verdict.as_object()["witness"]["schedule"]))
    with pytest.raises(SynchronizationFault):
        judged(broken, 2, schedule=file)


LANES = """
  setp.ne.u32 %p2, %r1, 0; @%p2 bra READER;
  add.u32 %r4, %r0, 7; mul.wide.u32 %rd4, %r0, 4; add.u64 %rd4, %rd4, %rd2;
  st.global.b32 [%rd4], %r4;
  SYNC
  @!%p1 atom.global.gpu.acq_rel.add.u32 %r2, [%rd1], 1;
  ret;
READER:
  @%p1 ret;
  atom.global.gpu.acq_rel.add.u32 %r2, [%rd1], 1;
  setp.ne.u32 %p3, %r2, 1; @%p3 ret;
  ld.global.b32 %r3, [%rd2+16];
  setp.eq.u32 %p3, %r3, 0; @%p3 st.global.b32 [%rd2+128], %r3;
"""


@pytest.mark.parametrize(
    ("sync", "outcome"), [("bar.warp.sync -1;", "proven"), ("", "not decided")]
)
def test_one_lane_tells_of_all(monkeypatch, sync, outcome):
    """Another lane of its warp may not have stored by then."""
    monkeypatch.setattr(f"{__name__}.HEAD", HEAD.replace("@%p1 ret;", ""))
    verdict, _, _ = judged(LANES.replace("SYNC", sync), 2, size=64, schedules="all")
    assert verdict.outcome == outcome, "\n".join(verdict.lines())


FLAG = """
  setp.ne.u32 %p2, %r1, 0; @%p2 bra READER;
  mov.u32 %r4, 7; st.global.b32 [%rd2+16], %r4;
  st.release.gpu.global.b32 [%rd1], 1;
  ret;
READER:
  ld.acquire.gpu.global.b32 %r2, [%rd1];
  setp.ne.u32 %p3, %r2, 1;
  @%p3 bra READER;
  ld.global.b32 %r3, [%rd2+16];
  st.global.b32 [%rd3], %r3;
"""


def test_flags_are_explored_and_not_proven():
    """Reads may see older values than any order of all accesses has."""
    verdict, _, _ = judged(FLAG, 2, schedules="all")
    assert verdict.outcome == "not decided"
    assert "flag" in str(verdict.reasons[0])
    assert "every order" in verdict.explored


def test_an_order_in_which_a_flag_is_missed():
    """A reader that looks once, and then does not wait."""
    once = FLAG.replace("@%p3 bra READER;", "@%p3 ret;").replace(
        "ne.u32 %p3, %r2, 1", "eq.u32 %p3, %r2, 1"
    )
    verdict, _, _ = judged(once, 2, schedules="all")
    assert verdict.outcome == "witness"
    assert isinstance(verdict.witness.fault, SynchronizationFault)
