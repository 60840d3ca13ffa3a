"""Keeps what happens at the barriers of a launch, cluster by cluster: the events of `skeleton`.

The emulator orders the accesses of a warp as a whole. That is right where its lanes are in step
between an access and the operation that orders it; where they need not be, it is noted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from triton_ext.emulator.clients.schedules.recorded import Recorded, as_bits, of_warp
from triton_ext.emulator.clients.schedules.skeleton import Event
from triton_ext.emulator.clients.schedules.timing import FENCES, ORDERING
from triton_ext.emulator.decode.step import Step
from triton_ext.emulator.schedule.observers import Observer, Run
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.barriers import MBarrier
from triton_ext.emulator.state.block import AsyncOperation, Cta
from triton_ext.emulator.state.clocks import Clock
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.memory import Addresses
from triton_ext.emulator.units import warpgroup_products
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.ptx.parse import Instruction, immediate

Issuer = tuple[int, int, int, int]
"""A cluster, the rank of a block, a thread of it, and what it had done before: so many events."""
_Warp = tuple[int, int, int]
_MEETS = (".sync", ".aligned")
_ORDERED = ("tcgen05.alloc", "tcgen05.dealloc", "tcgen05.relinquish")
_BULK = ("cp.async.bulk", "cp.reduce.async.bulk")
_AS_ONE = ("tensormap.cp_fenceproxy",)
"""What a warp does as one, and not each lane for itself."""
_READ_ONLY = ("const", "param")


@dataclass
class Doubts:
    """Where the vector clocks of a launch may not hold for all schedules.

    Attributes:
        apart: for each instruction, how often lanes of a warp relied on others that need not be in
            step with them.
        together: how often arrivals of one instruction counted for several phases.
        overtaken: how often a barrier completed again before a thread that waited had gone on.
        storing: by cluster, rank and warp: the sets of lanes, as bits, that copied out of shared
            memory by one instruction.
        grouping: the same of lanes that waited for such copies, or committed them to a group.
        multicast: the addresses in global memory that copies to several blocks have read.
    """

    apart: Counter[Instruction | None] = field(default_factory=Counter)
    together: Counter[Instruction | None] = field(default_factory=Counter)
    overtaken: Counter[Instruction | None] = field(default_factory=Counter)
    storing: defaultdict[_Warp, set[int]] = field(default_factory=lambda: defaultdict(set))
    grouping: defaultdict[_Warp, set[int]] = field(default_factory=lambda: defaultdict(set))
    multicast: set[int] = field(default_factory=set)


@dataclass
class Issued:
    """The operations of units.

    Attributes:
        events: for each operation, the number of the event of each warp that issued it.
        products: the same of warpgroups' products.
        performed: the operations that are done, each as `issuers` returns it.
    """

    events: dict[int, list[int]] = field(default_factory=dict)
    products: dict[int, list[int]] = field(default_factory=dict)
    performed: set[Issuer] = field(default_factory=set)
    _issuers: dict[int, set[Issuer]] = field(default_factory=dict)

    def issuers(self, operation: AsyncOperation) -> set[Issuer]:
        """The threads that issued an operation, each with the number of its earlier events."""
        return self._issuers[id(operation)]

    def add(self, operation: AsyncOperation, events: list[int], issuers: set[Issuer]) -> None:
        """Note an operation that was issued."""
        self.events[id(operation)], self._issuers[id(operation)] = events, issuers

    def over(self, operation: AsyncOperation) -> None:
        """Note that an operation is done."""
        self.performed |= self._issuers.pop(id(operation))


class _Steps:
    """Which steps of a program are recorded.

    Attributes:
        meets: the steps at which warps are in step.
        waits: the waits for products, with the number of groups that may be pending.
        bulks: the steps of copies out of shared memory: "store" or "group".
        allocates: the allocations of tensor memory.
        fences: whether the program has any.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self.meets = {
            id(step) for step in steps if any(part in step.instruction.opcode for part in _MEETS)
        }
        self.waits = {
            id(step): immediate(step.instruction.operands[0])
            for step in steps
            if step.instruction.opcode.startswith("wgmma.wait_group")
        }
        self.bulks = {
            id(step): "group" if ".bulk.wait" in opcode or ".bulk.commit" in opcode else "store"
            for step in steps
            if (opcode := step.instruction.opcode).startswith(_BULK) and "_group" in opcode
        }
        self.allocates = {
            id(step) for step in steps if step.instruction.opcode.startswith(_ORDERED)
        }
        self.fences = any(step.instruction.opcode.startswith(FENCES) for step in steps)


