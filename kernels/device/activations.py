"""Activation functions, of sums in registers."""

# Gluon functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from triton_ext.kernels.epilogue import (
    CLAMPED_LIMIT,
    CLAMPED_SLOPE,
    TANH_CUBIC,
    TANH_SCALE,
)

TAIL = gl.constexpr((
    -2.82530352, 1.43290684, 0.630840247, -0.327658643, 1.1950848, -2.51450526, 2.07395385,
    -0.77246533, 0.107146687,
))  # fmt: skip
"""Coefficients of a polynomial in t = 1 / (1 + z / 2), that of t^0 first: the binary logarithm of
erfc(z) exp(z^2) / (2 t) for z from 0 to 10, where what it is the logarithm of is off by 2.3e-7 at
most (fitted by weighted least squares in float64, against ``math.erfc``)."""
SHORT_TAIL = gl.constexpr((
    -1.00004339, -1.15043378, -0.46081984, -0.0514006726, 0.00719563244, -0.000592958182,
    2.03176878e-05,
))  # fmt: skip
"""The same of one in z: the binary logarithm of erfc(z / sqrt 2) / 2, off by 3.1e-5 up to z = 4 (a
tenth of what is lost by rounding to fp16); from there on what it is the logarithm of, times z, is
off by 3.8e-9 at most."""
FARTHEST = gl.constexpr(14.0)
"""Where the tail is no normal number any more, and taken to be 0."""
KEEPS_NAN = gl.constexpr(tl.PropagateNan.ALL)
ROOT_OF_HALF = gl.constexpr(0.7071067811865476)
LOG2_E = gl.constexpr(1.4426950408889634)
LIMIT, SLOPE = gl.constexpr(CLAMPED_LIMIT), gl.constexpr(CLAMPED_SLOPE)
CUBIC, TANH_SLOPE = gl.constexpr(TANH_CUBIC), gl.constexpr(TANH_SCALE)


@gluon.jit
def reciprocal(x):
    """1 / x, within one unit in the last place; 0 of infinity."""
    return gl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def power_of_2(x):
    """2^x, within two units in the last place."""
    return gl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def polynomial(x, COEFFICIENTS: gl.constexpr):
    """Its value at x; that of x^0 is the first coefficient."""
    LAST: gl.constexpr = len(COEFFICIENTS) - 1
    value = gl.full_like(x, COEFFICIENTS[LAST])
    for i in gl.static_range(LAST):
        value = value * x + COEFFICIENTS[LAST - 1 - i]
    return value


@gluon.jit
def normal_tail(z, BITS: gl.constexpr):
    """The integral of the normal distribution from z >= 0 on, for what has so many bits."""
    if BITS <= 16:
        tail = power_of_2(polynomial(z, SHORT_TAIL))
    else:
        t = reciprocal(1.0 + (0.5 * ROOT_OF_HALF) * z)
        tail = t * power_of_2(polynomial(t, TAIL) - z * z * (LOG2_E / 2))
    return tail


@gluon.jit
def relu(x):
    """The greater of x and 0; NaN of NaN."""
    return gl.maximum(x, 0.0, propagate_nan=KEEPS_NAN)


@gluon.jit
def gelu(x, BITS: gl.constexpr):
    """x times the integral of the normal distribution up to x, to be rounded to so many bits:
    within 2e-6 of it where |x| < 4; if they are 16 or fewer, within 4e-5, and from there on within
    4e-9 in all. Of -infinity it is NaN, as PyTorch's.

    By the tail: half of the instructions that erf takes, and nothing cancels where x is negative.
    """
    z, half = gl.minimum(gl.abs(x), FARTHEST), 0.5 * x
    return half + gl.abs(half) - z * normal_tail(z, BITS)  # relu(x), but for -infinity


@gluon.jit
def silu(x, SLOPE: gl.constexpr = 1.0):
    """x times the logistic function of SLOPE x."""
    return x * reciprocal(1.0 + power_of_2(x * (-LOG2_E * SLOPE)))


@gluon.jit
def gelu_tanh(x):
    """PyTorch's approximation ``x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2``, which is x
    times the logistic function of twice that argument.
    """
    argument = x * (CUBIC * x * x + 1.0)
    return x * reciprocal(1.0 + power_of_2(argument * (-LOG2_E * TANH_SLOPE)))


@gluon.jit
def clamped(x, LEAST: gl.constexpr, MOST: gl.constexpr):
    """x within these bounds; NaN of NaN."""
    x = gl.minimum(x, MOST, propagate_nan=KEEPS_NAN)
    return gl.maximum(x, LEAST, propagate_nan=KEEPS_NAN)


@gluon.jit
def activated(x, ACTIVATION: gl.constexpr, BITS: gl.constexpr):
    """The activation function of that name, as PyTorch defines it by default, of what will be
    rounded to so many bits.
    """
    if ACTIVATION == "relu":
        x = relu(x)
    elif ACTIVATION == "gelu":
        x = gelu(x, BITS)
    elif ACTIVATION == "gelu_tanh":
        x = gelu_tanh(x)
    elif ACTIVATION == "quick_gelu":
        x = silu(x, SLOPE)
    elif ACTIVATION == "silu":
        x = silu(x)
    elif ACTIVATION == "clamped_silu":
        x = silu(gl.minimum(x, LIMIT, propagate_nan=KEEPS_NAN), SLOPE)
    elif ACTIVATION == "clamped_up":
        x = clamped(x, -LIMIT, LIMIT) + 1.0
    return x
