"""torch code that says ``device="cuda"``, on the host's memory: for scripts that are unmodified."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from triton_ext.emulator.host.blas import cublas_on_the_host
from triton_ext.emulator.host.counting import Event, benchmarks_count
from triton_ext.emulator.host.cuda.attributes import VERSION
from triton_ext.emulator.host.cuda_graphs import CUDAGraph, call, captured, graph
from triton_ext.emulator.host.cute_dsl import as_on_device, cute_dsl
from triton_ext.emulator.state.memory import EMPTY, host_bytes
from triton_ext.hardware.architecture import CAPABILITIES, WARP_THREADS

_HOST = torch.device("cpu")
_IS_CUDA: Any = vars(torch.Tensor.__base__)["is_cuda"].__get__


def _on_host(value: Any) -> Any:
    """A device that means CUDA -> the host; anything else as it is."""
    if isinstance(value, torch.device) and value.type == "cuda":
        return _HOST
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return _HOST
    return value


_HISTOGRAMS = (torch.histc, torch.Tensor.histc)


class Redirected(TorchFunctionMode):
    """Sends what the calling thread asks for on a CUDA device to the host."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        if func == _IS_CUDA:
            return True
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        kwargs = {key: _on_host(value) for key, value in (kwargs or {}).items()}
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        if isinstance(kwargs.get("device"), int):  # a CUDA device by its number
            kwargs["device"] = _HOST
        args = tuple(_on_host(value) for value in args)
        if func in _HISTOGRAMS and not args[0].is_floating_point():  # the host has none of integers
            return func(args[0].double(), *args[1:], **kwargs).to(args[0].dtype)
        graph = captured()
        result = func(*args, **kwargs) if graph is None else call(graph, func, args, kwargs)
        return as_on_device(result, func, args) if "cutlass" in sys.modules else result


def _redirected(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function in which `Redirected` is on, whoever calls it."""

    @functools.wraps(function)
    def within(*args: Any, **options: Any) -> Any:
        with Redirected():
            return function(*args, **options)

    return within


def _start_redirected(start: Callable[[threading.Thread], None]) -> Callable[..., None]:
    """``threading.Thread.start``, for threads in which `Redirected` is on, too."""

    @functools.wraps(start)
    def redirected(thread: threading.Thread) -> None:
        thread.run = _redirected(thread.run)  # type: ignore[method-assign]
        start(thread)

    return redirected


def _registered_on_host(register: Callable[..., Any]) -> Callable[..., Any]:
    """``CustomOpDef.register_kernel``, which takes CUDA's kernels for the host's."""

    @functools.wraps(register)
    def registered(operator: Any, types: Any, function: Any = None) -> Any:
        if function is None:
            return functools.partial(registered, operator, types)
        types = [types] if isinstance(types, str) else types
        types = types and [str(_on_host(each)) for each in types]
        return register(operator, types, _redirected(function))

    return registered


_EMPTY = (
    torch.empty, torch.empty_like, torch.empty_strided, torch.empty_permuted,
    torch.Tensor.new_empty, torch.Tensor.new_empty_strided,
)  # fmt: skip


class MarkedEmpty(TorchFunctionMode):
    """Within it, memory that torch leaves uninitialized holds `EMPTY`."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _EMPTY and result.device.type == "cpu":
            storage = result.untyped_storage()
            data = host_bytes(storage.data_ptr(), storage.nbytes())
            data[:] = np.resize(EMPTY, len(data))
        return result


class _Stream:
    """Everything is done when a launch returns."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def wait_stream(self, other: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def record_event(self, event: Any = None) -> Any:
        make: Any = torch.cuda.Event
        event = make() if event is None else event
        event.record()
        return event

    def query(self) -> bool:
        return True

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def _properties(arch: int) -> SimpleNamespace:
    has = CAPABILITIES[arch]
    return SimpleNamespace(
        name=f"emulated sm_{arch}",
        major=arch // 10,
        minor=arch % 10,
        multi_processor_count=has.multiprocessors,
        warp_size=WARP_THREADS,
        total_memory=64 << 30,
        shared_memory_per_block_optin=has.shared_memory_per_block,
        shared_memory_per_block=48 << 10,
        shared_memory_per_multiprocessor=has.shared_memory_per_sm,
        regs_per_multiprocessor=1 << 16,
        max_threads_per_multi_processor=has.threads_per_sm,
        max_threads_per_block=1024,
        L2_cache_size=50 << 20,
    )


_lock = threading.Lock()
_users = 0
_patches = contextlib.ExitStack()


@contextlib.contextmanager
def cuda_on_the_host(current: Callable[[], Any]) -> Iterator[None]:
    """Within it, torch's CUDA device is the host, and looks like one emulated GPU.

    Of several that overlap, in whatever order they end, the last one puts torch's own back.

    Args:
        current: the `EmulatedGpu` of the calling thread.
    """
    global _users
    stand_ins: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1 if current().peers is None else len(current().peers.gpus),
        "current_device": lambda: current().device,
        "set_device": lambda device: current().select(device),
        "get_device_capability": lambda device=None: divmod(current().arch, 10),
        "get_device_properties": lambda device=None: _properties(current().arch),
        "get_device_name": lambda device=None: _properties(current().arch).name,
        "synchronize": lambda device=None: None,
        "current_stream": lambda device=None: _Stream(),
        "default_stream": lambda device=None: _Stream(),
        "Stream": _Stream,
        "stream": lambda stream: contextlib.nullcontext(),
        "Event": lambda *args, **options: Event(current()),
        "CUDAGraph": CUDAGraph,
        "graph": graph,
        "graph_pool_handle": lambda: (0, 0),
        "is_current_stream_capturing": lambda: captured() is not None,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "is_bf16_supported": lambda including_emulation=True: True,
        "get_arch_list": lambda: [f"sm_{current().arch}"],
        "mem_get_info": lambda device=None: (64 << 30, 64 << 30),
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "memory_reserved": lambda device=None: 0,
        "reset_peak_memory_stats": lambda device=None: None,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "set_stream": lambda stream: None,
        "empty_cache": lambda: None,
        "device": lambda device=None: contextlib.nullcontext(),
        "manual_seed": torch.default_generator.manual_seed,
        "manual_seed_all": torch.default_generator.manual_seed,
    }
    with _lock:
        _users += 1
        if _users == 1:
            for name, stand_in in stand_ins.items():
                _patches.enter_context(mock.patch.object(torch.cuda, name, stand_in))
            release = f"{VERSION // 1000}.{VERSION % 1000 // 10}"
            _patches.enter_context(mock.patch.object(torch.version, "cuda", release))
            for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
                _patches.enter_context(mock.patch.object(torch.cuda.nvtx, name, return_value=0))
            # the module that torch has for the host's device, asked for as if it were torch.cuda
            _patches.enter_context(mock.patch.object(torch.cpu, "set_stream", create=True))
            start = _start_redirected(threading.Thread.start)
            _patches.enter_context(mock.patch.object(threading.Thread, "start", start))
            # torch leaves the mode while it runs a function, also one that runs Python's functions
            library, autograd = cast("Any", torch.library), cast("Any", torch.autograd)
            for owner, name, wrapper in (
                (library.CustomOpDef, "register_kernel", _registered_on_host),
                (autograd, "_engine_run_backward", _redirected),
            ):
                wrapped = wrapper(getattr(owner, name))
                _patches.enter_context(mock.patch.object(owner, name, wrapped))
            _patches.enter_context(benchmarks_count(current))
            _patches.enter_context(cublas_on_the_host())
            _patches.enter_context(cute_dsl(current))
    try:
        with Redirected():
            yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                _patches.close()
