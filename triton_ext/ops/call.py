"""A product as it is asked for, made one frozen value at once, and handed on as that."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from triton_ext.kernels.spec import KernelSpec
from triton_ext.ops.epilogue import NOTHING, Epilogue
from triton_ext.ops.gates import columns_after
from triton_ext.ops.types import output_type

TENSORS = frozenset((Tensor, Parameter))
"""The types of tensors whose values are those in memory, unless they are negated views."""
# By their names here, not by those in torch: each look-up would take as long as half of the call.
_is_traced = torch.compiler.is_dynamo_compiling
_function_modes = torch._C._len_torch_function_stack
_dispatch_modes = torch._C._len_torch_dispatch_stack
_are_transforms_active = torch._C._are_functorch_transforms_active
_tracing_state = torch._C._get_tracing_state


GROUPS = {(2, 3): "M", (3, 2): "N", (2, 2): "K", (3, 3): "rows"}
"""What groups divide, by the dimensions of a and b."""


class Call(NamedTuple):
    """``epilogue(a @ b)``, with all that was said of how to make it.

    Attributes:
        a: (..., M, K).
        b: (K, N), or (..., K, N); if `linear`, (N, K).
        epilogue: what is done to the product before it is rounded.
        out_dtype: the output's type; None for `output_type` of the operands'.
        out: where the output is written, of its shape and type; None for new memory.
        linear: whether b is given as its transpose, as `torch.nn.Linear` has its weight.
        config: the tile; None for the one that is chosen.
        batch_invariant: whether K must not be divided; None for what `rule.is_batch_invariant`
            says.
    """

    a: Tensor
    b: Tensor
    epilogue: Epilogue = NOTHING
    out_dtype: torch.dtype | None = None
    out: Tensor | None = None
    linear: bool = False
    config: KernelSpec | None = None
    batch_invariant: bool | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The output's type."""
        return self.out_dtype or output_type(self.a.dtype)

    @property
    def groups(self) -> str | None:
        """What groups divide, as `ProductSpec.groups` says it; "" of operands that do not fit."""
        if self.epilogue.offs is None:
            return None
        return GROUPS.get((self.a.dim(), self.b.dim()), "")

    @property
    def shape(self) -> tuple[int, ...]:
        """The output's shape, of a matrix or batch b that is not `linear`."""
        *lead, columns = self.sums_shape
        return (*lead, columns_after(self.epilogue.activation, columns))

    @property
    def sums_shape(self) -> tuple[int, ...]:
        """That of the product before its activation, which may be gated."""
        if self.epilogue.offs is not None and self.groups in ("N", "K"):
            lead = self.epilogue.offs.shape if self.groups == "K" else ()
            return (*lead, self.a.shape[-2], self.b.shape[-1])
        if self.epilogue.rows is not None:
            return len(self.epilogue.rows), self.b.shape[-1]
        return (*self.a.shape[:-1], self.b.shape[-1])

    @property
    def upright(self) -> Call:
        """The same call with b as (..., K, N)."""
        return self._replace(b=self.b.t(), linear=False) if self.linear else self


call_of: Callable[[tuple[Any, ...]], Call] = functools.partial(tuple.__new__, Call)
"""A call of the values of all its attributes, in a fourth of the time that `Call` takes."""


def _is_plain(tensor: Any) -> bool:
    """Whether it is a tensor whose values are those in its memory."""
    return type(tensor) in TENSORS and not tensor.is_neg()


def _is_plain_or_none(tensor: Any) -> bool:
    return tensor is None or _is_plain(tensor)


def is_bare(call: Call) -> bool:
    """Whether tensors are what they are in memory: no subclass, negated view, meta device, mode,
    transformation, tracer, compiler or forward-mode derivative of torch is at work. Gradients and
    autocast may be asked for. Nothing is assumed of what the call holds.
    """
    a, b, epilogue, _, out, _, _, _ = call
    return (
        not _is_traced()
        and type(a) in TENSORS
        and type(b) in TENSORS
        and not a.is_neg()
        and not b.is_neg()
        and not a.is_meta
        and forward_ad._current_level < 0
        and (
            epilogue is NOTHING
            or (
                (epilogue.bias is None or _is_plain(epilogue.bias))
                and (epilogue.residual is None or _is_plain(epilogue.residual))
                and (epilogue.scale_a is None or _is_plain(epilogue.scale_a))
                and (epilogue.scale_b is None or _is_plain(epilogue.scale_b))
                and (epilogue.blocks_a is None or _is_plain(epilogue.blocks_a))
                and (epilogue.blocks_b is None or _is_plain(epilogue.blocks_b))
                and (epilogue.offs is None or all(map(_is_plain_or_none, epilogue[10:])))
            )
        )
        and (out is None or _is_plain(out))
        and not _function_modes()
        and not _dispatch_modes()
        and not _are_transforms_active()
        and _tracing_state() is None
    )


def wants_gradient(call: Call) -> bool:
    """Whether autograd must know of a call."""
    a, b, epilogue, _, _, _, _, _ = call
    return (
        a.requires_grad
        or b.requires_grad
        or (
            epilogue is not NOTHING
            and (
                (epilogue.bias is not None and epilogue.bias.requires_grad)
                or (epilogue.residual is not None and epilogue.residual.requires_grad)
                or (epilogue.scale_a is not None and epilogue.scale_a.requires_grad)
                or (epilogue.scale_b is not None and epilogue.scale_b.requires_grad)
                or (epilogue.factors is not None and epilogue.factors.requires_grad)
            )
        )
    ) and torch.is_grad_enabled()
