"""The picture of a swizzle atom: logical order beside shared memory (seed 003, Sec. 3)."""

from __future__ import annotations

from triton_ext.errors import LayoutError
from triton_ext.hardware.banks import BANK_BYTES, LINE_BYTES
from triton_ext.layouts.atoms import SwizzleAtom
from triton_ext.layouts.encodings import CHUNK_BYTES
from triton_ext.layouts.nvmma_shared import ATOM_ROWS
from triton_ext.render.cells import unit_name
from triton_ext.render.scene import (
    MARGIN,
    Box,
    Scene,
    Text,
    caption_width,
    in_bytes,
    lines_of_text,
)


def atom_scene(atom: SwizzleAtom) -> Scene:
    """See `atom_svg`."""
    if not isinstance(atom, SwizzleAtom):
        raise LayoutError("atom", atom, "must be a SwizzleAtom")
    cell_width, cell_height, gap = 40, 26, 72
    per_row = atom.row_bytes // CHUNK_BYTES
    rows, columns = atom.shape
    chunk = 8 * CHUNK_BYTES // atom.element_bitwidth
    layout = atom.to_linear_layout()
    chunk_at = [slot for line in atom.chunk_table() for slot in line]
    k_major = atom.major == "K"
    down, across = (ATOM_ROWS, per_row) if k_major else (per_row, ATOM_ROWS)
    left, top = MARGIN + 44, MARGIN + 92
    boxes, texts = [], []

    def place(slot: int) -> tuple[int, int]:
        point = layout.apply(offset=slot * chunk)
        return point["dim0"], point["dim1"]

    def chunk_box(x: float, y: float, slot: int, view: str) -> Box:
        number = chunk_at[slot]
        row, column = place(slot)
        address = slot * CHUNK_BYTES
        bank = address % LINE_BYTES // BANK_BYTES
        return Box(
            x, y, cell_width, cell_height,
            kind=f"chunk fill{number % per_row}",
            title=f"chunk {number}: {atom.major} major, element ({row}, {column}) and the"
            f" {chunk - 1} after it along {atom.major}; offset {slot * chunk} elements,"
            f" {in_bytes(address)}; banks {bank} to {bank + 3}",
            label=str(number),
            data=(("view", view), ("chunk", number), ("slot", slot),
                  ("row", row), ("column", column)),
        )  # fmt: skip

    for slot in range(len(chunk_at)):
        row, column = place(slot)
        i, j = (row, column // chunk) if k_major else (row // chunk, column)
        boxes.append(chunk_box(left + j * cell_width, top + i * cell_height, slot, "logical"))
    for i in range(down):
        row = i if k_major else i * chunk
        texts.append(Text(left - 8, top + (i + 0.5) * cell_height, str(row), anchor="end"))
    for j in range(across):
        column = j * chunk if k_major else j
        texts.append(Text(left + (j + 0.5) * cell_width, top - 12, str(column), anchor="middle"))

    heading = "Logical: M or N down, K across"
    physical = left + max(across * cell_width, caption_width("", [heading]) + 10) + gap
    for slot in range(len(chunk_at)):
        line, position = divmod(slot, LINE_BYTES // CHUNK_BYTES)
        x, y = physical + position * cell_width, top + line * cell_height
        boxes.append(chunk_box(x, y, slot, "physical"))
        if line == 0:
            bank = position * CHUNK_BYTES // BANK_BYTES
            middle = x + cell_width / 2
            texts.append(Text(middle, top - 12, f"{bank}-{bank + 3}", anchor="middle"))
        if position == 0:
            where = Text(x - 8, y + cell_height / 2, str(slot * CHUNK_BYTES), anchor="end")
            texts.append(where)
    lines = len(chunk_at) * CHUNK_BYTES // LINE_BYTES

    name = "no" if not atom.swizzle_byte_width else f"{atom.swizzle_byte_width}-byte"
    title = f"{atom.major}-major atom, {name} swizzle, {atom.element_bitwidth}-bit elements"
    extent = f"{rows} x {columns} elements"
    texts += [
        Text(MARGIN, MARGIN + 10, title, "heading"),
        Text(left, MARGIN + 44, heading, "subheading"),
        Text(left, MARGIN + 61, f"{extent}; chunks of 16 bytes"),
        Text(physical, MARGIN + 44, "Shared memory: lines of 128 bytes", "subheading"),
        Text(physical, MARGIN + 61, "banks above, byte offsets on the left"),
    ]
    groups = LINE_BYTES // CHUNK_BYTES
    notes, bottom = lines_of_text(
        MARGIN,
        top + max(down, lines) * cell_height + 14,
        [
            f"A colour is {'an' if k_major else 'a'} {unit_name(atom)} subtile: its 8 chunks lie",
            f"in all {groups} groups of 4 banks, so that it is read in one go.",
        ],
    )
    width = physical + groups * cell_width + MARGIN
    return Scene(
        title,
        f"On the left the {extent} of the atom as chunks of 16 bytes, numbered along"
        f" {atom.major}; on the right the {lines} lines of 128 bytes in which they lie:"
        f" {'; '.join(' '.join(map(str, line)) for line in atom.chunk_table())}.",
        width,
        bottom + MARGIN,
        tuple(boxes),
        (*texts, *notes),
    )
