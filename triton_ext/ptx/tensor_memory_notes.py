"""Notes on tensor memory: its allocation, loads, stores and copies."""

from __future__ import annotations

from triton_ext.errors import LayoutError
from triton_ext.hardware.tensor_memory import check_allocation
from triton_ext.hardware.tensor_memory_access import TmemAccess
from triton_ext.ptx.forms import (
    TensorMemoryAccess,
    TensorMemoryAllocation,
    TensorMemoryCopy,
    TensorMemoryShift,
)
from triton_ext.ptx.notes import Notes, add_notes
from triton_ext.ptx.product_notes import add_matrix


@add_notes.register
def _allocation(form: TensorMemoryAllocation, notes: Notes) -> None:
    if not form.columns:
        notes.add("this CTA allocates no more tensor memory")
        return
    notes.values["cta_group"] = form.cta_group
    verb, where = "allocates", f"its address goes to {notes.shared(form.address)}"
    if form.base == "tcgen05.dealloc":
        verb, where = "frees", f"at {notes.tensor_memory(form.address)}"
    pair = ", in both CTAs of the pair" if form.cta_group == 2 else ""
    notes.add(
        f"{verb} {notes.amount(form.columns)} columns of tensor memory{pair}; {where}",
        columns=notes.known(form.columns),
    )
    columns = notes.number(form.columns)
    if columns is not None:
        try:
            check_allocation(columns)
        except LayoutError as error:
            notes.add(f"ILLEGAL: {error.rule}", illegal=error.rule)


@add_notes.register
def _tmem_access(form: TensorMemoryAccess, notes: Notes) -> None:
    shape, repeat, count = form.shape, form.repeat, len(form.registers)
    where = notes.tensor_memory(form.address)
    values = {"shape": shape, "repeat": repeat, "address": where, "registers": count}
    way = f"{'to' if form.stores else 'from'} tensor memory {where}"
    packs = form.packs or form.unpacks
    try:
        access = TmemAccess(shape, repeat, packs, notes.number(form.half_split))
    except LayoutError as error:
        notes.add(f"{count} registers {way}; {error.rule}", **values)
        return
    lanes = "16" if shape.startswith("16") and shape != "16x32bx2" else "32"
    packed = ", two columns of 16 bits in a register" if packs else ""
    notes.add(
        f"{count} registers of each thread {way}{notes.condition(form.address)}:"
        f" {lanes} lanes a warp, {access.columns} columns ({shape} x {repeat}){packed}",
        **values, columns=access.columns,
    )  # fmt: skip
    if access.registers != count and not form.reduces:
        rule = f"{shape}.x{repeat} moves {access.registers} registers, not {count}"
        notes.add(f"ILLEGAL: {rule}", illegal=rule)


@add_notes.register
def _tmem_copy(form: TensorMemoryCopy, notes: Notes) -> None:
    notes.values["cta_group"] = form.cta_group
    lanes, bits = form.shape.removesuffix("b").split("x")
    shown = f"{lanes} lanes x {bits} bits"
    if form.multicast:
        shown += f", for {form.multicast.replace('::', ' ')}"
    if form.source_format:
        shown += f", from {form.source_format} to {form.target_format}"
    where = notes.tensor_memory(form.address)
    notes.add(
        f"shared -> tensor memory {where}: {shown}",
        shape=form.shape, address=where, multicast=form.multicast or None,
    )  # fmt: skip
    add_matrix(notes, "source", form.descriptor)


@add_notes.register
def _shift(form: TensorMemoryShift, notes: Notes) -> None:
    where = notes.tensor_memory(form.address)
    notes.add(f"shifts 32-byte rows down, in tensor memory {where}", address=where)
