"""The launch of one rank's part of a product, prepared once for its types, shapes and strides."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from triton_ext.distributed.workspace import FLAGS, Parcel, Workspace
from triton_ext.errors import LayoutError
from triton_ext.kernels.choice.choose import predicted_seconds, ranked
from triton_ext.kernels.config import MatmulConfig
from triton_ext.ops.device import Gpu, require_gpu
from triton_ext.ops.epilogue import NOTHING, Epilogue
from triton_ext.ops.launches import Link, PreparedLaunch
from triton_ext.ops.operands import (
    TMA_ALIGNMENT,
    TmaView,
    readable,
    readable_copy,
    tma_strides,
)
from triton_ext.ops.plans import MAX_PLANS
from triton_ext.ops.products import check_types, problem_of
from triton_ext.ops.types import output_type

Kind = Literal["gather", "scatter"]
LATENCY = 20e-6
"""Seconds of a collective that moves nothing."""
BANDWIDTH = 300e9
"""Bytes a second that a rank receives from the copy engines, or in tiles."""
NCCL_BANDWIDTH = 230e9
"""The same of an all-gather or reduce-scatter by NCCL."""
SLOWDOWN = {"gather": 1.02, "scatter": 1.1}
"""How much longer a product takes that communicates."""
HOST_SECONDS = {"gather": 80e-6, "scatter": 50e-6}
"""What the host needs for a call. (All five: two H200s with NVLink, torch 2.11, NCCL.)"""
NVLINK = {90: 1, 100: 2}
"""How many times as fast as an H200's the NVLink of an architecture is: 900 and 1800 GB/s in the
data sheets. No Blackwell has measured any of these."""
CONSIDERED = 8
"""Among how many tiles, of those that are fastest on one GPU, a scatter's is chosen."""


def configuration(
    kind: Kind, gpu: Gpu, a: Tensor, b: Tensor, out_dtype: torch.dtype
) -> tuple[MatmulConfig, float, float]:
    """The configuration for the product of (ranks, M, K) and (1, K, N): the fastest by the cost
    model of those that can wait for other ranks; of a scatter, beside a link.

    Returns:
        It; the predicted seconds of the product with it alone; and with any configuration.

    Raises:
        LayoutError: none can.
    """
    views = [_view(a, 1), _view(b, 0)]
    majors = views[0].major, views[1].major
    problem = problem_of(gpu, a, b, (*a.shape[:-1], b.shape[-1]), out_dtype, majors)
    *_, m, n, k, processors, _, batch, model = problem.asked

    def seconds(config: MatmulConfig) -> float:
        return predicted_seconds(config, m, n, k, processors, batch, model)

    considered = list(ranked(gpu.arch, *problem.asked))
    tiles = able(kind, considered)
    found = next(tiles, None)
    if found is None:
        raise LayoutError("group", kind, f"has no kernel on sm_{gpu.arch} for this product")
    if kind == "scatter":
        near = itertools.islice(itertools.chain([found], tiles), CONSIDERED)
        ways = itertools.chain.from_iterable(map(buffered, near))
        found = min(ways, key=lambda config: seconds(config) * beside_a_link(config))
    return found, seconds(found), seconds(considered[0])


def able(kind: Kind, configs: Iterable[MatmulConfig]) -> Iterator[MatmulConfig]:
    """Those that can wait for other ranks, in their order."""
    for config in configs:
        try:
            yield replace(config, batched=True, loaded_rows=0, collective=kind)
        except LayoutError:  # it swaps the operands, or divides K
            continue


def buffered(config: MatmulConfig) -> Iterator[MatmulConfig]:
    """It, and with a buffer for each piece of C, if need be in place of stages: what of a tile is
    on its way to another GPU leaves its buffer late.
    """
    yield config
    for stages in range(config.stages, 1, -1):
        try:
            yield replace(config, c_buffers=config.c_parts, stages=stages)
        except LayoutError:  # too much shared memory
            continue
        return


LOADS, KEPT = 0.178, -0.019
"""What tiles of a scatter have in common with the logarithm of its time: see `beside_a_link`."""


