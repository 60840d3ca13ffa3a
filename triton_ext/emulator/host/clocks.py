"""Clocks: they predict how long launches take, and are registered from above.

The emulator knows how fast no GPU is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(kw_only=True)
class Timed:
    """A GPU of which a clock says how long its launches take.

    Attributes:
        clock: it, or None.
    """

    clock: Clock | None = None

    @property
    def timelines(self) -> list[Any]:
        """What each launch would take, in their order; [] if no time was asked for."""
        return [] if self.clock is None else self.clock.timelines

    @property
    def timeline(self) -> Any:
        """What the last launch would take; `time` of `emulate` says on which GPU.

        Raises:
            LaunchError: nothing was launched, or no time was asked for.
        """
        if not self.timelines:
            reason = (
                "no kernel was launched" if self.clock else "emulate(..., time=...) was not given"
            )
            raise LaunchError(f"there is no timeline: {reason}")
        return self.timelines[-1]

    @property
    def seconds(self) -> float | None:
        """What all launches so far would take, one after the other; None without a `clock`."""
        return None if self.clock is None else self.clock.seconds