class Recorder(Observer):
    """The observer that records a launch.

    Args:
        finished: called with each cluster whose blocks have all ended, when another one starts; its
            record is dropped then. None: all records are kept.

    Attributes:
        clusters: the records of the clusters that have started, by their numbers.
        doubts: where the clocks may not hold for all schedules.
        issued: the operations of units.
    """

    def __init__(self, finished: Callable[[Recorded], None] | None = None) -> None:
        self.clusters: dict[int, Recorded] = {}
        self._finished = finished
        self.doubts, self.issued = Doubts(), Issued()
        self._now: tuple[Cta, Lanes] | None = None
        self._operation: AsyncOperation | None = None
        self._outer: list[tuple[tuple[Cta, Lanes] | None, AsyncOperation | None]] = []

    def begins(self, run: Run) -> Observer:
        self._steps = _Steps(run.program.steps)
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
        if key in self._steps.bulks:
            self._bulk(cta, lanes, self._steps.bulks[key])
        if key in self._steps.meets:
            self._meet(cta, step, lanes)
            if key in self._steps.waits:
                self._join(cta, step, lanes)
            elif key in self._steps.allocates:
                unit = ("tcgen05.alloc", cta.rank)
                self.of(cta).note(cta, lanes, "issue", unit=unit, instruction=step.instruction)

    def _bulk(self, cta: Cta, lanes: Lanes, kind: str) -> None:
        """Note that lanes copy out of shared memory, or wait for such copies."""
        for warp in lane_sets.warps(lanes).tolist():
            part = of_warp(lanes, warp)
            mask, key = as_bits(part, warp), (cta.cluster.number, cta.rank, warp)
            if kind == "store":
                self.doubts.storing[key].add(mask)
                continue
            self.doubts.grouping[key].add(mask)
            if any(each.bit_count() > 1 for each in self.doubts.storing.get(key, ())):
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
            if block.since_met[warp]:
                part = of_warp(whole, warp)
                recorded.note(cta, part, "meet", instruction=step.instruction)

    def _join(self, cta: Cta, step: Step, lanes: Lanes) -> None:
        keep = self._steps.waits[id(step)] or 0
        for warp in lane_sets.warps(lanes).tolist():
            groups = warpgroup_products.groups_before(cta, warp, keep)
            joins = [
                number
                for group in groups
                for product in group
                for number in self.issued.products.get(id(product), ())
            ]
            if joins:
                part, at = of_warp(lanes, warp), step.instruction
                self.of(cta).note(cta, part, "join", joins=tuple(joins), instruction=at)

    def access(
        self, cta: Cta, lanes: Lanes, space: str, addresses: Addresses, width: int, kind: str
    ) -> None:
        if kind == "load" and space in _READ_ONLY:
            return
        if cta.instruction is not None and cta.instruction.opcode.startswith(_AS_ONE):
            return
        if kind == "atomic" and cta.instruction is not None:
            opcode = cta.instruction.opcode
            if self._steps.fences or any(part in opcode for part in ORDERING):
                self._orders(cta, lanes, cta.instruction)
        block = self.of(cta).block(cta)
        block.accessed[lanes] = True
        if block.behind[lanes].any():
            self.doubts.apart[cta.instruction] += 1

    def copies(self, cta: Cta, lanes: Lanes, kind: str, box: Any, address: int, size: int) -> None:
        at = cta.instruction
        if kind == "load" and at is not None and ".multicast" in at.opcode:
            self.doubts.multicast.add(address if box is None else box.map.global_address)

    def issues(self, operation: AsyncOperation) -> None:
        cta, lanes = operation.cta, operation.lanes
        if self._operation is not None:  # the second half of one
            of_first = self.issued.events[id(self._operation)]
            self.issued.add(operation, of_first, self.issued.issuers(self._operation))
            return
        self._orders(cta, lanes, operation.instruction)
        unit = operation.queue if operation.queue and operation.queue[0] == "tcgen05" else ()
        recorded, at = self.of(cta), operation.instruction
        events = recorded.note(cta, lanes, "issue", unit=unit or (), instruction=at)
        done = recorded.block(cta).done
        issuers = {
            (cta.cluster.number, cta.rank, thread, int(done[thread]) - 1)
            for thread in lane_sets.indices(lanes).tolist()
        }
        self.issued.add(operation, events, issuers)
        if at is not None and at.opcode.startswith("wgmma.mma_async"):
            product = cta.under_way.products[int(lane_sets.warps(lanes)[0])].latest
            self.issued.products[id(product)] = events

    def _orders(self, cta: Cta, lanes: Lanes, at: Instruction | None) -> None:
        """Note whether lanes release what other lanes of their warp did before, too."""
        found = self.of(cta).block(cta).speaking_for_others(lanes)
        if found:
            self.doubts.apart[at] += found

    # ------------------------------------------------------------------ barriers

    def arrives(self, cta: Cta, lanes: Lanes, barrier: Any, phase: int, far: bool) -> None:
        self._orders(cta, lanes, cta.instruction)
        if isinstance(barrier, MBarrier):
            return
        recorded = self.of(cta)
        number = recorded.barrier(barrier)
        recorded.note(cta, lanes, "arrive", barrier=number, phase=phase, amount=1)

    def awaits(self, cta: Cta, lanes: Lanes, barrier: Any, phase: int, at: Instruction) -> None:
        recorded = self.of(cta)
        block = recorded.block(cta)
        if not isinstance(barrier, MBarrier) and barrier.generation != phase + 1:
            self.doubts.overtaken[at] += 1
        parity = isinstance(barrier, MBarrier) and ".parity" in at.opcode
        number = recorded.barrier(barrier)
        recorded.note(
            cta, lanes, "wait", barrier=number, phase=phase, by_parity=parity, instruction=at
        )
        for warp in lane_sets.warps(lanes).tolist():
            first = warp * WARP_THREADS
            those = lane_sets.indices(of_warp(lanes, warp))
            live = cta.live[first : first + WARP_THREADS]
            if len(those) < np.count_nonzero(live):
                others = np.zeros(WARP_THREADS, np.bool_)
                others[: len(live)] = live
                others[those - first] = False
                block.behind[first : first + WARP_THREADS] |= others

    def asks(self, cta: Cta, lanes: Lanes, barrier: Any, parity: int) -> None:
        recorded = self.of(cta)
        number = recorded.barrier(barrier)
        recorded.note(cta, lanes, "ask", barrier=number, phase=parity & 1)

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
            self.doubts.together[cta.instruction] += 1
        if operation is None:
            phase = barrier.phase
            recorded.note(cta, chosen, what, barrier=number, phase=phase, amount=each, far=far)
            return
        causes = dict(
            zip(lane_sets.warps(every).tolist(), self.issued.events[id(operation)], strict=True)
        )
        informed = clock is not None and clock.includes(barrier.released)
        for warp in lane_sets.warps(chosen).tolist():
            mask = as_bits(of_warp(chosen, warp), warp)
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
        self.issued.over(operation)
