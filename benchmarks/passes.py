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

from benchmarks import harness
from benchmarks.harness import Row, Table
from tests.support import corpus_kernels as corpus  # type: ignore[import-not-found]
from triton_ext import passes
from triton_ext.compat import compile_kernel
from triton_ext.hardware.architecture import Architecture
from triton_ext.kernels.launch import compile_matmul, kernel_constants
from triton_ext.kernels.spec import kernel_spec
from triton_ext.passes.frame import hook
from triton_ext.passes.frame.both_ways import up_to_ptx

TOGETHER = ("verify-descriptors", "check-conversion")
ALONE = (
    "check-conversion", "verify-descriptors", "nvmma-to-linear", "report-layouts", "lint-shared",
    "widen-swizzle",
)  # fmt: skip


def compile_tutorial(arch: Architecture) -> Callable[[], Any]:
    """A function that compiles the tutorial matmul."""
    kernel = corpus.pointer_matmul
    # What Triton finds out of a launch: pointers and strides are multiples of 16.
    types = dict.fromkeys(("a_ptr", "b_ptr", "c_ptr"), "*fp16") | {"bias_ptr": "*fp32"}
    types |= dict.fromkeys(("m", "n", "k", "a_m", "b_k", "c_m"), "i32")
    constants = {
        "a_k": 1, "b_n": 1, "BM": 128, "BN": 128, "BK": 64, "ACC": tl.float32,
        "PRECISION": "tf32", "A_IN_REGISTERS": False, "EPILOGUE": "",
    }  # fmt: skip
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    return lambda: compile_kernel(
        kernel, signature, constants, target=arch, multiples_of_16=list(types), num_warps=8,
        num_stages=3,
    )  # fmt: skip


def compile_gluon_matmul(arch: Architecture) -> Callable[[], Any]:
    """A function that compiles this project's matmul."""
    config = kernel_spec(arch, "fp16")
    constants = kernel_constants(config)
    return lambda: compile_matmul(config, constants)


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


def measured(rounds: int, passes: str, ptx: bool) -> Iterator[Row]:
    """A row for each kernel, architecture and set of passes; without ptxas if `ptx`."""
    alone = [name for name in passes.split(",") if name]
    variants: list[tuple[str, ...]] = [(), TOGETHER, *((name,) for name in alone)]
    to = "ptx" if ptx else "cubin"
    kernels = {"tutorial": compile_tutorial, "gluon": compile_gluon_matmul}
    archs: tuple[Architecture, ...] = (90, 100)
    for (name, kernel), arch in itertools.product(kernels.items(), archs):
        with up_to_ptx() if ptx else contextlib.nullcontext():
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


if __name__ == "__main__":
    harness.main("passes", __doc__, measured, TABLE, rounds=15, passes=",".join(ALONE), ptx=False)
