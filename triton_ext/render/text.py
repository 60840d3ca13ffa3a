"""Layout dumps as text: the form of Triton's own debug output, and explained in words."""

from __future__ import annotations

import math

from triton_ext.errors import LayoutError
from triton_ext.layouts.cluster import shape_per_cta
from triton_ext.layouts.dump import LayoutDump
from triton_ext.layouts.encodings import NVMMAShared, parse_encoding
from triton_ext.layouts.nvmma_shared import ATOM_ROWS, core_matrix_linear_layout, tma_box_shape
from triton_ext.layouts.shared_encoding import padded_offset
from triton_ext.render.words import by, in_bytes, padding_text


def dump_text(dump: LayoutDump) -> str:
    """What seed 001 prints: shape, encoding, and the bases in Triton's text form."""
    lines = []
    if dump.shape is not None:
        lines.append(f"Full tensor shape: {', '.join(map(str, dump.shape))}")
    alias = f"{dump.alias} = " if dump.alias else ""
    lines.append(f"Layout encoding: {alias}{dump.encoding}")
    if dump.layout is None:
        lines.append(f"not converted: {dump.error}")
    else:
        function = "getCoreMatrixLinearLayout" if dump.what == "atom" else "toLinearLayout"
        lines += [f"{function} output:", str(dump.layout)]
    if dump.paddings:
        said = f"{padding_text(dump.paddings)}; offset o lies at {_address(dump)}, in elements"
        lines.append(f"Padding: {said}")
    return "\n".join(lines)


def _address(dump: LayoutDump) -> str:
    """The formula of the address of an offset, in elements."""
    return " + ".join(["o", *(f"o / {interval} * {extra}" for interval, extra in dump.paddings)])


def _nvmma_encoding(dump: LayoutDump) -> NVMMAShared | None:
    try:
        encoding = parse_encoding(dump.encoding)
    except LayoutError:
        return None
    return encoding if isinstance(encoding, NVMMAShared) else None


def _coordinates(basis: tuple[int, ...], names: list[str]) -> str:
    moved = [f"{name} ^ {value}" for name, value in zip(names, basis, strict=True) if value]
    return ", ".join(moved) or "nothing (padding, or a copy)"


def explain(dump: LayoutDump) -> str:
    """What each basis means, line by line, in words; "" if there is no layout."""
    if dump.layout is None:
        return ""
    encoding = _nvmma_encoding(dump)
    names = list(dump.layout.out_dims)
    offsets = dump.layout.bases.get("offset", [])
    is_swizzled = any(sum(map(bool, basis)) > 1 for basis in offsets)  # not with disable_swizzle
    lines = [
        *_summary(dump, encoding, is_swizzled),
        "What each bit does to the coordinates (^ is XOR):",
    ]
    for bit, basis in enumerate(offsets):
        where = ""
        if dump.element_bitwidth:
            address = padded_offset(1 << bit, dump.paddings)
            where = f" ({in_bytes(address * dump.element_bitwidth // 8)})"
        meaning = _meaning(bit, encoding, is_swizzled) if encoding else ""
        lines.append(f"  offset {1 << bit}{where}: {_coordinates(basis, names)}{meaning}")
    for bit, basis in enumerate(dump.layout.bases.get("block", [])):
        if any(basis):
            meaning = f"{_coordinates(basis, names)}: another part of the tensor"
        else:
            meaning = "nothing: a block with the same part (broadcast)"
        lines.append(f"  block {1 << bit}: {meaning}")
    return "\n".join(lines)


def _summary(dump: LayoutDump, encoding: NVMMAShared | None, is_swizzled: bool) -> list[str]:
    assert dump.layout is not None
    elements = dump.layout.in_dims.get("offset", 1)
    lines = []
    if dump.element_bitwidth:
        size = (padded_offset(elements - 1, dump.paddings) + 1) * dump.element_bitwidth // 8
        lines.append(
            f"A block holds {elements} elements of {dump.element_bitwidth} bits: {size} bytes"
            f"{', with the padding between them' if dump.paddings else ''}."
        )
    if encoding is None:
        return lines
    lines.append(f"Its address must be a multiple of {encoding.alignment} bytes.")
    if not encoding.swizzle_byte_width:
        lines.append("No swizzle: each TMA box is stored row by row.")
        return lines
    atom = core_matrix_linear_layout(encoding).total_in_size
    phase = "r" if encoding.per_phase == 1 else f"r / {encoding.per_phase}"
    phase = f"XORed with {phase} mod {encoding.max_phase}" if is_swizzled else "where they are"
    lines.append(
        f"Swizzle atom: {ATOM_ROWS} rows of {encoding.swizzle_byte_width} bytes in one piece;"
        f" {elements // atom} of them. Row r has its 16-byte chunks {phase}."
    )
    if dump.what == "tile" and dump.shape is not None:
        per_cta = shape_per_cta(encoding.cga_layout, dump.shape)
        box = tma_box_shape(per_cta, encoding)
        copies = math.prod(size // extent for size, extent in zip(per_cta, box, strict=True))
        fill = "fills" if copies == 1 else "fill"
        lines.append(f"TMA box: {by(box)} elements; {copies} {fill} the tile.")
    return lines


def _meaning(bit: int, encoding: NVMMAShared, is_swizzled: bool) -> str:
    """What a basis of ``offset`` stands for in an NVMMAShared layout, behind a colon."""
    position = (1 << bit) * encoding.element_bitwidth // 8
    row_bytes = max(16, encoding.swizzle_byte_width)
    if position < 16:
        return ": inside a 16-byte chunk"
    if not encoding.swizzle_byte_width:
        return ""
    if position < row_bytes:
        return f": chunk {position // 16} of the row"
    if position < ATOM_ROWS * row_bytes:
        row = position // row_bytes
        phase = row // encoding.per_phase % encoding.max_phase if is_swizzled else 0
        return f": row {row} of the atom" + (f", chunks XOR {phase}" if phase else "")
    return f": atom {position // (ATOM_ROWS * row_bytes)}"
