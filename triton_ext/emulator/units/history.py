"""What the launches of several GPUs have in common: memory, flags, and who has seen what of whom.

The clusters of all launches are numbered through, and so are the streams of copies. A launch has
seen all of those before it on its GPU, and what these had seen; what orders it with the launches of
another GPU are flags at the scope of the system, until all have met: then all is forgotten.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.state.clocks import Foreign, merged
from triton_ext.emulator.state.memory import Allocation, Offsets
from triton_ext.emulator.units.shadows import Shadow
from triton_ext.ptx.parse import Instruction

SCOPE_NAMES = {1: ".cta", 2: ".cluster", 3: ".gpu", 4: ".sys"}
_DONE = np.ones(1, np.int64)


class Party(Protocol):
    """A launch, or a stream of copies, of which errors speak.

    Attributes:
        warps, agents_each: of a block.
    """

    warps: int
    agents_each: int

    def name(self, cluster: int, agent: int) -> str:
        """An agent, in words."""

    def line(self, line: int) -> str:
        """A line of its PTX, as ``" [kernel.py:12]"``."""


class Order(Party, Protocol):
    """What remembers the accesses of a launch: see `units.global_order`.

    Attributes:
        program: the launch's instructions.
        device: the number of the GPU.
        history: what the launches of several GPUs have in common, or None.
    """

    program: Sequence[Instruction]
    device: int
    history: History | None

    def read(self, of: Allocation, first: int, offsets: Offsets, size: int, by: Any) -> None:
        """Rows of memory are read."""

    def write(
        self, of: Allocation, first: int, offsets: Offsets, values: NDArray[np.uint8], by: Any
    ) -> None:
        """Rows of memory are about to be written."""


@dataclass(frozen=True)
class Miss:
    """A flag that was released by one cluster, read by another one, and ordered nothing.

    Attributes:
        needed: the scope that both need.
        address: of the flag.
        released, released_line: the scope of the release, and its PTX line.
        acquired, acquired_line: the same of the read; its scope is 0 if it was relaxed.
    """

    needed: int
    address: int
    released: int
    released_line: int
    acquired: int
    acquired_line: int


@dataclass
class History:
    """See the module.

    Attributes:
        devices: how many GPUs there are.
        released: what flags have released, by address: see `units.memory_order`.
        known: by GPU, what is ordered before its next launch.
        misses: by the clusters that read and that released.
    """

    devices: int
    released: dict[int, Any] = field(default_factory=dict)
    known: list[Foreign] = field(default_factory=list)
    misses: dict[tuple[int, int], Miss] = field(default_factory=dict)
    _firsts: list[int] = field(default_factory=list)
    _owners: list[int] = field(default_factory=list)
    _parties: list[Party | None] = field(default_factory=list)
    _next: int = 0
    _watched: list[tuple[int, Allocation, Shadow]] = field(default_factory=list)
    _always: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """All that was is ordered before all that comes."""
        self.known = [{} for _ in range(self.devices)]
        self._firsts, self._owners, self._parties, self._next = [], [], [], 0
        self.released.clear()
        self.misses.clear()
        kept, self._watched = self._watched, []
        for _, memory, _ in kept:
            if memory.start in self._always:
                self.watch(memory)

    # ---------------------------------------------------------------- who there is

    def number(self, device: int, clusters: int) -> int:
        """The number of the first of some new clusters of a GPU."""
        first = self._next
        self._next += clusters
        self._firsts.append(first)
        self._owners.append(device)
        self._parties.append(None)
        return first

    def join(self, first: int, party: Party) -> None:
        """Say whose the clusters from `first` on are."""
        self._parties[self._firsts.index(first)] = party

    def ended(self, device: int, first: int, learned: Foreign) -> None:
        """A launch is done: it is ordered before the next ones of its GPU, with what it learned."""
        self.learn(device, merged(learned, {~first: _DONE}))

    def learn(self, device: int, learned: Foreign) -> None:
        """More that is ordered before the next launches of a GPU."""
        known = merged(self.known[device], learned)
        self.known[device] = {
            number: seen
            for number, seen in known.items()
            if number < 0 or ~self.first(number) not in known
        }

    def first(self, number: int) -> int:
        """The first cluster of the launch that has this one."""
        return self._firsts[bisect_right(self._firsts, number) - 1]

    def party(self, number: int) -> Party:
        """Whose a cluster is."""
        party = self._parties[bisect_right(self._firsts, number) - 1]
        assert party is not None
        return party

    def device(self, number: int) -> int:
        """The GPU of a cluster."""
        return self._owners[bisect_right(self._firsts, number) - 1]

    def own_device(self, numbers: NDArray[np.int64], device: int) -> NDArray[np.bool_]:
        """Which clusters are of a GPU."""
        at = np.searchsorted(np.array(self._firsts), numbers, side="right") - 1
        found: NDArray[np.bool_] = np.array(self._owners)[at] == device
        return found

    # --------------------------------------------------------------- what is accessed

    def watch(self, memory: Allocation, *, always: bool = False) -> None:
        """Accesses to some memory count over all launches: until all have met, or `always`."""
        if always:
            self._always.add(memory.start)
        if self.find(memory.start) is None:
            new = memory.start, memory, Shadow(len(memory.data))
            self._watched = sorted([*self._watched, new], key=lambda each: each[0])

    def find(self, address: int) -> tuple[Allocation, Shadow] | None:
        """The memory that an address is in, if it is watched."""
        at = bisect_right(self._watched, address, key=lambda each: each[0]) - 1
        if at < 0:
            return None
        _, memory, shadow = self._watched[at]
        return (memory, shadow) if address < memory.end else None

    # ------------------------------------------------------------------- for errors

    def _line(self, number: int, line: int) -> str:
        party = self._parties[bisect_right(self._firsts, number) - 1]
        return "" if party is None else party.line(line)

    def hint(self, reader: int, writer: int) -> str:
        """What was wrong with the flag that should have ordered two clusters; "" if nothing is
        known of one.
        """
        for here, there in ((reader, writer), (writer, reader)):
            miss = self.misses.get((here, there))
            if miss is None:
                continue
            found = self.find(miss.address)
            flag = f"{miss.address:#x}"
            if found is not None:
                flag += f" ({found[0].describe(miss.address - found[0].start)})"
            at, by = self._line(here, miss.acquired_line), self._line(there, miss.released_line)
            needed = SCOPE_NAMES[miss.needed]
            if not miss.acquired:
                return (
                    f"; the flag at {flag} was read by a relaxed access{at}: .acquire{needed}, or"
                    f" fence.acq_rel{needed} behind it, is missing"
                )
            return (
                f"; the flag at {flag} was released at {SCOPE_NAMES[miss.released]}{by} and"
                f" acquired at {SCOPE_NAMES[miss.acquired]}{at}: both need {needed}"
            )
        return ""
