"""Python's and numpy's numbers as parameters of a kernel, by the parameter's type in PTX."""

from __future__ import annotations

import math
import numbers
from typing import Any

import ml_dtypes
import numpy as np

from triton_ext.emulator.errors import LaunchError
from triton_ext.emulator.state.types import DTYPES
from triton_ext.ptx.parse import Variable

_BYTES_OF_NUMBERS = 8
"""The widest parameter that one number fills; wider ones are structures, given as bytes."""

_finfo: Any = ml_dtypes.finfo  # it is not typed
_SHOWN = 40
"""Characters of a number that an error shows."""


def is_number(value: Any) -> bool:
    """Whether it is a number of Python, numpy or ml_dtypes, and not an array."""
    return isinstance(value, (numbers.Number, np.generic)) and not isinstance(value, (str, bytes))


def scalar_bytes(value: Any, variable: Variable) -> bytes:
    """A number as the bytes of a parameter.

    An integer fits any type of integers or bits in whose range it is: ``.u32`` and ``.b32`` take
    negative ones, too, as compilers declare signed integers so. A ``.f32`` takes what rounds to a
    finite float. Floats of numpy are bits to a ``.b32`` of their width; Python's have no width.

    Raises:
        LaunchError: another kind of number, or one that does not fit.
    """
    of, size = variable.type, variable.bytes
    kind = DTYPES.get(of)
    if size > _BYTES_OF_NUMBERS or (kind is not None and kind.itemsize != size and of != "b8"):
        raise _refused(value, variable, f"must be {size} bytes, as the parameter has")
    if kind is not None and kind.kind not in "iu":
        return _float_bytes(value, variable, kind)
    if isinstance(value, (numbers.Integral, np.integer, np.bool_)):
        signed, low = of.startswith("s"), -(1 << 8 * size - 1)
        high = (1 << 8 * size - signed) - 1
        if not low <= int(value) <= high:
            raise _refused(value, variable, f"must be in [{low}, {high}]")
        return (int(value) % (1 << 8 * size)).to_bytes(size, "little")
    bits = of.startswith("b") and _is_real(value)
    if bits and isinstance(value, np.generic) and value.itemsize == size:
        return value.tobytes()
    floats = f", or a float of numpy with {8 * size} bits" if bits else ""
    raise _refused(value, variable, f"must be an integer{floats}")


def _is_real(value: Any) -> bool:
    """Whether it is a float of Python, numpy or ml_dtypes."""
    if isinstance(value, (float, np.floating)):
        return True
    try:
        return not isinstance(value, np.complexfloating) and bool(_finfo(value.dtype))
    except (AttributeError, ValueError):
        return False


def _float_bytes(value: Any, variable: Variable, kind: np.dtype[Any]) -> bytes:
    integral = isinstance(value, (numbers.Integral, np.integer))
    if isinstance(value, (bool, np.bool_)) or not (integral or _is_real(value)):
        raise _refused(value, variable, "must be an integer or a float")
    try:
        given = float(value)
        with np.errstate(over="ignore"):
            rounded = np.asarray(given).astype(kind)
        fits = not math.isinf(float(rounded)) or math.isinf(given)
    except OverflowError:
        fits = False
    if not fits:
        raise _refused(value, variable, "must be within its range")
    return bytes(rounded.tobytes())


def _refused(value: Any, variable: Variable, rule: str) -> LaunchError:
    shown = repr(value)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    return LaunchError(
        f"argument {variable.name} = {shown}, for a parameter of .{variable.type}: {rule}"
    )
