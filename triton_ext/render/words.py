"""Shapes and counts in words, and words that are safe to print."""

from __future__ import annotations

import re
from collections.abc import Iterable

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters but for tab and newline; and those that turn the direction of a line."""


def by(shape: Iterable[int]) -> str:
    """``128x64``."""
    return "x".join(map(str, shape))


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 copy``, ``2 copies``; the plural is the noun with an "s" unless it is given."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def in_bytes(number: int) -> str:
    """``1 byte``, ``2 bytes``."""
    return counted(number, "byte")


def padding_text(paddings: Iterable[tuple[int, int]]) -> str:
    """``4 unused elements behind each 32``, of pairs (interval, padding)."""
    return ", ".join(
        f"{counted(extra, 'unused element')} behind each {interval}" for interval, extra in paddings
    )


def plain(text: str) -> str:
    """A text without control characters: ``\\x1b`` in words for an escape, and so on."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
