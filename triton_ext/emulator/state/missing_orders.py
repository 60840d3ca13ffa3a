"""What would have ordered two events, and does not: for errors."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from triton_ext.ptx.parse import Instruction

_WITHHELD = 64
"""How many arrivals that release nothing are remembered."""
_ACCESSES = 1 << 14
"""How many accesses of threads to shared memory are remembered."""


class MissingOrders:
    """Those of a cluster.

    Attributes:
        partial: of each warp, the event and the instruction of its last proxy fence that some
            of its lanes left out.
        let_through: of each agent, its last wait, and the mbarrier's name, if no phase was complete
            there yet.
    """

    def __init__(self) -> None:
        self.partial: dict[int, tuple[int, Instruction]] = {}
        self.let_through: dict[int, tuple[Instruction, str]] = {}
        self._withheld: deque[tuple[NDArray[np.int64], Instruction, str]] = deque(maxlen=_WITHHELD)
        self._accesses: deque[tuple[int, Instruction | None]] = deque(maxlen=_ACCESSES)

    def accessed(self, event: int, at: Instruction | None) -> None:
        """Threads access shared memory, at an instruction."""
        self._accesses.append((event, at))

    def line(self, event: int) -> str:
        """The line of the source that an access is of, as faults say it; or ""."""
        for number, at in reversed(self._accesses):
            if number == event and at is not None and at.source is not None:
                return f" [{at.source}]"
        return ""

    def withhold(self, seen: NDArray[np.int64], at: Instruction, why: str) -> None:
        """An arrival does not release what its agents have seen. `why`: what is wrong with it, and
        what would be right."""
        self._withheld.append((seen, at, why))

    def passed(self, agent: int) -> str:
        """The last wait of an agent, in words, if a fresh mbarrier let it through; or ""."""
        if agent not in self.let_through:
            return ""
        at, name = self.let_through[agent]
        where = at.source or f"PTX line {at.line}"
        return (
            f"at {where}, was for parity 1 of {name}, which lets it through until its first phase"
            " is complete"
        )

    def culprit(self, agent: int, event: int, *, read: bool = False) -> str:
        """The last arrival that would have released an event of an agent, in words; if there is
        none and the event is a read, the wait that may have come too early; or ""."""
        for seen, at, why in reversed(self._withheld):
            if seen[agent] >= event:
                where = at.source or f"PTX line {at.line}"
                return f"; {at.opcode} at {where} {why} is missing"
        passed = self.passed(agent) if read else ""
        return f"; its last wait, {passed}" if passed else ""

    def left_out(self, agent: int, event: int) -> str:
        """The proxy fence that some lanes of a warp left out, in words; "" if that is not why."""
        last, at = self.partial.get(agent, (-1, None))
        if at is None or event != last:
            return ""
        where = at.source or f"PTX line {at.line}"
        return (
            f"; some lanes of the warp alone execute the one at {where}, before the warp meets:"
            " each lane that writes must execute it, or one of them after a barrier"
        )
