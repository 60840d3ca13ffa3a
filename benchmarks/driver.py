"""Launches PTX on a real GPU through the CUDA driver alone (ctypes; no PyTorch, no Triton).

`run_on_gpu` takes what `triton_ext.emulator.run_ptx` takes, so that a case is one set of
arguments for both:

    out = np.zeros(32, np.float32)
    run_on_gpu(ptx, "kernel", grid=1, block=32, args=[x, out, 7])

Arguments, one for each parameter: numpy arrays (uploaded, and changed in place after the launch),
ints, floats (by the parameter's type), bytes (structures passed by value), `TensorMap` objects
(encoded by cuTensorMapEncodeTiled; their ``global_address`` is the address of a host array that is
an argument or in ``buffers``, or lies inside of one), and functions that are given
``address(array) -> int`` and return any of these, for structures with pointers in them.

A kernel that faults leaves the context unusable: run what may fault in a process of its own.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from triton_ext.hardware.tensor_map import TENSOR_MAP_ALIGNMENT, TENSOR_MAP_BYTES, TensorMap
from triton_ext.ptx.parse import Variable, parse_ptx

Address = Callable[[Any], int]

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_NON_PORTABLE_CLUSTER = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
_CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
_LOG_BYTES = 1 << 16


class GpuError(RuntimeError):
    """The driver refused a call, or the kernel faulted."""


class _LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: an id, and a value of 64 bytes, 8-aligned."""

    _fields_ = [
        ("id", ctypes.c_int),
        ("pad", ctypes.c_uint8 * 4),
        ("value", ctypes.c_uint32 * 16),
    ]


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_LaunchAttribute)),
        ("count", ctypes.c_uint),
    ]


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL("libcuda.so.1")
    library.cuGetErrorString.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
    return library


def call(name: str, *arguments: Any, detail: str = "") -> None:
    """Call a function of the driver.

    Raises:
        GpuError: it returns an error, which is named, with what `detail` says.
    """
    status = getattr(_library(), name)(*arguments)
    if status:
        text = ctypes.c_char_p()
        _library().cuGetErrorString(status, ctypes.byref(text))
        raise GpuError(f"{name}: {status} {(text.value or b'').decode()} {detail}".rstrip())


@functools.cache
def _context() -> ctypes.c_void_p:
    """The primary context of device 0, current in this thread."""
    call("cuInit", 0)
    device, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    return context


def device_info() -> dict[str, str]:
    """The GPU's name, compute capability, and the driver's CUDA version."""
    _context()
    name, version = ctypes.create_string_buffer(128), ctypes.c_int()
    call("cuDeviceGetName", name, 128, 0)
    call("cuDriverGetVersion", ctypes.byref(version))
    capability = []
    for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
        value = ctypes.c_int()
        call("cuDeviceGetAttribute", ctypes.byref(value), attribute, 0)
        capability.append(str(value.value))
    return {
        "gpu": name.value.decode(),
        "capability": ".".join(capability),
        "cuda_driver": f"{version.value // 1000}.{version.value % 1000 // 10}",
    }


@functools.lru_cache(maxsize=64)
def _module(ptx: str) -> ctypes.c_void_p:
    """A loaded module; a refusal says what the driver's compiler says."""
    _context()
    log = ctypes.create_string_buffer(_LOG_BYTES)
    options = (ctypes.c_int * 2)(5, 6)  # CU_JIT_ERROR_LOG_BUFFER, ..._SIZE_BYTES
    values = (ctypes.c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
    module = ctypes.c_void_p()
    try:
        call("cuModuleLoadDataEx", ctypes.byref(module), ptx.encode(), 2, options, values)
    except GpuError as error:
        raise GpuError(f"{error}\n{log.value.decode(errors='replace')}") from None
    return module


@functools.lru_cache(maxsize=1024)
def _function(ptx: str, kernel: str) -> ctypes.c_void_p:
    function = ctypes.c_void_p()
    call("cuModuleGetFunction", ctypes.byref(function), _module(ptx), kernel.encode())
    return function


@functools.lru_cache(maxsize=64)
def _parsed(ptx: str) -> dict[str, tuple[Variable, ...]]:
    return {
        kernel.name: kernel.variables[: len(kernel.parameters)]
        for kernel in parse_ptx(ptx).kernels
        if kernel.is_entry
    }


@contextmanager
def _uploaded(arrays: Sequence[np.ndarray[Any, Any]]) -> Iterator[Callable[[int], int]]:
    """Host arrays on the device, copied back at the end; yields host address -> device address."""
    _context()
    spans: dict[tuple[int, int], int] = {}
    try:
        for array in arrays:
            if not array.flags.c_contiguous:
                raise GpuError("an array argument must be contiguous")
            span = (array.ctypes.data, array.nbytes)
            if span in spans:
                continue
            pointer = ctypes.c_uint64()
            call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(array.nbytes, 1)))
            spans[span] = pointer.value
            call(
                "cuMemcpyHtoD_v2", pointer, ctypes.c_void_p(span[0]), ctypes.c_size_t(array.nbytes)
            )

        def translate(address: int) -> int:
            for (start, size), device in spans.items():
                if start <= address < start + max(size, 1):
                    return device + address - start
            raise GpuError(f"address {address:#x} lies in no array that is uploaded")

        yield translate
        for (start, size), device in spans.items():
            call(
                "cuMemcpyDtoH_v2",
                ctypes.c_void_p(start),
                ctypes.c_uint64(device),
                ctypes.c_size_t(size),
            )
    finally:
        for device in spans.values():
            _library().cuMemFree_v2(ctypes.c_uint64(device))


