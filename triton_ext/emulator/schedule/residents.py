"""The clusters of a launch: those that wait, and those that have started."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from triton_ext.emulator.decode.program import Program
from triton_ext.emulator.errors import Deadlock, EmulationError
from triton_ext.emulator.schedule.fibers import Fibers
from triton_ext.emulator.schedule.loops import states
from triton_ext.emulator.schedule.operations import Operations
from triton_ext.emulator.schedule.schedule import Schedule
from triton_ext.emulator.schedule.standing import Standing, check_parked, standing, told
from triton_ext.emulator.state.block import Cluster, Gpu
from triton_ext.emulator.state.lockstep import Lockstep


@dataclass
class Resident:
    """A cluster that has started."""

    cluster: Cluster
    blocks: list[Fibers]

    @property
    def finished(self) -> bool:
        return all(cta.finished for cta in self.cluster.ctas)


class Residents:
    """Which clusters run.

    Attributes:
        waiting: those that have not started.
        running: those that have, and are not done.
    """

    def __init__(self, machine: Gpu, schedule: Schedule, operations: Operations) -> None:
        self._machine, self._schedule, self._operations = machine, schedule, operations
        processors = machine.target.capability.multiprocessors
        self._room = max(1, processors // math.prod(machine.launch.cluster))
        self.waiting: Sequence[int] = range(0)
        self.running: list[Resident] = []
        self._shares, self._beside = False, 1

    def prepare(self, program: Program, numbers: Sequence[int] | None) -> None:
        """Let clusters wait, by their numbers in the grid; None: all."""
        self.waiting = range(self._machine.launch.clusters) if numbers is None else numbers
        self.running = []
        opcodes = [step.instruction.opcode for step in program.steps]
        self._shares = self._schedule.clusters > 1 and any(
            each.startswith("clusterlaunchcontrol.try_cancel") for each in opcodes
        )
        self._beside = min(self._room, self._schedule.clusters)
        if self._shares:
            self._beside = max(1, min(self._beside, len(self.waiting) // 2))
        elif self._schedule.name == "random" and any(map(_counts, opcodes)):
            self._beside = self._schedule.random.randint(1, self._beside)
        if self._machine.options.together:
            self._beside = self._room

    def fill(self, program: Program) -> None:
        """Start as many clusters as run side by side."""
        while len(self.waiting) > self._owed() and len(self.running) < self._beside:
            self._start(program)

    def start_another(self, program: Program) -> bool:
        """Start a cluster more, which could do what others wait for; whether there was one."""
        if not self.waiting or len(self.running) >= self._room:
            return False
        self._start(program)
        return True

    def _start(self, program: Program) -> None:
        machine, schedule = self._machine, self._schedule
        together = min(machine.options.lockstep, len(self.waiting))
        numbers, self.waiting = self.waiting[:together], self.waiting[together:]
        machine.changes += 1
        cluster = Lockstep(machine, numbers) if together > 1 else Cluster(machine, numbers[0])
        meets = schedule.meets and not machine.launch.checks.strict
        blocks = [
            Fibers(cta, program, schedule, self._operations.complete_of, meets)
            for cta in cluster.ctas
        ]
        self.running.append(Resident(cluster, blocks))

    def take(self, asking: Cluster) -> int | None:
        """Take the next cluster that has not started off the grid: its number, if there is one.

        Args:
            asking: the one that takes its place. Under the random schedule it gets no second one
                while that would leave another one that runs without any, so that what a block does
                with its second tile is seen of as many as can have one.
        """
        if not self.waiting:
            return None
        if self._shares:
            if asking.taken > 0 and len(self.waiting) <= self._owed():
                return None
            asking.taken += 1
        number, self.waiting = self.waiting[0], self.waiting[1:]
        return number

    def _owed(self) -> int:
        """How many clusters that run have still to be given another one's place."""
        if not self._shares:
            return 0
        return sum(not each.finished and not each.cluster.taken for each in self.running)

    @property
    def blocks(self) -> list[Fibers]:
        """The blocks that have started, and whose clusters are not done."""
        return [block for each in self.running for block in each.blocks]

    @property
    def numbers(self) -> list[int]:
        """The numbers of the clusters that have started, and not ended."""
        return [number for each in self.running for number in each.cluster.numbers.tolist()]

    @property
    def unfinished(self) -> bool:
        """Whether something is left to run."""
        return bool(self.waiting) or any(not each.finished for each in self.running)

    def states(self) -> set[tuple[int, ...]]:
        """A number for the state of each warp of the blocks that run, and of their memory."""
        return {
            (number, *state)
            for number, block in enumerate(self.blocks)
            for state in states(block.cta, block.fibers)
        }

    def standing(self) -> list[Standing]:
        """Where all threads stand, and why they do not go on."""
        blocks = self.blocks
        return [each for block in blocks for each in standing(block.cta, block.steps, block.fibers)]

    def deadlock(self) -> EmulationError:
        """What to raise when no thread can go on: who waits for what."""
        blocks = self.blocks
        for block in blocks:
            check_parked(block.cta, block.steps, block.fibers)
        stuck = self.standing()
        # Who stands at bar.sync mostly waits for those that wait for an mbarrier; and these for
        # those that wait at one at which nobody has come.
        stuck.sort(
            key=lambda found: (
                not found.instruction.opcode.startswith("mbarrier"),
                "nobody has come" not in found.why,
            )
        )
        spinning = any(block.runnable for block in blocks)
        what = "no memory or barrier changes any more" if spinning else "no thread can go on"
        first = stuck[0].instruction if stuck else None
        return Deadlock(f"{what}:\n  " + "\n  ".join(told(stuck)), first)


def _counts(opcode: str) -> bool:
    """Whether blocks may take their tiles by it, an atomic counter: the fewer run side by side, the
    more tiles each of them gets."""
    parts = opcode.split(".")
    return parts[0] == "atom" and bool({"add", "inc"} & {*parts}) and "shared" not in opcode
