"""From a recorded run to the time on a GPU, what binds it, and what would change it."""

from __future__ import annotations

import functools
import math
import operator
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from triton_ext.hardware.architecture import SHARED_MEMORY_PER_BLOCK
from triton_ext.hardware.architecture import resident_clusters as resident
from triton_ext.hardware.tensor_memory import TMEM_COLUMNS
from triton_ext.timeline.accuracy import in_words, known_errors
from triton_ext.timeline.gpus import Gpu
from triton_ext.timeline.power import powered_clock
from triton_ext.timeline.replay import UNITS, Replay, Result, Share, of_lines
from triton_ext.timeline.sass import MMA_OPERATIONS, PIPES
from triton_ext.timeline.trace import (
    COPY,
    GLOBAL,
    LINE_BYTES,
    PHASE,
    PRODUCT,
    RUN,
    SECTOR_BYTES,
    STORE,
    TENSOR,
    WAIT,
    Item,
    Trace,
    brought_by,
    loads_of,
)

MAX_BLOCKS, MAX_THREADS, REGISTERS = 32, 2048, 65536
"""The limits of an SM (CUDA C++ Programming Guide, "Technical Specifications per Compute
Capability")."""
WAVES = 3
"""How many turns of an SM are replayed; further ones take as long as the last of them."""
BINDS = 0.6
"""The share of the time in which a unit must work so that it is what binds."""
LATENCIES = ("l2_latency", "memory_latency", "tma_latency", "tma_memory_latency", "queue")
"""The latencies of loads, by their names in `triton_ext.timeline.gpus`."""
MMA = PIPES.index("mma.sync")
ENDLESS = 1e9
"""How much faster a unit is that costs nothing."""
EVEN = 1.05
"""Clusters are alike if none loads more than so many times what another one does."""
SHOWN_STALLS = 3
"""How many of the longest waits are shown."""
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
class Stall:
    """Where warps waited.

    Attributes:
        location: the source line, or the instruction.
        what: what they waited for.
        share: the cycles that warps waited here, of all cycles of all warps.
    """

    location: str
    what: str
    share: float


