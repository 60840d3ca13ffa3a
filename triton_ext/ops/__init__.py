"""Matrix multiplication on torch tensors, by this project's kernels. Imports torch and Triton."""

import importlib

import torch

from triton_ext.ops.functional import addmm, bmm, linear, matmul, scaled_mm
from triton_ext.ops.overrides import drop_in
from triton_ext.ops.tuning import autotune

__all__ = ["addmm", "autotune", "bmm", "drop_in", "linear", "matmul", "scaled_mm"]

if torch.distributed.is_available():  # torch's compiler, by now imported, has imported DTensor
    importlib.import_module("triton_ext.ops.sharding")
