"""Derivatives of this project's operators, in both modes, for all that takes them.

``torch.library.register_autograd`` knows neither forward-mode derivatives, which it drops without a
word, nor ``torch.func``'s transformations, at which it raises. So operators have a kernel for the
dispatcher's key of autograd, as torch's own do: the dispatcher calls it once for each level of
``grad``, ``vjp``, ``jvp`` and of autograd itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from triton_ext.errors import LayoutError

Keep = Callable[[Any, tuple[Any, ...]], tuple[Tensor | None, ...]]
"""What both modes need of an operator's arguments: tensors, which are kept for them, and attributes
of the context."""
Backward = Callable[..., tuple[Tensor | None, ...]]
"""The gradients of all arguments, given the context and that of the result."""
Forward = Callable[..., Tensor]
"""The tangent of the result, given the context and those of all arguments, or None."""


def is_active() -> bool:
    """Whether there can be dual tensors; cheap."""
    return forward_ad._current_level >= 0


def is_differentiated(*tensors: Tensor | None) -> bool:
    """Whether a derivative may be asked of what is made of these."""
    return is_active() or (
        torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in tensors)
    )


def refuse_tangents(tensors: Iterable[Any], what: str) -> None:
    """Raise LayoutError if there is a tangent, which would be lost."""
    if torch.compiler.is_compiling() or not is_active():
        return
    for each in tensors:
        if isinstance(each, Tensor) and forward_ad.unpack_dual(each).tangent is not None:
            rule = f"{what} has no forward-mode derivative: matmul, linear, addmm, bmm have"
            raise LayoutError("tangent", "a dual tensor", rule)


def refuse_derivatives(library: torch.library.Library, operator: Any) -> None:
    """Have an operator raise LayoutError where it is asked for derivatives, which it has not."""
    name = operator._opname

    def by_autograd(keys: Any, *given: Any) -> Tensor:
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*given):
            raise LayoutError("requires_grad", True, f"{name} has no gradient; detach its operands")
        refuse_tangents(given, name)
        return _below_autograd(operator, keys, given)

    library.impl(name, by_autograd, "Autograd", with_keyset=True)


def differentiate(
    library: torch.library.Library, operator: Any, keep: Keep, backward: Backward, tangent: Forward
) -> None:
    """Give an operator that has one result its derivatives."""
    defaults = [
        each.default_value if each.has_default_value() else None
        for each in operator._schema.arguments
    ]

    class Derivative(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Tensor:
            *given, keys = arguments
            kept = keep(ctx, tuple(given))
            ctx.save_for_backward(*kept)
            if is_active():
                ctx.save_for_forward(*kept)
                ctx.set_materialize_grads(False)  # a tangent that is none is not multiplied
            with _levels_below():
                return _below_autograd(operator, keys, given)

        @staticmethod
        def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
            if grad is None:
                return (None,) * (1 + len(defaults))
            return *backward(ctx, grad), None

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Tensor:
            return tangent(ctx, *tangents[:-1])

    at_one_level: Any = super(torch.autograd.Function, Derivative).apply

    def by_autograd(keys: Any, *given: Any) -> Tensor:
        if not (is_active() or (torch.is_grad_enabled() and torch._C._any_requires_grad(*given))):
            return _below_autograd(operator, keys, given)
        given = *given, *defaults[len(given) :]  # which the dispatcher leaves out
        if not torch._C._are_functorch_transforms_active():
            made: Tensor = Derivative.apply(*given, keys)
            return made
        with enable_single_level_autograd_function():  # that of the level which called
            of_level: Tensor = at_one_level(*given, keys)
        return of_level

    library.impl(operator._opname, by_autograd, "Autograd", with_keyset=True)


def _below_autograd(operator: Any, keys: Any, given: Iterable[Any]) -> Tensor:
    with torch._C._AutoDispatchBelowAutograd():
        made: Tensor = operator.redispatch(keys & torch._C._after_autograd_keyset, *given)
        return made


@contextlib.contextmanager
def _levels_below() -> Any:
    """In which the next levels of ``torch.func``, if there are any, take derivatives, which the
    forward of a function of autograd turns off."""
    if not torch._C._are_functorch_transforms_active():
        yield
        return
    with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
        yield
