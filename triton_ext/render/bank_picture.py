"""The pictures of the banks of shared memory: lines of 128 bytes, 32 banks across."""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.hardware.banks import BANK_BYTES, BANKS, LINE_BYTES, BankReport
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.layouts.shared_encoding import Paddings
from triton_ext.render.cells import Plane
from triton_ext.render.scene import FILLS, MARGIN, Box, Grid, Scene, figure, fitting, heading
from triton_ext.render.words import in_bytes

MAX_LINES = 32
"""At most so many 128-byte lines are drawn, unless told otherwise."""

ColourBy = Literal["row", "column"]

_LEFT, _TOP = MARGIN + 48, MARGIN + 62


def _cut(shown: int, lines: int) -> list[str]:
    return [f"Cut: {shown} of {lines} lines are drawn."] if shown < lines else []


def banks_scene(
    layout: LinearLayout,
    element_bitwidth: int,
    *,
    colour_by: ColourBy = "row",
    max_lines: int = MAX_LINES,
    paddings: Paddings = (),
) -> Scene:
    """Shared memory as lines of 128 bytes, which are 32 banks of 4 bytes. Raises LayoutError: a
    layout that `tile_scene` refuses, or an illegal option.

    Args:
        layout, element_bitwidth: as in `tile_scene`.
        colour_by: whether a cell's colour stands for its logical row or its column. Along the
            dimension that is contiguous in memory, cells are counted, not elements.
        max_lines: how many lines to draw; a note says if there are more.
        paddings: pairs (interval, padding) in elements, of a `PaddedShared`.
    """
    if colour_by not in ("row", "column"):
        raise LayoutError("colour_by", colour_by, 'must be "row" or "column"')
    if not isinstance(max_lines, int) or max_lines < 1:
        raise LayoutError("max_lines", max_lines, "must be at least 1")
    plane = Plane(layout, element_bitwidth, paddings)
    grid = Grid(_LEFT, _TOP, 20, 24)
    line_elements = 8 * LINE_BYTES // element_bitwidth
    run = plane.cell[0] * plane.cell[1]
    lines = -(-plane.size // LINE_BYTES)
    shown = min(lines, max_lines)
    banks_of_cell = run * BANKS / line_elements
    boxes = []
    for offset in range(0, layout.in_dims["offset"], run):
        line, position = divmod(plane.address(offset), line_elements)
        if line >= shown:
            break
        point = plane.coordinates(offset)
        row, column = (0, *point)[-2:]
        # Along the contiguous dimension a cell is one step.
        index = row // plane.cell[0] if colour_by == "row" else column // plane.cell[1]
        address = plane.byte(offset)
        bank = address % LINE_BYTES // BANK_BYTES
        boxes.append(
            Box(
                *grid.area(line, position * BANKS / line_elements, columns=banks_of_cell),
                f"chunk fill{index % FILLS}",
                f"element ({', '.join(map(str, point))}): offset {offset} elements,"
                f" {in_bytes(address)}; bank {bank}",
                fitting(",".join(map(str, point)), banks_of_cell * grid.width),
                data={"offset": offset, "row": row, "column": column, "bank": bank},
            )
        )
    title = f"Banks of shared memory, coloured by {colour_by}"
    names = ", ".join(layout.out_dims)
    notes = [f"A number is the first element's ({names}); a colour repeats every {FILLS}."]
    if plane.blocks > 1:
        notes.append("Drawn for block 0.")
    notes += _cut(shown, lines)
    return figure(
        title,
        boxes,
        (
            *grid.column_labels(range(BANKS)),
            *grid.row_labels(line * LINE_BYTES for line in range(shown)),
            *heading(title, "banks of 4 bytes across, byte offsets down", _LEFT),
        ),
        notes,
        (grid.x(BANKS), grid.y(shown)),
        description=f"{lines} lines of {LINE_BYTES} bytes, {BANKS} banks each. {' '.join(notes)}",
    )


def bank_access_scene(title: str, report: BankReport) -> Scene:
    """One access of a warp: which lane accesses which bank of which 128-byte line.

    Banks in which lanes collide are outlined; lanes that are served together have one colour.
    `report`: the access and its conflicts, as `triton_ext.hardware.banks` predicts them.
    """
    grid = Grid(_LEFT, _TOP, 26, 26)
    group_lanes = min(WARP_THREADS, LINE_BYTES // report.access_bytes)
    lanes_of: dict[int, list[int]] = defaultdict(list)  # word -> the lanes that access it
    for lane, offset in enumerate(report.offsets):
        if offset is not None:
            end = offset + report.access_bytes
            for word in range(offset // BANK_BYTES, -(-end // BANK_BYTES)):
                lanes_of[word].append(lane)
    collide = {word // BANK_BYTES for conflict in report.conflicts for word in conflict.words}
    several = report.ideal_wavefronts > 1
    lines = sorted({word // BANKS for word in lanes_of})
    shown = lines[:MAX_LINES]
    boxes, outlines = [], []
    for row, line in enumerate(shown):
        boxes.append(Box(*grid.area(row, 0, columns=BANKS), "plain passive"))
        for bank in range(BANKS):
            word = line * BANKS + bank
            if word not in lanes_of:
                continue
            lanes = lanes_of[word]
            said = ", ".join(map(str, lanes))
            boxes.append(
                Box(
                    *grid.area(row, bank),
                    f"chunk fill{lanes[0] // (group_lanes if several else 1) % FILLS}",
                    f"bank {bank}, byte {word * BANK_BYTES}: lane{'s' * (len(lanes) > 1)} {said}",
                    str(lanes[0]) if len(lanes) == 1 else f"{lanes[0]}..",
                    data={"bank": bank, "line": line, "lanes": said},
                )
            )
            if word in collide:
                outlines.append(Box(*grid.area(row, bank, inset=1.5), "bad passive"))
    said = str(report)
    notes = [
        f"{said[0].upper()}{said[1:]}. A number is the first lane that accesses the bank's word"
        f" ({report.access_bytes} bytes a lane)."
    ]
    if several:
        notes.append(f"A colour: {group_lanes} lanes that are served together.")
    if report.conflicts:
        notes.append("Outlined: words of one bank that cannot be served in one go.")
    notes += _cut(len(shown), len(lines))
    caption = "banks of 4 bytes across; byte offsets of the lines touched, down"
    return figure(
        title,
        [*boxes, *outlines],
        (
            *grid.row_labels(line * LINE_BYTES for line in shown),
            *grid.column_labels(range(BANKS)),
            *heading(title, caption, _LEFT),
        ),
        notes,
        (grid.x(BANKS), grid.y(len(shown))),
    )
