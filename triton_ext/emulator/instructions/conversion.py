"""Conversions (PTX ISA 9.7.9, "cvt" and "cvt.pack").

Not modelled: stochastic rounding (.rs: NVIDIA draws the layout of its random bits in figures only).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from triton_ext.emulator.decode.evidence import DOCUMENT, SILICON
from triton_ext.emulator.decode.values import element
from triton_ext.emulator.instructions.elementwise import Array, Function, Row, Variant
from triton_ext.emulator.state.types import DTYPES, bits_of
from triton_ext.emulator.units import floats, rounding
from triton_ext.emulator.units.rounding import FORMATS, encode, two_sum

_TO_INTEGER = {"rni": "rn", "rzi": "rz", "rmi": "rm", "rpi": "rp"}


def _rounding(form: Variant) -> str:
    """The mode of a rounding to a float's precision."""
    return form.one_of(rounding.MODES, "rn")


# ------------------------------------------------------------------------- scalars


def _float_to_float(form: Variant) -> Function:
    to, source, mode = form.type, form.second, _rounding(form)
    integral = _TO_INTEGER.get(form.one_of(_TO_INTEGER))
    ftz = "ftz" in form and to != "f16"  # an H100 flushes nothing on the way to f16

    def function(value: Array) -> Any:
        if ftz and source == "f32":
            value = floats.canonical(floats.flush(value, source), source)
        wide = floats.widen(value, source)
        if integral:
            wide = rounding.to_integer(wide, integral)
        result = floats.narrow(wide, to, mode)
        if (source, to) in _PAYLOADS:
            result = _keep_payload(result, value, source, to)
        if ftz and to == "f32":
            result = floats.flush(result, to)
        return floats.saturate(result, to) if "sat" in form else result

    return function


_PAYLOADS = {
    ("f16", "f64"), ("bf16", "f64"), ("f32", "f64"), ("f64", "f64"),
    ("f64", "f16"), ("f64", "bf16"), ("f64", "f32"), ("bf16", "f32"),
}  # fmt: skip
"""Conversions that keep a NaN's sign and payload on an H100; the others make the canonical NaN."""


def _keep_payload(result: Any, value: Any, source: str, to: str) -> Array:
    """NaN with the sign and the upper bits of the source's mantissa, made quiet."""
    nan = floats.is_nan(value, source)
    if not nan.any():
        return np.asarray(result)
    code = floats.bits(value, source).astype(np.uint64)
    have, want = FORMATS[source], FORMATS[to]
    mantissa = code & np.uint64((1 << have.mantissa) - 1)
    if want.mantissa >= have.mantissa:
        mantissa = mantissa << np.uint64(want.mantissa - have.mantissa)
    else:
        mantissa = mantissa >> np.uint64(have.mantissa - want.mantissa)
    if (source, to) != ("bf16", "f32"):  # a shift, no more
        mantissa = mantissa | np.uint64(1 << want.mantissa - 1)
    sign = np.where(code & np.uint64(have.sign), np.uint64(want.sign), np.uint64(0))
    made = sign | floats.KINDS[to].infinity.astype(np.uint64) | mantissa
    codes = floats.bits(result, to)
    return floats.from_bits(np.where(nan, made.astype(codes.dtype), codes), to)


def _float_to_integer(form: Variant) -> Function:
    """Rounded, and clamped to the range of the type."""
    source, mode, dtype = form.second, _TO_INTEGER[form.one_of(_TO_INTEGER)], form.dtype
    info = np.iinfo(dtype)
    of_nan = 1 << form.bits - 1 if source == "f64" or form.bits == 64 else 0
    nan_code = np.asarray(of_nan, f"u{dtype.itemsize}").view(dtype)

    def function(value: Array) -> Array:
        if "ftz" in form and source == "f32":
            value = floats.flush(value, source)
        number = rounding.to_integer(floats.widen(value, source), mode)
        if dtype.itemsize <= 4:  # the bounds are float64 numbers
            clipped = np.clip(number, float(info.min), float(info.max))
            if clipped.min() >= info.min:  # no NaN
                return np.asarray(clipped.astype(dtype))
        nan = np.isnan(number)
        high = number >= float(info.max)  # of 64 bits: 2**63 or 2**64, which is beyond the range
        low = number <= float(info.min)
        result = np.where(nan | high | low, 0.0, number).astype(dtype)
        result = np.where(high, dtype.type(info.max), np.where(low, dtype.type(info.min), result))
        return np.where(nan, nan_code, result)

    return function


def _exact_sum(value: Array) -> tuple[Array, Array]:
    """An integer as a float64 and the exact rest."""
    if value.dtype.itemsize < 8:
        wide = value.astype(np.float64)
        return wide, np.zeros_like(wide)
    half = value.dtype.type(32)
    high = np.ldexp((value >> half).astype(np.float64), 32)
    low = (value & value.dtype.type(0xFFFFFFFF)).astype(np.float64)
    return two_sum(high, low)


