"""Atomic operations (PTX ISA, "atom" and "red"), on global and shared memory.

Lanes that hit the same address take effect one after the other, lowest lane first. Atomic
operations on shared memory need no order among each other; an ordinary access before or after
them does. Their memory order modifiers release and acquire, with or without a fence beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.operands import Operands
from triton_ext.emulator.decode.step import Run
from triton_ext.emulator.errors import MemoryFault, UnsupportedInstruction
from triton_ext.emulator.instructions.common import PACKED, element, reader, writer
from triton_ext.emulator.instructions.floating import exact, extreme, flush
from triton_ext.emulator.instructions.moves import peer, split_generic, split_shared
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.clocks import Agents
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.memory import Bytes
from triton_ext.emulator.state.types import DTYPES, bits_of
from triton_ext.emulator.units import memory_order
from triton_ext.ptx.parse import Instruction

Array = NDArray[Any]
Update = Callable[..., Any]
"""(old, operand, second operand) -> new, of arrays of (lanes, elements)."""

_FLOATS = ("f16", "bf16", "f32", "f64")
_ORDERS = ("relaxed", "acquire", "release", "acq_rel")
_SCOPES = ("cta", "cluster", "gpu", "sys")
_VECTORS = {"v2": 2, "v4": 4, "v8": 8}
_OPERATIONS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
_MANY_ROUNDS = 4
"""From so many lanes at one address on, integer reductions are first reduced among themselves."""
_REDUCIBLE: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def _update(operation: str, kind: str, at: Instruction) -> Update:
    if kind in _FLOATS:
        if operation == "add":
            add = exact("add", kind)
            return lambda old, value, _: add(value, old)  # of two NaNs in f64, the old one stays
        if operation in ("min", "max"):
            largest = operation == "max"
            return lambda old, value, _: extreme(old, value, kind, largest=largest, propagate=False)
        raise UnsupportedInstruction(f".{operation} does not go with .{kind}", at)
    function = _REDUCIBLE.get(operation)
    if function is not None:
        return lambda old, value, _: function(old, value)
    one, none = (DTYPES.get(kind, DTYPES["u32"]).type(number) for number in (1, 0))
    return {
        "exch": lambda old, value, _: value,
        "cas": lambda old, value, new: np.where(old == value, new, old),
        "inc": lambda old, value, _: np.where(old >= value, none, old + one),
        "dec": lambda old, value, _: np.where((old == 0) | (old > value), value, old - one),
    }[operation]


def _rounds(addresses: Array) -> list[Array]:
    """Lanes in groups that have no address twice; of one address, the lower lane comes first."""
    order = np.argsort(addresses, kind="stable")
    ordered = addresses[order]
    new = np.empty(len(ordered), np.bool_)
    new[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    if new.all():
        return [np.arange(len(addresses))]
    starts = np.flatnonzero(new)
    rank = np.arange(len(ordered)) - np.repeat(starts, np.diff(np.append(starts, len(ordered))))
    return [order[rank == number] for number in range(int(rank.max()) + 1)]


class _Location:
    """Where an atomic operation works: reads and writes of (lanes, width) bytes."""

    def load(self, chosen: Array) -> Bytes:
        raise NotImplementedError

    def store(self, chosen: Array, values: Bytes) -> None:
        raise NotImplementedError


class _Global(_Location):
    def __init__(self, cta: Cta, addresses: Array, width: int) -> None:
        self.memory, self.addresses, self.width = cta.launch.memory, addresses, width

    def load(self, chosen: Array) -> Bytes:
        return self.memory.load(self.addresses[chosen], self.width)

    def store(self, chosen: Array, values: Bytes) -> None:
        self.memory.store(self.addresses[chosen], values)


class _Shared(_Location):
    """The shared memory of one block of the cluster."""

    def __init__(self, cta: Cta, rank: int, offsets: Array, width: int, agents: Agents) -> None:
        self.memory = peer(cta, rank).shared
        self.offsets, self.width, self.agents = offsets, width, agents
        self.event = cta.cluster.clocks.tick(np.unique(agents))

    def load(self, chosen: Array) -> Bytes:
        return self.memory.atomic_load(self.offsets[chosen], self.width, self.agents[chosen])

    def store(self, chosen: Array, values: Bytes) -> None:
        self.memory.atomic_store(self.offsets[chosen], values, self.agents[chosen], self.event)


class _Atomic:
    """A decoded atomic operation.

    Attributes:
        space: "global", "shared" or "" (generic).
        update: makes the new values.
        kind: the type of an element.
        width: bytes of an access.
        reducible: the ufunc of an integer reduction whose old value nobody wants, or None.
        floats: "f32" or "f64" of an addition: in global memory, those of f32 flush subnormals
            (PTX ISA, "atom"); those of f64 leave a signaling NaN as it is (so on an H100).
    """

    def __init__(
        self, space: str, order: str, update: Update, kind: str, width: int, reducible: Any,
        floats: str,
    ) -> None:  # fmt: skip
        self.space, self.order, self.update = space, order, update
        self.kind, self.width, self.reducible, self.floats = kind, width, reducible, floats
        self.dtype = (
            np.dtype("V16") if width == 16 and kind == "b128" else
            DTYPES["b16"] if kind == "bf16" else DTYPES[kind]
        )  # fmt: skip

    def apply(self, cta: Cta, lanes: Lanes, addresses: Array, value: Array, second: Array) -> Array:
        """Do it for (lanes, elements); the old values."""
        cta.machine.progress += 1
        old = np.empty(value.shape, self.dtype)
        for space, start, here in (
            split_generic(addresses)
            if self.space == ""
            else [(self.space, 0, np.ones(len(addresses), np.bool_))]
        ):
            chosen = np.flatnonzero(here)
            part = lanes if here.all() else lane_sets.select(lanes, here)
            if cta.machine.observer is not None:
                within = addresses[chosen] - start
                cta.machine.observer.access(cta, part, space, within, self.width, "atomic")
            old[chosen] = self._in_space(
                cta, part, space, addresses[chosen] - start, value[chosen], second[chosen]
            )
        return old

    def _in_space(
        self, cta: Cta, lanes: Lanes, space: str, addresses: Array, value: Array, second: Array
    ) -> Array:
        agents = cta.agents(lanes)
        if space == "global":
            memory_order.read(cta, memory_order.GLOBAL, agents, self.order)
            memory_order.write(cta, memory_order.GLOBAL, agents, self.order)
            update = {"f32": self._flushing, "f64": self._keeping}.get(self.floats, self.update)
            return self._rounds(
                _Global(cta, addresses, self.width), addresses, value, second, update
            )
        if space != "shared":
            raise MemoryFault(f"an atomic operation on .{space} memory")
        ranks, offsets = split_shared(addresses)
        of_lanes = cta.agents_of_lanes(lanes)
        old = np.empty(value.shape, self.dtype)
        for rank in np.unique(ranks):
            here = np.flatnonzero(ranks == rank)
            agents = np.unique(of_lanes[here])
            memory_order.read(cta, int(rank), agents, self.order)
            memory_order.write(cta, int(rank), agents, self.order)
            location = _Shared(cta, int(rank), offsets[here], self.width, of_lanes[here])
            old[here] = self._rounds(
                location, offsets[here], value[here], second[here], self.update
            )
        return old

    def _flushing(self, old: Array, value: Array, second: Array) -> Any:
        return flush(self.update(flush(old, "f32"), flush(value, "f32"), second), "f32")

    def _keeping(self, old: Array, value: Array, second: Array) -> Any:
        result = self.update(old, value, second)
        result = np.where(np.isnan(old), old, result)
        return np.where(np.isnan(value), value, result)

    def _rounds(
        self, location: _Location, addresses: Array, value: Array, second: Array, update: Update
    ) -> Array:
        old = np.empty(value.shape, self.dtype)
        rounds = _rounds(addresses)
        if self.reducible is not None and len(rounds) >= _MANY_ROUNDS:
            order = np.argsort(addresses, kind="stable")
            starts = np.flatnonzero(np.diff(addresses[order], prepend=addresses[order[0]] - 1))
            value = self.reducible.reduceat(value[order], starts, axis=0, dtype=self.dtype)
            chosen = order[starts]
            before = self._elements(location.load(chosen))
            location.store(chosen, self._bytes(update(before, value, value)))
            return old
        for chosen in rounds:
            before = self._elements(location.load(chosen))
            location.store(chosen, self._bytes(update(before, value[chosen], second[chosen])))
            old[chosen] = before
        return old

    def _elements(self, raw: Bytes) -> Array:
        return np.ascontiguousarray(raw).view(self.dtype)

    def _bytes(self, values: Any) -> Bytes:
        return np.ascontiguousarray(values, self.dtype).view(np.uint8)


def _values(
    texts: tuple[str, ...], type_name: str, at: Instruction, operands: Operands
) -> Callable[[Cta, Lanes], Array]:
    """Reads registers as (lanes, elements)."""
    if type_name == "b128":
        read_wide = operands.reader(texts[0], "b128", at)
        return lambda cta, lanes: np.ascontiguousarray(read_wide(cta, lanes)).view("V16")
    reads = [reader(text, type_name, at, operands) for text in texts]

    def values(cta: Cta, lanes: Lanes) -> Array:
        number = lane_sets.count(lanes)
        parts = [read(cta, lanes) for read in reads]
        return np.concatenate(
            [
                (np.full(number, part) if part.ndim == 0 else part).reshape(number, -1)
                for part in parts
            ],
            axis=1,
        )

    return values


@instruction("atom", "red")
def atomic(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    returns = at.opcode.startswith("atom")
    order = modifiers.one_of(_ORDERS, "relaxed")
    modifiers.one_of(_SCOPES)
    space = modifiers.one_of(("global", "shared", "shared::cta", "shared::cluster"))
    operation = modifiers.one_of(_OPERATIONS)
    modifiers.flag("noftz")
    hinted = modifiers.flag("L2::cache_hint")
    number = _VECTORS.get(modifiers.one_of(_VECTORS), 1)
    type_name = modifiers.one_of((*DTYPES, *PACKED, "b128"))
    if not operation or not type_name:
        raise UnsupportedInstruction("the operation or its type is not modelled", at)
    texts = list(at.operands)
    if hinted:
        texts.pop()
    target = texts.pop(0) if returns else "_"
    address = operands.address(texts.pop(0), at)
    if len(texts) != (2 if operation == "cas" else 1):
        raise UnsupportedInstruction("another number of operands is expected", at)
    sources = [_values(operands.vector(text), type_name, at, operands) for text in texts]
    kind = element(type_name)
    wanted = target != "_"
    reducible = _REDUCIBLE.get(operation) if kind not in _FLOATS and not wanted else None
    unit = _Atomic(
        space.split("::")[0],
        order,
        _update(operation, kind, at),
        kind,
        bits_of(type_name) // 8 * number,
        reducible,
        floats=kind if operation == "add" else "",
    )
    targets = operands.vector(target) if wanted else ()
    if wanted and len(targets) != number:
        raise UnsupportedInstruction(f"{len(targets)} registers for a vector of {number}", at)
    writers = [
        operands.writer(text, "b128", at)
        if type_name == "b128"
        else writer(text, type_name, at, operands)
        for text in targets
    ]

    def run(cta: Cta, lanes: Lanes) -> None:
        values = [read(cta, lanes) for read in sources]
        old = unit.apply(cta, lanes, address(cta, lanes), values[0], values[-1])
        each = old.shape[1] // number
        for position, write in enumerate(writers):
            part = np.ascontiguousarray(old[:, position * each : (position + 1) * each])
            write(cta, lanes, part.view(np.uint64) if type_name == "b128" else part.reshape(-1))

    return run
