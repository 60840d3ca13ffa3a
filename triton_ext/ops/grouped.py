"""Products of groups, as ``torch.nn.functional.grouped_mm`` and ``scaled_grouped_mm``: a mixture of
experts multiplies each expert's tokens with its weights in one launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from triton_ext.errors import LayoutError
from triton_ext.kernels.element_types import SCALE_BLOCK
from triton_ext.ops import checks, products
from triton_ext.ops.call import Call, is_bare, wants_gradient
from triton_ext.ops.derivatives import differentiate, refuse_derivatives
from triton_ext.ops.eager import repeated, shortened_with
from triton_ext.ops.epilogue import NOTHING, Epilogue
from triton_ext.ops.functional import Scales, matmul
from triton_ext.ops.gates import GATES, Gate
from triton_ext.ops.grouped_gradients import backward, keep, tangent
from triton_ext.ops.operators import defined_product, library
from triton_ext.ops.scales import for_tensor_cores, have_blocks, same_shape, scale_columns
from triton_ext.ops.types import SCALE_LENGTHS


def grouped_mm(
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    *,
    counts: Tensor | None = None,
    rows: Tensor | None = None,
    out_rows: Tensor | None = None,
    factors: Tensor | None = None,
    bias: Tensor | None = None,
    activation: Gate | None = None,
    out_dtype: torch.dtype | None = None,
    batch_invariant: bool | None = None,
) -> Tensor:
    """Products of groups in one launch, as ``torch.nn.functional.grouped_mm``.

    ==============  ==============  ==============  ==================================
    a               b               result          group g
    ==============  ==============  ==============  ==================================
    (M, K)          (G, K, N)       (M, N)          rows of a, with b[g]
    (G, M, K)       (K, N)          (M, N)          columns of b, with a[g]
    (M, K)          (K, N)          (G, M, N)       elements of K: the gradient of weights
    (G, M, K)       (G, K, N)       (G, M, N)       a[g] @ b[g]; with counts: of its first rows
    ==============  ==============  ==============  ==================================

    Groups may be empty, and of any length. Where they end is read by the kernel: no call waits for
    the GPU, and a captured graph reads it anew. An end beyond the matrix counts as its end, one
    before the end before it as an empty group. Rows (columns) of the result behind the last group
    are zero; with `counts`, rows that do not count are not written.

    Where groups divide rows, these need not be in order. With `rows`, row i is row ``rows[i]`` of
    a, read where it is (no permuted copy is made), and zeros if a has no such row. With `out_rows`,
    it goes to row ``out_rows[i]`` of the result, and nowhere if there is no such row. Rows of the
    result to which nothing goes are not written; where several go to one, an element is that of any
    of them. `factors` multiply a row last, before it is rounded. So each of a token's experts has a
    row of its own, and who adds them up does so in one order in every run.

    There are gradients, by the same kernels, but not with `counts`. What flows to a row of a that
    several have read is added up in fp32, in the order of the groups, and rounded once: the same
    bits in every run. `triton_ext.ops.grouped_gradients` says what is copied for them.

    Memory beyond the output: a copy of an operand that TMA cannot read; of one whose contiguous
    dimension is the one that groups divide.

    Args:
        a, b: as above, of a type and on a device as for `matmul`; those that divide K of 16 bits.
        offs: (G,), int32, ascending: where each group ends.
        counts: (G,), int32: how many rows of each a[g] there are, of batches alone.
        rows, out_rows: (M,), int32, of a (T, K) and b (G, K, N): as above; `offs` are of M rows, as
            is the result.
        factors: (M,), fp32.
        bias: (G, N), of the output's type: of each group's columns; where b is (G, K, N).
        activation: gated, as for `matmul`: of N columns N / 2 are left. Where b is (G, K, N).
        out_dtype, batch_invariant: as for `matmul`.

    Raises:
        UnsupportedDeviceError, LayoutError: as for `matmul`.
    """
    given = [offs, counts, rows, out_rows, factors, bias]
    function = "grouped_mm", activation, out_dtype
    made = _shortened(function, a, b, given, batch_invariant)
    if made is not None:
        return made
    ends = _ends(a, b, offs, counts)
    epilogue = _epilogue(
        ends, activation, rows=rows, out_rows=out_rows, factors=factors, bias=bias
    )  # fmt: skip
    if ends is None:
        return matmul(
            a, b, activation=activation, out_dtype=out_dtype, batch_invariant=batch_invariant
        )
    call = Call(a, b, epilogue, out_dtype, batch_invariant=batch_invariant)
    return _made(call, function, given)


def scaled_grouped_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Scales,
    scale_b: Scales,
    offs: Tensor | None = None,
    *,
    counts: Tensor | None = None,
    rows: Tensor | None = None,
    out_rows: Tensor | None = None,
    factors: Tensor | None = None,
    bias: Tensor | None = None,
    activation: Gate | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    use_fast_accum: bool = False,
    batch_invariant: bool | None = None,
) -> Tensor:
    """`grouped_mm` of fp8 with fp32 scales, as ``torch.nn.functional.scaled_grouped_mm``.

    Scales are of one element; of each row of a and column of b: (M,) and (G, N), or (G, M) and
    (N,); or of blocks of 128 along K, as for `triton_ext.scaled_mm`: (M, ceil(K / 128)) with
    (G, ceil(K / 128), ceil(N / 128)) or (G, ceil(K / 128), N), and so on; those of a group's
    columns or rows that are shared by 128 not of the operand that groups divide. There is no
    gradient.

    Scales of blocks may be ``float8_e8m0fnu``, of powers of two alone: on Blackwell the tensor
    cores apply them, where a and b are of one type, after torch has written them out for these;
    elsewhere they are made fp32. For Blackwell they may be written out already, as PyTorch has
    mxfp8, mxfp4 and nvfp4: in blocks of 128 rows (`triton_ext.scaled_mm`), where each group, or
    each matrix of a batch, begins with a block: (G, bytes) of a batch, and of a matrix two
    dimensions of any length, which are of the product's rows, also with `rows`. Beside scales of
    blocks there may be an fp32 of one element, for the whole of an operand, as nvfp4 has it.

    Args:
        a, b, offs, counts: as for `grouped_mm`, of e4m3 or e5m2, but for the form that divides K;
            on Blackwell also of ``float4_e2m1fn_x2``, of which two elements count as one.
        scale_a, scale_b: as above, of one type; or a pair of those of blocks and of the whole. With
            counts, those of a begin with G, too. With `rows`, those of a are of its own rows; torch
            permutes them.
        rows, out_rows, factors, bias: as for `grouped_mm`.
        activation: as for `grouped_mm`; with scales of blocks as for `triton_ext.scaled_mm`.
        out_dtype: of the output.
        use_fast_accum, batch_invariant: as for `triton_ext.scaled_mm`.
    """
    of_a, of_b = checks.pair_of("scale_a", scale_a), checks.pair_of("scale_b", scale_b)
    given = [*of_a, *of_b, offs, counts, rows, out_rows, factors, bias]
    function = "scaled_grouped_mm", activation, out_dtype, bool(use_fast_accum)
    made = _shortened(function, a, b, given, batch_invariant)
    if made is not None:
        return made
    ends = _ends(a, b, offs, counts)
    if ends is None:
        raise LayoutError("offs", None, "must be given, or counts of two batches")
    call = scaled_call(
        a, b, scale_a, scale_b, ends, out_dtype, use_fast_accum, batch_invariant,
        _epilogue(ends, activation, rows=rows, out_rows=out_rows, factors=factors, bias=bias),
    )  # fmt: skip
    if wants_gradient(call):
        rule = "scaled_grouped_mm has no gradient; detach its operands"
        raise LayoutError("requires_grad", True, rule)
    return _made(call, function, given)


def scaled_call(
    a: Tensor, b: Tensor, scale_a: Any, scale_b: Any, ends: Tensor, out_dtype: torch.dtype,
    use_fast_accum: bool, batch_invariant: bool | None = None, epilogue: Epilogue = NOTHING,
) -> Call:  # fmt: skip
    """The call of `scaled_grouped_mm`; LayoutError of scales that do not fit. `epilogue` has the
    rest of it."""
    rows = epilogue.rows
    (scale_a, whole_a), (scale_b, whole_b) = (
        checks.pair_of(name, each) for name, each in (("scale_a", scale_a), ("scale_b", scale_b))
    )
    scales, blocks = _scales(a, b, ends, scale_a, scale_b)
    if not (whole_a is None and whole_b is None):
        _check_wholes(blocks, whole_a, whole_b)
        scales = whole_a, whole_b
    if rows is not None:
        checks.check_groups(Call(a, b, Epilogue(offs=ends, rows=rows)))
        (of_a, whole), (blocks_a, blocks_b) = scales, blocks
        scales = _taken(of_a, rows), whole
        if not _are_written_out(a, b, blocks_a, blocks_b):
            blocks = _taken(blocks_a, rows), blocks_b
    blocks = _applied(a, b, ends, *blocks)
    epilogue = epilogue._replace(
        scale_a=scales[0], scale_b=scales[1], blocks_a=blocks[0], blocks_b=blocks[1],
        fp32_accumulation=not use_fast_accum, offs=ends,
    )  # fmt: skip
    return Call(a, b, epilogue, out_dtype, batch_invariant=batch_invariant)


def _shortened(
    function: tuple[Any, ...], a: Any, b: Any, others: list[Any], batch_invariant: Any
) -> Tensor | None:
    """What a call makes that has a shortcut; else None. Nothing is assumed of what it is given.
    `function`: a name, an activation, an output's type, and what else equality tells apart."""
    _, activation, out_dtype, *_ = function
    if not (
        batch_invariant is None
        and (activation is None or type(activation) is str)
        and (out_dtype is None or type(out_dtype) is torch.dtype)
    ):
        return None
    return shortened_with(function, a, b, *others)


