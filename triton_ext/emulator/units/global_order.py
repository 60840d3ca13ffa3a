"""Order in global memory: who wrote each byte last, who read it, and has the next one seen that?

Two accesses of one byte, of which one writes, by agents that nothing orders, are a race (PTX ISA,
"Memory Consistency Model: Data-Races"); so are two atomic ones whose scope leaves the other out.
Of each byte the last write is remembered, and two readers. Reads are noted at first, and entered
only in memory that the launch writes: those of a product's operands cost next to nothing.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.errors import SynchronizationFault, UninitializedRead
from triton_ext.emulator.state.block import Cta, Launch, agent_name, agents_of_block
from triton_ext.emulator.state.clocks import WIDEST, Agents, Clock
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.memory import EMPTY, Allocation, Offsets, gather, scatter
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.ptx.parse import Instruction

Codes = NDArray[np.int64]
"""An access in 64 bits: cluster (20), agent (11), event (30), scope (2; 0 is an ordinary one)."""

_SCOPE_BITS, _EVENT_BITS, _AGENT_BITS, _CLUSTER_BITS = 2, 30, 11, 20
_AGENT_SHIFT = _SCOPE_BITS + _EVENT_BITS
_CLUSTER_SHIFT = _AGENT_SHIFT + _AGENT_BITS
_NOTED = 1 << 22
"""Rows of reads that an allocation may have noted before they are entered."""
_MOST_UNIT = 64
_MOST_BYTES = 1 << 28
"""Size from which on the order of an allocation's accesses is not checked: 32 bytes are kept of
each that is touched."""


@dataclass(frozen=True)
class Reads:
    """Reads of an allocation that are not entered: `codes` has one, or one for each row.

    Attributes:
        first, offsets: a row of `size` bytes begins at the first offset and each of these.
        line: of the PTX instruction.
    """

    codes: Codes
    first: int
    offsets: Offsets
    size: int
    line: int


Kept = tuple[int, bool, bool, list[Reads]]
"""What a fork knows of an allocation: its start; is it written, are reads entered; those not."""


@dataclass(frozen=True)
class _Access:
    """An access, for an error."""

    cluster: int
    agent: int
    scope: int
    line: int


def _fields(code: int) -> tuple[int, int, int]:
    """Cluster, agent and scope of an access."""
    agent = code >> _AGENT_SHIFT & (1 << _AGENT_BITS) - 1
    return code >> _CLUSTER_SHIFT, agent, code & (1 << _SCOPE_BITS) - 1


@dataclass(frozen=True)
class By:
    """Who accesses global memory, at one instruction.

    Attributes:
        order: that of the launch.
        cta: the block.
        agents: that of each lane; or of an asynchronous unit, alone.
        event: the number of the access.
        scope: of an atomic access; 0 for an ordinary one.
        line: of the PTX instruction.
        clock: what a unit has seen. (A thread's is the cluster's.)
        noted: whether a read is to be remembered.
    """

    order: GlobalOrder
    cta: Cta
    agents: Agents
    event: int
    scope: int
    line: int
    clock: Clock | None = None
    noted: bool = True

    def lanes(self, chosen: Any) -> By:
        """Some of the lanes."""
        if len(self.agents) == 1:
            return self
        return replace(self, agents=self.agents[chosen])

    def read(self, of: Allocation, first: int, offsets: Offsets, size: int) -> None:
        """See `GlobalOrder.read`."""
        self.order.read(of, first, offsets, size, self)

    def write(
        self, of: Allocation, first: int, offsets: Offsets, values: NDArray[np.uint8]
    ) -> None:
        """See `GlobalOrder.write`."""
        self.order.write(of, first, offsets, values, self)

    def codes(self) -> Codes:
        """(lanes,)"""
        whose = (self.cta.cluster.number << _AGENT_BITS) + self.agents.astype(np.int64)
        return (whose << _AGENT_SHIFT) + (self.event << _SCOPE_BITS) + self.scope

    def unordered(self, codes: Codes, agents: Agents, agents_each: int) -> NDArray[np.bool_]:
        """Which accesses, (lanes, bytes), nothing orders before this one of each lane's agent.

        Args:
            agents_each: agents of a block.
        """
        cluster, agent = codes >> _CLUSTER_SHIFT, codes >> _AGENT_SHIFT & (1 << _AGENT_BITS) - 1
        event = codes >> _SCOPE_BITS & (1 << _EVENT_BITS) - 1
        clocks = self.cta.cluster.clocks
        here = cluster == self.cta.cluster.number
        seen = clocks.seen[agents[:, None], agent] if self.clock is None else self.clock.seen[agent]
        late: NDArray[np.bool_] = (codes != 0) & ~(here & (event <= seen))
        if self.scope and late.any():
            scope = codes & (1 << _SCOPE_BITS) - 1
            near = np.where(agent // agents_each == self.cta.rank, 1, 2)
            needed = np.where(here, near, WIDEST)
            late &= (scope == 0) | (np.minimum(scope, self.scope) < needed)
        rest = late & ~here
        if not rest.any() or not (clocks.foreign if self.clock is None else self.clock.foreign):
            return late
        for who in np.unique(agents).tolist():
            foreign = clocks.foreign.get(who, {}) if self.clock is None else self.clock.foreign
            mine = rest & (agents == who)[:, None]
            for number in np.unique(cluster[mine]).tolist():
                if number in foreign:
                    those = mine & (cluster == number)
                    late[those] = event[those] > foreign[number][agent[those]]
        return late


def threads(cta: Cta, lanes: Lanes, scope: int = 0) -> By | None:
    """Threads that access global memory now; None if its order is not checked.

    Args:
        scope: of an atomic access.
    """
    order = cta.machine.global_order
    if order is None:
        return None
    event = cta.cluster.clocks.tick(cta.agents(lanes))
    return By(order, cta, cta.agents_of_lanes(lanes), event, scope, _line_of(cta))


def copies(cta: Cta, agents: Agents, event: int, line: int) -> By | None:
    """The copies of each lane's warp (``cp.async``) that access global memory as an event."""
    order = cta.machine.global_order
    return None if order is None else By(order, cta, agents, event, 0, line)


