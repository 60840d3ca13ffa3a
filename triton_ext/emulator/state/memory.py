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

from triton_ext.emulator.errors import MemoryFault
from triton_ext.hardware.architecture import CTA_ADDRESS_BITS

Bytes = NDArray[np.uint8]
Addresses = NDArray[np.int64]
Offsets = NDArray[np.int64]

WINDOW_SHIFT = 56
SHARED_WINDOW = 1 << WINDOW_SHIFT
LOCAL_WINDOW = 2 << WINDOW_SHIFT
PARAM_WINDOW = 3 << WINDOW_SHIFT
WINDOWS = {1: "shared", 2: "local", 3: "param"}
RANK_SHIFT = CTA_ADDRESS_BITS
_MOST_BLOCKS = 16
"""Blocks of a cluster, at most."""
SHARED_BASE = 1024
"""The first dynamic shared byte: the system keeps 1 KiB of each block (sm_90 and later)."""
_FAR = 1 << 32
"""How far from memory an address is that is no mistake about it, in bytes: a guess."""
_COMPILERS = ("variable $str", "variable __unnamed_")
"""How nvcc names texts of ``printf`` and ``assert``."""


EMPTY = np.tile(np.array([0xA5, 0x5A, 0xFA, 0x7F], np.uint8), 4)
"""What memory that nothing has written holds, if that is checked: NaN, as fp32 and bf16."""


def check_aligned(offsets: Offsets, width: int, space: str) -> None:
    """Raise MemoryFault unless the offsets are multiples of the access size (PTX ISA, "ld")."""
    wrong = offsets & (width - 1)
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        raise MemoryFault(
            f"{space} address {int(offsets.reshape(-1)[first]):#x} is not a multiple of the access'"
            f" {width} bytes"
        ).by(first)


class Rows:
    """Rows of `width` bytes at offsets, of any array with an element a byte.

    Fast if the distances of the offsets are multiples of the width.
    """

    def __init__(self, offsets: Offsets, width: int) -> None:
        self._width, self._first = width, 0
        self._at: NDArray[np.int64] = offsets
        self._whole = not (offsets & (width - 1)).any()
        if not self._whole:  # a view need not begin where its storage does
            self._first = int(offsets[0]) & (width - 1)
            offsets = offsets - self._first
            self._whole = not (offsets & (width - 1)).any()
        if self._whole:
            self._at = offsets // width
        else:
            self._at = self._at[:, None] + np.arange(width)

    def _of(self, data: NDArray[Any]) -> NDArray[Any]:
        if not self._whole:
            return data
        number = (len(data) - self._first) // self._width
        return data[self._first : self._first + number * self._width].reshape(number, self._width)

    def gather(self, data: NDArray[Any]) -> NDArray[Any]:
        """The elements of each row, (n, width)."""
        return self._of(data)[self._at]

    def scatter(self, data: NDArray[Any], values: Any) -> None:
        """Write (n, width) elements; where offsets are equal, the last row stays."""
        self._of(data)[self._at] = values


def gather(data: NDArray[Any], offsets: Offsets, width: int) -> NDArray[Any]:
    """The `width` bytes at each offset, (n, width)."""
    return Rows(offsets, width).gather(data)


def scatter(data: NDArray[Any], offsets: Offsets, values: Any, width: int) -> None:
    """Write (n, width) bytes; where offsets are equal, the last row stays."""
    Rows(offsets, width).scatter(data, values)


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
                " which that is a view, and is no element of it (if this is meant:"
                " check_views=False)"
            ).by(row)

    def padded(self, address: int) -> bool:
        """Whether an address is in the storage of a tensor of which the owner is a view."""
        if not hasattr(self.owner, "untyped_storage"):
            return False
        storage = self.owner.untyped_storage()
        return bool(storage.data_ptr() <= address < storage.data_ptr() + storage.nbytes())

    def describe(self, offset: int) -> str:
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


OF_MALLOC = "memory of malloc"
"""The name of what threads have asked for."""


