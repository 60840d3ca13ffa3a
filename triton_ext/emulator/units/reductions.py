"""The operations of bulk reductions (PTX ISA, "cp.reduce.async.bulk", "red.async")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.errors import DescriptorFault

Combine = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]

OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
_BITWISE = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def _increment(old: NDArray[Any], limit: NDArray[Any]) -> NDArray[Any]:
    return np.where(old >= limit, 0, old + 1).astype(old.dtype)


def _decrement(old: NDArray[Any], limit: NDArray[Any]) -> NDArray[Any]:
    return np.where((old == 0) | (old > limit), limit, old - 1).astype(old.dtype)


def _canonical(values: NDArray[Any]) -> NDArray[Any]:
    """Floats whose NaNs are the hardware's: all bits of exponent and mantissa set, no sign."""
    size = values.dtype.itemsize
    if size == 8:
        return values
    nan = np.array((1 << 8 * size - 1) - 1, f"u{size}").view(values.dtype)
    wide = values if size == 4 else values.astype(np.float32)
    return np.where(np.isnan(wide), nan, values)


def _add(old: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
    if old.dtype.kind in "iu":
        return np.asarray(old + new)
    if old.dtype.itemsize >= 4:
        return _canonical(np.asarray(old + new))
    # fp32 has more than twice the bits: rounding twice is rounding once
    return _canonical((old.astype(np.float32) + new.astype(np.float32)).astype(old.dtype))


def _extreme(function: Any) -> Combine:
    def combine(old: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
        if old.dtype.kind in "iu":
            return np.asarray(function(old, new)).astype(old.dtype)
        first, second = (value.astype(np.float32) for value in (old, new))
        for each in (first, second):  # a number beats any NaN, a signaling one too
            each[np.isnan(each)] = np.nan
        both_zero = (first == 0) & (second == 0)  # and +0 is more than -0
        zero = np.where(function is np.fmax, first + second, -(-first - second))
        chosen = np.where(both_zero, zero, function(first, second))
        return _canonical(chosen.astype(old.dtype))

    return combine


def combiner(operation: str, dtype: Any) -> Combine:
    """(what memory has, what comes) -> what memory has then.

    An H100 stops at what is refused here, with an illegal instruction.

    Raises:
        DescriptorFault: the hardware has no such operation for the type.
    """
    dtype = np.dtype(dtype)
    integer, size = dtype.kind in "iu", dtype.itemsize
    if operation == "add":
        legal = size >= 4 and dtype != np.int64 if integer else True
    elif operation in ("min", "max"):
        legal = size >= 4 if integer else size == 2
    elif operation in ("inc", "dec"):
        legal = dtype == np.uint32
    else:
        legal = integer and size >= 4 and dtype != np.int64
    if not legal:
        raise DescriptorFault(f"there is no reduction .{operation} of {dtype.name} elements")
    if operation == "add":
        return _add
    if operation in ("min", "max"):
        return _extreme(np.fmin if operation == "min" else np.fmax)
    if operation in ("inc", "dec"):
        return _increment if operation == "inc" else _decrement
    return _BITWISE[operation]
