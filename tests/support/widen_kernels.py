"""Kernels with narrow swizzles, which widen-swizzle changes, with inputs: each run gives outputs.

On the emulated GPUs the tensors are the host's; on a GPU they are its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import corpus_gluon_kernels as gluon_kernels
import torch
from corpus_gluon_kernels import (
    accumulated,
    bits,
    layout_of_accumulator,
    new_accumulator,
    new_barrier,
    nvmma,
    product,
    store_rows,
)
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import blackwell
from triton.experimental.gluon.language.nvidia.blackwell import TensorMemoryLayout
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from triton_ext.compat import (
    LAUNCH_OPTIONS,
    TRITON_VERSION,
    async_load,
    async_store,
    load_accumulator,
    reinterpret,
)

Outputs = list[torch.Tensor]
V3_8 = (3, 8)


Run = Callable[[int, str], Outputs]


@dataclass(frozen=True)
class Case:
    """A kernel and a problem.

    Attributes:
        arches: on which it runs.
        make: from swizzles to a function (arch, device) -> the outputs, on the device.
        narrow: the swizzles, as the kernel is written.
        wide: what they become.
        copies: arch -> how many TMA copies are done, before and after; None if not compared.
        since: the release of Triton that first has what the kernel needs.
    """

    name: str
    arches: tuple[int, ...]
    make: Callable[..., Run]
    narrow: tuple[int, ...]
    wide: tuple[int, ...]
    copies: Callable[[int], tuple[int, int]] | None = None
    since: tuple[int, int] = (3, 7)

    def __str__(self) -> str:
        return self.name

    @property
    def widened(self) -> list[tuple[int, int]]:
        """From and to which swizzle; one for each operand that changes."""
        return sorted(
            pair for pair in zip(self.narrow, self.wide, strict=True) if pair[0] < pair[1]
        )


def numbers(shape, dtype, seed, device):
    """Random numbers of a type, always the same."""
    generator = torch.Generator("cpu").manual_seed(seed)
    kind = getattr(torch, dtype)
    if not kind.is_floating_point:
        return torch.randint(-100, 100, shape, generator=generator).to(kind).to(device)
    return torch.randn(shape, generator=generator).to(kind).to(device)


def blocks(tensor, block, swizzle, **layout):
    """A descriptor of a tensor with a swizzle."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    kind = nvmma(swizzle, dtype, len(block), **layout)
    return TensorDescriptor.from_tensor(tensor, list(block), kind)


# ----------------------------------------------------------------------------- a product, pipelined


@gluon.jit
def issue(desc, m, k, bar, tile, K_MAJOR: gl.constexpr):
    if K_MAJOR:
        async_load(desc, [m, k], bar, tile)
    else:
        async_load(desc, [k, m], bar, tile)


@gluon.jit
def operand(tiles, stage, K_MAJOR: gl.constexpr):
    """A tile as (M or N, K)."""
    return tiles.index(stage) if K_MAJOR else tiles.index(stage).permute((1, 0))


