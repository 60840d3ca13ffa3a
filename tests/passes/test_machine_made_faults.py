"""Faults that mutations by machine showed to be claimed, or not found, each by its kind."""

from __future__ import annotations

import re

import pytest
from pass_corpus import corpus
from ptx_corruptions import Editor

from triton_ext.passes import Compilation, get_pass
from triton_ext.passes.verify_descriptors.running.findings import Findings
from triton_ext.passes.verify_descriptors.running.legality import BY_ELEMENTS, check_legality
from triton_ext.passes.verify_descriptors.running.poison import OF_TENSORS, UNWRITTEN
from triton_ext.passes.verify_descriptors.running.ptx_trace import Tracer
from triton_ext.passes.verify_descriptors.running.thread_trace import ThreadTrace
from triton_ext.ptx.folding import Folder
from triton_ext.ptx.parse import parse_ptx

VERIFY = get_pass("verify-descriptors")
GATHER = "copies-copies-gather-sm100"
GROUPED = "dot-tma-matmul_by_descriptors-stages4-sm90"
BY_POINTERS = "dot-matmul_by_pointers-fp16-sm90"
MADE_HERE = "dot-tma-matmul_by_device_descriptors-fp16-sm100"
PAIR = "cluster-pair_matmul-fp16-sm100"
SPECIALIZED = "specialized-persistent_matmul-plain-sm100"


def editor(name: str) -> Editor:
    return Editor(corpus().named(name).ptx)


def errors(name: str, ptx: str) -> list[str]:
    kernel = corpus().named(name)
    assert ptx != kernel.ptx
    texts = {"ttgir": kernel.ttgir, "ptx": ptx}
    outcome = VERIFY(Compilation(kernel.kernel, kernel.arch, "ptx", texts, kernel.metadata))
    return [each.message for each in outcome.diagnostics if each.severity == "error"]


def but_one(line: str, condition: str) -> str:
    """A guarded line that is not executed under a condition on a special register."""
    guard, rest = re.fullmatch(r"\s*@(%\w+)\s+(.*)", line).groups()
    register, number = condition.split()
    return (
        "{ .reg .pred others; .reg .b32 which;"
        f" mov.u32 which, {register}; setp.ne.and.u32 others, which, {number}, {guard};"
        f" @others {rest} }}"
    )


def test_rows_that_each_warp_gathers():
    """The first warp's rows lie right, however far apart those of the others are."""
    changed = editor(GATHER)
    (shift,) = [each for each in changed.of("shl.b32") if each.operands[-1] == "8"]
    for amount in (7, 9):
        ptx = changed.replaced(shift, lambda line, to=amount: line.replace(", 8;", f", {to};"))
        assert any("shared memory of a TMA copy" in each for each in errors(GATHER, ptx))


def test_a_group_of_fewer_tiles():
    """The last group of rows of tiles is smaller; a block of the first row does not see it."""
    changed = editor(GROUPED)
    (least,) = changed.of("min.s32")
    ptx = changed.replaced(least, lambda _: f"mov.b32 {least.operands[0]}, 4;")
    assert errors(GROUPED, ptx)


@pytest.mark.parametrize("where", ["%ctaid.x 21", "%ctaid.x 3", "%tid.x 0"])
def test_a_copy_that_one_block_or_thread_lacks(where):
    """Also in a loop, where copies begin when the first buffers are free again."""
    changed = editor(MADE_HERE)
    copies = changed.of("cp.async.bulk.tensor.2d.shared::cta.global")
    for copy in (copies[0], copies[-1]):
        assert errors(MADE_HERE, changed.replaced(copy, lambda line: but_one(line, where)))


@pytest.mark.parametrize("name", [PAIR, "attention-attention_by_descriptors-64-causal-sm90"])
def test_the_swizzle_of_an_epilogue(name):
    """Each thread fills the same bytes, but some lanes with the elements of others."""
    changed = editor(name)
    last = [each for each in changed.of("and.b32") if each.operands[-1] == "112"][-1]
    ptx = changed.replaced(last, lambda line: line.replace("112;", "48;"))
    assert any(
        "the element that it stores in the first thread" in each for each in errors(name, ptx)
    )
    assert errors(name, changed.replaced(last, lambda line: line.replace("112;", "96;")))


@pytest.mark.parametrize("name", [GROUPED, SPECIALIZED])
def test_an_address_that_nothing_has_written(name):
    """Also in stores into scratch memory, with which nothing is compared."""
    changed = editor(name)
    stores = changed.of("stmatrix", "st.shared.v4")
    assert stores
    for store in stores:
        base = re.search(r"%\w+", store.operands[0])[0]
        ptx = changed.with_operand(store, base, "", "%r99998")
        assert any("that nothing has written" in each for each in errors(name, ptx))


