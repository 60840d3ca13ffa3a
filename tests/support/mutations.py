"""Damaged input from a seed: JSON documents with a part replaced, and calls with junk arguments."""

from __future__ import annotations

import copy
import os

HOW_MUCH = float(os.environ.get("TRITON_EXT_FUZZ", "1"))
"""How many times as many damaged inputs the tests try."""


def some(count):
    """`count`, or as many times as TRITON_EXT_FUZZ says."""
    return max(1, int(count * HOW_MUCH))


def junk(generator):
    """A value of any type and size that JSON has."""
    nested = []
    for _ in range(generator.choice([1, 3, 90])):
        nested = [nested]
    return generator.choice(
        [None, True, False, 0, 1, -1, 2, 3, 64, 1 << 31, 1 << 62, 1 << 70, 10**4200, 0.5, 1.0,
         1e300, float("nan"), "", "x", "offset", "dim0", "dim1", "\x1b[31m\x07", "\u202e", "tile",
         "atom", [], [0, 0], [[1]], {}, {"name": "dim0"}, nested, "#ttg.nvmma_shared<{", "9" * 5000]
    )  # fmt: skip


def places(value, path=()):
    """The paths of all parts of a JSON value."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(len(value)):
            yield from places(value[index], (*path, index))


def mutated(document, generator):
    """A copy of a JSON value with one to three parts replaced, removed, doubled or changed."""
    made = copy.deepcopy(document)
    for _ in range(generator.choice([1, 1, 1, 2, 3])):
        where = generator.choice([path for path in places(made) if path] or [None])
        if where is None:
            return junk(generator)
        parent = made
        for key in where[:-1]:
            parent = parent[key]
        last, old = where[-1], parent[where[-1]]
        change = generator.choice(["junk", "junk", "remove", "double", "near", "add"])
        if change == "remove":
            del parent[last]
        elif change == "double" and isinstance(parent, list):
            parent.insert(last, copy.deepcopy(old))
        elif change == "near" and type(old) is int:
            parent[last] = generator.choice([old + 1, old - 1, 2 * old, old // 2, -old])
        elif change == "add" and isinstance(parent, dict):
            parent[generator.choice(["extra", "name", "size", "error"])] = junk(generator)
        else:
            parent[last] = junk(generator)
    return made
