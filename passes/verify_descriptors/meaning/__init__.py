"""What the TTGIR means: the instructions that its operations must become, with their operands."""
