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

from triton_ext.ops import products
from triton_ext.ops.epilogue import Epilogue, epilogue_of, finished
from triton_ext.ops.forward_mode import is_active, refuse_tangents
from triton_ext.ops.types import output_type

_library = torch.library.Library("triton_ext", "DEF")


def _register(
    schema: str, dims: int, implementation: Callable[..., Tensor], type_index: int
) -> torch._ops.OpOverload[..., Tensor]:
    """Define an operator, for the GPU, for the emulated one, and for tensors without memory.

    Args:
        dims: how many dimensions a and b have.
        type_index: the position of the argument ``out_dtype``, which may be left out.
    """
    name = schema.partition("(")[0]

    @functools.wraps(implementation)
    def call(a: Tensor, b: Tensor, *others: Any) -> Tensor:
        if is_active():  # called directly, an operator would lose tangents without a word
            refuse_tangents(a, b, *others)
        products.check_operands(a, b, dims)
        return implementation(a, b, *others)

    def fake(*args: Any, out_dtype: torch.dtype | None = None) -> Tensor:
        a, b, *_ = args
        products.check_operands(a, b, dims)
        dtype = args[type_index] if len(args) > type_index else out_dtype
        made: Tensor = a.new_empty(
            (*a.shape[:-1], b.shape[-1]), dtype=dtype or output_type(a.dtype)
        )
        return made

    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CUDA", "CPU"):  # on the host: emulated
        _library.impl(name, call, key)
    operator: torch._ops.OpOverload[..., Tensor] = getattr(torch.ops.triton_ext, name).default
    torch.library.register_fake(operator, fake, lib=_library)
    return operator


def _mm(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    beta: float = 1,
    alpha: float = 1,
) -> Tensor:
    return products.product(a, b, epilogue_of(bias, activation, residual, beta, alpha), out_dtype)


def _bmm(a: Tensor, b: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
    return products.product(a, b, out_dtype=out_dtype)


def _scaled_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor | None,
    scale_b: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
    blocks_a: Tensor | None = None,
    blocks_b: Tensor | None = None,
    use_fast_accum: bool = True,
) -> Tensor:
    epilogue = Epilogue(
        bias, scale_a=scale_a, scale_b=scale_b, blocks_a=blocks_a, blocks_b=blocks_b,
        promoted=not use_fast_accum,
    )  # fmt: skip
    return products.product(a, b, epilogue, dtype)


mm = _register(
    # What shards it depends on the types and the activation: DTensor keeps a placement under the
    # arguments from the first integer on, and a type is one.
    "mm(Tensor a, Tensor b, Tensor? bias=None, ScalarType? out_dtype=None,"
    " str? activation=None, Tensor? residual=None, float beta=1, float alpha=1) -> Tensor",
    2,
    _mm,
    3,
)
bmm = _register("bmm(Tensor a, Tensor b, ScalarType? out_dtype=None) -> Tensor", 3, _bmm, 2)
scaled_mm = _register(
    "scaled_mm(Tensor a, Tensor b, Tensor? scale_a, Tensor? scale_b, Tensor? bias,"
    " ScalarType out_dtype, Tensor? blocks_a=None, Tensor? blocks_b=None,"
    " bool use_fast_accum=True) -> Tensor",
    2,
    _scaled_mm,
    5,
)


def product(a: Tensor, b: Tensor, epilogue: Epilogue, out_dtype: torch.dtype | None) -> Tensor:
    """`triton_ext.ops.products.product` by the operators; without scales."""
    if b.dim() == 3:
        return bmm(a, b, out_dtype)
    bias, activation, residual, beta, alpha, *_ = epilogue
    lead, n = a.shape[:-1], b.shape[1]
    if residual is not None and len(lead) > 1:
        residual = residual.expand(*lead, n).flatten(0, -2)
    made = mm(a.flatten(0, -2), b, bias, out_dtype, activation, residual, beta, alpha)
    return made if len(lead) == 1 else made.view(*lead, n)


# ------------------------------------------------------------------------------- gradients


def _keep_operands(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, *_ = inputs
    needs_a, needs_b, *_ = ctx.needs_input_grad
    ctx.save_for_backward(a if needs_b else None, b if needs_a else None)
    ctx.type = a.dtype


def _keep_mm(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    if inputs[4] is not None:
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
    # arguments that have their default are not forwarded, and not counted
    needs = (*ctx.needs_input_grad, *(False,) * 8)
    grad_bias = grad.sum(0) if needs[2] else None
    grad_residual = (ctx.beta * grad).sum_to_size(ctx.residual_shape) if needs[5] else None
    gradients = _gradients(ctx, grad, functools.partial(mm, alpha=ctx.alpha))
    return *gradients, grad_bias, None, None, grad_residual, None, None


def _bmm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *_gradients(ctx, grad, bmm), None


torch.library.register_autograd(mm, _mm_backward, setup_context=_keep_mm, lib=_library)
torch.library.register_autograd(bmm, _bmm_backward, setup_context=_keep_operands, lib=_library)


# ------------------------------------------------------------------------------------ vmap


def _mm_of_batch(
    info: Any, in_dims: tuple[int | None, ...], a: Tensor, b: Tensor, bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None, activation: str | None = None,
    residual: Tensor | None = None, beta: float = 1, alpha: float = 1,
) -> tuple[Tensor, int]:  # fmt: skip
    """One product if only a has the new dimension, else `bmm`."""
    a_dim, b_dim, bias_dim, _, _, residual_dim, *_ = (*in_dims, *(None,) * 6)
    one_product = b_dim is None and a_dim is not None and bias_dim is None
    a, b = _batch(info, a, a_dim), b if one_product else _batch(info, b, b_dim)
    if residual is not None:
        if residual_dim is not None:
            residual = residual.movedim(residual_dim, 0)
            ones = (1,) * (3 - residual.dim())
            residual = residual.reshape(info.batch_size, *ones, *residual.shape[1:])
        residual = residual.expand(info.batch_size, a.shape[1], b.shape[-1])
    if one_product:
        return product(a, b, Epilogue(bias, activation, residual, beta, alpha), out_dtype), 0
    if bias is not None and bias_dim is not None:
        bias = bias.movedim(bias_dim, 0).unsqueeze(1)
    made = bmm(a, b, out_dtype)
    return finished(made, Epilogue(bias, activation, residual, beta, alpha)), 0


def _bmm_of_batch(
    info: Any, in_dims: tuple[int | None, ...], a: Tensor, b: Tensor,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, int]:  # fmt: skip
    """A larger batch."""
    a, b = (_batch(info, x, dim) for x, dim in zip((a, b), in_dims, strict=False))
    return bmm(a.flatten(0, 1), b.flatten(0, 1), out_dtype).unflatten(0, a.shape[:2]), 0


def _batch(info: Any, tensor: Tensor, dim: int | None) -> Tensor:
    """A tensor with the new dimension first."""
    return tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


torch.library.register_vmap(mm, _mm_of_batch, lib=_library)
torch.library.register_vmap(bmm, _bmm_of_batch, lib=_library)
