"""Floating-point numbers as registers hold them, and arithmetic on them that is rounded once.

numpy has no bf16: its values are the codes (uint16). Those of the other types are numpy's floats.
What the hardware makes of NaN is its canonical one: 0x7fffffff for f32, 0x7fff for f16 and bf16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.units import rounding
from triton_ext.emulator.units.rounding import FORMATS, Format, encode, to_odd, two_sum

Array = NDArray[Any]
Function = Callable[..., Any]


@dataclass(frozen=True)
class Kind:
    """A type of floating-point registers; its constants are numpy scalars of the codes' type.

    Attributes:
        format: the bits of a number.
        code: numpy's unsigned type of the codes.
        number: numpy's type of the values.
        sign: the sign bit.
        magnitude: all other bits.
        infinity: the code of +infinity, which is the field of the exponent.
        lowest: the code of the smallest normal number.
        least: that number.
    """

    format: Format
    code: Any
    number: Any
    sign: Any
    magnitude: Any
    infinity: Any
    lowest: Any
    least: float


def _kind(name: str, number: Any) -> Kind:
    format = FORMATS[name]
    code = format.dtype.type
    sign, lowest = code(format.sign), code(1 << format.mantissa)
    least = 2.0**format.emin
    return Kind(format, code, number, sign, ~sign, code(format.infinity), lowest, least)


_NUMBERS = {"f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64}
KINDS = {name: _kind(name, number) for name, number in _NUMBERS.items()}


def bits(value: Any, kind: str) -> Array:
    """The codes of register values."""
    return np.asarray(value).view(KINDS[kind].code)


def from_bits(code: Any, kind: str) -> Array:
    """Register values from their codes."""
    return np.asarray(np.asarray(code).view(KINDS[kind].number))


def _single(value: Any) -> Array:
    """bf16 as float32."""
    return np.asarray((np.asarray(value).astype(np.uint32) << np.uint32(16)).view(np.float32))


def widen(value: Any, kind: str) -> Array:
    """Register values as float64."""
    return (_single(value) if kind == "bf16" else np.asarray(value)).astype(np.float64)


def narrow(value: Array, kind: str, mode: str = "rn") -> Array:
    """float64 values, exact or rounded to odd, as register values of a type."""
    if kind == "f64":
        return value
    if mode != "rn":
        return from_bits(encode(value, FORMATS[kind], mode), kind)
    if kind == "bf16":
        return _to_bf16(value)
    return canonical(np.asarray(value).astype(KINDS[kind].number), kind)


def _to_bf16(value: Array) -> Array:
    """To nearest even, by way of float32, whose ties are looked at again."""
    value = np.asarray(value)
    exact_ties = value.dtype == np.float32
    single = value if exact_ties else value.astype(np.float32)
    code = single.view(np.uint32)
    half = np.uint32(16)
    rounded = (code + np.uint32(0x7FFF) + (code >> half & np.uint32(1))) >> half
    tie = False if exact_ties else (code & np.uint32(0xFFFF)) == np.uint32(0x8000)
    if np.any(tie):
        magnitude, there = np.abs(value), np.abs(single).astype(np.float64)
        rounded = np.where(tie & (magnitude > there), (code >> half) + np.uint32(1), rounded)
        rounded = np.where(tie & (magnitude < there), code >> half, rounded)
    nan = np.isnan(single)
    if np.any(nan):
        rounded = np.where(nan, np.uint32(0x7FFF), rounded)
    return np.asarray(rounded.astype(np.uint16))


def is_nan(value: Any, kind: str) -> Array:
    """Which register values are NaN."""
    if kind == "bf16":
        return np.asarray((np.asarray(value) & np.uint16(0x7FFF)) > np.uint16(0x7F80))
    return np.asarray(np.isnan(value))


def canonical(value: Any, kind: str) -> Array:
    """The hardware's NaN instead of any other (f64 keeps its NaN)."""
    if kind == "f64":
        return np.asarray(value)
    wrong = is_nan(value, kind)
    if not wrong.any():
        return np.asarray(value)
    nan = KINDS[kind].code(FORMATS[kind].nan)
    return from_bits(np.where(wrong, nan, bits(value, kind)), kind)


