"""Global memory, read and written by all blocks, or by one thread."""

from __future__ import annotations

from benchmarks.units.case import END, FILL, START, Case, end_using, loop, module


def streaming(grid: int, megabytes: int, store: bool) -> Case:
    """All blocks read (and write) a buffer in lines of 16 bytes a thread, round and round."""

    def ptx(repeats: int) -> str:
        span = megabytes << 20
        lines = ""
        for i in range(8):
            lines += f" and.b64 %rd5, %rd4, {span - 1};\n add.u64 %rd6, %rd3, %rd5;\n"
            registers = "{" + ", ".join(f"%q{4 * i + j}" for j in range(4)) + "}"
            if store:
                lines += " st.global.v4.u32 [%rd6], {%r10, %r10, %r10, %r10};\n"
            else:
                lines += f" ld.global.v4.u32 {registers}, [%rd6];\n"
            lines += " add.u64 %rd4, %rd4, %rd7;\n"
        if not store:
            lines += "".join(f" xor.b32 %r10, %r10, %q{j};\n" for j in range(32))
        text = FILL + " ld.param.u64 %rd3, [data];\n mov.u32 %r10, 0;\n mov.u32 %r11, %ctaid.x;\n"
        text += (
            " mov.u32 %r13, %nctaid.x;\n mov.u32 %r12, %ntid.x;\n mul.lo.u32 %r13, %r13, %r12;\n"
        )
        text += " mul.wide.u32 %rd7, %r13, 16;\n mad.lo.u32 %r11, %r11, %r12, %r1;\n"
        text += " mul.wide.u32 %rd4, %r11, 16;\n" + START + loop(lines, repeats)
        text += " setp.eq.u32 %p4, %r10, 123456;\n"
        text += end_using()
        return module(text, ", .param .u64 data", " .reg .b32 %q<32>;")

    facts = {"megabytes": megabytes, "access": "store" if store else "load"}
    return Case(
        "global", facts, ptx, block=1024, grid=grid, per=8, buffer=megabytes << 20,
        bytes=8 * 16 * 1024, repeats=128,
    )  # fmt: skip


def chase(megabytes: int) -> Case:
    """One thread's dependent loads, a stride of 4224 bytes apart; the buffer holds zeros."""

    def ptx(repeats: int) -> str:
        span = megabytes << 20
        line = f""" and.b64 %rd5, %rd4, {span - 1};
 add.u64 %rd6, %rd3, %rd5;
 ld.volatile.global.u64 %rd8, [%rd6];
 add.u64 %rd4, %rd4, 4224;
 add.u64 %rd4, %rd4, %rd8;
"""
        text = FILL + " ld.param.u64 %rd3, [data];\n mov.u64 %rd4, 0;\n" + START
        text += loop(line * 4, repeats) + " add.u64 %rd21, %rd4, 0;\n" + END
        return module(text, ", .param .u64 data")

    facts = {"megabytes": megabytes, "access": "dependent loads"}
    return Case("global", facts, ptx, 32, per=4, buffer=megabytes << 20, repeats=512)
