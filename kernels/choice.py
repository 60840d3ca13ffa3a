"""Which configuration a problem gets, unless one was measured or is given."""

from __future__ import annotations

import functools

from triton_ext.kernels import cost_model, cost_model_sm100
from triton_ext.kernels.config import MatmulConfig
from triton_ext.kernels.element_types import Major


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
) -> MatmulConfig:
    """The configuration for a problem.

    The one whose predicted time is the shortest, by `cost_model` (sm_90) or `cost_model_sm100`.

    Args:
        multiprocessors: how many SMs the GPU has.
        out_type: as in `MatmulConfig`.
        batch: how many such products are made at once; the field ``batched`` is left to the caller.
    """
    asked = (element_type, a_major, b_major, m, n, k, multiprocessors, out_type, batch)
    if arch == 90:
        return next(cost_model.ranked(*asked))
    return cost_model_sm100.ranked_configs(*asked)[0]