def unit(
    cta: Cta, agent: int, clock: Clock, instruction: Instruction | None, *, scope: int = 0,
    noted: bool = True,
) -> By | None:  # fmt: skip
    """An asynchronous unit that accesses global memory now.

    Args:
        clock: what the thread that issued the operation had seen.
        scope: of a reduction.
        noted: whether a read is to be remembered.
    """
    order = cta.machine.global_order
    if order is None:
        return None
    event = cta.cluster.clocks.unit_event(agent)
    line = instruction.line if instruction is not None else 0
    return By(order, cta, np.array([agent]), event, scope, line, clock, noted)


def _line_of(cta: Cta) -> int:
    return cta.instruction.line if cta.instruction is not None else 0


class Shadow:
    """What is remembered of an allocation's bytes, in memory that forks share.

    Args:
        size: bytes.
        warps: of a block.
    """

    def __init__(self, size: int, warps: int = 0) -> None:
        def empty(dtype: type) -> NDArray[np.int64]:
            return np.frombuffer(mmap.mmap(-1, max(1, size) * np.dtype(dtype).itemsize), dtype)

        self.size = size
        self.writer, self.writer_line = empty(np.int64), empty(np.int32)
        self.readers = empty(np.int64), empty(np.int64)
        self.reader_line = empty(np.int32)
        # A bit for each warp of the last reader's block that has read by the same instruction.
        self.sharers = empty(np.uint32)
        self._warps, self._agents_each = warps, agents_of_block(warps)
        self.written = self.entered = False
        self.noted: list[Reads] = []
        self.rows = 0

    def note(self, reads: Reads) -> None:
        """Remember reads; they count once `enter` is called."""
        self.noted.append(reads)
        self.rows += len(reads.offsets)
        if self.rows > _NOTED:
            self.enter()

    def enter(self) -> None:
        """Enter the reads that were noted: as the last reader, and the last one but for it."""
        last, other = self.readers
        for reads in self.noted:
            where, unit = _units(reads.first, reads.offsets, reads.size)
            codes = np.broadcast_to(reads.codes, len(reads.offsets))
            mine = np.repeat(codes, len(where) // len(codes))
            for code in np.unique(mine).tolist():  # several warps may read the same bytes
                rows = where[mine == code]
                before = gather(last, rows, unit)
                keep = before >> _AGENT_SHIFT == code >> _AGENT_SHIFT
                scatter(other, rows, np.where(keep, gather(other, rows, unit), before), unit)
                together = _blocks(before, self._agents_each) == _blocks(code, self._agents_each)
                together &= gather(self.reader_line, rows, unit) == reads.line
                bit = _bits(code, self._warps, self._agents_each)
                shared = np.where(together, gather(self.sharers, rows, unit), 0) | bit
                scatter(self.sharers, rows, shared, unit)
                scatter(last, rows, code, unit)
                scatter(self.reader_line, rows, reads.line, unit)
        self.entered |= bool(self.noted)
        self.noted, self.rows = [], 0


_NOTHING = Shadow(0)


def _blocks(codes: Any, agents_each: int) -> Any:
    """A number for the block of each access."""
    whose = codes >> _AGENT_SHIFT
    return whose - (whose & (1 << _AGENT_BITS) - 1) % agents_each


def _bits(codes: Any, warps: int, agents_each: int) -> Any:
    """The bit of each access's warp in `Shadow.sharers`; 0 of a unit."""
    own = (codes >> _AGENT_SHIFT & (1 << _AGENT_BITS) - 1) % agents_each
    return np.where(own < warps, 1 << np.minimum(own, 31), 0).astype(np.uint32)


def _units(first: int, offsets: Offsets, size: int) -> tuple[Offsets, int]:
    """Rows of bytes as rows of a power of two: where each begins, and its bytes."""
    where = offsets + first
    low = int(np.bitwise_or.reduce(where - where[0])) | size
    unit = min(low & -low, _MOST_UNIT)
    if unit == size:
        return where, size
    return (where[:, None] + np.arange(0, size, unit)).reshape(-1), unit


def _check_empty(of: Allocation, first: int, offsets: Offsets, size: int) -> None:
    """Raise UninitializedRead if rows are read that are as `torch.empty` has left them.

    Whole aligned 16 bytes are compared, so that no value that was computed is taken for them.
    """
    where, unit = _units(first, offsets, size)
    where = (where[:, None] + np.arange(0, unit, len(EMPTY))).reshape(-1)
    lines = where - (of.start + where) % len(EMPTY)
    lines = lines[(lines >= 0) & (lines + len(EMPTY) <= len(of.data))]
    unset = (gather(of.data, lines, len(EMPTY)) == EMPTY).all(axis=1)
    if unset.any():
        at = int(lines[np.flatnonzero(unset)[0]])
        raise UninitializedRead(
            f"global address {of.start + at:#x} ({of.place(at)}) is read, and nothing has written"
            " it since torch.empty"
        )


class GlobalOrder:
    """The order of a launch's accesses to global memory.

    Args:
        program: its instructions.
    """

    def __init__(self, launch: Launch, program: Sequence[Instruction]) -> None:
        self._launch = launch
        self._program = program
        self._warps = -(-launch.threads // WARP_THREADS)
        self.agents_each = agents_of_block(self._warps)
        self._shadows: dict[int, Shadow] = {}
        self._lock: int | None = None

    @staticmethod
    def fits(launch: Launch) -> bool:
        """Whether the launch is small enough for `Codes`."""
        blocks = int(np.prod(launch.cluster))
        agents = blocks * agents_of_block(-(-launch.threads // WARP_THREADS))
        return launch.clusters < 1 << _CLUSTER_BITS and agents < 1 << _AGENT_BITS

    def shadow(self, of: Allocation) -> Shadow:
        """That of an allocation."""
        found = self._shadows.get(of.start)
        if found is None or found.size != len(of.data):
            found = self._shadows[of.start] = Shadow(len(of.data), self._warps)
        return found

    # ------------------------------------------------------------------- accesses

    def read(self, of: Allocation, first: int, offsets: Offsets, size: int, by: By) -> None:
        """Rows of `size` bytes are read, each by one of the lanes.

        Raises:
            SynchronizationFault: nothing orders the read behind the last write.
        """
        if self._launch.check_empty:
            _check_empty(of, first, offsets, size)
        if of.size > _MOST_BYTES:
            return
        shadow = self.shadow(of)
        if shadow.written:
            where, unit = _units(first, offsets, size)
            self._check(of, shadow, where, shadow.writer, unit, by, "read", "written")
        if of.writable and by.noted and not by.scope:
            shadow.note(Reads(by.codes(), first, offsets, size, by.line))

    def write(
        self, of: Allocation, first: int, offsets: Offsets, values: NDArray[np.uint8], by: By
    ) -> None:
        """Rows are about to be written with `values`, (rows, bytes); the rest is as of `read`."""
        if of.size > _MOST_BYTES:
            return
        size = values.shape[1]
        shadow = self.shadow(of)
        where, unit = _units(first, offsets, size)
        with self._locked():
            shadow.written = True
            shadow.enter()
            new = values.reshape(len(where), unit)
            checked = (of, shadow, where)
            if shadow.entered:
                for codes in shadow.readers:
                    self._check(*checked, codes, unit, by, "written", "read", new)
            self._check(*checked, shadow.writer, unit, by, "written", "written", new)
            mine = by.codes()
            rows = np.repeat(mine, len(where) // len(mine))[:, None]
            scatter(shadow.writer, where, rows, unit)
            scatter(shadow.writer_line, where, by.line, unit)

    def _check(
        self, of: Allocation, shadow: Shadow, where: Offsets, kept: Codes, unit: int, by: By,
        does: str, did: str, new: NDArray[np.uint8] | None = None,
    ) -> None:  # fmt: skip
        """Raise if rows of `unit` bytes were accessed before, and nothing orders that.

        Args:
            kept: the accesses, a code for each byte.
            new: what is written there; who writes what is there already does no harm.
        """
        codes = gather(kept, where, unit)
        if not codes.any():
            return
        agents = np.repeat(by.agents, len(where) // len(by.agents))
        late = by.unordered(codes, agents, self.agents_each)
        if late.any() and new is not None:
            late = late & (gather(of.data, where, unit) != new)
        if late.any() and (does, did) != ("written", "written"):
            late = late & ~self._replicas(shadow, where, unit, codes, by, does)
        if not late.any():
            return
        row, byte = (int(n) for n in np.argwhere(late)[0])
        at = int(where[row]) + byte
        lines = shadow.writer_line if did == "written" else shadow.reader_line
        access = _Access(by.cta.cluster.number, int(agents[row]), by.scope, by.line)
        other = _Access(*_fields(int(codes[row, byte])), int(lines[at]))
        raise self._fault(of, at, access, does, other, did)

    def _replicas(
        self, shadow: Shadow, where: Offsets, unit: int, codes: Codes, by: By, does: str
    ) -> NDArray[np.bool_]:
        """Where a warp reads what another one of its block reads by the same instruction, and
        writes later. Where a tensor has fewer elements than a block has threads, Triton lets
        several warps load each, and one of them store: what the others have loaded is not used.
        """
        warps, each = self._warps, self.agents_each
        mine = np.repeat(by.codes(), len(where) // len(by.codes()))[:, None]
        last = _blocks(gather(shadow.readers[0], where, unit), each)
        found: NDArray[np.bool_] = (last == _blocks(mine, each)) & (last == _blocks(codes, each))
        found &= (codes | mine) & (1 << _SCOPE_BITS) - 1 == 0
        needed = _bits(codes, warps, each)
        if does == "read":
            found &= gather(shadow.reader_line, where, unit) == by.line
        else:
            found &= _bits(mine, warps, each) != 0
            needed = needed | _bits(mine, warps, each)
        found &= _bits(codes, warps, each) != 0
        found &= gather(shadow.sharers, where, unit) & needed == needed
        return found

    def _fault(
        self, of: Allocation, at: int, access: _Access, does: str, other: _Access, did: str
    ) -> SynchronizationFault:
        if access.cluster != other.cluster:
            hint = (
                "only a release by the one and an acquire by the other, of one flag in global"
                " memory and at the scope of the GPU, order two blocks"
            )
        elif access.agent // self.agents_each != other.agent // self.agents_each:
            hint = "a barrier of the cluster, or a flag that is released and acquired, is missing"
        else:
            hint = "a barrier or wait is missing"
        if access.scope and other.scope:
            hint = "the scope of one of them is too narrow to include the other"
        elif access.scope or other.scope:
            hint = f"the one is atomic, the other is not: {hint}"
        fault = SynchronizationFault(
            f"global address {of.start + at:#x} ({of.place(at)}) is {does} by"
            f" {self._name(access)}, and was {did} by {self._name(other)}"
            f"{self._line(other.line)}, and nothing orders the two: {hint}"
        )
        fault.instruction = next((each for each in self._program if each.line == access.line), None)
        return fault

    def _line(self, line: int) -> str:
        found = next((each for each in self._program if each.line == line), None)
        return "" if found is None else f" [{found.source or f'PTX line {line}'}]"

    def _name(self, access: _Access) -> str:
        rank, own = divmod(access.agent, self.agents_each)
        block = self._launch.blocks(access.cluster)[rank]
        return f"block {block}, {agent_name(own, self._warps)}"

    # ---------------------------------------------------------------------- forks

    def share(self, allocations: Sequence[Allocation]) -> None:
        """Forks are about to start: they see what each of them writes."""
        for each in allocations:
            if each.size <= _MOST_BYTES:
                self.shadow(each)
        self._lock = os.memfd_create("order")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if self._lock is None:
            yield
            return
        import fcntl  # not everywhere; nor are forks

        fcntl.lockf(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)

    def forked(self) -> None:
        """In a fork: what was read before is the parent's."""
        for shadow in self._shadows.values():
            shadow.noted, shadow.rows = [], 0

    def answer(self) -> list[Kept]:
        """What `join` needs of a fork."""
        return [
            (start, each.written, each.entered, each.noted)
            for start, each in self._shadows.items()
            if each.written or each.entered or each.noted
        ]

    def join(self, answers: Sequence[list[Kept]], allocations: Sequence[Allocation]) -> None:
        """The forks have ended: did one write what another one has read?

        Raises:
            SynchronizationFault: it did. (Blocks that run in forks have nothing that orders them.)
        """
        assert self._lock is not None
        os.close(self._lock)
        self._lock = None
        for start, written, entered, noted in (each for answer in answers for each in answer):
            shadow = self._shadows[start]
            shadow.written |= written
            shadow.entered |= entered
            shadow.noted += noted
        for of in allocations:
            shadow = self._shadows.get(of.start, _NOTHING)
            for reads in shadow.noted if shadow.written else ():
                where, unit = _units(reads.first, reads.offsets, reads.size)
                codes = gather(shadow.writer, where, unit)
                mine = np.broadcast_to(reads.codes, len(reads.offsets))
                mine = np.repeat(mine, len(where) // len(mine))[:, None]
                late = (codes != 0) & (codes >> _CLUSTER_SHIFT != mine >> _CLUSTER_SHIFT)
                if late.any():
                    row, byte = (int(n) for n in np.argwhere(late)[0])
                    at = int(where[row]) + byte
                    access = _Access(*_fields(int(mine[row, 0])), reads.line)
                    other = _Access(*_fields(int(codes[row, byte])), int(shadow.writer_line[at]))
                    raise self._fault(of, at, access, "read", other, "written")
