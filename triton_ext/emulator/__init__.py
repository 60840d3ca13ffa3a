"""The emulated GPU: runs compiled PTX of Hopper and Blackwell kernels on any machine.

From the bottom up, each package importing only those below it:

- `state`: a block's registers, memories, barriers and clocks; sets of lanes.
- `units`: what TMA, tensor cores and mbarriers do with them; and `decode`: PTX, its operands and
  modifiers, as steps.
- `instructions`: a decoder for each opcode; and `schedule`: which threads run next.
- `clients`: what observes them: traces, counts, breakpoints.
- `host`: `run_ptx`, the Triton driver, pytest, torch, CUDA's driver for other programs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from triton_ext.emulator.errors import EmulationError, UnsupportedInstruction

if TYPE_CHECKING:
    from triton_ext.emulator.host.run import run_ptx
    from triton_ext.emulator.state.tensor_map_memory import encode as tensor_map_bytes

__all__ = ["EmulationError", "UnsupportedInstruction", "run_ptx", "tensor_map_bytes"]


def __getattr__(name: str) -> Any:
    """`run_ptx` and `tensor_map_bytes`, which load the emulator, when they are asked for."""
    if name == "run_ptx":
        from triton_ext.emulator.host.run import run_ptx

        return run_ptx
    if name == "tensor_map_bytes":
        from triton_ext.emulator.state.tensor_map_memory import encode

        return encode
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
