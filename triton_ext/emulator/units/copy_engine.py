"""Copies by the engines beside a GPU's multiprocessors, and the flags that follow them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from triton_ext.emulator.errors import EmulationError
from triton_ext.emulator.state.clocks import SYSTEM, Clock, Clocks, Foreign, merged
from triton_ext.emulator.state.memory import Allocation, Bytes
from triton_ext.emulator.units.accessors import By
from triton_ext.emulator.units.global_order import GlobalOrder
from triton_ext.emulator.units.history import History
from triton_ext.emulator.units.memory_order import Released, kept

Address = tuple[Allocation, int]
"""Some memory, and where in it."""
_ONE = np.zeros(1, np.int64)


class CopyStream(GlobalOrder):
    """A stream of copies of a GPU: what it does comes one after the other.

    Args:
        history: what it has in common with launches.
        device: the GPU.
        number: of the stream.
    """

    def __init__(self, history: History, device: int, number: int) -> None:
        super().__init__(None)
        self.history, self.device, self._number = history, device, number
        self._cluster = history.number(device, 1)
        history.join(self._cluster, self)
        self._released = history.released
        self._clocks = Clocks(1, self._cluster)
        self._seen: Foreign = {}

    def name(self, cluster: int, agent: int) -> str:
        """In words."""
        return f"a copy of stream {self._number}"

    def line(self, line: int) -> str:
        """Copies have no line."""
        return ""

    def follow(self, known: Foreign) -> None:
        """What it does from now on comes after this, too."""
        self._seen = merged(self._seen, known)

    def learned(self) -> Foreign:
        """What whoever has waited for the stream has seen."""
        return merged(self._seen, {self._cluster: self._clocks.seen[0].copy()})

    def copy(self, target: Address, source: Address, size: int) -> None:
        """Copy some bytes. Raises SynchronizationFault: nothing orders it behind what wrote them,
        or before it what has been read or written where they go."""
        (to, at), (origin, first) = target, source
        by = self._by(0)
        self._checked(lambda: by.read(origin, first, _ONE, size))
        values = origin.data[first : first + size].copy()
        self._checked(lambda: by.write(to, at, _ONE, values[None]))
        to.data[at : at + size] = values

    def write_flag(self, memory: Allocation, first: int, values: Bytes) -> None:
        """Write a flag, with a release at the scope of the system."""
        by = self._by(SYSTEM)
        self._checked(lambda: by.write(memory, first, _ONE, values[None]))
        memory.data[first : first + len(values)] = values
        seen, address = self.learned(), memory.start + first
        new = Released(SYSTEM, self.device, self._cluster, 0, 0, seen, {}, seen)
        self._released[address] = kept(self._released.get(address, ()), new)

    def read_flag(self, memory: Allocation, first: int) -> None:
        """Acquire what was released through a flag at the scope of the system: an engine is no
        thread of its GPU.
        """
        for each in self._released.get(memory.start + first, ()):
            if each.scope >= SYSTEM:
                self.follow(each.seen)

    def _by(self, scope: int) -> By:
        event = self._clocks.unit_event(0)
        clock = Clock(self._clocks.seen[0], self._clocks.fenced[0], self._seen)
        agents = np.zeros(1, np.intp)
        return By(self, self._cluster, self._clocks, 0, agents, event, scope, 0, clock)

    def _checked(self, access: Callable[[], None]) -> None:
        try:
            access()
        except EmulationError as error:
            error.where = error.where or f"stream {self._number} of copies"
            raise
