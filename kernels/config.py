"""What a matmul kernel is compiled for: tile, types, major-ness, and the layouts that follow.

Conventions: A is (M, K), B is (K, N) in a kernel; an operand is *K-major* if its K dimension is
contiguous in global memory, else *MN-major*.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import Field, dataclass, fields, replace
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import SHARED_MEMORY_PER_BLOCK
from triton_ext.hardware.instruction_descriptor import legal_n
from triton_ext.hardware.operand import INSTRUCTION_K_BYTES
from triton_ext.hardware.tensor_map import SMEM_ALIGNMENT
from triton_ext.hardware.tensor_memory import TMEM_COLUMNS
from triton_ext.kernels.element_types import (
    BLOCK_SCALED,
    C_BYTES,
    ELEMENT_BYTES,
    ELEMENT_TYPES,
    MIXED,
    MMA_KINDS,
    SCALE_BLOCK,
    BlockScaling,
    Major,
)
from triton_ext.kernels.tiles import Boxes, TileLayouts, scale_layouts, tile_layouts
from triton_ext.layouts.encodings import SharedLinear
from triton_ext.layouts.nvmma_shared import ATOM_ROWS

SCALED_COLUMNS = (128, 256)
"""How wide tiles of block-scaled types may be."""
LEAST_K = 4
"""How many products of tiles a part of a tile has at least, or about, if a block has two parts."""
MOST_K = 65536
"""The products of a tile from which on their number times that of the blocks squared would not fit
32 bits."""
ACTIVATIONS = ("relu", "gelu", "silu")
THREADS = 128
"""Of a warpgroup; each has a quarter of the columns of its rows of an accumulator."""
EARLY_REGISTERS = 220
"""How many registers of a thread may be taken by sums and by what they are scaled with: of two
consumers each thread has 240. With more, ptxas began to spill."""
MOST_SUMS, MOST_SUMS_BESIDE = 208, 160
"""How many registers of a thread sums may take, of the 240 that a thread of two consumers has; and
where there is more to keep: what other blocks or ranks send. With 216, ptxas spills, and
serializes the products."""
PROMOTED_TYPES, PROMOTED_K_BYTES = ("e4m3", "e5m2", *MIXED), 128
"""What may be promoted, and of how many bytes of K, at most, the tensor cores add up alone then."""
PROMOTED_REGISTERS = {1: 192, 2: 192, 3: 112}
"""How many registers of a thread the sums and what is added to them may take, by the number of
consumers; the others are for addresses."""
PROMOTED_RUN = 4
"""Products of tiles in a row, each of whose sums are added while the next one runs."""
INT8_MAX_COLUMNS = 224
"""The widest integer wgmma in Triton 3.7 to 3.9 (``NVGPUToLLVMPass.cpp``); PTX allows 256."""


LINE_BYTES, SECTOR_BYTES, LEAST_BYTES = 128, 32, 16
"""Of the L2 cache, which takes a sector that is not written as a whole twice as slowly, and has a
line at most in a row of a piece of C; and of what TMA copies a multiple."""


@dataclass(frozen=True)
class LastTile:
    """The pieces of a tile of C that leaves through the ring, as a consumer has them.

    Attributes:
        line: elements of a row in shared memory.
        columns: elements of a row that are stored.
        starts: the columns at which they begin: the last one ends where the tile does.
        places: for each consumer that shares a tile, where they lie, counted in such pieces from
            the begin of the ring's buffers on: in the rows of the left operand that it alone reads.
    """

    line: int
    columns: int
    starts: tuple[int, ...]
    places: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class MatmulConfig:
    """Everything that a matmul kernel is specialised for.

    Args:
        arch: 90 (wgmma) or 100 (tcgen05).
        element_type: the type of A and B: "fp16" or "bf16", the accumulator is fp32; with consumers
            also "e4m3" and "e5m2" (fp8; on sm_90 the tensor cores keep 13 fraction bits below the
            largest product when they add), "e4m3_e5m2" and "e5m2_e4m3" (A's and B's; on sm_90 with
            Triton 3.9), "tf32", and "int8" (the accumulator is int32); on sm_100
            those of `BLOCK_SCALED`, whose scales come as torch and cuBLAS store them.
        a_major, b_major: the contiguous dimension of the operand: "K" or "MN".
        block_m, block_n, block_k: the tile of one thread block, in elements. On sm_90, with
            consumers, it has any multiple of 8 columns (int8: 16), all of one instruction
            (`device/wgmma.py`); those that are no power of two need Triton 3.9.
        stages: how many tiles of A and B are in flight.
        num_warps: 4 (one warpgroup) or 8; 4 with consumers.
        a_swizzle, b_swizzle: 32, 64 or 128 bytes; None for the widest that fits. (The rows of a
            tile without swizzle are not the core matrices that the tensor cores read.)
        consumers: 0 for the kernel in which all warps do everything (`device/matmul.py`). On sm_90
            1, 2 or 3 warpgroups that multiply, next to a warp that copies, in thread blocks that
            stay on their SM (`device/warp_specialized.py`). On sm_100 1, the warpgroup that takes
            the sums, next to warps that copy and multiply (`device/warp_specialized_sm100.py`). The
            remaining fields are for those kernels alone.
        swap: compute the transpose of C from those of B and A, which are the same bytes. The
            tensor cores take at least 64 rows of the left operand, but as few as 8 columns of the
            right one, so this is for a C with few rows.
        cluster: 1, 2 or 4 thread blocks that share the tile of the right operand (TMA multicast).
            On sm_90 each of them copies some boxes of it to all; needs Triton 3.9.
        cluster_columns: on sm_90, 1, 2 or 4: how many times these blocks are side by side in a
            cluster (of up to 8), to share the tiles of the left operand, too. Needs Triton 3.9.
        k_blocks: on sm_90, where no cluster shares tiles: 1, 2 or 4 thread blocks that divide K
            among them, and add up their sums through distributed shared memory (`exchange`). For
            few tiles and a long K. Needs Triton 3.9.
        pair: on sm_100, the tensor cores of every two blocks of a cluster multiply together
            (``cta_group::2``): each has its rows of the left operand, and half of the right one's
            columns.
        asked: on sm_100, the blocks ask for tiles (cluster launch control); else each makes every
            so-manieth. Needs Triton 3.8.
        max_splits: into how many parts along K the tiles of an incomplete last wave may be cut;
            those of clusters need Triton 3.9.
        c_parts: how many pieces of a consumer's part of the tile of C are stored one by one; of as
            many columns as a power of two.
        c_buffers: how many pieces are in shared memory at the same time.
        pingpong: two consumers take turns, a whole tile each, where they would share each tile:
            while one stores its tile, the other multiplies. For a short K.
        loaded_rows: on sm_90, with one consumer of 64 rows: how many rows of the left
            operand's tile are copied, a multiple of 8, where the problem has no more: rows outside
            of a matrix come slowly. The operand is K-major. 0 for all of them. Needs Triton 3.9.
        out_type: the type of C: "fp16", "bf16", "fp32", "e4m3", "e5m2" (both saturated) or "int32"
            (from int8 alone); None for that of A and B where it has 16 bits, else fp32, or int32
            for int8.
        bias: add a vector of N elements to each row of C.
        activation: apply "relu", "gelu" (with erf) or "silu" after the bias.
        a_scales, b_scales: multiply with a scale of A ("one" for all, "each" row its own), of B
            ("one", or "each" column its own).
        alpha: multiply with a number.
        residual: add beta (a number) times a matrix of the shape and type of C, before the
            activation. It may be C itself.
        batched: A, B and C have a first dimension that counts the products; one of A and B may be
            shared by all.
        collective: the products of a batch are those of the ranks of a group
            (`kernels/device/peers.py`): "gather" or "scatter".
        last_through_ring: on sm_90, the last tile of a block leaves through the buffers of the
            operands (`kernels/device/last_tile.py`), in wider pieces than others, whose rows have
            16 bytes. Neither with swapped operands, nor with a residual, `k_blocks` or other ranks;
            needs Triton 3.9.
        promoted: on sm_90, of fp8: the tensor cores, which keep 13 fraction bits, add up the
            products of each `block_k` (of 128 bytes at most) alone, and threads add these sums in
            fp32: torch's products without ``use_fast_accum``. Needs Triton 3.9.

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
    consumers: int = 0
    swap: bool = False
    cluster: int = 1
    cluster_columns: int = 1
    max_splits: int = 1
    c_parts: int = 1
    c_buffers: int = 1
    out_type: str | None = None
    bias: bool = False
    activation: str | None = None
    a_scales: str | None = None
    b_scales: str | None = None
    alpha: bool = False
    pingpong: bool = False
    residual: bool = False
    batched: bool = False
    pair: bool = False
    asked: bool = False
    k_blocks: int = 1
    collective: str | None = None
    loaded_rows: int = 0
    promoted: bool = False
    last_through_ring: bool = False

    def __post_init__(self) -> None:
        for name, (kinds, least, rule) in _KINDS.items():
            value = getattr(self, name)
            if type(value) not in kinds or (type(value) is int and value < least):
                raise LayoutError(name, value, rule)
        self._check_values()

    def _check_values(self) -> None:
        """Raise LayoutError unless the values, each of its kind, fit each other."""
        for name, values in self._legal_values().items():
            if getattr(self, name) not in values:
                raise LayoutError(name, getattr(self, name), f"must be one of {list(values)}")
        if self.collective is not None:
            for rule, kept in self._rules_of_ranks.items():
                if not kept:
                    raise LayoutError("collective", self.collective, f"must be None: {rule}")
        wide = "block_m" if self.swap else "block_n"
        if self.consumers == 3 and self.columns > 192:
            raise LayoutError(
                wide,
                self.columns,
                "must be at most 192 with 3 consumers: the accumulator would not fit the registers",
            )
        hopper_int8 = self.arch == 90 and self.element_type == "int8"
        by_triton = not self.multiplies_itself
        if hopper_int8 and by_triton and self.columns > INT8_MAX_COLUMNS:
            raise LayoutError(
                wide,
                self.columns,
                f"must be at most {INT8_MAX_COLUMNS} for int8: Triton's lowering of wgmma aborts"
                " for wider integer instructions",
            )
        for name, tile in (("a_swizzle", self.a_layouts), ("b_swizzle", self.b_layouts)):
            if tile.encoding.swizzle_byte_width == 0:
                raise LayoutError(name, 0, "must be 32 at least, and the tile as wide as that")
        _ = self.c_layouts  # raise if it does not fit
        if self.shared_memory_bytes > SHARED_MEMORY_PER_BLOCK:
            raise LayoutError(
                "stages",
                self.stages,
                f"the tiles need {self.shared_memory_bytes} bytes of shared memory, and a block has"
                f" {SHARED_MEMORY_PER_BLOCK}; use fewer stages or smaller blocks",
            )

    def _legal_values(self) -> dict[str, Sequence[Any]]:
        """The values that each field may have, given the others."""
        boolean = (False, True)
        on_hopper = self.arch == 90
        wide = ELEMENT_BYTES.get(self.element_type, 2)
        scaled = self.scaling is not None
        both = wide == 2 or (wide == 1 and not on_hopper and not scaled)
        majors = ("K", "MN") if both else ("K",)
        swizzles = (None, 32, 64, 128)
        divides_k = on_hopper and self.cluster == self.cluster_columns == 1 and not self.pingpong
        columns_of_blocks = [n for n in (1, 2, 4) if n * self.cluster <= 8]
        exact = (None, "int32") if self.element_type == "int8" else (None,)
        anywhere: dict[str, Sequence[Any]] = {
            "arch": (90, 100),
            "element_type": (
                [name for name in ELEMENT_BYTES if not (on_hopper and name in BLOCK_SCALED)]
                if self.consumers
                else ELEMENT_TYPES
            ),
            "a_major": majors,
            "b_major": majors,
            "a_swizzle": swizzles,
            "b_swizzle": swizzles,
            "consumers": (0, 1, 2, 3) if on_hopper else (0, 1),
        }
        if self.consumers not in anywhere["consumers"][1:]:
            simple = anywhere | {
                "block_m": (64, 128) if on_hopper else (128,),
                "block_n": (16, 32, 64, 128, 256),
                "block_k": (16, 32, 64, 128),
                "stages": range(2, 9),
                "num_warps": (4, 8) if self.block_m >= 128 else (4,),
            }
            rest = (field for field in fields(self) if field.name not in simple)
            return simple | {field.name: (field.default,) for field in rest}
        shapes: Sequence[int] = (8, 16, 32, 64, 128, 256)
        rows: tuple[int, ...] = (64 * self.shares, 128 * self.shares)
        if on_hopper and (self.consumers == 3 or self.columns > self._most_columns):
            rows = rows[:1]
        if scaled:  # whole blocks of scales; and products of 64 rows have none
            rows, shapes = rows[1:], SCALED_COLUMNS
        elif not on_hopper and self.rows in rows:
            kind, blocks = MMA_KINDS.get(self.element_type, "f16"), 2 if self.pair else 1
            legal = legal_n(kind, blocks * self.rows, blocks)
            shapes = [size for size in shapes if size in legal]
        columns = [*shapes]
        if not on_hopper:  # two tiles of sums
            columns = [size for size in columns if 2 * size <= TMEM_COLUMNS]
        if on_hopper and not (self.k_blocks > 1 and self._right_panels > 1):
            step = 16 if self.element_type == "int8" else 8
            columns = [*(n for n in columns if n < step), *range(step, 257, step)]
        least = 16 if C_BYTES.get(self.c_type) == 1 and not self.swap else 8  # TMA: 16 bytes
        if self.pair and self.rows == 64:  # each half of the columns is in other lanes
            least = self.columns
        return anywhere | {
            "block_m": columns if self.swap else rows,
            "block_n": rows if self.swap else columns,
            "block_k": [
                size
                for size in (16, 32, 64, 128, 256)
                if size * wide >= INSTRUCTION_K_BYTES
                and (not scaled or self._scales(size) % SCALE_BLOCK[1] == 0)
            ],
            "stages": range(2, 17),
            "num_warps": (4,),
            "swap": boolean,
            "cluster": (1, 2, 4),
            "cluster_columns": columns_of_blocks if self._may_be_wide else (1,),
            "pair": (False,) if on_hopper or self.cluster == 1 else boolean,
            "max_splits": (1,) if self.asked or self.k_blocks > 1 else range(1, 33),
            "k_blocks": (1, 2, 4) if divides_k else (1,),
            "asked": (False,) if on_hopper else boolean,
            "c_parts": [
                self.columns // piece
                for piece in (256, 128, 64, 32, 16, 8)
                if least * self.k_blocks <= piece and self.columns % piece == 0
            ],
            "c_buffers": range(1, self.c_parts + 1),
            "out_type": (*exact, "fp32", "fp16", "bf16", "e4m3", "e5m2"),
            "bias": boolean,
            "activation": (None, *ACTIVATIONS),
            "a_scales": (None, "one", "each"),
            "b_scales": (None, "one", "each"),
            "alpha": boolean,
            "pingpong": boolean if self.consumers == 2 else (False,),
            "loaded_rows": (0, 8, 16, 24, 32, 40, 48, 56) if self.may_load_less else (0,),
            "promoted": boolean if self.may_be_promoted else (False,),
            "last_through_ring": boolean if self.may_leave_through_ring else (False,),
            "residual": boolean,
            "batched": (True,) if self.collective else (False,) if scaled else boolean,
            "collective": (None, "gather", "scatter"),
        }

    @property
    def words(self) -> str:
        """The configuration in a few words."""
        words = [f"{self.block_m}x{self.block_n}x{self.block_k}", f"{self.stages} stages"]
        words.append(f"{self.consumers} consumers" if self.consumers else "no specialization")
        if self.pingpong:
            words.append("in turn")
        if self.swap:
            words.append("swapped")
        if self.loaded_rows:
            words.append(f"{self.loaded_rows} rows copied")
        if self.cluster_columns > 1:
            words.append(f"clusters of {self.cluster}x{self.cluster_columns}")
        elif self.cluster > 1:
            words.append(f"clusters of {self.cluster}")
        if self.k_blocks > 1:
            words.append(f"K among {self.k_blocks}")
        if self.max_splits > 1:
            words.append("split-K")
        if self.promoted:
            words.append("promoted")
        if self.last_through_ring:
            words.append("last tile through the ring")
        return ", ".join(words)

    @functools.cached_property
    def may_load_less(self) -> bool:
        """Whether a tile of the left operand may have rows that are not copied."""
        alone = self.blocks == 1 and self.rows == 64 and self.consumers == 1
        return self.arch == 90 and self.left_major == "K" and alone and not self.collective

    @property
    def asks_early(self) -> bool:
        """Whether, on sm_90, the bias and scales of a tile wait in registers while it is
        multiplied: as far as a thread has these, besides its sums; and not with other ranks, whose
        scales come with the chunks that the producer waits for.
        """
        along_n, along_m = (0, self.columns) if self.swap else (self.columns, 0)
        values = along_n * (self.bias + (self.b_scales == "each"))
        values += along_m * (self.a_scales == "each")
        alone = self.consumers < 3 and self.collective is None
        return alone and self._sums * (1 + self.partial_sums) + values // 4 <= EARLY_REGISTERS

    @property
    def _sums(self) -> int:
        """The registers of a consumer's thread that its part of a tile takes."""
        return self.rows // max(1, self.shares) * self.columns // THREADS

    @property
    def _most_columns(self) -> int:
        """How many columns a consumer may have with 128 rows: its threads have as many registers of
        sums.
        """
        alone = self.k_blocks == 1 and self.collective is None
        return MOST_SUMS if alone else MOST_SUMS_BESIDE

    @property
    def may_be_promoted(self) -> bool:
        """Whether there is room for the sums of a part of K beside those of all."""
        if self.arch != 90 or self.element_type not in PROMOTED_TYPES:
            return False
        return self._sets_of_sums > 1 and self.block_k * self.element_bytes <= PROMOTED_K_BYTES

    @property
    def _sets_of_sums(self) -> int:
        """For how many parts of a tile, as a consumer has one, there are registers; three suffice:
        the sums of all, those that are added to them, and those that are being made meanwhile.
        """
        return min(3, PROMOTED_REGISTERS.get(self.consumers, 0) // max(1, self._sums))

    @property
    def partial_sums(self) -> int:
        """How many sums a consumer has of one product of tiles alone: those of two products in
        turn, if there is room for them, so that one is added while the other is made.
        """
        return self._sets_of_sums - 1 if self.promoted else 0

    @property
    def _may_be_wide(self) -> bool:
        """Whether a cluster's blocks may lie side by side."""
        return self.arch == 90 and not self.collective

    @property
    def _rules_of_ranks(self) -> dict[str, bool]:
        """What a product must be so that the ranks of a group may make it together, and whether it
        is.
        """
        whole = self.k_blocks == self.max_splits == 1
        floating = self.element_type != "int8" and self.scaling is None
        resident = (self.arch, self.collective, self.cluster) != (100, "scatter", 4)
        return {
            "tiles must be whole: max_splits and k_blocks 1": whole,
            "the operands must not be swapped": not self.swap,
            "there must be no residual": not self.residual,
            "elements must be of 16 bits, fp8 or tf32": floating,
            "tiles must not be asked for, as all ranks make them in one order": not self.asked,
            "clusters must be of 1 or 2, as all of them must run at a time, and how many of 4 do on"
            " sm_100 is not known": resident,
        }

    @functools.cached_property
    def element_bytes(self) -> int:
        """Bytes of an element of A and B."""
        return ELEMENT_BYTES[self.element_type]

    @property
    def scaling(self) -> BlockScaling | None:
        """How A and B are block-scaled, if they are."""
        return BLOCK_SCALED.get(self.element_type)

    def _scales(self, block_k: int) -> int:
        """How many scales so many elements along K have."""
        return block_k * self.scaling.packed // self.scaling.length if self.scaling else 0

    @property
    def scales(self) -> int:
        """How many scales each row of a tile of A has, and each column of B."""
        return self._scales(self.block_k)

    @functools.cached_property
    def c_type(self) -> str:
        """The type of C's elements."""
        if self.out_type is not None:
            return self.out_type
        if self.element_type in ELEMENT_TYPES:
            return self.element_type
        return "int32" if self.element_type == "int8" else "fp32"

    @property
    def bias_type(self) -> str:
        """The type of the bias: C's, but bf16 for a C of fp8."""
        return "bf16" if C_BYTES[self.c_type] == 1 else self.c_type

    @functools.cached_property
    def shares(self) -> int:
        """Among how many consumers the rows of a tile are divided."""
        return 1 if self.pingpong else max(self.consumers, 1)

    @functools.cached_property
    def blocks(self) -> int:
        """Thread blocks of a cluster."""
        return self.cluster * self.cluster_columns * self.k_blocks

    @functools.cached_property
    def rows(self) -> int:
        """Rows of the tile of the left operand: A, or B transposed if they are swapped."""
        return self.block_n if self.swap else self.block_m

    @functools.cached_property
    def columns(self) -> int:
        """Columns of the tile of the right operand: B, or A transposed if they are swapped."""
        return self.block_m if self.swap else self.block_n

    @functools.cached_property
    def unit(self) -> int:
        """Columns of the tensors of sums that one instruction adds to, some side by side: the
        largest power of two that divides them. Those of a power of two are one tensor.
        """
        return self.columns & -self.columns or 1  # no columns are refused by name

    @property
    def left_major(self) -> Major:
        """The contiguous dimension of the left operand."""
        return self.b_major if self.swap else self.a_major

    @property
    def right_major(self) -> Major:
        """The contiguous dimension of the right operand."""
        return self.a_major if self.swap else self.b_major

    @functools.cached_property
    def units(self) -> int:
        """How many tensors of `unit` columns there are."""
        return self.columns // self.unit

    @property
    def multiplies_itself(self) -> bool:
        """Whether the instructions of a product are the kernel's own, not Triton's."""
        uncommon = self.loaded_rows > 0 or self.promoted or self.element_type in MIXED
        return self.units > 1 or uncommon

    @property
    def _right_line(self) -> int:
        """Elements of a row of the right operand's tile of units in shared memory."""
        return ((self.a_swizzle if self.swap else self.b_swizzle) or 128) // self.element_bytes

    @property
    def _right_panels(self) -> int:
        """Into how many tiles along K a tile of units is divided: those of a K-major operand are as
        wide as its swizzle, so that the columns of all units follow one another.
        """
        if self.units == 1 or self.right_major != "K":
            return 1
        return max(1, self.block_k // self._right_line)

    @functools.cached_property
    def right_unit(self) -> tuple[int, int]:
        """Tiles of the right operand that lie side by side, and of which one instruction reads
        all: (elements along K, columns). Those of an MN-major operand are as wide as its swizzle;
        of the last one some columns alone may be copied and read.
        """
        columns = self.unit if self.units == 1 or self.right_major == "K" else self._right_line
        return self.block_k // self._right_panels, columns

    @functools.cached_property
    def loaded_columns(self) -> int:
        """Columns of the right operand's tile in shared memory."""
        if self.units == 1:
            return self.columns
        return -(-self.columns // self.right_unit[1]) * self.right_unit[1]

    @property
    def shares_tiles(self) -> bool:
        """Whether each block of a cluster copies a part of the tiles that they share."""
        return self.arch == 90 and self.cluster * self.cluster_columns > 1

    @property
    def boxes(self) -> tuple[Boxes | None, Boxes | None, Boxes | None]:
        """Those of the left operand, the right one and the right one's edge; None if not copied so."""
        left, right = self.a_layouts, self.b_layouts
        if self.swap:
            left, right = right, left
        return left.boxes, right.boxes, self.edge_layouts.boxes if self.edge_layouts else None

    @functools.cached_property
    def edge(self) -> int:
        """Columns of an MN-major right operand's tile of units that are no whole line, if there are
        others: they are copied by themselves.
        """
        in_lines = self.arch == 90 and self.units > 1 and self.right_major == "MN"
        if not in_lines or self.columns < self._right_line:
            return 0
        return self.columns % self._right_line

    @functools.cached_property
    def c_columns(self) -> int:
        """Columns of the piece of C that a consumer stores at a time."""
        return self.columns // self.c_parts

    @functools.cached_property
    def shared_memory_bytes(self) -> int:
        """What the tiles of A, B and C take, all stages, with 1 KiB for barriers.

        Without consumers, the tile of C reuses the memory of the others when they are not needed.
        """
        operands = self.stages * self.stage_bytes
        if self.consumers:
            c = self.c_buffers * self.buffer_bytes
            exchanged = 4 * self.rows * self.columns if self.k_blocks > 1 else 0
            return operands + c + exchanged + 1024
        return max(operands, self.block_m * self.block_n * C_BYTES[self.c_type]) + 1024

    @property
    def buffer_bytes(self) -> int:
        """What a buffer for a piece of C takes, of all consumers."""
        c_rows = self.rows * self.consumers // self.shares
        return c_rows * self.c_columns * C_BYTES[self.c_type] // self.k_blocks

    @property
    def stage_bytes(self) -> int:
        """What the tiles of A and B, and their scales, take for one product."""
        rows_of_both = self.rows + self.loaded_columns // (1 + self.pair)
        operands = rows_of_both * self.block_k * self.element_bytes
        return operands + (self.rows + self.columns) * self.scales

    @property
    def most_stages(self) -> int:
        """How many stages there is room for, with consumers."""
        left = SHARED_MEMORY_PER_BLOCK - self.shared_memory_bytes
        return self.stages + left // self.stage_bytes

    @classmethod
    def unchecked(cls, **values: Any) -> MatmulConfig:
        """A configuration with these fields that may be illegal: to check one takes longer than all
        else that is asked of a candidate that is not chosen.
        """
        config = object.__new__(cls)
        vars(config).update(DEFAULTS | values)
        return config

    @functools.cached_property
    def is_legal(self) -> bool:
        """Whether an `unchecked` configuration could have been made like any other."""
        try:
            self._check_values()
        except LayoutError:
            return False
        return True

    def _left(self, k_major: bool, swizzle: int | None) -> TileLayouts:
        """The tile of the left operand that one consumer reads: (rows, along K)."""
        rows, depth = self.rows // self.shares, self.block_k
        dim, bits = 1 if k_major else 0, 8 * self.element_bytes
        tile = tile_layouts(
            (self.cluster * self.k_blocks * rows, depth), dim, bits, swizzle, self._row_bases,
            self.batched,
        )  # fmt: skip
        if self.cluster_columns > 1 or self.loaded_rows:
            return self._in_boxes(
                tile, 0, rows, k_major, self.cluster_columns, self.cluster,
                self.shares, self.loaded_rows,
            )  # fmt: skip
        return self._along_k(tile, (rows, depth), 1, dim)

    def _right(self, k_major: bool, swizzle: int | None) -> TileLayouts:
        """The tile of the right operand, or a unit of it: (along K, columns)."""
        shape = self.right_unit
        bits = 8 * self.element_bytes
        bases = self._column_bases
        if self.pair:
            bases[0] = [0, 1]
        dim = 0 if k_major else 1
        all_blocks = (shape[0], self.cluster_columns * shape[1])
        tile = tile_layouts(all_blocks, dim, bits, swizzle, bases, self.batched)
        if self.shares_tiles or self.units > 1:
            return self._in_boxes(tile, 1, self.columns, k_major, self.cluster, 1)
        return self._along_k(tile, shape, 0, dim)

    def _edge(self, swizzle: int | None) -> TileLayouts:
        """The last columns of the right operand's tile, `edge`."""
        tile = self._right(False, swizzle)
        if tile.boxes is None:
            return tile  # not legal
        last = tile.boxes.panels
        return self._in_boxes(
            tile, 3, self.columns, False, self.cluster, 1, panels=(last, last + 1)
        )

    def _in_boxes(
        self, tile: TileLayouts, position: int, size: int, k_major: bool, among: int, apart: int,
        parts: int = 1, copied: int = 0, panels: tuple[int, int] | None = None,
    ) -> TileLayouts:  # fmt: skip
        """A tile that is copied in boxes.

        Args:
            tile: as the tensor cores see it.
            position, among, apart, parts: see `Boxes`.
            size: rows or columns of what one block has of it, or of one of its parts.
            copied: how many rows are copied, if not all.
            panels: which panels of a part are copied, from the first to before the second; by
                default all whole ones, or the only one.
        """
        width = tile.encoding.swizzle_byte_width
        if not width:
            return tile  # not legal
        wide = width // self.element_bytes
        along, across = (self.block_k, size) if k_major else (size, self.block_k)
        first, end = panels or (0, max(1, along // wide))
        pieces, copies = 1, parts * (end - first)
        if copies % among:  # so that all blocks copy as many
            pieces = among // copies if among % copies == 0 else among
        rows = (copied or across) // pieces
        if rows * width % SMEM_ALIGNMENT:
            raise LayoutError(
                "cluster",
                among,
                f"must be less: boxes of {rows} rows of {width} bytes are no multiple of"
                f" {SMEM_ALIGNMENT} bytes",
            )
        step = size * (self.cluster if position == 0 else self.cluster_columns)
        boxes = Boxes(
            position, rows, min(along - first * wide, wide), wide, across, end - first, first,
            -(-along // wide), parts, step, pieces, among, apart, k_major, self.element_bytes,
        )  # fmt: skip
        shape = (*((1,) if self.batched else ()), ATOM_ROWS, wide)
        everywhere = ((0,) * len(shape),) * (self.blocks.bit_length() - 1)
        encoding = replace(tile.tma_encoding, cga_layout=everywhere)
        return replace(tile, tma_shape=shape, tma_encoding=encoding, boxes=boxes)

    def _along_k(
        self, tile: TileLayouts, shape: tuple[int, int], k_dim: int, dim: int
    ) -> TileLayouts:
        """An operand's tile as the TMA unit sees it where the blocks of a cluster divide K: theirs
        are one tile; for the tensor cores, each has its own.

        Args:
            tile: as the tensor cores see it.
            shape: of what one block reads.
            k_dim: which of its dimensions is K.
            dim: the one that is contiguous in memory.
        """
        if self.k_blocks == 1:
            return tile
        all_blocks = [size * (self.k_blocks if i == k_dim else 1) for i, size in enumerate(shape)]
        bases = [[step * (i == k_dim) for i in (0, 1)] for step, _ in self._row_bases]
        width = tile.encoding.swizzle_byte_width
        bits = 8 * self.element_bytes
        seen = tile_layouts(tuple(all_blocks), dim, bits, width, bases, self.batched)
        return replace(tile, tma_shape=seen.tma_shape, tma_encoding=seen.tma_encoding)

    @property
    def _row_bases(self) -> list[list[int]]:
        """How the blocks of a cluster divide the rows of what they multiply; those side by side
        have the same.
        """
        below = self.cluster * self.k_blocks
        return [[(1 << i) % below, 0] for i in range(self.blocks.bit_length() - 1)]

    @property
    def _column_bases(self) -> list[list[int]]:
        """How they divide the columns."""
        below = self.cluster * self.k_blocks
        return [[0, (1 << i) // below] for i in range(self.blocks.bit_length() - 1)]

    @property
    def shared_sums(self) -> int:
        """How many columns of tensor memory the sums of one tile share with those of the next
        (sm_100), where scales leave no room for two.
        """
        scales = self.scales * (self.rows + self.columns) // SCALE_BLOCK[0]
        return max(0, 2 * self.columns + scales - TMEM_COLUMNS)

    @functools.cached_property
    def a_layouts(self) -> TileLayouts:
        """The tile of A; (block_m, block_k) if there is one consumer, no cluster and one unit."""
        operand = self._right if self.swap else self._left
        return operand(self.a_major == "K", self.a_swizzle)

    @functools.cached_property
    def b_layouts(self) -> TileLayouts:
        """The tile of B; (block_k, block_n), or its transpose if they are swapped; one unit."""
        operand = self._left if self.swap else self._right
        return operand(self.b_major == "K", self.b_swizzle)

    @functools.cached_property
    def edge_layouts(self) -> TileLayouts | None:
        """The edge of the right operand's tile, whose boxes have a descriptor of their own."""
        return self._edge(self.a_swizzle if self.swap else self.b_swizzle) if self.edge else None

    @functools.cached_property
    def scale_layouts(self) -> tuple[TileLayouts, TileLayouts] | None:
        """The scales of the tiles of the left and the right operand; all blocks of a cluster have
        those of all columns.
        """
        if self.scaling is None:
            return None
        left = scale_layouts(self.cluster * self.rows, self.scales, self._row_bases)
        shared = [[0, 0] for _ in self._row_bases]
        return left, scale_layouts(self.columns, self.scales, shared)

    @functools.cached_property
    def c_layouts(self) -> TileLayouts:
        """The piece of C that is stored at a time; in memory C is N-major."""
        shape = (
            self.cluster * self.rows // self.shares, self.cluster_columns * self.c_columns
        )  # fmt: skip
        bits = 8 * C_BYTES[self.c_type]
        return tile_layouts(shape, 0 if self.swap else 1, bits, None, self._c_bases, self.batched)

    @property
    def _c_bases(self) -> list[list[int]]:
        """How the blocks of a cluster divide a piece of C: by columns, where they have added it
        up.
        """
        if self.k_blocks == 1:
            both = zip(self._row_bases, self._column_bases, strict=True)
            return [[row[0], column[1]] for row, column in both]
        return [list(reversed(basis)) for basis in self._row_bases]

    @functools.cached_property
    def last_pieces(self) -> LastTile:
        """The pieces in which a block's last tile would leave through the ring."""
        size = C_BYTES[self.c_type]
        line = LINE_BYTES // size
        number = -(-self.columns // line)
        step = max(8, LEAST_BYTES // size)
        columns = -(-self.columns // (number * step)) * step
        stage = self.block_k * self.element_bytes // LINE_BYTES  # pieces of as many rows
        tiles = range(self.stages)
        own = [
            [(tile * self.shares + which) * stage + i for tile in tiles for i in range(stage)]
            for which in range(self.shares)
        ]
        starts = tuple(min(i * columns, self.columns - columns) for i in range(number))
        return LastTile(line, columns, starts, tuple(tuple(each[:number]) for each in own))

    @property
    def half_sectors(self) -> int:
        """Sectors of the L2 cache that are written in part, of a row of a block's last tile of C,
        if the row begins with a sector: where pieces begin or end within one.
        """
        if self.swap:
            return 0  # a row of C has 64 elements
        width, starts = self.c_columns, tuple(range(0, self.columns, self.c_columns))
        if self.last_through_ring:
            width, starts = self.last_pieces.columns, self.last_pieces.starts
        size = C_BYTES[self.c_type]
        edges = [size * edge % SECTOR_BYTES for start in starts for edge in (start, start + width)]
        return sum(edge > 0 for edge in edges)

    @property
    def may_leave_through_ring(self) -> bool:
        """Whether the last tile of a block may leave through the ring: that helps if the rows of
        its other pieces are less than a sector.
        """
        if self.arch != 90 or not self.consumers or self.swap or self.residual:
            return False
        if self.k_blocks > 1 or self.collective or self.c_type not in C_BYTES:
            return False
        if self.c_parts < 1 or self.c_columns * C_BYTES[self.c_type] >= SECTOR_BYTES:
            return False
        pieces = self.last_pieces
        fit = all(len(places) == len(pieces.starts) for places in pieces.places)
        return fit and pieces.columns > self.c_columns

    @property
    def last_layouts(self) -> TileLayouts | None:
        """The piece of C that is stored at a time of a block's last tile, if that is another one:
        its rows are lines; what is copied of them, `last_pieces` says.
        """
        if not self.last_through_ring:
            return None
        size = C_BYTES[self.c_type]
        shape = (
            self.cluster * self.rows // self.shares, self.cluster_columns * self.last_pieces.line
        )  # fmt: skip
        return tile_layouts(shape, 1, 8 * size, LINE_BYTES, self._c_bases, self.batched)

    @functools.cached_property
    def exchanged_layouts(self) -> TileLayouts | None:
        """Where blocks divide K: what one of them has of a piece of C, of 32 bits an element, as
        they divide it when they add it up.
        """
        if self.k_blocks == 1:
            return None
        shape = (self.rows // self.shares, self.c_columns)
        return tile_layouts(shape, 1, 32, None, self._c_bases)

    @property
    def exchange_layout(self) -> SharedLinear | None:
        """What all blocks have of it, one after the other: (blocks, rows, columns)."""
        if self.exchanged_layouts is None:
            return None
        one = self.exchanged_layouts.linear
        bases = [(0, *basis) for basis in one.offset_bases]
        bases += [(1 << i, 0, 0) for i in range(self.k_blocks.bit_length() - 1)]
        split = tuple((0, *basis) for basis in one.block_bases)
        return SharedLinear(tuple(bases), split, one.alignment)


DEFAULTS = {field.name: field.default for field in fields(MatmulConfig)}
"""Of each field; what has none has `dataclasses.MISSING`."""


def _kind(field: Field[Any]) -> tuple[tuple[type, ...], int, str]:
    """The types that a field's value may have, the least integer, and both in words."""
    if field.type == "bool":
        return (bool,), 0, "must be True or False"
    if field.type == "int":
        least = 0 if field.default == 0 else 1
        return (int,), least, f"must be an integer of at least {least}"
    optional = "None" in str(field.type)
    kind, words = (int, "an integer") if "int" in str(field.type) else (str, "a string")
    if not optional:
        return (kind,), 0, f"must be {words}"
    return (kind, type(None)), 0, f"must be {words}, or None"


_KINDS = {field.name: _kind(field) for field in fields(MatmulConfig)}
