"""Order in global memory: who wrote each byte last, who read it, and has the next one seen that?

Two accesses of one byte, of which one writes, by agents that nothing orders, are a race (PTX ISA,
"Memory Consistency Model: Data-Races"); so are two atomic ones whose scope leaves the other out.
Of each byte the last write is remembered, and two readers. Reads are noted at first, and entered
only in memory that the launch writes: those of a product's operands cost next to nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.errors import SynchronizationFault, UninitializedRead
from triton_ext.emulator.state.block import Cta, Launch, agent_name, agents_of_block
from triton_ext.emulator.state.clocks import SYSTEM, WIDEST, Agents, Clock, Clocks, Foreign
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.lockstep import Lockstep
from triton_ext.emulator.state.memory import EMPTY, Allocation, Offsets, Rows, gather
from triton_ext.emulator.units.history import SCOPE_NAMES, History
from triton_ext.emulator.units.shadows import (
    AGENT_BITS,
    AGENT_SHIFT,
    CLUSTER_BITS,
    CLUSTER_SHIFT,
    EVENT_BITS,
    MOST_BYTES,
    SCOPE_BITS,
    Codes,
    Reads,
    Shadow,
    as_units,
    blocks_of,
    fields,
    warp_bits,
)
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.ptx.parse import Instruction

Kept = tuple[int, bool, bool, list[Reads]]
"""What a fork knows of an allocation: its start; is it written, are reads entered; those not."""


@dataclass(frozen=True)
class _Access:
    """An access, for an error."""

    cluster: int
    agent: int
    scope: int
    line: int


@dataclass(frozen=True)
class By:
    """Who accesses global memory, at one instruction.

    Attributes:
        order: that of the launch.
        cluster: its number, among those of all GPUs.
        clocks: those of the cluster.
        rank: of the block in it.
        agents: that of each lane; or of an asynchronous unit, alone.
        event: the number of the access.
        scope: of an atomic access; 0 for an ordinary one.
        line: of the PTX instruction.
        clock: what a unit has seen. (A thread's is the cluster's.)
        noted: whether a read is to be remembered.
        proxy: whether the access is one of the asynchronous proxy.
    """

    order: GlobalOrder
    cluster: int
    clocks: Clocks
    rank: int
    agents: Agents
    event: int
    scope: int
    line: int
    clock: Clock | None = None
    noted: bool = True
    proxy: bool = False

    def lanes(self, chosen: Any) -> By:
        """Some of the lanes."""
        if len(self.agents) == 1 or isinstance(chosen, slice):  # a slice is all of them
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
        whose = (self.cluster << AGENT_BITS) + self.agents.astype(np.int64)
        return (whose << AGENT_SHIFT) + (self.event << SCOPE_BITS) + self.scope

    def unordered(self, codes: Codes, agents: Agents, agents_each: int) -> NDArray[np.bool_]:
        """Which accesses, (lanes, bytes), nothing orders before this one of each lane's agent.

        Args:
            agents_each: agents of a block.
        """
        cluster, agent = codes >> CLUSTER_SHIFT, codes >> AGENT_SHIFT & (1 << AGENT_BITS) - 1
        event = codes >> SCOPE_BITS & (1 << EVENT_BITS) - 1
        clocks, history = self.clocks, self.order.history
        here = cluster == self.cluster
        if history is not None:  # another launch may have more agents
            agent_there, agent = agent, np.where(here, agent, 0)
        seen = clocks.seen[agents[:, None], agent] if self.clock is None else self.clock.seen[agent]
        late: NDArray[np.bool_] = (codes != 0) & ~(here & (event <= seen))
        if self.scope and late.any():
            scope = codes & (1 << SCOPE_BITS) - 1
            near = np.where(agent // agents_each == self.rank, 1, 2)
            needed = np.where(here, near, WIDEST)
            if history is not None:
                here_device = history.own_device(cluster, self.order.device)
                needed = np.where(here_device, needed, SYSTEM)
            late &= (scope == 0) | (np.minimum(scope, self.scope) < needed)
        rest = late & ~here
        if not rest.any() or not (clocks.foreign if self.clock is None else self.clock.foreign):
            return late
        if history is not None:
            agent = agent_there
        for who in np.unique(agents).tolist():
            foreign = clocks.foreign.get(who, {}) if self.clock is None else self.clock.foreign
            mine = rest & (agents == who)[:, None]
            for number in np.unique(cluster[mine]).tolist():
                those = mine & (cluster == number)
                late[those] = self._unseen(foreign, number, agent[those], event[those])
        return late

    def _unseen(
        self, seen: Foreign, number: int, agents: Agents, events: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Which events of agents of a cluster are not among those that were seen."""
        history, known = self.order.history, seen.get(number)
        if history is not None and ~history.first(number) in seen:  # the whole launch was
            return np.zeros(len(events), np.bool_)
        return np.ones(len(events), np.bool_) if known is None else events > known[agents]

    def unfenced(self, codes: Codes) -> NDArray[np.bool_]:
        """Which writes, (lanes, bytes), are of threads, and no proxy fence lies between them and
        this access of the asynchronous proxy.
        """
        history, clock = self.order.history, self.clock
        late: NDArray[np.bool_] = np.zeros(codes.shape, np.bool_)
        if history is None or clock is None or not self.proxy:
            return late
        cluster, agent = codes >> CLUSTER_SHIFT, codes >> AGENT_SHIFT & (1 << AGENT_BITS) - 1
        event = codes >> SCOPE_BITS & (1 << EVENT_BITS) - 1
        for number in np.unique(cluster[codes != 0]).tolist():
            party = history.party(number)
            those = (codes != 0) & (cluster == number) & (agent % party.agents_each < party.warps)
            late[those] = self._unseen(clock.proxied, number, agent[those], event[those])
        return late


