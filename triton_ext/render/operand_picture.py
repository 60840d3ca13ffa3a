"""How the tensor core reads an operand: its descriptor, and the four nested levels of its tile.

Chunk, atom, MMA subtile and tile are those of seed 002, Sec. 2; LBO and SBO are the arrows between
the parts of a subtile (Sec. 3.3 and 4.3).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from triton_ext.errors import LayoutError
from triton_ext.hardware.operand import MmaOperand
from triton_ext.layouts.atoms import SwizzleAtom
from triton_ext.layouts.encodings import CHUNK_BYTES
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.render.cells import Plane, chunk_elements
from triton_ext.render.descriptor_picture import matrix_scene
from triton_ext.render.parts import atom_kind, unit_name, unit_shape
from triton_ext.render.scene import FILLS, MARGIN, Arrow, Box, Grid, Scene, Text, figure
from triton_ext.render.tile_picture import tile_scene
from triton_ext.render.words import by, in_bytes

MAX_PARTS = 8
"""At most so many parts of a subtile are drawn down and across."""


@dataclass(frozen=True)
class _Operand:
    """An operand with what the panels share. All coordinates are (M or N, K)."""

    derived: MmaOperand
    atom: SwizzleAtom

    @property
    def k_major(self) -> bool:
        return self.atom.major == "K"

    @property
    def part(self) -> tuple[int, int]:
        """What LBO and SBO step over: a chunk, or an atom if MN-major (seed 002, Sec. 4.3)."""
        return unit_shape(self.atom) if self.k_major else self.atom.shape

    def address(self, row: int, column: int) -> int:
        """The address of an element of the first subtile, in bytes from the subtile's start."""
        own = self.derived.descriptor
        found = own.element_address(row, column, self.atom.element_bitwidth, self.atom.major)
        return found - own.start_address


def _panel(
    title: str,
    subtitle: str,
    boxes: list[Box],
    texts: Iterable[Text],
    notes: list[str],
    size: tuple[float, float],
    arrows: Iterable[Arrow] = (),
) -> Scene:
    """A level with its heading and notes; `size` is that of the drawing."""
    return figure(
        title,
        boxes,
        (
            Text(MARGIN, MARGIN + 10, title, "heading"),
            Text(MARGIN, MARGIN + 31, subtitle, "note"),
            *texts,
        ),
        notes,
        size,
        arrows=arrows,
        description=" ".join([subtitle, *notes]),
        captions=[subtitle],
    )


@dataclass(frozen=True)
class _Cells:
    """The cells of a level, and the address of each.

    Attributes:
        level: its name in the ``data-level`` attribute.
        words: the tooltip, with ``{}`` for the coordinates of a cell's first element.
        counts: how many cells there are down and across.
        step: the elements of a cell down and across.
        address: element -> its byte.
    """

    level: str
    words: str
    width: float
    height: float
    counts: tuple[int, int]
    step: tuple[int, int]
    address: Callable[[int, int], int]

    @property
    def grid(self) -> Grid:
        return Grid(MARGIN + 52, MARGIN + 74, self.width, self.height)

    @property
    def end(self) -> tuple[float, float]:
        """The right and the bottom of the cells."""
        return self.grid.x(self.counts[1]), self.grid.y(self.counts[0])

    def boxes(self, look: Callable[[int, int, int], tuple[str, str]]) -> list[Box]:
        """The cells; `look` makes (fill, label) of a cell's row, column and address."""
        boxes = []
        for i, j in itertools.product(*map(range, self.counts)):
            row, column = i * self.step[0], j * self.step[1]
            address = self.address(row, column)
            fill, label = look(i, j, address)
            title = f"{self.words.format(f'({row}, {column})')}: + {in_bytes(address)}"
            data: dict[str, str | int] = {"level": self.level, "row": row, "column": column}
            data["byte"] = address
            boxes.append(Box(*self.grid.area(i, j), f"chunk {fill}", title, label, data=data))
        return boxes

    def labels(self) -> list[Text]:
        """The first coordinate of each row and column of cells."""
        rows, columns = (
            range(0, count * step, step) for count, step in zip(self.counts, self.step, strict=True)
        )
        return self.grid.row_labels(rows) + self.grid.column_labels(columns)


