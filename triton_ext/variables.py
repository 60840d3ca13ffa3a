"""Environment variables that change what a program does that does not know of this project."""

PASSES = "TRITON_EXT_PASSES"
"""Compiler passes to install: ``docs/guide/passes.md``."""
EMULATE = "TRITON_EXT_EMULATE"
"""The emulated GPU that kernels run on: ``docs/guide/debug-without-gpu.md``."""
