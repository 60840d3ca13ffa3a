"""Rounding of exact results to floating-point formats, in every mode that PTX has.

A result that fits no float64 is kept as a float64 *rounded to odd*: truncated, with its last bit
set if anything was cut off. Rounding it again, to a format of at most 51 bits of precision and in
any mode, gives what rounding the exact result once would give (Boldo and Melquiond, "Emulation of
FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

MODES = ("rn", "rz", "rm", "rp", "rna")
"""To nearest even, toward zero, down, up, to nearest with ties away from zero."""


@dataclass(frozen=True)
class Format:
    """A binary floating-point format.

    Attributes:
        bits: the width of a code, without padding.
        mantissa: how many bits of the significand are stored.
        emin: the exponent of the smallest normal number.
        largest: the code of the largest finite number.
        infinity: the code of infinity, or None if the format has none.
        nan: the code that the hardware makes for NaN.
    """

    bits: int
    mantissa: int
    emin: int
    largest: int
    infinity: int | None
    nan: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """numpy's type of the codes."""
        return np.dtype(f"u{max(8, 1 << (self.bits - 1).bit_length()) // 8}")

    @property
    def sign(self) -> int:
        """The sign bit."""
        return 1 << self.bits - 1


FORMATS = {
    "f64": Format(64, 52, -1022, 0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000, 0xFFF8000000000000),
    "f32": Format(32, 23, -126, 0x7F7FFFFF, 0x7F800000, 0x7FFFFFFF),
    "f16": Format(16, 10, -14, 0x7BFF, 0x7C00, 0x7FFF),
    "bf16": Format(16, 7, -126, 0x7F7F, 0x7F80, 0x7FFF),
    "tf32": Format(19, 10, -126, 0x3FBFF, 0x3FC00, 0x3FFFF),
    "e4m3": Format(8, 3, -6, 0x7E, None, 0x7F),
    "e5m2": Format(8, 2, -14, 0x7B, 0x7C, 0x7F),
    "e2m1": Format(4, 1, 0, 0x7, None, 0x7),
    "e2m3": Format(6, 3, 0, 0x1F, None, 0x1F),
    "e3m2": Format(6, 2, -2, 0x1F, None, 0x1F),
}
"""The formats without NaN turn it into their largest number (PTX ISA, "cvt", .satfinite)."""


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b rounded, and the error, which is exact (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def to_odd(value: Array, error: Array) -> Array:
    """float64 `value` + `error` (less than an ulp) rounded to odd."""
    bits = np.asarray(value).view(np.int64)
    inexact = (np.abs(error) > 0) & np.isfinite(value) & (bits & 1 == 0)
    away = (error > 0) == (np.asarray(value) > 0)
    return np.asarray((bits + np.where(inexact, np.where(away, 1, -1), 0)).view(np.float64))


def directed(value: Array, error: Array, mode: str) -> Array:
    """float64 `value`, the nearest to the exact `value` + `error`, moved to where `mode` rounds.

    An infinity that only rounding made stays: its error tells nothing.
    """
    value = np.asarray(value)
    if mode == "rn":
        return value
    below, above = error < 0, error > 0
    if mode == "rz":
        down, up = below & (value > 0), above & (value < 0)
    elif mode == "rm":
        down, up = below, np.zeros_like(below)
    else:
        down, up = np.zeros_like(below), above
    moved = np.where(down, np.nextafter(value, -np.inf), value)
    return np.where(up, np.nextafter(value, np.inf), moved)


def _nearest_away(value: Array) -> Array:
    return np.asarray(np.copysign(np.floor(np.abs(value) + 0.5), value))


_TO_INTEGER: dict[str, Callable[[Array], Any]] = {
    "rn": np.rint,
    "rz": np.trunc,
    "rm": np.floor,
    "rp": np.ceil,
    "rna": _nearest_away,
}


def to_integer(value: Array, mode: str) -> Array:
    """The integer that a float becomes, as a float: `mode` is one of MODES."""
    return np.asarray(_TO_INTEGER[mode](value))


def encode(value: Array, to: Format, mode: str = "rn", *, saturate: bool = False) -> Array:
    """The codes of float64 values in a format.

    Args:
        value: exact, or rounded to odd.
        mode: one of MODES.
        saturate: what is too large becomes the largest finite number, infinities included.
    """
    value = np.asarray(value, np.float64)
    magnitude = np.abs(value)
    negative = np.signbit(value)
    finite = np.isfinite(value)
    _, exponent = np.frexp(np.where(finite & (magnitude > 0), magnitude, 2.0**-1022))
    scale = np.maximum(exponent - 1, to.emin)
    if mode in ("rm", "rp"):  # of the signed value: away from zero on one side
        up = negative if mode == "rm" else ~negative
        scaled = np.ldexp(magnitude, to.mantissa - scale)
        number = np.where(up, np.ceil(scaled), np.floor(scaled))
    else:
        number = to_integer(np.ldexp(magnitude, to.mantissa - scale), mode)
        up = np.asarray(mode != "rz")
    number = np.where(finite, number, 0.0)
    # An implicit one is counted in `number`, so that a carry runs into the exponent.
    code = ((scale - to.emin).astype(np.int64) << to.mantissa) + number.astype(np.int64)
    over = code > to.largest
    if saturate or to.infinity is None:
        code = np.where(over | np.isinf(value), to.largest, code)
    else:
        code = np.where(over, np.where(up, to.infinity, to.largest), code)
        code = np.where(np.isinf(value), to.infinity, code)
    code = np.where(negative, code | to.sign, code)
    return np.where(np.isnan(value), to.nan, code).astype(to.dtype)


def decode(code: Array, of: Format) -> Array:
    """The float64 values of a format's codes."""
    code = np.asarray(code).astype(np.int64)
    magnitude = code & (of.sign - 1)
    field, mantissa = magnitude >> of.mantissa, magnitude & ((1 << of.mantissa) - 1)
    significand = np.where(field > 0, mantissa + (1 << of.mantissa), mantissa).astype(np.float64)
    value = np.ldexp(significand, (np.maximum(field, 1) - 1 + of.emin - of.mantissa))
    if of.infinity is not None:
        value = np.where(magnitude == of.infinity, np.inf, value)
    value = np.where(
        magnitude > (of.largest if of.infinity is None else of.infinity), np.nan, value
    )
    return np.where(code & of.sign, -value, value)


# ------------------------------------------------------------------ float64, exactly


def _split(value: Array) -> tuple[Array, Array]:
    """Halves of 26 bits, whose products are exact (Veltkamp)."""
    scaled = value * 134217729.0
    high = scaled - (scaled - value)
    return high, value - high


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """a * b rounded, and the error, which is exact unless a step over- or underflows (Dekker)."""
    product = a * b
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _round_fraction(exact: Fraction, mode: str) -> float:
    """The float64 that an exact number, not zero, becomes."""
    negative, magnitude = exact < 0, abs(exact)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, -1022) - 52)
    number, rest = divmod(magnitude, unit)
    up = {
        "rn": 2 * rest > unit or (2 * rest == unit and number % 2 == 1),
        "rz": False,
        "rm": negative and rest > 0,
        "rp": not negative and rest > 0,
    }[mode]
    rounded = (int(number) + up) * unit
    if rounded >= Fraction(2) ** 1024:
        inward = mode == "rz" or mode == ("rp" if negative else "rm")
        result = float(np.finfo(np.float64).max) if inward else float("inf")
    else:
        result = float(rounded)
    return -result if negative else result


