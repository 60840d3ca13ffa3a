"""D = A x B + D as the tensor core computes it: element types, and the accumulation.

Integers are exact; sums wrap at 32 bits, or saturate. f64 is a chain of fused multiply-adds. For
the other floating-point types the hardware works as follows (`aligned_sum`). All products of an
instruction's K, and the accumulator, are aligned to the largest exponent among them (a product's
exponent is the sum of its factors', before it is normalised), cut off towards zero after a fixed
number of bits below it, and summed; the sum is rounded towards zero to fp32, or to nearest even to
fp16. The number of bits is 25; but for the 8-bit types of wgmma only 13, and their fp32 result has
13 bits of mantissa. Subnormals count; there is no negative zero; what overflows is infinite.

- sm_90: measured on an H100, bit for bit (``benchmarks/results/emulator_matrix_h100.json``). An
  8-bit ``mma.sync`` has no instruction of its own: ptxas compiles it to two products of f16, of
  the even and the odd pairs of K, to which the accumulator is added last.
- sm_100: by default `exact_sum`: summed in float64, rounded once to nearest even. It takes a tenth
  of the time, and no one has measured a B200 here. Xie et al. found 25 bits there for all types of
  tcgen05.mma that are not block-scaled: `model_of` gives that model, too.

That tensor cores align, cut off and sum in this way was published by Fasi et al., "Numerical
behavior of NVIDIA tensor cores" (2021), Xie et al., "MMA-Sim" (2025), and Khattak and Mikaitis,
"Accurate Models of NVIDIA Tensor Cores" (2025).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.state.types import DTYPES
from triton_ext.emulator.units.rounding import fma64

Values = NDArray[Any]
Model = Callable[[Values, Values, Values | None, str], Values]
"""(A, B, D or None for zeros, type of D) -> D, for floating-point operands."""

TF32_MASK = np.uint32(0xFFFFE000)
"""The bits of a 32-bit register that tf32 has: sign, 8 of exponent, 10 of mantissa."""

OPERAND_BITS = {
    "f16": 16,
    "bf16": 16,
    "tf32": 32,
    "f64": 64,
    "e4m3": 8,
    "e5m2": 8,
    "e2m3": 6,
    "e3m2": 6,
    "e2m1": 4,
    "u8": 8,
    "s8": 8,
}
"""Element types of A and B, with the bits of their code."""

_SMALL_FLOATS = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
}
_TABLES = {
    name: (np.arange(256, dtype=np.uint8) & (1 << OPERAND_BITS[name]) - 1)
    .astype(np.uint8)
    .view(dtype)
    .astype(np.float32)
    for name, dtype in _SMALL_FLOATS.items()
}

_CANONICAL_NAN = {"f32": (np.uint32, 0x7FFFFFFF), "f16": (np.uint16, 0x7FFF)}
_FORMATS = {2: (np.uint16, 10, 15), 4: (np.uint32, 23, 127)}
"""fp16 and fp32 by their size: type of their codes, bits of mantissa, bias of the exponent."""
_NO_EXPONENT = -8192
"""The exponent of zero: below every other, and below every sum of two others."""
_LOWEST_SUM = -400
"""Below the exponent of every product."""
_SINGLE_THREAD_SIZE = 1 << 18
"""OpenBLAS gives larger products to several threads, which costs more than it saves here."""
_SAFE_SPREAD = 90
"""Within so many powers of two, scaled products are exact in float32."""


def decode_elements(codes: NDArray[Any], type_name: str) -> Values:
    """The values of elements of A or B.

    Args:
        codes: the elements' bits, as unsigned integers: 8 bits for all types of at most 8 (of 4-
            and 6-bit codes the low bits count), else as wide as the type; of any shape.
        type_name: a key of `OPERAND_BITS`. Of a tf32 register the low 13 bits are ignored.

    Returns:
        Of the same shape: float32 (float64 for "f64", int32 for "u8" and "s8"), all exact.
    """
    if type_name in _TABLES:
        values: Values = _TABLES[type_name][codes]
        return values
    if type_name == "tf32":
        return (codes & TF32_MASK).view(np.float32)
    if type_name == "bf16":
        return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if type_name == "f16":
        return np.ascontiguousarray(codes).view(np.float16).astype(np.float32)
    if type_name == "f64":
        return np.ascontiguousarray(codes).view(np.float64)
    return np.ascontiguousarray(codes).view(DTYPES[type_name]).astype(np.int32)


def canonical(values: Values, d_type: str) -> Values:
    """The values, with every NaN replaced (in place) by the one that the tensor core writes."""
    if d_type in _CANONICAL_NAN:
        nan = np.isnan(values)
        if nan.any():
            bits, pattern = _CANONICAL_NAN[d_type]
            values.view(bits)[nan] = pattern
    return values


def _sum64(a: Values, b: Values, d: Values | None) -> Values:
    """A x B + D in float64."""
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    rows, k = a.shape[-2:]
    columns = b.shape[-1]
    step = max(8, _SINGLE_THREAD_SIZE // (rows * k))
    if step >= columns:
        total: Values = np.matmul(wide_a, wide_b)
    else:
        total = np.empty((*a.shape[:-1], columns))
        for first in range(0, columns, step):
            part = wide_b[..., first : first + step]
            np.matmul(wide_a, part, out=total[..., first : first + step])
    if d is not None:
        total += d
    return total


def exact_sum(a: Values, b: Values, d: Values | None, d_type: str) -> Values:
    """The model `EXACT`: summed in float64, rounded once."""
    return canonical(_sum64(a, b, d).astype(DTYPES[d_type]), d_type)


EXACT: Model = exact_sum


def _exponents(values: Values) -> NDArray[np.int16]:
    """The exponent of each value's leading bit; subnormals count like the smallest normal."""
    code, mantissa_bits, bias = _FORMATS[values.dtype.itemsize]
    codes = values.view(code) << 1  # without the sign
    exponents = (codes >> mantissa_bits + 1).astype(np.int16)
    np.maximum(exponents, 1, out=exponents)
    exponents -= bias
    exponents[codes == 0] = _NO_EXPONENT
    return exponents


