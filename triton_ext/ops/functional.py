"""The public functions: `torch.matmul` and its kin, by this project's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from triton_ext.errors import LayoutError
from triton_ext.kernels.spec import KernelSpec
from triton_ext.ops import registered
from triton_ext.ops.call import Call, call_of, is_bare, wants_gradient
from triton_ext.ops.checks import (
    autocast,
    by_tensor_cores,
    check_added,
    check_asked,
    check_dims,
    check_kind,
    check_order,
    checked,
    has_kernels,
    pair_of,
)
from triton_ext.ops.derivatives import refuse_tangents
from triton_ext.ops.eager import multiply, repeated, shortened, shortened_with
from triton_ext.ops.epilogue import (
    NOTHING,
    Epilogue,
    activated,
    broadcasts_to,
    epilogue_from,
    epilogue_of,
    finished,
    number,
    sum_epilogue,
)
from triton_ext.ops.gates import Gate
from triton_ext.ops.products import product
from triton_ext.ops.scales import (
    blocks_of,
    for_tensor_cores,
    have_blocks,
    same_shape,
    scale_columns,
)
from triton_ext.ops.shapes import canonical
from triton_ext.ops.types import SCALE_LENGTHS, bias_type

Activation = Literal["relu", "gelu", "gelu_tanh", "quick_gelu", "silu"] | Gate
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
    batch_invariant: bool | None = None,
    fallback: Fallback | None = None,
) -> Tensor:
    """``activation(a @ b + bias + beta * residual)`` on the tensor cores, with fp32 accumulation.

    Shapes follow ``torch.matmul``: vectors, matrices, and batches that are broadcast. One launch
    makes the whole product.

    The kernel adds a bias (N,) and a residual, and applies the activation, in fp32, before the
    output is rounded. An activation that a gradient is asked of, other biases, what is added to a
    product with a vector b, or to a batch of integers (and a residual beside these) are torch's own
    operations after the kernel, on the product as it was rounded to the output's type.

    A gated activation makes (..., M, N / 2) of the product in the kernel: the first half of the
    columns, the gate, by silu ("swiglu"), gelu ("geglu") or relu ("reglu"), times the second half,
    up; or, with "swiglu_interleaved" and so on, of each two neighbours. "swigluoai" is GPT-OSS's:
    the gate at most 7, times the logistic function of 1.702 times that, times up, clamped to +-7,
    plus 1. The sums are never stored:
    for a gradient they are made again.

    Memory beyond the output: a copy of an operand that TMA can read neither by rows nor by columns
    (rows or columns, and matrices of a batch, must start at multiples of 16 bytes, rows or columns
    be contiguous; of fp32, on sm_90 also of fp8 and int8, the K dimension); of a batch that is
    broadcast along some of several dimensions; of a residual that is not of the output's shape, or
    whose rows TMA cannot read; of the output where its rows are no multiple of 16 bytes; for
    split-K, a workspace that is kept for each stream, and for each stream of a CUDA graph's
    capture. No call waits for the GPU. The first call for a new configuration compiles it.

    Args:
        a: (..., M, K) or (K,), fp16, bf16, fp8 (e4m3, e5m2), int8, or fp32, which is multiplied as
            tf32 where ``torch.set_float32_matmul_precision`` allows it; with any strides, on a
            Hopper or Blackwell GPU. On the host: on the emulated GPU that is active
            (`triton_ext.emulate`), or, where there is no GPU, on an emulated Blackwell; exact, and
            slow.
        b: (..., K, N) or (K,), likewise.
        bias: what can be broadcast to the output, of its type; bf16 for an output of fp8.
        activation: "relu", "gelu" (with erf), "gelu_tanh", "quick_gelu" (x times the logistic
            function of 1.702 x) or "silu"; or gated: N must be even then, the bias is for N
            columns, and there is no residual.
        residual: what can be broadcast to the output, of its type.
        beta: what the residual is multiplied with; if 0, the residual is not read, and its gradient
            is zero.
        out: where to write the output, of its shape (or empty) and type. No gradient flows then. It
            may be the residual.
        out_dtype: of the output; None for the operands' type if it has 16 bits, else fp32, or int32
            for int8. Any type may have fp32, fp16, bf16, or fp8 (e4m3, e5m2), which saturates.
        config: the tile; chosen from the problem's size if None. Its architecture, type and
            major-nesses must be those of the problem.
        batch_invariant: whether a row's bits must not depend on how many rows are with it, in the
            product and in those of its gradients (`triton_ext.batch_invariant`); None for what that
            or the environment says. A configuration must not divide K then.
        fallback: "torch" to leave to PyTorch what there are no kernels for (types, devices).

    Returns:
        (..., M, N), contiguous (``out``, if given); without M if a is a vector, without N if b is;
        (..., M, N / 2) with a gated activation.

    Raises:
        UnsupportedDeviceError: the tensors are on another device.
        LayoutError: shapes, types, devices or strides do not fit.
    """
    function = None
    if (
        residual is None
        and out_dtype is None
        and out is None
        and config is None
        and batch_invariant is None
    ):
        function = "matmul"
        made = shortened(function, a, b, bias, activation)
        if made is not None:
            return made
    epilogue = NOTHING
    if bias is not None or activation is not None or residual is not None:
        epilogue = epilogue_of(bias, activation, residual, beta, differentiable=True)
    call = call_of((a, b, epilogue, out_dtype, out, False, config, batch_invariant))
    made = repeated(call, function)
    return _made(call, fallback) if made is None else made


def _made(call: Call, fallback: Fallback | None = None) -> Tensor:
    """The result of a call of which nothing is known."""
    call, is_left = checked(call, fallback)
    if is_left:
        made, late = torch.matmul(call.a, call.b), call.epilogue
        made = made if call.out_dtype is None else made.to(call.out_dtype)
    else:
        if call.out is not None:
            refuse_tangents((call.a, call.b, *call.epilogue), "what is written to an out")
        bare, gradient = is_bare(call), wants_gradient(call)
        plain, shape, late = canonical(call, gradient)
        if call.out is not None and late.gate is None:
            _resize(call.out, shape)
        made = multiply(plain, bare, gradient)
        made = made if made.shape == shape else made.view(shape)
    made = finished(made, late)
    if call.out is None:
        return made
    if made is call.out:
        torch.autograd.graph.increment_version(made)
        return made
    _resize(call.out, made.shape)
    return call.out.copy_(made)


def _resize(out: Tensor, shape: tuple[int, ...]) -> None:
    if out.shape != shape:
        if out.numel():
            raise LayoutError("out.shape", tuple(out.shape), f"must be {tuple(shape)}, or empty")
        out.resize_(shape)


def linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: Activation | None = None,
    out_dtype: torch.dtype | None = None,
    batch_invariant: bool | None = None,
    fallback: Fallback | None = None,
) -> Tensor:
    """``activation(input @ weight.T + bias)``, as ``torch.nn.functional.linear``.

    With ``activation="swiglu"`` it is the first half of a transformer's feed-forward block, given
    the weights of gate and up one after the other (or in turns: "swiglu_interleaved").

    Args:
        input: (..., K).
        weight: (N, K), or (K,).
        bias: (N,), or what can be broadcast to the output.
        activation, out_dtype, batch_invariant, fallback: as for `matmul`.

    Returns:
        (..., N); (...) if weight is a vector; (..., N / 2) with a gated activation.
    """
    function = None
    if out_dtype is None and batch_invariant is None:
        function = "linear"
        made = shortened(function, input, weight, bias, activation)
        if made is not None:
            return made
    check_kind("weight", weight, Tensor)
    if weight.dim() > 2:
        raise LayoutError("weight.shape", tuple(weight.shape), "must have 1 or 2 dimensions")
    epilogue = NOTHING
    if bias is not None or activation is not None:
        epilogue = epilogue_of(bias, activation)
    call = call_of((input, weight, epilogue, out_dtype, None, True, None, batch_invariant))
    made = repeated(call, function)
    return _made(call, fallback) if made is None else made


def addmm(
    input: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: Tensor | None = None,
    batch_invariant: bool | None = None,
    fallback: Fallback | None = None,
) -> Tensor:
    """``beta * input + alpha * (a @ b)``, as ``torch.addmm``.

    All of it is done before the output is rounded. An input that is neither (M, N), nor (N,) with
    beta 1, is copied.

    Args:
        input: what can be broadcast to (M, N), of the operands' type; if beta is 0 it is not read,
            and its gradient is zero.
        a: (M, K); not read if alpha is 0, and its gradient is zero.
        b: (K, N); likewise.
        out, batch_invariant, fallback: as for `matmul`; out may be the input.
    """
    function = None
    is_sum = type(beta) is int and type(alpha) is int and beta == alpha == 1
    if is_sum and out is None and batch_invariant is None:
        function = "addmm"
        made = shortened(function, a, b, input)
        if made is not None:
            return made
    beta, alpha = number("beta", beta), number("alpha", alpha)
    tensors = isinstance(input, Tensor) and isinstance(a, Tensor) and isinstance(b, Tensor)
    if tensors and beta != 0 and a.dim() == 2:
        epilogue = sum_epilogue(input, b, beta, alpha)
        call = call_of((a, b, epilogue, None, out, False, None, batch_invariant))
        made = repeated(call, function)
        if made is not None:
            return made
    check_dims(2, a=a, b=b)
    check_kind("input", input, Tensor)
    check_kind("out", out, Tensor, optional=True)
    asked = Call(a, b, Epilogue(residual=input), None, out, batch_invariant=batch_invariant)
    call = autocast(asked)
    a, b, addend = call.a, call.b, call.epilogue.residual
    assert addend is not None
    if addend.dtype != a.dtype:
        raise LayoutError("input.dtype", addend.dtype, f"must be that of a, {a.dtype}")
    if not broadcasts_to(addend, call.shape):
        rule = f"must be broadcastable to {call.shape}"
        raise LayoutError("input.shape", tuple(addend.shape), rule)
    check_asked(call, fallback)
    if fallback == "torch" and not has_kernels(call):
        if out is None:
            return torch.addmm(addend, a, b, beta=beta, alpha=alpha)
        return torch.addmm(addend, a, b, beta=beta, alpha=alpha, out=out)
    check_added(call)
    if beta == 0:
        epilogue = epilogue_of(residual=addend, beta=0, alpha=alpha, differentiable=True)
    else:
        epilogue = sum_epilogue(addend, b, beta, alpha)
    return _made(call._replace(epilogue=epilogue))


def bmm(
    a: Tensor,
    b: Tensor,
    *,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    batch_invariant: bool | None = None,
    fallback: Fallback | None = None,
) -> Tensor:
    """``a @ b`` of (batch, M, K) and (batch, K, N), as ``torch.bmm``.

    The other arguments are those of `matmul`.
    """
    check_dims(3, a=a, b=b)
    if a.shape[0] != b.shape[0]:
        raise LayoutError("b.shape", tuple(b.shape), f"must have the batch of a, {a.shape[0]}")
    return matmul(
        a, b, out=out, out_dtype=out_dtype, batch_invariant=batch_invariant, fallback=fallback
    )


def scaled_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Scales,
    scale_b: Scales,
    *,
    bias: Tensor | None = None,
    activation: Activation | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    use_fast_accum: bool = True,
    batch_invariant: bool | None = None,
    fallback: Fallback | None = None,
) -> Tensor:
    """``activation((scale_a * a) @ (scale_b * b) + bias)``, as ``torch._scaled_mm``.

    Scales, bias and activation are applied in fp32 before the output is rounded. There is no
    gradient. On Hopper, an operand of fp8 whose K dimension is not contiguous is copied.

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

    On both architectures, operands of fp8 may have fp32 scales for each 128 elements along K, of
    each row (of a; column of b) or of each 128: (M, ceil(K / 128)) or (ceil(M / 128),
    ceil(K / 128)) for a, (ceil(K / 128), N) or (ceil(K / 128), ceil(N / 128)) for b, but not of 128
    for both. Each sum of 128 products is multiplied with both scales in fp32, and added in fp32.
    They are read where they lie if one of their dimensions is contiguous, which may be either.
    Scales of such shapes may be ``float8_e8m0fnu``, too, which has powers of two alone: on
    Blackwell the tensor cores apply them then, where a and b are of one type; torch writes them out
    for each 32 elements, as these take them. Elsewhere they are made fp32.

    Args:
        a: (M, K), fp8 (e4m3 or e5m2), int8, fp16 or bf16; (M, K / 2) of ``float4_e2m1fn_x2``.
        b: (K, N), of the same type, or of the other one of fp8 (on Hopper with Triton 3.9);
            (K / 2, N).
        scale_a: fp32, of one element, or (M, 1). Or scales of blocks; or these and an fp32 of one
            element, as nvfp4 has it. (With K up to 128, (M, 1) are those of rows if b's are of
            columns, which is the same.)
        scale_b: fp32, of one element, or (1, N). Or of blocks, likewise.
        bias: (N,).
        activation: as for `matmul`; a gated one, with fp32 scales alone, where those of blocks of
            128 columns are of the gate or of up: N is a multiple of 256 then.
        out_dtype: of the output.
        use_fast_accum: on Hopper, whose tensor cores keep 13 fraction bits below the largest
            product of fp8 when they add: whether they may add up all of K, which is faster. If not,
            they add up 128 elements, and these sums are added in fp32; needs Triton 3.9. Elsewhere
            sums are of fp32 either way.
        batch_invariant: as for `matmul`.
        fallback: as for `matmul`; but not where an operand has two scales.
    """
    check_kind("out_dtype", out_dtype, torch.dtype)
    same = isinstance(scale_b, Tensor) and scale_b is scale_a
    function, others = None, (scale_a, None if same else scale_b, bias)
    if (
        batch_invariant is None
        and type(use_fast_accum) is bool
        and (activation is None or type(activation) is str)
    ):
        function = "scaled_mm", activation, out_dtype, use_fast_accum
        made = shortened_with(function, a, b, *others)
        if made is not None:
            return made
    (blocks_a, whole_a), (blocks_b, whole_b) = _scales("a", scale_a), _scales("b", scale_b)
    if (blocks_a is None) != (blocks_b is None):  # with K up to 128 as long as a row's
        blocks_a, whole_a = _as_blocks(blocks_a, whole_a)
        blocks_b, whole_b = _as_blocks(blocks_b, whole_b)
    if _are_powers_of_two(a, b, blocks_a, blocks_b):
        blocks_a, blocks_b = _applied_powers(a, b, blocks_a, blocks_b)
    check_kind("use_fast_accum", use_fast_accum, bool)
    epilogue_of(activation=activation)  # raises
    scales = whole_a, whole_b, blocks_a, blocks_b
    added = bias, activation, None, 1.0, 1.0
    epilogue = epilogue_from((*added, *scales, not use_fast_accum, None, None, None, None))
    call = call_of((a, b, epilogue, out_dtype, None, False, None, batch_invariant))
    check_order(call)
    if scale_a is not None and scale_b is not None and (blocks_a is None) == (blocks_b is None):
        made = repeated(call, function, others)
        if made is not None:
            return made
    check_dims(2, a=a, b=b)
    (m, k), n = a.shape, b.shape[1]
    if blocks_a is None and _are_blocks_of_one(whole_a, whole_b, m, n, k):
        blocks_a, whole_a, blocks_b, whole_b = whole_a, None, whole_b, None
        scales = whole_a, whole_b, blocks_a, blocks_b
        epilogue = epilogue_from((*added, *scales, not use_fast_accum, None, None, None, None))
        call = call._replace(epilogue=epilogue)
    check_blocks(a, m, n, blocks_a, blocks_b)
    wholes = (("scale_a", whole_a, (m, 1)), ("scale_b", whole_b, (1, n)))
    for name, scale, shape in wholes:
        if scale is None and blocks_a is not None:
            continue
        check_kind(name, scale, Tensor)
        assert scale is not None
        if scale.dtype != torch.float32:
            raise LayoutError(f"{name}.dtype", scale.dtype, "must be torch.float32")
        if scale.numel() != 1 and (not same_shape(scale.shape, shape) or blocks_a is not None):
            legal = "of one element beside blocks" if blocks_a is not None else f"{shape}, or (1,)"
            raise LayoutError(f"{name}.shape", tuple(scale.shape), f"must be {legal}")
    check_kind("bias", bias, Tensor, optional=True)
    if bias is not None and bias.shape != (n,):
        raise LayoutError("bias.shape", tuple(bias.shape), f"must be ({n},)")
    if wants_gradient(call):
        raise LayoutError("requires_grad", True, "scaled_mm has no gradient; detach its operands")
    if (
        fallback == "torch"
        and isinstance(scale_a, Tensor)
        and isinstance(scale_b, Tensor)
        and not has_kernels(call)
    ):
        scaled: Tensor = torch._scaled_mm(
            a, b, scale_a=scale_a, scale_b=scale_b, bias=bias, out_dtype=out_dtype,
            use_fast_accum=use_fast_accum,
        )  # fmt: skip
        return activated(scaled, activation)
    if bias is not None:
        bias = bias.to(bias_type(out_dtype))
        call = call._replace(epilogue=epilogue._replace(bias=bias))
    if is_bare(call):
        return product(call)
    return registered.scaled_mm(
        a, b, whole_a, whole_b, bias, out_dtype, blocks_a, blocks_b, use_fast_accum, activation,
        batch_invariant,
    )  # fmt: skip


def _scales(name: str, given: Any) -> tuple[Tensor | None, Any]:
    """The scales of an operand's blocks, if there are any, and its other one."""
    if isinstance(given, (list, tuple)):
        return pair_of(f"scale_{name}", given)
    if isinstance(given, Tensor):
        several_along_k = given.dim() == 2 and given.shape[1 if name == "a" else 0] > 1
        if given.dtype.itemsize == 1 or (given.dtype == torch.float32 and several_along_k):
            return given, None
    return None, given


