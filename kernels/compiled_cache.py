"""Compiled kernels that a later process finds without Triton's compiler.

Triton's own way to its cache takes 0.2 to 0.9 s in each process: it reads itself (libtriton is
hundreds of megabytes), asks ptxas for its version, and walks through the kernel's source. Here a
kernel lies under what is known at once: the configuration with its generated layouts, this
project's sources, the version of Triton and the size of its library, and what Triton's settings and
environment say of compilation. An entry names the files in Triton's cache, and their hashes; where
anything is missing or differs, there is none, and Triton is asked as ever.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import triton
from triton import knobs

from triton_ext import compat
from triton_ext.kernels.launch import compilation_options, kernel_constants, with_boxes
from triton_ext.kernels.spec import KernelSpec

NEEDED = (".json", ".cubin")
"""The files of a compiled kernel that a launch needs."""
ELSEWHERE = ("TRITON_CACHE_DIR", "TRITON_HOME")
"""Environment variables that say where files are, not what is compiled."""


@functools.cache
def _sources() -> str:
    """A hash of what the kernels are made of, and of the Triton that compiles them."""
    package = Path(__file__).resolve().parent
    found = hashlib.sha256(triton.__version__.encode())
    library = Path(triton.__file__).parent / "_C"
    for file in sorted(library.glob("libtriton*")):
        found.update(f"{file.name} {file.stat().st_size}".encode())
    for file in (*sorted(package.rglob("*.py")), Path(compat.__file__)):
        found.update(file.read_bytes())
    return found.hexdigest()


def _entry(config: KernelSpec) -> Path:
    """Where a configuration's entry is, or would be."""
    environment = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith("TRITON_") and name not in ELSEWHERE
    }
    settings = {
        name: value for name, value in knobs.compilation.knobs.items() if name != "listener"
    }
    known = (
        config, kernel_constants(config), dict(compilation_options(config)), environment, settings,
        _sources(),
    )  # fmt: skip
    name = _digest(repr(known).encode())
    return Path(knobs.cache.dir) / "triton_ext" / f"{name}.kernel"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def store(config: KernelSpec, compiled: Any) -> None:
    """Let later processes find a configuration's compiled kernel; a cache that cannot be written is
    left as it is. `compiled`: Triton's, whose files are in its cache."""
    folder = Path(knobs.cache.dir).resolve()
    target, files = _entry(config), {}
    try:
        for name, path in compiled.metadata_group.items():
            path = Path(path).resolve()
            if path.suffix in NEEDED and folder in path.parents:
                files[name] = [str(path.relative_to(folder)), _digest(path.read_bytes())]
        if len(files) != len(NEEDED):
            return
        signature = dict(compiled.src.signature)
        entry = json.dumps({"hash": compiled.hash, "signature": signature, "files": files})
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=target.parent, delete=False) as file:
            file.write(f"{_digest(entry.encode())}\n{entry}")
        Path(file.name).replace(target)  # readers see all of it, or none
    except OSError:
        return


def find(config: KernelSpec) -> Any | None:
    """Triton's compiled kernel of a configuration, as `keep` was given it; None if it is not there,
    or not as it was.
    """
    if knobs.compilation.always_compile:
        return None
    folder = Path(knobs.cache.dir)
    try:
        digest, text = _entry(config).read_text().split("\n")
        if digest != _digest(text.encode()):
            return None
        entry: Mapping[str, Any] = json.loads(text)
        group = {}
        for name, (path, digest) in entry["files"].items():
            path = folder / path
            if _digest(path.read_bytes()) != digest:
                return None
            group[name] = str(path)
        signature = {name: _tuple(kind) for name, kind in entry["signature"].items()}
        source = SimpleNamespace(signature=signature, constants={})
        compiled = triton.compiler.CompiledKernel(source, group, entry["hash"])
        return with_boxes(compiled, config)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _tuple(kind: str | list[str]) -> str | tuple[str, ...]:
    """A type of a signature as Triton writes it, read from JSON: that of a tuple is one."""
    return tuple(kind) if isinstance(kind, list) else kind
