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

import itertools
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from operator import is_
from typing import Any, Protocol

import torch
from torch import Tensor

from triton_ext.ops import plans
from triton_ext.ops.call import Call, call_of
from triton_ext.ops.epilogue import epilogue_from
from triton_ext.ops.launches import PreparedLaunch
from triton_ext.ops.operands import TMA_ALIGNMENT
from triton_ext.ops.plans import ProductPlan

MAX_ALIKE = 8
"""How many shortcuts are kept for one key; the oldest is forgotten first."""
UNALIGNED = TMA_ALIGNMENT - 1
"""The bits of an address that are 0 in all that has a shortcut."""

_nones = itertools.repeat(None)
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
        values: those of its epilogue, whose tensors are open.
        places: which of the values the tensors after a and b are.
        linear: whether b is given as its transpose.
    """

    holds: _Check
    plan: ProductPlan
    is_left: bool
    values: list[Any]
    places: tuple[tuple[int, ...], ...]
    linear: bool

    def make(
        self, a: Tensor, b: Tensor, addend: Tensor | None = None, out: Tensor | None = None
    ) -> Made:
        """The product of tensors for which it holds; None if their alignment is another one, or the
        output would overlap them.
        """
        address_a, address_b = a.data_ptr(), b.data_ptr()
        added = 0 if addend is None else addend.data_ptr()
        if (address_a | address_b | added) & UNALIGNED:
            return None
        if self.is_left:
            return LEFT
        plan = self.plan
        if out is None and plan.plain and plan.index == plans._current_gpu():
            c: Tensor = plans._new_on_gpu(plan.memory, plan.strides, plan.dtype)
            if plan.launch.at(address_a, address_b, c.data_ptr(), added):
                return c
        if out is None:
            return plan.run(self.call(a, b, () if addend is None else (addend,)))
        if (address := out.data_ptr()) & UNALIGNED:
            return None
        end = address + plan.out_size
        for name, size, may_be_out in plan.reads:
            start = address_a if name == "a" else address_b if name == "b" else added
            if start < end and address < start + size and not (may_be_out and start == address):
                return None
        if (
            plan.plain
            and plan.index == plans._current_gpu()
            and plan.launch.at(address_a, address_b, address, added)
        ):
            return out
        return plan.run(self.call(a, b, () if addend is None else (addend,), out))

    def make_with(self, a: Tensor, b: Tensor, *others: Tensor) -> Tensor | None:
        """The same of tensors that its epilogue may use in any way."""
        address_a, address_b = a.data_ptr(), b.data_ptr()
        bits, values = address_a | address_b, self.values.copy()
        for places, tensor in zip(self.places, others, strict=True):
            address = tensor.data_ptr()
            bits |= address
            for place in places:
                values[place] = address
        if bits & UNALIGNED:
            return None
        plan = self.plan
        launch = plan.launch
        if plan.plain and plan.index == plans._current_gpu() and isinstance(launch, PreparedLaunch):
            c: Tensor = plans._new_on_gpu(plan.memory, plan.strides, plan.dtype)
            if launch.with_values(address_a, address_b, c.data_ptr(), values):
                return c
        return plan.run(self.call(a, b, others))

    def call(
        self, a: Tensor, b: Tensor, others: tuple[Tensor, ...], out: Tensor | None = None
    ) -> Call:
        """The call of a plan, which does not look at the other attributes."""
        values = self.values.copy()
        for places, tensor in zip(self.places, others, strict=False):  # out has no place
            for place in places:
                values[place] = tensor
        return call_of((a, b, epilogue_from(tuple(values)), None, out, self.linear, None, None))


_found: dict[tuple[Any, ...], tuple[Shortcut, ...]] = {}
plans.depending.append(_found)


def repeated(
    function: Hashable,
    a: Tensor,
    b: Tensor,
    addend: Tensor | None = None,
    out: Tensor | None = None,
) -> Made:
    """The product that a call makes, if its like has a shortcut; else None; LEFT if a drop-in
    leaves it to torch.

    Args:
        function: under what it was kept: all else that the product depends on, and whether there
            are an addend and an out.
        addend: what is added, if something is.
        out: where it is written; none if that is the addend.
    """
    alone = addend is None
    for each in _found.get((function, alone, a.numel(), b.numel()), ()):
        if out is None:
            if each.holds(a, b) if alone else each.holds(a, b, addend):
                return each.make(a, b, addend)
        elif each.holds(a, b, out) if alone else each.holds(a, b, addend, out):
            return each.make(a, b, addend, out)
    return None


def call_like(
    function: Hashable, a: Tensor, b: Tensor, addend: Tensor | None
) -> tuple[Call, ProductPlan] | None:
    """The call of `repeated`, and how it is made, if its like has a shortcut."""
    alone = addend is None
    for each in _found.get((function, alone, a.numel(), b.numel()), ()):
        if each.holds(a, b) if alone else each.holds(a, b, addend):
            added = 0 if addend is None else addend.data_ptr()
            if (a.data_ptr() | b.data_ptr() | added) & UNALIGNED:
                return None
            return each.call(a, b, () if addend is None else (addend,)), each.plan
    return None


def repeated_with(function: Hashable, a: Tensor, b: Tensor, *others: Any) -> Tensor | None:
    """The same of a call with other tensors, or None, which a drop-in does not leave to torch.
    `function`: all else that the product depends on."""
    given = [each for each in others if each is not None]
    key = function, a.numel(), b.numel(), *map(is_, others, _nones)
    for each in _found.get(key, ()):
        if each.holds(a, b, *given):
            return each.make_with(a, b, *given)
    return None


def keep(function: Hashable, call: Call, plan: ProductPlan, is_left: bool = False) -> None:
    """Make a shortcut of a call for `repeated`, if it can have one: of a and b alone, or with one
    tensor that is added as it is, and of no other arguments than function says. `is_left`: whether
    a drop-in leaves it to torch."""
    bias, _, residual, beta, alpha, *others = call.epilogue
    addend = bias if residual is None else residual
    if (
        (bias is not None and residual is not None)
        or not beta == alpha == 1
        or any(each is not None and each is not False for each in others)
        or call.out_dtype is not None
        or call.config is not None
        or call.batch_invariant is not None
    ):
        return
    tensors = [each for each in (addend, call.out) if each is not None]
    key = function, addend is None, call.a.numel(), call.b.numel()
    _keep(key, call, plan, *tensors, is_left=is_left)


def keep_with(function: Hashable, call: Call, plan: ProductPlan, *others: Any) -> None:
    """The same for `repeated_with`, if the call's tensors are those that this will be given."""
    key = function, call.a.numel(), call.b.numel(), *map(is_, others, _nones)
    _keep(key, call, plan, *(each for each in others if each is not None))


