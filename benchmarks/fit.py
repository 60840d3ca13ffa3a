"""Fit the cost model's constants to measured times of many configurations.

    python -m benchmarks.survey --random 1 2 3 --number 60 --json survey.json   # on the GPU
    python -m benchmarks.fit survey.json [--folds N]                             # anywhere
    python -m benchmarks.fit survey.json... [--folds N] --correction FILE

What is minimised is what the choice costs: the expected time, over the best one's, of a choice that
takes a configuration with a probability that falls exponentially with its predicted time; and, with
a weight, the squared errors of the logarithms. Problems, not rows, are divided for the
cross-validation, those that were measured more than once by their name: the constants fitted to all
others predict those left out.

What the constants leave unexplained is learnt by gradient boosting (needs catboost), as a
correction of the logarithm of the predicted time, from the times of all GPUs: ``--correction FILE``
writes it, to the constants as they are.

Constants are fitted to files of one GPU.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import statistics
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from benchmarks import harness
from benchmarks.harness import kernels_of
from benchmarks.matmul import geometric_mean
from triton_ext.kernels.choice import limits, sm90, sm100
from triton_ext.kernels.choice.corrections import Trees
from triton_ext.kernels.choice.features import FEATURES, features
from triton_ext.kernels.choice.gpus import GpuModel, model_of
from triton_ext.kernels.choice.problem import Problem
from triton_ext.kernels.choice.table import Table
from triton_ext.kernels.spec import KernelSpec

Constants: TypeAlias = "limits.Constants | sm100.Constants"

SHARPNESS = 30.0
"""How fast the probability falls: by 1/e where a time is longer by 1/30."""
ERROR_WEIGHT = 6.0
"""The weight of the errors: a correction decides among what is near the best."""
LEARNING_RATE = 0.05
"""The part of each tree of gradient boosting that counts."""
STEPS = (1.2, 1.05)
"""By which factors a constant is changed, one after the other."""
SMS = {90: 132, 100: 148}
"""How many an H200 and a B200 have."""
HIGHEST = {
    "tensor_flops": 8.2e12, "power_flops": 820e12, "power_flops_8": 1700e12, "memory_bytes": 4.8e12
}  # fmt: skip
"""The highest rates of an H200: the tensor cores' at 1,980 MHz, the memory's by data sheet."""


@dataclass(frozen=True)
class Timed:
    """What was measured of a problem on a GPU: m, n, k, cuBLAS's seconds, each configuration and
    its.
    """

    sizes: tuple[int, int, int]
    name: str
    torch: float
    configs: tuple[KernelSpec, ...]
    seconds: tuple[float, ...]
    gpu: GpuModel = "h200"

    @functools.cached_property
    def compared(self) -> tuple[Table, Problem]:
        """What the cost model of sm_90 asks for."""
        return Table.of(self.configs), Problem(*self.sizes, SMS[90], gpu=self.gpu)

    def predicted(self, constants: Constants) -> list[float]:
        """The seconds of each configuration, by the limits alone."""
        if isinstance(constants, limits.Constants):
            return list(limits.limited_seconds(*self.compared, constants))
        return [
            sm100.predicted_seconds(config, Problem(*self.sizes, SMS[100]), constants)
            for config in self.configs
        ]

    def suiting(self) -> Timed:
        """Without what the model never chooses."""
        if self.configs[0].arch == 100:
            return self
        kept = sm90.suits(*self.compared)
        pairs = zip(self.configs, self.seconds, strict=True)
        configs, seconds = zip(*itertools.compress(pairs, kept), strict=True)
        return replace(self, configs=configs, seconds=seconds)


def start_of(timed: Sequence[Timed]) -> Constants:
    """The constants that there are for the GPU of a survey."""
    first = timed[0]
    if first.configs[0].arch == 90:
        return limits.FITTED[first.gpu]
    return sm100.FITTED


def read(path: Path) -> list[Timed]:
    """The rows of `benchmarks.survey`, without what the model never chooses."""
    document = harness.read(path)
    gpu = model_of(document["environment"]["gpu"])
    return [timed_of(row, gpu) for row in document["rows"]]


def timed_of(row: Mapping[str, Any], gpu: GpuModel) -> Timed:
    """A row, without what the model never chooses."""
    sizes = (row["m"], row["n"], row["k"])
    configs, rows = zip(*kernels_of(row["configs"]), strict=True)
    seconds = tuple(each["seconds"] for each in rows)
    return Timed(sizes, row["problem"], row["torch_us"] * 1e-6, configs, seconds, gpu).suiting()


def divided(timed: Sequence[Timed], folds: int) -> Iterator[tuple[list[Timed], list[Timed]]]:
    """For each fold, the problems in it, and all others; a problem is in one alone."""
    for fold in range(folds):
        inside = [zlib.crc32(each.name.encode()) % folds == fold for each in timed]
        outside = [not each for each in inside]
        yield list(itertools.compress(timed, inside)), list(itertools.compress(timed, outside))


def numbers(constants: Constants) -> dict[str, float]:
    """All that is fitted, by name."""
    found: dict[str, Any] = asdict(constants)
    overheads: dict[str, float] = found.pop("overheads", {})
    return found | overheads


def changed(constants: Constants, **values: float) -> Constants:
    """The constants with other numbers, by name."""
    if isinstance(constants, sm100.Constants):
        return replace(constants, **values)
    of_launch = {name: values.pop(name) for name in [*values] if not hasattr(constants, name)}
    return replace(constants, overheads=replace(constants.overheads, **of_launch), **values)


def loss(timed: Sequence[Timed], constants: Constants) -> float:
    """See above; the mean over the problems."""
    total = 0.0
    for each in timed:
        best = min(each.seconds)
        logs = [math.log(x) for x in each.predicted(constants)]
        least = min(logs)
        weights = [math.exp(-SHARPNESS * (x - least)) for x in logs]
        costs = [seconds / best - 1 for seconds in each.seconds]
        total += sum(w * c for w, c in zip(weights, costs, strict=True)) / sum(weights)
        errors = [
            (x - math.log(seconds)) ** 2 / (1 + 10 * cost)
            for x, seconds, cost in zip(logs, each.seconds, costs, strict=True)
        ]
        total += ERROR_WEIGHT * statistics.fmean(errors)
    return total / len(timed)


def fit(timed: Sequence[Timed], start: Constants, rounds: int = 4) -> Constants:
    """Change one constant after the other, as long as it helps."""
    constants, least = start, loss(timed, start)
    for step in STEPS:
        for _ in range(rounds):
            before = least
            for name in numbers(start):
                for factor in (step, 1 / step):
                    while True:
                        value = numbers(constants)[name] * factor
                        if isinstance(start, limits.Constants):
                            value = min(value, HIGHEST.get(name, value))
                        other = changed(constants, **{name: value})
                        found = loss(timed, other)
                        if found >= least * (1 - 1e-5):
                            break
                        constants, least = other, found
            if least > before * 0.998:
                break
    return constants


def costs(timed: Sequence[Timed], constants: Constants) -> list[float]:
    """How much longer the model's choice takes than the best of what was measured."""
    found = []
    for each in timed:
        predicted = each.predicted(constants)
        choice = predicted.index(min(predicted))
        found.append(each.seconds[choice] / min(each.seconds))
    return found


