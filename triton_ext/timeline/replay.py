"""The discrete-event model of the SMs on which the blocks of a cluster run.

Each unit of an SM is a server: work is done in the order in which warps reach it, and takes the
unit for so many cycles. A warp goes on once its instruction is issued, and waits only at tokens.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from triton_ext.timeline.gpus import Gpu
from triton_ext.timeline.sass import PIPES
from triton_ext.timeline.trace import (
    ALIGNED,
    ATOMIC,
    COMMIT,
    COPY,
    GLOBAL,
    LINE_BYTES,
    PRODUCT,
    RUN,
    SECTOR_BYTES,
    SEND,
    SHARED,
    SIGNAL,
    STORE,
    TENSOR,
    TMEM,
    WAIT,
    Aligned,
    ClusterTrace,
    Item,
)

PIECE_BYTES = 64
"""What the L2 cache gives at least (A100 white paper: a slice gives 64 bytes a cycle)."""
SCHEDULERS = 4
UNITS = (
    "issue", *PIPES[:3], "shared memory", "tensor cores", "tensor memory", "TMA", "L2", "memory",
)  # fmt: skip
_PIPE_UNITS = (*PIPES[:3], "tensor cores")
DATA_PATH_ROWS = 128
"""A product of 64 rows takes as long as one of 128 (PTX ISA, "Data path layout": it uses half of
the lanes)."""


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


@dataclass(frozen=True)
class Span:
    """Something that took time.

    Attributes:
        lane: the block's number among the replayed, and the warp's number or a unit's name.
        begin, end: cycles.
        what: a kind of `triton_ext.timeline.trace`.
        at: the instruction.
        detail: what is waited for, or how much is moved.
    """

    lane: tuple[int, int | str]
    begin: float
    end: float
    what: int
    at: int
    detail: str = ""


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


class _Sm:
    """The units of one SM: when each is free, and how long it was busy.

    Those of the L2 cache and the memory are the first SM's for all of the cluster.

    Args:
        sms: of the cluster, those before.
    """

    def __init__(self, sms: Sequence[_Sm]) -> None:
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


@dataclass
class _Token:
    needs: int
    time: float = 0.0
    waiting: list[tuple[float, _Warp]] = field(default_factory=list)


@dataclass
class _Warp:
    items: list[Item]
    resident: _Resident
    sm: _Sm
    number: int
    block: int
    next: int = 0


@dataclass
class _Resident:
    """A cluster that runs."""

    trace: ClusterTrace
    tokens: list[_Token]
    left: int
    slot: int
    stored: dict[int, float] = field(default_factory=dict)
    """When what each block has stored is in the L2 cache."""


@dataclass
class Result:
    """What a replay took.

    Attributes:
        cycles: from the first instruction to the last.
        ends: when each cluster ended, in the order in which they did.
        busy: for each unit, the cycles of one SM in which it worked.
        stalls: for each instruction, the cycles that warps waited at it, and what for.
        spans: what took time, if that was asked for.
    """

    cycles: float
    ends: list[float]
    busy: dict[str, float]
    stalls: dict[tuple[int, str], float]
    spans: list[Span]


class Replay:
    """Runs clusters on the SMs of one cluster, so many at a time.

    Args:
        gpu: the parameters.
        shares: for each wave, what an SM has of the L2 cache and the memory.
        slots: clusters that run at a time.
        keep: whether spans are kept.
        free: instructions at which nobody waits (what-if).
    """

    def __init__(
        self,
        gpu: Gpu,
        shares: Sequence[Share],
        slots: int,
        *,
        keep: bool = False,
        free: frozenset[int] = frozenset(),
    ) -> None:
        self.gpu, self.shares, self.slots, self.keep, self.free = gpu, shares, slots, keep, free
        self.share = shares[0]
        self.arrivals = (  # NEAR, FAR, NAMED, CLUSTER
            gpu.barrier_latency, gpu.far_arrival, gpu.bar_latency, gpu.cluster_barrier
        )  # fmt: skip
        self.turns = (gpu.half_cycles, gpu.half_cycles, gpu.special_cycles, gpu.mma_cycles)
        self.heap: list[tuple[float, int, _Warp]] = []
        self.count = 0
        self.stalls: defaultdict[tuple[int, str], float] = defaultdict(float)
        self.spans: list[Span] = []
        self.blocks = 0
        self.sms: list[_Sm] = []
        self.last = self.starts = 0.0

    def run(self, clusters: Sequence[ClusterTrace]) -> Result:
        """Replay clusters, which start in their order, each when there is room for it."""
        self.sms = []
        for _ in clusters[0].warps:
            self.sms.append(_Sm(self.sms))
        waiting = iter(clusters)
        ends: list[float] = []
        started = 0
        for slot in range(self.slots):
            started += self._start(waiting, slot * self.gpu.block_interval, slot)
        while self.heap:
            time, _, warp = heapq.heappop(self.heap)
            end = self._step(warp, time)
            if end is not None:
                warp.resident.left -= 1
                self.last = max(self.last, end)
                if not warp.resident.left:
                    ends.append(end)
                    self.share = self.shares[min(started // self.slots, len(self.shares) - 1)]
                    begin = max(end + self.gpu.block_start, self.starts + self.gpu.block_interval)
                    started += self._start(waiting, begin, warp.resident.slot)
        assert len(ends) == started, "some warps wait for what never comes"
        busy = {unit: max(sm.busy[unit] for sm in self.sms) for unit in UNITS}
        return Result(self.last, ends, busy, dict(self.stalls), self.spans)

    def _start(self, waiting: Iterator[ClusterTrace], time: float, slot: int) -> int:
        trace = next(waiting, None)
        if trace is None:
            return 0
        self.starts = time
        tokens = [_Token(needs) for needs in trace.needs]
        if trace.before >= 0:
            tokens[trace.before] = _Token(0, max(time, self.share.released))
        resident = _Resident(trace, tokens, sum(map(len, trace.warps)), slot)
        for sm, warps in zip(self.sms, trace.warps, strict=True):
            for number, items in enumerate(warps):
                self._push(time, _Warp(items, resident, sm, number, self.blocks))
            self.blocks += 1
        return 1

    def _push(self, time: float, warp: _Warp) -> None:
        self.count += 1
        heapq.heappush(self.heap, (time, self.count, warp))

    def _contribute(self, warp: _Warp, number: int, time: float) -> None:
        """One more of what a token needs is there, or will be at a time."""
        token = warp.resident.tokens[number]
        token.needs -= 1
        token.time = max(token.time, time)
        if token.needs == 0:
            for since, other in token.waiting:
                self._resume(other, since, token)
            token.waiting.clear()

    def _resume(self, warp: _Warp, since: float, token: _Token) -> None:
        end = max(since, token.time)
        _, at, number = warp.items[warp.next - 1]
        if end > since:
            name = warp.resident.trace.names.get(number, "")
            self.stalls[at, name] += end - since
            self._span((warp.block, warp.number), since, end, WAIT, at, name)
        self._push(end, warp)

    def _span(
        self, lane: tuple[int, int | str], begin: float, end: float, what: int, at: int, detail: str
    ) -> None:
        if self.keep:
            self.spans.append(Span(lane, begin, end, what, at, detail))

    def _step(self, warp: _Warp, time: float) -> float | None:
        """Do the warp's next item; the time at which the warp has ended, or None."""
        if warp.next == len(warp.items):
            return time
        item = warp.items[warp.next]
        warp.next += 1
        kind = item[0]
        if kind == WAIT:
            token = warp.resident.tokens[item[2]]
            if item[1] in self.free:
                self._push(time, warp)
            elif token.needs > 0:
                token.waiting.append((time, warp))
            else:
                self._resume(warp, time, token)
            return None
        if kind == RUN:
            self._push(self._run(warp, time, item), warp)
            return None
        gpu, sm = self.gpu, warp.sm
        scheduler = warp.number % SCHEDULERS
        begin = max(time, sm.issue[scheduler])
        sm.issue[scheduler] = begin + 1
        sm.busy["issue"] += 1 / SCHEDULERS
        after = begin + gpu.issue_cycles
        if kind == SIGNAL:
            self._contribute(warp, item[2], begin + self.arrivals[item[3]])
        elif kind == SHARED:
            end = self._shared(sm, begin, item[2])
            if item[3] >= 0:
                self._contribute(warp, item[3], end + gpu.shared_latency)
            after = max(after, end - gpu.shared_latency)
        elif kind == GLOBAL:
            after = max(after, self._global(warp, begin, item))
        elif kind == PRODUCT:
            self._product(warp, begin, item)
        elif kind == TENSOR:
            self._tensor(warp, begin, item)
        elif kind == COMMIT:
            end = max(begin, warp.sm.tensor) + gpu.product_latency
            for token in item[2]:
                self._contribute(warp, token, end)
        elif kind == TMEM:
            end = max(sm.columns[scheduler], begin) + item[2] * gpu.tensor_memory_cycles
            sm.columns[scheduler] = end
            sm.busy["tensor memory"] += (end - begin) / SCHEDULERS
            if item[3] >= 0:
                self._contribute(warp, item[3], end + gpu.tensor_memory_latency)
        elif kind == COPY:
            self._copy(warp, begin, item)
        elif kind == STORE:
            self._store(warp, begin, item)
        elif kind == SEND:
            sm.sent = max(sm.sent, begin) + gpu.send_cycles
            for token in item[3]:
                self._contribute(warp, token, sm.sent + gpu.far_latency)
        elif kind == ATOMIC:
            sectors, memory, releases, token = item[2:]
            if releases:
                begin = max(begin, warp.resident.stored.get(warp.block, 0.0)) + gpu.release_latency
                after = max(after, begin)
            end = self._outside(sm, begin, sectors * SECTOR_BYTES * 2, memory, write=True)
            if token >= 0:
                self._contribute(warp, token, end + gpu.atomic_latency)
        self._push(after, warp)
        return None

    def _run(self, warp: _Warp, time: float, item: Item) -> float:
        _, at, issued, turns, chain = item
        gpu, sm, scheduler = self.gpu, warp.sm, warp.number % SCHEDULERS
        begin, held = max(sm.issue[scheduler], time), issued * gpu.instruction_cycles
        sm.issue[scheduler] = begin + held
        sm.busy["issue"] += held / SCHEDULERS
        end: float = max(time + chain, begin + min(issued, held))
        for number, of_pipe in enumerate(turns):
            if of_pipe:
                pipe, taken = sm.pipes[number], of_pipe * self.turns[number]
                pipe[scheduler] = max(pipe[scheduler], time) + taken
                sm.busy[_PIPE_UNITS[number]] += taken / SCHEDULERS
                end = max(end, pipe[scheduler])
        self._span((warp.block, warp.number), time, end, RUN, at, "")
        return end

    @staticmethod
    def _shared(sm: _Sm, time: float, wavefronts: float) -> float:
        sm.shared = max(sm.shared, time) + wavefronts
        heapq.heappush(sm.accesses, (sm.shared, wavefronts))
        sm.busy["shared memory"] += wavefronts
        return sm.shared

    def _multiplied(self, sm: _Sm, begin: float, taken: float, read: float) -> float:
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

    def _outside(
        self,
        sm: _Sm,
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

    def _queued(self, sm: _Sm, time: float) -> float:
        """How much longer loads from memory take, as busy as it has been."""
        passed = max(1.0, time + self.gpu.tma_memory_latency)
        return self.gpu.queue * self.share.busy * min(1.0, sm.cluster.busy["memory"] / passed)

    def _latency(self, sm: _Sm, time: float, memory: int) -> float:
        """What a load of a thread takes at least; misses take longer, by how many there are."""
        gpu, missed = self.gpu, self.share.far(memory)
        longer = gpu.memory_latency - gpu.l2_latency + self._queued(sm, time)
        return gpu.l2_latency + longer * missed

    def _global(self, warp: _Warp, time: float, item: Item) -> float:
        _, at, sectors, hits, memory, token = item
        gpu, sm = self.gpu, warp.sm
        through = self._shared(sm, time, max(1.0, (sectors + hits) * SECTOR_BYTES / LINE_BYTES))
        if token < 0:
            end = self._outside(sm, through, sectors * SECTOR_BYTES, memory, write=True)
            stored = warp.resident.stored
            stored[warp.block] = max(stored.get(warp.block, 0.0), end + gpu.l2_latency)
            self.last = max(self.last, end + gpu.l2_latency)
            return through
        end = through + gpu.l1_latency
        if sectors:
            end = self._outside(sm, through, sectors * SECTOR_BYTES, memory)
            end += self._latency(sm, time, memory)
        self._span((warp.block, "loads"), time, end, GLOBAL, at, f"{sectors} sectors")
        self._contribute(warp, token, end)
        return through

    def _product(self, warp: _Warp, time: float, item: Item) -> None:
        _, at, n, size, registers, token = item
        gpu, sm = self.gpu, warp.sm
        flops = 2 * 64 * n * 32 / size
        read = ((0 if registers else 64) + n) * 32
        begin = max(sm.tensor, time)
        taken = self._multiplied(sm, begin, flops / (gpu.flops_per_cycle * 2 / size), read)
        sm.tensor = begin + taken
        self._span((warp.block, "tensor cores"), begin, sm.tensor, PRODUCT, at, f"64x{n}")
        self._contribute(warp, token, sm.tensor + gpu.product_latency)

    def _tensor(self, warp: _Warp, time: float, item: Item) -> None:
        _, at, m, n, size, blocks, read = item
        gpu, rank = self.gpu, self.sms.index(warp.sm)
        sms = [warp.sm] if blocks == 1 else self.sms[rank & ~1 : (rank & ~1) + 2]
        flops = 2 * (DATA_PATH_ROWS if m else 0) * n * 32 / size
        alone = flops / (gpu.flops_per_cycle * 2 / size)
        begin = max(time, *(sm.tensor for sm in sms))
        taken = max(self._multiplied(sm, begin, alone, read) for sm in sms)
        for sm in sms:
            sm.tensor = begin + taken
        self._span((warp.block, "tensor cores"), begin, begin + taken, TENSOR, at, f"{m}x{n}")

    def _copy(self, warp: _Warp, time: float, item: Item) -> None:
        _, at, inside, size, rows, memory, tokens, ranks, again, absent = item
        gpu, sm = self.gpu, warp.sm
        there = rows - absent
        aligned = self.share.aligned[memory] if memory >= 0 else ALIGNED
        # how many of the rows are pieces of lines
        pieces = 1.0 if inside < there * LINE_BYTES else 1 - aligned.lines
        taken = max(size / gpu.tma_bytes, rows * gpu.tma_row * pieces, gpu.tma_box)
        if there and inside * rows < size * there:  # a part of each row lies outside
            taken += there * (gpu.cut_sector if inside // there % SECTOR_BYTES else gpu.cut_row)
        begin = max(sm.tma, time)
        sm.tma = begin + taken
        sm.busy["TMA"] += taken
        more = absent * gpu.absent_row
        # with one barrier, the data are this block's: the barrier may be that of the pair's first
        whose = [self.sms[rank] for rank in ranks] if len(ranks) > 1 else [sm]
        several = len(whose) > 1
        outside = self._outside(sm, time, inside, memory, rows=there, more=more, multicast=several)
        came = max(sm.tma, outside)
        taken = size / self.share.received
        if several:
            more = in_two_lines(inside, there, aligned) * gpu.multicast_across
            least = max(inside, there * gpu.multicast_row)
            taken = max(taken, (least + more) / gpu.multicast_bytes)
        for each in whose:
            each.inlet = max(each.inlet, begin) + taken
            came = max(came, each.inlet)
        end = came + gpu.tma_latency
        longer = gpu.tma_memory_latency - gpu.tma_latency + self._queued(sm, time)
        end += longer * self.share.far(memory, again)
        self._span((warp.block, "TMA loads"), begin, end, COPY, at, f"{size} bytes")
        for token in tokens:
            self._contribute(warp, token, end)

    def _store(self, warp: _Warp, time: float, item: Item) -> None:
        _, at, size, rows, memory, read, written = item
        gpu, sm = self.gpu, warp.sm
        begin = max(sm.out, time)
        aligned = self.share.aligned[memory] if memory >= 0 else ALIGNED
        inside = min(rows, max(1, size // PIECE_BYTES))  # others lie outside, or are put together
        lines = max(size, inside * PIECE_BYTES)
        lines += in_two_lines(size, inside, aligned) * gpu.store_across
        sm.out = begin + max(lines / self.share.stores, rows * gpu.tma_row, gpu.tma_box)
        end = max(self._outside(sm, begin, size, memory, write=True), sm.out)
        self._span((warp.block, "TMA stores"), begin, end, STORE, at, f"{size} bytes")
        self._contribute(warp, read, sm.out + gpu.tma_latency / 2)
        self._contribute(warp, written, end + gpu.tma_latency)
        self.last = max(self.last, end + gpu.tma_latency)
