"""verify-descriptors: what a kernel's threads store while they are traced."""

from __future__ import annotations

from triton_ext.passes.verify_descriptors.running.thread_steps import SharedMemory


def test_stores_are_bytes_from_the_lowest_in_order():
    memory = SharedMemory()
    memory.store(16, 4, 0x80FF0102)
    memory.store(18, 2, None)  # not known
    memory.store(19, 1, -1)
    assert memory.written == {16: [0x02], 17: [0x01], 18: [0xFF, None], 19: [0x80, None, 0xFF]}
