"""A layer of experts: PyTorch's own, by triton_ext's kernels, and in fp8 with scales by blocks.

python examples/mixture_of_experts.py                            # on a Hopper or Blackwell GPU
triton-ext run --emulate sm_90 examples/mixture_of_experts.py    # on any machine
"""

from __future__ import annotations

import torch

import triton_ext

TOKENS, EXPERTS, HIDDEN, INNER, CHOSEN = 48, 4, 128, 128, 2

torch.manual_seed(0)
x = torch.randn(TOKENS, HIDDEN, device="cuda").bfloat16()
up = torch.randn(EXPERTS, HIDDEN, INNER, device="cuda").bfloat16() / HIDDEN**0.5
down = torch.randn(EXPERTS, INNER, HIDDEN, device="cuda").bfloat16() / INNER**0.5
router = torch.randn(HIDDEN, EXPERTS, device="cuda").bfloat16()

# Each token goes to two experts; tokens are sorted by expert, which the device alone knows.
weights, experts = (x @ router).softmax(-1).topk(CHOSEN)
order = experts.flatten().argsort(stable=True)
token = order // CHOSEN
counts = torch.zeros(EXPERTS, dtype=torch.int32, device="cuda")
counts = counts.index_add(0, experts.flatten(), torch.ones_like(order, dtype=torch.int32))
offs = counts.cumsum(0).int()


# Three launches: rows are read where their tokens are, and stored where they belong. Each choice of
# a token has a row, so that they are added up in the same order in every run.
both = torch.randn(EXPERTS, HIDDEN, 2 * INNER, device="cuda").bfloat16() / HIDDEN**0.5
middle = triton_ext.grouped_mm(x, both, offs, rows=token.int(), activation="swiglu")
factors = weights.flatten()[order].float()
each = triton_ext.grouped_mm(middle, down, offs, out_rows=order.int(), factors=factors)
layer = each.view(TOKENS, CHOSEN, HIDDEN).sum(1)

gate, value = triton_ext.grouped_mm(x[token], both, offs).chunk(2, -1)  # the same in more
copied = triton_ext.grouped_mm(torch.nn.functional.silu(gate) * value, down, offs)
expected = torch.zeros_like(x).index_add(0, token, copied * weights.flatten()[order, None])
assert (layer - expected).norm() < 0.02 * expected.norm()


def mixed(rows: torch.Tensor) -> torch.Tensor:
    """The experts' rows, weighted and added up for each token."""
    rows = rows * weights.flatten()[order, None]
    return torch.zeros_like(x).index_add(0, token, rows)


hidden = torch.nn.functional.silu(triton_ext.grouped_mm(x[token], up, offs))
ours = mixed(triton_ext.grouped_mm(hidden, down, offs))

with triton_ext.drop_in():  # the same, as a model says it
    rows = torch.nn.functional.grouped_mm(x[token], up, offs=offs)
    rows = torch.nn.functional.grouped_mm(torch.nn.functional.silu(rows), down, offs=offs)
assert torch.equal(mixed(rows), ours)

# In fp8: weights with a scale for each 128 x 128, tokens for each 128 elements.
up_8, up_scales = triton_ext.quantize_128x128(up.mT)
down_8, down_scales = triton_ext.quantize_128x128(down.mT)
rows_8, scales = triton_ext.quantize_1x128(x[token])
rows = triton_ext.scaled_grouped_mm(rows_8, up_8.mT, scales, up_scales.mT, offs)
rows_8, scales = triton_ext.quantize_1x128(torch.nn.functional.silu(rows))
rows = triton_ext.scaled_grouped_mm(rows_8, down_8.mT, scales, down_scales.mT, offs)
difference = (mixed(rows) - ours).float().norm() / ours.float().norm()
assert difference < 0.1, difference
print(
    f"experts of {offs.diff(prepend=offs.new_zeros(1)).tolist()} rows; fp8 differs by a few percent"
)
