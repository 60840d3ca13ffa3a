"""Layers that `kernelize` puts in place of torch's: only forward is taken, without state."""

import torch
from torch import nn

from .triton_ext.ops.functional import linear


class Linear(nn.Module):
    """`torch.nn.Linear` by this package's kernels; what they have no types for is torch's."""

    can_torch_compile = True
    has_backward = True

    weight: torch.Tensor
    bias: torch.Tensor | None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return linear(input, self.weight, self.bias, fallback="torch")
