"""The matmul kernels beside PyTorch's (cuBLAS), interleaved in one run on one Hopper GPU.

    python -m benchmarks.matmul [--json FILE] [--rounds N] [--only NAME] [--peers [NAME...]]
    python -m benchmarks.matmul --random SEED [--number N] [--classes NAME...] [--fixed|--measured]

The problems are a table of chosen ones, or drawn from classes that a seed alone decides
(`benchmarks.problems.DRAWN`).

Device time: each side is a CUDA graph of many launches over so many input sets of random numbers
that they do not fit the L2 cache; the graphs are replayed in turn, and of the rounds the median
counts. The GPU is busy all the time, so that the larger products run at the clock that the power
limit leaves. Host time is not in it (`python -m benchmarks.latency` is about that). A ratio is of
throughputs, to PyTorch's. "limit" is the fraction of what the tensor cores do at the clock seen
meanwhile, or of the memory bandwidth (memory clock x bus width), whichever binds. What is launched
is what `triton_ext.matmul` launches: `choose_config` and `launch_plan`.

Peers, in the same rounds, where they are asked for (both are tuned for each problem first, which
takes minutes): Triton's tutorial kernel (`benchmarks.peers`), and what ``torch.compile`` makes of
``torch.mm`` (`benchmarks.inductor`, whose process takes its turn).
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
from dataclasses import replace
from typing import Any

import torch
from triton.errors import TritonError

from benchmarks import harness
from benchmarks.gpu_state import GpuState, Watch
from benchmarks.harness import Row, Table
from benchmarks.inductor import Inductor, InductorError, arguments_of
from benchmarks.peers import Compilation, TutorialConfig, tutorial_configs, tutorial_launches
from benchmarks.problems import (
    CLASSES,
    DRAWN,
    TYPES,
    Operands,
    Problem,
    drawn_problems,
    input_sets,
    peer_problems,
    problem_of,
    problems,
)
from benchmarks.replay import graph_of, launches_in_graph, replayed_seconds, warm_up
from triton_ext.kernels.choice.gpus import model_of
from triton_ext.kernels.kept import keep
from triton_ext.kernels.launch import (
    compile_matmul,
    compiled_arguments,
    launch_arguments,
    launch_plan,
)
from triton_ext.kernels.spec import KernelSpec
from triton_ext.ops import tuned
from triton_ext.ops.rule import fixed_kernels
from triton_ext.ops.tuning import FEW, autotune, considered

FLOPS_PER_CLOCK = {2: 4096, 1: 8192}
"""Operations of an SM's tensor cores in a clock cycle, by the bytes of an element."""
GOAL, LOWEST = 0.97, 0.93
"""Of the ratios of drawn problems 2 % at most should be below the one, and none below the other."""
ROUNDS = 8
"""How many rounds are replayed without a pause."""
SHORTEST_SECONDS = 0.3
"""How long a problem is replayed at least: NVML reads clock and power about every 100 ms."""
MULTIPROCESSORS = 132
"""The SMs of an H100 SXM, and of an H200."""


def kernel_launches(
    problem: Problem, config: KernelSpec, sets: Sequence[Operands], compiled: Any = None,
    group: int | None = None,
) -> Callable[[int], None]:  # fmt: skip
    """Launches a configuration's kernel, which may have been compiled before, on input set i; if
    `group` is given, so many rows of tiles run together.
    """
    gpu = torch.cuda.get_device_properties()
    plan = launch_plan(config, problem.m, problem.n, problem.k, gpu)
    plan = plan if group is None else replace(plan, group=group)
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
    others: Mapping[str, Callable[[], float]] | None = None,
    watch: Watch | None = None,
    shortest: float = 0,
) -> dict[str, float]:
    """The median seconds of a launch of each side; the sides are replayed in turn.

    Args:
        estimate: about how long a launch takes, in seconds.
        sets: how many input sets the launches walk through.
        others: sides that measure themselves when it is their turn, and return the seconds.
        watch: sees the GPU while the sides are replayed.
        shortest: for how many seconds to replay at least, with more rounds.
    """
    count = launches_in_graph(estimate, sets)
    graphs = {name: graph_of(launch, count) for name, launch in sides.items()}
    others = others or {}
    times: dict[str, list[float]] = {name: [] for name in [*graphs, *others]}
    warm_up(graphs)
    begin = time.perf_counter()
    with watch or contextlib.nullcontext():
        while len(times[next(iter(graphs))]) < rounds or time.perf_counter() - begin < shortest:
            for name, seconds in replayed_seconds(graphs, 1 if others else ROUNDS).items():
                times[name] += [value / count for value in seconds]
            for name, replay in others.items():
                times[name].append(replay())
    return {name: statistics.median(values) for name, values in times.items()}


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


