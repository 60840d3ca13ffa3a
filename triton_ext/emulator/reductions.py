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


def _add(old: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
    if old.dtype.kind in "iu" or old.dtype.itemsize >= 4:
        return old + new
    # in fp32 the sum of two is exact or correctly rounded twice: see the test on the silicon
    return (old.astype(np.float32) + new.astype(np.float32)).astype(old.dtype)


def _extreme(function: Any) -> Combine:
    def combine(old: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
        if old.dtype.kind in "iu":
            return function(old, new).astype(old.dtype)
        wide = function(old.astype(np.float32), new.astype(np.float32))  # a number beats a NaN
        return wide.astype(old.dtype)

    return combine


def combiner(operation: str, dtype: Any) -> Combine:
    """(what memory has, what comes) -> what memory has then.

    Raises:
        DescriptorFault: the hardware has no such operation for the type.
    """
    dtype = np.dtype(dtype)
    integer, size = dtype.kind in "iu", dtype.itemsize
    if operation == "add":
        legal = size >= 4 if integer else True
    elif operation in ("min", "max"):
        legal = size >= 4 if integer else size == 2
    elif operation in ("inc", "dec"):
        legal = dtype == np.uint32
    else:
        legal = integer and size >= 4
    if not legal:
        raise DescriptorFault(f"there is no reduction .{operation} of {dtype.name} elements")
    if operation == "add":
        return _add
    if operation in ("min", "max"):
        return _extreme(np.fmin if operation == "min" else np.fmax)
    if operation in ("inc", "dec"):
        return _increment if operation == "inc" else _decrement
    return _BITWISE[operation]
