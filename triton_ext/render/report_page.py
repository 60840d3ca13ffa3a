"""A kernel's shared memory as one HTML file: the report of `report-layouts`, with pictures.

It is made from the report alone (``layout_report.schema.json``), so that a report that was kept
gives the same page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.hardware.banks import warp_access
from triton_ext.hardware.operand import derive_operand
from triton_ext.hardware.tensor_memory_encoding import TensorMemoryEncoding
from triton_ext.layouts.atoms import SwizzleAtom
from triton_ext.layouts.dump import layout_from_object
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.mlir.types import memory_type
from triton_ext.render.atom_picture import atom_scene
from triton_ext.render.bank_picture import bank_access_scene
from triton_ext.render.cells import Plane
from triton_ext.render.html import explore_html, given_tile
from triton_ext.render.operand_picture import operand_scene
from triton_ext.render.report_text import (
    converted_lines,
    location_text,
    summary_lines,
    uses_of,
    value_headline,
)
from triton_ext.render.scene import FILLS, Scene, rendered
from triton_ext.render.tensor_memory_picture import tensor_memory_scene
from triton_ext.render.words import by


@dataclass
class _Card:
    """What the page shows of one value."""

    value: Mapping[str, Any]
    pictures: list[tuple[str, Scene]] = field(default_factory=list)


def _layout(value: Mapping[str, Any]) -> LinearLayout | None:
    return layout_from_object(value["layout"]) if value["layout"] else None


def _atom(value: Mapping[str, Any]) -> SwizzleAtom | None:
    atom = value["atom"]
    return atom and SwizzleAtom(atom["major"], atom["row_bytes"], value["element_bitwidth"])


def _operand_pictures(
    value: Mapping[str, Any], layout: LinearLayout, arch: int
) -> Iterator[tuple[str, Scene]]:
    """An operand as the tensor core reads it, once for each way in which it is read."""
    seen = set()
    for mma in value["mmas"]:
        if not mma["descriptor"]:
            continue
        mn_dim = 0 if mma["operand"] == "A" else 1
        instruction = (mma["instruction"][0], mma["instruction"][1])
        try:
            derived = derive_operand(
                layout, value["element_bitwidth"], instruction, arch=arch, mn_dim=mn_dim
            )
        except LayoutError:
            continue  # a view of the tile, or fp4 with padding: not the layout of this value
        if f"{derived.descriptor.encode():#018x}" != mma["descriptor"] or derived in seen:
            continue
        seen.add(derived)
        title = f"Operand {mma['operand']}, read {by(instruction)} at a time"
        yield title, operand_scene(layout, derived, mn_dim=mn_dim)


def _conflict_pictures(value: Mapping[str, Any]) -> Iterator[tuple[str, Scene]]:
    seen = set()
    for move in value["moves"]:
        key = (move["instruction"], tuple(move["lanes"] or ()))
        if not move["degree"] or move["degree"] == 1 or key in seen:
            continue
        seen.add(key)
        report = warp_access(move["lanes"], move["request_bytes"])
        title = f"{move['operation'].partition('.')[2]}: the first {move['instruction']} of warp 0"
        yield title, bank_access_scene(title, report)


def _cards(report: Mapping[str, Any]) -> list[_Card]:
    cards = []
    for value in report["values"]:
        if value["barrier"]:
            continue
        card = _Card(value, list(_conflict_pictures(value)))
        layout, atom = _layout(value), _atom(value)
        if layout is not None and len(layout.out_dims) == 2:
            card.pictures += _operand_pictures(value, layout, report["arch"])
        if atom is not None:
            card.pictures.append((f"Its swizzle atom: {atom}", atom_scene(atom)))
        cards.append(card)
    return cards


def _tensor_pictures(report: Mapping[str, Any]) -> Iterator[tuple[str, Scene]]:
    seen = set()
    for value in report["tensor_memory"]:
        key = (value["encoding"], tuple(value["shape"]), value["element"])
        if not value["columns"] or key in seen:
            continue
        seen.add(key)
        shape, element = by(value["shape"]), value["element"]
        memory = memory_type(f"!ttg.memdesc<{shape}x{element}, {value['encoding']}>", {})
        assert memory is not None
        encoding = TensorMemoryEncoding.parse(value["encoding"])
        layout = encoding.to_linear_layout(value["shape"][-2:], memory.element_bitwidth)
        yield f"{value['name']}: {shape} {element}", tensor_memory_scene(layout)


def _explorer(report: Mapping[str, Any]) -> str:
    """The page to explore, with the kernel's values to choose from; "" for none."""
    shown: dict[tuple[str, str], dict[str, Any]] = {}
    for value in report["values"]:
        layout = _layout(value)
        if value["barrier"] or layout is None:
            continue
        try:
            Plane(layout, value["element_bitwidth"])
        except LayoutError:
            continue
        title, encoding = f"{by(value['shape'])} {value['element']}", value["encoding"]
        shown.setdefault(
            (encoding, title),
            given_tile(
                value["name"], title, encoding, layout, value["element_bitwidth"], _atom(value)
            ),
        )
    return explore_html(tiles=list(shown.values())) if shown else ""


def _segments(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The values as parts of the bar of shared memory, in percent of the whole bar."""
    shared = report["shared"]
    whole = max(shared["limit"], shared["values_bytes"], shared["bytes"] or 0)
    parts = [value for value in report["values"] if value["bytes"]]
    return [
        {
            "name": value["name"],
            "bytes": value["bytes"],
            "percent": 100 * value["bytes"] / whole,
            "fill": index % FILLS,
        }
        for index, value in enumerate(parts)
    ]


def report_html(report: Mapping[str, Any]) -> str:
    """One self-contained HTML file of a report of `report-layouts`. `report`: as
    ``layout_report.schema.json`` describes it."""
    return rendered(
        "report.html",
        report=report,
        cards=_cards(report),
        tensor_pictures=list(_tensor_pictures(report)),
        explorer=_explorer(report),
        segments=_segments(report),
        summary=list(summary_lines(report)),
        conversions=list(converted_lines(report)),
        location_text=location_text,
        uses_of=uses_of,
        headline=value_headline,
    )
