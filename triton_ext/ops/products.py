"""Products without gradient, dispatcher or broadcasting of batches: checked, prepared, launched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from triton_ext.errors import LayoutError
from triton_ext.kernels.choice.candidates import is_new
from triton_ext.kernels.choice.choose import choose_config, with_epilogue
from triton_ext.kernels.element_types import Major
from triton_ext.kernels.epilogue import ACTIVATIONS
from triton_ext.kernels.spec import KernelSpec
from triton_ext.ops.device import Gpu, require_gpu
from triton_ext.ops.epilogue import NOTHING, Epilogue, broadcasts_to, finished
from triton_ext.ops.launches import PreparedLaunch
from triton_ext.ops.operands import (
    TMA_ALIGNMENT,
    TmaView,
    aligned,
    aligned_empty,
    memory_size,
    padded_columns,
    readable,
    readable_copy,
    scale_view,
    tma_strides,
)
from triton_ext.ops.plans import Late, ProductPlan, Read, keep, recall, signature
from triton_ext.ops.rule import Rule, rule
from triton_ext.ops.tuned import Problem, lookup
from triton_ext.ops.types import (
    FP8_TYPES,
    OUTPUT_NAMES,
    bias_type,
    operand_name,
    output_type,
    unsupported,
)

MAX_SIZE = 2**31 - 1
"""Sizes are passed to the kernels as 32-bit integers."""


def product(
    a: Tensor,
    b: Tensor,
    epilogue: Epilogue = NOTHING,
    out_dtype: torch.dtype | None = None,
    *,
    out: Tensor | None = None,
    config: KernelSpec | None = None,
) -> Tensor:
    """The product of (..., M, K) and (K, N) with an epilogue, or of (batch, M, K) and (batch, K, N)
    alone.

    The kernel does it all before it rounds the output (but for "gelu_tanh"); after a kernel without
    consumers, which only a `config` asks for, come torch's own operations. A batch is one launch.

    Args:
        epilogue: with a bias (N,) and a residual of the output's type. A residual that does not
            have the output's shape, or whose rows TMA cannot read, is copied.
        out: where to write the output, of its shape and type; it may share memory with the operands
            and be the residual.
        config: the tile, without an epilogue; in place of the one that `choose_config` chooses.

    Raises:
        UnsupportedDeviceError, LayoutError: as for `triton_ext.matmul`.
    """
    made = offered_product(a, b, epilogue, out_dtype, out=out, config=config)
    assert made is not None  # nothing is left
    return made


def offered_product(
    a: Tensor,
    b: Tensor,
    epilogue: Epilogue = NOTHING,
    out_dtype: torch.dtype | None = None,
    *,
    out: Tensor | None = None,
    config: KernelSpec | None = None,
    leaves: bool = False,
) -> Tensor | None:
    """`product`; but if it `leaves` some, None where torch's own was measured to be faster."""
    key = signature(a, b, epilogue, out_dtype, out)
    plan = recall(key) if config is None else None
    if plan is None:
        gpu = _check(a, b, epilogue, out_dtype)
        dtype = out_dtype or output_type(a.dtype)
        shape = (*a.shape[:-1], b.shape[-1])
        if not (math.prod(shape) and b.shape[-2]):
            made = finished(a.new_zeros(shape, dtype=dtype), epilogue)
            return made if out is None else out.copy_(made)
        matrix = matrix_of_batch(a, b)
        if matrix is not None:
            into = out[0] if out is not None and len(a) == 1 else None
            found = offered_product(
                matrix, b[0], out_dtype=out_dtype, out=into, config=config, leaves=leaves
            )
            if found is None:
                return None
            if into is not None:
                return out
            whole = found.numel() == math.prod(shape)
            made = found.view(shape) if whole else found.expand(shape).contiguous()
            return made if out is None else out.copy_(made)
        if out is not None and not (a.dim() == b.dim() and _writable(out)):
            return out.copy_(product(a, b, epilogue, out_dtype, config=config))
        if gpu.index is None or a.dtype == torch.float32 or config is not None:
            key = gpu.arch, config, key  # which calls that check nothing do not find
            plan = recall(key)
        if plan is None:
            plan = keep(key, prepare(gpu, a, b, epilogue, dtype, out, config))
    if out is not None and plan.overlaps(out, a, b, epilogue):
        return out.copy_(product(a, b, epilogue, out_dtype, config=config))
    if leaves and plan.is_left(epilogue):
        return None
    return plan.run(a, b, epilogue, out)


