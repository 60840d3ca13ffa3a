"""What is done once the program imports a module, or never: `when_imported`.

So are passes installed in programs that do not know of this project (TRITON_EXT_PASSES): Python
runs `begin` when it starts, if the variable is set (by ``triton_ext_passes.pth``, which the wheel
puts beside the package), and so does ``import triton_ext``.
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


class _WhenImported(importlib.abc.MetaPathFinder):
    """Finds what the other finders find; sees to it that something is done behind an import.

    Programs look a module up without importing it (``importlib.util.find_spec``), import it again,
    or in several threads: so this one stays, and keeps nothing of what it was asked.
    """

    def __init__(self, module: str, then: Callable[[], object]) -> None:
        self.module, self.then = module, then
        self._asking = threading.local()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.module or getattr(self._asking, "now", False):
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
            load = functools.partial(self._load, spec.loader.exec_module)
            spec.loader.exec_module = load  # type: ignore[method-assign]
        return spec

    def _load(self, load: Callable[[ModuleType], None], module: ModuleType) -> None:
        load(module)
        _do(self.then)


def _do(then: Callable[[], object]) -> None:
    try:
        then()
    except RuntimeError as error:
        # Another thread is importing what this one would, and waits for this one's import. It will
        # do the rest itself.
        if type(error).__name__ != "_DeadlockError":
            raise


def when_imported(module: str, then: Callable[[], object]) -> None:
    """Call `then` now, if the module is imported, and whenever it is, however often one asks."""
    asked = (each for each in sys.meta_path if isinstance(each, _WhenImported))
    if (module, then) not in ((each.module, each.then) for each in asked):
        sys.meta_path.insert(0, _WhenImported(module, then))
    if module in sys.modules:
        _do(then)


def _install() -> None:
    hook = importlib.import_module("triton_ext.passes.frame.hook")
    if hasattr(hook, "install"):
        hook.install()


def begin() -> None:
    """Install the passes of the environment, now or once Triton is imported."""
    if not os.environ.get(ENVIRONMENT):
        return
    when_imported("triton", _install)
