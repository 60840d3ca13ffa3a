"""Moves, loads and stores of the generic proxy (PTX ISA, "Data Movement")."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.operands import Operands
from triton_ext.emulator.decode.step import Run
from triton_ext.emulator.errors import MemoryFault, UnsupportedInstruction
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.memory import (
    LOCAL_WINDOW,
    PARAM_WINDOW,
    RANK_SHIFT,
    SHARED_WINDOW,
    WINDOW_SHIFT,
    WINDOWS,
    Bytes,
    check_aligned,
)
from triton_ext.emulator.state.types import DTYPES, bits_of
from triton_ext.emulator.units import memory_order
from triton_ext.ptx.parse import Instruction

_SPACES = ("global", "shared", "shared::cta", "shared::cluster", "local", "param", "const",
           "param::entry", "param::func")  # fmt: skip
_WINDOW_OF = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW}
_HINTS = ("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "weak", "gpu", "cta", "sys", "cluster",
          "unified")  # fmt: skip


@instruction("mov")
def move(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``mov``: also packs ``{a, b}`` into a wider register, and unpacks it."""
    type_name = modifiers.one_of((*DTYPES, "b128"))
    target, source = at.operands
    bits = bits_of(type_name)
    if target.startswith("{"):
        parts = operands.vector(target)
        each = bits // len(parts)
        read = operands.reader(source, f"b{bits}", at)
        writers = [operands.writer(part, f"b{each}", at) for part in parts]

        def unpack(cta: Cta, lanes: Lanes) -> None:
            number = lane_sets.count(lanes)
            whole = np.broadcast_to(read(cta, lanes), (number, 2) if bits == 128 else number)
            split = np.ascontiguousarray(whole).view(f"u{each // 8}").reshape(number, -1)
            for position, write in enumerate(writers):
                write(cta, lanes, split[:, position])

        return unpack
    if source.startswith("{"):
        parts = operands.vector(source)
        each = bits // len(parts)
        readers = [operands.reader(part, f"b{each}", at) for part in parts]
        write = operands.writer(target, f"b{bits}", at)
        whole_type = "u8" if bits == 128 else f"u{bits // 8}"

        def pack(cta: Cta, lanes: Lanes) -> None:
            packed = np.empty((lane_sets.count(lanes), len(readers)), f"u{each // 8}")
            for position, part in enumerate(readers):
                packed[:, position] = part(cta, lanes)
            write(
                cta,
                lanes,
                packed.view(whole_type) if bits == 128 else packed.view(whole_type)[:, 0],
            )

        return pack
    read, write = operands.reader(source, type_name, at), operands.writer(target, type_name, at)
    return lambda cta, lanes: write(cta, lanes, read(cta, lanes))


