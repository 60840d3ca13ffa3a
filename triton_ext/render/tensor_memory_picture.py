"""The picture of tensor memory: lanes by columns."""

from __future__ import annotations

from collections.abc import Sequence

from triton_ext.errors import LayoutError
from triton_ext.hardware.tensor_memory import TMEM_LANES, WARP_LANES
from triton_ext.hardware.tensor_memory_access import TmemTransfer
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.render.cells import unit_run
from triton_ext.render.scene import FILLS, MARGIN, Box, Grid, Scene, Text, figure, fitting, heading
from triton_ext.render.words import by

MAX_CELLS = 1024
"""At most so many cells are drawn; columns beyond are cut."""
FRAGMENT_COLUMNS = 8
"""So many columns of a warp's lanes are drawn with their threads and registers."""
_LEFT, _TOP, _LANE_HEIGHT = MARGIN + 48, MARGIN + 62, 5
_CAPTION = "lanes down, columns of 32 bits across"


def _zero_bits(bases: Sequence[Sequence[int]]) -> int:
    """A mask of the bits whose basis is zero."""
    return sum(1 << bit for bit, basis in enumerate(bases) if not any(basis))


class _Cells:
    """A layout of tensor memory, cut into cells in which both coordinates count up by one."""

    def __init__(self, layout: LinearLayout) -> None:
        if not isinstance(layout, LinearLayout):
            raise LayoutError("layout", layout, "must be a LinearLayout")
        sizes = layout.in_dims
        if not {"lane", "column"} <= set(sizes) <= {"lane", "slot", "column", "block"}:
            rule = "its input dims must be 'lane' and 'column', and perhaps 'slot' and 'block'"
            raise LayoutError("layout", list(sizes), rule)
        if sizes["lane"] > TMEM_LANES:
            raise LayoutError("layout", sizes, f"must have at most {TMEM_LANES} lanes")
        if len(layout.out_dims) != 2:
            raise LayoutError("layout", layout.out_dims, "must have two output dimensions")
        self.layout = layout
        bases = layout.bases
        slots = bases.get("slot", [])
        within = [*slots, *bases["column"]]
        # At most the lanes that a warp can reach, and an eighth of the columns.
        lane_dim, self.lanes = unit_run(bases["lane"], WARP_LANES)
        column_dim, run = unit_run(within, 1 << max(len(slots), len(within) - 3))
        if self.lanes > 1 and lane_dim == column_dim:
            run = 1
        self.whole_columns = run >= 1 << len(slots)
        self.columns = max(1, run >> len(slots))
        counts = {lane_dim: self.lanes} | ({column_dim: run} if run > 1 else {})
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
        """Whether another cell has the same coordinates: this one is a copy or a hole."""
        return bool(lane & self.free["lane"] or column & self.free["column"])

    def is_hole(self, lane: int, column: int) -> bool:
        """Whether the cell holds no element."""
        return bool(lane & self.empty["lane"] or column & self.empty["column"])


