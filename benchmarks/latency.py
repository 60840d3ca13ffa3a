"""Eager latency: one product at a time on an idle GPU, the host's work included.

    python -m benchmarks.latency [--json FILE]

Two figures for each side, medians over many calls: *host*, until the call returns; *done*,
until the GPU has finished, too. Before each call the GPU is idle. The sides:

* torch: ``torch.matmul`` (cuBLAS), with PyTorch as it comes
* ours: ``triton_ext.matmul``
* jit: the same kernel, launched as Triton launches any kernel, ``kernel[grid](...)``, with
  descriptors made for the call
* tutorial: Triton's tutorial persistent matmul (`benchmarks.peers`), called as there
* drop_in: ``torch.matmul`` inside ``triton_ext.drop_in()``
* outside: ``torch.matmul`` after the drop-in has ended (its overrides stay, and pass on)

The first two are interleaved; the last two come after all the others, since overrides once
installed stay. Ratios are to torch's time in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import triton_ext
from benchmarks import record
from benchmarks.peers import TutorialConfig, tutorial_product
from triton_ext.kernels.config import MatmulConfig, choose_config
from triton_ext.kernels.launch import launch_plan

SHAPES = [
    (64, 64, 64),
    (256, 256, 256),
    (512, 512, 512),
    (1024, 1024, 1024),
    (1, 4096, 4096),
    (16, 4096, 4096),
    (64, 4096, 4096),
]
TUTORIAL_CONFIGS = [TutorialConfig(128, 64, 4, 4, False), TutorialConfig(256, 64, 3, 8, True)]
"""Two are enough for what the host does: the autotuner looks one up by the problem."""
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def launched_by_jit(m: int, n: int, k: int, config: MatmulConfig) -> Product:
    """The product by Triton's own launch; of K-major a and MN-major b in whole rows of 16 bytes."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from triton_ext.layouts.triton.gluon import to_gluon

    plan = launch_plan(config, m, n, k, torch.cuda.get_device_properties())
    workspace = torch.zeros(max(16, plan.workspace_bytes), dtype=torch.uint8, device="cuda")
    tiles = {"a_desc": plan.a_tile, "b_desc": plan.b_tile, "c_desc": plan.c_tile}
    if plan.narrow_tile is not None:
        tiles["narrow_desc"] = plan.narrow_tile
    layouts = {name: to_gluon(tile.tma_encoding) for name, tile in tiles.items()}
    blocks = {name: list(tile.tma_shape) for name, tile in tiles.items()}

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = a.new_empty((m, n))
        matrices = {"a_desc": a, "b_desc": b, "c_desc": out, "narrow_desc": a if config.swap else b}
        arguments: dict[str, Any] = {
            name: TensorDescriptor.from_tensor(matrices[name], blocks[name], layouts[name])
            for name in tiles
        }
        arguments["workspace"] = workspace
        arguments["prefetched"] = a if config.prefetch == "a" else b
        plan.kernel[plan.grid](
            *(arguments[name] for name in plan.arguments[:3]),
            **{name: arguments[name] for name in plan.arguments[3:]},
            **plan.constants,
            **plan.options,
        )
        return out

    return product


def step(product: Product, a: torch.Tensor, b: torch.Tensor) -> None:
    """A product with a gradient for b, and back."""
    b.grad = None
    made = product(a, b)
    made.backward(made)


def measure(sides: dict[str, Callable[[], Any]], repeats: int) -> dict[str, tuple[float, float]]:
    """Median microseconds of each side, interleaved: until it returns, and until it is done."""
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(10):
        for side in sides.values():
            side()
    for _ in range(repeats):
        for name, side in sides.items():
            torch.cuda.synchronize()
            start = time.perf_counter_ns()
            side()
            returned = time.perf_counter_ns()
            torch.cuda.synchronize()
            done = time.perf_counter_ns()
            samples[name].append(((returned - start) / 1e3, (done - start) / 1e3))
    return {
        name: (
            statistics.median(host for host, _ in values),
            statistics.median(done for _, done in values),
        )
        for name, values in samples.items()
    }


