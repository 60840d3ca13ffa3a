"""Tracebacks of faults: the program's own lines alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType

from triton_ext.emulator.errors import EmulationError

_HIDDEN = ("triton_ext.", "triton.")
"""The packages whose frames say nothing to who wrote a kernel."""


def _is_hidden(entry: TracebackType) -> bool:
    return str(entry.tb_frame.f_globals.get("__name__")).startswith(_HIDDEN)


def hide_frames(error: BaseException) -> None:
    """Leave our frames, and Triton's, out of the traceback of a fault and of its causes.

    A traceback that has no others stays as it is. Nothing is done to errors that are no faults.
    """
    todo: list[BaseException | None] = [error]
    seen: set[int] = set()
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        todo += [one.__cause__, one.__context__]
        first = one.__traceback__
        while first is not None and _is_hidden(first):
            first = first.tb_next
        if first is None or not isinstance(one, EmulationError):
            continue
        # In place: who is about to raise it again holds a part of it.
        entry = first
        while entry.tb_next is not None:
            if _is_hidden(entry.tb_next):
                entry.tb_next = entry.tb_next.tb_next
            else:
                entry = entry.tb_next
        one.__traceback__ = first


@contextlib.contextmanager
def hidden_frames() -> Iterator[None]:
    """Within it, a fault that leaves shows the program's own lines alone."""
    try:
        yield
    except EmulationError as error:
        hide_frames(error)
        raise
