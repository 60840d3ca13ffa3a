"""Sets of threads of a block, as numpy indices: a slice if they are consecutive, else an array."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.errors import ConvergenceFault
from triton_ext.hardware.architecture import WARP_THREADS

Lanes = slice | NDArray[np.intp]


def pack(threads: NDArray[np.intp]) -> Lanes:
    """Sorted thread numbers, as a slice if they are consecutive."""
    first, count = int(threads[0]), len(threads)
    if int(threads[-1]) - first + 1 == count:
        return slice(first, first + count)
    return threads


@lru_cache(1024)
def _range(first: int, last: int) -> NDArray[np.intp]:
    found = np.arange(first, last)
    found.flags.writeable = False
    return found


def indices(lanes: Lanes) -> NDArray[np.intp]:
    """The thread numbers."""
    return _range(lanes.start, lanes.stop) if isinstance(lanes, slice) else lanes


def count(lanes: Lanes) -> int:
    """The number of threads."""
    return lanes.stop - lanes.start if isinstance(lanes, slice) else len(lanes)


def each(values: NDArray[Any], lanes: Lanes) -> NDArray[Any]:
    """A reader's values, one a lane, also where all share one."""
    return values if values.ndim else np.full(count(lanes), values)


def numbers(values: NDArray[Any], lanes: Lanes) -> list[Any]:
    """The same as Python numbers."""
    if not values.ndim:
        return [values.item()] * count(lanes)
    found: list[Any] = values.tolist()
    return found


def select(lanes: Lanes, chosen: NDArray[Any]) -> Lanes:
    """The threads for which `chosen`, (lanes,), is true; it must be for one at least."""
    return pack(indices(lanes)[chosen])


def warps(lanes: Lanes) -> NDArray[np.intp]:
    """The numbers of the warps that have a thread in the set."""
    if isinstance(lanes, slice):
        return _range(lanes.start // WARP_THREADS, (lanes.stop - 1) // WARP_THREADS + 1)
    return np.unique(lanes // WARP_THREADS)


def whole_warps(lanes: Lanes) -> NDArray[np.intp]:
    """As `warps`, for an instruction that all threads of a warp must execute. Raises
    ConvergenceFault: some threads of a warp are missing."""
    found = warps(lanes)
    if count(lanes) != len(found) * WARP_THREADS:
        raise ConvergenceFault(
            "all 32 threads of a warp must execute this instruction: some have exited, or their"
            " guard is false"
        )
    return found
