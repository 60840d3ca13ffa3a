"""What users call: products of divided matrices, with gradients, eagerly and compiled."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.distributed._functional_collectives import all_gather_tensor

from triton_ext.distributed import launches
from triton_ext.distributed.launches import Kind
from triton_ext.distributed.workspace import Workspace, workspace_of
from triton_ext.errors import LayoutError, UnsupportedDeviceError
from triton_ext.kernels.config import ACTIVATIONS
from triton_ext.ops import products, registered
from triton_ext.ops.epilogue import Epilogue, activated, epilogue_of, finished
from triton_ext.ops.types import output_type

Group = dist.ProcessGroup | Workspace | None

LEAST_GAIN = 1.03
"""By how much the kernel that communicates must be expected to be faster."""


def all_gather_matmul(
    a: Tensor,
    b: Tensor,
    group: Group = None,
    *,
    bias: Tensor | None = None,
    activation: str | None = None,
    overlap: bool | None = None,
) -> Tensor:
    """The product of the rows of all ranks' `a`, below each other, and this rank's `b`.

    The kernel begins with this rank's rows and goes on with others' as they arrive: the copy
    engines send them meanwhile. This is a column-wise layer of tensor parallelism whose input is
    divided by rows (sequence parallel). The gradient of `a` is a `matmul_reduce_scatter`.

    Args:
        a: (M, K), this rank's rows; as many on each rank.
        b: (K, N), this rank's columns.
        group: the ranks; None for the default group.
        bias: (N,), added to each row.
        activation: "relu", "gelu", "gelu_tanh" or "silu".
        overlap: whether the kernel communicates, or the parts come first by the group's own
            all-gather. None for what is expected to be faster; every rank must decide alike.

    Returns:
        (ranks * M, N).

    Raises:
        LayoutError: shapes or types do not fit, or ``overlap=True`` and no kernel can.
    """
    return _product("gather", a, b, group, bias, activation, overlap)


def matmul_reduce_scatter(
    a: Tensor,
    b: Tensor,
    group: Group = None,
    *,
    bias: Tensor | None = None,
    activation: str | None = None,
    overlap: bool | None = None,
) -> Tensor:
    """This rank's rows of the sum over all ranks of ``a @ b``.

    The kernel sends each tile on to the next rank, which adds its own part. This is a row-wise
    layer of tensor parallelism whose output is divided by rows. Between ranks, sums are rounded to
    the output's type, as those of a reduce-scatter are. The gradient of `a` is an
    `all_gather_matmul`.

    Args:
        a: (M, K), this rank's columns of the left operand; M is a multiple of the ranks.
        b: (K, N), this rank's rows of the right one.
        group, overlap: as for `all_gather_matmul`.
        bias: (N,), added once to the sum; the same on all ranks.
        activation: applied to the sum.

    Returns:
        (M / ranks, N).

    Raises:
        LayoutError: as there.
    """
    return _product("scatter", a, b, group, bias, activation, overlap)


def matmul_all_reduce(
    a: Tensor,
    b: Tensor,
    group: Group = None,
    *,
    bias: Tensor | None = None,
    activation: str | None = None,
    overlap: bool | None = None,
) -> Tensor:
    """The sum over all ranks of ``a @ b``, on all of them: `matmul_reduce_scatter`, and an
    all-gather of its rows.

    Args and Raises: as there, but that M, if it is not a multiple of the ranks, is no error: then
    the product is summed by the group's all-reduce.

    Returns:
        (M, N).
    """
    process_group = _group(group)
    if not isinstance(process_group, dist.ProcessGroup):
        raise LayoutError("group", group, "must be a process group")
    ranks = process_group.size()
    if a.shape[0] % ranks or not a.shape[0]:
        made = products.product(a, b)
        dist.all_reduce(made, group=process_group)
        return finished(made, epilogue_of(bias, activation))
    mine = matmul_reduce_scatter(
        a, b, process_group, bias=bias, activation=activation, overlap=overlap
    )
    whole = mine.new_empty((a.shape[0], b.shape[1]))
    dist.all_gather_into_tensor(whole, mine, group=process_group)
    return whole


def _group(group: Group) -> Any:
    if group is None:
        if not dist.is_initialized():
            raise LayoutError("group", None, "needs torch.distributed.init_process_group before")
        return dist.group.WORLD
    return group


def _group_named(name: str) -> dist.ProcessGroup:
    found: dist.ProcessGroup = distributed_c10d._resolve_process_group(name)  # type: ignore
    return found


def _product(
    kind: Kind, a: Tensor, b: Tensor, group: Group, bias: Tensor | None, activation: str | None,
    overlap: bool | None,
) -> Tensor:  # fmt: skip
    found = _group(group)
    epilogue_of(bias, activation)  # raises
    if not isinstance(found, dist.ProcessGroup):
        return _overlapped(kind, a, b, found, Epilogue(bias, activation))
    needs_gradient = torch.is_grad_enabled() and any(
        each is not None and each.requires_grad for each in (a, b, bias)
    )
    if not (needs_gradient or torch.compiler.is_compiling() or type(a) is not type(b) is Tensor):
        return _run(kind, a, b, found.group_name, bias, activation, overlap)  # saves 50 us
    operator = {"gather": all_gather_operator, "scatter": reduce_scatter_operator}[kind]
    fused = None if needs_gradient else activation  # its gradient needs what comes before it
    made: Tensor = operator(a, b, found.group_name, bias, fused, overlap)
    return activated(made, activation) if needs_gradient else made


def _gains(kind: Kind, a: Tensor, b: Tensor, ranks: int, epilogue: Epilogue) -> bool:
    """Whether there is a kernel that communicates, and it is expected to be faster."""
    try:
        launched, with_host = launches.prepared(kind, a, b, ranks, _early(epilogue)).gain
    except (LayoutError, UnsupportedDeviceError):
        return False
    return (launched if torch.cuda.is_current_stream_capturing() else with_host) >= LEAST_GAIN


def _early(epilogue: Epilogue) -> Epilogue:
    """What of it a kernel applies."""
    fused = epilogue.activation in (None, *ACTIVATIONS)
    return epilogue if fused else epilogue._replace(activation=None)


def _overlapped(
    kind: Kind, a: Tensor, b: Tensor, workspace: Workspace, epilogue: Epilogue
) -> Tensor:
    """The product by a kernel that waits for other ranks; LayoutError if there is none."""
    early = _early(epilogue)
    make = {"gather": launches.gather, "scatter": launches.scatter}[kind]
    made = make(a, b, workspace, early)
    return made if early is epilogue else activated(made, epilogue.activation)


def _check(kind: Kind, a: Tensor, b: Tensor, bias: Tensor | None, ranks: int) -> None:
    products.check_operands(a, b, 2)
    if kind == "scatter" and a.shape[0] % ranks:
        rule = f"its rows must be a multiple of the {ranks} ranks"
        raise LayoutError("a.shape", tuple(a.shape), rule)
    n, dtype = b.shape[1], output_type(a.dtype)
    if bias is not None and (bias.shape != (n,) or bias.dtype != dtype):
        raise LayoutError("bias", (tuple(bias.shape), bias.dtype), f"must be {(n,)} of {dtype}")


def _run(
    kind: Kind, a: Tensor, b: Tensor, group_name: str, bias: Tensor | None, activation: str | None,
    overlap: bool | None,
) -> Tensor:  # fmt: skip
    group = _group_named(group_name)
    ranks = group.size()
    _check(kind, a, b, bias, ranks)
    epilogue = epilogue_of(bias, activation)
    if ranks == 1:
        return products.product(a, b, epilogue)
    rows = a.shape[0] * (ranks if kind == "gather" else 1)
    if overlap is None:
        overlap = a.is_cuda and _gains(kind, a, b, ranks, epilogue)
    if overlap:
        return _overlapped(kind, a, b, workspace_of(group), epilogue)
    if kind == "gather":
        whole = a.new_empty((rows, a.shape[1]))
        dist.all_gather_into_tensor(whole, a.contiguous(), group=group)
        return products.product(whole, b, epilogue)
    made = products.product(a, b)
    mine = made.new_empty((rows // ranks, b.shape[1]))
    dist.reduce_scatter_tensor(mine, made, group=group)
    return finished(mine, epilogue)


def _register(kind: Kind, name: str) -> Any:
    """The operator of torch of a kind, with its gradient."""

    def call(
        a: Tensor, b: Tensor, group_name: str, bias: Tensor | None, activation: str | None,
        overlap: bool | None,
    ) -> Tensor:  # fmt: skip
        return _run(kind, a, b, group_name, bias, activation, overlap)

    def fake(
        a: Tensor, b: Tensor, group_name: str, bias: Tensor | None, activation: str | None,
        overlap: bool | None,
    ) -> Tensor:  # fmt: skip
        ranks = _group_named(group_name).size()
        _check(kind, a, b, bias, ranks)
        rows = a.shape[0] * ranks if kind == "gather" else a.shape[0] // ranks
        return a.new_empty((rows, b.shape[1]), dtype=output_type(a.dtype))

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        a, b, ctx.group_name, bias, _, ctx.overlap = inputs
        ctx.save_for_backward(a, b)
        ctx.has_bias = bias is not None

    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        a, b = ctx.saved_tensors
        need_a, need_b, *_ = ctx.needs_input_grad
        other = {"gather": reduce_scatter_operator, "scatter": all_gather_operator}[kind]
        grad_a = other(grad, b.t(), ctx.group_name, None, None, ctx.overlap) if need_a else None
        grad_b = None
        if need_b:
            part, whole = (a, grad) if kind == "gather" else (grad, a)
            gathered = all_gather_tensor(part.contiguous(), 0, ctx.group_name)
            left, right = (gathered, whole) if kind == "gather" else (whole, gathered)
            grad_b = registered.mm(left.t(), right)
        grad_bias = grad.sum(0) if ctx.has_bias else None
        return grad_a, grad_b, None, grad_bias, None, None

    schema = "(Tensor a, Tensor b, str group_name, Tensor? bias, str? activation, bool? overlap)"
    operator = torch.library.custom_op(
        f"triton_ext::{name}", call, mutates_args=(), schema=f"{schema} -> Tensor"
    )
    operator.register_fake(fake)
    operator.register_autograd(backward, setup_context=setup)
    return operator


all_gather_operator = _register("gather", "all_gather_matmul")
reduce_scatter_operator = _register("scatter", "matmul_reduce_scatter")
