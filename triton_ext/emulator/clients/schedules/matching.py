"""Is the matching of arrivals and phases the only one, but for arrivals that say the same?

It is, if no `Doubt` is found: benchmarks/notes/schedules.md has the theorem, and why. Each doubt
says how another interleaving could come about: who is to be held back before what, and until when.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from triton_ext.emulator.clients.schedules.causality import COUNTED, Causality, Vector
from triton_ext.emulator.clients.schedules.skeleton import Operation, Skeleton

ARRIVES, INSTEAD, EARLY, LATE, BYTES, GONE, ORDER = (
    "an arrival may count for an earlier phase",
    "an arrival may come after one of the next phase",
    "a wait may pass one lap early",
    "a wait may miss its phase",
    "a phase may complete before its bytes are expected",
    "an mbarrier may be invalidated while it is used",
    "two warps hand work to one unit, and nothing orders the two",
)
"""What can be in doubt."""


@dataclass(frozen=True, eq=False)
class Doubt:
    """How an interleaving could match otherwise.

    Attributes:
        kind: one of the kinds above.
        operation: the one that would happen too early, or too late.
        reached: for one that is too early, the vector of `Causality` at which it would happen;
            None: it is too late, and is held back itself.
        until: the operation after which nothing is held back any more; None: it is held back until
            nothing else can go on.
        beside: the other operations that are held back.
    """

    kind: str
    operation: Operation
    reached: Vector | None
    until: Operation | None
    beside: tuple[Operation, ...] = ()

    def holds(self, order: Causality) -> list[Operation]:
        """The operations that must not start if the doubt is to come true, and their successors.

        Whole warps are held: lanes of one warp may legally run far ahead of others, but no GPU was
        seen to let them where their code is the same.
        """
        if self.reached is None:
            return [*order.skeleton.together(self.operation), *self.beside]
        skeleton, reached, found = order.skeleton, self.reached, []
        own = skeleton.parties[skeleton.issuer(self.operation).party].warp
        for number, party in enumerate(skeleton.parties):
            done = int(reached[number])
            if party.warp != own and done < len(party.operations):
                found.append(skeleton.operations[party.operations[done]])
        first = len(skeleton.parties)
        phases = reached[first : first + len(skeleton.barriers)]
        for operation in skeleton.operations:
            if operation.party < 0 and operation is not self.operation:
                cause, event = skeleton.issuer(operation), operation.event
                issued = reached[cause.party] > cause.ordinal or event.warp == own
                if issued and phases[event.barrier] <= event.phase:
                    found.append(operation)
        return found


def judged(skeleton: Skeleton) -> tuple[Causality, list[Doubt]]:
    """The order of a skeleton, and all doubts about its matching.

    A barrier at which only commits arrive is made loose if one of them may count for an earlier
    phase: that is no doubt if the commit tells all that the earlier ones do.
    """
    loose: set[int] = set()
    while True:
        order = Causality(skeleton, loose)
        found = list(doubts(order))
        more = {
            each.operation.event.barrier
            for each in found
            if each.kind == ARRIVES and _may_be_loose(order, each.operation.event.barrier)
        }
        if more <= loose:
            return order, found
        loose |= more


def _may_be_loose(order: Causality, barrier: int) -> bool:
    """Whether only commits arrive at a barrier, each in a phase that has completed."""
    counted = [each for each in order.uses[barrier] if each.event.kind in COUNTED]
    return all(
        order.commits(each) and each.event.phase < order.skeleton.phases[barrier]
        for each in counted
    )


def doubts(order: Causality) -> Iterator[Doubt]:
    """All doubts about the matching of a skeleton."""
    last: dict[tuple[object, ...], Operation] = {}
    for operation in order.skeleton.operations:
        kind = operation.event.kind
        if kind in COUNTED:
            yield from _early_arrival(order, operation)
        if kind in ("expect", "pend") and not _before_an_arrival(order, operation):
            same = order.counted[operation.event.barrier, operation.event.phase]
            brought = tuple(each for each in same if each.party < 0)
            yield Doubt(BYTES, operation, None, None, brought)
            yield Doubt(BYTES, operation, None, None)
        elif kind == "wait":
            yield from _wait(order, operation)
        elif kind == "ask":
            yield from _asked(order, operation)
        elif kind == "inval":
            yield from _gone(order, operation)
        elif kind == "issue" and operation.event.unit:
            before = last.get(operation.event.unit, operation)
            if before.event is not operation.event and not order.precedes(before, operation):
                yield Doubt(ORDER, before, None, operation)
            last[operation.event.unit] = operation


def _early_arrival(order: Causality, operation: Operation) -> Iterator[Doubt]:
    """An arrival must know that the phase before its own is complete, or all that this one counts;
    at a loose barrier, all that its completion tells. Else it may count for that phase.
    """
    barrier, phase = operation.event.barrier, operation.event.phase
    if order.phases(operation, barrier) >= phase or all(
        order.precedes(other, operation) for other in order.counted[barrier, phase - 1]
    ):
        return
    if barrier not in order.loose or not order.says_no_less(operation, barrier, phase - 1):
        yield Doubt(ARRIVES, operation, order.before[operation.number], operation)
        for other in order.counted[barrier, phase - 1]:
            if other.event.warp != operation.event.warp and not order.precedes(other, operation):
                yield Doubt(INSTEAD, other, None, operation)


def _before_an_arrival(order: Causality, operation: Operation) -> bool:
    """Whether an arrival of the same phase comes after an operation, so that the phase cannot be
    complete before. That of ``cp.async.mbarrier.arrive`` is none: it only makes up for the count
    that it has added itself.
    """
    event = operation.event
    return any(
        other.event.kind == "arrive"
        and (event.kind == "expect" or other.party >= 0)
        and order.precedes(operation, other)
        for other in order.counted[event.barrier, event.phase]
    )


def _wait(order: Causality, operation: Operation) -> Iterator[Doubt]:
    """A wait names a parity: it must not start while the phase two before could still be the last
    complete one, and the next phase must not complete before all waiting threads have passed.
    """
    barrier, phase = operation.event.barrier, operation.event.phase
    if operation.event.by_parity and order.phases(operation, barrier) < phase:
        reached = order.before[operation.number].copy()
        earlier = order.completion(barrier, phase - 2)
        if earlier is not None:
            np.maximum(reached, earlier, out=reached)
        yield Doubt(EARLY, operation, reached, operation)
    following = order.completion(barrier, phase + 1)
    if order.skeleton.barriers[barrier].kind != "mbarrier":
        return  # its waits name no phase: they are for the one that they have arrived for
    if following is not None and not order.knows(following, operation):
        yield Doubt(LATE, operation, None, None)


def _asked(order: Causality, operation: Operation) -> Iterator[Doubt]:
    """A wait that failed would have passed by the phase for which its party waits next, and by no
    earlier one.
    """
    barrier, parity = operation.event.barrier, operation.event.phase
    mine = order.skeleton.parties[operation.party].operations[operation.ordinal + 1 :]
    for number in mine:
        event = order.skeleton.operations[number].event
        if event.kind == "wait" and event.barrier == barrier:
            known = order.phases(operation, barrier)
            if known < event.phase or event.phase & 1 != parity:
                yield Doubt(EARLY, operation, order.before[operation.number], operation)
            return


def _gone(order: Causality, operation: Operation) -> Iterator[Doubt]:
    """A thread that invalidates an mbarrier must know that no other operation uses it any more."""
    barrier = operation.event.barrier
    over = order.phases(operation, barrier)
    if barrier in order.loose and over < order.skeleton.phases[barrier]:
        over = 0
    for other in order.uses[barrier]:
        if other is operation or (other.event.kind in COUNTED and other.event.phase < over):
            continue
        if not order.precedes(other, operation):
            yield Doubt(GONE, other, None, operation)
