"""What a launch would follow in a CUDA graph that is being captured, by the CUDA driver."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Container
from typing import Any

_ACTIVE = 1
"""CU_STREAM_CAPTURE_STATUS_ACTIVE."""


class _KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h, whose first field is all that is read."""

    _fields_ = (("function", ctypes.c_void_p), ("others", ctypes.c_byte * 120))


@functools.cache
def _driver() -> Any:
    """The driver's library, which was loaded when the GPU was first used; None if it is older than
    CUDA 12.3, which first told of edges."""
    found = ctypes.CDLL("libcuda.so.1")
    return found if hasattr(found, "cuStreamGetCaptureInfo_v3") else None


def follows(stream: int, functions: Container[int]) -> bool:
    """Whether the next launch on a stream begins as a kernel of these `functions` (CUfunction) may
    end: always but in a capture, where it is known what comes before it.
    """
    driver = _driver()
    if driver is None:
        return True
    status, number = ctypes.c_int(), ctypes.c_size_t()
    nodes, edges = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_void_p()
    code = driver.cuStreamGetCaptureInfo_v3(
        ctypes.c_void_p(stream), ctypes.byref(status), None, None, ctypes.byref(nodes),
        ctypes.byref(edges), ctypes.byref(number),
    )  # fmt: skip
    if code or status.value != _ACTIVE:
        return True
    kernel = _KernelNode()
    return number.value == 1 and (
        driver.cuGraphKernelNodeGetParams_v2(ctypes.c_void_p(nodes[0]), ctypes.byref(kernel)) == 0
        and kernel.function in functions
    )
