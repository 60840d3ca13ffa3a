"""Scripts of NVIDIA's CuTe DSL on the emulated GPU, unmodified.

The DSL compiles host code, too: it makes the tensor maps and the parameters, and calls C functions
of the DSL's runtime library. Here a library with those functions is put before the DSL's own one;
it hands the calls to Python. The PTX is what the DSL keeps of its compiler, and for the DSL's own
questions some functions of ``cuda.bindings`` are replaced. A process has one architecture: the DSL
asks once.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.util
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from triton_ext.emulator.errors import LaunchError
from triton_ext.emulator.host.counting import Event
from triton_ext.emulator.host.reachable import Reachable
from triton_ext.emulator.host.tvm_ffi import on_device
from triton_ext.emulator.state.memory import GlobalMemory
from triton_ext.hardware.architecture import compiled_for

ALIGNMENT = 256
"""Bytes: of memory that ``cudaMalloc`` gives (CUDA C++ Programming Guide)."""
_CUDA = 2
"""A CUDA device's number in DLPack."""
_LAUNCH_FAILURE = 719
_SHARED_MEMORY_OPTIN = 97
"""``cudaErrorLaunchFailure``; ``cudaDevAttrMaxSharedMemoryPerBlockOptin``."""
_STATUS = "CUDADialectError"
"""The kind of error that a function of tvm-ffi raises when CUDA returns a status."""
_CLUSTER_DIMENSION = 4
"""``cudaLaunchAttributeClusterDimension``."""

_FUNCTIONS = {
    "_cudaLibraryLoadData": 8, "_cudaLibraryGetKernel": 3, "_cudaLaunchKernelEx": 3,
    "_cudaGetDevice": 1, "_cudaGetDeviceCount": 1, "_cudaDeviceGetAttribute": 3,
    "_cuKernelGetAttribute": 4, "_cudaFuncSetAttribute": 3,
    "_cudaKernelSetAttributeForDevice": 4, "_cudaSetDevice": 1,
    "cuda_dialect_init_library_once": 4, "cuda_dialect_unload_library_once": 1,
    "_cudaMemsetAsync": 4, "_cudaMemcpyAsync": 5,
}  # fmt: skip
"""The functions of the DSL's runtime library that its host code calls, and their parameters."""


