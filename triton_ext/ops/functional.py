"""The public functions: `torch.matmul` and its kin, by this project's kernels."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from triton_ext.errors import LayoutError
from triton_ext.kernels.config import MatmulConfig
from triton_ext.ops import registered
from triton_ext.ops.device import Gpu, find_gpu
from triton_ext.ops.eager import Multiply, MultiplyAdd, is_bare, quick_product, wants_gradient
from triton_ext.ops.epilogue import ACTIVATION_FUNCTIONS, broadcasts_to, finished
from triton_ext.ops.forward_mode import dual_product, has_tangent, is_active, refuse_tangents
from triton_ext.ops.products import batched_product, product
from triton_ext.ops.repeated import remember_linear, repeated_scaled, repeated_sum
from triton_ext.ops.shapes import broadcast_product
from triton_ext.ops.types import output_type, unsupported

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
Fallback = Literal["torch"]


def matmul(
    a: Tensor,
    b: Tensor,
    *,
    bias: Tensor | None = None,
    activation: Activation | None = None,
    residual: Tensor | None = None,
    beta: float = 1,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    config: MatmulConfig | None = None,
    fallback: Fallback | None = None,
) -> Tensor:
    """``activation(a @ b + bias + beta * residual)`` on the tensor cores, with fp32 accumulation.

    Shapes follow ``torch.matmul``: vectors, matrices, and batches that are broadcast. One launch
    makes the whole product; on sm_100 one for each matrix of the batch, where b is a batch.

    On sm_90, where b is a matrix, the kernel adds a bias (N,) and a residual, and applies "relu",
    "gelu" and "silu", in fp32, before the output is rounded. An activation that a gradient is asked
    of, "gelu_tanh", other biases (and a residual beside them), and everything on sm_100 are torch's
    own operations after the kernel, on the product as it was rounded to the output's type.

    Memory beyond the output: a copy of an operand that TMA can read neither by rows nor by columns
    (rows or columns, and matrices of a batch, must start at multiples of 16 bytes, rows or columns
    be contiguous; of fp8, int8 and fp32 the K dimension must be contiguous); of a batch that is
    broadcast along some of several dimensions; of a residual that is not of the output's shape, or
    whose rows TMA cannot read; of the output where its rows are no multiple of 16 bytes; for
    split-K, a workspace that is kept for each stream. No call waits for the GPU. The first call for
    a new configuration compiles it.

    Args:
        a: (..., M, K) or (K,), fp16 or bf16, on a Hopper or Blackwell GPU, with any strides. On
            sm_90 also fp8 (e4m3, e5m2), int8, and fp32, which is multiplied as tf32 where
            ``torch.set_float32_matmul_precision`` allows it. On the host: on the emulated GPU that
            is active (`triton_ext.emulate`), or, where there is no GPU, on an emulated Blackwell;
            exact, and slow.
        b: (..., K, N) or (K,), likewise.
        bias: what can be broadcast to the output, of its type.
        activation: "relu", "gelu" (with erf), "gelu_tanh" or "silu".
        residual: what can be broadcast to the output, of its type.
        beta: what the residual is multiplied with; if 0, the residual is not read.
        out: where to write the output, of its shape (or empty) and type. No gradient flows then. It
            may be the residual.
        out_dtype: of the output; None for the operands' type if it has 16 bits, else fp32, or int32
            for int8. On sm_90 also fp32, fp16 or bf16.
        config: the tile; chosen from the problem's size if None. Its architecture, type and
            major-nesses must be those of the problem.
        fallback: "torch" to leave to PyTorch what there are no kernels for (types, devices).

    Returns:
        (..., M, N), contiguous (``out``, if given); without M if a is a vector, without N if b is.

    Raises:
        UnsupportedDeviceError: the tensors are on another device.
        LayoutError: shapes, types, devices or strides do not fit.
    """
    if beta == 0:
        residual = None
    if out is None and out_dtype is None and config is None and residual is None:
        quick = quick_product(a, b, bias, activation, linear=False)
        if quick is not None:
            return quick
    return _matmul(a, b, bias, activation, out, out_dtype, config, fallback, residual, beta)


def _matmul(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    activation: Activation | None,
    out: Tensor | None,
    out_dtype: torch.dtype | None,
    config: MatmulConfig | None,
    fallback: Fallback | None,
    residual: Tensor | None = None,
    beta: float = 1,
) -> Tensor:
    _check(a, b, activation, fallback)
    if _is_autocast(a):
        a, b, bias = _autocast(a), _autocast(b), None if bias is None else _autocast(bias)
        residual = None if residual is None else _autocast(residual)
    by_torch = fallback == "torch" and not _has_kernels(
        a.dtype, b.dtype, out_dtype, a.device, b.device
    )
    if not by_torch:
        _check_output(out_dtype or output_type(a.dtype), a, b, bias, out, residual)
    if is_active() and not by_torch and has_tangent(a, b, bias, residual):
        if out is not None:
            refuse_tangents(a, b, bias, residual)

        def multiply(
            a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None,
            beta: float, alpha: float,
        ) -> Tensor:  # fmt: skip
            return _matmul(a, b, bias, None, None, out_dtype, config, None, residual, beta)

        made = dual_product(multiply, a, b, bias, residual, beta)
        return made if activation is None else ACTIVATION_FUNCTIONS[activation](made)
    no_gradient = not wants_gradient(a, b, bias, residual)
    if config is not None:
        if torch.compiler.is_compiling() or not (no_gradient and a.dim() == b.dim() == 2):
            raise LayoutError("config", config, "only for 2-D tensors, in eager mode, no gradient")
        result = product(a, b, out_dtype=out_dtype, config=config)
        result = finished(result, bias, activation, residual, beta)
    elif by_torch:
        result = torch.matmul(a, b)
        result = result if out_dtype is None else result.to(out_dtype)
        result = finished(result, bias, activation, residual, beta)
    elif not is_bare(a, b, bias, residual):
        result = _product_by_operators(a, b, bias, activation, out_dtype, residual, beta)
    elif not no_gradient:
        result = _product_with_gradient(a, b, bias, activation, out_dtype, residual, beta)
    elif out is not None and a.dim() == b.dim() == 2 and (bias is None or bias.dim() == 1):
        _resize(out, (a.shape[0], b.shape[1]))
        result = product(a, b, bias, activation, out_dtype, residual, beta, out=out)
        torch.autograd.graph.increment_version(out)
    else:
        result = broadcast_product(
            a, b, bias, activation, out_dtype, product, batched_product, residual, beta
        )
    if out is not None and result is not out:
        _resize(out, result.shape)
        out.copy_(result)
    return result if out is None else out


def _product_by_operators(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    activation: str | None,
    out_dtype: torch.dtype | None,
    residual: Tensor | None,
    beta: float,
) -> Tensor:
    """By the operators that torch knows; the activation apart if it needs a gradient."""
    ways = registered.mm, registered.bmm, residual, beta
    if activation is None or not wants_gradient(a, b, bias, residual):
        return broadcast_product(a, b, bias, activation, out_dtype, *ways)
    made = broadcast_product(a, b, bias, None, out_dtype, *ways)
    return ACTIVATION_FUNCTIONS[activation](made)


def _product_with_gradient(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    activation: str | None,
    out_dtype: torch.dtype | None,
    residual: Tensor | None,
    beta: float,
) -> Tensor:
    """Of bare tensors; if b is a matrix, by an autograd function that costs the host little."""
    converted = a.dtype != (out_dtype or output_type(a.dtype))
    if a.dim() < 2 or b.dim() != 2 or residual is not None or converted:
        return _product_by_operators(a, b, bias, activation, out_dtype, residual, beta)
    if bias is None or bias.shape == b.shape[1:]:
        made: Tensor = Multiply.apply(a, b, bias, False)
        return finished(made, None, activation)
    made = Multiply.apply(a, b, None, False)
    if not broadcasts_to(bias, made.shape):
        rule = f"must be broadcastable to {tuple(made.shape)}"
        raise LayoutError("bias.shape", tuple(bias.shape), rule)
    return finished(made, bias, activation)


def _check(a: Any, b: Any, activation: Any, fallback: Any) -> None:
    for name, tensor in (("a", a), ("b", b)):
        if not isinstance(tensor, Tensor):
            raise LayoutError(name, type(tensor).__name__, "must be a torch.Tensor")
        if tensor.layout is not torch.strided:
            raise LayoutError(f"{name}.layout", tensor.layout, "must be torch.strided")
        if tensor.dim() == 0:
            raise LayoutError(f"{name}.shape", (), "must have at least one dimension")
    if activation is not None:
        _check_activation(activation)
    if fallback not in (None, "torch"):
        raise LayoutError("fallback", fallback, 'must be "torch", or None for an error')


def _check_activation(activation: Any) -> None:
    if activation not in ACTIVATION_FUNCTIONS:
        raise LayoutError(
            "activation", activation, f"must be one of {sorted(ACTIVATION_FUNCTIONS)}"
        )


def _check_output(
    dtype: torch.dtype,
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    out: Tensor | None,
    residual: Tensor | None = None,
) -> None:
    """Raise LayoutError unless bias, residual and out are for an output of that type."""
    addends = (("bias", bias), ("residual", residual))
    for name, tensor in (*addends, ("out", out)):
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor):
            raise LayoutError(name, type(tensor).__name__, "must be a torch.Tensor")
        if tensor.dtype != dtype:
            raise LayoutError(f"{name}.dtype", tensor.dtype, f"must be the output's, {dtype}")
        if tensor.device != a.device:
            rule = f"must be that of a, {a.device}"
            raise LayoutError(f"{name}.device", str(tensor.device), rule)
    if out is not None and torch.is_grad_enabled():
        for name, tensor in (("a", a), ("b", b), *addends, ("out", out)):
            if tensor is not None and tensor.requires_grad:
                rule = "no gradient flows into out; call it under torch.no_grad(), or without out"
                raise LayoutError(f"{name}.requires_grad", True, rule)


def _resize(out: Tensor, shape: tuple[int, ...]) -> None:
    if out.shape != shape:
        if out.numel():
            raise LayoutError("out.shape", tuple(out.shape), f"must be {tuple(shape)}, or empty")
        out.resize_(shape)


def _is_autocast(tensor: Tensor) -> bool:
    kind = tensor.device.type
    return kind in ("cuda", "cpu") and torch.is_autocast_enabled(kind)


def _autocast(tensor: Tensor) -> Tensor:
    """What torch's autocast gives to ``torch.matmul``."""
    if tensor.is_floating_point() and tensor.dtype != torch.float64:
        return tensor.to(torch.get_autocast_dtype(tensor.device.type))
    return tensor


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _has_kernels(
    a: torch.dtype,
    b: torch.dtype,
    out: torch.dtype | None,
    device: torch.device,
    other_device: torch.device,
) -> bool:
    """Whether there are kernels for these types on this device."""
    gpu = find_gpu(device)
    return (
        device == other_device and isinstance(gpu, Gpu) and unsupported(a, b, out, gpu.arch) is None
    )


def linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: Activation | None = None,
    out_dtype: torch.dtype | None = None,
    fallback: Fallback | None = None,
) -> Tensor:
    """``activation(input @ weight.T + bias)``, as ``torch.nn.functional.linear``.

    Args:
        input: (..., K).
        weight: (N, K), or (K,).
        bias: (N,), or what can be broadcast to the output.
        activation, out_dtype, fallback: as for `matmul`.

    Returns:
        (..., N); (...) if weight is a vector.
    """
    if not isinstance(weight, Tensor):
        raise LayoutError("weight", type(weight).__name__, "must be a torch.Tensor")
    if weight.dim() > 2:
        raise LayoutError("weight.shape", tuple(weight.shape), "must have 1 or 2 dimensions")
    if out_dtype is None:
        quick = quick_product(input, weight, bias, activation, linear=True)
        if quick is not None:
            return quick
    made = _matmul(input, weight.t(), bias, activation, None, out_dtype, None, fallback)
    if out_dtype is None and is_bare(input, weight, bias) and input.is_cuda:
        remember_linear(input, weight, bias, activation)
        remember_linear(input, weight, bias, None)  # what a gradient is asked of
    return made


def addmm(
    input: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: Tensor | None = None,
    fallback: Fallback | None = None,
) -> Tensor:
    """``beta * input + alpha * (a @ b)``, as ``torch.addmm``.

    On sm_90 all of it is done before the output is rounded; else torch's own operations follow the
    product, which is rounded to its type before. An input that is neither (M, N), nor (N,) with
    beta 1, is copied.

    Args:
        input: what can be broadcast to (M, N), of the operands' type; if beta is 0 it is not read.
        a: (M, K).
        b: (K, N).
        out, fallback: as for `matmul`; out may be the input.
    """
    if (
        out is None
        and isinstance(input, Tensor)
        and is_bare(a, b, None, input)
        and input.is_cuda
        and a.is_cuda
        and b.is_cuda
        and not wants_gradient(a, b, None, input)
        and not torch._C._is_any_autocast_enabled()
    ):
        repeated = repeated_sum(input, a, b, beta, alpha)
        if repeated is not None and beta != 0:
            return repeated
    _check_dims(2, a=a, b=b)
    if not isinstance(input, Tensor):
        raise LayoutError("input", type(input).__name__, "must be a torch.Tensor")
    if _is_autocast(a):
        input, a, b = _autocast(input), _autocast(a), _autocast(b)
    if input.dtype != a.dtype:
        raise LayoutError("input.dtype", input.dtype, f"must be that of a, {a.dtype}")
    shape = (a.shape[0], b.shape[1])
    if not broadcasts_to(input, shape):
        raise LayoutError("input.shape", tuple(input.shape), f"must be broadcastable to {shape}")
    _check(a, b, None, fallback)
    if fallback == "torch" and not _has_kernels(a.dtype, b.dtype, a.dtype, a.device, b.device):
        if out is None:
            return torch.addmm(input, a, b, beta=beta, alpha=alpha)
        return torch.addmm(input, a, b, beta=beta, alpha=alpha, out=out)
    _check_output(a.dtype, a, b, None, out, input)
    addend = input if beta != 0 else None
    if is_active() and has_tangent(addend, a, b):
        if out is not None:
            refuse_tangents(addend, a, b)
        return dual_product(_sum, a, b, None, addend, beta, alpha)
    if alpha == beta == 1 and input.shape == shape[1:]:
        return matmul(a, b, bias=input, out=out)
    if out is None:
        return _sum(a, b, None, addend, beta, alpha)
    _resize(out, shape)
    if not is_bare(a, b, None, addend):
        return out.copy_(_sum(a, b, None, addend, beta, alpha))
    product(a, b, None, None, None, addend, beta, alpha, out=out)
    torch.autograd.graph.increment_version(out)
    return out


