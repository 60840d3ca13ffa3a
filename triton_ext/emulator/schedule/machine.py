"""The machine: clusters of blocks, asynchronous operations, and the order in which all run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from triton_ext.emulator.decode.garbage import without_values
from triton_ext.emulator.decode.program import Program
from triton_ext.emulator.schedule.limits import Limits, limit_reached
from triton_ext.emulator.schedule.liveness import QUANTUM, Liveness
from triton_ext.emulator.schedule.observers import SILENT, Observer
from triton_ext.emulator.schedule.operations import Operations
from triton_ext.emulator.schedule.residents import Residents
from triton_ext.emulator.schedule.schedule import Schedule
from triton_ext.emulator.schedule.standing import told
from triton_ext.emulator.state.block import AsyncOperation, Cluster, Cta, Gpu, Launch, Options
from triton_ext.emulator.state.clocks import Foreign, merged
from triton_ext.emulator.units.global_order import GlobalOrder, fits
from triton_ext.emulator.units.mbarriers import check_complete, check_others
from triton_ext.emulator.units.tensor_core import check_freed
from triton_ext.emulator.units.unawaited import check_arrived, check_awaited

SHORT = 64
"""Instructions that a block runs at most in a turn, once there were futile polls."""
CHECKS_AT_EXIT = (check_freed, check_complete, check_awaited, check_arrived, check_others)
"""Called with each block that has ended: they raise what is wrong with it."""


class Machine(Gpu):
    """Runs a launch.

    Args:
        program: the kernel.
        launch: what it is launched with.
        schedule: the order in which all runs; by default, the eager one.
        observer: told of everything that happens, or None.
        limits: how long it may take.
        options: what else is asked of the run.

    Attributes:
        quantum: instructions that a block runs at most before another one gets its turn.
        verdict: what is known of all schedules, if that was asked for.
        learned: what its clusters that are done had seen of those of other launches.
        liveness: whether it still gets anywhere.
        operations: those that are issued, and not done.
        residents: the clusters that wait, and that run.
    """

    observer: Observer

    def __init__(
        self,
        program: Program,
        launch: Launch,
        schedule: Schedule | None = None,
        observer: Observer | None = None,
        limits: Limits | None = None,
        options: Options | None = None,
    ) -> None:
        fenced = program.of_cuda or any(
            step.instruction.opcode.startswith("tcgen05.fence") for step in program.steps
        )
        super().__init__(launch, program.target, observer or SILENT, fenced, options or Options())
        self.program, self.schedule = program, schedule or Schedule()
        self.limits = limits or Limits()
        self.quantum = QUANTUM
        self.verdict: Any = None
        self.learned: Foreign = {}
        self.begin()
        self._deadline = self.limits.deadline()

    def begin(self) -> None:
        """Know nothing of what has run."""
        self.reset(len(self.program.steps))
        self.liveness = Liveness()
        self.operations = Operations(self, self.schedule)
        self.residents = Residents(self, self.schedule, self.operations)
        if self.launch.checks.races and fits(self.launch):
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
                    raise self.residents.deadlock()

    def rounds(self, numbers: Sequence[int] | None = None) -> Iterator[bool]:
        """As `run`, step by step: before each turn of its blocks it says whether all of them wait
        for what nobody here will do.
        """
        self.observer = self.observer.begins(self)  # it may choose clusters
        residents = self.residents
        residents.prepare(self.program, self.options.chosen if numbers is None else numbers)
        stuck = False
        while residents.waiting or residents.running:
            yield stuck
            residents.fill(self.program)
            done = self._turn()
            if self.limits.over(self.steps, self._deadline) and residents.unfinished:
                steps, now = self.program.steps, told(residents.standing())
                raise limit_reached(self.limits, steps, self.counts, self.steps, now)
            for each in [each for each in residents.running if each.finished]:
                self._finish(each.cluster)
                residents.running.remove(each)
                done += 1
            stuck = not self._goes_on(done)
        self.observer.ends(self)

    def _goes_on(self, done: int) -> bool:
        """Whether anything goes on after a turn. If it does not seem so, what threads may wait for
        is done: another cluster starts, an operation is performed, a wait gives up.

        Args:
            done: how much was done in the turn.
        """
        live, residents, operations = self.liveness, self.residents, self.operations
        blocks = residents.blocks
        if live.polling:
            self.quantum = min(self.quantum, SHORT)
            if residents.start_another(self.program):
                return True
            if not self.options.together:
                live.look(self.changes, residents.states())
        if live.advances(self.progress, self.steps):
            done += 1  # what the last turn completed may have made others ready
        elif all(block.endless for block in blocks):
            done = 0
        if live.livelocked:
            done = 0
        if live.only_polling and operations.complete_one():
            live.futile_polls = 0
            return True
        if done and not live.stale(self.steps):
            return True
        return (
            operations.complete_one()
            or self.schedule.let_go()
            or (not done and self._time_out())
            or residents.start_another(self.program)
            or any(block.hurry() for block in blocks)
            or (done > 0 and not live.hung(self.steps))
        )

    def without_values(self) -> None:
        """Compute no products, and nothing of them, from the start: see `garbage`."""
        self.options.values, self.program = False, without_values(self.program)

    def polled(self, cta: Cta, warp: int, address: int, value: bytes) -> None:
        self.liveness.polled((cta.index, warp, address), value)
        cta.under_way.polled[warp] = (address, value)

    def take_cluster(self, asking: Cluster) -> int | None:
        return self.residents.take(asking)

    def issue(self, operation: AsyncOperation) -> None:
        self.operations.issue(operation)

    def _turn(self) -> int:
        done = 0
        for block in self.residents.blocks:
            if not block.cta.finished:
                left = self.limits.max_steps - self.steps
                quantum = self.schedule.quantum() // (8 if self.options.together else 1)
                done += block.run(min(quantum, self.quantum, left))
            done += self.operations.complete_due()
        return done

    def _finish(self, cluster: Cluster) -> None:
        self.operations.finish(cluster)
        for cta in cluster.ctas:
            for check in CHECKS_AT_EXIT:
                check(cta)
        self.changes += 1
        if self.limits.timeout is None:
            self._deadline = self.limits.deadline()
        if self.launch.history is not None:
            self.learned = merged(self.learned, cluster.clocks.peers.learned())
        for _ in cluster.numbers:
            self.options.on_cluster()

    def _time_out(self) -> bool:
        """End the waits that may give up; False if none may, or that was tried to no avail."""
        if not self.liveness.may_time_out(self.progress):
            return False
        ended = [block.time_out() for block in self.residents.blocks]  # of each, not of one
        return any(ended)
