"""C = A @ B whose operands threads load: rows of any stride and address, which TMA cannot read.

A thread block makes one tile of C, or a part of it along K; the parts are added in the order of K
by the block that comes last. An operand whose rows begin at multiples of 16 bytes, and have so
many, comes by asynchronous copies of 16 bytes, which Triton pipelines; another one by one or two
elements at a time through registers, a tile ahead of the product (copies of 4 and 8 bytes are
slower, seen on an H200).
Nothing is read outside of the rows, and nothing written outside of C.
"""

# Triton functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from triton_ext.kernels.epilogue import CLAMPED_SLOPE, TANH_CUBIC, TANH_SCALE

ROOT_OF_HALF = tl.constexpr(0.7071067811865476)
CUBIC, TANH_SLOPE = tl.constexpr(TANH_CUBIC), tl.constexpr(TANH_SCALE)
SLOPE = tl.constexpr(CLAMPED_SLOPE)


@triton.jit
def load_some(row, rows, inner, inner_end):
    """Elements of rows, as far as there are such."""
    some = rows[:, None] & (inner < inner_end)[None, :]
    return tl.load(row[:, None] + inner[None, :], mask=some, other=0)


@triton.jit
def load_two(row, rows, inner, inner_end, STEP: tl.constexpr):
    """The same of `inner` and STEP behind: (rows, inner, 2)."""
    first = load_some(row, rows, inner, inner_end)
    return tl.join(first, load_some(row, rows, inner + STEP, inner_end))


