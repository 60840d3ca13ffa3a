"""What is wrong with a call: each error names the argument, and what would be legal."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from triton_ext.errors import LayoutError
from triton_ext.kernels.element_types import FP32_SCALE_BLOCK
from triton_ext.kernels.spec import KernelSpec
from triton_ext.ops.call import Call
from triton_ext.ops.device import Gpu, find_gpu, require_gpu
from triton_ext.ops.epilogue import NOTHING, Epilogue, broadcasts_to
from triton_ext.ops.types import FP8_TYPES, HALF_TYPES, bias_type, has_all_fp8, unsupported
from triton_ext.startup import when_imported

MAX_SIZE = 2**31 - 1
"""Sizes are passed to the kernels as 32-bit integers."""
MOST_GATHERED = 2**35
"""Bytes in which a's rows lie that indices name: kernels count chunks of 16 in 31 bits."""


def check_kind(name: str, value: Any, kind: type, *, optional: bool = False) -> None:
    """Raise LayoutError unless a value is of a kind of torch's, and a tensor strided."""
    if not (isinstance(value, kind) or (optional and value is None)):
        raise LayoutError(name, type(value).__name__, f"must be a torch.{kind.__name__}")
    if isinstance(value, Tensor) and value.layout is not torch.strided:
        raise LayoutError(f"{name}.layout", value.layout, "must be torch.strided")


def pair_of(name: str, given: Any) -> tuple[Any, Any]:
    """An operand's scales, of blocks or of whatever they are, and the one of the whole that may be
    beside those of blocks, or None; LayoutError of a sequence that is no such pair."""
    if not isinstance(given, (list, tuple)):
        return given, None
    if len(given) != 2:
        rule = "a sequence must have two: the scales of blocks, and an fp32 of one element"
        raise LayoutError(name, len(given), rule)
    for each in given:
        check_kind(name, each, Tensor)
    return given[0], given[1]


def check_dims(dims: int, **tensors: Any) -> None:
    """Raise LayoutError unless all are tensors of so many dimensions."""
    for name, tensor in tensors.items():
        check_kind(name, tensor, Tensor)
        if tensor.dim() != dims:
            raise LayoutError(f"{name}.shape", tuple(tensor.shape), f"must have {dims} dimensions")


def checked(call: Call, fallback: Any = None) -> tuple[Call, bool]:
    """A call of which nothing was known, `upright`, with the types that autocast gives it; and
    whether it is left to torch, and not looked at any further.

    Raises:
        LayoutError: what it holds is not of its kind, or cannot be added to its output.
    """
    check_asked(call, fallback)
    call = autocast(call.upright)
    if fallback == "torch" and not has_kernels(call):
        return call, True
    check_added(call)
    return call, False


def check_asked(call: Call, fallback: Any = None) -> None:
    """Raise LayoutError unless all that a call holds is of its kind."""
    for name, tensor in (("a", call.a), ("b", call.b)):
        check_kind(name, tensor, Tensor)
        if tensor.dim() == 0:
            raise LayoutError(f"{name}.shape", (), "must have at least one dimension")
    if fallback is not None and not (isinstance(fallback, str) and fallback == "torch"):
        raise LayoutError("fallback", fallback, 'must be "torch", or None for an error')
    check_kind("out_dtype", call.out_dtype, torch.dtype, optional=True)
    if call.config is not None and not isinstance(call.config, KernelSpec):
        raise LayoutError("config", call.config, "must be a KernelSpec")
    check_order(call)
    epilogue = call.epilogue
    added = {"bias": epilogue.bias, "residual": epilogue.residual, "out": call.out}
    for name, each in added.items():
        check_kind(name, each, Tensor, optional=True)


def check_order(call: Call) -> None:
    """Raise LayoutError unless a call says whether K may be divided, or nothing, and its tile does
    what it says.
    """
    check_kind("batch_invariant", call.batch_invariant, bool, optional=True)
    if call.batch_invariant and call.config is not None and not call.config.adds_in_order:
        rule = "must not divide K (split_k, cluster_k = 1) with batch_invariant=True"
        raise LayoutError("config", call.config, rule)


def autocast(call: Call) -> Call:
    """What torch's autocast gives to ``torch.matmul``, if it is active for the device of a."""
    device = call.a.device.type
    if device not in ("cuda", "cpu") or not torch.is_autocast_enabled(device):
        return call
    dtype = torch.get_autocast_dtype(device)

    def cast(tensor: Any) -> Any:
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            return tensor
        return tensor if tensor.dtype == torch.float64 else tensor.to(dtype)

    epilogue = call.epilogue
    if epilogue is not NOTHING:
        epilogue = Epilogue(*map(cast, epilogue))
    return call._replace(a=cast(call.a), b=cast(call.b), epilogue=epilogue)


