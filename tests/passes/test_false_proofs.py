"""What verify-descriptors once claimed of faulty kernels: each is found now, or said to be open."""

from __future__ import annotations

import re

import pytest
from pass_corpus import corpus
from ptx_corruptions import Editor

from triton_ext.mlir.module import MlirModule
from triton_ext.passes import Compilation, Outcome, get_pass
from triton_ext.passes.verify_descriptors.memory.stores import DATA_OF_STORES
from triton_ext.passes.verify_descriptors.running.trips import whole_launches
from triton_ext.passes.verify_descriptors.running.turns import Turns
from triton_ext.ptx.parse import parse_ptx

VERIFY = get_pass("verify-descriptors")
NVFP4 = "scaled-scaled_matmul_by_descriptors-nvfp4-sm100"
HOPPER = "matmul-bf16-K-MN-128-nvmma-sm90"


def verified(name: str, change=lambda ptx: ptx) -> Outcome:
    kernel = corpus().named(name)
    ptx = change(kernel.ptx)
    texts = {"ttgir": kernel.ttgir, "ptx": ptx}
    return VERIFY(Compilation(kernel.kernel, kernel.arch, "ptx", texts, kernel.metadata))


def errors(outcome: Outcome) -> list[str]:
    return [each.message for each in outcome.diagnostics if each.severity == "error"]


BOUNDS = {NVFP4: 37, HOPPER: 2}
"""The parameter that is K; a whole number of it is a tile of 128 or 64."""


def with_bound_moved(name: str, by: int) -> Outcome:
    """K is another one wherever a loop counts to it."""

    def change(ptx: str) -> str:
        pattern = rf"^.*ld\.param\.b32\s+(%r\d+), \[\w+_param_{BOUNDS[name]}\];$"
        line = re.search(pattern, ptx, re.MULTILINE)
        assert line
        return ptx.replace(line[0], f"{line[0]}\nadd.s32 {line[1]}, {line[1]}, {by};")

    return verified(name, change)


@pytest.mark.parametrize("by", [-64, -17, -16, 16, 32])
@pytest.mark.parametrize("name", BOUNDS)
def test_the_bound_of_a_loop(name, by):
    """A size that is off by less than a tile, where no loop was followed to its end."""
    assert errors(with_bound_moved(name, by))


def test_what_a_size_is_compared_with():
    """Each constant, less and more by what Triton knows the size to be a multiple of (16); what is
    compared in the loop, with equality."""
    ptx = corpus().named(NVFP4).ptx
    constants = [*re.finditer(r"setp\.(lt|gt)\.s32\s+%p\d+, %r2, (\d+);", ptx)]
    assert len(constants) >= 5
    changes = [
        (found, found[0].replace(found[2], str(int(found[2]) + by)))
        for found in constants
        for by in (16, -16)
    ]
    counted = [*re.finditer(r"setp\.lt\.s32\s+%p\d+, %r\d+, %r\d+;", ptx)]
    changes += [(found, found[0].replace(".lt", ".le")) for found in counted]
    missed = [
        new
        for found, new in changes
        if not errors(
            verified(NVFP4, lambda _, f=found, n=new: ptx[: f.start()] + n + ptx[f.end() :])
        )
    ]
    assert missed == []


@pytest.mark.parametrize("name", [NVFP4, "dot-tma-matmul_by_descriptors-stages4-sm100"])
def test_tensor_memory_is_allocated_by_a_whole_warp(name):
    """By 31 threads, or by 33."""
    for count in (31, 33):
        found = errors(
            verified(name, lambda ptx, n=count: re.sub(r"(%r1), 32;", rf"\1, {n};", ptx, count=1))
        )
        assert any("the allocation of tensor memory" in each for each in found), count


def test_which_element_is_stored_where_is_said_to_be_open():
    """The set of bytes of stores into a tile is compared; all their lines are listed, too."""
    for name in (HOPPER, "persistent-persistent_matmul-plain-sm90"):
        outcome = verified(name)
        (entry,) = parse_ptx(corpus().named(name).ptx).kernels
        lines = {
            each.line for each in entry.instructions
            if each.opcode.startswith(("st.shared", "stmatrix"))
        }  # fmt: skip
        assert lines <= set(outcome.report["not_looked_at_lines"])
    assert outcome.report["not_looked_at"][DATA_OF_STORES] >= 1
    assert "stores: the bytes that a thread fills" in outcome.report["proven"]


