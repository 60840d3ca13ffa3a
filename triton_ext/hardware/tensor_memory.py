"""Blackwell's tensor memory (TMEM): its cells, their allocation, and the matrices that lie in it.

TMEM is a grid of 128 lanes x 512 columns of 32 bits for each CTA. An MMA instruction writes its
accumulator there, and may read operand A from there. Which lane and column holds which element is
fixed by the instruction's M, ``cta_group``, sparsity and ``.ws`` mode: the data path layouts A to G
(PTX ISA, "Data Path Layout Organization").

A matrix is a `LinearLayout` from ``lane``, ``slot``, ``column`` (and, over a pair of CTAs,
``block``) to ``dim0``, ``dim1``. ``lane`` and ``column`` are the field's words for what Triton's
``tensorMemoryToLinearLayout`` calls ``row`` and ``col``; Triton's ``col`` counts elements, and is
split here into the physical column of 32 bits and the ``slot``: which 8 or 16 bits of it, the
lowest first. A zero basis of lane 32 or 64 is a copy: other warps hold the same elements. Any
other zero basis is a hole: the cells hold nothing of the matrix. (Triton's rule, in its own words,
stands at ``tensorMemoryToLinearLayout``.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import CAPABILITIES
from triton_ext.layouts.arguments import integer, is_power_of_two, one_of
from triton_ext.layouts.cluster import checked_shape, standard_out_dims
from triton_ext.layouts.gf2 import powers_below
from triton_ext.layouts.linear_layout import Basis, LinearLayout

TMEM_LANES = 128
TMEM_COLUMNS = CAPABILITIES[100].tensor_memory_columns
COLUMN_BITS = 32
"""The size of TMEM, for each CTA (PTX ISA, "Tensor Memory"; seed 004, "What is Tensor Memory?")."""
MOST_COLUMNS = max(each.tensor_memory_columns for each in CAPABILITIES.values())
"""Columns of the GPU that has most of them."""
ALLOCATION_UNIT = 32
"""Columns; all lanes of a column are allocated (PTX ISA, "Tensor Memory Allocation")."""
WARP_LANES = 32
"""Lanes that one warp can load and store (PTX ISA, tcgen05.ld, "Access restrictions")."""
WARPGROUP_WARPS = 4
MAX_INSTRUCTION_N = 256
"""The largest N of one MMA instruction (PTX ISA, tcgen05 "Matrix Shape")."""
TMEM_ELEMENT_BITWIDTHS = (8, 16, 32)

# ------------------------------------------------------------------- cells and allocation


@dataclass(frozen=True)
class TmemAddress:
    """The address of a cell of 32 bits: the lane in bits 31-16, the column in bits 15-0.

    Raises:
        LayoutError: a lane or column outside of TMEM.

    Source: PTX ISA, "Tensor Memory Addressing".
    """

    lane: int
    column: int

    def __post_init__(self) -> None:
        integer("lane", self.lane, 0, TMEM_LANES)
        integer("column", self.column, 0, TMEM_COLUMNS)

    def encode(self) -> int:
        """The 32-bit address, as ``taddr`` of the tcgen05 instructions."""
        return self.lane << 16 | self.column

    @classmethod
    def decode(cls, address: int) -> TmemAddress:
        """The cell of a 32-bit address. Raises LayoutError: not 32 bits, or a lane or column
        outside of TMEM."""
        address = integer("address", address, 0, 1 << 32)
        return cls(address >> 16, address & 0xFFFF)

    @property
    def warp(self) -> int:
        """The warp of each warpgroup (0 to 3) that can load and store this lane."""
        return self.lane // WARP_LANES


def warp_lanes(warp: int) -> range:
    """The lanes that a warp can load and store: 32 of them, by its index modulo 4.

    Args:
        warp: the index of the warp in the CTA.

    Source: PTX ISA, tcgen05.ld, "Access restrictions".
    """
    first = integer("warp", warp, 0, 64) % WARPGROUP_WARPS * WARP_LANES
    return range(first, first + WARP_LANES)


def check_allocation(
    columns: int, *, exclusive: bool = False, capacity: int = TMEM_COLUMNS
) -> None:
    """Check the number of columns of a tcgen05.alloc.

    Args:
        exclusive: of ``tcgen05.alloc.exclusive``.
        capacity: the columns that the GPU has.

    Raises:
        LayoutError: not a power of two from 32 to 512; or, of an exclusive one, not a multiple of
            32 up to the capacity.

    Source: PTX ISA 9.4, tcgen05.alloc; seed 004, "What is Tensor Memory?" (32 columns are the
    least).
    """
    if exclusive:
        if columns % ALLOCATION_UNIT or not ALLOCATION_UNIT <= columns <= capacity:
            rule = f"takes a multiple of {ALLOCATION_UNIT} from {ALLOCATION_UNIT} to {capacity}"
            raise LayoutError("columns", columns, f"tcgen05.alloc.exclusive {rule} columns")
    elif not is_power_of_two(columns) or not ALLOCATION_UNIT <= columns <= TMEM_COLUMNS:
        raise LayoutError(
            "columns",
            columns,
            f"tcgen05.alloc takes a power of two from {ALLOCATION_UNIT} to {TMEM_COLUMNS} columns",
        )


def allocation_columns(columns: int) -> int:
    """The smallest legal tcgen05.alloc that holds this many columns. Raises LayoutError: no
    columns, or more than TMEM has."""
    columns = integer("columns", columns, 1, TMEM_COLUMNS + 1)
    return max(ALLOCATION_UNIT, 1 << (columns - 1).bit_length())


# --------------------------------------------------------------------- data path layouts


@dataclass(frozen=True)
class DataPathLayout:
    """How the rows of an MMA's accumulator lie on the lanes of a CTA: one of layouts A to G.

    Attributes:
        name: the letter of the PTX ISA.
        m: the instruction's M, over both CTAs of a pair.
        cta_group: 1, or 2 for a pair of CTAs; each then holds ``m / 2`` rows, the even CTA the
            first ones.
        sparse, weight_stationary: whether A is sparse and whether the mode is ``.ws``; None where
            it makes no difference.
        organization: how the 4 groups of 32 lanes are shared: groups of rows x parts of N.
        lane_alignments: the lanes of a warp (0 to 31) at which the matrix may start.

    Source: PTX ISA, "Data Path Layout Organization", its table. There E is "2x3"; its figure, and
    CUTLASS (``mma_traits_sm100_frag.hpp``, ``tmem_frg_ws``), have 2x2.
    """

    name: Literal["A", "B", "C", "D", "E", "F", "G"]
    m: int
    cta_group: int
    sparse: bool | None
    weight_stationary: bool | None
    organization: Literal["4x1", "2x2", "1x4"]
    lane_alignments: tuple[int, ...] = (0,)

    @property
    def rows(self) -> int:
        """The rows that one CTA holds."""
        return self.m // self.cta_group

    @property
    def column_parts(self) -> int:
        """Into how many parts N is split, each on lanes of its own."""
        return int(self.organization[-1])

    @property
    def half(self) -> bool:
        """Whether only 16 of the 32 lanes of each warp are used."""
        return self.rows * self.column_parts < TMEM_LANES

    def lane_bases(self, n: int) -> list[Basis | None]:
        """(row, column of the matrix) at lane 1, 2, 4, ..., 64; None for a hole."""
        bases: list[Basis | None] = [(row, 0) for row in powers_below(self.rows)]
        if self.half:
            bases.insert(4, None)  # 16 rows a warp: lane 16 holds nothing, lane 32 is row 16
        parts = self.column_parts
        return bases + [(0, n // parts * part) for part in powers_below(parts)]


DATA_PATH_LAYOUTS: tuple[DataPathLayout, ...] = (
    DataPathLayout("A", 256, 2, None, False, "4x1"),
    DataPathLayout("B", 128, 2, False, False, "2x2"),
    DataPathLayout("C", 128, 2, True, False, "4x1", (0, 16)),
    DataPathLayout("D", 128, 1, None, None, "4x1"),
    DataPathLayout("E", 64, 1, None, True, "2x2"),
    DataPathLayout("F", 64, 1, None, False, "4x1", (0, 16)),
    DataPathLayout("G", 32, 1, None, True, "1x4"),
)


def data_path_layout(
    m: int, cta_group: int = 1, *, sparse: bool = False, weight_stationary: bool = False
) -> DataPathLayout:
    """The data path layout that an MMA instruction uses. Raises LayoutError: no instruction has
    these M, cta_group and mode."""
    one_of("cta_group", cta_group, (1, 2))
    m = integer("m", m, 0, 1 << 31)
    fitting = [
        layout
        for layout in DATA_PATH_LAYOUTS
        if layout.cta_group == cta_group and layout.weight_stationary in (None, weight_stationary)
    ]
    for layout in fitting:
        if layout.m == m and layout.sparse in (None, sparse):
            return layout
    mode = f"cta_group::{cta_group}" + (" with .ws" if weight_stationary else "")
    legal = sorted({layout.m for layout in fitting})
    if not legal:
        raise LayoutError("cta_group", cta_group, f"no instruction exists for {mode}")
    raise LayoutError("m", m, f"must be {' or '.join(map(str, legal))} for {mode}")


# ------------------------------------------------------------------------ matrices


def stack_instructions(
    lanes: Sequence[Basis | None],
    columns: Sequence[Basis],
    tile: tuple[int, int],
    shape: tuple[int, int],
    element_bitwidth: int,
    fill_holes: bool = True,
) -> LinearLayout:
    """The layout of what one CTA holds: several instructions' tiles, one behind the other.

    Tiles are stacked along the first dimension first. Where a tile leaves holes (layouts C and F),
    the second tile fills them, and pairs of tiles follow each other along the columns: Triton's
    and CUTLASS's convention; the hardware takes any placement.

    Args:
        lanes: the element at lane 1, 2, 4, ..., 64 of the first tile; None is a hole.
        columns: the element at its column 1, 2, 4, ..., counted in elements.
        tile, shape: the extents of one instruction's part and of the whole, in elements.
        fill_holes: whether the second tile is put into the holes of the first.

    Returns:
        ``lane``, ``slot``, ``column`` -> ``dim0``, ``dim1``.

    Raises:
        LayoutError: more columns than TMEM has.
    """
    repeats = [(rows * tile[0], 0) for rows in powers_below(shape[0] // tile[0])]
    repeats += [(0, n * tile[1]) for n in powers_below(shape[1] // tile[1])]
    if fill_holes and None in lanes and repeats:
        lanes = [repeats[0] if basis is None else basis for basis in lanes]
        repeats = repeats[1:]
    cells = [*columns, *repeats]
    slots = (COLUMN_BITS // element_bitwidth).bit_length() - 1
    cells += [(0, 0)] * (slots - len(cells))
    if 1 << (len(cells) - slots) > TMEM_COLUMNS:
        raise LayoutError(
            "shape",
            shape,
            f"needs {1 << (len(cells) - slots)} columns of {COLUMN_BITS} bits;"
            f" TMEM has {TMEM_COLUMNS}",
        )
    bases = {
        "lane": [(0, 0) if basis is None else basis for basis in lanes],
        "slot": cells[:slots],
        "column": cells[slots:],
    }
    return LinearLayout(bases, standard_out_dims(shape))


def _pair_of_ctas(layout: LinearLayout, cta_group: int) -> LinearLayout:
    """Over a pair, the even CTA holds the first half of the rows."""
    if cta_group == 1:
        return layout
    return layout * LinearLayout.identity_1d(2, "block", "dim0")


def _checked_tile(
    path: DataPathLayout, n: int, shape: Sequence[int] | None
) -> tuple[tuple[int, int], tuple[int, int]]:
    """(one instruction's tile, the whole) in one CTA."""
    rows, columns = (path.m, n) if shape is None else checked_shape(shape, 2)
    for name, size, unit in (("shape[0]", rows, path.m), ("shape[1]", columns, n)):
        if size < unit:
            raise LayoutError(name, size, f"must be a multiple of the instruction's {unit}")
    return (path.rows, n), (rows // path.cta_group, columns)


def accumulator_layout(
    m: int,
    n: int,
    element_bitwidth: int = 32,
    *,
    cta_group: int = 1,
    sparse: bool = False,
    weight_stationary: bool = False,
    packed: bool = False,
    interleaved: bool = True,
    shape: Sequence[int] | None = None,
) -> LinearLayout:
    """Where the accumulator (D) of MMA instructions lies: each of the data path layouts A to G.

    Args:
        m, n: the instruction's shape; m over both CTAs of a pair, n a power of two up to 256.
        element_bitwidth: 32, or 16 for an f16 accumulator.
        packed: two 16-bit elements in each column. The MMA writes one, in the lower half (PTX ISA,
            "Packing format for matrix D in Tensor Memory"); tcgen05.cp and tcgen05.st can pack.
        interleaved: whether the second tile fills the holes of the first (layouts C and F); not
            where A lies in TMEM, in the same lanes for every tile.
        shape: the whole accumulator's, if several instructions make it.

    Returns:
        ``lane``, ``slot``, ``column``, and ``block`` with cta_group 2, -> ``dim0``, ``dim1``.

    Raises:
        LayoutError: no such instruction, or no room in TMEM.
    """
    path = data_path_layout(m, cta_group, sparse=sparse, weight_stationary=weight_stationary)
    one_of("element_bitwidth", element_bitwidth, TMEM_ELEMENT_BITWIDTHS)
    if not is_power_of_two(n) or not 8 <= n <= MAX_INSTRUCTION_N:
        rule = f"a linear layout needs a power of two, from 8 to {MAX_INSTRUCTION_N}"
        raise LayoutError("n", n, rule)
    tile, whole = _checked_tile(path, n, shape)
    stride = 1 if packed else COLUMN_BITS // element_bitwidth
    columns = [(0, 0) for _ in powers_below(stride)]
    columns += [(0, column) for column in powers_below(n // path.column_parts)]
    layout = stack_instructions(
        path.lane_bases(n), columns, tile, whole, element_bitwidth, interleaved
    )
    return _pair_of_ctas(layout, cta_group)


def operand_a_layout(
    m: int, k: int, element_bitwidth: int, *, cta_group: int = 1, shape: Sequence[int] | None = None
) -> LinearLayout:
    """Where a dense operand A (M x K) lies: in the lanes of its accumulator, packed along K.

    Over a pair of CTAs with M = 128 (layout B), each part of N needs the rows: lanes 64 to 127
    hold a copy of lanes 0 to 63. With M = 64 (layout F) the holes stay empty, since the second
    tile's product would lie in other lanes than its accumulator.

    Args:
        m: the instruction's M, over both CTAs of a pair.
        k: the whole operand's K, a power of two; one instruction reads 32 bytes of a lane.
        element_bitwidth: 8, 16 or 32.
        shape: the whole operand's, if it has the rows of several instructions.

    Returns:
        ``lane``, ``slot``, ``column``, and ``block`` with cta_group 2, -> ``dim0``, ``dim1``.

    Raises:
        LayoutError: no such instruction, or no room in TMEM.

    Source: PTX ISA, "Data Path Layout Organization" (A and D share their lanes) and "Packing format
    for matrix A"; CUTLASS, ``mma_traits_sm100_frag.hpp``, ``TmemAllocMode``.
    """
    path = data_path_layout(m, cta_group)
    one_of("element_bitwidth", element_bitwidth, TMEM_ELEMENT_BITWIDTHS)
    if not is_power_of_two(k) or k * element_bitwidth < COLUMN_BITS:
        raise LayoutError("k", k, "must be a power of two that fills at least one column")
    tile, whole = _checked_tile(path, k, shape)
    lanes = [
        (0, 0) if basis is not None and basis[1] else basis for basis in path.lane_bases(2 * k)
    ]
    columns = [(0, column) for column in powers_below(k)]
    layout = stack_instructions(lanes, columns, tile, whole, element_bitwidth, fill_holes=False)
    return _pair_of_ctas(layout, cta_group)


@dataclass(frozen=True)
class TmemFootprint:
    """What a matrix takes of one CTA's TMEM.

    Attributes:
        lanes: the lanes that hold elements, as ranges.
        columns: how many columns it spans.
        allocation: the columns of the smallest tcgen05.alloc that holds it.
    """

    lanes: tuple[range, ...]
    columns: int
    allocation: int


def tmem_footprint(layout: LinearLayout) -> TmemFootprint:
    """The lanes and columns of a matrix in TMEM. Raises LayoutError: not a layout of a matrix in
    TMEM."""
    lanes, _, columns = matrix_bases(layout)
    holes = sum(1 << bit for bit in range(5) if not any(lanes[bit]))
    used = [lane for lane in range(TMEM_LANES) if not lane & holes]
    starts = [lane for lane in used if lane - 1 not in used]
    ends = [lane + 1 for lane in used if lane + 1 not in used]
    ranges = tuple(range(start, end) for start, end in zip(starts, ends, strict=True))
    return TmemFootprint(ranges, 1 << len(columns), allocation_columns(1 << len(columns)))


def matrix_bases(layout: LinearLayout) -> tuple[list[Basis], list[Basis], list[Basis]]:
    """The bases of lane, slot and column of a matrix in TMEM, or LayoutError."""
    bases = layout.bases if isinstance(layout, LinearLayout) else {}
    if list(bases) not in (["lane", "slot", "column"], ["lane", "slot", "column", "block"]):
        rule = "must have the input dims lane, slot, column, and block if any"
        raise LayoutError("layout", layout, rule)
    if len(layout.out_dims) != 2:
        raise LayoutError("layout", list(layout.out_dims), "must have two output dims")
    for name, size in (("lane", TMEM_LANES), ("column", TMEM_COLUMNS)):
        if (found := 1 << len(bases[name])) > size or (name == "lane" and found < size):
            raise LayoutError(f"layout.{name}", found, f"TMEM has {size} of them")
    if COLUMN_BITS >> len(bases["slot"]) not in TMEM_ELEMENT_BITWIDTHS:
        rule = "a column holds 1, 2 or 4 elements"
        raise LayoutError("layout.slot", 1 << len(bases["slot"]), rule)
    return bases["lane"], bases["slot"], bases["column"]
