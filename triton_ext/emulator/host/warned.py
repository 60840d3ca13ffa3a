"""Says what was undefined in a launch, and on whose word it was run all the same."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable

from triton_ext.emulator.errors import UndefinedBehaviour
from triton_ext.emulator.state.leniencies import Taken
from triton_ext.tracebacks import is_own_module

_SHOWN: dict[str | tuple[str, type[Warning], int], int] = {}
"""Where `warnings` remembers what it has shown: the same text of one line is shown once."""


def warn_of(taken: Iterable[Taken]) -> None:
    """Warn of each: at the kernel's line, or else at the program's that launched it."""
    for each in taken:
        location = each.finding().location
        if location is None:
            frame = sys._getframe(1)
            while frame.f_back is not None and not is_own_module(str(frame.f_globals["__name__"])):
                frame = frame.f_back
            file, line = frame.f_code.co_filename, frame.f_lineno
        else:
            file, line = location.file, location.line
        warnings.warn_explicit(str(each), UndefinedBehaviour, file, line, registry=_SHOWN)
