"""The matmul kernels beside PyTorch's (cuBLAS), interleaved in one run on one Hopper GPU.

    python -m benchmarks.matmul [--json FILE] [--rounds N] [--only SUBSTRING]

Device time: each side is a CUDA graph of many launches over so many input sets of random numbers
that they do not fit the L2 cache; the graphs are replayed in turn, and of the rounds the median
counts. Host time is not in it (`python -m benchmarks.latency` is about that). A ratio is of
throughputs, ours to PyTorch's. "limit" is the fraction of what the tensor cores do at the clock
seen, or of the memory bandwidth in the data sheet, whichever binds. What is launched is what
`triton_ext.matmul` launches: `choose_config` and `launch_plan`.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton_ext.kernels.config import Major, MatmulConfig, choose_config
from triton_ext.kernels.launch import compile_matmul, launch_plan

from benchmarks import record
from triton_ext.interop import to_gluon

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "e4m3": torch.float8_e4m3fn}
LLAMA_8B = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
"""N, K of the projections of Llama-3 8B: q, k and v together; o; gate and up together; down."""
LLAMA_70B = [(10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)]
INPUT_BYTES = 200 << 20
"""What the input sets of one problem take together: four times the L2 cache."""
GRAPH_SECONDS = 1.5e-3
"""About how long one replay takes, if a product is shorter than that."""
MEMORY_BYTES = 3.35e12
"""Of an H100 SXM, a second, by its data sheet."""
FLOPS_PER_CLOCK = {2: 4096, 1: 8192}
"""Of an SM's tensor cores, by the bytes of an element."""


@dataclass(frozen=True)
class Problem:
    """One row of the table."""

    m: int
    n: int
    k: int
    element_type: str = "bf16"
    a_major: Major = "K"
    b_major: Major = "K"

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """A, B and C once; C has 16 bits."""
        size = TYPES[self.element_type].itemsize
        return (self.m + self.n) * self.k * size + 2 * self.m * self.n

    def config(self, multiprocessors: int = 132) -> MatmulConfig:
        out_type = "bf16" if self.element_type == "e4m3" else None
        return choose_config(
            90, self.element_type, self.a_major, self.b_major,
            self.m, self.n, self.k, multiprocessors, out_type,
        )  # fmt: skip

    def __str__(self) -> str:
        layout = "".join("N" if major == "MN" else "K" for major in (self.a_major, self.b_major))
        return f"{self.m}x{self.n}x{self.k} {self.element_type} {layout}"


def problems() -> list[Problem]:
    """The shapes of the table, and for fp8 the larger ones of them."""
    rows = [Problem(s, s, s, b_major="MN") for s in (1024, 2048, 4096, 8192, 16384)]
    rows += [Problem(8192, 8192, k) for k in (512, 1024)]
    rows += [Problem(16384, 512, 4096), Problem(512, 16384, 4096)]
    for m in (1, 16, 64, 512, 4096, 8192):
        rows += [Problem(m, n, k) for n, k in LLAMA_8B + LLAMA_70B]
    rows += [Problem(s, s, s, "fp16", b_major="MN") for s in (2048, 4096, 8192)]
    rows += [Problem(s, s, s, "e4m3") for s in (1024, 2048, 4096, 8192)]
    for m in (16, 64, 512, 4096):
        rows += [Problem(m, n, k, "e4m3") for n, k in LLAMA_8B]
    return rows


def inputs(problem: Problem) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random A and B, contiguous along their major dimensions, and C."""
    m, n, k = problem.m, problem.n, problem.k
    dtype = TYPES[problem.element_type]
    a = torch.randn((k, m) if problem.a_major == "MN" else (m, k), device="cuda").to(dtype)
    b = torch.randn((k, n) if problem.b_major == "MN" else (n, k), device="cuda").to(dtype)
    c_type = torch.bfloat16 if problem.element_type == "e4m3" else dtype
    return (
        a.T if problem.a_major == "MN" else a,
        b if problem.b_major == "MN" else b.T,
        torch.empty((m, n), device="cuda", dtype=c_type),
    )


def kernel_launches(
    problem: Problem, config: MatmulConfig, sets: Sequence[tuple[torch.Tensor, ...]]
) -> Callable[[int], None]:
    """Launches a configuration's kernel on input set i."""
    gpu = torch.cuda.get_device_properties()
    plan = launch_plan(config, problem.m, problem.n, problem.k, gpu)
    compiled = compile_matmul(config)
    workspace = torch.zeros(plan.workspace_bytes, dtype=torch.uint8, device="cuda")
    calls = []
    for a, b, c in sets:
        values: dict[str, Any] = dict(plan.constants)
        operands = (
            ("a_desc", a.T if problem.a_major == "MN" else a, plan.a_tile),
            ("b_desc", b if problem.b_major == "MN" else b.T, plan.b_tile),
            ("c_desc", c, plan.c_tile),
        )
        found = {
            name: TensorDescriptor.from_tensor(
                matrix, list(tile.tma_shape), to_gluon(tile.tma_encoding)
            )
            for name, matrix, tile in operands
        }
        # By position, the descriptors are the left and the right operand's, and C's.
        names = ("a_desc", "b_desc", "c_desc")
        values |= {name: found[by] for name, by in zip(names, plan.arguments[:3], strict=True)}
        values["workspace"] = workspace if plan.workspace_bytes else None
        calls.append([values[name] for name in plan.kernel.arg_names])

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
            torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True, out=c)

        return scaled

    def product(i: int) -> None:
        a, b, c = sets[i % len(sets)]
        torch.mm(a, b, out=c)

    return product


