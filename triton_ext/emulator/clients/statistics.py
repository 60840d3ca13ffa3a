"""Statistics: what a launch executed, moved and waited for, counted."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np

from triton_ext.emulator.clients.reach import Reach
from triton_ext.emulator.decode.step import Step
from triton_ext.emulator.schedule.observers import Observer
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import AsyncOperation, Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.memory import Addresses
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.hardware.banks import LINE_BYTES, warp_access


class Wavefronts:
    """How many wavefronts accesses of shared memory take; what was computed once is kept."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, int], tuple[int, int]] = {}

    def __call__(
        self, lanes: Lanes, addresses: Addresses, width: int
    ) -> list[tuple[int, int, int]]:
        """For each warp: its number, its wavefronts, and how many it had without conflicts."""
        threads = lane_sets.indices(lanes)
        result = []
        for warp in np.unique(threads // WARP_THREADS).tolist():
            offsets = np.full(WARP_THREADS, -1)
            here = threads // WARP_THREADS == warp
            line = int(addresses[here].min()) // LINE_BYTES * LINE_BYTES
            offsets[threads[here] % WARP_THREADS] = addresses[here] - line
            key = (offsets.tobytes(), width)
            if key not in self._known:
                found = warp_access([int(n) if n >= 0 else None for n in offsets], width)
                self._known[key] = (found.wavefronts, found.ideal_wavefronts)
            result.append((warp, *self._known[key]))
        return result


_KINDS = (
    ("tensor core", re.compile(r"wgmma\.mma|tcgen05\.mma|mma\.sync")),
    ("tensor memory", re.compile(r"tcgen05")),
    ("TMA", re.compile(r"cp\.(?:reduce\.)?async\.bulk|tensormap")),
    ("asynchronous copy", re.compile(r"cp\.async")),
    ("barrier", re.compile(r"mbarrier|bar\.|barrier|fence|membar|wgmma|elect")),
    ("matrix load or store", re.compile(r"ldmatrix|stmatrix|movmatrix")),
    ("memory", re.compile(r"(?:ld|st|atom|red)\.")),
    ("warp", re.compile(r"shfl|vote|match|redux|activemask")),
    ("branch", re.compile(r"bra|brx|ret|exit|call")),
    ("conversion", re.compile(r"cvt")),
)


def kind_of(opcode: str) -> str:
    """What an instruction is about; "arithmetic" if nothing else."""
    return next((name for name, pattern in _KINDS if pattern.match(opcode)), "arithmetic")


class Statistics(Observer):
    """Counts: instructions (of warps), bytes moved, products issued, bank conflicts, waits.

    Attributes:
        instructions: how many warps executed an opcode, by opcode.
        bytes: how many were moved, by space and direction; in shared memory also by asynchronous
            unit.
        wavefronts, ideal_wavefronts: how many the loads and stores of shared memory take, and
            would take without bank conflicts.
        waited: how often lanes had to wait, by opcode.
        done: how many asynchronous operations were done, by opcode.
        reach: what of each tensor was read and written.
    """

    def __init__(self) -> None:
        self.instructions: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.waited: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.reach = Reach()
        self.wavefronts = 0
        self.ideal_wavefronts = 0
        self._wavefronts = Wavefronts()

    def instruction(self, cta: Cta, step: Step, lanes: Lanes) -> None:
        self.instructions[step.instruction.opcode] += len(lane_sets.warps(lanes))

    def waits(self, cta: Cta, step: Step, lanes: Lanes) -> None:
        self.waited[step.instruction.opcode] += len(lane_sets.warps(lanes))

    def completed(self, operation: AsyncOperation) -> None:
        if operation.instruction is not None:
            self.done[operation.instruction.opcode] += 1

    def access(
        self, cta: Cta, lanes: Lanes, space: str, addresses: Addresses, width: int, kind: str
    ) -> None:
        self.bytes[f"{space} {kind}"] += len(addresses) * width
        if space == "global":
            self.reach.touch(cta, addresses, width, kind)
        if space != "shared" or kind == "atomic":
            return
        for _, wavefronts, ideal in self._wavefronts(lanes, addresses, width):
            self.wavefronts += wavefronts
            self.ideal_wavefronts += ideal

    def copies(self, cta: Cta, lanes: Lanes, kind: str, box: Any, address: int, size: int) -> None:
        self.reach.copies(cta, kind, box, address, size)

    def moved(self, cta: Cta, unit: str, kind: str, size: int) -> None:
        self.bytes[f"shared {kind} by {unit}"] += size

    def as_object(self) -> dict[str, Any]:
        """All counts, as JSON's types."""
        kinds: Counter[str] = Counter()
        for opcode, number in self.instructions.items():
            kinds[kind_of(opcode)] += number
        return {
            "warp_instructions": sum(self.instructions.values()),
            "by_kind": dict(kinds.most_common()),
            "by_opcode": dict(self.instructions.most_common()),
            "bytes": dict(sorted(self.bytes.items())),
            "shared_memory": {
                "wavefronts": self.wavefronts,
                "ideal_wavefronts": self.ideal_wavefronts,
            },
            "asynchronous_operations": dict(self.done.most_common()),
            "waits": dict(self.waited.most_common()),
            "global_memory": self.reach.as_object(),
        }

    def lines(self) -> list[str]:
        """All counts, in words, the largest first."""
        found = self.as_object()
        lines = [f"{found['warp_instructions']} warp instructions"]
        lines += [f"  {number:>10}  {name}" for name, number in found["by_kind"].items()]
        for title, key in (
            ("bytes moved", "bytes"),
            ("asynchronous operations", "asynchronous_operations"),
            ("waits (of warps)", "waits"),
        ):
            if found[key]:
                lines.append(title)
                lines += [f"  {number:>10}  {name}" for name, number in found[key].items()]
        if self.wavefronts:
            lines.append(
                f"shared-memory wavefronts: {self.wavefronts}, {self.ideal_wavefronts} without"
                " bank conflicts"
            )
        return [*lines, *self.reach.lines()]
