"""What mbarriers are told to expect, and what TMA copies then bring them, by the TTGIR."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from triton_ext.mlir.ir import Operation
from triton_ext.passes.verify_descriptors.meaning.expected import Expected, predicate_of
from triton_ext.passes.verify_descriptors.running.findings import Findings
from triton_ext.passes.verify_descriptors.running.mlir_trace import PartitionTrace, RunValue


@dataclass(frozen=True)
class _Bytes:
    """Bytes that a barrier is told to expect, or that a copy brings it.

    Attributes:
        partition: the number of the partition that does it.
    """

    partition: int
    size: int
    operation: Operation
    tells: bool


def _rounds(items: Sequence[_Bytes]) -> list[list[_Bytes]]:
    """What a barrier is told and brought, time after time."""
    found: list[list[_Bytes]] = []
    before = False
    for item in items:
        begins = item.tells == items[0].tells
        if not found or (begins and not before):
            found.append([])
        found[-1].append(item)
        before = begins
    return found


@dataclass(frozen=True)
class BarrierFact:
    """What one barrier expects and gets: in one of its rounds, or in all together.

    Attributes:
        expected: bytes that it is told.
        brought: bytes that copies bring.
        told: the last operation that told it.
        copies: the operations that bring the bytes.
        is_sum: the numbers are those of all rounds, as several partitions tell it or copy for it;
            if one of them did not run to its end, `brought` is -1.
    """

    expected: int
    brought: int
    told: Operation | None
    copies: tuple[Operation, ...]
    is_sum: bool


def expected_bytes(
    traces: Sequence[PartitionTrace], expected: Mapping[int, Expected]
) -> list[BarrierFact] | None:
    """The rounds of all barriers; None if an address or a predicate is not known."""
    listed: dict[RunValue, list[_Bytes]] = {}
    for number, trace in enumerate(traces):
        for event in trace.events:
            one = expected.get(id(event.operation))
            if one is None or one.barrier is None or one.kind not in ("expect", "tma"):
                continue
            values = dict(zip(event.operation.operands, event.operands, strict=True))
            predicate, address = predicate_of(event.operation), values.get(one.barrier)
            holds = 1 if predicate is None else values.get(predicate)
            if not isinstance(address, tuple) or holds is None:
                return None
            if holds:
                size = one.bytes or sum(box.bytes for box in one.boxes)
                found = _Bytes(number, size, event.operation, one.kind == "expect")
                listed.setdefault(address, []).append(found)
    return [fact for items in listed.values() for fact in _facts(items, traces)]


def _facts(items: Sequence[_Bytes], traces: Sequence[PartitionTrace]) -> Iterator[BarrierFact]:
    """The rounds of one barrier; without the last one where its partition was cut off."""
    ended = not any(traces[item.partition].end.is_early for item in items)
    if len({item.partition for item in items}) > 1:
        fact = _fact(items, is_sum=True)
        yield fact if ended else replace(fact, brought=-1)
        return
    rounds = _rounds(items)
    for each in rounds if ended else rounds[:-1]:
        yield _fact(each, is_sum=False)


def _fact(items: Sequence[_Bytes], *, is_sum: bool) -> BarrierFact:
    tellers = [item for item in items if item.tells]
    copies = [item for item in items if not item.tells]
    return BarrierFact(
        sum(item.size for item in tellers), sum(item.size for item in copies),
        tellers[-1].operation if tellers else None,
        tuple(dict.fromkeys(item.operation for item in copies)), is_sum,
    )  # fmt: skip


def compare_bytes(
    findings: Findings,
    traces: Sequence[PartitionTrace],
    expected: Mapping[int, Expected],
    *,
    is_open: bool,
) -> None:
    """What a barrier is told to expect is what the copies then bring it, or nothing at all.

    (A pipeline may leave out its last copies, but tell the barrier, which nobody waits for.)
    `is_open`: whether others bring bytes, too: blocks of a cluster, inline assembly.
    """
    kind = "bytes that barriers expect"
    facts = expected_bytes(traces, expected)
    if facts is None:
        findings.unproven[kind] += 1
        return
    for fact in facts:
        if fact.expected == fact.brought:
            findings.proven[kind] += 1
        elif fact.is_sum or is_open or not fact.brought or fact.told is None:
            findings.unproven[kind] += 1  # or other means than TMA may take their part
        else:
            lines = listed([_line(each) for each in fact.copies])
            copies = "copy" if len(fact.copies) == 1 else "copies"
            bring = "brings" if len(fact.copies) == 1 else "bring"
            said = f"{_line(fact.told)} expects {fact.expected} bytes; the {copies} at {lines}"
            findings.of_the_kernel.append((fact.told, f"{said} {bring} {fact.brought}"))
            return


def _line(operation: Operation) -> str:
    location = operation.location
    return f"line {location.line}" if location else operation.name


def listed(names: Sequence[str]) -> str:
    """``line 1``, ``lines 1 and 2``, ``lines 1, 2 and 3``; each once."""
    names = list(dict.fromkeys(names))
    if len(names) > 1 and all(name.startswith("line ") for name in names):
        names = [f"lines {names[0][5:]}", *(name[5:] for name in names[1:])]
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
