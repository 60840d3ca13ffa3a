"""What atomic operations and reductions do to memory.

Sources: PTX ISA, "atom", "red", "red.async", "cp.reduce.async.bulk".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.errors import DescriptorFault
from triton_ext.emulator.units.floats import KINDS, exact, extreme

Combine = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
"""(what memory has, the operand) -> what memory has then."""

OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
INTEGER: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
"""The associative operations on integers: ufuncs, which can reduce an axis."""
_KINDS = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}
"""numpy's names of the floating-point types, and PTX's."""


def _increment(old: NDArray[Any], limit: NDArray[Any]) -> NDArray[Any]:
    return np.where(old >= limit, 0, old + 1).astype(old.dtype)


def _decrement(old: NDArray[Any], limit: NDArray[Any]) -> NDArray[Any]:
    return np.where((old == 0) | (old > limit), limit, old - 1).astype(old.dtype)


def update(operation: str, kind: str) -> Combine:
    """An operation on register values of a type; bf16 as its bits. Raises KeyError: the type has no
    such operation."""
    if kind not in KINDS:
        functions: dict[str, Combine] = {**INTEGER, "inc": _increment, "dec": _decrement}
        return functions[operation]
    if operation == "add":
        add = exact("add", kind)
        return lambda old, new: np.asarray(add(new, old))  # of two NaNs in f64, the old one stays
    largest = {"min": False, "max": True}[operation]
    return lambda old, new: extreme(old, new, kind, largest=largest)


def combiner(operation: str, dtype: Any) -> Combine:
    """An operation on elements of a numpy type, as bulk and asynchronous reductions have it.

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
    kind = _KINDS.get(dtype.name, dtype.name)
    if kind == "f64":  # .add alone is legal; of two NaNs, the operand's stays
        add: Combine = exact("add", kind)
        return add
    function = update(operation, kind)
    if dtype.name != "bfloat16":
        return function
    return lambda old, new: function(old.view(np.uint16), new.view(np.uint16)).view(dtype)