def check_gate(call: Call) -> None:
    """Raise LayoutError unless a gated activation, if there is one, has two halves."""
    if call.epilogue.gate is not None and (call.b.dim() < 2 or call.b.shape[-1] % 2):
        rule = f"must have an even number of columns for {call.epilogue.activation!r}"
        raise LayoutError("b.shape", tuple(call.b.shape), rule)
    gate, blocks = call.epilogue.gate, call.epilogue.blocks_b
    if gate is None or blocks is None:
        return
    if gate.interleaved or blocks.dtype != torch.float32:
        rule = "must not be interleaved with scales of blocks, which must be fp32"
        raise LayoutError("activation", call.epilogue.activation, rule)
    columns = call.b.shape[-1]
    if blocks.shape[-1] != columns and columns % (2 * FP32_SCALE_BLOCK):
        rule = "must have a multiple of 256 columns: scales of 128 are of the gate or of up"
        raise LayoutError("b.shape", tuple(call.b.shape), rule)


def check_added(call: Call) -> None:
    """Raise LayoutError unless bias, residual and out are for an output of the call's type, which
    can be made.
    """
    check_gate(call)
    epilogue, dtype = call.epilogue, call.dtype
    others = (("bias", epilogue.bias), ("residual", epilogue.residual), ("out", call.out))
    for name, tensor in others:
        if tensor is None:
            continue
        wanted = bias_type(dtype) if name == "bias" else dtype
        if tensor.dtype != wanted:
            rule = f"must be {wanted} for an output in {dtype}"
            raise LayoutError(f"{name}.dtype", tensor.dtype, rule)
        _check_device(name, tensor, call.a)
    if call.out is not None and torch.is_grad_enabled():
        for name, tensor in (("a", call.a), ("b", call.b), *others):
            if tensor is not None and tensor.requires_grad:
                rule = "no gradient flows into out; call it under torch.no_grad(), or without out"
                raise LayoutError(f"{name}.requires_grad", True, rule)


def _check_device(name: str, tensor: Tensor, a: Tensor) -> None:
    if tensor.device != a.device:
        rule = f"must be that of a, {a.device}"
        raise LayoutError(f"{name}.device", str(tensor.device), rule)


def check_matrices_or_batches(a: Any, b: Any) -> None:
    """Raise LayoutError unless both are tensors of 2 or 3 dimensions."""
    for name, tensor in (("a", a), ("b", b)):
        check_kind(name, tensor, Tensor)
        if tensor.dim() not in (2, 3):
            raise LayoutError(f"{name}.shape", tuple(tensor.shape), "must have 2 or 3 dimensions")


def _check_k(a: Tensor, b: Tensor) -> None:
    if a.shape[-1] != b.shape[-2]:
        rule = f"its dimension {b.dim() - 2} must be K = {a.shape[-1]}, as in a"
        raise LayoutError("b.shape", tuple(b.shape), rule)


def check_operands(a: Tensor, b: Tensor, dims: int | None = None) -> None:
    """Raise LayoutError unless (..., M, K) and (..., K, N) fit, the latter a matrix or a batch.
    `dims`: how many dimensions both must have."""
    if dims is not None:
        check_dims(dims, a=a, b=b)
    _check_device("b", b, a)
    _check_k(a, b)
    if b.dim() > 2 and a.shape[:-2] != b.shape[:-2]:
        rule = f"must begin with the batch {tuple(a.shape[:-2])}, as a does"
        raise LayoutError("b.shape", tuple(b.shape), rule)


def check_groups(call: Call) -> None:
    """Raise LayoutError unless operands fit each other and the ends of their groups."""
    check_order(call)
    a, b, offs = call.a, call.b, call.epilogue.offs
    assert offs is not None
    check_matrices_or_batches(a, b)
    given = "counts" if call.groups == "rows" else "offs"
    _check_device("b", b, a)
    _check_device(given, offs, a)
    if offs.dtype != torch.int32 or offs.dim() != 1:
        raise LayoutError(given, (offs.dtype, tuple(offs.shape)), "must be 1-D, of torch.int32")
    _check_k(a, b)
    for name, tensor in (("a", a), ("b", b)):
        if tensor.dim() == 3 and len(tensor) != len(offs):
            rule = f"must begin with the number of groups, {len(offs)}, as {given} has so many"
            raise LayoutError(f"{name}.shape", tuple(tensor.shape), rule)
    if call.groups == "K" and a.dtype not in HALF_TYPES:
        rule = f"must be one of {sorted(map(str, HALF_TYPES))} where groups divide K"
        raise LayoutError("a.dtype", a.dtype, rule)
    if call.out is not None:
        raise LayoutError("out", tuple(call.out.shape), "must be None of products of groups")
    for name in ("rows", "out_rows", "factors"):
        _check_of_rows(call, name)
    _check_bias_of_groups(call)
    check_gate(call)
    if call.epilogue.gate is not None and b.dim() != 3:
        rule = "must be None, unless b is (G, K, N): groups divide the gate else"
        raise LayoutError("activation", call.epilogue.activation, rule)


