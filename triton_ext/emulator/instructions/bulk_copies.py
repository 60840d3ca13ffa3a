"""Bulk asynchronous copies and reductions, of bytes and of tensors (PTX ISA, "cp.async.bulk")."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.evidence import DOCUMENT, SILICON
from triton_ext.emulator.decode.operands import Operands, Reader
from triton_ext.emulator.decode.step import Outcome, Run, Split, Wait
from triton_ext.emulator.errors import (
    DescriptorFault,
    MemoryFault,
    UnsupportedInstruction,
)
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.barriers import MBarrier
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.clocks import SYSTEM, Clock
from triton_ext.emulator.state.in_flight import BulkCopy
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.memory import RANK_SHIFT, Bytes
from triton_ext.emulator.state.tensor_map_memory import check_alignment
from triton_ext.emulator.state.types import DTYPES
from triton_ext.emulator.units import accessors
from triton_ext.emulator.units.accessors import By
from triton_ext.emulator.units.mbarriers import (
    OFFSET_MASK,
    brings,
    find,
    owner,
    shared_addresses,
    signal,
)
from triton_ext.emulator.units.reductions import Combine, combiner
from triton_ext.emulator.units.tma import (
    ELEMENTS,
    BoxCopy,
    check_acquired,
    read_tensor_map,
    tensor_map_at,
)
from triton_ext.emulator.units.unawaited import check_unread
from triton_ext.hardware.alignments import BULK_ADDRESS, BULK_SIZE
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.ptx import forms
from triton_ext.ptx.parse import Instruction, immediate

# ------------------------------------------------------------------ bulk groups


def _threads(cta: Cta, lanes: Lanes) -> list[int]:
    """The threads among the lanes that have issued copies."""
    known = cta.under_way.bulk_groups
    if isinstance(lanes, slice):
        return [thread for thread in known if lanes.start <= thread < lanes.stop]
    return [thread for thread in known if thread in lanes]


@instruction("cp.async.bulk.commit_group", evidence=SILICON)
def commit(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    modifiers.form(forms.BulkGroup)

    def run(cta: Cta, lanes: Lanes) -> None:
        for thread in _threads(cta, lanes):
            groups = cta.under_way.bulk_groups[thread]
            groups.committed.append(groups.open)
            groups.open = []

    return run


@instruction("cp.async.bulk.wait_group", evidence=SILICON)
def wait_group(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    form = modifiers.form(forms.BulkGroup)
    number = immediate(form.pending)
    if number is None or number < 0:
        raise UnsupportedInstruction("the number of groups must be a constant", at)
    pending = number

    def run(cta: Cta, lanes: Lanes) -> Outcome:
        awaited: list[BulkCopy] = []
        threads = []
        for thread in _threads(cta, lanes):
            committed = cta.under_way.bulk_groups[thread].committed
            older = committed[: max(0, len(committed) - pending)]
            mine = [copy for group in older for copy in group]
            if mine:
                awaited += mine
                threads.append(thread)
        if not threads:
            return None

        def ready() -> bool:
            return all(copy.done or (form.reads_only and copy.read) for copy in awaited)

        agents = np.unique(cta.agents.of_lanes(np.array(threads)))
        waiting = np.isin(cta.agents.of_lanes(lanes), agents)
        if not ready() and not waiting.all():
            return Split([lane_sets.select(lanes, waiting), lane_sets.select(lanes, ~waiting)])

        def resume() -> None:
            for copy in awaited:
                copy.awaited = True
                seen = copy.clock if form.reads_only else copy.written
                cta.cluster.clocks.acquire(agents, seen)
            for thread in threads:
                groups = cta.under_way.bulk_groups[thread]
                keep = len(groups.committed) - pending
                groups.committed[:keep] = [
                    left for group in groups.committed[:keep]
                    if (left := [copy for copy in group if not copy.done])
                ]  # fmt: skip

        def why() -> str:
            left = sum(not copy.done for copy in awaited)
            return f"waits for {left} bulk copies out of shared memory"

        return Wait(ready, why, resume)

    return run


def _copy_out(
    cta: Cta, lane: Lanes, thread: int, read: Callable[[Clock, int], Bytes],
    write: Callable[[Bytes, By | None], None], scope: int
) -> None:  # fmt: skip
    """Issue a copy out of shared memory: it reads, and some time later writes. `scope`: that of a
    reduction; 0 for a copy."""
    clocks = cta.cluster.clocks
    clock = clocks.snapshot(cta.agents(lane))
    queue = ("bulk group", cta.index, thread)
    unit = cta.agents.bulk(thread // WARP_THREADS)
    copy = BulkCopy(cta.instruction, clocks.empty(), clocks.empty())
    cta.under_way.bulk_groups[thread].open.append(copy)

    def perform() -> None:
        values = read(clock, unit)
        copy.clock = copy.written = clocks.of_event(unit, int(clocks.seen[unit, unit]))
        copy.read = True

        def finish() -> None:
            write(values, accessors.unit(cta, unit, clock, copy.instruction, scope=scope))
            copy.written = clocks.of_event(unit, int(clocks.seen[unit, unit]))
            copy.done = True

        cta.issue(lane, queue, finish)

    cta.issue(lane, queue, perform)


# --------------------------------------------------------- where copies go to


@dataclass(frozen=True)
class _Targets:
    """Where a copy into shared memory goes, and which barriers it signals.

    Attributes:
        addresses: where the data goes, an address for each block.
        barriers: the mbarriers to signal, one for each block.
    """

    addresses: list[int]
    barriers: list[int]


def _targets(cta: Cta, address: int, barrier: int, mask: int | None, pair: bool) -> _Targets:
    """The targets of a copy (PTX ISA, "cp.async.bulk.tensor").

    Args:
        mask: the blocks of a multicast (``.multicast::cluster``), or None.
        pair: ``.cta_group::2``: the barrier may be that of the other block of the destination's
            pair; the parity of the rank in its address says which one.
    """
    blocks = len(cta.cluster.ctas)
    if mask is None:
        ranks = [address >> RANK_SHIFT]
    else:
        ranks = [rank for rank in range(16) if mask >> rank & 1]
        if not ranks or ranks[-1] >= blocks:
            raise MemoryFault(f"multicast mask {mask:#x} for a cluster of {blocks} blocks")
    named = barrier >> RANK_SHIFT
    if mask is None and not pair and named != ranks[0]:
        raise MemoryFault(
            f"the data goes to block {ranks[0]}, and the mbarrier is of block {named}: they must"
            " be of one block (or of a pair, with .cta_group::2)"
        )
    if pair and mask is None and named >> 1 != ranks[0] >> 1:
        raise MemoryFault(
            f"the data goes to block {ranks[0]}, and the mbarrier is of block {named}: not of the"
            " same pair"
        )
    signals = [(rank & ~1) | (named & 1) if pair else rank for rank in ranks]
    return _Targets(
        [(rank << RANK_SHIFT) + (address & OFFSET_MASK) for rank in ranks],
        [(rank << RANK_SHIFT) + (barrier & OFFSET_MASK) for rank in signals],
    )


def _copy_in(
    cta: Cta, lane: Lanes, targets: _Targets, size: int,
    read: Callable[[Clock, By | None], Bytes],
    write: Callable[[int, Bytes, Clock, int, MBarrier], None]
) -> None:  # fmt: skip
    """Issue a copy into shared memory that signals mbarriers.

    Args:
        size: number of bytes that each barrier is told of.
        read: gives what is copied.
        write: puts it at a shared address, as the agent of a unit, for a barrier.
    """
    clocks = cta.cluster.clocks
    clock, instruction = clocks.snapshot(cta.agents(lane)), cta.instruction
    for barrier in targets.barriers:
        brings(cta, barrier, size, instruction)
    unread = check_unread if cta.launch.checks.unread else None
    alone = len(targets.barriers) == 1  # else no one waiter has seen that it was read

    def perform() -> None:
        reader = cta.agents.tma(targets.barriers[0])
        values = read(clock, accessors.unit(cta, reader, clock, instruction, noted=alone))
        for address, barrier in zip(targets.addresses, targets.barriers, strict=True):
            unit = cta.agents.tma(barrier)
            told = find(cta, barrier, clock=clock)
            if unread is not None:
                unread(owner(cta, address).shared, address & OFFSET_MASK, size)
            write(address, values, clock, unit, told)
            event = int(clocks.seen[unit, unit])
            cta.under_way.copied_in[unit] = event
            signal(cta, barrier, size, clocks.of_event(unit, event), unit)
            if unread is not None:
                owner(cta, address).shared.unread[event] = instruction

    cta.issue(lane, None, perform)


# ------------------------------------------------------------------- operands


def _lanes_of(lanes: Lanes) -> list[tuple[int, Lanes]]:
    """Each lane's position, and the set of that lane alone. (Most have one elected thread.)"""
    return [
        (position, slice(thread, thread + 1))
        for position, thread in enumerate(lane_sets.indices(lanes).tolist())
    ]


