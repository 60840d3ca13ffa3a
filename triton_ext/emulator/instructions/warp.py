"""Exchange within a warp (PTX ISA, "shfl.sync", "vote.sync", "match.sync", "redux.sync", ...).

All warps of the lanes are done in one operation, as rows of 32. An instruction with a member mask
waits until all living threads of the mask stand at it; those that the mask leaves out need not
come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.evidence import COMPILED, DOCUMENT, SILICON
from triton_ext.emulator.decode.flow import Flow, handled
from triton_ext.emulator.decode.operands import Operands, Reader, Writer
from triton_ext.emulator.decode.step import Outcome, Park, Run
from triton_ext.emulator.errors import ConvergenceFault, UnsupportedInstruction
from triton_ext.emulator.instructions.moves import note_unwritten_load
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.storage import Register
from triton_ext.emulator.state.types import DTYPES
from triton_ext.emulator.units.floats import canonical, extreme, is_nan
from triton_ext.emulator.units.reductions import INTEGER
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.ptx.parse import Instruction, immediate

Array = NDArray[Any]

_ALL = np.uint32(0xFFFFFFFF)
_LANE = np.arange(WARP_THREADS)
_BIT = (np.uint32(1) << _LANE.astype(np.uint32)).astype(np.uint32)


def _whole_warps(lanes: Lanes) -> bool:
    """Whether the lanes are consecutive whole warps."""
    return (
        isinstance(lanes, slice)
        and not lanes.start % WARP_THREADS
        and not lanes.stop % WARP_THREADS
    )


class Rows:
    """Lanes as rows of 32, one for each warp.

    Attributes:
        present: (warps, 32): which threads of the warps the lanes are.
    """

    def __init__(self, lanes: Lanes) -> None:
        threads = lane_sets.indices(lanes)
        if _whole_warps(lanes):
            self.count = len(threads) // WARP_THREADS
            self._at = None
            self.present = np.ones((self.count, WARP_THREADS), np.bool_)
            return
        numbers, row = np.unique(threads // WARP_THREADS, return_inverse=True)
        self.count = len(numbers)
        self._at = (row, threads % WARP_THREADS)
        self.present = np.zeros((self.count, WARP_THREADS), np.bool_)
        self.present[self._at] = True

    @property
    def whole(self) -> bool:
        """Whether all threads of all warps are there."""
        return self._at is None

    def of(self, value: Array) -> Array:
        """Values of the lanes (or one for all) as (warps, 32); 0 where a thread is not there."""
        if value.ndim == 0:
            return np.broadcast_to(value, (self.count, WARP_THREADS))
        if self._at is None:
            return value.reshape(self.count, WARP_THREADS)
        rows = np.zeros((self.count, WARP_THREADS), value.dtype)
        rows[self._at] = value
        return rows

    def lanes(self, rows: Array) -> Array:
        """The lanes' values out of (warps, 32)."""
        rows = np.broadcast_to(rows, (self.count, WARP_THREADS))
        return rows.reshape(-1) if self._at is None else rows[self._at]


def ballot(rows: Array) -> Array:
    """(warps, 32) truth values as (warps, 1) masks."""
    masks: Array = np.where(rows, _BIT, np.uint32(0)).sum(axis=1, dtype=np.uint32)
    return masks[:, None]


