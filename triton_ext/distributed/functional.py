"""What users call: products of divided matrices, with gradients, eagerly and compiled."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from triton_ext.distributed import launches
from triton_ext.distributed.launches import Kind
from triton_ext.distributed.workspace import Workspace, workspace_of
from triton_ext.errors import LayoutError, UnsupportedDeviceError
from triton_ext.ops import flops, registered
from triton_ext.ops.call import Call, is_bare
from triton_ext.ops.checks import check_operands
from triton_ext.ops.epilogue import ACTIVATION_FUNCTIONS, Epilogue, activated, epilogue_of, finished
from triton_ext.ops.functional import matmul
from triton_ext.ops.gates import GATES
from triton_ext.ops.products import product
from triton_ext.ops.types import FP8_TYPES, bias_type, output_type

Group = dist.ProcessGroup | Workspace | None

# Torch 2.13 has new names for them, and warns of the old ones.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

LEAST_GAIN = {90: 1.03, 100: 1.1}
"""By how much the kernel that communicates must be expected to be faster, by architecture: more
where nothing was measured."""


def all_gather_matmul(
    a: Tensor,
    b: Tensor,
    group: Group = None,
    *,
    bias: Tensor | None = None,
    activation: str | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    overlap: bool | None = None,
) -> Tensor:
    """The product of the rows of all ranks' `a`, below each other, and this rank's `b`.

    The kernel begins with this rank's rows and goes on with others' as they arrive: the copy
    engines send them meanwhile. This is a column-wise layer of tensor parallelism whose input is
    divided by rows (sequence parallel). The gradient of `a` is a `matmul_reduce_scatter`.

    Args:
        a: (M, K), this rank's rows. Types, shapes and strides of all tensors are the same on each
            rank: the kernels agree on tiles by them.
        b: (K, N), this rank's columns.
        group: the ranks; None for the default group.
        bias: (N,), added to each row.
        activation: as for `triton_ext.matmul`, none that is gated.
        scale_a: fp32, of one element, or (M, 1): a factor of this rank's rows. No gradients then.
        scale_b: fp32, of one element, or (1, N).
        out_dtype: the output's type; None for that of a 16-bit `a`, else fp32.
        overlap: whether the kernel communicates, or the parts come first by the group's own
            all-gather. None for what is expected to be faster; every rank must decide alike.

    Returns:
        (ranks * M, N).

    Raises:
        LayoutError: shapes or types do not fit, or ``overlap=True`` and no kernel can.
    """
    return _product("gather", a, b, group, (bias, activation, scale_a, scale_b), out_dtype, overlap)


def matmul_reduce_scatter(
    a: Tensor,
    b: Tensor,
    group: Group = None,
    *,
    bias: Tensor | None = None,
    activation: str | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    overlap: bool | None = None,
) -> Tensor:
    """This rank's rows of the sum over all ranks of ``a @ b``.

    The kernel sends each tile on to the next rank, which adds its own part. This is a row-wise
    layer of tensor parallelism whose output is divided by rows. Between ranks, sums are rounded to
    the output's type, as those of a reduce-scatter are. The gradient of `a` is an
    `all_gather_matmul`.

    Args:
        a: (M, K), this rank's columns of the left operand; M is a multiple of the ranks. Types,
            shapes and strides are the same on each rank, as for `all_gather_matmul`.
        b: (K, N), this rank's rows of the right one.
        group, overlap: as there.
        bias: (N,), added once to the sum; the same on all ranks. Its gradient is that of this
            rank's rows.
        activation: applied to the sum.
        scale_a, scale_b: of this rank's operands, as there.
        out_dtype: the output's type, of 16 or 32 bits.

    Returns:
        (M / ranks, N).

    Raises:
        LayoutError: as there.
    """
    epilogue = bias, activation, scale_a, scale_b
    return _product("scatter", a, b, group, epilogue, out_dtype, overlap)


def matmul_all_reduce(
    a: Tensor,
    b: Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    bias: Tensor | None = None,
    activation: str | None = None,
    overlap: bool | None = None,
) -> Tensor:
    """The sum over all ranks of ``a @ b``, on all of them: a `matmul_reduce_scatter`, and an
    all-gather of its rows. The gradient of the output is taken to be the same on all ranks.

    Args:
        a: (M, K), this rank's columns of the left operand. If M is no multiple of the ranks, the
            product is summed by the group's all-reduce, without a gradient.
        b, group, bias, activation, overlap: as for `matmul_reduce_scatter`.

    Returns:
        (M, N).

    Raises:
        LayoutError: as there.
    """
    process_group = _group(group)
    if not isinstance(process_group, dist.ProcessGroup):
        raise LayoutError("group", process_group, "must be a process group")
    epilogue = epilogue_of(bias, activation)
    if a.shape[0] % process_group.size():
        if torch.is_grad_enabled() and any(each.requires_grad for each in (a, b)):
            rule = f"has a gradient only with rows a multiple of the {process_group.size()} ranks"
            raise LayoutError("a.shape", tuple(a.shape), rule)
        made = matmul(a, b)
        dist.all_reduce(made, group=process_group)
        return finished(made, epilogue)
    options: dict[str, Any] = {"bias": bias, "activation": activation, "overlap": overlap}
    mine = matmul_reduce_scatter(a, b, process_group, **options)
    whole: Tensor = all_gather(mine, process_group.group_name)
    return whole


def _group(group: Group) -> Any:
    if group is None:
        if not dist.is_initialized():
            raise LayoutError("group", None, "needs torch.distributed.init_process_group before")
        return dist.group.WORLD
    return group


def _group_named(name: str) -> dist.ProcessGroup:
    found: dist.ProcessGroup = distributed_c10d._resolve_process_group(name)  # type: ignore[attr-defined,arg-type]
    return found


Parts = tuple[Tensor | None, str | None, Tensor | None, Tensor | None]
"""Bias, activation, and the scales of a and b."""


def _product(
    kind: Kind, a: Tensor, b: Tensor, group: Group, parts: Parts, out_dtype: torch.dtype | None,
    overlap: bool | None,
) -> Tensor:  # fmt: skip
    found = _group(group)
    bias, activation, *scales = parts
    epilogue = epilogue_of(bias, activation)._replace(scale_a=scales[0], scale_b=scales[1])
    if activation in GATES:
        rule = f"must be one of {sorted(ACTIVATION_FUNCTIONS.keys() - GATES.keys())}"
        raise LayoutError("activation", activation, f"{rule} between ranks")
    if not isinstance(found, dist.ProcessGroup):
        epilogue = _checked(kind, a, b, parts, out_dtype, found.ranks)
        return _overlapped(kind, a, b, found, epilogue, out_dtype)
    needs_gradient = torch.is_grad_enabled() and any(
        each is not None and each.requires_grad for each in (a, b, bias)
    )
    if not needs_gradient and is_bare(Call(a, b, epilogue)):
        return _run(kind, a, b, found, parts, out_dtype, overlap)  # the dispatcher takes 50 us
    if needs_gradient and any(scale is not None for scale in scales):
        raise LayoutError("scale_a, scale_b", "given", "products with scales have no gradient")
    operator = {"gather": all_gather_operator, "scatter": reduce_scatter_operator}[kind]
    fused = None if needs_gradient else activation  # its gradient needs what comes before it
    made: Tensor = operator(a, b, found.group_name, bias, fused, *scales, out_dtype, overlap)
    return activated(made, activation) if needs_gradient else made


def _checked(
    kind: Kind, a: Tensor, b: Tensor, parts: Parts, out_dtype: torch.dtype | None, ranks: int
) -> Epilogue:
    """The epilogue, with a scale of a for each row where rows are gathered; LayoutError."""
    check_operands(a, b, 2)
    (m, _), n = a.shape, b.shape[1]
    dtype = out_dtype or output_type(a.dtype)
    if kind == "scatter" and m % ranks:
        rule = f"its rows must be a multiple of the {ranks} ranks"
        raise LayoutError("a.shape", tuple(a.shape), rule)
    if kind == "scatter" and dtype in FP8_TYPES:
        raise LayoutError("out_dtype", dtype, "sums between ranks need 16 bits")
    bias, activation, scale_a, scale_b = parts
    if bias is not None and (bias.shape != (n,) or bias.dtype != bias_type(dtype)):
        rule = f"must be {(n,)} of {bias_type(dtype)}"
        raise LayoutError("bias", (tuple(bias.shape), bias.dtype), rule)
    for name, scale, shape in (("scale_a", scale_a, (m, 1)), ("scale_b", scale_b, (1, n))):
        if scale is not None and (
            scale.dtype != torch.float32 or (scale.numel() != 1 and scale.shape != shape)
        ):
            rule = f"must be fp32, of one element or {shape}"
            raise LayoutError(name, (tuple(scale.shape), scale.dtype), rule)
    if kind == "gather" and scale_a is not None:
        scale_a = scale_a.reshape(-1, 1).expand(m, 1).contiguous()
    return Epilogue(bias, activation, scale_a=scale_a, scale_b=scale_b)


def _gains(
    kind: Kind, a: Tensor, b: Tensor, ranks: int, epilogue: Epilogue, dtype: torch.dtype | None
) -> bool:
    """Whether there is a kernel that communicates, and it is expected to be faster."""
    try:
        call = launches.prepared(kind, a, b, ranks, epilogue, dtype)
    except (LayoutError, UnsupportedDeviceError):
        return False
    launched, with_host = call.gain
    gain = launched if torch.cuda.is_current_stream_capturing() else with_host
    return gain >= LEAST_GAIN[call.launch.gpu.arch]


def _overlapped(
    kind: Kind, a: Tensor, b: Tensor, workspace: Workspace, epilogue: Epilogue,
    out_dtype: torch.dtype | None,
) -> Tensor:  # fmt: skip
    """The product by a kernel that waits for other ranks; LayoutError if there is none."""
    make = {"gather": launches.gather, "scatter": launches.scatter}[kind]
    return make(a, b, workspace, epilogue, out_dtype)


def _run(
    kind: Kind, a: Tensor, b: Tensor, group: dist.ProcessGroup, parts: Parts,
    out_dtype: torch.dtype | None, overlap: bool | None,
) -> Tensor:  # fmt: skip
    ranks = group.size()
    epilogue = _checked(kind, a, b, parts, out_dtype, ranks)
    if ranks == 1 or not math.prod((*a.shape, b.shape[1])):
        rows = a if kind == "scatter" else a.expand(ranks, *a.shape).flatten(0, 1)
        rows = rows[: len(rows) // ranks] if kind == "scatter" else rows
        return product(Call(rows, b, epilogue, out_dtype))
    if overlap is None:
        overlap = a.is_cuda and _gains(kind, a, b, ranks, epilogue, out_dtype)
    if overlap:
        return _overlapped(kind, a, b, workspace_of(group), epilogue, out_dtype)
    if kind == "gather":
        if epilogue.scale_a is not None:
            epilogue = epilogue._replace(scale_a=_gathered(epilogue.scale_a, group))
        return product(Call(_gathered(a, group), b, epilogue, out_dtype))
    scaled = Epilogue(scale_a=epilogue.scale_a, scale_b=epilogue.scale_b)
    made = product(Call(a, b, scaled, out_dtype))
    mine = made.new_empty((len(a) // ranks, b.shape[1]))
    _reduce_scatter(mine, made, group=group)
    return finished(mine, epilogue_of(epilogue.bias, epilogue.activation))


def _gathered(rows: Tensor, group: dist.ProcessGroup) -> Tensor:
    """All ranks' rows, below each other."""
    whole = rows.new_empty((group.size() * len(rows), *rows.shape[1:]))
    sent, received = rows.contiguous(), whole
    if rows.dtype in FP8_TYPES:  # whose bytes any backend moves
        sent, received = sent.view(torch.uint8), whole.view(torch.uint8)
    _all_gather(received, sent, group=group)
    return whole


