"""Layouts as one HTML file to explore: no server, no network, nothing beside the file.

Every configuration that the page can show is computed here and embedded as the bases of its linear
layout and of the inverse. The page's script XORs bases; it knows no swizzle.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.hardware.banks import BANK_BYTES, BANKS, LINE_BYTES
from triton_ext.layouts.atoms import SwizzleAtom
from triton_ext.layouts.cluster import checked_shape
from triton_ext.layouts.dump import LayoutDump
from triton_ext.layouts.encodings import (
    CHUNK_BYTES,
    SWIZZLE_BYTE_WIDTHS,
    NVMMAShared,
    SharedLinear,
)
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.layouts.nvmma_shared import ATOM_ROWS, nvmma_shared_to_linear_layout
from triton_ext.render.cells import Plane, fits
from triton_ext.render.parts import dump_atom, dump_plane, operand_shape, unit_shape
from triton_ext.render.scene import FILLS, rendered
from triton_ext.render.words import by

EXPLORED_BITWIDTHS = (8, 16, 32)
EXPLORED_SHAPES = ((64, 64), (128, 64), (128, 128), (64, 256))
ONE_ATOM = "atom"
ROWS = "rows"
MAX_DRAWN_CELLS = 4096
"""At most so many cells of a tile are drawn; the page says what was cut."""

__all__ = ["Configuration", "dump_html", "explorer_html", "tiles_html"]


@dataclass(frozen=True)
class Configuration:
    """One layout that a page can show.

    Attributes:
        choices: (control, value) for each of the page's controls.
        title: a line that describes it.
        plane: the layout.
        names: the output dimensions, as the page calls them.
        atom: the swizzle atom that the tile is made of, or None.
        attribute: the MLIR attribute of the layout.
    """

    choices: tuple[tuple[str, str], ...]
    title: str
    plane: Plane
    names: tuple[str, ...]
    atom: SwizzleAtom | None
    attribute: str

    def to_object(self) -> dict[str, Any]:
        """The JSON value that the page's script reads."""
        plane, atom = self.plane, self.atom
        instruction = operand_shape(atom) if atom else None
        if instruction and not fits(instruction, plane.shape):
            instruction = None
        bases = plane.layout.bases
        return {
            "choices": dict(self.choices),
            "title": self.title,
            "attribute": self.attribute,
            "names": self.names,
            "bits": plane.element_bitwidth,
            "offset": bases["offset"],
            "block": bases.get("block", []),
            "rows": plane.inverse_bases(plane.names[0]),
            "columns": plane.inverse_bases(plane.names[1]),
            "shape": plane.shape,
            "drawn": _drawn(plane),
            "cell": plane.cell,
            "atom": atom.shape if atom else None,
            "window": atom.shape if atom else _window(plane),
            "unit": unit_shape(atom) if atom else _unit(plane),
            "instruction": instruction,
        }


def _runs_down(plane: Plane) -> bool:
    """Whether memory is contiguous along the rows' dimension."""
    return plane.cell[0] > 1


def _drawn(plane: Plane) -> tuple[int, int]:
    """The part of the tile that is drawn: the first rows, or columns if memory runs down."""
    (rows, columns), cell = plane.shape, plane.cell
    limit = MAX_DRAWN_CELLS * cell[0] * cell[1]
    while rows * columns > limit and rows > cell[0] and not _runs_down(plane):
        rows //= 2
    while rows * columns > limit and columns > cell[1]:
        columns //= 2
    while rows * columns > limit:
        rows //= 2
    return rows, columns


