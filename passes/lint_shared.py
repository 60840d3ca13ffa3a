"""The pass `lint-shared`: conflicts and waste in shared memory that are known at compile time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import (
    RESERVED_SHARED_MEMORY,
    WARP_THREADS,
    Capability,
)
from triton_ext.hardware.banks import LINE_BYTES
from triton_ext.hardware.register_moves import PlannedMove
from triton_ext.layouts.cluster import shape_per_cta
from triton_ext.layouts.distributed import Blocked, Linear, Slice, parse_distributed
from triton_ext.layouts.encodings import (
    CHUNK_BYTES,
    NVMMAShared,
    PaddedShared,
    SharedEncoding,
    SharedLinear,
    SwizzledShared,
)
from triton_ext.layouts.gf2 import powers_below
from triton_ext.mlir.arith import integer_constant
from triton_ext.mlir.ir import Operation
from triton_ext.mlir.locations import Location
from triton_ext.mlir.module import MlirModule
from triton_ext.mlir.operations import subslice_offsets
from triton_ext.passes.frame.base import Compilation, Diagnostic, Outcome, compiler_pass
from triton_ext.passes.shared_accesses import (
    BLOCK_GRANULARITY,
    CopyUse,
    MoveUse,
    SharedAllocation,
    blocks_per_sm,
    is_read,
    parsed_encoding,
    planned,
    register_layout,
    shared_allocations,
    tile_layout,
    tma_boxes,
    warps_of,
)
from triton_ext.render.words import by, counted

Kind = Literal[
    "bank-conflict",
    "unswizzled-operand",
    "narrow-swizzle",
    "several-boxes",
    "padding",
    "misaligned-padding",
    "idle-part",
    "never-read",
    "shared-limit",
    "blocks-per-sm",
]


@dataclass(frozen=True)
class LintOptions:
    """Options of `lint-shared`.

    Attributes:
        min_conflict: a move is reported if it takes at least this many times the wavefronts that it
            needs.
        min_wavefronts: ... and costs a block, in all its warps, at least this many more wavefronts.
        near_limit: shared memory is reported from this fraction of a block's largest on.
        few_blocks: one more block on a multiprocessor is suggested up to this many blocks.
        block_margin: the largest fraction of its shared memory that a kernel is asked to save for
            one more block on a multiprocessor.
    """

    min_conflict: float = 2.0
    min_wavefronts: int = 8
    near_limit: float = 0.98
    few_blocks: int = 3
    block_margin: float = 0.05


@dataclass(frozen=True)
class Finding:
    """A conflict or a waste, and how to mend it.

    Attributes:
        kind: the kind of the finding, which ends the message, in brackets.
        value: the name of the shared-memory value, or "".
        message: what is wrong, with numbers.
        help: the change that mends it, with numbers.
        location: the line in the kernel's source; None if it is not known.
    """

    kind: Kind
    value: str
    message: str
    help: str
    location: Location | None

    @property
    def diagnostic(self) -> Diagnostic:
        """As a warning."""
        return Diagnostic("warning", f"{self.message} [{self.kind}]", self.help, self.location)


# ------------------------------------------------------------------------- what would be better


def _flipped(encoding: SharedEncoding) -> SharedEncoding | None:
    """The encoding of the transposed view of a tile of two dimensions."""
    if encoding.rank != 2 or not isinstance(encoding, (NVMMAShared, SwizzledShared)):
        return None
    if encoding.cga_layout:
        return None
    if isinstance(encoding, NVMMAShared):
        return replace(encoding, transposed=not encoding.transposed)
    return replace(encoding, order=(encoding.order[1], encoding.order[0]))


@dataclass(frozen=True)
class _Alternatives:
    """The moves of an allocation, as they would be with another encoding."""

    allocation: SharedAllocation
    kernel: Compilation

    def moves(self, encoding: SharedEncoding) -> list[PlannedMove] | None:
        """The moves with another encoding; None if one of them cannot be predicted."""
        found = []
        for use in self.allocation.moves:
            move = self._move(use, encoding)
            if move is None:
                return None
            found.append(move)
        return found

    def _move(self, use: MoveUse, encoding: SharedEncoding) -> PlannedMove | None:
        own = self.allocation.encoding
        seen = parsed_encoding(use.memory.encoding)
        other: SharedEncoding | None = None
        if seen == own:
            other = encoding
        elif own is not None and seen == _flipped(own):
            other = _flipped(encoding)
        if other is None or use.planned is None:
            return None
        try:
            return planned(
                register_layout(use.tensor, self.kernel.ttgir),
                replace(use.memory, encoding=str(other)),
                use.direction,
                self.kernel.target,
            )
        except LayoutError:
            return None

    def wavefronts(self, encoding: SharedEncoding) -> int | None:
        """The wavefronts of all moves together, each counted once."""
        moves = self.moves(encoding)
        return None if moves is None else sum(move.pattern.wavefronts for move in moves)

    @property
    def present(self) -> int:
        """The wavefronts of all moves together, as the kernel is."""
        moves = [use.planned for use in self.allocation.moves if use.planned]
        return sum(move.pattern.wavefronts for move in moves)


def _nvmma_candidates(allocation: SharedAllocation, own: NVMMAShared) -> Iterator[NVMMAShared]:
    widest = _widest(own, allocation.tile)
    for width in (128, 64, 32, 0):
        if width <= widest.swizzle_byte_width:
            yield replace(own, swizzle_byte_width=width)


def _swizzled_candidates(allocation: SharedAllocation) -> Iterator[SwizzledShared]:
    """Swizzled encodings of a tile, of the forms that Triton makes."""
    shape, bits = allocation.tile, allocation.memory.element_bitwidth
    own = allocation.encoding
    linear = own.linear if isinstance(own, PaddedShared) else own
    if isinstance(own, SwizzledShared):
        order, cga_layout = own.order, own.cga_layout
    elif isinstance(linear, SharedLinear) and linear.block_bases:
        return
    else:
        order, cga_layout = tuple(reversed(range(len(shape)))), getattr(own, "cga_layout", ())
    if len(shape) < 2:
        return
    per_cta = shape_per_cta(cga_layout, shape)
    for fastest in (order, (order[1], order[0], *order[2:])):
        row = per_cta[fastest[0]]
        per_phase = max(1, LINE_BYTES * 8 // (row * bits))
        most = min(8 * CHUNK_BYTES // bits, row)
        for vec in (most, *sorted(powers_below(most), reverse=True)):
            for phases in powers_below(2 * row // vec):
                if phases > 1:
                    yield SwizzledShared(vec, per_phase, phases, fastest, cga_layout)


def _best(
    alternatives: _Alternatives, candidates: Iterable[SharedEncoding]
) -> tuple[int, SharedEncoding] | None:
    """The encoding with the fewest wavefronts, the first of those."""
    best: tuple[int, SharedEncoding] | None = None
    for encoding in candidates:
        found = alternatives.wavefronts(encoding)
        if found is not None and (best is None or found < best[0]):
            best = (found, encoding)
    return best


def _candidates(allocation: SharedAllocation) -> Iterator[SharedEncoding]:
    """The encodings that all users of an allocation would accept."""
    seen = _tma_encoding(allocation)
    if seen is not None and seen.rank == len(allocation.tile):
        yield from _nvmma_candidates(allocation, seen)
    free = not (allocation.mmas or allocation.copies or allocation.others)
    if free:
        yield from _swizzled_candidates(allocation)


def _widest(encoding: NVMMAShared, shape: Sequence[int]) -> NVMMAShared:
    return NVMMAShared.default_for(
        shape,
        encoding.element_bitwidth,
        encoding.transposed,
        encoding.fp4_padded,
        encoding.cga_layout,
    )


# --------------------------------------------------------------------------------- the findings


def _conflicts(
    allocation: SharedAllocation, kernel: Compilation, options: LintOptions
) -> Iterator[Finding]:
    """Moves with bank conflicts."""
    bad = [
        (use, use.planned)
        for use in allocation.moves
        if use.planned
        and use.planned.is_certain
        and use.planned.excess >= options.min_wavefronts
        and use.planned.pattern.wavefronts
        >= options.min_conflict * use.planned.pattern.ideal_wavefronts
    ]
    if not bad:
        return
    encoding = _better_encoding(allocation, kernel)
    for use, move in bad:
        verb = "storing" if move.direction == "store" else "loading"
        yield Finding(
            "bank-conflict",
            allocation.name,
            f"{move.degree}-way bank conflict {verb} {by(use.tensor.shape)}"
            f" {use.tensor.element}: {move.mnemonic}, {move.pattern.wavefronts} wavefronts where"
            f" {move.pattern.ideal_wavefronts} would do",
            encoding or _better_registers(use, move, kernel),
            use.operation.location,
        )


def _better_encoding(allocation: SharedAllocation, kernel: Compilation) -> str:
    """An encoding with fewer wavefronts, in words; "" if none is found."""
    alternatives = _Alternatives(allocation, kernel)
    best = _best(alternatives, _candidates(allocation))
    if best is None or best[0] >= alternatives.present:
        return ""
    said = (
        f"{best[1]} for {allocation.name} takes {best[0]} wavefronts for all its moves together"
        f" instead of {alternatives.present}"
    )
    if allocation.copies and isinstance(best[1], NVMMAShared):
        boxes = _boxes(allocation.copies, best[1])
        now = sum(copy.boxes for copy in allocation.copies)
        said += f", and {counted(boxes or 0, 'TMA box', 'TMA boxes')} instead of {now}"
    return said


def _better_registers(use: MoveUse, move: PlannedMove, kernel: Compilation) -> str:
    """A blocked layout with fewer wavefronts, in words; else why there is none."""
    try:
        registers = parse_distributed(use.tensor.encoding, kernel.ttgir.aliases)
        if not isinstance(registers, _FREE):
            return "the MMA decides how registers hold it, and no other swizzle that fits is better"
        first = tile_layout(use.memory).bases["offset"][0]
        fastest = next(dim for dim, value in enumerate(first) if value)
        other = _blocked(use, fastest, move.pattern.warps)
        better = planned(
            other.to_linear_layout(use.tensor.shape), use.memory, use.direction, kernel.target
        )
    except (LayoutError, StopIteration, IndexError):
        return _NOTHING_BETTER
    if better.pattern.wavefronts >= move.pattern.wavefronts:
        return _NOTHING_BETTER
    verb = "stored from" if use.direction == "store" else "loaded to"
    return (
        f"{verb} {other}, neighbouring lanes along dim{fastest}, it takes"
        f" {better.pattern.wavefronts} wavefronts"
    )


_NOTHING_BETTER = (
    "no swizzle that fits the other uses, and no blocked layout, was found to be better"
)
_FREE = (Blocked, Linear, Slice)
"""Register layouts that no MMA prescribes."""


def _blocked(use: MoveUse, fastest: int, warps: int) -> Blocked:
    """Lanes side by side along one dimension, 16 bytes each if the shape allows."""
    shape = use.tensor.shape
    order = (fastest, *(dim for dim in reversed(range(len(shape))) if dim != fastest))
    each = [1] * len(shape)
    each[fastest] = min(shape[fastest], 8 * CHUNK_BYTES // use.memory.element_bitwidth)
    left = [size // count for size, count in zip(shape, each, strict=True)]

    def spread(count: int) -> tuple[int, ...]:
        part = [1] * len(shape)
        for dim in order:
            part[dim] = min(left[dim], count)
            left[dim] //= part[dim]
            count //= part[dim]
        part[order[-1]] *= count
        return tuple(part)

    return Blocked(tuple(each), spread(WARP_THREADS), spread(warps), order)


def _tma_encoding(allocation: SharedAllocation) -> NVMMAShared | None:
    """The NVMMA encoding of an allocation, or else that in which all its TMA copies see it."""
    if isinstance(allocation.encoding, NVMMAShared):
        return allocation.encoding
    seen = {copy.memory.encoding for copy in allocation.copies}
    if len(seen) != 1 or any(copy.box is None for copy in allocation.copies):
        return None
    found = parsed_encoding(seen.pop())
    return found if isinstance(found, NVMMAShared) else None


def _boxes(copies: Sequence[CopyUse], encoding: NVMMAShared) -> int | None:
    """The boxes of all copies with another encoding; None if one would be illegal."""
    try:
        return sum(tma_boxes(encoding, copy.memory.shape, copy.direction)[1] for copy in copies)
    except LayoutError:
        return None


@dataclass(frozen=True)
class _Change:
    """Another swizzle of an allocation, and what it would do."""

    encoding: NVMMAShared
    boxes: tuple[int, int]
    wavefronts: tuple[int, int]

    @property
    def is_better(self) -> bool:
        """Whether something improves and nothing gets worse."""
        no_worse = self.boxes[1] <= self.boxes[0] and self.wavefronts[1] <= self.wavefronts[0]
        return no_worse and (self.boxes, self.wavefronts) != (
            self.boxes[::-1],
            self.wavefronts[::-1],
        )

    def effect(self, copies: Sequence[CopyUse]) -> str:
        """In words."""
        said = []
        if self.boxes[1] < self.boxes[0]:
            copy = max(copies, key=lambda each: each.boxes)
            box, boxes, size = tma_boxes(self.encoding, copy.memory.shape, copy.direction)
            said.append(
                f"each TMA {copy.direction} takes {counted(boxes, 'box', 'boxes')} of {by(box)}"
                f" ({size} bytes) instead of {copy.boxes} of {by(copy.box or ())}"
                f" ({copy.box_bytes} bytes)"
            )
        if self.wavefronts[1] < self.wavefronts[0]:
            said.append(
                f"register moves take {self.wavefronts[1]} wavefronts instead of"
                f" {self.wavefronts[0]}"
            )
        return " and ".join(said)


def _change(
    allocation: SharedAllocation, kernel: Compilation, present: NVMMAShared, other: NVMMAShared
) -> _Change | None:
    """What another NVMMA encoding would do; None if that cannot be predicted."""
    boxes = (
        _boxes(allocation.copies, present),
        _boxes(allocation.copies, other),
    )
    alternatives = _Alternatives(allocation, kernel)
    wavefronts = alternatives.wavefronts(other) if allocation.moves else 0
    if None in boxes or wavefronts is None:
        return None
    return _Change(other, (boxes[0] or 0, boxes[1] or 0), (alternatives.present, wavefronts))


def _is_copied_whole(allocation: SharedAllocation) -> bool:
    """Whether TMA copies it, none of them row by row (gather, scatter)."""
    directions = {copy.direction for copy in allocation.copies}
    return bool(directions) and directions <= {"load", "store", "reduce"}


def _swizzles(allocation: SharedAllocation, kernel: Compilation) -> Iterator[Finding]:
    """Swizzles that are missing, narrower than the shape allows, or of no use."""
    own = _tma_encoding(allocation)
    if own is None or own.element_bitwidth != allocation.memory.element_bitwidth:
        return
    shape = allocation.tile
    if len(shape) != own.rank:
        return
    widest = _widest(own, shape)
    width, most = own.swizzle_byte_width, widest.swizzle_byte_width
    row = shape_per_cta(own.cga_layout, shape)[own.contiguous_dim] * own.element_bitwidth // 8
    wider = _change(allocation, kernel, own, widest) if most > width else None
    effect = wider.effect(allocation.copies) if wider and wider.is_better else ""
    then = f": {effect}" if effect else ""
    unread = [use for use in allocation.mmas if use.derived is None]
    if width == 0 and most and allocation.mmas:
        use = allocation.mmas[0]
        why = (
            "no matrix descriptor reads it: Triton refuses it, or the product is garbage"
            if unread
            else f"its rows in shared memory are {CHUNK_BYTES} bytes"
        )
        yield Finding(
            "unswizzled-operand",
            allocation.name,
            f"operand {use.operand} of the MMA, {by(shape)} {allocation.memory.element}, has no"
            f" swizzle, and its rows of {row} bytes allow {most} bytes: {why}",
            f"use a swizzle of {most} bytes, {widest}{then}",
            (unread or [use])[0].operation.location,
        )
    elif effect and wider and wider.boxes[1] < wider.boxes[0]:  # conflicts are told of at the moves
        yield Finding(
            "narrow-swizzle",
            allocation.name,
            f"{allocation.name}, {by(shape)} {allocation.memory.element}, has"
            f" {f'a swizzle of {width} bytes' if width else 'no swizzle'}, and its rows of {row}"
            f" bytes allow {most}",
            f"use {widest}, or the pass widen-swizzle{then}",
            allocation.location,
        )
    elif width and _is_copied_whole(allocation) and not allocation.mmas and not allocation.others:
        plain = _change(allocation, kernel, own, replace(own, swizzle_byte_width=0))
        if plain and plain.is_better and plain.boxes[1] < plain.boxes[0]:
            copy = max(allocation.copies, key=lambda each: each.boxes)
            yield Finding(
                "several-boxes",
                allocation.name,
                f"the TMA {copy.direction} of {by(copy.memory.shape)} {copy.memory.element} takes"
                f" {copy.boxes} boxes of {by(copy.box or ())} ({copy.box_bytes} bytes each),"
                " because of a swizzle that no MMA needs",
                f"without a swizzle (in Gluon, {plain.encoding}) {plain.effect(allocation.copies)}",
                copy.operation.location,
            )


def _padding(allocation: SharedAllocation, kernel: Compilation) -> Iterator[Finding]:
    """Padding that a swizzle would save."""
    own = allocation.encoding
    if not isinstance(own, PaddedShared) or allocation.mmas or allocation.copies:
        return
    bits = allocation.memory.element_bitwidth
    for use in allocation.moves:
        if use.planned and use.planned.emitted_bytes:
            least = min(padding for _, padding in own.paddings) * bits // 8
            yield Finding(
                "misaligned-padding",
                allocation.name,
                f"a padding of {least} bytes puts the {8 * use.planned.emitted_bytes}-bit accesses"
                " that Triton makes at addresses that are no multiple of"
                f" {use.planned.emitted_bytes}: the kernel fails",
                f"pad by {8 * use.planned.emitted_bytes // bits} elements"
                f" ({use.planned.emitted_bytes} bytes) or a multiple",
                use.operation.location,
            )
    alternatives = _Alternatives(allocation, kernel)
    best = _best(alternatives, _swizzled_candidates(allocation))
    needed = math.prod(allocation.memory.shape) * bits // 8
    if best and best[0] <= alternatives.present and needed < allocation.bytes:
        yield Finding(
            "padding",
            allocation.name,
            f"{allocation.bytes - needed} of the {allocation.bytes} bytes of {allocation.name} are"
            " padding",
            f"{best[1]} needs no padding, and takes {best[0]} wavefronts for all moves together"
            f" (now {alternatives.present})",
            allocation.location,
        )


def _is_dealloc(operation: Operation) -> bool:
    return operation.name == "ttg.local_dealloc"


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


def _idle(allocation: SharedAllocation, module: MlirModule) -> Iterator[Finding]:
    """Buffers and parts of a tile that nothing takes."""
    alloc = allocation.value.definition
    uses = [use for use, _ in allocation.value.uses if not _is_dealloc(use)]
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


def _never_read(allocation: SharedAllocation) -> Iterator[Finding]:
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


def _limits(
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
    place = largest.location if largest else None
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
            place,
        )
        return
    if shared >= options.near_limit * limit:
        yield Finding(
            "shared-limit",
            name,
            f"the kernel takes {shared} of the {limit} bytes of shared memory that a block may"
            f" have: {limit - shared} are left",
            f"use smaller tiles or fewer buffers if anything is to be added; {owner}",
            place,
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
            place,
        )


def findings(compilation: Compilation, options: LintOptions | None = None) -> list[Finding]:
    """The findings of a kernel; those about its total need ``shared`` in the metadata."""
    options = options or LintOptions()
    module = compilation.ttgir
    allocations = shared_allocations(module, compilation.target)
    found: list[Finding] = []
    for allocation in allocations:
        if allocation.is_barrier or allocation.layout is None:
            continue
        unread = list(_never_read(allocation))
        found += unread
        if not unread:
            found += _swizzles(allocation, compilation)
            found += _conflicts(allocation, compilation, options)
            found += _padding(allocation, compilation)
            found += _idle(allocation, module)
    shared = compilation.metadata.get("shared")
    if isinstance(shared, int):
        has = compilation.capability
        found += _limits(shared, allocations, warps_of(module), has, options)
    return list(dict.fromkeys(found))


@compiler_pass("lint-shared", after="llir", options=LintOptions)
def lint_shared(compilation: Compilation, options: LintOptions) -> Outcome:
    """Warn of bank conflicts and waste in shared memory, with the change that would mend it."""
    return Outcome(diagnostics=[found.diagnostic for found in findings(compilation, options)])
