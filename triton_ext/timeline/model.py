"""The model of the GPU: what SMs have of what they share, the replay, and the clock."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from triton_ext.hardware.architecture import SHARED_MEMORY_PER_BLOCK
from triton_ext.hardware.architecture import resident_clusters as resident
from triton_ext.hardware.tensor_memory import TMEM_COLUMNS
from triton_ext.timeline.demand import MMA, Demand
from triton_ext.timeline.gpus import Gpu
from triton_ext.timeline.power import powered_clock
from triton_ext.timeline.replay import Replay, Result
from triton_ext.timeline.sass import MMA_OPERATIONS
from triton_ext.timeline.trace import COPY, LINE_BYTES, RUN, Trace, loads_of
from triton_ext.timeline.units import Share, of_lines

MAX_BLOCKS, MAX_THREADS, REGISTERS = 32, 2048, 65536
"""The limits of an SM (CUDA C++ Programming Guide, "Technical Specifications per Compute
Capability")."""
WAVES = 3
"""How many turns of an SM are replayed; further ones take as long as the last of them."""
LEAD = 5e-7
"""Seconds before it may go on, in which a block that finds room is taken to have started."""


def slots(trace: Trace) -> int:
    """How many blocks of a launch an SM has room for."""
    limits = [MAX_BLOCKS, MAX_THREADS // trace.threads]
    limits.append((SHARED_MEMORY_PER_BLOCK + 1024) // (trace.shared_bytes + 1024))
    if trace.registers:
        limits.append(REGISTERS // (-(-trace.registers // 8) * 8 * trace.threads))
    if trace.columns:
        limits.append(TMEM_COLUMNS // trace.columns)
    return max(1, min(limits))


@dataclass(frozen=True)
class Model(Demand):
    """The times of a launch with these parameters of the GPU, or others."""

    def shares(self, gpu: Gpu, clock: float) -> list[Share]:
        """What a cluster has in each of the first waves."""
        at_once = self._groups * self._slots
        found: list[Share] = []
        for first in range(0, self.trace.number, at_once):
            here = min(at_once, max(1.0, self._number - first))
            found.append(self._share(gpu, clock, min(here, self._groups), not first))
            if len(found) > WAVES:
                break
        if self.trace.number <= at_once:
            shortest, longer = self._uneven
            clusters = min(self._number, self._groups) * longer
            if clusters > 0:
                then = self._share(gpu, clock, clusters, True)
                beside = -(-self.trace.number // self._groups)
                found = [replace(found[0], then=(shortest * beside, then))]
        return found

    def _share(self, gpu: Gpu, clock: float, clusters: float, first: bool) -> Share:
        """What each has of so many clusters that run side by side."""
        blocks = clusters * self.trace.blocks_each
        begin, released = self._start(gpu)
        memory = self._of_memory(gpu, clusters)
        way = self._way(gpu, clock, memory * clusters, blocks)
        return Share(
            l2=gpu.l2_bytes / way / clock / clusters,
            memory=memory / way / clock,
            busy=min(1.0, memory * clusters / gpu.memory_bytes),
            received=gpu.tma_bytes / way,
            stores=min(gpu.store_bytes, gpu.stores / clock / blocks),
            misses=self._misses,
            written=self._written,
            aligned=[memory.aligned for memory in self.trace.memories],
            line=[self._line(asking) for asking in self._asking],
            several=[self._several(asking) for asking in self._asking],
            first=first or gpu.catch_up,
            released=(released - begin) * clock if first else 0.0,
        )

    @functools.cached_property
    def _groups(self) -> int:
        """How many clusters run side by side, each on SMs of its own."""
        return max(1, resident(self.gpu.multiprocessors, self.trace.blocks_each))

    @functools.cached_property
    def _slots(self) -> int:
        return slots(self.trace)

    def _way(self, gpu: Gpu, clock: float, memory: float, blocks: float) -> float:
        """How much longer loads take than the unit on their way that binds them, if so many blocks
        ask for them: memory, L2 cache and TMA units are busy at different times, and what the grid
        takes of each adds up as the sides of a right angle do. (With steps of such times, 7,900
        kernels of the surveys to fit are 7.1 and 6.1 % off on the H200 and H100, with the best
        exponent, 1.9 and 2.0; 10.8 and 9.6 % if the longest alone counts.)

        Args:
            memory: its bytes/s.
        """
        alone = (
            self._lines / gpu.l2_bytes,
            self._missed / memory,
            self._received / (gpu.tma_bytes * clock * blocks),
        )
        return math.hypot(*alone) / max(alone) if any(alone) else 1.0

    def _of_memory(self, gpu: Gpu, clusters: float) -> float:
        """What a cluster has of the memory's rate, bytes/s.

        TPCs get equal shares. If some have one block and others two, those who share one have
        loaded a half when the others are done, and then load as fast as two SMs can.
        """
        tpcs = gpu.multiprocessors // 2
        if self.trace.blocks_each > 1:
            return min(gpu.memory_bytes / clusters, gpu.sm_memory * self.trace.blocks_each)
        if clusters <= tpcs:
            return min(gpu.memory_bytes / clusters, gpu.sm_memory)
        alone = max((clusters - tpcs) / gpu.memory_bytes, 1 / (2 * gpu.sm_memory))
        return 1 / (tpcs / gpu.memory_bytes + alone)

    @functools.cached_property
    def _asking(self) -> list[float]:
        """For each piece of memory, how many clusters ask for a line of it at about the same time:
        a wave is taken to have the grid's shape."""
        waves = max(1.0, self._number / (self._groups * self._slots))
        return [
            max(1.0, self._loaded.get(number, 0.0) / memory.size / math.sqrt(waves))
            for number, memory in enumerate(self.trace.memories)
        ]

    def _line(self, asking: float) -> float:
        """The time in which a line of a box comes, of that of one that only one SM asks for. SMs of
        a GPC get it at once: the L2 cache gives it to as many GPCs as there are among those that
        ask, spread at random."""
        gpu = self.gpu
        different: float = gpu.gpcs * (1 - (1 - 1 / gpu.gpcs) ** asking)
        return gpu.delivered + (1 - gpu.delivered) * different / asking

    def _several(self, asking: float) -> float:
        """The same of a line that goes to several blocks of a cluster: requests of clusters for the
        same one come one after the other."""
        return 1 + self.gpu.hot * (1 - 1 / asking)

    @functools.cached_property
    def _lines(self) -> float:
        """The bytes for which the L2 cache works to load what the grid loads."""
        found = 0.0
        for item in self._items():
            several = item[0] == COPY and len(item[7]) > 1
            for memory, size, rows in loads_of(item):
                line = (self._several if several else self._line)(self._asking[memory])
                found += of_lines(self.gpu, size, rows, self.trace.memories[memory].aligned, line)
            if item[0] == COPY:
                found += item[9] * self.gpu.absent_row * LINE_BYTES
        return found * self._each

    def _replay(
        self, gpu: Gpu, clock: float, *, keep: bool = False, free: frozenset[int] = frozenset()
    ) -> tuple[float, Result]:
        """The cycles of the whole grid, and the replay of what stands for it."""
        number = -(-self.trace.number // self._groups)
        replayed = min(number, max(WAVES * self._slots, len(self.trace.clusters)))
        replay = Replay(gpu, self.shares(gpu, clock), self._slots, keep=keep, free=free)
        result = replay.run(self.trace.stand_ins(replayed))
        cycles, more = result.cycles, number - replayed
        if more:
            first = result.ends[self._slots - 1]
            cycles += more * (result.ends[-1] - first) / (len(result.ends) - self._slots)
        return cycles, result

    def _energy(self, gpu: Gpu) -> float:
        """Joules of what the whole grid does, at the highest clock, but for what idle SMs take."""
        products = 0.0
        for m, n, size in self._products():
            each = gpu.flop_energy_8 if size <= 1 else gpu.flop_energy * size / 2
            products += 2 * m * n * 32 / size * each + (m + n) * 32 * gpu.operand_energy
        turns = sum(float(item[3][MMA]) for item in self._items() if item[0] == RUN)
        products += turns * MMA_OPERATIONS * gpu.flop_energy
        lines = self._each * sum(
            of_lines(gpu, size, rows, self.trace.memories[memory].aligned)
            for item in self._items()
            for memory, size, rows in loads_of(item)
        )
        moved = gpu.l2_energy * (lines + sum(self._stored))
        moved += gpu.memory_energy * (self._missed + self._all_written)
        return products * self._each + moved

    def _at(
        self, gpu: Gpu, clock: float, *, keep: bool = False, free: frozenset[int] = frozenset()
    ) -> tuple[float, Result]:
        """Seconds at a clock, and the replay."""
        cycles, result = self._replay(gpu, clock, keep=keep, free=free)
        seconds = self._start(gpu)[0] + cycles / clock
        # memory writes what the kernel before, the same one, has stored
        moved = self._missed + gpu.write * self._all_written
        return max(seconds, moved / gpu.memory_bytes), result

    def _solve(
        self, gpu: Gpu, *, keep: bool = False, free: frozenset[int] = frozenset()
    ) -> tuple[float, float, Result]:
        """Seconds, the clock, and the replay."""
        seconds, result = self._at(gpu, gpu.clock, keep=keep, free=free)
        clock = limited_clock([self], gpu, seconds, free)
        if clock < gpu.clock:
            seconds, result = self._at(gpu, clock, keep=keep, free=free)
        return seconds, clock, result

    def _start(self, gpu: Gpu) -> tuple[float, float]:
        """Seconds from the end of the kernel before, which is taken to be the same one, to the
        first instruction; and to what waits for that kernel."""
        together = gpu.cluster * (self.trace.blocks_each > 1)
        if not any("griddepcontrol.launch_dependents" in line.text for line in self.trace.lines):
            blocks = min(self.trace.number * self.trace.blocks_each, gpu.multiprocessors)
            described = any(item[0] == COPY for item in self._items())
            every = (gpu.start + gpu.descriptors * described) * blocks / gpu.multiprocessors
            return gpu.launch + every + together, 0.0
        if 2 * self.trace.number <= self._groups * self._slots:  # there is room beside it
            released = gpu.released + gpu.beside * (self.trace.blocks_each > 1)
            return released - LEAD, released
        begin = gpu.late + together
        return begin, max(begin, gpu.released)

    @functools.cached_property
    def _solution(self) -> tuple[float, float, Result]:
        return self._solve(self.gpu)


def limited_clock(
    launches: Sequence[Model], gpu: Gpu, highest: float, free: frozenset[int] = frozenset()
) -> float:
    """The clock that the power limit leaves kernels that run in turn, over and over, and take so
    many seconds at the highest one."""
    energy = sum(each._energy(gpu) for each in launches)
    fixed = sum(each._start(gpu)[0] for each in launches)
    cycles = (highest - fixed) * gpu.clock
    lower = powered_clock(gpu, energy, fixed, cycles)
    if lower < 0.999 * gpu.clock:
        # what does not depend on the clock, as memory's share, takes fewer cycles
        seconds = sum(each._at(gpu, lower, free=free)[0] for each in launches)
        cycles = min(cycles, max(0.0, (seconds - highest) / (1 / lower - 1 / gpu.clock)))
        lower = powered_clock(gpu, energy, highest - cycles / gpu.clock, cycles)
    return lower
