"""Asynchronous operations: issued, and performed when the schedule says so."""

from __future__ import annotations

from collections import deque

from triton_ext.emulator.errors import EmulationError
from triton_ext.emulator.schedule.faults import located
from triton_ext.emulator.schedule.schedule import Schedule
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import AsyncOperation, Cluster, Cta, Gpu
from triton_ext.emulator.state.lanes import Lanes


class Operations:
    """Those of a launch that are issued, and not done."""

    def __init__(self, machine: Gpu, schedule: Schedule) -> None:
        self._machine, self._schedule = machine, schedule
        self._pending: deque[AsyncOperation] = deque()

    def issue(self, operation: AsyncOperation) -> None:
        """Take an operation over; the eager schedule performs it at once."""
        self._pending.append(operation)
        self._machine.changes += 1
        self._machine.observer.issues(operation)
        if self._schedule.name == "eager":
            self.complete_due()

    def complete_due(self) -> int:
        """Perform those that the schedule has done by now; how many."""
        done = 0
        while self._pending and self._schedule.due() and self.complete_one():
            done += 1
        return done

    def complete_one(self) -> bool:
        """Perform one operation that its queue allows; whether there was one."""
        chosen = self._schedule.next_of(self._pending) if self._pending else None
        if chosen is not None:
            self._perform(chosen)
        return chosen is not None

    def complete_of(self, cta: Cta, lanes: Lanes) -> None:
        """Perform at once what a block's lanes have issued."""
        threads = set(lane_sets.indices(lanes).tolist())
        number = 0
        while number < len(self._pending):
            operation = self._pending[number]
            if operation.cta is cta and threads & set(lane_sets.indices(operation.lanes).tolist()):
                self._perform(number)
            else:
                number += 1

    def finish(self, cluster: Cluster) -> None:
        """Perform all of a cluster's."""
        while any(operation.cta.cluster is cluster for operation in self._pending):
            if not self.complete_one():
                self._schedule.let_go()

    def _perform(self, number: int) -> None:
        operation, observer = self._pending[number], self._machine.observer
        del self._pending[number]
        observer.performs(operation)
        try:
            operation.perform()
        except EmulationError as error:
            raise located(error, operation.instruction, operation.cta, operation.lanes) from None
        self._machine.progress += 1
        self._machine.changes += 1
        observer.completed(operation)
