"""What a conversion of a shared encoding makes, in one form for Triton's conversion and ours."""

from __future__ import annotations

from dataclasses import dataclass

from triton_ext.layouts.linear_layout import Basis, LinearLayout


@dataclass(frozen=True)
class Converted:
    """A linear layout of shared memory, as either side gives it.

    Attributes:
        alignment: what the address of a tile is a multiple of, in bytes.
    """

    offset: tuple[Basis, ...]
    block: tuple[Basis, ...]
    alignment: int

    def __str__(self) -> str:
        lists = [[list(basis) for basis in bases] for bases in (self.offset, self.block)]
        return f"offset = {lists[0]}, block = {lists[1]}, alignment = {self.alignment}"

    def has_bases_of(self, layout: LinearLayout) -> bool:
        """Whether these are the bases of `layout`."""
        bases = layout.bases
        return (self.offset, self.block) == (tuple(bases["offset"]), tuple(bases.get("block", ())))
