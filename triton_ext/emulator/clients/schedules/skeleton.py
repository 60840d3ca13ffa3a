"""The skeleton of a run: what the threads of a cluster did at barriers, in the order of the run.

A *party* is some lanes of a warp that do all of it together: mostly all 32, or one that is elected
and the rest. An operation of an asynchronous unit belongs to no party; it follows the operation
that issued it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from triton_ext.ptx.parse import Instruction

Warp = tuple[int, int]
"""The rank of its block in the cluster, and its number in the block."""


@dataclass(frozen=True)
class Barrier:
    """An mbarrier from its initialisation on, a numbered barrier of a block, or a cluster's.

    Attributes:
        number: counted in the order in which the run met them.
        kind: "mbarrier", "barrier" or "barrier.cluster".
        name: the barrier in words.
    """

    number: int
    kind: str
    name: str


@dataclass(frozen=True)
class Event:
    """What lanes of one warp, or a unit for them, did at once.

    Attributes:
        warp: the warp.
        mask: its lanes that took part, as bits.
        kind: at a barrier "init", "inval", "arrive", "pend", "expect", "complete" (see
            `AccessObserver.counts`) or "wait"; an "ask" is a wait that failed; "issue" hands work
            to a unit; "join" waits for products of a warpgroup; at "meet" all lanes of the warp
            were in step.
        barrier: the number of the barrier; -1 for none.
        phase: the number of the barrier's phase in this run; for an "ask", the parity. A wait has
            passed because this phase was complete; -1 is the phase before the first.
        amount: how many arrivals or bytes each lane added.
        by_parity: whether a wait names its phase by one bit.
        cause: for what a unit did, the number of the event that issued it; else -1.
        joins: for a "join", the events that issued the products.
        unit: for an "issue", whose queue it goes to, where order counts.
        far: whether the barrier lies in another block.
        informed: whether a unit's arrival releases all that the phase before has released.
        instruction: of the PTX.
    """

    warp: Warp
    mask: int
    kind: str
    barrier: int = -1
    phase: int = 0
    amount: int = 0
    by_parity: bool = False
    cause: int = -1
    joins: tuple[int, ...] = ()
    unit: tuple[object, ...] = ()
    far: bool = False
    informed: bool = False
    instruction: Instruction | None = None


@dataclass(frozen=True)
class Operation:
    """The part that one party has in an event.

    Attributes:
        number: its number in the skeleton.
        party: the number of the party; -1 for a unit.
        ordinal: how many operations of the party come before.
        event: what happened.
        cause: for a unit, the number of the operation that issued this one; else -1.
        lanes: how many of the party's lanes took part.
    """

    number: int
    party: int
    ordinal: int
    event: Event
    cause: int
    lanes: int

    @property
    def amount(self) -> int:
        """How many arrivals or bytes all lanes added together."""
        return self.event.amount * self.lanes


@dataclass
class Party:
    """Lanes of a warp that do everything together.

    Attributes:
        warp: the warp.
        mask: the lanes, as bits.
        operations: the numbers of its operations, in program order.
    """

    warp: Warp
    mask: int
    operations: list[int] = field(default_factory=list)

    @property
    def lane(self) -> int:
        """The number of the first lane."""
        return (self.mask & -self.mask).bit_length() - 1


@dataclass
class Skeleton:
    """What happened in a cluster.

    Attributes:
        cluster: the cluster's number in the grid.
        barriers: all barriers that were used.
        phases: how many phases of each barrier completed.
        parties: all parties that did something.
        operations: all operations, in the order of the run.
    """

    cluster: int
    barriers: Sequence[Barrier]
    phases: Sequence[int]
    parties: list[Party] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        cluster: int,
        barriers: Sequence[Barrier],
        phases: Sequence[int],
        events: Sequence[Event],
    ) -> Skeleton:
        """Divide the events of a run among parties."""
        masks: defaultdict[Warp, set[int]] = defaultdict(set)
        for event in events:
            masks[event.warp].add(event.mask)
        parties: list[Party] = []
        of_warp: dict[Warp, range] = {}
        for warp, those in masks.items():
            first = len(parties)
            parties += [Party(warp, mask) for mask in divided(those)]
            of_warp[warp] = range(first, len(parties))
        found = cls(cluster, barriers, phases, parties)
        parts: list[list[Operation]] = []  # of each event
        for event in events:
            if event.kind == "meet" and len(of_warp[event.warp]) == 1:
                parts.append([])
                continue
            mine = [n for n in of_warp[event.warp] if parties[n].mask & event.mask]
            issued = parts[event.cause] if event.cause >= 0 else []
            causes = {each.party: each.number for each in issued}
            parts.append([found._add(event, number, causes) for number in mine])
        found._events = parts
        return found

    _events: list[list[Operation]] = field(default_factory=list, repr=False)

    def of_event(self, number: int) -> list[Operation]:
        """The operations of an event."""
        return self._events[number]

    def issuer(self, operation: Operation) -> Operation:
        """The operation that issued the operation of a unit; for a party's, that one itself."""
        return operation if operation.party >= 0 else self.operations[operation.cause]

    def together(self, operation: Operation) -> list[Operation]:
        """The operations of all lanes of the warp by the same instruction at once."""
        near = self.operations[max(0, operation.number - 32) : operation.number + 32]
        return [each for each in near if each.event is operation.event]

    def _add(self, event: Event, party: int, causes: dict[int, int]) -> Operation:
        number, lanes = len(self.operations), (self.parties[party].mask & event.mask).bit_count()
        if event.cause >= 0:
            operation = Operation(number, -1, 0, event, causes[party], lanes)
        else:
            mine = self.parties[party].operations
            operation = Operation(number, party, len(mine), event, -1, lanes)
            mine.append(number)
        self.operations.append(operation)
        return operation


def divided(masks: Iterable[int]) -> list[int]:
    """The coarsest partition of the lanes of which each mask is a union."""
    parts = [(1 << 32) - 1]
    for mask in masks:
        parts = [piece for part in parts for piece in (part & mask, part & ~mask) if piece]
    every = 0
    for mask in masks:
        every |= mask
    return [part for part in parts if part & every]
