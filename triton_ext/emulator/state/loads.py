"""Which agents have loaded from a block's shared memory, and when they last did so."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.state.clocks import Agents
from triton_ext.emulator.state.memory import Offsets
from triton_ext.emulator.state.stamps import GRANULE, Numbers, Stamps


class LastLoads:
    """The event of the last load of each byte: a row for each agent that has loaded at all.

    Args:
        granules: pieces of 16 bytes of the memory.
        agents: of the cluster.

    Attributes:
        agents: (rows,): whose they are.
        warps: the rows of warps, not of units.
    """

    def __init__(self, granules: int, agents: int) -> None:
        self._granules, self._events = granules, Stamps(0)
        self._row = np.full(agents, -1, np.intp)
        self.agents: NDArray[np.intp] = np.zeros(0, np.intp)
        self.warps: NDArray[np.intp] = np.zeros(0, np.intp)

    def _add(self, agents: Agents) -> None:
        first, number = len(self.agents), len(self.agents) + len(agents)
        if number * self._granules > len(self._events.whole):
            self._events.grow((number + first // 2) * self._granules)
        self._row[agents] = np.arange(first, number)
        self.agents = np.concatenate([self.agents, agents])

    def _rows(self, agents: Agents) -> NDArray[np.intp]:
        rows: NDArray[np.intp] = self._row[agents]
        if rows.min() < 0:
            new = np.unique(agents[rows < 0])
            self._add(new)
            self.warps = np.concatenate([self.warps, self._row[new]])
            rows = self._row[agents]
        return rows

    def readers(self, agents: Agents) -> NDArray[np.intp]:
        """The agents of the rows `warps` that can have read what each of `agents` writes:
        (agents, rows), or (rows,) for all."""
        found: NDArray[np.intp] = self.agents[self.warps]
        return found

    def put(self, agents: Agents, offsets: Offsets, width: int, event: int) -> None:
        """Agents of warps load `width` bytes at each offset."""
        self._events.put(offsets + self._rows(agents) * (self._granules * GRANULE), width, event)

    def get(self, rows: NDArray[np.intp], offsets: Offsets, width: int) -> Numbers:
        """The events of bytes, one row for each offset: as `Stamps.get`."""
        return self._events.get(offsets + rows * (self._granules * GRANULE), width)

    @property
    def pieces(self) -> Numbers:
        """(rows, granules): the last event in each piece."""
        number = len(self.agents) * self._granules
        return self._events.whole[:number].reshape(-1, self._granules)

    def put_unit(self, unit: int, pieces: Any, event: int) -> None:
        """A unit loads some pieces, or parts of them."""
        if self._row[unit] < 0:
            self._add(np.array([unit]))
        first = int(self._row[unit]) * self._granules
        self._events.whole[first : first + self._granules][pieces] = event
