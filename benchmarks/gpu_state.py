"""Clock and power of the GPU while it works, and the bandwidth of its memory.

By NVML (the package ``nvidia-ml-py``), which was seen to take new readings of an H100's clock and
power each 100 ms.
"""

from __future__ import annotations

import importlib
import statistics
import threading
import time
from typing import Any

import torch

SAMPLE_SECONDS = 5e-3


class GpuState:
    """The current GPU, as NVML sees it."""

    def __init__(self) -> None:
        self._nvml: Any = importlib.import_module("pynvml")
        self._nvml.nvmlInit()
        properties = torch.cuda.get_device_properties()
        self._device = self._nvml.nvmlDeviceGetHandleByUUID(f"GPU-{properties.uuid}")

    def clock_mhz(self) -> float:
        """The clock of the SMs."""
        return float(self._nvml.nvmlDeviceGetClockInfo(self._device, self._nvml.NVML_CLOCK_SM))

    def power_watts(self) -> float:
        """The power that the whole board takes."""
        wanted = self._nvml.NVML_FI_DEV_POWER_INSTANT
        [field] = self._nvml.nvmlDeviceGetFieldValues(self._device, [wanted])
        return float(field.value.uiVal) / 1e3

    def memory_bytes_per_second(self) -> float:
        """The highest memory clock x the width of the bus x 2 bits a clock and wire.

        It gives the data sheet's 3.35e12 for an H100 SXM, and 4.9e12 (where it says 4.8e12) for an
        H200.
        """
        megahertz = self._nvml.nvmlDeviceGetMaxClockInfo(self._device, self._nvml.NVML_CLOCK_MEM)
        wires = self._nvml.nvmlDeviceGetMemoryBusWidth(self._device)
        return float(megahertz) * 1e6 * int(wires) * 2 / 8


class Watch:
    """Clock and power while a block of code runs, which should take 0.3 s at least.

    ``with Watch(GpuState()) as seen: ...``, and then ``seen.clock_mhz`` and ``seen.power_watts``:
    medians of the later half, since readings lag.
    """

    def __init__(self, gpu: GpuState) -> None:
        self._gpu = gpu
        self._stop = threading.Event()
        self._samples: list[tuple[float, float]] = []
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        while not self._stop.is_set():
            self._samples.append((self._gpu.clock_mhz(), self._gpu.power_watts()))
            time.sleep(SAMPLE_SECONDS)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def clock_mhz(self) -> float:
        """The clock of the SMs."""
        return statistics.median(clock for clock, _ in self._later())

    @property
    def power_watts(self) -> float:
        """The power that the whole board takes."""
        return statistics.median(power for _, power in self._later())

    def _later(self) -> list[tuple[float, float]]:
        return self._samples[len(self._samples) // 2 :]
