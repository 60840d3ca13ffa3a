"""Accesses to a block's shared memory, and what must be ordered before each: of threads, which are
of the generic proxy, and of asynchronous units."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.errors import SynchronizationFault
from triton_ext.emulator.state.clocks import Agents, Clock
from triton_ext.emulator.state.memory import Bytes, Offsets
from triton_ext.emulator.state.shared_bytes import (
    ACCESS_TYPES,
    HELD,
    SharedBytes,
    all_seen,
    in_pieces,
    no_writer,
    unseen,
)
from triton_ext.emulator.state.stamps import (
    AGENT,
    EVENT,
    GRANULE,
    LANE,
    LANES,
    NOBODY,
    SEVERAL,
    Numbers,
    Stamps,
    stamp,
)
from triton_ext.emulator.state.undefined import Origins
from triton_ext.hardware.architecture import WARP_THREADS


class SharedMemory(SharedBytes):
    """A block's shared memory, as its threads and units access it."""

    @functools.cached_property
    def _atomic(self) -> Stamps:
        """The last atomic write: the last write was atomic if it is the same."""
        return Stamps(self.granules)

    @functools.cached_property
    def _plain(self) -> Stamps:
        """The last write before the atomic ones."""
        return Stamps(self.granules, NOBODY)

    # ------------------------------------------------------------ the generic proxy

    def load(
        self,
        offsets: Offsets,
        width: int,
        agents: Agents,
        threads: Agents | None = None,
        origins: Origins | None = None,
    ) -> Bytes:
        """(n, width) bytes, read through the generic proxy by the agent of each lane.

        Args:
            threads: of this block, if they are: lanes of a warp need not be in step.
            origins: (n, width): filled with the origins of the bytes, instead of a fault.

        Raises:
            UninitializedRead: nothing wrote one of the bytes, or what did was undefined.
            SynchronizationFault: nothing orders the write before.
        """
        offsets = self._placed(offsets, width, agents)
        written = self.written.get(offsets, width)
        if origins is not None:
            origins[:] = self._origins(offsets, width)
        else:
            if written.min() < 0:
                raise no_writer(offsets, written)
            if self._undefined is not None:
                self._check_defined(offsets, width, "this instruction")
        late = unseen(written, agents, self.clocks)
        if np.count_nonzero(late) and not self.block.excused(agents, written, late):
            self._unordered(offsets, late, written, "is read, and was written by")
        if threads is not None:
            recent = (written & AGENT == agents[:, None]) & (
                written >> EVENT > self.clocks.met[agents][:, None]
            )
            if np.count_nonzero(recent):
                self._check_lanes(offsets, recent, written, threads)
        event = self.clocks.tick(agents)
        self._loads.put(agents, offsets, width, event)
        return self._bytes(offsets, width)

    @staticmethod
    def _check_lanes(
        offsets: Offsets, recent: NDArray[np.bool_], written: Numbers, threads: Agents
    ) -> None:
        """Raise if one of `recent`, which the reader's own warp wrote, is another lane's."""
        lanes, own = written >> LANE & LANES, threads[:, None] % WARP_THREADS
        apart = recent & (lanes != own) & (lanes != SEVERAL)
        if apart.any():
            reader, byte = (int(n) for n in np.argwhere(apart)[0])
            warp, lane = divmod(int(threads[reader]), WARP_THREADS)
            raise SynchronizationFault(
                f"shared address {int(offsets[reader]) + byte:#x} is read by warp {warp}, lane"
                f" {lane}, and was written by its lane {int(lanes[reader, byte])}: the lanes of a"
                " warp need not be in step; bar.warp.sync (__syncwarp) is missing"
            )

    def _check_loaded(self, offsets: Offsets, values: Bytes, agents: Agents) -> None:
        """Raise if lanes' agents write bytes that another agent's thread may not have read yet."""
        rows = self._loads.warps
        if not len(rows):
            return
        seen = self.clocks.seen[agents[:, None], self._loads.readers(agents)]
        near = self._loads.pieces[rows, (offsets >> 4)[:, None]] > seen
        if not np.count_nonzero(near):
            return
        loaders, lanes = np.nonzero(near.T)
        loads = self._loads.get(rows[loaders], offsets[lanes], values.shape[1])
        late = loads > seen[lanes, loaders][:, None]
        late = late & (self._bytes(offsets[lanes], values.shape[1]) != values[lanes])
        if late.any():
            at, byte = (int(n) for n in np.argwhere(late)[0])
            address = int(offsets[lanes[at]]) + byte
            loader = int(self._loads.agents[rows[loaders[at]]])
            event = int(np.broadcast_to(loads, late.shape)[at, byte])
            raise SynchronizationFault(
                f"shared address {address:#x} is written, and was read by"
                f" {self.block.agent_name(loader)}{self.clocks.missing.line(event)}, and nothing"
                " orders that read before (a barrier)"
                f"{self.describe(address)}{self.clocks.missing.culprit(loader, event, read=True)}"
            )

    def check_reads_fenced(self, start: int, size: int, clock: Clock, name: str) -> None:
        """Raise SynchronizationFault if no proxy fence lies between the threads' reads of some
        bytes and `name`, which is about to write there.
        """
        rows, here = self._loads.warps, self._range(start, size)
        late = self._loads.pieces[rows, here] > clock.fenced[self._loads.agents[rows]][:, None]
        if late.any():
            reader = int(self._loads.agents[rows[int(np.argwhere(late)[0][0])]])
            raise SynchronizationFault(
                f"shared address {start:#x} is written by {name}, and was read by"
                f" {self.block.agent_name(reader)}; between the two, a proxy fence"
                f" (fence.proxy.async) is missing{self.describe(start)}"
            )

    def _check_loads(self, chunks: Any, clock: Clock, name: str) -> None:
        """Raise if `name` writes 16-byte chunks that someone may still be reading."""
        loaders = self._loads.agents
        if not len(loaders):
            return
        loads = self._loads.pieces[:, chunks]
        late = loads > clock.seen[loaders][:, None]
        if np.count_nonzero(late):
            row, chunk = (int(n) for n in np.argwhere(late)[0])
            loader, event = int(loaders[row]), int(loads[row, chunk])
            first = chunks.start + chunk if isinstance(chunks, slice) else int(chunks[chunk])
            raise SynchronizationFault(
                f"shared address {first * GRANULE:#x} is written by {name}, and may still be read"
                f" by {self.block.agent_name(loader)}: nothing orders its read before (an"
                " arrival at the mbarrier that the copy waits for, or a barrier)"
                f"{self.describe(first * GRANULE)}"
                f"{self.clocks.missing.culprit(loader, event, read=True)}"
            )

    def store(
        self,
        offsets: Offsets,
        values: Bytes,
        agents: Agents,
        event: int,
        threads: Agents | None = None,
        seen: Numbers | None = None,
    ) -> None:
        """Write (n, width) bytes through the generic proxy, as `event` of the lanes' agents.

        Args:
            threads: of this block, if they are.
            seen: (n, agents): which writes of each agent come before, for agents whose own writes
                need an order, too; by default, what the lanes' agents have seen.
        """
        width = values.shape[1]
        offsets = self._placed(offsets, width, agents)
        written = self.written.get(offsets, width)
        if seen is None:
            late = unseen(written, agents, self.clocks)
        else:
            late = written >> EVENT > np.take_along_axis(seen, written & AGENT, axis=1)
        if np.count_nonzero(late):
            harms = self._bytes(offsets, width) != values  # the same value does no harm
            if seen is not None:
                harms = harms | (written & AGENT == agents[:, None])
            late = late & harms
            if late.any():
                self._unordered(offsets, late, written, "is written, and was written by")
        self._store(offsets, values, agents, event, threads)

    def _store(
        self,
        offsets: Offsets,
        values: Bytes,
        agents: Agents,
        event: int,
        threads: Agents | None = None,
    ) -> None:
        width = values.shape[1]
        read = self.read.get(offsets, width)
        late = unseen(read, agents, self.clocks)
        if np.count_nonzero(late):
            self._unordered(offsets, late, read, "is written, and may still be read by")
        self._check_loaded(offsets, values, agents)
        self._set(offsets, values)
        if threads is None:
            self.written.put(offsets, width, stamp(event, agents))
            return
        mine = stamp(event, agents, threads % WARP_THREADS)
        self.written.put(offsets, width, mine)
        other = self.written.get(offsets, width) ^ mine[:, None]
        if np.count_nonzero(other):  # lanes have written the same bytes
            shared = (other >> LANE & LANES).any(axis=1)
            self.written.put(offsets[shared], width, stamp(event, agents[shared]))

    # -------------------------------------------------------- asynchronous units

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
        written = self.written.get(offsets, width)
        if not all_seen(written, clock.fenced, 0):
            self._not_seen(offsets, written, clock, name)
        self._check_defined(offsets, width, name)
        event = self.clocks.unit_event(unit)
        self.read.put(offsets, width, stamp(event, unit))
        self._loads.put_unit(unit, offsets >> 4, event)
        self.block.moved(name, "load", len(offsets) * width)
        return self._bytes(offsets, width)

    def load_pieces(
        self, pieces: Any, clock: Clock, unit: int, *, name: str = "the unit"
    ) -> tuple[Bytes, Numbers]:
        """Pieces of 16 bytes, (n, 16), and who wrote them, as `Stamps.of` gives it.

        Args:
            pieces: their numbers, which the caller has checked: a slice or an array.
            clock, unit, name: as of `bulk_load`; it raises the same.
        """
        written = self.written.of(pieces)
        if not all_seen(written, clock.fenced, 0):
            offsets = np.arange(self.granules)[pieces] * GRANULE
            self._not_seen(offsets, self.written.get(offsets, GRANULE), clock, name)
        if self._undefined is not None:
            self._check_defined(np.arange(self.granules)[pieces] * GRANULE, GRANULE, name)
        event = self.clocks.unit_event(unit)
        self.read.fill(pieces, stamp(event, unit))
        self._loads.put_unit(unit, pieces, event)
        found: Bytes = self.data.view(ACCESS_TYPES[GRANULE])[pieces].view(np.uint8)
        self.block.moved(name, "load", len(found))
        return found.reshape(-1, GRANULE), written

    def _not_seen(self, offsets: Offsets, written: Numbers, clock: Clock, name: str) -> None:
        """Raise for the first byte that nothing wrote, or that the asynchronous proxy can't see."""
        if written.min() < 0:
            raise no_writer(offsets, written)
        late = written >> EVENT > clock.fenced[written & AGENT]
        lane, byte = (int(n) for n in np.argwhere(late)[0])
        writer, address = int(written[lane, byte]) & AGENT, int(offsets[lane]) + byte
        event = int(written[lane, byte]) >> EVENT
        missing, culprit = (
            "a proxy fence (fence.proxy.async)",
            self.clocks.missing.left_out(writer, event),
        )
        if event > clock.seen[writer]:
            missing, culprit = "a barrier or wait", self.clocks.missing.culprit(writer, event)
        raise SynchronizationFault(
            f"{name} reads shared address {address:#x}, written by {self.block.agent_name(writer)};"
            f" between the two, {missing} is missing{self.describe(address)}{culprit}"
        )

    def bulk_store(
        self, offsets: Offsets, values: Bytes, clock: Clock, unit: int, *, name: str = "the unit"
    ) -> None:
        """Write (n, width) bytes through the asynchronous proxy; arguments as of `bulk_load`."""
        width = values.shape[1]
        self._check(offsets, width)
        for stamps, verb in ((self.read, "may still be read by"), (self.written, "was written by")):
            others = stamps.get(offsets, width)
            late = others >> EVENT > clock.seen[others & AGENT]
            if np.count_nonzero(late):
                self._unordered(offsets, late, others, f"is written by {name}, and {verb}")
        self._check_loads(np.unique(offsets >> 4), clock, name)
        event = self.clocks.unit_event(unit)
        self._set(offsets, values)
        self.written.put(offsets, width, stamp(event, unit))
        self.block.moved(name, "store", values.size)

    # ---------------------------------------------------------- atomic operations

    def atomic_load(self, offsets: Offsets, width: int, agents: Agents) -> Bytes:
        """(n, width) bytes, read by atomic operations: what another one wrote needs no order."""
        self._check(offsets, width)
        written = self.written.get(offsets, width)
        if written.min() < 0:
            raise no_writer(offsets, written)
        self._check_defined(offsets, width, "this instruction")
        atomic = written == self._atomic.get(offsets, width)
        if np.count_nonzero(atomic):  # what counts is the ordinary write before the atomic ones
            written = np.where(atomic, self._plain.get(offsets, width), written)
        late = unseen(written, agents, self.clocks)
        if np.count_nonzero(late):
            self._unordered(offsets, late, written, "is read, and was written by")
        return self._bytes(offsets, width)

    def atomic_store(self, offsets: Offsets, values: Bytes, agents: Agents, event: int) -> None:
        """Write (n, width) bytes that `atomic_load` has just read."""
        width = values.shape[1]
        self._check(offsets, width)
        written = self.written.get(offsets, width)
        plain = written != self._atomic.get(offsets, width)
        for byte in range(plain.shape[1]):  # once, if the bytes of each have one number
            chosen = plain[:, byte]
            if np.count_nonzero(chosen):
                size = width if plain.shape[1] == 1 else 1
                self._plain.put(
                    offsets[chosen] + byte, size, written[chosen, byte % written.shape[1]]
                )
        self._store(offsets, values, agents, event)
        self._atomic.put(offsets, width, stamp(event, agents))

    # ------------------------------------------------------ whole ranges of bytes

    def bulk_read(
        self, start: int, size: int, clock: Clock, unit: int, *, name: str = "the unit"
    ) -> Bytes:
        """(size,): bytes from `start` on; as `bulk_load`, and faster."""
        here = self._range(start, size)
        if (start | size) % GRANULE:
            offsets, width = in_pieces(start, size)
            return self.bulk_load(offsets, width, clock, unit, name=name).reshape(-1)
        return self.load_pieces(here, clock, unit, name=name)[0].reshape(-1).copy()

    def bulk_write(
        self, start: int, values: Bytes, clock: Clock, unit: int, *, name: str = "the unit"
    ) -> None:
        """Write bytes from `start` on; as `bulk_store`, and faster."""
        size = len(values)
        here = self._range(start, size)
        whole = not (start | size) % GRANULE
        tables = (self.read, self.written)
        if not whole or not all(all_seen(each.of(here), clock.seen) for each in tables):
            offsets, width = in_pieces(start, size)
            self.bulk_store(offsets, values.reshape(-1, width), clock, unit, name=name)
            return
        self._check_loads(here, clock, name)
        self.data[start : start + size] = values
        self.written.fill(here, stamp(self.clocks.unit_event(unit), unit))
        self.block.moved(name, "store", size)

    def hold(self, offset: int, agent: int, event: int) -> None:
        """The 8 bytes at `offset` become an mbarrier, initialised by `agent` as `event`.

        Raises:
            SynchronizationFault: an asynchronous unit may still use the bytes.
            BarrierFault: there is one already.
        """
        offsets = np.array([offset])
        self.store(offsets, np.zeros((1, 8), np.uint8), np.array([agent]), event)
        self.read.put(offsets, 8, stamp(HELD, agent))

    def give_up(self, offset: int) -> None:
        """The 8 bytes at `offset` are an mbarrier no longer; what they hold is undefined."""
        self.read.put(np.array([offset]), 8, 0)
        self.written.put(np.array([offset]), 8, NOBODY)
