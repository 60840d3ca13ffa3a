"""Files of strangers: read up to a limit, and never from what does not end."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import BinaryIO

from triton_ext.errors import LayoutError


def read_file(path: str | Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes.

    Raises:
        LayoutError: a pipe, a device, or a larger file.
        OSError: it cannot be opened or read.
    """

    def open_at_once(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK)  # else a pipe that nobody writes to hangs

    with open(path, "rb", opener=open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            rule = "must be a regular file; what a pipe says can be given on stdin, as -"
            raise LayoutError("file", str(path), rule)
        return read_stream(file, limit, str(path))


def read_input(name: str, limit: int) -> bytes:
    """As `read_file`; ``-`` is stdin, of which a LayoutError says whatever is wrong."""
    if name != "-":
        return read_file(name, limit)
    if sys.stdin is None:
        raise LayoutError("file", name, "cannot be read: stdin is closed")
    try:
        return read_stream(sys.stdin.buffer, limit)
    except OSError as error:
        raise LayoutError("file", name, f"cannot be read: {error.strerror}") from None


def read_stream(stream: BinaryIO, limit: int, name: str = "stdin") -> bytes:
    """What a stream has, at most `limit` bytes. Raises LayoutError: it has more."""
    data = stream.read(limit + 1)
    if len(data) > limit:
        raise LayoutError("file", name, f"must have at most {limit} bytes")
    return data
