"""torch.matmul's rules of shapes: any call as one of matrices, or of batches of them."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from triton_ext.errors import LayoutError
from triton_ext.ops.call import Call
from triton_ext.ops.derivatives import is_active
from triton_ext.ops.epilogue import NOTHING, Epilogue, broadcasts_to, without_activation
from triton_ext.ops.gates import columns_after


class Canonical(NamedTuple):
    """A call as the kernels, and torch's operators of ours, take it.

    Attributes:
        call: of (..., M, K) and (K, N), or of (batch, M, K) and (batch, K, N); with a bias (N,),
            and a residual that can be broadcast to its output.
        shape: that of the result.
        late: what is done to the result after the call.
    """

    call: Call
    shape: tuple[int, ...]
    late: Epilogue


def canonical(call: Call, gradient: bool) -> Canonical:
    """An `upright` call of vectors, matrices and batches, without scales.

    Args:
        call: a is (K,) or (..., M, K), b (K,) or (..., K, N).
        gradient: whether autograd must know of it: of an activation it is torch's own.

    Raises:
        LayoutError: the shapes do not fit, or a configuration is given for more than two matrices.
    """
    if call.config is not None:
        call = _configured(call, gradient)
    a, b, epilogue, *_ = call
    a_is_vector, b_is_vector = a.dim() == 1, b.dim() == 1
    a = a.unsqueeze(0) if a_is_vector else a
    b = b.unsqueeze(1) if b_is_vector else b
    (m, k), n = a.shape[-2:], b.shape[-1]
    if b.shape[-2] != k:
        raise LayoutError("b.shape", tuple(b.shape), f"must have K = {k} rows, as a has columns")
    batch = a.shape[:-2]
    if b.dim() > 2:
        try:
            batch = torch.broadcast_shapes(batch, b.shape[:-2])
        except RuntimeError:
            rule = f"its batch must match that of a, {tuple(a.shape)}"
            raise LayoutError("b.shape", tuple(b.shape), rule) from None
    shape = (*batch, *(() if a_is_vector else (m,)), *(() if b_is_vector else (n,)))
    for name, addend in (("bias", epilogue.bias), ("residual", epilogue.residual)):
        if addend is not None and not broadcasts_to(addend, shape):
            rule = f"must be broadcastable to {shape}"
            raise LayoutError(f"{name}.shape", tuple(addend.shape), rule)

    is_early = (
        not b_is_vector
        and (epilogue.bias is None or epilogue.bias.shape == (n,))
        and (b.dim() == 2 or call.dtype.is_floating_point)  # torch adds integers beyond 2^24
        and call.config is None
    )
    early, late = (epilogue, NOTHING) if is_early else (NOTHING, epilogue)
    # A gate's gradient has a kernel; other derivatives of activations are torch's own.
    if early.activation is not None and (is_active() or (gradient and early.gate is None)):
        early, late = without_activation(early), Epilogue(activation=early.activation)
    if early.residual is not None and a_is_vector and early.residual.dim() > 1:
        early = early._replace(residual=early.residual.unsqueeze(-2))
    if b.dim() > 2:
        count = math.prod(batch)
        if early.residual is not None and early.residual.dim() > 2 and len(batch) > 1:
            rows = early.residual.expand(*batch, m, n).reshape(count, m, n)
            early = early._replace(residual=rows)
        a = a.expand(*batch, m, k).reshape(count, m, k)
        b = b.expand(*batch, k, n).reshape(count, k, n)
    made = call._replace(a=a, b=b, epilogue=early)
    shape = (*shape[:-1], columns_after(early.activation, shape[-1])) if shape else shape
    if late is not NOTHING or made.shape != shape:
        made = made._replace(out=None)
    return Canonical(made, shape, late)


def _configured(call: Call, gradient: bool) -> Call:
    """A call with a configuration, as values that lie in memory."""
    if gradient or call.a.dim() != 2 or call.b.dim() != 2 or torch.compiler.is_compiling():
        rule = "only for 2-D tensors, in eager mode, no gradient"
        raise LayoutError("config", call.config, rule)
    return call._replace(a=call.a.resolve_neg(), b=call.b.resolve_neg())


def one_matrix(call: Call) -> Call | None:
    """The product of one matrix that a batch comes down to where b is the same matrix for all: a
    batch of one, the same sum each time, or rows that follow each other.
    """
    a, b, epilogue, _, out, *_ = call
    if b.dim() != 3:
        return None
    residual = epilogue.residual
    batch, m, k = a.shape
    if batch == 1 or a.stride(0) == b.stride(0) == 0:
        if residual is None or residual.dim() < 3 or len(residual) == 1:
            if residual is not None and residual.dim() == 3:
                epilogue = epilogue._replace(residual=residual[0])
            into = out[0] if out is not None and batch == 1 else None
            return call._replace(a=a[0], b=b[0], epilogue=epilogue, out=into)
        a = (
            a.contiguous()
        )  # a residual for each: the kernels take one operand of one matrix, not two
    if b.stride(0) == 0 and a.stride(0) == m * a.stride(1):
        if residual is not None:
            rows = residual.expand(call.shape).flatten(0, 1)
            epilogue = epilogue._replace(residual=rows)
        rows = a.as_strided((batch * m, k), a.stride()[1:])
        return call._replace(a=rows, b=b[0], epilogue=epilogue, out=None)
    return None


def transposed(call: Call) -> Call | None:
    """The same product as ``b.mT @ a.mT``, whose out is written column by column; None if the
    epilogue has more than an activation and a residual of the output's shape.
    """
    a, b, epilogue, _, out, *_ = call
    residual = epilogue.residual
    if out is None or a.dim() != b.dim() or call.config is not None or epilogue.gate is not None:
        return None
    if epilogue.fp32_accumulation or epilogue.tensors.keys() - {"residual"}:
        return None
    if residual is not None:
        if residual.shape != out.shape:
            return None
        epilogue = epilogue._replace(residual=residual.mT)
    return call._replace(a=b.mT, b=a.mT, epilogue=epilogue, out=out.mT)
