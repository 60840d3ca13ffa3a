"""The units of the SMs of a cluster: when each is free, and how long it was busy."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from triton_ext.timeline.gpus import Gpu
from triton_ext.timeline.sass import PIPES
from triton_ext.timeline.trace import LINE_BYTES, Aligned

PIECE_BYTES = 64
"""What the L2 cache gives at least (A100 white paper: a slice gives 64 bytes a cycle)."""
SCHEDULERS = 4
UNITS = (
    "issue", *PIPES[:3], "shared memory", "tensor cores", "tensor memory", "TMA", "L2", "memory",
)  # fmt: skip
PIPE_UNITS = (*PIPES[:3], "tensor cores")


@dataclass(frozen=True)
class Share:
    """What a cluster has of what all SMs share, in bytes a cycle.

    Attributes:
        l2, memory: of the L2 cache's rate, and the memory's.
        received: what an SM of it receives of the L2 cache, a multicast's bytes too.
        stores: what an SM of it can store by TMA.
        misses: for each piece of global memory, the fraction of its loads that the L2 cache does
            not have.
        written: for each, the fraction of what is stored there that memory has to write.
        aligned: for each, `triton_ext.timeline.trace.Memory.aligned`.
        first: whether what comes from memory is on its way even for those who are not the first to
            ask: in the first wave, and on a GPU whose blocks `catch_up` in all.
        released: the cycle at which the kernel before is over, for those who wait for it.
        busy: how much of the memory's rate all clusters have together.
        then: how many bytes a cluster has loaded from memory when those are done that have less to
            do, and the share from there on.
        line: for each, the time in which a line of a box comes, of that of one that only one SM
            asks for.
        several: the same of a line that goes to several blocks of the cluster.
    """

    l2: float
    memory: float
    received: float
    stores: float
    misses: Sequence[float]
    written: Sequence[float]
    aligned: Sequence[Aligned]
    line: Sequence[float]
    several: Sequence[float]
    first: bool
    released: float = 0.0
    busy: float = 1.0
    then: tuple[float, Share] | None = None

    def far(self, memory: int, again: bool = False) -> float:
        """The fraction of loads that take as long as memory does."""
        if memory < 0 or again:
            return 0.0
        return 1.0 if self.first and self.misses[memory] else self.misses[memory]


def in_two_lines(size: float, rows: int, aligned: Aligned) -> float:
    """How many of a box's rows, of so many bytes together, lie in two lines."""
    return rows * max(0.0, min(size / rows / LINE_BYTES, 1.0) - aligned.lines) if rows else 0.0


def of_lines(gpu: Gpu, size: float, rows: int, aligned: Aligned, line: float = 1.0) -> float:
    """The bytes for which the L2 cache works to give the rows of a box.

    Args:
        size: of all rows.
        rows: how many; 0 for what is no box.
        line: see `Share`.
    """
    if not rows:
        return size
    more = gpu.misaligned * in_two_lines(size, rows, aligned)
    more += gpu.cut * (1 - aligned.sectors) * rows
    return line * max(size, rows * PIECE_BYTES) + more * LINE_BYTES


class Sm:
    """One SM.

    Those of the L2 cache and the memory are the first SM's for all of the cluster.

    Args:
        sms: of the cluster, those before.
    """

    def __init__(self, sms: Sequence[Sm]) -> None:
        self.cluster = sms[0] if sms else self
        self.issue = [0.0] * SCHEDULERS
        self.pipes = [[0.0] * SCHEDULERS for _ in PIPES]
        self.columns = [0.0] * SCHEDULERS
        self.shared = self.tensor = self.tma = self.inlet = self.l2 = self.memory = 0.0
        self.out = self.sent = 0.0
        self.missed = 0.0  # bytes from memory
        self.dirty = 0.0  # cycles of what memory has still to write
        self.accesses: list[tuple[float, float]] = []  # when, and the wavefronts
        self.waiting = 0.0  # of their wavefronts
        self.busy: dict[str, float] = dict.fromkeys(UNITS, 0.0)


