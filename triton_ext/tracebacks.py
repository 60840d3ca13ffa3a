"""Tracebacks of faults, without the frames of this project and of Triton above them.

A fault is the program's (`triton_ext.errors.Fault`); how a launch came to the emulator, or a
kernel to a pass, says nothing to who wrote the program.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from triton_ext.errors import Fault
from triton_ext.findings import Place, annotate

_HIDDEN = ("triton_ext", "triton")
"""The packages whose frames are left out."""


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _users(traceback: TracebackType | None) -> list[TracebackType]:
    """The entries of the program's own frames, the outermost first."""
    return [
        entry
        for entry in _entries(traceback)
        if str(entry.tb_frame.f_globals.get("__name__")).partition(".")[0] not in _HIDDEN
    ]


def users_traceback(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback with the program's own frames alone; as it is, if there is none of them."""
    shown = None
    for entry in reversed(_users(traceback)):
        shown = TracebackType(shown, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return shown or traceback


def users_line(traceback: TracebackType | None) -> Place | None:
    """The innermost line of the program's own; None if there is none."""
    own = _users(traceback)
    return Place(own[-1].tb_frame.f_code.co_filename, own[-1].tb_lineno) if own else None


def trim(error: BaseException) -> None:
    """Leave the program's own frames alone in the traceback of an error, and of its causes."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = users_traceback(one.__traceback__)
            todo += [one.__cause__, one.__context__]


def _shown(error: BaseException | None, show: Callable[[], Any]) -> None:
    """Show an error; a fault with the program's own frames alone, and on GitHub at its line."""
    if isinstance(error, Fault):
        trim(error)
        show()
        annotate(error.findings())
    else:
        show()


@functools.cache
def show_faults() -> None:
    """From now on, a fault that ends the program, or a thread, is shown with its own frames alone.

    In a job of GitHub Actions it becomes an annotation, too. The hooks that were there are called.
    """
    previous, of_threads = sys.excepthook, threading.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        _shown(error, lambda: previous(kind, error, error.__traceback__ or traceback))

    def thread_hook(given: threading.ExceptHookArgs) -> None:
        _shown(given.exc_value, lambda: of_threads(_with_traceback(given)))

    sys.excepthook, threading.excepthook = hook, thread_hook


def show_in_a_line(error: Exception) -> None:
    """If the error ends the program: a line on stderr and exit status 2, as with the commands."""
    previous = sys.excepthook

    def hook(
        kind: type[BaseException], found: BaseException, traceback: TracebackType | None
    ) -> None:
        if found is not error:
            previous(kind, found, traceback)
            return
        print(f"triton-ext: {error}", file=sys.stderr)
        raise SystemExit(2)

    sys.excepthook = hook


def _with_traceback(given: threading.ExceptHookArgs) -> threading.ExceptHookArgs:
    """The same with the traceback that the error has now."""
    error = given.exc_value
    traceback = given.exc_traceback if error is None else error.__traceback__
    return threading.ExceptHookArgs((given.exc_type, error, traceback, given.thread))
