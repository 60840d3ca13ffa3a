"""How an architecture makes a tile of C.

Conventions: A is (M, K), B is (K, N) in a kernel; an operand is *K-major* if its K dimension is
contiguous in global memory, else *MN-major*. The *left* operand is A, or B transposed if they are
swapped; its tile's rows, and the columns of the right one's, are those of what is computed.
`legality` says which tiles are legal for a product.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

LEAST_K = 4
"""How many products of tiles a part of a tile has at least, or about, if a block has two parts."""
MOST_K = 65536
"""The products of a tile from which on their number times that of the blocks squared would not fit
32 bits."""


@dataclass(frozen=True)
class SimpleTile:
    """The tile of the kernel in which all warps do everything (`device/matmul.py`).

    Args:
        arch: 90 (wgmma) or 100 (tcgen05).
        block_m, block_n, block_k: the tile of one thread block, in elements.
        stages: how many tiles of A and B are in flight.
        num_warps: 4 (one warpgroup) or 8.
        a_swizzle, b_swizzle: 32, 64 or 128 bytes; None for the widest that fits. (The rows of a
            tile without swizzle are not the core matrices that the tensor cores read.)
    """

    consumers: ClassVar[int] = 0
    swap_ab: ClassVar[bool] = False
    cluster_size: ClassVar[int] = 1

    arch: int
    block_m: int = 128
    block_n: int = 128
    block_k: int = 64
    stages: int = 3
    num_warps: int = 4
    a_swizzle: int | None = None
    b_swizzle: int | None = None


@dataclass(frozen=True)
class SpecializedTile:
    """What the tiles of both architectures' warp-specialized, persistent kernels have.

    Args:
        block_m, block_n, block_k: the tile of one thread block, in elements. On sm_90 it has any
            multiple of 8 columns (int8: 16), all of one instruction (`device/wgmma.py`); those that
            are no power of two need Triton 3.9.
        stages: how many tiles of A and B are in flight.
        swap_ab: compute the transpose of C from those of B and A, which are the same bytes. The
            tensor cores take at least 64 rows of the left operand, but as few as 8 columns of the
            right one, so this is for a C with few rows.
        cluster_m: 1, 2 or 4 thread blocks that share the tile of the right operand (TMA multicast).
            On sm_90 each of them copies some boxes of it to all; needs Triton 3.9.
        split_k: into how many parts along K the tiles of an incomplete last wave may be cut; those
            of clusters need Triton 3.9.
        c_parts: in how many pieces a consumer's part of the tile is read one by one; of as many
            columns as a power of two. Each is a piece of C, or two are if the product is gated.
        c_buffers: how many pieces of C are in shared memory at the same time.
    """

    num_warps: ClassVar[int] = 4

    block_m: int = 128
    block_n: int = 128
    block_k: int = 64
    stages: int = 3
    swap_ab: bool = False
    cluster_m: int = 1
    split_k: int = 1
    c_parts: int = 1
    c_buffers: int = 1

    @functools.cached_property
    def rows(self) -> int:
        """Rows of the tile of the left operand: A, or B transposed if they are swapped."""
        return self.block_n if self.swap_ab else self.block_m

    @functools.cached_property
    def columns(self) -> int:
        """Columns of the tile of the right operand: B, or A transposed if they are swapped."""
        return self.block_m if self.swap_ab else self.block_n

    @functools.cached_property
    def c_columns(self) -> int:
        """Columns of the piece of C that a consumer stores at a time."""
        return self.columns // self.c_parts


@dataclass(frozen=True)
class Sm90Tile(SpecializedTile):
    """A tile of Hopper's kernel (`device/warp_specialized.py`).

    Args:
        consumers: 1, 2 or 3 warpgroups that multiply, next to a warp that copies.
        pingpong: two consumers take turns, a whole tile each, where they would share each tile:
            while one stores its tile, the other multiplies. For a short K.
        cluster_n: 1, 2 or 4: how many times the blocks of `cluster_m` are side by side in a cluster
            (of up to 8), to share the tiles of the left operand, too. Needs Triton 3.9.
        cluster_k: where no cluster shares tiles: 1, 2 or 4 thread blocks that divide K among them,
            and add up their sums through distributed shared memory (`device/exchange.py`). For few
            tiles and a long K. Needs Triton 3.9.
        loaded_rows: with one consumer of 64 rows: how many rows of the left operand's tile are
            copied, a multiple of 8, where the problem has no more: rows outside of a matrix come
            slowly. The operand is K-major. 0 for all of them. Needs Triton 3.9.
        last_through_pipeline: the last tile of a block leaves through the buffers of the operands
            (`device/last_tile.py`), in wider pieces than others, whose rows have 16 bytes. Neither
            with swapped operands, nor with a residual, `cluster_k` or other ranks; needs Triton
            3.9.
        a_swizzle, b_swizzle: as in `SimpleTile`.
    """

    arch: ClassVar[int] = 90
    cta_group: ClassVar[int] = 1
    cluster_launch_control: ClassVar[bool] = False

    consumers: int = 2
    pingpong: bool = False
    cluster_n: int = 1
    cluster_k: int = 1
    loaded_rows: int = 0
    last_through_pipeline: bool = False
    a_swizzle: int | None = None
    b_swizzle: int | None = None

    @property
    def sharing_consumers(self) -> int:
        """Among how many consumers the rows of a tile are divided."""
        return 1 if self.pingpong else self.consumers

    @functools.cached_property
    def cluster_size(self) -> int:
        """Thread blocks of a cluster."""
        return self.cluster_m * self.cluster_n * self.cluster_k

    @property
    def shares_tiles(self) -> bool:
        """Whether each block of a cluster copies a part of the tiles that they share."""
        return self.cluster_m * self.cluster_n > 1

    @functools.cached_property
    def unit(self) -> int:
        """Columns of the tensors of sums that one instruction adds to, some side by side: the
        largest power of two that divides them. Those of a power of two are one tensor.
        """
        return self.columns & -self.columns

    @functools.cached_property
    def units(self) -> int:
        """How many tensors of `unit` columns there are."""
        return self.columns // self.unit


@dataclass(frozen=True)
class Sm100Tile(SpecializedTile):
    """A tile of Blackwell's kernel (`device/warp_specialized_sm100.py`), which one warpgroup
    stores, next to warps that copy and multiply.

    Args:
        cta_group: 2: the tensor cores of every two blocks of a cluster multiply together
            (``cta_group::2``): each has its rows of the left operand, and half of the right one's
            columns.
        cluster_launch_control: the blocks ask for tiles; else each makes every so-manieth. Needs
            Triton 3.8.
    """

    arch: ClassVar[int] = 100
    consumers: ClassVar[int] = 1
    sharing_consumers: ClassVar[int] = 1
    pingpong: ClassVar[bool] = False
    cluster_n: ClassVar[int] = 1
    cluster_k: ClassVar[int] = 1
    loaded_rows: ClassVar[int] = 0
    last_through_pipeline: ClassVar[bool] = False
    shares_tiles: ClassVar[bool] = False
    units: ClassVar[int] = 1

    cta_group: int = 1
    cluster_launch_control: bool = False

    @property
    def cluster_size(self) -> int:
        """Thread blocks of a cluster."""
        return self.cluster_m


PersistentTile: TypeAlias = Sm90Tile | Sm100Tile
Tile: TypeAlias = SimpleTile | Sm90Tile | Sm100Tile
