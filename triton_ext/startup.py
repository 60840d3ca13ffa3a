"""Passes for programs that do not know of this project: TRITON_EXT_PASSES.

Python runs `begin` when it starts, if the variable is set (by ``triton_ext_passes.pth``, which the
wheel puts beside the package), and so does ``import triton_ext``. Triton itself is imported by the
program, or never: until then nothing is.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType

ENVIRONMENT = "TRITON_EXT_PASSES"


class _WhenTritonIsImported(importlib.abc.MetaPathFinder):
    """Finds what the other finders find; sees to it that passes are installed behind an import.

    Programs look Triton up without importing it (``importlib.util.find_spec``), import it again,
    or in several threads: so this one stays, and keeps nothing of what it was asked.
    """

    def __init__(self) -> None:
        self._asking = threading.local()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "triton" or getattr(self._asking, "now", False):
            return None
        self._asking.now = True  # another finder of this kind may ask all of them, too
        try:
            others = [e for e in sys.meta_path if e is not self and hasattr(e, "find_spec")]
            specs = (each.find_spec(name, path, target) for each in others)
            spec = next((each for each in specs if each is not None), None)
        finally:
            self._asking.now = False
        if spec is not None and spec.loader is not None:
            # The loader stays what it is: importlib.resources and inspect ask it for much more.
            load = functools.partial(_load, spec.loader.exec_module)
            spec.loader.exec_module = load  # type: ignore[method-assign]
        return spec


def _load(load: Callable[[ModuleType], None], module: ModuleType) -> None:
    load(module)
    _install()


def _install() -> None:
    try:
        hook = importlib.import_module("triton_ext.passes.frame.hook")
    except RuntimeError as error:
        # Another thread is importing it, and waits for this one's import of Triton. It will install
        # them itself.
        if type(error).__name__ == "_DeadlockError":
            return
        raise
    if hasattr(hook, "install"):
        hook.install()


def begin() -> None:
    """Install the passes of the environment, now or once Triton is imported."""
    if not os.environ.get(ENVIRONMENT):
        return
    if not any(isinstance(finder, _WhenTritonIsImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenTritonIsImported())
    if "triton" in sys.modules:
        _install()
