"""Rows of matrices: taken from where indices say, added up by indices, multiplied with each other.

What mixtures of experts need for their gradients besides products. A kernel makes each in one pass;
where a gradient is asked of them, torch's own operations do. Indices that no row has bring zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor

from triton_ext.compat import LAUNCH_OPTIONS
from triton_ext.kernels.device.row_sums import add_rows, dot_rows
from triton_ext.ops.derivatives import is_differentiated
from triton_ext.ops.device import require_gpu
from triton_ext.ops.operators import defined

AT_A_TIME = 1024
"""Columns that a program reads."""


def _sums(x: Tensor, indices: Tensor | None, ends: Tensor | None, factors: Tensor | None) -> Tensor:
    """`add_rows`: a row for each end, or for each index, or for each row of x."""
    made = _fake_sums(x, indices, ends, factors)
    if made.numel():
        grid = len(made), -(-made.shape[1] // AT_A_TIME)
        with require_gpu(x.device).current():
            add_rows[grid](
                x, indices, ends, factors, made, *x.shape, *x.stride(), BLOCK=AT_A_TIME,
                **LAUNCH_OPTIONS,
            )  # fmt: skip
    return made


def _fake_sums(
    x: Tensor, indices: Tensor | None, ends: Tensor | None, factors: Tensor | None
) -> Tensor:
    rows = len(x if indices is None else indices) if ends is None else len(ends) - 1
    return x.new_empty((rows, x.shape[1]))


def _dots(x: Tensor, y: Tensor, rows: Tensor | None) -> Tensor:
    """`dot_rows` of each row of x."""
    made = _fake_dots(x, y, rows)
    if made.numel():
        with require_gpu(x.device).current():
            dot_rows[(len(x),)](
                x, y, rows, made, *y.shape, *x.stride(), *y.stride(), BLOCK=AT_A_TIME,
                **LAUNCH_OPTIONS,
            )  # fmt: skip
    return made


def _fake_dots(x: Tensor, y: Tensor, rows: Tensor | None) -> Tensor:
    return x.new_empty(len(x), dtype=torch.float32)


_row_sums = defined(
    "row_sums(Tensor x, Tensor? indices, Tensor? ends, Tensor? factors) -> Tensor",
    _sums, _fake_sums,
)  # fmt: skip
_row_dots = defined("row_dots(Tensor x, Tensor y, Tensor? rows) -> Tensor", _dots, _fake_dots)


def taken(x: Tensor, rows: Tensor | None, factors: Tensor | None = None) -> Tensor:
    """Row ``rows[i]`` of x (row i if None) times ``factors[i]``, of x's type; x itself if both are
    None.

    Args:
        x: (T, K).
        rows: (M,), int32.
        factors: (M,), fp32.
    """
    if rows is None and factors is None:
        return x
    if not is_differentiated(x, factors):
        made: Tensor = _row_sums(x, rows, None, factors)
        return made
    found = x
    if rows is not None:
        known = (rows >= 0) & (rows < len(x))
        found = x.index_select(0, rows.where(known, 0)).where(known[:, None], 0)
    return found if factors is None else (found * factors[:, None]).to(x.dtype)


def added(x: Tensor, rows: Tensor, count: int, factors: Tensor | None = None) -> Tensor:
    """(count, K): row t is the sum of the rows i of x with ``rows[i] == t``, times ``factors[i]``,
    added up in fp32 in ascending order of i, and rounded once.

    Args:
        x: (M, K).
        rows: (M,), int32.
        factors: (M,), fp32.
    """
    if is_differentiated(x, factors):
        found = x if factors is None else x * factors[:, None]
        target = rows.where((rows >= 0) & (rows < count), count)
        sums = found.new_zeros((count + 1, x.shape[1]), dtype=torch.float32)
        return sums.index_add(0, target, found.float())[:count].to(x.dtype)
    by_row, order = rows.sort(stable=True)
    bounds = torch.arange(count + 1, dtype=torch.int32, device=x.device)
    ends = torch.searchsorted(by_row, bounds, out_int32=True)
    factors = None if factors is None else factors[order]
    made: Tensor = _row_sums(x, order.int(), ends, factors)
    return made


def dots(x: Tensor, y: Tensor, rows: Tensor | None = None) -> Tensor:
    """The dot products, in fp32, of each row i of x with row ``rows[i]`` of y (row i if None).

    Args:
        x: (M, K).
        y: (T, K).
        rows: (M,), int32.
    """
    if is_differentiated(x, y):
        return (x.float() * taken(y, rows).float()).sum(1)
    made: Tensor = _row_dots(x, y, rows)
    return made
