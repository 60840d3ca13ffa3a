"""Derivatives of products with an activation: the sums are made again, not kept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from triton_ext.compat import LAUNCH_OPTIONS
from triton_ext.kernels.device.gate import gate_gradient
from triton_ext.ops.derivatives import is_differentiated
from triton_ext.ops.device import require_gpu
from triton_ext.ops.epilogue import ACTIVATION_FUNCTIONS
from triton_ext.ops.gates import GATES
from triton_ext.ops.operators import defined

AT_A_TIME = 1024
"""Elements of an output's gradient that a program reads."""


def _gradient(sums: Tensor, grad: Tensor, activation: str) -> Tensor:
    """The gradient of the sums (rows, 2 F) of a product, of their type and contiguous.

    Args:
        grad: that of the output (rows, F), with any strides.
        activation: a name of `GATES`.
    """
    gate = GATES[activation]
    sums = sums.contiguous()
    made = torch.empty_like(sums)
    columns = grad.shape[1]
    if made.numel():
        with require_gpu(sums.device).current():
            gate_gradient[(-(-grad.numel() // AT_A_TIME),)](
                sums, grad, made, grad.numel(), columns, *grad.stride(),
                1 if gate.interleaved else columns, 2 if gate.interleaved else 1,
                ACTIVATION=gate.activation, BLOCK=AT_A_TIME, **LAUNCH_OPTIONS,
            )  # fmt: skip
    return made


def _fake(sums: Tensor, grad: Tensor, activation: str) -> Tensor:
    return sums.new_empty(sums.shape)


_operator = defined(
    "gate_gradient(Tensor sums, Tensor grad, str activation) -> Tensor", _gradient, _fake
)


def gradient_of_sums(sums: Tensor, grad: Tensor, activation: str) -> Tensor:
    """The gradient of the sums (..., N) of a product with an activation.

    Args:
        sums: as the product makes them without the activation.
        grad: the output's gradient, (..., N / 2) if the activation is gated.
        activation: a name of `ACTIVATION_FUNCTIONS`.
    """
    if activation not in GATES or is_differentiated(sums, grad):  # torch's own has one, too
        pull: Any = torch.func.vjp(ACTIVATION_FUNCTIONS[activation], sums)[1]
        pulled: Tensor = pull(grad)[0]
        return pulled
    rows = grad.reshape(-1, grad.shape[-1])
    of_rows: Tensor = _operator(sums.reshape(len(rows), -1), rows, activation)
    return of_rows.view(sums.shape)
