"""The steps from a naive matmul to one that keeps up with cuBLAS, each measured on a Hopper GPU.

    python -m benchmarks.ladder [--size 4096] [--json FILE] [--rounds N]

C = A @ B in bf16, A row-major, B column-major (both K-major), random numbers; M, N and K are the
size, a multiple of 256. Each step adds one idea to the one before; the first four are seed 004's.
Beside the time: how many TMA copies fetch
A's and B's tiles for one product of tiles, and how many wavefronts (cycles of shared memory) it
takes the tensor cores to read 8 rows of 16 bytes of A's tile, as `triton_ext.hardware.banks`
predicts: 1 where no banks conflict, as in core matrices and under the swizzle; a row-major tile
without swizzle would take 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from benchmarks import harness
from benchmarks.harness import Row, Table
from benchmarks.matmul import checked, median_seconds, torch_launches
from benchmarks.problems import Problem
from triton_ext import LinearLayout
from triton_ext.compat import LAUNCH_OPTIONS, async_load, async_store, reinterpret, tma_view
from triton_ext.hardware.banks import chunk_access
from triton_ext.hardware.tma_tile import tile_copies
from triton_ext.kernels.launch import (
    LaunchPlan,
    compile_matmul,
    compiled_arguments,
    descriptor,
    launch_arguments,
    launch_plan,
)
from triton_ext.kernels.spec import KernelSpec, kernel_spec
from triton_ext.kernels.tiles import tile_layouts
from triton_ext.layouts.triton.gluon import to_gluon

BLOCK = 64
"""Rows and columns of the tiles of the first steps, as in seed 004."""


@gluon.jit
def naive(a, b, c, n, k, BLOCK: gl.constexpr, num_warps: gl.constexpr):
    """An element of C a thread: K fused multiply-adds, two loads from memory each."""
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [num_warps, 1], [1, 0])
    rows = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(1, layout))
    columns = gl.program_id(1) * 32 + gl.arange(0, 32, gl.SliceLayout(0, layout))
    acc = gl.zeros((BLOCK, 32), gl.float32, layout)
    for i in range(k):
        left = gl.load(a + rows * k + i).to(gl.float32)
        right = gl.load(b + columns * k + i).to(gl.float32)
        acc += left[:, None] * right[None, :]
    gl.store(c + rows[:, None] * n + columns[None, :], acc.to(c.dtype.element_ty))


@gluon.jit
def tiled(a_desc, b_desc, c_desc, c, n,
          A_LAYOUT: gl.constexpr, B_LAYOUT: gl.constexpr, C_LAYOUT: gl.constexpr,
          BLOCK: gl.constexpr, TMA_STORE: gl.constexpr, num_warps: gl.constexpr):  # fmt: skip
    """TMA copies a tile of A and of B; when they are there, the tensor cores multiply them.

    A descriptor's box may hold fewer columns than the tile: then a copy fetches a slice of it.
    """
    WIDTH: gl.constexpr = a_desc.block_type.shape[1]
    SLICES: gl.constexpr = BLOCK // WIDTH
    off_m = gl.program_id(0) * BLOCK
    off_n = gl.program_id(1) * BLOCK
    a_slices = gl.allocate_shared_memory(a_desc.dtype, [SLICES, BLOCK, WIDTH], a_desc.layout)
    b_slices = gl.allocate_shared_memory(b_desc.dtype, [SLICES, BLOCK, WIDTH], b_desc.layout)
    a_tile = reinterpret(a_slices, a_desc.dtype, [BLOCK, BLOCK], A_LAYOUT)
    b_tile = reinterpret(b_slices, b_desc.dtype, [BLOCK, BLOCK], B_LAYOUT)
    arrived = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(arrived, count=1)
    fence_async_shared()
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[num_warps, 1], instr_shape=[16, BLOCK, 16]
    )
    acc = gl.zeros((BLOCK, BLOCK), gl.float32, layout)
    for i in range(gl.cdiv(a_desc.shape[1], BLOCK)):
        mbarrier.expect(arrived, SLICES * (a_desc.block_type.nbytes + b_desc.block_type.nbytes))
        for s in gl.static_range(SLICES):
            k = i * BLOCK + s * WIDTH
            async_load(a_desc, [off_m, k], arrived, a_slices.index(s))
            async_load(b_desc, [off_n, k], arrived, b_slices.index(s))
        mbarrier.wait(arrived, i & 1)
        acc = warpgroup_mma(a_tile, b_tile, acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
    mbarrier.invalidate(arrived)
    if TMA_STORE:
        c_tile = gl.allocate_shared_memory(c_desc.dtype, [BLOCK, BLOCK], C_LAYOUT)
        c_tile.store(acc.to(c_desc.dtype))
        fence_async_shared()
        async_store(c_desc, [off_m, off_n], tma_view(c_tile, c_desc))
        tma.store_wait(0)
    else:
        rows = off_m + gl.arange(0, BLOCK, gl.SliceLayout(1, layout))
        columns = off_n + gl.arange(0, BLOCK, gl.SliceLayout(0, layout))
        gl.store(c + rows[:, None] * n + columns[None, :], acc.to(c.dtype.element_ty))


def core_matrices() -> LinearLayout:
    """A tile without swizzle, K-major: columns of 8x8 core matrices, as TMA writes 64x8 boxes."""
    within = [(0, 1), (0, 2), (0, 4)]
    rows = [(1 << bit, 0) for bit in range(BLOCK.bit_length() - 1)]
    slices = [(0, 8 << bit) for bit in range((BLOCK // 8).bit_length() - 1)]
    return LinearLayout({"offset": within + rows + slices}, {"dim0": BLOCK, "dim1": BLOCK})


@dataclass(frozen=True)
class Step:
    """One step of the ladder.

    Attributes:
        launches: (a, b, c) -> launches the kernel.
        tile: M, N, K of the tile of a thread block.
        copies: TMA copies of A and B for one product of tiles; None without TMA.
        a_wavefronts: to read 8 rows of 16 bytes of A's tile; None without tensor cores.
    """

    name: str
    launches: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Callable[[], None]]
    tile: tuple[int, int, int]
    copies: int | None = None
    a_wavefronts: int | None = None


def naive_step() -> Step:
    def launches(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Callable[[], None]:
        m, n, k = a.shape[0], b.shape[1], a.shape[1]
        return lambda: naive[(m // 4, n // 32)](
            a, b, c, n, k, BLOCK=4, num_warps=4, **LAUNCH_OPTIONS
        )

    return Step("naive: a thread an element, from memory", launches, (4, 32, 1))


def tiled_step(name: str, *, swizzle: bool, tma_store: bool) -> Step:
    """Tensor cores on tiles of 64x64x64, without or with the 128-byte swizzle."""
    c_tile = tile_layouts((BLOCK, BLOCK), 1, 16)
    if swizzle:
        operand = tile_layouts((BLOCK, BLOCK), 1, 16)
        linear = operand.linear.to_linear_layout()
        width = BLOCK
        a_layout = to_gluon(operand.linear)
        b_layout = to_gluon(tile_layouts((BLOCK, BLOCK), 0, 16).linear)
        box = to_gluon(operand.tma_encoding)
    else:
        linear, width = core_matrices(), 8
        bases = [list(basis) for basis in linear.bases["offset"]]
        a_layout = gl.SharedLinearLayout(bases, [], 128)
        b_layout = gl.SharedLinearLayout([basis[::-1] for basis in bases], [], 128)
        box = gl.NVMMASharedLayout(0, 16, 2)

    def launches(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Callable[[], None]:
        a_desc = TensorDescriptor.from_tensor(a, [BLOCK, width], box)
        b_desc = TensorDescriptor.from_tensor(b.T, [BLOCK, width], box)
        n = c.shape[1]
        return lambda: tiled[(c.shape[0] // BLOCK, n // BLOCK)](
            a_desc, b_desc, descriptor(c, c_tile), c, n, A_LAYOUT=a_layout, B_LAYOUT=b_layout,
            C_LAYOUT=to_gluon(c_tile.linear), BLOCK=BLOCK, TMA_STORE=tma_store, num_warps=4,
            **LAUNCH_OPTIONS,
        )  # fmt: skip

    wavefronts = chunk_access(linear, 16).wavefronts
    return Step(name, launches, (BLOCK, BLOCK, BLOCK), 2 * BLOCK // width, wavefronts)


def launch_of(
    config: KernelSpec, plan: LaunchPlan, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> Callable[[], None]:
    """The launch of a kernel; by Triton's JIT, as on the emulated GPU, of tensors on the host."""
    workspace = torch.zeros(plan.workspace_bytes, dtype=torch.uint8, device=a.device)
    arguments = launch_arguments(config, plan, a, b, c, workspace=workspace)
    if a.device.type == "cpu":
        return lambda: plan.launch(arguments)
    compiled, values = compile_matmul(config), compiled_arguments(plan, arguments)
    return lambda: compiled[plan.grid](*values, stream=torch.cuda.current_stream().cuda_stream)


