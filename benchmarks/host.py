"""The host's part of repeated products, without a GPU: microseconds of one call.

    python -m benchmarks.host [--json FILE] [--only PART_OF_A_NAME]

Tensors on the host count as those of a Hopper GPU, memory comes from the host, and Triton's C
launcher is a function that does nothing; so PyTorch's dispatcher and this project's Python remain.
What is left out: the launch itself, and memory of the GPU. A figure is the least of `repeats`
blocks of 100 calls; compare two trees by turns, as a host's speed changes within seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

import triton_ext
from benchmarks import harness
from benchmarks.harness import Row, Table
from triton_ext.ops import checks, launches, overrides, planning, plans
from triton_ext.ops.device import Gpu

BLOCK = 100
"""Calls that are timed together."""


class Launcher:
    """In place of `triton_ext.compat.DirectLaunch`: functions in C that do nothing of the kind."""

    current_stream = abs
    __call__ = "".format

    def tensor_map(self, *arguments: Any) -> object:
        """A map that nothing reads."""
        return object()


class Launch(launches.PreparedLaunch):
    """A launch by `Launcher`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.direct = Launcher()  # type: ignore[assignment]


def imagine_a_gpu() -> None:
    """Let tensors on the host be those of GPU -1, as `torch.Tensor.get_device` calls the host, for
    the rest of the process.
    """
    gpu = Gpu(90, SimpleNamespace(multi_processor_count=132), -1)
    replaced: dict[Any, dict[str, Any]] = {
        planning: {"PreparedLaunch": Launch},
        checks: {"require_gpu": lambda device: gpu, "find_gpu": lambda device: gpu},
        overrides: {
            "require_gpu": lambda device: gpu,
            "offers": lambda device: True,
            "active_emulator": lambda: gpu,
        },
        plans: {"_current_gpu": lambda: -1, "_new_on_gpu": plans._new_on_host},
    }
    for module, values in replaced.items():
        for name, value in values.items():
            setattr(module, name, value)


def calls() -> dict[str, Callable[[], Any]]:
    """What is timed, by name; those of torch are for a drop-in."""
    torch.manual_seed(0)
    linear = torch.nn.functional.linear

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.bfloat16)

    a, w, bias, stack, addend = (
        drawn(64, 256),
        drawn(128, 256),
        drawn(128),
        drawn(4, 16, 256),
        drawn(64, 128),
    )
    x, y = drawn(4, 64, 256), drawn(4, 256, 128)
    trained, learned = w.clone().requires_grad_(), bias.clone().requires_grad_()
    made, upper = torch.empty_like(addend), w.t()
    a8, w8 = (each.to(torch.float8_e4m3fn) for each in (a, w))
    one, of_rows, of_columns = torch.ones(()), torch.ones(64, 1), torch.ones(1, 128)
    experts = drawn(8, 128, 256).mT
    experts8 = experts.to(torch.float8_e4m3fn)
    offs = torch.arange(8, 65, 8, dtype=torch.int32)
    of_experts = torch.ones(8, 128)
    grouped = getattr(torch.nn.functional, "grouped_mm", torch._grouped_mm)
    grad = torch.ones_like(addend)

    def back(product: Callable[..., torch.Tensor], *arguments: torch.Tensor) -> None:
        trained.grad = learned.grad = None
        product(*arguments).backward(grad)

    return {
        "torch.mm": lambda: torch.mm(a, w.t()),
        "torch.addmm, a bias": lambda: torch.addmm(bias, a, w.t()),
        "torch.addmm, a matrix": lambda: torch.addmm(addend, a, w.t()),
        "torch.addmm, beta and alpha": lambda: torch.addmm(addend, a, w.t(), beta=0.5, alpha=2),
        "torch.bmm": lambda: torch.bmm(x, y),
        "torch.mm, out": lambda: torch.mm(a, upper, out=made),
        "torch.addmm, a bias, out": lambda: torch.addmm(bias, a, upper, alpha=1, beta=1, out=made),
        "torch._scaled_mm": lambda: torch._scaled_mm(
            a8, w8.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True
        ),
        "torch._scaled_mm, rows": lambda: torch._scaled_mm(
            a8, w8.t(), of_rows, of_columns, out_dtype=torch.bfloat16, use_fast_accum=True
        ),
        "grouped_mm": lambda: grouped(a, experts, offs=offs),
        "torch._scaled_grouped_mm": lambda: torch._scaled_grouped_mm(
            a8,
            experts8,
            of_rows[:, 0],
            of_experts,
            offs,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        ),
        "linear": lambda: linear(a, w),
        "linear, a bias": lambda: linear(a, w, bias),
        "linear, a bias, 3-D": lambda: linear(stack, w, bias),
        "linear, a bias, gradients": lambda: linear(a, trained, learned),
        "linear and back": lambda: back(linear, a, trained),
        "linear, a bias, and back": lambda: back(linear, a, trained, learned),
        "triton_ext.matmul": lambda: triton_ext.matmul(a, w.t()),
        "triton_ext.linear": lambda: triton_ext.linear(stack, w),
        "triton_ext.linear, a bias": lambda: triton_ext.linear(stack, w, bias),
        "triton_ext.addmm, a bias": lambda: triton_ext.addmm(bias, a, w.t()),
        "triton_ext.addmm, a matrix": lambda: triton_ext.addmm(addend, a, w.t()),
        "triton_ext.bmm": lambda: triton_ext.bmm(x, y),
        "triton_ext.linear, gradients": lambda: triton_ext.linear(a, trained, learned),
        "triton_ext.linear and back": lambda: back(triton_ext.linear, a, trained),
        "triton_ext.linear, a bias, and back": lambda: back(triton_ext.linear, a, trained, learned),
        "triton_ext.matmul, out": lambda: triton_ext.matmul(a, upper, out=made),
        "triton_ext.scaled_mm": lambda: triton_ext.scaled_mm(a8, w8.t(), one, one),
        "triton_ext.scaled_mm, rows": lambda: triton_ext.scaled_mm(a8, w8.t(), of_rows, of_columns),
        "triton_ext.grouped_mm": lambda: triton_ext.grouped_mm(a, experts, offs),
        "triton_ext.grouped_mm, swiglu": lambda: triton_ext.grouped_mm(
            a, experts, offs, activation="swiglu"
        ),
        "triton_ext.scaled_grouped_mm": lambda: triton_ext.scaled_grouped_mm(
            a8, experts8, of_rows[:, 0], of_experts, offs, use_fast_accum=True
        ),
    }


def least_microseconds(call: Callable[[], Any], repeats: int) -> float:
    """The least of one call among blocks of `BLOCK`, of the processor's time."""
    for _ in range(BLOCK):
        call()
    times = []
    for _ in range(repeats):
        begin = time.thread_time_ns()
        for _ in range(BLOCK):
            call()
        times.append((time.thread_time_ns() - begin) / BLOCK / 1e3)
    return min(times)


TABLE = Table(("call", "36", "call"), ("us", ">6.2f", "us"))


def measured(repeats: int, only: str) -> Iterator[Row]:
    """A row for each call."""
    imagine_a_gpu()
    with triton_ext.drop_in():
        for name, call in calls().items():
            if only not in name:
                continue
            yield {"call": name, "us": round(least_microseconds(call, repeats), 2)}


if __name__ == "__main__":
    harness.main("host", __doc__, measured, TABLE, repeats=100, only="")
