"""Which GPU the tensors of a product are on."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from triton_ext.errors import LayoutError, UnsupportedDeviceError
from triton_ext.hardware.architecture import CAPABILITIES, architecture
from triton_ext.kernels.launch import DeviceProperties


@dataclass(frozen=True)
class Gpu:
    """A GPU that this project has kernels for.

    Attributes:
        arch: whose kernels it runs, 90 or 100: sm_103, sm_107 and sm_110 have those of sm_100.
        properties: what a launch plan asks of it.
        index: CUDA's number of it; None if it is emulated.
    """

    arch: int
    properties: DeviceProperties
    index: int | None

    def current(self) -> AbstractContextManager[Any]:
        """The context in which kernels run on it."""
        if self.index is not None:
            return torch.cuda.device(self.index)
        if active_emulator():
            return nullcontext()
        from triton_ext.emulator.host import emulate  # imports the whole emulator

        return emulate.emulate(f"sm_{self.arch}")


@functools.cache
def _emulator() -> Any:
    """The driver of emulated GPUs; None where the kernels were installed without. Raises
    ModuleNotFoundError: the emulator is there, and lacks another module."""
    try:
        from triton_ext.emulator.host import driver  # imports the whole emulator
    except ModuleNotFoundError as error:
        if not (error.name or "").endswith(".emulator"):
            raise
        return None
    return driver


def active_emulator() -> Any:
    """The emulated GPU that is active, or None."""
    driver = _emulator()
    return None if driver is None else driver.active_gpu()


@functools.cache
def _cuda_gpu(index: int) -> Gpu | str:
    """The GPU of a number; or, if it is not supported, what it is."""
    major, minor = torch.cuda.get_device_capability(index)
    arch = _kernels_of(10 * major + minor)
    if arch is not None:
        return Gpu(arch, torch.cuda.get_device_properties(index), index)
    return f"{torch.cuda.get_device_name(index)} has compute capability {major}.{minor}"


def _kernels_of(capability: int) -> int | None:
    """Whose kernels run there; None if there are none."""
    try:
        return architecture(capability)
    except LayoutError:  # mma.sync, or a GPU that is not known
        return None


@functools.cache
def _emulated_gpu(capability: int) -> Gpu | str:
    arch, has = _kernels_of(capability), CAPABILITIES[capability]
    if arch is None:
        return f"the emulated GPU is sm_{capability} ({has.gpu})"
    return Gpu(arch, SimpleNamespace(multi_processor_count=has.multiprocessors), None)


def find_gpu(device: torch.device) -> Gpu | str:
    """The supported GPU of a torch device; else what was found there.

    Tensors on the host are for the emulated GPU: the one that is active, or, where there is no
    other GPU, a Blackwell.
    """
    if device.type == "cuda":
        return _cuda_gpu(torch.cuda.current_device() if device.index is None else device.index)
    if device.type == "cpu":
        gpu = active_emulator()
        if gpu is not None:
            return _emulated_gpu(gpu.arch)
        if not torch.cuda.is_available() and _emulator() is not None:
            return _emulated_gpu(100)
    return f"the tensors are on {device}"


def offers(device: torch.device) -> bool:
    """Whether products of PyTorch may be made on a device: on an emulated GPU if one is active,
    never on one that nobody asked for.
    """
    if device.type == "cpu" and active_emulator() is None:
        return False
    return not isinstance(find_gpu(device), str)


def require_gpu(device: torch.device) -> Gpu:
    """The supported GPU of a torch device; UnsupportedDeviceError if it is none."""
    gpu = find_gpu(device)
    if isinstance(gpu, str):
        raise UnsupportedDeviceError(
            "triton_ext.matmul needs an NVIDIA Hopper (compute capability 9.0) or Blackwell (10.x,"
            " 11.0)"
            f" GPU, or an emulated one (triton_ext.emulate): {gpu}. Use torch.matmul here, or"
            ' fallback="torch".'
        )
    return gpu
