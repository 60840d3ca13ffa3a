"""The products as operators of torch: for autograd, tracing and compilation.

``torch.ops.triton_ext.mm`` (2-D, with bias, residual and activation), ``torch.ops.triton_ext.bmm``
(3-D) and ``torch.ops.triton_ext.scaled_mm``, which has no gradient. Importing this module registers
them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from triton_ext.ops.epilogue import finished
from triton_ext.ops.forward_mode import is_active, refuse_tangents
from triton_ext.ops.products import batched_product, check_operands, product
from triton_ext.ops.types import output_type


def _guarded(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Called directly, an operator would lose tangents without a word."""

    @functools.wraps(function)
    def call(*args: Any) -> Tensor:
        if is_active():
            refuse_tangents(*args)
        return function(*args)

    return call


def _scaled(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    return product(a, b, bias, None, dtype, scale_a=scale_a, scale_b=scale_b)


_library = torch.library.Library("triton_ext", "DEF")
for _schema, _implementation in (
    (
        "mm(Tensor a, Tensor b, Tensor? bias=None, str? activation=None,"
        " ScalarType? out_dtype=None, Tensor? residual=None, float beta=1, float alpha=1)"
        " -> Tensor",
        product,
    ),
    ("bmm(Tensor a, Tensor b, ScalarType? out_dtype=None) -> Tensor", batched_product),
    (
        "scaled_mm(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias,"
        " ScalarType out_dtype) -> Tensor",
        _scaled,
    ),
):
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))
    for _key in ("CUDA", "CPU"):  # on the host: emulated
        _library.impl(_schema.partition("(")[0], _guarded(_implementation), _key)

mm = torch.ops.triton_ext.mm.default
bmm = torch.ops.triton_ext.bmm.default
scaled_mm = torch.ops.triton_ext.scaled_mm.default


def _fake(a: Tensor, b: Tensor, dims: int, dtype: torch.dtype | None) -> Tensor:
    check_operands(a, b, dims)
    return a.new_empty((*a.shape[:-1], b.shape[-1]), dtype=dtype or output_type(a.dtype))


def _fake_mm(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    out_dtype: torch.dtype | None = None,
    residual: Tensor | None = None,
    beta: float = 1,
    alpha: float = 1,
) -> Tensor:
    return _fake(a, b, 2, out_dtype)


def _fake_bmm(a: Tensor, b: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
    return _fake(a, b, 3, out_dtype)


def _fake_scaled_mm(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    return _fake(a, b, 2, dtype)


for _operator, _function in ((mm, _fake_mm), (bmm, _fake_bmm), (scaled_mm, _fake_scaled_mm)):
    torch.library.register_fake(_operator, _function, lib=_library)


# ------------------------------------------------------------------------------- gradients


def _keep_operands(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, *_ = inputs
    needs_a, needs_b, *_ = ctx.needs_input_grad
    ctx.save_for_backward(a if needs_b else None, b if needs_a else None)
    ctx.type = a.dtype


def _keep_mm(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    if inputs[3] is not None:
        raise RuntimeError("triton_ext::mm has no gradient of an activation; apply it afterwards")
    _keep_operands(ctx, inputs, output)
    residual, ctx.beta, ctx.alpha = inputs[5:]
    ctx.residual_shape = None if residual is None else residual.shape


def _gradients(
    ctx: Any, grad: Tensor, multiply: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor | None, Tensor | None]:
    a, b = ctx.saved_tensors
    grad = grad.to(ctx.type)
    return (
        None if b is None else multiply(grad, b.mT),
        None if a is None else multiply(a.mT, grad),
    )


def _mm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    def multiply(a: Tensor, b: Tensor) -> Tensor:
        made: Tensor = mm(a, b, alpha=ctx.alpha)
        return made

    # arguments that have their default are not passed on, and not counted
    needs = (*ctx.needs_input_grad, *(False,) * 8)
    grad_bias = grad.sum(0) if needs[2] else None
    grad_residual = (ctx.beta * grad).sum_to_size(ctx.residual_shape) if needs[5] else None
    return *_gradients(ctx, grad, multiply), grad_bias, None, None, grad_residual, None, None


def _bmm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *_gradients(ctx, grad, bmm), None


torch.library.register_autograd(mm, _mm_backward, setup_context=_keep_mm, lib=_library)
torch.library.register_autograd(bmm, _bmm_backward, setup_context=_keep_operands, lib=_library)


# ------------------------------------------------------------------------------------ vmap


def _mm_of_batch(
    info: Any, in_dims: tuple[int | None, ...], a: Tensor, b: Tensor, bias: Tensor | None = None,
    activation: str | None = None, out_dtype: torch.dtype | None = None,
    residual: Tensor | None = None, beta: float = 1, alpha: float = 1,
) -> tuple[Tensor, int]:  # fmt: skip
    """One product if only a has the new dimension, else `bmm`."""
    a_dim, b_dim, bias_dim, _, _, residual_dim, *_ = (*in_dims, *(None,) * 6)
    if a_dim is not None:
        a = a.movedim(a_dim, 0)
    if residual is not None and residual_dim is not None:
        residual = residual.movedim(residual_dim, 0)
    if b_dim is None and a_dim is not None and bias_dim is None:
        if residual is not None:
            shape = (a.shape[1], b.shape[1])
            residual = _matrices(residual, residual_dim, info.batch_size, shape).flatten(0, 1)
        folded = mm(a.flatten(0, 1), b, bias, activation, out_dtype, residual, beta, alpha)
        return folded.unflatten(0, a.shape[:2]), 0
    a = a.expand(info.batch_size, *a.shape) if a_dim is None else a
    b = b.expand(info.batch_size, *b.shape) if b_dim is None else b.movedim(b_dim, 0)
    if bias is not None and bias_dim is not None:
        bias = bias.movedim(bias_dim, 0).unsqueeze(1)
    if residual is not None:
        residual = _matrices(residual, residual_dim, info.batch_size, (a.shape[1], b.shape[2]))
    made = bmm(a, b, out_dtype)
    return finished(made if alpha == 1 else made * alpha, bias, activation, residual, beta), 0


def _matrices(tensor: Tensor, dim: int | None, count: int, shape: tuple[int, int]) -> Tensor:
    """What is broadcast to a matrix, for each of a batch; a `dim` that is not None is the first."""
    if dim is None:
        return tensor.expand(count, *shape)
    ones = (1,) * (3 - tensor.dim())
    return tensor.reshape(count, *ones, *tensor.shape[1:]).expand(count, *shape)


def _bmm_of_batch(
    info: Any, in_dims: tuple[int | None, ...], a: Tensor, b: Tensor,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, int]:  # fmt: skip
    """A larger batch."""
    count = info.batch_size
    a, b = (
        x.expand(count, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip((a, b), in_dims, strict=False)
    )
    shape = a.shape[:2]
    return bmm(a.flatten(0, 1), b.flatten(0, 1), out_dtype).unflatten(0, shape), 0


torch.library.register_vmap(mm, _mm_of_batch, lib=_library)
torch.library.register_vmap(bmm, _bmm_of_batch, lib=_library)
