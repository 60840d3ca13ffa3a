"""How undefined values go through instructions: which results they reach, and where they are used.

Moves and arithmetic pass them on, a selection only the operand that is chosen, ``and`` and ``or``
none that the other operand decides. Everything else uses its operands, unless its decoder says
otherwise: see `triton_ext.emulator.state.undefined`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.storage import Register
from triton_ext.emulator.state.undefined import Origins

Follow = Callable[[Cta, Lanes], None]
Read = Callable[[Cta, Lanes], NDArray[Any]]


@dataclass(frozen=True)
class Flow:
    """How undefined values go through one instruction.

    Attributes:
        follow: called before it is executed, while registers of the block are undefined.
        pure: whether it does nothing but write registers. An undefined guard then makes its
            results undefined; for all others it is a use.
    """

    follow: Follow
    pure: bool = False


def handled(cta: Cta, lanes: Lanes) -> None:
    """For an instruction that does it itself when it is executed, but for its addresses."""


def through(read: Set[Register], written: Set[Register]) -> Flow:
    """Each result is undefined if one of the operands is."""

    def follow(cta: Cta, lanes: Lanes) -> None:
        undefined = cta.undefined
        undefined.put_all(written, lanes, undefined.of_any(read, lanes))

    return Flow(follow, pure=True)


def _bytes_of(cta: Cta, register: Register | None, size: int, lanes: Lanes) -> Origins:
    """(size, lanes): the origins of an operand's low bytes; None is a constant."""
    found = None if register is None else cta.undefined.of(register, lanes)
    if found is None:
        return np.zeros((size, lane_sets.count(lanes)), np.int64)
    return found[:size]


Named = Sequence[Register | None]
"""Operands: None for a constant, or a result that is dropped."""


def moved(sources: Named, targets: Named, size: int) -> Flow:
    """Bytes are copied, from the first operand's lowest one on. `size`: bytes of all of them
    together."""

    def follow(cta: Cta, lanes: Lanes) -> None:
        each = size // len(sources)
        found = origins_of(cta, sources, each, lanes)
        zeros = np.zeros((size, lane_sets.count(lanes)), np.int64)
        put_parts(cta, targets, lanes, zeros if found is None else found.T)

    return Flow(follow, pure=True)


def origins_of(cta: Cta, sources: Named, size: int, lanes: Lanes) -> Origins | None:
    """(lanes, bytes): those of operands of `size` bytes each, side by side; None if all are 0."""
    found = np.concatenate([_bytes_of(cta, source, size, lanes) for source in sources])
    return np.ascontiguousarray(found.T) if found.any() else None


def put_parts(cta: Cta, targets: Named, lanes: Lanes, origins: Origins) -> None:
    """Give registers the origins, (bytes, lanes), of what was written to all of them together."""
    for target, part in zip(targets, np.split(origins, len(targets)), strict=True):
        if target is None:
            continue
        missing = max(1, target.width // 8) - len(part)
        wide = np.concatenate([part, np.repeat(part[-1:], missing, axis=0)])
        cta.undefined.put(target, lanes, wide)


def chosen(first: Register | None, second: Register | None, by: Register, target: Register) -> Flow:
    """One of two operands, by a predicate."""

    def follow(cta: Cta, lanes: Lanes) -> None:
        size = max(1, target.width // 8)
        one, other = (_bytes_of(cta, each, size, lanes) for each in (first, second))
        origins = np.where(cta.files["pred"][by.row, lanes], one, other)
        doubt = _bytes_of(cta, by, 1, lanes)
        cta.undefined.put(target, lanes, np.where(doubt, doubt, origins))

    return Flow(follow, pure=True)


def absorbed(
    operands: Sequence[tuple[Register | None, Read]], target: Register, absorbing: int
) -> Flow:
    """A bitwise operation: a byte of one operand may decide the result's.

    Args:
        operands: both, with their values.
        absorbing: the value of such a byte.
    """

    def follow(cta: Cta, lanes: Lanes) -> None:
        size, number = max(1, target.width // 8), lane_sets.count(lanes)
        result = np.zeros((size, number), np.int64)
        origins = [_bytes_of(cta, register, size, lanes) for register, _ in operands]
        for mine, other, (_, read) in zip(origins, origins[::-1], operands[::-1], strict=True):
            values = np.ascontiguousarray(lane_sets.each(read(cta, lanes), lanes))
            bits = values.view(np.uint8).reshape(number, size).T
            wanted = bits.dtype.type(absorbing if target.width > 1 else absorbing & 1)
            decided = (other == 0) & (bits == wanted)
            result = np.maximum(result, np.where(decided, 0, mine))
        cta.undefined.put(target, lanes, result)

    return Flow(follow, pure=True)
