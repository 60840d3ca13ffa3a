"""What is known of a kernel's registers, and the listing of its instructions."""

from __future__ import annotations

import collections
import json
import random

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_configurations import compile_jobs
from mutations import some
from ptx_samples import DATA, HEADER, PTX, listing
from sites import triton_sites

from triton_ext.cli import main
from triton_ext.ptx.folding import Folder
from triton_ext.ptx.parse import parse_ptx, type_bits


def test_parsing_and_folding():
    module = parse_ptx(PTX)
    assert (module.version, module.target) == ("8.7", "sm_100a")
    (kernel,) = module.kernels
    assert (kernel.name, kernel.parameters) == ("k", ("k_param_0", "k_param_1"))
    assert list(kernel.labels) == [("$L__BB0_1", ())]
    mma = next(i for i in kernel.instructions if i.opcode.startswith("tcgen05"))
    assert (mma.predicate, str(mma.source), mma.line) == ("%p1", "kernel.py:7", 21)
    folder = Folder(kernel)
    assert folder.operand("%rd2", 64).value == 0x4000404000010040
    partly = folder.operand("%rd5", 64)
    assert partly.field(0, 14) is None
    assert partly.field(16, 48) == 0x400040400001
    assert folder.operand("%rd3", 64).known == 0
    assert folder.address("[%r1+8]").value == 8
    assert folder.root("[%r1+8]") == ("smem", 8)
    assert folder.root("%rd3") == ("[k_param_0]", 0)
    found, barrier = listing(PTX)
    assert found.notes == (
        "D: tensor memory %r7",
        "A: 0x4000404000010040 +1024, LBO 16 (not read), SBO 1024, swizzle 128B",
        "B: 0x4000404000010000 at a start address that is not known, LBO 16 (not read), SBO 1024,"
        " swizzle 128B",
        "0x08200010: kind f16: D[128x128] f32 = A[128x16] f16 x B[16x128] f16",
        "0x08200010: A is K-major, B is K-major",
        "D = D + A x B",
    )
    assert found.values["A"]["start_address"] == 1024
    assert found.values["B"]["start_address"] is None
    assert found.values["instruction_descriptor"]["n"] == 128
    assert barrier.notes == ("arrives and expects 32768 bytes, at the mbarrier at +8",)


# ------------------------------------------------------- known bits, held against execution

MASK = (1 << 32) - 1


def signed(value):
    return value - (1 << 32) if value >> 31 else value


def bfi(a, b, start, length):
    start, length = start & 255, length & 255
    hole = ((1 << length) - 1) << start & MASK
    return b & ~hole | a << start & hole


