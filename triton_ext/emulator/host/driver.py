"""The emulated GPU as a Triton driver: ``kernel[grid](...)`` compiles as ever, and runs here.

The kernel goes through Triton's whole compiler, ptxas included, for the target; then the PTX of
Triton's cache runs on the emulator, on the memory of CPU tensors. What differs between releases of
Triton is avoided: the launcher flattens the arguments itself.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, overload

import ml_dtypes
import numpy as np

from triton_ext.emulator.clients.breakpoints import Breakpoint, Breakpoints, Stop
from triton_ext.emulator.clients.schedules.verdict import BrokenSchedule, Verdict
from triton_ext.emulator.decode.program import Program
from triton_ext.emulator.errors import EmulationError, LaunchError
from triton_ext.emulator.host import wrong_architecture
from triton_ext.emulator.host.allocated import allocated
from triton_ext.emulator.host.clocks import Clock, clock_of
from triton_ext.emulator.host.counting import Event, count
from triton_ext.emulator.host.cuda_graphs import captured
from triton_ext.emulator.host.devices import MAX_DEVICES, EmulatedGpus, compiling_in_turn
from triton_ext.emulator.host.moved_sources import as_loaded
from triton_ext.emulator.host.reachable import Reachable
from triton_ext.emulator.host.run import MAX_THREADS, allocation, prepare, register_buffers
from triton_ext.emulator.host.scheduling import check_schedules, scheduled, start
from triton_ext.emulator.host.warned import warn_of
from triton_ext.emulator.instructions import decode
from triton_ext.emulator.schedule.machine import MAX_STEPS, Limits, Machine, Schedule
from triton_ext.emulator.schedule.observers import Observer, combined
from triton_ext.emulator.state.buffers import named
from triton_ext.emulator.state.leniencies import Taken
from triton_ext.emulator.state.memory import Allocation, GlobalMemory, host_bytes
from triton_ext.hardware.architecture import (
    CAPABILITIES,
    WARP_THREADS,
    Capability,
    target_number,
)
from triton_ext.hardware.im2col import Im2colMap
from triton_ext.hardware.tensor_map import DataType, OobFill, TensorMap, TensorSwizzle
from triton_ext.layouts.encodings import SWIZZLE_BYTE_WIDTHS
from triton_ext.layouts.triton.ending import end_quietly
from triton_ext.ptx.cubin import registers
from triton_ext.ptx.parse import parse_ptx
from triton_ext.tracebacks import trimmed

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
        arch: the compute capability, times ten: 90, 100, 120.
        schedule: "eager", "lazy" or "random": when asynchronous work is done; or a witness's file.
        schedules: "all": every schedule is judged, by the eager one.
        explain_wait: the line whose waits are explained then.
        seed: the random schedule's.
        observer: told of what happens.
        idle: kernels are compiled, and counted, but do not run.
        buffers: tensors and arrays that every kernel may reach, besides its arguments.
        limits: how long a launch may take.
        check_layouts: whether what TMA has written must be read in the same layout.
        check_races: whether accesses to global memory must be ordered.
        check_empty: whether memory of ``torch.empty`` must have been written before it is read.
        check_views: whether a launch reaches of a tensor's storage its elements alone.
        strict: whether what is undefined by the letter, and relied on, is a fault.
        check_unread: whether what copies bring must be read before it is overwritten by another.
        launches: how many kernels ran, or would have run.
        steps: instructions executed, each for all threads of a block that were at it together.
        verdicts: what is known of all schedules, of each launch that was judged.
        said: whether it was said that they stand for time.
        taken: what was undefined and run as hardware runs it, by the rule's name: see
            `triton_ext.emulator.state.leniencies`.
        clock: predicts how long launches take, or None.
        device: its number, if there are several GPUs.
        peers: all of them, or None.
    """

    arch: int
    schedule: str | Path = "eager"
    seed: int = 0
    observer: Observer | None = None
    idle: bool = False
    buffers: Sequence[Any] = ()
    limits: Limits = field(default_factory=Limits)
    check_layouts: bool = True
    check_races: bool = True
    check_empty: bool = False
    check_views: bool = True
    strict: bool = False
    check_unread: bool = False
    schedules: str | None = None
    explain_wait: str | None = None
    launches: int = 0
    steps: int = 0
    verdicts: list[Verdict] = field(default_factory=list)
    said: bool = False
    taken: dict[str, Taken] = field(default_factory=dict)
    clock: Clock | None = None
    device: int = 0
    peers: EmulatedGpus | None = field(default=None, repr=False)
    _breakpoints: Breakpoints | None = field(default=None, repr=False)

    def launch(
        self,
        program: Program,
        *,
        grid: tuple[int, int, int],
        cluster: tuple[int, int, int] | None,
        args: Sequence[Any],
        dynamic_smem_bytes: int,
        memory: GlobalMemory,
        names: Sequence[str],
        block: tuple[int, int, int] | None = None,
        cubin: bytes | None = None,
        ttgir: Path | None = None,
        variables: Mapping[str, int] | None = None,
    ) -> None:
        """Run a kernel to its end.

        Args:
            block: the threads of a block; None if the PTX says it.
            cubin: what ptxas made of it, if that is known; for its time.
            ttgir: what the PTX was made of, for the names of its buffers.
            variables: where the module's variables are, if they outlive the launch.

        Raises:
            EmulationError: what the kernel does wrong; `BrokenSchedule`: in another schedule.
        """
        if self.peers is not None:
            self.peers.admit(self.device, memory)
        register_buffers(memory, self.buffers)
        launch = prepare(
            program,
            grid=grid,
            block=block or program.kernel.directives.get("reqntid", (WARP_THREADS,)),
            cluster=cluster,
            args=args,
            dynamic_smem_bytes=dynamic_smem_bytes,
            memory=memory,
            names=names,
            check_layouts=self.check_layouts,
            check_races=self.check_races,
            check_empty=self.check_empty,
            strict=self.strict,
            check_unread=self.check_unread,
            variables=variables,
        )
        if self.peers is not None:
            launch = self.peers.place(self.device, launch)
        if ttgir is not None:
            launch = replace(launch, allocated=functools.partial(allocated, ttgir, program.arch))
        launch = replace(launch, binary=cubin)
        number = self.launches
        schedule = scheduled(self.schedule, self.seed + number, self.schedules, number)
        clients = [self.observer, self._breakpoints, self.clock]
        observer = combined([each for each in clients if each is not None])
        machine = Machine(program, launch, schedule, observer, self.limits)
        self.launches += 1
        try:
            if self.peers is not None:
                self.peers.execute(self.device, machine)
            else:
                start(
                    machine,
                    every=self.schedules == "all",
                    launches=number,
                    explain_wait=self.explain_wait,
                )
        except EmulationError as error:
            error.message = named(error.message, launch.buffers, launch.buffers_start)
            raise
        finally:
            self.steps += machine.steps
            new = [each for name, each in machine.taken.items() if name not in self.taken]
            self.taken |= {each.rule.name: each for each in new}
            warn_of(new)
        if machine.verdict is not None:
            self.verdicts.append(machine.verdict)
            if machine.verdict.witness is not None:
                raise BrokenSchedule(machine.verdict)

    @property
    def capability(self) -> Capability:
        """What it has."""
        return CAPABILITIES[self.arch]

    def of_thread(self) -> EmulatedGpu:
        """The GPU that the calling thread launches on: this one."""
        return self

    def select(self, device: Any) -> None:
        """Let the calling thread launch on another device, as ``torch.cuda.set_device`` does."""
        if self.peers is not None:
            self.peers.select(getattr(device, "index", device))

    def break_at(self, place: str, callback: Callable[[Stop], None]) -> Breakpoint:
        """Call `callback` whenever warps come to a line: with what their block's memories hold.

        Args:
            place: ``kernel.py:31``; the file by its name, or the end of its path.

        Returns:
            The breakpoint, which counts its hits. `emulate` warns of one that was never hit.

        Raises:
            LaunchError: not a file and a line.
        """
        found = Breakpoint.at(place, callback)
        if self._breakpoints is None:
            self._breakpoints = Breakpoints()
        self._breakpoints.all.append(found)
        return found

    def missed_breakpoints(self) -> list[str]:
        """Why each breakpoint that was never hit was not; each is told of once."""
        return [] if self._breakpoints is None else self._breakpoints.missed()

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
            asked = (
                "no kernel was launched" if self.clock else "emulate(..., time=...) was not given"
            )
            raise LaunchError(f"there is no timeline: {asked}")
        return self.timelines[-1]

    @property
    def seconds(self) -> float | None:
        """What all launches so far would take, one after the other; None without a `clock`."""
        return None if self.clock is None else self.clock.seconds

    def program(self, ptx: str, kernel: str | None = None) -> Program:
        """A decoded kernel of a PTX module, or its only one; decoded once."""
        return _decoded(ptx, kernel)