def rows_of(
    title: str, times: dict[str, tuple[float, float]], torch_times: tuple[float, float]
) -> list[dict[str, Any]]:
    """A row for each side, printed."""
    rows = []
    for name, (host, done) in times.items():
        row = {
            "problem": title,
            "side": name,
            "host_us": round(host, 2),
            "done_us": round(done, 2),
            "host_ratio": round(host / torch_times[0], 3),
            "done_ratio": round(done / torch_times[1], 3),
        }
        rows.append(row)
        print(
            f"{title:>22} {name:>10} {host:9.1f} {done:9.1f}"
            f" {row['host_ratio']:7.2f} {row['done_ratio']:7.2f}",
            flush=True,
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--repeats", type=int, default=400)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    arch = 10 * torch.cuda.get_device_capability()[0]
    print(" ".join(f"{name} {value}" for name, value in record.environment().items()))
    print(f"{'problem':>22} {'side':>10} {'host us':>9} {'done us':>9}  ratios to torch")
    problems = []
    for m, n, k in SHAPES:
        a = torch.randn((m, k), device="cuda", dtype=torch.bfloat16)
        b = torch.randn((k, n), device="cuda", dtype=torch.bfloat16)
        problems.append((f"{m}x{n}x{k}", m, n, k, a, b))
    rows, torch_times = [], {}
    tutorial = tutorial_product(TUTORIAL_CONFIGS)
    with torch.no_grad():
        for title, m, n, k, a, b in problems:
            jit = launched_by_jit(m, n, k, choose_config(arch, "bf16", "K", "MN", m, n, k))
            sides: dict[str, Callable[[], Any]] = {
                "torch": partial(torch.matmul, a, b),
                "ours": partial(triton_ext.matmul, a, b),
            }
            times = measure(sides, arguments.repeats)
            for name, product in (("jit", jit), ("tutorial", tutorial)):
                times |= measure({name: partial(product, a, b)}, arguments.repeats)
            torch_times[title] = times["torch"]
            rows += rows_of(title, times, times["torch"])
        x = torch.randn((4, 16, 1024), device="cuda", dtype=torch.bfloat16)
        w = torch.randn((1024, 1024), device="cuda", dtype=torch.bfloat16)
        bias = torch.randn(1024, device="cuda", dtype=torch.bfloat16)
        for title, more in (("linear 4x16x1024", ()), ("linear with bias", (bias,))):
            sides = {
                "torch": partial(torch.nn.functional.linear, x, w, *more),
                "ours": partial(triton_ext.linear, x, w, *more),
            }
            times = measure(sides, arguments.repeats)
            torch_times[title] = times["torch"]
            rows += rows_of(title, times, times["torch"])
        x8 = x.flatten(0, 1).to(torch.float8_e4m3fn)
        w8 = w.to(torch.float8_e4m3fn).t()
        one = torch.ones((), device="cuda")
        sides = {
            "torch": lambda: torch._scaled_mm(x8, w8, one, one, out_dtype=torch.bfloat16),
            "ours": lambda: triton_ext.scaled_mm(x8, w8, one, one),
        }
        times = measure(sides, arguments.repeats)
        rows += rows_of("fp8 64x1024x1024", times, times["torch"])
    with torch.enable_grad():
        title, _, _, _, a, b = problems[1]
        b.requires_grad_()
        sides = {
            "torch": partial(step, torch.matmul, a, b),
            "ours": partial(step, triton_ext.matmul, a, b),
        }
        times = measure(sides, arguments.repeats)
        torch_times[f"{title} and back"] = times["torch"]
        rows += rows_of(f"{title} and back", times, times["torch"])
    with torch.no_grad():
        calls: list[tuple[str, Callable[[], Any]]] = [
            (title, partial(torch.matmul, a, b)) for title, _, _, _, a, b in problems
        ]
        calls.append(("linear 4x16x1024", partial(torch.nn.functional.linear, x, w)))
        with_gradient = partial(step, torch.matmul, *problems[1][4:])
        calls.append((f"{problems[1][0]} and back", torch.enable_grad()(with_gradient)))
        calls.append(("linear with bias", partial(torch.nn.functional.linear, x, w, bias)))
        for title, call in calls:
            with triton_ext.drop_in():
                times = measure({"drop_in": call}, arguments.repeats)
            times |= measure({"outside": call}, arguments.repeats)
            rows += rows_of(title, times, torch_times[title])
    record.write(arguments.json, "latency", rows)


if __name__ == "__main__":
    main()
