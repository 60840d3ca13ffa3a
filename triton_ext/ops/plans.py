"""How calls are made, found by all that this depends on: the one cache of prepared products.

A call that repeats another one, on tensors of the same types, shapes, strides and alignment, checks
nothing and chooses nothing: it takes memory for the output and launches.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from triton_ext.ops.by_threads import ThreadsLaunch
from triton_ext.ops.call import Call
from triton_ext.ops.copies import Pair, copy_each
from triton_ext.ops.device import Gpu
from triton_ext.ops.epilogue import NOTHING, Epilogue, finished
from triton_ext.ops.grouping import copy_of_groups
from triton_ext.ops.launches import PreparedLaunch
from triton_ext.ops.operands import TMA_ALIGNMENT, aligned, aligned_empty, readable, readable_copy

MAX_PLANS = 4096
"""How many products are kept prepared; the oldest is forgotten first."""

# What Inductor allocates with: a third of the host's time of `torch.Tensor.new_empty`.
_inductors: Any = torch._C._dynamo.guards
_new_on_gpu = _inductors._empty_strided_cuda
_new_on_host = _inductors._empty_strided_cpu
_current_gpu: Any = getattr(torch._C, "_cuda_getDevice", None)
"""None where torch was built without CUDA. Whoever has a tensor on a GPU has initialised CUDA."""

Signature = tuple[Any, ...]


class Read(NamedTuple):
    """A tensor that a launch reads.

    Attributes:
        tensor: its name in the call or its epilogue.
        size: how many bytes of memory it lies in.
        may_be_out: whether the output may be written to the same elements.
    """

    tensor: str
    size: int
    may_be_out: bool


@dataclass(frozen=True, slots=True)
class ProductPlan:
    """How a product of tensors with a certain `signature` is made.

    Attributes:
        launch: the kernel's launch. To it a (..., M, K) is one matrix if b is a matrix.
        index: CUDA's number of the GPU; None if it is emulated.
        shape: the output's.
        memory: the shape of the output's memory if that is new: rows may have to be longer.
        dtype: the output's.
        copies: those of "a", "b" and the epilogue's tensors that must be copied for the kernel to
            read them.
        late: whether torch applies all of the epilogue, after the launch.
        out_size: how many bytes of memory out lies in, if that is given.
        reads: the tensors that out must not overlap.
        linear: whether b is given as its transpose.
        torch_is_faster: whether torch's own product was measured to be faster, or must be, as the
            kernel needs copies.
        groups: what groups divide, if there are groups.
        plain: whether the launch alone makes it, on the tensors as they are.
        strides: of the output's memory.
    """

    launch: PreparedLaunch | ThreadsLaunch
    index: int | None
    shape: tuple[int, ...]
    memory: tuple[int, ...]
    dtype: torch.dtype
    copies: frozenset[str]
    late: bool
    out_size: int
    reads: tuple[Read, ...]
    linear: bool = False
    torch_is_faster: bool = False
    groups: str | None = None
    plain: bool = field(init=False)
    strides: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        plain = not (self.copies or self.late)
        object.__setattr__(self, "plain", plain and self.memory is self.shape)
        strides = torch.empty(self.memory, dtype=self.dtype, device="meta").stride()
        object.__setattr__(self, "strides", strides)

    def run(self, call: Call, *, is_current: bool = False) -> Tensor:
        """Make the product in new memory, or in out, which must not overlap what is read.
        `is_current`: the GPU is the current one, which is looked up otherwise."""
        if not is_current and (self.index is None or self.index != _current_gpu()):
            with self.launch.gpu.current():
                return self.run(call, is_current=True)
        a, b, epilogue, _, out, _, _, _ = call
        if out is not None:
            c = out
        elif self.index is None:
            c = _new_on_host(self.memory, self.strides, self.dtype)
        else:
            c = _new_on_gpu(self.memory, self.strides, self.dtype)
        if self.plain:
            self.launch(a, b, c, epilogue)
            return c
        if self.copies:
            a, b, epilogue = self._copied(a, b, epilogue)
        self.launch(a, b, c, epilogue)
        if self.memory is not self.shape:
            rows = c[..., : self.shape[-1]]
            c = torch.empty(self.shape, dtype=self.dtype, device=c.device)
            copy_each(self.launch.gpu, [(_matrices(c), _matrices(rows))], padded="source")
        if not self.late:
            return c
        made = finished(c, epilogue)
        return made if out is None or made is out else out.copy_(made)

    def _copied(self, a: Tensor, b: Tensor, epilogue: Epilogue) -> tuple[Tensor, Tensor, Epilogue]:
        """The same values where the kernel can read them."""
        gate = epilogue.gate
        if gate is not None and "b" in self.copies:
            b = gate.pairs(b.t() if self.linear else b)
        if self.groups is not None:
            if "a" in self.copies:
                a = copy_of_groups(a, 1, self.groups, self.launch.reads_as)
            if "b" in self.copies:
                b = copy_of_groups(b, 0, self.groups, self.launch.reads_as)
            return a, b, self._copied_epilogue(epilogue)
        copies: list[Pair] = []

        def copy(made: Tensor, source: Tensor) -> None:
            copies.append((made, source))

        arch = self.launch.reads_as
        if "a" in self.copies:
            rows = a if b.dim() == 3 else a.flatten(0, -2)
            is_readable = readable(rows, 1, arch)
            a = rows if is_readable else readable_copy(rows, 1, arch, copy).expand(rows.shape)
        if "b" in self.copies:
            b = b.t() if self.linear and gate is None else b
            b = readable_copy(b, 0, arch, copy).expand(b.shape)
        copy_each(self.launch.gpu, copies, padded="made")
        return a, b, self._copied_epilogue(epilogue)

    def _copied_epilogue(self, epilogue: Epilogue) -> Epilogue:
        """The same where the kernel can read its tensors."""
        if epilogue is NOTHING:
            return epilogue
        tensors = epilogue.tensors
        copied: dict[str, Any] = {
            name: aligned(tensors[name]) for name in self.copies & tensors.keys() - {"residual"}
        }
        if "residual" in self.copies:
            residual = tensors["residual"]
            copied["residual"] = aligned_empty(residual, self.shape).copy_(residual)
        return epilogue._replace(**copied)

    def overlaps(self, call: Call) -> bool:
        """Whether out cannot be written while the others are read."""
        if call.out is None:
            return False
        start = call.out.data_ptr()
        end = start + self.out_size
        for name, size, may_be_out in self.reads:
            holder = call if name in Call._fields else call.epilogue
            address = getattr(holder, name).data_ptr()
            if address < end and start < address + size and not (may_be_out and address == start):
                return True
        return False


def _matrices(tensor: Tensor) -> Tensor:
    """A matrix, or a batch, of all of a tensor's."""
    return tensor if tensor.dim() < 4 else tensor.flatten(0, -3)


