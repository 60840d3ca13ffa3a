# Gluon functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The published steps to a fast matmul on Blackwell, rebuilt, and the time that is predicted.

    python -m benchmarks.ladder_sm100 [--size 4096] [--json FILE]    # no GPU is needed
    python -m benchmarks.ladder_sm100 --bubbles --json FILE          # the timeline of the README

C = A @ B in bf16, both K-major. No Blackwell has measured any of this here: what is compared is the
order of the steps, and what each gains, with a tutorial's times on a B200 at 4096 cubed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

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
from triton_ext.compat import LAUNCH_OPTIONS, async_load, load_accumulator, reinterpret
from triton_ext.kernels.config import MatmulConfig, tile_layouts
from triton_ext.kernels.launch import launch_arguments, launch_plan
from triton_ext.kernels.matmul import store_tile, tile_origin
from triton_ext.layouts.triton.gluon import to_gluon
from triton_ext.timeline.gpus import GPUS
from triton_ext.timeline.timeline import Timeline
from triton_ext.timeline.trace import WAIT

M, N, K = 128, 256, 64
"""The tile of a block."""
GROUP = 8
Launch = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
"""Of (A, B, C)."""
ROLES: dict[str, Any] = {"consumers": 1, "block_n": N, "c_parts": 4, "c_buffers": 2}
GAP = 300
"""Cycles: shorter pauses are not drawn."""
BUBBLES = (148 * M, 3 * N, 1024)
"""M, N and K of the product that is drawn: three tiles for each SM."""


@gluon.jit
def tiled(a_desc, b_desc, c_desc,
          A_LAYOUT: gl.constexpr, B_LAYOUT: gl.constexpr, C_LAYOUT: gl.constexpr,
          K: gl.constexpr, GROUP_M: gl.constexpr, num_warps: gl.constexpr):  # fmt: skip
    """One tile of A and of B at a time: copied, then multiplied.

    A descriptor's box may hold fewer columns than the tile: then a copy fetches a slice of it.
    """
    M: gl.constexpr = a_desc.block_type.shape[0]
    N: gl.constexpr = b_desc.block_type.shape[0]
    WIDTH: gl.constexpr = a_desc.block_type.shape[1]
    SLICES: gl.constexpr = K // WIDTH
    off_m, off_n = tile_origin(c_desc.shape[0], c_desc.shape[1], M, N, GROUP_M)
    a_slices = gl.allocate_shared_memory(a_desc.dtype, [SLICES, M, WIDTH], a_desc.layout)
    b_slices = gl.allocate_shared_memory(b_desc.dtype, [SLICES, N, WIDTH], b_desc.layout)
    a_tile = reinterpret(a_slices, a_desc.dtype, [M, K], A_LAYOUT)
    b_tile = reinterpret(b_slices, b_desc.dtype, [K, N], B_LAYOUT)
    arrived = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(arrived, count=1)
    mbarrier.init(done, count=1)
    fence_async_shared()
    acc = allocate_tensor_memory(gl.float32, [M, N], TensorMemoryLayout([M, N], col_stride=1))
    for i in range(gl.cdiv(a_desc.shape[1], K)):
        mbarrier.expect(arrived, SLICES * (a_desc.block_type.nbytes + b_desc.block_type.nbytes))
        for s in gl.static_range(SLICES):
            async_load(a_desc, [off_m, i * K + s * WIDTH], arrived, a_slices.index(s))
            async_load(b_desc, [off_n, i * K + s * WIDTH], arrived, b_slices.index(s))
        mbarrier.wait(arrived, i & 1)
        tcgen05_mma(a_tile, b_tile, acc, use_acc=i > 0)
        tcgen05_commit(done)
        mbarrier.wait(done, i & 1)
    mbarrier.invalidate(arrived)
    mbarrier.invalidate(done)
    store_tile(c_desc, off_m, off_n, load_accumulator(acc), C_LAYOUT)


