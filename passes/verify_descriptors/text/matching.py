"""Which group of PTX instructions is which operation of the TTGIR.

The compiler may copy an operation (unrolled loops, copied tails), move blocks, and name wrong
source lines; so a group may be any operation that it agrees with in all that is known. Each
operation must have at least one group, and each group an operation: a bipartite matching. Only the
branches of an ``if`` may share a group, which LLVM makes of what both have. Source
lines only choose among what agrees, or, where nothing does, what to compare with in the message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from triton_ext.hardware.architecture import Architecture
from triton_ext.mlir.ir import Operation, Region
from triton_ext.passes.verify_descriptors.meaning.expected import Expected
from triton_ext.passes.verify_descriptors.text.comparison import COUNTS, OPCODE, Comparison, compare
from triton_ext.passes.verify_descriptors.text.groups import Group

_MAX_COMPARED = 64
"""Operations of a kind that a group is compared with, those at its source line first."""


@dataclass
class Matching:
    """The outcome.

    Attributes:
        matched: for each group that agrees with an operation, the comparison with one of them.
        wrong: for each other group, the comparison with the nearest operation.
        unknown: groups of a kind that no operation has.
        unpredicted: groups that may be one of the operations of which nothing could be predicted.
        missing: operations without a group.
        shared: operations that share a group with one in the other branch of an ``if``.
        candidates: for each group, all operations that it agrees with.
    """

    matched: list[Comparison] = field(default_factory=list)
    wrong: list[Comparison] = field(default_factory=list)
    unknown: list[Group] = field(default_factory=list)
    unpredicted: list[Group] = field(default_factory=list)
    missing: list[Expected] = field(default_factory=list)
    shared: list[Expected] = field(default_factory=list)
    candidates: list[tuple[Group, list[Comparison]]] = field(default_factory=list)


def match(
    operations: Sequence[Expected],
    groups: Sequence[Group],
    arch: Architecture,
    open_operations: Sequence[tuple[str, Operation]] = (),
) -> Matching:
    """Match groups with operations. `open_operations`: those of which nothing could be predicted,
    with their kinds of instruction."""
    result = Matching()
    by_kind: dict[str, list[Expected]] = {}
    for operation in operations:
        by_kind.setdefault(operation.kind, []).append(operation)
    for group in groups:
        among = by_kind.get(group.kind, [])
        others = [one for kind, one in open_operations if kind == group.kind]
        own, foreign = _own(group, others), _foreign(group, among)
        if not among or (own and foreign):
            (result.unpredicted if others else result.unknown).append(group)
            continue
        here = sorted(among, key=lambda one: not _same_line(one, group))
        compared = [compare(one, group, arch) for one in here[:_MAX_COMPARED]]
        agreeing = [one for one in compared if not one.differences]
        if agreeing:
            result.candidates.append((group, agreeing))
        elif own or (others and foreign):
            result.unpredicted.append(group)
        else:
            nearest = min(compared, key=lambda one: _distance(one, group))
            result.wrong.append(nearest)
    _cover(operations, result)
    return result


def is_open(
    group: Group, operations: Sequence[Expected], open_operations: Sequence[tuple[str, Operation]]
) -> bool:
    """Whether a group is that of an operation of which nothing could be predicted, by its line.
    `operations`: those that it could be of otherwise. `open_operations`: as for `match`."""
    others = [one for kind, one in open_operations if kind == group.kind]
    return _own(group, others) and _foreign(group, operations)


def _own(group: Group, others: Sequence[Operation]) -> bool:
    return any(_is_at(one, group) for one in others)


def _foreign(group: Group, among: Sequence[Expected]) -> bool:
    return not any(_same_line(one, group) for one in among)


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


def _cover(operations: Sequence[Expected], result: Matching) -> None:
    """Give each operation that is executed a group of its own, and each other group any."""
    claimed = {id(one.expected) for one in result.wrong}
    fitting: dict[int, list[tuple[int, Comparison]]] = {}
    for index, (_, compared) in enumerate(result.candidates):
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

    def share(operation: Expected) -> bool:
        """Find it a group of the other branch; or one whose owner has another there."""
        for index, comparison in fitting.get(id(operation), ()):
            if _are_exclusive(operation, owner[index]):
                return True
            others = {other for other, _ in fitting[id(owner[index])]} & owner.keys() - {index}
            if any(_are_exclusive(owner[index], owner[other]) for other in others):
                owner[index], used[index] = operation, comparison
                return True
        return False

    needed = [one for one in operations if not one.is_dead and id(one) not in claimed]
    for one in [one for one in needed if not assign(one, set())]:
        (result.shared if share(one) else result.missing).append(one)
    result.matched = [
        used.get(index) or found[0] for index, (_, found) in enumerate(result.candidates)
    ]


def _are_exclusive(one: Expected, other: Expected) -> bool:
    """Whether two operations stand in different branches of one ``if``."""
    branches = {id(parent): region for parent, region in _around(one.operation)}
    return any(
        parent.name == "scf.if" and branches.get(id(parent), region) is not region
        for parent, region in _around(other.operation)
    )


def _around(operation: Operation) -> Iterator[tuple[Operation, Region]]:
    """The operations around one, and the region of each in which it stands."""
    while operation.block is not None and (parent := operation.parent) is not None:
        yield parent, operation.block.region
        operation = parent
