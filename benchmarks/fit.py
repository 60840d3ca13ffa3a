"""Fit the cost model's constants to measured times of many configurations.

    python -m benchmarks.survey --random 1 2 3 --number 60 --json survey.json   # on the GPU
    python -m benchmarks.fit survey.json [--folds N] [--correction FILE]         # anywhere

What is minimised is what the choice costs: the expected time, over the best one's, of a choice that
takes a configuration with a probability that falls exponentially with its predicted time; and, with
a weight, the squared errors of the logarithms. Problems, not rows, are divided for the
cross-validation, those that were measured more than once by their name: the constants fitted to all
others predict those left out.

What the constants leave unexplained is learnt by gradient boosting (needs scikit-learn), as a
correction of the logarithm of the predicted time: ``--correction FILE`` writes it, to the constants
as they are; of an H100, to what was learnt of an H200, too.

The files of one run are of one GPU, whose constants, correction and predictions are meant.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import itertools
import json
import math
import statistics
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from benchmarks.matmul import geometric_mean
from triton_ext.kernels.choice import cost_model, cost_model_sm100
from triton_ext.kernels.choice.corrections import Trees, correction
from triton_ext.kernels.choice.gpus import GpuModel, model_of
from triton_ext.kernels.config import MatmulConfig

Constants: TypeAlias = "cost_model.Constants | cost_model_sm100.Constants"

SHARPNESS = 30.0
"""How fast the probability falls: by 1/e where a time is longer by 1/30."""
ERROR_WEIGHT = 2.0
LEARNING_RATE = 0.05
"""Of gradient boosting: the part of each tree that counts."""
STEPS = (1.2, 1.05)
"""By which factors a constant is changed, one after the other."""
SMS = {90: 132, 100: 148}
"""How many an H200 and a B200 have."""
HIGHEST = {
    "tensor_flops": 8.2e12, "power_flops": 820e12, "power_flops_8": 1700e12, "memory_bytes": 4.8e12
}  # fmt: skip
"""Of an H200: what the tensor cores do at 1,980 MHz, and the memory's data sheet."""


@dataclass(frozen=True)
class Timed:
    """What was measured of a problem on a GPU: m, n, k, cuBLAS's seconds, each configuration and
    its.
    """

    sizes: tuple[int, int, int]
    name: str
    torch: float
    configs: tuple[MatmulConfig, ...]
    seconds: tuple[float, ...]
    gpu: GpuModel = "h200"

    @functools.cached_property
    def asked(self) -> tuple[cost_model.Table, cost_model.Problem]:
        """What the cost model of sm_90 asks for."""
        problem = cost_model.Problem(*self.sizes, SMS[90], gpu=self.gpu)
        return cost_model.Table.of(self.configs), problem

    def predicted(self, constants: Constants) -> list[float]:
        """The seconds of each configuration, by the limits alone."""
        if isinstance(constants, cost_model.Constants):
            return list(cost_model.limited_seconds(*self.asked, constants))
        return [
            cost_model_sm100.predicted_seconds(config, *self.sizes, SMS[100], constants=constants)
            for config in self.configs
        ]

    def suiting(self) -> Timed:
        """Without what the model never chooses."""
        if self.configs[0].arch == 100:
            return self
        kept = cost_model.suits(*self.asked)
        pairs = zip(self.configs, self.seconds, strict=True)
        configs, seconds = zip(*itertools.compress(pairs, kept), strict=True)
        return replace(self, configs=configs, seconds=seconds)


def start_of(timed: Sequence[Timed]) -> Constants:
    """The constants that there are for the GPU of a survey."""
    first = timed[0]
    if first.configs[0].arch == 90:
        return cost_model.FITTED[first.gpu]
    return cost_model_sm100.FITTED


def read(path: Path) -> list[Timed]:
    """The rows of `benchmarks.survey`, without what the model never chooses; maybe of gzip."""
    data = path.read_bytes()
    document = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    gpu = model_of(document["environment"]["gpu"])
    found = []
    for row in document["rows"]:
        sizes = (row["m"], row["n"], row["k"])
        configs = tuple(MatmulConfig(**each["config"]) for each in row["configs"])
        seconds = tuple(each["seconds"] for each in row["configs"])
        timed = Timed(sizes, row["problem"], row["torch_us"] * 1e-6, configs, seconds, gpu)
        found.append(timed.suiting())
    return found


def divided(timed: Sequence[Timed], folds: int) -> Iterator[tuple[list[Timed], list[Timed]]]:
    """For each fold, the problems in it, and all others; a problem is in one alone."""
    which = [zlib.crc32(each.name.encode()) % max(1, folds) for each in timed]
    for fold in range(folds):
        yield (
            [each for each, own in zip(timed, which, strict=True) if own == fold],
            [each for each, own in zip(timed, which, strict=True) if own != fold],
        )


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
            for field in fields(start):
                for factor in (step, 1 / step):
                    while True:
                        value = getattr(constants, field.name) * factor
                        if isinstance(start, cost_model.Constants):
                            value = min(value, HIGHEST.get(field.name, value))
                        changed = replace(constants, **{field.name: value})
                        found = loss(timed, changed)
                        if found >= least * (1 - 1e-5):
                            break
                        constants, least = changed, found
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


