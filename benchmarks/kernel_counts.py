"""How many kernels drawn problems need, and what fewer would cost; needs no GPU.

    python -m benchmarks.kernel_counts [--random SEED] [--number N] [--write] [--json FILE]

What fewer cost is by the cost model alone. So many kernels are chosen for the problems of the two
next seeds: one after the other, each the one that shortens their predicted times the most, then
each is exchanged for a better one, if there is one. Then each of the first seed's problems takes
the fastest of them; the rest is how much longer than in the best of all candidates that is.
``--write`` writes what was chosen as kernels/choice/fixed_sets.json, which
`triton_ext.kernels.choice.fixed_set` reads.
"""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.harness import Row, Table
from benchmarks.problems import Problem, drawn_problems
from triton_ext.kernels.choice import fixed_set, sm90, sm100
from triton_ext.kernels.choice.problem import Problem as Size
from triton_ext.kernels.choice.table import Table as Kernels
from triton_ext.kernels.product import ProductSpec

COUNTS = (16, 32, fixed_set.MOST, 128)
SMS = {90: 132, 100: 148}
LONGEST = 3.0
"""A problem that is slower than so many times its fastest counts as if it took so long."""
TAIL = 3.0
"""How much the square of a time's logarithm counts, beside the logarithm."""
NEAR = 2.2
"""What is so many times as slow by the limits alone is not looked at more closely."""
Array = NDArray[np.float32]
Column = tuple[str, fixed_set.TileKey]
"""A kernel: the name of the set that it would be in, and its tile."""


class Family(NamedTuple):
    """Kernels for operands of one size, named by a type of that size.

    Attributes:
        either: whether its operands may be MN-major.
    """

    arch: int
    element_type: str
    either: bool = False

    def belongs(self, problem: Problem) -> bool:
        """Whether a drawn problem's sizes and major-nesses are for it. Those in e4m3 are few, and
        alike, so operands of 8 and 32 bits get the problems of 16 bits, too.
        """
        is_own = problem.element_type != "e4m3" or self.element_type == "e4m3"
        return is_own and (self.either or problem.a_major == problem.b_major == "K")

    def ratios(self, problem: Problem) -> dict[Column, float]:
        """How many times as long as with the fastest candidate it takes with each, as far as these
        are near.
        """
        out_type = "bf16" if self.element_type == "e4m3" else None
        product = ProductSpec(self.element_type, problem.a_major, problem.b_major, out_type)
        configs = fixed_set.every_candidate(self.arch, product)
        size = Size(problem.m, problem.n, problem.k, SMS[self.arch])
        if self.arch == 90:
            seconds = _seconds_sm90(product, size)
        else:
            seconds = np.array(sm100.seconds(configs, size))
        name = fixed_set.set_name(self.arch, product)
        ratios = seconds / seconds.min()
        return {
            (name, fixed_set.tile_of(configs[i])): float(ratios[i])
            for i in np.flatnonzero(ratios < LONGEST)
        }


FAMILIES = (
    Family(90, "bf16", True), Family(90, "e4m3"), Family(90, "tf32"), Family(100, "bf16", True),
    Family(100, "e4m3", True),
)  # fmt: skip


@functools.cache
def _table(product: ProductSpec) -> Kernels:
    return Kernels.of(fixed_set.every_candidate(90, product))


def _seconds_sm90(product: ProductSpec, size: Size) -> NDArray[np.float64]:
    """Predicted seconds of all candidates for operands of a kind; infinite for what is not near, or
    does not suit.
    """
    table = _table(product)
    limited: NDArray[np.float64] = sm90.limits(table, size)
    usable = sm90.suits(table, size)
    usable &= [fixed_set.copies_enough(each, size) for each in table.specs]
    limited[~usable] = np.inf
    near = np.flatnonzero(limited <= NEAR * limited.min())
    seconds = np.full(len(limited), np.inf)
    seconds[near] = sm90.seconds(table[near], size)
    return seconds


