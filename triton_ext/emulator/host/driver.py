"""The emulated GPU as a Triton driver: ``kernel[grid](...)`` compiles as ever, and runs here.

The kernel goes through Triton's whole compiler, ptxas included, for the target; then the PTX of
Triton's cache runs on the emulator, on the memory of CPU tensors. What differs between releases of
Triton is avoided: the launcher flattens the arguments itself.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from triton_ext.emulator.decode.program import Program
from triton_ext.emulator.errors import LaunchError
from triton_ext.emulator.host.run import MAX_THREADS, prepare, storage_bytes
from triton_ext.emulator.instructions import decode
from triton_ext.emulator.schedule.machine import Machine, Schedule
from triton_ext.emulator.schedule.observers import Observer
from triton_ext.emulator.schedule.parallel import execute
from triton_ext.emulator.state.memory import GlobalMemory
from triton_ext.hardware.architecture import (
    MULTIPROCESSORS,
    SHARED_MEMORY_PER_BLOCK,
    WARP_THREADS,
    Architecture,
    architecture,
)
from triton_ext.hardware.tensor_map import DataType, OobFill, TensorMap, TensorSwizzle
from triton_ext.layouts.encodings import SWIZZLE_BYTE_WIDTHS
from triton_ext.layouts.triton.ending import end_quietly
from triton_ext.ptx.parse import parse_ptx

_FLOATS: dict[str, Any] = {
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "fp32": np.float32,
    "f32": np.float32,
    "fp64": np.float64,
}
_SWIZZLES = tuple(TensorSwizzle.of_width(width) for width in SWIZZLE_BYTE_WIDTHS)
# Triton numbers the floating-point types of device-made tensor maps as PTX does; CUDA's
# enumeration has FLOAT64 and BFLOAT16 before FLOAT32_FTZ (triton/backends/nvidia/driver.py).
_TRITON_TYPES = {8: DataType.FLOAT32_FTZ, 9: DataType.FLOAT64, 10: DataType.BFLOAT16}


@dataclass
class EmulatedGpu:
    """The GPU that `emulate` makes: its settings, and what ran on it so far.

    Attributes:
        arch: 90 or 100.
        schedule: "eager", "lazy" or "random": when asynchronous work is done.
        seed: the random schedule's.
        observer: told of what happens.
        idle: kernels are compiled, and counted, but do not run.
        launches: how many kernels ran, or would have run.
        steps: instructions executed, each for all threads of a block that were at it together.
    """

    arch: Architecture
    schedule: str = "eager"
    seed: int = 0
    observer: Observer | None = None
    idle: bool = False
    launches: int = 0
    steps: int = 0
    _programs: dict[str, Program] = field(default_factory=dict, repr=False)

    def launch(
        self,
        program: Program,
        *,
        grid: tuple[int, int, int],
        cluster: tuple[int, int, int],
        args: Sequence[Any],
        dynamic_smem_bytes: int,
        memory: GlobalMemory,
    ) -> None:
        """Run a kernel to its end; its PTX says how many threads a block has."""
        block = (*program.kernel.directives.get("reqntid", (WARP_THREADS,)), 1, 1)[:3]
        launch = prepare(
            program,
            grid=grid,
            block=block,
            cluster=cluster,
            args=args,
            dynamic_smem_bytes=dynamic_smem_bytes,
            memory=memory,
        )
        schedule = Schedule(self.schedule, self.seed + self.launches)
        machine = Machine(program, launch, schedule, self.observer)
        self.launches += 1
        try:
            execute(machine)
        finally:
            self.steps += machine.steps

    def program(self, ptx: str) -> Program:
        """The decoded kernel of a PTX module; decoded once."""
        if ptx not in self._programs:
            self._programs[ptx] = decode(parse_ptx(ptx))
        return self._programs[ptx]


def find_tensor(address: int) -> tuple[int, Any] | None:
    """The storage of the living torch CPU tensor that holds an address, or None.

    For pointers that a kernel reads from memory: tensors are not registered anywhere.
    """
    import torch

    for candidate in gc.get_objects():
        if type(candidate) is not torch.Tensor or candidate.device.type != "cpu":
            continue
        storage = candidate.untyped_storage()
        first = storage.data_ptr()
        if first <= address < first + storage.nbytes():
            return first, storage_bytes(candidate)
    return None


class _Flattened:
    """The arguments of a launch, one for each parameter of the PTX kernel."""

    def __init__(self, tensor_maps: Sequence[Any] | None) -> None:
        self.memory = GlobalMemory(find_tensor)
        self.values: list[Any] = []
        self._maps = iter(tensor_maps) if tensor_maps else None

    def add(self, value: Any, kind: Any) -> None:
        """Append an argument; `kind` is its type in Triton's signature."""
        if kind == "constexpr":
            return
        if isinstance(kind, tuple):
            for each, its_kind in zip(value, kind, strict=True):
                self.add(each, its_kind)
        elif kind.startswith("tensordesc"):
            self._descriptor(value)
        elif kind.startswith("*"):
            self.values.append(self._pointer(value).to_bytes(8, "little"))
        elif kind in _FLOATS:
            self.values.append(np.asarray(value).astype(_FLOATS[kind]).tobytes())
        else:
            self.values.append(int(value))

    def _pointer(self, value: Any) -> int:
        if value is None:
            return 0
        if isinstance(value, int):
            return value
        tensor = getattr(value, "base", value)  # Triton's reinterpreted tensors have a base
        if hasattr(tensor, "untyped_storage"):
            data = storage_bytes(tensor)
            if len(data):
                self.memory.register(data, owner=tensor)
        return int(value.data_ptr())

    def _descriptor(self, value: Any) -> None:
        """A host-side TensorDescriptor: the map, or its parts, then the shape and the strides."""
        shape, strides = [int(n) for n in value.shape], [int(n) for n in value.strides]
        if self._maps is None:
            self.values.append(self._pointer(value.base).to_bytes(8, "little"))
            round_tf32 = getattr(value, "round_f32_to_tf32", False)
            self.values += [*shape, *strides, int(value.padding == "nan"), int(round_tf32)]
        else:
            self.values.append(self._map(value, next(self._maps)))
        self.values += [*shape, *strides]

    def _map(self, value: Any, meta: dict[str, Any]) -> TensorMap:
        if meta.get("is_im2col"):
            raise LaunchError("im2col tensor descriptors are not modelled")
        shape = [int(n) for n in value.shape]
        if meta["fp4_padded"]:
            shape[-1] *= 2
        code = int(meta["elem_type"])
        kind = _TRITON_TYPES.get(code, DataType(code))
        if getattr(value, "round_f32_to_tf32", False):
            kind = DataType.TFLOAT32
        return TensorMap(
            kind,
            tuple(reversed(shape)),
            tuple(int(n) * meta["elem_size"] for n in reversed(value.strides[:-1])),
            tuple(int(n) for n in reversed(meta["block_size"])),
            swizzle=_SWIZZLES[meta["swizzle"]],
            oob_fill=OobFill.NAN_REQUEST_ZERO_FMA if value.padding == "nan" else OobFill.NONE,
            global_address=self._pointer(value.base),
        )


