"""The kernels that are considered on Hopper, whatever the problem."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from triton_ext.hardware.architecture import SHARED_MEMORY_PER_BLOCK
from triton_ext.kernels.epilogue import NO_EPILOGUE
from triton_ext.kernels.last_tile import may_leave_through_pipeline
from triton_ext.kernels.legality import may_load_less
from triton_ext.kernels.product import ProductSpec
from triton_ext.kernels.shared_memory import (
    buffer_bytes,
    most_stages,
    shared_memory_bytes,
    stage_bytes,
)
from triton_ext.kernels.spec import KernelSpec
from triton_ext.kernels.tile import Sm90Tile

LOADED_ROWS = (8, 16, 32, 48)
"""How many rows of the left operand are copied where it has no more."""
LEAST_STAGES, MOST_STAGES = 3, 16
"""The fewest and the most stages of tiles that do not say how many they have."""
LEAST_PIECE = (8, 16)
"""Columns of a piece of C, whose rows have 16 bytes at least: of 16 bits or more, and of 8."""
LEAST_BUFFERS = 2
"""The fewest buffers for pieces of C, through which a tile leaves that has few stages."""
FEW_STAGES = {False: 4, True: 5}
"""A tile with no more has one more, if fewer buffers for C make room for it; by whether consumers
share it."""
ALL_ROWS = 64
"""As many of the left operand, or more, and all rows of a tile are copied."""


def _tile(rows: int, columns: int, consumers: int, stages: int, **more: Any) -> dict[str, Any]:
    """A tile of `TILES`, as it is and swapped if `swaps` does not say otherwise."""
    sizes = {"rows": rows, "columns": columns, "consumers": consumers, "stages": stages}
    return {"swaps": (False, True), **sizes, **more}


_AS_IS, _SWAPPED = (False,), (True,)
TILES = [
    *(
        _tile(64, columns, 1, stages, block_k=2, swaps=swaps)
        for columns, stages, swaps in (
            (8, 7, (False, True)),
            (16, 6, _SWAPPED),
            (32, 8, (False, True)),
            (64, 6, (False, True)),
        )
    ),
    _tile(64, 8, 1, 7, block_k=2, split_k=16),
    _tile(64, 16, 1, 6, block_k=2, split_k=16, swaps=_SWAPPED),
    _tile(64, 128, 2, 7, pingpong=True, c_parts=2),
    _tile(64, 256, 2, 5, pingpong=True, c_parts=4, swaps=_AS_IS),
    _tile(128, 128, 1, 6),
    _tile(128, 128, 2, 6, pingpong=True, c_parts=2),
    _tile(128, 256, 2, 4, c_parts=2, swaps=_AS_IS),
    _tile(128, 256, 2, 4, c_parts=2, cluster_m=2),
    _tile(256, 128, 2, 4, c_parts=2, swaps=_AS_IS),
    _tile(64, 32, 1, 8, block_k=2, cluster_k=4),
    _tile(64, 64, 1, 6, block_k=2, cluster_k=4, swaps=_AS_IS),
]
"""Tiles worth considering: rows and columns of what is computed, and fields of `Sm90Tile`;
block_k in units of 128 bytes; the better of equals first. Releases before 3.9 have
no others, and of these no clusters, and none that divide K."""
FILE = Path(__file__).with_name("tiles.json")
"""More of them, of many widths, which ``python -m benchmarks.tiles --write`` chooses: for each kind
the columns as they are and swapped. Types of 8 bits have only multiples of 16."""
AS_IS, SWAPPED = "columns", "columns_swapped"


@functools.cache
def _file_tiles() -> tuple[dict[str, Any], ...]:
    """The tiles of `FILE`."""
    kinds = json.loads(FILE.read_text())
    return tuple(
        wide_tile(kind, columns, swap)
        for kind in kinds
        for swap, name in ((False, AS_IS), (True, SWAPPED))
        for columns in kind.get(name, ())
    )


def wide_tile(kind: Mapping[str, Any], columns: int, swap: bool) -> dict[str, Any]:
    """A tile of so many columns, with what `kind` says of all such; C leaves through 64 columns of
    buffers.
    """
    fields = {name: value for name, value in kind.items() if name not in (AS_IS, SWAPPED)}
    piece = min(columns & -columns, 64)
    parts = columns // piece
    return {"swaps": (swap,), "columns": columns, "c_parts": parts,
            "c_buffers": min(parts, 64 // piece), **fields}  # fmt: skip


def is_new() -> bool:
    """Whether Triton can do what needs 3.9: clusters on sm_90, parts of clusters' tiles, tiles of
    units, copying fewer rows.
    """
    from triton_ext.compat import TRITON_VERSION

    return TRITON_VERSION >= (3, 9)


def candidates(
    product: ProductSpec, m: int = ALL_ROWS, n: int = ALL_ROWS
) -> tuple[KernelSpec, ...]:
    """The kernels that are considered for sm_90, the better of equals first.

    Args:
        m, n: the problem's, as `copied_rows` rounds them. Where one is small, rows of a tile that
            there are not are not copied.
    """
    return tuple(spec for spec in unchecked_candidates(product, m, n) if spec.is_legal)


@functools.lru_cache(maxsize=256)
def unchecked_candidates(product: ProductSpec, m: int, n: int) -> tuple[KernelSpec, ...]:
    """The same with some that are illegal, in a fifth of the time."""
    if (m, n) != (ALL_ROWS, ALL_ROWS):
        everywhere = unchecked_candidates(product, ALL_ROWS, ALL_ROWS)
        return tuple(adapted(spec, n if spec.tile.swap_ab else m) for spec in everywhere)
    if is_new():
        tiles = [*TILES, *_file_tiles()]
    else:
        tiles = [tile for tile in TILES if not {"cluster_m", "cluster_k"} & tile.keys()]
    return tuple(dict.fromkeys(made(tiles, product)))


def made(tiles: Iterable[Mapping[str, Any]], product: ProductSpec) -> Iterator[KernelSpec]:
    """The kernels of tiles (see `TILES`), as far as they fit; some may be illegal."""
    step = 16 if product.element_bytes == 1 else 8
    for tile, swap_ab in ((each, swap_ab) for each in tiles for swap_ab in each["swaps"]):
        if "stages" not in tile and tile["columns"] % step:
            continue
        fields: dict[str, Any] = {"block_k": 1, "c_parts": 1, **tile, "swap_ab": swap_ab}
        del fields["swaps"]
        left, right = ("block_n", "block_m") if swap_ab else ("block_m", "block_n")
        fields[left], fields[right] = fields.pop("rows"), fields.pop("columns")
        fields["block_k"] *= 128 // product.element_bytes
        if product.gated:
            fields |= gated_pieces(fields["c_parts"], fields.get("c_buffers", 1))
        found = _fitting(product, fields)
        if found is not None:
            yield KernelSpec.unchecked(product, NO_EPILOGUE, _leaving(product, found))


def gated_pieces(parts: int, buffers: int, cta_group: int = 1) -> dict[str, int]:
    """The pieces of a gated product's tile, and the buffers of C, that come closest to these."""
    parts = max(parts, 2 * cta_group)
    return {"c_parts": parts, "c_buffers": min(buffers, parts // 2)}


def copied_rows(size: int) -> int:
    """The fewest rows of a tile that are copied where an operand has so many."""
    return next((rows for rows in LOADED_ROWS if rows >= size), ALL_ROWS)


def _leaving(product: ProductSpec, tile: Sm90Tile) -> Sm90Tile:
    """A tile that is the last one of a block, and leaves through the pipeline, if that helps."""
    if not (is_new() and may_leave_through_pipeline(product, NO_EPILOGUE, tile)):
        return tile
    return replace(tile, last_through_pipeline=True)


def _fitting(product: ProductSpec, fields: Mapping[str, Any]) -> Sm90Tile | None:
    """The tile with these fields, as many stages as fit, and C in pieces that fit: through fewer
    buffers, where that is what another stage takes and there are few.
    """
    finer = ({**fields, "c_parts": fields["c_parts"] << times} for times in range(3))
    found = next((tile for each in finer if (tile := _deep(product, each)) is not None), None)
    if found is None or "stages" in fields:
        return found
    shared = found.consumers > 1 and not found.pingpong
    if found.stages <= FEW_STAGES[shared]:
        way = _fewer_buffers(product, found)
        return _deep(product, {**fields, **way}) if way else found
    return found


def _fewer_buffers(product: ProductSpec, tile: Sm90Tile) -> dict[str, int] | None:
    """Pieces of C, as large as they may be, of which so many buffers make room for a stage more.
    Finer ones take longer to store: they are worth a fourth stage alone.
    """
    column_bytes = buffer_bytes(product, tile) // tile.c_columns
    left = SHARED_MEMORY_PER_BLOCK - shared_memory_bytes(product, tile)
    lacks = stage_bytes(product, tile) - left
    columns = tile.c_columns * tile.c_buffers - -(-lacks // column_bytes)
    for finer in range(3 if tile.stages == LEAST_STAGES else 1):
        parts, piece = tile.c_parts << finer, tile.c_columns >> finer
        buffers = min(columns // max(piece, 1), tile.c_buffers)
        if buffers >= LEAST_BUFFERS and _may_be_stored(product, tile, parts):
            return {"c_parts": parts, "c_buffers": buffers}
    return None


def _may_be_stored(product: ProductSpec, tile: Sm90Tile, parts: int) -> bool:
    """Whether C's rows may leave in so many parts."""
    return tile.columns % (LEAST_PIECE[product.c_bytes == 1] * parts) == 0


def _deep(product: ProductSpec, fields: Mapping[str, Any]) -> Sm90Tile | None:
    """The tile with these fields and as many stages as fit, if it does."""
    tile = Sm90Tile(**{"stages": LEAST_STAGES, **fields})
    most = most_stages(product, tile)
    if most < tile.stages or not _may_be_stored(product, tile, tile.c_parts):
        return None
    return Sm90Tile(**{"stages": min(most, MOST_STAGES), **fields})


def adapted(spec: KernelSpec, rows: int) -> KernelSpec:
    """A kernel that copies so many rows of the left operand's tile, if it may."""
    product, tile = spec.product, spec.tile
    if not isinstance(tile, Sm90Tile) or rows >= ALL_ROWS or not is_new():
        return spec
    if not may_load_less(product, tile):
        return spec
    return KernelSpec.unchecked(product, spec.epilogue, replace(tile, loaded_rows=rows))
