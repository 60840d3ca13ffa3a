"""What of each tensor a launch has read and written: where a wrong result has no fault, a tile that
is copied twice, or never, or from outside of its tensor, shows here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.memory import Allocation

Counts = NDArray[np.uint32]


@dataclass
class Reached:
    """How often the bytes of one allocation were read and written."""

    allocation: Allocation
    read: Counts
    written: Counts

    def as_object(self) -> dict[str, Any]:
        """The numbers of bytes, as JSON's types; ``first_not_read`` and ``first_not_written`` are
        the index of an element, or None if all were, or none."""
        found: dict[str, Any] = {"name": self.allocation.name, "bytes": self.allocation.size}
        owned = self.allocation.owned
        for what, counts in (("read", self.read), ("written", self.written)):
            own = counts if owned is None else counts[owned]
            number = int(np.count_nonzero(own))
            found[what] = number
            found[f"times_{what}"] = round(float(own.sum()) / number, 2) if number else 0.0
            missing = (counts == 0) if owned is None else (counts == 0) & owned
            some = number and missing.any()
            found[f"first_not_{what}"] = self._element(int(missing.argmax())) if some else None
        return found

    def _element(self, byte: int) -> list[int]:
        """The index of the element at a byte: of a contiguous tensor along each dimension, else in
        memory."""
        owner = self.allocation.owner
        size = getattr(owner, "itemsize", 1)
        if hasattr(owner, "shape") and getattr(owner, "is_contiguous", lambda: True)():
            return [int(n) for n in np.unravel_index(byte // size, tuple(owner.shape))]
        return [byte // size]


class Reach:
    """What launches have reached, by allocation.

    Attributes:
        outside: how many boxes of TMA copies lay wholly outside of their tensor.
        first_outside: what and where the first of them was.
    """

    def __init__(self) -> None:
        self._found: dict[int, Reached] = {}
        self.outside = 0
        self.first_outside = ""

    def touch(self, cta: Cta, starts: NDArray[np.int64], width: int, kind: str) -> None:
        """`width` bytes at each address were accessed; `kind`: "store", "atomic", or any that
        reads alone."""
        for allocation in cta.launch.memory.allocations:
            offsets = starts - allocation.start
            offsets = offsets[(offsets >= 0) & (offsets + width <= allocation.size)]
            if not len(offsets):
                continue
            here = self._of(allocation)
            every = (offsets[:, None] + np.arange(width)).reshape(-1)
            if kind != "store":
                np.add.at(here.read, every, 1)
            if kind in ("store", "atomic"):
                np.add.at(here.written, every, 1)

    def copies(self, cta: Cta, kind: str, box: Any, address: int, size: int) -> None:
        """As `triton_ext.emulator.state.block.AccessObserver` is told of them."""
        if box is None:
            if address >= 0:
                self.touch(cta, np.array([address]), size, kind)
            return
        starts, width = box.rows_inside()
        if len(starts):
            self.touch(cta, starts, width, kind)
            return
        self.outside += 1
        if not self.first_outside:
            at = tuple(reversed(box.coordinates))
            shape = tuple(reversed(box.map.global_dims))
            self.first_outside = f"a {kind} at {at} of a tensor of {shape}"

    def _of(self, allocation: Allocation) -> Reached:
        found = self._found.get(allocation.start)
        if found is None or found.allocation.size != allocation.size:
            empty = np.zeros(allocation.size, np.uint32)
            found = self._found[allocation.start] = Reached(allocation, empty, empty.copy())
        return found

    def as_object(self) -> dict[str, Any]:
        """All of it, as JSON's types."""
        return {
            "tensors": [each.as_object() for each in self._found.values()],
            "copies_outside": self.outside,
            "first_copy_outside": self.first_outside,
        }

    def lines(self) -> Iterator[str]:
        """All of it, in words."""
        found = self.as_object()
        if found["tensors"] or self.outside:
            yield "global memory that was reached"
        for each in found["tensors"]:
            parts = []
            for what in ("read", "written"):
                if each[what]:
                    first = each[f"first_not_{what}"]
                    rest = "" if first is None else f", not element {tuple(first)}"
                    share = 100 * each[what] / each["bytes"]
                    parts.append(f"{what} {share:.4g} %{rest}, {each[f'times_{what}']:g} times")
            yield f"  {each['name'] or 'a tensor'}: {'; '.join(parts)}"
        if self.outside:
            yield f"  {self.outside} copies wholly outside of a tensor: first {self.first_outside}"
