"""Whole models by ``torch.compile``, products autotuned with and without `triton_ext.inductor`.

    python -m benchmarks.compiled_models [--models llama bert] [--json FILE]

The models, and the steps, are those of `benchmarks.models`. Each side is compiled in this process,
without Inductor's caches; then whole steps of both take turns, and the medians are compared. Of
what ``mode="max-autotune"`` does, products are autotuned, and no other operations (this alone took
four minutes for the first model): those have the same kernels on both sides.
``chosen`` counts the products for which Inductor found our kernel the fastest, of those of all
three graphs (forward, backward, and forward alone). Triton templates take minutes to compile;
``TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS=ATEN`` leaves the library and ours.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

import triton_ext
from benchmarks import harness
from benchmarks.harness import Row
from benchmarks.models import MODELS, TABLE, compared, gradient, made, step

SIDES = ("torch", "ours")


def side_of(side: str) -> AbstractContextManager[Any]:
    """The context in which a side is compiled."""
    return triton_ext.inductor.enabled() if side == "ours" else contextlib.nullcontext()


def compiled(model: Any, tokens: torch.Tensor, side: str) -> tuple[Any, list[str]]:
    """The model, compiled for both kinds of steps, and the fastest candidate for each product."""
    from torch._inductor import select_algorithm
    from torch._inductor.compile_fx import compile_fx

    fastest: list[str] = []

    def remember(times: dict[Any, float], *_: Any) -> None:
        if times:
            fastest.append(min(times, key=lambda choice: times[choice]).name)

    select_algorithm.add_feedback_saver(remember)

    def inductor(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        return compile_fx(graph, inputs, config_patches={"max_autotune_gemm": True})

    # Dynamo takes the graph of a backend that is equal, so that each side has one of its own.
    result = torch.compile(copy.deepcopy(model), backend=inductor, dynamic=False)
    with side_of(side):
        for backward in (True, False):
            step(result, tokens, backward)
    select_algorithm.clear_feedback_savers()
    return result, fastest


def measure(name: str, repeats: int) -> Iterator[Row]:
    """The rows of one model."""
    torch.manual_seed(0)
    model, tokens = made(name)
    model, tokens = model.cuda().bfloat16(), tokens.cuda()
    step(model, tokens, backward=True)
    expected = gradient(model).double()
    sides: dict[str, Callable[[bool], Any]] = {}
    facts: Row = {}
    for side in SIDES:
        begin = time.perf_counter()
        built, chosen = compiled(model, tokens, side)  # ours is the last
        print(f"{name}, {side}: compiled in {time.perf_counter() - begin:.0f} s", flush=True)
        sides[side] = partial(step, built, tokens)
        facts[f"{side}_loss"] = step(built, tokens, backward=True)
        difference = gradient(built).double() - expected
        facts[f"{side}_gradient_difference"] = float(difference.norm() / expected.norm())
    facts["chosen"] = sum(each.startswith("triton_ext") for each in chosen)
    facts["products"], facts["candidates"] = len(chosen), sorted(set(chosen))
    yield from compared(name, sides, repeats, facts)


def main() -> None:
    parser = harness.options(__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    arguments = parser.parse_args()
    torch._inductor.config.force_disable_caches = True
    models = (measure(name, arguments.repeats) for name in arguments.models)
    rows = itertools.chain.from_iterable(models)
    harness.report("compiled_models", rows, TABLE, arguments.json)


if __name__ == "__main__":
    main()
