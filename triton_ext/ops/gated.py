"""Gradients of products with a gated activation: the sums are made again, not kept."""

from __future__ import annotations

import torch
from torch import Tensor

from triton_ext.compat import LAUNCH_OPTIONS
from triton_ext.kernels.device.gate import gate_gradient
from triton_ext.ops.device import require_gpu
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
    """The gradient of the sums (..., 2 F) of a gated product.

    Args:
        sums: as the product makes them without the activation.
        grad: the output's gradient (..., F).
        activation: a name of `GATES`.
    """
    if torch.is_grad_enabled() and (sums.requires_grad or grad.requires_grad):
        with torch.enable_grad():  # a gradient of the gradient is torch's own
            sums = sums if sums.requires_grad else sums.detach().requires_grad_()
            made = GATES[activation].apply(sums)
            found: Tensor = torch.autograd.grad(made, sums, grad, create_graph=True)[0]
            return found
    rows = grad.reshape(-1, grad.shape[-1])
    of_rows: Tensor = _operator(sums.reshape(len(rows), -1), rows, activation)
    return of_rows.view(sums.shape)