def _chunk_panel(operand: _Operand) -> Scene:
    """Level 1: the elements of the first 8x16B chunk, and the address of each of its rows."""
    k_major = operand.k_major
    rows, columns = unit_shape(operand.atom)
    width, height = (max(14, 176 // columns), 22) if k_major else (34, 176 // rows)
    cells = _Cells("element", "element {}", width, height, (rows, columns), (1, 1), operand.address)
    dense = 2 if max(rows, columns) > 8 else 1  # every second number where there is no room

    def look(i: int, j: int, address: int) -> tuple[str, str]:
        along = j if k_major else i
        return "fill0", str(along) if along % dense == 0 else ""

    grid, (right, bottom) = cells.grid, cells.end
    texts = []
    for line in range(8):
        if k_major:
            start = f"+{operand.address(line, 0)}"
            texts.append(Text(right + 8, grid.y(line + 0.5), start, "value"))
            texts.append(grid.row_label(line, line))
        else:
            start = f"+{operand.address(0, line)}"
            texts.append(Text(grid.x(line + 0.5), bottom + 12, start, anchor="middle"))
            texts.append(grid.column_label(line, line))
    lines = "row" if k_major else "column"
    return _panel(
        "1. Chunk",
        f"{unit_name(operand.atom)}: 8 {lines}s of 16 bytes; {by((rows, columns))} elements",
        cells.boxes(look),
        texts,
        [f"+ is the {lines}'s place in shared memory, in bytes:", "the swizzle included."],
        (right + 52, bottom) if k_major else (right, bottom + 18),
    )


def _atom_panel(operand: _Operand) -> Scene:
    """Level 2: the 16-byte pieces of the atom, and the address of each."""
    atom, k_major = operand.atom, operand.k_major
    chunk = chunk_elements(atom.element_bitwidth)
    step = (1, chunk) if k_major else (chunk, 1)
    counts = (atom.shape[0] // step[0], atom.shape[1] // step[1])
    cells = _Cells("atom", "elements from {} on", 40, 22, counts, step, atom.address)
    boxes = cells.boxes(lambda i, j, byte: (f"fill{(j if k_major else i) % FILLS}", str(byte)))
    first = cells.grid.area(0, 0, *((8, 1) if k_major else (1, 8)), inset=1)
    return _panel(
        "2. Atom",
        f"{by(atom.shape)} elements, {in_bytes(8 * atom.row_bytes)} in one piece",
        [*boxes, Box(*first, "outline passive first")],
        cells.labels(),
        [
            "The byte at which each 16-byte piece lies.",
            f"A colour: one {unit_name(atom)} chunk; outlined: the first.",
        ],
        cells.end,
    )


def _subtile_panel(operand: _Operand) -> Scene:
    """Level 3: the chunks or atoms of the first subtile, with LBO and SBO from one to the next."""
    derived, atom = operand.derived, operand.atom
    own, extent, part = derived.descriptor, derived.instruction, operand.part
    counts = (max(1, extent[0] // part[0]), max(1, extent[1] // part[1]))
    shown = (min(counts[0], MAX_PARTS), min(counts[1], MAX_PARTS))
    cells = _Cells("subtile", "from {} on", 70, 30, shown, part, operand.address)
    grid, (right, bottom) = cells.grid, cells.end

    def look(i: int, j: int, address: int) -> tuple[str, str]:
        fill = f"fill{address % atom.row_bytes // CHUNK_BYTES}" if operand.k_major else "plain"
        return fill, f"+{address}"

    boxes = cells.boxes(look)
    if not operand.k_major:
        every = itertools.product(*map(range, shown))
        boxes += [Box(*grid.area(i, j, inset=1.5), atom_kind(i, j)) for i, j in every]
    boxes.append(Box(*grid.area(0, 0, *shown), "outline passive subtile"))
    lbo = ("LBO", own.leading_byte_offset, derived.uses_leading)
    sbo = ("SBO", own.stride_byte_offset, derived.uses_stride)
    # Which of the two leads down (along M or N) and which across (along K).
    lbo_down = not operand.k_major and atom.swizzle_byte_width > 0
    down, across = (lbo, sbo) if lbo_down else (sbo, lbo)
    texts, arrows = cells.labels(), []
    notes = [
        f"+ is the first byte of each of the {by(counts)}"
        f" {f'{unit_name(atom)} chunks' if operand.k_major else 'atoms'}."
    ]
    for (name, value, used), count, dimension in (
        (down, counts[0], "M or N"),
        (across, counts[1], "K"),
    ):
        if count > 1:
            kind = "arrow" if used else "arrow unused"
            if dimension == "K":
                y = bottom + 14
                arrows.append(Arrow(grid.x(0.5), y, grid.x(1.5), y, kind))
                texts.append(Text(grid.x(1.5) + 10, y, f"{name} {value}", "field"))
            else:
                x = right + 14
                arrows.append(Arrow(x, grid.y(0.5), x, grid.y(1.5), kind))
                texts.append(Text(x + 10, grid.y(1), f"{name} {value}", "field"))
        if not used:
            one = f"there is one along {dimension}"
            notes.append(
                f"{name} is not read: {f'{dimension} stays in one atom' if count > 1 else one}."
            )
    if shown != counts:
        notes.append(f"Cut: the first {by(shown)} are drawn.")
    return _panel(
        "3. MMA subtile",
        f"{by(extent)} elements, read by one instruction",
        boxes,
        texts,
        notes,
        (right + 110, bottom + 24),
        arrows,
    )


def _as_mn_by_k(layout: LinearLayout, derived: MmaOperand, mn_dim: int) -> LinearLayout:
    """``offset`` -> (M or N, K), for one block."""
    names = list(layout.out_dims)
    order = [names[mn_dim], names[1 - mn_dim]]
    within = layout.sublayout(["offset"], names).transpose_outs(order)
    return LinearLayout(within.bases, dict(zip(order, derived.tile, strict=True)))


def operand_scene(layout: LinearLayout, derived: MmaOperand, *, mn_dim: int = 0) -> Scene:
    """A derived descriptor over its tile: the four nested levels of seed 002, Sec. 2.

    The bits; then the first 8x16B chunk with its elements, the first atom, the first MMA subtile
    with LBO and SBO from one of its parts to the next; and the tile, with the advance of the start
    address for every subtile. Raises LayoutError: a swizzle with 32-byte atomicity.
    """
    own = derived.descriptor
    head = matrix_scene(own.encode(), own.arch)
    tile_layout = _as_mn_by_k(layout, derived, mn_dim)
    if own.atomicity != CHUNK_BYTES:
        raise LayoutError(
            "layout", f"{own.atomicity}-byte atomicity", "only 16-byte atomicity is drawn"
        )
    atom = SwizzleAtom(derived.major, own.swizzle_byte_width, derived.element_bitwidth)
    operand = _Operand(derived, atom)
    levels = _chunk_panel(operand).beside(_atom_panel(operand)).beside(_subtile_panel(operand))
    levels = replace(levels, height=levels.height - MARGIN)  # the tile has a margin of its own
    made_of_it = Plane(tile_layout, derived.element_bitwidth).is_made_of(atom)
    tile = tile_scene(
        tile_layout,
        derived.element_bitwidth,
        atom=atom if made_of_it else None,
        instruction=derived.instruction,
        number="4. ",
    )
    return head.above(levels).above(tile)