def _box(cells: _Cells, lane: int, column: int, grid: Grid) -> Box:
    first = cells.first(lane, column)
    ranges = [
        str(start) if count == 1 else f"{start}-{start + count - 1}"
        for start, count in zip(first, cells.counts, strict=True)
    ]
    parts = ", ".join(
        f"{name} {span}" for name, span in zip(cells.layout.out_dims, ranges, strict=True)
    )
    free, hole = cells.is_free(lane, column), cells.is_hole(lane, column)
    held = "nothing" if hole else parts + " (a copy)" * free
    tall = cells.lanes * grid.height >= 12
    return Box(
        *grid.area(lane, column // cells.columns, rows=cells.lanes),
        "chunk unused" if free else f"chunk fill{first[0] // cells.counts[0] % FILLS}",
        f"lanes {lane} to {lane + cells.lanes - 1},"
        f" columns {column} to {column + cells.columns - 1}: {held}",
        fitting(", ".join(ranges), grid.width) if tall and not hole else "",
        data={"lane": lane, "column": column, "first": ",".join(map(str, first))},
    )


def tensor_memory_scene(layout: LinearLayout) -> Scene:
    """Tensor memory: 128 lanes down, columns across. Raises LayoutError: other dimensions, or more
    than 128 lanes.

    Args:
        layout: ``lane``, ``column`` -> two dimensions, as `triton_ext.hardware.tensor_memory`
            makes them; ``slot``, the parts of a column's 32 bits, and ``block``, drawn at 0, may
            be there. What the bases leave free (a zero basis, or one that earlier bases make up)
            is drawn dashed; so are lanes that the layout lacks.
    """
    cells = _Cells(layout)
    sizes = layout.in_dims
    lanes = sizes["lane"]
    shown = max(1, min(cells.across, MAX_CELLS // cells.down))
    grid = Grid(_LEFT, _TOP, max(12, min(110, 880 // shown)), _LANE_HEIGHT)  # a row is a lane
    boxes, texts = [], []

    def lane_label(lane: int) -> Text:
        return Text(grid.left - 8, grid.y(lane) + 7, str(lane), anchor="end")

    for lane in range(0, lanes, cells.lanes):
        if lane % max(4, cells.lanes) == 0:
            texts.append(lane_label(lane))
        boxes += [_box(cells, lane, j * cells.columns, grid) for j in range(shown)]
    for j in range(0, shown, max(1, -(-30 // int(grid.width)))):
        texts.append(Text(grid.x(j) + 2, grid.top - 11, str(j * cells.columns)))
    if lanes < TMEM_LANES:
        rest = grid.area(lanes, 0, rows=TMEM_LANES - lanes, columns=shown)
        said = f"lanes {lanes} to {TMEM_LANES - 1} are not used"
        boxes.append(Box(*rest, "chunk unused", said, "not used"))
        texts.append(lane_label(lanes))
    title = (
        f"Tensor memory: {by(layout.out_dims.values())} over {lanes} lanes"
        f" x {sizes['column']} columns"
    )
    names = list(layout.out_dims)
    plural = ("s" if cells.lanes > 1 else "", "s" if cells.columns > 1 else "")
    notes = [
        f"A cell: {cells.lanes} lane{plural[0]} x {cells.columns} column{plural[1]}, with its"
        f" {names[0]} and {names[1]}; a colour: {names[0]}."
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
    return figure(
        title,
        boxes,
        [*texts, *heading(title, _CAPTION, grid.left)],
        notes,
        (grid.x(shown), grid.y(TMEM_LANES)),
    )


def fragment_scene(transfer: TmemTransfer) -> Scene:
    """Which thread and register of warp 0 holds what of its lanes, in the first columns."""
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
    grid = Grid(_LEFT, _TOP, 64, 20)
    lanes = sorted({lane for lane, _ in held})
    columns = sorted({column for _, column in held})
    boxes = [
        Box(
            *grid.area(lanes.index(lane), columns.index(column)),
            f"chunk fill{thread % FILLS}",
            f"lane {lane}, column {column}: thread {thread}, register {register}; "
            + ", ".join(f"{name} {element[name]}" for name in names),
            f"T{thread} r{register}",
            data={"lane": lane, "column": column, "thread": thread, "register": register},
        )
        for (lane, column), (thread, register, element) in sorted(held.items())
    ]
    title = f"{transfer.access.instruction()} by warp 0"
    notes = [
        f"T: the thread, r: its register, of {transfer.registers}; a colour: the thread, mod 8."
    ]
    if len(held) < transfer.registers * WARP_LANES:
        notes.append(f"Cut: the first {len(columns)} columns are drawn.")
    labels = grid.row_labels(lanes) + grid.column_labels(columns)
    return figure(
        title,
        boxes,
        [*labels, *heading(title, _CAPTION, grid.left)],
        notes,
        (grid.x(len(columns)), grid.y(len(lanes))),
    )
