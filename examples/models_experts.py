"""The experts of four models, as a user writes them: Qwen3-MoE, Mixtral, GPT-OSS, DeepSeek-V3.

python examples/models_experts.py                            # on a Hopper or Blackwell GPU
triton-ext run --emulate sm_90 examples/models_experts.py    # on any machine

Weights lie as Hugging Face's checkpoints have them, and none is copied. Each layer is compared with
a loop over its tokens in float64.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

import triton_ext

TOKENS, EXPERTS, CHOICES, HIDDEN, INNER = 20, 4, 2, 256, 128

Expert = Callable[[int, Tensor], Tensor]


def qwen3(x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Qwen3-MoE's, and Mixtral's: gate's rows, then up's.

    Args:
        x: (tokens, K).
        chosen, weights: (tokens, choices).
        gate_up, down: (experts, 2 F, K), (experts, K, F).
    """
    offs, rows, order, factors = triton_ext.route(chosen, len(down), weights)
    inner = triton_ext.grouped_mm(x, gate_up.mT, offs, rows=rows, activation="swiglu")
    each = triton_ext.grouped_mm(inner, down.mT, offs, out_rows=order, factors=factors)
    return each.view(*chosen.shape, -1).sum(1)


def gpt_oss(
    x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Tensor, gate_up_bias: Tensor, down: Tensor,
    down_bias: Tensor,
) -> Tensor:  # fmt: skip
    """GPT-OSS's: gate and up in turn, (experts, K, 2 F) and (experts, F, K), with biases."""
    offs, rows, order, factors = triton_ext.route(chosen, len(down), weights)
    inner = triton_ext.grouped_mm(
        x, gate_up, offs, rows=rows, bias=gate_up_bias, activation="swigluoai_interleaved"
    )
    each = triton_ext.grouped_mm(
        inner, down, offs, out_rows=order, factors=factors, bias=down_bias
    )  # fmt: skip
    return each.view(*chosen.shape, -1).sum(1)


Scaled = tuple[Tensor, Tensor]


def deepseek(
    x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Scaled, down: Scaled,
    shared_gate_up: Scaled, shared_down: Scaled,
) -> Tensor:  # fmt: skip
    """DeepSeek-V3's: fp8 with a scale for each 128 x 128 of the weights, and an expert for all."""
    offs, rows, order, factors = triton_ext.route(chosen, len(down[0]), weights)
    x_8, x_scales = triton_ext.quantize_1x128(x)
    inner = triton_ext.scaled_grouped_mm(
        x_8, gate_up[0].mT, x_scales, gate_up[1].mT, offs, rows=rows, activation="swiglu"
    )
    inner_8, inner_scales = triton_ext.quantize_1x128(inner)
    each = triton_ext.scaled_grouped_mm(
        inner_8, down[0].mT, inner_scales, down[1].mT, offs, out_rows=order, factors=factors
    )
    shared = triton_ext.scaled_mm(
        x_8, shared_gate_up[0].t(), x_scales, shared_gate_up[1].t(), activation="swiglu"
    )
    shared_8, shared_scales = triton_ext.quantize_1x128(shared)
    for_all = triton_ext.scaled_mm(
        shared_8, shared_down[0].t(), shared_scales, shared_down[1].t(), use_fast_accum=False
    )
    return each.view(*chosen.shape, -1).sum(1) + for_all


# ------------------------------------------------------------------------------ the comparison

torch.manual_seed(0)
x = torch.randn(TOKENS, HIDDEN, device="cuda").bfloat16()
weights, chosen = torch.randn(TOKENS, EXPERTS, device="cuda").softmax(-1).topk(CHOICES)


def drawn(*shape: int) -> Tensor:
    """Weights whose products are about as large as their operands."""
    return (torch.randn(shape, device="cuda") / shape[-1] ** 0.5).bfloat16()


def compare(name: str, made: Tensor, expert: Expert, shared: Tensor | float = 0.0) -> None:
    """Compare a layer with what each token's experts make of it in float64."""
    expected = torch.zeros(x.shape, device="cuda", dtype=torch.float64) + shared
    for token in range(TOKENS):
        for which, weight in zip(chosen[token].tolist(), weights[token].double(), strict=True):
            expected[token] += weight * expert(which, x[token].double())
    error = ((made.double() - expected).norm() / expected.norm()).item()
    assert error < (0.08 if "fp8" in name else 0.01), (name, error)
    print(f"{name}: {100 * error:.1f} % off")


def swiglu(sums: Tensor) -> Tensor:
    """Gate's half activated, times up's."""
    gate, up = sums.chunk(2, -1)
    return functional.silu(gate) * up


gate_up, down = drawn(EXPERTS, 2 * INNER, HIDDEN), drawn(EXPERTS, HIDDEN, INNER)
compare(
    "Qwen3-MoE, Mixtral",
    qwen3(x, chosen, weights, gate_up, down),
    lambda e, row: down[e].double() @ swiglu(gate_up[e].double() @ row),
)

turns, back = drawn(EXPERTS, 2 * INNER, HIDDEN).mT.contiguous() * 3, drawn(EXPERTS, INNER, HIDDEN)
turns_bias, back_bias = drawn(EXPERTS, 2 * INNER), drawn(EXPERTS, HIDDEN)


def clamped(expert: int, row: Tensor) -> Tensor:
    """GPT-OSS's expert (``gpt_oss/torch/model.py``)."""
    sums = row @ turns[expert].double() + turns_bias[expert].double()
    gate, up = sums[::2].clamp(max=7), sums[1::2].clamp(-7, 7)
    inner = gate * torch.sigmoid(1.702 * gate) * (up + 1)
    return inner @ back[expert].double() + back_bias[expert].double()


made = gpt_oss(x, chosen, weights, turns, turns_bias, back, back_bias)
compare("GPT-OSS", made, clamped)

shared_up, shared_down = drawn(2 * INNER, HIDDEN), drawn(HIDDEN, INNER)
quantized = [triton_ext.quantize_128x128(w) for w in (gate_up, down, shared_up, shared_down)]
compare(
    "DeepSeek-V3 in fp8",
    deepseek(x, chosen, weights, *quantized),
    lambda e, row: down[e].double() @ swiglu(gate_up[e].double() @ row),
    swiglu(x.double() @ shared_up.double().t()) @ shared_down.double().t(),
)
