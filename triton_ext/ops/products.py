"""Products of 2-D and 3-D tensors: no gradient, no broadcasting, no dispatcher."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from triton_ext.errors import LayoutError
from triton_ext.kernels.config import ACTIVATIONS, MatmulConfig, choose_config
from triton_ext.ops.device import Gpu, require_gpu
from triton_ext.ops.epilogue import (
    EPILOGUE_FIELDS,
    Epilogue,
    broadcasts_to,
    epilogue_of,
    finished,
    scaled,
)
from triton_ext.ops.launches import PreparedLaunch
from triton_ext.ops.operands import (
    TMA_ALIGNMENT,
    TmaView,
    aligned_empty,
    readable,
    readable_copy,
    tma_strides,
)
from triton_ext.ops.repeated import (
    keep,
    remember,
    remember_into,
    remember_sum,
    repeated_into,
    repeated_product,
)
from triton_ext.ops.tuned import Problem, lookup
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
    residual: Tensor | None = None,
    beta: float = 1,
    alpha: float = 1,
    *,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    out: Tensor | None = None,
    config: MatmulConfig | None = None,
    batched: bool = False,
) -> Tensor:
    """``activation(alpha * scale_a * scale_b * (a @ b) + bias + beta * residual)`` of (M, K) and
    (K, N).

    The kernel of sm_90 does it all before it rounds the output (but for "gelu_tanh"); after other
    kernels come torch's own operations.

    Args:
        bias: (N,), of the output's type.
        residual: what can be broadcast to (M, N), of the output's type; not read if beta is 0. A
            copy is made of one that is not (M, N), or whose rows TMA cannot read.
        scale_a, scale_b: fp32, of one element; or of M, and of N.
        out: (M, N), where to write it; it may share memory with the operands, and be the residual.
        config: the tile, without an epilogue; in place of the one that `choose_config` chooses.
        batched: the operands and the output have a first dimension, of at least 2; on sm_90 alone.

    Raises:
        UnsupportedDeviceError, LayoutError: as for `triton_ext.matmul`.
    """
    if beta == 0:
        residual = None
    simple = bias is None and activation is None and residual is None and alpha == 1
    simple = simple and scale_a is None and scale_b is None and config is None
    if out is not None and simple:
        repeated = repeated_into(a, b, out)
        if repeated is not None:
            return repeated
    check_operands(a, b, 3 if batched else 2)
    gpu = require_gpu(a.device)
    _check_types(a, b, out_dtype, gpu)
    dtype = out_dtype or output_type(a.dtype)
    shape = (*a.shape[:-1], b.shape[-1])
    k, n = b.shape[-2:]
    if max(*shape, k) > MAX_SIZE:
        raise LayoutError("shape", (*shape, k), f"sizes must be at most {MAX_SIZE}")
    if bias is not None and (bias.shape != (n,) or bias.dtype != dtype):
        raise LayoutError("bias", (tuple(bias.shape), bias.dtype), f"must be {(n,)} of {dtype}")
    if residual is not None and not (residual.dtype == dtype and broadcasts_to(residual, shape)):
        rule = f"must be of {dtype}, and broadcastable to {shape}"
        raise LayoutError("residual", (tuple(residual.shape), residual.dtype), rule)
    others = (("bias", bias), ("residual", residual), ("scale_a", scale_a), ("scale_b", scale_b))
    for name, tensor in others:
        if tensor is not None and tensor.device != a.device:
            rule = f"must be that of a, {a.device}"
            raise LayoutError(f"{name}.device", str(tensor.device), rule)
    if not (math.prod(shape) and k):
        made = finished(a.new_zeros(shape, dtype=dtype), bias, activation, residual, beta)
        return made if out is None else out.copy_(made)
    fused = gpu.arch == 90 and (config is None or config.consumers > 0)
    direct = (
        out is not None
        and _writable(out, a, b, bias, scale_a, scale_b)
        and (
            residual is None or (fused and _same_memory(out, residual)) or _writable(out, residual)
        )
    )
    c = out if direct and out is not None else aligned_empty(a, shape, dtype)
    late_activation = activation if not fused or activation not in ACTIVATIONS else None
    if fused:
        readable_residual = None if residual is None else _readable_residual(residual, c)
        epilogue = epilogue_of(
            bias,
            None if late_activation else activation,
            scale_a,
            scale_b,
            alpha,
            readable_residual,
            beta,
        )
        launch, copies = _multiply(gpu, a, b, c, epilogue, config)
        made = finished(c, None, late_activation)
    else:
        launch, copies = _multiply(gpu, a, b, c, epilogue_of(None, None, None, None, 1), config)
        made = finished(scaled(c, scale_a, scale_b, alpha), bias, activation, residual, beta)
    repeatable = gpu.index is not None and config is None and not late_activation
    if repeatable and a.dtype != torch.float32:  # whose products are a matter of settings
        if residual is not None:
            alone = bias is None and activation is None and scale_a is None and scale_b is None
            if fused and alone and out is None and readable_residual is residual:
                remember_sum(launch, residual, a, b, alpha, c, copies)
        elif alpha != 1:
            pass
        elif out is None and (simple or fused):
            remember(launch, a, b, bias, activation, (scale_a, scale_b), c, copies)
        elif out is not None and direct and simple and copies is None:
            remember_into(launch, a, b, out)
    if out is None:
        return made.contiguous()
    return out if made is out else out.copy_(made)


def _same_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have each element at the same address."""
    return (
        one.data_ptr() == other.data_ptr()
        and one.shape == other.shape
        and one.stride() == other.stride()
    )


