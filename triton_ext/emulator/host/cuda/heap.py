"""The memory of the emulated GPU, as a program sees it: a file that both map.

A program maps it where `START` says, so that addresses of the device are addresses that it could
use itself, as with CUDA's unified addressing. Here it is mapped anywhere: what kernels are given
has the program's addresses and the bytes of this mapping.
"""

from __future__ import annotations

import bisect
import mmap
import os
from dataclasses import dataclass, replace

import numpy as np

from triton_ext.emulator.host.cuda.status import CudaError
from triton_ext.emulator.state.memory import EMPTY, OF_MALLOC, Allocation, Bytes

START = 0x2000_0000_0000
"""Where programs map the memory: far from what Linux gives to programs and libraries on x86-64 and
on Arm (``Documentation/arch/x86/x86_64/mm.rst``, with 47 bits for programs)."""
SIZE = 64 << 30
"""Bytes; only what is written takes memory of the host."""
SPACE = 16 * SIZE
"""Bytes of addresses: behind the memory are those that programs reserve and map."""
RESERVED = START + SIZE
"""The first of these."""
ALIGNMENT = 512
"""Bytes: of what ``cuMemAlloc`` gives, and of what is left free between two of them, so that an
access behind the end of one is found (a GPU aligns to at least 256: CUDA C++ Programming Guide)."""
_INVALID, _NO_MEMORY = 1, 2
HOST, DEVICE, MANAGED = "host", "device", "managed"