def _values(read: Reader | None, cta: Cta, lanes: Lanes) -> list[Any]:
    """An operand of each lane; None if it is left out."""
    if read is None:
        return [None] * lane_sets.count(lanes)
    return lane_sets.numbers(read(cta, lanes), lanes)


def _check_hint(
    at: Instruction, form: forms.TensorCopy | forms.BulkCopy, operands: Operands
) -> None:
    """The cache policy changes no result; but it must be a register or a number."""
    if form.cache_policy:
        operands.reader(form.cache_policy, "b64", at)


class _Box(NamedTuple):
    """What one thread names: the map's address, the coordinates, and the rows of a gather, or the
    offsets of im2col mode."""

    map: int
    coordinates: list[int]
    rows: list[int] | None = None
    offsets: list[int] | None = None

    def copy(self, cta: Cta, offset: int) -> BoxCopy:
        """The copy to or from an offset in shared memory."""
        found = tensor_map_at(cta, self.map)
        return BoxCopy.of(found, self.coordinates, offset, self.rows, self.offsets)


@dataclass(frozen=True)
class _Tensor:
    """The tensor operand of an instruction.

    Attributes:
        rows: whether it gathers or scatters four rows.
        offsets: those of im2col mode; None for tiles.
    """

    rows: bool
    map: Reader
    coordinates: list[Reader]
    offsets: list[Reader] | None

    def boxes(self, cta: Cta, lanes: Lanes) -> list[_Box]:
        """For each lane."""
        addresses = _values(self.map, cta, lanes)
        columns = [_values(read, cta, lanes) for read in self.coordinates]
        agents = cta.agents.of_lanes(lanes).tolist()
        offsets = [_values(read, cta, lanes) for read in self.offsets or ()]
        boxes: list[_Box] = []
        for lane, (address, agent, *numbers) in enumerate(
            zip(addresses, agents, *columns, strict=True)
        ):
            check_alignment(address)
            check_acquired(cta, address, agent)
            if self.rows:
                boxes.append(_Box(address, numbers[:1], numbers[1:]))
            elif self.offsets is None:
                boxes.append(_Box(address, numbers))
            else:
                boxes.append(_Box(address, numbers, None, [each[lane] for each in offsets]))
        return boxes