def traffic(config: MatmulConfig) -> tuple[float, float]:
    """What of a tile counts if others travel meanwhile: what it loads from the L2 cache for an
    operation, over half of what a block of 128x128 elements does; and whether each piece of C has
    a buffer.
    """
    left = 128 / (config.block_n * config.cluster_columns)
    right = 128 / (config.block_m * config.cluster)
    return left + right, float(config.c_buffers == config.c_parts > 1)


def beside_a_link(config: MatmulConfig) -> float:
    """How much longer a product takes, up to a constant (`SLOWDOWN`), for the `traffic` of its
    tiles. ``python -m benchmarks.scatter fit`` fits it, to times of two H100s.
    """
    loads, kept = traffic(config)
    return math.exp(LOADS * loads + KEPT * kept)


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
        raise LayoutError(
            "N", matrices.shape[-1], "rows of the output must be multiples of 16 bytes"
        )
    return TmaView(tuple(matrices.shape), strides, "MN")


class Call(NamedTuple):
    """What calls on tensors of the same types, shapes and strides have in common.

    Attributes:
        launch: the kernel's.
        shape: of the memory that a rank's section has for it.
        size: its bytes.
        dtype: of the output.
        copies: whether a, and b, must be copied for the kernel to read them.
        gain: by how much it is expected to be faster than the same one after the other; on the
            GPU alone, and with the time that the host takes.
    """

    launch: PreparedLaunch
    shape: tuple[int, ...]
    size: int
    dtype: torch.dtype
    copies: tuple[bool, bool]
    gain: tuple[float, float]


_calls: dict[tuple[object, ...], Call] = {}


def prepared(
    kind: Kind, a: Tensor, b: Tensor, ranks: int, epilogue: Epilogue = NOTHING,
    out_dtype: torch.dtype | None = None, config: MatmulConfig | None = None,
) -> Call:  # fmt: skip
    """The call of a kind on these tensors; LayoutError if there is no kernel for it."""
    dtype = out_dtype or output_type(a.dtype)
    fields = epilogue.config_fields()
    if kind == "gather" and epilogue.scale_a is not None:
        fields["a_scales"] = "each"
    gpu = require_gpu(b.device)
    key = (
        kind, ranks, gpu.arch, gpu.index, a.dtype, b.dtype, dtype, a.shape, a.stride(), b.shape,
        b.stride(),
        a.data_ptr() % TMA_ALIGNMENT, b.data_ptr() % TMA_ALIGNMENT, *fields.items(), config,
    )  # fmt: skip
    found = _calls.get(key)
    if found is None or a.dtype == torch.float32:  # what torch allows for it may change
        check_types(a, b, dtype, gpu.arch)
    if found is None:
        with gpu.current():
            found = _prepare(kind, a, b, ranks, fields, dtype, config)
        while len(_calls) >= MAX_PLANS:
            del _calls[next(iter(_calls))]
        _calls[key] = found
    return found


