"""Matrices in global memory as TMA can read and write them."""

from __future__ import annotations

import torch

from triton_ext.kernels.config import Major
from triton_ext.ops.types import EVERYWHERE

TMA_ALIGNMENT = 16
"""Bytes that a tensor's address, and its strides but the last, must be multiples of for TMA
(``cuTensorMapEncodeTiled``, globalAddress and globalStrides)."""


def _rounded_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def tma_strides(matrix: torch.Tensor) -> tuple[int, int] | None:
    """The strides under which TMA can read a matrix row by row, or None if it cannot.

    The stride of a dimension of size 1 is never used, so any legal one will do.
    """
    rows, columns = matrix.shape
    row_stride, column_stride = matrix.stride()
    multiple = TMA_ALIGNMENT // matrix.element_size()
    if rows == 1:
        row_stride = _rounded_up(columns, multiple)
    if columns > 1 and column_stride != 1:
        return None
    if row_stride < columns or row_stride % multiple or matrix.data_ptr() % TMA_ALIGNMENT:
        return None
    return row_stride, 1


def aligned_matrix(
    like: torch.Tensor, rows: int, columns: int, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """An uninitialised matrix whose rows start at multiples of 16 bytes, as TMA needs."""
    dtype = dtype or like.dtype
    padded = _rounded_up(columns, TMA_ALIGNMENT // dtype.itemsize)
    matrix = like.new_empty((rows, padded), dtype=dtype)
    return matrix if padded == columns else matrix[:, :columns]


class TmaView:
    """How TMA sees a matrix, with its contiguous dimension last.

    Attributes:
        shape, strides: of the view, in elements.
        major: "K" or "MN", the operand's contiguous dimension.
    """

    __slots__ = ("major", "shape", "strides")

    def __init__(self, shape: tuple[int, int], strides: tuple[int, int], major: Major) -> None:
        self.shape, self.strides, self.major = shape, strides, major


def readable(matrix: torch.Tensor, k_dim: int) -> TmaView | None:
    """How TMA reads an operand as it lies in memory; None if it can neither by rows nor by columns,
    or if its K dimension must be contiguous and is not.
    """
    for candidate, contiguous_dim in ((matrix, 1), (matrix.T, 0)):
        if contiguous_dim != k_dim and matrix.dtype not in EVERYWHERE:
            continue
        strides = tma_strides(candidate)
        if strides is not None:
            major: Major = "K" if contiguous_dim == k_dim else "MN"
            rows, columns = candidate.shape
            return TmaView((rows, columns), strides, major)
    return None


def readable_copy(matrix: torch.Tensor, k_dim: int) -> torch.Tensor:
    """The same operand in memory that TMA can read: by rows, or along K if it must be so."""
    if k_dim == 0 and matrix.dtype not in EVERYWHERE:
        return readable_copy(matrix.T, 1).T
    copy = aligned_matrix(matrix, *matrix.shape)
    copy.copy_(matrix)
    return copy
