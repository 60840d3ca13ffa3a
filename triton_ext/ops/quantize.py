"""Quantization to fp8 with fp32 scales of blocks: what `scaled_mm` and `scaled_grouped_mm` take."""

from __future__ import annotations

import torch
from torch import Tensor

from triton_ext.compat import LAUNCH_OPTIONS
from triton_ext.errors import LayoutError
from triton_ext.kernels.device.quantize import quantize
from triton_ext.kernels.element_types import FP32_SCALE_BLOCK
from triton_ext.ops.call import Call, is_bare
from triton_ext.ops.checks import check_kind
from triton_ext.ops.device import require_gpu
from triton_ext.ops.operators import defined
from triton_ext.ops.scales import blocks_of
from triton_ext.ops.types import FP8_TYPES, WIDE_TYPES

ROWS_AT_A_TIME = 32
"""Rows of 128 elements that a program quantizes where each has its own scale."""


def quantize_1x128(
    x: Tensor, *, dtype: torch.dtype = torch.float8_e4m3fn, powers_of_two: bool = False
) -> tuple[Tensor, Tensor]:
    """fp8 with a scale for each 128 elements of a row.

    A scale is the largest magnitude of its elements over the largest number of the type (448 of
    e4m3), as DeepSeek-V3's kernels have it, rounded once, and elements are divided by it and
    rounded once. Elements that are all zero have a scale of zero.

    Args:
        x: (..., K), fp32, bf16 or fp16, with any strides, on a GPU or emulated as for
            `triton_ext.matmul`.
        dtype: ``float8_e4m3fn`` or ``float8_e5m2``.
        powers_of_two: whether scales are rounded up to powers of two.

    Returns:
        (..., K) in fp8, contiguous; and (..., ceil(K / 128)) in fp32: for a matrix, as torch's and
        DeepGEMM's products take it, with rows contiguous.
    """
    rows = _checked(x, 1, dtype).flatten(0, -2)
    made, (scales,) = _quantize(rows.unsqueeze(0), dtype, False, powers_of_two)
    shape = (*x.shape[:-1], scales.shape[1])
    return made.view(x.shape), scales if x.dim() == 2 else scales.reshape(shape)


def quantize_128x128(
    w: Tensor, *, dtype: torch.dtype = torch.float8_e4m3fn, powers_of_two: bool = False
) -> tuple[Tensor, Tensor]:
    """fp8 with a scale for each 128 rows of 128 elements; otherwise as `quantize_1x128`.

    Args:
        w: (N, K), or (G, N, K), such as weights.
        dtype, powers_of_two: see there.

    Returns:
        w's shape in fp8, and (ceil(N / 128), ceil(K / 128)) in fp32, both contiguous; or those of
        each of the G.
    """
    matrices = _checked(w, 2, dtype)
    if w.dim() > 3:
        raise LayoutError("w.shape", tuple(w.shape), "must have 2 or 3 dimensions")
    matrices = matrices if w.dim() == 3 else matrices.unsqueeze(0)
    made, scales = _quantize(matrices, dtype, True, powers_of_two)
    return made.view(w.shape), scales if w.dim() == 3 else scales[0]


def _checked(x: Tensor, dims: int, dtype: torch.dtype) -> Tensor:
    """What is quantized, with two dimensions at least."""
    name = "x" if dims == 1 else "w"
    check_kind(name, x, Tensor)
    if x.dim() < dims:
        raise LayoutError(f"{name}.shape", tuple(x.shape), f"must have at least {dims} dimensions")
    if x.dtype not in WIDE_TYPES:
        rule = f"must be one of {sorted(map(str, WIDE_TYPES))}"
        raise LayoutError(f"{name}.dtype", x.dtype, rule)
    if dtype not in FP8_TYPES:
        raise LayoutError("dtype", dtype, f"must be one of {sorted(map(str, FP8_TYPES))}")
    return x if x.dim() > 1 else x.unsqueeze(0)


def _quantize(
    x: Tensor, dtype: torch.dtype, together: bool, powers_of_two: bool
) -> tuple[Tensor, Tensor]:
    """`_quantized`, by the shortest way on which torch sees all that it must know of."""
    made: tuple[Tensor, Tensor]
    made = (_quantized if is_bare(Call(x, x)) else _operator)(x, dtype, together, powers_of_two)
    return made


def _empty(x: Tensor, dtype: torch.dtype, together: bool, _: bool = False) -> tuple[Tensor, Tensor]:
    """(matrices, rows, K) of a type, and fp32 for their scales, in new memory."""
    count, rows, k = x.shape
    along = blocks_of(k)
    if together:
        scales = x.new_empty((count, blocks_of(rows), along), dtype=torch.float32)
    else:
        scales = x.new_empty((count, along, rows), dtype=torch.float32).mT
    return x.new_empty(x.shape, dtype=dtype), scales


def _quantized(
    x: Tensor, dtype: torch.dtype, together: bool, powers_of_two: bool
) -> tuple[Tensor, Tensor]:
    """(matrices, rows, K) in fp8, contiguous, and the scales. `together`: whether 128 rows have a
    scale together; else they are contiguous in the scales."""
    count, rows, k = x.shape
    made, scales = _empty(x, dtype, together)
    at_a_time = FP32_SCALE_BLOCK if together else ROWS_AT_A_TIME
    gpu = require_gpu(x.device)
    if x.numel():
        with gpu.current():
            quantize[(-(-rows // at_a_time), blocks_of(k), count)](
                x, made, scales, rows, k, *x.stride(), *scales.stride(),
                torch.finfo(dtype).max, at_a_time, together, powers_of_two,
                num_warps=8 if together else 4, **LAUNCH_OPTIONS,
            )  # fmt: skip
    return made, scales


_operator = defined(
    "quantize(Tensor x, ScalarType dtype, bool together, bool powers_of_two) -> (Tensor, Tensor)",
    _quantized, _empty,
)  # fmt: skip
