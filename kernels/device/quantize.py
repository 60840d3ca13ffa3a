"""fp8 with a scale for each block of 128 elements along K, of one row or of 128: in one pass."""

# Triton functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl

from triton_ext.kernels.element_types import FP32_SCALE_BLOCK

BLOCK = tl.constexpr(FP32_SCALE_BLOCK)
MANTISSA = tl.constexpr(23)
"""Bits of an fp32 number's fraction; the exponent is above them (IEEE 754, 3.4)."""


@triton.jit
def power_of_two(scale):
    """The least power of two that is not below a positive normal number."""
    bits = scale.to(tl.int32, bitcast=True)
    exponent = (bits + ((1 << MANTISSA) - 1)) >> MANTISSA
    return (exponent << MANTISSA).to(tl.float32, bitcast=True)


@triton.jit
def quantize(
    x, made, scales, rows, k, x_matrix, x_row, x_k, scales_matrix, scales_row, scales_k,
    LARGEST: tl.constexpr, ROWS: tl.constexpr, TOGETHER: tl.constexpr, POWERS: tl.constexpr,
):  # fmt: skip
    """Quantize ROWS rows of block `program_id(1)` along K, of matrix `program_id(2)`.

    Args:
        x, made, scales: addresses; what is made is contiguous.
        rows, k: of a matrix.
        x_matrix, x_row, x_k, scales_matrix, scales_row, scales_k: steps in elements.
        LARGEST: number that the type has.
        TOGETHER: whether all ROWS rows have one scale.
        POWERS: whether scales are powers of two.
    """
    matrix = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < k)[None, :]
    offsets = row.to(tl.int64)[:, None] * x_row + column.to(tl.int64)[None, :] * x_k
    values = tl.load(x + matrix * x_matrix + offsets, mask=inside, other=0.0).to(tl.float32)
    largest = tl.max(tl.abs(values), 1)
    scale_row = row.to(tl.int64)
    if TOGETHER:
        largest = tl.max(largest, 0, keep_dims=True)
        scale_row = tl.program_id(0).to(tl.int64) + tl.zeros([1], tl.int64)
    scale = tl.div_rn(largest, tl.full(largest.shape, LARGEST, tl.float32))
    if POWERS:
        scale = tl.where(scale > 0, power_of_two(scale), scale)
    divisor = tl.where(scale > 0, scale, 1.0)[:, None]  # of zeros alone: zeros
    divided = tl.div_rn(values, tl.broadcast_to(divisor, values.shape))
    out = made + matrix * rows * k + row.to(tl.int64)[:, None] * k + column[None, :]
    tl.store(out, divided.to(made.dtype.element_ty), mask=inside)
    where = scales + matrix * scales_matrix + scale_row * scales_row + tl.program_id(1) * scales_k
    if TOGETHER:
        tl.store(where, scale)
    else:
        tl.store(where, scale, mask=row < rows)
