"""What the limits of a cost model leave unexplained: a factor learnt from measured times.

A sum of regression trees, all of the same depth: at each node a feature is compared with a
threshold, and what is not greater goes to the left. ``python -m benchmarks.fit --correction``
learns them by gradient boosting.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from triton_ext.kernels.choice.gpus import GpuModel

Rows: TypeAlias = "np.ndarray[Any, Any] | Sequence[Sequence[float]]"
"""The features of each configuration."""
TOGETHER = 100
"""How many trees are walked through at a time: what that takes fits a processor's cache."""
FOLDER = Path(__file__).parent
COMMON = "hopper"
"""What is learnt from the times of all GPUs; of each, what is left."""


def file_of(name: str, folder: Path = FOLDER) -> Path:
    """Where that of a GPU is, or the one in common."""
    return folder / f"corrections_{name}.npz"


@dataclass(frozen=True)
class Trees:
    """Trees of one depth D, the nodes of each in rows from the root on.

    Attributes:
        names: of the features.
        features: (trees, 2^D - 1), which feature a node compares.
        thresholds: (trees, 2^D - 1), with what.
        leaves: (trees, 2^D), what each adds to the logarithm of the time.
    """

    names: tuple[str, ...]
    features: np.ndarray[Any, Any]
    thresholds: np.ndarray[Any, Any]
    leaves: np.ndarray[Any, Any]

    def __call__(self, rows: Rows) -> np.ndarray[Any, Any]:
        """What to add to the logarithm of each predicted time, given its features."""
        values = np.asarray(rows, dtype=np.float32).reshape(len(rows), len(self.names))
        total = np.zeros(len(values))
        for first in range(0, len(self.features), TOGETHER):
            total += self._walked(values, slice(first, first + TOGETHER))
        return total

    def _walked(self, values: np.ndarray[Any, Any], some: slice) -> np.ndarray[Any, Any]:
        """What some of the trees add."""
        features = self.features[some].astype(np.int32) * len(values)
        thresholds, leaves = self.thresholds[some], self.leaves[some]
        columns, row = values.T.ravel(), np.arange(len(values), dtype=np.int32)
        trees, inside = features.shape
        root = np.arange(trees, dtype=np.int32)[:, None] * inside
        at = np.repeat(root, len(values), axis=1)
        for _ in range(inside.bit_length()):
            goes_right = columns.take(features.take(at) + row) > thresholds.take(at)
            at = 2 * at - root + 1 + goes_right
        found: np.ndarray[Any, Any] = np.take_along_axis(leaves, at - root - inside, 1).sum(axis=0)
        return found

    def save(self, path: Path) -> None:
        """Write what `load` reads: thresholds and leaves in 32 bits, compressed."""
        np.savez_compressed(
            path,
            names=np.array(self.names),
            features=self.features.astype(np.uint8),
            thresholds=self.thresholds.astype(np.float32),
            leaves=self.leaves.astype(np.float32),
        )

    @classmethod
    def load(cls, path: Path) -> Trees:
        """The trees that `save` has written."""
        with np.load(path) as values:
            leaves = values["leaves"].astype(np.float64)
            return cls(
                tuple(values["names"].tolist()), values["features"], values["thresholds"], leaves
            )


@functools.cache
def learnt(gpu: GpuModel) -> tuple[Trees, ...]:
    """What all have in common, and its own; they add up."""
    return tuple(Trees.load(file_of(name)) for name in (COMMON, gpu))


def correction(rows: Rows, gpu: GpuModel) -> np.ndarray[Any, Any]:
    """What to add to the logarithm of each time predicted for a GPU, given its features."""
    return added(learnt(gpu), rows)


def added(parts: Sequence[Trees], rows: Rows) -> np.ndarray[Any, Any]:
    """What several corrections add up to."""
    return sum((trees(rows) for trees in parts), start=np.zeros(len(rows)))
