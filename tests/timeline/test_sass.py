"""What ptxas makes of PTX, by its line."""

from __future__ import annotations

import itertools
import re
import subprocess

import pytest
from triton import knobs

from triton_ext.ptx.cubin import disassembled, registers
from triton_ext.ptx.parse import parse_ptx
from triton_ext.timeline import sass
from triton_ext.timeline.gpus import GPUS

PTX = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out, .param .u32 n, .param .u32 m)
{{
 .reg .b32 %r<9>;
 .reg .b64 %rd<3>;
 .reg .pred %p<2>;
 ld.param.u64 %rd1, [out];
 ld.param.u32 %r1, [n];
 ld.param.u32 %r2, [m];
 mov.u32 %r3, 0;
AGAIN:
 ld.volatile.global.u32 %r4, [%rd1];
 mul.lo.u32 %r5, %r2, %r2;
 {operation};
 add.u32 %r3, %r3, %r6;
 add.u32 %r1, %r1, -1;
 setp.ne.u32 %p1, %r1, 0;
 @%p1 bra AGAIN;
 st.global.u32 [%rd1], %r3;
 ret;
}}
"""


def costs(operation, tmp_path):
    """Of the instructions' opcodes; and the cubin."""
    text, binary = PTX.format(operation=operation), tmp_path / "k.cubin"
    (tmp_path / "k.ptx").write_text(text)
    command = [knobs.nvidia.ptxas.path, "-lineinfo", "-arch=sm_90a", str(tmp_path / "k.ptx")]
    subprocess.run([*command, "-o", str(binary)], check=True)
    [kernel] = parse_ptx(text).kernels
    found = sass.costs(
        disassembled(binary.read_bytes(), knobs.nvidia.nvdisasm.path, "-gp", "-hex"), kernel
    )
    return {at.opcode: found.get(at.line) for at in kernel.instructions}, binary.read_bytes()


@pytest.mark.parametrize(
    ("operation", "least", "most", "cycles"),
    [
        ("add.u32 %r6, %r4, %r5", 0, 1, 0),
        ("div.u32 %r6, %r4, %r2", 8, 40, 20),
        ("popc.b32 %r6, %r4", 1, 2, 1),
    ],
)
def test_what_an_instruction_costs(operation, least, most, cycles, tmp_path):
    found, cubin = costs(operation, tmp_path)
    cost = found[operation.split()[0]] or sass.Cost(0, 0.0)
    assert least <= cost.issued <= most  # though ptxas unrolls the loop
    assert cost.cycles >= max(cycles, cost.issued)
    assert found["ld.volatile.global.u32"].issued == 1
    assert 8 <= registers(cubin) <= 64


def test_what_is_hoisted_out_of_a_loop_costs_nothing(tmp_path):
    found, _ = costs("xor.b32 %r6, %r4, %r5", tmp_path)
    assert not (found["mul.lo.u32"] or sass.Cost(0, 0.0)).issued
    assert found["st.global.u32"].issued


def test_without_a_listing_nothing_is_known():
    [kernel] = parse_ptx(PTX.format(operation="add.u32 %r6, %r4, %r5")).kernels
    assert sass.costs("", kernel) == {}
    assert disassembled(b"no cubin", knobs.nvidia.nvdisasm.path) == ""
    assert disassembled(b"", "/no/nvdisasm") == ""


LISTED = (
    '\t//## File ".nv_debug_ptx_txt", line {line}\n'
    "        /*0000*/                   {opcode} R0 ;            /* 0x0000000000000000 */\n"
    "                                                            /* 0x{control:016x} */\n"
)


def control(stall, written=7, read=7, awaited=0):
    return (stall | written << 5 | read << 8 | awaited << 11) << 41


@pytest.mark.parametrize(
    ("opcode", "bits", "waited"),
    [
        ("SHFL.IDX", {"written": 2}, sass.ON_CHIP["SHFL"]),
        ("STS", {"read": 2}, sass.READ),
        ("LDG.E", {"written": 2}, 0),  # the record has a token for it
    ],
)
def test_who_waits_at_a_scoreboard_takes_what_the_other_needs(opcode, bits, waited):
    [kernel] = parse_ptx(PTX.format(operation="add.u32 %r6, %r4, %r5")).kernels
    lines = [at.line for at in kernel.instructions[:2]]
    listing = LISTED.format(line=lines[0], opcode=opcode, control=control(2, **bits))
    listing += LISTED.format(line=lines[1], opcode="IADD3", control=control(4, awaited=1 << 2))
    found = sass.costs(listing, kernel)
    assert found[lines[0]] == sass.Cost(1, 2)
    assert found[lines[1]] == sass.Cost(1, max(waited - 2, 0) + 4, sass.turns_of("IADD3"))


