"""From a call to its plan: how TMA reads and writes its tensors, and with which configuration.

A call is described first, without its tensors, then its configuration is chosen. This module, what
measures (`tuning`, `tuned`) and what launches (`launches`) are what the kernels are known to.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from triton_ext.kernels.choice.by_threads import (
    ThreadDivision,
    copying_seconds,
    division_by_threads,
)
from triton_ext.kernels.choice.choose import choose_config, predicted_seconds, with_epilogue
from triton_ext.kernels.element_types import Major
from triton_ext.kernels.epilogue import EpilogueSpec
from triton_ext.kernels.spec import KernelSpec
from triton_ext.ops.by_threads import Threads, ThreadsLaunch, threads_of
from triton_ext.ops.call import Call
from triton_ext.ops.device import Gpu
from triton_ext.ops.epilogue import NOTHING, Epilogue
from triton_ext.ops.grouping import output_view, view_of_groups
from triton_ext.ops.launches import PreparedLaunch
from triton_ext.ops.operands import (
    TmaView,
    aligned,
    aligned_empty,
    batch_of_one,
    is_writable,
    memory_size,
    operand_view,
    padded_columns,
    scale_view,
    view_by_rows,
)
from triton_ext.ops.plans import ProductPlan, Read
from triton_ext.ops.rule import is_batch_invariant, rule
from triton_ext.ops.scales import fp32_scales, scale_columns
from triton_ext.ops.tuned import Problem, Tuned, lookup
from triton_ext.ops.types import FP8_TYPES, HALF_TYPES, OUTPUT_NAMES, WIDE_TYPES, operand_name


@dataclass(frozen=True)
class Description:
    """What the plan of a call depends on.

    Attributes:
        gpu: where it is made.
        problem: types, major-nesses and sizes.
        shape, dtype: the output's.
        memory: the shape of the output's memory if that is new: rows may have to be longer.
        views: those of `launches.DESCRIPTORS`.
        copies: those of "a", "b" and the epilogue's tensors that must be copied for the kernel to
            read them.
        added: fields of `ProductSpec` that are not in the problem.
        steps: of fp32 scales of the blocks of A and B, see `ops.scales`; else None.
        applied: what the kernel does to the product.
        late: whether torch does all of the epilogue, after the launch.
        out_size: how many bytes of memory out lies in, if that is given.
        reads: the tensors that out must not overlap.
        is_measurable: whether `tuning` measures such products.
        in_order: whether K must not be divided (`triton_ext.batch_invariant`).
        threads: how threads read and write the tensors, where TMA needs copies and they may do
            without; else None.
        out_by_threads: whether TMA cannot write out; the plan is to new memory then, but for one by
            threads.
    """

    gpu: Gpu
    problem: Problem
    shape: tuple[int, ...]
    dtype: torch.dtype
    memory: tuple[int, ...]
    views: tuple[TmaView | None, ...]
    copies: frozenset[str]
    added: Mapping[str, Any]
    steps: tuple[int, int] | None
    applied: EpilogueSpec
    late: bool
    out_size: int
    reads: tuple[Read, ...]
    is_measurable: bool
    in_order: bool
    threads: Threads | None = None
    out_by_threads: bool = False


def described(gpu: Gpu, call: Call) -> Description:
    """The description of a call whose tensors fit.

    Args:
        call: `upright`.
    """
    a, b, epilogue, _, out, *_ = call
    shape, dtype, batched = call.shape, call.dtype, b.dim() == 3
    applied, late = _applied(gpu, call)
    reads = () if out is None else tuple(_reads(call, out))

    out_by_threads = out is not None and not is_writable(out)
    written = None if out_by_threads else out
    memory = shape
    if written is None and (math.prod(shape[:-1]) > 1 or gpu.index is None):
        # One row on a GPU needs no more: its memory is given out in units of 512 bytes.
        memory = (*shape[:-1], padded_columns(shape[-1], dtype))
    new = torch.empty(memory, dtype=dtype, device="meta")[..., : shape[-1]]
    groups, gate = call.groups, epilogue.gate
    pairs = b if gate is None else gate.pairs(b)
    c_view = view_by_rows(new if written is None else written, batched)
    if groups is not None:
        c_view = output_view(new if written is None else written, groups)
    blocks_a, blocks_b, mx_scales = epilogue.blocks_a, epilogue.blocks_b, epilogue.mx_scales
    reads_as = gpu.arch if mx_scales is None else 90  # as PreparedLaunch.reads_as
    if groups is None:
        a_view, a_copied = operand_view(a, 1, batched, reads_as)
        b_view, b_copied = operand_view(pairs, 0, batched or pairs is not b, reads_as)
    else:
        a_view, a_copied = view_of_groups(a, 1, groups, reads_as)
        b_view, b_copied = view_of_groups(pairs, 0, groups, reads_as)
    copied = {name: aligned(each) is not each for name, each in applied.tensors.items()}
    added: dict[str, Any] = {"fp32_accumulation": True} if applied.fp32_accumulation else {}
    steps = None
    if blocks_a is not None and blocks_b is not None and mx_scales is None:
        rows = call.sums_shape[-2] * (len(a) if groups == "rows" else 1)
        in_memory = [fp32_scales(blocks_a, rows), fp32_scales(blocks_b.mT, call.sums_shape[-1])]
        for letter, each in zip("ab", in_memory, strict=True):
            added |= {f"{letter}_scale_rows": each.rows, f"{letter}_scale_major": each.major}
            copied[f"blocks_{letter}"] = each.copied
        steps = in_memory[0].step, in_memory[1].step
    copied |= {"a": a_copied, "b": b_copied or pairs.data_ptr() != b.data_ptr()}
    assert c_view is not None  # what is new, copied or writable suits TMA
    if gate is not None:
        added |= {"gated": True, "interleaved": gate.interleaved}
        if pairs is not b:
            added |= {"batched": True}
            a_view, c_view = batch_of_one(a_view), batch_of_one(c_view)
    views: list[TmaView | None] = [a_view, b_view, c_view]
    if applied.residual is not None:
        where_it_is = applied.residual.shape == shape and view_by_rows(applied.residual, batched)
        copied["residual"] = not where_it_is
        views.append(where_it_is or view_by_rows(aligned_empty(new, shape), batched))
        assert views[-1] is not None
    if blocks_a is not None and blocks_b is not None and mx_scales is not None:
        views += [None] * (4 - len(views))
        along = scale_columns(a, mx_scales)
        views += scale_view(blocks_a, along), scale_view(blocks_b, along)

    majors = a_view.major, b_view.major
    sizes: tuple[int, ...] = c_view.shape
    if groups is not None:
        if epilogue.rows is not None and gpu.arch == 100:  # of whose rows TMA gathers four
            views[0] = TmaView(a_view.shape[1:], a_view.strides[1:], a_view.major)
        added |= {"batched": True, "groups": groups}
        ordered = {"gathered": epilogue.rows, "scattered": epilogue.out_rows}
        added |= {name: True for name, indices in ordered.items() if indices is not None}
        sizes = _sizes_of_groups(call, groups)
    elif gate is not None:  # as many products as those of the sums
        sizes = (*sizes[:-1], b.shape[-1])
    copies = frozenset(name for name, is_copied in copied.items() if is_copied)
    in_order = is_batch_invariant(call.batch_invariant)
    threads = None
    if (
        (copies & {"a", "b"} or memory != shape or out_by_threads)
        and a.dtype == b.dtype
        and a.dtype in HALF_TYPES
        and dtype in WIDE_TYPES
        and not (added or in_order or call.config is not None or rule() == "fixed")
        and applied.scale_a is None is applied.scale_b
    ):
        c = torch.empty(shape, dtype=dtype, device="meta") if out is None else out
        threads = threads_of(a, b, c, applied.residual, batched)
    return Description(
        gpu=gpu,
        problem=replace(problem_of(gpu, a, b, sizes, dtype, majors, mx_scales), k=_depth_of(call)),
        shape=shape,
        dtype=dtype,
        memory=shape if memory == shape else memory,
        views=tuple(views),
        copies=copies,
        added=added,
        steps=steps,
        applied=applied.spec(),
        late=late,
        out_size=0 if out is None else memory_size(out),
        reads=reads,
        is_measurable=not added,
        in_order=in_order,
        threads=threads,
        out_by_threads=out_by_threads,
    )


def _sizes_of_groups(call: Call, groups: str) -> tuple[int, ...]:
    """The sizes for which a configuration is chosen: of a batch of groups that are as long."""
    offs = call.epilogue.offs
    assert offs is not None
    count = max(1, len(offs))
    m, n = call.sums_shape[-2:]
    if groups == "M":
        m = -(-m // count)
    elif groups == "N":
        n = -(-n // count)
    return count, max(1, m), max(1, n)


def _depth_of(call: Call) -> int:
    """The elements of K for which a configuration is chosen: of groups of K, a group's."""
    k: int = call.b.shape[-2]
    offs = call.epilogue.offs
    return max(1, -(-k // max(1, len(offs)))) if offs is not None and call.groups == "K" else k


def _applied(gpu: Gpu, call: Call) -> tuple[Epilogue, bool]:
    """A call's epilogue as the kernel does it; or that torch does it after the kernel."""
    epilogue = call.epilogue
    if call.config is not None and not call.config.is_specialized:
        return NOTHING, epilogue is not NOTHING
    in_fp32 = epilogue.fp32_accumulation or (
        epilogue.blocks_a is not None and epilogue.mx_scales is None
    )
    in_fp32 &= gpu.arch == 90 and call.a.dtype in FP8_TYPES
    if epilogue.fp32_accumulation != in_fp32:
        epilogue = epilogue._replace(fp32_accumulation=in_fp32)
    return epilogue, False


def planned(description: Description, config: KernelSpec | None = None) -> ProductPlan:
    """The plan of what was described.

    Args:
        config: the tile; None for the one that is chosen.
    """
    found, problem = description, description.problem
    is_given, tuned = config is not None, None
    if config is None:
        config, tuned = _chosen(found)
    else:
        problem.check(config, found.gpu.arch)
        product = replace(config.product, **{"fp32_accumulation": False, **found.added})
        config = KernelSpec(product, found.applied, config.tile)
    division = None if is_given else _by_threads(found, tuned, config)
    if division is not None:
        assert found.threads is not None
        return ProductPlan(
            ThreadsLaunch(found.gpu, problem, found.threads, division, found.applied),
            found.gpu.index,
            found.shape,
            found.shape,
            found.dtype,
            frozenset(),
            found.late,
            found.out_size,
            found.reads,
        )
    return ProductPlan(
        PreparedLaunch(found.gpu, config, found.views, problem.k, found.steps),
        found.gpu.index,
        found.shape,
        found.memory,
        found.dtype,
        found.copies,
        found.late,
        found.out_size,
        found.reads,
        torch_is_faster=tuned is not None and tuned.torch_is_faster,
        groups=found.added.get("groups"),
    )


def _by_threads(
    found: Description, tuned: Tuned | None, config: KernelSpec
) -> ThreadDivision | None:
    """The tile of a product whose operands threads load, if that is predicted to be faster than
    copies and a kernel that was chosen.
    """
    if found.threads is None:
        return None
    size, copies = found.problem.size, found.copies
    alone = tuned.seconds if tuned is not None else predicted_seconds(config, size)
    new_rows = found.memory is not found.shape or found.out_by_threads
    copying = copying_seconds(size, "a" in copies, "b" in copies, new_rows)
    return division_by_threads(size, found.threads.access, alone + copying)


def _chosen(found: Description) -> tuple[KernelSpec, Tuned | None]:
    """The configuration of a product: the one that was measured, else the one that the cost model
    predicts to be the fastest; and what was measured.
    """
    arch, problem, fixed = found.gpu.arch, found.problem, rule() == "fixed"
    tuned = None if fixed or found.added else lookup(problem, arch)
    if tuned is not None and found.in_order:  # torch's own product is not known to be
        tuned = tuned._replace(torch_seconds=None) if tuned.config.adds_in_order else None
    if tuned is not None:
        config = tuned.config
    else:
        product = replace(problem.product, **found.added)
        config = choose_config(arch, product, problem.size, fixed=fixed, in_order=found.in_order)
        if problem.batch > 1 and not config.product.batched:
            config = config.with_fields(batched=True)
    return with_epilogue(config, None if fixed else problem.k, found.applied), tuned


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


def _reads(call: Call, out: Tensor) -> Iterator[Read]:
    """The tensors that a product reads; out may be a residual that lies as it does, if the kernel
    adds it.
    """
    fused = call.config is None or call.config.is_specialized
    for name, tensor in {"a": call.a, "b": call.b, **call.epilogue.tensors}.items():
        same = tensor.shape == out.shape and tensor.stride() == out.stride()
        yield Read(name, memory_size(tensor), fused and name == "residual" and same)
