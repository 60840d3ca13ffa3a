"""Memory that the driver allocates, and what it says of an address."""

from __future__ import annotations

import struct

from triton_ext.emulator.host.cuda import attributes
from triton_ext.emulator.host.cuda.heap import DEVICE, HOST, MANAGED, SIZE, Room
from triton_ext.emulator.host.cuda.mappings import VirtualMemory
from triton_ext.emulator.host.cuda.status import INVALID_VALUE, CudaError, Results


class Allocations(VirtualMemory):
    """The driver's functions for them; a part of `Device`."""

    def _allocated(self, size: int, kind: str) -> Results:
        if not size:
            raise CudaError(INVALID_VALUE)
        return (self.heap.allocate(size, kind).start,)

    def cuMemAlloc(self, size: int) -> Results:
        return self._allocated(size, DEVICE)

    def cuMemAllocAsync(self, size: int, *_: int) -> Results:
        return self._allocated(size, DEVICE) if size else (0,)

    cuMemAllocFromPoolAsync = cuMemAllocAsync

    def cuMemAllocManaged(self, size: int, flags: int) -> Results:
        return self._allocated(size, MANAGED)

    def cuMemAllocHost(self, size: int, flags: int = 0) -> Results:
        return self._allocated(size, HOST)

    cuMemHostAlloc = cuMemAllocHost

    def cuMemAllocPitch(self, width: int, height: int, element: int) -> Results:
        pitch = -(-width // 512) * 512
        return self._allocated(pitch * height, DEVICE)[0], pitch

    def cuMemFree(self, address: int, stream: int = 0) -> Results:
        if self.is_mapped(address):
            raise CudaError(INVALID_VALUE, f"{address:#x} was mapped: cuMemUnmap")
        if address:
            self.heap.free(address)
        return ()

    cuMemFreeHost = cuMemFreeAsync = cuMemFree

    def register(self, address: int, size: int) -> Results:
        return (self.heap.register(address, size).offset,)

    def unregister(self, address: int) -> Results:
        return (self.heap.free(address).size,)

    def _room(self, address: int) -> Room:
        room = self.heap.rooms.find(address)
        if room is None:
            raise CudaError(INVALID_VALUE)
        return room

    def cuMemGetAddressRange(self, address: int) -> Results:
        room = self._room(address)
        return room.start, room.size

    def cuMemHostGetDevicePointer(self, address: int, flags: int) -> Results:
        self._room(address)
        return (address,)

    def transfer(self, *numbers: int) -> Results:
        """Whether rows of bytes may be copied; or filled, if they come from address 0."""
        width, height, depth = numbers[6:]
        for what, end in (("a write", numbers[:3]), ("a read", numbers[3:6])):
            address, row, plane = end
            if address or what == "a write":
                whole = (depth - 1) * plane + (height - 1) * row + width
                self.heap.check(address, whole, what)
        return ()

    def pointer(self, attribute: int, address: int) -> Results:
        room = self._room(address)
        host = room.kind == HOST
        values = {
            2: struct.pack("<I", 1 if host else 2), 3: struct.pack("<Q", address),
            6: b"\1", 7: struct.pack("<Q", room.offset + 1),
            8: struct.pack("<?", room.kind == MANAGED), 9: struct.pack("<i", 0),
            10: b"\0", 11: struct.pack("<Q", room.start), 12: struct.pack("<Q", room.size),
            13: b"\1", 14: struct.pack("<Q", 0), 15: b"\0", 16: struct.pack("<I", 3),
            17: struct.pack("<Q", 0),
        }  # fmt: skip
        if room.kind != DEVICE:
            values[4] = struct.pack("<Q", address)
        if attribute not in values:
            raise CudaError(INVALID_VALUE)
        return (values[attribute],)

    def cuMemPoolGetAttribute(self, pool: int, attribute: int) -> Results:
        return (attributes.pool_attribute(attribute, self.heap.used),)

    def cuMemGetInfo(self) -> Results:
        return SIZE - self.heap.used, SIZE
