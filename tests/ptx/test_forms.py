"""Forms: the operands of each instruction by name, held against the syntax lines of the PTX ISA."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import some
from ptx_samples import HEADER, REAL
from sites import DATA

from triton_ext import LayoutError
from triton_ext.ptx import forms
from triton_ext.ptx.explain import LISTED
from triton_ext.ptx.parse import Instruction, parse_ptx

# Syntax lines as the PTX ISA has them: modifiers that may be left out in {.a|.b}, those of which
# one must be there in <.a|.b>, operands that may be left out in {, ...}. Operands carry their names
# in the PTX ISA, and the table after the lines says in which field each is found.
SYNTAX = [
    "wgmma.mma_async.sync.aligned<.m64n8k16|.m64n256k16>.f32<.f16.f16|.bf16.bf16>"
    " d, a-desc, b-desc, scale-d, imm-scale-a, imm-scale-b, imm-trans-a, imm-trans-b",
    "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16"
    " d, {a}, b-desc, scale-d, imm-scale-a, imm-scale-b, imm-trans-b",
    "wgmma.mma_async.sync.aligned.m64n16k32<.f16|.f32><.e4m3|.e5m2><.e4m3|.e5m2>"
    " d, a-desc, b-desc, scale-d, imm-scale-a, imm-scale-b",
    "wgmma.mma_async.sync.aligned.m64n16k8.f32.tf32.tf32"
    " d, {a}, b-desc, scale-d, imm-scale-a, imm-scale-b",
    "wgmma.mma_async.sync.aligned.m64n32k32{.satfinite}.s32<.s8|.u8><.s8|.u8>"
    " d, a-desc, b-desc, scale-d",
    "wgmma.mma_async.sync.aligned.m64n8k256.s32.b1.b1.and.popc d, a-desc, b-desc, scale-d",
    "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.bf16.bf16 d, a-desc, b-desc, sp-meta, sp-sel,"
    " scale-d, imm-scale-a, imm-scale-b, imm-trans-a, imm-trans-b",
    "wgmma.mma_async.sp.sync.aligned.m64n8k64{.satfinite}.s32.u8.s8"
    " d, a-desc, b-desc, sp-meta, sp-sel, scale-d",
    "wgmma.wait_group.sync.aligned N",
    "wgmma.commit_group.sync.aligned ",
    "wgmma.fence.sync.aligned ",
    "tcgen05.mma.cta_group::1<.kind::f16|.kind::tf32|.kind::f8f6f4>{.collector::a::lastuse}"
    " [d-tmem], a-desc, b-desc, idesc{, {lane0, lane1, lane2, lane3}}, enable-input-d"
    "{, scale-input-d}",
    "tcgen05.mma.cta_group::2<.kind::f16|.kind::i8>{.ashift}{.collector::a::fill}"
    " [d-tmem], [a-tmem], b-desc, idesc"
    "{, {lane0, lane1, lane2, lane3, lane4, lane5, lane6, lane7}}, enable-input-d",
    "tcgen05.mma<.cta_group::1|.cta_group::2><.kind::mxf8f6f4|.kind::mxf4|.kind::mxf4nvf4>"
    ".block_scale{.scale_vec::1X|.scale_vec::2X|.scale_vec::4X|.block16|.block32}"
    " [d-tmem], a-desc, b-desc, idesc, [scale-A-tmem], [scale-B-tmem], enable-input-d",
    "tcgen05.mma.sp.cta_group::1.kind::f16 [d-tmem], a-desc, b-desc, [sp-meta-tmem], idesc"
    "{, {lane0, lane1, lane2, lane3}}, enable-input-d{, scale-input-d}",
    "tcgen05.mma.sp.cta_group::2.kind::mxf4.block_scale.scale_vec::2X [d-tmem], [a-tmem], b-desc,"
    " [sp-meta-tmem], idesc, [scale-A-tmem], [scale-B-tmem], enable-input-d",
    "tcgen05.mma.ws.cta_group::1<.kind::f16|.kind::i8>{.collector::b0::fill|.collector::b3::use}"
    " [d-tmem], [a-tmem], b-desc, idesc, enable-input-d{, zero-column-mask-desc}",
    "tcgen05.mma.ws.sp.cta_group::1.kind::tf32 [d-tmem], a-desc, b-desc, [sp-meta-tmem], idesc,"
    " enable-input-d{, zero-column-mask-desc}",
    "tcgen05.alloc<.cta_group::1|.cta_group::2>.sync.aligned{.shared::cta}.b32 [dst], nCols",
    "tcgen05.dealloc<.cta_group::1|.cta_group::2>.sync.aligned.b32 taddr, nCols",
    "tcgen05.relinquish_alloc_permit<.cta_group::1|.cta_group::2>.sync.aligned ",
    "tcgen05.ld.sync.aligned<.16x64b|.16x128b|.16x256b|.32x32b><.x1|.x128>{.pack::16b}.b32"
    " {r0, r1}, [taddr]",
    "tcgen05.ld.sync.aligned.16x32bx2.x4{.pack::16b}.b32 {r0, r1}, [taddr], immHalfSplitoff",
    "tcgen05.ld.red.sync.aligned.32x32b.x2<.min|.max>{.abs}{.NaN}.f32 {r0, r1}, redval, [taddr]",
    "tcgen05.st.sync.aligned<.16x64b|.32x32b>.x8{.unpack::16b}.b32 [taddr], {r0, r1}",
    "tcgen05.st.sync.aligned.16x32bx2.x4.b32 [taddr], immHalfSplitoff, {r0, r1}",
    "tcgen05.cp<.cta_group::1|.cta_group::2><.128x256b|.4x256b|.128x128b>"
    "{.b8x16.b6x16_p32|.b8x16.b4x16_p64} [taddr], s-desc",
    "tcgen05.cp.cta_group::1<.64x128b.warpx2::02_13|.64x128b.warpx2::01_23|.32x128b.warpx4>"
    " [taddr], s-desc",
    "tcgen05.shift<.cta_group::1|.cta_group::2>.down [taddr]",
    "tcgen05.commit.cta_group::1.mbarrier::arrive::one{.shared::cluster}.b64 [mbar]",
    "tcgen05.commit.cta_group::2.mbarrier::arrive::one{.shared::cluster}.multicast::cluster.b64"
    " [mbar], ctaMask",
    "tcgen05.wait<::ld|::st>.sync.aligned ",
    "tcgen05.fence<::before_thread_sync|::after_thread_sync> ",
    "cp.async.bulk.tensor.2d<.shared::cta|.shared::cluster>.global{.tile}"
    ".mbarrier::complete_tx::bytes{.cta_group::1|.cta_group::2}"
    " [dstMem], [tensorMap, {c0, c1}], [mbar]",
    "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes"
    " [dstMem], [tensorMap, {c0, c1, c2, c3, c4}], [mbar]",
    "cp.async.bulk.tensor.4d.shared::cluster.global<.im2col|.im2col::w|.im2col::w::128>"
    ".mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
    " [dstMem], [tensorMap, {c0, c1, c2, c3}], [mbar], {i0, i1}, ctaMask, cache-policy",
    "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
    " [dstMem], [tensorMap, {c0}], [mbar], cache-policy",
    "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
    ".multicast::cluster [dstMem], [tensorMap, {c0, c1, c2, c3, c4}], [mbar], ctaMask",
    "cp.async.bulk.tensor.3d.global.shared::cta{.tile|.im2col_no_offs}.bulk_group"
    " [tensorMap, {c0, c1, c2}], [srcMem]",
    "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group.L2::cache_hint"
    " [tensorMap, {c0, c1, c2, c3, c4}], [srcMem], cache-policy",
    "cp.reduce.async.bulk.tensor.2d.global.shared::cta<.add|.min|.max|.inc|.dec|.and|.or|.xor>"
    "{.tile}.bulk_group [tensorMap, {c0, c1}], [srcMem]",
    "cp.async.bulk.prefetch.tensor.2d.L2.global{.tile} [tensorMap, {c0, c1}]",
    "cp.async.bulk.prefetch.tensor.3d.L2.global.im2col.L2::cache_hint"
    " [tensorMap, {c0, c1, c2}], {i0}, cache-policy",
    "cp.async.bulk<.shared::cta|.shared::cluster>.global.mbarrier::complete_tx::bytes"
    " [dstMem], [srcMem], size, [mbar]",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
    ".L2::cache_hint [dstMem], [srcMem], size, [mbar], ctaMask, cache-policy",
    "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    " [dstMem], [srcMem], size, [mbar]",
    "cp.async.bulk.global.shared::cta.bulk_group [dstMem], [srcMem], size",
    "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.cp_mask"
    " [dstMem], [srcMem], size, cache-policy, byteMask",
    "cp.async.bulk.global.shared::cta.bulk_group.cp_mask [dstMem], [srcMem], size, byteMask",
    "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes<.add|.inc>.u32"
    " [dstMem], [srcMem], size, [mbar]",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.add.noftz.bf16"
    " [dstMem], [srcMem], size, cache-policy",
    "cp.async.bulk.prefetch.L2.global [srcMem], size",
    "cp.async.bulk.prefetch.L2.global.L2::cache_hint [srcMem], size, cache-policy",
    "cp.async.bulk.commit_group ",
    "cp.async.bulk.wait_group{.read} N",
    "mbarrier.init{.shared|.shared::cta}.b64 [addr], count",
    "mbarrier.inval{.shared|.shared::cta}.b64 [addr]",
    "mbarrier.expect_tx{.relaxed.cta|.relaxed.cluster}{.shared::cta|.shared::cluster}.b64"
    " [addr], txCount",
    "mbarrier.complete_tx{.relaxed.cta}{.shared::cta|.shared::cluster}.b64 [addr], txCount",
    "mbarrier<.arrive|.arrive_drop>{.release.cta|.relaxed.cluster}{.shared|.shared::cta}.b64"
    " state, [addr]{, count}",
    "mbarrier<.arrive|.arrive_drop>{.release.cluster}.shared::cluster.b64 _, [addr]{, count}",
    "mbarrier<.arrive|.arrive_drop>.expect_tx{.relaxed.cta}{.shared::cta}.b64"
    " state, [addr], txCount",
    "mbarrier<.arrive|.arrive_drop>.noComplete{.release.cta}{.shared::cta}.b64"
    " state, [addr], count",
    "mbarrier.pending_count.b64 count-of-state, state",
    "mbarrier.test_wait{.acquire.cta|.relaxed.cluster}{.shared::cta}.b64"
    " waitComplete, [addr], state",
    "mbarrier.test_wait.parity{.shared::cta}.b64 waitComplete, [addr], phaseParity",
    "mbarrier.try_wait{.acquire.cluster}{.shared::cta}.b64 waitComplete, [addr], state"
    "{, suspendTimeHint}",
    "mbarrier.try_wait.parity{.shared::cta}.b64 waitComplete, [addr], phaseParity"
    "{, suspendTimeHint}",
]

FIELDS = {
    "a-desc": "a", "{a}": "a", "[a-tmem]": "a", "b-desc": "b", "[d-tmem]": "d", "d": "d",
    "scale-d": "scale_d", "imm-scale-a": "scale_a", "imm-scale-b": "scale_b",
    "imm-trans-a": "transpose_a", "imm-trans-b": "transpose_b", "sp-meta": "metadata",
    "[sp-meta-tmem]": "metadata", "sp-sel": "selector", "idesc": "idesc", "N": "pending",
    "[scale-A-tmem]": "scale_a", "[scale-B-tmem]": "scale_b", "enable-input-d": "enable_input_d",
    "scale-input-d": "scale_input_d", "zero-column-mask-desc": "zero_column_mask",
    "{lane0, lane1, lane2, lane3}": "disable_output_lane",
    "{lane0, lane1, lane2, lane3, lane4, lane5, lane6, lane7}": "disable_output_lane",
    "[dst]": "address", "taddr": "address", "[taddr]": "address", "nCols": "columns",
    "{r0, r1}": "registers", "redval": "reduced", "immHalfSplitoff": "half_split",
    "s-desc": "descriptor", "[mbar]": "mbarrier", "ctaMask": "cta_mask", "[dstMem]": "dst_mem",
    "[srcMem]": "src_mem", "cache-policy": "cache_policy", "byteMask": "byte_mask", "size": "size",
    "{i0}": "im2col", "{i0, i1}": "im2col", "[addr]": "barrier", "count": "count",
    "txCount": "bytes", "_": "result", "count-of-state": "result", "waitComplete": "result",
    "phaseParity": "phase", "suspendTimeHint": "time_limit",
}  # fmt: skip
FLAGS = {
    "sp": "sparse", "ws": "weight_stationary", "satfinite": "saturate", "popc": "counts_bits",
    "block_scale": "block_scale", "ashift": "shifts_a", "red": "reduces", "pack::16b": "packs",
    "unpack::16b": "unpacks", "abs": "of_magnitudes", "NaN": "propagates_nan",
    "multicast::cluster": "multicast", "L2::cache_hint": "cache_hint", "cp_mask": "masked",
    "noftz": "no_flush", "read": "reads_only", "noComplete": "may_not_complete",
    "parity": "by_parity",
}  # fmt: skip
"""Modifiers that are in the opcode exactly where a field is true."""


def written(line):
    """Every instruction that a syntax line stands for: (opcode, operands)."""
    opcode, _, operands = line.partition(" ")
    choices = [
        [
            *(text[1:-1].split("|") if text[:1] in "{<" else [text]),
            *([""] if text[0] == "{" else []),
        ]
        for text in re.findall(r"\{[^{}]*\}|<[^<>]*>|[^{}<>]+", opcode)
    ]
    present = re.sub(r"\{(, (?:[^{}]|\{[^{}]*\})*)\}", r"\1", operands)
    absent = re.sub(r"\{(, (?:[^{}]|\{[^{}]*\})*)\}", "", operands)
    for parts in itertools.product(*choices):
        for text in dict.fromkeys([present, absent]):
            yield "".join(parts), text


def parsed(text, target="sm_100a"):
    module = parse_ptx(HEADER.format(target=target) + f".entry k()\n{{\n{text};\n}}\n")
    return module.kernels[0].instructions


def inside(text):
    """The elements of ``{a, b}``."""
    return tuple(part.strip() for part in text.strip("{}").split(","))


@pytest.mark.parametrize("line", SYNTAX, ids=lambda line: line.partition(" ")[0][:60])
def test_the_syntax_of_the_ptx_isa(line):
    """Each operand is in the field that has its name, each modifier is read, nothing else is."""
    for opcode, operands in written(line):
        [instruction] = parsed(f"{opcode} {operands}")
        form = forms.read(instruction)
        assert form is not None, instruction
        empty = {each.name for each in dataclasses.fields(form) if not getattr(form, each.name)}
        for text in instruction.operands:
            if text.startswith("[tensorMap"):
                assert form.map == "tensorMap"
                assert form.coordinates == inside(re.search(r"\{.*\}", text)[0])
                continue
            name = FIELDS.get(text)
            if text == "state":
                arrives = form.operation in ("arrive", "arrive_drop")
                name = "result" if arrives else "phase"
            wanted = text
            if name in ("disable_output_lane", "registers", "im2col"):
                wanted = inside(text)
            assert getattr(form, name) == wanted, (instruction, name)
        parts = opcode.split(".")
        for part, name in FLAGS.items():
            if isinstance(getattr(form, name, None), bool):
                assert getattr(form, name) == (part in parts), (instruction, name)
        operand_fields = set(FIELDS.values()) & {each.name for each in dataclasses.fields(form)}
        used = {FIELDS.get(text, "") for text in instruction.operands}
        if "state" in instruction.operands:
            used |= {"result", "phase"}
        assert operand_fields - used <= empty, instruction
        assert form.base == opcode or opcode.startswith((form.base + ".", form.base + "::"))


@pytest.mark.parametrize("line", SYNTAX, ids=lambda line: line.partition(" ")[0][:60])
def test_a_missing_and_an_additional_operand(line):
    for opcode, operands in written(line):
        [instruction] = parsed(f"{opcode} {operands}")
        base = forms.read(instruction).base
        more = dataclasses.replace(instruction, operands=(*instruction.operands, "%r1", "%r2"))
        with pytest.raises(LayoutError):
            forms.read(more)
        none = dataclasses.replace(instruction, operands=())
        if instruction.operands:
            with pytest.raises(LayoutError, match=re.escape(base)):
                forms.read(none)
        odd = dataclasses.replace(instruction, opcode=opcode + ".odd")
        with pytest.raises(LayoutError, match=r"\.odd"):
            forms.read(odd)


def test_values():
    """What is more than a text."""
    [one] = parsed(
        "wgmma.mma_async.sync.aligned.m64n24k8.f32.tf32.tf32 {%f1}, {%r1}, %rd1, p, 1, -1"
    )
    form = forms.read(one)
    assert (form.mnk, form.a_in_registers, form.immediates) == ((64, 24, 8), True, ("1", "-1"))
    [one] = parsed(
        "tcgen05.mma.cta_group::2.kind::f16.collector::a::fill.collector::b::use [d], [a], b, i, p"
    )
    form = forms.read(one)
    assert (form.cta_group, form.kind, form.collectors) == (2, "f16", ("a::fill", "b::use"))
    assert form.a_in_tensor_memory
    [one] = parsed("tcgen05.ld.sync.aligned.32x32b.x16.b32 %r1, [%r2]")
    form = forms.read(one)
    assert (form.shape, form.repeat, form.registers, form.stores) == ("32x32b", 16, ("%r1",), False)
    # as CuTe DSL orders the modifiers
    [one] = parsed(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint.cta_group::2 [a], [m, {0, 1}], [b], %rd1"
    )
    form = forms.read(one)
    assert (form.rank, form.cta_group, form.mode, form.loads) == (2, 2, "tile", True)
    assert (form.destination, form.source) == ("shared::cluster", "global")
    # as CUTLASS writes remote arrivals: without a state
    [one] = parsed("mbarrier.arrive.shared::cluster.b64 [%r1], 2")
    form = forms.read(one)
    assert (form.result, form.barrier, form.count) == ("", "[%r1]", "2")


def test_every_instruction_of_the_compilers_has_a_form():
    """Over the PTX of Triton, CuTe DSL and nvcc."""
    texts = [path.read_text() for path in REAL]
    body = (DATA / "triton_instructions.txt").read_text()
    texts.append(HEADER.format(target="sm_100a") + ".entry k()\n{\n" + body + "\n}\n")
    found = 0
    families = tuple(prefix for prefix in LISTED if not prefix.startswith(("fence", "barrier")))
    for text in texts:
        for kernel in parse_ptx(text).kernels:
            for instruction in kernel.instructions:
                form = forms.read(instruction)
                assert (form is not None) == instruction.opcode.startswith(families), instruction
                found += form is not None
    assert found > 180


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tcgen05.mma.cta_group::3.kind::f16 [d], a, b, i, p", r"cta_group::\(\[12\]\)"),
        ("tcgen05.mma.cta_group::1.kind::f64 [d], a, b, i, p", "kind"),
        ("tcgen05.mma.cta_group::1.kind::mxf4 [d], a, b, i, p", "block_scale"),
        ("tcgen05.mma.cta_group::2.kind::f16 [d], a, b, i, {m, m, m, m}, p", "4 registers, 8 with"),
        ("wgmma.mma_async.aligned.m64n8k8.f32.tf32.tf32 d, a, b, p, 1, 1", r"\.sync"),
        ("cp.async.bulk.tensor.2d.global.shared::cta [m, {0, 1}], [a]", "completion"),
        ("cp.async.bulk.tensor.2d.shared::cta.shared::cta.mbarrier::complete_tx::bytes"
         " [a], [m, {0, 1}], [b]", "source"),
        ("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [m, {0, 1}], [a]", "3 expected"),
        ("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group m, [a]", "coordinates"),
        ("cp.async.bulk.tensor.2d.global.shared::cta.tile::gather4.bulk_group"
         " [m, {0, 1, 2, 3, 4}], [a]", "gather"),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.u32 [a], [b], 16", "operation"),
        ("cp.async.bulk.commit_group.read", "wait_group"),
        ("mbarrier.arrive.parity.b64 _, [a]", "parity"),
        ("mbarrier.try_wait.shared::cluster.b64 p, [a], %rd1", "shared::cluster"),
        ("mbarrier.init.b64 [a]", "missing"),
        ("tcgen05.st.sync.aligned.32x32b.x2.pack::16b.b32 [t], {a, b}", "unpack"),
        ("tcgen05.cp.cta_group::1.128x256b.b8x16 [t], d", "format"),
    ],
)  # fmt: skip
def test_refusals(text, message):
    [instruction] = parsed(text)
    with pytest.raises(LayoutError, match=message):
        forms.read(instruction)


def test_others_have_no_form():
    for text in ("add.s32 %r1, %r2, 1", "fence.proxy.async", "cp.async.commit_group", "mbarriers"):
        assert forms.read(Instruction(text.split()[0], ())) is None


PARTS = sorted({part for line in SYNTAX for part in re.findall(r"[\w:]+", line.split(" ")[0])})
WORDS = ["%r1", "[%r1]", "{%r1, %r2}", "[m, {%r1}]", "[m]", "[]", "{}", "", "1", "p"]


@settings(max_examples=some(150))
@given(
    st.sampled_from(SYNTAX),
    st.lists(st.sampled_from([*PARTS, "", "x", "m64n8", "cta_group::", "5d", "::"]), max_size=3),
    st.lists(st.sampled_from(WORDS), max_size=8),
    st.randoms(use_true_random=False),
)
def test_mangled_instructions(line, more, operands, generator):
    """A form or a LayoutError."""
    opcode, text = generator.choice(list(written(line)))
    parts = opcode.split(".")
    for part in more:
        parts.insert(generator.randint(1, len(parts)), part)
    if generator.random() < 0.5:
        del parts[generator.randrange(1, len(parts))]
    own = parsed(f"{opcode} {text}")[0].operands
    instruction = Instruction(".".join(parts), generator.choice([own, tuple(operands)]))
    with contextlib.suppress(LayoutError):
        forms.read(instruction)
