"""Which torch tensors a kernel reaches through pointers that it reads from memory.

A grouped GEMM gets a tensor of addresses, and what those point at is no argument. Such a tensor
belongs to a launch if an address in it lies in memory that the launch was given: in an argument, or
in another tensor that is reached so. Nothing else of the process does.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from triton_ext.emulator.state.memory import Allocation, Bytes, GlobalMemory, host_bytes

TMA_BYTES = 16
"""A TMA store writes whole 16 bytes, also where its tensor ends within them."""


def tensor_memory(tensor: Any, name: str = "") -> Allocation | None:
    """The bytes that a torch CPU tensor spans in its storage; None if it has none."""
    if not tensor.numel() or not tensor.data_ptr():
        return None
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    start, size = int(tensor.data_ptr()), (int(last) + 1) * tensor.element_size()
    storage = tensor.untyped_storage()
    end = min(start + -(-size // TMA_BYTES) * TMA_BYTES, storage.data_ptr() + storage.nbytes())
    data = host_bytes(start, max(size, end - start))
    return Allocation(start, size, data, name, owner=tensor)


def _living() -> list[Allocation]:
    """The memory of every torch CPU tensor of the process, sorted by address."""
    import torch

    kinds: set[type] = set()
    unseen: list[type] = [torch.Tensor]
    while unseen:
        kinds.add(kind := unseen.pop())
        unseen += kind.__subclasses__()
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # of millions of objects a few are tensors: no more than a look at the type of each
        for each in [each for each in gc.get_objects() if type(each) in kinds]:
            try:
                if each.device.type == "cpu" and each.layout == torch.strided:
                    memory = tensor_memory(each)
                    if memory is not None:
                        found.append(memory)
            except Exception:  # fake, functorch's, mkldnn's: without an address
                continue
    return sorted(found, key=lambda memory: memory.start)


def _words(data: Bytes, start: int, low: int, high: int) -> Iterable[int]:
    """The aligned 64-bit words in some memory that are in [low, high)."""
    words = data[-start % 8 :]
    words = words[: len(words) // 8 * 8].view(np.uint64)
    return map(int, np.unique(words[(words >= low) & (words < high)]))


class Reachable:
    """Finds the tensors that the memory of a launch points at: see `GlobalMemory`.

    Args:
        values: the launch's parameters, of which integers may be addresses. (That of a tensor leads
            to no other one: it says itself how much of its storage it spans.)
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values

    def __call__(self, memory: GlobalMemory, address: int) -> list[Allocation]:
        """What is reached, if the address is in it; else nothing."""
        living = _living()
        if not any(each.start <= address < each.start + each.size for each in living):
            return []
        low, high = living[0].start, max(each.end for each in living)
        numbers = [n for n in self._values if isinstance(n, int) and 0 <= n < 1 << 63]
        unread = [(np.array(numbers, np.uint64).view(np.uint8), 0)]
        unread += [(each.data, each.start) for each in memory.allocations]
        found: list[Allocation] = []
        while unread and living:
            pointers = np.array(sorted({p for each in unread for p in _words(*each, low, high)}))
            if not len(pointers):
                break
            starts = np.array([each.start for each in living])
            ends = starts + [each.size for each in living]
            hit = np.searchsorted(pointers, starts) < np.searchsorted(pointers, ends)
            reached = [each for each, yes in zip(living, hit, strict=True) if yes]
            living = [each for each, yes in zip(living, hit, strict=True) if not yes]
            unread = [(each.data, each.start) for each in reached]
            found += reached
        return found
