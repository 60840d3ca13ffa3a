# Gluon functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The published steps to a fast matmul on Blackwell, rebuilt, and the time that is predicted.

    python -m benchmarks.ladder_sm100 [--size 4096] [--json FILE]    # no GPU is needed
    python -m benchmarks.ladder_sm100 --loops                        # one SM's main loop
    python -m benchmarks.ladder_sm100 --bubbles --json FILE          # the timeline of the README

C = A @ B in bf16, both K-major. No Blackwell has measured any of this here: what is compared is the
order of the steps, and what each gains, with a tutorial's times on a B200 at 4096 cubed
(github.com/gau-nernst/learn-cuda at 1c1863e, 02e_matmul_sm100, v1a, v2b and v3 to v6). Tiles,
stages, who waits for what, the order of tiles and the way C is stored are those of its source.
What differs: the second step copies a slice of 64 columns at a time (the source's v2b copies the
tile as one box of three dimensions), and where there are roles, four warps store that do nothing
else (in v4 and v5, those that copy and multiply store, too).

``--loops``: a step along K of one block that makes 128 x 64 sums, beside those of CUTLASS's kernels
that SemiAnalysis measured (github.com/SemiAnalysisAI/microbench-blackwell at 9a068d8,
cutlass_gemm_mainloop/results.csv).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    tcgen05_commit,
    tcgen05_mma,
)
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

import triton_ext
from benchmarks import harness
from benchmarks.harness import Row, Table
from triton_ext.compat import (
    LAUNCH_OPTIONS,
    async_load,
    load_accumulator,
    register_layout,
    reinterpret,
)
from triton_ext.kernels.device.launch_control import tickets_of
from triton_ext.kernels.device.matmul import tile_origin
from triton_ext.kernels.device.pipeline import Operands
from triton_ext.kernels.device.scheduler import Tiling
from triton_ext.kernels.device.warp_specialized_sm100 import (
    ONE_WARP,
    accumulators_of,
    load,
    multiply,
    pipeline_of,
    slices,
)
from triton_ext.kernels.launch import descriptor, launch_arguments, launch_plan
from triton_ext.kernels.plan import Sm100Plan, plan_of
from triton_ext.kernels.spec import kernel_spec
from triton_ext.kernels.tiles import tile_layouts
from triton_ext.layouts.triton.gluon import to_gluon
from triton_ext.timeline.gpus import GPUS, Gpu
from triton_ext.timeline.timeline import Timeline
from triton_ext.timeline.trace import WAIT

COLUMNS = gl.constexpr(8)
"""That a thread takes from tensor memory and stores at a time."""
Launch = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
"""Of (A, B, C)."""
LOOPS = {2: 372, 3: 248, 4: 188, 5: 155}
"""Stages -> the published nanoseconds of a step."""
ENDLESS = 1e18
"""Bytes a second."""
GAP = 300
"""Cycles: shorter pauses are not drawn."""
BUBBLES = (148 * 128, 3 * 256, 1024)
"""M, N and K of the product that is drawn: three tiles for each SM."""


@gluon.jit
def store_rows(c, off_m, off_n, size_n, pieces):
    """Tensor memory -> C, some columns at a time: each thread writes those of its row at once."""
    ROWS: gl.constexpr = pieces[0].shape[0]
    WIDTH: gl.constexpr = pieces[0].shape[1]
    LAYOUT: gl.constexpr = register_layout(pieces[0])
    row = off_m + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    column = off_n + gl.arange(0, WIDTH, gl.SliceLayout(0, LAYOUT))
    target = c + row[:, None] * size_n + column[None, :]
    for i in gl.static_range(len(pieces)):
        gl.store(target + i * WIDTH, load_accumulator(pieces[i]).to(c.dtype.element_ty))


