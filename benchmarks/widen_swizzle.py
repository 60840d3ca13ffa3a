"""What the compiler pass widen-swizzle gains: kernels with narrow swizzles, changed and unchanged.

    python -m benchmarks.widen_swizzle [--json FILE] [--repeats N]

Each kernel is timed as written (with a 32- or 64-byte swizzle), with the pass, and written with the
128-byte swizzle; interleaved in one run, medians of CUDA events, over input sets that do not fit
the L2 cache. Before that, all three must give the same bits. The TMA copies and the wavefronts of
moves between registers and shared memory are what the pass reports: per tile, not measured.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

import triton_ext
import triton_ext.passes
from benchmarks import harness
from benchmarks.harness import Row, Table
from triton_ext.compat import LAUNCH_OPTIONS, async_load, async_store
from triton_ext.kernels.element_types import Major
from triton_ext.kernels.launch import descriptor, launch_plan
from triton_ext.kernels.spec import kernel_spec

WIDE = 128
INPUT_BYTES = 128 << 20
"""More than any L2 cache: how much the input sets of one kernel take together."""
TILE_ROWS, TILE_COLUMNS = 128, 64

Launch = Callable[[list[torch.Tensor], torch.Tensor], None]


@dataclass(frozen=True)
class Problem:
    """A kernel that can be written with any swizzle.

    Attributes:
        name: the kernel's, with its problem.
        swizzles: the narrow ones to look at, in bytes.
        inputs: makes one set of inputs.
        output: makes the output.
        launch: from a swizzle to a function of inputs and output.
        work: floating-point operations, or bytes of global memory, in one launch.
        unit: what `work` in a second is given in: "TFLOP/s" or "TB/s".
    """

    name: str
    swizzles: tuple[int, ...]
    inputs: Callable[[], list[torch.Tensor]]
    output: Callable[[], torch.Tensor]
    launch: Callable[[int], Launch]
    work: float
    unit: str


def device() -> str:
    """The GPU; or the host, where the emulated one works."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def matmul(size: tuple[int, int, int], a_major: Major, b_major: Major, **rest: Any) -> Problem:
    """A product by one of this project's Hopper kernels."""
    m, n, k = size

    def matrix(rows: int, columns: int, major: str, contiguous: str) -> torch.Tensor:
        shape = (rows, columns) if major == contiguous else (columns, rows)
        return torch.randn(shape, device=device(), dtype=torch.bfloat16)

    def launch(swizzle: int) -> Launch:
        config = kernel_spec(
            90, "bf16", a_major, b_major, a_swizzle=swizzle, b_swizzle=swizzle, **rest
        )
        if torch.cuda.is_available():
            properties: Any = torch.cuda.get_device_properties(0)
        else:
            properties = argparse.Namespace(multi_processor_count=2)
        plan = launch_plan(config, m, n, k, properties)

        def run(inputs: list[torch.Tensor], output: torch.Tensor) -> None:
            tiles = (plan.a_tile, plan.b_tile, plan.c_tile)
            descriptors = map(descriptor, (*inputs, output), tiles)
            names = ("a_desc", "b_desc", "c_desc")
            plan.launch({**dict(zip(names, descriptors, strict=True)), "group": plan.group})

        return run

    kind = "warp-specialized" if rest.get("consumers") else "pipelined"
    return Problem(
        f"{kind} matmul {m}x{n}x{k}, A {a_major}-major, B {b_major}-major",
        (32, 64),
        lambda: [matrix(m, k, a_major, "K"), matrix(n, k, b_major, "K")],
        lambda: torch.empty((m, n), device=device(), dtype=torch.bfloat16),
        launch,
        2.0 * m * n * k,
        "TFLOP/s",
    )