class Units:
    """Those of all SMs of a cluster.

    Args:
        gpu: the parameters.
        share: what an SM has of the L2 cache and the memory.
        number: of the SMs.
    """

    def __init__(self, gpu: Gpu, share: Share, number: int) -> None:
        self.gpu, self.share = gpu, share
        self.sms: list[Sm] = []
        for _ in range(number):
            self.sms.append(Sm(self.sms))

    @staticmethod
    def shared(sm: Sm, time: float, wavefronts: float) -> float:
        """When threads have accessed shared memory."""
        sm.shared = max(sm.shared, time) + wavefronts
        heapq.heappush(sm.accesses, (sm.shared, wavefronts))
        sm.busy["shared memory"] += wavefronts
        return sm.shared

    def multiplied(self, sm: Sm, begin: float, taken: float, read: float) -> float:
        """The cycles of a product that reads so many bytes of shared memory. What threads access
        there meanwhile has what products leave, and holds them up once too much of it waits; what
        TMA writes does not (measured)."""
        while sm.accesses and sm.accesses[0][0] <= begin:
            sm.waiting += heapq.heappop(sm.accesses)[1]
        sm.waiting = max(0.0, sm.waiting - max(0.0, begin - sm.tensor))
        own = read / self.gpu.operand_bytes
        taken = max(taken, own + max(0.0, sm.waiting - self.gpu.waiting))
        sm.waiting = max(0.0, sm.waiting - (taken - own))
        sm.busy["shared memory"] += own
        sm.busy["tensor cores"] += taken
        return taken

    def outside(
        self,
        sm: Sm,
        time: float,
        size: float,
        memory: int,
        *,
        write: bool = False,
        rows: int = 0,
        more: float = 0.0,
        multicast: bool = False,
    ) -> float:
        """When so many bytes have come from the L2 cache, or have gone there, but for latency.

        Args:
            rows: of a box, that they are in: each asks for its own part of the lines.
            more: lines in whose time the cache gives what is not there.
            multicast: whether it goes to several blocks.
        """
        share, whole = self.share, sm.cluster
        lines, missed = size, 0.0
        if memory >= 0 and not write:
            missed = share.misses[memory]
            whole.missed += size * missed
            if share.then and whole.missed > share.then[0]:
                self.share = share.then[1]
            line = (share.several if multicast else share.line)[memory]
            lines = of_lines(self.gpu, size, rows, share.aligned[memory], line)
            lines += more * LINE_BYTES
        whole.l2 = max(whole.l2, time) + lines / share.l2
        whole.busy["L2"] += lines / share.l2
        end: float = max(time, whole.l2)
        if memory >= 0 and write:  # is done in the L2 cache, which memory takes it from later
            whole.dirty += size * self.gpu.write * share.written[memory] / share.memory
            kept = self.gpu.dirty_bytes / self.gpu.multiprocessors * len(self.sms) / share.memory
            over = max(0.0, whole.dirty - kept)
            if over:
                whole.memory = max(whole.memory, time) + over
                whole.busy["memory"] += over
                whole.dirty = kept
        elif missed:
            taken = size * missed / share.memory
            idle = min(max(0.0, time - whole.memory), whole.dirty)
            whole.dirty -= idle
            whole.memory = max(whole.memory, time) + taken
            whole.busy["memory"] += taken + idle
            end = max(end, whole.memory)
        return end

    def queued(self, sm: Sm, time: float) -> float:
        """How much longer loads from memory take, as busy as it has been."""
        passed = max(1.0, time + self.gpu.tma_memory_latency)
        return self.gpu.queue * self.share.busy * min(1.0, sm.cluster.busy["memory"] / passed)

    def latency(self, sm: Sm, time: float, memory: int) -> float:
        """What a load of a thread takes at least; misses take longer, by how many there are."""
        gpu, missed = self.gpu, self.share.far(memory)
        longer = gpu.memory_latency - gpu.l2_latency + self.queued(sm, time)
        return gpu.l2_latency + longer * missed