def lop3(a, b, c, table):
    bits = (
        (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i for i in range(32)
    )
    return sum(bits)


EXECUTE = {
    "mov.b32": lambda a: a,
    "add.s32": lambda a, b: a + b,
    "sub.s32": lambda a, b: a - b,
    "neg.s32": lambda a: -a,
    "not.b32": lambda a: ~a,
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "xor.b32": lambda a, b: a ^ b,
    "shl.b32": lambda a, n: a << n if n < 32 else 0,
    "shr.u32": lambda a, n: a >> n if n < 32 else 0,
    "shr.s32": lambda a, n: signed(a) >> min(n, 31),
    "mul.lo.s32": lambda a, b: a * b,
    "mad.lo.s32": lambda a, b, c: a * b + c,
    "bfe.u32": lambda a, start, n: a >> (start & 255) & (1 << (n & 255)) - 1,
    "bfi.b32": bfi,
    "lop3.b32": lop3,
}
"""Opcode -> its meaning over 32 bits (PTX ISA, the instructions' "Semantics")."""
COUNTS = {"shl.b32": 1, "shr.u32": 1, "shr.s32": 1, "bfe.u32": 2, "bfi.b32": 2, "lop3.b32": 1}
"""How many of the last operands are small numbers here."""


REGISTERS = 5


@st.composite
def programs(draw):
    """Steps (guard, opcode, target, operands) over %r0 to %r4; "bra" goes to the step `target`.

    The registers are set first: to constants, or to what is loaded, which is not known.
    """
    steps = [
        ("", "mov.b32", i, [draw(st.one_of(st.integers(0, MASK), st.none()))])
        for i in range(REGISTERS)
    ]
    count = draw(st.integers(1, 12))
    for _ in range(count):
        guard = draw(st.sampled_from(["", "", "", "%p0", "!%p1"]))
        if draw(st.integers(0, 3)) == 0:
            steps.append((guard, "bra", draw(st.integers(0, REGISTERS + count)), []))
            continue
        opcode = draw(st.sampled_from(sorted(EXECUTE)))
        number = EXECUTE[opcode].__code__.co_argcount
        operands = []
        for index in range(number):
            if index >= number - COUNTS.get(opcode, 0):
                operands.append(draw(st.integers(0, 255 if opcode == "lop3.b32" else 40)))
            elif draw(st.booleans()):
                operands.append(f"%r{draw(st.integers(0, REGISTERS - 1))}")
            else:
                operands.append(draw(st.one_of(st.integers(0, 16), st.integers(0, MASK))))
        steps.append((guard, opcode, draw(st.integers(0, REGISTERS - 1)), operands))
    return steps


def ptx_of(steps):
    lines = []
    for number, (guard, opcode, target, operands) in enumerate(steps):
        text = f"{opcode} %r{target}, {', '.join(map(str, operands))}"
        if opcode == "bra":
            text = f"bra L{target}"
        elif operands == [None]:
            text = f"ld.global.u32 %r{target}, [%rd1]"
        lines.append(f"L{number}: {f'@{guard} ' if guard else ''}{text};")
    return "\n".join([*lines, f"L{len(steps)}: ret;"])


def executed(steps, generator):
    """(step, registers before it) of one execution, until it branches back."""
    registers: dict[int, int] = {}
    predicates = {"%p0": generator.random() < 0.5, "!%p1": generator.random() < 0.5, "": True}
    number = 0
    while number < len(steps):
        yield number, dict(registers)
        guard, opcode, target, operands = steps[number]
        number += 1
        if not predicates[guard]:
            continue
        if opcode == "bra":
            if target < number:
                return
            number = target
        elif operands == [None]:
            registers[target] = generator.choice([0, MASK, generator.getrandbits(32)])
        else:
            read = [registers[int(o[2:])] if isinstance(o, str) else o for o in operands]
            registers[target] = EXECUTE[opcode](*read) & MASK
    yield number, registers


@settings(max_examples=some(150))
@given(programs(), st.randoms(use_true_random=False))
def test_known_bits_are_those_of_every_execution(steps, generator):
    """Register values at each instruction, the first time through each loop."""
    text = HEADER.format(target="sm_90a") + ".entry k()\n{\n" + ptx_of(steps) + "\n}\n"
    kernel = parse_ptx(text).kernels[0]
    folder = Folder(kernel)
    for _ in range(6):
        for number, registers in executed(steps, generator):
            for register, value in registers.items():
                known = folder.operand(f"%r{register}", 32, kernel.instructions[number])
                assert value & known.known == known.value, (ptx_of(steps), number, register)


def test_straight_line_code_of_constants_is_known():
    """Nothing is lost where all is known."""
    generator = random.Random(5)
    for opcode, meaning in EXECUTE.items():
        for _ in range(20):
            count = meaning.__code__.co_argcount
            small = COUNTS.get(opcode, 0)
            operands = [generator.getrandbits(32) for _ in range(count - small)]
            operands += [generator.randrange(256 if opcode == "lop3.b32" else 33)] * small
            bits, _, _ = fold(f"{opcode} %r9, {', '.join(map(str, operands))};")
            assert bits.field(0, 32) == meaning(*operands) & MASK, (opcode, operands)


def fold(body, name="%r9", width=32):
    """What is known of a register, and what that hangs on."""
    text = HEADER.format(target="sm_100a") + (
        ".extern .shared .b8 a[];\n.shared .b8 b[16];\n.global .b8 g[16];\n"
        f".visible .entry k(.param .u32 k_param_0)\n{{\n.reg .b32 %r<99>;\n{body}\n}}\n"
    )
    module = parse_ptx(text)
    folder = Folder(module.kernels[0], module.variables)
    return folder.operand(name, width), sorted(folder.origins(name)), folder


@pytest.mark.parametrize(
    ("body", "value", "origins"),
    [
        ("mov.b64 {_, %r9}, 0x700000005;", 7, []),
        ("mov.b64 {%r8, %r9}, 0x700000005;", 7, []),
        ("mov.b32 %r8, b+4; mov.b32 %r7, {%rs1, %rs2}; add.s32 %r9, %r8, 4;", 8, ["b"]),
        ("mov.u64 %rd1, g; cvt.u32.u64 %r9, %rd1;", None, []),
        ("ld.param.u32 %r9, [k_param_0];", None, []),
        ("mov.u32 %r1, %ctaid.x; shl.b32 %r9, %r1, 7;", 0, ["%ctaid.x"]),
        ("mov.b32 %r1, 3; L: add.s32 %r9, %r1, 1; add.s32 %r1, %r1, 1; bra L;", 4, ["%r1"]),
        ("mov.b32 %r1, a; mapa.shared::cluster.u32 %r2, %r1, 1; add.s32 %r9, %r2, 8;", None, ["a"]),
        ("setp.lt.s32 %p1, -1, 0; selp.b32 %r9, 5, 6, %p1;", 5, []),
        ("setp.lt.u32 %p1, -1, 0; selp.b32 %r9, 5, 6, %p1;", 6, []),
        ("setp.eq.s32 %p1|%p2, 1, 1; selp.b32 %r9, 5, 6, %p2;", 6, []),
        ("mov.pred %p1, -1; not.pred %p2, %p1; selp.b32 %r9, 5, 6, !%p2;", 5, []),
        ("mov.b32 %r1, 2; { .reg .b32 t; mov.b32 t, 4; add.s32 %r9, t, %r1; }", 6, []),
        ("{ .reg .b32 t; mov.b32 t, 4; } { .reg .b32 t; mov.b32 t, 5; mov.b32 %r9, t; }", 5, []),
        ("bra M; L: mov.b32 %r9, %r1; bra N; M: mov.b32 %r1, 3; bra L; N: ret;", 3, []),
    ],
)  # fmt: skip
def test_folding(body, value, origins):
    bits, found, _ = fold(body)
    assert bits.field(0, 32) == value
    if value is not None:
        assert found == origins


def test_folding_is_not_deep():
    """Ten thousand definitions in a chain, in order and behind their uses: no deep recursion."""
    chain = [f"add.s32 %r{i}, %r{i + 1}, 1;" for i in range(10_000)]
    start = "mov.b32 %r10000, 0;"
    bits, _, folder = fold("\n".join([start, *reversed(chain)]), "%r0")
    assert bits.field(0, 32) == 10_000
    assert folder.root("%r0") == ("0", 10_000)
    bits, _, folder = fold("\n".join([*chain, start]), "%r0")
    assert not bits.known
    assert folder.root("%r0") == ("0", 10_000)


def test_a_pipelined_loop():
    """As Triton's pipeliner writes it: the stage is -1 before the loop, whose head steps it."""
    body = """
        mov.b32 %r1, -1; mov.b32 %r2, 0; bra HEAD;
        LATCH: add.s32 %r2, %r2, 64; setp.ne.s32 %p9, %r2, %r5; @!%p9 bra END;
        HEAD: add.s32 %r3, %r1, 1; setp.lt.u32 %p1, %r1, 2147483647; selp.b32 %r1, 0, %r3, %p1;
        shl.b32 %r4, %r1, 14; add.s32 %r9, %r4, %r2; @%p2 bra LATCH; bra LATCH;
        END: ret;
    """
    bits, origins, folder = fold(body)
    assert (bits.field(0, 32), origins) == (0, ["%r1", "%r2"])
    end = folder.kernel.instructions[-1]
    assert folder.operand("%r2", 32, end).field(0, 32) == 64  # after the first iteration


def test_part_of_a_descriptor():
    """As CUTLASS's ring of stages makes it: the stage is multiplied into the lower half."""
    text = HEADER.format(target="sm_90a") + (
        ".visible .entry k(.param .u32 k_param_0)\n{\nld.param.u32 %r1, [k_param_0];\n"
        "mad.lo.s32 %r2, %r1, 1536, 64;\nmov.b64 %rd1, {%r2, 1073741888};\n"
        "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%r5, %r6, %r7, %r8}, %rd1, %rd1, 1, 1,"
        " 1;\n}\n"
    )
    [found] = listing(text)
    assert found.notes[1] == (
        "A: descriptor %rd1, not known at compile time, but for SBO 1024, swizzle 128B"
    )


def test_part_of_a_sum_is_known():
    """The low bits of base + 32 * unknown, and the high ones where no carry gets to."""
    bits, _, _ = fold("ld.param.u32 %r1, [k_param_0]; and.b32 %r2, %r1, 224; add.s32 %r9, %r2, 7;")
    assert (bits.field(0, 5), bits.field(5, 1), bits.field(8, 24)) == (7, None, 0)


# ------------------------------------------------------------------------- the listing

# Instructions as the PTX ISA's own sections and examples have them, and what is said of them.
CASES = [
    (100, "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes"
     " [a+64], [%rd1, {5, %r2}], [a+8];",
     ["TMA copy, 2 dimensions: tensor map %rd1 at {5, %r2} -> shared memory +64",
      "arrives at the mbarrier at +8"],
     {"dimensions": 2, "coordinates": [5, "%r2"], "shared_address": 64, "mbarrier": 8}),
    (90, "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
     ".multicast::cluster.L2::cache_hint [a], [m, {0}], [a+8], 5, 0x12F0000000000000;",
     ["TMA copy, 1 dimension: tensor map m at {0} -> shared memory of the cluster +0",
      "arrives at the mbarrier at +8", "multicast to CTAs 0, 2",
      "cache policy 0x12f0000000000000 (evict_first)"],
     {"multicast": [0, 2]}),
    (90, "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
     " [a], [m, {1, 2, 3, 4}], [a+8], {0, 1};",
     ["TMA copy, 4 dimensions, im2col: tensor map m at {1, 2, 3, 4} -> shared memory of the"
      " cluster +0", "arrives at the mbarrier at +8"],
     {"mode": "im2col", "coordinates": [1, 2, 3, 4]}),
    (100, "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes"
     ".cta_group::2 [a], [m, {1, 2, 3, 4, 5}], [a+8];",
     ["TMA copy, 2 dimensions, tile::gather4: tensor map m at {1, 2, 3, 4, 5} -> shared memory +0",
      "arrives at the mbarrier at +8",
      "cta_group::2: the mbarrier may be that of either CTA of the pair"],
     {"mode": "tile::gather4", "cta_group": 2}),
    (90, "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [m, {1, 2, 3}], [a+32];",
     ["TMA copy, 3 dimensions: shared memory +32 -> tensor map m at {1, 2, 3}"],
     {"source": "shared::cta", "destination": "global"}),
    (90, "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [m, {1, 2}], [a];",
     ["TMA reduction (add), 2 dimensions: shared memory +0 -> tensor map m at {1, 2}"],
     {"reduction": "add"}),
    (90, "cp.async.bulk.prefetch.tensor.2d.L2.global.tile [m, {1, 2}];",
     ["TMA prefetch, 2 dimensions: tensor map m at {1, 2} -> the L2 cache"], {}),
    (90, "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [a], [%rd1], 64,"
     " [a+8];",
     ["bulk copy, 64 bytes: global memory %rd1 -> shared memory of the cluster +0",
      "arrives at the mbarrier at +8"],
     {"bytes": 64}),
    (90, "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%rd1], [a+16], %r3, %rd2;",
     ["bulk copy, %r3 bytes: shared memory +16 -> global memory %rd1", "cache policy %rd2"],
     {"bytes": "%r3"}),
    (100, "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.cp_mask [%rd1], [a+16], 32,"
     " %rd2, 255;",
     ["bulk copy, 32 bytes: shared memory +16 -> global memory %rd1", "cache policy %rd2"],
     {"bytes": 32, "cache_policy": "%rd2"}),
    (90, "cp.async.bulk.tensor.3d.global.shared::cta.im2col_no_offs.bulk_group [m, {1, 2, 3}],"
     " [a];",
     ["TMA copy, 3 dimensions, im2col_no_offs: shared memory +0 -> tensor map m at {1, 2, 3}"],
     {"mode": "im2col_no_offs"}),
    (100, "tcgen05.mma.cta_group::1.kind::f16.unheard_of [%r1], %rd1, %rd2, 0, p;",
     ["not understood: tcgen05.mma has no modifier .unheard_of here; legal are .ws, .sp,"
      " .cta_group::([12]), .kind::(f16|tf32|f8f6f4|i8|mxf8f6f4|mxf4|mxf4nvf4), .block_scale,"
      " .scale_vec::[124]X|block(?:16|32), .ashift,"
      " .collector::((?:a|b|b[0-3])::(?:fill|use|lastuse|discard))"], {}),
    (90, "cp.async.bulk.prefetch.L2.global [%rd1], 128;",
     ["bulk copy, 128 bytes: global memory %rd1 -> the L2 cache"], {}),
    (90, "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u64"
     " [a], [a+32], 16, [a+8];",
     ["bulk reduction (add), 16 bytes: shared memory +32 -> shared memory of the cluster +0",
      "arrives at the mbarrier at +8"], {}),
    (90, "cp.async.bulk.commit_group;",
     ["the bulk copies so far, which are in no group, become one"], {}),
    (90, "cp.async.bulk.wait_group 1;",
     ["waits until all but the last 1 groups of bulk copies are done"], {"pending": 1}),
    (90, "cp.async.bulk.wait_group.read 0;",
     ["waits until all groups of bulk copies have read shared memory, so that it may be"
      " overwritten"], {"pending": 0}),
    (90, "mbarrier.init.shared::cta.b64 [a], 128;",
     ["mbarrier at +0: a phase takes 128 arrivals"], {"count": 128, "mbarrier": 0}),
    (90, "mbarrier.inval.shared::cta.b64 [a];", ["mbarrier at +0"], {}),
    (90, "mbarrier.arrive.shared.b64 %rd1, [a];",
     ["1 arrival at the mbarrier at +0"], {"count": 1}),
    (90, "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1], 2;",
     ["2 arrivals at the mbarrier at %r1 (of a CTA of the cluster)"], {"mbarrier": "%r1"}),
    (90, "mbarrier.arrive_drop.shared::cta.b64 _, [a];",
     ["1 arrival at the mbarrier at +0, and will not again"], {}),
    (90, "mbarrier.pending_count.b64 %r1, %rd1;",
     ["how many arrivals the phase of the token %rd1 lacks"], {}),
    (90, "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [a], 512;",
     ["expects 512 bytes, at the mbarrier at +0"], {"bytes": 512}),
    (90, "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [a], 512;",
     ["completes 512 bytes, at the mbarrier at +0"], {"bytes": 512}),
    (90, "mbarrier.test_wait.shared::cta.b64 p, [a], %rd1;",
     ["asks the mbarrier at +0: the phase of the token %rd1"], {}),
    (90, "mbarrier.try_wait.parity.shared::cta.b64 p, [a+8], 1, 999;",
     ["waits for the mbarrier at +8: the phase of parity 1"], {"parity": 1, "mbarrier": 8}),
    (90, "wgmma.mma_async.sync.aligned.m64n8k32.s32.u8.s8 {%r1, %r2, %r3, %r4}, %rd1,"
     " 0x4000004000010000, 0;",
     ["D[64x8] s32 = A[64x32] u8 x B[32x8] s8", "A: descriptor %rd1, not known at compile time",
      "B: 0x4000004000010000 +0, LBO 16 (not read), SBO 1024, swizzle 128B",
      "D = A x B (what D held is not read)"],
     {"m": 64, "n": 8, "k": 32, "accumulates": False, "a_type": "u8"}),
    (90, "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {%r1, %r2}, {%r3, %r4, %r5, %r6},"
     " 0x4000004000010001, p, -1, 1, 1;",
     ["D[64x8] f16 = A[64x16] f16 x B[16x8] f16", "A: in registers",
      "B: 0x4000004000010001 +16, LBO 16, SBO 1024, swizzle 128B",
      "D = A x B, or D + A x B if p", "negated: A", "B is MN-major"],
     {"A": "registers", "negated": ["A"], "majors": {"B": "MN"}, "accumulates": None}),
    (90, "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.bf16.bf16 {%r1, %r2, %r3, %r4}, 0, 0,"
     " %r5, 0, 1, 1, 1, 0, 1;",
     ["D[64x8] f32 = A[64x32] bf16 x B[32x8] bf16", "A: 0x0000000000000000 +0, LBO 0, SBO 0,"
      " swizzle none", "B: 0x0000000000000000 +0, LBO 0, SBO 0, swizzle none", "A is 2:4 sparse",
      "D = D + A x B", "A is K-major, B is MN-major"],
     {"sparse": True}),
    (90, "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%r1, %r2, %r3, %r4}, 0x4000,"
     " 0, 1, 1, 1;",
     ["D[64x8] f32 = A[64x8] tf32 x B[8x8] tf32", "A: ILLEGAL descriptor 0x0000000000004000: the"
      " reserved bits 14 are set; they must be 0",
      "B: 0x0000000000000000 +0, LBO 0, SBO 0, swizzle none", "D = D + A x B"], {}),
    (90, "wgmma.wait_group.sync.aligned 2;",
     ["waits until all but the last 2 groups of wgmma are done"], {"pending": 2}),
    (100, "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [a+16], 256;",
     ["allocates 256 columns of tensor memory, in both CTAs of the pair; its address goes to +16"],
     {"columns": 256, "cta_group": 2}),
    (100, "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [a], 48;",
     ["allocates 48 columns of tensor memory; its address goes to +0",
      "ILLEGAL: tcgen05.alloc takes a power of two from 32 to 512 columns"], {"columns": 48}),
    (100, "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, 64;",
     ["frees 64 columns of tensor memory; at %r1"], {"columns": 64}),
    (100, "tcgen05.ld.sync.aligned.16x256b.x1.b32 {%r1, %r2, %r3, %r4}, [%r5+8];",
     ["4 registers of each thread from tensor memory %r5 + 8: 16 lanes a warp, 8 columns"
      " (16x256b x 1)"],
     {"shape": "16x256b", "repeat": 1, "registers": 4, "columns": 8, "address": "%r5 + 8"}),
    (100, "tcgen05.ld.sync.aligned.16x32bx2.x2.pack::16b.b32 {%r1, %r2}, [%r5], 8;",
     ["2 registers of each thread from tensor memory %r5: 32 lanes a warp, 12 columns"
      " (16x32bx2 x 2), two columns of 16 bits in a register"], {"registers": 2}),
    (100, "tcgen05.ld.sync.aligned.32x32b.x4.b32 {%r1, %r2}, [%r5];",
     ["2 registers of each thread from tensor memory %r5: 32 lanes a warp, 4 columns (32x32b x 4)",
      "ILLEGAL: 32x32b.x4 moves 4 registers, not 2"], {}),
    (100, "tcgen05.st.sync.aligned.32x32b.x2.unpack::16b.b32 [%r5], {%r1, %r2};",
     ["2 registers of each thread to tensor memory %r5: 32 lanes a warp, 4 columns (32x32b x 2),"
      " two columns of 16 bits in a register"], {"columns": 4}),
    (100, "tcgen05.cp.cta_group::1.32x128b.warpx4 [%r1], 0x4000404000010000;",
     ["shared -> tensor memory %r1: 32 lanes x 128 bits, for warpx4",
      "source: 0x4000404000010000 +0, LBO 16, SBO 1024, swizzle 128B"],
     {"shape": "32x128b", "multicast": "warpx4"}),
    (100, "tcgen05.cp.cta_group::1.32x128b.warpx4 [%r1], 0x2014404000010000;",
     ["shared -> tensor memory %r1: 32 lanes x 128 bits, for warpx4",
      "source: 0x2014404000010000 +0, LBO 16, SBO 1024, swizzle 128B, atomicity 32B,"
      " base offset 2, LBO is an address"], {}),
    (100, "tcgen05.cp.cta_group::2.64x128b.warpx2::02_13.b8x16.b4x16_p64 [%r1], %rd1;",
     ["shared -> tensor memory %r1: 64 lanes x 128 bits, for warpx2 02_13, from b4x16_p64 to b8x16",
      "source: descriptor %rd1, not known at compile time"], {"shape": "64x128b"}),
    (100, "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"
     " [a], 3;",
     ["the mbarrier at +0 is arrived at when the tcgen05.mma, cp and shift so far are done",
      "multicast to CTAs 0, 1"], {"multicast": [0, 1], "mbarrier": 0}),
    (100, "tcgen05.mma.cta_group::2.kind::f8f6f4.ashift.collector::a::fill [%r1], [%r2],"
     " 0x4000404000010000, 0x10080410, {0, 0, 0, 0, 0, 0, 0, 1}, p;",
     ["D: tensor memory %r1", "A: in tensor memory, %r2",
      "B: 0x4000404000010000 +0, LBO 16 (not read), SBO 1024, swizzle 128B",
      "0x10080410: kind f8f6f4: D[256x32] f32 = A[256x32] e4m3 x B[32x32] e5m2",
      "0x10080410: A is K-major, B is K-major", "some lanes of D are not written",
      "D = A x B, or D + A x B if p", "collector buffer: a fill"], {"cta_group": 2}),
    (100, "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X [%r1],"
     " 0x4000404000010000, 0x4000404000010000, 0x08200480, [%r2], [%r3], 1;",
     ["D: tensor memory %r1", "A: 0x4000404000010000 +0, LBO 16 (not read), SBO 1024, swizzle 128B",
      "B: 0x4000404000010000 +0, LBO 16 (not read), SBO 1024, swizzle 128B",
      "0x08200480: kind mxf4nvf4: D[128x128] f32 = A[128x64] e2m1 x B[64x128] e2m1",
      "0x08200480: A is K-major, B is K-major",
      "0x08200480: scale factors ue4m3, byte 0 for A, byte 0 for B",
      "scale factors of A: tensor memory %r2", "scale factors of B: tensor memory %r3",
      "D = D + A x B", "scale vectors: scale_vec::4X"],
     {"scale_a": "%r2", "scale_b": "%r3", "scale_vector": "scale_vec::4X"}),
    (100, "tcgen05.mma.sp.cta_group::1.kind::f16 [%r1], 0x4000404000010000, 0x4000404000010000,"
     " [%r2], 0x08200014, 0;",
     ["D: tensor memory %r1", "A: 0x4000404000010000 +0, LBO 16 (not read), SBO 1024, swizzle 128B",
      "B: 0x4000404000010000 +0, LBO 16 (not read), SBO 1024, swizzle 128B",
      "A is sparse, metadata in tensor memory %r2",
      "0x08200014: kind f16: D[128x128] f32 = A[128x32] f16 x B[32x128] f16",
      "0x08200014: A is K-major, B is K-major", "0x08200014: A is 2:4 sparse, selector 0",
      "D = A x B (what D held is not read)"], {"sparse": True}),
    (100, "tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, 0x04060010, p;",
     ["D: tensor memory %r1", "A: descriptor %rd1, not known at compile time",
      "B: descriptor %rd2, not known at compile time",
      "0x04060010: kind f16: D[64x24] f32 = A[64x16] f16 x B[16x24] f16",
      "0x04060010: A is K-major, B is K-major", "D = A x B, or D + A x B if p"], {}),
    (100, "tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r3, p;",
     ["D: tensor memory %r1", "A: descriptor %rd1, not known at compile time",
      "B: descriptor %rd2, not known at compile time",
      "instruction descriptor %r3, not known at compile time", "D = A x B, or D + A x B if p"], {}),
    (100, "tcgen05.mma.ws.cta_group::1.kind::i8.collector::b0::fill [%r1], %rd1, %rd2, 0, p;",
     ["D: tensor memory %r1", "A: descriptor %rd1, not known at compile time",
      "B: descriptor %rd2, not known at compile time", "ILLEGAL instruction descriptor 0x00000000:"
      " must be one of [2] for kind i8", "D = A x B, or D + A x B if p", "weight stationary",
      "collector buffer: b0 fill"], {"weight_stationary": True}),
    (100, "tcgen05.shift.cta_group::1.down [%r1+32];",
     ["shifts 32-byte rows down, in tensor memory %r1 + 32"], {}),
    (100, "tcgen05.wait::st.sync.aligned;", ["waits for this thread's tcgen05.st"], {}),
    (100, "tcgen05.fence::after_thread_sync;",
     ["later tcgen05 instructions come after the last synchronization of threads"], {}),
    (90, "wgmma.fence.sync.aligned;",
     ["registers and shared memory written so far are seen by later wgmma"], {}),
    (90, "fence.proxy.async.shared::cta;",
     ["ordinary reads and writes so far are seen by TMA and the tensor core"], {}),
    (90, "fence.acq_rel.gpu;", [], {}),
]  # fmt: skip


@pytest.mark.parametrize(("arch", "instruction", "notes", "values"), CASES)
def test_notes(arch, instruction, notes, values):
    text = HEADER.format(target=f"sm_{arch}a") + (
        ".extern .shared .align 1024 .b8 a[];\n.visible .entry k()\n{\n.reg .pred p;\n"
        f"{instruction}\n}}\n"
    )
    [found] = listing(text)
    assert list(found.notes) == notes
    assert {key: found.values[key] for key in values} == values
    json.dumps(found.values)


def families(name):
    """How often each kind of instruction is listed in a file of real PTX."""
    found = listing((DATA / name).read_text())
    return found, collections.Counter(item.instruction.opcode.split(".sync")[0] for item in found)


def test_triton_on_hopper():
    """matmul.py: two stages, 128x64x64 fp16, K-major, 4 warps: 2 x 4 wgmma of 64x64x16."""
    found, counts = families("triton_sm90.ptx")
    assert counts["wgmma.mma_async"] == 8
    products = [item for item in found if item.instruction.opcode.startswith("wgmma.mma_async")]
    assert [item.values["A"]["start_address"] for item in products] == [
        0, 32, 64, 96, 8192, 8224, 8256, 8288,
    ]  # fmt: skip
    assert {item.values["B"]["stride_byte_offset"] for item in products} == {1024}
    copies = [item for item in found if "bulk.tensor" in item.instruction.opcode]
    assert [item.values["shared_address"] for item in copies[:4]] == [0, 32768, 16384, 40960]
    assert [item.values["tensor_map"] for item in copies[:2]] == ["param_0", "param_5"]
    assert {str(item.instruction.source).split(":")[0] for item in found} == {"kernels/matmul.py"}
    waits = [item for item in found if "try_wait" in item.instruction.opcode]
    assert waits[0].notes == (
        "waits for the mbarrier at +49152 at first: the phase of parity 0 at first",
    )


def test_triton_on_blackwell():
    found, counts = families("triton_sm100.ptx")
    assert counts["tcgen05.mma.cta_group::1.kind::f16"] == 8
    assert [item.values["columns"] for item in found if ".alloc" in item.instruction.opcode] == [64]
    products = [item for item in found if "tcgen05.mma" in item.instruction.opcode]
    assert [item.values["accumulates"] for item in products] == [False] + [True] * 7
    assert products[0].values["instruction_descriptor"]["n"] == 64
    [load] = [item for item in found if "tcgen05.ld" in item.instruction.opcode]
    assert (load.values["registers"], load.values["shape"]) == (64, "32x32b")


def test_cute_dsl_on_hopper():
    """One consumer warpgroup, 64x32x64, two stages; B is MN-major with a 64-byte swizzle."""
    found, counts = families("cute_sm90.ptx")
    assert counts["wgmma.mma_async"] == 4
    assert counts["wgmma.fence"] == counts["wgmma.commit_group"] == counts["wgmma.wait_group"] == 1
    products = [item for item in found if "mma_async" in item.instruction.opcode]
    assert [item.values["majors"] for item in products] == [{"A": "K", "B": "MN"}] * 4
    assert [item.values["accumulates"] for item in products] == [False, True, True, True]
    copies = [item for item in found if "bulk.tensor" in item.instruction.opcode]
    assert {item.values["cache_policy"] for item in copies} == {0}
    assert {item.values["tensor_map"] for item in copies} == {"param_1", "param_2"}
    assert {item.instruction.source.file for item in products} == {"tests/cute_worker.py"}
    assert len({item.instruction.source.line for item in products}) == 1


def test_cute_dsl_on_blackwell():
    """A pair of CTAs: e4m3 x e5m2, 256x32x64; the negations come from a kernel argument."""
    found, counts = families("cute_sm100.ptx")
    assert counts["tcgen05.mma.cta_group::2.kind::f8f6f4.collector::a::discard"] == 2
    products = [item for item in found if "tcgen05.mma" in item.instruction.opcode]
    decoded = products[0].values["instruction_descriptor"]
    assert decoded["unknown_fields"] == ["negate_a", "negate_b"]
    assert (decoded["m"], decoded["n"], decoded["a_type"]) == (256, 32, "e4m3")
    commits = [item for item in found if "tcgen05.commit" in item.instruction.opcode]
    assert [item.values["multicast"] for item in commits] == [[0, 1], [0, 1]]
    addresses = [item.values["address"] for item in found if ".ld." in item.instruction.opcode]
    assert addresses == ["[+56]", "[+56] + 8", "[+56] + 16", "[+56] + 24"]
    [allocation] = [item for item in found if ".alloc." in item.instruction.opcode]
    assert allocation.notes[0].endswith("its address goes to +56")


def test_nvcc():
    """Three static shared variables: addresses count from each, by name."""
    found, counts = families("nvcc_sm90.ptx")
    assert counts["wgmma.mma_async"] == 4
    products = [item for item in found if "mma_async" in item.instruction.opcode]
    assert [item.values["A"]["start_address"] for item in products] == [0, 32, 64, 96]
    assert products[0].values["A"]["symbols"] == ["_ZZ8multiplyE6a_tile"]
    at = "A: 0x4000004000010000 _ZZ8multiplyE6a_tile+0"
    assert f"{at}, LBO 16 (not read), SBO 1024, swizzle 128B" in products[0].notes
    assert all(item.values["negated"] == ["B"] for item in products)
    a_copy, b_copy = [item for item in found if "bulk.tensor" in item.instruction.opcode]
    assert a_copy.values["multicast"] == [0, 1]
    assert a_copy.values["cache_policy"] == "createpolicy.fractional.L2::evict_first.b64"
    assert "cache policy 0x14f0000000000000 (evict_last)" in b_copy.notes
    assert b_copy.values["shared_address_symbols"] == ["_ZZ8multiplyE6b_tile"]
    assert [str(item.instruction.source) for item in products] == ["nvcc_sm90.cu:54"] * 4


@pytest.mark.parametrize("site", triton_sites())
@pytest.mark.parametrize("arch", [90, 100])
def test_every_triton(arch, site):
    """Nothing of a matmul's MMAs, copies and barriers stays unknown but tiles' coordinates."""
    config = {"arch": arch, "element_type": "fp16", "block_n": 64, "stages": 2, "b_major": "MN"}
    _, [result] = compile_jobs(site, [{"config": config}])
    found = listing(result["ptx"])
    products = [item for item in found if "A" in item.values]
    assert len(products) == 8
    for item in products:
        assert item.values["A"]["swizzle_byte_width"] == 128
        assert item.values["A"]["start_address"] is not None
        assert item.values["B"]["start_address"] is not None
        assert not any("ILLEGAL" in note or "not known" in note for note in item.notes)
    for item in found:
        if item.instruction.opcode.startswith("cp.async.bulk.tensor"):
            assert isinstance(item.values["shared_address"], int)
            assert item.values["tensor_map"].startswith("param_")


def run(*arguments, **options):
    return CliRunner().invoke(main, ["ptx", *map(str, arguments)], **options)


def test_command():
    text = run(DATA / "triton_sm100.ptx").output
    assert text.startswith("matmul_sm100:\n")
    assert "  [kernels/matmul.py:168]\n          D: tensor memory [+0]\n" in text
    assert "tcgen05.ld.sync.aligned.32x32b.x64.b32 {%r111, %r112, %r113, ... %r174}" in text
    objects = json.loads(run("-", "--format", "json", input=PTX).output)["instructions"]
    assert [item["opcode"].split(".")[0] for item in objects] == ["tcgen05", "mbarrier"]
    assert objects[0]["source"] == "kernel.py:7"
    assert objects[0]["values"]["A"]["descriptor"] == "0x4000404000010040"
    wrong = run("-", input="hello")
    assert (wrong.exit_code, wrong.output.count("\n")) == (2, 1)
    assert "must be PTX" in wrong.output
    assert run("/nowhere.ptx").exit_code == 2


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("pred", 1), ("b8", 8), ("u16", 16), ("s32", 32), ("f64", 64), ("b128", 128),
        ("bf16", 16), ("f16x2", 32), ("bf16x2", 32), ("texref", 64),
    ],
)  # fmt: skip
def test_a_type_has_the_bits_of_its_name(name, bits):
    assert type_bits(name) == bits


def test_what_follows_a_declaration_on_its_line():
    module = parse_ptx(
        ".version 8.6\n.target sm_90a\n.extern .func f ();.global .align 4 .b8 x[4];"
        ".visible .entry kernel() { ret; }.const .b32 y;"
    )
    assert [(each.name, each.space) for each in module.variables] == [
        ("x", "global"),
        ("y", "const"),
    ]
    assert [each.name for each in module.kernels] == ["kernel"]
