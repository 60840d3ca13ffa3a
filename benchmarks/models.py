"""Whole models in a drop-in: a Llama-like and a BERT-like one, forward and backward.

    python -m benchmarks.models [--json FILE]

The models are made from configurations by the package ``transformers``, with random weights, in
bf16. Times are medians of whole steps, until the GPU has finished, PyTorch's own products and
`triton_ext.drop_in` taking turns. The losses of both are printed, and how far the gradients are
apart (Frobenius norm, of all parameters together).
"""

from __future__ import annotations

import contextlib
import importlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

import triton_ext
from benchmarks import harness
from benchmarks.harness import Row, Table

SIDES: dict[str, Callable[[], Any]] = {
    "torch": contextlib.nullcontext,
    "drop_in": triton_ext.drop_in,
}


MODELS: dict[str, tuple[str, str, tuple[int, int], dict[str, Any]]] = {
    "llama": ("Llama", "CausalLM", (2, 2048), {
        "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632,
        "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4,
    }),
    "bert": ("Bert", "MaskedLM", (16, 512), {
        "vocab_size": 30522, "hidden_size": 1024, "intermediate_size": 4096,
        "num_hidden_layers": 8, "num_attention_heads": 16,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }),
}  # fmt: skip
"""Family and task in ``transformers``, (sequences, tokens), and the sizes: four layers of a model
with about a billion parameters, and eight of BERT large."""


def made(name: str) -> tuple[Any, torch.Tensor]:
    """A model of `MODELS` with random weights, and random tokens for it."""
    transformers = importlib.import_module("transformers")
    family, task, shape, sizes = MODELS[name]
    config = getattr(transformers, f"{family}Config")(**sizes)
    model = getattr(transformers, f"{family}For{task}")(config)
    return model, torch.randint(sizes["vocab_size"], shape)


def step(model: Any, tokens: torch.Tensor, backward: bool) -> float:
    """One step; its loss."""
    model.zero_grad(set_to_none=True)
    with torch.set_grad_enabled(backward):
        loss = model(input_ids=tokens, labels=tokens).loss
    if backward:
        loss.backward()
    return float(loss)


def gradient(model: Any) -> torch.Tensor:
    """All gradients as one vector."""
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def compared(
    name: str, sides: Mapping[str, Callable[[bool], Any]], repeats: int, facts: Row
) -> Iterator[Row]:
    """Two rows, forward and both, of one model: medians of whole steps, the sides in turn.

    Args:
        sides: torch first, then ours; called with whether to go backward, too.
        facts: what else is written into both rows.
    """
    for backward in (False, True):
        times: dict[str, list[float]] = {side: [] for side in sides}
        for repeat in range(repeats + 3):
            for side in sides if repeat % 2 else reversed([*sides]):
                torch.cuda.synchronize()
                start = time.perf_counter()
                sides[side](backward)
                torch.cuda.synchronize()
                if repeat >= 3:
                    times[side].append((time.perf_counter() - start) * 1e3)
        medians = {side: statistics.median(values) for side, values in times.items()}
        theirs, ours = medians.values()
        yield {
            "model": name,
            "step": "forward and backward" if backward else "forward",
            **{f"{side}_ms": round(value, 3) for side, value in medians.items()},
            "speedup": round(theirs / ours, 3),
            **facts,
        }


def measure(name: str, repeats: int) -> Iterator[Row]:
    """The rows of one model, with its losses, and how far the gradients are apart."""
    torch.manual_seed(0)
    model, tokens = made(name)
    model, tokens = model.cuda().bfloat16(), tokens.cuda()

    def step_in(side: str, backward: bool) -> float:
        with SIDES[side]():
            return step(model, tokens, backward)

    losses, gradients = {}, {}
    for side in SIDES:
        losses[f"{side}_loss"] = step_in(side, True)
        gradients[side] = gradient(model).double()
    difference = (gradients["drop_in"] - gradients["torch"]).norm() / gradients["torch"].norm()
    facts = {**losses, "gradient_difference": float(difference)}
    gradients.clear()
    yield from compared(name, {side: partial(step_in, side) for side in SIDES}, repeats, facts)


TABLE = Table(("", "", lambda row: " ".join(f"{key} {value}" for key, value in row.items())))


def measured(repeats: int) -> Iterator[Row]:
    """The rows of all models."""
    for name in MODELS:
        yield from measure(name, repeats)


if __name__ == "__main__":
    harness.main("models", __doc__, measured, TABLE, repeats=20)
