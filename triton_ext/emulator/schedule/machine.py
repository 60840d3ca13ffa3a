"""The machine: clusters of blocks, asynchronous operations, and the order in which all run."""

from __future__ import annotations

import math
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from triton_ext.emulator.decode.garbage import without_values
from triton_ext.emulator.decode.program import Program
from triton_ext.emulator.decode.step import Split, Step, Wait
from triton_ext.emulator.errors import (
    Deadlock,
    EmulationError,
    LaunchError,
    LimitReached,
    SynchronizationFault,
    UninitializedRead,
)
from triton_ext.emulator.schedule.fibers import MANY_JUMPS, Fiber, Fibers, told
from triton_ext.emulator.schedule.liveness import QUANTUM, Liveness
from triton_ext.emulator.schedule.observers import Observer
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import AsyncOperation, Cluster, Cta, Launch
from triton_ext.emulator.state.clocks import Foreign, merged
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.leniencies import Taken
from triton_ext.emulator.state.lockstep import Lockstep
from triton_ext.emulator.state.tensor_map_memory import MadeTensorMap
from triton_ext.emulator.units.global_order import GlobalOrder
from triton_ext.emulator.units.mbarriers import causes, check_complete, check_others
from triton_ext.emulator.units.tensor_core import check_freed
from triton_ext.emulator.units.unawaited import check_awaited
from triton_ext.hardware.architecture import Target

SHOWN_PLACES = 8
"""How many lines of each list the error says that a limit is reached."""
MAX_STEPS = 100_000_000
"""The instructions of a launch, by default."""
PATIENCE = 600.0
"""Seconds without the end of a cluster after which a launch ends by default: a large grid may take
hours, one block of it takes seconds. How long an instruction takes depends on what it does: a loop
that stores needs 40 minutes for `MAX_STEPS`."""
AHEAD = 0.25
"""How often the random schedule lets others than lanes in a branch go first."""
SHORT = 64
"""Instructions that a block runs at most in a turn, once there were futile polls."""
CHECKS_AT_EXIT = (check_freed, check_complete, check_awaited, check_others)
"""Called with each block that has ended: they raise what is wrong with it."""


