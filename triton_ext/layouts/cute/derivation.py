"""From a swizzle atom, a tile and an instruction's operand to LBO, SBO and the advance.

The derivation is seed 002, Sec. 3.5 and 4.5, by CuTe's algebra, as ``make_umma_desc``
(``include/cute/arch/mma_sm100_desc.hpp``) and ``make_gmma_desc``
(``include/cute/atom/mma_traits_sm90_gmma.hpp``) find a shared-memory matrix descriptor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.layouts.arguments import integers
from triton_ext.layouts.atoms import Major, SwizzleAtom
from triton_ext.layouts.cute.algebra import (
    Layout,
    concatenate,
    logical_divide,
    rank,
    recast,
    size,
    tile_to_shape,
    zipped_divide,
)
from triton_ext.layouts.encodings import CHUNK_BYTES
from triton_ext.layouts.nvmma_shared import ATOM_ROWS

UINT128_BITS = 8 * CHUNK_BYTES


@dataclass(frozen=True)
class CuteStep:
    """One step of a derivation.

    Args:
        title: what is done.
        layout: the result.
        unit_bits: what strides count in: the element's bits, or 128 for uint128.
    """

    title: str
    layout: Layout
    unit_bits: int

    @property
    def unit(self) -> str:
        """`unit_bits` in words."""
        return "uint128" if self.unit_bits == UINT128_BITS else f"{self.unit_bits}-bit elements"

    def __str__(self) -> str:
        return f"{self.title}, in {self.unit}: {self.layout}"


@dataclass(frozen=True)
class CuteDerivation:
    """How a tile's matrix descriptors follow from its layout.

    Args:
        atom: the swizzle atom.
        steps: the five steps: tile, operands, uint128, canonical layout, advance.
        leading_byte_offset: LBO in bytes. For a swizzled K-major operand 16: the field is not
            used and assumed to be 1. Otherwise 0 where the operand has one atom only in the
            direction that LBO steps in, so that it is never added (CuTe, likewise).
        stride_byte_offset: SBO in bytes; 0 where the operand has one atom only in its direction.
        advance: (subtiles along M or N, subtiles along K) -> what to add to the start address, in
            units of 16 bytes.
    """

    atom: SwizzleAtom
    steps: tuple[CuteStep, ...]
    leading_byte_offset: int
    stride_byte_offset: int
    advance: Layout

    @property
    def canonical_form(self) -> str:
        """The canonical layout that the operand matches, as documents write it."""
        return canonical_form(self.atom)

    def subtile_byte_offsets(self) -> list[list[int]]:
        """Where each operand starts in the tile, in bytes: rows along M or N, columns along K."""
        rows, columns = (size(mode) for mode in self.advance.modes)
        return [
            [CHUNK_BYTES * self.advance(row, column) for column in range(columns)]
            for row in range(rows)
        ]

    def __str__(self) -> str:
        """The steps and the two strides, one a line."""
        lines = [f"{number}. {step}" for number, step in enumerate(self.steps, 1)]
        unread = " (not read)" if self.atom.major == "K" and self.atom.swizzle_byte_width else ""
        lines.append(
            f"LBO = {self.leading_byte_offset} bytes{unread}, SBO = {self.stride_byte_offset} bytes"
        )
        return "\n".join(lines)


def _atom_chunks(atom: SwizzleAtom) -> int:
    """The atom's extent along the contiguous dimension in uint128: 1, 2, 4 or 8."""
    return atom.row_bytes // CHUNK_BYTES


def canonical_form(atom: SwizzleAtom) -> str:
    """The canonical layout of an operand of such atoms, in elements; LBO and SBO likewise.

    T is the number of elements in 16 bytes; m and k are repetitions. (PTX ISA, "Canonical
    layouts", and seed 001's table print 2k where K-major layouts have 2 here: an instruction's
    operand is 32 bytes long, as CUTLASS has it and seed 001 explains.)
    """
    width = _atom_chunks(atom)
    if atom.major == "K":
        chunks = f"({width}T,SBO),(1,{'LBO' if width == 1 else 'T'})"
        return f"((8,m),(T,2)):({chunks})"
    outer, inner = ("SBO", "LBO") if width == 1 else ("LBO", "SBO")
    return f"((T,{width},m),(8,k)):((1,T,{outer}),({width}T,{inner}))"


