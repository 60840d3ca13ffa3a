"""This project's kernels among the candidates of ``torch.compile(mode="max-autotune")``.

PyTorch's Inductor measures candidates for each ``mm``, ``addmm``, ``bmm``, ``_scaled_mm``,
``_grouped_mm`` and ``_scaled_grouped_mm`` of a graph: the library, its own Triton templates, and
from `enable` on these kernels. It takes the fastest, so ours are chosen where they win.

The candidate for ``mm`` is Inductor's own setting ``external_matmul``. For the others there is
none; they are put beside the library's candidate, with its inputs and output, by
``add_preprocessing_fn`` of Inductor's algorithm selector, so the setting
``max_autotune_gemm_backends`` must include ATEN, as it does unless it was changed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._inductor import config
from torch._inductor.kernel.mm import lazy_register_extern_choice
from torch._inductor.select_algorithm import (
    ExternKernelChoice,
    add_preprocessing_fn,
    get_algorithm_selector_cache,
)

from triton_ext.kernels.choice.candidates import is_new
from triton_ext.ops.call import Call
from triton_ext.ops.device import offers
from triton_ext.ops.epilogue import Epilogue
from triton_ext.ops.products import product
from triton_ext.ops.torch_products import PRODUCTS
from triton_ext.ops.types import FP8_TYPES, HALF_TYPES, WIDE_TYPES, has_all_fp8

# Graphs name these functions; Inductor keeps graphs in files, and looks the functions up again.


def triton_ext_mm(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
    made = PRODUCTS["mm"](a, b, out=out)
    return torch.mm(a, b, out=out) if made is None else made


def triton_ext_bmm(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
    made = PRODUCTS["bmm"](a, b, out=out)
    return torch.bmm(a, b, out=out) if made is None else made


def triton_ext_addmm(
    addend: Tensor, a: Tensor, b: Tensor, *, out: Tensor, alpha: float = 1, beta: float = 1
) -> Tensor:
    if addend.dim() == 2 and addend.stride(0) == 0:
        addend = addend[0]  # a bias, which Inductor has expanded
    made = PRODUCTS["addmm"](addend, a, b, alpha=alpha, beta=beta, out=out)
    return torch.addmm(addend, a, b, alpha=alpha, beta=beta, out=out) if made is None else made


def triton_ext_scaled_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    *,
    out: Tensor,
    use_fast_accum: bool = False,
    **_: Any,
) -> Tensor:
    fp32_accumulation = not use_fast_accum
    epilogue = Epilogue(bias, scale_a=scale_a, scale_b=scale_b, fp32_accumulation=fp32_accumulation)
    return product(Call(a, b, epilogue, out.dtype, out))


def triton_ext_grouped_mm(*operands: Any, **options: Any) -> Tensor:
    made = PRODUCTS["_grouped_mm"](*operands, **options)
    return torch._grouped_mm(*operands, **options) if made is None else made


def triton_ext_scaled_grouped_mm(*operands: Any, **options: Any) -> Tensor:
    made = PRODUCTS["_scaled_grouped_mm"](*operands, **options)
    return torch._scaled_grouped_mm(*operands, **options) if made is None else made


_MM: Any = triton_ext_mm  # Inductor calls it with out=, which the type of its setting does not say
_OURS = {
    "addmm": triton_ext_addmm,
    "bmm": triton_ext_bmm,
    "_scaled_mm": triton_ext_scaled_mm,
    "_grouped_mm": triton_ext_grouped_mm,
    "_scaled_grouped_mm": triton_ext_scaled_grouped_mm,
}
"""By the name of the library's candidate."""
_GROUPED = ("_grouped_mm", "_scaled_grouped_mm")
"""Those that make memory for their output, as the library's do."""
_NAMES = frozenset(ours.__name__ for ours in (triton_ext_mm, *_OURS.values()))


@functools.cache
def _choice(name: str) -> Any:
    """Our candidate beside the library's of that name."""
    if name in _GROUPED:
        return ExternKernelChoice(_OURS[name], has_out_variant=False)
    return lazy_register_extern_choice(_OURS[name])


def _with_ours(choices: list[Any]) -> list[Any]:
    """The candidates for a product, with ours where there is a kernel, and without where not."""
    choices = [each for each in choices if each.name not in _NAMES or _suits(each)]
    library = next((each for each in choices if each.name in _OURS), None)
    if library is None or not _suits(library):
        return choices
    ours = _choice(library.name).bind(library.input_nodes, library.layout, **library.kwargs)
    return [*choices, ours]


def _suits(choice: Any) -> bool:
    """Whether a candidate is measured, of types, sizes and a device that there are kernels for."""
    if not (config.max_autotune or config.max_autotune_gemm) or not offers(choice.layout.device):
        return False
    nodes, out = choice.input_nodes, choice.layout
    if choice.name in _GROUPED:
        return _suits_groups(choice)
    if choice.name != "_scaled_mm":
        return all(node.get_dtype() in HALF_TYPES for node in nodes) and out.dtype in HALF_TYPES
    a, b, *scales = nodes
    (m, n), fp8 = out.size, {a.get_dtype(), b.get_dtype()}
    legal = (1, m), (1, n)
    return (
        fp8 <= FP8_TYPES
        and (has_all_fp8(90) or (len(fp8) == 1 and bool(choice.kwargs.get("use_fast_accum"))))
        and out.dtype in WIDE_TYPES
        and all(s.get_dtype() == torch.float32 for s in scales[:2])
        and all(math.prod(s.get_size()) in of for s, of in zip(scales, legal, strict=False))
        and all(bias.get_dtype() == out.dtype for bias in scales[2:])
    )


def _suits_groups(choice: Any) -> bool:
    """Whether types and sizes of products of groups suit the kernels, whose rows are not padded."""
    (a, b, *scales), out = choice.input_nodes, choice.layout
    operands, legal = {a.get_dtype(), b.get_dtype()}, HALF_TYPES
    if choice.name == "_scaled_grouped_mm":
        legal, scales = FP8_TYPES, scales[:2]
        if any(each.get_dtype() != torch.float32 for each in scales):
            return False
    return (
        operands <= legal
        and out.dtype in WIDE_TYPES
        and tuple(out.stride[-2:]) == (out.size[-1], 1)
        and (is_new() or len(choice.input_nodes) == 2)
    )


def enable() -> None:
    """Offer this project's kernels to what is compiled with max-autotune from now on.

    For fp16 and bf16 ``mm``, ``addmm``, ``bmm`` and ``_grouped_mm``, and ``_scaled_mm`` and
    ``_scaled_grouped_mm`` of fp8 (before Triton 3.9 ``_scaled_mm`` of one type, with
    ``use_fast_accum``, and of those of groups batches alone). A graph that was compiled before
    stays as it is. A process that loads a graph from Inductor's cache must have called this, too.
    """
    if _MM in config.external_matmul:
        return
    lazy_register_extern_choice(triton_ext_mm)
    for name in _OURS:  # graphs in Inductor's cache ask for it by name
        _choice(name)
    config.external_matmul = [*config.external_matmul, _MM]
    add_preprocessing_fn(_with_ours)


def disable() -> None:
    """Offer them no longer."""
    config.external_matmul = [each for each in config.external_matmul if each is not _MM]
    functions = get_algorithm_selector_cache().preprocessing_fns
    functions[:] = [each for each in functions if each is not _with_ours]


@contextmanager
def enabled() -> Iterator[None]:
    """`enable` in a block."""
    enable()
    try:
        yield
    finally:
        disable()
