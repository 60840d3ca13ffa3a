"""A layout cut into the cells of a picture: 16-byte chunks, or less where fewer stay together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from triton_ext.errors import LayoutError
from triton_ext.layouts.arguments import is_power_of_two
from triton_ext.layouts.encodings import CHUNK_BYTES
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.layouts.padded_shared import checked_paddings
from triton_ext.layouts.shared_encoding import Paddings, checked_layout, padded_offset

if TYPE_CHECKING:
    from triton_ext.layouts.atoms import SwizzleAtom


def chunk_elements(element_bitwidth: int) -> int:
    """Elements in a chunk of 16 bytes."""
    return 8 * CHUNK_BYTES // element_bitwidth


def unit_run(bases: Sequence[Sequence[int]], limit: int) -> tuple[int, int]:
    """The dimension along which the first bases are 1, 2, 4, ..., and the length of that run.

    Args:
        limit: the most elements of a run.

    Returns:
        (dimension, elements); (-1, 1) where the first basis is no step of 1.
    """
    along, run = -1, 1
    for basis in bases:
        moved = [dim for dim, step in enumerate(basis) if step]
        if run >= limit or len(moved) != 1 or basis[moved[0]] != run:
            break
        if along not in (-1, moved[0]):
            break
        along, run = moved[0], 2 * run
    return along, run


def contiguous_run(layout: LinearLayout, limit: int, paddings: Paddings = ()) -> tuple[str, int]:
    """The dimension along which offsets count up by one, and for how many elements.

    The run is cut where a later basis moves elements by less than the run, which would permute the
    elements of some runs; and to the least interval and padding, so that each run lies at a
    multiple of its own size.

    Args:
        layout: ``offset``, and perhaps ``block`` -> at least one dimension.
        limit: the most elements of a run.
        paddings: pairs (interval, padding), in elements.
    """
    names = list(layout.out_dims)
    bases = layout.bases["offset"]
    along, run = unit_run(bases, min([limit, *(number for pair in paddings for number in pair)]))
    later = [*bases[run.bit_length() - 1 :], *layout.bases.get("block", [])]
    while any(basis[along] % run for basis in later):
        run //= 2
    return names[along], run


def fits(part: tuple[int, int], whole: tuple[int, int]) -> bool:
    """Whether copies of `part` fill `whole`."""
    return all(size % extent == 0 for extent, size in zip(part, whole, strict=True))


@dataclass(frozen=True)
class Plane:
    """The last two dimensions of a shared-memory layout, with the others at 0.

    Args:
        layout: ``offset`` (elements), and with a cluster ``block`` -> at least one dimension.
        element_bitwidth: bits of an element, a power of two, at most 128.
        paddings: pairs (interval, padding) in elements, of a `PaddedShared`.

    Raises:
        LayoutError: other input dimensions, no output dimension, a coordinate that no offset has,
            or an element width that is not legal.
    """

    layout: LinearLayout
    element_bitwidth: int
    paddings: Paddings = ()

    def __post_init__(self) -> None:
        checked_layout("layout", self.layout)
        checked_paddings(self.paddings)
        names = set(self.layout.in_dims)
        if "offset" not in names or not names <= {"offset", "block"}:
            rule = "its input dims must be 'offset' and perhaps 'block'"
            raise LayoutError("layout", sorted(names), rule)
        if not self.layout.out_dims:
            raise LayoutError("layout", str(self.layout), "must have an output dimension")
        bits = self.element_bitwidth
        if not is_power_of_two(bits) or bits > 8 * CHUNK_BYTES:
            raise LayoutError("element_bitwidth", bits, "must be a power of two, at most 128")
        self.layout.pseudoinvert()  # raises if a coordinate has no offset

    @cached_property
    def inverse(self) -> LinearLayout:
        """Coordinates -> ``offset`` (and ``block``)."""
        return self.layout.pseudoinvert()

    def inverse_bases(self, name: str) -> list[tuple[int, int]]:
        """(offset, block) of the coordinates 1, 2, 4, ... along a dimension; none along ""."""
        names = list(self.inverse.out_dims)
        bases = self.inverse.bases.get(name, ())
        found = [dict(zip(names, basis, strict=True)) for basis in bases]
        return [(basis["offset"], basis.get("block", 0)) for basis in found]

    @property
    def leading(self) -> list[str]:
        """The dimensions before the last two, which are held at 0."""
        return list(self.layout.out_dims)[:-2]

    @property
    def names(self) -> tuple[str, str]:
        """The dimensions that run down and across; the first is "" if there is but one."""
        *_, down, across = ("", *self.layout.out_dims)
        return down, across

    @property
    def shape(self) -> tuple[int, int]:
        """How many elements there are down and across."""
        *_, down, across = (1, *self.layout.out_dims.values())
        return down, across

    @cached_property
    def cell(self) -> tuple[int, int]:
        """Rows x columns of elements that lie in order in memory, at most 16 bytes of them."""
        along, run = contiguous_run(self.layout, self.chunk_elements, self.paddings)
        if along == self.names[1]:
            return (1, run)
        return (run, 1) if along == self.names[0] else (1, 1)

    @property
    def chunk_elements(self) -> int:
        """Elements in 16 bytes."""
        return chunk_elements(self.element_bitwidth)

    @property
    def blocks(self) -> int:
        """How many blocks of a cluster share the tensor."""
        return self.layout.in_dims.get("block", 1)

    def offset_and_block(self, row: int, column: int) -> tuple[int, int]:
        """The offset of an element, in elements, and the block that holds it."""
        point = dict.fromkeys(self.leading, 0)
        point |= {name: at for name, at in zip(self.names, (row, column), strict=True) if name}
        found = self.inverse.apply(point)
        return found["offset"], found.get("block", 0)

    def address(self, offset: int) -> int:
        """Where the element at an offset lies, in elements: behind the paddings before it."""
        return int(padded_offset(offset, self.paddings))

    def byte(self, offset: int) -> int:
        """The byte in which the element at an offset starts."""
        return self.address(offset) * self.element_bitwidth // 8

    @property
    def size(self) -> int:
        """The bytes that a block holds, the padding between its elements included."""
        return (self.address(self.layout.in_dims["offset"] - 1) + 1) * self.element_bitwidth // 8

    def coordinates(self, offset: int) -> tuple[int, ...]:
        """The coordinates of the element at an offset, in block 0."""
        point = {"offset": offset} | ({"block": 0} if "block" in self.layout.in_dims else {})
        return tuple(self.layout.apply(point).values())

    def is_made_of(self, atom: SwizzleAtom) -> bool:
        """Whether the tile consists of whole copies of a swizzle atom, each in one piece."""
        down, across = self.names
        rows, columns = atom.shape
        if atom.element_bitwidth != self.element_bitwidth or not down or self.paddings:
            return False
        if self.shape[0] % rows or self.shape[1] % columns:
            return False
        theirs = atom.to_linear_layout().invert().bases
        for name, other, size in ((down, "dim0", rows), (across, "dim1", columns)):
            inside = size.bit_length() - 1
            bases = self.inverse_bases(name)
            if bases[:inside] != [(offset, 0) for (offset,) in theirs[other]]:
                return False
            if any(offset % (rows * columns) for offset, _ in bases[inside:]):
                return False
        return True
