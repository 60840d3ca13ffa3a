"""The launch of one rank's part of a product, prepared once for its types, shapes and strides."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from triton_ext.distributed.workspace import FLAGS, Workspace
from triton_ext.errors import LayoutError
from triton_ext.kernels import cost_model
from triton_ext.kernels.config import MatmulConfig
from triton_ext.ops.device import Gpu, require_gpu
from triton_ext.ops.epilogue import Epilogue
from triton_ext.ops.launches import Link, PreparedLaunch
from triton_ext.ops.operands import TmaView, aligned, readable, readable_copy, tma_strides
from triton_ext.ops.products import check_types, problem_of
from triton_ext.ops.types import output_type

Kind = Literal["gather", "scatter"]
_prepared: dict[tuple[object, ...], PreparedLaunch] = {}


def configuration(
    kind: Kind, gpu: Gpu, a: Tensor, b: Tensor, out_dtype: torch.dtype
) -> MatmulConfig:
    """The configuration for the product of (ranks, M, K) and (1, K, N): the fastest by the cost
    model of those that can wait for other ranks.

    Raises:
        LayoutError: none can.
    """
    views = [_view(a, 1), _view(b, 0)]
    check_types(a, b, out_dtype, gpu.arch)
    majors = views[0].major, views[1].major
    shape = (*a.shape[:-1], b.shape[-1])
    problem = problem_of(gpu, a, b, shape, out_dtype, majors)
    if gpu.arch == 90:
        for config in cost_model.ranked_configs(*problem.asked):
            try:
                return replace(config, batched=True, prefetch=None, collective=kind)
            except LayoutError:  # it swaps the operands, or divides K
                continue
    raise LayoutError("group", kind, f"has no kernel on sm_{gpu.arch} for this product")


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


def _prepare(
    gpu: Gpu, kind: Kind, a: Tensor, b: Tensor, c: Tensor, own: Tensor, epilogue: Epilogue,
    config: MatmulConfig | None,
) -> PreparedLaunch:  # fmt: skip
    """The launch of a product; see `Link`."""
    if config is None:
        config = configuration(kind, gpu, a, b, c.dtype)
    fields = epilogue.config_fields()
    fields.pop("residual", None)
    config = replace(config, **fields) if fields else config
    rows = -(-a.shape[1] // config.block_m) * config.consumers * config.cluster
    columns = -(-b.shape[2] // config.block_n)
    if len(a) * rows * columns > FLAGS:
        raise LayoutError("shape", (*a.shape, b.shape[2]), f"has more tiles than {FLAGS} flags")
    c_view = _rows(c)
    residual = c_view if kind == "scatter" else None
    own_view = _view(own, 1) if kind == "gather" else _rows(own)
    views = (_view(a, 1), _view(b, 0), c_view, residual, None, None, own_view)
    return PreparedLaunch(gpu, config, views, a.shape[2])


def _prepared_launch(
    kind: Kind, a: Tensor, b: Tensor, c: Tensor, own: Tensor, epilogue: Epilogue,
    config: MatmulConfig | None,
) -> PreparedLaunch:  # fmt: skip
    """The launch, by shapes and strides; a and c may be tensors without memory."""
    gpu = require_gpu(b.device)
    shapes = tuple((each.shape, each.stride(), each.dtype) for each in (a, b, c, own))
    key = (gpu, kind, *shapes, epilogue.activation, epilogue.bias is None, config)
    found = _prepared.get(key)
    if found is None:
        found = _prepare(gpu, kind, a, b, c, own, epilogue, config)
        found = _prepared.setdefault(key, found)
    return found


def gather(
    a: Tensor, b: Tensor, workspace: Workspace, epilogue: Epilogue, *,
    config: MatmulConfig | None = None,
) -> Tensor:  # fmt: skip
    """The product (ranks * M, N) of all ranks' a (M, K), below each other, and b (K, N).

    Raises:
        LayoutError: there is no kernel for it.
    """
    a = aligned(a.contiguous())
    b = b if readable(b, 0) else readable_copy(b, 0)
    rank, ranks = workspace.rank, workspace.ranks
    (m, k), n = a.shape, b.shape[1]
    shape = (ranks, m, k)
    c = a.new_empty((ranks, m, n), dtype=output_type(a.dtype))
    like = a.new_empty(shape, device="meta")
    launch = _prepared_launch("gather", like, b[None], c, a[None], epilogue, config)
    section = workspace.section(math.prod(shape) * a.itemsize)
    others = [(rank + i) % ranks for i in range(1, ranks)]  # the next one needs it first
    workspace.push(
        a,
        [(section.tensor(to, shape, a.dtype)[rank], section.flags[to], 2 * rank) for to in others],
    )
    gathered = section.tensor(rank, shape, a.dtype)
    link = Link(a[None], section.flags[rank], rank, ranks)
    with launch.gpu.current():
        launch(gathered, b[None], c, epilogue, link)
    workspace.end()

    return c.flatten(0, 1)


def scatter(
    a: Tensor, b: Tensor, workspace: Workspace, epilogue: Epilogue, *,
    config: MatmulConfig | None = None,
) -> Tensor:  # fmt: skip
    """This rank's rows of the sum over the ranks of a (ranks * M, K) @ b (K, N).

    Raises:
        LayoutError: there is no kernel for it.
    """
    rank, ranks = workspace.rank, workspace.ranks
    a, b = (each if readable(each, i) else readable_copy(each, i) for i, each in ((1, a), (0, b)))
    chunks = a.unflatten(0, (ranks, -1))
    (_, m, _), n = chunks.shape, b.shape[1]
    out = a.new_empty((1, m, n), dtype=output_type(a.dtype))
    shape = (ranks - 1, m, n)
    like = out.new_empty(shape, device="meta")
    launch = _prepared_launch("scatter", chunks, b[None], like, out, epilogue, config)
    section = workspace.section(math.prod(shape) * out.itemsize)
    after = (rank + 1) % ranks
    received, sent = (section.tensor(each, shape, out.dtype) for each in (rank, after))
    first = (rank - 1) % ranks
    link = Link(out, section.flags[rank], first, ranks, section.flags[after])
    with launch.gpu.current():
        launch(chunks, b[None], sent, epilogue._replace(residual=received), link)
    workspace.end()
    return out[0]