class Peers:
    """The sides besides ours and PyTorch's, for the problems for which they are asked.

    Args:
        chosen: the problems.
        inductor: the process; it compiles for all of them at once, while this one does other work.
    """

    def __init__(self, chosen: Sequence[Problem], inductor: Inductor) -> None:
        self._inductor = inductor
        self._tuned: dict[Problem, dict[str, Any]] = {}
        self._chosen = list(chosen)
        inductor.send("versions")
        for problem in chosen:
            inductor.send("tune", **arguments_of(problem))

    def compilations(self) -> list[Compilation]:
        """What is compiled of the tutorial's kernel."""
        kinds = dict.fromkeys((p.element_type, p.b_major == "K") for p in self._chosen)
        return [
            Compilation(config, element_type, b_k_major, MULTIPROCESSORS)
            for element_type, b_k_major in kinds
            for config in tutorial_configs()
        ]

    def wait(self) -> None:
        """Until Inductor has compiled for all problems; print what it chose."""
        versions = self._inductor.receive()
        for problem in self._chosen:
            try:
                found = self._inductor.receive()
            except InductorError as error:
                print(f"torch.compile: {problem}: {error}", flush=True)
                continue
            self._tuned[problem] = {"choice": found["choice"], "error": found["error"], **versions}
            print(f"torch.compile: {problem}: {found['choice']} in {found['seconds']:.0f} s")

    def __contains__(self, problem: Problem) -> bool:
        return problem in self._chosen

    def tutorial(
        self, problem: Problem, sets: Sequence[Operands], estimate: float
    ) -> tuple[TutorialConfig, Callable[[int], None]]:
        """The tutorial's kernel in the configuration with the shortest device time.

        Raises:
            TritonError: it does not run.
        """
        launches: dict[str, Callable[[int], None]] = {}
        configs: dict[str, TutorialConfig] = {}
        for config in tutorial_configs():
            kernel = Compilation(
                config, problem.element_type, problem.b_major == "K", MULTIPROCESSORS
            ).compile()
            if kernel is not None:
                configs[str(config)] = config
                launches[str(config)] = tutorial_launches(
                    problem, config, kernel, sets, MULTIPROCESSORS
                )
        seconds = median_seconds(launches, estimate, len(sets), rounds=3)
        best = min(seconds, key=lambda name: seconds[name])
        return configs[best], launches[best]

    @contextlib.contextmanager
    def prepared(
        self, problem: Problem, sets: int, count: int
    ) -> Iterator[dict[str, Callable[[], float]]]:
        """Inductor's side, if it has one for this problem."""
        if problem not in self._tuned:
            yield {}
            return
        self._inductor.ask("prepare", sets=sets, count=count, **arguments_of(problem))
        try:
            yield {"inductor": lambda: float(self._inductor.ask("replay"))}
        finally:
            self._inductor.ask("release")

    def inductor_facts(self, problem: Problem) -> dict[str, Any]:
        """What it chose, its error, and the versions in its process."""
        return {f"inductor_{name}": value for name, value in self._tuned[problem].items()}


def measured_problem(problem: Problem, gpu: Any) -> tuned.Problem:
    """As `triton_ext.autotune` knows it, on a GPU."""
    return tuned.Problem(
        gpu.name, gpu.multi_processor_count, problem.element_type, problem.a_major,
        problem.b_major, problem.out_type or problem.element_type, problem.m, problem.n, problem.k,
    )  # fmt: skip


