"""The matmul kernels beside PyTorch's (cuBLAS), interleaved in one run on one Hopper GPU.

    python -m benchmarks.matmul [--json FILE] [--rounds N] [--only NAME] [--best] [--measured]
    python -m benchmarks.matmul --random SEED [--number N] [--classes NAME...] [--fixed] ...

The problems are a table of chosen ones, or drawn from classes that a seed alone decides
(`benchmarks.problems.DRAWN`).

Device time: each side is a CUDA graph of many launches over so many input sets of random numbers
that they do not fit the L2 cache; the graphs are replayed in turn, and of the rounds the median
counts. The GPU is busy all the time, so that the larger products run at the clock that the power
limit leaves. Host time is not in it (`python -m benchmarks.latency` is about that). A ratio is of
throughputs, to PyTorch's. "limit" is the fraction of what the tensor cores do at the clock seen
meanwhile, or of the memory bandwidth (memory clock x bus width), whichever binds. What is launched
is what `triton_ext.matmul` launches: `choose_config` and `launch_plan`.

PyTorch launches the first algorithm that cuBLASLt's heuristic names. With --best the first 24 are
timed, and the fastest three take part in the rounds, the best of which is a second baseline. With
--measured a further side is what `triton_ext.measured_kernels` finds at a first call, which may be
torch's own; its ratio is to torch's, too. Its four candidates are compiled for each problem.

The power limit lags: for about half a second a kernel runs at the clock that the one before it has
left. Replayed in turn, all sides have the same clock, and the one that takes more energy is not
slowed down for it. With --sustained each side has the GPU for a second, twice, and the later halves
count: what a stream of such products sees.
"""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import Any

import torch

import triton_ext
from benchmarks import harness
from benchmarks.cublaslt import CublasLt
from benchmarks.gpu_state import GpuState, Watch
from benchmarks.harness import Row, Table
from benchmarks.problems import (
    CLASSES,
    DRAWN,
    TYPES,
    Operands,
    Problem,
    drawn_problems,
    input_sets,
    problem_of,
    problems,
)
from triton_ext.kernels.choice.gpus import model_of
from triton_ext.kernels.compiled_cache import store
from triton_ext.kernels.launch import (
    compile_matmul,
    compiled_arguments,
    launch_arguments,
    launch_plan,
)
from triton_ext.kernels.spec import KernelSpec
from triton_ext.ops.call import Call
from triton_ext.ops.device import require_gpu
from triton_ext.ops.replay import graph_of, launches_in_graph, replayed_seconds, warm_up
from triton_ext.ops.rule import fixed_kernels
from triton_ext.ops.tuning import FEW, device_seconds, tune

FLOPS_PER_CLOCK = {2: 4096, 1: 8192}
"""Operations of an SM's tensor cores in a clock cycle, by the bytes of an element."""
GOAL, LOWEST = 0.97, 0.93
"""The goals for drawn problems: at most 2 % of the ratios below the one, none below the other."""
ROUNDS = 8
"""How many rounds are replayed without a pause."""
FINALISTS = 3
"""How many of cuBLASLt's algorithms take part in the rounds."""
MOST_ERROR = 1e-2
"""What a product's error is at most, relative to the Frobenius norm: C has 16 bits."""
TURN_SECONDS = 1.0
"""How long a side has the GPU with --sustained; the later half counts."""
REPLAY_SECONDS = 0.01
"""How long a replay takes then, about."""
SHORTEST_SECONDS = 0.3
"""How long a problem is replayed at least: NVML reads clock and power about every 100 ms."""
MULTIPROCESSORS = 132
"""The SMs of an H100 SXM, and of an H200."""


def kernel_launches(
    problem: Problem, config: KernelSpec, sets: Sequence[Operands], compiled: Any = None
) -> Callable[[int], None]:
    """Launches a configuration's kernel, which may have been compiled before, on input set i."""
    gpu = torch.cuda.get_device_properties()
    plan = launch_plan(config, problem.m, problem.n, problem.k, gpu)
    compiled = compiled or compile_matmul(config)
    workspace = torch.zeros(plan.workspace_bytes, dtype=torch.uint8, device="cuda")
    calls = [
        compiled_arguments(plan, launch_arguments(config, plan, *operands, workspace=workspace))
        for operands in sets
    ]

    def launch(i: int) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        compiled[plan.grid](*calls[i % len(calls)], stream=stream)

    return launch


def drop_in_launches(sets: Sequence[Operands]) -> Callable[[int], None]:
    """Launches what `drop_in` makes of input set i: copies of operands included, or torch's own."""

    def product(i: int) -> None:
        a, b, _ = sets[i % len(sets)]
        with triton_ext.drop_in():
            torch.mm(a, b)

    return product


