"""Modules of a package without the package: what its ``__init__`` imports need not be installed.

Kernels are published in packages that import half a serving system when they are imported. Here a
package is its folder alone, and a module that is not installed is a stand-in, whose attributes are
stand-ins; the modules with the kernels are executed as they are.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar


class _Base:
    """What a class that is not there leaves to those that inherit from it."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Whatever it would do."""


_PREDICATE = re.compile(r"^_?(is|has|use|support|supports|get_bool)_")
_VALUES: dict[str, Any] = {}


class StandIn(types.ModuleType):
    """A module, class, function, decorator or value that is not there.

    What is called like a predicate says no.
    """

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return "999"
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        return _VALUES[full] if full in _VALUES else StandIn(full)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and isinstance(args[0], types.FunctionType):
            return args[0]  # as a decorator
        if _PREDICATE.match(self.__name__.rpartition(".")[2]):
            return False
        return StandIn(f"{self.__name__}()")

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (_Base,)

    def __bool__(self) -> bool:
        return False

    def __or__(self, other: object) -> Any:
        return self

    __ror__ = __or__

    def __lt__(self, other: object) -> bool:
        return False

    __gt__ = __lt__

    def __ge__(self, other: object) -> bool:
        return True

    __le__ = __ge__

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages of a folder as folders, and what is nowhere as stand-ins."""

    def __init__(self, folder: Path, real: Sequence[str]) -> None:
        self.folder, self.real = folder, real
        self.roots = {name.partition(".")[0] for name in real}
        self.missing: list[str] = []

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        inside = self.folder.joinpath(*name.split("."))
        if name.partition(".")[0] not in self.roots:
            return None
        if not any(f"{each}.".startswith(f"{name}.") or f"{name}.".startswith(f"{each}.")
                   for each in self.real):  # fmt: skip
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        if inside.is_dir():
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(inside)]
            return spec
        return None

    def create_module(self, spec: Any) -> Any:
        self.missing.append(spec.name)
        return StandIn(spec.name)

    def exec_module(self, module: Any) -> None:
        """There is nothing to execute."""


def _importer() -> str:
    """The name of the module that imports."""
    frame = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith(("importlib", __name__)):
            return name
        frame = frame.f_back  # type: ignore[assignment]
    return ""


class _Last(importlib.abc.MetaPathFinder):
    def __init__(self, finder: _Finder) -> None:
        self.finder = finder

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if _importer().partition(".")[0] not in self.finder.roots:
            return None
        within = sys.modules.get(name.rpartition(".")[0])
        if within is not None and not isinstance(within, StandIn):
            return None  # an installed package lacks it, which the importer may expect
        return importlib.machinery.ModuleSpec(name, self.finder, is_package=True)


@contextmanager
def bare(
    folder: Path, real: Sequence[str], values: Mapping[str, Any] | None = None
) -> Iterator[list[str]]:
    """Within it, packages of a folder are bare, and of them the modules below `real` are there.

    `values` are what stand-ins have at these names. Yields the names that stand in.
    """
    finder = _Finder(folder, real)
    _VALUES.update(values or {})
    last = _Last(finder)
    sys.path.insert(0, str(folder))
    sys.meta_path.insert(0, finder)
    sys.meta_path.append(last)
    try:
        yield finder.missing
    finally:
        sys.meta_path.remove(finder)
        sys.meta_path.remove(last)
        sys.path.remove(str(folder))
