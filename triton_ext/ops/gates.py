"""Gated activations: one half of a product's columns, activated, times the other half."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from triton_ext.kernels.epilogue import CLAMPED_LIMIT, CLAMPED_SLOPE

Gate = Literal[
    "swiglu", "geglu", "geglu_tanh", "reglu", "swigluoai", "swiglu_interleaved",
    "geglu_interleaved", "geglu_tanh_interleaved", "reglu_interleaved", "swigluoai_interleaved",
]  # fmt: skip


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": functools.partial(torch.nn.functional.gelu, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(CLAMPED_SLOPE * x),
    "silu": torch.nn.functional.silu,
}
"""The activations that kernels apply, as torch's own operations ("quick_gelu" is CLIP's,
https://github.com/hendrycks/GELUs)."""


class GateForm(NamedTuple):
    """What a gated activation is.

    Attributes:
        activation: what is applied to the gate; a name of `kernels.epilogue.ACTIVATIONS` or of
            `GATE_ACTIVATIONS`.
        interleaved: whether gate and up take turns, the gate first; else all of the gate's columns
            come before all of up's.
    """

    activation: Literal["silu", "gelu", "gelu_tanh", "relu", "clamped_silu"]
    interleaved: bool

    def pairs(self, b: Tensor) -> Tensor:
        """(2, K, F) of a matrix (K, 2 F), (2 G, K, F) of a batch (G, K, 2 F): gate and up of each,
        a copy where no strides say it. If they are interleaved, b as it is.
        """
        if self.interleaved:
            return b
        halves: Tensor = b.unflatten(-1, (2, -1))
        return halves.movedim(-2, -3).flatten(0, -3)

    def apply(self, sums: Tensor) -> Tensor:
        """The activation of (..., 2 F), by torch's own operations: (..., F)."""
        dim, sizes = (-1, (-1, 2)) if self.interleaved else (-2, (2, -1))
        halves: Tensor = sums.unflatten(-1, sizes)
        gate, up = halves.unbind(dim)
        if self.activation == "clamped_silu":
            gate, up = gate.clamp(max=CLAMPED_LIMIT), up.clamp(-CLAMPED_LIMIT, CLAMPED_LIMIT)
            return gate * torch.sigmoid(CLAMPED_SLOPE * gate) * (up + 1)
        return FUNCTIONS[self.activation](gate) * up


GATES: dict[str, GateForm] = {
    "swiglu": GateForm("silu", False),
    "geglu": GateForm("gelu", False),
    "geglu_tanh": GateForm("gelu_tanh", False),
    "reglu": GateForm("relu", False),
    "swigluoai": GateForm("clamped_silu", False),
    "swiglu_interleaved": GateForm("silu", True),
    "geglu_interleaved": GateForm("gelu", True),
    "geglu_tanh_interleaved": GateForm("gelu_tanh", True),
    "reglu_interleaved": GateForm("relu", True),
    "swigluoai_interleaved": GateForm("clamped_silu", True),
}
"""The gated activations by name (Shazeer, "GLU Variants Improve Transformer", 2020; "swigluoai" is
vLLM's name of that of GPT-OSS)."""


def gate_of(activation: str | None) -> GateForm | None:
    """What a gated activation is; None of another one."""
    return None if activation is None else GATES.get(activation)


def columns_after(activation: str | None, columns: int) -> int:
    """How many of so many columns are left after an activation."""
    return columns // 2 if activation in GATES else columns