@triton.jit
def load_narrow(row, rows, first, inner_end, UNIT: tl.constexpr, INNER: tl.constexpr):
    """INNER elements of rows, four of one row for each thread, by loads of UNIT, 1 or 2: the
    addresses of all that a thread loads would take twice as many registers as it has.
    """
    inner = first // UNIT + (4 // UNIT) * tl.arange(0, INNER // 4)
    if UNIT == 1:
        found = tl.join(
            load_two(row, rows, inner, inner_end, 2), load_two(row, rows, inner + 1, inner_end, 2)
        )
    else:
        words = row.to(tl.pointer_type(tl.int32))
        both = load_two(words, rows, inner, inner_end // UNIT, 1)
        low, high = both.to(tl.int16), (both >> 16).to(tl.int16)
        found = tl.join(low, high).to(row.dtype.element_ty, bitcast=True)
    return tl.reshape(found, (row.shape[0], INNER))


@triton.jit
def load_tile(
    matrix, outer, outer_end, first, inner_end, step, UNIT: tl.constexpr, INNER: tl.constexpr,
    ACROSS: tl.constexpr,
):  # fmt: skip
    """A tile of an operand, zeros outside of it.

    Args:
        matrix: its address.
        outer: which rows.
        first, INNER: which of their elements.
        outer_end, inner_end: how many there are.
        step, UNIT: from one row to the next are `step * UNIT` elements, and each has a multiple of
            UNIT.
        ACROSS: whether the rows are those of the tile; else they are its columns.
    """
    BYTES: tl.constexpr = UNIT * matrix.dtype.element_ty.primitive_bitwidth // 8
    row = matrix + outer.to(tl.int64) * (step * UNIT)
    if UNIT < 8:
        tile = load_narrow(row, outer < outer_end, first, inner_end, UNIT, INNER)
        tile = tile if ACROSS else tl.trans(tile)
    else:
        DIM: tl.constexpr = 1 if ACROSS else 0
        inner = tl.expand_dims(first + tl.arange(0, INNER), 1 - DIM)
        inside = tl.expand_dims(outer < outer_end, DIM) & (inner < inner_end // UNIT * UNIT)
        where = tl.multiple_of(tl.expand_dims(row, DIM) + inner, (BYTES, BYTES))
        tile = tl.load(where, mask=inside, other=0.0)
    return tile


@triton.jit
def load_tiles(
    a, b, rows, columns, k_first, m, n, k_end, a_step, b_step, A_K_MAJOR: tl.constexpr,
    B_K_MAJOR: tl.constexpr, A_UNIT: tl.constexpr, B_UNIT: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The tiles of A and B at some elements of K, of which there are `k_end`.

    Args:
        rows, columns: the first row of A and column of B, and how many, as `tl.arange`.
    """
    depth = k_first + tl.arange(0, BLOCK_K)
    row, some_rows = rows
    column, some_columns = columns
    if A_K_MAJOR:
        x = load_tile(a, row + some_rows, m, k_first, k_end, a_step, A_UNIT, BLOCK_K, True)
    else:
        x = load_tile(a, depth, k_end, row, m, a_step, A_UNIT, some_rows.shape[0], False)
    if B_K_MAJOR:
        y = load_tile(b, column + some_columns, n, k_first, k_end, b_step, B_UNIT, BLOCK_K, False)
    else:
        y = load_tile(b, depth, k_end, column, n, b_step, B_UNIT, some_columns.shape[0], True)
    return x, y


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    """The activation function of that name, as PyTorch defines it by default."""
    if ACTIVATION == "relu":
        x = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + tl.math.erf(x * ROOT_OF_HALF))
    elif ACTIVATION == "gelu_tanh":
        x *= tl.sigmoid(TANH_SLOPE * x * (1.0 + CUBIC * x * x))
    elif ACTIVATION == "quick_gelu":
        x *= tl.sigmoid(SLOPE * x)
    elif ACTIVATION == "silu":
        x *= tl.sigmoid(x)
    return x


@triton.jit
def sum_of_parts(acc, parts, counter, number, split, splits, LOADS: tl.constexpr):
    """Leave a part of a tile in memory; in the block that comes last, the sum of all.

    Args:
        parts: where those of all tiles lie.
        counter: the tile's, which counts its blocks.
        number: the tile's.

    Returns:
        The sum, and whether this block came last. Its counter is zero again then.
    """
    ROWS: tl.constexpr = acc.shape[0]
    COLUMNS: tl.constexpr = acc.shape[1]
    inside = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    parts += number.to(tl.int64) * splits * (ROWS * COLUMNS) + inside
    tl.store(parts + split * (ROWS * COLUMNS), acc)
    tl.debug_barrier()  # all threads have written before one of them says so
    is_last = tl.atomic_add(counter, 1, sem="acq_rel") == splits - 1
    if is_last:
        acc = tl.zeros_like(acc)
        for some in range(0, splits, LOADS):
            for i in tl.static_range(LOADS):
                part = parts + (some + i) * (ROWS * COLUMNS)
                acc += tl.load(part, mask=some + i < splits, other=0.0, cache_modifier=".cg")
        tl.store(counter, 0)
    return acc, is_last


@triton.jit(do_not_specialize=(
    "a", "b", "c", "bias", "residual", "parts", "counters", "m", "n", "k", "a_step", "b_step",
    "c_step", "a_matrix", "b_matrix", "c_matrix", "residual_matrix", "residual_row",
    "residual_column"))  # fmt: skip
def matmul_by_threads(
    a, b, c, bias, residual, parts, counters, m, n, k, a_step, b_step, c_step, a_matrix, b_matrix,
    c_matrix, residual_matrix, residual_row, residual_column, alpha, beta,
    A_K_MAJOR: tl.constexpr, B_K_MAJOR: tl.constexpr, A_UNIT: tl.constexpr, B_UNIT: tl.constexpr,
    C_UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    BIAS: tl.constexpr, RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr, SPLITS: tl.constexpr,
    LOADS: tl.constexpr,
):  # fmt: skip
    """``activation(alpha * (a @ b) + bias + beta * residual)`` of tile `program_id(0)`, a part of
    it along K, `program_id(1)`, and matrix `program_id(2)`.

    Args:
        a, b, c: addresses of matrices with one contiguous dimension; C's are its rows.
        bias, residual: addresses, of something else where there is none.
        parts, counters: where tiles are cut, memory for all parts of each, fp32, and a counter
            of each, int32, zero before and after the launch.
        m, n, k: sizes.
        a_step, b_step, c_step: from one row to the next, in units.
        a_matrix, b_matrix, c_matrix: from one matrix of a batch to the next, in units.
        residual_matrix, residual_row, residual_column: steps in elements.
        A_K_MAJOR, B_K_MAJOR: whether K is the contiguous dimension.
        A_UNIT, B_UNIT, C_UNIT: see above.
        SPLITS: whether tiles are cut along K, each into `num_programs(1)` parts.
        LOADS: how many parts are asked for at a time.
    """
    gdc_launch_dependents()
    tiles_m = tl.cdiv(m, BLOCK_M)
    tile = tl.program_id(0)
    matrix = tl.program_id(2)
    row, column = tile % tiles_m * BLOCK_M, tile // tiles_m * BLOCK_N
    some_rows, some_columns = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    a += matrix.to(tl.int64) * (a_matrix * A_UNIT)
    b += matrix.to(tl.int64) * (b_matrix * B_UNIT)
    first, end = 0, k
    splits = tl.num_programs(1)
    if SPLITS:
        share = tl.cdiv(tl.cdiv(k, BLOCK_K), splits) * BLOCK_K
        first = tl.program_id(1) * share
        end = tl.minimum(first + share, k)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    gdc_wait()
    if A_UNIT < 8 or B_UNIT < 8:
        x, y = load_tiles(
            a, b, (row, some_rows), (column, some_columns), first, m, n, end, a_step, b_step,
            A_K_MAJOR, B_K_MAJOR, A_UNIT, B_UNIT, BLOCK_K,
        )  # fmt: skip
        for start in range(first + BLOCK_K, end + BLOCK_K, BLOCK_K):
            next_x, next_y = load_tiles(
                a, b, (row, some_rows), (column, some_columns), start, m, n, end, a_step, b_step,
                A_K_MAJOR, B_K_MAJOR, A_UNIT, B_UNIT, BLOCK_K,
            )  # fmt: skip
            acc = tl.dot(x, y, acc)
            x, y = next_x, next_y
    else:
        for start in range(first, end, BLOCK_K):
            x, y = load_tiles(
                a, b, (row, some_rows), (column, some_columns), start, m, n, end, a_step, b_step,
                A_K_MAJOR, B_K_MAJOR, A_UNIT, B_UNIT, BLOCK_K,
            )  # fmt: skip
            acc = tl.dot(x, y, acc)
    rows, columns = row + some_rows, column + some_columns
    stores = True
    if SPLITS:
        number = matrix * tl.num_programs(0) + tile
        acc, stores = sum_of_parts(
            acc, parts, counters + number, number, tl.program_id(1), splits, LOADS
        )
    if stores:
        acc *= alpha
        if BIAS:
            acc += tl.load(bias + columns, mask=columns < n, other=0.0).to(tl.float32)[None, :]
        inside = (rows < m)[:, None] & (columns < n // C_UNIT * C_UNIT)[None, :]
        if RESIDUAL:
            where = rows.to(tl.int64)[:, None] * residual_row
            where += columns.to(tl.int64)[None, :] * residual_column
            where += matrix.to(tl.int64) * residual_matrix
            acc += beta * tl.load(residual + where, mask=inside, other=0.0).to(tl.float32)
        acc = activated(acc, ACTIVATION)
        c += matrix.to(tl.int64) * (c_matrix * C_UNIT)
        where = c + (rows.to(tl.int64)[:, None] * (c_step * C_UNIT) + columns[None, :])
        BYTES: tl.constexpr = C_UNIT * c.dtype.element_ty.primitive_bitwidth // 8
        tl.store(tl.multiple_of(where, (BYTES, BYTES)), acc.to(c.dtype.element_ty), mask=inside)