_SAFE_LOW, _SAFE_HIGH = 2.0**-400, 2.0**400


def _safe(*values: Array) -> Array:
    """Where no step of the error-free transformations can over- or underflow."""
    inside: Any = True
    for value in values:
        magnitude = np.abs(value)
        inside = inside & (magnitude > _SAFE_LOW) & (magnitude < _SAFE_HIGH)
    return np.asarray(inside)


def _exactly(
    values: tuple[Array, ...], result: Array, where: Array, mode: str, exact: Any
) -> Array:
    """`result`, with the lanes of `where` computed one by one as fractions."""
    result = np.array(np.broadcast_to(result, where.shape))
    flat = [np.broadcast_to(value, where.shape).reshape(-1) for value in values]
    out = result.reshape(-1)
    for lane in np.flatnonzero(where):
        number = exact(*(Fraction(float(value[lane])) for value in flat))
        if number != 0:
            out[lane] = _round_fraction(number, mode)
        elif mode == "rm":  # a sum of unlike terms
            out[lane] = -0.0
    return result


def fma64(a: Array, b: Array, c: Array, mode: str = "rn") -> Array:
    """a * b + c, rounded once."""
    a, b, c = np.broadcast_arrays(*(np.asarray(value, np.float64) for value in (a, b, c)))
    product, low = two_product(a, b)
    high, rest = two_sum(c, low)
    total, error = two_sum(product, high)
    tail = to_odd(*two_sum(rest, error))
    result, last = two_sum(total, tail)
    plain = np.where(np.isinf(c) & np.isfinite(a) & np.isfinite(b), c, a * b + c)
    trusted = _safe(a, b, product, result) & (_safe(c) | (c == 0))
    result = np.where(trusted, directed(result, last, mode), plain)
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    rare = finite & ~trusted & (a != 0) & (b != 0)
    if rare.any():
        result = _exactly((a, b, c), result, rare, mode, lambda x, y, z: x * y + z)
    if mode == "rm":  # zeros of unlike signs
        unlike = np.signbit(a) ^ np.signbit(b) ^ np.signbit(c)
        zeros = ((a == 0) | (b == 0)) & (product == 0) & (c == 0)
        result = np.where(zeros & unlike, -0.0, result)
    return result


def add64(a: Array, b: Array, mode: str) -> Array:
    """a + b in a directed mode."""
    total, error = two_sum(a, b)
    finite = np.isfinite(a) & np.isfinite(b)
    result = directed(total, np.where(finite, error, 0.0), mode)
    over = np.asarray(finite & ~np.isfinite(total))
    if over.any():
        result = _exactly((a, b), result, over, mode, lambda x, y: x + y)
    if mode == "rm":  # x + (-x)
        result = np.where((total == 0) & finite & (np.signbit(a) != np.signbit(b)), -0.0, result)
    return result


def _by_fraction(result: Array, values: tuple[Array, ...], mode: str, exact: Any) -> Array:
    ordinary: Any = np.ones(np.shape(result), np.bool_)
    for value in values:
        ordinary = ordinary & np.isfinite(value) & (value != 0)
    return _exactly(values, result, np.asarray(ordinary), mode, exact)


def mul64(a: Array, b: Array, mode: str) -> Array:
    """a * b in a directed mode."""
    return _by_fraction(a * b, (a, b), mode, lambda x, y: x * y)


def div64(a: Array, b: Array, mode: str) -> Array:
    """a / b in a directed mode."""
    return _by_fraction(a / b, (a, b), mode, lambda x, y: x / y)


def sqrt64(a: Array, mode: str) -> Array:
    """The square root in a directed mode."""
    root = np.sqrt(a)
    scale = np.where(np.asarray(a) < 2.0**-500, 2.0**300, 1.0)  # keeps the remainder normal
    error = -fma64(root * scale, root * scale, -np.asarray(a) * scale * scale)
    return np.asarray(np.where(np.isfinite(root), directed(root, error, mode), root))