def _taken(scales: Tensor | None, rows: Tensor) -> Tensor | None:
    """The scales of these rows of a; any for a row that is none, as zeros are multiplied there."""
    if scales is None or scales.numel() == 1:
        return scales
    if not len(scales):
        return scales.new_ones((len(rows), *scales.shape[1:]))
    if scales.dtype != torch.float32:  # which torch takes as bytes alone
        return scales.view(torch.uint8)[rows.clamp(0, len(scales) - 1)].view(scales.dtype)
    return scales.index_select(0, rows.clamp(0, len(scales) - 1))


def _epilogue(ends: Tensor | None, activation: Any, **others: Any) -> Epilogue:
    """What is done to products of groups, or of batches without `ends`; LayoutError of what is none
    of its kind.
    """
    if activation is not None and not (isinstance(activation, str) and activation in GATES):
        raise LayoutError("activation", activation, f"must be None, or one of {sorted(GATES)}")
    for name, each in others.items():
        checks.check_kind(name, each, Tensor, optional=True)
        if each is not None and ends is None:
            raise LayoutError(name, type(each).__name__, "must be None of two batches")
    return Epilogue(activation=activation, offs=ends, **others)


def _ends(a: Any, b: Any, offs: Any, counts: Any) -> Tensor | None:
    """Where groups end, or how many rows of each there are; None of batches without counts."""
    checks.check_matrices_or_batches(a, b)
    both = a.dim() == b.dim() == 3
    name, given, other, other_name = "offs", offs, counts, "counts"
    if both:
        name, given, other, other_name = other_name, other, given, name
    if other is not None:
        rule = "must be None of two batches" if both else "must be None: it is of two batches"
        raise LayoutError(other_name, type(other).__name__, rule)
    checks.check_kind(name, given, Tensor, optional=both)
    found: Tensor | None = given
    if found is not None and (found.dtype != torch.int32 or found.dim() != 1):
        rule = "must be 1-D, of torch.int32"
        raise LayoutError(name, (found.dtype, tuple(found.shape)), rule)
    return found