def _check_bias_of_groups(call: Call) -> None:
    """Raise LayoutError unless each group has a bias that fits, if there is one."""
    bias = call.epilogue.bias
    if bias is None:
        return
    check_kind("bias", bias, Tensor)
    if call.b.dim() != 3 or not call.b.shape[1]:
        rule = "must be None, unless b is (G, K, N), with K of at least 1"
        raise LayoutError("bias", tuple(bias.shape), rule)
    wanted = len(call.b), call.b.shape[2]
    if bias.shape != wanted or bias.dtype != bias_type(call.dtype):
        rule = f"must be {wanted} of {bias_type(call.dtype)}"
        raise LayoutError("bias", (tuple(bias.shape), bias.dtype), rule)
    _check_device("bias", bias, call.a)


def _check_of_rows(call: Call, name: str) -> None:
    """Raise LayoutError unless what each row of the output has one of fits, if it is given."""
    each = getattr(call.epilogue, name)
    if each is None:
        return
    check_kind(name, each, Tensor)
    wanted = torch.float32 if name == "factors" else torch.int32
    if call.groups != "M":
        rule = "must be None, unless a is (T, K) and b (G, K, N)"
        raise LayoutError(name, tuple(each.shape), rule)
    size = call.shape[0]
    if each.dtype != wanted or each.dim() != 1 or (name != "rows" and len(each) != size):
        rule = f"must be 1-D, of {wanted}" + ("" if name == "rows" else f" and {size} elements")
        raise LayoutError(name, (each.dtype, tuple(each.shape)), rule)
    _check_device(name, each, call.a)
    rows, columns = call.a.shape
    if name == "rows" and rows * max(columns, call.a.stride(0)) > MOST_GATHERED // call.a.itemsize:
        rule = f"must lie within {MOST_GATHERED >> 30} GiB where rows say which of its rows to take"
        raise LayoutError("a.shape", tuple(call.a.shape), rule)


def check_types(
    a: Tensor,
    b: Tensor,
    out_dtype: torch.dtype | None,
    arch: int,
    blocks: torch.dtype | None = None,
) -> None:
    """Raise LayoutError unless an architecture has kernels for these types, with scales of blocks
    of such a type.
    """
    error = unsupported(a.dtype, b.dtype, out_dtype, arch, blocks)
    if error is not None:
        raise error


def has_kernels(call: Call) -> bool:
    """Whether there are kernels for a call's types on its device."""
    a, b, blocks = call.a, call.b, call.epilogue.blocks_a
    scales = None if blocks is None else blocks.dtype
    return _has_kernels(a.dtype, b.dtype, call.out_dtype, a.device, b.device, scales)


def by_tensor_cores(a: Tensor, b: Tensor, scales: torch.dtype) -> bool:
    """Whether the tensor cores of two operands' device apply scales of that type to them."""
    return _has_kernels(a.dtype, b.dtype, None, a.device, b.device, scales)


def _has_kernels(
    a: torch.dtype,
    b: torch.dtype,
    out: torch.dtype | None,
    device: torch.device,
    other_device: torch.device,
    scales: torch.dtype | None,
) -> bool:
    gpu = find_gpu(device)
    if device != other_device or not isinstance(gpu, Gpu):
        return False
    return unsupported(a, b, out, gpu.arch, scales) is None


# Only once a program imports torch's compiler, which takes as long to import as torch itself.
when_imported(
    "torch._dynamo", functools.partial(torch.compiler.assume_constant_result, _has_kernels)
)


def checked_gpu(call: Call) -> Gpu:
    """The GPU of an `upright` call whose operands are a (..., M, K) and a matrix, or two batches;
    LayoutError unless all fits.
    """
    a, b, epilogue, out_dtype, *_ = call
    if call.groups is None:
        check_operands(a, b)
    else:
        check_groups(call)
    check_gate(call)
    gpu = require_gpu(a.device)
    blocks = None if epilogue.blocks_a is None else epilogue.blocks_a.dtype
    check_types(a, b, out_dtype, gpu.arch, blocks)
    if epilogue.fp32_accumulation and a.dtype in FP8_TYPES and not has_all_fp8(gpu.arch):
        if blocks is not None:
            raise LayoutError("scale_a.dtype", blocks, "scales of blocks need Triton 3.9 on Hopper")
        raise LayoutError("use_fast_accum", False, "must be True on Hopper before Triton 3.9")
    shape, dtype = call.shape, call.dtype
    k, n = b.shape[-2:]
    sizes = (*shape, k) if b.dim() == 3 or call.groups else (math.prod(shape[:-1]), n, k)
    if max(sizes) > MAX_SIZE:
        raise LayoutError("shape", sizes, f"sizes must be at most {MAX_SIZE}")
    bias, residual = epilogue.bias, epilogue.residual
    alone = call.groups is None
    if bias is not None and alone and (bias.shape != (n,) or bias.dtype != bias_type(dtype)):
        rule = f"must be {(n,)} of {bias_type(dtype)}"
        raise LayoutError("bias", (tuple(bias.shape), bias.dtype), rule)
    if residual is not None and not (residual.dtype == dtype and broadcasts_to(residual, shape)):
        rule = f"must be of {dtype}, and broadcastable to {shape}"
        raise LayoutError("residual", (tuple(residual.shape), residual.dtype), rule)
    for name, tensor in epilogue.tensors.items():
        _check_device(name, tensor, a)
    return gpu
