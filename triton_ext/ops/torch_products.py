"""PyTorch's products by this project's kernels: for each operator a function with its arguments,
which returns None where the product is left to PyTorch.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from triton_ext.errors import LayoutError
from triton_ext.kernels.choice.candidates import is_new
from triton_ext.ops import shortcuts
from triton_ext.ops.call import Call, call_of
from triton_ext.ops.checks import by_tensor_cores
from triton_ext.ops.device import offers, require_gpu
from triton_ext.ops.epilogue import NOTHING, Epilogue, broadcasts_to, sum_epilogue
from triton_ext.ops.functional import check_blocks
from triton_ext.ops.grouped import scaled_call
from triton_ext.ops.operands import TMA_ALIGNMENT
from triton_ext.ops.plans import cached, signature
from triton_ext.ops.products import offered_product, product
from triton_ext.ops.scales import blocks_of, have_blocks
from triton_ext.ops.shortcuts import LEFT
from triton_ext.ops.types import FP8_TYPES, HALF_TYPES, WIDE_TYPES, has_all_fp8

RECIPES: dict[int, str] = {
    each.value: name
    for name, each in getattr(
        getattr(torch.nn.functional, "ScalingType", None), "__members__", {}
    ).items()
}
"""PyTorch's names of how operands are scaled, by the numbers that its operators take."""
SWIZZLED = 1
"""PyTorch's number of scales in blocks as the tensor cores take them (``SwizzleType``)."""


def _fits(dims: int, a: Tensor, b: Tensor, out: Tensor | None) -> bool:
    """Whether two tensors, of types that there are kernels for, can be multiplied on a device that
    has them. An output must not have to be resized.
    """
    if not (
        a.dim() == b.dim() == dims
        and a.shape[:-2] == b.shape[:-2]
        and a.shape[-1] == b.shape[-2]
        and a.device == b.device
    ):
        return False
    shape = (*a.shape[:-1], b.shape[-1])
    if out is not None and (out.shape != shape or out.device != a.device):
        return False
    return offers(a.device)


def _takes(dims: int, call: Call, addend: Tensor | None) -> bool:
    """Whether there are kernels for the product of two tensors that PyTorch would multiply.

    An alpha may be there to keep the product in range, so it must be applied before the product is
    rounded; with 0, PyTorch does not look at a and b. An output must not have to be converted.
    """
    a, b, epilogue, _, out, *_ = call
    if a.dtype not in HALF_TYPES or a.dtype != b.dtype or epilogue.alpha == 0:
        return False
    if not _fits(dims, a, b, out):
        return False
    if addend is not None and not (
        addend.dtype == a.dtype and addend.device == a.device and broadcasts_to(addend, call.shape)
    ):
        return False
    return out is None or out.dtype == a.dtype


def _made(dims: int, call: Call, function: str, addend: Tensor | None = None) -> Tensor | None:
    """A product in 16 bits by our kernels, kept for shortcuts of a function; None if it is left to
    PyTorch. `addend`: what the epilogue adds, or would add if beta were not 0."""
    plan = cached(signature(call))
    if plan is not None and (call.out is None or not plan.overlaps(call)):
        is_left = plan.torch_is_faster and call.epilogue.residual is None
        shortcuts.keep(function, call, plan, is_left)
        return None if is_left else plan.run(call)
    return offered_product(call, leaves=True) if _takes(dims, call, addend) else None


