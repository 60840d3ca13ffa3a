"""Memory that knows what may be touched: global, shared, local and parameter space.

Addresses. Global addresses are those of the host's arrays. A shared address holds the rank of the
block in its cluster in bits 24 and up, and the offset below, as the hardware's cluster window does
(CUTLASS clears bit 24 of a barrier's address to name the one of the even block of a pair). Generic
addresses of the other spaces lie in windows above all of the host's.
"""

from __future__ import annotations

import ctypes
import functools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.errors import (
    BarrierFault,
    MemoryFault,
    SynchronizationFault,
    UninitializedRead,
)
from triton_ext.emulator.state.clocks import Agents, Clock, Clocks
from triton_ext.hardware.architecture import CTA_ADDRESS_BITS, WARP_THREADS

Bytes = NDArray[np.uint8]
Offsets = NDArray[np.int64]

WINDOW_SHIFT = 56
SHARED_WINDOW = 1 << WINDOW_SHIFT
LOCAL_WINDOW = 2 << WINDOW_SHIFT
PARAM_WINDOW = 3 << WINDOW_SHIFT
WINDOWS = {1: "shared", 2: "local", 3: "param"}
RANK_SHIFT = CTA_ADDRESS_BITS
SHARED_BASE = 1024
"""The first dynamic shared byte: the system keeps 1 KiB of each block (sm_90 and later)."""


EMPTY = np.tile(np.array([0xA5, 0x5A, 0xFA, 0x7F], np.uint8), 4)
"""What memory that nothing has written holds, if that is checked: NaN, as fp32 and bf16."""
GRANULE = 16
"""Bytes of shared memory whose last reads are remembered together: a bulk copy's unit."""
SEVERAL = 255
"""In place of a lane: several have written the byte with one instruction."""
HELD = 1 << 62
"""The "last read" of bytes that nothing may write: those of a live mbarrier."""


def check_aligned(offsets: Offsets, width: int, space: str) -> None:
    """Raise MemoryFault unless the offsets are multiples of the access size (PTX ISA, "ld")."""
    wrong = offsets & (width - 1)
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        raise MemoryFault(
            f"{space} address {int(offsets.reshape(-1)[first]):#x} is not a multiple of the access'"
            f" {width} bytes"
        ).by(first)


