"""What compiler passes add to the time of a compilation.

    python -m benchmarks.passes [--json FILE] [--rounds N] [--passes NAME,NAME...] [--ptx]

Two kernels, compiled from source to a cubin (or, with --ptx, to PTX), with Triton's cache off: the
tutorial matmul, written with ``tl.dot`` and pipelined loads, and this project's matmul in Gluon. A
round compiles each kernel with no pass, with each pass alone, and with the checking ones together,
in turn; each round begins with another one. The table gives medians over the rounds.

- ``in passes`` is the processor time of the thread inside of the stages' wrappers, less that of
  Triton's own stages that they call: all that passes do, printing and parsing modules included.
- ``of compile`` is that time, as a share of the processor time of the rest of the same compilation,
  Triton and ptxas. Both are taken in one run of one process, so that other work on the machine
  disturbs the quotient little; it is the figure to quote.
- ``difference`` is what the compilation took longer than the one without passes of the same round,
  in processor time. It is the same quantity, and noisy; where a pass changes the module, it holds
  what the other stages then take more or less.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from triton.compiler import ASTSource

from benchmarks import harness
from benchmarks.harness import Row, Table
from triton_ext import passes
from triton_ext.compat import LAUNCH_OPTIONS, gpu_target
from triton_ext.kernels.config import MatmulConfig
from triton_ext.kernels.launch import compile_matmul, kernel_constants
from triton_ext.passes.frame import hook

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
    """The processor time of this process and of its children that have ended."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in spent) * 1e3


@contextlib.contextmanager
def passes_timed() -> Iterator[list[float]]:
    """Yields a list that grows: milliseconds of this thread in each stage's passes."""
    spent: list[float] = []
    originals = {name: getattr(hook._Stages, name) for name in ("ttgir", "llir", "ptx")}

    def timed(stage: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: Any, compile_ir: Callable[..., Any], *arguments: Any) -> Any:
            inside = 0.0

            def timed_compile(*given: Any) -> Any:
                nonlocal inside
                began = time.thread_time()
                result = compile_ir(*given)
                inside = time.thread_time() - began
                return result

            began = time.thread_time()
            result = stage(self, timed_compile, *arguments)
            spent.append((time.thread_time() - began - inside) * 1e3)
            return result

        return run

    for name, original in originals.items():
        setattr(hook._Stages, name, timed(original))
    try:
        yield spent
    finally:
        for name, original in originals.items():
            setattr(hook._Stages, name, original)


@dataclass(frozen=True)
class Times:
    """What one compilation took, in milliseconds.

    Attributes:
        wall: from start to end.
        processor: processor time of Triton, the passes and ptxas.
        passes: processor time of the passes alone.
    """

    wall: float
    processor: float
    passes: float

    @property
    def share(self) -> float:
        """The passes' time as a share of the processor time of the rest."""
        return self.passes / (self.processor - self.passes)


def times_of(compile_it: Callable[[], Any], chosen: tuple[str, ...]) -> Times:
    """One compilation with passes, from nothing."""
    with tempfile.TemporaryDirectory() as cache:
        triton.knobs.cache.dir = cache
        gc.collect()
        quiet = [f"{name}{{output=none}}" if _reports(name) else name for name in chosen]
        with passes.enabled(*quiet), passes_timed() as spent:
            start, before = time.perf_counter(), processor_milliseconds()
            compile_it()
            wall = (time.perf_counter() - start) * 1e3
            return Times(wall, processor_milliseconds() - before, sum(spent))


def _reports(name: str) -> bool:
    return hasattr(passes.get_pass(name).options(), "output")


def measure(
    compile_it: Callable[[], Any], variants: list[tuple[str, ...]], rounds: int
) -> dict[tuple[str, ...], list[Times]]:
    """The times of each variant, one a round; the first variant of a round changes."""
    found: dict[tuple[str, ...], list[Times]] = {variant: [] for variant in variants}
    for variant in variants:
        times_of(compile_it, variant)  # imports, and what Triton keeps between compilations
    for i in range(rounds):
        start = i % len(variants)
        for variant in variants[start:] + variants[:start]:
            found[variant].append(times_of(compile_it, variant))
    return found


TABLE = Table(
    ("wall ms", ">8.1f", "wall_ms"),
    ("CPU ms", ">8.1f", "cpu_ms"),
    ("in passes", ">10.2f", "in_passes_ms"),
    ("of compile", ">11.2%", "share_of_compile"),
    ("difference", ">11.1f", "added_cpu_ms"),
    ("  kernel, passes", "", lambda row: f"  {row['kernel']} sm_{row['arch']}: "
     + (", ".join(row["passes"]) or "no pass")),
)  # fmt: skip


def measured(alone: list[str], rounds: int, to: str) -> Iterator[Row]:
    """A row for each kernel, architecture and set of passes; compiled to "ptx" or "cubin"."""
    variants: list[tuple[str, ...]] = [(), TOGETHER, *((name,) for name in alone)]
    kernels = {"tutorial": compile_tutorial, "gluon": compile_gluon_matmul}
    for (name, kernel), arch in itertools.product(kernels.items(), (90, 100)):
        with no_ptxas() if to == "ptx" else contextlib.nullcontext():
            times = measure(kernel(arch), variants, rounds)
        before = [each.processor for each in times[()]]
        for variant, values in times.items():
            # A round's compilations share the machine's load.
            pairs = zip((each.processor for each in values), before, strict=True)
            yield {
                "kernel": name, "arch": arch, "to": to, "passes": list(variant),
                "wall_ms": statistics.median(each.wall for each in values),
                "cpu_ms": statistics.median(each.processor for each in values),
                "in_passes_ms": statistics.median(each.passes for each in values),
                "share_of_compile": statistics.median(each.share for each in values),
                "added_cpu_ms": statistics.median(one - other for one, other in pairs),
                "rounds": rounds,
            }  # fmt: skip


def main() -> None:
    parser = harness.options(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--passes", default=",".join(ALONE), help="those to measure alone")
    parser.add_argument("--ptx", action="store_true", help="stop at PTX, without ptxas")
    arguments = parser.parse_args()
    alone = [name for name in arguments.passes.split(",") if name]
    rows = measured(alone, arguments.rounds, "ptx" if arguments.ptx else "cubin")
    harness.report("passes", rows, TABLE, arguments.json)


if __name__ == "__main__":
    main()
