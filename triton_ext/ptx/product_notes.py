"""Notes on the products of the tensor cores, and on their descriptors."""

from __future__ import annotations

from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.hardware.instruction_descriptor import (
    SPARSE_GRANULARITY,
    InstructionDescriptor,
    fields_of,
)
from triton_ext.hardware.smem_descriptor import FIELDS, SWIZZLE_CODES, SmemDescriptor
from triton_ext.layouts.atoms import MAJORS, Major
from triton_ext.layouts.encodings import CHUNK_BYTES
from triton_ext.ptx.forms import Tcgen05Product, WgmmaProduct
from triton_ext.ptx.known_bits import Bits
from triton_ext.ptx.notes import Notes, add_notes

_START_ADDRESS = FIELDS[90]["start_address"]
_MAY_BE_UNKNOWN = (
    "negate_a", "negate_b", "saturate", "sparsity_selector", "max_shift", "scale_factor_a_id",
    "scale_factor_b_id",
)  # fmt: skip
"""Fields of an instruction descriptor that may be unknown while the others are decoded."""


def _known_fields(bits: Bits, arch: int) -> list[str]:
    """The fields of a matrix descriptor that are known although the descriptor is not."""
    stride = bits.field(*FIELDS[arch]["stride_byte_offset"])
    code = bits.field(*FIELDS[arch]["swizzle"])
    swizzle = SWIZZLE_CODES[arch].get(code) if code is not None else None
    names = [f"SBO {CHUNK_BYTES * stride}"] if stride is not None else []
    if swizzle:
        names.append(f"swizzle {swizzle[0]}B" if swizzle[0] else "no swizzle")
    return names


def add_matrix(notes: Notes, name: str, text: str, major: Major | None = None) -> None:
    """The fields of a matrix descriptor; the start address only if it is known. `major`: the
    operand's major-ness; None if it is not known."""
    bits = notes.bits(text, 64)
    rest = bits.field(16, 48)
    if rest is None:
        known = _known_fields(bits, notes.arch)
        but = ", but for " + ", ".join(known) if known else ""
        notes.add(f"{name}: descriptor {notes.root(text)}, not known at compile time{but}")
        notes.values[name] = {"register": notes.root(text)}
        return
    start = bits.field(*_START_ADDRESS)
    reserved = bits.value & 0xFFFF & ~((1 << _START_ADDRESS[1]) - 1)
    value = rest << 16 | reserved | (start or 0)
    values: dict[str, Any] = {"descriptor": f"{value:#018x}", "start_address": None}
    notes.values[name] = values
    try:
        decoded = SmemDescriptor.decode(value, notes.arch)
    except LayoutError as error:
        notes.add(f"{name}: ILLEGAL descriptor {value:#018x}: {error.rule}")
        values["illegal"] = error.rule
        return
    if start is not None:
        values["start_address"] = decoded.start_address
        values["symbols"] = notes.symbols(text)
    at = (
        notes.at(decoded.start_address, text)
        if start is not None
        else "at a start address that is not known"
    )
    swizzle = f"{decoded.swizzle_byte_width}B" if decoded.swizzle_byte_width else "none"
    extra = f", atomicity {decoded.atomicity}B" if decoded.atomicity == 32 else ""
    extra += f", base offset {decoded.base_offset}" if decoded.base_offset else ""
    extra += ", LBO is an address" if decoded.lbo_mode else ""
    values |= {
        "leading_byte_offset": decoded.leading_byte_offset,
        "stride_byte_offset": decoded.stride_byte_offset,
        "swizzle_byte_width": decoded.swizzle_byte_width,
        "atomicity": decoded.atomicity,
        "base_offset": decoded.base_offset,
        "lbo_mode": decoded.lbo_mode,
    }
    notes.add(f"{name}: {value:#018x} {at}, {decoded.strides(major)}, swizzle {swizzle}{extra}")


def _accumulates(notes: Notes, text: str) -> None:
    """The predicate scale-d (wgmma), enable-input-d (tcgen05.mma)."""
    value = notes.number(text, 1)
    if value is None:
        notes.add(f"D = A x B, or D + A x B if {notes.root(text)}", accumulates=None)
    else:
        shown = "D + A x B" if value else "A x B (what D held is not read)"
        notes.add(f"D = {shown}{notes.condition(text)}", accumulates=bool(value))