@functools.lru_cache(maxsize=256)
def _decoded(ptx: str, kernel: str | None) -> Program:
    return decode(parse_ptx(ptx), kernel)


class _Flattened:
    """The arguments of a launch, one for each parameter of the PTX kernel."""

    def __init__(self, tensor_maps: Sequence[Any] | None) -> None:
        self.values: list[Any] = []
        self.names: list[str] = []
        self.memory = GlobalMemory(Reachable(self.values))
        self._maps = iter(tensor_maps) if tensor_maps else None

    def add(self, name: str, value: Any, kind: Any) -> None:
        """Append an argument; `kind` is its type in Triton's signature."""
        self._add(name, value, kind)
        self.names += [name] * (len(self.values) - len(self.names))

    def _add(self, name: str, value: Any, kind: Any) -> None:
        if kind == "constexpr":
            return
        if isinstance(kind, tuple):
            for each, its_kind in zip(value, kind, strict=True):
                self._add(name, each, its_kind)
        elif kind.startswith("tensordesc"):
            self._descriptor(name, value)
        elif kind.startswith("*"):
            given = isinstance(value, int)
            pointer = value if given else self._pointer(name, value).to_bytes(8, "little")
            self.values.append(pointer)
        elif kind in _FLOATS:
            self.values.append(np.asarray(value).astype(_FLOATS[kind]).tobytes())
        else:
            self.values.append(int(value))

    def _pointer(self, name: str, value: Any) -> int:
        if value is None:
            return 0
        tensor = getattr(value, "base", value)  # Triton's reinterpreted tensors have a base
        if hasattr(tensor, "untyped_storage"):
            memory = allocation(tensor, f"argument {name}")
            assert memory is not None
            self.memory.add(memory)
            if not current_gpu().check_views:
                data = tensor.untyped_storage()
                start, size = data.data_ptr(), data.nbytes()
                self.memory.add(Allocation(start, size, host_bytes(start, size), owner=data))
        return int(value.data_ptr())

    def _descriptor(self, name: str, value: Any) -> None:
        """A host-side TensorDescriptor: the map, or its parts, then the shape and the strides."""
        shape, strides = [int(n) for n in value.shape], [int(n) for n in value.strides]
        if self._maps is None:
            self.values.append(self._pointer(name, value.base).to_bytes(8, "little"))
            round_tf32 = getattr(value, "round_f32_to_tf32", False)
            self.values += [*shape, *strides, int(value.padding == "nan"), int(round_tf32)]
        else:
            self.values.append(self._map(name, value, next(self._maps)))
        self.values += [*shape, *strides]

    def _map(self, name: str, value: Any, meta: dict[str, Any]) -> TensorMap | Im2colMap:
        shape = [int(n) for n in value.shape]
        if meta["fp4_padded"]:
            shape[-1] *= 2
        code = int(meta["elem_type"])
        kind = _TRITON_TYPES.get(code, DataType(code))
        if getattr(value, "round_f32_to_tf32", False):
            kind = DataType.TFLOAT32
        box = tuple(int(n) for n in reversed(meta["block_size"]))
        im2col, pixels, steps = bool(meta.get("is_im2col")), 0, ()
        if im2col:
            (channels, pixels), steps = box, tuple(reversed(value.element_strides or ()))
            box = (channels, *(1 for _ in shape[1:]))
        tensor = TensorMap(
            kind,
            tuple(reversed(shape)),
            tuple(int(n) * meta["elem_size"] for n in reversed(value.strides[:-1])),
            box,
            steps,
            swizzle=_SWIZZLES[meta["swizzle"]],
            oob_fill=OobFill.NAN_REQUEST_ZERO_FMA if value.padding == "nan" else OobFill.NONE,
            global_address=self._pointer(name, value.base),
        )
        if not im2col:
            return tensor
        corners = (value.pixel_box_lower_corner, value.pixel_box_upper_corner)
        low, high = (tuple(reversed(each)) for each in corners)
        return Im2colMap(tensor, low, high, pixels)


