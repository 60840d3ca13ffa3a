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
from triton_ext.ops.epilogue import NOTHING, Epilogue, activated, epilogue_of
from triton_ext.ops.plans import find
from triton_ext.ops.products import product
from triton_ext.ops.shapes import broadcast_product

_TENSORS = frozenset((Tensor, Parameter))
# By their names here, not by those in torch: each look-up would take as long as half of the call.
_is_compiling = torch.compiler.is_compiling
_function_modes = torch._C._len_torch_function_stack
_dispatch_modes = torch._C._len_torch_dispatch_stack
_are_transforms_active = torch._C._are_functorch_transforms_active
_tracing_state = torch._C._get_tracing_state
_is_autocast_enabled = torch._C._is_any_autocast_enabled


def _is_plain(tensor: Any) -> bool:
    """Whether it is a tensor whose values are those in its memory."""
    return type(tensor) in _TENSORS and not tensor.is_neg()


def is_bare(a: Any, b: Any, epilogue: Epilogue = NOTHING) -> bool:
    """Whether tensors are what they are in memory: no subclass, negated view, mode, transformation,
    tracer, compiler or forward-mode derivative of torch is at work. Gradients and autocast may be
    asked for.
    """
    return (
        not _is_compiling()
        and type(a) in _TENSORS
        and type(b) in _TENSORS
        and not a.is_neg()
        and not b.is_neg()
        and forward_ad._current_level < 0
        and (
            epilogue is NOTHING
            or (
                (epilogue.bias is None or _is_plain(epilogue.bias))
                and (epilogue.residual is None or _is_plain(epilogue.residual))
                and (epilogue.scale_a is None or _is_plain(epilogue.scale_a))
                and (epilogue.scale_b is None or _is_plain(epilogue.scale_b))
                and (epilogue.blocks_a is None or _is_plain(epilogue.blocks_a))
                and (epilogue.blocks_b is None or _is_plain(epilogue.blocks_b))
            )
        )
        and not _function_modes()
        and not _dispatch_modes()
        and not _are_transforms_active()
        and _tracing_state() is None
    )


def wants_gradient(a: Tensor, b: Tensor, epilogue: Epilogue) -> bool:
    """Whether autograd must know of a product."""
    bias, residual = epilogue.bias, epilogue.residual
    return (
        a.requires_grad
        or b.requires_grad
        or (bias is not None and bias.requires_grad)
        or (residual is not None and residual.requires_grad)
    ) and torch.is_grad_enabled()


def quick_product(a: Any, b: Any, epilogue: Epilogue, *, linear: bool = False) -> Tensor | None:
    """``epilogue(a @ b)``, or with ``b.T`` if `linear`, if that was made of such bare tensors on
    their GPU before; else None. Nothing is assumed of the tensors.
    """
    if not (is_bare(a, b, epilogue) and a.is_cuda and not _is_autocast_enabled()):
        return None
    gradient = wants_gradient(a, b, epilogue)
    summed = without_activation(epilogue) if gradient else epilogue
    try:
        plan = find(a, b, summed, linear=linear)
    except RuntimeError:  # a tensor that is not strided
        return None
    if plan is None:
        return None
    if not gradient:
        return plan.run(a, b, epilogue)
    if b.dim() != 2:
        return None
    return activated(with_gradient(a, b, summed, linear), epilogue.activation)


def without_activation(epilogue: Epilogue) -> Epilogue:
    """The same sum; the gradient of an activation is torch's own."""
    if epilogue.activation is None:
        return epilogue
    bias, _, residual, beta, alpha, *_ = epilogue
    return epilogue_of(bias, None, residual, beta, alpha)


def without_gradient(a: Tensor, b: Tensor, epilogue: Epilogue, linear: bool = False) -> Tensor:
    """``epilogue(a @ b)``, or with ``b.T`` if `linear`, of a matrix b."""
    bare = is_bare(a, b, epilogue)
    if bare and a.is_cuda and b.is_cuda:
        plan = find(a, b, epilogue, linear=linear)
        if plan is not None:
            return plan.run(a, b, epilogue)
    multiply = product if bare else registered.product
    return broadcast_product(multiply, a, b.t() if linear else b, epilogue, None)


class Multiply(torch.autograd.Function):
    """`without_gradient` of a (..., M, K), a matrix b, a bias (N,) and a residual, with gradients.

    All but the activation and the scales of an `Epilogue` is an argument of its own: autograd looks
    for tensors among these alone.
    """

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        beta: float,
        alpha: float,
        linear: bool,
    ) -> Tensor:
        needs_a, needs_b, *_ = ctx.needs_input_grad
        ctx.save_for_backward(a if needs_b else None, b if needs_a else None)
        ctx.residual_shape = None if residual is None else residual.shape
        ctx.beta, ctx.alpha, ctx.linear = beta, alpha, linear
        return without_gradient(a, b, epilogue_of(bias, None, residual, beta, alpha), linear)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        _, _, needs_bias, needs_residual, *_ = ctx.needs_input_grad
        scaling = epilogue_of(alpha=ctx.alpha)
        grad_a = grad_b = grad_bias = grad_residual = None
        if b is not None:
            grad_a = _differentiable(grad, b, scaling, linear=not ctx.linear)
        rows = grad if grad.dim() == 2 else grad.flatten(0, -2)
        if a is not None:
            a = a if a.dim() == 2 else a.flatten(0, -2)
            left, right = (rows, a) if ctx.linear else (a, rows)
            grad_b = _differentiable(left.t(), right, scaling)
        if needs_bias:
            grad_bias = rows.sum(0)
        if needs_residual:
            grad_residual = (ctx.beta * grad).sum_to_size(ctx.residual_shape)
        return grad_a, grad_b, grad_bias, grad_residual, None, None, None


def with_gradient(a: Tensor, b: Tensor, epilogue: Epilogue, linear: bool = False) -> Tensor:
    """`without_gradient`, with one; the epilogue has no activation."""
    bias, _, residual, beta, alpha, *_ = epilogue
    made: Tensor = Multiply.apply(a, b, bias, residual, beta, alpha, linear)
    return made


def _differentiable(a: Tensor, b: Tensor, epilogue: Epilogue, linear: bool = False) -> Tensor:
    """A product in a backward: with gradients if those of the gradients are asked for."""
    multiply = with_gradient if torch.is_grad_enabled() else without_gradient
    return multiply(a, b, epilogue, linear)