def torch_launches(
    problem: Problem, sets: Sequence[tuple[torch.Tensor, ...]]
) -> Callable[[int], None]:
    """Launches PyTorch's product on input set i."""
    if problem.element_type == "e4m3":
        one = torch.ones((), device="cuda")

        def scaled(i: int) -> None:
            a, b, c = sets[i % len(sets)]
            torch._scaled_mm(
                a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=not problem.promoted, out=c
            )

        return scaled

    def product(i: int) -> None:
        a, b, c = sets[i % len(sets)]
        torch.mm(a, b, out=c)

    return product


def median_seconds(
    sides: Mapping[str, Callable[[int], None]],
    estimate: float,
    sets: int,
    rounds: int,
    watch: Watch | None = None,
    shortest: float = 0,
) -> dict[str, float]:
    """The median seconds of a launch of each side; the sides are replayed in turn.

    Args:
        estimate: about how long a launch takes, in seconds.
        sets: how many input sets the launches walk through.
        watch: sees the GPU while the sides are replayed.
        shortest: for how many seconds to replay at least, with more rounds.
    """
    count = launches_in_graph(estimate, sets)
    graphs = {name: graph_of(launch, count) for name, launch in sides.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    warm_up(graphs)
    begin = time.perf_counter()
    with watch or contextlib.nullcontext():
        while len(times[next(iter(graphs))]) < rounds or time.perf_counter() - begin < shortest:
            for name, seconds in replayed_seconds(graphs, ROUNDS).items():
                times[name] += [value / count for value in seconds]
    return {name: statistics.median(values) for name, values in times.items()}


def sustained_seconds(
    sides: Mapping[str, Callable[[int], None]], estimate: float, watch: Watch
) -> dict[str, float]:
    """The mean seconds of a launch of each side, when it has been all that the GPU does for a
    while.

    Args:
        estimate, watch: as for `median_seconds`.
    """
    count = max(2, round(REPLAY_SECONDS / estimate))
    graphs = {name: graph_of(launch, count) for name, launch in sides.items()}
    warm_up(graphs)
    found: dict[str, list[float]] = {name: [] for name in graphs}
    with watch:
        for name in [*graphs, *reversed(graphs)]:
            events = [torch.cuda.Event(enable_timing=True)]
            events[0].record()
            begin = time.perf_counter()
            while time.perf_counter() - begin < TURN_SECONDS:
                graphs[name].replay()
                events.append(torch.cuda.Event(enable_timing=True))
                events[-1].record()
                events[-3:][0].synchronize()  # the host does not run far ahead
            events[-1].synchronize()
            first = len(events) // 2
            spent = events[first].elapsed_time(events[-1]) * 1e-3
            found[name].append(spent / (len(events) - 1 - first) / count)
    return {name: statistics.mean(values) for name, values in found.items()}


def error_of(problem: Problem, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> float:
    """Relative to the Frobenius norm, of the first rows against float64."""
    rows = min(problem.m, 256)
    expected = a[:rows].double() @ b.double()
    return float((c[:rows].double() - expected).norm() / expected.norm())


def checked(problem: Problem, launch: Callable[[int], None], operands: Operands) -> float:
    """The error of a side's product of its first operands, over poison."""
    operands[2].fill_(float("nan"))
    launch(0)
    return error_of(problem, *operands)


def fastest_of_cublas(
    problem: Problem, sets: Sequence[Operands], estimate: float, library: CublasLt
) -> dict[str, Callable[[int], None]]:
    """The `FINALISTS` fastest of the algorithms that cuBLASLt's heuristic names, by their places in
    its list; a wrong product is an error.
    """
    launches = {f"cublas {i}": x for i, x in enumerate(library.launches(problem, sets))}
    for name, launch in launches.items():
        if not (error := checked(problem, launch, sets[0])) < MOST_ERROR:
            raise AssertionError(f"{problem}, {name}: error {error}")
    seconds = median_seconds(launches, estimate, len(sets), 1)
    return {name: launches[name] for name in sorted(seconds, key=seconds.__getitem__)[:FINALISTS]}


def measured_launches(
    problem: Problem, sets: Sequence[Operands], torchs: Callable[[int], None]
) -> tuple[str, Callable[[int], None]]:
    """What `measured_kernels` finds for the first operands, and its name; nothing is kept of it."""
    a, b, c = sets[0]
    call = Call(a, b, out_dtype=c.dtype)
    found = tune(require_gpu(a.device), call, FEW, False, device_seconds)
    if found.torch_is_faster:
        return "torch", torchs
    return str(found.config), kernel_launches(problem, found.config, sets)


def measure(
    problem: Problem, rounds: int, state: GpuState, library: CublasLt | None,
    measured: bool = False, sustained: bool = False,
) -> Row:  # fmt: skip
    """One row: medians, ratio, the fraction of the limit, and the error; with a `library` the best
    of its algorithms, too, and what is `measured` at a first call.
    """
    sets = input_sets(problem)
    gpu = torch.cuda.get_device_properties()
    config = problem.config(gpu.multi_processor_count, model_of(gpu.name))
    whole = problem.n % 8 == 0 == problem.k % 8
    ours = kernel_launches(problem, config, sets) if whole else drop_in_launches(sets)
    sides = {
        "triton_ext": ours,
        "torch": torch_launches(problem, sets),
    }
    a, b, _ = sets[0]
    error = (
        checked(problem, ours, sets[0])
        if whole
        else error_of(problem, a, b, triton_ext.matmul(a, b))
    )
    estimate = 2e-6 + max(problem.flops / 700e12, problem.bytes / 2.8e12)
    if library is not None:
        sides |= fastest_of_cublas(problem, sets, estimate, library)
    added: dict[str, Any] = {}
    if measured and whole and not problem.promoted:
        added["measured"], sides["measured"] = measured_launches(problem, sets, sides["torch"])
    watch = Watch(state)
    if sustained:
        seconds = sustained_seconds(sides, estimate, watch)
    else:
        seconds = median_seconds(sides, estimate, len(sets), rounds, watch, SHORTEST_SECONDS)
    cublas = {name: seconds.pop(name) for name in [*seconds] if name.startswith("cublas")}
    if added:
        added["ratio_of_measured"] = seconds["torch"] / seconds["measured"]
    if library is not None:
        # torch's own launch is the first of the list, by another call.
        name = min(cublas, key=cublas.__getitem__)
        least = min(cublas[name], seconds["torch"])
        added |= {
            "best_us": least * 1e6,
            "best": name if least == cublas[name] else "torch",
            "ratio_to_best": least / seconds["triton_ext"],
            "cublas": library.version,
        }
    clock = watch.clock_mhz * 1e6
    peak = FLOPS_PER_CLOCK[TYPES[problem.element_type].itemsize] * gpu.multi_processor_count * clock
    bandwidth = state.memory_bytes_per_second()
    shortest = max(problem.flops / peak, problem.bytes / bandwidth)
    return {
        **problem.row,
        **{f"{name}_us": value * 1e6 for name, value in seconds.items()},
        **{f"{name}_tflops": problem.flops / value / 1e12 for name, value in seconds.items()},
        "ratio": seconds["torch"] / seconds["triton_ext"],
        **added,
        "limit": shortest / seconds["triton_ext"],
        "limited_by": "tensor cores" if problem.flops / peak == shortest else "memory",
        "clock_mhz": watch.clock_mhz,
        "power_watts": watch.power_watts,
        "memory_bytes_per_second": bandwidth,
        "error": error,
        "config": str(config),
    }  # fmt: skip


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def summary(rows: Sequence[Mapping[str, Any]], ratio: str = "ratio") -> list[dict[str, Any]]:
    """Geometric mean and lowest of the ratios, for each type and class of shapes, and for all.

    Args:
        ratio: which one: "ratio", to torch's, or "ratio_to_best".

    Returns:
        Dictionaries with "type", "class" ("all" for all of them), "number", "geometric_mean",
        "lowest", and "below" and "far_below": how many ratios are below `GOAL` and `LOWEST`.
        Classes without a row are left out.
    """
    found = []
    for element_type in dict.fromkeys(row["type"] for row in rows):
        for shape_class in (*CLASSES, *DRAWN, "all"):
            ratios = [
                row[ratio]
                for row in rows
                if row["type"] == element_type and shape_class in (row["class"], "all")
            ]
            if ratios:
                found.append(
                    {
                        "type": element_type,
                        "class": shape_class,
                        "number": len(ratios),
                        "geometric_mean": geometric_mean(ratios),
                        "lowest": min(ratios),
                        "below": sum(ratio < GOAL for ratio in ratios),
                        "far_below": sum(ratio < LOWEST for ratio in ratios),
                    }
                )
    return found


def print_summary(rows: Sequence[Mapping[str, Any]], ratio: str = "ratio") -> None:
    """`summary`."""
    limits = f"{f'< {GOAL}':>8}{f'< {LOWEST}':>8}"
    print(f"{'type':<6}{'class':<21}{'number':>6}{'mean':>8}{'lowest':>8}{limits}")
    for line in summary(rows, ratio):
        print(
            f"{line['type']:<6}{line['class']:<21}{line['number']:>6}"
            f"{line['geometric_mean']:>8.3f}{line['lowest']:>8.3f}{line['below']:>8}"
            f"{line['far_below']:>8}"
        )


TABLE = Table(
    ("problem", "<28", lambda row: str(problem_of(row))),
    ("ours us", ">9.1f", "triton_ext_us"),
    ("torch us", ">9.1f", "torch_us"),
    ("ours", ">6.0f", "triton_ext_tflops"),
    ("torch TFLOP/s", ">14.0f", "torch_tflops"),
    ("ratio", ">7.3f", "ratio"),
    ("to best", ">8.3f", "ratio_to_best"),
    ("measured", ">9.3f", "ratio_of_measured"),
    ("limit", ">7.2f", "limit"),
    ("MHz", ">6.0f", "clock_mhz"),
    ("W", ">5.0f", "power_watts"),
    ("  configuration", "", lambda row: f"  {row['config']}"),
)


def compile_all(work: Iterable[KernelSpec]) -> None:
    """Fill Triton's cache, in several processes."""
    with ProcessPoolExecutor(processes()) as pool:
        list(pool.map(_compile, work, chunksize=2))


def processes() -> int:
    """How many processors this process may use: ``taskset`` divides a machine among several."""
    return len(os.sched_getaffinity(0))


def compiled_ahead(
    work: Iterable[tuple[Problem, Sequence[KernelSpec]]], pool: Executor
) -> Iterator[tuple[Problem, Sequence[KernelSpec]]]:
    """Problems and their configurations, each as soon as Triton's cache has its kernels; those of
    the problems after it are compiled meanwhile.
    """
    compiling: dict[KernelSpec, Future[None]] = {}
    begun = []
    for problem, configs in work:
        for config in configs:
            if config not in compiling:
                compiling[config] = pool.submit(_compile, config)
        begun.append((problem, configs))
    for problem, configs in begun:
        for config in configs:
            compiling[config].result()
        yield problem, configs


def _compile(config: KernelSpec) -> None:
    store(config, compile_matmul(config))


def main() -> None:
    parser = harness.options(__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="at least so many")
    parser.add_argument(
        "--only", metavar="NAME", default="", help="of problems whose name contains this"
    )
    parser.add_argument("--random", type=int, metavar="SEED", help="draw the problems")
    parser.add_argument("--number", type=int, default=200, help="of problems to draw")
    parser.add_argument(
        "--classes", nargs="+", choices=DRAWN, metavar="NAME", default=(), help="draw these alone"
    )
    parser.add_argument(
        "--fixed", action="store_true", help="choose among the fixed set of kernels alone"
    )
    parser.add_argument("--best", action="store_true", help="time cuBLASLt's other algorithms, too")
    parser.add_argument("--measured", action="store_true", help="and what a first call measures")
    parser.add_argument("--sustained", action="store_true", help="each side alone for a second")
    arguments = parser.parse_args()
    fixed_kernels(arguments.fixed)
    listed = problems()
    if arguments.random is not None:
        listed = drawn_problems(arguments.random, arguments.number, arguments.classes)
    chosen = [problem for problem in listed if arguments.only in str(problem)]
    start = time.perf_counter()
    model = model_of(torch.cuda.get_device_name())
    work = dict.fromkeys(problem.config(MULTIPROCESSORS, model) for problem in chosen)
    compile_all(work)
    print(f"{len(work)} kernels compiled in {time.perf_counter() - start:.1f} s")
    torch.manual_seed(0)
    state = GpuState()
    library = CublasLt() if arguments.best else None
    rows = (
        measure(problem, arguments.rounds, state, library, arguments.measured, arguments.sustained)
        for problem in chosen
    )
    command = "matmul"
    if arguments.random is not None:
        command += f" --random {arguments.random} --number {arguments.number}"
    if arguments.classes:
        command += f" --classes {shlex.join(arguments.classes)}"
    command += " --fixed" * arguments.fixed + " --best" * arguments.best
    command += " --measured" * arguments.measured + " --sustained" * arguments.sustained
    found = harness.report(command, rows, TABLE, arguments.json)
    print_summary(found)
    if arguments.best:
        print("of the best of cuBLASLt's algorithms:")
        print_summary(found, "ratio_to_best")
    if arguments.measured:
        print("what a first call measures, of torch:")
        print_summary([row for row in found if "measured" in row], "ratio_of_measured")


if __name__ == "__main__":
    main()
