"""How the tensor core reads an operand: its descriptor, and the four nested levels of its tile.

Chunk, atom, MMA subtile and tile are those of seed 002, Sec. 2; LBO and SBO are the arrows between
the parts of a subtile (Sec. 3.3 and 4.3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from triton_ext.errors import LayoutError
from triton_ext.hardware.operand import MmaOperand
from triton_ext.layouts.atoms import SwizzleAtom
from triton_ext.layouts.encodings import CHUNK_BYTES
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.render.cells import Plane, unit_name, unit_shape
from triton_ext.render.descriptor_picture import matrix_scene
from triton_ext.render.scene import (
    FILLS,
    MARGIN,
    Arrow,
    Box,
    Scene,
    Text,
    by,
    caption_width,
    in_bytes,
    lines_of_text,
)
from triton_ext.render.tile_picture import tile_scene

MAX_PARTS = 8
"""At most so many parts of a subtile are drawn down and across."""
_TOP = MARGIN + 74
_LEFT = MARGIN + 52


@dataclass(frozen=True)
class _Operand:
    """An operand with what the panels share. All coordinates are (M or N, K)."""

    derived: MmaOperand
    atom: SwizzleAtom

    @property
    def unit(self) -> tuple[int, int]:
        return unit_shape(self.atom)

    @property
    def by_atoms(self) -> bool:
        """Whether LBO and SBO lead from atom to atom, not from chunk to chunk (seed 002, 4.3)."""
        return self.atom.major == "MN"

    @property
    def part(self) -> tuple[int, int]:
        """What LBO and SBO step over."""
        return self.atom.shape if self.by_atoms else self.unit

    def address(self, row: int, column: int) -> int:
        """Where an element of the first subtile lies, in bytes from the subtile's start."""
        own = self.derived.descriptor
        found = own.element_address(row, column, self.atom.element_bitwidth, self.atom.major)
        return found - own.start_address


def _frame(
    title: str,
    subtitle: str,
    boxes: list[Box],
    texts: list[Text],
    notes: list[str],
    size: tuple[float, float],
    arrows: tuple[Arrow, ...] = (),
) -> Scene:
    """A panel: its heading, what is drawn, and the notes below; `size` is that of the drawing."""
    drawn, bottom = lines_of_text(MARGIN, size[1] + 12, notes)
    width = max(size[0], caption_width(title, [subtitle, *notes]) + MARGIN)
    heading = (
        Text(MARGIN, MARGIN + 10, title, "heading"),
        Text(MARGIN, MARGIN + 31, subtitle, "note"),
    )
    description = " ".join([subtitle, *notes])
    everything = (*heading, *texts, *drawn)
    return Scene(title, description, width + MARGIN, bottom, tuple(boxes), everything, arrows)


