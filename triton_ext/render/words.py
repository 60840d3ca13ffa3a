"""Shapes and counts in words."""

from __future__ import annotations

from collections.abc import Iterable


def by(shape: Iterable[int]) -> str:
    """``128x64``."""
    return "x".join(map(str, shape))


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 copy``, ``2 copies``; the plural is the noun with an "s" unless it is given."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def in_bytes(number: int) -> str:
    """``1 byte``, ``2 bytes``."""
    return counted(number, "byte")
