"""The pictures as SVG documents: atom, tile, banks, tensor memory, descriptor, operand, dump."""

from __future__ import annotations

from triton_ext.hardware.banks import BankReport
from triton_ext.hardware.operand import MmaOperand
from triton_ext.hardware.tensor_memory_access import TmemTransfer
from triton_ext.layouts.atoms import SwizzleAtom
from triton_ext.layouts.dump import LayoutDump
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.render.atom_picture import atom_scene
from triton_ext.render.bank_picture import MAX_LINES, ColourBy, bank_access_scene, banks_scene
from triton_ext.render.cells import fits
from triton_ext.render.descriptor_picture import instruction_scene, matrix_scene
from triton_ext.render.operand_picture import operand_scene
from triton_ext.render.parts import dump_atom, dump_plane, operand_shape
from triton_ext.render.tensor_memory_picture import fragment_scene, tensor_memory_scene
from triton_ext.render.tile_picture import tile_scene


def atom_svg(atom: SwizzleAtom) -> str:
    """A swizzle atom, in logical order beside its lines of shared memory.

    Chunks of 16 bytes are numbered as in seed 003, Sec. 3 (along the contiguous dimension first),
    and have the colour of their 8x16B subtile.

    Raises:
        LayoutError: not a `SwizzleAtom`.
    """
    return atom_scene(atom).to_svg()


def tile_svg(
    layout: LinearLayout,
    element_bitwidth: int,
    *,
    atom: SwizzleAtom | None = None,
    instruction: tuple[int, int] | None = None,
) -> str:
    """A tile in shared memory: the four nested levels of seed 002, Sec. 2.

    Args:
        layout: ``offset`` (elements), and perhaps ``block``, to coordinates. The last two
            dimensions are drawn, the others at 0.
        element_bitwidth: bits of an element, a power of two.
        atom: the swizzle atom that the tile is made of. A cell is then an 8x16B chunk; atoms are
            outlined and labelled with their byte offset. Without an atom, a cell is a run of
            elements in order in memory, at most 16 bytes, and its colour stands for 4 banks.
        instruction: the operand shape of one MMA, (M or N, K) in elements; outlined in red, with
            the advance of the start address in bytes.

    At most 32 x 32 cells are drawn; a note says what was cut.

    Raises:
        LayoutError: a layout that is not of shared memory or does not reach every coordinate, a
            tile that is not made of the atom, an instruction that does not divide the tile.
    """
    return tile_scene(layout, element_bitwidth, atom=atom, instruction=instruction).to_svg()


def banks_svg(
    layout: LinearLayout,
    element_bitwidth: int,
    *,
    colour_by: ColourBy = "row",
    max_lines: int = MAX_LINES,
) -> str:
    """Shared memory as lines of 128 bytes, which are 32 banks of 4 bytes.

    Args:
        layout, element_bitwidth: as in `tile_svg`.
        colour_by: whether a cell's colour stands for its logical row or its column. Along the
            dimension that is contiguous in memory, cells are counted, not elements.
        max_lines: how many lines to draw; a note says if there are more.

    Raises:
        LayoutError: a layout that `tile_svg` refuses, or an illegal option.
    """
    scene = banks_scene(layout, element_bitwidth, colour_by=colour_by, max_lines=max_lines)
    return scene.to_svg()


def tensor_memory_svg(layout: LinearLayout) -> str:
    """Tensor memory: 128 lanes down, columns across.

    Args:
        layout: ``lane``, ``column`` -> two dimensions, as `triton_ext.hardware.tensor_memory`
            makes them; ``slot``, the parts of a column's 32 bits, and ``block``, drawn at 0, may
            be there. What the bases leave free (a zero basis, or one that earlier bases make up)
            is drawn dashed; so are lanes that the layout lacks.

    Raises:
        LayoutError: other dimensions, or more than 128 lanes.
    """
    return tensor_memory_scene(layout).to_svg()


def transfer_svg(layout: LinearLayout, transfer: TmemTransfer) -> str:
    """Tensor memory as `tensor_memory_svg` draws it, and who holds what after a tcgen05.ld.

    Below the matrix: the first columns of warp 0's lanes, element by element, with the thread and
    the register that hold each, as in the figures of the PTX ISA ("Matrix fragments for shape
    ...").

    Args:
        layout: the layout of the matrix in tensor memory.
        transfer: what `plan_transfer` plans for that layout.

    Raises:
        LayoutError: a layout that `tensor_memory_svg` refuses.
    """
    return tensor_memory_scene(layout).above(fragment_scene(transfer)).to_svg()


def bank_access_svg(title: str, report: BankReport) -> str:
    """One access of a warp: which lane accesses which bank of which 128-byte line.

    Banks in which lanes collide are outlined; lanes that are served together have one colour.

    Args:
        title: the heading.
        report: the access and its conflicts, as `triton_ext.hardware.banks` predicts them.
    """
    return bank_access_scene(title, report).to_svg()


def descriptor_svg(value: int, arch: int | str) -> str:
    """A 64-bit matrix descriptor: its bits, its fields, and what is illegal in them.

    Raises:
        LayoutError: not an unsigned 64-bit integer, or an unknown architecture. An illegal
            descriptor is drawn, with its faults marked.
    """
    return matrix_scene(value, arch).to_svg()


def instruction_descriptor_svg(value: int, kind: str) -> str:
    """A 32-bit instruction descriptor of tcgen05.mma: its bits and fields.

    Raises:
        LayoutError: not an unsigned 32-bit integer, an unknown kind, or an illegal descriptor.
    """
    return instruction_scene(value, kind).to_svg()


def operand_svg(layout: LinearLayout, derived: MmaOperand, *, mn_dim: int = 0) -> str:
    """A derived descriptor over its tile: the four nested levels of seed 002, Sec. 2.

    The bits; then the first 8x16B chunk with its elements, the first atom, the first MMA subtile
    with LBO and SBO from one of its parts to the next; and the tile, with the advance of the start
    address for every subtile.

    Args:
        layout: the layout of the tile that was given to `derive_operand`.
        derived: the operand that it found.
        mn_dim: as given to `derive_operand`. M or N is drawn down, K across.

    Raises:
        LayoutError: a swizzle with 32-byte atomicity.
    """
    return operand_scene(layout, derived, mn_dim=mn_dim).to_svg()


def dump_svg(dump: LayoutDump, *, instruction: tuple[int, int] | None = None) -> str:
    """What ``triton-ext layout --format svg`` prints.

    An atom as `atom_svg` draws it; a tile as `tile_svg` does, with its banks below.

    Args:
        dump: a dump with a layout and an element width.
        instruction: the operand shape of one MMA, as in `tile_svg`. Left out: that of seed 002,
            64 rows of 32 bytes of K, if the tile is made of atoms and it divides the tile.

    Raises:
        LayoutError: a dump with an error or without an element width; an illegal instruction.
    """
    plane = dump_plane(dump)
    atom = dump_atom(dump, plane)
    if dump.what == "atom" and atom is not None:
        return atom_scene(atom).to_svg()
    if instruction is None and atom is not None:
        usual = operand_shape(atom)
        instruction = usual if fits(usual, plane.shape) else None
    tile = tile_scene(plane.layout, plane.element_bitwidth, atom=atom, instruction=instruction)
    lines = banks_scene(plane.layout, plane.element_bitwidth, max_lines=8)
    return tile.above(lines).to_svg()
