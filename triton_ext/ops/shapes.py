"""torch.matmul's rules of shapes, from products of matrices and of batches."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from triton_ext.errors import LayoutError
from triton_ext.ops.epilogue import NOTHING, Epilogue, broadcasts_to, finished

Multiply = Callable[[Tensor, Tensor, Epilogue, torch.dtype | None], Tensor]
"""(a, b, epilogue, out_dtype): multiplies (..., M, K) and (K, N), with a bias (N,) and a residual;
or (batch, M, K) and (batch, K, N) alone."""


def broadcast_product(
    multiply: Multiply, a: Tensor, b: Tensor, epilogue: Epilogue, out_dtype: torch.dtype | None
) -> Tensor:
    """The product of vectors, matrices and batches, with an epilogue.

    Args:
        a: (K,) or (..., M, K).
        b: (K,) or (..., K, N).
        epilogue: without scales.

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
    bias, residual = epilogue.bias, epilogue.residual
    fused = b.dim() == 2 and not b_is_vector and (bias is None or bias.shape == (n,))
    if b.dim() == 2:
        batch = a.shape[:-2]
        if fused and residual is not None:
            _check_addend("residual", residual, (n,) if a_is_vector else (*batch, m, n))
        result = multiply(a, b, epilogue if fused else NOTHING, out_dtype)
    else:
        try:
            batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except RuntimeError:
            rule = f"its batch must match that of a, {tuple(a.shape)}"
            raise LayoutError("b.shape", tuple(b.shape), rule) from None
        count = math.prod(batch)
        a = a.expand(*batch, m, k).reshape(count, m, k)
        b = b.expand(*batch, k, n).reshape(count, k, n)
        result = multiply(a, b, NOTHING, out_dtype).view(*batch, m, n)
    if b_is_vector:
        result = result.squeeze(-1)
    if a_is_vector:
        result = result.squeeze(-1 if b_is_vector else -2)
    if fused:
        return result
    for name, addend in (("bias", bias), ("residual", residual)):
        if addend is not None:
            _check_addend(name, addend, result.shape)
    return finished(result, epilogue)


def _check_addend(name: str, addend: Tensor, shape: tuple[int, ...]) -> None:
    if not broadcasts_to(addend, shape):
        rule = f"must be broadcastable to {tuple(shape)}"
        raise LayoutError(f"{name}.shape", tuple(addend.shape), rule)
