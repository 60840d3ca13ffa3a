"""Vectors over GF(2) that are packed into integers, and Gaussian elimination over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator


def powers_below(size: int) -> Iterator[int]:
    """1, 2, 4, ... up to but not including `size`."""
    power = 1
    while power < size:
        yield power
        power *= 2


def solver(columns: Iterable[int]) -> tuple[Callable[[int], int | None], int]:
    """Gaussian elimination of a GF(2) matrix that is given by its columns.

    Returns ``(solve, pivots)``. ``solve(b)`` is the set of columns (a bit mask) that XORs to `b`
    and uses pivot columns alone, or None if there is none. ``pivots`` is the mask of the pivot
    columns: those that are independent of the columns before them. Both are what the reduced row
    echelon form gives, so the choice among several solutions is Triton's.
    """
    rows: dict[int, tuple[int, int]] = {}  # leading bit -> (vector, the columns that make it)
    pivots = 0

    def reduce(vector: int) -> tuple[int, int]:
        combination = 0
        while vector:
            row = rows.get(vector.bit_length())
            if row is None:
                break
            vector ^= row[0]
            combination ^= row[1]
        return vector, combination

    for index, column in enumerate(columns):
        vector, combination = reduce(column)
        if vector:
            rows[vector.bit_length()] = (vector, combination ^ (1 << index))
            pivots |= 1 << index

    def solve(vector: int) -> int | None:
        rest, combination = reduce(vector)
        return None if rest else combination

    return solve, pivots


def pack(vector: Iterable[int], sizes: Iterable[int]) -> int:
    """The coordinates of one vector side by side in an integer, the first one lowest."""
    packed, unit = 0, 1
    for value, size in zip(vector, sizes, strict=True):
        packed += value * unit
        unit *= size
    return packed


def unpack(packed: int, sizes: Iterable[int]) -> tuple[int, ...]:
    """The coordinates that `pack` put side by side."""
    vector = []
    for size in sizes:
        vector.append(packed & (size - 1))
        packed >>= size.bit_length() - 1
    return tuple(vector)