POWERS, FP4 = torch.float8_e8m0fnu, torch.float4_e2m1fn_x2
"""The types of scales that are powers of two, and of elements of which two are a byte."""
Pair = tuple[Tensor | None, Tensor | None]


def _scales(a: Tensor, b: Tensor, offs: Tensor, scale_a: Any, scale_b: Any) -> tuple[Pair, Pair]:
    """Scales as the kernel takes them: whole ones or those of rows and columns, and of blocks."""
    if Call(a, b, Epilogue(offs=offs)).groups == "K":
        raise LayoutError("a.shape", tuple(a.shape), "must have 3 dimensions, or b, with scales")
    for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        checks.check_kind(name, scale, Tensor)
        legal = (POWERS, torch.float8_e4m3fn) if a.dtype == FP4 else (torch.float32, POWERS)
        if scale.dtype not in legal or scale.dtype != scale_a.dtype:
            rule = f"must be {legal[0]}, or {legal[1]}, as that of the other operand"
            raise LayoutError(f"{name}.dtype", scale.dtype, rule)
    if _are_written_out(a, b, scale_a, scale_b):
        _check_written_out(a, b, scale_a, scale_b)
        return (None, None), (scale_a, scale_b)
    k, m, n = a.shape[-1], a.shape[-2], b.shape[-1]
    rows, columns = (*a.shape[:-2], m), (*b.shape[:-2], n)
    if scale_a.dtype == torch.float32 and all(
        scale.numel() == 1 or same_shape(scale.shape, shape) or same_shape(scale.shape, last)
        for scale, shape, last in (
            (scale_a, rows, (*rows, 1)), (scale_b, columns, (*columns[:-1], 1, n))
        )
    ):  # fmt: skip
        return (scale_a, scale_b), (None, None)
    found = (scale_a, a, m), (scale_b.mT if scale_b.dim() > 1 else scale_b, b, n)
    for name, (scale, operand, size) in zip(("scale_a", "scale_b"), found, strict=True):
        lead = operand.shape[:-2]
        if (
            scale.dim() != operand.dim()
            or scale.shape[:-2] != lead
            or (not have_blocks(scale, size, k))
        ):
            rule = "must be of one element, of each row (column), or of blocks of 128 along K"
            shape = scale.shape if name == "scale_a" else scale_b.shape
            raise LayoutError(f"{name}.shape", tuple(shape), rule)
        divided = scale.dim() == 2 or (name == "scale_a" and b.dim() == 3)
        if divided and scale.shape[-2] != size:
            rule = "must be of each row (column) of the operand that groups divide"
            raise LayoutError(f"{name}.shape", tuple(scale.shape), rule)
    return (None, None), (scale_a, scale_b)


