"""The products as operators of torch: for autograd, tracing and compilation.

``torch.ops.triton_ext.mm`` (2-D) and ``torch.ops.triton_ext.bmm`` (3-D), with bias, residual and
activation, which take the same arguments, and ``torch.ops.triton_ext.scaled_mm``, which has no
gradient. Importing this module registers them.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from triton_ext.errors import LayoutError
from triton_ext.ops.call import Call
from triton_ext.ops.derivatives import differentiate, is_active, refuse_derivatives
from triton_ext.ops.epilogue import NOTHING, Epilogue, epilogue_of, finished
from triton_ext.ops.gated import gradient_of_sums
from triton_ext.ops.operators import defined_product, library
from triton_ext.ops.products import product


def _asked(
    a: Tensor, b: Tensor, bias: Tensor | None = None, out_dtype: torch.dtype | None = None,
    activation: str | None = None, residual: Tensor | None = None, beta: float = 1,
    alpha: float = 1, batch_invariant: bool | None = None,
) -> Call:  # fmt: skip
    epilogue = Epilogue(bias, activation, residual, beta, alpha)
    return Call(a, b, epilogue, out_dtype, batch_invariant=batch_invariant)


def _product(call: Call) -> Tensor:
    return product(call._replace(epilogue=epilogue_of(*call.epilogue[:5])))


def _scaled(
    a: Tensor, b: Tensor, scale_a: Tensor | None, scale_b: Tensor | None, bias: Tensor | None,
    dtype: torch.dtype, blocks_a: Tensor | None = None, blocks_b: Tensor | None = None,
    use_fast_accum: bool = True, activation: str | None = None, batch_invariant: bool | None = None,
) -> Call:  # fmt: skip
    epilogue = Epilogue(
        bias, activation, scale_a=scale_a, scale_b=scale_b, blocks_a=blocks_a, blocks_b=blocks_b,
        fp32_accumulation=not use_fast_accum,
    )  # fmt: skip
    return Call(a, b, epilogue, dtype, batch_invariant=batch_invariant)


ARGUMENTS = (
    # What shards it depends on the types and the activation: DTensor keeps a placement under the
    # arguments from the first integer on, and a type is one.
    "(Tensor a, Tensor b, Tensor? bias=None, ScalarType? out_dtype=None, str? activation=None,"
    " Tensor? residual=None, float beta=1, float alpha=1, bool? batch_invariant=None) -> Tensor"
)
mm = defined_product(f"mm{ARGUMENTS}", _asked, _product, 2)
bmm = defined_product(f"bmm{ARGUMENTS}", _asked, _product, 3)
scaled_mm = defined_product(
    "scaled_mm(Tensor a, Tensor b, Tensor? scale_a, Tensor? scale_b, Tensor? bias,"
    " ScalarType out_dtype, Tensor? blocks_a=None, Tensor? blocks_b=None,"
    " bool use_fast_accum=True, str? activation=None, bool? batch_invariant=None) -> Tensor",
    _scaled, product, 2,
)  # fmt: skip
refuse_derivatives(library, scaled_mm)


def by_operators(call: Call) -> Tensor:
    """`triton_ext.ops.products.product` of a call without scales, by the operators."""
    call = call.upright
    a, b = call.a, call.b
    bias, activation, residual, beta, alpha, *_ = call.epilogue
    lead, n = a.shape[:-1], b.shape[-1]
    operator = bmm if b.dim() == 3 else mm
    if b.dim() == 2:
        a = a if a.dim() == 2 else a.flatten(0, -2)
        if residual is not None and len(lead) > 1:  # there is none with a gate
            residual = residual.expand(*lead, n).flatten(0, -2)
    made = operator(
        a, b, bias, call.out_dtype, activation, residual, beta, alpha, call.batch_invariant
    )
    return made.view(*lead, made.shape[-1]) if made.dim() <= len(lead) else made


# ------------------------------------------------------------------------------- gradients


def _keep(ctx: Any, inputs: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
    a, b, bias, _, activation, residual, beta, alpha, ctx.batch_invariant = inputs
    call = _asked(*inputs)
    ctx.call = activation, beta, alpha, a.dtype, None if residual is None else residual.shape
    ctx.shape, ctx.dtype = call.sums_shape, call.dtype
    needs_a, needs_b, *_ = ctx.needs_input_grad
    if activation is not None or is_active():  # the sums are made again
        return a, b, bias, residual
    return a if needs_b else None, b if needs_a else None, None, None


def _backward(operator: Any, ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of a, b, the bias and the residual, each at its argument's place."""
    activation, beta, alpha, dtype, residual_shape = ctx.call
    needs_a, needs_b, needs_bias, _, _, needs_residual, *_ = ctx.needs_input_grad
    a, b, bias, residual = ctx.saved_tensors
    made = functools.partial(operator, alpha=alpha, batch_invariant=ctx.batch_invariant)
    if activation is not None:
        sums = made(a, b, bias=bias, residual=residual, beta=beta, out_dtype=ctx.dtype)
        grad = gradient_of_sums(sums, grad, activation)
    grad_bias = grad.flatten(0, -2).sum(0) if needs_bias else None
    grad_residual = (beta * grad).sum_to_size(residual_shape) if needs_residual else None
    grad = grad.to(dtype)
    grad_a = made(grad, b.mT) if needs_a else None
    grad_b = made(a.mT, grad) if needs_b else None
    return grad_a, grad_b, grad_bias, None, None, grad_residual, None, None, None


