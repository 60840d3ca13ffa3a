"""The pictures as SVG documents: atom, tile, banks, tensor memory, descriptor, operand, dump."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from triton_ext.hardware.tensor_memory_access import TmemTransfer
from triton_ext.layouts.dump import LayoutDump
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.render.atom_picture import atom_scene
from triton_ext.render.bank_picture import bank_access_scene, banks_scene
from triton_ext.render.cells import fits
from triton_ext.render.descriptor_picture import instruction_scene, matrix_scene
from triton_ext.render.operand_picture import operand_scene
from triton_ext.render.parts import dump_atom, dump_plane, operand_shape
from triton_ext.render.scene import Scene
from triton_ext.render.tensor_memory_picture import fragment_scene, tensor_memory_scene
from triton_ext.render.tile_picture import tile_scene

_P = ParamSpec("_P")


def _as_svg(scene: Callable[_P, Scene]) -> Callable[_P, str]:
    """The same picture as a document."""

    @wraps(scene)
    def draw(*args: _P.args, **options: _P.kwargs) -> str:
        return scene(*args, **options).to_svg()

    return draw


atom_svg = _as_svg(atom_scene)
tile_svg = _as_svg(tile_scene)
banks_svg = _as_svg(banks_scene)
bank_access_svg = _as_svg(bank_access_scene)
tensor_memory_svg = _as_svg(tensor_memory_scene)
descriptor_svg = _as_svg(matrix_scene)
instruction_descriptor_svg = _as_svg(instruction_scene)
operand_svg = _as_svg(operand_scene)


def transfer_svg(layout: LinearLayout, transfer: TmemTransfer) -> str:
    """Tensor memory as `tensor_memory_scene` draws it, and who holds what after a tcgen05.ld.

    Below the matrix: the first columns of warp 0's lanes, element by element, with the thread and
    the register that hold each, as in the figures of the PTX ISA ("Matrix fragments for shape
    ..."). Raises LayoutError: a layout that `tensor_memory_scene` refuses.

    Args:
        layout: the layout of the matrix in tensor memory.
        transfer: what `plan_transfer` plans for that layout.
    """
    return tensor_memory_scene(layout).above(fragment_scene(transfer)).to_svg()


def dump_svg(dump: LayoutDump, *, instruction: tuple[int, int] | None = None) -> str:
    """What ``triton-ext layout --format svg`` prints.

    An atom as `atom_scene` draws it; a tile as `tile_scene` does, with its banks below. Raises
    LayoutError: a dump with an error or without an element width; an illegal instruction.

    Args:
        dump: a dump with a layout and an element width.
        instruction: the operand shape of one MMA, as in `tile_scene`. Left out: that of seed 002,
            64 rows of 32 bytes of K, if the tile is made of atoms and it divides the tile.
    """
    plane = dump_plane(dump)
    atom = dump_atom(dump, plane)
    if dump.what == "atom" and atom is not None:
        return atom_scene(atom).to_svg()
    if instruction is None and atom is not None:
        usual = operand_shape(atom)
        instruction = usual if fits(usual, plane.shape) else None
    drawn = plane.layout, plane.element_bitwidth
    tile = tile_scene(*drawn, atom=atom, instruction=instruction, paddings=plane.paddings)
    lines = banks_scene(*drawn, max_lines=8, paddings=plane.paddings)
    return tile.above(lines).to_svg()
