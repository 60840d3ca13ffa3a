"""From what a router chose to the arguments of products of groups."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from triton_ext.errors import LayoutError
from triton_ext.ops.checks import check_kind


class Routed(NamedTuple):
    """Choices of tokens, sorted by expert; those of one expert in the order of tokens.

    Attributes:
        offs: (experts,), int32: where the choices of each expert end (`offs` of `grouped_mm`).
        rows: (M,), int32: the token of each choice (`rows`).
        order: (M,), int32: each choice's number among those of all tokens, one after the other
            (`out_rows`): ``(T * C, N)`` so comes out as ``(T, C, N)``.
        factors: (M,), fp32: each choice's weight (`factors`); None if there are none.
    """

    offs: Tensor
    rows: Tensor
    order: Tensor
    factors: Tensor | None


def route(chosen: Tensor, experts: int, weights: Tensor | None = None) -> Routed:
    """What `grouped_mm` and `scaled_grouped_mm` need for the experts that each token has chosen.

    No call waits for the GPU. A choice that is no expert, as one of another rank's, comes behind
    the last group: its rows of products are zeros. There is a gradient of the weights.

    Args:
        chosen: (T, C), of integers: the experts of each token.
        experts: how many there are.
        weights: (T, C), floating: those of the choices.

    Raises:
        LayoutError: shapes, types or devices do not fit.
    """
    check_kind("chosen", chosen, Tensor)
    if chosen.dim() != 2 or chosen.dtype not in (torch.int64, torch.int32):
        rule = "must be (tokens, choices), of torch.int64 or torch.int32"
        raise LayoutError("chosen", (tuple(chosen.shape), chosen.dtype), rule)
    if type(experts) is not int or experts < 1:
        raise LayoutError("experts", experts, "must be an integer of at least 1")
    check_kind("weights", weights, Tensor, optional=True)
    if weights is not None:
        for name, found, wanted in (
            ("shape", tuple(weights.shape), tuple(chosen.shape)),
            ("device", str(weights.device), str(chosen.device)),
        ):
            if found != wanted:
                raise LayoutError(f"weights.{name}", found, f"must be that of chosen, {wanted}")
        if not weights.is_floating_point():
            raise LayoutError("weights.dtype", weights.dtype, "must be floating")
    each = chosen.flatten()
    known = (each >= 0) & (each < experts)
    by_expert, order = each.where(known, experts).sort(stable=True)
    numbers = torch.arange(experts, device=chosen.device, dtype=chosen.dtype)
    offs = torch.searchsorted(by_expert, numbers, right=True, out_int32=True)
    factors = None if weights is None else weights.flatten()[order].float()
    order = order.int()
    return Routed(offs, order // max(1, chosen.shape[1]), order, factors)
