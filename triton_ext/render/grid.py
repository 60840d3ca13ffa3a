"""Layouts drawn in the terminal: which offset each element has, coloured by bank."""

from __future__ import annotations

from dataclasses import dataclass

import click

from triton_ext.layouts.encodings import CHUNK_BYTES
from triton_ext.layouts.linear_layout import LinearLayout

_COLOURS = ("red", "green", "yellow", "blue", "magenta", "cyan", "white", "bright_black")
"""One for each group of 4 banks: the 8 chunks of 16 bytes in a 128-byte line."""


@dataclass(frozen=True)
class _Axis:
    """The part of a dimension that is drawn: cells of `step` elements, `count` of them."""

    name: str
    size: int
    step: int
    count: int

    @property
    def cut(self) -> bool:
        return self.count * self.step < self.size


def _contiguous_run(layout: LinearLayout, limit: int) -> tuple[str, int]:
    """The dimension along which offsets count up by one, and for how many elements."""
    names = list(layout.out_dims)
    run, along = 1, names[-1]
    for basis in layout.bases["offset"]:
        moved = [(name, value) for name, value in zip(names, basis, strict=True) if value]
        if run >= limit or len(moved) != 1 or moved[0][1] != run:
            break
        if run > 1 and moved[0][0] != along:
            break
        along, run = moved[0][0], 2 * run
    index = names.index(along)
    later = [basis[index] for basis in layout.bases["offset"]]
    while any(value % run for value in later[run.bit_length() - 1 :]):  # permuted further on
        run //= 2
    return along, run


def draw_grid(
    layout: LinearLayout,
    element_bitwidth: int | None = None,
    *,
    max_rows: int | None = 16,
    max_width: int | None = 80,
) -> str:
    """The last two dimensions of a layout as a table of offsets, with ANSI colours.

    A cell stands for a run of elements with consecutive offsets, at most 16 bytes, and shows the
    offset of the first, in elements (``block:offset`` with a cluster). Its colour is the group of
    4 shared-memory banks that it lies in. Leading dimensions are shown at 0.

    Args:
        max_rows, max_width: how many lines of cells and how many characters a line to draw; None
            for no limit. What is left out is said below the table.
    """
    if not layout.out_dims or "offset" not in layout.in_dims:
        return "(nothing to draw: the layout has no offsets or no dimensions)"
    chunk = 8 * CHUNK_BYTES // element_bitwidth if element_bitwidth else 8
    along, run = _contiguous_run(layout, chunk)
    inverse = layout.pseudoinvert()
    *leading, column_name = layout.out_dims
    row_name = leading.pop() if leading else ""

    def offset_of(row: int, column: int) -> tuple[int, int]:
        point = dict.fromkeys(leading, 0) | {column_name: column}
        if row_name:
            point[row_name] = row
        found = inverse.apply(point)
        return found["offset"], found.get("block", 0)

    blocks = layout.in_dims.get("block", 1) > 1
    largest = layout.in_dims["offset"] - 1
    cell_width = (
        len(f"{layout.in_dims.get('block', 1) - 1}:{largest}" if blocks else str(largest)) + 1
    )
    row_size = layout.out_dims.get(row_name, 1)
    label_width = max(len(str(row_size - 1)), len(f"{row_name}\\{column_name}")) + 1
    row_step = run if along == row_name else 1
    column_step = run if along == column_name else 1
    column_size = layout.out_dims[column_name]
    columns = column_size // column_step
    if max_width is not None:
        columns = max(1, min(columns, (max_width - label_width) // cell_width))
    rows = row_size // row_step
    if max_rows is not None:
        rows = min(rows, max_rows)
    across = _Axis(column_name, column_size, column_step, columns)
    down = _Axis(row_name, row_size, row_step, rows)

    header = f"{row_name}\\{column_name}".rjust(label_width)
    lines = [header + "".join(str(i * across.step).rjust(cell_width) for i in range(across.count))]
    for i in range(down.count):
        cells = []
        for j in range(across.count):
            offset, block = offset_of(i * down.step, j * across.step)
            text = (f"{block}:{offset}" if blocks else str(offset)).rjust(cell_width)
            if element_bitwidth:
                bank_group = offset * element_bitwidth // 8 // CHUNK_BYTES % len(_COLOURS)
                text = click.style(text, fg=_COLOURS[bank_group])
            cells.append(text)
        lines.append(str(i * down.step).rjust(label_width) + "".join(cells))
    lines += _notes(across, down, leading, along, run, element_bitwidth, blocks)
    return "\n".join(lines)


def _notes(
    across: _Axis,
    down: _Axis,
    leading: list[str],
    along: str,
    run: int,
    element_bitwidth: int | None,
    blocks: bool,
) -> list[str]:
    cell = "block:offset" if blocks else "offset"
    what = f"each cell: {cell} in elements"
    if run > 1:
        what += f", of the first of {run} along {along}"
    if element_bitwidth:
        what += "; a colour: 4 banks (16 bytes)"
    notes = [what]
    if leading:
        notes.append(f"at {', '.join(name + ' = 0' for name in leading)}")
    for axis in (down, across):
        if axis.cut:
            shown = axis.count * axis.step
            notes.append(f"... {axis.name} 0 to {shown - 1} of {axis.size} (--full shows all)")
    return notes
