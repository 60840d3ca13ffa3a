"""Keeps a long computation's answer on disk, until a file that it depended on changes.

The processes of one test run share it: the first computes, the others wait.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sites import CHECKOUT, SUPPORT, installed_folder

FOLDER = CHECKOUT / "build" / "corpus"


def loaded_files() -> set[str]:
    """The files of all modules that this process has imported."""
    found = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {path for path in found if path}


def sources(site: Path | None) -> list[str]:
    """The project's files that may decide what is compiled, and the Triton at `site`."""
    product = ("triton_ext", "triton_ext.passes", "triton_ext.kernels")
    folders = {SUPPORT, *map(installed_folder, product)}
    found = sorted({str(path) for folder in folders for path in folder.rglob("*.py")})
    spec = importlib.util.find_spec("triton")
    triton = site / "triton" if site else Path(spec.origin).parent if spec and spec.origin else None
    return [*found, str(triton / "_C" / "libtriton.so")] if triton else found


def stamps(files: Iterable[str]) -> dict[str, list[int]]:
    """When each file was changed, and its size; 0 and 0 if it is gone."""
    found = {}
    for path in files:
        try:
            status = Path(path).stat()
            found[path] = [status.st_mtime_ns, status.st_size]
        except OSError:
            found[path] = [0, 0]
    return found


def kept(question: Any, compute: Callable[[], tuple[Any, Iterable[str]]]) -> Any:
    """What `compute` answers to a question, computed or remembered; both are JSON data.

    Args:
        question: all that the answer depends on but files.
        compute: the answer, and the files that it depends on.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    key = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:32]
    path = FOLDER / f"{key}.json.gz"
    with (FOLDER / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            remembered = json.loads(gzip.decompress(path.read_bytes()))
            if stamps(remembered["files"]) == remembered["files"]:
                return remembered["answer"]
        answer, files = compute()
        text = json.dumps({"answer": answer, "files": stamps(files)})
        path.write_bytes(gzip.compress(text.encode(), compresslevel=1))
    return answer
