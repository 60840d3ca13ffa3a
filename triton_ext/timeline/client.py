"""The client of the emulator that predicts the time of launches: ``emulate(..., time="H200")``.

To import this registers it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from triton_ext.emulator.host import clocks
from triton_ext.emulator.host.clocks import Clock
from triton_ext.emulator.schedule.observers import Observer, Run
from triton_ext.emulator.schedule.parallel import independent
from triton_ext.hardware.architecture import Architecture, resident_clusters
from triton_ext.ptx.cubin import disassembled, registers
from triton_ext.timeline.gpus import Gpu, gpu_of
from triton_ext.timeline.recorder import Recorder
from triton_ext.timeline.sass import Cost, costs
from triton_ext.timeline.timeline import Timeline
from triton_ext.timeline.trace import sampled


class Timing(Clock):
    """The client that predicts how long each launch would take on a GPU.

    It records the clusters that `triton_ext.timeline.trace.sampled` names. Without values, only
    these clusters run, provided that blocks of different clusters cannot see each other's work.

    Args:
        gpu: the parameters of the GPU.
        values: whether the results are computed; else only the time is predicted.

    Attributes:
        timelines: the timeline of each launch so far.
    """

    def __init__(self, gpu: Gpu, values: bool = True) -> None:
        self.gpu, self.values = gpu, values
        self.timelines: list[Timeline] = []

    @property
    def seconds(self) -> float:
        return sum(each.seconds for each in self.timelines)

    def begins(self, run: Run) -> Observer:
        launch = run.launch
        at_once = resident_clusters(self.gpu.multiprocessors, math.prod(launch.cluster))
        chosen = sampled(launch.clusters, at_once)
        alone = independent(run.program, ignored="griddepcontrol")
        run.options.together = not alone
        if not self.values:
            run.without_values()
            run.options.chosen = chosen if alone else None
        listing = "" if launch.binary is None else _listing(launch.binary)
        return _Recording(self, chosen, costs(listing, run.program.kernel))


class _Recording(Recorder):
    """The recorder of one launch; its record becomes a timeline."""

    def __init__(
        self, timing: Timing, clusters: Collection[int], costs: Mapping[int, Cost]
    ) -> None:
        super().__init__(clusters, costs)
        self._timing = timing

    def ends(self, run: Run) -> None:
        binary = run.launch.binary
        count = 0 if binary is None else registers(binary)
        trace = self.trace(run.launch, run.program.kernel.name, count)
        self._timing.timelines.append(Timeline(trace, self._timing.gpu))


def _listing(cubin: bytes) -> str:
    """The listing of a binary by Triton's nvdisasm, with control bits and PTX lines; "" if there is
    no nvdisasm."""
    import triton

    try:
        return disassembled(cubin, triton.knobs.nvidia.nvdisasm.path, "-gp", "-hex")
    except RuntimeError:
        return ""


def timing(time: Any, arch: Architecture, values: bool) -> Timing:
    """The client for the argument `time` of `emulate`: a GPU's name, True, or a `Gpu`. Raises
    LayoutError: the GPU is not known, or is of another architecture."""
    return Timing(gpu_of(time, arch), values)


clocks.register(timing)
