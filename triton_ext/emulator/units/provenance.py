"""What TMA put where in shared memory, and whether a reader takes it for the same tile.

A matrix descriptor says where in shared memory the 16-byte chunks of an operand lie; the copy that
brought them says which place of which box each one is. The two agree if one dimension of the
operand runs through dimensions of the box, in their order, and the other dimension through others:
row r of the operand is one row of the box for all of its chunks, and row r + 1 the next. A
descriptor with another swizzle than the copy's, or with strides or a major-ness that do not fit,
takes chunks of different rows for one row; every address is legal, and the numbers are garbage.

Copies are known by the event of their writes, which `SharedMemory.written` keeps for each byte: so
what anybody else has written since is not taken for the copy's. About chunks of different copies,
and those that threads, ``cp.async`` or bulk copies of plain bytes wrote, nothing is claimed.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.state.barriers import MBarrier
from triton_ext.emulator.state.shared import SharedMemory
from triton_ext.emulator.state.stamps import EVENT, GRANULE, Numbers
from triton_ext.hardware.tensor_map import DataType, TensorSwizzle
from triton_ext.ptx.parse import Instruction

Index = NDArray[np.int64]
MOST_COPIES = 1024
"""How many copies of a block are remembered before those that are overwritten are forgotten."""
OPERANDS = {
    DataType.FLOAT16: "f16",
    DataType.BFLOAT16: "bf16",
    DataType.FLOAT32: "tf32",
    DataType.FLOAT32_FTZ: "tf32",
    DataType.TFLOAT32: "tf32",
    DataType.TFLOAT32_FTZ: "tf32",
}
"""What a tensor core must take elements of a tensor map for; integers, for anything."""
PHASES = 8
"""How many phases are remembered in which one box was brought."""


@dataclass(frozen=True, eq=False)
class Arrangement:
    """Where the chunks of a box lie; one object for equal boxes at addresses of one alignment.

    Attributes:
        shape: (chunks of a row, the box's other extents), innermost first.
        places: for each chunk of the box's shared memory, its number in the box, row-major with the
            innermost dimension last; -1 for gaps.
        swizzle: how they are swizzled.
    """

    shape: tuple[int, ...]
    places: Index
    swizzle: TensorSwizzle


def arrange(
    shape: tuple[int, ...], numbers: Index, size: int, swizzle: TensorSwizzle
) -> Arrangement:
    """The arrangement of a box of `size` bytes whose chunks have these numbers, in its order."""
    places = np.full(size // GRANULE, -1, np.int64)
    places[numbers] = np.arange(len(numbers))
    return Arrangement(shape, places, swizzle)


@dataclass(frozen=True)
class Copied:
    """One box that TMA has put into shared memory.

    Attributes:
        arrangement: of its chunks.
        address: that of the box in its block's shared memory.
        instruction: the one that copied it.
        element: what a tensor core must take its elements for; "" for anything.
        shared: the memory.
        barrier, phase: the mbarrier that it has signalled, and in which phase.
    """

    arrangement: Arrangement
    address: int
    instruction: Instruction | None
    element: str
    shared: SharedMemory = field(repr=False)
    barrier: MBarrier = field(repr=False)
    phase: int

    def __str__(self) -> str:
        at = self.instruction
        where = f" at {at.source or f'PTX line {at.line}'}" if at is not None else ""
        return f"the TMA copy{where}"

    def describe(self, address: int) -> str:
        """What lies at an address of the box, in its logical coordinates; "" for a gap."""
        chunk, byte = divmod(address - self.address, GRANULE)
        number = int(self.arrangement.places[chunk])
        if number < 0:
            return ""
        *outer, column = np.unravel_index(number, self.arrangement.shape[::-1])
        rows = tuple(int(n) for n in outer)
        row = f"row {rows[0] if len(rows) == 1 else rows}, " if rows else ""
        return f"{row}byte {int(column) * GRANULE + byte}, of the box of {self}"


@dataclass(frozen=True, eq=False)
class Reading:
    """Which chunks are read as one tile; one object for equal readings.

    Attributes:
        offsets: (rows, chunks of a row): their addresses, from where the reader starts.
    """

    offsets: Index


@dataclass(frozen=True)
class Misplaced:
    """The first chunk of a tile that does not lie where those before it say.

    Attributes:
        row, chunk: of the reader's tile.
        position: in the copy's box: the chunk's number in its row, then the other coordinates.
        copied: what brought it.
    """

    row: int
    chunk: int
    position: tuple[int, ...]
    copied: Copied

    def __str__(self) -> str:
        arrangement = self.copied.arrangement
        column, *outer = self.position
        row = f"row {outer[0]}" if len(outer) == 1 else f"row {tuple(reversed(outer))}"
        return (
            f"{self.copied} wrote {swizzled_rows(arrangement.swizzle.span)} of"
            f" {arrangement.shape[0] * GRANULE} bytes: what is taken for row {self.row}, byte"
            f" {self.chunk * GRANULE}, of the tile is {row}, byte {column * GRANULE}, of the"
            " copy's box"
        )


def swizzled_rows(width: int) -> str:
    """What rows with a swizzle of so many bytes are called."""
    return f"{width}-byte-swizzled rows" if width else "rows without a swizzle"


def note(shared: SharedMemory, event: int, copied: Copied) -> None:
    """Remember what a copy, whose writes are `event`, has put into a block's memory."""
    copies = shared.copies
    if len(copies) >= MOST_COPIES:
        live = set(np.unique(shared.written.all() >> EVENT).tolist())
        for gone in [each for each in copies if each not in live]:
            del copies[gone]
    copies[event] = copied
    phases = copied.barrier.brought.setdefault((id(shared), copied.address), deque(maxlen=PHASES))
    phases.append(copied.phase)


def brought(
    shared: SharedMemory, reading: Reading, start: int, written: Numbers | None = None
) -> dict[bytes, Copied]:
    """The copies that have brought a tile, by which of its chunks each of them has: a byte for each
    chunk, or b"" for all.

    Args:
        start: where the tile starts.
        written: who wrote it, if that is known: as `Stamps.of` gives it.
    """
    copies = shared.copies
    if not copies:
        return {}
    if written is not None and len(written) == reading.offsets.size:
        events = written >> EVENT
    else:
        events = shared.written.get(reading.offsets.reshape(-1) + start, GRANULE)[:, 0] >> EVENT
    first = int(events[0])
    if first == int(events.min()) == int(events.max()):
        return {b"": copies[first]} if first in copies else {}
    known = [event for event in np.unique(events).tolist() if event in copies]
    return {(events == event).tobytes(): copies[event] for event in known}


def stale(copies: Iterable[Copied]) -> tuple[Copied, Copied] | None:
    """Two copies of one operand, the first of which a later phase of its mbarrier has left out:
    the second is of that later phase, and was there in the earlier one, too.

    None if there are no such two.
    """
    by_phase: dict[int, dict[int, Copied]] = {}
    for each in copies:
        by_phase.setdefault(id(each.barrier), {}).setdefault(each.phase, each)
    for phases in by_phase.values():
        for earlier, later in itertools.combinations(sorted(phases), 2):
            new = phases[later]
            if earlier in new.barrier.brought[id(new.shared), new.address]:
                return phases[earlier], new
    return None


def misplaced(copies: Mapping[bytes, Copied], reading: Reading, start: int) -> Misplaced | None:
    """What shows that a tile which starts at `start` is not the one that TMA wrote there. `copies`:
    those that have brought it: see `brought`. None if the two agree, as far as one can know."""
    for mine, copied in copies.items():
        found = _first_misplaced(reading, copied.arrangement, start - copied.address, mine)
        if found is not None:
            return Misplaced(*found, copied)
    return None


@lru_cache(4096)
def _first_misplaced(
    reading: Reading, arrangement: Arrangement, distance: int, mine: bytes
) -> tuple[int, int, tuple[int, ...]] | None:
    """Row and chunk of the tile, and place in the box.

    Args:
        distance: from the box's address to the reader's start.
        mine: which of the tile's chunks the copy wrote; empty: all.
    """
    shape = reading.offsets.shape
    chosen = np.frombuffer(mine, np.bool_).reshape(shape) if mine else np.ones(shape, np.bool_)
    rows, chunks = np.nonzero(chosen)
    numbers = arrangement.places[(reading.offsets[chosen] + distance) // GRANULE]
    known = numbers >= 0
    rows, chunks, numbers = rows[known], chunks[known], numbers[known]
    places = np.stack(np.unravel_index(numbers, arrangement.shape[::-1])[::-1])
    if _agree(rows, chunks, places, arrangement.shape):
        return None
    good, bad = 1, len(rows)  # how many of the first chunks agree, and do not
    while bad - good > 1:
        middle = (good + bad) // 2
        if _agree(rows[:middle], chunks[:middle], places[:, :middle], arrangement.shape):
            good = middle
        else:
            bad = middle
    return int(rows[good]), int(chunks[good]), tuple(int(n) for n in places[:, good])


def _agree(rows: Index, chunks: Index, places: Index, shape: tuple[int, ...]) -> bool:
    """Whether rows run through dimensions of the box in their order, and chunks through others.

    Args:
        rows, chunks: (n,): places in the tile.
        places: (dimensions, n): the same places in the box, innermost dimension first.
        shape: the box's extents.
    """
    varying = [d for d, values in enumerate(places) if (values != values[0]).any()]
    by_row = [d for d in varying if _depends(places[d], rows)]
    by_chunk = [d for d in varying if _depends(places[d], chunks)]
    if not set(varying) <= {*by_row, *by_chunk}:
        return False
    if set(by_row) & set(by_chunk):  # too few chunks to tell
        return True
    return _runs(rows, places, by_row, shape) and _runs(chunks, places, by_chunk, shape)


def _depends(values: Index, on: Index) -> bool:
    """Whether equal `on` have equal values."""
    first = np.empty(int(on.max()) + 1, np.int64)
    first[on] = values
    return bool((first[on] == values).all())


def _runs(steps: Index, places: Index, dimensions: list[int], shape: tuple[int, ...]) -> bool:
    """Whether one step is the next place: of the whole box, or of a smaller box within."""
    whole, part = np.zeros_like(steps), np.zeros_like(steps)
    in_whole = in_part = 1
    for d in dimensions:
        low = places[d].min()
        whole += places[d] * in_whole
        part += (places[d] - low) * in_part
        in_whole *= shape[d]
        in_part *= int(places[d].max() - low) + 1
    return any(bool((each - steps == each[0] - steps[0]).all()) for each in (whole, part))
