"""Copies of matrices into memory in which their rows begin elsewhere: two of them in one launch."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from triton_ext.kernels.device.copy_rows import copy_rows
from triton_ext.ops.by_threads import Rows, rows_of
from triton_ext.ops.device import Gpu
from triton_ext.ops.triton_launch import TritonLaunch

ELEMENTS = 4096
"""How many elements a block copies."""
WIDTHS = 64, 1024
"""How many of a row it copies at least, and at most."""
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""What elements of so many bytes are copied as."""
Pair = tuple[Tensor, Tensor]
"""Where a matrix is copied to, and the matrix."""


class CopiedRows(NamedTuple):
    """Sizes of a matrix that is copied, and how it lies, and will lie."""

    rows: int
    columns: int
    source: Rows
    made: Rows

    @property
    def width(self) -> int:
        """Elements of a row that a block copies."""
        least, most = WIDTHS
        return min(most, max(least, 1 << (self.columns - 1).bit_length()))

    @property
    def blocks(self) -> int:
        """How many blocks copy it."""
        down, across = ELEMENTS // self.width, self.width
        return math.ceil(self.rows / down) * math.ceil(self.columns / across)


def copy_each(gpu: Gpu, pairs: Sequence[Pair], *, padded: Literal["made", "source"]) -> None:
    """Copy matrices, or batches of them, of one size of elements, on the current stream.

    Those whose rows are contiguous are copied by a kernel, two in one launch; the others by torch.

    Args:
        padded: which of both are `aligned_empty`, whose memory between rows may be touched.
    """
    by_kernel: list[tuple[Pair, CopiedRows]] = []
    for made, source in pairs:
        to, rows = (_as_rows(x, padded == n) for x, n in ((made, "made"), (source, "source")))
        if to is None or rows is None:
            made.copy_(source)
            continue
        reads, writes = rows_of(rows, by_rows=True), rows_of(to, by_rows=True)
        if reads is None or writes is None:
            made.copy_(source)
            continue
        by_kernel.append(((to, rows), CopiedRows(len(to), made.shape[-1], reads, writes)))
    for first in range(0, len(by_kernel), 2):
        copied, sizes = zip(*by_kernel[first : first + 2], strict=True)
        _launch_of(gpu.index, sizes)(copied)


def _as_rows(matrix: Tensor, is_padded: bool) -> Tensor | None:
    """The rows of a matrix, or of a batch, as integers, with what lies between them if that is
    theirs; None if they do not lie under one stride.
    """
    integer = INTEGERS.get(matrix.element_size())
    if integer is None or matrix.stride(-1) != 1:
        return None
    if matrix.dim() == 3:
        if len(matrix) > 1 and matrix.stride(0) != matrix.shape[1] * matrix.stride(1):
            return None
        matrix = matrix.flatten(0, 1)
    if is_padded:
        matrix = matrix.as_strided((len(matrix), matrix.stride(0)), matrix.stride())
    return matrix.view(integer)


class _Launch:
    """The launch for one or two matrices of given sizes."""

    def __init__(self, index: int | None, sizes: tuple[CopiedRows, ...]) -> None:
        a, b = sizes[0], sizes[-1]
        self._grid = sum(each.blocks for each in sizes), 1, 1
        self._numbers = (
            a.blocks, a.rows, a.columns, a.source.step, a.made.step, b.rows, b.columns,
            b.source.step, b.made.step,
        )  # fmt: skip
        constants = {
            "A_UNIT": a.source.unit, "A_MADE_UNIT": a.made.unit, "A_WIDTH": a.width,
            "B_UNIT": b.source.unit, "B_MADE_UNIT": b.made.unit, "B_WIDTH": b.width,
            "TWO": len(sizes) > 1, "ELEMENTS": ELEMENTS,
        }  # fmt: skip
        self._launch = TritonLaunch(index, copy_rows, constants, num_warps=4)

    def __call__(self, pairs: Sequence[Pair]) -> None:
        (a_made, a), (b_made, b) = pairs[0], pairs[-1]
        self._launch(self._grid, a, a_made, b, b_made, *self._numbers)


_launch_of = functools.lru_cache(maxsize=4096)(_Launch)
