"""Checks of arguments: each returns the value as what it must be, or raises a LayoutError.

Where no list of legal values is given, an integer may be of any type with ``__index__``.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, TypeGuard

from triton_ext.errors import LayoutError


def is_power_of_two(value: Any) -> TypeGuard[int]:
    """Whether `value` is an integer of the form 2**k, k >= 0."""
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and value > 0
        and not value & (value - 1)
    )


def power_of_two(name: str, value: Any) -> int:
    """A power of two, at least 1."""
    if not is_power_of_two(value):
        raise LayoutError(name, value, "must be a power of two, at least 1")
    return value


def flag(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise LayoutError(name, value, "must be True or False")
    return value


def one_of(name: str, value: Any, legal: Iterable[int] | Iterable[str]) -> None:
    """One of a few integers or words; True is not taken for 1."""
    if isinstance(value, bool) or not isinstance(value, (int, str)) or value not in legal:
        raise LayoutError(name, value, f"must be one of {', '.join(map(str, legal))}")


def integer(name: str, value: Any, low: int, high: int) -> int:
    """An integer of [low, high)."""
    try:
        number = operator.index(value)
    except TypeError:
        raise LayoutError(name, value, "must be an integer") from None
    if not low <= number < high:
        raise LayoutError(name, value, f"must lie in [{low}, {high})")
    return number


def index_or_array(name: str, value: Any, size: int) -> Any:
    """An integer of [0, size), or an array of such integers as int64."""
    if getattr(value, "shape", ()):
        import numpy as np  # here, since importing numpy takes longer than a whole dump

        value = np.asarray(value)
        if value.dtype.kind not in "iu":
            raise LayoutError(name, value, "must be an integer or an array of integers")
        in_range = value.size == 0 or (value.min() >= 0 and value.max() < size)
        value = value.astype(np.int64, copy=False)
    else:
        try:
            value = operator.index(value)
        except TypeError:
            raise LayoutError(name, value, "must be an integer or an array of integers") from None
        in_range = 0 <= value < size
    if not in_range:
        raise LayoutError(name, value, f"must lie in [0, {size})")
    return value


def integers(name: str, values: Any, length: int | None = None, what: str = "") -> tuple[int, ...]:
    """A tuple of integers.

    Args:
        length: how many; None for any number.
        what: what each is for, for the error.
    """
    try:
        checked = tuple(map(operator.index, values))
    except TypeError:
        raise LayoutError(name, values, "must be a sequence of integers") from None
    if length is not None and len(checked) != length:
        raise LayoutError(name, checked, f"must have {length} values, {what}")
    return checked


def permutation(name: str, values: Any) -> tuple[int, ...]:
    """A tuple that holds 0, 1, ..., rank - 1, each once; the rank is at least 1."""
    try:
        order = tuple(map(operator.index, values))
    except TypeError:
        order = ()
    if not order or sorted(order) != list(range(len(order))):
        raise LayoutError(name, values, "must be a permutation of 0, 1, ..., rank - 1")
    return order


def vectors(name: str, values: Any) -> tuple[tuple[int, ...], ...]:
    """A tuple of vectors of integers: the bases of a layout."""
    try:
        return tuple(tuple(map(operator.index, vector)) for vector in values)
    except TypeError:
        rule = "must be a sequence of integer vectors, such as [[1, 0]]"
        raise LayoutError(name, values, rule) from None
