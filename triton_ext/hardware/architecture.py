"""The GPUs that code is compiled for: their names, as users and PTX write them, and their sizes.

Which instructions each of them has is said in `triton_ext.ptx.targets`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from triton_ext.errors import LayoutError

Architecture = Literal[90, 100]
"""The two generations whose tensor cores read operands by matrix descriptors."""
WARP_THREADS = 32
CTA_ADDRESS_BITS = 24
"""The bits of a shared address that say where in its CTA it is; those above are the CTA's rank in
its cluster. (CUTLASS clears bit 24 to name the leading CTA of a pair: ``Sm100MmaPeerBitMask``.)"""
CTA_ADDRESS_MASK = (1 << CTA_ADDRESS_BITS) - 1
RESERVED_SHARED_MEMORY = 1024
"""Bytes of a multiprocessor's shared memory that are reserved for each block (CUDA programming
guide, "Shared Memory"; seed 004, "Shared memory")."""

Products = Literal["mma.sync", "wgmma", "tcgen05"]


@dataclass(frozen=True)
class Capability:
    """What the GPUs of one compute capability have.

    Attributes:
        number: the compute capability, times ten.
        gpu: one that has it.
        family: the least capability whose code for ``sm_...f`` runs there, too.
        products: the fastest instructions of its tensor cores.
        multiprocessors: of that GPU.
        shared_memory_per_sm: bytes.
        threads_per_sm: that may be resident.
        cluster: the most blocks of a cluster; 1 where there are none.
        tensor_memory_columns: of 128 lanes of 32 bits; 0 where there is none.
    """

    number: int
    gpu: str
    family: int
    products: Products
    multiprocessors: int
    shared_memory_per_sm: int
    threads_per_sm: int
    cluster: int = 1
    tensor_memory_columns: int = 0

    @property
    def shared_memory_per_block(self) -> int:
        """The most that a thread block may use, in bytes."""
        return self.shared_memory_per_sm - RESERVED_SHARED_MEMORY


_KB = 1024
CAPABILITIES: dict[int, Capability] = {
    each.number: each
    for each in (
        Capability(80, "A100", 80, "mma.sync", 108, 164 * _KB, 2048),
        Capability(86, "RTX 3090", 86, "mma.sync", 82, 100 * _KB, 1536),
        Capability(89, "RTX 4090", 89, "mma.sync", 128, 100 * _KB, 1536),
        Capability(90, "H100", 90, "wgmma", 132, 228 * _KB, 2048, 16),
        Capability(100, "B200", 100, "tcgen05", 148, 228 * _KB, 2048, 16, 512),
        Capability(103, "B300", 100, "tcgen05", 148, 228 * _KB, 2048, 16, 512),
        Capability(107, "Rubin", 100, "tcgen05", 224, 328 * _KB, 2048, 16, 576),
        Capability(110, "Thor", 110, "tcgen05", 20, 228 * _KB, 1536, 16, 512),
        Capability(120, "RTX 5090", 120, "mma.sync", 170, 100 * _KB, 1536, 8),
        Capability(121, "GB10", 120, "mma.sync", 48, 100 * _KB, 1536, 8),
    )
}
"""The compute capabilities that are known (CUDA programming guide, "Technical Specifications per
Compute Capability"; the GPUs' data sheets; families: PTX ISA 9.4, ".target"). Of sm_107, shared
memory is CUTLASS 4.8's ``sm107_smem_capacity_bytes``, and tensor memory of 576 columns the PTX ISA
9.4's, "tcgen05.alloc"."""

SHARED_MEMORY_PER_SM = CAPABILITIES[90].shared_memory_per_sm
"""What a multiprocessor of sm_90 and sm_100 has, in bytes."""
SHARED_MEMORY_PER_BLOCK = CAPABILITIES[90].shared_memory_per_block
"""The most that a thread block may use on sm_90 and sm_100, in bytes."""

_NAME = re.compile(r"(?:(?:sm|compute)_?)?(\d+)([af]?)", re.IGNORECASE)
KNOWN = ", ".join(f"sm_{number}" for number in CAPABILITIES)
"""The targets, as a message names them."""


@dataclass(frozen=True)
class Target:
    """What code is compiled for: ``sm_103``, ``sm_103a`` or ``sm_100f``.

    Attributes:
        number: the compute capability, times ten.
        suffix: "a" for what this architecture alone has, "f" for what its family has, or "".

    Source: PTX ISA 9.4, ".target".
    """

    number: int
    suffix: str = ""

    def __str__(self) -> str:
        return f"sm_{self.number}{self.suffix}"

    @classmethod
    def parse(cls, text: Any) -> Target:
        """The target of a name, such as ``90``, ``"sm90"``, ``"sm_100a"``, ``"compute_103f"``.
        Raises LayoutError: not a name, or a target that is not known."""
        name = _NAME.fullmatch(str(text).strip())
        if name is None or len(name[1]) > 3 or int(name[1]) not in CAPABILITIES:
            raise LayoutError("arch", text, f"must be one of {KNOWN}, or with a suffix a or f")
        return cls(int(name[1]), name[2].lower())

    @property
    def capability(self) -> Capability:
        """What its GPUs have."""
        return CAPABILITIES[self.number]

    def meets(self, needed: str) -> bool:
        """Whether it has what a "Target ISA Notes" of the PTX ISA asks for.

        Args:
            needed: "90" for sm_90 and all that come later, "90a" for that target alone, "100f" for
                its family from there on, be it with suffix a or f.
        """
        least = Target(int(needed.rstrip("af")), needed.lstrip("0123456789"))
        if least.suffix == "a":
            return self == least
        if self.number < least.number:
            return False
        return not least.suffix or (
            self.suffix != "" and self.capability.family == CAPABILITIES[least.number].family
        )


def compiled_for(number: int) -> Target:
    """The target that compilers choose for a capability: with all that it has (Triton 3.9,
    ``sm_arch_from_capability``)."""
    return Target(number, "a" if number >= 90 else "")


def target_number(arch: Any) -> int:
    """The compute capability, times ten, that a user names: 100 for ``"sm_100a"``. Raises
    LayoutError: it is not known."""
    return Target.parse(arch).number


def architecture(arch: Any) -> Architecture:
    """The generation of a target's matrix descriptors: 90 (wgmma) or 100 (tcgen05).

    100 is that of sm_103, sm_107 and sm_110, too: they have its descriptors and instructions.
    Raises LayoutError: the target is not known, or its tensor cores read registers alone.
    """
    rule = "must be sm_90 (wgmma) or sm_100 (tcgen05), or sm_103, sm_107 or sm_110 as sm_100"
    try:
        has = Target.parse(arch).capability
    except LayoutError:
        raise LayoutError("arch", arch, rule) from None
    if has.products == "mma.sync":
        raise LayoutError("arch", arch, f"{rule}: the tensor cores of an {has.gpu} read registers")
    return 90 if has.products == "wgmma" else 100


def generation(number: int) -> Architecture:
    """Whose layouts, matrix moves and descriptors a compiler chooses for a capability.

    100 from there on, else 90: Ampere and Ada have a part of Hopper's.
    """
    return 100 if number >= 100 else 90


def resident_clusters(multiprocessors: int, blocks: int) -> int:
    """How many clusters of so many thread blocks, one an SM, a GPU is taken to have room for.

    The blocks of a cluster run on SMs of one GPC, and not every GPC has a multiple of 4: of an
    H200's 132 SMs clusters of 4 or 8 have 120 (``cuOccupancyMaxActiveClusters``: 66 clusters of 2,
    30 of 4, 15 of 8). A cluster more than there is room for waits until another has ended.
    """
    if blocks <= 2:
        return max(1, multiprocessors // blocks)
    return max(1, multiprocessors // 4 * 10 // 11 * 4 // blocks)