def measure(
    problem: Problem, rounds: int, state: GpuState, peers: Peers | None = None,
    measured: bool = False,
) -> Row:  # fmt: skip
    """One row: medians, ratio, the fraction of the limit, and the error.

    Args:
        measured: also what `triton_ext.measured_kernels` would use.
    """
    sets = input_sets(problem)
    gpu = torch.cuda.get_device_properties()
    config = problem.config(gpu.multi_processor_count, model_of(gpu.name))
    sides = {
        "triton_ext": kernel_launches(problem, config, sets),
        "torch": torch_launches(problem, sets),
    }
    error = checked(problem, sides["triton_ext"], sets[0])
    estimate = 2e-6 + max(problem.flops / 700e12, problem.bytes / 2.8e12)
    facts: dict[str, Any] = {}
    if measured:
        out = torch.bfloat16 if problem.out_type else None
        found = autotune(*sets[0][:2], out_dtype=out, candidates=FEW, store=False)
        facts["measured_config"], facts["left"] = str(found.config), found.torch_is_faster
        if found.config != config:
            sides["measured"] = kernel_launches(problem, found.config, sets)
            facts["measured_error"] = checked(problem, sides["measured"], sets[0])
    with contextlib.ExitStack() as stack:
        others: dict[str, Callable[[], float]] = {}
        if peers is not None and problem in peers:
            try:
                chosen, sides["tutorial"] = peers.tutorial(problem, sets, estimate)
                facts["tutorial_config"] = str(chosen)
                facts["tutorial_error"] = checked(problem, sides["tutorial"], sets[0])
            except TritonError as reason:
                print(f"tutorial: {problem}: {reason}", flush=True)
            try:
                count = launches_in_graph(estimate, len(sets))
                others = stack.enter_context(peers.prepared(problem, len(sets), count))
            except InductorError as reason:
                print(f"torch.compile: {problem}: {reason}", flush=True)
            if others:
                facts |= peers.inductor_facts(problem)
        watch = Watch(state)
        seconds = median_seconds(
            sides, estimate, len(sets), rounds, others, watch, shortest=SHORTEST_SECONDS
        )
    if measured:
        seconds.setdefault("measured", seconds["triton_ext"])
    clock = watch.clock_mhz * 1e6
    peak = FLOPS_PER_CLOCK[TYPES[problem.element_type].itemsize] * gpu.multi_processor_count * clock
    bandwidth = state.memory_bytes_per_second()
    shortest = max(problem.flops / peak, problem.bytes / bandwidth)
    return {
        **problem.row,
        **{f"{name}_us": value * 1e6 for name, value in seconds.items()},
        **{f"{name}_tflops": problem.flops / value / 1e12 for name, value in seconds.items()},
        "ratio": seconds["torch"] / seconds["triton_ext"],
        **{
            f"{name}_ratio": seconds["torch"] / seconds[name]
            for name in seconds
            if name not in ("torch", "triton_ext")
        },
        "limit": shortest / seconds["triton_ext"],
        "limited_by": "tensor cores" if problem.flops / peak == shortest else "memory",
        "clock_mhz": watch.clock_mhz,
        "power_watts": watch.power_watts,
        "memory_bytes_per_second": bandwidth,
        "error": error,
        "config": str(config),
        **facts,
    }  # fmt: skip


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Geometric mean and lowest of the ratios, for each type and class of shapes, and for all.

    Returns:
        Dictionaries with "type", "class" ("all" for all of them), "number", "geometric_mean",
        "lowest", and "below" and "far_below": how many ratios are below `GOAL` and `LOWEST`.
        Classes without a row are left out.
    """
    found = []
    for element_type in dict.fromkeys(row["type"] for row in rows):
        for shape_class in (*CLASSES, *DRAWN, "all"):
            ratios = [
                row["ratio"]
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


def print_ratios(rows: Sequence[Mapping[str, Any]]) -> None:
    """`summary`."""
    limits = f"{f'< {GOAL}':>8}{f'< {LOWEST}':>8}"
    print(f"{'type':<6}{'class':<21}{'number':>6}{'mean':>8}{'lowest':>8}{limits}")
    for line in summary(rows):
        print(
            f"{line['type']:<6}{line['class']:<21}{line['number']:>6}"
            f"{line['geometric_mean']:>8.3f}{line['lowest']:>8.3f}{line['below']:>8}"
            f"{line['far_below']:>8}"
        )


def print_summary(rows: Sequence[Mapping[str, Any]]) -> None:
    """`summary`, that of measured kernels, and ours against each peer."""
    print_ratios(rows)
    if all("measured_ratio" in row for row in rows):
        print("the fastest of those that were measured; and what is left to torch, as 1:")
        print_ratios([{**row, "ratio": row["measured_ratio"]} for row in rows])
        print_ratios(
            [{**row, "ratio": 1.0 if row["left"] else row["measured_ratio"]} for row in rows]
        )
    for peer in ("tutorial", "inductor"):
        measured = [row for row in rows if f"{peer}_us" in row]
        if measured:
            ours = geometric_mean([row[f"{peer}_us"] / row["triton_ext_us"] for row in measured])
            theirs = geometric_mean([row[f"{peer}_ratio"] for row in measured])
            print(
                f"{peer}: {theirs:.3f} of torch in the geometric mean of {len(measured)} problems;"
                f" triton_ext {ours:.3f} of {peer}"
            )


TABLE = Table(
    ("problem", "<28", lambda row: str(problem_of(row))),
    ("ours us", ">9.1f", "triton_ext_us"),
    ("torch us", ">9.1f", "torch_us"),
    ("ours", ">6.0f", "triton_ext_tflops"),
    ("torch TFLOP/s", ">14.0f", "torch_tflops"),
    ("ratio", ">7.3f", "ratio"),
    ("tutorial", ">9.3f", "tutorial_ratio"),
    ("compile", ">9.3f", "inductor_ratio"),
    ("limit", ">7.2f", "limit"),
    ("MHz", ">6.0f", "clock_mhz"),
    ("W", ">5.0f", "power_watts"),
    ("  configuration", "", lambda row: f"  {row['config']}"),
)


def compile_all(work: Iterable[KernelSpec | Compilation]) -> None:
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


def _compile(work: KernelSpec | Compilation) -> None:
    if isinstance(work, Compilation):
        work.compile()
    else:
        keep(work, compile_matmul(work))


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
    parser.add_argument(
        "--measured", action="store_true", help="also the fastest of those that autotune measures"
    )
    parser.add_argument(
        "--peers",
        nargs="*",
        metavar="NAME",
        help="measure the peers, too, for problems whose name contains one of these; without any,"
        f" for {len(peer_problems())} problems of several kinds",
    )
    arguments = parser.parse_args()
    fixed_kernels(arguments.fixed)
    listed = problems()
    if arguments.random is not None:
        listed = drawn_problems(arguments.random, arguments.number, arguments.classes)
    chosen = [problem for problem in listed if arguments.only in str(problem)]
    if arguments.peers:
        with_peers = [p for p in chosen if any(name in str(p) for name in arguments.peers)]
    elif arguments.peers is None:
        with_peers = []
    else:
        with_peers = [problem for problem in chosen if problem in peer_problems()]
    with contextlib.ExitStack() as stack:
        peers = None
        if with_peers:
            peers = Peers(with_peers, stack.enter_context(Inductor()))
        start = time.perf_counter()
        model = model_of(torch.cuda.get_device_name())
        work: list[KernelSpec | Compilation] = list(
            dict.fromkeys(problem.config(MULTIPROCESSORS, model) for problem in chosen)
        )
        work += peers.compilations() if peers else []
        if arguments.measured:
            gpu = torch.cuda.get_device_properties()
            asked = [measured_problem(problem, gpu) for problem in chosen]
            work += [config for each in asked for config, _ in considered(each, FEW, 90)]
            work = list(dict.fromkeys(work))
        compile_all(work)
        print(f"{len(work)} kernels compiled in {time.perf_counter() - start:.1f} s")
        if peers:
            peers.wait()
        torch.manual_seed(0)
        state = GpuState()
        rows = (
            measure(problem, arguments.rounds, state, peers, arguments.measured)
            for problem in chosen
        )
        command = "matmul"
        if arguments.random is not None:
            command += f" --random {arguments.random} --number {arguments.number}"
        if arguments.classes:
            command += f" --classes {shlex.join(arguments.classes)}"
        for name in ("fixed", "measured"):
            if getattr(arguments, name):
                command += f" --{name}"
        found = harness.report(command, rows, TABLE, arguments.json)
    print_summary(found)


if __name__ == "__main__":
    main()
