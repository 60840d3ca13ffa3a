"""Findings about memory that nobody needs, and about how much a block has."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from triton_ext.hardware.architecture import RESERVED_SHARED_MEMORY, Capability
from triton_ext.mlir.arith import integer_constant
from triton_ext.mlir.ir import Operation
from triton_ext.mlir.module import MlirModule
from triton_ext.mlir.operations import subslice_offsets
from triton_ext.passes.lint_shared.finding import Finding, LintOptions
from triton_ext.passes.occupancy import BLOCK_GRANULARITY, blocks_per_sm
from triton_ext.passes.shared_accesses import SharedAllocation, is_read
from triton_ext.render.words import by, counted


def _part(use: Operation, module: MlirModule) -> tuple[range, ...] | None:
    """The buffer, or the part of a tile, that a view takes; None if that is not known."""
    memory = module.memory(use.results[0]) if use.results else None
    if memory is None:
        return None
    if use.name == "ttg.memdesc_index" and len(use.operands) > 1:
        index = integer_constant(use.operands[1])
        return None if index is None else (range(index, index + 1), *map(range, memory.shape))
    starts = subslice_offsets(use) if use.name == "ttg.memdesc_subslice" else ()
    if len(starts) != len(memory.shape):
        return None
    return tuple(
        range(start, start + size) for start, size in zip(starts, memory.shape, strict=True)
    )


def _covered(parts: Sequence[tuple[range, ...]]) -> int:
    """How many elements the union of some boxes has."""
    cuts = [
        sorted({edge for span in dim for edge in (span.start, span.stop)})
        for dim in zip(*parts, strict=True)
    ]
    cells = itertools.product(*(itertools.pairwise(edges) for edges in cuts))
    return sum(
        math.prod(stop - start for start, stop in cell)
        for cell in cells
        if any(
            all(start in span for (start, _), span in zip(cell, part, strict=True))
            for part in parts
        )
    )


def idle(allocation: SharedAllocation, module: MlirModule) -> Iterator[Finding]:
    """Buffers and parts of a tile that nothing takes."""
    alloc = allocation.value.definition
    uses = [use for use, _ in allocation.value.uses if use.name != "ttg.local_dealloc"]
    if alloc is None or alloc.name != "ttg.local_alloc" or alloc.operands or not uses:
        return
    shape = allocation.memory.shape
    parts = [part for use in uses if (part := _part(use, module)) is not None]
    kinds = {use.name for use in uses}
    if len(parts) < len(uses) or len(kinds) > 1:
        return
    used = _covered(parts)
    if kinds == {"ttg.memdesc_index"}:
        buffers = sorted({part[0].start for part in parts})
        what = f"of its {shape[0]} buffers, {_list(buffers)} alone"
    else:
        what = f"of its {by(shape)} elements, {used} alone"
    idle = allocation.bytes * (math.prod(shape) - used) // math.prod(shape)
    if idle:
        yield Finding(
            "idle-part",
            allocation.name,
            f"{idle} of the {allocation.bytes} bytes of {allocation.name} are never used: {what}"
            " are taken",
            f"allocate what is used: {allocation.bytes - idle} bytes",
            allocation.location,
        )


def _list(numbers: Sequence[int]) -> str:
    return "number " + ", ".join(map(str, numbers)) if len(numbers) < 5 else f"{len(numbers)}"


def never_read(allocation: SharedAllocation) -> Iterator[Finding]:
    """Memory that is written, or not even that."""
    alloc = allocation.value.definition
    if alloc is None or alloc.name != "ttg.local_alloc" or allocation.is_barrier:
        return
    if is_read(allocation):
        return
    written = bool(allocation.moves or allocation.copies or allocation.others)
    yield Finding(
        "never-read",
        allocation.name,
        f"nothing reads the {allocation.bytes} bytes of {allocation.name}"
        + (", which are written" if written else ", and nothing writes them"),
        "remove the allocation" + (" and what writes it" if written else ""),
        allocation.location,
    )


def limits(
    shared: int,
    allocations: Sequence[SharedAllocation],
    warps: int,
    has: Capability,
    options: LintOptions,
) -> Iterator[Finding]:
    """Shared memory close to the limit, or a little too much for one more block."""
    if not shared:
        return
    largest = allocations[0] if allocations else None
    location = largest.location if largest else None
    name = largest.name if largest else ""
    owner = f"the largest value, {name}, takes {largest.bytes}" if largest else "none is a value's"
    limit = has.shared_memory_per_block
    if shared > limit:
        yield Finding(
            "shared-limit",
            name,
            f"the kernel takes {shared} bytes of shared memory, {shared - limit} more than a block"
            f" may have ({limit}): it cannot be launched",
            f"use smaller tiles or fewer buffers; {owner}",
            location,
        )
        return
    if shared >= options.near_limit * limit:
        yield Finding(
            "shared-limit",
            name,
            f"the kernel takes {shared} of the {limit} bytes of shared memory that a block may"
            f" have: {limit - shared} are left",
            f"use smaller tiles or fewer buffers if anything is to be added; {owner}",
            location,
        )
    fit = blocks_per_sm(shared, warps, has)
    if fit.by_shared >= min(fit.by_threads, options.few_blocks + 1):
        return
    more = fit.by_shared + 1
    share = has.shared_memory_per_sm // more // BLOCK_GRANULARITY * BLOCK_GRANULARITY
    excess = shared - (share - RESERVED_SHARED_MEMORY)
    if 0 < excess <= options.block_margin * shared:
        yield Finding(
            "blocks-per-sm",
            name,
            f"{shared} bytes of shared memory leave room for {counted(fit.by_shared, 'block')} on a"
            f" multiprocessor; with {excess} bytes less there is room for {more} (registers"
            " permitting)",
            f"save {excess} bytes; {owner}",
            location,
        )