def _sum(
    a: Tensor, b: Tensor, bias: Tensor | None, addend: Tensor | None, beta: float, alpha: float
) -> Tensor:
    """``alpha * (a @ b) + bias + beta * addend`` of matrices, and a bias (N,)."""
    if not is_bare(a, b, bias, addend):
        made: Tensor = registered.mm(a, b, bias, None, None, addend, beta, alpha)
    elif wants_gradient(a, b, bias, addend):
        made = MultiplyAdd.apply(a, b, bias, addend, beta, alpha)
    else:
        made = product(a, b, bias, None, None, addend, beta, alpha)
    return made


def bmm(
    a: Tensor,
    b: Tensor,
    *,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    fallback: Fallback | None = None,
) -> Tensor:
    """``a @ b`` of (batch, M, K) and (batch, K, N), as ``torch.bmm``.

    The other arguments are those of `matmul`.
    """
    _check_dims(3, a=a, b=b)
    if a.shape[0] != b.shape[0]:
        raise LayoutError("b.shape", tuple(b.shape), f"must have the batch of a, {a.shape[0]}")
    return matmul(a, b, out=out, out_dtype=out_dtype, fallback=fallback)


def scaled_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    bias: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    fallback: Fallback | None = None,
) -> Tensor:
    """``(scale_a * a) @ (scale_b * b) + bias``, as ``torch._scaled_mm``.

    On sm_90 scales and bias are applied in fp32 before the output is rounded; elsewhere by torch's
    own operations, after it. There is no gradient. Of fp8, an operand whose K dimension is not
    contiguous is copied; Hopper's tensor cores keep 13 fraction bits below the largest product
    when they add.

    Args:
        a: (M, K), fp8 (e4m3 or e5m2), int8, fp16 or bf16.
        b: (K, N), of the same type.
        scale_a: fp32, of one element, or (M, 1).
        scale_b: fp32, of one element, or (1, N).
        bias: (N,).
        out_dtype: of the output.
        fallback: as for `matmul`.
    """
    if (
        is_bare(a, b, bias)
        and is_bare(scale_a, scale_b)
        and a.is_cuda
        and b.is_cuda
        and not wants_gradient(a, b, bias)
    ):
        repeated = repeated_scaled(a, b, scale_a, scale_b, bias, out_dtype)
        if repeated is not None:
            return repeated
    _check_dims(2, a=a, b=b)
    m, n = a.shape[0], b.shape[1]
    for name, scale, shape in (("scale_a", scale_a, (m, 1)), ("scale_b", scale_b, (1, n))):
        if not isinstance(scale, Tensor):
            raise LayoutError(name, type(scale).__name__, "must be a torch.Tensor")
        if scale.dtype != torch.float32:
            raise LayoutError(f"{name}.dtype", scale.dtype, "must be torch.float32")
        if scale.numel() != 1 and scale.shape != shape:
            raise LayoutError(f"{name}.shape", tuple(scale.shape), f"must be {shape}, or (1,)")
    if bias is not None and bias.shape != (n,):
        raise LayoutError("bias.shape", tuple(bias.shape), f"must be ({n},)")
    if wants_gradient(a, b, bias):
        raise LayoutError("requires_grad", True, "scaled_mm has no gradient; detach its operands")
    if fallback == "torch" and not _has_kernels(a.dtype, b.dtype, out_dtype, a.device, b.device):
        scaled: Tensor = torch._scaled_mm(
            a, b, scale_a=scale_a, scale_b=scale_b, bias=bias, out_dtype=out_dtype
        )
        return scaled
    if bias is not None:
        bias = bias.to(out_dtype)
    refuse_tangents(a, b, scale_a, scale_b, bias)
    if is_bare(a, b, bias):
        return product(a, b, bias, None, out_dtype, scale_a=scale_a, scale_b=scale_b)
    made: Tensor = registered.scaled_mm(a, b, scale_a, scale_b, bias, out_dtype)
    return made


def _check_dims(dims: int, **tensors: Any) -> None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise LayoutError(name, type(tensor).__name__, "must be a torch.Tensor")
        if tensor.dim() != dims:
            raise LayoutError(f"{name}.shape", tuple(tensor.shape), f"must have {dims} dimensions")
