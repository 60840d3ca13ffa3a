"""The picture of tensor memory: lanes by columns."""

from __future__ import annotations

from collections.abc import Sequence

from triton_ext.errors import LayoutError
from triton_ext.hardware.tensor_memory import TMEM_LANES, WARP_LANES
from triton_ext.hardware.tensor_memory_access import TmemTransfer
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.render.scene import (
    FILLS,
    MARGIN,
    Box,
    Scene,
    Text,
    by,
    caption_width,
    lines_of_text,
)

MAX_CELLS = 1024
"""At most so many cells are drawn; columns beyond are cut."""
FRAGMENT_COLUMNS = 8
"""So many columns of a warp's lanes are drawn with their threads and registers."""
_LANE_HEIGHT = 5


def _regular_bits(bases: Sequence[Sequence[int]], limit: int) -> tuple[int, int]:
    """How many of the first bases are 1, 2, 4, ... along one dimension, and which one (or -1)."""
    along = -1
    for bit, basis in enumerate(bases):
        moved = [i for i, value in enumerate(basis) if value]
        if bit >= limit or len(moved) != 1 or basis[moved[0]] != 1 << bit:
            return bit, along
        if along not in (-1, moved[0]):
            return bit, along
        along = moved[0]
    return len(bases), along


def _zero_bits(bases: Sequence[Sequence[int]]) -> int:
    """The bits whose basis is zero, as a mask."""
    return sum(1 << bit for bit, basis in enumerate(bases) if not any(basis))


class _Cells:
    """A layout of tensor memory, cut into cells in which both coordinates count up by one."""

    def __init__(self, layout: LinearLayout) -> None:
        if not isinstance(layout, LinearLayout):
            raise LayoutError("layout", layout, "must be a LinearLayout")
        sizes = layout.in_dims
        if not {"lane", "column"} <= set(sizes) <= {"lane", "slot", "column", "block"}:
            raise LayoutError(
                "layout",
                list(sizes),
                "its input dims must be 'lane' and 'column', and perhaps 'slot' and 'block'",
            )
        if sizes["lane"] > TMEM_LANES:
            raise LayoutError("layout", sizes, f"must have at most {TMEM_LANES} lanes")
        if len(layout.out_dims) != 2:
            raise LayoutError("layout", layout.out_dims, "must have two output dimensions")
        self.layout = layout
        bases = layout.bases
        slots = bases.get("slot", [])
        within = [*slots, *bases["column"]]
        # At most the lanes that a warp can reach, and an eighth of the columns.
        lane_bits, lane_dim = _regular_bits(bases["lane"], WARP_LANES.bit_length() - 1)
        bits, column_dim = _regular_bits(within, max(len(slots), len(within) - 3))
        if lane_bits and lane_dim == column_dim:
            bits = 0
        self.whole_columns = bits >= len(slots)
        self.lanes = 1 << lane_bits
        self.columns = 1 << max(0, bits - len(slots))
        counts = {lane_dim: self.lanes}
        if bits:
            counts[column_dim] = 1 << bits
        self.counts = [counts.get(dim, 1) for dim in range(2)]
        self.down = sizes["lane"] // self.lanes
        self.across = sizes["column"] // self.columns
        self.free = layout.free_variable_masks()
        # The lanes of a warp, and columns, that no element is in; other free bits are copies.
        self.empty = {
            "lane": _zero_bits(bases["lane"][: WARP_LANES.bit_length() - 1]),
            "column": _zero_bits(bases["column"]),
        }

    def first(self, lane: int, column: int) -> tuple[int, ...]:
        """The coordinates in the first cell of 8, 16 or 32 bits, in block 0."""
        point = dict.fromkeys(self.layout.in_dims, 0) | {"lane": lane, "column": column}
        return tuple(self.layout.apply(point).values())

    def is_free(self, lane: int, column: int) -> bool:
        """Whether other cells have the same coordinates, so that this is a copy or a hole."""
        return bool(lane & self.free["lane"] or column & self.free["column"])

    def is_hole(self, lane: int, column: int) -> bool:
        """Whether there is no element."""
        return bool(lane & self.empty["lane"] or column & self.empty["column"])


def _box(cells: _Cells, lane: int, column: int, x: float, y: float, width: float) -> Box:
    first = cells.first(lane, column)
    ranges = [
        str(start) if count == 1 else f"{start}-{start + count - 1}"
        for start, count in zip(first, cells.counts, strict=True)
    ]
    parts = ", ".join(
        f"{name} {span}" for name, span in zip(cells.layout.out_dims, ranges, strict=True)
    )
    free, hole = cells.is_free(lane, column), cells.is_hole(lane, column)
    height = cells.lanes * _LANE_HEIGHT
    label = "" if hole else ", ".join(ranges)
    return Box(
        x,
        y,
        width,
        height,
        "chunk unused" if free else f"chunk fill{first[0] // cells.counts[0] % FILLS}",
        f"lanes {lane} to {lane + cells.lanes - 1},"
        f" columns {column} to {column + cells.columns - 1}: "
        + ("nothing" if hole else parts + " (a copy)" * free),
        label if len(label) * 6.2 < width and height >= 12 else "",
        data=(("lane", lane), ("column", column), ("first", ",".join(map(str, first)))),
    )