@gluon.jit
def copy_slices(a_desc, b_desc, a_slices, b_slices, arrived, i, off_m, off_n,
                K: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """Start the copies of the tiles of A and B at i * K, into the pipeline."""
    WIDTH: gl.constexpr = a_desc.block_type.shape[1]
    SLICES: gl.constexpr = K // WIDTH
    stage = i % STAGES
    barrier = arrived.index(stage)
    mbarrier.expect(barrier, SLICES * (a_desc.block_type.nbytes + b_desc.block_type.nbytes))
    for s in gl.static_range(SLICES):
        where = stage * SLICES + s
        async_load(a_desc, [off_m, i * K + s * WIDTH], barrier, a_slices.index(where))
        async_load(b_desc, [off_n, i * K + s * WIDTH], barrier, b_slices.index(where))


@gluon.jit
def tiled(a_desc, b_desc, c, size_m, size_n,
          A_LAYOUT: gl.constexpr, B_LAYOUT: gl.constexpr, K: gl.constexpr, STAGES: gl.constexpr,
          num_warps: gl.constexpr):  # fmt: skip
    """All warps do everything: tiles of A and B are copied `STAGES` - 1 steps before they are
    multiplied, and each step waits until its product is done.

    A descriptor's box holds a slice of a tile's columns.
    """
    M: gl.constexpr = a_desc.block_type.shape[0]
    N: gl.constexpr = b_desc.block_type.shape[0]
    WIDTH: gl.constexpr = a_desc.block_type.shape[1]
    SLICES: gl.constexpr = K // WIDTH
    off_m, off_n = tile_origin(size_m, size_n, 1, M, N)
    a_slices = gl.allocate_shared_memory(a_desc.dtype, [STAGES * SLICES, M, WIDTH], a_desc.layout)
    b_slices = gl.allocate_shared_memory(b_desc.dtype, [STAGES * SLICES, N, WIDTH], b_desc.layout)
    a_tiles = reinterpret(a_slices, a_desc.dtype, [STAGES, M, K], A_LAYOUT)
    b_tiles = reinterpret(b_slices, b_desc.dtype, [STAGES, K, N], B_LAYOUT)
    arrived = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for each in gl.static_range(STAGES):
        mbarrier.init(arrived.index(each), count=1)
    mbarrier.init(done, count=1)
    fence_async_shared()
    acc = allocate_tensor_memory(gl.float32, [M, N], TensorMemoryLayout([M, N], col_stride=1))
    steps = gl.cdiv(a_desc.shape[1], K)
    for i in gl.static_range(STAGES - 1):
        copy_slices(a_desc, b_desc, a_slices, b_slices, arrived, i, off_m, off_n, K, STAGES)
    for i in range(steps):
        if i + STAGES - 1 < steps:
            copy_slices(a_desc, b_desc, a_slices, b_slices, arrived, i + STAGES - 1, off_m, off_n,
                        K, STAGES)  # fmt: skip
        stage = i % STAGES
        mbarrier.wait(arrived.index(stage), (i // STAGES) & 1)
        tcgen05_mma(a_tiles.index(stage), b_tiles.index(stage), acc, use_acc=i > 0)
        tcgen05_commit(done)
        mbarrier.wait(done, i & 1)
    for each in gl.static_range(STAGES):
        mbarrier.invalidate(arrived.index(each))
    mbarrier.invalidate(done)
    store_rows(c, off_m, off_n, size_n, slices(acc, COLUMNS))


@gluon.jit
def store(c, accumulators, tickets):
    """The warpgroup that stores the tiles."""
    which = accumulators.first()
    ticket = tickets.first()
    while ticket.more:
        work = tickets.work(ticket)
        acc = accumulators.full(which)
        store_rows(c, work.off_m, work.off_n, tickets.tiling.size_n, acc.pieces(COLUMNS))
        acc.release()
        which = which.next()
        ticket = tickets.next(ticket)


@gluon.jit
def roles(a_desc, b_desc, c, size_m, size_n, PLAN: gl.constexpr):
    """A warp copies, a warp multiplies, a warpgroup stores: `warp_specialized_sm100`'s roles, but
    for the last one.

    Args:
        PLAN: an `Sm100Plan`.
    """
    M: gl.constexpr = PLAN.block_m
    N: gl.constexpr = PLAN.block_n
    K: gl.constexpr = PLAN.tile.block_k
    STAGES: gl.constexpr = PLAN.tile.stages
    tiling = Tiling(
        size_m, size_n, gl.cdiv(size_m, M), gl.cdiv(size_n, N), gl.cdiv(a_desc.shape[1], K),
        gl.to_tensor(1), M, N, 1, 0, 0,
    )  # fmt: skip
    a_tiles = gl.allocate_shared_memory(a_desc.dtype, [STAGES, M, K], PLAN.left)
    b_tiles = gl.allocate_shared_memory(b_desc.dtype, [STAGES, K, N], PLAN.right)
    pipeline = pipeline_of(a_tiles, b_tiles, None, PLAN)
    accumulators = accumulators_of(a_desc.dtype, PLAN)
    tickets = tickets_of(tiling, tiling.tiles_m * tiling.tiles_n, 4, False, False)
    fence_async_shared()
    operands = Operands(a_desc, b_desc, None, None, PLAN)
    gl.warp_specialize(
        [
            (store, (c, accumulators, tickets)),
            (multiply, (pipeline, accumulators, tickets)),
            (load, (operands, pipeline, tickets)),
        ],
        [1, 1],
        [ONE_WARP, ONE_WARP],
    )


def _core_matrices(rows: int, columns: int) -> list[list[int]]:
    """A tile without swizzle, K-major: columns of 8x8 core matrices, as TMA writes narrow boxes."""
    within = [[0, 1], [0, 2], [0, 4]]
    down = [[1 << bit, 0] for bit in range(rows.bit_length() - 1)]
    return within + down + [[0, 8 << bit] for bit in range((columns // 8).bit_length() - 1)]


def _tiled(k: int, stages: int, *, swizzle: bool = True) -> Launch:
    """Tiles of 128 x 256 x k."""
    m, n = 128, 256
    if swizzle:
        boxes = [tile_layouts((rows, 64), 1, 16) for rows in (m, n)]
        width, box = 64, [to_gluon(each.tma_encoding) for each in boxes]
        a_layout = to_gluon(tile_layouts((m, k), 1, 16).linear)
        b_layout = to_gluon(tile_layouts((k, n), 0, 16).linear)
    else:
        width, box = 8, [gl.NVMMASharedLayout(0, 16, 2)] * 2
        a_layout = gl.SharedLinearLayout(_core_matrices(m, k), [], 128)
        b_layout = gl.SharedLinearLayout([each[::-1] for each in _core_matrices(n, k)], [], 128)

    def launch(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        descriptors = [
            TensorDescriptor.from_tensor(a, [m, width], box[0]),
            TensorDescriptor.from_tensor(b.T, [n, width], box[1]),
        ]
        tiled[(c.shape[0] // m * (c.shape[1] // n),)](
            *descriptors, c, *c.shape, A_LAYOUT=a_layout, B_LAYOUT=b_layout, K=k, STAGES=stages,
            num_warps=4, **LAUNCH_OPTIONS,
        )  # fmt: skip

    return launch


def _roles(
    n: int, *, cta_group: int = 1, persistent: bool = False, stages: int = 7, c_parts: int = 4
) -> Launch:
    """Tiles of 128 x n x 64, of 256 rows for a pair, in a pipeline of so many."""
    config = kernel_spec(
        100, "bf16", block_n=n, stages=4, consumers=1, cluster_m=cta_group, cta_group=cta_group,
        c_parts=c_parts,
    )  # fmt: skip
    made = plan_of(config)
    assert isinstance(made, Sm100Plan)
    plan = replace(made, tile=replace(made.tile, stages=stages), accumulators=1 + persistent)

    def launch(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        m = 128 * cta_group
        tiles = c.shape[0] // m * (c.shape[1] // n)
        blocks = GPUS["B200"].multiprocessors // cta_group
        roles[(min(tiles, blocks) if persistent else tiles,)](
            descriptor(a, config.layouts.a), descriptor(b.T, config.layouts.b), c, *c.shape,
            plan, num_warps=4, num_ctas=cta_group, **LAUNCH_OPTIONS,
        )  # fmt: skip

    return launch


def _accumulators(number: int) -> Launch:
    """This project's kernel, with the sums of so many tiles in tensor memory."""
    config = kernel_spec(
        100, "bf16", block_n=256, stages=4, consumers=1, c_parts=4, c_buffers=2
    )  # fmt: skip

    def launch(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        gpu = SimpleNamespace(multi_processor_count=GPUS["B200"].multiprocessors)
        plan = launch_plan(config, c.shape[0], c.shape[1], a.shape[1], gpu)
        arguments = launch_arguments(config, plan, a, b, c)
        compiled = replace(plan.constants["PLAN"], accumulators=number)
        replace(plan, constants={**plan.constants, "PLAN": compiled}).launch(arguments)

    return launch


@dataclass(frozen=True)
class Step:
    """One step of the ladder.

    Attributes:
        launch: of (A, B, C).
        published: TFLOP/s at 4096 cubed on a B200, of a tutorial's kernel of the same idea.
    """

    name: str
    launch: Launch
    published: float


def steps() -> list[Step]:
    """In the order of the story."""
    return [
        Step("TMA in boxes of 16 bytes", _tiled(256, 1, swizzle=False), 256),
        Step("128-byte swizzle", _tiled(256, 1), 721),
        Step("pipelining", _tiled(128, 2), 914),
        Step("warp specialization", _roles(128), 1054),
        Step("pairs of SMs", _roles(256, cta_group=2), 1170),
        Step("persistence", _roles(256, cta_group=2, persistent=True), 1273),
    ]


def timeline(launch: Launch, m: int, n: int, k: int, gpu: str | Gpu = "B200") -> Timeline:
    """What is predicted of a product; without values."""
    a, b, c = (torch.zeros(shape, dtype=torch.bfloat16) for shape in ((m, k), (n, k), (m, n)))
    with triton_ext.emulate(
        "sm_100", time=gpu, values=False, check_races=False, check_layouts=False
    ) as emulated:
        launch(a, b.T, c)
    return emulated.timeline


STEP = ("step", "<26", "step"), ("us", ">8.1f", lambda row: row["seconds"] * 1e6)
LOOPS_TABLE = Table(
    STEP[0], ("ns", ">8.0f", "nanoseconds"), ("published", ">10", "published")
)  # fmt: skip
TABLE = Table(
    *STEP,
    ("TFLOP/s", ">9.0f", "tflops"),
    ("published", ">10.0f", "published"),
    ("gain", ">7.2f", "gain"),
    ("published", ">10.2f", "published_gain"),
    ("  binds", "", lambda row: f"  {row['bound']}"),
)


def predicted(size: int) -> Iterator[Row]:
    """A row for each step; gains are over the step before."""
    before: tuple[float, float] | None = None
    for step in steps():
        found = timeline(step.launch, size, size, size)
        tflops = 2 * size**3 / found.seconds / 1e12
        last, published = before or (tflops, step.published)
        before = tflops, step.published
        yield {
            "step": step.name,
            "size": size,
            "seconds": found.seconds,
            "tflops": tflops,
            "published": step.published,
            "gain": tflops / last,
            "published_gain": step.published / published,
            "bound": found.bound,
            "utilisation": {unit: round(share, 3) for unit, share in found.utilisation.items()},
        }


def main_loop(stages: int) -> float:
    """Seconds that a step along K of a main loop takes that has an SM and the L2 cache for itself;
    its tiles are of 128 x 64 x 64."""
    launch, gpu = _roles(64, stages=stages, c_parts=1), GPUS["B200"]
    cached = gpu.but(
        power=math.inf, memory_bytes=ENDLESS, sm_memory=ENDLESS,
        tma_memory_latency=gpu.tma_latency,
    )  # fmt: skip
    shorter, longer = (timeline(launch, 128, 64, k, cached).seconds for k in (2048, 4096))
    return (longer - shorter) / (2048 // 64)


def loops() -> Iterator[Row]:
    """A row for each number of stages."""
    for stages, published in LOOPS.items():
        yield {
            "step": f"main loop of {stages} stages",
            "nanoseconds": main_loop(stages) * 1e9,
            "published": published,
        }


def bubbles() -> Iterator[Row]:
    """When an SM's units work, with the sums of one tile in tensor memory, and of two."""
    for number in (1, 2):
        found = timeline(_accumulators(number), *BUBBLES)
        lanes = {"TMA loads": "load", "tensor cores": "multiply", 0: "store"}
        spans: dict[str, list[tuple[float, float]]] = {name: [] for name in lanes.values()}
        for span in sorted(found.spans().spans, key=lambda span: span.begin):
            if span.what != WAIT and span.lane[1] in lanes:
                _extend(spans[lanes[span.lane[1]]], span.begin, span.end)
        microseconds = 1e6 / found.clock
        yield {
            "step": f"sums of {number} tile{'s' * (number > 1)}",
            "seconds": found.seconds,
            "spans": {
                name: [[round(time * microseconds, 3) for time in pair] for pair in pairs]
                for name, pairs in spans.items()
            },
        }


def _extend(spans: list[tuple[float, float]], begin: float, end: float) -> None:
    """Add a span; what is closer than `GAP` to the one before is one with it."""
    if spans and begin - spans[-1][1] < GAP:
        begin, end = spans[-1][0], max(spans.pop()[1], end)
    spans.append((begin, end))


def main() -> None:
    parser = harness.options(__doc__)
    parser.add_argument("--size", type=int, default=4096, help="M, N and K; a multiple of 256")
    parser.add_argument("--bubbles", action="store_true")
    parser.add_argument("--loops", action="store_true")
    arguments = parser.parse_args()
    if arguments.loops:
        harness.report("main_loops_sm100", loops(), LOOPS_TABLE, arguments.json)
        return
    if arguments.bubbles:
        harness.report("bubbles", bubbles(), Table(*STEP), arguments.json)
        return
    harness.report("ladder_sm100", predicted(arguments.size), TABLE, arguments.json)


if __name__ == "__main__":
    main()
