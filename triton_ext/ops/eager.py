"""Calls in eager mode, past torch's dispatcher where nothing needs it.

A small product takes the GPU less time than the host; torch's Python operators, and their autograd,
would add 10 to 40 microseconds to a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from triton_ext.ops import shortcuts
from triton_ext.ops.call import TENSORS, Call, is_bare, wants_gradient
from triton_ext.ops.epilogue import NOTHING, Epilogue, activated, epilogue_of
from triton_ext.ops.gated import gradient_of_sums
from triton_ext.ops.gates import GATES
from triton_ext.ops.plans import ProductPlan, cached, find, signature
from triton_ext.ops.products import product
from triton_ext.ops.registered import by_operators
from triton_ext.ops.shortcuts import LEFT

# By their names here, not by those in torch: each look-up would take as long as half of the call.
_is_autocast_enabled = torch._C._is_any_autocast_enabled
_is_grad_enabled = torch.is_grad_enabled
_is_traced = torch.compiler.is_dynamo_compiling
_function_modes = torch._C._len_torch_function_stack
_dispatch_modes = torch._C._len_torch_dispatch_stack
_has_storage = torch._C._has_storage


def shortened(
    function: str, a: Tensor, b: Tensor, addend: Tensor | None = None, activation: str | None = None
) -> Tensor | None:
    """What a call of no other arguments makes, if its like was made by `repeated`, of the same
    function; else None. Nothing is assumed of what it is given.
    """
    if not _is_short(a, b) or (activation is not None and type(activation) is not str):
        return None
    gradients = _is_grad_enabled()
    if gradients and (a.requires_grad or b.requires_grad):
        found = shortcuts.call_like((function, "gradients", activation), a, b, addend)
        return None if found is None else with_gradient(*found)
    made = shortcuts.repeated((function, gradients, activation), a, b, addend)
    assert made is not LEFT  # which only a drop-in does
    return made


def _is_short(a: Any, b: Any) -> bool:
    """Whether what guards do not ask for, and what they are told apart by, allows a shortcut."""
    return (
        not _is_traced()
        and type(a) in TENSORS
        and type(b) in TENSORS
        and forward_ad._current_level < 0
        and not _function_modes()
        and not _dispatch_modes()
    )


def shortened_with(function: tuple[Any, ...], a: Tensor, b: Tensor, *others: Any) -> Tensor | None:
    """The same of a call with other arguments.

    Args:
        function: its name, with all that is no tensor.
        others: the tensors after a and b, or None.
    """
    if not _is_short(a, b):
        return None
    return shortcuts.repeated_with((_is_grad_enabled(), function), a, b, *others)


def repeated(
    call: Call, function: str | tuple[Any, ...] | None = None, others: Sequence[Any] | None = None
) -> Tensor | None:
    """What a call makes, if such a one was made of such bare tensors on their GPU before; else
    None. Nothing is assumed of what it holds.

    Args:
        function: under which name a call of no other arguments than those of `shortened`, which
            will be asked first, is kept for it.
        others: of a function of `shortened_with`, what that will be given.
    """
    if not is_bare(call) or _is_autocast_enabled():
        return None
    gradient = wants_gradient(call)
    if gradient and not (call.b.dim() == 2 and call[3:5] == (None, None) and call.config is None):
        return None
    below = _below_autograd(call) if gradient else call
    try:
        plan = cached(signature(below)) or find(below)
    except (RuntimeError, TypeError):  # a tensor that is not strided; an argument of no legal type
        return None
    if plan is None:
        return None
    if gradient:
        if function is not None and others is None and below is call:
            shortcuts.keep((function, "gradients", call.epilogue.activation), call, plan)
        return with_gradient(call, plan)
    if call.out is not None:
        if plan.overlaps(call):
            return None
        torch.autograd.graph.increment_version(call.out)
    elif function is not None and others is not None:
        shortcuts.keep_with((_is_grad_enabled(), function), call, plan, *others)
    elif function is not None:
        shortcuts.keep((function, _is_grad_enabled(), call.epilogue.activation), call, plan)
    return plan.run(call)


def multiply(call: Call, bare: bool, gradient: bool) -> Tensor:
    """What a call of `shapes.canonical` makes, by the shortest way on which torch sees all that it
    must know of. `bare, gradient`: what `is_bare` and `wants_gradient` say of it."""
    if call.config is not None or (bare and not gradient):
        return product(call)
    if bare and call.a.dim() > 1 and call.b.dim() == 2 and call.a.dtype == call.dtype:
        return with_gradient(call)
    return by_operators(call)


def _below_autograd(call: Call) -> Call:
    """What autograd makes of a call itself: the gradient of an activation is torch's own, but of a
    gated one, and a residual with beta 0 is not read.
    """
    bias, activation, residual, beta, alpha, *_ = call.epilogue
    if (activation is None and beta != 0) or activation in GATES:
        return call
    return call._replace(epilogue=epilogue_of(bias, None, residual, beta, alpha))


class Multiply(torch.autograd.Function):
    """A product of a (..., M, K) and a matrix b, with a bias (N,) and a residual, with gradients.

    Tensors with gradients are arguments of their own: autograd looks for them among these alone.
    """

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        beta: float,
        call: Call,
        plan: ProductPlan | None,
    ) -> Tensor:
        needs_a, needs_b, *_ = ctx.needs_input_grad
        ctx.gate = call.epilogue.activation  # below autograd there is no other one
        kept = ctx.gate is not None
        ctx.save_for_backward(
            a if needs_b or kept else None, b if needs_a or kept else None, bias if kept else None
        )
        ctx.residual_shape = None if residual is None else residual.shape
        ctx.beta, ctx.alpha, ctx.linear = beta, call.epilogue.alpha, call.linear
        ctx.batch_invariant = call.batch_invariant
        return _without_gradient(call) if plan is None else plan.run(call)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b, bias = ctx.saved_tensors
        _, _, needs_bias, needs_residual, *_ = ctx.needs_input_grad

        def made(a: Tensor, b: Tensor, epilogue: Epilogue, linear: bool = False) -> Tensor:
            call = Call(a, b, epilogue, linear=linear, batch_invariant=ctx.batch_invariant)
            return _differentiable(call)

        if ctx.gate is not None:
            sums = made(a, b, epilogue_of(bias), ctx.linear)
            grad = gradient_of_sums(sums, grad, ctx.gate)
        scaling = epilogue_of(alpha=ctx.alpha)
        grad_a = grad_b = grad_bias = grad_residual = None
        needs_a, needs_b, *_ = ctx.needs_input_grad
        if needs_a:
            grad_a = made(grad, b, scaling, not ctx.linear)
        rows = grad if grad.dim() == 2 else grad.flatten(0, -2)
        if needs_b:
            a = a if a.dim() == 2 else a.flatten(0, -2)
            left, right = (rows, a) if ctx.linear else (a, rows)
            grad_b = made(left.t(), right, scaling)
        if needs_bias:
            grad_bias = rows.sum(0)
        if needs_residual:
            grad_residual = (ctx.beta * grad).sum_to_size(ctx.residual_shape)
        return grad_a, grad_b, grad_bias, grad_residual, None, None, None


_apply: Any = super(torch.autograd.Function, Multiply).apply
"""`Multiply.apply` without what that does for functorch, which takes 2 µs."""


def with_gradient(call: Call, plan: ProductPlan | None = None) -> Tensor:
    """What a call makes, with gradients. `plan`: that of what it makes below autograd, if that is
    known."""
    bias, activation, residual, beta, *_ = call.epilogue
    below = _below_autograd(call)
    apply = Multiply.apply if plan is None else _apply  # whose tensors are bare
    made: Tensor = apply(call.a, call.b, bias, residual, beta, below, plan)
    return made if below.epilogue.activation is activation else activated(made, activation)


def _without_gradient(call: Call) -> Tensor:
    """What a call makes, for autograd alone to know."""
    return product(call) if is_bare(call) else by_operators(call)


def _differentiable(call: Call) -> Tensor:
    """A product in a backward: with gradients if those of the gradients are asked for."""
    if not (is_bare(call) and _has_storage(call.a) and _has_storage(call.b)):
        return by_operators(call)  # among others batches of gradients (``is_grads_batched``)
    if _is_grad_enabled():
        return with_gradient(call)
    a, b, epilogue, _, _, linear, _, batch_invariant = call
    if epilogue is not NOTHING or batch_invariant is not None:
        return _without_gradient(call)
    function = "linear" if linear else "matmul"
    made = shortened(function, a, b)
    if made is None:
        made = repeated(call, function)
    return _without_gradient(call) if made is None else made
