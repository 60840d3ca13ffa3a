"""Rows that are taken from where indices say, weighted and added up; and dot products of rows."""

# Triton functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_rows(
    x, indices, ends, factors, made, rows, columns, x_row, x_column, BLOCK: tl.constexpr
):  # fmt: skip
    """BLOCK columns of row `program_id(0)` of made: the sum of rows of x times their factors, in
    fp32 and in this order. A row that x does not have is zeros.

    Args:
        x: address of (rows, columns), with steps x_row and x_column; made is contiguous.
        indices: which row of x each summand is, int32; None if each sum is a row of x.
        ends: before which summand each sum ends, after a first 0; None if each has one.
        factors: fp32, of each summand; or None.
    """
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first, end = row, row + 1
    if ends is not None:
        first, end = tl.load(ends + row), tl.load(ends + row + 1)
    total = tl.zeros([BLOCK], tl.float32)
    for i in range(first, end):
        source = row if indices is None else tl.load(indices + i)
        inside = (column < columns) & (source >= 0) & (source < rows)
        where = x + source.to(tl.int64) * x_row + column.to(tl.int64) * x_column
        value = tl.load(where, mask=inside, other=0.0).to(tl.float32)
        if factors is not None:
            value *= tl.load(factors + i)
        total += value
    where = made + row.to(tl.int64) * columns + column
    tl.store(where, total.to(made.dtype.element_ty), mask=column < columns)


@triton.jit
def dot_rows(
    x, y, indices, made, rows, columns, x_row, x_column, y_row, y_column, BLOCK: tl.constexpr
):  # fmt: skip
    """The dot product, in fp32, of row `program_id(0)` of x and the row of y that its index says; 0
    if y has no such row.

    Args:
        x, y: addresses, with their steps; y has so many rows.
        indices: int32; None for the same row.
        made: fp32, one of each row of x.
    """
    row = tl.program_id(0)
    other = row
    if indices is not None:
        other = tl.load(indices + row)
    known = (other >= 0) & (other < rows)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, columns, BLOCK):
        column = (first + tl.arange(0, BLOCK)).to(tl.int64)
        inside = (column < columns) & known
        left = tl.load(x + row.to(tl.int64) * x_row + column * x_column, mask=inside, other=0.0)
        right = tl.load(y + other.to(tl.int64) * y_row + column * y_column, mask=inside, other=0.0)
        total += left.to(tl.float32) * right.to(tl.float32)
    tl.store(made + row, tl.sum(total, 0))
