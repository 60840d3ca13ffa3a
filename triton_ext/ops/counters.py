"""Zeroed counters of tiles that are cut along K, which every launch leaves as it finds them."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from triton_ext.kernels.choice.by_threads import MOST_TILES

NUMBER = 1 << 18
"""How many there are on a GPU; a captured launch takes those that it needs for good."""

_lock = threading.Lock()
_all: dict[int, Tensor] = {}
_taken: dict[int, int] = {}
_of_streams: dict[tuple[int, int], Tensor] = {}


def counters(number: int, index: int | None) -> Tensor:
    """So many, at most `MOST_TILES`, of which no launch that may run at the same time has any.

    The launches of one stream share theirs. One that is captured has its own, as its graph may be
    replayed on any stream: not of the graph's memory, which would have to be zeroed at each replay,
    unless the GPU's are taken, or none was launched before.

    Args:
        index: CUDA's number of the GPU; None if it is emulated.
    """
    if index is None:
        return torch.zeros(number, dtype=torch.int32)
    is_captured = torch.cuda.is_current_stream_capturing()
    stream = torch.cuda.current_stream(index)
    found = None if is_captured else _of_streams.get((index, stream.cuda_stream))
    if found is not None:
        return found
    with _lock:
        if index not in _all and not is_captured:
            _all[index] = torch.zeros(NUMBER, dtype=torch.int32, device=stream.device)
            stream.synchronize()  # other streams will not wait for this one
        first = _taken.get(index, 0)
        end = first + (number if is_captured else MOST_TILES)
        if index not in _all or end > NUMBER:
            found = torch.zeros(MOST_TILES, dtype=torch.int32, device=stream.device)
        else:
            found, _taken[index] = _all[index][first:end], end
        if not is_captured:
            _of_streams[index, stream.cuda_stream] = found
    return found