@instruction("cvta")
def convert_address(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``cvta``: between the addresses of a space and generic ones."""
    to_space = modifiers.flag("to")
    space = modifiers.one_of(_SPACES).split("::")[0]
    type_name = modifiers.type()
    window = _WINDOW_OF.get(space, 0)
    target, source = at.operands
    read, write = operands.reader(source, type_name, at), operands.writer(target, type_name, at)
    offset = np.asarray((-window if to_space else window) & 0xFFFFFFFFFFFFFFFF, np.uint64)
    if type_name == "u32" and window:
        raise UnsupportedInstruction("generic addresses have 64 bits", at)
    return lambda cta, lanes: write(cta, lanes, read(cta, lanes) + offset.astype(DTYPES[type_name]))


@instruction("isspacep")
def is_space(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    space = modifiers.one_of(_SPACES).split("::")[0]
    target, source = at.operands
    read, write = operands.reader(source, "u64", at), operands.writer(target, "pred", at)
    wanted = {name: number for number, name in WINDOWS.items()}.get(space, 0)
    return lambda cta, lanes: write(
        cta, lanes, read(cta, lanes) >> np.uint64(WINDOW_SHIFT) == wanted
    )


def load_bytes(
    cta: Cta,
    lanes: Lanes,
    space: str,
    addresses: NDArray[np.int64],
    width: int,
    order: str = "",
) -> Bytes:
    """(lanes, width) bytes from a space ("" is generic), through the generic proxy.

    Args:
        order: of a strong access: one of `memory_order.STRONG`.
    """
    values: Bytes
    if space == "":
        values = np.empty((len(addresses), width), np.uint8)
        for name, window, here in split_generic(addresses):
            part = lanes if here.all() else lane_sets.select(lanes, here)
            values[here] = load_bytes(cta, part, name, addresses[here] - window, width, order)
        return values
    if cta.machine.observer is not None:
        cta.machine.observer.access(cta, lanes, space, addresses, width, "load")
    if space in ("global", "const"):
        if order:
            memory_order.read(cta, memory_order.GLOBAL, cta.agents(lanes), order)
        return cta.launch.memory.load(addresses, width)
    if space == "shared":
        ranks, offsets = split_shared(addresses)
        agents = cta.agents_of_lanes(lanes)
        if order:
            return _strong_load(cta, ranks, offsets, agents, width, order)
        if (ranks == cta.rank).all():
            return cta.shared.load(offsets, width, agents)
        values = np.empty((len(addresses), width), np.uint8)
        for rank in np.unique(ranks):
            here = ranks == rank
            values[here] = peer(cta, int(rank)).shared.load(offsets[here], width, agents[here])
        return values
    if space == "local":
        return cta.local.load(lane_sets.indices(lanes), addresses, width)
    check_aligned(addresses, width, "parameter")
    data = np.frombuffer(cta.launch.parameters, np.uint8)
    if ((addresses < 0) | (addresses + width > len(data))).any():
        raise MemoryFault(f"an access outside of the {len(data)} bytes of the parameters")
    values = data[addresses[:, None] + np.arange(width)]
    return values


def _strong_load(
    cta: Cta,
    ranks: NDArray[np.int64],
    offsets: NDArray[np.int64],
    agents: NDArray[np.intp],
    width: int,
    order: str,
) -> Bytes:
    """From shared memory; it may race with strong writes and atomic operations."""
    values: Bytes = np.empty((len(offsets), width), np.uint8)
    for rank in np.unique(ranks):
        here = ranks == rank
        memory_order.read(cta, int(rank), np.unique(agents[here]), order)
        target = peer(cta, int(rank)).shared
        values[here] = target.atomic_load(offsets[here], width, agents[here])
    return values


def store_bytes(
    cta: Cta,
    lanes: Lanes,
    space: str,
    addresses: NDArray[np.int64],
    values: Bytes,
    order: str = "",
) -> None:
    """Write (lanes, width) bytes to a space ("" is generic), through the generic proxy.

    Args:
        order: of a strong access: one of `memory_order.STRONG`.
    """
    cta.machine.progress += 1
    if space and cta.machine.observer is not None:
        cta.machine.observer.access(cta, lanes, space, addresses, values.shape[1], "store")
    if space == "":
        for name, window, here in split_generic(addresses):
            part = lanes if here.all() else lane_sets.select(lanes, here)
            store_bytes(cta, part, name, addresses[here] - window, values[here], order)
    elif space == "global":
        if order:
            memory_order.write(cta, memory_order.GLOBAL, cta.agents(lanes), order)
        cta.launch.memory.store(addresses, values)
    elif space == "shared":
        ranks, offsets = split_shared(addresses)
        agents = cta.agents_of_lanes(lanes)
        event = cta.cluster.clocks.tick(cta.agents(lanes))
        for rank in [cta.rank] if (ranks == cta.rank).all() else np.unique(ranks):
            here = ranks == rank
            target = peer(cta, int(rank)).shared
            if order:
                memory_order.write(cta, int(rank), np.unique(agents[here]), order)
                target.atomic_store(offsets[here], values[here], agents[here], event)
                continue
            target.store(offsets[here], values[here], agents[here], event)
    elif space == "local":
        cta.local.store(lane_sets.indices(lanes), addresses, values)
    else:
        raise MemoryFault(f"a store to .{space}")


def peer(cta: Cta, rank: int) -> Cta:
    """The block of that rank in the cluster."""
    if rank >= len(cta.cluster.ctas):
        raise MemoryFault(
            f"a shared address of block {rank} of a cluster of {len(cta.cluster.ctas)}"
        )
    return cta.cluster.ctas[rank]


def split_shared(addresses: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rank of the block, and the offset in its shared memory."""
    return addresses >> RANK_SHIFT, addresses & (1 << RANK_SHIFT) - 1


def split_generic(addresses: NDArray[np.int64]) -> list[tuple[str, int, NDArray[np.bool_]]]:
    """The spaces that generic addresses lie in: name, first address, and which lanes."""
    windows = addresses >> WINDOW_SHIFT
    return [
        (WINDOWS.get(int(number), "global"), int(number) << WINDOW_SHIFT, windows == number)
        for number in np.unique(windows)
    ]


def _access(at: Instruction, modifiers: Modifiers) -> tuple[str, str, int, str]:
    """The space, the element type, the length of the vector, and the order if it is strong."""
    space = modifiers.one_of(_SPACES).split("::")[0]
    order = ""
    while found := modifiers.one_of(memory_order.STRONG):
        order = found
    while modifiers.one_of(_HINTS):
        pass
    for prefix in ("L1::", "L2::", "level::"):
        while modifiers.starting(prefix):
            pass
    vector = int((modifiers.one_of(("v2", "v4", "v8")) or "v1")[1:])
    type_name = modifiers.one_of((*DTYPES, "b128"))
    if not type_name:
        raise UnsupportedInstruction("the opcode has no type that is known", at)
    return space, type_name, vector, order


@instruction("ld", "ldu")
def load(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    space, type_name, vector, order = _access(at, modifiers)
    targets = operands.vector(at.operands[0])
    if len(targets) != vector:
        raise UnsupportedInstruction(f"{len(targets)} registers for a vector of {vector}", at)
    address = operands.address(at.operands[1], at)
    if space == "param" and operands.symbol(_name(at.operands[1]), at.scope) is not None:
        space = operands.symbol(_name(at.operands[1]), at.scope).space  # type: ignore[union-attr]
    each = bits_of(type_name) // 8
    width = each * vector
    raw = f"u{each}" if each <= 8 else "u8"
    kind = DTYPES.get(type_name)
    writers = [operands.writer(target, type_name, at) for target in targets]

    def run(cta: Cta, lanes: Lanes) -> None:
        values = load_bytes(cta, lanes, space, address(cta, lanes), width, order)
        if each == 16:
            writers[0](cta, lanes, np.ascontiguousarray(values).view(np.uint64))
            return
        elements = np.ascontiguousarray(values).view(kind if kind is not None else raw)
        for position, write in enumerate(writers):
            write(cta, lanes, elements[:, position])

    return run


@instruction("st")
def store(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    space, type_name, vector, order = _access(at, modifiers)
    sources = operands.vector(at.operands[1])
    if len(sources) != vector:
        raise UnsupportedInstruction(f"{len(sources)} registers for a vector of {vector}", at)
    address = operands.address(at.operands[0], at)
    symbol = operands.symbol(_name(at.operands[0]), at.scope)
    if space == "param" and symbol is not None:
        space = symbol.space
    each = bits_of(type_name) // 8
    readers = [operands.reader(source, type_name, at) for source in sources]
    dtype = DTYPES.get(type_name, np.dtype(np.uint64))

    def run(cta: Cta, lanes: Lanes) -> None:
        number = lane_sets.count(lanes)
        values = np.empty((number, vector * (2 if each == 16 else 1)), dtype)
        for position, read in enumerate(readers):
            if each == 16:
                values[:] = read(cta, lanes)
            else:
                values[:, position] = read(cta, lanes)
        store_bytes(cta, lanes, space, address(cta, lanes), values.view(np.uint8), order)

    return run


def _name(text: str) -> str:
    return text.strip("[] ").partition("+")[0].strip()
