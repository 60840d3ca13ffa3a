"""Finding passes: by name, in a file, in a module, among what other distributions have installed.

What stands for a pass in a pipeline is one of

- the name of a pass of this project, or of one that was registered (`compiler_pass`);
- the name of an entry point in the group ``triton_ext.passes``, which a distribution declares for
  a pass of its own;
- ``folder/checks.py::name``: a pass of a Python file;
- ``package.module:name``: a pass of a module that Python can import.

Behind ``::`` and ``:`` stands the name of the pass, or that of its function.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
import threading
import warnings
from collections import defaultdict
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

from triton_ext.errors import LayoutError, PassError
from triton_ext.passes.frame.base import BUILT_IN, CompilerPass, PassWarning, registered
from triton_ext.passes.frame.raised import raised

GROUP = "triton_ext.passes"
"""The group of entry points in which distributions declare passes."""
_REFERENCE = re.compile(
    r"[A-Za-z][\w-]*|(?P<file>.+\.py)::[\w-]+|(?P<module>[A-Za-z_][\w.]*):[\w-]+"
)
_loading = threading.RLock()


def get_pass(reference: str) -> CompilerPass:
    """The pass that is named so: see this module.

    Raises:
        LayoutError: there is no such pass, file or module.
        PassError: what should have it cannot be imported.
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise LayoutError(
            "passes", reference,
            "must be names, as in 'report-layouts{format=json},lint-shared', or a pass of a file or"
            " a module, as in checks.py::name and package.module:name",
        )  # fmt: skip
    if match["file"]:
        return _member(reference, _file(reference, Path(match["file"])))
    if match["module"]:
        return _member(reference, _module(reference, match["module"]))
    return _named(reference)


def all_passes() -> list[CompilerPass]:
    """Every pass that has a name: the project's own, those that were registered, and those of other
    distributions, of which one that cannot be loaded is left out with a `PassWarning`.
    """
    found = [_named(name) for name in {**BUILT_IN, **registered}]
    for name in _entry_points():
        if name in BUILT_IN or name in registered:
            continue
        try:
            found.append(_named(name))
        except PassError as error:
            warnings.warn(str(error), PassWarning, stacklevel=2)
    return found


def _named(name: str) -> CompilerPass:
    if name not in registered and name in BUILT_IN:
        _module(name, f"{GROUP}.{BUILT_IN[name]}")
    if name in registered:
        return registered[name]
    declared = _entry_points()
    if name not in declared:
        known = ", ".join(sorted({*registered, *BUILT_IN, *declared}))
        raise LayoutError("pass", name, f"no such pass; there are {known}")
    found = [(each.value, each.dist.name if each.dist else "?") for each in declared[name]]
    if len(found) > 1:
        choices = " and ".join(f"{value} of {owner}" for value, owner in sorted(found))
        raise PassError(f"the pass {name} is ambiguous: there are {choices}; name one so")
    ((value, owner),) = found
    try:
        loaded = declared[name][0].load()
    except Exception as error:
        raise PassError(f"the pass {name} of {owner} cannot be loaded: {raised(error)}") from None
    if not isinstance(loaded, CompilerPass) or loaded.name != name:
        raise PassError(f"the entry point {name} of {owner} must be a pass of that name: {value}")
    return registered.setdefault(name, loaded)


def _entry_points() -> dict[str, list[EntryPoint]]:
    found: dict[str, list[EntryPoint]] = defaultdict(list)
    for each in entry_points(group=GROUP):
        found[each.name].append(each)
    return found


def _module(reference: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{name}.".startswith(f"{missing}."):
            rule = f"Python finds no module {missing}: install it, or say file.py::name"
            raise LayoutError("pass", reference, rule) from None
        raise PassError(f"the pass {reference} cannot be loaded: {raised(error)}") from None


def _file(reference: str, path: Path) -> ModuleType:
    """The module that a file makes; a file is executed once."""
    if not path.is_file():
        raise LayoutError("pass", reference, f"there is no file {path}")
    path = path.resolve()
    name = f"{path.stem}_{hashlib.sha256(bytes(path)).hexdigest()[:12]}"
    with _loading:
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            del sys.modules[name]
            if not isinstance(error, Exception):
                raise
            raise PassError(f"{path} cannot be loaded: {raised(error)}") from None
        return module


def _member(reference: str, module: ModuleType) -> CompilerPass:
    name = reference.rpartition(":")[2]
    found = getattr(module, name, None)
    if isinstance(found, CompilerPass):
        return found
    own = {each.name: each for each in vars(module).values() if isinstance(each, CompilerPass)}
    if name not in own:
        rule = f"no such pass; there are {', '.join(sorted(own))}" if own else "it has no pass"
        raise LayoutError("pass", reference, rule)
    return own[name]
