"""What is done to a product before, or after, it is rounded to the output's type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from triton_ext.ops.operands import TMA_ALIGNMENT

ACTIVATION_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}


EPILOGUE_FIELDS = ("bias", "activation", "a_scales", "b_scales", "alpha", "residual")
"""Of a `MatmulConfig`: what a product alone does not have."""


def aligned(tensor: Tensor) -> Tensor:
    """The same values in contiguous memory at a multiple of 16 bytes."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % TMA_ALIGNMENT else tensor


@dataclass(frozen=True)
class Epilogue:
    """What is done to a product before it is rounded and stored: values, and what a kernel is
    specialised for.
    """

    values: dict[str, Any]
    fields: dict[str, Any]


def broadcasts_to(tensor: Tensor, shape: Sequence[int]) -> bool:
    """Whether a tensor can be broadcast to a shape."""
    return tensor.dim() <= len(shape) and all(
        size in (1, wanted)
        for size, wanted in zip(reversed(tensor.shape), reversed(shape), strict=False)
    )


def epilogue_of(
    bias: Tensor | None,
    activation: str | None,
    scale_a: Tensor | None,
    scale_b: Tensor | None,
    alpha: float,
    residual: Tensor | None = None,
    beta: float = 1,
) -> Epilogue:
    values: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    if bias is not None:
        values["bias"], fields["bias"] = aligned(bias), True
    if activation is not None:
        fields["activation"] = activation
    for name, scale in (("a", scale_a), ("b", scale_b)):
        if scale is not None:
            values[f"{name}_scale"] = aligned(scale)
            fields[f"{name}_scales"] = "one" if scale.numel() == 1 else "each"
    if alpha != 1:
        values["alpha"], fields["alpha"] = float(alpha), True
    if residual is not None:
        values["c0_desc"], values["beta"] = residual, float(beta)
        fields["residual"] = True
    return Epilogue(values, fields)


def finished(
    made: Tensor,
    bias: Tensor | None,
    activation: str | None,
    residual: Tensor | None = None,
    beta: float = 1,
) -> Tensor:
    """A new product with bias, residual and activation, by torch's own operations."""
    for addend, factor in ((bias, 1.0), (residual, beta)):
        if addend is None:
            continue
        gradient = torch.is_grad_enabled() and (made.requires_grad or addend.requires_grad)
        if gradient or forward_ad._current_level >= 0:
            made = torch.add(made, addend, alpha=factor)
        else:
            made = made.add_(addend, alpha=factor)
    return made if activation is None else ACTIVATION_FUNCTIONS[activation](made)


def scaled(made: Tensor, scale_a: Tensor | None, scale_b: Tensor | None, alpha: float) -> Tensor:
    if scale_a is None and scale_b is None and alpha == 1:
        return made
    wide = made.float() * alpha
    if scale_a is not None:
        wide = wide * scale_a.reshape(-1, 1)
    if scale_b is not None:
        wide = wide * scale_b.reshape(1, -1)
    return wide.to(made.dtype)
