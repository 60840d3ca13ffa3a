"""The public functions: `torch.matmul` and its kin, by this project's kernels."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from triton_ext.errors import LayoutError
from triton_ext.kernels.spec import KernelSpec
from triton_ext.ops import registered
from triton_ext.ops.device import Gpu, find_gpu
from triton_ext.ops.eager import (
    is_bare,
    quick_product,
    wants_gradient,
    with_gradient,
    without_activation,
)
from triton_ext.ops.epilogue import (
    NOTHING,
    Epilogue,
    activated,
    broadcasts_to,
    epilogue_of,
    finished,
    number,
    sum_epilogue,
)
from triton_ext.ops.forward_mode import dual_product, has_tangent, refuse_tangents
from triton_ext.ops.plans import find
from triton_ext.ops.products import product
from triton_ext.ops.shapes import broadcast_product
from triton_ext.ops.types import SCALE_LENGTHS, bias_type, output_type, unsupported
from triton_ext.startup import when_imported

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
Fallback = Literal["torch"]
Scales = Tensor | Sequence[Tensor]


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
    config: KernelSpec | None = None,
    fallback: Fallback | None = None,
) -> Tensor:
    """``activation(a @ b + bias + beta * residual)`` on the tensor cores, with fp32 accumulation.

    Shapes follow ``torch.matmul``: vectors, matrices, and batches that are broadcast. One launch
    makes the whole product.

    Where b is a matrix, the kernel adds a bias (N,) and a residual, and applies "relu", "gelu" and
    "silu", in fp32, before the output is rounded. An activation that a gradient is asked of,
    "gelu_tanh", and other biases (and a residual beside them) are torch's own operations after the
    kernel, on the product as it was rounded to the output's type.

    Memory beyond the output: a copy of an operand that TMA can read neither by rows nor by columns
    (rows or columns, and matrices of a batch, must start at multiples of 16 bytes, rows or columns
    be contiguous; of fp32, on sm_90 also of fp8 and int8, the K dimension); of a batch that is
    broadcast along some of several dimensions; of a residual that is not of the output's shape, or
    whose rows TMA cannot read; of the output where its rows are no multiple of 16 bytes; for
    split-K, a workspace that is kept for each stream. No call waits for the GPU. The first call for
    a new configuration compiles it.

    Args:
        a: (..., M, K) or (K,), fp16, bf16, fp8 (e4m3, e5m2), int8, or fp32, which is multiplied as
            tf32 where ``torch.set_float32_matmul_precision`` allows it; with any strides, on a
            Hopper or Blackwell GPU. On the host: on the emulated GPU that is active
            (`triton_ext.emulate`), or, where there is no GPU, on an emulated Blackwell; exact, and
            slow.
        b: (..., K, N) or (K,), likewise.
        bias: what can be broadcast to the output, of its type; bf16 for an output of fp8.
        activation: "relu", "gelu" (with erf), "gelu_tanh" or "silu".
        residual: what can be broadcast to the output, of its type.
        beta: what the residual is multiplied with; if 0, the residual is not read, and has no
            gradient.
        out: where to write the output, of its shape (or empty) and type. No gradient flows then. It
            may be the residual.
        out_dtype: of the output; None for the operands' type if it has 16 bits, else fp32, or int32
            for int8. Any type may have fp32, fp16, bf16, or fp8 (e4m3, e5m2), which saturates.
        config: the tile; chosen from the problem's size if None. Its architecture, type and
            major-nesses must be those of the problem.
        fallback: "torch" to leave to PyTorch what there are no kernels for (types, devices).

    Returns:
        (..., M, N), contiguous (``out``, if given); without M if a is a vector, without N if b is.

    Raises:
        UnsupportedDeviceError: the tensors are on another device.
        LayoutError: shapes, types, devices or strides do not fit.
    """
    epilogue = NOTHING
    if bias is not None or activation is not None or residual is not None:
        epilogue = epilogue_of(bias, activation, residual, beta)
    if out is None and out_dtype is None and config is None:
        quick = quick_product(a, b, epilogue)
        if quick is not None:
            return quick
    return _matmul(a, b, epilogue, out, out_dtype, config, fallback)


def _matmul(
    a: Tensor,
    b: Tensor,
    epilogue: Epilogue,
    out: Tensor | None,
    out_dtype: torch.dtype | None,
    config: KernelSpec | None,
    fallback: Fallback | None,
) -> Tensor:
    _check(a, b, fallback)
    _check_kind("out_dtype", out_dtype, torch.dtype, optional=True)
    if config is not None and not isinstance(config, KernelSpec):
        raise LayoutError("config", config, "must be a KernelSpec")
    for name, tensor in (("bias", epilogue.bias), ("residual", epilogue.residual), ("out", out)):
        _check_kind(name, tensor, Tensor, optional=True)
    a, b, epilogue = _autocast(a, b, epilogue)
    by_torch = fallback == "torch" and not _has_kernels(
        a.dtype, b.dtype, out_dtype, a.device, b.device
    )
    if not by_torch:
        _check_output(out_dtype or output_type(a.dtype), a, b, epilogue, out)
    if not by_torch and has_tangent(a, b, epilogue.bias, epilogue.residual):
        if out is not None:
            refuse_tangents(a, b, epilogue.bias, epilogue.residual)
        return _with_tangents(a, b, epilogue, out_dtype, config)
    matrices = a.dim() == b.dim() == 2
    if config is not None:
        eager = not torch.compiler.is_compiling()
        if not (eager and matrices) or wants_gradient(a, b, epilogue):
            raise LayoutError("config", config, "only for 2-D tensors, in eager mode, no gradient")
        a, b = a.resolve_neg(), b.resolve_neg()
        result = finished(product(a, b, out_dtype=out_dtype, config=config), epilogue)
    elif by_torch:
        result = torch.matmul(a, b)
        result = finished(result if out_dtype is None else result.to(out_dtype), epilogue)
    elif not is_bare(a, b, epilogue):
        result = _by_operators(a, b, epilogue, out_dtype)
    elif wants_gradient(a, b, epilogue):
        result = _by_autograd(a, b, epilogue, out_dtype)
    elif (
        out is not None
        and matrices
        and not out.is_neg()
        and (epilogue.bias is None or epilogue.bias.shape == b.shape[1:])
    ):
        _resize(out, (a.shape[0], b.shape[1]))
        product(a, b, epilogue, out_dtype, out=out)
        torch.autograd.graph.increment_version(out)
        return out
    else:
        result = broadcast_product(product, a, b, epilogue, out_dtype)
    if out is None:
        return result
    _resize(out, result.shape)
    return out.copy_(result)


def _with_tangents(
    a: Tensor,
    b: Tensor,
    epilogue: Epilogue,
    out_dtype: torch.dtype | None,
    config: KernelSpec | None,
) -> Tensor:
    def multiply(a: Tensor, b: Tensor, epilogue: Epilogue) -> Tensor:
        return _matmul(a, b, epilogue, None, out_dtype, config, None)

    return activated(dual_product(multiply, a, b, epilogue), epilogue.activation)


def _by_operators(
    a: Tensor, b: Tensor, epilogue: Epilogue, out_dtype: torch.dtype | None
) -> Tensor:
    """The product by the operators that torch knows; the activation apart if it has a gradient."""
    if epilogue.activation is None or not wants_gradient(a, b, epilogue):
        return broadcast_product(registered.product, a, b, epilogue, out_dtype)
    summed = without_activation(epilogue)
    made = broadcast_product(registered.product, a, b, summed, out_dtype)
    return activated(made, epilogue.activation)


def _by_autograd(a: Tensor, b: Tensor, epilogue: Epilogue, out_dtype: torch.dtype | None) -> Tensor:
    """The product of bare tensors, if b is a matrix by an autograd function that costs the host
    little.
    """
    if a.dim() < 2 or b.dim() != 2 or a.dtype != (out_dtype or output_type(a.dtype)):
        return _by_operators(a, b, epilogue, out_dtype)

    def multiply(a: Tensor, b: Tensor, epilogue: Epilogue, _: torch.dtype | None) -> Tensor:
        return with_gradient(a, b, epilogue)

    made = broadcast_product(multiply, a, b, without_activation(epilogue), None)
    return activated(made, epilogue.activation)


def _check(a: Any, b: Any, fallback: Any) -> None:
    for name, tensor in (("a", a), ("b", b)):
        _check_kind(name, tensor, Tensor)
        if tensor.dim() == 0:
            raise LayoutError(f"{name}.shape", (), "must have at least one dimension")
    if fallback is not None and not (isinstance(fallback, str) and fallback == "torch"):
        raise LayoutError("fallback", fallback, 'must be "torch", or None for an error')


def _check_kind(name: str, value: Any, kind: type, *, optional: bool = False) -> None:
    if not (isinstance(value, kind) or (optional and value is None)):
        raise LayoutError(name, type(value).__name__, f"must be a torch.{kind.__name__}")
    if isinstance(value, Tensor) and value.layout is not torch.strided:
        raise LayoutError(f"{name}.layout", value.layout, "must be torch.strided")


def _check_output(
    dtype: torch.dtype, a: Tensor, b: Tensor, epilogue: Epilogue, out: Tensor | None
) -> None:
    """Raise LayoutError unless bias, residual and out are for an output of that type."""
    others = (("bias", epilogue.bias), ("residual", epilogue.residual), ("out", out))
    for name, tensor in others:
        if tensor is None:
            continue
        wanted = bias_type(dtype) if name == "bias" else dtype
        if tensor.dtype != wanted:
            rule = f"must be {wanted} for an output in {dtype}"
            raise LayoutError(f"{name}.dtype", tensor.dtype, rule)
        if tensor.device != a.device:
            rule = f"must be that of a, {a.device}"
            raise LayoutError(f"{name}.device", str(tensor.device), rule)
    if out is not None and torch.is_grad_enabled():
        for name, tensor in (("a", a), ("b", b), *others):
            if tensor is not None and tensor.requires_grad:
                rule = "no gradient flows into out; call it under torch.no_grad(), or without out"
                raise LayoutError(f"{name}.requires_grad", True, rule)


def _resize(out: Tensor, shape: tuple[int, ...]) -> None:
    if out.shape != shape:
        if out.numel():
            raise LayoutError("out.shape", tuple(out.shape), f"must be {tuple(shape)}, or empty")
        out.resize_(shape)


def _autocast(a: Tensor, b: Tensor, epilogue: Epilogue) -> tuple[Tensor, Tensor, Epilogue]:
    """What torch's autocast gives to ``torch.matmul``, if it is active for the device of a."""
    device = a.device.type
    if device not in ("cuda", "cpu") or not torch.is_autocast_enabled(device):
        return a, b, epilogue
    dtype = torch.get_autocast_dtype(device)

    def cast(tensor: Any) -> Any:
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            return tensor
        return tensor if tensor.dtype == torch.float64 else tensor.to(dtype)

    return cast(a), cast(b), Epilogue(*map(cast, epilogue))