def _check_wholes(blocks: Pair, *wholes: Tensor | None) -> None:
    """Raise LayoutError unless scales of whole operands are beside those of blocks."""
    for name, whole in zip(("scale_a", "scale_b"), wholes, strict=True):
        if whole is not None and (
            blocks[0] is None or whole.numel() != 1 or whole.dtype != torch.float32
        ):
            rule = "must be an fp32 of one element beside scales of blocks"
            raise LayoutError(name, (whole.dtype, tuple(whole.shape)), rule)


def _are_written_out(a: Tensor, b: Tensor, scale_a: Tensor | None, scale_b: Tensor | None) -> bool:
    """Whether scales are as the tensor cores take them: those of a batch have two dimensions."""
    if scale_a is None or scale_b is None or scale_a.dtype == torch.float32:
        return False
    if a.dtype == FP4:
        return True
    return scale_b.dim() == 2 if b.dim() == 3 else scale_a.dim() == 2


def _check_written_out(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> None:
    """Raise LayoutError unless there are as many scales as there must be."""
    high = SCALE_BLOCK[0]
    block_bytes = high * SCALE_BLOCK[1] * scale_columns(a, scale_a.dtype)
    for name, scale, operand in (("scale_a", scale_a, a), ("scale_b", scale_b, b.mT)):
        bytes_of_one = -(-operand.shape[-2] // high) * block_bytes
        if operand.dim() == 3:
            wanted = f"{(len(operand), bytes_of_one)}"
            fits = same_shape(scale.shape, (len(operand), bytes_of_one))
        else:
            wanted = f"of 2 dimensions, and of a multiple of {block_bytes} elements"
            fits = scale.dim() == 2 and scale.numel() > 0 and scale.numel() % block_bytes == 0
        if not (fits and scale.is_contiguous()):
            together = SCALE_LENGTHS[scale_a.dtype]
            rule = f"must be {wanted}, contiguous: of each {together} elements along K"
            raise LayoutError(f"{name}.shape", tuple(scale.shape), rule)


def _applied(
    a: Tensor, b: Tensor, ends: Tensor, blocks_a: Tensor | None, blocks_b: Tensor | None
) -> Pair:
    """Scales of blocks as kernels of the operands' device take them."""
    if blocks_a is None or blocks_b is None or _are_written_out(a, b, blocks_a, blocks_b):
        return blocks_a, blocks_b
    if blocks_a.dtype == POWERS and checks.by_tensor_cores(a, b, POWERS):
        rows = blocks_a.shape[-2] if b.dim() == 3 else a.shape[-2]
        return (
            for_tensor_cores(blocks_a, rows, ends if a.dim() == 2 else None),
            for_tensor_cores(blocks_b.mT, b.shape[-1], ends if b.dim() == 2 else None),
        )
    if a.dim() == b.dim() == 3:  # groups follow each other
        blocks_a = blocks_a.flatten(0, 1)
    return blocks_a.float(), blocks_b.float()


def _made(
    call: Call, function: tuple[Any, ...] | None = None, others: Sequence[Any] | None = None
) -> Tensor:
    """The result of a call, by the shortest way on which torch sees all that it must know of.
    `function`, `others`: what `_shortened` was asked for it."""
    if not wants_gradient(call):
        made = repeated(call, function if call.batch_invariant is None else None, others)
        if made is not None:
            return made
    checks.check_groups(call)
    if call.groups == "rows" and wants_gradient(call):
        raise LayoutError("requires_grad", True, "there is no gradient with counts; detach a and b")
    epilogue = call.epilogue
    if is_bare(call) and not wants_gradient(call):
        return products.product(call)
    if epilogue.fp32_accumulation or epilogue.scale_a is not None or epilogue.blocks_a is not None:
        scales = epilogue.scale_a, epilogue.scale_b, epilogue.blocks_a, epilogue.blocks_b
        made = scaled_operator(
            call.a, call.b, epilogue.offs, *scales, call.dtype, not epilogue.fp32_accumulation,
            epilogue.activation, call.batch_invariant, *epilogue[11:], epilogue.bias,
        )  # fmt: skip
    else:
        made = operator(
            call.a, call.b, epilogue.offs, call.out_dtype, epilogue.activation,
            call.batch_invariant, *epilogue[11:], epilogue.bias,
        )  # fmt: skip
    result: Tensor = made
    return result


# ------------------------------------------------------------------------------- operators


def _asked(
    a: Tensor, b: Tensor, offs: Tensor, out_dtype: torch.dtype | None = None,
    activation: str | None = None, batch_invariant: bool | None = None,
    rows: Tensor | None = None, out_rows: Tensor | None = None, factors: Tensor | None = None,
    bias: Tensor | None = None, **scaled: Any,
) -> Call:  # fmt: skip
    epilogue = Epilogue(
        bias, activation, offs=offs, rows=rows, out_rows=out_rows, factors=factors, **scaled
    )
    return Call(a, b, epilogue, out_dtype, batch_invariant=batch_invariant)


def _scaled(
    a: Tensor, b: Tensor, offs: Tensor, scale_a: Tensor | None, scale_b: Tensor | None,
    blocks_a: Tensor | None, blocks_b: Tensor | None, out_dtype: torch.dtype, use_fast_accum: bool,
    *others: Any, **more: Any,
) -> Call:  # fmt: skip
    return _asked(
        a, b, offs, out_dtype, *others, **more, scale_a=scale_a, scale_b=scale_b,
        blocks_a=blocks_a, blocks_b=blocks_b, fp32_accumulation=not use_fast_accum,
    )  # fmt: skip


ARGUMENTS = (
    " str? activation=None, bool? batch_invariant=None, Tensor? rows=None, Tensor? out_rows=None,"
    " Tensor? factors=None, Tensor? bias=None) -> Tensor"
)
operator = defined_product(
    "grouped_mm(Tensor a, Tensor b, Tensor offs, ScalarType? out_dtype=None," + ARGUMENTS,
    _asked, products.product, None,
)  # fmt: skip
scaled_operator = defined_product(
    "scaled_grouped_mm(Tensor a, Tensor b, Tensor offs, Tensor? scale_a, Tensor? scale_b,"
    " Tensor? blocks_a, Tensor? blocks_b, ScalarType out_dtype, bool use_fast_accum," + ARGUMENTS,
    _scaled, products.product, None,
)  # fmt: skip
differentiate(library, operator, keep, backward, tangent)
refuse_derivatives(library, scaled_operator)
