"""Allocations lie aligned, inside of what the kernel has, and apart while both are in use."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from triton_ext.errors import LayoutError
from triton_ext.hardware.tensor_memory_encoding import TensorMemoryEncoding
from triton_ext.mlir.ir import Value
from triton_ext.mlir.module import MlirModule
from triton_ext.passes.verify_descriptors.meaning.tiles import allocation_size, buffer_stride
from triton_ext.passes.verify_descriptors.running.findings import Findings
from triton_ext.passes.verify_descriptors.running.launches import BASES
from triton_ext.passes.verify_descriptors.running.mlir_trace import Life
from triton_ext.ptx.parse import Instruction


@dataclass(frozen=True)
class _Place:
    """A part of shared, global or tensor memory: bytes, or columns of all lanes or of half of them
    (`half`: 0 or 16).

    Its first byte must be a multiple of `alignment`.
    """

    space: str
    first: int
    size: int
    alignment: int = 1
    half: int | None = None

    def overlaps(self, other: _Place) -> bool:
        return (
            self.space == other.space
            and self.first < other.first + other.size
            and other.first < self.first + self.size
            and (self.half is None or other.half is None or self.half == other.half)
        )


def _place(module: MlirModule, root: Value, start: int) -> _Place | None:
    kind, maker = module.memory(root), root.definition
    if maker is not None and maker.name == "ttg.global_scratch_alloc":
        size, alignment = (maker.attributes.get(name) for name in ("nbytes", "alignment"))
        if isinstance(size, int) and isinstance(alignment, int):
            return _Place("global", start, size, alignment)
    try:
        if kind is None or "memdesc<" not in (root.type or ""):
            return None
        if kind.space == "shared":
            return _Place("shared", start, *allocation_size(kind))
        stride = buffer_stride(kind)
        if stride is None:
            return None
        encoding = TensorMemoryEncoding.parse(kind.encoding)
        buffers = kind.shape[0] if len(kind.shape) > 2 else 1
        half = start >> 16 & 16 if encoding.block_m == 64 else None
        return _Place("tensor", start & 0xFFFF, buffers * stride, half=half)
    except LayoutError:
        return None


def compare_places(
    module: MlirModule,
    findings: Findings,
    lives: Sequence[Life],
    starts: Mapping[Value, tuple[int, Instruction]],
    shared: int | None,
) -> None:
    """Check where the allocations of one execution lie.

    Args:
        module: the TTGIR.
        findings: what is found is added to them.
        lives: when the allocations are used.
        starts: where they begin, and the instruction that says so.
        shared: bytes of shared memory that the kernel has, if that is known.
    """
    places = {
        root: place
        for root, (start, _) in starts.items()
        if (place := _place(module, root, start)) is not None
    }
    for root, place in places.items():
        end = BASES.shared + (shared if shared is not None else 1 << 18)
        if place.space == "shared" and not BASES.shared <= place.first <= end - place.size:
            _differ(findings, root, starts, "inside of the kernel's shared memory", place)
            return
        if place.first % place.alignment:
            _differ(findings, root, starts, f"at a multiple of {place.alignment}", place)
            return
    scratch = [root for root, place in places.items() if place.space == "global"]
    for one, another in itertools.combinations(scratch, 2):  # in use until the kernel ends
        if places[one].overlaps(places[another]):
            apart = f"apart from {one.name}, at {places[one].first:#x}"
            _differ(findings, another, starts, apart, places[another])
            return
        findings.proven["allocations that lie apart"] += 1
    used = [life for life in lives if life.last >= 0]
    unknown = {life.root for life in used if life.root not in places}
    findings.unproven["allocations: where they lie"] += len(unknown)
    used = sorted((life for life in used if life.root in places), key=lambda life: life.first)
    open_: list[Life] = []
    for life in used:
        open_ = [other for other in open_ if other.last >= life.first]
        for other in open_:
            if other.root is life.root:
                continue
            if places[other.root].overlaps(places[life.root]):
                apart = f"apart from {other.root.name}, which is in use, too, at"
                _differ(findings, life.root, starts, f"{apart} {places[other.root].first:#x}",
                        places[life.root])  # fmt: skip
                return
            findings.proven["allocations that lie apart"] += 1
        open_.append(life)


def _differ(
    findings: Findings,
    root: Value,
    starts: Mapping[Value, tuple[int, Instruction]],
    must: str,
    place: _Place,
) -> None:
    findings.differ(
        root.definition, starts[root][1], f"the allocation of {root.name}", must,
        f"at column {place.first}, {place.size} columns"
        if place.space == "tensor" else f"at {place.first:#x}, {place.size} bytes",
    )  # fmt: skip
