"""PyTorch's own products by the kernels of triton_ext, and what the drop-in changes: nothing.

python examples/drop_in.py                                   # on a Hopper or Blackwell GPU
triton-ext run --emulate sm_90 examples/drop_in.py           # on any machine
"""

from __future__ import annotations

import torch

import triton_ext


def loss_and_gradient(model: torch.nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    model.zero_grad()
    loss = model(x).float().square().mean()
    loss.backward()
    return loss.detach(), model[0].weight.grad.float()


torch.manual_seed(0)
layers = torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32)
model = torch.nn.Sequential(*layers).to("cuda", torch.bfloat16)
x = torch.randn(16, 64, device="cuda", dtype=torch.bfloat16)

theirs = loss_and_gradient(model, x)
with triton_ext.drop_in():
    ours = loss_and_gradient(model, x)
torch.testing.assert_close(ours, theirs, atol=1e-2, rtol=1e-2)
print("the same loss and gradient")
