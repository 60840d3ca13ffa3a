"""Shared-memory layouts of the Hopper and Blackwell tensor cores, for Triton.

The layout part imports neither Triton nor torch; `emulate` imports Triton, and the products
(`matmul` and its kin, `grouped_mm`, quantization), `drop_in`, `autotune` and what else is said of
these import both.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from triton_ext._version import __version__
from triton_ext.display import draw_with as _draw_with
from triton_ext.errors import LayoutError, UnsupportedDeviceError
from triton_ext.layouts.encodings import NVMMAShared, SharedLinear, SwizzledShared, parse_encoding
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.layouts.nvmma_shared import core_matrix_linear_layout, nvmma_shared_to_linear_layout
from triton_ext.startup import begin as _begin

if TYPE_CHECKING:
    from triton_ext import distributed, emulator, hardware, kernels, passes
    from triton_ext.emulator.host.emulate import emulate
    from triton_ext.layouts import cute
    from triton_ext.layouts.triton import gluon as interop
    from triton_ext.layouts.triton import known_faults, oracle
    from triton_ext.ops import (
        addmm,
        autotune,
        batch_invariant,
        bmm,
        drop_in,
        fixed_kernels,
        fuse_activations,
        grouped_mm,
        inductor,
        linear,
        matmul,
        measured_kernels,
        quantize_1x128,
        quantize_128x128,
        route,
        scaled_grouped_mm,
        scaled_mm,
    )

__all__ = [
    "LayoutError",
    "LinearLayout",
    "NVMMAShared",
    "SharedLinear",
    "SwizzledShared",
    "UnsupportedDeviceError",
    "__version__",
    "addmm",
    "autotune",
    "batch_invariant",
    "bmm",
    "core_matrix_linear_layout",
    "cute",
    "distributed",
    "drop_in",
    "emulate",
    "emulator",
    "fixed_kernels",
    "fuse_activations",
    "grouped_mm",
    "hardware",
    "inductor",
    "interop",
    "kernels",
    "known_faults",
    "linear",
    "matmul",
    "measured_kernels",
    "nvmma_shared_to_linear_layout",
    "oracle",
    "parse_encoding",
    "passes",
    "quantize_1x128",
    "quantize_128x128",
    "route",
    "scaled_grouped_mm",
    "scaled_mm",
]


_begin()
# The pictures' module is imported with the first of them: the template engine takes a while.
_draw_with(lambda value: importlib.import_module("triton_ext.render.notebook").html(value))

_OPS = (
    "addmm", "autotune", "batch_invariant", "bmm", "drop_in", "fixed_kernels",
    "fuse_activations", "grouped_mm", "linear", "matmul", "measured_kernels", "quantize_128x128",
    "quantize_1x128", "route", "scaled_grouped_mm", "scaled_mm",
)  # fmt: skip
_MODULES = {
    **{name: f"triton_ext.{name}" for name in ("emulator", "hardware", "kernels", "passes")},
    "distributed": "triton_ext.distributed",
    "cute": "triton_ext.layouts.cute",
    "inductor": "triton_ext.ops.inductor",
    "interop": "triton_ext.layouts.triton.gluon",
    "known_faults": "triton_ext.layouts.triton.known_faults",
    "oracle": "triton_ext.layouts.triton.oracle",
}
"""What users reach as `triton_ext.NAME`, imported when it is first asked for."""


def __getattr__(name: str) -> Any:
    if name in _OPS:  # imports torch and Triton
        found = getattr(importlib.import_module("triton_ext.ops"), name)
    elif name in _MODULES:
        found = importlib.import_module(_MODULES[name])
    elif name == "emulate":
        importlib.import_module("triton_ext.timeline.client")  # answers `time`
        found = importlib.import_module("triton_ext.emulator.host.emulate").emulate
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found  # the next time, Python finds it without this function
    return found