def _integer_to_float(form: Variant) -> Function:
    to, mode, dtype = form.type, _rounding(form), form.dtype
    if mode == "rn" and to in ("f32", "f64") and "sat" not in form:
        return lambda value: np.asarray(value).astype(dtype)

    def function(value: Array) -> Any:
        total, rest = _exact_sum(np.asarray(value))
        if to == "f64":
            result = rounding.directed(total, rest, mode)
        else:
            result = floats.narrow(rounding.to_odd(total, rest), to, mode)
        return floats.saturate(result, to) if "sat" in form else result

    return function


def _integer_to_integer(form: Variant) -> Function:
    dtype, source = form.dtype, DTYPES[form.second]
    if "sat" not in form:
        return lambda value: np.asarray(value).astype(dtype)
    info, of = np.iinfo(dtype), np.iinfo(source)
    low, high = source.type(max(info.min, of.min)), source.type(min(info.max, of.max))
    return lambda value: np.clip(value, low, high).astype(dtype)


# ------------------------------------------- codes of formats, alone or two in a register


def _codes(value: Array, kind: str, form: Variant) -> Array:
    """Codes of a format from float64 values, with the form's rounding and clamping."""
    to = FORMATS[kind]
    code = encode(value, to, _rounding(form), saturate="satfinite" in form)
    if "relu" in form:  # a negative number, and -0, becomes +0; NaN stays
        code = np.where(np.signbit(value) & ~np.isnan(value), to.dtype.type(0), code)
    return code


def _to_code(form: Variant) -> Function:
    """One f32 to f16 or bf16, with the modifiers that only these have."""
    return lambda value: _codes(floats.widen(value, "f32"), form.type, form)


def _to_tf32(form: Variant) -> Function:
    def function(value: Array) -> Array:
        single = _codes(floats.widen(value, "f32"), "tf32", form).astype(np.uint32) << np.uint32(13)
        if "rna" not in form:
            return single
        # An H100 cuts a NaN off here, with no regard to what remains.
        return np.where(np.isnan(value), value.view(np.uint32) & np.uint32(0xFFFFE000), single)

    return function


def _pair(sources: tuple[Array, ...], form: Variant) -> Array:
    """The source's values as floats, side by side; of two f32 operands, the second one first."""
    if form.second != "f32":
        return floats.widen(sources[0], element(form.second))
    pair = np.empty((max(map(np.size, sources)), 2), np.float32)
    pair[:, 1], pair[:, 0] = sources
    return pair.reshape(-1)


def _to_halves(form: Variant) -> Function:
    """``cvt.rn.f16x2.f32 d, a, b``: a becomes the upper half."""
    kind, mode = form.element, _rounding(form)
    if "relu" in form or "satfinite" in form:
        return lambda *sources: _codes(_pair(sources, form), kind, form).astype(np.uint16)
    return lambda *sources: floats.narrow(_pair(sources, form), kind, mode)


def _to_narrow(form: Variant) -> Function:
    """Two values to 8 bits each (4 of e2m1): the first one, or the upper half, above."""
    kind, half = form.type.removesuffix("x2"), form.bits // 2

    def function(*sources: Array) -> Array:
        values = _pair(sources, form)
        code = _scale_codes(values, form) if kind == "ue8m0" else _codes(values, kind, form)
        wide = code.reshape(-1, 2).astype(np.uint16)
        return wide[:, 1] << np.uint16(half) | wide[:, 0]

    return function


def _scale_codes(value: Array, form: Variant) -> Array:
    """ue8m0: the exponent of the magnitude, 2**(code - 127); 255 is NaN.

    Source: CUDA's ``cuda_fp8.hpp``, ``__nv_cvt_bfloat16raw_to_e8m0``.
    """
    code = np.abs(value).astype(np.float32).view(np.uint32)
    exponent = code >> np.uint32(23)
    if "rp" in form:  # 2**-127 has code 0, and is subnormal in f32
        above = (code & np.uint32(0x7FFFFF)) != 0
        up = above & (code > np.uint32(0x00400000)) & (code < np.uint32(0x7F800000))
        exponent = exponent + up.astype(np.uint32)
    if "satfinite" in form:
        number = code <= np.uint32(0x7F800000)
        exponent = np.where(number & (exponent == 255), np.uint32(254), exponent)
    return exponent.astype(np.uint8)