def check_operands(a: Tensor, b: Tensor, dims: int | None = None) -> None:
    """Raise LayoutError unless (..., M, K) and (..., K, N) fit, the latter a matrix or a batch.

    Args:
        dims: how many dimensions both must have.
    """
    for name, tensor in (("a", a), ("b", b)):
        if dims is not None and tensor.dim() != dims:
            raise LayoutError(f"{name}.shape", tuple(tensor.shape), f"must have {dims} dimensions")
    if a.device != b.device:
        raise LayoutError("b.device", str(b.device), f"must be that of a, {a.device}")
    if a.shape[-1] != b.shape[-2]:
        rule = f"its dimension {b.dim() - 2} must be K = {a.shape[-1]}, as in a"
        raise LayoutError("b.shape", tuple(b.shape), rule)
    if b.dim() > 2 and a.shape[:-2] != b.shape[:-2]:
        rule = f"must begin with the batch {tuple(a.shape[:-2])}, as a does"
        raise LayoutError("b.shape", tuple(b.shape), rule)


def check_types(
    a: Tensor, b: Tensor, out_dtype: torch.dtype | None, arch: int, blocks: Tensor | None = None
) -> None:
    """Raise LayoutError unless an architecture has kernels for these types, with such scales."""
    scales = None if blocks is None else blocks.dtype
    error = unsupported(a.dtype, b.dtype, out_dtype, arch, scales)
    if error is not None:
        raise error


def _check(a: Tensor, b: Tensor, epilogue: Epilogue, out_dtype: torch.dtype | None) -> Gpu:
    """Raise LayoutError unless all fits; returns the tensors' GPU."""
    check_operands(a, b)
    gpu = require_gpu(a.device)
    check_types(a, b, out_dtype, gpu.arch, epilogue.blocks_a)
    dtype = out_dtype or output_type(a.dtype)
    shape = (*a.shape[:-1], b.shape[-1])
    k, n = b.shape[-2:]
    sizes = (*shape, k) if b.dim() == 3 else (math.prod(shape[:-1]), n, k)
    if max(sizes) > MAX_SIZE:
        raise LayoutError("shape", sizes, f"sizes must be at most {MAX_SIZE}")
    bias, residual = epilogue.bias, epilogue.residual
    if bias is not None and (bias.shape != (n,) or bias.dtype != bias_type(dtype)):
        rule = f"must be {(n,)} of {bias_type(dtype)}"
        raise LayoutError("bias", (tuple(bias.shape), bias.dtype), rule)
    if residual is not None and not (residual.dtype == dtype and broadcasts_to(residual, shape)):
        rule = f"must be of {dtype}, and broadcastable to {shape}"
        raise LayoutError("residual", (tuple(residual.shape), residual.dtype), rule)
    for name, tensor in epilogue.tensors.items():
        if tensor.device != a.device:
            rule = f"must be that of a, {a.device}"
            raise LayoutError(f"{name}.device", str(tensor.device), rule)
    return gpu


def matrix_of_batch(a: Tensor, b: Tensor) -> Tensor | None:
    """The one matrix that a batch a comes down to where b is the same matrix for all: a batch of
    one, the same matrix each time, or rows that follow each other.
    """
    if b.dim() != 3:
        return None
    batch, m, k = a.shape
    if batch == 1 or a.stride(0) == b.stride(0) == 0:
        return a[0]
    if b.stride(0) == 0 and a.stride(0) == m * a.stride(1):
        return a.as_strided((batch * m, k), a.stride()[1:])
    return None


