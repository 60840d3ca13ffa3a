"""Floating-point arithmetic (PTX ISA 9.7.3 to 9.7.5).

Every operation but the approximations is rounded once, from its exact result: see `floats`.

The approximations (``.approx``, ``div.full``, ``tanh``, ``sin`` ...) are computed in float64 and
rounded: the hardware's lie within the error bounds that PTX ISA states, but are other bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from triton_ext.emulator.decode.evidence import BOUNDED, DOCUMENT, SILICON
from triton_ext.emulator.instructions.elementwise import Array, Function, Row, Variant
from triton_ext.emulator.units import floats
from triton_ext.emulator.units.floats import KINDS, bits, from_bits, narrow, widen

ROUNDINGS = ("rn", "rz", "rm", "rp")


def _modified(function: Function, form: Variant) -> Function:
    """A function whose operands and results are flushed with ``.ftz``, and clamped by ``.sat``."""
    kind = form.element
    if "ftz" in form:
        plain = function

        def function(*sources: Any) -> Any:
            return floats.flush(plain(*(floats.flush(each, kind) for each in sources)), kind)

    return _clamped(function, form)


def _clamped(function: Function, form: Variant) -> Function:
    """A function whose results ``.sat`` or ``.relu`` clamps."""
    kind = form.element
    for name, clamp in (("sat", floats.saturate), ("relu", floats.relu)):
        if name in form:
            return lambda *sources: clamp(function(*sources), kind)
    return function


def _rounded(form: Variant) -> Function:
    """The operation that the opcode names, rounded once; f32's ``.approx`` and ``.full``, too."""
    operation = "fma" if form.opcode == "mad" else form.opcode  # PTX ISA, "mad": sm_20 and later
    compute = floats.flushing if "ftz" in form else floats.exact
    return _clamped(compute(operation, form.element, form.one_of(ROUNDINGS, "rn")), form)


def _mixed(form: Variant) -> Function:
    """f32 results of half-precision factors and an f32 addend, which comes last."""
    compute = floats.exact(form.opcode, "f32", form.one_of(ROUNDINGS, "rn"))

    def function(*sources: Any) -> Any:
        factors = [widen(each, form.second).astype(np.float32) for each in sources[:-1]]
        return compute(*factors, sources[-1])

    return _clamped(function, form)


# ------------------------------------------------------------------------ approximations


def _approximate_quotient(a: Array, b: Array) -> Array:
    """``div.approx``: a * (1 / b); of b above 2**126 the reciprocal is 0 (PTX ISA, "div")."""
    large = (np.abs(b) > np.float32(2.0**126)) & ~np.isnan(b)
    quotient = widen(a, "f32") / widen(b, "f32")
    quotient = np.where(large, widen(a, "f32") * np.copysign(0.0, b), quotient)
    return narrow(quotient, "f32")


_APPROXIMATE: dict[str, Function] = {
    "rcp": lambda a: 1.0 / a,
    "rsqrt": lambda a: 1.0 / np.sqrt(a),
    "sin": np.sin,
    "cos": np.cos,
    "ex2": np.exp2,
    "lg2": np.log2,
    "tanh": np.tanh,
}


def _approximate(form: Variant) -> Function:
    compute, kind = _APPROXIMATE[form.opcode], form.element
    return _modified(lambda a: narrow(compute(widen(a, kind)), kind), form)


def _coarse64(form: Variant) -> Function:
    """``.approx.ftz.f64``: reads the operand's upper 32 bits; the result's lower ones are 0.

    NaN becomes 0x7fffffff00000000 (PTX ISA, "rcp.approx.ftz.f64").
    """
    upper, compute = np.uint64(0xFFFFFFFF00000000), _APPROXIMATE[form.opcode]

    def function(a: Array) -> Array:
        source = floats.flush(from_bits(bits(a, "f64") & upper, "f64"), "f64")
        result = floats.flush(compute(source), "f64")
        code = bits(result, "f64")
        code = np.where(np.isfinite(result), code + np.uint64(0x80000000), code) & upper
        return from_bits(np.where(np.isnan(result), np.uint64(0x7FFFFFFF00000000), code), "f64")

    return function


# ------------------------------------------------------------------------- sign and order


def _sign(form: Variant) -> Function:
    """``abs`` clears the sign, ``neg`` turns it; NaN becomes the canonical one, or quiet in f64."""
    kind, of = form.element, KINDS[form.element]

    def function(a: Array) -> Array:
        code = bits(a, kind)
        changed = from_bits(code & of.magnitude if form.opcode == "abs" else code ^ of.sign, kind)
        return floats.quiet(changed, a) if kind == "f64" else floats.canonical(changed, kind)

    return _modified(function, form)


def _copysign(form: Variant) -> Function:
    """The magnitude of b with the sign of a."""
    kind, of = form.type, KINDS[form.type]
    return lambda a, b: from_bits(bits(a, kind) & of.sign | bits(b, kind) & of.magnitude, kind)


def _extremum(form: Variant) -> Function:
    """``min``, ``max`` of two or three; of magnitudes, and with the sign of a product."""
    kind, of = form.element, KINDS[form.element]
    largest, propagate = form.opcode == "max", "NaN" in form

    def function(*sources: Any) -> Array:
        values = sources
        if "abs" in form:
            values = tuple(from_bits(bits(each, kind) & of.magnitude, kind) for each in sources)
        result = values[0]
        for other in values[1:]:
            result = floats.extreme(result, other, kind, largest=largest, propagate=propagate)
        if "xorsign" in form:
            sign = (bits(sources[0], kind) ^ bits(sources[1], kind)) & of.sign
            code = bits(result, kind)
            result = from_bits(np.where(floats.is_nan(result, kind), code, code | sign), kind)
        return np.asarray(result)

    return _modified(function, form)


