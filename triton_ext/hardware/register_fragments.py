"""Matrix fragments: which element of a matrix each part of each register of a warp holds.

A `Fragment` is a `LinearLayout` from ``part`` (the elements of one register, the lowest bits
first), ``register`` and ``thread`` (of the warp) to ``row`` and ``column``. All fragments of the
tensor core's warp instructions are of one family: eight rows by 16 bytes, of which four threads
hold a row, are the *core* that ``ldmatrix`` moves; an operand or accumulator is a few of them.

Sources: PTX ISA, "Matrix Fragments for mma.m16n8k16 ..." and its siblings for ``mma``, "Register
Fragments and Shared Memory Matrix Layouts" for ``wgmma``, "ldmatrix", "stmatrix", "movmatrix".
For the 8-bit forms of sm_100 the figures are confirmed by CUTLASS ``cute/atom/copy_traits_sm100``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from triton_ext.layouts.arguments import one_of
from triton_ext.layouts.encodings import CHUNK_BYTES
from triton_ext.layouts.gf2 import powers_below
from triton_ext.layouts.linear_layout import Basis, LinearLayout
from triton_ext.layouts.nvmma_shared import ATOM_ROWS

Operand = Literal["a", "b"]
_THREADS_OF_A_ROW = 4


@dataclass(frozen=True)
class Fragment:
    """How the threads of a warp hold a matrix.

    Attributes:
        parts: (row, column) of part 1, 2, ... of register 0 of thread 0.
        registers: (row, column) of part 0 of register 1, 2, 4, ... of thread 0.
        threads: (row, column) of the first part of register 0 of thread 1, 2, 4, 8, 16.
    """

    parts: tuple[Basis, ...]
    registers: tuple[Basis, ...]
    threads: tuple[Basis, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns) of the matrix."""
        every = (*self.parts, *self.registers, *self.threads)
        rows, columns = (sum(basis[axis] for basis in every) + 1 for axis in (0, 1))
        return rows, columns

    @property
    def layout(self) -> LinearLayout:
        """``part``, ``register``, ``thread`` -> ``row``, ``column``."""
        rows, columns = self.shape
        return LinearLayout(
            {"part": self.parts, "register": self.registers, "thread": self.threads},
            {"row": rows, "column": columns},
        )

    @property
    def transposed(self) -> Fragment:
        """The same registers, as a fragment of the transposed matrix."""

        def swap(bases: tuple[Basis, ...]) -> tuple[Basis, ...]:
            return tuple((column, row) for row, column in bases)

        return Fragment(swap(self.parts), swap(self.registers), swap(self.threads))


def _threads(columns_each: int) -> tuple[Basis, ...]:
    """Four threads along a row, `columns_each` apart; eight rows."""
    along = [(0, columns_each * step) for step in powers_below(_THREADS_OF_A_ROW)]
    return (*along, *((step, 0) for step in powers_below(ATOM_ROWS)))


def _parts(count: int) -> tuple[Basis, ...]:
    return tuple((0, step) for step in powers_below(count))


def core_fragment(element_bitwidth: int) -> Fragment:
    """Eight rows of 16 bytes in one register: what ``ldmatrix`` and ``stmatrix`` move.

    Args:
        element_bitwidth: 8, 16 or 32.

    Raises:
        LayoutError: another width.
    """
    one_of("element_bitwidth", element_bitwidth, (8, 16, 32))
    each = 32 // element_bitwidth
    return Fragment(_parts(each), (), _threads(each))


def operand_fragment(operand: Operand, rows: int, k: int, element_bitwidth: int) -> Fragment:
    """Operand A (rows x K) or B (K x columns) of ``mma``, or A of ``wgmma`` (16 rows a warp).

    Args:
        operand: "a" or "b".
        rows: M for A (8 or 16), N for B (8).
        k: a power of two: 4 to 16 for 64 bits; else 16 or 32 bytes.
        element_bitwidth: 4, 8, 16, 32 or 64.

    Raises:
        LayoutError: no such operand.
    """
    one_of("operand", operand, ("a", "b"))
    one_of("rows", rows, (8, 16) if operand == "a" else (8,))
    one_of("element_bitwidth", element_bitwidth, (4, 8, 16, 32, 64))
    each = max(1, 32 // element_bitwidth)
    span = each * _THREADS_OF_A_ROW
    one_of("k", k, (span, 2 * span, 4 * span) if element_bitwidth == 64 else (span, 2 * span))
    more_rows = tuple((step, 0) for step in powers_below(rows) if step >= ATOM_ROWS)
    more_columns = tuple((0, step) for step in powers_below(k) if step >= span)
    fragment = Fragment(_parts(each), (*more_rows, *more_columns), _threads(each))
    return fragment.transposed if operand == "b" else fragment


def accumulator_fragment(rows: int, element_bitwidth: int) -> Fragment:
    """Eight columns of an accumulator; further ones follow in further registers.

    Each thread holds two neighbours of a row: in one register if they have 16 bits.

    Args:
        rows: 8, or 16 (``mma.m16``; the 16 rows of a warp for ``wgmma``).
        element_bitwidth: 16, 32 or 64.

    Raises:
        LayoutError: no such accumulator.
    """
    one_of("rows", rows, (8, 16))
    one_of("element_bitwidth", element_bitwidth, (16, 32, 64))
    pair: tuple[Basis, ...] = ((0, 1),)
    more_rows = tuple((step, 0) for step in powers_below(rows) if step >= ATOM_ROWS)
    parts, registers = (pair, more_rows) if element_bitwidth == 16 else ((), (*pair, *more_rows))
    return Fragment(parts, registers, _threads(2))


LDMATRIX_M16N16 = Fragment(
    parts=((1, 0), (2, 0)),
    registers=((0, ATOM_ROWS),),
    threads=((4, 0), (8, 0), (0, 1), (0, 2), (0, 4)),
)
"""``ldmatrix.m16n16.trans.b8``: 16 rows of 16 bytes in memory, in two registers."""

STMATRIX_M16N8 = Fragment(parts=((0, 1), (ATOM_ROWS, 0)), registers=(), threads=_threads(2))
"""``stmatrix.m16n8.trans.b8``: 16 rows of 8; each of the 8 columns is 16 bytes in memory."""

SOURCE_FORMATS = {"b6x16_p32": 6, "b4x16_p64": 4}
"""``ldmatrix``: 16 elements of 6 or 4 bits fill the low bits of 16 bytes; each becomes a byte."""

MATRIX_ROW_BYTES = CHUNK_BYTES
"""One address of ``ldmatrix`` or ``stmatrix`` names so many bytes."""