def _as_rows(
    data: NDArray[Any], offsets: Offsets, width: int
) -> tuple[NDArray[Any], Offsets] | None:
    """`data` as rows of `width` bytes, and which rows lie at the offsets; None if none do."""
    if (offsets & (width - 1)).any():
        first = int(offsets[0]) & (width - 1)  # a view need not begin where its storage does
        data, offsets = data[first:], offsets - first
        if (offsets & (width - 1)).any():
            return None
    return data[: len(data) // width * width].reshape(-1, width), offsets // width


def gather(data: NDArray[Any], offsets: Offsets, width: int) -> NDArray[Any]:
    """The `width` bytes at each offset, (n, width); fast if their distances are multiples of it."""
    found = _as_rows(data, offsets, width)
    if found is None:
        return data[offsets[:, None] + np.arange(width)]
    rows, numbers = found
    return rows[numbers]


def scatter(data: NDArray[Any], offsets: Offsets, values: Any, width: int) -> None:
    """Write (n, width) bytes; where offsets are equal, the last row stays."""
    found = _as_rows(data, offsets, width)
    if found is None:
        data[offsets[:, None] + np.arange(width)] = values
    else:
        rows, numbers = found
        rows[numbers] = values


@dataclass
class Allocation:
    """Memory of the host that a kernel may touch.

    Attributes:
        start: its first address.
        size: its bytes.
        data: them; and up to 15 more, of the same storage, which belong to TMA stores alone: those
            write whole 16 bytes, also where a tensor ends within them (an H100).
        name: what the user knows it by, such as ``argument x``.
        writable: False if it was given as an array that is read-only.
        owner: what must live as long as it is in use.
    """

    start: int
    size: int
    data: Bytes
    name: str = ""
    writable: bool = True
    owner: Any = None

    @property
    def end(self) -> int:
        """The first address past the end of `data`."""
        return self.start + len(self.data)

    @functools.cached_property
    def owned(self) -> NDArray[np.bool_] | None:
        """(size,): which bytes are elements of the owners; None if all are.

        A view such as ``x[:, :64]`` spans bytes between its rows, which are not its own.
        """
        owners = list(_owners(self.owner))
        whole = [_strides(owner)[1] * math.prod(owner.shape) for owner in owners]
        if not owners or max(whole) >= self.size:
            return None
        found = np.zeros(self.size, np.bool_)
        for owner in owners:
            strides, size = _strides(owner)
            first = _address(owner) - self.start
            shape = (*owner.shape, size)
            steps = (*(step * size for step in strides), 1)
            np.lib.stride_tricks.as_strided(found[first:], shape, steps)[...] = True
        return None if found.all() else found

    def check_owned(self, offsets: Offsets, width: int) -> None:
        """Raise MemoryFault if rows of `width` bytes that are written are not elements."""
        if self.owned is None:
            return
        outside = ~gather(self.owned, offsets, width)
        if outside.any():
            row, byte = (int(n) for n in np.argwhere(outside)[0])
            raise MemoryFault(
                f"global address {self.start + int(offsets[row]) + byte:#x} ({width} bytes) is"
                f" written: it lies between the rows of {self.name or 'a view'}, in the tensor of"
                " which that is a view, and is no element of it"
            ).by(row)

    def place(self, offset: int) -> str:
        """A byte of it, in words: ``x[3, 17]`` where the owner is a tensor, else its number."""
        name = self.name.removeprefix("argument ") or "an allocation"
        strides, size = _strides(self.owner)
        shape = tuple(self.owner.shape) if size else ()
        index, rest = [], offset // size if size else 0
        for step, extent, axis in sorted(zip(strides, shape, range(len(shape)), strict=True))[::-1]:
            index.append((axis, min(rest // step, extent - 1) if step else 0))
            rest -= index[-1][1] * step
        if not index or rest:
            return f"byte {offset} of {name}"
        return f"{name}[{', '.join(str(at) for _, at in sorted(index))}]"

    def joined(self, other: Allocation) -> Allocation:
        """Both, where they overlap: they are views of the same memory."""
        start = min(self.start, other.start)
        size = max(self.start + self.size, other.start + other.size) - start
        data = host_bytes(start, max(self.end, other.end) - start)
        names = dict.fromkeys(name for name in (self.name, other.name) if name)
        return Allocation(
            start,
            size,
            data,
            " and ".join(names),
            self.writable or other.writable,
            (self.owner, other.owner),
        )


def _strides(owner: Any) -> tuple[tuple[int, ...], int]:
    """The strides of an array or a tensor in elements, and the bytes of an element."""
    if isinstance(owner, np.ndarray):
        return tuple(n // owner.itemsize for n in owner.strides), owner.itemsize
    if hasattr(owner, "untyped_storage"):
        return tuple(owner.stride()), owner.element_size()
    return (), 0


def _owners(owner: Any) -> Iterator[Any]:
    """The arrays and tensors of which an allocation is; none, if it has others, too."""
    parts = owner if isinstance(owner, tuple) else (owner,)
    if all(isinstance(part, tuple) or _strides(part)[1] for part in parts):
        for part in parts:
            yield from _owners(part) if isinstance(part, tuple) else (part,)


def _address(owner: Any) -> int:
    return int(owner.ctypes.data if isinstance(owner, np.ndarray) else owner.data_ptr())


def host_bytes(address: int, size: int) -> Bytes:
    """The memory of this process from an address on, without a copy."""
    if not size:
        return np.zeros(0, np.uint8)
    buffer: Any = (ctypes.c_uint8 * size).from_address(address)
    data: Bytes = np.frombuffer(buffer, np.uint8)
    return data


class Accessor(Protocol):
    """Told of accesses to global memory before they are done: see `units.global_order`."""

    def lanes(self, chosen: Any) -> Accessor:
        """For some of the lanes."""

    def read(self, of: Allocation, first: int, offsets: Offsets, size: int) -> None:
        """Rows of bytes are read: the first offset and each of the others is where one begins."""

    def write(self, of: Allocation, first: int, offsets: Offsets, values: Bytes) -> None:
        """Rows of bytes, (rows, size), are written."""


class GlobalMemory:
    """The host's memory that a kernel may touch, by addresses.

    Args:
        find: asked for the allocations that an address which is not registered may be in. (A kernel
            may read pointers from memory.)

    Attributes:
        released: what flags have released, by address: see `units.memory_order`.
    """

    def __init__(
        self, find: Callable[[GlobalMemory, int], Iterable[Allocation]] | None = None
    ) -> None:
        self._starts: list[int] = []
        self.allocations: list[Allocation] = []
        self.find = find
        self.released: dict[int, Any] = {}

    def register(self, array: NDArray[Any], owner: Any = None, name: str = "") -> int:
        """Make a contiguous array's bytes accessible, and return its address."""
        data = array.reshape(-1).view(np.uint8)
        address = int(array.__array_interface__["data"][0])
        owner = array if owner is None else owner
        self.add(Allocation(address, len(data), data, name, bool(array.flags.writeable), owner))
        return address

    def add(self, new: Allocation) -> None:
        """Make an allocation accessible. Those that overlap, views of one storage, become one."""
        if not new.size:
            return
        at = bisect_right(self._starts, new.start)
        if at and self.allocations[at - 1].end > new.start:
            at -= 1
        while at < len(self._starts) and self._starts[at] < new.end:
            new = new.joined(self.allocations[at])
            del self._starts[at], self.allocations[at]
        self._starts.insert(at, new.start)
        self.allocations.insert(at, new)

    def locate(self, address: int, width: int = 1, *, writes: bool = False) -> Allocation:
        """The allocation that holds `width` bytes at `address`.

        Raises:
            MemoryFault: there is none, or it is written and read-only.
        """
        found = self._known(address, width)
        if found is None and self.find is not None:
            for each in self.find(self, address):
                self.add(each)
            found = self._known(address, width)
        if found is None:
            raise MemoryFault(self._describe(address, width))
        if writes and not found.writable:
            raise MemoryFault(
                f"global address {address:#x} ({width} bytes) is written, and {found.name or 'it'}"
                " is a read-only array: pass a copy of it, or one that is writable"
            )
        return found

    def _known(self, address: int, width: int) -> Allocation | None:
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        found = self.allocations[at]
        return found if address + width <= found.start + found.size else None

    def _describe(self, address: int, width: int) -> str:
        text = f"global address {address:#x} ({width} bytes) is in no allocation of this launch"
        at = bisect_right(self._starts, address)
        near = []
        for found in self.allocations[max(at - 1, 0) : at + 1]:
            offset = address - found.start
            if offset < 0:
                side = f"{-offset} bytes before"
            elif offset < found.size:
                side = f"{found.size - offset} bytes before the end of"
            else:
                side = f"{offset - found.size} bytes past the end of"
            near.append((max(-offset, offset - found.size, 0), side, found))
        if near:
            _, side, found = min(near, key=lambda each: each[0])
            place = f"{found.name or 'the one'} at {found.start:#x}, {found.size} bytes"
            text += f"; it is {side} {place}"
        return text

    def groups(
        self, addresses: Offsets, width: int, *, writes: bool = False
    ) -> Iterator[tuple[Allocation, Any]]:
        """The allocations that have some of the addresses, and which lanes' those are."""
        rest: Any = slice(None)
        while True:
            here = addresses[rest]
            if not len(here):
                return
            try:
                found = self.locate(int(here[0]), width, writes=writes)
            except MemoryFault as fault:
                raise fault.by(int(np.arange(len(addresses))[rest][0])) from None
            inside = (here >= found.start) & (here - found.start <= found.size - width)
            if inside.all():
                yield found, rest
                return
            numbers = np.arange(len(addresses))[rest]
            yield found, numbers[inside]
            rest = numbers[~inside]

    def load(self, addresses: Offsets, width: int, by: Accessor | None) -> Bytes:
        """(n, width) bytes."""
        check_aligned(addresses, width, "global")
        values: Bytes = np.empty((len(addresses), width), np.uint8)
        for found, lanes in self.groups(addresses, width):
            offsets = addresses[lanes] - found.start
            if by is not None:
                by.lanes(lanes).read(found, 0, offsets, width)
            values[lanes] = gather(found.data, offsets, width)
        return values

    def store(self, addresses: Offsets, values: Bytes, by: Accessor | None) -> None:
        """Write (n, width) bytes."""
        width = values.shape[1]
        check_aligned(addresses, width, "global")
        for found, lanes in self.groups(addresses, width, writes=True):
            offsets = addresses[lanes] - found.start
            found.check_owned(offsets, width)
            if by is not None:
                by.lanes(lanes).write(found, 0, offsets, values[lanes])
            scatter(found.data, offsets, values[lanes], width)


class SharedMemory:
    """A block's shared memory, with the last writer of each byte, and its last bulk reader.

    Args:
        size: the first offset past the end, in the block's window; the system's part counts.
        clocks: the cluster's.
    """

    def __init__(self, size: int, clocks: Clocks) -> None:
        rounded = -(-size // 16) * 16
        self.size = size
        self.data: Bytes = np.zeros(rounded, np.uint8)
        self.clocks = clocks
        self.writer = np.full(rounded, -1, np.int16)
        self.written: NDArray[np.int64] = np.zeros(rounded, np.int64)
        self.reader = np.full(rounded, -1, np.int16)
        self.read: NDArray[np.int64] = np.zeros(rounded, np.int64)
        self.atomic: NDArray[np.int64] = np.zeros(rounded, np.int64)
        """The event of the last atomic write; the last write was atomic if it is the same."""
        self.lane: NDArray[np.uint8] = np.zeros(rounded, np.uint8)
        """Of its warp, the lane that wrote last through the generic proxy; SEVERAL, if several."""
        self.plain_writer = np.full(rounded, -1, np.int16)
        self.plain_written: NDArray[np.int64] = np.zeros(rounded, np.int64)
        """The last write before the atomic ones."""
        # (agents, granules): the event of the agent's last read of each 16 bytes, which whoever
        # copies over them must have seen. (calloc: what nobody reads takes no memory.)
        self.last_load: NDArray[np.int64] = np.zeros((clocks.agents, rounded // GRANULE), np.int64)
        self.has_loaded = np.zeros(clocks.agents, np.bool_)
        # The same for each byte, of the agents that read through the generic proxy: their rows.
        self._loaders: NDArray[np.intp] = np.zeros(0, np.intp)
        self._row = np.full(clocks.agents, -1, np.intp)
        self._loaded: NDArray[np.int64] = np.zeros((0, rounded), np.int64)
        self.copies: dict[int, Any] = {}
        """What TMA has copied in, by the event: `triton_ext.emulator.units.provenance`."""

    def _check(self, offsets: Offsets, width: int) -> None:
        check_aligned(offsets, width, "shared")
        wrong = (offsets < SHARED_BASE) | (offsets + width > self.size)
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            raise MemoryFault(
                f"shared address {int(offsets[first]):#x} ({width} bytes) is outside of the block's"
                f" {self.size - SHARED_BASE} bytes at {SHARED_BASE:#x}"
            ).by(first)

    def _rows(self, array: NDArray[Any], offsets: Offsets, width: int) -> NDArray[Any]:
        rows: NDArray[Any] = array[: len(array) // width * width].reshape(-1, width)
        return rows[offsets // width]

    def _no_writer(self, offsets: Offsets, writers: NDArray[np.int16]) -> None:
        lane, byte = (int(n) for n in np.argwhere(writers < 0)[0])
        raise UninitializedRead(
            f"shared address {int(offsets[lane]) + byte:#x} is read, and nothing wrote it"
        )

    def _unordered(
        self, offsets: Offsets, late: NDArray[Any], others: NDArray[Any], what: str
    ) -> None:
        lane, byte = (int(n) for n in np.argwhere(late)[0])
        if self.read[int(offsets[lane]) + byte] == HELD and "written" in what:
            raise BarrierFault(
                f"shared address {int(offsets[lane]) + byte:#x} is written, and holds a live"
                " mbarrier: mbarrier.inval must come first"
            )
        raise SynchronizationFault(
            f"shared address {int(offsets[lane]) + byte:#x} {what}"
            f" {self.agent_name(int(others[lane, byte]))}, and nothing orders the two"
            f"{self.place(int(offsets[lane]) + byte)}"
        )

    def place(self, offset: int) -> str:
        """``; there lies row 3, byte 16, of the box of ...``: what TMA has put there, or ""."""
        copied = self.copies.get(int(self.written[offset]))
        named = copied.place(offset) if copied is not None else ""
        return f"; there lies {named}" if named else ""

    moved: Callable[[str, str, int], None] | None = None
    """Told of what asynchronous units move: their name, "load" or "store", and how many bytes."""

    agent_name: Callable[[int], str] = staticmethod(lambda agent: f"agent {agent}")

    def load(
        self, offsets: Offsets, width: int, agents: Agents, threads: Agents | None = None
    ) -> Bytes:
        """(n, width) bytes, read through the generic proxy by the agent of each lane.

        Args:
            threads: of this block, if they are: lanes of a warp need not be in step.
        """
        self._check(offsets, width)
        writers = self._rows(self.writer, offsets, width)
        if (writers < 0).any():
            self._no_writer(offsets, writers)
        written = self._rows(self.written, offsets, width)
        late = written > self.clocks.seen[agents[:, None], writers]
        if late.any():
            self._unordered(offsets, late, writers, "is read, and was written by")
        if threads is not None:
            recent = (writers == agents[:, None]) & (written > self.clocks.met[agents][:, None])
            if recent.any():
                self._check_lanes(offsets, width, recent, threads)
        event = self.clocks.tick(agents)
        self.last_load[agents, offsets // GRANULE] = event
        self.has_loaded[agents] = True
        rows = self._row[agents]
        if rows.min() < 0:
            self._add_loaders(np.unique(agents[rows < 0]))
            rows = self._row[agents]
        self._bytes_loaded(width)[rows, offsets // width] = event
        return self._rows(self.data, offsets, width)

    def _check_lanes(
        self, offsets: Offsets, width: int, recent: NDArray[np.bool_], threads: Agents
    ) -> None:
        """Raise if one of `recent`, which the reader's own warp wrote, is another lane's."""
        lanes, own = self._rows(self.lane, offsets, width), threads[:, None] % WARP_THREADS
        apart = recent & (lanes != own) & (lanes != SEVERAL)
        if apart.any():
            reader, byte = (int(n) for n in np.argwhere(apart)[0])
            warp, lane = divmod(int(threads[reader]), WARP_THREADS)
            raise SynchronizationFault(
                f"shared address {int(offsets[reader]) + byte:#x} is read by warp {warp}, lane"
                f" {lane}, and was written by its lane {int(lanes[reader, byte])}: the lanes of a"
                " warp need not be in step; bar.warp.sync (__syncwarp) is missing"
            )

    def note_lanes(self, offsets: Offsets, width: int, threads: Agents) -> None:
        """Remember which lanes of this block's warps have just stored."""
        lanes = (threads % WARP_THREADS).astype(np.uint8)[:, None]
        scatter(self.lane, offsets, lanes, width)
        shared = (self._rows(self.lane, offsets, width) != lanes).any(axis=1)
        if shared.any():
            scatter(self.lane, offsets[shared], SEVERAL, width)

    def _bytes_loaded(self, width: int) -> NDArray[np.int64]:
        """(loaders, n, width): the event of each one's last read of each byte."""
        of_all = self._loaded[:, : self._loaded.shape[1] // width * width]
        return of_all.reshape(len(of_all), -1, width)

    def _add_loaders(self, agents: Agents) -> None:
        first, number = len(self._loaders), len(self._loaders) + len(agents)
        if number > len(self._loaded):
            more = np.zeros((2 * number, self._loaded.shape[1]), np.int64)  # calloc, as above
            more[:first] = self._loaded[:first]
            self._loaded = more
        self._row[agents] = np.arange(first, number)
        self._loaders = np.concatenate([self._loaders, agents])

    def _check_loaded(self, offsets: Offsets, values: Bytes, agents: Agents) -> None:
        """Raise if lanes' agents write bytes that another agent's thread may not have read yet."""
        loaders = self._loaders
        if not len(loaders):
            return
        seen = self.clocks.seen[agents[:, None], loaders]
        near = self.last_load[loaders, (offsets // GRANULE)[:, None]] > seen
        lanes = np.flatnonzero(near.any(axis=1))
        if not len(lanes):
            return
        width = values.shape[1]
        loads = self._bytes_loaded(width)[: len(loaders), offsets[lanes] // width]
        late = loads > seen[lanes].T[:, :, None]
        late &= self._rows(self.data, offsets[lanes], width) != values[lanes]
        if late.any():
            loader, lane, byte = (int(n) for n in np.argwhere(late)[0])
            raise SynchronizationFault(
                f"shared address {int(offsets[lanes[lane]]) + byte:#x} is written, and was read by"
                f" {self.agent_name(int(loaders[loader]))}, and nothing orders that read before (a"
                f" barrier){self.place(int(offsets[lanes[lane]]) + byte)}"
            )

    def _check_loads(self, chunks: Any, clock: Clock, name: str) -> None:
        """Raise if `name` writes 16-byte chunks that someone may still be reading."""
        agents = np.flatnonzero(self.has_loaded)
        if not len(agents):
            return
        rows = agents if isinstance(chunks, slice) else agents[:, None]
        loads = self.last_load[rows, chunks]
        late = loads > clock.seen[agents][:, None]
        if late.any():
            agent, chunk = (int(n) for n in np.argwhere(late)[0])
            first = chunks.start + chunk if isinstance(chunks, slice) else int(chunks[chunk])
            raise SynchronizationFault(
                f"shared address {first * GRANULE:#x} is written by {name}, and may still be read"
                f" by {self.agent_name(int(agents[agent]))}: nothing orders its read before (an"
                " arrival at the mbarrier that the copy waits for, or a barrier)"
                f"{self.place(first * GRANULE)}"
            )

    def store(self, offsets: Offsets, values: Bytes, agents: Agents, event: int) -> None:
        """Write (n, width) bytes through the generic proxy, as `event` of the lanes' agents."""
        width = values.shape[1]
        self._check(offsets, width)
        writers = self._rows(self.writer, offsets, width)
        late = self._rows(self.written, offsets, width) > self.clocks.seen[agents[:, None], writers]
        if late.any():
            late &= self._rows(self.data, offsets, width) != values  # the same value does no harm
            if late.any():
                self._unordered(offsets, late, writers, "is written, and was written by")
        self._store(offsets, values, agents, event)

    def _store(self, offsets: Offsets, values: Bytes, agents: Agents, event: int) -> None:
        width = values.shape[1]
        self._check(offsets, width)
        readers = self._rows(self.reader, offsets, width)
        late = self._rows(self.read, offsets, width) > self.clocks.seen[agents[:, None], readers]
        if late.any():
            self._unordered(offsets, late, readers, "is written, and may still be read by")
        self._check_loaded(offsets, values, agents)
        scatter(self.data, offsets, values, width)
        scatter(self.writer, offsets, agents[:, None], width)
        scatter(self.written, offsets, event, width)

    def bulk_load(
        self, offsets: Offsets, width: int, clock: Clock, unit: int, *, name: str = "the unit"
    ) -> Bytes:
        """(n, width) bytes, read through the asynchronous proxy.

        Args:
            clock: what the thread that issued the operation had seen.
            unit: the agent that reads.
            name: that of the unit, in errors.

        Raises:
            UninitializedRead: nothing wrote one of the bytes.
            SynchronizationFault: the writer is not ordered before, or its proxy not fenced.
        """
        self._check(offsets, width)
        writers = self._rows(self.writer, offsets, width)
        first = int(writers.min())
        if first < 0:
            self._no_writer(offsets, writers)
        written = self._rows(self.written, offsets, width)
        if first == int(writers.max()):  # one writer, as after a TMA copy: faster
            ordered = int(written.max()) <= clock.fenced[first]
        else:
            ordered = bool((written <= clock.fenced[writers]).all())
        if not ordered:
            late = written > clock.fenced[writers]
            lane, byte = (int(n) for n in np.argwhere(late)[0])
            writer = int(writers[lane, byte])
            missing = (
                "a proxy fence (fence.proxy.async)"
                if written[lane, byte] <= clock.seen[writer]
                else "a barrier or wait"
            )
            raise SynchronizationFault(
                f"{name} reads shared address {int(offsets[lane]) + byte:#x}, written by"
                f" {self.agent_name(writer)}; between the two, {missing} is missing"
                f"{self.place(int(offsets[lane]) + byte)}"
            )
        event = self.clocks.unit_event(unit)
        scatter(self.reader, offsets, unit, width)
        scatter(self.read, offsets, event, width)
        self.last_load[unit, offsets // GRANULE] = event
        self.has_loaded[unit] = True
        if self.moved is not None:
            self.moved(name, "load", len(offsets) * width)
        return self._rows(self.data, offsets, width)

    def bulk_store(
        self, offsets: Offsets, values: Bytes, clock: Clock, unit: int, *, name: str = "the unit"
    ) -> None:
        """Write (n, width) bytes through the asynchronous proxy; arguments as of `bulk_load`."""
        width = values.shape[1]
        self._check(offsets, width)
        readers = self._rows(self.reader, offsets, width)
        late = self._rows(self.read, offsets, width) > clock.seen[readers]
        if late.any():
            self._unordered(
                offsets, late, readers, f"is written by {name}, and may still be read by"
            )
        writers = self._rows(self.writer, offsets, width)
        late = self._rows(self.written, offsets, width) > clock.seen[writers]
        if late.any():
            self._unordered(offsets, late, writers, f"is written by {name}, and was written by")
        self._check_loads(np.unique(offsets // GRANULE), clock, name)
        event = self.clocks.unit_event(unit)
        scatter(self.data, offsets, values, width)
        scatter(self.writer, offsets, unit, width)
        scatter(self.written, offsets, event, width)
        if self.moved is not None:
            self.moved(name, "store", values.size)

    def last_accesses(self, but: range) -> dict[int, int]:
        """The event of each agent's last access that has left a trace, but for some agents."""
        agents = [each for each in np.flatnonzero(self.has_loaded).tolist() if each not in but]
        found = {agent: int(self.last_load[agent].max()) for agent in agents}
        writers = self.writer
        others = (writers >= 0) & ((writers < but.start) | (writers >= but.stop))
        for agent in np.unique(writers[others]).tolist():
            event = int(self.written[writers == agent].max())
            found[agent] = max(event, found.get(agent, 0))
        return found

    # ---------------------------------------------------------- atomic operations

    def atomic_load(self, offsets: Offsets, width: int, agents: Agents) -> Bytes:
        """(n, width) bytes, read by atomic operations: what another one wrote needs no order."""
        self._check(offsets, width)
        writers = self._rows(self.writer, offsets, width)
        if (writers < 0).any():
            self._no_writer(offsets, writers)
        written = self._rows(self.written, offsets, width)
        atomic = written == self._rows(self.atomic, offsets, width)
        if atomic.any():  # what counts is the ordinary write before the atomic ones
            written = np.where(atomic, self._rows(self.plain_written, offsets, width), written)
            writers = np.where(atomic, self._rows(self.plain_writer, offsets, width), writers)
        late = written > self.clocks.seen[agents[:, None], writers]
        if late.any():
            self._unordered(offsets, late, writers, "is read, and was written by")
        return self._rows(self.data, offsets, width)

    def atomic_store(self, offsets: Offsets, values: Bytes, agents: Agents, event: int) -> None:
        """Write (n, width) bytes that `atomic_load` has just read."""
        width = values.shape[1]
        written = self._rows(self.written, offsets, width)
        plain = written != self._rows(self.atomic, offsets, width)
        if plain.any():
            writers = self._rows(self.writer, offsets, width)
            before = self._rows(self.plain_written, offsets, width)
            by = self._rows(self.plain_writer, offsets, width)
            scatter(self.plain_written, offsets, np.where(plain, written, before), width)
            scatter(self.plain_writer, offsets, np.where(plain, writers, by), width)
        self._store(offsets, values, agents, event)
        scatter(self.atomic, offsets, event, width)

    # ------------------------------------------------------ whole ranges of bytes

    def _range(self, start: int, size: int) -> slice:
        if start < SHARED_BASE or start + size > self.size:
            raise MemoryFault(
                f"shared addresses {start:#x} to {start + size - 1:#x} are not all inside of the"
                f" block's {self.size - SHARED_BASE} bytes at {SHARED_BASE:#x}"
            )
        return slice(start, start + size)

    @staticmethod
    def _seen(agents: NDArray[Any], events: NDArray[Any], seen: NDArray[np.int64]) -> bool:
        """Whether all of these events have been seen; fast if all have the same agent."""
        first = int(agents[0])
        if (agents == first).all():
            return bool(events.max() <= seen[first])
        return not (events > seen[agents]).any()

    def bulk_read(
        self, start: int, size: int, clock: Clock, unit: int, *, name: str = "the unit"
    ) -> Bytes:
        """(size,): bytes from `start` on; as `bulk_load`, and faster."""
        here = self._range(start, size)
        writers = self.writer[here]
        if int(writers.min()) < 0 or not self._seen(writers, self.written[here], clock.fenced):
            offsets = np.arange(start, start + size)
            return self.bulk_load(offsets, 1, clock, unit, name=name)[:, 0]
        event = self.clocks.unit_event(unit)
        self.reader[here], self.read[here] = unit, event
        self.last_load[unit, start // GRANULE : -(-(start + size) // GRANULE)] = event
        self.has_loaded[unit] = True
        if self.moved is not None:
            self.moved(name, "load", size)
        return self.data[here].copy()

    def bulk_write(
        self, start: int, values: Bytes, clock: Clock, unit: int, *, name: str = "the unit"
    ) -> None:
        """Write bytes from `start` on; as `bulk_store`, and faster."""
        here = self._range(start, len(values))
        if not (
            self._seen(self.reader[here], self.read[here], clock.seen)
            and self._seen(self.writer[here], self.written[here], clock.seen)
        ):
            offsets = np.arange(start, start + len(values))
            self.bulk_store(offsets, values[:, None], clock, unit, name=name)
            return
        chunks = slice(start // GRANULE, -(-(start + len(values)) // GRANULE))
        self._check_loads(chunks, clock, name)
        self.data[here] = values
        self.writer[here] = unit
        self.written[here] = self.clocks.unit_event(unit)
        if self.moved is not None:
            self.moved(name, "store", len(values))

    def hold(self, offset: int, agent: int, event: int) -> None:
        """The 8 bytes at `offset` become an mbarrier, initialised by `agent` as `event`.

        Raises:
            SynchronizationFault: an asynchronous unit may still use the bytes.
            BarrierFault: there is one already.
        """
        offsets = np.array([offset])
        self.store(offsets, np.zeros((1, 8), np.uint8), np.array([agent]), event)
        self.reader[offset : offset + 8] = agent
        self.read[offset : offset + 8] = HELD

    def give_up(self, offset: int) -> None:
        """The 8 bytes at `offset` are an mbarrier no longer; what they hold is undefined."""
        self.reader[offset : offset + 8] = self.writer[offset : offset + 8] = -1
        self.read[offset : offset + 8] = self.written[offset : offset + 8] = 0


class LocalMemory:
    """Each thread's own bytes."""

    def __init__(self, threads: int, size: int) -> None:
        self.data: NDArray[np.uint8] = np.zeros((threads, max(16, -(-size // 16) * 16)), np.uint8)
        self.size = size

    def _index(self, offsets: Offsets, width: int) -> NDArray[np.int64]:
        check_aligned(offsets, width, "local")
        if ((offsets < 0) | (offsets > self.size - width)).any():
            raise MemoryFault(f"a local access is outside of the thread's {self.size} bytes")
        index: NDArray[np.int64] = offsets[:, None] + np.arange(width)
        return index

    def load(self, threads: NDArray[np.intp], offsets: Offsets, width: int) -> Bytes:
        """(n, width) bytes."""
        return self.data[threads[:, None], self._index(offsets, width)]

    def store(self, threads: NDArray[np.intp], offsets: Offsets, values: Bytes) -> None:
        """Write (n, width) bytes."""
        self.data[threads[:, None], self._index(offsets, values.shape[1])] = values
