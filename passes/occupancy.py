"""The warps of a module, and how many of its blocks fit a multiprocessor."""

from __future__ import annotations

import re
from dataclasses import dataclass

from triton_ext.hardware.architecture import RESERVED_SHARED_MEMORY, WARP_THREADS, Capability
from triton_ext.mlir.ir import Operation
from triton_ext.mlir.module import MlirModule

BLOCKS_PER_SM = 32
"""The most blocks that a multiprocessor of sm_90 and sm_100 runs at once; others run fewer (CUDA
programming guide, "Technical Specifications per Compute Capability")."""
BLOCK_GRANULARITY = 128
"""The shared memory of a block is a multiple of so many bytes (``cuda_occupancy.h``,
``cudaOccSMemAllocationGranularity``)."""


@dataclass(frozen=True)
class Occupancy:
    """How many blocks fit a multiprocessor, registers not considered.

    Attributes:
        by_shared, by_threads: how many blocks shared memory, and threads, suffice for.
    """

    by_shared: int
    by_threads: int


def warps_of(module: MlirModule) -> int:
    """The warps of a block, those of partitions included."""
    attributes = module.attributes
    return int(attributes.get("ttg.total-num-warps", attributes.get("ttg.num-warps", 4)))


def partition_warps(operation: Operation) -> list[int]:
    """The warps of each partition of a ``ttg.warp_specialize`` but the one that it stands in."""
    words = "".join(token.text for token in operation.tokens)
    return [int(number) for number in re.findall(r"num_warps\((\d+)\)", words)]


def blocks_per_sm(shared: int, warps: int, has: Capability) -> Occupancy:
    """The occupancy of a kernel that takes `shared` bytes of shared memory a block."""
    taken = shared + RESERVED_SHARED_MEMORY
    return Occupancy(
        has.shared_memory_per_sm // (-(-taken // BLOCK_GRANULARITY) * BLOCK_GRANULARITY),
        min(BLOCKS_PER_SM, has.threads_per_sm // (warps * WARP_THREADS)),
    )