@functools.lru_cache(maxsize=1024)
def _cached(name: str, key: str) -> tuple[str, bytes, Path | None]:
    """The PTX that Triton keeps beside the cubin, the cubin, and the TTGIR's file.

    The key names what it was compiled from.

    Triton makes the launcher of a kernel again and again, as there is no module: see `load_binary`.
    """
    from triton.runtime.cache import get_cache_manager

    manager = get_cache_manager(key)
    group = manager.get_group(f"{name[:150]}.json") or {}
    kept = {Path(file).suffix: Path(path) for file, path in group.items()}
    if ".ptx" in kept:
        return kept[".ptx"].read_text(), kept[".cubin"].read_bytes(), kept.get(".ttgir")
    raise LaunchError(f"Triton's cache has no PTX of {name}; is its cache directory gone?")


class _Launcher:
    """What Triton calls for each launch of a compiled kernel."""

    def __init__(self, src: Any, metadata: Any) -> None:
        self._signature = [(str(name), kind) for name, kind in src.signature.items()]
        self._metadata = metadata
        self._maps = getattr(metadata, "tensordesc_meta", None)
        ptx, self._cubin, self._ttgir = _cached(str(src.name), metadata.hash)
        kernel = getattr(src, "fn", None)  # none, if it was compiled from IR
        self._ptx = as_loaded(ptx, kernel.fn.__code__.co_filename) if kernel else ptx

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
        gpu = current_gpu()
        if gpu.idle:
            gpu.launches += 1
            return
        metadata, program = self._metadata, gpu.program(self._ptx)
        flat = _Flattened(self._maps)
        for value, (name, kind) in zip(args, self._signature, strict=True):
            flat.add(name, value, kind)
        for name in ("global_scratch", "profile_scratch"):
            if len(flat.values) < len(program.parameters):
                flat.values.append(self._scratch(name, blocks))
                flat.names.append(name)
        if enter_hook is not None:
            enter_hook(launch_metadata)
        launch = functools.partial(
            gpu.launch,
            program,
            grid=(grid_x * metadata.num_ctas, grid_y, grid_z),
            cluster=(metadata.num_ctas, 1, 1) if metadata.num_ctas > 1 else None,
            args=flat.values,
            dynamic_smem_bytes=metadata.shared,
            memory=flat.memory,
            names=flat.names,
            cubin=self._cubin,
            ttgir=self._ttgir,
        )
        graph = captured()
        launch() if graph is None else graph.note(launch)
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


