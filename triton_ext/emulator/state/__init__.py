"""What a running kernel has: registers, memories, barriers, clocks; and the blocks that hold it."""
