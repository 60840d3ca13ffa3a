"""What a kernel keeps where: its registers, and its variables in memory.

A register file is one array per register width, a row for each register and a column for each
thread; typed views of the same bytes serve the typed instructions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.state.types import DTYPES
from triton_ext.ptx.parse import Variable

_FILES = {16: ("u16", "s16", "f16", "bf16"), 32: ("u32", "s32", "f32"), 64: ("u64", "s64", "f64")}


@dataclass(frozen=True)
class Register:
    """A row of a register file: that of the registers of `width` bits."""

    width: int
    row: int


@dataclass(frozen=True)
class Symbol:
    """A variable in memory: its space, and its offset there (a global's is given at the launch)."""

    space: str
    name: str
    offset: int
    variable: Variable


_LOCAL = re.compile(r"_ZZ.*E(\d+)(\w+)")
"""A static variable of a function (Itanium C++ ABI, "Scope Encoding")."""


def _source_name(name: str) -> str:
    found = _LOCAL.fullmatch(name)
    return found[2][: int(found[1])] if found else name


@dataclass(frozen=True)
class Storage:
    """The registers and the memory that a kernel declares.

    Attributes:
        counts: number of registers, by width.
        symbols: variables in memory, by name and scope.
        static_smem_bytes: size of the kernel's own shared variables, per block, with the padding
            in front of dynamic shared memory.
        local_bytes: size of the local variables, per thread.
        parameter_bytes: size of the parameter space.
        global_bytes: size of the module's variables in global and constant memory.
    """

    counts: dict[int, int]
    symbols: dict[tuple[str, tuple[int, ...]], Symbol]
    static_smem_bytes: int
    local_bytes: int
    parameter_bytes: int
    global_bytes: int

    def shared_place(self, offset: int) -> str:
        """``tile + 32``: the shared variable at an offset, and bytes into it; "" before the first.

        Variables of a function of C++ have the names that they have there.
        """
        shared = [each for each in self.symbols.values() if each.space == "shared"]
        before = [each for each in shared if each.offset <= offset]
        if not before:
            return ""
        nearest = max(before, key=lambda symbol: symbol.offset)
        return f"{_source_name(nearest.name)} + {offset - nearest.offset}"


def file_width(bits: int) -> int:
    """The register file of a declared width: 1 (predicates), 16, 32, 64 or 128."""
    return 1 if bits == 1 else max(16, bits)


def register_file(counts: dict[int, int], threads: int) -> dict[str, NDArray[Any]]:
    """Zeroed registers, by type; the views of one width share their bytes. ``carry``: the flag of
    extended-precision arithmetic. `counts`: how many registers of each width."""
    files: dict[str, NDArray[Any]] = {"pred": np.zeros((counts.get(1, 0), threads), np.bool_)}
    for width, names in _FILES.items():
        unsigned = np.zeros((counts.get(width, 0), threads), f"u{width // 8}")
        files[f"b{width}"] = unsigned
        for name in names:
            files[name] = unsigned.view(DTYPES[name])
    files["tf32"] = files["f32"]
    files["carry"] = np.zeros(threads, np.bool_)
    files["b128"] = np.zeros((counts.get(128, 0), threads, 2), np.uint64)
    return files