def graph_of(launch: Callable[[int], None], count: int) -> torch.cuda.CUDAGraph:
    """A graph of launches 0 to count - 1."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        launch(0)  # whatever is set up at the first launch
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(count):
            launch(i)
    return graph


def median_seconds(
    sides: dict[str, Callable[[int], None]], estimate: float, sets: int, rounds: int
) -> dict[str, float]:
    """Of one launch of each side, replayed in turn.

    Args:
        estimate: about how long a launch takes, in seconds.
        sets: how many input sets the launches walk through.
    """
    count = max(1, min(64, int(GRAPH_SECONDS / estimate)))
    if estimate < 2e-4:
        count = max(count, sets)
    graphs = {name: graph_of(launch, count) for name, launch in sides.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for graph in graphs.values():
        graph.replay()
    order = list(graphs)
    for _ in range(rounds):
        order = order[1:] + order[:1]
        torch.cuda.synchronize()
        torch.cuda._sleep(200_000)  # the host runs ahead meanwhile
        events = []
        for name in order:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graphs[name].replay()
            end.record()
            events.append((name, start, end))
        torch.cuda.synchronize()
        for name, start, end in events:
            times[name].append(start.elapsed_time(end) * 1e-3 / count)
    return {name: statistics.median(values) for name, values in times.items()}


def error_of(problem: Problem, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> float:
    """Relative to the Frobenius norm, of the first rows against float64."""
    rows = min(problem.m, 256)
    expected = a[:rows].double() @ b.double()
    return float((c[:rows].double() - expected).norm() / expected.norm())


def measure(problem: Problem, rounds: int) -> dict[str, Any]:
    """One row: medians, ratio, the fraction of the limit, and the error."""
    sets = [inputs(problem) for _ in range(max(2, min(24, math.ceil(INPUT_BYTES / problem.bytes))))]
    gpu = torch.cuda.get_device_properties()
    config = problem.config(gpu.multi_processor_count)
    sides = {
        "triton_ext": kernel_launches(problem, config, sets),
        "torch": torch_launches(problem, sets),
    }
    sets[0][2].fill_(float("nan"))
    sides["triton_ext"](0)
    error = error_of(problem, *sets[0])
    estimate = 2e-6 + max(problem.flops / 700e12, problem.bytes / 2.8e12)
    seconds = median_seconds(sides, estimate, len(sets), rounds)
    clock = torch.cuda.clock_rate() * 1e6
    peak = FLOPS_PER_CLOCK[TYPES[problem.element_type].itemsize] * gpu.multi_processor_count * clock
    shortest = max(problem.flops / peak, problem.bytes / MEMORY_BYTES)
    return {
        "m": problem.m, "n": problem.n, "k": problem.k,
        "type": problem.element_type,
        "a_major": problem.a_major, "b_major": problem.b_major,
        **{f"{name}_us": value * 1e6 for name, value in seconds.items()},
        **{f"{name}_tflops": problem.flops / value / 1e12 for name, value in seconds.items()},
        "ratio": seconds["torch"] / seconds["triton_ext"],
        "limit": shortest / seconds["triton_ext"],
        "limited_by": "tensor cores" if problem.flops / peak == shortest else "memory",
        "clock_mhz": clock / 1e6,
        "error": error,
        "config": describe(config),
    }  # fmt: skip


def describe(config: MatmulConfig) -> str:
    """The configuration in a few words."""
    words = [f"{config.block_m}x{config.block_n}x{config.block_k}", f"{config.stages} stages"]
    words.append(f"{config.consumers} consumers" if config.consumers else "no specialization")
    if config.swap:
        words.append("swapped")
    if config.cluster > 1:
        words.append(f"clusters of {config.cluster}")
    if config.max_splits > 1:
        words.append("split-K")
    return ", ".join(words)


def _compile(config: MatmulConfig) -> None:
    compile_matmul(config)


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="of problems whose name contains this")
    arguments = parser.parse_args()
    chosen = [problem for problem in problems() if arguments.only in str(problem)]
    start = time.perf_counter()
    configs = list(dict.fromkeys(problem.config() for problem in chosen))
    with ProcessPoolExecutor() as pool:  # fills Triton's cache
        list(pool.map(_compile, configs))
    compiled = time.perf_counter() - start
    torch.manual_seed(0)
    print(" ".join(f"{name} {value}" for name, value in record.environment().items()))
    print(f"{len(configs)} configurations compiled in {compiled:.1f} s")
    print(
        f"{'problem':<28}{'ours us':>9}{'torch us':>9}{'ours':>6}{'torch TFLOP/s':>14}{'ratio':>7}"
        f"{'limit':>7}  configuration"
    )
    rows = []
    for problem in chosen:
        row = measure(problem, arguments.rounds)
        rows.append(row)
        print(
            f"{problem!s:<28}{row['triton_ext_us']:>9.1f}{row['torch_us']:>9.1f}"
            f"{row['triton_ext_tflops']:>6.0f}{row['torch_tflops']:>14.0f}{row['ratio']:>7.3f}"
            f"{row['limit']:>7.2f}  {row['config']}",
            flush=True,
        )
    for element_type in TYPES:
        ratios = [row["ratio"] for row in rows if row["type"] == element_type]
        if ratios:
            print(
                f"{element_type}: geometric mean of {len(ratios)} ratios"
                f" {geometric_mean(ratios):.3f}, lowest {min(ratios):.3f}"
            )
    record.write(arguments.json, "matmul", rows)


if __name__ == "__main__":
    main()
