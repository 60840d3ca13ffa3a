"""Launching a matmul kernel as `launch_plan` says, on tensors of the host or of a GPU."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from triton_ext.kernels.element_types import BLOCK_SCALED, operand_types
from triton_ext.kernels.launch import launch_plan
from triton_ext.kernels.product import bias_type
from triton_ext.layouts.triton.gluon import to_gluon

TORCH_TYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "int8": torch.int8,
    "int32": torch.int32,
    "mxfp8": torch.float8_e4m3fn,
    "mxfp8_e5m2": torch.float8_e5m2,
    "ue8m0": torch.float8_e8m0fnu,
}
# What a correctly rounded result may be off by, relative to its Frobenius norm.
ROUNDING = {
    "fp16": 2.0**-11, "bf16": 2.0**-8, "fp32": 2.0**-22, "int32": 0.0,
    "e4m3": 2.0**-4, "e5m2": 2.0**-3,
}  # fmt: skip
# By their codes (OCP Microscaling Formats 1.0, 5.3.3).
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
E2M1 = torch.cat([E2M1, -E2M1])


def to_blocked(scales):
    """Scales (rows, columns) in blocks of 128 x 4, padded with zeros (cuBLAS, "1D Block Scaling
    Factors Layout"): what torch's own tests make for ``torch._scaled_mm``.
    """
    rows, columns = -(-scales.shape[0] // 128) * 128, -(-scales.shape[1] // 4) * 4
    padded = torch.zeros((rows, columns), dtype=torch.uint8)
    padded[: scales.shape[0], : scales.shape[1]] = scales.view(torch.uint8)
    blocks = padded.view(rows // 128, 4, 32, columns // 4, 4).permute(0, 3, 2, 1, 4)
    return blocks.flatten().view(scales.dtype)


def block_scaled(kind, rows, k, generator):
    """An operand (rows, K) with scales: as stored (of 4 bits: bytes), its scales in torch's blocks,
    and its values. Scales of rows that there are not are NaN.
    """
    scaling = BLOCK_SCALED[kind]
    if scaling.packed == 2:
        stored = torch.randint(256, (rows, k), generator=generator).to(torch.uint8)
        values = E2M1[torch.stack([stored & 15, stored >> 4], -1).flatten(1).int()]
    else:
        stored = torch.randint(-3, 4, (rows, k), generator=generator).float()
        stored = stored.to(TORCH_TYPES[kind])
        values = stored.double()
    count = -(-values.shape[1] // scaling.length)
    exponents = torch.randint(-2, 3, (rows, count), generator=generator)
    scales = (2.0**exponents).to(TORCH_TYPES[scaling.scale])
    values = values * scales.double().repeat_interleave(scaling.length, 1)[:, : values.shape[1]]
    padded = torch.full((-(-rows // 128) * 128, count), float("nan")).to(scales.dtype)
    padded[:rows] = scales
    return stored, to_blocked(padded), values


def scale_blocks(scales, rows):
    """Torch's blocks of scales as the kernel's descriptor takes them, of whole blocks of rows."""
    stored = scales.view(torch.uint8) if scales.dtype == torch.float8_e8m0fnu else scales
    return stored.view(-(-rows // 128), -1, 2, 256)


def problem(config, m, n, k, device="cpu", exact=True, seed=0, shared=""):
    """A, B, what else the configuration takes, and C by definition, in float64.

    A batch has 3 products, which share A or B ("a", "b") if asked to.
    """
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape):
        found = torch.randint(-3, 4, shape, generator=generator).float()
        return found if exact else torch.randn(shape, generator=generator)

    extras = {}
    if config.product.scaling is not None:
        kind = config.product.element_type
        a, a_blocks, a_values = block_scaled(kind, m, k, generator)
        b, b_blocks, b_values = block_scaled(kind, n, k, generator)
        a, b = a.to(device), b.to(device).t()
        expected = (a_values @ b_values.t()).to(device)
        blocks = scale_blocks(a_blocks, m).to(device), scale_blocks(b_blocks, n).to(device)
        names = (
            ("right_scales", "left_scales")
            if config.tile.swap_ab
            else ("left_scales", "right_scales")
        )
        extras.update(zip(names, blocks, strict=True))
    else:
        types = [TORCH_TYPES[each] for each in operand_types(config.product.element_type)]
        lead = [(1 if name == shared else 3,) if config.product.batched else () for name in "ab"]
        a = numbers(*lead[0], m, k).to(types[0]).to(device)
        b = numbers(*lead[1], k, n).to(types[1]).to(device)
        expected = a.double() @ b.double()
    if config.epilogue.alpha:
        extras["alpha"] = 0.5
        expected *= 0.5
    if config.epilogue.a_scales:
        count = m if config.epilogue.a_scales == "each" else 1
        extras["a_scale"] = (torch.rand(count, generator=generator) + 0.5).to(device)
        expected *= extras["a_scale"].double()[:, None]
    if config.epilogue.b_scales:
        count = n if config.epilogue.b_scales == "each" else 1
        extras["b_scale"] = (torch.rand(count, generator=generator) + 0.5).to(device)
        expected *= extras["b_scale"].double()
    if config.epilogue.bias:
        bias = torch.randn(n, generator=generator).to(TORCH_TYPES[bias_type(config.product)])
        extras["bias"] = bias.to(device)
        expected += extras["bias"].double()
    if config.epilogue.residual:
        residual = torch.randn(expected.shape, generator=generator)
        extras["c0_desc"] = residual.to(TORCH_TYPES[config.product.c_type]).to(device)
        extras["beta"] = 0.75
        expected += 0.75 * extras["c0_desc"].double()
    if config.epilogue.activation:
        expected = getattr(torch.nn.functional, config.epilogue.activation)(expected)
    if config.product.c_type in ("e4m3", "e5m2"):  # which saturate
        largest = torch.finfo(TORCH_TYPES[config.product.c_type]).max
        expected = expected.clamp(-largest, largest)
    return a, b, extras, expected


def launch(config, a, b, extras, multiprocessors, workspace=None, in_place=False):
    """C, with memory that was NaN before, or in place of the residual; the workspace is new and
    zero if None.
    """
    return launch_compiled(config, a, b, extras, multiprocessors, workspace, in_place)[0]


def launch_compiled(config, a, b, extras, multiprocessors, workspace=None, in_place=False):
    """`launch`, and Triton's compiled kernel."""
    (m, k), n = a.shape[-2:], b.shape[-1]
    lead = (max(a.shape[0], b.shape[0]),) if config.product.batched else ()
    properties = SimpleNamespace(multi_processor_count=multiprocessors)
    plan = launch_plan(config, m, n, k, properties, *lead)
    c_type = TORCH_TYPES[config.product.c_type]
    poison = float("nan") if c_type.is_floating_point else -1
    out = torch.full((*lead, m, n), poison, dtype=c_type, device=a.device)
    if in_place:
        out = extras["c0_desc"]
    matrices = {
        "a_desc": (a if config.product.a_major == "K" else a.mT).contiguous(),
        "b_desc": (b.mT if config.product.b_major == "K" else b).contiguous(),
        "c_desc": out,
        "last_desc": out,
        **extras,
    }
    matrices["edge_desc"] = matrices["a_desc" if config.tile.swap_ab else "b_desc"]
    if workspace is None:
        workspace = torch.zeros(plan.workspace_bytes, dtype=torch.uint8, device=a.device)
    values = {"workspace": workspace, "group": plan.group, **extras}
    for name, tile in plan.tiles.items():
        layout = to_gluon(tile.tma_encoding)
        values[name] = TensorDescriptor.from_tensor(matrices[name], list(tile.tma_shape), layout)
    return out, plan.launch(values)


def relative_error(found, expected):
    found = found.double()
    assert torch.isfinite(found).all(), "an element was not written"
    return float((found - expected).norm() / expected.norm())
