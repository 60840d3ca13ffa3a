"""The emulated GPU as a Triton driver: ``kernel[grid](...)`` compiles as ever, and runs here.

The kernel goes through Triton's whole compiler, ptxas included, for the target; then the PTX of
Triton's cache runs on the emulator, on the memory of CPU tensors. What differs between releases of
Triton is avoided: the launcher flattens the arguments itself.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from triton_ext.emulator.host import wrong_architecture
from triton_ext.emulator.host.counting import Event, count, tuned_apart
from triton_ext.emulator.host.entered import current_gpu, entered
from triton_ext.emulator.host.gpu import EmulatedGpu
from triton_ext.emulator.host.launcher import Launcher
from triton_ext.emulator.host.run import MAX_THREADS
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.ptx.cubin import registers


class _Utilities:
    """The part of the driver that looks at devices and loads binaries."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {
            "max_shared_mem": current_gpu().capability.shared_memory_per_block,
            "max_num_regs": 65536,
            "multiprocessor_count": current_gpu().capability.multiprocessors,
            "warpSize": WARP_THREADS,
            "sm_clock_rate": 1_000_000,
            "mem_clock_rate": 1_000_000,
            "mem_bus_width": 5120,
        }

    def load_binary(
        self, name: str, binary: bytes, shared: int, device: int
    ) -> tuple[None, object, int, int, int]:
        """Module, function, registers, spilled bytes, threads; the launcher runs the PTX instead.

        Without a module, nothing is unloaded when the kernel is collected, perhaps long after the
        driver has gone.
        """
        return None, object(), registers(binary), 0, MAX_THREADS

    def unload_module(self, module: object) -> None:
        """Nothing is held."""

    def set_printf_fifo_size(self, size: int) -> None:
        """The emulator prints at once."""

    def is_stream_capturing(self, stream: Any) -> bool:
        return False


class _Emulated:
    """What marks the driver of the emulated GPU."""


def triton_driver() -> Any:
    """Triton's record of the driver in use; its ``active`` would look for a real GPU."""
    import triton

    return triton.runtime.driver


@functools.cache
def _driver() -> Any:
    """A Triton driver for the emulated GPU that is current."""
    import torch
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    class EmulatedDriver(_Emulated, DriverBase):  # type: ignore[misc]  # Triton is not typed
        def __init__(self) -> None:
            self.utils = _Utilities()

        def launcher_cls(self, src: Any, metadata: Any) -> Launcher:
            return Launcher(src, metadata)

        @classmethod
        def is_active(cls) -> bool:
            return True

        def map_python_to_cpp_type(self, ty: str) -> str:
            raise NotImplementedError("no C++ launcher is built for the emulated GPU")

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", current_gpu().arch, WARP_THREADS)

        def get_current_device(self) -> int:
            # Triton keeps what it compiled by device: the architecture keeps them apart
            return current_gpu().arch

        def set_current_device(self, device: int) -> None:
            """There is one device."""

        def get_current_stream(self, device: int) -> int:
            return 0

        def get_device_capability(self, device: Any = None) -> tuple[int, int]:
            return divmod(current_gpu().arch, 10)

        def get_active_torch_device(self) -> Any:
            return torch.device("cpu")

        def get_device_interface(self) -> Any:
            return SimpleNamespace(
                Event=lambda enable_timing=False: Event(current_gpu()),
                synchronize=lambda device=None: None,
                current_device=lambda: current_gpu().arch,
            )

        def get_empty_cache_for_benchmark(self) -> Any:
            return torch.empty(0)

        def clear_cache(self, cache: Any) -> None:
            """There is no cache to clear."""

        def get_benchmarker(self) -> Any:
            return lambda call, **options: count(current_gpu(), call, **options)

    return EmulatedDriver()


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Within it Triton's kernels are launched on the emulated GPU that is current."""
    config, emulated = triton_driver(), _driver()
    before = config._active
    try:
        with wrong_architecture.refused(), tuned_apart(current_gpu):
            config.set_active(emulated)
            yield
    finally:
        config.set_active(before)


def active_gpu() -> EmulatedGpu | None:
    """The emulated GPU that this thread's Triton kernels run on now, or None."""
    return entered.current() if isinstance(triton_driver()._active, _Emulated) else None
