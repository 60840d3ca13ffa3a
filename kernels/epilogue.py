"""What follows a product in the same kernel, before C is rounded and stored."""

from __future__ import annotations

from dataclasses import dataclass

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "quick_gelu", "silu")
GATE_ACTIVATIONS = ("clamped_silu",)
"""Those of gates alone: x, at most `CLAMPED_LIMIT`, times the logistic function of `CLAMPED_SLOPE`
times that; and up, clamped to +-`CLAMPED_LIMIT`, plus 1 (GPT-OSS, ``gpt_oss/torch/model.py``,
``swiglu``)."""
CLAMPED_LIMIT, CLAMPED_SLOPE = 7.0, 1.702
TANH_CUBIC, TANH_SCALE = 0.044715, 1.5957691216057308
"""The factors of x^3, and of twice the argument of the tangent, sqrt(8 / pi), in PyTorch's
approximation of gelu (``torch.nn.GELU``)."""


@dataclass(frozen=True)
class EpilogueSpec:
    """activation(alpha * scale of A * scale of B * (A @ B) + bias + beta * residual).
    `legality.check_epilogue` says what is legal. Of a gated product the gate alone is activated,
    bias and scales are those of the gate's columns and then of up's.

    Args:
        bias: add a vector of N elements to each row of C; groups of rows have one each.
        activation: apply one of `ACTIVATIONS` last; or, to a gate, of `GATE_ACTIVATIONS`.
        a_scales, b_scales: multiply with a scale of A ("one" for all, "each" row its own), of B
            ("one", or "each" column its own).
        alpha: multiply with a number.
        residual: add beta (a number) times a matrix of the shape and type of C, which may be C
            itself.
        factors: multiply each row of C with a number of its own, last.
    """

    bias: bool = False
    activation: str | None = None
    a_scales: str | None = None
    b_scales: str | None = None
    alpha: bool = False
    residual: bool = False
    factors: bool = False


NO_EPILOGUE = EpilogueSpec()
"""C as it is multiplied."""
