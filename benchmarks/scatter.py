"""Times of reduce-scatters in many configurations, and what they say of the choice.

    python -m benchmarks.scatter measure [--seconds 100] [--json FILE]     # needs two GPUs
    python -m benchmarks.scatter fit benchmarks/results/scatter_h100.json  # anywhere

`triton_ext.distributed` chooses among the tiles that are fastest on one GPU by what they load
besides (`launches.loads`); `fit` finds the coefficient, and what the choice costs if each problem
is left out of the fit that chooses for it. `measure` has copy engines carry all tiles, and times
the first one with tiles that the kernel stores in the other GPU's memory, too (`launches.STAGED`).

The problems are `benchmarks.distributed`'s, the layers and those drawn from seeds 1 and 2.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory
from torch import Tensor

from benchmarks.distributed import (
    CHOSEN,
    SCATTER,
    Problem,
    drawn,
    joined,
    medians,
    on_all_gpus,
)
from benchmarks.harness import Row, Table, kernels_of, options, report
from triton_ext.distributed import launches
from triton_ext.distributed.workspace import workspace_of
from triton_ext.kernels.choice.choose import predicted_seconds, ranked
from triton_ext.kernels.choice.gpus import model_of
from triton_ext.kernels.choice.problem import Problem as Size
from triton_ext.kernels.spec import KernelSpec
from triton_ext.kernels.tile import SimpleTile
from triton_ext.ops import products
from triton_ext.ops.device import require_gpu

Array: TypeAlias = "np.ndarray[Any, Any]"
NUMBER = launches.CONSIDERED
"""Configurations of a problem."""
ROUNDS = 5
RANKS, SMS = 2, 132
"""GPUs that were measured, and of each its SMs."""


def problems() -> Iterator[Problem]:
    """Those that are measured."""
    every = (Problem(*each) for each in CHOSEN)
    for problem in itertools.chain(every, drawn(1, 20), drawn(2, 20)):
        if problem.kind == SCATTER:
            yield problem


def considered(problem: Problem, ranks: int) -> list[KernelSpec]:
    """The tiles that are predicted to be the fastest on one GPU, one of each kind."""
    gpu = require_gpu(torch.device("cuda", torch.cuda.current_device()))
    a = torch.empty((ranks, problem.m // ranks, problem.k), dtype=torch.bfloat16, device="cuda")
    b = torch.empty((1, problem.n, problem.k), dtype=torch.bfloat16, device="cuda").mT
    shape = (*a.shape[:-1], problem.n)
    asked = products.problem_of(gpu, a, b, shape, torch.bfloat16, ("K", "K"))
    found: dict[tuple[object, ...], KernelSpec] = {}
    for config in launches.able("scatter", ranked(gpu.arch, asked.product, asked.size)):
        tile = config.tile
        assert not isinstance(tile, SimpleTile)
        kind = tile.block_m, tile.block_n, tile.cluster_m, tile.cluster_n
        found.setdefault(kind, config)
        if len(found) == NUMBER:
            break
    return list(found.values())


def measure(problem: Problem, group: dist.ProcessGroup) -> Row:
    """One problem: milliseconds of the sides, seconds of the configurations; AssertionError if the
    result of one is wrong.
    """
    ranks, workspace = group.size(), workspace_of(group)
    a, b = (
        torch.randn(shape, device="cuda").bfloat16()
        for shape in ((problem.m, problem.k), (problem.n, problem.k))
    )
    b = b.t()
    own = problem.sides(group)
    sides = {name: own[name] for name in ("gemm", "nccl", "cublas")}
    configs = considered(problem, ranks)
    expected = a.new_empty((problem.m // ranks, problem.n))
    dist.reduce_scatter_tensor(expected, a @ b, group=group)

    def scattered(config: KernelSpec, staged: bool) -> Tensor:
        return launches.scatter(a, b, workspace, config=config, staged=staged)

    for number, config in enumerate(configs):
        sides[str(number)] = partial(scattered, config, True)
        error = (sides[str(number)]().float() - expected.float()).abs().max()
        assert error < 0.02 * expected.abs().max(), (problem, config, error.item())
    sides["direct"] = partial(scattered, configs[0], False)
    found = medians(sides, group, ROUNDS)
    times = [found.pop(str(number)) for number in range(len(configs))]
    return {
        "problem": f"{problem.m}x{problem.n}x{problem.k}",
        "m": problem.m, "n": problem.n, "k": problem.k, **found,
        "configs": [
            {"config": config.fields(), "seconds": 1e-3 * each}
            for config, each in zip(configs, times, strict=True)
        ],
    }  # fmt: skip


def _rank(rank: int, ranks: int, meeting: str, arguments: argparse.Namespace) -> None:
    group, begin = joined(rank, ranks, meeting), time.perf_counter()

    def rows() -> Iterator[Row]:
        for problem in problems():
            late = torch.tensor(int(time.perf_counter() - begin > arguments.seconds), device="cuda")
            dist.all_reduce(late, dist.ReduceOp.MAX, group)
            if late.item():
                return
            yield measure(problem, group)

    if rank == 0:
        report("scatter measure", rows(), TABLE, arguments.json, f"{ranks} GPUs, ms, bf16")
    else:
        list(rows())
    dist.barrier(group)
    dist.destroy_process_group()


TABLE = Table(
    ("problem", "<18", "problem"),
    *((name, ">8.3f", name) for name in ("gemm", "nccl", "cublas", "direct")),
    ("staged", ">8.3f", lambda row: 1e3 * row["configs"][0]["seconds"]),
    ("best", ">8.3f", lambda row: 1e3 * min(each["seconds"] for each in row["configs"])),
)


class Timed(NamedTuple):
    """What was measured of a problem, of each configuration.

    Attributes:
        predicted: the logarithms of the times on one GPU, by the cost model.
        seconds: the logarithms of those beside the link.
        loads: what `launches.loads` says.
    """

    predicted: Array
    seconds: Array
    loads: Array


def read(path: Path) -> list[Timed]:
    """The rows of `measure` whose tiles copy engines would carry."""
    document = json.loads(path.read_text())
    gpu, found = model_of(document["environment"]["gpu"]), []
    for row in document["rows"]:
        configs, rows = zip(*kernels_of(row["configs"]), strict=True)
        size = Size(row["m"] // RANKS, row["n"], row["k"], SMS, RANKS, gpu)
        predicted = [predicted_seconds(config, size) for config in configs]
        if min(predicted) > launches.STAGED:
            found.append(
                Timed(
                    np.log(predicted),
                    np.log([each["seconds"] for each in rows]),
                    np.array([launches.loads(config) for config in configs]),
                )
            )
    return found


def fit(timed: Sequence[Timed]) -> float:
    """The coefficient of `launches.loads`: least squares of what a configuration takes longer than
    predicted, over what the others of its problem do.
    """
    loads = np.concatenate([each.loads - each.loads.mean() for each in timed])
    longer = [each.seconds - each.predicted for each in timed]
    centred = np.concatenate([each - each.mean() for each in longer])
    return float(loads @ centred / (loads @ loads))


def costs(timed: Sequence[Timed], weights: Sequence[float]) -> list[float]:
    """How much longer the choice takes than the best that was measured, of each problem."""
    found = []
    for each, weight in zip(timed, weights, strict=True):
        choice = np.argmin(each.predicted + weight * each.loads)
        found.append(float(np.exp(each.seconds[choice] - each.seconds.min())))
    return found


def left_out(timed: Sequence[Timed]) -> list[float]:
    """For each problem, the coefficient fitted to all others."""
    return [fit([*timed[:i], *timed[i + 1 :]]) for i in range(len(timed))]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("step", choices=("measure", "fit"))
    parser.add_argument("file", type=Path, nargs="?", help="what was measured")
    parser.add_argument("--seconds", type=float, default=100, help="to measure for, at most")
    arguments = parser.parse_args()
    if arguments.step == "measure":
        on_all_gpus(_rank, parser, arguments)
        return
    if arguments.file is None:
        parser.error("fit needs a file")
    timed = read(arguments.file)
    number = sum(len(each.seconds) for each in timed)
    print(f"{len(timed)} problems, {number} times: {fit(timed):.3f}")
    nothing = [0.0] * len(timed)
    for name, weights in (("as on one GPU", nothing), ("each left out", left_out(timed))):
        found = costs(timed, weights)
        print(f"{name}: {statistics.fmean(found):.3f} of the best one's time, {max(found):.3f}")


if __name__ == "__main__":
    main()
