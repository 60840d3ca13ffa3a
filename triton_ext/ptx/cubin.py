"""What the emulator asks of a cubin: how many registers a thread has."""

from __future__ import annotations

import re

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