def quiet(result: Any, *sources: Any) -> Array:
    """f64: the first source that is NaN comes out quiet; if none is, 0xfff8000000000000.

    PTX ISA leaves open which: the order that the callers pass is what an H100 was seen to do.
    """
    result = np.asarray(result)
    wrong = np.isnan(result)
    if not np.any(wrong):
        return np.asarray(result)
    code = np.full(result.shape, np.uint64(FORMATS["f64"].nan))
    for source in reversed(sources):
        raw = np.broadcast_to(np.asarray(source), result.shape)
        code = np.where(np.isnan(raw), raw.view(np.uint64) | np.uint64(1 << 51), code)
    return np.where(wrong, code, result.view(np.uint64)).view(np.float64)


# ---------------------------------------------------------------- what modifiers do to values


def flush(value: Any, kind: str) -> Array:
    """``.ftz``: subnormal numbers become zeros of their sign."""
    code, of = bits(value, kind), KINDS[kind]
    one = of.code(1)
    tiny = (
        code & of.magnitude
    ) - one < of.lowest - one  # a zero wraps around: it is not among them
    if not np.any(tiny):
        return np.asarray(value)
    return from_bits(np.where(tiny, code & of.sign, code), kind)


def saturate(value: Any, kind: str) -> Array:
    """``.sat``: clamped to [+0, 1]; NaN becomes +0."""
    wide = widen(value, kind)
    return narrow(np.where(wide > 0, np.minimum(wide, 1.0), 0.0), kind)


def relu(value: Any, kind: str) -> Array:
    """``.relu``: negative numbers and -0 become +0; NaN becomes the canonical one."""
    code, of = bits(value, kind), KINDS[kind]
    negative = (code & of.sign) != 0
    cleared = np.where(negative & ~is_nan(value, kind), of.code(0), code)
    return canonical(from_bits(cleared, kind), kind)


# ------------------------------------------------------------------------ exact arithmetic


def _add64(a: Array, b: Array) -> Array:
    return to_odd(*two_sum(a, b))


def _fma_wide(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of numbers of at most 24 bits, rounded to odd."""
    return to_odd(*two_sum(a * b, c))


_EXACT: dict[str, tuple[Function, Function]] = {
    # in float64, exact or rounded to odd for operands of at most 24 bits; and in f64, directed
    "add": (_add64, rounding.add64),
    "sub": (lambda a, b: _add64(a, -b), lambda a, b, mode: rounding.add64(a, -b, mode)),
    "mul": (np.multiply, rounding.mul64),
    "fma": (_fma_wide, rounding.fma64),
    "div": (np.divide, rounding.div64),
    "rcp": (lambda a: 1.0 / a, lambda a, mode: rounding.div64(np.ones_like(a), a, mode)),
    "sqrt": (np.sqrt, rounding.sqrt64),
}
"""A quotient or root of 24-bit numbers that is not exact lies further from any 25-bit number than
float64's rounding reaches: its float64 value rounds as the exact one."""

_NATIVE: dict[str, Function] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "sqrt": np.sqrt,
}


def exact(operation: str, kind: str, mode: str = "rn") -> Function:
    """An operation on register values of a type, rounded once.

    Args:
        operation: "add", "sub", "mul", "fma", "div", "rcp" or "sqrt".
        kind: "f16", "bf16", "f32" or "f64".
        mode: "rn", "rz", "rm" or "rp".
    """
    if kind == "f64":
        return _f64(operation, mode)
    if mode == "rn":
        if operation == "fma":
            return _fused_nearest(kind)
        if operation in _NATIVE:
            return _nearest(operation, kind)
    return lambda *values: narrow(_wide(operation, kind, mode, values), kind, mode)


def _f64(operation: str, mode: str) -> Function:
    """An operation on f64, whose last NaN operand comes out; but b before c, and of ``div``, a."""
    _, directed = _EXACT[operation]
    nearest = _NATIVE.get(operation)

    def function(*values: Any) -> Array:
        result = nearest(*values) if mode == "rn" and nearest else directed(*values, mode)
        first = values if operation == "div" else (*values[1:], values[0])
        return quiet(result, *first)

    return function


def _nearest(operation: str, kind: str) -> Function:
    """f32 by numpy's own arithmetic; the halves in float32, whose rounding does no harm to them.

    (24 bits are twice 11, and two more: Figueroa, "When is double rounding innocuous?", 1995. But
    a product of bf16 may fall below what float32 can hold.)
    """
    native = _NATIVE[operation]
    if kind == "f32":
        return lambda *values: canonical(native(*values), "f32")
    if kind == "bf16":
        wide = _single if operation != "mul" else lambda value: widen(value, "bf16")
        return lambda *values: _to_bf16(native(*map(wide, values)))
    single, half = np.float32, np.float16
    return lambda *values: canonical(
        native(*(np.asarray(value).astype(single) for value in values)).astype(half), "f16"
    )