def _window(plane: Plane) -> tuple[int, int]:
    """The part that is drawn in detail where there is no atom: 8 by 8 cells."""
    rows, columns = plane.shape
    return (
        min(rows, ATOM_ROWS * plane.cell[0]),
        min(columns, LINE_BYTES // CHUNK_BYTES * plane.cell[1]),
    )


def _unit(plane: Plane) -> tuple[int, int] | None:
    """The 8x16B subtile where there is no atom; None where 16 bytes do not stay together."""
    rows, columns = plane.cell
    if rows * columns != plane.chunk_elements:
        return None
    unit = (rows, ATOM_ROWS) if _runs_down(plane) else (ATOM_ROWS, columns)
    return unit if fits(unit, plane.shape) else None


def _pair(shape: Sequence[int]) -> tuple[int, int]:
    rows, columns = checked_shape(shape, 2)
    return rows, columns


def stacked_atoms(
    atom: SwizzleAtom, shape: Sequence[int], order: tuple[int, int] | None = None
) -> LinearLayout:
    """The layout of a tile whose atoms follow one another in memory.

    Args:
        atom: may be without a swizzle, although Triton makes no tiles of such atoms.
        shape: the tile's, a multiple of the atom's, in elements.
        order: ``(0, 1)`` stacks along the first dimension first, ``(1, 0)`` along the second. Left
            out: along the strided dimension first, the order of seed 002 ("we stack the swizzle
            atom along M first, then along K"; MN-major: "along K first, then along M").
    """
    counts = {f"dim{i}": shape[i] // atom.shape[i] for i in range(2)}
    layout = atom.to_linear_layout()
    along = order or ((0, 1) if atom.major == "K" else (1, 0))
    for name in (f"dim{dim}" for dim in along):
        layout = layout * LinearLayout.identity_1d(counts[name], "offset", name)
    return layout


def configurations(shapes: Iterable[Sequence[int]]) -> Iterator[Configuration]:
    """Every legal combination of swizzle, element width, major-ness and shape.

    The swizzle "rows" is the linear layout of seed 003, Sec. 4: what Triton's swizzle 0 makes.
    """
    widths = [*map(str, SWIZZLE_BYTE_WIDTHS), ROWS]
    checked = [_pair(shape) for shape in shapes]
    for width, bits, shape in itertools.product(widths, EXPLORED_BITWIDTHS, [None, *checked]):
        for major in ("K", "MN"):
            atom = None
            if width != ROWS:
                atom = SwizzleAtom("MN" if major == "MN" else "K", int(width), bits)
                tile = shape or atom.shape
                if not fits(atom.shape, tile):
                    continue
                layout = stacked_atoms(atom, tile)
                name = "no swizzle" if width == "0" else f"{width}-byte swizzle"
            elif shape is not None:
                tile = shape
                encoding = NVMMAShared(0, bits, transposed=major == "MN")
                layout = nvmma_shared_to_linear_layout(tile, encoding)
                name = "plain rows, no atoms"
            else:
                continue
            yield Configuration(
                (
                    ("swizzle", width),
                    ("bits", str(bits)),
                    ("major", major),
                    ("shape", by(shape) if shape else ONE_ATOM),
                ),
                f"{by(tile)}, {major}-major, {name}, {bits}-bit elements",
                Plane(layout, bits),
                ("M/N", "K"),
                atom,
                _attribute(layout, 0 if atom is None else int(width), bits, major == "MN"),
            )


def _attribute(layout: LinearLayout, swizzle: int, bits: int, transposed: bool) -> str:
    """The NVMMA encoding of a layout, if Triton makes it of one; else its bases."""
    encoding = NVMMAShared(swizzle, bits, transposed)
    try:
        if nvmma_shared_to_linear_layout(tuple(layout.out_dims.values()), encoding) == layout:
            return str(encoding)
    except LayoutError:  # no tile of that encoding
        pass
    return str(SharedLinear.from_linear_layout(layout))


def _control(name: str, label: str, options: list[tuple[str, str]]) -> dict[str, Any]:
    return {"name": name, "label": label, "options": options}


def _controls(shapes: Iterable[Sequence[int]]) -> list[dict[str, Any]]:
    swizzles = [("0", "none")] + [(str(width), f"{width} B") for width in SWIZZLE_BYTE_WIDTHS[1:]]
    tiles = [(ONE_ATOM, "one atom")] + [(by(shape), by(shape)) for shape in shapes]
    return [
        _control("swizzle", "Swizzle", [*swizzles, (ROWS, "plain rows")]),
        _control("bits", "Element", [(str(bits), f"{bits} bits") for bits in EXPLORED_BITWIDTHS]),
        _control("major", "Major", [("K", "K"), ("MN", "MN")]),
        _control("shape", "Tile (M/N x K)", tiles),
    ]


def _page(
    title: str,
    subtitle: str,
    shown: Sequence[Configuration],
    controls: list[dict[str, Any]],
    selected: Configuration,
) -> str:
    data = {
        "configurations": [configuration.to_object() for configuration in shown],
        "selected": shown.index(selected),
        "heading": title,
        "memory": {"chunk": CHUNK_BYTES, "bank": BANK_BYTES, "banks": BANKS, "line": LINE_BYTES},
        "fills": FILLS,
    }
    return rendered("explorer.html", title=title, subtitle=subtitle, controls=controls, data=data)


def explorer_html(
    shapes: Sequence[Sequence[int]] = EXPLORED_SHAPES,
    *,
    swizzle_byte_width: int = 128,
    element_bitwidth: int = 16,
    major: str = "K",
    shape: Sequence[int] | None = (128, 128),
) -> str:
    """One self-contained HTML file to explore the layouts of operand tiles.

    Args:
        shapes: the tiles to choose from, (M or N, K) in elements, besides one atom alone.
        swizzle_byte_width, element_bitwidth, major, shape: what it shows first; the shape None is
            one atom. They must be among what the page can show.

    Raises:
        LayoutError: a shape that is not two powers of two, or a first choice that does not exist.
    """
    shown = list(configurations(shapes))
    wanted = {
        "swizzle": str(swizzle_byte_width),
        "bits": str(element_bitwidth),
        "major": str(major),
        "shape": by(shape) if shape is not None else ONE_ATOM,
    }
    selected = next((one for one in shown if dict(one.choices) == wanted), None)
    if selected is None:
        raise LayoutError("selected", wanted, "is not a legal tile among the page's choices")
    return _page(
        "Shared-memory layouts",
        "What wgmma and tcgen05.mma read: operand A (M x K) or B (N x K).",
        shown,
        _controls(shapes),
        selected,
    )


def tiles_html(title: str, subtitle: str, shown: Sequence[Configuration]) -> str:
    """The page of `explorer_html` for some tiles, with one control that chooses among them.

    Args:
        shown: at least one; the choices of each are one pair, ("value", its name).
    """
    options = [(value, f"{value}: {one.title}") for one in shown for _, value in one.choices]
    return _page(title, subtitle, shown, [_control("value", "Value", options)], shown[0])


def dump_html(dump: LayoutDump) -> str:
    """What ``triton-ext layout --format html`` prints: the page of `explorer_html` for one dump.

    If the dump's layout is one that the explorer knows at the dump's shape, the page has its
    controls, to compare with the other swizzles, widths and major-nesses.

    Raises:
        LayoutError: a dump with an error or without an element width.
    """
    plane = dump_plane(dump)
    title = f"{dump.alias or dump.encoding}"
    subtitle = dump.encoding if dump.alias else f"A {dump.what} in shared memory."
    shapes = [plane.shape] if dump.what == "tile" and len(plane.layout.out_dims) == 2 else []
    shown = list(configurations(shapes)) if shapes else []
    for one in shown:
        if one.plane == plane:
            return _page(title, subtitle, shown, _controls(shapes), one)
    # An atom's dump has its rows as dim0, whatever the major-ness: as a K-major atom.
    atom = dump_atom(dump, plane)
    if dump.what == "atom" and atom is not None:
        atom = SwizzleAtom("K", atom.swizzle_byte_width, atom.element_bitwidth)
    names = tuple(plane.layout.out_dims)
    heading = f"{by(plane.layout.out_dims.values())}, {plane.element_bitwidth}-bit elements"
    alone = Configuration((), heading, plane, names, atom, dump.encoding)
    return _page(title, subtitle, [alone], [], alone)
