"""What a kernel's waits and fences are good for, in words and as JSON's types."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from triton_ext.emulator.errors import LaunchError
from triton_ext.ptx.parse import Instruction

NEEDED, REDUNDANT, UNKNOWN = "needed", "redundant", "not decided"


@dataclass(frozen=True)
class Place:
    """A line of the program, or of its PTX.

    Attributes:
        file: its name, or the end of its path; "" for the PTX.
        line: counted from 1.
    """

    file: str
    line: int

    @classmethod
    def parse(cls, text: str) -> Place:
        """Read ``kernel.py:31``, or ``31`` for a line of the PTX. Raises LaunchError: it is
        neither."""
        named = re.fullmatch(r"(?:(.+):)?(\d+)", text) if isinstance(text, str) else None
        if named is None:
            rule = "must be a file and a line, as 'kernel.py:31', or a line of the PTX, as '31'"
            raise LaunchError(f"explain_wait = {text!r}: {rule}")
        return cls(named[1] or "", int(named[2]))

    def has(self, at: Instruction) -> bool:
        """Whether an instruction comes from this line."""
        if not self.file:
            return at.line == self.line
        source = at.source
        return (
            source is not None
            and source.line == self.line
            and f"/{source.file}".endswith(f"/{self.file}")
        )


@dataclass(frozen=True)
class Told:
    """What a wait makes known to the threads that pass it.

    Attributes:
        wait: the instruction, and its line.
        waiters: the threads that wait, in words.
        barriers: the barriers that they wait for, in words.
        times: how often a warp passed.
        writes: the instructions whose writes are visible after the wait and were not before, and
            the threads that executed them.
        arrivals: the arrivals of which the wait tells that all that their threads did before is
            over.
    """

    wait: str
    waiters: Sequence[str]
    barriers: Sequence[str]
    times: int
    writes: Sequence[str]
    arrivals: Sequence[str]

    def lines(self) -> Iterator[str]:
        """The explanation in words, a line each."""
        yield f"{self.wait}: passed {self.times} times by {', '.join(self.waiters)}"
        yield f"  waits for {', '.join(self.barriers)}"
        for title, those in (
            ("it makes visible", self.writes),
            ("it comes after all that is before", self.arrivals),
        ):
            for each in those:
                yield f"  {title}: {each}"


@dataclass(frozen=True)
class Without:
    """What becomes of the kernel without a wait or a fence.

    Attributes:
        what: the instruction that is left out, and its line.
        outcome: "needed": the kernel is broken without it; "redundant": it is proven without it,
            and computes the same; or "not decided".
        ends: how the run without it ends.
        here: whether it is at the line that was asked for.
    """

    what: str
    outcome: str
    ends: str
    here: bool = False

    def __str__(self) -> str:
        return f"{self.outcome}: {self.what}" + (f": without it {self.ends}" if self.ends else "")


@dataclass(frozen=True)
class Explanation:
    """What the waits at a line tell, and which waits and fences of the kernel are redundant.

    Attributes:
        told: for each wait at the line, what it makes known.
        without: for each executed wait and fence of the kernel, what becomes of it without that
            one.
        left: the number of waits and fences that were not tried.
    """

    told: Sequence[Told]
    without: Sequence[Without]
    left: int = 0

    def lines(self) -> Iterator[str]:
        """In words: first the line that was asked for, then what is redundant, or not decided."""
        for each in self.told:
            yield from each.lines()
        for one in self.without:
            if one.here or one.outcome != NEEDED:
                yield f"  {one}"
        needed = sum(one.outcome == NEEDED for one in self.without)
        yield f"  of {len(self.without)} waits and fences {needed} are needed, each for itself"
        if self.left:
            yield f"  {self.left} more were not tried"

    def as_object(self) -> dict[str, Any]:
        """The explanation as an object for JSON."""
        return asdict(self)
