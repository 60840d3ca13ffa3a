"""The layouts of tensor memory as numpy indices, each computed once.

The facts are those of `triton_ext.hardware`: tensor_memory (accumulators and operand A),
tensor_memory_access (tcgen05.ld and st), tensor_memory_copy (tcgen05.cp).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.state.tensor_memory import Cells
from triton_ext.hardware.tensor_memory import (
    MOST_COLUMNS,
    TMEM_COLUMNS,
    TMEM_LANES,
    data_path_layout,
)
from triton_ext.hardware.tensor_memory_access import ACCESS_SHAPES, TmemAccess
from triton_ext.hardware.tensor_memory_copy import copy_shape
from triton_ext.layouts.linear_layout import Basis


def _combine(bases: Sequence[Basis]) -> NDArray[np.int64]:
    """(2 ** len(bases), 2): what each number's bits select, added up."""
    points: NDArray[np.int64] = np.zeros((1, 2), np.int64)
    for basis in bases:
        points = np.concatenate([points, points + np.array(basis, np.int64)])
    return points


@dataclass(frozen=True)
class AccessCells:
    """The cells of one tcgen05.ld or st of a warp.

    Attributes:
        offsets: (registers, 32 threads): flat indices, relative to the address; with
            ``.pack::16b`` those of the first of the two columns.
        columns: the number of columns from the first to the last.
        rectangle: register r of thread t is lane t, column r (shape 32x32b, not packed).
        first_lanes: at which lanes of the warp's 32 the address may start.
    """

    offsets: NDArray[np.int64]
    columns: int
    rectangle: bool
    first_lanes: tuple[int, ...]


@lru_cache(256)
def access_cells(shape: str, repeat: int, pack: bool, split: int | None) -> AccessCells:
    """The cells that a warp's tcgen05.ld or st names.

    Args:
        shape, repeat, pack: the instruction's ``.shape``, ``.num`` and ``.pack::16b``.
        split: immHalfSplitoff of shape 16x32bx2: any number of columns.

    Raises:
        LayoutError: an illegal combination.
    """
    # The hardware takes any split, a `TmemAccess` powers of two alone: those of threads
    # 16-31 are computed here.
    legal = None if shape != "16x32bx2" else TMEM_COLUMNS // 2
    registers, threads = TmemAccess(shape, repeat, pack, legal).bases()
    if legal is not None:
        threads = threads[:-1]
    points = _combine(threads)
    if legal is not None:
        points = np.concatenate([points, points + np.array((0, split), np.int64)])
    cells = _combine(registers)[:, None, :] + points[None, :, :]
    offsets = cells[..., 0] * MOST_COLUMNS + cells[..., 1]
    offsets.flags.writeable = False
    columns = int(cells[..., 1].max()) + (2 if pack else 1)
    half = ACCESS_SHAPES[shape].lanes < 32
    return AccessCells(offsets, columns, shape == "32x32b" and not pack, (0, 16) if half else (0,))


@dataclass(frozen=True)
class DataPath:
    """The lanes of an MMA's accumulator.

    Attributes:
        rows: the number of rows of D that one block holds.
        parts: into how many parts N is split.
        lanes: a slice, or (parts * rows,): the lane of row r of part p is at p * rows + r.
        first_lanes: the lanes at which the address may start.
    """

    rows: int
    parts: int
    lanes: Any
    first_lanes: tuple[int, ...]

    def cells(self, first_lane: int, column: int, columns: int) -> Cells:
        """The cells of `columns` columns, from `column` on, of every lane."""
        lanes = self.lanes
        if first_lane:
            lanes = lanes + first_lane
        return lanes, slice(column, column + columns)

    def lane_numbers(self, first_lane: int) -> NDArray[np.int64]:
        """(parts * rows,): `lanes` as an array, counted from `first_lane`."""
        numbers: NDArray[np.int64] = np.arange(TMEM_LANES)[self.lanes] + first_lane
        return numbers


@lru_cache(64)
def data_path(m: int, group: int, weight_stationary: bool) -> DataPath:
    """The lanes of an accumulator. Raises LayoutError: no instruction has this M in this mode."""
    layout = data_path_layout(m, group, weight_stationary=weight_stationary)
    parts = layout.column_parts
    bases = layout.lane_bases(parts)  # with N = parts, a column is the number of the part
    table = np.full(parts * layout.rows, -1, np.int64)
    for lane in range(TMEM_LANES):
        chosen = [basis for bit, basis in enumerate(bases) if lane >> bit & 1]
        if None in chosen:
            continue
        row = sum(basis[0] for basis in chosen if basis is not None)
        part = sum(basis[1] for basis in chosen if basis is not None)
        table[part * layout.rows + row] = lane
    lanes: Any = slice(0, TMEM_LANES) if len(table) == TMEM_LANES else table
    if len(table) == TMEM_LANES and (table != np.arange(TMEM_LANES)).any():
        lanes = table
    return DataPath(layout.rows, parts, lanes, layout.lane_alignments)


@lru_cache(16)
def copy_lanes(shape: str, multicast: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The lanes that a tcgen05.cp writes, counted from its address, and the row of each."""
    lanes, rows = np.array(copy_shape(shape, multicast).destinations(), np.int64).T
    order = np.argsort(lanes, kind="stable")
    return lanes[order], rows[order]
