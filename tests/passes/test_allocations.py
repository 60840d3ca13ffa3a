"""verify-descriptors: where allocations may lie, by when they are used."""

from __future__ import annotations

import pytest

from triton_ext.mlir.module import MlirModule
from triton_ext.passes.verify_descriptors.meaning.tiles import view_offset
from triton_ext.passes.verify_descriptors.memory.allocations import compare_regions
from triton_ext.passes.verify_descriptors.running.findings import Findings
from triton_ext.passes.verify_descriptors.running.launches import BASES
from triton_ext.passes.verify_descriptors.running.mlir_trace import Life
from triton_ext.ptx.parse import parse_ptx

MODULE = MlirModule("""\
#shared = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90"} {
  tt.func public @kernel() {
    %a = ttg.local_alloc : () -> !ttg.memdesc<256xf32, #shared, #smem, mutable>
    %b = ttg.local_alloc : () -> !ttg.memdesc<256xf32, #shared, #smem, mutable>
    tt.return
  }
}
""")
A, B = (each for each in MODULE.values if each.name in ("%a", "%b"))
BYTES = 256 * 4
PTX = """
.version 8.6
.target sm_90a
.address_size 64
.entry kernel() { bar.sync 0; ret; }
"""
INSTRUCTION = parse_ptx(PTX).kernels[0].instructions[0]


def found(distance, a_used, b_used, shared=4 * BYTES):
    """What is found where B begins so many bytes behind A, and each is used from there to there."""
    findings = Findings()
    lives = [Life(A, *a_used), Life(B, *b_used)]
    starts = {A: (BASES.shared, INSTRUCTION), B: (BASES.shared + distance, INSTRUCTION)}
    compare_regions(MODULE, findings, lives, starts, shared, None)
    return findings


@pytest.mark.parametrize(
    ("distance", "a_used", "b_used", "is_legal"),
    [
        (0, (1, 4), (5, 9), True),  # one after the other
        (0, (1, 5), (5, 9), False),  # one operation uses both
        (0, (5, 9), (1, 5), False),
        (0, (5, 9), (1, 4), True),
        (0, (1, 9), (3, 3), False),
        (BYTES, (1, 9), (1, 9), True),  # side by side
        (BYTES - 16, (1, 9), (1, 9), False),
        (0, (1, 9), (1 << 40, -1), True),  # one is never used
    ],
)
def test_what_is_in_use_together_lies_apart(distance, a_used, b_used, is_legal):
    findings = found(distance, a_used, b_used)
    assert bool(findings.differences) is not is_legal
    together = b_used[1] >= 0 and max(a_used[0], b_used[0]) <= min(a_used[1], b_used[1])
    assert findings.proven["allocations that lie apart"] == int(is_legal and together)


@pytest.mark.parametrize(("shared", "is_legal"), [(2 * BYTES, True), (2 * BYTES - 1, False)])
def test_the_last_byte_lies_in_what_the_kernel_has(shared, is_legal):
    assert bool(found(BYTES, (1, 2), (1, 2), shared).differences) is not is_legal


@pytest.mark.parametrize(("columns", "offset"), [(32, 32), (64, 16 << 16), (96, 16 << 16 | 32)])
def test_blocks_of_64_rows_lie_above_each_other(columns, offset):
    """The second block of 64 columns is in lanes 16 to 31 of each warp (Triton's
    ``TensorMemoryEncodingAttr``)."""
    memory = "#ttng.tensor_memory_encoding<blockM = 64, blockN = 64, colStride = 1>"
    module = MlirModule(f"""module {{
  tt.func public @kernel() {{
    %whole = ttng.tmem_alloc : () -> !ttg.memdesc<64x128xf32, {memory}, #ttng.tensor_memory, mutable>
    %part = ttng.tmem_subslice %whole {{N = {columns} : i32}} : !ttg.memdesc<64x128xf32, {memory}, #ttng.tensor_memory, mutable> -> !ttg.memdesc<64x32xf32, {memory}, #ttng.tensor_memory, mutable, 64x128>
    tt.return
  }}
}}""")  # noqa: E501
    (view,) = [each for each in module.operations if each.name == "ttng.tmem_subslice"]
    assert view_offset(module, view, None) == offset
