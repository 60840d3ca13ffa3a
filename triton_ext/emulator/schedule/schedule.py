"""The order in which a launch runs: eager, lazy or random."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np

from triton_ext.emulator.decode.step import Split, Step, Wait
from triton_ext.emulator.errors import LaunchError
from triton_ext.emulator.schedule.fiber import MANY_JUMPS, Fiber
from triton_ext.emulator.schedule.liveness import QUANTUM
from triton_ext.emulator.state.block import AsyncOperation, Cta
from triton_ext.emulator.state.lanes import Lanes

AHEAD = 0.25
"""How often the random schedule lets others than lanes in a branch go first."""


class Schedule:
    """Which fiber runs, and when asynchronous operations are done.

    Args:
        name: "eager": at once; "lazy": when nothing else can run; "random": at any moment.
        seed: the random schedule's.
    """

    def __init__(self, name: str = "eager", seed: int = 0) -> None:
        if not isinstance(name, str) or name not in ("eager", "lazy", "random"):
            raise LaunchError(f"schedule {name!r}: must be 'eager', 'lazy' or 'random'")
        if not isinstance(seed, (int, np.integer)):
            raise LaunchError(f"seed = {seed!r}: must be an integer")
        self.name, self.random = name, random.Random(int(seed))

    @property
    def clusters(self) -> int:
        """How many run side by side before one of them waits: what they do in turns is seen."""
        return 4 if self.name == "random" else 1

    def choose(self, ready: Sequence[Fiber], late: Sequence[Fiber] = ()) -> Fiber:
        """The fiber that is furthest behind, so that it can meet the others; or any.

        One that may wait in a loop for what others do lets them go first.

        Args:
            late: those of lanes in a branch on which their warps parted. They go first: the lanes
                of a warp take turns, and other warps do not get far meanwhile.
        """
        late = [each for each in late if each.backward_jumps < MANY_JUMPS]
        if late and (self.name != "random" or self.random.random() >= AHEAD):
            ready = late
        if self.name == "random" and len(ready) > 1:
            return self.random.choice(ready)
        return min(ready, key=lambda fiber: (fiber.backward_jumps // MANY_JUMPS, fiber.pc))

    def due(self) -> bool:
        """Whether an operation that could be done now is done."""
        return self.name == "eager" or (self.name == "random" and self.random.random() < 0.3)

    meets: bool = True
    """Whether lanes of a warp that part at a branch meet at its end, as ptxas has it."""
    held: Callable[[Cta, Step, Lanes], Wait | Split | None] | None = None
    """Says whether lanes must not execute an instruction yet; None: they never must not."""

    def next_of(self, pending: Sequence[AsyncOperation]) -> int | None:
        """Which of the operations is done next; None: none of them, yet."""
        if self.name != "random":
            return 0
        first: dict[object, int] = {}
        for number, operation in enumerate(pending):
            first.setdefault(operation.queue or number, number)
        return self.random.choice(list(first.values()))

    def let_go(self) -> bool:
        """Nothing else can go on: end what holds lanes or operations back, if anything does."""
        return False

    def quantum(self) -> int:
        return self.random.randrange(1, 64) if self.name == "random" else QUANTUM
