"""Where a fault is: told of the instruction that ran into it, and of those who executed it."""

from __future__ import annotations

from triton_ext.emulator.errors import EmulationError, SynchronizationFault, UninitializedRead
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.units.mbarriers import causes
from triton_ext.ptx.parse import Instruction


def located(
    error: EmulationError, at: Instruction | None, cta: Cta, lanes: Lanes
) -> EmulationError:
    """A fault of an instruction that lanes of a block execute, and all that it does not yet say."""
    error.instruction = error.instruction or at
    unwritten = isinstance(error, UninitializedRead)
    if (unwritten or isinstance(error, SynchronizationFault)) and not error.where:
        error.message += causes(cta, lanes, unwritten=unwritten)
    if isinstance(error, UninitializedRead) and error.role:
        error.use = error.use or at
        thread = error.used_by_thread
        users = lanes if thread is None else slice(thread, thread + 1)
        error.used_where = error.used_where or cta.describe(users)
    error.where = error.where or cta.describe(lanes)
    return error
