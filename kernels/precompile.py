"""Kernels compiled ahead of their first launch, on any machine, into Triton's cache."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.kernels.choice.choose import choose_config, with_epilogue
from triton_ext.kernels.choice.fixed_set import fixed_set
from triton_ext.kernels.choice.gpus import GpuModel
from triton_ext.kernels.config import MatmulConfig
from triton_ext.kernels.element_types import MAJORS, Major


@dataclass(frozen=True)
class Precompiled:
    """What became of one configuration.

    Attributes:
        config: the configuration.
        seconds: that it took.
        was_there: it lay in the cache already.
        error: why it does not compile, or None.
    """

    config: MatmulConfig
    seconds: float
    was_there: bool
    error: str | None


def configurations(
    arch: int,
    element_type: str,
    majors: tuple[Major, Major],
    sizes: Iterable[tuple[int, int, int]],
    *,
    multiprocessors: int = 132,
    gpu: GpuModel = "h200",
    out_type: str | None = None,
    **epilogue: Any,
) -> list[MatmulConfig]:
    """The different configurations that `choose_config` chooses for problems.

    Args:
        arch: 90 or 100.
        element_type, out_type: as in `MatmulConfig`.
        majors: those of A and B.
        sizes: (M, N, K) of each problem.
        multiprocessors: how many SMs the GPU has.
        gpu: which it is, if of sm_90.
        epilogue: fields of `MatmulConfig`, such as ``bias`` and ``activation``.
    """
    return [
        *dict.fromkeys(
            with_epilogue(
                choose_config(
                    arch, element_type, *majors, *size, multiprocessors, out_type, gpu=gpu
                ),
                size[2],
                **epilogue,
            )
            for size in sizes
        )
    ]


def fixed_configurations(
    arch: int,
    element_type: str,
    majors: Iterable[tuple[Major, Major]] = tuple(itertools.product(MAJORS, MAJORS)),
    *,
    out_type: str | None = None,
    **epilogue: Any,
) -> list[MatmulConfig]:
    """All that `fixed_kernels` chooses among: a kernel for every problem.

    Args:
        majors: those of A and B, of which some may be illegal for the type.

    The others are those of `configurations`.

    Raises:
        LayoutError: the release of Triton is too old for the `fixed_set`, or no kernel takes the
            type, with any of these majors.
    """
    found = [
        with_epilogue(config, None, **epilogue)
        for pair in majors
        for config in fixed_set(arch, element_type, *pair, out_type)
    ]
    if not found:
        rule = f"must be legal on sm_{arch}, with such an output and major-ness ('K' is, for all)"
        raise LayoutError("element_type", element_type, rule)
    return found


def precompile(
    configs: Iterable[MatmulConfig], folder: Path | None = None, jobs: int | None = None
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


def _use(folder: str | None) -> None:
    if folder is not None:
        os.environ["TRITON_CACHE_DIR"] = folder


def _compile(config: MatmulConfig) -> Precompiled:
    from triton import knobs

    from triton_ext.kernels.kept import keep
    from triton_ext.kernels.launch import compile_matmul

    hits: list[bool] = []
    knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
    began, error = time.perf_counter(), None
    try:
        keep(config, compile_matmul(config))
    except Exception as raised:  # a release that lacks what a kernel takes, a full disk
        error = f"{type(raised).__name__}: {raised}"
    return Precompiled(config, time.perf_counter() - began, any(hits), error)
