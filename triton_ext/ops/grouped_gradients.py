"""Gradients of products of groups, by products of the same groups.

With rows r, places o and factors f, row i of group g is ``c[o[i]] = f[i] * (a[r[i]] @ b[g])``.
Given the gradient ``dc``,

- ``da`` begins with ``s[i] = dc[o[i]] @ b[g].T``, whose rows are read where they lie; a row of a
  that several i have read gets ``f[i] * s[i]`` added up in fp32, in ascending order of i;
- ``df[i] = s[i] . a[r[i]]``, which spares to keep the product, or to make it again;
- ``db[g]`` is a product along the rows, ``(f * a[r]).T @ dc[o]``: what is permuted or weighted of
  its operands is copied first, in one pass each. (Factors go to a, as the experts' second product
  has them, whose a is the narrower operand.)

The sums before a gate are made again.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from triton_ext.ops.gated import gradient_of_sums
from triton_ext.ops.gates import GATES
from triton_ext.ops.operands import TMA_ALIGNMENT
from triton_ext.ops.rows import added, dots, taken


def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Keep what `backward` needs of the arguments of the operator ``triton_ext::grouped_mm``."""
    a, b, offs, _, ctx.gate, ctx.batch_invariant, rows, out_rows, factors, bias = inputs
    if a.dim() == b.dim() == 3:
        raise RuntimeError("triton_ext has no gradient of products with counts")
    needs_a, needs_b, *_ = ctx.needs_input_grad
    others = ctx.gate is not None or factors is not None
    kept = a if needs_b or others else None, b if needs_a or others else None
    ctx.save_for_backward(*kept, offs, rows, out_rows, factors, bias)
    ctx.type = a.dtype


def _of_vector(x: Tensor, factors: Tensor | None) -> Tensor:
    """What sums rows of x as a product: (M, columns that TMA reads), each a row's factor, or 1."""
    columns = TMA_ALIGNMENT // x.element_size()
    if factors is None:
        return x.new_ones((len(x), columns))
    return factors.to(x.dtype)[:, None].repeat(1, columns)


def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of the operator's arguments, in their order."""
    a, b, offs, rows, out_rows, factors, bias = ctx.saved_tensors
    # arguments that have their default are not forwarded, and not counted
    needs = (*ctx.needs_input_grad, *(False,) * 10)
    needs_a, needs_b, needs_factors, needs_bias = (needs[i] for i in (0, 1, 8, 9))
    made = functools.partial(
        torch.ops.triton_ext.grouped_mm.default, batch_invariant=ctx.batch_invariant
    )
    grad_a = grad_b = grad_factors = grad_bias = None
    if ctx.gate is not None:
        sums = made(a, b, offs, grad.dtype, rows=rows, bias=bias)
        grad = taken(grad, out_rows)
        if needs_factors:
            grad_factors = dots(grad, GATES[ctx.gate].apply(sums))
        grad = gradient_of_sums(sums, taken(grad, None, factors), ctx.gate)
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
