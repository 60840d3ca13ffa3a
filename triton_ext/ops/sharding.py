"""How products of distributed tensors (`torch.distributed.tensor.DTensor`) are sharded.

Importing this module tells DTensor, by its public ``register_sharding``, which placements each
operator of ``torch.ops.triton_ext`` takes along one dimension of a mesh, and which it gives.
DTensor chooses among them, redistributes what does not fit, and combines them for meshes of more
dimensions. Gradients are products of the same operators, so they need no rules of their own.

A product is written as in einsum: the output has dimensions "mn", its factors "mk" and "kn". Where
a letter of the output is sharded, so is every tensor that has it, and the others are replicated.
Where k is sharded, the output is a partial sum; so is then what is added to it, but not where an
activation, or the saturation of an output of 8 bits, comes after the sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from triton_ext.ops import grouped, registered
from triton_ext.ops.call import GROUPS
from triton_ext.ops.gates import GATES
from triton_ext.ops.types import FP8_TYPES

Placements = list[Placement | None]
"""Along one dimension of a mesh; None where there is no tensor."""


def _rules(
    output: str,
    factors: Sequence[str | None],
    summands: Sequence[str | None] = (),
    *,
    letters: str,
    linear: bool = True,
) -> list[tuple[Placements, Placements, Placements]]:
    """The placements of the output, of the factors, and of what is added.

    Args:
        output, factors, summands: the dimensions of each; None if it is no tensor. The first two
            factors are a and b.
        letters: which dimensions of the output may be sharded.
        linear: whether the sum over k may be finished later.
    """

    def placed(letter: str, labels: str | None, others: Placement) -> Placement | None:
        if labels is None:
            return None
        return Shard(labels.index(letter)) if letter in labels else others

    def rule(letter: str, sums: Placement) -> Any:
        out = placed(letter, output, sums)
        found = [placed(letter, each, Replicate()) for each in factors]
        return [out], found, [placed(letter, each, sums) for each in summands]

    found = [rule("-", Replicate()), *(rule(letter, Replicate()) for letter in letters)]
    if linear:
        found.append(rule("k", Partial()))
        for position in (0, 1):  # the product of a partial sum is one
            out, placements, added = rule("-", Partial())
            placements[position] = Partial()
            found.append((out, placements, added))
    return found


def _summands(letters: str, bias: Any, residual: Any) -> list[str | None]:
    """The dimensions of a bias and of a residual that is broadcast to an output."""
    summands: list[str | None] = [None if bias is None else letters[-1], None]
    if residual is not None:
        dims = letters[len(letters) - len(residual.shape) :]
        sizes = zip(dims, residual.shape, strict=True)
        summands[1] = "".join("1" if size == 1 else letter for letter, size in sizes)
    return summands


def _letters(output: str, activation: str | None) -> str:
    """Which dimensions may be sharded: not the columns of gate and up, which are apart."""
    return output.replace("n", "") if activation in GATES else output


def _product(output: str, factors: tuple[str, str]) -> Any:
    """The rule of an operator of matrices, or of batches."""

    def rule(
        a: Any, b: Any, bias: Any = None, out_dtype: torch.dtype | None = None,
        activation: str | None = None, residual: Any = None, *others: Any,
    ) -> list[tuple[Placements, Placements]]:  # fmt: skip
        added = _summands(output, bias, residual)
        linear = activation is None and out_dtype not in FP8_TYPES
        letters = _letters(output, activation)
        return [
            (out, [*placed, added[0], None, None, added[1], None, None, None])
            for out, placed, added in _rules(output, factors, added, letters=letters, linear=linear)
        ]

    return rule


register_sharding(registered.mm)(_product("mn", ("mk", "kn")))
register_sharding(registered.bmm)(_product("bmn", ("bmk", "bkn")))


@register_sharding(registered.scaled_mm)  # type: ignore[untyped-decorator]
def _scaled_mm(
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    bias: Any,
    out_dtype: torch.dtype,
    blocks_a: Any = None,
    blocks_b: Any = None,
    use_fast_accum: bool = True,
    activation: str | None = None,
    batch_invariant: bool | None = None,
) -> list[tuple[Placements, Placements]]:
    """Scales of blocks lie in pieces of 128 rows, or are of so many: shards must be made of whole
    ones, unless each row has its own. Those of fp32 are a matrix.
    """
    letters, blocks = "", []
    for dim, letter, size, each in ((0, "m", a.shape[0], blocks_a), (1, "n", b.shape[1], blocks_b)):
        ranks = a.mesh.size()
        in_fp32 = each is not None and each.tensor_meta.dtype == torch.float32
        whole = each is None or (in_fp32 and each.shape[dim] == size)
        count = 0 if each is None else each.shape[dim if in_fp32 else 0]
        if whole or size % (128 * ranks) == count % ranks == 0:
            letters += letter
        matrix = "m1" if letter == "m" else "1n"
        blocks.append(None if each is None else matrix if in_fp32 else letter)
    scales = [
        None if scale is None else "11" if math.prod(scale.shape) == 1 else labels
        for scale, labels in ((scale_a, "m1"), (scale_b, "1n"))
    ]
    letters = _letters(letters, activation)
    linear = blocks_a is None and activation is None and out_dtype not in FP8_TYPES
    bias_dims = None if bias is None else "n"
    return [
        (out, [*placed[:4], *added, None, *placed[4:], None, None, None])
        for out, placed, added in _rules(
            "mn",
            ("mk", "kn", *scales, *blocks),
            (bias_dims,),
            letters=letters,
            linear=linear,
        )
    ]


GROUPED: dict[str, tuple[str, str, str, str]] = {
    "M": ("mn", "mk", "gkn", "nk"), "N": ("mn", "gmk", "kn", "mk"),
    "K": ("gmn", "mk", "kn", "mn"), "rows": ("gmn", "gmk", "gkn", "gnk"),
}  # fmt: skip
"""By what groups divide, the dimensions of the output, of a and of b, and those that may be
sharded: not the one that groups divide, as ranks would have other parts of each."""


@register_sharding(grouped.operator)  # type: ignore[untyped-decorator]
def _grouped_mm(
    a: Any,
    b: Any,
    offs: Any,
    out_dtype: torch.dtype | None = None,
    activation: str | None = None,
    batch_invariant: bool | None = None,
    rows: Any = None,
    out_rows: Any = None,
    factors: Any = None,
    bias: Any = None,
) -> list[tuple[Placements, Placements]]:
    output, of_a, of_b, letters = GROUPED[GROUPS[len(a.shape), len(b.shape)]]
    linear = "k" in letters and activation is None and out_dtype not in FP8_TYPES
    letters = _letters(letters.replace("k", ""), activation)
    of_rows = [None if each is None else "m" for each in (rows, out_rows, factors)]
    bias_dims = None if bias is None else "gn"
    return [
        (out, [*placed[:3], None, None, None, *placed[3:], *added])
        for out, placed, added in _rules(
            output, (of_a, of_b, "g", *of_rows), (bias_dims,), letters=letters, linear=linear
        )
    ]