def costs(
    family: Family, problems: Sequence[Problem], columns: Sequence[Column] = ()
) -> tuple[Array, list[Column]]:
    """The logarithms of the ratios of a family's problems.

    Args:
        columns: the kernels; by default all that are near for one of the problems.

    Returns:
        (problems, columns), and the columns.
    """
    found = [family.ratios(each) for each in problems if family.belongs(each)]
    columns = list(columns) or list(dict.fromkeys(column for each in found for column in each))
    position = {column: i for i, column in enumerate(columns)}
    logs = np.full((len(found), len(columns)), np.log(LONGEST), dtype=np.float32)
    for row, each in enumerate(found):
        for column, ratio in each.items():
            if column in position:
                logs[row, position[column]] = np.log(ratio)
    return logs, columns


def chosen(logs: Array, number: int) -> list[int]:
    """So many columns, of which each row's least is small."""
    values = logs + TAIL * logs * logs
    highest = np.log(LONGEST) + TAIL * np.log(LONGEST) ** 2
    least: Array = np.full(len(logs), highest, dtype=np.float32)
    found: list[int] = []
    for _ in range(min(number, logs.shape[1])):
        best = int(np.maximum(least[:, None] - values, 0).sum(axis=0).argmax())
        least = np.minimum(least, values[:, best])
        found.append(best)
    for place in range(len(found)):
        others = values[:, found[:place] + found[place + 1 :]]
        least = others.min(axis=1, initial=highest)
        found[place] = int(np.minimum(least[:, None], values).sum(axis=0).argmin())
    return found


def rows(random: int, number: int, write: bool) -> Iterator[Row]:
    """The kernels of each type, then what fewer would cost.

    Args:
        random: the first seed.
        number: of problems of each.
        write: the sets of `fixed_set.MOST`.
    """
    problems = drawn_problems(random, number)
    needed = defaultdict(list)
    for problem in problems:
        needed[problem.element_type].append(problem.config())
    for name, configs in needed.items():
        yield {"what": name, "problems": len(configs), "kernels": len(set(configs))}
    known = [each for seed in (1, 2) for each in drawn_problems(random + seed, number)]
    sets: dict[str, list[fixed_set.TileKey]] = {}
    for family in FAMILIES:
        logs, columns = costs(family, known)
        tested, _ = costs(family, problems, columns)
        for count in COUNTS:
            kept = chosen(logs, count)
            least = tested[:, kept].min(axis=1)
            yield {
                "what": f"sm_{family.arch} {family.element_type}", "problems": len(tested),
                "kernels": len(kept), "cost": float(np.exp(least.mean())) - 1,
                "cost_98": float(np.exp(np.quantile(least, 0.98))) - 1,
            }  # fmt: skip
            if count == fixed_set.MOST:
                for name, tile in sorted(columns[i] for i in kept):
                    sets.setdefault(name, []).append(tile)
    if write:
        _write(sets)


def _write(sets: dict[str, list[fixed_set.TileKey]]) -> None:
    """A tile a line."""
    lines = [
        f"  {json.dumps(name)}: [\n"
        + ",\n".join(f"   {json.dumps(tile)}" for tile in tiles)
        + "\n  ]"
        for name, tiles in sets.items()
    ]
    fields = json.dumps(["row_bytes", *fixed_set.TILE_FIELDS])
    text = f'{{\n "fields": {fields},\n "sets": {{\n' + ",\n".join(lines) + "\n }\n}\n"
    fixed_set.FILE.write_text(text)


TABLE = Table(
    ("problems", "<18", "what"),
    ("number", ">8", "problems"),
    ("kernels", ">9", "kernels"),
    ("slower by", ">11", lambda row: f"{row['cost']:.1%}" if "cost" in row else ""),
    ("98 % by less than", ">19", lambda row: f"{row['cost_98']:.0%}" if "cost" in row else ""),
)


if __name__ == "__main__":
    harness.main("kernel_counts", __doc__, rows, TABLE, random=77, number=1000, write=False)
