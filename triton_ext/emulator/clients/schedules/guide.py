"""A schedule that holds some threads and operations back: as a doubt wants it, or a file says.

All else is done at once, as under the eager schedule.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from triton_ext.emulator.clients.schedules.orders import Thread
from triton_ext.emulator.clients.schedules.record import Recorder
from triton_ext.emulator.clients.schedules.recorded import UNTOLD
from triton_ext.emulator.clients.schedules.skeleton import Operation, Skeleton
from triton_ext.emulator.decode.step import Split, Step, Wait
from triton_ext.emulator.errors import LaunchError
from triton_ext.emulator.schedule.schedule import Schedule
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import AsyncOperation, Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.hardware.architecture import WARP_THREADS

_HOLDABLE = (
    "mbarrier.", "bar.", "barrier.", "cp.async", "cp.reduce", "tcgen05.", "wgmma.mma_async",
    "st.async", "red.async",
)  # fmt: skip
"""The instructions before which threads are held."""
VERSION = 2
"""The version of the file's format."""


@dataclass(frozen=True)
class Point:
    """A point of a thread's run, or the work of a unit that the thread issues there.

    Attributes:
        cluster, rank: the number of the thread's cluster, and the rank of its block there.
        warp, lanes: its warp, and the lanes that are to be held, as bits.
        number: how many synchronizing operations the thread has done; `UNTOLD` does not count.
        unit: whether the work of a unit is meant, which the thread issues next.
    """

    cluster: int
    rank: int
    warp: int
    lanes: int
    number: int
    unit: bool = False

    @property
    def thread(self) -> int:
        """The number in the block of the first of the lanes."""
        return self.warp * WARP_THREADS + (self.lanes & -self.lanes).bit_length() - 1

    @classmethod
    def of(cls, skeleton: Skeleton, operation: Operation) -> Point:
        """The point before an operation."""
        unit = operation.party < 0
        own = skeleton.operations[operation.cause] if unit else operation
        party = skeleton.parties[own.party]
        before = party.operations[: own.ordinal]
        number = sum(skeleton.operations[each].event.kind not in UNTOLD for each in before)
        rank, warp = party.warp
        return cls(skeleton.cluster, rank, warp, party.mask, number, unit)


@dataclass(frozen=True)
class Plan:
    """What is held back, and how long.

    Attributes:
        kernel: the kernel's name.
        launch: the number of launches of the program before this one.
        holds: the points that must not be passed yet.
        until: the point that lets them go when it is passed; None: they go when nothing else can.
        steps: the plan in words.
        lines, choices: in place of points, the PTX lines whose instructions go on one by one, and
            the threads that are chosen (`triton_ext.emulator.clients.schedules.orders`).
    """

    kernel: str
    launch: int
    holds: tuple[Point, ...]
    until: Point | None
    steps: tuple[str, ...] = ()
    lines: tuple[int, ...] = ()
    choices: tuple[Thread, ...] = ()

    def as_object(self) -> dict[str, Any]:
        """The plan as an object for JSON."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def parse(cls, given: Any, name: str = "the schedule") -> Plan:
        """Read what `as_object` returns. Raises LaunchError: `given` is something else."""
        try:
            if given["version"] != VERSION:
                raise LaunchError(f"{name}: version {given['version']!r}: must be {VERSION}")
            until = given["until"]
            return cls(
                str(given["kernel"]),
                int(given["launch"]),
                tuple(Point(**each) for each in given["holds"]),
                None if until is None else Point(**until),
                tuple(map(str, given["steps"])),
                tuple(map(int, given["lines"])),
                tuple((int(a), int(b), int(c)) for a, b, c in given["choices"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            rule = "must be what a witness of schedules='all' was written as"
            raise LaunchError(f"{name}: {rule} ({type(error).__name__}: {error})") from None

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read a file. Raises LaunchError: there is none, or it holds something else."""
        try:
            given = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise LaunchError(f"{path}: must be a file of JSON ({error})") from None
        return cls.parse(given, str(path))


class Guided(Schedule):
    """The schedule that follows a plan. Its `recorder` must observe the launch.

    Attributes:
        plan: the plan.
        recorder: counts the operations of the threads.
        holding: whether anything is still held back.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__("eager")
        self.plan, self.recorder, self.holding = plan, Recorder(), True
        self._of_block: dict[tuple[int, int], list[Point]] = {}
        self._units: set[tuple[int, int, int, int]] = set()
        for point in plan.holds:
            if point.unit:
                self._units.add((point.cluster, point.rank, point.thread, point.number))
            else:
                self._of_block.setdefault((point.cluster, point.rank), []).append(point)

    def _done(self, point: Point) -> int:
        recorded = self.recorder.clusters.get(point.cluster)
        block = None if recorded is None else recorded.blocks.get(point.rank)
        return 0 if block is None else int(block.done[point.thread])

    def _holds(self) -> bool:
        """Whether the plan still holds anything back: until the operation `until` is over."""
        until = self.plan.until
        if self.holding and until is not None:
            if until.unit:
                key = until.cluster, until.rank, until.thread, until.number
                self.holding = key not in self.recorder.issued.performed
            else:
                self.holding = self._done(until) <= until.number
        return self.holding

    def held(self, cta: Cta, step: Step, lanes: Lanes) -> Wait | Split | None:
        """The wait of lanes that must not execute an instruction yet; a split if some may."""
        if not step.instruction.opcode.startswith(_HOLDABLE) or not self._holds():
            return None
        points = self._of_block.get((cta.cluster.number, cta.rank), ())
        threads = lane_sets.indices(lanes)
        stopped = np.zeros(len(threads), np.bool_)
        for point in points:
            if self._done(point) >= point.number:
                mine = threads // WARP_THREADS == point.warp
                stopped |= mine & (point.lanes >> threads % WARP_THREADS & 1 == 1)
        if not stopped.any():
            return None
        if not stopped.all():
            return Split([lane_sets.select(lanes, stopped), lane_sets.select(lanes, ~stopped)])
        return Wait(lambda: not self._holds(), lambda: "is held back by the schedule", again=True)

    def next_of(self, pending: Sequence[AsyncOperation]) -> int | None:
        """The first operation that may start: a queue stands still behind one that is held."""
        if not self._units or not self._holds():
            return 0
        blocked: set[object] = set()
        for number, operation in enumerate(pending):
            if operation.queue in blocked:
                continue
            if self._units.isdisjoint(self.recorder.issued.issuers(operation)):
                return number
            if operation.queue is not None:
                blocked.add(operation.queue)
        return None

    def let_go(self) -> bool:
        """Hold nothing any more, as nothing else can go on."""
        held, self.holding = self._holds(), False
        return held
