"""Which kernel to use for a problem on Blackwell: the one with the shortest predicted time.

No Blackwell has measured this. The rates are those that NVIDIA documents for a B200; what nobody
documents is taken over from Hopper, and says so. It is meant to be right about what is large: waves
of tiles, how often an operand is loaded, how much of a tile is padding. An SM's limits are

- its tensor cores, which read A and B from shared memory at 128 bytes a cycle while they multiply:
  a narrow tile takes as long as one of 64 columns, since its A has to be read all the same;
- what it loads from the L2 cache, less what a pair or a cluster shares;

and those of the GPU the memory, which A, B and C cross once, and the waves: tiles come in groups of
as many as there are SMs. Of these, the longest counts. The epilogue of a tile runs under the
products of the next; of the last tile it adds to the time.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.kernels.choice.candidates import gated_pieces, is_new
from triton_ext.kernels.choice.problem import Problem
from triton_ext.kernels.epilogue import NO_EPILOGUE
from triton_ext.kernels.product import ProductSpec
from triton_ext.kernels.spec import KernelSpec
from triton_ext.kernels.tensor_memory import shared_sums
from triton_ext.kernels.tile import Sm100Tile

MMA_ROWS = 128
"""A product of 64 rows takes as long as one of 128 (PTX ISA, "Data path layout": it uses half of
the lanes)."""
SHARED_BYTES = 128
"""Bytes of shared memory that an SM reads in a cycle (CUDA programming guide: 32 banks)."""


@dataclass(frozen=True)
class Constants:
    """What nobody has measured; ``python -m benchmarks.fit`` fits it to a survey.

    Attributes:
        clock: cycles a second under load: what the rates of NVIDIA's data sheet of the HGX B200
            (2.25e15 dense operations of 16 bits a second for 148 SMs) come to at `mma_flops`.
        mma_flops: operations of an SM's tensor cores in a cycle, with 16-bit operands; with 8-bit
            ones twice that, with tf32 half, with 4-bit ones, two of which count as one, four times
            as many (the same data sheet: 4.5e15, 1.1e15, 9e15).
        memory_bytes: from memory in a second (the same data sheet).
        load_bytes: that an SM loads from the L2 cache in a cycle. An assumption: that of the A100
            (its white paper), which Hopper's SMs were measured not to exceed.
        launch: seconds from the kernel before to the first product, and from the last one to the
            end: as on Hopper.
        cluster: what a launch takes longer if its blocks form clusters: as on Hopper.
        tile: from the last product of a tile to the first of the next: an assumption. (The next
            tile's operands are there; its tensor memory has been read.)
        store_bytes: that an SM stores in a second: as on Hopper.
        part_bytes: of a part of a tile that an SM writes in a second, and reads back: as on Hopper.
        part: what it takes to tell that a part is there, and to find out: as on Hopper.
    """

    clock: float = 1.85e9
    mma_flops: float = 8192
    memory_bytes: float = 7.7e12
    load_bytes: float = 64
    launch: float = 2e-6
    cluster: float = 1.3e-6
    tile: float = 0.2e-6
    store_bytes: float = 524e9
    part_bytes: float = 24.6e9
    part: float = 1.15e-6


FITTED = Constants()
"""Not fitted yet: documented, or taken over from Hopper."""


def predicted_seconds(spec: KernelSpec, problem: Problem, constants: Constants = FITTED) -> float:
    """The seconds that a kernel takes for a problem."""
    product, tile = spec.product, spec.tile
    assert isinstance(tile, Sm100Tile)
    m, n, k, multiprocessors, batch, _ = problem
    rows, columns = (n, m) if tile.swap_ab else (m, n)
    tiles = batch * -(-rows // (tile.cluster_m * tile.rows)) * -(-columns // tile.columns)
    resident = multiprocessors // tile.cluster_m
    k_tiles = -(-k // tile.block_k)
    cycles = _multiply_cycles(product, tile, constants.mma_flops)
    loading = _load_bytes(product, tile) / constants.load_bytes
    one = k_tiles * max(cycles, loading) / constants.clock
    waves, left = divmod(tiles, resident)
    stored: float = tile.rows * tile.columns * product.c_bytes
    stored /= constants.store_bytes
    # Pieces that are stored first: see kernels/device/epilogue.py.
    early = 2 * -(-shared_sums(product, tile) // tile.c_columns)
    between = constants.tile + stored * min(1.0, early / tile.c_parts)
    seconds = waves * one + (waves + bool(left) - 1) * between
    if left:
        splits = max(1, min(resident // left, tile.split_k, k_tiles // 4))
        seconds += one / splits
        if splits > 1:
            part_bytes = 2 * 4 * tile.rows * tile.columns
            seconds += constants.part + part_bytes / constants.part_bytes
    operands = product.element_bytes * (m * k + k * n)
    moved = batch * (operands + product.c_bytes * m * n)
    return (
        constants.launch
        + constants.cluster * (tile.cluster_m > 1)
        + max(seconds, moved / constants.memory_bytes)
        + stored
    )


def _multiply_cycles(product: ProductSpec, tile: Sm100Tile, mma_flops: float) -> float:
    """Cycles of an SM's tensor cores for the product of a tile of A and one of B."""
    flops = 2 * MMA_ROWS * tile.columns * tile.block_k
    rate = mma_flops * 2 / product.element_bytes
    read = (tile.rows + tile.columns / tile.cta_group) * tile.block_k
    return max(flops / rate, read * product.element_bytes / SHARED_BYTES)


def _load_bytes(product: ProductSpec, tile: Sm100Tile) -> float:
    """Bytes that a block loads for that; the blocks of a cluster share the right tile."""
    length = tile.rows + tile.columns / tile.cluster_m
    return (tile.block_k * product.element_bytes + product.scales(tile.block_k)) * length


def _tile(rows: int, columns: int, stages: int, **more: Any) -> dict[str, Any]:
    """A tile of `_TILES`."""
    return {"rows": rows, "columns": columns, "stages": stages, **more}


_TILES = [
    *(
        _tile(128, columns, stages, cluster_m=2, cta_group=2, **parts)
        for columns, stages in ((256, 6), (128, 8))
        for parts in ({}, {"split_k": 8})
    ),
    *(
        _tile(128, columns, stages, split_k=splits)
        for columns, stages in ((256, 4), (128, 6), (64, 8))
        for splits in (1, 8)
    ),
    *(
        _tile(128, columns, 5, block_k=2, split_k=splits)
        for columns in (32, 16)
        for splits in (1, 8)
    ),
]
"""Tiles worth considering, as they are and swapped: rows and columns of what is computed, and
fields of `Sm100Tile`; block_k in units of 128 bytes; the better of equals first."""
C_ROW_BYTES = 128
"""Bytes of a row of the pieces in which a tile is stored: the widest swizzle."""


@functools.lru_cache(maxsize=64)
def every_candidate(product: ProductSpec) -> tuple[KernelSpec, ...]:
    """The kernels that are considered for sm_100, the better of equals first."""
    found = []
    for swap_ab, tile in itertools.product((False, True), _TILES):
        if {"cluster_m", "split_k"} <= tile.keys() and not is_new():
            continue
        pieces = max(1, tile["columns"] * product.c_bytes // C_ROW_BYTES)
        fields: dict[str, Any] = {"block_k": 1, **tile, "swap_ab": swap_ab}
        left, right = ("block_n", "block_m") if swap_ab else ("block_m", "block_n")
        fields[left], fields[right] = fields.pop("rows"), fields.pop("columns")
        fields["block_k"] *= 128 // product.element_bytes
        most = fields.pop("stages")
        # As many stages as there is room for, and be it with narrower pieces of C.
        ways = itertools.product(range(most, 1, -1), ((pieces, min(pieces, 2)), (2 * pieces, 3)))
        for stages, (parts, buffers) in ways:
            leaving = {"c_parts": parts, "c_buffers": buffers}
            if product.gated:
                leaving = gated_pieces(parts, buffers, tile.get("cta_group", 1))
            made = Sm100Tile(**fields, stages=stages, **leaving)
            try:
                found.append(KernelSpec(product, NO_EPILOGUE, made))
                break
            except LayoutError as error:
                if parts == pieces and error.argument != "stages":
                    break  # a swizzle does not fit a narrow MN-major tile of 8 bits
    return tuple(found)


def candidates(product: ProductSpec, problem: Problem) -> tuple[KernelSpec, ...]:
    """The kernels that are considered for a problem: the same for each."""
    return every_candidate(product)


def table_of(specs: Iterable[KernelSpec], product: ProductSpec) -> tuple[KernelSpec, ...]:
    """Kernels for a product, as they are."""
    return tuple(specs)


def limits(specs: Sequence[KernelSpec], problem: Problem) -> list[float]:
    """The seconds that each kernel takes by its limits: all that the model knows."""
    return [predicted_seconds(spec, problem) for spec in specs]


seconds = limits


def compare(
    specs: Sequence[KernelSpec], problem: Problem, every: bool = False
) -> Iterator[KernelSpec]:
    """The kernels, those with the shortest predicted time first; of equals one that is not swapped.
    `every`: all suit."""
    return iter(sorted(specs, key=lambda spec: predicted_seconds(spec, problem)))
