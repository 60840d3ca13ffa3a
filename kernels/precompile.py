"""Kernels compiled ahead of their first launch, on any machine, into Triton's cache."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context, parent_process
from pathlib import Path

from triton_ext.errors import LayoutError
from triton_ext.kernels.by_threads import ThreadSpec, thread_spec
from triton_ext.kernels.choice.by_threads import (
    access_of_contiguous,
    copying_seconds,
    division_by_threads,
)
from triton_ext.kernels.choice.choose import choose_config, predicted_seconds, with_epilogue
from triton_ext.kernels.choice.fixed_set import fixed_set
from triton_ext.kernels.choice.problem import Problem
from triton_ext.kernels.element_types import ELEMENT_TYPES
from triton_ext.kernels.epilogue import NO_EPILOGUE, EpilogueSpec
from triton_ext.kernels.product import ProductSpec
from triton_ext.kernels.spec import KernelSpec, read_spec

LEAST_TOGETHER = 2
"""From how many kernels on a process of its own, which takes a second to start, is worth it."""


@dataclass(frozen=True)
class Precompiled:
    """What became of one configuration.

    Attributes:
        config: the configuration.
        seconds: that it took.
        was_there: it lay in the cache already.
        error: why it does not compile, or None.
    """

    config: KernelSpec | ThreadSpec
    seconds: float
    was_there: bool
    error: str | None


def configurations(
    arch: int,
    product: ProductSpec,
    problems: Iterable[Problem],
    epilogue: EpilogueSpec = NO_EPILOGUE,
) -> list[KernelSpec]:  # fmt: skip
    """The different kernels that `choose_config` chooses for problems. `arch`: 90 or 100."""
    chosen = (
        with_epilogue(choose_config(arch, product, each), each.k, epilogue) for each in problems
    )
    return [*dict.fromkeys(chosen)]


def with_by_threads(
    arch: int,
    product: ProductSpec,
    problems: Iterable[Problem],
    epilogue: EpilogueSpec = NO_EPILOGUE,
) -> list[KernelSpec | ThreadSpec]:
    """`configurations`; but of contiguous operands that TMA cannot read the kernels whose operands
    threads load, where these are chosen. (What copies is compiled at its first launch.)
    """
    majors = product.a_major, product.b_major
    may = product.element_type in ELEMENT_TYPES and product.c_bytes > 1 and not epilogue.a_scales
    found: dict[KernelSpec | ThreadSpec, None] = {}
    for problem in problems:
        (config,) = configurations(arch, product, [problem], epilogue)
        access = access_of_contiguous(problem, majors, product.c_bytes)
        a, b, c = (each < 8 for each in access[:3])
        division = None
        if may and (a or b or (c and problem.m > 1)):
            otherwise = predicted_seconds(config, problem) + copying_seconds(problem, a, b, c)
            division = division_by_threads(problem, access, otherwise)
        if division is None:
            found[config] = None
        else:
            found[thread_spec(arch, product, problem, access, division, epilogue)] = None
    return [*found]


def fixed_configurations(
    arch: int, products: Sequence[ProductSpec], epilogue: EpilogueSpec = NO_EPILOGUE
) -> list[KernelSpec]:
    """All that `choose_config` chooses among where kernels are fixed: one for every problem.

    Args:
        arch: 90 or 100.
        products: of one type, of whose major-nesses some may be illegal for it.

    Raises:
        LayoutError: the release of Triton is too old for the `fixed_set`, or no kernel takes the
            type, with any of these majors.
    """
    found = []
    for product in products:
        for spec in fixed_set(arch, replace(product, batched=False)):
            batched = spec.with_fields(batched=True) if product.batched else spec
            found.append(with_epilogue(batched, None, epilogue))
    if not found:
        rule = f"must be legal on sm_{arch}, with such an output and major-ness ('K' is, for all)"
        raise LayoutError("element_type", products[0].element_type, rule)
    return found


def precompile(
    configs: Iterable[KernelSpec | ThreadSpec], folder: Path | None = None, jobs: int | None = None
) -> Iterator[Precompiled]:
    """Compile configurations in processes of their own; yields each when it is done.

    A launch by Triton's JIT, and so `triton_ext.matmul`, finds the kernels by Triton's own key: its
    version, the source, the compilation's options. Needs no GPU.

    Args:
        folder: what ``TRITON_CACHE_DIR`` names when they are used; by default what it names now.
        jobs: how many processes; by default as many as there are cores.
    """
    name = None if folder is None else str(folder.resolve())
    workers = ProcessPoolExecutor(
        jobs or os.cpu_count(), get_context("spawn"), initializer=_use, initargs=(name,)
    )
    try:
        yield from (
            done.result()
            for done in as_completed([*(workers.submit(_compile, each) for each in configs)])
        )
    finally:
        workers.shutdown(cancel_futures=True)


def compile_together(configs: Sequence[KernelSpec]) -> None:
    """Compile configurations at the same time, for the launches of this process; what fails, or is
    there already, is left to these. (Processes of a pool would import this process's main module.)
    """
    from triton import knobs

    from triton_ext.kernels.compiled_cache import find

    new = [config for config in configs if find(config) is None]
    if len(new) < LEAST_TOGETHER:
        return
    values = [config.fields() for config in new]
    environment = {**os.environ, "TRITON_CACHE_DIR": knobs.cache.dir}
    command = [sys.executable, "-m", __name__]
    with contextlib.suppress(OSError):
        subprocess.run(
            command, input=json.dumps(values), text=True, env=environment, check=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip


def _end_with_parent() -> None:
    """A pool that is killed leaves its processes waiting for work: they hold both ends of the pipe
    that it comes by.
    """
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _use(folder: str | None) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if folder is not None:
        os.environ["TRITON_CACHE_DIR"] = folder


def _compile(config: KernelSpec | ThreadSpec) -> Precompiled:
    from triton import knobs

    from triton_ext.kernels.compiled_cache import store
    from triton_ext.kernels.launch import compile_matmul

    hits: list[bool] = []
    knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
    began, error = time.perf_counter(), None
    try:
        if isinstance(config, ThreadSpec):
            config.compile()
        else:
            store(config, compile_matmul(config))
    except Exception as raised:  # a release that lacks what a kernel takes, a full disk
        error = f"{type(raised).__name__}: {raised}"
    return Precompiled(config, time.perf_counter() - began, any(hits), error)


if __name__ == "__main__":  # the other process of `compile_together`
    for _ in precompile([read_spec(each) for each in json.load(sys.stdin)]):
        pass
