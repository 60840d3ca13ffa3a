"""tcgen05.ld, st and their waits (PTX ISA, "Tensor Memory Load Instructions" and its neighbours).

A load reads at once, in program order; a store writes at once. Both are late only in what others
may rely on: see `triton_ext.emulator.state.tensor_memory`. A register that a load writes may be
used before tcgen05.wait::ld (PTX ISA, "Register dependencies, same thread"; Triton's code does).
By the letter of PTX the wait is needed before others may overwrite or free the cells; NVIDIA's own
kernels do without (CuTe DSL, ``fp16_gemm_1.py``) where the thread has stored the values before. So
a store of them, or of what was computed of them, completes the load here, and a branch on them;
arithmetic does not: ptxas may move it behind the arrival that frees the cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.evidence import KERNELS
from triton_ext.emulator.decode.flow import Flow, handled, origins_of
from triton_ext.emulator.decode.operands import Operands, Writer
from triton_ext.emulator.decode.step import Run
from triton_ext.emulator.errors import TensorMemoryFault, UninitializedRead, UnsupportedInstruction
from triton_ext.emulator.instructions.moves import note_unwritten_load
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.in_flight import Arrival
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.leniencies import LANE, QUARTER
from triton_ext.emulator.state.storage import Register
from triton_ext.emulator.state.tensor_memory import Access, Cells, TensorMemory, numbers
from triton_ext.emulator.state.tensor_memory_cells import AccessCells, access_cells
from triton_ext.emulator.state.types import DTYPES
from triton_ext.emulator.state.undefined import UNWRITTEN, Origins
from triton_ext.emulator.units.floats import extreme
from triton_ext.emulator.units.reductions import INTEGER
from triton_ext.emulator.units.tensor_core import check_thread_sync, same_in_warp, tensor_core
from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.hardware.tensor_memory import MOST_COLUMNS, TMEM_LANES, WARP_LANES, WARPGROUP_WARPS
from triton_ext.ptx.forms import Tcgen05Order, TensorMemoryAccess
from triton_ext.ptx.parse import Instruction, immediate

_LOW = np.uint32(0xFFFF)
_HALF = np.uint32(16)
_WORD_BYTES = 4


def _decode(at: Instruction, modifiers: Modifiers) -> tuple[TensorMemoryAccess, AccessCells]:
    """The form of the instruction, and the cells that it names."""
    form = modifiers.form(TensorMemoryAccess)
    split = immediate(form.half_split) if form.half_split else None
    if form.half_split and split is None:
        raise UnsupportedInstruction("an immHalfSplitoff that is no number is not modelled", at)
    try:
        named = access_cells(form.shape, form.repeat, form.packs or form.unpacks, split)
    except LayoutError as error:
        raise UnsupportedInstruction(str(error), at) from None
    if len(form.registers) != len(named.offsets):
        why = f"{len(form.registers)} registers; the shape has {len(named.offsets)}"
        raise UnsupportedInstruction(why, at)
    return form, named


def _index(rows: Any, lanes: Lanes) -> tuple[Any, Any]:
    """Both as one numpy index of a register file."""
    if isinstance(rows, np.ndarray) and isinstance(lanes, np.ndarray):
        return rows[:, None], lanes
    return rows, lanes


class _Place:
    """Where the warps of one tcgen05.ld or st access tensor memory.

    Attributes:
        memory: of the block.
        cells: of all warps together.
        each: of each warp.
        seen: what all of the warps have seen; `all_seen` has a row for each.
    """

    def __init__(
        self, cta: Cta, lanes: Lanes, named: AccessCells, addresses: NDArray[Any], what: str
    ) -> None:
        warps = lane_sets.whole_warps(lanes)
        number = len(warps)
        base = same_in_warp(addresses, number, "the address of tensor memory")
        lane, column = base >> 16, base & 0xFFFF
        self.memory: TensorMemory = tensor_core(cta).memory
        lane = self._lanes(cta, lanes, warps, lane, what)
        self._check(lane, column, named, what)
        self.agents = cta.agents(lanes)
        self.all_seen = cta.cluster.clocks.seen[self.agents]
        self.cells: Cells
        self.each: list[Cells]
        count = len(named.offsets)
        if named.rectangle:
            self.each = [
                (slice(at, at + WARP_LANES), slice(first, first + count))
                for at, first in zip(lane.tolist(), column.tolist(), strict=True)
            ]
            steps = np.arange(number) * WARP_LANES
            self.together = bool((lane == lane[0] + steps).all() and (column == column[0]).all())
            at, first = int(lane[0]), int(column[0])
            self.cells = (slice(at, at + WARP_LANES * number), slice(first, first + count))
            return
        starts = lane * MOST_COLUMNS + column
        flat = named.offsets[:, None, :] + starts[None, :, None]
        self.each = [(flat[:, warp],) for warp in range(number)]
        self.together = True
        self.cells = (flat.reshape(count, -1),)

    @staticmethod
    def _lanes(
        cta: Cta, lanes: Lanes, warps: NDArray[np.intp], lane: NDArray[Any], what: str
    ) -> NDArray[Any]:
        """The first lane of each warp, which must be in its quarter, from those that are named."""
        quarter = warps % WARPGROUP_WARPS
        beyond = lane // WARP_LANES == quarter + WARPGROUP_WARPS
        if beyond.any() and cta.takes(LANE, lanes):
            lane = np.where(beyond, lane - TMEM_LANES, lane)
        wrong = lane // WARP_LANES != quarter
        if not wrong.any():
            return lane
        if (lane[wrong] < WARP_LANES).all() and cta.takes(QUARTER, lanes):
            return np.where(wrong, lane + quarter * WARP_LANES, lane)
        bad = wrong if cta.launch.checks.strict else wrong & (lane >= WARP_LANES)
        which = int(np.flatnonzero(bad)[0])
        first = int(quarter[which]) * WARP_LANES
        raise TensorMemoryFault(
            f"{what} at lane {int(lane[which])} by warp {int(warps[which])}, which may access"
            f" lanes {first} to {first + WARP_LANES - 1} alone (its number modulo 4)"
        )

    def _check(
        self, lane: NDArray[Any], column: NDArray[Any], named: AccessCells, what: str
    ) -> None:
        if not np.isin(lane % WARP_LANES, named.first_lanes).all():
            raise TensorMemoryFault(
                f"{what} at lane {int(lane[0])}: with this shape the address must name lane"
                f" {' or '.join(map(str, named.first_lanes))} of the warp's {WARP_LANES}"
            )
        for first in np.unique(column):
            self.memory.columns.check(int(first), named.columns, what)

    def check_thread_sync(self, cta: Cta, lanes: Lanes, what: str, *, writes: bool) -> None:
        """See `triton_ext.emulator.units.tensor_core`."""
        if cta.machine.fenced:
            for agent, cells in zip(self.agents.tolist(), self.each, strict=True):
                check_thread_sync(
                    cta, lanes, agent, cells, f"{what} of tensor memory", writes=writes
                )

    def swap(self, words: NDArray[Any]) -> NDArray[Any]:
        """Between (registers, threads) and the cells' own order."""
        return words.T if len(self.cells) == 2 else words


