"""What registers that are assigned more than once hold, along the paths of a kernel."""

from __future__ import annotations

import functools
from bisect import bisect_left, bisect_right
from collections.abc import Collection
from dataclasses import dataclass, field

from triton_ext.ptx.definitions import Key
from triton_ext.ptx.known_bits import Bits, agreed

_MAX_ORIGINS = 64
Value = tuple[Bits, frozenset[str]]
"""What is known, and what that depends on (`Folder.origins`)."""
State = dict[Key, Value]
"""What the registers hold that are assigned more than once."""


def bounded(origins: Collection[str]) -> frozenset[str]:
    """Some of the names, if they are too many."""
    if len(origins) > _MAX_ORIGINS:
        return frozenset(sorted(origins)[:_MAX_ORIGINS])
    return frozenset(origins)


_OTHERS: Key = ("", ())
ALL_UNKNOWN: State = {_OTHERS: (Bits.unknown(), frozenset())}
"""A state that holds `_OTHERS` says nothing of the registers that it leaves out; another, that they
have not been set."""


def held(state: State, key: Key) -> Value | None:
    """What a register holds, or None if it has not been set."""
    return state.get(key, state.get(_OTHERS))


def merged(states: list[State]) -> State:
    """What holds on whichever path."""
    joined = dict(states[0])
    for state in states[1:]:
        if _OTHERS in state:
            joined.setdefault(_OTHERS, state[_OTHERS])
        for key in joined.keys() | state.keys():
            one, other = held(joined, key), held(state, key)
            if one is not None and other is not None:
                joined[key] = (agreed(one[0], other[0]), bounded(one[1] | other[1]))
            elif other is not None:
                joined[key] = other
    return joined


@dataclass
class States:
    """What those registers have held.

    Attributes:
        first: the first value of each.
        entries: by the first instruction of each basic block, what they hold there.
        writes: by the same, what is written to each in it, and by which instruction.
    """

    first: State = field(default_factory=dict)
    entries: dict[int, State] = field(default_factory=dict)
    writes: dict[int, dict[Key, list[tuple[int, Value]]]] = field(default_factory=dict)

    @functools.cached_property
    def _starts(self) -> list[int]:
        return sorted(self.entries)

    def before(self, key: Key, number: int) -> Value | None:
        """What a register holds before an instruction."""
        start = self._starts[bisect_right(self._starts, number) - 1]
        written = self.writes[start].get(key, [])
        earlier = bisect_left(written, number, key=lambda write: write[0])
        return written[earlier - 1][1] if earlier else self.entries[start].get(key)