@torch.library.custom_op("triton_ext::all_gather", mutates_args=())
def all_gather(rows: Tensor, group_name: str) -> Tensor:
    """All ranks' rows, for each of which every rank has the same gradient."""
    return _gathered(rows, _group_named(group_name))


@all_gather.register_fake
def _(rows: Tensor, group_name: str) -> Tensor:
    return rows.new_empty((_group_named(group_name).size() * len(rows), *rows.shape[1:]))


def _own_rows(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return grad.chunk(ctx.group.size())[ctx.group.rank()], None


def _remember_group(ctx: Any, inputs: tuple[Tensor, str], output: Tensor) -> None:
    ctx.group = _group_named(inputs[1])


all_gather.register_autograd(_own_rows, setup_context=_remember_group)


def _register(kind: Kind, name: str) -> Any:
    """The operator of torch of a kind, with its gradient."""

    def call(a: Tensor, b: Tensor, group_name: str, *others: Any) -> Tensor:
        *parts, out_dtype, overlap = others
        return _run(kind, a, b, _group_named(group_name), tuple(parts), out_dtype, overlap)

    def fake(a: Tensor, b: Tensor, group_name: str, *others: Any) -> Tensor:
        *parts, out_dtype, _ = others
        ranks = _group_named(group_name).size()
        _checked(kind, a, b, tuple(parts), out_dtype, ranks)
        rows = a.shape[0] * ranks if kind == "gather" else a.shape[0] // ranks
        return a.new_empty((rows, b.shape[1]), dtype=out_dtype or output_type(a.dtype))

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        a, b, ctx.group_name, bias, *_, ctx.overlap = inputs
        ctx.save_for_backward(a, b)
        ctx.has_bias = bias is not None

    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        a, b = ctx.saved_tensors
        grad = grad.to(a.dtype)
        need_a, need_b, *_ = ctx.needs_input_grad
        other = {"gather": reduce_scatter_operator, "scatter": all_gather_operator}[kind]
        none = (None,) * 5
        grad_a = other(grad, b.t(), ctx.group_name, *none, ctx.overlap) if need_a else None
        grad_b = None
        if need_b:
            part = a if kind == "gather" else grad
            whole = all_gather(part, ctx.group_name)
            left, right = (whole, grad) if kind == "gather" else (a, whole)
            grad_b = registered.mm(left.t(), right)
        grad_bias = grad.sum(0) if ctx.has_bias else None
        return grad_a, grad_b, None, grad_bias, None, None, None, None, None

    schema = (
        "(Tensor a, Tensor b, str group_name, Tensor? bias, str? activation, Tensor? scale_a,"
        " Tensor? scale_b, ScalarType? out_dtype, bool? overlap) -> Tensor"
    )
    operator = torch.library.custom_op(f"triton_ext::{name}", call, mutates_args=(), schema=schema)
    operator.register_fake(fake)
    operator.register_autograd(backward, setup_context=setup)
    flops.counted_by(name, flops.of_gathered if kind == "gather" else flops.of_product)
    return operator


all_gather_operator = _register("gather", "all_gather_matmul")
reduce_scatter_operator = _register("scatter", "matmul_reduce_scatter")
