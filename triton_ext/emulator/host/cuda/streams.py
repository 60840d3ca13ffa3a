"""Streams, and events in them. Work is done when it is asked for, so they order nothing more."""

from __future__ import annotations

import functools
import itertools
import struct

from triton_ext.emulator.host.counting import Event
from triton_ext.emulator.host.cuda.allocations import Allocations
from triton_ext.emulator.host.cuda.heap import Heap
from triton_ext.emulator.host.cuda.status import INVALID_HANDLE, NOT_SUPPORTED, CudaError, Results
from triton_ext.emulator.host.gpu import EmulatedGpu

_DISABLE_TIMING = 2
"""``CU_EVENT_DISABLE_TIMING``."""


class Streams(Allocations):
    """The driver's functions for them; a part of `Device`."""

    def __init__(self, gpu: EmulatedGpu, heap: Heap) -> None:
        super().__init__(heap)
        self.gpu = gpu
        self._streams: dict[int, tuple[int, int]] = {}
        self._events: dict[int, tuple[Event, int]] = {}  # with its flags
        self._handles = itertools.count(0x1000, 16)

    def cuStreamCreate(self, flags: int, priority: int = 0) -> Results:
        handle = next(self._handles)
        self._streams[handle] = flags, priority
        return (handle,)

    cuStreamCreateWithPriority = cuStreamCreate

    def cuStreamDestroy(self, stream: int) -> Results:
        if self._streams.pop(stream, None) is None:
            raise CudaError(INVALID_HANDLE)
        return ()

    def cuStreamGetFlags(self, stream: int) -> Results:
        return (self._streams.get(stream, (0, 0))[0],)

    def cuStreamGetPriority(self, stream: int) -> Results:
        return (self._streams.get(stream, (0, 0))[1],)

    def cuStreamGetId(self, stream: int) -> Results:
        return (stream,)

    def _write(self, size: int, stream: int, address: int, value: int, flags: int) -> Results:
        self.heap.check(address, size, "a write")
        room = self._room(address)
        at = room.offset + address - room.start
        data = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        self.heap.bytes[at : at + size] = list(data)
        return ()

    cuStreamWriteValue32 = functools.partialmethod(_write, 4)
    cuStreamWriteValue64 = functools.partialmethod(_write, 8)

    def _wait(self, size: int, stream: int, address: int, value: int, flags: int) -> Results:
        """All that could write the value has been done: it is there, or never comes."""
        room = self._room(address)
        at = room.offset + address - room.start
        found = int.from_bytes(self.heap.bytes[at : at + size].tobytes(), "little")
        most = (1 << 8 * size) - 1
        distance = (found - value) & most
        met = (distance <= most >> 1, found == value & most, bool(found & value),
               bool(~(found | value) & most))[flags & 3]  # fmt: skip
        if not met:
            raise CudaError(
                NOT_SUPPORTED, f"{address:#x} holds {found}, and nobody can write it now"
            )
        return ()

    cuStreamWaitValue32 = functools.partialmethod(_wait, 4)
    cuStreamWaitValue64 = functools.partialmethod(_wait, 8)

    def _event(self, handle: int) -> tuple[Event, int]:
        if handle not in self._events:
            raise CudaError(INVALID_HANDLE)
        return self._events[handle]

    def cuEventCreate(self, flags: int) -> Results:
        handle = next(self._handles)
        self._events[handle] = Event(self.gpu), flags
        return (handle,)

    def cuEventDestroy(self, event: int) -> Results:
        self._event(event)
        del self._events[event]
        return ()

    def cuEventRecord(self, event: int, stream: int, flags: int = 0) -> Results:
        self._event(event)[0].record()
        return ()

    cuEventRecordWithFlags = cuEventRecord

    def cuEventSynchronize(self, event: int) -> Results:
        self._event(event)
        return ()

    cuEventQuery = cuEventSynchronize

    def cuEventElapsedTime(self, begin: int, end: int) -> Results:
        (first, of_first), (last, of_last) = self._event(begin), self._event(end)
        if (of_first | of_last) & _DISABLE_TIMING:
            raise CudaError(INVALID_HANDLE, "an event that was created without timing has no time")
        return (struct.pack("<f", first.elapsed_time(last)),)
