"""What is done to a product before, or after, it is rounded to the output's type."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from triton_ext.errors import LayoutError
from triton_ext.kernels.epilogue import EpilogueSpec
from triton_ext.ops.gates import FUNCTIONS, GATES, GateForm, gate_of
from triton_ext.ops.types import FP8_TYPES

ACTIVATION_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **FUNCTIONS,
    **{name: gate.apply for name, gate in GATES.items()},
}


class Epilogue(NamedTuple):
    """``activation(alpha * scale_a * scale_b * (a @ b) + bias + beta * residual)``.

    Make one with `epilogue_of`, which never keeps a residual that must not be read.

    Attributes:
        bias: (N,), or what can be broadcast to the output.
        activation: a key of `ACTIVATION_FUNCTIONS`.
        residual: what can be broadcast to the output.
        beta, alpha: floats.
        scale_a, scale_b: fp32, of one element; or of M, and of N.
        blocks_a, blocks_b: scales of the blocks of a and b along K, which the product takes. Those
            of fp32: (M, ceil(K / 128)) or (ceil(M / 128), ceil(K / 128)); with K first for b.
        fp32_accumulation: whether the product of fp8 must be added up in fp32; on Hopper, see
            `ProductSpec.fp32_accumulation`. Elsewhere the tensor cores do.
        offs: int32, where groups end (`ProductSpec.groups`); of two batches, how many rows count.
        rows, out_rows: int32, (M,): which row of a is multiplied, and to which row of the output
            the product goes; None where they are in order.
        factors: fp32, (M,), with which rows are multiplied last.
    """

    bias: Tensor | None = None
    activation: str | None = None
    residual: Tensor | None = None
    beta: float = 1.0
    alpha: float = 1.0
    scale_a: Tensor | None = None
    scale_b: Tensor | None = None
    blocks_a: Tensor | None = None
    blocks_b: Tensor | None = None
    fp32_accumulation: bool = False
    offs: Tensor | None = None
    rows: Tensor | None = None
    out_rows: Tensor | None = None
    factors: Tensor | None = None

    @property
    def mx_scales(self) -> torch.dtype | None:
        """The type of scales of blocks that the tensor cores apply; None if there are no such."""
        blocks = self.blocks_a
        return None if blocks is None or blocks.dtype == torch.float32 else blocks.dtype

    @property
    def gate(self) -> GateForm | None:
        """What its activation is, if that is gated."""
        return gate_of(self.activation)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name, without those that are None."""
        return {
            name: found
            for name, found in zip(self._fields, self, strict=True)
            if isinstance(found, Tensor)
        }

    def spec(self) -> EpilogueSpec:
        """What a kernel must be compiled for to apply it all."""
        a_scales, b_scales = (
            None if scale is None else "one" if scale.numel() == 1 else "each"
            for scale in (self.scale_a, self.scale_b)
        )
        gate = self.gate
        activation = self.activation if gate is None else gate.activation
        return EpilogueSpec(
            self.bias is not None, activation, a_scales, b_scales, self.alpha != 1,
            self.residual is not None, self.factors is not None,
        )  # fmt: skip


NOTHING = Epilogue()
"""The product alone; whoever has no epilogue has this very one."""
_NO_MORE = NOTHING[5:]


epilogue_from: Callable[[tuple[Any, ...]], Epilogue] = functools.partial(tuple.__new__, Epilogue)
"""An epilogue of the values of all its attributes, in a fourth of the time."""


def epilogue_of(
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    beta: float = 1,
    alpha: float = 1,
    *,
    differentiable: bool = False,
) -> Epilogue:
    """The epilogue of a product; with beta 0 it has no residual, whose NaN must not spread.

    Args:
        differentiable: keep a residual with beta 0 if it asks for a gradient, which is zero. Only
            `finished`, and what makes an epilogue without it, may have such a one.

    Raises:
        LayoutError: an activation that is not known, or a factor that is no number.
    """
    if activation is not None and not (
        isinstance(activation, str) and activation in ACTIVATION_FUNCTIONS
    ):
        rule = f"must be one of {sorted(ACTIVATION_FUNCTIONS)}"
        raise LayoutError("activation", activation, rule)
    beta, alpha = number("beta", beta), number("alpha", alpha)
    if (
        residual is not None
        and beta == 0
        and not (differentiable and isinstance(residual, Tensor) and asks_for_gradient(residual))
    ):
        residual = None
    if residual is not None and activation in GATES:
        rule = f"must be None with the gated activation {activation!r}"
        raise LayoutError("residual", type(residual).__name__, rule)
    if residual is None:
        if bias is None and activation is None and alpha == 1:
            return NOTHING
        beta = 1.0
    return epilogue_from((bias, activation, residual, beta, alpha, *_NO_MORE))


