"""Words of the hardware as named fields of bits."""

from __future__ import annotations

from collections.abc import Mapping

from triton_ext.errors import LayoutError

Fields = Mapping[str, tuple[int, int]]
"""name -> (first bit, how many bits)."""


def extract(name: str, value: int, width: int, fields: Fields) -> dict[str, int]:
    """Every field of a word as its bits say, and under ``reserved`` what else is set. Raises
    LayoutError: not an unsigned integer of this width.

    Args:
        name: what the word is, for the error.
        width: the size of the word, in bits.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << width:
        raise LayoutError(name, value, f"must be an integer in [0, 2**{width})")
    named = 0
    found = {}
    for field, (start, bits) in fields.items():
        mask = (1 << bits) - 1
        found[field] = value >> start & mask
        named |= mask << start
    found["reserved"] = value & ~named
    return found


def insert(values: Mapping[str, int], fields: Fields) -> int:
    """The word that has these values in these fields, and 0 elsewhere."""
    return sum(values[field] << start for field, (start, _) in fields.items())
