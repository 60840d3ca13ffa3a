"""Products divided among GPUs: communication within the kernel, or before and after it.

``python -m benchmarks.distributed [--random SEED --number N] [--json FILE]`` on a machine with two
GPUs or more. All sides of a problem run by turns; a side's time is that of the slowest rank, the
median of the rounds, per call of some launched back to back, without the host's time.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from benchmarks.harness import Row, Table, options, report
from triton_ext import distributed
from triton_ext.ops.call import Call
from triton_ext.ops.products import product

CALLS = 10
"""Calls between two events."""
GATHER, SCATTER = "all-gather + GEMM", "GEMM + reduce-scatter"
CHOSEN = [
    (GATHER, 8192, 4096, 2048), (GATHER, 16384, 4096, 4096), (GATHER, 4096, 5120, 8192),
    (GATHER, 2048, 7168, 4096), (SCATTER, 8192, 2048, 4096), (SCATTER, 16384, 4096, 4096),
    (SCATTER, 4096, 8192, 5120), (SCATTER, 2048, 4096, 7168),
]  # fmt: skip
"""Kind, and M, N, K of the product that a GPU makes: layers of models, two GPUs."""
TABLE = Table(
    ("problem (M x N x K a GPU)", "<46", "problem"),
    ("GEMM", ">8.3f", "gemm"),
    ("NCCL", ">8.3f", "nccl"),
    ("then cuBLAS", ">13.3f", "cublas"),
    ("then ours", ">11.3f", "sequential"),
    ("torch fused", ">13.3f", "torch"),
    ("ours", ">8.3f", "ours"),
    ("gain", ">7.2f", lambda row: row["cublas"] / row["ours"]),
    ("of limit", ">10.2f", lambda row: row["ours"] / max(row["gemm"], row["nccl"])),
)


@dataclass(frozen=True)
class Problem:
    """What the ranks make together; the sizes are those of one rank's product."""

    kind: str
    m: int
    n: int
    k: int

    def sides(self, group: dist.ProcessGroup) -> dict[str, Callable[[], Tensor]]:
        """What is measured: calls that make the same, and the parts of it."""
        rank, ranks = group.rank(), group.size()
        random_numbers = torch.Generator("cuda").manual_seed(rank)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(shape, generator=random_numbers, device="cuda").bfloat16()

        b = drawn(self.n, self.k).t()
        name = group.group_name
        if self.kind == GATHER:
            a, whole = drawn(self.m // ranks, self.k), drawn(self.m, self.k)

            def gathered() -> Tensor:
                dist.all_gather_into_tensor(whole, a, group=group)
                return whole

            return {
                "gemm": lambda: whole @ b,
                "nccl": gathered,
                "cublas": lambda: gathered() @ b,
                "sequential": lambda: product(Call(gathered(), b)),
                "torch": lambda: torch.ops.symm_mem.fused_all_gather_matmul(
                    a, [b], gather_dim=0, group_name=name
                )[1][0],
                "ours": lambda: distributed.all_gather_matmul(a, b, group),
            }
        a, out = drawn(self.m, self.k), drawn(self.m // ranks, self.n)
        made = drawn(self.m, self.n)

        def scattered(product: Tensor) -> Tensor:
            dist.reduce_scatter_tensor(out, product, group=group)
            return out

        return {
            "gemm": lambda: a @ b,
            "nccl": lambda: scattered(made),
            "cublas": lambda: scattered(a @ b),
            "sequential": lambda: scattered(product(Call(a, b))),
            "torch": lambda: torch.ops.symm_mem.fused_matmul_reduce_scatter(
                a, b, "sum", scatter_dim=0, group_name=name
            ),
            "ours": lambda: distributed.matmul_reduce_scatter(a, b, group),
        }


def drawn(seed: int, number: int) -> Iterator[Problem]:
    """Random problems: M of 1024 to 16384 in steps of 256, N and K of 1024 to 8192 in steps of 128,
    each log-uniform.
    """
    numbers = random.Random(seed)
    for index in range(number):
        m, n, k = (
            round(low * (high / low) ** numbers.random() / step) * step
            for low, high, step in ((1024, 16384, 256), (1024, 8192, 128), (1024, 8192, 128))
        )
        yield Problem((GATHER, SCATTER)[index % 2], m, n, k)


def measure(problem: Problem, group: dist.ProcessGroup, rounds: int) -> Row:
    """One problem; AssertionError if a side's result is wrong."""
    sides = problem.sides(group)
    expected = sides["cublas"]().float()
    for name in ("sequential", "torch", "ours"):
        for _ in range(3):
            error = (sides[name]().float() - expected).abs().max() / expected.abs().max()
            assert error < 0.02, (problem, name, error.item())
    shape = f"{problem.kind} {problem.m}x{problem.n}x{problem.k}"
    return {"problem": shape, **medians(sides, group, rounds)}


def medians(
    sides: dict[str, Callable[[], Tensor]], group: dist.ProcessGroup, rounds: int
) -> dict[str, float]:
    """The milliseconds of a call of each side, on the slowest rank; all by turns."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, call in sides.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            call()
            dist.barrier(group)
            torch.cuda._sleep(8_000_000)  # some milliseconds, so that the host is ahead
            begin.record()
            for _ in range(CALLS):
                call()
            end.record()
            end.synchronize()
            slowest = torch.tensor(begin.elapsed_time(end) / CALLS, device="cuda")
            dist.all_reduce(slowest, dist.ReduceOp.MAX, group)
            times[name].append(slowest.item())
    return {name: statistics.median(each) for name, each in times.items()}


def _rank(rank: int, ranks: int, meeting: str, arguments: argparse.Namespace) -> None:
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    dist.init_process_group(
        "nccl", init_method=f"file://{meeting}", rank=rank, world_size=ranks, device_id=device
    )
    group = dist.group.WORLD
    assert group is not None
    problems = [Problem(*each) for each in CHOSEN]
    if arguments.random is not None:
        problems += drawn(arguments.random, arguments.number)
    rows = (measure(problem, group, arguments.rounds) for problem in problems)
    if rank == 0:
        command = "distributed"
        if arguments.random is not None:
            command += f" --random {arguments.random} --number {arguments.number}"
        found = report(command, rows, TABLE, arguments.json, f"{ranks} GPUs, ms, bf16")
        for name, part in (("chosen", found[: len(CHOSEN)]), ("random", found[len(CHOSEN) :])):
            gains = [row["cublas"] / row["ours"] for row in part]
            if gains:
                mean = statistics.geometric_mean(gains)
                print(f"gain, {name}: mean {mean:.3f}, lowest {min(gains):.3f}")
    else:
        list(rows)
    dist.barrier(group)
    dist.destroy_process_group()


def main() -> None:
    """Measure on all GPUs of this machine."""
    parser = options(__doc__)
    parser.add_argument("--random", type=int, metavar="SEED", help="random problems, too")
    parser.add_argument("--number", type=int, default=20, help="how many of them")
    parser.add_argument("--rounds", type=int, default=9)
    arguments, ranks = parser.parse_args(), torch.cuda.device_count()
    if ranks < 2:
        parser.error(f"needs two GPUs or more; there are {ranks}")
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (ranks, str(Path(folder) / "meeting"), arguments), nprocs=ranks)


if __name__ == "__main__":
    main()
