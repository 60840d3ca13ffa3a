"""Matrices into memory in which their rows begin elsewhere: one launch for one or for two of them.

Where rows of one side do not begin at multiples of 16 bytes, its loads or stores are narrow; those
of the other side are of 16 bytes.
"""

# Triton functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def rows_at(matrix, row, column, columns, step, UNIT: tl.constexpr):
    """The addresses of elements of rows, and which of them there are, padding included: from one
    row to the next are `step * UNIT` elements.
    """
    BYTES: tl.constexpr = UNIT * matrix.dtype.element_ty.primitive_bitwidth // 8
    where = matrix + (row.to(tl.int64) * (step * UNIT) + column)
    return tl.multiple_of(where, (BYTES, BYTES)), column < tl.cdiv(columns, UNIT) * UNIT


@triton.jit
def copy_tile(
    source, made, tile, rows, columns, source_step, made_step, SOURCE_UNIT: tl.constexpr,
    MADE_UNIT: tl.constexpr, WIDTH: tl.constexpr, ELEMENTS: tl.constexpr,
):  # fmt: skip
    """Copy ELEMENTS elements of a matrix, WIDTH of each row."""
    HEIGHT: tl.constexpr = ELEMENTS // WIDTH
    across = tl.cdiv(columns, WIDTH)
    row = (tile // across * HEIGHT + tl.arange(0, HEIGHT))[:, None]
    column = (tile % across * WIDTH + tl.arange(0, WIDTH))[None, :]
    read, some = rows_at(source, row, column, columns, source_step, SOURCE_UNIT)
    written, others = rows_at(made, row, column, columns, made_step, MADE_UNIT)
    inside = row < rows
    tl.store(written, tl.load(read, mask=inside & some, other=0), mask=inside & others)


@triton.jit(do_not_specialize=(
    "a", "a_made", "b", "b_made", "a_tiles", "a_rows", "a_columns", "a_step", "a_made_step",
    "b_rows", "b_columns", "b_step", "b_made_step"))  # fmt: skip
def copy_rows(
    a, a_made, b, b_made, a_tiles, a_rows, a_columns, a_step, a_made_step, b_rows, b_columns,
    b_step, b_made_step, A_UNIT: tl.constexpr, A_MADE_UNIT: tl.constexpr, A_WIDTH: tl.constexpr,
    B_UNIT: tl.constexpr, B_MADE_UNIT: tl.constexpr, B_WIDTH: tl.constexpr, TWO: tl.constexpr,
    ELEMENTS: tl.constexpr,
):  # fmt: skip
    """Copy ELEMENTS elements: of A in the first `a_tiles` blocks, of B in those behind.

    Args:
        a, b, a_made, b_made: addresses.
        a_rows, b_rows, a_columns, b_columns: sizes.
        a_step, b_step, a_made_step, b_made_step: from one row to the next, in units: the powers of
            two of elements, of 16 bytes at most, at whose multiples rows begin. Up to such a
            multiple behind a row's end its memory is its own.
        A_WIDTH, B_WIDTH: elements of a row that a block copies.
        TWO: whether there is a B.
    """
    gdc_launch_dependents()
    gdc_wait()
    tile = tl.program_id(0)
    if tile < a_tiles:
        copy_tile(a, a_made, tile, a_rows, a_columns, a_step, a_made_step, A_UNIT, A_MADE_UNIT,
                  A_WIDTH, ELEMENTS)  # fmt: skip
    elif TWO:
        copy_tile(b, b_made, tile - a_tiles, b_rows, b_columns, b_step, b_made_step, B_UNIT,
                  B_MADE_UNIT, B_WIDTH, ELEMENTS)  # fmt: skip
