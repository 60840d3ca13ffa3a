"""What faults say of two accesses to global memory that nothing orders."""

from __future__ import annotations

from dataclasses import dataclass

from triton_ext.emulator.errors import SynchronizationFault
from triton_ext.emulator.state.memory import Allocation
from triton_ext.emulator.units.history import SCOPE_NAMES, Order


@dataclass(frozen=True)
class Access:
    """An access, for an error."""

    cluster: int
    agent: int
    scope: int
    line: int


def unordered(
    order: Order, of: Allocation, at: int, access: Access, does: str, other: Access, did: str
) -> SynchronizationFault:
    """The fault of two accesses of a byte: what each of them does, and what orders them."""
    history = order.history
    far = history is not None and history.device(other.cluster) != order.device
    if far:
        hint = (
            "only a release by the one and an acquire by the other, of one flag and both at"
            " the scope of the system (.sys), or a barrier of the hosts, order two devices"
        )
    elif access.cluster != other.cluster:
        hint = (
            "only a release by the one and an acquire by the other, of one flag in global"
            " memory and at the scope of the GPU, order two blocks"
        )
    elif access.agent // order.agents_each != other.agent // order.agents_each:
        hint = "a barrier of the cluster, or a flag that is released and acquired, is missing"
    else:
        hint = "a barrier or wait is missing"
        if _statement(order, access) == _statement(order, other):
            hint += ", or the accesses must be atomic"
    if access.scope and other.scope:
        hint = "the scope of one of them is too narrow to include the other"
        if far:
            here, there = SCOPE_NAMES[access.scope], SCOPE_NAMES[other.scope]
            hint += f" ({here}, and {there}: both need .sys)"
    elif access.scope or other.scope:
        hint = f"the one is atomic, the other is not: {hint}"
    if history is not None:
        hint += history.hint(access.cluster, other.cluster)
    return blamed(
        order,
        access,
        f"global address {of.start + at:#x} ({of.describe(at)}) is {does} by"
        f" {name_of(order, access)}, and was {did} by {name_of(order, other)}"
        f"{line_of(order, other)}, and nothing orders the two: {hint}",
    )


def blamed(order: Order, access: Access, text: str) -> SynchronizationFault:
    """The fault at the instruction of an access."""
    fault = SynchronizationFault(text)
    fault.instruction = next((each for each in order.program if each.line == access.line), None)
    return fault


def _statement(order: Order, access: Access) -> object:
    """The line of the source that an access is of; that of the PTX, if there is none."""
    found = (each.source for each in order.program if each.line == access.line)
    source = next(found, None)
    return access.line if source is None else (source.file, source.line)


def line_of(order: Order, access: Access) -> str:
    """The line of an access, as `GlobalOrder.line` says it."""
    party = order if order.history is None else order.history.party(access.cluster)
    return party.line(access.line)


def name_of(order: Order, access: Access) -> str:
    """Who accesses, with its device if there are several."""
    if order.history is None:
        return order.name(access.cluster, access.agent)
    name = order.history.party(access.cluster).name(access.cluster, access.agent)
    return f"device {order.history.device(access.cluster)}, {name}"
