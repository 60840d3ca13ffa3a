"""Products with a gated activation beside PyTorch's, on a Hopper GPU.

    python -m benchmarks.gated [--json FILE] [--rounds N] [--seed N] [--tiles]

bf16, weights of gate and up one after the other, swiglu. "torch" is ``torch.compile`` of the
product and the activation: cuBLAS and a pointwise kernel. "two" is our product and the same
pointwise kernel, "product" is cuBLAS's product alone. Device time: CUDA graphs of all sides,
replayed in turn; the median of the rounds counts. "error" is ours, of some rows against float64,
over the norm of these. With a seed, sizes are drawn; else they are the table below.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional

import triton_ext
from benchmarks import harness
from benchmarks.experts import Case, Launch, error_of, kernel_of, timed, tried
from benchmarks.harness import Row, Table
from triton_ext.kernels.spec import kernel_spec
from triton_ext.ops.call import Call
from triton_ext.ops.epilogue import epilogue_of
from triton_ext.ops.products import product

SHAPES = [
    (8192, 14336, 4096), (4096, 8192, 2048), (4096, 24576, 8192), (2048, 5632, 2048),
    (512, 14336, 4096), (64, 14336, 4096), (1, 14336, 4096),
]  # fmt: skip
"""Sizes (M, F, K) of models: F columns of C, 2 F of the weights."""
TILES: dict[str, dict[str, Any]] = {
    "128x256": {"block_n": 256, "c_parts": 4, "stages": 4},
    "128x256 of 2": {"block_n": 256, "c_parts": 4, "stages": 4, "cluster_m": 2},
    "256x128": {"block_m": 256, "c_parts": 2, "stages": 4},
    "256x128 of 2": {"block_m": 256, "c_parts": 2, "stages": 4, "cluster_m": 2},
    "64x256 in turn": {
        "block_m": 64, "block_n": 256, "c_parts": 4, "stages": 4, "pingpong": True,
    },
    "128x128 in turn": {"c_parts": 2, "stages": 5, "pingpong": True},
}  # fmt: skip
"""Tiles that are timed beside each other."""
SAMPLE = 64
"""Rows of which the result is checked."""


def _composite(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    gate, up = functional.linear(x, w).chunk(2, -1)
    return functional.silu(gate) * up


def _pointwise(sums: torch.Tensor) -> torch.Tensor:
    gate, up = sums.chunk(2, -1)
    return functional.silu(gate) * up


def gated(m: int, f: int, k: int, tiles: bool) -> Case:
    """swiglu of (M, K) and weights (2 F, K)."""
    x = torch.randn(m, k, device="cuda").bfloat16()
    w = (torch.randn(2 * f, k, device="cuda") * k**-0.5).bfloat16()
    sides: dict[str, Launch] = {}
    ours = partial(triton_ext.linear, x, w, activation="swiglu")
    kernel = kernel_of(sides, ours)
    compiled = torch.compile(_composite, dynamic=False)
    tried(sides, "torch", lambda: compiled(x, w))
    if tiles:
        for name, tile in TILES.items():
            config = kernel_spec(90, "bf16", **{"consumers": 2, **tile})
            call = Call(x, w.t(), epilogue_of(activation="swiglu"), config=config)
            tried(sides, name, partial(product, call))
    else:
        activate = torch.compile(_pointwise, dynamic=False)
        tried(sides, "two", lambda: activate(triton_ext.linear(x, w)))
        tried(sides, "product", lambda: functional.linear(x, w))
    some = torch.randperm(m, device="cuda")[:SAMPLE]
    expected = _composite(x[some].double(), w.double())
    moved = 2.0 * (m * k + 2 * f * k + m * f)
    return Case("swiglu", m, f, k, 1, sides, error_of(ours()[some], expected), moved, kernel)


def measured(rounds: int, seed: int, tiles: bool) -> Iterator[Row]:
    """The rows of the table."""
    drawn = random.Random(seed)
    shapes = SHAPES
    if seed:
        shapes = [
            (m, 64 * drawn.randint(16, 256), 64 * drawn.randint(least, most))
            for m in (8192, 4096, 2048, drawn.randint(500, 5000))
            for least, most in ((16, 64), (112, 128))
        ] + [(m, 64 * drawn.randint(16, 256), 64 * drawn.randint(16, 64)) for m in (64, 8)]
    for shape in shapes:
        torch.manual_seed(seed)
        case = gated(*shape, tiles)
        seconds = timed(case, rounds)
        flops = 4.0 * case.m * case.n * case.k
        row: Row = {
            "m": case.m, "f": case.n, "k": case.k, "error": case.error, "seconds": seconds,
            "kernel": case.kernel,
        }  # fmt: skip
        row |= {name: flops / each * 1e-12 for name, each in seconds.items()}
        row |= {f"to {name}": each / seconds["ours"] for name, each in seconds.items()}
        if tiles:
            print("   ", "; ".join(f"{name} {row[name]:.0f}" for name in seconds))
        del case
        torch.cuda.empty_cache()
        yield row


TABLE = Table(
    ("M", ">7", "m"), ("F", ">7", "f"), ("K", ">7", "k"), ("ours", ">8.1f", "ours"),
    ("torch", ">8.1f", "torch"), ("/torch", ">8.3f", "to torch"), ("/two", ">8.3f", "to two"),
    ("/product", ">9.3f", "to product"), ("error", ">9.1e", "error"), ("  kernel", "", "kernel"),
)  # fmt: skip


def main() -> None:
    """The command."""
    harness.main("gated", __doc__, measured, TABLE, "TFLOP/s", rounds=7, seed=0, tiles=False)


if __name__ == "__main__":
    main()
