"""The bytes of a block's shared memory: who wrote each last, and who has read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.errors import (
    BarrierFault,
    MemoryFault,
    SynchronizationFault,
    UninitializedRead,
)
from triton_ext.emulator.state.clocks import Agents, Clocks
from triton_ext.emulator.state.loads import LastLoads
from triton_ext.emulator.state.memory import SHARED_BASE, Bytes, Offsets, check_aligned
from triton_ext.emulator.state.stamps import AGENT, EVENT, GRANULE, NOBODY, Numbers, Stamps, renewed
from triton_ext.emulator.state.undefined import UNWRITTEN, Origins
from triton_ext.hardware.smem_descriptor import SmemDescriptor
from triton_ext.ptx.parse import Instruction

HELD = 1 << 38
"""The event of the "last read" of bytes that nothing may write: those of a live mbarrier."""
ACCESS_TYPES = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}
"""By the width of an access, what numpy moves as one."""


@dataclass(frozen=True)
class Surroundings:
    """What a block's shared memory knows of the block.

    Attributes:
        agent_name: an agent, in words.
        excused: whether agents may read what others have written without an order: (n,), (n, m),
            (n, m).
        undefined: makes the fault of the use of an undefined value: see `UnwrittenLoads.fault`.
        moved: told of what asynchronous units move: their name, "load" or "store", and how many
            bytes.
        layouts: whether the layouts of operands are checked.
    """

    agent_name: Callable[[int], str] = lambda agent: f"agent {agent}"
    excused: Callable[[Agents, Numbers, NDArray[np.bool_]], bool] = lambda *_: False
    undefined: Callable[[int, str], UninitializedRead] = lambda _, what: UninitializedRead(what)
    moved: Callable[[str, str, int], None] = lambda *_: None
    layouts: bool = False


def in_pieces(start: int, size: int) -> tuple[Offsets, int]:
    """The offsets of a range in pieces of an access, and their width."""
    width = min(GRANULE, (start | size) & -(start | size))
    return np.arange(start, start + size, width), width


def no_writer(offsets: Offsets, written: Numbers) -> UninitializedRead:
    """The fault of a read of bytes, some of which nothing wrote."""
    lane, byte = (int(n) for n in np.argwhere(written < 0)[0])
    return UninitializedRead(
        f"shared address {int(offsets[lane]) + byte:#x} is read, and nothing wrote it"
    )


def all_seen(stamps: Numbers, seen: NDArray[np.int64], lowest: int = NOBODY) -> bool:
    """Whether all of it has been seen, and is `lowest` at least; fast if it is one event."""
    low = int(np.minimum.reduce(stamps, axis=None))
    if low < lowest:
        return False
    if low == int(np.maximum.reduce(stamps, axis=None)):
        return low >> EVENT <= int(seen[low & AGENT])
    return not np.count_nonzero(stamps >> EVENT > seen[stamps & AGENT])


def unseen(stamps: Numbers, agents: Agents, clocks: Clocks) -> NDArray[np.bool_]:
    """Which of these events the agents beside them have not seen."""
    late: NDArray[np.bool_] = stamps >> EVENT > clocks.seen[agents[:, None], stamps & AGENT]
    return late


class SharedBytes:
    """A block's shared memory: what it holds, and who has written and read each byte.

    Args:
        size: the first offset past the end, in the block's window; the system's part counts.
        clocks: the cluster's.
        blocks: as many windows lie behind each other: see `lockstep`.

    Attributes:
        written: the last write of each byte.
        read: its last read by an asynchronous unit.
        copies: what TMA has copied in, by the event: `triton_ext.emulator.units.provenance`.
        operands: what the tensor core has read last, by the operand's name: its matrix descriptor,
            its type, and its codes in logical coordinates.
        unread: if it is asked for, by the event of each copy into it the instruction.
        block: what it knows of the block.
    """

    def __init__(self, size: int, clocks: Clocks, blocks: int = 1) -> None:
        granules = blocks * -(-size // GRANULE)
        self.size, self.granules = size, granules
        self.data: Bytes = np.zeros(granules * GRANULE, np.uint8)
        self.clocks = clocks
        self.written, self.read = Stamps(granules, NOBODY), Stamps(granules)
        self._loads = LastLoads(granules, clocks.agents)
        self.copies: dict[int, Any] = {}
        self.operands: dict[str, tuple[SmemDescriptor, str, NDArray[Any]]] = {}
        self.unread: dict[int, Instruction | None] = {}
        self._undefined: tuple[Numbers, Origins] | None = None
        self.block = Surroundings()

    def _check(self, offsets: Offsets, width: int) -> None:
        if np.bitwise_or.reduce(offsets) & (width - 1):
            check_aligned(offsets, width, "shared")
        if (
            np.minimum.reduce(offsets) < SHARED_BASE
            or np.maximum.reduce(offsets) > self.size - width
        ):
            wrong = (offsets < SHARED_BASE) | (offsets + width > self.size)
            first = int(np.flatnonzero(wrong)[0])
            raise MemoryFault(
                f"shared address {int(offsets[first]):#x} ({width} bytes) is outside of the block's"
                f" {self.size - SHARED_BASE} bytes at {SHARED_BASE:#x}"
            ).by(first)

    def _placed(self, offsets: Offsets, width: int, agents: Agents) -> Offsets:
        """Where each agent's offsets, that are checked here, lie in `data`."""
        self._check(offsets, width)
        return offsets

    def _range(self, start: int, size: int) -> slice:
        if start < SHARED_BASE or start + size > self.size:
            raise MemoryFault(
                f"shared addresses {start:#x} to {start + size - 1:#x} are not all inside of the"
                f" block's {self.size - SHARED_BASE} bytes at {SHARED_BASE:#x}"
            )
        return slice(start // GRANULE, (start + size) // GRANULE)

    def _bytes(self, offsets: Offsets, width: int) -> Bytes:
        """(n, width): what the bytes hold."""
        values: Bytes = self.data.view(ACCESS_TYPES[width])[offsets // width].view(np.uint8)
        return values.reshape(-1, width)

    def _set(self, offsets: Offsets, values: Bytes) -> None:
        width = values.shape[1]
        pieces = np.ascontiguousarray(values).view(ACCESS_TYPES[width])
        self.data.view(ACCESS_TYPES[width])[offsets // width] = pieces[:, 0]

    def mark_undefined(self, offsets: Offsets, origins: Origins, agents: Agents) -> None:
        """Some bytes that lanes' agents have just stored are undefined values. `origins`: (n,
        width); 0 for the bytes that are defined."""
        offsets = self._placed(offsets, origins.shape[1], agents)
        if self._undefined is None:
            size = self.granules * GRANULE
            self._undefined = np.full(size, NOBODY), np.zeros(size, np.int64)
        stamps, kept = self._undefined
        lanes, bytes_ = np.nonzero(origins)
        where = offsets[lanes] + bytes_
        stamps[where] = self.written.get(where, 1)[:, 0]
        kept[where] = origins[lanes, bytes_]

    def _origins(self, offsets: Offsets, width: int) -> Origins:
        """(n, width): the origins of bytes; `UNWRITTEN` for those that nothing wrote."""
        written = np.broadcast_to(self.written.get(offsets, width), (len(offsets), width))
        found = np.where(written < 0, np.int64(UNWRITTEN), np.int64(0))
        if self._undefined is not None:
            stamps, kept = self._undefined
            where = offsets[:, None] + np.arange(width)
            stored = (written >= 0) & (stamps[where] == written)
            found = np.where(stored, kept[where], found)
        return found

    def _check_defined(self, offsets: Offsets, width: int, name: str) -> None:
        """Raise UninitializedRead if undefined values were stored to one of the bytes."""
        if self._undefined is not None:
            found = self._origins(offsets, width)
            if (found > 0).any():
                raise self.block.undefined(
                    int(found.max()), f"the value is stored, and read by {name}"
                )

    def _unordered(self, offsets: Offsets, late: NDArray[Any], others: Numbers, what: str) -> None:
        """Raise for the first byte that is late: (n, width) or (n, 1), as are those who did it."""
        lane, byte = (int(n) for n in np.argwhere(late)[0])
        address = int(offsets[lane]) + byte
        if self.read.at(address) >> EVENT == HELD and "written" in what:
            raise BarrierFault(
                f"shared address {address:#x} is written, and holds a live mbarrier:"
                " mbarrier.inval must come first"
            )
        found = int(np.broadcast_to(others, late.shape)[lane, byte])
        other, event, missing = found & AGENT, found >> EVENT, self.clocks.missing
        name, hint = self.block.agent_name(other), self.describe(address)
        hint += missing.culprit(other, event)
        if not hint and name.startswith("warp "):
            hint = ": a barrier between them is missing"
        raise SynchronizationFault(
            f"shared address {address:#x} {what} {name}{missing.line(event)}, and nothing orders"
            f" the two{hint or ': a wait for that is missing, or a barrier after the wait'}"
        )

    def describe(self, offset: int) -> str:
        """``; there lies row 3, byte 16, of the box of ...``: what TMA has put there, or ""."""
        copied = self.copies.get(self.written.at(offset) >> EVENT)
        named = copied.describe(offset) if copied is not None else ""
        return f"; there lies {named}" if named else ""

    def last_accesses(self, but: range) -> dict[int, int]:
        """The event of each agent's last access that has left a trace, but for some agents."""
        found: dict[int, int] = {}
        for agent, loads in zip(self._loads.agents.tolist(), self._loads.pieces, strict=True):
            if agent not in but:
                found[agent] = int(loads.max())
        written = self.written.all()
        writers = written & AGENT
        others = written[(written >= 0) & ((writers < but.start) | (writers >= but.stop))]
        for agent in np.unique(others & AGENT).tolist():
            event = int((others[others & AGENT == agent] >> EVENT).max())
            found[agent] = max(event, found.get(agent, 0))
        return found

    def last_reads(self, start: int, size: int) -> tuple[Numbers, Numbers]:
        """The events of the last write and of the last read by anyone, for each piece of 16 bytes
        of a range; 0 if there was none."""
        here = self._range(start, size)
        reads = self._loads.pieces[:, here].max(axis=0, initial=0)
        return self.written.whole[here] >> EVENT, reads

    def write_again(self, agent: int, after: int, lanes: NDArray[np.bool_], event: int) -> None:
        """What lanes of a warp have written after an event counts as written at another one; the
        arguments are those of `renewed`.
        """
        self.written.renew(lambda numbers: renewed(numbers, agent, after, lanes, event))
        if self._undefined is not None:
            stamps = self._undefined[0]
            stamps[:] = renewed(stamps, agent, after, lanes, event)