@dataclass(frozen=True)
class Timeline:
    """What one launch would take on a GPU.

    Args:
        trace: the recorded run.
        gpu: the parameters.
    """

    trace: Trace
    gpu: Gpu

    # ------------------------------------------------------------------ the model of the GPU

    @functools.cached_property
    def _loaded(self) -> dict[int, float]:
        """Bytes that the grid loads of each piece of global memory."""
        found: defaultdict[int, float] = defaultdict(float)
        for item in self._items():
            for memory, size, _ in loads_of(item):
                found[memory] += size
        return {memory: size * self._each for memory, size in found.items()}

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

    @property
    def _each(self) -> float:
        """How many clusters of the grid a recorded one that works stands for."""
        return self._number / len(self._working)

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

    def _items(self) -> Iterator[Item]:
        for cluster in self.trace.clusters.values():
            yield from cluster.items()

    @functools.cached_property
    def _groups(self) -> int:
        """How many clusters run side by side, each on SMs of its own."""
        return max(1, resident(self.gpu.multiprocessors, self.trace.blocks_each))

    @functools.cached_property
    def _slots(self) -> int:
        return slots(self.trace)

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

    def _at(
        self, gpu: Gpu, clock: float, *, keep: bool = False, free: frozenset[int] = frozenset()
    ) -> tuple[float, Result]:
        """Seconds at a clock, and the replay."""
        cycles, result = self._replay(gpu, clock, keep=keep, free=free)
        seconds = self._launch(gpu) + cycles / clock
        # memory writes what the kernel before, the same one, has stored
        moved = self._missed + gpu.write * self._all_written
        return max(seconds, moved / gpu.memory_bytes), result

    def _solve(
        self, gpu: Gpu, *, keep: bool = False, free: frozenset[int] = frozenset()
    ) -> tuple[float, float, Result]:
        """Seconds, the clock, and the replay."""
        seconds, result = self._at(gpu, gpu.clock, keep=keep, free=free)
        clock = _limited([self], gpu, seconds, free)
        if clock < gpu.clock:
            seconds, result = self._at(gpu, clock, keep=keep, free=free)
        return seconds, clock, result

    def _launch(self, gpu: Gpu) -> float:
        """Seconds from the end of the kernel before to the first instruction, and of the end."""
        return self._start(gpu)[0]

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

    # --------------------------------------------------------------------- what a user asks

    @property
    def seconds(self) -> float:
        """From the end of the kernel before to the end of this one, in a stream of kernels."""
        return self._solution[0]

    @property
    def clock(self) -> float:
        """The clock of the SMs, in Hz."""
        return self._solution[1]

    @property
    def utilisation(self) -> dict[str, float]:
        """For each unit of an SM, the share of the time in which it works."""
        result = self._solution[2]
        return {unit: result.busy[unit] / max(result.cycles, 1.0) for unit in UNITS}

    @property
    def bound(self) -> str:
        """What binds: a unit; "power"; "launch"; or "latency", if none works most of the time."""
        if self.gpu.launch > 0.5 * self.seconds:
            return "launch"
        unit, share = max(self.utilisation.items(), key=lambda each: each[1])
        if share < BINDS:
            return "latency"
        throttled = unit == "tensor cores" and self.clock < 0.98 * self.gpu.clock
        return "power" if throttled else unit

    @functools.cached_property
    def stalls(self) -> list[Stall]:
        """Where warps waited, the longest first."""
        result = self._solution[2]
        found: defaultdict[tuple[str, str], float] = defaultdict(float)
        for (at, what), cycles in result.stalls.items():
            found[self.trace.lines[at].location, what.rpartition(PHASE)[0] or what] += cycles
        cluster = next(iter(self.trace.clusters.values()))
        every = result.cycles * sum(map(len, cluster.warps)) * min(self._slots, len(result.ends))
        return [
            Stall(location, what, cycles / max(every, 1.0))
            for (location, what), cycles in sorted(found.items(), key=lambda each: -each[1])
        ]

    def what_if(self) -> dict[str, float]:
        """The seconds, if something cost nothing; by what.

        "more stages": nobody who starts TMA loads waits until a stage is empty, which no
        pipeline can beat, however long.
        """
        faster = {
            "faster tensor cores": {"flops_per_cycle": ENDLESS, "operand_bytes": ENDLESS},
            "faster memory": {"memory_bytes": self.gpu.memory_bytes * ENDLESS},
            "faster L2 and TMA": {"l2_bytes": self.gpu.l2_bytes * ENDLESS, "tma_bytes": ENDLESS},
            "no latency of loads": dict.fromkeys(LATENCIES, 0.0),
            "fewer instructions": {"instruction_cycles": 0.0},
        }
        found = {}
        for name, changes in faster.items():
            scaled = {key: type(getattr(self.gpu, key))(value) for key, value in changes.items()}
            found[name] = self._solve(self.gpu.but(**scaled))[0]
        free = self._waits_of_loads()
        if free:
            found["more stages"] = self._solve(self.gpu, free=free)[0]
        return found

    def _waits_of_loads(self) -> frozenset[int]:
        """The waits of warps that start TMA loads, for barriers at which only warps arrive."""
        found: set[int] = set()
        for cluster in self.trace.clusters.values():
            brought = {
                token
                for block in cluster.warps
                for warp in block
                for item in warp
                for token in brought_by(item)
            }
            named = {number for number, name in cluster.names.items() if "mbarrier" in name}
            emptied = named - brought
            for block in cluster.warps:
                for warp in block:
                    if any(item[0] == COPY for item in warp):
                        found |= {
                            item[1] for item in warp if item[0] == WAIT and item[2] in emptied
                        }
        return frozenset(found)

    def as_object(self, stalls: int | None = SHOWN_STALLS) -> dict[str, Any]:
        """All of it, as JSON's types.

        Args:
            stalls: how many of the longest; None for all.
        """
        return {
            "kernel": self.trace.name,
            "gpu": self.gpu.name,
            "seconds": self.seconds,
            "clock_hz": self.clock,
            "costs": "binary" if self.trace.binary else "PTX",
            "bound": self.bound,
            "blocks": math.prod(self.trace.grid),
            "blocks_of_an_sm": self._slots,
            "utilisation": self.utilisation,
            "stalls": [
                {"place": each.location, "what": each.what, "share": each.share}
                for each in self.stalls[:stalls]
            ],
            "what_if": self.what_if(),
            "known_errors": [vars(each) for each in known_errors(self.gpu, self.flops > 0)],
        }

    def lines(self) -> list[str]:
        """All of it, in words."""
        found = self.as_object()
        article = "an" if self.gpu.name[:1] in "AEFHILMNORSX8" else "a"
        rate = f", {self.flops / self.seconds / 1e12:.0f} TFLOP/s" if self.flops else ""
        lines = [
            f"{found['kernel']}: {self.seconds * 1e6:.1f} us on {article} {self.gpu.name}"
            f" (predicted; {in_words(self.gpu, self.flops > 0)}){rate}; what binds: {self.bound}",
            f"  {found['blocks']} blocks of {self.trace.threads} threads, {self._slots} an SM;"
            f" {len(self.trace.clusters)} clusters recorded; clock {self.clock / 1e6:.0f} MHz"
            + "; no listing of the binary (nvdisasm): costs are of PTX"
            * (not self.trace.binary),
            "  busy: "
            + ", ".join(f"{unit} {share:.0%}" for unit, share in self.utilisation.items() if share),
        ]
        for stall in self.stalls[:SHOWN_STALLS]:
            what = f" for {stall.what}" if stall.what else ""
            lines.append(f"  {stall.share:4.0%} of the warps' time: {stall.location} waits{what}")
        for name, seconds in sorted(found["what_if"].items(), key=lambda each: each[1]):
            change = seconds / self.seconds - 1
            if change < -0.005:
                lines.append(f"  {change:+5.0%} with {name}")
        return lines

    # ------------------------------------------------------------------------------- pictures

    def spans(self) -> Result:
        """The replay with all that took time: cycles of `clock`."""
        return self._solve(self.gpu, keep=True)[2]


