"""What is remembered of global memory: of each byte the last write, and two reads."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.state.agents import agents_of_block
from triton_ext.emulator.state.memory import Offsets, Rows

Codes = NDArray[np.int64]
"""An access in 64 bits: cluster (20), agent (11), event (29), scope (3; 0 is an ordinary one)."""

SCOPE_BITS, EVENT_BITS, AGENT_BITS, CLUSTER_BITS = 3, 29, 11, 20
AGENT_SHIFT = SCOPE_BITS + EVENT_BITS
CLUSTER_SHIFT = AGENT_SHIFT + AGENT_BITS
_NOTED = 1 << 22
"""Rows of reads that an allocation may have noted before they are entered."""
_MOST_UNIT = 64
MOST_BYTES = 1 << 28
"""Size from which on the order of an allocation's accesses is not checked: 33 bytes are kept of
each that is touched."""


@dataclass(frozen=True)
class Reads:
    """Reads of an allocation that are not entered: `codes` has one, or one for each row.

    Attributes:
        first, offsets: a row of `size` bytes begins at the first offset and each of these.
        line: of the PTX instruction.
        warps: of a block.
    """

    codes: Codes
    first: int
    offsets: Offsets
    size: int
    line: int
    warps: int


def fields(code: int) -> tuple[int, int, int]:
    """Cluster, agent and scope of an access."""
    agent = code >> AGENT_SHIFT & (1 << AGENT_BITS) - 1
    return code >> CLUSTER_SHIFT, agent, code & (1 << SCOPE_BITS) - 1


class Shadow:
    """What is remembered of an allocation's bytes, in memory that forks share.

    Args:
        size: bytes.
    """

    def __init__(self, size: int) -> None:
        def empty(dtype: type) -> NDArray[np.int64]:
            return np.frombuffer(mmap.mmap(-1, max(1, size) * np.dtype(dtype).itemsize), dtype)

        self.size = size
        self.writer, self.writer_line = empty(np.int64), empty(np.int32)
        self.readers = empty(np.int64), empty(np.int64)
        self.reader_line = empty(np.int32)
        # A bit for each warp of the last reader's block that has read by the same instruction.
        self.sharers = empty(np.uint32)
        self.changed = empty(np.bool_)  # whether a write left another value than was there before
        self.written = self.entered = False
        self.noted: list[Reads] = []
        self.rows = 0

    def note(self, reads: Reads) -> None:
        """Remember reads; they count once `enter` is called."""
        self.noted.append(reads)
        self.rows += len(reads.offsets)
        if self.rows > _NOTED:
            self.enter()

    def enter(self) -> None:
        """Enter the reads that were noted: as the last reader, and the last one but for it."""
        for reads in self.noted:
            where, unit = as_units(reads.first, reads.offsets, reads.size)
            codes = np.broadcast_to(reads.codes, len(reads.offsets))
            mine = np.repeat(codes, len(where) // len(codes))
            apart = len(where) == 1 or bool((np.diff(np.sort(where)) > 0).all())
            if apart or (mine == mine[0]).all():
                self._enter(where, unit, mine[:, None], reads)
                continue
            for code in np.unique(mine).tolist():  # several warps read the same bytes
                rows = where[mine == code]
                self._enter(rows, unit, np.full((len(rows), 1), code), reads)
        self.entered |= bool(self.noted)
        self.noted, self.rows = [], 0

    def _enter(self, where: Offsets, unit: int, codes: Codes, reads: Reads) -> None:
        """Enter rows of `unit` bytes, none of them by two agents; `codes` is (rows, 1)."""
        bytes_of = Rows(where, unit)
        last, other = self.readers
        each = agents_of_block(reads.warps)
        before = bytes_of.gather(last)
        keep = before >> AGENT_SHIFT == codes >> AGENT_SHIFT
        if not keep.all():
            bytes_of.scatter(other, np.where(keep, bytes_of.gather(other), before))
        together = blocks_of(before, each) == blocks_of(codes, each)
        together &= bytes_of.gather(self.reader_line) == reads.line
        bits = warp_bits(codes, reads.warps, each)
        bytes_of.scatter(self.sharers, np.where(together, bytes_of.gather(self.sharers), 0) | bits)
        bytes_of.scatter(last, codes)
        bytes_of.scatter(self.reader_line, reads.line)


def blocks_of(codes: Any, agents_each: int) -> Any:
    """A number for the block of each access."""
    whose = codes >> AGENT_SHIFT
    return whose - (whose & (1 << AGENT_BITS) - 1) % agents_each


def warp_bits(codes: Any, warps: int, agents_each: int) -> Any:
    """The bit of each access's warp in `Shadow.sharers`; 0 of a unit."""
    own = (codes >> AGENT_SHIFT & (1 << AGENT_BITS) - 1) % agents_each
    return np.where(own < warps, 1 << np.minimum(own, 31), 0).astype(np.uint32)


def as_units(first: int, offsets: Offsets, size: int) -> tuple[Offsets, int]:
    """Rows of bytes as rows of a power of two: where each begins, and its bytes."""
    where = offsets + first
    low = int(np.bitwise_or.reduce(where - where[0])) | size
    unit = min(low & -low, _MOST_UNIT)
    if unit == size:
        return where, size
    return (where[:, None] + np.arange(0, size, unit)).reshape(-1), unit
