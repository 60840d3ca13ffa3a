"""Where the scale factors of a block-scaled tcgen05.mma lie in TMEM.

Each row of A, or column of B, has 1, 2 or 4 factors for the K of one instruction, a byte each, in
one 32-bit column of the row's lane (3, 6 or 8 with the long K of sm_103 and sm_107, in up to two).
32 rows share a column: row r is in lane r % 32, column r // 32; the next 4 factors are behind those
of all rows, rounded up to 128. Every group of 32 lanes holds a copy, for its own part of the data
path. Over a pair of CTAs with M = 128 (data path layout B) lanes 0-63 work on the first half of N
and lanes 64-127 on the second, and hold the factors of B for that half alone.

Sources: PTX ISA, "Block Scaling", "Scale Factor A ID", "Scale Factor B ID" and their figures;
CUTLASS ``cute/atom/mma_traits_sm100_frag.hpp``, ``tmem_sf_frg``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from triton_ext.errors import LayoutError
from triton_ext.hardware.instruction_descriptor import KINDS
from triton_ext.hardware.tensor_memory import TMEM_LANES, WARP_LANES, stack_instructions
from triton_ext.layouts.arguments import one_of
from triton_ext.layouts.cluster import checked_shape
from triton_ext.layouts.gf2 import powers_below
from triton_ext.layouts.linear_layout import LinearLayout

_VECTORS: dict[str, dict[str, int]] = {
    "mxf8f6f4": {"": 32, "scale_vec::1X": 32, "block32": 32},
    "mxf4": {"": 32, "scale_vec::2X": 32, "block32": 32},
    "mxf4nvf4": {"scale_vec::2X": 32, "block32": 32, "scale_vec::4X": 16, "block16": 16},
}
"""kind -> ``.scale_vectorsize`` -> elements of a factor (PTX ISA, "Valid combinations of
scale_vectorsize with types and MMA-Kind"); "" where it may be left out."""
_FIRST_BYTES = {1: range(4), 2: (0, 2), 3: range(4), 4: (0,), 6: (0, 2), 8: (0,)}
"""Factors of a row -> the bytes at which they may begin (PTX ISA, "Scale Factor A ID"; of 8,
CUTLASS ``mma_sm107_desc.hpp``)."""
_ROWS_OF_WORDS = 128


@dataclass(frozen=True)
class ScaleFactors:
    """The scale factors of one operand of one instruction.

    Args:
        count: factors of each row: 1, 2, 3, 4, 6 or 8.
        first_byte: scale factor ID: the byte of the 32-bit column that holds the first one.

    Raises:
        LayoutError: a byte at which so many factors cannot start.
    """

    count: int
    first_byte: int

    def __post_init__(self) -> None:
        one_of("count", self.count, tuple(_FIRST_BYTES))
        legal = _FIRST_BYTES[self.count]
        if self.first_byte not in legal:
            rule = f"must be {' or '.join(map(str, legal))} with {self.count} factors of a row"
            raise LayoutError("scale factor id", self.first_byte, rule)

    @property
    def words(self) -> int:
        """32-bit words of a row that hold them."""
        return -(-(self.first_byte + self.count) // 4)

    @staticmethod
    def step(rows: int) -> int:
        """How many columns further the next word of each of so many rows is."""
        return -(-rows // _ROWS_OF_WORDS) * _ROWS_OF_WORDS // WARP_LANES

    @staticmethod
    def columns(rows: int) -> int:
        """32-bit columns of TMEM for a word of so many rows of A, or columns of B."""
        return -(-rows // WARP_LANES)

    def span(self, rows: int) -> int:
        """Columns from the first word of so many rows to the last."""
        return self.columns(rows) + (self.words - 1) * self.step(rows)

    @staticmethod
    def cell(row: int) -> tuple[int, int]:
        """(lane, column) of a row's first word in the first group of 32 lanes."""
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


def scale_vector(kind: str, qualifier: str, scale_type: str, k: int = 0) -> int:
    """How many factors a row has for the K of one instruction.

    Args:
        kind: mxf8f6f4, mxf4 or mxf4nvf4.
        qualifier: ``.scale_vectorsize`` without the dot, or "".
        scale_type: the scale factors' type in the instruction descriptor.
        k: the K extent; 0 for the kind's usual one.

    Raises:
        LayoutError: the three do not go together.
    """
    one_of("kind", kind, _VECTORS)
    vectors = _VECTORS[kind]
    if qualifier not in vectors:
        legal = ", ".join(name or "none" for name in vectors)
        raise LayoutError("scale_vectorsize", qualifier, f"must be one of {legal} for kind {kind}")
    if scale_type == "ue4m3" and vectors[qualifier] != 16:
        raise LayoutError("scale_type", scale_type, "ue4m3 factors are for blocks of 16 elements")
    usual = KINDS[kind].usual_k
    if k not in (0, usual) and qualifier.startswith("scale_vec"):
        rule = f"with K = {k} it must be .block16, .block32 or absent: scale_vec is of K = {usual}"
        raise LayoutError("scale_vectorsize", qualifier, rule)
    return (k or usual) // vectors[qualifier]