def errors(timed: Sequence[Timed], constants: Constants) -> list[float]:
    """|predicted / measured - 1| of all configurations."""
    return [
        abs(p / s - 1)
        for each in timed
        for p, s in zip(each.predicted(constants), each.seconds, strict=True)
    ]


TREES, LEVELS = 3000, 8
"""How many trees are learnt, and of how many levels, 8 at most."""


def learnt(timed: Sequence[Timed], trees: int = TREES) -> Trees:
    """The correction; what is slow by a factor of 2 does not count, and every problem counts as
    much as any other.
    """
    from catboost import CatBoostRegressor

    rows, logs, weights = [], [], []
    for each in timed:
        best = min(each.seconds)
        values = features(*each.compared)
        near = [pair for pair in zip(values, each.seconds, strict=True) if pair[1] <= 2 * best]
        counts = [1 / (1 + 10 * (seconds / best - 1)) for _, seconds in near]
        weights += [count / sum(counts) for count in counts]
        rows += [row for row, _ in near]
        logs += [math.log(seconds) - row[0] for row, seconds in near]
    model = CatBoostRegressor(
        iterations=trees, depth=LEVELS, learning_rate=LEARNING_RATE, l2_leaf_reg=1, random_seed=0,
        verbose=False, allow_writing_files=False,
    )  # fmt: skip
    model.fit(np.array(rows, dtype=np.float32), logs, sample_weight=weights)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        model.save_model(str(path), format="json")
        return from_boosting(json.loads(path.read_text()))