def _fused_nearest(kind: str) -> Function:
    """a * b + c of a type of at most 24 bits, rounded once to nearest even.

    The sum in float64 is rounded, too; that matters only where it lies in the middle between two
    numbers of the type, or below the normal ones: those are done again by rounding to odd.
    """
    of = KINDS[kind]
    cut, least = 52 - of.format.mantissa, of.least
    below, middle = np.uint64((1 << cut) - 1), np.uint64(1 << cut - 1)

    def function(a: Any, b: Any, c: Any) -> Array:
        product, wide = widen(a, kind) * widen(b, kind), widen(c, kind)
        total = np.asarray(product + wide)
        code = total.view(np.uint64)
        magnitude = np.abs(total)
        odd = ((code & below) == middle).any()
        if not odd and magnitude.min() >= least:  # no NaN either
            return _to_bf16(total) if kind == "bf16" else np.asarray(total.astype(of.number))
        if odd or ((magnitude < least) & (magnitude > 0)).any():
            total = to_odd(*two_sum(product, wide))
        return narrow(total, kind)

    return function


def _wide(operation: str, kind: str, mode: str, values: Sequence[Any]) -> Array:
    """The result in float64, exact or rounded to odd."""
    wide = [widen(value, kind) for value in values]
    result = _EXACT[operation][0](*wide)
    if mode == "rm" and operation in ("add", "sub", "fma"):  # an exact zero of unlike terms
        first = wide[0] * wide[1] if operation == "fma" else wide[0]
        last = -wide[-1] if operation == "sub" else wide[-1]
        unlike = np.signbit(first) != np.signbit(last)
        result = np.where((result == 0) & unlike, -0.0, result)
    return np.asarray(result)


def flushing(operation: str, kind: str, mode: str = "rn") -> Function:
    """`exact` with ``.ftz``: a result below the normal numbers is flushed.

    Whether it is below is seen after a rounding as if exponents had no bound (so on an H100).
    """
    compute, of = exact(operation, kind, mode), KINDS[kind]
    one, least = of.code(1), of.least

    def function(*sources: Any) -> Any:
        sources = tuple(flush(source, kind) for source in sources)
        result = compute(*sources)
        if not ((bits(result, kind) & of.magnitude) - one < of.lowest).any():
            return result  # zero, or above the smallest normal number
        edge = np.abs(result) == least
        if edge.any():  # rounded up to the smallest normal number
            scaled = narrow(4 * _wide(operation, kind, mode, sources), kind, mode)
            below = np.abs(scaled) < 4 * least
            result = np.where(edge & below, np.copysign(np.zeros_like(result), result), result)
        return flush(result, kind)

    return function


# -------------------------------------------------------------------------------- order


_EXTREMES: dict[tuple[bool, bool], Function] = {
    (False, False): np.fmin,
    (False, True): np.minimum,
    (True, False): np.fmax,
    (True, True): np.maximum,
}
"""By whether the larger one is wanted, and whether a NaN wins."""


def _order(code: Array, of: Kind) -> Array:
    """Integers that are ordered as the numbers of the codes are, -0 before +0."""
    signed = code.view(f"i{code.itemsize}")
    last = signed.dtype.type(code.itemsize * 8 - 1)
    return np.asarray(signed ^ (signed >> last & of.magnitude.view(signed.dtype)))


def extreme(a: Any, b: Any, kind: str, *, largest: bool, propagate: bool = False) -> Array:
    """The smaller or larger of two, -0 below +0. `propagate`: a NaN wins; else it loses to a
    number."""
    if kind == "f32":
        quick = _EXTREMES[largest, propagate](a, b)
        if np.abs(quick).min() > 0:  # no NaN, and no zero whose sign could matter
            return np.asarray(quick)
    code_a, code_b = bits(a, kind), bits(b, kind)
    first, second = _order(code_a, KINDS[kind]), _order(code_b, KINDS[kind])
    result = np.where(first > second if largest else first < second, code_a, code_b)
    nan_a, nan_b = is_nan(a, kind), is_nan(b, kind)
    if nan_a.any() or nan_b.any():
        if propagate:
            result = np.where(nan_a, code_a, np.where(nan_b, code_b, result))
        else:
            result = np.where(nan_a, code_b, np.where(nan_b, code_a, result))
    number = from_bits(result, kind)
    return quiet(number, b, a) if kind == "f64" else canonical(number, kind)
