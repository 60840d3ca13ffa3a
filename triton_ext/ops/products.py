"""Products of 2-D and 3-D tensors: no gradient, no broadcasting, no dispatcher."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from triton_ext.errors import LayoutError
from triton_ext.kernels.config import ACTIVATIONS, MatmulConfig, choose_config
from triton_ext.ops.device import Gpu, require_gpu
from triton_ext.ops.epilogue import Epilogue, epilogue_of, finished, scaled
from triton_ext.ops.launches import PreparedLaunch
from triton_ext.ops.operands import (
    TMA_ALIGNMENT,
    TmaView,
    aligned_matrix,
    readable,
    readable_copy,
    tma_strides,
)
from triton_ext.ops.repeated import keep, remember, remember_into, repeated_into
from triton_ext.ops.types import EVERYWHERE, OPERAND_NAMES, OUTPUT_NAMES, output_type, unsupported

MAX_SIZE = 2**31 - 1
"""Sizes are passed to the kernels as 32-bit integers."""

_launches: dict[tuple[Any, ...], PreparedLaunch] = {}


def check_operands(a: Tensor, b: Tensor, dims: int) -> None:
    """Raise LayoutError unless (..., M, K) and (..., K, N) of `dims` dimensions fit."""
    for name, tensor in (("a", a), ("b", b)):
        if tensor.dim() != dims:
            raise LayoutError(f"{name}.shape", tuple(tensor.shape), f"must have {dims} dimensions")
    if a.device != b.device:
        raise LayoutError("b.device", str(b.device), f"must be that of a, {a.device}")
    if a.shape[-1] != b.shape[-2]:
        rule = f"its dimension {dims - 2} must be K = {a.shape[-1]}, as in a"
        raise LayoutError("b.shape", tuple(b.shape), rule)
    if a.shape[:-2] != b.shape[:-2]:
        rule = f"must begin with the batch {tuple(a.shape[:-2])}, as a does"
        raise LayoutError("b.shape", tuple(b.shape), rule)


def _check_types(a: Tensor, b: Tensor, out_dtype: torch.dtype | None, gpu: Gpu) -> None:
    error = unsupported(a.dtype, b.dtype, out_dtype, gpu.arch)
    if error is not None:
        raise error


def product(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    alpha: float = 1,
    out: Tensor | None = None,
    config: MatmulConfig | None = None,
) -> Tensor:
    """``activation(alpha * scale_a * scale_b * (a @ b) + bias)`` of (M, K) and (K, N).

    The kernel of sm_90 does it all before it rounds the output (but for "gelu_tanh"); after other
    kernels come torch's own operations.

    Args:
        bias: (N,), of the output's type.
        scale_a, scale_b: fp32, of one element; or of M, and of N.
        out: (M, N), where to write it; it may share memory with the operands.
        config: the tile, without an epilogue; in place of the one that `choose_config` chooses.

    Raises:
        UnsupportedDeviceError, LayoutError: as for `triton_ext.matmul`.
    """
    simple = bias is None and activation is None and alpha == 1
    simple = simple and scale_a is None and scale_b is None and config is None
    if out is not None and simple:
        repeated = repeated_into(a, b, out)
        if repeated is not None:
            return repeated
    check_operands(a, b, 2)
    gpu = require_gpu(a.device)
    _check_types(a, b, out_dtype, gpu)
    dtype = out_dtype or output_type(a.dtype)
    (m, k), n = a.shape, b.shape[1]
    if max(m, n, k) > MAX_SIZE:
        raise LayoutError("shape", (m, n, k), f"M, N and K must be at most {MAX_SIZE}")
    if bias is not None and (bias.shape != (n,) or bias.dtype != dtype):
        raise LayoutError("bias", (tuple(bias.shape), bias.dtype), f"must be {(n,)} of {dtype}")
    for name, tensor in (("bias", bias), ("scale_a", scale_a), ("scale_b", scale_b)):
        if tensor is not None and tensor.device != a.device:
            rule = f"must be that of a, {a.device}"
            raise LayoutError(f"{name}.device", str(tensor.device), rule)
    if not (m and n and k):
        made = finished(a.new_zeros((m, n), dtype=dtype), bias, activation)
        return made if out is None else out.copy_(made)
    direct = out is not None and _writable(out, a, b, bias, scale_a, scale_b)
    c = out if direct and out is not None else aligned_matrix(a, m, n, dtype)
    fused = gpu.arch == 90 and (config is None or config.consumers > 0)
    late_activation = activation if not fused or activation not in ACTIVATIONS else None
    if fused:
        epilogue = epilogue_of(
            bias, None if late_activation else activation, scale_a, scale_b, alpha
        )
        launch, copies = _multiply(gpu, a, b, c, epilogue, config)
        made = finished(c, None, late_activation)
    else:
        launch, copies = _multiply(gpu, a, b, c, epilogue_of(None, None, None, None, 1), config)
        made = finished(scaled(c, scale_a, scale_b, alpha), bias, activation)
    repeatable = gpu.index is not None and config is None and alpha == 1 and not late_activation
    if repeatable and a.dtype != torch.float32:  # whose products are a matter of settings
        if out is None and (simple or fused):
            remember(launch, a, b, bias, activation, (scale_a, scale_b), c, copies)
        elif out is not None and direct and simple and copies is None:
            remember_into(launch, a, b, out)
    if out is None:
        return made.contiguous()
    return out if made is out else out.copy_(made)


def _multiply(
    gpu: Gpu,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    epilogue: Epilogue,
    config: MatmulConfig | None = None,
) -> tuple[PreparedLaunch, tuple[bool, bool] | None]:
    """Write a product to c, whose rows TMA may write up to the next multiple of 16 bytes.

    Returns the launch, and which of the operands had to be copied for it (None: neither).
    """
    a_view, b_view = readable(a, k_dim=1), readable(b, k_dim=0)
    if a_view is None or b_view is None:
        copies = a_view is None, b_view is None
        a = a if a_view else readable_copy(a, k_dim=1)
        b = b if b_view else readable_copy(b, k_dim=0)
        return _multiply(gpu, a, b, c, epilogue, config)[0], copies
    launch = _launch(gpu, config, epilogue.fields, a, b, c, a_view, b_view)
    with gpu.current():
        launch(a, b, c, [epilogue.values[name] for name in launch.extras])
    return launch, None


def _writable(out: Tensor, *operands: Tensor | None) -> bool:
    """Whether TMA can write `out` row by row while the operands are being read.

    It writes whole units of 16 bytes, also where a row ends within one (seen on an H100).
    """
    storage = out.untyped_storage().data_ptr()
    return (
        tma_strides(out) is not None
        and out.shape[-1] * out.element_size() % TMA_ALIGNMENT == 0
        and all(each is None or each.untyped_storage().data_ptr() != storage for each in operands)
    )


def _launch(
    gpu: Gpu,
    config: MatmulConfig | None,
    fields: dict[str, Any],
    a: Tensor,
    b: Tensor,
    c: Tensor,
    a_view: TmaView,
    b_view: TmaView,
) -> PreparedLaunch:
    """The launch for tensors like these; kept for the next call."""
    key = (
        gpu.arch, gpu.index, config, *fields.items(), a.dtype, a.shape, a.stride(),
        b.shape, b.stride(), c.dtype, c.stride(),
    )  # fmt: skip
    found = _launches.get(key)
    if found is not None:
        return found
    (m, n), k = c.shape, a.shape[1]
    problem = (gpu.arch, OPERAND_NAMES[a.dtype], a_view.major, b_view.major)
    if config is None:
        out_type = None if a.dtype in EVERYWHERE and c.dtype == a.dtype else OUTPUT_NAMES[c.dtype]
        config = choose_config(*problem, m, n, k, gpu.properties.multi_processor_count, out_type)
    elif (config.arch, config.element_type, config.a_major, config.b_major) != problem:
        raise LayoutError("config", config, f"(arch, type, a_major, b_major) must be {problem}")
    elif config.c_type != OUTPUT_NAMES[c.dtype] or any(
        (config.bias, config.activation, config.a_scales, config.b_scales, config.alpha)
    ):
        rule = f"must be for an output in {OUTPUT_NAMES[c.dtype]}, and for a product alone"
        raise LayoutError("config", config, rule)
    strides = tma_strides(c)
    assert strides is not None
    views = (a_view, b_view, TmaView((m, n), strides, "MN"))
    made = PreparedLaunch(gpu, replace(config, **fields) if fields else config, views, k)
    kept: PreparedLaunch = keep(_launches, key, made)
    return kept


def batched_product(
    a: Tensor,
    b: Tensor,
    out_dtype: torch.dtype | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """``a @ b`` of (batch, M, K) and (batch, K, N): one launch for each matrix of the batch.

    One launch makes them all where b is the same for all and the rows of a follow each other.
    """
    check_operands(a, b, 3)
    gpu = require_gpu(a.device)
    _check_types(a, b, out_dtype, gpu)
    dtype = out_dtype or output_type(a.dtype)
    (batch, m, k), n = a.shape, b.shape[2]
    if not (batch and m and n and k):
        return a.new_zeros((batch, m, n), dtype=dtype) if out is None else out.zero_()
    if b.stride(0) == 0 and a.stride(0) == m * a.stride(1):
        folded = product(a.as_strided((batch * m, k), a.stride()[1:]), b[0], out_dtype=dtype)
        return folded.view(batch, m, n) if out is None else out.copy_(folded.view(batch, m, n))
    a, b = _readable_batch(a, k_dim=1), _readable_batch(b, k_dim=0)
    if out is not None and not all(_writable(each, a, b) for each in out.unbind()):
        return out.copy_(batched_product(a, b, out_dtype))
    nothing = epilogue_of(None, None, None, None, 1)
    c = aligned_matrix(a, batch * m, n, dtype).unflatten(0, (batch, m)) if out is None else out
    for matrices in zip(a.unbind(), b.unbind(), c.unbind(), strict=True):
        _multiply(gpu, *matrices, nothing)
    return c.contiguous() if out is None else out


def _readable_batch(matrices: Tensor, k_dim: int) -> Tensor:
    """The same matrices, all of which TMA can read."""
    step = matrices.stride(0) * matrices.element_size()
    if readable(matrices[0], k_dim) and (len(matrices) == 1 or step % TMA_ALIGNMENT == 0):
        return matrices
    if k_dim == 0 and matrices.dtype not in EVERYWHERE:
        return _readable_batch(matrices.mT, 1).mT
    batch, rows, columns = matrices.shape
    copy: Tensor = aligned_matrix(matrices, batch * rows, columns).unflatten(0, (batch, rows))
    return copy.copy_(matrices)
