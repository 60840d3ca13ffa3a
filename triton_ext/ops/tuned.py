"""Configurations that were measured to be the fastest, kept in a file of the user's cache folder.

`triton_ext.autotune` writes them. A product that has one uses it in place of the cost model's
choice; the file is read when the first product is prepared, and never waited for.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import tempfile
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from triton_ext._version import __version__
from triton_ext.errors import LayoutError
from triton_ext.kernels.choice.gpus import model_of
from triton_ext.kernels.choice.problem import Problem as Size
from triton_ext.kernels.element_types import ELEMENT_TYPES, Major
from triton_ext.kernels.epilogue import NO_EPILOGUE
from triton_ext.kernels.product import ProductSpec
from triton_ext.kernels.spec import KernelSpec, read_spec
from triton_ext.reading import read_file

FOLDER_VARIABLE = "TRITON_EXT_CACHE_DIR"
"""The environment variable with the folder, in place of ``~/.cache/triton_ext``."""
FORMAT = 1
"""The format of the file; files of another one are ignored, and kept."""
MAX_BYTES = 1 << 24
"""A larger file is taken for damaged: an entry has about 300 bytes."""


class Tuned(NamedTuple):
    """What was measured of a problem.

    Attributes:
        config: the fastest kernel.
        seconds: of a launch of it.
        torch_seconds: of torch's own product; None if that was not measured.
    """

    config: KernelSpec
    seconds: float
    torch_seconds: float | None = None

    @property
    def torch_is_faster(self) -> bool:
        """Whether it is better left to torch."""
        return self.torch_seconds is not None and self.seconds > self.torch_seconds


_lock = threading.Lock()
_known: dict[str, Tuned] | None = None


class _Unreadable(Exception):
    """A file of entries that is damaged, or of another format."""

    def __init__(self, reason: str, damaged: bool = True) -> None:
        super().__init__(reason)
        self.damaged = damaged


@dataclass(frozen=True)
class Problem:
    """What a configuration is chosen, or was measured, for.

    Attributes:
        gpu: the name of the GPU, as ``torch.cuda.get_device_name``; None if it is emulated.
        processors: how many SMs it has.
        element_type, a_major, b_major: as in `ProductSpec`.
        out_type: the type of C, as in `ProductSpec`, but never None.
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
    def product(self) -> ProductSpec:
        """What is multiplied; one product of a batch."""
        default = self.element_type in ELEMENT_TYPES and self.out_type == self.element_type
        out_type = None if default else self.out_type
        return ProductSpec(self.element_type, self.a_major, self.b_major, out_type)

    @property
    def size(self) -> Size:
        """What a kernel is chosen by, besides the product."""
        return Size(self.m, self.n, self.k, self.processors, self.batch, model_of(self.gpu))

    @property
    def key(self) -> str:
        """Its name in the file; other versions of this project have other kernels."""
        sizes = "x".join(map(str, (self.batch, self.m, self.n, self.k)))
        kind = f"{self.element_type} {self.a_major} {self.b_major} {self.out_type}"
        return f"{__version__} | {self.gpu}, {self.processors} SMs | {kind} | {sizes}"

    def check(self, config: KernelSpec, arch: int) -> None:
        """Raise LayoutError unless a kernel makes this product on `arch`, and no more."""
        product = config.product
        expected = (arch, self.element_type, self.a_major, self.b_major)
        if (config.arch, product.element_type, product.a_major, product.b_major) != expected:
            rule = f"(arch, type, a_major, b_major) must be {expected}"
            raise LayoutError("config", config, rule)
        alone = config.epilogue == NO_EPILOGUE and not product.fp32_accumulation
        if product.c_type != self.out_type or not alone:
            rule = f"must be for an output in {self.out_type}, and for a product alone"
            raise LayoutError("config", config, rule)
        if product.batched != (self.batch > 1):
            raise LayoutError("config.batched", product.batched, f"must be {self.batch > 1} here")


