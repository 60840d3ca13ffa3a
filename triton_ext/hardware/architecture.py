"""The two architectures, under the names that users write."""

from __future__ import annotations

import re
from typing import Any, Literal

from triton_ext.errors import LayoutError

Architecture = Literal[90, 100]
WARP_THREADS = 32
SHARED_MEMORY_PER_BLOCK = 227 * 1024
"""The most that a thread block may use on sm_90 and sm_100, in bytes (CUDA programming guide,
"Technical Specifications per Compute Capability")."""
SHARED_MEMORY_PER_SM = 228 * 1024
"""What a multiprocessor has; 1 KB of it is reserved for each block (likewise; seed 004, "Shared
memory")."""
MULTIPROCESSORS: dict[int, int] = {90: 132, 100: 148}
"""Multiprocessors of the H100 SXM and of the B200, by architecture (their data sheets)."""
CTA_ADDRESS_BITS = 24
"""The bits of a shared address that say where in its CTA it is; those above are the CTA's rank in
its cluster. (CUTLASS clears bit 24 to name the leading CTA of a pair: ``Sm100MmaPeerBitMask``.)"""
CTA_ADDRESS_MASK = (1 << CTA_ADDRESS_BITS) - 1

ARCHITECTURE_OF: dict[str, Architecture] = {
    "wgmma": 90, "tcgen05": 100, "clusterlaunchcontrol": 100
}  # fmt: skip
"""The one of the two architectures that has the instructions of a family (PTX ISA, "Target ISA
Notes" of each)."""

_NAME = re.compile(r"(?:(?:sm|compute)_?)?(\d+)[af]?", re.IGNORECASE)


def architecture(arch: Any) -> Architecture:
    """90 (Hopper, wgmma) or 100 (Blackwell, tcgen05) from ``90``, ``"sm90"``, ``"sm_100a"`` ...

    ``sm_103`` is taken for ``sm_100``, whose tensor cores, descriptors and PTX it has.

    Raises:
        LayoutError: neither.
    """
    name = _NAME.fullmatch(str(arch).strip())
    if name and name[1] == "90":
        return 90
    if name and name[1] in ("100", "103"):
        return 100
    raise LayoutError("arch", arch, "must be sm_90 (wgmma) or sm_100 (tcgen05)")


def resident_clusters(multiprocessors: int, blocks: int) -> int:
    """How many clusters of so many thread blocks, one an SM, a GPU is taken to have room for.

    The blocks of a cluster run on SMs of one GPC, and not every GPC has a multiple of 4: of an
    H200's 132 SMs clusters of 4 or 8 have 120 (``cuOccupancyMaxActiveClusters``: 66 clusters of 2,
    30 of 4, 15 of 8). A cluster more than there is room for waits until another has ended.
    """
    if blocks <= 2:
        return max(1, multiprocessors // blocks)
    return max(1, multiprocessors // 4 * 10 // 11 * 4 // blocks)