def encode_tensor_map(tensor_map: TensorMap, address: int) -> bytes:
    """The driver's encoding of a tensor map of device memory at `address`."""
    raw = (ctypes.c_uint8 * (TENSOR_MAP_BYTES + TENSOR_MAP_ALIGNMENT))()
    skip = -ctypes.addressof(raw) % TENSOR_MAP_ALIGNMENT
    encoded = (ctypes.c_uint8 * TENSOR_MAP_BYTES).from_buffer(raw, skip)

    def array(kind: Any, values: Sequence[int]) -> Any:
        return (kind * max(1, len(values)))(*values)

    call(
        "cuTensorMapEncodeTiled",
        ctypes.byref(encoded),
        int(tensor_map.data_type),
        tensor_map.rank,
        ctypes.c_void_p(address),
        array(ctypes.c_uint64, tensor_map.global_dims),
        array(ctypes.c_uint64, tensor_map.global_strides),
        array(ctypes.c_uint32, tensor_map.box_dims),
        array(ctypes.c_uint32, tensor_map.element_strides),
        int(tensor_map.interleave),
        int(tensor_map.swizzle),
        int(tensor_map.l2_promotion),
        int(tensor_map.oob_fill),
        detail=str(tensor_map),
    )
    return bytes(encoded)


def _argument(value: Any, variable: Variable, translate: Callable[[int], int]) -> bytes:
    if isinstance(value, np.ndarray):
        return struct.pack("<Q", translate(value.ctypes.data))
    if isinstance(value, TensorMap):
        return encode_tensor_map(value, translate(value.global_address))
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, (float, np.floating)) or variable.type in ("f32", "f64"):
        return struct.pack("<f" if variable.bytes == 4 else "<d", value)
    return (int(value) & ((1 << 8 * variable.bytes) - 1)).to_bytes(variable.bytes, "little")


def _triple(value: Any) -> tuple[int, int, int]:
    values = (value,) if isinstance(value, int) else tuple(value)
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z


def run_on_gpu(
    ptx: str,
    kernel: str,
    grid: Any,
    block: Any,
    args: Sequence[Any],
    *,
    cluster: Any = None,
    dynamic_smem_bytes: int = 0,
    buffers: Sequence[np.ndarray[Any, Any]] = (),
) -> None:
    """Launch a kernel, wait for it, and copy the arrays back.

    Args:
        ptx: a module; compiled by the driver, once for each text.
        kernel: the entry's name.
        grid, block, cluster: an int, or up to three.
        args: see the module's docstring.
        dynamic_smem_bytes: of a block; more than 48 KiB are asked for as the driver wants it.
        buffers: arrays that are uploaded and copied back, besides those in `args`.

    Raises:
        GpuError: what the driver refused, with its log, or a fault of the kernel.
    """
    variables = _parsed(ptx)[kernel]
    if len(variables) != len(args):
        raise GpuError(f"{len(args)} arguments for {len(variables)} parameters")
    function = _function(ptx, kernel)
    arrays = [*(value for value in args if isinstance(value, np.ndarray)), *buffers]
    with _uploaded(arrays) as translate:

        def address(array: np.ndarray[Any, Any]) -> int:
            return translate(array.ctypes.data)

        held = []
        for value, variable in zip(args, variables, strict=True):
            if callable(value):
                value = value(address)
            data = _argument(value, variable, translate)
            if len(data) != variable.bytes:
                raise GpuError(f"{len(data)} bytes for the parameter {variable.name}")
            raw = (ctypes.c_uint8 * (len(data) + TENSOR_MAP_ALIGNMENT))()
            skip = -ctypes.addressof(raw) % TENSOR_MAP_ALIGNMENT
            held.append((ctypes.c_uint8 * len(data)).from_buffer(raw, skip))
            held[-1][:] = list(data)
        pointers = (ctypes.c_void_p * max(1, len(held)))(*map(ctypes.addressof, held))
        if dynamic_smem_bytes:
            call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, dynamic_smem_bytes)
        config = _LaunchConfig(
            (ctypes.c_uint * 3)(*_triple(grid)),
            (ctypes.c_uint * 3)(*_triple(block)),
            dynamic_smem_bytes,
            None,
        )
        if cluster is not None:
            if int(np.prod(_triple(cluster))) > 8:
                call("cuFuncSetAttribute", function, _NON_PORTABLE_CLUSTER, 1)
            attribute = _LaunchAttribute(_CLUSTER_DIMENSION)
            attribute.value[:3] = _triple(cluster)
            config.attributes = ctypes.pointer(attribute)
            config.count = 1
        call("cuLaunchKernelEx", ctypes.byref(config), function, pointers, None)
        call("cuCtxSynchronize")
