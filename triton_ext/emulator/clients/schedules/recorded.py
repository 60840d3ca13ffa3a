"""What has happened at the barriers of a cluster: the events of `skeleton`, one by one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.clients.schedules.skeleton import Barrier, Event, Skeleton
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.barriers import MBarrier, NamedBarrier
from triton_ext.emulator.state.block import Cluster, Cta
from triton_ext.emulator.state.buffers import named
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.hardware.architecture import WARP_THREADS

UNTOLD = ("meet", "join", "ask")
"""What counts for no thread: whether it is recorded depends on the schedule."""


def of_warp(lanes: Lanes, warp: int) -> Lanes:
    """The lanes of a warp among some lanes."""
    threads = lane_sets.indices(lanes)
    return lane_sets.pack(threads[threads // WARP_THREADS == warp])


def as_bits(lanes: Lanes, warp: int) -> int:
    """The lanes of a warp, as bits."""
    if isinstance(lanes, slice):
        bits: int = (1 << lanes.stop - lanes.start) - 1
        return bits << int(lanes.start) - warp * WARP_THREADS
    mask = 0
    for lane in (lanes - warp * WARP_THREADS).tolist():
        mask |= 1 << lane
    return mask


@dataclass
class Block:
    """What is known of the threads of a block.

    Attributes:
        done: how many events each thread has had, `UNTOLD` aside.
        accessed: which threads have accessed shared or global memory since their warp was in step.
        behind: which threads have not waited, since then, where others of their warp have.
        since_met: which warps have done something since they were in step.
    """

    done: NDArray[np.int64]
    accessed: NDArray[np.bool_]
    behind: NDArray[np.bool_]
    since_met: NDArray[np.bool_]

    @classmethod
    def of(cls, warps: int) -> Block:
        """A block of which nothing is known yet."""
        size = warps * WARP_THREADS
        done, none = np.zeros(size, np.int64), np.zeros(size, np.bool_)
        return cls(done, none, none.copy(), np.zeros(warps, np.bool_))

    def speaking_for_others(self, lanes: Lanes) -> int:
        """How often lanes release what other lanes of their warp did before, too."""
        found = int(self.behind[lanes].any())
        for warp in lane_sets.warps(lanes).tolist():
            first = warp * WARP_THREADS
            accessed = self.accessed[first : first + WARP_THREADS]
            if accessed.any():
                others = accessed.copy()
                others[lane_sets.indices(of_warp(lanes, warp)) - first] = False
                found += int(others.any())
        return found


@dataclass
class Recorded:
    """A cluster that runs, or has run.

    Attributes:
        cluster: the cluster.
        events: what happened, in order.
        objects: the barriers, in the order of their numbers.
        blocks: what is known of each block, by its rank.
        homes: the rank of the block of each mbarrier, by its number.
    """

    cluster: Cluster
    events: list[Event] = field(default_factory=list)
    objects: list[Any] = field(default_factory=list)
    blocks: dict[int, Block] = field(default_factory=dict)
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

    def block(self, cta: Cta) -> Block:
        """What is known of the threads of a block."""
        found = self.blocks.get(cta.rank)
        if found is None:
            found = self.blocks[cta.rank] = Block.of(cta.warps)
        return found

    def note(self, cta: Cta, lanes: Lanes, kind: str, **more: Any) -> list[int]:
        """Note an event of each warp of the lanes. Returns the numbers of the events."""
        block = self.block(cta)
        more.setdefault("instruction", cta.instruction)
        if kind not in UNTOLD:
            block.done[lanes] += 1
        numbers = []
        warps = lane_sets.warps(lanes).tolist()
        for warp in warps:
            part = lanes if len(warps) == 1 else of_warp(lanes, warp)
            numbers.append(len(self.events))
            self.events.append(Event((cta.rank, warp), as_bits(part, warp), kind, **more))
            block.since_met[warp] = kind != "meet"
        return numbers

    def skeleton(self) -> Skeleton:
        """The record, divided into parties."""
        phases = [
            each.phase if isinstance(each, MBarrier) else each.generation for each in self.objects
        ]
        return Skeleton.of(self.cluster.number, self._barriers, phases, self.events)