class _Entered:
    """The emulated GPUs that are entered now, in whatever order threads enter and leave them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[tuple[int, EmulatedGpu | EmulatedGpus]] = []
        self._restore = contextlib.ExitStack()

    def current(self) -> EmulatedGpu | None:
        """The one that this thread entered last; else the last of any thread, for threads that a
        program starts inside of its ``with``."""
        entered, own = self._all, threading.get_ident()
        mine = [gpu for thread, gpu in entered if thread == own]
        every = mine or [gpu for _, gpu in entered]
        found: EmulatedGpu | None = every[-1].of_thread() if every else None
        return found

    @contextlib.contextmanager
    def __call__(self, gpu: EmulatedGpu | EmulatedGpus) -> Iterator[None]:
        """Within it `gpu` is entered. The first one installs the driver, the last one leaves it."""
        entry = threading.get_ident(), gpu
        with self._lock:
            if not self._all:
                config, emulated = triton_driver(), _driver()
                self._restore.callback(config.set_active, config._active)
                self._restore.enter_context(wrong_architecture.refused())
                config.set_active(emulated)
            self._all = [*self._all, entry]
        try:
            yield
        finally:
            with self._lock:
                self._all = [each for each in self._all if each is not entry]
                if not self._all:
                    self._restore.close()


_entered = _Entered()


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

        def launcher_cls(self, src: Any, metadata: Any) -> _Launcher:
            return _Launcher(src, metadata)

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


def active_gpu() -> EmulatedGpu | None:
    """The emulated GPU that this thread's Triton kernels run on now, or None."""
    return _entered.current() if isinstance(triton_driver()._active, _Emulated) else None