def _first(cells: Cells) -> Cells:
    """The columns that an access names."""
    return cells


def _second(cells: Cells) -> Cells:
    """The columns to the right of those that a packing access names first."""
    return (cells[0] + 1,)


def _reduction(form: TensorMemoryAccess, operands: Operands, at: Instruction) -> Writer:
    """Writes the smallest or largest of a thread's words, (registers, threads), to redval."""
    if form.repeat < 2 or form.shape not in ("32x32b", "16x32bx2"):
        raise UnsupportedInstruction(".red is of shapes 32x32b and 16x32bx2, from .x2 on", at)
    if (form.of_magnitudes or form.propagates_nan) and form.type != "f32":
        raise UnsupportedInstruction(".abs and .NaN are of f32 alone", at)
    write = operands.writer(form.reduced, form.type, at)
    dtype, largest = DTYPES[form.type], form.reduction == "max"

    def reduce(cta: Cta, lanes: Lanes, words: NDArray[Any]) -> None:
        values = np.ascontiguousarray(words).view(dtype)
        if form.type != "f32":
            write(cta, lanes, INTEGER[form.reduction].reduce(values, axis=0))
            return
        if form.of_magnitudes:
            values = np.abs(values)
        found = values[0]
        for each in values[1:]:
            found = extreme(found, each, "f32", largest=largest, propagate=form.propagates_nan)
        write(cta, lanes, found)

    return reduce


