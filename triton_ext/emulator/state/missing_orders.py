"""What would have ordered two events, and does not: for errors."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from triton_ext.ptx.parse import Instruction

_WITHHELD = 64
"""How many arrivals that release nothing are remembered."""


class MissingOrders:
    """Those of a cluster.

    Attributes:
        partial: of each warp, the event and the instruction of its last proxy fence that some
            of its lanes left out.
    """

    def __init__(self) -> None:
        self.partial: dict[int, tuple[int, Instruction]] = {}
        self._withheld: deque[tuple[NDArray[np.int64], Instruction, str]] = deque(maxlen=_WITHHELD)

    def withhold(self, seen: NDArray[np.int64], at: Instruction, why: str) -> None:
        """An arrival does not release what its agents have seen. `why`: what is wrong with it, and
        what would be right."""
        self._withheld.append((seen, at, why))

    def culprit(self, agent: int, event: int) -> str:
        """The last arrival that would have released an event of an agent, in words; or ""."""
        for seen, at, why in reversed(self._withheld):
            if seen[agent] >= event:
                where = at.source or f"PTX line {at.line}"
                return f"; {at.opcode} at {where} {why} is missing"
        return ""

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