class Schedule:
    """Which fiber runs, and when asynchronous operations are done.

    Args:
        name: "eager": at once; "lazy": when nothing else can run; "random": at any moment.
        seed: the random schedule's.
    """

    def __init__(self, name: str = "eager", seed: int = 0) -> None:
        if not isinstance(name, str) or name not in ("eager", "lazy", "random"):
            raise LaunchError(f"schedule {name!r}: must be 'eager', 'lazy' or 'random'")
        if not isinstance(seed, (int, np.integer)):
            raise LaunchError(f"seed = {seed!r}: must be an integer")
        self.name, self.random = name, random.Random(int(seed))

    @property
    def clusters(self) -> int:
        """How many run side by side before one of them waits: what they do in turns is seen."""
        return 4 if self.name == "random" else 1

    def choose(self, ready: Sequence[Fiber], late: Sequence[Fiber] = ()) -> Fiber:
        """The fiber that is furthest behind, so that it can meet the others; or any.

        One that may wait in a loop for what others do lets them go first.

        Args:
            late: those of lanes in a branch on which their warps parted. They go first: the lanes
                of a warp take turns, and other warps do not get far meanwhile.
        """
        late = [each for each in late if each.backward_jumps < MANY_JUMPS]
        if late and (self.name != "random" or self.random.random() >= AHEAD):
            ready = late
        if self.name == "random" and len(ready) > 1:
            return self.random.choice(ready)
        return min(ready, key=lambda fiber: (fiber.backward_jumps // MANY_JUMPS, fiber.pc))

    def due(self) -> bool:
        """Whether an operation that could be done now is done."""
        return self.name == "eager" or (self.name == "random" and self.random.random() < 0.3)

    meets: bool = True
    """Whether lanes of a warp that part at a branch meet at its end, as ptxas has it."""
    held: Callable[[Cta, Step, Lanes], Wait | Split | None] | None = None
    """Says whether lanes must not execute an instruction yet; None: they never must not."""

    def next_of(self, pending: Sequence[AsyncOperation]) -> int | None:
        """Which of the operations is done next; None: none of them, yet."""
        if self.name != "random":
            return 0
        first: dict[object, int] = {}
        for number, operation in enumerate(pending):
            first.setdefault(operation.queue or number, number)
        return self.random.choice(list(first.values()))

    def let_go(self) -> bool:
        """Nothing else can go on: end what holds lanes or operations back, if anything does."""
        return False

    def quantum(self) -> int:
        return self.random.randrange(1, 64) if self.name == "random" else QUANTUM


@dataclass(frozen=True)
class Limits:
    """How long a launch may take.

    Args:
        max_steps: instructions, each for all threads of a block that are at it together; on each
            core, if the blocks run on several.
        timeout: seconds; None: `PATIENCE` from the end of one cluster to that of the next.

    Raises:
        LaunchError: not a positive number.
    """

    max_steps: int = MAX_STEPS
    timeout: float | None = None

    def __post_init__(self) -> None:
        for name, value, kinds in (
            ("max_steps", self.max_steps, int),
            ("timeout", self.timeout, (int, float, type(None))),
        ):
            good = isinstance(value, kinds) and not isinstance(value, bool)
            if not good or (value is not None and not value > 0):
                raise LaunchError(f"{name} = {value!r}: must be a positive number")


@dataclass
class _Resident:
    """A cluster that has started."""

    cluster: Cluster
    blocks: list[Fibers]

    @property
    def finished(self) -> bool:
        return all(cta.finished for cta in self.cluster.ctas)


@dataclass
class Machine:
    """Runs a launch.

    Attributes:
        program: the kernel.
        launch: what it is launched with.
        schedule: the order in which all runs.
        observer: told of everything that happens, or None.
        limits: how long it may take.
        steps, progress, multiprocessors, counts, values, tensor_maps, taken, fenced, failing,
            passing, global_order: see `triton_ext.emulator.state.block.Gpu`.
        pending: asynchronous operations that are issued, and not done.
        on_cluster: called when a cluster is done.
        changes: of global memory, and of what is under way, that another GPU could wait for.
        quantum: instructions that a block runs at most before another one gets its turn.
        verdict: what is known of all schedules, if that was asked for.
        learned: what its clusters that are done had seen of those of other launches.
        liveness: whether it still gets anywhere.
        chosen: the clusters that run, by their numbers; None for all.
        lockstep: how many blocks run as one: see `triton_ext.emulator.schedule.batches`.
        together: as many clusters run side by side as there is room for, as on a GPU; else the next
            one starts when the first has to wait.
    """

    program: Program
    launch: Launch
    schedule: Schedule = field(default_factory=Schedule)
    observer: Observer | None = None
    limits: Limits = field(default_factory=Limits)
    steps: int = 0
    progress: int = 0
    tensor_maps: dict[int, MadeTensorMap] = field(default_factory=dict)
    taken: dict[str, Taken] = field(default_factory=dict)
    pending: deque[AsyncOperation] = field(default_factory=deque)
    on_cluster: Callable[[], None] = lambda: None
    values: bool = True
    changes: int = 0
    quantum: int = QUANTUM
    lockstep: int = 1
    together: bool = False
    chosen: Sequence[int] | None = None
    target: Target = field(init=False)
    verdict: Any = None
    failing: frozenset[int] = frozenset()
    passing: frozenset[int] = frozenset()
    multiprocessors: int = field(init=False)
    fenced: bool = field(init=False)
    counts: list[int] = field(init=False)
    global_order: GlobalOrder | None = field(default=None, init=False)
    learned: Foreign = field(default_factory=dict, init=False)
    liveness: Liveness = field(default_factory=Liveness, init=False)
    _waiting: Sequence[int] = field(default=range(0), init=False)
    _shares: bool = field(default=False, init=False)
    _resident: list[_Resident] = field(default_factory=list, init=False)
    _beside: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        self.target = self.program.target
        self.multiprocessors = self.target.capability.multiprocessors
        self.fenced = self.program.of_cuda or any(
            step.instruction.opcode.startswith("tcgen05.fence") for step in self.program.steps
        )
        self.begin()
        self._room = max(1, self.multiprocessors // math.prod(self.launch.cluster))
        timeout = self.limits.timeout
        self._deadline = time.monotonic() + (PATIENCE if timeout is None else timeout)

    def begin(self) -> None:
        """Know nothing of what has run."""
        self.steps, self.taken, self._resident = 0, {}, []
        self.counts, self.liveness = [0] * len(self.program.steps), Liveness()
        if self.launch.checks.races and GlobalOrder.fits(self.launch):
            program = [step.instruction for step in self.program.steps]
            self.global_order = GlobalOrder(
                self.launch, program, replicates=not self.program.of_cuda
            )

    def run(self, numbers: Sequence[int] | None = None) -> None:
        """Run clusters, given by their numbers in the grid; by default all.

        One cluster runs at a time as long as it can, under the random schedule up to four; the next
        one starts when it is done, or when it waits for what only another one can do.

        Raises:
            EmulationError: what the kernel does wrong.
        """
        with np.errstate(all="ignore"):
            for stuck in self.rounds(numbers):
                if stuck:
                    raise self.deadlock()

    def rounds(self, numbers: Sequence[int] | None = None) -> Iterator[bool]:
        """As `run`, step by step: before each turn of its blocks it says whether all of them wait
        for what nobody here will do.
        """
        if self.observer is not None:
            self.observer = self.observer.begins(self)  # it may choose clusters
        self._prepare(self.chosen if numbers is None else numbers)
        stuck = False
        while self._waiting or self._resident:
            yield stuck
            while len(self._waiting) > self._owed() and len(self._resident) < self._beside:
                self._start()
            done = self._turn()
            self._check_limits()
            done += self._retire()
            stuck = not self._goes_on(done)
        if self.observer is not None:
            self.observer.ends(self)

    def _prepare(self, numbers: Sequence[int] | None) -> None:
        self._waiting = range(self.launch.clusters) if numbers is None else numbers
        self._resident = []
        self._shares = self.schedule.clusters > 1 and any(
            step.instruction.opcode.startswith("clusterlaunchcontrol.try_cancel")
            for step in self.program.steps
        )
        self._beside = min(self._room, self.schedule.clusters)
        if self._shares:
            self._beside = max(1, min(self._beside, len(self._waiting) // 2))
        elif self.schedule.name == "random" and self._counts():
            self._beside = self.schedule.random.randint(1, self._beside)
        if self.together:
            self._beside = self._room

    def _goes_on(self, done: int) -> bool:
        """Whether anything goes on after a turn. If it does not seem so, what threads may wait for
        is done: another cluster starts, an operation is performed, a wait gives up.

        Args:
            done: how much was done in the turn.
        """
        live = self.liveness
        if live.polling:
            self.quantum = min(self.quantum, SHORT)
            if self._start_another():
                return True
            if not self.together:
                live.look(self.changes, self.states())
        if live.advances(self.progress, self.steps):
            done += 1  # what the last turn completed may have made others ready
        elif all(block.endless for block in self._blocks):
            done = 0
        if live.livelocked:
            done = 0
        if live.only_polling and self._complete_one():
            live.futile_polls = 0
            return True
        if done and not live.stale(self.steps):
            return True
        return (
            self._complete_one()
            or self.schedule.let_go()
            or (not done and self._time_out())
            or self._start_another()
            or any(block.hurry() for block in self._blocks)
            or (done > 0 and not live.hung(self.steps))
        )

    def _counts(self) -> bool:
        """Whether blocks may take their tiles by an atomic counter: the fewer run side by side, the
        more tiles each of them gets."""
        opcodes = (step.instruction.opcode.split(".") for step in self.program.steps)
        return any(
            each[0] == "atom" and {"add", "inc"} & {*each} and "shared" not in "".join(each)
            for each in opcodes
        )

    def without_values(self) -> None:
        """Compute no products, and nothing of them, from the start: see `garbage`."""
        self.values, self.program = False, without_values(self.program)

    def polled(self, cta: Cta, warp: int, address: int, value: bytes) -> None:
        """A warp has asked an address in global memory that others may write, or change."""
        self.liveness.polled((cta.index, warp, address), value)
        cta.under_way.polled[warp] = (address, value)

    def states(self) -> set[tuple[int, ...]]:
        """A number for the state of each warp of the blocks that run, and of their memory."""
        return {
            (number, *state)
            for number, block in enumerate(self._blocks)
            for state in block.states()
        }

    @property
    def _blocks(self) -> list[Fibers]:
        """The blocks that have started, and whose clusters are not done."""
        return [block for each in self._resident for block in each.blocks]

    @property
    def running(self) -> list[int]:
        """The numbers of the clusters that have started, and not ended."""
        return [number for each in self._resident for number in each.cluster.numbers.tolist()]

    def take_cluster(self, asking: Cluster | None = None) -> int | None:
        """Take the next cluster that has not started off the grid: its number, if there is one.

        Args:
            asking: the one that takes its place. Under the random schedule it gets no second one
                while that would leave another one that runs without any, so that what a block does
                with its second tile is seen of as many as can have one.
        """
        if not self._waiting:
            return None
        if self._shares and asking is not None:
            had = asking.taken > 0
            if had and len(self._waiting) <= self._owed():
                return None
            asking.taken += 1
        number, self._waiting = self._waiting[0], self._waiting[1:]
        return number

    def _owed(self) -> int:
        """How many clusters that run have still to be given another one's place."""
        if not self._shares:
            return 0
        return sum(not each.finished and not each.cluster.taken for each in self._resident)

    def _start_another(self) -> bool:
        """Start a cluster more, which could do what others wait for; whether there was one."""
        if not self._waiting or len(self._resident) >= self._room:
            return False
        self._start()
        return True

    def _start(self) -> None:
        taken = [self.take_cluster() for _ in range(min(self.lockstep, len(self._waiting)))]
        numbers = [number for number in taken if number is not None]
        self.changes += 1
        cluster = Lockstep(self, numbers) if len(numbers) > 1 else Cluster(self, numbers[0])
        schedule, observer = self.schedule, self.observer
        meets = schedule.meets and not self.launch.checks.strict
        blocks = [
            Fibers(
                cta, self.program, schedule.choose, self._complete, observer, schedule.held, meets
            )
            for cta in cluster.ctas
        ]
        self._resident.append(_Resident(cluster, blocks))

    def _turn(self) -> int:
        done = 0
        for block in self._blocks:
            if not block.cta.finished:
                left = self.limits.max_steps - self.steps
                quantum = self.schedule.quantum() // (8 if self.together else 1)
                done += block.run(min(quantum, self.quantum, left))
            done += self._complete_due()
        return done

    def _retire(self) -> int:
        """End the clusters that are done; how many."""
        finished = [each for each in self._resident if each.finished]
        for each in finished:
            self._finish(each.cluster)
            self._resident.remove(each)
        return len(finished)

    def _finish(self, cluster: Cluster) -> None:
        while any(operation.cta.cluster is cluster for operation in self.pending):
            if not self._complete_one():
                self.schedule.let_go()
        for cta in cluster.ctas:
            for check in CHECKS_AT_EXIT:
                check(cta)
        self.changes += 1
        if self.limits.timeout is None:
            self._deadline = time.monotonic() + PATIENCE
        if self.launch.history is not None:
            self.learned = merged(self.learned, cluster.clocks.learned())
        for _ in cluster.numbers:
            self.on_cluster()

    # -------------------------------------------------------- asynchronous work

    def issue(self, operation: AsyncOperation) -> None:
        """Take an operation over; the eager schedule performs it at once."""
        self.pending.append(operation)
        self.changes += 1
        if self.observer is not None:
            self.observer.issues(operation)
        if self.schedule.name == "eager":
            self._complete_due()

    def _complete_due(self) -> int:
        done = 0
        while self.pending and self.schedule.due() and self._complete_one():
            done += 1
        return done

    def _complete_one(self) -> bool:
        """Perform one operation that its queue allows; whether there was one."""
        if not self.pending:
            return False
        chosen = self.schedule.next_of(self.pending)
        if chosen is None:
            return False
        self._perform(chosen)
        return True

    def _complete(self, cta: Cta, lanes: Lanes) -> None:
        """Perform at once what a block's lanes have issued."""
        threads = set(lane_sets.indices(lanes).tolist())
        number = 0
        while number < len(self.pending):
            operation = self.pending[number]
            if operation.cta is cta and threads & set(lane_sets.indices(operation.lanes).tolist()):
                self._perform(number)
            else:
                number += 1

    def _perform(self, number: int) -> None:
        operation = self.pending[number]
        del self.pending[number]
        if self.observer is not None:
            self.observer.performs(operation)
        try:
            operation.perform()
        except EmulationError as error:
            error.instruction = error.instruction or operation.instruction
            unwritten = isinstance(error, UninitializedRead)
            if (unwritten or isinstance(error, SynchronizationFault)) and not error.where:
                error.message += causes(operation.cta, operation.lanes, unwritten=unwritten)
            if isinstance(error, UninitializedRead) and error.role:
                error.use = error.use or operation.instruction
                error.used_where = error.used_where or operation.cta.describe(operation.lanes)
            error.where = error.where or operation.cta.describe(operation.lanes)
            raise
        self.progress += 1
        self.changes += 1
        if self.observer is not None:
            self.observer.completed(operation)

    # ------------------------------------------------------------------- waits

    def _time_out(self) -> bool:
        """End the waits that may give up; False if none may, or that was tried to no avail."""
        if not self.liveness.may_time_out(self.progress):
            return False
        ended = [block.time_out() for block in self._blocks]  # of each block, not of one
        return any(ended)

    def deadlock(self) -> EmulationError:
        """What to raise when no thread can go on: who waits for what."""
        blocks = self._blocks
        stuck = [found for block in blocks for found in block.stuck()]
        # Who stands at bar.sync mostly waits for those that wait for an mbarrier; and these for
        # those that wait at one at which nobody has come.
        stuck.sort(
            key=lambda found: (
                not found.instruction.opcode.startswith("mbarrier"),
                "nobody has come" not in found.why,
            )
        )
        spinning = any(block.runnable for block in blocks)
        what = "no memory or barrier changes any more" if spinning else "no thread can go on"
        first = stuck[0].instruction if stuck else None
        return Deadlock(f"{what}:\n  " + "\n  ".join(told(stuck)), first)

    def _check_limits(self) -> None:
        over = self.steps >= self.limits.max_steps or time.monotonic() > self._deadline
        if over and (self._waiting or any(not each.finished for each in self._resident)):
            raise self._limit_reached()

    def _limit_reached(self) -> LimitReached:
        limits, counts = self.limits, self.counts
        what = f"timeout = {limits.timeout} s is over"
        if limits.timeout is None:
            what = f"no block has ended for {PATIENCE:g} s (timeout= allows a launch more)"
        if self.steps >= limits.max_steps:
            what = f"max_steps = {limits.max_steps} instructions are done"
        places: Counter[str] = Counter()
        for step, count in zip(self.program.steps, counts, strict=True):
            at = step.instruction
            places[str(at.source) if at.source else f"PTX line {at.line}: {at}"] += count
        total = max(1, sum(counts))
        lines = [
            f"{count / total:4.0%}  {place} ({count} instructions)"
            for place, count in places.most_common(SHOWN_PLACES)
        ]
        standing = told([found for block in self._blocks for found in block.standing(block.fibers)])
        more = len(standing) - SHOWN_PLACES
        tail = [f"and {more} more"] if more > 0 else []
        text = f"{what}, and the kernel has not ended; the time went to:\n  " + "\n  ".join(lines)
        text += "\nnow:\n  " + "\n  ".join(standing[:SHOWN_PLACES] + tail)
        hottest = self.program.steps[counts.index(max(counts))].instruction
        return LimitReached(text, hottest)
