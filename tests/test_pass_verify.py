"""The pass verify-descriptors: no false alarm over the corpus, and miscompilations are found."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections import Counter

import pytest
from conftest import triton_sites
from pass_corpus import Compiled, corpus
from ptx_corruptions import Corruption, Editor, corruptions
from triton_ext.passes import Compilation, Outcome, get_pass

from triton_ext.mlir_evaluation import Evaluation, plausible_launch
from triton_ext.mlir_module import MlirModule
from triton_ext.mlir_scalars import Scalars
from triton_ext.ptx import parse_ptx
from triton_ext.ptx_sums import Launch, Sum, Sums, of_launch, of_thread, slice_kernel

VERIFY = get_pass("verify-descriptors")
PROVEN = 0.97
"""Of what is looked at in the corpus; the rest is not known before the kernel runs."""


def verified(kernel: Compiled, change: Corruption | None = None) -> Outcome:
    texts = {"ttgir": kernel.ttgir, "ptx": change.ptx if change else kernel.ptx}
    metadata = (change.metadata if change else None) or kernel.metadata
    return VERIFY(Compilation(kernel.kernel, kernel.arch, "ptx", texts, metadata))


@functools.cache
def kernels(site, tier):
    return corpus(site, tier=tier).kernels


@pytest.mark.parametrize("site", triton_sites())
def test_the_corpus_is_accepted(site):
    """Every kernel, and most of what there is to prove is proven."""
    proven, unproven, operations, left_out = Counter(), Counter(), Counter(), Counter()
    found = kernels(site, 2 if site is None else 1)
    for kernel in found:
        outcome = verified(kernel)
        assert not outcome.diagnostics, (kernel.name, [str(each) for each in outcome.diagnostics])
        assert outcome.report["groups_matched"] == outcome.report["groups"], kernel.name
        proven.update(outcome.report["proven"])
        unproven.update(outcome.report["unproven"])
        operations.update(outcome.report["operations"])
        left_out.update(outcome.report["operations_not_derived"])
    assert not left_out
    assert sum(proven.values()) >= PROVEN * (sum(proven.values()) + sum(unproven.values()))
    assert unproven["descriptors"] == unproven["instruction descriptors"] == 0
    if site is None:
        assert len(found) >= 150
        assert {
            "ttng.warp_group_dot", "ttng.tc_gen5_mma", "ttng.tc_gen5_mma_scaled", "ttng.tmem_copy",
            "ttng.async_tma_copy_global_to_local", "ttng.async_tma_copy_local_to_global",
            "ttng.async_tma_reduce", "ttng.async_tma_gather", "ttng.async_tma_scatter",
            "ttng.barrier_expect",
        } <= operations.keys()  # fmt: skip
        assert min(operations.values()) >= 4, operations


def test_the_report_is_readable():
    kernel = corpus().named("matmul-bf16-K-MN-128-nvmma-sm100")
    outcome = verified(kernel)
    assert json.loads(json.dumps(outcome.report)) == outcome.report
    text = VERIFY.render(kernel.kernel, outcome.report, VERIFY.options())
    assert "ttng.tc_gen5_mma" in text
    assert "is proven" in text
    as_json = VERIFY.render(kernel.kernel, outcome.report, VERIFY.options(format="json"))
    assert json.loads(as_json)["verify-descriptors"] == outcome.report


# ---------------------------------------------------------------------- seeded faults


def is_found(kernel: Compiled, change: Corruption) -> bool:
    assert (change.ptx, change.metadata) != (kernel.ptx, None), change.kind
    outcome = verified(kernel, change)
    return any(each.severity == "error" for each in outcome.diagnostics)


EVERY_BIT = ("product-bf16-bf16-MN-MN-64-0-1-56-sm90", "product-f16-f16-K-MN-64-0-2-24-sm100")
"""Bare products: each bit of the descriptors is flipped."""
SOME = (
    "matmul-bf16-K-MN-128-nvmma-sm90",
    "matmul-fp16-K-MN-128-generated-sm100",
    "scaled-scaled_matmul_by_descriptors-nvfp4-sm100",
    "dot-matmul_by_pointers-fp16-sm90",
    "dot-tma-matmul_by_descriptors-stages4-sm100",
    "views-carried_buffers-fp16-sm90",
    "cluster-pair_matmul-fp16-sm100",
    "tma-gather_scatter-fp16-sm100",
    "tma-descriptor_of_rank-3-sm90",
    "copies-im2col-fp16-sm100",
)
MAY_ESCAPE = (
    # An address that one instruction alone names: nothing contradicts it.
    "shared address", "mbarrier + 8", "coordinate", "D's address", "destination", "scale address",
    # A stride that the instruction has no use for; 0 and 1 are both usual.
    "descriptor bit 16", "descriptor bit 32",
    # The second of two identical barriers' expectations, where nothing else tells them apart.
    "expect_tx, last: doubled", "expect_tx, first: doubled",
)  # fmt: skip
"""Kinds of change that cannot always be told from the PTX and the TTGIR alone."""


def faults(name: str, *, every_bit: bool):
    kernel = corpus().named(name)
    found, missed = Counter(), Counter()
    for change in corruptions(kernel.ptx, kernel.metadata):
        place = change.kind.rpartition("bit ")
        if not every_bit and place[1] and int(place[2]) % 13:
            continue
        (found if is_found(kernel, change) else missed)[change.kind] += 1
    return found, missed


@pytest.mark.parametrize("name", EVERY_BIT)
def test_every_bit(name):
    """Each bit of the descriptors, and everything else: found, but for what cannot be told."""
    found, missed = faults(name, every_bit=True)
    assert not [kind for kind in missed if not any(part in kind for part in MAY_ESCAPE)], missed
    assert len(found) >= 130
    assert sum(missed.values()) <= 0.04 * sum(found.values()), missed


def test_seeded_faults():
    """Other kernels: each kind of change is found in all of them, but for what cannot be told."""
    found, missed = Counter(), Counter()
    for name in SOME:
        one, other = faults(name, every_bit=False)
        found += one
        missed += other
    assert not [kind for kind in missed if not any(part in kind for part in MAY_ESCAPE)], missed
    assert len(found) >= 100
    assert sum(missed.values()) <= 0.05 * sum(found.values()), missed
    for part in ("shared address", "mbarrier + 8", "coordinate"):
        assert any(part in kind for kind in found), part


def test_a_whole_operation_is_missing():
    """All instructions of an operation dropped; of another one, exchanged operands throughout."""
    for name in ("matmul-bf16-K-MN-128-nvmma-sm90", "matmul-bf16-K-MN-128-nvmma-sm100"):
        kernel = corpus().named(name)
        editor = Editor(kernel.ptx)
        products = editor.of("wgmma.mma_async", "tcgen05.mma")
        text = editor.dropped(*products)
        assert "no instructions for it" in str(verified(kernel, Corruption("", text)).diagnostics)
        lines = list(editor.lines)
        for one in products:
            a, b = one.operands[1:3]
            line = lines[one.line - 1]
            lines[one.line - 1] = (
                line.replace(f"{a},", "%swap,").replace(f"{b},", f"{a},").replace("%swap,", f"{b},")
            )
        outcome = verified(kernel, Corruption("", "\n".join(lines)))
        assert [each.severity for each in outcome.diagnostics].count("error") >= 1


def test_messages():
    """Both sides, the PTX line, the source line, and what to do."""
    kernel = corpus().named("matmul-bf16-K-MN-128-nvmma-sm90")
    editor = Editor(kernel.ptx)
    one = editor.of("wgmma.mma_async")[1]
    changed = editor.replaced(one, lambda line: line.replace("m64n", "m64n8", 1))
    (error, *_) = verified(kernel, Corruption("", changed)).diagnostics
    assert f"PTX line {one.line}" in error.message
    assert "the opcode is wgmma.mma_async.sync.aligned.m64n8" in error.message
    assert error.location is not None
    assert error.location.file.endswith("matmul.py")
    assert "do not run it" in error.help
    with_metadata = dict(kernel.metadata)
    with_metadata["tensordesc_meta"] = [
        {**entry, "swizzle": 1} for entry in kernel.metadata["tensordesc_meta"]
    ]
    errors = verified(kernel, Corruption("", kernel.ptx, with_metadata)).diagnostics
    assert "swizzle = 1" in errors[0].message


# ------------------------------------------------------------------- upstream faults


ROWS = "#ttg.nvmma_shared<{swizzlingByteWidth = 0, transposed = false, elementBitWidth = 16}>"


def test_rows_without_swizzle():
    """What Triton 3.8 and 3.9 compile with the descriptor of another layout: an error, named."""
    kernel = next(
        each
        for each in corpus().kernels
        if each.name.startswith("product-f16-f16-K-") and each.arch == 90
    )
    module = MlirModule(kernel.ttgir)
    (product,) = [each for each in module.operations if each.name == "ttng.warp_group_dot"]
    kind = module.memory(product.operands[0])
    assert kind is not None
    changed = dataclasses.replace(kernel, ttgir=kernel.ttgir.replace(kind.encoding, ROWS, 1))
    (error, *_) = verified(changed).diagnostics
    assert "no matrix descriptor" in error.message
    assert "a known fault: Triton 3.8 and 3.9" in error.message
    warned = VERIFY.run(
        Compilation(
            changed.kernel, 90, "ptx", {"ttgir": changed.ttgir, "ptx": changed.ptx},
            changed.metadata,
        ),
        VERIFY.options(known_faults="warn"),
    )  # fmt: skip
    assert warned.diagnostics[0].severity == "warning"


# ------------------------------------------------------------------------- its tools


PTX = """
.version 8.7
.target sm_90a
.entry kernel(.param .u32 kernel_param_0, .param .u32 kernel_param_1)
{
  .reg .b32 %r<30>; .reg .b64 %rd<9>; .reg .pred %p<3>;
  ld.param.b32 %r1, [kernel_param_0];
  mov.u32 %r2, %tid.x;
  mov.u32 %r3, %ctaid.x;
  shl.b32 %r4, %r1, 3;
  add.s32 %r5, %r4, %r3;
  mad.lo.s32 %r6, %r1, 8, %r3;
  sub.s32 %r7, %r5, 16;
  or.b32 %r8, %r4, 5;
  mov.b32 %r9, 1073758272;
  mov.b64 %rd1, {%r5, %r9};
  cvt.u64.u32 %rd2, %r7;
  div.s32 %r10, %r4, 7;
  rem.s32 %r11, %r4, 7;
  mul.hi.u32 %r12, %r1, -1431655765;
  min.s32 %r13, %r4, 100;
  add.f32 %r20, %r4, %r5;
  st.shared.b32 [%r7+4], %r8;
  ret;
}
"""


def test_sums():
    (kernel,) = parse_ptx(PTX).kernels
    store = next(each for each in kernel.instructions if each.opcode.startswith("st."))
    sums = Sums(kernel)

    def of(name: str) -> Sum:
        return sums.operand(name, store)

    assert of("%r5") == of("%r6")
    assert (of("%r7") - of("%r5")) == Sum((), -16 & (1 << 64) - 1)
    assert (of("%r8") - of("%r4")) == Sum((), 5)  # the low bits are known to be 0
    assert (of("%rd1") - of("%rd2")) == Sum((), (1073758272 << 32) + 16)
    assert sums.address("[%r7+4]", store) - of("%r5") == Sum((), -12 & (1 << 64) - 1)
    assert of("%r20").terms == (("%r20", 1),)


def test_a_thread_of_a_launch():
    (kernel,) = parse_ptx(PTX).kernels
    store = next(each for each in kernel.instructions if each.opcode.startswith("st."))
    launch = Launch({0: 1000}, (7, 0, 0), (9, 1, 1))
    sums = Sums(of_launch(of_thread(kernel, 96), launch))
    values = {name: sums.operand(f"%r{name}", store).constant for name in (2, 5, 10, 11, 12, 13)}
    assert values == {2: 96, 5: 8007, 10: 8000 // 7, 11: 8000 % 7, 12: 666, 13: 100}


def test_a_slice_knows_the_same():
    for name in ("matmul-bf16-K-MN-128-nvmma-sm90", "attention-attention-tensor-64-causal-sm100"):
        (kernel,) = parse_ptx(corpus().named(name).ptx).kernels
        wanted = [
            each for each in kernel.instructions
            if each.opcode.startswith(("wgmma.mma", "tcgen05.mma", "cp.async.bulk.tensor"))
        ]  # fmt: skip
        part = slice_kernel(kernel, wanted)
        assert len(part.instructions) < len(kernel.instructions)
        whole, some = Sums(kernel).folder, Sums(part).folder
        for instruction in wanted:
            for text in instruction.operands[:3]:
                assert whole.operand(text, 64, instruction) == some.operand(text, 64, instruction)


MODULE = """
module attributes {"ttg.num-warps" = 4 : i32, ttg.target = "cuda:90"} {
  tt.func public @f(%p: !tt.ptr<f32>, %n: i32, %m: i32) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c64 = arith.constant 64 : i32
    %c128 = arith.constant 128 : i32
    %first = tt.get_program_id x : i32
    %at = arith.muli %first, %c128 : i32
    %end = arith.addi %at, %c64 : i32
    %later = arith.addi %at, %c128 : i32
    %never = arith.cmpi slt, %later, %end : i32
    %always = arith.cmpi slt, %at, %later : i32
    %unknown = arith.cmpi slt, %n, %m : i32
    %both = arith.andi %never, %unknown : i1
    scf.for %i = %at to %end step %c64 : i32 {
      %next = arith.addi %i, %c64 : i32
      %more = arith.cmpi slt, %next, %end : i32
      %tile = arith.remsi %i, %m : i32
      "test.use"(%more, %tile) : (i1, i32) -> ()
    }
    scf.for %j = %end to %at step %c64 : i32 {
      "test.never"(%j) : (i32) -> ()
    }
    tt.return
  }
}
"""


def test_conditions_and_values():
    module = MlirModule(MODULE)
    values = {value.name: value for value in module.values}
    scalars = Scalars(module)
    conditions = {
        name: scalars.condition(values[f"%{name}"])
        for name in ("never", "always", "unknown", "both", "more")
    }
    assert conditions == {
        "never": False, "always": True, "unknown": None, "both": False, "more": False,
    }  # fmt: skip
    dead = next(each for each in module.operations if each.name == "test.never")
    assert scalars.is_executed(dead) is False
    evaluation = Evaluation(module, Launch({1: 100, 2: 300}, (5, 0, 0), (9, 1, 1)))
    found = {name: evaluation.value(values[f"%{name}"]) for name in ("at", "tile", "unknown")}
    assert found == {"at": 640, "tile": 40, "unknown": 1}
    assert evaluation.is_executed(dead) is False
    assert plausible_launch(module).arguments.keys() == {1, 2}
