"""Conversions (PTX ISA, "cvt" and "cvt.pack").

Not modelled: stochastic rounding (.rs: NVIDIA draws the layout of its random bits in figures only).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.operands import Operands, Reader
from triton_ext.emulator.decode.step import Run
from triton_ext.emulator.errors import UnsupportedInstruction
from triton_ext.emulator.instructions import floating
from triton_ext.emulator.instructions.common import elementwise, reader
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.types import DTYPES
from triton_ext.emulator.units import rounding
from triton_ext.emulator.units.rounding import FORMATS, encode, two_sum
from triton_ext.ptx.parse import Instruction

Array = NDArray[Any]

_FLOATS = ("f16", "bf16", "f32", "tf32", "f64")
_NARROW = ("e4m3x2", "e5m2x2", "e2m1x2", "e2m3x2", "e3m2x2", "ue8m0x2")
_HALVES = {"f16x2": "f16", "bf16x2": "bf16"}
_TYPES = (*(name for name in DTYPES if name != "pred"), *_HALVES, *_NARROW)
_TO_INTEGER = {"rni": "rn", "rzi": "rz", "rmi": "rm", "rpi": "rp"}
_MODES = (*rounding.MODES, *_TO_INTEGER)


@instruction("cvt")
def convert(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    mode = modifiers.one_of(_MODES)
    ftz, sat = modifiers.flag("ftz"), modifiers.flag("sat")
    relu, satfinite = modifiers.flag("relu"), modifiers.flag("satfinite")
    to, source = modifiers.one_of(_TYPES), modifiers.one_of(_TYPES)
    if not to or not source:
        raise UnsupportedInstruction("a type of this conversion is not modelled", at)
    if to in _NARROW:
        return _to_narrow(at, operands, to, source, mode, relu=relu, satfinite=satfinite)
    if source in _NARROW:
        return _from_narrow(at, operands, to, source, relu=relu)
    if to in _HALVES:
        return _to_halves(at, operands, to, source, mode, relu=relu, satfinite=satfinite)
    if to == "tf32" or relu or satfinite:
        return _to_float(at, operands, to, source, mode, relu=relu, satfinite=satfinite)
    function = _scalar(to, source, mode, ftz=ftz, sat=sat, at=at)
    return elementwise(at, operands, to, [source], function)


def _codes(value: Array, kind: str, mode: str, *, relu: bool, satfinite: bool) -> Array:
    """Codes of a format from float64 values."""
    to = FORMATS[kind]
    code = encode(value, to, mode, saturate=satfinite)
    if relu:  # a negative number, and -0, becomes +0; NaN stays
        code = np.where(np.signbit(value) & ~np.isnan(value), to.dtype.type(0), code)
    return code


# ------------------------------------------------------------------------- scalars


def _scalar(
    to: str, source: str, mode: str, *, ftz: bool, sat: bool, at: Instruction
) -> Callable[[Array], Any]:
    to_float, from_float = to in _FLOATS, source in _FLOATS
    if to_float and from_float:
        return _float_to_float(to, source, mode, ftz=ftz, sat=sat)
    if from_float:
        if mode not in _TO_INTEGER:
            raise UnsupportedInstruction("a rounding to an integer is missing", at)
        integer_mode = _TO_INTEGER[mode]

        def rounded(value: Array) -> Array:
            if ftz and source == "f32":
                value = floating.flush(value, source)
            return _float_to_integer(floating.widen(value, source), to, source, integer_mode)

        return rounded
    if to_float:
        return _integer_to_float(to, mode or "rn", sat=sat)
    return _integer_to_integer(to, source, sat=sat)


def _float_to_float(
    to: str, source: str, mode: str, *, ftz: bool, sat: bool
) -> Callable[[Array], Any]:
    integral = _TO_INTEGER.get(mode)
    target_mode = "rn" if integral else mode or "rn"
    ftz = ftz and to != "f16"  # an H100 flushes nothing on the way to f16

    def function(value: Array) -> Any:
        if ftz and source == "f32":
            value = floating.canonical(floating.flush(value, source), source)
        wide = floating.widen(value, source)
        if integral:
            wide = rounding.to_integer(wide, integral)
        result = floating.narrow(wide, to, target_mode)
        if (source, to) in _PAYLOADS:
            result = _keep_payload(result, value, source, to)
        if ftz and to == "f32":
            result = floating.flush(result, to)
        return floating.saturate(result, to) if sat else result

    return function


_PAYLOADS = {
    ("f16", "f64"), ("bf16", "f64"), ("f32", "f64"), ("f64", "f64"),
    ("f64", "f16"), ("f64", "bf16"), ("f64", "f32"), ("bf16", "f32"),
}  # fmt: skip
"""Conversions that keep a NaN's sign and payload on an H100; the others make the canonical NaN."""
_LAYOUTS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}


