"""The configurations that are considered on Hopper, whatever the problem."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from triton_ext.hardware.architecture import SHARED_MEMORY_PER_BLOCK
from triton_ext.kernels.config import DEFAULTS, MatmulConfig
from triton_ext.kernels.element_types import C_BYTES, ELEMENT_BYTES, Major

LOADED_ROWS = (8, 16, 32, 48)
"""How many rows of the left operand are copied where it has no more."""
LEAST_STAGES, MOST_STAGES = 3, 16
"""Of tiles that do not say how many they have."""
LEAST_PIECE = (8, 16)
"""Columns of a piece of C, whose rows have 16 bytes at least: of 16 bits or more, and of 8."""
LEAST_BUFFERS = 2
"""Of pieces of C, through which a tile leaves that has few stages."""
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
    _tile(64, 8, 1, 7, block_k=2, max_splits=16),
    _tile(64, 16, 1, 6, block_k=2, max_splits=16, swaps=_SWAPPED),
    _tile(64, 128, 2, 7, pingpong=True, c_parts=2),
    _tile(64, 256, 2, 5, pingpong=True, c_parts=4, swaps=_AS_IS),
    _tile(128, 128, 1, 6),
    _tile(128, 128, 2, 6, pingpong=True, c_parts=2),
    _tile(128, 256, 2, 4, c_parts=2, swaps=_AS_IS),
    _tile(128, 256, 2, 4, c_parts=2, cluster=2),
    _tile(256, 128, 2, 4, c_parts=2, swaps=_AS_IS),
    _tile(64, 32, 1, 8, block_k=2, k_blocks=4),
    _tile(64, 64, 1, 6, block_k=2, k_blocks=4, swaps=_AS_IS),
]
"""Tiles worth considering: rows and columns of what is computed, and fields of `MatmulConfig`;
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
    element_type: str, a_major: Major, b_major: Major, out_type: str | None = None,
    m: int = ALL_ROWS, n: int = ALL_ROWS,
) -> tuple[MatmulConfig, ...]:  # fmt: skip
    """The configurations that are considered for sm_90, the better of equals first.

    Args:
        m, n: the problem's, as `copied_rows` rounds them. Where one is small, rows of a tile that
            there are not are not copied.
    """
    every = unchecked_candidates(element_type, a_major, b_major, out_type, m, n)
    return tuple(config for config in every if config.is_legal)


@functools.lru_cache(maxsize=256)
def unchecked_candidates(
    element_type: str, a_major: Major, b_major: Major, out_type: str | None, m: int, n: int
) -> tuple[MatmulConfig, ...]:
    """The same with some that are illegal, in a fifth of the time."""
    if (m, n) != (ALL_ROWS, ALL_ROWS):
        everywhere = (element_type, a_major, b_major, out_type, ALL_ROWS, ALL_ROWS)
        return tuple(
            adapted(config, n if config.swap else m) for config in unchecked_candidates(*everywhere)
        )
    tiles = (
        [*TILES, *_file_tiles()]
        if is_new()
        else [tile for tile in TILES if not {"cluster", "k_blocks"} & tile.keys()]
    )
    return tuple(dict.fromkeys(made(tiles, element_type, a_major, b_major, out_type)))


def made(
    tiles: Iterable[Mapping[str, Any]], element_type: str, a_major: Major, b_major: Major,
    out_type: str | None,
) -> Iterator[MatmulConfig]:  # fmt: skip
    """The configurations of tiles (see `TILES`), as far as they fit; some may be illegal."""
    types = {"element_type": element_type, "a_major": a_major, "b_major": b_major,
             "out_type": out_type}  # fmt: skip
    step = 16 if ELEMENT_BYTES[element_type] == 1 else 8
    for tile, swap in ((each, swap) for each in tiles for swap in each["swaps"]):
        fields: dict[str, Any] = {"block_k": 1, "c_parts": 1, **tile, **types, "swap": swap}
        del fields["swaps"]
        if "stages" not in tile and tile["columns"] % step:
            continue
        left, right = ("block_n", "block_m") if swap else ("block_m", "block_n")
        fields[left], fields[right] = fields.pop("rows"), fields.pop("columns")
        fields["block_k"] *= 128 // ELEMENT_BYTES[element_type]
        config = _fitting(fields)
        if config is not None:
            yield _leaving(config)


def copied_rows(size: int) -> int:
    """The fewest rows of a tile that are copied where an operand has so many."""
    return next((rows for rows in LOADED_ROWS if rows >= size), ALL_ROWS)


def _leaving(config: MatmulConfig) -> MatmulConfig:
    """A configuration whose last tile leaves through the ring, if that helps."""
    if not (is_new() and config.may_leave_through_ring):
        return config
    values = {name: getattr(config, name) for name in DEFAULTS}
    return MatmulConfig.unchecked(**{**values, "last_through_ring": True})


def _fitting(fields: Mapping[str, Any]) -> MatmulConfig | None:
    """The configuration with these fields, as many stages as fit, and C in pieces that fit: through
    fewer buffers, where that is what another stage takes and there are few.
    """
    deep = (_deep({**fields, "c_parts": fields["c_parts"] << finer}) for finer in range(3))
    found = next((config for config in deep if config is not None), None)
    if found is None or "stages" in fields:
        return found
    shared = found.consumers > 1 and not found.pingpong
    if found.stages <= FEW_STAGES[shared]:
        way = _fewer_buffers(found)
        return _deep({**fields, **way}) if way else found
    return found


def _fewer_buffers(config: MatmulConfig) -> dict[str, int] | None:
    """Pieces of C, as large as they may be, of which so many buffers make room for a stage more.
    Finer ones take longer to store: they are worth a fourth stage alone.
    """
    column_bytes = config.buffer_bytes // config.c_columns
    lacks = config.stage_bytes - (SHARED_MEMORY_PER_BLOCK - config.shared_memory_bytes)
    columns = config.c_columns * config.c_buffers - -(-lacks // column_bytes)
    for finer in range(3 if config.stages == LEAST_STAGES else 1):
        parts, piece = config.c_parts << finer, config.c_columns >> finer
        buffers = min(columns // max(piece, 1), config.c_buffers)
        if buffers >= LEAST_BUFFERS and _may_be_stored(config, parts):
            return {"c_parts": parts, "c_buffers": buffers}
    return None


def _may_be_stored(config: MatmulConfig, parts: int) -> bool:
    """Whether C's rows may leave in so many parts."""
    return config.columns % (LEAST_PIECE[C_BYTES[config.c_type] == 1] * parts) == 0


def _deep(fields: Mapping[str, Any]) -> MatmulConfig | None:
    """The configuration with these fields and as many stages as fit, if it does."""
    config = MatmulConfig.unchecked(**{"arch": 90, "stages": LEAST_STAGES, **fields})
    most = config.most_stages
    if most < config.stages:
        return None
    if not _may_be_stored(config, config.c_parts):
        return None
    return MatmulConfig.unchecked(**{"arch": 90, "stages": min(most, MOST_STAGES), **fields})


def adapted(config: MatmulConfig, rows: int) -> MatmulConfig:
    """A configuration of which so many rows of the left operand's tile are copied, if it may be."""
    if not (is_new() and rows < ALL_ROWS and config.may_load_less):
        return config
    values = {name: getattr(config, name) for name in DEFAULTS}
    return MatmulConfig.unchecked(**{**values, "loaded_rows": rows})
