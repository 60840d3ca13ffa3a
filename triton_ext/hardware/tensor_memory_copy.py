"""tcgen05.cp and tcgen05.shift: which lanes of TMEM a piece of shared memory goes to.

Sources: PTX ISA, "Data Movement Shape" and tcgen05.cp (``.multicast``), tcgen05.shift; CUTLASS,
``cute/atom/copy_traits_sm100.hpp``, the UTCCP traits, which give the lanes of each shape.
"""

from __future__ import annotations

from dataclasses import dataclass

from triton_ext.errors import LayoutError
from triton_ext.hardware.tensor_memory import COLUMN_BITS, TMEM_LANES, WARP_LANES

SHIFT_LANES = WARP_LANES
"""Lanes of one tcgen05.shift: all but the last take what the next one holds (shape 31x256b)."""
SHIFT_COLUMNS = 256 // COLUMN_BITS
"""Columns of one tcgen05.shift."""


@dataclass(frozen=True)
class CopyShape:
    """What one tcgen05.cp moves.

    Attributes:
        name: the instruction's shape: rows of the source x bits of each.
        multicast: the ``.multicast`` qualifier that it needs, or "".
        rows: the rows of the matrix in shared memory.
        bits: the bits of each row.
        copies: how rows go to lanes, as nested loops (count, lane stride, row stride), the
            innermost first; a row stride of 0 repeats rows on further lanes.
    """

    name: str
    multicast: str
    rows: int
    bits: int
    copies: tuple[tuple[int, int, int], ...]

    @property
    def columns(self) -> int:
        """How many columns of TMEM a row fills."""
        return self.bits // COLUMN_BITS

    def destinations(self) -> list[tuple[int, int]]:
        """(lane, row) pairs: which row of the source goes to which lane, counted from the address.

        A row may go to several lanes.
        """
        pairs = [(0, 0)]
        for count, lane_stride, row_stride in self.copies:
            pairs = [
                (lane + index * lane_stride, row + index * row_stride)
                for index in range(count)
                for lane, row in pairs
            ]
        return pairs

    @property
    def first_lanes(self) -> range:
        """The lanes that the address may name."""
        return range(TMEM_LANES - max(lane for lane, _ in self.destinations()))


_ALL = ((TMEM_LANES, 1, 1),)
COPY_SHAPES: dict[tuple[str, str], CopyShape] = {
    (shape.name, shape.multicast): shape
    for shape in (
        CopyShape("128x256b", "", 128, 256, _ALL),
        CopyShape("128x128b", "", 128, 128, _ALL),
        CopyShape("4x256b", "", 4, 256, ((4, WARP_LANES, 1),)),
        CopyShape("64x128b", "warpx2::02_13", 64, 128, ((64, 1, 1), (2, 64, 0))),
        CopyShape("64x128b", "warpx2::01_23", 64, 128, ((32, 1, 1), (2, 32, 0), (2, 64, 32))),
        CopyShape("32x128b", "warpx4", 32, 128, ((32, 1, 1), (4, 32, 0))),
    )
}


def copy_shape(name: str, multicast: str = "") -> CopyShape:
    """The shape of a tcgen05.cp. Raises LayoutError: no such shape, or not with this
    ``.multicast``."""
    found = COPY_SHAPES.get((name, multicast))
    if found is None:
        legal = ", ".join(".".join(filter(None, pair)) for pair in COPY_SHAPES)
        raise LayoutError("shape", f"{name} {multicast}".strip(), f"must be one of {legal}")
    return found