def _from_narrow(form: Variant) -> Function:
    """Two codes to f16 or bf16: each by a table."""
    kind, half = form.second.removesuffix("x2"), form.element
    bits = bits_of(form.second) // 2
    if kind == "ue8m0":
        codes = np.arange(256, dtype=np.uint32)
        table = np.where(codes == 0, 0x40, codes << np.uint32(7))
        table = np.where(codes == 255, 0x7FFF, table).astype(np.uint16)
    else:
        of = FORMATS[kind]
        values = rounding.decode(np.arange(256) & ((1 << of.bits) - 1), of)
        if "relu" in form:
            values = np.where(np.signbit(values) & ~np.isnan(values), 0.0, values)
        table = floats.bits(floats.narrow(values, half), half)
    mask = (1 << bits) - 1

    def function(code: Array) -> Array:
        pair = np.empty((code.size, 2), table.dtype)
        pair[:, 0], pair[:, 1] = table[code & mask], table[code >> bits & mask]
        return pair.reshape(-1)

    return function


def _packed_integers(form: Variant) -> Function:
    """``cvt.pack.sat``: two integers, saturated and put together, below the bits of c."""
    bits, signed = int(form.type[1:]), form.type[0] == "s"
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    mask = np.uint32((1 << bits) - 1)

    def function(a: Array, b: Array, *c: Array) -> Array:
        first, second = (
            np.clip(each, np.int32(low), np.int32(high)).view(np.uint32) & mask for each in (a, b)
        )
        result = first << np.uint32(bits) | second
        return c[0] << np.uint32(2 * bits) | result if c else result

    return function


_RND, _RNI = "rn|rz|rm|rp", "rni|rzi|rmi|rpi"
_INTEGERS = "u8 u16 u32 u64 s8 s16 s32 s64"
_BYTES, _SMALL = "e4m3x2 e5m2x2", "e2m1x2 e2m3x2 e3m2x2"

ROWS = (
    Row(SILICON, "cvt", "sat?", _INTEGERS, "t = s", second=_INTEGERS, make=_integer_to_integer),
    Row(SILICON, "cvt", f"{_RND}? sat?", "f16 bf16 f64", "t = s", second=_INTEGERS,
        make=_integer_to_float),
    Row(SILICON, "cvt", f"{_RND}? ftz? sat?", "f32", "t = s", second=_INTEGERS,
        make=_integer_to_float),
    Row(SILICON, "cvt", f"{_RNI} ftz? sat?", _INTEGERS, "t = s", second="f16 bf16 f32 f64",
        make=_float_to_integer),
    Row(SILICON, "cvt", f"{_RND}|{_RNI}? ftz? sat?", "f16 bf16 f32 f64", "t = s",
        second="f16 bf16 f32 f64", make=_float_to_float),
    Row(SILICON, "cvt", "rn|rz relu? satfinite?", "f16 bf16", "b16 = s", second="f32",
        make=_to_code),
    Row(SILICON, "cvt", "rn|rz|rna relu? satfinite?", "tf32", "b32 = s", second="f32",
        make=_to_tf32),
    Row(SILICON, "cvt", "rn|rz relu? satfinite?", "f16x2 bf16x2", "t = s, s", second="f32",
        make=_to_halves),
    Row(SILICON, "cvt", "rn satfinite relu?", _BYTES, "t = s, s", second="f32", make=_to_narrow),
    Row(DOCUMENT, "cvt", "rn satfinite relu?", _SMALL, "t = s, s", second="f32", make=_to_narrow),
    Row(SILICON, "cvt", "rn satfinite relu?", _BYTES, "t = s", second="f16x2", make=_to_narrow),
    Row(DOCUMENT, "cvt", "rn satfinite relu?", _BYTES, "t = s", second="bf16x2", make=_to_narrow),
    Row(DOCUMENT, "cvt", "rn satfinite relu?", _SMALL, "t = s", second="f16x2 bf16x2",
        make=_to_narrow),
    Row(DOCUMENT, "cvt", "rz|rp satfinite?", "ue8m0x2", "t = s, s", second="f32", make=_to_narrow),
    Row(DOCUMENT, "cvt", "rz|rp satfinite?", "ue8m0x2", "t = s", second="bf16x2", make=_to_narrow),
    Row(SILICON, "cvt", "rn relu?", "f16x2", "t = s", second=_BYTES, make=_from_narrow),
    Row(DOCUMENT, "cvt", "rn relu?", "bf16x2", "t = s", second=_BYTES, make=_from_narrow),
    Row(DOCUMENT, "cvt", "rn relu?", "f16x2 bf16x2", "t = s", second=_SMALL, make=_from_narrow),
    Row(DOCUMENT, "cvt", "rn satfinite relu?", "bf16x2", "t = s", second=f"e4m3x2 {_SMALL}",
        make=_from_narrow),  # they have no infinity that .satfinite would change
    Row(DOCUMENT, "cvt", "rn", "bf16x2", "t = s", second="ue8m0x2", make=_from_narrow),
    Row(SILICON, "cvt.pack", "sat", "u16 s16", "b32 = s, s", second="s32", make=_packed_integers),
    Row(SILICON, "cvt.pack", "sat b32", "u2 s2 u4 s4 u8 s8", "b32 = s, s, b32", second="s32",
        make=_packed_integers),
)  # fmt: skip
