"""What enabled compiler passes add to a launch of a kernel that is compiled already.

    python -m benchmarks.launch_passes [--json FILE] [--rounds N] [--launches N]

Triton asks its stages hook for a key at every launch, before it looks the kernel up. The kernel has
the arguments of a matmul and an empty body. A round launches it many times under each hook in turn;
each round begins with another one. The table gives medians over the rounds.

- ``launch`` is the host time of ``kernel[grid](...)``. Where there is no GPU it is that of
  ``kernel.run(..., warmup=True)``, which does all of a launch but the call of the driver.
- ``added`` is that time less the one without a hook of the same round.
- ``hook`` is the time of a call of the hook alone.

``constant`` is a hook that returns two constants: what Triton itself adds for any hook.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from triton import knobs

import triton_ext
from benchmarks import harness
from benchmarks.harness import Row, Table
from triton_ext import passes
from triton_ext.compat import LAUNCH_OPTIONS

PROVING = ("verify-descriptors", "check-conversion")
ALL = (
    *PROVING, "lint-shared", "nvmma-to-linear", "widen-swizzle", "report-layouts{output=none}",
)  # fmt: skip


@triton.jit
def empty(
    a, b, c, m, n, k, a_m, b_n, c_m,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The arguments of a matmul, and nothing done with them."""


@contextlib.contextmanager
def constant_hook() -> Iterator[None]:
    """A stages hook that changes nothing, and answers in the shortest time."""
    before = knobs.runtime.add_stages_inspection_hook
    knobs.runtime.add_stages_inspection_hook = lambda *given: None if given else ("key", "hash")
    try:
        yield
    finally:
        knobs.runtime.add_stages_inspection_hook = before


HOOKS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "no hook": contextlib.nullcontext,
    "constant": constant_hook,
    "no passes": passes.enabled,
    "2 passes": lambda: passes.enabled(*PROVING),
    "6 passes": lambda: passes.enabled(*ALL),
}


def microseconds(call: Callable[[], Any], times: int) -> float:
    """The time of a call, by so many in a row."""
    gc.collect()
    start = time.perf_counter_ns()
    for _ in range(times):
        call()
    return (time.perf_counter_ns() - start) / times / 1e3


def launch(device: str) -> Callable[[], Any]:
    """A function that launches the kernel, or without a GPU does what comes before the driver."""
    tensors = [torch.zeros(64, 64, dtype=torch.float16, device=device) for _ in range(3)]
    sizes = (64, 64, 64, 64, 64, 64)
    options = {"BM": 128, "BN": 128, "BK": 64, "STAGES": 3, **LAUNCH_OPTIONS}
    if device == "cuda":
        return lambda: empty[(1,)](*tensors, *sizes, **options)
    return lambda: empty.run(*tensors, *sizes, grid=(1,), warmup=True, **options)


def measured(rounds: int, launches: int) -> Iterator[Row]:
    """A row for each hook."""
    gpu = torch.cuda.is_available()
    call = launch("cuda" if gpu else "cpu")
    found: dict[str, list[tuple[float, float | None]]] = {name: [] for name in HOOKS}
    names = list(HOOKS)
    with contextlib.nullcontext() if gpu else triton_ext.emulate("sm_90", idle=True):
        for i in range(-1, rounds):
            start = i % len(names)
            for name in names[start:] + names[:start]:
                with HOOKS[name]():
                    call()  # compiles, once
                    hook = knobs.runtime.add_stages_inspection_hook
                    times = microseconds(call, launches), hook and microseconds(hook, launches)
                    if gpu:
                        torch.cuda.synchronize()
                if i >= 0:  # the first round warms up
                    found[name].append(times)
    plain = [time for time, _ in found["no hook"]]
    for name, values in found.items():
        launched = [time for time, _ in values]
        hooks = [hook for _, hook in values if hook is not None]
        yield {
            "hook": name, "launched": gpu, "launch_us": statistics.median(launched),
            "added_us": statistics.median(x - y for x, y in zip(launched, plain, strict=True)),
            "hook_us": statistics.median(hooks) if hooks else None, "rounds": rounds,
        }  # fmt: skip


TABLE = Table(
    ("stages hook", "<12", "hook"),
    ("launch us", ">10.2f", "launch_us"),
    ("added us", ">10.2f", "added_us"),
    ("hook us", ">10.2f", "hook_us"),
)

if __name__ == "__main__":
    harness.main("launch_passes", __doc__, measured, TABLE, rounds=15, launches=500)
