"""What the limits of a cost model leave unexplained: a factor learnt from measured times.

A sum of *oblivious* regression trees: all nodes of a level compare the same feature with the same
border, so that the answers of a tree's levels are the bits of a leaf's number. Trees share their
comparisons. ``python -m benchmarks.fit --correction`` learns them by gradient boosting.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"
Rows: TypeAlias = "Array | Sequence[Sequence[float]]"
"""The features of each kernel."""
TOGETHER = 200
"""How many trees are looked up at a time: what that takes fits a processor's cache."""
FILE = Path(__file__).with_name("corrections.npz")


@dataclass(frozen=True)
class Trees:
    """Trees with as many levels D each, 8 at most: a leaf's number is one byte.

    Attributes:
        names: of the features.
        features, borders: (comparisons), which feature is greater than what.
        levels: (trees, D), the comparison of each level; the first is a leaf's lowest bit.
        leaves: (trees, 2^D), what each adds to the logarithm of the time.
    """

    names: tuple[str, ...]
    features: Array
    borders: Array
    levels: Array
    leaves: Array

    def __call__(self, rows: Rows) -> Array:
        """What to add to the logarithm of each predicted time, given its features."""
        values = np.asarray(rows, dtype=np.float32).reshape(len(rows), len(self.names))
        answers = (values.T[self.features] > self.borders[:, None]).view(np.uint8)
        total = np.zeros(len(values))
        size = self.leaves.shape[1]
        for first in range(0, len(self.levels), TOGETHER):
            levels, leaves = (each[first : first + TOGETHER] for each in (self.levels, self.leaves))
            bits = (answers[level] << bit for bit, level in enumerate(levels.T))
            leaf = functools.reduce(np.bitwise_or, bits)  # (trees, rows)
            at = leaf + np.arange(0, leaves.size, size, dtype=np.int32)[:, None]
            total += leaves.take(at).sum(axis=0, dtype=np.float64)
        return total

    def save(self, path: Path) -> None:
        """Write what `load` reads: borders in 32 bits, leaves in 16. (Compressed, it would take a
        process's first choice 7 ms more.)
        """
        np.savez(
            path,
            names=np.array(self.names),
            features=self.features.astype(np.uint8),
            borders=self.borders.astype(np.float32),
            levels=self.levels.astype(np.uint16),
            leaves=self.leaves.astype(np.float16),
        )

    @classmethod
    def load(cls, path: Path) -> Trees:
        """The trees that `save` has written."""
        with np.load(path) as values:
            leaves = values["leaves"].astype(np.float32)
            names = tuple(values["names"].tolist())
            return cls(names, values["features"], values["borders"], values["levels"], leaves)


@functools.cache
def learnt() -> Trees | None:
    """What is learnt from the times of all GPUs; None without `FILE`: the limits decide alone."""
    return Trees.load(FILE) if FILE.exists() else None