def _writable(out: Tensor) -> bool:
    """Whether TMA can write `out` row by row.

    It writes whole units of 16 bytes, also where a row ends within one (seen on an H100).
    """
    whole_units = out.shape[-1] * out.element_size() % TMA_ALIGNMENT == 0
    return whole_units and tma_strides(out) is not None


def prepare(
    gpu: Gpu,
    a: Tensor,
    b: Tensor,
    epilogue: Epilogue,
    dtype: torch.dtype,
    out: Tensor | None = None,
    config: KernelSpec | None = None,
) -> ProductPlan:
    """The plan for a product of tensors that fit.

    Args:
        dtype: the output's.
        out: has rows that TMA may write up to the next multiple of 16 bytes.
    """
    shape = (*a.shape[:-1], b.shape[-1])
    batched = b.dim() == 3
    fused = config is None or config.is_specialized
    late: Late = "nothing" if fused or epilogue is NOTHING else "all"
    applied = epilogue if fused else NOTHING
    if applied.activation not in (None, *ACTIVATIONS):
        applied, late = applied._replace(activation=None), "activation"
    if applied.promoted and not (gpu.arch == 90 and a.dtype in FP8_TYPES):
        applied = applied._replace(promoted=False)
    if applied.promoted and not is_new():
        raise LayoutError("use_fast_accum", False, "must be True on Hopper before Triton 3.9")

    memory = shape
    if out is None and (math.prod(shape[:-1]) > 1 or gpu.index is None):
        # One row on a GPU needs no more: its memory is given out in units of 512 bytes.
        memory = (*shape[:-1], padded_columns(shape[-1], dtype))
    new = torch.empty(memory, dtype=dtype, device="meta")[..., : shape[-1]]
    c_view = _view_by_rows(new if out is None else out, batched)
    blocks_a, blocks_b = epilogue.blocks_a, epilogue.blocks_b
    reads_as = gpu.arch if blocks_a is None else 90  # as PreparedLaunch.reads_as
    a_view, a_copied = operand_view(a, 1, batched, reads_as)
    b_view, b_copied = operand_view(b, 0, batched, reads_as)
    copied = {name: aligned(each) is not each for name, each in applied.tensors.items()}
    copied |= {"a": a_copied, "b": b_copied}
    assert c_view is not None  # what is new, copied or writable suits TMA
    views: list[TmaView | None] = [a_view, b_view, c_view]
    if applied.residual is not None:
        where_it_is = applied.residual.shape == shape and _view_by_rows(applied.residual, batched)
        copied["residual"] = not where_it_is
        views.append(where_it_is or _view_by_rows(aligned_empty(new, shape), batched))
        assert views[-1] is not None
    if blocks_a is not None and blocks_b is not None:
        views += [None] * (4 - len(views))
        views += scale_view(blocks_a, shape[0]), scale_view(blocks_b, shape[1])

    majors = a_view.major, b_view.major
    scales = None if blocks_a is None else blocks_a.dtype
    problem = problem_of(gpu, a, b, c_view.shape, dtype, majors, scales)
    torch_is_faster = False
    if config is None:
        by = rule()
        if by == "measured" and blocks_a is None and not applied.promoted:
            _measure(gpu, problem, a, b, dtype)
        tuned = None if by == "fixed" or applied.promoted else lookup(problem, gpu.arch)
        torch_is_faster = tuned is not None and tuned.torch_is_faster
        if tuned is not None:
            config = tuned.config
        else:
            config = _predicted(gpu, problem, by, applied.promoted)
        config = with_epilogue(config, None if by == "fixed" else problem.k, applied.spec())
    else:
        problem.check(config, gpu.arch)
        product = replace(config.product, fp32_accumulation=applied.promoted)
        config = KernelSpec(product, applied.spec(), config.tile)
    reads: tuple[Read, ...] = ()
    if out is not None:
        reads = _reads(a, b, epilogue, out, fused and not copied.get("residual"))
    return ProductPlan(
        PreparedLaunch(gpu, config, tuple(views), problem.k),
        gpu.index,
        shape,
        shape if memory == shape else memory,
        dtype,
        frozenset(name for name, is_copied in copied.items() if is_copied),
        late,
        0 if out is None else memory_size(out),
        reads,
        torch_is_faster=torch_is_faster,
    )


