"""Atomic operations (PTX ISA, "atom" and "red"), on global and shared memory.

Lanes that hit the same address take effect one after the other, lowest lane first. Atomic
operations on shared memory need no order among each other; an ordinary access before or after
them does. Their memory order modifiers release and acquire, with or without a fence beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.evidence import SILICON
from triton_ext.emulator.decode.operands import Operands
from triton_ext.emulator.decode.step import Run
from triton_ext.emulator.decode.values import (
    PACKED,
    dtype_of,
    element,
    vector_reader,
    vector_writer,
)
from triton_ext.emulator.errors import MemoryFault, UnsupportedInstruction
from triton_ext.emulator.instructions.moves import peer, split_generic, split_shared
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.clocks import Agents
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.memory import Bytes
from triton_ext.emulator.state.types import DTYPES, bits_of
from triton_ext.emulator.units import accessors, memory_order
from triton_ext.emulator.units.floats import KINDS, flush
from triton_ext.emulator.units.reductions import INTEGER, OPERATIONS, update
from triton_ext.ptx.parse import Instruction

Array = NDArray[Any]
Update = Callable[..., Any]
"""(old, operand, second operand) -> new, of arrays of (lanes, elements)."""

_ORDERS = ("relaxed", "acquire", "release", "acq_rel")
_VECTORS = {"v2": 2, "v4": 4, "v8": 8}
_EXCHANGES: dict[str, Update] = {
    "exch": lambda old, value, _: value,
    "cas": lambda old, value, new: np.where(old == value, new, old),
}
_MANY_ROUNDS = 4
"""From so many lanes at one address on, integer reductions are first reduced among themselves."""


def _update(operation: str, kind: str, at: Instruction) -> Update:
    if operation in _EXCHANGES and kind not in KINDS:
        return _EXCHANGES[operation]
    try:
        function = update(operation, kind)
    except KeyError:
        raise UnsupportedInstruction(f".{operation} does not go with .{kind}", at) from None
    return lambda old, value, _: function(old, value)


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


@dataclass(frozen=True)
class _Atomic:
    """A decoded atomic operation.

    Attributes:
        space: "global", "shared" or "" (generic).
        order: its memory order: "relaxed", "acquire", "release" or "acq_rel".
        scope: how far it reaches: see `memory_order.SCOPES`.
        update: makes the new values.
        dtype: numpy's type of an element.
        width: bytes of an access.
        reducible: the ufunc of an integer reduction whose old value nobody wants, or None.
        floats: "f32" or "f64" of an addition: in global memory, those of f32 flush subnormals
            (PTX ISA, "atom"); those of f64 leave a signaling NaN as it is (so on an H100).
    """

    space: str
    order: str
    scope: int
    update: Update
    dtype: np.dtype[Any]
    width: int
    reducible: Any
    floats: str

    def apply(self, cta: Cta, lanes: Lanes, addresses: Array, value: Array, second: Array) -> Array:
        """Do it for (lanes, elements); the old values."""
        old = np.empty(value.shape, self.dtype)
        for space, start, here in (
            split_generic(addresses)
            if self.space == ""
            else [(self.space, 0, np.ones(len(addresses), np.bool_))]
        ):
            chosen = np.flatnonzero(here)
            part = lanes if here.all() else lane_sets.select(lanes, here)
            within = addresses[chosen] - start
            cta.machine.observer.access(cta, part, space, within, self.width, "atomic")
            apply = {"global": self._in_global, "shared": self._in_shared}.get(space)
            if apply is None:
                raise MemoryFault(f"an atomic operation on .{space} memory")
            old[chosen] = apply(cta, part, within, value[chosen], second[chosen])
        return old

    def _in_global(
        self, cta: Cta, lanes: Lanes, addresses: Array, value: Array, second: Array
    ) -> Array:
        memory, agents = cta.launch.memory, cta.agents.of_lanes(lanes)
        memory_order.read_global(cta, agents, addresses, self.order, self.scope)
        by = accessors.threads(cta, lanes, self.scope)
        memory_order.write_global(cta, agents, addresses, self.order, self.scope)

        def mine(chosen: Array) -> accessors.By | None:
            return by and by.lanes(chosen)

        old, changed = self._rounds(
            addresses,
            value,
            second,
            {"f32": self._flushing, "f64": self._keeping}.get(self.floats, self.update),
            lambda chosen: memory.load(addresses[chosen], self.width, mine(chosen)),
            lambda chosen, values: memory.store(addresses[chosen], values, mine(chosen)),
        )
        if changed:
            cta.machine.progress += 1
            cta.machine.changes += 1
        else:
            warp = int(agents[0]) - cta.agents.first
            cta.machine.polled(cta, warp, int(addresses[0]), old[0].tobytes())
        return old

    def _in_shared(
        self, cta: Cta, lanes: Lanes, addresses: Array, value: Array, second: Array
    ) -> Array:
        ranks, offsets = split_shared(addresses)
        by_lane = cta.agents.of_lanes(lanes)
        old = np.empty(value.shape, self.dtype)
        for rank in np.unique(ranks):
            here = np.flatnonzero(ranks == rank)
            old[here] = self._in_block(
                cta, int(rank), offsets[here], by_lane[here], value[here], second[here]
            )
        return old

    def _in_block(
        self, cta: Cta, rank: int, offsets: Array, by_lane: Agents, value: Array, second: Array
    ) -> Array:
        """In the shared memory of one block of the cluster."""
        agents = np.unique(by_lane)
        memory_order.read(cta, rank, agents, self.order)
        memory_order.write(cta, rank, agents, self.order)
        memory, event = peer(cta, rank).shared, cta.cluster.clocks.tick(agents)
        old, changed = self._rounds(
            offsets,
            value,
            second,
            self.update,
            lambda chosen: memory.atomic_load(offsets[chosen], self.width, by_lane[chosen]),
            lambda chosen, values: memory.atomic_store(
                offsets[chosen], values, by_lane[chosen], event
            ),
        )
        cta.machine.progress += changed
        return old

    def _flushing(self, old: Array, value: Array, second: Array) -> Any:
        return flush(self.update(flush(old, "f32"), flush(value, "f32"), second), "f32")

    def _keeping(self, old: Array, value: Array, second: Array) -> Any:
        result = self.update(old, value, second)
        result = np.where(np.isnan(old), old, result)
        return np.where(np.isnan(value), value, result)

    def _rounds(
        self,
        addresses: Array,
        value: Array,
        second: Array,
        update: Update,
        load: Callable[[Array], Bytes],
        store: Callable[[Array, Bytes], None],
    ) -> tuple[Array, bool]:
        """Read, compute and write, as often as an address comes; `load` and `store` take lanes.

        Returns:
            The old values, and whether memory has changed.
        """
        changed = False

        def change(chosen: Array, value: Array, second: Array) -> Array:
            nonlocal changed
            bytes_before = np.ascontiguousarray(load(chosen))
            before = bytes_before.view(self.dtype)
            after = np.ascontiguousarray(update(before, value, second), self.dtype).view(np.uint8)
            changed = changed or not np.array_equal(bytes_before, after)
            store(chosen, after)
            return before

        old = np.empty(value.shape, self.dtype)
        rounds = _rounds(addresses)
        if self.reducible is not None and len(rounds) >= _MANY_ROUNDS:
            order = np.argsort(addresses, kind="stable")
            starts = np.flatnonzero(np.diff(addresses[order], prepend=addresses[order[0]] - 1))
            value = self.reducible.reduceat(value[order], starts, axis=0, dtype=self.dtype)
            change(order[starts], value, value)
            return old, changed
        for chosen in rounds:
            old[chosen] = change(chosen, value[chosen], second[chosen])
        return old, changed


@instruction("atom red", evidence=SILICON, but="128 bits: document")
def atomic(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    returns = at.opcode.startswith("atom")
    order = modifiers.one_of(_ORDERS, "relaxed")
    scope = memory_order.SCOPES[modifiers.one_of(("cta", "cluster", "gpu", "sys"))]
    space = modifiers.one_of(("global", "shared", "shared::cta", "shared::cluster"))
    operation = modifiers.one_of((*OPERATIONS, *_EXCHANGES))
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
    sources = [vector_reader(operands.vector(text), type_name, at, operands) for text in texts]
    kind, dtype = element(type_name), dtype_of(type_name)
    wanted = target != "_"
    unit = _Atomic(
        space.split("::")[0],
        order,
        scope,
        _update(operation, kind, at),
        np.dtype("V16") if kind == "b128" else dtype,
        bits_of(type_name) // 8 * number,
        INTEGER.get(operation) if kind not in KINDS and not wanted else None,
        kind if operation == "add" else "",
    )
    targets = operands.vector(target) if wanted else ()
    if wanted and len(targets) != number:
        raise UnsupportedInstruction(f"{len(targets)} registers for a vector of {number}", at)
    write = vector_writer(targets, type_name, at, operands)

    def run(cta: Cta, lanes: Lanes) -> None:
        values = [np.ascontiguousarray(read(cta, lanes)).view(unit.dtype) for read in sources]
        old = unit.apply(cta, lanes, address(cta, lanes), values[0], values[-1])
        if wanted:
            write(cta, lanes, old.view(dtype))

    return run
