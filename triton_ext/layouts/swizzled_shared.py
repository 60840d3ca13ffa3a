"""Triton's ``#ttg.swizzled_shared``: rows of chunks that are XORed by a phase."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from triton_ext.layouts.arguments import permutation, power_of_two
from triton_ext.layouts.attributes import Attribute
from triton_ext.layouts.cluster import (
    SPLIT_KEYS,
    add_cluster,
    bases_text,
    cga_from_attribute,
    checked_cga_layout,
    checked_shape,
    shape_per_cta,
    standard_out_dims,
)
from triton_ext.layouts.gf2 import powers_below
from triton_ext.layouts.linear_layout import Basis, LinearLayout
from triton_ext.layouts.shared_encoding import DEFAULT_ALIGNMENT, SharedEncoding


@dataclass(frozen=True)
class SwizzledShared(SharedEncoding):
    """Triton's ``#ttg.swizzled_shared``: rows whose chunks of `vec` elements are XORed by a phase.

    Args:
        vec: elements that move together, a power of two.
        per_phase: consecutive rows with the same phase, a power of two.
        max_phase: how many phases there are, a power of two.
        order: the dimensions from the fastest to the slowest.
        cga_layout: as in `NVMMAShared`.
    """

    NAME: ClassVar[str] = "ttg.swizzled_shared"
    GLUON: ClassVar[str] = "SwizzledSharedLayout"

    vec: int
    per_phase: int
    max_phase: int
    order: tuple[int, ...]
    cga_layout: tuple[Basis, ...] = ()

    def __post_init__(self) -> None:
        for name in ("vec", "per_phase", "max_phase"):
            power_of_two(name, getattr(self, name))
        order = permutation("order", self.order)
        object.__setattr__(self, "order", order)
        object.__setattr__(self, "cga_layout", checked_cga_layout(self.cga_layout, len(order)))

    @classmethod
    def from_attribute(cls, attribute: Attribute) -> SwizzledShared:
        """As `parse`, from an attribute that was read."""
        own = ("vec", "perPhase", "maxPhase", "order")
        vec, per_phase, max_phase, order = attribute.checked(
            cls.NAME, own, ("CGALayout", *SPLIT_KEYS)
        )
        return cls(vec, per_phase, max_phase, order, cga_from_attribute(attribute))

    @property
    def rank(self) -> int:
        """How many dimensions."""
        return len(self.order)

    @property
    def alignment(self) -> int:
        """What the address of a tile must be a multiple of, in bytes."""
        return DEFAULT_ALIGNMENT

    def stored_elements(self, shape: Sequence[int]) -> int:
        """How many elements of shared memory a tile takes in one block."""
        return math.prod(shape_per_cta(self.cga_layout, shape))

    def to_linear_layout(self, shape: Sequence[int] | None) -> LinearLayout:
        """The linear layout of a tile of `shape`: ``offset`` (elements) -> coordinates.

        Column c of row r lies in chunk ``(c / vec) ^ (r / per_phase % max_phase)`` of its row.
        Raises LayoutError: not a shape of powers of two of this rank.
        """
        shape = checked_shape(shape, self.rank)
        per_cta = shape_per_cta(self.cga_layout, shape)
        names = [f"dim{dim}" for dim in self.order]
        sizes = [per_cta[dim] for dim in self.order]
        layout = LinearLayout.identity_1d(sizes[0], "offset", names[0])
        if self.rank > 1:
            bases = [(column, 0) for (column,) in layout.bases["offset"]]
            for row in powers_below(sizes[1]):
                phase = row // self.per_phase % self.max_phase
                bases.append((self.vec * phase % sizes[0], row))
            layout = LinearLayout({"offset": bases}, dict(zip(names[:2], sizes[:2], strict=True)))
        layout = layout * LinearLayout.box("offset", dict(zip(names[2:], sizes[2:], strict=True)))
        layout = layout.transpose_outs(list(standard_out_dims(shape)))
        return add_cluster(layout, self.cga_layout, shape)

    def __str__(self) -> str:
        """The MLIR attribute, as Triton prints it."""
        text = (
            f"vec = {self.vec}, perPhase = {self.per_phase}, maxPhase = {self.max_phase},"
            f" order = {list(self.order)}"
        )
        if self.cga_layout:
            text += f", CGALayout = {bases_text(self.cga_layout)}"
        return f"#ttg.swizzled_shared<{{{text}}}>"
