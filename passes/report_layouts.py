"""The pass `report-layouts`: every layout of a kernel's shared and tensor memory, and its uses."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar

from triton_ext.hardware.smem_descriptor import FIELDS
from triton_ext.layouts.atoms import SwizzleAtom
from triton_ext.layouts.dump import layout_object
from triton_ext.layouts.nvmma_shared import ATOM_ROWS
from triton_ext.mlir.ir import Operation
from triton_ext.mlir.locations import Location
from triton_ext.passes.conversions import ConversionUse, LineCount, conversions, line_counts
from triton_ext.passes.frame.base import Compilation, Outcome, ReportOptions, compiler_pass
from triton_ext.passes.occupancy import blocks_per_sm, warps_of
from triton_ext.passes.shared_accesses import (
    CopyUse,
    MmaUse,
    MoveUse,
    SharedAllocation,
    TensorAllocation,
    shared_allocations,
    tensor_allocations,
)
from triton_ext.ptx.listing import list_instructions
from triton_ext.ptx.parse import Module as PtxModule
from triton_ext.render.conversion_text import conversion_object
from triton_ext.render.report_page import report_html
from triton_ext.render.report_text import report_text

JSON_VERSION = 2
_DESCRIPTORS = ("A", "B", "source")  # of tcgen05.cp


@dataclass(frozen=True)
class LayoutReportOptions(ReportOptions):
    """Options of `report-layouts`.

    Attributes:
        format: ``text``, ``json`` (described by ``layout_report.schema.json``), or ``html``: one
            self-contained page a kernel, for which ``output`` is best ``{kernel}.html``.
        ptx: whether the descriptors in the PTX are listed, too, and its instructions counted.
    """

    ptx: bool = True

    CHOICES: ClassVar = {"format": ("text", "json", "html")}


# --------------------------------------------------------------------------------- the report


def _location(location: Location | None) -> dict[str, Any] | None:
    if location is None:
        return None
    return {"file": location.file, "line": location.line, "column": location.column}


def _used(operation: Operation) -> dict[str, Any]:
    return {"operation": operation.name, "location": _location(operation.location)}


def _known(value: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """Attributes of a value under other names, tuples as lists; None each if there is no value."""
    found = {name: value and attrgetter(path)(value) for name, path in names.items()}
    return {name: list(each) if isinstance(each, tuple) else each for name, each in found.items()}


_OPERAND = {"major": "major", "tile": "tile", "instruction": "instruction",
            "swizzle": "descriptor.swizzle_byte_width"}  # fmt: skip
_MOVE = {
    "instruction": "mnemonic", "access_bytes": "access_bytes", "bytes": "bytes",
    "instructions_per_warp": "pattern.instructions", "warps": "pattern.warps",
    "wavefronts": "pattern.wavefronts", "ideal_wavefronts": "pattern.ideal_wavefronts",
    "degree": "degree", "request_bytes": "pattern.access_bytes",
}  # fmt: skip


def _mma(use: MmaUse) -> dict[str, Any]:
    derived = use.derived
    return {
        **_used(use.operation), "operand": use.operand, **_known(derived, _OPERAND),
        "subtiles": use.instructions,
        "descriptor": f"{derived.descriptor.encode():#018x}" if derived else None,
        "advances": [list(row) for row in derived.advances] if derived else [],
        "read_wavefronts": use.read.wavefronts if use.read else None, "error": use.reason,
    }  # fmt: skip


def _copy(use: CopyUse) -> dict[str, Any]:
    return {
        **_used(use.operation), "direction": use.direction,
        "box": list(use.box) if use.box else None, "boxes": use.boxes,
        "box_bytes": use.box_bytes, "error": use.reason,
    }  # fmt: skip


def _move(use: MoveUse) -> dict[str, Any]:
    move = use.planned
    return {
        **_used(use.operation), "direction": use.direction, "registers": use.tensor.encoding,
        "shape": list(use.tensor.shape), **_known(move, _MOVE),
        "lanes": list(move.pattern.request().offsets) if move else None, "error": use.reason,
    }  # fmt: skip


def _atom(allocation: SharedAllocation) -> dict[str, Any] | None:
    """The swizzle atom that a tile of two dimensions is made of; None for none."""
    layout, width = allocation.layout, allocation.swizzle
    if not width or layout is None or len(layout.out_dims) != 2:
        return None
    bits, bases = allocation.memory.element_bitwidth, layout.bases["offset"]
    for major, dim in (("K", 1), ("MN", 0)):
        atom = SwizzleAtom("K" if major == "K" else "MN", width, bits)
        own = atom.to_linear_layout().bases["offset"]
        if bases[: len(own)] == own:
            return {
                "major": major,
                "contiguous_dim": dim,
                "rows": ATOM_ROWS,
                "row_bytes": atom.row_bytes,
                "swizzle": str(atom.swizzle),
            }
    return None


def _value(allocation: SharedAllocation) -> dict[str, Any]:
    memory = allocation.memory
    definition = allocation.value.definition
    return {
        "name": allocation.name,
        "location": _location(allocation.location),
        "operation": definition.name if definition else "argument",
        "encoding": memory.encoding,
        "alias": memory.alias,
        "element": memory.element,
        "element_bitwidth": memory.element_bitwidth,
        "shape": list(allocation.tile),
        "buffers": allocation.buffers,
        "bytes": allocation.bytes,
        "alignment": allocation.alignment,
        "barrier": allocation.is_barrier,
        "swizzle": allocation.swizzle,
        "atom": _atom(allocation),
        "layout": layout_object(allocation.layout) if allocation.layout else None,
        "error": allocation.reason,
        "mmas": [_mma(use) for use in allocation.mmas],
        "copies": [_copy(use) for use in allocation.copies],
        "moves": [_move(use) for use in allocation.moves],
        "others": list(map(_used, allocation.others)),
    }


def _tensor_value(allocation: TensorAllocation) -> dict[str, Any]:
    memory, encoding = allocation.memory, allocation.encoding
    definition = allocation.value.definition
    return {
        "name": allocation.value.name,
        "location": _location(definition.location if definition else None),
        "encoding": memory.encoding,
        "element": memory.element,
        "shape": list(memory.shape),
        "columns": allocation.columns,
        **_known(encoding, {name: name for name in ("block_m", "block_n", "two_ctas")}),
    }


def _without_start(values: dict[str, Any]) -> str | None:
    """A descriptor but for its start address, in hexadecimal; None if it is not known."""
    if "descriptor" not in values:
        return None
    start, width = FIELDS[90]["start_address"]
    return f"{int(values['descriptor'], 16) & ~(((1 << width) - 1) << start):#018x}"


def _ptx_mmas(module: PtxModule) -> list[dict[str, Any]]:
    """The MMA instructions of a kernel's PTX: by source line and descriptors, how many."""
    counted: Counter[tuple[Any, ...]] = Counter()
    for listed in list_instructions(module):
        opcode = listed.instruction.opcode
        if not opcode.startswith(("wgmma.mma_async", "tcgen05.mma", "tcgen05.cp")):
            continue
        source = listed.instruction.source
        location = (source.file, source.line) if source else None
        found = tuple(
            (name, _without_start(values))
            for name, values in listed.values.items()
            if name in _DESCRIPTORS and isinstance(values, dict)
        )
        counted[location, opcode, found] += 1
    return [
        {
            "location": {"file": location[0], "line": location[1]} if location else None,
            "opcode": opcode,
            "descriptors": dict(found),
            "count": count,
        }
        for (location, opcode, found), count in counted.items()
    ]


