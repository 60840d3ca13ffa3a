"""Where the ways from a branch meet, against the definition, on drawn graphs of instructions."""

from __future__ import annotations

import random

import pytest

from triton_ext.ptx.control_flow import meeting_points
from triton_ext.ptx.parse import parse_ptx


def drawn(seed: int) -> tuple[list[str], list[int]]:
    """Instructions, and for each the number of the one that it may go to, or -1."""
    draw = random.Random(seed)
    number = draw.randrange(3, 24)
    kinds = ["add"] * draw.randrange(1, 6) + ["bra", "@bra", "@bra", "@bra"]
    kinds += draw.sample(["ret", "exit", "trap", "@ret", "ret.uni"], 2)
    chosen = [draw.choice(kinds) for _ in range(number)]
    if draw.random() < 0.7:
        chosen[-1] = "ret"
    return chosen, [draw.randrange(number) if "bra" in kind else -1 for kind in chosen]


def text(kinds: list[str], targets: list[int]) -> str:
    written = {"add": "add.u32 %r1, %r1, 1", "@bra": "@%p1 bra", "@ret": "@%p1 ret"}
    lines = [".version 8.7", ".target sm_90a", ".address_size 64", ".visible .entry k() {",
             ".reg .pred %p<2>;", ".reg .b32 %r<2>;"]  # fmt: skip
    for number, (kind, target) in enumerate(zip(kinds, targets, strict=True)):
        goes = f" L{target}" if target >= 0 else ""
        lines.append(f"L{number}: {written.get(kind, kind)}{goes};")
    return "\n".join([*lines, "}"])


def ways(kinds: list[str], targets: list[int]) -> list[list[int]]:
    """The instructions that may follow each; one more than there are is the end."""
    end, found = len(kinds), []
    for number, kind in enumerate(kinds):
        after = [number + 1] if kind in ("add", "@bra", "@ret") else []
        after += [targets[number]] if targets[number] >= 0 else []
        after += [end] if "ret" in kind or kind == "exit" else []
        found.append(after)
    return [*found, []]


def leads(after: list[list[int]], start: int, goal: int, without: int) -> bool:
    """Whether a way leads to an instruction that does not pass another one."""
    seen, left = {without, start}, [start]
    while left:
        for each in after[left.pop()]:
            if each == goal:
                return True
            if each not in seen:
                seen.add(each)
                left.append(each)
    return False


@pytest.mark.parametrize("seed", range(100))
def test_ways_meet_at_the_first_instruction_that_all_pass(seed):
    kinds, targets = drawn(seed)
    after, end = ways(kinds, targets), len(kinds)
    found = meeting_points(parse_ptx(text(kinds, targets)).kernels[0])
    for branch, kind in enumerate(kinds):
        if kind != "@bra" or not leads(after, branch, end, -1):
            assert branch not in found
            continue
        passed = [n for n in range(end) if n != branch and not leads(after, branch, end, n)]
        first = [n for n in passed if all(m == n or not leads(after, n, end, m) for m in passed)]
        if set(after[branch]) == {branch + 1}:  # both ways are one
            continue
        assert found.get(branch) == (first[0] if first else None), text(kinds, targets)
