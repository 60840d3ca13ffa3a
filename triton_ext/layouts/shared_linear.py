"""Triton's ``#ttg.shared_linear``: a shared-memory layout given by its bases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from triton_ext.errors import LayoutError
from triton_ext.layouts.arguments import is_power_of_two, vectors
from triton_ext.layouts.attributes import Attribute
from triton_ext.layouts.cluster import bases_text, memory_layout, within_block
from triton_ext.layouts.linear_layout import Basis, LinearLayout
from triton_ext.layouts.shared_encoding import DEFAULT_ALIGNMENT, SharedEncoding, checked_layout


@dataclass(frozen=True)
class SharedLinear(SharedEncoding):
    """Triton's ``#ttg.shared_linear``: a shared-memory layout given by its bases.

    Args:
        offset_bases: the coordinates of the elements at offset 1, 2, 4, ... (in elements).
        block_bases: the coordinates of the first element of block 1, 2, 4, ... of the cluster.
        alignment: what the address must be a multiple of, in bytes.

    Raises:
        LayoutError: no bases, vectors of different lengths, a negative coordinate, a layout that
            misses some coordinates, or an alignment that is no power of two.
    """

    NAME: ClassVar[str] = "ttg.shared_linear"
    GLUON: ClassVar[str] = "SharedLinearLayout"

    offset_bases: tuple[Basis, ...]
    block_bases: tuple[Basis, ...] = ()
    alignment: int = DEFAULT_ALIGNMENT

    def __post_init__(self) -> None:
        for name in ("offset_bases", "block_bases"):
            object.__setattr__(self, name, vectors(name, getattr(self, name)))
        bases = self.offset_bases + self.block_bases
        if not bases or not bases[0]:
            raise LayoutError("offset_bases", self.offset_bases, "there must be at least one basis")
        if not is_power_of_two(self.alignment):
            raise LayoutError("alignment", self.alignment, "must be a power of two, in bytes")
        if any(len(basis) != len(bases[0]) for basis in bases):
            rule = "all bases must have the same number of coordinates"
            raise LayoutError("offset_bases", bases, rule)
        if not self.to_linear_layout().is_surjective():
            raise LayoutError("offset_bases", bases, "must reach every coordinate")

    @classmethod
    def from_linear_layout(
        cls, layout: LinearLayout, alignment: int = DEFAULT_ALIGNMENT
    ) -> SharedLinear:
        """From a layout with the input dimensions ``offset`` and, with a cluster, ``block``."""
        bases = checked_layout("layout", layout).bases
        if not set(bases) <= {"offset", "block"}:
            raise LayoutError("layout", list(bases), "input dims must be 'offset' and 'block'")
        return cls(tuple(bases.get("offset", ())), tuple(bases.get("block", ())), alignment)

    @classmethod
    def from_attribute(cls, attribute: Attribute) -> SharedLinear:
        """As `parse`, from an attribute that was read."""
        offset, alignment = attribute.checked(cls.NAME, ("offset", "alignment"), ("block",))
        return cls(offset, attribute.parameters.get("block", ()), alignment)

    def gluon_arguments(self) -> dict[str, Any]:
        """Those of ``gl.SharedLinearLayout``, which needs at least one offset basis."""
        if not self.offset_bases:
            raise LayoutError("encoding", str(self), "Gluon needs at least one offset basis")
        return super().gluon_arguments()

    @property
    def rank(self) -> int:
        """How many dimensions."""
        return len((self.offset_bases + self.block_bases)[0])

    def to_linear_layout(self, shape: Sequence[int] | None = None) -> LinearLayout:
        """The layout itself; a ``block`` dimension only if there are block bases. Raises
        LayoutError: a shape is given, and is not that of the bases."""
        layout = memory_layout(self.offset_bases, self.block_bases)
        own = tuple(layout.out_dims.values())
        if shape is not None and tuple(shape) != own:
            raise LayoutError("shape", tuple(shape), f"must be {own}, what the bases span")
        return layout

    def stored_elements(self, shape: Sequence[int] | None = None) -> int:
        """How many elements of shared memory the tile takes in one block."""
        return within_block(self.to_linear_layout()).total_out_size

    def __str__(self) -> str:
        """The MLIR attribute, as Triton prints it."""
        text = f"offset = {bases_text(self.offset_bases)}"
        if self.block_bases:
            text += f", block = {bases_text(self.block_bases)}"
        return f"#ttg.shared_linear<{{{text}}}, alignment = {self.alignment}>"