def _product(dims: int, a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor | None:
    function = "mm" if out is None else "mm.out"
    made = shortcuts.repeated(function, a, b, None, out)
    if made is not None:
        return None if made is LEFT else made
    if a.dtype not in HALF_TYPES:
        return None
    return _made(dims, call_of((a, b, NOTHING, None, out, False, None, None)), function)


def _addmm(
    addend: Tensor, a: Tensor, b: Tensor,
    *, beta: float = 1, alpha: float = 1, out: Tensor | None = None,
) -> Tensor | None:  # fmt: skip
    function = "addmm" if out is None else "addmm.out"
    if beta == alpha == 1:
        made = shortcuts.repeated(function, a, b, addend, out)
        if made is not None:
            return None if made is LEFT else made
    if a.dtype not in HALF_TYPES:  # factors of complex tensors are complex
        return None
    call = call_of((a, b, sum_epilogue(addend, b, beta, alpha), None, out, False, None, None))
    if beta == 0 and not _takes(2, call, addend):  # whose key knows nothing of the addend
        return None
    return _made(2, call, function, addend)


def _addmm_in_place(addend: Tensor, a: Tensor, b: Tensor, **factors: float) -> Tensor | None:
    return _addmm(addend, a, b, out=addend, **factors)


def _scaled_mm(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    scale_result: Tensor | None = None, out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False, *, out: Tensor | None = None,
) -> Tensor | None:  # fmt: skip
    """A product of fp8, with scales of whole operands or of rows and columns."""
    function = "_scaled_mm", out_dtype, use_fast_accum
    others = scale_a, None if scale_b is scale_a else scale_b, bias
    if out is None and scale_result is None:
        made = shortcuts.repeated_with(function, a, b, *others)
        if made is not None:
            return made
    if scale_a.dtype.itemsize == 1:
        if use_fast_accum or scale_result is not None:
            return None
        return _block_scaled_mm(a, b, (scale_a,), (scale_b,), bias, out_dtype, out)
    dtype = out_dtype or (a if out is None else out).dtype
    common = use_fast_accum and a.dtype == b.dtype
    if (
        not {a.dtype, b.dtype} <= FP8_TYPES
        or dtype not in WIDE_TYPES
        or scale_result is not None
        or not _fits(2, a, b, out)
        or not (common or has_all_fp8(require_gpu(a.device).arch))
        or (out is not None and out.dtype != dtype)
    ):
        return None
    (m, k), (_, n) = a.shape, b.shape
    fp32_accumulation = not use_fast_accum
    if is_new() and _are_blocks(scale_a, scale_b, m, n, k) and _is_bias(bias, dtype, n, a):
        epilogue = Epilogue(
            bias, blocks_a=scale_a, blocks_b=scale_b, fp32_accumulation=fp32_accumulation
        )
        return _kept(Call(a, b, epilogue, dtype, out), function, others)
    vectors = (
        (scale_a, torch.float32, (m, 1)),
        (scale_b, torch.float32, (1, n)),
        (bias, dtype, (n,)),
    )
    for vector, kind, shape in vectors:
        if vector is not None and not (
            vector.dtype == kind
            and vector.device == a.device
            and vector.is_contiguous()
            and (vector.shape == shape or (vector.numel() == 1 and vector is not bias))
        ):
            return None
    epilogue = Epilogue(bias, scale_a=scale_a, scale_b=scale_b, fp32_accumulation=fp32_accumulation)
    return _kept(Call(a, b, epilogue, dtype, out), function, others)


def _block_scaled_mm(
    a: Tensor, b: Tensor, scales_a: Sequence[Tensor], scales_b: Sequence[Tensor],
    bias: Tensor | None, out_dtype: torch.dtype | None, out: Tensor | None,
) -> Tensor | None:  # fmt: skip
    """A product of mxfp8, mxfp4 or nvfp4, which Blackwell's tensor cores scale. `scales_a`,
    `scales_b`: of blocks, as these take them, and of the whole operand, if it has such a one."""
    function = "_scaled_mm", out_dtype, False
    others = *scales_a, *scales_b, bias
    if out is None and len(scales_a) == 2:
        made = shortcuts.repeated_with(function, a, b, *others)
        if made is not None:
            return made
    dtype = out_dtype or (a if out is None else out).dtype
    if not (
        dtype in WIDE_TYPES
        and _fits(2, a, b, out)
        and (out is None or out.dtype == dtype)
        and _is_bias(bias, dtype, b.shape[1], a)
        and all(scale.device == a.device for scale in (*scales_a, *scales_b))
        and by_tensor_cores(a, b, scales_a[0].dtype)
    ):
        return None
    try:
        check_blocks(a, a.shape[0], b.shape[1], scales_a[0], scales_b[0])
    except LayoutError:  # PyTorch says so
        return None
    wholes = (*scales_a[1:], *scales_b[1:]) or (None, None)
    epilogue = Epilogue(
        bias, scale_a=wholes[0], scale_b=wholes[1], blocks_a=scales_a[0], blocks_b=scales_b[0]
    )
    return _kept(Call(a, b, epilogue, dtype, out), function, others)


def _kept(call: Call, function: tuple[Any, ...], others: Sequence[Tensor | None]) -> Tensor:
    """The product of a call that fits, whose like has a shortcut from its second time on."""
    plan = cached(signature(call))
    if plan is None or call.out is not None:
        return product(call)
    shortcuts.keep_with(function, call, plan, *others)
    return plan.run(call)


def _is_bias(bias: Tensor | None, dtype: torch.dtype, n: int, a: Tensor) -> bool:
    """Whether a bias, if there is one, is a vector of an output's type."""
    if bias is None:
        return True
    return bias.dtype == dtype and bias.device == a.device and bias.shape == (n,)


def _are_blocks(scale_a: Tensor, scale_b: Tensor, m: int, n: int, k: int) -> bool:
    """Whether scales are of blocks of 128 along K, those of one operand of rows (columns)."""
    return (
        scale_a.dtype == scale_b.dtype == torch.float32
        and scale_a.dim() == scale_b.dim() == 2
        and scale_a.numel() > 1
        and scale_b.numel() > 1
        and have_blocks(scale_a, m, k)
        and have_blocks(scale_b.t(), n, k)
        and (scale_a.shape[0] == m or scale_b.shape[1] == n)
        and (blocks_of(k) > 1 or scale_a.shape[0] != m or scale_b.shape[1] != n)
    )


TENSOR, ROWS, BLOCKS, SQUARES = "TensorWise", "RowWise", "BlockWise1x128", "BlockWise128x128"
SCALED = {
    (TENSOR, TENSOR), (ROWS, ROWS), (BLOCKS, SQUARES), (BLOCKS, BLOCKS), (SQUARES, BLOCKS)
}  # fmt: skip
"""How a and b may be scaled with fp32 alone, by the names of PyTorch's recipes."""
BLOCK_SCALED: dict[tuple[str, ...], torch.dtype] = {
    ("BlockWise1x32",): torch.float8_e8m0fnu,
    ("BlockWise1x16",): torch.float8_e4m3fn,
    ("BlockWise1x16", TENSOR): torch.float8_e4m3fn,
}
"""How both may be for Blackwell's tensor cores, and the type of the scales of their blocks."""


def _names(recipes: list[int]) -> tuple[str, ...]:
    return tuple(RECIPES.get(each, "") for each in recipes)


def _for_tensor_cores(
    a: list[Tensor], recipe_a: list[int], swizzle_a: list[int],
    b: list[Tensor], recipe_b: list[int], swizzle_b: list[int],
) -> bool:  # fmt: skip
    """Whether scales are one of `BLOCK_SCALED`, and lie as the tensor cores take them."""
    names = _names(recipe_a)
    wanted = BLOCK_SCALED.get(names)
    return (
        wanted is not None
        and names == _names(recipe_b)
        and swizzle_a[:1] == swizzle_b[:1] == [SWIZZLED]
        and not any((*swizzle_a[1:], *swizzle_b[1:]))
        and len(a) == len(b) == len(names)
        and a[0].dtype == b[0].dtype == wanted
        and all(each.dtype == torch.float32 and each.numel() == 1 for each in (*a[1:], *b[1:]))
    )


def _one(scales: list[Tensor], recipes: list[int], swizzles: list[int]) -> str | None:
    """How an operand is scaled, if it has one tensor of scales, as it lies; else None."""
    plain = len(scales) == len(recipes) == 1 and not any(swizzles)
    return RECIPES.get(recipes[0]) if plain else None


def _by_rows(scales: Tensor, recipe: str, k: int) -> Tensor:
    """The scales of an operand's rows (columns), or of blocks of these, along K, of those that
    PyTorch takes: of 128 x 128 the transpose, along K padded to a multiple of 4."""
    return scales[: blocks_of(k)].t() if recipe == SQUARES else scales


def _scaled_mm_v2(
    a: Tensor, b: Tensor, scale_a: list[Tensor], recipe_a: list[int], swizzle_a: list[int],
    scale_b: list[Tensor], recipe_b: list[int], swizzle_b: list[int], bias: Tensor | None,
    out_dtype: torch.dtype | None, contraction_dim: Any = (), use_fast_accum: bool = False,
    *, out: Tensor | None = None,
) -> Tensor | None:  # fmt: skip
    """The same, as ``torch.nn.functional.scaled_mm`` says it."""
    if contraction_dim or a.dim() != 2 or b.dim() != 2:
        return None
    if _for_tensor_cores(scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b):
        return _block_scaled_mm(a, b, scale_a, scale_b, bias, out_dtype, out)
    found = _one(scale_a, recipe_a, swizzle_a), _one(scale_b, recipe_b, swizzle_b)
    if found not in SCALED:
        return None
    of_a, of_b = scale_a[0], scale_b[0]
    if BLOCKS in found:
        if not of_a.dim() == of_b.dim() == 2:
            return None
        (m, k), n = a.shape, b.shape[1]
        of_a, of_b = _by_rows(of_a, str(found[0]), k), _by_rows(of_b, str(found[1]), k)
        if not (have_blocks(of_a, m, k) and have_blocks(of_b, n, k)):
            return None
        of_b = of_b.t()
    return _scaled_mm(a, b, of_a, of_b, bias, None, out_dtype, use_fast_accum, out=out)


def _int_mm(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor | None:
    """A product of int8 in int32."""
    function = ("_int_mm",)
    if out is None:
        made = shortcuts.repeated_with(function, a, b)
        if made is not None:
            return made
    if not a.dtype == b.dtype == torch.int8 or not _fits(2, a, b, out):
        return None
    if out is not None and out.dtype != torch.int32:
        return None
    return _kept(Call(a, b, NOTHING, torch.int32, out), function, ())


def _grouped_mm(
    a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor | None:  # fmt: skip
    """Products of groups in 16 bits, or of two batches."""
    function = "_grouped_mm", out_dtype
    if bias is None:
        made = shortcuts.repeated_with(function, a, b, offs)
        if made is not None:
            return made
    if (
        a.dtype not in HALF_TYPES
        or a.dtype != b.dtype
        or bias is not None
        or out_dtype not in (None, *WIDE_TYPES)
        or not _fit_groups(a, b, offs, out_dtype or a.dtype)
    ):
        return None
    epilogue = NOTHING if offs is None else Epilogue(offs=offs)
    return _kept(Call(a, b, epilogue, out_dtype), function, (offs,))


def _fit_groups(a: Tensor, b: Tensor, offs: Tensor | None, dtype: torch.dtype) -> bool:
    """Whether two tensors can be multiplied by groups on a device that has kernels. The output's
    rows must be multiples of 16 bytes: PyTorch pads others, and its compiler relies on that.
    """
    batches = a.dim() == b.dim() == 3
    if not (batches or is_new()):
        return False
    count = len(a) if a.dim() == 3 else len(b)
    if offs is None:
        fits = batches and len(a) == len(b)
    else:
        both = {a.dim(), b.dim()} <= {2, 3} and not batches
        fits = both and offs.dim() == 1 and offs.dtype == torch.int32 and offs.device == a.device
        fits = fits and (a.dim() == b.dim() or len(offs) == count)
    if not fits or a.shape[-1] != b.shape[-2] or a.device != b.device:
        return False
    if b.shape[-1] * dtype.itemsize % TMA_ALIGNMENT:
        return False
    return offers(a.device)


def _scaled_grouped_mm(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, offs: Tensor | None = None,
    bias: Tensor | None = None, scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None, use_fast_accum: bool = False,
) -> Tensor | None:  # fmt: skip
    """Products of groups, or of two batches, in fp8, with scales of rows and columns, or of blocks;
    of groups in what Blackwell's tensor cores scale."""
    if bias is not None or scale_result is not None:
        return None
    return _scaled_groups(a, b, (scale_a,), (scale_b,), offs, out_dtype, use_fast_accum)


def _scaled_groups(
    a: Tensor, b: Tensor, scales_a: Sequence[Tensor], scales_b: Sequence[Tensor],
    offs: Tensor | None, out_dtype: torch.dtype | None, use_fast_accum: bool,
) -> Tensor | None:  # fmt: skip
    """The same. `scales_a`, `scales_b`: as PyTorch has them, and where they are of blocks, that of
    the whole operand, if it has such a one."""
    dtype = out_dtype or torch.bfloat16
    function = "_scaled_grouped_mm", dtype, use_fast_accum
    others = *scales_a, *scales_b, offs
    made = shortcuts.repeated_with(function, a, b, *others)
    if made is not None:
        return made
    ends = offs
    if offs is None and a.dim() == b.dim() == 3:
        ends = torch.full((len(a),), a.shape[1], dtype=torch.int32, device=a.device)
    if (
        ends is None
        or a.dim() == b.dim() == 2
        or dtype not in WIDE_TYPES
        or not _fit_groups(a, b, offs, dtype)
        or not _are_scaled(a, b, scales_a[0].dtype)
    ):
        return None
    with contextlib.suppress(LayoutError):  # scales that do not fit: PyTorch says so
        of_a, of_b = (each[0] if len(each) == 1 else each for each in (scales_a, scales_b))
        call = scaled_call(a, b, of_a, of_b, ends, dtype, use_fast_accum)
        return _kept(call, function, others)
    return None


def _are_scaled(a: Tensor, b: Tensor, scales: torch.dtype) -> bool:
    """Whether there are kernels for types of fp8, or for such as the tensor cores scale."""
    if {a.dtype, b.dtype} <= FP8_TYPES:
        return has_all_fp8(require_gpu(a.device).arch)
    return by_tensor_cores(a, b, scales)


def _scaled_grouped_mm_v2(
    a: Tensor, b: Tensor, scale_a: list[Tensor], recipe_a: list[int], swizzle_a: list[int],
    scale_b: list[Tensor], recipe_b: list[int], swizzle_b: list[int], offs: Tensor | None = None,
    bias: Tensor | None = None, out_dtype: torch.dtype | None = None, contraction_dim: Any = (),
    use_fast_accum: bool = False,
) -> Tensor | None:  # fmt: skip
    """The same, as ``torch.nn.functional.scaled_grouped_mm`` says it."""
    found = _one(scale_a, recipe_a, swizzle_a), _one(scale_b, recipe_b, swizzle_b)
    if bias is not None or contraction_dim:
        return None
    if found not in SCALED and not _for_tensor_cores(
        scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b
    ):
        return None
    return _scaled_groups(a, b, scale_a, scale_b, offs, out_dtype, use_fast_accum)


_mm, _bmm = (functools.partial(_product, dims) for dims in (2, 3))
PRODUCTS: dict[str, Callable[..., Tensor | None]] = {
    "mm": _mm,
    "mm.out": _mm,
    "bmm": _bmm,
    "bmm.out": _bmm,
    "addmm": _addmm,
    "addmm.out": _addmm,
    "addmm_": _addmm_in_place,
    "_int_mm": _int_mm,
    "_int_mm.out": _int_mm,
    "_scaled_mm": _scaled_mm,
    "_scaled_mm.out": _scaled_mm,
    "_scaled_mm_v2": _scaled_mm_v2,
    "_scaled_mm_v2.out": _scaled_mm_v2,
    "_grouped_mm": _grouped_mm,
    "_scaled_grouped_mm": _scaled_grouped_mm,
    "_scaled_grouped_mm_v2": _scaled_grouped_mm_v2,
}
"""By the name of PyTorch's operator, with its arguments; None where that is left to PyTorch."""
