"""Launching a matmul kernel as `launch_plan` says, on tensors of the host or of a GPU."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton_ext.kernels.launch import launch_plan

from triton_ext.interop import to_gluon

TORCH_TYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "int8": torch.int8,
    "int32": torch.int32,
}
# What a correctly rounded result may be off by, relative to its Frobenius norm.
ROUNDING = {"fp16": 2.0**-11, "bf16": 2.0**-8, "fp32": 2.0**-22, "int32": 0.0}


def problem(config, m, n, k, device="cpu", exact=True, seed=0):
    """A, B, what else the configuration takes, and C by definition, in float64."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape):
        found = torch.randint(-3, 4, shape, generator=generator).float()
        return found if exact else torch.randn(shape, generator=generator)

    dtype = TORCH_TYPES[config.element_type]
    a, b = numbers(m, k).to(dtype).to(device), numbers(k, n).to(dtype).to(device)
    expected = a.double() @ b.double()
    extras = {}
    if config.alpha:
        extras["alpha"] = 0.5
        expected *= 0.5
    if config.a_scales:
        count = m if config.a_scales == "each" else 1
        extras["a_scale"] = (torch.rand(count, generator=generator) + 0.5).to(device)
        expected *= extras["a_scale"].double()[:, None]
    if config.b_scales:
        count = n if config.b_scales == "each" else 1
        extras["b_scale"] = (torch.rand(count, generator=generator) + 0.5).to(device)
        expected *= extras["b_scale"].double()
    if config.bias:
        bias = torch.randn(n, generator=generator).to(TORCH_TYPES[config.c_type])
        extras["bias"] = bias.to(device)
        expected += extras["bias"].double()
    if config.activation:
        expected = getattr(torch.nn.functional, config.activation)(expected)
    return a, b, extras, expected


def launch(config, a, b, extras, multiprocessors, workspace=None):
    """C, with memory that was NaN before; the workspace is new and zero if None."""
    (m, k), n = a.shape, b.shape[1]
    properties = SimpleNamespace(multi_processor_count=multiprocessors)
    plan = launch_plan(config, m, n, k, properties)
    c_type = TORCH_TYPES[config.c_type]
    poison = float("nan") if c_type.is_floating_point else -1
    out = torch.full((m, n), poison, dtype=c_type, device=a.device)
    matrices = {
        "a_desc": ((a if config.a_major == "K" else a.T).contiguous(), plan.a_tile),
        "b_desc": ((b.T if config.b_major == "K" else b).contiguous(), plan.b_tile),
        "c_desc": (out, plan.c_tile),
    }
    if workspace is None:
        workspace = torch.zeros(plan.workspace_bytes, dtype=torch.uint8, device=a.device)
    values = {"workspace": workspace, **extras}
    descriptors = []
    for name in plan.arguments[:3]:
        matrix, tile = matrices[name]
        layout = to_gluon(tile.tma_encoding)
        descriptors.append(TensorDescriptor.from_tensor(matrix, list(tile.tma_shape), layout))
    others = {name: values[name] for name in plan.arguments[3:]}
    plan.kernel[plan.grid](*descriptors, **others, **plan.constants, **plan.options)
    return out


def relative_error(found, expected):
    found = found.double()
    assert torch.isfinite(found).all(), "an element was not written"
    return float((found - expected).norm() / expected.norm())
