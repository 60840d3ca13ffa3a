"""Functions of tvm-ffi on the emulated GPU: what takes torch's tensors and raises errors in C.

The CuTe DSL compiles a kernel's host code to such a function with ``--enable-tvm-ffi``. It reads
tensors by DLPack's exchange API, a table of C functions that torch has, and asks of each where it
lies. Within `on_device` those functions say that the host's tensors are on the CUDA device.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

_CPU, _CUDA = 1, 2
"""``kDLCPU`` and ``kDLCUDA`` (dlpack.h)."""
_TENSOR = 32
"""Bytes before the ``DLTensor`` in a ``DLManagedTensorVersioned``."""
_DEVICE = 8
"""Bytes before the device in a ``DLTensor``."""
_TWO = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.c_void_p)


class _ExchangeAPI(ctypes.Structure):
    """``DLPackExchangeAPI`` (dlpack.h, version 1.3)."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2), ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p), ("from_object", ctypes.c_void_p),
        ("to_object", ctypes.c_void_p), ("look_at_object", ctypes.c_void_p),
        ("current_stream", ctypes.c_void_p),
    )  # fmt: skip


def _put_device(tensor: int, device: int) -> None:
    ctypes.c_int32.from_address(tensor + _DEVICE).value = device


def _on_device(own: _ExchangeAPI) -> dict[str, Any]:
    """C functions in place of torch's own ones, by the names of their fields."""

    def from_object(value: int, out: int) -> int:
        status: int = first(value, out)
        if not status:
            _put_device(ctypes.c_size_t.from_address(out).value + _TENSOR, _CUDA)
        return status

    def to_object(tensor: int, out: int) -> int:
        _put_device(tensor + _TENSOR, _CPU)
        status: int = back(tensor, out)
        return status

    def look_at_object(value: int, out: int) -> int:
        status: int = look(value, out)
        if not status:
            _put_device(out, _CUDA)
        return status

    def current_stream(_: int, __: int, out: int) -> int:
        ctypes.c_void_p.from_address(out).value = None
        return 0

    first, back, look = map(_TWO, (own.from_object, own.to_object, own.look_at_object))
    return {
        "from_object": _TWO(from_object), "to_object": _TWO(to_object),
        "look_at_object": _TWO(look_at_object), "current_stream": _STREAM(current_stream),
    }  # fmt: skip


@contextlib.contextmanager
def on_device() -> Iterator[None]:
    """Within it, functions of tvm-ffi take the host's tensors for a device's."""
    import torch

    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        yield
        return
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    api = _ExchangeAPI.from_address(pointer(capsule, b"dlpack_exchange_api"))
    functions = _on_device(api)
    before = {name: getattr(api, name) for name in functions}
    try:
        for name, function in functions.items():
            setattr(api, name, ctypes.cast(function, ctypes.c_void_p).value)
        yield
    finally:
        for name, address in before.items():
            setattr(api, name, address)
