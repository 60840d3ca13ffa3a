"""What ``make foreign`` ran already: it goes on where it was stopped."""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sites import installed_folder

UNFINISHED = 3
"""The exit status where something is left for the next time."""


@functools.cache
def product() -> str:
    """A digest of what decides how a kernel runs: our sources without our kernels and commands."""
    root = installed_folder("triton_ext")
    names = ("emulator", "hardware", "layouts", "mlir", "ptx")
    folders = *(root / name for name in names), installed_folder("triton_ext.passes")
    files = [*root.glob("*.py"), *(file for folder in folders for file in folder.rglob("*.*"))]
    return digest(sorted(file for file in files if file.suffix in (".py", ".c", ".h")))


def digest(parts: Iterable[Path | str]) -> str:
    """The digest of texts and files."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part.encode() if isinstance(part, str) else part.read_bytes())
    return found.hexdigest()[:16]


class Rows:
    """What came of each run, on disk: by what was run, beside the `product` that ran it.

    Args:
        file: where they are.
        again: run what was run before, too.
        minutes: after these nothing new is begun; 0: there is no limit.
    """

    def __init__(self, file: Path, *, again: bool = False, minutes: float = 0) -> None:
        self._file, self._again = file, again
        self._end = time.monotonic() + 60 * minutes if minutes else float("inf")
        self._kept: dict[tuple[str, ...], tuple[str, Any]] = {}
        file.parent.mkdir(parents=True, exist_ok=True)
        for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
            what, by, row = json.loads(line)
            self._kept[tuple(what)] = by, row

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self._end

    def get(self, *what: str) -> Any:
        """What came of a run with the sources as they are now, or None."""
        by, row = self._kept.get(what, ("", None))
        return row if by == product() and not self._again else None

    def put(self, row: Any, *what: str) -> None:
        self._kept[what] = product(), row
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps([what, product(), row]) + "\n")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that all parts of ``make foreign`` have."""
    parser.add_argument("--projects", nargs="*", help="names; all by default")
    parser.add_argument("--again", action="store_true", help="run what was run before, too")
    parser.add_argument("--minutes", type=float, default=0, help="begin nothing new after these")
    parser.add_argument("--write", action="store_true", help="write docs/reference/foreign.md")
