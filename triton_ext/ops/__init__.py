"""Matrix multiplication on torch tensors, by this project's kernels. Imports torch and Triton."""

from triton_ext.ops.functional import addmm, bmm, linear, matmul, scaled_mm
from triton_ext.ops.overrides import drop_in

__all__ = ["addmm", "bmm", "drop_in", "linear", "matmul", "scaled_mm"]
