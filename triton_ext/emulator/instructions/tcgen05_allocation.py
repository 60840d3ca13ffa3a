"""tcgen05.alloc, dealloc and relinquish_alloc_permit (PTX ISA, "Tensor Memory Allocation and
Management Instructions")."""

from __future__ import annotations

import numpy as np

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.evidence import KERNELS
from triton_ext.emulator.decode.operands import Operands
from triton_ext.emulator.decode.step import Outcome, Run, Split, Wait
from triton_ext.emulator.errors import EmulationError, SynchronizationFault, TensorMemoryFault
from triton_ext.emulator.instructions.moves import store_bytes
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.leniencies import RELAXED_BARRIER
from triton_ext.emulator.state.tensor_memory_columns import free_column
from triton_ext.emulator.units.mbarriers import low_words
from triton_ext.emulator.units.tensor_core import blocks_of, same_in_warp, tensor_core, use_group
from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.hardware.tensor_memory import check_allocation
from triton_ext.ptx.forms import TensorMemoryAllocation
from triton_ext.ptx.parse import Instruction


def _checked_columns(cta: Cta, columns: int, group: int, exclusive: bool) -> None:
    core = use_group(cta, group)
    try:
        check_allocation(columns, exclusive=exclusive, capacity=core.memory.columns.capacity)
    except LayoutError as error:
        raise TensorMemoryFault(f"{columns} columns: {error.rule}") from None
    if core.memory.columns.relinquished:
        why = "tcgen05.alloc, after the block executed tcgen05.relinquish_alloc_permit"
        raise TensorMemoryFault(why)
    smallest = core.memory.columns.smallest
    if columns > smallest:
        raise TensorMemoryFault(
            f"tcgen05.alloc of {columns} columns, after one of {smallest}: the numbers"
            " may not increase within a block"
        )


def _grant(cta: Cta, at: Instruction) -> None:
    """Give the pair what it asks for, if both blocks ask and it is free in both."""
    pair, blocks = cta.cluster.pairs[cta.rank // 2], blocks_of(cta, 2)
    if len(pair.wanted) < 2:
        return
    if len(set(pair.wanted.values())) > 1:
        raise TensorMemoryFault(
            "the two blocks of a pair allocate together, and ask for different columns:"
            f" {sorted(columns for columns, _ in pair.wanted.values())}, or one of them .exclusive"
        )
    columns, exclusive = next(iter(pair.wanted.values()))
    memories = [tensor_core(block).memory for block in blocks]
    taken = memories[0].columns.taken | memories[1].columns.taken
    first = free_column(taken, columns)
    if first is None:
        return
    for block, memory in zip(blocks, memories, strict=True):
        memory.columns.allocate(first, columns, at, exclusive=exclusive)
        pair.granted[block.rank] = first
    pair.wanted.clear()
    cta.machine.progress += 1


@instruction("tcgen05.alloc", convergent=True, evidence=KERNELS)
def allocate(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    form = modifiers.form(TensorMemoryAllocation)
    group, space = form.cta_group, "shared" if form.space else ""
    address = operands.address(form.address, at)
    number = operands.reader(form.columns, "u32", at)

    def run(cta: Cta, lanes: Lanes) -> Outcome:
        warps = lane_sets.whole_warps(lanes)
        if len(warps) > 1:
            return Split(_by_warp(lanes))
        columns = int(same_in_warp(number(cta, lanes), 1, "nCols")[0])
        named = same_in_warp(address(cta, lanes), 1, "the address").astype(np.int64)
        target = low_words(cta, lanes, space, named)
        one = slice(int(warps[0]) * WARP_THREADS, int(warps[0]) * WARP_THREADS + 1)
        _checked_columns(cta, columns, group, form.exclusive)
        memory, pair = tensor_core(cta).memory, cta.cluster.pairs[cta.rank // 2]

        def finish(column: int) -> None:
            value = np.array([[column]], np.uint32).view(np.uint8)
            try:
                store_bytes(cta, one, space, target, value)
            except EmulationError as error:
                error.instruction, error.where = at, cta.describe(lanes)
                raise

        if group == 1:

            def resume() -> None:
                column = free_column(memory.columns.taken, columns)
                assert column is not None, "the wait was ready"
                memory.columns.allocate(column, columns, at, exclusive=form.exclusive)
                finish(column)

            return Wait(
                lambda: free_column(memory.columns.taken, columns) is not None,
                lambda: (
                    f"tcgen05.alloc of {columns} columns; allocated are columns {memory.columns}"
                ),
                resume,
            )
        if cta.rank in pair.wanted:
            raise TensorMemoryFault("two warps of a block allocate for the pair at the same time")
        pair.wanted[cta.rank] = columns, form.exclusive
        _grant(cta, at)

        def resume_pair() -> None:
            agents = cta.agents(one)
            pair.allocated[cta.rank] = int(agents[0]), cta.cluster.clocks.tick(agents)
            finish(pair.granted.pop(cta.rank))

        return Wait(
            lambda: cta.rank in pair.granted,
            lambda: (
                f"tcgen05.alloc of {columns} columns for the pair; allocated are columns"
                f" {memory.columns}; waiting are blocks {sorted(pair.wanted)} of the cluster"
            ),
            resume_pair,
        )

    return run


@instruction("tcgen05.dealloc", convergent=True, evidence=KERNELS)
def deallocate(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    form = modifiers.form(TensorMemoryAllocation)
    group = form.cta_group
    address = operands.reader(form.address.strip("[] "), "u32", at)
    number = operands.reader(form.columns, "u32", at)

    def run(cta: Cta, lanes: Lanes) -> Outcome:
        warps = lane_sets.whole_warps(lanes)
        if len(warps) > 1:
            return Split(_by_warp(lanes))
        columns = int(same_in_warp(number(cta, lanes), 1, "nCols")[0])
        first = int(same_in_warp(address(cta, lanes), 1, "the address")[0])
        memory = use_group(cta, group).memory
        clocks, agent = cta.cluster.clocks, int(cta.agents(lanes)[0])
        seen = clocks.seen[agent]
        found = memory.columns.find(first, columns, exclusive=form.exclusive)
        if group == 1:
            memory.free(found, seen)
            cta.machine.progress += 1
            return None
        pair = cta.cluster.pairs[cta.rank // 2]
        other, event = pair.allocated.get(cta.rank ^ 1, (0, 0))
        told = event <= clocks.happened.get(agent, seen)[other]
        if event > seen[other] and not (told and cta.takes(RELAXED_BARRIER, lanes)):
            raise SynchronizationFault(
                "tcgen05.dealloc with cta_group::2, and nothing orders it after the tcgen05.alloc"
                " of the other block of the pair, which may not have begun: a barrier of the"
                " cluster is missing"
            )
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
    first, _ = named.pop()
    seen = np.maximum(*(seen for _, _, seen in pair.leaving.values()))
    for block in blocks_of(cta, 2):
        memory = tensor_core(block).memory
        memory.free(memory.columns.allocations[first], seen)
    pair.leaving.clear()
    pair.freed += 1
    cta.machine.progress += 1
    _grant(cta, at)


@instruction("tcgen05.relinquish_alloc_permit", convergent=True, evidence=KERNELS)
def relinquish(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    group = modifiers.form(TensorMemoryAllocation).cta_group

    def run(cta: Cta, lanes: Lanes) -> None:
        use_group(cta, group).memory.columns.relinquished = True

    return run


def _by_warp(lanes: Lanes) -> list[Lanes]:
    threads = lane_sets.indices(lanes).reshape(-1, WARP_THREADS)
    return [lane_sets.pack(each) for each in threads]
