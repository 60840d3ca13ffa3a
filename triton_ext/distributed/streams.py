"""What a stream does without a kernel: copies, and waiting for and writing 32-bit values in memory.

These are functions of CUDA's driver, of which PyTorch has no wait. All take tensors on GPUs, those
of another GPU that this one may access among them.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

GREATER_OR_EQUAL = 0
"""CU_STREAM_WAIT_VALUE_GEQ: the difference, of 32 bits with a sign, is not negative."""


@functools.cache
def _function(name: str, *types: Any) -> Any:
    """A function of the driver, which was loaded when torch began to use the GPU."""
    found = getattr(ctypes.CDLL("libcuda.so.1"), name)
    found.argtypes, found.restype = types, ctypes.c_int
    return found


def _call(name: str, types: tuple[Any, ...], *arguments: int) -> None:
    code = _function(name, *types)(*arguments)
    if code:
        raise RuntimeError(f"{name}: the CUDA driver returns error {code}")


_VALUE = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint)
_COPY = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)


def copy(stream: torch.cuda.Stream, target: Tensor, source: Tensor) -> None:
    """Copy a contiguous tensor to another one, by the copy engine."""
    size = source.numel() * source.itemsize
    _call(
        "cuMemcpyDtoDAsync_v2",
        _COPY,
        target.data_ptr(),
        source.data_ptr(),
        size,
        stream.cuda_stream,
    )


def wait(stream: torch.cuda.Stream, words: Tensor, which: int, value: int) -> None:
    """Go on when an int32 is at least `value`."""
    address = words.data_ptr() + 4 * which
    _call("cuStreamWaitValue32_v2", _VALUE, stream.cuda_stream, address, value, GREATER_OR_EQUAL)


def write(stream: torch.cuda.Stream, words: Tensor, which: int, value: int) -> None:
    """Write an int32, after all that the stream has done before."""
    address = words.data_ptr() + 4 * which
    _call("cuStreamWriteValue32_v2", _VALUE, stream.cuda_stream, address, value, 0)
