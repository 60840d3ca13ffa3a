"""Shared-memory layouts of the Hopper and Blackwell tensor cores, for Triton.

The layout part (everything named here but `matmul` and `emulate`) imports neither Triton nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from triton_ext.encodings import NVMMAShared, SharedLinear, SwizzledShared, parse_encoding
from triton_ext.errors import LayoutError, UnsupportedDeviceError
from triton_ext.linear_layout import LinearLayout
from triton_ext.nvmma_shared import core_matrix_linear_layout, nvmma_shared_to_linear_layout

if TYPE_CHECKING:
    from triton_ext.emulator.driver import emulate
    from triton_ext.ops import matmul

__version__ = "0.1.0"

__all__ = [
    "LayoutError",
    "LinearLayout",
    "NVMMAShared",
    "SharedLinear",
    "SwizzledShared",
    "UnsupportedDeviceError",
    "core_matrix_linear_layout",
    "emulate",
    "matmul",
    "nvmma_shared_to_linear_layout",
    "parse_encoding",
]


def __getattr__(name: str) -> Any:
    if name == "matmul":  # imports torch and Triton
        from triton_ext.ops import matmul

        return matmul
    if name == "emulate":
        from triton_ext.emulator.driver import emulate

        return emulate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
