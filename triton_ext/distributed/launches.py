"""The launch of one rank's part of a product, prepared once for its types, shapes and strides."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from triton_ext.distributed.workspace import COUNTERS, Count, Parcel, Workspace
from triton_ext.errors import LayoutError
from triton_ext.kernels.choice.choose import predicted_seconds, ranked
from triton_ext.kernels.epilogue import EpilogueSpec
from triton_ext.kernels.spec import KernelSpec
from triton_ext.kernels.tile import SimpleTile, Sm90Tile
from triton_ext.ops.checks import check_types
from triton_ext.ops.device import Gpu, require_gpu
from triton_ext.ops.epilogue import NOTHING, Epilogue
from triton_ext.ops.launches import Link, PreparedLaunch
from triton_ext.ops.operands import (
    TMA_ALIGNMENT,
    TmaView,
    aligned_empty,
    readable,
    readable_copy,
    tma_strides,
)
from triton_ext.ops.planning import problem_of
from triton_ext.ops.plans import MAX_PLANS
from triton_ext.ops.types import output_type

Kind = Literal["gather", "scatter"]
LATENCY = 20e-6
"""Seconds of a collective that moves nothing."""
BANDWIDTH = 300e9
"""Bytes a second that a rank receives from the copy engines."""
NCCL_BANDWIDTH = 230e9
"""The same of an all-gather or reduce-scatter by NCCL."""
SLOWDOWN = 1.03
"""How much longer a product takes that communicates."""
HOST_SECONDS = {"gather": 80e-6, "scatter": 50e-6}
"""What the host needs for a call; of a scatter, if its kernel stores all tiles where they go. (All
of these: two H200s with NVLink, torch 2.11, NCCL; the slowdown: two H100s.)"""
STAGED = 100e-6
"""Seconds of the product from which copy engines carry the tiles of a scatter: tiles that the
kernel itself stores in another GPU's memory hold up what its SM loads meanwhile, and copy engines
need some 30 us until the first ones are there (two H100s)."""
CONSIDERED = 8
"""Among how many tiles, of those that are fastest on one GPU, one is chosen."""
LOADS = 0.181
"""What `loads` of a tile add to the logarithm of its time: the least squares of reduce-scatters on
two H100s (``benchmarks/results/scatter_h100.json``)."""
NVLINK = {90: 1, 100: 2}
"""How many times as fast as an H200's the NVLink of an architecture is: 900 and 1800 GB/s in the
data sheets. No Blackwell has measured any of these."""


def configuration(
    kind: Kind, gpu: Gpu, a: Tensor, b: Tensor, out_dtype: torch.dtype,
    config: KernelSpec | None = None,
) -> tuple[KernelSpec, float, float]:  # fmt: skip
    """The configuration for the product of (ranks, M, K) and (1, K, N): the fastest of those that
    can wait for other ranks, by the cost model and by what it loads beside a link.

    Args:
        config: the one to take, if it is known.

    Returns:
        It; the predicted seconds of the product with it alone; and with any configuration.

    Raises:
        LayoutError: none can.
    """
    views = [_view(a, 1), _view(b, 0)]
    majors = views[0].major, views[1].major
    problem = problem_of(gpu, a, b, (*a.shape[:-1], b.shape[-1]), out_dtype, majors)

    def seconds(config: KernelSpec) -> float:
        return predicted_seconds(config, problem.size)

    considered = list(ranked(gpu.arch, problem.product, problem.size))
    near = [config] if config else list(itertools.islice(able(kind, considered), CONSIDERED))
    if not near:
        raise LayoutError("group", kind, f"has no kernel on sm_{gpu.arch} for this product")
    found = min(near, key=lambda each: seconds(each) * math.exp(LOADS * loads(each)))
    return found, seconds(found), seconds(considered[0])


def loads(config: KernelSpec) -> float:
    """What a tile loads from the L2 cache for an operation, over half of what a block of 128x128
    elements does: the more, the longer it takes while others' rows or tiles travel (`LOADS`).
    """
    tile = config.tile
    assert not isinstance(tile, SimpleTile)
    return 128 / (tile.block_n * tile.cluster_n) + 128 / (tile.block_m * tile.cluster_m)


def able(kind: Kind, configs: Iterable[KernelSpec]) -> Iterator[KernelSpec]:
    """Those that can wait for other ranks, in their order."""
    for config in configs:
        try:
            tile = config.tile
            if isinstance(tile, Sm90Tile):
                tile = replace(tile, loaded_rows=0, last_through_pipeline=False)
            product = replace(config.product, batched=True, collective=kind)
            yield KernelSpec(product, config.epilogue, tile)
        except LayoutError:  # it swaps the operands, or divides K
            continue


def _view(matrices: Tensor, k_dim: int) -> TmaView:
    """How TMA reads a batch."""
    view = readable(matrices, k_dim)
    if view is None:
        raise LayoutError("strides", matrices.stride(), "must be readable by TMA")
    return view


def _rows(matrices: Tensor) -> TmaView:
    """How TMA writes, or adds, a batch row by row."""
    strides = tma_strides(matrices)
    if strides is None:
        rule = "rows of the output must be multiples of 16 bytes"
        raise LayoutError("N", matrices.shape[-1], rule)
    return TmaView(tuple(matrices.shape), strides, "MN")


class Piece(NamedTuple):
    """What is sent together.

    Attributes:
        rows: of a chunk.
        complete: what a scatter's kernel counts until they are stored.
    """

    rows: slice
    complete: int


class Call(NamedTuple):
    """What calls on tensors of the same types, shapes and strides have in common.

    Attributes:
        launch: the kernel's.
        shape: of the memory that a rank's section has for it.
        size: its bytes.
        dtype: of the output.
        copies: whether a, and b, must be copied for the kernel to read them.
        pieces: those of a chunk.
        staged: whether copy engines carry the tiles of a scatter.
        gain: by how much it is expected to be faster than the same one after the other; on the
            GPU alone, and with the time that the host takes.
    """

    launch: PreparedLaunch
    shape: tuple[int, ...]
    size: int
    dtype: torch.dtype
    copies: tuple[bool, bool]
    pieces: tuple[Piece, ...]
    staged: bool
    gain: tuple[float, float]


_calls: dict[tuple[object, ...], Call] = {}


def prepared(
    kind: Kind, a: Tensor, b: Tensor, ranks: int, epilogue: Epilogue = NOTHING,
    out_dtype: torch.dtype | None = None, config: KernelSpec | None = None,
    staged: bool | None = None,
) -> Call:  # fmt: skip
    """The call of a kind on these tensors; LayoutError if there is no kernel for it."""
    dtype = out_dtype or output_type(a.dtype)
    spec = epilogue.spec()
    if kind == "gather" and epilogue.scale_a is not None:
        spec = replace(spec, a_scales="each")
    gpu = require_gpu(b.device)
    key = (
        kind, ranks, gpu.arch, gpu.index, a.dtype, b.dtype, dtype, a.shape, a.stride(), b.shape,
        b.stride(),
        a.data_ptr() % TMA_ALIGNMENT, b.data_ptr() % TMA_ALIGNMENT, spec, config, staged,
    )  # fmt: skip
    found = _calls.get(key)
    if found is None or a.dtype == torch.float32:  # what torch allows for it may change
        check_types(a, b, dtype, gpu.arch)
    if found is None:
        with gpu.current():
            found = _prepare(kind, a, b, ranks, spec, dtype, config, staged)
        while len(_calls) >= MAX_PLANS:
            del _calls[next(iter(_calls))]
        _calls[key] = found
    return found


def _prepare(
    kind: Kind, a: Tensor, b: Tensor, ranks: int, epilogue: EpilogueSpec, dtype: torch.dtype,
    config: KernelSpec | None, staged: bool | None,
) -> Call:  # fmt: skip
    gpu, n = require_gpu(b.device), b.shape[1]
    copies = not (readable(a, 1) and (kind == "scatter" or a.is_contiguous())), not readable(b, 0)
    a, b = _readable(a, b, copies)
    if kind == "gather":
        own, left = a[None], a.new_empty((ranks, *a.shape), device="meta")
        received, c = left, a.new_empty((ranks, a.shape[0], n), dtype=dtype, device="meta")
    else:
        left = a.view(ranks, -1, a.shape[1])
        own = a.new_empty((1, left.shape[1], n), dtype=dtype, device="meta")
        received = c = own.new_empty((ranks - 1, *own.shape[1:]))
    size = received.numel() * received.itemsize
    config, alone, best = configuration(kind, gpu, left, b[None], dtype, config)
    config = replace(config, epilogue=epilogue)
    c_view = _rows(c)
    own_view = _view(own, 1) if kind == "gather" else _rows(own)
    residual = c_view if kind == "scatter" else None
    views = (_view(left, 1), _view(b[None], 0), c_view, residual, None, None, own_view)
    launch = PreparedLaunch(gpu, config, views, a.shape[1])
    pieces = tuple(_pieces(launch, left.shape[1], n))
    if 1 + ranks * len(pieces) > COUNTERS:
        raise LayoutError("group", ranks, f"needs more than {COUNTERS} flags")
    staged = alone > STAGED if staged is None else staged
    communicated = (size * (ranks - 1) / ranks if kind == "gather" else size) / NVLINK[gpu.arch]
    together = max(SLOWDOWN * alone, LATENCY + communicated / BANDWIDTH)
    if kind == "scatter":
        before, last = _before_last(launch, ranks, left.shape[1], n)
        sent = max(last, 1 / len(pieces)) * communicated / (ranks - 1) / BANDWIDTH
        made = SLOWDOWN * alone if staged else alone + LATENCY
        together = max(together, made, before * alone + LATENCY + sent)
    one_after_other = best + LATENCY + communicated / NCCL_BANDWIDTH
    gain = one_after_other / together, one_after_other / max(together, HOST_SECONDS[kind])
    return Call(launch, tuple(received.shape), size, dtype, copies, pieces, staged, gain)


def _pieces(launch: PreparedLaunch, rows: int, columns: int) -> Iterator[Piece]:
    """Those of a chunk of so many rows of C."""
    config, together = launch.config, launch.plan.piece_rows
    (tile_m, _), (tiles_m, tiles_n) = _tiles(config, rows, columns)
    assert not isinstance(config.tile, SimpleTile)
    counted = tiles_n * config.tile.cluster_size * config.tile.sharing_consumers
    for first in range(0, tiles_m, together):
        end = min(first + together, tiles_m)
        yield Piece(slice(first * tile_m, min(end * tile_m, rows)), (end - first) * counted)


def _tiles(config: KernelSpec, rows: int, columns: int) -> tuple[tuple[int, int], ...]:
    """Rows and columns of a cluster's tile; and how many tiles there are along each."""
    tile = config.tile
    assert not isinstance(tile, SimpleTile)
    size = tile.block_m * tile.cluster_m, tile.columns * tile.cluster_n
    return size, (-(-rows // size[0]), -(-columns // size[1]))


def _before_last(
    launch: PreparedLaunch, ranks: int, rows: int, columns: int
) -> tuple[float, float]:
    """Two parts of one: of a product's waves, those in which all turns but the last are made, which
    are all where no block makes a second tile; and of a turn, what the last one of these makes.
    """
    number = math.prod(_tiles(launch.config, rows, columns)[1])
    resident = launch.plan.grid[0]
    waves = -(-(ranks - 1) * number // resident)
    return waves / -(-ranks * number // resident), min(1.0, resident / number)


def _aligned(size: int) -> int:
    """The next multiple of what TMA asks of addresses."""
    return -(-size // TMA_ALIGNMENT) * TMA_ALIGNMENT


def _readable(a: Tensor, b: Tensor, copies: tuple[bool, bool]) -> tuple[Tensor, Tensor]:
    """The operands where the kernel, and the copy engines, can read them."""
    if copies[0]:
        a = aligned_empty(a, a.shape).copy_(a)
    return a, readable_copy(b, 0) if copies[1] else b


def gather(
    a: Tensor, b: Tensor, workspace: Workspace, epilogue: Epilogue = NOTHING,
    out_dtype: torch.dtype | None = None, *, config: KernelSpec | None = None,
) -> Tensor:  # fmt: skip
    """The product (ranks * M, N) of all ranks' a (M, K), below each other, and b (K, N).

    Args:
        epilogue: of this rank, but that its scale of a is one for each of its rows.

    Raises:
        LayoutError: there is no kernel for it.
    """
    rank, ranks = workspace.rank, workspace.ranks
    call = prepared("gather", a, b, ranks, epilogue, out_dtype, config)
    a, b = _readable(a, b, call.copies)
    c = a.new_empty((ranks * a.shape[0], b.shape[1]), dtype=call.dtype)
    start = _aligned(call.size)
    scale = epilogue.scale_a
    section = workspace.section(start + (0 if scale is None else 4 * len(c)))

    def copied(to: int, rows: slice) -> Iterator[tuple[Tensor, Tensor]]:
        yield a[rows], section.tensor(to, call.shape, a.dtype)[rank, rows]
        if scale is not None:
            yield scale.flatten()[rows], scales(to)[rank, rows]

    def scales(of: int) -> Tensor:
        return section.tensor(of, (ranks, a.shape[0]), torch.float32, start)

    others = [(rank + i) % ranks for i in range(1, ranks)]  # the next one needs it first
    number = len(call.pieces)
    parcels = [
        Parcel(tuple(copied(to, rows)), section.flags[to], 1 + rank * number + i)
        for to in others
        for i, (rows, _) in enumerate(call.pieces)
    ]
    if scale is not None:
        scales(rank)[rank].copy_(scale.flatten())
        epilogue = epilogue._replace(scale_a=scales(rank))
    link = Link(a, section.flags[rank], workspace.late, rank, ranks)
    gathered = section.tensor(rank, call.shape, a.dtype)
    with call.launch.gpu.current():
        workspace.send(parcels, partial(call.launch, gathered, b, c, epilogue, link))
    return c


def scatter(
    a: Tensor, b: Tensor, workspace: Workspace, epilogue: Epilogue = NOTHING,
    out_dtype: torch.dtype | None = None, *, config: KernelSpec | None = None,
    staged: bool | None = None,
) -> Tensor:  # fmt: skip
    """This rank's rows of the sum over the ranks of a (ranks * M, K) @ b (K, N).

    Args:
        epilogue: scales are those of this rank's operands, the rest is applied to the sum.
        config, staged: what would be chosen (see `Call`), if it is to be something else.

    Raises:
        LayoutError: there is no kernel for it.
    """
    rank, ranks = workspace.rank, workspace.ranks
    call = prepared("scatter", a, b, ranks, epilogue, out_dtype, config, staged)
    a, b = _readable(a, b, call.copies)
    after = (rank + 1) % ranks
    out = a.new_empty((a.shape[0] // ranks, b.shape[1]), dtype=call.dtype)
    start = _aligned(call.size)
    section = workspace.section(2 * start if call.staged else start)
    received, target = (section.tensor(to, call.shape, out.dtype) for to in (rank, after))
    first, flags, parcels = (rank - 1) % ranks, section.flags, []
    if call.staged:
        sent = section.tensor(rank, call.shape, out.dtype, start)
        counters, number = flags[rank][COUNTERS:], len(call.pieces)
        parcels = [
            Parcel(
                ((sent[turn, rows], target[turn, rows]),), flags[after], 1 + turn * number + i,
                Count(counters, turn * number + i, complete),
            )
            for turn in range(ranks - 1)
            for i, (rows, complete) in enumerate(call.pieces)
        ]  # fmt: skip
    else:
        sent, counters = target, flags[after][1:]
    link = Link(out, flags[rank], workspace.late, first, ranks, counters)
    epilogue = epilogue._replace(residual=received)
    with call.launch.gpu.current():
        workspace.send(parcels, partial(call.launch, a, b, sent, epilogue, link))
    return out
