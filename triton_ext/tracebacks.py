"""Tracebacks of faults, without the frames of this project and of Triton above them.

A fault is the program's (`triton_ext.errors.Fault`); how a launch came to the emulator, or a
kernel to a pass, says nothing to who wrote the program.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from triton_ext.errors import Fault
from triton_ext.findings import SourceLocation, annotate

_HIDDEN = ("triton_ext", "triton")
"""The packages whose frames are left out."""


def is_own_module(name: str) -> bool:
    """Whether a module of that name is of the program: neither of this project nor of Triton."""
    return name.partition(".")[0] not in _HIDDEN


def _own(traceback: TracebackType | None) -> Iterator[TracebackType]:
    """The entries of the program's own frames, the outermost first."""
    while traceback is not None:
        if is_own_module(str(traceback.tb_frame.f_globals.get("__name__"))):
            yield traceback
        traceback = traceback.tb_next


def users_line(traceback: TracebackType | None) -> SourceLocation | None:
    """The innermost line of the program's own; None if there is none."""
    own = list(_own(traceback))
    return SourceLocation(own[-1].tb_frame.f_code.co_filename, own[-1].tb_lineno) if own else None


def trim(error: BaseException) -> None:
    """Leave the program's own frames alone in the traceback of an error, and of its causes.

    A traceback that has none of them stays as it is.
    """
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        todo += [one.__cause__, one.__context__]
        if own := list(_own(one.__traceback__)):
            # In place: who is about to raise it again holds a part of it.
            for entry, following in zip(own, [*own[1:], None], strict=True):
                entry.tb_next = following
            one.__traceback__ = own[0]


@contextlib.contextmanager
def trimmed() -> Iterator[None]:
    """Within it, a fault that leaves shows the program's own frames alone."""
    try:
        yield
    except Fault as error:
        trim(error)
        raise


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
