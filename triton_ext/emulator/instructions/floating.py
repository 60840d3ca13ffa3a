"""Floating-point arithmetic (PTX ISA, "Floating Point Instructions" and "Half Precision ...").

Every operation but the approximations is rounded once, from its exact result. What the hardware
makes of NaN is its canonical one: 0x7fffffff for f32, 0x7fff for f16 and bf16.

The approximations (``.approx``, ``div.full``, ``tanh``, ``sin`` ...) are computed in float64 and
rounded: the hardware's lie within the error bounds that PTX ISA states, but are other bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.operands import Operands
from triton_ext.emulator.decode.step import Run
from triton_ext.emulator.errors import UnsupportedInstruction
from triton_ext.emulator.instructions.common import data_type, element, elementwise
from triton_ext.emulator.units import rounding
from triton_ext.emulator.units.rounding import FORMATS, encode, to_odd, two_sum
from triton_ext.ptx.parse import Instruction

Array = NDArray[Any]
Function = Callable[..., Any]

ROUNDINGS = ("rn", "rz", "rm", "rp")

_UNSIGNED: dict[str, Any] = {
    "f16": np.uint16,
    "bf16": np.uint16,
    "f32": np.uint32,
    "f64": np.uint64,
}
_SIGNED: dict[str, Any] = {"f16": np.int16, "bf16": np.int16, "f32": np.int32, "f64": np.int64}
_FLOAT: dict[str, Any] = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
_EXPONENT = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000, "f64": 0x7FF0000000000000}
_CANONICAL = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF}
_QUIET = np.uint64(1 << 51)


# --------------------------------------------------------- values as they lie in registers


def bits(value: Any, kind: str) -> Array:
    """The codes of register values of a type; bf16 is bits already."""
    return np.asarray(value).view(_UNSIGNED[kind])


def from_bits(code: Any, kind: str) -> Array:
    """Register values from their codes."""
    code = np.asarray(code)
    return code if kind == "bf16" else np.asarray(code.view(_FLOAT[kind]))


def widen(value: Any, kind: str) -> Array:
    """Register values as float64."""
    if kind == "bf16":
        wide = np.asarray(value).astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32).astype(np.float64)
    return np.asarray(value).astype(np.float64)


def narrow(value: Array, kind: str, mode: str = "rn") -> Array:
    """float64 values, exact or rounded to odd, as register values of a type."""
    if kind == "f64":
        return value
    if mode == "rn" and kind != "bf16":
        return canonical(np.asarray(value).astype(_FLOAT[kind]), kind)
    if mode == "rn":
        return _to_bf16(value)
    return from_bits(encode(value, FORMATS[kind], mode), kind)


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
    if kind == "bf16":
        return np.asarray((np.asarray(value) & np.uint16(0x7FFF)) > np.uint16(0x7F80))
    return np.asarray(np.isnan(value))


def canonical(value: Any, kind: str) -> Array:
    """The hardware's NaN in place of any other (f64 keeps its NaN)."""
    if kind == "f64":
        return np.asarray(value)
    wrong = is_nan(value, kind)
    if not wrong.any():
        return np.asarray(value)
    unsigned = _UNSIGNED[kind]
    return from_bits(np.where(wrong, unsigned(_CANONICAL[kind]), bits(value, kind)), kind)


def flush(value: Any, kind: str) -> Array:
    """``.ftz``: subnormal numbers become zeros of their sign."""
    code, unsigned = bits(value, kind), _UNSIGNED[kind]
    top = unsigned(1 << np.dtype(unsigned).itemsize * 8 - 1)
    least = unsigned(_EXPONENT[kind] & -_EXPONENT[kind])  # of the normal numbers
    one = unsigned(1)
    tiny = (code & ~top) - one < least - one  # a zero wraps around: it is not among them
    if not np.any(tiny):
        return np.asarray(value)
    return from_bits(np.where(tiny, code & top, code), kind)


