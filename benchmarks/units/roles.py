"""A ring of TMA loads and products, whose roles write when each of their steps begins."""

from __future__ import annotations

from benchmarks.units.case import (
    DESCRIPTOR,
    FILL,
    ROW_BYTES,
    START,
    TILES,
    Boxes,
    Case,
    any_accumulator,
    end_using,
    loop,
    module,
)
from benchmarks.units.copies import LOAD, MAP, WAIT


def stamped(n: int, stages: int) -> Case:
    """A ring: warp 4 loads A (64 rows) and B (n rows), warpgroup 0 multiplies; both stamp.

    Stamps, (2, steps, 2): of the load warp, after it has waited for the stage to be empty, and
    after it has issued the copies; of the consumer, after the tiles are there, and after the
    products of the step before are done.
    """
    stage_bytes = (64 + n) * ROW_BYTES
    acc = "{" + ", ".join(f"%acc{i}" for i in range(n // 2)) + "}"
    stamp = """ mov.u64 %rd13, %clock64;
 @%p6 st.global.u64 [%rd15+{}], %rd13;
"""
    advance = f"""
 add.u64 %rd15, %rd15, 16;
 add.u32 %r22, %r22, 1;
 setp.eq.u32 %p8, %r22, {stages};
 selp.u32 %r22, 0, %r22, %p8;
 @%p8 xor.b32 %r17, %r17, 1;
"""
    place = f"""
 mad.lo.u32 %r16, %r22, {stage_bytes}, %r2;
 add.u32 %r16, %r16, {TILES};
 shl.b32 %r19, %r22, 3;
 add.u32 %r19, %r19, %r2;
"""
    products = "".join(
        f" add.u64 %rd16, %rd10, {2 * i};\n add.u64 %rd17, %rd11, {2 * i};\n"
        f" wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {acc}, %rd16, %rd17, %p3,"
        " 1, 1, 0, 0;\n"
        for i in range(4)
    )
    begin = f"""
 ld.param.u64 %rd15, [times];
 mov.u32 %r14, 0;
 mov.u32 %r15, 0;
 mov.u32 %r17, 0;
 mov.u32 %r22, 0;
 and.b32 %r18, %r1, 31;
 setp.eq.u32 %p6, %r18, 0;
 setp.lt.u32 %p7, %r1, 32;
 setp.ge.u32 %p10, %r1, 128;
 mov.u64 %rd12, {DESCRIPTOR};
 setp.eq.u32 %p3, %r14, 0;
"""

    def ptx(repeats: int) -> str:
        load = place + " xor.b32 %r21, %r17, 1;\n"
        load += WAIT.format(name="E", barrier=f"%r19+{8 * stages}", parity="%r21")
        load += stamp.format(0)
        load += f" @%p6 mbarrier.arrive.expect_tx.shared.b64 _, [%r19], {stage_bytes};\n"
        load += " @%p6" + LOAD.format(to="%r16", row="%r15", barrier="%r19")
        load += f" add.u32 %r23, %r16, {64 * ROW_BYTES};\n add.u32 %r24, %r15, 64;\n"
        for first in range(0, n, 64):
            load += " @%p6" + LOAD.format(
                to=f"%r23+{first * ROW_BYTES}", row="%r24", barrier="%r19"
            )
            load += " add.u32 %r24, %r24, 64;\n"
        load += stamp.format(8) + advance
        use = place + WAIT.format(name="F", barrier="%r19", parity="%r17") + stamp.format(0)
        use += " shr.u32 %r20, %r16, 4;\n cvt.u64.u32 %rd10, %r20;\n or.b64 %rd10, %rd10, %rd12;\n"
        use += f" add.u64 %rd11, %rd10, {64 * ROW_BYTES // 16};\n"
        use += " wgmma.fence.sync.aligned;\n" + products
        use += " wgmma.commit_group.sync.aligned;\n wgmma.wait_group.sync.aligned 0;\n"
        use += f" @%p6 mbarrier.arrive.shared.b64 _, [%r19+{8 * stages}];\n"
        use += stamp.format(8).replace("%p6", "%p11") + advance
        use = use.replace(stamp.format(0), stamp.format(0).replace("%p6", "%p11"))
        text = FILL + MAP
        for i in range(stages):
            text += f" @%p2 mbarrier.init.shared.b64 [%r2+{8 * i}], 1;\n"
            text += f" @%p2 mbarrier.init.shared.b64 [%r2+{8 * (stages + i)}], 4;\n"
        text += " fence.proxy.async;\n bar.sync 0;\n" + begin
        text += " and.pred %p11, %p6, %p7;\n"
        text += "".join(f" mov.b32 %acc{i}, 0;\n" for i in range(n // 2)) + START
        text += " @!%p10 bra USE;\n" + loop(load, repeats, "LL") + " bra DONE;\nUSE:\n"
        text += f" add.u64 %rd15, %rd15, {16 * repeats};\n" + loop(use, repeats, "LU") + "DONE:\n"
        text += end_using(" mov.u32 %r10, 0;\n" + any_accumulator(n))
        return module(
            text, ", .param .align 64 .b8 map[128], .param .u64 data, .param .u64 times",
            f" .reg .b32 %acc<{n // 2}>;",
        )  # fmt: skip

    facts = {"n": n, "stages": stages}
    return Case("stamps", facts, ptx, block=160, map=Boxes(64, 64 + n), stamps=2)
