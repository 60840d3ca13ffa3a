"""What a kernel is chosen for, besides the product's types: its size, and the GPU."""

from __future__ import annotations

from typing import NamedTuple

from triton_ext.kernels.choice.gpus import GpuModel


class Problem(NamedTuple):
    """A product C (M, N) = A (M, K) @ B (K, N), or a batch of them, on a GPU with so many SMs.

    Attributes:
        gpu: whose constants and correction count; on sm_90.
    """

    m: int
    n: int
    k: int
    multiprocessors: int = 132
    batch: int = 1
    gpu: GpuModel = "h200"