def atom_layout(atom: SwizzleAtom) -> Layout:
    """The layout of an atom before swizzling: (M or N, K) -> elements.

    CUTLASS calls them ``Layout_K_SW128_Atom`` and so on; those are in bits.
    """
    mn, k = atom.shape
    return Layout(atom.shape, (k, 1) if atom.major == "K" else (1, mn))


def canonical_layout(operand: Layout, atom: SwizzleAtom) -> Layout:
    """Split an instruction's operand into what a descriptor's strides lead over.

    Args:
        operand: (M or N, K) -> uint128.
        atom: the atoms that it is made of.

    Returns:
        K-major, in chunks of 8 x 16 bytes: ``((8, m), (1, k)):((W, SBO), (0, LBO))``; MN-major,
        in atoms: ``((W, m), (8, k)):((1, LBO), (W, SBO))``, and without a swizzle
        ``((1, m), (8, k)):((0, SBO), (1, LBO))``. W is the width of the atom: 1, 2, 4 or 8.

    Raises:
        LayoutError: the operand has no such layout: no descriptor can describe it.

    Source: ``make_umma_desc``, ``make_gmma_desc``; seed 002, Sec. 3.5.4 and 4.5.4.
    """
    width = _atom_chunks(atom)
    tiler = (ATOM_ROWS, 1) if atom.major == "K" else (width, ATOM_ROWS)
    if rank(operand) != 2:
        raise LayoutError("operand", str(operand), "must have two modes: (M or N, K)")
    for name, mode, extent in zip(("M or N", "K"), operand.modes, tiler, strict=True):
        if size(mode) % extent:
            rule = f"its {name} must be a multiple of {extent} uint128"
            raise LayoutError("operand", str(operand), rule)
    canonical = logical_divide(operand, tiler)
    (mn_inner, mn_rest), (k_inner, k_rest) = (mode.modes for mode in canonical.modes)
    expected = (Layout(ATOM_ROWS, width), Layout(1, 0))
    if atom.major == "MN":
        expected = (Layout.compact(width), Layout(ATOM_ROWS, width))
    if (mn_inner, k_inner) != expected:
        raise LayoutError(
            "operand",
            str(operand),
            f"({tiler[0]}, {tiler[1]}) of it must lie as {concatenate(*expected)}, in uint128, as"
            f" in an atom ({atom}); they lie as {concatenate(mn_inner, k_inner)}",
        )
    for name, rest in (("M or N", mn_rest), ("K", k_rest)):
        if rank(rest) > 1:
            rule = f"there must be one stride between its parts along {name}; they lie as {rest}"
            raise LayoutError("operand", str(operand), rule)
    if atom.major == "K" and width > 1 and k_rest != Layout.compact(size(k_rest)):
        raise LayoutError(
            "operand",
            str(operand),
            f"its chunks along K must lie side by side in one row of the atom ({atom}), for there"
            f" is no LBO to lead from one atom to the next; they lie as {k_rest}",
        )
    return canonical


def _pair(name: str, value: Any) -> tuple[int, int]:
    first, second = integers(name, value, 2, "(M or N, K)")
    if first < 1 or second < 1:
        raise LayoutError(name, value, "must be two integers >= 1: (M or N, K)")
    return first, second


