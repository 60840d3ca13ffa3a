"""Clocks: they predict how long launches take, and are registered from above.

The emulator knows how fast no GPU is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from triton_ext.emulator.errors import LaunchError
from triton_ext.emulator.schedule.observers import Observer
from triton_ext.hardware.architecture import Architecture


class Clock(Observer):
    """An observer that predicts the time of the launches that it sees.

    Attributes:
        timelines: what each of them would take, in their order.
    """

    timelines: list[Any]

    @property
    def seconds(self) -> float:
        """What all of them would take, one after the other."""
        raise NotImplementedError


Maker = Callable[[Any, Architecture, bool], Clock]
"""From `time`, the architecture and `values` of `emulate`."""
_registered: list[Maker] = []


def register(maker: Maker) -> None:
    """Let a maker of clocks answer ``emulate(..., time=...)``."""
    _registered.append(maker)


def clock_of(time: Any, arch: Architecture, values: bool) -> Clock:
    """The clock that `emulate` is asked for, by the maker that was registered last.

    Raises:
        LaunchError: none is registered.
        LayoutError: what the maker does not know.
    """
    if not _registered:
        rule = "nothing that predicts time is loaded: import triton_ext.timeline.client"
        raise LaunchError(f"time = {time!r}: {rule}")
    return _registered[-1](time, arch, values)
