"""``triton-ext tmem``: the lanes and columns of a matrix in Blackwell's tensor memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from triton_ext.commands.common import SHAPE, Parsed, choices, format_option, rendering, show
from triton_ext.errors import LayoutError
from triton_ext.hardware.instruction_descriptor import legal_n
from triton_ext.hardware.tensor_memory import (
    COLUMN_BITS,
    TMEM_ELEMENT_BITWIDTHS,
    TmemAddress,
    accumulator_layout,
    data_path_layout,
    operand_a_layout,
    tmem_footprint,
    warp_lanes,
)
from triton_ext.hardware.tensor_memory_access import CHOSEN_SHAPES, TmemTransfer, plan_transfer
from triton_ext.hardware.tensor_memory_encoding import TensorMemoryScales, parse_tensor_encoding
from triton_ext.layouts.dump import layout_object
from triton_ext.layouts.linear_layout import LinearLayout


def _element(text: str) -> tuple[int, int]:
    row, column = (int(part) for part in text.split(","))
    return row, column


@click.command()
@click.argument("attribute", required=False)
@click.option(
    "--m", type=int, help="M of the MMA instruction, over both CTAs of a pair [default: 128 a CTA]."
)
@click.option("--n", type=click.IntRange(8, 256), help="N of the MMA instruction: an accumulator.")
@click.option("--k", type=int, help="K of the operand: operand A in tensor memory.")
@click.option(
    "--bits",
    type=choices(TMEM_ELEMENT_BITWIDTHS),
    help="Bits of an element [default: 32; scale factors have 8].",
)
@click.option("--cta-group", type=choices([1, 2]), default="1", show_default=True)
@click.option(
    "--packed/--unpacked",
    default=None,
    help="Narrow elements fill a column, or each has a column [default: as the MMA: A packed,"
    " the accumulator not].",
)
@click.option("--ws", is_flag=True, help="The weight-stationary mode, tcgen05.mma.ws.")
@click.option("--sparse", is_flag=True, help="A sparse operand A (layout C).")
@click.option("--scales", is_flag=True, help="Block scale factors: --shape says rows x factors.")
@click.option("--shape", type=SHAPE, help="The whole matrix, of several instructions.")
@click.option(
    "--load",
    type=choices(CHOSEN_SHAPES),
    help="Load it with this shape of tcgen05.ld: which thread and register holds what.",
)
@click.option("--warps", type=int, help="Warps that --load it [default: 4].")
@click.option(
    "--element",
    "wanted",
    type=Parsed("ROW,COLUMN", _element, "element; write it as 5,17"),
    help="Say where this element is.",
)
@click.option(
    "--address",
    type=Parsed("ADDRESS", lambda text: int(text, 0), "address; write it as 0x00200010"),
    help="Say what lies at this offset of the matrix.",
)
@format_option("text", "json", "svg", "html", text="Text, JSON, a picture, or a page.")
def tmem(
    attribute: str | None, m: int | None, n: int | None, k: int | None, bits: str | None,
    cta_group: str, packed: bool | None, ws: bool, sparse: bool, scales: bool,
    shape: tuple[int, ...] | None, load: str | None, warps: int | None,
    wanted: tuple[int, int] | None, address: int | None, form: str,
) -> None:  # fmt: skip
    """Show where a matrix lies in Blackwell's tensor memory: its lanes and columns.

    The matrix is an accumulator (--n), an operand A (--k), block scale factors (--scales), or a
    tensor in one of Triton's encodings ('#ttng.tensor_memory_encoding<...>' or
    '#ttng.tensor_memory_scales_encoding<>', and --shape). --address alone decodes an address.

    \b
    Examples:
      triton-ext tmem --m 128 --n 256
      triton-ext tmem --m 64 --n 64 --load 16x256b --element 5,17
      triton-ext tmem --m 256 --n 256 --cta-group 2 --format json
      triton-ext tmem --m 128 --k 64 --bits 16
      triton-ext tmem --scales --shape 128x16 --element 70,5
      triton-ext tmem --address 0x00200010
      triton-ext tmem --m 64 --n 64 --load 16x256b --format svg
    """
    at = None if address is None else TmemAddress.decode(address)
    described = any(value is not None for value in (m, n, k))
    if attribute is None and not described and not scales:
        if at is None or wanted is not None or load is not None or shape is not None:
            raise click.UsageError("give --n, --k, --scales, an attribute, or an --address")
        if form in ("svg", "html"):
            raise click.UsageError(f"--format {form} draws a matrix, not an --address alone")
        cell = {"address": _cell(at)}
        show(form, json=lambda: cell, text=lambda: _cell_text(at))
        return
    if attribute is not None or scales:
        if described or packed is not None or cta_group != "1" or ws or sparse:
            raise click.UsageError("an attribute says M, N, packing and mode itself; --scales none")
        if attribute is not None and scales:
            raise click.UsageError("give an attribute or --scales, not both")
        if shape is None:
            raise click.UsageError(f"{'--scales' if scales else 'an attribute'} needs --shape")
        title, layout = _encoded(attribute, shape, bits)
    else:
        mode = int(bits or 32), int(cta_group), packed, ws, sparse
        title, layout = _described(m, n, k, *mode, shape)
    partial = n if n is not None and n & (n - 1) else None
    if partial:
        if load or form == "svg":
            why = f"--load and --format svg need an N that is a power of two, not {n}"
            raise click.UsageError(why)
        if wanted is not None and wanted[1] >= partial:
            raise LayoutError("element", wanted, f"its column must be less than N = {partial}")
    if warps is not None and load is None:
        raise click.UsageError("--warps says how many load it: give --load, too")
    transfer = plan_transfer(layout, load, 4 if warps is None else warps) if load else None
    view = _View(title, layout, transfer, wanted, at, partial)
    if transfer:
        svg = rendering("svg.transfer_svg", layout, transfer)
    else:
        svg = rendering("svg.tensor_memory_svg", layout)
    html = rendering("html.tmem_html", title, layout, load or "")
    show(form, json=view.as_object, text=view.lines, svg=svg, html=html)


def _encoded(
    attribute: str | None, shape: tuple[int, ...], bits: str | None
) -> tuple[str, LinearLayout]:
    """A tensor in one of Triton's encodings; scale factors without an attribute."""
    encoding = TensorMemoryScales() if attribute is None else parse_tensor_encoding(attribute)
    width = () if bits is None else (int(bits),)
    layout = encoding.to_linear_layout(shape, *width)
    if isinstance(encoding, TensorMemoryScales):
        sizes = " x ".join(map(str, shape))
        return f"Scale factors of {sizes} (rows, factors of a row)", layout
    return str(encoding), layout


