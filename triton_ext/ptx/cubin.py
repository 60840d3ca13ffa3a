"""What is asked of a cubin: how many registers a thread has, and its instructions."""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from pathlib import Path

_REGISTER_COUNT = re.compile(rb"\x04\x2f\x08\x00", re.DOTALL)


def registers(cubin: bytes) -> int:
    """The registers of a thread that ptxas gave it: the cubin's attribute EIATTR_REGCOUNT (a format
    byte, 0x2f, its size of 8, the function's symbol, the number).
    """
    counts = [
        int.from_bytes(cubin[at + 8 : at + 12], "little")
        for at in (match.start() for match in _REGISTER_COUNT.finditer(cubin))
    ]
    return max(counts, default=0)


@functools.lru_cache(maxsize=256)
def disassembled(cubin: bytes, nvdisasm: str, *options: str) -> str:
    """What nvdisasm (its path) says of the code; "" if it fails. `options`: ``-hex`` for the
    control bits, ``-gp`` for lines of PTX, ``-g`` for source lines."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        try:
            command = [nvdisasm, "-c", *options, file.name]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return ""