@gluon.jit
def pipelined_kernel(a_desc, b_desc, c_desc, steps, M: gl.constexpr, N: gl.constexpr,
                     K: gl.constexpr, STAGES: gl.constexpr, A_K_MAJOR: gl.constexpr,
                     B_K_MAJOR: gl.constexpr, LAYOUT: gl.constexpr,
                     SM90: gl.constexpr):  # fmt: skip
    """One tile of C, through a ring of tiles of A and B; C leaves through shared memory by TMA."""
    A_SHAPE: gl.constexpr = a_desc.block_type.shape
    B_SHAPE: gl.constexpr = b_desc.block_type.shape
    a_tiles = gl.allocate_shared_memory(
        a_desc.dtype, [STAGES, A_SHAPE[0], A_SHAPE[1]], a_desc.layout
    )
    b_tiles = gl.allocate_shared_memory(
        b_desc.dtype, [STAGES, B_SHAPE[0], B_SHAPE[1]], b_desc.layout
    )
    bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(bars.index(i), count=1)
    done = new_barrier()
    fence_async_shared()
    size: gl.constexpr = a_desc.block_type.nbytes + b_desc.block_type.nbytes
    for i in gl.static_range(STAGES - 1):
        mbarrier.expect(bars.index(i), size, pred=i < steps)
        if i < steps:
            issue(a_desc, 0, i * K, bars.index(i), a_tiles.index(i), A_K_MAJOR)
            issue(b_desc, 0, i * K, bars.index(i), b_tiles.index(i), B_K_MAJOR)
    acc = new_accumulator(M, N, LAYOUT, SM90)
    for i in range(steps):
        ahead = i + STAGES - 1
        slot = ahead % STAGES
        if ahead < steps:
            mbarrier.expect(bars.index(slot), size)
            issue(a_desc, 0, ahead * K, bars.index(slot), a_tiles.index(slot), A_K_MAJOR)
            issue(b_desc, 0, ahead * K, bars.index(slot), b_tiles.index(slot), B_K_MAJOR)
        mbarrier.wait(bars.index(i % STAGES), (i // STAGES) & 1)
        a = operand(a_tiles, i % STAGES, A_K_MAJOR)
        b = operand(b_tiles, i % STAGES, B_K_MAJOR).permute((1, 0))
        acc = product(a, b, acc, done, i & 1, i > 0, SM90)
        gl.barrier()  # or a warp might miss a phase of `done`
    c_tile = gl.allocate_shared_memory(c_desc.dtype, [M, N], c_desc.layout)
    c_tile.store(accumulated(acc, SM90).to(c_desc.dtype))
    fence_async_shared()
    async_store(c_desc, [0, 0], c_tile)
    tma.store_wait(0)
    for i in gl.static_range(STAGES):
        mbarrier.invalidate(bars.index(i))
    mbarrier.invalidate(done)


def pipelined(dtype, a_major="K", b_major="K", n=64, k_bytes=128, stages=2, c_type="float16"):
    """From the swizzles of A, B and C to a function that runs it."""

    def make(a_swizzle, b_swizzle, c_swizzle):
        def run(arch, device):
            m, k = (64 if arch == 90 else 128), 8 * k_bytes // bits(dtype)
            inner = 3 * k + k // 2  # the last tile is half out of bounds
            a_shape, a_block = ((m, inner), (m, k)) if a_major == "K" else ((inner, m), (k, m))
            b_shape, b_block = ((n, inner), (n, k)) if b_major == "K" else ((inner, n), (k, n))
            a, b = numbers(a_shape, dtype, 1, device), numbers(b_shape, dtype, 2, device)
            c = torch.full((m, n), 7, dtype=getattr(torch, c_type), device=device)
            pipelined_kernel[(1,)](
                blocks(a, a_block, a_swizzle), blocks(b, b_block, b_swizzle),
                blocks(c, (m, n), c_swizzle), 4, m, n, k, stages, a_major == "K", b_major == "K",
                layout_of_accumulator(arch, m, n, dtype), arch == 90, **LAUNCH_OPTIONS,
            )  # fmt: skip
            return [c]

        return run

    return make


def boxes(rows, row_bytes, swizzle):
    """TMA copies of a tile, at most 256 rows and one swizzle (or 256 elements) at a time."""
    return -(-rows // 256) * (row_bytes // swizzle if swizzle else 1)


def pipelined_copies(narrow, wide, a_major, b_major):
    """Four steps of K-major tiles of 128 bytes, or MN-major ones of 64 fp16; then C, 64 wide."""

    def count(arch, swizzles):
        m = 64 if arch == 90 else 128
        a = boxes(m, 128, swizzles[0]) if a_major == "K" else boxes(64, 2 * m, swizzles[0])
        b = boxes(64, 128, swizzles[1])
        return 4 * (a + b) + boxes(m, 128, swizzles[2])

    return lambda arch: (count(arch, narrow), count(arch, wide))


def pipelined_cases():
    both = (90, 100)
    for dtype, narrow in (("float16", (32, 32, 64)), ("bfloat16", (64, 64, 32))):
        for a_major in ("K", "MN"):
            for b_major in ("K", "MN"):
                wide = (128, 128, 128)
                yield Case(
                    f"pipelined-{dtype}-{a_major}-{b_major}", both,
                    pipelined(dtype, a_major, b_major), narrow, wide,
                    pipelined_copies(narrow, wide, a_major, b_major),
                )  # fmt: skip
    more = (
        ("mixed", both, pipelined("float16", "K", "MN", 128, stages=3),
         (128, 32, 32), (128, 128, 128)),
        ("short-k", both, pipelined("float16", k_bytes=64, stages=4), (32, 32, 128), (64, 64, 128)),
        ("short-n", both, pipelined("float16", "K", "MN", n=32), (32, 32, 32), (128, 64, 64)),
        ("e4m3", both, pipelined("float8_e4m3fn"), (32, 64, 0), (128, 128, 128)),
        ("e5m2", both, pipelined("float8_e5m2"), (64, 32, 64), (128, 128, 128)),
        ("e5m2-MN", (100,), pipelined("float8_e5m2", "MN", "MN", n=128),
         (32, 32, 32), (128, 128, 128)),
        ("tf32", both, pipelined("float32", c_type="float32"), (64, 32, 32), (128, 128, 128)),
    )  # fmt: skip
    for name, arches, make, narrow, wide in more:
        yield Case(f"pipelined-{name}", arches, make, narrow, wide)


# --------------------------------------------------------------- kernels of the corpus, with inputs


def matmul_inputs(arch, device, block, dtype="float16"):
    m, n, k = block
    m = 64 if arch == 90 else m
    return (m, n, k), numbers((m, 512), dtype, 3, device), numbers((512, n), dtype, 4, device)


def carried(a_swizzle, b_swizzle, block=(128, 64, 64)):
    def run(arch, device):
        (m, n, k), a, b = matmul_inputs(arch, device, block)
        c = torch.zeros(m, n, device=device)
        gluon_kernels.carried_kernel[(1,)](
            blocks(a, (m, k), a_swizzle), blocks(b, (k, n), b_swizzle), c, 512 // k,
            layout_of_accumulator(arch, m, n, "float16"), arch == 90, **LAUNCH_OPTIONS,
        )  # fmt: skip
        return [c]

    return run


def chosen(in_loop, a_swizzle, b_swizzle, block=(128, 64, 64)):
    """An ``if`` chooses the buffer."""

    def run(arch, device):
        (m, n, k), a, b = matmul_inputs(arch, device, block)
        outputs = []
        for which in (1, 4):
            c = torch.zeros(m, n, device=device)
            gluon_kernels.chosen_kernel[(1,)](
                blocks(a, (m, k), a_swizzle), blocks(b, (k, n), b_swizzle), c, which,
                layout_of_accumulator(arch, m, n, "float16"), arch == 90, in_loop,
                **LAUNCH_OPTIONS,
            )  # fmt: skip
            outputs.append(c)
        return outputs

    return run


def specialized(a_swizzle, b_swizzle, block=(128, 64, 64), stages=3):
    def run(arch, device):
        (m, n, k), a, b = matmul_inputs(arch, device, block)
        c = torch.zeros(m, n, device=device)
        gluon_kernels.specialized_kernel[(1,)](
            blocks(a, (m, k), a_swizzle), blocks(b, (k, n), b_swizzle), c, 512 // k,
            layout_of_accumulator(arch, m, n, "float16"), arch == 90, stages, **LAUNCH_OPTIONS,
        )  # fmt: skip
        return [c]

    return run


@gluon.jit
def views_kernel(a_desc, b_desc, c_ptr, VIEW: gl.constexpr, LAYOUT: gl.constexpr,
                 SM90: gl.constexpr, M: gl.constexpr, N: gl.constexpr,
                 K: gl.constexpr):  # fmt: skip
    """Operands that are parts or transpositions of what TMA wrote."""
    bar, done = new_barrier(), new_barrier()
    fence_async_shared()
    a = gl.allocate_shared_memory(a_desc.dtype, a_desc.block_type.shape, a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, b_desc.block_type.shape, b_desc.layout)
    mbarrier.expect(bar, a_desc.block_type.nbytes + b_desc.block_type.nbytes)
    if VIEW == "reshape":
        async_load(a_desc, [0, 0, 0], bar, a)
    else:
        async_load(a_desc, [0, 0], bar, a)
    async_load(b_desc, [0, 0], bar, b)
    mbarrier.wait(bar, 0)
    acc = new_accumulator(M, N, LAYOUT, SM90)
    if VIEW == "slice-k":
        half: gl.constexpr = K // 2
        for i in gl.static_range(2):
            acc = product(
                a.slice(i * half, half, dim=1), b.slice(i * half, half, dim=0), acc, done, i, i > 0,
                SM90,
            )  # fmt: skip
            gl.barrier()
    elif VIEW == "slice-n":
        acc = product(a, b.slice(N, N, dim=1), acc, done, 0, False, SM90)
    elif VIEW == "slice-m":
        acc = product(a.slice(M, M, dim=0), b, acc, done, 0, False, SM90)
    elif VIEW == "transpose-b":
        acc = product(a, b.permute((1, 0)), acc, done, 0, False, SM90)
    elif VIEW == "transpose-a":
        acc = product(a.permute((1, 0)), b, acc, done, 0, False, SM90)
    elif VIEW == "reshape":
        acc = product(a.reshape((M, K)), b, acc, done, 0, False, SM90)
    elif VIEW == "reinterpret":
        acc = product(
            reinterpret(a, gl.bfloat16, a_desc.block_type.shape, a_desc.layout),
            reinterpret(b, gl.bfloat16, b_desc.block_type.shape, b_desc.layout),
            acc, done, 0, False, SM90,
        )  # fmt: skip
    elif VIEW == "bytes":
        a_bytes = reinterpret(
            a, gl.int8, [a_desc.block_type.nbytes], gl.SwizzledSharedLayout(1, 1, 1, [0])
        )
        a_bytes.load(gl.BlockedLayout([16], [32], [4], [0]))
        acc = product(a, b, acc, done, 0, False, SM90)
    store_rows(c_ptr, accumulated(acc, SM90), N)
    mbarrier.invalidate(bar)
    mbarrier.invalidate(done)


def views(view, a_swizzle, b_swizzle, block=(128, 64, 128)):
    def run(arch, device):
        m, n, k = block
        m = 64 if arch == 90 else m
        a_shape = {"slice-m": (2 * m, k), "transpose-a": (k, m), "reshape": (2, m // 2, k)}
        b_shape = {"slice-n": (k, 2 * n), "transpose-b": (n, k)}
        a = numbers(a_shape.get(view, (m, k)), "float16", 5, device)
        b = numbers(b_shape.get(view, (k, n)), "float16", 6, device)
        c = torch.zeros(m, n, device=device)
        views_kernel[(1,)](
            blocks(a, a.shape, a_swizzle), blocks(b, b.shape, b_swizzle), c, view,
            layout_of_accumulator(arch, m, n, "float16"), arch == 90, m, n, k, **LAUNCH_OPTIONS,
        )  # fmt: skip
        return [c]

    return run


@gluon.jit
def pair_kernel(a_desc, b_desc, c_desc, steps, ACC: gl.constexpr, MULTICAST: gl.constexpr):
    """tcgen05 by two CTAs, each with half of A's rows and half of B's columns."""
    K: gl.constexpr = a_desc.block_type.shape[1]
    a = gl.allocate_shared_memory(a_desc.dtype, a_desc.block_type.shape, a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, b_desc.block_type.shape, b_desc.layout)
    bar, done = mbarrier.allocate_mbarrier(two_ctas=True), mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    mbarrier.init(done, count=blackwell.tcgen05_mma_barrier_count([a, b], MULTICAST, True))
    acc = blackwell.allocate_tensor_memory(gl.float32, c_desc.block_type.shape, ACC)
    for i in range(steps):
        mbarrier.expect(bar, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
        async_load(a_desc, [0, i * K], bar, a, multicast=MULTICAST)
        async_load(b_desc, [i * K, 0], bar, b, multicast=MULTICAST)
        mbarrier.wait(bar, i & 1, deps=[a, b])
        blackwell.tcgen05_mma(a, b, acc, use_acc=i > 0, multicast=MULTICAST, mbarriers=[done])
        mbarrier.wait(done, i & 1, deps=[a, b])
    mbarrier.invalidate(bar)
    mbarrier.invalidate(done)
    c = gl.allocate_shared_memory(c_desc.dtype, c_desc.block_type.shape, c_desc.layout)
    c.store(load_accumulator(acc).to(c_desc.dtype))
    fence_async_shared()
    async_store(c_desc, [0, 0], c)
    tma.store_wait(0)


def pair(ctas, a_swizzle, b_swizzle, c_swizzle, block=(256, 128, 64)):
    """tcgen05 by two CTAs."""

    def run(arch, device):
        m, n, k = block
        rows = [[1, 0], [2, 0]] if ctas == 4 else [[1, 0]]
        columns = [[0, 1], [0, 0]] if ctas == 4 else [[0, 1]]
        a, b = numbers((m, 256), "float16", 7, device), numbers((256, n), "float16", 8, device)
        c = torch.zeros(m, n, dtype=torch.float16, device=device)
        pair_kernel[(1,)](
            blocks(a, (m, k), a_swizzle, cga_layout=rows),
            blocks(b, (k, n), b_swizzle, cga_layout=columns),
            blocks(c, (m, n), c_swizzle, cga_layout=rows), 256 // k,
            TensorMemoryLayout([m // ctas, n], 1, cga_layout=rows, two_ctas=True), ctas == 4,
            num_ctas=ctas, **LAUNCH_OPTIONS,
        )  # fmt: skip
        return [c]

    return run


def cluster(a_swizzle, b_swizzle, block=(128, 64, 64)):
    """wgmma in a cluster, with multicast."""

    def run(arch, device):
        m, n, k = block
        a, b = numbers((m, 256), "float16", 9, device), numbers((256, n), "float16", 10, device)
        c = torch.zeros(m, n, device=device)
        acc = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, n, 16], [[1, 0]])
        gluon_kernels.cluster_wgmma_kernel[(1,)](
            blocks(a, (m, k), a_swizzle, cga_layout=[[1, 0]]),
            blocks(b, (k, n), b_swizzle, cga_layout=[[0, 0]]), c, 256 // k, acc, n,
            num_ctas=2, **LAUNCH_OPTIONS,
        )  # fmt: skip
        return [c]

    return run


# ---------------------------------------------------------------------------- copies without an MMA


@gluon.jit
def ring_kernel(source, target, STEPS: gl.constexpr, STAGES: gl.constexpr):
    """Tiles through a ring of buffers: loads ahead, a store of each."""
    shape: gl.constexpr = source.block_type.shape
    buffers = gl.allocate_shared_memory(source.dtype, [STAGES, shape[0], shape[1]], source.layout)
    bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(bars.index(i), count=1)
    fence_async_shared()
    for i in gl.static_range(STAGES - 1):
        mbarrier.expect(bars.index(i), source.block_type.nbytes)
        async_load(source, [i * shape[0], 0], bars.index(i), buffers.index(i))
    for step in range(STEPS):
        stage, ahead = step % STAGES, step + STAGES - 1
        slot = ahead % STAGES
        tma.store_wait(0)
        mbarrier.expect(bars.index(slot), source.block_type.nbytes, pred=ahead < STEPS)
        async_load(
            source, [ahead * shape[0], 0], bars.index(slot), buffers.index(slot),
            pred=ahead < STEPS,
        )  # fmt: skip
        mbarrier.wait(bars.index(stage), (step // STAGES) & 1)
        async_store(target, [step * shape[0], 0], buffers.index(stage))
    tma.store_wait(0)
    for i in gl.static_range(STAGES):
        mbarrier.invalidate(bars.index(i))


def ring(dtype, block, swizzle, stages=3):
    def run(arch, device):
        x = numbers((7 * block[0] - 3, block[1] - 16), dtype, 11, device)
        y = torch.zeros_like(x)
        ring_kernel[(1,)](
            blocks(x, block, swizzle), blocks(y, block, swizzle), 7, stages, **LAUNCH_OPTIONS
        )
        return [y]

    return run


@gluon.jit
def reduce_kernel(target, source, LAYOUT: gl.constexpr):
    """A tile is added to global memory, by blocks that overlap by half."""
    rows: gl.constexpr = target.block_type.shape[0]
    columns: gl.constexpr = target.block_type.shape[1]
    i = gl.arange(0, rows, gl.SliceLayout(1, LAYOUT))[:, None]
    j = gl.arange(0, columns, gl.SliceLayout(0, LAYOUT))[None, :]
    shared = gl.allocate_shared_memory(target.dtype, [rows, columns], target.layout)
    shared.store(gl.load(source + i * columns + j))
    fence_async_shared()
    tma.async_atomic_add(target, [gl.program_id(0) * 8, 0], shared)
    tma.store_wait(0)


def reduced(swizzle):
    def run(arch, device):
        new = numbers((16, 32), "int32", 12, device)
        target = numbers((36, 32), "int32", 13, device)
        layout = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
        reduce_kernel[(4,)](blocks(target, (16, 32), swizzle), new, layout, **LAUNCH_OPTIONS)
        return [target]

    return run


@gluon.jit
def gather_kernel(source, target, rows_ptr, column, ROWS: gl.constexpr, WIDTH: gl.constexpr):
    """Rows of a matrix are gathered and scattered."""
    offsets: gl.constexpr = gl.SliceLayout(
        0, gl.BlockedLayout([1, 4], [32, 1], [1, gl.num_warps()], [1, 0])
    )
    rows = gl.load(rows_ptr + gl.arange(0, ROWS, layout=offsets))
    shared = gl.allocate_shared_memory(source.dtype, [ROWS, WIDTH], source.layout)
    bar = new_barrier()
    fence_async_shared()
    mbarrier.expect(bar, ROWS * source.block_type.nbytes)
    blackwell.tma.async_gather(source, rows, column, bar, shared)
    mbarrier.wait(bar, 0)
    blackwell.tma.async_scatter(target, gl.maximum(rows, 0), column, shared)
    tma.store_wait(0)
    mbarrier.invalidate(bar)


def gathered(width, swizzle):
    def run(arch, device):
        x = numbers((64, 128), "bfloat16", 14, device)
        y = torch.zeros_like(x)
        rows = torch.randperm(80, generator=torch.Generator().manual_seed(15))[:16]
        rows = torch.where(rows == 0, 79, rows).int().to(device)
        gather_kernel[(1,)](
            blocks(x, (1, width), swizzle), blocks(y, (1, width), swizzle), rows, 24, 16, width,
            **LAUNCH_OPTIONS,
        )  # fmt: skip
        return [y]

    return run


def through(dtype, way, swizzle):
    """Registers -> shared memory -> registers, in other layouts."""

    def run(arch, device):
        m, n = 64, 64
        x = numbers((m, n), dtype, 16, device)
        y = torch.zeros(n, m, dtype=x.dtype, device=device)
        first = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
        second = first if way == "transposed" else gl.BlockedLayout([2, 1], [8, 4], [1, 4], [0, 1])
        gluon_kernels.through_shared_kernel[(1,)](
            x, y, m, n, first, second, nvmma(swizzle, dtype), way, **LAUNCH_OPTIONS
        )
        return [y]

    return run


@gluon.jit
def device_made_kernel(x, y, rows, columns, M: gl.constexpr, N: gl.constexpr, SHARED: gl.constexpr):
    """Descriptors that the kernel makes; two steps along the columns."""
    source = tma.make_tensor_descriptor(x, [rows, columns], [columns, 1], [M, N], SHARED)
    target = tma.make_tensor_descriptor(y, [rows, columns], [columns, 1], [M, N], SHARED)
    tile = gl.allocate_shared_memory(x.dtype.element_ty, [M, N], SHARED)
    bar = new_barrier()
    fence_async_shared()
    for i in range(2):
        mbarrier.expect(bar, source.block_type.nbytes)
        async_load(source, [0, i * N], bar, tile)
        mbarrier.wait(bar, i & 1)
        async_store(target, [0, i * N], tile)
        tma.store_wait(0)
    mbarrier.invalidate(bar)


def device_made(dtype, block, swizzle):
    def run(arch, device):
        x = numbers((block[0], 2 * block[1] - 16), dtype, 17, device)
        y = torch.zeros_like(x)
        device_made_kernel[(1,)](
            x, y, x.shape[0], x.shape[1], *block, nvmma(swizzle, dtype), **LAUNCH_OPTIONS
        )
        return [y]

    return run


@gluon.jit
def rank_3_kernel(source, target):
    shape: gl.constexpr = source.block_type.shape
    tile = gl.allocate_shared_memory(source.dtype, shape, source.layout)
    bar = new_barrier()
    fence_async_shared()
    mbarrier.expect(bar, source.block_type.nbytes)
    async_load(source, [1, 0, 0], bar, tile)
    mbarrier.wait(bar, 0)
    async_store(target, [0, 4, 0], tile)
    tma.store_wait(0)
    mbarrier.invalidate(bar)


def rank_3(block, swizzle):
    def run(arch, device):
        x, y = numbers((3, 12, 64), "float16", 18, device), None
        y = torch.zeros_like(x)
        rank_3_kernel[(1,)](blocks(x, block, swizzle), blocks(y, block, swizzle), **LAUNCH_OPTIONS)
        return [y]

    return run


def other_cases():
    both, two, full = (90, 100), (32, 32), (128, 128)
    yield Case("carried", both, carried, two, full, lambda arch: (8 * 8, 8 * 2))
    yield Case("chosen", both, partial(chosen, False), two, full)
    yield Case("chosen-in-loop", (90,), partial(chosen, True), (64, 64), full)
    yield Case("specialized", both, specialized, two, full, lambda arch: (8 * 8, 8 * 2))
    yield Case(
        "specialized-wide-n", both, partial(specialized, block=(128, 128, 64), stages=2),
        (64, 64), full,
    )  # fmt: skip
    for view in ("slice-k", "slice-n", "slice-m", "transpose-b", "transpose-a", "reshape"):
        yield Case(view, both, partial(views, view), two, full)
    yield Case(
        "slice-k-of-64-bytes", both, partial(views, "slice-k", block=(128, 64, 64)), two, (64, 128)
    )
    yield Case("reinterpret", both, partial(views, "reinterpret"), two, full, since=V3_8)
    yield Case("pair", (100,), partial(pair, 2), (32, 32, 32), (128, 128, 128), since=V3_8)
    yield Case("pair-of-four", (100,), partial(pair, 4), (64, 64, 64), (128, 128, 128), since=V3_8)
    yield Case("cluster", (90,), cluster, two, full, since=V3_8)
    yield Case(
        "ring", both, partial(ring, "float16", (16, 64)), (32,), (128,),
        lambda arch: (2 * 7 * 4, 2 * 7),
    )  # fmt: skip
    yield Case("ring-of-bytes", (90,), partial(ring, "int8", (32, 256)), (64,), (128,))
    yield Case(
        "ring-of-many-rows", (90,), partial(ring, "float16", (512, 64), stages=2), (32,), (128,),
        lambda arch: (2 * 7 * 8, 2 * 7 * 2),
    )  # fmt: skip
    yield Case("reduced", both, reduced, (32,), (128,), lambda arch: (4 * 4, 4), V3_8)
    yield Case("gathered-no-swizzle", (100,), partial(gathered, 64), (0,), (128,))
    yield Case(
        "gathered", (100,), partial(gathered, 32), (32,), (64,), lambda arch: (2 * 4 * 2, 2 * 4)
    )
    for way in ("transposed", "half", "whole"):
        yield Case(f"through-{way}", (100,), partial(through, "float16", way), (32,), (128,))
    yield Case("through-no-swizzle", (90,), partial(through, "float32", "whole"), (0,), (128,))
    yield Case(
        "through-transposed-no-swizzle", (90,), partial(through, "float32", "transposed"),
        (0,), (128,), since=V3_8,
    )  # fmt: skip
    yield Case(
        "device-made", both, partial(device_made, "float16", (16, 64)), (32,), (128,),
        lambda arch: (4 * 4, 4),
    )  # fmt: skip
    yield Case(
        "device-made-no-swizzle", (90,), partial(device_made, "float32", (8, 16)), (0,), (64,),
        lambda arch: (4, 4),
    )  # fmt: skip
    yield Case(
        "device-made-of-bytes", (90,), partial(device_made, "int8", (32, 256)), (64,), (128,),
        lambda arch: (4 * 4, 4 * 2),
    )  # fmt: skip
    yield Case("rank-3", (90,), partial(rank_3, (2, 8, 64)), (32,), (128,))
    yield Case("rank-3-no-swizzle", (90,), partial(rank_3, (1, 8, 32)), (0,), (64,))


def cases() -> list[Case]:
    """All that the importable Triton can compile."""
    found = [*pipelined_cases(), *other_cases()]
    return [case for case in found if case.since <= TRITON_VERSION]
