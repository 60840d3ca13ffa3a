"""Passes for programs that do not know of this project: TRITON_EXT_PASSES.

Python runs `begin` when it starts, if the variable is set (by ``triton_ext_passes.pth``, which the
wheel puts beside the package), and so does ``import triton_ext``. Triton itself is imported by the
program, or never: until then nothing is.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType

ENVIRONMENT = "TRITON_EXT_PASSES"


class _WhenTritonIsImported(importlib.abc.MetaPathFinder):
    """Finds nothing itself; sees to it that the passes are installed behind ``import triton``."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "triton":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Loads as another loader does, and then installs the passes."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _install()


def _install() -> None:
    from triton_ext.passes.frame.hook import install

    install()


def begin() -> None:
    """Install the passes of the environment, now or once Triton is imported."""
    if not os.environ.get(ENVIRONMENT):
        return
    if "triton" in sys.modules:
        _install()
    elif not any(isinstance(finder, _WhenTritonIsImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenTritonIsImported())