@pytest.mark.parametrize("opcode", ["wgmma.wait_group", "wgmma.commit_group"])
def test_groups_of_products(opcode):
    """Each left out, issued twice, or waited for less."""
    for name in (HOPPER, "dot-matmul_by_pointers-fp16-sm90"):
        editor = Editor(corpus().named(name).ptx)
        for one in editor.of(opcode):
            changes = [editor.dropped(one), editor.replaced(one, lambda line: f"{line}\n{line}")]
            if "wait" in opcode:
                less = editor.replaced(
                    one,
                    lambda line: re.sub(
                        r"aligned (\d)", lambda m: f"aligned {int(m[1]) + 1}", line
                    ),
                )
                changes.append(less)
            for changed in changes:
                assert errors(verified(name, lambda _, changed=changed: changed)), one


def test_each_bound_of_a_thread_and_a_block():
    """A condition that one thread or one block alone sees; the report says which were run."""
    ptx = corpus().named(HOPPER).ptx
    first = re.search(r"^.*mbarrier\.arrive\.expect_tx.*$", ptx, re.MULTILINE)
    assert first
    for register, number in (("%tid.x", 77), ("%ctaid.x", 9)):
        added = (
            f"mov.u32 %r99998, {register};\nsetp.eq.u32 %p99998, %r99998, {number};\n"
            f"@%p99998 bra $leaves;\n"
        )
        changed = ptx.replace("ret;", "$leaves:\nret;")
        changed = changed.replace(first[0], added + first[0])
        outcome = verified(HOPPER, lambda _, changed=changed: changed)
        assert errors(outcome), register
        where = "threads" if "tid" in register and "cta" not in register else "blocks"
        assert any(number in ([each] if isinstance(each, int) else each)
                   for each in outcome.report[where])  # fmt: skip
    outcome = verified(HOPPER)
    assert {0, 31, 127} <= set(outcome.report["threads"])
    assert [0, 0, 0] in [list(each) for each in outcome.report["blocks"]]


def test_where_conditions_turn():
    """Bounds are those of conditions on a register, not of conditions that an unknown decides."""
    (kernel,) = parse_ptx("""
.version 8.7
.target sm_90a
.entry kernel(.param .u32 kernel_param_0)
{
  .reg .b32 %r<9>; .reg .pred %p<9>;
  mov.u32 %r1, %tid.x;
  shr.u32 %r2, %r1, 5;
  setp.eq.b32 %p1, %r2, 2;
  ld.param.b32 %r3, [kernel_param_0];
  setp.lt.u32 %p2, %r1, %r3;
  and.b32 %r4, %r1, 1;
  setp.eq.b32 %p3, %r4, 0;
  setp.lt.u32 %p4, %r1, %r5;
  setp.lt.and.u32 %p5, %r1, 40, %p4;
  setp.ne.u32 %p6, %r1, 21;
  ret;
}
""").kernels
    turns = Turns(kernel, {"[kernel_param_0]": 100})
    assert sorted(turns.of("%tid.x", 128)) == [
        20,
        21,
        22,
        39,
        40,
        63,
        64,
        95,
        96,
        99,
        100,
    ]
    assert turns.of("%tid.x", 128)[0] == 21  # a condition for one number alone comes first
    assert turns.of("%ctaid.x", 128) == []


def test_sizes_at_the_edges_of_tiles():
    """Each size is a multiple of what it is divided by, just more, and just less; the first launch
    has more tiles along K than buffers, the last one runs a block of the second row of tiles."""
    launches = whole_launches(MlirModule(corpus().named(NVFP4).ttgir))
    sizes = [[*each.arguments.values()][-1] for each in launches]
    assert {size % 256 for size in sizes} in ({0, 16, 240}, {0, 1, 255})
    assert sizes[0] + 16 >= 5 * 256 > 4 * 256 >= max(sizes[1:]) + 16
    assert launches[-1].program == (5, 0, 0)


def test_our_hopper_matmuls_are_followed_to_their_end():
    """With their copies, waits and arrivals in inline assembly."""
    outcome = verified("matmul-consumers-e4m3-scales-generated-sm90")
    assert outcome.report["unproven"] == {}


@pytest.mark.parametrize(
    ("name", "opcode", "since"),
    [
        ("views-chosen_buffers-loop-sm100", r"tcgen05\.ld\.", "3.7"),
        (
            "matmul-consumers-e4m3-scales-generated-sm90",
            r"and\.b32\s+%r\d+, %r\d+, 16777200", "3.9",
        ),
    ],
)  # fmt: skip
def test_what_is_left_out(name, opcode, since):
    """The last transfer of tensor memory; the address of a barrier that inline assembly takes
    (3.9 masks it)."""
    pytest.importorskip("triton", minversion=since)

    def change(ptx: str) -> str:
        found = [*re.finditer(rf"{opcode}[^;]*;", ptx)][-1]
        return ptx[: found.start()] + ptx[found.end() :]

    assert errors(verified(name, change))
