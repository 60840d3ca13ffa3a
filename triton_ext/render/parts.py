"""What a tile consists of: swizzle atoms, the 8x16B subtiles in them, and the MMA's operands."""

from __future__ import annotations

from dataclasses import replace

from triton_ext.errors import LayoutError
from triton_ext.hardware.operand import INSTRUCTION_K_BYTES
from triton_ext.layouts.atoms import Major, SwizzleAtom
from triton_ext.layouts.dump import LayoutDump
from triton_ext.layouts.encodings import CHUNK_BYTES, NVMMAShared, parse_encoding
from triton_ext.layouts.nvmma_shared import ATOM_ROWS
from triton_ext.render.cells import Plane, chunk_elements

MMA_ROWS = 64
"""The M extent of the instruction of seed 002, Sec. 2, and of every wgmma."""


def unit_shape(atom: SwizzleAtom) -> tuple[int, int]:
    """The 8x16B (MN-major: 16Bx8) subtile that the tensor core reads at a time, in elements."""
    chunk = chunk_elements(atom.element_bitwidth)
    return (ATOM_ROWS, chunk) if atom.major == "K" else (chunk, ATOM_ROWS)


def unit_name(atom: SwizzleAtom) -> str:
    """The name of such a subtile: ``8x16B``, or ``16Bx8`` if MN-major (seed 003, Sec. 3)."""
    sizes = (str(ATOM_ROWS), f"{CHUNK_BYTES}B")
    return "x".join(sizes if atom.major == "K" else reversed(sizes))


def operand_shape(atom: SwizzleAtom) -> tuple[int, int]:
    """What one MMA of the worked examples reads: M = 64 by 32 bytes of K (seed 002, Sec. 2)."""
    return (MMA_ROWS, 8 * INSTRUCTION_K_BYTES // atom.element_bitwidth)


def atom_kind(row: int, column: int) -> str:
    """The classes of an atom's outline: neighbours have different colours."""
    return f"outline passive {'other-atom' if (row + column) % 2 else 'atom'}"


def dump_plane(dump: LayoutDump) -> Plane:
    """The plane of a dump that can be drawn. Raises LayoutError: a dump with an error, or without
    an element width."""
    if dump.layout is None:
        raise LayoutError("layout", dump.encoding, dump.error or "there is no layout to draw")
    if dump.element_bitwidth is None:
        rule = f"must be given to draw {dump.encoding}; it does not say it"
        raise LayoutError("element_bitwidth", None, rule)
    return Plane(dump.layout, dump.element_bitwidth, dump.paddings)


def dump_atom(dump: LayoutDump, plane: Plane) -> SwizzleAtom | None:
    """The swizzle atom that a dump's tile really consists of, or that it is itself; else None."""
    try:
        encoding = parse_encoding(dump.encoding)
        if not isinstance(encoding, NVMMAShared) or encoding.fp4_padded:
            return None
        major: Major = "MN" if encoding.transposed else "K"
        atom = SwizzleAtom(major, encoding.swizzle_byte_width, encoding.element_bitwidth)
    except LayoutError:
        return None
    # An atom's dump has its rows as dim0, whatever the major-ness (core_matrix_linear_layout).
    as_dumped = atom if dump.what == "tile" else replace(atom, major="K")
    return atom if plane.is_made_of(as_dumped) else None