def _keep_payload(result: Any, value: Any, source: str, to: str) -> Array:
    """NaN with the sign and the upper bits of the source's mantissa, made quiet."""
    nan = floating.is_nan(value, source)
    if not nan.any():
        return np.asarray(result)
    code = floating.bits(value, source).astype(np.uint64)
    (exponent, have), (to_exponent, want) = _LAYOUTS[source], _LAYOUTS[to]
    mantissa = code & np.uint64((1 << have) - 1)
    sign = code >> np.uint64(exponent + have)
    if want >= have:
        mantissa = mantissa << np.uint64(want - have)
    else:
        mantissa = mantissa >> np.uint64(have - want)
    if (source, to) != ("bf16", "f32"):  # a shift, no more
        mantissa = mantissa | np.uint64(1 << want - 1)
    made = sign << np.uint64(to_exponent + want) | mantissa
    made = made | np.uint64(((1 << to_exponent) - 1) << want)
    codes = floating.bits(result, to)
    return floating.from_bits(np.where(nan, made.astype(codes.dtype), codes), to)


def _float_to_integer(wide: Array, to: str, source: str, mode: str) -> Array:
    """Rounded, and clamped to the range of the type."""
    dtype = DTYPES[to]
    info = np.iinfo(dtype)
    number = rounding.to_integer(wide, mode)
    if dtype.itemsize <= 4:  # the bounds are float64 numbers
        clipped = np.clip(number, float(info.min), float(info.max))
        if clipped.min() >= info.min:  # no NaN
            return np.asarray(clipped.astype(dtype))
    nan = np.isnan(number)
    high = number >= float(info.max)  # of 64 bits: 2**63 or 2**64, which is beyond the range
    low = number <= float(info.min)
    safe = np.where(nan | high | low, 0.0, number)
    result = safe.astype(dtype)
    result = np.where(high, dtype.type(info.max), np.where(low, dtype.type(info.min), result))
    of_nan = 0
    if source == "f64" or dtype.itemsize == 8:
        of_nan = 1 << dtype.itemsize * 8 - 1
    bits = np.asarray(of_nan, f"u{dtype.itemsize}").view(dtype)
    return np.where(nan, bits, result)


def _exact_sum(value: Array) -> tuple[Array, Array]:
    """An integer as a float64 and the exact rest."""
    if value.dtype.itemsize < 8:
        wide = value.astype(np.float64)
        return wide, np.zeros_like(wide)
    half = value.dtype.type(32)
    high = np.ldexp((value >> half).astype(np.float64), 32)
    low = (value & value.dtype.type(0xFFFFFFFF)).astype(np.float64)
    return two_sum(high, low)


def _integer_to_float(to: str, mode: str, *, sat: bool) -> Callable[[Array], Any]:
    if mode == "rn" and to in ("f32", "f64") and not sat:
        return lambda value: np.asarray(value).astype(DTYPES[to])

    def function(value: Array) -> Any:
        total, rest = _exact_sum(np.asarray(value))
        if to == "f64":
            result = rounding.directed(total, rest, mode)
        else:
            result = floating.narrow(rounding.to_odd(total, rest), to, mode)
        return floating.saturate(result, to) if sat else result

    return function


def _integer_to_integer(to: str, source: str, *, sat: bool) -> Callable[[Array], Any]:
    dtype = DTYPES[to]
    if not sat:
        return lambda value: np.asarray(value).astype(dtype)
    info, of = np.iinfo(dtype), np.iinfo(DTYPES[source])
    low, high = max(info.min, of.min), min(info.max, of.max)
    kind = DTYPES[source].type
    return lambda value: np.clip(value, kind(low), kind(high)).astype(dtype)


