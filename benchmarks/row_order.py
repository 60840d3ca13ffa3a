"""A layer of experts with rows read and stored where indices say, beside permuted copies, on a GPU.

    python -m benchmarks.row_order [--json FILE] [--rounds N] [--seed N]

Every side begins with the tokens and with what the router chose, sorted by expert. "ours" is
gate and up in one product of gathered rows, and the product back, whose rows are weighted and
scattered; "copies" the same kernels with rows that torch permutes and weights; "torch" its own
``grouped_mm`` with those. All end with the sum over the experts of a token. Device time as in
`benchmarks.experts`; "error" is of some tokens against float64, over the norm of these.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

import triton_ext
from benchmarks import harness
from benchmarks.experts import SAMPLE, Case, Launch, error_of, timed, tried
from benchmarks.harness import Row, Table

LAYERS = [
    (4096, 128, 8, 2048, 768), (16384, 128, 8, 2048, 768), (4096, 8, 2, 4096, 14336),
    (8192, 64, 6, 2048, 1408), (16, 128, 8, 2048, 768), (128, 128, 8, 2048, 768),
]  # fmt: skip
"""Tokens, experts, how many of them for a token, columns of tokens and columns within: about those
of Qwen3-30B-A3B, Mixtral 8x7B and DeepSeek-V2-Lite, and of decoding."""


class Routed(NamedTuple):
    """A layer's tokens and weights, and who goes where.

    Attributes:
        x: (tokens, K).
        gate_up, down: (experts, K, 2 F), (experts, F, K).
        offs: where the rows of each expert end.
        order: of each row, sorted by expert, its number as (token, choice).
        factors: fp32, of each row.
        each: choices of a token.
    """

    x: Tensor
    gate_up: Tensor
    down: Tensor
    offs: Tensor
    order: Tensor
    factors: Tensor
    each: int


def routed(x: Tensor, gate_up: Tensor, down: Tensor, chosen: Tensor, weights: Tensor) -> Routed:
    """A layer whose router has chosen experts (tokens, choices), and their weights."""
    by_expert, order = chosen.flatten().sort(stable=True)
    numbers = torch.arange(len(gate_up), device=x.device)
    offs = torch.searchsorted(by_expert, numbers, right=True, out_int32=True)
    factors = weights.flatten()[order].float()
    return Routed(x, gate_up, down, offs, order.int(), factors, chosen.shape[1])


def _added(rows: Tensor, layer: Routed) -> Tensor:
    return rows.view(len(layer.x), layer.each, -1).sum(1)


def in_three_launches(layer: Routed) -> Tensor:
    """The layer's result (tokens, K), without a permuted copy."""
    x, gate_up, down, offs, order, factors, each = layer
    inner = triton_ext.grouped_mm(x, gate_up, offs, rows=order // each, activation="swiglu")
    return _added(triton_ext.grouped_mm(inner, down, offs, out_rows=order, factors=factors), layer)


def _stored(made: Tensor, layer: Routed) -> Tensor:
    """Rows in the order of tokens, weighted."""
    back = torch.empty_like(made)
    back[layer.order] = (made * layer.factors[:, None]).to(made.dtype)
    return _added(back, layer)


def with_copies(layer: Routed) -> Tensor:
    """The same by the same kernels, with rows that torch permutes."""
    taken = layer.x[layer.order // layer.each]
    inner = triton_ext.grouped_mm(taken, layer.gate_up, layer.offs, activation="swiglu")
    return _stored(triton_ext.grouped_mm(inner, layer.down, layer.offs), layer)


def by_torch(layer: Routed) -> Tensor:
    """The same by torch alone."""
    multiply: Any = getattr(functional, "grouped_mm", None) or torch._grouped_mm
    taken = layer.x[layer.order // layer.each]
    gate, up = multiply(taken, layer.gate_up, offs=layer.offs).chunk(2, -1)
    return _stored(multiply(functional.silu(gate) * up, layer.down, offs=layer.offs), layer)


def in_float64(layer: Routed, tokens: Tensor) -> Tensor:
    """The result of some tokens, without rounding on the way."""
    found = torch.zeros(len(tokens), layer.x.shape[1], dtype=torch.float64, device=tokens.device)
    experts = torch.searchsorted(layer.offs, torch.arange(len(layer.order), device=tokens.device),
                                 right=True)  # fmt: skip
    for i, token in enumerate(tokens.tolist()):
        for row in (layer.order // layer.each == token).nonzero().flatten().tolist():
            expert = experts[row]
            gate, up = (layer.x[token].double() @ layer.gate_up[expert].double()).chunk(2)
            made = (functional.silu(gate) * up) @ layer.down[expert].double()
            found[i] += layer.factors[row].double() * made
    return found


def drawn_layer(tokens: int, experts: int, each: int, hidden: int, inner: int) -> Routed:
    """A layer of normal numbers whose router knows nothing."""
    new = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    gate_up = new(experts, 2 * inner, hidden).mul_(hidden**-0.5).mT  # as models keep them
    down = new(experts, hidden, inner).mul_(inner**-0.5).mT
    scores = torch.rand(tokens, experts, device="cuda")
    weights, chosen = scores.softmax(-1).topk(each)
    return routed(new(tokens, hidden), gate_up, down, chosen, weights)


def measured(rounds: int, seed: int) -> Iterator[Row]:
    """The rows of the table; with a seed, tokens and columns are drawn."""
    drawn = random.Random(seed)
    for size in LAYERS:
        tokens, experts, each, hidden, inner = size
        if seed:
            tokens = drawn.randint(tokens // 2, 2 * tokens)
            hidden, inner = 64 * drawn.randint(16, 64), 64 * drawn.randint(8, 96)
        torch.manual_seed(seed)
        layer = drawn_layer(tokens, experts, each, hidden, inner)
        sides: dict[str, Launch] = {}
        for name, side in (
            ("ours", in_three_launches), ("copies", with_copies), ("torch", by_torch)
        ):  # fmt: skip
            tried(sides, name, partial(side, layer))
        some = torch.randperm(tokens, device="cuda")[:SAMPLE]
        error = error_of(in_three_launches(layer)[some], in_float64(layer, some))
        rows = tokens * each
        moved = 2.0 * (rows * (2 * hidden + 2 * inner) + 3 * experts * hidden * inner)
        case = Case("layer", rows, hidden, 3 * inner, experts, sides, error, moved)
        seconds = timed(case, rounds)
        row: Row = {
            "tokens": tokens, "experts": experts, "each": each, "hidden": hidden, "inner": inner,
            "error": error, "seconds": seconds,
        }  # fmt: skip
        row |= {name: each * 1e6 for name, each in seconds.items()}
        if "ours" in seconds:
            row |= {f"to {name}": each / seconds["ours"] for name, each in seconds.items()}
        yield row
        del layer, case, sides
        torch.cuda.empty_cache()


TABLE = Table(
    ("tokens", ">7", "tokens"), ("experts", ">8", "experts"), ("each", ">5", "each"),
    ("K", ">6", "hidden"), ("F", ">6", "inner"), ("ours us", ">10.1f", "ours"),
    ("copies", ">10.1f", "copies"), ("torch", ">10.1f", "torch"),
    ("/copies", ">8.3f", "to copies"), ("/torch", ">8.3f", "to torch"), ("error", ">9.1e", "error"),
)  # fmt: skip


def main() -> None:
    """The command."""
    harness.main(
        "row_order", __doc__, measured, TABLE, "ratios: the side's time over ours", rounds=7, seed=0
    )


if __name__ == "__main__":
    main()
