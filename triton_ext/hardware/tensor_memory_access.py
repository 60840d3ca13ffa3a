"""tcgen05.ld and tcgen05.st: which register of which thread holds which cell of TMEM.

One instruction moves, for each warp, a piece of the 32 lanes that the warp may access: its *shape*
says how the 32 threads share a piece, and ``.x1`` to ``.x128`` how many pieces lie side by side
along the columns (PTX ISA, "Matrix and Data Movement Shape", "Data Movement Shape").

A `LinearLayout` from ``slot``, ``register``, ``thread``, ``warp`` to ``lane``, ``slot``,
``column`` says it. ``thread`` is the thread's index in its warp (Triton's ``lane``, a word that
means a row of TMEM here), ``slot`` the 8 or 16 bits of a register or cell, the lowest first.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from triton_ext.errors import LayoutError
from triton_ext.hardware.tensor_memory import (
    COLUMN_BITS,
    TMEM_COLUMNS,
    TMEM_ELEMENT_BITWIDTHS,
    TMEM_LANES,
    WARP_LANES,
    WARPGROUP_WARPS,
    TmemAddress,
    matrix_bases,
)
from triton_ext.layouts.arguments import flag, is_power_of_two, one_of
from triton_ext.layouts.gf2 import powers_below
from triton_ext.layouts.linear_layout import Basis, LinearLayout

MAX_REGISTERS = 128
"""The most registers of one instruction (PTX ISA, tcgen05.ld, the table of ``.num``)."""


@dataclass(frozen=True)
class AccessShape:
    """How the threads of a warp share one piece (``.x1``).

    Attributes:
        name: ``32x32b`` and so on: lanes x bits of each lane.
        lanes: how many lanes of the warp's 32 the instruction touches: 32, or 16 that start at the
            first or the 17th.
        columns: how many columns a piece has.
        registers: (lane, column) in register 1, 2 of a thread.
        threads: (lane, column) in thread 1, 2, 4, 8, 16; thread 16 of ``16x32bx2`` reads at the
            offset ``immHalfSplitoff``, which each instruction gives.
    """

    name: str
    lanes: int
    columns: int
    registers: tuple[Basis, ...]
    threads: tuple[Basis, ...]

    @property
    def max_repeat(self) -> int:
        """The largest ``.num``: what 128 registers hold."""
        return MAX_REGISTERS >> len(self.registers)


ACCESS_SHAPES = {
    shape.name: shape
    for shape in (
        AccessShape("32x32b", 32, 1, (), ((1, 0), (2, 0), (4, 0), (8, 0), (16, 0))),
        AccessShape("16x64b", 16, 2, (), ((8, 0), (0, 1), (1, 0), (2, 0), (4, 0))),
        AccessShape("16x128b", 16, 4, ((8, 0),), ((0, 1), (0, 2), (1, 0), (2, 0), (4, 0))),
        AccessShape("16x256b", 16, 8, ((0, 1), (8, 0)), ((0, 2), (0, 4), (1, 0), (2, 0), (4, 0))),
        AccessShape("16x32bx2", 16, 1, (), ((1, 0), (2, 0), (4, 0), (8, 0))),
    )
}
"""PTX ISA, "Matrix fragments for shape .32x32b" and the four sections after it, their figures."""
CHOSEN_SHAPES = tuple(name for name in ACCESS_SHAPES if name != "16x32bx2")
"""The shapes that one chooses; ``16x32bx2`` is what ``32x32b`` becomes on a matrix with holes."""


def _shape(name: str) -> AccessShape:
    if not isinstance(name, str) or name.lstrip(".") not in ACCESS_SHAPES:
        raise LayoutError("shape", name, f"must be one of {', '.join(ACCESS_SHAPES)}")
    return ACCESS_SHAPES[name.lstrip(".")]


@dataclass(frozen=True)
class TmemAccess:
    """One tcgen05.ld or tcgen05.st.

    Args:
        shape: a name of `ACCESS_SHAPES`.
        repeat: the N of ``.xN``: how many pieces.
        pack: ``.pack::16b`` (or ``.unpack::16b`` of a store): a register holds the lower halves of
            two columns that lie side by side.
        split: ``16x32bx2`` alone: immHalfSplitoff, how many columns behind those of threads 0-15
            the columns of threads 16-31 lie. The hardware takes any number; a linear layout needs
            a power of two that is at least the columns of one half.

    Raises:
        LayoutError: an illegal combination.
    """

    shape: str
    repeat: int = 1
    pack: bool = False
    split: int | None = None

    def __post_init__(self) -> None:
        shape = _shape(self.shape)
        object.__setattr__(self, "shape", shape.name)
        if not is_power_of_two(self.repeat) or self.repeat > shape.max_repeat:
            raise LayoutError(
                "repeat",
                self.repeat,
                f"must be a power of two from 1 to {shape.max_repeat} for .{shape.name}:"
                f" {MAX_REGISTERS} registers",
            )
        flag("pack", self.pack)
        if shape.name != "16x32bx2":
            if self.split is not None:
                raise LayoutError("split", self.split, "is for .16x32bx2 alone")
        elif (
            not is_power_of_two(self.split)
            or not self._half_columns <= (self.split or 0) < TMEM_COLUMNS
        ):
            rule = f"must be a power of two from {self._half_columns} to {TMEM_COLUMNS // 2}"
            raise LayoutError("split", self.split, rule)

    @property
    def _half_columns(self) -> int:
        return ACCESS_SHAPES[self.shape].columns * self.repeat * (2 if self.pack else 1)

    @property
    def registers(self) -> int:
        """How many 32-bit registers of each thread it moves."""
        return self.repeat << len(ACCESS_SHAPES[self.shape].registers)

    @property
    def columns(self) -> int:
        """How many columns it spans, from its address on."""
        return self._half_columns if self.split is None else self.split + self._half_columns

    def bases(self) -> tuple[list[Basis], list[Basis]]:
        """(lane, column) of register 1, 2, 4, ... and of thread 1, 2, 4, 8, 16."""
        shape = ACCESS_SHAPES[self.shape]
        unit = 2 if self.pack else 1
        registers: list[Basis] = [(lane, column * unit) for lane, column in shape.registers]
        registers += [(0, shape.columns * unit * piece) for piece in powers_below(self.repeat)]
        threads: list[Basis] = [(lane, column * unit) for lane, column in shape.threads]
        if self.split is not None:
            threads.append((0, self.split))
        return registers, threads

    def layout(self, element_bitwidth: int = COLUMN_BITS) -> LinearLayout:
        """The four warps of a warpgroup, each with its own lanes, execute it.

        Returns:
            ``slot``, ``register``, ``thread``, ``warp`` -> ``lane`` (128), ``slot``, ``column``.

        Raises:
            LayoutError: `pack` with elements that are not of 16 bits.
        """
        one_of("element_bitwidth", element_bitwidth, TMEM_ELEMENT_BITWIDTHS)
        if self.pack and element_bitwidth != 16:
            raise LayoutError("element_bitwidth", element_bitwidth, "must be 16 with pack")
        registers, threads = self.bases()
        slots = COLUMN_BITS // element_bitwidth
        columns = max((2 * column for _, column in [*registers, *threads]), default=1)
        inner = [(0, 0, 1)] if self.pack else [(0, slot, 0) for slot in powers_below(slots)]
        sizes = {"lane": TMEM_LANES, "slot": slots, "column": max(columns, 2 if self.pack else 1)}
        return LinearLayout(
            {
                "slot": inner,
                "register": [(lane, 0, column) for lane, column in registers],
                "thread": [(lane, 0, column) for lane, column in threads],
                "warp": [(lane, 0, 0) for lane in (WARP_LANES, 2 * WARP_LANES)],
            },
            sizes,
        )

    def instruction(self, store: bool = False) -> str:
        """The PTX mnemonic, such as ``tcgen05.ld.sync.aligned.16x256b.x8.b32``."""
        packing = (".unpack::16b" if store else ".pack::16b") if self.pack else ""
        name = "st" if store else "ld"
        return f"tcgen05.{name}.sync.aligned.{self.shape}.x{self.repeat}{packing}.b32"


@dataclass(frozen=True)
class TmemTransfer:
    """How warps move a whole matrix between TMEM and registers.

    Attributes:
        access: the instruction that each warp executes.
        offsets: where each of a warp's instructions starts, relative to the warp's first lane and
            column; in the order of the registers.
        layout: ``slot``, ``register``, ``thread``, ``warp`` (and ``block``) -> ``lane``, ``slot``,
            ``column`` (and ``block``).
        elements: the same to ``dim0``, ``dim1``: which element of the matrix.
    """

    access: TmemAccess
    offsets: tuple[TmemAddress, ...]
    layout: LinearLayout
    elements: LinearLayout

    @property
    def registers(self) -> int:
        """How many 32-bit registers of each thread hold the matrix."""
        return self.layout.in_dims["register"]


def _register_slots(
    slots: list[Basis], columns: list[Basis], element_bitwidth: int
) -> tuple[int, bool]:
    """(log2 of the elements that a register holds, whether they come from two columns)."""
    contiguous = [(0, 1 << bit) for bit in range(len(slots))]
    if slots == contiguous:
        return len(slots), False
    if not any(map(any, slots)):
        pack = element_bitwidth == 16 and bool(columns) and columns[0] == (0, 1)
        return (1, True) if pack else (0, False)
    filled = sum(1 for basis in slots if any(basis))
    if not columns and slots[:filled] == contiguous[:filled]:
        return filled, False
    rule = "the elements of a column must be all of it, side by side along dim1, or one alone"
    raise LayoutError("layout.slot", slots, rule)


def plan_transfer(matrix: LinearLayout, shape: str, warps: int = WARPGROUP_WARPS) -> TmemTransfer:
    """Move a matrix with one shape of tcgen05.ld or tcgen05.st, as Triton does.

    Each warp of a warpgroup moves its own lanes, in as few instructions as registers allow. Where a
    16-lane shape meets a matrix on all lanes, the other 16 lanes are a second instruction's, or,
    with 8 warps or more, the second warpgroup's. Further warpgroups share the columns, and repeat
    each other where no columns are left. ``32x32b`` on a matrix with holes (layouts C and F)
    becomes ``16x32bx2``: threads 16 to 31 move the second half of the columns.

    Args:
        matrix: a matrix in TMEM, as of `accumulator_layout`.
        shape: ``32x32b``, ``16x64b``, ``16x128b`` or ``16x256b``.
        warps: 4, 8, 16, 32 or 64.

    Raises:
        LayoutError: the shape does not fit the matrix; the message says why.

    Source: Triton, ``getDistributedLayoutForTmemLdSt`` (``TritonNvidiaGPU/IR/Dialect.cpp``).
    """
    lanes, slots, columns = matrix_bases(matrix)
    atom = _shape(shape)
    if atom.name == "16x32bx2":
        raise LayoutError("shape", shape, "is chosen where 32x32b meets a matrix with holes")
    if not is_power_of_two(warps) or not WARPGROUP_WARPS <= warps <= 64:
        raise LayoutError("warps", warps, "must be 4, 8, 16, 32 or 64: whole warpgroups")
    bitwidth = COLUMN_BITS >> len(slots)
    inner, pack = _register_slots(slots, columns, bitwidth)
    unit = 2 if pack else 1
    if atom.columns * unit > 1 << len(columns):
        rule = f"needs {atom.columns * unit} columns; the matrix has {1 << len(columns)}"
        raise LayoutError("shape", shape, rule)
    _check_no_holes(atom, unit, lanes, columns)

    halves = atom.lanes < WARP_LANES and any(lanes[4])  # both halves of a warp's lanes
    by_warps = halves and warps > WARPGROUP_WARPS
    groups = warps // (2 * WARPGROUP_WARPS if by_warps else WARPGROUP_WARPS)
    pieces = (1 << len(columns)) // unit // atom.columns
    shares = min(pieces, groups)  # warpgroups that share the columns; the others repeat them
    pieces //= shares
    width = atom.columns * unit

    access = TmemAccess(atom.name, min(pieces, atom.max_repeat), pack)
    if atom.lanes == WARP_LANES and not any(lanes[4]) and pieces > 1:
        pieces //= 2
        repeat = min(pieces, ACCESS_SHAPES["16x32bx2"].max_repeat)
        access = TmemAccess("16x32bx2", repeat, pack, split=pieces * width)
    registers, threads = access.bases()
    more = [(0, width * access.repeat * piece) for piece in powers_below(pieces // access.repeat)]
    if halves and not by_warps:
        more.append((16, 0))
    group_lanes = [WARP_LANES, 2 * WARP_LANES, *([16] if by_warps else [])]
    per_group = (1 << len(columns)) // shares
    warp_bases = [(lane, 0) for lane in group_lanes]
    warp_bases += [(0, per_group * share) for share in powers_below(shares)]
    warp_bases += [(0, 0) for _ in powers_below(groups // shares)]

    sizes = {"lane": TMEM_LANES, "slot": 1 << len(slots), "column": 1 << len(columns)}
    layout = LinearLayout(
        {
            "slot": [(0, 0, 1)] if pack else [(0, 1 << bit, 0) for bit in range(inner)],
            "register": [(lane, 0, column) for lane, column in registers + more],
            "thread": [(lane, 0, column) for lane, column in threads],
            "warp": [(lane, 0, column) for lane, column in warp_bases],
        },
        sizes,
    )
    if "block" in matrix.in_dims:
        layout = layout * LinearLayout.identity_1d(matrix.in_dims["block"], "block", "block")
    offsets = []
    for chosen in itertools.product((0, 1), repeat=len(more)):
        taken = [basis for basis, bit in zip(more, reversed(chosen), strict=True) if bit]
        offsets.append(TmemAddress(sum(b[0] for b in taken), sum(b[1] for b in taken)))
    return TmemTransfer(access, tuple(offsets), layout, layout.compose(matrix))


def _check_no_holes(atom: AccessShape, unit: int, lanes: list[Basis], columns: list[Basis]) -> None:
    """Every register of every thread must hold an element of its own, or LayoutError."""

    def image(lane: int, column: int) -> Basis:
        found = (0, 0)
        for value, bases in ((lane, lanes), (column * unit, columns)):
            for bit, basis in enumerate(bases):
                if value >> bit & 1:
                    found = (found[0] ^ basis[0], found[1] ^ basis[1])
        return found

    threads = atom.threads[:4] if atom.lanes == WARP_LANES else atom.threads
    images = [image(*basis) for basis in (*atom.registers, *threads)]
    if not LinearLayout({"in": images}, ["dim0", "dim1"]).is_injective():
        rule = "some of its threads or registers would meet holes or copies in this matrix"
        raise LayoutError("shape", atom.name, rule)