def _core_matrices(rows: int) -> list[list[int]]:
    """A tile without swizzle, K-major: columns of 8x8 core matrices, as TMA writes narrow boxes."""
    within = [[0, 1], [0, 2], [0, 4]]
    down = [[1 << bit, 0] for bit in range(rows.bit_length() - 1)]
    return within + down + [[0, 8 << bit] for bit in range((K // 8).bit_length() - 1)]


def _tiled(*, swizzle: bool) -> Launch:
    operands = [tile_layouts((rows, K), 1, 16) for rows in (M, N)]
    if swizzle:
        width, box = K, [to_gluon(each.tma_encoding) for each in operands]
        a_layout = to_gluon(operands[0].linear)
        b_layout = to_gluon(tile_layouts((K, N), 0, 16).linear)
    else:
        width, box = 8, [gl.NVMMASharedLayout(0, 16, 2)] * 2
        a_layout = gl.SharedLinearLayout(_core_matrices(M), [], 128)
        b_layout = gl.SharedLinearLayout([each[::-1] for each in _core_matrices(N)], [], 128)

    def launch(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        c_tile = tile_layouts((M, N), 1, 16)
        descriptors = [
            TensorDescriptor.from_tensor(a, [M, width], box[0]),
            TensorDescriptor.from_tensor(b.T, [N, width], box[1]),
            TensorDescriptor.from_tensor(c, list(c_tile.tma_shape), to_gluon(c_tile.tma_encoding)),
        ]
        tiled[(c.shape[0] // M * (c.shape[1] // N),)](
            *descriptors, A_LAYOUT=a_layout, B_LAYOUT=b_layout, C_LAYOUT=to_gluon(c_tile.linear),
            K=K, GROUP_M=GROUP, num_warps=4, **LAUNCH_OPTIONS,
        )  # fmt: skip

    return launch


def _configured(
    *, persistent: bool = True, accumulators: int | None = None, **fields: object
) -> Launch:
    """A kernel of `triton_ext.kernels`; one that is not persistent has a block for each tile.

    Args:
        accumulators: how many tiles of sums tensor memory holds; by default as many as it can.
    """
    config = MatmulConfig(100, "bf16", group=GROUP, **fields)  # type: ignore[arg-type]

    def launch(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        blocks = GPUS["B200"].multiprocessors if persistent else 1 << 20
        gpu = SimpleNamespace(multi_processor_count=blocks)
        plan = launch_plan(config, c.shape[0], c.shape[1], a.shape[1], gpu)
        arguments = launch_arguments(config, plan, a, b, c)
        by_position, by_name = list(arguments.values())[:3], dict(list(arguments.items())[3:])
        constants = dict(plan.constants)
        if accumulators is not None:
            constants["ACCUMULATORS"] = accumulators
        plan.kernel[plan.grid](*by_position, **by_name, **constants, **plan.options)

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
    pair = {**ROLES, "stages": 6, "cluster": 2, "pair": True}
    return [
        Step("TMA in boxes of 16 bytes", _tiled(swizzle=False), 256),
        Step("128-byte swizzle", _tiled(swizzle=True), 721),
        Step("pipelining", _configured(consumers=0, block_n=256, stages=4), 914),
        Step("warp specialization", _configured(persistent=False, stages=4, **ROLES), 1054),
        Step("pairs of SMs", _configured(persistent=False, **pair), 1170),
        Step("persistence", _configured(**pair), 1273),
    ]


def timeline(launch: Launch, m: int, n: int, k: int, gpu: str = "B200") -> Timeline:
    """What is predicted of a product; without values."""
    a, b, c = (torch.zeros(shape, dtype=torch.bfloat16) for shape in ((m, k), (n, k), (m, n)))
    with triton_ext.emulate(
        "sm_100", time=gpu, values=False, check_races=False, check_layouts=False
    ) as emulated:
        launch(a, b.T, c)
    return emulated.timeline


STEP = ("step", "<26", "step"), ("us", ">8.1f", lambda row: row["seconds"] * 1e6)
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


def bubbles() -> Iterator[Row]:
    """When an SM's units work, with the sums of one tile in tensor memory, and of two."""
    for number in (1, 2):
        found = timeline(_configured(stages=4, accumulators=number, **ROLES), *BUBBLES)
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
    arguments = parser.parse_args()
    if arguments.bubbles:
        harness.report("bubbles", bubbles(), Table(*STEP), arguments.json)
        return
    harness.report("ladder_sm100", predicted(arguments.size), TABLE, arguments.json)


if __name__ == "__main__":
    main()
