"""Lanes of a warp that part at a branch meet at its end, as ptxas has it; by the letter of PTX they
need not."""

from __future__ import annotations

import random

import numpy as np
import pytest

from triton_ext.emulator import run_ptx
from triton_ext.emulator.errors import Deadlock

SCHEDULES = [("eager", 0), ("lazy", 0), *(("random", seed) for seed in range(6))]
HEADER = ".version 8.7\n.target sm_90a\n.address_size 64\n"

# LLVM has copied the waits for `first` and `full` into both sides of a branch on lane 0. If it goes
# on alone, the other warp (`PEER`) completes further phases of `full` before its siblings look.
COPIED_WAITS = f"""{HEADER}
.visible .entry copied()
{{
  .reg .pred %p<5>; .reg .b32 %r<5>; .reg .b64 %rd<3>;
  .shared .align 8 .b8 first[8];
  .shared .align 8 .b8 full[8];
  .shared .align 8 .b8 done[8];
  mov.u32 %r1, %tid.x;
  setp.eq.u32 %p1, %r1, 0;
  @%p1 mbarrier.init.shared::cta.b64 [first], 1;
  @%p1 mbarrier.init.shared::cta.b64 [full], 1;
  @%p1 mbarrier.init.shared::cta.b64 [done], 1;
  bar.sync 0;
  mov.u32 %r2, 0;
  mov.u32 %r3, 0;
  setp.lt.u32 %p2, %r1, 32;
  setp.eq.u32 %p3, %r1, 32;
  @%p2 bra MULTIPLY;
PEER:
  setp.eq.u32 %p4, %r3, 0;
  and.pred %p4, %p4, %p3;
  @%p4 mbarrier.arrive.shared::cta.b64 _, [first];
  @%p3 mbarrier.arrive.shared::cta.b64 _, [full];
W0:
  mbarrier.try_wait.parity.shared::cta.b64 %p4, [done], %r2;
  @!%p4 bra W0;
  xor.b32 %r2, %r2, 1;
  add.u32 %r3, %r3, 1;
  setp.lt.u32 %p4, %r3, 4;
  @%p4 bra PEER;
  ret;
MULTIPLY:
  @!%p1 bra SIBLINGS;
W1:
  mbarrier.try_wait.parity.shared::cta.b64 %p4, [first], 0;
  @!%p4 bra W1;
W2:
  mbarrier.try_wait.parity.shared::cta.b64 %p4, [full], %r2;
  @!%p4 bra W2;
  bra.uni END;
SIBLINGS:
  mbarrier.try_wait.parity.shared::cta.b64 %p4, [first], 0;
  @!%p4 bra SIBLINGS;
W4:
  mbarrier.try_wait.parity.shared::cta.b64 %p4, [full], %r2;
  @!%p4 bra W4;
END:
  @%p1 mbarrier.arrive.shared::cta.b64 _, [done];
  xor.b32 %r2, %r2, 1;
  add.u32 %r3, %r3, 1;
  setp.lt.u32 %p4, %r3, 4;
  @%p4 bra MULTIPLY;
  ret;
}}
"""


# The same, but lane 0 has `full` completed again, and waits for it, on its side of the branch.
WITHIN = COPIED_WAITS
for _old, _new in (
    ("  bra.uni END;", """\
  mbarrier.arrive.shared::cta.b64 _, [done];
W3:
  mbarrier.try_wait.parity.shared::cta.b64 %p4, [full], 1;
  @!%p4 bra W3;
  bra.uni END;"""),
    ("  @!%p4 bra W4;\n", """\
  @!%p4 bra W4;
W5:
  mbarrier.try_wait.parity.shared::cta.b64 %p4, [full], 1;
  @!%p4 bra W5;
"""),
    ("  xor.b32 %r2, %r2, 1;\n  add.u32 %r3, %r3, 1;\n  setp.lt.u32 %p4, %r3, 4;\n"
     "  @%p4 bra MULTIPLY;\n", ""),
    ("setp.lt.u32 %p4, %r3, 4;", "setp.lt.u32 %p4, %r3, 2;"),
):  # fmt: skip
    assert WITHIN.count(_old) == 1
    WITHIN = WITHIN.replace(_old, _new)


