"""How many kernels drawn problems need, and what fewer would cost; needs no GPU.

    python -m benchmarks.kernel_counts [--random SEED] [--number N] [--json FILE]

What fewer would cost is by the cost model alone: of a second seed's problems, kernels are taken one
after the other, each the one that shortens their predicted times the most; then each of the first
seed's problems takes the fastest of so many. fp16 counts as bf16 there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from benchmarks import harness
from benchmarks.harness import Row, Table
from benchmarks.problems import Problem, drawn_problems
from triton_ext.kernels import cost_model
from triton_ext.kernels.config import MatmulConfig

COUNTS = (16, 32, 64, 96, 128, 160)
WORST = 2.0
"""A problem whose kernels are all slower than this, over its fastest, counts as if it took so
long."""
Times = list[dict[MatmulConfig, float]]
"""Of each problem: its kernels, and how many times as long as with the fastest it takes."""


def times(problems: Sequence[Problem]) -> Times:
    """Those below `WORST`, by the model."""
    found = []
    for each in problems:
        sizes = cost_model.Problem(each.m, each.n, each.k, 132)
        table = cost_model.considered(
            each.element_type, each.a_major, each.b_major, each.out_type, sizes
        )
        seconds = cost_model.corrected_seconds(table, sizes)
        seconds[~cost_model.suits(table, sizes)] = np.inf
        ratios = seconds / seconds.min()
        found.append({table.configs[i]: float(ratios[i]) for i in np.flatnonzero(ratios < WORST)})
    return found


def chosen(known: Times, number: int) -> list[MatmulConfig]:
    """So many kernels, the most useful ones first."""
    kernels = list(dict.fromkeys(config for each in known for config in each))
    position = {config: i for i, config in enumerate(kernels)}
    logs = np.full((len(known), len(kernels)), np.log(WORST), dtype=np.float32)
    for row, each in enumerate(known):
        for config, ratio in each.items():
            logs[row, position[config]] = np.log(ratio)
    least, found = np.full(len(known), np.log(WORST)), []
    for _ in range(min(number, len(kernels))):
        best = int(np.maximum(least[:, None] - logs, 0).sum(axis=0).argmax())
        least = np.minimum(least, logs[:, best])
        found.append(kernels[best])
    return found


def rows(random: int, number: int) -> Iterator[Row]:
    """The kernels of each type, then what fewer would cost.

    Args:
        random: the first seed; the second is the next one.
        number: of problems of each.
    """
    problems = drawn_problems(random, number)
    needed = defaultdict(list)
    for problem in problems:
        needed[problem.element_type].append(problem.config())
    for name, configs in needed.items():
        yield {"what": name, "problems": len(configs), "kernels": len(set(configs))}
    classes = {
        "16 bits, K-major": lambda p: p.element_type != "e4m3" and p.a_major == p.b_major == "K",
        "16 bits": lambda p: p.element_type != "e4m3",
        "e4m3": lambda p: p.element_type == "e4m3",
    }
    both = [
        [replace(p, element_type="bf16") if p.element_type == "fp16" else p for p in each]
        for each in (problems, drawn_problems(random + 1, number))
    ]
    for name, belongs in classes.items():
        tested, known = (times([p for p in each if belongs(p)]) for each in both)
        order = chosen(known, max(COUNTS))
        for count in COUNTS:
            costs = [min(each.get(c, WORST) for c in order[:count]) for each in tested]
            yield {
                "what": name, "problems": len(tested), "kernels": count,
                "cost": float(np.exp(np.log(costs).mean())) - 1,
                "cost_98": float(np.quantile(costs, 0.98)) - 1,
            }  # fmt: skip


TABLE = Table(
    ("problems", "<18", "what"),
    ("number", ">8", "problems"),
    ("kernels", ">9", "kernels"),
    ("slower by", ">11", lambda row: f"{row['cost']:.1%}" if "cost" in row else ""),
    ("98 % by less than", ">19", lambda row: f"{row['cost_98']:.0%}" if "cost" in row else ""),
)


if __name__ == "__main__":
    harness.main("kernel_counts", __doc__, rows, TABLE, random=77, number=1000)
