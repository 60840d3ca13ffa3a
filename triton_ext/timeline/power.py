"""The clock that the power limit of a GPU leaves."""

from __future__ import annotations

import math

from triton_ext.timeline.gpus import Gpu


def powered_clock(gpu: Gpu, energy: float, first: float, rest: float) -> float:
    """The clock at which what takes so many joules at the highest one, `first` seconds and `rest`
    cycles needs what the power limit leaves."""
    low, high = 0.1, 1.0

    def taken(share: float) -> float:
        busy = energy / (first + rest / (share * gpu.clock))
        return gpu.idle_power + math.pow(share, gpu.power_exponent) * busy

    if taken(high) <= gpu.power:
        return gpu.clock
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if taken(middle) > gpu.power else (middle, high)
    return high * gpu.clock
