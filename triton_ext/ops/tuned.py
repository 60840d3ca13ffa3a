"""Configurations that were measured to be the fastest, kept in a file of the user's cache folder.

`triton_ext.autotune` writes them. A product that has one uses it in place of the cost model's
choice; the file is read when the first product is prepared, and never waited for.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import tempfile
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from triton_ext._version import __version__
from triton_ext.errors import LayoutError
from triton_ext.kernels.config import ELEMENT_TYPES, Major, MatmulConfig

FOLDER_VARIABLE = "TRITON_EXT_CACHE_DIR"
"""The environment variable with the folder, in place of ``~/.cache/triton_ext``."""
FORMAT = 1
"""The format of the file; files of another one are ignored."""

_lock = threading.Lock()
_known: dict[str, MatmulConfig] | None = None


@dataclass(frozen=True)
class Problem:
    """What a configuration is chosen, or was measured, for.

    Attributes:
        gpu: the name of the GPU, as ``torch.cuda.get_device_name``; None if it is emulated.
        processors: how many SMs it has.
        element_type, a_major, b_major: as in `MatmulConfig`.
        out_type: the type of C, as in `MatmulConfig`, but never None.
        m, n, k, batch: sizes.
    """

    gpu: str | None
    processors: int
    element_type: str
    a_major: Major
    b_major: Major
    out_type: str
    m: int
    n: int
    k: int
    batch: int = 1

    @property
    def asked(self) -> tuple[str, Major, Major, int, int, int, int, str | None, int]:
        """What `choose_config` asks for after the architecture."""
        default = self.element_type in ELEMENT_TYPES and self.out_type == self.element_type
        return (
            self.element_type,
            self.a_major,
            self.b_major,
            self.m,
            self.n,
            self.k,
            self.processors,
            None if default else self.out_type,
            self.batch,
        )

    @property
    def key(self) -> str:
        """Its name in the file; other versions of this project have other kernels."""
        sizes = "x".join(map(str, (self.batch, self.m, self.n, self.k)))
        kind = f"{self.element_type} {self.a_major} {self.b_major} {self.out_type}"
        return f"{__version__} | {self.gpu}, {self.processors} SMs | {kind} | {sizes}"


def path() -> Path:
    """The file."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is None:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = str(Path(caches) / "triton_ext")
    return Path(folder) / "tuned.json"


def lookup(problem: Problem) -> MatmulConfig | None:
    """The configuration that was measured to be the fastest for a problem, if there is one."""
    global _known
    if problem.gpu is None:
        return None
    known = _known
    if known is None:
        with _lock:
            known = _known = _configurations(_read(path()))
    return known.get(problem.key)


def store(problem: Problem, config: MatmulConfig, seconds: float) -> Path:
    """Keep a configuration for this process and later ones; returns the file.

    The file is replaced at once, and writers wait for each other, so none loses what another wrote.

    Raises:
        OSError: the file cannot be written; the configuration is known to this process all the
            same.
    """
    global _known
    lookup(problem)
    with _lock:
        _known = {**(_known or {}), problem.key: config}
        file = path()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with open(file.with_suffix(".lock"), "w") as other_writers:
                fcntl.flock(other_writers, fcntl.LOCK_EX)  # until it is closed
                entries = _read(file)
                entries[problem.key] = {"config": _described(config), "seconds": seconds}
                _replace(file, {"format": FORMAT, "tuned": entries})
        except OSError as error:
            raise OSError(
                f"cannot write tuned configurations to {file}: {error}; set {FOLDER_VARIABLE} to a"
                " folder that can be written to"
            ) from error
    return file


def forget() -> None:
    """Read the file again when it is next needed."""
    global _known
    with _lock:
        _known = None


def _replace(file: Path, content: Mapping[str, Any]) -> None:
    """Write a file under another name, and give it its own."""
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=file.name, suffix=".new")
    try:
        with open(descriptor, "w") as new:
            json.dump(content, new, indent=1)
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _read(file: Path) -> dict[str, Any]:
    """The entries of the file; none, and a warning, if it is damaged."""
    try:
        content = json.loads(file.read_bytes())
        if content["format"] == FORMAT:
            entries = content["tuned"]
            if isinstance(entries, dict):
                return entries
        reason = f"its format is not {FORMAT}"
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
    _warn(file, reason)
    return {}


def _configurations(entries: Mapping[str, Any]) -> dict[str, MatmulConfig]:
    found = {}
    prefix = f"{__version__} | "
    for key, entry in entries.items():
        if key.startswith(prefix):
            try:
                found[key] = MatmulConfig(**entry["config"])
            except (LayoutError, KeyError, TypeError) as error:
                _warn(path(), f"{key}: {error}")
    return found


def _warn(file: Path, reason: str) -> None:
    warnings.warn(f"{file} is ignored: {reason}", RuntimeWarning, stacklevel=2)


@functools.cache
def _defaults() -> dict[str, Any]:
    return {field.name: field.default for field in fields(MatmulConfig)}


def _described(config: MatmulConfig) -> dict[str, Any]:
    """The fields that do not have their defaults."""
    values = {name: getattr(config, name) for name in _defaults()}
    return {name: value for name, value in values.items() if value != _defaults()[name]}
