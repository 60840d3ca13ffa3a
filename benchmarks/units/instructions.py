"""Instructions that a warp executes by itself."""

from __future__ import annotations

from typing import Any

from benchmarks.units.case import (
    FILL,
    START,
    TILES,
    Case,
    different_floats,
    end_using,
    loop,
    module,
)
from benchmarks.units.copies import CLUSTER_SYNC

CHAINS = 8
"""Chains of dependent instructions in a thread, so that their latency does not bind."""
EXPONENTIAL = " ex2.approx.ftz.f32 %f{j}, %f{j};\n"
_SUMS = "{%f{j}, %f1{j}, %f2{j}, %f3{j}}"
MMA = (
    f" mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {_SUMS},"
    f" {{%r10, %r11, %r12, %r13}}, {{%r14, %r15}}, {_SUMS};"
)


def simple(
    name: str,
    line: str,
    per: int,
    warps: int = 4,
    size: int = 0,
    cluster: int = 1,
    directives: str = "",
    **facts: Any,
) -> Case:
    """`per` copies of a line of PTX in a loop, in each of so many warps.

    Args:
        line: ``{i}`` becomes one of 4 numbers, ``{j}`` one of `CHAINS`. All of %r10 to %r17, %rd10
            to %rd17 and %f0 to %f39 differ by thread, so that nothing is uniform, and are used in
            the end, so that nothing is dead.
        size: bytes of a line in a warp.
        cluster: blocks that do the same, in one cluster.
        directives: of the kernel.
    """

    def ptx(repeats: int) -> str:
        lines = "".join(
            line.replace("{i}", str(i % 4)).replace("{j}", str(i % CHAINS)) + "\n"
            for i in range(per)
        )
        text = FILL
        for i in range(10, 18):
            text += f" add.u32 %r{i}, %r1, {i};\n cvt.u64.u32 %rd{i}, %r{i};\n"
        text += different_floats(40)
        text += (
            f" shl.b32 %r20, %r1, 4;\n add.u32 %r20, %r20, %r2;\n add.u32 %r20, %r20, {TILES};\n"
        )
        text += CLUSTER_SYNC if cluster > 1 else ""
        text += START + loop(lines, repeats)
        text += " mov.u32 %r19, 0;\n"
        text += "".join(f" xor.b32 %r19, %r19, %f{i};\n" for i in range(40))
        for i in range(10, 18):
            text += f" shr.u64 %rd1, %rd{i}, 32;\n cvt.u32.u64 %r18, %rd1;\n"
            text += f" xor.b32 %r19, %r19, %r18;\n xor.b32 %r19, %r19, %r{i};\n"
        text += " setp.eq.u32 %p4, %r19, 123456;\n"
        text += end_using()
        return module(text, registers=" .reg .f32 %f<40>;", directives=directives)

    facts = {"warps": warps, **({"cluster": cluster} if cluster > 1 else {}), **facts}
    return Case(
        name, facts, ptx, 32 * warps, grid=cluster, per=per, bytes=size * warps * per,
        cluster=cluster,
    )  # fmt: skip
