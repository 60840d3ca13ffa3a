"""Launches of kernels whose operands threads load, of tensors that TMA cannot read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from triton_ext.kernels.by_threads import thread_spec
from triton_ext.kernels.choice.by_threads import (
    UNITS,
    ThreadAccess,
    ThreadDivision,
    ThreadTile,
    tiles_of,
)
from triton_ext.kernels.choice.gemv import CHUNK, MOST_VECTORS, GemvTile
from triton_ext.kernels.epilogue import EpilogueSpec
from triton_ext.ops.counters import counters
from triton_ext.ops.device import Gpu
from triton_ext.ops.epilogue import NOTHING, Epilogue
from triton_ext.ops.operands import TMA_ALIGNMENT
from triton_ext.ops.triton_launch import TritonLaunch
from triton_ext.ops.tuned import Problem

MAX_STEP = 2**31 - 1
"""Steps are passed to the kernel as 32-bit integers."""


class Rows(NamedTuple):
    """How threads read or write a matrix, or a batch of them, as it lies.

    Attributes:
        contiguous: the dimension of a matrix along which its elements lie together, 0 or 1.
        unit: the power of two of elements, of 16 bytes at most, at whose multiples rows begin, and
            of which each is a multiple.
        step, matrix: from one row, and from one matrix, to the next, in units.
    """

    contiguous: int
    unit: int
    step: int
    matrix: int

    def by(self, unit: int) -> Rows:
        """The same in units that divide its own."""
        each = self.unit // unit
        return Rows(self.contiguous, unit, self.step * each, self.matrix * each)

    @property
    def by_elements(self) -> Rows:
        """The same in units of an element."""
        return self.by(1)


def rows_of(matrix: Tensor, *, by_rows: bool = False) -> Rows | None:
    """How threads read a matrix, or a batch of them; None if neither its rows nor its columns are
    contiguous.

    Args:
        by_rows: whether its rows must be.
    """
    size = matrix.element_size()
    for contiguous in (1,) if by_rows else (1, 0):
        inner, outer = contiguous - 2, -1 - contiguous
        if matrix.stride(inner) != 1 and matrix.shape[inner] > 1:
            continue
        step = matrix.stride(outer) if matrix.shape[outer] > 1 else 0
        apart = matrix.stride(0) if matrix.dim() == 3 and len(matrix) > 1 else 0
        unit = math.gcd(
            TMA_ALIGNMENT // size, matrix.data_ptr() // size, matrix.shape[inner], step, apart
        )
        if max(step, apart) // unit <= MAX_STEP:
            return Rows(contiguous, unit, step // unit, apart // unit)
    return None


class ResidualSteps(NamedTuple):
    """From one matrix, row and column of a residual to the next, in elements."""

    matrix: int
    row: int
    column: int


def residual_steps(residual: Tensor, shape: Sequence[int]) -> ResidualSteps | None:
    """Those of a residual that is broadcast to a matrix or a batch; None of more dimensions."""
    if len(shape) > 3:
        return None
    found = ResidualSteps(*(0, *residual.expand(shape).stride())[-3:])
    return found if max(found) <= MAX_STEP else None


class Threads(NamedTuple):
    """The tensors of a call as threads read and write them.

    Attributes:
        a, b, c: matrices, or batches of them.
        residual: None if there is none.
        matrix: as of `ThreadAccess`.
    """

    a: Rows
    b: Rows
    c: Rows
    residual: ResidualSteps | None
    matrix: Literal["a", "b"] | None

    @property
    def access(self) -> ThreadAccess:
        """What the choice of a tile depends on."""
        a_k_major, b_k_major = self.a.contiguous == 1, self.b.contiguous == 0
        units = self.a.unit, self.b.unit, self.c.unit
        return ThreadAccess(*units, a_k_major, b_k_major, self.matrix)


def threads_of(
    a: Tensor, b: Tensor, c: Tensor, residual: Tensor | None, batched: bool
) -> Threads | None:
    """A call's tensors as threads read and write them; None if they cannot.

    Args:
        a: (..., M, K), one matrix or a batch.
        b: (K, N), or a batch.
        c: the output's memory.
        residual: what can be broadcast to it.
        batched: whether the kernel sees a batch.
    """
    rows, made = (each if batched else each.flatten(0, -2) for each in (a, c))
    if rows.data_ptr() != a.data_ptr() or made.data_ptr() != c.data_ptr():
        return None  # a copy
    of_a, of_b, of_c = rows_of(rows), rows_of(b), rows_of(made, by_rows=True)
    if of_a is None or of_b is None or of_c is None or not _lies_apart(made, of_c):
        return None
    # Asynchronous copies of 4 and 8 bytes are slower than loads through registers: 6x51866x512 came
    # at 1.9 TB/s by two at a time, 3x50257x6616 at 2.7 one by one (H200).
    of_a, of_b = (x.by(next(unit for unit in UNITS if x.unit % unit == 0)) for x in (of_a, of_b))
    steps = None
    if residual is not None:
        steps = residual_steps(residual, c.shape)
        if steps is None:
            return None
    return Threads(of_a, of_b, of_c, steps, _matrix_of_gemv(rows, b, of_a, of_b, of_c))


def _lies_apart(made: Tensor, of_made: Rows) -> bool:
    """Whether no two elements of an output lie at one place."""
    of_made, (*batch, rows, columns) = of_made.by_elements, made.shape
    within = (rows - 1) * of_made.step + columns
    return (rows == 1 or of_made.step >= columns) and (
        not batch or batch[0] == 1 or of_made.matrix >= within
    )


def _matrix_of_gemv(
    a: Tensor, b: Tensor, of_a: Rows, of_b: Rows, of_c: Rows
) -> Literal["a", "b"] | None:
    """Which operand is the matrix of a `gemv`: the other is few vectors, and its rows lie apart."""
    name: Literal["a", "b"] = "b" if a.shape[-2] <= MOST_VECTORS else "a"
    matrix, rows = (b, of_b) if name == "b" else (a, of_a)
    if name == "a" and b.shape[-1] > MOST_VECTORS:
        return None
    whole = of_a.by_elements, of_b.by_elements, of_c.by_elements
    if max(max(each.step, each.matrix) for each in whole) > MAX_STEP:
        return None
    least = max(CHUNK, matrix.shape[rows.contiguous - 2])
    return (
        name
        if matrix.shape[-1 - rows.contiguous] == 1 or whole[name == "b"].step >= least
        else None
    )


class _Prepared(NamedTuple):
    """How a kernel makes a product.

    Attributes:
        tiles: of a matrix of C.
        elements: of a part of a tile.
        numbers: arguments after the addresses.
    """

    tiles: int
    elements: int
    numbers: tuple[int, ...]


def _of_tiles(problem: Problem, threads: Threads, tile: ThreadTile) -> _Prepared:
    """`matmul_by_threads`."""
    a, b, c, residual, _ = threads
    numbers = (
        problem.m, problem.n, problem.k, a.step, b.step, c.step, a.matrix, b.matrix, c.matrix,
        *(residual or (0, 0, 0)),
    )  # fmt: skip
    tiles = tiles_of(tile, problem.size) // problem.batch
    return _Prepared(tiles, tile.block_m * tile.block_n, numbers)


def _of_gemv(problem: Problem, threads: Threads, tile: GemvTile) -> _Prepared:
    """`gemv`."""
    a, b, c = (each.by_elements for each in threads[:3])
    matrix, row, column = threads.residual or (0, 0, 0)
    of_a, k_major = threads.matrix == "a", threads.access.matrix_k_major
    w, v, outputs, vectors = (a, b, problem.m, problem.n) if of_a else (b, a, problem.n, problem.m)
    of_vectors = (1, v.step) if (v.contiguous == 0) != of_a else (v.step, 1)
    of_c, of_residual = ((1, c.step), (column, row)) if of_a else ((c.step, 1), (row, column))
    numbers = (
        outputs, problem.k, w.step, w.matrix, *of_vectors, v.matrix, *of_c, c.matrix, *of_residual,
        matrix,
    )  # fmt: skip
    tiles = math.ceil(outputs / tile.outputs(k_major))
    return _Prepared(tiles, tile.sums(vectors, k_major), numbers)


class ThreadsLaunch:
    """C = A @ B with what follows, for given types, shapes and strides on one GPU; only the
    addresses are open.

    Attributes:
        gpu: where it runs.
        config: the tile, and into how many parts K is divided.
        reads_as: as in `PreparedLaunch`.
    """

    __slots__ = (
        "_elements", "_epilogue", "_grid", "_launch", "_numbers", "config", "gpu", "reads_as"
    )  # fmt: skip

    def __init__(
        self, gpu: Gpu, problem: Problem, threads: Threads, division: ThreadDivision,
        epilogue: EpilogueSpec,
    ) -> None:  # fmt: skip
        """Prepare it."""
        self.gpu, self.reads_as, self.config, self._epilogue = gpu, gpu.arch, division, epilogue
        tile, splits = division
        if isinstance(tile, GemvTile):
            prepared = _of_gemv(problem, threads, tile)
        else:
            prepared = _of_tiles(problem, threads, tile)
        tiles, each, self._numbers = prepared
        self._grid = tiles, splits, problem.batch
        self._elements = tiles * problem.batch * splits * each if splits > 1 else 0
        spec = thread_spec(
            gpu.arch, problem.product, problem.size, threads.access, division, epilogue
        )
        self._launch = TritonLaunch(gpu.index, spec.kernel, spec.constants, **spec.options)

    def __call__(self, a: Tensor, b: Tensor, c: Tensor, epilogue: Epilogue = NOTHING) -> None:
        """Launch on the current stream; the GPU must be the current one.

        Args:
            a, b, c: what lies at the addresses; shapes and strides are not looked at.
            epilogue: what the kernel was prepared for of it is used.
        """
        bias, residual = epilogue.bias, epilogue.residual
        parts = counted = c
        if self._elements:
            parts = torch.empty(self._elements, dtype=torch.float32, device=c.device)
            counted = counters(self._grid[0] * self._grid[2], self.gpu.index)
        self._launch(
            self._grid, a, b, c, c if bias is None else bias, c if residual is None else residual,
            parts, counted, *self._numbers, epilogue.alpha, epilogue.beta,
        )  # fmt: skip

    def at(self, a: int, b: int, c: int, addend: int = 0) -> bool:
        """As of `PreparedLaunch`; not where K is divided."""
        if self._elements:
            return False
        return self._launch.at(self._grid, a, b, c, addend, addend, c, c, *self._numbers, 1.0, 1.0)
