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
)
from triton_ext.ptx.parse import Module

OPCODES = {
    **opcodes_of(
        (async_copies, atomics, barriers, bulk_copies, calls, clusters, control, fences, hints,
         matrix, mbarriers, moves, tcgen05_access, tcgen05_allocation, tcgen05_commit,
         tcgen05_copy, tcgen05_mma, tensor_maps, warp, wgmma)
    ),
    **elementwise.opcodes(
        (*comparison.ROWS, *conversion.ROWS, *floating.ROWS, *integer.ROWS, *logic.ROWS,
         *moves.ROWS)
    ),
}  # fmt: skip
"""The opcodes that have a decoder, without the modifiers that it takes."""


def decode(module: Module, name: str | None = None) -> program.Program:
    """Decode an entry of a module: the only one, or the one of that name.

    Raises:
        LaunchError: there is no such entry, or more than one and no name.
        UnsupportedInstruction: an instruction, modifier or operand is not modelled.
    """
    return program.decode(module, name, OPCODES)