def _towards_zero(values: Values, bits: int) -> Values:
    """float64 rounded towards zero to fp32, or to fewer than its 23 bits of mantissa.

    From 2**128 on it is infinite.
    """
    cut = (values.view(np.int64) & np.int64(-1 << 52 - bits)).view(np.float64)
    rounded = cut.astype(np.float32)  # exact, but for subnormals
    sizes = np.abs(cut)
    if sizes.min(where=sizes > 0, initial=1) < 2.0**-126:
        rounded.view(np.uint32)[...] -= np.abs(rounded).astype(np.float64) > sizes
    return rounded


def _round(total: Values, d_type: str, bits: int) -> Values:
    result = total.astype(np.float16) if d_type == "f16" else _towards_zero(total, bits)
    result += 0  # there is no negative zero
    return result


def _sum_aligned(a: Values, b: Values, d: Values, low_a: int, low_b: int, fraction: int) -> Values:
    """The sum of finite terms, each cut off `fraction` bits below the largest exponent."""
    exp_a, exp_b, top = _exponents(a), _exponents(b), _exponents(d)
    zero_a, zero_b = a == 0, b == 0
    np.maximum(exp_a, low_a, out=exp_a, where=~zero_a)
    np.maximum(exp_b, low_b, out=exp_b, where=~zero_b)
    high = int(exp_a.max()) + int(exp_b.max())
    least_a = int(exp_a.min(where=~zero_a, initial=-_NO_EXPONENT))
    least_b = int(exp_b.min(where=~zero_b, initial=-_NO_EXPONENT))
    last_bit = max(high, int(top.max())) - fraction
    least_d = int(top.min(where=d != 0, initial=-_NO_EXPONENT))
    if min(_unit(a, least_a) + _unit(b, least_b), _unit(d, least_d)) >= last_bit:
        return _sum64(a, b, d)  # nothing is cut off, as with small integers
    for k in range(a.shape[-1]):
        np.maximum(top, exp_a[..., :, k, None] + exp_b[..., None, k, :], out=top)
    top[top < _LOWEST_SUM] = 0  # every term is zero
    # scaled so that the unit is the last bit that counts
    power = fraction - top.astype(np.int32)
    scale = _power_of_two(power, np.float64)
    total: Values = d.astype(np.float64)
    total *= scale
    np.trunc(total, out=total)
    kind: Any = np.float32 if high - least_a - least_b < _SAFE_SPREAD else np.float64
    high_a = int(exp_a.max())
    a_scaled = np.ldexp(a.astype(np.float64), -high_a).astype(kind)
    b_scaled = np.ldexp(b.astype(np.float64), high_a - high).astype(kind)
    shift = _power_of_two(power + high, kind)
    term = np.empty(total.shape, kind)
    whole = np.empty(total.shape, np.int32)
    part = np.zeros(total.shape, np.int32)
    for k in range(a.shape[-1]):
        np.multiply(a_scaled[..., :, k, None], b_scaled[..., None, k, :], out=term)
        np.multiply(term, shift, out=term)
        np.copyto(whole, term, casting="unsafe")  # towards zero
        part += whole
        if k % 8 == 7:  # at most 8 terms below 2**27: they fit 32 bits
            total += part
            part[...] = 0
    total += part
    total /= scale
    return total


def _power_of_two(exponents: NDArray[np.int32], kind: Any) -> Values:
    """2 to these powers; in float32 within its range, which is far enough from what counts."""
    if kind is np.float32:
        return (np.clip(exponents, -126, 126) + 127 << 23).view(np.float32)
    return (exponents.astype(np.int64) + 1023 << 52).view(np.float64)


