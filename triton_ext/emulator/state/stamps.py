"""Who did something to each byte of a memory last, and as which event: a number of 64 bits each.

Most accesses are of whole pieces of 16 bytes. So each piece has one number, and its bytes have
numbers of their own only where they differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

GRANULE = 16
"""Bytes of shared memory that are remembered together: a bulk copy's unit."""
EVENT = 24
"""The bits below an event hold its lane, and its agent."""
LANE = 16
AGENT = (1 << LANE) - 1
LANES = 255
SEVERAL = 255
"""In place of a lane: several have done it with one instruction, or it does not matter which."""
NOBODY = -1 << EVENT
"""An event before all others."""


def stamp(event: int, agent: Any, lane: Any = SEVERAL) -> Any:
    """An event, a lane of the warp and an agent, or arrays of the two, in one number."""
    return event << EVENT | lane << LANE | agent


def renewed(
    numbers: Numbers, agent: int, after: int, lanes: NDArray[np.bool_], event: int
) -> Numbers:
    """The numbers, of which what lanes of an agent have done after an event has another event.

    Args:
        lanes: (32,): which of the warp's.
        event: the new one.
    """
    found = (numbers & AGENT == agent) & (numbers >> EVENT > after)
    if not np.count_nonzero(found):
        return numbers
    lane = numbers >> LANE & LANES
    found &= np.append(lanes, np.zeros(SEVERAL + 1 - len(lanes), np.bool_))[lane]
    return np.where(found, numbers & (1 << EVENT) - 1 | event << EVENT, numbers)


class Stamps:
    """The number of each byte.

    Args:
        granules: pieces of 16 bytes.
        empty: what all bytes have at first.

    Attributes:
        whole: (granules,): the number of all 16 bytes; where they differ, the greatest.
    """

    def __init__(self, granules: int, empty: int = 0) -> None:
        self.whole: Numbers = (
            np.full(granules, empty, np.int64) if empty else np.zeros(granules, np.int64)
        )
        self._mixed = np.zeros(granules, np.bool_)
        self._some_mixed = False
        self._row = np.zeros(granules, np.int32)  # of _bytes; 0 if a piece has none
        self._bytes: Numbers = np.zeros((1, GRANULE), np.int64)
        self._rows = 1

    def grow(self, granules: int) -> None:
        """Have more pieces, whose bytes have the number 0."""
        before, self.whole = self.whole, np.zeros(granules, np.int64)
        mixed, self._mixed = self._mixed, np.zeros(granules, np.bool_)
        row, self._row = self._row, np.zeros(granules, np.int32)
        self.whole[: len(before)], self._mixed[: len(mixed)] = before, mixed
        self._row[: len(row)] = row

    def get(self, offsets: NDArray[np.int64], width: int) -> Numbers:
        """The numbers of `width` bytes at each offset: (n, width), or (n, 1) if they are equal.
        `offsets`: multiples of the width, which is 1, 2, 4, 8 or 16."""
        granules = offsets >> 4
        whole: Numbers = self.whole[granules][:, None]
        if not self._some_mixed:
            return whole
        mixed = np.flatnonzero(self._mixed[granules])
        if not len(mixed):
            return whole
        found = np.repeat(whole, width, axis=1)
        found[mixed] = self._pieces(width)[self._places(offsets[mixed], width)]
        return found

    def _pieces(self, width: int) -> Numbers:
        return self._bytes.reshape(-1, width)

    def _places(self, offsets: NDArray[np.int64], width: int) -> NDArray[np.int64]:
        """The rows of `_pieces` of bytes that have numbers of their own."""
        places: NDArray[np.int64] = (
            self._row[offsets >> 4] * (GRANULE // width) + (offsets & 15) // width
        )
        return places

    def put(self, offsets: NDArray[np.int64], width: int, numbers: Any) -> None:
        """Give `width` bytes at each offset a number: one for all, or (n,); the last one stays."""
        granules = offsets >> 4
        if width == GRANULE:
            self.whole[granules] = numbers
            if self._some_mixed:
                self._mixed[granules] = False
            return
        if len(offsets) == 1:
            self._put_one(int(offsets[0]), width, numbers)
            return
        self._mix(granules)
        each = numbers[:, None] if isinstance(numbers, np.ndarray) else numbers
        self._pieces(width)[self._places(offsets, width)] = each
        rows = self._bytes[self._row[granules]]
        self.whole[granules] = most = rows.max(axis=1)
        self._mixed[granules] = (rows != most[:, None]).any(axis=1)

    def _put_one(self, offset: int, width: int, number: Any) -> None:
        granule, first = divmod(offset, GRANULE)
        if not self._mixed[granule]:
            self._mix(np.array([granule]))
        each = self._bytes[self._row[granule]]
        each[first : first + width] = number
        self.whole[granule] = most = each.max()
        self._mixed[granule] = np.count_nonzero(each != most)

    def _mix(self, granules: NDArray[np.int64]) -> None:
        """Give the bytes of these pieces numbers of their own."""
        same = granules[~self._mixed[granules]]
        if not len(same):
            return
        new = np.unique(same[self._row[same] == 0])
        if len(new):
            needed = self._rows + len(new)
            if needed > len(self._bytes):
                more = np.zeros((2 * needed - len(self._bytes), GRANULE), np.int64)
                self._bytes = np.concatenate([self._bytes, more])
            self._row[new] = np.arange(self._rows, needed)
            self._rows = needed
        self._bytes[self._row[same]] = self.whole[same][:, None]
        self._some_mixed = True

    def of(self, pieces: Any) -> Numbers:
        """All numbers in some pieces, in no order: one of each, and those of bytes that differ."""
        whole: Numbers = self.whole[pieces]
        if not self._some_mixed:
            return whole
        mixed = self._mixed[pieces]
        if not np.count_nonzero(mixed):
            return whole
        rest = self._bytes[self._row[pieces][mixed]].reshape(-1)
        return np.concatenate([whole[~mixed], rest])

    def fill(self, pieces: Any, number: int) -> None:
        """Give all bytes of some pieces a number."""
        self.whole[pieces] = number
        if self._some_mixed:
            self._mixed[pieces] = False

    def renew(self, change: Callable[[Numbers], Numbers]) -> None:
        """Give all bytes other numbers."""
        self.whole = np.where(self._mixed, self.whole, change(self.whole))
        if self._some_mixed:
            mixed = np.flatnonzero(self._mixed)
            rows = self._bytes[self._row[mixed]] = change(self._bytes[self._row[mixed]])
            self.whole[mixed] = rows.max(axis=1)

    def at(self, offset: int) -> int:
        """The number of one byte."""
        return int(self.get(np.array([offset]), 1)[0, 0])

    def all(self) -> Numbers:
        """All numbers, as `of` gives them."""
        return self.of(slice(None))