def _cached_ptx(src: Any, metadata: Any) -> str:
    """The PTX that Triton keeps beside the cubin."""
    from triton.runtime.cache import get_cache_manager

    manager = get_cache_manager(metadata.hash)
    group = manager.get_group(f"{src.name[:150]}.json") or {}
    for name, path in group.items():
        if name.endswith(".ptx"):
            return Path(path).read_text()
    raise LaunchError(f"Triton's cache has no PTX of {src.name}; is its cache directory gone?")


class _Launcher:
    """What Triton calls for each launch of a compiled kernel."""

    def __init__(self, src: Any, metadata: Any) -> None:
        self._signature = list(src.signature.values())
        self._metadata = metadata
        self._maps = getattr(metadata, "tensordesc_meta", None)
        self._ptx = _cached_ptx(src, metadata)

    def __call__(
        self,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        stream: Any,
        function: Any,
        kernel_metadata: Any,
        launch_metadata: Any,
        enter_hook: Callable[[Any], None] | None,
        exit_hook: Callable[[Any], None] | None,
        *args: Any,
    ) -> None:
        blocks = grid_x * grid_y * grid_z
        if not blocks:
            return
        # Triton keeps launchers: this one may have been made while another GPU was active
        gpu = active_gpu()
        if gpu is None:
            raise LaunchError("the emulated GPU that this kernel was compiled for is not active")
        if gpu.idle:
            gpu.launches += 1
            return
        metadata, program = self._metadata, gpu.program(self._ptx)
        flat = _Flattened(self._maps)
        for value, kind in zip(args, self._signature, strict=True):
            flat.add(value, kind)
        for name in ("global_scratch", "profile_scratch"):
            if len(flat.values) < len(program.parameters):
                flat.values.append(self._scratch(name, blocks))
        if enter_hook is not None:
            enter_hook(launch_metadata)
        gpu.launch(
            program,
            grid=(grid_x * metadata.num_ctas, grid_y, grid_z),
            cluster=(metadata.num_ctas, 1, 1),
            args=flat.values,
            dynamic_smem_bytes=metadata.shared,
            memory=flat.memory,
        )
        if exit_hook is not None:
            exit_hook(launch_metadata)

    def _scratch(self, name: str, blocks: int) -> Any:
        """Memory that the kernel uses for itself, such as for tensor maps that it makes."""
        size = getattr(self._metadata, f"{name}_size", 0)
        if not size:
            return None
        align = max(1, getattr(self._metadata, f"{name}_align", 1))
        memory = np.zeros(size * blocks * self._metadata.num_ctas + align, np.uint8)
        start = -memory.__array_interface__["data"][0] % align
        return memory[start : len(memory) - align + start]