def _property(form: Variant) -> Function:
    of = KINDS[form.type]
    field, below = of.infinity, of.lowest - of.code(1)
    tests: dict[str, Function] = {
        "finite": lambda e, m: e != field,
        "infinite": lambda e, m: (e == field) & (m == 0),
        "number": lambda e, m: (e != field) | (m == 0),
        "notanumber": lambda e, m: (e == field) & (m != 0),
        "normal": lambda e, m: (e != field) & ((e != 0) | (m == 0)),  # zeros, too
        "subnormal": lambda e, m: (e == 0) & (m != 0),
    }
    test = tests[form.one_of(tests)]
    return lambda a: test(bits(a, form.type) & field, bits(a, form.type) & below)


_RND = "rn|rz|rm|rp"
_PROPERTY = "finite|infinite|number|notanumber|normal|subnormal"
_EXTREME = "NaN? xorsign.abs?"

ROWS = (
    # PTX ISA 9.7.3, "Floating Point Instructions"
    Row(SILICON, "testp", _PROPERTY, "f32 f64", "pred = t", make=_property),
    Row(SILICON, "copysign", "", "f32 f64", "t = t, t", make=_copysign),
    Row(SILICON, "add sub mul", f"{_RND}? ftz? sat?", "f32", "t = t, t", make=_rounded),
    Row(DOCUMENT, "add sub mul", f"{_RND}? ftz?", "f32x2", "t = t, t", make=_rounded),
    Row(SILICON, "add sub mul", f"{_RND}?", "f64", "t = t, t", make=_rounded),
    Row(SILICON, "fma mad", f"{_RND} ftz? sat?", "f32", "t = t, t, t", make=_rounded),
    Row(DOCUMENT, "fma", f"{_RND} ftz?", "f32x2", "t = t, t, t", make=_rounded),
    Row(SILICON, "fma", _RND, "f64", "t = t, t, t", make=_rounded),
    Row(DOCUMENT, "mad", _RND, "f64", "t = t, t, t", make=_rounded),
    Row(BOUNDED, "div", "approx ftz?", "f32", "t = t, t",
        make=lambda form: _modified(_approximate_quotient, form)),
    Row(BOUNDED, "div", "full ftz?", "f32", "t = t, t", make=_rounded),
    Row(SILICON, "div", f"{_RND} ftz?", "f32", "t = t, t", make=_rounded),
    Row(SILICON, "div", _RND, "f64", "t = t, t", make=_rounded),
    Row(BOUNDED, "rcp sqrt", "approx ftz?", "f32", "t = t", make=_rounded),
    Row(SILICON, "rcp sqrt", f"{_RND} ftz?", "f32", "t = t", make=_rounded),
    Row(SILICON, "rcp sqrt", _RND, "f64", "t = t", make=_rounded),
    Row(BOUNDED, "rcp rsqrt", "approx ftz", "f64", "t = t", make=_coarse64),
    Row(DOCUMENT, "rsqrt", "approx", "f64", "t = t", make=_approximate),
    Row(BOUNDED, "rsqrt sin cos lg2 ex2", "approx ftz?", "f32", "t = t", make=_approximate),
    Row(BOUNDED, "tanh", "approx", "f32", "t = t", make=_approximate),
    Row(SILICON, "abs neg", "ftz?", "f32", "t = t", make=_sign),
    Row(SILICON, "abs neg", "", "f64", "t = t", make=_sign),
    Row(SILICON, "min max", f"ftz? {_EXTREME}", "f32", "t = t, t", make=_extremum),
    Row(DOCUMENT, "min max", "ftz? NaN? abs?", "f32", "t = t, t, t", make=_extremum),
    Row(SILICON, "min max", "", "f64", "t = t, t", make=_extremum),
    # PTX ISA 9.7.4, "Half Precision Floating Point Instructions"
    Row(SILICON, "add sub mul", "rn? ftz? sat?", "f16 f16x2", "t = t, t", make=_rounded),
    Row(SILICON, "add sub mul", "rn?", "bf16 bf16x2", "t = t, t", make=_rounded),
    Row(SILICON, "fma", "rn ftz? sat|relu?", "f16 f16x2", "t = t, t, t", make=_rounded),
    Row(SILICON, "fma", "rn relu?", "bf16 bf16x2", "t = t, t, t", make=_rounded),
    Row(SILICON, "abs neg", "ftz?", "f16 f16x2", "t = t", make=_sign),
    Row(SILICON, "abs neg", "", "bf16 bf16x2", "t = t", make=_sign),
    Row(SILICON, "min max", f"ftz? {_EXTREME}", "f16 f16x2", "t = t, t", make=_extremum),
    Row(SILICON, "min max", _EXTREME, "bf16 bf16x2", "t = t, t", make=_extremum),
    Row(BOUNDED, "tanh", "approx", "f16 f16x2 bf16 bf16x2", "t = t", make=_approximate),
    Row(BOUNDED, "ex2", "approx", "f16 f16x2", "t = t", make=_approximate),
    Row(BOUNDED, "ex2", "approx ftz", "bf16 bf16x2", "t = t", make=_approximate),
    # PTX ISA 9.7.5, "Mixed Precision Floating-Point Instructions"
    Row(DOCUMENT, "add sub", f"{_RND}? sat?", "f32", "t = s, t", second="f16 bf16", make=_mixed),
    Row(DOCUMENT, "fma", f"{_RND} sat?", "f32", "t = s, s, t", second="f16 bf16", make=_mixed),
)  # fmt: skip