def operand_view(tensor: Tensor, k_dim: int, batched: bool, arch: int) -> tuple[TmaView, bool]:
    """How TMA reads an operand, and whether it must be copied for that.

    Args:
        k_dim: which of rows (0) and columns (1) is K.
        batched: whether the kernel sees a batch; else a (..., M, K) is one matrix.
    """
    matrix = tensor if batched else tensor.flatten(0, -2)
    view = readable(matrix, k_dim, arch)
    copied = view is None or matrix.data_ptr() != tensor.data_ptr()
    if view is None:
        alike = torch.empty_strided(
            matrix.shape, matrix.stride(), dtype=matrix.dtype, device="meta"
        )
        view = readable(readable_copy(alike, k_dim, arch), k_dim, arch)
    assert view is not None
    return view, copied


def _view_by_rows(tensor: Tensor, batched: bool) -> TmaView | None:
    """How TMA reads or writes a tensor row by row where it lies; None if it cannot."""
    matrix = tensor if batched else tensor.flatten(0, -2)
    strides = tma_strides(matrix)
    if strides is None or matrix.data_ptr() != tensor.data_ptr():
        return None
    return TmaView(tuple(matrix.shape), strides, "MN")


def problem_of(
    gpu: Gpu,
    a: Tensor,
    b: Tensor,
    shape: Sequence[int],
    out_type: torch.dtype,
    majors: tuple[Major, Major],
    scales: torch.dtype | None = None,
) -> Problem:
    """What a configuration is chosen for.

    Args:
        shape: C's, as the kernel sees it.
        majors: those of A and B.
        scales: of their blocks.
    """
    *batch, m, n = shape
    return Problem(
        getattr(gpu.properties, "name", None),
        gpu.properties.multi_processor_count,
        operand_name(a.dtype, b.dtype, scales),
        *majors,
        OUTPUT_NAMES[out_type],
        m,
        n,
        b.shape[-2],
        *batch,
    )


def _predicted(gpu: Gpu, problem: Problem, by: Rule, promoted: bool) -> KernelSpec:
    """The configuration that the cost model chooses for a problem."""
    product = replace(problem.product, fp32_accumulation=promoted)
    chosen = choose_config(gpu.arch, product, problem.size, fixed=by == "fixed")
    return chosen.with_fields(batched=True) if problem.batch > 1 else chosen


def _measure(gpu: Gpu, problem: Problem, a: Tensor, b: Tensor, dtype: torch.dtype) -> None:
    """Tune a problem that was not measured before."""
    if lookup(problem, gpu.arch) is None:
        from triton_ext.ops import tuning  # which is made of this module

        tuning.measure_once(gpu, problem, a if b.dim() == 3 else a.flatten(0, -2), b, dtype)


def _reads(
    a: Tensor, b: Tensor, epilogue: Epilogue, out: Tensor, in_place: bool
) -> tuple[Read, ...]:
    """The tensors that a product reads; out may be the residual if `in_place`, and it fits."""
    found = []
    for position, tensor in enumerate((a, b, *epilogue)):
        if isinstance(tensor, Tensor):
            same = tensor.shape == out.shape and tensor.stride() == out.stride()
            is_residual = position == 2 + Epilogue._fields.index("residual")
            found.append(Read(position, memory_size(tensor), in_place and is_residual and same))
    return tuple(found)