def _to_float(
    at: Instruction,
    operands: Operands,
    to: str,
    source: str,
    mode: str,
    *,
    relu: bool,
    satfinite: bool,
) -> Run:
    """To tf32, f16 or bf16 with the modifiers that only these have."""
    if source != "f32" or to not in ("tf32", "f16", "bf16"):
        raise UnsupportedInstruction("this conversion does not exist in PTX", at)

    def function(value: Array) -> Array:
        code = _codes(
            floating.widen(value, source), to, mode or "rn", relu=relu, satfinite=satfinite
        )
        if to != "tf32":
            return code
        single = code.astype(np.uint32) << np.uint32(13)
        if mode != "rna":
            return single
        # An H100 cuts a NaN off here, with no regard to what remains.
        return np.where(np.isnan(value), value.view(np.uint32) & np.uint32(0xFFFFE000), single)

    return elementwise(at, operands, "b16" if to != "tf32" else "b32", [source], function)


# -------------------------------------------------------------------------- packed


def _pair(at: Instruction, operands: Operands, source: str) -> Callable[[Cta, Lanes], Array]:
    """The source's two values as floats, (2, lanes): the one for the upper half first."""
    if source == "f32":
        reads = [operands.reader(text, "f32", at) for text in at.operands[1:3]]

        def both(cta: Cta, lanes: Lanes) -> Array:
            number = lane_sets.count(lanes)
            pair = np.empty((2, number), np.float32)
            pair[0], pair[1] = reads[0](cta, lanes), reads[1](cta, lanes)
            return pair

        _expect(at, 3)
        return both
    if source not in _HALVES:
        raise UnsupportedInstruction(f"a packed conversion from .{source} is not modelled", at)
    _expect(at, 2)
    read = reader(at.operands[1], source, at, operands)

    def halves(cta: Cta, lanes: Lanes) -> Array:
        wide = floating.widen(read(cta, lanes), _HALVES[source]).reshape(-1, 2)
        return np.stack((wide[:, 1], wide[:, 0]))

    return halves


def _expect(at: Instruction, number: int) -> None:
    if len(at.operands) != number:
        raise UnsupportedInstruction(f"{number} operands are expected", at)


def _to_halves(
    at: Instruction,
    operands: Operands,
    to: str,
    source: str,
    mode: str,
    *,
    relu: bool,
    satfinite: bool,
) -> Run:
    """``cvt.rn.f16x2.f32 d, a, b``: a becomes the upper half."""
    kind = _HALVES[to]
    if source != "f32":
        raise UnsupportedInstruction(f"a conversion from .{source} is not modelled", at)
    read = _pair(at, operands, source)
    write = operands.writer(at.operands[0], "b32", at)
    plain = not relu and not satfinite

    def run(cta: Cta, lanes: Lanes) -> None:
        pair = read(cta, lanes)
        if plain:
            code = floating.bits(floating.narrow(pair, kind, mode), kind)
        else:
            code = _codes(pair, kind, mode, relu=relu, satfinite=satfinite)
        wide = code.astype(np.uint32)
        write(cta, lanes, wide[0] << np.uint32(16) | wide[1])

    return run


def _to_narrow(
    at: Instruction,
    operands: Operands,
    to: str,
    source: str,
    mode: str,
    *,
    relu: bool,
    satfinite: bool,
) -> Run:
    """Two values to 8 bits each (4 of e2m1): the first one, or the upper half, above."""
    kind = to.removesuffix("x2")
    read = _pair(at, operands, source)
    bits = 4 if kind == "e2m1" else 8
    write = operands.writer(at.operands[0], "b8" if bits == 4 else "b16", at)
    if kind != "ue8m0" and (mode != "rn" or not satfinite):
        raise UnsupportedInstruction("this conversion needs .rn.satfinite", at)
    if kind == "ue8m0" and mode not in ("rz", "rp"):
        raise UnsupportedInstruction("a conversion to .ue8m0x2 needs .rz or .rp", at)

    def run(cta: Cta, lanes: Lanes) -> None:
        pair = read(cta, lanes)
        if kind == "ue8m0":
            code = _scale_codes(pair, mode, satfinite=satfinite)
        else:
            code = _codes(pair, kind, mode, relu=relu, satfinite=True)
        wide = code.astype(np.uint16)
        write(cta, lanes, wide[0] << np.uint16(bits) | wide[1])

    return run


