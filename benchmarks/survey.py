"""Times of many configurations of drawn problems, for `benchmarks.fit`; needs a GPU.

    python -m benchmarks.survey --random 1 2 3 --number 60 --json FILE [--candidates 24]

For each problem: the cost model's candidates that it predicts to be the fastest, the fastest two of
each kind (rows, consumers, turns, clusters, swapping, parts), and cuBLAS, in turn as in
`benchmarks.matmul`, but for fewer rounds. All results are compared with float64.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import torch

from benchmarks import harness, tiles
from benchmarks.harness import Row, Table
from benchmarks.matmul import (
    INPUT_BYTES,
    checked,
    compiled_ahead,
    kernel_launches,
    torch_launches,
)
from benchmarks.problems import DRAWN, Problem, drawn_problems, inputs
from benchmarks.replay import graph_of, launches_in_graph, replayed_seconds
from triton_ext.kernels.choice import cost_model, cost_model_sm100
from triton_ext.kernels.choice.gpus import GpuModel, model_of
from triton_ext.kernels.config import DEFAULTS, MatmulConfig
from triton_ext.kernels.launch import compile_matmul

ROUNDS = 3
compiled = functools.cache(compile_matmul)


def kind(config: MatmulConfig) -> tuple[Any, ...]:
    parts = config.max_splits > 1
    together = config.cluster, config.cluster_columns, config.k_blocks
    return config.rows, config.consumers, config.pingpong, together, config.swap, parts


def considered(
    problem: Problem, number: int, arch: int, multiprocessors: int, gpu: GpuModel,
    every_tile: bool = False,
) -> list[MatmulConfig]:  # fmt: skip
    """The configurations to measure, the cost model's choice first.

    Args:
        every_tile: on sm_90, of all tiles, not of the candidates alone.
    """
    asked = (
        problem.element_type, problem.a_major, problem.b_major, problem.m, problem.n, problem.k,
        multiprocessors, problem.out_type,
    )  # fmt: skip
    if arch == 100:
        ranked = cost_model_sm100.ranked_configs(*asked)
        choice = ranked[0]
    else:
        sizes = cost_model.Problem(problem.m, problem.n, problem.k, multiprocessors, gpu=gpu)
        if every_tile:
            every = list(cost_model.ranked_in(tiles.table_of(problem), sizes, every=True))
        else:
            every = cost_model.ranked_configs(*asked, gpu=gpu, every=True)
        kept = cost_model.suits(cost_model.Table.of(every), sizes)
        ranked = [c for c, suits in zip(every, kept, strict=True) if suits or c.k_blocks == 1]
        if problem.promoted:
            ranked = list(cost_model.ranked_promoted(cost_model.promoted(ranked), sizes))
        choice = problem.config(multiprocessors, gpu)
    seen: Counter[tuple[Any, ...]] = Counter()
    found = ranked[: number // 2]
    for config in ranked:
        seen[kind(config)] += 1
        if seen[kind(config)] <= 2 and config not in found:
            found.append(config)
    return [choice, *(c for c in found if c != choice)][:number]


def measure(problem: Problem, configs: Sequence[MatmulConfig]) -> Row:
    """The seconds of a launch of each configuration, and of cuBLAS."""
    sets = [inputs(problem) for _ in range(max(2, min(24, math.ceil(INPUT_BYTES / problem.bytes))))]
    estimate = 2e-6 + max(problem.flops / 700e12, problem.bytes / 4e12)
    count = launches_in_graph(estimate, len(sets))
    sides: dict[str, Callable[[int], None]] = {"torch": torch_launches(problem, sets)}
    sides |= {
        str(i): kernel_launches(problem, config, sets, compiled(config))
        for i, config in enumerate(configs)
    }
    limit = 1.5 * checked(problem, sides["torch"], sets[0]) + 1e-3
    for name, launch in sides.items():
        error = checked(problem, launch, sets[0])
        if not error <= limit:
            raise AssertionError(f"{problem}, {configs[int(name)]}: error {error}")
    graphs = {name: graph_of(launch, count) for name, launch in sides.items()}
    for graph in graphs.values():
        graph.replay()
    rounds = replayed_seconds(graphs, ROUNDS if problem.flops < 3e11 else 2)
    seconds = {name: statistics.median(times) / count for name, times in rounds.items()}
    found: list[dict[str, Any]] = [
        {"config": described(config), "seconds": seconds[str(i)]}
        for i, config in enumerate(configs)
    ]
    best = min(found, key=lambda each: each["seconds"])
    return {
        **problem.row,
        "problem": str(problem),
        "torch_us": seconds["torch"] * 1e6,
        "choice": seconds["torch"] / seconds["0"],
        "best": seconds["torch"] / best["seconds"],
        "best_config": MatmulConfig(**best["config"]).words,
        "configs": found,
    }  # fmt: skip


def described(config: MatmulConfig) -> dict[str, Any]:
    """The fields that do not have their defaults."""
    return {n: v for n, d in DEFAULTS.items() if (v := getattr(config, n)) != d}


def rows(work: Iterable[tuple[Problem, Sequence[MatmulConfig]]], seconds: float) -> Iterator[Row]:
    """The measured rows, as long as there is time."""
    begin = time.perf_counter()
    for problem, configs in work:
        if time.perf_counter() - begin > seconds:
            print(f"stopped after {seconds} s")
            return
        yield measure(problem, configs)


TABLE = Table(
    ("problem", "<28", "problem"),
    ("class", "<16", "class"),
    ("torch us", ">9.1f", "torch_us"),
    ("choice", ">8.3f", "choice"),
    ("best", ">8.3f", "best"),
    ("  configuration", "", lambda row: f"  {row['best_config']}"),
)


def main() -> None:
    parser = harness.options(__doc__)
    parser.add_argument("--random", type=int, nargs="+", metavar="SEED", default=[1])
    parser.add_argument("--number", type=int, default=60, help="of problems of each seed")
    parser.add_argument(
        "--classes", nargs="+", choices=DRAWN, metavar="NAME", default=(), help="draw these alone"
    )
    parser.add_argument("--candidates", type=int, default=24)
    parser.add_argument(
        "--every-tile", action="store_true", help="not only those that benchmarks.tiles has chosen"
    )
    parser.add_argument(
        "--seconds", type=float, default=300, help="to compile and measure for, at most"
    )
    arguments = parser.parse_args()
    problems = [
        replace(problem, element_type="bf16") if problem.element_type == "fp16" else problem
        for seed in arguments.random
        for problem in drawn_problems(seed, arguments.number, arguments.classes)
    ]  # fp16 takes the time of bf16, so that fewer kernels are compiled
    gpu = torch.cuda.get_device_properties()
    numbers = [arguments.candidates // (2 if each.flops > 8e11 else 1) for each in problems]
    of_gpu = 10 * gpu.major, gpu.multi_processor_count, model_of(gpu.name), arguments.every_tile
    torch.manual_seed(0)
    pool = ProcessPoolExecutor()
    try:
        choices = pool.map(considered, problems, numbers, *map(itertools.repeat, of_gpu))
        work = compiled_ahead(zip(problems, choices, strict=True), pool)
        harness.report("survey", rows(work, arguments.seconds), TABLE, arguments.json)
    finally:
        pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    main()
