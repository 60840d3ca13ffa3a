"""Records what warps ask of the units of an SM: an observer of one launch.

What each instruction does is seen by the hooks of `Observer`; here it becomes items and tokens. The
products, loads and copies of the eager schedule are done when they are issued, so that what a
barrier is told of belongs to the copy that was issued last.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.clients.statistics import Wavefronts
from triton_ext.emulator.decode.step import Step
from triton_ext.emulator.schedule.observers import Observer
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.barriers import ClusterBarrier, NamedBarrier
from triton_ext.emulator.state.block import Cta, Launch
from triton_ext.emulator.state.buffers import named
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.storage import Register
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.hardware.tensor_memory import WARPGROUP_WARPS
from triton_ext.ptx.parse import Instruction
from triton_ext.timeline.costs import HANDLED, PTX_CHAIN, Kind, charge, kind_of
from triton_ext.timeline.sass import NO_TURNS, Cost
from triton_ext.timeline.trace import (
    ATOMIC,
    CLUSTER,
    COMMIT,
    COPY,
    FAR,
    GLOBAL,
    NAMED,
    NEAR,
    PHASE,
    PRODUCT,
    RUN,
    SEND,
    SHARED,
    SIGNAL,
    STORE,
    TENSOR,
    TMEM,
    WAIT,
    ClusterTrace,
    Item,
    Line,
    Memory,
    Trace,
)

SECTOR_BYTES = 32
L1_SECTORS = 4096
"""How many sectors a block is taken to keep in the L1 cache: half of what an SM has."""
_RELEASING = re.compile(r"(atom|red)\S*\.(acq_rel|release)")
_ASKING = re.compile(r"(@\S+ )?ld\.\S*(acquire|relaxed|volatile)")
"""Loads of what other blocks write."""


@dataclass
class _Run:
    """Instructions since the last item of a warp."""

    issued: float = 0.0
    turns: tuple[float, ...] = NO_TURNS
    chain: float = 0.0
    at: int = 0


@dataclass
class _Warp:
    items: list[Item] = field(default_factory=list)
    run: _Run = field(default_factory=_Run)
    clock: int = 0
    ready: dict[Register, int] = field(default_factory=dict)
    loads: list[tuple[int, frozenset[Register]]] = field(default_factory=list)
    polled: tuple[int, int, int] = (-1, -1, -1)
    open: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    groups: dict[str, deque[list[int]]] = field(default_factory=lambda: defaultdict(deque))


class _Block:
    def __init__(self, warps: int) -> None:
        self.warps = [_Warp() for _ in range(warps)]
        self.loading = False
        self.cached: dict[int, None] = {}


class _Cluster:
    """A cluster that is recorded."""

    def __init__(self, blocks: int, warps: int) -> None:
        self.blocks = [_Block(warps) for _ in range(blocks)]
        self.needs: list[int] = []
        self.names: dict[int, str] = {}
        self.phases: dict[tuple[int, int], int] = {}
        self.copied: set[object] = set()
        self.kept: list[object] = []  # barriers, so that no other gets the id of one
        self.repeated: dict[int, tuple[int, int]] = {}  # tokens of the rounds of a loop that asks
        self.before = -1  # the token of the kernel before

    def token(self, needs: int = 1) -> int:
        self.needs.append(needs)
        return len(self.needs) - 1


class Recorder(Observer):
    """Records clusters of one launch.

    Args:
        clusters: their numbers in the grid.
        costs: what lines of the PTX became, if that is known.
    """

    def __init__(self, clusters: Collection[int], costs: Mapping[int, Cost]) -> None:
        self._wanted = frozenset(clusters)
        self._costs = costs
        self._clusters: dict[int, _Cluster] = {}
        self._kinds: dict[int, Kind] = {}
        self._lines: list[Line] = []
        self._numbers: dict[int, int] = {}  # of instructions, by their lines in the PTX
        self._memories: dict[int, int] = {}
        self._pieces: list[Memory] = []
        self._kind = Kind(0, 0)
        self._step: Step | None = None
        self._tokens: list[int] = []
        self._ranks: list[int] = []
        self._bringers = 1  # items that have these tokens
        self._wavefronts = Wavefronts()
        self._columns = 0
        self._handlers = {name: getattr(self, f"_{name}") for _, name in HANDLED}
        self._barriers: dict[str, str] = {}  # what they are called in messages

    # ------------------------------------------------------------------- instructions

    def _block(self, cta: Cta) -> _Block | None:
        number = cta.cluster.number
        if number not in self._wanted:
            return None
        found = self._clusters.get(number)
        if found is None:
            found = self._clusters[number] = _Cluster(len(cta.cluster.ctas), cta.warps)
        return found.blocks[cta.rank]

    def _known(self, step: Step) -> Kind:
        kind = self._kinds.get(id(step))
        if kind is None:
            at = step.instruction
            kind = self._kinds[id(step)] = kind_of(at, len(self._lines))
            if self._costs:
                charge(kind, self._costs.get(at.line))
            self._numbers[at.line] = len(self._lines)
            self._lines.append(Line(str(at), str(at.source) if at.source else ""))
        return kind

    def instruction(self, cta: Cta, step: Step, lanes: Lanes) -> None:
        block = self._block(cta)
        if block is None:
            return
        kind = self._kind = self._known(step)
        self._step = step
        if isinstance(lanes, slice):
            warps: Sequence[int] = range(
                lanes.start // WARP_THREADS, (lanes.stop - 1) // WARP_THREADS + 1
            )
        else:
            warps = lane_sets.warps(lanes).tolist()
        if block.loading:
            self._use(block, step, warps)
        if kind.issued or kind.cycles or kind.latency == 0:
            taken = kind.cycles
            if taken is None:
                taken = self._chain(block.warps[warps[0]], step, kind) * PTX_CHAIN
            for number in warps:
                run = block.warps[number].run
                run.issued += kind.issued
                run.chain += taken
                run.at = kind.at
                if any(kind.turns):
                    run.turns = tuple(a + b for a, b in zip(run.turns, kind.turns, strict=True))
        if kind.handle:
            self._handlers[kind.handle](cta, block, warps)

    @staticmethod
    def _chain(warp: _Warp, step: Step, kind: Kind) -> int:
        """The cycles from the issue of the instruction before to that of this one, in a warp alone:
        it waits for what it reads, and for what has the same name."""
        ready, clock = warp.ready, warp.clock
        begin = clock + (kind.issued > 0)
        for register in step.touched:
            begin = max(begin, ready.get(register, 0))
        for register in step.written:
            ready[register] = begin + kind.latency
        if kind.issued:
            warp.clock = begin
            return begin - clock
        return 0

    def _use(self, block: _Block, step: Step, warps: Iterable[int]) -> None:
        """Warps wait for loads whose registers the instruction names."""
        for number in warps:
            warp = block.warps[number]
            if warp.loads:
                left = []
                for token, registers in warp.loads:
                    if step.touched & registers:
                        self._add(warp, (WAIT, self._kind.at, token))
                    else:
                        left.append((token, registers))
                warp.loads = left
        block.loading = any(warp.loads for warp in block.warps)

    @staticmethod
    def _add(warp: _Warp, item: Item) -> None:
        _flush(warp)
        warp.items.append(item)

    def _product(self, cta: Cta, block: _Block, warps: Iterable[int]) -> None:
        cluster = self._clusters[cta.cluster.number]
        n, size, registers = self._kind.product
        token = -1
        for number in warps:
            warp = block.warps[number]
            if number % WARPGROUP_WARPS == 0:
                token = cluster.token()
                cluster.names[token] = "products (wgmma)"
                self._add(warp, (PRODUCT, self._kind.at, n, size, registers, token))
            warp.open["wgmma"].append(token)

    def multiplies(
        self, cta: Cta, thread: int, shape: tuple[int, int, int], group: int, a_in_memory: bool
    ) -> None:
        block = self._block(cta)
        if block is not None:
            m, n, k = shape
            read = 32 * ((m if a_in_memory else 0) + n) // group
            item = (TENSOR, self._kind.at, m, n, 32 / k, group, read)
            self._add(block.warps[thread // WARP_THREADS], item)

    def _tensor_copy(self, cta: Cta, block: _Block, warps: Iterable[int]) -> None:
        kind = self._kind
        for number in warps:
            self._add(block.warps[number], (TENSOR, kind.at, 0, 0, 1, kind.group, kind.columns))

    def _tensor_commit(self, cta: Cta, block: _Block, warps: Iterable[int]) -> None:
        for number in warps:
            self._tokens, self._ranks, self._bringers = [], [], 1
            self._add(block.warps[number], (COMMIT, self._kind.at, self._tokens))

    def _tensor_load(self, cta: Cta, block: _Block, warps: Iterable[int]) -> None:
        cluster, kind = self._clusters[cta.cluster.number], self._kind
        for number in warps:
            token = self._load(cluster, block, number)
            cluster.names[token] = "tensor memory"
            self._add(block.warps[number], (TMEM, kind.at, kind.columns, token))

    def _tensor_store(self, cta: Cta, block: _Block, warps: Iterable[int]) -> None:
        for number in warps:
            self._add(block.warps[number], (TMEM, self._kind.at, self._kind.columns, -1))

    def _tensor_wait(self, cta: Cta, block: _Block, warps: Iterable[int]) -> None:
        names = self._clusters[cta.cluster.number].names
        for number in warps:
            warp = block.warps[number]
            for token, _ in warp.loads:
                if names[token] == "tensor memory":
                    self._add(warp, (WAIT, self._kind.at, token))
            warp.loads = [each for each in warp.loads if names[each[0]] != "tensor memory"]

    def _allocate(self, cta: Cta, block: _Block, warps: Iterable[int]) -> None:
        self._columns = max(self._columns, self._kind.columns)

    def _commit(self, cta: Cta, block: _Block, warps: Iterable[int]) -> None:
        queue = self._queue()
        for number in warps:
            warp = block.warps[number]
            warp.groups[queue].append(warp.open.pop(queue, []))

    def _queue(self) -> str:
        text = self._lines[self._kind.at].text
        return "wgmma" if "wgmma" in text else "bulk" if "bulk" in text else "async"

    def _await_groups(self, cta: Cta, block: _Block, warps: Iterable[int]) -> None:
        queue, kind = self._queue(), self._kind
        for number in warps:
            warp = block.warps[number]
            groups = warp.groups[queue]
            tokens: list[int] = []
            while len(groups) > kind.keep:
                tokens += groups.popleft()
            if queue == "bulk":  # pairs: of the read, and of the write
                tokens = tokens[0 if kind.reads_only else 1 :: 2]
            for token in tokens[-1:] if queue == "wgmma" else tokens:
                self._add(warp, (WAIT, kind.at, token))

    def _await_all(self, cta: Cta, block: _Block, warps: Iterable[int]) -> None:
        self._commit(cta, block, warps)
        self._await_groups(cta, block, warps)

    def _await_kernel(self, cta: Cta, block: _Block, warps: Iterable[int]) -> None:
        cluster = self._clusters[cta.cluster.number]
        if cluster.before < 0:
            cluster.before = cluster.token()
            cluster.names[cluster.before] = "the kernel before"
        for number in warps:
            self._add(block.warps[number], (WAIT, self._kind.at, cluster.before))

    # ------------------------------------------------------------------------- barriers

    def _phase(self, cluster: _Cluster, cta: Cta, barrier: Any, phase: int, needs: int) -> int:
        key = (id(barrier), phase)
        token = cluster.phases.get(key)
        if token is None:
            token = cluster.phases[key] = cluster.token(0)
            cluster.kept.append(barrier)
            cluster.names[token] = f"{self._called(cta, barrier)}{PHASE}{phase}"
        cluster.needs[token] += needs
        return token

    def _called(self, cta: Cta, barrier: Any) -> str:
        """What faults call a barrier."""
        name, number = getattr(barrier, "name", ""), getattr(barrier, "number", None)
        name = name or ("the cluster's barrier" if number is None else f"barrier {number}")
        if name not in self._barriers:
            launch = cta.launch
            self._barriers[name] = named(name, launch.buffers, launch.buffers_start)
        return self._barriers[name]

    def arrives(self, cta: Cta, lanes: Lanes, barrier: Any, phase: int, far: bool) -> None:
        block = self._block(cta)
        if block is not None:
            cluster = self._clusters[cta.cluster.number]
            warps = lane_sets.warps(lanes).tolist()
            token = self._phase(cluster, cta, barrier, phase, len(warps))
            kinds = {NamedBarrier: NAMED, ClusterBarrier: CLUSTER}
            how = kinds.get(type(barrier), FAR if far else NEAR)
            for number in warps:
                self._add(block.warps[number], (SIGNAL, self._kind.at, token, how))

    def awaits(self, cta: Cta, lanes: Lanes, barrier: Any, phase: int, at: Instruction) -> None:
        block = self._block(cta)
        cluster = self._clusters.get(cta.cluster.number)
        if block is None or cluster is None:
            return
        token = cluster.phases.get((id(barrier), phase))
        if token is None:  # the phase before the first, which counts as completed
            return
        number = self._numbers[at.line]
        for warp in lane_sets.warps(lanes).tolist():
            self._add(block.warps[warp], (WAIT, number, token))

    # --------------------------------------------------------------------------- memory

    def _memory(self, cta: Cta, address: int, pitch: int = 0) -> int:
        found = cta.launch.memory.locate(address, 1)
        number = self._memories.get(found.start)
        if number is None:
            number = self._memories[found.start] = len(self._pieces)
            self._pieces.append(Memory(found.name.removeprefix("argument "), found.size, pitch))
        return number

    def access(
        self,
        cta: Cta,
        lanes: Lanes,
        space: str,
        addresses: NDArray[np.int64],
        width: int,
        kind: str,
    ) -> None:
        block = self._block(cta)
        if block is None or space not in ("shared", "global"):
            return
        cluster = self._clusters[cta.cluster.number]
        at = self._kind.at
        assert self._step is not None
        if space == "shared":
            for number, wavefronts, _ in self._wavefronts(lanes, addresses, width):
                token = self._load(cluster, block, number) if kind != "store" else -1
                self._add(block.warps[number], (SHARED, at, wavefronts, token))
            return
        memory = self._memory(cta, int(addresses[0]))
        threads = lane_sets.indices(lanes) // WARP_THREADS
        for number in np.unique(threads).tolist():
            sectors = set((addresses[threads == number] // SECTOR_BYTES).tolist())
            warp = block.warps[number]
            if kind == "atomic":
                self._asks(cluster, warp, at, int(addresses[0]))
                token = self._load(cluster, block, number)
                releases = _RELEASING.search(self._lines[at].text) is not None
                self._add(warp, (ATOMIC, at, len(sectors), memory, releases, token))
            elif kind == "store":
                self._add(warp, (GLOBAL, at, len(sectors), 0, memory, -1))
            else:
                if _ASKING.match(self._lines[at].text):
                    self._asks(cluster, warp, at, int(addresses[0]))
                new = self._missed(block, sectors)
                if kind == "copy":
                    token = cluster.token()
                    cluster.names[token] = "cp.async"
                    warp.open["async"].append(token)
                else:
                    token = self._load(cluster, block, number)
                self._add(warp, (GLOBAL, at, new, len(sectors) - new, memory, token))

    @staticmethod
    def _asks(cluster: _Cluster, warp: _Warp, at: int, address: int) -> None:
        """A warp that asks the same again has waited meanwhile: one round of its loop is kept.

        How often it asks is a matter of the order in which the emulator runs the blocks.
        """
        _flush(warp)
        if warp.polled[:2] == (at, address):
            begin = warp.polled[2]
            for item in warp.items[begin:]:
                if item[0] in (SIGNAL, WAIT):
                    cluster.repeated[item[2]] = (at, id(warp))
            del warp.items[begin:]
        warp.polled = (at, address, len(warp.items))

    @staticmethod
    def _missed(block: _Block, sectors: set[int]) -> int:
        """How many of the sectors the L1 cache does not have; it has them from now on."""
        cached = block.cached
        new = sectors - cached.keys()
        cached.update(dict.fromkeys(new))
        while len(cached) > L1_SECTORS:
            del cached[next(iter(cached))]
        return len(new)

    def _load(self, cluster: _Cluster, block: _Block, number: int) -> int:
        """A token for the registers that the instruction loads."""
        token = cluster.token()
        assert self._step is not None
        cluster.names[token] = "a load"
        block.warps[number].loads.append((token, self._step.written))
        block.loading = True
        return token

    def copies(self, cta: Cta, lanes: Lanes, kind: str, box: Any, address: int, size: int) -> None:
        block = self._block(cta)
        if block is None:
            return
        cluster = self._clusters[cta.cluster.number]
        warp = block.warps[int(lane_sets.warps(lanes)[0])]
        inside, rows, absent, pitch = size, 1, 0, 0
        if box is not None:
            address, rows = box.map.global_address, len(box.box.outer)
            there, inside = box.inside
            absent = rows - there
            pitch = (*box.map.global_strides, 0)[0]
        memory = self._memory(cta, address, pitch) if address >= 0 else -1
        if kind == "load":
            self._tokens, self._ranks, self._bringers = [], [], 1
            what = (
                (address, size)
                if box is None
                else (address, box.coordinates, tuple(box.rows or ()))
            )
            again = what in cluster.copied
            cluster.copied.add(what)
            found = (self._tokens, self._ranks, again, absent)
            self._add(warp, (COPY, self._kind.at, inside, size, rows, memory, *found))
        else:
            read, written = cluster.token(), cluster.token()
            cluster.names[read] = cluster.names[written] = "TMA store"
            warp.open["bulk"] += [read, written]
            self._add(warp, (STORE, self._kind.at, inside, rows, memory, read, written))

    def sends(self, cta: Cta, lanes: Lanes, size: int) -> None:
        block = self._block(cta)
        if block is None:
            return
        found = lane_sets.indices(lanes) // WARP_THREADS
        warps, threads = np.unique(found, return_counts=True)
        self._tokens, self._ranks, self._bringers = [], [], len(warps)
        for number, count in zip(warps.tolist(), threads.tolist(), strict=True):
            self._add(block.warps[number], (SEND, self._kind.at, count * size, self._tokens))

    def brings(self, cta: Cta, rank: int, barrier: Any, phase: int) -> None:
        cluster = self._clusters.get(cta.cluster.number)
        if cluster is not None and cta.cluster.number in self._wanted:
            self._tokens.append(self._phase(cluster, cta, barrier, phase, self._bringers))
            self._ranks.append(rank)

    # ------------------------------------------------------------------------- the result

    def trace(self, launch: Launch, name: str, registers: int) -> Trace:
        """What was recorded of a launch."""
        clusters = {}
        for number, cluster in self._clusters.items():
            for block in cluster.blocks:
                for warp in block.warps:
                    _flush(warp)
            warps = [
                [_once(warp.items, cluster.repeated) for warp in block.warps]
                for block in cluster.blocks
            ]
            clusters[number] = ClusterTrace(warps, cluster.needs, cluster.names, cluster.before)
        return Trace(
            name, launch.grid, launch.cluster, launch.threads, launch.shared_bytes, registers,
            self._lines, self._pieces, clusters, self._columns, bool(self._costs),
        )  # fmt: skip


def _flush(warp: _Warp) -> None:
    run = warp.run
    if run.issued or run.chain:
        warp.items.append((RUN, run.at, run.issued, run.turns, run.chain))
        warp.run = _Run()


def _once(items: list[Item], repeated: dict[int, tuple[int, int]]) -> list[Item]:
    """The items without the rounds of loops that another warp of the block has asked in."""
    ends: dict[tuple[int, int], tuple[int, int]] = {}
    for number, item in enumerate(items if repeated else ()):
        if item[0] in (SIGNAL, WAIT) and item[2] in repeated:
            loop = repeated[item[2]]
            ends[loop] = (ends.get(loop, (number, 0))[0], number + 1)
    loaded: set[int] = set()  # in these rounds; what is used after the last of them is there
    for begin, end in sorted(ends.values(), reverse=True):
        loaded |= {item[-1] for item in items[begin:end] if item[0] in (SHARED, GLOBAL, ATOMIC)}
        del items[begin:end]
    return [item for item in items if item[0] != WAIT or item[2] not in loaded]