def asks_for_gradient(*tensors: Tensor | None) -> bool:
    """Whether autograd must know what is done to a tensor."""
    return torch.is_grad_enabled() and any(
        each is not None and each.requires_grad for each in tensors
    )


def without_activation(epilogue: Epilogue) -> Epilogue:
    """The same sum, of a product without scales."""
    bias, _, residual, beta, alpha, *_ = epilogue
    return epilogue_of(bias, None, residual, beta, alpha, differentiable=True)


def number(name: str, value: Any) -> float:
    """A factor, or LayoutError."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # of a tensor: RuntimeError
        raise LayoutError(name, value, "must be a number") from None


def sum_epilogue(addend: Tensor, b: Tensor, beta: float, alpha: float) -> Epilogue:
    """The epilogue that makes ``beta * addend + alpha * (a @ b)``: a bias, where it can be one."""
    # Written out: `b.shape[1:]` and `epilogue_of` would take 0.3 us longer.
    if beta == 1 and addend.dim() == 1 and b.dim() == 2 and addend.numel() == b.shape[1]:
        factor = 1.0 if alpha == 1 else number("alpha", alpha)
        return epilogue_from((addend, None, None, 1.0, factor, *_NO_MORE))
    return epilogue_of(residual=addend, beta=beta, alpha=alpha)


def broadcasts_to(tensor: Tensor, shape: Sequence[int]) -> bool:
    """Whether a tensor can be broadcast to a shape."""
    return tensor.dim() <= len(shape) and all(
        size == 1 or size == wanted  # not "in", which torch's compiler gets wrong of symbols
        for size, wanted in zip(reversed(tensor.shape), reversed(shape), strict=False)
    )


def _is_transformed() -> bool:
    """Whether what is added may have tangents, or a batch, that the product has not."""
    return (
        torch.compiler.is_compiling()  # which does not trace the others, and need not know
        or forward_ad._current_level >= 0
        or torch._C._are_functorch_transforms_active()
    )


def activated(made: Tensor, activation: str | None) -> Tensor:
    """A product after an activation, by torch's own operation."""
    return made if activation is None else ACTIVATION_FUNCTIONS[activation](made)


def finished(made: Tensor, epilogue: Epilogue) -> Tensor:
    """A new product after all that an epilogue asks for, by torch's own operations."""
    if epilogue is NOTHING:
        return made
    if made.dtype in FP8_TYPES or not made.is_floating_point():  # for which torch has few
        exact = torch.float32 if made.is_floating_point() else torch.float64
        if epilogue.residual is not None:
            epilogue = epilogue._replace(residual=epilogue.residual.to(exact))
        done = finished(made.to(exact), epilogue)
        if made.dtype in FP8_TYPES:  # saturated, as by the kernels
            limit = torch.finfo(made.dtype).max
            done = done.clamp(-limit, limit)
        return done.to(made.dtype)
    _, _, _, _, alpha, scale_a, scale_b, *_ = epilogue
    if scale_a is not None or scale_b is not None or alpha != 1:
        wide = made.float() * alpha
        if scale_a is not None:
            wide = wide * scale_a.reshape(-1, 1)
        if scale_b is not None:
            wide = wide * scale_b.reshape(1, -1)
        made = wide.to(made.dtype)
    for addend, factor in ((epilogue.bias, 1.0), (epilogue.residual, epilogue.beta)):
        if addend is None:
            continue
        if factor == 0:  # the addend may be NaN, and has a gradient of zeros
            addend = torch.fill(addend, 0)
        if asks_for_gradient(made, addend) or _is_transformed():
            made = torch.add(made, addend, alpha=factor)
        else:
            made = made.add_(addend, alpha=factor)
    return activated(made, epilogue.activation)