def in_turn(timelines: Sequence[Timeline]) -> list[Timeline]:
    """The same kernels if they run in turn, over and over, and not each by itself: they have one
    clock, that of the energy of all."""
    gpu = timelines[0].gpu
    highest = sum(each._at(gpu, gpu.clock)[0] for each in timelines)
    clock = _limited(timelines, gpu, highest)
    return [replace(each, gpu=gpu.but(clock=clock, power=math.inf)) for each in timelines]


def _limited(
    timelines: Sequence[Timeline], gpu: Gpu, highest: float, free: frozenset[int] = frozenset()
) -> float:
    """The clock that the power limit leaves kernels that run in turn, over and over, and take so
    many seconds at the highest one."""
    energy = sum(each._energy(gpu) for each in timelines)
    fixed = sum(each._launch(gpu) for each in timelines)
    cycles = (highest - fixed) * gpu.clock
    lower = powered_clock(gpu, energy, fixed, cycles)
    if lower < 0.999 * gpu.clock:
        # what does not depend on the clock, as memory's share, takes fewer cycles
        seconds = sum(each._at(gpu, lower, free=free)[0] for each in timelines)
        cycles = min(cycles, max(0.0, (seconds - highest) / (1 / lower - 1 / gpu.clock)))
        lower = powered_clock(gpu, energy, highest - cycles / gpu.clock, cycles)
    return lower
