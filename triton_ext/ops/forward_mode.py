"""Forward-mode derivatives (``torch.autograd.forward_ad``, ``torch.func.jvp``, ``jacfwd``).

``torch.library`` has no way to give an operator a forward-mode derivative, and drops tangents
without a word. So the public functions take dual tensors apart, and make the tangent of a product
from two more products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from triton_ext.errors import LayoutError
from triton_ext.ops.call import Call
from triton_ext.ops.epilogue import activated, epilogue_of


def is_active() -> bool:
    """Whether there can be dual tensors; cheap."""
    return forward_ad._current_level >= 0


def has_tangent(call: Call) -> bool:
    """Whether there is a dual tensor among those that a call multiplies and adds."""
    return is_active() and _any_tangent(_tensors(call))


def _tensors(call: Call) -> tuple[Any, ...]:
    return call.a, call.b, *call.epilogue


def _any_tangent(values: Iterable[Any]) -> bool:
    return any(
        isinstance(each, Tensor) and forward_ad.unpack_dual(each).tangent is not None
        for each in values
    )


def refuse_tangents(*tensors: Any) -> None:
    """Raise LayoutError if there is a tangent that would be lost."""
    if not torch.compiler.is_compiling() and is_active() and _any_tangent(tensors):
        rule = "this has no forward-mode derivative; use matmul, linear, addmm or bmm without out"
        raise LayoutError("tangent", "a dual tensor", rule)


def dual_product(multiply: Callable[[Call], Tensor], call: Call) -> Tensor:
    """``multiply(call)`` of dual tensors, with bias, residual, alpha and beta.

    Args:
        multiply: does so with tensors that have no tangents.

    Raises:
        LayoutError: it is to be written to an out, which would lose the tangent.
    """
    if call.out is not None:
        refuse_tangents(*_tensors(call))
    bias, activation, residual, beta, alpha, *_ = call.epilogue
    tensors = map(_parts, (call.a, call.b, bias, residual))
    (a0, da), (b0, db), (bias0, dbias), (residual0, dresidual) = tensors
    summed = epilogue_of(bias0, None, residual0, beta, alpha, differentiable=True)
    made = multiply(call._replace(a=a0, b=b0, epilogue=summed))
    tangent = None
    for left, right in ((da, b0), (a0, db)):
        if left is not None and right is not None:
            before = epilogue_of(residual=tangent, alpha=alpha)
            tangent = multiply(call._replace(a=left, b=right, epilogue=before))
    for addend, factor in ((dbias, 1.0), (dresidual, beta)):
        if addend is not None:
            start = torch.zeros_like(made) if tangent is None else tangent
            tangent = torch.add(start, addend, alpha=factor)
    dual = made if tangent is None else forward_ad.make_dual(made, tangent)
    return activated(dual, activation)


def _parts(tensor: Tensor | None) -> tuple[Any, Tensor | None]:
    """A tensor's primal and tangent."""
    if tensor is None:
        return None, None
    parts = forward_ad.unpack_dual(tensor)
    return parts.primal, parts.tangent
