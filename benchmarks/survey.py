"""Times of many configurations of drawn problems, for `benchmarks.fit`.

    python -m benchmarks.survey --random 1 2 3 --number 60 --plan PLAN --gpu h100   # anywhere
    python -m benchmarks.survey --planned PLAN --json FILE                          # on that GPU

For each problem: the cost model's choice, the configurations that it predicts to be the fastest,
the fastest two of each kind (rows, consumers, turns, clusters, swapping, parts), and cuBLAS, in
turn as in `benchmarks.matmul`, but for fewer rounds. All results are compared with float64. Without
a plan, both steps are one.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from benchmarks import harness, tiles
from benchmarks.harness import Row, Table
from benchmarks.matmul import (
    checked,
    compiled_ahead,
    kernel_launches,
    processes,
    torch_launches,
)
from benchmarks.problems import DRAWN, Problem, drawn_problems, input_sets, problem_of
from triton_ext.kernels.choice.choose import ranked
from triton_ext.kernels.choice.gpus import MODELS, GpuModel, model_of
from triton_ext.kernels.launch import compile_matmul
from triton_ext.kernels.spec import KernelSpec, read_spec
from triton_ext.kernels.tile import SimpleTile
from triton_ext.ops.replay import graph_of, launches_in_graph, replayed_seconds

ROUNDS = 3
DEEP = 8
"""How many times as many of the fastest configurations are looked at for other kinds."""
Planned: TypeAlias = "tuple[Problem, Sequence[KernelSpec]]"
compiled = functools.cache(compile_matmul)


def kind(config: KernelSpec) -> tuple[Any, ...]:
    tile = config.tile
    assert not isinstance(tile, SimpleTile)
    together = tile.cluster_m, tile.cluster_n, tile.cluster_k
    return tile.rows, tile.consumers, tile.pingpong, together, tile.swap_ab, tile.split_k > 1


def considered(
    problem: Problem, number: int, arch: int, multiprocessors: int, gpu: GpuModel
) -> list[KernelSpec]:
    """The configurations to measure, the cost model's choice first."""
    product, size = problem.product, problem.size(multiprocessors, gpu)
    in_order = ranked(arch, product, size)
    choice = (
        next(ranked(arch, product, size)) if arch == 100 else problem.config(multiprocessors, gpu)
    )
    first = list(itertools.islice(in_order, DEEP * number))
    seen: Counter[tuple[Any, ...]] = Counter()
    found = first[: number // 2]
    for config in first:
        seen[kind(config)] += 1
        if seen[kind(config)] <= 2 and config not in found:
            found.append(config)
    return [choice, *(c for c in found if c != choice)][:number]


def measure(problem: Problem, configs: Sequence[KernelSpec]) -> Row:
    """The seconds of a launch of each configuration, and of cuBLAS."""
    sets = input_sets(problem)
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
        {"config": config.fields(), "seconds": seconds[str(i)]} for i, config in enumerate(configs)
    ]
    best = min(found, key=lambda each: each["seconds"])
    return {
        **problem.row,
        "problem": str(problem),
        "torch_us": seconds["torch"] * 1e6,
        "choice": seconds["torch"] / seconds["0"],
        "best": seconds["torch"] / best["seconds"],
        "best_config": str(read_spec(best["config"])),
        "configs": found,
    }  # fmt: skip


def rows(work: Iterable[Planned], seconds: float) -> Iterator[Row]:
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
        "--operations", type=float, nargs=2, metavar=("LOW", "HIGH"), default=(0, math.inf),
        help="only problems of so many",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, default=300, help="to compile and measure for, at most"
    )
    parser.add_argument("--plan", type=Path, metavar="FILE", help="write what to measure")
    parser.add_argument("--gpu", choices=MODELS, help="on which GPU that will be")
    parser.add_argument("--planned", type=Path, metavar="FILE", help="measure what this says")
    arguments = parser.parse_args()
    plan = read_plan(arguments.planned) if arguments.planned else planned(arguments)
    if arguments.plan:
        write_plan(arguments.plan, plan)
        return
    torch.manual_seed(0)
    pool = ProcessPoolExecutor(processes())
    try:
        measured = rows(compiled_ahead(plan, pool), arguments.seconds)
        harness.report("survey", measured, TABLE, arguments.json)
    finally:
        pool.shutdown(cancel_futures=True)


def planned(arguments: argparse.Namespace) -> Iterator[Planned]:
    """What to measure on the GPU that is named, or on the one that is here."""
    if arguments.gpu:
        of_gpu = 90, tiles.SMS, arguments.gpu
    else:
        found = torch.cuda.get_device_properties()
        of_gpu = 10 * found.major, found.multi_processor_count, model_of(found.name)
    problems = [
        replace(problem, element_type="bf16") if problem.element_type == "fp16" else problem
        for seed in arguments.random
        for problem in drawn_problems(seed, arguments.number, arguments.classes)
    ]  # fp16 takes the time of bf16, so that fewer kernels are compiled
    low, high = arguments.operations
    problems = [problem for problem in problems if low <= problem.flops <= high]
    numbers = [arguments.candidates // (2 if each.flops > 8e11 else 1) for each in problems]
    with ProcessPoolExecutor(processes()) as pool:
        choices = pool.map(considered, problems, numbers, *map(itertools.repeat, of_gpu))
        yield from zip(problems, choices, strict=True)


def write_plan(path: Path, plan: Iterable[Planned]) -> None:
    """A problem and its configurations a line."""
    lines = (
        json.dumps({**problem.row, "configs": [config.fields() for config in configs]})
        for problem, configs in plan
    )
    path.write_text("".join(f"{line}\n" for line in lines))


def read_plan(path: Path) -> list[Planned]:
    """What `write_plan` has written."""
    found: list[Planned] = []
    for line in path.read_text().splitlines():
        row = json.loads(line)
        configs = [read_spec(each) for each in row.pop("configs")]
        found.append((replace(problem_of(row), drawn_from=row["class"]), configs))
    return found


if __name__ == "__main__":
    main()
