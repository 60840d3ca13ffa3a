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
        file: by its name, or the end of its path; "" for the PTX.
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
        """Whether an instruction is there."""
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
    """What a wait tells.

    Attributes:
        wait: the instruction, and its line.
        waiters: who waits, in words.
        barriers: for what, in words.
        times: how often a warp passed.
        writes: what is visible after it, and was not before: which instructions, of whom.
        arrivals: before which arrivals all that their threads did is over then.
    """

    wait: str
    waiters: Sequence[str]
    barriers: Sequence[str]
    times: int
    writes: Sequence[str]
    arrivals: Sequence[str]

    def lines(self) -> Iterator[str]:
        """In words."""
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
    """The kernel without a wait or a fence.

    Attributes:
        what: the instruction, and its line.
        outcome: "needed": the kernel is broken without it; "redundant": it is proven without it,
            and computes the same; or "not decided".
        ends: what it ends in.
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
        told: of each wait at the line.
        without: of each wait and fence of the kernel that ran, each left out alone.
        left: how many were not tried.
    """

    told: Sequence[Told]
    without: Sequence[Without]
    left: int = 0

    def lines(self) -> Iterator[str]:
        """In words: the line that was asked for, then what is redundant, or not decided."""
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
        """As JSON's types."""
        return asdict(self)
