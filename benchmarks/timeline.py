# mypy: disallow-untyped-decorators=False
"""Times of many kernels, measured on a Hopper GPU, and predicted from the emulator's run.

    python -m benchmarks.timeline measure --json FILE [--seconds 200] [--only NAME]  # needs a GPU
    python -m benchmarks.timeline predict FILE [--gpu H200] [--json FILE]
    python -m benchmarks.timeline survey SURVEY --split test [--family NAME] [--number 100]

The workloads are fixed here: the ladder; Triton's tutorial matmul, softmax, layer norm, attention,
transposition, dropout and copies over several sizes and configurations; empty kernels. The
parameters of `triton_ext.timeline` may be fitted to the split "fit" only; "test" is what errors are
reported of. `predict` takes what was measured or predicted before, so that the errors of a model
that has changed are those of the same kernels.

`survey` predicts configurations of this project's matmul that `benchmarks.survey` measured: five
of each problem, evenly spread over the survey's list. A survey is of one split, whole. Problems are
taken in the order of their names' CRC-32, however many there is time for, so that the first ones
are a sample of the others. Left out is what takes too long to emulate: products of more than
`LARGEST` operations, and those of more than `MOST_SHARED` steps of tiles whose blocks share tiles,
as all blocks have to run then. What a survey measured ran in turn, so the kernels of a problem are
predicted with one clock. The 630 kernels that triton_ext/timeline/accuracy.py has of the H100:

    python -m benchmarks.timeline survey benchmarks/results/survey_timeline_h100.json \\
        --split test --family "seeded matmul" --number 128 --seconds 2400 --gpu H100
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import triton.language as tl

import triton_ext
from benchmarks import harness, ladder
from benchmarks.harness import Row, Table, kernels_of
from benchmarks.problems import TYPES, Problem, problem_of, sets_of
from benchmarks.triton_kernels import (
    LOG2E,
    attention_by_pointers_kernel,
    dropout_kernel,
    layer_norm_kernel,
    pointer_matmul,
    softmax_kernel,
    transpose_kernel,
)
from triton_ext.compat import LAUNCH_OPTIONS
from triton_ext.emulator.errors import EmulationError
from triton_ext.kernels.launch import launch_plan
from triton_ext.kernels.spec import KernelSpec, read_spec
from triton_ext.kernels.tile import SimpleTile
from triton_ext.timeline.gpus import GPUS
from triton_ext.timeline.timeline import Timeline, in_turn

SPLITS = ("fit", "test")
"""What parameters may be fitted to, and what errors are reported of."""
KEPT = 26e6
"""What sets may take together so that the L2 cache has them: half of its 50 MB, as its halves keep
copies of their own. (If the caches were cold, sets of 5 to 25 MB were predicted 11 to 14 % too slow
where those of 40 to 100 MB were 2 to 5 %.)"""
ROUNDS = 5
SMS = 132
LARGEST = 3e11
MOST_SHARED = 1500
GPU = SimpleNamespace(multi_processor_count=SMS)
"""What a launch plan asks of a GPU."""
CANDIDATES = 5
"""The configurations of a problem of a survey that are predicted."""
NEAR = 1.05
"""How much longer than the best a choice may take that counts as good."""

Launch = Callable[[], None]


@dataclass(frozen=True)
class Workload:
    """One kernel and its launch.

    Attributes:
        name: unique.
        family: for the tables: "matmul", "ladder", "softmax", ...
        split: "fit" or "test".
        prepare: (device) -> a launch on inputs of its own.
        bytes: about what it touches, to make enough input sets.
        seconds: about how long it takes, to plan the graph; or what was measured.
        best: of a survey, the seconds of the problem's best configuration.
    """

    name: str
    family: str
    split: str
    prepare: Callable[[str], Launch]
    bytes: int
    seconds: float
    config: KernelSpec | None = None
    problem: Problem | None = None
    best: float | None = None

    @property
    def sets(self) -> int:
        """The sets of inputs that launches walk through."""
        return sets_of(self.bytes)

    @property
    def warm(self) -> bool:
        """Whether the L2 cache has all of them."""
        return self.sets * self.bytes <= KEPT


def _split(name: str) -> str:
    """Two thirds of what is not drawn are for the test, by the names alone."""
    return "fit" if zlib.crc32(name.encode()) % 3 == 0 else "test"


def _matmul(problem: Problem, config: KernelSpec) -> Callable[[str], Launch]:
    def prepare(device: str) -> Launch:
        dtype, (m, n, k) = TYPES[problem.element_type], (problem.m, problem.n, problem.k)

        def operand(rows: int, columns: int) -> torch.Tensor:
            if device == "cpu":
                return torch.zeros((rows, columns), dtype=dtype)
            return torch.randn((rows, columns), device=device).to(dtype)

        a = operand(m, k) if problem.a_major == "K" else operand(k, m).T
        b = operand(n, k).T if problem.b_major == "K" else operand(k, n)
        c_type = torch.bfloat16 if problem.element_type == "e4m3" else dtype
        c = torch.empty((m, n), dtype=c_type, device=device)
        return ladder.launch_of(config, launch_plan(config, m, n, k, GPU), a, b, c)

    return prepare


def _emulated(config: KernelSpec, problem: Problem) -> bool:
    """Whether it is not left out, as taking too long."""
    tile = config.tile
    assert not isinstance(tile, SimpleTile)
    rows, columns = (problem.n, problem.m) if tile.swap_ab else (problem.m, problem.n)
    tiles = -(-rows // tile.rows) * -(-columns // tile.columns)
    shared = tiles * -(-problem.k // tile.block_k) if tile.split_k > 1 else 0
    return problem.flops <= LARGEST and shared <= MOST_SHARED


def surveyed(
    path: Path, split: str, family: str, most: float = math.inf
) -> Iterator[list[Workload]]:
    """The configurations of each problem of a survey, as measured.

    Args:
        path: maybe of gzip.
        split: what the survey is for.
        family: what its matmuls are called.
        most: operations of a problem.
    """
    seen: set[str] = set()
    for row in sorted(harness.read(path)["rows"], key=_number):
        problem, configs = problem_of(row), row["configs"]
        if row["problem"] in seen or problem.flops > most:
            continue
        seen.add(row["problem"])
        pairs = [(config, each["seconds"]) for config, each in kernels_of(configs)]
        pairs = [(config, seconds) for config, seconds in pairs if _emulated(config, problem)]
        if len(pairs) < CANDIDATES:
            print(f"{problem} is left out")
            continue
        best = min(each["seconds"] for each in configs)
        spread = [pairs[each * len(pairs) // CANDIDATES] for each in range(CANDIDATES)]
        yield [_surveyed(problem, c, family, split, seconds, best) for c, seconds in spread]


def _number(row: Row) -> int:
    """By which problems are ordered."""
    return zlib.crc32(row["problem"].encode())


def _surveyed(
    problem: Problem,
    config: KernelSpec,
    family: str,
    split: str,
    seconds: float,
    best: float | None = None,
) -> Workload:
    """A matmul in one configuration."""
    return Workload(
        f"{problem}, {config}", family, split, _matmul(problem, config), problem.bytes,
        seconds, config, problem, best,
    )  # fmt: skip


def ladders() -> Iterator[Workload]:
    """The steps from naive to multicast."""
    for size in (1024, 2048, 4096):
        for step in ladder.steps()[size == 4096 :]:

            def prepare(device: str, step: ladder.Step = step, size: int = size) -> Launch:
                a, b, c = (
                    torch.randn((size, size), device=device).to(torch.bfloat16) for _ in range(3)
                )
                return step.launches(a, b.T, c)

            name = f"{step.name} {size}"
            seconds = 2 * size**3 / (3e12 if step.copies is None else 3e14)
            yield Workload(name, "ladder", _split(name), prepare, 6 * size * size, seconds)


def _launched(
    kernel: Any,
    grid: tuple[int, ...],
    tensors: Sequence[tuple[torch.dtype, tuple[int, ...]]],
    *arguments: Any,
    **options: int,
) -> Callable[[str], Launch]:
    """Prepares launches of a kernel on random tensors of some types and shapes."""

    def prepare(device: str) -> Launch:
        made = [torch.randn(shape, device=device).to(dtype) for dtype, shape in tensors]
        return lambda: kernel[grid](*made, *arguments, **options, **LAUNCH_OPTIONS)

    return prepare


def _others() -> Iterator[tuple[str, str, Callable[[str], Launch], int, float]]:
    """Family, name, what prepares it, bytes and seconds of each kernel that is not a matmul's."""
    half, single = torch.bfloat16, torch.float32
    for columns, rows, warps in (
        (1000, 4096, 4), (4096, 4096, 4), (4096, 4096, 8), (8192, 2048, 8), (256, 32768, 4),
        (2048, 1024, 4), (12288, 1024, 16), (512, 512, 4),
    ):  # fmt: skip
        shape, size, block = (rows, columns), 4 * rows * columns, 1 << (columns - 1).bit_length()
        for programs, stages in ((rows, 1), (4 * SMS, 2)):
            name = f"softmax {rows}x{columns}, {programs} programs, {warps} warps"
            softmax = _launched(
                softmax_kernel, (programs,), [(half, shape)] * 2, *shape, block, stages,
                num_warps=warps,
            )  # fmt: skip
            yield "softmax", name, softmax, size, 2e-6 + size / 3e12
    for columns, rows, block, warps in (
        (1024, 4096, 1024, 4), (4096, 4096, 4096, 8), (4096, 4096, 1024, 4), (8192, 1024, 2048, 8),
        (768, 16384, 1024, 4), (12288, 512, 4096, 16),
    ):  # fmt: skip
        size, one, row = 4 * rows * columns, (half, (rows, columns)), (single, (columns,))
        norm = _launched(
            layer_norm_kernel, (rows,), [one, row, row, one], columns, 1e-5, block,
            num_warps=warps,
        )  # fmt: skip
        name = f"layer norm {rows}x{columns} by {block}, {warps} warps"
        yield "layer norm", name, norm, size, 2e-6 + size / 2e12
    for side, bm, bn, warps in (
        (4096, 64, 64, 4), (4096, 32, 32, 4), (4096, 128, 64, 8), (2048, 64, 64, 4),
        (8192, 64, 64, 8), (1024, 16, 16, 1),
    ):  # fmt: skip
        size = 4 * side * side
        transpose = _launched(
            transpose_kernel, (side // bm, side // bn), [(half, (side, side))] * 2, side,
            side, bm, bn, num_warps=warps,
        )  # fmt: skip
        name = f"transpose {side} by {bm}x{bn}, {warps} warps"
        yield "transpose", name, transpose, size, 2e-6 + size / 2e12
    for count, block, warps in (
        (1 << 24, 1024, 4), (1 << 22, 4096, 8), (1 << 25, 2048, 4), (1 << 18, 1024, 4)
    ):  # fmt: skip
        size, name = 8 * count, f"dropout {count} by {block}, {warps} warps"
        dropout = _launched(
            dropout_kernel, (count // block,), [(single, (count,))] * 2, count, 0.5, 7,
            block, num_warps=warps,
        )  # fmt: skip
        yield "dropout", name, dropout, size, 2e-6 + size / 2e12
    for heads, length, d, bm, bn, causal, warps, stages in (
        (32, 1024, 64, 64, 64, False, 4, 2), (32, 1024, 64, 128, 64, False, 4, 3),
        (32, 2048, 128, 128, 64, False, 8, 2), (32, 2048, 128, 128, 128, False, 8, 2),
        (32, 2048, 64, 128, 64, True, 4, 3), (16, 4096, 128, 128, 64, False, 8, 3),
        (8, 512, 64, 64, 64, False, 4, 2), (64, 1024, 128, 64, 64, True, 4, 2),
    ):  # fmt: skip
        attention = _launched(
            attention_by_pointers_kernel, (length // bm, heads),
            [(half, (heads, length, d))] * 4, length, LOG2E / d**0.5, bm, bn, d, causal,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip
        name = f"attention {heads}x{length}x{d} by {bm}x{bn}, {warps} warps, {stages} stages"
        seconds = 5e-6 + 4 * heads * length * length * d / 3e14
        yield "attention", name + ", causal" * causal, attention, 8 * heads * length * d, seconds
    for size, bm, bn, bk, warps, stages in (
        (4096, 128, 128, 64, 4, 3), (4096, 128, 256, 64, 8, 3), (4096, 64, 64, 32, 4, 2),
        (2048, 128, 128, 64, 8, 4), (2048, 64, 128, 64, 4, 3), (1024, 64, 64, 64, 4, 4),
        (8192, 128, 256, 64, 8, 3),
    ):  # fmt: skip
        tutorial = _launched(
            pointer_matmul, (size // bm * (size // bn),),
            [*[(torch.float16, (size, size))] * 3, (single, (size,))],
            size, size, size, size, 1, size, 1, size, bm, bn, bk, tl.float32, "tf32", False,
            "", num_warps=warps, num_stages=stages,
        )  # fmt: skip
        name = f"tutorial matmul {size} by {bm}x{bn}x{bk}, {warps} warps, {stages} stages"
        yield "tutorial matmul", name, tutorial, 6 * size * size, 2e-6 + 2 * size**3 / 4e14
    for programs, block in ((1, 32), (SMS, 128), (8 * SMS, 128), (64 * SMS, 128)):
        tensors = [(single, (block,))] * 2
        tiny = _launched(dropout_kernel, (programs,), tensors, 0, 0.5, 7, block)
        yield "launch", f"launch of {programs} blocks", tiny, 8 * block, 2e-6


def workloads() -> list[Workload]:
    """All, in an order in which a run that is cut short has some of each family."""
    others = [
        Workload(name, family, _split(name), prepare, size, seconds)
        for family, name, prepare, size, seconds in _others()
    ]
    return sorted([*ladders(), *others], key=lambda work: zlib.crc32(work.name.encode()))


def measure(work: Workload) -> Row:
    """The median seconds of a launch, with the L2 cache full of other inputs."""
    from triton_ext.ops.replay import graph_of, launches_in_graph, replayed_seconds

    sets = work.sets
    launches = [work.prepare("cuda") for _ in range(sets)]
    count = launches_in_graph(work.seconds, sets)
    graph = graph_of(lambda i: launches[i % sets](), count)
    begin = time.perf_counter()
    while time.perf_counter() - begin < 0.05:  # until the clock is that of a busy GPU
        graph.replay()
        torch.cuda.synchronize()
    rounds = replayed_seconds({"it": graph}, ROUNDS)["it"]
    return {
        "workload": work.name,
        "family": work.family,
        "split": work.split,
        "seconds": statistics.median(rounds) / count,
        "sets": sets,
    }


def record(work: Workload, gpu: str = "H200") -> Timeline:
    """The predicted timeline of a workload; of zeros, as values do not matter.

    Raises:
        EmulationError: it takes longer than two minutes, say.
    """
    with (
        mock.patch.object(torch, "randn", lambda shape, device: torch.zeros(shape)),
        mock.patch.object(torch.cuda, "get_device_properties", return_value=GPU),
        triton_ext.emulate(
            "sm_90",
            time=GPUS[gpu].but(warm=work.warm),
            values=False,
            check_races=False,
            check_layouts=False,
            timeout=120,
        ) as emulated,
    ):
        work.prepare("cpu")()
    found: Timeline = emulated.timeline
    return found


def predicted(rows: list[Row], gpu: str, only: str) -> Iterator[Row]:
    """The measured rows, with what is predicted."""
    known = {work.name: work for work in workloads()}
    wanted = (row for row in rows if only in row["workload"])
    for _, group in itertools.groupby(
        wanted, lambda row: row["problem"] if "best" in row else row["workload"]
    ):
        pairs = []
        for row in group:
            work = known.get(row["workload"])
            if work is None:  # one of a survey
                config = read_spec(row["config"])
                kind = row["family"], row["split"], row["seconds"]
                work = _surveyed(problem_of(row), config, *kind)
            pairs.append((row, work))
        yield from _predictions(pairs, gpu)


def _predictions(pairs: Iterable[tuple[Row, Workload]], gpu: str) -> Iterator[Row]:
    """The rows with what is predicted. Configurations of a survey ran in turn."""
    found = []
    for row, work in pairs:
        try:
            found.append((row, record(work, gpu)))
        except EmulationError as error:
            print(f"{work.name}: {type(error).__name__}: {error.message[:100]}")
    if len(found) > 1 and all("best" in row for row, _ in found):
        together = in_turn([timeline for _, timeline in found])
        found = [(row, timeline) for (row, _), timeline in zip(found, together, strict=True)]
    for row, timeline in found:
        yield row | {"predicted": timeline.seconds, "bound": timeline.bound}


def summary(rows: list[Row]) -> list[str]:
    """Mean and worst errors, by split and family."""
    lines = []
    for split in SPLITS:
        groups: dict[str, list[float]] = {}
        for row in rows:
            if row["split"] == split:
                error = abs(row["predicted"] / row["seconds"] - 1)
                groups.setdefault(row["family"], []).append(error)
                groups.setdefault("all", []).append(error)
        for family, errors in sorted(groups.items()):
            lines.append(
                f"{split:5} {family:16} {len(errors):4} kernels, mean error"
                f" {statistics.fmean(errors):6.1%}, median {statistics.median(errors):6.1%},"
                f" worst {max(errors):6.1%}"
            )
    return lines


def rank(rows: Sequence[Row]) -> str:
    """How well the predictions choose among the candidates of each problem."""
    problems: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if "best" in row:
            problems.setdefault((row["family"], row["problem"]), []).append(row)
    costs, of_all = [], []
    for each in problems.values():
        if len(each) == CANDIDATES:
            first = min(each, key=lambda row: row["predicted"])["seconds"]
            costs.append(first / min(row["seconds"] for row in each))
            of_all.append(first / each[0]["best"])
    if not costs:
        return "no problem has all candidates"
    good, good_of_all = (sum(cost <= NEAR for cost in found) for found in (costs, of_all))
    return (
        f"{len(costs)} problems with all candidates: the first choice is within 5 % of the"
        f" best in {good} (of all that the survey measured: {good_of_all}), and takes"
        f" {statistics.fmean(costs) - 1:.1%} longer in the mean, {max(costs) - 1:.0%} at worst"
    )


def chosen(
    problems: Iterable[Sequence[Workload]], number: int, seconds: float, gpu: str
) -> Iterator[Row]:
    """Matmuls of so many problems that were measured, predicted, as long as there is time."""
    begin = time.perf_counter()
    for work in itertools.islice(problems, number):
        if time.perf_counter() - begin > seconds:
            print(f"stopped after {seconds} s")
            return
        yield from _predictions([(_row(each), each) for each in work], gpu)


def _row(work: Workload) -> Row:
    """A matmul as it was measured."""
    assert work.problem is not None
    assert work.config is not None
    row = {
        "workload": work.name, "family": work.family, "split": work.split,
        "seconds": work.seconds, "problem": str(work.problem), **work.problem.row,
        "config": work.config.fields(),
    }  # fmt: skip
    return row if work.best is None else row | {"best": work.best}


TABLE = Table(
    ("workload", "<64", "workload"),
    ("family", "<16", "family"),
    ("split", "<6", "split"),
    ("us", ">10.2f", lambda row: row["seconds"] * 1e6),
    ("predicted", ">10.2f", lambda row: row.get("predicted", math.nan) * 1e6),
)


def measured(only: str, seconds: float) -> Iterator[Row]:
    """A row for each workload."""
    from benchmarks.gpu_state import GpuState

    chosen = [work for work in workloads() if only in work.name]
    state, begin = GpuState(), time.perf_counter()
    for number, work in enumerate(chosen):
        if time.perf_counter() - begin > seconds:
            print(f"stopped after {seconds} s: {number} of {len(chosen)}")
            return
        try:
            row = measure(work)
        except Exception as error:  # one that does not run should not cost the others
            print(f"{work.name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        row["clock_mhz"] = state.clock_mhz()
        torch.cuda.empty_cache()
        yield row


def main() -> None:
    parser = harness.options(__doc__)
    parser.add_argument("step", choices=("measure", "predict", "survey"))
    parser.add_argument("file", type=Path, nargs="*", help="what was measured")
    parser.add_argument("--split", choices=SPLITS, help="which a survey is for")
    parser.add_argument("--family", default="matmul", help="what a survey's matmuls are called")
    parser.add_argument("--number", type=int, default=100, help="of a survey's problems")
    parser.add_argument(
        "--operations", type=float, default=math.inf, help="that a problem of a survey has at most"
    )
    parser.add_argument("--gpu", choices=GPUS, default="H200", help="to predict for")
    parser.add_argument("--only", default="", help="workloads whose name has this")
    parser.add_argument(
        "--seconds", type=float, default=200, help="to measure for, or to predict a survey, at most"
    )
    arguments = parser.parse_args()
    if arguments.step == "measure":
        running = measured(arguments.only, arguments.seconds)
        harness.report("timeline", running, TABLE, arguments.json)
        return
    if arguments.step == "survey":
        if arguments.split is None or len(arguments.file) != 1:
            parser.error("survey needs a file, and --split")
        problems = surveyed(
            arguments.file[0], arguments.split, arguments.family, arguments.operations
        )
        found = chosen(problems, arguments.number, arguments.seconds, arguments.gpu)
    else:
        given = [row for path in arguments.file for row in json.loads(path.read_text())["rows"]]
        found = predicted(given, arguments.gpu, arguments.only)
    rows = harness.report("timeline", found, TABLE, arguments.json)
    print("\n".join([*summary(rows), rank(rows)]))


if __name__ == "__main__":
    main()