def _keep(
    key: tuple[Any, ...], call: Call, plan: ProductPlan, *others: Tensor, is_left: bool = False
) -> None:
    """Make a shortcut of a call if all its tensors are given, each once, and aligned (guards refuse
    a tensor that they are given twice).
    """
    tensors = call.a, call.b, *others
    places: dict[int, list[int]] = {id(each): [] for each in others}
    values: list[Any] = [*call.epilogue]
    for place, value in enumerate(values):
        if isinstance(value, Tensor):
            places.setdefault(id(value), []).append(place)
            values[place] = None
    if (
        len({id(each) for each in tensors}) < len(tensors)
        or len(places) > len(others)
        or any(tensor.data_ptr() & UNALIGNED for tensor in tensors)
    ):
        return
    check = _guards(
        *tensors,
        dynamic_dims_sizes=[list(tensor.shape) for tensor in tensors],
        dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors],
    ).check
    where = tuple(map(tuple, places.values()))
    made = Shortcut(check, plan, is_left, values, where, call.linear)
    with plans.lock:
        if plans.cached(plans.signature(call)) is not plan:  # forgotten meanwhile
            return
        if len(_found) >= plans.MAX_PLANS:
            _found.clear()
        _found[key] = (*_found.get(key, ())[1 - MAX_ALIKE :], made)
