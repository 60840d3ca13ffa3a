"""The products as operators of torch: for autograd, tracing and compilation.

``torch.ops.triton_ext.mm`` (2-D) and ``torch.ops.triton_ext.bmm`` (3-D), with bias, residual and
activation, and ``torch.ops.triton_ext.scaled_mm``, which has no gradient. Importing this module
registers them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from triton_ext.ops import checks, flops, products
from triton_ext.ops.call import Call
from triton_ext.ops.epilogue import NOTHING, Epilogue, epilogue_of, finished
from triton_ext.ops.forward_mode import is_active, refuse_tangents
from triton_ext.ops.gated import gradient_of_sums
from triton_ext.ops.gates import GATES, columns_after
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
        checks.check_operands(a, b, dims)
        return implementation(a, b, *others)

    def fake(
        *args: Any, out_dtype: torch.dtype | None = None, activation: str | None = None
    ) -> Tensor:
        a, b, *_ = args
        checks.check_operands(a, b, dims)
        dtype = args[type_index] if len(args) > type_index else out_dtype
        activation = next((each for each in args if isinstance(each, str)), activation)
        made: Tensor = a.new_empty(
            (*a.shape[:-1], columns_after(activation, b.shape[-1])),
            dtype=dtype or output_type(a.dtype),
        )
        return made

    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CUDA", "CPU"):  # on the host: emulated
        _library.impl(name, call, key)
    operator: torch._ops.OpOverload[..., Tensor] = getattr(torch.ops.triton_ext, name).default
    torch.library.register_fake(operator, fake, lib=_library)
    flops.counted_by(name, flops.of_product)
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
    batch_invariant: bool | None = None,
) -> Tensor:
    epilogue = epilogue_of(bias, activation, residual, beta, alpha)
    return products.product(Call(a, b, epilogue, out_dtype, batch_invariant=batch_invariant))


def _bmm(
    a: Tensor,
    b: Tensor,
    out_dtype: torch.dtype | None = None,
    bias: Tensor | None = None,
    *others: Any,
) -> Tensor:
    return _mm(a, b, bias, out_dtype, *others)


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
    activation: str | None = None,
    batch_invariant: bool | None = None,
) -> Tensor:
    epilogue = Epilogue(
        bias, activation, scale_a=scale_a, scale_b=scale_b, blocks_a=blocks_a, blocks_b=blocks_b,
        fp32_accumulation=not use_fast_accum,
    )  # fmt: skip
    return products.product(Call(a, b, epilogue, dtype, batch_invariant=batch_invariant))


mm = _register(
    # What shards it depends on the types and the activation: DTensor keeps a placement under the
    # arguments from the first integer on, and a type is one.
    "mm(Tensor a, Tensor b, Tensor? bias=None, ScalarType? out_dtype=None,"
    " str? activation=None, Tensor? residual=None, float beta=1, float alpha=1,"
    " bool? batch_invariant=None) -> Tensor",
    2,
    _mm,
    3,
)
bmm = _register(
    "bmm(Tensor a, Tensor b, ScalarType? out_dtype=None, Tensor? bias=None,"
    " str? activation=None, Tensor? residual=None, float beta=1, float alpha=1,"
    " bool? batch_invariant=None) -> Tensor",
    3,
    _bmm,
    2,
)
scaled_mm = _register(
    "scaled_mm(Tensor a, Tensor b, Tensor? scale_a, Tensor? scale_b, Tensor? bias,"
    " ScalarType out_dtype, Tensor? blocks_a=None, Tensor? blocks_b=None,"
    " bool use_fast_accum=True, str? activation=None, bool? batch_invariant=None) -> Tensor",
    2,
    _scaled_mm,
    5,
)


def by_operators(call: Call) -> Tensor:
    """`triton_ext.ops.products.product` of a call without scales, by the operators."""
    call = call.upright
    a, b, epilogue = call.a, call.b, call.epilogue
    if b.dim() == 3:
        return bmm(a, b, call.out_dtype, epilogue.bias, *_others(call))
    lead, n = a.shape[:-1], b.shape[1]
    residual = epilogue.residual  # there is none with a gate
    if residual is not None and len(lead) > 1:
        rows = residual.expand(*lead, n).flatten(0, -2)
        call = call._replace(epilogue=epilogue._replace(residual=rows))
    made = mm(a.flatten(0, -2), b, epilogue.bias, call.out_dtype, *_others(call))
    return made if len(lead) == 1 else made.view(*lead, made.shape[-1])


def _others(call: Call) -> tuple[Any, ...]:
    """The arguments that `mm` and `bmm` end with."""
    _, activation, residual, beta, alpha, *_ = call.epilogue
    return activation, residual, beta, alpha, call.batch_invariant


# ------------------------------------------------------------------------------- gradients


def _keep_mm(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, bias, _, *others = inputs
    _keep(ctx, a, b, bias, *others)


def _keep_bmm(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, _, bias, *others = inputs
    _keep(ctx, a, b, bias, *others)


def _keep(
    ctx: Any, a: Tensor, b: Tensor, bias: Tensor | None, activation: str | None,
    residual: Tensor | None, beta: float, alpha: float, batch_invariant: bool | None,
) -> None:  # fmt: skip
    gated = activation in GATES
    if activation is not None and not gated:
        raise RuntimeError("triton_ext has no gradient of an activation; apply it afterwards")
    needs_a, needs_b, *_ = ctx.needs_input_grad
    kept = a if needs_b or gated else None, b if needs_a or gated else None
    ctx.save_for_backward(*kept, bias if gated else None)
    ctx.gate = activation
    ctx.type, ctx.beta, ctx.alpha, ctx.batch_invariant = a.dtype, beta, alpha, batch_invariant
    ctx.residual_shape = None if residual is None else residual.shape


def _mm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    grad_a, grad_b, grad_bias, grad_residual = _gradients(ctx, grad, mm, bias=2)
    return grad_a, grad_b, grad_bias, None, None, grad_residual, None, None, None


def _bmm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    grad_a, grad_b, grad_bias, grad_residual = _gradients(ctx, grad, bmm, bias=3)
    return grad_a, grad_b, None, grad_bias, None, grad_residual, None, None, None


def _gradients(
    ctx: Any, grad: Tensor, operator: Callable[..., Tensor], bias: int
) -> tuple[Tensor | None, ...]:
    """Those of a, b, the bias (which is the argument of that number), and the residual."""
    # arguments that have their default are not forwarded, and not counted
    needs = (*ctx.needs_input_grad, *(False,) * 8)
    a, b, added = ctx.saved_tensors
    made = functools.partial(operator, alpha=ctx.alpha, batch_invariant=ctx.batch_invariant)
    if ctx.gate is not None:
        sums = made(a, b, bias=added, out_dtype=grad.dtype)
        grad = gradient_of_sums(sums, grad, ctx.gate)
    grad_bias = grad.flatten(0, -2).sum(0) if needs[bias] else None
    grad_residual = (ctx.beta * grad).sum_to_size(ctx.residual_shape) if needs[5] else None
    grad = grad.to(ctx.type)
    return (
        made(grad, b.mT) if needs[0] else None,
        made(a.mT, grad) if needs[1] else None,
        grad_bias,
        grad_residual,
    )


torch.library.register_autograd(mm, _mm_backward, setup_context=_keep_mm, lib=_library)
torch.library.register_autograd(bmm, _bmm_backward, setup_context=_keep_bmm, lib=_library)


# ------------------------------------------------------------------------------------ vmap


def _mm_of_batch(
    info: Any, in_dims: tuple[int | None, ...], a: Tensor, b: Tensor, bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None, activation: str | None = None,
    residual: Tensor | None = None, beta: float = 1, alpha: float = 1,
    batch_invariant: bool | None = None,
) -> tuple[Tensor, int]:  # fmt: skip
    """One product if only a has the new dimension, else `bmm`."""
    a_dim, b_dim, bias_dim, _, _, residual_dim, *_ = (*in_dims, *(None,) * 6)
    one_product = b_dim is None and a_dim is not None and bias_dim is None
    a, b = _batch(info, a, a_dim), b if one_product else _batch(info, b, b_dim)
    epilogue = Epilogue(bias, activation, residual, beta, alpha)
    shape = a.shape[1], b.shape[-1]
    early, late = _epilogues_of_batch(info, shape, epilogue, bias_dim, residual_dim)
    call = Call(a, b, early, out_dtype, batch_invariant=batch_invariant)
    return finished(by_operators(call), late), 0


def _bmm_of_batch(
    info: Any, in_dims: tuple[int | None, ...], a: Tensor, b: Tensor,
    out_dtype: torch.dtype | None = None, bias: Tensor | None = None,
    activation: str | None = None, residual: Tensor | None = None, beta: float = 1,
    alpha: float = 1, batch_invariant: bool | None = None,
) -> tuple[Tensor, int]:  # fmt: skip
    """A larger batch."""
    a_dim, b_dim, _, bias_dim, _, residual_dim, *_ = (*in_dims, *(None,) * 6)
    a, b = _batch(info, a, a_dim), _batch(info, b, b_dim)
    epilogue = Epilogue(bias, activation, residual, beta, alpha)
    shape = *a.shape[1:3], b.shape[-1]
    early, late = _epilogues_of_batch(info, shape, epilogue, bias_dim, residual_dim)
    if early.residual is not None:
        early = early._replace(residual=early.residual.flatten(0, 1))
    a, b, lead = a.flatten(0, 1), b.flatten(0, 1), a.shape[:2]
    call = Call(a, b, early, out_dtype, batch_invariant=batch_invariant)
    return finished(by_operators(call).unflatten(0, lead), late), 0


def _epilogues_of_batch(
    info: Any, shape: tuple[int, ...], epilogue: Epilogue, bias_dim: int | None,
    residual_dim: int | None,
) -> tuple[Epilogue, Epilogue]:  # fmt: skip
    """What is done to outputs of a shape, with the new dimension first: by the kernel, after it."""
    bias, residual = epilogue.bias, epilogue.residual
    if residual is not None:
        residual = _batch(info, residual, residual_dim)
        ones = (1,) * (1 + len(shape) - residual.dim())
        residual = residual.reshape(info.batch_size, *ones, *residual.shape[1:])
        epilogue = epilogue._replace(residual=residual.expand(info.batch_size, *shape))
    if bias is None or bias_dim is None:
        return epilogue, NOTHING
    bias = bias.movedim(bias_dim, 0)  # of each product another one, which no kernel takes
    bias = bias.reshape(info.batch_size, *(1,) * (len(shape) - 1), shape[-1])
    return NOTHING, epilogue._replace(bias=bias)


def _batch(info: Any, tensor: Tensor, dim: int | None) -> Tensor:
    """A tensor with the new dimension first."""
    return tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


torch.library.register_vmap(mm, _mm_of_batch, lib=_library)
torch.library.register_vmap(bmm, _bmm_of_batch, lib=_library)
