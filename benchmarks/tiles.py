"""Which tiles are worth considering on Hopper, of all that there may be; needs no GPU.

    python -m benchmarks.tiles [--random SEED] [--number N] [--write] [--json FILE]

By the cost models of both GPUs, for problems drawn from all classes and *round* ones: one after the
other, the tile that shortens their predicted times the most, until none saves anything worth a
candidate. The tiles of `candidates.TILES` are there from the beginning. The table says how much
longer problems take than with every tile: the chosen tiles' own ones, and as many of the next
seeds, which they were not chosen for. ``--write`` writes kernels/choice/tiles.json.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.harness import Row, Table
from benchmarks.problems import Problem, drawn_problems
from triton_ext.kernels.choice import sm90
from triton_ext.kernels.choice.candidates import (
    AS_IS,
    FILE,
    SWAPPED,
    TILES,
    adapted,
    copied_rows,
    made,
    wide_tile,
)
from triton_ext.kernels.choice.fixed_set import TILE_FIELDS, tile_of
from triton_ext.kernels.choice.fixed_set import TileKey as Key
from triton_ext.kernels.choice.gpus import GpuModel
from triton_ext.kernels.choice.table import Table as Kernels
from triton_ext.kernels.product import ProductSpec
from triton_ext.kernels.spec import KernelSpec

GPUS: tuple[GpuModel, ...] = ("h100", "h200")
CLUSTERS = ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (4, 2), (1, 4), (2, 4))
"""Blocks that share the tile of the right operand, and of the left one."""
SPLITS = 16
"""How often split-K may cut a tile, at most."""
KINDS: tuple[tuple[Kind, Sequence[int]], ...] = (
    ({"rows": 64, "consumers": 1}, range(24, 257, 8)),
    ({"rows": 64, "consumers": 2, "pingpong": True}, range(64, 257, 8)),
    ({"rows": 128, "consumers": 1}, range(40, 209, 8)),
    ({"rows": 128, "consumers": 2}, range(40, 257, 8)),
    ({"rows": 128, "consumers": 2, "pingpong": True}, range(40, 209, 8)),
    ({"rows": 192, "consumers": 3}, range(40, 193, 8)),
    ({"rows": 256, "consumers": 2}, range(40, 209, 8)),
)
"""Fields of `Sm90Tile`, and how many columns there may be, as registers have room for."""
MOST_LOG = float(np.log(1.3))
"""A problem that takes longer than 1.3 times its best counts as if it took so long."""
TAIL = 6.0
"""How much the square of a time's logarithm counts, beside the logarithm."""
LEAST_SAVED = 0.004
"""What a tile has to save, of all problems together, as such a sum."""
NEEDED = ("rows", "consumers", "pingpong")
"""Fields of a kind that are written even if they are 1."""
Kind = dict[str, Any]
SMS = 132
"""The SMs of an H100 SXM, and of an H200."""


def every_kind() -> Iterator[tuple[Kind, Sequence[int]]]:
    """The kinds of tiles: one or two lines of K, in clusters, with split-K or K among blocks."""
    for (kind, columns), lines in itertools.product(KINDS, (1, 2)):
        fields = {**kind, "block_k": lines}
        for along, across in CLUSTERS:
            together = {**fields, "cluster_m": along, "cluster_n": across}
            yield together, columns
            if "pingpong" not in kind:
                yield {**together, "split_k": SPLITS}, columns
        if len(kind) == 2 and kind["rows"] < 256:
            for blocks in (2, 4):
                yield {**fields, "cluster_k": blocks}, columns


class Tried(NamedTuple):
    """All tiles for operands of a kind: how `tile_of` names each, its kind, and a configuration."""

    keys: list[Key]
    kinds: list[Kind | None]
    configs: list[KernelSpec]


@functools.cache
def tried(product: ProductSpec) -> Tried:
    """Every tile once; those of `candidates.TILES` first, which have no kind."""
    found: dict[Key, tuple[Kind | None, KernelSpec]] = {}
    for config in made(TILES, product):
        if config.is_legal:
            found.setdefault(tile_of(config), (None, config))
    for kind, columns in every_kind():
        tiles = [wide_tile(kind, each, swap) for each in columns for swap in (False, True)]
        for config in made(tiles, product):
            if config.is_legal:
                found.setdefault(tile_of(config), (kind, config))
    kinds, configs = zip(*found.values(), strict=True)
    return Tried(list(found), list(kinds), list(configs))


def table_of(problem: Problem) -> Kernels:
    """All tiles, as they are for a problem."""
    sizes = copied_rows(problem.m), copied_rows(problem.n)
    return _table(_product(problem), *sizes)


@functools.cache
def _table(product: ProductSpec, m: int, n: int) -> Kernels:
    plain = replace(product, fp32_accumulation=False)
    every = (adapted(each, n if each.tile.swap_ab else m) for each in tried(plain).configs)
    return sm90.table_of(every, product)


def _product(problem: Problem) -> ProductSpec:
    """Kernels for fp16 are as fast as those for bf16."""
    product = problem.product
    return replace(product, element_type="bf16") if product.element_type == "fp16" else product