TREES, DEPTH = 600, 7
"""Of a correction."""


def learn(timed: Sequence[Timed], trees: int, depth: int) -> Trees:
    """The correction of what is predicted without it (see `_known`); what is slow by a factor of 2
    does not count, and every problem counts as much as any other.

    The trees are small and few, and each sees a part of the rows and of the features: all of this
    is against learning the rows by heart.
    """
    from sklearn.ensemble import GradientBoostingRegressor

    rows, logs, weights = [], [], []
    for each in timed:
        best = min(each.seconds)
        features = cost_model.features(*each.asked)
        known = features[:, 0] + _known(features, each.gpu)
        near = [each for each in zip(features, known, each.seconds, strict=True)
                if each[-1] <= 2 * best]  # fmt: skip
        counts = [1 / (1 + 10 * (seconds / best - 1)) for *_, seconds in near]
        weights += [count / sum(counts) for count in counts]
        rows += [row for row, *_ in near]
        logs += [math.log(seconds) - start for _, start, seconds in near]
    model = GradientBoostingRegressor(
        n_estimators=trees, max_depth=depth, learning_rate=LEARNING_RATE, subsample=0.6,
        min_samples_leaf=10, max_features=0.4, random_state=0,
    ).fit(rows, logs, weights)  # fmt: skip
    start = float(model.init_.constant_[0, 0]) / trees
    return from_boosting([each.tree_ for (each,) in model.estimators_], depth, LEARNING_RATE, start)


def _known(features: np.ndarray[Any, Any], gpu: GpuModel) -> np.ndarray[Any, Any]:
    """What is learnt of the H200, and known of others before anything is learnt of them."""
    return np.zeros(len(features)) if gpu == "h200" else correction(features, "h200")


def from_boosting(grown: Sequence[Any], depth: int, rate: float, start: float) -> Trees:
    """Trees of scikit-learn, which may end early, as complete ones.

    Args:
        rate: what their leaves are multiplied with.
        start: what each adds besides.
    """
    inside = 2**depth - 1
    nodes = np.zeros((len(grown), inside), dtype=np.int64)
    thresholds = np.zeros((len(grown), inside))
    leaves = np.zeros((len(grown), inside + 1))
    for number, tree in enumerate(grown):
        own = {0: 0}  # a node of the complete tree -> of the grown one
        for node in range(inside):
            at = own[node]
            ends = tree.children_left[at] < 0
            if not ends:
                nodes[number, node], thresholds[number, node] = tree.feature[at], tree.threshold[at]
            own[2 * node + 1] = at if ends else tree.children_left[at]
            own[2 * node + 2] = at if ends else tree.children_right[at]
        for leaf in range(inside + 1):
            leaves[number, leaf] = start + rate * tree.value[own[inside + leaf]].item()
    return Trees(cost_model.FEATURES, nodes, thresholds, leaves)


def corrected_costs(timed: Sequence[Timed], trees: Trees) -> list[float]:
    """As `costs`, of the model with a correction."""
    found = []
    for each in timed:
        rows = cost_model.features(*each.asked)
        limited = rows[:, 0]
        near = limited <= limited.min() + math.log(cost_model.NEAR)
        choice = int(
            np.argmin(np.where(near, limited + _known(rows, each.gpu) + trees(rows), np.inf))
        )
        found.append(each.seconds[choice] / min(each.seconds))
    return found


def report(
    title: str, timed: Sequence[Timed], found: Sequence[float], off: float | None = None
) -> None:
    ratios = [
        each.torch / (min(each.seconds) * cost) for each, cost in zip(timed, found, strict=True)
    ]
    print(
        f"{title}: choice {statistics.fmean(found) - 1:.1%} slower than the best in the mean,"
        f" {max(found) - 1:.0%} at most;"
        + ("" if off is None else f" off by {off:.1%} in the median;")
        + f" {geometric_mean(ratios):.3f} of cuBLAS, lowest {min(ratios):.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="of benchmarks.survey")
    parser.add_argument("--folds", type=int, default=5, help="of the cross-validation; 0: none")
    parser.add_argument("--correction", type=Path, help="write what is learnt, and fit nothing")
    arguments = parser.parse_args()
    timed = [each for path in arguments.files for each in read(path)]
    start = start_of(timed)
    gpu = timed[0].gpu
    off = statistics.median(errors(timed, start))
    report(f"{len(timed)} problems, constants as they are", timed, costs(timed, start), off)
    if arguments.correction:
        held, held_costs = [], []
        for part, others in divided(timed, arguments.folds):
            held += part
            held_costs += corrected_costs(part, learn(others, TREES, DEPTH))
        if held:
            report("with a correction, cross-validated", held, held_costs)
        learn(timed, TREES, DEPTH).save(arguments.correction)
        return
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
    for name, value in asdict(constants).items():
        print(f"    {name}: float = {value:.3g}")


if __name__ == "__main__":
    main()