def _has_kernels(
    a: torch.dtype,
    b: torch.dtype,
    out: torch.dtype | None,
    device: torch.device,
    other_device: torch.device,
    scales: torch.dtype | None = None,
) -> bool:
    """Whether there are kernels for these types on this device."""
    gpu = find_gpu(device)
    if device != other_device or not isinstance(gpu, Gpu):
        return False
    return unsupported(a, b, out, gpu.arch, scales) is None


# Only once a program imports torch's compiler, which takes as long to import as torch itself.
when_imported(
    "torch._dynamo", functools.partial(torch.compiler.assume_constant_result, _has_kernels)
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
    _check_kind("weight", weight, Tensor)
    if weight.dim() > 2:
        raise LayoutError("weight.shape", tuple(weight.shape), "must have 1 or 2 dimensions")
    epilogue = epilogue_of(bias, activation)
    if out_dtype is None:
        quick = quick_product(input, weight, epilogue, linear=True)
        if quick is not None:
            return quick
    return _matmul(input, weight.t(), epilogue, None, out_dtype, None, fallback)


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

    All of it is done before the output is rounded. An input that is neither (M, N), nor (N,) with
    beta 1, is copied.

    Args:
        input: what can be broadcast to (M, N), of the operands' type; if beta is 0 it is not read,
            and has no gradient.
        a: (M, K).
        b: (K, N).
        out, fallback: as for `matmul`; out may be the input.
    """
    beta, alpha = number("beta", beta), number("alpha", alpha)
    if out is None and beta != 0 and isinstance(input, Tensor) and isinstance(b, Tensor):
        quick = quick_product(a, b, sum_epilogue(input, b, beta, alpha))
        if quick is not None:
            return quick
    _check_dims(2, a=a, b=b)
    _check_kind("input", input, Tensor)
    _check_kind("out", out, Tensor, optional=True)
    a, b, with_input = _autocast(a, b, Epilogue(residual=input))
    addend = with_input.residual
    assert addend is not None
    if addend.dtype != a.dtype:
        raise LayoutError("input.dtype", addend.dtype, f"must be that of a, {a.dtype}")
    shape = (a.shape[0], b.shape[1])
    if not broadcasts_to(addend, shape):
        raise LayoutError("input.shape", tuple(addend.shape), f"must be broadcastable to {shape}")
    _check(a, b, fallback)
    if fallback == "torch" and not _has_kernels(a.dtype, b.dtype, a.dtype, a.device, b.device):
        if out is None:
            return torch.addmm(addend, a, b, beta=beta, alpha=alpha)
        return torch.addmm(addend, a, b, beta=beta, alpha=alpha, out=out)
    _check_output(a.dtype, a, b, with_input, out)
    return _matmul(a, b, sum_epilogue(addend, b, beta, alpha), out, None, None, None)


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
    scale_a: Scales,
    scale_b: Scales,
    *,
    bias: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    use_fast_accum: bool = True,
    fallback: Fallback | None = None,
) -> Tensor:
    """``(scale_a * a) @ (scale_b * b) + bias``, as ``torch._scaled_mm``.

    Scales and bias are applied in fp32 before the output is rounded. There is no gradient. On
    Hopper, an operand of fp8 whose K dimension is not contiguous is copied.

    On Blackwell, both operands may have scales for blocks along K, which the tensor cores apply:

    ======  ======================  ======================  ======================
    format  elements                scales                  elements along K of one
    ======  ======================  ======================  ======================
    mxfp8   e4m3, e5m2              ``float8_e8m0fnu``      32
    mxfp4   ``float4_e2m1fn_x2``    ``float8_e8m0fnu``      32
    nvfp4   ``float4_e2m1fn_x2``    ``float8_e4m3fn``       16
    ======  ======================  ======================  ======================

    They lie as torch and cuBLAS have them: 128 rows of A (columns of B) and 4 scales along K are
    512 contiguous bytes, of row r at 16 * (r % 32) + 4 * (r // 32), and such blocks follow each
    other along K; the last ones are padded. What is read of the padding must not be NaN along K
    (torch's zeros are not); beside the last row it may be anything. No scale is copied or moved;
    an operand is if K is not contiguous, or rows do not start at multiples of 16 bytes.

    Args:
        a: (M, K), fp8 (e4m3 or e5m2), int8, fp16 or bf16; (M, K / 2) of ``float4_e2m1fn_x2``.
        b: (K, N), of the same type, or of the other one of fp8 (on Hopper with Triton 3.9);
            (K / 2, N).
        scale_a: fp32, of one element, or (M, 1). Or scales of blocks; or these and an fp32 of one
            element, as nvfp4 has it.
        scale_b: fp32, of one element, or (1, N). Or of blocks, likewise.
        bias: (N,).
        out_dtype: of the output.
        use_fast_accum: on Hopper, whose tensor cores keep 13 fraction bits below the largest
            product of fp8 when they add: whether they may add up all of K, which is faster. If not,
            they add up 128 elements, and these sums are added in fp32; needs Triton 3.9. Elsewhere
            sums are of fp32 either way.
        fallback: as for `matmul`; but not where an operand has two scales.
    """
    _check_kind("out_dtype", out_dtype, torch.dtype)
    (blocks_a, whole_a), (blocks_b, whole_b) = _scales("a", scale_a), _scales("b", scale_b)
    _check_kind("use_fast_accum", use_fast_accum, bool)
    epilogue = Epilogue(
        bias, scale_a=whole_a, scale_b=whole_b, blocks_a=blocks_a, blocks_b=blocks_b,
        promoted=not use_fast_accum,
    )  # fmt: skip
    if (
        scale_a is not None
        and scale_b is not None
        and (blocks_a is None) == (blocks_b is None)
        and is_bare(a, b, epilogue)
        and a.is_cuda
        and b.is_cuda
        and not wants_gradient(a, b, epilogue)
    ):
        plan = find(a, b, epilogue, out_dtype)
        if plan is not None:
            return plan.run(a, b, epilogue)
    _check_dims(2, a=a, b=b)
    m, n = a.shape[0], b.shape[1]
    _check_blocks(a, m, n, blocks_a, blocks_b)
    wholes = (("scale_a", whole_a, (m, 1)), ("scale_b", whole_b, (1, n)))
    for name, scale, shape in wholes:
        if scale is None and blocks_a is not None:
            continue
        _check_kind(name, scale, Tensor)
        assert scale is not None
        if scale.dtype != torch.float32:
            raise LayoutError(f"{name}.dtype", scale.dtype, "must be torch.float32")
        if scale.numel() != 1 and (scale.shape != shape or blocks_a is not None):
            legal = "of one element beside blocks" if blocks_a is not None else f"{shape}, or (1,)"
            raise LayoutError(f"{name}.shape", tuple(scale.shape), f"must be {legal}")
    _check_kind("bias", bias, Tensor, optional=True)
    if bias is not None and bias.shape != (n,):
        raise LayoutError("bias.shape", tuple(bias.shape), f"must be ({n},)")
    if wants_gradient(a, b, epilogue):
        raise LayoutError("requires_grad", True, "scaled_mm has no gradient; detach its operands")
    scales = None if blocks_a is None else blocks_a.dtype
    kinds = (a.dtype, b.dtype, out_dtype, a.device, b.device, scales)
    if (
        fallback == "torch"
        and isinstance(scale_a, Tensor)
        and isinstance(scale_b, Tensor)
        and not _has_kernels(*kinds)
    ):
        scaled: Tensor = torch._scaled_mm(
            a, b, scale_a=scale_a, scale_b=scale_b, bias=bias, out_dtype=out_dtype,
            use_fast_accum=use_fast_accum,
        )  # fmt: skip
        return scaled
    if bias is not None:
        bias = bias.to(bias_type(out_dtype))
        epilogue = epilogue._replace(bias=bias)
    refuse_tangents(a, b, whole_a, whole_b, bias)
    if is_bare(a, b, epilogue):
        return product(a, b, epilogue, out_dtype)
    return registered.scaled_mm(
        a, b, whole_a, whole_b, bias, out_dtype, blocks_a, blocks_b, use_fast_accum
    )


def _scales(name: str, given: Any) -> tuple[Tensor | None, Any]:
    """The scales of an operand's blocks, if there are any, and its other one."""
    if isinstance(given, (list, tuple)):
        if len(given) != 2:
            rule = "a sequence must have two: the scales of blocks, and an fp32 of one element"
            raise LayoutError(f"scale_{name}", len(given), rule)
        for each in given:
            _check_kind(f"scale_{name}", each, Tensor)
        return given[0], given[1]
    if isinstance(given, Tensor) and given.dtype.itemsize == 1:
        return given, None
    return None, given


def _check_blocks(
    a: Tensor, m: int, n: int, blocks_a: Tensor | None, blocks_b: Tensor | None
) -> None:
    """Raise LayoutError unless neither operand has blocks, or both as many scales as they must."""
    first = blocks_b if blocks_a is None else blocks_a
    if first is None:
        return
    legal = [first.dtype] if first.dtype in SCALE_LENGTHS else list(SCALE_LENGTHS)
    k = a.shape[1] * (2 if a.dtype == torch.float4_e2m1fn_x2 else 1)
    for name, blocks, rows in (("scale_a", blocks_a, m), ("scale_b", blocks_b, n)):
        _check_kind(name, blocks, Tensor, optional=True)
        if blocks is None or blocks.dtype not in legal:
            found = "no blocks" if blocks is None else blocks.dtype
            rule = f"must be of blocks, and one of {legal}, for both operands; or fp32 for both"
            raise LayoutError(f"{name}.dtype", found, rule)
        size = -(-rows // 128) * 512 * -(-k // (4 * SCALE_LENGTHS[blocks.dtype]))
        if blocks.numel() != size or not blocks.is_contiguous():
            rule = f"must be contiguous, of {size} scales in blocks of 128 x 4"
            raise LayoutError(f"{name}.shape", tuple(blocks.shape), rule)


def _check_dims(dims: int, **tensors: Any) -> None:
    for name, tensor in tensors.items():
        _check_kind(name, tensor, Tensor)
        if tensor.dim() != dims:
            raise LayoutError(f"{name}.shape", tuple(tensor.shape), f"must have {dims} dimensions")