class Members:
    """The lanes of an instruction whose member masks are complete, by warps.

    Args:
        read: the masks.

    Raises:
        ConvergenceFault: a thread that its own mask leaves out.
    """

    def __init__(self, read: Reader, cta: Cta, lanes: Lanes) -> None:
        self.rows = Rows(lanes)
        self.masks = self.rows.of(read(cta, lanes))
        self.lanes: Lanes | None = lanes
        """Those that execute it now; None: none of them."""
        self.outcome: Park | None = None
        """The others wait for the rest of their masks."""
        rows, masks = self.rows, self.masks
        if rows.whole and (masks == _ALL).all():
            return
        outside = rows.present & ((masks & _BIT) == 0)
        if outside.any():
            lane = int(np.argwhere(outside)[0][1])
            raise ConvergenceFault(f"lane {lane} executes it, and its member mask leaves it out")
        if rows.whole:
            return
        living = np.zeros(cta.warps * WARP_THREADS, np.bool_)
        living[: cta.threads] = cta.live
        alive = ballot(living.reshape(-1, WARP_THREADS)[lane_sets.warps(lanes)])
        complete = rows.lanes((masks & alive & ~ballot(rows.present)) == 0)
        if complete.all():
            return
        if not complete.any():
            self.lanes, self.outcome = None, Park(lanes)
            return
        self.outcome = Park(lane_sets.select(lanes, ~complete))
        self.lanes = lane_sets.select(lanes, complete)
        self.rows = Rows(self.lanes)
        self.masks = self.rows.of(read(cta, self.lanes))


def _targets(at: Instruction, operands: Operands) -> tuple[Writer, Writer | None]:
    """Writes ``d|p``: 32 bits, and a predicate, which may be missing."""
    target, _, predicate = (part.strip() for part in at.operands[0].partition("|"))
    write = operands.writer(target, "b32", at)
    return write, operands.writer(predicate, "pred", at) if predicate else None


def _found(texts: Sequence[str], at: Instruction, operands: Operands) -> list[Register]:
    """The registers among some operands."""
    found = (operands.find(text.strip(" !"), at.scope) for text in texts)
    return [register for register in found if register is not None]


def _together(at: Instruction, operands: Operands) -> Callable[[Cta, Lanes, Rows, Array], None]:
    """Every lane's result is undefined if the value of one that takes part is."""
    value, masks_of = (_found(texts, at, operands) for texts in (at.operands[1:2], at.operands[2:]))
    targets = _found(at.operands[0].split("|"), at, operands)
    operands.flow = Flow(handled)

    def follow(cta: Cta, lanes: Lanes, rows: Rows, masks: Array) -> None:
        undefined = cta.undefined
        if not undefined.registers:
            return
        undefined.check(masks_of, lanes, "the value is a member mask")
        origins = undefined.of_any(value, lanes)
        if origins is not None:
            members = np.where((masks & _BIT) != 0, rows.of(origins), 0)
            origins = rows.lanes(members.max(axis=1, keepdims=True))
        undefined.put_all(targets, lanes, origins)

    return follow


def _by_groups(rows: Rows, masks: Array, each: Callable[[Array], Array]) -> Array:
    """What lanes of a warp get that reduce, or elect, together: those that give one mask, as tiles
    of cooperative groups do. `each`: (warps, 32), who is of the group -> (warps, 1) or more."""
    if (masks == masks[:, :1])[rows.present].all():
        return each(rows.present & ((masks & _BIT) != 0))
    groups = [rows.present & (masks == mask) for mask in np.unique(masks[rows.present])]
    result = each(groups[0])
    for group in groups[1:]:
        result = np.where(group, each(group), result)
    return result


def _everyone(mask: str) -> bool:
    """Whether a member mask is a constant that names all lanes."""
    value = immediate(mask)
    return value is not None and value & 0xFFFFFFFF == 0xFFFFFFFF


def _by_members(
    read: Reader,
    execute: Callable[[Cta, Lanes, Rows, Array], None],
    quick: Callable[[Cta, Lanes], None] | None = None,
) -> Run:
    """`execute` for the lanes whose masks are complete. `quick`: does the same where the lanes are
    consecutive whole warps, all of them members."""

    def run(cta: Cta, lanes: Lanes) -> Outcome:
        if quick is not None and _whole_warps(lanes):
            quick(cta, lanes)
            return None
        members = Members(read, cta, lanes)
        if members.lanes is not None:
            execute(cta, members.lanes, members.rows, members.masks)
        return members.outcome

    return run


