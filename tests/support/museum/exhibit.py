"""What an exhibit is, and what happens when it is run."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from triton_ext.emulator.errors import EmulationError

SCHEDULES = ("eager", "lazy", "random")
Run = Callable[[str, str], None]
"""Runs a module under a schedule; raises the emulator's fault, or `WrongResult`."""


class WrongResult(Exception):
    """The kernel ran without a fault, and what it computed is wrong."""


@dataclass(frozen=True)
class Exhibit:
    """One bug.

    Attributes:
        title: a short sentence: what is wrong.
        sources: issues and pull requests, ``owner/repository#number``, and files,
            ``owner/repository:path``.
        hardware: what was seen on a GPU, and on which.
        bug: how it comes about, and how it was mended.
        right, wrong: the mended and the broken kernel, as PTX.
        run: runs either.
        fault: what the broken kernel ends in: a fault of the emulator, `WrongResult`, or None if
            nothing is noticed.
        says: a part of the fault's message.
        schedule: under which the message is shown; some fault comes under each.
    """

    title: str
    sources: tuple[str, ...]
    hardware: str
    bug: str
    right: str
    wrong: str
    run: Run
    fault: type[Exception] | None
    says: str = ""
    schedule: str = "eager"

    @property
    def is_of_both(self) -> bool:
        """Whether Hopper and Blackwell both have all of its instructions."""
        own = "tcgen05", "wgmma", "clusterlaunchcontrol"
        return not any(opcode in self.right + self.wrong for opcode in own)

    def message(self) -> str:
        """The first line of what the broken kernel ends in; "" if it ends well."""
        try:
            self.run(self.wrong, self.schedule)
        except EmulationError as error:
            first = str(error).splitlines()[: 2 if str(error).startswith("no thread") else 1]
            said = re.sub(r"0x[0-9a-f]{7,}", "0x...", " ".join(map(str.strip, first)))
            return f"{type(error).__name__}: {said}"
        except WrongResult as error:
            return str(error)
        return ""


def instead(text: str, *changes: tuple[str, str]) -> str:
    """`text` with each part replaced, once; it must be there."""
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


def expect(found: np.ndarray, wanted: np.ndarray) -> None:
    """Raises WrongResult, with the first element that differs."""
    if not np.array_equal(found, wanted):
        at = int(np.argwhere((found != wanted).ravel())[0, 0])
        said = f"element {at} is {found.ravel()[at]}, and must be {wanted.ravel()[at]}"
        raise WrongResult(f"no fault, and a wrong result: {said}")
