"""Derivatives of products of groups, by products of the same groups.

With rows r, places o and factors f, row i of group g is ``c[o[i]] = f[i] * (a[r[i]] @ b[g])``.
Given the gradient ``dc``,

- ``da`` begins with ``s[i] = dc[o[i]] @ b[g].T``, whose rows are read where they lie; a row of a
  that several i have read gets ``f[i] * s[i]`` added up in fp32, in ascending order of i;
- ``df[i] = s[i] . a[r[i]]``, which spares to keep the product, or to make it again;
- ``db[g]`` is a product along the rows, ``(f * a[r]).T @ dc[o]``: what is permuted or weighted of
  its operands is copied first, in one pass each. (Factors go to a, as the experts' second product
  has them, whose a is the narrower operand.)

The sums before an activation are made again.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from triton_ext.errors import LayoutError
from triton_ext.ops.derivatives import is_active
from triton_ext.ops.epilogue import ACTIVATION_FUNCTIONS
from triton_ext.ops.gated import gradient_of_sums
from triton_ext.ops.operands import TMA_ALIGNMENT
from triton_ext.ops.rows import added, dots, taken


def keep(ctx: Any, inputs: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
    """What `backward` and `tangent` need of the arguments of ``triton_ext::grouped_mm``."""
    a, b, offs, ctx.out_dtype, ctx.activation, ctx.batch_invariant, *others = inputs
    rows, out_rows, factors, bias = others
    if a.dim() == b.dim() == 3:
        rule = "there is no gradient with counts; detach a and b"
        raise LayoutError("requires_grad", True, rule)
    ctx.type = a.dtype
    needs_a, needs_b, *_ = ctx.needs_input_grad
    both = ctx.activation is not None or factors is not None or is_active()
    kept = a if needs_b or both else None, b if needs_a or both else None
    return *kept, offs, rows, out_rows, factors, bias


def tangent(ctx: Any, *tangents: Tensor | None) -> Tensor:
    """The product rule: a sum of products of the same groups, each in the result's type."""
    a, b, offs, rows, out_rows, factors, bias = ctx.saved_tensors
    if ctx.activation is not None:
        rule = "there is no forward-mode derivative of groups with an activation; apply it to them"
        raise LayoutError("activation", ctx.activation, rule)
    of_a, of_b, *_, of_factors, of_bias = tangents

    def made(a: Tensor, b: Tensor, factors: Tensor | None, bias: Tensor | None) -> Tensor:
        found: Tensor = torch.ops.triton_ext.grouped_mm.default(
            a, b, offs, ctx.out_dtype, None, ctx.batch_invariant, rows, out_rows, factors, bias
        )
        return found

    parts = []
    if of_a is not None or of_bias is not None:
        parts.append(made(torch.zeros_like(a) if of_a is None else of_a, b, factors, of_bias))
    if of_b is not None:
        parts.append(made(a, of_b, factors, None))
    if of_factors is not None:
        parts.append(made(a, b, of_factors, bias))
    return functools.reduce(torch.add, parts)


def _of_vector(x: Tensor, factors: Tensor | None) -> Tensor:
    """What sums rows of x as a product: (M, columns that TMA reads), each a row's factor, or 1."""
    columns = TMA_ALIGNMENT // x.element_size()
    if factors is None:
        return x.new_ones((len(x), columns))
    return factors.to(x.dtype)[:, None].repeat(1, columns)


def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of the operator's arguments, in their order."""
    a, b, offs, rows, out_rows, factors, bias = ctx.saved_tensors
    needs_a, needs_b, *_, needs_factors, needs_bias, _ = ctx.needs_input_grad
    made = functools.partial(
        torch.ops.triton_ext.grouped_mm.default, batch_invariant=ctx.batch_invariant
    )
    grad_a = grad_b = grad_factors = grad_bias = None
    if ctx.activation is not None:
        sums = made(a, b, offs, grad.dtype, rows=rows, bias=bias)
        grad = taken(grad, out_rows)
        if needs_factors:
            grad_factors = dots(grad, ACTIVATION_FUNCTIONS[ctx.activation](sums))
        grad = gradient_of_sums(sums, taken(grad, None, factors), ctx.activation)
        out_rows = factors = None
    grad = grad.to(ctx.type)
    of_factors = needs_factors and grad_factors is None
    if needs_a or of_factors:
        of_rows = made(grad, b.mT, offs, rows=out_rows)
        if needs_a and rows is None:
            grad_a = taken(of_rows, None, factors)
        elif needs_a:
            grad_a = added(of_rows, rows, len(a), factors)
        if of_factors:
            grad_factors = dots(of_rows, a, rows)
            if bias is not None:
                column = bias.to(ctx.type).unsqueeze(2)
                of_bias = made(grad, column, offs, torch.float32, rows=out_rows)
                grad_factors = grad_factors + of_bias[:, 0]
    if needs_b or needs_bias:
        ordered = taken(grad, out_rows)
        if needs_b:
            grad_b = made(taken(a, rows, factors).mT, ordered, offs)
        if needs_bias:
            grad_bias = made(_of_vector(ordered, factors).mT, ordered, offs, bias.dtype)[:, 0]
    return grad_a, grad_b, *(None,) * 6, grad_factors, grad_bias