def _scale_codes(value: Array, mode: str, *, satfinite: bool) -> Array:
    """ue8m0: the exponent of the magnitude, 2**(code - 127); 255 is NaN.

    Source: CUDA's ``cuda_fp8.hpp``, ``__nv_cvt_bfloat16raw_to_e8m0``.
    """
    code = np.abs(value).astype(np.float32).view(np.uint32)
    exponent = code >> np.uint32(23)
    if mode == "rp":  # 2**-127 has code 0, and is subnormal in f32
        above = (code & np.uint32(0x7FFFFF)) != 0
        up = above & (code > np.uint32(0x00400000)) & (code < np.uint32(0x7F800000))
        exponent = exponent + up.astype(np.uint32)
    if satfinite:
        number = code <= np.uint32(0x7F800000)
        exponent = np.where(number & (exponent == 255), np.uint32(254), exponent)
    return exponent.astype(np.uint8)


def _from_narrow(at: Instruction, operands: Operands, to: str, source: str, *, relu: bool) -> Run:
    """Two codes to f16, or to bf16 (on sm_100): each by a table."""
    kind = source.removesuffix("x2")
    if to not in _HALVES or (kind == "ue8m0" and to != "bf16x2"):
        raise UnsupportedInstruction(f"a conversion from .{source} to .{to} is not modelled", at)
    _expect(at, 2)
    if kind == "ue8m0":
        codes = np.arange(256, dtype=np.uint32)
        table = np.where(codes == 0, 0x40, codes << np.uint32(7))
        table = np.where(codes == 255, 0x7FFF, table).astype(np.uint32)
    else:
        of = FORMATS[kind]
        values = rounding.decode(np.arange(256) & ((1 << of.bits) - 1), of)
        if relu:
            values = np.where(np.signbit(values) & ~np.isnan(values), 0.0, values)
        half = _HALVES[to]
        table = floating.bits(floating.narrow(values, half), half).astype(np.uint32)
    bits = 4 if kind == "e2m1" else 8
    mask = (1 << bits) - 1
    read = operands.reader(at.operands[1], "b8" if bits == 4 else "b16", at)
    write = operands.writer(at.operands[0], "b32", at)

    def run(cta: Cta, lanes: Lanes) -> None:
        code = read(cta, lanes).astype(np.uint32)
        low, high = table[code & mask], table[code >> np.uint32(bits) & mask]
        write(cta, lanes, high << np.uint32(16) | low)

    return run


@instruction("cvt.pack")
def convert_pack(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``cvt.pack.sat``: two integers, saturated and put together, below the bits of c."""
    if not modifiers.flag("sat"):
        raise UnsupportedInstruction("cvt.pack needs .sat", at)
    small = modifiers.one_of(("u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"))
    source = modifiers.type()
    rest = modifiers.one_of(("b32",))
    if not small or source != "s32":
        raise UnsupportedInstruction("this conversion does not exist in PTX", at)
    bits = int(small[1:])
    low, high = (0, (1 << bits) - 1) if small[0] == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)
    _expect(at, 4 if rest else 3)
    reads: list[Reader] = [operands.reader(text, source, at) for text in at.operands[1:3]]
    read_c = operands.reader(at.operands[3], "b32", at) if rest else None
    write = operands.writer(at.operands[0], "b32", at)
    mask = np.uint32((1 << bits) - 1)

    def run(cta: Cta, lanes: Lanes) -> None:
        a, b = (
            np.clip(read(cta, lanes), np.int32(low), np.int32(high)).view(np.uint32) & mask
            for read in reads
        )
        result = a << np.uint32(bits) | b
        if read_c is not None:
            result = read_c(cta, lanes) << np.uint32(2 * bits) | result
        write(cta, lanes, result)

    return run
