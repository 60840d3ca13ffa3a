"""The picture of any linear layout: which input reaches each coordinate."""

from __future__ import annotations

from triton_ext.errors import LayoutError
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.render.scene import FILLS, MARGIN, Box, Grid, Scene, figure, fitting, heading

MAX_ROWS, MAX_COLUMNS = 16, 32
"""At most so many rows and columns are drawn."""


def linear_scene(layout: LinearLayout, note: str = "") -> Scene:
    """The last two output dimensions, the others at 0: in each cell the input that reaches it.

    Of several inputs, it is the one that `LinearLayout.pseudoinvert` chooses. A label lists the
    input dimensions in their order; a colour is a value of the first one that is not ``register``,
    or, where offsets are all that there is, of the offset's line of 8 elements. `note`: a line
    below the picture. Raises LayoutError: no output dimension, or coordinates that no input
    reaches.
    """
    names = list(layout.out_dims)
    if not names or not layout.in_dims:
        raise LayoutError("layout", str(layout), "must have input and output dimensions")
    inverse = layout.pseudoinvert()
    across, down = names[-1], names[-2] if len(names) > 1 else None
    columns = layout.out_dims[across]
    rows = layout.out_dims[down] if down else 1
    shown = min(rows, MAX_ROWS), min(columns, MAX_COLUMNS)
    inputs = [name for name, size in layout.in_dims.items() if size > 1] or list(layout.in_dims)
    first = next((name for name in inputs if name != "register"), inputs[0])
    wide = max(len(":".join(str(layout.in_dims[name] - 1) for name in inputs)), 2)
    grid = Grid(MARGIN + 44, MARGIN + 74, 7 * wide + 12, 24)
    boxes = []
    for row in range(shown[0]):
        for column in range(shown[1]):
            at = dict.fromkeys(names, 0) | {across: column} | ({down: row} if down else {})
            found = inverse.apply(at)
            value = found[first] // 8 if inputs == ["offset"] else found[first]
            point = ", ".join(map(str, at.values()))
            by_name = ", ".join(f"{name} {found[name]}" for name in inputs)
            boxes.append(
                Box(
                    *grid.area(row, column),
                    f"chunk fill{value % FILLS}",
                    f"({point}): {by_name}",
                    fitting(":".join(str(found[name]) for name in inputs), grid.width),
                    data={"row": row, "column": column},
                )
            )
    sizes = ", ".join(f"{name} {size}" for name, size in layout.in_dims.items())
    extents = ", ".join(f"{name} {size}" for name, size in layout.out_dims.items())
    title = f"{sizes} -> {extents}"
    caption = f"{down} down, {across} across" if down else f"{across} across"
    notes = [f"In a cell: {' : '.join(inputs)}."]
    if shown != (rows, columns):
        notes.append(f"The first {shown[0]} x {shown[1]} of {rows} x {columns} are drawn.")
    notes += [note] if note else []
    texts = [
        *grid.row_labels(range(shown[0])),
        *grid.column_labels(range(shown[1])),
        *heading(title, caption, grid.left),
    ]
    size = grid.x(shown[1]), grid.y(shown[0])
    return figure(title, boxes, texts, notes, size, captions=[caption])
