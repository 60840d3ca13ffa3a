"""fp32 scales of blocks of 128 elements along K, as they lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from triton_ext.kernels.element_types import FP32_SCALE_BLOCK, SCALE_BLOCK, Major
from triton_ext.ops.operands import TMA_ALIGNMENT
from triton_ext.ops.types import SCALE_LENGTHS


def blocks_of(size: int) -> int:
    """How many blocks of 128 there are of so many elements."""
    return -(-size // FP32_SCALE_BLOCK)


class ScalesInMemory(NamedTuple):
    """How the kernel reads an operand's scales.

    Attributes:
        rows: how many rows of the operand share one: 1 or 128.
        major: which of their dimensions is contiguous, "K" or "MN".
        step: elements from one to the next of the other dimension.
        copied: whether they must be copied for that, to contiguous memory.
    """

    rows: int
    major: Major
    step: int
    copied: bool


def fp32_scales(blocks: Tensor, rows: int) -> ScalesInMemory:
    """How scales (rows or blocks of rows, along K) lie in memory, those of several matrices one
    after the other. `rows`: those of the operand."""
    many, along = blocks.shape[-2:]
    together = 1 if many == rows else FP32_SCALE_BLOCK
    row_step, k_step = blocks.stride()[-2:]
    ways: tuple[tuple[Major, int, int, int, int], ...] = (
        ("K", k_step, along, row_step, many), ("MN", row_step, many, k_step, along)
    )  # fmt: skip
    for major, step, inner, outer_step, outer in ways:
        if (step != 1 and inner > 1) or (outer_step < inner and outer > 1):
            continue
        outer_step = max(outer_step, inner)
        if blocks.dim() == 3 and len(blocks) > 1 and blocks.stride(0) != outer * outer_step:
            continue
        if blocks.data_ptr() % TMA_ALIGNMENT == 0:
            return ScalesInMemory(together, major, outer_step, False)
    return ScalesInMemory(together, "K", along, True)


def same_shape(found: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether shapes are equal; not by "in", which torch's compiler gets wrong of symbols."""
    return len(found) == len(wanted) and all(
        size == other for size, other in zip(found, wanted, strict=True)
    )


def have_blocks(blocks: Tensor, rows: int, k: int) -> bool:
    """Whether (rows or blocks of rows, along K) are the scales of an operand (rows, K)."""
    many, along = blocks.shape[-2:]
    return (many == rows or many == blocks_of(rows)) and along == blocks_of(k)


def scale_columns(a: Tensor, scales: torch.dtype) -> int:
    """How many blocks of scales, as the tensor cores take them, lie side by side along K.

    Args:
        a: (..., K).
        scales: their type.
    """
    k = a.shape[-1] * (2 if a.dtype == torch.float4_e2m1fn_x2 else 1)
    return -(-k // (SCALE_BLOCK[1] * SCALE_LENGTHS[scales]))


def for_tensor_cores(blocks: Tensor, rows: int, ends: Tensor | None = None) -> Tensor:
    """Scales of 128 elements along K, of one byte, as the tensor cores take them: for each 32 of
    these the same, and in blocks of `SCALE_BLOCK`, which are padded. (..., bytes)

    Args:
        blocks: (..., rows or blocks of rows, along K).
        rows: those of the operand.
        ends: where groups of rows end, each of which begins with a block.
    """
    high, wide = SCALE_BLOCK
    each = blocks.view(torch.uint8)
    if each.shape[-2] != rows:
        each = each.repeat_interleave(FP32_SCALE_BLOCK, -2)[..., :rows, :]
    if ends is not None:
        each = _apart(each, ends)
    padding = -each.shape[-2] % high
    if padding > 0:
        each = torch.nn.functional.pad(each, (0, 0, 0, padding))
    # Of row r, the scales of 4 blocks of 32 lie at 16 * (r % 32) + 4 * (r // 32).
    words = each.unflatten(-2, (-1, 4, high // 4)).movedim((-1, -2), (-3, -2))
    found: Tensor = words.unsqueeze(-1).expand(*words.shape, wide).flatten(-5)
    return found.view(blocks.dtype)


def _apart(each: Tensor, ends: Tensor) -> Tensor:
    """Rows whose groups begin at multiples of `SCALE_BLOCK`'s; ends are read as the kernel does."""
    high, rows = SCALE_BLOCK[0], len(each)
    ends = ends.clamp(0, rows).cummax(0).values
    starts = torch.nn.functional.pad(ends, (1, 0))
    first = ((starts.diff() + (high - 1)) // high).cumsum(0)
    first = torch.nn.functional.pad(first, (1, 0)) * high
    row = torch.arange(rows, device=each.device, dtype=ends.dtype)
    group = torch.searchsorted(ends, row, right=True)
    made = each.new_zeros(((rows // high + len(ends) + 1) * high, each.shape[1]))
    return made.index_copy(0, first[group] + row - starts[group], each)