def tensor_memory_scene(layout: LinearLayout) -> Scene:
    """See `triton_ext.render.svg.tensor_memory_svg`."""
    cells = _Cells(layout)
    sizes = layout.in_dims
    shown = max(1, min(cells.across, MAX_CELLS // cells.down))
    width = max(12, min(110, 880 // shown))
    left, top = MARGIN + 48, MARGIN + 62
    boxes, texts = [], []
    for lane in range(0, sizes["lane"], cells.lanes):
        y = top + lane * _LANE_HEIGHT
        if lane % max(4, cells.lanes) == 0:
            texts.append(Text(left - 8, y + 7, str(lane), anchor="end"))
        for j in range(shown):
            boxes.append(_box(cells, lane, j * cells.columns, left + j * width, y, width))
    for j in range(0, shown, max(1, -(-30 // width))):
        texts.append(Text(left + j * width + 2, top - 11, str(j * cells.columns)))
    if sizes["lane"] < TMEM_LANES:
        y = top + sizes["lane"] * _LANE_HEIGHT
        height = (TMEM_LANES - sizes["lane"]) * _LANE_HEIGHT
        said = f"lanes {sizes['lane']} to {TMEM_LANES - 1} are not used"
        boxes.append(Box(left, y, shown * width, height, "chunk unused", said, "not used"))
        texts.append(Text(left - 8, y + 7, str(sizes["lane"]), anchor="end"))
    title = (
        f"Tensor memory: {by(layout.out_dims.values())} over {sizes['lane']} lanes"
        f" x {sizes['column']} columns"
    )
    names = list(layout.out_dims)
    plural = ("s" if cells.lanes > 1 else "", "s" if cells.columns > 1 else "")
    notes = [
        f"A cell: {cells.lanes} lane{plural[0]} x {cells.columns} column{plural[1]}, with its"
        f" {names[0]} and {names[1]}; a colour: {names[0]}.",
    ]
    if any(cells.empty.values()):
        notes.append("Dashed, without numbers: nothing.")
    if any(cells.free[name] & ~cells.empty[name] for name in ("lane", "column")):
        notes.append("Dashed, with numbers: a copy of other cells.")
    if not cells.whole_columns:
        notes.append("Only the first slot of each column is drawn.")
    if sizes.get("block", 1) > 1:
        notes.append("Drawn for block 0.")
    if shown < cells.across:
        drawn_columns = shown * cells.columns
        notes.append(f"Cut: the first {drawn_columns} of {sizes['column']} columns are drawn.")
    drawn, bottom = lines_of_text(MARGIN, top + TMEM_LANES * _LANE_HEIGHT + 12, notes)
    texts += [
        Text(MARGIN, MARGIN + 10, title, "heading"),
        Text(left, MARGIN + 32, "lanes down, columns of 32 bits across"),
    ]
    return Scene(
        title,
        " ".join(notes),
        max(left + shown * width, MARGIN + caption_width(title, notes)) + MARGIN,
        bottom + MARGIN,
        tuple(boxes),
        (*texts, *drawn),
    )


def fragment_scene(transfer: TmemTransfer) -> Scene:
    """What of warp 0's lanes, in the first columns, each thread and register holds."""
    names = list(transfer.elements.out_dims)
    first = dict.fromkeys(transfer.layout.in_dims, 0)
    held: dict[tuple[int, int], tuple[int, int, dict[str, int]]] = {}
    for register in range(transfer.registers):
        for thread in range(WARP_LANES):
            point = first | {"register": register, "thread": thread}
            cell = transfer.layout.apply(point)
            if cell["column"] < FRAGMENT_COLUMNS:
                element = transfer.elements.apply(point)
                held.setdefault((cell["lane"], cell["column"]), (thread, register, element))
    width, height = 64, 20
    left, top = MARGIN + 48, MARGIN + 62
    lanes = sorted({lane for lane, _ in held})
    columns = sorted({column for _, column in held})
    boxes = [
        Box(
            left + columns.index(column) * width,
            top + lanes.index(lane) * height,
            width,
            height,
            f"chunk fill{thread % FILLS}",
            f"lane {lane}, column {column}: thread {thread}, register {register}; "
            + ", ".join(f"{name} {element[name]}" for name in names),
            f"T{thread} r{register}",
            data=(("lane", lane), ("column", column), ("thread", thread), ("register", register)),
        )
        for (lane, column), (thread, register, element) in sorted(held.items())
    ]
    texts = [
        Text(left - 8, top + (row + 0.5) * height, str(lane), anchor="end")
        for row, lane in enumerate(lanes)
    ]
    texts += [
        Text(left + (index + 0.5) * width, top - 11, str(column), anchor="middle")
        for index, column in enumerate(columns)
    ]
    title = f"{transfer.access.instruction()} by warp 0"
    notes = [
        f"T: the thread, r: its register, of {transfer.registers}; a colour: the thread, mod 8."
    ]
    if len(held) < transfer.registers * WARP_LANES:
        notes.append(f"Cut: the first {len(columns)} columns are drawn.")
    drawn, bottom = lines_of_text(MARGIN, top + len(lanes) * height + 12, notes)
    texts += [
        Text(MARGIN, MARGIN + 10, title, "heading"),
        Text(left, MARGIN + 32, "lanes down, columns of 32 bits across"),
    ]
    return Scene(
        title,
        " ".join(notes),
        max(left + len(columns) * width, MARGIN + caption_width(title, notes)) + MARGIN,
        bottom + MARGIN,
        tuple(boxes),
        (*texts, *drawn),
    )