def _readable_residual(residual: Tensor, c: Tensor) -> Tensor:
    """The same values, of the shape of c, where TMA can read them row by row."""
    if residual.shape == c.shape and tma_strides(residual) is not None:
        return residual
    return aligned_empty(c, c.shape, c.dtype).copy_(residual)


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
    residual = epilogue.values.get("c0_desc")
    launch = _launch(gpu, config, epilogue.fields, a, b, c, residual, a_view, b_view)
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
    residual: Tensor | None,
    a_view: TmaView,
    b_view: TmaView,
) -> PreparedLaunch:
    """The launch for tensors like these; kept for the next call."""
    key = (
        gpu.arch, gpu.index, config, *fields.items(), a.dtype, a.shape, a.stride(),
        b.shape, b.stride(), c.dtype, c.stride(), None if residual is None else residual.stride(),
    )  # fmt: skip
    found = _launches.get(key)
    if found is not None:
        return found
    *batch, m, n = c.shape
    k = a.shape[-1]
    problem = (gpu.arch, OPERAND_NAMES[a.dtype], a_view.major, b_view.major)
    if config is None:
        config = _tuned_config(gpu, a, b, c)
    if config is None:
        out_type = None if a.dtype in EVERYWHERE and c.dtype == a.dtype else OUTPUT_NAMES[c.dtype]
        processors = gpu.properties.multi_processor_count
        config = choose_config(*problem, m, n, k, processors, out_type, *batch)
        if batch:
            config = replace(config, batched=True)
    elif (config.arch, config.element_type, config.a_major, config.b_major) != problem:
        raise LayoutError("config", config, f"(arch, type, a_major, b_major) must be {problem}")
    elif config.c_type != OUTPUT_NAMES[c.dtype] or any(
        getattr(config, name) not in (None, False) for name in EPILOGUE_FIELDS
    ):
        rule = f"must be for an output in {OUTPUT_NAMES[c.dtype]}, and for a product alone"
        raise LayoutError("config", config, rule)
    elif config.batched != bool(batch):
        raise LayoutError("config.batched", config.batched, f"must be {bool(batch)} here")
    views = [a_view, b_view]
    for matrix in (c, residual):
        if matrix is not None:
            strides = tma_strides(matrix)
            assert strides is not None
            views.append(TmaView(tuple(matrix.shape), strides, "MN"))
    made = PreparedLaunch(gpu, replace(config, **fields) if fields else config, tuple(views), k)
    kept: PreparedLaunch = keep(_launches, key, made)
    return kept