@dataclass(frozen=True)
class LockstepBy(By):
    """Threads of blocks in lock-step, or their copies.

    Attributes:
        blocks: the blocks, which have numbers of their own, and so have their agents there.
    """

    blocks: Lockstep = field(kw_only=True)

    def codes(self) -> Codes:
        blocks = self.blocks
        whose = (blocks.numbers[blocks.block_of(self.agents)] << AGENT_BITS) + blocks.own(
            self.agents
        )
        return (whose << AGENT_SHIFT) + (self.event << SCOPE_BITS)

    def unordered(self, codes: Codes, agents: Agents, agents_each: int) -> NDArray[np.bool_]:
        blocks = self.blocks
        cluster, agent = codes >> CLUSTER_SHIFT, codes >> AGENT_SHIFT & (1 << AGENT_BITS) - 1
        event = codes >> SCOPE_BITS & (1 << EVENT_BITS) - 1
        here = cluster == blocks.numbers[blocks.block_of(agents)][:, None]
        there = blocks.agent(np.where(here, agent, 0), agents)
        seen = self.clocks.seen[agents[:, None], there]
        late: NDArray[np.bool_] = (codes != 0) & ~(here & (event <= seen))
        return late


def _by(cta: Cta, agents: Agents, event: int, scope: int, line: int) -> By | None:
    """The agent of each lane, that accesses global memory as an event."""
    order, cluster = cta.machine.global_order, cta.cluster
    if order is None:
        return None
    common = order, cluster.identity, cluster.clocks, cta.rank, agents, event, scope, line
    if isinstance(cluster, Lockstep):
        return LockstepBy(*common, blocks=cluster)
    return By(*common)


def threads(cta: Cta, lanes: Lanes, scope: int = 0) -> By | None:
    """Threads that access global memory now; None if its order is not checked.

    Args:
        scope: of an atomic access.
    """
    if cta.machine.global_order is None:
        return None
    event = cta.cluster.clocks.tick(cta.agents(lanes))
    return _by(cta, cta.agents_of_lanes(lanes), event, scope, _line_of(cta))


def copies(cta: Cta, agents: Agents, event: int, line: int) -> By | None:
    """The copies of each lane's warp (``cp.async``) that access global memory as an event."""
    return _by(cta, agents, event, 0, line)


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
    cluster, line = cta.cluster, instruction.line if instruction is not None else 0
    event = cluster.clocks.unit_event(agent)
    return By(
        order, cluster.identity, cluster.clocks, cta.rank, np.array([agent]), event, scope, line,
        clock, noted, proxy=True,
    )  # fmt: skip


def _line_of(cta: Cta) -> int:
    return cta.instruction.line if cta.instruction is not None else 0


