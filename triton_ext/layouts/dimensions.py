"""Names and sizes of dimensions: checks of arguments, and one order of the names of two layouts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.layouts.arguments import is_power_of_two, power_of_two


def merged_order(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """The shortest order of names that agrees with both, names of `first` as early as may be."""
    result: list[str] = []
    i = j = 0
    while i < len(first) or j < len(second):
        if i < len(first) and first[i] not in second[j:]:
            result.append(first[i])
            i += 1
        elif i < len(first) and first[i] == second[j]:
            result.append(first[i])
            i, j = i + 1, j + 1
        elif second[j] not in first[i:]:
            result.append(second[j])
            j += 1
        else:
            rule = "the two layouts name shared dimensions in contradicting orders; transpose one"
            raise LayoutError("dimension order", (list(first), list(second)), rule)
    return result


def check_name(argument: str, given: Any) -> None:
    """One name of a dimension, or LayoutError."""
    if not isinstance(given, str):
        raise LayoutError(argument, given, "must be the name of a dimension")


def distinct_names(argument: str, given: Any) -> list[str]:
    """Names of dimensions, each once."""
    try:
        names = [] if isinstance(given, str) else list(given)
        legal = not isinstance(given, str) and len(set(names)) == len(names)
    except TypeError:
        names, legal = [], False
    if not legal or not all(isinstance(name, str) for name in names):
        raise LayoutError(argument, given, "must be distinct names of dimensions, in a sequence")
    return names


def expected_names(argument: str, given: Any, expected: Iterable[str]) -> list[str]:
    """The names that are given, which must be those that are expected."""
    names, expected = distinct_names(argument, given), list(expected)
    if set(names) != set(expected):
        raise LayoutError(argument, names, f"must name each of {expected} once, in any order")
    return names


def named_sizes(argument: str, given: Any) -> dict[str, int]:
    """Dimensions and their sizes."""
    if not isinstance(given, Mapping):
        raise LayoutError(argument, given, "must be a mapping of names to sizes")
    for name in distinct_names(argument, given):
        if not is_power_of_two(given[name]):
            power_of_two(f"{argument}[{name!r}]", given[name])
    return dict(given)