class GlobalMemory:
    """The host's memory that a kernel may touch, by addresses.

    Args:
        find: asked for the allocations that an address which is not registered may be in. (A kernel
            may read pointers from memory.)

    Attributes:
        released: what flags have released, by address: see `units.memory_order`.
        workspace: the address of what a cooperative launch synchronizes its grid with; 0: none.
        replaced: if it is a list, what stores of threads have replaced: see `put_back`.
    """

    def __init__(
        self, find: Callable[[GlobalMemory, int], Iterable[Allocation]] | None = None
    ) -> None:
        self._starts: list[int] = []
        self.allocations: list[Allocation] = []
        self.find = find
        self.released: dict[int, Any] = {}
        self.workspace = 0
        self.replaced: list[tuple[Allocation, Offsets, Bytes]] | None = None

    def register(self, array: NDArray[Any], owner: Any = None, name: str = "") -> int:
        """Make a contiguous array's bytes accessible, and return its address."""
        data = array.reshape(-1).view(np.uint8)
        address = int(array.__array_interface__["data"][0])
        owner = array if owner is None else owner
        self.add(Allocation(address, len(data), data, name, bool(array.flags.writeable), owner))
        return address

    def allocate(self, size: int) -> int:
        """Memory that a thread asks for by ``malloc``: its address, which is of this launch."""
        return self.register(np.zeros(max(size, 1), np.uint8), name=OF_MALLOC)

    def free(self, address: int) -> None:
        """Give back what `allocate` gave. Raises MemoryFault: it did not give that address."""
        found = self._known(address, 1)
        if found is None or found.start != address or found.name != OF_MALLOC:
            raise MemoryFault(
                f"free of {address:#x}, which malloc did not give, or which was freed"
            )
        at = self.allocations.index(found)
        del self._starts[at], self.allocations[at]

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
        """The allocation that holds `width` bytes at `address`. Raises MemoryFault: there is none,
        or it is written and read-only."""
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
        near = []
        for found in self.allocations:
            offset = address - found.start
            if offset < 0:
                side = f"{-offset} bytes before"
            elif offset < found.size:
                side = f"{found.size - offset} bytes before the end of"
            else:
                side = f"{offset - found.size} bytes past the end of"
            distance = max(-offset, offset - found.size, 0)
            if distance < _FAR and not found.name.startswith(_COMPILERS):
                near.append((distance, side, found))
        if 0 <= address < SHARED_BASE:
            text += f"; it is a null pointer{f', and {address} bytes' * bool(address)}"
        elif near:
            _, side, found = min(near, key=lambda each: each[0])
            place = f"{found.name or 'the one'} at {found.start:#x}, {found.size} bytes"
            text += f"; it is {side} {place}"
            if found.padded(address):
                text += ", and in the tensor of which that is a view (if this is meant:"
                text += " check_views=False)"
        if SHARED_BASE <= address < _MOST_BLOCKS << RANK_SHIFT:
            text += "; if it is a shared address: a generic one is due (cvta.shared), or .shared"
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

    def _check_aligned(self, addresses: Offsets, width: int) -> None:
        try:
            check_aligned(addresses, width, "global")
        except MemoryFault as fault:
            position = fault.position or 0
            try:
                self.locate(int(addresses[position]), 1)
            except MemoryFault as worse:
                raise worse.by(position) from None
            raise

    def load(self, addresses: Offsets, width: int, by: Accessor | None) -> Bytes:
        """(n, width) bytes."""
        self._check_aligned(addresses, width)
        values: Bytes | None = None
        for found, lanes in self.groups(addresses, width):
            offsets = addresses[lanes] - found.start
            if by is not None:
                by.lanes(lanes).read(found, 0, offsets, width)
            here = gather(found.data, offsets, width)
            if isinstance(lanes, slice):  # all of them
                return here
            if values is None:
                values = np.empty((len(addresses), width), np.uint8)
            values[lanes] = here
        return np.empty((0, width), np.uint8) if values is None else values

    def store(self, addresses: Offsets, values: Bytes, by: Accessor | None) -> None:
        """Write (n, width) bytes."""
        width = values.shape[1]
        self._check_aligned(addresses, width)
        for found, lanes in self.groups(addresses, width, writes=True):
            offsets = addresses[lanes] - found.start
            found.check_owned(offsets, width)
            if by is not None:
                by.lanes(lanes).write(found, 0, offsets, values[lanes])
            if self.replaced is not None:
                self.replaced.append((found, offsets, gather(found.data, offsets, width)))
            scatter(found.data, offsets, values[lanes], width)

    def put_back(self) -> None:
        """Have the contents again that were replaced."""
        for found, offsets, values in reversed(self.replaced or []):
            scatter(found.data, offsets, values, values.shape[1])


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
