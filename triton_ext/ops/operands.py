"""Matrices in global memory as TMA can read and write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from triton_ext.kernels.element_types import Major
from triton_ext.ops.types import has_both_majors

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


def padded_columns(columns: int, dtype: torch.dtype) -> int:
    """How many elements a row needs for the next one to start at a multiple of 16 bytes."""
    return _rounded_up(columns, TMA_ALIGNMENT // dtype.itemsize)


def aligned_empty(
    like: torch.Tensor, shape: Sequence[int], dtype: torch.dtype | None = None
) -> torch.Tensor:
    """An uninitialised matrix, or a batch of them, whose rows start at multiples of 16 bytes."""
    *lead, columns = shape
    width = padded_columns(columns, dtype or like.dtype)
    made = like.new_empty((*lead, width), dtype=dtype)
    return made if width == columns else made[..., :columns]


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in contiguous memory at a multiple of 16 bytes."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % TMA_ALIGNMENT else tensor


def memory_size(tensor: torch.Tensor) -> int:
    """How many bytes lie from the start of a tensor's first element to the end of its last."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (sum((size - 1) * step for size, step in steps) + 1) * tensor.element_size()


@dataclass(frozen=True, slots=True)
class TmaView:
    """How TMA sees a matrix, or a batch of them, with its contiguous dimension last.

    Attributes:
        shape, strides: the view's, in elements.
        major: "K" or "MN", the operand's contiguous dimension.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    major: Major


def readable(matrix: torch.Tensor, k_dim: int, arch: int = 90) -> TmaView | None:
    """How TMA reads an operand as it lies in memory; None if it can neither by rows nor by columns,
    or if its K dimension must be contiguous and is not.

    A batch is read as one of a single matrix where all are the same memory.

    Args:
        matrix: (rows, columns), or (batch, rows, columns).
        k_dim: which of rows (0) and columns (1) is K.
        arch: for what; 90 is the one that asks for more.
    """
    if matrix.dim() == 3 and matrix.stride(0) == 0:
        matrix = matrix[:1]
    for candidate, contiguous_dim in ((matrix, 1), (matrix.mT, 0)):
        if contiguous_dim != k_dim and not has_both_majors(matrix.dtype, arch):
            continue
        strides = tma_strides(candidate)
        if strides is not None:
            major: Major = "K" if contiguous_dim == k_dim else "MN"
            return TmaView(tuple(candidate.shape), strides, major)
    return None


def scale_view(blocks: torch.Tensor, along: int) -> TmaView:
    """How TMA reads scales: 512 bytes for 128 rows and 4 columns of scales, of which there are so
    many.
    """
    shape = (blocks.numel() // (512 * along), along, 2, 256)
    return TmaView(shape, (512 * along, 512, 256, 1), "K")


def readable_copy(
    matrix: torch.Tensor,
    k_dim: int,
    arch: int = 90,
    copy: Callable[[torch.Tensor, torch.Tensor], Any] = torch.Tensor.copy_,
) -> torch.Tensor:
    """The same operand in memory that TMA can read: by columns if these are contiguous, else by
    rows; or along K if it must be so.

    A batch whose matrices are all the same memory becomes a batch of one.

    Args:
        copy: what is given the new memory and the matrix, maybe transposed, to copy it.
    """
    if matrix.dtype == torch.float4_e2m1fn_x2:  # which torch fills and copies as bytes alone
        return readable_copy(matrix.view(torch.uint8), k_dim, arch, copy).view(matrix.dtype)
    both = has_both_majors(matrix.dtype, arch)
    by_columns = matrix.stride(-2) == 1 != matrix.stride(-1) if both else k_dim == 0
    if by_columns:
        return readable_copy(matrix.mT, 1, arch, copy).mT
    if matrix.dim() == 3 and matrix.stride(0) == 0:
        matrix = matrix[:1]
    made = aligned_empty(matrix, matrix.shape)
    copy(made, matrix)
    return made


def operand_view(
    tensor: torch.Tensor, k_dim: int, batched: bool, arch: int
) -> tuple[TmaView, bool]:
    """How TMA reads an operand, and whether it must be copied for that.

    Args:
        k_dim: which of rows (0) and columns (1) is K.
        batched: whether the kernel sees a batch; else a (..., M, K) is one matrix.
    """
    matrix = tensor if batched else tensor.flatten(0, -2)
    view = readable(matrix, k_dim, arch)
    copied = view is None or matrix.data_ptr() != tensor.data_ptr()
    if view is None:
        alike = torch.empty_strided(
            matrix.shape, matrix.stride(), dtype=matrix.dtype, device="meta"
        )
        view = readable(readable_copy(alike, k_dim, arch), k_dim, arch)
    assert view is not None
    return view, copied


def batch_of_one(view: TmaView) -> TmaView:
    """A matrix as a batch; a batch as it is."""
    if len(view.shape) == 3:
        return view
    return TmaView((1, *view.shape), (view.strides[0], *view.strides), view.major)


def view_by_rows(tensor: torch.Tensor, batched: bool) -> TmaView | None:
    """How TMA reads or writes a tensor row by row where it lies; None if it cannot."""
    matrix = tensor if batched else tensor.flatten(0, -2)
    strides = tma_strides(matrix)
    if strides is None or matrix.data_ptr() != tensor.data_ptr():
        return None
    return TmaView(tuple(matrix.shape), strides, "MN")


def is_writable(out: torch.Tensor) -> bool:
    """Whether TMA can write `out` row by row.

    It writes whole units of 16 bytes, also where a row ends within one (seen on an H100).
    """
    whole_units = out.shape[-1] * out.element_size() % TMA_ALIGNMENT == 0
    return whole_units and tma_strides(out) is not None
