"""The memory in which products with a divided K add up: one for launches that follow each other.

A kernel finds it zeroed, and leaves it so. Launches of one stream share one, in the order of the
stream. A CUDA graph may be replayed on any stream, beside others, so it has its own: one for each
stream that it is captured on, not for each launch, from the graph's memory pool, zeroed by a node
of the graph before the first launch that takes it. What forks from a capture is on another stream,
and joins before it forks again. It is held until another graph is captured on that stream (or
needs more); the pool itself is the graph's as long as this lives.
"""

from __future__ import annotations

import ctypes

import torch

from triton_ext.ops.device import driver_function

CAPTURE_ACTIVE = 1
"""``CU_STREAM_CAPTURE_STATUS_ACTIVE`` (CUDA driver API, CUstreamCaptureStatus)."""

_of_streams: dict[tuple[int, int], torch.Tensor] = {}
_of_captures: dict[tuple[int, int], tuple[int, torch.Tensor]] = {}


def captured(stream: int) -> int | None:
    """The number of the capture that a stream is part of; None if the driver does not say.

    Args:
        stream: its handle, on the current GPU.
    """
    status, number = ctypes.c_int(), ctypes.c_uint64()
    pointers = (ctypes.c_void_p,) * 6
    ask = driver_function("cuStreamGetCaptureInfo_v2", *pointers)
    failed = ask(stream, ctypes.addressof(status), ctypes.addressof(number), None, None, None)
    return None if failed or status.value != CAPTURE_ACTIVE else number.value


def workspace(size: int, index: int, stream: int) -> torch.Tensor:
    """Zeroed memory for a launch.

    Args:
        size: bytes.
        index: the number of the GPU, which is the current one.
        stream: the handle of the stream that it is launched on, which is the current one.
    """
    if not torch.cuda.is_current_stream_capturing():
        found = _of_streams.get((index, stream))
        if found is None or found.numel() < size:
            found = _of_streams[index, stream] = _zeros(size, index)
        return found
    number = captured(stream)
    if number is None:
        return _zeros(size, index)
    kept, found = _of_captures.get((index, stream), (None, None))
    if kept != number or found is None or found.numel() < size:
        found = _zeros(size, index)
        _of_captures[index, stream] = number, found
    return found


def _zeros(size: int, index: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8, device=torch.device("cuda", index))
