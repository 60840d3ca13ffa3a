"""Matrix multiplication on the tensor cores of Hopper and Blackwell: triton_ext's kernels.

`matmul`, `linear`, `addmm`, `bmm` and `scaled_mm` are as their namesakes in torch; `layers.Linear`
is for `kernelize`.
"""

import torch

from . import layers
from .triton_ext.ops.functional import addmm, bmm, linear, matmul, scaled_mm

__all__ = ["addmm", "bmm", "layers", "linear", "matmul", "scaled_mm"]

if torch.distributed.is_available():
    from .triton_ext.ops import sharding as sharding  # what DTensor makes of the operators
