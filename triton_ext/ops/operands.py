"""Matrices in global memory as TMA can read and write them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from triton_ext.kernels.config import Major
from triton_ext.ops.types import EVERYWHERE

TMA_ALIGNMENT = 16
"""Bytes that a tensor's address, and its strides but the last, must be multiples of for TMA
(``cuTensorMapEncodeTiled``, globalAddress and globalStrides)."""


def _rounded_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def tma_strides(matrix: torch.Tensor) -> tuple[int, ...] | None:
    """The strides under which TMA can read a matrix, or a batch of them, row by row, or None if it
    cannot.

    The stride of a dimension of size 1 is never used, so any legal one will do.
    """
    rows, columns = matrix.shape[-2:]
    row_stride, column_stride = matrix.stride()[-2:]
    multiple = TMA_ALIGNMENT // matrix.element_size()
    if rows == 1:
        row_stride = _rounded_up(columns, multiple)
    if columns > 1 and column_stride != 1:
        return None
    if row_stride < columns or row_stride % multiple or matrix.data_ptr() % TMA_ALIGNMENT:
        return None
    if matrix.dim() == 2:
        return row_stride, 1
    batch_stride = matrix.stride(0) if len(matrix) > 1 else row_stride
    if batch_stride <= 0 or batch_stride % multiple:
        return None
    return batch_stride, row_stride, 1


def aligned_matrix(
    like: torch.Tensor, rows: int, columns: int, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """An uninitialised matrix whose rows start at multiples of 16 bytes, as TMA needs."""
    dtype = dtype or like.dtype
    padded = _rounded_up(columns, TMA_ALIGNMENT // dtype.itemsize)
    matrix = like.new_empty((rows, padded), dtype=dtype)
    return matrix if padded == columns else matrix[:, :columns]


def aligned_empty(
    like: torch.Tensor, shape: Sequence[int], dtype: torch.dtype | None = None
) -> torch.Tensor:
    """An `aligned_matrix`, or a batch of them."""
    *lead, columns = shape
    matrix = aligned_matrix(like, math.prod(lead), columns, dtype)
    return matrix if len(lead) == 1 else matrix.unflatten(0, lead)


class TmaView:
    """How TMA sees a matrix, or a batch of them, with its contiguous dimension last.

    Attributes:
        shape, strides: of the view, in elements.
        major: "K" or "MN", the operand's contiguous dimension.
    """

    __slots__ = ("major", "shape", "strides")

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], major: Major) -> None:
        self.shape, self.strides, self.major = shape, strides, major


def readable(matrix: torch.Tensor, k_dim: int) -> TmaView | None:
    """How TMA reads an operand as it lies in memory; None if it can neither by rows nor by columns,
    or if its K dimension must be contiguous and is not.

    A batch is read as one of a single matrix where all are the same memory.

    Args:
        matrix: (rows, columns), or (batch, rows, columns).
        k_dim: which of rows (0) and columns (1) is K.
    """
    if matrix.dim() == 3 and matrix.stride(0) == 0:
        matrix = matrix[:1]
    for candidate, contiguous_dim in ((matrix, 1), (matrix.mT, 0)):
        if contiguous_dim != k_dim and matrix.dtype not in EVERYWHERE:
            continue
        strides = tma_strides(candidate)
        if strides is not None:
            major: Major = "K" if contiguous_dim == k_dim else "MN"
            return TmaView(tuple(candidate.shape), strides, major)
    return None


def readable_copy(matrix: torch.Tensor, k_dim: int) -> torch.Tensor:
    """The same operand in memory that TMA can read: by rows, or along K if it must be so.

    Of a batch whose matrices are all the same memory, one.
    """
    if k_dim == 0 and matrix.dtype not in EVERYWHERE:
        return readable_copy(matrix.mT, 1).mT
    if matrix.dim() == 3 and matrix.stride(0) == 0:
        matrix = matrix[:1]
    return aligned_empty(matrix, matrix.shape).copy_(matrix)