def current_gpu() -> EmulatedGpu:
    """As `active_gpu`.

    Raises:
        LaunchError: none is active.
    """
    gpu = _entered.current()
    if gpu is None:
        raise LaunchError("no emulated GPU is active: `with triton_ext.emulate(...)` is left")
    return gpu


def emulated_gpus(
    arch: Any,
    *,
    devices: int | None = None,
    time: Any = None,
    values: bool = True,
    max_steps: int = MAX_STEPS,
    timeout: float | None = None,
    **settings: Any,
) -> list[EmulatedGpu]:
    """The GPUs that `emulate` enters, of its arguments; `settings` are those of `EmulatedGpu`.

    Raises:
        LayoutError, LaunchError: see `emulate`.
    """
    limits, arch = Limits(max_steps, timeout), target_number(arch)
    schedule = settings.get("schedule", "eager")
    clock = None if time in (None, False) else clock_of(time, arch, values)
    if clock is not None and schedule != "eager":
        raise LaunchError(f"schedule {schedule!r}: time is predicted with the eager schedule alone")
    if clock is None and not values:
        raise LaunchError("values=False is for predicting time: give time=, too")
    if devices is not None and not (type(devices) is int and 1 <= devices <= MAX_DEVICES):
        raise LaunchError(f"devices = {devices!r}: must be in [1, {MAX_DEVICES}]")
    if devices is not None and clock is not None:
        raise LaunchError("time is predicted of one GPU: leave devices= out")
    others = {"devices=": devices is not None, "time=": clock}
    check_schedules(schedule, settings.get("schedules"), others, settings.get("explain_wait"))
    if not isinstance(schedule, Path):
        Schedule(schedule, settings.get("seed", 0))
    return [
        EmulatedGpu(arch, limits=limits, clock=clock, device=device, **settings)
        for device in range(devices or 1)
    ]


@overload
def emulate(
    arch: Any = "sm_100", *, devices: int, **options: Any
) -> contextlib.AbstractContextManager[EmulatedGpus]: ...


@overload
def emulate(
    arch: Any = "sm_100", **options: Any
) -> contextlib.AbstractContextManager[EmulatedGpu]: ...


