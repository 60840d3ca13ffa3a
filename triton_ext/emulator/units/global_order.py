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

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.errors import UninitializedRead
from triton_ext.emulator.state.agents import agent_name, agents_of_block
from triton_ext.emulator.state.block import Launch
from triton_ext.emulator.state.memory import EMPTY, Allocation, Offsets, Rows, gather
from triton_ext.emulator.units.accessors import By
from triton_ext.emulator.units.history import History
from triton_ext.emulator.units.order_faults import Access, blamed, line_of, name_of, unordered
from triton_ext.emulator.units.shadows import (
    AGENT_BITS,
    CLUSTER_BITS,
    CLUSTER_SHIFT,
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


def fits(launch: Launch) -> bool:
    """Whether the launch is small enough for `Codes`."""
    blocks = int(np.prod(launch.cluster))
    agents = blocks * agents_of_block(-(-launch.threads // WARP_THREADS))
    clusters = launch.first_cluster + launch.clusters
    return clusters < 1 << CLUSTER_BITS and agents < 1 << AGENT_BITS


@contextlib.contextmanager
def _locked(lock: int | None) -> Iterator[None]:
    """Within it no other fork has the lock, if there is one."""
    if lock is None:
        yield
        return
    import fcntl  # not everywhere; nor are forks

    fcntl.lockf(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.lockf(lock, fcntl.LOCK_UN)


class GlobalOrder:
    """The order of a launch's accesses to global memory.

    Args:
        launch: it; None for what is no launch.
        program: its instructions.
        replicates: whether warps load what another one loads for them, and drop it, as Triton's do.

    Attributes:
        program: see the arguments.
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
        self.program, self._replicates = program, replicates
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
        """Rows of `size` bytes are read, each by one of the lanes. Raises SynchronizationFault:
        nothing orders the read behind the last write."""
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
        with _locked(self._lock):
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
        access = Access(by.cluster, int(agents[row]), by.scope, by.line)
        other = Access(*fields(int(codes[row, byte])), int(lines[at]))
        raise unordered(self, of, at, access, does, other, did)

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
            access = Access(*fields(int(codes[first])), by.line)
            other = Access(*fields(int(codes[winner[first]])), by.line)
            raise unordered(self, of, int(places[first]), access, "written", other, "written")

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
        access = Access(by.cluster, int(by.agents[0]), by.scope, by.line)
        other = Access(*fields(int(codes[row, byte])), int(shadow.writer_line[at]))
        raise blamed(
            self,
            access,
            f"global address {of.start + at:#x} ({of.describe(at)}) is read by"
            f" {name_of(self, access)}, and was written by {name_of(self, other)}"
            f"{line_of(self, other)} through the generic proxy;"
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

    def line(self, line: int) -> str:
        """A line of the PTX, as `` [kernel.py:12]``."""
        found = next((each for each in self.program if each.line == line), None)
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
        """The forks have ended: did one write what another one has read? Raises
        SynchronizationFault: it did. (Blocks that run in forks have nothing that orders them.)"""
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
                    access = Access(*fields(int(mine[row, 0])), reads.line)
                    other = Access(*fields(int(codes[row, byte])), int(shadow.writer_line[at]))
                    raise unordered(self, of, at, access, "read", other, "written")
