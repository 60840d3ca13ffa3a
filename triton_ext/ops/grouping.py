"""The operands of products of groups, as TMA reads them: each is a batch, of one matrix or more."""

from __future__ import annotations

from torch import Tensor, empty_strided

from triton_ext.kernels.element_types import Major
from triton_ext.ops.operands import (
    TmaView,
    aligned_empty,
    readable,
    readable_copy,
    tma_strides,
    view_by_rows,
)

WANTED: dict[str, tuple[Major | None, Major | None]] = {
    "M": ("K", None), "rows": ("K", None), "N": (None, "K"), "K": ("MN", "MN")
}  # fmt: skip
"""Which dimension of A and of B must be contiguous, by what groups divide: what they divide must
not be, as TMA reads from multiples of 16 bytes on."""


def as_batch(tensor: Tensor, together: bool) -> Tensor:
    """A matrix as a batch of one; a batch as it is, or, `together`, as one of one matrix."""
    if tensor.dim() == 3 and together:
        tensor = tensor.flatten(0, 1)
    return tensor if tensor.dim() == 3 else tensor.unsqueeze(0)


def view_of_groups(tensor: Tensor, k_dim: int, groups: str, arch: int) -> tuple[TmaView, bool]:
    """How TMA reads an operand, and whether it must be copied for that.

    Args:
        tensor: (rows, columns), or such of each group.
        k_dim: which of rows (0) and columns (1) is K.
        groups: see `ProductSpec`.
        arch: for what.
    """
    batch = as_batch(tensor, groups == "rows" and k_dim == 1)
    wanted = WANTED[groups][1 - k_dim]
    found = _view(batch, k_dim, wanted, arch)
    if found is not None and batch.data_ptr() == tensor.data_ptr():
        return found, False
    alike = empty_strided(batch.shape, batch.stride(), dtype=batch.dtype, device="meta")
    found = _view(copy_of_groups(alike, k_dim, groups, arch), k_dim, wanted, arch)
    assert found is not None
    return found, True


def _view(batch: Tensor, k_dim: int, wanted: Major | None, arch: int) -> TmaView | None:
    if wanted is None:
        return readable(batch, k_dim, arch)
    by_rows = (wanted == "K") == (k_dim == 1)
    stored = batch if by_rows else batch.mT
    strides = tma_strides(stored)
    return None if strides is None else TmaView(tuple(stored.shape), strides, wanted)


def copy_of_groups(tensor: Tensor, k_dim: int, groups: str, arch: int) -> Tensor:
    """The same operand, as a batch, in memory that TMA can read."""
    batch = as_batch(tensor, groups == "rows" and k_dim == 1)
    wanted = WANTED[groups][1 - k_dim]
    if wanted is None:
        return readable_copy(batch, k_dim, arch)
    if (wanted == "K") == (k_dim == 1):
        return aligned_empty(batch, batch.shape).copy_(batch)
    return aligned_empty(batch, batch.mT.shape).copy_(batch.mT).mT


def output_view(out: Tensor, groups: str) -> TmaView:
    """How TMA writes new memory for the output of groups."""
    view = view_by_rows(as_batch(out, groups == "rows"), True)
    assert view is not None
    return view