@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_the_sides_of_a_branch_take_turns(schedule):
    run_ptx(WITHIN, grid=1, block=64, args=[], schedule=schedule)
    with pytest.raises(Deadlock, match="warp 0"):
        run_ptx(WITHIN, grid=1, block=64, args=[], schedule=schedule, strict=True)


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_a_lane_waits_for_its_siblings_at_the_end_of_a_branch(schedule, seed):
    run_ptx(COPIED_WAITS, grid=1, block=64, args=[], schedule=schedule, seed=seed)


def test_by_the_letter_of_ptx_it_need_not():
    with pytest.raises(Deadlock, match="warp 0"):
        run_ptx(COPIED_WAITS, grid=1, block=64, args=[], strict=True)


POLLS = {
    "mbarrier.try_wait": "mbarrier.try_wait.parity.shared::cta.b64 %p3, [flag], 0;",
    "mbarrier.test_wait": "mbarrier.test_wait.parity.shared::cta.b64 %p3, [flag], 0;",
    "shared memory": "ld.volatile.shared.b32 %r2, [word]; setp.ne.u32 %p3, %r2, 0;",
    "global memory": "ld.acquire.gpu.global.b32 %r2, [%rd1]; setp.ne.u32 %p3, %r2, 0;",
    "a clock": "mov.u64 %rd2, %clock64; ld.volatile.shared.b32 %r2, [word];"
    " setp.ne.u32 %p3, %r2, 0;",
}


@pytest.mark.parametrize(
    ("poll", "schedule", "seed"),
    [(poll, *each) for poll in POLLS for each in SCHEDULES[: 1 if poll == "a clock" else 4]],
)
def test_lanes_do_not_wait_for_one_that_waits_for_them(poll, schedule, seed):
    """Lane 0 is within the branch until lane 1 has come out of it: right by the letter of PTX."""
    text = f"""{HEADER}
.visible .entry waits(.param .u64 out)
{{
  .reg .pred %p<4>; .reg .b32 %r<4>; .reg .b64 %rd<3>;
  .shared .align 8 .b8 flag[8];
  .shared .align 4 .b8 word[4];
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %tid.x;
  setp.eq.u32 %p1, %r1, 0;
  setp.eq.u32 %p2, %r1, 1;
  @%p1 mbarrier.init.shared::cta.b64 [flag], 1;
  mov.u32 %r3, 0;
  @%p1 st.shared.b32 [word], %r3;
  bar.sync 0;
  @!%p1 bra END;
POLL:
  {POLLS[poll]}
  @!%p3 bra POLL;
END:
  mov.u32 %r3, 1;
  @%p2 mbarrier.arrive.shared::cta.b64 _, [flag];
  @%p2 st.volatile.shared.b32 [word], %r3;
  @%p2 st.release.gpu.global.b32 [%rd1], %r3;
  ret;
}}
"""
    out = np.zeros(1, np.uint32)
    run_ptx(text, grid=1, block=32, args=[out], schedule=schedule, seed=seed)
    assert out[0] == 1