@gluon.jit
def copy_kernel(source, target, tiles, STAGES: gl.constexpr):
    """Each block copies every so many tiles by TMA, through a ring of buffers."""
    shape: gl.constexpr = source.block_type.shape
    ring = gl.allocate_shared_memory(source.dtype, [STAGES, shape[0], shape[1]], source.layout)
    bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(bars.index(i), count=1)
    fence_async_shared()
    first, step = gl.program_id(0), gl.num_programs(0)
    count = gl.cdiv(gl.maximum(tiles - first, 0), step)
    for i in range(STAGES - 1):
        here = i < count
        mbarrier.expect(bars.index(i), source.block_type.nbytes, pred=here)
        async_load(
            source, [(first + i * step) * shape[0], 0], bars.index(i), ring.index(i), pred=here
        )
    for i in range(count):
        tma.store_wait(0)
        ahead = i + STAGES - 1
        here, slot = ahead < count, ahead % STAGES
        mbarrier.expect(bars.index(slot), source.block_type.nbytes, pred=here)
        async_load(
            source, [(first + ahead * step) * shape[0], 0], bars.index(slot), ring.index(slot),
            pred=here,
        )  # fmt: skip
        mbarrier.wait(bars.index(i % STAGES), (i // STAGES) & 1)
        async_store(target, [(first + i * step) * shape[0], 0], ring.index(i % STAGES))
    tma.store_wait(0)
    for i in gl.static_range(STAGES):
        mbarrier.invalidate(bars.index(i))


@gluon.jit
def scale_kernel(source, target, tiles, FACTOR: gl.constexpr, LAYOUT: gl.constexpr):
    """Each block takes tiles by TMA, multiplies them in registers, and stores them by TMA."""
    shape: gl.constexpr = source.block_type.shape
    tile = gl.allocate_shared_memory(source.dtype, shape, source.layout)
    result = gl.allocate_shared_memory(target.dtype, shape, target.layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    fence_async_shared()
    phase = 0
    for i in range(gl.program_id(0), tiles, gl.num_programs(0)):
        mbarrier.expect(bar, source.block_type.nbytes)
        async_load(source, [i * shape[0], 0], bar, tile)
        mbarrier.wait(bar, phase)
        value = tile.load(LAYOUT)
        tma.store_wait(0)
        result.store((value * FACTOR).to(target.dtype))
        fence_async_shared()
        async_store(target, [i * shape[0], 0], result)
        phase ^= 1
    tma.store_wait(0)
    mbarrier.invalidate(bar)


def streaming(name: str, kernel: Any, *arguments: Any, rows: int, blocks: int) -> Problem:
    """A kernel that reads a tall matrix and writes one."""

    def launch(swizzle: int) -> Launch:
        layout = gl.NVMMASharedLayout(swizzle, 16, rank=2)

        def run(inputs: list[torch.Tensor], output: torch.Tensor) -> None:
            block = [TILE_ROWS, TILE_COLUMNS]
            source, target = (
                TensorDescriptor.from_tensor(each, block, layout) for each in (*inputs, output)
            )
            kernel[(blocks,)](source, target, rows // TILE_ROWS, *arguments, **LAUNCH_OPTIONS)

        return run

    shape = (rows, TILE_COLUMNS)
    return Problem(
        f"{name} of {rows}x{TILE_COLUMNS} bf16",
        (32, 64),
        lambda: [torch.randn(shape, device=device(), dtype=torch.bfloat16)],
        lambda: torch.empty(shape, device=device(), dtype=torch.bfloat16),
        launch,
        4.0 * rows * TILE_COLUMNS,
        "TB/s",
    )


def problems(small: bool) -> Iterator[Problem]:
    """All of them; small ones to see that they run."""
    square = (256, 256, 256) if small else (4096, 4096, 4096)
    rows, blocks = (4 * TILE_ROWS, 2) if small else (TILE_ROWS * 4096, 3 * 132)
    majors: tuple[tuple[Major, Major], ...] = (("K", "K"), ("K", "MN"), ("MN", "MN"))
    for a_major, b_major in majors:
        yield matmul(square, a_major, b_major, block_m=128, block_n=128, block_k=64, stages=3)
    for a_major, b_major in majors[:2]:
        yield matmul(
            square, a_major, b_major, block_m=128, block_n=256, block_k=64, stages=3, consumers=2
        )
    registers = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    yield streaming("TMA copy", copy_kernel, 4, rows=rows, blocks=blocks)
    yield streaming("scaling", scale_kernel, 2.0, registers, rows=rows, blocks=blocks)


def facts(report: Any) -> dict[str, Any]:
    """What the pass reports, summed up."""
    found: dict[str, Any] = {}
    for key in ("tma_copies", "wavefronts"):
        items = [item for each in report["widened"] for item in each[key]]
        found[key] = [sum(item[side] for item in items) for side in ("before", "after")]
    return found


def measure(problem: Problem, swizzle: int, repeats: int) -> Row:
    """Medians of the three kernels, interleaved, after a comparison of their results.

    Raises:
        AssertionError: the results differ.
    """
    sides = {
        "narrow": problem.launch(swizzle),
        "widened": problem.launch(swizzle),
        "wide": problem.launch(WIDE),
    }
    first = problem.inputs()
    size = sum(each.nbytes for each in first)
    sets = [first, *(problem.inputs() for _ in range(min(15, INPUT_BYTES // size)))]
    outputs = {name: problem.output().fill_(float("nan")) for name in sides}
    reports = []
    for name, launch in sides.items():
        if name == "widened":
            with triton_ext.passes.enabled("widen-swizzle{output=none}") as results:
                launch(first, outputs[name])
            reports = [result.report for result in results.of("widen-swizzle")]
        else:
            launch(first, outputs[name])
    for name, output in outputs.items():
        same = torch.equal(output.view(torch.int16), outputs["narrow"].view(torch.int16))
        assert same, f"{problem.name}: the results of {name} and narrow differ"
    assert len(reports) == 1, reports
    row = {"kernel": problem.name, "swizzle": swizzle, **facts(reports[0])}
    if not torch.cuda.is_available():
        return row
    times = timed(sides, sets, outputs, repeats)
    rate = problem.work / 1e12
    return row | {
        **{f"{name}_us": seconds * 1e6 for name, seconds in times.items()},
        **{f"{name}_rate": rate / seconds for name, seconds in times.items()},
        "unit": problem.unit,
        "speedup": times["narrow"] / times["widened"],
        "widened_to_wide": times["wide"] / times["widened"],
    }


def timed(
    sides: dict[str, Launch],
    sets: list[list[torch.Tensor]],
    outputs: dict[str, torch.Tensor],
    repeats: int,
) -> dict[str, float]:
    """The median seconds of each side; the GPU is kept busy while the host launches."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for i in range(repeats + 2):
        events = {}
        torch.cuda._sleep(4_000_000)  # about 2 ms, in which the host runs ahead
        for name, launch in sides.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            if name == "widened":
                with triton_ext.passes.enabled("widen-swizzle{output=none}"):
                    launch(sets[i % len(sets)], outputs[name])
            else:
                launch(sets[i % len(sets)], outputs[name])
            end.record()
            events[name] = (start, end)
        torch.cuda.synchronize()
        if i >= 2:
            for name, (start, end) in events.items():
                times[name].append(start.elapsed_time(end) * 1e-3)
    return {name: statistics.median(values) for name, values in times.items()}


TABLE = Table(
    ("kernel", ">62", "kernel"),
    ("swizzle", ">8", "swizzle"),
    ("as written", ">12.3g", "narrow_rate"),
    ("widened", ">9.3g", "widened_rate"),
    ("128 B", ">8.3g", "wide_rate"),
    (" unit", "<8", lambda row: f" {row['unit']}"),
    ("speed-up", ">9.2f", "speedup"),
    ("TMA copies", ">14", lambda row: "{} -> {}".format(*row["tma_copies"])),
    ("wavefronts", ">16", lambda row: "{} -> {}".format(*row["wavefronts"])),
)


def measured(repeats: int) -> Iterator[Row]:
    """A row for each problem and each narrow swizzle of it."""
    torch.manual_seed(0)
    for problem in problems(small=False):
        for swizzle in problem.swizzles:
            yield measure(problem, swizzle, repeats)


if __name__ == "__main__":
    harness.main("widen_swizzle", __doc__, measured, TABLE, repeats=30)
