"""Which configuration a problem gets, unless one was measured or is given; and what changes in it
for what follows the product.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.kernels.choice import cost_model, cost_model_sm100
from triton_ext.kernels.choice.candidates import copied_rows
from triton_ext.kernels.choice.fixed_set import choose_fixed
from triton_ext.kernels.choice.gpus import GpuModel, check_model
from triton_ext.kernels.config import PROMOTED_TYPES, MatmulConfig
from triton_ext.kernels.element_types import ELEMENT_BYTES, Major


@functools.lru_cache(maxsize=4096)
def choose_config(
    arch: int,
    element_type: str,
    a_major: Major,
    b_major: Major,
    m: int,
    n: int,
    k: int,
    multiprocessors: int = 132,
    out_type: str | None = None,
    batch: int = 1,
    gpu: GpuModel = "h200",
    fixed: bool = False,
    promoted: bool = False,
) -> MatmulConfig:
    """The configuration for a problem.

    The one whose predicted time is the shortest, by `cost_model` (sm_90) or `cost_model_sm100`.

    Args:
        multiprocessors: how many SMs the GPU has.
        out_type: as in `MatmulConfig`.
        batch: how many such products are made at once; the field ``batched`` is left to the caller.
        gpu: of sm_90, for which GPU; see `gpus.model_of`.
        fixed: choose among the `fixed_set` alone.
        promoted: as in `MatmulConfig`; chosen among all kernels.

    Raises:
        LayoutError: no kernel takes these types, or these major-nesses of them, or promotes their
            sums; or the GPU is not known.
    """
    _check_types(arch, element_type, a_major, b_major, out_type)
    check_model(gpu)
    asked = (element_type, a_major, b_major, m, n, k, multiprocessors, out_type, batch, gpu)
    if promoted:
        if arch != 90 or element_type not in PROMOTED_TYPES:
            rule = f"must be False, but for {', '.join(PROMOTED_TYPES)} on sm_90"
            raise LayoutError("promoted", promoted, rule)
        problem = cost_model.Problem(m, n, k, multiprocessors, batch, gpu)
        sizes = copied_rows(m), copied_rows(n)
        table = cost_model.promoted_table(element_type, a_major, b_major, out_type, *sizes)
        return next(cost_model.ranked_promoted(table, problem))
    if fixed:
        return choose_fixed(arch, *asked)
    return next(ranked(arch, *asked))


def ranked(arch: int, *asked: Any) -> Iterator[MatmulConfig]:
    """The candidates for a problem, those with the shortest predicted time first.

    Args:
        asked: what `choose_config` is asked, from `element_type` on.
    """
    if arch == 90:
        return cost_model.ranked(*asked)
    *problem, _ = asked  # of sm_100, one GPU is known
    return iter(cost_model_sm100.ranked_configs(*problem))


def predicted_seconds(
    config: MatmulConfig, m: int, n: int, k: int, multiprocessors: int, batch: int = 1,
    gpu: GpuModel = "h200",
) -> float:  # fmt: skip
    """The seconds that the product, or a batch of them, is predicted to take with a
    configuration.
    """
    if config.arch == 90:
        return cost_model.predicted_seconds(config, m, n, k, multiprocessors, batch, gpu)
    return cost_model_sm100.predicted_seconds(config, m, n, k, multiprocessors, batch)


def _check_types(
    arch: int, element_type: str, a_major: Major, b_major: Major, out_type: str | None
) -> None:
    """Raise LayoutError unless a tile that suits all types is legal."""
    line = 128 // ELEMENT_BYTES.get(element_type, 1)
    MatmulConfig(
        arch, element_type, a_major, b_major, block_k=line, stages=2, consumers=1, out_type=out_type
    )


SHORT_K, LEAST_STAGES = 16, 4
"""Up to how many products of tiles, and down to how many stages, a stage may go to a residual."""


def with_epilogue(config: MatmulConfig, k: int | None, **fields: Any) -> MatmulConfig:
    """A configuration with what follows the product.

    Only as many pieces of a residual as there are buffers are asked for while a tile is multiplied;
    each further one is waited for. So there are as many buffers as fit, and where K is short they
    take the place of a stage: `addmm` took 0.84 to 0.98 of the time that it took with few buffers
    (11 shapes on an H200); where K was 1912, a stage given up cost 6 %.

    Args:
        k: the problem's K; None for one kernel for all.
        fields: of `MatmulConfig`, such as ``bias`` and ``residual``.
    """
    if fields.get("residual"):
        fields["last_through_ring"] = False
    config = replace(config, **fields) if fields else config
    if not (config.residual and config.consumers):
        return config
    products = None if k is None else -(-k // (config.block_k * config.k_blocks))
    return next(_with_buffers(config, products), config)


def _with_buffers(config: MatmulConfig, products: int | None) -> Iterator[MatmulConfig]:
    """It with more buffers for C, as far as it is legal, the best first."""
    ways = [(config.stages, config.c_parts)]
    if products is not None and products <= SHORT_K and config.stages > LEAST_STAGES:
        ways.append((config.stages - 1, config.c_parts))
    ways += [(config.stages, buffers) for buffers in range(config.c_parts - 1, 0, -1)]
    for stages, buffers in ways:
        if buffers > config.c_buffers:
            try:
                yield replace(config, stages=stages, c_buffers=buffers)
            except LayoutError:
                continue