def _described(
    m: int | None,
    n: int | None,
    k: int | None,
    bits: int,
    cta_group: int,
    packed: bool | None,
    ws: bool,
    sparse: bool,
    shape: tuple[int, ...] | None,
) -> tuple[str, LinearLayout]:
    if (n is None) == (k is None):
        raise click.UsageError("give --n (accumulator) or --k (operand A), with --m or without")
    m = 128 * cta_group if m is None else m
    group = f", cta_group::{cta_group}" + (", .ws" if ws else "") + (", sparse A" if sparse else "")
    path = data_path_layout(m, cta_group, sparse=sparse, weight_stationary=ws)
    organization = path.organization + (", half of the lanes" if path.half else "")
    title = f"{bits}-bit elements{group}: data path layout {path.name} ({organization})"
    if n is not None:
        # Scaled products of M = 128 have an N that the others do not.
        kinds = ("f16",) if ws or m not in (128, 256) else ("f16", "mxf8f6f4")
        legal = {
            each for kind in kinds for each in legal_n(kind, m, cta_group, weight_stationary=ws)
        }  # fmt: skip
        if n not in legal:
            rule = f"must be one of {', '.join(map(str, sorted(legal)))} for M = {m}{group}"
            raise LayoutError("n", n, rule)
        power = 1 << (n - 1).bit_length()
        if n != power:
            if path.column_parts > 1 or shape is not None:
                rule = "with --shape, and where the columns are split among the lanes, must be"
                raise LayoutError("n", n, f"{rule} a power of two")
            title += f"; the first {n} columns of the layout of N = {power}, which is linear"
        layout = accumulator_layout(
            m,
            power,
            bits,
            cta_group=cta_group,
            sparse=sparse,
            weight_stationary=ws,
            packed=bool(packed),
            shape=shape,
        )
        return f"Accumulator of M = {m}, N = {n}, {title}", layout
    assert k is not None
    if ws or sparse or packed is False:
        raise click.UsageError("--k: operand A is dense, packed, and not of .ws")
    return (
        f"Operand A of M = {m}, K = {k}, {title}",
        operand_a_layout(m, k, bits, cta_group=cta_group, shape=shape),
    )


# ------------------------------------------------------------------------ elements


def _inverse_images(layout: LinearLayout, point: tuple[int, int]) -> Iterator[dict[str, int]]:
    """The inputs of a layout that hold an element: all of its copies, but no holes."""
    sizes = layout.out_dims
    for name, value in zip(sizes, point, strict=True):
        if not 0 <= value < sizes[name]:
            raise LayoutError("element", point, f"{name} must lie in [0, {sizes[name]})")
    first = layout.pseudoinvert().apply(dict(zip(sizes, point, strict=True)))
    copies = [
        (name, 1 << bit)
        for name, bases in layout.bases.items()
        for bit, basis in enumerate(bases)
        if not any(basis) and (name == "warp" or (name == "lane" and bit >= 5))
    ]
    for chosen in itertools.product((0, 1), repeat=len(copies)):
        found = dict(first)
        for (name, value), bit in zip(copies, chosen, strict=True):
            found[name] += value * bit
        yield found


def _cell(at: TmemAddress) -> dict[str, Any]:
    return {
        "address": f"0x{at.encode():08x}",
        "lane": at.lane,
        "column": at.column,
        "warp_in_warpgroup": at.warp,
    }


