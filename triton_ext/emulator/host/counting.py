"""Scripts that measure time: there is none on the emulated GPU, so its instructions are counted."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol
from unittest import mock


class Counted(Protocol):
    """A GPU whose instructions are counted.

    Attributes:
        steps: how many it has executed.
        said: whether it was said that they stand for time.
    """

    steps: int
    said: bool


def _say(gpu: Counted) -> None:
    if not gpu.said:
        gpu.said = True
        text = "there is no time on the emulated GPU: where a script measures it, in milliseconds,"
        print(f"triton-ext: {text} it gets the number of instructions", file=sys.stderr)


class Event:
    """A time stamp, in instructions of the emulated GPU.

    Args:
        gpu: that GPU.
    """

    def __init__(self, gpu: Counted) -> None:
        self._gpu, self._at = gpu, 0

    def record(self, stream: Any = None) -> None:
        self._at = self._gpu.steps

    def elapsed_time(self, end: Event) -> float:
        """Instructions between two events; at least 1, as callers divide by it."""
        _say(self._gpu)
        return float(max(1, end._at - self._at))

    def synchronize(self) -> None:
        """Everything is done when a launch returns."""

    def wait(self, stream: Any = None) -> None:
        """As `synchronize`."""

    def query(self) -> bool:
        """It is done."""
        return True


def count(gpu: Counted, call: Callable[[], Any], quantiles: Any = None, **_: Any) -> Any:
    """The instructions of a call, as a benchmark's result: the same each time, so once is enough.

    Args:
        quantiles: as of ``triton.testing.do_bench``: so many results.
    """
    _say(gpu)
    before = gpu.steps
    call()
    counted = float(max(1, gpu.steps - before))
    if quantiles is None:
        return counted
    return [counted] * len(quantiles) if len(quantiles) > 1 else counted


@contextlib.contextmanager
def benchmarks_count(current: Callable[[], Counted]) -> Iterator[None]:
    """Within it Triton's benchmarks call a function once, and count.

    Args:
        current: the GPU of the calling thread.
    """
    from triton import testing

    def bench(fn: Callable[[], Any], *args: Any, **options: Any) -> Any:
        found = count(current(), fn, options.get("quantiles"))
        return [found] if options.get("return_mode") == "all" else found

    with (
        mock.patch.object(testing, "do_bench", bench),
        mock.patch.object(testing, "do_bench_cudagraph", bench),
    ):
        yield
