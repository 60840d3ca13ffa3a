"""Other layouts of an allocation, and what its moves and copies would cost with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import WARP_THREADS
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
from triton_ext.passes.frame.base import Compilation
from triton_ext.passes.shared_accesses import CopyUse, MoveUse, SharedAllocation, planned, tma_boxes
from triton_ext.passes.value_layouts import parsed_encoding, register_layout, tile_layout
from triton_ext.render.words import by, counted


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
class Alternatives:
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
    widest = widest_swizzle(own, allocation.tile)
    for width in (128, 64, 32, 0):
        if width <= widest.swizzle_byte_width:
            yield replace(own, swizzle_byte_width=width)


def swizzled_candidates(allocation: SharedAllocation) -> Iterator[SwizzledShared]:
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


def best_encoding(
    alternatives: Alternatives, candidates: Iterable[SharedEncoding]
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
    seen = tma_encoding(allocation)
    if seen is not None and seen.rank == len(allocation.tile):
        yield from _nvmma_candidates(allocation, seen)
    free = not (allocation.mmas or allocation.copies or allocation.others)
    if free:
        yield from swizzled_candidates(allocation)


def widest_swizzle(encoding: NVMMAShared, shape: Sequence[int]) -> NVMMAShared:
    return NVMMAShared.default_for(
        shape,
        encoding.element_bitwidth,
        encoding.transposed,
        encoding.fp4_padded,
        encoding.cga_layout,
    )


def better_encoding(allocation: SharedAllocation, kernel: Compilation) -> str:
    """An encoding with fewer wavefronts, in words; "" if none is found."""
    alternatives = Alternatives(allocation, kernel)
    best = best_encoding(alternatives, _candidates(allocation))
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


def better_registers(use: MoveUse, move: PlannedMove, kernel: Compilation) -> str:
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


def tma_encoding(allocation: SharedAllocation) -> NVMMAShared | None:
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
class Change:
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


def change(
    allocation: SharedAllocation, kernel: Compilation, present: NVMMAShared, other: NVMMAShared
) -> Change | None:
    """What another NVMMA encoding would do; None if that cannot be predicted."""
    boxes = (_boxes(allocation.copies, present), _boxes(allocation.copies, other))
    alternatives = Alternatives(allocation, kernel)
    wavefronts = alternatives.wavefronts(other) if allocation.moves else 0
    if None in boxes or wavefronts is None:
        return None
    return Change(other, (boxes[0] or 0, boxes[1] or 0), (alternatives.present, wavefronts))