@instruction("bar.warp.sync", evidence=COMPILED, lockstep=True)
@instruction("barrier.warp.sync", evidence=DOCUMENT, lockstep=True)
def warp_barrier(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """A warp is one agent to the memory model: only the threads must meet."""
    read_mask = operands.reader(at.operands[0], "b32", at)
    return lambda cta, lanes: Members(read_mask, cta, lanes).outcome


@instruction("activemask", evidence=SILICON, lockstep=True)
def active_mask(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    modifiers.type()
    write = operands.writer(at.operands[0], "b32", at)

    def run(cta: Cta, lanes: Lanes) -> None:
        rows = Rows(lanes)
        write(cta, lanes, rows.lanes(ballot(rows.present)))

    return run


@instruction("shfl.sync", evidence=SILICON, lockstep=True)
def shuffle(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``shfl.sync``: another lane's value within a segment; one's own where there is none.

    What a lane gets of one that does not take part is undefined: its own value, which must not be
    used.
    """
    mode = modifiers.one_of(("up", "down", "bfly", "idx"))
    modifiers.type()
    read, read_b, read_c = (operands.reader(text, "b32", at) for text in at.operands[1:4])
    read_mask = operands.reader(at.operands[4], "b32", at)
    write, write_p = _targets(at, operands)
    value = operands.find(at.operands[1], at.scope)
    controls = _found(at.operands[2:], at, operands)
    targets = [operands.find(text.strip(), at.scope) for text in at.operands[0].split("|")]
    operands.flow = Flow(handled)

    def follow(cta: Cta, lanes: Lanes, exchange: Callable[[Array], Array]) -> None:
        """Lanes get the origins of the values that they get."""
        undefined = cta.undefined
        undefined.check(controls, lanes, "the value says which lane's value is taken")
        origins = None if value is None else undefined.of(value, lanes)
        if origins is not None:
            origins = np.stack([exchange(each) for each in origins])
        for target, gets in zip(targets, (origins, None), strict=False):
            if target is not None:
                undefined.put(target, lanes, gets)

    def execute(cta: Cta, lanes: Lanes, rows: Rows, masks: Array) -> None:
        values = rows.of(read(cta, lanes))
        step, control = rows.of(read_b(cta, lanes)), rows.of(read_c(cta, lanes))
        source, valid = _shuffle_source(mode, step.astype(np.int64), control.astype(np.int64))
        asked, there = (
            source,
            np.take_along_axis(rows.present & (masks & _BIT != 0), source, axis=1),
        )
        source = np.where(there, source, _LANE)
        if cta.undefined.registers:
            follow(
                cta,
                lanes,
                lambda each: rows.lanes(np.take_along_axis(rows.of(each), source, axis=1)),
            )
        write(cta, lanes, rows.lanes(np.take_along_axis(values, source, axis=1)))
        if write_p is not None:
            write_p(cta, lanes, rows.lanes(valid))
        if not there.all() and targets[0] is not None:
            _leave_undefined(cta, lanes, targets[0], rows.lanes(np.where(there, -1, asked)))

    constants = [immediate(text) for text in at.operands[2:4]]
    if constants[0] is None or constants[1] is None or not _everyone(at.operands[4]):
        return _by_members(read_mask, execute)
    step, control = (np.asarray(number & 0xFFFFFFFF) for number in (constants[0], constants[1]))
    sources, valids = _shuffle_source(mode, step, control)

    def exchange(each: Array) -> Array:
        return each if each.ndim == 0 else each.reshape(-1, 32)[:, sources].reshape(-1)

    def quick(cta: Cta, lanes: Lanes) -> None:
        if cta.undefined.registers:
            follow(cta, lanes, exchange)
        write(cta, lanes, exchange(read(cta, lanes)))
        if write_p is not None:
            write_p(cta, lanes, np.resize(valids, lane_sets.count(lanes)))

    return _by_members(read_mask, execute, quick)


def _leave_undefined(cta: Cta, lanes: Lanes, target: Register, asked: Array) -> None:
    """Lanes have asked for the value of one that does not take part. `asked`: (lanes,): for which;
    -1 if that one takes part."""
    places = np.zeros(cta.threads, np.int64)
    places[lanes] = asked
    origins = note_unwritten_load(cta, lanes, places, _absent_lane)
    before = cta.undefined.of(target, lanes)
    kept: Array = np.zeros(1, np.int64) if before is None else before
    cta.undefined.put(target, lanes, np.where(asked < 0, kept, origins))


def _absent_lane(lane: int) -> str:
    return (
        f"shfl.sync asks for the value of lane {lane}, which does not take part: it has exited, or"
        " the member mask leaves it out"
    )


def _shuffle_source(mode: str, step: Array, control: Array) -> tuple[Array, Array]:
    """Whose value each lane gets, and whether that is within its segment (PTX ISA, "shfl.sync")."""
    step = step & 31
    clamp, segment = control & 31, control >> 8 & 31
    first = _LANE & segment
    last = first | (clamp & ~segment)
    if mode == "up":
        source = _LANE - step
        valid = source >= last
    else:
        if mode == "down":
            source = _LANE + step
        elif mode == "bfly":
            source = _LANE ^ step
        else:
            source = first | (step & ~segment)
        valid = source <= last
    return np.where(valid, source, _LANE), valid


_VOTES: dict[str, Callable[[Array, Array], Array]] = {
    "ballot": lambda yes, here: yes,
    "any": lambda yes, here: yes != 0,
    "all": lambda yes, here: yes == here,
    "uni": lambda yes, here: (yes == here) | (yes == 0),
}
"""The result, from the mask of lanes that say yes and that of all which take part."""


@instruction("vote.sync", evidence=SILICON, lockstep=True)
def vote(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    mode = modifiers.one_of(("all", "any", "uni", "ballot"))
    kind = modifiers.one_of(("pred", "b32"))
    if (mode == "ballot") != (kind == "b32"):
        raise UnsupportedInstruction(".ballot goes with .b32, the others with .pred", at)
    read = operands.reader(at.operands[1], "pred", at)
    read_mask = operands.reader(at.operands[2], "b32", at)
    write = operands.writer(at.operands[0], kind, at)
    follow = _together(at, operands)

    def execute(cta: Cta, lanes: Lanes, rows: Rows, masks: Array) -> None:
        follow(cta, lanes, rows, masks)
        here = ballot(rows.present) & masks
        yes = ballot(rows.of(read(cta, lanes)) & rows.present) & masks
        result = _VOTES[mode](yes, here)
        write(cta, lanes, rows.lanes(result))

    if mode != "ballot" or not _everyone(at.operands[2]):
        return _by_members(read_mask, execute)

    def quick(cta: Cta, lanes: Lanes) -> None:
        if cta.undefined.registers:
            follow(cta, lanes, Rows(lanes), np.asarray([[_ALL]]))
        yes = np.broadcast_to(read(cta, lanes), lane_sets.count(lanes)).reshape(-1, WARP_THREADS)
        write(cta, lanes, np.packbits(yes, axis=1, bitorder="little").view(np.uint32).repeat(32))

    return _by_members(read_mask, execute, quick)


@instruction("match.any.sync match.all.sync", evidence=SILICON, lockstep=True)
def match(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``match``: the lanes of the mask with the same value; or the mask, if all have it."""
    every = at.opcode.startswith("match.all")
    type_name = modifiers.type()
    read = operands.reader(at.operands[1], type_name, at)
    read_mask = operands.reader(at.operands[2], "b32", at)
    write, write_p = _targets(at, operands)
    follow = _together(at, operands)

    def execute(cta: Cta, lanes: Lanes, rows: Rows, masks: Array) -> None:
        follow(cta, lanes, rows, masks)
        values = rows.of(read(cta, lanes))
        same = (values[:, :, None] == values[:, None, :]) & rows.present[:, None, :]
        found = np.where(same, _BIT, np.uint32(0)).sum(axis=2, dtype=np.uint32) & masks
        if every:
            agreed = found == (ballot(rows.present) & masks)
            found = np.where(agreed, masks & ballot(rows.present), np.uint32(0))
            if write_p is not None:
                write_p(cta, lanes, rows.lanes(agreed))
        write(cta, lanes, rows.lanes(found))

    return _by_members(read_mask, execute)


@instruction("elect.sync", evidence=SILICON, lockstep=True)
def elect(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``elect.sync d|p, mask``: the lowest lane of the mask that is there is the leader."""
    read_mask = operands.reader(at.operands[1], "b32", at)
    write, write_p = _targets(at, operands)
    if write_p is None:
        raise UnsupportedInstruction("its predicate is missing", at)

    def execute(cta: Cta, lanes: Lanes, rows: Rows, masks: Array) -> None:
        leader = _by_groups(rows, masks, lambda group: group.argmax(axis=1)[:, None])
        write(cta, lanes, rows.lanes(leader.astype(np.uint32)))
        write_p(cta, lanes, rows.lanes(leader == _LANE))

    if not _everyone(at.operands[1]):
        return _by_members(read_mask, execute)

    first = _LANE == 0

    def quick(cta: Cta, lanes: Lanes) -> None:
        write(cta, lanes, np.uint32(0))
        warps = lane_sets.count(lanes) // WARP_THREADS
        write_p(cta, lanes, first if warps == 1 else np.concatenate([first] * warps))

    return _by_members(read_mask, execute, quick)


@instruction("redux.sync", evidence=SILICON, but="f32: document", lockstep=True)
def reduce(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``redux.sync``: over the lanes of the mask; f32 has min and max alone, on sm_100a."""
    operation = modifiers.one_of(INTEGER)
    magnitudes, propagate = modifiers.flag("abs"), modifiers.flag("NaN")
    type_name = modifiers.type()
    read = operands.reader(at.operands[1], type_name, at)
    read_mask = operands.reader(at.operands[2], "b32", at)
    write = operands.writer(at.operands[0], type_name, at)
    if type_name != "f32" and (magnitudes or propagate):
        raise UnsupportedInstruction(".abs and .NaN go with .f32", at)
    follow = _together(at, operands)
    combine: Callable[[Array, Array], Array]
    if type_name == "f32":
        if operation not in ("min", "max"):
            raise UnsupportedInstruction("redux.sync of .f32 has min and max", at)
        combine = _float_reduction(operation == "max", magnitudes, propagate)
    else:
        combine = _integer_reduction(operation, DTYPES[type_name])

    def execute(cta: Cta, lanes: Lanes, rows: Rows, masks: Array) -> None:
        follow(cta, lanes, rows, masks)
        values = rows.of(read(cta, lanes))
        result = _by_groups(rows, masks, lambda group: combine(values, group))
        write(cta, lanes, rows.lanes(result))

    return _by_members(read_mask, execute)


def _integer_reduction(operation: str, dtype: np.dtype[Any]) -> Callable[[Array, Array], Array]:
    """(values, who takes part), both (warps, 32) -> (warps, 1)."""
    info, function = np.iinfo(dtype), INTEGER[operation]
    identities = {"min": info.max, "max": info.min, "and": np.asarray(-1).astype(dtype)[()]}
    identity = dtype.type(identities.get(operation, 0))

    def combine(values: Array, members: Array) -> Array:
        chosen = np.where(members, values, identity)
        return np.asarray(function.reduce(chosen, axis=1, dtype=dtype)[:, None])

    return combine


def _float_reduction(
    largest: bool, magnitudes: bool, propagate: bool
) -> Callable[[Array, Array], Array]:
    """(values, who takes part), both (warps, 32) -> (warps, 1)."""

    def combine(values: Array, members: Array) -> Array:
        if magnitudes:
            values = np.abs(values)
        # A NaN loses to any number, so it may stand for those who do not take part.
        result = np.where(members, values, np.float32(np.nan))
        while result.shape[1] > 1:
            left, right = (half.copy() for half in np.split(result, 2, axis=1))
            result = extreme(left, right, "f32", largest=largest)
        if propagate:
            any_nan = (is_nan(values, "f32") & members).any(axis=1, keepdims=True)
            result = np.where(any_nan, np.float32(np.nan), result)
        return canonical(result, "f32")

    return combine
