"""tcgen05.alloc, dealloc and relinquish_alloc_permit (PTX ISA, "Tensor Memory Allocation and
Management Instructions")."""

from __future__ import annotations

import numpy as np

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.operands import Operands
from triton_ext.emulator.decode.step import Outcome, Run, Split, Wait
from triton_ext.emulator.errors import (
    EmulationError,
    TensorMemoryFault,
    UnsupportedInstruction,
)
from triton_ext.emulator.instructions.moves import store_bytes
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.tensor_memory import TensorMemory
from triton_ext.emulator.units.tensor_core import (
    blocks_of,
    same_in_warp,
    tensor_core,
    use_group,
)
from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.hardware.tensor_memory import check_allocation
from triton_ext.ptx.parse import Instruction


def cta_group(at: Instruction, modifiers: Modifiers) -> int:
    """Take ``.cta_group``."""
    found = modifiers.starting("cta_group::")
    if found not in ("1", "2"):
        raise UnsupportedInstruction("the opcode must have .cta_group::1 or ::2", at)
    return int(found)


def sync_aligned(at: Instruction, modifiers: Modifiers) -> None:
    """Take ``.sync.aligned``, which must be there."""
    if not (modifiers.flag("sync") and modifiers.flag("aligned")):
        raise UnsupportedInstruction("the opcode must have .sync.aligned", at)


def _checked_columns(cta: Cta, columns: int, group: int) -> None:
    core = use_group(cta, group)
    try:
        check_allocation(columns)
    except LayoutError as error:
        raise TensorMemoryFault(f"{columns} columns: {error.rule}") from None
    if core.memory.relinquished:
        raise TensorMemoryFault(
            "tcgen05.alloc, after the block executed tcgen05.relinquish_alloc_permit"
        )
    if columns > core.memory.smallest:
        raise TensorMemoryFault(
            f"tcgen05.alloc of {columns} columns, after one of {core.memory.smallest}: the numbers"
            " may not increase within a block"
        )


def _grant(cta: Cta, at: Instruction) -> None:
    """Give the pair what it asks for, if both blocks ask and it is free in both."""
    pair, blocks = cta.cluster.pairs[cta.rank // 2], blocks_of(cta, 2)
    if len(pair.wanted) < 2:
        return
    if len(set(pair.wanted.values())) > 1:
        raise TensorMemoryFault(
            f"the two blocks of a pair allocate together, and ask for {pair.wanted} columns"
        )
    columns = next(iter(pair.wanted.values()))
    memories = [tensor_core(block).memory for block in blocks]
    taken = memories[0].allocated | memories[1].allocated
    first = TensorMemory.free_column(taken, columns)
    if first is None:
        return
    for block, memory in zip(blocks, memories, strict=True):
        memory.allocate(first, columns, at)
        pair.granted[block.rank] = first
    pair.wanted.clear()
    cta.machine.progress += 1


@instruction("tcgen05.alloc", convergent=True)
def allocate(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    group = cta_group(at, modifiers)
    sync_aligned(at, modifiers)
    space = "shared" if modifiers.flag("shared::cta") else ""
    modifiers.one_of(("b32",))
    address = operands.address(at.operands[0], at)
    number = operands.reader(at.operands[1], "u32", at)

    def run(cta: Cta, lanes: Lanes) -> Outcome:
        warps = lane_sets.whole_warps(lanes)
        if len(warps) > 1:
            return Split(_by_warp(lanes))
        columns = int(same_in_warp(number(cta, lanes), 1, "nCols")[0])
        target = same_in_warp(address(cta, lanes), 1, "the address")
        one = slice(int(warps[0]) * WARP_THREADS, int(warps[0]) * WARP_THREADS + 1)
        _checked_columns(cta, columns, group)
        memory, pair = tensor_core(cta).memory, cta.cluster.pairs[cta.rank // 2]

        def finish(column: int) -> None:
            value = np.array([[column]], np.uint32).view(np.uint8)
            try:
                store_bytes(cta, one, space, target.astype(np.int64), value)
            except EmulationError as error:
                error.instruction, error.where = at, cta.describe(lanes)
                raise

        if group == 1:

            def resume() -> None:
                column = memory.free_column(memory.allocated, columns)
                assert column is not None, "the wait was ready"
                memory.allocate(column, columns, at)
                finish(column)

            return Wait(
                lambda: memory.free_column(memory.allocated, columns) is not None,
                lambda: (
                    f"tcgen05.alloc of {columns} columns; allocated are columns {memory.held()}"
                ),
                resume,
            )
        if cta.rank in pair.wanted:
            raise TensorMemoryFault("two warps of a block allocate for the pair at the same time")
        pair.wanted[cta.rank] = columns
        _grant(cta, at)
        return Wait(
            lambda: cta.rank in pair.granted,
            lambda: (
                f"tcgen05.alloc of {columns} columns for the pair; allocated are columns"
                f" {memory.held()}; waiting are blocks {sorted(pair.wanted)} of the cluster"
            ),
            lambda: finish(pair.granted.pop(cta.rank)),
        )

    return run


@instruction("tcgen05.dealloc", convergent=True)
def deallocate(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    group = cta_group(at, modifiers)
    sync_aligned(at, modifiers)
    modifiers.one_of(("b32",))
    address = operands.reader(at.operands[0].strip("[] "), "u32", at)
    number = operands.reader(at.operands[1], "u32", at)

    def run(cta: Cta, lanes: Lanes) -> Outcome:
        warps = lane_sets.whole_warps(lanes)
        if len(warps) > 1:
            return Split(_by_warp(lanes))
        columns = int(same_in_warp(number(cta, lanes), 1, "nCols")[0])
        first = int(same_in_warp(address(cta, lanes), 1, "the address")[0])
        memory = use_group(cta, group).memory
        seen = cta.cluster.clocks.seen[cta.agents(lanes)[0]]
        found = memory.find(first, columns)
        if group == 1:
            memory.free(found, seen)
            cta.machine.progress += 1
            return None
        pair = cta.cluster.pairs[cta.rank // 2]
        pair.leaving[cta.rank] = (first, columns, seen.copy())
        before = pair.freed
        if len(pair.leaving) == 2:
            _free_both(cta, at)
        return Wait(
            lambda: pair.freed > before,
            lambda: "tcgen05.dealloc for the pair; the other block has not executed it",
        )

    return run


def _free_both(cta: Cta, at: Instruction) -> None:
    """Free what both blocks of the pair give back; each has seen what either has."""
    pair = cta.cluster.pairs[cta.rank // 2]
    named = {(first, columns) for first, columns, _ in pair.leaving.values()}
    if len(named) > 1:
        raise TensorMemoryFault(f"the two blocks of a pair free different allocations: {named}")
    first, columns = named.pop()
    seen = np.maximum(*(seen for _, _, seen in pair.leaving.values()))
    for block in blocks_of(cta, 2):
        memory = tensor_core(block).memory
        memory.free(memory.find(first, columns), seen)
    pair.leaving.clear()
    pair.freed += 1
    cta.machine.progress += 1
    _grant(cta, at)


@instruction("tcgen05.relinquish_alloc_permit", convergent=True)
def relinquish(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    group = cta_group(at, modifiers)
    sync_aligned(at, modifiers)

    def run(cta: Cta, lanes: Lanes) -> None:
        use_group(cta, group).memory.relinquished = True

    return run


def _by_warp(lanes: Lanes) -> list[Lanes]:
    threads = lane_sets.indices(lanes).reshape(-1, WARP_THREADS)
    return [lane_sets.pack(each) for each in threads]
