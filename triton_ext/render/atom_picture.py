"""The picture of a swizzle atom: logical order beside shared memory (seed 003, Sec. 3)."""

from __future__ import annotations

from triton_ext.errors import LayoutError
from triton_ext.hardware.banks import BANK_BYTES, LINE_BYTES
from triton_ext.layouts.atoms import SwizzleAtom
from triton_ext.layouts.encodings import CHUNK_BYTES
from triton_ext.layouts.nvmma_shared import ATOM_ROWS
from triton_ext.render.cells import chunk_elements
from triton_ext.render.parts import unit_name
from triton_ext.render.scene import MARGIN, Box, Grid, Scene, Text, caption_width, figure
from triton_ext.render.words import in_bytes

_GROUPS = LINE_BYTES // CHUNK_BYTES
"""The groups of 4 banks, each of which a 16-byte chunk fills."""


def atom_scene(atom: SwizzleAtom) -> Scene:
    """A swizzle atom, in logical order beside its lines of shared memory.

    Chunks of 16 bytes are numbered as in seed 003, Sec. 3 (along the contiguous dimension first),
    and have the colour of their 8x16B subtile. Raises LayoutError: not a `SwizzleAtom`.
    """
    if not isinstance(atom, SwizzleAtom):
        raise LayoutError("atom", atom, "must be a SwizzleAtom")
    per_row = atom.row_bytes // CHUNK_BYTES
    chunk = chunk_elements(atom.element_bitwidth)
    layout = atom.to_linear_layout()
    chunk_at = [number for line in atom.chunk_table() for number in line]
    k_major = atom.major == "K"
    down, across = (ATOM_ROWS, per_row) if k_major else (per_row, ATOM_ROWS)
    row_step, column_step = (1, chunk) if k_major else (chunk, 1)
    title_of_logical = "Logical: M or N down, K across"
    logical = Grid(MARGIN + 44, MARGIN + 92, 40, 26, clearance=12)
    gap = 72
    left = max(logical.x(across), logical.left + caption_width("", [title_of_logical]) + 10) + gap
    physical = Grid(left, logical.top, logical.width, logical.height, logical.clearance)

    def box(grid: Grid, row: int, column: int, slot: int, view: str) -> Box:
        number, address = chunk_at[slot], slot * CHUNK_BYTES
        mn, k = layout.apply(offset=slot * chunk).values()
        bank = address % LINE_BYTES // BANK_BYTES
        return Box(
            *grid.area(row, column),
            f"chunk fill{number % per_row}",
            f"chunk {number}: {atom.major} major, element ({mn}, {k}) and the"
            f" {chunk - 1} after it along {atom.major}; offset {slot * chunk} elements,"
            f" {in_bytes(address)}; banks {bank} to {bank + 3}",
            str(number),
            data={"view": view, "chunk": number, "slot": slot, "row": mn, "column": k},
        )

    boxes = []
    texts = [
        *logical.row_labels(range(0, down * row_step, row_step)),
        *logical.column_labels(range(0, across * column_step, column_step)),
    ]
    for slot in range(len(chunk_at)):
        mn, k = layout.apply(offset=slot * chunk).values()
        boxes.append(box(logical, mn // row_step, k // column_step, slot, "logical"))
    for slot in range(len(chunk_at)):
        line, position = divmod(slot, _GROUPS)
        boxes.append(box(physical, line, position, slot, "physical"))
        if line == 0:
            bank = position * CHUNK_BYTES // BANK_BYTES
            texts.append(physical.column_label(position, f"{bank}-{bank + 3}"))
        if position == 0:
            texts.append(physical.row_label(line, slot * CHUNK_BYTES))
    lines = len(chunk_at) // _GROUPS

    name = "no" if not atom.swizzle_byte_width else f"{atom.swizzle_byte_width}-byte"
    title = f"{atom.major}-major atom, {name} swizzle, {atom.element_bitwidth}-bit elements"
    extent = " x ".join(map(str, atom.shape)) + " elements"
    texts += [
        Text(MARGIN, MARGIN + 10, title, "heading"),
        Text(logical.left, MARGIN + 44, title_of_logical, "subheading"),
        Text(logical.left, MARGIN + 61, f"{extent}; chunks of 16 bytes"),
        Text(physical.left, MARGIN + 44, "Shared memory: lines of 128 bytes", "subheading"),
        Text(physical.left, MARGIN + 61, "banks above, byte offsets on the left"),
    ]
    return figure(
        title,
        boxes,
        texts,
        [
            f"A colour is {'an' if k_major else 'a'} {unit_name(atom)} subtile: its 8 chunks lie",
            f"in all {_GROUPS} groups of 4 banks, so that it is read in one go.",
        ],
        (physical.x(_GROUPS), logical.y(max(down, lines)) + 2),
        description=f"On the left the {extent} of the atom as chunks of 16 bytes, numbered along"
        f" {atom.major}; on the right the {lines} lines of 128 bytes in which they lie:"
        f" {'; '.join(' '.join(map(str, line)) for line in atom.chunk_table())}.",
    )