def _prepare(
    kind: Kind, a: Tensor, b: Tensor, ranks: int, fields: Mapping[str, Any], dtype: torch.dtype,
    config: MatmulConfig | None,
) -> Call:  # fmt: skip
    gpu, n = require_gpu(b.device), b.shape[1]
    copies = not (readable(a, 1) and (kind == "scatter" or a.is_contiguous())), not readable(b, 0)
    a, b = _readable(a, b, copies)
    if kind == "gather":
        own, left = a[None], a.new_empty((ranks, *a.shape), device="meta")
        sent, c = left, a.new_empty((ranks, a.shape[0], n), dtype=dtype, device="meta")
    else:
        left = a.view(ranks, -1, a.shape[1])
        own = a.new_empty((1, left.shape[1], n), dtype=dtype, device="meta")
        sent = c = own.new_empty((ranks - 1, *own.shape[1:]))
    size = sent.numel() * sent.itemsize
    gain = 1.0, 1.0
    if config is None:
        config, alone, best = configuration(kind, gpu, left, b[None], dtype)
        communicated = size * (ranks - 1) / ranks if kind == "gather" else size
        communicated /= NVLINK[gpu.arch]
        one_after_other = best + LATENCY + communicated / NCCL_BANDWIDTH
        together = max(SLOWDOWN[kind] * alone, LATENCY + communicated / BANDWIDTH)
        host = max(together, HOST_SECONDS[kind])
        gain = one_after_other / together, one_after_other / host
    config = replace(config, **fields)
    rows = -(-left.shape[1] // config.block_m) * config.consumers * config.cluster
    if ranks * rows * -(-n // config.block_n) > FLAGS:
        raise LayoutError("shape", (*a.shape, n), f"has more tiles than {FLAGS} flags")
    c_view = _rows(c)
    own_view = _view(own, 1) if kind == "gather" else _rows(own)
    residual = c_view if kind == "scatter" else None
    views = (_view(left, 1), _view(b[None], 0), c_view, residual, None, None, own_view)
    launch = PreparedLaunch(gpu, config, views, a.shape[1])
    return Call(launch, tuple(sent.shape), size, dtype, copies, gain)


def _readable(a: Tensor, b: Tensor, copies: tuple[bool, bool]) -> tuple[Tensor, Tensor]:
    """The operands where the kernel, and the copy engines, can read them."""
    return readable_copy(a, 1) if copies[0] else a, readable_copy(b, 0) if copies[1] else b


def gather(
    a: Tensor, b: Tensor, workspace: Workspace, epilogue: Epilogue = NOTHING,
    out_dtype: torch.dtype | None = None, *, config: MatmulConfig | None = None,
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
    start = -(-call.size // TMA_ALIGNMENT) * TMA_ALIGNMENT
    scale = epilogue.scale_a
    section = workspace.section(start + (0 if scale is None else 4 * len(c)))

    def copies(to: int) -> tuple[tuple[Tensor, Tensor], ...]:
        sent = ((a, section.tensor(to, call.shape, a.dtype)[rank]),)
        return sent if scale is None else (*sent, (scale.flatten(), scales(to)[rank]))

    def scales(of: int) -> Tensor:
        return section.tensor(of, (ranks, a.shape[0]), torch.float32, start)

    others = [(rank + i) % ranks for i in range(1, ranks)]  # the next one needs it first
    workspace.push([Parcel(copies(to), section.flags[to], 2 * rank) for to in others])
    if scale is not None:
        scales(rank)[rank].copy_(scale.flatten())
        epilogue = epilogue._replace(scale_a=scales(rank))
    link = Link(a, section.flags[rank], workspace.late, rank, ranks)
    with call.launch.gpu.current():
        call.launch(section.tensor(rank, call.shape, a.dtype), b, c, epilogue, link)
    workspace.end()
    return c


def scatter(
    a: Tensor, b: Tensor, workspace: Workspace, epilogue: Epilogue = NOTHING,
    out_dtype: torch.dtype | None = None, *, config: MatmulConfig | None = None,
) -> Tensor:  # fmt: skip
    """This rank's rows of the sum over the ranks of a (ranks * M, K) @ b (K, N).

    Args:
        epilogue: scales are those of this rank's operands, the rest is applied to the sum.

    Raises:
        LayoutError: there is no kernel for it.
    """
    rank, ranks = workspace.rank, workspace.ranks
    call = prepared("scatter", a, b, ranks, epilogue, out_dtype, config)
    a, b = _readable(a, b, call.copies)
    after = (rank + 1) % ranks
    out = a.new_empty((a.shape[0] // ranks, b.shape[1]), dtype=call.dtype)
    section = workspace.section(call.size)
    received = section.tensor(rank, call.shape, out.dtype)
    sent = section.tensor(after, call.shape, out.dtype)
    first, flags = (rank - 1) % ranks, section.flags
    link = Link(out, flags[rank], workspace.late, first, ranks, flags[after])
    with call.launch.gpu.current():
        call.launch(a, b, sent, epilogue._replace(residual=received), link)
    return out
