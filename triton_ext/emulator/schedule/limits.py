"""How long a launch may take, and what is said when it takes longer."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from triton_ext.emulator.decode.step import Step
from triton_ext.emulator.errors import LaunchError, LimitReached

SHOWN_PLACES = 8
"""How many lines of each list the error says that a limit is reached."""
MAX_STEPS = 100_000_000
"""The instructions of a launch, by default."""
PATIENCE = 600.0
"""Seconds without the end of a cluster after which a launch ends by default: a large grid may take
hours, one block of it takes seconds. How long an instruction takes depends on what it does: a loop
that stores needs 40 minutes for `MAX_STEPS`."""


@dataclass(frozen=True)
class Limits:
    """How long a launch may take.

    Args:
        max_steps: instructions, each for all threads of a block that are at it together; on each
            core, if the blocks run on several.
        timeout: seconds; None: `PATIENCE` from the end of one cluster to that of the next.

    Raises:
        LaunchError: not a positive number.
    """

    max_steps: int = MAX_STEPS
    timeout: float | None = None

    def __post_init__(self) -> None:
        for name, value, kinds in (
            ("max_steps", self.max_steps, int),
            ("timeout", self.timeout, (int, float, type(None))),
        ):
            good = isinstance(value, kinds) and not isinstance(value, bool)
            if not good or (value is not None and not value > 0):
                raise LaunchError(f"{name} = {value!r}: must be a positive number")

    def deadline(self) -> float:
        """When a launch that begins now, or ends a cluster, has taken too long."""
        return time.monotonic() + (PATIENCE if self.timeout is None else self.timeout)

    def over(self, steps: int, deadline: float) -> bool:
        """Whether a launch that has executed so many instructions has taken too long."""
        return steps >= self.max_steps or time.monotonic() > deadline


def limit_reached(
    limits: Limits, steps: Sequence[Step], counts: Sequence[int], executed: int, standing: list[str]
) -> LimitReached:
    """The error that a limit is reached.

    Args:
        steps: the program's.
        counts: how often each of them was executed.
        executed: how many were, in all.
        standing: where the threads are now.
    """
    what = f"timeout = {limits.timeout} s is over"
    if limits.timeout is None:
        what = f"no block has ended for {PATIENCE:g} s (timeout= allows a launch more)"
    if executed >= limits.max_steps:
        what = f"max_steps = {limits.max_steps} instructions are done"
    places: Counter[str] = Counter()
    for step, count in zip(steps, counts, strict=True):
        at = step.instruction
        places[str(at.source) if at.source else f"PTX line {at.line}: {at}"] += count
    total = max(1, sum(counts))
    lines = [
        f"{count / total:4.0%}  {place} ({count} instructions)"
        for place, count in places.most_common(SHOWN_PLACES)
    ]
    more = len(standing) - SHOWN_PLACES
    tail = [f"and {more} more"] if more > 0 else []
    text = f"{what}, and the kernel has not ended; the time went to:\n  " + "\n  ".join(lines)
    text += "\nnow:\n  " + "\n  ".join(standing[:SHOWN_PLACES] + tail)
    return LimitReached(text, steps[counts.index(max(counts))].instruction)
