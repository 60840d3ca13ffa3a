"""Few kernels for all problems: at most 64 of a type of operands, known before any shape is.

`choose_config` has hundreds of tiles to choose from, and what it chooses for the first time must be
compiled. Who cannot wait for that compiles the fixed set ahead, and chooses among it alone: that is
slower by some percent, but nothing is ever compiled for a new shape.

``python -m benchmarks.kernel_counts --write`` chooses the sets, by the cost model.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np

from triton_ext.errors import LayoutError
from triton_ext.kernels.choice import cost_model, cost_model_sm100
from triton_ext.kernels.choice.candidates import ALL_ROWS, LOADED_ROWS, candidates, is_new
from triton_ext.kernels.choice.gpus import GpuModel
from triton_ext.kernels.config import MatmulConfig
from triton_ext.kernels.element_types import BLOCK_SCALED, ELEMENT_BYTES, Major

FILE = Path(__file__).with_name("fixed_sets.json")
"""The sets by `set_name`, each a list of `Tile`."""
MOST = 64
"""How many kernels there are for a type, over all major-nesses."""
TILE_FIELDS = (
    "rows", "columns", "consumers", "swap", "pingpong", "cluster", "cluster_columns", "pair",
    "k_blocks", "max_splits", "loaded_rows",
)  # fmt: skip
"""What of a configuration is the same for all types; stages and pieces of C follow."""

Tile = tuple[int, ...]
"""Bytes of a row of K-major tiles of A and B, then the values of `TILE_FIELDS`."""


def tile_of(config: MatmulConfig) -> Tile:
    """What a configuration has in common with those of other types."""
    row_bytes = config.block_k * config.element_bytes
    return row_bytes, *(int(getattr(config, name)) for name in TILE_FIELDS)


def set_name(arch: int, element_type: str, a_major: Major, b_major: Major) -> str:
    """Types of the same size have the same set, but for those with scales of their own."""
    kind = f"{8 * ELEMENT_BYTES[element_type]} bits"
    return f"sm_{arch} {element_type if element_type in BLOCK_SCALED else kind} {a_major} {b_major}"


@functools.cache
def every_candidate(
    arch: int, element_type: str, a_major: Major, b_major: Major, out_type: str | None = None
) -> tuple[MatmulConfig, ...]:
    """What a set is chosen from: the candidates for all problems, one of each tile."""
    asked = (element_type, a_major, b_major, out_type)
    if arch == 90:
        every = [
            config for rows in (ALL_ROWS, *LOADED_ROWS) for config in candidates(*asked, rows, rows)
        ]
    else:
        every = [*cost_model_sm100.candidates(*asked)]
    found: dict[Tile, MatmulConfig] = {}
    for config in every:
        found.setdefault(tile_of(config), config)
    return tuple(found.values())


@functools.cache
def _sets() -> dict[str, frozenset[Tile]]:
    sets = json.loads(FILE.read_text())["sets"]
    return {name: frozenset(map(tuple, tiles)) for name, tiles in sets.items()}


@functools.cache
def fixed_set(
    arch: int, element_type: str, a_major: Major, b_major: Major, out_type: str | None = None
) -> tuple[MatmulConfig, ...]:
    """The kernels for operands of a type and major-ness; all candidates where the file has no set,
    as they are few there. None if no kernel takes them.

    Args:
        arch, element_type, a_major, b_major, out_type: as in `MatmulConfig`.

    Raises:
        LayoutError: a release of Triton before 3.9, which lacks most of them.
    """
    if not is_new():
        raise LayoutError("kernels", "fixed", "must be 'all' before Triton 3.9")
    every = every_candidate(arch, element_type, a_major, b_major, out_type)
    tiles = _sets().get(set_name(arch, element_type, a_major, b_major))
    return every if tiles is None else tuple(each for each in every if tile_of(each) in tiles)


@functools.cache
def _table(*asked: str | None) -> cost_model.Table:
    return cost_model.Table.of(fixed_set(90, *asked))


def choose_fixed(
    arch: int, element_type: str, a_major: Major, b_major: Major, m: int, n: int, k: int,
    multiprocessors: int, out_type: str | None, batch: int, gpu: GpuModel,
) -> MatmulConfig:  # fmt: skip
    """The fastest kernel of the set for a problem, by the cost model; as `choose_config`."""
    kind = (element_type, a_major, b_major, out_type)
    if arch == 100:
        return min(
            fixed_set(100, *kind),
            key=lambda config: cost_model_sm100.predicted_seconds(
                config, m, n, k, multiprocessors, batch
            ),
        )
    problem = cost_model.Problem(m, n, k, multiprocessors, batch, gpu)
    table = _table(*kind)
    table = table[np.flatnonzero(copies_enough(table, problem))]
    suits = bool(cost_model.suits(table, problem).any())
    return next(cost_model.ranked_in(table, problem, every=not suits))


def copies_enough(table: cost_model.Table, problem: cost_model.Problem) -> cost_model.Array:
    """Whether each configuration copies all rows of the left operand that a problem has."""
    rows = np.where(table.swap, problem.n, problem.m)
    return (table.loaded_rows == 0) | (table.loaded_rows >= rows)