class Structured:
    """A program of nested branches and loops, and what its lanes do in step.

    Args:
        seed: of what is drawn.
    """

    def __init__(self, seed: int) -> None:
        self.draw, self.labels = random.Random(seed), 0
        self.text: list[str] = []
        self.tree = self._body(3)

    def _label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def _body(self, depth: int) -> list[tuple]:
        return [self._statement(depth) for _ in range(self.draw.randrange(1, 4))]

    def _statement(self, depth: int) -> tuple:
        kind = self.draw.choice(["mask", "mix", "if", "if", "loop"] if depth else ["mask", "mix"])
        emit, bit = self.text.append, self.draw.randrange(6)
        if kind == "mask":
            emit("activemask.b32 %r3; mad.lo.u32 %r2, %r2, 31, %r3;")
            return (kind,)
        if kind == "mix":
            factor = self.draw.randrange(1 << 31) | 1
            emit(f"mad.lo.u32 %r1, %r1, {factor}, {bit};")
            return kind, factor, bit
        if kind == "if":
            other, end = self._label(), self._label()
            emit(f"bfe.u32 %r3, %r1, {bit}, 1; setp.ne.u32 %p1, %r3, 0; @!%p1 bra {other};")
            then = self._body(depth - 1)
            emit(f"bra {end}; {other}:")
            # Either is at the end: what meets here has come by a jump, or by itself.
            otherwise = self._body(depth - 1) if self.draw.random() < 0.7 else []
            emit(f"{end}:")
            return kind, bit, then, otherwise
        head, end, count = self._label(), self._label(), f"%c{depth}"
        emit(f"bfe.u32 {count}, %r1, {bit}, 2; {head}:")
        emit(f"setp.eq.u32 %p1, {count}, 0; @%p1 bra {end};")
        body = self._body(depth - 1)
        emit(f"sub.u32 {count}, {count}, 1; bra {head}; {end}:")
        return kind, bit, body

    def ptx(self) -> str:
        body = "\n".join(self.text)
        return f"""{HEADER}
.visible .entry drawn(.param .u64 values, .param .u64 masks)
{{
  .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b32 %c<4>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [values];
  ld.param.u64 %rd2, [masks];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd3, %r1, 4;
  add.u64 %rd1, %rd1, %rd3;
  add.u64 %rd2, %rd2, %rd3;
  ld.global.b32 %r1, [%rd1];
  mov.u32 %r2, 1;
{body}
  st.global.b32 [%rd1], %r1;
  st.global.b32 [%rd2], %r2;
  ret;
}}
"""

    def run(self, values: list[int]) -> tuple[list[int], list[int]]:
        """The values and the sums of masks of a warp's lanes, one way after the other."""
        values, masks = list(values), [1] * len(values)

        def follow(body: list[tuple], lanes: list[int]) -> None:
            for kind, *rest in body if lanes else []:
                if kind == "mask":
                    mask = sum(1 << lane for lane in lanes)
                    for lane in lanes:
                        masks[lane] = (masks[lane] * 31 + mask) % 2**32
                elif kind == "mix":
                    for lane in lanes:
                        values[lane] = (values[lane] * rest[0] + rest[1]) % 2**32
                elif kind == "if":
                    ways: dict[int, list[int]] = {1: [], 0: []}
                    for lane in lanes:
                        ways[values[lane] >> rest[0] & 1].append(lane)
                    follow(rest[1], ways[1])
                    follow(rest[2], ways[0])
                else:
                    left = {lane: values[lane] >> rest[0] & 3 for lane in lanes}
                    while any(left.values()):
                        going = [lane for lane in lanes if left[lane]]
                        follow(rest[1], going)
                        for lane in going:
                            left[lane] -= 1

        follow(self.tree, list(range(len(values))))
        return values, masks


@pytest.mark.parametrize("seed", range(40))
def test_lanes_of_structured_programs_are_in_step(seed):
    """`activemask` sees all lanes that a nest of branches and loops has let through."""
    program = Structured(seed)
    threads = random.Random(seed).choice([32, 40, 96])
    drawn = np.random.default_rng(seed).integers(0, 2**32, threads, np.uint32)
    expected = [program.run(drawn[at : at + 32].tolist()) for at in range(0, threads, 32)]
    for schedule, draw in SCHEDULES[:4]:
        values, masks = drawn.copy(), np.zeros(threads, np.uint32)
        run_ptx(
            program.ptx(), grid=1, block=threads, args=[values, masks], schedule=schedule, seed=draw
        )
        assert values.tolist() == [each for found, _ in expected for each in found]
        assert masks.tolist() == [each for _, found in expected for each in found], (schedule, draw)
