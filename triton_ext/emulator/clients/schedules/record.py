"""Keeps what happens at the barriers of a launch, cluster by cluster: the events of `skeleton`.

The emulator orders the accesses of a warp as a whole. That is right where its lanes are in step
between an access and the operation that orders it; where they need not be, it is noted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.clients.schedules.skeleton import Barrier, Event, Skeleton
from triton_ext.emulator.clients.schedules.timing import FENCES, ORDERING
from triton_ext.emulator.decode.step import Step
from triton_ext.emulator.schedule.observers import Observer, Run
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.barriers import MBarrier, NamedBarrier
from triton_ext.emulator.state.block import AsyncOperation, Cluster, Cta
from triton_ext.emulator.state.buffers import named
from triton_ext.emulator.state.clocks import Clock
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.units import warpgroup_products
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.ptx.parse import Instruction, immediate

UNTOLD = ("meet", "join", "ask")
"""What counts for no thread: whether it is recorded depends on the schedule."""
Issuer = tuple[int, int, int, int]
"""A cluster, the rank of a block, a thread of it, and what it had done before: so many events."""
_MEETS = (".sync", ".aligned")
_ORDERED = ("tcgen05.alloc", "tcgen05.dealloc", "tcgen05.relinquish")
_BULK = ("cp.async.bulk", "cp.reduce.async.bulk")
_AS_ONE = ("tensormap.cp_fenceproxy",)
"""What a warp does as one, and not each lane for itself."""
_READ_ONLY = ("const", "param")


@dataclass
class _Block:
    """What is known of the threads of a block.

    Attributes:
        done: how many events each thread has had, but for those of `UNTOLD`.
        accessed: which have accessed memory that others share since their warp was in step.
        behind: which have not waited for what others of their warp have waited for since.
    """

    done: NDArray[np.int64]
    accessed: NDArray[np.bool_]
    behind: NDArray[np.bool_]


@dataclass
class Recorded:
    """A cluster that runs, or has run.

    Attributes:
        cluster: it.
        events: what happened.
        objects: the barriers, in the order of their numbers.
        blocks: by rank.
        homes: the rank of the block of each mbarrier, by its number.
    """

    cluster: Cluster
    events: list[Event] = field(default_factory=list)
    objects: list[Any] = field(default_factory=list)
    blocks: dict[int, _Block] = field(default_factory=dict)
    homes: dict[int, int] = field(default_factory=dict)
    _numbers: dict[int, int] = field(default_factory=dict)
    _barriers: list[Barrier] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether its blocks have ended, and nothing is under way for them."""
        return all(cta.finished for cta in self.cluster.ctas)

    def barrier(self, of: Any) -> int:
        """The number of a barrier."""
        number = self._numbers.get(id(of))
        if number is None:
            number = self._numbers[id(of)] = len(self.objects)
            self.objects.append(of)
            self._barriers.append(Barrier(number, *self._named(of)))
        return number

    def _named(self, of: Any) -> tuple[str, str]:
        launch = self.cluster.ctas[0].launch
        if isinstance(of, MBarrier):
            return "mbarrier", named(of.name, launch.buffers, launch.buffers_start)
        if isinstance(of, NamedBarrier):
            return "barrier", f"barrier {of.number}"
        return "barrier.cluster", "the cluster's barrier"

    def block(self, cta: Cta) -> _Block:
        """What is known of the threads of a block."""
        found = self.blocks.get(cta.rank)
        if found is None:
            size = cta.warps * WARP_THREADS
            found = self.blocks[cta.rank] = _Block(
                np.zeros(size, np.int64), np.zeros(size, np.bool_), np.zeros(size, np.bool_)
            )
        return found

    def skeleton(self) -> Skeleton:
        """What happened, of each party."""
        phases = [
            each.phase if isinstance(each, MBarrier) else each.generation for each in self.objects
        ]
        return Skeleton.of(self.cluster.number, self._barriers, phases, self.events)


