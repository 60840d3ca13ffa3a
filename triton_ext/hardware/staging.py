"""Shared encodings through which a tensor could go from one distributed layout to another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from triton_ext.errors import LayoutError
from triton_ext.hardware.register_moves import PlannedMove, plan_move
from triton_ext.layouts.encodings import (
    SWIZZLE_BYTE_WIDTHS,
    NVMMAShared,
    SharedEncoding,
    SwizzledShared,
)
from triton_ext.layouts.linear_layout import LinearLayout


@dataclass(frozen=True)
class Staging:
    """A store to shared memory in one layout, and a load from it in another.

    Attributes:
        encoding: that of the tile.
        store, load: the instructions.
    """

    encoding: SharedEncoding
    store: PlannedMove
    load: PlannedMove

    @property
    def wavefronts(self) -> int:
        """Those of the stores and the loads of a block."""
        return self.store.pattern.wavefronts + self.load.pattern.wavefronts

    @property
    def instructions(self) -> int:
        """Those of a warp."""
        return self.store.pattern.instructions + self.load.pattern.instructions


def _candidates(shape: tuple[int, ...], element_bitwidth: int) -> Iterator[SharedEncoding]:
    """Tiles row by row, column by column, and in the swizzles that TMA and the MMAs know."""
    rows = tuple(reversed(range(len(shape))))
    for order in {rows: None, rows[::-1]: None}:
        yield SwizzledShared(1, 1, 1, order)
    for width in SWIZZLE_BYTE_WIDTHS if len(shape) == 2 else ():
        for transposed in (False, True):
            try:
                yield NVMMAShared(width, element_bitwidth, transposed)
            except LayoutError:
                continue


def stagings(
    source: LinearLayout,
    target: LinearLayout,
    element_bitwidth: int,
    *,
    arch: int = 90,
    more: tuple[SharedEncoding, ...] = (),
) -> list[Staging]:
    """What a store and a load in their place cost, the fewest wavefronts first.

    Args:
        source, target: as in `triton_ext.hardware.conversions.plan_conversion`, of one block.
        element_bitwidth: 8, 16, 32 or 64.
        arch: the compute capability, times ten.
        more: encodings to compare besides, which stand first among equals.
    """
    shape, found = tuple(source.out_dims.values()), []
    for encoding in (*more, *_candidates(shape, element_bitwidth)):
        try:
            tile = encoding.to_linear_layout(shape)
            store = plan_move(source, tile, element_bitwidth, "store", arch=arch)
            load = plan_move(target, tile, element_bitwidth, "load", arch=arch)
        except LayoutError:  # too small a tile for it, or an instruction that is not modelled
            continue
        found.append(Staging(encoding, store, load))
    return sorted(found, key=lambda each: (each.wavefronts, each.instructions))