def derive_steps(
    atom: SwizzleAtom,
    tile: tuple[int, int],
    instruction: tuple[int, int],
    order: tuple[int, int] | None = None,
) -> CuteDerivation:
    """Derive a tile's matrix descriptors step by step, as CuTe does.

    Args:
        atom: the swizzle atom, of elements of 8, 16 or 32 bits.
        tile: (M or N, K) of the tile in shared memory, in elements.
        instruction: (M or N, K) of the operand of one instruction, in elements. Whether some
            instruction has such an operand, and takes such elements in this major-ness, is not
            asked.
        order: ``(0, 1)`` stacks atoms along M or N first, ``(1, 0)`` along K first. By default
            along the strided dimension first, as Triton and CUTLASS do: one TMA box then spans
            all of it.

    Returns:
        The steps and what they give: LBO, SBO and the advance of the start address.

    Raises:
        LayoutError: `tile` is not made of such atoms, `instruction` does not divide it into
            operands of whole chunks (K-major) or whole atoms (MN-major), or an operand has no
            canonical layout.

    Source: seed 002, Sec. 3.5 and 4.5.
    """
    if not isinstance(atom, SwizzleAtom):
        raise LayoutError("atom", atom, "must be a SwizzleAtom")
    bits = atom.element_bitwidth
    if bits > 32:
        raise LayoutError("atom", str(atom), "its elements must have 8, 16 or 32 bits")
    tile, instruction = _pair("tile", tile), _pair("instruction", instruction)
    if order is None:
        order = (0, 1) if atom.major == "K" else (1, 0)
    if any(extent % part for extent, part in zip(tile, atom.shape, strict=True)):
        rule = f"must be multiples of the atom's shape {atom.shape} ({atom})"
        raise LayoutError("tile", tile, rule)
    _check_instruction(atom, tile, instruction)

    stacked = tile_to_shape(atom_layout(atom), tile, order)
    operands = zipped_divide(stacked, instruction)
    wide = recast(operands, bits, UINT128_BITS)
    operand, advance = wide.modes
    canonical = canonical_layout(operand, atom)
    first = "K" if order[0] else "M or N"
    parts = "8x16-byte chunks" if atom.major == "K" else "atoms"
    steps = (
        CuteStep(
            f"tile_to_shape: {_by(atom.shape)} atoms to {_by(tile)}, along {first} first",
            stacked,
            bits,
        ),
        CuteStep(f"zipped_divide into operands of {_by(instruction)}", operands, bits),
        CuteStep("recast to uint128", wide, UINT128_BITS),
        CuteStep(f"logical_divide of one operand into {parts}", canonical, UINT128_BITS),
        CuteStep("advance of the start address for each operand", advance, UINT128_BITS),
    )
    leading, strided = _read_strides(canonical, atom.major, _atom_chunks(atom))
    return CuteDerivation(atom, steps, CHUNK_BYTES * leading, CHUNK_BYTES * strided, advance)


def _by(shape: tuple[int, int]) -> str:
    return f"{shape[0]}x{shape[1]}"


def _check_instruction(
    atom: SwizzleAtom, tile: tuple[int, int], instruction: tuple[int, int]
) -> None:
    mn, k = atom.shape
    chunk = UINT128_BITS // atom.element_bitwidth
    if any(extent % part for extent, part in zip(tile, instruction, strict=True)):
        raise LayoutError("instruction", instruction, f"must divide the tile {tile}")
    if atom.major == "MN":
        if instruction[0] % mn or instruction[1] % k:
            rule = f"an MN-major operand must be whole atoms: multiples of {atom.shape} ({atom})"
            raise LayoutError("instruction", instruction, rule)
    elif instruction[0] % mn or instruction[1] % chunk:
        raise LayoutError(
            "instruction",
            instruction,
            f"a K-major operand must be whole chunks of 8 x 16 bytes: multiples of ({mn}, {chunk})",
        )
    elif k % instruction[1] and atom.swizzle_byte_width:
        raise LayoutError(
            "instruction",
            instruction,
            f"K of a swizzled K-major operand must divide the {k} elements in a row of the atom"
            f" ({atom}): there is no LBO to lead from one atom to the next",
        )


def _read_strides(canonical: Layout, major: Major, width: int) -> tuple[int, int]:
    """(LBO, SBO) of a canonical layout, in uint128."""
    (_, mn_rest), (_, k_rest) = (mode.modes for mode in canonical.modes)
    along_mn, along_k = mn_rest(1), k_rest(1)  # how far it is to the next
    if major == "K":
        return (along_k if width == 1 else 1), along_mn
    return (along_mn, along_k) if width > 1 else (along_k, along_mn)
