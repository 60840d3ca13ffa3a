"""The emulated GPU: runs compiled PTX of Hopper and Blackwell kernels on any machine.

From the bottom up, each package importing only those below it:

- `state`: a block's registers, memories, barriers and clocks; sets of lanes.
- `units`: what TMA, tensor cores and mbarriers do with them; and `decode`: PTX, its operands and
  modifiers, as steps.
- `instructions`: a decoder for each opcode; and `schedule`: which threads run next.
- `clients`: what observes them: traces, counts, breakpoints.
- `host`: `run_ptx`, the Triton driver, pytest, torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from triton_ext.emulator.errors import EmulationError, UnsupportedInstruction

if TYPE_CHECKING:
    from triton_ext.emulator.host.run import run_ptx

__all__ = ["EmulationError", "UnsupportedInstruction", "run_ptx"]


def __getattr__(name: str) -> Any:
    """`run_ptx`, which loads the emulator, when it is asked for."""
    if name != "run_ptx":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from triton_ext.emulator.host.run import run_ptx

    return run_ptx