def _unit(values: Values, least: int) -> int:
    """An n such that every value is a multiple of 2**n, given the least exponent."""
    code, mantissa_bits, _ = _FORMATS[values.dtype.itemsize]
    used = int(np.bitwise_or.reduce(values.view(code), axis=None))
    trailing = (used & -used).bit_length() - 1 if used else mantissa_bits
    return least - mantissa_bits + min(trailing, mantissa_bits)


_LOWEST_EXPONENT = {
    "f16": -14,
    "bf16": -126,
    "tf32": -126,
    "e4m3": -6,
    "e5m2": -14,
    "e2m3": 0,
    "e3m2": -2,
    "e2m1": 0,
}
"""Subnormal factors are not normalised: they count with the exponent of the smallest normal."""


def aligned_sum(
    a: Values,
    b: Values,
    d: Values | None,
    d_type: str,
    *,
    types: tuple[str, str],
    fraction: int = 25,
    bits: int = 23,
) -> Values:
    """What the tensor core does with one group of K; see the module's docstring.

    Args:
        types: the element types of A and B.
        fraction: bits that count below the largest exponent.
        bits: size of the fp32 result's mantissa.
    """
    if d is None:
        d = np.zeros((*a.shape[:-1], b.shape[-1]), DTYPES[d_type])
    d = d.astype(DTYPES[d_type], copy=False)
    low_a, low_b = (_LOWEST_EXPONENT[name] for name in types)
    if np.isfinite(a).all() and np.isfinite(b).all() and np.isfinite(d).all():
        return _round(_sum_aligned(a, b, d, low_a, low_b, fraction), d_type, bits)
    special = _sum64(a, b, d)
    finite = [np.where(np.isfinite(each), each, 0).astype(each.dtype) for each in (a, b, d)]
    total = _sum_aligned(finite[0], finite[1], finite[2], low_a, low_b, fraction)
    result = _round(total, d_type, bits)
    special_d = special.astype(DTYPES[d_type])
    return canonical(np.where(np.isfinite(special), result, special_d), d_type)


def hopper_mma_of_8_bits(
    a: Values, b: Values, d: Values | None, d_type: str, *, types: tuple[str, str]
) -> Values:
    """``mma.sync`` of e4m3 and e5m2 on sm_90, as ptxas compiles it."""
    halves = np.zeros((*a.shape[:-1], b.shape[-1]), DTYPES[d_type])
    pairs = np.arange(a.shape[-1]) // 2 % 2
    for half in (0, 1):
        chosen = pairs == half
        # their values are those of f16
        halves = aligned_sum(
            a[..., chosen], b[..., chosen, :], halves, d_type, types=("f16", "f16")
        )
    return canonical(halves if d is None else halves + d, d_type)


def chain_sum(a: Values, b: Values, d: Values | None, d_type: str) -> Values:
    """The products of f64: fused multiply-adds, one after the other along K."""
    total: Values = np.zeros((*a.shape[:-1], b.shape[-1])) if d is None else d
    for k in range(a.shape[-1]):
        left = np.broadcast_to(a[..., :, k, None], total.shape)
        right = np.broadcast_to(b[..., None, k, :], total.shape)
        total = fma64(left, right, total)
    return total


def model_of(arch: int, family: str, a_type: str, b_type: str, *, published: bool = False) -> Model:
    """How an architecture's tensor core sums.

    Args:
        arch: 90 or 100.
        family: the kind of instruction: "mma" (of warps), "wgmma", or "tcgen05" (not block-scaled).
        a_type, b_type: the element types of A and B.
        published: follow Xie et al. for sm_100, where they describe it.
    """
    if a_type == "f64":
        return chain_sum
    known = arch == 90 or (published and family == "tcgen05")
    if a_type not in _LOWEST_EXPONENT or not known:
        return EXACT
    types = (a_type, b_type)
    if arch == 90 and OPERAND_BITS[a_type] == 8:
        if family == "mma":
            return partial(hopper_mma_of_8_bits, types=types)
        return partial(aligned_sum, types=types, fraction=13, bits=13)
    return partial(aligned_sum, types=types)


def multiply_accumulate(
    a: Values,
    b: Values,
    d: Values | None,
    d_type: str,
    *,
    saturate: bool = False,
    model: Model = EXACT,
) -> Values:
    """A x B + D of one instruction.

    Args:
        a: (..., M, K), decoded; multiply by scale factors, or negate, before.
        b: (..., K, N), decoded.
        d: (..., M, N) of `d_type`, or None for zeros.
        d_type: "f32", "f16", "f64" or "s32".
        saturate: clamp the integer sum to 32 bits (``.satfinite``) instead of wrapping.
        model: how floating-point products are summed.

    Returns:
        (..., M, N) of `d_type`.
    """
    with np.errstate(all="ignore"):
        if d_type != "s32":
            return model(a, b, d, d_type)
        # at most 128 products of 16 bits, and 32 bits: float64 holds the sum exactly
        total = _sum64(a, b, d)
        if saturate:
            total = np.clip(total, -(2.0**31), 2.0**31 - 1)
        wrapped: Values = total.astype(np.int64).astype(np.int32)
        return wrapped
