"""Products of wgmma, at the clock that there is, and for as long as the power is read."""

from __future__ import annotations

from benchmarks.units.case import (
    DESCRIPTOR,
    FILL,
    ROW_BYTES,
    SMS,
    START,
    TILES,
    Boxes,
    Case,
    any_accumulator,
    end_using,
    loop,
    module,
)
from benchmarks.units.copies import LOAD, MAP, WAIT, init_barriers

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


SCRAMBLED = """
 mul.lo.u32 %r6, %r3, 0x9E3779B1;
 shr.u32 %r9, %r6, 15;
 xor.b32 %r6, %r6, %r9;
 mul.lo.u32 %r6, %r6, 0x85EBCA77;
 and.b32 %r6, %r6, 0x80FF80FF;
 or.b32 %r6, %r6, 0x3F003F00;
"""
WATCHED_CYCLES = 8e8
"""About how long a launch takes whose power is read."""
BOXES = 4
"""In flight."""
RING_AT = TILES + (96 << 10)
"""Where copied boxes lie: products do not read them."""


def power(n: int, pause: int = 0, source: str = "", random: bool = True) -> Case:
    """All SMs multiply 64 x n x 64, by two warpgroups, for half a second; clock and power.

    Args:
        n: columns; 0 for pauses alone.
        pause: nanoseconds between 4 such products.
        source: where one more warp copies boxes of 16 KB from meanwhile: "L2", "memory" or
            nowhere. ``beside`` is how many turns of 4 boxes it makes in a repetition.
        random: whether what is multiplied is random, or zeros.
    """
    rows, size = 128, 128 * ROW_BYTES
    spread = rows * BOXES * (16 if source == "memory" else 1)
    acc = "{" + ", ".join(f"%acc{i}" for i in range(n // 2)) + "}"
    body = " wgmma.fence.sync.aligned;\n" if n else ""
    for i in range(16 if n else 0):
        body += f" add.u64 %rd13, %rd10, {2 * (i % 4)};\n add.u64 %rd14, %rd11, {2 * (i % 4)};\n"
        body += (
            f" wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {acc}, %rd13, %rd14,"
            " 1, 1, 1, 0, 0;\n"
        )
    if n:
        body += " wgmma.commit_group.sync.aligned;\n wgmma.wait_group.sync.aligned 0;\n"
    if pause:
        body += f" nanosleep.u32 {pause};\n"
    copies = "".join(
        WAIT.format(name=f"C{i}", barrier=f"%r2+{8 * i}", parity="%r17")
        + f" mbarrier.arrive.expect_tx.shared.b64 _, [%r2+{8 * i}], {size};\n"
        + LOAD.format(to=f"%r16+{i * size}", row="%r15", barrier=f"%r2+{8 * i}")
        + f" add.u32 %r15, %r15, {rows};\n"
        for i in range(BOXES)
    )

    def ptx(repeats: int) -> str:
        text = FILL.replace("FILL:\n", "FILL:\n" + (SCRAMBLED if random else ""))
        text += "" if n == 0 else f"""
 shr.u32 %r7, %r1, 7;
 mul.lo.u32 %r7, %r7, 8192;
 add.u32 %r7, %r7, %r2;
 add.u32 %r7, %r7, {TILES};
 shr.u32 %r8, %r7, 4;
 cvt.u64.u32 %rd10, %r8;
 add.u32 %r7, %r2, {TILES + 16384};
 shr.u32 %r8, %r7, 4;
 cvt.u64.u32 %rd11, %r8;
 mov.u64 %rd12, {DESCRIPTOR};
 or.b64 %rd10, %rd10, %rd12;
 or.b64 %rd11, %rd11, %rd12;
""" + "".join(f" mov.b32 %acc{i}, 0;\n" for i in range(n // 2))  # fmt: skip
        text += " mov.u32 %r10, 0;\n @%p2 st.shared.u32 [%r2+1024], %r10;\n"
        text += " mov.u64 %rd24, 0;\n setp.ge.u32 %p8, %r1, 256;\n"
        if source:
            text += (
                MAP + init_barriers(BOXES) + f" mov.u32 %r14, 0;\n add.u32 %r16, %r2, {RING_AT};\n"
            )
            text += f" mov.u32 %r18, %ctaid.x;\n mul.lo.u32 %r18, %r18, {spread};\n"
            text += " mov.u32 %r15, %r18;\n mov.u32 %r17, 1;\n mov.u32 %r19, 0;\n"
        text += START + " @%p8 bra OTHERS;\n" + loop(body, repeats)
        text += " @%p2 st.volatile.shared.u32 [%r2+1024], 1;\n bra DONE;\nOTHERS:\n"
        if source:
            text += " setp.ne.u32 %p6, %r1, 256;\n @%p6 bra DONE;\nAGAIN:\n" + copies
            text += f""" xor.b32 %r17, %r17, 1;
 add.u64 %rd24, %rd24, 1;
 sub.u32 %r19, %r15, %r18;
 setp.ge.u32 %p6, %r19, {spread};
 @%p6 mov.u32 %r15, %r18;
 ld.volatile.shared.u32 %r10, [%r2+1024];
 setp.eq.u32 %p6, %r10, 0;
 @%p6 bra AGAIN;
"""
            text += "".join(
                WAIT.format(name=f"E{i}", barrier=f"%r2+{8 * i}", parity="%r17")
                for i in range(BOXES)
            )
        text += "DONE:\n" + (any_accumulator(n) if n else " setp.eq.u32 %p4, %r10, 12345;\n")
        counted = " @%p8 mov.u64 %rd20, 0;\n @%p8 mov.u64 %rd21, %rd24;\n"
        text += end_using().replace(" ld.param", counted + " ld.param")
        parameters = ", .param .align 64 .b8 map[128], .param .u64 data" if source else ""
        return module(text, parameters, f" .reg .b32 %acc<{max(1, n // 2)}>;")

    cycles = 16 * n + 100 * (n > 0) + 1.7 * pause
    facts = {"n": n, "pause": pause, "from": source or "nowhere", "random": random}
    return Case(
        "power", facts, ptx, block=256 + 32 * bool(source), grid=SMS, per=1,
        map=Boxes(rows, SMS * spread) if source else None, repeats=int(WATCHED_CYCLES / cycles),
        beside=32 * bool(source), random=True, watched=True,
    )  # fmt: skip
