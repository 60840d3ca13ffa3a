"""Shortcuts: a product that repeats another one is known by one check in C, and launched.

`plans.signature` asks each tensor for five things from Python, which is most of what a repeated
product takes the host. The guards that torch's compiler puts before its code ask the same in one
call (``TensorGuards``, torch/csrc/dynamo/guards.cpp): types in Python, element types, devices,
sizes, strides, ``requires_grad``, and dispatch keys with what the thread includes and excludes of
them: negated views, autocast, inference mode, transformations. What they do not ask stands in
`Shortcut`, or is the caller's: modes, forward-mode derivatives, torch's compiler.

A shortcut is made of a plan that was found the long way, and goes when the plans go.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import torch
from torch import Tensor

from triton_ext.ops import plans
from triton_ext.ops.call import Call, call_of
from triton_ext.ops.epilogue import NOTHING, Epilogue
from triton_ext.ops.operands import TMA_ALIGNMENT
from triton_ext.ops.plans import ProductPlan

MAX_ALIKE = 8
"""How many shortcuts are kept for one key; the oldest is forgotten first."""
UNALIGNED = TMA_ALIGNMENT - 1
"""The bits of an address that are 0 in all that has a shortcut."""

_guards: Any = torch._C._dynamo.guards.TensorGuards


class Left(Enum):
    """What a drop-in leaves to torch."""

    LEFT = "left"


LEFT = Left.LEFT
Made = Tensor | Left | None


class _Check(Protocol):
    def __call__(self, *tensors: Tensor | None) -> bool: ...


@dataclass(frozen=True, slots=True)
class Shortcut:
    """A product that was made before.

    Attributes:
        holds: whether tensors are like those of that product, but for their addresses.
        plan: how it is made.
        is_left: whether a drop-in leaves it to torch.
        is_bias: whether what is added is a bias; else it is a residual.
        activation: of its epilogue.
        linear: whether b is given as its transpose.
    """

    holds: _Check
    plan: ProductPlan
    is_left: bool
    is_bias: bool
    activation: str | None
    linear: bool

    def make(self, a: Tensor, b: Tensor, addend: Tensor | None = None) -> Made:
        """The product of tensors for which it holds; None if their alignment is another one."""
        address_a, address_b = a.data_ptr(), b.data_ptr()
        added = 0 if addend is None else addend.data_ptr()
        if (address_a | address_b | added) & UNALIGNED:
            return None
        if self.is_left:
            return LEFT
        plan = self.plan
        if plan.plain and plan.index == plans._current_gpu():
            c: Tensor = plans._new_on_gpu(plan.memory, plan.strides, plan.dtype)
            if plan.launch.at(address_a, address_b, c.data_ptr(), added):
                return c
        epilogue = NOTHING
        if addend is not None or self.activation is not None:
            bias, residual = (addend, None) if self.is_bias else (None, addend)
            epilogue = Epilogue(bias, self.activation, residual)
        return plan.run(call_of((a, b, epilogue, None, None, self.linear, None, None)))


Function = str | tuple[str, bool]
_found: dict[tuple[Function, bool, str | None, int, int], tuple[Shortcut, ...]] = {}
plans.depending.append(_found)


def repeated(
    function: Function,
    a: Tensor,
    b: Tensor,
    addend: Tensor | None = None,
    activation: str | None = None,
) -> Made:
    """The product that a call makes, if its like has a shortcut; else None; LEFT if a drop-in
    leaves it to torch.

    Args:
        function: by which name it was kept: what else the product depends on.
        addend: what is added, if something is.
    """
    alone = addend is None
    for each in _found.get((function, alone, activation, a.numel(), b.numel()), ()):
        if each.holds(a, b) if alone else each.holds(a, b, addend):
            return each.make(a, b, addend)
    return None


def keep(function: Function, call: Call, plan: ProductPlan, is_left: bool = False) -> None:
    """Make a shortcut of a call whose plan was found, if it can have one: of a and b alone, or with
    one tensor that is added as it is. `is_left`: whether a drop-in leaves it to torch."""
    a, b, (bias, activation, residual, beta, alpha, *others), out_dtype, out, linear, *rest = call
    addend = bias if residual is None else residual
    tensors = (a, b) if addend is None else (a, b, addend)
    if (
        (bias is not None and residual is not None)
        or not beta == alpha == 1
        or any(each is not None and each is not False for each in others)
        or out_dtype is not None
        or out is not None
        or any(each is not None for each in rest)
        or any(tensor.data_ptr() & UNALIGNED for tensor in tensors)
    ):
        return
    check = _guards(
        *tensors,
        dynamic_dims_sizes=[list(tensor.shape) for tensor in tensors],
        dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors],
    ).check
    made = Shortcut(check, plan, is_left, residual is None, activation, linear)
    key = function, addend is None, activation, a.numel(), b.numel()
    with plans.lock:
        if plans.cached(plans.signature(call)) is not plan:  # forgotten meanwhile
            return
        if len(_found) >= plans.MAX_PLANS:
            _found.clear()
        _found[key] = (*_found.get(key, ())[1 - MAX_ALIKE :], made)
