"""What a launch asks of the GPU: the sums over its grid, of which some clusters were recorded."""

from __future__ import annotations

import functools
import operator
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from triton_ext.timeline.gpus import Gpu
from triton_ext.timeline.sass import MMA_OPERATIONS, PIPES
from triton_ext.timeline.trace import (
    COPY,
    GLOBAL,
    PRODUCT,
    RUN,
    SECTOR_BYTES,
    STORE,
    TENSOR,
    Item,
    Trace,
    loads_of,
)

MMA = PIPES.index("mma.sync")
EVEN = 1.05
"""Clusters are alike if none loads more than so many times what another one does."""


@dataclass(frozen=True)
class Demand:
    """What the grid of one launch asks of a GPU.

    Args:
        trace: the recorded run.
        gpu: the parameters.
    """

    trace: Trace
    gpu: Gpu

    @functools.cached_property
    def _working(self) -> list[int]:
        """The numbers of the recorded clusters, without those that load nothing where others do."""
        clusters = self.trace.clusters.items()
        loading = (
            number
            for number, cluster in clusters
            if any(True for item in cluster.items() for _ in loads_of(item))
        )
        return sorted(loading) or sorted(self.trace.clusters)

    @functools.cached_property
    def _number(self) -> float:
        """About how many clusters of the grid have something to do. If K is divided, there may be
        fewer parts of tiles than blocks: the last ones, from half-way on between two recorded
        ones."""
        idle = [number for number in self.trace.clusters if number > self._working[-1]]
        return (self._working[-1] + 1 + min(idle)) / 2 if idle else self.trace.number

    @property
    def _each(self) -> float:
        """How many clusters of the grid a recorded one that works stands for."""
        return self._number / len(self._working)

    def _items(self) -> Iterator[Item]:
        for cluster in self.trace.clusters.values():
            yield from cluster.items()

    @functools.cached_property
    def flops(self) -> float:
        """Operations of the tensor cores in the whole grid."""
        work = sum(2 * m * n * 32 / size for m, n, size in self._products())
        turns = sum(float(item[3][MMA]) for item in self._items() if item[0] == RUN)
        return (work + turns * MMA_OPERATIONS) * self._each

    def _products(self) -> Iterator[tuple[int, int, float]]:
        """Rows, columns and element bytes of each product of 32 bytes of K."""
        for item in self._items():
            if item[0] == PRODUCT:
                yield 64, item[2], item[3]
            elif item[0] == TENSOR and item[2]:
                yield item[2:5]

    @functools.cached_property
    def _loaded(self) -> dict[int, float]:
        """Bytes that the grid loads of each piece of global memory."""
        found: defaultdict[int, float] = defaultdict(float)
        for item in self._items():
            for memory, size, _ in loads_of(item):
                found[memory] += size
        return {memory: size * self._each for memory, size in found.items()}

    @functools.cached_property
    def _misses(self) -> list[float]:
        """For each piece of memory, how much of its loads comes from memory: the first time, if
        the kernel itself has not written it before."""
        if self.gpu.warm:
            return [0.0] * len(self.trace.memories)
        first: dict[int, bool] = {}
        for item in self._items():
            if item[0] == GLOBAL:
                first.setdefault(item[4], item[5] < 0)
        return [
            0.0
            if first.get(number)
            else min(1.0, memory.size / self._loaded[number])
            if self._loaded.get(number)
            else 1.0
            for number, memory in enumerate(self.trace.memories)
        ]

    @functools.cached_property
    def _missed(self) -> float:
        """Bytes that the grid loads from memory."""
        return sum(self._loaded.get(n, 0.0) * share for n, share in enumerate(self._misses))

    @functools.cached_property
    def _stored(self) -> list[float]:
        """For each piece of memory, the bytes that the grid stores there."""
        found = [0.0] * len(self.trace.memories)
        for item in self._items():
            if item[0] == STORE and item[4] >= 0:
                found[item[4]] += item[2] * self._each
            elif item[0] == GLOBAL and item[5] < 0:
                found[item[4]] += item[2] * SECTOR_BYTES * self._each
        return found

    @functools.cached_property
    def _written(self) -> list[float]:
        """For each piece of memory, how much of what is stored there memory has to write: each
        byte once."""
        if self.gpu.warm:
            return [0.0] * len(self.trace.memories)
        return [
            min(1.0, memory.size / stored) if stored else 1.0
            for memory, stored in zip(self.trace.memories, self._stored, strict=True)
        ]

    @property
    def _all_written(self) -> float:
        """The bytes that memory writes."""
        found: float = sum(map(operator.mul, self._stored, self._written))
        return found

    @functools.cached_property
    def _received(self) -> float:
        """The bytes that TMA brings all blocks."""
        copies = (item for item in self._items() if item[0] == COPY)
        found: float = sum(item[3] * max(1, len(item[7])) for item in copies)
        return found * self._each

    @functools.cached_property
    def _uneven(self) -> tuple[float, float]:
        """The bytes that a cluster loads from memory which has the least to do; how many clusters
        have more, of all."""
        loads = [
            sum(
                size * self._misses[memory]
                for item in self.trace.clusters[number].items()
                for memory, size, _ in loads_of(item)
            )
            for number in self._working
        ]
        least, most = min(loads), max(loads)
        if most <= EVEN * least:
            return most, 0.0
        mean = self._missed / self._number
        return least, min(1.0, max(0.0, (mean - least) / (most - least)))