@instruction("tcgen05.ld", convergent=True, evidence=KERNELS, but="the rarer shapes: document")
def load(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    form, named = _decode(at, modifiers)
    pack = form.packs
    key, rows = operands.rows(form.registers, at)
    touched = frozenset(operands.register(target, at) for target in form.registers)
    address = operands.address(form.address, at)
    name = "tcgen05.ld"

    targets = [operands.register(target, at) for target in form.registers]
    reduced = _reduction(form, operands, at) if form.reduces else None
    if reduced is not None:
        touched |= {operands.register(form.reduced, at)}
    operands.written |= touched
    operands.flow = Flow(handled)

    def words_of(place: _Place, cells: Cells) -> NDArray[Any]:
        words = place.memory.peek(cells)
        if pack:
            return words & _LOW | place.memory.peek(_second(cells)) << _HALF
        return place.swap(words)

    def run(cta: Cta, lanes: Lanes) -> None:
        place = _Place(cta, lanes, named, address(cta, lanes), name)
        memory, index = place.memory, _index(rows, lanes)
        warps = lane_sets.warps(lanes).tolist()
        both = (_first, _second)[: 1 + pack]
        unwritten = False
        for shifted in both:
            if place.together and memory.settled(shifted(place.cells), place.all_seen):
                continue
            for cells, seen in zip(place.each, place.all_seen, strict=True):
                try:
                    memory.load(shifted(cells), seen, name)
                except UninitializedRead:
                    unwritten = True
        place.check_thread_sync(cta, lanes, name, writes=False)
        if unwritten:
            origins = _follow_load(cta, lanes, place, both, targets)
            if reduced is not None:
                cta.undefined.put(operands.register(form.reduced, at), lanes, origins.max(axis=0))
        elif cta.undefined.registers:
            cta.undefined.put_all(touched, lanes, None)
        if place.together:
            words = words_of(place, place.cells)
        else:
            words = np.concatenate([words_of(place, cells) for cells in place.each], axis=1)
        cta.files[key][index] = words
        if reduced is not None:
            reduced(cta, lanes, words)
        for warp, agent, cells in zip(warps, place.agents.tolist(), place.each, strict=True):
            parts = [cells, _second(cells)] if pack else [cells]
            for part in parts:
                memory.issue("load", agent, part)
            arrival = Arrival(set(touched), partial(_arrive, cta, memory, agent, parts))
            cta.under_way.arriving.setdefault(warp, []).append(arrival)

    return run


def _follow_load(
    cta: Cta,
    lanes: Lanes,
    place: _Place,
    both: Sequence[Callable[[Cells], Cells]],
    targets: Sequence[Register],
) -> Origins:
    """Registers get the origins of the cells that are loaded, some of which nothing wrote."""
    name, memory = "tcgen05.ld", place.memory
    origins: Origins = np.zeros((len(targets), lane_sets.count(lanes)), np.int64)
    cells_of = np.zeros_like(origins)
    for shifted in both:
        pairs = [
            (shifted(each), seen) for each, seen in zip(place.each, place.all_seen, strict=True)
        ]
        found = [place.swap(memory.origins(each, seen, name)) for each, seen in pairs]
        named = [place.swap(numbers(each)) for each, _ in pairs]
        here, number = np.concatenate(found, axis=1), np.concatenate(named, axis=1)
        new = (here != 0) & (origins == 0)
        origins, cells_of = np.where(new, here, origins), np.where(new, number, cells_of)
    missing = origins == UNWRITTEN
    if missing.any():
        first = np.zeros(cta.threads, np.int64)
        first[lanes] = np.take_along_axis(cells_of, missing.argmax(axis=0)[None], axis=0)[0]
        mine = note_unwritten_load(cta, lanes, first, _unwritten_cell)
        origins = np.where(missing, mine, origins)
    for target, each in zip(targets, origins, strict=True):
        cta.undefined.put(target, lanes, each)
    return origins


def _unwritten_cell(number: int) -> str:
    lane, column = divmod(number, MOST_COLUMNS)
    return f"tensor memory lane {lane}, column {column} is read by tcgen05.ld, and nothing wrote it"


def _arrive(cta: Cta, memory: TensorMemory, agent: int, parts: list[Cells]) -> None:
    """A register of a load has been used."""
    event = cta.cluster.clocks.tick(np.array([agent]))
    for cells in parts:
        memory.complete_load(agent, event, cells)


@instruction("tcgen05.st", convergent=True, evidence=KERNELS, but="the rarer shapes: document")
def store(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    form, named = _decode(at, modifiers)
    unpack = form.unpacks
    key, rows = operands.rows(form.registers, at)
    address = operands.address(form.address, at)
    sources = [operands.find(text, at.scope) for text in form.registers]
    operands.flow = Flow(handled)
    name = "tcgen05.st"

    def run(cta: Cta, lanes: Lanes) -> None:
        place = _Place(cta, lanes, named, address(cta, lanes), name)
        memory = place.memory
        words = cta.files[key][_index(rows, lanes)]
        place.check_thread_sync(cta, lanes, name, writes=True)
        parts = [(_first, words & _LOW if unpack else words)]
        if unpack:
            parts.append((_second, words >> _HALF))
        cta.machine.progress += 1
        origins = None
        if cta.undefined.registers:
            origins = origins_of(cta, sources, _WORD_BYTES, lanes)
            if origins is not None:  # of whole cells
                origins = origins.reshape(-1, len(sources), _WORD_BYTES).max(axis=2).T
        for shifted, values in parts:
            for number, (agent, cells, seen) in enumerate(
                zip(place.agents, place.each, place.all_seen, strict=True)
            ):
                here = shifted(cells)
                memory.check_store(here, seen, name)
                first = number * WARP_THREADS
                memory.poke(here, place.swap(values[:, first : first + WARP_THREADS]))
                if origins is not None:
                    mine = origins[:, first : first + WARP_THREADS]
                    memory.mark_undefined(here, place.swap(mine))
                memory.issue("store", int(agent), here)

    return run


def _wait(access: Access) -> Run:
    def run(cta: Cta, lanes: Lanes) -> None:
        lane_sets.whole_warps(lanes)
        memory = tensor_core(cta).memory
        agents = cta.agents(lanes)
        event = cta.cluster.clocks.tick(agents)
        for warp, agent in zip(lane_sets.warps(lanes).tolist(), agents.tolist(), strict=True):
            memory.complete(access, agent, event)
            if access == "load":
                cta.under_way.arriving.pop(warp, None)
        cta.machine.progress += 1

    return run


@instruction("tcgen05.wait::ld", convergent=True, evidence=KERNELS)
def wait_for_loads(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    modifiers.form(Tcgen05Order)
    return _wait("load")


@instruction("tcgen05.wait::st", convergent=True, evidence=KERNELS)
def wait_for_stores(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    modifiers.form(Tcgen05Order)
    return _wait("store")
