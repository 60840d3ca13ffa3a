"""fp32 scales of blocks of 128 elements along K, as they lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from triton_ext.kernels.element_types import FP32_SCALE_BLOCK, SCALE_BLOCK, Major
from triton_ext.ops.operands import TMA_ALIGNMENT


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


def for_tensor_cores(blocks: Tensor, rows: int) -> Tensor:
    """Scales of 128 elements along K, of one byte, as the tensor cores take them: for each 32 of
    these the same, and in blocks of `SCALE_BLOCK`, which are padded.

    Args:
        blocks: (rows or blocks of rows, along K).
        rows: those of the operand.
    """
    high, wide = SCALE_BLOCK
    each = blocks.view(torch.uint8)
    if len(each) != rows:
        each = each.repeat_interleave(FP32_SCALE_BLOCK, 0)
    padding = -(-rows // high) * high - len(each)
    if padding > 0:
        each = torch.nn.functional.pad(each, (0, 0, 0, padding))
    # Of row r, the scales of 4 blocks of 32 lie at 16 * (r % 32) + 4 * (r // 32).
    words = each.unflatten(0, (-1, 4, high // 4)).permute(0, 3, 2, 1)
    found: Tensor = words.unsqueeze(-1).expand(*words.shape, wide).flatten()
    return found.view(blocks.dtype)