def _chunk_panel(operand: _Operand) -> Scene:
    """Level 1: the elements of the first 8x16B chunk, and where its rows lie."""
    rows, columns = operand.unit
    k_major = operand.atom.major == "K"
    width, height = (max(14, 176 // columns), 22) if k_major else (34, 176 // rows)
    dense = 2 if max(rows, columns) > 8 else 1  # every second number where there is no room
    boxes, texts = [], []
    for row in range(rows):
        for column in range(columns):
            address = operand.address(row, column)
            along = column if k_major else row
            boxes.append(
                Box(
                    _LEFT + column * width,
                    _TOP + row * height,
                    width,
                    height,
                    "chunk fill0",
                    f"element ({row}, {column}): + {in_bytes(address)}",
                    str(along) if along % dense == 0 else "",
                    data=(("level", "element"), ("row", row), ("column", column),
                          ("byte", address)),
                )
            )  # fmt: skip
    right, bottom = _LEFT + columns * width, _TOP + rows * height
    for line in range(8):
        start = operand.address(line, 0) if k_major else operand.address(0, line)
        if k_major:
            middle = _TOP + (line + 0.5) * height
            texts.append(Text(right + 8, middle, f"+{start}", "value"))
            texts.append(Text(_LEFT - 8, middle, str(line), anchor="end"))
        else:
            middle = _LEFT + (line + 0.5) * width
            texts.append(Text(middle, bottom + 12, f"+{start}", anchor="middle"))
            texts.append(Text(middle, _TOP - 11, str(line), anchor="middle"))
    name = unit_name(operand.atom)
    size = (right + 52, bottom) if k_major else (right, bottom + 18)
    lines = "row" if k_major else "column"
    return _frame(
        "1. Chunk",
        f"{name}: 8 {lines}s of 16 bytes; {by(operand.unit)} elements",
        boxes,
        texts,
        [f"+ is the {lines}'s place in shared memory, in bytes:", "the swizzle included."],
        size,
    )


def _grid(
    operand: _Operand,
    counts: tuple[int, int],
    cell: tuple[int, int],
    box: Callable[[int, int, float, float], Box],
    step: tuple[int, int],
) -> tuple[list[Box], list[Text], tuple[float, float]]:
    """Cells with their first coordinates beside them, and the size of it all."""
    height, width = cell
    boxes, texts = [], []
    for i in range(counts[0]):
        y = _TOP + i * height
        texts.append(Text(_LEFT - 8, y + height / 2, str(i * step[0]), anchor="end"))
        boxes += [box(i, j, _LEFT + j * width, y) for j in range(counts[1])]
    for j in range(counts[1]):
        middle = _LEFT + (j + 0.5) * width
        texts.append(Text(middle, _TOP - 11, str(j * step[1]), anchor="middle"))
    return boxes, texts, (_LEFT + counts[1] * width, _TOP + counts[0] * height)


def _atom_panel(operand: _Operand) -> Scene:
    """Level 2: the 16-byte pieces of the atom, and where they lie in it."""
    atom = operand.atom
    rows, columns = atom.shape
    chunk = 8 * CHUNK_BYTES // atom.element_bitwidth
    step = (1, chunk) if atom.major == "K" else (chunk, 1)
    counts = (rows // step[0], columns // step[1])

    def box(i: int, j: int, x: float, y: float) -> Box:
        row, column = i * step[0], j * step[1]
        address = atom.address(row, column)
        fill = (j if atom.major == "K" else i) % FILLS
        title = f"elements from ({row}, {column}) on: + {in_bytes(address)}"
        data = (("level", "atom"), ("row", row), ("column", column), ("byte", address))
        return Box(x, y, 40, 22, f"chunk fill{fill}", title, str(address), data=data)

    boxes, texts, size = _grid(operand, counts, (22, 40), box, step)
    if atom.major == "K":
        first = Box(_LEFT + 1, _TOP + 1, 38, 8 * 22 - 2, "outline passive first")
    else:
        first = Box(_LEFT + 1, _TOP + 1, 8 * 40 - 2, 20, "outline passive first")
    return _frame(
        "2. Atom",
        f"{by(atom.shape)} elements, {in_bytes(8 * atom.row_bytes)} in one piece",
        [*boxes, first],
        texts,
        [
            "The byte at which each 16-byte piece lies.",
            f"A colour: one {unit_name(atom)} chunk; outlined: the first.",
        ],
        size,
    )


def _atom_outline(box: Box, turn: int) -> Box:
    kind = f"outline passive {'other-atom' if turn else 'atom'}"
    return Box(box.x + 1.5, box.y + 1.5, box.width - 3, box.height - 3, kind)


def _subtile_panel(operand: _Operand) -> Scene:
    """Level 3: the chunks or atoms of the first subtile, with LBO and SBO from one to the next."""
    derived, atom = operand.derived, operand.atom
    part = operand.part
    extent = derived.instruction
    counts = (max(1, extent[0] // part[0]), max(1, extent[1] // part[1]))
    shown = (min(counts[0], MAX_PARTS), min(counts[1], MAX_PARTS))
    parts = "atoms" if operand.by_atoms else f"{unit_name(atom)} chunks"

    def box(i: int, j: int, x: float, y: float) -> Box:
        row, column = i * part[0], j * part[1]
        address = operand.address(row, column)
        kind = "chunk plain" if operand.by_atoms else f"chunk fill{address % atom.row_bytes // 16}"
        title = f"from ({row}, {column}) on: + {in_bytes(address)}"
        data = (("level", "subtile"), ("row", row), ("column", column), ("byte", address))
        return Box(x, y, 70, 30, kind, title, f"+{address}", data=data)

    boxes, texts, (right, bottom) = _grid(operand, shown, (30, 70), box, part)
    if operand.by_atoms:
        boxes += [_atom_outline(box, sum(divmod(n, shown[1])) % 2) for n, box in enumerate(boxes)]
    inside = (right - _LEFT, bottom - _TOP)
    boxes.append(Box(_LEFT, _TOP, *inside, "outline passive subtile"))
    names = ("LBO", "SBO")
    # Which of the two leads down (along M or N) and which across (along K).
    down, across = ("SBO", "LBO") if atom.major == "K" else ("LBO", "SBO")
    if atom.major == "MN" and not atom.swizzle_byte_width:
        down, across = across, down
    values = dict(
        zip(
            names,
            (derived.descriptor.leading_byte_offset, derived.descriptor.stride_byte_offset),
            strict=True,
        )
    )
    used = dict(zip(names, (derived.uses_leading, derived.uses_stride), strict=True))
    arrows = []
    if counts[0] > 1:
        x = right + 14
        kind = "arrow" if used[down] else "arrow unused"
        arrows.append(Arrow(x, _TOP + 15, x, _TOP + 45, kind))
        texts.append(Text(x + 10, _TOP + 30, f"{down} {values[down]}", "field"))
    if counts[1] > 1:
        y = bottom + 14
        kind = "arrow" if used[across] else "arrow unused"
        arrows.append(Arrow(_LEFT + 35, y, _LEFT + 105, y, kind))
        texts.append(Text(_LEFT + 115, y, f"{across} {values[across]}", "field"))
    notes = [f"+ is the first byte of each of the {by(counts)} {parts}."]
    for name, count, dimension in ((down, counts[0], "M or N"), (across, counts[1], "K")):
        if not used[name]:
            why = (
                f"{dimension} stays in one atom" if count > 1 else f"there is one along {dimension}"
            )
            notes.append(f"{name} is not used: {why}.")
    if shown != counts:
        notes.append(f"Cut: the first {by(shown)} are drawn.")
    return _frame(
        "3. MMA subtile",
        f"{by(extent)} elements, read by one instruction",
        boxes,
        texts,
        notes,
        (right + 110, bottom + 24),
        tuple(arrows),
    )


def _as_mn_by_k(layout: LinearLayout, derived: MmaOperand, mn_dim: int) -> LinearLayout:
    """``offset`` -> (M or N, K), for one block."""
    names = list(layout.out_dims)
    order = [names[mn_dim], names[1 - mn_dim]]
    within = layout.sublayout(["offset"], names).transpose_outs(order)
    return LinearLayout(within.bases, dict(zip(order, derived.tile, strict=True)))


def operand_scene(layout: LinearLayout, derived: MmaOperand, *, mn_dim: int = 0) -> Scene:
    """See `triton_ext.render.svg.operand_svg`."""
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
    made_of_it = Plane(tile_layout, derived.element_bitwidth).is_made_of(atom)
    tile = tile_scene(
        tile_layout,
        derived.element_bitwidth,
        atom=atom if made_of_it else None,
        instruction=derived.instruction,
        number="4. ",
    )
    return head.above(levels).above(tile)
