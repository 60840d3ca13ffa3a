"""The PTX that several test files read; what is under ``data/`` is described in its README."""

from __future__ import annotations

import struct

from sites import DATA

from triton_ext.ptx.listing import list_instructions
from triton_ext.ptx.parse import parse_ptx

REAL = sorted(DATA.glob("*.ptx"))
HEADER = ".version 8.7\n.target {target}\n.address_size 64\n"

PTX = """//
.version 8.7
.target sm_100a
.address_size 64
.extern .shared .align 16 .b8 smem[];
.visible .entry k(.param .u64 k_param_0, .param .align 64 .b8 k_param_1[128])
{
\t.reg .b64 %rd<9>;
\t.loc\t1 7 3
\tmov.b32 \t%r1, smem;
\tadd.s32 \t%r2, %r1, 1024;
\tshr.u32 \t%r3, %r2, 4;
\tcvt.u64.u32 \t%rd1, %r3;
\tor.b64 \t%rd2, %rd1, 0x4000404000010000;
\tld.param.u64 \t%rd3, [k_param_0];
\tand.b64 \t%rd4, %rd3, 16383;
\tor.b64 \t%rd5, %rd4, 4611756662049538048;
\tmov.b32 \t%r9, 0x8200010;
$L__BB0_1:
\t{ .reg .pred q; setp.ne.u32 q, 1, 0;
\t@%p1 tcgen05.mma.cta_group::1.kind::f16 [%r7], %rd2, %rd5, %r9, q; }
\t@!%p2 bra $L__BB0_1;
\tmbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+8], 32768;
\tret;
}
\t.file\t1 "kernel.py"
"""


def listing(text):
    return list(list_instructions(parse_ptx(text)))


def fatbin(*entries):
    """A fatbin of (kind, content, flags, compressed size, original size)."""
    body = b"".join(
        struct.pack("<HHIQI20xQ8xQ", kind, 257, 64, len(data), packed, flags, size) + data
        for kind, data, flags, packed, size in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
