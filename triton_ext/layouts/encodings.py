"""Shared-memory encodings as values: parsed from, and printed as, Triton's MLIR attributes.

Every encoding has a `rank`, an `alignment` in bytes, `to_linear_layout` (a tile of some shape), and
`stored_elements` (the shared memory that a tile takes).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from triton_ext.display import Displayed
from triton_ext.errors import LayoutError
from triton_ext.layouts.arguments import is_power_of_two, permutation, power_of_two, vectors
from triton_ext.layouts.attributes import Attribute, parse_attribute
from triton_ext.layouts.cluster import (
    SPLIT_KEYS,
    add_cluster,
    bases_text,
    cga_from_attribute,
    checked_cga_layout,
    checked_shape,
    memory_layout,
    shape_per_cta,
    standard_out_dims,
    within_block,
)
from triton_ext.layouts.linear_layout import Basis, LinearLayout, powers_below
from triton_ext.layouts.nvmma_shared import (
    CHUNK_BYTES,
    ELEMENT_BITWIDTHS,
    MAX_RANK,
    SWIZZLE_BYTE_WIDTHS,
    NVMMAShared,
)

__all__ = [
    "CHUNK_BYTES",
    "DEFAULT_ALIGNMENT",
    "ELEMENT_BITWIDTHS",
    "MAX_RANK",
    "SWIZZLE_BYTE_WIDTHS",
    "NVMMAShared",
    "SharedEncoding",
    "SharedLinear",
    "SwizzledShared",
    "parse_encoding",
]

DEFAULT_ALIGNMENT = 16
"""What the address of a tile is a multiple of where nothing else is said, in bytes (Triton,
``getAlignmentOrDefault``)."""


@dataclass(frozen=True)
class SwizzledShared(Displayed):
    """Triton's ``#ttg.swizzled_shared``: rows whose chunks of `vec` elements are XORed by a phase.

    Args:
        vec: elements that move together, a power of two.
        per_phase: consecutive rows with the same phase, a power of two.
        max_phase: how many phases there are, a power of two.
        order: the dimensions from the fastest to the slowest.
        cga_layout: as in `NVMMAShared`.
    """

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
    def parse(cls, text: str) -> SwizzledShared:
        """From an MLIR attribute. Raises LayoutError."""
        return cls.from_attribute(parse_attribute(text))

    @classmethod
    def from_attribute(cls, attribute: Attribute) -> SwizzledShared:
        """As `parse`, from an attribute that was read."""
        own = ("vec", "perPhase", "maxPhase", "order")
        vec, per_phase, max_phase, order = attribute.checked(
            "ttg.swizzled_shared", own, ("CGALayout", *SPLIT_KEYS)
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

        Raises:
            LayoutError: not a shape of powers of two of this rank.
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


@dataclass(frozen=True)
class SharedLinear(Displayed):
    """Triton's ``#ttg.shared_linear``: a shared-memory layout given by its bases.

    Args:
        offset_bases: the coordinates of the elements at offset 1, 2, 4, ... (in elements).
        block_bases: the coordinates of the first element of block 1, 2, 4, ... of the cluster.
        alignment: what the address must be a multiple of, in bytes.

    Raises:
        LayoutError: no bases, vectors of different lengths, a negative coordinate, a layout that
            misses some coordinates, or an alignment that is no power of two.
    """

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
            raise LayoutError(
                "offset_bases", bases, "all bases must have the same number of coordinates"
            )
        if not self.to_linear_layout().is_surjective():
            raise LayoutError("offset_bases", bases, "must reach every coordinate")

    @classmethod
    def from_linear_layout(
        cls, layout: LinearLayout, alignment: int = DEFAULT_ALIGNMENT
    ) -> SharedLinear:
        """From a layout with the input dimensions ``offset`` and, with a cluster, ``block``."""
        if not isinstance(layout, LinearLayout):
            raise LayoutError("layout", layout, "must be a LinearLayout")
        bases = layout.bases
        if not set(bases) <= {"offset", "block"}:
            raise LayoutError("layout", list(bases), "input dims must be 'offset' and 'block'")
        return cls(tuple(bases.get("offset", ())), tuple(bases.get("block", ())), alignment)

    @classmethod
    def parse(cls, text: str) -> SharedLinear:
        """From an MLIR attribute. Raises LayoutError."""
        return cls.from_attribute(parse_attribute(text))

    @classmethod
    def from_attribute(cls, attribute: Attribute) -> SharedLinear:
        """As `parse`, from an attribute that was read."""
        offset, alignment = attribute.checked(
            "ttg.shared_linear", ("offset", "alignment"), ("block",)
        )
        return cls(offset, attribute.parameters.get("block", ()), alignment)

    @property
    def rank(self) -> int:
        """How many dimensions."""
        return len((self.offset_bases + self.block_bases)[0])

    def to_linear_layout(self, shape: Sequence[int] | None = None) -> LinearLayout:
        """The layout itself; a ``block`` dimension only if there are block bases.

        Raises:
            LayoutError: a shape is given, and is not that of the bases.
        """
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


SharedEncoding = NVMMAShared | SwizzledShared | SharedLinear

_MNEMONICS: dict[str, type[NVMMAShared] | type[SwizzledShared] | type[SharedLinear]] = {
    "nvmma_shared": NVMMAShared,
    "swizzled_shared": SwizzledShared,
    "shared_linear": SharedLinear,
}


def parse_encoding(text: str) -> SharedEncoding:
    """Any shared encoding of NVIDIA GPUs, from its MLIR attribute.

    Raises:
        LayoutError: not an ``nvmma_shared``, ``swizzled_shared`` or ``shared_linear``, or illegal.
    """
    attribute = parse_attribute(text)
    kind = _MNEMONICS.get(attribute.mnemonic)
    if kind is None:
        raise LayoutError(
            "attribute",
            attribute.text,
            f"must be one of {', '.join('#ttg.' + m for m in _MNEMONICS)}",
        )
    return kind.from_attribute(attribute)
