"""Matrix multiplication on torch tensors, by this project's kernels. Imports torch and Triton."""

import functools
import importlib

import torch

from triton_ext.ops.functional import addmm, bmm, linear, matmul, scaled_mm
from triton_ext.ops.fusion import fuse_activations
from triton_ext.ops.grouped import grouped_mm, scaled_grouped_mm
from triton_ext.ops.overrides import drop_in
from triton_ext.ops.quantize import quantize_1x128, quantize_128x128
from triton_ext.ops.routing import route
from triton_ext.ops.rule import batch_invariant, fixed_kernels, measured_kernels
from triton_ext.ops.tuning import autotune
from triton_ext.startup import when_imported

__all__ = [
    "addmm",
    "autotune",
    "batch_invariant",
    "bmm",
    "drop_in",
    "fixed_kernels",
    "fuse_activations",
    "grouped_mm",
    "linear",
    "matmul",
    "measured_kernels",
    "quantize_1x128",
    "quantize_128x128",
    "route",
    "scaled_grouped_mm",
    "scaled_mm",
]


if torch.distributed.is_available():  # DTensor takes as long to import as the rest of torch
    when_imported(
        "torch.distributed.tensor",
        functools.partial(importlib.import_module, "triton_ext.ops.sharding"),
    )
