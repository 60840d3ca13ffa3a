"""The names of source files in PTX that was compiled elsewhere.

Triton finds a compiled kernel by the text of its source, not by where the file lies. So what its
cache holds may name files of another checkout, or by another path.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from triton_ext.ptx.parse import FILE_DIRECTIVE

_LOCATION = re.compile(r"^\s*\.loc\s+(\d+)", re.MULTILINE)


@functools.lru_cache(maxsize=256)
def as_loaded(ptx: str, source: str) -> str:
    """PTX in which source files have the names of this process.

    Args:
        source: the file of the kernel's function, as it was loaded here.

    The file of that name in the PTX is this one, or else that of the kernel's first line; other
    files that lay beside it, below a directory that has moved, have moved with it, if they are
    there.
    """
    here = Path(source)
    files = dict(FILE_DIRECTIVE.findall(ptx))
    names, first = set(files.values()), _LOCATION.search(ptx)
    alike = [name for name in names if Path(name).name == here.name]
    if not alike and first is not None and first[1] in files:  # a copy by another name
        alike = [files[first[1]]]
    if source in names or len(alike) != 1 or not here.is_file():
        return ptx
    moves = []
    for now in (here.parent, here.resolve().parent):  # as it was loaded, and where links lead
        before = Path(alike[0]).parent
        while before.name and before.name == now.name:  # up to what has another name
            before, now = before.parent, now.parent
        moves.append((before, now))

    def moved(name: str) -> str:
        if name == alike[0]:
            return source
        path = Path(name)
        found = (now / path.relative_to(old) for old, now in moves if path.is_relative_to(old))
        return str(next((each for each in found if each.is_file()), name))

    return FILE_DIRECTIVE.sub(lambda found: found[0].replace(found[2], moved(found[2])), ptx)
