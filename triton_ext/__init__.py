"""Shared-memory layouts of the Hopper and Blackwell tensor cores, for Triton.

The layout part imports neither Triton nor torch; `emulate` imports Triton, and `matmul`, `linear`,
`addmm`, `bmm`, `scaled_mm`, `drop_in` and `autotune` import both.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from triton_ext.encodings import NVMMAShared, SharedLinear, SwizzledShared, parse_encoding
from triton_ext.errors import LayoutError, UnsupportedDeviceError
from triton_ext.linear_layout import LinearLayout
from triton_ext.nvmma_shared import core_matrix_linear_layout, nvmma_shared_to_linear_layout
from triton_ext.startup import begin as _begin

if TYPE_CHECKING:
    from triton_ext import passes
    from triton_ext.emulator.driver import emulate
    from triton_ext.ops import addmm, autotune, bmm, drop_in, linear, matmul, scaled_mm

__version__ = "0.1.0"

__all__ = [
    "LayoutError",
    "LinearLayout",
    "NVMMAShared",
    "SharedLinear",
    "SwizzledShared",
    "UnsupportedDeviceError",
    "addmm",
    "autotune",
    "bmm",
    "core_matrix_linear_layout",
    "drop_in",
    "emulate",
    "linear",
    "matmul",
    "nvmma_shared_to_linear_layout",
    "parse_encoding",
    "passes",
    "scaled_mm",
]


_begin()

_OPS = ("addmm", "autotune", "bmm", "drop_in", "linear", "matmul", "scaled_mm")


def __getattr__(name: str) -> Any:
    if name in _OPS:  # imports torch and Triton
        from triton_ext import ops

        return getattr(ops, name)
    if name == "passes":
        return importlib.import_module("triton_ext.passes")
    if name == "emulate":
        from triton_ext.emulator.driver import emulate

        return emulate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
