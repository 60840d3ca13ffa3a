"""Products as models write them: in batches, with what follows them, and their gradients.

    python -m benchmarks.expressions [--random SEED] [--number N] [--json FILE]

Device time, as `benchmarks.matmul` measures it, of calls of the public functions, beside what torch
launches for the same expression: each is captured in a CUDA graph. M, N and K are drawn from a
seed, log-uniform; bf16.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

import triton_ext
from benchmarks import harness
from benchmarks.harness import Row, Table
from benchmarks.matmul import ROUNDS, geometric_mean, median_seconds
from benchmarks.problems import between, sets_of

Tensors = tuple[torch.Tensor, ...]
Expression = Callable[..., torch.Tensor]
gelu = torch.nn.functional.gelu


@dataclass(frozen=True)
class Side:
    """An expression by triton_ext and by torch, and its operands' shapes, given B, M, N and K."""

    ours: Expression
    torch: Expression
    shapes: Callable[[int, int, int, int], Sequence[tuple[int, ...]]]


def _fused(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return triton_ext.linear(x, weight, bias, activation="gelu")


def _separate(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return gelu(torch.nn.functional.linear(x, weight, bias))


def _gradient(product: Expression, which: int) -> Expression:
    """The product that the gradient of input or weight is, of (M, K), (N, K) and (M, N)."""

    def gradient(x: torch.Tensor, weight: torch.Tensor, of_output: torch.Tensor) -> torch.Tensor:
        return product(of_output, weight) if which == 0 else product(of_output.T, x)

    return gradient


EXPRESSIONS = {
    "bmm": Side(triton_ext.bmm, torch.bmm, lambda b, m, n, k: [(b, m, k), (b, k, n)]),
    "matmul 3-D x 2-D": Side(
        triton_ext.matmul, torch.matmul, lambda b, m, n, k: [(b, m, k), (k, n)]
    ),
    "addmm, vector": Side(
        triton_ext.addmm, torch.addmm, lambda b, m, n, k: [(n,), (m, k), (k, n)]
    ),
    "addmm, matrix": Side(
        triton_ext.addmm, torch.addmm, lambda b, m, n, k: [(m, n), (m, k), (k, n)]
    ),
    "linear": Side(
        triton_ext.linear, torch.nn.functional.linear, lambda b, m, n, k: [(m, k), (n, k), (n,)]
    ),
    "linear, gelu": Side(_fused, _separate, lambda b, m, n, k: [(m, k), (n, k), (n,)]),
    "gradient of input": Side(
        _gradient(triton_ext.matmul, 0), _gradient(torch.matmul, 0),
        lambda b, m, n, k: [(m, k), (n, k), (m, n)],
    ),
    "gradient of weight": Side(
        _gradient(triton_ext.matmul, 1), _gradient(torch.matmul, 1),
        lambda b, m, n, k: [(m, k), (n, k), (m, n)],
    ),
}  # fmt: skip


def drawn(seed: int, number: int) -> Iterator[tuple[str, int, int, int, int]]:
    """So many of each expression, with B, M, N and K."""
    draw = random.Random(seed)
    for name in EXPRESSIONS:
        for _ in range(number):
            batch = between(draw, 2, 64)
            m, n, k = (between(draw, low, 8192, 8) for low in (64, 256, 256))
            if name == "bmm":
                m, n, k = (max(64, size // 32 * 8) for size in (m, n, k))
            elif len(EXPRESSIONS[name].shapes(batch, m, n, k)[0]) == 3:
                m = max(8, m // batch)
            yield name, batch, m, n, k


def measure(name: str, batch: int, m: int, n: int, k: int) -> Row:
    """A row: medians, and the ratio."""
    side = EXPRESSIONS[name]
    shapes = side.shapes(batch, m, n, k)
    elements = sum(map(math.prod, shapes))
    count = sets_of(2 * elements)
    sets = [
        tuple(torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes)
        for _ in range(count)
    ]
    expected = side.torch(*(x.double() for x in sets[0]))
    found = side.ours(*sets[0])
    error = float((found.double() - expected).norm() / expected.norm())
    if not error < 1e-2:
        raise AssertionError(f"{name} {shapes}: error {error}")

    def launches(expression: Expression) -> Callable[[int], None]:
        return functools.partial(_call, expression, sets)

    flops = 2.0 * math.prod(found.shape) * (m if name == "gradient of weight" else k)
    if name == "gradient of input":
        flops = 2.0 * m * n * k
    estimate = 2e-6 + max(flops / 700e12, 2 * (elements + found.numel()) / 2.8e12)
    seconds = median_seconds(
        {"triton_ext": launches(side.ours), "torch": launches(side.torch)},
        estimate, count, ROUNDS,
    )  # fmt: skip
    return {
        "expression": name, "batch": batch, "m": m, "n": n, "k": k,
        **{f"{which}_us": value * 1e6 for which, value in seconds.items()},
        "ratio": seconds["torch"] / seconds["triton_ext"],
        "error": error,
    }  # fmt: skip


def _call(expression: Expression, sets: Sequence[Tensors], i: int) -> None:
    expression(*sets[i % len(sets)])


TABLE = Table(
    ("expression", "<20", "expression"),
    ("batch", ">6d", "batch"),
    ("m", ">7d", "m"),
    ("n", ">7d", "n"),
    ("k", ">7d", "k"),
    ("ours us", ">10.1f", "triton_ext_us"),
    ("torch us", ">10.1f", "torch_us"),
    ("ratio", ">8.3f", "ratio"),
)


def main() -> None:
    parser = harness.options(__doc__)
    parser.add_argument("--random", type=int, metavar="SEED", default=1)
    parser.add_argument("--number", type=int, default=6, help="of each expression")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    work = drawn(arguments.random, arguments.number)
    command = f"expressions --random {arguments.random} --number {arguments.number}"
    rows = harness.report(command, (measure(*each) for each in work), TABLE, arguments.json)
    for name in EXPRESSIONS:
        ratios = [row["ratio"] for row in rows if row["expression"] == name]
        print(f"{name:<20}{geometric_mean(ratios):>8.3f}, lowest {min(ratios):.3f}")
    print(f"{'all':<20}{geometric_mean([row['ratio'] for row in rows]):>8.3f}")


if __name__ == "__main__":
    main()