def _tensor(at: Instruction, form: forms.TensorCopy, operands: Operands) -> _Tensor:
    im2col = form.mode == "im2col" and not form.src_mem
    if form.mode != "tile" and not form.moves_rows and not im2col:
        raise UnsupportedInstruction(f".{form.mode} is not modelled", at)
    _check_hint(at, form, operands)
    coordinates = [operands.reader(each, "s32", at) for each in form.coordinates]
    offsets = [operands.reader(each, "u16", at) for each in form.im2col] if im2col else None
    return _Tensor(form.moves_rows, operands.address(form.map, at), coordinates, offsets)


# ------------------------------------------------------------ tensor copies


@instruction(
    "cp.async.bulk.tensor cp.reduce.async.bulk.tensor",
    evidence=SILICON,
    but="multicast, too; gather4, scatter4, `cta_group::2`: kernels; im2col: document, and"
    " Triton's own test of it",
)
def tensor_copy(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    form = modifiers.form(forms.TensorCopy)
    return (_tensor_load if form.loads else _tensor_store)(at, form, operands)


def _tensor_load(at: Instruction, form: forms.TensorCopy, operands: Operands) -> Run:
    space, pair = form.destination, form.cta_group == 2
    tensor = _tensor(at, form, operands)
    target_address = operands.address(form.dst_mem, at)
    barrier_address = operands.address(form.mbarrier, at)
    mask = operands.reader(form.cta_mask, "u16", at) if form.multicast else None
    barrier_space = "shared::cluster" if pair else space

    def run(cta: Cta, lanes: Lanes) -> None:
        targets = shared_addresses(cta, space, target_address(cta, lanes)).tolist()
        barriers = shared_addresses(cta, barrier_space, barrier_address(cta, lanes)).tolist()
        masks = _values(mask, cta, lanes)
        boxes = tensor.boxes(cta, lanes)
        for position, lane in _lanes_of(lanes):
            goals = _targets(cta, targets[position], barriers[position], masks[position], pair)
            _load_box(cta, lane, boxes[position], goals)

    return run


def _load_box(cta: Cta, lane: Lanes, box: _Box, goals: _Targets) -> None:
    copy = box.copy(cta, goals.addresses[0] & OFFSET_MASK)
    instruction = cta.instruction
    cta.machine.observer.copies(cta, lane, "load", copy, 0, copy.map.transaction_bytes)

    def read(clock: Clock, by: By | None) -> Bytes:
        read_tensor_map(cta, box.map, by)
        return copy.read_global(cta, by)

    def write(address: int, values: Bytes, clock: Clock, unit: int, barrier: MBarrier) -> None:
        copy.write_shared(owner(cta, address), values, clock, unit, barrier, instruction)

    _copy_in(cta, lane, goals, copy.map.transaction_bytes, read, write)


def _tensor_store(at: Instruction, form: forms.TensorCopy, operands: Operands) -> Run:
    tensor = _tensor(at, form, operands)
    source_address = operands.address(form.src_mem, at)

    def run(cta: Cta, lanes: Lanes) -> None:
        sources = shared_addresses(cta, "shared::cta", source_address(cta, lanes)).tolist()
        boxes = tensor.boxes(cta, lanes)
        for position, lane in _lanes_of(lanes):
            _store_box(cta, lane, boxes[position], sources[position] & OFFSET_MASK, form.reduction)

    return run


def _store_box(cta: Cta, lane: Lanes, box: _Box, offset: int, operation: str) -> None:
    copy = box.copy(cta, offset)
    combine: Combine | None = None
    if operation:
        kind = copy.map.data_type
        if kind not in ELEMENTS:
            raise DescriptorFault(f"there is no reduction of {kind.name} elements")
        combine = combiner(operation, ELEMENTS[kind])
    instruction = cta.instruction
    cta.launch.check_layout(instruction)
    cta.machine.observer.copies(cta, lane, "store", copy, 0, copy.map.transaction_bytes)

    def read(clock: Clock, unit: int) -> Bytes:
        read_tensor_map(cta, box.map, accessors.unit(cta, unit, clock, instruction))
        return copy.read_shared(cta, clock, unit)

    _copy_out(
        cta,
        lane,
        int(lane_sets.indices(lane)[0]),
        read,
        lambda values, by: copy.write_global(cta, values, by, combine),
        SYSTEM if operation else 0,
    )


@instruction("cp.async.bulk.prefetch.tensor", evidence=DOCUMENT)
def tensor_prefetch(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """It moves nothing that a program could see; its box must be legal all the same."""
    tensor = _tensor(at, modifiers.form(forms.TensorCopy), operands)

    def run(cta: Cta, lanes: Lanes) -> None:
        for box in tensor.boxes(cta, lanes):
            box.copy(cta, 0)

    return run


# ------------------------------------------------------------- copies of bytes


def _check_bulk(size: int, **addresses: int) -> None:
    """PTX ISA, "cp.async.bulk": size and addresses are multiples of 16."""
    for rule, name, value in (
        (BULK_SIZE, "", size), *((BULK_ADDRESS, name, value) for name, value in addresses.items())
    ):  # fmt: skip
        if wrong := rule.broken(value, name and f"{name} {value:#x}"):
            raise MemoryFault(wrong)


def _global_bytes(cta: Cta, address: int, size: int, by: By | None) -> Bytes:
    """What global memory holds."""
    found = cta.launch.memory.locate(address, size)
    first = address - found.start
    if by is not None:
        by.read(found, first, _ONE, size)
    return found.data[first : first + size].copy()


_ONE = np.zeros(1, np.int64)


@instruction("cp.async.bulk cp.reduce.async.bulk", evidence=SILICON)
def bulk_copy(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    form = modifiers.form(forms.BulkCopy)
    combine: Combine | None = None
    dtype: Any = DTYPES[form.type or "u8"]
    if form.reduction:
        try:
            combine = combiner(form.reduction, dtype)
        except DescriptorFault as fault:
            raise UnsupportedInstruction(fault.message, at) from None
    _check_hint(at, form, operands)
    return (_bulk_in if form.loads else _bulk_out)(at, form, operands, combine, dtype)


def _bulk_in(
    at: Instruction, form: forms.BulkCopy, operands: Operands, combine: Combine | None, dtype: Any
) -> Run:
    to, origin = form.destination, form.source
    target_address = operands.address(form.dst_mem, at)
    source_address = operands.address(form.src_mem, at)
    size_of = operands.reader(form.size, "u32", at)
    barrier_address = operands.address(form.mbarrier, at)
    mask = operands.reader(form.cta_mask, "u16", at) if form.multicast else None

    def run(cta: Cta, lanes: Lanes) -> None:
        targets = shared_addresses(cta, to, target_address(cta, lanes)).tolist()
        sources = source_address(cta, lanes)
        if origin != "global":
            sources = shared_addresses(cta, origin, sources)
        barriers = shared_addresses(cta, to, barrier_address(cta, lanes)).tolist()
        sizes = _values(size_of, cta, lanes)
        masks = _values(mask, cta, lanes)
        for position, lane in _lanes_of(lanes):
            size = sizes[position]
            where = int(sources[position])
            _check_bulk(size, source=where, destination=targets[position])
            goals = _targets(cta, targets[position], barriers[position], masks[position], False)
            own = cta.agents.tma(goals.barriers[0])
            outside = where if origin == "global" else -1
            cta.machine.observer.copies(cta, lane, "load", None, outside, size)

            def read(
                clock: Clock, by: By | None, where: int = where, size: int = size, own: int = own
            ) -> Bytes:
                if origin == "global":
                    return _global_bytes(cta, where, size, by)
                return cta.shared.bulk_read(where & OFFSET_MASK, size, clock, own, name="TMA")

            def write(
                address: int, values: Bytes, clock: Clock, unit: int, barrier: MBarrier
            ) -> None:
                shared = owner(cta, address).shared
                offset = address & OFFSET_MASK
                if combine is not None:
                    old = shared.bulk_read(offset, len(values), clock, unit, name="TMA")
                    values = combine(old.view(dtype), values.view(dtype)).view(np.uint8)
                    clock = clock.copy()
                    clock.absorb(cta.cluster.clocks.snapshot(np.array([unit])))
                shared.bulk_write(offset, values, clock, unit, name="TMA")

            _copy_in(cta, lane, goals, size, read, write)

    return run


def _bulk_out(
    at: Instruction, form: forms.BulkCopy, operands: Operands, combine: Combine | None, dtype: Any
) -> Run:
    target_address = operands.address(form.dst_mem, at)
    source_address = operands.address(form.src_mem, at)
    size_of = operands.reader(form.size, "u32", at)
    byte_mask = operands.reader(form.byte_mask, "u16", at) if form.masked else None

    def run(cta: Cta, lanes: Lanes) -> None:
        targets = target_address(cta, lanes).tolist()
        sources = shared_addresses(cta, "shared::cta", source_address(cta, lanes)).tolist()
        sizes = _values(size_of, cta, lanes)
        masks = _values(byte_mask, cta, lanes)
        for position, lane in _lanes_of(lanes):
            size, where, goal = sizes[position], sources[position] & OFFSET_MASK, targets[position]
            _check_bulk(size, source=where, destination=goal)
            cta.machine.observer.copies(cta, lane, "store", None, goal, size)
            _copy_out(
                cta,
                lane,
                int(lane_sets.indices(lane)[0]),
                _reader_of(cta, where, size),
                _writer_of(cta, goal, masks[position], combine, dtype),
                0 if combine is None else SYSTEM,
            )

    return run


def _reader_of(cta: Cta, where: int, size: int) -> Callable[[Clock, int], Bytes]:
    return lambda clock, unit: cta.shared.bulk_read(where, size, clock, unit, name="TMA")


def _writer_of(
    cta: Cta, goal: int, mask: int | None, combine: Combine | None, dtype: Any
) -> Callable[[Bytes, By | None], None]:
    def write(values: Bytes, by: By | None) -> None:
        found = cta.launch.memory.locate(goal, len(values), writes=True)
        first = goal - found.start
        memory = found.data[first : first + len(values)]
        if by is not None:
            by.write(found, first, _ONE, values[None])
        if combine is not None:
            old = memory.copy().view(dtype)
            memory[:] = combine(old, values.view(dtype)).view(np.uint8)
        elif mask is not None:
            chosen = np.array([bool(mask >> byte & 1) for byte in range(16)])
            chosen = np.tile(chosen, len(values) // 16)
            memory[chosen] = values[chosen]
        else:
            memory[:] = values

    return write


@instruction("cp.async.bulk.prefetch", evidence=DOCUMENT)
def bulk_prefetch(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    form = modifiers.form(forms.BulkCopy)
    address, size = operands.address(form.src_mem, at), operands.reader(form.size, "u32", at)
    _check_hint(at, form, operands)

    def run(cta: Cta, lanes: Lanes) -> None:
        for where, number in zip(
            address(cta, lanes).tolist(), _values(size, cta, lanes), strict=True
        ):
            _check_bulk(number, source=where)

    return run