def prepare(gpu: Gpu, config: MatmulConfig, a: Tensor, b: Tensor, c: Tensor) -> PreparedLaunch:
    """The launch that writes a product to c, all of which TMA can read and write."""
    a_view, b_view = readable(a, k_dim=1), readable(b, k_dim=0)
    assert a_view is not None
    assert b_view is not None
    return _launch(gpu, config, {}, a, b, c, None, a_view, b_view)


def problem_of(gpu: Gpu, a: Tensor, b: Tensor, c: Tensor) -> Problem | None:
    """What `autotune` calls a product of operands that TMA can read; None on an emulated GPU."""
    a_view, b_view = readable(a, k_dim=1), readable(b, k_dim=0)
    name = getattr(gpu.properties, "name", None)
    if name is None or a_view is None or b_view is None:
        return None
    *batch, m, n = c.shape
    return Problem(
        name,
        gpu.properties.multi_processor_count,
        OPERAND_NAMES[a.dtype],
        a_view.major,
        b_view.major,
        OUTPUT_NAMES[c.dtype],
        m,
        n,
        a.shape[-1],
        *batch,
    )


def _tuned_config(gpu: Gpu, a: Tensor, b: Tensor, c: Tensor) -> MatmulConfig | None:
    problem = problem_of(gpu, a, b, c)
    return None if problem is None else lookup(problem)


def forget_launches() -> None:
    """Forget what is prepared: products may be made in another way from now on."""
    _launches.clear()


def batched_product(
    a: Tensor,
    b: Tensor,
    out_dtype: torch.dtype | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """``a @ b`` of (batch, M, K) and (batch, K, N): one launch, but on sm_100 one for each matrix.

    Operands whose batch has a stride of 0 (``expand``) are read where they are. Where b is one, and
    the rows of a follow each other, the batch is multiplied as one matrix.
    """
    if out is None and out_dtype is None:
        repeated = repeated_product(a, b)
        if repeated is not None:
            return repeated
    check_operands(a, b, 3)
    gpu = require_gpu(a.device)
    _check_types(a, b, out_dtype, gpu)
    dtype = out_dtype or output_type(a.dtype)
    (batch, m, k), n = a.shape, b.shape[2]
    if not (batch and m and n and k):
        return a.new_zeros((batch, m, n), dtype=dtype) if out is None else out.zero_()
    if batch == 1:
        made = product(a[0], b[0], out_dtype=dtype, out=None if out is None else out[0])
        return made.unsqueeze(0) if out is None else out
    if a.stride(0) == b.stride(0) == 0:
        made = product(a[0], b[0], out_dtype=dtype).expand(batch, m, n)
        return made.contiguous() if out is None else out.copy_(made)
    rows = folded_batch(a, b)
    if rows is not None:
        made = product(rows, b[0], out_dtype=dtype).view(batch, m, n)
        return made if out is None else out.copy_(made)
    if gpu.arch == 90:
        return product(a, b, out_dtype=out_dtype, out=out, batched=True)
    a, b = _readable_batch(a, k_dim=1), _readable_batch(b, k_dim=0)
    if out is not None and not all(_writable(each, a, b) for each in out.unbind()):
        return out.copy_(batched_product(a, b, out_dtype))
    nothing = epilogue_of(None, None, None, None, 1)
    c = aligned_empty(a, (batch, m, n), dtype) if out is None else out
    for matrices in zip(a.unbind(), b.unbind(), c.unbind(), strict=True):
        _multiply(gpu, *matrices, nothing)
    return c.contiguous() if out is None else out


def folded_batch(a: Tensor, b: Tensor) -> Tensor | None:
    """The matrices of a batch a as one matrix, if b is the same for all, and a's rows follow each
    other.
    """
    batch, m, k = a.shape
    if b.stride(0) != 0 or a.stride(0) != m * a.stride(1):
        return None
    return a.as_strided((batch * m, k), a.stride()[1:])


def _readable_batch(matrices: Tensor, k_dim: int) -> Tensor:
    """The same matrices, each of which TMA can read."""
    step = matrices.stride(0) * matrices.element_size()
    if readable(matrices[0], k_dim) and step % TMA_ALIGNMENT == 0:
        return matrices
    copy: Tensor = aligned_empty(matrices, matrices.shape).copy_(matrices)
    return copy