def _tangent(
    operator: Any, ctx: Any, of_a: Tensor | None, of_b: Tensor | None, of_bias: Tensor | None,
    _: None, __: None, of_residual: Tensor | None, *others: None,
) -> Tensor:  # fmt: skip
    """The product rule."""
    activation, beta, alpha, *_ = ctx.call
    if activation is not None:
        rule = "an operator has no forward-mode derivative of it; use the public functions"
        raise LayoutError("activation", activation, rule)
    a, b, *_ = ctx.saved_tensors
    made = functools.partial(operator, alpha=alpha, batch_invariant=ctx.batch_invariant)
    tangent: Tensor | None = None
    for left, right in ((of_a, b), (a, of_b)):
        if left is not None and right is not None:
            tangent = made(left, right, out_dtype=ctx.dtype, residual=tangent)
    for addend, factor in ((of_bias, 1.0), (of_residual, beta)):
        if addend is not None:
            start = addend.new_zeros(ctx.shape) if tangent is None else tangent
            tangent = start.add(addend, alpha=factor)
    assert tangent is not None  # else none would be asked for
    return tangent


# ------------------------------------------------------------------------------------ vmap


def _of_batch(
    dims: int, info: Any, in_dims: tuple[int | None, ...], *arguments: Any, **others: Any
) -> tuple[Tensor, int]:
    """A larger batch; of matrices one product if only a has the new dimension, else `bmm`."""
    a, b, epilogue, *_ = call = _asked(*arguments, **others)
    a_dim, b_dim, bias_dim, _, _, residual_dim, *_ = (*in_dims, *(None,) * 4)
    is_one = dims == 2 and b_dim is None and a_dim is not None and bias_dim is None
    a, b = _batch(info, a, a_dim), b if is_one else _batch(info, b, b_dim)
    shape = *a.shape[1:-1], b.shape[-1]
    early, late = _epilogues_of_batch(info, shape, epilogue, bias_dim, residual_dim)
    lead = a.shape[:-2]
    if dims == 3:
        a, b = a.flatten(0, 1), b.flatten(0, 1)
        if early.residual is not None:
            early = early._replace(residual=early.residual.flatten(0, 1))
    made = by_operators(call._replace(a=a, b=b, epilogue=early))
    return finished(made.unflatten(0, lead) if dims == 3 else made, late), 0


def _epilogues_of_batch(
    info: Any, shape: tuple[int, ...], epilogue: Epilogue, bias_dim: int | None,
    residual_dim: int | None,
) -> tuple[Epilogue, Epilogue]:  # fmt: skip
    """What is done to outputs of a shape, with the new dimension first: by the kernel, after it."""
    bias, residual = epilogue.bias, epilogue.residual
    if residual is not None:
        residual = _batch(info, residual, residual_dim)
        ones = (1,) * (1 + len(shape) - residual.dim())
        residual = residual.reshape(info.batch_size, *ones, *residual.shape[1:])
        epilogue = epilogue._replace(residual=residual.expand(info.batch_size, *shape))
    if bias is None or bias_dim is None:
        return epilogue, NOTHING
    bias = bias.movedim(bias_dim, 0)  # of each product another one, which no kernel takes
    bias = bias.reshape(info.batch_size, *(1,) * (len(shape) - 1), shape[-1])
    return NOTHING, epilogue._replace(bias=bias)


def _batch(info: Any, tensor: Tensor, dim: int | None) -> Tensor:
    """A tensor with the new dimension first."""
    return tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


for _operator, _dims in ((mm, 2), (bmm, 3)):
    _ways = functools.partial(_backward, _operator), functools.partial(_tangent, _operator)
    differentiate(library, _operator, _keep, *_ways)
    torch.library.register_vmap(_operator, functools.partial(_of_batch, _dims), lib=library)
