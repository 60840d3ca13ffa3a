"""Many kernels of sm_90 at a time: what a cost model asks of each, as arrays, and how each divides
a problem.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np

from triton_ext.hardware.architecture import resident_clusters
from triton_ext.kernels.choice.problem import Problem
from triton_ext.kernels.last_tile import LINE_BYTES, half_sectors
from triton_ext.kernels.right_operand import edge_columns, right_unit
from triton_ext.kernels.shared_memory import shared_memory_bytes
from triton_ext.kernels.spec import KernelSpec
from triton_ext.kernels.tile import LEAST_K, MOST_K

Array: TypeAlias = Any
"""A numpy array of numbers or truth values, one of each kernel."""


def _right_row_bytes(spec: KernelSpec) -> int:
    """The bytes of a row of the right operand's tile in memory; a line at most."""
    product, tile = spec.product, _tile(spec)
    depth, columns = right_unit(product, tile)
    k_major = product.majors(tile.swap_ab)[1] == "K"
    elements = depth if k_major else min(columns, tile.columns)
    return min(LINE_BYTES, elements * product.element_bytes)


def _tile(spec: KernelSpec) -> Any:
    """That of a specialized kernel."""
    return spec.tile


_OF_TILE = (
    "rows", "columns", "block_m", "block_n", "block_k", "stages", "consumers", "sharing_consumers",
    "units", "loaded_rows", "pingpong", "swap_ab", "cluster_m", "cluster_n", "cluster_k",
    "cluster_size", "split_k",
)  # fmt: skip
COLUMNS: Mapping[str, Callable[[KernelSpec], Any]] = {
    **{name: attrgetter(f"tile.{name}") for name in _OF_TILE},
    "partial_sums": attrgetter("partial_sums"),
    "element_bytes": attrgetter("product.element_bytes"),
    "residual": attrgetter("epilogue.residual"),
    "c_bytes": attrgetter("product.c_bytes"),
    "c_pieces": attrgetter("tile.c_parts"),
    "a_k_major": lambda spec: spec.product.a_major == "K",
    "b_k_major": lambda spec: spec.product.b_major == "K",
    "left_k_major": lambda spec: spec.product.majors(spec.tile.swap_ab)[0] == "K",
    "right_k_major": lambda spec: spec.product.majors(spec.tile.swap_ab)[1] == "K",
    "right_copies":
        lambda spec: spec.tile.block_k // right_unit(spec.product, _tile(spec))[0],
    "right_row_bytes": _right_row_bytes,
    "left_rows": lambda spec: _tile(spec).loaded_rows or _tile(spec).rows,
    "gathered_rows": lambda spec: spec.tile.block_m if spec.product.gathered else 0,
    "edge": lambda spec: edge_columns(spec.product, _tile(spec)),
    "half_sectors": lambda spec: half_sectors(spec.product, _tile(spec)),
    "shared_memory_bytes": lambda spec: shared_memory_bytes(spec.product, spec.tile),
}  # fmt: skip
"""What is asked of each kernel: fields and properties of its values; whether K is the contiguous
dimension of an operand; the tiles along K of which the right operand's tile consists, and the bytes
of a row of these, as it lies in memory, a line at most; the rows of the left operand's tile that
are copied; the rows of A's that are copied one by one; what else follows from the product and the
tile."""


@dataclass(frozen=True)
class Table:
    """Kernels of sm_90, and each of `COLUMNS` as an attribute.

    Attributes:
        specs: the kernels.
        arrays: the columns by name.
    """

    specs: tuple[KernelSpec, ...]
    arrays: Mapping[str, Array]

    @classmethod
    def of(cls, specs: Sequence[KernelSpec]) -> Table:
        """The table of these kernels."""
        arrays = {name: np.array([column(s) for s in specs]) for name, column in COLUMNS.items()}
        return cls(tuple(specs), arrays)

    def __getattr__(self, name: str) -> Array:
        if name in COLUMNS:
            return self.arrays[name]
        raise AttributeError(name)

    def __getitem__(self, chosen: Array) -> Table:
        """Those at such positions."""
        arrays = {name: value[chosen] for name, value in self.arrays.items()}
        return Table(tuple(self.specs[i] for i in chosen), arrays)


@dataclass(frozen=True)
class Division:
    """A problem as each kernel divides it; rows and columns of what is computed.

    Attributes:
        rows, columns: of C, or of its transpose.
        tiles_m, tiles_n, tiles: of C, and of the batch; each of a cluster.
        k_tiles: of a tile of C; of each block, if those of a cluster divide K.
        programs: how many clusters run at a time.
        waves: of whole tiles.
        part: of a tile, that a block makes after them; 0 if nothing is left.
        parts: how many parts the blocks of a tile wait for: 0 if it is whole, negative if the last
            block adds up all.
        overlap: whether the last tiles overlap others.
    """

    rows: Array
    columns: Array
    tiles_m: Array
    tiles_n: Array
    tiles: Array
    k_tiles: Array
    programs: Array
    waves: Array
    part: Array
    parts: Array
    overlap: Array


def divided(table: Table, problem: Problem) -> Division:
    """As `kernels.device.scheduler` does it."""
    m, n, k, multiprocessors, batch, _ = problem
    rows, columns = np.where(table.swap_ab, n, m), np.where(table.swap_ab, m, n)
    tiles_m = ceil(rows, table.rows * table.cluster_m)
    tiles_n = ceil(columns, table.columns * table.cluster_n)
    tiles = batch * tiles_m * tiles_n
    sizes = sorted(set(table.cluster_size.tolist()))  # `np.unique` imports 50 ms of numpy first
    room = [resident_clusters(multiprocessors, size) for size in sizes]
    programs = np.array(room)[np.searchsorted(sizes, table.cluster_size)]
    k_tiles = ceil(k, table.cluster_k * table.block_k)
    waves, left = np.divmod(tiles, programs)
    is_cut = (left > 0) & (table.split_k > 1)
    some = np.maximum(left, 1)
    most = np.maximum(np.minimum(table.split_k, k_tiles // LEAST_K), 1)
    splits = np.minimum(programs // some, most)
    blocks = np.minimum(programs, some * most)
    uneven = is_cut & (np.minimum(tiles_m, tiles_n) == 1) & (k_tiles < MOST_K)
    uneven &= 8 * left * splits < 7 * blocks
    part = np.where(uneven, left / blocks, np.where(is_cut, 1 / splits, left > 0))
    parts = np.where(uneven, -ceil(blocks, some) - 1, np.where(is_cut & (splits > 1), splits, 0))
    overlap = (table.split_k == 1) | (left == 0) | ((waves == 0) & ~uneven)
    overlap &= ~table.residual
    return Division(
        rows, columns, tiles_m, tiles_n, tiles, k_tiles, programs, waves, part, parts, overlap
    )


def ceil(size: Array, step: Array) -> Array:
    """How many steps a size takes."""
    return -(-size // step)
