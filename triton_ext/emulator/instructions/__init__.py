"""The instructions that are modelled: a decoder for each opcode."""

from __future__ import annotations

from triton_ext.emulator.decode import program
from triton_ext.emulator.decode.decoder import opcodes_of
from triton_ext.emulator.instructions import (
    async_copies,
    atomics,
    barriers,
    bulk_copies,
    calls,
    clusters,
    comparison,
    control,
    conversion,
    elementwise,
    fences,
    floating,
    hints,
    integer,
    logic,
    matrix,
    mbarriers,
    moves,
    tcgen05_access,
    tcgen05_allocation,
    tcgen05_commit,
    tcgen05_copy,
    tcgen05_mma,
    tensor_maps,
    warp,
    wgmma,
    wmma,
)
from triton_ext.ptx.parse import Module

TABLES = (integer, floating, logic, comparison, conversion, moves)
"""The modules with the rows of elementwise instructions."""
FAMILIES = (
    moves, atomics, warp, control, calls, barriers, mbarriers, async_copies, bulk_copies,
    tensor_maps, fences, clusters, matrix, wmma, wgmma, tcgen05_allocation, tcgen05_access,
    tcgen05_copy, tcgen05_mma, tcgen05_commit, hints,
)  # fmt: skip
"""The modules with a function for each of the other instructions."""

OPCODES = {
    **opcodes_of(FAMILIES),
    **elementwise.opcodes(row for table in TABLES for row in table.ROWS),
}
"""The opcodes that have a decoder, without the modifiers that it takes."""


def decode(module: Module, name: str | None = None) -> program.Program:
    """Decode an entry of a module: the only one, or the one of that name.

    Raises:
        LaunchError: there is no such entry, or more than one and no name.
        UnsupportedInstruction: an instruction, modifier or operand is not modelled.
    """
    return program.decode(module, name, OPCODES)
