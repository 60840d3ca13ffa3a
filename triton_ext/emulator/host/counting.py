"""Scripts that measure time: predicted time, or else the number of emulated instructions."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol
from unittest import mock


class Counted(Protocol):
    """A GPU whose instructions are counted, or whose time is predicted.

    Attributes:
        steps: how many it has executed.
        said: whether it was said that they stand for time.
    """

    steps: int
    said: bool

    @property
    def seconds(self) -> float | None:
        """What all launches so far would take; None if that is not predicted."""


def _now(gpu: Counted) -> float:
    """Predicted milliseconds, or instructions."""
    return gpu.steps if gpu.seconds is None else gpu.seconds * 1e3


def _between(gpu: Counted, begin: float, end: float) -> float:
    """What a benchmark is told: positive, as callers divide by it."""
    if gpu.seconds is not None:
        return max(end - begin, 1e-9)
    if not gpu.said:
        gpu.said = True
        text = "there is no time on the emulated GPU: where a script measures it, in milliseconds,"
        print(f"triton-ext: {text} it gets the number of instructions", file=sys.stderr)
    return max(1.0, end - begin)


class Event:
    """A time stamp, in instructions of the emulated GPU, or in predicted milliseconds.

    Args:
        gpu: that GPU.
    """

    def __init__(self, gpu: Counted) -> None:
        self._gpu, self._at = gpu, 0.0

    def record(self, stream: Any = None) -> None:
        self._at = _now(self._gpu)

    def elapsed_time(self, end: Event) -> float:
        """Instructions between two events, or milliseconds."""
        return _between(self._gpu, self._at, end._at)

    def synchronize(self) -> None:
        """Everything is done when a launch returns."""

    def wait(self, stream: Any = None) -> None:
        """As `synchronize`."""

    def query(self) -> bool:
        """It is done."""
        return True


def count(gpu: Counted, call: Callable[[], Any], quantiles: Any = None, **_: Any) -> Any:
    """The instructions of a call, or its predicted milliseconds, as a benchmark's result: the same
    each time, so once is enough.

    Args:
        quantiles: as of ``triton.testing.do_bench``: so many results.
    """
    before = _now(gpu)
    call()
    counted = _between(gpu, before, _now(gpu))
    if quantiles is None:
        return counted
    return [counted] * len(quantiles) if len(quantiles) > 1 else counted


@contextlib.contextmanager
def benchmarks_count(current: Callable[[], Counted]) -> Iterator[None]:
    """Within it Triton's benchmarks call a function once, and count. `current`: the GPU of the
    calling thread."""
    from triton import testing

    def bench(fn: Callable[[], Any], *args: Any, **options: Any) -> Any:
        found = count(current(), fn, options.get("quantiles"))
        return [found] if options.get("return_mode") == "all" else found

    with (
        mock.patch.object(testing, "do_bench", bench),
        mock.patch.object(testing, "do_bench_cudagraph", bench),
    ):
        yield


@contextlib.contextmanager
def tuned_apart(current: Callable[[], Counted]) -> Iterator[None]:
    """Within it the results of Triton's autotuner that lie on disk have keys of their own.

    Triton's name the architecture alone: a real GPU would take its configurations from numbers of
    instructions (``cache_results``, ``TRITON_CACHE_AUTOTUNING``).

    Args:
        current: the GPU of the calling thread.
    """
    from triton.runtime import autotuner, cache

    def manager(key: str) -> cache.CacheManager:
        unit = "instructions" if current().seconds is None else "predicted milliseconds"
        return cache.get_cache_manager(hashlib.sha256(f"{unit}-{key}".encode()).hexdigest())

    with mock.patch.object(autotuner, "get_cache_manager", manager):
        yield
