"""An exception out of somebody's pass, told once, in one message."""

from __future__ import annotations

import traceback
from pathlib import Path

_FRAME = str(Path(__file__).parent)


def raised(error: BaseException) -> str:
    """The type and message of an exception; below, the lines that it came through, but for those
    of this package and of Python's import.

    What is raised with this text is raised ``from None``: a traceback would say it all again.
    """
    told = traceback.TracebackException.from_exception(error)
    told.stack[:] = [
        each for each in told.stack if not each.filename.startswith((_FRAME, "<frozen"))
    ]
    lines = [*told.format_exception_only(), *told.stack.format()]
    return "".join(lines).rstrip()
