"""The gradient of a gated activation, in one pass over its sums."""

# Triton functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl

from triton_ext.kernels.epilogue import (
    CLAMPED_LIMIT,
    CLAMPED_SLOPE,
    TANH_CUBIC,
    TANH_SCALE,
)

ROOT_OF_HALF = tl.constexpr(0.7071067811865476)
LIMIT, SLOPE = tl.constexpr(CLAMPED_LIMIT), tl.constexpr(CLAMPED_SLOPE)
CUBIC, TANH_SLOPE = tl.constexpr(TANH_CUBIC), tl.constexpr(TANH_SCALE)
NORMAL_AT_0 = tl.constexpr(0.3989422804014327)
"""The density of the normal distribution at 0, 1 / sqrt(2 pi)."""


@triton.jit
def value_and_slope(x, ACTIVATION: tl.constexpr):
    """An activation function of x, and its derivative."""
    if ACTIVATION == "silu":
        chance = tl.sigmoid(x)
        value = x * chance
        slope = chance * (1.0 + x * (1.0 - chance))
    elif ACTIVATION == "clamped_silu":
        inside = tl.minimum(x, LIMIT, propagate_nan=tl.PropagateNan.ALL)
        chance = tl.sigmoid(SLOPE * inside)
        value = inside * chance
        slope = tl.where(x > LIMIT, 0.0, chance * (1.0 + SLOPE * inside * (1.0 - chance)))
    elif ACTIVATION == "gelu":
        chance = 0.5 * (1.0 + tl.math.erf(x * ROOT_OF_HALF))
        value = x * chance
        slope = chance + x * NORMAL_AT_0 * tl.exp(-0.5 * x * x)
    elif ACTIVATION == "gelu_tanh":
        chance = tl.sigmoid(TANH_SLOPE * x * (1.0 + CUBIC * x * x))
        value = x * chance
        inner = TANH_SLOPE * (1.0 + 3.0 * CUBIC * x * x)
        slope = chance * (1.0 + x * (1.0 - chance) * inner)
    else:
        value = tl.where(x > 0, x, 0.0)
        slope = tl.where(x > 0, 1.0, 0.0)
    return value, slope


@triton.jit
def gate_gradient(
    sums, grad, made, count, columns, grad_row, grad_column, up, step, ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradients of BLOCK gates and ups, by that of their product.

    Args:
        sums, made: addresses of (rows, 2 * columns), contiguous.
        grad: that of (rows, columns), with steps grad_row and grad_column.
        count: rows * columns.
        up: how many elements behind its gate an up lies.
        step: from one gate of a row to the next.
    """
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = element < count
    row, column = element // columns, element % columns
    where = row * 2 * columns + column * step
    gate = tl.load(sums + where, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(sums + where + up, mask=inside, other=0.0).to(tl.float32)
    given = tl.load(grad + row * grad_row + column * grad_column, mask=inside, other=0.0)
    given = given.to(tl.float32)
    value, slope = value_and_slope(gate, ACTIVATION)
    upward = value
    if ACTIVATION == "clamped_silu":
        upward = tl.where(tl.abs(factor) > LIMIT, 0.0, value)
        factor = tl.clamp(factor, -LIMIT, LIMIT, propagate_nan=tl.PropagateNan.ALL) + 1.0
    kind = made.dtype.element_ty
    tl.store(made + where, (given * factor * slope).to(kind), mask=inside)
    tl.store(made + where + up, (given * upward).to(kind), mask=inside)
