"""What plain instructions do to the registers of one thread, as functions over a list of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from triton_ext.hardware.architecture import CTA_ADDRESS_BITS, CTA_ADDRESS_MASK
from triton_ext.integers import Number
from triton_ext.passes.verify_descriptors.running.poison import Poison

Registers: TypeAlias = "list[Number]"
Function: TypeAlias = "Callable[[Registers], None]"

PARAMETERS = 1 << 28
PARAMETER_SIZE = 1 << 12
"""Where parameters lie, for what computes with their addresses; apart from shared memory, at 0."""
_GENERIC = 1 << 60
"""What ``cvta.param`` adds to the address of a parameter."""


def unread(registers: Registers) -> None:
    """An operand that is not read."""


def nothing(registers: Registers) -> None:
    """An instruction that writes no register."""


def constants(known: Mapping[int, int], targets: list[int]) -> Function:
    def set_all(registers: Registers) -> None:
        for slot in targets:
            registers[slot] = known.get(slot)

    return set_all


def generic_address(index: int) -> int:
    """The generic address of a kernel's parameter."""
    return PARAMETERS + PARAMETER_SIZE * index + _GENERIC


def generic(address: Number) -> Number:
    """``cvta.param``."""
    return None if address is None else address + _GENERIC


def mapped(address: Number, rank: Number) -> Number:
    """``mapa``: the address in another CTA of the cluster."""
    if address is None or rank is None:
        return None
    return address & CTA_ADDRESS_MASK | rank << CTA_ADDRESS_BITS


def applied(targets: list[int], slots: list[int], function: Callable[..., Number]) -> Function:
    """Write a function's result of registers; to ``setp``'s second predicate, the opposite."""
    target = targets[0]
    if len(targets) == 2:

        def compare(registers: Registers) -> None:
            found = function(*[registers[slot] for slot in slots])
            if found is None:
                found = unknown(registers, slots)
            registers[target] = found
            registers[targets[1]] = None if found is None else 1 - found

        return compare
    if len(slots) == 2:
        first, second = slots

        def binary(registers: Registers) -> None:
            found = function(registers[first], registers[second])
            registers[target] = unknown(registers, slots) if found is None else found

        return binary

    def run(registers: Registers) -> None:
        found = function(*[registers[slot] for slot in slots])
        registers[target] = unknown(registers, slots) if found is None else found

    return run


def chosen(function: Callable[..., Number], a: Number, b: Number, choice: Number) -> Number:
    """``selp``."""
    return choice if isinstance(choice, Poison) else function(a, b, choice)


def of_numbers(function: Callable[..., Number], *values: Number) -> Number:
    """``min`` and ``max``, which compare their sources; None if one of them is poison."""
    return None if any(isinstance(each, Poison) for each in values) else function(*values)


def unknown(registers: Registers, slots: Sequence[int]) -> Number:
    """The result of sources that are not all known: poison if one of them is, else None."""
    return next((value for slot in slots if isinstance(value := registers[slot], Poison)), None)