def _as_blocks(blocks: Tensor | None, whole: Any) -> tuple[Tensor | None, Any]:
    """fp32 scales as those of blocks, as the other operand has such."""
    is_matrix = isinstance(whole, Tensor) and whole.dtype == torch.float32 and whole.dim() == 2
    return (whole, None) if blocks is None and is_matrix else (blocks, whole)


def _are_blocks_of_one(scale_a: Any, scale_b: Any, m: int, n: int, k: int) -> bool:
    """Whether fp32 scales are those of blocks of which there is one along K, and not of rows."""
    for scale in (scale_a, scale_b):
        if not (isinstance(scale, Tensor) and scale.dtype == torch.float32 and scale.dim() == 2):
            return False
    if blocks_of(k) != 1 or scale_a.numel() == scale_b.numel() == 1:
        return False
    of_rows = all(scale.numel() in (1, size) for scale, size in ((scale_a, m), (scale_b, n)))
    return not of_rows and have_blocks(scale_a, m, k) and have_blocks(scale_b.t(), n, k)


def _are_powers_of_two(a: Any, b: Any, blocks_a: Any, blocks_b: Any) -> bool:
    """Whether scales, of which nothing is known, are exponents, each of 128 elements along K."""
    given = a, b, blocks_a, blocks_b
    return (
        all(isinstance(each, Tensor) and each.dim() == 2 for each in given)
        and blocks_a.dtype == blocks_b.dtype == torch.float8_e8m0fnu
        and have_blocks(blocks_a, a.shape[0], a.shape[1])
        and have_blocks(blocks_b.t(), b.shape[1], b.shape[0])
    )