def configured_step(name: str, config: KernelSpec, *, persistent: bool = True) -> Step:
    """A kernel of `triton_ext.kernels`."""
    tile, blocks = config.tile, config.tile.cluster_size

    def launches(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Callable[[], None]:
        plan = launch_plan(
            config, c.shape[0], c.shape[1], a.shape[1], torch.cuda.get_device_properties()
        )
        tiles = -(-c.shape[0] // (tile.block_m * blocks)) * -(-c.shape[1] // tile.block_n)
        plan = plan if persistent else replace(plan, grid=(tiles, 1, 1))
        return launch_of(config, plan, a, b, c)

    a_boxes, b_boxes = (
        len(tile_copies((1 << 16, 1 << 16), each.tma_shape, each.tma_encoding).boxes)
        for each in (config.layouts.a, config.layouts.b)
    )
    copies = a_boxes * max(tile.consumers, 1) + b_boxes  # each consumer has a tile of A
    linear = config.layouts.a.linear.to_linear_layout()
    return Step(
        name,
        launches,
        (tile.block_m, tile.block_n, tile.block_k),
        copies,
        None if blocks > 1 else chunk_access(linear, 16).wavefronts,
    )


def steps() -> list[Step]:
    """In the order of the story."""
    warp_specialized = kernel_spec(90, "bf16", block_n=256, stages=4, consumers=2, c_parts=2)
    multicast = kernel_spec(90, "bf16", block_n=256, stages=4, consumers=2, c_parts=2, cluster_m=2)
    return [
        naive_step(),
        tiled_step("TMA and tensor cores, no swizzle", swizzle=False, tma_store=False),
        tiled_step("128-byte swizzle", swizzle=True, tma_store=False),
        tiled_step("TMA store", swizzle=True, tma_store=True),
        configured_step("pipelining", kernel_spec(90, "bf16", block_m=64, block_n=64, stages=4)),
        configured_step(
            "larger tiles", kernel_spec(90, "bf16", block_n=256, stages=4, num_warps=8)
        ),
        configured_step("warp specialization", warp_specialized, persistent=False),
        configured_step("persistence", warp_specialized),
        configured_step("multicast in clusters of 2", multicast),
    ]


TABLE = Table(
    ("step", "<42", "step"),
    ("tile", ">13", lambda row: "x".join(map(str, row["tile"]))),
    ("us", ">10.1f", "us"),
    ("TFLOP/s", ">9.1f", "tflops"),
    ("cuBLAS", ">8.3f", "ratio"),
    ("copies", ">8", "tma_copies"),
    ("banks", ">7", "wavefronts_of_8_rows_of_a"),
)


def measured(size: int, rounds: int) -> Iterator[Row]:
    """A row for each step."""
    torch.manual_seed(0)
    sets = []
    for _ in range(3):
        a, b = (torch.randn((size, size), device="cuda", dtype=torch.bfloat16) for _ in range(2))
        sets.append((a, b.T, torch.empty_like(a)))
    problem = Problem(size, size, size)
    torch_product = torch_launches(problem, sets)
    for step in steps():
        calls = [step.launches(*each) for each in sets]

        def launch(i: int, calls: list[Callable[[], None]] = calls) -> None:
            calls[i % len(calls)]()

        error = checked(problem, launch, sets[0])
        assert error < 2.0**-8, f"{step.name}: relative error {error}"
        estimate = 0.1 if step.copies is None else 2e-4
        found = median_seconds(
            {"step": launch, "torch": torch_product}, estimate, len(sets), rounds
        )
        yield {
            "step": step.name,
            "size": size,
            "tile": step.tile,
            "us": found["step"] * 1e6,
            "torch_us": found["torch"] * 1e6,
            "tflops": problem.flops / found["step"] / 1e12,
            "ratio": found["torch"] / found["step"],
            "tma_copies": step.copies,
            "wavefronts_of_8_rows_of_a": step.a_wavefronts,
            "error": error,
        }


if __name__ == "__main__":
    harness.main("ladder", __doc__, measured, TABLE, size=4096, rounds=9)
