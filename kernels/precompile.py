"""Kernels compiled ahead of their first launch, on any machine, into Triton's cache."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.kernels.choice.choose import choose_config, with_epilogue
from triton_ext.kernels.choice.fixed_set import fixed_set
from triton_ext.kernels.choice.gpus import GpuModel
from triton_ext.kernels.config import DEFAULTS, MatmulConfig
from triton_ext.kernels.element_types import MAJORS, Major

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
                    arch,
                    element_type,
                    *majors,
                    *size,
                    multiprocessors,
                    out_type,
                    gpu=gpu,
                    promoted=epilogue.get("promoted", False),
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


def compile_together(configs: Sequence[MatmulConfig]) -> None:
    """Compile configurations at the same time, for the launches of this process; what fails, or is
    there already, is left to these. (Processes of a pool would import this process's main module.)
    """
    from triton import knobs

    from triton_ext.kernels.kept import find

    new = [config for config in configs if find(config) is None]
    if len(new) < LEAST_TOGETHER:
        return
    values = [{name: getattr(config, name) for name in DEFAULTS} for config in new]
    environment = {**os.environ, "TRITON_CACHE_DIR": knobs.cache.dir}
    command = [sys.executable, "-m", __name__]
    with contextlib.suppress(OSError):
        subprocess.run(
            command, input=json.dumps(values), text=True, env=environment, check=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip


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


if __name__ == "__main__":  # the other process of `compile_together`
    for _ in precompile([MatmulConfig(**each) for each in json.load(sys.stdin)]):
        pass
