"""The emulated GPU: runs compiled PTX of Hopper and Blackwell kernels on any machine."""

from __future__ import annotations

from triton_ext.emulator.errors import EmulationError, UnsupportedInstruction
from triton_ext.emulator.host.run import run_ptx

__all__ = ["EmulationError", "UnsupportedInstruction", "run_ptx"]
