"""Notes on the copies of TMA."""

from __future__ import annotations

from triton_ext.ptx.forms import BulkCopy, TensorCopy
from triton_ext.ptx.notes import Notes, add_cluster_mask, add_notes

CACHE_POLICIES = {
    0x1000000000000000: "evict_normal",
    0x12F0000000000000: "evict_first",
    0x14F0000000000000: "evict_last",
}
"""The constants that CUTLASS passes to TMA (``cute/arch/copy_sm90_desc.hpp``, CacheHintSm90)."""


def _cache_policy(notes: Notes, text: str) -> None:
    value = notes.number(text, 64)
    created = notes.folder.definition(text, notes.instruction)
    if value is not None:
        name = CACHE_POLICIES.get(value, "")
        notes.add(f"cache policy {value:#x}" + (f" ({name})" if name else ""), cache_policy=value)
    elif created is not None and created.opcode.startswith("createpolicy"):
        notes.add(f"cache policy of {created.opcode}", cache_policy=created.opcode)
    else:
        notes.add(f"cache policy {notes.root(text)}", cache_policy=notes.root(text))


def _completion(form: TensorCopy | BulkCopy, notes: Notes) -> None:
    """What the operands behind the addresses say: the mbarrier, the CTA mask, the cache policy."""
    if form.mbarrier:
        notes.add(
            f"arrives at the mbarrier at {notes.shared(form.mbarrier)}",
            **notes.address_values("mbarrier", form.mbarrier),
        )
    if isinstance(form, TensorCopy) and form.cta_group:
        notes.values["cta_group"] = form.cta_group
        if form.cta_group == 2:
            notes.add("cta_group::2: the mbarrier may be that of either CTA of the pair")
    if form.cta_mask:
        add_cluster_mask(notes, form.cta_mask)
    if form.cache_policy:
        _cache_policy(notes, form.cache_policy)


_SPACE_NAMES = {
    "shared::cluster": "shared memory of the cluster",
    "shared::cta": "shared memory",
    "shared": "shared memory",
    "global": "global memory",
    "L2": "the L2 cache",
}


@add_notes.register
def _tensor_copy(form: TensorCopy, notes: Notes) -> None:
    notes.values |= {"destination": form.destination, "source": form.source}
    name, near = "TMA copy", _SPACE_NAMES["L2"]
    if form.shared:
        space = form.destination if form.loads else form.source
        near = f"{_SPACE_NAMES[space]} {notes.shared(form.shared)}"
        notes.values |= notes.address_values("shared_address", form.shared)
    else:
        name = "TMA prefetch"
    if form.reduction:
        name = f"TMA reduction ({form.reduction})"
        notes.values["reduction"] = form.reduction
    mode = f", {form.mode}" if form.mode != "tile" else ""
    shown = ", ".join(notes.amount(text) for text in form.coordinates)
    far = f"tensor map {notes.root(form.map)} at {{{shown}}}"
    way = f"{near} -> {far}" if form.src_mem else f"{far} -> {near}"
    notes.add(
        f"{name}, {form.rank} dimension{'s' if form.rank > 1 else ''}{mode}: {way}",
        dimensions=form.rank,
        mode=form.mode,
        tensor_map=notes.root(form.map),
        coordinates=[notes.known(text) for text in form.coordinates],
    )
    _completion(form, notes)


@add_notes.register
def _bulk_copy(form: BulkCopy, notes: Notes) -> None:
    """One dimension, without a tensor map."""
    notes.values |= {"destination": form.destination, "source": form.source}
    ways = {}
    sides = (
        ("destination", form.destination, form.dst_mem),
        ("source", form.source, form.src_mem),
    )
    for key, space, text in sides:
        ways[key] = _SPACE_NAMES[space]
        if space.startswith("shared"):
            notes.values |= notes.address_values(f"{key}_address", text)
            ways[key] += f" {notes.shared(text)}"
        elif text:
            notes.values[f"{key}_address"] = notes.root(text)
            ways[key] += f" {notes.root(text)}"
    name = f"bulk reduction ({form.reduction})" if form.reduction else "bulk copy"
    notes.add(
        f"{name}, {notes.amount(form.size)} bytes: {ways['source']} -> {ways['destination']}",
        bytes=notes.known(form.size),
    )
    _completion(form, notes)
