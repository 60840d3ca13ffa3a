"""Why a trace, of PTX or of a module, ends."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Why(Enum):
    """Why there are no more executions."""

    FINISHED = "the thread or partition ends"
    LONG = "the trace is long enough"
    UNKNOWN = "what comes next depends on what is not known"


@dataclass(frozen=True)
class End:
    """The end of a trace.

    Attributes:
        reason: what it is, for the report; "" if the thread or partition ends.
    """

    why: Why = Why.FINISHED
    reason: str = ""

    @property
    def is_early(self) -> bool:
        """Whether more would be executed."""
        return self.why is not Why.FINISHED


class Stopped(Exception):
    """The trace cannot go on, or need not."""

    def __init__(self, reason: str, why: Why = Why.UNKNOWN) -> None:
        super().__init__(reason)
        self.end = End(why, reason)


def long(limit: str, at: str) -> End:
    """The end of a trace that is long enough. `limit`: of what there was enough. `at`: where it
    was."""
    return End(Why.LONG, f"after enough {limit}, at {at}")
