"""Layouts drawn in the terminal: which offset each element has, coloured by bank."""

from __future__ import annotations

from dataclasses import dataclass

import click

from triton_ext.errors import LayoutError
from triton_ext.layouts.encodings import CHUNK_BYTES
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.layouts.shared_encoding import Paddings, padded_offset
from triton_ext.render.cells import chunk_elements, contiguous_run
from triton_ext.render.words import padding_text

MAX_CELLS = 1 << 21
"""A table of more cells is refused."""
_COLOURS = ("red", "green", "yellow", "blue", "magenta", "cyan", "white", "bright_black")
"""One for each group of 4 banks: the 8 chunks of 16 bytes in a 128-byte line."""


@dataclass(frozen=True)
class _Axis:
    """The part of a dimension that is drawn: `count` cells of `step` elements."""

    name: str
    size: int
    step: int
    count: int

    @property
    def starts(self) -> range:
        """The first element of each cell."""
        return range(0, self.count * self.step, self.step)


def draw_grid(
    layout: LinearLayout,
    element_bitwidth: int | None = None,
    *,
    max_rows: int | None = 16,
    max_width: int | None = 80,
    paddings: Paddings = (),
) -> str:
    """The last two dimensions of a layout as a table of offsets, with ANSI colours.

    A cell stands for a run of elements with consecutive offsets, at most 16 bytes, and shows the
    offset of the first, in elements (``block:offset`` with a cluster). Its colour stands for 4
    banks of shared memory. Leading dimensions are shown at 0. Raises LayoutError: more than
    `MAX_CELLS` cells, or a layout that misses some coordinates.

    Args:
        layout: ``offset``, and perhaps ``block`` -> coordinates.
        element_bitwidth: bits of an element; left out, there are no colours.
        paddings: pairs (interval, padding) in elements, of a `PaddedShared`; offsets count them.
        max_rows, max_width: how many lines of cells and how many characters a line to draw; None
            for no limit. What is left out is said below the table.
    """
    if not layout.out_dims or "offset" not in layout.in_dims:
        return "(nothing to draw: the layout has no offsets or no dimensions)"
    along, run = contiguous_run(layout, chunk_elements(element_bitwidth or 16), paddings)
    inverse = layout.pseudoinvert()
    *leading, column_name = layout.out_dims
    row_name = leading.pop() if leading else ""
    blocks = layout.in_dims.get("block", 1)

    def places(name: str, starts: range) -> list[tuple[int, int]]:
        """(offset, block) of some coordinates along a dimension: XORs of the inverse's bases."""
        point = dict.fromkeys(layout.out_dims, 0)
        found = [inverse.apply(point | ({name: at} if name else {})) for at in starts]
        return [(each["offset"], each.get("block", 0)) for each in found]

    def axis(name: str, room: int | None) -> _Axis:
        size, step = layout.out_dims.get(name, 1), run if name == along else 1
        return _Axis(name, size, step, size // step if room is None else min(size // step, room))

    largest = padded_offset(layout.in_dims["offset"] - 1, paddings)
    cell_width = len(f"{blocks - 1}:{largest}" if blocks > 1 else str(largest)) + 1
    corner = f"{row_name}\\{column_name}"
    label_width = max(len(str(layout.out_dims.get(row_name, 1) - 1)), len(corner)) + 1
    room = None if max_width is None else max(1, (max_width - label_width) // cell_width)
    down, across = axis(row_name, max_rows), axis(column_name, room)

    if down.count * across.count > MAX_CELLS:
        cells = f"{down.count} x {across.count} cells"
        raise LayoutError("grid", cells, f"must be at most {MAX_CELLS}; leave --full out")
    labels = "".join(str(column).rjust(cell_width) for column in across.starts)
    lines = [corner.rjust(label_width) + labels]
    columns = places(column_name, across.starts)
    for row, (row_offset, row_block) in zip(
        down.starts, places(row_name, down.starts), strict=True
    ):
        line = str(row).rjust(label_width)
        for column_offset, column_block in columns:
            offset = padded_offset(row_offset ^ column_offset, paddings)
            block = row_block ^ column_block
            text = (f"{block}:{offset}" if blocks > 1 else str(offset)).rjust(cell_width)
            if element_bitwidth:
                bank_group = offset * element_bitwidth // 8 // CHUNK_BYTES % len(_COLOURS)
                text = click.style(text, fg=_COLOURS[bank_group])
            line += text
        lines.append(line)

    what = f"each cell: {'block:offset' if blocks > 1 else 'offset'} in elements"
    what += f", of the first of {run} along {along}" if run > 1 else ""
    what += f", {padding_text(paddings)}" if paddings else ""
    lines.append(what + ("; a colour: 4 banks (16 bytes)" if element_bitwidth else ""))
    if leading:
        lines.append(f"at {', '.join(name + ' = 0' for name in leading)}")
    for each in (down, across):
        if each.starts.stop < each.size:
            shown = each.starts.stop
            lines.append(f"... {each.name} 0 to {shown - 1} of {each.size} (--full shows all)")
    return "\n".join(lines)
