"""What a running kernel has: memories, registers, clocks."""
