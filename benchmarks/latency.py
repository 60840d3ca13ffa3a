"""Eager latency: one product at a time on an idle GPU, the host's work included.

    python -m benchmarks.latency [--json FILE]

Two figures for each side, medians over many calls: *host*, until the call returns; *done*,
until the GPU has finished, too. Before each call the GPU is idle. The sides:

* torch: ``torch.matmul`` (cuBLAS), with PyTorch as it comes
* ours: ``triton_ext.matmul``
* jit: the same kernel, launched as Triton launches any kernel, ``kernel[grid](...)``, with
  descriptors made for the call
* drop_in: ``torch.matmul`` inside ``triton_ext.drop_in()``
* outside: ``torch.matmul`` after the drop-in has ended (its overrides are gone, or, where other
  threads of Python run, stay and pass on)

The first two are interleaved. The last two come after all the others, since overrides may stay,
each interleaved with *ours*; a host's speed changes within seconds, so their ratio
to torch is that to *ours* beside them, times that of *ours* to torch before.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

import triton_ext
from benchmarks import harness
from benchmarks.harness import Row, Table
from triton_ext.kernels.choice.choose import choose_config
from triton_ext.kernels.choice.problem import Problem as Size
from triton_ext.kernels.launch import launch_plan
from triton_ext.kernels.product import ProductSpec
from triton_ext.kernels.spec import KernelSpec

SHAPES = [
    (64, 64, 64),
    (256, 256, 256),
    (512, 512, 512),
    (1024, 1024, 1024),
    (1, 4096, 4096),
    (16, 4096, 4096),
    (64, 4096, 4096),
]
Times = tuple[float, float]
"""Median microseconds until a call returns, and until it is done."""
Call = Callable[[], Any]
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def launched_by_jit(m: int, n: int, k: int, config: KernelSpec) -> Product:
    """The product by Triton's own launch; of K-major a and MN-major b in whole rows of 16 bytes."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from triton_ext.layouts.triton.gluon import to_gluon

    plan = launch_plan(config, m, n, k, torch.cuda.get_device_properties())
    workspace = torch.zeros(max(16, plan.workspace_bytes), dtype=torch.uint8, device="cuda")
    # Made before what is timed; `launch_arguments` would make them for each call.
    layouts = {name: to_gluon(tile.tma_encoding) for name, tile in plan.tiles.items()}
    blocks = {name: list(tile.tma_shape) for name, tile in plan.tiles.items()}

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = a.new_empty((m, n))
        matrices = {"a_desc": a, "b_desc": b, "c_desc": out, "last_desc": out,
                    "edge_desc": a if config.tile.swap_ab else b}  # fmt: skip
        arguments: dict[str, Any] = {
            name: TensorDescriptor.from_tensor(matrices[name], blocks[name], layouts[name])
            for name in plan.tiles
        }
        arguments |= {"workspace": workspace, "group": plan.group}
        plan.launch(arguments)
        return out

    return product


@torch.enable_grad()
def step(product: Product, a: torch.Tensor, b: torch.Tensor) -> None:
    """A product with a gradient for b, and back."""
    b.grad = None
    made = product(a, b)
    made.backward(made)


def measure(sides: Mapping[str, Call], repeats: int) -> dict[str, Times]:
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


TABLE = Table(
    ("problem", ">22", "problem"),
    ("side", ">11", "side"),
    ("host us", ">10.1f", "host_us"),
    ("done us", ">10.1f", "done_us"),
    ("  ratios to torch", "", lambda row: f" {row['host_ratio']:7.2f} {row['done_ratio']:7.2f}"),
)


def rows_of(title: str, times: Mapping[str, Times], torch_times: Times) -> Iterator[Row]:
    """A row for each side.

    Args:
        torch_times: those of torch at the speed that the host had.
    """
    for name, (host, done) in times.items():
        yield {
            "problem": title,
            "side": name,
            "host_us": round(host, 2),
            "done_us": round(done, 2),
            "host_ratio": round(host / torch_times[0], 3),
            "done_ratio": round(done / torch_times[1], 3),
        }


def measured(repeats: int) -> Iterator[Row]:
    """The rows of each problem; those of the drop-in come last."""
    torch.manual_seed(0)
    arch = 10 * torch.cuda.get_device_capability()[0]
    before: dict[str, tuple[Call, Call, dict[str, Times]]] = {}

    def compared(title: str, theirs: Call, ours: Call, **alone: Call) -> Iterator[Row]:
        times = measure({"torch": theirs, "ours": ours}, repeats)
        for name, call in alone.items():
            times |= measure({name: call}, repeats)
        before[title] = theirs, ours, times
        yield from rows_of(title, times, times["torch"])

    problems = []
    for m, n, k in SHAPES:
        a = torch.randn((m, k), device="cuda", dtype=torch.bfloat16)
        b = torch.randn((k, n), device="cuda", dtype=torch.bfloat16)
        problems.append((f"{m}x{n}x{k}", m, n, k, a, b))
    with torch.no_grad():
        for title, m, n, k, a, b in problems:
            jit = launched_by_jit(
                m, n, k, choose_config(arch, ProductSpec("bf16", "K", "MN"), Size(m, n, k))
            )
            yield from compared(
                title,
                partial(torch.matmul, a, b),
                partial(triton_ext.matmul, a, b),
                jit=partial(jit, a, b),
            )
        x = torch.randn((4, 16, 1024), device="cuda", dtype=torch.bfloat16)
        w = torch.randn((1024, 1024), device="cuda", dtype=torch.bfloat16)
        bias = torch.randn(1024, device="cuda", dtype=torch.bfloat16)
        linear = torch.nn.functional.linear
        for title, more in (("linear 4x16x1024", ()), ("linear with bias", (bias,))):
            yield from compared(
                title, partial(linear, x, w, *more), partial(triton_ext.linear, x, w, *more)
            )
        x8 = x.flatten(0, 1).to(torch.float8_e4m3fn)
        w8 = w.to(torch.float8_e4m3fn).t()
        one = torch.ones((), device="cuda")
        yield from compared(
            "fp8 64x1024x1024",
            lambda: torch._scaled_mm(x8, w8, one, one, out_dtype=torch.bfloat16),
            lambda: triton_ext.scaled_mm(x8, w8, one, one),
        )
    title, _, _, _, a, b = problems[1]
    b = b.clone().requires_grad_()
    yield from compared(
        f"{title} and back",
        partial(step, torch.matmul, a, b),
        partial(step, triton_ext.matmul, a, b),
    )
    with torch.no_grad():
        for title, (theirs, ours, times) in before.items():
            if title.startswith("fp8"):  # which the drop-in leaves to torch
                continue
            for side in ("drop_in", "outside"):
                with triton_ext.drop_in() if side == "drop_in" else nullcontext():
                    beside = measure({"ours": ours, side: theirs}, repeats)
                as_torch = [
                    one * torch_time / own
                    for one, torch_time, own in zip(
                        beside["ours"], times["torch"], times["ours"], strict=True
                    )
                ]
                yield from rows_of(title, {side: beside[side]}, (as_torch[0], as_torch[1]))


if __name__ == "__main__":
    harness.main("latency", __doc__, measured, TABLE, repeats=400)