def _cell_text(at: TmemAddress) -> str:
    lanes = warp_lanes(at.warp)
    return (
        f"0x{at.encode():08x}: lane {at.lane}, column {at.column};"
        f" warp {at.warp} of a warpgroup has lanes {lanes[0]}-{lanes[-1]}"
    )


def _contents(layout: LinearLayout, at: TmemAddress) -> list[dict[str, int]]:
    """The elements of a cell, in the first block; none in a hole or past the matrix."""
    sizes = layout.in_dims
    bases = layout.bases
    lane_holes = sum(1 << bit for bit in range(5) if not any(bases["lane"][bit]))
    holes = sum(1 << bit for bit, basis in enumerate(bases["column"]) if not any(basis))
    if at.column >= sizes["column"] or at.lane & lane_holes or at.column & holes:
        return []
    empty = sum(1 << bit for bit, basis in enumerate(bases["slot"]) if not any(basis))
    cell = {"lane": at.lane, "column": at.column, **({"block": 0} if "block" in sizes else {})}
    return [
        {"slot": slot, **layout.apply({**cell, "slot": slot})}
        for slot in range(sizes["slot"])
        if not slot & empty
    ]


# ------------------------------------------------------------------------ output


@dataclass(frozen=True)
class _View:
    """What the command shows of a matrix.

    Attributes:
        transfer: the load that is asked for, or None.
        wanted: the element whose cells are asked for, (row, column), or None.
        at: the address whose elements are asked for, or None.
        n: N of an accumulator where that is no power of two: the layout is that of the next one.
    """

    title: str
    layout: LinearLayout
    transfer: TmemTransfer | None
    wanted: tuple[int, int] | None
    at: TmemAddress | None
    n: int | None = None

    def columns(self) -> int:
        """How many columns the matrix takes."""
        used = tmem_footprint(self.layout).columns
        return used if self.n is None else -(-used * self.n // (1 << (self.n - 1).bit_length()))

    def contents(self) -> list[dict[str, int]]:
        """The elements at the address that is asked for."""
        found = [] if self.at is None else _contents(self.layout, self.at)
        return [element for element in found if self.n is None or element["dim1"] < self.n]

    def cells(self) -> list[dict[str, Any]]:
        """Each cell that holds the element that is asked for."""
        if self.wanted is None:
            return []
        return [
            {**found, "address": f"0x{TmemAddress(found['lane'], found['column']).encode():08x}"}
            for found in _inverse_images(self.layout, self.wanted)
        ]

    def holders(self) -> list[dict[str, int]]:
        """Each thread and register that holds the element after the load."""
        if self.transfer is None or self.wanted is None:
            return []
        return list(_inverse_images(self.transfer.elements, self.wanted))

    def as_object(self) -> dict[str, Any]:
        """For ``--format json``."""
        used, transfer = tmem_footprint(self.layout), self.transfer
        report: dict[str, Any] = {
            "matrix": self.title,
            "shape": list(self.layout.out_dims.values()),
            "lanes": [[lanes.start, lanes.stop] for lanes in used.lanes],
            "columns": self.columns(),
            "allocation_columns": used.allocation,
            "layout": layout_object(self.layout),
        }
        if transfer is not None:
            report["load"] = {
                "instruction": transfer.access.instruction(),
                "half_split_offset": transfer.access.split,
                "offsets": [f"0x{offset.encode():08x}" for offset in transfer.offsets],
                "registers": transfer.registers,
                "layout": layout_object(transfer.elements),
            }
        if self.wanted is not None:
            report["element"] = {"at": list(self.wanted), "cells": self.cells()}
            if transfer is not None:
                report["element"]["held_by"] = self.holders()
        if self.at is not None:
            report["address"] = {**_cell(self.at), "elements": self.contents()}
        return report

    def lines(self) -> Iterator[str]:
        """For ``--format text``."""
        used, transfer = tmem_footprint(self.layout), self.transfer
        lanes = ", ".join(f"{part.start}-{part.stop - 1}" for part in used.lanes)
        each = " of each CTA" if "block" in self.layout.in_dims else ""
        yield self.title
        yield f"lanes{each}: {lanes}"
        size = f"{self.columns()} of {COLUMN_BITS} bits"
        yield f"columns: {size}; tcgen05.alloc takes {used.allocation}"
        yield "layout:"
        yield str(self.layout)
        if transfer is not None:
            access = transfer.access
            split = f", immHalfSplitoff {access.split}" if access.split is not None else ""
            starts = ", ".join(f"0x{offset.encode():08x}" for offset in transfer.offsets)
            yield f"\nload: {len(transfer.offsets)} x {access.instruction()}{split} by each warp"
            yield f"  from its own lanes, at + {starts}; {transfer.registers} registers a thread"
            yield str(transfer.elements)
        if self.wanted is not None:
            yield f"\nelement {self.wanted[0]}, {self.wanted[1]}:"
            yield from (f"  {_named(found)}" for found in self.cells())
            yield from (f"  held by {_named(found)}" for found in self.holders())
        if self.at is not None:
            yield f"\n{_cell_text(self.at)}"
            found_at = [f"  {_named(element)}" for element in self.contents()]
            yield from found_at or ["  no element of the matrix"]


def _named(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