def from_boosting(document: Mapping[str, Any]) -> Trees:
    """The trees of what CatBoost has written as JSON; those that end early get levels that change
    nothing, and each adds a part of the bias.
    """
    grown = document["oblivious_trees"]
    scale, (bias,) = document["scale_and_bias"]
    comparisons: dict[tuple[int, float], int] = {}
    levels = np.zeros((len(grown), LEVELS), dtype=np.int64)
    leaves = np.zeros((len(grown), 2**LEVELS))
    for number, tree in enumerate(grown):
        for level, split in enumerate(tree["splits"] or ()):
            condition = split["float_feature_index"], split["border"]
            levels[number, level] = comparisons.setdefault(condition, len(comparisons))
        values = np.array(tree["leaf_values"])
        leaves[number] = scale * np.tile(values, len(leaves[number]) // len(values))
        leaves[number] += bias / len(grown)
    features, borders = zip(*comparisons, strict=True)
    return Trees(FEATURES, np.array(features), np.array(borders), levels, leaves)


def corrected_costs(timed: Sequence[Timed], trees: Trees) -> list[float]:
    """As `costs`, of the model with corrections."""
    found = []
    for each in timed:
        rows = features(*each.compared)
        limited = rows[:, 0]
        near = limited <= limited.min() + math.log(sm90.NEAR)
        choice = int(np.argmin(np.where(near, limited + trees(rows), np.inf)))
        found.append(each.seconds[choice] / min(each.seconds))
    return found


def report(
    title: str, timed: Sequence[Timed], found: Sequence[float], off: float | None = None
) -> None:
    """Say what choices cost, of the problems in which there was one."""
    pairs = [pair for pair in zip(timed, found, strict=True) if len(pair[0].configs) > 1]
    ratios = [each.torch / (min(each.seconds) * cost) for each, cost in pairs]
    more = [cost - 1 for _, cost in pairs]
    print(
        f"{title}, {len(pairs)} problems: choice {statistics.fmean(more):.1%} slower than the best"
        f" in the mean, {max(more):.0%} at most;"
        + ("" if off is None else f" off by {off:.1%} in the median;")
        + f" {geometric_mean(ratios):.3f} of cuBLAS, lowest {min(ratios):.3f}"
    )


def write_correction(timed: Sequence[Timed], folds: int, path: Path) -> None:
    """Learn the correction, say what it is worth, and write it."""
    held: dict[GpuModel, tuple[list[Timed], list[float]]] = defaultdict(lambda: ([], []))
    for part, others in divided(timed, folds):
        trees = learnt(others)
        for each, cost in zip(part, corrected_costs(part, trees), strict=True):
            held[each.gpu][0].append(each)
            held[each.gpu][1].append(cost)
    for gpu, found in held.items():
        report(f"{gpu}, with a correction, cross-validated", *found)
    learnt(timed).save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="of benchmarks.survey")
    parser.add_argument("--folds", type=int, default=5, help="of the cross-validation; 0: none")
    parser.add_argument(
        "--correction", type=Path, metavar="FILE", help="write what is learnt, and fit nothing"
    )
    arguments = parser.parse_args()
    timed = [each for path in arguments.files for each in read(path)]
    gpus = list(dict.fromkeys(each.gpu for each in timed))
    for gpu in gpus:
        own = [each for each in timed if each.gpu == gpu]
        start = start_of(own)
        off = statistics.median(errors(own, start))
        report(f"{gpu}, constants as they are", own, costs(own, start), off)
    if arguments.correction:
        write_correction(timed, arguments.folds, arguments.correction)
        return
    if len(gpus) > 1:
        parser.error("constants are of one GPU: give files of one")
    constants = fit(timed, start)
    off = statistics.median(errors(timed, constants))
    report("fitted to all", timed, costs(timed, constants), off)
    held, held_costs, held_errors = [], [], []
    for part, others in divided(timed, arguments.folds):
        trained = fit(others, constants, rounds=1)
        held += part
        held_costs += costs(part, trained)
        held_errors += errors(part, trained)
    if held:
        report("cross-validated", held, held_costs, statistics.median(held_errors))
    for name, value in numbers(constants).items():
        print(f"    {name}: float = {value:.3g}")


if __name__ == "__main__":
    main()