@contextlib.contextmanager  # type: ignore[misc]  # which options there are, only the next lines say
def emulate(
    arch: Any = "sm_100",
    *,
    devices: int | None = None,
    schedule: str | Path = "eager",
    schedules: str | None = None,
    explain_wait: str | None = None,
    seed: int = 0,
    observer: Observer | None = None,
    cuda_on_host: bool = False,
    idle: bool = False,
    buffers: Sequence[Any] = (),
    max_steps: int = MAX_STEPS,
    timeout: float | None = None,
    check_layouts: bool = True,
    check_races: bool = True,
    check_empty: bool = False,
    check_views: bool = True,
    strict: bool = False,
    check_unread: bool = False,
    time: Any = None,
    values: bool = True,
) -> Iterator[Any]:
    """Make an emulated GPU the one that Triton and Gluon kernels run on.

    Kernels are compiled by the real compiler for the target, and work on CPU tensors. A kernel
    reaches the memory that its arguments span, and that of tensors whose addresses lie in it.
    Emulated GPUs may be nested, and threads may each have their own. Yields the `EmulatedGpu`, or
    with `devices` the `EmulatedGpus`.

    Args:
        arch: "sm_90", "sm_100" or another one of `triton_ext.hardware.architecture.CAPABILITIES`.
        devices: so many GPUs, that reach each other's memory: see `EmulatedGpus`. None for one.
        schedule: when asynchronous work is done: "eager", "lazy" or "random"; or the path of a
            file: the schedule of a witness, which one launch follows.
        schedules: "all": run each launch once, and say what that tells of every schedule: see
            `EmulatedGpu.verdicts`. One that breaks the kernel is raised (`BrokenSchedule`). Needs
            the eager schedule, and one GPU.
        explain_wait: a line, ``kernel.py:31``: with schedules="all", the verdict of each launch
            that has waits there says what they tell, and which of the kernel's waits and fences are
            redundant.
        seed: the random schedule's.
        observer: told of what happens, such as a `Trace` or `Statistics`.
        cuda_on_host: let torch code that says ``device="cuda"`` work, on the host's memory.
        idle: compile the kernels that are launched, but run none: outputs stay as they were.
        buffers: tensors and arrays that every kernel may reach, besides.
        max_steps, timeout: instructions, and seconds, after which a launch ends in `LimitReached`:
            see `triton_ext.emulator.run_ptx`.
        check_layouts: what TMA has written must be read in the same layout: see `run_ptx`, too.
        check_races: accesses to global memory must be ordered: see there.
        check_empty: memory of ``torch.empty`` and its like, made within the block, must be written
            before a kernel reads it (`UninitializedRead`); needs `check_races`. Off by default:
            many programs read rows of padding, and drop the result.
        check_views: a launch reaches the elements of the tensors that it is given, and not what
            else is in their storage. Off for kernels that use the padding behind a view.
        strict: what is undefined by the letter, and relied on by published kernels, is a fault, in
            place of a warning: see `run_ptx`, too.
        check_unread: what TMA brings must be read before another copy overwrites it: see there.
        time: a GPU ("H200", "H100"; "B200" for sm_100; True for the first of them; there are none
            of other architectures) or a `triton_ext.timeline.gpus.Gpu`: predict what each launch
            would take there: see `EmulatedGpu.timeline` and `EmulatedGpu.seconds`. Needs the eager
            schedule.
        values: False if time alone is asked for: of a kernel whose blocks do not talk to each
            other only those are run that are recorded, and the products of wgmma are left out;
            outputs are garbage then.

    Raises:
        LayoutError: an architecture or a GPU that is not known.
        LaunchError: another schedule, or an illegal limit or buffer.
    """
    from triton_ext.emulator.host.torch_cuda import MarkedEmpty, Redirected, cuda_on_the_host

    end_quietly()
    gpus = emulated_gpus(
        arch, devices=devices, schedule=schedule, schedules=schedules,
        explain_wait=explain_wait, seed=seed, observer=observer, idle=idle, buffers=buffers,
        max_steps=max_steps, timeout=timeout,
        check_layouts=check_layouts, check_races=check_races, check_empty=check_empty,
        check_views=check_views, strict=strict, check_unread=check_unread, time=time,
        values=values,
    )  # fmt: skip
    order = Schedule("eager" if isinstance(schedule, Path) else schedule, seed)

    def modes() -> contextlib.ExitStack:
        """What each thread enters for itself."""
        stack = contextlib.ExitStack()
        if cuda_on_host:
            stack.enter_context(Redirected())
        if check_empty:
            stack.enter_context(MarkedEmpty())
        return stack

    gpu: EmulatedGpu | EmulatedGpus = gpus[0]
    if devices is not None:
        gpu = EmulatedGpus(gpus, order, modes)
        for each in gpus:
            each.peers = gpu
    register_buffers(GlobalMemory(), buffers)
    with (
        _entered(gpu),
        cuda_on_the_host(current_gpu) if cuda_on_host else contextlib.nullcontext(),
        MarkedEmpty() if check_empty else contextlib.nullcontext(),
        contextlib.nullcontext() if devices is None else compiling_in_turn(),
        trimmed(),
    ):
        yield gpu
    for each in gpus:
        for text in each.missed_breakpoints():
            warnings.warn(text, stacklevel=3)  # at the program's `with`
