"""What comes before what in every interleaving that matches arrivals and phases as this run did.

The order is one of real time, not of memory: what a party does comes after the waits that it has
passed, the work of a unit after its issue, the completion of a phase after all that it counts, and
a wait after the completion of its phase. The vector of an operation says how many operations of
each party and how many phases of each barrier are over before it starts, of how many commits of
each tensor core the work is done, and how many have arrived in their own block. A tensor core
works, and its commits arrive in their own block, in the order of issue, as in the emulator.

At a *loose* barrier arrivals of one phase may stand in for those of another. Its phases still say
all that their arrivals do, but not that these have come.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.clients.schedules.skeleton import Operation, Skeleton

Vector = NDArray[np.int64]
COUNTED = ("arrive", "pend", "expect", "complete")
"""The kinds of event that a phase of a barrier counts."""


class Causality:
    """The order of a skeleton's operations.

    Args:
        skeleton: what a cluster did.
        loose: the numbers of the loose barriers, at which only commits arrive.

    Attributes:
        skeleton, loose: the arguments.
        before: a vector for each operation, by its number: how many operations of each party are
            over when it starts, and then how many phases of each barrier are complete.
        completed: the same vector at the completion of a phase, by barrier and phase.
        counted: the operations that a phase counted, by barrier and phase.
        uses: all operations at a barrier, by its number.
    """

    def __init__(self, skeleton: Skeleton, loose: Collection[int] = ()) -> None:
        self.skeleton, self.loose = skeleton, frozenset(loose)
        self._parties = len(skeleton.parties)
        units = dict.fromkeys(each.event.unit for each in skeleton.operations)
        first = self._parties + len(skeleton.barriers)
        self._done = {unit: first + number for number, unit in enumerate(units)}
        self._came = {unit: first + len(units) + number for number, unit in enumerate(units)}
        self._commits: dict[tuple[object, ...], Vector] = {}
        self._turns: dict[int, int] = {}  # by what issued a commit: among those of its tensor core
        size = first + 2 * len(units)
        self._now: list[Vector] = [np.zeros(size, np.int64) for _ in skeleton.parties]
        self.before: list[Vector] = []
        self.completed: dict[tuple[int, int], Vector] = {}
        self.counted: defaultdict[tuple[int, int], list[Operation]] = defaultdict(list)
        self.uses: defaultdict[int, list[Operation]] = defaultdict(list)
        self._of_warp: defaultdict[object, list[int]] = defaultdict(list)
        for number, party in enumerate(skeleton.parties):
            self._of_warp[party.warp].append(number)
        self._after: dict[int, Vector] = {}  # of those that issue
        for operation in skeleton.operations:
            self._follow(operation)

    def _follow(self, operation: Operation) -> None:
        event = operation.event
        if event.barrier >= 0:
            self.uses[event.barrier].append(operation)
        if operation.party < 0:
            vector = self._in_turn(operation)
            self.before.append(vector)
            self._count(operation, vector)
            return
        vector = self._now[operation.party]
        self.before.append(vector.copy())
        if event.kind == "wait":
            _join(vector, self._complete(event.barrier, event.phase))
        elif event.kind == "meet":
            for other in self._of_warp[event.warp]:
                _join(vector, self._now[other])
        elif event.kind == "join":
            for number in event.joins:
                for issue in self.skeleton.of_event(number):
                    _join(vector, self._after[issue.number])
        vector[operation.party] = operation.ordinal + 1
        if event.kind == "issue":
            self._after[operation.number] = vector.copy()
        self._count(operation, vector)

    def _in_turn(self, operation: Operation) -> Vector:
        """The vector at which the work of a unit is done: after its issue, and after what its queue
        did before.
        """
        issued = self._after[operation.cause]
        unit = self.skeleton.operations[operation.cause].event.unit
        if not unit:
            return issued
        if operation.cause not in self._turns:
            done = issued.copy()
            _join(done, self._commits.get(unit))
            self._turns[operation.cause] = int(done[self._done[unit]])
            done[self._done[unit]] += 1
            self._commits[unit] = done
        vector = self._commits[unit].copy()
        if not operation.event.far:
            vector[self._came[unit]] = self._turns[operation.cause]
        return vector

    def _count(self, operation: Operation, vector: Vector) -> None:
        event = operation.event
        if event.kind not in COUNTED:
            return
        key = event.barrier, event.phase
        self.counted[key].append(operation)
        if self.commits(operation) and not event.far:
            unit = self.skeleton.operations[operation.cause].event.unit
            if event.barrier in self.loose:
                vector = self._commits[unit]  # not that the earlier ones have arrived, either
            else:
                vector = vector.copy()
                vector[self._came[unit]] = self._turns[operation.cause] + 1
        found = self.completed.get(key)
        if found is None:
            self.completed[key] = vector.copy()
        else:
            np.maximum(found, vector, out=found)

    def _complete(self, barrier: int, phase: int) -> Vector | None:
        """The vector at which a phase completed; None for the phase before the first."""
        found = self.completed.get((barrier, phase))
        if found is not None:
            entry = self._parties + barrier
            if found[entry] <= phase:
                earlier = self._complete(barrier, phase - 1)
                _join(found, earlier)
                found[entry] = phase + 1
        return found

    def phases(self, operation: Operation, barrier: int) -> int:
        """How many phases of a barrier are complete, for sure, when an operation starts."""
        return int(self.before[operation.number][self._parties + barrier])

    def knows(self, vector: Vector, operation: Operation) -> bool:
        """Whether a party's operation is over at a vector."""
        return bool(vector[operation.party] > operation.ordinal)

    def precedes(self, first: Operation, second: Operation) -> bool:
        """Whether one operation is over when another one starts. Of units' operations this is known
        only of commits that arrive in their own block.
        """
        vector = self.before[second.number]
        if first.party >= 0:
            return self.knows(vector, first)
        turn = self._turns.get(first.cause)
        unit = self.skeleton.operations[first.cause].event.unit
        return turn is not None and not first.event.far and int(vector[self._came[unit]]) > turn

    def commits(self, operation: Operation) -> bool:
        """Whether it is the arrival of a tensor core's commit."""
        return operation.party < 0 and operation.cause in self._turns

    def says_no_less(self, operation: Operation, barrier: int, phase: int) -> bool:
        """Whether a later arrival knows all that the completion of a phase tells."""
        said = self.completion(barrier, phase)
        if said is None or not operation.event.informed:
            return False
        known = self.before[operation.number] >= said
        known[self._parties + barrier] = True
        return bool(known.all())

    def completion(self, barrier: int, phase: int) -> Vector | None:
        """The vector at which a phase completed; None if it did not complete in this run."""
        done = 0 <= phase < self.skeleton.phases[barrier]
        return self._complete(barrier, phase) if done else None


def _join(vector: Vector, other: Vector | None) -> None:
    if other is not None:
        np.maximum(vector, other, out=vector)