def logs(problem: Problem, gpu: GpuModel) -> dict[Key, float]:
    """The logarithms of predicted times over that of the best of all tiles, as far as these are
    near.
    """
    table = table_of(problem)
    size = problem.size(SMS, gpu)
    limited = sm90.limits(table, size)
    limited[~sm90.suits(table, size)] = np.inf
    near = np.flatnonzero(limited <= sm90.NEAR * limited.min())
    found = np.log(sm90.seconds(table[near], size))
    keys = [tile_of(spec) for spec in table.specs]
    pairs = zip(near, found - found.min(), strict=True)
    return {keys[i]: float(log) for i, log in pairs if log < MOST_LOG}


def _value(log: NDArray[np.float64]) -> NDArray[np.float64]:
    return log + TAIL * log * log


def chosen(found: Sequence[dict[Key, float]], given: set[Key]) -> list[Key]:
    """Tiles one after the other, the one that saves most of the problems' times first; those that
    are given are there already.
    """
    rows: dict[Key, list[int]] = defaultdict(list)
    values: dict[Key, list[float]] = defaultdict(list)
    for row, each in enumerate(found):
        for key, log in each.items():
            rows[key].append(row)
            values[key].append(log)
    places = {key: np.array(each) for key, each in rows.items()}
    costs = {key: _value(np.array(each)) for key, each in values.items()}
    least = np.full(len(found), _value(np.array(MOST_LOG)))
    for key in given & places.keys():
        np.minimum.at(least, places[key], costs[key])

    def saved(key: Key) -> float:
        return float(np.maximum(least[places[key]] - costs[key], 0).sum())

    kept: list[Key] = []
    queue = [(-saved(key), key) for key in places if key not in given]
    heapq.heapify(queue)
    while queue:  # what a tile saves only shrinks, so the first one that is up to date is the best
        _, key = heapq.heappop(queue)
        now = saved(key)
        if queue and now < -queue[0][0]:
            heapq.heappush(queue, (-now, key))
        elif now < LEAST_SAVED:
            break
        else:
            kept.append(key)
            least[places[key]] = np.minimum(least[places[key]], costs[key])
    return kept


def drawn(random: int, number: int) -> list[Problem]:
    """Drawn problems of all classes, and a fourth as many *round* ones."""
    return drawn_problems(random, number) + drawn_problems(random + 1, number // 4, ("round",))


def rows(random: int, number: int, write: bool) -> Iterator[Row]:
    """What tiles chosen for some problems cost them, and what they cost others.

    Args:
        random: the first of four seeds.
        number: of problems of each.
        write: the tiles.
    """
    sets = {name: drawn(random + seed, number) for name, seed in (("own", 0), ("next", 2))}
    found = {
        name: [logs(problem, gpu) for problem in problems for gpu in GPUS]
        for name, problems in sets.items()
    }
    kinds: dict[Key, Kind | None] = {}
    products = (_product(each) for problems in sets.values() for each in problems)
    for product in dict.fromkeys(replace(each, fp32_accumulation=False) for each in products):
        every = tried(product)
        for key, kind in zip(every.keys, every.kinds, strict=True):
            kinds[key] = kinds.get(key) or kind
    given = {key for key, kind in kinds.items() if kind is None}
    kept = chosen(found["own"], given)
    there = given.union(kept)
    for name, each in found.items():
        costs = np.array(
            [min((one[key] for key in one.keys() & there), default=MOST_LOG) for one in each]
        )
        yield {
            "what": name, "problems": len(sets[name]), "tiles": len(kept),
            "cost": float(np.exp(costs.mean())) - 1,
            "cost_98": float(np.exp(np.quantile(costs, 0.98))) - 1,
        }  # fmt: skip
    if write:
        write_tiles(chosen([*found["own"], *found["next"]], given), kinds)


def write_tiles(kept: Sequence[Key], kinds: Mapping[Key, Kind | None]) -> None:
    """A kind a line: its fields but those that have their default, and the columns."""
    columns: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for key in sorted(kept):
        values = dict(zip(TILE_FIELDS, key[1:], strict=True))
        fields = kinds[key] or {}
        text = json.dumps({name: each for name, each in fields.items() if name in NEEDED
                           or each != 1})  # fmt: skip
        columns[text][SWAPPED if values["swap_ab"] else AS_IS].append(values["columns"])
    lines = [json.dumps({**json.loads(text), **found}) for text, found in sorted(columns.items())]
    FILE.write_text("[\n " + ",\n ".join(lines) + "\n]\n")


TABLE = Table(
    ("problems", "<12", "what"),
    ("number", ">8", "problems"),
    ("tiles", ">8", "tiles"),
    ("slower by", ">11", lambda row: f"{row['cost']:.2%}"),
    ("98 % by less than", ">19", lambda row: f"{row['cost_98']:.1%}"),
)


if __name__ == "__main__":
    harness.main("tiles", __doc__, rows, TABLE, random=520, number=1500, write=False)
