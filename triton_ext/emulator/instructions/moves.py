"""Moves, loads and stores of the generic proxy (PTX ISA, "Data Movement")."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.evidence import COMPILED, DOCUMENT, SILICON
from triton_ext.emulator.decode.flow import Flow, handled, moved, origins_of, put_parts
from triton_ext.emulator.decode.operands import Operands, Reader
from triton_ext.emulator.decode.step import Run
from triton_ext.emulator.decode.swap_loops import begun_by
from triton_ext.emulator.decode.values import dtype_of, vector_reader, vector_writer
from triton_ext.emulator.errors import MemoryFault, UninitializedRead, UnsupportedInstruction
from triton_ext.emulator.instructions.elementwise import Function, Row, Variant
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.leniencies import SWAP_LOOP
from triton_ext.emulator.state.memory import (
    LOCAL_WINDOW,
    PARAM_WINDOW,
    RANK_SHIFT,
    SHARED_WINDOW,
    WINDOW_SHIFT,
    WINDOWS,
    Addresses,
    Bytes,
    check_aligned,
)
from triton_ext.emulator.state.types import DTYPES, bits_of
from triton_ext.emulator.state.undefined import UNWRITTEN, Origins, UnwrittenLoad
from triton_ext.emulator.units import accessors, memory_order
from triton_ext.emulator.units.mbarriers import causes
from triton_ext.ptx.parse import Instruction

_SPACES = ("global", "shared", "shared::cta", "shared::cluster", "local", "param", "const",
           "param::entry", "param::func")  # fmt: skip
_VECTOR_BITS = 128
"""PTX ISA, "ld": what ``.v8``, and ``.v4`` of 64 bits, need: ``.global``, and sm_100."""
_ADDRESS = (1 << 64) - 1
_WINDOW_OF = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW}
_HINTS = ("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "weak", "gpu", "cta", "sys", "cluster",
          "unified")  # fmt: skip


@instruction("mov", evidence=COMPILED, lockstep=True)
def move(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``mov``: also packs ``{a, b}`` into a wider register, and unpacks it."""
    type_name = modifiers.one_of((*DTYPES, "b128"))
    target, source = at.operands
    bits = bits_of(type_name)
    parts = operands.vector(target if target.startswith("{") else source)
    sources, targets = (
        [operands.find(part, at.scope) for part in operands.vector(each)]
        for each in (source, target)
    )
    operands.flow = moved(sources, targets, max(1, bits // 8))
    each = bits // len(parts)
    if bits == 64 and each == 32:
        return _pair(at, operands, parts)
    if target.startswith("{"):
        read = operands.reader(source, f"b{bits}", at)
        write = vector_writer(parts, f"b{each}", at, operands)

        def unpack(cta: Cta, lanes: Lanes) -> None:
            number = lane_sets.count(lanes)
            whole = np.broadcast_to(read(cta, lanes), (number, 2) if bits == 128 else number)
            split = np.ascontiguousarray(whole).view(f"u{each // 8}")
            write(cta, lanes, split.reshape(number, -1))

        return unpack
    if source.startswith("{"):
        read = vector_reader(parts, f"b{each}", at, operands)
        write, dtype = operands.writer(target, f"b{bits}", at), dtype_of(f"b{bits}")
        chosen = slice(None) if bits == 128 else 0
        return lambda cta, lanes: write(cta, lanes, read(cta, lanes).view(dtype)[:, chosen])
    read, write = operands.reader(source, type_name, at), operands.writer(target, type_name, at)
    return lambda cta, lanes: write(cta, lanes, read(cta, lanes))


def _pair(at: Instruction, operands: Operands, parts: Sequence[str]) -> Run:
    """Between two registers of 32 bits and one of 64: the most frequent vector."""
    target, source = at.operands
    if target.startswith("{"):
        read = operands.reader(source, "b64", at)
        first, second = (operands.writer(part, "b32", at) for part in parts)

        def unpack(cta: Cta, lanes: Lanes) -> None:
            halves = np.ascontiguousarray(lane_sets.each(read(cta, lanes), lanes)).view(np.uint32)
            first(cta, lanes, halves[::2])
            second(cta, lanes, halves[1::2])

        return unpack
    low, high = (operands.reader(part, "b32", at) for part in parts)
    write = operands.writer(target, "b64", at)

    def pack(cta: Cta, lanes: Lanes) -> None:
        halves = np.empty((lane_sets.count(lanes), 2), np.uint32)
        halves[:, 0], halves[:, 1] = low(cta, lanes), high(cta, lanes)
        write(cta, lanes, halves.reshape(-1).view(np.uint64))

    return pack


def _convert_address(form: Variant) -> Function:
    """``cvta``: between the addresses of a space and generic ones."""
    window = _WINDOW_OF.get(form.one_of(_SPACES).split("::")[0], 0)
    if form.type == "u32" and window:
        raise ValueError("generic addresses have 64 bits")
    offset = np.asarray(-window & _ADDRESS if "to" in form else window, np.uint64)
    offset = offset.astype(form.dtype)
    return lambda address: address + offset


def _is_space(form: Variant) -> Function:
    numbers = {name: np.uint64(number) for number, name in WINDOWS.items()}
    wanted = numbers.get(form.one_of(_SPACES).split("::")[0], np.uint64(0))
    return lambda address: address >> np.uint64(WINDOW_SHIFT) == wanted


ROWS = (
    Row(SILICON, "cvta", f"{'|'.join(_SPACES)} to?", "u32 u64", "t = t", make=_convert_address),
    Row(DOCUMENT, "isspacep", "|".join(_SPACES), "", "pred = u64", make=_is_space),
)


def load_bytes(
    cta: Cta,
    lanes: Lanes,
    space: str,
    addresses: Addresses,
    width: int,
    order: str = "",
    scope: int = 0,
    origins: Origins | None = None,
) -> Bytes:
    """(lanes, width) bytes from a space ("" is generic), through the generic proxy.

    Args:
        order: one of `memory_order.STRONG`, or "" for a weak access.
        scope: of a strong one.
        origins: (lanes, width): filled with those of the bytes of a weak access that was refused
            because nothing wrote some of them.
    """
    values: Bytes
    if space == "":
        values = np.empty((len(addresses), width), np.uint8)
        for name, window, here in split_generic(addresses):
            part = lanes if here.all() else lane_sets.select(lanes, here)
            found: Origins | None = None if origins is None else origins[here]
            values[here] = load_bytes(
                cta, part, name, addresses[here] - window, width, order, scope, found
            )
            if origins is not None and found is not None:
                origins[here] = found
        return values
    if origins is None:
        cta.machine.observer.access(cta, lanes, space, addresses, width, "load")
    if space in ("global", "const"):
        if order:
            agents = cta.agents.of_lanes(lanes)
            memory_order.read_global(cta, agents, addresses, order, scope)
        by = accessors.threads(cta, lanes, scope) if space == "global" else None
        try:
            values = cta.launch.memory.load(addresses, width, by)
        except MemoryFault as fault:
            raise _blamed(fault, cta, lanes) from None
        if order:
            warp = int(agents[0]) - cta.agents.first
            cta.machine.polled(cta, warp, int(addresses[0]), values[0].tobytes())
        return values
    if space == "shared":
        ranks, offsets = split_shared(addresses)
        agents = cta.agents.of_lanes(lanes)
        if not order and (ranks == cta.rank).all():
            try:
                values = cta.shared.load(offsets, width, agents, lane_sets.indices(lanes), origins)
            except MemoryFault as fault:
                raise _blamed(fault, cta, lanes) from None
            _logged(cta)
            return values
        values = np.empty((len(addresses), width), np.uint8)
        for rank in np.unique(ranks):
            here, shared = ranks == rank, peer(cta, int(rank)).shared
            if order:  # it may race with strong writes and atomic operations
                memory_order.read(cta, int(rank), np.unique(agents[here]), order)
            if order:
                values[here] = shared.atomic_load(offsets[here], width, agents[here])
                continue
            found = None if origins is None else origins[here]
            values[here] = shared.load(offsets[here], width, agents[here], origins=found)
            _logged(cta)
            if origins is not None and found is not None:
                origins[here] = found
        return values
    if space == "local":
        return cta.local.load(lane_sets.indices(lanes), addresses, width)
    check_aligned(addresses, width, "parameter")
    data = np.frombuffer(cta.launch.parameters, np.uint8)
    if ((addresses < 0) | (addresses > len(data) - width)).any():
        raise MemoryFault(f"an access outside of the {len(data)} bytes of the parameters")
    values = data[addresses[:, None] + np.arange(width)]
    return values


def load_values(
    cta: Cta,
    lanes: Lanes,
    space: str,
    addresses: Addresses,
    width: int,
    order: str = "",
    scope: int = 0,
) -> tuple[Bytes, Origins | None]:
    """As `load_bytes`, also of bytes that nothing wrote: with their origins, (lanes, width)."""
    try:
        return load_bytes(cta, lanes, space, addresses, width, order, scope), None
    except UninitializedRead:
        if order or space == "global":
            raise
    origins: Origins = np.zeros((len(addresses), width), np.int64)
    values = load_bytes(cta, lanes, space, addresses, width, origins=origins)
    unwritten = origins == UNWRITTEN
    if unwritten.any():
        first = np.zeros(cta.threads, np.int64)
        first[lanes] = addresses + unwritten.argmax(axis=1)
        mine = note_unwritten_load(cta, lanes, first, _unwritten_byte)
        origins = np.where(unwritten, mine[:, None], origins)
    return values, origins


def _unwritten_byte(address: int) -> str:
    return f"shared address {address & (1 << RANK_SHIFT) - 1:#x} is read, and nothing wrote it"


def note_unwritten_load(
    cta: Cta, lanes: Lanes, places: NDArray[np.int64], text: Callable[[int], str]
) -> Origins:
    """The origins of what lanes load from places, (threads,), that nothing wrote. `text`: says what
    is wrong, from a place."""

    def where(thread: int) -> str:
        return cta.describe(slice(thread, thread + 1))

    load = UnwrittenLoad(cta.instruction, places, text, where, causes(cta, lanes, unwritten=True))
    return cta.undefined.loads.add(cta.rank, lane_sets.indices(lanes), load)


def store_bytes(
    cta: Cta,
    lanes: Lanes,
    space: str,
    addresses: Addresses,
    values: Bytes,
    order: str = "",
    scope: int = 0,
    origins: Origins | None = None,
) -> None:
    """Write (lanes, width) bytes to a space ("" is generic), through the generic proxy.

    Args:
        order: one of `memory_order.STRONG`, or "" for a weak access.
        scope: of a strong one.
        origins: (lanes, width), if some of the bytes are undefined.

    Raises:
        UninitializedRead: they are, and do not go to shared memory by a weak access.
    """
    if origins is not None and (order or space not in ("", "shared")):
        what = f"is stored to {space} memory" if space != "shared" else "is sent to other threads"
        cta.undefined.refuse(origins.max(axis=1), lanes, f"the value {what}")
    cta.machine.progress += 1
    if space:
        cta.machine.observer.access(cta, lanes, space, addresses, values.shape[1], "store")
    if space == "":
        for name, window, here in split_generic(addresses):
            part = lanes if here.all() else lane_sets.select(lanes, here)
            mine = None if origins is None or not origins[here].any() else origins[here]
            store_bytes(cta, part, name, addresses[here] - window, values[here], order, scope, mine)
    elif space == "global":
        cta.machine.changes += 1
        by = accessors.threads(cta, lanes, scope)
        if order:
            agents = cta.agents.of_lanes(lanes)
            memory_order.write_global(cta, agents, addresses, order, scope)
        try:
            cta.launch.memory.store(addresses, values, by)
        except MemoryFault as fault:
            raise _blamed(fault, cta, lanes) from None
    elif space == "shared":
        ranks, offsets = split_shared(addresses)
        agents = cta.agents.of_lanes(lanes)
        event = cta.cluster.clocks.tick(cta.agents(lanes))
        _logged(cta)
        for rank in [cta.rank] if (ranks == cta.rank).all() else np.unique(ranks):
            here = ranks == rank
            target = peer(cta, int(rank)).shared
            if order:
                memory_order.write(cta, int(rank), np.unique(agents[here]), order)
            store = target.atomic_store if order else target.store
            try:
                own = target is cta.shared and not order
                more = (lane_sets.indices(lanes)[here],) if own else ()
                store(offsets[here], values[here], agents[here], event, *more)
            except MemoryFault as fault:
                raise _blamed(fault, cta, lane_sets.select(lanes, here)) from None
            if origins is not None:
                target.mark_undefined(offsets[here], origins[here], agents[here])
    elif space == "local":
        cta.local.store(lane_sets.indices(lanes), addresses, values)
    else:
        raise MemoryFault(f"a store to .{space}")


def _logged(cta: Cta) -> None:
    """Remember the instruction of the access of shared memory that was the last event."""
    cta.cluster.clocks.missing.accessed(cta.cluster.clocks.events, cta.instruction)


def _blamed(fault: MemoryFault, cta: Cta, lanes: Lanes) -> MemoryFault:
    """The fault, at the thread whose access it is: one of these lanes."""
    if fault.position is not None:
        thread = int(lane_sets.indices(lanes)[fault.position])
        fault.where = cta.describe(slice(thread, thread + 1))
    return fault


def peer(cta: Cta, rank: int) -> Cta:
    """The block of that rank in the cluster."""
    if not 0 <= rank < len(cta.cluster.ctas):
        if rank << RANK_SHIFT >> WINDOW_SHIFT in WINDOWS:
            raise MemoryFault(
                "a generic address, where a shared one is due (cvta.to.shared, or the form"
                " without .shared)"
            )
        why = f"a shared address of block {rank} of a cluster of {len(cta.cluster.ctas)}"
        raise MemoryFault(why)
    return cta.cluster.ctas[rank]


def split_shared(addresses: Addresses) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rank of the block, and the offset in its shared memory."""
    return addresses >> RANK_SHIFT, addresses & (1 << RANK_SHIFT) - 1


def split_generic(addresses: Addresses) -> list[tuple[str, int, NDArray[np.bool_]]]:
    """The spaces that generic addresses lie in: name, first address, and which lanes."""
    windows = addresses >> WINDOW_SHIFT
    return [
        (WINDOWS.get(int(number), "global"), int(number) << WINDOW_SHIFT, windows == number)
        for number in np.unique(windows)
    ]


@dataclass(frozen=True)
class _Access:
    """What an ``ld`` or ``st`` says.

    Attributes:
        space: the state space, "" for generic addresses.
        type: the type of an element.
        order: one of `memory_order.STRONG`, or "" for a weak access.
        scope: of a strong access: see `memory_order.SCOPES`.
        registers: an element each.
        address: reads the address.
    """

    space: str
    type: str
    order: str
    scope: int
    registers: tuple[str, ...]
    address: Reader


def _access(
    at: Instruction, modifiers: Modifiers, operands: Operands, address: str, registers: str
) -> _Access:
    space = modifiers.one_of(_SPACES).split("::")[0]
    order = ""
    while found := modifiers.one_of(memory_order.STRONG):
        order = found
    scope = ""
    while found := modifiers.one_of(_HINTS):
        scope = found if found in memory_order.SCOPES else scope
    for prefix in ("L1::", "L2::", "level::"):
        while modifiers.starting(prefix):
            pass
    vector = int((modifiers.one_of(("v2", "v4", "v8")) or "v1")[1:])
    type_name = modifiers.one_of((*DTYPES, "b128"))
    if not type_name:
        raise UnsupportedInstruction("the opcode has no type that is known", at)
    texts = operands.vector(registers)
    if len(texts) != vector:
        raise UnsupportedInstruction(f"{len(texts)} registers for a vector of {vector}", at)
    if vector * bits_of(type_name) > _VECTOR_BITS and space != "global":
        raise UnsupportedInstruction(
            f"a vector of {vector * bits_of(type_name)} bits: at most {_VECTOR_BITS}, and 256 bits"
            " in global memory from sm_100 on",
            at,
        )
    symbol = operands.symbol(address.strip("[] ").partition("+")[0].strip(), at.scope)
    if space == "param" and symbol is not None:
        space = symbol.space
    if order in ("volatile", "mmio"):  # as relaxed ones of all GPUs (PTX ISA, "ld.volatile")
        scope = "sys"
    width = memory_order.SCOPES[scope] if order else 0
    return _Access(space, type_name, order, width, texts, operands.address(address, at))


@instruction("ld ldu", evidence=COMPILED, lockstep=True)
def load(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    access = _access(at, modifiers, operands, at.operands[1], at.operands[0])
    space, order, address = access.space, access.order, access.address
    width, dtype = bits_of(access.type) // 8 * len(access.registers), dtype_of(access.type)
    write = vector_writer(access.registers, access.type, at, operands)

    targets = [operands.find(text, at.scope) for text in access.registers]
    written = frozenset(operands.written)
    operands.flow = Flow(handled)
    swap = None if order else begun_by(at, operands)
    parts = swap.opcode.split(".") if swap else []
    swaps_scope = next((each for each in parts if each in memory_order.SCOPES), "gpu")

    def run(cta: Cta, lanes: Lanes) -> None:
        strength = order, access.scope
        if swap is not None and cta.takes(SWAP_LOOP, lanes):
            strength = "relaxed", memory_order.SCOPES[swaps_scope]
        values, origins = load_values(cta, lanes, space, address(cta, lanes), width, *strength)
        write(cta, lanes, np.ascontiguousarray(values).view(dtype))
        if origins is not None:
            put_parts(cta, targets, lanes, np.ascontiguousarray(origins.T))
        elif cta.undefined.registers:
            cta.undefined.put_all(written, lanes, None)

    return run


@instruction("st", evidence=COMPILED, lockstep=True)
def store(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    access = _access(at, modifiers, operands, at.operands[0], at.operands[1])
    space, order, address = access.space, access.order, access.address
    read = vector_reader(access.registers, access.type, at, operands)

    sources = [operands.find(text, at.scope) for text in access.registers]
    each = bits_of(access.type) // 8
    operands.flow = Flow(handled)

    def run(cta: Cta, lanes: Lanes) -> None:
        values = np.ascontiguousarray(read(cta, lanes)).view(np.uint8)
        origins = origins_of(cta, sources, each, lanes) if cta.undefined.registers else None
        store_bytes(cta, lanes, space, address(cta, lanes), values, order, access.scope, origins)

    return run
