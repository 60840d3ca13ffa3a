"""From a recorded run to the time on a GPU, what binds it, and what would change it."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from triton_ext.timeline.accuracy import in_words, known_errors
from triton_ext.timeline.model import Model, limited_clock
from triton_ext.timeline.replay import Result
from triton_ext.timeline.trace import COPY, PHASE, WAIT, brought_by
from triton_ext.timeline.units import UNITS

BINDS = 0.6
"""The share of the time in which a unit must work so that it is what binds."""
LATENCIES = ("l2_latency", "memory_latency", "tma_latency", "tma_memory_latency", "queue")
"""The latencies of loads, by their names in `triton_ext.timeline.gpus`."""
ENDLESS = 1e9
"""How much faster a unit is that costs nothing."""
SHOWN_STALLS = 3
"""How many of the longest waits are shown."""


@dataclass(frozen=True)
class Stall:
    """An instruction at which warps waited.

    Attributes:
        location: the source line, or the instruction.
        what: what they waited for.
        share: the part of all cycles of all warps that they waited here.
    """

    location: str
    what: str
    share: float


@dataclass(frozen=True)
class Timeline(Model):
    """The predicted course of one launch on a GPU; the arguments are those of `Demand`."""

    @property
    def seconds(self) -> float:
        """The time from the end of the kernel before to the end of this one, in a stream."""
        return self._solution[0]

    @property
    def clock(self) -> float:
        """The clock of the SMs, in Hz."""
        return self._solution[1]

    @property
    def utilisation(self) -> dict[str, float]:
        """The part of the time in which each unit of an SM works."""
        result = self._solution[2]
        return {unit: result.busy[unit] / max(result.cycles, 1.0) for unit in UNITS}

    @property
    def bound(self) -> str:
        """What limits the time: a unit, "power", "launch", or "latency" if no unit works mostly."""
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
        """The seconds that it would take if something cost nothing, by what that is.

        "more stages": no warp that starts TMA loads waits for an empty stage, which is a bound for
        pipelines of any length.
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
        """The prediction as an object for JSON.

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
        """The prediction in words, a line each."""
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

    def spans(self) -> Result:
        """The replay with its intervals, in cycles of `clock`."""
        return self._solve(self.gpu, keep=True)[2]


def in_turn(timelines: Sequence[Timeline]) -> list[Timeline]:
    """The same kernels if they run in turn, over and over: they share the clock that the energy of
    all of them allows."""
    gpu = timelines[0].gpu
    highest = sum(each._at(gpu, gpu.clock)[0] for each in timelines)
    clock = limited_clock(timelines, gpu, highest)
    return [replace(each, gpu=gpu.but(clock=clock, power=math.inf)) for each in timelines]
