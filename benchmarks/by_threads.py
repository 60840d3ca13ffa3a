"""Every way in which threads load the operands of a product, beside PyTorch's, on one Hopper GPU.

    python -m benchmarks.by_threads --random SEED... [--number N] [--rows M] [--ways N]
    python -m benchmarks.by_threads --problems '2x128257x240 bf16 KN' ...

Of each problem the ways that are predicted to be the fastest are compiled in processes, checked
against float64, and timed in turn (device time, as in `benchmarks.matmul`). Where TMA can read the
operands, its kernel is timed, too. What the model predicts is written beside what was seen: the
constants of `kernels.choice.by_threads` and `kernels.choice.gemv` are fitted to such rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch

from benchmarks import harness
from benchmarks.harness import Row, Table
from benchmarks.matmul import MOST_ERROR, checked, kernel_launches, processes, torch_launches
from benchmarks.problems import Problem, drawn_problems, input_sets, problem_of
from triton_ext.kernels.by_threads import ThreadSpec, thread_spec
from triton_ext.kernels.choice.by_threads import ThreadDivision, divisions, thread_seconds
from triton_ext.kernels.choice.gemv import GemvTile
from triton_ext.kernels.epilogue import NO_EPILOGUE
from triton_ext.kernels.launch import compile_matmul
from triton_ext.kernels.spec import KernelSpec
from triton_ext.ops.by_threads import Threads, ThreadsLaunch, threads_of
from triton_ext.ops.device import require_gpu
from triton_ext.ops.planning import problem_of as planned_problem
from triton_ext.ops.replay import graph_of, launches_in_graph, replayed_seconds, warm_up

ROUNDS, WARM_SECONDS = 6, 0.05


def way_name(division: ThreadDivision) -> str:
    """Such as "gemv 4x32/2" or "16x128x64/1": what a block makes, and the parts of K."""
    tile, splits = division
    if isinstance(tile, GemvTile):
        return f"gemv {tile.rows}x{tile.chunks}/{splits}"
    return f"{tile.block_m}x{tile.block_n}x{tile.block_k}/{splits}"


def threads_of_problem(problem: Problem) -> Threads:
    """How threads read the operands of a problem, as `benchmarks.problems` allocates them."""
    m, n, k = problem.m, problem.n, problem.k
    a = torch.empty((k, m) if problem.a_major == "MN" else (m, k), dtype=torch.half, device="meta")
    b = torch.empty((k, n) if problem.b_major == "MN" else (n, k), dtype=torch.half, device="meta")
    a, b = a.T if problem.a_major == "MN" else a, b if problem.b_major == "MN" else b.T
    found = threads_of(a, b, a.new_empty((m, n)), None, False)
    assert found is not None  # contiguous operands
    return found


def ways_of(problem: Problem, threads: Threads, most: int) -> list[ThreadDivision]:
    """The divisions that are predicted to be the fastest, the fastest first."""
    size, access = problem.size(), threads.access
    found = dict.fromkeys(divisions(size, access))
    return sorted(found, key=lambda each: thread_seconds(size, access, each))[:most]


def _compile(spec: ThreadSpec | KernelSpec) -> None:
    if isinstance(spec, ThreadSpec):
        spec.compile()
    else:
        compile_matmul(spec)


def measure(problem: Problem, threads: Threads, ways: Sequence[ThreadDivision]) -> Row:
    """One row: microseconds of each way, and of PyTorch."""
    sets = input_sets(problem)
    a, b, c = sets[0]
    gpu = require_gpu(a.device)
    majors = problem.a_major, problem.b_major
    planned = planned_problem(gpu, a, b, c.shape, c.dtype, majors)
    sides: dict[str, Any] = {"torch": torch_launches(problem, sets)}
    if problem.n % 8 == 0 == problem.k % 8:
        sides["tma"] = kernel_launches(problem, problem.config(), sets)

    def launches(division: ThreadDivision) -> Any:
        launch = ThreadsLaunch(gpu, planned, threads, division, NO_EPILOGUE)
        return lambda i: launch(*sets[i % len(sets)])

    sides |= {way_name(division): launches(division) for division in ways}
    errors = {name: checked(problem, side, sets[0]) for name, side in sides.items()}
    if wrong := {name: error for name, error in errors.items() if not error < MOST_ERROR}:
        raise AssertionError(f"{problem}: errors {wrong}")
    estimate = 2e-6 + max(problem.flops / 700e12, problem.bytes / 2.8e12)
    count = launches_in_graph(estimate, len(sets))
    graphs = {name: graph_of(launch, count) for name, launch in sides.items()}
    warm_up(graphs, WARM_SECONDS)
    times = replayed_seconds(graphs, ROUNDS)
    us = {name: statistics.median(each) / count * 1e6 for name, each in times.items()}
    size, access = problem.size(), threads.access
    predicted = {way_name(way): thread_seconds(size, access, way) * 1e6 for way in ways}
    fastest = min(predicted, key=us.__getitem__)
    chosen = way_name(ways[0])
    return {
        **problem.row, "units": [*access[:3]], "torch_us": us["torch"], "ways_us": us,
        "predicted_us": predicted, "chosen": chosen, "fastest": fastest,
        "ratio": us["torch"] / us[chosen], "best_ratio": us["torch"] / us[fastest],
        "chosen_us": us[chosen], "best_us": us[fastest], "tma_us": us.get("tma"),
        "bytes_per_second": problem.bytes / us[chosen] * 1e6,
    }  # fmt: skip


def rows(problems: Sequence[Problem], most: int) -> Iterator[Row]:
    """Compiles all, and measures one by one."""
    work = []
    kernels: dict[ThreadSpec | KernelSpec, None] = {}
    for problem in problems:
        threads = threads_of_problem(problem)
        ways = ways_of(problem, threads, most)
        work.append((problem, threads, ways))
        for way in ways:
            spec = thread_spec(90, problem.product, problem.size(), threads.access, way)
            kernels[spec] = None
        if problem.n % 8 == 0 == problem.k % 8:
            kernels[problem.config()] = None
    with ProcessPoolExecutor(processes()) as pool:
        list(pool.map(_compile, kernels))
    for problem, threads, ways in work:
        yield measure(problem, threads, ways)


def selected(seeds: Sequence[int], number: int, most_rows: int) -> Iterator[Problem]:
    """The first problems of each seed, of the class "off 8", that have at most so many rows."""
    for seed in seeds:
        drawn = drawn_problems(seed, 40 * number, ["off 8"])
        yield from [each for each in drawn if each.m <= most_rows][:number]


def main() -> None:
    parser = harness.options(__doc__.split("\n", 1)[0])
    parser.add_argument("--random", type=int, nargs="*", default=[], help="seeds")
    parser.add_argument("--number", type=int, default=10, help="problems of each seed")
    parser.add_argument("--rows", type=int, default=4, help="the most rows of A")
    parser.add_argument("--problems", nargs="*", default=[], help="such as '2x9x99 bf16 KN'")
    parser.add_argument("--ways", type=int, default=12, help="how many of a problem")
    given = parser.parse_args()
    problems = [problem_of({"problem": each}) for each in given.problems]
    problems += selected(given.random, given.number, given.rows)
    table = Table(
        ("problem", "<28", lambda row: str(problem_of(row))),
        ("torch", "9.2f", "torch_us"), ("tma", "9.2f", "tma_us"),
        ("chosen us", "11.2f", "chosen_us"), ("best us", "9.2f", "best_us"),
        ("ratio", "7.3f", "ratio"), ("of best", "9.3f", "best_ratio"),
        ("TB/s", "7.2f", lambda row: row["bytes_per_second"] / 1e12),
        ("  chosen", "<18", lambda row: "  " + row["chosen"]), (" fastest", "<18", "fastest"),
    )  # fmt: skip
    harness.report("by_threads", rows(list(dict.fromkeys(problems)), given.ways), table, given.json)


if __name__ == "__main__":
    main()