class _Attribute(ctypes.Structure):
    """``cudaLaunchAttribute``."""

    _fields_ = (("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_uint * 16))


class _Configuration(ctypes.Structure):
    """``cudaLaunchConfig_t``."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint64),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)),
        ("number", ctypes.c_uint),
    )  # fmt: skip


def _stub(name: str) -> str:
    """The C function of that name: it calls what a variable points at."""
    number = range(_FUNCTIONS[name])
    types, names = ", ".join("void *" for _ in number), ", ".join(f"x{i}" for i in number)
    parameters = ", ".join(f"void *x{i}" for i in number)
    hook = f"int (*hook{name})({types});"
    return f"{hook} int {name}({parameters}) {{ return hook{name}({names}); }}"


@functools.cache
def _library() -> tuple[Any, Path] | None:
    """The library's folder, which lives as long as the process, and its file; None if there is no C
    compiler."""
    folder = tempfile.TemporaryDirectory()
    source, library = (Path(folder.name) / name for name in ("runtime.c", "runtime.so"))
    source.write_text("\n".join(map(_stub, _FUNCTIONS)))
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None:
        return None
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(library), str(source)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return None if done.returncode else (folder, library)


class _Runtime:
    """The functions of the DSL's runtime library, each with its C parameters as addresses."""

    def __init__(
        self,
        current: Callable[[], Any],
        library: Path,
        folder: Path,
        patches: contextlib.ExitStack,
    ) -> None:
        self._current, self._folder, self._patches = current, folder, patches
        self._error: BaseException | None = None
        loaded = ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
        self._calls = []
        for name, count in _FUNCTIONS.items():
            made = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * count)(self._caught(name))
            self._calls.append(made)
            address = ctypes.cast(made, ctypes.c_void_p).value
            ctypes.c_void_p.in_dll(loaded, f"hook{name}").value = address

    def _caught(self, name: str) -> Callable[..., int]:
        call = getattr(self, name)

        def caught(*arguments: Any) -> int:
            try:
                return call(*arguments) or 0
            except BaseException as error:
                self._error = error
                return _LAUNCH_FAILURE

        return caught

    def _raising(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """The DSL's call of compiled host code; it raises what was raised here, not a status."""

        def raising(*arguments: Any) -> Any:
            self._error = None
            try:
                return run(*arguments)
            except Exception:
                if self._error is not None:
                    raise self._error from None
                raise

        return raising

    def raise_own(self) -> None:
        """Let the DSL, and tvm-ffi, raise what was raised here, as far as they are imported."""
        jit = sys.modules.get("cutlass.base_dsl.jit_executor")
        if jit and jit.JitExecutor.run_compiled_program.__qualname__.startswith("JitExecutor"):
            raising = self._raising(jit.JitExecutor.run_compiled_program)
            self._patches.enter_context(
                mock.patch.object(jit.JitExecutor, "run_compiled_program", raising)
            )
        kinds = getattr(sys.modules.get("tvm_ffi.core"), "ERROR_NAME_TO_TYPE", {})
        if (own := kinds.get(_STATUS)) is not None and own.__module__ != __name__:
            raised = type(_STATUS, (), {"__new__": lambda _, text: self._taken() or own(text)})
            self._patches.enter_context(mock.patch.dict(kinds, {_STATUS: raised}))

    def _taken(self) -> BaseException | None:
        """What was raised here since the last time."""
        error, self._error = self._error, None
        return error

    def _cudaLibraryLoadData(self, library: int, *_: Any) -> None:
        ctypes.c_void_p.from_address(library).value = 1
        self.raise_own()

    def cuda_dialect_init_library_once(self, state: int, init: int, load: int, fail: int) -> int:
        held = ctypes.c_void_p.from_address(state)
        if not held.value:
            at = ctypes.byref(library := ctypes.c_void_p())
            pointer, number = ctypes.c_void_p, ctypes.c_int
            status: int = ctypes.CFUNCTYPE(number, pointer)(init)(at)
            status = status or ctypes.CFUNCTYPE(number, pointer, number)(load)(at, 0)
            if status:
                told = f"CUDA Error Code: {status}".encode()
                ctypes.CFUNCTYPE(None, *[ctypes.c_char_p] * 2)(fail)(_STATUS.encode(), told)
                return status
            held.value = library.value
        return 0

    def _cudaLibraryGetKernel(self, kernel: int, library: int, name: int) -> None:
        called = ctypes.string_at(name).decode()
        entry = re.compile(rf"\.entry\s+{re.escape(called)}\s*\(")
        newest = sorted(self._folder.rglob("*.ptx"), key=lambda file: -file.stat().st_mtime_ns)
        ptx = next((text for text in map(Path.read_text, newest) if entry.search(text)), None)
        if ptx is None:
            raise LaunchError(f"the DSL has kept no PTX of {called}")
        _kernels.append((called, ptx))
        ctypes.c_void_p.from_address(kernel).value = len(_kernels)

    def _cudaGetDevice(self, device: int) -> None:
        ctypes.c_int.from_address(device).value = 0

    def _cudaGetDeviceCount(self, count: int) -> None:
        ctypes.c_int.from_address(count).value = 1

    def _cudaDeviceGetAttribute(self, value: int, attribute: int, device: int) -> None:
        if attribute != _SHARED_MEMORY_OPTIN:
            raise LaunchError(f"cudaDeviceGetAttribute({attribute}) is not modelled")
        ctypes.c_int.from_address(value).value = self._current().capability.shared_memory_per_block

    def _cuKernelGetAttribute(self, value: int, *_: Any) -> None:
        ctypes.c_int.from_address(value).value = 0  # static shared memory: the PTX says it

    def _nothing(self, *_: Any) -> None:
        """What it allows is allowed; there is one device; nothing is held."""

    _cudaFuncSetAttribute = _cudaKernelSetAttributeForDevice = _cudaSetDevice = _nothing
    cuda_dialect_unload_library_once = _nothing

    def _cudaMemsetAsync(self, to: int, value: int, size: int, _: Any) -> None:
        ctypes.memset(to, value or 0, size or 0)

    def _cudaMemcpyAsync(self, to: int, source: int, size: int, *_: Any) -> None:
        ctypes.memmove(to, source, size or 0)

    def _cudaLaunchKernelEx(self, configuration: int, kernel: int, arguments: int) -> None:
        gpu, told = self._current(), _Configuration.from_address(configuration)
        name, ptx = _kernels[kernel - 1]
        program = gpu.program(ptx, name)
        if program.arch != gpu.arch:
            raise LaunchError(
                f"{name} is compiled for sm_{program.arch}: the CuTe DSL keeps to the first"
                f" architecture of a process, and this one is sm_{gpu.arch}"
            )
        attributes = [told.attributes[i] for i in range(told.number)]
        cluster = [tuple(each.value[:3]) for each in attributes if each.id == _CLUSTER_DIMENSION]
        values: list[bytes] = []
        words: list[int] = []
        pointers = ctypes.cast(arguments, ctypes.POINTER(ctypes.c_void_p))
        for number, symbol in enumerate(program.parameters):
            data = ctypes.string_at(pointers[number] or 0, symbol.variable.bytes)
            words += struct.unpack(f"<{len(data) // 8}Q", data[: len(data) // 8 * 8])
            values.append(data)
        gpu.launch(
            program, grid=tuple(told.grid), cluster=cluster[0] if cluster else None, args=values,
            block=tuple(told.block), dynamic_smem_bytes=told.shared,
            memory=GlobalMemory(Reachable(words)),
            names=[symbol.name for symbol in program.parameters],
        )  # fmt: skip


def _answers(current: Callable[[], Any]) -> Iterator[tuple[Any, str, Any]]:
    """The functions of ``cuda.bindings`` that the DSL and its examples call, and stand-ins."""
    driver = importlib.import_module("cuda.bindings.driver")
    runtime = importlib.import_module("cuda.bindings.runtime")

    def attribute(which: Any, device: Any) -> tuple[Any, int]:
        name, arch = which.name.removeprefix("CU_DEVICE_ATTRIBUTE_"), current().arch
        return done, {
            "COMPUTE_CAPABILITY_MAJOR": arch // 10,
            "COMPUTE_CAPABILITY_MINOR": arch % 10,
            "MULTIPROCESSOR_COUNT": current().capability.multiprocessors,
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": current().capability.shared_memory_per_block,
            "L2_CACHE_SIZE": 50 << 20,
        }[name]

    def clusters(function: Any, configuration: Any) -> tuple[Any, int]:
        (each,) = configuration.attrs
        return done, max(1, current().capability.multiprocessors // each.value.clusterDim.x)

    def record(event: Any, *_: Any) -> tuple[Any]:
        event.record()
        return (done,)

    done, good = driver.CUresult.CUDA_SUCCESS, runtime.cudaError_t.cudaSuccess
    calls: dict[str, Any] = {
        "cuDeviceGetAttribute": attribute,
        "cuOccupancyMaxActiveClusters": clusters,
        "cuEventCreate": lambda *_: (done, Event(current())),
        "cuEventRecord": record,
        "cuEventElapsedTime": lambda begin, end: (done, begin.elapsed_time(end)),
    }
    values = {
        "cuDeviceGetCount": 1, "cuDeviceGet": driver.CUdevice(0),
        "cuCtxGetDevice": driver.CUdevice(0), "cuCtxGetCurrent": driver.CUcontext(1),
        "cuDevicePrimaryCtxRetain": driver.CUcontext(1), "cuDriverGetVersion": 13000,
        "cuDeviceGetName": b"emulated", "cuDeviceTotalMem": 64 << 30,
        "cuStreamCreate": driver.CUstream(0), "cuLibraryLoadData": driver.CUlibrary(1),
        "cuLibraryEnumerateKernels": [driver.CUkernel(1)],
        "cuKernelGetFunction": driver.CUfunction(1),
        "cuOccupancyAvailableDynamicSMemPerBlock": current().capability.shared_memory_per_block,
        "cuOccupancyMaxActiveBlocksPerMultiprocessor": 1,
    }  # fmt: skip
    calls |= {name: lambda *_, value=value: (done, value) for name, value in values.items()}
    calls |= dict.fromkeys(
        ("cuInit", "cuCtxSetCurrent", "cuCtxSynchronize", "cuStreamSynchronize", "cuStreamDestroy",
         "cuEventSynchronize", "cuEventDestroy", "cuFuncSetAttribute"), lambda *_: (done,),
    )  # fmt: skip
    yield from ((driver, name, call) for name, call in calls.items())
    for name in ("cudaGetDeviceCount", "cudaGetDevice"):
        yield runtime, name, lambda *_, value=int("Count" in name): (good, value)
    for name in ("cudaLibraryUnload", "cudaStreamSynchronize", "cudaDeviceSynchronize",
                 "cudaGetLastError", "cudaSetDevice"):  # fmt: skip
        yield runtime, name, lambda *_: (good,)


_kernels: list[tuple[str, str]] = []
"""Name and PTX of each kernel that was loaded: compiled functions outlive the emulated GPU."""
_runtimes: list[_Runtime] = []
"""All that there were: kernels that the DSL has compiled may still call them."""


def as_on_device(result: Any, function: Any, arguments: tuple[Any, ...]) -> Any:
    """What a function of torch returns, as a CUDA device would have it, for the DSL.

    New tensors begin at multiples of `ALIGNMENT`; in DLPack they say that they are on the device.
    """
    import torch

    if function is torch.Tensor.__dlpack__:
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        tensor = pointer(result, b"dltensor")  # DLTensor: the data's address, then the device
        ctypes.c_int32.from_address(tensor + 8).value = _CUDA
    if isinstance(result, tuple) and any(isinstance(each, torch.Tensor) for each in result):
        return type(result)([as_on_device(each, function, arguments) for each in result])
    if (
        type(result) is not torch.Tensor or result.layout != torch.strided or result.requires_grad
        or result._base is not None or not result.data_ptr() % ALIGNMENT
        or result.storage_offset() or any(result is each for each in arguments)
    ):  # fmt: skip
        return result
    size = result.untyped_storage().nbytes()
    room = torch.empty(size + ALIGNMENT, dtype=torch.uint8).untyped_storage()
    start = -room.data_ptr() % ALIGNMENT
    aligned = torch.empty(0, dtype=result.dtype).set_(
        room, start // result.element_size(), result.shape, result.stride()
    )
    return aligned.copy_(result)


@contextlib.contextmanager
def cute_dsl(current: Callable[[], Any]) -> Iterator[None]:
    """Within it, kernels of the CuTe DSL run on the emulated GPU, where the DSL is installed, and a
    C compiler.

    Args:
        current: the `EmulatedGpu` of the calling thread.
    """
    found = importlib.util.find_spec("nvidia_cutlass_dsl")
    built = _library() if found is not None else None
    if found is None or found.submodule_search_locations is None or built is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        folder = built[1].parent  # of the process, as the DSL asks once where to keep PTX
        _runtimes.append(_Runtime(current, built[1], folder, stack))
        _runtimes[-1].raise_own()
        home = Path(next(iter(found.submodule_search_locations)))
        own = sorted(home.glob("cu*/lib/libcute_dsl_runtime.so"))[-1:]
        libraries = os.pathsep.join(map(str, [built[1], *own]))
        environment = {
            "CUTE_DSL_ARCH": str(compiled_for(current().arch)), "CUTE_DSL_KEEP": "ptx",
            "CUTE_DSL_DUMP_DIR": str(folder), "CUTE_DSL_LINEINFO": "1", "CUTE_DSL_LIBS": libraries,
            "QUACK_CACHE_ENABLED": "0",  # what it keeps on disk is without PTX
        }  # fmt: skip
        stack.enter_context(mock.patch.dict(os.environ, environment))
        for module, name, answer in _answers(current):
            stack.enter_context(mock.patch.object(module, name, answer))
        stack.enter_context(on_device())
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "Cache is disabled as user wants to generate PTX")
        yield