def saturate(value: Any, kind: str) -> Array:
    """``.sat``: clamped to [+0, 1]; NaN becomes +0."""
    wide = widen(value, kind)
    clamped = np.where(wide > 0, np.minimum(wide, 1.0), 0.0)
    return narrow(clamped, kind)


def order(value: Any, kind: str) -> Array:
    """Integers that are ordered as the numbers are, -0 before +0."""
    signed = _SIGNED[kind]
    code = np.asarray(value).view(signed)
    width = np.dtype(signed).itemsize * 8
    mask = signed((1 << width - 1) - 1)
    return np.asarray(code ^ (code >> signed(width - 1) & mask))


def _with(function: Function, kind: str, *, ftz: bool, sat: bool) -> Function:
    """`function` with its modifiers around it."""
    if not ftz and not sat:
        return function

    def wrapped(*sources: Any) -> Any:
        if ftz:
            sources = tuple(flush(source, kind) for source in sources)
        result = function(*sources)
        if ftz:
            result = flush(result, kind)
        return saturate(result, kind) if sat else result

    return wrapped


# ------------------------------------------------------------------------ exact arithmetic


def quiet(result: Any, *sources: Any) -> Array:
    """f64: the first source that is NaN comes out quiet; if none is, 0xfff8000000000000.

    PTX ISA leaves open which: the order that the decoders pass is what an H100 was seen to do.
    """
    result = np.asarray(result)
    wrong = np.isnan(result)
    if not np.any(wrong):
        return np.asarray(result)
    code = np.full(result.shape, np.uint64(0xFFF8000000000000))
    for source in reversed(sources):
        raw = np.broadcast_to(np.asarray(source), result.shape)
        code = np.where(np.isnan(raw), raw.view(np.uint64) | _QUIET, code)
    return np.where(wrong, code, result.view(np.uint64)).view(np.float64)


def _f64(operation: str, mode: str) -> Function:
    """An operation on f64, whose last NaN operand comes out; but b before c, and of ``div``, a."""
    _, directed = _EXACT[operation]
    nearest = _NATIVE.get(operation)

    def function(*values: Any) -> Array:
        result = nearest(*values) if mode == "rn" and nearest else directed(*values, mode)
        first = values if operation == "div" else (*values[1:], values[0])
        return quiet(result, *first)

    return function


def _add64(a: Array, b: Array) -> Array:
    return to_odd(*two_sum(a, b))