class Recorder(Observer):
    """Records a launch.

    Args:
        finished: told of each cluster whose blocks have all ended, once another one starts: the
            record of it is dropped then; None: all are kept.

    Attributes:
        clusters: those that have started, by their numbers.
        apart: how often, at which instruction, lanes of a warp relied on others that need not be
            in step with them.
        together: how often arrivals of one instruction counted for several phases.
        overtaken: how often a barrier had completed again before who waited for it went on.
        storing: by cluster, rank and warp: the sets of lanes that have copied out of shared memory
            by one instruction, as bits; `grouping`: those that have waited for such copies, or made
            them a group.
        multicast: the addresses in global memory of which copies to several blocks have read.
        performed: what units have done, as `issuers` says.
    """

    def __init__(self, finished: Callable[[Recorded], None] | None = None) -> None:
        self.clusters: dict[int, Recorded] = {}
        self._finished = finished
        self.storing: defaultdict[tuple[int, int, int], set[int]] = defaultdict(set)
        self.grouping: defaultdict[tuple[int, int, int], set[int]] = defaultdict(set)
        self.apart: Counter[Instruction | None] = Counter()
        self.together: Counter[Instruction | None] = Counter()
        self.overtaken: Counter[Instruction | None] = Counter()
        self.multicast: set[int] = set()
        self.performed: set[Issuer] = set()
        self._now: tuple[Cta, Lanes] | None = None
        self._operation: AsyncOperation | None = None
        self._outer: list[tuple[tuple[Cta, Lanes] | None, AsyncOperation | None]] = []
        self._issues: dict[int, list[int]] = {}  # by operation: its events, one for each warp
        self._issuers: dict[int, set[Issuer]] = {}
        self._products: dict[int, list[int]] = {}
        self._since_met: set[tuple[int, int, int]] = set()  # warps: cluster, rank, number

    def begins(self, run: Run) -> Observer:
        self._meets = {
            id(step)
            for step in run.program.steps
            if any(part in step.instruction.opcode for part in _MEETS)
        }
        self._waits = {
            id(step): immediate(step.instruction.operands[0])
            for step in run.program.steps
            if step.instruction.opcode.startswith("wgmma.wait_group")
        }
        self._bulks = {
            id(step): "group" if ".bulk.wait" in opcode or ".bulk.commit" in opcode else "store"
            for step in run.program.steps
            if (opcode := step.instruction.opcode).startswith(_BULK) and "_group" in opcode
        }
        self._fences = any(step.instruction.opcode.startswith(FENCES) for step in run.program.steps)
        self._allocates = {
            id(step) for step in run.program.steps if step.instruction.opcode.startswith(_ORDERED)
        }
        return self

    def of(self, cta: Cta) -> Recorded:
        """The record of a block's cluster."""
        found = self.clusters.get(cta.cluster.number)
        if found is None:
            if self._finished is not None:
                over = [each for each in self.clusters.values() if each.is_over]
                for each in over:
                    self._finished(each)
                    del self.clusters[each.cluster.number]
            found = self.clusters[cta.cluster.number] = Recorded(cta.cluster)
        return found

    # ------------------------------------------------------------------ what threads do

    def instruction(self, cta: Cta, step: Step, lanes: Lanes) -> None:
        self._now = cta, lanes
        key = id(step)
        if key in self._bulks:
            self._bulk(cta, lanes, self._bulks[key])
        if key in self._meets:
            self._meet(cta, step, lanes)
            if key in self._waits:
                self._join(cta, step, lanes)
            elif key in self._allocates:
                unit = ("tcgen05.alloc", cta.rank)
                self._note(cta, lanes, "issue", unit=unit, instruction=step.instruction)

    def _bulk(self, cta: Cta, lanes: Lanes, kind: str) -> None:
        """Lanes copy out of shared memory, or wait for such copies."""
        for warp in lane_sets.warps(lanes).tolist():
            part = self._part(cta, lanes, warp)
            mask, key = self._mask(part, warp), (cta.cluster.number, cta.rank, warp)
            if kind == "store":
                self.storing[key].add(mask)
                continue
            self.grouping[key].add(mask)
            if any(each.bit_count() > 1 for each in self.storing.get(key, ())):
                self.of(cta).block(cta).accessed[part] = True  # each lane knows of its own alone

    def _meet(self, cta: Cta, step: Step, lanes: Lanes) -> None:
        recorded = self.of(cta)
        block = recorded.block(cta)
        whole: Lanes
        if isinstance(lanes, slice) and not (lanes.start | lanes.stop) % WARP_THREADS:
            whole = lanes
        else:
            threads = lane_sets.indices(lanes)
            number = cta.warps
            here = np.bincount(threads // WARP_THREADS, minlength=number)
            living = np.bincount(np.flatnonzero(cta.live) // WARP_THREADS, minlength=number)
            complete = (here == living)[threads // WARP_THREADS]
            if not complete.any():
                return
            whole = lane_sets.select(lanes, complete)
        block.accessed[whole] = False
        block.behind[whole] = False
        for warp in lane_sets.warps(whole).tolist():
            if (cta.cluster.number, cta.rank, warp) in self._since_met:
                part = self._part(cta, whole, warp)
                self._note(cta, part, "meet", instruction=step.instruction)

    @staticmethod
    def _part(cta: Cta, lanes: Lanes, warp: int) -> Lanes:
        threads = lane_sets.indices(lanes)
        return lane_sets.pack(threads[threads // WARP_THREADS == warp])

    def _join(self, cta: Cta, step: Step, lanes: Lanes) -> None:
        keep = self._waits[id(step)] or 0
        for warp in lane_sets.warps(lanes).tolist():
            groups = warpgroup_products.groups_before(cta, warp, keep)
            joins = [
                number
                for group in groups
                for product in group
                for number in self._products.get(id(product), ())
            ]
            if joins:
                part, at = self._part(cta, lanes, warp), step.instruction
                self._note(cta, part, "join", joins=tuple(joins), instruction=at)

    def access(
        self,
        cta: Cta,
        lanes: Lanes,
        space: str,
        addresses: NDArray[np.int64],
        width: int,
        kind: str,
    ) -> None:
        if kind == "load" and space in _READ_ONLY:
            return
        if cta.instruction is not None and cta.instruction.opcode.startswith(_AS_ONE):
            return
        if kind == "atomic" and cta.instruction is not None:
            ordering = self._fences or any(part in cta.instruction.opcode for part in ORDERING)
            if ordering:
                self._orders(cta, lanes, cta.instruction)
        block = self.of(cta).block(cta)
        block.accessed[lanes] = True
        if block.behind[lanes].any():
            self.apart[cta.instruction] += 1

    def copies(self, cta: Cta, lanes: Lanes, kind: str, box: Any, address: int, size: int) -> None:
        at = cta.instruction
        if kind == "load" and at is not None and ".multicast" in at.opcode:
            self.multicast.add(address if box is None else box.map.global_address)

    def issues(self, operation: AsyncOperation) -> None:
        cta, lanes = operation.cta, operation.lanes
        if self._operation is not None:  # the second half of one
            self._issues[id(operation)] = self._issues[id(self._operation)]
            self._issuers[id(operation)] = self._issuers[id(self._operation)]
            return
        self._orders(cta, lanes, operation.instruction)
        unit = operation.queue if operation.queue and operation.queue[0] == "tcgen05" else ()
        events = self._note(cta, lanes, "issue", unit=unit or (), instruction=operation.instruction)
        self._issues[id(operation)] = events
        done = self.of(cta).block(cta).done
        self._issuers[id(operation)] = {
            (cta.cluster.number, cta.rank, thread, int(done[thread]) - 1)
            for thread in lane_sets.indices(lanes).tolist()
        }
        opcode = operation.instruction.opcode if operation.instruction is not None else ""
        if opcode.startswith("wgmma.mma_async"):
            product = cta.under_way.products[int(lane_sets.warps(lanes)[0])].latest
            self._products[id(product)] = events

    def _orders(self, cta: Cta, lanes: Lanes, at: Instruction | None) -> None:
        """Lanes tell others that what was before is over: do they speak for their warp?"""
        block = self.of(cta).block(cta)
        if block.behind[lanes].any():
            self.apart[at] += 1
        for warp in lane_sets.warps(lanes).tolist():
            first = warp * WARP_THREADS
            accessed = block.accessed[first : first + WARP_THREADS]
            if accessed.any():
                others = accessed.copy()
                own = lane_sets.indices(self._part(cta, lanes, warp)) - first
                others[own] = False
                if others.any():
                    self.apart[at] += 1

    def issuers(self, operation: AsyncOperation) -> set[Issuer]:
        """The threads that have issued it, each with what it had done before."""
        return self._issuers[id(operation)]

    # ------------------------------------------------------------------ barriers

    def arrives(self, cta: Cta, lanes: Lanes, barrier: Any, phase: int, far: bool) -> None:
        self._orders(cta, lanes, cta.instruction)
        if isinstance(barrier, MBarrier):
            return
        number = self.of(cta).barrier(barrier)
        self._note(cta, lanes, "arrive", barrier=number, phase=phase, amount=1)

    def awaits(self, cta: Cta, lanes: Lanes, barrier: Any, phase: int, at: Instruction) -> None:
        recorded = self.of(cta)
        block = recorded.block(cta)
        if not isinstance(barrier, MBarrier) and barrier.generation != phase + 1:
            self.overtaken[at] += 1
        parity = isinstance(barrier, MBarrier) and ".parity" in at.opcode
        number = recorded.barrier(barrier)
        self._note(
            cta, lanes, "wait", barrier=number, phase=phase, by_parity=parity, instruction=at
        )
        for warp in lane_sets.warps(lanes).tolist():
            first = warp * WARP_THREADS
            those = lane_sets.indices(self._part(cta, lanes, warp))
            live = cta.live[first : first + WARP_THREADS]
            if len(those) < np.count_nonzero(live):
                others = np.zeros(WARP_THREADS, np.bool_)
                others[: len(live)] = live
                others[those - first] = False
                block.behind[first : first + WARP_THREADS] |= others

    def asks(self, cta: Cta, lanes: Lanes, barrier: Any, parity: int) -> None:
        number = self.of(cta).barrier(barrier)
        self._note(cta, lanes, "ask", barrier=number, phase=parity & 1)

    def counts(
        self,
        barrier: Any,
        what: str,
        lanes: Lanes | None = None,
        numbers: Any = 1,
        clock: Clock | None = None,
    ) -> None:
        operation = self._operation
        if operation is None:
            assert self._now is not None
            cta, every = self._now
        else:
            cta, every = operation.cta, operation.lanes
        chosen = every if lanes is None else lanes
        recorded = self.of(cta)
        number = recorded.barrier(barrier)
        if what == "init":
            recorded.homes[number] = cta.rank
        far = recorded.homes.get(number) != cta.rank
        each = int(np.max(numbers))
        if operation is not None and lanes is None:
            each //= lane_sets.count(every)
        total = int(np.sum(numbers)) if np.ndim(numbers) else each * lane_sets.count(chosen)
        if what == "arrive" and total > barrier.pending:
            self.together[cta.instruction] += 1
        if operation is None:
            phase = barrier.phase
            self._note(cta, chosen, what, barrier=number, phase=phase, amount=each, far=far)
            return
        causes = dict(
            zip(lane_sets.warps(every).tolist(), self._issues[id(operation)], strict=True)
        )
        informed = clock is not None and clock.includes(barrier.released)
        for warp in lane_sets.warps(chosen).tolist():
            mask = self._mask(self._part(cta, chosen, warp), warp)
            at = operation.instruction
            event = Event(
                (cta.rank, warp), mask, what, number, barrier.phase, each,
                cause=causes[warp], far=far, informed=informed, instruction=at,
            )  # fmt: skip
            recorded.events.append(event)

    def performs(self, operation: AsyncOperation) -> None:
        self._outer.append((self._now, self._operation))
        self._operation = operation

    def completed(self, operation: AsyncOperation) -> None:
        self._now, self._operation = self._outer.pop()
        self.performed |= self.issuers(operation)
        del self._issuers[id(operation)]

    # ------------------------------------------------------------------ events

    @staticmethod
    def _mask(lanes: Lanes, warp: int) -> int:
        if isinstance(lanes, slice):
            bits: int = (1 << lanes.stop - lanes.start) - 1
            return bits << int(lanes.start) - warp * WARP_THREADS
        mask = 0
        for lane in (lanes - warp * WARP_THREADS).tolist():
            mask |= 1 << lane
        return mask

    def _note(self, cta: Cta, lanes: Lanes, kind: str, **more: Any) -> list[int]:
        """An event of each warp; their numbers."""
        recorded = self.of(cta)
        more.setdefault("instruction", cta.instruction)
        if kind not in UNTOLD:
            recorded.block(cta).done[lanes] += 1
        numbers = []
        warps = lane_sets.warps(lanes).tolist()
        for warp in warps:
            part = lanes if len(warps) == 1 else self._part(cta, lanes, warp)
            numbers.append(len(recorded.events))
            recorded.events.append(Event((cta.rank, warp), self._mask(part, warp), kind, **more))
            key = cta.cluster.number, cta.rank, warp
            if kind == "meet":
                self._since_met.discard(key)
            else:
                self._since_met.add(key)
        return numbers
