"""What a matmul kernel is compiled for: tile, types, major-ness, and the layouts that follow.

Conventions: A is (M, K), B is (K, N) in a kernel; an operand is *K-major* if its K dimension is
contiguous in global memory, else *MN-major*. A TMA descriptor's last dimension is contiguous, so
the TMA view of a tile has its dimensions reversed where the first one is contiguous; in shared
memory both views are the same bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from triton_ext.encodings import NVMMAShared, SharedLinear
from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import SHARED_MEMORY_PER_BLOCK
from triton_ext.nvmma_shared import nvmma_shared_to_linear_layout

Major = Literal["K", "MN"]
ELEMENT_TYPES = ("fp16", "bf16")


@dataclass(frozen=True)
class TileLayouts:
    """How one tile lies in shared memory, for those who read or write it.

    Attributes:
        encoding: the NVMMA encoding of the tile as the kernel sees it.
        linear: the same as bases, from this project's conversion: what the kernel allocates.
        tma_shape: the tile as the TMA unit sees it, the contiguous dimension last.
        tma_encoding: the NVMMA encoding of that view.
    """

    encoding: NVMMAShared
    linear: SharedLinear
    tma_shape: tuple[int, ...]
    tma_encoding: NVMMAShared


def tile_layouts(
    shape: Sequence[int], contiguous_dim: int, element_bitwidth: int, swizzle: int | None = None
) -> TileLayouts:
    """The layouts of a 2-D tile.

    Args:
        shape: of the tile, as the kernel sees it.
        contiguous_dim: 0 or 1, which of its dimensions is contiguous in global memory.
        swizzle: the swizzle width in bytes; None for the widest that fits.

    Raises:
        LayoutError: the swizzle is unknown, or does not fit.
    """
    transposed = contiguous_dim == 0
    tma_shape = tuple(reversed(shape)) if transposed else tuple(shape)
    if swizzle is None:
        tma_encoding = NVMMAShared.default_for(tma_shape, element_bitwidth)
    else:
        tma_encoding = NVMMAShared(swizzle, element_bitwidth)
    encoding = NVMMAShared(tma_encoding.swizzle_byte_width, element_bitwidth, transposed=transposed)
    linear = SharedLinear.from_linear_layout(
        nvmma_shared_to_linear_layout(shape, encoding), alignment=max(encoding.alignment, 128)
    )
    return TileLayouts(encoding, linear, tma_shape, tma_encoding)


@dataclass(frozen=True)
class MatmulConfig:
    """Everything that a matmul kernel is specialised for.

    Args:
        arch: 90 (wgmma) or 100 (tcgen05).
        element_type: of A, B and C: "fp16" or "bf16"; the accumulator is fp32.
        a_major, b_major: the contiguous dimension of the operand: "K" or "MN".
        block_m, block_n, block_k: the tile of one thread block, in elements.
        stages: how many tiles of A and B are in flight.
        num_warps: 4 (one warpgroup) or 8.
        a_swizzle, b_swizzle: 32, 64 or 128 bytes; None for the widest that fits. (The rows of a
            tile without swizzle are not the core matrices that the tensor cores read.)

    Raises:
        LayoutError: an illegal value, a swizzle that does not fit the block, or more shared
            memory than a block has.
    """

    arch: int
    element_type: str
    a_major: Major = "K"
    b_major: Major = "K"
    block_m: int = 128
    block_n: int = 128
    block_k: int = 64
    stages: int = 3
    num_warps: int = 4
    a_swizzle: int | None = None
    b_swizzle: int | None = None

    def __post_init__(self) -> None:
        legal: dict[str, Sequence[Any]] = {
            "arch": (90, 100),
            "element_type": ELEMENT_TYPES,
            "a_major": ("K", "MN"),
            "b_major": ("K", "MN"),
            "block_m": (64, 128) if self.arch == 90 else (128,),
            "block_n": (16, 32, 64, 128, 256),
            "block_k": (16, 32, 64, 128),
            "stages": range(2, 9),
            "num_warps": (4, 8) if self.block_m >= 128 else (4,),
            "a_swizzle": (None, 32, 64, 128),
            "b_swizzle": (None, 32, 64, 128),
        }
        for name, values in legal.items():
            if getattr(self, name) not in values:
                raise LayoutError(name, getattr(self, name), f"must be one of {list(values)}")
        _ = self.a_layouts, self.b_layouts  # raise if a swizzle does not fit
        if self.shared_memory_bytes > SHARED_MEMORY_PER_BLOCK:
            raise LayoutError(
                "stages",
                self.stages,
                f"the tiles need {self.shared_memory_bytes} bytes of shared memory, and a block has"
                f" {SHARED_MEMORY_PER_BLOCK}; use fewer stages or smaller blocks",
            )

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of A, B and C."""
        return 2

    @property
    def shared_memory_bytes(self) -> int:
        """What the tiles of A and B take, all stages, with 1 KiB for barriers.

        The tile of C takes their place when they are no longer needed.
        """
        operands = (self.block_m + self.block_n) * self.block_k * self.stages
        return max(operands, self.block_m * self.block_n) * self.element_bytes + 1024

    @functools.cached_property
    def a_layouts(self) -> TileLayouts:
        """Of the (block_m, block_k) tile of A."""
        return tile_layouts(
            (self.block_m, self.block_k),
            1 if self.a_major == "K" else 0,
            8 * self.element_bytes,
            self.a_swizzle,
        )

    @functools.cached_property
    def b_layouts(self) -> TileLayouts:
        """Of the (block_k, block_n) tile of B."""
        return tile_layouts(
            (self.block_k, self.block_n),
            0 if self.b_major == "K" else 1,
            8 * self.element_bytes,
            self.b_swizzle,
        )

    @functools.cached_property
    def c_layouts(self) -> TileLayouts:
        """Of the (block_m, block_n) tile of C, which is N-major."""
        return tile_layouts((self.block_m, self.block_n), 1, 8 * self.element_bytes)


@functools.lru_cache(maxsize=4096)
def choose_config(
    arch: int, element_type: str, a_major: Major, b_major: Major, m: int, n: int, k: int
) -> MatmulConfig:
    """The tile for a problem: the largest that is not mostly padding.

    A tile of 128x256 keeps the tensor cores busiest; narrower ones waste less on a narrow C.
    """
    block_n = 256 if n > 128 and m > 64 else 128 if n > 64 else 64
    block_m = 64 if arch == 90 and m <= 64 else 128
    return MatmulConfig(
        arch,
        element_type,
        a_major,
        b_major,
        block_m=block_m,
        block_n=block_n,
        block_k=64,
        stages=4,
        num_warps=8 if block_m == 128 and block_n == 256 else 4,
    )