def _applied_powers(a: Tensor, b: Tensor, blocks_a: Any, blocks_b: Any) -> tuple[Tensor, Tensor]:
    """Scales of which `_are_powers_of_two` holds, as kernels of the operands' device take them."""
    m, n = a.shape[0], b.shape[1]
    of_rows = blocks_a.shape[0] == m or blocks_b.shape[1] == n  # what is not, kernels refuse
    if of_rows and by_tensor_cores(a, b, blocks_a.dtype):
        return for_tensor_cores(blocks_a, m), for_tensor_cores(blocks_b.t(), n)
    return blocks_a.float(), blocks_b.float()


def _check_fp32_blocks(
    a: Tensor, m: int, n: int, blocks_a: Tensor | None, blocks_b: Tensor | None
) -> None:
    """Raise LayoutError unless both operands have fp32 scales of blocks, one of them of rows."""
    along = blocks_of(a.shape[1])
    together = []
    for name, blocks, rows in (("scale_a", blocks_a, m), ("scale_b", blocks_b, n)):
        legal = [(rows, along), (blocks_of(rows), along)]
        if name == "scale_b":
            legal = [shape[::-1] for shape in legal]
        if blocks is None or blocks.dtype != torch.float32:
            found = "no blocks" if blocks is None else blocks.dtype
            raise LayoutError(f"{name}.dtype", found, "must be torch.float32, as the other one's")
        of_rows, of_128 = (same_shape(blocks.shape, each) for each in legal)
        if not (of_rows or of_128):
            rule = f"must be {legal[0]} or {legal[1]}: of 1 or 128 rows, and 128 elements along K"
            raise LayoutError(f"{name}.shape", tuple(blocks.shape), rule)
        together.append(not of_rows)
    if all(together):
        rule = f"must be {(along, n)} beside scales of 128 rows of a"
        raise LayoutError(
            "scale_b.shape", tuple(blocks_b.shape) if blocks_b is not None else (), rule
        )


def check_blocks(
    a: Tensor, m: int, n: int, blocks_a: Tensor | None, blocks_b: Tensor | None
) -> None:
    """Raise LayoutError unless neither operand has blocks, or both as many scales as they must."""
    first = blocks_b if blocks_a is None else blocks_a
    if first is None:
        return
    if first.dtype == torch.float32:
        _check_fp32_blocks(a, m, n, blocks_a, blocks_b)
        return
    legal = [first.dtype] if first.dtype in SCALE_LENGTHS else list(SCALE_LENGTHS)
    for name, blocks, rows in (("scale_a", blocks_a, m), ("scale_b", blocks_b, n)):
        check_kind(name, blocks, Tensor, optional=True)
        if blocks is None or blocks.dtype not in legal:
            found = "no blocks" if blocks is None else blocks.dtype
            rule = f"must be of blocks, and one of {legal}, for both operands; or fp32 for both"
            raise LayoutError(f"{name}.dtype", found, rule)
        size = -(-rows // 128) * 512 * scale_columns(a, blocks.dtype)
        if blocks.numel() != size or not blocks.is_contiguous():
            rule = f"must be contiguous, of {size} scales in blocks of 128 x 4"
            raise LayoutError(f"{name}.shape", tuple(blocks.shape), rule)
