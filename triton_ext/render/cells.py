"""A layout cut into the cells of a picture: 16-byte chunks, or less where fewer stay together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.hardware.operand import INSTRUCTION_K_BYTES
from triton_ext.layouts.arguments import is_power_of_two
from triton_ext.layouts.atoms import SwizzleAtom
from triton_ext.layouts.encodings import CHUNK_BYTES, NVMMAShared, parse_encoding
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.layouts.nvmma_shared import ATOM_ROWS

MMA_ROWS = 64
"""The M extent of the instruction of seed 002, Sec. 2, and of every wgmma."""


@dataclass(frozen=True)
class Plane:
    """The last two dimensions of a shared-memory layout, with the others at 0.

    Args:
        layout: ``offset`` (elements), and with a cluster ``block``, to at least one dimension.
        element_bitwidth: bits of an element, a power of two, at most 128.

    Raises:
        LayoutError: other input dimensions, no output dimension, a coordinate that no offset has,
            or an element width that is not legal.
    """

    layout: LinearLayout
    element_bitwidth: int

    def __post_init__(self) -> None:
        if not isinstance(self.layout, LinearLayout):
            raise LayoutError("layout", self.layout, "must be a LinearLayout")
        names = set(self.layout.in_dims)
        if "offset" not in names or not names <= {"offset", "block"}:
            raise LayoutError(
                "layout", sorted(names), "its input dims must be 'offset' and perhaps 'block'"
            )
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

    @property
    def leading(self) -> list[str]:
        """The dimensions that are held at 0."""
        return list(self.layout.out_dims)[:-2]

    @property
    def names(self) -> tuple[str, str]:
        """The dimensions that run down and across; "" for a layout of one dimension."""
        names = list(self.layout.out_dims)
        return (names[-2] if len(names) > 1 else "", names[-1])

    @property
    def shape(self) -> tuple[int, int]:
        """Their sizes."""
        sizes = list(self.layout.out_dims.values())
        return (sizes[-2] if len(sizes) > 1 else 1, sizes[-1])

    @cached_property
    def cell(self) -> tuple[int, int]:
        """Rows x columns of elements that lie in order in memory, at most 16 bytes of them.

        Their offsets count up along one dimension; and no other basis moves an element by less
        than the cell, which would permute the elements within some of the cells.
        """
        names = list(self.layout.out_dims)
        bases = [*self.layout.bases["offset"], *self.layout.bases.get("block", [])]
        best = (1, 1)
        for along in {len(names) - 1, max(0, len(names) - 2)}:
            run = 1
            rest = bases
            while run < self.chunk_elements and rest:
                unit = tuple(run if i == along else 0 for i in range(len(names)))
                if rest[0] != unit:
                    break
                run, rest = 2 * run, rest[1:]
            while any(basis[along] % run for basis in rest):
                run //= 2
            if run > max(best):
                best = (1, run) if along == len(names) - 1 else (run, 1)
        return best

    @property
    def chunk_elements(self) -> int:
        """Elements in 16 bytes."""
        return 8 * CHUNK_BYTES // self.element_bitwidth

    @property
    def blocks(self) -> int:
        """How many blocks of a cluster share the tensor."""
        return self.layout.in_dims.get("block", 1)

    def place(self, row: int, column: int) -> tuple[int, int]:
        """The offset of an element, in elements, and the block that it lies in."""
        point = dict.fromkeys(self.leading, 0)
        point |= {name: at for name, at in zip(self.names, (row, column), strict=True) if name}
        found = self.inverse.apply(point)
        return found["offset"], found.get("block", 0)

    def byte(self, offset: int) -> int:
        """The byte that an element starts in."""
        return offset * self.element_bitwidth // 8

    def coordinates(self, offset: int) -> tuple[int, ...]:
        """The coordinates of the element at an offset, in block 0."""
        point = {"offset": offset} | ({"block": 0} if "block" in self.layout.in_dims else {})
        return tuple(self.layout.apply(point).values())

    def is_made_of(self, atom: SwizzleAtom) -> bool:
        """Whether the tile consists of whole copies of a swizzle atom, each in one piece."""
        down, across = self.names
        rows, columns = atom.shape
        if atom.element_bitwidth != self.element_bitwidth or not down:
            return False
        if self.shape[0] % rows or self.shape[1] % columns:
            return False
        elements = rows * columns
        theirs = atom.to_linear_layout().invert().bases
        own = self.inverse.sublayout([down, across], ["offset"]).bases
        for name, other, size in ((down, "dim0", rows), (across, "dim1", columns)):
            inside = size.bit_length() - 1
            if own[name][:inside] != theirs[other]:
                return False
            if any(offset % elements for (offset,) in own[name][inside:]):
                return False
        blocks = self.inverse.sublayout([down, across], list(self.layout.in_dims)[1:]).bases
        return not any(
            any(basis)
            for name, size in ((down, rows), (across, columns))
            for basis in blocks[name][: size.bit_length() - 1]
        )


def unit_shape(atom: SwizzleAtom) -> tuple[int, int]:
    """The 8x16B (MN-major: 16Bx8) subtile that the tensor core reads at a time, in elements."""
    chunk = 8 * CHUNK_BYTES // atom.element_bitwidth
    return (ATOM_ROWS, chunk) if atom.major == "K" else (chunk, ATOM_ROWS)


def unit_name(atom: SwizzleAtom) -> str:
    """Its name: ``8x16B``, or ``16Bx8`` if MN-major (seed 003, Sec. 3)."""
    sizes = (str(ATOM_ROWS), f"{CHUNK_BYTES}B")
    return "x".join(sizes if atom.major == "K" else reversed(sizes))


def operand_shape(atom: SwizzleAtom) -> tuple[int, int]:
    """The operand of the worked examples' MMA: M = 64 by 32 bytes of K (seed 002, Sec. 2)."""
    return (MMA_ROWS, 8 * INSTRUCTION_K_BYTES // atom.element_bitwidth)


def atom_of(encoding: str, plane: Plane) -> SwizzleAtom | None:
    """The swizzle atom of an encoding, if the layout is really made of it; else None."""
    try:
        parsed: Any = parse_encoding(encoding)
        if not isinstance(parsed, NVMMAShared) or parsed.fp4_padded:
            return None
        atom = SwizzleAtom(
            "MN" if parsed.transposed else "K", parsed.swizzle_byte_width, parsed.element_bitwidth
        )
    except LayoutError:
        return None
    return atom if plane.is_made_of(atom) else None


def fits(part: tuple[int, int], whole: tuple[int, int]) -> bool:
    """Whether copies of `part` fill `whole`."""
    return all(size % extent == 0 for extent, size in zip(part, whole, strict=True))