def _conversion(use: ConversionUse) -> dict[str, Any]:
    return {
        "name": use.operation.results[0].name,
        "location": _location(use.operation.location),
        "shape": list(use.source.shape),
        "element": use.source.element,
        "source": use.source.encoding,
        "target": use.target.encoding,
        "conversion": conversion_object(use.planned) if use.planned else None,
        "error": use.reason,
    }


def _line(line: LineCount) -> dict[str, Any]:
    return {
        "location": {"file": line.place[0], "line": line.place[1]},
        "operations": line.operations,
        "predicted": dict(line.predicted),
        "counted": dict(line.counted),
        "agrees": line.agrees,
    }


def layout_report(compilation: Compilation, *, ptx: bool = True) -> dict[str, Any]:
    """What `report-layouts` reports, as ``layout_report.schema.json`` describes it. `ptx`: whether
    to report what the PTX has."""
    module = compilation.ttgir
    allocations = shared_allocations(module, compilation.target)
    converted = conversions(module, compilation.target, compilation.release)
    code = compilation.ptx if ptx and "ptx" in compilation.texts else None
    moves = [use for allocation in allocations for use in allocation.moves]
    shared = compilation.metadata.get("shared")
    warps = warps_of(module)
    fit = blocks_per_sm(shared, warps, compilation.capability) if isinstance(shared, int) else None
    return {
        "version": JSON_VERSION,
        "kernel": compilation.kernel,
        "arch": compilation.target,
        "warps": warps,
        "blocks_of_cluster": module.attributes.get("ttg.num-ctas", 1),
        "shared": {
            "bytes": shared if isinstance(shared, int) else None,
            "limit": compilation.capability.shared_memory_per_block,
            "values_bytes": sum(allocation.bytes for allocation in allocations),
            "blocks_per_sm": fit.by_shared if fit else None,
            "blocks_by_threads": fit.by_threads if fit else None,
        },
        "values": [_value(allocation) for allocation in allocations],
        "tensor_memory": [_tensor_value(each) for each in tensor_allocations(module)],
        "conversions": list(map(_conversion, converted)),
        "lines": list(map(_line, line_counts(module, converted, moves, code))) if code else None,
        "ptx_mmas": _ptx_mmas(code) if code else None,
    }


def _render(kernel: str, report: Any, options: LayoutReportOptions) -> str:
    if options.format == "json":
        return json.dumps(report)
    return report_html(report) if options.format == "html" else report_text(report)


@compiler_pass("report-layouts", after="ptx", options=LayoutReportOptions, render=_render)
def report_layouts(compilation: Compilation, options: LayoutReportOptions) -> Outcome:
    """Every shared-memory and tensor-memory layout of a kernel, and what touches it."""
    return Outcome(report=layout_report(compilation, ptx=options.ptx))
