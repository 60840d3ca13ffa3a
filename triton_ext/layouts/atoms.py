"""Swizzles and the documented swizzle atoms, from the documents' own formulas.

Independent of the NVMMAShared conversion, so that each can be held against the other: here an
element's address is computed from its coordinates, by CuTe's ``Swizzle<B, M, S>`` over the
canonical layouts of the PTX ISA ("Canonical layouts"; seed 001, "SMEM Layouts for an MMA
instruction"; seed 003 draws the atoms).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from triton_ext.display import Displayed
from triton_ext.errors import LayoutError
from triton_ext.layouts.arguments import one_of
from triton_ext.layouts.encodings import CHUNK_BYTES, ELEMENT_BITWIDTHS, SWIZZLE_BYTE_WIDTHS
from triton_ext.layouts.gf2 import powers_below
from triton_ext.layouts.linear_layout import LinearLayout

Major = Literal["K", "MN"]
MAJORS: tuple[Major, ...] = ("K", "MN")
_LINE_BITS = 7  # log2 of 128 bytes


@dataclass(frozen=True)
class Swizzle:
    """CuTe's ``Swizzle<bits, base, shift>``: XOR one field of an address with a higher one.

    The field of `bits` bits that starts at bit `base` is XORed with the field of the same width
    that starts at bit ``base + shift``. A swizzle is its own inverse.
    """

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        for name in ("bits", "base", "shift"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise LayoutError(name, value, "must be an integer, at least 0")
        if self.shift < self.bits:
            raise LayoutError("shift", self.shift, f"must be at least bits ({self.bits})")

    def __call__(self, address: int) -> int:
        """The swizzled address, in the unit in which `base` counts (bytes for the atoms)."""
        mask = ((1 << self.bits) - 1) << (self.base + self.shift)
        return address ^ ((address & mask) >> self.shift)

    def __str__(self) -> str:
        return f"Swizzle<{self.bits}, {self.base}, {self.shift}>"


def address_swizzle(width: int, atomicity: int = CHUNK_BYTES) -> Swizzle:
    """The swizzle of byte addresses, for every width and atomicity that the hardware has.

    Rows of `width` bytes fill lines of 128, the banks side by side; the number of a unit in its
    row is XORed with the number of its line: ``Swizzle<0..3, 4, 3>``, and with units of 32 and 64
    bytes ``Swizzle<2, 5, 2>`` and ``Swizzle<1, 6, 1>``.

    Args:
        width: 0, 32, 64 or 128 bytes.
        atomicity: the unit, which moves as a whole, in bytes: 16; 32 or 64 with 128 bytes.
    """
    units, base = max(1, width // atomicity), atomicity.bit_length() - 1
    return Swizzle(units.bit_length() - 1, base, _LINE_BITS - base)


@dataclass(frozen=True)
class SwizzleAtom(Displayed):
    """One of the 8 documented swizzle atoms: K-major or MN-major, none, 32, 64 or 128 bytes wide.

    Args:
        major: the contiguous dimension: "K", or "MN" (M of operand A, N of operand B).
        swizzle_byte_width: 0 ("no swizzle", "interleaved"), 32, 64 or 128.
        element_bitwidth: 8, 16, 32 or 64.
    """

    major: Major
    swizzle_byte_width: int
    element_bitwidth: int

    def __post_init__(self) -> None:
        one_of("major", self.major, MAJORS)
        one_of("swizzle_byte_width", self.swizzle_byte_width, SWIZZLE_BYTE_WIDTHS)
        one_of("element_bitwidth", self.element_bitwidth, ELEMENT_BITWIDTHS)

    @property
    def row_bytes(self) -> int:
        """How wide the atom is along the contiguous dimension, in bytes."""
        return max(CHUNK_BYTES, self.swizzle_byte_width)

    @property
    def swizzle(self) -> Swizzle:
        """Over byte addresses: ``Swizzle<0..3, 4, 3>``."""
        return address_swizzle(self.swizzle_byte_width)

    @property
    def shape(self) -> tuple[int, int]:
        """(M or N, K), in elements: 8 along the strided dimension, `row_bytes` along the other."""
        row = 8 * self.row_bytes // self.element_bitwidth
        return (8, row) if self.major == "K" else (row, 8)

    def address(self, mn: int, k: int) -> int:
        """Where element (mn, k) lies, in bytes from the start of the atom."""
        strided, contiguous = (mn, k) if self.major == "K" else (k, mn)
        return self.swizzle(strided * self.row_bytes + contiguous * self.element_bitwidth // 8)

    def to_linear_layout(self) -> LinearLayout:
        """``offset`` (elements) -> (``dim0``: M or N, ``dim1``: K)."""
        element_bytes = self.element_bitwidth // 8
        rows, columns = self.shape
        addresses = {
            "dim0": [(self.address(mn, 0) // element_bytes,) for mn in powers_below(rows)],
            "dim1": [(self.address(0, k) // element_bytes,) for k in powers_below(columns)],
        }
        return LinearLayout(addresses, {"offset": rows * columns}).invert()

    def chunk_table(self) -> list[list[int]]:
        """The seeds' picture: for each 128-byte line of shared memory, the chunks that it holds.

        Chunks of 16 bytes are numbered along the contiguous dimension first.
        """
        chunks = 8 * self.row_bytes // CHUNK_BYTES
        line = [self.swizzle(CHUNK_BYTES * slot) // CHUNK_BYTES for slot in range(chunks)]
        return [line[start : start + 8] for start in range(0, chunks, 8)]

    def __str__(self) -> str:
        width = f"{self.swizzle_byte_width}B" if self.swizzle_byte_width else "no"
        return f"{self.major}-major, {width} swizzle ({self.swizzle})"
