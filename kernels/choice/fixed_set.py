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

from triton_ext.errors import LayoutError
from triton_ext.kernels.choice import sm100
from triton_ext.kernels.choice.candidates import ALL_ROWS, LOADED_ROWS, candidates, is_new
from triton_ext.kernels.choice.problem import Problem
from triton_ext.kernels.element_types import BLOCK_SCALED, ELEMENT_BYTES
from triton_ext.kernels.product import ProductSpec
from triton_ext.kernels.spec import KernelSpec

FILE = Path(__file__).with_name("fixed_sets.json")
"""The sets by `set_name`, each a list of `Tile`."""
MOST = 64
"""How many kernels there are for a type, over all major-nesses."""
TILE_FIELDS = (
    "rows", "columns", "consumers", "swap_ab", "pingpong", "cluster_m", "cluster_n", "cta_group",
    "cluster_k", "split_k", "loaded_rows",
)  # fmt: skip
"""What of a tile is the same for all types; stages and pieces of C follow."""

TileKey = tuple[int, ...]
"""Bytes of a row of K-major tiles of A and B, then the values of `TILE_FIELDS`."""


def tile_of(spec: KernelSpec) -> TileKey:
    """What a kernel has in common with those of other types."""
    row_bytes = spec.tile.block_k * spec.product.element_bytes
    return row_bytes, *(int(getattr(spec.tile, name)) for name in TILE_FIELDS)


def set_name(arch: int, product: ProductSpec) -> str:
    """Types of the same size have the same set, but for those with scales of their own."""
    name = product.element_type
    kind = name if name in BLOCK_SCALED else f"{8 * ELEMENT_BYTES[name]} bits"
    return f"sm_{arch} {kind} {product.a_major} {product.b_major}"


@functools.cache
def every_candidate(arch: int, product: ProductSpec) -> tuple[KernelSpec, ...]:
    """What a set is chosen from: the candidates for all problems, one of each tile."""
    if arch == 90:
        every = [
            spec for rows in (ALL_ROWS, *LOADED_ROWS) for spec in candidates(product, rows, rows)
        ]
    else:
        every = [*sm100.every_candidate(product)]
    found: dict[TileKey, KernelSpec] = {}
    for spec in every:
        found.setdefault(tile_of(spec), spec)
    return tuple(found.values())


@functools.cache
def _sets() -> dict[str, frozenset[TileKey]]:
    sets = json.loads(FILE.read_text())["sets"]
    return {name: frozenset(map(tuple, tiles)) for name, tiles in sets.items()}


@functools.cache
def fixed_set(arch: int, product: ProductSpec) -> tuple[KernelSpec, ...]:
    """The kernels for operands of a type and major-ness; all candidates where the file has no set,
    as they are few there. None if no kernel takes them.

    Raises:
        LayoutError: a release of Triton before 3.9, which lacks most of them.
    """
    if not is_new():
        raise LayoutError("kernels", "fixed", "must be 'all' before Triton 3.9")
    every = every_candidate(arch, product)
    tiles = _sets().get(set_name(arch, product))
    return every if tiles is None else tuple(each for each in every if tile_of(each) in tiles)


def copies_enough(spec: KernelSpec, problem: Problem) -> bool:
    """Whether a kernel copies all rows of the left operand that a problem has."""
    loaded = getattr(spec.tile, "loaded_rows", 0)
    return loaded == 0 or loaded >= (problem.n if spec.tile.swap_ab else problem.m)
