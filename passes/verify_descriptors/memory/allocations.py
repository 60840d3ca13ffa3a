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
from triton_ext.passes.verify_descriptors.running.mlir_trace import SCRATCH, Life
from triton_ext.ptx.parse import Instruction


@dataclass(frozen=True)
class _Region:
    """A part of shared, global or tensor memory: bytes, or columns of all lanes or of half of them
    (`half`: 0 or 16).

    Its first byte must be a multiple of `alignment`.
    """

    space: str
    first: int
    size: int
    alignment: int = 1
    half: int | None = None

    def overlaps(self, other: _Region) -> bool:
        return (
            self.space == other.space
            and self.first < other.first + other.size
            and other.first < self.first + self.size
            and (self.half is None or other.half is None or self.half == other.half)
        )


def _region(module: MlirModule, root: Value, start: int) -> _Region | None:
    kind, maker = module.memory(root), root.definition
    if maker is not None and maker.name == SCRATCH:
        size, alignment = (maker.attributes.get(name) for name in ("nbytes", "alignment"))
        if isinstance(size, int) and isinstance(alignment, int):
            return _Region("global", start, size, alignment)
    try:
        if kind is None or "memdesc<" not in (root.type or ""):
            return None
        if kind.space == "shared":
            return _Region("shared", start, *allocation_size(kind))
        stride = buffer_stride(kind)
        if stride is None:
            return None
        encoding = TensorMemoryEncoding.parse(kind.encoding)
        buffers = kind.shape[0] if len(kind.shape) > 2 else 1
        half = start >> 16 & 16 if encoding.block_m == 64 else None
        return _Region("tensor", start & 0xFFFF, buffers * stride, half=half)
    except LayoutError:
        return None


def compare_regions(
    module: MlirModule,
    findings: Findings,
    lives: Sequence[Life],
    starts: Mapping[Value, tuple[int, Instruction]],
    shared: int | None,
    scratch: int | None,
) -> None:
    """Check where the allocations of one execution lie. `shared`, `scratch`: bytes of shared
    memory, and of global scratch memory, that a block has, if that is known."""
    regions = {
        root: region
        for root, (start, _) in starts.items()
        if (region := _region(module, root, start)) is not None
    }
    for root, region in regions.items():
        end = BASES.shared + (shared if shared is not None else 1 << 18)
        if region.space == "shared" and not BASES.shared <= region.first <= end - region.size:
            _differ(findings, root, starts, "inside of the kernel's shared memory", region)
            return
        if region.space == "global" and not 0 <= region.first <= (scratch or 0) - region.size:
            _differ(findings, root, starts, f"in the block's {scratch} bytes of scratch", region)
            return
        if region.first % region.alignment:
            _differ(findings, root, starts, f"at a multiple of {region.alignment}", region)
            return
    made = [root for root, region in regions.items() if region.space == "global"]
    for one, another in itertools.combinations(made, 2):  # in use until the kernel ends
        if regions[one].overlaps(regions[another]):
            apart = f"apart from {one.name}, at {regions[one].first:#x}"
            _differ(findings, another, starts, apart, regions[another])
            return
        findings.proven["allocations that lie apart"] += 1
    used = [life for life in lives if life.last >= 0]
    unknown = {life.root for life in used if life.root not in regions}
    findings.unproven["allocations: where they lie"] += len(unknown)
    used = sorted((life for life in used if life.root in regions), key=lambda life: life.first)
    open_: list[Life] = []
    for life in used:
        open_ = [other for other in open_ if other.last >= life.first]
        for other in open_:
            if other.root is life.root:
                continue
            if regions[other.root].overlaps(regions[life.root]):
                apart = f"apart from {other.root.name}, which is in use, too, at"
                _differ(findings, life.root, starts, f"{apart} {regions[other.root].first:#x}",
                        regions[life.root])  # fmt: skip
                return
            findings.proven["allocations that lie apart"] += 1
        open_.append(life)


def _differ(
    findings: Findings,
    root: Value,
    starts: Mapping[Value, tuple[int, Instruction]],
    must: str,
    region: _Region,
) -> None:
    findings.differ(
        root.definition, starts[root][1], f"the allocation of {root.name}", must,
        f"at column {region.first}, {region.size} columns"
        if region.space == "tensor" else f"at {region.first:#x}, {region.size} bytes",
    )  # fmt: skip
