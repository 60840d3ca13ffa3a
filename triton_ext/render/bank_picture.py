"""The picture of the banks of shared memory: lines of 128 bytes."""

from __future__ import annotations

from typing import Literal

from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.hardware.banks import BANK_BYTES, BANKS, LINE_BYTES, BankReport
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.render.cells import Plane
from triton_ext.render.scene import (
    FILLS,
    MARGIN,
    Box,
    Scene,
    Text,
    caption_width,
    in_bytes,
    lines_of_text,
)

MAX_LINES = 32
"""At most so many 128-byte lines are drawn, unless told otherwise."""

ColourBy = Literal["row", "column"]


def banks_scene(
    layout: LinearLayout,
    element_bitwidth: int,
    *,
    colour_by: ColourBy = "row",
    max_lines: int = MAX_LINES,
) -> Scene:
    """See `banks_svg`."""
    if colour_by not in ("row", "column"):
        raise LayoutError("colour_by", colour_by, 'must be "row" or "column"')
    if not isinstance(max_lines, int) or max_lines < 1:
        raise LayoutError("max_lines", max_lines, "must be at least 1")
    plane = Plane(layout, element_bitwidth)
    line_elements = 8 * LINE_BYTES // element_bitwidth
    run = plane.cell[0] * plane.cell[1]
    bank_width, height = 20, 24
    element_width = BANKS * bank_width / line_elements
    total = layout.in_dims["offset"]
    lines = -(-total // line_elements)
    shown = min(lines, max_lines)
    left, top = MARGIN + 48, MARGIN + 62
    boxes, texts = [], []
    for offset in range(0, min(total, shown * line_elements), run):
        line, position = divmod(offset, line_elements)
        point = plane.coordinates(offset)
        row, column = (0, *point)[-2:]
        # Along the contiguous dimension a cell is one step.
        index = row // plane.cell[0] if colour_by == "row" else column // plane.cell[1]
        address = plane.byte(offset)
        bank = address % LINE_BYTES // BANK_BYTES
        width = run * element_width
        label = ",".join(map(str, point))
        boxes.append(
            Box(
                left + position * element_width,
                top + line * height,
                width,
                height,
                f"chunk fill{index % FILLS}",
                f"element ({', '.join(map(str, point))}): offset {offset} elements,"
                f" {in_bytes(address)}; bank {bank}",
                label if len(label) * 6.2 < width else "",
                data=(("offset", offset), ("row", row), ("column", column), ("bank", bank)),
            )
        )
    for bank in range(BANKS):
        middle = left + (bank + 0.5) * bank_width
        texts.append(Text(middle, top - 11, str(bank), anchor="middle"))
    for line in range(shown):
        middle = top + (line + 0.5) * height
        texts.append(Text(left - 8, middle, str(line * LINE_BYTES), anchor="end"))
    title = f"Banks of shared memory, coloured by {colour_by}"
    texts += [
        Text(MARGIN, MARGIN + 10, title, "heading"),
        Text(left, MARGIN + 32, "banks of 4 bytes across, byte offsets down"),
    ]
    names = ", ".join(layout.out_dims)
    notes = [f"A number is the first element's ({names}); a colour repeats every {FILLS}."]
    if plane.blocks > 1:
        notes.append("Drawn for block 0.")
    if shown < lines:
        notes.append(f"Cut: {shown} of {lines} lines are drawn.")
    drawn, bottom = lines_of_text(MARGIN, top + shown * height + 12, notes)
    return Scene(
        title,
        f"{lines} lines of {LINE_BYTES} bytes, {BANKS} banks each. {' '.join(notes)}",
        left + BANKS * bank_width + MARGIN,
        bottom + MARGIN,
        tuple(boxes),
        (*texts, *drawn),
    )


def bank_access_scene(title: str, report: BankReport) -> Scene:
    """See `triton_ext.render.svg.bank_access_svg`."""
    width, height = 26, 26
    left, top = MARGIN + 48, MARGIN + 62
    group_lanes = min(WARP_THREADS, LINE_BYTES // report.access_bytes)
    # What is touched: (word) -> the lanes, per group of lanes that is served together.
    touched: dict[int, dict[int, list[int]]] = {}
    for lane, offset in enumerate(report.offsets):
        if offset is None:
            continue
        for word in range(offset // BANK_BYTES, -(-(offset + report.access_bytes) // BANK_BYTES)):
            touched.setdefault(word, {}).setdefault(lane // group_lanes, []).append(lane)
    collide = {word // BANK_BYTES for conflict in report.conflicts for word in conflict.words}
    several = report.ideal_wavefronts > 1
    lines = sorted({word // BANKS for word in touched})
    shown = lines[:MAX_LINES]
    boxes, texts = [], []
    for row, line in enumerate(shown):
        y = top + row * height
        texts.append(Text(left - 8, y + height / 2, str(line * LINE_BYTES), anchor="end"))
        boxes.append(Box(left, y, BANKS * width, height, "plain passive"))
        for bank in range(BANKS):
            groups = touched.get(line * BANKS + bank, {})
            lanes = [lane for found in groups.values() for lane in found]
            if not lanes:
                continue
            said = ", ".join(map(str, lanes))
            boxes.append(
                Box(
                    left + bank * width,
                    y,
                    width,
                    height,
                    f"chunk fill{(min(groups) if several else lanes[0]) % FILLS}",
                    f"bank {bank}, byte {line * LINE_BYTES + bank * BANK_BYTES}: lane"
                    f"{'s' * (len(lanes) > 1)} {said}",
                    str(lanes[0]) if len(lanes) == 1 else f"{lanes[0]}..",
                    data=(("bank", bank), ("line", line), ("lanes", said)),
                )
            )
    for row, line in enumerate(shown):
        for bank in range(BANKS):
            if line * BANKS + bank in collide:
                corner = (left + bank * width + 1.5, top + row * height + 1.5)
                boxes.append(Box(*corner, width - 3, height - 3, "bad passive"))
    for bank in range(BANKS):
        texts.append(Text(left + (bank + 0.5) * width, top - 11, str(bank), anchor="middle"))
    said = str(report)
    notes = [
        f"{said[0].upper()}{said[1:]}. A number is the first lane that accesses the bank's word"
        f" ({report.access_bytes} bytes a lane).",
    ]
    if several:
        notes.append(f"A colour: {group_lanes} lanes that are served together.")
    if report.conflicts:
        notes.append("Outlined: words of one bank that cannot be served in one go.")
    if len(shown) < len(lines):
        notes.append(f"Cut: {len(shown)} of {len(lines)} lines are drawn.")
    drawn, bottom = lines_of_text(MARGIN, top + len(shown) * height + 12, notes)
    texts += [
        Text(MARGIN, MARGIN + 10, title, "heading"),
        Text(left, MARGIN + 32, "banks of 4 bytes across; byte offsets of the lines touched, down"),
    ]
    return Scene(
        title,
        " ".join(notes),
        max(left + BANKS * width, MARGIN + caption_width(title, notes)) + MARGIN,
        bottom + MARGIN,
        tuple(boxes),
        (*texts, *drawn),
    )
