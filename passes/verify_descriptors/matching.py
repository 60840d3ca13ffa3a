"""Which group of PTX instructions is which operation of the TTGIR.

The compiler may copy an operation (unrolled loops, copied tails), move blocks, and name wrong
source lines; so a group may be any operation that it agrees with in all that is known. Each
operation must have at least one group, and each group an operation: a bipartite matching. Source
lines only choose among what agrees, or, where nothing does, what to compare with in the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from triton_ext.hardware.architecture import Architecture
from triton_ext.mlir.module import Operation
from triton_ext.passes.verify_descriptors.addresses import Addresses
from triton_ext.passes.verify_descriptors.comparison import (
    COUNTS,
    OPCODE,
    Comparison,
    Observation,
    compare,
)
from triton_ext.passes.verify_descriptors.expected import Expected
from triton_ext.passes.verify_descriptors.groups import Group

_MAX_COMPARED = 64
"""Operations of a kind that a group is compared with, those at its source line first."""
_MAX_TRIES = 300
"""Guesses of which of several operations a group is."""


@dataclass
class Matching:
    """The outcome.

    Attributes:
        matched: for each group that agrees with an operation, the comparison with one of them.
        wrong: for each other group, the comparison with the nearest operation.
        unknown: groups of a kind that no operation has.
        unpredicted: groups that may be one of the operations of which nothing could be predicted.
        missing: operations without a group.
        candidates: for each group, all operations that it agrees with.
        conflicts: addresses that do not fit together: (observation, an earlier one).
        addresses: those of the allocations.
    """

    matched: list[Comparison] = field(default_factory=list)
    wrong: list[Comparison] = field(default_factory=list)
    unknown: list[Group] = field(default_factory=list)
    unpredicted: list[Group] = field(default_factory=list)
    missing: list[Expected] = field(default_factory=list)
    candidates: list[tuple[Group, list[Comparison]]] = field(default_factory=list)
    conflicts: list[tuple[Observation, Observation]] = field(default_factory=list)
    addresses: Addresses | None = None


def match(
    operations: Sequence[Expected],
    groups: Sequence[Group],
    arch: Architecture,
    addresses: Addresses,
    open_operations: Sequence[tuple[str, Operation]] = (),
) -> Matching:
    """Match groups with operations.

    Args:
        operations: what is expected of each.
        groups: those of the PTX.
        arch: 90 or 100.
        addresses: those of the module, of which nothing is known yet.
        open_operations: those of which nothing could be predicted, with their kinds of instruction.
    """
    result = Matching()
    by_kind: dict[str, list[Expected]] = {}
    for operation in operations:
        by_kind.setdefault(operation.kind, []).append(operation)
    for group in groups:
        among = by_kind.get(group.kind, [])
        others = [one for kind, one in open_operations if kind == group.kind]
        if not among:
            (result.unpredicted if others else result.unknown).append(group)
            continue
        here = sorted(among, key=lambda one: not _same_line(one, group))
        compared = [compare(one, group, arch) for one in here[:_MAX_COMPARED]]
        agreeing = [one for one in compared if not one.differences]
        if agreeing:
            result.candidates.append((group, agreeing))
        elif others and (
            any(_is_at(one, group) for one in others)
            or not any(_same_line(one, group) for one in among)
        ):
            result.unpredicted.append(group)
        else:
            nearest = min(compared, key=lambda one: _distance(one, group))
            result.wrong.append(nearest)
    _Assignment(result, operations, addresses).run()
    return result


def _distance(comparison: Comparison, group: Group) -> tuple[bool, int, bool]:
    """How far a group is from an operation: one of another length last."""
    fields = {found.field for found in comparison.differences}
    has_another_shape = not fields.isdisjoint((OPCODE, *COUNTS))
    return has_another_shape, len(fields), not _same_line(comparison.expected, group)


def _same_line(expected: Expected, group: Group) -> bool:
    return _is_at(expected.operation, group)


def _is_at(operation: Operation, group: Group) -> bool:
    """Whether a group comes from the source line of an operation."""
    location, source = operation.location, group.first.source
    if location is None or source is None:
        return False
    lines = [location, *location.callers]
    return any(one.line == source.line and _same_file(one.file, source.file) for one in lines)


def _same_file(one: str, other: str) -> bool:
    return one.rpartition("/")[2] == other.rpartition("/")[2]


class _Assignment:
    """Finds addresses of the allocations with which every group is an operation that agrees.

    Groups that only one operation fits come first; what they say of the allocations' addresses
    leaves fewer operations for the others. Where several are left, one is tried after the other,
    until each operation has a group of its own.
    """

    def __init__(
        self, result: Matching, operations: Sequence[Expected], addresses: Addresses
    ) -> None:
        self.result = result
        self.operations = operations
        self.start = addresses
        self.tries = _MAX_TRIES
        self.best: tuple[int, list[list[Comparison]], Addresses] | None = None
        claimed = {id(one.expected) for one in result.wrong}
        self.needed = [one for one in operations if not one.is_dead and id(one) not in claimed]

    def run(self) -> None:
        """Put what is found into the result."""
        compared = [list(found) for _, found in self.result.candidates]
        self._search([list(found) for found in compared], self.start.copy(), frozenset())
        if self.best is not None:
            _, chosen, addresses = self.best
        else:
            chosen, addresses = self._greedy(compared)
        used, self.result.missing = self._cover(chosen)
        self.result.addresses = addresses
        self.result.matched = [
            used.get(index) or found[0] for index, found in enumerate(chosen) if found
        ]

    def _search(
        self, left: list[list[Comparison]], addresses: Addresses, done: frozenset[int]
    ) -> bool:
        """Whether a perfect choice was found; the best one is kept in any case."""
        done = self._propagate(left, addresses, done)
        if any(not found for found in left):
            return False
        undecided = [index for index in range(len(left)) if index not in done]
        if not undecided:
            missing = len(self._cover(left)[1])
            if self.best is None or missing < self.best[0]:
                self.best = missing, left, addresses
            return not missing
        index = undecided[0]
        used = {id(left[other][0].expected) for other in done}
        choices = sorted(
            left[index], key=lambda one: (one.expected.is_dead, id(one.expected) in used)
        )
        seen: set[frozenset[object]] = set()
        for choice in choices:
            key = frozenset(addresses.starts(one) for one in choice.observations)
            if key in seen:
                continue
            if self.tries <= 0:
                return False
            seen.add(key)
            self.tries -= 1
            trial, settled = [list(found) for found in left], addresses.copy()
            trial[index].remove(choice)
            trial[index].insert(0, choice)
            for observation in choice.observations:
                settled.add(observation)
            if self._search(trial, settled, done | {index}):
                return True
        return False

    @staticmethod
    def _propagate(
        left: list[list[Comparison]], addresses: Addresses, done: frozenset[int]
    ) -> frozenset[int]:
        """Leave out what does not fit, and settle groups with one operation left."""
        changed = True
        while changed:
            changed = False
            for index, compared in enumerate(left):
                fitting = [one for one in compared if _conflict(one, addresses) is None]
                left[index] = fitting
                if not fitting:
                    return done
                if len(fitting) == 1 and index not in done:
                    for observation in fitting[0].observations:
                        addresses.add(observation)
                    done = done | {index}
                    changed = True
        return done

    def _greedy(self, left: list[list[Comparison]]) -> tuple[list[list[Comparison]], Addresses]:
        """Nothing fits: take groups in order, and say which ones conflict."""
        addresses = self.start.copy()
        order = sorted(range(len(left)), key=lambda index: (len(left[index]), index))
        chosen = list(left)
        for index in order:
            fitting = [one for one in left[index] if _conflict(one, addresses) is None]
            if fitting:
                chosen[index] = fitting
                for observation in fitting[0].observations:
                    addresses.add(observation)
                continue
            found = _conflict(left[index][0], addresses)
            if found is not None:
                self.result.conflicts.append(found)
        return chosen, addresses

    def _cover(
        self, chosen: list[list[Comparison]]
    ) -> tuple[dict[int, Comparison], list[Expected]]:
        """Give each operation a group of its own; those without one are the second result."""
        fitting: dict[int, list[tuple[int, Comparison]]] = {}
        for index, compared in enumerate(chosen):
            for comparison in compared:
                fitting.setdefault(id(comparison.expected), []).append((index, comparison))
        owner: dict[int, Expected] = {}
        used: dict[int, Comparison] = {}

        def assign(operation: Expected, seen: set[int]) -> bool:
            for index, comparison in fitting.get(id(operation), ()):
                if index in seen:
                    continue
                seen.add(index)
                if index not in owner or assign(owner[index], seen):
                    owner[index], used[index] = operation, comparison
                    return True
            return False

        missing = [one for one in self.needed if not assign(one, set())]
        return used, missing


def _conflict(
    comparison: Comparison, addresses: Addresses
) -> tuple[Observation, Observation] | None:
    for observation in comparison.observations:
        earlier = addresses.conflict(observation)
        if earlier is not None:
            return observation, earlier
    return None
