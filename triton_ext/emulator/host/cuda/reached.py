"""The memory that a launch of a program's reaches: what the program has allocated on the GPU."""

from __future__ import annotations

from collections.abc import Iterable

from triton_ext.emulator.host.cuda.heap import SPACE, START, Heap, Room
from triton_ext.emulator.state.memory import OF_MALLOC, Allocation, GlobalMemory


class ProgramMemory(GlobalMemory):
    """What is allocated; and what is said of an address that is not.

    Args:
        heap: the memory.
        rooms: what the launch is known to use; the rest is found when it is reached.
    """

    def __init__(self, heap: Heap, rooms: Iterable[Room]) -> None:
        super().__init__(self._find)
        self._heap = heap
        for room in rooms:
            self.add(heap.allocation(room))

    def allocate(self, size: int) -> int:
        """Memory of the heap, which outlives the launch."""
        room = self._heap.allocate(size, name=OF_MALLOC)
        self.add(self._heap.allocation(room))
        return room.start

    def free(self, address: int) -> None:
        """Give back what a thread of this launch, or of one before, was given."""
        room = self._heap.rooms.find(address)
        if room is not None and self._known(address, 1) is None:
            self.add(self._heap.allocation(room))
        super().free(address)
        self._heap.free(address)

    def _find(self, memory: GlobalMemory, address: int) -> list[Allocation]:
        room = self._heap.rooms.find(address)
        return [] if room is None else [self._heap.allocation(room)]

    def _describe(self, address: int, width: int) -> str:
        text = super()._describe(address, width)
        gone = self._heap.rooms.freed(address)
        if gone is not None:
            return f"{text}; it was in {gone.name} ({gone.size} bytes), which was freed"
        if not START <= address < START + SPACE and address > 1 << 16:
            text += "; it is no address of the GPU's memory: one of the program's own memory?"
        return text
