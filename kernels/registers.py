"""What a consumer's threads have registers for (sm_90): ptxas spills nothing below these limits."""

from __future__ import annotations

from triton_ext.kernels.element_types import MIXED
from triton_ext.kernels.epilogue import EpilogueSpec
from triton_ext.kernels.product import ProductSpec
from triton_ext.kernels.shared_memory import segments
from triton_ext.kernels.tile import Sm90Tile

THREADS = 128
"""Threads of a warpgroup; each has a quarter of the columns of its rows of an accumulator."""
CONSUMER_REGISTERS = {1: 240, 2: 240, 3: 160}
PRODUCER_REGISTERS = 24
"""Registers of a thread by the number of consumers: what is left of the SM's 65,536 when the
producer's warps have 24 each; multiples of 8."""
WITH_GROUPS = {1: (240, 56), 2: (240, 24), 3: (160, 32)}
GATHERING = {1: (240, 56), 2: (232, 40), 3: (152, 56)}
"""The same and those of the producer's warps, which know the groups, and copy rows one by one."""
EARLY_REGISTERS = 220
"""Registers of a thread that may be taken by sums and by what they are scaled with: of two
consumers each thread has 240. With more, ptxas began to spill."""
MOST_SUMS, MOST_SUMS_BESIDE, MOST_SUMS_GATHERING = 208, 160, 152
"""Registers of a thread that sums may take, of the 240 that a thread of two consumers has; where
there is more to keep: what other blocks or ranks send; and of `GATHERING`'s. With 216, ptxas
spills, and serializes the products."""
MOST_COLUMNS_OF_THREE = 192
"""Columns that a tile of three consumers may have."""
FP32_TYPES, FP32_K_BYTES = ("e4m3", "e5m2", *MIXED), 128
"""The types that may be accumulated in fp32 outside of the tensor cores, and of how many bytes of
K, at most, these add up alone then."""
FP32_REGISTERS = {1: 192, 2: 192, 3: 112}
"""Registers of a thread that the sums and what is added to them may take, by the number of
consumers; the others are for addresses."""

FP32_RUN = 4
"""Products of tiles in a row, each of whose sums are added in fp32 while the next one runs."""


def warp_registers(product: ProductSpec, tile: Sm90Tile) -> tuple[int, int]:
    """Registers of a thread of a consumer, and of the warps that copy."""
    if product.gathered:
        return GATHERING[tile.consumers]
    if product.groups is not None:
        return WITH_GROUPS[tile.consumers]
    return CONSUMER_REGISTERS[tile.consumers], PRODUCER_REGISTERS


def sums(tile: Sm90Tile) -> int:
    """The registers of a thread that its part of a tile takes."""
    return tile.rows // max(1, tile.sharing_consumers) * tile.columns // THREADS


def most_columns(product: ProductSpec, tile: Sm90Tile) -> int:
    """How many columns a consumer may have with 128 rows: its threads have as many registers of
    sums.
    """
    if product.gathered:
        return MOST_SUMS_GATHERING
    alone = tile.cluster_k == 1 and product.collective is None
    return MOST_SUMS if alone else MOST_SUMS_BESIDE


SCALE_REGISTERS = 24
"""Registers of a thread that scales may take besides what `FP32_REGISTERS` counts: with more, ptxas
began to spill."""


def _scale_registers(product: ProductSpec, tile: Sm90Tile, together: int) -> int:
    """The registers of a thread that the fp32 scales take of so many products."""
    left, right = product.scale_rows[:: -1 if tile.swap_ab else 1]
    if not left:
        return 0
    rows = tile.rows // max(1, tile.sharing_consumers) // 64
    of_rows = rows * (2 if left == 1 else 1)
    if right == 1:  # each is multiplied with those of the rows: there is nothing to spare
        return together * (of_rows + tile.columns // 4) + SCALE_REGISTERS
    return together * (of_rows + segments(product, tile))


def _sets_of_sums(product: ProductSpec, tile: Sm90Tile) -> int:
    """For how many parts of a tile, as a consumer has one, there are registers; three suffice:
    the sums of all, those that are added to them, and those that are being made meanwhile.
    """
    room, own = FP32_REGISTERS.get(tile.consumers, 0), max(1, sums(tile))
    for sets in (3, 2):
        scales = max(0, _scale_registers(product, tile, sets - 1) - SCALE_REGISTERS)
        if own * sets + scales <= room:
            return sets
    return 1


def may_accumulate_in_fp32(product: ProductSpec, tile: Sm90Tile) -> bool:
    """Whether there is room for the sums of a part of K beside those of all."""
    if product.element_type not in FP32_TYPES:
        return False
    return _sets_of_sums(product, tile) > 1 and tile.block_k * product.element_bytes <= FP32_K_BYTES


def partial_sums(product: ProductSpec, tile: Sm90Tile) -> int:
    """How many sums a consumer has of one product of tiles alone: those of two products in
    turn, if there is room for them, so that one is added while the other is made.
    """
    return _sets_of_sums(product, tile) - 1 if product.fp32_accumulation else 0


def asks_early(product: ProductSpec, epilogue: EpilogueSpec, tile: Sm90Tile) -> bool:
    """Whether the bias and scales of a tile wait in registers while it is multiplied: as far as a
    thread has these, besides its sums; and not with other ranks, whose scales come with the chunks
    that the producer waits for.
    """
    along_n, along_m = (0, tile.columns) if tile.swap_ab else (tile.columns, 0)
    values = along_n * (epilogue.bias + (epilogue.b_scales == "each"))
    values += along_m * ((epilogue.a_scales == "each") + epilogue.factors)
    alone = tile.consumers < 3 and product.collective is None
    kept = sums(tile) * (1 + partial_sums(product, tile)) + values // 4
    return alone and kept <= EARLY_REGISTERS
