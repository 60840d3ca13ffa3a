"""Where the scale factors of a block-scaled tcgen05.mma lie in TMEM.

Each row of A, or column of B, has 1, 2 or 4 factors for the K of one instruction, a byte each, in
one 32-bit column of the row's lane. 32 rows share a column: row r is in lane r % 32, column
r // 32. Every group of 32 lanes holds a copy, for its own part of the data path. Over a pair of
CTAs with M = 128 (data path layout B) lanes 0-63 work on the first half of N and lanes 64-127 on
the second, and hold the factors of B for that half alone.

Sources: PTX ISA, "Block Scaling", "Scale Factor A ID", "Scale Factor B ID" and their figures;
CUTLASS ``cute/atom/mma_traits_sm100_frag.hpp``, ``tmem_sf_frg``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from triton_ext.errors import LayoutError
from triton_ext.hardware.tensor_memory import TMEM_LANES, WARP_LANES, stack_instructions
from triton_ext.layouts.arguments import one_of
from triton_ext.layouts.cluster import checked_shape
from triton_ext.layouts.gf2 import powers_below
from triton_ext.layouts.linear_layout import LinearLayout

_VECTORS: dict[str, dict[str, int]] = {
    "mxf8f6f4": {"": 1, "scale_vec::1X": 1, "block32": 1},
    "mxf4": {"": 2, "scale_vec::2X": 2, "block32": 2},
    "mxf4nvf4": {"scale_vec::2X": 2, "block32": 2, "scale_vec::4X": 4, "block16": 4},
}
"""kind -> ``.scale_vectorsize`` -> factors for the K of one instruction (PTX ISA, "Valid
combinations of scale_vectorsize with types and MMA-Kind"); "" where it may be left out."""


@dataclass(frozen=True)
class ScaleFactors:
    """The scale factors of one operand of one instruction.

    Args:
        count: factors of each row: 1, 2 or 4.
        first_byte: scale factor ID: the byte of the 32-bit column that holds the first one.

    Raises:
        LayoutError: a byte at which so many factors cannot start.
    """

    count: int
    first_byte: int

    def __post_init__(self) -> None:
        one_of("count", self.count, (1, 2, 4))
        legal = range(0, 4, self.count)
        if self.first_byte not in legal:
            raise LayoutError(
                "scale factor id",
                self.first_byte,
                f"must be {' or '.join(map(str, legal))} with {self.count} factors of a row",
            )

    @staticmethod
    def columns(rows: int) -> int:
        """32-bit columns of TMEM for so many rows of A, or columns of B."""
        return -(-rows // WARP_LANES)

    @staticmethod
    def cell(row: int) -> tuple[int, int]:
        """(lane, column) of a row's factors in the first group of 32 lanes."""
        return row % WARP_LANES, row // WARP_LANES


SCALE_BITS = 8
"""The width of a scale factor: ue8m0 or ue4m3 (PTX ISA, "Block Scaling")."""
GROUPS = TMEM_LANES // WARP_LANES
"""Groups of lanes that each hold the factors."""


def scale_factor_layout(shape: Sequence[int]) -> LinearLayout:
    """Where a matrix of scale factors lies in TMEM.

    Args:
        shape: rows of A (or columns of B), at least 32, and factors of each, at least 4; powers
            of two.

    Returns:
        ``lane``, ``slot`` (byte), ``column`` -> ``dim0``, ``dim1``. Lane 32 and 64 are copies. The
        rows follow each other along the columns, then the next 4 factors: Triton's order
        (``tensorMemoryScalesToLinearLayout``).

    Raises:
        LayoutError: another shape, or more columns than TMEM has.
    """
    sizes = checked_shape(shape, 2)
    for i, least in enumerate((WARP_LANES, 4)):
        if sizes[i] < least:
            raise LayoutError(f"shape[{i}]", sizes[i], f"must be at least {least}")
    lanes = [(row, 0) for row in powers_below(WARP_LANES)] + [(0, 0)] * 2
    columns = [(0, factor) for factor in powers_below(4)]
    return stack_instructions(lanes, columns, (WARP_LANES, 4), (sizes[0], sizes[1]), SCALE_BITS)


def scale_vector(kind: str, qualifier: str, scale_type: str) -> int:
    """How many factors a row has for the K of one instruction.

    Args:
        kind: mxf8f6f4, mxf4 or mxf4nvf4.
        qualifier: ``.scale_vectorsize`` without the dot, or "".
        scale_type: the scale factors' type in the instruction descriptor.

    Raises:
        LayoutError: the three do not go together.
    """
    one_of("kind", kind, _VECTORS)
    vectors = _VECTORS[kind]
    if qualifier not in vectors:
        legal = ", ".join(name or "none" for name in vectors)
        raise LayoutError("scale_vectorsize", qualifier, f"must be one of {legal} for kind {kind}")
    if scale_type == "ue4m3" and vectors[qualifier] != 4:
        raise LayoutError("scale_type", scale_type, "ue4m3 factors are for blocks of 16 elements")
    return vectors[qualifier]
