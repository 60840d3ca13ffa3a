"""The picture of a tile: its four nested levels (seed 002, Sec. 2)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.hardware.banks import BANK_BYTES, LINE_BYTES
from triton_ext.layouts.arguments import is_power_of_two
from triton_ext.layouts.atoms import SwizzleAtom
from triton_ext.layouts.encodings import CHUNK_BYTES
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.layouts.shared_encoding import Paddings
from triton_ext.render.cells import Plane, fits
from triton_ext.render.parts import atom_kind, unit_name, unit_shape
from triton_ext.render.scene import FILLS, MARGIN, Box, Grid, Scene, Text, caption_width
from triton_ext.render.words import by, in_bytes, padding_text

MAX_CELLS = 32
"""At most so many cells down and across are drawn."""


@dataclass(frozen=True)
class _Tile:
    """What is drawn, and where. A cell is an 8x16B chunk of an atom, or a run of elements."""

    plane: Plane
    atom: SwizzleAtom | None
    instruction: tuple[int, int] | None
    cell: tuple[int, int]

    @property
    def grid(self) -> Grid:
        height = 36 if self.atom or self.instruction else 22  # two texts in a cell, or one
        return Grid(MARGIN + 44, MARGIN + 62, 46, height)

    @property
    def drawn(self) -> tuple[int, int]:
        """The rows and columns of elements that are drawn."""
        rows, columns = self.plane.shape
        return (min(rows, MAX_CELLS * self.cell[0]), min(columns, MAX_CELLS * self.cell[1]))

    def area(
        self, row: int, column: int, extent: tuple[int, int], inset: float = 0
    ) -> tuple[float, float, float, float]:
        """The rectangle of some rows and columns of elements: x, y, width, height."""
        height, width = self.cell
        rows = min(extent[0], self.drawn[0] - row)
        columns = min(extent[1], self.drawn[1] - column)
        return self.grid.area(row / height, column / width, rows / height, columns / width, inset)

    def starts(self, extent: tuple[int, int]) -> list[tuple[int, int]]:
        """The first element of each part of this extent that is drawn."""
        rows, columns = self.drawn
        down, across = extent
        return list(itertools.product(range(0, rows, down), range(0, columns, across)))

    def byte(self, row: int, column: int) -> int:
        """The byte in which an element starts."""
        return self.plane.byte(self.plane.offset_and_block(row, column)[0])


def _cell_box(tile: _Tile, row: int, column: int) -> Box:
    plane, atom = tile.plane, tile.atom
    offset, block = plane.offset_and_block(row, column)
    address = plane.byte(offset)
    data = {"row": row, "column": column, "offset": offset, "byte": address}
    where = f"({row}, {column})" if plane.names[0] else f"({column})"
    title = f"element {where}: offset {plane.address(offset)} elements, {in_bytes(address)}"
    if plane.blocks > 1:
        title += f" of block {block}"
        data["block"] = block
    if atom:
        rows, columns = tile.cell
        if atom.major == "K":
            fill = column % atom.shape[1] // columns
            points = [(row + i, column) for i in range(rows)]
        else:
            fill = row % atom.shape[0] // rows
            points = [(row, column + i) for i in range(columns)]
        pieces = ", ".join(str(tile.byte(*point)) for point in points)
        title = f"{unit_name(atom)} chunk at {title}; its pieces of 16 bytes at {pieces}"
        label = ""
    else:
        fill = address % LINE_BYTES // CHUNK_BYTES
        title += f"; bank {address % LINE_BYTES // BANK_BYTES}"
        place = plane.address(offset)
        label = f"{block}:{place}" if plane.blocks > 1 else str(place)
    return Box(
        *tile.area(row, column, tile.cell),
        f"chunk fill{fill % FILLS}",
        title,
        label,
        at="top" if tile.instruction else "middle",
        data=data,
    )


def _atom_box(tile: _Tile, atom: SwizzleAtom, row: int, column: int) -> Box:
    rows, columns = atom.shape
    offset, block = tile.plane.offset_and_block(row, column)
    address = tile.plane.byte(offset)
    return Box(
        *tile.area(row, column, atom.shape, inset=1.5),
        atom_kind(row // rows, column // columns),
        label=f"{block}:{address}" if tile.plane.blocks > 1 else str(address),
        at="top",
        data={"atom-row": row, "atom-column": column, "byte": address},
    )


def _subtile(tile: _Tile, extent: tuple[int, int], row: int, column: int) -> tuple[Box, Box]:
    """The outline of a subtile, and the tag with its index and the advance of its address."""
    i, j = row // extent[0], column // extent[1]
    address = tile.byte(row, column)
    x, y, width, height = tile.area(row, column, extent)
    label = f"({i},{j})" + (f" +{address}" if width > 80 else "")
    data = {"subtile-row": i, "subtile-column": j, "byte": address}
    box = Box(x, y, width, height, "outline passive subtile", data=data)
    return box, Box(x + 3, y + 20, 6.2 * len(label) + 6, 13, "tag passive", label=label)


def _notes(tile: _Tile) -> list[tuple[str, str]]:
    """The legend: for each line the kind of its swatch ("" for none) and the text."""
    plane, atom, instruction = tile.plane, tile.atom, tile.instruction
    size = in_bytes(plane.size)
    shared = " a block" if plane.blocks > 1 else ""
    notes = [("", f"Tile: {by(plane.shape)} elements, {size}{shared}.")]
    if plane.paddings:
        notes.append(("", f"Offsets count the padding: {padding_text(plane.paddings)}."))
    if plane.leading:
        notes.append(("", f"Drawn at {', '.join(name + ' = 0' for name in plane.leading)}."))
    if atom:
        size = in_bytes(atom.shape[0] * atom.shape[1] * plane.element_bitwidth // 8)
        text = f"Swizzle atoms: {by(atom.shape)}, {size} each; at the byte that is written in them."
        notes.append(("outline atom", text))
    if instruction:
        count = (plane.shape[0] // instruction[0], plane.shape[1] // instruction[1])
        text = (
            f"MMA subtiles: {by(instruction)}, {by(count)} of them;"
            " + is the advance of the start address in bytes."
        )
        notes.append(("outline subtile", text))
    if atom:
        text = f"{unit_name(atom)} chunks: {by(tile.cell)}; a colour is the place in the atom."
    else:
        run = tile.cell[0] * tile.cell[1]
        text = (
            f"A cell is {run} element{'s' if run > 1 else ''} side by side in memory, at the offset"
            " that is written in it; a colour is 4 banks."
        )
    notes.append(("chunk fill1", text))
    if tile.drawn != plane.shape:
        text = f"Cut: the first {by(tile.drawn)} of {by(plane.shape)} are drawn."
        notes.append(("", text))
    return notes


def _axes(tile: _Tile) -> list[Text]:
    down, across = tile.plane.names
    caption = f"{down} down, {across} across" if down else f"{across} across"
    return [
        Text(tile.grid.left, MARGIN + 32, caption),
        *tile.grid.row_labels(range(0, tile.drawn[0], tile.cell[0])),
        *tile.grid.column_labels(range(0, tile.drawn[1], tile.cell[1])),
    ]


def _checked_instruction(instruction: Any, plane: Plane, cell: tuple[int, int]) -> tuple[int, int]:
    try:
        rows, columns = instruction
    except (TypeError, ValueError):
        raise LayoutError("instruction", instruction, "must be (M or N, K), in elements") from None
    if not (is_power_of_two(rows) and is_power_of_two(columns)):
        raise LayoutError("instruction", instruction, "must be two powers of two")
    if not fits((rows, columns), plane.shape) or not fits(cell, (rows, columns)):
        rule = f"must divide the tile, {by(plane.shape)}, into whole cells of {by(cell)}"
        raise LayoutError("instruction", instruction, rule)
    return rows, columns


def tile_scene(
    layout: LinearLayout,
    element_bitwidth: int,
    *,
    atom: SwizzleAtom | None = None,
    instruction: tuple[int, int] | None = None,
    number: str = "",
    paddings: Paddings = (),
) -> Scene:
    """A tile in shared memory: the four nested levels of seed 002, Sec. 2. Raises LayoutError: a
    layout that is not of shared memory or does not reach every coordinate, a tile that is not made
    of the atom, an instruction that does not divide the tile.

    Args:
        layout: ``offset`` (elements), and perhaps ``block``, to coordinates. The last two
            dimensions are drawn, the others at 0.
        element_bitwidth: bits of an element, a power of two.
        atom: the swizzle atom that the tile is made of. A cell is then an 8x16B chunk; atoms are
            outlined and labelled with their byte offset. Without an atom, a cell is a run of
            elements in order in memory, at most 16 bytes, and its colour stands for 4 banks.
        instruction: the operand shape of one MMA, (M or N, K) in elements; outlined in red, with
            the advance of the start address in bytes.
        number: what stands before the title.
        paddings: pairs (interval, padding) in elements, of a `PaddedShared`.

    At most 32 x 32 cells are drawn; a note says what was cut.
    """
    plane = Plane(layout, element_bitwidth, paddings)
    if atom is not None and not plane.is_made_of(atom):
        rule = "the tile must consist of whole atoms, each in one piece"
        raise LayoutError("atom", str(atom), rule)
    cell = unit_shape(atom) if atom else plane.cell
    if instruction is not None:
        instruction = _checked_instruction(instruction, plane, cell)
    tile = _Tile(plane, atom, instruction, cell)

    boxes = [_cell_box(tile, *start) for start in tile.starts(cell)]
    texts = _axes(tile)
    if atom:
        boxes += [_atom_box(tile, atom, *start) for start in tile.starts(atom.shape)]
    if instruction:
        for start in tile.starts(instruction):
            boxes += _subtile(tile, instruction, *start)
    what = f"{atom}, " if atom else ""
    title = f"{number}Tile of {by(layout.out_dims.values())}: {what}{element_bitwidth}-bit elements"
    texts.append(Text(MARGIN, MARGIN + 10, title, "heading"))

    notes = _notes(tile)
    x, y, width, height = tile.area(0, 0, tile.drawn)
    bottom = y + height + 14
    for kind, note in notes:
        if kind:
            boxes.append(Box(MARGIN, bottom + 2, 16, 12, kind))
        texts.append(Text(MARGIN + 24, bottom + 8, note, "note"))
        bottom += 19
    longest = max(caption_width(title, ()), 24 + caption_width("", [note for _, note in notes]))
    return Scene(
        title,
        " ".join(note for _, note in notes),
        max(x + width, longest) + MARGIN,
        bottom + MARGIN,
        tuple(boxes),
        tuple(texts),
    )
