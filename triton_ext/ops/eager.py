"""Products in eager mode, past torch's dispatcher where nothing needs it.

A small product takes the GPU less time than the host; torch's Python operators, and their autograd,
would add 10 to 40 microseconds to a call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from triton_ext.ops import registered
from triton_ext.ops.epilogue import ACTIVATION_FUNCTIONS
from triton_ext.ops.products import batched_product, product
from triton_ext.ops.repeated import (
    remember_linear,
    repeated_product,
    repeated_sum,
    repeats,
)
from triton_ext.ops.shapes import broadcast_product

_TENSORS = frozenset((Tensor, Parameter))


def is_bare(a: Any, b: Any, bias: Any = None, residual: Any = None) -> bool:
    """Whether tensors are what they are in memory: no subclass, mode, transformation, tracer,
    compiler or forward-mode derivative of torch is at work. Gradients and autocast may be asked
    for.
    """
    return (
        not torch.compiler.is_compiling()
        and forward_ad._current_level < 0
        and type(a) in _TENSORS
        and type(b) in _TENSORS
        and (bias is None or type(bias) in _TENSORS)
        and (residual is None or type(residual) in _TENSORS)
        and not torch._C._len_torch_function_stack()
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._are_functorch_transforms_active()
        and torch._C._get_tracing_state() is None
    )


def wants_gradient(
    a: Tensor, b: Tensor, bias: Tensor | None = None, residual: Tensor | None = None
) -> bool:
    """Whether autograd must know of a product."""
    return (
        a.requires_grad
        or b.requires_grad
        or (bias is not None and bias.requires_grad)
        or (residual is not None and residual.requires_grad)
    ) and torch.is_grad_enabled()


def quick_product(
    a: Any, b: Any, bias: Any, activation: str | None, *, linear: bool
) -> Tensor | None:
    """``activation(a @ b + bias)``, or with ``b.T`` if `linear`, if that was made of such bare
    tensors on their GPU before; else None. Of the arguments nothing is assumed.
    """
    if not (
        is_bare(a, b, bias)
        and a.is_cuda
        and b.is_cuda
        and a.layout is torch.strided
        and b.layout is torch.strided
        and not torch._C._is_any_autocast_enabled()
    ):
        return None
    if not wants_gradient(a, b, bias):
        return repeated_product(a, b, bias, activation, linear)
    if b.dim() == 2 and repeats(a, b, bias, linear):
        made: Tensor = Multiply.apply(a, b, bias, linear)
        return made if activation is None else ACTIVATION_FUNCTIONS[activation](made)
    return None


def direct_product(
    a: Tensor, b: Tensor, bias: Tensor | None = None, linear: bool = False
) -> Tensor:
    """``a @ b + bias``, or with ``b.T`` if `linear`, without gradient."""
    other = b.t() if linear else b
    if not is_bare(a, b, bias):
        two_d, three_d = registered.mm, registered.bmm
        return broadcast_product(a, other, bias, None, None, two_d, three_d)
    if a.is_cuda and b.is_cuda:
        repeated = repeated_product(a, b, bias, None, linear)
        if repeated is not None:
            return repeated
    made = broadcast_product(a, other, bias, None, None, product, batched_product)
    if linear and a.is_cuda:
        remember_linear(a, b, bias, None)
    return made


class Multiply(torch.autograd.Function):
    """`direct_product` of a (..., M, K) and a matrix b, and of a bias (N,), with gradients."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, bias: Tensor | None, linear: bool) -> Tensor:
        needs_a, needs_b, *_ = ctx.needs_input_grad
        ctx.save_for_backward(a if needs_b else None, b if needs_a else None)
        ctx.linear = linear
        return direct_product(a, b, bias, linear)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        grad_a = grad_b = grad_bias = None
        if b is not None:
            grad_a = _multiply(grad, b, linear=not ctx.linear)
        rows = grad.flatten(0, -2)
        if a is not None:
            a = a.flatten(0, -2)
            left, right = (rows, a) if ctx.linear else (a, rows)
            grad_b = _multiply(left.t(), right, linear=False)
        if ctx.needs_input_grad[2]:
            grad_bias = rows.sum(0)
        return grad_a, grad_b, grad_bias, None


class MultiplyAdd(torch.autograd.Function):
    """``alpha * (a @ b) + bias + beta * residual`` of matrices, and a bias (N,), with gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        beta: float,
        alpha: float,
    ) -> Tensor:
        needs_a, needs_b, *_ = ctx.needs_input_grad
        ctx.save_for_backward(a if needs_b else None, b if needs_a else None)
        ctx.shape = None if residual is None else residual.shape
        ctx.beta, ctx.alpha = beta, alpha
        if bias is None and residual is not None and a.is_cuda and b.is_cuda:
            repeated = repeated_sum(residual, a, b, beta, alpha)
            if repeated is not None:
                return repeated
        return product(a, b, bias, None, None, residual, beta, alpha)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        _, _, needs_bias, needs_residual, *_ = ctx.needs_input_grad
        return (
            None if b is None else _scaled_product(grad, b.t(), ctx.alpha),
            None if a is None else _scaled_product(a.t(), grad, ctx.alpha),
            grad.sum(0) if needs_bias else None,
            (ctx.beta * grad).sum_to_size(ctx.shape) if needs_residual else None,
            None,
            None,
        )


def _scaled_product(a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """In a backward: with gradients if those of the gradients are asked for."""
    if torch.is_grad_enabled():
        made: Tensor = MultiplyAdd.apply(a, b, None, None, 1.0, alpha)
        return made
    return product(a, b, alpha=alpha) if alpha != 1 else direct_product(a, b)


def _multiply(a: Tensor, b: Tensor, linear: bool) -> Tensor:
    """In a backward: with gradients if those of the gradients are asked for."""
    if torch.is_grad_enabled():
        made: Tensor = Multiply.apply(a, b, None, linear)
        return made
    return direct_product(a, b, None, linear)