@dataclass(frozen=True)
class Room:
    """Memory that the program has allocated.

    Attributes:
        start: its address in the program.
        size: its bytes.
        offset: where it begins in the file.
        kind: `HOST`, `DEVICE` or `MANAGED`.
        name: what faults call it.
    """

    start: int
    size: int
    offset: int
    kind: str
    name: str

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.start + self.size

    @property
    def taken(self) -> int:
        """The bytes of the file that it takes."""
        return -(-max(self.size, 1) // ALIGNMENT) * ALIGNMENT + ALIGNMENT


class Rooms:
    """The allocations, by their addresses; and those that were freed last."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._rooms: list[Room] = []
        self._freed: list[Room] = []

    def add(self, room: Room) -> None:
        """There is another one."""
        at = bisect.bisect(self._starts, room.start)
        self._starts.insert(at, room.start)
        self._rooms.insert(at, room)

    def remove(self, start: int) -> Room | None:
        """Forget the one that begins at an address; None: none does."""
        at = bisect.bisect_left(self._starts, start)
        if at == len(self._starts) or self._starts[at] != start:
            return None
        room = self._rooms.pop(at)
        del self._starts[at]
        self._freed = [*self._freed[-999:], room]
        return room

    def find(self, address: int) -> Room | None:
        """The allocation that an address is in."""
        at = bisect.bisect(self._starts, address) - 1
        return self._rooms[at] if at >= 0 and address < self._rooms[at].end else None

    def freed(self, address: int) -> Room | None:
        """What an address was in, before it was freed."""
        return next(
            (each for each in reversed(self._freed) if each.start <= address < each.end), None
        )

    def overlapping(self, start: int, size: int) -> list[Room]:
        """The allocations that have bytes of a range."""
        at = max(bisect.bisect(self._starts, start) - 1, 0)
        to = bisect.bisect_left(self._starts, start + size)
        return [each for each in self._rooms[at:to] if each.end > start]

    def pointed_at(self, data: bytes) -> list[Room]:
        """The allocations that aligned words of some bytes point into."""
        words = np.frombuffer(data[: len(data) // 8 * 8], np.uint64)
        found = {}
        for word in map(int, np.unique(words)):
            room = self.find(word)
            if room is not None:
                found[room.start] = room
        return list(found.values())


class Heap:
    """Allocations in the file.

    Args:
        marked: fill new memory with what says that nothing has written it.

    Attributes:
        rooms: the allocations.
    """

    def __init__(self, *, marked: bool = False) -> None:
        self.file = os.memfd_create("triton-ext-gpu")
        os.ftruncate(self.file, SIZE)
        self._mapped = mmap.mmap(self.file, SIZE)
        self.bytes: Bytes = np.frombuffer(self._mapped, np.uint8)
        self._marked = marked
        self.rooms = Rooms()
        self._next, self._made, self.used = 0, 0, 0
        self._holes: list[tuple[int, int]] = []

    def close(self) -> None:
        """Give the memory back."""
        os.close(self.file)

    def allocate(self, size: int, kind: str = DEVICE, name: str = "") -> Room:
        """Memory of so many bytes. Raises CudaError: there is none left."""
        self._made += 1
        room = Room(0, size, 0, kind, name or f"allocation {self._made}")
        offset = self._fit(room.taken)
        room = replace(room, start=START + offset, offset=offset)
        self.rooms.add(room)
        self.used += size
        if self._marked and kind == DEVICE and name in ("", OF_MALLOC):
            data = self.bytes[offset : offset + size]
            data[:] = np.resize(EMPTY, size)
        return room

    def register(self, start: int, size: int) -> Room:
        """Memory for pages of the program, which keep their address."""
        if any(self.rooms.overlapping(start, size)):
            raise CudaError(_INVALID, "a part of this memory is registered already")
        self._made += 1
        granted = mmap.PAGESIZE
        room = Room(start, size, 0, HOST, f"registered memory {self._made}")
        at = self._fit(room.taken + granted)
        room = replace(room, offset=-(-at // granted) * granted)
        self.rooms.add(room)
        self.used += size
        return room

    def take_pages(self, size: int) -> int:
        """The offset in the file of memory for whole pages, which has no address yet."""
        at = self._fit(size + mmap.PAGESIZE)
        self.used += size
        return -(-at // mmap.PAGESIZE) * mmap.PAGESIZE

    def give_pages(self, offset: int, size: int) -> None:
        """Give that memory back."""
        self._mapped.madvise(mmap.MADV_REMOVE, offset, size)
        self._holes.append((offset, size))
        self.used -= size

    def grant(self, start: int, size: int, offset: int) -> None:
        """Let an address have a part of the file that was taken."""
        self._made += 1
        self.rooms.add(Room(start, size, offset, DEVICE, f"mapped memory {self._made}"))

    def withdraw(self, start: int) -> None:
        """Take it back."""
        self.rooms.remove(start)

    def _fit(self, taken: int) -> int:
        if self._next + taken <= SIZE:
            offset = self._next
            self._next += taken
            return offset
        for at, (first, size) in enumerate(self._holes):
            if size >= taken:
                self._holes[at] = (first + taken, size - taken)
                return first
        raise CudaError(_NO_MEMORY)

    def free(self, address: int) -> Room:
        """Free what begins at an address. Raises CudaError: nothing does."""
        room = self.rooms.remove(address)
        if room is None:
            known = self.rooms.find(address)
            where = f"is {address - known.start} bytes into {known.name}" if known else "is unknown"
            raise CudaError(_INVALID, f"{address:#x} {where}: only what begins there can be freed")
        self.used -= room.size
        if room.size >= mmap.PAGESIZE:
            first = -(-room.offset // mmap.PAGESIZE) * mmap.PAGESIZE
            whole = (room.offset + room.size - first) // mmap.PAGESIZE * mmap.PAGESIZE
            if whole:
                self._mapped.madvise(mmap.MADV_REMOVE, first, whole)
        self._holes.append((room.offset, room.taken))
        return room

    def allocation(self, room: Room) -> Allocation:
        """The memory, for a launch."""
        end = room.offset + -(-room.size // 16) * 16  # TMA stores write whole 16 bytes
        return Allocation(room.start, room.size, self.bytes[room.offset : end], room.name)

    def data(self, room: Room) -> Bytes:
        """Its bytes."""
        return self.bytes[room.offset : room.offset + room.size]

    def check(self, address: int, size: int, what: str) -> None:
        """Check that a range is in one allocation, or has nothing to do with the GPU's memory.
        Raises CudaError: it leaves its allocation."""
        find, end = self.rooms.find, address + size
        room = find(address)
        while room is not None and room.end < end and (after := find(room.end)) is not None:
            room = after  # mapped one behind the other
        if room is not None and end <= room.end:
            return
        if room is None and not START <= address < START + SPACE:
            return
        if room is None:
            gone = self.rooms.freed(address)
            why = f"lies in {gone.name}, which was freed" if gone else "is in no allocation"
        else:
            why = f"leaves {room.name}, which has {room.size} bytes, by {end - room.end}"
        raise CudaError(_INVALID, f"{what} of {size} bytes at {address:#x} {why}")
