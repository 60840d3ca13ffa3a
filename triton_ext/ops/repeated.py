"""Products that were made before: what serves them again, found by all that they depend on.

A call that repeats another one, on tensors of the same types, shapes and strides, checks nothing
and chooses nothing: it takes memory for the output and launches.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from triton_ext.ops.epilogue import aligned
from triton_ext.ops.launches import PreparedLaunch
from triton_ext.ops.operands import TMA_ALIGNMENT, readable_copy
from triton_ext.ops.types import output_type

MAX_PREPARED = 4096
"""How many prepared problems are kept; the oldest is forgotten first."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """How to make a product again whose output is new memory.

    Attributes:
        launch: with (a, b, out, extras).
        index: CUDA's number of the GPU.
        memory: the shape of the output's memory.
        columns: the output's last dimension where that of its memory is wider; else None.
        dtype: of the output where it is not that of a; else None.
        copies: whether a, and whether b, must be copied for TMA to read it.
    """

    launch: PreparedLaunch
    index: int
    memory: tuple[int, ...]
    columns: int | None
    dtype: torch.dtype | None
    copies: tuple[bool, bool] | None


_lock = threading.Lock()
_repeated: dict[tuple[Any, ...], Repeated] = {}
_repeated_linear: dict[tuple[Any, ...], Repeated] = {}
_repeated_scaled: dict[tuple[Any, ...], Repeated] = {}
_repeated_sums: dict[tuple[Any, ...], Repeated] = {}
_repeated_out: dict[tuple[Any, ...], tuple[PreparedLaunch, int, int, int, int]] = {}
"""The launch, the GPU, and how many bytes a, b and out span."""


def keep(cache: dict[tuple[Any, ...], Any], key: tuple[Any, ...], value: Any) -> Any:
    """Put something into a bounded cache; return what is there then."""
    with _lock:
        while len(cache) >= MAX_PREPARED:
            del cache[next(iter(cache))]
        return cache.setdefault(key, value)


def forget() -> None:
    """Forget all: products may be made in another way from now on."""
    with _lock:
        for cache in (_repeated, _repeated_linear, _repeated_scaled, _repeated_sums, _repeated_out):
            cache.clear()


def _key(a: Tensor, b: Tensor, bias: Tensor | None, activation: str | None) -> tuple[Any, ...]:
    """What a product of plain tensors depends on, but for the addresses' upper bits."""
    return (
        a.get_device(),
        a.dtype,
        a.shape,
        a.stride(),
        a.data_ptr() % TMA_ALIGNMENT,
        b.shape,
        b.stride(),
        b.dtype,
        b.get_device(),
        b.data_ptr() % TMA_ALIGNMENT,
        activation,
        bias
        if bias is None
        else (
            bias.shape,
            bias.stride(),
            bias.dtype,
            bias.get_device(),
            bias.data_ptr() % TMA_ALIGNMENT,
        ),
    )


def repeats(a: Tensor, b: Tensor, bias: Tensor | None, linear: bool) -> bool:
    """Whether `repeated_product` would multiply these."""
    return _key(a, b, bias, None) in (_repeated_linear if linear else _repeated)


def repeated_product(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    linear: bool = False,
) -> Tensor | None:
    """``activation(a @ b + bias)``, or with ``b.T`` if `linear`, if that was made of such tensors
    on their GPU before; else None.

    Of the tensors it is only assumed that they are plain ones, in strided memory.
    """
    cache = _repeated_linear if linear else _repeated
    found = cache.get(_key(a, b, bias, activation))
    return None if found is None else _repeat(found, a, b, () if bias is None else (bias,))


def repeated_scaled(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
) -> Tensor | None:
    """`product` with these arguments, if that was made of such tensors before; else None."""
    found = _repeated_scaled.get(_scaled_key(a, b, scale_a, scale_b, bias, out_dtype))
    if found is None:
        return None
    scales = (scale_a, scale_b)
    return _repeat(found, a, b, scales if bias is None else (bias, *scales))


def repeated_sum(addend: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float) -> Tensor | None:
    """``beta * addend + alpha * (a @ b)``, if that was made of such tensors before; else None."""
    found = _repeated_sums.get(_sum_key(addend, a, b, alpha))
    if found is None:
        return None
    extras = (addend, float(beta))
    return _repeat(found, a, b, extras if alpha == 1 else (float(alpha), *extras))


def _sum_key(addend: Tensor, a: Tensor, b: Tensor, alpha: float) -> tuple[Any, ...]:
    # the bias of a key is described as any addend is
    return (*_key(a, b, addend, None), alpha == 1)


def _scaled_key(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
) -> tuple[Any, ...]:
    return (
        *_key(a, b, bias, None),
        out_dtype,
        *(
            (
                scale.shape,
                scale.stride(),
                scale.dtype,
                scale.get_device(),
                scale.data_ptr() % TMA_ALIGNMENT,
            )
            for scale in (scale_a, scale_b)
        ),
    )


