"""What is done once the program imports a module, or never: `when_imported`.

So are programs served that do not know of this project: passes are installed in them
(TRITON_EXT_PASSES), and their kernels run on an emulated GPU (TRITON_EXT_EMULATE). Python runs
`begin` when it starts, if one of the variables is set (by ``triton_ext_startup.pth``, which is
installed beside the package), and so does ``import triton_ext``.
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

from triton_ext.variables import EMULATE, PASSES

_loading: set[str] = set()
"""The modules that somebody waits for, and that are being executed now."""


class _WhenImported(importlib.abc.MetaPathFinder):
    """Finds what the other finders find; sees to it that something is done behind an import.

    Programs look a module up without importing it (``importlib.util.find_spec``), import it again,
    or in several threads: so this one stays, and keeps nothing of what it was asked.
    """

    def __init__(
        self, module: str, then: Callable[[], object], first: Callable[[], object]
    ) -> None:
        self.module, self.then, self.first = module, then, first
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
        self.first()
        _loading.add(self.module)
        try:
            load(module)
        finally:
            _loading.discard(self.module)
        _do(self.then)


def _do(then: Callable[[], object]) -> None:
    try:
        then()
    except RuntimeError as error:
        # Another thread is importing what this one would, and waits for this one's import. It will
        # do the rest itself.
        if type(error).__name__ != "_DeadlockError":
            raise


def _nothing() -> None:
    """What is done by default before a module is executed."""


def when_imported(
    module: str, then: Callable[[], object], *, first: Callable[[], object] = _nothing
) -> None:
    """Call `then` now, if the module is imported, and whenever it is, however often one asks.

    Args:
        first: is called before the module is executed; what it raises ends the import, and leaves
            the module as if nobody had imported it.
    """
    registered = (each for each in sys.meta_path if isinstance(each, _WhenImported))
    if (module, then) not in ((each.module, each.then) for each in registered):
        sys.meta_path.insert(0, _WhenImported(module, then, first))
    if module in sys.modules:
        _do(first)
        _do(then)


def _install() -> None:
    hook = importlib.import_module("triton_ext.passes.frame.hook")
    if hasattr(hook, "install"):
        hook.install()


def _emulation() -> ModuleType:
    return importlib.import_module("triton_ext.emulator.host.environment")


def _read_emulation() -> None:
    """Raises LayoutError if the variable says no GPU: before torch is imported, which can only be
    tried once."""
    _emulation().from_environment()


def _emulate() -> None:
    if not _loading:  # else one of torch and Triton imports the other one, and is not complete
        _emulation().begin()


def begin() -> None:
    """Do what the environment asks for, now or once torch or Triton is imported.

    TRITON_EXT_PASSES: install the passes. TRITON_EXT_EMULATE: enter the emulated GPU.
    """
    if os.environ.get(PASSES):
        when_imported("triton", _install)
    if os.environ.get(EMULATE):
        for module in ("torch", "triton"):
            when_imported(module, _emulate, first=_read_emulation)
