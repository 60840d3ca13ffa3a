"""Triton's MLIR as it prints it: operations, types, attributes, edits, memory flow."""
