"""Products of wgmma, at the clock that there is."""

from __future__ import annotations

from benchmarks.units.case import (
    DESCRIPTOR,
    FILL,
    START,
    TILES,
    Case,
    any_accumulator,
    end_using,
    loop,
    module,
)

K_ELEMENTS = {"bf16": 16, "e4m3": 32, "tf32": 8, "s8": 32}


def wgmma(
    n: int,
    kind: str = "bf16",
    registers: bool = False,
    groups: int = 1,
    run: int = 4,
) -> Case:
    """`run` products of 64 x n, committed and awaited together, by so many warpgroups."""
    integers = kind == "s8"
    d_type = "s32" if integers else "f32"
    acc = "{" + ", ".join(f"%acc{i}" for i in range(n // 2)) + "}"
    a = "{%r10, %r11, %r12, %r13}" if registers else "%rd10"
    tail = (
        "%p3"
        + ("" if integers else ", 1, 1")
        + ((", 0" if registers else ", 0, 0") if kind == "bf16" else "")
    )
    product = (
        f" wgmma.mma_async.sync.aligned.m64n{n}k{K_ELEMENTS[kind]}.{d_type}.{kind}.{kind}"
        f" {acc}, {a}, %rd11, {tail};\n"
    )
    body = " wgmma.fence.sync.aligned;\n" + product * run
    body += " wgmma.commit_group.sync.aligned;\n wgmma.wait_group.sync.aligned 0;\n"
    zero = "".join(f" mov.b32 %acc{i}, 0;\n" for i in range(n // 2))
    zero += "".join(f" mov.b32 %r{i}, 0;\n" for i in range(10, 14)) + " setp.eq.u32 %p3, %r10, 0;\n"
    setup = f"""
 add.u32 %r7, %r2, {TILES};
 shr.u32 %r8, %r7, 4;
 cvt.u64.u32 %rd10, %r8;
 mov.u64 %rd12, {DESCRIPTOR};
 or.b64 %rd10, %rd10, %rd12;
 add.u64 %rd11, %rd10, 1024;
"""

    def ptx(repeats: int) -> str:
        text = FILL + setup + zero
        registers = f" .reg .b32 %acc<{max(1, n // 2)}>;"
        text += START + loop(body, repeats) + end_using(any_accumulator(n))
        return module(text, registers=registers)

    facts = {"n": n, "type": kind, "a": "registers" if registers else "shared", "groups": groups,
             "run": run}  # fmt: skip
    return Case("wgmma", facts, ptx, block=128 * groups, per=run)
