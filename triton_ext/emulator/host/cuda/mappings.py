"""Virtual memory: addresses that a program reserves, and the memory that it maps there.

(CUDA Driver API, "Virtual Memory Management".) A piece of memory is a part of the heap's file,
which the program's library maps at the addresses that are asked for; one piece may be mapped at
several. It lives until its handle is released and its last mapping is gone.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from triton_ext.emulator.host.cuda.heap import RESERVED, Heap
from triton_ext.emulator.host.cuda.status import INVALID_VALUE, CudaError, Results

GRANULARITY = 2 << 20
"""Bytes: what sizes and addresses are multiples of, as on NVIDIA's GPUs."""
_PROPERTIES = struct.Struct("<4i16x")
"""``CUmemAllocationProp``: kind (1: pinned), handles, place (1: device), its number."""
_PINNED, _ON_DEVICE = 1, 1


@dataclass
class _Piece:
    """Memory that was created: where it lies in the file, and what keeps it."""

    offset: int
    size: int
    released: bool = False
    mapped: int = 0


@dataclass
class _Mapping:
    """Where a part of a piece is mapped, and what may be done there (``CUmemAccess_flags``)."""

    piece: int
    size: int
    offset: int
    access: int = 0


def _whole(*numbers: int) -> None:
    for each in numbers:
        if each % GRANULARITY:
            why = f"{each:#x} is not a multiple of the granularity, {GRANULARITY:#x}"
            raise CudaError(INVALID_VALUE, why)


class VirtualMemory:
    """The driver's functions for it; a part of `Device`."""

    def __init__(self, heap: Heap) -> None:
        self.heap = heap
        self._reserved: dict[int, int] = {}
        self._next_reserved = RESERVED
        self._pieces: dict[int, _Piece] = {}
        self._mappings: dict[int, _Mapping] = {}
        self._piece_handles = iter(range(0x7000_0001, 1 << 62))

    def cuMemAddressReserve(self, size: int, alignment: int, wanted: int, flags: int) -> Results:
        _whole(size, alignment)
        if not size or alignment & (alignment - 1):
            raise CudaError(INVALID_VALUE)
        step = max(alignment, GRANULARITY)
        start = -(-self._next_reserved // step) * step
        self._next_reserved = start + size + GRANULARITY  # what is past the end is nobody's
        self._reserved[start] = size
        return (start,)

    def cuMemAddressFree(self, address: int, size: int) -> Results:
        if self._reserved.get(address) != size or self._within(address, size):
            raise CudaError(
                INVALID_VALUE, f"{address:#x}: not reserved, or something is mapped there"
            )
        del self._reserved[address]
        return ()

    def cuMemCreate(self, size: int, properties: bytes | None, flags: int) -> Results:
        kind, _, place, _ = _PROPERTIES.unpack(properties or bytes(_PROPERTIES.size))
        _whole(size)
        if (kind, place) != (_PINNED, _ON_DEVICE) or not size:
            raise CudaError(INVALID_VALUE, "memory that is mapped is the GPU's here, and pinned")
        handle = next(self._piece_handles)
        self._pieces[handle] = _Piece(self.heap.take_pages(size), size)
        return (handle,)

    def _piece(self, handle: int) -> _Piece:
        if handle not in self._pieces or self._pieces[handle].released:
            raise CudaError(INVALID_VALUE)
        return self._pieces[handle]

    def cuMemRelease(self, handle: int) -> Results:
        self._piece(handle).released = True
        self._collect(handle)
        return ()

    def _collect(self, handle: int) -> None:
        """Give a piece's memory back if nothing keeps it."""
        piece = self._pieces[handle]
        if piece.released and not piece.mapped:
            del self._pieces[handle]
            self.heap.give_pages(piece.offset, piece.size)

    def cuMemRetainAllocationHandle(self, address: int) -> Results:
        handle = self._at(address)[1].piece
        self._pieces[handle].released = False
        return (handle,)

    def cuMemGetAllocationPropertiesFromHandle(self, handle: int) -> Results:
        self._piece(handle)
        return (_PROPERTIES.pack(_PINNED, 0, _ON_DEVICE, 0),)

    def is_mapped(self, address: int) -> bool:
        """Whether an address is one where memory was mapped."""
        return address in self._mappings

    def _within(self, address: int, size: int) -> list[int]:
        """The mappings that begin in a range."""
        return [each for each in self._mappings if address <= each < address + size]

    def _at(self, address: int) -> tuple[int, _Mapping]:
        for start, each in self._mappings.items():
            if start <= address < start + each.size:
                return start, each
        raise CudaError(INVALID_VALUE)

    def map(self, address: int, size: int, offset: int, handle: int) -> Results:
        """Where in the file the memory lies; nobody may reach it yet."""
        piece = self._piece(handle)
        _whole(address, size, offset)
        room = any(
            start <= address and address + size <= start + length
            for start, length in self._reserved.items()
        )
        if not room or not size or offset + size > piece.size:
            raise CudaError(INVALID_VALUE, f"{address:#x}: {size} bytes of it are not reserved")
        if any(
            start < address + size and address < start + each.size
            for start, each in self._mappings.items()
        ):
            raise CudaError(INVALID_VALUE, f"{address:#x}: something is mapped there")
        piece.mapped += 1
        self._mappings[address] = _Mapping(handle, size, offset)
        return (piece.offset + offset,)

    def _whole_mappings(self, address: int, size: int) -> list[int]:
        """The mappings that make a range up. Raises CudaError: it has bytes that are not mapped, or
        cuts a mapping."""
        found = self._within(address, size)
        if not size or sum(self._mappings[each].size for each in found) != size:
            why = f"{address:#x}: {size} bytes of it are not whole mappings"
            raise CudaError(INVALID_VALUE, why)
        return found

    def unmap(self, address: int, size: int) -> Results:
        for start in self._whole_mappings(address, size):
            mapping = self._mappings.pop(start)
            if mapping.access:
                self.heap.withdraw(start)
            self._pieces[mapping.piece].mapped -= 1
            self._collect(mapping.piece)
        return ()

    def cuMemSetAccess(self, address: int, size: int, allowed: bytes | None, count: int) -> Results:
        """Arrays of ``CUmemAccessDesc``: kind and number of the place, and what it may do."""
        places = struct.iter_unpack("<3i", allowed or b"")
        given = [access for *place, access in places if place == [_ON_DEVICE, 0]]
        for start in self._whole_mappings(address, size):
            mapping = self._mappings[start]
            for access in given:
                if access and not mapping.access:
                    at = self._pieces[mapping.piece].offset + mapping.offset
                    self.heap.grant(start, mapping.size, at)
                elif mapping.access and not access:
                    self.heap.withdraw(start)
                mapping.access = access
        return ()

    def cuMemGetAccess(self, place: bytes | None, address: int) -> Results:
        return (self._at(address)[1].access,)

    def cuMemGetAllocationGranularity(self, properties: bytes | None, option: int) -> Results:
        return (GRANULARITY,)
