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
    ClusterTrace,
    Item,
)
from triton_ext.timeline.units import (
    PIECE_BYTES,
    PIPE_UNITS,
    SCHEDULERS,
    UNITS,
    Share,
    Sm,
    Units,
    in_two_lines,
)

DATA_PATH_ROWS = 128
"""A product of 64 rows takes as long as one of 128 (PTX ISA, "Data path layout": it uses half of
the lanes)."""


@dataclass(frozen=True)
class Span:
    """An interval in which a warp or a unit was busy, or waited.

    Attributes:
        lane: the block's number among the replayed, and the warp's number or a unit's name.
        begin, end: its first and last cycle.
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


@dataclass
class _Token:
    needs: int
    time: float = 0.0
    waiting: list[tuple[float, _Warp]] = field(default_factory=list)


@dataclass
class _Warp:
    items: list[Item]
    resident: _Resident
    sm: Sm
    number: int
    block: int
    next: int = 0


@dataclass
class _Resident:
    """A cluster that is running."""

    trace: ClusterTrace
    tokens: list[_Token]
    left: int
    slot: int
    stored: dict[int, float] = field(default_factory=dict)
    """When what each block has stored is in the L2 cache."""


@dataclass
class Result:
    """The outcome of a replay.

    Attributes:
        cycles: how many there are from the first instruction to the last.
        ends: the cycle at which each cluster ended, in that order.
        busy: for each unit, the cycles of one SM in which it worked.
        stalls: for each instruction and cause, the cycles that warps waited.
        spans: the intervals, if they were asked for.
    """

    cycles: float
    ends: list[float]
    busy: dict[str, float]
    stalls: dict[tuple[int, str], float]
    spans: list[Span]


@dataclass
class _Log:
    """Where the time of a replay went.

    Attributes:
        keep: whether spans are kept.
    """

    keep: bool
    stalls: defaultdict[tuple[int, str], float] = field(default_factory=lambda: defaultdict(float))
    spans: list[Span] = field(default_factory=list)

    def span(
        self, lane: tuple[int, int | str], begin: float, end: float, what: int, at: int, detail: str
    ) -> None:
        """Add an interval."""
        if self.keep:
            self.spans.append(Span(lane, begin, end, what, at, detail))


class Replay:
    """Replays recorded clusters on as many SMs as one cluster takes.

    Args:
        gpu: the parameters of the GPU.
        shares: for each wave, an SM's share of the throughput of L2 cache and memory.
        slots: how many clusters run at a time.
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
        self.gpu, self.shares, self.slots, self.free = gpu, shares, slots, free
        self.log = _Log(keep)
        self.arrivals = (  # NEAR, FAR, NAMED, CLUSTER
            gpu.barrier_latency, gpu.far_arrival, gpu.bar_latency, gpu.cluster_barrier
        )  # fmt: skip
        self.turns = (gpu.half_cycles, gpu.half_cycles, gpu.special_cycles, gpu.mma_cycles)
        self.heap: list[tuple[float, int, _Warp]] = []
        self.count = 0
        self.blocks = 0
        self.last = 0.0

    def run(self, clusters: Sequence[ClusterTrace]) -> Result:
        """Replay clusters, each of which starts in its turn, as soon as there is a slot."""
        self.units = Units(self.gpu, self.shares[0], len(clusters[0].warps))
        waiting = iter(clusters)
        ends: list[float] = []
        started, begin = 0, 0.0
        for slot in range(self.slots):
            begin = slot * self.gpu.block_interval
            started += self._start(waiting, begin, slot)
        while self.heap:
            time, _, warp = heapq.heappop(self.heap)
            end = self._step(warp, time)
            if end is not None:
                warp.resident.left -= 1
                self.last = max(self.last, end)
                if not warp.resident.left:
                    ends.append(end)
                    self.units.share = self.shares[min(started // self.slots, len(self.shares) - 1)]
                    begin = max(end + self.gpu.block_start, begin + self.gpu.block_interval)
                    started += self._start(waiting, begin, warp.resident.slot)
        assert len(ends) == started, "some warps wait for what never comes"
        busy = {unit: max(sm.busy[unit] for sm in self.units.sms) for unit in UNITS}
        return Result(self.last, ends, busy, dict(self.log.stalls), self.log.spans)

    def _start(self, waiting: Iterator[ClusterTrace], time: float, slot: int) -> int:
        trace = next(waiting, None)
        if trace is None:
            return 0
        tokens = [_Token(needs) for needs in trace.needs]
        if trace.before >= 0:
            tokens[trace.before] = _Token(0, max(time, self.units.share.released))
        resident = _Resident(trace, tokens, sum(map(len, trace.warps)), slot)
        for sm, warps in zip(self.units.sms, trace.warps, strict=True):
            for number, items in enumerate(warps):
                self._push(time, _Warp(items, resident, sm, number, self.blocks))
            self.blocks += 1
        return 1

    def _push(self, time: float, warp: _Warp) -> None:
        self.count += 1
        heapq.heappush(self.heap, (time, self.count, warp))

    def _contribute(self, warp: _Warp, number: int, time: float) -> None:
        """Note that one of the contributions that a token needs is there at a time."""
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
            self.log.stalls[at, name] += end - since
            self.log.span((warp.block, warp.number), since, end, WAIT, at, name)
        self._push(end, warp)

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
            end = self.units.shared(sm, begin, item[2])
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
            end = self.units.outside(sm, begin, sectors * SECTOR_BYTES * 2, memory, write=True)
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
                sm.busy[PIPE_UNITS[number]] += taken / SCHEDULERS
                end = max(end, pipe[scheduler])
        self.log.span((warp.block, warp.number), time, end, RUN, at, "")
        return end

    def _global(self, warp: _Warp, time: float, item: Item) -> float:
        _, at, sectors, hits, memory, token = item
        gpu, units, sm = self.gpu, self.units, warp.sm
        through = units.shared(sm, time, max(1.0, (sectors + hits) * SECTOR_BYTES / LINE_BYTES))
        if token < 0:
            end = units.outside(sm, through, sectors * SECTOR_BYTES, memory, write=True)
            stored = warp.resident.stored
            stored[warp.block] = max(stored.get(warp.block, 0.0), end + gpu.l2_latency)
            self.last = max(self.last, end + gpu.l2_latency)
            return through
        end = through + gpu.l1_latency
        if sectors:
            end = units.outside(sm, through, sectors * SECTOR_BYTES, memory)
            end += units.latency(sm, time, memory)
        self.log.span((warp.block, "loads"), time, end, GLOBAL, at, f"{sectors} sectors")
        self._contribute(warp, token, end)
        return through

    def _product(self, warp: _Warp, time: float, item: Item) -> None:
        _, at, n, size, registers, token = item
        gpu, units, sm = self.gpu, self.units, warp.sm
        flops = 2 * 64 * n * 32 / size
        read = ((0 if registers else 64) + n) * 32
        begin = max(sm.tensor, time)
        taken = units.multiplied(sm, begin, flops / (gpu.flops_per_cycle * 2 / size), read)
        sm.tensor = begin + taken
        self.log.span((warp.block, "tensor cores"), begin, sm.tensor, PRODUCT, at, f"64x{n}")
        self._contribute(warp, token, sm.tensor + gpu.product_latency)

    def _tensor(self, warp: _Warp, time: float, item: Item) -> None:
        _, at, m, n, size, blocks, read = item
        gpu, units = self.gpu, self.units
        rank = units.sms.index(warp.sm)
        sms = [warp.sm] if blocks == 1 else units.sms[rank & ~1 : (rank & ~1) + 2]
        flops = 2 * (DATA_PATH_ROWS if m else 0) * n * 32 / size
        alone = flops / (gpu.flops_per_cycle * 2 / size)
        begin = max(time, *(sm.tensor for sm in sms))
        taken = max(units.multiplied(sm, begin, alone, read) for sm in sms)
        for sm in sms:
            sm.tensor = begin + taken
        self.log.span((warp.block, "tensor cores"), begin, begin + taken, TENSOR, at, f"{m}x{n}")

    def _copy(self, warp: _Warp, time: float, item: Item) -> None:
        _, at, inside, size, rows, memory, tokens, ranks, again, absent = item
        gpu, units, sm = self.gpu, self.units, warp.sm
        there = rows - absent
        aligned = units.share.aligned[memory] if memory >= 0 else ALIGNED
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
        whose = [units.sms[rank] for rank in ranks] if len(ranks) > 1 else [sm]
        several = len(whose) > 1
        outside = units.outside(sm, time, inside, memory, rows=there, more=more, multicast=several)
        came = max(sm.tma, outside)
        taken = size / units.share.received
        if several:
            more = in_two_lines(inside, there, aligned) * gpu.multicast_across
            least = max(inside, there * gpu.multicast_row)
            taken = max(taken, (least + more) / gpu.multicast_bytes)
        for each in whose:
            each.inlet = max(each.inlet, begin) + taken
            came = max(came, each.inlet)
        end = came + gpu.tma_latency
        longer = gpu.tma_memory_latency - gpu.tma_latency + units.queued(sm, time)
        end += longer * units.share.far(memory, again)
        self.log.span((warp.block, "TMA loads"), begin, end, COPY, at, f"{size} bytes")
        for token in tokens:
            self._contribute(warp, token, end)

    def _store(self, warp: _Warp, time: float, item: Item) -> None:
        _, at, size, rows, memory, read, written = item
        gpu, units, sm = self.gpu, self.units, warp.sm
        begin = max(sm.out, time)
        aligned = units.share.aligned[memory] if memory >= 0 else ALIGNED
        inside = min(rows, max(1, size // PIECE_BYTES))  # others lie outside, or are put together
        lines = max(size, inside * PIECE_BYTES)
        lines += in_two_lines(size, inside, aligned) * gpu.store_across
        sm.out = begin + max(lines / units.share.stores, rows * gpu.tma_row, gpu.tma_box)
        end = max(units.outside(sm, begin, size, memory, write=True), sm.out)
        self.log.span((warp.block, "TMA stores"), begin, end, STORE, at, f"{size} bytes")
        self._contribute(warp, read, sm.out + gpu.tma_latency / 2)
        self._contribute(warp, written, end + gpu.tma_latency)
        self.last = max(self.last, end + gpu.tma_latency)