@add_notes.register
def _wgmma(form: WgmmaProduct, notes: Notes) -> None:
    (m, n, k), d, a, b = form.mnk, form.d_type, form.a_type, form.b_type
    notes.add(
        f"D[{m}x{n}] {d} = A[{m}x{k}] {a} x B[{k}x{n}] {b}",
        m=m, n=n, k=k, d_type=d, a_type=a, b_type=b,
    )  # fmt: skip
    transposed = {"A": form.transpose_a, "B": form.transpose_b}
    majors: dict[str, Major] = {
        name: "MN" if value else "K"
        for name, text in transposed.items()
        if (value := notes.number(text)) is not None
    }
    fixed: Major = "K"  # of types other than 16-bit ones, which have no operand that says it
    if form.a_in_registers:
        notes.add("A: in registers", A="registers")
    else:
        add_matrix(notes, "A", form.a, majors.get("A") if form.transpose_a else fixed)
    add_matrix(notes, "B", form.b, majors.get("B") if form.transpose_b else fixed)
    if form.sparse:
        notes.add(f"A is {SPARSE_GRANULARITY.get(a, '2:4')} sparse", sparse=True)
    _accumulates(notes, form.scale_d)
    signs = {"A": form.scale_a, "B": form.scale_b}
    negated = [name for name, sign in signs.items() if notes.number(sign, 8) == 0xFF]
    if negated:
        notes.add(f"negated: {', '.join(negated)}", negated=negated)
    if majors:
        notes.add(
            ", ".join(f"{name} is {major}-major" for name, major in majors.items()), majors=majors
        )


@add_notes.register
def _tcgen05_mma(form: Tcgen05Product, notes: Notes) -> None:
    notes.values["cta_group"] = form.cta_group
    where = notes.tensor_memory(form.d)
    notes.add(f"D: tensor memory {where}", D=where)
    if form.a_in_tensor_memory:
        where = notes.tensor_memory(form.a)
        notes.add(f"A: in tensor memory, {where}", A={"tensor_memory": where})
    else:
        add_matrix(notes, "A", form.a, _major(form, notes, "a_mn_major"))
    add_matrix(notes, "B", form.b, _major(form, notes, "b_mn_major"))
    if form.sparse:
        where = notes.tensor_memory(form.metadata)
        notes.add(f"A is sparse, metadata in tensor memory {where}", sparse=True)
    _instruction_descriptor(notes, form.kind, form.idesc)
    for name, text in (("A", form.scale_a), ("B", form.scale_b)):
        if text:
            where = notes.tensor_memory(text)
            notes.add(
                f"scale factors of {name}: tensor memory {where}",
                **{f"scale_{name.lower()}": where},
            )
    masks = [notes.number(text) for text in form.disable_output_lane]
    if any(masks):
        notes.add("some lanes of D are not written", disable_output_lane=masks)
    _accumulates(notes, form.enable_input_d)
    if form.scale_vector:
        notes.add(f"scale vectors: {form.scale_vector}", scale_vector=form.scale_vector)
    if form.weight_stationary:
        notes.add("weight stationary", weight_stationary=True)
    if form.collectors:
        uses = [use.replace("::", " ") for use in form.collectors]
        notes.add(f"collector buffer: {', '.join(uses)}", collector=uses)


def _major(form: Tcgen05Product, notes: Notes, field: str) -> Major | None:
    """The major-ness of an operand, from its bit in the instruction descriptor; None if unknown."""
    fields = fields_of(form.kind)
    bit = notes.bits(form.idesc, 32).field(*fields[field])
    return None if bit is None else MAJORS[bit]


def _instruction_descriptor(notes: Notes, kind: str, text: str) -> None:
    bits = notes.bits(text, 32)
    fields = fields_of(kind)
    unknown = [name for name, (first, width) in fields.items() if bits.field(first, width) is None]
    values: dict[str, Any] = {"unknown_fields": unknown}
    notes.values["instruction_descriptor"] = values
    if not set(unknown) <= set(_MAY_BE_UNKNOWN):
        notes.add(f"instruction descriptor {notes.root(text)}, not known at compile time")
        return
    value = bits.value & 0xFFFFFFFF
    values["value"] = f"{value:#010x}"
    try:
        decoded = InstructionDescriptor.decode(value, kind)
    except LayoutError as error:
        notes.add(f"ILLEGAL instruction descriptor {value:#010x}: {error.rule}")
        values["illegal"] = error.rule
        return
    for line in decoded.describe():
        notes.add(f"{value:#010x}: {line}")
    if unknown:
        notes.add(f"{value:#010x}: not known at compile time: {', '.join(unknown)}")
    values |= {
        "kind": kind, "m": decoded.m, "n": decoded.n, "k": decoded.k, "a_type": decoded.a_type,
        "b_type": decoded.b_type, "d_type": decoded.d_type, "a_major": decoded.a_major,
        "b_major": decoded.b_major,
    }  # fmt: skip
    try:
        decoded.check_shape(notes.values.get("cta_group", 1))
    except LayoutError as error:
        notes.add(f"ILLEGAL shape: {error.argument} = {error.value}: {error.rule}")
        values["illegal"] = str(error)
