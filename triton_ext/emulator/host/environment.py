"""The emulated GPU of the environment variable TRITON_EXT_EMULATE.

``TRITON_EXT_EMULATE=sm_100 python script.py`` is to a program, and to all that it starts, what
``triton-ext run --emulate sm_100 script.py`` is to a script. The GPU is entered when torch or
Triton is imported (`triton_ext.startup`), and left when the process ends.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import dataclasses
import os
import re
import threading
from dataclasses import dataclass
from typing import Any

from triton_ext.emulator.errors import LaunchError
from triton_ext.emulator.schedule.limits import MAX_STEPS, Limits
from triton_ext.emulator.schedule.schedule import Schedule
from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import KNOWN, target_number
from triton_ext.tracebacks import show_faults, show_in_a_line
from triton_ext.variables import EMULATE

_NOTATION = re.compile(r"\s*(?P<arch>[\w.]+)\s*(?:\{(?P<options>[^{}]*)\})?\s*")


@dataclass(frozen=True)
class Emulation:
    """An emulated GPU, as the environment names it; the attributes are those of `emulate`."""

    arch: int
    schedule: str = "eager"
    seed: int = 0
    max_steps: int = MAX_STEPS
    timeout: float | None = None
    check_layouts: bool = True
    check_races: bool = True
    check_empty: bool = False
    check_views: bool = True
    strict: bool = False
    check_unread: bool = False

    @classmethod
    def parse(cls, text: str) -> Emulation:
        """Read ``sm_100`` or ``sm_100{schedule=random seed=7}``: MLIR's notation, as of passes.
        Raises LayoutError: another notation, architecture or option, or an illegal value."""
        match = _NOTATION.fullmatch(text)
        if match is None:
            rule = "must be a GPU, perhaps with options: sm_100{schedule=random seed=7}"
            raise LayoutError(EMULATE, text, rule)
        try:
            arch = target_number(match["arch"])
        except LayoutError:
            raise LayoutError(EMULATE, text, f"must name one of {KNOWN}") from None
        fields = {each.name: each for each in dataclasses.fields(cls) if each.name != "arch"}
        options: dict[str, Any] = {}
        for pair in (match["options"] or "").split():
            name, _, value = pair.partition("=")
            name = name.replace("-", "_")
            if name not in fields:
                raise LayoutError(EMULATE, pair, f"must be NAME=VALUE, NAME of {', '.join(fields)}")
            options[name] = _value(value, fields[name].default, pair)
        found = cls(arch, **options)
        try:
            Schedule(found.schedule, found.seed)
            Limits(found.max_steps, found.timeout)
        except LaunchError as error:
            raise LayoutError(EMULATE, text, error.message) from None
        return found


def _value(text: str, default: Any, pair: str) -> Any:
    """The value of an option, of its default's type; of None, a number."""
    if isinstance(default, str):
        return text
    try:
        value = ast.literal_eval(text.capitalize())
    except (ValueError, SyntaxError):
        value = None
    legal = (int, float) if default is None else type(default)
    if not isinstance(value, legal) or isinstance(value, bool) != isinstance(default, bool):
        kind = {bool: "true or false", int: "an integer"}.get(type(default), "a number")
        raise LayoutError(EMULATE, pair, f"must be {kind}")
    return value


def from_environment() -> Emulation:
    """What the environment variable says, which is set.

    Raises:
        LayoutError: it does not name an emulated GPU. Where nothing catches it, the program ends as
            a command does that was given something illegal.
    """
    try:
        return Emulation.parse(os.environ[EMULATE])
    except LayoutError as error:
        show_in_a_line(error)
        raise


_begun = threading.Event()


def begin() -> None:
    """Enter the emulated GPU of the environment, until the process ends; once."""
    if _begun.is_set():  # also by what the next lines import
        return
    _begun.set()
    try:
        from triton_ext.emulator.host.emulate import emulate

        settings = from_environment()
        stack = contextlib.ExitStack()
        options = {each.name: getattr(settings, each.name) for each in dataclasses.fields(settings)}
        stack.enter_context(emulate(cuda_on_host=True, **options))
    except BaseException:
        _begun.clear()
        raise
    atexit.register(stack.close)
    show_faults()