def _fma_wide(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of numbers of at most 24 bits, rounded to odd."""
    return to_odd(*two_sum(a * b, c))


_MANTISSA = {"f16": 10, "bf16": 7, "f32": 23}
_LEAST = {"f16": 2.0**-14, "bf16": 2.0**-126, "f32": 2.0**-126}


def fused_nearest(kind: str) -> Function:
    """a * b + c of a type of at most 24 bits, rounded once to nearest even.

    The sum in float64 is rounded, too; that matters only where it lies in the middle between two
    numbers of the type, or below the normal ones: those are done again by rounding to odd.
    """
    cut = 52 - _MANTISSA[kind]
    below, middle = np.uint64((1 << cut) - 1), np.uint64(1 << cut - 1)
    least = _LEAST[kind]

    def function(a: Any, b: Any, c: Any) -> Array:
        product, wide = widen(a, kind) * widen(b, kind), widen(c, kind)
        total = np.asarray(product + wide)
        code = total.view(np.uint64)
        magnitude = np.abs(total)
        odd = ((code & below) == middle).any()
        if not odd and magnitude.min() >= least:  # no NaN either
            return _to_bf16(total) if kind == "bf16" else np.asarray(total.astype(_FLOAT[kind]))
        if odd or ((magnitude < least) & (magnitude > 0)).any():
            total = to_odd(*two_sum(product, wide))
        return narrow(total, kind)

    return function


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
    """An operation of `_EXACT` on register values of a type, rounded once."""
    if kind == "f64":
        return _f64(operation, mode)
    if mode == "rn":
        if operation == "fma":
            return fused_nearest(kind)
        if operation in _NATIVE:
            return _nearest(_NATIVE[operation], kind, single=kind != "bf16" or operation != "mul")
    return lambda *values: narrow(_wide(operation, kind, mode, values), kind, mode)


def _nearest(native: Function, kind: str, *, single: bool) -> Function:
    """f32 by numpy's own arithmetic; the halves in float32, whose rounding does no harm to them.

    (24 bits are twice 11, and two more: Figueroa, "When is double rounding innocuous?", 1995. But
    a product of bf16 may fall below what float32 can hold.)

    Args:
        single: whether float32 will do; else float64.
    """
    if kind == "f32":
        return lambda *values: canonical(native(*values), "f32")
    if kind == "f16":
        single_precision = np.float32
        return lambda *values: canonical(
            native(*(np.asarray(value).astype(single_precision) for value in values)).astype(
                np.float16
            ),
            "f16",
        )
    if single:
        return lambda *values: _to_bf16(native(*map(_single, values)))
    return lambda *values: _to_bf16(native(*(widen(value, kind) for value in values)))


def _single(value: Any) -> Array:
    """bf16 as float32."""
    return np.asarray((np.asarray(value).astype(np.uint32) << np.uint32(16)).view(np.float32))


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


def flushing(operation: str, kind: str, mode: str) -> Function:
    """An operation with ``.ftz``: a result below the normal numbers is flushed.

    Whether it is below is seen after a rounding as if exponents had no bound (so on an H100).
    """
    compute, least = exact(operation, kind, mode), _LEAST[kind]
    unsigned = _UNSIGNED[kind]
    one, lowest = unsigned(1), unsigned(_EXPONENT[kind] & -_EXPONENT[kind])
    magnitude = ~unsigned(1 << np.dtype(unsigned).itemsize * 8 - 1)

    def function(*sources: Any) -> Any:
        sources = tuple(flush(source, kind) for source in sources)
        result = compute(*sources)
        if not ((bits(result, kind) & magnitude) - one < lowest).any():
            return result  # zero, or above the smallest normal number
        edge = np.abs(result) == least
        if edge.any():  # rounded up to the smallest normal number
            scaled = narrow(4 * _wide(operation, kind, mode, sources), kind, mode)
            below = np.abs(scaled) < 4 * least
            result = np.where(edge & below, np.copysign(np.zeros_like(result), result), result)
        return flush(result, kind)

    return function


def _rounding(modifiers: Modifiers) -> str:
    return modifiers.one_of(ROUNDINGS, "rn")


def binary(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``add``, ``sub``, ``mul`` of floats; also of f32 and a half ("Mixed Precision ...")."""
    mode = _rounding(modifiers)
    ftz, sat = modifiers.flag("ftz"), modifiers.flag("sat")
    type_name = data_type(at, modifiers)
    operation = at.opcode.split(".")[0]
    second = modifiers.one_of(("f16", "bf16"))
    if second:
        return _mixed(at, operands, operation, type_name, second, mode, sat=sat)
    kind = element(type_name)
    _check(at, kind, mode, ftz=ftz, sat=sat)
    function = _modified(operation, kind, mode, ftz=ftz, sat=sat)
    return elementwise(at, operands, type_name, [type_name] * 2, function)


def _check(at: Instruction, kind: str, mode: str, *, ftz: bool, sat: bool) -> None:
    """Refuse what the types do not have: directed rounding of halves; .ftz or .sat of the others.

    (PTX ISA, "add", "mul", "fma" of each type.)
    """
    if kind in ("f16", "bf16") and mode != "rn":
        raise UnsupportedInstruction(f".{mode} does not go with .{kind}", at)
    if kind in ("bf16", "f64") and (ftz or sat):
        raise UnsupportedInstruction(f".ftz and .sat do not go with .{kind}", at)


def _modified(operation: str, kind: str, mode: str, *, ftz: bool, sat: bool = False) -> Function:
    function = flushing(operation, kind, mode) if ftz else exact(operation, kind, mode)
    return _with(function, kind, ftz=False, sat=sat)


def _mixed(
    at: Instruction,
    operands: Operands,
    operation: str,
    type_name: str,
    narrow_type: str,
    mode: str,
    *,
    sat: bool,
) -> Run:
    """f32 results of half-precision factors and an f32 addend, which comes last."""
    if type_name != "f32" or operation == "mul":
        raise UnsupportedInstruction("mixed precision is for add, sub and fma of f32", at)
    compute = exact(operation, "f32", mode)

    def function(*sources: Any) -> Any:
        factors = [widen(each, narrow_type).astype(np.float32) for each in sources[:-1]]
        result = compute(*factors, sources[-1])
        return saturate(result, "f32") if sat else result

    types = [narrow_type] * (2 if operation == "fma" else 1) + ["f32"]
    return elementwise(at, operands, "f32", types, function)


@instruction("fma")
def fused(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    mode = _rounding(modifiers)
    ftz, sat, relu = (modifiers.flag(name) for name in ("ftz", "sat", "relu"))
    saturating = modifiers.flag("oob")
    if saturating:
        raise UnsupportedInstruction("fma.oob is not modelled", at)
    type_name = data_type(at, modifiers)
    second = modifiers.one_of(("f16", "bf16"))
    if second:
        return _mixed(at, operands, "fma", type_name, second, mode, sat=sat)
    kind = element(type_name)
    _check(at, kind, mode, ftz=ftz, sat=sat)
    function = _modified("fma", kind, mode, ftz=ftz, sat=sat)
    if relu:
        unclamped = function

        def function(*sources: Any) -> Any:
            return _relu(unclamped(*sources), kind)

    return elementwise(at, operands, type_name, [type_name] * 3, function)


def _relu(value: Any, kind: str) -> Array:
    """Negative numbers and -0 become +0; NaN stays the canonical one."""
    code, unsigned = bits(value, kind), _UNSIGNED[kind]
    top = unsigned(1 << np.dtype(unsigned).itemsize * 8 - 1)
    negative = (code & top) != 0
    cleared = np.where(negative & ~is_nan(value, kind), unsigned(0), code)
    return canonical(from_bits(cleared, kind), kind)


def multiply_add(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``mad`` of floats is ``fma`` (PTX ISA, "mad", sm_20 and later)."""
    return fused(at, modifiers, operands)


def divide(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    mode = modifiers.one_of((*ROUNDINGS, "approx", "full"))
    ftz = modifiers.flag("ftz")
    type_name = modifiers.type()
    if mode == "approx":
        function = _with(_approximate_quotient, type_name, ftz=ftz, sat=False)
    else:
        _check(at, type_name, "rn", ftz=ftz, sat=False)
        function = _modified("div", type_name, "rn" if mode in ("full", "") else mode, ftz=ftz)
    return elementwise(at, operands, type_name, [type_name] * 2, function)


def _approximate_quotient(a: Array, b: Array) -> Array:
    """``div.approx``: a * (1 / b); of b above 2**126 the reciprocal is 0 (PTX ISA, "div")."""
    large = (np.abs(b) > np.float32(2.0**126)) & ~np.isnan(b)
    quotient = widen(a, "f32") / widen(b, "f32")
    quotient = np.where(large, widen(a, "f32") * np.copysign(0.0, b), quotient)
    return narrow(quotient, "f32")


@instruction("rcp", "sqrt")
def root(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``rcp``, ``sqrt``: exact with a rounding mode; f32's .approx is rounded here, too."""
    operation = at.opcode.split(".")[0]
    mode = modifiers.one_of((*ROUNDINGS, "approx"), "rn")
    ftz = modifiers.flag("ftz")
    type_name = modifiers.type()
    if mode == "approx" and type_name == "f64":
        return _coarse64(at, operands, lambda a: 1.0 / a)
    _check(at, type_name, "rn", ftz=ftz, sat=False)
    function = _modified(operation, type_name, "rn" if mode == "approx" else mode, ftz=ftz)
    return elementwise(at, operands, type_name, [type_name], function)


@instruction("rsqrt")
def inverse_root(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    modifiers.flag("approx")
    ftz = modifiers.flag("ftz")
    type_name = modifiers.type()
    if type_name == "f64" and ftz:
        return _coarse64(at, operands, lambda a: 1.0 / np.sqrt(a))

    def function(a: Array) -> Array:
        return narrow(1.0 / np.sqrt(widen(a, type_name)), type_name)

    return elementwise(
        at, operands, type_name, [type_name], _with(function, type_name, ftz=ftz, sat=False)
    )


def _coarse64(at: Instruction, operands: Operands, compute: Function) -> Run:
    """``.approx.ftz.f64``: of the upper 32 bits of the operand; the lower ones of the result are 0.

    NaN becomes 0x7fffffff00000000 (PTX ISA, "rcp.approx.ftz.f64").
    """
    upper = np.uint64(0xFFFFFFFF00000000)

    def function(a: Array) -> Array:
        source = flush((np.asarray(a).view(np.uint64) & upper).view(np.float64), "f64")
        result = flush(compute(source), "f64")
        code = np.asarray(result).view(np.uint64) + np.uint64(0x80000000)
        code = np.where(np.isfinite(result), code, np.asarray(result).view(np.uint64)) & upper
        return np.where(np.isnan(result), np.uint64(0x7FFFFFFF00000000), code).view(np.float64)

    return elementwise(at, operands, "f64", ["f64"], function)


_APPROXIMATE: dict[str, Function] = {
    "sin": np.sin,
    "cos": np.cos,
    "ex2": np.exp2,
    "lg2": np.log2,
    "tanh": np.tanh,
}


@instruction(*_APPROXIMATE)
def transcendental(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    compute = _APPROXIMATE[at.opcode.split(".")[0]]
    modifiers.flag("approx")
    ftz = modifiers.flag("ftz")
    type_name = data_type(at, modifiers)
    kind = element(type_name)

    def function(a: Array) -> Array:
        return narrow(compute(widen(a, kind)), kind)

    return elementwise(
        at, operands, type_name, [type_name], _with(function, kind, ftz=ftz, sat=False)
    )


# ------------------------------------------------------------------- sign and order


def absolute(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    return _sign_operation(at, modifiers, operands, clear=True)


def negate(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    return _sign_operation(at, modifiers, operands, clear=False)


def _sign_operation(
    at: Instruction, modifiers: Modifiers, operands: Operands, *, clear: bool
) -> Run:
    ftz = modifiers.flag("ftz")
    type_name = data_type(at, modifiers)
    kind = element(type_name)
    unsigned = _UNSIGNED[kind]
    top = unsigned(1 << np.dtype(unsigned).itemsize * 8 - 1)

    def function(a: Array) -> Array:
        code = bits(a, kind)
        changed = from_bits(code & ~top if clear else code ^ top, kind)
        return quiet(changed, a) if kind == "f64" else canonical(changed, kind)

    return elementwise(
        at, operands, type_name, [type_name], _with(function, kind, ftz=ftz, sat=False)
    )


@instruction("copysign")
def copy_sign(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``copysign``: the magnitude of b with the sign of a."""
    type_name = modifiers.type()
    unsigned = _UNSIGNED[type_name]
    top = unsigned(1 << np.dtype(unsigned).itemsize * 8 - 1)

    def function(a: Array, b: Array) -> Array:
        return from_bits(bits(a, type_name) & top | bits(b, type_name) & ~top, type_name)

    return elementwise(at, operands, type_name, [type_name] * 2, function)


_EXTREMES: dict[tuple[bool, bool], Function] = {
    (False, False): np.fmin,
    (False, True): np.minimum,
    (True, False): np.fmax,
    (True, True): np.maximum,
}
"""By whether the larger one is wanted, and whether a NaN wins."""


def extreme(a: Any, b: Any, kind: str, *, largest: bool, propagate: bool) -> Array:
    """The smaller or larger of two, -0 below +0.

    Args:
        propagate: a NaN wins; else it loses to a number.
    """
    if kind == "f32":
        quick = _EXTREMES[largest, propagate](a, b)
        if np.abs(quick).min() > 0:  # no NaN, and no zero whose sign could matter
            return np.asarray(quick)
    first, second = order(a, kind), order(b, kind)
    chosen = first > second if largest else first < second
    code_a, code_b = bits(a, kind), bits(b, kind)
    result = np.where(chosen, code_a, code_b)
    nan_a, nan_b = is_nan(a, kind), is_nan(b, kind)
    if nan_a.any() or nan_b.any():
        if propagate:
            result = np.where(nan_a, code_a, np.where(nan_b, code_b, result))
        else:
            result = np.where(nan_a, code_b, np.where(nan_b, code_a, result))
    chosen_number = from_bits(result, kind)
    return quiet(chosen_number, b, a) if kind == "f64" else canonical(chosen_number, kind)


def extremum(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``min``, ``max`` of two, or of three on sm_100."""
    largest = at.opcode.startswith("max")
    ftz, propagate = modifiers.flag("ftz"), modifiers.flag("NaN")
    xorsign, magnitudes = modifiers.flag("xorsign"), modifiers.flag("abs")
    type_name = data_type(at, modifiers)
    kind = element(type_name)
    unsigned = _UNSIGNED[kind]
    top = unsigned(1 << np.dtype(unsigned).itemsize * 8 - 1)

    def function(*sources: Any) -> Array:
        sign: Any = unsigned(0)
        if xorsign:
            sign = (bits(sources[0], kind) ^ bits(sources[1], kind)) & top
        if magnitudes:
            sources = tuple(from_bits(bits(each, kind) & ~top, kind) for each in sources)
        result = sources[0]
        for other in sources[1:]:
            result = extreme(result, other, kind, largest=largest, propagate=propagate)
        if xorsign:
            result = from_bits(np.where(is_nan(result, kind), bits(result, kind),
                                        bits(result, kind) | sign), kind)  # fmt: skip
        return np.asarray(result)

    return elementwise(
        at,
        operands,
        type_name,
        [type_name] * (len(at.operands) - 1),
        _with(function, kind, ftz=ftz, sat=False),
    )


@instruction("testp")
def test_property(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    what = modifiers.one_of(("finite", "infinite", "number", "notanumber", "normal", "subnormal"))
    type_name = modifiers.type()
    unsigned = _UNSIGNED[type_name]
    field = unsigned(_EXPONENT[type_name])
    mantissa = unsigned((1 << 23) - 1 if type_name == "f32" else (1 << 52) - 1)
    tests: dict[str, Function] = {
        "finite": lambda e, m: e != field,
        "infinite": lambda e, m: (e == field) & (m == 0),
        "number": lambda e, m: (e != field) | (m == 0),
        "notanumber": lambda e, m: (e == field) & (m != 0),
        "normal": lambda e, m: (e != field) & ((e != 0) | (m == 0)),  # zeros, too
        "subnormal": lambda e, m: (e == 0) & (m != 0),
    }
    test = tests[what]

    def function(a: Array) -> Any:
        code = bits(a, type_name)
        return test(code & field, code & mantissa)

    return elementwise(at, operands, "pred", [type_name], function)