def _repeat(found: Repeated, a: Tensor, b: Tensor, extras: tuple[Any, ...]) -> Tensor:
    if found.index != torch.cuda.current_device():
        with torch.cuda.device(found.index):
            return _repeat(found, a, b, extras)
    if found.copies is not None:
        copy_a, copy_b = found.copies
        a = readable_copy(a, 1) if copy_a else a
        b = readable_copy(b, 0) if copy_b else b
    dtype = found.dtype
    out = a.new_empty(found.memory) if dtype is None else a.new_empty(found.memory, dtype=dtype)
    found.launch(a, b, out, extras)
    return out if found.columns is None else out[..., : found.columns].contiguous()


def repeated_into(a: Tensor, b: Tensor, out: Tensor) -> Tensor | None:
    """Write ``a @ b`` to out, if that was done with such tensors before; else None."""
    address = out.data_ptr()
    found = _repeated_out.get(
        (
            *_key(a, b, None, None),
            out.dtype,
            out.shape,
            out.stride(),
            out.get_device(),
            address % TMA_ALIGNMENT,
        )
    )
    if found is None:
        return None
    launch, index, a_span, b_span, span = found
    if not (
        (address + span <= a.data_ptr() or a.data_ptr() + a_span <= address)
        and (address + span <= b.data_ptr() or b.data_ptr() + b_span <= address)
    ):
        return None
    if index != torch.cuda.current_device():
        with torch.cuda.device(index):
            return repeated_into(a, b, out)
    launch(a, b, out)
    return out


def _span(matrix: Tensor) -> int:
    """How many bytes lie between a matrix's first and last element, these included."""
    reach = sum((size - 1) * step for size, step in zip(matrix.shape, matrix.stride(), strict=True))
    return (reach + 1) * matrix.element_size()


def remember_into(launch: PreparedLaunch, a: Tensor, b: Tensor, out: Tensor) -> None:
    """Let `repeated_into` know of a launch."""
    key = (*_key(a, b, None, None), out.dtype, out.shape, out.stride(), out.get_device(), 0)
    keep(_repeated_out, key, (launch, a.get_device(), _span(a), _span(b), _span(out)))


def remember_folded(
    a: Tensor, folded: Tensor, b: Tensor, bias: Tensor | None, activation: str | None
) -> None:
    """Let `repeated_product` know that a is multiplied as `folded`, a matrix in its memory."""
    found = _repeated.get(_key(folded, b, bias, activation))
    if found is None or folded.data_ptr() != a.data_ptr():
        return
    if found.copies is None or not found.copies[0]:  # a copy for TMA is made of the matrix
        memory = (*a.shape[:-1], found.memory[-1])
        keep(_repeated, _key(a, b, bias, activation), replace(found, memory=memory))


def remember_linear(a: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> None:
    """Let `repeated_product` know that ``a @ weight.T`` is made as that of the transpose."""
    found = _repeated.get(_key(a, weight.t(), bias, activation))
    if found is not None and (found.copies is None or not found.copies[1]):
        keep(_repeated_linear, _key(a, weight, bias, activation), found)


def _entry(
    launch: PreparedLaunch, a: Tensor, c: Tensor, copies: tuple[bool, bool] | None
) -> Repeated:
    """Of a launch whose output c is new memory."""
    *lead, columns = c.shape
    width = columns if math.prod(lead) == 1 else c.stride(0) // math.prod(lead[1:])
    return Repeated(
        launch,
        a.get_device(),
        (*lead, width),
        None if width == columns else columns,
        None if c.dtype == a.dtype else c.dtype,
        copies,
    )


def remember_sum(
    launch: PreparedLaunch,
    addend: Tensor,
    a: Tensor,
    b: Tensor,
    alpha: float,
    c: Tensor,
    copies: tuple[bool, bool] | None,
) -> None:
    """Let `repeated_sum` know of a launch whose output c is new memory."""
    if c.dtype == output_type(a.dtype):
        keep(_repeated_sums, _sum_key(addend, a, b, alpha), _entry(launch, a, c, copies))


def remember(
    launch: PreparedLaunch,
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    activation: str | None,
    scales: tuple[Tensor | None, Tensor | None],
    c: Tensor,
    copies: tuple[bool, bool] | None,
) -> None:
    """Let the functions above know of a launch whose output c is new memory."""
    for tensor in (bias, *scales):
        if tensor is not None and aligned(tensor) is not tensor:
            return
    entry = _entry(launch, a, c, copies)
    scale_a, scale_b = scales
    if scale_a is None and scale_b is None:
        if c.dtype == output_type(a.dtype):
            keep(_repeated, _key(a, b, bias, activation), entry)
    elif scale_a is not None and scale_b is not None and activation is None:
        key = _scaled_key(a, b, scale_a, scale_b, bias, c.dtype)
        keep(_repeated_scaled, key, entry)