def _check_empty(of: Allocation, first: int, offsets: Offsets, size: int) -> None:
    """Raise UninitializedRead if rows are read that are as `torch.empty` has left them.

    Whole aligned 16 bytes are compared, so that no value that was computed is taken for them.
    """
    where, unit = as_units(first, offsets, size)
    where = (where[:, None] + np.arange(0, unit, len(EMPTY))).reshape(-1)
    lines = where - (of.start + where) % len(EMPTY)
    lines = lines[(lines >= 0) & (lines + len(EMPTY) <= len(of.data))]
    unset = (gather(of.data, lines, len(EMPTY)) == EMPTY).all(axis=1)
    if unset.any():
        at = int(lines[np.flatnonzero(unset)[0]])
        raise UninitializedRead(
            f"global address {of.start + at:#x} ({of.describe(at)}) is read, and nothing has"
            " written it since torch.empty"
        )


class GlobalOrder:
    """The order of a launch's accesses to global memory.

    Args:
        launch: it; None for what is no launch.
        program: its instructions.
        replicates: whether warps load what another one loads for them, and drop it, as Triton's do.

    Attributes:
        warps, agents_each: of a block.
        device: the number of the GPU.
        history: what the launches of several GPUs have in common, or None.
    """

    def __init__(
        self,
        launch: Launch | None,
        program: Sequence[Instruction] = (),
        *,
        replicates: bool = True,
    ) -> None:
        self._launch = launch
        self._program, self._replicates = program, replicates
        first: dict[object, int] = {}
        self._copies = {
            each.line: first.setdefault((each.opcode, each.source or each.line), each.line)
            for each in program
        }
        self.warps = 0 if launch is None else -(-launch.threads // WARP_THREADS)
        self.agents_each = agents_of_block(self.warps)
        self.device = 0 if launch is None else launch.device
        self.history: History | None = None if launch is None else launch.history
        if launch is not None and self.history is not None:
            self.history.join(launch.first_cluster, self)
        self._shadows: dict[int, Shadow] = {}
        self._lock: int | None = None

    @staticmethod
    def fits(launch: Launch) -> bool:
        """Whether the launch is small enough for `Codes`."""
        blocks = int(np.prod(launch.cluster))
        agents = blocks * agents_of_block(-(-launch.threads // WARP_THREADS))
        clusters = launch.first_cluster + launch.clusters
        return clusters < 1 << CLUSTER_BITS and agents < 1 << AGENT_BITS

    def shadow(self, of: Allocation) -> Shadow:
        """That of an allocation."""
        found = self._shadows.get(of.start)
        if found is None or found.size != len(of.data):
            found = self._shadows[of.start] = Shadow(len(of.data))
        return found

    def _remembered(self, of: Allocation, first: int) -> tuple[Allocation, int, Shadow, bool]:
        """What is remembered of some memory, or of what it is a part of that GPUs share: where, and
        whether they do."""
        found = None if self.history is None else self.history.find(of.start)
        if found is None:
            return of, first, self.shadow(of), False
        whole, shadow = found
        return whole, first + of.start - whole.start, shadow, True

    # ------------------------------------------------------------------- accesses

    def read(self, of: Allocation, first: int, offsets: Offsets, size: int, by: By) -> None:
        """Rows of `size` bytes are read, each by one of the lanes.

        Raises:
            SynchronizationFault: nothing orders the read behind the last write.
        """
        if self._launch is not None and self._launch.checks.empty:
            _check_empty(of, first, offsets, size)
        if of.size > MOST_BYTES:
            return
        of, first, shadow, shared = self._remembered(of, first)
        if shadow.written:
            where, unit = as_units(first, offsets, size)
            self._check(of, shadow, where, shadow.writer, unit, by, "read", "written")
            if shared:
                self._check_proxy(of, shadow, where, unit, by)
        if of.writable and by.noted and not by.scope:
            line = self._copies.get(by.line, by.line)
            shadow.note(Reads(by.codes(), first, offsets, size, line, self.warps))

    def write(
        self, of: Allocation, first: int, offsets: Offsets, values: NDArray[np.uint8], by: By
    ) -> None:
        """Rows are about to be written with `values`, (rows, bytes); the rest is as of `read`."""
        if of.size > MOST_BYTES:
            return
        size = values.shape[1]
        of, first, shadow, _ = self._remembered(of, first)
        where, unit = as_units(first, offsets, size)
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
            bytes_of = Rows(where, unit)
            bytes_of.scatter(shadow.writer, rows)
            self._check_together(of, shadow, where, rows, by, new)
            bytes_of.scatter(shadow.writer_line, by.line)
            changed = bytes_of.gather(of.data) != new
            if not changed.all():
                changed |= bytes_of.gather(shadow.changed)
            bytes_of.scatter(shadow.changed, changed)

    def _check(
        self, of: Allocation, shadow: Shadow, where: Offsets, kept: Codes, unit: int, by: By,
        does: str, did: str, new: NDArray[np.uint8] | None = None,
    ) -> None:  # fmt: skip
        """Raise if rows of `unit` bytes were accessed before, and nothing orders that.

        Args:
            kept: the accesses, a code for each byte.
            new: what is written there; who writes what is there already does no harm, nor who
                reads where nobody wrote anything else.
        """
        codes = gather(kept, where, unit)
        if not codes.any():
            return
        agents = np.repeat(by.agents, len(where) // len(by.agents))
        late = by.unordered(codes, agents, self.agents_each)
        if late.any() and new is not None:
            late = late & (gather(of.data, where, unit) != new)
        if late.any() and new is None:
            late = late & gather(shadow.changed, where, unit)
        if self._replicates and late.any() and (does, did) != ("written", "written"):
            late = late & ~self._replicas(shadow, where, unit, codes, by, does)
        if not late.any():
            return
        row, byte = (int(n) for n in np.argwhere(late)[0])
        at = int(where[row]) + byte
        lines = shadow.writer_line if did == "written" else shadow.reader_line
        access = _Access(by.cluster, int(agents[row]), by.scope, by.line)
        other = _Access(*fields(int(codes[row, byte])), int(lines[at]))
        raise self._fault(of, at, access, does, other, did)

    def _check_together(
        self, of: Allocation, shadow: Shadow, where: Offsets, mine: Codes, by: By,
        new: NDArray[np.uint8],
    ) -> None:  # fmt: skip
        """Raise if several agents write a byte by one instruction, and not all the same value."""
        if by.scope or (gather(shadow.writer, where, unit := new.shape[1]) == mine).all():
            return
        places = (where[:, None] + np.arange(unit)).reshape(-1)
        codes, values = np.repeat(mine[:, 0], unit), new.reshape(-1)
        _, last, same = np.unique(places[::-1], return_index=True, return_inverse=True)
        winner = (len(places) - 1 - last)[same][::-1]  # whose value stays
        late = np.flatnonzero((values != values[winner]) & (codes != codes[winner]))
        if len(late):
            first = int(late[0])
            access = _Access(*fields(int(codes[first])), by.line)
            other = _Access(*fields(int(codes[winner[first]])), by.line)
            raise self._fault(of, int(places[first]), access, "written", other, "written")

    def _check_proxy(
        self, of: Allocation, shadow: Shadow, where: Offsets, unit: int, by: By
    ) -> None:
        """Raise if TMA reads what a thread has written, with no proxy fence between the two."""
        codes = gather(shadow.writer, where, unit)
        late = by.unfenced(codes)
        if not late.any():
            return
        row, byte = (int(n) for n in np.argwhere(late)[0])
        at = int(where[row]) + byte
        access = _Access(by.cluster, int(by.agents[0]), by.scope, by.line)
        other = _Access(*fields(int(codes[row, byte])), int(shadow.writer_line[at]))
        raise self._blame(
            access,
            f"global address {of.start + at:#x} ({of.describe(at)}) is read by"
            f" {self._name(access)}, and was written by {self._name(other)}{self._line(other)}"
            " through the generic proxy;"
            " between the two, a proxy fence (fence.proxy.async) is missing",
        )

    def _replicas(
        self, shadow: Shadow, where: Offsets, unit: int, codes: Codes, by: By, does: str
    ) -> NDArray[np.bool_]:
        """Where a warp reads what another one of its block reads by the same instruction, or by its
        copy in an unrolled loop, and writes later. Where a tensor has fewer elements than a block
        has threads, Triton lets several warps load each, and one of them store: what the others
        have loaded is not used.
        """
        warps, each = self.warps, self.agents_each
        mine = np.repeat(by.codes(), len(where) // len(by.codes()))[:, None]
        last = blocks_of(gather(shadow.readers[0], where, unit), each)
        found: NDArray[np.bool_] = (last == blocks_of(mine, each)) & (
            last == blocks_of(codes, each)
        )
        found &= (codes | mine) & (1 << SCOPE_BITS) - 1 == 0
        needed = warp_bits(codes, warps, each)
        if does == "read":
            line = self._copies.get(by.line, by.line)
            found &= gather(shadow.reader_line, where, unit) == line
        else:
            found &= warp_bits(mine, warps, each) != 0
            needed = needed | warp_bits(mine, warps, each)
        found &= warp_bits(codes, warps, each) != 0
        found &= gather(shadow.sharers, where, unit) & needed == needed
        return found

    def _fault(
        self, of: Allocation, at: int, access: _Access, does: str, other: _Access, did: str
    ) -> SynchronizationFault:
        history = self.history
        far = history is not None and history.device(other.cluster) != self.device
        if far:
            hint = (
                "only a release by the one and an acquire by the other, of one flag and both at"
                " the scope of the system (.sys), or a barrier of the hosts, order two devices"
            )
        elif access.cluster != other.cluster:
            hint = (
                "only a release by the one and an acquire by the other, of one flag in global"
                " memory and at the scope of the GPU, order two blocks"
            )
        elif access.agent // self.agents_each != other.agent // self.agents_each:
            hint = "a barrier of the cluster, or a flag that is released and acquired, is missing"
        else:
            hint = "a barrier or wait is missing"
            if self._statement(access) == self._statement(other):
                hint += ", or the accesses must be atomic"
        if access.scope and other.scope:
            hint = "the scope of one of them is too narrow to include the other"
            if far:
                here, there = SCOPE_NAMES[access.scope], SCOPE_NAMES[other.scope]
                hint += f" ({here}, and {there}: both need .sys)"
        elif access.scope or other.scope:
            hint = f"the one is atomic, the other is not: {hint}"
        if history is not None:
            hint += history.hint(access.cluster, other.cluster)
        return self._blame(
            access,
            f"global address {of.start + at:#x} ({of.describe(at)}) is {does} by"
            f" {self._name(access)}, and was {did} by {self._name(other)}"
            f"{self._line(other)}, and nothing orders the two: {hint}",
        )

    def _blame(self, access: _Access, text: str) -> SynchronizationFault:
        fault = SynchronizationFault(text)
        fault.instruction = next((each for each in self._program if each.line == access.line), None)
        return fault

    def _statement(self, access: _Access) -> object:
        """The line of the source that an access is of; that of the PTX, if there is none."""
        found = (each.source for each in self._program if each.line == access.line)
        source = next(found, None)
        return access.line if source is None else (source.file, source.line)

    def _line(self, access: _Access) -> str:
        party = self if self.history is None else self.history.party(access.cluster)
        return party.line(access.line)

    def _name(self, access: _Access) -> str:
        if self.history is None:
            return self.name(access.cluster, access.agent)
        name = self.history.party(access.cluster).name(access.cluster, access.agent)
        return f"device {self.history.device(access.cluster)}, {name}"

    def line(self, line: int) -> str:
        """A line of the PTX, as `` [kernel.py:12]``."""
        found = next((each for each in self._program if each.line == line), None)
        return "" if found is None else f" [{found.source or f'PTX line {line}'}]"

    def name(self, cluster: int, agent: int) -> str:
        """An agent of a cluster, in words."""
        assert self._launch is not None
        rank, own = divmod(agent, self.agents_each)
        block = self._launch.blocks(cluster - self._launch.first_cluster)[rank]
        return f"block {block}, {agent_name(own, self.warps)}"

    # ---------------------------------------------------------------------- forks

    def share(self, allocations: Sequence[Allocation]) -> None:
        """Forks are about to start: they see what each of them writes."""
        for each in allocations:
            if each.size <= MOST_BYTES:
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
            shadow = self._shadows.get(of.start, Shadow(0))
            for reads in shadow.noted if shadow.written else ():
                where, unit = as_units(reads.first, reads.offsets, reads.size)
                codes = gather(shadow.writer, where, unit)
                mine = np.broadcast_to(reads.codes, len(reads.offsets))
                mine = np.repeat(mine, len(where) // len(mine))[:, None]
                late = (codes != 0) & (codes >> CLUSTER_SHIFT != mine >> CLUSTER_SHIFT)
                late &= gather(shadow.changed, where, unit)
                if late.any():
                    row, byte = (int(n) for n in np.argwhere(late)[0])
                    at = int(where[row]) + byte
                    access = _Access(*fields(int(mine[row, 0])), reads.line)
                    other = _Access(*fields(int(codes[row, byte])), int(shadow.writer_line[at]))
                    raise self._fault(of, at, access, "read", other, "written")
