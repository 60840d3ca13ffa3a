"""The operator of a linear layer and the activation that follows it, or of gate and up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from triton_ext.ops.device import active_emulator, find_gpu
from triton_ext.ops.epilogue import ACTIVATION_FUNCTIONS
from triton_ext.ops.functional import linear
from triton_ext.ops.gates import FUNCTIONS, GATES, columns_after
from triton_ext.ops.operators import defined
from triton_ext.ops.types import HALF_TYPES

GATED: dict[str, Any] = {
    gate.activation: name for name, gate in GATES.items()
    if gate.activation in FUNCTIONS and not gate.interleaved
}  # fmt: skip
"""The gated activation of each activation."""


def activated(
    input: Tensor, weight: Tensor, up: Tensor | None, bias: Tensor | None, activation: str
) -> Tensor:
    """``activation(input @ weight.T + bias)``, times ``input @ up.T`` if there is an up.

    It is one launch on a GPU that has kernels for it; of weight and up, where up follows the weight
    in memory (`fuse_activations` sees to it). Else it is the same by several.

    Args:
        input: (..., K).
        weight, up: (N, K).
        bias: (N,), without an up.
        activation: a name of `ACTIVATION_FUNCTIONS`; of `FUNCTIONS`, with an up.
    """
    if torch.compiler.is_compiling():  # which cannot look where tensors are
        made: Tensor = _operator(input, weight, up, bias, activation)
        return made
    return _activated(input, weight, up, bias, activation)


def _activated(
    input: Tensor, weight: Tensor, up: Tensor | None, bias: Tensor | None, activation: Any
) -> Tensor:
    if not _has_kernels(input, weight):
        sums = ACTIVATION_FUNCTIONS[activation](functional.linear(input, weight, bias))
        return sums if up is None else sums * functional.linear(input, up)
    if up is None:
        return linear(input, weight, bias, activation=activation)
    pair = pair_of(weight, up)
    if pair is None:
        return linear(input, weight, activation=activation) * linear(input, up)
    return linear(input, pair, activation=GATED[activation])


def _has_kernels(input: Tensor, weight: Tensor) -> bool:
    if not (input.dtype == weight.dtype in HALF_TYPES and input.numel()):
        return False
    if input.device.type == "cpu" and active_emulator() is None:
        return False
    return not isinstance(find_gpu(input.device), str)


def pair_of(first: Tensor, second: Tensor) -> Tensor | None:
    """(2 N, K) of two matrices (N, K) of which the second follows the first in memory."""
    if not (
        first.is_contiguous()
        and second.is_contiguous()
        and first.shape == second.shape
        and first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
        and second.storage_offset() == first.storage_offset() + first.numel()
    ):
        return None
    rows, columns = first.shape
    return first.as_strided((2 * rows, columns), (columns, 1))


def _fake(
    input: Tensor, weight: Tensor, up: Tensor | None, bias: Tensor | None, activation: str
) -> Tensor:
    return input.new_empty((*input.shape[:-1], columns_after(activation, weight.shape[0])))


_operator = defined(
    "activated(Tensor input, Tensor weight, Tensor? up, Tensor? bias, str activation) -> Tensor",
    _activated,
    _fake,
)
