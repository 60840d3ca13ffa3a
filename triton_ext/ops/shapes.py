"""torch.matmul's rules of shapes, from products of 2 and 3 dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from triton_ext.errors import LayoutError
from triton_ext.ops.epilogue import broadcasts_to, finished
from triton_ext.ops.products import product
from triton_ext.ops.repeated import remember_folded


def broadcast_product(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    activation: str | None,
    out_dtype: torch.dtype | None,
    two_d: Callable[..., Tensor],
    three_d: Callable[..., Tensor],
    residual: Tensor | None = None,
    beta: float = 1,
) -> Tensor:
    """``activation(a @ b + bias + beta * residual)`` of vectors, matrices and batches.

    Args:
        a: (K,) or (..., M, K).
        b: (K,) or (..., K, N).
        bias, residual: what can be broadcast to the output.
        activation, out_dtype, beta: passed on.
        two_d: multiplies matrices: (a, b, bias, activation, out_dtype, residual, beta), with a bias
            (N,), and a residual that can be broadcast to (M, N).
        three_d: multiplies batches of one dimension: (a, b, out_dtype).

    Raises:
        LayoutError: the shapes do not fit.
    """
    a_is_vector, b_is_vector = a.dim() == 1, b.dim() == 1
    if a_is_vector:
        a = a.unsqueeze(0)
    if b_is_vector:
        b = b.unsqueeze(1)
    (m, k), n = a.shape[-2:], b.shape[-1]
    if b.shape[-2] != k:
        raise LayoutError("b.shape", tuple(b.shape), f"must have K = {k} rows, as a has columns")
    fused = b.dim() == 2 and not b_is_vector and (bias is None or bias.shape == (n,))
    within = (bias, activation) if fused else (None, None)
    batch = a.shape[:-2]
    rows = math.prod(batch) * m
    added: tuple[Any, ...] = ()
    if fused and residual is not None:
        _check_addend("residual", residual, (n,) if a_is_vector else (*batch, m, n))
        added = (residual.expand(*batch, m, n).reshape(rows, n) if batch else residual, beta)
    if a.dim() == b.dim() == 2:
        result = two_d(a, b, *within, out_dtype, *added)
    elif b.dim() == 2:
        folded = a.reshape(rows, k)
        result = two_d(folded, b, *within, out_dtype, *added).view(*batch, m, n)
        if two_d is product and out_dtype is None and not added:
            remember_folded(a, folded, b, *within)
    else:
        try:
            batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except RuntimeError:
            rule = f"its batch must match that of a, {tuple(a.shape)}"
            raise LayoutError("b.shape", tuple(b.shape), rule) from None
        count = math.prod(batch)
        result = three_d(
            a.expand(*batch, m, k).reshape(count, m, k),
            b.expand(*batch, k, n).reshape(count, k, n),
            out_dtype,
        ).view(*batch, m, n)
    if b_is_vector:
        result = result.squeeze(-1)
    if a_is_vector:
        result = result.squeeze(-1 if b_is_vector else -2)
    if fused:
        return result
    for name, addend in (("bias", bias), ("residual", residual)):
        if addend is not None:
            _check_addend(name, addend, result.shape)
    return finished(result, bias, activation, residual, beta)


def _check_addend(name: str, addend: Tensor, shape: tuple[int, ...]) -> None:
    if not broadcasts_to(addend, shape):
        rule = f"must be broadcastable to {tuple(shape)}"
        raise LayoutError(f"{name}.shape", tuple(addend.shape), rule)