lock = threading.Lock()
"""The lock of the plans, and of what is kept because of them."""
depending: list[dict[Any, Any]] = []
"""What is forgotten with the plans."""
_plans: dict[Signature, ProductPlan] = {}
cached = _plans.get
"""The plan that is cached under a signature, or None: `find`, but for what it looks for further."""


def _described(tensor: Tensor) -> Signature:
    """What a launch depends on of a tensor."""
    return (
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.get_device(),
        tensor.data_ptr() % TMA_ALIGNMENT,
    )


def signature(call: Call) -> Signature:
    """What a product depends on, but for the tensors' addresses if these are aligned.

    The tensors must be in strided memory, on GPUs.
    """
    a, b, epilogue, out_dtype, out, linear, config, batch_invariant = call
    plain = (
        a.get_device(),
        a.dtype,
        a.shape,
        a.stride(),
        a.data_ptr() % TMA_ALIGNMENT,
        b.get_device(),
        b.dtype,
        b.shape,
        b.stride(),
        b.data_ptr() % TMA_ALIGNMENT,
        linear,
        out_dtype,
        config,
        batch_invariant,
    )
    if epilogue is NOTHING:
        return plain if out is None else (plain, _described(out))
    (
        bias,
        activation,
        residual,
        _,
        alpha,
        scale_a,
        scale_b,
        blocks_a,
        blocks_b,
        fp32_accumulation,
        *of_groups,
    ) = epilogue
    return (
        plain,
        out if out is None else _described(out),
        activation,
        alpha == 1,
        alpha == 0,
        fp32_accumulation,
        bias if bias is None else _described(bias),
        residual if residual is None else _described(residual),
        scale_a if scale_a is None else _described(scale_a),
        scale_b if scale_b is None else _described(scale_b),
        blocks_a if blocks_a is None else _described(blocks_a),
        blocks_b if blocks_b is None else _described(blocks_b),
        *(each if each is None else _described(each) for each in of_groups),
    )


def _key(call: Call, gpu: Gpu) -> Signature:
    """What a call whose tensors fit, on a GPU that was found, depends on."""
    key = signature(call)
    if gpu.index is None or call.a.dtype == torch.float32:
        return gpu.arch, key  # which calls that check nothing do not find
    return key


def find(call: Call, gpu: Gpu | None = None) -> ProductPlan | None:
    """The plan of a call, if such a one was made on its GPU before, and written to such an out, or
    to new memory.

    Args:
        gpu: the tensors', if they were checked: what is legal on emulated GPUs, and in fp32, may
            change, so that such plans are not found otherwise.
    """
    key = signature(call) if gpu is None else _key(call, gpu)
    plan = _plans.get(key)
    if plan is None and call.linear and call.b.dim() == 2:
        plan = _plans.get(signature(call.upright))
        if plan is not None:
            plan = _store(key, replace(plan, linear=True))
    return plan


def store(call: Call, plan: ProductPlan) -> ProductPlan:
    """Cache the plan of a call; returns the one that is cached of such calls."""
    return _store(_key(call, plan.launch.gpu), plan)


def _store(key: Signature, plan: ProductPlan) -> ProductPlan:
    with lock:
        while len(_plans) >= MAX_PLANS:
            del _plans[next(iter(_plans))]
        return _plans.setdefault(key, plan)


def clear_cache() -> None:
    """Forget all plans: products may be made in another way from now on."""
    with lock:
        for kept in (_plans, *depending):
            kept.clear()
