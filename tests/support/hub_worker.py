"""The package for the kernel hub, loaded by the library `kernels`; argv: the package, and "alone"
for a process that has no triton_ext. Prints JSON.

A process of its own, as the checkout has a folder that is called `kernels`, too.
"""

import json
import sys
from pathlib import Path

import torch

import kernels

package, alone = Path(sys.argv[1]), "alone" in sys.argv
if alone:
    sys.modules["triton_ext"] = None
loaded = kernels.get_local_kernel(package)
found = {"triton_ext": "triton_ext" in sys.modules and not alone}
a, b = torch.randn(16, 32).bfloat16(), torch.randn(32, 16).bfloat16()
model = torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
model = model.bfloat16()


def loss_and_gradients():
    model.zero_grad()
    loss = model(a).float().square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


def kernelized():
    kernels.replace_kernel_forward_from_hub(torch.nn.Linear, "Linear")
    layer = kernels.LocalLayerRepository(package, layer_name="Linear")
    with kernels.use_kernel_mapping({"Linear": {"cpu": layer}}):
        mode = kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE
        kernels.kernelize(model, mode=mode, device="cpu", use_fallback=False)


def differences():
    pairs = zip(loss_and_gradients(), expected, strict=True)
    return [float((x - y).float().norm() / y.float().norm()) for x, y in pairs]


expected = loss_and_gradients()
if alone:
    try:
        loaded.matmul(a, b)
    except Exception as error:
        found["error"] = [type(error).__name__, str(error)]
    kernelized()  # leaves to torch what there are no kernels for
    found["differences"] = differences()
else:
    from up_to_ptx import up_to_ptx

    import triton_ext

    with up_to_ptx(), triton_ext.emulate("sm_90") as gpu:
        wrong = loaded.matmul(a, b).float() - a.float() @ b.float()
        found["difference"] = float(wrong.abs().max())
        kernelized()
        before = gpu.launches
        found["differences"] = differences()
        found["launches"] = gpu.launches - before
print(json.dumps(found))
