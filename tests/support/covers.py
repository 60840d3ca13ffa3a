"""Fewer cases that meet the same parts: `make test` runs these, `make oracle` all of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

from sites import ALL

T = TypeVar("T")


def cover(cases: Sequence[T], parts: Callable[[T], Iterable[Hashable]]) -> list[T]:
    """Some of the cases, in their order, that have every part of any between them: always the one
    with the most parts that are missing yet.
    """
    of_each = [frozenset(parts(case)) for case in cases]
    missing = set().union(*of_each)
    kept = set()
    while missing:
        best = max(range(len(cases)), key=lambda i: len(missing & of_each[i]))
        kept.add(best)
        missing -= of_each[best]
    return [case for i, case in enumerate(cases) if i in kept]


def pairwise(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Combinations of the axes' values, for ``parametrize``: every pair of values of two axes is in
    one of them; by `make oracle` the whole product.
    """
    places = [list(axis) for axis in axes]
    whole = list(itertools.product(*places))
    if ALL:
        return whole
    numbered = list(itertools.product(*(range(len(axis)) for axis in places)))
    kept = cover(numbered, lambda case: itertools.combinations(enumerate(case), 2))
    return [whole[numbered.index(case)] for case in kept]


def in_turn(first: Iterable[Any], second: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Each value of the first axis with one of the second, in turn; by `make oracle` with each."""
    pairs, others = list(first), list(second)
    if ALL:
        return list(itertools.product(pairs, others))
    return [(one, others[i % len(others)]) for i, one in enumerate(pairs)]