def path() -> Path:
    """The file. Raises OSError: no folder is named, and the user has no home."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is None:
        try:
            caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        except RuntimeError as error:
            raise OSError(str(error)) from None
        folder = str(Path(caches) / "triton_ext")
    return Path(folder) / "tuned.json"


def lookup(problem: Problem, arch: int = 90) -> Tuned | None:
    """What was measured of a problem, if it was.

    What is wrong with the file, or with the entry, is a warning, given once; never an error.
    """
    global _known
    if problem.gpu is None:
        return None
    known = _known
    if known is None:
        with _lock:
            _known = known = {}
            with contextlib.suppress(OSError):  # no home, no file
                _known = known = _measured(path())
    found = known.get(problem.key)
    try:
        if found is not None:
            problem.check(found.config, arch)
    except LayoutError as error:
        _known = {key: other for key, other in known.items() if key != problem.key}
        _warn(f"{problem.key} of tuned.json is ignored: {error}")
        return None
    return found


def store(problem: Problem, found: Tuned) -> Path:
    """Keep what was measured for this process and later ones; returns the file.

    The file is replaced at once, and writers wait for each other, so none loses what another wrote.
    A damaged file is kept beside it, as ``tuned.json.damaged``.

    Raises:
        OSError: the file cannot be written, or has a format that this version does not know; what
            was found is known to this process all the same.
    """
    global _known
    lookup(problem, found.config.arch)
    with _lock:
        _known = {**(_known or {}), problem.key: found}
        try:
            file = path()
            file.parent.mkdir(parents=True, exist_ok=True)
            with open(file.with_suffix(".lock"), "w") as other_writers:
                fcntl.flock(other_writers, fcntl.LOCK_EX)  # until it is closed
                entries = _kept(file)
                entries[problem.key] = {**found._asdict(), "config": found.config.fields()}
                _replace(file, {"format": FORMAT, "tuned": entries})
        except OSError as error:
            raise OSError(
                f"cannot write tuned configurations: {error}; set {FOLDER_VARIABLE} to a"
                " folder that can be written to"
            ) from error
    return file


def clear_cache() -> None:
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
    """The entries of the file. Raises _Unreadable: it is damaged, or has another format."""
    try:
        content = json.loads(read_file(file, MAX_BYTES))
        if content["format"] != FORMAT:
            reason = f"its format is {content['format']!r}, and this version knows {FORMAT}"
            raise _Unreadable(reason, damaged=False)
        if not isinstance(content["tuned"], dict):
            raise _Unreadable("its entries are no object")
        entries: dict[str, Any] = content["tuned"]
    except FileNotFoundError:
        return {}
    except (LayoutError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _Unreadable(f"{type(error).__name__}: {error}") from None
    return entries


def _kept(file: Path) -> dict[str, Any]:
    """The entries that a writer must keep."""
    try:
        return _read(file)
    except _Unreadable as error:
        if not error.damaged:
            raise OSError(f"{file}: {error}") from None
        os.replace(file, f"{file}.damaged")
        return {}


def _measured(file: Path) -> dict[str, Tuned]:
    """What is in the file of this version of the project."""
    found = {}
    prefix = f"{__version__} | "
    try:
        entries = _read(file)
    except (_Unreadable, OSError) as error:
        _warn(f"{file} is ignored: {error}")
        return {}
    for key, entry in entries.items():
        if key.startswith(prefix):
            try:
                found[key] = _tuned(entry)
            except Exception as error:  # whatever its values do to the checks
                _warn(f"{file} is ignored: {key}: {error}")
    return found


def _tuned(entry: Mapping[str, Any]) -> Tuned:
    """An entry, whose values may be anything: times that are none are NaN, and faster than none."""
    seconds, torch_seconds = (
        value if isinstance(value, (int, float, type(None))) else math.nan
        for value in (entry.get("seconds", math.nan), entry.get("torch_seconds"))
    )
    return Tuned(read_spec(entry["config"]), seconds or math.nan, torch_seconds)


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)
