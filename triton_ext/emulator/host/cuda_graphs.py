"""CUDA graphs: what is launched while one is captured, again at each replay.

As on a GPU, capturing runs nothing: kernels are noted, and so are torch's functions, whose results
get their memory then, and their values at a replay.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

_capturing = threading.local()
_IN_PLACE = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "zero_grad")


class CUDAGraph:
    """Stands in for ``torch.cuda.CUDAGraph``."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._calls: list[Callable[[], None]] = []

    def capture_begin(self, *args: Any, **options: Any) -> None:
        self._calls = []
        _capturing.graph = self

    def capture_end(self) -> None:
        _capturing.graph = None

    def note(self, call: Callable[[], None]) -> None:
        """Another call, to be made at each replay."""
        self._calls.append(call)

    def replay(self) -> None:
        for call in self._calls:
            call()

    def instantiate(self) -> None:
        """There is nothing to prepare."""

    def reset(self) -> None:
        self._calls = []

    def pool(self) -> tuple[int, int]:
        return (0, 0)


class graph:
    """Stands in for ``torch.cuda.graph``: a block that is captured."""

    def __init__(self, cuda_graph: CUDAGraph, *args: Any, **options: Any) -> None:
        self._graph = cuda_graph

    def __enter__(self) -> None:
        self._graph.capture_begin()

    def __exit__(self, *error: object) -> None:
        self._graph.capture_end()


def captured() -> CUDAGraph | None:
    """The graph that this thread is capturing."""
    found: CUDAGraph | None = getattr(_capturing, "graph", None)
    return found


def call(into: CUDAGraph, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What a function of torch returns while a graph is captured; the graph notes the call.

    A function that changes its first argument, or ``out``, is not called yet.
    """
    name = getattr(func, "__name__", "")
    in_place = name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
    if in_place or kwargs.get("out") is not None:
        into.note(lambda: func(*args, **kwargs))
        return kwargs.get("out", args[0] if args else None)
    result = func(*args, **kwargs)
    if name == "__get__" or not any(hasattr(each, "data_ptr") for each in _flat(result)):
        return result

    def again() -> None:
        for old, new in zip(_flat(result), _flat(func(*args, **kwargs)), strict=True):
            if hasattr(old, "data_ptr") and old.data_ptr() != new.data_ptr():
                old.copy_(new)

    into.note(again)
    return result


def _flat(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)