class _Event:
    """A time stamp, in instructions of the emulated GPU."""

    def __init__(self, gpu: EmulatedGpu) -> None:
        self._gpu, self._at = gpu, 0

    def record(self, stream: Any = None) -> None:
        self._at = self._gpu.steps

    def elapsed_time(self, end: _Event) -> float:
        """Instructions between two events; at least 1, as callers divide by it."""
        return float(max(1, end._at - self._at))

    def synchronize(self) -> None:
        """Everything is done when a launch returns."""


class _Utilities:
    """The part of the driver that looks at devices and loads binaries."""

    def __init__(self, gpu: EmulatedGpu) -> None:
        self._gpu = gpu

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {
            "max_shared_mem": SHARED_MEMORY_PER_BLOCK,
            "max_num_regs": 65536,
            "multiprocessor_count": MULTIPROCESSORS[self._gpu.arch],
            "warpSize": WARP_THREADS,
            "sm_clock_rate": 1_000_000,
            "mem_clock_rate": 1_000_000,
            "mem_bus_width": 5120,
        }

    def load_binary(
        self, name: str, binary: bytes, shared: int, device: int
    ) -> tuple[object, object, int, int, int]:
        """Module, function, registers, spills, threads; the launcher runs the PTX instead."""
        return object(), object(), 0, 0, MAX_THREADS

    def unload_module(self, module: object) -> None:
        """Nothing is held."""

    def set_printf_fifo_size(self, size: int) -> None:
        """The emulator prints at once."""

    def is_stream_capturing(self, stream: Any) -> bool:
        return False


def _driver(gpu: EmulatedGpu) -> Any:
    """A Triton driver for the emulated GPU."""
    import torch
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    class EmulatedDriver(DriverBase):  # type: ignore[misc]  # Triton is not typed
        def __init__(self) -> None:
            self.gpu = gpu
            self.utils = _Utilities(gpu)

        def launcher_cls(self, src: Any, metadata: Any) -> _Launcher:
            return _Launcher(src, metadata)

        @classmethod
        def is_active(cls) -> bool:
            return True

        def map_python_to_cpp_type(self, ty: str) -> str:
            raise NotImplementedError("no C++ launcher is built for the emulated GPU")

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", gpu.arch, WARP_THREADS)

        def get_current_device(self) -> int:
            # Triton keeps what it compiled by device: the architecture keeps them apart
            return gpu.arch

        def set_current_device(self, device: int) -> None:
            """There is one device."""

        def get_current_stream(self, device: int) -> int:
            return 0

        def get_device_capability(self, device: Any = None) -> tuple[int, int]:
            return divmod(gpu.arch, 10)

        def get_active_torch_device(self) -> Any:
            return torch.device("cpu")

        def get_device_interface(self) -> Any:
            return SimpleNamespace(
                Event=lambda enable_timing=False: _Event(gpu),
                synchronize=lambda device=None: None,
                current_device=lambda: gpu.arch,
            )

        def get_empty_cache_for_benchmark(self) -> Any:
            return torch.empty(0)

        def clear_cache(self, cache: Any) -> None:
            """There is no cache to clear."""

        def get_benchmarker(self) -> Any:
            return _benchmark

    def _benchmark(kernel_call: Callable[[], Any], quantiles: Any = None, **_: Any) -> Any:
        """The emulator's own count of instructions; the same each time, so once is enough."""
        before = gpu.steps
        kernel_call()
        count = float(gpu.steps - before)
        return [count] * len(quantiles) if quantiles else count

    return EmulatedDriver()


def active_gpu() -> EmulatedGpu | None:
    """The emulated GPU that Triton's kernels run on now, or None."""
    import triton

    return getattr(triton.runtime.driver._active, "gpu", None)


@contextlib.contextmanager
def emulate(
    arch: Any = "sm_100",
    *,
    schedule: str = "eager",
    seed: int = 0,
    observer: Observer | None = None,
    cuda_on_host: bool = False,
    idle: bool = False,
) -> Iterator[EmulatedGpu]:
    """Make an emulated GPU the one that Triton and Gluon kernels run on.

    Kernels are compiled by the real compiler for the target, and work on CPU tensors.

    Args:
        arch: "sm_90" or "sm_100".
        schedule: when asynchronous work is done: "eager", "lazy" or "random".
        seed: the random schedule's.
        observer: told of what happens, such as a `Trace` or `Statistics`.
        cuda_on_host: let torch code that says ``device="cuda"`` work, on the host's memory.
        idle: compile the kernels that are launched, but run none: outputs stay as they were.

    Raises:
        LayoutError: another architecture.
        LaunchError: another schedule.
    """
    import triton

    from triton_ext.emulator.host.torch_cuda import cuda_on_the_host

    end_quietly()

    gpu = EmulatedGpu(architecture(arch), schedule, seed, observer, idle)
    Schedule(schedule, seed)
    config = triton.runtime.driver
    previous = config._active  # `active` would look for a real GPU
    config.set_active(_driver(gpu))
    try:
        with cuda_on_the_host(gpu.arch) if cuda_on_host else contextlib.nullcontext():
            yield gpu
    finally:
        config.set_active(previous)