def test_nobody_waits_at_a_scoreboard_that_it_does_not_name():
    [kernel] = parse_ptx(PTX.format(operation="add.u32 %r6, %r4, %r5")).kernels
    lines = [at.line for at in kernel.instructions[:2]]
    listing = LISTED.format(line=lines[0], opcode="SHFL.IDX", control=control(2, written=2))
    for awaited in (0, 1 << 1, 1 << 3):
        after = LISTED.format(line=lines[1], opcode="IADD3", control=control(4, awaited=awaited))
        assert sass.costs(listing + after, kernel)[lines[1]].cycles == 4


@pytest.mark.parametrize(
    ("operation", "least", "most"),
    [
        ("fence.proxy.async.shared::cta", 0, 60),
        ("fence.proxy.async", 530, 560),  # measured: 539
        ("fence.acq_rel.gpu", 640, 680),  # measured, before an arrival: 660
        ("fence.acq_rel.cta", 0, 60),
    ],
)
def test_a_fence_for_all_of_the_gpu_holds_a_warp(operation, least, most, tmp_path):
    found, _ = costs(f"{operation};\n mov.u32 %r6, %r5", tmp_path)
    taken = found[operation].cycles if found[operation] else 0
    assert least <= taken < most


MANY = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out)
{{
 .reg .b32 %r<48>;
 .reg .f32 %f<48>;
 .reg .b64 %rd<2>;
 ld.param.u64 %rd1, [out];
{body}
 ret;
}}
"""
REGISTERS = range(16)


def many(operation):
    """PTX that does one operation to many registers, each on its own."""
    kind, size = ("%f", "f32") if ".f32" in operation else ("%r", "b32")
    body = [f" ld.global.{size} {kind}{n}, [%rd1+{4 * n}];" for n in REGISTERS]
    if operation.startswith("mma"):
        sums = [", ".join(f"%f{n}" for n in range(at, at + 4)) for at in (0, 4, 8, 12)]
        a, b = (", ".join(f"%r{n}" for n in range(32, last)) for last in (36, 34))
        body += [f" ld.global.b32 %r{n}, [%rd1+{4 * n}];" for n in range(32, 36)]
        body += [f" {operation} {{{c}}}, {{{a}}}, {{{b}}}, {{{c}}};" for c in sums]
    else:
        body += [f" {operation.replace('R', kind + str(n))};" for n in REGISTERS]
    body += [f" st.global.{size} [%rd1+{256 + 4 * n}], {kind}{n};" for n in REGISTERS]
    return MANY.format(body="\n".join(body))


@pytest.mark.parametrize(
    ("operation", "opcode"),
    [
        ("mul.hi.u32 R, R, 12345679", "IMAD.HI.U32"),
        ("mul.lo.u32 R, R, 12345679", "IMAD"),
        ("xor.b32 R, R, 12345679", "LOP3.LUT"),
        ("min.f32 R, R, 0f40490FDB", "FMNMX"),
        ("ex2.approx.ftz.f32 R, R", "MUFU.EX2"),
        ("fma.rn.f32 R, R, R, R", "FFMA"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "HMMA.16816.F32"),
        ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", "HMMA.1688.F32.TF32"),
    ],
)
def test_a_pipe_takes_what_ptxas_leaves_between_two_of_its_instructions(
    operation, opcode, tmp_path
):
    (tmp_path / "k.ptx").write_text(many(operation))
    binary = tmp_path / "k.cubin"
    command = [knobs.nvidia.ptxas.path, "-lineinfo", "-arch=sm_90a", str(tmp_path / "k.ptx")]
    subprocess.run([*command, "-o", str(binary)], check=True)
    listing = disassembled(binary.read_bytes(), knobs.nvidia.nvdisasm.path, "-gp", "-hex")
    found = re.findall(r"\*/ +([A-Z][\w.]*) .*\n +/\* 0x([0-9a-f]{16}) \*/", listing)
    stalls = [
        int(control, 16) >> 41 & 15
        for (first, control), (second, _) in itertools.pairwise(found)
        if first == second == opcode
    ]
    gpu = GPUS["H200"]
    cycles = (gpu.half_cycles, gpu.half_cycles, gpu.special_cycles, gpu.mma_cycles)
    taken = sum(a * b for a, b in zip(sass.turns_of(opcode), cycles, strict=True))
    assert min(stalls) == round(max(taken, 1))
