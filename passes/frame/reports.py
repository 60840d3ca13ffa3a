"""Where the reports and warnings of passes go."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from triton_ext.errors import PassError
from triton_ext.passes.frame.base import Diagnostic, PassWarning
from triton_ext.passes.frame.pipeline import PassResult

_begun: set[Path] = set()
_lock = threading.Lock()
_streams: list[TextIO] = []
"""Where reports go instead of stdout; the last counts."""


@contextlib.contextmanager
def reports_on(stream: TextIO) -> Iterator[None]:
    """Within it, reports whose ``output`` is ``-`` go to a stream instead of stdout."""
    _streams.append(stream)
    try:
        yield
    finally:
        _streams.pop()


def warn(diagnostic: Diagnostic) -> None:
    """A Python warning at the kernel's source line, so that filters and ``-W`` apply."""
    text = diagnostic.message + (f" (help: {diagnostic.help})" if diagnostic.help else "")
    location = diagnostic.location
    if location is None:
        warnings.warn(text, PassWarning, stacklevel=2)
    else:
        warnings.warn_explicit(text, PassWarning, location.file, location.line)


def present(result: PassResult) -> None:
    """Show a result: warnings as such, remarks on stderr, the report where its options say."""
    for diagnostic in result.diagnostics:
        if diagnostic.severity == "remark":
            print(diagnostic, file=sys.stderr)
        else:
            warn(diagnostic)
    if result.report is None:
        return
    output = getattr(result.compiler_pass.options, "output", "-")
    if output == "none":
        return
    text = result.report_text() + "\n"
    if output == "-":
        print(text, end="", flush=True, file=_streams[-1] if _streams else sys.stdout)
        return
    path = Path(output.replace("{kernel}", result.kernel)).absolute()
    with _lock:
        mode = "a" if path in _begun else "w"
        try:
            with path.open(mode, encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            name = result.compiler_pass.name
            raise PassError(f"{name}.output = {output!r}: {error.strerror}") from None
        _begun.add(path)
