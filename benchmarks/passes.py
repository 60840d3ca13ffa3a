"""What compiler passes add to the time of a compilation.

    python -m benchmarks.passes [--json FILE] [--rounds N] [--passes NAME,NAME...] [--ptx]

Two kernels, compiled from source to a cubin (or, with --ptx, to PTX), with Triton's cache off: the
tutorial matmul, written with ``tl.dot`` and pipelined loads, and this project's matmul in Gluon. A
round compiles each kernel with no pass, with each pass alone, and with the checking ones together,
in turn; each round begins with another one. The table gives medians over the rounds, of wall time,
and of the processor time of Triton and ptxas; what is added is the median over the rounds of the
difference in processor time, as other work on the machine disturbs that least.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.compiler import ASTSource
from triton_ext.kernels.config import MatmulConfig
from triton_ext.kernels.launch import compile_matmul, kernel_constants

from benchmarks import record
from triton_ext import passes
from triton_ext.compat import LAUNCH_OPTIONS, gpu_target

TOGETHER = ("verify-descriptors", "check-conversion")
ALONE = (
    "check-conversion", "verify-descriptors", "nvmma-to-linear", "report-layouts", "lint-shared",
    "widen-swizzle",
)  # fmt: skip


@triton.jit
def tutorial_matmul(
    a_ptr, b_ptr, c_ptr, m, n, k, a_stride, b_stride, c_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """C = A @ B from pointers; tiles in groups of rows, so that they share the L2 cache."""
    program = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    group = program // (GROUP_M * tiles_n)
    rows = tl.minimum(tiles_m - group * GROUP_M, GROUP_M)
    inside = program % (GROUP_M * tiles_n)
    tile_m, tile_n = group * GROUP_M + inside % rows, inside // rows
    at_m = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)) % m
    at_n = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)) % n
    at_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + at_m[:, None] * a_stride + at_k[None, :]
    b_ptrs = b_ptr + at_k[:, None] * b_stride + at_n[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(tl.cdiv(k, BLOCK_K)):
        left = k - step * BLOCK_K
        a = tl.load(a_ptrs, mask=at_k[None, :] < left, other=0.0)
        b = tl.load(b_ptrs, mask=at_k[:, None] < left, other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K * b_stride
    to_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    to_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + to_m[:, None] * c_stride + to_n[None, :]
    tl.store(c_ptrs, acc.to(tl.float16), mask=(to_m[:, None] < m) & (to_n[None, :] < n))


def compile_tutorial(arch: int) -> Callable[[], Any]:
    """A function that compiles the tutorial matmul."""
    pointers = dict.fromkeys(("a_ptr", "b_ptr", "c_ptr"), "*fp16")
    integers = dict.fromkeys(("m", "n", "k", "a_stride", "b_stride", "c_stride"), "i32")
    constants = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8}
    signature = {**pointers, **integers, **dict.fromkeys(constants, "constexpr")}
    # What Triton finds out of a launch: pointers and strides are multiples of 16.
    attributes = {(i,): [["tt.divisibility", 16]] for i in range(len(pointers) + len(integers))}
    options = {"num_warps": 8, "num_stages": 3, **LAUNCH_OPTIONS}

    def compile_it() -> Any:
        source = ASTSource(tutorial_matmul, signature, constants, attributes)
        return triton.compile(source, target=gpu_target(arch), options=options)

    return compile_it


def compile_gluon_matmul(arch: int) -> Callable[[], Any]:
    """A function that compiles this project's matmul."""
    config = MatmulConfig(arch, "fp16")
    constants = kernel_constants(config)
    return lambda: compile_matmul(config, constants)


@contextlib.contextmanager
def no_ptxas() -> Iterator[None]:
    """Compilations end with PTX; their cubin is empty."""
    runtime = triton.knobs.runtime

    def hook(*arguments: Any) -> Any:
        if not arguments:
            return "no ptxas", "no ptxas"
        arguments[1]["cubin"] = lambda ptx, metadata: b""
        return None

    runtime.add_stages_inspection_hook = hook
    try:
        yield
    finally:
        runtime.add_stages_inspection_hook = None


def processor_milliseconds() -> float:
    """Of this process and of its children that have ended."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in spent) * 1e3


def milliseconds(compile_it: Callable[[], Any], chosen: tuple[str, ...]) -> tuple[float, float]:
    """Wall and processor time of one compilation with passes, from nothing."""
    with tempfile.TemporaryDirectory() as cache:
        triton.knobs.cache.dir = cache
        gc.collect()
        quiet = [f"{name}{{output=none}}" if _reports(name) else name for name in chosen]
        with passes.enabled(*quiet):
            start, spent = time.perf_counter(), processor_milliseconds()
            compile_it()
            return (time.perf_counter() - start) * 1e3, processor_milliseconds() - spent


def _reports(name: str) -> bool:
    return hasattr(passes.get_pass(name).options(), "output")


def measure(
    compile_it: Callable[[], Any], variants: list[tuple[str, ...]], rounds: int
) -> dict[tuple[str, ...], list[tuple[float, float]]]:
    """The times of each variant, a pair a round; the first variant of a round changes."""
    found: dict[tuple[str, ...], list[tuple[float, float]]] = {variant: [] for variant in variants}
    for variant in variants:
        milliseconds(compile_it, variant)  # imports, and what Triton keeps between compilations
    for i in range(rounds):
        start = i % len(variants)
        for variant in variants[start:] + variants[:start]:
            found[variant].append(milliseconds(compile_it, variant))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--passes", default=",".join(ALONE), help="those to measure alone")
    parser.add_argument("--ptx", action="store_true", help="stop at PTX, without ptxas")
    arguments = parser.parse_args()
    alone = [(name,) for name in arguments.passes.split(",") if name]
    variants: list[tuple[str, ...]] = [(), TOGETHER, *alone]
    kernels = {"tutorial": compile_tutorial, "gluon": compile_gluon_matmul}
    rows = []
    print(" ".join(f"{name} {value}" for name, value in record.environment().items()))
    print(f"{'wall ms':>8}{'CPU ms':>8}{'+CPU ms':>8}{'ratio':>8}  kernel, passes")
    for (name, kernel), arch in itertools.product(kernels.items(), (90, 100)):
        with no_ptxas() if arguments.ptx else contextlib.nullcontext():
            times = measure(kernel(arch), variants, arguments.rounds)
        before = [cpu for _, cpu in times[()]]
        for variant, values in times.items():
            wall = statistics.median(wall for wall, _ in values)
            cpu = statistics.median(cpu for _, cpu in values)
            # A round's compilations share the machine's load.
            pairs = zip((cpu for _, cpu in values), before, strict=True)
            added = statistics.median(one - other for one, other in pairs)
            ratio = 1 + added / statistics.median(before)
            rows.append(
                {
                    "kernel": name, "arch": arch, "to": "ptx" if arguments.ptx else "cubin",
                    "passes": list(variant), "wall_ms": wall, "cpu_ms": cpu,
                    "added_cpu_ms": added, "ratio": ratio, "rounds": arguments.rounds,
                }
            )  # fmt: skip
            shown = ", ".join(variant) or "no pass"
            print(f"{wall:>8.1f}{cpu:>8.1f}{added:>8.1f}{ratio:>8.3f}  {name} sm_{arch}: {shown}")
    record.write(arguments.json, "passes", rows)


if __name__ == "__main__":
    main()