def test_elements_are_addresses_in_some_modules():
    (store,) = (
        parse_ptx("""
.version 8.7
.target sm_90a
.entry kernel() { .reg .b32 %r<3>; st.shared.b32 [%r1], %r2; ret; }
""")
        .kernels[0]
        .instructions[:1]
    )
    for address, allowed, count in (
        (OF_TENSORS, True, 0), (OF_TENSORS, False, 1), (UNWRITTEN, True, 1), (None, False, 0),
    ):  # fmt: skip
        findings = Findings()
        check_legality(findings, ThreadTrace(accesses=[(store, address, 0)]), allowed)
        assert len(findings.differences) == count
    assert "tt.gather" in BY_ELEMENTS


@pytest.mark.parametrize("name", [MADE_HERE, "attention-attention-tensor-64-causal-sm100"])
def test_waits_for_tensor_memory(name):
    """Each left out; the last one, at which nothing else follows, too."""
    changed = editor(name)
    waits = changed.of("tcgen05.wait::")
    assert {each.opcode[:17] for each in waits} >= {"tcgen05.wait::ld.", "tcgen05.wait::st."}
    for wait in waits:
        assert any("the wait for it" in each for each in errors(name, changed.dropped(wait)))


@pytest.mark.parametrize(("name", "opcode"), [
    ("copies-im2col-fp16-sm100", "tcgen05.ld"), (GROUPED, "elect.sync"), (GROUPED, "stmatrix"),
])  # fmt: skip
def test_a_lane_that_leaves_its_warp_alone(name, opcode):
    """All lanes of a warp execute it, or none."""
    changed = editor(name)
    one = changed.of(opcode)[0]
    ptx = changed.replaced(one, lambda line: but_one(f"@%p0 {line.strip()}", "%tid.x 18"))
    ptx = ptx.replace("setp.ne.and.u32 others, which, 18, %p0", "setp.ne.u32 others, which, 18")
    words = ("which lanes of a warp execute it", "a register that nothing has written")
    assert any(word in each for each in errors(name, ptx) for word in words)


def test_descriptors_in_scratch_memory_lie_apart():
    changed = editor(MADE_HERE)
    made = [each for each in changed.of("add.s64") if each.operands[-1] == "128"]
    assert made
    for each in made:
        ptx = changed.replaced(each, lambda line: line.replace(", 128;", ", 0;"))
        assert errors(MADE_HERE, ptx)


def test_a_copy_that_is_issued_twice():
    changed = editor(BY_POINTERS)
    copies = changed.of("cp.async.cg")
    for copy in (copies[0], copies[-1]):
        found = errors(BY_POINTERS, changed.doubled(copy))
        assert any("how often it fills these bytes" in each for each in found)


def test_a_parameter_that_is_read_elsewhere():
    changed = editor(GROUPED)
    sizes = [each for each in changed.of("ld.param.b32") if each.operands[1].endswith("_17]")]
    assert sizes
    ptx = changed.replaced(sizes[0], lambda line: line.replace("ld.param.", "ld."))
    assert any("by the address of a parameter" in each for each in errors(GROUPED, ptx))


def test_any_number_but_0_is_true():
    """ptxas makes of ``mov.pred %p1, 64`` a predicate that holds, as of -1."""
    (kernel,) = parse_ptx("""
.version 8.7
.target sm_90a
.entry kernel()
{
  .reg .pred %p<5>;
  mov.pred %p1, 64;
  mov.pred %p2, 0;
  and.pred %p3, %p1, 2;
  @%p1 wgmma.commit_group.sync.aligned;
  @%p2 wgmma.fence.sync.aligned;
  @%p3 wgmma.wait_group.sync.aligned 0;
  ret;
}
""").kernels
    wanted = [each for each in kernel.instructions if each.opcode.startswith("wgmma")]
    events = Tracer(kernel, wanted, {}).run(0, 10).events
    assert [each.instruction for each in events] == [wanted[0], wanted[2]]
    folder = Folder(kernel)
    assert [folder.operand(f"%p{i}", 1).field(0, 1) for i in (1, 2, 3)] == [1, 0, 1]


def test_each_fact_counts_once():
    (instruction,) = (
        parse_ptx(".version 8.7\n.target sm_90a\n.entry k() { ret; }").kernels[0].instructions
    )
    findings = Findings()
    for expected, found in ((3, 3), (None, 3), (3, OF_TENSORS), (3, 4)):
        findings.check("counts", None, instruction, "the count", expected, found)
    assert findings.proven == {"counts": 1}
    assert findings.unproven == {"counts": 1}
    assert [each.found for _, each in findings.differences] == [str(OF_TENSORS), "4"]
